package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

func widgetWing(s *server) wing {
	a := &widgetAPI{server: s, widgets: newCache[string, *widget](1_000), stats: newStatsMemory(s)}
	return wing{routes: []route{
		{pattern: "POST /widget/events", origin: originRequired, admit: a.admitEvents, beacon: true, creates: true,
			bucket: bucketWidgets, shared: true, charge: a.chargeEvents, run: endpoint(a.countEvents)},
		{pattern: "GET /widget/stats", token: tokenOptional, scope: scopeStats, address: "stats",
			recalled: a.recallStats(false), bucket: bucketWidgets, shared: true, charge: a.charge,
			run: endpoint(a.showStats(false))},
		{pattern: "GET /widget/stats.svg", token: tokenOptional, scope: scopeStats, address: "stats",
			recalled: a.recallStats(true), bucket: bucketWidgets, shared: true, charge: a.charge,
			run: endpoint(a.showStats(true))},
	}}
}

// findWidget returns a widget of an open account, from the cache if it is there, or errWidget.
func (a *widgetAPI) findWidget(id string) (*widget, error) {
	w, err := a.widgets.load(a.store, id, func() (*widget, string, error) {
		w, err := a.store.widget(id)
		return w, "", err
	})
	return w, replaced(err, errNotFound, errWidget)
}

// charge is the chargeFunc of widgets: the account of the caller's token, else the one that
// owns the widget which the request names, else the one that owns the Origin.
func (a *widgetAPI) charge(c *call, _ *input, request any) (string, error) {
	if c.caller != nil {
		return c.caller.claims.Subject, nil
	}
	if id := request.(interface{ widgetID() string }).widgetID(); id != "" {
		w, err := a.findWidget(id)
		if err == nil {
			return w.AccountID, nil
		}
		if !errors.Is(err, errWidget) {
			return "", err
		}
	}
	return c.origin.account, nil
}

// admitEvents takes one event of what an address may send from the sites of one account, before the body says which
// widget they are of. The bucket is as large as the account's, for all of its widgets.
func (a *widgetAPI) admitEvents(c *call) error {
	owner, err := a.cachedAccount(c.origin.account)
	if err != nil {
		return err
	}
	return a.limitAddress("events "+owner.ID, a.address(c.request), max(a.visitorRate, owner.Rate))
}

// chargeEvents is charge for events. An address may send visitorRate of them a minute for each widget of the account
// that lists the Origin; requests for any other widget are held like those of other anonymous callers.
func (a *widgetAPI) chargeEvents(c *call, in *input, request any) (string, error) {
	q := request.(*eventsRequest)
	if in.err() == nil {
		w, err := a.findWidget(q.widget)
		if err = notUnless(err, errWidget); err != nil {
			return "", err
		}
		limit, n, rate := "foreign events", 1, a.anonymousRate
		if w != nil && w.AccountID == c.origin.account {
			limit, n, rate = "events "+w.ID, q.events, a.visitorRate
		}
		v := a.addressBuckets.takeSome(limit+" "+a.address(c.request), rate, n, 0, a.steady())
		if err := errOver(v, limitNamed(addressLimit, rate), "Too many events from this address."); err != nil {
			return "", err
		}
	}
	return a.charge(c, in, request)
}

// countEvents adds what a widget reports to its counters; they are on disk before the answer.
func (a *widgetAPI) countEvents(ctx context.Context, c *call, q *eventsRequest) (noContent, error) {
	w, err := a.findWidget(q.widget)
	if err != nil {
		return noContent{}, err
	}
	if w.AccountID != c.origin.account {
		const detail = "This site does not belong to the widget's account."
		return noContent{}, &refusal{code: codeOrigin, detail: detail}
	}
	undo := func() {}
	if q.counts.Views > 0 {
		var first bool
		first, undo = a.visitors.addVisitor(w.ID, a.address(c.request), c.request.UserAgent(), a.now())
		if first {
			q.counts.Visitors = 1
		}
	}
	_, err = create(ctx, a.server, c, func(t *tx) (noContent, error) {
		t.invalidate(w.ID)
		t.addCounts(w.ID, q.counts, q.items, q.pages)
		return noContent{}, nil
	})
	if err != nil || c.replay != nil { // this request counted no view
		undo()
	}
	return noContent{}, err
}

