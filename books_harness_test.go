package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A bookkeeper is a service with an account that is connected with books, in a bubble: Xero or Fortnox are
// fakes whose connections are in memory. The bubble's clock begins at 2000-01-01T00:00:00Z.
type bookkeeper struct {
	*service
	product    string
	xero       *xeroFake
	fortnox    *fortnoxFake
	engine     *books
	connection string
	currency   string // of sales
	rate       int64  // of VAT
}

const (
	bookkeeperXeroURL    = "http://127.0.0.1:12"
	bookkeeperFortnoxURL = "http://127.0.0.1:13"
	bookkeeperDay        = businessDate("2000-01-01") // the first business day, which ends at 04:00 UTC of the next
)

// bookkeeperURLs are the base addresses of the fakes.
var bookkeeperURLs = map[string]string{"xero-url": bookkeeperXeroURL, "fortnox-url": bookkeeperFortnoxURL}

// newBookkeeper makes a bookkeeper whose account is connected with a product, and whose mapping names
// everything. It must be made in a bubble.
func newBookkeeper(t testing.TB, product string) *bookkeeper {
	t.Helper()
	k := &bookkeeper{product: product, currency: "CHF", rate: 810}
	k.service = newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.urls = demoOutbound, bookkeeperURLs
	})
	k.xero = makeXeroFake(t, time.Now, bookkeeperXeroURL)
	k.fortnox = makeFortnoxFake(t, time.Now, bookkeeperFortnoxURL)
	k.engine = booksOf(k.server)
	k.server.outbound.plain.DialContext = dialTo(map[string]pipes{
		bookkeeperXeroURL: serveInMemory(t, k.xero), bookkeeperFortnoxURL: serveInMemory(t, k.fortnox)})
	t.Cleanup(k.server.outbound.close)
	for product, app := range map[string]appSecrets{productXero: k.xero.app, productFortnox: k.fortnox.app} {
		k.told.hear(app.clientSecret)
		k.change(func(t *tx) error {
			setBooksApp(t, k.keys, product, app)
			return nil
		})
	}
	if product == productFortnox {
		k.currency, k.rate = "SEK", 1200
	}
	k.time(12 * time.Hour)
	k.connect()
	k.remap(func(*bookMapping) {})
	if product == productFortnox {
		k.set(func(c *bookConnection) { series := "W"; c.Series = &series })
	}
	return k
}

// disconnect is what DELETE /books/connections/{id} does.
func (b *books) disconnect(ctx context.Context, o owner, id, actor string) error {
	if err := b.endAccess(ctx, o, id); err != nil {
		return err
	}
	return b.update(ctx, func(t *tx) error {
		c, err := t.usedBookConnection(o, id)
		if err != nil {
			return err
		}
		return second(disconnectBooks(t, c, actor))
	})
}

// time lets time pass.
func (k *bookkeeper) time(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// until lets time pass until a moment in UTC: "2000-01-02 06:00".
func (k *bookkeeper) until(moment string) {
	k.t.Helper()
	at, err := time.Parse("2006-01-02 15:04", moment)
	k.check(err)
	k.time(time.Until(at))
}

// connect connects the account with the product, as its owner does.
func (k *bookkeeper) connect() {
	k.t.Helper()
	c, err := k.comeBack(k.approve())
	k.check(err)
	k.connection = c.ID
}

// approve begins to connect the account, and returns the address to which its owner comes back.
func (k *bookkeeper) approve() string {
	k.t.Helper()
	link, err := k.engine.authorize(k.t.Context(), k.account, k.product, "https://api.example.com/v1", anActor)
	k.check(err)
	return k.agrees(link.AuthorizeURL)
}

// agrees is the owner who agrees at an address of the product; see approve.
func (k *bookkeeper) agrees(address string) (redirect string) {
	if k.product == productXero {
		return k.xero.approve(address)
	}
	return k.fortnox.approve(address)
}

// comeBack is the owner who comes back.
func (k *bookkeeper) comeBack(address string) (*bookConnection, error) {
	k.t.Helper()
	u, err := url.Parse(address)
	k.check(err)
	query := u.Query()
	return k.engine.callback(k.t.Context(), k.product, query.Get("state"), query.Get("code"), query.Get("error"))
}

// mapping names an account for all that a bookkeeper sells.
func (k *bookkeeper) mapping() *bookMapping {
	tax, sales, tip, clearing, cash, dispute := "OUTPUT2", "200", "220", "600", "602", "480"
	if k.product == productFortnox {
		tax, sales, tip, clearing, cash, dispute = "2621", "3002", "2890", "1580", "1910", "6352"
	}
	return &bookMapping{Lines: []mappingRule{
		{Kind: ruleSales, VATRate: &k.rate, Account: sales, Tax: &tax},
		{Kind: ruleDelivery, VATRate: &k.rate, Account: sales, Tax: &tax},
		{Kind: ruleTip, Account: tip},
		{Kind: ruleDispute, Account: dispute},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: clearing},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCash), Account: cash},
	}}
}

