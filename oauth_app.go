package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// The scopes of applications' own endpoints. Applications themselves can't have them.
const (
	scopeApps    = "apps:write"
	scopeConsent = "oauth:consent" // makes codes to sign in for any account; for portals
)

// appNoun declares the applications of third parties.
func appNoun() noun {
	return noun{
		name:     "app",
		modules:  func(s *server) []module { return []module{appModule(s), oauthModule(s)} },
		calls:    appRouteCommands,
		commands: appCommands,
		ids:      []idKind{{"APP", "app", "apps", false, nil}},
		problems: appProblems,
		events:   appEvents,
		sealed:   []string{"app_tokens"},
		rows:     []rowReader{appTable.unreadable},
		holdings: []holding{heldApps},
	}
}

// Applications of third parties that act for accounts (contract, section 13): how they are registered.

// The event types of applications. They are events of the account that owns the application.
var (
	appEvents eventTable

	eventAppRegistered    = appEvents.add("app.registered")
	eventAppUpdated       = appEvents.add("app.updated")
	eventAppVerified      = appEvents.add("app.verified")
	eventAppSecretRotated = appEvents.add("app.secret_rotated")
	eventAppRemoved       = appEvents.add("app.removed")
)

const (
	maxApps         = 20 // of an account
	maxAppName      = 60 // characters
	maxAppURL       = 500
	maxAppScope     = 500
	maxRedirectURIs = 20
	maxAppOrigins   = 20

	scopePattern = "^[a-z]+:[a-z]+( [a-z]+:[a-z]+)*$" // scopes, separated by spaces

	appSecretOverlap = 7 * 24 * time.Hour // how long the previous secret is accepted, too
)

// appEvent returns an event about an application.
func appEvent(p *app, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: p.AccountID, SubjectID: p.ID, Actor: actor, Data: eventData(data...)}
}

// MarshalText implements encoding.TextMarshaler.
func (m creatorName) MarshalText() ([]byte, error) { return []byte(publicActor(string(m))), nil }

// newClientSecret returns a client secret of 256 bits and more, letters and digits, and its SHA-256.
func newClientSecret() (secret string, hash []byte) {
	secret = rand.Text() + rand.Text()
	return secret, hashOf(secret)
}

// isInvisible reports whether a character shows nothing, or changes the order in which others are shown, so
// that a name with it could pass for another one. Among the format characters (Cf) are all of Bidi_Control.
func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp, unicode.Bidi_Control,
		unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// checkAppName is a textCheck for the name of an application, which people see when they are asked to agree to it.
var checkAppName = &textCheck{of: func(s string) (code, detail string) {
	switch {
	case strings.IndexFunc(s, isInvisible) >= 0:
		return "invalid_character", "This must have no character that is invisible or changes the direction of " +
			"writing."
	case s != strings.TrimSpace(s):
		return "invalid_character", "This must not begin or end with a space."
	case strings.IndexFunc(s, func(r rune) bool { return unicode.In(r, unicode.L, unicode.N) }) < 0:
		return "invalid_character", "This must have a letter or a digit."
	}
	return "", ""
}}

// isLoopback reports whether the host of a URL is exactly one of the addresses on which installed applications
// listen: the name localhost may resolve to some other host (RFC 8252, section 8.3).
func isLoopback(u *url.URL) bool {
	return slices.Contains([]string{"127.0.0.1", "::1"}, u.Hostname())
}

// parseAppURL parses an absolute URL that is registered for an application: visible ASCII, without fragment, user
// name and backslash. If it is refused, it returns the code and the detail of a fieldError, else "".
func parseAppURL(s string) (u *url.URL, code, detail string) {
	if len(s) > maxAppURL {
		return nil, "too_long", fmt.Sprintf("This must have at most %d characters.", maxAppURL)
	}
	strange := func(r rune) bool { return r < '!' || r > '~' || strings.ContainsRune("\\\"<>^`{|}*", r) }
	if strings.IndexFunc(s, strange) >= 0 {
		return nil, "invalid_url", "This must have the characters of a URL only: visible ASCII, no wildcard."
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme == "":
		return nil, "invalid_url", "This must be an absolute URL, such as https://app.example/back."
	case strings.Contains(s, "#"):
		return nil, "invalid_url", "This must have no fragment."
	case u.User != nil || strings.Contains(u.Host, "@"):
		return nil, "userinfo_not_allowed", "This must have no user name."
	}
	return u, "", ""
}

