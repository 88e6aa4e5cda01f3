package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"
)

// scopeStats is the scope that reads what widgets have counted.
const scopeStats = "stats:read"

// widgetNoun declares widgets, their counters, and the script that reports to them.
func widgetNoun() noun {
	return noun{
		name:     "widget",
		modules:  func(s *server) []module { return []module{widgetModule(s), scriptModule(s)} },
		commands: widgetCommands,
		calls:    widgetRouteCommands,
		ids:      []idKind{{"WIDGET", "wgt", "widgets", false, nil}},
		problems: widgetProblems,
		events:   widgetEvents,
		rows:     []rowReader{widgetTable.unreadable},
		holdings: []holding{heldWidgets},
	}
}

// The event types of widgets. Their data never has the name of a widget.
var (
	widgetEvents eventTable

	eventWidgetCreated = widgetEvents.add("widget.created")
	eventWidgetRenamed = widgetEvents.add("widget.renamed")
	eventWidgetRemoved = widgetEvents.add("widget.removed")
)

// A widget is one embedded lunch menu. Its id is public.
type widget struct {
	ID           string `json:"id"`
	AccountID    string `json:"account_id"`
	Name         string `json:"name"`
	PublicOrders bool   `json:"public_orders"` // callers without a token see the orders too
	CreatedAt    stamp  `json:"created_at"`
}

// counts are the counters of a widget.
type counts struct {
	Views    int64 `json:"views"`    // How often the widget was shown.
	Visitors int64 `json:"visitors"` // Views that were a visitor's first of the UTC day.
	Clicks   int64 `json:"clicks"`   // Clicks on an item.
	Orders   int64 `json:"orders"`   // Orders placed.
}

func (c *counts) add(more counts) {
	c.Views += more.Views
	c.Visitors += more.Visitors
	c.Clicks += more.Clicks
	c.Orders += more.Orders
}

// A nameCount holds the counters of one name that a widget reports: of a dish of the menu, or of a page
// that the widget is on.
type nameCount struct {
	Name string
	counts
}

const (
	quarterHour = 15 * time.Minute // of a row of counters; days begin at a multiple of it in every time zone
	maxNames    = 100              // of items that a widget may have on a UTC day, and of pages
	otherName   = "other"          // under which all further ones are counted
)

// The problem codes of widgets.
var (
	widgetProblems problemTable

	codeWidgetNotFound = widgetProblems.add(404, "widget_not_found", "Widget not found",
		"There is no widget with this id.",
		"Correct the id of the widget.")

	errWidget = &refusal{code: codeWidgetNotFound}
)

// A statsRange is what statistics are asked for: the days from From to To, both included, in
// the time zone Zone, grouped by Interval.
type statsRange struct {
	From, To time.Time // midnight UTC of the calendar dates
	Interval statsInterval
	Zone     *time.Location
}

// A statsInterval is what a point of the series covers. A week begins on Monday.
type statsInterval string

var statsIntervals = declareWords[statsInterval]("day", "week", "month")

const (
	maxStatsDays     = 366
	defaultStatsDays = 30
	topNamesShown    = 10
)

// setDays sets the days of a range: those that are given, where zero means not given, by default the 30
// days that end at to, which is today by default. It returns what is wrong with them; "": nothing.
func (r *statsRange) setDays(from, to, now time.Time) (wrong string) {
	r.From, r.To = from, to
	if r.To.IsZero() {
		r.To = dateIn(r.Zone, now)
	}
	if r.From.IsZero() {
		r.From = r.To.AddDate(0, 0, 1-defaultStatsDays)
	}
	switch days := int(r.To.Sub(r.From).Hours()/24) + 1; {
	case days < 1:
		return "The range ends before it begins."
	case days > maxStatsDays:
		return fmt.Sprintf("The range has more than %d days.", maxStatsDays)
	}
	return ""
}

