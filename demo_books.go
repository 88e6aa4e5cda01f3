package main

import (
	"context"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The demo's page of revenue: the month, one business day as the till report, and that day as Xero and
// Fortnox would get it. No books are connected: each mapping is suggested from an example of a chart of
// accounts.

//go:embed web/demo_books.html
var demoBooksHTML string

var demoBooksPage = template.Must(template.New("").Parse(demoBooksHTML))

// xeroExample is what the books of a restaurant in Switzerland might report about themselves at Xero, where the
// rates of VAT have codes of the books' own.
func xeroExample() *bookChart {
	return &bookChart{
		Currency: "CHF",
		Accounts: []bookAccount{
			{Code: "090", Name: "Bank account", Type: "BANK", Why: "bank"},
			{Code: "120", Name: "Accounts receivable", Type: "CURRENT", Why: "receivable"},
			{Code: "130", Name: "Cash in the till", Type: "CURRENT", Usable: true},
			{Code: "140", Name: "Stripe clearing", Type: "CURRENT", Usable: true},
			{Code: "141", Name: "Card terminal clearing", Type: "CURRENT", Usable: true},
			{Code: "150", Name: "Disputed payments", Type: "CURRENT", Usable: true},
			{Code: "200", Name: "Sales", Type: "REVENUE", Usable: true},
			{Code: "210", Name: "Sales of food", Type: "REVENUE", Usable: true},
			{Code: "220", Name: "Sales of drinks", Type: "REVENUE", Usable: true},
			{Code: "230", Name: "Delivery", Type: "REVENUE", Usable: true},
			{Code: "850", Name: "Tips for the staff", Type: "CURRLIAB", Usable: true},
		},
		TaxRates: []bookTaxRate{
			{Code: "TAX001", Name: "MWST 8.1 %", Rate: 810, Usable: true},
			{Code: "TAX002", Name: "MWST 2.6 %", Rate: 260, Usable: true},
			{Code: xeroNoTax, Name: "No VAT", Usable: true},
		},
	}
}

// fortnoxExample is what the books of a restaurant in Sweden might report about themselves at Fortnox: a part of
// the chart of accounts BAS, for the year of a date.
func fortnoxExample(date businessDate) *bookChart {
	year := midnight(date).Format("2006")
	chart := &bookChart{Currency: "SEK", Year: 1, YearFrom: year + "-01-01", YearTo: year + "-12-31",
		Series: []string{"W"}}
	for _, a := range []bookAccount{
		{Code: "1510", Name: "Kundfordringar", Why: "receivable"},
		{Code: "1580", Name: "Fordringar för kontokort och kuponger"},
		{Code: "1690", Name: "Tvister om kortbetalningar"},
		{Code: "1910", Name: "Kassa"},
		{Code: "1930", Name: "Företagskonto", Why: "bank"},
		{Code: "2611", Name: "Utgående moms på försäljning, 25 %"},
		{Code: "2621", Name: "Utgående moms på försäljning, 12 %"},
		{Code: "2631", Name: "Utgående moms på försäljning, 6 %"},
		{Code: "2890", Name: "Övriga kortfristiga skulder"},
		{Code: "3001", Name: "Försäljning, 25 % moms"},
		{Code: "3002", Name: "Försäljning, 12 % moms"},
		{Code: "3003", Name: "Försäljning, 6 % moms"},
	} {
		a.Usable = a.Why == ""
		chart.Accounts = append(chart.Accounts, a)
	}
	return chart
}

// A demoBooks is what demoBooksPage shows.
type demoBooks struct {
	Account string // id
	Months  []demoMonth
	Date    businessDate // of the day that is opened
	Day     string       // Date, for people
	Reports []demoReport
	Entries []demoEntry
	Held    []string // amounts of the day that neither product would take

	seen map[string][]revenueSum // of the month, by currency; the mappings are suggested from them
}

// A demoReport is what 'widgetd revenue show' prints of a day in one currency.
type demoReport struct{ Currency, Total, Text string }

// A demoMonth is the month in one currency.
type demoMonth struct {
	Currency string
	Days     []demoDay
	Sum      demoDay
}

// A demoDay is a row of a month.
type demoDay struct {
	Date, Label, Sales, Tips, Refunds, Disputes, Total string
	Methods                                            []demoMethod
	Open                                               bool // it is the one that is opened
}

// A demoMethod is what one way of paying has brought.
type demoMethod struct{ Method, Total string }

// A demoEntry is the entry of the day as a product would get it.
type demoEntry struct {
	Product, Name, Currency   string
	Entry                     *bookEntry // nil: nothing would be sent
	Lines                     []demoEntryLine
	Debit, Credit, Difference string // sums; Difference is that of the VAT, Xero's figures less ours
	Differs                   bool
	Issues                    []entryIssue
	Rules                     []demoRule
}

// A demoEntryLine is a line of an entry: amounts are "" where there is none.
type demoEntryLine struct {
	Account, Name, Text, Tax, Debit, Credit string
	Ours, Theirs                            string // VAT in it, by our figures and as Xero computes it
	Differs                                 bool
}

// A demoRule is a rule of a mapping that was suggested.
type demoRule struct{ What, Account, Name, Tax string }

// handleBooks adds the page of revenue to the demo's page.
func (d *demo) handleBooks(mux *http.ServeMux, s *server) {
	mux.HandleFunc("GET /revenue", func(w http.ResponseWriter, r *http.Request) {
		shown, err := d.books(r.Context(), s.store, s.now(), r.FormValue("date"))
		if err != nil {
			showDemo(w, http.StatusInternalServerError, demoShown{Title: "Revenue", Text: err.Error()})
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		demoBooksPage.Execute(w, shown) // fails only when the client has gone
	})
}

// books returns what the page shows, with a business day opened: yesterday if date is not valid.
func (d *demo) books(ctx context.Context, st *store, now time.Time, date businessDate) (*demoBooks, error) {
	if err := recordOrders(ctx, st, recordedByRequest); err != nil {
		return nil, err
	}
	q := st.within(ctx)
	calendar, err := q.businessCalendar(d.account)
	if err != nil {
		return nil, err
	}
	today := midnight(calendar.dateOf(now))
	if !isBusinessDate(date) {
		date = today.AddDate(0, 0, -1).Format(time.DateOnly)
	}
	shown := &demoBooks{Account: d.account, Date: date, Day: midnight(date).Format("Monday, 2 January 2006")}
	from := today.AddDate(0, 0, -demoDays).Format(time.DateOnly)
	days, err := revenueDays(q, d.account, from, today.Format(time.DateOnly), now)
	if err != nil {
		return nil, err
	}
	shown.seen = map[string][]revenueSum{}
	months := map[string]*demoMonthSums{}
	for _, day := range days {
		sums, err := q.revenueSums(d.account, day.Date, day.Currency)
		if err != nil {
			return nil, err
		}
		shown.seen[day.Currency] = append(shown.seen[day.Currency], sums...)
		if months[day.Currency] == nil {
			months[day.Currency] = &demoMonthSums{}
		}
		months[day.Currency].add(day, sums, date)
	}
	for _, currency := range []string{"CHF", "SEK", "EUR"} {
		if m := months[currency]; m != nil {
			shown.Months = append(shown.Months, demoMonth{currency, m.days, viewDemoDay(&m.sum, m.sums)})
		}
	}
	return shown, d.openDay(q, shown, now)
}

// demoMonthSums adds the days of a month up.
type demoMonthSums struct {
	days []demoDay
	sum  revenueDay
	sums []revenueSum
}

// add adds a day with its sums. opened is the day that is opened.
func (m *demoMonthSums) add(day revenueDay, sums []revenueSum, opened businessDate) {
	row := viewDemoDay(&day, sums)
	row.Label, row.Open = midnight(day.Date).Format("Mon 2 Jan"), day.Date == opened
	m.days = append(m.days, row)
	for i := range sums {
		m.sum.Totals.add(&sums[i])
	}
	m.sums = append(m.sums, sums...)
}

// viewDemoDay returns a row of a month.
func viewDemoDay(day *revenueDay, sums []revenueSum) demoDay {
	t := &day.Totals
	row := demoDay{Date: day.Date, Sales: formatSigned(t.Sales + t.Delivery), Tips: formatSigned(t.Tips),
		Refunds: formatSigned(-t.Refunds), Disputes: formatSigned(-t.Disputes), Total: formatSigned(t.Total)}
	slices.SortStableFunc(sums, func(a, b revenueSum) int { return strings.Compare(a.Method, b.Method) })
	for i, total := 0, int64(0); i < len(sums); i++ {
		total += sums[i].received()
		if i+1 == len(sums) || sums[i+1].Method != sums[i].Method {
			row.Methods = append(row.Methods, demoMethod{sums[i].Method, formatSigned(total)})
			total = 0
		}
	}
	return row
}

// openDay adds the report and the entries of the day that is opened.
func (d *demo) openDay(q *queries, shown *demoBooks, now time.Time) error {
	all, err := reportDate(q, d.account, shown.Date, now)
	if err != nil {
		return err
	}
	for i := range all.Days {
		day := &all.Days[i]
		var text strings.Builder
		day.write(&text)
		total := formatSigned(day.Totals.Total)
		shown.Reports = append(shown.Reports, demoReport{day.Currency, total, text.String()})
	}
	charts := map[string]*bookChart{productXero: xeroExample(), productFortnox: fortnoxExample(shown.Date)}
	for _, product := range bookProducts {
		chart := charts[product]
		sums, err := q.revenueSums(d.account, shown.Date, chart.Currency)
		if err != nil {
			return err
		}
		mapping := suggestMapping(product, chart, append(sums, shown.seen[chart.Currency]...))
		series := "W"
		c := &bookConnection{AccountID: d.account, Product: product, Mapping: &mapping, Status: entryDraft,
			Series: &series, Outside: true, Tests: true}
		p := previewEntry(c, shown.Date, chart.Currency, sums, chart)
		shown.Entries = append(shown.Entries, viewDemoEntry(product, &p, &mapping, chart))
	}
	for i := range all.Days {
		day := &all.Days[i]
		if day.Currency != charts[productXero].Currency && day.Currency != charts[productFortnox].Currency {
			shown.Held = append(shown.Held, day.Currency+" "+formatSigned(day.Totals.Total))
		}
	}
	return nil
}

// viewDemoEntry returns an entry as the page shows it, with the mapping that has made it.
func viewDemoEntry(product string, p *bookPreview, mapping *bookMapping, chart *bookChart) demoEntry {
	e := demoEntry{Product: product, Name: strings.ToUpper(product[:1]) + product[1:], Currency: chart.Currency,
		Entry: p.Entry, Issues: p.Issues, Difference: formatSigned(p.Difference), Differs: p.Difference != 0}
	name := func(code string) string {
		if a := chart.account(code); a != nil {
			return a.Name
		}
		return ""
	}
	for i := range mapping.Lines {
		r := &mapping.Lines[i]
		rule := demoRule{Account: r.Account, Name: name(r.Account), Tax: valueOr(r.Tax, "")}
		if r.Kind == rulePayment {
			rule.What = "paid by " + *r.Method
		} else {
			rule.What = r.about()
		}
		e.Rules = append(e.Rules, rule)
	}
	if p.Entry == nil {
		return e
	}
	amount := func(n int64) string {
		if n == 0 {
			return ""
		}
		return formatAmount(n)
	}
	var debit, credit int64
	for _, l := range p.Entry.Lines {
		debit, credit = debit+l.Debit, credit+l.Credit
		e.Lines = append(e.Lines, demoEntryLine{Account: l.Account, Name: name(l.Account), Text: l.Text, Tax: l.Tax,
			Debit: amount(l.Debit), Credit: amount(l.Credit)})
	}
	for _, tax := range p.Taxes {
		l := &e.Lines[tax.Line]
		l.Ours, l.Theirs, l.Differs = formatSigned(tax.Ours), formatSigned(tax.Theirs), tax.Difference != 0
	}
	e.Debit, e.Credit = formatAmount(debit), formatAmount(credit)
	return e
}
