package main

import (
	"crypto/rand"
	"errors"
	"strings"
	"time"
	"unicode"
)

// grantNoun declares what owners of accounts allow applications to do.
func grantNoun() noun {
	return noun{
		name:     "grant",
		modules:  func(s *server) []module { return []module{grantModule(s)} },
		calls:    grantRouteCommands,
		ids:      []idKind{{"GRANT", "grt", "grants", false, nil}},
		events:   grantEvents,
		rows:     []rowReader{grantTable.unreadable, grantCodeTable.unreadable},
		holdings: []holding{heldGrants},
	}
}

// A grant is what the owner of an account has agreed to: that an application acts for the account.
type grant struct {
	ID        string     `json:"id" is:"grt"`          // The id of the grant.
	AccountID string     `json:"account_id" is:"acct"` // The account for which the application acts.
	AppID     string     `json:"-"`
	App       grantedApp `json:"app"`        // The application.
	Scope     string     `json:"scope"`      // What it may do, space-separated.
	AgreedBy  string     `json:"-"`          // who made the code with which the person had signed in
	CreatedAt stamp      `json:"created_at"` // When the application came for its first tokens.
	UsedAt    stamp      `json:"used_at"`    // When it came for tokens last.
	ExpiresAt stamp      `json:"expires_at"` // Until when it can come for tokens; coming for them moves it on.
	EndedAt   stamp      `json:"ended_at"`   // Since when none of its tokens works, or null: they do.

	// Why it has ended, or null: it has not. `app`: the application gave its tokens back. `code_reused` and
	// `token_reused`: a code or a refresh token came again, which may have been stolen. `replaced`: the account agreed
	// to the same application a hundred times since. `expired`: the application did not come in time. `app_removed`:
	// the application was removed. `owner` and `operator`: they ended it.
	EndedBy *grantEnd `json:"ended_by"`
	dryEnd
}

// A grantedApp is the application of a grant, as the account that agreed to it sees it.
type grantedApp struct {
	ID   string `json:"id" is:"app"` // Its id.
	Name string `json:"name"`        // Its name.

	// The name of the account that owns it; the host of one that nobody has registered.
	Owner string `json:"owner"`

	// Its home page; of one that nobody has registered the address of its document.
	HomePage string `json:"home_page" is:"uri"`

	Host *string `json:"-"` // of a document; nil: it is registered
}

// A grantEnd is why a grant has ended.
type grantEnd string

const (
	endedByOwner    = "owner"
	endedByOperator = "operator"
	endedByApp      = "app"          // which revoked its refresh token
	endedByCode     = "code_reused"  // its authorization code was used a second time
	endedByReuse    = "token_reused" // a refresh token was used that had been replaced
	endedByMore     = "replaced"     // the account agreed to the same application too often since
	endedByTime     = "expired"
	endedByRemoval  = "app_removed"
)

var _ = declareWords[grantEnd](endedByOwner, endedByOperator, endedByApp, endedByCode, endedByReuse, endedByMore,
	endedByTime, endedByRemoval)

// A grantCode is an authorization code: what a person has agreed to, until the application exchanges it.
type grantCode struct {
	Hash        []byte // SHA-256 of the code
	AppID       string
	AccountID   string
	RedirectURI string // as the request had it
	Challenge   string // of PKCE, by S256
	Scope       string
	AgreedBy    string
	GrantID     *string // the grant that was made of it; nil: it was not used
	CreatedAt   stamp
	ExpiresAt   stamp
}

// What owners of accounts agree to (contract, section 13).

const (
	maxGrants         = 100                  // of an account for one application; the oldest end
	grantCodeLife     = time.Minute          // of an authorization code
	keptGrantCode     = 24 * time.Hour       // in which the reuse of a code is noticed
	refreshLife       = 30 * 24 * time.Hour  // of a refresh token, unless it is used
	maxGrantLife      = 365 * 24 * time.Hour // however often its refresh tokens are used
	refreshOverlap    = 30 * time.Second     // in which a replaced token yields its successor again
	keptRefreshTokens = 1_000                // of a grant, so that the reuse of one is noticed
)

// The event types of grants.
var (
	grantEvents eventTable

	eventGrantCreated = grantEvents.add("grant.created")
	eventGrantEnded   = grantEvents.add("grant.ended")
	eventGrantReused  = grantEvents.add("grant.reuse_detected")
)

// grantEvent returns an event about a grant.
func grantEvent(g *grant, kind eventType, actor string, data ...string) event {
	data = append([]string{"app_id", g.AppID}, data...)
	return event{Type: kind, AccountID: g.AccountID, SubjectID: g.ID, Actor: actor, Data: eventData(data...)}
}

// endGrant ends a grant for one of the reasons endedBy…, so that none of its tokens works from the commit on,
// and with it the webhooks that were made under it. Ending it again changes nothing. Errors: errGrant.
func endGrant(t *tx, o owner, id string, why grantEnd, actor string) error {
	g, err := t.grant(o, id)
	if err != nil {
		return err
	}
	if !t.markGrantEnded(id, why) {
		return nil
	}
	webhooks, err := t.webhooksOfGrant(id)
	if err != nil {
		return err
	}
	if err := removeWebhooks(t, webhooks, actor); err != nil {
		return err
	}
	t.addEvent(grantEvent(g, eventGrantEnded, actor, "reason", string(why), "scope", g.Scope))
	return nil
}

// removeWebhooks removes the webhooks with these ids, which were made by applications.
func removeWebhooks(t *tx, ids []string, actor string) error {
	for _, id := range ids {
		if err := removeWebhook(t, anyAccount, id, actor); err != nil && !errors.Is(err, errWebhook) {
			return err
		}
	}
	return nil
}