// remap changes the mapping.
func (k *bookkeeper) remap(f func(m *bookMapping)) {
	k.t.Helper()
	m := k.mapping()
	f(m)
	k.change(func(t *tx) error { return second(saveMapping(t, ownedBy(k.account), k.connection, m, anActor)) })
}

// set changes what the owner decides.
func (k *bookkeeper) set(f func(c *bookConnection)) {
	k.t.Helper()
	k.change(func(t *tx) error {
		return second(changeConnection(t, ownedBy(k.account), k.connection, f, anActor))
	})
}

// sendFrom has days sent on their own.
func (k *bookkeeper) sendFrom(date businessDate) {
	k.t.Helper()
	k.set(func(c *bookConnection) { c.SendFrom = &date })
}

// sell sells something for an amount, paid by card, and returns the order's id.
func (k *bookkeeper) sell(amount int64, change ...func(*order)) string {
	k.t.Helper()
	return k.sellBy(methodCard, amount, change...)
}

func (k *bookkeeper) sellBy(method string, amount int64, change ...func(*order)) string {
	k.t.Helper()
	o := &order{AccountID: k.account, Currency: k.currency, ReturnURL: siteOrigin + "/thanks",
		Lines: []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: amount, VATRate: k.rate, Group: "food"}}}
	for _, f := range change {
		f(o)
	}
	k.change(func(t *tx) error {
		if _, err := createOrder(t, o, guest{}, minOrderLife, actorCommand); err != nil {
			return err
		}
		return markPaid(t, o, orderMethod(method), t.now, actorCommand)
	})
	k.recordRevenue()
	return o.ID
}

// lock has both products lock all days up to a date.
func (k *bookkeeper) lock(date businessDate) {
	k.xero.lock(date)
	k.fortnox.lock(date)
}

// sendingDay sells something on the first day, which is over then, and is due to be sent on its own.
func (k *bookkeeper) sendingDay() {
	k.t.Helper()
	k.sendFrom(bookkeeperDay)
	k.sell(4200)
	k.until("2000-01-02 07:00")
}

// dueDay sells something on the first day, and asks for its export when that day is over.
func (k *bookkeeper) dueDay() bookExport {
	k.t.Helper()
	k.sell(4200)
	k.until("2000-01-02 07:00")
	return k.export(bookkeeperDay)
}

// postedDay is dueDay, and has the day got into the books.
func (k *bookkeeper) postedDay() *bookExport {
	k.t.Helper()
	x := k.dueDay()
	return k.after(time.Minute, x.ID, exportPosted)
}

// work runs the worker for a time.
func (k *bookkeeper) work(d time.Duration) {
	k.t.Helper()
	w := newBooksWorker(k.engine)
	w.tick = max(booksTick, d/30) // each look costs more than anything else in a bubble
	stop := k.beside(w.run)
	k.time(d)
	stop()
}

// after runs the worker for a time, after which an export has to be in a state; see is.
func (k *bookkeeper) after(d time.Duration, id string, state bookExportState, reason ...string) *bookExport {
	k.t.Helper()
	k.work(d)
	return k.is(id, state, reason...)
}

// export asks for the export of a day, and returns the first.
func (k *bookkeeper) export(date businessDate) (x bookExport) {
	k.t.Helper()
	k.change(func(t *tx) error {
		all, err := requestExport(t, ownedBy(k.account), k.connection, date)
		if err == nil {
			x = all[0]
		}
		return err
	})
	return x
}

// exported returns an export as it is now.
func (k *bookkeeper) exported(id string) *bookExport {
	k.t.Helper()
	x, err := k.store.bookExport(anyAccount, id)
	k.check(err)
	return x
}

// exports returns all exports, oldest first.
func (k *bookkeeper) exports() []*bookExport {
	k.t.Helper()
	page, err := k.store.bookExports(exportFilter{owner: anyAccount}, "", 1000)
	k.check(err)
	slices.Reverse(page.rows)
	return page.rows
}

// is requires an export to be in a state, for a reason or for none.
func (k *bookkeeper) is(id string, state bookExportState, reason ...string) *bookExport {
	k.t.Helper()
	x, want := k.exported(id), strings.Join(reason, "")
	if x.State != state || valueOr(x.Reason, "") != want {
		k.t.Fatalf("the export of %s is %s %q (%s), want %s %q", x.Date, x.State, valueOr(x.Reason, ""),
			valueOr(x.Detail, ""), state, want)
	}
	return x
}

