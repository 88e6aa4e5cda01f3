package main

import (
	"encoding/hex"
	"slices"
	"strings"
)

// The kinds of applications. One on the web runs on a server and can keep a secret; the others are public clients
// (RFC 6749, section 2.1), which have only PKCE. A document is one that nobody has registered: see clientDocuments.
const (
	appWeb       = "web"
	appBrowser   = "browser"
	appInstalled = "installed"
	appDocument  = "document"
)

// appKinds are all of them, and registeredKinds those of applications that somebody registers.
var (
	appKinds        = declareWords[appKind](appWeb, appBrowser, appInstalled, appDocument)
	registeredKinds = appKinds[:3]
)

// An appKind is how an application can prove itself. `web`: it runs on a server and has a secret. `browser` and
// `installed`: they can keep none, so PKCE is all. `document`: nobody has registered it, and its Client ID
// Metadata Document says what it is; it can be removed, not changed.
type appKind string

// An app is an application of somebody else that acts for accounts whose owners agree to it.
type app struct {
	ID        string `json:"id" is:"app"`          // Its `client_id`, unless its kind is `document`.
	AccountID string `json:"account_id" is:"acct"` // The account that owns it.

	// As people who are asked to agree read it: no character that is invisible or changes the direction of writing, a
	// letter or a digit, and no space at an end.
	Name string `json:"name" least:"1" most:"60"`

	// For people: `https`, or `http` on `127.0.0.1` or `[::1]`. Of the kind `document` the address of its document,
	// which is its `client_id`.
	HomePage string `json:"home_page" is:"uri" least:"1" most:"500"`

	Kind appKind `json:"kind"` // How it can prove itself.

	// Where people are sent back to, compared exactly: absolute, `https`, no fragment, no user name, no wildcard.
	// `installed` also: `http` on `127.0.0.1` or `[::1]`, with any port, and a scheme of its own that is a domain name
	// in reverse.
	RedirectURIs []string `json:"redirect_uris"`

	// The sites on which it runs, for the kind `browser`, which has at least one: `https`. None may be an account's
	// own site.
	Origins []string `json:"origins" most:"20"`

	// What it may ask for, space-separated: `stats:read`, `leads:read`, `leads:write`, `licenses:read`,
	// `devices:write`, `events:read`, `webhooks:write`, `orders:read`, `orders:write`, `revenue:read`, `books:write`.
	Scope string `json:"scope" most:"500" is:"^[a-z]+:[a-z]+( [a-z]+:[a-z]+)*$"`

	// What client credentials give it for the account that owns it, among its `scope`, or null: it may not use them.
	// Only for the kind `web`.
	OwnScope *string `json:"own_scope" most:"500" is:"^[a-z]+:[a-z]+( [a-z]+:[a-z]+)*$"`

	// Since when an operator vouches for it, or null: only the account that owns it can agree to it.
	VerifiedAt stamp `json:"verified_at"`

	// Until when the secret before the last rotation is taken too, or null: there was none, or it ended at once.
	EarlierUntil stamp `json:"previous_secret_until"`

	MadeBy    creatorName `json:"made_by"`    // Who registered it: `token` and its id, or `operator`.
	CreatedAt stamp       `json:"created_at"` // When it was registered.
	UpdatedAt stamp       `json:"updated_at"` // When it was changed last.
	dryEnd
	SecretHash  []byte  `json:"-"` // SHA-256 of its secret; nil: it has none
	EarlierHash []byte  `json:"-"` // of the previous secret
	Host        *string `json:"-"` // of a document; nil: it is registered
	unscoped    bool    // it is a document that names no scope
	Owner       string  `json:"-"` // name of the account that owns it; of a document Host
}

// clientID returns the application's client_id: its id, or the address of its document.
func (p *app) clientID() string {
	if p.Kind == appDocument {
		return p.HomePage
	}
	return p.ID
}

// Revision tells one state of the application from another. A page that asks for consent has it.
func (p *app) Revision() string {
	if p.Kind == appDocument {
		return hex.EncodeToString(hashOf(bodyText([]any{p.Name, p.RedirectURIs, p.Scope})))
	}
	return p.UpdatedAt.String()
}

// A creatorName is the actor who made a row. Callers see it as publicActor returns it.
type creatorName string

// appTable describes the table apps. Of the addresses only strings are read, since somebody may have written other
// values with the sqlite3 shell.
var appTable = newTable("apps", "p", func(p *app) []field {
	return []field{{"id", &p.ID}, {"account_id", &p.AccountID}, {"name", &p.Name}, {"home_page", &p.HomePage},
		{"kind", &p.Kind}, {`CASE WHEN json_valid(p.redirect_uris) THEN
		(SELECT json_group_array(value) FROM json_each(p.redirect_uris) WHERE type = 'text')
		ELSE p.redirect_uris END`, jsonColumn[[]string]{&p.RedirectURIs}},
		{"(SELECT json_group_array(o.origin) FROM app_origins o WHERE o.app_id = p.id)",
			jsonColumn[[]string]{&p.Origins}},
		{"scope", &p.Scope}, {"own_scope", &p.OwnScope}, {"secret_hash", &p.SecretHash},
		{"earlier_secret_hash", &p.EarlierHash}, {"earlier_secret_until", &p.EarlierUntil},
		{"verified_at", &p.VerifiedAt}, {"made_by", &p.MadeBy}, {"created_at", &p.CreatedAt},
		{"updated_at", &p.UpdatedAt}, {"host", &p.Host}, {"coalesce(p.host, a.name)", &p.Owner}}
}, "JOIN accounts a ON a.id = p.account_id")

