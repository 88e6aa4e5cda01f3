package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A wing is what a noun adds to a running service: its routes and its background work. It owns the state
// that it keeps in memory.
type wing struct {
	routes  []route
	roots   []rootPath
	chores  []chore
	workers []func(ctx context.Context) // run beside the service; they return soon after ctx ends
	metrics []metric

	// Each removes up to sweptAtOnce rows whose retention has ended, and returns how many it has removed.
	sweeps []func(t *tx) (int64, error)
}

// A route is one endpoint of the contract: who may call it, what is checked before it runs,
// and the function that runs. The mux, the methods in answers to preflights, the legacy paths
// and the tests of the documents all use this table.
type route struct {
	pattern  string        // as net/http's, with a path relative to the base address
	token    tokenRule     // whether it needs a bearer token
	scope    string        // scopes that a token must have, space-separated; "": none
	ownScope string        // scope without which a token of an application or for all accounts is ignored; "": none
	origin   originRule    // which Origins it accepts
	address  string        // name of the rate limit by address for anonymous callers; "": none
	recalled recallFunc    // answers from memory callers without a token, who are then charged nothing; nil: none
	admit    admitFunc     // further limits by address, before the body is read; nil: none
	shared   bool          // addresses share the bucket of anonymous callers (server.chargeShare)
	free     bool          // never charged to an account
	open     bool          // scripts of every site may read the answer, not only those of listed origins
	beacon   bool          // also accepts JSON as text/plain, which needs no preflight
	noBody   bool          // every member may be absent, so that an empty body stands for {}
	creates  bool          // each request adds something: honours Idempotency-Key
	careful  bool          // moves money or makes something: refuses members that are nearly known ones
	body     int64         // largest body in bytes; 0: maxBody, with raw maxRawBody
	values   int           // most JSON values in a body; 0: maxBodyValues
	late     bool          // run reads members too, so the parsed body is kept until it returns
	raw      bool          // takes a body of any type as it is (call.body), for signatures over its bytes
	members  []extraMember // extra members of every problem on its path
	charge   chargeFunc    // which account to charge; nil: the token's, else the one that owns the Origin
	bucket   string        // the account's bucket for calls without a token of its own; "": bucketAccount
	run      endpointFunc  // reads the request's members and carries it out

	// page makes this a route for people: it takes a form instead of JSON, whose fields are read like
	// members that are strings; page shows every refusal on its path; and the OpenAPI document lacks it.
	// All routes of one path have the same page. nil: it is a route for programs.
	page refusalPage

	// form makes a route for programs take a form instead of JSON, as a standard requires, and refused makes
	// the answer to every refusal on its path. All routes of one path have the same. nil: JSON and problems.
	form    bool
	refused refusalForm

	// The route reads a list or a range, so its calls wait for their turn (questionQueue). The context
	// of run then also ends after questionTimeout; run passes it on to queries (store.within).
	question bool
}

// A rootPath is a path outside the base address.
type rootPath struct {
	path  string // "/livez", "/{$}"; one that ends in / gets every path below it, as it was sent, with any method
	serve func(w *response, r *http.Request)
	open  bool // as route.open
	page  bool // for people and crawlers: not part of the interface, so the OpenAPI document lacks it

	// The path of the current base address is appended to path, as in well-known URIs (RFC 8414, section
	// 3.1): "/.well-known/x/v1". Neither path alone nor path with an earlier base address is served.
	ofBase bool

	// more returns further paths that serve answers, which depend on the base addresses; nil: there are
	// none. It is called with the base addresses, the current one first, whenever they have changed.
	more func(bases []baseAddress) ([]string, error)
}

// A chore is background work of a wing, done once a second.
type chore struct {
	fault      string // the log line when it fails: "legacy calls can't be counted"
	timeDriven bool   // acts on what the clock says, so it is paused while the clock is doubted
	atEnd      bool   // runs once more when the service stops
	run        func(ctx context.Context) error
}

func (rt *route) method() string { m, _, _ := strings.Cut(rt.pattern, " "); return m }

func (rt *route) path() string { _, p, _ := strings.Cut(rt.pattern, " "); return p }

// bodyLimit returns how many bytes a body may have.
func (rt *route) bodyLimit() int64 {
	if rt.raw {
		return cmp.Or(rt.body, maxRawBody)
	}
	return cmp.Or(rt.body, maxBody)
}

