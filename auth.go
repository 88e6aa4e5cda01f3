package main

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
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

// claims are the claims of a token that this service issues. Bearer tokens have the first
// group, device tokens also the last (contract, sections 2 and 4). Times are Unix seconds.
type claims struct {
	Issuer   string `json:"iss"` // the base address
	Audience string `json:"aud"` // the same
	Subject  string `json:"sub"` // id of the account
	ClientID string `json:"client_id"`
	Scope    string `json:"scope"` // space-separated
	IssuedAt int64  `json:"iat"`
	Expires  int64  `json:"exp"`
	ID       string `json:"jti"`

	NotBefore int64 `json:"nbf,omitempty"` // never issued, but honoured

	Grant string `json:"grant,omitempty"` // of an application's token: under which grant it was issued

	License      string   `json:"lic,omitempty"`
	Device       string   `json:"dev,omitempty"`
	Fingerprint  string   `json:"fph,omitempty"` // its SHA-256, in base64url
	Product      string   `json:"prd,omitempty"`
	Entitlements []string `json:"ent,omitempty"`
	Seq          int64    `json:"seq,omitempty"`
	LicenseEnd   int64    `json:"lexp,omitempty"` // 0: the licence does not end
	GraceEnd     int64    `json:"gexp,omitempty"`
	RefreshAfter int64    `json:"rfa,omitempty"` // seconds after iat
	Nonce        string   `json:"nonce,omitempty"`
}

// isDevice reports whether the token is a device token: the lease of a device.
func (c *claims) isDevice() bool { return c.Device != "" }

// A signingKey is one Ed25519 key of the key file.
type signingKey struct {
	private   ed25519.PrivateKey // nil where only the public half is known
	public    ed25519.PublicKey
	kid       string // RFC 7638 thumbprint of public
	createdAt stamp  // zero: not known
}

// signingKeyOf completes a private key with its public half and kid.
func signingKeyOf(private ed25519.PrivateKey, createdAt stamp) signingKey {
	public := private.Public().(ed25519.PublicKey)
	return signingKey{private: private, public: public, kid: thumbprint(public), createdAt: createdAt}
}

// A publicKey is one public key (RFC 8037).
type publicKey struct {
	Algorithm string `json:"alg" is:"=EdDSA"`              // The algorithm.
	Curve     string `json:"crv" is:"=Ed25519"`            // The curve.
	Kid       string `json:"kid" is:"^[A-Za-z0-9_-]{43}$"` // Its RFC 7638 thumbprint.
	Type      string `json:"kty" is:"=OKP"`                // The kind of key.
	Use       string `json:"use" is:"=sig"`                // What it is for.
	X         string `json:"x" is:"^[A-Za-z0-9_-]{43}$"`   // The key, base64url.
}

// jwk returns the public half as a JSON Web Key.
func (k *signingKey) jwk() publicKey {
	x := base64.RawURLEncoding.EncodeToString(k.public)
	return publicKey{Algorithm: "EdDSA", Curve: "Ed25519", Kid: k.kid, Type: "OKP", Use: "sig", X: x}
}

// thumbprint returns the JWK thumbprint of a key (RFC 7638, with the members of RFC 8037).
func thumbprint(public ed25519.PublicKey) string {
	x := base64.RawURLEncoding.EncodeToString(public)
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + x + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A keyring is the content of the key file.
type keyring struct {
	keys   []signingKey // all of them verify tokens, the first one also signs
	secret []byte       // 32 bytes that the symmetric keys are derived from
}

// The key file is a sequence of PEM blocks: private keys in PKCS#8, and one secret. The line
// above each key has its kid and the time when it was created: "# kid … created …". It is not a
// header inside the block, which openssl would not read. Earlier versions wrote the time in such a
// header; their files are read too.

const (
	pemKey     = "PRIVATE KEY"
	pemSecret  = "WIDGETD SECRET"
	pemCreated = "Created"
)

// keyComment returns the line above a key's PEM block. created is left out if it is zero.
func keyComment(kid string, created stamp) string {
	if created.IsZero() {
		return "# kid " + kid + "\n"
	}
	return "# kid " + kid + " created " + created.String() + "\n"
}

// createdInComment returns the time in the comment lines above the PEM block of a key, or the
// zero stamp. It is an error if a comment names another key.
func createdInComment(comments []byte, kid string) (created stamp, err error) {
	for line := range strings.Lines(string(comments)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[1] != "kid" {
			continue // somebody's own comment
		}
		if words[2] != kid {
			return stamp{}, errors.New("the comment above a key has the kid of another key")
		}
		if len(words) == 5 && words[3] == "created" && created.Scan(words[4]) != nil {
			return stamp{}, errors.New("the comment above a key has a time that can't be read")
		}
	}
	return created, nil
}

// newSigningKey makes a key whose kid does not begin with a dash: at the command line that
// would look like an option.
func newSigningKey(now time.Time) (signingKey, error) {
	for {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return signingKey{}, err
		}
		if key := signingKeyOf(private, newStamp(now)); key.kid[0] != '-' {
			return key, nil
		}
	}
}

