package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The demo's page of revenue: the month, one business day as the till report, and that day as Xero and
// Fortnox would get it. No books are connected: each mapping is suggested from an example of a chart of
// accounts.

// A demoBooks is what the page of revenue shows.
type demoBooks struct {
	Account string // id
	Months  []demoMonth
	Date    businessDate // of the day that is opened
	Day     string       // Date, for people
	Reports []revenueReport
	Entries []demoEntry
	Held    []revenueReport // those that neither product would take

	seen map[string][]revenueSum // of the month, by currency; the mappings are suggested from them
}

// A demoMonth is the month in one currency.
type demoMonth struct {
	Currency string
	Days     []demoDay
	Sum      demoDay
}

// A demoDay is a row of a month.
type demoDay struct {
	Date, Label, Total string
	Sales              int64 // with delivery
	Totals             revenueTotals
	Methods            []revenueMethod
	Open               bool // it is the one that is opened
}

// A demoEntry is the entry of the day as a product would get it.
type demoEntry struct {
	bookPreview
	Product, Name string
	Lines         []demoEntryLine
	Debit, Credit string // sums
	Differs       bool   // the VAT does: Xero's figures from ours
	Rules         []demoRule
}

// A demoEntryLine is a line of an entry, with the name of its account and the VAT in it as Xero computes it.
type demoEntryLine struct {
	entryLine
	Name  string
	Taxed *lineTax // nil: not known
}

// A demoRule is a rule of a mapping that was suggested.
type demoRule struct{ What, Account, Name, Tax string }

// handleBooks adds the page of revenue to the demo's page.
func (d *demo) handleBooks(mux *http.ServeMux, s *server) {
	mux.HandleFunc("GET /revenue", func(w http.ResponseWriter, r *http.Request) {
		shown, err := d.books(r.Context(), s.store, s.now(), r.FormValue("date"))
		if err != nil {
			showText(w, http.StatusInternalServerError, "Revenue", err.Error())
			return
		}
		showDemo(w, http.StatusOK, "demo_books.html", shown)
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
	rows := map[string][]demoDay{}
	for _, day := range days {
		sums, err := q.revenueSums(d.account, day.Date, day.Currency)
		if err != nil {
			return nil, err
		}
		shown.seen[day.Currency] = append(shown.seen[day.Currency], sums...)
		row := viewDemoDay(sums)
		row.Date, row.Label = day.Date, midnight(day.Date).Format("Mon 2 Jan")
		row.Open = day.Date == date
		rows[day.Currency] = append(rows[day.Currency], row)
	}
	for _, currency := range []string{"CHF", "SEK", "EUR"} {
		if rows[currency] != nil {
			sum := viewDemoDay(shown.seen[currency])
			shown.Months = append(shown.Months, demoMonth{currency, rows[currency], sum})
		}
	}
	return shown, d.openDay(q, shown, now)
}

// viewDemoDay returns what the sums of a day, or of a month, add up to.
func viewDemoDay(sums []revenueSum) demoDay {
	sums = slices.SortedStableFunc(slices.Values(sums),
		func(a, b revenueSum) int { return strings.Compare(a.Method, b.Method) })
	r := newReport(revenueDay{}, sums, nil)
	return demoDay{Sales: r.Totals.Sales + r.Totals.Delivery, Totals: r.Totals, Methods: r.Payments,
		Total: formatSigned(r.Totals.Total)}
}

// demoReport returns what 'widgetd revenue show' prints of a day in one currency.
func demoReport(day revenueReport) string {
	var text strings.Builder
	day.write(&text)
	return text.String()
}

// openDay adds the reports and the entries of the day that is opened.
func (d *demo) openDay(q *queries, shown *demoBooks, now time.Time) error {
	all, err := reportDate(q, d.account, shown.Date, now)
	if err != nil {
		return err
	}
	xero, fortnox, year := demoData().Xero, demoData().Fortnox, midnight(shown.Date).Format("2006")
	fortnox.YearFrom, fortnox.YearTo = year+"-01-01", year+"-12-31"
	charts := map[string]*bookChart{productXero: &xero, productFortnox: &fortnox}
	for _, product := range bookProducts {
		chart := charts[product]
		sums, err := q.revenueSums(d.account, shown.Date, chart.Currency)
		if err != nil {
			return err
		}
		mapping := suggestMapping(product, chart, append(sums, shown.seen[chart.Currency]...))
		c := &bookConnection{AccountID: d.account, Product: product, Mapping: &mapping, Status: entryDraft,
			Series: new("W"), Outside: true, Tests: true}
		p := previewEntry(c, shown.Date, chart.Currency, sums, chart)
		shown.Entries = append(shown.Entries, viewDemoEntry(product, p, &mapping, chart))
	}
	shown.Reports = all.Days
	for _, day := range all.Days {
		if day.Currency != xero.Currency && day.Currency != fortnox.Currency {
			shown.Held = append(shown.Held, day)
		}
	}
	return nil
}

// viewDemoEntry returns an entry as the page shows it, with the mapping that has made it.
func viewDemoEntry(product string, p bookPreview, mapping *bookMapping, chart *bookChart) demoEntry {
	e := demoEntry{bookPreview: p, Product: product, Name: strings.ToUpper(product[:1]) + product[1:],
		Differs: p.Difference != 0}
	name := func(code string) string {
		if a := chart.account(code); a != nil {
			return a.Name
		}
		return ""
	}
	for i := range mapping.Lines {
		r := &mapping.Lines[i]
		rule := demoRule{What: "paid by " + valueOr(r.Method, ""), Account: r.Account, Name: name(r.Account),
			Tax: valueOr(r.Tax, "")}
		if r.Kind != rulePayment {
			rule.What = r.about()
		}
		e.Rules = append(e.Rules, rule)
	}
	if p.Entry == nil {
		return e
	}
	var debit, credit int64
	for _, l := range p.Entry.Lines {
		debit, credit = debit+l.Debit, credit+l.Credit
		e.Lines = append(e.Lines, demoEntryLine{l, name(l.Account), nil})
	}
	for i := range p.Taxes {
		e.Lines[p.Taxes[i].Line].Taxed = &p.Taxes[i]
	}
	e.Debit, e.Credit = formatAmount(debit), formatAmount(credit)
	return e
}
