package main

import (
	"context"
	"time"
)

// payoutModule makes the routes of payouts, and the worker that reads them.
func payoutModule(s *server, p *payouts) module {
	w := module{routes: []route{
		{pattern: "GET /payouts", scope: scopeRevenue, question: true,
			endpoint: owned(s, readPayoutQuery, s.listPayouts)},
		{pattern: "GET /payouts/{id}", scope: scopeRevenue, question: true, refuses: "payout_not_found",
			endpoint: owned(s, readNoMembers, s.getPayout)},
		{pattern: "GET /payouts/{id}/items", scope: scopeRevenue, question: true, refuses: "payout_not_found",
			endpoint: owned(s, readPayoutItems, s.listPayoutItems)},
		{pattern: "POST /payouts/{id}/confirm", scope: scopeAdmin, noBody: true,
			refuses: "payout_not_found payout_state", endpoint: owned(s, readDryRun, s.confirmPayout)},
	}}
	if !s.noPayments {
		w.workers = append(w.workers, (&payoutWorker{p, newDueWorker(payoutTick, maxReadingAt, false)}).run)
	}
	return w
}

// defaultPayoutDays is how many days before the present one a list begins if no first day is given.
const defaultPayoutDays = 30

// A payoutQuery asks for a page of payouts.
type payoutQuery struct {
	from, to time.Time // zero: not given
	page     pageQuery
}

func readPayoutQuery(in *input) (r *payoutQuery) {
	r = new(payoutQuery)
	r.from = in.date("from") // Only what arrives on this date or later.
	r.to = in.date("to")     // Only what arrives on this date or earlier.
	r.page = in.page("pot")
	return r
}

// List payouts.
//
// They are what payment providers pay out, the last to arrive first: without `from` that of the last 30 days. What is
// not scheduled yet has no date, and is not listed. A request has two seconds, waiting included.
func (s *server) listPayouts(ctx context.Context, _ *call, of owner, r *payoutQuery) (_ *list[payout], err error) {
	from, last := r.from, lastID
	if from.IsZero() {
		from = s.now().AddDate(0, 0, -defaultPayoutDays)
	}
	if !r.to.IsZero() {
		last = r.to.Format(time.DateOnly)
	}
	q := s.store.within(ctx)
	var after *payout
	if r.page.before != "" {
		if after, err = orNil(q.payout(of, r.page.before)); err != nil {
			return nil, except(err, errPayout)
		}
	}
	rows, err := q.payoutsBetween(of, from.Format(time.DateOnly), last, after, r.page.limit+1)
	return showRows(pageOfRows(rows, r.page.limit, func(p payout) string { return p.ID }), err)
}

// pageOfRows makes a page of rows, of which one more than limit was read if there are more.
func pageOfRows[T any](rows []T, limit int, cursor func(T) string) (p listPage[T]) {
	if p.rows = rows; len(rows) > limit {
		p.rows, p.next = rows[:limit], cursor(rows[limit-1])
	}
	return p
}

// A payoutDetail is a payout with the sums of what is in it.
type payoutDetail struct {
	payout

	// By category and way of paying. They are the amount of the payout, unless it `does_not_add_up`.
	Sums []payoutSum `json:"sums"`
	dryAnswer
}

// Show a payout.
//
// With the sums of what is in it, by category and way of paying: so the accountant splits the line on the bank's
// statement. Another account's is not found. A request has two seconds, waiting included.
func (s *server) getPayout(ctx context.Context, c *call, of owner, _ noMembers) (*payoutDetail, error) {
	return viewPayout(s.store.within(ctx), of, c.id())
}

// viewPayout returns a payout as callers see it. Errors: errPayout.
func viewPayout(q *queries, of owner, id string) (*payoutDetail, error) {
	p, err := q.payout(of, id)
	if err != nil {
		return nil, err
	}
	sums, err := q.payoutSums(id)
	return &payoutDetail{payout: *p, Sums: append([]payoutSum{}, sums...)}, err
}

// maxItemID is the length of the longest cursor of a list of items.
const maxItemID = 300

func readPayoutItems(in *input) pageQuery {
	return in.pageOf(func(cursor string) bool { return len(cursor) <= maxItemID && visible(cursor) })
}

// List what is in a payout.
//
// They are its rows, as the provider's ledger has them, in the order of their ids: which orders made a deposit, and
// what it cost. Without `orders:read` the ids of orders, attempts, refunds and disputes, and `source`, are `null`. A
// request has two seconds, waiting included.
func (s *server) listPayoutItems(
	ctx context.Context, c *call, of owner, page pageQuery,
) (*list[payoutItem], error) {
	q := s.store.within(ctx)
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

// Confirm a payout.
//
// Say that it is on the bank's statement with this amount. Nothing reports that a payout of Vipps MobilePay has
// arrived, so its connection is booked only once somebody has compared one: it and the others that wait for that are
// then looked at again. Once is enough for each connection.
func (s *server) confirmPayout(ctx context.Context, c *call, of owner, _ noMembers) (*payoutDetail, error) {
	return enact(ctx, s, c, func(t *tx) (*payoutDetail, error) {
		if err := confirmPayout(t, of, c.id()); err != nil {
			return nil, err
		}
		view, err := viewPayout(t.queries, of, c.id())
		if err == nil {
			view.DryRun = c.in.dry
		}
		return view, err
	})
}

// The commands on payouts, which are names for routes.
var payoutRouteCommands = []routeCommand{
	{name: "payout list", route: "GET /payouts", rows: &listCommand{columns: "ID " +
		"ARRIVES=arrival_date PROVIDER STATE REASON AMOUNT FEE TAX ITEMS ACCOUNT=account_id"}},
	{name: "payout show", route: "GET /payouts/{id}", help: "show a payout with the sums of what is in it"},
	{name: "payout confirm", route: "POST /payouts/{id}/confirm", options: []option{optUnasked},
		help: "say that a payout is on the bank's statement with this amount, so that it and the others of its " +
			"connection are booked: at Vipps nothing reports that they arrive",
		text: "${id} was compared with the bank",
		asks: asking("says that ${id} has arrived with ${amount money} on ${arrival_date}, so that the payouts " +
			"of its connection are booked")},
	{name: "payout export", route: "GET /payouts/{id}/items",
		help: "print what is in a payout, with the orders: one JSON object a line, or CSV",
		rows: &listCommand{export: true, columns: "id category kind amount fee tax net method at " +
			"order_id payment_id refund_id dispute_id source"}},
}
