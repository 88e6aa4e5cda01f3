package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A module is what a noun adds to a running service: its routes and its background work. It owns the state
// that it keeps in memory.
type module struct {
	routes  []route
	roots   []rootPath
	chores  []chore
	workers []func(ctx context.Context) // run beside the service; they return soon after ctx ends
	metrics []metric
	counts  map[string]func() int64 // since the start, by names in daily_counts

	// Each removes up to limits.swept rows whose retention has ended, in a transaction of its own, and returns how many
	// it has removed.
	sweeps []func(t *tx) (int64, error)

	refusals map[string]refusalForm // by the names in its routes
}

// A route is one endpoint of the contract: who may call it, what is checked before its handler runs, and the
// handler, its only function. The mux, the methods in answers to preflights, the legacy paths and the tests of the
// documents all use this table.
type route struct {
	pattern    string        // as net/http's, with a path relative to the base address
	token      tokenRule     // whether it needs a bearer token
	scope      string        // scopes that a token must have, space-separated; "": none
	ownScope   string        // scope without which a token of an application or for all accounts is ignored; "": none
	noApps     bool          // takes no token of an application
	origin     originRule    // which Origins it accepts
	address    string        // name of the rate limit by address for anonymous callers, before the body; "": none
	ownAddress string        // as address, of a limit that its handler takes from itself
	bucket     string        // the account's bucket for calls without a token of its own; "": bucketAccount
	free       bool          // never charged to an account
	open       bool          // scripts of every site may read the answer, not only those of listed origins
	beacon     bool          // also accepts JSON as text/plain, which needs no preflight
	noBody     bool          // every member may be absent, so that an empty body stands for {}
	creates    bool          // each request adds something: honours Idempotency-Key
	careful    bool          // moves money or makes something: refuses members that it does not know
	body       int64         // largest body in bytes; 0: maxBody, with raw maxRawBody
	values     int           // most JSON values in a body, or fields of a form; 0: maxBodyValues, or maxFields
	noQuery    bool          // the query is not read
	repeatable time.Duration // for which an Idempotency-Key is honoured; 0: a day
	readsLater bool          // members are read after the charge, too, so the parsed body is kept until run returns
	raw        bool          // takes a body of any type as it is, which its handler has read (call.receive)
	question   bool          // reads a list or a range: has its turn (listSlots), and ends after questionTimeout
	members    []extraMember // extra members of every problem on its path

	// page and form are names of module.refusals, which show every refusal on its path; all routes of one path have the
	// same. With either, the route takes a form instead of JSON, whose fields are read like members that are strings.
	page string // it is for people, and the OpenAPI document lacks it; "": it is for programs
	form string // it is for programs, in the form that a standard requires; "": JSON and problems

	refuses string // the codes of its own refusals, space-separated; others follow from the rest

	answers  answerForm
	endpoint *endpoint
	run      handler // in place of endpoint: of pages for people, and where nothing else fits
}

// An answerForm is what the type of an answer does not say of it. The zero answerForm is JSON with status 200.
type answerForm struct {
	empty  int    // its status, if it has no body; 0: it has one
	media  string // the type of its body; "": JSON
	also   int    // another status that has the same body; 0: there is none
	tagged bool   // it has an ETag
	static bool   // it has an ETag and needs no database
	cached bool   // caches may keep it for a while
}

// A handler carries out a request and returns the answer: a *reply, a *staticFile, or any other value as JSON with
// status 200. In this order it reads all members and parameters from c.in, has the caller charged, which ends the
// reading and refuses what is wrong (server.finishReading and server.finishReadingFor, or their parts), decides,
// and writes. It never touches the connection. ctx ends with the request, of a question also after questionTimeout.
type handler func(ctx context.Context, c *call) (any, error)

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

	endpoint *endpoint // for the document: what serve answers with, see servedBy; nil: it is described by hand
	answers  answerForm
}

