package main

import (
	"cmp"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"strings"
	"time"
)

// How applications authenticate and get tokens (RFC 6749, RFC 7636, RFC 9700; contract, section 13).

// What the token endpoint issues tokens for (RFC 6749, sections 4.1.3, 4.4.2 and 6).
const (
	grantTypeCode    = "authorization_code"
	grantTypeRefresh = "refresh_token"
	grantTypeOwn     = "client_credentials"
)

// The errors of the token and revocation endpoints (RFC 6749, section 5.2; RFC 8707, section 2). They are not
// problem codes: an answer has only their name and detail.
var (
	oauthErrors problemTable

	codeOAuthRequest = oauthErrors.add(400, "invalid_request", "", "A parameter is missing or wrong.")
	codeOAuthClient  = oauthErrors.add(400, "invalid_client", "",
		"The application is unknown, or has not proved itself.")
	codeOAuthBasic = oauthErrors.add(401, "invalid_client", "",
		"The application is unknown, or has not proved itself.")
	codeOAuthGrant = oauthErrors.add(400, "invalid_grant", "",
		"The code or refresh token is unknown, has expired, or is another application's.")
	codeOAuthUnauthorized = oauthErrors.add(400, "unauthorized_client", "",
		"The application is not registered for client credentials.")
	codeOAuthGrantType = oauthErrors.add(400, "unsupported_grant_type", "",
		"The grant_type must be authorization_code, refresh_token or client_credentials.")
	codeOAuthScope = oauthErrors.add(400, "invalid_scope", "",
		"The scope has more than was agreed to, or nothing that the application is registered for.")
	codeOAuthTarget = oauthErrors.add(400, "invalid_target", "",
		"The resource must be the base address of this service.")

	errClientBoth = &refusal{code: codeOAuthRequest,
		detail: "The application must prove itself in one way only, and name only itself."}
	errClient      = &refusal{code: codeOAuthClient}
	errClientBasic = &refusal{code: codeOAuthBasic, challenge: `Basic realm="widgetd"`}

	errGrantUnknown = &refusal{code: codeOAuthGrant}
	errCodeRedirect = &refusal{code: codeOAuthGrant, detail: "The code was sent to another redirect_uri."}
	errCodeVerifier = &refusal{code: codeOAuthGrant, detail: "The code_verifier is not the code_challenge's."}
	errCodeApp      = &refusal{code: codeOAuthGrant,
		detail: "Since the code was issued the application has changed: nobody vouches for it, or the redirect_uri " +
			"is not registered any more."}
	errCodeExpired = &refusal{code: codeOAuthGrant, detail: "The code has expired."}
	errCodeUsed    = &refusal{code: codeOAuthGrant,
		detail: "The code was used before, so everything that was issued for it has ended."}
	errRefreshExpired = &refusal{code: codeOAuthGrant, detail: "The refresh token has expired."}
	errRefreshReused  = &refusal{code: codeOAuthGrant,
		detail: "The refresh token was replaced before, so everything that was issued under its grant has ended."}
	errGrantClosed = &refusal{code: codeOAuthGrant, detail: "The account is closed."}

	errOwnTokens   = &refusal{code: codeOAuthUnauthorized}
	errGrantType   = &refusal{code: codeOAuthGrantType}
	errOAuthScope  = &refusal{code: codeOAuthScope}
	errOAuthTarget = &refusal{code: codeOAuthTarget}
)

// errParameter returns the refusal of a parameter of the token or revocation endpoint, which must be what
// the text says: "required".
func errParameter(name, must string) error {
	return &refusal{code: codeOAuthRequest, detail: "The parameter " + name + " must be " + must + "."}
}

// acceptsSecret reports whether a secret is the application's, or until EarlierUntil the one before.
func (p *app) acceptsSecret(secret string, now time.Time) bool {
	hash := hashOf(secret)
	current := subtle.ConstantTimeCompare(hash, p.SecretHash) == 1
	earlier := subtle.ConstantTimeCompare(hash, p.EarlierHash) == 1 && now.Before(p.EarlierUntil.Time)
	return current || earlier
}

// clientFields are the parameters in the body with which an application identifies and authenticates itself.
type clientFields struct {
	clientID, clientSecret string
	inURL                  bool // a parameter is in the URL, which logs and proxies keep
}

// A tokenRequest asks the token endpoint for tokens; "": the parameter is absent.
type tokenRequest struct {
	clientFields
	grantType   string
	code        string
	redirectURI string
	verifier    string // of PKCE
	refresh     string
	scope       string
	resource    string
}

