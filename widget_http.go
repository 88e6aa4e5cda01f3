package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// bucketWidgets is charged for events, and for statistics without a token.
const bucketWidgets = "widgets"

// A widgetAPI serves the endpoints of widgets: the events that they report, and statistics.
type widgetAPI struct {
	*server
	visitors visitorSet
	widgets  *cache[string, *widget] // by id
	stats    *statsMemory
}

func widgetModule(s *server) module {
	a := &widgetAPI{server: s, widgets: newCache[string, *widget](1_000),
		stats: &statsMemory{server: s, exact: newCache[statsKey, taggedBody](maxKeptStats),
			recent: map[statsKey]*recentStats{}}}
	return module{routes: []route{
		{pattern: "POST /widget/events", origin: originRequired, beacon: true, creates: true, bucket: bucketWidgets,
			repeatable: 10 * time.Minute, ownAddress: "events", refuses: "widget_not_found",
			answers:  answerForm{empty: 204},
			endpoint: admitting(readWidgetEvents, a.sendWidgetEvents)},
		{pattern: "GET /widget/stats", token: tokenOptional, scope: scopeStats, bucket: bucketWidgets, question: true,
			ownAddress: "stats", refuses: statsRefusals, answers: answerForm{tagged: true},
			endpoint: answeringWith[accountStats](answeringWith[widgetStats](
				admitting(readStatsQuery, a.getWidgetStats)))},
		{pattern: "GET /widget/stats.svg", token: tokenOptional, scope: scopeStats, bucket: bucketWidgets,
			question: true, ownAddress: "stats", refuses: statsRefusals,
			answers:  answerForm{media: "image/svg+xml", tagged: true},
			endpoint: admitting(readPictureQuery, a.getWidgetStatsPicture)},
	}}
}

// statsRefusals are what statistics are refused with: token_required where no widget is named.
const statsRefusals = "token_required widget_not_found"

// findWidget returns a widget of an open account, from the cache if it is there; nil: there is none, or id is "".
func (a *widgetAPI) findWidget(id string) (*widget, error) {
	if id == "" {
		return nil, nil
	}
	return orNil(a.widgets.loadBy(a.store, id, a.store.widget))
}

// chargeFor charges the account of the caller's token, else the one that owns the widget w which the request names,
// else the one that owns the Origin. w is nil if it names none.
func (a *widgetAPI) chargeFor(c *call, w *widget) error {
	switch {
	case c.caller != nil:
		return a.charge(c, c.caller.claims.Subject)
	case w != nil:
		return a.chargeShare(c, w.AccountID)
	}
	return a.chargeShare(c, c.origin.account)
}

// limitEvents counts events against what an address may send: visitorRate of them a minute for each widget of the
// account that lists the Origin; requests for any other widget are held like those of other anonymous callers.
func (a *widgetAPI) limitEvents(c *call, w *widget, events int) error {
	limit, n, rate := "foreign events", 1, a.anonymousRate
	if w != nil && w.AccountID == c.origin.account {
		limit, n, rate = "events "+w.ID, events, a.visitorRate
	}
	v := a.addressBuckets.takeSome(limit+" "+a.address(c.request), rate, n, 0, a.monotonic())
	return errOver(v, limitNamed(addressLimit, rate), "Too many events from this address.")
}

// Count what a widget shows.
//
// Adds up to 50 views, clicks and orders to a widget's counters; they are on disk before the answer. The `Origin`
// must be one of the widget's account. The same JSON may be sent as `text/plain`, which needs no preflight:
// `navigator.sendBeacon(url, JSON.stringify(…))`. Events that are sent twice are counted twice, unless they carry an
// `Idempotency-Key`, which is honoured for ten minutes here.
func (a *widgetAPI) sendWidgetEvents(ctx context.Context, c *call, q *widgetEventsRequest) (*reply, error) {
	wrong := c.finish()
	w, err := a.findWidget(q.widget)
	if err == nil && wrong == nil {
		err = a.limitEvents(c, w, q.events)
	}
	if err == nil {
		err = a.chargeFor(c, w)
	}
	switch {
	case err != nil:
		return nil, err
	case wrong != nil:
		return nil, wrong
	case w == nil:
		return nil, errWidget
	case w.AccountID != c.origin.account:
		return nil, &refusal{code: codeOrigin, detail: "This site does not belong to the widget's account."}
	}
	undo := func() {}
	if q.counts.Views > 0 {
		var first bool
		first, undo = a.visitors.addVisitor(w.ID, a.address(c.request), c.request.UserAgent(), a.now())
		if first {
			q.counts.Visitors = 1
		}
	}
	_, err = create(ctx, a.server, c, func(t *tx) (*reply, error) {
		t.dropsOnly(w.ID)
		t.addCounts(w.ID, q.counts, q.items, q.pages)
		return noContent, nil
	})
	if err != nil || c.replay != nil { // this request counted no view
		undo()
	}
	return noContent, err
}

