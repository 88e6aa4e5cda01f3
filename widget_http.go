package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
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