// public reports whether the application can keep no secret.
func (p *app) public() bool { return p.Kind != appWeb }

// mayActFor reports whether an account can agree to an application that works: until an operator vouches for it, only
// the one that owns it. Nobody owns a document, so every account can.
func (p *app) mayActFor(accountID string) bool {
	return !p.VerifiedAt.IsZero() || p.AccountID == accountID || p.Kind == appDocument
}

// listsOrigin reports whether the application runs on the site with a normalised origin.
func (p *app) listsOrigin(origin string) bool { return slices.Contains(p.Origins, origin) }

// scopesWithin returns the scopes of a space-separated list that allowed has too and that an application may
// have at all (appScopes), each once, in the order of appScopes.
func scopesWithin(scope, allowed string) string {
	asked, may := strings.Fields(scope), strings.Fields(allowed)
	var both []string
	for _, s := range appScopes {
		if slices.Contains(asked, s) && slices.Contains(may, s) {
			both = append(both, s)
		}
	}
	return strings.Join(both, " ")
}

// knownScopes returns the scopes of a space-separated list that the service knows. Libraries ask for others, such as
// openid and offline_access, whatever the metadata say.
func knownScopes(scope string) []string {
	return slices.DeleteFunc(strings.Fields(scope), func(s string) bool {
		return s != scopeDevice && !slices.Contains(grantableScopes, s)
	})
}

// hasForeign reports whether a list has a scope that is not among others.
func hasForeign(list, others []string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return !slices.Contains(others, s) })
}

// The problem codes of applications and grants.
var (
	appProblems problemTable

	codeAppNotFound = appProblems.add(404, "app_not_found", "Application not found",
		"There is no application with this id.",
		"Correct the id. What belongs to another account is not found either.")
	codeGrantNotFound = appProblems.add(404, "grant_not_found", "Grant not found",
		"There is no grant with this id.",
		"Correct the id. What is another account's is not found either.")
	codeAppLimit = appProblems.add(409, "app_limit_reached", "Too many applications",
		"The account has 20 applications already: remove one first.",
		"Remove an application that is not used any more.")

	codeAppSecret = appProblems.add(409, "app_without_secret", "Application without a secret",
		"Only an application of the kind web has a secret.",
		"Use PKCE without a secret, or register an application of the kind `web`.")
	errApp       = &refusal{code: codeAppNotFound}
	errGrant     = &refusal{code: codeGrantNotFound}
	errAppLimit  = &refusal{code: codeAppLimit}
	errAppPublic = &refusal{code: codeAppSecret}

	errAppDocument = &refusal{code: codeAppNotFound,
		detail: "Nobody has registered this application: its document says what it is, and can't be changed here."}
)

// app returns an application that is not removed. Errors: errApp.
func (q *queries) app(o owner, id string) (*app, error) {
	condition, args := o.narrow(`WHERE p.id = ? AND p.removed_at IS NULL`, `p.account_id`, id)
	p, err := appTable.one(q, condition, args...)
	return p, replaced(err, errNotFound, errApp)
}

// registeredApp is app for an application that somebody has registered. Errors: errApp, errAppDocument.
func (q *queries) registeredApp(o owner, id string) (*app, error) {
	p, err := q.app(o, id)
	if err == nil && p.Kind == appDocument {
		return nil, errAppDocument
	}
	return p, err
}

// workingApp returns an application of which anything works, by its id or client_id: it is not removed, and its owner
// not closed. Errors: errApp.
func (q *queries) workingApp(id string) (*app, error) {
	p, err := appTable.one(q, `WHERE p.id = coalesce((SELECT id FROM apps WHERE kind = 'document' AND home_page = ?1
		AND removed_at IS NULL), ?1) AND p.removed_at IS NULL AND a.closed_at IS NULL`, id)
	return p, replaced(err, errNotFound, errApp)
}

// apps returns a page of the applications of an owner that are not removed, newest first, starting after the
// id before ("" for the newest).
func (q *queries) apps(o owner, before string, limit int) (listPage[*app], error) {
	list := appTable.whereOwner(o)
	list.scope(` AND p.removed_at IS NULL`, nil)
	return appTable.page(q, list, before, limit)
}

// countApps returns how many applications an account has registered that are not removed.
func (q *queries) countApps(accountID string) (n int, err error) {
	return oneValue[int](q, `SELECT count(*) FROM apps WHERE account_id = ? AND removed_at IS NULL
		AND host IS NULL`, accountID)
}