// recallStats returns the recallFunc of statistics, or of their picture: an answer about a widget is in memory
// for statsAge, whatever was counted since.
func (a *widgetAPI) recallStats(asPicture bool) recallFunc {
	return func(c *call, request any) any {
		q := *request.(*statsRequest)
		if q.widget == "" || q.complete(a.now()) != nil {
			return nil
		}
		w, err := a.findWidget(q.widget)
		if err != nil {
			return nil
		}
		if body, ok := a.stats.await(c.request.Context(), statsKeyOf(w, q.statsRange, asPicture)); ok {
			return statsAnswer(c, body, asPicture)
		}
		return nil
	}
}

// showStats returns the endpoint of GET /widget/stats, or as a picture of GET /widget/stats.svg.
func (a *widgetAPI) showStats(asPicture bool) func(context.Context, *call, *statsRequest) (*cacheable, error) {
	return func(ctx context.Context, c *call, q *statsRequest) (*cacheable, error) {
		if err := q.complete(a.now()); err != nil {
			return nil, err
		}
		stats := a.accountStats
		if q.widget != "" {
			stats = a.oneWidgetStats
		}
		body, err := stats(ctx, c, q, asPicture)
		if err != nil {
			return nil, err
		}
		return statsAnswer(c, body, asPicture), nil
	}
}

// statsAnswer makes the answer of statistics.
func statsAnswer(c *call, body taggedBody, asPicture bool) *cacheable {
	answer := &cacheable{taggedBody: body, cacheControl: "public, max-age=60"}
	if c.caller != nil {
		answer.cacheControl = "private, max-age=60"
	}
	if asPicture {
		answer.contentType, answer.policy = "image/svg+xml", picturePolicy
	}
	return answer
}

// oneWidgetStats returns the report for one widget. For a caller without a token it leaves out the pages,
// and the orders unless the widget shows them to everybody. Another account's token gets errWidget.
func (a *widgetAPI) oneWidgetStats(ctx context.Context, c *call, q *statsRequest, asPicture bool) (taggedBody, error) {
	w, err := a.findWidget(q.widget)
	if err != nil {
		return taggedBody{}, err
	}
	key := statsKeyOf(w, q.statsRange, asPicture)
	if c.caller != nil {
		if !q.owner.owns(w.AccountID) {
			return taggedBody{}, errWidget
		}
		key.withOrders, key.withPages = true, !asPicture
		if body, ok := a.stats.recall(key, 0); ok {
			return body, nil
		}
	}
	return a.stats.read(key, c.caller == nil, func() (taggedBody, error) {
		return askFor(ctx, a.server, c, func(ctx context.Context) (taggedBody, error) {
			report, err := reportWidget(a.store.within(ctx), w, q.statsRange, key.withOrders, key.withPages)
			if err != nil {
				return taggedBody{}, err
			}
			return report.encode(asPicture), nil
		})
	})
}

// errStatsOfNone is the refusal of a call that names no widget and has no token.
var errStatsOfNone = &refusal{code: codeTokenRequired, challenge: bearerChallenge,
	detail: "Name a widget with ?widget=, which needs no token, or send a token with stats:read for all of an " +
		"account's widgets."}

// accountStats returns the report for all widgets of an account. It needs a token.
func (a *widgetAPI) accountStats(ctx context.Context, c *call, q *statsRequest, asPicture bool) (taggedBody, error) {
	if c.caller == nil {
		return taggedBody{}, errStatsOfNone
	}
	o := q.oneOwner(c) // a report is about one account: the caller's, if it names none
	return askFor(ctx, a.server, c, func(ctx context.Context) (taggedBody, error) {
		report, err := reportWidgets(a.store.within(ctx), o, q.statsRange)
		if err != nil {
			return taggedBody{}, err
		}
		return report.encode(asPicture), nil
	})
}

// eventsRequest is the body of POST /widget/events (contract, section 5).
type eventsRequest struct {
	widget string
	events int // how many
	counts counts
	items  []nameCount
	pages  []nameCount
}

func (q *eventsRequest) widgetID() string { return q.widget }

func (q *eventsRequest) read(in *input) {
	q.widget = in.text("widget", required, 64, isID("wgt"))
	for _, event := range in.objects("events", maxWidgetEvents) {
		var counted counts
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
		if item := event.text("item", optional, 100, nil); item != "" && counted.Views == 0 {
			q.items = addName(q.items, item, counted)
		}
		if page := event.text("page", optional, 2048, checkPage); page != "" {
			q.pages = addName(q.pages, countedPage(page), counted)
		}
	}
}

