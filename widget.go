package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
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

// widgetTable describes the table widgets.
var widgetTable = newTable("widgets", "w", func(w *widget) []field {
	return []field{{"id", &w.ID}, {"account_id", &w.AccountID}, {"name", &w.Name},
		{"public_orders", &w.PublicOrders}, {"created_at", &w.CreatedAt}}
})

// widget returns a widget of an open account, or errNotFound.
func (q *queries) widget(id string) (*widget, error) {
	return widgetTable.one(q, `JOIN accounts a ON a.id = w.account_id WHERE w.id = ? AND a.closed_at IS NULL`, id)
}

// widgets returns the widgets of an owner, oldest first.
func (q *queries) widgets(o owner) ([]widget, error) {
	query, args := o.narrow(widgetTable.query+`WHERE 1`, `w.account_id`)
	return collectReadable(q, query+` ORDER BY w.id`, args, widgetTable.dest)
}

// widgetEvent returns an event about a widget.
func widgetEvent(w *widget, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: w.AccountID, SubjectID: w.ID, Actor: actor, Data: eventData(data...)}
}

// anyWidget returns a widget, also of a closed account, or errNotFound.
func (q *queries) anyWidget(id string) (*widget, error) {
	return widgetTable.one(q, `WHERE w.id = ?`, id)
}

// addWidget adds a widget, with its event, and returns its id, or errAccount.
func (t *tx) addWidget(accountID, name string, publicOrders bool, actor string) (string, error) {
	if err := t.openAccount(accountID); err != nil {
		return "", err
	}
	w := &widget{t.newID("wgt"), accountID, name, publicOrders, t.now}
	widgetTable.insert(t, w)
	t.addEvent(widgetEvent(w, eventWidgetCreated, actor, "public_orders", trueOrEmpty(publicOrders)))
	return w.ID, nil
}

// renameWidget gives a widget another name, with its event, or returns errNotFound. Giving
// it the name that it already has changes nothing.
func (t *tx) renameWidget(id, name, actor string) error {
	w, err := t.anyWidget(id)
	if err != nil || w.Name == name {
		return err
	}
	t.exec(`UPDATE widgets SET name = ? WHERE id = ?`, name, id)
	t.addEvent(widgetEvent(w, eventWidgetRenamed, actor))
	return nil
}

// countWidgetRows returns how many rows the counters of a widget have, or errNotFound if there is
// no such widget.
func (q *queries) countWidgetRows(id string) (rows int64, err error) {
	return oneValue[int64](q, `SELECT (SELECT count(*) FROM item_counts c WHERE c.widget_id = w.id) +
		(SELECT count(*) FROM page_counts c WHERE c.widget_id = w.id) +
		(SELECT count(*) FROM widget_counts c WHERE c.widget_id = w.id) FROM widgets w WHERE w.id = ?`, id)
}

// widgetRows are the tables of what widgets count, with the columns of their keys besides widget_id.
var widgetRows = []struct{ table, key string }{
	{"item_counts", "day, item"},
	{"page_counts", "day, page"},
	{"widget_counts", "quarter"},
}

// widgetRowsAtOnce is how many rows of each table one transaction of removeWidget removes.
const widgetRowsAtOnce = 5_000

// removeWidget removes up to widgetRowsAtOnce rows of each kind of a widget's counters, and when
// none is left the widget itself, with its event. It returns how many rows of counters it has removed, together with
// those that earlier calls have, and whether more are left, or errNotFound. See inParts.
func (t *tx) removeWidget(id, actor string, earlier int64) (removed int64, more bool, err error) {
	w, err := t.anyWidget(id)
	if err != nil {
		return 0, false, err
	}
	removed = earlier
	for _, rowsOf := range widgetRows {
		n := t.exec(`DELETE FROM `+rowsOf.table+` WHERE widget_id = ?1 AND (`+rowsOf.key+`) IN
			(SELECT `+rowsOf.key+` FROM `+rowsOf.table+` WHERE widget_id = ?1 LIMIT ?2)`, id, widgetRowsAtOnce)
		removed += n
		more = more || n == widgetRowsAtOnce
	}
	if more {
		return removed, true, nil
	}
	t.exec(`DELETE FROM widgets WHERE id = ?`, id)
	t.addEvent(widgetEvent(w, eventWidgetRemoved, actor, "rows", fmt.Sprint(removed)))
	return removed, false, nil
}

