package main

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
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