// group returns the first date of the interval that a date belongs to: the date itself, the
// Monday of its week or the first of its month.
func (r statsRange) group(date time.Time) time.Time {
	switch r.Interval {
	case "week":
		return date.AddDate(0, 0, -(int(date.Weekday())+6)%7)
	case "month":
		return date.AddDate(0, 0, 1-date.Day())
	}
	return date
}

// A widgetRow is the counts of one widget in the range.
type widgetRow struct {
	Widget string `json:"widget" is:"wgt"` // The id of the widget.
	Name   string `json:"name"`            // Its name.
	counts
}

// A series adds up counts by interval. It has a point for every interval of the range, with
// zeros where nothing was counted.
type series struct {
	points  []accountPoint
	periods []period // in order of time; empty: no moment is on a date of the range
	totals  counts
}

// maxOffset is more than any zone's offset from UTC, and than any change of a zone's clocks.
const maxOffset = 48 * time.Hour

// newSeries makes the series of a range. A quarter-hour belongs to the date that it begins on, so the
// periods follow the clocks of the zone: where these skip a date it has no period, and where they are set
// back over midnight a date has two, with one of the date before in between.
func newSeries(r statsRange) *series {
	s := &series{points: []accountPoint{}}
	pointOf := map[time.Time]int{} // by date
	for date := r.From; !date.After(r.To); date = date.AddDate(0, 0, 1) {
		label := r.group(date).Format(time.DateOnly)
		if n := len(s.points); n == 0 || s.points[n-1].Date != label {
			s.points = append(s.points, accountPoint{Date: label})
		}
		pointOf[date] = len(s.points) - 1
	}
	end := r.To.Add(maxOffset + 24*time.Hour)
	for t := r.From.Add(-maxOffset); t.Before(end); {
		date, next := dateIn(r.Zone, t), nextDate(t.In(r.Zone))
		if point, in := pointOf[date]; in {
			s.addPeriod(period{newStamp(t), newStamp(next), point})
		}
		t = next
	}
	return s
}

// nextDate returns when the date of a time ends: at midnight, or earlier, when the clocks of its zone
// are set.
func nextDate(t time.Time) time.Time {
	sinceMidnight := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute +
		time.Duration(t.Second())*time.Second + time.Duration(t.Nanosecond())
	next := t.Add(24*time.Hour - sinceMidnight)
	if _, set := t.ZoneBounds(); set.After(t) && set.Before(next) {
		return set
	}
	return next
}

// addPeriod adds a period that is later than all others. If it continues the last one, it extends that.
func (s *series) addPeriod(next period) {
	if n := len(s.periods); n > 0 {
		if last := &s.periods[n-1]; last.point == next.point && last.until == next.from {
			last.until = next.until
			return
		}
	}
	s.periods = append(s.periods, next)
}

// bounds returns when the first period begins and when the last one ends; the same time if there is none.
func (s *series) bounds() (from, until stamp) {
	if len(s.periods) == 0 {
		return stamp{}, stamp{}
	}
	return s.periods[0].from, s.periods[len(s.periods)-1].until
}

// add adds what was counted in a period of the series.
func (s *series) add(in period, c counts) {
	s.points[in.point].add(c)
	s.totals.add(c)
}

// A statsReport has what was counted in a range: of one widget, or of all of an account or of all accounts.
type statsReport struct {
	statsSpan
	totals counts
	series []accountPoint

	widget     *widget // nil: it is of several
	withOrders bool    // who asks may see the orders of the widget
	items      []topItem
	pages      []topPage // nil: who asks may not see them

	account string // whose widgets it is of; "": of all accounts
	trapped int64
	widgets []widgetRow
}

// A statsSpan is the range of a report.
type statsSpan struct {
	From     string        `json:"from" is:"date"` // The first day.
	To       string        `json:"to" is:"date"`   // The last day, included.
	Interval statsInterval `json:"interval"`       // What a point of the series covers.
	Timezone string        `json:"timezone"`       // The time zone of the days.
}