// checkWebURL checks what follows the scheme in a URL that is http or https, whose host may be on loopback.
func checkWebURL(s string, u *url.URL) (code, detail string) {
	_, rest, _ := strings.Cut(s, "://")
	host, _, _ := strings.Cut(rest, "/")
	host, _, _ = strings.Cut(host, "?")
	if _, err := parseOrigin(strings.ToLower(u.Scheme) + "://" + host); err != nil || u.Host != host {
		return "invalid_host", "This must have a host name in ASCII, and perhaps a port."
	}
	for _, segment := range strings.Split(u.Path, "/") {
		if segment == "." || segment == ".." {
			return "invalid_url", "This must have no path segment that is . or .."
		}
	}
	return "", ""
}

// checkHomePage is a textCheck for the home page of an application, which people can visit.
var checkHomePage = &textCheck{format: "uri", of: func(s string) (code, detail string) {
	u, code, detail := parseAppURL(s)
	switch {
	case code != "":
		return code, detail
	case strings.HasPrefix(s, "https://"), strings.HasPrefix(s, "http://") && isLoopback(u):
		return checkWebURL(s, u)
	}
	return "https_required", "This must begin with https://."
}}

// checkRedirectURI checks an address to which our page is to send people back, for an application of a kind. Its
// results are those of a textCheck.
func checkRedirectURI(kind appKind, s string) (code, detail string) {
	u, code, detail := parseAppURL(s)
	switch {
	case code != "":
		return code, detail
	case strings.HasPrefix(s, "https://"):
		return checkWebURL(s, u)
	case kind != appInstalled && kind != appDocument:
		return "https_required", "This must begin with https://."
	case strings.HasPrefix(s, "http://") && (isLoopback(u) || kind == appDocument && u.Hostname() == "localhost"):
		return checkWebURL(s, u)
	case u.Scheme == "http" || u.Scheme == "https":
		return "https_required", "This must begin with https://, or be on http://127.0.0.1 or http://[::1]."
	case kind == appDocument, !privateScheme(s, u.Scheme):
		return "scheme_not_allowed", "The scheme must be https, or one of its own that is a domain name in reverse: " +
			"com.example.app:/back."
	}
	return "", ""
}

// privateScheme reports whether a URI has a scheme in the form of a domain name in reverse (RFC 8252, section
// 7.1), written in lower case and followed by a path.
func privateScheme(s, scheme string) bool {
	labels := strings.Split(scheme, ".")
	if len(labels) < 2 || !strings.HasPrefix(s, scheme+":/") {
		return false
	}
	return !slices.ContainsFunc(labels, func(label string) bool {
		return label == "" || strings.Trim(label, "-") != label || strings.ContainsAny(label, "+")
	})
}

// sendsTo reports whether the application has registered an address to send people back to. It is compared
// character by character (RFC 9700, section 2.1); but applications that are installed may listen on any port
// of the machine itself (RFC 8252, section 7.3), and so may documents, which also name it localhost.
func (p *app) sendsTo(uri string) bool {
	if slices.Contains(p.RedirectURIs, uri) {
		return true
	}
	hosts := map[appKind][]string{appInstalled: {"http://127.0.0.1", "http://[::1]"},
		appDocument: {"http://127.0.0.1", "http://[::1]", "http://localhost"}}[p.Kind]
	asked, ok := withoutPort(uri, hosts)
	return ok && slices.ContainsFunc(p.RedirectURIs, func(known string) bool {
		registered, ok := withoutPort(known, hosts)
		return ok && registered == asked
	})
}