// Read statistics.
//
// Adds up what widgets counted. With `widget` the statistics of one, which anybody may read, without its pages, and
// without orders unless the widget shows them to everybody; without it those of the token's account. The last 30 days
// in UTC unless the query says otherwise, at most 366. They may be a minute old: without a token an answer serves all
// that ask the same within ten seconds, and is then charged to nobody. A request has two seconds, waiting included;
// two of an account or an address run at a time.
func (a *widgetAPI) getWidgetStats(ctx context.Context, c *call, q *statsQuery) (*reply, error) {
	return a.answerStats(ctx, c, q)
}

// Draw statistics.
//
// The same statistics as a small picture for an `<img>`: a bar for the views of each day, week or month, with a title
// and a description in words, in light or dark colours. Tokens and limits are those of `GET /widget/stats`, and so
// are the parameters but for `lang`; items and pages are not in it. It brings a `Content-Security-Policy` that allows
// its style and nothing else, for browsers that open it as a page.
func (a *widgetAPI) getWidgetStatsPicture(ctx context.Context, c *call, q *statsQuery) (*reply, error) {
	return a.answerStats(ctx, c, q)
}

// answerStats answers with statistics, as JSON or as a picture. Callers without a token get an answer about a widget
// from memory for statsAge, whatever was counted since, and are then neither limited nor charged.
func (a *widgetAPI) answerStats(ctx context.Context, c *call, q *statsQuery) (*reply, error) {
	wrong := c.finish()
	outOfRange := q.setRange(a.now())
	w, err := a.findWidget(q.widget)
	if c.isCommand() && w == nil && err == nil && q.widget != "" { // it may be of a closed account
		w, err = orNil(a.store.anyWidget(q.widget))
	}
	if err != nil {
		return nil, err
	}
	if c.caller == nil {
		if w != nil && wrong == nil && outOfRange == nil {
			if body, ok := a.stats.recall(ctx, q.keyOf(w)); ok {
				return q.answer(c, body), nil
			}
		}
		if err := a.limitOwnAddress(c); err != nil {
			return nil, err
		}
	}
	if err := a.chargeFor(c, w); err != nil {
		return nil, err
	}
	if wrong != nil {
		return nil, wrong
	}
	of, err := a.ownerOf(c, q.account)
	if err := cmp.Or(err, outOfRange); err != nil {
		return nil, err
	}
	var body taggedBody
	if q.widget != "" {
		body, err = a.oneWidgetStats(ctx, c, q, of, w)
	} else {
		body, err = a.accountStats(ctx, c, q, of)
	}
	return q.answer(c, body), err
}

// oneWidgetStats returns the report for widget w; nil: there is no such widget. For a caller without a token it leaves
// out the pages, and the orders unless the widget shows them to everybody. Another account's token gets errWidget.
func (a *widgetAPI) oneWidgetStats(
	ctx context.Context, c *call, q *statsQuery, of owner, w *widget,
) (taggedBody, error) {
	if w == nil || c.caller != nil && !of.owns(w.AccountID) {
		return taggedBody{}, errWidget
	}
	key := q.keyOf(w)
	if c.caller != nil {
		key.withOrders, key.withPages = true, q.picture == ""
	}
	read := func() (taggedBody, string, error) {
		if err := a.acquireSlot(ctx, c); err != nil {
			return taggedBody{}, "", err
		}
		report, err := reportWidget(a.store.within(ctx), w, q.statsRange, key.withOrders, key.withPages)
		if err != nil {
			return taggedBody{}, "", err
		}
		return report.encode(q.picture), w.ID, nil
	}
	if c.caller != nil {
		return a.stats.exact.load(a.store, key, read)
	}
	return a.stats.read(key, read)
}

