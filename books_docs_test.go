package main

import (
	"errors"
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The worked day of the chapter "Bookkeeping" in /docs: four orders and a refund, in Sweden with Fortnox and
// in Norway with Xero. All figures there are compared with what the program makes of these.

const workedDay = businessDate("2026-11-20")

// A workedCountry is where the worked day is.
type workedCountry struct {
	zone       string
	currency   string
	food       int64  // rate of VAT
	second     string // how the second order is paid
	connection bookConnection
	chart      bookChart
}

func workedSweden() *workedCountry {
	drinks, food := int64(2500), int64(1200)
	return &workedCountry{zone: "Europe/Stockholm", currency: "SEK", food: food, second: methodCard,
		connection: bookConnection{Product: productFortnox, Series: ptr("W"), Outside: true,
			Mapping: &bookMapping{Lines: []mappingRule{
				{Kind: ruleSales, VATRate: &drinks, Account: "3001", Tax: ptr("2611")},
				{Kind: ruleSales, VATRate: &food, Account: "3002", Tax: ptr("2621")},
				{Kind: ruleDelivery, VATRate: &drinks, Account: "3520", Tax: ptr("2611")},
				{Kind: ruleTip, Account: "2890"},
				{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: "1580"},
				{Kind: rulePayment, Method: ptr[bookPayMethod](methodCash), Account: "1689"},
			}}},
		chart: bookChart{Currency: "SEK", Year: 3, YearFrom: "2026-01-01", YearTo: "2026-12-31", Series: []string{"W"},
			Accounts: usableAccounts("1580", "1689", "2611", "2621", "2890", "3001", "3002", "3520")}}
}

func workedNorway() *workedCountry {
	drinks, food := int64(2500), int64(1500)
	return &workedCountry{zone: "Europe/Oslo", currency: "NOK", food: food, second: methodMobile,
		connection: bookConnection{Product: productXero, Status: entryDraft,
			Mapping: &bookMapping{Lines: []mappingRule{
				{Kind: ruleSales, VATRate: &drinks, Group: ptr("drinks"), Account: "205", Tax: ptr("TAX001")},
				{Kind: ruleSales, VATRate: &food, Account: "200", Tax: ptr("TAX002")},
				{Kind: ruleDelivery, VATRate: &drinks, Account: "210", Tax: ptr("TAX001")},
				{Kind: ruleTip, Account: "825", Tax: ptr("NONE")},
				{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: "610"},
				{Kind: rulePayment, Method: ptr[bookPayMethod](methodMobile), Account: "611"},
			}}},
		chart: bookChart{Currency: "NOK", Accounts: usableAccounts("200", "205", "210", "610", "611", "825"),
			TaxRates: []bookTaxRate{{"TAX001", "25 %", 2500, true}, {"TAX002", "15 %", 1500, true},
				{"NONE", "", 0, true}}}}
}

func usableAccounts(codes ...string) (all []bookAccount) {
	for _, code := range codes {
		all = append(all, bookAccount{Code: code, Usable: true})
	}
	return all
}

// make makes the orders of the worked day, and returns its report and what would be sent.
func (c *workedCountry) make(s *service) (report string, preview bookPreviewEntry) {
	s.t.Helper()
	zone := func(a *accountSettings) { a.Zone = c.zone }
	s.change(func(t *tx) error { return changeSettings(t, nouns(), s.account, zone, anActor) })
	line := func(name string, n, amount, rate int64, group string) orderLine {
		return orderLine{Name: name, Quantity: n, UnitAmount: amount, VATRate: rate, Group: group}
	}
	sell := func(when, method string, o order) string {
		o.AccountID, o.Currency, o.ReturnURL = s.account, c.currency, siteOrigin+"/thanks"
		s.at(s.t, when, func(t *tx) error {
			if _, err := createOrder(t, &o, guest{}, minOrderLife, anActor); err != nil {
				return err
			}
			if method == methodCash {
				_, err := payOutside(t, anyAccount, o.ID, orderMethod(method), stamp{}, anActor)
				return err
			}
			return markPaid(t, &o, orderMethod(method), t.now, anActor)
		})
		return o.ID
	}
	first := sell("2026-11-20T17:10:00Z", methodCard, order{Tip: 2000, Lines: []orderLine{
		line("Pasta", 2, 16500, c.food, "food"), line("Wine", 1, 9500, 2500, "drinks")}})
	sell("2026-11-20T18:40:00Z", c.second, order{Discount: 3000, Delivery: 4900, DeliveryRate: 2500, Lines: []orderLine{
		line("Pizza", 1, 14900, c.food, "food"), line("Beer", 2, 6500, 2500, "drinks")}})
	s.at(s.t, "2026-11-20T19:05:00Z", func(t *tx) error {
		_, _, err := refundOrder(t, anyAccount, first, newRefund{lines: []linePart{{Line: 1, Quantity: 1}}}, anActor)
		return err
	})
	sell("2026-11-20T19:30:00Z", methodCash, order{Lines: []orderLine{
		line("Salad", 1, 12900, c.food, "food"), line("Bread", 1, 2500, c.food, "")}})
	sell("2026-11-21T00:20:00Z", methodCard, order{Lines: []orderLine{line("Ice cream", 1, 7900, c.food, "food")}})
	day, err := reportDate(s.store.queries, s.account, workedDay, moment(s.t, "2026-11-21T06:00:00Z"))
	s.check(err)
	if len(day.Days) != 1 {
		s.t.Fatalf("%d days", len(day.Days))
	}
	checkHalves(s.t, &day.Days[0])
	e, printed, _ := s.envAt(false, strings.NewReader(""))
	answer, err := parseJSON(encodeJSON(day))
	s.check(errors.Join(err, e.printAnswer(&answer)))
	sums, err := s.store.revenueSums(s.account, workedDay, c.currency)
	s.check(err)
	c.connection.AccountID = s.account
	preview = previewEntry(&c.connection, workedDay, c.currency, sums, &c.chart)
	if preview.Entry == nil || len(preview.Issues) > 0 || preview.Entry.imbalance() != 0 {
		s.t.Fatalf("%+v", preview)
	}
	return printed.String(), preview
}

// rows returns the lines of an entry as the page has them.
func (p *bookPreviewEntry) rows() (rows []string) {
	side := func(amount int64) string {
		if amount == 0 {
			return ""
		}
		return formatAmount(amount)
	}
	for i, l := range p.Entry.Lines {
		row := []string{l.Account, l.Text, side(l.Debit), side(l.Credit)}
		if l.Tax != "" {
			ours, theirs := "", ""
			for _, tax := range p.Taxes {
				if tax.Line == i {
					ours, theirs = formatSigned(tax.Ours), formatSigned(tax.Theirs)
				}
			}
			row = append(row, l.Tax, ours, theirs)
		}
		rows = append(rows, strings.Join(row, " | "))
	}
	return rows
}

// pageRows returns the first cells of the rows of a table of the page.
func pageRows(page, id string, cells int) (rows []string) {
	_, table, _ := strings.Cut(page, `<table role="table" class="states" id="`+id+`">`)
	table, _, _ = strings.Cut(table, "</table>")
	_, table, _ = strings.Cut(table, "<tbody")
	for _, row := range strings.Split(table, "</tr>") {
		var texts []string
		for _, cell := range captures(`(?s)<td role="cell"[^>]*>(.*?)</td>`, row) {
			texts = append(texts, html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(cell, "")))
		}
		if len(texts) > cells {
			if texts[cells] == "" {
				texts[cells-1] += " without an explanation"
			}
			rows = append(rows, strings.Join(texts[:cells], " | "))
		}
	}
	return rows
}