// withoutPort returns an address that begins with one of hosts, such as http://127.0.0.1, without its port. It reports
// false for any other.
func withoutPort(uri string, hosts []string) (string, bool) {
	for _, host := range hosts {
		rest, ok := strings.CutPrefix(uri, host)
		if !ok {
			continue
		}
		if port, ok := strings.CutPrefix(rest, ":"); ok {
			end := strings.IndexFunc(port, func(r rune) bool { return r < '0' || r > '9' })
			if end < 0 {
				end = len(port)
			}
			if _, err := strconv.ParseUint(port[:end], 10, 16); err != nil {
				return "", false
			}
			rest = port[end:]
		}
		return host + rest, rest == "" || rest[0] == '/' || rest[0] == '?'
	}
	return "", false
}

// A memberFault is called for what is wrong with a member: its path ("redirect_uris/3"), and the code and the
// detail of a fieldError.
type memberFault func(member, code, detail string)

// normalise brings what somebody has chosen for an application into the form in which it is stored, and calls wrong
// for each member that is refused. Empty members are left to the caller, which knows whether they may be absent.
func (p *app) normalise(wrong memberFault) {
	note := func(member, value string, check func(string) (code, detail string)) {
		if code, detail := check(value); code != "" && value != "" {
			wrong(member, code, detail)
		}
	}
	note("name", p.Name, checkAppName.of)
	note("home_page", p.HomePage, checkHomePage.of)
	if p.Kind == "" {
		return
	}
	for i, uri := range p.RedirectURIs {
		note("redirect_uris/"+strconv.Itoa(i), uri, func(uri string) (code, detail string) {
			if slices.Contains(p.RedirectURIs[:i], uri) {
				return "repeated", "This address appears twice."
			}
			return checkRedirectURI(p.Kind, uri)
		})
	}
	p.normaliseOrigins(wrong)
	p.normaliseScopes(wrong)
}

// normaliseOrigins is normalise for the origins.
func (p *app) normaliseOrigins(wrong memberFault) {
	switch {
	case p.Kind != appBrowser && len(p.Origins) > 0:
		wrong("origins", "not_allowed", "Only an application of the kind browser has origins.")
		return
	case p.Kind == appBrowser && len(p.Origins) == 0:
		wrong("origins", "required", "An application of the kind browser has at least one origin.")
	}
	for i, origin := range p.Origins {
		if origin == "" {
			continue
		}
		normal, err := parseOrigin(origin)
		switch {
		case err != nil || !strings.HasPrefix(normal, "https://"):
			wrong("origins/"+strconv.Itoa(i), "invalid_origin",
				"This must be https and a host, such as https://app.example, without a path.")
			continue
		case slices.Contains(p.Origins[:i], normal):
			wrong("origins/"+strconv.Itoa(i), "repeated", "This origin appears twice.")
		}
		p.Origins[i] = normal
	}
}

// normaliseScopes is normalise for what the application may ask for, and what it gets for itself.
func (p *app) normaliseScopes(wrong memberFault) {
	if p.Scope != "" && hasForeign(strings.Split(p.Scope, " "), appScopes) {
		wrong("scope", "unknown_value", "The scopes of an application are "+strings.Join(appScopes, " ")+".")
		return
	}
	p.Scope = scopesWithin(p.Scope, p.Scope)
	if p.OwnScope == nil {
		return
	}
	if p.Kind != appWeb {
		wrong("own_scope", "not_allowed", "Only an application of the kind web can prove that it is itself.")
		return
	}
	if hasForeign(strings.Split(*p.OwnScope, " "), strings.Fields(p.Scope)) {
		wrong("own_scope", "unknown_value", "These must be among the scopes that the application may ask for.")
		return
	}
	p.OwnScope = nilIfEmpty(scopesWithin(*p.OwnScope, p.Scope))
}

// What members of applications may be; normalise judges the rest. They are made once, since a row that is read lists
// its members.
var (
	checkURIForm      = &textCheck{format: "uri"}
	checkAppKind      = oneOf(registeredKinds...)
	checkScopeForm    = &textCheck{pattern: scopePattern}
	checkOwnScopeForm = &textCheck{pattern: scopePattern, of: notEmpty.of}
)

