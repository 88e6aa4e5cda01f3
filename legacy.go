package main

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// legacyNoun declares the paths that the service had before v1.
func legacyNoun() noun {
	return noun{
		name:     "legacy",
		wings:    func(s *server) []wing { return []wing{legacyWing(s)} },
		commands: legacyCommands,
		problems: legacyProblems,
		status: func() []statusPart {
			return []statusPart{{"legacy callers", true, &legacyStatus{Callers: []legacyCaller{}}}}
		},
	}
}

// The problem codes of legacy paths.
var (
	legacyProblems problemTable

	codeGone = legacyProblems.add(410, "gone", "Gone", "This path has ended.")
)

// A legacyAPI serves the paths that the service had before v1, under /api/legacy/, and counts
// who still calls them.
type legacyAPI struct {
	*server
	counter legacyCounter
}

func legacyWing(s *server) wing {
	a := &legacyAPI{server: s, counter: legacyCounter{calls: map[legacyCall]*legacyCall{}}}
	return wing{
		roots:  []rootPath{{path: legacyPrefix, serve: a.serveLegacy}},
		chores: []chore{{fault: "legacy calls can't be counted", atEnd: true, run: a.flush}},
	}
}

// The operator's command on legacy paths.
var legacyCommands = []command{
	{"legacy list", "", "show who still calls /api/legacy/, the latest day first", []option{optAllRows,
		optAccount.says("show only calls of this account")}, 0, legacyShow},
}

const legacyPrefix = "/api/legacy/"

// deprecation is when v1 went into production and the legacy paths became
// deprecated: 1 April 2026 (RFC 9745).
const deprecation = "@1775001600"

// serveLegacy answers a path under /api/legacy/, and /api/legacy itself: until the sunset with what the v1 path of the
// same name answers, after it with 410. It never redirects, since clients of the legacy paths
// would follow a redirected POST with a GET.
func (a *legacyAPI) serveLegacy(w *response, r *http.Request) {
	rt := a.routing.Load()
	counterpart := r.Clone(r.Context())
	rest := cmp.Or(strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(legacyPrefix, "/")), "/")
	counterpart.URL.Path = rt.prefixes[0] + rest
	counterpart.URL.RawPath = ""
	if raw, ok := strings.CutPrefix(r.URL.EscapedPath(), legacyPrefix); ok {
		counterpart.URL.RawPath = rt.prefixes[0] + "/" + raw
	}
	known, methods := a.v1Route(rt, counterpart)
	unclean := r.URL.Path != cleanPath(r.URL.Path) // the mux would redirect
	if unclean {
		known = ""
	}

	h := w.Header()
	h.Set("Sunset", a.legacySunset.UTC().Format(http.TimeFormat))
	h.Set("Deprecation", deprecation)
	link := "<" + rt.root + `/docs#legacy>; rel="deprecation"; type="text/html"`
	if known != "" {
		successor := rt.bases[0].URL + (&url.URL{Path: rest}).EscapedPath()
		link = "<" + successor + `>; rel="successor-version", ` + link
	}
	h.Set("Link", link)
	h.Add("Vary", "Origin")

	counterpart = a.withOrigin(w, counterpart)
	check, _ := counterpart.Context().Value(originKey{}).(originCheck)
	switch {
	case a.now().Before(a.legacySunset) && unclean:
		a.pathNotFound(w, counterpart)
	case a.now().Before(a.legacySunset):
		rt.mux.ServeHTTP(w, counterpart)
	case r.Method == http.MethodOptions && check.given: // only after its preflight does a browser see the 410
		a.otherMethod(w, counterpart, &pathRules{methods: methods})
	default:
		detail := "This path ended on " + a.legacySunset.UTC().Format(time.DateOnly) + "."
		if known != "" {
			detail += " Use " + rt.bases[0].URL + rest + "."
		}
		w.pattern = "legacy"
		a.fail(w, counterpart, &refusal{code: codeGone, detail: detail})
	}
	if r.Method != http.MethodOptions { // a preflight is not a call
		a.counter.count(legacyPathName(known), a.legacyCaller(w, r, check), a.now())
	}
}