// A widgetStats is statistics of one widget.
type widgetStats struct {
	Widget string `json:"widget" is:"wgt"` // The id of the widget.
	Name   string `json:"name"`            // Its name.
	statsSpan
	Totals widgetCounts  `json:"totals"` // The counts of the range.
	Series []widgetPoint `json:"series"` // A point for every interval of the range, zeros included.

	// The items with the most clicks and orders, of the UTC days that the range touches.
	TopItems []topItem `json:"top_items" most:"10"`

	// The pages with the most views, clicks and orders, of the UTC days that the range touches; absent without a token.
	TopPages []topPage `json:"top_pages,omitzero" most:"10"`
}

// A widgetCounts is counts of one widget.
type widgetCounts struct{ shownCounts }

// shownCounts are counts as a caller may see them.
type shownCounts struct {
	Views    int64 `json:"views"`    // How often the widget was shown.
	Visitors int64 `json:"visitors"` // Views that were a visitor's first of the UTC day.
	Clicks   int64 `json:"clicks"`   // Clicks on an item.

	// Orders placed. Absent for callers without a token, unless the widget shows them to everybody.
	Orders *int64 `json:"orders,omitempty"`
}

// A widgetPoint is counts of one interval of one widget.
type widgetPoint struct {
	Date string `json:"date" is:"date"` // The day, the Monday of the week or the first of the month.
	shownCounts
}

// A topItem is how often an item was clicked and ordered.
type topItem struct {
	Item   string `json:"item"`             // The item, or `other`.
	Clicks int64  `json:"clicks"`           // Clicks on it.
	Orders *int64 `json:"orders,omitempty"` // Orders of it; absent where orders are not shown.
}

// A topPage is what a widget counted on a page.
type topPage struct {
	Page   string `json:"page"`   // The path of the page, or `other`.
	Views  int64  `json:"views"`  // How often the widget was shown there.
	Clicks int64  `json:"clicks"` // Clicks on an item there.
	Orders int64  `json:"orders"` // Orders placed there.
}

// An accountStats is statistics of all widgets of an account.
type accountStats struct {
	AccountID string `json:"account_id" is:"acct"` // The account.
	allStats
}

// Statistics of several widgets.
type allStats struct {
	statsSpan
	Totals  accountCounts  `json:"totals"`  // The counts of the range.
	Series  []accountPoint `json:"series"`  // A point for every interval of the range, zeros included.
	Widgets []widgetRow    `json:"widgets"` // A row for each widget.
}

// An accountCounts is counts of all widgets of an account.
type accountCounts struct {
	counts
	Trapped int64 `json:"trapped"` // Leads that the trap for bots has caught, by UTC day; kept for 400 days.
}

// An accountPoint is counts of one interval of an account.
type accountPoint struct {
	Date string `json:"date" is:"date"` // The day, the Monday of the week or the first of the month.
	counts
}

// shown returns counts as a caller may see them.
func (c counts) shown(withOrders bool) shownCounts {
	shown := shownCounts{c.Views, c.Visitors, c.Clicks, nil}
	if withOrders {
		shown.Orders = &c.Orders
	}
	return shown
}

// shown returns a report as it is encoded: a *widgetStats, *accountStats or, of all accounts, *allStats.
func (r *statsReport) shown() any {
	all := allStats{r.statsSpan, accountCounts{r.totals, r.trapped}, r.series, r.widgets}
	switch {
	case r.widget == nil && r.account == "":
		return &all
	case r.widget == nil:
		return &accountStats{r.account, all}
	}
	points := make([]widgetPoint, len(r.series))
	for i, p := range r.series {
		points[i] = widgetPoint{p.Date, p.shown(r.withOrders)}
	}
	totals := widgetCounts{r.totals.shown(r.withOrders)}
	return &widgetStats{r.widget.ID, r.widget.Name, r.statsSpan, totals, points, r.items, r.pages}
}