// A bookedText is an entry in the books: its narration, whether it counts there, and what was debited to the
// clearing account of cards.
type bookedText struct {
	narration string
	counts    bool
	card      int64
}

// books returns what is in the books, in the order in which it came.
func (k *bookkeeper) books() (all []bookedText) {
	if k.product == productFortnox {
		for _, v := range k.fortnox.vouchers() {
			b := bookedText{narration: v.description, counts: true}
			for _, row := range v.rows {
				if row.account == 1580 && !row.removed {
					b.card += row.debit - row.credit
				}
			}
			all = append(all, b)
		}
		return all
	}
	for _, j := range k.xero.journals() {
		b := bookedText{narration: j.narration, counts: j.status == "POSTED" || j.status == "DRAFT"}
		for _, l := range j.lines {
			if l.account == "600" {
				b.card += l.amount
			}
		}
		all = append(all, b)
	}
	return all
}

// has requires as many entries with a sync key to count in the books.
func (k *bookkeeper) has(key string, want int) {
	k.t.Helper()
	n := 0
	for _, b := range k.books() {
		if b.counts && strings.Contains(b.narration, key+")") {
			n++
		}
	}
	if n != want {
		k.t.Fatalf("%d entries in the books have the key %s, want %d", n, key, want)
	}
}

// fake is that of the product.
func (k *bookkeeper) fake() *bookFake {
	if k.product == productXero {
		return &k.xero.bookFake
	}
	return &k.fortnox.bookFake
}

// fail has the next requests of a kind fail: token, chart, post, find or read.
func (k *bookkeeper) fail(kind string, faults ...providerFault) { k.fake().fail(kind, faults...) }

// fortnoxKind names what a request asks for.
func fortnoxKind(method, path string) string {
	switch {
	case strings.HasPrefix(path, "/oauth-v1/token"):
		return "token"
	case method == "POST" && path == "/3/vouchers":
		return "post"
	case strings.HasPrefix(path, "/3/vouchers/sublist"):
		return "find"
	case strings.HasPrefix(path, "/3/vouchers/"):
		return "read"
	}
	return "chart"
}

// connectToXero connects the account with a fake, to whose address the service's options lead, as its owner does
// in a browser. It returns the connection.
func (s *service) connectToXero(f *xeroFake) string {
	s.t.Helper()
	s.told.hear(f.app.clientSecret)
	s.change(func(t *tx) error {
		setBooksApp(t, s.keys, productXero, f.app)
		return nil
	})
	auth := "Authorization: Bearer " + s.token(s.account, scopeBooks)
	link := s.post("/books/connections", `{"product":"xero"}`, auth).is(http.StatusOK)
	back, err := url.Parse(f.approve(link.text("authorize_url")))
	s.check(err)
	s.get(strings.TrimPrefix(back.Path, "/v1") + "?" + back.RawQuery).is(http.StatusOK)
	all := s.get("/books/connections", auth).is(http.StatusOK).json()["data"].([]any)
	return all[0].(map[string]any)["id"].(string)
}

// atXero runs a test in a bubble with Xero.
func atXero(t *testing.T, f func(t *testing.T, k *bookkeeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newBookkeeper(t, productXero)) })
}

// file writes a file that only this user can read, and returns its path.
func (o *operator) file(name, text string) string {
	o.t.Helper()
	path := filepath.Join(o.t.TempDir(), name)
	must(o.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// A bookFake is what the fakes of both products have: one application, and tokens for it.
type bookFake struct {
	vendorFake
	app  appSecrets
	life any // expires_in of tokens; nil: as documented; notSaid: absent
}

const notSaid = "not said"

// lasting adds to an answer how long its tokens last, usually so many seconds.
func (f *bookFake) lasting(answer map[string]any, usually int) {
	if answer["expires_in"] = cmp.Or[any](f.life, usually); f.life == notSaid {
		delete(answer, "expires_in")
	}
}

// tokenForm returns what a request for tokens asks for, or why it is refused.
func (f *bookFake) tokenForm(r vendorRequest) (form url.Values, why string) {
	id, secret, ok := (&http.Request{Header: r.header}).BasicAuth()
	id, err1 := url.QueryUnescape(id)
	secret, err2 := url.QueryUnescape(secret)
	if !ok || err1 != nil || err2 != nil || id != f.app.clientID || secret != f.app.clientSecret {
		return nil, "invalid_client"
	}
	form, err := url.ParseQuery(string(r.body))
	if err != nil || r.header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		return nil, "invalid_request"
	}
	return form, ""
}

// eachProduct runs a test in a bubble with each product. A subtest that calls it is parallel too: otherwise it waits
// until every test before it has had its turn, and the next subtest begins only then.
func eachProduct(t *testing.T, f func(t *testing.T, k *bookkeeper)) {
	for _, product := range productNames() {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, newBookkeeper(t, product)) })
		})
	}
}