const (
	maxWidgetEvents = 50  // in one request
	maxCountedPage  = 200 // characters of a page that is counted under its own name
)

// addName adds to the counts of a name, of which a request has at most maxWidgetEvents.
func addName(all []nameCount, name string, c counts) []nameCount {
	i := slices.IndexFunc(all, func(n nameCount) bool { return n.Name == name })
	if i < 0 {
		return append(all, nameCount{name, c})
	}
	all[i].add(c)
	return all
}

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

// statsRequest is the query of GET /widget/stats and of GET /widget/stats.svg.
type statsRequest struct {
	accountScope
	widget string
	from   time.Time // zero: not given
	to     time.Time // zero: not given
	statsRange
}

func (q *statsRequest) read(in *input) {
	q.accountScope.read(in)
	q.widget = in.parameter("widget", isID("wgt"))
	q.Interval = cmp.Or(in.parameter("interval", oneOf(statsIntervals...)), "day")
	q.Zone = time.UTC
	in.parameter("timezone", func(name string) (string, string) {
		zone, err := loadZone(name)
		if err != nil {
			return "unknown_timezone", "This is not a time zone of the IANA database, like Europe/Zurich."
		}
		q.Zone = zone
		return "", ""
	})
	q.from, q.to = in.date("from"), in.date("to")
}

func (q *statsRequest) widgetID() string { return q.widget }

// complete sets the range of a query to its from and to, or refuses them (setDays).
func (q *statsRequest) complete(now time.Time) error {
	detail := q.setDays(q.from, q.to, now)
	if detail == "" {
		return nil
	}
	parameter := "from"
	if !q.to.IsZero() {
		parameter = "to"
	}
	return errFields(fieldError{Parameter: parameter, Code: "out_of_range", Detail: detail})
}

// encode returns a report as JSON or as a picture.
func (r *statsReport) encode(asPicture bool) taggedBody {
	var body []byte
	if asPicture {
		body = r.picture()
	} else {
		body = encodeJSON(r)
	}
	return taggedBody{body, etag(body)}
}

// A statsKey is all that the answer about a widget's statistics depends on, except for the counts.
type statsKey struct {
	widget, name   string
	zone, interval string
	from, to       time.Time
	withOrders     bool
	withPages      bool
	asPicture      bool
}

// statsKeyOf returns the key of what everybody may read of a widget.
func statsKeyOf(w *widget, r statsRange, asPicture bool) statsKey {
	return statsKey{w.ID, w.Name, r.Zone.String(), r.Interval, r.From, r.To, w.PublicOrders, false, asPicture}
}

const (
	statsAge     = 10 * time.Second // for which an answer serves callers without a token, whatever was counted since
	maxKeptStats = 500
)

// A statsMemory keeps what was answered about widgets. It holds at most maxKeptStats answers; a new one evicts an
// arbitrary other.
type statsMemory struct {
	*server
	mu       sync.RWMutex
	kept     map[statsKey]keptStats
	readings map[statsKey]*statsReading
}

// keptStats is an answer, and from when it is. An answer that is exact serves every caller until something of the
// widget is counted.
type keptStats struct {
	taggedBody
	at      time.Time
	version version // of the widget, see cache
	exact   bool
}

// A statsReading is an answer for callers without a token that is being read from the database.
type statsReading struct {
	taggedBody
	err  error
	done chan struct{} // closed once the others are set
}

func newStatsMemory(s *server) *statsMemory {
	return &statsMemory{server: s, kept: map[statsKey]keptStats{}, readings: map[statsKey]*statsReading{}}
}

// recall returns an answer in memory that is younger than age, or exact. The key has all of the widget's row that an
// answer depends on, so that a younger one is wrong in its counts only.
func (m *statsMemory) recall(key statsKey, age time.Duration) (body taggedBody, ok bool) {
	m.mu.RLock()
	k, found := m.kept[key]
	m.mu.RUnlock()
	switch {
	case !found:
		return body, false
	case m.steady().Sub(k.at) < age:
		return k.taggedBody, true
	}
	return k.taggedBody, k.exact && m.store.cachesFresh() && k.version == m.store.changes.versionOf(key.widget)
}

