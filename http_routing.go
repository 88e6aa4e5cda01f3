package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A routing is the mux for one set of base addresses. It is replaced when those change.
type routing struct {
	mux      *http.ServeMux
	bases    []baseAddress
	prefixes []string                 // their paths, the current one first
	root     string                   // scheme and host of the current one
	resource string                   // last parameter of a 401's Bearer challenge (RFC 9728, section 5.1)
	members  map[string][]extraMember // of problems, by path relative to the base address
}

var errNoBaseURL = errors.New("the database has no base address: run 'widgetd base-url set URL'")

// refresh rebuilds the mux when the base addresses have changed.
func (s *server) refresh() error {
	if s.store.standsBy() { // then nobody knows the base addresses
		s.routing.CompareAndSwap(nil, &routing{mux: http.NewServeMux()})
		return nil
	}
	bases, err := s.store.baseURLs()
	if err != nil {
		return err
	}
	if old := s.routing.Load(); old != nil && slices.Equal(old.bases, bases) {
		return nil
	}
	if len(bases) == 0 || !bases[0].Current {
		return errNoBaseURL
	}
	rt := &routing{mux: http.NewServeMux(), bases: bases, members: map[string][]extraMember{}}
	for _, base := range bases {
		normal, prefix, err := parseBaseURL(base.URL)
		if err != nil {
			return err
		}
		if rt.root == "" {
			rt.root = strings.TrimSuffix(normal, prefix)
			rt.resource = `, resource_metadata="` + rt.root + resourceMetadataPath + prefix + `"`
		}
		if !slices.Contains(rt.prefixes, prefix) {
			rt.prefixes = append(rt.prefixes, prefix)
		}
	}
	if err := s.register(rt); err != nil {
		return err
	}
	s.routing.Store(rt)
	return nil
}

// register adds every path to the mux, with an answer to the methods that it does not have.
func (s *server) register(rt *routing) error {
	paths := map[string]*pathRules{}
	for i := range s.routes {
		r := &s.routes[i]
		if paths[r.path()] == nil {
			paths[r.path()] = &pathRules{}
		}
		paths[r.path()].add(r)
		if len(r.members) > 0 {
			rt.members[r.path()] = r.members
		}
		for _, prefix := range rt.prefixes {
			of := &pathRules{open: r.open, origin: r.origin}
			rt.handle(r.method()+" "+prefix+r.path(), of, func(w *response, req *http.Request) { s.serve(w, req, r) })
			if r.method() == http.MethodGet {
				s.leadFromSlash(rt, prefix+r.path(), of)
			}
		}
	}
	for _, r := range s.routes {
		p, of := r.path(), paths[r.path()]
		if of == nil {
			continue // done already, for an earlier route of this path
		}
		delete(paths, p)
		of.methods, of.appMethods = withHead(of.methods), withHead(of.appMethods)
		for _, prefix := range rt.prefixes {
			rt.handle(prefix+p, of, func(w *response, req *http.Request) {
				w.refuse = s.refusals[cmp.Or(of.first.page, of.first.form)]
				s.otherMethod(w, req, of)
			})
		}
	}
	if err := s.registerRoots(rt); err != nil {
		return err
	}
	rt.handle("/", &pathRules{}, s.pathNotFound)
	return nil
}

// registerRoots is the part of register for the paths outside the base addresses.
func (s *server) registerRoots(rt *routing) error {
	for _, root := range s.roots {
		if strings.HasSuffix(root.path, "/") {
			continue // ServeHTTP matches these itself
		}
		of := &pathRules{methods: []string{"GET", "HEAD"}, open: root.open}
		paths := []string{root.path}
		if root.ofBase {
			paths[0] += rt.prefixes[0]
		}
		if root.more != nil {
			more, err := root.more(rt.bases)
			if err != nil {
				return err
			}
			paths = append(paths, more...)
		}
		for _, p := range paths {
			rt.handle("GET "+p, of, root.serve)
			s.leadFromSlash(rt, p, of)
			rt.handle(p, of, func(w *response, req *http.Request) { s.otherMethod(w, req, of) })
		}
	}
	return nil
}