const (
	endedAtOnce   = 50               // grants, of which each may have many refresh tokens and some webhooks
	keptAppTokens = 10 * time.Minute // after their end, for clocks that differ
)

// endDueGrants ends up to endedAtOnce grants whose time is over or whose application was removed, and as many webhooks
// that such an application has without a grant. Nothing of the application has worked since it was removed. It is a
// sweep: it returns limits.swept as long as there may be more.
func endDueGrants(t *tx) (int64, error) {
	due, err := t.dueGrants(t.now, endedAtOnce)
	if err != nil {
		return 0, err
	}
	for _, g := range due {
		if err := endGrant(t, anyAccount, g.ID, *g.EndedBy, actorTime); err != nil {
			return 0, err
		}
	}
	webhooks, err := t.webhooksOfRemovedApps(endedAtOnce)
	if err == nil {
		err = removeWebhooks(t, webhooks, actorTime)
	}
	if max(len(due), len(webhooks)) < endedAtOnce {
		return 0, err
	}
	return t.limits.swept, err
}

// signinNoun declares how people sign in for accounts.
func signinNoun() noun {
	return noun{
		name:    "signin",
		modules: func(s *server) []module { return []module{signinModule(s), oauthPageModule(s)} },
		events:  signinEvents,
		rows:    []rowReader{signinCodeTable.unreadable, sessionTable.unreadable},
		close:   (*tx).removeSignins,
	}
}

// A session is somebody who has signed in for an account, or can: a code to sign in with, until it is used, has the
// same fields.
type session struct {
	Hash      []byte // hashOf of what the browser keeps; of a code keyring.signinHash
	AccountID string
	Kind      sessionKind
	MadeBy    string // who made the code, as in events
	CreatedAt stamp
	ExpiresAt stamp
	Account   string // name of the account
}

// A sessionKind is which pages a code and the session that it begins open: those below /oauth/, on which the account's
// owner agrees that applications act for it, or those below /books, for its accountant. None opens the other's.
type sessionKind string

const (
	sessionConsent sessionKind = "consent"
	sessionBooks   sessionKind = "books"
)

var sessionKinds = declareWords(sessionConsent, sessionBooks)

// How people sign in for an account (contract, section 13): with a code that an operator, a portal or the account's own
// program has made for them, which begins a session in their browser.

const (
	signinSymbols  = 12 // of a code, of 5 random bits each
	signinGroup    = 4  // symbols between two dashes of a printed code
	maxTypedCode   = 100
	signinCodeLife = 15 * time.Minute
	maxSigninCodes = 10 // of an account and a kind that can be used; the oldest goes
	sessionLife    = 12 * time.Hour
	maxSessions    = 100 // of an account and a kind; the oldest goes
)

// The event types of signing in. They are events of the account.
var (
	signinEvents eventTable

	eventSigninCodeMade = signinEvents.add("account.signin_code_made")
	eventSignedIn       = signinEvents.add("account.signed_in")
)

// errSigninCode means that a code is malformed, unknown, expired or used, or that its account is closed. The
// person is not told which.
var errSigninCode = errors.New("the code to sign in is not right")

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

// A signinCode is a new code to sign in with, which is shown once.
type signinCode struct {
	// The code. It works once.
	Code string `json:"code" is:"^[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}$"`

	ExpiresAt stamp `json:"expires_at"` // Until when it works.
}

// makeSigninCode makes a code with which one person can sign in for an account, within signinCodeLife. Errors:
// errAccount.
func makeSigninCode(t *tx, keys *keyring, kind sessionKind, accountID, actor string) (*signinCode, error) {
	if err := t.openAccount(accountID); err != nil {
		return nil, err
	}
	made := &signinCode{newSigninCode(), t.now.after(signinCodeLife)}
	plain, _ := parseSigninCode(made.Code)
	t.addSigninCode(&session{Hash: keys.signinHash(plain), AccountID: accountID, Kind: kind, MadeBy: actor,
		CreatedAt: t.now, ExpiresAt: made.ExpiresAt})
	t.addEvent(accountEvent(accountID, eventSigninCodeMade, actor,
		"kind", string(kind), "expires_at", made.ExpiresAt.String()))
	return made, nil
}

// findSigninCode returns the code of a kind that somebody has typed. Errors: errSigninCode.
func findSigninCode(q *queries, keys *keyring, kind sessionKind, typed string, now stamp) (*session, error) {
	plain, ok := parseSigninCode(typed)
	if !ok {
		return nil, errSigninCode
	}
	c, err := q.signinCode(kind, keys.signinHash(plain), now)
	return c, replaced(err, errNotFound, errSigninCode)
}

// signIn uses up a code of a kind that somebody has typed and begins a session. It returns the secret that the browser
// keeps, which is new each time and stored nowhere. before is the secret that the browser had until now; its
// session ends. Errors: errSigninCode, after which the code, if there is one, can still be used.
func signIn(t *tx, keys *keyring, kind sessionKind, typed, before string) (secret string, err error) {
	c, err := findSigninCode(t.queries, keys, kind, typed, t.now)
	if err != nil {
		return "", err
	}
	t.removeSigninCode(c.Hash)
	t.removeSession(before)
	secret = randomText(32)
	t.addSession(&session{Hash: hashOf(secret), AccountID: c.AccountID, Kind: kind, MadeBy: c.MadeBy,
		CreatedAt: t.now, ExpiresAt: t.now.after(sessionLife)})
	t.addEvent(accountEvent(c.AccountID, eventSignedIn, actorPerson(c.MadeBy), "kind", string(kind)))
	return secret, nil
}