// members are what callers set of an application; see normalise. An empty own_scope is refused: whoever sends it may
// mean either none or every scope.
func (p *app) members() []member {
	return []member{
		{name: "name", at: &p.Name, needed: true, high: maxAppName},
		{name: "home_page", at: &p.HomePage, needed: true, // For people: `https`, or `http` on `127.0.0.1` or `[::1]`.
			high: maxAppURL, check: checkURIForm},
		{name: "kind", at: (*string)(&p.Kind), needed: true, // One of the kind `web` has a secret, others have PKCE.
			atFirst: true, high: maxNameLength, check: checkAppKind},
		{name: "redirect_uris", at: &p.RedirectURIs, needed: true, low: 1, high: maxRedirectURIs, each: maxAppURL},
		{name: "origins", at: &p.Origins, high: maxAppOrigins, each: maxAppURL},
		{name: "scope", at: &p.Scope, needed: true, high: maxAppScope, check: checkScopeForm},
		{name: "own_scope", at: &p.OwnScope, high: maxAppScope, check: checkOwnScopeForm},
	}
}

// checkOwnScope returns a refusal (403) unless a caller has every scope that an application gets for itself. Otherwise
// a token that may only register applications could get more scopes by their client credentials.
func checkOwnScope(by *caller, ownScope *string) error {
	for _, scope := range strings.Fields(valueOr(ownScope, "")) {
		if !by.has(scope) {
			return errScope(scope, "The application gets the scope "+scope+" for itself, which the token lacks.")
		}
	}
	return nil
}

// checkOrigins returns a refusal (422) if an account lists an origin of an application as one of its own site.
// Requests from listed origins are not judged by a token, so neither list may grant the rights of the other.
func checkOrigins(q *queries, p *app) error {
	var wrong []fieldError
	for i, origin := range p.Origins {
		listedBy, err := q.originAccount(origin)
		if err != nil {
			return err
		}
		if listedBy != "" {
			wrong = append(wrong, fieldError{Pointer: "#/origins/" + strconv.Itoa(i), Code: "not_allowed",
				Detail: "This is an origin of an account's own site already."})
		}
	}
	if wrong != nil {
		return errFields(wrong...)
	}
	return nil
}

// createApp registers an application with what somebody has chosen, normalised, and sets the rest of p. It returns
// the client secret, which is shown once; "" for a public application. Errors: errAccount, errAppLimit, refusals
// of an origin (422) and of a missing scope (403).
func createApp(t *tx, p *app, by *caller) (secret string, err error) {
	if err := t.openAccount(p.AccountID); err != nil {
		return "", err
	}
	if err := checkOwnScope(by, p.OwnScope); err != nil {
		return "", err
	}
	if err := checkOrigins(t.queries, p); err != nil {
		return "", err
	}
	n, err := t.countApps(p.AccountID)
	if err != nil {
		return "", err
	}
	if n >= maxApps {
		return "", errAppLimit
	}
	p.Origins = append([]string{}, slices.Sorted(slices.Values(p.Origins))...)
	p.ID, p.MadeBy, p.CreatedAt, p.UpdatedAt = t.newID("app"), creatorName(by.actor()), t.now, t.now
	if by.admin() {
		p.VerifiedAt = t.now
	}
	if !p.public() {
		secret, p.SecretHash = newClientSecret()
	}
	t.addApp(p)
	t.addEvent(appEvent(p, eventAppRegistered, by.actor(),
		"kind", string(p.Kind), "scope", p.Scope, "own_scope", valueOr(p.OwnScope, "")))
	return secret, nil
}

