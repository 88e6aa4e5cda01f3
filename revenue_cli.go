package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The operator's commands on revenue days.
var revenueCommands = []command{
	{"revenue list", "", "list what business days have brought, newest first: at most 400 days", []option{
		optAllRows, optFromDay,
		optToDay.says("last business day, included; by default the present one"),
		optAccount.says("the account whose revenue it is"),
	}, revenueList},
	{"revenue show", "DATE", "show what a business day has brought, line by line", []option{
		optAccount.says("the account whose revenue it is"),
	}, revenueShow},
	{"revenue export", "", "print what business days have brought, oldest first, a row for each day, currency, " +
		"way of paying, kind, rate of VAT and group: one JSON object a line, or CSV", []option{
		optCSV,
		optFromDay,
		optToDay.says("last business day, included; by default the present one"),
		optAccount.says("the account whose revenue it is"),
	}, revenueExport},
}

// withRevenue calls f with the account that -account names, and says which one that is.
func (e *env) withRevenue(f func(st *store, accountID string) error) error {
	id, err := e.needAccount()
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		if err := e.nameRevenueAccount(st, id); err != nil {
			return err
		}
		return f(st, id)
	})
}

// nameRevenueAccount says on standard error, if -account is not given and there is more than one account, which one is
// shown, or if that has no revenue, which ones have some.
func (e *env) nameRevenueAccount(st *store, accountID string) error {
	if e.str("account") != "" {
		return nil
	}
	all, err := st.accounts()
	if err != nil || len(all) < 2 {
		return err
	}
	a, err := st.account(accountID)
	if err != nil {
		return err
	}
	earning, err := st.accountsWithRevenue(accountID, 3)
	if err != nil || len(earning) == 0 || earning[0].ID == accountID {
		fmt.Fprintf(e.stderr, "this is the revenue of %s; -account shows another one's\n", withName(a.ID, a.Name))
		return err
	}
	var names []string
	for _, other := range earning {
		names = append(names, withName(other.ID, other.Name))
	}
	fmt.Fprintf(e.stderr, "%s has no revenue; there is some of %s: 'widgetd %s -account %s'\n",
		withName(a.ID, a.Name), strings.Join(names, ", "), e.command.signature(), earning[0].ID)
	return nil
}

// revenueDays returns the business days of an account that -from and -to name, newest first. Errors: usageError.
func (e *env) revenueDays(st *store, accountID string) ([]revenueDay, error) {
	from, to, err := e.fromTo()
	if err != nil {
		return nil, err
	}
	calendar, err := st.businessCalendar(accountID)
	if err != nil {
		return nil, err
	}
	r, wrong := newDateRange(from, to, calendar.dateOf(e.now()))
	if wrong != "" {
		return nil, usageError("-from and -to: " + strings.ToLower(wrong[:1]) + strings.TrimSuffix(wrong[1:], "."))
	}
	return revenueDays(st.queries, accountID, r.from, r.to, e.now())
}

// revenueList prints the totals of business days.
func revenueList(e *env) error {
	return e.withRevenue(func(st *store, accountID string) error {
		days := func(*queries, owner) ([]revenueDay, error) { return e.revenueDays(st, accountID) }
		return listCommand{pages: whole(days), cell: totalCell, columns: "DATE CURRENCY STATE SALES=totals.sales " +
			"DELIVERY=totals.delivery TIPS=totals.tips REFUNDS=totals.refunds DISPUTES=totals.disputes " +
			"TOTAL=totals.total VAT=totals.vat TEST=totals.test"}.run(e)
	})
}

// totalCell is a cellFunc for the totals of a business day.
func totalCell(member string, row *jsonValue) any {
	n, is := memberAt(row, member).integer()
	if !is {
		return nil
	}
	if member == "totals.refunds" || member == "totals.disputes" {
		n = -n
	}
	return formatSigned(n)
}

// revenueShow prints the report of a business day, for each currency.
func revenueShow(e *env) error {
	day, ok := parseDate(e.args[0])
	if !ok {
		return usageError(fmt.Sprintf("%q is not a date, YYYY-MM-DD", printable(e.args[0])))
	}
	return e.withRevenue(func(st *store, accountID string) error {
		all, err := reportDate(st.queries, accountID, day.Format(time.DateOnly), e.now())
		if err != nil {
			return err
		}
		if e.on("json") {
			return e.print(all, "")
		}
		if len(all.Days) == 0 {
			return e.print(all, "nothing counts on "+all.Date)
		}
		var text strings.Builder
		for i := range all.Days {
			if i > 0 {
				text.WriteString("\n")
			}
			all.Days[i].write(&text, e.width())
		}
		_, err = io.WriteString(e.stdout, text.String())
		return err
	})
}

// moneyTable writes lines of a label and columns of money.
type moneyTable struct {
	*strings.Builder
	label  int // columns of a label; 0: amounts are in the line below it
	amount int // columns of an amount
}

// newMoneyTable returns a table for lines of width columns; 0: no limit.
func newMoneyTable(out *strings.Builder, width int) moneyTable {
	t := moneyTable{out, 32, 11}
	if width > 0 && width < t.label+4*(1+t.amount) {
		t.label, t.amount = 0, 10
	}
	return t
}

// line writes a label and amounts, which are in the next line if it is long; "" stands for none.
func (t moneyTable) line(label string, amounts ...string) {
	text := fmt.Sprintf("%-*s", t.label, printable(label))
	if utf8.RuneCountInString(text) > t.label && len(amounts) > 0 {
		text += "\n" + strings.Repeat(" ", t.label)
	}
	for _, a := range amounts {
		text += fmt.Sprintf(" %*s", t.amount, a)
	}
	t.WriteString(strings.TrimRight(text, " ") + "\n")
}