// await is recall for callers without a token. It waits for an answer that another caller reads just now, so that
// of many callers at once only the first asks the database.
func (m *statsMemory) await(ctx context.Context, key statsKey) (body taggedBody, ok bool) {
	if body, ok = m.recall(key, statsAge); ok {
		return body, ok
	}
	m.mu.RLock()
	reading := m.readings[key]
	m.mu.RUnlock()
	if reading == nil {
		return body, false
	}
	select {
	case <-reading.done:
		return reading.taggedBody, reading.err == nil
	case <-ctx.Done():
		return body, false
	}
}

// read returns what f reads, and keeps it. For callers without a token others may wait for it (await).
func (m *statsMemory) read(key statsKey, anonymous bool, f func() (taggedBody, error)) (taggedBody, error) {
	reading := &statsReading{done: make(chan struct{}), err: errStorage} // in case that f panics
	if anonymous {
		m.mu.Lock()
		m.readings[key] = reading
		m.mu.Unlock()
	}
	defer m.end(key, reading)
	changes := &m.store.changes
	k, commits := keptStats{at: m.steady(), version: changes.versionOf(key.widget)}, changes.commits.Load()
	if reading.taggedBody, reading.err = f(); reading.err == nil {
		k.taggedBody, k.exact = reading.taggedBody, changes.commits.Load() == commits
		m.keep(key, k)
	}
	return k.taggedBody, reading.err
}

// end ends a reading for those that wait for it.
func (m *statsMemory) end(key statsKey, reading *statsReading) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readings[key] == reading {
		delete(m.readings, key)
	}
	close(reading.done)
}

// keep adds an answer to those in memory.
func (m *statsMemory) keep(key statsKey, k keptStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	makeRoom(m.kept, key, maxKeptStats)
	m.kept[key] = k
}

// The picture of statistics: a bar for each interval, as an SVG image that works in an <img>. It is 400
// by 200 units large and scales with its box. Its texts would scale too, so the style, which sees the
// width of the box, makes them larger in small ones. It brings its own background, since pages do not
// always follow the color scheme that the style follows.

// pictureStyle is the style of every picture.
const pictureStyle = `
.back{fill:#fff}.bars{fill:#0a6c8f}.axis{stroke:#c9d1d9}
text{font:12px system-ui,sans-serif;fill:#1f2328}.total{font-weight:600}.minor{fill:#57606a}
@media(max-width:400px){text{font-size:17px}}
@media(max-width:260px){text{font-size:28px}.busiest{display:none}}
@media(min-width:640px){text{font-size:9px}}
@media(prefers-color-scheme:dark){
.back{fill:#0d1117}.bars{fill:#4fb3d9}.axis{stroke:#3d444d}text{fill:#f0f6fc}.minor{fill:#a3acb6}}
`

// picturePolicy is the Content-Security-Policy of pictures, for browsers that open one as a page: it
// allows pictureStyle and nothing else.
var picturePolicy = "default-src 'none'; style-src '" + hashSource(pictureStyle) + "'"

// Where the parts of a picture are, in its units.
const (
	pictureWidth, pictureHeight = 400, 200
	pictureMargin               = 12 // at the left and right of everything
	barsTop, barsBottom         = 48, 158
)

// picture returns a report as an SVG image (contract, section 5).
func (r *statsReport) picture() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" lang="en" width="%d" height="%d"`+
		` viewBox="0 0 %[1]d %d" role="img" aria-labelledby="title desc">`+
		`<title id="title">%s</title><desc id="desc">%s</desc><style>%s</style>`+
		`<rect class="back" width="100%%" height="100%%" rx="6"/>`, pictureWidth, pictureHeight,
		xmlText(r.pictureTitle()), xmlText(r.pictureText()), pictureStyle)
	const right = pictureWidth - pictureMargin
	if busiest := r.busiest(); busiest.Views > 0 {
		fmt.Fprintf(&b, `<text class="total" x="%d" y="34">%s</text>`, pictureMargin, amount(r.Totals.Views, "view"))
		if len(r.Series) > 1 {
			fmt.Fprintf(&b, `<text class="minor busiest" x="%d" y="34" text-anchor="end">most in a %s: %s</text>`,
				right, r.Interval, thousands(busiest.Views))
		}
		fmt.Fprintf(&b, `<path class="bars" d="%s"/>`, r.bars(busiest.Views))
	} else {
		fmt.Fprintf(&b, `<text class="minor" x="50%%" y="104" text-anchor="middle">No views yet</text>`)
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%d %d.5H%d"/>`, pictureMargin, barsBottom, right)
	first, last := r.rangeLabels()
	if first != "" {
		fmt.Fprintf(&b, `<text class="minor" x="%d" y="186">%s</text>`, pictureMargin, first)
	}
	fmt.Fprintf(&b, `<text class="minor" x="%d" y="186" text-anchor="end">%s</text></svg>`+"\n", right, last)
	return []byte(b.String())
}

