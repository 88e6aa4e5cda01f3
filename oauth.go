package main

import (
	"cmp"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"strings"
	"time"
	"unicode"
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

// refreshToken returns the refresh token with a hash, replaced or not, expired or not, or errNotFound.
func (q *queries) refreshToken(hash []byte) (*refreshToken, error) {
	r := &refreshToken{}
	err := q.one(`SELECT hash, grant_id, number, successor, replaced_at, expires_at FROM refresh_tokens
		WHERE hash = ?`, []any{hash}, &r.Hash, &r.GrantID, &r.Number, &r.Successor, &r.ReplacedAt, &r.ExpiresAt)
	return r, err
}

// refreshTokenWorks reports whether the refresh token of a grant with a number is the one that has not been replaced.
func (q *queries) refreshTokenWorks(grantID string, number int64) (works bool, err error) {
	return orNil(oneValue[bool](q, `SELECT replaced_at IS NULL FROM refresh_tokens
		WHERE grant_id = ? AND number = ?`, grantID, number))
}

// addRefreshToken inserts a refresh token of a grant that works, and removes the one that comes keptRefreshTokens
// before it, and any older.
func (t *tx) addRefreshToken(g *grant, number int64, hash []byte) {
	t.exec(`INSERT INTO refresh_tokens (hash, grant_id, number, expires_at) VALUES (?, ?, ?, ?)`,
		hash, g.ID, number, g.ExpiresAt)
	t.exec(`DELETE FROM refresh_tokens WHERE grant_id = ? AND number <= ?`, g.ID, number-keptRefreshTokens)
}

// replaceRefreshToken notes that a refresh token was replaced, and by what, sealed. The sealed successor of the token
// before it is deleted: that successor has been used, and whoever had an early token and a copy of the database
// could follow the chain.
func (t *tx) replaceRefreshToken(r *refreshToken, successor []byte) {
	t.exec(`UPDATE refresh_tokens SET replaced_at = ?, successor = ? WHERE hash = ?`, t.now, successor, r.Hash)
	t.exec(`UPDATE refresh_tokens SET successor = NULL WHERE grant_id = ? AND number = ?`, r.GrantID, r.Number-1)
}

// extendRefreshToken changes when a refresh token expires.
func (t *tx) extendRefreshToken(hash []byte, expires stamp) {
	t.exec(`UPDATE refresh_tokens SET expires_at = ? WHERE hash = ?`, expires, hash)
}

// saveGrantUse notes that the application of a grant got tokens, and until when it can get more.
func (t *tx) saveGrantUse(id string, expires stamp) {
	t.exec(`UPDATE grants SET used_at = ?, expires_at = ? WHERE id = ?`, t.now, expires, id)
}

// grantTable describes the table grants.
var grantTable = newTable("grants", "g", func(g *grant) []field {
	return []field{{"id", &g.ID}, {"app_id", &g.AppID}, {"account_id", &g.AccountID}, {"scope", &g.Scope},
		{"agreed_by", &g.AgreedBy}, {"created_at", &g.CreatedAt}, {"used_at", &g.UsedAt},
		{"expires_at", &g.ExpiresAt}, {"ended_at", &g.EndedAt}, {"ended_by", &g.EndedBy}, {"p.id", &g.App.ID},
		{"p.name", &g.App.Name}, {"coalesce(p.host, o.name)", &g.App.Owner}, {"p.home_page", &g.App.HomePage},
		{"p.host", &g.App.Host}}
}, `JOIN apps p ON p.id = g.app_id JOIN accounts o ON o.id = p.account_id`)

// grant returns a grant for an account of an owner, ended or not. Errors: errGrant.
func (q *queries) grant(o owner, id string) (*grant, error) {
	return grantTable.byID(q, o, id, errGrant)
}

// grants returns a page of the grants for the accounts of an owner that have not ended, newest first, starting
// after the id before ("" for the newest). With ended it returns those that have, too.
func (q *queries) grants(o owner, ended bool, before string, limit int) (listPage[*grant], error) {
	list := grantTable.whereOwner(o)
	switch {
	case ended:
	case o.every:
		list.filter(` AND g.ended_at IS NULL`)
	default: // a partial index covers only those
		list.scope(` AND g.ended_at IS NULL`, nil)
	}
	return grantTable.page(q, list, before, limit)
}

// connectedApps returns a page of the applications that may act for the account of an owner, in the order of their
// newest grants, starting after the application whose newest grant has the id before ("" for the first page): of each
// all grants that have not ended, newest first, of which there are at most maxGrants.
func (q *queries) connectedApps(o owner, before string, limit int) (p listPage[[]grant], err error) {
	list := grantTable.whereOwner(o)
	list.scope(` AND g.ended_at IS NULL`, nil)
	list.filter(` AND NOT EXISTS (SELECT 1 FROM grants n WHERE n.app_id = g.app_id AND n.account_id = g.account_id
		AND n.ended_at IS NULL AND n.id > g.id)`)
	newest, err := grantTable.page(q, list, before, limit)
	for _, g := range newest.rows {
		all, failed := grantTable.all(q, `WHERE g.id IN (SELECT id FROM grants WHERE app_id = ? AND account_id = ?
			AND ended_at IS NULL ORDER BY id DESC LIMIT ?) ORDER BY g.id DESC`, g.AppID, g.AccountID, maxGrants)
		if failed != nil {
			return p, failed
		}
		if len(all) > 0 { // they have not ended meanwhile
			p.rows = append(p.rows, all)
		}
	}
	p.next = newest.next
	return p, err
}

// addGrant inserts a grant.
func (t *tx) addGrant(g *grant) { grantTable.insert(t, g) }

// markGrantEnded ends a grant that has not ended, and removes its refresh tokens, of which there are at most
// keptRefreshTokens. It reports whether it ended the grant.
func (t *tx) markGrantEnded(id string, why grantEnd) bool {
	n := t.exec(`UPDATE grants SET ended_at = ?, ended_by = ? WHERE id = ? AND ended_at IS NULL`, t.now, why, id)
	t.exec(`DELETE FROM refresh_tokens WHERE grant_id = ?`, id)
	return n > 0
}

// webhooksOfGrant returns the ids of the webhooks that were made under a grant.
func (q *queries) webhooksOfGrant(id string) ([]string, error) {
	return q.texts(`SELECT webhook_id FROM app_webhooks WHERE grant_id = ?`, id)
}

// oldestGrants returns the ids of up to 100 grants of an account for an application that have not ended and are
// not among the newest ones, which are kept.
func (q *queries) oldestGrants(appID, accountID string, kept int) ([]string, error) {
	return q.texts(`SELECT id FROM grants WHERE app_id = ? AND account_id = ? AND ended_at IS NULL
		ORDER BY id DESC LIMIT 100 OFFSET ?`, appID, accountID, kept)
}

// grantCodeTable describes the table grant_codes.
var grantCodeTable = newTable("grant_codes", "c", func(c *grantCode) []field {
	return []field{{"hash", &c.Hash}, {"app_id", &c.AppID}, {"account_id", &c.AccountID},
		{"redirect_uri", &c.RedirectURI}, {"challenge", &c.Challenge}, {"scope", &c.Scope}, {"agreed_by", &c.AgreedBy},
		{"grant_id", &c.GrantID}, {"created_at", &c.CreatedAt}, {"expires_at", &c.ExpiresAt}}
})

// grantCode returns the authorization code with a hash, used or not, expired or not, or errNotFound.
func (q *queries) grantCode(hash []byte) (*grantCode, error) {
	return grantCodeTable.one(q, `WHERE c.hash = ?`, hash)
}

// addGrantCode inserts an authorization code.
func (t *tx) addGrantCode(c *grantCode) { grantCodeTable.insert(t, c) }

// useGrantCode notes the grant that was made of an authorization code.
func (t *tx) useGrantCode(hash []byte, grantID string) {
	t.exec(`UPDATE grant_codes SET grant_id = ? WHERE hash = ?`, grantID, hash)
}

// dueGrants returns up to limit grants that have not ended although their time is over or their application was
// removed, each with its id and why it ends.
func (q *queries) dueGrants(now stamp, limit int) ([]grant, error) {
	return collect(q, `SELECT id, ? FROM grants WHERE ended_at IS NULL AND expires_at <= ?
		UNION ALL SELECT g.id, ? FROM apps p CROSS JOIN grants g ON g.app_id = p.id AND g.ended_at IS NULL
		WHERE p.removed_at IS NOT NULL LIMIT ?`, []any{endedByTime, now, endedByRemoval, limit},
		func(g *grant) []any { return []any{&g.ID, &g.EndedBy} })
}

// webhooksOfRemovedApps returns the ids of up to limit webhooks that removed applications have made without a grant.
func (q *queries) webhooksOfRemovedApps(limit int) ([]string, error) {
	return q.texts(`SELECT x.webhook_id FROM apps p CROSS JOIN app_webhooks x ON x.app_id = p.id AND x.grant_id IS NULL
		WHERE p.removed_at IS NOT NULL LIMIT ?`, limit)
}

// oauthSweeps are the sweeps of applications, grants and sign-ins: they end what is over, then remove the rows of each
// table whose time has passed. ended returns since when grants that have ended, and applications that were removed or
// are documents, are kept, at least as long as other rows refer to them.
func oauthSweeps(ended func(now time.Time) time.Time) []func(*tx) (int64, error) {
	after := func(kept time.Duration) func(time.Time) time.Time {
		return func(now time.Time) time.Time { return now.Add(-kept) }
	}
	const unused = ` AND NOT EXISTS (SELECT 1 FROM grant_codes WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM grants WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM app_tokens WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM app_webhooks WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM app_origins WHERE app_id = apps.id)`
	sweeps := []func(*tx) (int64, error){endDueGrants}
	for _, rows := range []struct {
		table, key, over string
		at               func(now time.Time) time.Time
	}{
		{`signin_codes`, `hash`, `expires_at <= ?`, after(0)},
		{`sessions`, `hash`, `expires_at <= ?`, after(0)},
		{`refresh_tokens`, `hash`, `expires_at <= ?`, after(0)},
		{`grant_codes`, `hash`, `expires_at < ?`, after(keptGrantCode)},
		{`app_tokens`, `id`, `expires_at < ?`, after(keptAppTokens)},
		{`grants`, `id`, `ended_at < ? AND NOT EXISTS (SELECT 1 FROM grant_codes WHERE grant_id = grants.id)
			AND NOT EXISTS (SELECT 1 FROM app_tokens WHERE grant_id = grants.id)
			AND NOT EXISTS (SELECT 1 FROM app_webhooks WHERE grant_id = grants.id)`, ended},
		{`apps`, `id`, `removed_at < ?` + unused, ended},
		{`apps`, `id`, `kind = 'document' AND updated_at < ?` + unused, ended},
	} {
		sweeps = append(sweeps, func(t *tx) (int64, error) {
			t.dropsNothing()
			return t.exec(`DELETE FROM `+rows.table+` WHERE `+rows.key+` IN (SELECT `+rows.key+` FROM `+rows.table+
				` WHERE `+rows.over+` LIMIT ?)`, newStamp(rows.at(t.now.Time)), t.limits.swept), nil
		})
	}
	return sweeps
}

// countOfApp counts the living grants of an application, and the webhooks that were made by it.
func (q *queries) countOfApp(appID string) (grants, webhooks int, err error) {
	err = q.one(`SELECT (SELECT count(*) FROM grants WHERE app_id = ?1 AND ended_at IS NULL),
		(SELECT count(*) FROM app_webhooks WHERE app_id = ?1)`, []any{appID}, &grants, &webhooks)
	return grants, webhooks, err
}

// heldGrants are those by which applications act for an account.
var heldGrants = holding{"grants", "grant",
	`SELECT count(*) FROM grants WHERE account_id = ?1 AND ended_at IS NULL AND expires_at > ?2`, ""}

// signinTable describes one of the two tables of signing in.
func signinTable(name string) *table[session] {
	return newTable(name, "s", func(s *session) []field {
		return []field{{"hash", &s.Hash}, {"account_id", &s.AccountID}, {"kind", &s.Kind}, {"made_by", &s.MadeBy},
			{"created_at", &s.CreatedAt}, {"expires_at", &s.ExpiresAt}, {"a.name", &s.Account}}
	}, "JOIN accounts a ON a.id = s.account_id")
}

var signinCodeTable, sessionTable = signinTable("signin_codes"), signinTable("sessions")

// lastingSignin selects the code or session of a kind with a hash, if it lasts at a time and its account is open.
const lastingSignin = `WHERE s.kind = ? AND s.hash = ? AND s.expires_at > ? AND a.closed_at IS NULL`

// session returns the session of a kind with a secret, if it lasts at now and its account is open, else errNotFound.
func (q *queries) session(kind sessionKind, secret string, now stamp) (*session, error) {
	return sessionTable.one(q, lastingSignin, kind, hashOf(secret), now)
}

// signinCode returns the code of a kind with a hash, if it lasts at now and its account is open, else errNotFound.
func (q *queries) signinCode(kind sessionKind, hash []byte, now stamp) (*session, error) {
	return signinCodeTable.one(q, lastingSignin, kind, hash, now)
}

// removeSigninCode removes the code with a hash.
func (t *tx) removeSigninCode(hash []byte) { t.exec(`DELETE FROM signin_codes WHERE hash = ?`, hash) }

// addSigninCode inserts a code, of whose kind the account keeps the newest maxSigninCodes.
func (t *tx) addSigninCode(c *session) {
	t.exec(`DELETE FROM signin_codes WHERE hash IN (SELECT hash FROM signin_codes
		WHERE account_id = ? AND kind = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)`,
		c.AccountID, c.Kind, maxSigninCodes-1)
	signinCodeTable.insert(t, c)
}

// addSession inserts a session, of whose kind the account keeps the newest maxSessions.
func (t *tx) addSession(s *session) {
	t.exec(`DELETE FROM sessions WHERE hash IN (SELECT hash FROM sessions
		WHERE account_id = ? AND kind = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)`,
		s.AccountID, s.Kind, maxSessions-1)
	sessionTable.insert(t, s)
}

// removeSession ends the session with a secret, if there is one.
func (t *tx) removeSession(secret string) {
	t.exec(`DELETE FROM sessions WHERE hash = ?`, hashOf(secret))
}

// removeSignins ends all sessions of an account, of which there are at most maxSessions of a kind, and removes its
// codes, at most maxSigninCodes of a kind.
func (t *tx) removeSignins(accountID string) error {
	t.exec(`DELETE FROM sessions WHERE account_id = ?`, accountID)
	t.exec(`DELETE FROM signin_codes WHERE account_id = ?`, accountID)
	return nil
}

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