// errStatsOfNone is the refusal of a call that names no widget and has no token.
var errStatsOfNone = &refusal{code: codeTokenRequired, challenge: bearerChallenge,
	detail: "Name a widget with ?widget=, which needs no token, or send a token with stats:read for all of an " +
		"account's widgets."}

// accountStats returns the report for all widgets of an account: the caller's, if it names none; for a command then of
// all accounts. It needs a token.
func (a *widgetAPI) accountStats(ctx context.Context, c *call, q *statsQuery, of owner) (taggedBody, error) {
	if c.caller == nil {
		return taggedBody{}, errStatsOfNone
	}
	if err := a.acquireSlot(ctx, c); err != nil {
		return taggedBody{}, err
	}
	if !c.isCommand() {
		of = c.narrowToOne(of)
	}
	report, err := reportWidgets(a.store.within(ctx), of, q.statsRange)
	if err != nil {
		return taggedBody{}, err
	}
	return report.encode(q.picture), nil
}

// A widgetEventsRequest is what a widget counted. Members that are not listed here are ignored.
type widgetEventsRequest struct {
	widget string
	events int // how many
	counts counts
	items  []nameCount // of which a name may appear again
	pages  []nameCount
}

func readWidgetEvents(in *input) (q *widgetEventsRequest) {
	q = new(widgetEventsRequest)
	q.widget = in.text("widget", required, 64, isID("wgt")) // The id of the widget, which is public.
	// What happened, in any order.
	for _, event := range in.objects("events", maxWidgetEvents) {
		var counted counts
		// What happened.
		switch event.text("type", required, 32, oneOf("view", "click", "order")) {
		case "view":
			counted.Views = 1
		case "click":
			counted.Clicks = 1
		case "order":
			counted.Orders = 1
		}
		q.events++
		q.counts.add(counted)
		// Which item, counted for clicks and orders. A widget keeps 100 names a day; the rest count as `other`.
		if item := event.text("item", optional, 100, nil); item != "" && counted.Views == 0 {
			q.items = append(q.items, nameCount{item, counted})
		}
		// The path of the page. What follows a `?` or `#` is dropped. A widget keeps 100 pages a day; the rest, and
		// paths of more than 200 characters, count as `other`.
		if page := event.text("page", optional, 2048, checkPage); page != "" {
			q.pages = append(q.pages, nameCount{countedPage(page), counted})
		}
	}
	return q
}

const (
	maxWidgetEvents = 50  // in one request
	maxCountedPage  = 200 // characters of a page that is counted under its own name
)

// countedPage returns the name under which a page is counted: its path, without what follows a ? or #,
// since that may tell who the visitor is.
func countedPage(page string) string {
	if end := strings.IndexAny(page, "?#"); end >= 0 {
		page = page[:end]
	}
	if utf8.RuneCountInString(page) > maxCountedPage {
		return otherName
	}
	return page
}

// A statsQuery says which statistics are asked for.
type statsQuery struct {
	account  string // that is named; "": none
	widget   string
	from, to time.Time // zero: not given
	statsRange
	picture pageLanguage // of the picture that is asked for; "": JSON is
}

func readStatsQuery(in *input) *statsQuery {
	q := &statsQuery{account: in.accountID()}
	q.widget = in.parameter("widget", isID("wgt")) // The widget; without it a token is needed.
	// What a point of the series covers; a week begins on Monday. By default a day.
	q.Interval = statsInterval(cmp.Or(in.parameter("interval", oneOf(statsIntervals...)), "day"))
	q.Zone = time.UTC
	// A time zone of the IANA database, in which days begin and end. By default UTC.
	in.parameter("timezone", &textCheck{of: func(name string) (string, string) {
		zone, err := loadZone(name)
		if err != nil {
			return "unknown_timezone", "This is not a time zone of the IANA database, like Europe/Zurich."
		}
		q.Zone = zone
		return "", ""
	}})
	q.from = in.date("from") // The first day; by default 30 days end with `to`.
	q.to = in.date("to")     // The last day, included; by default today.
	return q
}

