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

	codeOAuthRequest = oauthErrors.add(400, "invalid_request", "", "A parameter is missing or wrong.", "")
	codeOAuthClient  = oauthErrors.add(400, "invalid_client", "",
		"The application is unknown, or has not proved itself.", "")
	codeOAuthBasic = oauthErrors.add(401, "invalid_client", "",
		"The application is unknown, or has not proved itself.", "")
	codeOAuthGrant = oauthErrors.add(400, "invalid_grant", "",
		"The code or refresh token is unknown, has expired, or is another application's.", "")
	codeOAuthUnauthorized = oauthErrors.add(400, "unauthorized_client", "",
		"The application is not registered for client credentials.", "")
	codeOAuthGrantType = oauthErrors.add(400, "unsupported_grant_type", "",
		"The grant_type must be authorization_code, refresh_token or client_credentials.", "")
	codeOAuthScope = oauthErrors.add(400, "invalid_scope", "",
		"The scope has more than was agreed to, or nothing that the application is registered for.", "")
	codeOAuthDocument = oauthErrors.add(503, "temporarily_unavailable", "",
		"The document at the client_id can't be fetched. Nothing was used up: try again.", "")
	codeOAuthTarget = oauthErrors.add(400, "invalid_target", "",
		"The resource must be the base address of this service.", "")

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

	errDocumentAway = &refusal{code: codeOAuthDocument, retryAfter: documentRetry}

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

// An oauthForm has the parameters of a request to the token or revocation endpoint, by their names; "": absent.
type oauthForm map[string]string