type tokenRule int

const (
	tokenIgnored  tokenRule = iota // public: a token makes no difference
	tokenOptional                  // a bad one is still refused
	tokenLate                      // optional; an expired one still identifies its bearer
	tokenRequired
)

type originRule int

const (
	originAny      originRule = iota // any or none; browsers hide the answer from pages of unlisted origins
	originListed                     // none, or a listed one
	originRequired                   // a listed one
	originApp                        // any or none; only pages of applications' origins may read it (call.app)
	originNone                       // any or none; no page of another site may read the answer
)

const (
	maxBody       = 16 << 10 // bytes (contract, section 1)
	maxRawBody    = 64 << 10 // bytes of what other services send
	maxBodyValues = 1000     // values of JSON in a body (contract, section 1)
)

// bucketAccount is the token bucket that each account has for calls with its own tokens (contract, section 2), by
// the name that answers give it. Nouns declare buckets for calls without such a token, so that no kind of call can
// use up the requests of another.
const bucketAccount = "account"

// bucketApplication is the name that answers give to an application's half of bucketAccount.
const bucketApplication = "application"

// serverOptions are the options of serve that handlers need.
type serverOptions struct {
	nounOptions
	anonymousRate    int            // requests a minute and address, for each limit on anonymous callers
	visitorRate      int            // events a minute, address and widget from sites of the widget's account
	failedLookupRate int            // different licence keys that may fail a minute and address
	trusted          []netip.Prefix // proxies whose X-Forwarded-For is believed
	outboundAllow    []netip.Prefix // what may be called besides public addresses
	peerURL          string         // address of the other machine of a pair; "": none
	statusSocket     string         // path of the socket that 'widgetd status' asks; "": none
	accessLog        bool           // log a line for each request
	synchronised     func() bool    // whether the kernel says that the wall clock is right; nil: it never does
	noRoots          bool           // this machine knows no certificate authority

	// Values that work in the documentation's examples, by the name of the member or parameter; nil: there
	// are none, and readers fill in their own.
	examples map[string]string
}

// A server answers every request. Make one with newServer.
type server struct {
	*authenticator
	serverOptions
	nouns          []noun           // that it serves
	steady         func() time.Time // a clock that is never set, to measure durations; that of now may be
	log            *slog.Logger
	accountBuckets *limiter // by the bucket's name and account
	addressBuckets *limiter // by the limit's name and what it counts: an address, an order, an application
	askers         *lastAskers
	parsing        *memoryBudget
	receiving      *memoryBudget
	outbound       *outbound
	peer           *peerWatch // nil: there is none
	health         healthCheck
	running        inProgress
	metrics        metrics
	notices        notices
	faults         lastingFaults
	startedAt      time.Time
	keysStale      atomic.Bool // the key file can't be used, so the keys loaded before stay in use
	draining       atomic.Bool
	working        sync.WaitGroup // every goroutine of the service but the writer's and net/http's
	debug          *http.Server   // metrics and profiles; nil: not served
	routes         []route        // of all wings, like roots and chores
	roots          []rootPath
	chores         []chore
	workers        []func(context.Context)
	wingMetrics    []metric
	sweeps         []func(*tx) (int64, error)
	clock          clockWatch
	routing        atomic.Pointer[routing]
}

// How many buckets each limiter holds at most, in about 10 MiB each. Full buckets are evicted, so
// only accounts that are in use take room: there is enough for all four buckets of 12,500 accounts
// in use at once.
const (
	maxAccountBuckets = 50_000
	maxAddressBuckets = 50_000
)

