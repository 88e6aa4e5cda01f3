package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A route is one line of the contract: who may call it, what is judged before it
// runs, and what runs. The table feeds the mux, the methods that preflights
// answer, the legacy paths and the README's list.
type route struct {
	pattern string       // net/http's, relative to the base address
	token   tokenRule    // whether a bearer token is asked for
	scope   string       // that it must carry, if one is given; "": any
	origin  originRule   // what an Origin must be
	address string       // name of the limit that holds anonymous callers by address; "": none
	free    bool         // never charged to an account
	beacon  bool         // also takes the JSON as text/plain, which needs no preflight
	creates bool         // adds something each time: honours Idempotency-Key
	body    int64        // bytes that a body may have, where that is not maxBody
	charge  chargeFunc   // whom to charge when no token says so; nil: the Origin's owner
	run     endpointFunc // reads the request and does it
}

func (rt *route) method() string { m, _, _ := strings.Cut(rt.pattern, " "); return m }

func (rt *route) path() string { _, p, _ := strings.Cut(rt.pattern, " "); return p }

type tokenRule int

const (
	tokenIgnored  tokenRule = iota // public: a token makes no difference
	tokenOptional                  // a bad one is still refused
	tokenDevice                    // optional; a device's may be past its end
	tokenRequired
)

type originRule int

const (
	originAny      originRule = iota // an unlisted one is answered, but no browser shows it
	originListed                     // none, or a listed one
	originRequired                   // a listed one
)

// routes is every endpoint under the base address.
var routes = []route{
	{pattern: "POST /widget/leads", origin: originListed, address: "leads", creates: true, run: endpoint((*server).createLead)},
	{pattern: "POST /widget/license/activate", token: tokenDevice, creates: true, charge: (*server).licenseAccount, run: endpoint((*server).activate)},
	{pattern: "POST /widget/license/verify", token: tokenDevice, charge: (*server).licenseAccount, run: endpoint((*server).verify)},
	{pattern: "POST /widget/license/deactivate", token: tokenDevice, charge: (*server).licenseAccount, run: endpoint((*server).deactivate)},
	{pattern: "POST /widget/events", origin: originRequired, address: "events", beacon: true, creates: true, charge: (*server).widgetAccount, run: endpoint((*server).countEvents)},
	{pattern: "GET /widget/stats", token: tokenOptional, scope: scopeStats, address: "stats", charge: (*server).widgetAccount, run: endpoint((*server).widgetStats)},
	{pattern: "GET /widget/health", free: true, run: endpoint((*server).showHealth)},
	{pattern: "GET /leads", token: tokenRequired, scope: scopeLeads, run: endpoint((*server).listLeads)},
	{pattern: "POST /leads/erase", token: tokenRequired, scope: scopeErase, run: endpoint((*server).eraseLeads)},
	{pattern: "GET /licenses", token: tokenRequired, scope: scopeLicenses, run: endpoint((*server).listLicenses)},
	{pattern: "GET /licenses/{id}", token: tokenRequired, scope: scopeLicenses, run: endpoint((*server).showLicense)},
	{pattern: "GET /licenses/{id}/devices", token: tokenRequired, scope: scopeLicenses, run: endpoint((*server).listDevices)},
	{pattern: "POST /licenses", token: tokenRequired, scope: scopeAdmin, creates: true, body: maxTermsBody, run: endpoint((*server).createLicense)},
	{pattern: "PATCH /licenses/{id}", token: tokenRequired, scope: scopeAdmin, body: maxTermsBody, run: endpoint((*server).patchLicense)},
	{pattern: "POST /licenses/{id}/renew", token: tokenRequired, scope: scopeAdmin, creates: true, run: endpoint((*server).renewLicense)},
	{pattern: "POST /licenses/{id}/suspend", token: tokenRequired, scope: scopeAdmin, run: endpoint((*server).suspendLicense)},
	{pattern: "POST /licenses/{id}/reinstate", token: tokenRequired, scope: scopeAdmin, run: endpoint((*server).reinstateLicense)},
	{pattern: "POST /licenses/{id}/revoke", token: tokenRequired, scope: scopeAdmin, run: endpoint((*server).revokeLicense)},
	{pattern: "POST /licenses/{id}/rotate-key", token: tokenRequired, scope: scopeAdmin, creates: true, run: endpoint((*server).rotateKey)},
	{pattern: "GET /events", token: tokenRequired, scope: scopeEvents, run: endpoint((*server).listEvents)},
	{pattern: "DELETE /licenses/{id}/devices/{device_id}", token: tokenRequired, scope: scopeDevices, run: endpoint((*server).releaseDevice)},
}

const (
	maxBody      = 16 << 10 // bytes (contract, section 1)
	maxTermsBody = 48 << 10 // bytes, so that a licence's 16 KiB of metadata fit with the rest

	exposedHeaders = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key"
)