// originHasApp reports whether an application that works runs on the site with a normalised origin.
func (q *queries) originHasApp(origin string) (has bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM app_origins o JOIN apps p ON p.id = o.app_id
		JOIN accounts a ON a.id = p.account_id
		WHERE o.origin = ? AND p.removed_at IS NULL AND a.closed_at IS NULL)`, origin)
}

// addApp inserts an application, with its origins.
func (t *tx) addApp(p *app) {
	t.exec(`INSERT INTO apps (id, account_id, name, home_page, kind, redirect_uris, scope, own_scope,
		secret_hash, verified_at, made_by, created_at, updated_at, host)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		p.ID, p.AccountID, p.Name, p.HomePage, p.Kind, jsonColumn[[]string]{&p.RedirectURIs}, p.Scope, p.OwnScope,
		p.SecretHash, p.VerifiedAt, p.MadeBy, p.CreatedAt, p.UpdatedAt, p.Host)
	t.setAppOrigins(p)
}

// setAppOrigins replaces the origins of an application.
func (t *tx) setAppOrigins(p *app) {
	t.exec(`DELETE FROM app_origins WHERE app_id = ?`, p.ID)
	t.exec(`INSERT INTO app_origins (origin, app_id) SELECT value, ? FROM json_each(?)`,
		p.ID, jsonColumn[[]string]{&p.Origins})
}

// saveApp writes what can change of an application.
func (t *tx) saveApp(p *app) {
	appTable.update(t, p, "name home_page scope own_scope secret_hash earlier_secret_hash earlier_secret_until "+
		"verified_at updated_at", `, redirect_uris = ? WHERE id = ?`, jsonColumn[[]string]{&p.RedirectURIs}, p.ID)
	t.setAppOrigins(p)
}

// markAppRemoved removes an application, with its secrets and origins.
func (t *tx) markAppRemoved(id string) {
	t.exec(`UPDATE apps SET removed_at = ?1, updated_at = ?1, secret_hash = NULL, earlier_secret_hash = NULL,
		earlier_secret_until = NULL WHERE id = ?2`, t.now, id)
	t.exec(`DELETE FROM app_origins WHERE app_id = ?`, id)
}

// An appToken is the record of an access token of an application; the token itself is not stored.
type appToken struct {
	ID        string // the token's jti
	AppID     string
	GrantID   *string // nil: by client credentials
	AccountID string
	Scope     string
	Kid       string
	CreatedAt stamp
	ExpiresAt stamp

	registered, own string // scopes of the application
	client          string // its client_id
}

// appTokenTable describes the table app_tokens.
var appTokenTable = newTable("app_tokens", "t", func(r *appToken) []field {
	return []field{{"id", &r.ID}, {"app_id", &r.AppID}, {"grant_id", &r.GrantID}, {"account_id", &r.AccountID},
		{"scope", &r.Scope}, {"kid", &r.Kid}, {"created_at", &r.CreatedAt}, {"expires_at", &r.ExpiresAt},
		{"p.scope", &r.registered}, {"coalesce(p.own_scope, '')", &r.own},
		{"iif(p.kind = 'document', p.home_page, p.id)", &r.client}}
}, `JOIN accounts a ON a.id = t.account_id JOIN apps p ON p.id = t.app_id JOIN accounts o ON o.id = p.account_id
	LEFT JOIN grants g ON g.id = t.grant_id`)

// actsStill is the SQL condition for what an application (p) has of an account (a), perhaps by a grant (g): neither
// that account nor the one that owns the application (o) is closed, the application is not removed, and the grant has
// not ended.
const actsStill = `a.closed_at IS NULL AND o.closed_at IS NULL AND p.removed_at IS NULL AND g.ended_at IS NULL`

// usableAppToken returns the row of an application's access token that works: it is not revoked, and the
// application acts for its account still. Its scope is reduced to what the application is still registered for.
// Errors: errNotFound.
func (q *queries) usableAppToken(jti string) (*appToken, error) {
	r, err := appTokenTable.one(q, `WHERE t.id = ? AND t.revoked_at IS NULL AND `+actsStill, jti)
	if err != nil {
		return nil, err
	}
	if r.Scope = scopesWithin(r.Scope, r.registered); r.GrantID == nil {
		r.Scope = scopesWithin(r.Scope, r.own)
	}
	return r, nil
}

// revokeAppToken revokes an access token, if it is the application's and was not revoked before.
func (t *tx) revokeAppToken(appID, jti string) {
	t.exec(`UPDATE app_tokens SET revoked_at = ? WHERE id = ? AND app_id = ? AND revoked_at IS NULL`,
		t.now, jti, appID)
}

// heldApps are applications that an account owns.
var heldApps = holding{"apps", "application",
	`SELECT count(*) FROM apps WHERE account_id = ?1 AND removed_at IS NULL AND host IS NULL`, ""}
