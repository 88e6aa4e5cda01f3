package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
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
	stats    *cache[statsKey, taggedBody]
}

func widgetWing(s *server) wing {
	a := &widgetAPI{server: s, widgets: newCache[string, *widget](1_000), stats: newCache[statsKey, taggedBody](500)}
	return wing{routes: []route{
		{pattern: "POST /widget/events", origin: originRequired, address: "events", beacon: true, creates: true,
			bucket: bucketWidgets, charge: a.charge, run: endpoint(a.countEvents)},
		{pattern: "GET /widget/stats", token: tokenOptional, scope: scopeStats, address: "stats", question: true,
			bucket: bucketWidgets, charge: a.charge, run: endpoint(a.showStats(false))},
		{pattern: "GET /widget/stats.svg", token: tokenOptional, scope: scopeStats, address: "stats", question: true,
			bucket: bucketWidgets, charge: a.charge, run: endpoint(a.showStats(true))},
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

// showStats returns the endpoint of GET /widget/stats, or as a picture of GET /widget/stats.svg.
func (a *widgetAPI) showStats(asPicture bool) func(context.Context, *call, *statsRequest) (*cacheable, error) {
	return func(ctx context.Context, c *call, q *statsRequest) (*cacheable, error) {
		if err := q.complete(a.now()); err != nil {
			return nil, err
		}
		answer := &cacheable{cacheControl: "public, max-age=60"}
		if c.caller != nil {
			answer.cacheControl = "private, max-age=60"
		}
		if asPicture {
			answer.contentType, answer.policy = "image/svg+xml", picturePolicy
		}
		stats := a.accountStats
		if q.widget != "" {
			stats = a.oneWidgetStats
		}
		var err error
		answer.taggedBody, err = stats(ctx, c, q, asPicture)
		return answer, err
	}
}

// oneWidgetStats returns the report for one widget. For a caller without a token it leaves out the pages,
// and the orders unless the widget shows them to everybody. Another account's token gets errWidget.
func (a *widgetAPI) oneWidgetStats(ctx context.Context, c *call, q *statsRequest, asPicture bool) (taggedBody, error) {
	w, err := a.findWidget(q.widget)
	if err != nil {
		return taggedBody{}, err
	}
	key := statsKey{w.ID, w.Name, q.Zone.String(), q.Interval, q.From, q.To, w.PublicOrders, false, asPicture}
	if c.caller != nil {
		if !q.owner.owns(w.AccountID) {
			return taggedBody{}, errWidget
		}
		key.withOrders, key.withPages = true, !asPicture
	}
	return a.stats.load(a.store, key, func() (taggedBody, string, error) {
		report, err := reportWidget(a.store.within(ctx), w, q.statsRange, key.withOrders, key.withPages)
		if err != nil {
			return taggedBody{}, "", err
		}
		return report.encode(asPicture), w.ID, nil
	})
}

// accountStats returns the report for all widgets of an account. It needs a token.
func (a *widgetAPI) accountStats(ctx context.Context, c *call, q *statsRequest, asPicture bool) (taggedBody, error) {
	if c.caller == nil {
		return taggedBody{}, errTokenRequired
	}
	o := q.oneOwner(c) // a report is about one account: the caller's, if it names none
	report, err := reportWidgets(a.store.within(ctx), o, q.statsRange)
	if err != nil {
		return taggedBody{}, err
	}
	return report.encode(asPicture), nil
}

// eventsRequest is the body of POST /widget/events (contract, section 5).
type eventsRequest struct {
	widget string
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