// leadFromSlash has GET and HEAD of a path with a slash too many at its end answered with 308, to the path itself. The
// target is made of the path's pattern, whose wildcards are escaped anew, so that it never leads to another host. A
// well-known path is what its standard says to the letter: with a slash it is that of another issuer (RFC 8414).
func (s *server) leadFromSlash(rt *routing, pattern string, of *pathRules) {
	if strings.HasSuffix(pattern, "/{$}") || strings.HasPrefix(pattern, "/.well-known/") {
		return
	}
	rt.handle("GET "+pattern+"/{$}", of, func(w *response, r *http.Request) {
		steps := strings.Split(pattern, "/")
		for i, step := range steps {
			if name, wild := strings.CutPrefix(step, "{"); wild {
				steps[i] = url.PathEscape(r.PathValue(strings.TrimSuffix(name, "}")))
			}
		}
		to := strings.Join(steps, "/")
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		s.write(w, reply{status: http.StatusPermanentRedirect, headers: []header{{"Location", to}}})
	})
}

// handle adds f to the mux. The rules in of decide which origins' scripts may read its answers.
func (rt *routing) handle(pattern string, of *pathRules, f func(*response, *http.Request)) {
	rt.mux.HandleFunc(pattern, func(inner http.ResponseWriter, r *http.Request) {
		w := inner.(*response)
		switch {
		case of.open:
			allowEveryOrigin(w)
		case of.closed():
			forbidOrigins(w)
		}
		f(w, r)
	})
}

// pathNotFound answers a path that the service does not have: a browser that asks for a page gets one.
func (s *server) pathNotFound(w *response, r *http.Request) {
	if wantsPage(r) {
		w.refuse = func(_ *http.Request, ref *refusal, _ string) *reply {
			return lostTemplate.renderRefusal(ref.code.status, nil)
		}
	}
	s.fail(w, r, &refusal{code: codeNotFound, detail: "There is nothing at this path."})
}

// lostTemplate makes the page of an address that does not exist.
var lostTemplate = pageTemplateOf("lost.html", "")

// wantsPage reports whether a browser asks for a page, rather than a program for an answer.
func wantsPage(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// inBase returns the part of a path after the path of a base address, and whether it is below one.
func (rt *routing) inBase(p string) (string, bool) {
	for _, prefix := range rt.prefixes {
		if rest, ok := strings.CutPrefix(p, prefix); ok && (rest == "" || rest[0] == '/') {
			return rest, true
		}
	}
	return "", false
}

const (
	exposedHeaders = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag, " +
		"Preference-Applied"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key, Prefer"
)

// An originCheck is the result of looking up a request's Origin.
type originCheck struct {
	given   bool
	origin  string // in its normal form; "": not a valid origin, or not given
	account string // that lists it; "": none does
	err     error  // why the look-up failed
}

// originKey is the key of the originCheck in a request's context.
type originKey struct{}

// withOrigin looks up the request's Origin, adds the CORS headers of the response if an
// account lists it, and returns the request with an originCheck in its context. A request
// without Origin, as most are, is returned as it is.
func (s *server) withOrigin(w *response, r *http.Request) *http.Request {
	values := r.Header["Origin"]
	if len(values) == 0 {
		return r
	}
	check := originCheck{given: true}
	if origin, err := parseOrigin(values[0]); err == nil && len(values) == 1 {
		check.origin = origin
		check.account, check.err = s.origins.loadBy(s.store, origin, s.store.originOwner)
		check.err = except(check.err, errNotFound)
	}
	if check.account != "" {
		allowOrigin(w, r)
	}
	return r.WithContext(context.WithValue(r.Context(), originKey{}, check))
}

// allowOrigin lets scripts of the request's own Origin read the answer.
func allowOrigin(w *response, r *http.Request) {
	w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	w.Header().Set("Access-Control-Expose-Headers", exposedHeaders)
}

// forbidOrigins takes back what withOrigin allowed.
func forbidOrigins(w *response) {
	w.Header().Del("Access-Control-Allow-Origin")
	w.Header().Del("Access-Control-Expose-Headers")
}

// allowEveryOrigin lets scripts of every site read an answer that is the same for everybody.
func allowEveryOrigin(w *response) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", exposedHeaders)
	h.Del("Vary") // the Origin makes no difference
}

// pathRules are what the routes of one path, or a root path, have in common.
type pathRules struct {
	methods    []string // sorted, with HEAD
	appMethods []string // those that applications may call from scripts of their own origins
	open       bool     // as route.open
	origin     originRule
	first      *route // nil: a root path
}