// serverOptions are the settings of serve that the handlers follow.
type serverOptions struct {
	anonymousRate    int // a minute and address, for each of leads, events and statistics
	failedLookupRate int // unknown licence keys a minute and address
	legacySunset     time.Time
	trusted          []netip.Prefix // proxies whose X-Forwarded-For counts
}

// A server answers every request. Its zero value is of no use; see newServer.
type server struct {
	guard
	serverOptions
	log       *slog.Logger
	accounts  *limiter // by account
	addresses *limiter // by limit's name and address
	visitors  visitorBook
	leases    leaseCache
	health    healthCheck
	legacy    legacyCounter
	running   inProgress
	metrics   metrics
	draining  atomic.Bool
	traces    atomic.Bool // of what was erased may still be in the write-ahead log
	routing   atomic.Pointer[routing]
}

// The limiters remember this many keys each: at most about 20 MiB.
const (
	maxAccountBuckets = 50_000
	maxAddressBuckets = 50_000
)

// newServer makes a server over an open store. Its base addresses come from the
// store; refresh reads them again.
func newServer(st *store, keys *keyring, o serverOptions, log *slog.Logger) (*server, error) {
	s := &server{guard: guard{store: st, now: st.now, caches: newCaches()}, serverOptions: o, log: log,
		accounts: newLimiter(maxAccountBuckets), addresses: newLimiter(maxAddressBuckets)}
	s.keys.Store(keys)
	s.traces.Store(st.log.Size() > 0) // of what was erased before a service ended that could not empty it
	return s, s.refresh()
}

// A routing is the mux for the base addresses that the store had when it was made.
type routing struct {
	mux      *http.ServeMux
	bases    []baseAddress
	prefixes []string // their paths, the current one first
	root     string   // scheme and host of the current one
}

// refresh rebuilds the mux when the base addresses have changed.
func (s *server) refresh() error {
	bases, err := s.store.baseURLs()
	if err != nil {
		return err
	}
	if old := s.routing.Load(); old != nil && slices.Equal(old.bases, bases) {
		return nil
	}
	if len(bases) == 0 || !bases[0].Current {
		return errors.New("the database has no base address: run 'widgetd base-url set URL'")
	}
	rt := &routing{mux: http.NewServeMux(), bases: bases}
	for _, base := range bases {
		normal, prefix, err := parseBaseURL(base.URL)
		if err != nil {
			return err
		}
		if rt.root == "" {
			rt.root = strings.TrimSuffix(normal, prefix)
		}
		if !slices.Contains(rt.prefixes, prefix) {
			rt.prefixes = append(rt.prefixes, prefix)
		}
	}
	methods := map[string][]string{}
	for i := range routes {
		r := &routes[i]
		methods[r.path()] = append(methods[r.path()], r.method())
		for _, prefix := range rt.prefixes {
			rt.mux.HandleFunc(r.method()+" "+prefix+r.path(), func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, r) })
		}
	}
	for p, allowed := range methods {
		for _, prefix := range rt.prefixes {
			rt.mux.HandleFunc(prefix+p, func(w http.ResponseWriter, req *http.Request) { s.otherMethod(w, req, withHead(allowed)) })
		}
	}
	rt.mux.HandleFunc("GET /.well-known/jwks.json", s.showKeys)
	rt.mux.HandleFunc("/.well-known/jwks.json", func(w http.ResponseWriter, req *http.Request) { s.otherMethod(w, req, []string{"GET", "HEAD"}) })
	rt.mux.HandleFunc("GET /livez", s.showAlive)
	rt.mux.HandleFunc("/livez", func(w http.ResponseWriter, req *http.Request) { s.otherMethod(w, req, []string{"GET", "HEAD"}) })
	rt.mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { s.fail(w, req, errNotFound) })
	s.routing.Store(rt)
	return nil
}

// inBase returns a path relative to the base address that it lies under.
func (rt *routing) inBase(p string) (string, bool) {
	for _, prefix := range rt.prefixes {
		if rest, ok := strings.CutPrefix(p, prefix); ok && (rest == "" || rest[0] == '/') {
			return rest, true
		}
	}
	return "", false
}

