package main

import (
	"cmp"
	"context"
	"time"
)

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

// widgetStats answers GET /widget/stats.
func (a *widgetAPI) widgetStats(ctx context.Context, c *call, q *statsRequest) (*cacheable, error) {
	return a.showStats(ctx, c, q, false)
}

// statsPicture answers GET /widget/stats.svg.
func (a *widgetAPI) statsPicture(ctx context.Context, c *call, q *statsRequest) (*cacheable, error) {
	answer, err := a.showStats(ctx, c, q, true)
	if err == nil {
		answer.contentType, answer.policy = "image/svg+xml", picturePolicy
	}
	return answer, err
}

// showStats answers with the statistics that are asked for, as JSON or as a picture.
func (a *widgetAPI) showStats(ctx context.Context, c *call, q *statsRequest, asPicture bool) (*cacheable, error) {
	if err := q.complete(a.now()); err != nil {
		return nil, err
	}
	answer := &cacheable{cacheControl: "public, max-age=60"}
	if c.caller != nil {
		answer.cacheControl = "private, max-age=60"
	}
	if q.widget != "" {
		var err error
		answer.taggedBody, err = a.oneWidgetStats(ctx, c, q, asPicture)
		return answer, err
	}
	report, err := a.accountStats(ctx, c, q)
	if err != nil {
		return nil, err
	}
	answer.taggedBody = report.encode(asPicture)
	return answer, nil
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

// oneWidgetStats returns the report for one widget. For a caller without a token it leaves out the pages,
// and the orders unless the widget shows them to everybody. Another account's token gets errWidget.
func (a *widgetAPI) oneWidgetStats(
	ctx context.Context, c *call, q *statsRequest, asPicture bool,
) (taggedBody, error) {
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
func (a *widgetAPI) accountStats(ctx context.Context, c *call, q *statsRequest) (*statsReport, error) {
	if c.caller == nil {
		return nil, errTokenRequired
	}
	o := q.oneOwner(c) // a report is about one account: the caller's, if it names none
	return reportWidgets(a.store.within(ctx), o, q.statsRange)
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