// check returns a refusal if a parameter is missing or has a wrong form. base is the address of this service.
func (r *tokenRequest) check(base string) error {
	if r.resource != "" && r.resource != base {
		return errOAuthTarget
	}
	switch r.grantType {
	case grantTypeCode:
		switch {
		case r.code == "":
			return errParameter("code", "present")
		case r.redirectURI == "":
			return errParameter("redirect_uri", "present, as it was when the code was asked for")
		case len(r.verifier) < 43 || len(r.verifier) > 128 || !unreserved(r.verifier):
			return errParameter("code_verifier", "present, and have 43 to 128 letters, digits and -._~")
		}
	case grantTypeRefresh:
		if r.refresh == "" {
			return errParameter("refresh_token", "present")
		}
	case grantTypeOwn:
	case "":
		return errParameter("grant_type", "present")
	default:
		return errGrantType
	}
	return nil
}

// A tokenAnswer is what the token endpoint answers with (RFC 6749, section 5.1).
type tokenAnswer struct {
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int    `json:"expires_in"` // seconds
	RefreshToken string `json:"refresh_token,omitempty"`
	Scope        string `json:"scope"`
}

// checkTokenRequest checks what a request asks tokens for. It returns as by what proves that the request is from
// the application: the grant to which its code or refresh token belongs, or the account of a code that has no
// grant yet; "": nothing does. It may return both that and the error why there are no tokens. It changes nothing.
func checkTokenRequest(q *queries, p *app, r *tokenRequest, now stamp) (by string, err error) {
	switch r.grantType {
	case grantTypeCode:
		c, err := checkGrantCode(q, p, r, now)
		if c == nil {
			return "", err
		}
		return valueOr(c.GrantID, c.AccountID), err
	case grantTypeRefresh:
		u, err := checkRefresh(q, p, r, now)
		if u == nil {
			return "", err
		}
		return u.grant.ID, err
	}
	_, err = ownScope(p, r)
	return "", err
}

// issueTokens is the transaction of the token endpoint, for an application that has authenticated by a secret, or does
// so by the code or token in r. Its refusals are errors of the token endpoint; one that ends a grant is committed.
func issueTokens(t *tx, keys *keyring, appID string, r *tokenRequest) (*tokenAnswer, error) {
	p, err := t.usedApp(anyAccount, appID)
	if errors.Is(err, errApp) || err == nil && !p.works() {
		err = errClient
	}
	if err != nil {
		return nil, err
	}
	switch r.grantType {
	case grantTypeCode:
		return exchangeCode(t, keys, p, r)
	case grantTypeRefresh:
		return useRefreshToken(t, keys, p, r)
	}
	scope, err := ownScope(p, r)
	if err != nil {
		return nil, err
	}
	return signAccess(t, keys, appToken{AppID: p.ID, AccountID: p.AccountID, Scope: scope}, "")
}

// signAccess issues an access token and returns it together with a refresh token; "": there is none.
func signAccess(t *tx, keys *keyring, row appToken, refresh string) (*tokenAnswer, error) {
	token, issued, err := issueAppToken(t, keys, row)
	return &tokenAnswer{token, "Bearer", int(appTokenLife / time.Second), refresh, issued.Scope}, err
}

// ownScope returns the scope that an application gets for its owner's account by client credentials.
func ownScope(p *app, r *tokenRequest) (string, error) {
	if p.public() || p.OwnScope == nil {
		return "", errOwnTokens
	}
	return scopeFor(r.scope, *p.OwnScope, p.Scope)
}

// scopeFor returns what an access token may do: what is asked for ("": all) of what was agreed to, as far as
// the application is still registered for it. Errors: errOAuthScope.
func scopeFor(asked, agreed, registered string) (string, error) {
	asked = cmp.Or(asked, agreed)
	scope := scopesWithin(asked, registered)
	if scope == "" || hasForeign(strings.Fields(asked), strings.Fields(agreed)) {
		return "", errOAuthScope
	}
	return scope, nil
}

// accountOpen returns errGrantClosed if an account is closed.
func accountOpen(q *queries, id string) error {
	a, err := q.account(id)
	if err == nil && !a.ClosedAt.IsZero() {
		err = errGrantClosed
	}
	return err
}