// newServer makes a server of the given nouns over an open store. It reads the base addresses from the store;
// refresh reads them again.
func newServer(st *store, keys *keyring, o serverOptions, log *slog.Logger, of []noun) (*server, error) {
	s := &server{authenticator: newAuthenticator(st, keys), serverOptions: o, nouns: of, log: log, steady: time.Now,
		startedAt: st.now(), outbound: newOutbound(o.outboundAllow),
		accountBuckets: newLimiter(maxAccountBuckets), addressBuckets: newLimiter(maxAddressBuckets),
		askers:  &lastAskers{max: maxAccountBuckets, accounts: map[string][2]askedFrom{}},
		parsing: newMemoryBudget(parseMemory), receiving: newMemoryBudget(receiveMemory),
		running: inProgress{ids: map[string]bool{}}, notices: notices{kinds: map[string]*notice{}},
		faults: lastingFaults{open: map[string]*lastingFault{}}}
	s.startClock()
	st.met.tellOf(func(row *unreadableRow) {
		log.Warn("a row can't be read: lists leave it out, and what needs it fails: run 'widgetd check'",
			"table", row.table, "id", row.id, "error", row.cause)
	})
	var err error
	if s.peer, err = newPeerWatch(s, o.peerURL); err != nil {
		return nil, err
	}
	s.outbound.held = s.peer.holds
	for _, w := range wingsOf(of, s) {
		s.routes = append(s.routes, w.routes...)
		s.roots = append(s.roots, w.roots...)
		s.chores = append(s.chores, w.chores...)
		s.workers = append(s.workers, w.workers...)
		s.wingMetrics = append(s.wingMetrics, w.metrics...)
		s.sweeps = append(s.sweeps, w.sweeps...)
	}
	return s, s.refresh()
}

// ServeHTTP implements http.Handler. It sets the headers that every answer has, turns a panic
// into a problem, and passes the request to its route.
func (s *server) ServeHTTP(inner http.ResponseWriter, r *http.Request) {
	start := s.now()
	w := &response{ResponseWriter: inner, requestID: newID("req", start)}
	h := w.Header()
	h.Set("X-Request-Id", w.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	// A proxy may take a request with both Content-Length and chunked encoding for two, so the
	// connection is closed after it (request smuggling). net/http does not tell whether a
	// request in HTTP/1.0 was chunked (RFC 9112, section 6.1).
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
		s.countAnswer(w, s.now().Sub(start))
	}()
	rt := s.routing.Load()
	if _, inBase := rt.inBase(r.URL.Path); inBase {
		h.Set("Vary", "Origin")
		r = s.withOrigin(w, r)
	}
	for _, root := range s.roots {
		above, whole := strings.CutSuffix(root.path, "/")
		if rest, below := strings.CutPrefix(r.URL.Path, above); whole && below && (rest == "" || rest[0] == '/') {
			root.serve(w, r)
			return
		}
	}
	if r.URL.Path != cleanPath(r.URL.Path) { // the mux would redirect
		s.pathNotFound(w, r)
		return
	}
	rt.mux.ServeHTTP(w, r)
}

// noRoute is what logs show as the route of a request that matched none.
const noRoute = "none"

// countAnswer counts an answer, who asked and how long it took and, with -access-log, logs it. The log line has the
// token's id, but never an address, a key, a token, a query or a path, since a path may hold ids.
func (s *server) countAnswer(w *response, took time.Duration) {
	s.metrics.count(w.pattern, w.status, took, w.caller, s.steady())
	if s.accessLog {
		s.log.Info("request", "route", cmp.Or(w.pattern, noRoute), "status", w.status,
			"milliseconds", float64(took.Microseconds())/1000, "request_id", w.requestID,
			"account", cmp.Or(w.account, "-"), "token", cmp.Or(w.token, "-"))
	}
}

// cleanPath returns the form of a path that the mux answers without a redirect.
func cleanPath(p string) string {
	if strings.HasPrefix(p, "/") && !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p // the common case
	}
	clean := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// A call is one request to a route, with what was learnt about it before the endpoint runs.
type call struct {
	route     *route
	request   *http.Request
	caller    *caller // nil: no token
	bearer    *caller // the same, also where the token does not suffice for the route
	origin    originCheck
	app       *app      // the calling one: scripts of its origins may read the answer, refusals too; nil: none
	account   string    // that is charged; "": none
	now       time.Time // when the request had been read
	strict    bool      // every unknown member is refused (RFC 7240)
	body      []byte
	parsed    jsonValue // body, parsed, until the members are read
	free      func()    // gives back the memory that parsed takes; nil: nothing was taken
	idemKey   string    // the Idempotency-Key; "": none
	idemScope string    // within which the key is unique, where that is not the caller's account
	replay    *reply    // the earlier answer, when the request repeats an Idempotency-Key

	// stillTrue reports whether an earlier answer to the same request may be given again; nil: always.
	stillTrue func(t *tx, answer []byte) (bool, error)
}