// A nameTable is a table with the counters of names by widget and UTC day.
type nameTable struct {
	add    string // adds to the row of a name, if there is one
	insert string // inserts the row, or adds to it
	names  string // counts the names of a day
}

var (
	itemTable = newNameTable("item_counts", "item", false)
	pageTable = newNameTable("page_counts", "page", true)
)

// newNameTable makes the statements for a table; views says whether it counts views.
func newNameTable(table, column string, views bool) *nameTable {
	n := &nameTable{}
	add, columns, values := `clicks = clicks + ?5, orders = orders + ?6`, `clicks, orders`, `?5, ?6`
	if views {
		add, columns, values = `views = views + ?4, `+add, `views, `+columns, `?4, `+values
	}
	n.add = `UPDATE ` + table + ` SET ` + add + ` WHERE widget_id = ?1 AND day = ?2 AND ` + column + ` = ?3`
	n.insert = `INSERT INTO ` + table + ` (widget_id, day, ` + column + `, ` + columns + `) VALUES (?1, ?2, ?3, ` +
		values + `) ON CONFLICT DO UPDATE SET ` + add
	n.names = `SELECT count(*) FROM ` + table + ` WHERE widget_id = ? AND day = ? AND ` + column + ` <> ?`
	return n
}

// A tally adds up what the jobs of a batch count for widgets (see total), so that each row is
// written once: under load most events are for a few widgets.
type tally struct {
	rows  map[tallyKey]*counts
	order []tallyKey // in which the rows were added
}

// A tallyKey identifies a row: the counters of a widget in a quarter-hour, or of a name of it on a UTC day.
type tallyKey struct {
	widget string
	begins stamp      // the quarter-hour, or the day
	table  *nameTable // nil: the widget itself
	name   string
}

func (y *tally) add(key tallyKey, c counts) {
	row := y.rows[key]
	if row == nil {
		if y.rows == nil {
			y.rows = map[tallyKey]*counts{}
		}
		row = &counts{}
		y.rows[key] = row
		y.order = append(y.order, key)
	}
	row.add(c)
}

// merge implements total.
func (y *tally) merge(other total) {
	more := other.(*tally)
	for _, key := range more.order {
		y.add(key, *more.rows[key])
	}
}

// addCounts adds to the counters of a widget in the quarter-hour of the transaction, and to those of
// its items and pages on the UTC day. They are written before the commit, see total.
func (t *tx) addCounts(widgetID string, c counts, items, pages []nameCount) {
	quarter, day := stamp{t.now.Truncate(quarterHour)}, stamp{t.now.Truncate(24 * time.Hour)}
	y := &tally{}
	y.add(tallyKey{widget: widgetID, begins: quarter}, c)
	for _, item := range items {
		y.add(tallyKey{widgetID, day, itemTable, item.Name}, item.counts)
	}
	for _, page := range pages {
		y.add(tallyKey{widgetID, day, pageTable, page.Name}, page.counts)
	}
	t.total = addTotals(t.total, y)
}

// write implements total. What was counted for a widget that was removed meanwhile is left out: it
// would break a foreign key, and with it the whole batch.
func (y *tally) write(t *tx) error {
	exists := map[string]bool{}
	for _, key := range y.order {
		if _, known := exists[key.widget]; !known {
			_, err := t.anyWidget(key.widget)
			if err != nil && !errors.Is(err, errNotFound) {
				return err
			}
			exists[key.widget] = err == nil
		}
		if !exists[key.widget] {
			continue
		}
		c := y.rows[key]
		if key.table == nil {
			t.exec(`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders)
				VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET views = views + excluded.views, visitors = visitors + excluded.visitors,
				clicks = clicks + excluded.clicks, orders = orders + excluded.orders`,
				key.widget, key.begins, c.Views, c.Visitors, c.Clicks, c.Orders)
			continue
		}
		if err := t.addNameCounts(key, *c); err != nil {
			return err
		}
	}
	return nil
}

