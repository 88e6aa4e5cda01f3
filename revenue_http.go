package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A revenueAPI serves the endpoints of revenue days.
type revenueAPI struct{ *server }

// revenueWing makes the routes of revenue days, and the chore that records the revenue of orders.
func revenueWing(s *server) wing {
	a, retry := &revenueAPI{s}, &revenueRetry{server: s}
	return wing{
		routes: []route{
			{pattern: "GET /revenue/days", token: tokenRequired, scope: scopeRevenue, question: true,
				run: a.listDays},
			{pattern: "GET /revenue/days/{date}", token: tokenRequired, scope: scopeRevenue, question: true,
				run: a.showDay},
		},
		chores: []chore{{fault: faultRevenue, timeDriven: true, run: retry.run}},
		metrics: []metric{{"widgetd_revenue_backlog", "gauge", "Orders whose revenue could not be recorded.",
			func() []string {
				n, err := s.store.countBacklog()
				if err != nil {
					return nil
				}
				return []string{fmt.Sprintf(" %d", n)}
			}}},
	}
}

const (
	maxRevenueDays = 400 // of one request
	maxLateShown   = 100 // facts of a day

	faultRevenue = "revenue can't be recorded"
)

// A revenueRetry tries the backlog again when the service starts, and then each hour.
type revenueRetry struct {
	*server
	triedAt time.Time // by the steady clock
}

func (r *revenueRetry) run(ctx context.Context) error {
	if closerThan(time.Hour, r.triedAt, r.steady()) {
		return nil
	}
	r.triedAt = r.steady()
	return retryRevenue(ctx, r.store)
}

// The states of a revenue day.
const (
	dayOpen   = "open"   // what happens now counts on it, or what has just happened may not be known yet
	dayClosed = "closed" // it is final; what is learnt later still counts on it
	dayFrozen = "frozen" // it is in the books; what is learnt later counts on the open day
)

// A revenueDay is a business day of an account in one currency, as lists have it.
type revenueDay struct {
	AccountID string        `json:"account_id"`
	Date      businessDate  `json:"date"`
	Currency  string        `json:"currency"`
	State     string        `json:"state"`
	StartsAt  stamp         `json:"starts_at"`
	EndsAt    stamp         `json:"ends_at"`
	FinalAt   stamp         `json:"final_at"`
	FrozenAt  stamp         `json:"frozen_at"`
	Totals    revenueTotals `json:"totals"`
}

// A revenueLine is what was sold or given back at one rate of VAT in one group.
type revenueLine struct {
	VATRate int64   `json:"vat_rate"`
	Group   *string `json:"group"` // nil: none
	Gross   int64   `json:"gross"` // VAT included
	VAT     int64   `json:"vat"`
}

// A refundedLine is what was given back at one rate of VAT in one group.
type refundedLine struct {
	Of string `json:"of"` // figureSale, figureDelivery or figureTip
	revenueLine
}

// A revenueMethod is the revenue of one way of paying.
type revenueMethod struct {
	Method   string `json:"method"`
	Test     bool   `json:"test"`     // with test keys
	Received int64  `json:"received"` // sales, delivery and tips
	Refunded int64  `json:"refunded"`
	Disputed int64  `json:"disputed"`
	Total    int64  `json:"total"`
}

// A lateFact is a fact that counts on a day but happened on an earlier one.
type lateFact struct {
	OrderID string       `json:"order_id"`
	Kind    string       `json:"kind"` // sale, refund or dispute
	ID      *string      `json:"id"`   // of the refund or dispute
	Date    businessDate `json:"date"` // on which it happened
	At      stamp        `json:"at"`
	Method  string       `json:"method"`
	Test    bool         `json:"test"`
	Amount  int64        `json:"amount"` // what it adds to the day's total; negative: it was given back
}

