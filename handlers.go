package main

import (
	"bytes"
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
	"sync"
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
func (rt *route) path() string   { _, p, _ := strings.Cut(rt.pattern, " "); return p }

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

// problemCodes are all codes that a problem can carry, with their status and
// title (contract, section 1). A code never changes its meaning.
var problemCodes = map[string]struct {
	status int
	title  string
}{
	"malformed_json":          {400, "Malformed JSON"},
	"malformed_header":        {400, "Malformed header"},
	"token_required":          {401, "Token required"},
	"invalid_token":           {401, "Invalid token"},
	"insufficient_scope":      {403, "Insufficient scope"},
	"origin_not_allowed":      {403, "Origin not allowed"},
	"license_revoked":         {403, "Licence revoked"},
	"license_suspended":       {403, "Licence suspended"},
	"license_not_started":     {403, "Licence not started"},
	"license_expired":         {403, "Licence expired"},
	"license_in_grace":        {403, "Licence in grace"},
	"key_retired":             {403, "Licence key retired"},
	"product_mismatch":        {403, "Another product"},
	"device_blocked":          {403, "Device blocked"},
	"not_found":               {404, "Not found"},
	"license_not_found":       {404, "Licence not found"},
	"widget_not_found":        {404, "Widget not found"},
	"account_not_found":       {404, "Account not found"},
	"method_not_allowed":      {405, "Method not allowed"},
	"seat_limit_reached":      {409, "Seat limit reached"},
	"transfer_limit_reached":  {409, "Transfer limit reached"},
	"idempotency_in_progress": {409, "The same request is still running"},
	"illegal_transition":      {409, "Illegal transition"},
	"gone":                    {410, "Gone"},
	"body_too_large":          {413, "Body too large"},
	"unsupported_media_type":  {415, "Unsupported media type"},
	"validation_failed":       {422, "Validation failed"},
	"key_malformed":           {422, "Malformed licence key"},
	"credential_mismatch":     {422, "Token and body disagree"},
	"idempotency_key_reused":  {422, "Idempotency-Key reused"},
	"rate_limited":            {429, "Rate limited"},
	"internal":                {500, "Internal error"},
	"busy":                    {503, "Busy"},
	"storage_full":            {503, "Storage full"},
	"storage_unavailable":     {503, "Storage unavailable"},
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
	traces    atomic.Bool // of what was erased are still in the write-ahead log
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

// withHead adds HEAD, which net/http answers wherever there is a GET, and sorts.
func withHead(methods []string) []string {
	all := slices.Clone(methods)
	if slices.Contains(all, "GET") {
		all = append(all, "HEAD")
	}
	slices.Sort(all)
	return all
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

const legacyPrefix = "/api/legacy/"

// A response is the writer of one answer: it remembers what became of it, and
// what the wrapper found out on the way.
type response struct {
	http.ResponseWriter
	status    int
	requestID string
	onLeads   bool // its problems carry "ok":false
	pattern   string
	account   string // who was charged; "": nobody

	values [6]string // of header fields, which need no slices of their own here
	fields int       // how many of them are taken
}

// put sets a header field, whose name is in its canonical form.
func (w *response) put(name, value string) {
	if w.fields == len(w.values) {
		w.Header()[name] = []string{value}
		return
	}
	i := w.fields
	w.values[i] = value
	w.Header()[name] = w.values[i : i+1 : i+1]
	w.fields++
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap serves http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

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
	if s.draining.Load() || len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
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

// What nearly every answer carries, made once. Nobody writes into these.
var (
	headerNosniff = []string{"nosniff"}
	headerNoStore = []string{"no-store"}
	headerVary    = []string{"Origin"}
	headerJSON    = []string{"application/json"}

	headerVaryCaller = []string{"Origin", "Authorization"}
)

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

// An originCheck is what is known about a request's Origin.
type originCheck struct {
	given bool
	owner string // the account that lists it; "": nobody
	err   error  // why that could not be found out
}

type originKey struct{}

// withOrigin looks an Origin up, gives a listed one its CORS headers, and leaves
// the result in the request's context for the route. Most requests have none.
func (s *server) withOrigin(w *response, r *http.Request) *http.Request {
	values := r.Header["Origin"]
	if len(values) == 0 {
		return r
	}
	check := originCheck{given: true}
	if origin, err := parseOrigin(values[0]); err == nil && len(values) == 1 {
		check.owner, check.err = s.cachedOriginOwner(origin)
		if errors.Is(check.err, errNotFound) {
			check.err = nil
		}
	}
	if check.owner != "" {
		w.put("Access-Control-Allow-Origin", values[0])
		w.put("Access-Control-Expose-Headers", exposedHeaders)
	}
	return r.WithContext(context.WithValue(r.Context(), originKey{}, check))
}

// otherMethod answers a method that a path does not have: a preflight's OPTIONS,
// or 405.
func (s *server) otherMethod(w http.ResponseWriter, r *http.Request, allowed []string) {
	h := w.Header()
	check, _ := r.Context().Value(originKey{}).(originCheck)
	switch {
	case r.Method == http.MethodOptions && check.given:
		if check.err != nil {
			s.fail(w, r, check.err)
			return
		}
		if check.owner == "" {
			s.fail(w, r, errOrigin)
			return
		}
		h.Del("Access-Control-Expose-Headers")
		h.Set("Access-Control-Allow-Methods", strings.Join(allowed, ", "))
		h.Set("Access-Control-Allow-Headers", allowedHeaders)
		h.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodOptions:
		h.Set("Allow", strings.Join(append(allowed, "OPTIONS"), ", "))
		w.WriteHeader(http.StatusNoContent)
	default:
		h.Set("Allow", strings.Join(append(allowed, "OPTIONS"), ", "))
		s.fail(w, r, &refusal{code: "method_not_allowed", detail: "This path answers " + strings.Join(allowed, ", ") + "."})
	}
}

var errOrigin = &refusal{code: "origin_not_allowed", detail: "This site is not listed as an origin. Its operator can add it."}

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

// A reply is an answer as it goes out.
type reply struct {
	status int
	body   []byte
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

// noContent is the answer 204.
type noContent struct{}

// A cacheable is an answer with an ETag, which If-None-Match may spare.
type cacheable struct {
	taggedBody
	cacheControl string
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

func (c *call) judgeOrigin() error {
	refused := c.route.origin == originListed && c.origin.given || c.route.origin == originRequired
	if !refused || c.origin.owner != "" {
		return nil
	}
	if c.origin.err != nil {
		return c.origin.err
	}
	return errOrigin
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

func errRate(detail string, retry time.Duration) error {
	return &refusal{code: "rate_limited", detail: detail, retryAfter: retry}
}

// readBody judges type and size and parses (415, 413, 400).
func (c *call) readBody(w http.ResponseWriter) (*jsonValue, error) {
	r := c.request
	kind, coding := strings.Join(r.Header["Content-Type"], ", "), strings.Join(r.Header["Content-Encoding"], ", ") // two lines are a list, which neither is
	if !c.takesType(kind) || !slices.Contains([]string{"", "identity"}, strings.ToLower(coding)) {
		w.Header().Set("Accept", "application/json")
		return nil, &refusal{code: "unsupported_media_type", detail: "The body must be JSON in UTF-8: Content-Type: application/json, not compressed."}
	}
	limit := orDefault(c.route.body, maxBody)
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

// answer writes a handler's result.
func (s *server) answer(w *response, r *http.Request, result any) {
	switch v := result.(type) {
	case noContent:
		s.write(w, reply{status: http.StatusNoContent})
		return
	case *healthReport:
		w.Header().Set("Content-Type", "application/health+json")
		s.write(w, reply{v.httpStatus(), encodeJSON(v)})
		return
	case *cacheable:
		w.put("Etag", v.tag)
		w.put("Cache-Control", v.cacheControl)
		w.Header()["Vary"] = headerVaryCaller
		if matches(r.Header.Values("If-None-Match"), v.tag) {
			s.write(w, reply{status: http.StatusNotModified})
			return
		}
		s.write(w, reply{http.StatusOK, v.body})
		return
	case appender:
		buffer := answerBuffers.Get().(*[]byte)
		*buffer = append(v.appendJSON((*buffer)[:0]), '\n')
		s.write(w, reply{http.StatusOK, *buffer})
		answerBuffers.Put(buffer)
		return
	}
	s.write(w, reply{http.StatusOK, encodeJSON(result)})
}

// answerBuffers hold answers while they are written.
var answerBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

func (s *server) write(w *response, out reply) {
	h := w.Header()
	if len(out.body) > 0 {
		if h["Content-Type"] == nil {
			h["Content-Type"] = headerJSON
		}
		w.put("Content-Length", strconv.Itoa(len(out.body)))
	}
	w.WriteHeader(out.status)
	w.Write(out.body) // an error here is the caller's absence
}

// matches judges If-None-Match (RFC 9110, section 13.1.2: weakly).
func matches(values []string, tag string) bool {
	for _, candidate := range strings.Split(strings.Join(values, ","), ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == tag || candidate == "*" {
			return true
		}
	}
	return false
}

// A problem is the public face of an error (RFC 9457).
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	OK        *bool        `json:"ok,omitempty"` // false, on /widget/leads
	Errors    []fieldError `json:"errors,omitempty"`
	Seats     any          `json:"seats,omitempty"`   // of seat_limit_reached
	Devices   any          `json:"devices,omitempty"` // that hold them
	Next      *stamp       `json:"next_transfer_at,omitempty"`
}

// fail writes the problem that an error is (RFC 9457). It is the only place that
// gives errors their public face; what it doesn't know is a 500 without detail
// and one log line.
func (s *server) fail(writer http.ResponseWriter, r *http.Request, err error) {
	w := writer.(*response)
	var ref *refusal
	if !errors.As(err, &ref) {
		ref = &refusal{code: "internal"}
		if r.Context().Err() == nil { // else the caller has gone, and nobody reads this
			s.log.Error("internal error", "request_id", w.requestID, "route", w.pattern, "error", err.Error())
		}
	}
	entry := problemCodes[ref.code]
	if entry.status == http.StatusServiceUnavailable && error(ref) != err {
		s.log.Warn("storage", "request_id", w.requestID, "route", w.pattern, "error", err.Error())
	}
	if ref.code == "internal" {
		ref = &refusal{code: "internal", detail: "Something went wrong on our side. The request id helps to find out what."}
	}
	p := problem{Type: s.routing.Load().root + "/docs#" + ref.code, Title: entry.title, Status: entry.status, Detail: ref.detail,
		Code: ref.code, RequestID: w.requestID, Errors: ref.fields, Seats: ref.seats, Devices: ref.devices}
	if w.onLeads {
		p.OK = new(bool)
	}
	if !ref.nextTransfer.IsZero() {
		p.Next = &ref.nextTransfer
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if ref.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(wholeSeconds(ref.retryAfter)))
	}
	switch ref.code {
	case "token_required":
		h.Set("WWW-Authenticate", realm)
	case "invalid_token":
		h.Set("WWW-Authenticate", realm+`, error="invalid_token"`)
	case "insufficient_scope":
		h.Set("WWW-Authenticate", realm+`, error="insufficient_scope", scope="`+ref.scope+`"`)
	}
	s.write(w, reply{entry.status, encodeJSON(p)})
}

// inProgress holds the idempotent requests that are running.
type inProgress struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (p *inProgress) begin(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ids[id] {
		return false
	}
	if p.ids == nil {
		p.ids = map[string]bool{}
	}
	p.ids[id] = true
	return true
}

func (p *inProgress) end(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ids, id)
}

// readIdempotencyKey reads 1 to 255 visible ASCII characters, bare or quoted, on
// a route that creates; others ignore the header.
func (c *call) readIdempotencyKey() error {
	values := c.request.Header.Values("Idempotency-Key")
	if !c.route.creates || len(values) == 0 {
		return nil
	}
	key := values[0]
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	if len(values) > 1 || key == "" || len(key) > 255 || strings.IndexFunc(key, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return &refusal{code: "malformed_header", detail: "An Idempotency-Key has 1 to 255 visible ASCII characters."}
	}
	c.idemKey = key
	return nil
}

// create runs f in a transaction and honours the call's Idempotency-Key: what f
// returned is sealed and stored in the same transaction, and serves again for 24
// hours. Only success is stored.
func create[Res any](ctx context.Context, s *server, c *call, f func(*tx) (Res, error)) (res Res, err error) {
	if c.idemKey == "" {
		err = s.store.update(ctx, func(t *tx) (err error) {
			res, err = f(t)
			return err
		})
		return res, err
	}
	keys := s.keys.Load()
	id := keys.hash("idempotency scope", s.idempotencyCaller(c), c.route.pattern, c.idemKey)
	path, _ := s.routing.Load().inBase(c.request.URL.Path) // a route with an id in it has many
	request := keys.hash("idempotency request", path, string(c.body))
	if !s.running.begin(string(id)) {
		return res, &refusal{code: "idempotency_in_progress", detail: "A request with this Idempotency-Key is still running.", retryAfter: time.Second}
	}
	defer s.running.end(string(id))
	err = s.store.update(ctx, func(t *tx) error {
		c.replay = nil
		switch stored, err := t.storedAnswer(id); {
		case errors.Is(err, errNotFound):
		case err != nil:
			return err
		case !bytes.Equal(stored.request, request):
			return &refusal{code: "idempotency_key_reused", detail: "This Idempotency-Key was used with another body or path."}
		default:
			plain, err := keys.unseal(c.idemKey, stored.sealed)
			if err != nil {
				return fmt.Errorf("%w (open a stored answer: %w)", errStorage, err)
			}
			c.replay = &reply{http.StatusOK, plain}
			if len(plain) == 0 {
				c.replay.status = http.StatusNoContent
			}
			return nil
		}
		if res, err = f(t); err != nil {
			return err
		}
		var plain []byte // nothing: 204
		if _, empty := any(res).(noContent); !empty {
			plain = encodeJSON(res)
		}
		return t.storeAnswer(id, storedAnswer{request: request, sealed: keys.seal(c.idemKey, plain)})
	})
	if err != nil {
		c.replay = nil
	}
	return res, err
}

// idempotencyCaller names whose Idempotency-Key it is: the token's account, else
// licence and fingerprint, else the charged account with the address.
func (s *server) idempotencyCaller(c *call) string {
	switch {
	case c.caller != nil && !c.caller.claims.isDevice():
		return "account " + c.caller.claims.Subject
	case c.idemScope != "":
		return c.idemScope
	}
	return "address " + c.account + " " + s.address(c.request)
}

// A list is a page of rows and the cursor of the next one.
type list[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

// newList cuts a page out of rows, of which one more than the limit was asked for.
func newList[Row, T any](rows []Row, p page, id func(Row) string, show func(Row) T) *list[T] {
	l := &list[T]{Data: []T{}}
	if len(rows) > p.limit {
		rows = rows[:p.limit]
		last := id(rows[len(rows)-1])
		l.NextCursor = &last
	}
	for _, row := range rows {
		l.Data = append(l.Data, show(row))
	}
	return l
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