// An endpointFunc reads a request's members from in, carries it out and returns the answer.
type endpointFunc func(s *server, ctx context.Context, w *response, c *call, in *input) (any, error)

// A chargeFunc returns the account to charge for a request that was read from in, or "". If it
// needs members that are invalid it returns their refusal, without a query.
type chargeFunc func(c *call, in *input, request any) (account string, err error)

// A recallFunc returns the answer to a request without a token if it is in memory, else nil.
type recallFunc func(c *call, request any) any

// An admitFunc returns the refusal of a call without a token that is over a limit, before its body is read.
type admitFunc func(c *call) error

// endpoint makes an endpointFunc from a typed function. f is called only if the account is
// within its rate limit and every member of the request is valid.
func endpoint[Req any, P interface {
	*Req
	read(*input)
}, Res any](f func(context.Context, *call, *Req) (Res, error)) endpointFunc {
	var initial Req
	return endpointFrom[Req, P](initial, f)
}

// endpointFrom is endpoint for requests whose read method needs more than the input: each request begins
// as a copy of initial.
func endpointFrom[Req any, P interface {
	*Req
	read(*input)
}, Res any](initial Req, f func(context.Context, *call, *Req) (Res, error)) endpointFunc {
	return func(s *server, ctx context.Context, w *response, c *call, in *input) (any, error) {
		req := initial
		P(&req).read(in)
		if in.refuseUnknownMembers(c.strict); !c.route.late {
			c.dropParsed()
		}
		if c.route.token == tokenRequired {
			in.refuseUnknownParameters()
		}
		if c.route.recalled != nil && c.caller == nil {
			if answer := recall(c, in, &req); answer != nil {
				return answer, nil
			}
			if err := s.limitAddress(c.route.address, s.address(c.request), s.anonymousRate); err != nil {
				return nil, err
			}
		}
		if err := s.charge(w, c, in, &req); err != nil {
			return nil, err
		}
		if err := in.err(); err != nil {
			return nil, err
		}
		if of, ok := any(&req).(interface{ resolve(*server, *call) error }); ok {
			if err := of.resolve(s, c); err != nil {
				return nil, err
			}
		}
		if !c.route.question {
			return f(ctx, c, &req)
		}
		return askFor(ctx, s, c, func(ctx context.Context) (Res, error) { return f(ctx, c, &req) })
	}
}

// recall returns the answer to a valid request if it is in memory, else nil.
func recall(c *call, in *input, request any) any {
	if in.err() != nil {
		return nil
	}
	return c.route.recalled(c, request)
}

// askFor returns what f returns once it is the call's turn to ask a question.
func askFor[T any](ctx context.Context, s *server, c *call, f func(context.Context) (T, error)) (answer T, err error) {
	who := asker{address: s.address(c.request)}
	if c.caller != nil {
		who = asker{account: c.caller.claims.Subject}
	}
	err = s.store.questions.ask(ctx, who, func(ctx context.Context) (err error) {
		answer, err = f(ctx)
		return err
	})
	return answer, err
}