// add adds a route of the path. Once all are added, the caller passes the methods to withHead.
func (p *pathRules) add(r *route) {
	if p.first == nil {
		p.first = r
	}
	p.methods = append(p.methods, r.method())
	if r.token == tokenRequired && r.origin == originAny || r.origin == originApp {
		p.appMethods = append(p.appMethods, r.method())
	}
	p.open = p.open || r.open
	p.origin = max(p.origin, r.origin)
}

// closed reports whether the origins that accounts list make no difference to the path.
func (p *pathRules) closed() bool { return p.origin >= originApp }

// preflight returns the methods that scripts of an origin may use. Errors: errOrigin, those of the store.
func (s *server) preflight(check originCheck, of *pathRules) ([]string, error) {
	switch {
	case of.open:
		return of.methods, nil
	case check.err != nil:
		return nil, check.err
	case check.account != "" && !of.closed():
		return of.methods, nil
	case check.origin == "" || len(of.appMethods) == 0:
		return nil, errOrigin
	}
	return of.appMethods, replaced(s.checkAppOrigin(check.origin), errNotFound, errOrigin)
}

// otherMethod answers a method that a path does not have. OPTIONS with an Origin is a
// preflight: 204 with the allowed methods, or 403 for an Origin to which none is allowed.
// OPTIONS without one is 204 with Allow; every other method is 405.
func (s *server) otherMethod(w *response, r *http.Request, of *pathRules) {
	h := w.Header()
	check, _ := r.Context().Value(originKey{}).(originCheck)
	switch {
	case r.Method == http.MethodOptions && (check.given || of.open && r.Header["Origin"] != nil):
		allowed, err := s.preflight(check, of)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if !of.open {
			allowOrigin(w, r)
		}
		h.Del("Access-Control-Expose-Headers")
		h.Set("Access-Control-Allow-Methods", strings.Join(allowed, ", "))
		h.Set("Access-Control-Allow-Headers", allowedHeaders)
		h.Set("Access-Control-Max-Age", "7200")
		s.write(w, reply{status: http.StatusNoContent})
	case r.Method == http.MethodOptions:
		h.Set("Allow", strings.Join(of.methods, ", ")+", OPTIONS")
		s.write(w, reply{status: http.StatusNoContent})
	default:
		h.Set("Allow", strings.Join(of.methods, ", ")+", OPTIONS")
		detail := "This path allows only the methods " + strings.Join(of.methods, ", ") + "."
		s.fail(w, r, &refusal{code: codeMethod, detail: detail})
	}
}

var (
	corsProblems problemTable

	codeOrigin = corsProblems.add(403, "origin_not_allowed", "Origin not allowed",
		"The origin of this site is not on the list of allowed origins. The operator of the service can add it.",
		"Have the operator list the site. Events need an `Origin`, and one of the widget's account.")

	errOrigin = &refusal{code: codeOrigin}
)

// checkOrigin returns a refusal if the route requires a listed Origin and the request's is not one or is missing,
// or if it refuses forms of other sites and the request is one, or the error of the look-up.
func (s *server) checkOrigin(c *call) error {
	if c.core.route.origin == originOwn && s.crossOrigin.Check(c.request) != nil {
		return errOrigin
	}
	refused := c.core.route.origin == originListed && c.origin.given || c.core.route.origin == originRequired
	if !refused || c.origin.account != "" {
		return nil
	}
	if c.origin.err != nil {
		return c.origin.err
	}
	if !c.origin.given {
		const detail = "This call needs an Origin header, which browsers send for a page of the widget's site."
		return &refusal{code: codeOrigin, detail: detail}
	}
	return errOrigin
}

// withHead returns methods sorted, with HEAD if GET is one: net/http answers HEAD there too.
func withHead(methods []string) []string {
	all := slices.Clone(methods)
	if slices.Contains(all, "GET") {
		all = append(all, "HEAD")
	}
	slices.Sort(all)
	return all
}

// What a handler asks of the core before it decides: that its caller is charged, that what is wrong is refused, and
// whose rows the call acts on.