func readPictureQuery(in *input) *statsQuery {
	q := readStatsQuery(in)
	q.picture = pageLanguages[0]
	// The language of the texts: `en`, `de`, `fr`, `it`, `nb`, `sv`, `da` or `fi`, perhaps with a country. By default
	// `en`.
	if lang, ok := knownLanguage(in.parameter("lang", checkLanguage), pageLanguages); ok {
		q.picture = lang
	}
	return q
}

// setRange sets the days of the query. It returns the refusal of a wrong range, else nil.
func (q *statsQuery) setRange(now time.Time) error {
	detail, parameter := q.setDays(q.from, q.to, now), "from"
	if !q.to.IsZero() {
		parameter = "to"
	}
	if detail == "" {
		return nil
	}
	return errFields(fieldError{Parameter: parameter, Code: "out_of_range", Detail: detail})
}

// answer makes the answer of statistics.
func (q *statsQuery) answer(c *call, body taggedBody) *reply {
	caching := "public, max-age=60"
	if c.caller != nil {
		caching = "private, max-age=60"
	}
	answer := &reply{status: http.StatusOK, body: body.body, tag: body.tag,
		headers: []header{{"Cache-Control", caching}, {"Vary", "Authorization"}}}
	if q.picture != "" {
		answer.headers = append(answer.headers, header{"Content-Type", "image/svg+xml"},
			header{"Content-Security-Policy", picturePolicy}, header{"Cross-Origin-Resource-Policy", "cross-origin"})
	}
	return answer
}

// encode returns a report as a picture in a language, or as JSON if that is "".
func (r *statsReport) encode(lang pageLanguage) taggedBody {
	var body []byte
	if lang != "" {
		body = r.picture(lang)
	} else {
		body = encodeJSON(r.shown())
	}
	return taggedBody{body, etag(body)}
}

// A statsKey is all that the answer about a widget's statistics depends on, except for the counts.
type statsKey struct {
	widget, name string
	statsRange   // whose zone there is once, see loadZone
	withOrders   bool
	withPages    bool
	picture      pageLanguage // "": JSON
}

// keyOf returns the key of what everybody may read of a widget.
func (q *statsQuery) keyOf(w *widget) statsKey {
	return statsKey{w.ID, w.Name, q.statsRange, w.PublicOrders, false, q.picture}
}

const (
	statsAge     = 10 * time.Second // for which an answer serves callers without a token, whatever was counted since
	maxKeptStats = 500
)

// A statsMemory keeps what was answered about widgets, maxKeptStats of each kind.
type statsMemory struct {
	*server
	exact  *cache[statsKey, taggedBody] // serves every caller until something of the widget is counted
	mu     sync.Mutex
	recent map[statsKey]*recentStats // a new one evicts an arbitrary other
}

// recentStats is an answer that serves callers without a token for statsAge. The key has all of the widget's row that
// it depends on, so that an old one is wrong in its counts only.
type recentStats struct {
	done chan struct{} // closed once the answer has been read; the rest is set by then
	taggedBody
	err error
	at  time.Time
}

// recall returns an answer in memory for a caller without a token. It waits for one that another of them reads just
// now, so that of many callers at once only the first asks the database.
func (m *statsMemory) recall(ctx context.Context, key statsKey) (body taggedBody, ok bool) {
	m.mu.Lock()
	r := m.recent[key]
	m.mu.Unlock()
	if r != nil {
		select {
		case <-r.done:
		case <-ctx.Done():
			return body, false
		}
		if r.err == nil && m.monotonic().Sub(r.at) < statsAge {
			return r.taggedBody, true
		}
	}
	return m.exact.get(m.store, key)
}

// read returns what f reads for a caller without a token, see cache.load, and lets others wait for it.
func (m *statsMemory) read(key statsKey, f func() (taggedBody, string, error)) (taggedBody, error) {
	// the error is in case that f panics
	r := &recentStats{done: make(chan struct{}), err: errStorage, at: m.monotonic()}
	defer close(r.done)
	m.mu.Lock()
	makeRoom(m.recent, key, maxKeptStats)
	m.recent[key] = r
	m.mu.Unlock()
	r.taggedBody, r.err = m.exact.load(m.store, key, f)
	return r.taggedBody, r.err
}

// A statsPicture is the picture of a report in a language. Its texts are those of the language.
type statsPicture struct {
	*statsReport
	pageLanguage
	*pageTexts
}