// ServeHTTP puts on every answer what every answer carries, turns a panic into a
// problem, and finds the route.
func (s *server) ServeHTTP(inner http.ResponseWriter, r *http.Request) {
	start := s.now()
	w := &response{ResponseWriter: inner, requestID: newID("req", start)}
	h := w.Header()
	w.put("X-Request-Id", w.requestID)
	h["X-Content-Type-Options"] = headerNosniff
	h["Cache-Control"] = headerNoStore
	// A request with both Content-Length and chunked reads as two to whoever stands
	// in between: nothing may follow it on its connection. One in HTTP/1.0 may be
	// chunked without net/http saying so (RFC 9112, section 6.1).
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
		h.Set("Connection", "close")
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.Error("panic", "request_id", w.requestID, "panic", p, "stack", string(debug.Stack()))
			if w.status == 0 {
				s.fail(w, r, &refusal{code: "internal"})
			}
		}
		s.metrics.count(w.pattern, w.status, s.now().Sub(start))
	}()
	rt := s.routing.Load()
	rest, inBase := rt.inBase(r.URL.Path)
	legacy := strings.HasPrefix(r.URL.Path, legacyPrefix)
	w.onLeads = rest == "/widget/leads" || r.URL.Path == legacyPrefix+"widget/leads"
	if inBase {
		h["Vary"] = headerVary
		r = s.withOrigin(w, r)
	}
	switch {
	case legacy:
		s.serveLegacy(w, r, rt)
	case r.URL.Path != cleanPath(r.URL.Path): // the mux would redirect
		s.fail(w, r, errNotFound)
	default:
		rt.mux.ServeHTTP(w, r)
	}
}

// cleanPath is the form of a path that the mux answers without a redirect.
func cleanPath(p string) string {
	if strings.HasPrefix(p, "/") && !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p // as nearly all are
	}
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// A call is one request to a route, with all that was found out before it runs.
type call struct {
	route     *route
	request   *http.Request
	caller    *caller // nil: no token
	origin    originCheck
	account   string    // who is charged; "": nobody
	now       time.Time // once the request has been read
	body      []byte
	parsed    jsonValue // the body
	idemKey   string    // the Idempotency-Key; "": none
	idemScope string    // whose key it is, where that is not the caller's account
	replay    *reply    // set when an earlier answer serves again
}

// An endpointFunc reads a request's members and does what it asks.
type endpointFunc func(s *server, ctx context.Context, c *call, in *input) (any, error)

// A chargeFunc names the account that a request without a token is charged to.
type chargeFunc func(s *server, c *call, in *input) (account string, err error)

// endpoint makes a typed function an endpoint: f gets the request only when every
// member is right.
func endpoint[Req any, P interface {
	*Req
	read(*input)
}, Res any](f func(*server, context.Context, *call, *Req) (Res, error)) endpointFunc {
	return func(s *server, ctx context.Context, c *call, in *input) (any, error) {
		var req Req
		P(&req).read(in)
		if err := in.refusal(); err != nil {
			return nil, err
		}
		return f(s, ctx, c, &req)
	}
}

// serve runs a route: it judges in the contract's order, runs, and writes.
func (s *server) serve(writer http.ResponseWriter, r *http.Request, rt *route) {
	w := writer.(*response)
	w.pattern = rt.pattern
	c := &call{route: rt, request: r}
	result, err := s.run(w, c)
	switch {
	case c.replay != nil:
		w.Header().Set("Idempotency-Replayed", "true")
		s.write(w, *c.replay)
	case err != nil:
		s.fail(w, r, err)
	default:
		s.answer(w, r, result)
	}
}

func (s *server) run(w *response, c *call) (any, error) {
	r := c.request
	c.origin, _ = r.Context().Value(originKey{}).(originCheck)
	if err := c.judgeOrigin(); err != nil {
		return nil, err
	}
	if err := s.judgeToken(c); err != nil {
		return nil, err
	}
	if c.route.address != "" && c.caller == nil {
		if err := s.limitAddress(c.route.address, s.address(r), s.anonymousRate); err != nil {
			return nil, err
		}
	}
	var body *jsonValue
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		var err error
		if body, err = c.readBody(w); err != nil {
			return nil, err
		}
		if err := c.readIdempotencyKey(); err != nil {
			return nil, err
		}
	}
	c.now = s.now()
	var query url.Values
	var malformed error
	if r.URL.RawQuery != "" {
		query, malformed = url.ParseQuery(r.URL.RawQuery)
	}
	in := newInput(body, query, r)
	in.device = c.deviceToken() != nil
	if err := s.charge(w, c, in); err != nil {
		return nil, err
	}
	if malformed != nil {
		return nil, &refusal{code: "validation_failed", detail: "The query can't be decoded."}
	}
	return c.route.run(s, r.Context(), c, in)
}

func (s *server) judgeToken(c *call) error {
	if c.route.token == tokenIgnored {
		return nil
	}
	token, err := bearer(c.request)
	if err != nil {
		return err
	}
	if token == "" {
		if c.route.token == tokenRequired {
			return errTokenRequired
		}
		return nil
	}
	who, err := s.authenticate(token, c.route.token == tokenDevice)
	if err != nil {
		return err
	}
	if c.route.scope != "" && !who.has(c.route.scope) {
		return errScope(c.route.scope)
	}
	c.caller = who
	return nil
}