// acquireSlot waits for the turn of a question; it is over when the handler returns. Errors: that of ctx.
func (s *server) acquireSlot(ctx context.Context, c *call) (err error) {
	c.core.release, err = s.listSlots.acquire(ctx, c.core.client)
	return err
}

// clientOf returns whom what a call takes is counted for. The bearer of a device's token counts by address.
func (s *server) clientOf(c *call) client {
	switch {
	case !c.bearsOwnToken():
		return client{clientIsAddress, s.address(c.request)}
	case c.caller.app != "":
		return client{clientIsApp, c.caller.limitedAs()}
	}
	return client{clientIsAccount, c.caller.claims.Subject}
}

// endQuestion gives back the place of a question, if the call has one.
func (c *call) endQuestion() {
	if c.core.release != nil {
		c.core.release()
		c.core.release = nil
	}
}

// finish ends the reading of a request, and gives back the memory that its body took. It returns a refusal that
// names every wrong member and parameter; nil: all are right.
func (c *call) finish() error {
	if c.core.route.token == tokenRequired {
		c.in.refuseUnknownParameters()
	}
	wrong := c.in.err()
	if !c.core.route.readsLater {
		c.core.parsed = jsonValue{}
		if c.core.idemKey == "" { // else the body is compared
			c.core.body = nil
		}
		c.core.held.set(int64(len(c.core.body))) // less than before, which never fails
	}
	return wrong
}

// finishReading ends the reading of a request: it charges the account of its token, or else the one that owns its
// Origin, then refuses what was wrong (422), and waits for the turn of a question.
func (s *server) finishReading(ctx context.Context, c *call) error {
	account := c.origin.account
	if c.caller != nil {
		account = c.caller.claims.Subject
	}
	wrong := c.finish()
	if c.isCommand() {
		return wrong
	}
	if !c.core.route.free {
		if err := s.charge(c, account); err != nil {
			return err
		}
	}
	if wrong != nil {
		return wrong
	}
	if c.core.route.question {
		return s.acquireSlot(ctx, c)
	}
	return nil
}

// finishReadingFor is finishReading for calls with a token that may name an account with ?account_id=. It returns
// whose rows the call acts on, see ownerOf.
func (s *server) finishReadingFor(ctx context.Context, c *call) (owner, error) {
	named := c.in.accountID()
	if err := s.finishReading(ctx, c); err != nil {
		return owner{}, err
	}
	return s.ownerOf(c, named)
}

// ownerOf returns whose rows a call acts on: those of the account that owns its token or, if the token may name any
// account, of the named one. An operator's call that names none acts on the rows of every account, one without a
// token on none. Errors: a refusal for a missing scope (403), errAccount.
func (s *server) ownerOf(c *call, named string) (owner, error) {
	who := c.caller
	switch {
	case who == nil:
		return owner{}, nil
	case named == "" && who.admin():
		return anyAccount, nil
	case named == "" || named == who.claims.Subject:
		return owner{account: who.claims.Subject, app: who.app}, nil
	case !who.all:
		return owner{}, errScope(scopeAdmin, "The token acts on its own account only.")
	}
	row, err := s.store.account(named)
	if errors.Is(err, errNotFound) || err == nil && !row.ClosedAt.IsZero() && !who.admin() {
		return owner{}, errAccount
	}
	return ownedBy(named), err
}

// narrowToOne narrows an owner to one account: the caller's own if the call acts on the rows of every account.
func (c *call) narrowToOne(o owner) owner {
	if o == anyAccount {
		return ownedBy(c.caller.claims.Subject)
	}
	return o
}

// bucketAccount is the token bucket that each account has for calls with its own tokens (contract, section 2), by
// the name that answers give it. Nouns declare buckets for calls without such a token, so that no kind of call can
// use up the requests of another.
const bucketAccount = "account"

// bucketApplication is the name that answers give to an application's half of bucketAccount.
const bucketApplication = "application"

// address returns the key under which the rate limits count the client's address.
func (s *server) address(r *http.Request) string { return addressKey(s.client(r), networkOfClient) }

// client returns the client's address.
func (s *server) client(r *http.Request) netip.Addr { return clientOf(r, s.trusted) }

// clientOf returns the address of who makes a request, see clientAddress. The peer of a Unix socket has none; it is on
// this machine, so it counts as loopback.
func clientOf(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer := r.RemoteAddr
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		peer = "127.0.0.1"
	}
	return clientAddress(peer, r.Header.Values("X-Forwarded-For"), trusted)
}