// A revenueReport is a revenueDay line by line.
type revenueReport struct {
	revenueDay
	Sales    []revenueLine   `json:"sales"`
	Delivery []revenueLine   `json:"delivery"` // without groups
	Refunds  []refundedLine  `json:"refunds"`
	VAT      []revenueLine   `json:"vat"` // of sales and delivery less refunds, by rate
	Payments []revenueMethod `json:"payments"`
	Late     []lateFact      `json:"late"`
	MoreLate bool            `json:"more_late"` // there are more of them
}

// A revenueDate holds the reports of a business day.
type revenueDate struct {
	Date businessDate    `json:"date"`
	Days []revenueReport `json:"days"` // one for each currency
}

// viewDay returns a day without its totals.
func viewDay(c *businessCalendar, accountID string, k revenueDayKey, now time.Time) revenueDay {
	d := revenueDay{AccountID: accountID, Date: k.Date, Currency: k.Currency, State: dayClosed, FrozenAt: k.FrozenAt,
		StartsAt: newStamp(c.startOf(k.Date)), EndsAt: newStamp(c.endOf(k.Date)), FinalAt: newStamp(c.finalAt(k.Date))}
	switch {
	case !k.FrozenAt.IsZero():
		d.State = dayFrozen
	case now.Before(c.finalAt(k.Date)):
		d.State = dayOpen
	}
	return d
}

// defaultRevenueDays is how many days a list has if no first day is given.
const defaultRevenueDays = 30

// revenueDays returns the business days of an account from one date to another, newest first. A zero date is not given:
// to is then the present day, and defaultRevenueDays end there. Errors: a refusal of the parameter from or to.
func revenueDays(q *queries, accountID string, from, to, now time.Time) ([]revenueDay, error) {
	c, err := q.businessCalendar(accountID)
	if err != nil {
		return nil, err
	}
	parameter, wrong := "to", ""
	if to.IsZero() {
		parameter, to = "from", midnight(c.dateOf(now))
	}
	if from.IsZero() {
		from = to.AddDate(0, 0, 1-defaultRevenueDays)
	}
	switch {
	case to.Before(from):
		wrong = "The range ends before it begins."
	case to.After(from.AddDate(0, 0, maxRevenueDays-1)):
		wrong = fmt.Sprintf("The range has more than %d days.", maxRevenueDays)
	}
	if wrong != "" {
		return nil, errFields(fieldError{Parameter: parameter, Code: "out_of_range", Detail: wrong})
	}
	first, last := from.Format(time.DateOnly), to.Format(time.DateOnly)
	keys, err := q.revenueDayKeys(accountID, first, last)
	if err != nil {
		return nil, err
	}
	sums, err := q.daySums(accountID, first, last)
	totals := map[accountDay]revenueTotals{}
	for i := range sums {
		day := accountDay{accountID, sums[i].date, sums[i].currency}
		t := totals[day]
		t.add(&sums[i].revenueSum)
		totals[day] = t
	}
	days := make([]revenueDay, 0, len(keys))
	for _, k := range keys {
		d := viewDay(c, accountID, k, now)
		d.Totals = totals[accountDay{accountID, k.Date, k.Currency}]
		days = append(days, d)
	}
	arrange(days, func(a, b *revenueDay) int { return cmp.Compare(b.Date, a.Date) })
	return days, err
}

// reportDate returns the reports of a business day of an account.
func reportDate(q *queries, accountID string, date businessDate, now time.Time) (*revenueDate, error) {
	c, err := q.businessCalendar(accountID)
	if err != nil {
		return nil, err
	}
	keys, err := q.revenueDayKeys(accountID, date, date)
	if err != nil {
		return nil, err
	}
	all := &revenueDate{date, []revenueReport{}}
	for _, k := range keys {
		sums, err := q.revenueSums(accountID, date, k.Currency)
		if err != nil {
			return nil, err
		}
		late, err := q.lateFacts(accountID, date, k.Currency, maxLateShown+1)
		if err != nil {
			return nil, err
		}
		all.Days = append(all.Days, *newReport(viewDay(c, accountID, k, now), sums, late))
	}
	return all, nil
}

