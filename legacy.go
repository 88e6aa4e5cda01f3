package main

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
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
	mu     sync.Mutex
	counts map[legacyCall]legacyCall // by day, path and caller; not written yet
}

func legacyWing(s *server) wing {
	a := &legacyAPI{server: s, counts: map[legacyCall]legacyCall{}}
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
// same name answers, after it with 410, except for preflights, without which no browser sees the 410. It never
// redirects, since clients of the legacy paths would follow a redirected POST with a GET.
func (a *legacyAPI) serveLegacy(w *response, r *http.Request) {
	rt, above := a.routing.Load(), strings.TrimSuffix(legacyPrefix, "/")
	rest := cmp.Or(strings.TrimPrefix(r.URL.Path, above), "/")
	counterpart := r.Clone(r.Context())
	counterpart.URL.Path = rt.prefixes[0] + rest
	counterpart.URL.RawPath = rt.prefixes[0] + cmp.Or(strings.TrimPrefix(r.URL.EscapedPath(), above), "/")
	known := a.v1Path(rt, counterpart)

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
	preflight := r.Method == http.MethodOptions && check.given
	switch ended := !a.now().Before(a.legacySunset); {
	case ended && preflight && known == "":
		a.otherMethod(w, counterpart, &pathRules{methods: []string{"GET", "HEAD", "POST"}})
	case !ended && r.URL.Path != cleanPath(r.URL.Path): // the mux would redirect
		a.pathNotFound(w, counterpart)
	case !ended, preflight:
		rt.mux.ServeHTTP(w, counterpart)
	default:
		detail := "This path ended on " + a.legacySunset.UTC().Format(time.DateOnly) + "."
		if known != "" {
			detail += " Use " + rt.bases[0].URL + rest + "."
		}
		w.pattern = "legacy"
		a.fail(w, counterpart, &refusal{code: codeGone, detail: detail})
	}
	if r.Method != http.MethodOptions { // a preflight is not a call
		day := a.now().UTC().Format(time.DateOnly)
		path := "other"
		if known != "" {
			path = above + known
		}
		a.count(legacyCall{day, path, a.legacyCaller(w, r, check), 1, newStamp(a.now())})
	}
}

// v1Path returns the path of the v1 route that a request would reach, as the route table writes it; "": none.
func (a *legacyAPI) v1Path(rt *routing, r *http.Request) string {
	if r.URL.Path != cleanPath(r.URL.Path) {
		return ""
	}
	_, pattern := rt.mux.Handler(r)
	if _, p, ok := strings.Cut(pattern, " "); ok {
		pattern = p
	}
	relative, _ := rt.inBase(pattern)
	if slices.ContainsFunc(a.routes, func(known route) bool { return known.path() == relative }) {
		return relative
	}
	return ""
}

// legacyCaller returns the account that made a legacy call: the one that was charged, else
// the one of its token, else the one that owns its Origin, else "unknown".
func (a *legacyAPI) legacyCaller(w *response, r *http.Request, check originCheck) string {
	account := cmp.Or(w.account, check.account, "unknown")
	if token, err := bearerToken(r); w.account == "" && err == nil && token != "" {
		if who, err := a.authenticate(token, true); err == nil {
			account = who.claims.Subject
		}
	}
	return account
}

const maxLegacyCallers = 10_000 // rows between two flushes; past it callers are counted as "unknown"

// count adds calls to those that flush writes, once a second.
func (a *legacyAPI) count(c legacyCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.counts) >= maxLegacyCallers {
		c.Caller = "unknown"
	}
	key := legacyCall{Day: c.Day, Path: c.Path, Caller: c.Caller}
	kept := a.counts[key]
	if c.Calls += kept.Calls; kept.LastAt.After(c.LastAt.Time) { // c is one that could not be written
		c.LastAt = kept.LastAt
	}
	a.counts[key] = c
}

// flush writes the counts. When that fails it keeps them for the next time.
func (a *legacyAPI) flush(ctx context.Context) error {
	a.mu.Lock()
	counts := slices.Collect(maps.Values(a.counts))
	clear(a.counts)
	a.mu.Unlock()
	if len(counts) == 0 {
		return nil
	}
	err := a.store.update(ctx, func(t *tx) error {
		t.invalidate()
		return t.countLegacy(counts)
	})
	if err != nil {
		for _, c := range counts {
			a.count(c)
		}
	}
	return err
}

func legacyShow(e *env) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	all := wholeList((*queries).legacyCalls)
	return printList(e, idOf[legacyCall]{}, all, o, "DAY PATH CALLER CALLS LAST", func(c legacyCall) []any {
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
