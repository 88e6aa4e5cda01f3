package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A bookVisitor is somebody who has signed in for the books of an account.
type bookVisitor struct {
	*visitor
	k *bookkeeper
}

// booksCode makes a code for the books of an account.
func (s *service) booksCode(accountID string) string { return s.codeFor(sessionBooks, accountID) }

// entersBooks signs somebody in for the books of an account.
func (k *bookkeeper) entersBooks(accountID string) *bookVisitor {
	k.t.Helper()
	v := &bookVisitor{&visitor{service: k.service}, k}
	v.visit("/books", url.Values{"code": {k.booksCode(accountID)}}).is(303).has("Location: ./books")
	return v
}

// eachAccountant runs a test in a bubble with each product: something was sold on the first day, which is over, an
// accountant has signed in, and the worker of books runs.
func eachAccountant(t *testing.T, test func(t *testing.T, v *bookVisitor)) {
	for _, product := range productNames() {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				k := newBookkeeper(t, product)
				k.sell(4200)
				k.until("2000-01-02 07:00")
				defer k.beside(newBooksWorker(k.engine).run)()
				test(t, k.entersBooks(k.account))
			})
		})
	}
}

var inputValue = regexp.MustCompile(`<input [^>]*name="([^"]+)"[^>]*>`)

// form returns the fields of the page at a path, as a browser would send them.
func (v *bookVisitor) form(path string) url.Values {
	v.t.Helper()
	form := url.Values{}
	for _, field := range inputValue.FindAllStringSubmatch(v.visit(path, nil).is(200).body, -1) {
		value := ""
		if found := regexp.MustCompile(` value="([^"]*)"`).FindStringSubmatch(field[0]); found != nil {
			value = found[1]
		}
		choice := strings.Contains(field[0], "radio") || strings.Contains(field[0], "checkbox")
		if !choice || strings.Contains(field[0], " checked") {
			form.Set(field[1], value)
		}
	}
	return form
}

// rowField returns the name of a field of the mapping's form, by what its row is for.
func rowField(kind bookMappingKind, rate int64, method string) string {
	r := mappingRule{Kind: kind}
	if rate > 0 {
		r.VATRate = &rate
	}
	if method != "" {
		r.Method = new(bookPayMethod(method))
	}
	t := &mappingTable{product: &bookProduct{}, chart: &bookChart{}}
	return "account-" + t.newRow(r, &bookMapping{}, &bookMapping{}).Key
}

func (v *bookVisitor) path(page string) string { return "/books/" + page + "/" + v.k.product }

// day opens the page of a day.
func (v *bookVisitor) day(date businessDate) answer { return v.visit(v.path("day")+"?date="+date, nil) }

// TestBooksPages_leadFromACodeToAPostedDay goes the whole way with what is suggested: connecting, accounts, sending, a
// day.
func TestBooksPages_leadFromACodeToAPostedDay(t *testing.T) {
	t.Parallel()
	eachAccountant(t, func(t *testing.T, v *bookVisitor) {
		k := v.k
		k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), k.connection, anActor))
		k.sql(`UPDATE books_connections SET mapping = NULL, mapping_at = NULL, series = NULL, status = 'draft'`)
		v.visit("/books", nil).is(200).shows(productOf(k.product).title)
		to := v.visit("/books/connect/"+k.product, url.Values{}).is(303).header.Get("Location")
		u, err := url.Parse(k.agrees(to))
		k.check(err)
		v.visit(strings.TrimPrefix(u.Path, "/v1")+"?"+u.RawQuery, nil).is(200).shows("<h1>Connected</h1>",
			"books/mapping/"+k.product)
		form := v.form(v.path("mapping"))
		if form.Get(rowField(ruleSales, k.rate, "")) == "" || form.Get(rowField(rulePayment, 0, methodCard)) == "" {
			t.Errorf("nothing is suggested: %v", form)
		}
		v.visit(v.path("mapping"), form).is(303)
		v.visit(v.path("mapping")+"?saved=yes", nil).is(200).shows("Saved.")
		v.visit(v.path("sending"), v.form(v.path("sending"))).is(303)
		v.day("").is(200).shows("42.00", "post=ask", `value="2000-01-01"`)
		form = v.form(v.path("day") + "?date=2000-01-01&post=ask")
		next := v.visit(v.path("day"), form).is(303).header.Get("Location")
		page := v.visit("/books/day/"+strings.TrimPrefix(next, "./"), nil).is(200).shows("It is in the books:")
		if strings.Contains(page.body, "post=ask") || len(k.books()) != 1 {
			t.Errorf("%d entries, %s", len(k.books()), page.body)
		}
		v.visit(v.path("day"), form).is(303) // pressed twice
		v.visit("/books", nil).is(200).shows("42.00", "The last entries")
		equal(t, "entries", len(k.books()), 1)
	})
}

