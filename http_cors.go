package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
)

const (
	exposedHeaders = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key"
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
		check.err = notUnless(check.err, errNotFound)
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
func (p *pathRules) closed() bool { return p.origin == originApp || p.origin == originNone }

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
		"The origin of this site is not on the list of allowed origins. The operator of the service can add it.")

	errOrigin = &refusal{code: codeOrigin}
)

// checkOrigin returns a refusal if the route requires a listed Origin and the request's is
// not one or is missing, or the error of the look-up.
func (c *call) checkOrigin() error {
	refused := c.route.origin == originListed && c.origin.given || c.route.origin == originRequired
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