// patchApp changes an application of an owner and returns it. An operator vouches only for what it has seen: a
// tenant's change of anything but own_scope ends the verification. A change without effect writes nothing. Errors:
// errApp, errAppDocument, refusals of members (422) and of a missing scope (403).
func patchApp(t *tx, o owner, id string, set change, by *caller) (*app, error) {
	before, err := t.registeredApp(o, id)
	if err != nil {
		return nil, err
	}
	after := *before
	set.apply(after.members())
	var wrong []fieldError
	after.Origins = append([]string{}, after.Origins...)
	after.normalise(func(member, code, detail string) {
		wrong = append(wrong, fieldError{Pointer: "#/" + member, Code: code, Detail: detail})
	})
	if wrong != nil {
		return nil, errFields(wrong...)
	}
	if set.has("origins") {
		if err := checkOrigins(t.queries, &after); err != nil {
			return nil, err
		}
		slices.Sort(before.Origins) // in another order they are the same
		slices.Sort(after.Origins)
	}
	changed := differenceOf(before.members(), after.members()).names
	if len(changed) == 0 {
		return before, nil
	}
	if slices.Contains(changed, "own_scope") {
		if err := checkOwnScope(by, after.OwnScope); err != nil {
			return nil, err
		}
	}
	unverified := !by.admin() && !before.VerifiedAt.IsZero() && !slices.Equal(changed, []string{"own_scope"})
	if unverified {
		after.VerifiedAt = stamp{}
	}
	after.UpdatedAt = t.now
	t.saveApp(&after)
	t.addEvent(appEvent(&after, eventAppUpdated, by.actor(),
		"changed", strings.Join(changed, " "), "unverified", trueOrEmpty(unverified)))
	return &after, nil
}

// verifyApp records that an operator vouches for an application of an owner, so that every account can agree to it,
// or with undo no longer, and returns it. Existing grants stay. Errors: errApp, errAppDocument.
func verifyApp(t *tx, o owner, id string, undo bool, actor string) (*app, error) {
	p, err := t.registeredApp(o, id)
	if err != nil || p.VerifiedAt.IsZero() == undo {
		return p, err
	}
	if p.VerifiedAt = t.now; undo {
		p.VerifiedAt = stamp{}
	}
	p.UpdatedAt = t.now
	t.saveApp(p)
	t.addEvent(appEvent(p, eventAppVerified, actor, "verified", strconv.FormatBool(!undo)))
	return p, nil
}

// rotateAppSecret gives an application of an owner a new client secret, and returns both. The previous secret is
// accepted for appSecretOverlap, or with atOnce no longer; the one before it never is. Errors: errApp,
// errAppPublic, a refusal of a missing scope (403).
func rotateAppSecret(t *tx, o owner, id string, atOnce bool, by *caller) (p *app, secret string, err error) {
	if p, err = t.app(o, id); err != nil {
		return nil, "", err
	}
	if p.public() {
		return nil, "", errAppPublic
	}
	if err := checkOwnScope(by, p.OwnScope); err != nil {
		return nil, "", err
	}
	p.EarlierHash, p.EarlierUntil = p.SecretHash, t.now.after(appSecretOverlap)
	if atOnce {
		p.EarlierHash, p.EarlierUntil = nil, stamp{}
	}
	secret, p.SecretHash = newClientSecret()
	p.UpdatedAt = t.now
	t.saveApp(p)
	t.addEvent(appEvent(p, eventAppSecretRotated, by.actor(),
		"at_once", trueOrEmpty(atOnce)))
	return p, secret, nil
}

// removeApp removes an application of an owner: none of its tokens, codes and secrets works from the commit on.
// oauthSweeps end and remove what is left of it. Errors: errApp.
func removeApp(t *tx, o owner, id, actor string) error {
	p, err := t.app(o, id)
	if err != nil {
		return err
	}
	t.markAppRemoved(id)
	t.addEvent(appEvent(p, eventAppRemoved, actor))
	return nil
}

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

// Applications that nobody has registered (draft-ietf-oauth-client-id-metadata-document; contract, section 13): the
// client_id is the address of a document that says what the application is. It is fetched when somebody who has signed
// in is to be asked, and kept in memory only. A row of apps is made once somebody agrees.

const (
	maxDocumentAddress = 255     // bytes, since it is in tokens
	maxDocument        = 5 << 10 // bytes
	documentLimit      = 5 * time.Second
	maxDocuments       = 1000      // that are kept
	documentKept       = time.Hour // at most, as the answer's Cache-Control says
	documentKeptLeast  = time.Minute * 5
	documentRetry      = 30 * time.Second // what an application is told to wait whose document can't be fetched
	documentsOfCaller  = 10               // fetches a minute for an account whose owner has signed in
	documentsOfHost    = 60               // fetches a minute of a host
)

