package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The problem codes of widgets.
var (
	widgetProblems problemTable

	codeWidgetNotFound = widgetProblems.add(404, "widget_not_found", "Widget not found",
		"There is no widget with this id.")

	errWidget = &refusal{code: codeWidgetNotFound}
)

// A widgetAPI serves the endpoints of widgets: the events that they report, and statistics.
type widgetAPI struct {
	*server
	visitors visitorSet
	widgets  *cache[string, widget] // by id
	stats    *cache[statsKey, taggedBody]
}

func widgetWing(s *server) wing {
	a := &widgetAPI{
		server:  s,
		widgets: newCache[string, widget](1_000),
		stats:   newCache[statsKey, taggedBody](500),
	}
	return wing{routes: []route{
		{
			pattern: "POST /widget/events",
			origin:  originRequired,
			address: "events",
			beacon:  true,
			creates: true,
			bucket:  bucketWidgets,
			charge:  a.charge,
			run:     endpoint(a.countEvents),
		},
		{
			pattern:  "GET /widget/stats",
			token:    tokenOptional,
			scope:    scopeStats,
			address:  "stats",
			question: true,
			bucket:   bucketWidgets,
			charge:   a.charge,
			run:      endpoint(a.widgetStats),
		},
	}}
}

// The options of these commands.
var (
	optPublicOrders = option{name: "public-orders",
		help: "show the widget's orders to everybody, not only to callers with a token"}
	optWidget = option{name: "widget", value: "ID", help: "show one widget; by default all"}
)

// The operator's commands on widgets.
var widgetCommands = []command{
	{"widget add", "NAME", "add a widget",
		[]option{optAccount.says("the account that the widget belongs to"), optPublicOrders}, 1, widgetAdd},
	{"widget list", "", "list widgets",
		[]option{optAccount.says("show only widgets of this account")}, 0, widgetList},
	{"widget snippet", "ID", "print the line to paste into a page, and what its Content-Security-Policy must allow",
		nil, 1, widgetSnippet},
	{"widget rename", "ID NAME", "give a widget another name", nil, 2, widgetRename},
	{"widget remove", "ID", "remove a widget with everything that it counted",
		[]option{optForce.says("remove it although it has counted something")}, 1, widgetRemove},
	{"stats", "", "show the last 30 days of the widgets", []option{optWidget}, 0, statsShow},
}

// findWidget returns a widget of an open account, or errWidget.
func (a *widgetAPI) findWidget(id string) (widget, error) {
	w, err := a.cachedWidget(id)
	if errors.Is(err, errNotFound) {
		err = errWidget
	}
	return w, err
}

// charge is the chargeFunc of widgets: the account of the caller's token, else the one that
// owns the widget which the request names, else the one that owns the Origin.
func (a *widgetAPI) charge(c *call, _ *input, request any) (string, error) {
	if c.caller != nil {
		return c.caller.claims.Subject, nil
	}
	if id := request.(interface{ widgetID() string }).widgetID(); id != "" {
		w, err := a.cachedWidget(id)
		if !errors.Is(err, errNotFound) {
			return w.AccountID, err
		}
	}
	return c.origin.account, nil
}

// eventsRequest is the body of POST /widget/events (contract, section 5).
type eventsRequest struct {
	widget string
	counts counts
	items  []itemCount
}

const maxWidgetEvents = 50 // in one request

func (q *eventsRequest) widgetID() string { return q.widget }

func (q *eventsRequest) read(in *input) {
	q.widget = in.text("widget", required, 64, isID("wgt"))
	items := map[string]int{}
	for _, event := range in.objects("events", maxWidgetEvents) {
		kind := event.text("type", required, 32, oneOf("view", "click", "order"))
		item := event.text("item", optional, 100, nil)
		event.text("page", optional, 2048, checkPage)
		var counted itemCount
		switch kind {
		case "view":
			q.counts.Views++
			continue
		case "click":
			q.counts.Clicks++
			counted.Clicks = 1
		case "order":
			q.counts.Orders++
			counted.Orders = 1
		}
		if item == "" {
			continue
		}
		at, known := items[item]
		if !known {
			at = len(q.items)
			items[item] = at
			q.items = append(q.items, itemCount{Item: item})
		}
		q.items[at].Clicks += counted.Clicks
		q.items[at].Orders += counted.Orders
	}
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
		t.addCounts(w.ID, q.counts, q.items)
		return noContent{}, nil
	})
	if err != nil || c.replay != nil { // this request counted no view
		undo()
	}
	return noContent{}, err
}

