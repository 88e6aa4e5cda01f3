package main

import (
	"crypto/rand"
	"errors"
	"strings"
	"time"
	"unicode"
)

// signinNoun declares how people sign in for accounts.
func signinNoun() noun {
	return noun{
		name:   "signin",
		wings:  func(s *server) []wing { return []wing{signinWing(s), oauthPageWing(s)} },
		events: signinEvents,
		close:  (*tx).removeSignins,
	}
}

// How people sign in for an account (contract, section 13): with a code that an operator or a portal has made
// for them, which begins a session in their browser.

const (
	signinSymbols  = 12 // of a code, of 5 random bits each
	signinGroup    = 4  // symbols between two dashes of a printed code
	maxTypedCode   = 100
	signinCodeLife = 15 * time.Minute
	maxSigninCodes = 10 // of an account that can be used; the oldest goes
	sessionLife    = 12 * time.Hour
	maxSessions    = 100 // of an account; the oldest goes
)

// The event types of signing in. They are events of the account.
var (
	signinEvents eventTable

	eventSigninCodeMade = signinEvents.add("account.signin_code_made")
	eventSignedIn       = signinEvents.add("account.signed_in")
)

// errSigninCode means that a code is malformed, unknown, expired or used, or that its account is closed.
// Which of these it is, nobody learns.
var errSigninCode = errors.New("the code to sign in is not right")

const actorPersons = "person (" // begins the actors of people who have signed in

// actorPerson returns the actor of events for somebody who has signed in; by is who made the code.
func actorPerson(by string) string { return actorPersons + by + ")" }

// newSigninCode makes a code of 60 random bits in the printed form: "XXXX-XXXX-XXXX".
func newSigninCode() string {
	symbols := make([]byte, signinSymbols)
	rand.Read(symbols)
	var b strings.Builder
	for i, s := range symbols {
		if i > 0 && i%signinGroup == 0 {
			b.WriteByte('-')
		}
		b.WriteByte(upperCrockford[s&31])
	}
	return b.String()
}

// parseSigninCode returns the form of a code that is hashed: 12 symbols in upper case. It may be typed as
// licence keys may: in upper or lower case, with dashes and white space anywhere, and with O for 0 and I or L
// for 1. It reports false for what is no code.
func parseSigninCode(typed string) (plain string, ok bool) {
	if len(typed) > maxTypedCode {
		return "", false
	}
	isSeparator := func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) }
	plain = lookalikes.Replace(strings.ToUpper(strings.Join(strings.FieldsFunc(typed, isSeparator), "")))
	foreign := func(r rune) bool { return !strings.ContainsRune(upperCrockford, r) }
	return plain, len(plain) == signinSymbols && strings.IndexFunc(plain, foreign) < 0
}

// signinHash returns the keyed hash that a code is stored as; plain is what parseSigninCode returns.
func (k *keyring) signinHash(plain string) []byte { return k.hash("sign-in code", plain) }

// makeSigninCode makes a code with which one person can sign in for an account, within signinCodeLife. It
// returns the code in its printed form, which is stored nowhere, and when it expires. Errors: errAccount.
func makeSigninCode(t *tx, keys *keyring, accountID, actor string) (code string, until stamp, err error) {
	t.invalidate()
	if err := t.openAccount(accountID); err != nil {
		return "", stamp{}, err
	}
	code = newSigninCode()
	plain, _ := parseSigninCode(code)
	if err := t.keepSigninCodes(accountID, maxSigninCodes-1); err != nil {
		return "", stamp{}, err
	}
	c := signinCode{Hash: keys.signinHash(plain), AccountID: accountID, MadeBy: actor, CreatedAt: t.now,
		ExpiresAt: t.now.after(signinCodeLife)}
	if err := t.addSigninCode(c); err != nil {
		return "", stamp{}, err
	}
	return code, c.ExpiresAt, t.addEvent(accountEvent(accountID, eventSigninCodeMade, actor,
		"expires_at", c.ExpiresAt.String()))
}

// knowsSigninCode reports whether a code that somebody has typed can be used.
func knowsSigninCode(q *queries, keys *keyring, typed string, now stamp) (bool, error) {
	plain, ok := parseSigninCode(typed)
	if !ok {
		return false, nil
	}
	_, err := q.signinCode(keys.signinHash(plain), now)
	return err == nil, notUnless(err, errNotFound)
}

// signIn uses up a code that somebody has typed and begins a session. It returns the secret that the browser
// keeps, which is new each time and stored nowhere. before is what the browser had until now: that session
// ends. Errors: errSigninCode, after which the code, if there is one, can still be used.
func signIn(t *tx, keys *keyring, typed, before string) (secret string, err error) {
	t.invalidate()
	plain, ok := parseSigninCode(typed)
	if !ok {
		return "", errSigninCode
	}
	c, err := t.takeSigninCode(keys.signinHash(plain))
	if errors.Is(err, errNotFound) {
		return "", errSigninCode
	}
	if err != nil {
		return "", err
	}
	if err := t.removeSession(before); err != nil {
		return "", err
	}
	if err := t.keepSessions(c.AccountID, maxSessions-1); err != nil {
		return "", err
	}
	secret = randomText(32)
	err = t.addSession(&session{Hash: hashOf(secret), AccountID: c.AccountID, MadeBy: c.MadeBy,
		CreatedAt: t.now, ExpiresAt: t.now.after(sessionLife)})
	if err != nil {
		return "", err
	}
	return secret, t.addEvent(accountEvent(c.AccountID, eventSignedIn, actorPerson(c.MadeBy)))
}