// bars returns the path of a picture's bars; most is the largest number of views. A bar leaves a fifth
// of its place empty, unless there are so many that it would blur them. One with any view is at least a
// unit high, so that it can be seen.
func (r *statsReport) bars(most int64) string {
	var path strings.Builder
	step := float64(pictureWidth-2*pictureMargin) / float64(len(r.Series))
	width := step
	if len(r.Series) <= 120 {
		width = min(step*0.8, 48)
	}
	for i, p := range r.Series {
		if p.Views <= 0 {
			continue
		}
		height := max(1, float64(barsBottom-barsTop)*(float64(p.Views)/float64(most)))
		x := pictureMargin + step*float64(i) + (step-width)/2
		fmt.Fprintf(&path, "M%.2f %dv-%.1fh%.2fv%.1fz", x, barsBottom, height, width, height)
	}
	return path.String()
}

// pictureTitle returns the title of a picture: what it is about, and how many views there were.
func (r *statsReport) pictureTitle() string {
	name := "All widgets"
	if r.Widget != "" {
		name = r.Name
	}
	if r.busiest().Views <= 0 {
		return name + ": no views yet"
	}
	return name + ": " + amount(r.Totals.Views, "view")
}

// pictureText returns in words what a picture shows.
func (r *statsReport) pictureText() string {
	when := "On " + dateWords(r.From)
	if r.From != r.To {
		when = "From " + dateWords(r.From) + " to " + dateWords(r.To)
	}
	text := fmt.Sprintf("%s (%s): %s.", when, r.Timezone, strings.Join(r.Totals.inWords(), ", "))
	busiest := r.busiest()
	if busiest.Views <= 0 || len(r.Series) == 1 {
		return text
	}
	began := dateWords(busiest.Date)
	switch r.Interval {
	case "week":
		began = "that of " + began
	case "month":
		_, began, _ = strings.Cut(began, " ")
	}
	return fmt.Sprintf("%s The busiest %s was %s, with %s.", text, r.Interval, began, amount(busiest.Views, "view"))
}

// busiest returns the point with the most views, the first one if there are several.
func (r *statsReport) busiest() shownPoint {
	return slices.MaxFunc(r.Series, func(a, b shownPoint) int {
		return cmp.Compare(a.Views, b.Views)
	})
}

// rangeLabels returns the first and last date of a picture, in short; a range of one day has no first.
func (r *statsReport) rangeLabels() (first, last string) {
	from, to := dayOf(r.From), dayOf(r.To)
	switch {
	case r.From == r.To:
	case from.Year() == to.Year():
		first = from.Format("2 Jan")
	default:
		first = from.Format("2 Jan 2006")
	}
	return first, to.Format("2 Jan 2006")
}

// dateWords returns a date of a report in words: 2 January 2026.
func dateWords(date string) string { return dayOf(date).Format("2 January 2006") }

// dayOf returns a date of a report as midnight UTC.
func dayOf(date string) time.Time {
	day, _ := time.Parse(time.DateOnly, date) // a report has only dates that time has formatted
	return day
}

// inWords returns counts as "1,200 views", "70 visitors" and so on, without the orders if these are not
// shown.
func (c shownCounts) inWords() []string {
	words := []string{amount(c.Views, "view"), amount(c.Visitors, "visitor"), amount(c.Clicks, "click")}
	if c.Orders != nil {
		words = append(words, amount(*c.Orders, "order"))
	}
	return words
}

// amount returns a number of things in words: "1 view", "1,200 views".
func amount(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return thousands(n) + " " + noun
}

// thousands returns a number with commas: 1,234,567.
func thousands(n int64) string { return groupDigits(strconv.FormatInt(n, 10)) }

// groupDigits puts a comma between the thousands of a whole number: "-1,234".
func groupDigits(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// xmlText returns a text escaped for XML; what XML can't hold becomes U+FFFD.
func xmlText(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s)) // a strings.Builder never fails
	return b.String()
}