// picture returns a report as an SVG image in a language (contract, section 5): a bar for each interval.
func (r *statsReport) picture(lang pageLanguage) []byte {
	p := &statsPicture{r, lang, textsByLanguage[lang]()}
	from, to, busiest := dayOf(r.From), dayOf(r.To), r.busiest()
	bars := &barPicture{lang: lang, title: p.title(), words: p.words(), none: p.say("none"),
		total: amount(lang, r.totals.Views, "view"), to: p.date(to, p.ShortMonths, true)}
	if len(r.series) > 1 {
		bars.most = p.say("most_"+string(r.Interval), p.number(busiest.Views))
	}
	if from != to {
		bars.from = p.date(from, p.ShortMonths, from.Year() != to.Year())
	}
	for _, point := range r.series {
		bars.values = append(bars.values, point.Views)
	}
	return []byte(bars.svg("", pictureStyle) + "\n")
}

// say returns a text of the picture, with its verbs filled in.
func (p *statsPicture) say(key string, args ...any) string {
	return fmt.Sprintf(p.Picture[key], args...)
}

// title returns the title of a picture: what it is about, and how many views there were.
func (p *statsPicture) title() string {
	name := p.say("all")
	if p.widget != nil {
		name = p.widget.Name
	}
	if p.busiest().Views <= 0 {
		return p.say("title_none", name)
	}
	return p.say("title", name, amount(p.pageLanguage, p.totals.Views, "view"))
}

// words returns in words what a picture shows.
func (p *statsPicture) words() string {
	long := func(date string) string { return p.date(dayOf(date), p.Months, true) }
	counts, busiest := strings.Join(p.totals.shown(p.withOrders).inWords(p.pageLanguage), ", "), p.busiest()
	text := p.say("days", long(p.From), long(p.To), p.Timezone, counts)
	if p.From == p.To {
		text = p.say("day", long(p.From), p.Timezone, counts)
	}
	if busiest.Views <= 0 || len(p.series) == 1 {
		return text
	}
	began := long(busiest.Date)
	if p.Interval == "month" {
		_, began, _ = strings.Cut(began, wideSpace)
	}
	return text + " " + p.say("busiest_"+string(p.Interval), began, amount(p.pageLanguage, busiest.Views, "view"))
}

// busiest returns the point with the most views, the first one if there are several.
func (r *statsReport) busiest() accountPoint {
	return slices.MaxFunc(r.series, func(a, b accountPoint) int {
		return cmp.Compare(a.Views, b.Views)
	})
}

// dayOf returns a date of a report as midnight UTC.
func dayOf(date string) time.Time {
	day, _ := time.Parse(time.DateOnly, date) // a report has only dates that time has formatted
	return day
}

// inWords returns counts as "1,200 views", "70 visitors" and so on, without the orders if these are not shown.
func (c shownCounts) inWords(lang pageLanguage) []string {
	words := []string{
		amount(lang, c.Views, "view"), amount(lang, c.Visitors, "visitor"), amount(lang, c.Clicks, "click"),
	}
	if c.Orders != nil {
		words = append(words, amount(lang, *c.Orders, "order"))
	}
	return words
}

// amount returns a number of things in words: "1 view", "1,200 views". French says none as it says one.
func amount(lang pageLanguage, n int64, noun string) string {
	if n != 1 && (n != 0 || lang != "fr") {
		noun += "s"
	}
	return fmt.Sprintf(textsByLanguage[lang]().Picture[noun], lang.number(n))
}

// The script that a page includes to show a widget, web/widget.js, and the line that includes it. The
// script carries the base address, so its hash is the installation's own.

// Beside the present script, web/ may have those that earlier releases had, as widget_2.js: pages name
// them by their hashes, and would stop counting if they went away.
//
//go:embed web/widget*.js
var scriptFiles embed.FS

const (
	scriptPath    = "/widget.js"
	scriptCaching = "public, max-age=3600"                // of the present script
	hashedCaching = "public, max-age=31536000, immutable" // of the paths with a hash
)

// A widgetScript is the script as it is served.
type widgetScript struct {
	path      string // at the root, with a part of the text's hash: another text has another path
	integrity string // the hash, as an attribute of the script element has it (W3C Subresource Integrity)
	text      []byte
}