// A chore is background work of a module, done once a second.
type chore struct {
	fault      string // the log line when it fails: "legacy calls can't be counted"
	timeDriven bool   // acts on what the clock says, so it is paused while the clock is doubted
	atEnd      bool   // runs once more when the service stops
	run        func(ctx context.Context) error
}

// every calls f at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
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
	originOwn                        // as originNone, and forms of other sites (CSRF) are refused
)

const (
	maxBody       = 16 << 10 // bytes (contract, section 1)
	maxRawBody    = 64 << 10 // bytes of what other services send
	maxBodyValues = 1000     // values of JSON in a body (contract, section 1)
)

// serverOptions are the options of serve that handlers need.
type serverOptions struct {
	nounOptions
	anonymousRate    int            // requests a minute and address, for each limit on anonymous callers
	visitorRate      int            // events a minute, address and widget from sites of the widget's account
	failedLookupRate int            // different licence keys that may fail a minute and address
	trusted          []netip.Prefix // proxies whose X-Forwarded-For is believed
	outboundAllow    []netip.Prefix // what may be called besides public addresses

	// Base addresses that replace those of outside systems, for tests, by the names of their options: "xero-url".
	urls map[string]string

	statusSocket string      // path of the socket that 'widgetd status' asks; "": none
	noOutside    error       // why nobody outside is asked: the file is a demo's; nil: they are
	accessLog    bool        // log a line for each request
	synchronised func() bool // whether the kernel says that the wall clock is right; nil: it never does
	noRoots      bool        // this machine knows no certificate authority
	supervisor   notifySocket

	// undescribed is told, in tests, of a member or a parameter that a route looks up and does not describe.
	undescribed func(name string)

	// Values that work in the documentation's examples, by the name of the member or parameter; nil: there
	// are none, and readers fill in their own.
	examples map[string]string
}