// limitAddress takes a token from the bucket that an address has for the named limit on
// anonymous callers, or returns a refusal (429).
func (s *server) limitAddress(limit, address string, rate int) error {
	v := s.addressBuckets.take(limit+" "+address, rate, s.monotonic())
	return errOver(v, limitNamed(addressLimit, rate), "Too many requests from this address.")
}

// limitOwnAddress is limitAddress for a call whose handler takes the limit of its route from the address itself.
func (s *server) limitOwnAddress(c *call) error {
	return s.limitAddress(c.core.route.ownAddress, s.address(c.request), s.anonymousRate)
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
	return cmp.Or(c.core.route.bucket, bucketAccount)
}

// charge takes a token from one of an account's buckets and sets the RateLimit headers
// (draft-ietf-httpapi-ratelimit-headers-11); "" is nobody's. It refuses when the bucket is empty (429). An
// application's token takes from a bucket of the application's first, which is half as large, so that one
// application leaves the other half to the account's own tokens and to others.
func (s *server) charge(c *call, account string) error {
	a, err := s.payer(c, account)
	if err != nil || a.ID == "" {
		return err
	}
	w, bucket, now := c.response, c.bucket(), s.monotonic()
	key := bucket + " " + a.ID
	if c.caller == nil || c.caller.app == "" {
		v := s.accountBuckets.take(key, a.Rate, now)
		showLimit(w.Header(), bucket, a.Rate, v)
		return errOver(v, limitReached{}, overAccount)
	}
	half := max(1, a.Rate/2)
	v := s.accountBuckets.take("app "+c.caller.limitedAs()+" "+a.ID, half, now)
	if !v.ok {
		showLimit(w.Header(), bucket, a.Rate, s.accountBuckets.peek(key, a.Rate, now))
		showLimit(w.Header(), bucketApplication, half, v)
		return errOver(v, limitReached{},
			"The application's share of the account's requests of this minute is used up.")
	}
	whole := s.accountBuckets.take(key, a.Rate, now)
	showLimit(w.Header(), bucket, a.Rate, whole)
	showLimit(w.Header(), bucketApplication, half, v)
	return errOver(whole, limitReached{}, overAccount)
}

// payer notes which account a call is charged to, and returns it; without an id: none.
func (s *server) payer(c *call, id string) (account, error) {
	if c.core.account = id; id == "" {
		return account{}, nil
	}
	a, err := s.cachedAccount(id)
	c.response.account = a.ID
	return a, except(err, errNotFound) // a device token's account may be missing in a database that was restored
}