// report returns the report of a range with what a series has counted.
func (r statsRange) report(s *series) *statsReport {
	return &statsReport{statsSpan: statsSpan{r.From.Format(time.DateOnly), r.To.Format(time.DateOnly), r.Interval,
		r.Zone.String()}, totals: s.totals, series: s.points, withOrders: true}
}

// reportWidget makes the report for one widget from its counters, with or without orders and pages.
func reportWidget(q *queries, w *widget, r statsRange, withOrders, withPages bool) (*statsReport, error) {
	sum := newSeries(r)
	err := q.eachPeriod(anyAccount, w.ID, sum.periods, func(_ string, p period, c counts) { sum.add(p, c) })
	if err != nil {
		return nil, err
	}
	report := r.report(sum)
	report.widget, report.withOrders = w, withOrders
	from, until := sum.bounds()
	items, err := q.topItems(w.ID, from, until, withOrders, topNamesShown)
	if err != nil {
		return nil, err
	}
	report.items = append([]topItem{}, items...)
	if !withPages {
		return report, nil
	}
	pages, err := q.topPages(w.ID, from, until, topNamesShown)
	report.pages = append([]topPage{}, pages...)
	return report, err
}

// reportWidgets makes the report for all widgets of an owner from their counters.
func reportWidgets(q *queries, o owner, r statsRange) (*statsReport, error) {
	widgets, err := q.widgets(o)
	if err != nil {
		return nil, err
	}
	rows := make([]widgetRow, len(widgets))
	rowOf := map[string]*widgetRow{}
	for i, w := range widgets {
		rows[i] = widgetRow{Widget: w.ID, Name: w.Name}
		rowOf[w.ID] = &rows[i]
	}
	sum := newSeries(r)
	err = q.eachPeriod(o, "", sum.periods, func(id string, p period, c counts) {
		if row := rowOf[id]; row != nil { // nil: the widget was added after widgets had been read
			row.add(c)
			sum.add(p, c)
		}
	})
	if err != nil {
		return nil, err
	}
	report := r.report(sum)
	report.account, report.widgets = o.account, rows
	report.trapped, err = q.trapped(o, r.From, r.To)
	return report, err
}

// A visitorSet remembers who was counted as a visitor on the current UTC day, without cookies
// and without addresses: it holds hashes with a salt that is replaced every UTC day, in memory
// only (contract, section 5). Its zero value is ready for use.
type visitorSet struct {
	mu     sync.Mutex
	day    string
	salt   [32]byte
	counts *counter[uint64] // of visitors: all, a widget's, of them those from an address, and each by itself
}

// What bounds a visitorSet: once one of these is reached, no new visitor is counted until the next UTC day. A million
// visitors take 36 MiB, and as much again to count them by address, if each has another.
const (
	maxVisitors          = 1_000_000
	maxVisitorsOfWidget  = maxVisitors / 10
	maxVisitorsOfAddress = 64 // of one widget
)

// addVisitor adds a visitor of a widget and reports whether this is its first view of the UTC
// day of now. undo removes the entry again, for when the view could not be counted.
func (b *visitorSet) addVisitor(widgetID, address, userAgent string,
	now time.Time) (first bool, undo func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if today := now.UTC().Format(time.DateOnly); today != b.day {
		b.day, b.counts = today, &counter[uint64]{}
		rand.Read(b.salt[:])
	}
	under := []ceiling[uint64]{{b.hash(), maxVisitors}, {b.hash(widgetID), maxVisitorsOfWidget},
		{b.hash(widgetID, address), maxVisitorsOfAddress}, {b.hash(widgetID, address, userAgent), 1}}
	if b.counts.add(1, under...) != nil {
		return false, func() {}
	}
	counts := b.counts // of that day
	return true, func() { counts.add(-1, under...) }
}

// hash returns the beginning of the salted SHA-256 of texts.
func (b *visitorSet) hash(texts ...string) uint64 {
	sum := sha256.Sum256(append(b.salt[:], strings.Join(texts, "\n")...))
	return binary.BigEndian.Uint64(sum[:])
}
