package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

const (
	exposedHeaders = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key"
)

// An originCheck is what is known about a request's Origin.
type originCheck struct {
	given   bool
	account string // the account that lists it; "": nobody
	err     error  // why that could not be found out
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
		check.account, check.err = s.cachedOriginOwner(origin)
		if errors.Is(check.err, errNotFound) {
			check.err = nil
		}
	}
	if check.account != "" {
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
		if check.account == "" {
			s.fail(w, r, errOrigin)
			return
		}
		h.Del("Access-Control-Expose-Headers")
		h.Set("Access-Control-Allow-Methods", strings.Join(allowed, ", "))
		h.Set("Access-Control-Allow-Headers", allowedHeaders)
		h.Set("Access-Control-Max-Age", "7200")
		s.write(w.(*response), reply{status: http.StatusNoContent})
	case r.Method == http.MethodOptions:
		h.Set("Allow", strings.Join(append(allowed, "OPTIONS"), ", "))
		s.write(w.(*response), reply{status: http.StatusNoContent})
	default:
		h.Set("Allow", strings.Join(append(allowed, "OPTIONS"), ", "))
		s.fail(w, r, &refusal{code: codeMethod, detail: "This path answers " + strings.Join(allowed, ", ") + "."})
	}
}

var (
	corsProblems problemTable

	codeOrigin = corsProblems.add(403, "origin_not_allowed", "Origin not allowed",
		"This site is not listed as an origin. Its operator can add it.")

	errOrigin = &refusal{code: codeOrigin}
)

func (c *call) judgeOrigin() error {
	refused := c.route.origin == originListed && c.origin.given || c.route.origin == originRequired
	if !refused || c.origin.account != "" {
		return nil
	}
	if c.origin.err != nil {
		return c.origin.err
	}
	return errOrigin
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
