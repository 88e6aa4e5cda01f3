package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// The scopes of tokens (contract, section 2). A device's is given by activating
// only; admin stands for every other one, on every account.
const (
	scopeStats    = "stats:read"
	scopeLeads    = "leads:read"
	scopeErase    = "leads:write"
	scopeLicenses = "licenses:read"
	scopeDevices  = "devices:write"
	scopeEvents   = "events:read"
	scopeWebhooks = "webhooks:write"
	scopeAdmin    = "admin"
	scopeDevice   = "license:verify"
)

// grantableScopes are what an operator can put into a token.
var grantableScopes = []string{scopeStats, scopeLeads, scopeErase, scopeLicenses, scopeDevices, scopeEvents, scopeWebhooks, scopeAdmin}

const (
	clockSkew          = 60 * time.Second
	maxTokenBytes      = 4096
	expiredTokenWindow = 365 * 24 * time.Hour // how long after its end a device token still names its device
	bearerChallenge    = `Bearer realm="widgetd"`
)

var (
	authProblems problemTable

	codeTokenRequired = authProblems.add(401, "token_required", "Token required",
		"This needs a bearer token in the Authorization header.")
	codeInvalidToken = authProblems.add(401, "invalid_token", "Invalid token",
		"The bearer token is malformed, expired, revoked or not of this service.")
	codeScope = authProblems.add(403, "insufficient_scope", "Insufficient scope",
		"The token does not carry the scope that this needs.")

	errTokenRequired = &refusal{code: codeTokenRequired, challenge: bearerChallenge}
	errInvalidToken  = &refusal{code: codeInvalidToken, challenge: bearerChallenge + `, error="invalid_token"`}
)

// errScope refuses a token that lacks a scope, and names it (RFC 6750, section 3.1).
func errScope(scope, detail string) error {
	return &refusal{code: codeScope, detail: detail, challenge: bearerChallenge + `, error="insufficient_scope", scope="` + scope + `"`}
}

// A caller is who is behind a request, as far as a token says.
type caller struct {
	claims claims
	all    bool // may name any account
}

// has reports whether the caller may do what a scope stands for.
func (c *caller) has(scope string) bool {
	granted := strings.Fields(c.claims.Scope)
	return slices.Contains(granted, scope) || slices.Contains(granted, scopeAdmin)
}

// admin reports whether the caller is the operator.
func (c *caller) admin() bool { return c.has(scopeAdmin) }

// A authenticator decides who calls by their token, and keeps in memory what it read.
type authenticator struct {
	store *store
	now   func() time.Time
	keys  atomic.Pointer[keyring]

	accounts *cache[string, account]
	origins  *cache[string, string]    // origin → owner
	callers  *cache[tokenKey, *caller] // what does not change with time
}

// newAuthenticator makes a guard over an open store.
func newAuthenticator(st *store, keys *keyring) *authenticator {
	g := &authenticator{store: st, now: st.now, accounts: newCache[string, account](4_000), origins: newCache[string, string](1_000),
		callers: newCache[tokenKey, *caller](4_000)}
	g.keys.Store(keys)
	return g
}

// bearerToken takes the token out of a request: "" when none is given, errInvalidToken
// when the header is there and holds something else (RFC 6750).
func bearerToken(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", errInvalidToken
	}
	return token, nil
}

// authenticate judges a token: whose it is, and its times. A device token after its
// end passes only when late is set. What comes back is shared. Errors: errInvalidToken,
// the store's.
func (g *authenticator) authenticate(token string, late bool) (*caller, error) {
	who, err := g.cachedCaller(token)
	if err != nil {
		return nil, err
	}
	c, now := &who.claims, g.now()
	ends := time.Unix(c.Expires, 0).Add(clockSkew)
	expired := !now.Before(ends)
	if time.Unix(c.IssuedAt, 0).After(now.Add(clockSkew)) {
		return nil, errInvalidToken
	}
	if expired && !(late && c.isDevice() && now.Before(ends.Add(expiredTokenWindow))) {
		return nil, errInvalidToken
	}
	return who, nil
}

// clientAddress is who really calls: the peer, or, when the peer is a trusted
// proxy, the rightmost address of X-Forwarded-For that is not one. What stands to
// the left of that, or of something unreadable, was chosen by the caller.
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

// parseAddress reads an address with or without a port; the zero address when it
// is none.
func parseAddress(s string) netip.Addr {
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap().WithZone("")
	}
	address, _ := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return address.Unmap().WithZone("")
}

// addressKey is what an address is limited by: IPv4 by itself, IPv6 by its /64,
// which is what one caller owns.
func addressKey(address netip.Addr) string {
	if address.Is6() {
		prefix, _ := address.Prefix(64)
		return prefix.String()
	}
	return address.String()
}

// checkClientID judges the name of an application in a token: 1 to 100 visible
// ASCII characters (RFC 6749, appendix A.1, without the space).
func checkClientID(s string) error {
	if s == "" || len(s) > 100 || strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return errors.New("a client id has 1 to 100 visible ASCII characters and no space")
	}
	return nil
}