// v1Route returns the path of the v1 route that a request would reach, as the route table
// writes it, and its methods. When there is none, known is "", and the methods are those that
// a legacy path could have.
func (a *legacyAPI) v1Route(rt *routing, r *http.Request) (known string, methods []string) {
	_, pattern := rt.mux.Handler(r)
	if _, p, ok := strings.Cut(pattern, " "); ok {
		pattern = p
	}
	relative, _ := rt.inBase(pattern)
	for i := range a.routes {
		if a.routes[i].path() == relative {
			known, methods = relative, append(methods, a.routes[i].method())
		}
	}
	if known == "" {
		methods = []string{"GET", "POST"}
	}
	return known, withHead(methods)
}

func legacyPathName(known string) string {
	if known == "" {
		return "other"
	}
	return legacyPrefix + known[1:]
}

// legacyCaller returns the account that made a legacy call: the one that was charged, else
// the one of its token, else the one that owns its Origin, else "unknown".
func (a *legacyAPI) legacyCaller(w *response, r *http.Request, check originCheck) string {
	if w.account != "" {
		return w.account
	}
	if token, err := bearerToken(r); err == nil && token != "" {
		if who, err := a.authenticate(token, true); err == nil {
			return who.claims.Subject
		}
	}
	if check.account != "" {
		return check.account
	}
	return "unknown"
}

// A legacyCounter collects counts in memory until flush writes them to the database, once a
// second. The known paths and maxLegacyCallers bound its size.
type legacyCounter struct {
	mu    sync.Mutex
	calls map[legacyCall]*legacyCall // by day, path and caller
}

const maxLegacyCallers = 10_000 // rows between two flushes; past it callers are counted as "unknown"

func (l *legacyCounter) count(path, caller string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) >= maxLegacyCallers {
		caller = "unknown"
	}
	key := legacyCall{Day: now.UTC().Format(time.DateOnly), Path: path, Caller: caller}
	c := l.calls[key]
	if c == nil {
		c = new(key)
		l.calls[key] = c
	}
	c.Calls++
	c.LastAt = newStamp(now)
}

// flush writes the counts. When that fails it keeps them for the next time.
func (a *legacyAPI) flush(ctx context.Context) error {
	l := &a.counter
	l.mu.Lock()
	collected := l.calls
	l.calls = map[legacyCall]*legacyCall{}
	l.mu.Unlock()
	if len(collected) == 0 {
		return nil
	}
	rows := make([]legacyCall, 0, len(collected))
	for _, c := range collected {
		rows = append(rows, *c)
	}
	err := a.store.update(ctx, func(t *tx) error {
		t.invalidate()
		return t.countLegacy(rows)
	})
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range collected {
		if newer := l.calls[key]; newer != nil {
			newer.Calls += c.Calls
		} else {
			l.calls[key] = c
		}
	}
	return err
}

func legacyShow(e *env) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	return printList(e, wholeList((*queries).legacyCalls), o, "DAY PATH CALLER CALLS LAST", func(c legacyCall) []any {
		return []any{c.Day, c.Path, accountCell(c.Caller), c.Calls, c.LastAt}
	})
}

// legacyStatus is what the status command says of who calls legacy paths.
type legacyStatus struct {
	Callers []legacyCaller `json:"legacy_callers"` // of the last 7 days
}

func (r *legacyStatus) read(v *statusView) error {
	const period = 7 * 24 * time.Hour
	callers, err := v.legacyCallers(v.now.UTC().Add(-period).Format(time.DateOnly), statusRows)
	r.Callers = append([]legacyCaller{}, callers...)
	return err
}

func (r *legacyStatus) show(_ *statusView, to *statusLines) {
	for _, c := range r.Callers {
		to.say("%s: %d calls in 7 days, the last at %s", printable(c.Caller), c.Calls, c.LastAt)
	}
}
