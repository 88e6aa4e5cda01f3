package main

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	exposedHeaders = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key"
)

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
	if !refused || c.origin.owner != "" {
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
