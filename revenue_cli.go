package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

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