// newReport makes the report of a day from its sums and up to maxLateShown+1 facts of earlier days.
func newReport(day revenueDay, sums []revenueSum, late []revenueFact) *revenueReport {
	r := &revenueReport{revenueDay: day, Sales: []revenueLine{}, Delivery: []revenueLine{}, Refunds: []refundedLine{},
		VAT: []revenueLine{}, Payments: []revenueMethod{}, Late: []lateFact{}}
	var figures []figure
	rates := map[int64]vatSum{}
	for _, s := range sums {
		r.Totals.add(&s)
		r.addPayment(&s)
		figures = append(figures, s.figure)
		if kind := figureKinds[s.What]; kind.taxed {
			sum := rates[s.Rate]
			rates[s.Rate] = vatSum{s.Rate, sum.Gross + kind.sign*s.Gross, sum.VAT + kind.sign*s.VAT}
		}
	}
	for _, f := range addFigures(figures) {
		line := revenueLine{f.Rate, nilIfEmpty(f.Group), f.Gross, f.VAT}
		switch kind := figureKinds[f.What]; {
		case f.What == figureSale:
			r.Sales = append(r.Sales, line)
		case f.What == figureDelivery:
			r.Delivery = append(r.Delivery, line)
		case kind.of != "":
			r.Refunds = append(r.Refunds, refundedLine{kind.of, line})
		}
	}
	for _, rate := range slices.Sorted(maps.Keys(rates)) {
		r.VAT = append(r.VAT, revenueLine{rate, nil, rates[rate].Gross, rates[rate].VAT})
	}
	if r.MoreLate = len(late) > maxLateShown; r.MoreLate {
		late = late[:maxLateShown]
	}
	for i := range late {
		r.Late = append(r.Late, viewLate(&late[i]))
	}
	return r
}

// addPayment adds a sum to its way of paying. The sums must come sorted by way of paying.
func (r *revenueReport) addPayment(s *revenueSum) {
	kind := figureKinds[s.What]
	if kind.sign == 0 {
		return
	}
	last := len(r.Payments) - 1
	if last < 0 || r.Payments[last].Method != s.Method || r.Payments[last].Test != s.Test {
		r.Payments = append(r.Payments, revenueMethod{Method: s.Method, Test: s.Test})
		last++
	}
	m := &r.Payments[last]
	switch {
	case kind.sign > 0:
		m.Received += s.Gross
	case kind.of != "":
		m.Refunded += s.Gross
	default:
		m.Disputed += s.Gross
	}
	m.Total += s.received()
}

// viewLate returns a fact of an earlier day as callers see it.
func viewLate(f *revenueFact) lateFact {
	v := lateFact{OrderID: f.OrderID, Kind: "sale", Date: f.OwnDate, At: f.At, Method: f.Method, Test: f.Test,
		Amount: f.received()}
	if f.Source != factSale {
		v.ID, v.Kind = &f.Source, "dispute"
		if validID("ref", f.Source) {
			v.Kind = "refund"
		}
	}
	return v
}

func (a *revenueAPI) listDays(ctx context.Context, c *call) (any, error) {
	from, to := c.in.date("from"), c.in.date("to") // zero: not given
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	all, err := revenueDays(a.store.within(ctx), c.oneOwner(of).account, from, to, a.now())
	return &list[revenueDay]{Data: all}, err
}

func (a *revenueAPI) showDay(ctx context.Context, c *call) (any, error) {
	date := c.in.pathDate("date")
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return reportDate(a.store.within(ctx), c.oneOwner(of).account, date, a.now())
}

// pathDate returns the business day in a part of the path.
func (in *input) pathDate(name string) businessDate {
	date := in.pathValue(name)
	if code, detail := checkBusinessDate.of(date); code != "" {
		in.wrongParameter(name, code, detail)
	}
	return date
}
