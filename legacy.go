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
		modules:  func(s *server) []module { return []module{legacyModule(s)} },
		calls:    legacyRouteCommands,
		problems: legacyProblems,
		status:   []statusLine{{label: "legacy callers", read: legacyStatus}},
	}
}

// The problem codes of legacy paths.
var (
	legacyProblems problemTable

	codeGone = legacyProblems.add(410, "gone", "Gone", "This path has ended.",
		"Use the address that `detail` and `Link` name.")
)

// A legacyAPI serves the paths that the service had before v1, under /api/legacy/, and counts
// who still calls them.
type legacyAPI struct {
	*server
	mu     sync.Mutex
	counts map[legacyCall]legacyCall // by day, path and caller; not written yet
}

func legacyModule(s *server) module {
	a := &legacyAPI{server: s, counts: map[legacyCall]legacyCall{}}
	return module{
		roots:  []rootPath{{path: legacyPrefix, serve: a.serveLegacy}},
		chores: []chore{{fault: "legacy calls can't be counted", atEnd: true, run: a.flush}},
	}
}

// The operator's list of calls of legacy paths.
var legacyRouteCommands = []routeCommand{
	{name: "legacy list", help: "show who still calls /api/legacy/, the latest day first",
		options: []option{optOfAccount},
		rows: &listCommand{short: true, columns: "DAY PATH CALLER CALLS LAST=last_at",
			pages: wholeTable((*queries).legacyCalls)}},
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
	v1 := r.Clone(r.Context())
	v1.URL.Path = rt.prefixes[0] + rest
	v1.URL.RawPath = rt.prefixes[0] + cmp.Or(strings.TrimPrefix(r.URL.EscapedPath(), above), "/")
	known := a.v1Path(rt, v1)
	ended := !a.now().Before(a.legacySunset)
	h := w.Header()
	h.Set("Sunset", a.legacySunset.UTC().Format(http.TimeFormat))
	h.Set("Deprecation", deprecation)
	h.Set("Link", "<"+rt.root+`/docs#legacy>; rel="deprecation"; type="text/html"`)
	gone := "This path ended on " + a.legacySunset.UTC().Format(time.DateOnly) + "."
	if known != "" {
		successor := rt.bases[0].URL + (&url.URL{Path: rest}).EscapedPath()
		h.Set("Link", "<"+successor+`>; rel="successor-version", `+h.Get("Link"))
		gone += " Use " + rt.bases[0].URL + rest + "."
	}
	h.Add("Vary", "Origin")
	v1 = a.withOrigin(w, v1)
	check, _ := v1.Context().Value(originKey{}).(originCheck)
	preflight := r.Method == http.MethodOptions && check.given
	switch {
	case ended && preflight && known == "":
		a.otherMethod(w, v1, &pathRules{methods: []string{"GET", "HEAD", "POST"}})
	case ended && !preflight:
		w.pattern = "legacy"
		a.fail(w, v1, &refusal{code: codeGone, detail: gone})
	case r.URL.Path != cleanPath(r.URL.Path), strings.HasSuffix(r.URL.Path, "/"): // the mux would redirect
		a.pathNotFound(w, v1)
	default:
		rt.mux.ServeHTTP(w, v1)
	}
	if r.Method != http.MethodOptions { // a preflight is not a call
		path := "other"
		if known != "" {
			path = above + known
		}
		day := a.now().UTC().Format(time.DateOnly)
		a.count(legacyCall{day, path, a.legacyCaller(w, r, check), 1, newStamp(a.now())})
	}
}

// v1Path returns the path of the v1 route that a request would reach, as the route table writes it; "": none.
func (a *legacyAPI) v1Path(rt *routing, r *http.Request) string {
	_, pattern := rt.mux.Handler(r)
	relative, below := rt.inBase(pattern[strings.IndexByte(pattern, ' ')+1:])
	if !below || r.URL.Path != cleanPath(r.URL.Path) || strings.HasSuffix(r.URL.Path, "/") {
		return ""
	}
	return relative
}

// legacyCaller returns the account that made a legacy call: the one that was charged, else
// the one of its token, else the one that owns its Origin, else "unknown".
func (a *legacyAPI) legacyCaller(w *response, r *http.Request, check originCheck) string {
	if token, err := bearerToken(r); w.account == "" && err == nil && token != "" {
		if who, err := a.authenticate(token, true); err == nil {
			return who.claims.Subject
		}
	}
	return cmp.Or(w.account, check.account, "unknown")
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
		t.dropsNothing()
		t.countLegacy(counts)
		return nil
	})
	if err != nil {
		for _, c := range counts {
			a.count(c)
		}
	}
	return err
}

// legacyStatus is what the status command says of who has called legacy paths in the last 7 days.
func legacyStatus(v *statusView, to *statusReport) error {
	const period = 7 * 24 * time.Hour
	callers, err := v.legacyCallers(v.now.UTC().Add(-period).Format(time.DateOnly), statusRows)
	to.set("legacy_callers", append([]legacyCaller{}, callers...))
	for _, c := range callers {
		to.say("%s: %d calls in 7 days, the last at %s", printable(c.Caller), c.Calls, c.LastAt)
	}
	return err
}

// A legacyCall counts how often one caller used one path on one UTC day.
type legacyCall struct {
	Day    string `json:"day"`
	Path   string `json:"path"`   // below /api/legacy/, or "other" for a path that v1 does not have
	Caller string `json:"caller"` // an account's id, or "unknown"
	Calls  int64  `json:"calls"`
	LastAt stamp  `json:"last_at"`
}

// countLegacy adds counts to the rows of the same day, path and caller.
func (t *tx) countLegacy(calls []legacyCall) {
	for _, c := range calls {
		t.exec(`INSERT INTO legacy_calls (day, path, caller, calls, last_at)
			VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET calls = calls + excluded.calls,
			last_at = max(last_at, excluded.last_at)`,
			c.Day, c.Path, c.Caller, c.Calls, c.LastAt)
	}
}

// legacyCalls returns the counts of an owner's calls, the latest day first.
func (q *queries) legacyCalls(o owner) ([]legacyCall, error) {
	query, args := o.narrow(`SELECT day, path, caller, calls, last_at FROM legacy_calls WHERE 1`, `caller`)
	return collectReadable(q, query+` ORDER BY day DESC, calls DESC`, args,
		func(c *legacyCall) []any { return []any{&c.Day, &c.Path, &c.Caller, &c.Calls, &c.LastAt} })
}

// A legacyCaller is who called paths under /api/legacy/, and how often.
type legacyCaller struct {
	Caller string `json:"caller"` // an account's name, or "unknown"
	Calls  int64  `json:"calls"`
	LastAt stamp  `json:"last_at"`
}

// legacyCallers returns up to limit callers of legacy paths since a UTC day, those with the most
// calls first.
func (q *queries) legacyCallers(day string, limit int) ([]legacyCaller, error) {
	return collectReadable(q, `SELECT coalesce(a.name, c.caller), sum(c.calls), max(c.last_at)
		FROM legacy_calls c LEFT JOIN accounts a ON a.id = c.caller
		WHERE c.day >= ? GROUP BY c.caller ORDER BY 2 DESC, 1 LIMIT ?`, []any{day, limit},
		func(c *legacyCaller) []any { return []any{&c.Caller, &c.Calls, &c.LastAt} })
}