// taxed writes a line with an amount, the VAT in it, and the net amount.
func (t moneyTable) taxed(label string, gross, vat int64) {
	t.line(label, formatSigned(gross), formatSigned(vat), formatSigned(gross-vat))
}

// write writes the report as tills print theirs at the end of a day: what was sold and given back, by rate
// of VAT and group, the VAT, and how it was paid. Its total appears in both halves. width is that of the terminal.
func (r *revenueReport) write(out *strings.Builder, width int) {
	t := newMoneyTable(out, width)
	period := fmt.Sprintf("from %s to %s, final at %s", r.StartsAt, r.EndsAt, r.FinalAt)
	fmt.Fprintf(out, "Business day %s, %s, %s\n%s\n", r.Date, r.Currency, r.State,
		strings.Join(wrap(period, width), "\n"))
	out.WriteString("This is not the report of a certified till.\n\n")
	t.line("", "GROSS", "VAT", "NET")
	all := revenueLine{Gross: r.Totals.Tips}
	add := func(what string, lines []revenueLine) {
		for _, l := range lines {
			t.taxed(l.label(what), l.Gross, l.VAT)
			all.Gross, all.VAT = all.Gross+l.Gross, all.VAT+l.VAT
		}
	}
	add("Sales", r.Sales)
	add("Delivery", r.Delivery)
	t.taxed("Tips", r.Totals.Tips, 0)
	t.taxed("Received", all.Gross, all.VAT)
	names := map[string]string{figureSale: "Refunds", figureDelivery: "Refunds of delivery"}
	for _, l := range r.Refunds {
		if l.Of == figureTip {
			t.taxed("Refunds of tips", -l.Gross, 0)
		} else {
			t.taxed(l.label(names[l.Of]), -l.Gross, -l.VAT)
		}
	}
	t.taxed("Disputes", -r.Totals.Disputes, 0)
	t.taxed("Total", r.Totals.Total, r.Totals.VAT)
	out.WriteString("\n")
	t.line("VAT, less refunds", "GROSS", "VAT", "NET")
	for _, l := range r.VAT {
		t.taxed(formatRate(l.VATRate), l.Gross, l.VAT)
	}
	out.WriteString("\n")
	r.writePayments(t)
	r.writeNotes(t)
}

// label returns the label of a line: "Sales 2.6 %, food".
func (l *revenueLine) label(what string) string {
	what += " " + formatRate(l.VATRate)
	if l.Group != nil {
		what += ", " + *l.Group
	}
	return what
}

// writePayments writes how much was paid in which way.
func (r *revenueReport) writePayments(t moneyTable) {
	t.line("Paid by", "RECEIVED", "REFUNDED", "DISPUTED", "TOTAL")
	sum := revenueMethod{}
	row := func(label string, m *revenueMethod) {
		t.line(label, formatSigned(m.Received), formatSigned(-m.Refunded), formatSigned(-m.Disputed),
			formatSigned(m.Total))
	}
	for _, m := range r.Payments {
		label := m.Method
		if m.Test {
			label += ", with test keys"
		}
		row(label, &m)
		sum.Received, sum.Refunded = sum.Received+m.Received, sum.Refunded+m.Refunded
		sum.Disputed, sum.Total = sum.Disputed+m.Disputed, sum.Total+m.Total
	}
	row("Total", &sum)
}

// writeNotes writes the notes below the two halves: discounts, test payments, and facts of earlier days.
func (r *revenueReport) writeNotes(t moneyTable) {
	t.WriteString("\n")
	t.line("Discounts, already taken off", formatSigned(r.Totals.Discounts))
	if r.Totals.Test != 0 {
		t.line("Of the total, with test keys", formatSigned(r.Totals.Test))
	}
	if len(r.Late) == 0 {
		return
	}
	t.WriteString("\nOf the total, from earlier days:\n")
	gap := "  "
	if t.label == 0 {
		gap = "\n  "
	}
	for _, l := range r.Late {
		fmt.Fprintf(t, "%s %-8s %-9s %*s%s%s\n", l.Date, l.Kind, l.Method, t.amount, formatSigned(l.Amount), gap,
			l.OrderID)
	}
	if r.MoreLate {
		t.WriteString("and more\n")
	}
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

// exportedSums returns the rows of revenue export for a list of days, oldest first.
func exportedSums(q *queries, accountID string, days []revenueDay) (all []exportedSum, err error) {
	for _, d := range slices.Backward(days) {
		sums, err := q.revenueSums(accountID, d.Date, d.Currency)
		if err != nil {
			return nil, err
		}
		for _, s := range sums {
			all = append(all, exportedSum{d.Date, d.Currency, d.State, s.Method, s.Test, s.What, s.Rate,
				nilIfEmpty(s.Group), s.Gross, s.VAT, s.received()})
		}
	}
	return all, nil
}

// revenueExport prints the sums of business days.
func revenueExport(e *env) error {
	return e.withRevenue(func(st *store, accountID string) error {
		days, err := e.revenueDays(st, accountID)
		if err != nil {
			return err
		}
		return listCommand{export: true, cell: sumCell,
			columns: "date currency state method test kind vat_rate group gross vat total",
			pages: whole(func(q *queries, _ owner) ([]exportedSum, error) {
				return exportedSums(q, accountID, days)
			})}.run(e)
	})
}

// sumCell is a cellFunc for the rows of revenue export.
func sumCell(member string, row *jsonValue) any {
	if n, is := memberAt(row, member).integer(); is && member == "vat_rate" {
		return float64(n) / 100
	}
	return amountCells("gross", "vat", "total")(member, row)
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
