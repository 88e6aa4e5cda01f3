package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The scopes of tokens that no noun declares (contract, section 2). admin includes every other scope, on every
// account. license:verify (scopeDevice) is the scope of device tokens; only activating a device grants it.
const scopeAdmin = "admin"

const (
	clockSkew  = 60 * time.Second // how far the clocks of issuer and checker may be apart
	maxBaseURL = 200              // bytes

	// expiredTokenWindow is how long an expired device token still identifies its device.
	expiredTokenWindow = 365 * 24 * time.Hour

	appTokenLife = time.Hour // of the access tokens of applications

	// resourceMetadataPath stands before the path of the base address (RFC 9728, section 3.1).
	resourceMetadataPath = "/.well-known/oauth-protected-resource"

	bearerChallenge = `Bearer realm="widgetd"` // WWW-Authenticate (RFC 6750, section 3); see server.fail
)

var (
	authProblems problemTable

	codeTokenRequired = authProblems.add(401, "token_required", "Token required",
		"This request needs a bearer token in the Authorization header.",
		"Send a bearer token.")
	codeInvalidToken = authProblems.add(401, "invalid_token", "Invalid token",
		"The bearer token is malformed, expired, revoked, or was issued by another service.",
		"Get another token: this one is malformed, expired or revoked, or was issued elsewhere. A device asks "+
			"with its licence key.")
	codeScope = authProblems.add(403, "insufficient_scope", "Insufficient scope",
		"The token does not carry the scope that this request needs.",
		"Get a token with the scope that `WWW-Authenticate` names.")

	errTokenRequired = &refusal{code: codeTokenRequired, challenge: bearerChallenge}
)

// The reasons why tokens are refused. They are counted in the log. The caller learns only what is wrong with the
// header.
var (
	errTokenMalformed = errTokenHeader("There must be one Authorization header only.")
	errTokenEmpty     = errTokenHeader("There is no token after the word Bearer in the Authorization header.")
	errTokenBasic     = errTokenHeader("This call takes no Basic: its Authorization header is the word Bearer, " +
		"a space and a token.")
	errTokenNoScheme  = errTokenHeader("The Authorization header must be the word Bearer, a space and a token.")
	errTokenTooLong   = &refusedToken{"too long", errInvalidToken}
	errTokenSignature = &refusedToken{"malformed, or signed with another key", errInvalidToken}
	errTokenIssuer    = &refusedToken{"another issuer or audience", errInvalidToken}
	errTokenRevoked   = &refusedToken{"revoked or unknown, or its account is closed", errInvalidToken}
	errTokenEarly     = &refusedToken{"issued in the future", errInvalidToken}
	errTokenExpired   = &refusedToken{"expired", errInvalidToken}
)

// A refusedToken is errInvalidToken with a reason, from a closed list.
type refusedToken struct {
	reason   string
	answered *refusal // errInvalidToken, or one with the same code
}

// errTokenHeader returns the refusal of a request whose Authorization header is not one with a token. The caller does
// learn detail, which has nothing of the header.
func errTokenHeader(detail string) *refusedToken {
	return &refusedToken{"malformed header",
		&refusal{code: codeInvalidToken, detail: detail, challenge: errInvalidToken.challenge}}
}

// Error implements error.
func (r *refusedToken) Error() string { return "the token is refused: " + r.reason }

// Unwrap returns the refusal with which the request is answered.
func (r *refusedToken) Unwrap() error { return r.answered }

// errScope returns the refusal of a token that lacks a scope. Its challenge names the scope
// (RFC 6750, section 3.1).
func errScope(scope, detail string) error {
	challenge := bearerChallenge + `, error="insufficient_scope", scope="` + scope + `"`
	return &refusal{code: codeScope, detail: detail, challenge: challenge}
}

// A caller is the bearer of a valid token.
type caller struct {
	claims claims
	all    bool   // may act on any account that it names with ?account_id=
	app    string // id of the application that the token was issued to; "": it is not an application's token

	command string // actor of the operator at the command line, who has no token: "command:USER"; "": a token's bearer
}

// has reports whether the token grants a scope.
func (c *caller) has(scope string) bool {
	granted := strings.Fields(c.claims.Scope)
	return slices.Contains(granted, scope) || slices.Contains(granted, scopeAdmin)
}

// admin reports whether the caller is the operator.
func (c *caller) admin() bool { return c.has(scopeAdmin) }

// An authenticator finds out who sends a request. It caches the accounts, origins and tokens
// that it reads from the store.
type authenticator struct {
	store *store
	now   func() time.Time
	keys  atomic.Pointer[keyring] // replaced when the key file changes

	accounts *cache[string, account]   // by id
	origins  *cache[string, string]    // origin → id of the account that lists it
	sites    *cache[string, bool]      // origins of applications
	callers  *cache[tokenKey, *caller] // of tokens that are valid, leaving aside their times
	apps     *cache[string, *app]      // by id
}