// documentAway is the key of a text for the developer of an application whose document can't be fetched. It does not
// tell why, so nobody learns of inner networks by it.
const documentAway = "fault_document_away"

// clientDocuments fetches documents and keeps them.
type clientDocuments struct {
	enabled   bool     // -client-documents
	allowed   []string // addresses of -client-document-list; none: any
	outbound  *outbound
	monotonic func() time.Time

	mu   sync.Mutex
	kept map[string]*keptDocument // by address
}

// A keptDocument is what came of fetching a document, once load has returned.
type keptDocument struct {
	load  func()    // fetches it, once
	until time.Time // clientDocuments.mu guards it
	app   *app      // of the kind appDocument, without an id; nil: there is none
	fault string    // then the key of a text why
}

// newClientDocuments makes what fetches documents. It has a client of its own, which calls public addresses only and
// shares no connection with what -outbound-allow admits.
func newClientDocuments(o nounOptions, st *store) *clientDocuments {
	d := &clientDocuments{enabled: o.clientDocuments, allowed: o.clientDocumentList, outbound: newOutbound(nil),
		monotonic: time.Now, kept: map[string]*keptDocument{}}
	d.outbound.limit, d.outbound.blocked = documentLimit, st.waits
	return d
}

// takes reports whether a client_id is the address of a document, and this service looks at documents there.
func (d *clientDocuments) takes(clientID string) bool {
	return d.enabled && isDocumentAddress(clientID) && (len(d.allowed) == 0 || slices.Contains(d.allowed, clientID))
}

// isDocumentAddress reports whether a client_id has the form of a document's address: https in normal form, with a host
// name and a path, without port, query, user name, fragment and segments that are . or ..
func isDocumentAddress(s string) bool {
	if len(s) > maxDocumentAddress || !strings.HasPrefix(s, "https://") || strings.Contains(s, "?") {
		return false
	}
	normal, code, _ := (&outbound{}).checkURL(s)
	u, err := url.Parse(s)
	if code != "" || err != nil || normal != s || u.Path == "/" {
		return false
	}
	dots := func(segment string) bool { return segment == "." || segment == ".." }
	return !slices.ContainsFunc(strings.Split(u.Path, "/"), dots)
}

// lookUp returns what is kept of a document, or fetches it: one fetch at a time for an address, to which limit agrees.
// Others wait for the same answer, so it is fetched even when the caller has gone.
func (d *clientDocuments) lookUp(ctx context.Context, address string, limit func() error) (*keptDocument, error) {
	d.mu.Lock()
	k, known := d.kept[address]
	if !known || !d.monotonic().Before(k.until) {
		if err := limit(); err != nil {
			d.mu.Unlock()
			return nil, err
		}
		k = &keptDocument{until: d.monotonic().Add(documentKept)}
		k.load = sync.OnceFunc(func() {
			kept := d.fetch(context.WithoutCancel(ctx), address, k)
			d.mu.Lock()
			defer d.mu.Unlock()
			if k.until = d.monotonic().Add(kept); k.app == nil {
				delete(d.kept, address) // what failed is not kept
			}
		})
		for gone := range d.kept {
			if len(d.kept) >= maxDocuments {
				delete(d.kept, gone)
			}
		}
		d.kept[address] = k
	}
	d.mu.Unlock()
	k.load()
	return k, nil
}

// fetch fetches a document, sets what came of it in k, and returns for how long a document is kept.
func (d *clientDocuments) fetch(ctx context.Context, address string, k *keptDocument) (kept time.Duration) {
	answer, err := d.outbound.do(ctx, outboundRequest{method: http.MethodGet, url: address, largest: maxDocument,
		header: http.Header{"Accept": {"application/json"}, "Connection": {"close"}}})
	k.fault = "fault_document_wrong"
	switch {
	case reasonOf(err) == outboundTooLarge:
		return 0
	case err != nil || answer.status != http.StatusOK:
		k.fault = documentAway
		return 0
	}
	kind, _, err := mime.ParseMediaType(answer.header.Get("Content-Type"))
	if err == nil && kind == "application/json" {
		k.app = readDocument(address, answer.body)
	}
	return keptFor(answer.header)
}