// checkGrantCode looks up an authorization code. It returns nil unless the code is the application's and its
// redirect URI and verifier are right; if they are, it returns the code, even with an error. Errors: errCodeUsed
// for a code that has been used, also after its time, and other refusals.
func checkGrantCode(q *queries, p *app, r *tokenRequest, now stamp) (*grantCode, error) {
	c, err := q.grantCode(hashOf(r.code))
	if err != nil {
		return nil, replaced(err, errNotFound, errGrantUnknown)
	}
	switch {
	case c.AppID != p.ID:
		return nil, errGrantUnknown
	case c.RedirectURI != r.redirectURI:
		return nil, errCodeRedirect
	case subtle.ConstantTimeCompare([]byte(c.Challenge), []byte(pkceChallenge(r.verifier))) != 1:
		return nil, errCodeVerifier
	case c.GrantID != nil:
		return c, errCodeUsed
	case !now.Before(c.ExpiresAt.Time):
		return c, errCodeExpired
	case !p.mayActFor(c.AccountID), !p.sendsTo(c.RedirectURI):
		return c, errCodeApp
	}
	if err := accountOpen(q, c.AccountID); err != nil {
		return c, err
	}
	_, err = scopeFor("", c.Scope, p.Scope)
	return c, err
}

// exchangeCode makes the grant that an authorization code stands for, and its first tokens. The reuse of a code
// ends the grant.
func exchangeCode(t *tx, keys *keyring, p *app, r *tokenRequest) (*tokenAnswer, error) {
	c, err := checkGrantCode(t.queries, p, r, t.now)
	if errors.Is(err, errCodeUsed) {
		if err := endGrant(t, anyAccount, *c.GrantID, endedByCode, appActor(p.ID)); err != nil {
			return nil, err
		}
		return nil, keep(errCodeUsed)
	}
	if err != nil {
		return nil, err
	}
	g := &grant{ID: t.newID("grt"), AppID: p.ID, AccountID: c.AccountID, Scope: c.Scope, AgreedBy: c.AgreedBy,
		CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
	first := newRefreshToken()
	t.addGrant(g)
	t.addEvent(grantEvent(g, eventGrantCreated, appActor(p.ID), "scope", g.Scope))
	t.addRefreshToken(&refreshToken{Hash: hashOf(first), GrantID: g.ID, Number: 1, ExpiresAt: g.ExpiresAt})
	if !t.useGrantCode(c.Hash, g.ID) {
		return nil, errCodeUsed // checkGrantCode has seen that it is unused
	}
	more, err := t.oldestGrants(p.ID, g.AccountID, maxGrants)
	if err != nil {
		return nil, err
	}
	for _, id := range more {
		if err := endGrant(t, anyAccount, id, endedByMore, appActor(p.ID)); err != nil {
			return nil, err
		}
	}
	scope, err := scopeFor("", g.Scope, p.Scope)
	if err != nil {
		return nil, err
	}
	row := appToken{AppID: p.ID, GrantID: &g.ID, AccountID: g.AccountID, Scope: scope}
	return signAccess(t, keys, row, first)
}

// newRefreshToken returns a refresh token of 256 random bits.
func newRefreshToken() string { return randomText(32) }

// A refreshUse is a refresh token of an application, with its grant and what it yields.
type refreshUse struct {
	row   *refreshToken
	grant *grant
	scope string // of the next access token
}

// checkRefresh looks up a refresh token. It returns nil unless the token is the application's; if it is, it
// returns the token, even with an error. Errors: errRefreshReused, if it was replaced and must not be used again,
// and other refusals.
func checkRefresh(q *queries, p *app, r *tokenRequest, now stamp) (*refreshUse, error) {
	u, err := findRefreshToken(q, p.ID, r.refresh)
	if err != nil {
		return nil, err
	}
	if !now.Before(u.row.ExpiresAt.Time) {
		return u, errRefreshExpired
	}
	if !u.row.ReplacedAt.IsZero() {
		unused, err := q.refreshTokenWorks(u.row.GrantID, u.row.Number+1)
		if err != nil {
			return u, err
		}
		if !unused || u.row.Successor == nil || !closerThan(refreshOverlap, u.row.ReplacedAt.Time, now.Time) {
			return u, errRefreshReused
		}
	}
	if err := accountOpen(q, u.grant.AccountID); err != nil {
		return u, err
	}
	u.scope, err = scopeFor(r.scope, u.grant.Scope, p.Scope)
	return u, err
}

// findRefreshToken returns a refresh token with its grant, which has not ended, replaced or not. Errors:
// errGrantUnknown, also for one of another application.
func findRefreshToken(q *queries, appID, token string) (*refreshUse, error) {
	row, err := q.refreshToken(hashOf(token))
	if err != nil {
		return nil, replaced(err, errNotFound, errGrantUnknown)
	}
	g, err := q.grant(anyAccount, row.GrantID)
	if err == nil && (g.AppID != appID || !g.EndedAt.IsZero()) {
		err = errGrantUnknown
	}
	if err != nil {
		return nil, err
	}
	return &refreshUse{row: row, grant: g}, nil
}

// useRefreshToken issues an access token for a refresh token, and replaces the refresh token of a public
// application. The reuse of one that was replaced ends the grant.
func useRefreshToken(t *tx, keys *keyring, p *app, r *tokenRequest) (*tokenAnswer, error) {
	u, err := checkRefresh(t.queries, p, r, t.now)
	if errors.Is(err, errRefreshReused) {
		t.addEvent(grantEvent(u.grant, eventGrantReused, appActor(p.ID)))
		if err := endGrant(t, anyAccount, u.grant.ID, endedByReuse, appActor(p.ID)); err != nil {
			return nil, err
		}
		return nil, keep(errRefreshReused)
	}
	if err != nil {
		return nil, err
	}
	next, err := renewRefreshToken(t, p, u, r.refresh)
	if err != nil {
		return nil, err
	}
	row := appToken{AppID: p.ID, GrantID: &u.grant.ID, AccountID: u.grant.AccountID, Scope: u.scope}
	return signAccess(t, keys, row, next)
}

// renewRefreshToken returns the refresh token to use after token, whose row is u's: for an application that can
// keep a secret the same one, which then works longer; for others its successor, which is made when token is used
// for the first time. Either lasts refreshLife, but not past maxGrantLife.
func renewRefreshToken(t *tx, p *app, u *refreshUse, token string) (next string, err error) {
	g, row := u.grant, u.row
	g.UsedAt = t.now
	if !row.ReplacedAt.IsZero() {
		plain, err := unsealWith(successorKey(token), row.Successor, row.Hash)
		if err != nil {
			return "", err
		}
		t.saveGrantUse(g)
		return string(plain), nil
	}
	g.ExpiresAt = t.now.after(refreshLife)
	if last := g.CreatedAt.after(maxGrantLife); last.Before(g.ExpiresAt.Time) {
		g.ExpiresAt = last
	}
	t.saveGrantUse(g)
	if !p.public() {
		t.extendRefreshToken(row.Hash, g.ExpiresAt)
		return token, nil
	}
	next = newRefreshToken()
	row.ReplacedAt, row.Successor = t.now, sealWith(successorKey(token), []byte(next), row.Hash)
	if err := t.replaceRefreshToken(row); err != nil {
		return "", err
	}
	t.addRefreshToken(&refreshToken{Hash: hashOf(next), GrantID: g.ID, Number: row.Number + 1,
		ExpiresAt: g.ExpiresAt})
	return next, nil
}

// successorKey derives the key under which the successor of a refresh token is sealed, by HKDF with SHA-256 (RFC
// 5869): only a holder of the token can open it.
func successorKey(token string) []byte {
	key, err := hkdf.Key(sha256.New, []byte(token), nil, "widgetd refresh successor", 32)
	if err != nil {
		panic(err) // only for a length above 8160 bytes
	}
	return key
}

// A revocation is what a token to be revoked stands for: a grant, if it is a refresh token, or an access token.
type revocation struct {
	grantID string // of the token; "": of an access token by client credentials
	jti     string // of an access token; "": it is a refresh token
}

// findRevocation returns what a token of an application stands for, or nil if it is no such token. An access token
// counts even if it has expired. It changes nothing.
func findRevocation(q *queries, keys *keyring, appID, token string) (*revocation, error) {
	u, err := findRefreshToken(q, appID, token)
	if err == nil {
		return &revocation{grantID: u.grant.ID}, nil
	}
	if !errors.Is(err, errGrantUnknown) {
		return nil, err
	}
	c, err := keys.verify(token)
	if err != nil || c.ClientID != appID || c.isDevice() {
		return nil, nil
	}
	return &revocation{grantID: c.Grant, jti: c.ID}, nil
}

// revoke ends what a token stands for (RFC 7009): with a refresh token the grant. What has ended already stays
// as it is.
func (r *revocation) revoke(t *tx, appID string) error {
	if r.jti == "" {
		return endGrant(t, anyAccount, r.grantID, endedByApp, appActor(appID))
	}
	t.revokeAppToken(appID, r.jti)
	return nil
}

// A refreshToken is one of the refresh tokens of a grant: the one that works, or one that was replaced.
type refreshToken struct {
	Hash       []byte // SHA-256 of the token
	GrantID    string
	Number     int64  // counted within the grant, from 1
	Successor  []byte // what replaced it, sealed under a key that is derived from the token
	ReplacedAt stamp  // zero: it works
	ExpiresAt  stamp
}