// newAuthenticator makes an authenticator over an open store.
func newAuthenticator(st *store, keys *keyring) *authenticator {
	a := &authenticator{store: st, now: st.now,
		accounts: newCache[string, account](4_000), callers: newCache[tokenKey, *caller](4_000),
		origins: newCache[string, string](1_000), sites: newCache[string, bool](1_000),
		apps: newCache[string, *app](1_000)}
	a.keys.Store(keys)
	return a
}

// bearerToken returns the token in a request's Authorization header (RFC 6750), or "" if there
// is no such header. Errors: errInvalidToken, if the header holds anything else.
func bearerToken(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	switch {
	case len(values) > 1:
		return "", errTokenMalformed
	case strings.EqualFold(scheme, "Basic"):
		return "", errTokenBasic
	case !strings.EqualFold(scheme, "Bearer"):
		return "", errTokenNoScheme
	case !ok || token == "":
		return "", errTokenEmpty
	}
	return token, nil
}

// authenticate checks a token completely, its times included, and returns its bearer. With
// acceptExpired it also accepts a device token that expired within expiredTokenWindow. Callers
// must not change the result, which is cached. Errors: errInvalidToken, those of the store.
func (a *authenticator) authenticate(token string, acceptExpired bool) (*caller, error) {
	who, err := a.cachedCaller(token)
	if err != nil {
		return nil, err
	}
	c, now := &who.claims, a.now()
	ends := time.Unix(c.Expires, 0).Add(clockSkew)
	expired := !now.Before(ends)
	if time.Unix(max(c.IssuedAt, c.NotBefore), 0).After(now.Add(clockSkew)) {
		return nil, errTokenEarly
	}
	if expired && !(acceptExpired && c.isDevice() && now.Before(ends.Add(expiredTokenWindow))) {
		return nil, errTokenExpired
	}
	return who, nil
}

// clientAddress returns the address of the client: that of the peer, or if the peer is a
// trusted proxy, the rightmost address of X-Forwarded-For that is not a trusted proxy's. What
// is to the left of it, or of an element that is no address, was chosen by the client and is
// not believed.
func clientAddress(peer string, forwarded []string, trusted []netip.Prefix) netip.Addr {
	address := parseAddress(peer)
	if len(forwarded) == 0 {
		return address
	}
	hops := strings.Split(strings.Join(forwarded, ","), ",")
	for i := len(hops) - 1; i >= 0 && isTrusted(address, trusted); i-- {
		hop := parseAddress(strings.TrimSpace(hops[i]))
		if !hop.IsValid() {
			break
		}
		address = hop
	}
	return address
}

func isTrusted(address netip.Addr, trusted []netip.Prefix) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(address) })
}

// parseAddress parses an IP address with or without a port; it returns the zero address for
// anything else. An IPv4-mapped IPv6 address becomes an IPv4 address, and zones are dropped.
func parseAddress(s string) netip.Addr {
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap().WithZone("")
	}
	address, _ := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return address.Unmap().WithZone("")
}

// The networks by which IPv6 addresses are counted, in bits: one client can use all addresses of a /64, and one
// site or customer often has a /48.
const (
	networkOfClient = 64
	networkOfSite   = 48
)

// addressKey returns the limiter key of an address: an IPv4 address itself, or the network of an IPv6 address,
// networkOfClient or networkOfSite.
func addressKey(address netip.Addr, network int) string {
	if address.Is6() {
		prefix, _ := address.Prefix(network)
		return prefix.String()
	}
	return address.String()
}

// checkClientID checks a client id, the name of the application that a token is for: 1 to 100
// visible ASCII characters (RFC 6749, appendix A.1, without the space).
func checkClientID(s string) error {
	if s == "" || len(s) > 100 || strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return errors.New("a client id must have 1 to 100 visible ASCII characters and no space")
	}
	return nil
}

// parseBaseURL parses a base address: http or https, a host, and a path that ends in the
// segment v1; no query, no fragment. It returns the address with scheme and host in lower
// case, and its path.
func parseBaseURL(s string) (normal, path string, err error) {
	bad := fmt.Errorf("%q is not a base address such as https://api.example.com/v1, ending in /v1", s)
	scheme, rest, ok := strings.Cut(s, "://")
	slash := strings.IndexByte(rest, '/')
	if !ok || slash < 0 {
		return "", "", bad
	}
	origin, err := parseOrigin(scheme + "://" + rest[:slash])
	path = rest[slash:]
	reserved := strings.HasPrefix(path+"/", "/api/legacy/")
	if err != nil || max(len(s), len(origin+path)) > maxBaseURL || !strings.HasSuffix(path, "/v1") || reserved {
		return "", "", bad
	}
	for _, segment := range strings.Split(path[1:], "/") {
		if segment == "." || segment == ".." || !unreserved(segment) {
			return "", "", bad
		}
	}
	return origin + path, path, nil
}