// serve answers a request to a route.
func (s *server) serve(writer http.ResponseWriter, r *http.Request, rt *route) {
	w := writer.(*response)
	w.pattern, w.page, w.refused = rt.pattern, rt.page, rt.refused
	c := &call{route: rt, request: r}
	if prefersStrict(r.Header["Prefer"]) && rt.takesJSON() {
		c.strict = true
		w.Header().Set("Preference-Applied", "handling=strict")
	}
	result, err := s.run(w, c)
	w.caller = callerOf(c)
	if c.bearer != nil {
		w.token = c.bearer.claims.ID
	}
	if c.app != nil && c.app.listsOrigin(c.origin.origin) {
		allowOrigin(w, r)
	}
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

// run makes the checks in the order of the contract, section 1, then calls the endpoint and
// returns what it returns.
func (s *server) run(w *response, c *call) (any, error) {
	r := c.request
	c.origin, _ = r.Context().Value(originKey{}).(originCheck)
	if err := c.checkOrigin(); err != nil {
		return nil, err
	}
	if err := s.checkToken(c); err != nil {
		return nil, err
	}
	if c.caller == nil {
		if err := s.admit(c); err != nil {
			return nil, err
		}
	}
	var body *jsonValue
	if r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Method == http.MethodPut {
		var err error
		defer c.dropParsed()
		if body, err = s.readBody(w, c); err != nil {
			return nil, err
		}
		if err := c.readIdempotencyKey(); err != nil {
			return nil, err
		}
	}
	c.now = s.now()
	in := newInput(body, r, c.caller)
	if body != nil && (c.strict || c.route.careful) {
		in.noteKnown()
	}
	return c.route.run(s, r.Context(), w, c, in)
}

// admit applies the limits by address on callers without a token that come before the body.
func (s *server) admit(c *call) error {
	switch {
	case c.route.admit != nil:
		return c.route.admit(c)
	case c.route.address == "" || c.route.recalled != nil: // see endpointFrom
		return nil
	}
	return s.limitAddress(c.route.address, s.address(c.request), s.anonymousRate)
}

// checkToken sets the caller of a call from its bearer token, or returns a refusal if the
// route's rules refuse the token or its absence.
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
	if c.route.token == tokenRequired && c.origin.origin != "" && c.origin.account == "" {
		app, failed := s.appOf(who, token, c.origin.origin)
		if failed != nil {
			return failed
		}
		c.app = app
	}
	if err != nil {
		return err
	}
	c.bearer = who
	for _, scope := range strings.Fields(c.route.scope) {
		if !who.has(scope) {
			return errScope(c.route.scope, "The token does not have the scope "+scope+".")
		}
	}
	if c.route.ownScope != "" && (who.app != "" || who.all) && !who.has(c.route.ownScope) {
		return nil
	}
	c.caller = who
	return nil
}

// connector returns what an engine that works with outside systems needs of the service. With off, and while the peer
// may work with them, it asks none.
func (s *server) connector(off bool) connector {
	return connector{store: s.store, keys: s.keys.Load, log: s.log, now: s.now, steady: s.steady,
		noteFault: s.noteFault, doubted: s.clockDoubted, wake: make(chan struct{}, 1),
		idle: func() bool { return off || s.peer.holds() }}
}

// address returns the key under which the rate limits count the client's address.
func (s *server) address(r *http.Request) string { return addressKey(s.client(r), networkOfClient) }

// client returns the client's address. The peer of a Unix socket has none; it is on this machine, so it counts as
// loopback.
func (s *server) client(r *http.Request) netip.Addr {
	peer := r.RemoteAddr
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		peer = "127.0.0.1"
	}
	return clientAddress(peer, r.Header.Values("X-Forwarded-For"), s.trusted)
}

// scrubWAL truncates the write-ahead log, so that it no longer holds what was erased. It waits up
// to patience for open transactions to end; if they don't, runChores tries again later.
func (s *server) scrubWAL(patience time.Duration) {
	switch later, err := s.store.scrubWAL(patience); {
	case err != nil && !later:
		s.log.Warn("what was erased stays in the write-ahead log until nobody has a transaction open",
			"error", err.Error())
	case err == nil && later:
		s.log.Info("the write-ahead log was truncated: nothing that was erased is left in it")
	}
}

// limitAddress takes a token from the bucket that an address has for the named limit on
// anonymous callers, or returns a refusal (429).
func (s *server) limitAddress(limit, address string, rate int) error {
	v := s.addressBuckets.take(limit+" "+address, rate, s.steady())
	return errOver(v, limitNamed(addressLimit, rate), "Too many requests from this address.")
}

// limitNamed returns a limit of rate requests a minute, for errOver.
func limitNamed(name string, rate int) limitReached { return limitReached{name: name, rate: rate} }

// bearsOwnToken reports whether the call has a token that acts for an account, not a device's.
func (c *call) bearsOwnToken() bool { return c.caller != nil && !c.caller.claims.isDevice() }

// bucket returns the name of the bucket that the call is charged to.
func (c *call) bucket() string {
	if c.bearsOwnToken() {
		return bucketAccount
	}
	return cmp.Or(c.route.bucket, bucketAccount)
}

