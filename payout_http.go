package main

import (
	"context"
	"time"
)

// A payoutAPI serves the endpoints of payouts.
type payoutAPI struct{ *server }

// payoutWing makes the routes of payouts, and the worker that reads them.
func payoutWing(s *server, p *payouts) wing {
	a := &payoutAPI{s}
	w := wing{routes: []route{
		{pattern: "GET /payouts", token: tokenRequired, scope: scopeRevenue, question: true, run: a.list},
		{pattern: "GET /payouts/{id}", token: tokenRequired, scope: scopeRevenue, question: true, run: a.show},
		{pattern: "GET /payouts/{id}/items", token: tokenRequired, scope: scopeRevenue, question: true,
			run: a.listItems},
		{pattern: "POST /payouts/{id}/confirm", token: tokenRequired, scope: scopeAdmin, noBody: true,
			careful: true, run: a.confirm},
	}}
	if !s.noPayments {
		w.workers = append(w.workers, (&payoutWorker{p, newDueWorker(payoutTick, maxReadingAt, false)}).run)
	}
	return w
}

// defaultPayoutDays is how many days before the present one a list begins if no first day is given.
const defaultPayoutDays = 30

// list lists the payouts that arrive from one date to another, the last to arrive first.
func (a *payoutAPI) list(ctx context.Context, c *call) (any, error) {
	from, to, page := c.in.date("from"), c.in.date("to"), c.in.page("pot")
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	if from.IsZero() {
		from = a.now().AddDate(0, 0, -defaultPayoutDays)
	}
	last := lastID
	if !to.IsZero() {
		last = to.Format(time.DateOnly)
	}
	q := a.store.within(ctx)
	var after *payout
	if page.before != "" {
		if after, err = orNil(q.payout(of, page.before)); err != nil {
			return nil, except(err, errPayout)
		}
	}
	rows, err := q.payoutsBetween(of, from.Format(time.DateOnly), last, after, page.limit+1)
	return showRows(pageOfRows(rows, page.limit, func(p payout) string { return p.ID }), err)
}

// pageOfRows makes a page of rows, of which one more than limit was read if there are more.
func pageOfRows[T any](rows []T, limit int, cursor func(T) string) (p listPage[T]) {
	if p.rows = rows; len(rows) > limit {
		p.rows, p.next = rows[:limit], cursor(rows[limit-1])
	}
	return p
}

// A payoutView is a payout with the sums of what is in it.
type payoutView struct {
	payout
	Sums []payoutSum `json:"sums"` // by category and method
}

func (a *payoutAPI) show(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return viewPayout(a.store.within(ctx), of, c.id())
}

// viewPayout returns a payout as callers see it. Errors: errPayout.
func viewPayout(q *queries, of owner, id string) (*payoutView, error) {
	p, err := q.payout(of, id)
	if err != nil {
		return nil, err
	}
	sums, err := q.payoutSums(id)
	return &payoutView{*p, append([]payoutSum{}, sums...)}, err
}

// maxItemID is the length of the longest cursor of a list of items.
const maxItemID = 300

// listItems lists what is in a payout. Only callers who may read orders see which these are.
func (a *payoutAPI) listItems(ctx context.Context, c *call) (any, error) {
	page := c.in.pageOf(func(cursor string) bool { return len(cursor) <= maxItemID && visible(cursor) })
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	q := a.store.within(ctx)
	if _, err := q.payout(of, c.id()); err != nil {
		return nil, err
	}
	rows, err := q.payoutItems(c.id(), page.before, page.limit+1)
	if !c.caller.has(scopeOrders) {
		for i := range rows {
			i := &rows[i]
			i.PaymentID, i.OrderID, i.RefundID, i.DisputeID, i.Source = nil, nil, nil, nil, nil
		}
	}
	return showRows(pageOfRows(rows, page.limit, func(i payoutItem) string { return i.ID }), err)
}

func (a *payoutAPI) confirm(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return updated(ctx, a.store, func(t *tx) (*payoutView, error) {
		if err := confirmPayout(t, of, c.id()); err != nil {
			return nil, err
		}
		return viewPayout(t.queries, of, c.id())
	})
}
