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
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A wing is one noun's part of the service. The core knows none of them: what a
// wing keeps in memory is its own, and serve.go lists them all.
type wing struct {
	routes []route
	roots  []rootPath
	chores []chore
}

// A route is one line of the contract: who may call it, what is judged before it
// runs, and what runs. The table feeds the mux, the methods that preflights
// answer, the legacy paths and the README's list.
type route struct {
	pattern string        // net/http's, relative to the base address
	token   tokenRule     // whether a bearer token is asked for
	scope   string        // that it must carry, if one is given; "": any
	origin  originRule    // what an Origin must be
	address string        // name of the limit that holds anonymous callers by address; "": none
	free    bool          // never charged to an account
	beacon  bool          // also takes the JSON as text/plain, which needs no preflight
	creates bool          // adds something each time: honours Idempotency-Key
	body    int64         // bytes that a body may have, where that is not maxBody
	members []extraMember // that every problem of its path carries
	charge  chargeFunc    // whom to charge; nil: the token's account, else the Origin's owner
	run     endpointFunc  // reads the request and does it
}

// A rootPath is a path outside the base address.
type rootPath struct {
	path  string // "/livez"; one that ends in a slash takes all below it, of any method, as it was sent
	serve func(w *response, r *http.Request)
}

// A chore is what a wing does beside the requests, once a second.
type chore struct {
	fault      string // what the log says when it fails: "legacy calls can't be counted"
	timeDriven bool   // is about the time, and waits until a clock that was set is believed
	atEnd      bool   // is done once more when the service stops
	run        func(ctx context.Context) error
}

func (rt *route) method() string { m, _, _ := strings.Cut(rt.pattern, " "); return m }

func (rt *route) path() string { _, p, _ := strings.Cut(rt.pattern, " "); return p }

type tokenRule int

const (
	tokenIgnored  tokenRule = iota // public: a token makes no difference
	tokenOptional                  // a bad one is still refused
	tokenLate                      // optional; one past its end may still name its bearer
	tokenRequired
)

type originRule int

const (
	originAny      originRule = iota // an unlisted one is answered, but no browser shows it
	originListed                     // none, or a listed one
	originRequired                   // a listed one
)

const maxBody = 16 << 10 // bytes (contract, section 1)

// serverOptions are the settings of serve that the handlers follow.
type serverOptions struct {
	anonymousRate    int // a minute and address, for each of leads, events and statistics
	failedLookupRate int // unknown licence keys a minute and address
	legacySunset     time.Time
	trusted          []netip.Prefix // proxies whose X-Forwarded-For counts
}

// A server answers every request. Its zero value is of no use; see newServer.
type server struct {
	*authenticator
	serverOptions
	steady         func() time.Time // a clock that is never set, to measure time by; now may be set
	log            *slog.Logger
	accountBuckets *limiter // by account
	addressBuckets *limiter // by limit's name and address
	health         healthCheck
	running        inProgress
	metrics        metrics
	draining       atomic.Bool
	working        sync.WaitGroup // every goroutine of the service; the writer's is the store's, and net/http has its own
	debug          *http.Server   // metrics and profiles; nil: not served
	routes         []route        // of all wings, as are the next two
	roots          []rootPath
	chores         []chore
	routing        atomic.Pointer[routing]
}

// The limiters remember this many keys each: at most about 20 MiB.
const (
	maxAccountBuckets = 50_000
	maxAddressBuckets = 50_000
)

// newServer makes a server over an open store, with what wings returns for it. Its
// base addresses come from the store; refresh reads them again.
func newServer(st *store, keys *keyring, o serverOptions, log *slog.Logger, wings func(*server) []wing) (*server, error) {
	s := &server{authenticator: newAuthenticator(st, keys), serverOptions: o, log: log, steady: time.Now,
		accountBuckets: newLimiter(maxAccountBuckets), addressBuckets: newLimiter(maxAddressBuckets)}
	for _, w := range wings(s) {
		s.routes = append(s.routes, w.routes...)
		s.roots = append(s.roots, w.roots...)
		s.chores = append(s.chores, w.chores...)
	}
	return s, s.refresh()
}