// TestBooksPages_nameEveryWrongRowAndLoseNothing: accounts that are not there, none at all, and books that can't be
// reached.
func TestBooksPages_nameEveryWrongRowAndLoseNothing(t *testing.T) {
	t.Parallel()
	eachAccountant(t, func(t *testing.T, v *bookVisitor) {
		k := v.k
		before := v.form(v.path("mapping"))
		sales, card := rowField(ruleSales, k.rate, ""), rowField(rulePayment, 0, methodCard)
		form := v.form(v.path("mapping"))
		form.Set(sales, "9998")
		form.Set(strings.Replace(sales, "account", "tax", 1), "9997")
		form.Set(card, "9999 <Mine>")
		page := v.visit(v.path("mapping"), form).is(422).shows("The books have no account 9998.",
			"The books have no account 9999.", `value="9998"`, `value="9999"`, `value="9997"`)
		equal(t, "marked rows", strings.Count(page.body, `<tr class="lacks">`), 2)
		form.Set(card, "")
		form.Set(sales, "")
		v.visit(v.path("mapping"), form).is(303)
		v.visit(v.path("mapping"), nil).is(200).shows("These have no account yet", "No account yet")
		form = v.form(v.path("mapping"))
		form.Set(sales, before.Get(sales))
		form.Set(card, "77")
		k.fail("chart", fault500, fault500)
		v.visit(v.path("mapping"), form).is(503).shows(`value="77"`, "can’t be reached")
	})
}

// Against two accountants at once who undo each other: a form carries what it has shown. What the second one has filled
// in stands beside what the first one has saved.
func TestBooksPages_twoAccountantsDoNotUndoEachOther(t *testing.T) {
	t.Parallel()
	eachAccountant(t, func(t *testing.T, v *bookVisitor) {
		k, other := v.k, v.k.entersBooks(v.k.account)
		card, tip := rowField(rulePayment, 0, methodCard), rowField(ruleTip, 0, "")
		mine, theirs := v.form(v.path("mapping")), other.form(v.path("mapping"))
		accounts := map[string][2]string{productXero: {"602", "825"}, productFortnox: {"1910", "2891"}}[k.product]
		theirs.Set(card, accounts[0])
		other.visit(v.path("mapping"), theirs).is(303)
		was := mine.Get(card)
		mine.Set(tip, accounts[1])
		v.visit(v.path("mapping"), mine).is(409).shows("Somebody has changed something", "You had filled in: "+was,
			"You had filled in: "+accounts[1])
		c, err := k.store.bookConnection(anyAccount, k.connection)
		k.check(err)
		equal(t, "account of cards", c.Mapping.clearing(methodCard).Account, accounts[0])
		v.visit(v.path("sending"), url.Values{"shown": {mine.Get("shown")}, "send": {"yes"},
			"send_from": {bookkeeperDay}, "status": {"draft"}, "series": {"W"}}).is(409)
		v.visit(v.path("day"), url.Values{"shown": {mine.Get("shown")}, "date": {bookkeeperDay}}).is(409)
		k.hasRows(0, "books_exports")
	})
}