// addNameCounts adds to the counters of a name on a UTC day: under the name itself if it has been
// counted on that day or the widget has counted fewer than maxNames others, else under otherName.
func (t *tx) addNameCounts(key tallyKey, c counts) error {
	day := key.begins.Format(time.DateOnly)
	row := []any{key.widget, day, key.name, c.Views, c.Clicks, c.Orders}
	if t.exec(key.table.add, row...) > 0 {
		return nil
	}
	var names int
	if err := t.one(key.table.names, []any{key.widget, day, otherName}, &names); err != nil {
		return err
	}
	if names >= maxNames {
		row[2] = otherName
	}
	t.exec(key.table.insert, row...)
	return nil
}

// A period is a part of a range whose counts belong to one point of a series.
type period struct {
	from, until stamp // from is included, until is not
	point       int   // its index in the series
}

// periodSums are the sums of what a widget w counted in a period p; NULL: nothing.
const periodSums = `SELECT sum(views) || ' ' || sum(visitors) || ' ' || sum(clicks) || ' ' || sum(orders)
	FROM widget_counts c WHERE c.widget_id = w.id AND c.quarter >= substr(p.value, 1, 20)
	AND c.quarter < substr(p.value, 21)`

// eachPeriod calls f for every period in which a widget of an owner counted something: the one with an id, or with ""
// each. Adding up in SQL takes a quarter of the time that reading every row does.
func (q *queries) eachPeriod(
	o owner, widgetID string, all []period, f func(widgetID string, p period, c counts),
) error {
	list := make([]string, 0, len(all))
	for _, p := range all {
		list = append(list, p.from.String()+p.until.String())
	}
	query, args := o.narrow(`SELECT w.id, p.key, (`+periodSums+`) FROM widgets w, json_each(?) p WHERE 1`,
		`w.account_id`, string(encodeJSON(list)))
	if widgetID != "" {
		query, args = query+` AND w.id = ?`, append(args, widgetID)
	}
	return q.each(query, args, func(scan func(...any) error) error {
		var id string
		var index int
		var sums *string
		if err := scan(&id, &index, &sums); err != nil || sums == nil {
			return err
		}
		var c counts
		if _, err := fmt.Sscan(*sums, &c.Views, &c.Visitors, &c.Clicks, &c.Orders); err != nil {
			return fmt.Errorf("add up what %s counted: %w", id, err)
		}
		f(id, all[index], c)
		return nil
	})
}

// topItems returns the items of a widget with the most clicks, or withOrders the most clicks and orders
// together, on the UTC days that a range touches; from is included, until is not.
func (q *queries) topItems(widgetID string, from, until stamp, withOrders bool, limit int) ([]topItem, error) {
	return topNames(q, `item, sum(clicks), iif(?1, sum(orders), NULL) FROM item_counts`,
		`sum(clicks) + ?1 * sum(orders)`, []any{withOrders, widgetID, limit}, from, until,
		func(i *topItem) []any { return []any{&i.Item, &i.Clicks, &i.Orders} })
}

// topPages returns the pages of a widget with the most views, clicks and orders together, like topItems.
func (q *queries) topPages(widgetID string, from, until stamp, limit int) ([]topPage, error) {
	return topNames(q, `page, sum(views), sum(clicks), sum(orders) FROM page_counts`,
		`sum(views) + sum(clicks) + ?1 * sum(orders)`, []any{true, widgetID, limit}, from, until,
		func(p *topPage) []any { return []any{&p.Page, &p.Views, &p.Clicks, &p.Orders} })
}

// topNames returns the names of a table with the largest weight. In what is selected and in the weight, both SQL,
// ?1 is whether orders count. args are that, the widget and the limit.
func topNames[T any](
	q *queries, selected, weight string, args []any, from, until stamp, dest func(*T) []any,
) ([]T, error) {
	if !from.Before(until.Time) {
		return nil, nil
	}
	firstDay, lastDay := from.Format(time.DateOnly), until.after(-time.Second).Format(time.DateOnly)
	return collect(q, `SELECT `+selected+` WHERE widget_id = ?2 AND day >= ?4 AND day <= ?5
		GROUP BY 1 HAVING `+weight+` > 0 ORDER BY `+weight+` DESC, 1 LIMIT ?3`, append(args, firstDay, lastDay), dest)
}

var heldWidgets = holding{"widgets", "widget", `SELECT count(*) FROM widgets WHERE account_id = ?1`, ""}
