package main

import (
	"crypto/rand"
	"strings"
	"testing"
)

// quietService is newService for a test in which nothing runs at the same time: the race detector, which sees
// nothing in it, would only make it slow.
func quietService(t testing.TB, change ...func(*storeOptions, *serverOptions)) *service {
	t.Helper()
	sequentialUnderRace(t)
	return newService(t, change...)
}

// serviceWithApp is a quietService at which one application is registered, by registerApp.
func serviceWithApp(t testing.TB, change ...func(*app)) (*service, *app) {
	t.Helper()
	s := quietService(t)
	p, _ := s.registerApp(change...)
	return s, p
}

// bearerAuth is the header with which a caller shows a token.
func bearerAuth(token string) string { return "Authorization: Bearer " + token }

// auth is the header of a token of an account.
func (s *service) auth(account string, scopes ...string) string {
	s.t.Helper()
	return bearerAuth(s.token(account, strings.Join(scopes, " ")))
}

// appAuth is the header of a token that may register applications, and has further scopes.
func (s *service) appAuth(account string, more ...string) string {
	s.t.Helper()
	return s.auth(account, append(more, scopeApps)...)
}

// hasRows checks how many rows a part of a query gives that begins with a table, such as "sessions WHERE made_by = ?".
func (s *service) hasRows(want int, from string, args ...any) {
	s.t.Helper()
	if n := s.count(`SELECT count(*) FROM `+from, args...); n != want {
		s.t.Errorf("%d rows of %s %v, want %d", n, from, args, want)
	}
}

// testVerifier is a PKCE verifier, and testChallenge its S256 challenge.
const testVerifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"

var testChallenge = pkceChallenge(testVerifier)

// testRedirect is where the applications of registerApp have people sent back to.
const testRedirect = "https://app.example/back"

// registerApp writes an application that an operator vouches for, of the main account and for the web unless
// change says otherwise, and returns it with its secret; "" if it is public.
func (s *service) registerApp(change ...func(*app)) (*app, string) {
	s.t.Helper()
	p := &app{AccountID: s.account, Name: "Table Planner", HomePage: "https://app.example", Kind: appWeb,
		RedirectURIs: codeList{testRedirect}, Scope: scopeOrders + " " + scopeSelling + " " + scopeWebhooks,
		MadeBy: "test", VerifiedAt: newStamp(s.store.now())}
	for _, c := range change {
		c(p)
	}
	secret := ""
	if !p.public() {
		secret = rand.Text() + rand.Text()
		p.SecretHash = hashOf(secret)
	}
	s.change(func(t *tx) error {
		p.ID, p.CreatedAt, p.UpdatedAt = t.newID("app"), t.now, t.now
		return t.addApp(p)
	})
	return p, secret
}

// agree writes the code that an application gets when somebody agrees for an account, for testChallenge.
func (s *service) agree(p *app, accountID, scope string) (code string) {
	s.t.Helper()
	code = randomText(32)
	s.change(func(t *tx) error {
		return t.addGrantCode(&grantCode{Hash: hashOf(code), AppID: p.ID, AccountID: accountID,
			RedirectURI: p.RedirectURIs[0], Challenge: testChallenge, Scope: scope, AgreedBy: "test",
			CreatedAt: t.now, ExpiresAt: t.now.after(grantCodeLife)})
	})
	return code
}

// appToken issues an access token of an application for an account, under a grant of its own.
func (s *service) appToken(p *app, accountID, scope string) (token, grantID string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		g := &grant{ID: t.newID("grt"), AppID: p.ID, AccountID: accountID, Scope: scope, AgreedBy: "test",
			CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
		if err := t.addGrant(g); err != nil {
			return err
		}
		grantID = g.ID
		row := appToken{AppID: p.ID, GrantID: &grantID, AccountID: accountID, Scope: scope}
		token, _, err = issueAppToken(t, s.server.keys.Load(), row)
		return err
	})
	return token, grantID
}