// Against sessions that open what they should not: codes and sessions are of one kind, an account sees its own only,
// and none outlives the account.
func TestBooksPages_openForTheirOwnSessionsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productXero)
		nobody := &visitor{service: k.service}
		nobody.visit("/books", url.Values{"code": {k.signinCode(k.account)}}).is(403).shows("This code is not valid")
		nobody.visit("/oauth/signin", url.Values{"code": {k.booksCode(k.account)}}).is(403)
		consent := k.service.signedIn(k.account)
		consent.visit("/books", nil).is(200).shows(`name="code"`, "not Trattoria")
		v := k.entersBooks(k.account)
		v.visit("/oauth/connected", nil).is(200).shows(`name="code"`)
		consent.cookie = strings.Replace(consent.cookie, "widgetd-session", "widgetd-books", 1)
		consent.visit("/books", nil).is(200).shows(`name="code"`)
		for _, path := range []string{"mapping", "sending", "day"} {
			nobody.visit("/books/"+path+"/xero", nil).is(200).shows(`name="code"`)
			nobody.visit("/books/"+path+"/xero", url.Values{"shown": {"x"}, "date": {bookkeeperDay}}).is(200)
			v.visit("/books/"+path+"/bexio", nil).is(404)
			v.visit("/books/"+path+"/fortnox", nil).is(303).has("Location: ../../books")
		}
		elsewhere := k.addAccount("another")
		stranger := k.entersBooks(elsewhere)
		stranger.visit("/books", nil).is(200).shows("The account is not connected with Xero.")
		stranger.visit("/books/mapping/xero", nil).is(303)
		k.do("POST", "/books/mapping/xero", "shown=x", formType, "Cookie: "+v.cookie,
			"Sec-Fetch-Site: cross-site").is(403)
		fields := strings.Repeat("a=&", maxBooksFields-1)
		for i := range maxBooksFields - 1 {
			fields = strings.Replace(fields, "a=&", "a"+string(rune('a'+i%26))+strings.Repeat("x", i/26)+"=&", 1)
		}
		k.do("POST", "/books/mapping/xero", fields+"z=", formType, fromHere, "Cookie: "+v.cookie).is(409)
		k.do("POST", "/books/mapping/xero", fields+"z=&y=", formType, fromHere, "Cookie: "+v.cookie).is(422)
		k.do("POST", "/books/mapping/xero", "a="+strings.Repeat("x", maxBooksForm), formType, fromHere,
			"Cookie: "+v.cookie).is(413)
		v.visit("/books/day/xero", url.Values{"shown": {"x"}, "date": {"2000-02-01"}}).is(409)
		k.change(func(t *tx) error { return closeAccount(t, nouns(), elsewhere, anActor) })
		stranger.visit("/books", nil).is(200).shows(`name="code"`)
		k.hasRows(0, "books_exports")
	})
}

// TestBooksPages_sayWhatHoldsADay: a locked period, a day that has not begun, and what is sent from when on.
func TestBooksPages_sayWhatHoldsADay(t *testing.T) {
	t.Parallel()
	eachAccountant(t, func(t *testing.T, v *bookVisitor) {
		k := v.k
		k.lock(bookkeeperDay)
		v.day(bookkeeperDay).is(200).shows("The period is locked", "The books are locked to", "not post=ask")
		shown := v.form(v.path("day") + "?date=2000-01-01").Get("date")
		equal(t, "the day", shown, bookkeeperDay)
		form := url.Values{"shown": {v.form(v.path("mapping")).Get("shown")}, "date": {bookkeeperDay}}
		v.visit(v.path("day"), form).is(303)
		v.visit("/books", nil).is(200).shows("Not in the books yet", "It is held. The period is locked in the books")
		k.lock("1999-12-31")
		v.day(bookkeeperDay).is(200).shows("post=ask")
		k.time(10 * time.Second) // the pages and the worker count their requests apart here
		v.visit(v.path("day"), form).is(303)
		v.day(bookkeeperDay).is(200).shows("It is in the books:", "not post=ask")
		posted := k.exports()[0]
		k.change(func(t *tx) error {
			return second(reverseExport(t, ownedBy(k.account), k.connection, posted.ID, ""))
		})
		k.time(time.Minute)
		v.day(bookkeeperDay).is(200).shows("was taken back", "post=ask")
		form.Set("date", "2000-02-01")
		v.visit(v.path("day"), form).is(422).shows("has not begun")
		v.day("2000-02-01").is(200).shows("This day has not begun.", "not post=ask")
		sending := v.form(v.path("sending"))
		sending.Set("send", "yes")
		sending.Set("send_from", "1999-12-01")
		v.visit(v.path("sending"), sending).is(422).shows("This day is past", `value="1999-12-01"`)
		sending.Set("history", "yes")
		v.visit(v.path("sending"), sending).is(303)
		v.visit("/books", nil).is(200).shows("from 1" + wideSpace + "December 1999 on")
		v.visit("/books", nil, "Accept-Language: de").is(200).shows("ab 1."+wideSpace+"Dezember 1999", "Ihre Bücher")
	})
}