// newKeyring makes a keyring with one key and a secret, both random.
func newKeyring(now time.Time) (*keyring, error) {
	key, err := newSigningKey(now)
	secret := make([]byte, 32)
	rand.Read(secret)
	return &keyring{keys: []signingKey{key}, secret: secret}, err
}

// errDamagedKeys says that a key file holds something other than keys.
var errDamagedKeys = errors.New("is damaged: restore it from a copy")

// A missingKeys is the error for a key file that does not exist. If the database has issued something, new keys
// would not help: what was issued works only with the old ones.
type missingKeys struct {
	path   string
	issued bool // the database has issued something, a service goes on with them, or nobody has looked
}

// Error names the file and the next step.
func (m missingKeys) Error() string {
	step := "run 'widgetd init' first, or mount the disk that holds it"
	if m.issued {
		step = "restore it from your copy"
	}
	return fmt.Sprintf("no key file at %s: %s, or give its path with -key", m.path, step)
}

// loadKeyring reads the key file. It refuses a file that other users can read. Its errors name the file and
// the next step: a missingKeys, errDamagedKeys, or others.
func loadKeyring(path string) (*keyring, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingKeys{path, true}
	}
	if err != nil {
		return nil, fmt.Errorf("open the key file: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("other users can read the key file %s (mode %04o): "+
			"run 'chmod 600 %s', and replace its keys if somebody may have read it", path, mode, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	ring, err := parseKeyring(text)
	if err != nil {
		return nil, fmt.Errorf("the key file %s %w: %w", path, errDamagedKeys, err)
	}
	return ring, nil
}

var pemBegin = []byte("-----BEGIN ")

// cutComments splits the lines at the beginning of text that begin with # from the rest. Both
// are without empty lines around them.
func cutComments(text []byte) (comments, rest []byte) {
	rest = bytes.TrimSpace(text)
	for len(rest) > 0 && rest[0] == '#' {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		comments = append(append(comments, line...), '\n')
		rest = bytes.TrimSpace(after)
	}
	return comments, rest
}

// parseKeyring parses the content of a key file. It must consist of nothing but one secret and
// at least one key, each key once, and comment lines between the blocks.
func parseKeyring(text []byte) (*keyring, error) {
	ring := &keyring{}
	for comments, text := cutComments(text); len(text) > 0; comments, text = cutComments(text) {
		block, rest := pem.Decode(text)
		read := text[:len(text)-len(rest)]
		// Decode skips text that is not a PEM block, and damaged blocks.
		if block == nil || !bytes.HasPrefix(read, pemBegin) || bytes.Count(read, pemBegin) != 1 {
			return nil, errors.New("it contains text that is not a PEM block, or a damaged block")
		}
		text = rest
		switch block.Type {
		case pemSecret:
			if ring.secret != nil || len(block.Bytes) != 32 {
				return nil, errors.New("the secret must be one block of 32 bytes")
			}
			ring.secret = block.Bytes
		case pemKey:
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			private, ok := parsed.(ed25519.PrivateKey)
			if err != nil || !ok {
				return nil, errors.New("a private key is not an Ed25519 key in PKCS#8 form")
			}
			key := signingKeyOf(private, stamp{})
			if key.createdAt, err = createdInComment(comments, key.kid); err != nil {
				return nil, err
			}
			if text := block.Headers[pemCreated]; text != "" {
				if err := key.createdAt.Scan(text); err != nil {
					return nil, errors.New("the Created header of a key is not a time")
				}
			}
			if ring.find(key.kid) != nil {
				return nil, errors.New("a key appears twice")
			}
			ring.keys = append(ring.keys, key)
		default:
			return nil, fmt.Errorf("a key file has no blocks of the type %q", block.Type)
		}
	}
	if len(ring.keys) == 0 || ring.secret == nil {
		return nil, errors.New("a private key or the secret is missing")
	}
	return ring, nil
}

// encode returns the keyring in the form that parseKeyring reads.
func (k *keyring) encode() ([]byte, error) {
	var out bytes.Buffer
	for i := range k.keys {
		der, err := x509.MarshalPKCS8PrivateKey(k.keys[i].private)
		if err != nil {
			return nil, err
		}
		out.WriteString(keyComment(k.keys[i].kid, k.keys[i].createdAt))
		if err := pem.Encode(&out, &pem.Block{Type: pemKey, Bytes: der}); err != nil {
			return nil, err
		}
	}
	err := pem.Encode(&out, &pem.Block{Type: pemSecret, Bytes: k.secret})
	return out.Bytes(), err
}

// save writes the key file atomically, with mode 0600. With replace it replaces an existing
// file; without, the error for an existing file wraps fs.ErrExist. Where path is a symbolic link,
// it stays one, and its target is written.
func (k *keyring) save(path string, replace bool) error {
	text, err := k.encode()
	if err != nil {
		return fmt.Errorf("write the key file: %w", err)
	}
	err = writeAtomically(linkTarget(path), replace, func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the key file: %w", err)
	}
	return nil
}

// signer returns the key that signs.
func (k *keyring) signer() *signingKey { return &k.keys[0] }

// find returns the key with a kid, or nil.
func (k *keyring) find(kid string) *signingKey {
	for i := range k.keys {
		if k.keys[i].kid == kid {
			return &k.keys[i]
		}
	}
	return nil
}

// derive derives a key of 32 bytes from the secret, by HKDF with SHA-256 (RFC 5869). Different
// purposes and salts give independent keys.
func (k *keyring) derive(purpose string, salt []byte) []byte {
	key, err := hkdf.Key(sha256.New, k.secret, salt, "widgetd "+purpose, 32)
	if err != nil {
		panic(err) // only for a length above 8160 bytes
	}
	return key
}

// hash returns a keyed hash (HMAC-SHA-256) of parts for one purpose. Without the key file nobody
// can guess and check what was hashed. Each part is hashed with its length, so that different
// lists of parts never give the same input.
func (k *keyring) hash(purpose string, parts ...string) []byte {
	mac := hmac.New(sha256.New, k.derive(purpose, nil))
	for _, part := range parts {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return mac.Sum(nil)
}

// kids returns the kid of each key, that of the signing key first.
func (k *keyring) kids() (all []string) {
	for i := range k.keys {
		all = append(all, k.keys[i].kid)
	}
	return all
}

// listHash returns a keyed hash of the list of keys.
func (k *keyring) listHash() []byte { return k.hash("list of keys", k.kids()...) }

// seal encrypts an answer with AES-256-GCM. The key is derived from the secret and the
// request's Idempotency-Key, so that reading the answer takes both.
func (k *keyring) seal(idempotencyKey string, plain []byte) []byte {
	return sealWith(k.derive("idempotency", []byte(idempotencyKey)), plain, nil)
}

// unseal decrypts what seal returned.
func (k *keyring) unseal(idempotencyKey string, sealed []byte) ([]byte, error) {
	return unsealWith(k.derive("idempotency", []byte(idempotencyKey)), sealed, nil)
}

// sealFor encrypts what a row keeps secret with AES-256-GCM, under a key that is derived from the secret
// for one purpose. The result is bound to the row's id, so that it can't be decrypted in another row.
func (k *keyring) sealFor(purpose, id string, plain []byte) []byte {
	return sealWith(k.derive(purpose, nil), plain, []byte(id))
}

// unsealFor decrypts what sealFor returned for the same purpose and id. It fails if the key file is
// another one.
func (k *keyring) unsealFor(purpose, id string, sealed []byte) ([]byte, error) {
	return unsealWith(k.derive(purpose, nil), sealed, []byte(id))
}

// sealWith encrypts plain, and binds it to additional data. What it returns begins with the nonce.
func sealWith(key, plain, additional []byte) []byte {
	aead := newAEAD(key)
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	return aead.Seal(nonce, nonce, plain, additional)
}

// unsealWith decrypts what sealWith returned.
func unsealWith(key, sealed, additional []byte) ([]byte, error) {
	aead := newAEAD(key)
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("what is sealed is too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], additional)
}

// newAEAD returns AES-256-GCM with a key of 32 bytes.
func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCM(block); err == nil {
			return aead
		}
	}
	panic(err) // only for a key of a length that AES does not have
}

// strictBase64 refuses a last character with unused bits set, which RawURLEncoding ignores.
var strictBase64 = base64.RawURLEncoding.Strict()

// decodeSegment decodes one of the three segments of a JWS. Each value has one encoding that is
// accepted; the decoder alone would also skip line breaks.
func decodeSegment(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	out, err := strictBase64.DecodeString(s)
	return out, err == nil
}

// sign returns a token with these claims: a compact JWS (RFC 7515) by the signer's key (RFC
// 8037), with the typ at+jwt (RFC 9068). It refuses to make one that is longer than maxTokenBytes,
// which verify would not accept.
func (k *keyring) sign(c claims) (string, error) {
	key := k.signer()
	header := `{"alg":"EdDSA","typ":"at+jwt","kid":"` + key.kid + `"}`
	encode := base64.RawURLEncoding.EncodeToString
	input := encode([]byte(header)) + "." + encode(bytes.TrimSpace(encodeJSON(c)))
	token := input + "." + encode(ed25519.Sign(key.private, []byte(input)))
	if len(token) > maxTokenBytes {
		return "", fmt.Errorf("a token with these claims has %d bytes, and %d are accepted",
			len(token), maxTokenBytes)
	}
	return token, nil
}

// verify checks the signature of a token and returns its claims. It accepts only the form that
// sign produces: a compact JWS with exactly the header members alg, typ and kid, the algorithm
// EdDSA (or its other name Ed25519), no duplicate claims, and every claim of its type. Anything
// else is errInvalidToken. The caller must still check the claims' times, issuer and audience,
// and whether the token was revoked.
func (k *keyring) verify(token string) (claims, error) {
	parts := strings.Split(token, ".")
	if len(token) > maxTokenBytes || len(parts) != 3 {
		return claims{}, errInvalidToken
	}
	var decoded [3][]byte
	for i, part := range parts {
		var ok bool
		if decoded[i], ok = decodeSegment(part); !ok {
			return claims{}, errInvalidToken
		}
	}
	header, err := parseJSON(decoded[0])
	for _, m := range header.members {
		text := m.value.text
		accepted := map[string][]string{"alg": {"EdDSA", "Ed25519"}, "typ": {"at+jwt"}, "kid": {text}}[m.name]
		if m.value.kind != jsonString || !slices.Contains(accepted, text) {
			return claims{}, errInvalidToken
		}
	}
	kid, _ := header.member("kid")
	if err != nil || len(header.members) != 3 || kid == nil {
		return claims{}, errInvalidToken
	}
	key := k.find(kid.text)
	input := token[:len(parts[0])+1+len(parts[1])]
	if key == nil || !ed25519.Verify(key.public, []byte(input), decoded[2]) {
		return claims{}, errInvalidToken
	}
	payload, err := parseJSON(decoded[1])
	if err != nil {
		return claims{}, errInvalidToken
	}
	return readClaims(&payload)
}

// readClaims reads the claims of a token's payload. If a required claim is missing, or a known
// one has the wrong type, it returns errInvalidToken. Unknown claims are ignored.
func readClaims(v *jsonValue) (c claims, err error) {
	ok := true
	text := func(name string, need presence) string {
		m, present := v.member(name)
		if !present || m.kind != jsonString {
			ok = ok && !present && need == optional
			return ""
		}
		return m.text
	}
	number := func(name string, need presence) int64 {
		m, present := v.member(name)
		if !present {
			ok = ok && need == optional
			return 0
		}
		n, whole := m.integer()
		ok = ok && whole && n >= 0
		return n
	}
	c = claims{
		Issuer: text("iss", required), Audience: text("aud", required), Subject: text("sub", required),
		ClientID: text("client_id", required), Scope: text("scope", required), ID: text("jti", required),
		IssuedAt: number("iat", required), Expires: number("exp", required),

		NotBefore: number("nbf", optional), Grant: text("grant", optional),

		License: text("lic", optional), Device: text("dev", optional), Fingerprint: text("fph", optional),
		Product: text("prd", optional), Seq: number("seq", optional), Nonce: text("nonce", optional),
		LicenseEnd: number("lexp", optional), GraceEnd: number("gexp", optional),
		RefreshAfter: number("rfa", optional),
	}
	if list, present := v.member("ent"); present {
		ok = ok && list.kind == jsonArray
		for _, e := range list.list {
			ok = ok && e.kind == jsonString
			c.Entitlements = append(c.Entitlements, e.text)
		}
	}
	if !ok || c.isDevice() != (c.Scope == scopeDevice) {
		return claims{}, errInvalidToken
	}
	return c, nil
}

var errInvalidToken = &refusal{code: codeInvalidToken, challenge: bearerChallenge + `, error="invalid_token"`}

const maxTokenBytes = 4096

const scopeDevice = "license:verify"