// newWidgetScript makes the script from a source and a base address. The address needs no escaping in a
// JavaScript string (parseBaseURL).
func newWidgetScript(source []byte, base string) widgetScript {
	text := bytes.ReplaceAll(stripScript(source), []byte("{{base}}"), []byte(base))
	short, long := sha256.Sum256(text), sha512.Sum384(text)
	return widgetScript{path: "/widget-" + hex.EncodeToString(short[:6]) + ".js",
		integrity: "sha384-" + base64.StdEncoding.EncodeToString(long[:]), text: text}
}

// stripScript returns a script without its empty lines, its comment lines and its indentation. It does not
// understand comments after code, or strings over several lines: the source must have none.
func stripScript(source []byte) []byte {
	var stripped []byte
	for line := range bytes.Lines(source) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
			stripped = append(append(stripped, line...), '\n')
		}
	}
	return stripped
}

// presentScript returns the script of this version for a base address.
func presentScript(base string) (widgetScript, error) {
	source, err := scriptFiles.ReadFile("web" + scriptPath)
	return newWidgetScript(source, base), err
}

// A scriptAPI serves the script: the present one at a path that never changes; and this one and earlier
// ones, each for every base address, at paths that contain their hashes.
type scriptAPI struct {
	*server
	files atomic.Pointer[map[string]*staticFile] // by path
}

func scriptModule(s *server) module {
	a := &scriptAPI{server: s}
	return module{roots: []rootPath{
		{path: scriptPath, more: a.prepare, open: true, page: true, serve: a.serveScript},
	}}
}

// prepare makes the scripts for the base addresses, the current one first, and returns the paths with
// hashes.
func (a *scriptAPI) prepare(bases []baseAddress) (paths []string, err error) {
	names, err := scriptFiles.ReadDir("web")
	if err != nil {
		return nil, err
	}
	const javaScript = "text/javascript; charset=utf-8"
	files := map[string]*staticFile{}
	for i, base := range bases {
		for _, name := range names {
			source, err := scriptFiles.ReadFile("web/" + name.Name())
			if err != nil {
				return nil, err
			}
			script := newWidgetScript(source, base.URL)
			files[script.path] = newStaticFile(javaScript, hashedCaching, script.text)
			paths = append(paths, script.path)
			if i == 0 && "/"+name.Name() == scriptPath {
				files[scriptPath] = newStaticFile(javaScript, scriptCaching, script.text)
			}
		}
	}
	a.files.Store(&files)
	return paths, nil
}

// serveScript sends the script of a path.
func (a *scriptAPI) serveScript(w *response, r *http.Request) {
	f := (*a.files.Load())[r.URL.Path]
	if f == nil { // the base addresses have just changed
		a.pathNotFound(w, r)
		return
	}
	w.Header().Set("Cross-Origin-Resource-Policy", "cross-origin") // pages with COEP require it of all they load
	a.sendStatic(w, r, f)
}

// A snippet is what a partner needs to put a widget into a page.
type snippet struct {
	Widget    string            `json:"widget"`
	HTML      string            `json:"html"`      // the line to paste
	Script    string            `json:"script"`    // the address in it
	Integrity string            `json:"integrity"` // hash of the script there
	Latest    string            `json:"latest"`    // the address of whatever script is the present one
	Policy    map[string]string `json:"csp"`       // what a Content-Security-Policy must allow, by directive
	Origins   []string          `json:"origins"`   // of the widget's account: the sites that may use it
}

// newSnippet makes the snippet of a widget for a base address.
func newSnippet(widgetID, base string) (*snippet, error) {
	script, err := presentScript(base)
	if err != nil {
		return nil, err
	}
	normal, prefix, err := parseBaseURL(base)
	if err != nil {
		return nil, err
	}
	root := strings.TrimSuffix(normal, prefix)
	return &snippet{
		Widget: widgetID,
		HTML: fmt.Sprintf(`<script async src="%s%s" data-widget="%s" integrity="%s" crossorigin="anonymous"></script>`,
			root, script.path, widgetID, script.integrity),
		Script: root + script.path, Integrity: script.integrity, Latest: root + scriptPath,
		Policy:  map[string]string{"script-src": root, "connect-src": root, "img-src": root},
		Origins: []string{},
	}, nil
}

