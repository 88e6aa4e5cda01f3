package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"testing"
)

// testVerifier is a PKCE verifier, and testChallenge its S256 challenge.
const testVerifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"

var testChallenge = challengeOf(testVerifier)

// challengeOf is the S256 challenge of a PKCE verifier (RFC 7636, section 4.2).
func challengeOf(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

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
		sum := sha256.Sum256([]byte(secret))
		p.SecretHash = sum[:]
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
	sum := sha256.Sum256([]byte(code))
	s.change(func(t *tx) error {
		return t.addGrantCode(&grantCode{Hash: sum[:], AppID: p.ID, AccountID: accountID,
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

func TestOAuth_aTokenOfAnApplicationEndsWithItsGrant(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp()
	token, grantID := s.appToken(p, s.account, scopeOrders)
	s.get("/orders", "Authorization: Bearer "+token).is(200)
	s.get("/leads", "Authorization: Bearer "+token).is(403, "insufficient_scope")
	s.check(s.store.update(t.Context(), func(t *tx) error {
		return endGrant(t, anyAccount, grantID, endedByOperator, actorOperator)
	}))
	s.get("/orders", "Authorization: Bearer "+token).is(401, "invalid_token")
}