// check returns a refusal if a parameter of the token endpoint is missing or has a wrong form. base is the address of
// this service.
func (f oauthForm) check(base string) error {
	if f["resource"] != "" && f["resource"] != base {
		return errOAuthTarget
	}
	switch verifier := f["code_verifier"]; f["grant_type"] {
	case grantTypeCode:
		switch {
		case f["code"] == "":
			return errParameter("code", "present")
		case f["redirect_uri"] == "":
			return errParameter("redirect_uri", "present, as it was when the code was asked for")
		case len(verifier) < 43 || len(verifier) > 128 || !unreserved(verifier):
			return errParameter("code_verifier", "present, and have 43 to 128 letters, digits and -._~")
		}
	case grantTypeRefresh:
		if f["refresh_token"] == "" {
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

// A tokenAnswer is what an application gets (RFC 6749, section 5.1).
type tokenAnswer struct {
	AccessToken  string `json:"access_token"`            // A bearer token: a JWS signed with Ed25519, at most 4 KiB.
	TokenType    string `json:"token_type" is:"=Bearer"` // How the access token is sent (RFC 6750).
	ExpiresIn    int    `json:"expires_in" least:"1"`    // For how many seconds the access token works.
	RefreshToken string `json:"refresh_token,omitempty"` // To use next; absent by client credentials.
	Scope        string `json:"scope"`                   // What the access token may do, separated by spaces.
}

// A tokenVerdict says whether an application gets the tokens that it asks for.
type tokenVerdict struct {
	app     *app
	refused error    // nil: it gets them
	scope   string   // of the access token
	ends    grantEnd // why the grant that by names ends, since its code or token was used before; "": it does not

	// by is what proves that the request is from the application: the grant to which its code or refresh token
	// belongs, or the account of a code that has no grant yet; "": nothing does, or only its secret.
	by string

	code    *grantCode // that is used; nil: none
	refresh *refreshToken
	grant   *grant // that refresh belongs to
}

// judgeTokenRequest decides about a request for tokens whose form is right, of an application that has proved itself
// or that has no secret. It changes nothing.
func judgeTokenRequest(q *queries, appID string, f oauthForm, now stamp) (v tokenVerdict) {
	p, err := q.workingApp(appID)
	switch {
	case err != nil:
		return tokenVerdict{refused: replaced(err, errApp, errClient)}
	case f["grant_type"] == grantTypeCode:
		v = judgeCode(q, p, f, now)
	case f["grant_type"] == grantTypeRefresh:
		v = judgeRefreshToken(q, p, f, now)
	case p.public() || p.OwnScope == nil:
		v.refused = errOwnTokens
	default:
		v.scope, v.refused = scopeFor(f["scope"], *p.OwnScope, p.Scope)
	}
	v.app = p
	return v
}

// judgeCode judges an authorization code. Nothing of it is told unless it is the application's and its redirect URI
// and verifier are right.
func judgeCode(q *queries, p *app, f oauthForm, now stamp) tokenVerdict {
	c, err := q.grantCode(hashOf(f["code"]))
	switch {
	case err != nil:
		return tokenVerdict{refused: replaced(err, errNotFound, errGrantUnknown)}
	case c.AppID != p.ID:
		return tokenVerdict{refused: errGrantUnknown}
	case c.RedirectURI != f["redirect_uri"]:
		return tokenVerdict{refused: errCodeRedirect}
	case subtle.ConstantTimeCompare([]byte(c.Challenge), []byte(pkceChallenge(f["code_verifier"]))) != 1:
		return tokenVerdict{refused: errCodeVerifier}
	}
	v := tokenVerdict{by: valueOr(c.GrantID, c.AccountID), code: c}
	switch {
	case c.GrantID != nil: // also after its time
		v.refused, v.ends = errCodeUsed, endedByCode
	case !now.Before(c.ExpiresAt.Time):
		v.refused = errCodeExpired
	case !p.mayActFor(c.AccountID), !p.sendsTo(c.RedirectURI):
		v.refused = errCodeApp
	default:
		v.scope, v.refused = agreedScope(q, p, c.AccountID, "", c.Scope)
	}
	return v
}

// judgeRefreshToken judges a refresh token. One that was replaced is good again as long as its successor is unused,
// for refreshOverlap.
func judgeRefreshToken(q *queries, p *app, f oauthForm, now stamp) tokenVerdict {
	row, g, err := findRefreshToken(q, p.ID, f["refresh_token"])
	if err != nil {
		return tokenVerdict{refused: err}
	}
	v := tokenVerdict{by: g.ID, refresh: row, grant: g}
	good := row.ReplacedAt.IsZero()
	if !good && row.Successor != nil && closerThan(refreshOverlap, row.ReplacedAt.Time, now.Time) {
		good, err = q.refreshTokenWorks(g.ID, row.Number+1)
	}
	switch {
	case err != nil:
		v.refused = err
	case !now.Before(row.ExpiresAt.Time):
		v.refused = errRefreshExpired
	case !good:
		v.refused, v.ends = errRefreshReused, endedByReuse
	default:
		v.scope, v.refused = agreedScope(q, p, g.AccountID, f["scope"], g.Scope)
	}
	return v
}

// findRefreshToken returns a refresh token with its grant, which has not ended, replaced or not. Errors:
// errGrantUnknown, also for one of another application.
func findRefreshToken(q *queries, appID, token string) (row *refreshToken, g *grant, err error) {
	if row, err = q.refreshToken(hashOf(token)); err == nil {
		g, err = q.grant(anyAccount, row.GrantID)
	}
	if err == nil && (g.AppID != appID || !g.EndedAt.IsZero()) {
		err = errNotFound
	}
	return row, g, replaced(err, errNotFound, errGrantUnknown)
}

// agreedScope is scopeFor for what an account has agreed to. Errors: also errGrantClosed.
func agreedScope(q *queries, p *app, accountID, asked, agreed string) (string, error) {
	switch a, err := q.account(accountID); {
	case err != nil:
		return "", err
	case !a.ClosedAt.IsZero():
		return "", errGrantClosed
	}
	return scopeFor(asked, agreed, p.Scope)
}

// scopeFor returns what an access token may do: what is asked for ("": all) of what was agreed to, as far as
// the application is still registered for it. What the service does not know is left out. Errors: errOAuthScope.
func scopeFor(asked, agreed, registered string) (string, error) {
	asked = cmp.Or(asked, agreed)
	scope := scopesWithin(asked, registered)
	if scope == "" || hasForeign(knownScopes(asked), strings.Fields(agreed)) {
		return "", errOAuthScope
	}
	return scope, nil
}

// issueTokens carries out a verdict on a request with that form. What a refusal ends is committed.
func issueTokens(t *tx, keys *keyring, v tokenVerdict, f oauthForm) (*tokenAnswer, error) {
	if v.ends != "" {
		if v.refresh != nil {
			t.addEvent(grantEvent(v.grant, eventGrantReused, appActor(v.app.ID)))
		}
		if err := endGrant(t, anyAccount, v.by, v.ends, appActor(v.app.ID)); err != nil {
			return nil, err
		}
		return nil, commitAnyway(v.refused)
	}
	g, refresh, err := v.grant, "", v.refused
	switch {
	case err != nil:
	case v.code != nil:
		g, refresh, err = startGrant(t, v.code)
	case v.refresh != nil:
		refresh, err = renewRefreshToken(t, v.app, g, v.refresh, f["refresh_token"])
	}
	if err != nil {
		return nil, err
	}
	row := appToken{AppID: v.app.ID, client: v.app.clientID(), AccountID: v.app.AccountID, Scope: v.scope}
	if g != nil {
		row.GrantID, row.AccountID = &g.ID, g.AccountID
	}
	token, _, err := issueAppToken(t, keys, row)
	return &tokenAnswer{token, "Bearer", int(appTokenLife / time.Second), refresh, v.scope}, err
}

// startGrant makes the grant that an authorization code stands for, and its first refresh token.
func startGrant(t *tx, c *grantCode) (g *grant, refresh string, err error) {
	g = &grant{ID: t.newID("grt"), AppID: c.AppID, AccountID: c.AccountID, Scope: c.Scope, AgreedBy: c.AgreedBy,
		CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
	t.addGrant(g)
	t.addEvent(grantEvent(g, eventGrantCreated, appActor(g.AppID), "scope", g.Scope))
	refresh = newRefreshToken(t, g, 1)
	t.useGrantCode(c.Hash, g.ID)
	more, err := t.oldestGrants(g.AppID, g.AccountID, maxGrants)
	for _, id := range more {
		if err := endGrant(t, anyAccount, id, endedByMore, appActor(g.AppID)); err != nil {
			return nil, "", err
		}
	}
	return g, refresh, err
}

// newRefreshToken gives a grant another refresh token, of 256 random bits, and returns it.
func newRefreshToken(t *tx, g *grant, number int64) (token string) {
	token = randomText(32)
	t.addRefreshToken(g, number, hashOf(token))
	return token
}

// renewRefreshToken returns the refresh token to use after token, whose row is given: for an application that can
// keep a secret the same one, which then works longer; for others its successor, which is made when token is used
// for the first time. Either lasts refreshLife, but not past maxGrantLife.
func renewRefreshToken(t *tx, p *app, g *grant, row *refreshToken, token string) (next string, err error) {
	if !row.ReplacedAt.IsZero() {
		plain, err := unsealWith(successorKey(token), row.Successor, row.Hash)
		t.saveGrantUse(g.ID, g.ExpiresAt)
		return string(plain), err
	}
	g.ExpiresAt = t.now.after(refreshLife)
	if last := g.CreatedAt.after(maxGrantLife); last.Before(g.ExpiresAt.Time) {
		g.ExpiresAt = last
	}
	t.saveGrantUse(g.ID, g.ExpiresAt)
	if !p.public() {
		t.extendRefreshToken(row.Hash, g.ExpiresAt)
		return token, nil
	}
	next = newRefreshToken(t, g, row.Number+1)
	t.replaceRefreshToken(row, sealWith(successorKey(token), []byte(next), row.Hash))
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

// findRevoked returns what a token of an application stands for: a grant, if it is a refresh token, else the jti of an
// access token, which counts even if it has expired. Both are "" if it is no token of the application.
func findRevoked(q *queries, keys *keyring, p *app, token string) (grantID, jti string, err error) {
	_, g, err := findRefreshToken(q, p.ID, token)
	if err == nil {
		return g.ID, "", nil
	}
	c, wrong := keys.verify(token)
	if !errors.Is(err, errGrantUnknown) || wrong != nil || c.ClientID != p.clientID() || c.isDevice() {
		return "", "", except(err, errGrantUnknown)
	}
	return c.Grant, c.ID, nil
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