// A server answers every request. Make one with newServer.
type server struct {
	*authenticator
	serverOptions
	nouns          []noun           // that it serves
	monotonic      func() time.Time // a clock that is never set, to measure durations; that of now may be
	log            *slog.Logger
	accountBuckets *limiter // by the bucket's name and account
	addressBuckets *limiter // by the limit's name and what it counts: an address, an order, an application
	lastAddresses  *lastAddresses
	memory         counter[client] // bytes, see heldMemory
	outbound       *outbound
	documents      *clientDocuments
	health         healthCheck
	running        counter[string] // requests with an Idempotency-Key, by what their answers are stored under
	metrics        metrics
	kinds          []trouble // of the nouns
	troubles       countOfTroubles
	repeats        *repeatFilter // the handler of log
	startedAt      time.Time
	keysStale      atomic.Bool // the key file can't be used, so the keys loaded before stay in use
	draining       atomic.Bool
	stopping       chan struct{}  // closed when draining begins
	working        sync.WaitGroup // every goroutine of the service but the writer's and net/http's
	debug          *http.Server   // metrics and profiles; nil: not served
	routes         []route        // of all modules, like roots and chores
	roots          []rootPath
	chores         []chore
	workers        []func(context.Context)
	moduleMetrics  []metric
	moduleCounts   map[string]func() int64 // see module.counts
	sweeps         []func(*tx) (int64, error)
	refusals       map[string]refusalForm
	listSlots      *listSlots // through which questions go
	crossOrigin    *http.CrossOriginProtection
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
	s := &server{authenticator: newAuthenticator(st, keys), serverOptions: o, nouns: of, monotonic: time.Now,
		repeats: newRepeatFilter(log), startedAt: st.now(), stopping: make(chan struct{}),
		outbound: newOutbound(o.outboundAllow), documents: newClientDocuments(o.nounOptions, st),
		accountBuckets: newLimiter(maxAccountBuckets), addressBuckets: newLimiter(maxAddressBuckets),
		lastAddresses: &lastAddresses{max: maxAccountBuckets, accounts: map[string][2]calledFrom{}},
		refusals:      map[string]refusalForm{}, moduleCounts: map[string]func() int64{},
		listSlots: newListSlots(questionsAtOnce), crossOrigin: http.NewCrossOriginProtection()}
	s.log = slog.New(s.repeats)
	s.kinds = troublesOf(of)
	s.startClock()
	s.outbound.blocked = st.waits
	st.faults.onUnreadable(func(row *unreadableRow) { // past the repeatFilter, which would count the tables together
		log.Warn("a row can't be read: lists leave it out, and what needs it fails: run 'widgetd check'",
			"table", row.table, "id", row.id, "error", row.cause)
	})
	for _, m := range modulesOf(of, s) {
		s.routes = append(s.routes, m.routes...)
		s.roots = append(s.roots, m.roots...)
		s.chores = append(s.chores, m.chores...)
		s.workers = append(s.workers, m.workers...)
		s.moduleMetrics = append(s.moduleMetrics, m.metrics...)
		s.sweeps = append(s.sweeps, m.sweeps...)
		maps.Copy(s.refusals, m.refusals)
		maps.Copy(s.moduleCounts, m.counts)
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
	took -= w.waited
	s.metrics.count(w.pattern, w.status, took, w.caller, s.monotonic())
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

// A call is one request to a route, as its handler gets it.
type call struct {
	request  *http.Request
	response *response
	caller   *caller // nil: no token, or none that suffices
	app      *app    // the calling one: scripts of its origins may read the answer, refusals too; nil: none
	origin   originCheck
	now      time.Time // when the request had been read
	in       *input    // members and parameters, until finish, and wildcards of the path
	forced   bool      // by a command with -force
	replay   *reply    // the earlier answer, when the request repeats an Idempotency-Key

	// A handler sets these before create: within what an Idempotency-Key is unique, where that is not the caller's
	// account, and what reports whether an earlier answer to the same request may be given again; nil: always.
	idemScope string
	stillTrue func(t *tx, answer []byte) (bool, error)

	core coreCall
}

// A coreCall is what the core notes of a call on its way, and handlers leave to it.
type coreCall struct {
	route   *route
	bearer  *caller    // the caller, also where the token does not suffice for the route
	client  client     // whom what it takes is counted for
	held    heldMemory // for its body, then for its answer
	account string     // that is charged; "": none
	strict  bool       // every unknown member is refused (RFC 7240)
	body    []byte
	parsed  jsonValue // body, parsed, until finish
	release func()    // gives back the place of a question; nil: it has none
	idemKey string    // the Idempotency-Key; "": none
}

// id returns the id in the path.
func (c *call) id() string { return c.in.pathValue("id") }

// serve answers a request to a route.
func (s *server) serve(writer http.ResponseWriter, r *http.Request, rt *route) {
	w := writer.(*response)
	w.pattern, w.refuse = rt.pattern, s.refusals[cmp.Or(rt.page, rt.form)]
	c := &call{request: r, response: w, core: coreCall{route: rt}}
	if prefersStrict(r.Header["Prefer"]) && rt.takesJSON() {
		c.core.strict = true
		w.Header().Set("Preference-Applied", "handling=strict")
	}
	defer c.core.held.set(0)
	result, err := s.run(c)
	w.caller = callerOf(c)
	if c.core.bearer != nil {
		w.token = c.core.bearer.claims.ID
	}
	if c.app != nil && c.app.listsOrigin(c.origin.origin) {
		allowOrigin(w, r)
	}
	switch {
	case c.replay != nil:
		w.Header().Set("Idempotency-Replayed", "true")
		s.answer(c, c.replay)
	case err != nil:
		s.fail(w, r, err)
	default:
		s.answer(c, result)
	}
}

// run judges a request in the order of the contract, section 1, and returns what its handler returns: origin, token,
// limit by address, and body (415, 413, 400) here; the account's limit, members (422) and effect in the handler.
func (s *server) run(c *call) (any, error) {
	r := c.request
	c.origin, _ = r.Context().Value(originKey{}).(originCheck)
	if err := s.checkOrigin(c); err != nil {
		return nil, err
	}
	if err := s.checkToken(c); err != nil {
		return nil, err
	}
	c.core.client = s.clientOf(c)
	c.core.held = newHeldMemory(&s.memory, c.core.client)
	if c.caller == nil && c.core.route.address != "" {
		if err := s.limitAddress(c.core.route.address, s.address(r), s.anonymousRate); err != nil {
			return nil, err
		}
	}
	var body *jsonValue
	if c.core.route.takesBody() {
		if err := c.readBody(); err != nil {
			return nil, err
		}
		body = &c.core.parsed
		if err := c.readIdempotencyKey(); err != nil {
			return nil, err
		}
	}
	c.now = s.now()
	if c.core.route.noQuery {
		r.URL.RawQuery = ""
	}
	s.startReading(c, body)
	if c.core.route.question {
		return s.runQuestion(r.Context(), c)
	}
	return c.core.route.run(r.Context(), c)
}

// startReading makes the input of a call.
func (s *server) startReading(c *call, body *jsonValue) {
	c.in = newInput(body, c.request)
	if e := c.core.route.endpoint; e != nil {
		c.in.known, c.in.late = e.known(), s.undescribed
	}
	c.in.strict = body != nil && (c.core.strict || c.core.route.careful)
}

// runQuestion runs the handler of a question, which has questionTimeout for waiting and for its answer.
// Errors: also errSlowQuestion.
func (s *server) runQuestion(ctx context.Context, c *call) (any, error) {
	inTime, cancel := context.WithTimeout(ctx, s.listSlots.timeout)
	defer cancel()
	defer c.endQuestion() // also when the handler panics
	answer, err := c.core.route.run(inTime, c)
	_, refused := errors.AsType[*refusal](err)
	if err != nil && !refused && ctx.Err() == nil && errors.Is(inTime.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w (%w)", errSlowQuestion, err)
	}
	return answer, err
}

// checkToken sets the caller of a call from its bearer token, or returns a refusal if the
// route's rules refuse the token or its absence.
func (s *server) checkToken(c *call) error {
	if c.core.route.token == tokenIgnored {
		return nil
	}
	token, err := bearerToken(c.request)
	if err != nil {
		return err
	}
	if token == "" {
		if c.core.route.token == tokenRequired {
			return errTokenRequired
		}
		return nil
	}
	who, err := s.authenticate(token, c.core.route.token == tokenLate)
	if c.core.route.token == tokenRequired && c.origin.origin != "" && c.origin.account == "" {
		app, failed := s.appOf(who, token, c.origin.origin)
		if failed != nil {
			return failed
		}
		c.app = app
	}
	if err != nil {
		return err
	}
	c.core.bearer = who
	for _, scope := range strings.Fields(c.core.route.scope) {
		if !who.has(scope) {
			return errScope(c.core.route.scope, "The token does not have the scope "+scope+".")
		}
	}
	if c.core.route.noApps && who.app != "" {
		return errScope(c.core.route.scope, "This needs a token of the account, not an application's.")
	}
	if c.core.route.ownScope != "" && (who.app != "" || who.all) && !who.has(c.core.route.ownScope) {
		return nil
	}
	c.caller = who
	return nil
}

// connector returns what an engine that works with outside systems needs of the service. With off, and while the
// peer may work with them, it asks none.
func (s *server) connector(off bool) connector {
	return connector{store: s.store, keys: s.keys.Load, log: s.log, now: s.now, monotonic: s.monotonic,
		doubted: s.clockDoubted, wake: make(chan struct{}, 1), noOutside: s.noOutside,
		idle: func() bool { return off || s.noOutside != nil || s.store.waits() }}
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