// charge takes a token from one of the account's buckets and sets the RateLimit headers
// (draft-ietf-httpapi-ratelimit-headers-11). It refuses when the bucket is empty (429). An application's
// token takes from a bucket of the application's first, which is half as large, so that one application
// leaves the other half to the account's own tokens and to others.
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
		return nil // a device token whose account is missing in a database that was restored
	}
	if err != nil {
		return err
	}
	w.account = a.ID
	bucket, now := c.bucket(), s.steady()
	key := bucket + " " + a.ID
	if c.caller == nil && c.route.shared {
		return s.chargeShare(w, c, a, bucket, now)
	}
	if c.caller == nil || c.caller.app == "" {
		v := s.accountBuckets.take(key, a.Rate, now)
		showLimit(w.Header(), bucket, a.Rate, v)
		return errOver(v, limitReached{}, overAccount)
	}
	half := max(1, a.Rate/2)
	v := s.accountBuckets.take("app "+c.caller.app+" "+a.ID, half, now)
	if !v.ok {
		showLimit(w.Header(), bucket, a.Rate, s.accountBuckets.look(key, a.Rate, now))
		showLimit(w.Header(), bucketApplication, half, v)
		return errOver(v, limitReached{},
			"The application's share of the account's requests of this minute is used up.")
	}
	whole := s.accountBuckets.take(key, a.Rate, now)
	showLimit(w.Header(), bucket, a.Rate, whole)
	showLimit(w.Header(), bucketApplication, half, v)
	return errOver(whole, limitReached{}, overAccount)
}

// chargeShare is charge for a bucket that the addresses of anonymous callers share (contract, section 2). While
// others ask, one address gets at most half of it, refilled at half the rate; and the last tenth is kept for
// addresses that took nothing within the last minute. So whoever floods a bucket leaves it to others.
func (s *server) chargeShare(w *response, c *call, a account, bucket string, now time.Time) error {
	network := addressKey(s.client(c.request), networkOfSite)
	half, who := max(1, a.Rate/2), bucket+" "+a.ID+" "+network
	share := s.addressBuckets.take("share "+who, half, now)
	if s.askers.note(a.ID, network, now) && !share.ok {
		showLimit(w.Header(), bucket, a.Rate, s.accountBuckets.look(bucket+" "+a.ID, a.Rate, now))
		return errOver(share, limitNamed(shareLimit, half), "While others ask, one address gets at most half of the "+
			"account's requests.")
	}
	keep := 0
	if s.addressBuckets.look("recent "+who, 1, now).remaining == 0 {
		keep = a.Rate / 10
	}
	v := s.accountBuckets.takeSome(bucket+" "+a.ID, a.Rate, 1, keep, now)
	showLimit(w.Header(), bucket, a.Rate, v)
	if v.ok {
		s.addressBuckets.empty("recent "+who, 1, now)
	}
	return errOver(v, limitReached{}, overAccount)
}

// Names that answers give to limits.
const (
	addressLimit = "address"  // on anonymous callers of one address
	failedLimit  = "failures" // on different keys, and proofs of applications, that fail from one address
	shareLimit   = "share"    // on one address' part of a bucket
)

// errOver returns the refusal of a request that was over a limit; nil: it was not. A limit without a name is one
// that the headers of the answer show already.
func errOver(v takeResult, of limitReached, detail string) error {
	if v.ok {
		return nil
	}
	of.remaining, of.full = v.remaining, v.full
	return errRate(of, detail, v.retry)
}

const overAccount = "The account's requests of this minute are used up."

// showLimit adds what a bucket holds to the RateLimit headers, as another element of their lists.
func showLimit(h http.Header, bucket string, rate int, v takeResult) {
	add := func(name, item string) {
		if before := h.Get(name); before != "" {
			item = before + ", " + item
		}
		h.Set(name, item)
	}
	add("RateLimit-Policy", `"`+bucket+`";q=`+strconv.Itoa(rate)+`;w=60`)
	add("RateLimit", `"`+bucket+`";r=`+strconv.Itoa(v.remaining)+`;t=`+strconv.Itoa(wholeSeconds(v.full)))
}

// actorToken returns the actor of events for a call with a token: "token tok_…", "operator tok_…" where the
// token has the scope admin, or for an application's "app app_…".
func actorToken(c *call) string {
	switch {
	case c.caller.app != "":
		return appActor(c.caller.app)
	case c.caller.admin():
		return actorOperator + " " + c.caller.claims.ID
	}
	return "token " + c.caller.claims.ID
}
