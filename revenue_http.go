package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
)

// revenueModule makes the routes of revenue days, and the chore that records the revenue of orders.
func revenueModule(s *server) module {
	retry := &revenueRetry{server: s}
	return module{
		routes: []route{
			{pattern: "GET /revenue/days", scope: scopeRevenue, question: true,
				endpoint: owned(s, readRevenueQuery, s.listRevenueDays)},
			{pattern: "GET /revenue/days/{date}", scope: scopeRevenue, question: true,
				endpoint: owned(s, readRevenueDate, s.getRevenueDay)},
		},
		chores: []chore{{fault: faultRevenue, timeDriven: true, run: retry.run}},
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
	triedAt time.Time // by the monotonic clock
}

func (r *revenueRetry) run(ctx context.Context) error {
	if closerThan(time.Hour, r.triedAt, r.monotonic()) {
		return nil
	}
	r.triedAt = r.monotonic()
	return retryRevenue(ctx, r.store)
}

// The states of a revenue day.
const (
	dayOpen   = "open"   // what happens now counts on it, or what has just happened may not be known yet
	dayClosed = "closed" // it is final; what is learnt later still counts on it
	dayFrozen = "frozen" // it is in the books; what is learnt later counts on the open day
)

// The kinds of facts of earlier days.
const (
	lateSale    = "sale"
	lateRefund  = "refund"
	lateDispute = "dispute"
)

// A revenueDayState is whether a business day can still change: `open` until `final_at`; `frozen` once it is in
// the account's books, so that nothing is added any more.
type revenueDayState string

// A refundedPart is what the money that was given back was paid for.
type refundedPart string

// A revenueMethodName is how it was paid.
type revenueMethodName string

// A lateKind is what counts later than it happened: a sale, a refund, or a dispute.
type lateKind string

var (
	_ = declareWords[revenueDayState](dayOpen, dayClosed, dayFrozen)
	_ = declareWords[refundedPart](figureSale, figureDelivery, figureTip)
	_ = declareWords[revenueMethodName](methodCard, methodMobile, methodTwint, methodCash, methodTerminal,
		methodVoucher, methodOther)
	_ = declareWords[lateKind](lateSale, lateRefund, lateDispute)
)

// A revenueDay is a business day of an account in one currency.
type revenueDay struct {
	AccountID string          `json:"account_id" is:"acct"` // The account.
	Date      businessDate    `json:"date" is:"date"`       // The business day.
	Currency  string          `json:"currency"`             // ISO 4217.
	State     revenueDayState `json:"state"`                // How far it is.
	StartsAt  stamp           `json:"starts_at"`            // When it begins.
	EndsAt    stamp           `json:"ends_at"`              // When it ends, and the next one begins.
	FinalAt   stamp           `json:"final_at"`             // When what happened on it is not waited for any more.
	FrozenAt  stamp           `json:"frozen_at"`            // Since when it is frozen, or null: it is not.
	Totals    revenueTotals   `json:"totals"`               // What it has brought in all.
}

// A revenueLine is what has one rate of VAT and one group.
type revenueLine struct {
	VATRate int64 `json:"vat_rate"` // In hundredths of a percent.

	// The lines' `group`, or null: none. A day and currency has at most 50 groups; what has a further one has none
	// here.
	Group *string `json:"group"`
	Gross int64   `json:"gross" least:"-"` // VAT included.
	VAT   int64   `json:"vat" least:"-"`   // The VAT in it.
}

// A refundedLine is what was given back of one rate of VAT and one group.
type refundedLine struct {
	Of refundedPart `json:"of"` // What it was paid for.
	revenueLine
}

// A revenueMethod is what one way of paying has brought.
type revenueMethod struct {
	Method   revenueMethodName `json:"method"`             // How it was paid.
	Test     bool              `json:"test"`               // Paid with test keys.
	Received int64             `json:"received" least:"-"` // For sales, delivery and tips.
	Refunded int64             `json:"refunded" least:"-"` // Given back.
	Disputed int64             `json:"disputed" least:"-"` // Disputed, and not won.
	Total    int64             `json:"total" least:"-"`    // `received` less `refunded` and `disputed`.
}

// A lateRevenue is what counts on a day and has happened on an earlier one, which was frozen when it became
// known.
type lateRevenue struct {
	OrderID string            `json:"order_id" is:"ord"` // The order.
	Kind    lateKind          `json:"kind"`              // What it is.
	ID      *string           `json:"id"`                // The refund or the dispute, or null: it is a sale.
	Date    businessDate      `json:"date" is:"date"`    // The business day on which it happened.
	At      stamp             `json:"at"`                // When it happened.
	Method  revenueMethodName `json:"method"`            // How it was paid.
	Test    bool              `json:"test"`              // Paid with test keys.

	// What it adds to `total`; negative for what was given back, or what was taken back of a sale.
	Amount int64 `json:"amount" least:"-"`
}

// A revenueReport is a business day of an account in one currency, line by line.
type revenueReport struct {
	revenueDay
	Sales    []revenueLine  `json:"sales"`    // What was sold.
	Delivery []revenueLine  `json:"delivery"` // Delivery, without groups.
	Refunds  []refundedLine `json:"refunds"`  // What was given back.

	// Of sales and delivery less refunds, by rate, without groups.
	VAT      []revenueLine   `json:"vat"`
	Payments []revenueMethod `json:"payments"`        // How it was paid; these add up to the same total.
	Late     []lateRevenue   `json:"late" most:"100"` // What of all that has happened on earlier days.
	MoreLate bool            `json:"more_late"`       // Whether there is more of that.
}

// A revenueDate is all that a business day has brought.
type revenueDate struct {
	Date businessDate    `json:"date" is:"date"` // The business day.
	Days []revenueReport `json:"days"`           // One for each currency.
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

// revenueDays returns the business days of an account from one date to another, newest first. A zero date is not
// given: to is then the present day, and defaultRevenueDays end there. Errors: a refusal of the parameter from or
// to.
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
	sort.SliceStable(days, func(i, j int) bool { return days[i].Date > days[j].Date })
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
		VAT: []revenueLine{}, Payments: []revenueMethod{}, Late: []lateRevenue{}}
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
			r.Refunds = append(r.Refunds, refundedLine{refundedPart(kind.of), line})
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
	if last < 0 || string(r.Payments[last].Method) != s.Method || r.Payments[last].Test != s.Test {
		r.Payments = append(r.Payments, revenueMethod{Method: revenueMethodName(s.Method), Test: s.Test})
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
func viewLate(f *revenueFact) lateRevenue {
	v := lateRevenue{OrderID: f.OrderID, Kind: lateSale, Date: f.OwnDate, At: f.At,
		Method: revenueMethodName(f.Method), Test: f.Test, Amount: f.received()}
	if f.Source != factSale {
		v.ID, v.Kind = &f.Source, lateDispute
		if validID("ref", f.Source) {
			v.Kind = lateRefund
		}
	}
	return v
}

// A revenueQuery asks for the days from one to another; a zero end is not given.
type revenueQuery struct{ from, to time.Time }

func readRevenueQuery(in *input) (r *revenueQuery) {
	r = new(revenueQuery)
	r.from = in.date("from") // The first business day; by default 30 days end with `to`.
	r.to = in.date("to")     // The last business day, included; by default the present one.
	return r
}

// List revenue days.
//
// What business days of one account have brought in all, newest first, one for each currency: the last 30 days
// unless the query says otherwise, at most 400. A day ends at the account's `cut_off` on the next date in its
// `zone`, and is `open` until 2 hours after that. Revenue counts when its money is captured, or was paid outside, a
// refund when it is made, a dispute when it takes money, and what comes back of that when it does. A `frozen` day is
// in the account's books: what is learnt of it later counts on the open day. Orders that have moved just before are
// counted, up to 1,000 of them, unless nothing can be written at the moment. It is not the record of a certified
// till. A request has two seconds, waiting included.
func (s *server) listRevenueDays(
	ctx context.Context, c *call, of owner, r *revenueQuery,
) (*list[revenueDay], error) {
	all, err := revenueDays(s.store.within(ctx), c.narrowToOne(of).account, r.from, r.to, s.now())
	return &list[revenueDay]{Data: all}, err
}

func readRevenueDate(in *input) businessDate { return in.pathDate("date") }

// Read a revenue day.
//
// What a business day has brought line by line, in each currency: by rate of VAT and group as the orders have it,
// and by way of paying. Both halves have the same `total`. The amounts and the VAT are sums of the orders' own,
// never computed anew. It is not the record of a certified till. A request has two seconds, waiting included.
func (s *server) getRevenueDay(ctx context.Context, c *call, of owner, date businessDate) (*revenueDate, error) {
	return reportDate(s.store.within(ctx), c.narrowToOne(of).account, date, s.now())
}

// pathDate returns the business day in a part of the path.
func (in *input) pathDate(name string) businessDate {
	if in.note != nil {
		// The business day.
		in.note(reading{path: inPath, name: name, kind: jsonString, need: required, check: checkBusinessDate})
	}
	date := in.pathValue(name)
	if code, detail := checkBusinessDate.of(date); code != "" {
		in.wrongParameter(name, code, detail)
	}
	return date
}

// The options of these commands.
var (
	optRevenueOf = optAccount.says("the account whose revenue it is")
	optLastDay   = optToDay.says("last business day, included; by default the present one")
)

// The commands on revenue days that are names for routes, and what none answers with: sums by the way of paying and
// the rate of VAT at once.
var revenueRouteCommands = []routeCommand{
	{name: "revenue show", route: "GET /revenue/days/{date}", options: []option{optRevenueOf}, before: readDayName,
		help: "show what a business day, today or yesterday has brought, line by line"},
	{name: "revenue export", help: "print what business days have brought, oldest first, a row for each day, " +
		"currency, way of paying, kind, rate of VAT and group: one JSON object a line, or CSV",
		options: []option{optFromDay, optLastDay, optRevenueOf}, before: tellAccount,
		rows: &listCommand{export: true, pages: exportedSums, cell: sumCell,
			columns: "date currency state method test kind vat_rate group gross vat total"}},
}

// The other command on revenue days.
var revenueCommands = []command{
	{"revenue list", "", "list what business days have brought, newest first: at most 400 days", []option{
		optAllRows, optFromDay, optLastDay, optRevenueOf,
		{name: "all", help: "list the days of all accounts, of each by its own calendar"},
	}, revenueList},
}

// tellAccount says on standard error whose revenue it is if -account is not given and there is more than one account,
// or if that has none, whose there is.
func tellAccount(e *env, _ *routeRequest) error {
	if e.str("account") != "" {
		return nil
	}
	text, err := queried(e, e.whoseRevenue)
	e.note("%s", text)
	return err
}

// whoseRevenue returns what tellAccount says; "": nothing.
func (e *env) whoseRevenue(q *queries) (string, error) {
	all, err := q.accounts()
	if err != nil || len(all) < 2 {
		return "", err
	}
	id, err := q.mainAccount()
	if err != nil {
		return "", err
	}
	main, err := q.account(id)
	if err != nil {
		return "", err
	}
	earning, err := q.accountsWithRevenue(id, 3)
	if err != nil || len(earning) == 0 || earning[0].ID == id {
		return fmt.Sprintf("this is the revenue of %s; -account shows another one's\n", withName(id, main.Name)), err
	}
	var names []string
	for _, other := range earning {
		names = append(names, withName(other.ID, other.Name))
	}
	word, err := q.accountWord(earning[0].ID)
	return fmt.Sprintf("%s has no revenue; there is some of %s: 'widgetd %s -account %s'\n",
		withName(id, main.Name), strings.Join(names, ", "), e.command.signature(), word), err
}

// revenueCell is a cellFunc for business days: totals of what was given back are negative.
func revenueCell(member string, row *jsonValue) any {
	n, is := memberAt(row, member).integer()
	if is && (member == "totals.refunds" || member == "totals.disputes") {
		return formatMoney(-n, memberAt(row, "currency").text)
	}
	return nil
}

// revenueList lists business days of an account, or with -all of each.
func revenueList(e *env) error {
	c := listCommand{cell: revenueCell, columns: "DATE STATE " +
		"SALES=totals.sales DELIVERY=totals.delivery TIPS=totals.tips REFUNDS=totals.refunds " +
		"DISPUTES=totals.disputes TOTAL=totals.total VAT=totals.vat TEST=totals.test"}
	r, err := e.request("GET /revenue/days")
	switch {
	case err != nil:
		return err
	case !e.on("all"):
		if err := tellAccount(e, r); err != nil {
			return err
		}
		return c.run(e, r)
	case e.str("account") != "":
		return usageError("give -account or -all, not both")
	}
	c.columns = "ACCOUNT=account_id " + c.columns
	return e.asOperator(nil, func(o *routeCaller) error { return c.print(e, o.revenueOfAll(r)) })
}

// revenueOfAll returns the business days of each account, newest first.
func (o *routeCaller) revenueOfAll(r *routeRequest) rowPages {
	return func(string, int) (rows []*jsonValue, _ string, err error) {
		accounts, err := o.server.store.accounts()
		for _, a := range accounts {
			r.query.Set(optAccount.member, a.ID)
			days, _, failed := o.pages(r)("", 0)
			if rows = append(rows, days...); failed != nil {
				return nil, "", failed
			}
		}
		slices.SortStableFunc(rows, func(a, b *jsonValue) int {
			return strings.Compare(rawMember(b, "date"), rawMember(a, "date"))
		})
		return rows, "", err
	}
}

// readDayName reads the name of a day that revenue show is given.
func readDayName(e *env, r *routeRequest) error {
	if err := tellAccount(e, r); err != nil {
		return err
	}
	day, ok := parseDate(e.args[0])
	if back := slices.Index([]string{"today", "yesterday"}, e.args[0]); back >= 0 {
		id, err := e.needAccount()
		if err != nil {
			return err
		}
		c, err := queried(e, func(q *queries) (*businessCalendar, error) { return q.businessCalendar(id) })
		if err != nil {
			return err
		}
		day, ok = newStamp(midnight(c.dateOf(e.now())).AddDate(0, 0, -back)), true
	}
	if ok {
		r.path["date"] = day.day()
	}
	return nil
}

// An exportedSum is a row of revenue export.
type exportedSum struct {
	Date     businessDate `json:"date"`
	Currency string       `json:"currency"`
	State    string       `json:"state"`
	Method   string       `json:"method"`
	Test     bool         `json:"test"`
	Kind     string       `json:"kind"` // figureSale, …
	VATRate  int64        `json:"vat_rate"`
	Group    *string      `json:"group"`
	Gross    int64        `json:"gross"`
	VAT      int64        `json:"vat"`
	Total    int64        `json:"total"` // what it adds to the day's total
}

// exportedSums reads the rows of revenue export, oldest first.
func exportedSums(e *env, q *queries) (rowPages, error) {
	accountID, err := e.needAccount()
	if err != nil {
		return nil, err
	}
	from, to, err := e.fromTo()
	if err != nil {
		return nil, err
	}
	days, err := revenueDays(q, accountID, from, to, e.now())
	if err != nil {
		return nil, e.explain(err)
	}
	var all []exportedSum
	for _, d := range slices.Backward(days) {
		sums, err := q.revenueSums(accountID, d.Date, d.Currency)
		if err != nil {
			return nil, err
		}
		for _, s := range sums {
			all = append(all, exportedSum{d.Date, d.Currency, string(d.State), s.Method, s.Test, s.What, s.Rate,
				nilIfEmpty(s.Group), s.Gross, s.VAT, s.received()})
		}
	}
	return pagesOf(func(string, int) (listPage[exportedSum], error) {
		return listPage[exportedSum]{rows: all}, nil
	}), nil
}

// sumCell is a cellFunc for the rows of revenue export.
func sumCell(member string, row *jsonValue) any {
	if n, is := memberAt(row, member).integer(); is && member == "vat_rate" {
		return float64(n) / 100
	}
	return nil
}

// checkBacklog is a retrying. It records the orders of the backlog, and reports those of which it can't.
func checkBacklog(ctx context.Context, st *store) (faults []string, err error) {
	for after, ids := "", []string(nil); ; after = ids[len(ids)-1] {
		if ids, err = st.backlog(after, retriedAtOnce); err != nil || len(ids) == 0 {
			return faults, err
		}
		for _, id := range ids {
			var why error
			err := st.update(ctx, func(t *tx) error {
				t.leaveBacklog(id)
				why = recordOrder(t, id)
				return why
			})
			switch {
			case isUnrecordable(why):
				faults = append(faults, fmt.Sprintf("revenue: of %s it can't be recorded: %v", id, why))
			case err != nil:
				return faults, err
			}
		}
	}
}