// text returns the line with comments, all of which can be pasted into a page.
func (s *snippet) text() string {
	return strings.NewReplacer("{html}", s.HTML, "{latest}", s.Latest, "{root}", s.Policy["script-src"]).Replace(
		`<!-- The widget. Where a Content-Security-Policy is sent, it must have:
     script-src {root}; connect-src {root}; img-src {root}
     This line always loads the same script. For one that changes with the service, use
     {latest} without integrity. -->
{html}`)
}

// widgetSnippet prints what a partner pastes into a page.
func widgetSnippet(e *env) error {
	return e.asOperator(nil, func(o *routeCaller) error {
		st := o.server.store
		w, err := st.widget(e.args[0])
		if err != nil {
			return err
		}
		s, err := newSnippet(w.ID, o.server.routing.Load().bases[0].URL)
		if err != nil {
			return err
		}
		origins, err := st.origins(ownedBy(w.AccountID))
		if err != nil {
			return err
		}
		for _, o := range origins {
			s.Origins = append(s.Origins, o.Origin)
		}
		if len(s.Origins) == 0 {
			owner, err := st.accountWord(w.AccountID)
			if err != nil {
				return err
			}
			e.note("no site may use this widget yet: add the site's origin with "+
				"'widgetd origin add https://www.example.com -account %s'\n", owner)
		}
		return e.printAsIs(s, s.text())
	})
}

// The options of these commands.
var (
	optPublicOrders = option{name: "public-orders",
		help: "show the widget's orders to everybody, not only to callers with a token"}
	optWidget = option{name: "widget", value: "WIDGET", member: "widget",
		help: "show one widget, with its items and pages; by default all"}
	optInterval = option{name: "interval", value: "UNIT", def: "day", member: "interval", reads: asInterval,
		help: "what a bar covers; weeks begin on Monday", words: func() []string { return asTexts(statsIntervals) }}
	optTimezone = option{name: "timezone", value: "ZONE", def: "UTC", member: "timezone",
		help: "time zone in which days begin, like Europe/Zurich"}
)

// The operator's commands on widgets.
var widgetCommands = []command{
	{"widget add", "NAME", "add a widget",
		[]option{optAccount.says("the account that the widget belongs to"), optPublicOrders}, widgetAdd},
	{"widget snippet", "WIDGET", "print the line to paste into a page, and what its Content-Security-Policy must allow",
		nil, widgetSnippet},
	{"widget rename", "WIDGET NAME", "give a widget another name", nil, widgetRename},
	{"widget remove", "WIDGET", "remove a widget with everything that it counted",
		[]option{optUnasked.says("do not ask; where nobody can be asked, remove it although it has counted something")},
		widgetRemove},
	{"widget stats", "", "show what widgets counted, with a bar for each day",
		[]option{optWidget, optFromDay, optToDay, optInterval, optTimezone}, statsShow},
}

// The list of widgets.
var widgetRouteCommands = []routeCommand{
	{name: "widget list", help: "list widgets, oldest first",
		options: []option{optOfAccount},
		rows: &listCommand{short: true, prefix: "wgt", pages: wholeTable((*queries).widgets),
			columns: "ID NAME PUBLIC-ORDERS=public_orders CREATED=created_at ACCOUNT=account_id"}},
}

func widgetAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	id, err := changed(e, func(t *tx) (string, error) {
		return t.addWidget(account, e.args[0], e.on("public-orders"), e.actor())
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id}, id)
}

func widgetRename(e *env) error {
	if err := checkRowName(e.args[1]); err != nil {
		return err
	}
	return e.changeAndName(func(t *tx) (string, error) {
		return "widget " + withName(e.args[0], e.args[1]) + " renamed", t.renameWidget(e.args[0], e.args[1], e.actor())
	})
}

// widgetRemove removes a widget once that is confirmed; without -force and without a terminal only one that has
// counted nothing. A widget with very many counters takes several transactions; a command that was interrupted can
// be run again.
func widgetRemove(e *env) error {
	id, actor := e.args[0], e.actor()
	name := ""
	err := e.confirm(func(q *queries) (string, error) {
		rows, err := q.countWidgetRows(id)
		if err != nil {
			return "", err
		}
		if rows > 0 && !e.canAsk && !e.on("force") {
			return "", fmt.Errorf("%s has %s of what it counted, which would be lost: add -force to remove it",
				id, countOf(rows, "row"))
		}
		w, err := q.anyWidget(id)
		if err != nil {
			return "", err
		}
		name = withName(id, w.Name)
		return fmt.Sprintf("removes the widget %s for good, with %s of what it counted", name,
			countOf(rows, "row")), nil
	})
	if err != nil {
		return err
	}
	var removed int64
	err = e.withStore(func(st *store) (err error) {
		removed, err = inParts(e.ctx, st.writer, 0, func(t *tx, earlier int64) (int64, bool, error) {
			return t.removeWidget(id, actor, earlier)
		})
		return err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]any{"ok": true, "rows": removed},
		"widget "+name+" removed, with "+countOf(removed, "row")+" of what it counted")
}