// unreserved reports whether s is one or more of the characters that a URL never escapes (RFC
// 3986, section 2.3).
func unreserved(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("-_.~", r)
	}) < 0
}

// A tokenKey identifies a token by its hash, together with the keys that verified it: when the
// key file changes, tokens are verified again.
type tokenKey struct {
	hash [32]byte
	keys *keyring
}

// cachedCaller is verifyToken with a cache in front of it.
func (a *authenticator) cachedCaller(token string) (*caller, error) {
	if len(token) > maxTokenBytes {
		return nil, errTokenTooLong
	}
	keys := a.keys.Load()
	plain := append(make([]byte, 0, maxTokenBytes), token...) // of constant size, so it stays on the stack
	return a.callers.loadBy(a.store, tokenKey{sha256.Sum256(plain), keys}, func(tokenKey) (*caller, error) {
		who, err := a.verifyToken(token, keys)
		return &who, err
	})
}

// verifyToken checks everything about a token but its times, so that only a commit or another
// key file can change the result: its signature, its issuer and audience, and for a bearer token
// that it is not revoked and its account not closed. Errors: errInvalidToken, those of the store.
func (a *authenticator) verifyToken(token string, keys *keyring) (who caller, err error) {
	if who.claims, err = keys.verify(token); err != nil {
		return who, errTokenSignature
	}
	accepted, err := a.store.acceptedBase(who.claims.Issuer)
	if err != nil {
		return who, err
	}
	if !accepted || who.claims.Audience != who.claims.Issuer {
		return who, errTokenIssuer
	}
	if who.claims.isDevice() {
		return who, nil
	}
	row, err := a.store.usableToken(who.claims.ID)
	if errors.Is(err, errNotFound) {
		return who, a.verifyAppToken(&who)
	}
	switch {
	case err != nil:
		return who, err
	case row.AccountID != who.claims.Subject:
		return who, errTokenRevoked
	}
	who.all = row.AllAccounts || who.admin()
	return who, nil
}

// verifyAppToken is the part of verifyToken for tokens that the operator did not issue: the token must be a
// usable one of an application that works. It completes who.
func (a *authenticator) verifyAppToken(who *caller) error {
	row, err := a.store.usableAppToken(who.claims.ID)
	c := &who.claims
	switch {
	case errors.Is(err, errNotFound):
		return errTokenRevoked
	case err != nil:
		return err
	case row.AccountID != c.Subject || row.client != c.ClientID || valueOr(row.GrantID, "") != c.Grant:
		return errTokenRevoked
	}
	who.app = row.AppID
	c.Scope = scopesWithin(c.Scope, row.Scope)
	return nil
}

// limitedAs returns what the bearer of an application's token is limited by: the application, or the host of the
// document that is its client_id, which can have any number of them.
func (c *caller) limitedAs() string { return cmp.Or(hostOf(c.claims.ClientID), c.app) }

// cachedApp is workingApp, of either name, with a cache in front of it. Callers must not change the result.
func (a *authenticator) cachedApp(id string) (*app, error) {
	return a.apps.loadBy(a.store, id, a.store.workingApp)
}

// checkAppOrigin returns nil for a normalised origin of an application that works, else errNotFound or an error
// of the store. It caches only origins that an application lists, since there is no end to the others.
func (a *authenticator) checkAppOrigin(origin string) error {
	_, err := a.sites.loadBy(a.store, origin, func(origin string) (bool, error) {
		has, err := a.store.originHasApp(origin)
		if err == nil && !has {
			err = errNotFound
		}
		return has, err
	})
	return err
}

// appOf returns the application that a token was issued to, if it works, else nil. who is the token's bearer, or
// nil if the token was refused. Scripts of the application may read that refusal, so a valid signature is enough
// to find it; the signature is checked only if origin, in normal form, is that of some application.
func (a *authenticator) appOf(who *caller, token, origin string) (*app, error) {
	id := ""
	if who != nil {
		id = who.app
	} else if err := a.checkAppOrigin(origin); err == nil {
		if c, err := a.keys.Load().verify(token); err == nil && !c.isDevice() {
			id = c.ClientID
		}
	} else if !errors.Is(err, errNotFound) {
		return nil, err
	}
	if id == "" {
		return nil, nil
	}
	p, err := a.cachedApp(id)
	if errors.Is(err, errApp) {
		return nil, nil
	}
	return p, err
}