// maxAge matches the seconds for which a Cache-Control allows to keep an answer, and what forbids it.
var maxAge = lazyPattern(`(?i)(?:^|[, ])(?:max-age="?(\d{1,9})\b|no-store|no-cache)`)

// keptFor returns for how long the header of an answer allows to keep it, within bounds of our own.
func keptFor(h http.Header) time.Duration {
	all := maxAge().FindAllStringSubmatch(strings.Join(h.Values("Cache-Control"), ","), -1)
	if all == nil {
		return documentKeptLeast
	}
	kept := documentKept
	for _, found := range all {
		seconds, _ := strconv.Atoi(found[1]) // 0 where keeping is forbidden
		kept = min(kept, time.Duration(seconds)*time.Second)
	}
	return max(kept, documentKeptLeast)
}

// readDocument returns the application that a document describes, without an id, or nil unless the document names its
// own address, no secret, and that the application can do without one. All else that can't be used is left out, and a
// member of which nothing is left is as if it were not there: without a name the application is called by its host, and
// without scope the request for consent names them.
func readDocument(address string, text []byte) *app {
	document, err := parseJSON(text)
	if err != nil || rawMember(&document, "client_id") != address {
		return nil
	}
	for _, secret := range []string{"client_secret", "client_secret_expires_at"} {
		if v, has := document.member(secret); has && v.kind != jsonNull {
			return nil
		}
	}
	methods := textsOf(&document, "token_endpoint_auth_methods_supported")
	if rawMember(&document, "token_endpoint_auth_method") != "none" && !slices.Contains(methods, "none") {
		return nil
	}
	host, all := hostOf(address), strings.Join(appScopes, " ")
	p := &app{Kind: appDocument, HomePage: address, Host: &host, Owner: host, Origins: []string{},
		Name: cleanAppName(rawMember(&document, "client_name")), RedirectURIs: []string{},
		Scope: scopesWithin(rawMember(&document, "scope"), all)}
	p.Name = cmp.Or(p.Name, cutText(host, maxAppName))
	p.unscoped = p.Scope == ""
	p.Scope = cmp.Or(p.Scope, all)
	for _, uri := range textsOf(&document, "redirect_uris") {
		if code, _ := checkRedirectURI(appDocument, uri); code == "" && !slices.Contains(p.RedirectURIs, uri) {
			p.RedirectURIs = append(p.RedirectURIs, uri)
		}
	}
	return p
}

// textsOf returns the texts of a member that is a list.
func textsOf(v *jsonValue, name string) (texts []string) {
	if list, ok := v.member(name); ok {
		list.open()
		for _, each := range list.list {
			if each.kind == jsonString {
				texts = append(texts, each.text)
			}
		}
	}
	return texts
}

// cleanAppName returns a name that checkAppName passes, of at most maxAppName characters; "": nothing is left of it.
func cleanAppName(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || isInvisible(r) })
	name = cutText(strings.Join(words, " "), maxAppName)
	if code, _ := checkAppName.of(name); code != "" {
		return ""
	}
	return name
}

// saveDocument writes the application of a document to which somebody agrees, and completes p. by is that person.
func saveDocument(t *tx, p *app, by string) error {
	known, err := t.workingApp(p.HomePage)
	switch {
	case errors.Is(err, errApp):
		p.ID, p.CreatedAt, p.UpdatedAt, p.MadeBy = t.newID("app"), t.now, t.now, creatorName(actorPerson(by))
		if p.AccountID, err = t.mainAccount(); err == nil {
			t.addApp(p)
		}
		return err
	case err != nil:
		return err
	}
	p.ID, p.AccountID, p.CreatedAt, p.UpdatedAt = known.ID, known.AccountID, known.CreatedAt, t.now
	t.saveApp(p)
	return nil
}