func TestDocs_workedDayHasTheFiguresOfTheProgram(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	page := newDocsPage(t)
	for id, c := range map[string]*workedCountry{productFortnox: workedSweden(), productXero: workedNorway()} {
		report, preview := c.make(newService(t))
		shown := captures(`(?s)<pre id="books-report-`+id+`"[^>]*><code>(.*?)</code></pre>`, page)
		if len(shown) != 1 || html.UnescapeString(shown[0]) != strings.TrimSpace(report) {
			t.Errorf("%s: the page has\n%s, want\n%s", id, shown, html.EscapeString(report))
		}
		cells := 4
		if id == productXero {
			cells = 7
		}
		if got, want := pageRows(page, "books-entry-"+id, cells), preview.rows(); !slices.Equal(got, want) {
			t.Errorf("%s: the page has\n%s, want\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		text := regexp.MustCompile(`acct_\w+`).ReplaceAllString(preview.Entry.Narration, "acct_…")
		if !strings.Contains(page, "<code>"+text+"</code>") {
			t.Errorf("%s: the page lacks %s", id, text)
		}
		debits := int64(0)
		for _, l := range preview.Entry.Lines {
			debits += l.Debit
		}
		for _, want := range []string{fmt.Sprintf("Debits and credits are %s each.", formatAmount(debits)),
			fmt.Sprintf("<code>tax_difference</code> is <code>%d</code>", preview.Difference)} {
			if id == productXero && !strings.Contains(page, want) {
				t.Errorf("%s: the page lacks %q", id, want)
			}
		}
	}
}

// TestDocs_sayWhatExportsCanBe holds the chapter against the states, reasons, events and commands of books.
func TestDocs_sayWhatExportsCanBe(t *testing.T) {
	t.Parallel()
	page := newDocsPage(t)
	_, chapter, _ := strings.Cut(page, `<section id="bookkeeping"`)
	chapter, _, _ = strings.Cut(chapter, "</section>")
	_, states, _ := strings.Cut(chapter, "<caption>States of an export")
	states, _, _ = strings.Cut(states, "</table>")
	told := captures(`<tr role="row"><td role="cell"><code>(\w+)</code>`, states)
	if !slices.Equal(told, asTexts(exportStates)) {
		t.Errorf("the states are %q, want %q", told, exportStates)
	}
	_, reasons, _ := strings.Cut(chapter, "<caption>Reasons")
	reasons, _, _ = strings.Cut(reasons, "</table>")
	found := captures(`<tr role="row"><td role="cell"><code>(\w+)</code>`, reasons)
	for _, reason := range found {
		if reason != heldUnbalanced && !slices.Contains(heldReasons, reason) {
			t.Errorf("nothing is held as %s", reason)
		}
	}
	if want := 12 + 1; len(found) != want {
		t.Errorf("%d reasons, want %d", len(found), want)
	}
	for _, kind := range booksEvents.types {
		if !strings.Contains(chapter, "<code>"+string(kind)+"</code>") {
			t.Errorf("the event %s is missing", kind)
		}
	}
	for _, line := range captures(`(?m)widgetd ([a-z][^<#\n]*)`, html.UnescapeString(chapter)) {
		line, _, _ = strings.Cut(line, ">")
		if wrong := wrongCommand(line); wrong != "" {
			t.Errorf("widgetd %s: %s", line, wrong)
		}
	}
	for _, scope := range strings.Fields(xeroScopes + " " + fortnoxScope) {
		if !strings.Contains(chapter, "<code>"+scope+"</code>") {
			t.Errorf("the scope %s is missing", scope)
		}
	}
	for _, kept := range fortnoxKept {
		if !strings.Contains(chapter, fmt.Sprintf("%d–%d", kept.from, kept.to)) {
			t.Errorf("the accounts %d to %d are missing", kept.from, kept.to)
		}
	}
	for _, product := range productNames() {
		if !strings.Contains(chapter, "/v1/books/callback/"+product) {
			t.Errorf("the address to which %s sends back is missing", product)
		}
	}
}

// TestDocuments_queriesAboutBooksWorkAsTheyStand also has a restored database be told what is in the books.
func TestDocuments_queriesAboutBooksWorkAsTheyStand(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sqlite3")
	o := newOperator(t)
	file := o.env["WIDGETD_DB"]
	const at = "'2026-11-22T00:00:00Z'"
	runProgram(t, "sqlite3", "-bail", file, `PRAGMA foreign_keys = ON;
		INSERT INTO books_connections (id, account_id, product, organisation, organisation_id, needs_reconnect_at, created_at)
			VALUES ('bkc_1', '`+o.account+`', 'xero', 'Bistro Ltd', 'tenant', `+at+`, `+at+`);
		INSERT INTO revenue_days (account_id, date, currency) VALUES ('`+o.account+`', date('now', '-1 day'), 'CHF');
		INSERT INTO revenue_days (account_id, date, currency)
			SELECT '`+o.account+`', value, 'CHF' FROM json_each('["2026-11-20", "2026-11-21"]') WHERE true
			ON CONFLICT DO NOTHING;
		INSERT INTO books_exports (id, connection_id, account_id, date, currency, revision, entry_date, state, reason,
			sync_key, created_at) SELECT 'exp_' || value, 'bkc_1', '`+o.account+`', value, 'CHF', 1, value, 'held',
			'unmapped', 'widgetd:' || value, `+at+` FROM json_each('["2026-11-20", "2026-11-21"]');`)
	queries := documentBlock(t, "-- days that are not in the books")
	out := runProgram(t, "sqlite3", "-readonly", "-bail", file, "\n"+queries)
	for _, want := range []string{"2026-11-20|CHF|xero|held|unmapped", "xero|Bistro Ltd|2026-11-22T00:00:00Z|"} {
		if !strings.Contains(out, want) {
			t.Errorf("printed\n%s, want %s in it", out, want)
		}
	}
	o.do("books", "set", "bkc_1", "-history", "-send-from", "2026-11-21")
	out = runProgram(t, "sqlite3", "-readonly", file, `SELECT id FROM books_exports`)
	if out != "exp_2026-11-21\n" {
		t.Errorf("afterwards there are\n%s", out)
	}
}