// cachedAccount is store.account with a cache in front of it.
func (a *authenticator) cachedAccount(id string) (account, error) {
	return a.accounts.loadBy(a.store, id, a.store.account)
}

// errClock refuses requests that need something signed while the clock is too far ahead (signingHeld).
var errClock = &refusal{code: codeClock, retryAfter: time.Minute}

// issueToken signs a bearer token that is valid for ttl, and inserts its row. row holds the
// account, client id, scope and whether the token may act on all accounts; issued is the
// complete row. The token itself is not stored.
func issueToken(
	t *tx, keys *keyring, row tokenRow, ttl time.Duration,
) (token string, issued tokenRow, err error) {
	row.ID, row.Kid = t.newID("tok"), keys.signer().kid
	row.CreatedAt, row.ExpiresAt = t.now, t.now.after(ttl)
	if err := t.addToken(row); err != nil {
		return "", row, err
	}
	token, err = signFor(t, keys, ttl,
		claims{Subject: row.AccountID, ClientID: row.ClientID, Scope: row.Scope, ID: row.ID})
	return token, row, err
}

// signFor signs a token that is valid for ttl from the time of the transaction, for the current base address. c has
// its other claims.
func signFor(t *tx, keys *keyring, ttl time.Duration, c claims) (string, error) {
	bases, err := t.baseURLs()
	if err != nil {
		return "", err
	}
	c.Issuer, c.Audience = bases[0].URL, bases[0].URL
	c.IssuedAt, c.Expires = t.now.Unix(), t.now.after(ttl).Unix()
	return keys.sign(c)
}

// issueAppToken signs an access token of an application that is valid for appTokenLife, and inserts its row. row
// holds the application, grant, account and scope; issued is the complete row. The token itself is not stored.
func issueAppToken(t *tx, keys *keyring, row appToken) (token string, issued appToken, err error) {
	row.ID, row.Kid = t.newID("tok"), keys.signer().kid
	row.CreatedAt, row.ExpiresAt = t.now, t.now.after(appTokenLife)
	appTokenTable.insert(t, &row)
	token, err = signFor(t, keys, appTokenLife, claims{Subject: row.AccountID, Scope: row.Scope, ID: row.ID,
		ClientID: cmp.Or(row.client, row.AppID), Grant: valueOr(row.GrantID, "")})
	return token, row, err
}

// A cache keeps values that were read from the database. An entry is valid while its version is
// unchanged (drops.version), and while the writer has looked recently enough for commits of other
// processes (cachesFresh). A cache holds at most max entries; a new one evicts an arbitrary other.
// Values are shared: callers must not change them.
type cache[K comparable, V any] struct {
	mu      sync.RWMutex
	max     int
	entries map[K]cached[V]
}

type cached[V any] struct {
	value   V
	rowID   string  // of the licence or widget that the value depends on; "": anything else
	version version // when the value was read
}

// newCache makes a cache of at most max entries.
func newCache[K comparable, V any](max int) *cache[K, V] {
	return &cache[K, V]{max: max, entries: map[K]cached[V]{}}
}

// get returns the value of a key, if there is an entry and it is valid.
func (c *cache[K, V]) get(st *store, key K) (v V, ok bool) {
	c.mu.RLock()
	e, found := c.entries[key]
	c.mu.RUnlock()
	if !found || !st.cachesFresh() || st.drops.version(e.rowID) != e.version {
		return v, false
	}
	return e.value, true
}

// load returns the value of a key. Without a valid entry it calls read and keeps the value.
// rowID is the id of the licence or widget that the value depends on, or "" if it depends on anything else.
// Errors are not kept.
func (c *cache[K, V]) load(st *store, key K, read func() (value V, rowID string, err error)) (V, error) {
	if v, ok := c.get(st, key); ok {
		return v, nil
	}
	before := st.drops.any.Load()
	v, rowID, err := read()
	if err != nil {
		return v, err
	}
	version := st.drops.version(rowID)
	if st.drops.any.Load() != before {
		return v, nil // a commit during the read may have changed the row: don't keep the value
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.entries, key, c.max)
	c.entries[key] = cached[V]{v, rowID, version}
	return v, nil
}

// loadBy is load for values that may depend on anything, which read reads by their keys.
func (c *cache[K, V]) loadBy(st *store, key K, read func(K) (V, error)) (V, error) {
	return c.load(st, key, func() (V, string, error) {
		v, err := read(key)
		return v, "", err
	})
}