// parseBaseURL judges a base address: http or https, a host, a path that ends in
// the version segment v1, and nothing else. It returns it with scheme and host in
// lower case, and the path alone.
func parseBaseURL(s string) (normal, path string, err error) {
	bad := fmt.Errorf("%q is not a base address: it is like https://api.example.com/v1, and ends in /v1", s)
	scheme, rest, ok := strings.Cut(s, "://")
	slash := strings.IndexByte(rest, '/')
	if !ok || slash < 0 {
		return "", "", bad
	}
	origin, err := parseOrigin(scheme + "://" + rest[:slash])
	path = rest[slash:]
	if err != nil || len(s) > 200 || !strings.HasSuffix(path, "/v1") || strings.HasPrefix(path+"/", "/api/legacy/") {
		return "", "", bad
	}
	for _, segment := range strings.Split(path[1:], "/") {
		if segment == "" || segment == "." || segment == ".." || strings.IndexFunc(segment, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.~", r))
		}) >= 0 {
			return "", "", bad
		}
	}
	return origin + path, path, nil
}

// tokenKey names a token by its hash, and the keys that it was verified under.
type tokenKey struct {
	hash [32]byte
	keys *keyring
}

// cachedCaller returns the caller of a token that was found right before, or finds
// out. Judging its times is left to the caller.
func (g *authenticator) cachedCaller(token string) (*caller, error) {
	if len(token) > maxTokenBytes {
		return nil, errInvalidToken
	}
	keys := g.keys.Load()
	plain := append(make([]byte, 0, maxTokenBytes), token...) // on the stack
	return g.callers.load(g.store, tokenKey{sha256.Sum256(plain), keys}, func() (*caller, string, error) {
		who, err := g.verifyToken(token, keys)
		return &who, "", err
	})
}

// verifyToken judges what does not change with time about a token: its signature, its
// addressee, and that it and its account still stand. Errors: errInvalidToken, the
// store's.
func (g *authenticator) verifyToken(token string, keys *keyring) (who caller, err error) {
	if who.claims, err = keys.verify(token); err != nil {
		return who, err
	}
	accepted, err := g.store.acceptedBase(who.claims.Issuer)
	if err != nil {
		return who, err
	}
	if !accepted || who.claims.Audience != who.claims.Issuer {
		return who, errInvalidToken
	}
	if who.claims.isDevice() {
		return who, nil
	}
	row, err := g.store.liveToken(who.claims.ID)
	if errors.Is(err, errNotFound) || err == nil && row.AccountID != who.claims.Subject {
		return who, errInvalidToken
	}
	who.all = row.AllAccounts || who.admin()
	return who, err
}

// cachedAccount is the store's account, kept in memory.
func (g *authenticator) cachedAccount(id string) (account, error) {
	return g.accounts.load(g.store, id, func() (account, string, error) {
		a, err := g.store.account(id)
		return a, "", err
	})
}

// cachedOriginOwner is the store's originOwner, kept in memory.
func (g *authenticator) cachedOriginOwner(origin string) (string, error) {
	return g.origins.load(g.store, origin, func() (string, string, error) {
		id, err := g.store.originOwner(origin)
		return id, "", err
	})
}

// issueToken signs a bearer token and records it.
func issueToken(t *tx, keys *keyring, row tokenRow, ttl time.Duration) (token string, issued tokenRow, err error) {
	bases, err := t.baseURLs()
	if err != nil {
		return "", row, err
	}
	row.ID, row.Kid = t.newID("tok"), keys.signer().kid
	row.CreatedAt, row.ExpiresAt = t.now, t.now.after(ttl)
	if err := t.addToken(row); err != nil {
		return "", row, err
	}
	token, err = keys.sign(claims{Issuer: bases[0].URL, Audience: bases[0].URL, Subject: row.AccountID, ClientID: row.ClientID,
		Scope: row.Scope, IssuedAt: row.CreatedAt.Unix(), Expires: row.ExpiresAt.Unix(), ID: row.ID})
	return token, row, err
}

// parseOrigin gives an origin its normal form: scheme and host in lower case, no
// default port (RFC 6454). Anything that is not one http or https origin, "null"
// included, is an error.
func parseOrigin(s string) (string, error) {
	err := errors.New("an origin is https://www.example.com, without a path")
	scheme, host, ok := strings.Cut(strings.ToLower(s), "://")
	if len(s) > 255 || !ok || scheme != "http" && scheme != "https" {
		return "", err
	}
	port := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host, port = host[:i], host[i+1:]
		n, bad := strconv.ParseUint(port, 10, 16)
		if bad != nil || n == 0 || port[0] == '0' {
			return "", err
		}
	}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		addr, bad := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		if bad != nil || !strings.HasSuffix(host, "]") || !addr.Is6() || addr.Zone() != "" {
			return "", err
		}
		host = "[" + addr.String() + "]"
	} else if !validHost(host) {
		return "", err
	}
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return scheme + "://" + host, nil
	}
	return scheme + "://" + host + ":" + port, nil
}

// validHost takes a host name as browsers send it: ASCII labels, a dot between.
func validHost(host string) bool {
	for _, label := range strings.Split(host, ".") {
		if label == "" || strings.IndexFunc(label, func(r rune) bool {
			return r != '-' && r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}) >= 0 {
			return false
		}
	}
	return true
}