// statsRequest is the query of GET /widget/stats.
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
	q.Interval = cmp.Or(in.parameter("interval", oneOf("day", "week", "month")), "day")
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

// complete sets the range of a query to its from and to, by default the 30 days that end at
// to, which is today by default. It refuses a range that ends before it begins or is too long.
func (q *statsRequest) complete(now time.Time) error {
	q.From, q.To = q.from, q.to
	if q.To.IsZero() {
		q.To = dateIn(q.Zone, now)
	}
	if q.From.IsZero() {
		q.From = q.To.AddDate(0, 0, 1-defaultStatsDays)
	}
	detail := ""
	switch days := int(q.To.Sub(q.From).Hours()/24) + 1; {
	case days < 1:
		detail = "The range ends before it begins."
	case days > maxStatsDays:
		detail = fmt.Sprintf("The range has more than %d days.", maxStatsDays)
	default:
		return nil
	}
	parameter := "from"
	if !q.to.IsZero() {
		parameter = "to"
	}
	return errFields(fieldError{Parameter: parameter, Code: "out_of_range", Detail: detail})
}

// A statsReport is the answer of GET /widget/stats: for one widget (Widget, Name, TopItems),
// or for an account with a row for each of its widgets (AccountID, Widgets).
type statsReport struct {
	Widget    string       `json:"widget,omitempty"`
	Name      string       `json:"name,omitempty"`
	AccountID string       `json:"account_id,omitempty"`
	From      string       `json:"from"`
	To        string       `json:"to"`
	Interval  string       `json:"interval"`
	Timezone  string       `json:"timezone"`
	Totals    shownCounts  `json:"totals"`
	Series    []shownPoint `json:"series"`
	TopItems  []shownItem  `json:"top_items,omitzero"`
	Widgets   []widgetRow  `json:"widgets,omitzero"`
}

// shownCounts are counts as a caller may see them: Orders is nil if it may not see those.
type shownCounts struct {
	Views    int64  `json:"views"`
	Visitors int64  `json:"visitors"`
	Clicks   int64  `json:"clicks"`
	Orders   *int64 `json:"orders,omitempty"`
}

type shownPoint struct {
	Date string `json:"date"`
	shownCounts
}

type shownItem struct {
	Item   string `json:"item"`
	Clicks int64  `json:"clicks"`
	Orders *int64 `json:"orders,omitempty"`
}

// show returns the counts, with or without the orders.
func (c counts) show(withOrders bool) shownCounts {
	return shownCounts{c.Views, c.Visitors, c.Clicks, shownOrders(c.Orders, withOrders)}
}

func shownOrders(n int64, shown bool) *int64 {
	if !shown {
		return nil
	}
	return &n
}

// show returns the totals and the points of the series, with or without the orders.
func (s *series) show(withOrders bool) (shownCounts, []shownPoint) {
	points := make([]shownPoint, 0, len(s.points))
	for _, p := range s.points {
		points = append(points, shownPoint{p.Date, p.show(withOrders)})
	}
	return s.totals.show(withOrders), points
}

// widgetStats answers GET /widget/stats.
func (a *widgetAPI) widgetStats(ctx context.Context, c *call, q *statsRequest) (*cacheable, error) {
	if err := q.complete(a.now()); err != nil {
		return nil, err
	}
	cached := &cacheable{cacheControl: "public, max-age=60"}
	if c.caller != nil {
		cached.cacheControl = "private, max-age=60"
	}
	var err error
	if q.widget != "" {
		cached.taggedBody, err = a.oneWidgetStats(ctx, c, q)
		return cached, err
	}
	report, err := a.accountStats(ctx, c, q)
	if err != nil {
		return nil, err
	}
	cached.taggedBody = q.encode(report)
	return cached, nil
}