// browserBooks is a service at an address with the demo's books, whose account has sold something on a day that is
// over.
func browserBooks(t *testing.T) (k *bookkeeper, base string) {
	books := newDemoLedger("", "http://127.0.0.1:", time.Now)
	s := newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.ledgers = map[string]ledger{productFortnox: books}
	})
	vendor := httptest.NewServer(books.handler())
	t.Cleanup(vendor.Close)
	books.base, base = vendor.URL, s.atItsBase()
	k = &bookkeeper{service: s, product: productFortnox, currency: fortnoxCurrency, rate: 1200}
	s.change(func(t *tx) error {
		setBooksApp(t, s.keys, productFortnox, appSecrets{"client", "secret"})
		past := *t
		past.now = newStamp(t.now.Add(-36 * time.Hour))
		o := &order{AccountID: s.account, Currency: k.currency, ReturnURL: siteOrigin + "/thanks",
			Lines: []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: 4200, VATRate: k.rate, Group: "food"}}}
		_, err := createOrder(&past, o, guest{}, minOrderLife, actorCommand)
		return errors.Join(err, markPaid(&past, o, methodCard, past.now, actorCommand))
	})
	k.recordRevenue()
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for _, work := range s.server.workers {
		working.Go(func() { work(ctx) })
	}
	t.Cleanup(func() { stop(); working.Wait() })
	return k, base
}

// TestBooksPages_leadABrowserFromACodeToAPostedDay goes the way of an accountant, on pages that fit a telephone.
func TestBooksPages_leadABrowserFromACodeToAPostedDay(t *testing.T) {
	takesLong(t, "looks at many pages in a browser")
	t.Parallel()
	programsOrSkip(t, "chromium", "chromedriver")
	k, base := browserBooks(t)
	const save = `//button[text()="Save"]`
	b := startBrowser(t)
	b.open(base + booksPath)
	b.focused("code")
	b.press(k.booksCode(k.account) + keyEnter)
	b.click(`//button[text()="Connect Fortnox"]`)
	b.find(`//h1[text()="Connected"]`)
	b.click(`//nav/a[text()="Accounts"]`)
	b.click(save)
	b.find(`//*[@role="status"]`)
	b.click(`//nav/a[text()="Sending"]`)
	b.click(save)
	b.find(`//*[@role="status"]`)
	b.click(`//nav/a[text()="A day"]`)
	b.click(`//a[text()="Post this day"]`)
	b.click(`//button[text()="Yes, post it"]`)
	contains(t, b.text(`//*[@role="status"]`), "It is in the books: W-1-")
	framed := k.framed()
	b.open(strings.TrimSuffix(framed, "/v1") + "/robots.txt")
	for _, lang := range []pageLanguage{"de", "fr"} { // with the longest words
		for _, page := range []string{"", "/mapping/fortnox", "/sending/fortnox", "/day/fortnox"} {
			b.fitsFramed("books"+strings.ReplaceAll(page, "/", "-"), framed, booksPath+page, lang)
		}
	}
}

// TestBooksPages_speakTheLanguageThatWasChosen: from the page that asks for a code on, until another one is chosen. A
// wrong code stays in its field.
func TestBooksPages_speakTheLanguageThatWasChosen(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const kept, it = "Cookie: " + langCookie + "=de", "Accept-Language: it"
	cookie := s.get("/books?lang=de", it).is(200).shows(`<html lang="de">`, `"?lang=fr"`).header.Get("Set-Cookie")
	contains(t, cookie, langCookie+"=de; Path=/; Max-Age=31536000; HttpOnly", "SameSite=Lax")
	again := s.get("/books", kept, it).is(200).shows(`<html lang="de">`)
	equal(t, "what is set unasked", again.header.Get("Set-Cookie"), "")
	s.get("/books?lang=tlh", kept, it).is(200).shows(`<html lang="de">`)
	s.get("/books", "Cookie: "+langCookie+"=tlh", it).is(200).shows(`<html lang="it">`)
	s.do("POST", "/books", "code=K-<b>", formType, fromHere, kept).is(403).shows(`<html lang="de">`,
		`value="K-&lt;b&gt;"`)
	v := (&bookkeeper{service: s}).entersBooks(s.account)
	s.get("/books?lang=fr", "Cookie: "+v.cookie, kept).is(200).shows(`<html lang="fr">`, `hreflang="fr" aria-current`)
	s.get("/books/callback/xero?state=x", kept).is(409).shows(`<html lang="de">`, "not ?lang=")
}

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