// chargeShare is charge for calls without a token whose addresses share a bucket (contract, section 2). While
// others ask, one address gets at most half of it, refilled at half the rate; and the last tenth is kept for
// addresses that took nothing within the last minute. So whoever floods a bucket leaves it to others.
func (s *server) chargeShare(c *call, account string) error {
	a, err := s.payer(c, account)
	if err != nil || a.ID == "" {
		return err
	}
	w, bucket, now := c.response, c.bucket(), s.monotonic()
	network := addressKey(s.client(c.request), networkOfSite)
	half, who := max(1, a.Rate/2), bucket+" "+a.ID+" "+network
	share := s.addressBuckets.take("share "+who, half, now)
	if s.lastAddresses.note(a.ID, network, now) && !share.ok {
		showLimit(w.Header(), bucket, a.Rate, s.accountBuckets.peek(bucket+" "+a.ID, a.Rate, now))
		return errOver(share, limitNamed(shareLimit, half), "While others ask, one address gets at most half of the "+
			"account's requests.")
	}
	keep := 0
	if s.addressBuckets.peek("recent "+who, 1, now).remaining == 0 {
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

// isCommand reports whether the operator makes the call at the command line, see routeCommand.
func (c *call) isCommand() bool { return c.caller != nil && c.caller.command != "" }

// actorToken returns the actor of events for a call with a token.
func actorToken(c *call) string { return c.caller.actor() }

// A client is whom the memory and the turns of a call are counted for: the account of its token, or an application
// over all accounts, or without a token of either an address.
type client struct{ kind, name string }

const (
	clientIsAccount = "account"
	clientIsApp     = "application"
	clientIsAddress = "address"
)

const (
	heldAtOnce  = 64 << 20 // bytes of memory that are held for callers, see heldMemory
	smallAnswer = 64 << 10 // bytes of an answer for which nothing is held
)

var errHeld = &refusal{code: codeBusy, retryAfter: time.Second,
	detail: "Too much is being received or sent at a time. Try again shortly."}

// A heldMemory is the memory that is held for a call: for its body as that arrives, while it is parsed, and for a large
// answer until that is written. A client has at most an eighth of heldAtOnce, and all applications and all addresses
// half each, so that others always get their part. The zero value, that of a command, counts nothing.
type heldMemory struct {
	in    *counter[client] // with no name: of all of a kind, with no kind: of all
	under []ceiling[client]
	bytes int64
}

// newHeldMemory returns what is held for a call of a client, nothing yet, and is counted in a counter.
func newHeldMemory(in *counter[client], who client) heldMemory {
	under := []ceiling[client]{{who, heldAtOnce / 8}, {client{}, heldAtOnce}}
	if who.kind != clientIsAccount {
		under = append(under, ceiling[client]{client{kind: who.kind}, heldAtOnce / 2})
	}
	return heldMemory{in, under, 0}
}

// set sets how many bytes are held; more than an eighth count as that. Holding less never fails. Errors: errHeld, at
// once.
func (h *heldMemory) set(bytes int64) error {
	more := min(bytes, heldAtOnce/8) - h.bytes
	if h.in == nil || more == 0 {
		return nil
	}
	if h.in.add(more, h.under...) != nil {
		return errHeld
	}
	h.bytes += more
	return nil
}

// A question is a request for a list or for statistics of a range: it may read thousands of rows,
// where a look-up reads one. Only a few run at a time, so that questions do not delay look-ups, and
// the questions of one client do not delay those of others for long.
const (
	questionTimeout      = 2 * time.Second // for waiting and for the answer
	questionsAtOnce      = readerConns - 1 // each uses one connection, and one is left for look-ups
	questionsOfOneClient = 2
)

var errSlowQuestion = &refusal{code: codeBusy, retryAfter: 5 * time.Second,
	detail: "This could not be read within 2 seconds. Try again shortly, with fewer requests at a time."}

// The listSlots are what a question waits for: first its client's own, then, without a token, that of all callers
// without one, then everybody's. Before each it waits for those that came earlier. So clients take turns: a question
// waits for at most questionsOfOneClient of each other client, however many those have asked.
type listSlots struct {
	timeout   time.Duration // of a question
	mu        sync.Mutex
	own       map[client]*clientSlots // has an entry only while a question of the client runs or waits
	anonymous slots
	all       slots
}

// slots are held by as many questions at a time as their channel has room for.
type slots chan struct{}

// A clientSlots has those of one client's questions.
type clientSlots struct {
	slots
	questions int // that run or wait
}

// newListSlots makes slots that let most questions run at a time, at least two; of callers without a token one less.
func newListSlots(most int) *listSlots {
	return &listSlots{timeout: questionTimeout, own: map[client]*clientSlots{}, anonymous: make(slots, most-1),
		all: make(slots, most)}
}

// acquire waits until a question may run, and returns a function that lets the next one in, to be called once. Errors:
// that of ctx, if it ends first.
func (d *listSlots) acquire(ctx context.Context, who client) (release func(), err error) {
	way := []slots{d.begin(who), d.all}
	if who.kind == clientIsAddress {
		way = slices.Insert(way, 1, d.anonymous)
	}
	passed := 0
	release = func() {
		for _, behind := range way[:passed] {
			<-behind
		}
		d.end(who)
	}
	for _, next := range way {
		select {
		case next <- struct{}{}:
			passed++
		case <-ctx.Done():
			release()
			return nil, ctx.Err()
		}
	}
	return release, nil
}

// begin returns the slots of a client, for one more question.
func (d *listSlots) begin(who client) slots {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := d.own[who]
	if own == nil {
		own = &clientSlots{slots: make(slots, questionsOfOneClient)}
		d.own[who] = own
	}
	own.questions++
	return own.slots
}

// end removes the slots of a client that has no question left.
func (d *listSlots) end(who client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own[who].questions--; d.own[who].questions == 0 {
		delete(d.own, who)
	}
}