// encode sets the range, interval and zone of a report to those of the query, and encodes it.
func (q *statsRequest) encode(report *statsReport) taggedBody {
	report.From, report.To = q.From.Format(time.DateOnly), q.To.Format(time.DateOnly)
	report.Interval, report.Timezone = q.Interval, q.Zone.String()
	body := encodeJSON(report)
	return taggedBody{body, etag(body)}
}

// oneWidgetStats returns the report for one widget. It leaves the orders out for a caller
// without a token, unless the widget shows them to everybody. Another account's token gets
// errWidget.
func (a *widgetAPI) oneWidgetStats(ctx context.Context, c *call, q *statsRequest) (taggedBody, error) {
	w, err := a.findWidget(q.widget)
	if err != nil {
		return taggedBody{}, err
	}
	withOrders := w.PublicOrders
	if c.caller != nil {
		o, err := q.resolve(a.server, c)
		if err != nil {
			return taggedBody{}, err
		}
		if !o.owns(w.AccountID) {
			return taggedBody{}, errWidget
		}
		withOrders = true
	}
	key := statsKey{w.ID, w.Name, q.Zone.String(), q.Interval, q.From, q.To, withOrders}
	return a.stats.load(a.store, key, func() (taggedBody, string, error) {
		report, err := a.countWidget(ctx, w, q, withOrders)
		if err != nil {
			return taggedBody{}, "", err
		}
		return q.encode(report), w.ID, nil
	})
}

// countWidget makes the report for one widget from its counters.
func (a *widgetAPI) countWidget(
	ctx context.Context, w widget, q *statsRequest, withOrders bool,
) (*statsReport, error) {
	sum := newSeries(q.statsRange)
	from, until := q.bounds()
	err := a.store.within(ctx).eachQuarterOfWidget(w.ID, from, until, func(_, quarter string, c counts) {
		sum.add(quarter, c)
	})
	if err != nil {
		return nil, err
	}
	items, err := a.store.within(ctx).topItems(w.ID, from, until, withOrders, topItemsShown)
	if err != nil {
		return nil, err
	}
	report := &statsReport{Widget: w.ID, Name: w.Name, TopItems: []shownItem{}}
	report.Totals, report.Series = sum.show(withOrders)
	for _, i := range items {
		shown := shownItem{i.Item, i.Clicks, shownOrders(i.Orders, withOrders)}
		report.TopItems = append(report.TopItems, shown)
	}
	return report, nil
}

// accountStats returns the report for all widgets of an account. It needs a token.
func (a *widgetAPI) accountStats(ctx context.Context, c *call, q *statsRequest) (*statsReport, error) {
	if c.caller == nil {
		return nil, errTokenRequired
	}
	o, err := q.resolve(a.server, c)
	if err != nil {
		return nil, err
	}
	if o == anyAccount { // a report is about one account: the caller's, if it names none
		o = ownedBy(c.caller.claims.Subject)
	}
	widgets, err := a.store.within(ctx).widgets(o)
	if err != nil {
		return nil, err
	}
	rows := make([]widgetRow, len(widgets))
	rowOf := map[string]*widgetRow{}
	for i, w := range widgets {
		rows[i] = widgetRow{Widget: w.ID, Name: w.Name}
		rowOf[w.ID] = &rows[i]
	}
	sum := newSeries(q.statsRange)
	from, until := q.bounds()
	err = a.store.within(ctx).eachQuarter(o, from, until, func(id, quarter string, c counts) {
		if row := rowOf[id]; row != nil { // nil: the widget was added after widgets had been read
			row.add(c)
			sum.add(quarter, c)
		}
	})
	report := &statsReport{AccountID: o.account, Widgets: rows}
	report.Totals, report.Series = sum.show(true)
	return report, err
}

func widgetAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	id := ""
	err = e.change(func(t *tx) (err error) {
		id, err = t.addWidget(account, e.args[0], e.on("public-orders"), e.actor())
		return err
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
	return e.changeQuietly(func(t *tx) error { return t.renameWidget(e.args[0], e.args[1], e.actor()) })
}

// widgetRemove removes a widget, without -force only one that has counted nothing. A widget with
// very many counters takes several transactions; cut off, it is run again.
func widgetRemove(e *env) error {
	id, actor := e.args[0], e.actor()
	var removed int64
	err := e.withStore(func(st *store) error {
		rows, err := st.countWidgetRows(id)
		if err != nil {
			return err
		}
		if rows > 0 && !e.on("force") {
			return fmt.Errorf("%s has %s of what it counted, which would be lost: add -force to remove it",
				id, countOf(rows, "row"))
		}
		for gone := false; !gone; {
			began, sum := time.Now(), removed
			if err := st.update(e.ctx, func(t *tx) (err error) {
				sum = removed
				gone, err = t.removeWidget(id, actor, &sum)
				return err
			}); err != nil {
				return err
			}
			removed = sum
			if !gone { // lets others take SQLite's lock, for which they poll, see leadsPurge
				time.Sleep(time.Since(began))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.print(map[string]any{"ok": true, "rows": removed},
		"removed, with "+countOf(removed, "row")+" of what it counted")
}

func widgetList(e *env) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		all, err := st.widgets(o)
		if err != nil {
			return err
		}
		return printRows(e, all, "ID NAME PUBLIC-ORDERS CREATED ACCOUNT", func(w widget) []any {
			return []any{w.ID, w.Name, w.PublicOrders, w.CreatedAt, w.AccountID}
		})
	})
}

// statsShow prints totals of the last 30 days for each widget, and a bar for each day.
func statsShow(e *env) error {
	return e.withStore(func(st *store) error {
		widgets, err := st.widgets(anyAccount)
		if err != nil {
			return err
		}
		if id := e.str("widget"); id != "" {
			widgets = slices.DeleteFunc(widgets, func(w widget) bool { return w.ID != id })
			if len(widgets) == 0 {
				return errNotFound
			}
		}
		today := dateIn(time.UTC, e.now())
		span := statsRange{
			From:     today.AddDate(0, 0, 1-defaultStatsDays),
			To:       today,
			Interval: "day",
			Zone:     time.UTC,
		}
		from, until := span.bounds()
		sum, rows := newSeries(span), []widgetRow{}
		for _, w := range widgets {
			row := widgetRow{Widget: w.ID, Name: w.Name}
			if err := st.eachQuarterOfWidget(w.ID, from, until, func(_, quarter string, c counts) {
				sum.add(quarter, c)
				row.add(c)
			}); err != nil {
				return err
			}
			rows = append(rows, row)
		}
		if err := printRows(e, rows, "WIDGET NAME VIEWS VISITORS CLICKS ORDERS", func(r widgetRow) []any {
			return []any{r.Widget, r.Name, r.Views, r.Visitors, r.Clicks, r.Orders}
		}); err != nil || e.on("json") {
			return err
		}
		fmt.Fprintln(e.stdout)
		return printBars(e, sum.points)
	})
}

func printBars(e *env, days []point) error {
	const longest, numbers = 40, 45 // columns of the bars, and of what stands before them
	width := int64(longest)
	if !e.on("wide") {
		width = int64(max(leastTextWidth, min(longest, e.width()-numbers)))
	}
	most := int64(1)
	for _, d := range days {
		most = max(most, d.Views)
	}
	return printRows(e, days, "DAY VIEWS VISITORS CLICKS ORDERS .", func(d point) []any {
		bar := strings.Repeat("█", int(d.Views*width/most))
		return []any{d.Date, d.Views, d.Visitors, d.Clicks, d.Orders, bar}
	})
}

// A statsKey is all that the body of a widget's statistics depends on, except for the counts.
type statsKey struct {
	widget, name   string
	zone, interval string
	from, to       time.Time
	withOrders     bool
}

// cachedWidget is store.widget with a cache before it.
func (a *widgetAPI) cachedWidget(id string) (widget, error) {
	return a.widgets.load(a.store, id, func() (widget, string, error) {
		w, err := a.store.widget(id)
		return w, "", err
	})
}