// address is the key that a request's address is limited by.
func (s *server) address(r *http.Request) string {
	return addressKey(clientAddress(r.RemoteAddr, r.Header.Values("X-Forwarded-For"), s.trusted))
}

// limitAddress takes a token from an address's bucket for one of the limits on
// anonymous callers.
func (s *server) limitAddress(limit, address string, rate int) error {
	if v := s.addresses.take(limit+" "+address, rate, s.now()); !v.ok {
		return errRate("Too many requests from this address.", v.retry)
	}
	return nil
}

// readBody judges type and size and parses (415, 413, 400).
func (c *call) readBody(w http.ResponseWriter) (*jsonValue, error) {
	r := c.request
	kind, coding := strings.Join(r.Header["Content-Type"], ", "), strings.Join(r.Header["Content-Encoding"], ", ") // two lines are a list, which neither is
	if !c.takesType(kind) || !slices.Contains([]string{"", "identity"}, strings.ToLower(coding)) {
		w.Header().Set("Accept", "application/json")
		return nil, &refusal{code: "unsupported_media_type", detail: "The body must be JSON in UTF-8: Content-Type: application/json, not compressed."}
	}
	limit := cmp.Or(c.route.body, maxBody)
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // else the answer would wait for the body
		return nil, errBodySize(limit)
	}
	body, err := readAll(w, r, limit)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, errBodySize(limit)
		}
		return nil, &refusal{code: "malformed_json", detail: "The body ended early."}
	}
	c.body = body
	if c.parsed, err = parseJSON(body); err != nil {
		return nil, &refusal{code: "malformed_json", detail: "The body can't be read: " + err.Error() + "."}
	}
	return &c.parsed, nil
}

// takesType judges a Content-Type: JSON in UTF-8, and for a beacon the same as
// plain text.
func (c *call) takesType(contentType string) bool {
	if contentType == "application/json" { // as nearly all say
		return true
	}
	kind, params, err := mime.ParseMediaType(contentType)
	charset, hasCharset := params["charset"]
	return err == nil && (kind == "application/json" || kind == "text/plain" && c.route.beacon) && (!hasCharset || strings.EqualFold(charset, "utf-8"))
}

// readAll reads a body of at most limit bytes. When its length was announced, which
// the caller has judged, that takes one allocation.
func readAll(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength < 0 {
		return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

func errBodySize(limit int64) error {
	return &refusal{code: "body_too_large", detail: fmt.Sprintf("The body has more than %d KiB.", limit>>10)}
}

// charge takes one request from the account's bucket and writes the RateLimit
// fields (draft-ietf-httpapi-ratelimit-headers-11).
func (s *server) charge(w *response, c *call, in *input) (err error) {
	switch {
	case c.route.free:
		return nil
	case c.caller != nil:
		c.account = c.caller.claims.Subject
	case c.route.charge != nil:
		c.account, err = c.route.charge(s, c, in)
	default:
		c.account = c.origin.owner
	}
	if err != nil || c.account == "" {
		return err
	}
	a, err := s.cachedAccount(c.account)
	if errors.Is(err, errNotFound) {
		return nil // a device token of an account that a restored database does not have
	}
	if err != nil {
		return err
	}
	w.account = a.ID
	v := s.accounts.take(a.ID, a.Rate, c.now)
	b := strconv.AppendInt(append(make([]byte, 0, 80), `"account";q=`...), int64(a.Rate), 10)
	b = append(b, `;w=60`...)
	policy := len(b)
	b = strconv.AppendInt(append(b, `"account";r=`...), int64(v.remaining), 10)
	b = strconv.AppendInt(append(b, `;t=`...), int64(wholeSeconds(v.full)), 10)
	fields := string(b)
	w.put("Ratelimit-Policy", fields[:policy])
	w.put("Ratelimit", fields[policy:])
	if !v.ok {
		return errRate("The account's requests of this minute are used up.", v.retry)
	}
	return nil
}

// accountScope reads ?account_id= and decides whose rows a caller with a token
// acts on: its own, or, for those who may name any, the named account's. The
// operator who names none acts on all of them ("").
type accountScope struct{ named string }

func (a *accountScope) read(in *input) { a.named = in.parameter("account_id", isID("acct")) }

func (a *accountScope) resolve(s *server, c *call) (string, error) {
	who := c.caller
	switch {
	case a.named == "" && who.admin():
		return "", nil
	case a.named == "" || a.named == who.claims.Subject:
		return who.claims.Subject, nil
	case !who.all:
		return "", &refusal{code: "insufficient_scope", detail: "The token acts on its own account only.", scope: scopeAdmin}
	}
	_, err := s.store.account(a.named)
	if errors.Is(err, errNotFound) {
		return "", errAccount
	}
	return a.named, err
}

// actorToken names the token that a call was made with.
func actorToken(c *call) string { return "token " + c.caller.claims.ID }