// A routing is the mux for the base addresses that the store had when it was made.
type routing struct {
	mux      *http.ServeMux
	bases    []baseAddress
	prefixes []string                 // their paths, the current one first
	root     string                   // scheme and host of the current one
	members  map[string][]extraMember // of problems, by path in the base
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
	rt := &routing{mux: http.NewServeMux(), bases: bases, members: map[string][]extraMember{}}
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
	s.register(rt)
	s.routing.Store(rt)
	return nil
}

// register adds every path to the mux, with an answer to the methods it does not have.
func (s *server) register(rt *routing) {
	methods := map[string][]string{}
	for i := range s.routes {
		r := &s.routes[i]
		methods[r.path()] = append(methods[r.path()], r.method())
		if len(r.members) > 0 {
			rt.members[r.path()] = r.members
		}
		for _, prefix := range rt.prefixes {
			rt.mux.HandleFunc(r.method()+" "+prefix+r.path(), func(w http.ResponseWriter, req *http.Request) { s.serve(w, req, r) })
		}
	}
	for p, allowed := range methods {
		for _, prefix := range rt.prefixes {
			rt.mux.HandleFunc(prefix+p, func(w http.ResponseWriter, req *http.Request) { s.otherMethod(w, req, withHead(allowed)) })
		}
	}
	for _, root := range s.roots {
		if !strings.HasSuffix(root.path, "/") {
			rt.mux.HandleFunc("GET "+root.path, func(w http.ResponseWriter, req *http.Request) { root.serve(w.(*response), req) })
			rt.mux.HandleFunc(root.path, func(w http.ResponseWriter, req *http.Request) { s.otherMethod(w, req, []string{"GET", "HEAD"}) })
		}
	}
	rt.mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { s.fail(w, req, errNotFound) })
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
	h.Set("X-Request-Id", w.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
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
				s.fail(w, r, &refusal{code: codeInternal})
			}
		}
		s.metrics.count(w.pattern, w.status, s.now().Sub(start))
	}()
	rt := s.routing.Load()
	if _, inBase := rt.inBase(r.URL.Path); inBase {
		h.Set("Vary", "Origin")
		r = s.withOrigin(w, r)
	}
	for _, root := range s.roots {
		if strings.HasSuffix(root.path, "/") && strings.HasPrefix(r.URL.Path, root.path) {
			root.serve(w, r)
			return
		}
	}
	switch {
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
type endpointFunc func(s *server, ctx context.Context, w *response, c *call, in *input) (any, error)

// A chargeFunc names the account to charge for a request that was read from in; "" is
// nobody. One that must look nothing up for wrong members returns their refusal.
type chargeFunc func(c *call, in *input, request any) (account string, err error)

// endpoint makes a typed function an endpoint: f gets the request only when the
// account may make another and every member is right.
func endpoint[Req any, P interface {
	*Req
	read(*input)
}, Res any](f func(context.Context, *call, *Req) (Res, error)) endpointFunc {
	return func(s *server, ctx context.Context, w *response, c *call, in *input) (any, error) {
		var req Req
		P(&req).read(in)
		if err := s.charge(w, c, in, &req); err != nil {
			return nil, err
		}
		if err := in.err(); err != nil {
			return nil, err
		}
		return f(ctx, c, &req)
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
	if err := s.checkToken(c); err != nil {
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
	return c.route.run(s, r.Context(), w, c, newInput(body, r, c.caller))
}

func (s *server) checkToken(c *call) error {
	if c.route.token == tokenIgnored {
		return nil
	}
	token, err := bearerToken(c.request)
	if err != nil {
		return err
	}
	if token == "" {
		if c.route.token == tokenRequired {
			return errTokenRequired
		}
		return nil
	}
	who, err := s.authenticate(token, c.route.token == tokenLate)
	if err != nil {
		return err
	}
	if c.route.scope != "" && !who.has(c.route.scope) {
		return errScope(c.route.scope, "The token does not carry the scope "+c.route.scope+".")
	}
	c.caller = who
	return nil
}

// address is the key that a request's address is limited by.
func (s *server) address(r *http.Request) string {
	return addressKey(clientAddress(r.RemoteAddr, r.Header.Values("X-Forwarded-For"), s.trusted))
}

// scrubWAL empties the write-ahead log of what was erased. What it can't do now, since
// somebody has a transaction open, upkeep tries again.
func (s *server) scrubWAL(patience time.Duration) {
	switch later, err := s.store.scrubWAL(patience); {
	case err != nil && !later:
		s.log.Warn("what was erased stays in the write-ahead log until nobody has a transaction open", "error", err.Error())
	case err == nil && later:
		s.log.Info("the write-ahead log is empty: nothing that was erased is left in it")
	}
}

// limitAddress takes a token from an address's bucket for one of the limits on
// anonymous callers.
func (s *server) limitAddress(limit, address string, rate int) error {
	if v := s.addressBuckets.take(limit+" "+address, rate, s.steady()); !v.ok {
		return errRate("Too many requests from this address.", v.retry)
	}
	return nil
}

// readBody judges type and size and parses (415, 413, 400).
func (c *call) readBody(w http.ResponseWriter) (*jsonValue, error) {
	r := c.request
	kind, coding := strings.Join(r.Header["Content-Type"], ", "), strings.Join(r.Header["Content-Encoding"], ", ") // two lines are a list, which neither is
	if !c.acceptsContentType(kind) || !slices.Contains([]string{"", "identity"}, strings.ToLower(coding)) {
		w.Header().Set("Accept", "application/json")
		return nil, &refusal{code: codeMediaType}
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
		return nil, &refusal{code: codeMalformedJSON, detail: "The body ended early."}
	}
	c.body = body
	if c.parsed, err = parseJSON(body); err != nil {
		return nil, &refusal{code: codeMalformedJSON, detail: "The body can't be read: " + err.Error() + "."}
	}
	return &c.parsed, nil
}

// acceptsContentType judges a Content-Type: JSON in UTF-8, and for a beacon the same as
// plain text.
func (c *call) acceptsContentType(contentType string) bool {
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
	return &refusal{code: codeBodySize, detail: fmt.Sprintf("The body has more than %d KiB.", limit>>10)}
}

// charge takes one request from the account's bucket and writes the RateLimit
// fields (draft-ietf-httpapi-ratelimit-headers-11).
func (s *server) charge(w *response, c *call, in *input, request any) (err error) {
	switch {
	case c.route.free:
		return nil
	case c.route.charge != nil:
		c.account, err = c.route.charge(c, in, request)
	case c.caller != nil:
		c.account = c.caller.claims.Subject
	default:
		c.account = c.origin.account
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
	v := s.accountBuckets.take(a.ID, a.Rate, s.steady())
	w.Header().Set("RateLimit-Policy", fmt.Sprintf(`"account";q=%d;w=60`, a.Rate))
	w.Header().Set("RateLimit", fmt.Sprintf(`"account";r=%d;t=%d`, v.remaining, wholeSeconds(v.full)))
	if !v.ok {
		return errRate("The account's requests of this minute are used up.", v.retry)
	}
	return nil
}

// accountScope reads ?account_id= and decides whose rows a caller with a token
// acts on: its own, or, for those who may name any, the named account's. The
// operator who names none acts on those of any account.
type accountScope struct{ named string }

func (a *accountScope) read(in *input) { a.named = in.parameter("account_id", isID("acct")) }

func (a *accountScope) resolve(s *server, c *call) (owner, error) {
	who := c.caller
	switch {
	case a.named == "" && who.admin():
		return anyAccount, nil
	case a.named == "" || a.named == who.claims.Subject:
		return ownedBy(who.claims.Subject), nil
	case !who.all:
		return owner{}, errScope(scopeAdmin, "The token acts on its own account only.")
	}
	_, err := s.store.account(a.named)
	if errors.Is(err, errNotFound) {
		return owner{}, errAccount
	}
	return ownedBy(a.named), err
}

// actorToken names the token that a call was made with.
func actorToken(c *call) string { return "token " + c.caller.claims.ID }