// answersNow is the wall clock of clients whose answers are judged.
func answersNow() time.Time { return time.Date(2026, 11, 23, 6, 0, 0, 500, time.UTC) }

// callBooks makes a call of the client of a product of books.
func callBooks(t testing.TB, product, address, call string) string {
	t.Helper()
	ctx, company := t.Context(), "company"
	l := productOf(product).client(outboundTo(t, loopbackRange), address, answersNow)
	entry := &bookEntry{Date: "2026-11-22", Currency: "SEK", Narration: "key", Series: "W", Year: 2,
		Lines: []entryLine{{Account: "1910", Debit: 100}, {Account: "3001", Credit: 100}}}
	tokens := &bookTokens{Access: "access", Refresh: "old"}
	c := &bookConnection{OrganisationID: &company}
	s := &ledgerSession{connection: c, access: tokens.Access, linkID: "link"}
	switch call {
	case "exchange":
		got, err := l.exchange(ctx, appSecrets{"id", "secret"}, "https://a.example", "code", "verifier")
		return cmp.Or(meansFailure(err), tokensText(got))
	case "renew":
		got, err := l.renew(ctx, appSecrets{"id", "secret"}, c, tokens)
		return cmp.Or(meansFailure(err), tokensText(got))
	case "organisations":
		all, err := l.organisations(ctx, tokens)
		return cmp.Or(meansFailure(err), fmt.Sprint(len(all), all[:min(len(all), 2)]))
	case "chart":
		chart, err := l.chart(ctx, s, entry.Date)
		return cmp.Or(meansFailure(err), chartText(chart))
	case "post":
		id, err := l.post(ctx, s, entry, l.encode(entry), "")
		return cmp.Or(meansFailure(err), "written as "+id)
	case "read":
		booked, err := l.read(ctx, s, "W-1-2")
		return cmp.Or(meansFailure(err), bookedLine(booked))
	case "find":
		booked, err := l.find(ctx, s, entry, "key")
		return cmp.Or(meansFailure(err), bookedLine(booked))
	case "withdraw":
		return cmp.Or(meansFailure(l.withdraw(ctx, s, "W-1-2")), "deleted")
	case "disconnect":
		return cmp.Or(meansFailure(l.disconnect(ctx, s)), "disconnected")
	}
	t.Fatalf("there is no call %q", call)
	return ""
}

// meansFailure returns what an error of a client of books says; "": there is none.
func meansFailure(err error) string {
	if failed, ok := errors.AsType[*outboundError](err); ok {
		text := failed.reason
		for _, flag := range []struct {
			name string
			set  bool
		}{{"refused", failed.final()}, {"denied", failed.outcome == vendorDenied},
			{"removed", failed.outcome == vendorOwnerGone}, {"again in " + failed.wait.String(), failed.wait > 0}} {
			if flag.set {
				text += ", " + flag.name
			}
		}
		return text + strings.TrimSuffix(": "+failed.detail, ": ")
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func tokensText(got *bookTokens) string {
	if got == nil {
		return ""
	}
	return fmt.Sprintf("access %s, refresh %s, for %s", got.Access, cmp.Or(got.Refresh, "none"),
		got.ExpiresAt.Sub(newStamp(answersNow()).Time))
}

func bookedLine(b *bookedEntry) string {
	if b == nil {
		return "none"
	}
	text := fmt.Sprintf("%s of %s", b.ID, b.Entry.Date)
	if b.Draft {
		text += ", draft"
	}
	if b.Deleted {
		text += ", deleted"
	}
	for _, l := range b.Entry.Lines {
		text += ", " + words(l.Account, formatSigned(l.Debit-l.Credit), l.Tax, l.CostCenter)
	}
	return text
}

// words are those of some texts that are not empty.
func words(texts ...string) string {
	return strings.Join(strings.Fields(strings.Join(texts, " ")), " ")
}

func chartText(chart *bookChart) string {
	if chart == nil {
		return ""
	}
	text := chart.Currency
	if chart.LockedUntil != "" {
		text += ", locked to " + chart.LockedUntil
	}
	if chart.Year != 0 {
		text += fmt.Sprint(", year ", chart.Year)
	}
	for _, code := range chart.Series {
		text += ", series " + code
	}
	for _, a := range chart.Accounts {
		text += ", account " + words(a.Code, a.Name, a.Type, a.Tax, a.Why)
	}
	for _, center := range chart.CostCenters {
		text += ", cost center " + center
	}
	for _, r := range chart.TaxRates {
		text += fmt.Sprintf(", tax %s %d %v", r.Code, r.Rate, r.Usable)
	}
	return text
}
