package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// The operator's commands on revenue days.
var revenueCommands = []command{
	{"revenue list", "", "list what business days have brought, newest first: at most 400 days", []option{
		optAllRows, optFromDay,
		optToDay.says("last business day, included; by default the present one"),
		optAccount.says("the account whose revenue it is"),
		{name: "all", help: "list the days of all accounts, of each by its own calendar"},
	}, revenueList},
	{"revenue show", "DATE", "show what a business day, today or yesterday has brought, line by line", []option{
		optAccount.says("the account whose revenue it is"),
	}, tellingAccount(revenueShow)},
	{"revenue export", "", "print what business days have brought, oldest first, a row for each day, currency, " +
		"way of paying, kind, rate of VAT and group: one JSON object a line, or CSV", []option{
		optCSV,
		optFromDay,
		optToDay.says("last business day, included; by default the present one"),
		optAccount.says("the account whose revenue it is"),
	}, tellingAccount(listCommand{export: true, pages: exportedSums, cell: sumCell,
		columns: "date currency state method test kind vat_rate group gross vat total"}.run)},
}

// tellingAccount has a command say first, on standard error, whose revenue it shows if -account is not given and there
// is more than one account, or if that has none, whose there is.
func tellingAccount(run func(*env) error) func(*env) error {
	return func(e *env) error {
		if e.str("account") == "" {
			text, err := queried(e, e.whoseRevenue)
			if err != nil {
				return err
			}
			e.note("%s", text)
		}
		return run(e)
	}
}

// whoseRevenue returns what tellingAccount says; "": nothing.
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
	c := listCommand{route: "GET /revenue/days", cell: revenueCell, columns: "DATE STATE " +
		"SALES=totals.sales DELIVERY=totals.delivery TIPS=totals.tips REFUNDS=totals.refunds " +
		"DISPUTES=totals.disputes TOTAL=totals.total VAT=totals.vat TEST=totals.test"}
	switch {
	case !e.on("all"):
		return tellingAccount(c.run)(e)
	case e.str("account") != "":
		return usageError("give -account or -all, not both")
	}
	c.route, c.pages, c.columns = "", revenueOfAll, "ACCOUNT=account_id "+c.columns
	return c.run(e)
}

// revenueOfAll returns the business days of each account, newest first.
func revenueOfAll(e *env, q *queries) (rowPages, error) {
	from, to, err := e.fromTo()
	if err != nil {
		return nil, err
	}
	accounts, err := q.accounts()
	var all listPage[revenueDay]
	for _, a := range accounts {
		days, failed := revenueDays(q, a.ID, from, to, e.now())
		all.rows, err = append(all.rows, days...), cmp.Or(err, failed)
	}
	arrange(all.rows, func(a, b *revenueDay) int { return strings.Compare(b.Date, a.Date) })
	return pagesOf(func(string, int) (listPage[revenueDay], error) { return all, nil }), e.explain(err)
}

// revenueShow shows a business day.
func revenueShow(e *env) error {
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
		e.args[0] = day.day()
	}
	return routeCommand{route: "GET /revenue/days/{date}"}.run(e)
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
