package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
