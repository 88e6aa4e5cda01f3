package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// scopeStats is the scope that reads what widgets have counted.
const scopeStats = "stats:read"

// bucketWidgets is charged for events, and for statistics without a token.
const bucketWidgets = "widgets"

// widgetNoun declares widgets, what they count, and the script that does.
func widgetNoun() noun {
	return noun{
		name:     "widget",
		wings:    func(s *server) []wing { return []wing{widgetWing(s), scriptWing(s)} },
		commands: widgetCommands,
		problems: widgetProblems,
		events:   widgetEvents,
		holdings: []holding{heldWidgets},
	}
}

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
		{
			pattern:  "GET /widget/stats.svg",
			token:    tokenOptional,
			scope:    scopeStats,
			address:  "stats",
			question: true,
			bucket:   bucketWidgets,
			charge:   a.charge,
			run:      endpoint(a.statsPicture),
		},
	}}
}

// The options of these commands.
var (
	optPublicOrders = option{name: "public-orders",
		help: "show the widget's orders to everybody, not only to callers with a token"}
	optWidget   = option{name: "widget", value: "ID", help: "show one widget, with its items and pages; by default all"}
	optFromDay  = option{name: "from", value: "DATE", help: "first day; by default 30 days end with the last one"}
	optToDay    = option{name: "to", value: "DATE", help: "last day, included; by default today"}
	optInterval = option{name: "interval", value: "UNIT", def: "day",
		help: "what a bar covers: day, week (from Monday on) or month"}
	optTimezone = option{name: "timezone", value: "ZONE", def: "UTC",
		help: "time zone in which days begin, like Europe/Zurich"}
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
	{"stats", "", "show what widgets counted, with a bar for each day",
		[]option{optWidget, optFromDay, optToDay, optInterval, optTimezone}, 0, statsShow},
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
	items  []nameCount
	pages  []nameCount
}

const (
	maxWidgetEvents = 50  // in one request
	maxCountedPage  = 200 // characters of a page that is counted under its own name
)

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
		q.counts.add(counted)
		if item := event.text("item", optional, 100, nil); item != "" && counted.Views == 0 {
			q.items = addName(q.items, item, counted)
		}
		if page := event.text("page", optional, 2048, checkPage); page != "" {
			q.pages = addName(q.pages, countedPage(page), counted)
		}
	}
}

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

// cachedWidget is store.widget with a cache before it.
func (a *widgetAPI) cachedWidget(id string) (widget, error) {
	return a.widgets.load(a.store, id, func() (widget, string, error) {
		w, err := a.store.widget(id)
		return w, "", err
	})
}