// asInterval sends what a bar covers.
func asInterval(e *env, word string) (any, error) { return asOneOf(statsIntervals)(e, word) }

// A countedStats is what people see of statistics: of one widget, also of a closed account, or of all.
type countedStats struct {
	Widget, Name string // of one
	statsSpan
	Totals struct {
		shownCounts
		Trapped int64
	}
	Series   []accountPoint
	Widgets  []widgetRow
	TopItems []topItem `json:"top_items"`
	TopPages []topPage `json:"top_pages"`
}

// statsShow prints what widgets counted: totals, a row for each widget or the top items and pages of one,
// and a bar for each interval.
func statsShow(e *env) error {
	if id := e.str("widget"); id != "" && !validID("wgt", id) {
		return e.explain(errWidget) // as for one that there is not
	}
	r, err := e.request("GET /widget/stats")
	if err != nil {
		return err
	}
	answer, err := e.callRoute(nil, r)
	if err != nil {
		return err
	}
	if e.on("json") {
		_, err := e.stdout.Write(answer)
		return err
	}
	var counted countedStats
	if err := json.Unmarshal(answer, &counted); err != nil {
		return err
	}
	return counted.print(e)
}

// print prints statistics for people.
func (r *countedStats) print(e *env) error {
	totals := strings.Join(r.Totals.inWords("en"), ", ")
	head := []detail{{"range", r.From + " to " + r.To + ", " + r.Timezone}, {"total", totals}}
	if r.Widget != "" {
		head = append([]detail{{"widget", r.Widget}, {"name", r.Name}}, head...)
	} else {
		head = append(head, detail{"trapped", countOf(r.Totals.Trapped, "lead") + " of bots"})
	}
	err := e.printDetails(nil, head)
	fmt.Fprintln(e.stdout)
	err = errors.Join(err, r.printBars(e))
	fmt.Fprintln(e.stdout)
	if r.Widget == "" {
		return errors.Join(err, printObjects(e, "WIDGET NAME VIEWS VISITORS CLICKS ORDERS", nil, r.Widgets))
	}
	err = errors.Join(err, printObjects(e, "TOP-ITEM=item CLICKS ORDERS", nil, r.TopItems))
	fmt.Fprintln(e.stdout)
	return errors.Join(err, printObjects(e, "TOP-PAGE=page VIEWS CLICKS ORDERS", nil, r.TopPages))
}

// printBars prints the counts of each interval with a bar in proportion to its views, in the width that the
// numbers leave of the terminal.
func (r *countedStats) printBars(e *env) error {
	const longest, least = 40, 8 // columns of the bars
	most := int64(1)
	for _, point := range r.Series {
		most = max(most, point.Views)
	}
	title := strings.ToUpper(string(r.Interval))
	used := len(r.From) + 5*columnGap
	for _, c := range []struct {
		title string
		most  int64
	}{{"VIEWS", most}, {"VISITORS", r.Totals.Visitors}, {"CLICKS", r.Totals.Clicks}, {"ORDERS", *r.Totals.Orders}} {
		used += max(len(c.title), len(fmt.Sprint(c.most)))
	}
	width := min(longest, cmp.Or(e.width(), longest+used)-used)
	columns := title + "=date VIEWS VISITORS CLICKS ORDERS"
	if width >= least {
		columns += " .=bar"
	}
	return printObjects(e, columns, func(member string, row *jsonValue) any {
		if member != "bar" {
			return nil
		}
		views, _ := memberAt(row, "views").integer()
		bar := strings.Repeat("█", int(float64(max(0, views))/float64(most)*float64(width)))
		return cmp.Or(bar, " ") // no views are no empty cell
	}, r.Series)
}
