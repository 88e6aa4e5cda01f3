package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A guestService is a service whose main account takes cards at the demo's test provider.
type guestService struct {
	*service
	provider *testProvider
}

const pageKey = "bGVtb24tdGFydC0yMDI2" // the k of every order here

const formType = "Content-Type: application/x-www-form-urlencoded"

// newGuestService starts both. change alters the usual options of the service.
func newGuestService(t testing.TB, change ...func(*storeOptions, *serverOptions)) *guestService {
	t.Helper()
	g := &guestService{}
	web := httptest.NewUnstartedServer(nil)
	g.provider = newTestProvider(newOutbound(demoOutbound), "http://"+web.Listener.Addr().String(), time.Now)
	web.Config.Handler = g.provider.handler()
	web.Start()
	t.Cleanup(func() {
		g.provider.close()
		web.Close()
	})
	g.service = newService(t, append(change, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		o.urls = map[string]string{"stripe-url": web.URL}
	})...)
	g.change(func(t *tx) error {
		c := &unsealedConnection{&paymentConnection{ID: t.newID("con"), AccountID: g.account, Provider: providerStripe,
			CreatedAt: t.now}, connectionSecrets{Key: "rk_test_lemon"}}
		if err := c.seal(g.keys); err != nil {
			return err
		}
		t.addPaymentConnection(c.paymentConnection)
		return nil
	})
	return g
}

// lunch is an order of the main account that is open: 2 × 18.50 and 3 × 4.00 less 4.90, with delivery and
// tip 57.10.
func (g *guestService) lunch(change ...func(*order)) *order {
	g.t.Helper()
	sum := sha256.Sum256([]byte(pageKey))
	o := &order{
		AccountID: g.account, State: orderOpen, Currency: "CHF",
		Lines: []orderLine{
			{Name: "Pizza Margherita", Quantity: 2, UnitAmount: 1850, VATRate: 260, Gross: 3390, Accepted: 2},
			{Name: "<script>alert(1)</script> & café", Quantity: 3, UnitAmount: 400, VATRate: 810, Gross: 1100,
				Accepted: 3},
		},
		Discount: 410, Delivery: 1000, DeliveryRate: 810, DeliveryGross: 1000, Tip: 220, OrderedTotal: 5710,
		Total:     5710,
		VAT:       []vatSum{{260, 3390, 86}, {810, 2100, 157}},
		ReturnURL: siteOrigin + "/thanks?table=4&x=1", PageKey: sum[:], Pay: payOnline,
	}
	g.change(func(t *tx) error {
		o.ID, o.CreatedAt, o.ExpiresAt = t.newID("ord"), t.now, t.now.after(30*time.Minute)
		for _, f := range change {
			f(o)
		}
		t.addOrder(o)
		return nil
	})
	return o
}

// path is the path of an order's pay page, or with a suffix of its return page.
func (o *order) path(suffix string) string { return "/pay/" + o.ID + suffix + "?k=" + pageKey }

// shows checks that a page has texts, and not the ones that begin with "not ".
func (a answer) shows(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		without, not := strings.CutPrefix(text, "not ")
		if strings.Contains(a.body, without) == not {
			page := regexp.MustCompile(`(?s)<style>.*</style>`).ReplaceAllString(a.body, "")
			a.t.Errorf("%d, want %q in:\n%s", a.status, text, page)
		}
	}
	return a
}

// presses posts the form of an order's pay page.
func (g *guestService) presses(o *order, method string) answer {
	g.t.Helper()
	return g.post(o.path(""), "method="+method, formType)
}

// page gets the pay page of an order.
func (g *guestService) page(o *order) answer { return g.get(o.path("")) }

// returns gets the page to which a guest returns, which is always there.
func (g *guestService) returns(o *order) answer { return g.get(o.path("/return")).is(200) }

// Against anybody between a guest and other sites, or a log, who would learn a pay_url: Referrer-Policy:
// same-origin, no-store; the pages load nothing, and the log of requests has no query and no path with ids.
func TestPayPage_showsTheOrderAndAButtonForEachMethod(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch(func(o *order) { o.Reference = ptr("A-17") })
	g.sql(`INSERT INTO order_customers (order_id, name, phone, note)
		VALUES (?, 'Ada Lovelace', '+41790000000', 'no onions')`, o.ID)
	page := g.page(o).is(200).has("Content-Type: text/html; charset=utf-8", "Cache-Control: no-store",
		"Referrer-Policy: same-origin", "Vary: Origin | Accept-Language", "X-Robots-Tag: noindex")
	page.shows(`<html lang="en">`, "<title>Pay for your order · main</title>", "<h1>Pay for your order</h1>", "A-17",
		"<b>A-17</b>", "Pizza Margherita<small>2 × CHF\u00a018.50</small></th>",
		`<td class="number money" role="cell">CHF`+"\u00a037.00",
		"&lt;script&gt;alert(1)&lt;/script&gt; &amp; café", "not <script", "Discount</th>", "−CHF\u00a04.10",
		"Delivery", "CHF\u00a010.00", "Tip", "CHF\u00a02.20", "Total", "CHF\u00a057.10",
		"2.6%", "CHF\u00a00.86", "8.1%", "CHF\u00a01.57", "CHF\u00a021.00",
		`<button class="button" name="method" value="card" aria-describedby="card"><svg `,
		"</svg>Pay CHF\u00a057.10 by card</button>",
		"Charged when the restaurant accepts.", "not mobile",
		`<form method="post">`, "You can pay until ", "not UTC", "<details>", "not <details open>",
		`<a href="https://www.example.com/thanks?table=4&amp;x=1">`,
		"not Lovelace", "not 41790000000", "not onions", "not Receipt", "not http-equiv", "not _text", "not _now")
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(page.body)
	sum := sha256.Sum256([]byte(style[1]))
	page.has("Content-Security-Policy: default-src 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; frame-ancestors 'none'; " +
		"script-src '" + hashSource(embedded("web/pay.js")) + "'; connect-src 'self'")
	forbidden := regexp.MustCompile(`(?i)<script|<iframe|@import|url\(|style=|src=| on\w+=`)
	equal(t, "what the page has", forbidden.FindString(page.body), "")
	g.sql(`UPDATE payment_connections SET removed_at = created_at`)
	g.page(o).is(200).shows("can’t be paid online", "not <button")
}

func TestReturnPage_receiptStaysAsItWasWhenTheOrderWasPaid(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		settings := func(name, address, zone string) {
			s.sql(`INSERT OR REPLACE INTO account_settings (account_id, zone, legal_name, address, vat_number)
				VALUES (?, ?, ?, ?, 'CHE-1')`, s.account, zone, name, address)
		}
		settings("Old GmbH", "Altgasse 1", "Asia/Tokyo")
		free := func(o *order) { o.Lines, o.Delivery = o.Lines[1:], 0 }
		byCard, _ := s.paid()
		open, cash, nothing, undone, before := s.place(), s.place(), s.place(free), s.place(), s.place()
		for _, o := range []*order{cash, undone} {
			s.post("/orders/"+o.ID+"/paid", `{"method":"cash"}`, s.seller()).is(200)
		}
		s.do("DELETE", "/orders/"+undone.ID+"/paid", "", s.seller()).is(200)
		sum := sha256.Sum256([]byte(pageKey))
		s.sql(`UPDATE orders SET page_key = ?`, sum[:])
		receipts := func() {
			t.Helper()
			for _, o := range []*order{byCard, cash, nothing} {
				s.get(o.path("/return")).is(200).shows("Old GmbH", "Altgasse 1", "CHE-1", "not New GmbH", "09:00")
			}
		}
		receipts()
		settings("New GmbH", "Neugasse 2", "Europe/Zurich")
		receipts()
		s.get(open.path("")).is(200).shows("New GmbH", "not Old GmbH")
		s.get(undone.path("")).is(200).shows("New GmbH", "not Old GmbH")
		s.sql(`UPDATE orders SET state = 'paid', method = 'cash', paid_at = created_at, ended_at = created_at
			WHERE id = ?`, before.ID) // as by an earlier version
		s.get(before.path("/return")).is(200).shows("New GmbH")
		s.sql(`UPDATE accounts SET is_main = 0, closed_at = created_at WHERE id = ?`, s.account)
		receipts()
		s.get(before.path("/return")).is(200).shows("New GmbH")
		for _, o := range []*order{open, undone} {
			s.get(o.path("/return")).is(404)
			s.get(o.path("")).is(404)
		}
		s.get("/pay/" + cash.ID + "/return?k=wrong").is(404)
		s.post(cash.path(""), "method=card", formType).is(303)
	})
}

// Against anybody with an order's id, or another order's pay_url, who would see or pay an order: k has 128 random
// bits, is kept only hashed and compared in constant time; every wrong link has the same answer, which says whose
// service this is, that of the main account; 60 wrong links a minute and address, 60 requests a minute and order.
func TestPayPage_isOneAnswerForEveryWrongLink(t *testing.T) {
	t.Parallel()
	g := newGuestService(t, withoutAddressLimits)
	o, other := g.lunch(), g.lunch(func(o *order) { sum := sha256.Sum256([]byte("another")); o.PageKey = sum[:] })
	gone := g.addAccount("closed")
	must(t, second(g.command("account", "set", gone, "-phone", "+41 44 000 00 00", "-color", "#7a1fa2")))
	g.set("-phone", "+41 (0)32 622 00 00", "-contact", "mailto:info@roma.example")
	closed := g.lunch(func(o *order) { o.AccountID = gone })
	g.sql(`UPDATE accounts SET closed_at = ? WHERE id = ?`, closed.CreatedAt, closed.AccountID)
	unknown := newID("ord", time.Now())
	first := ""
	for _, suffix := range []string{"", "/return"} {
		for _, link := range []string{
			o.ID, o.ID + "%s?k=", o.ID + "%s?k=another", o.ID + "%s?k=" + pageKey + "x",
			o.ID + "%s?k=" + pageKey + "&k=" + pageKey,
			o.ID + "%s?K=" + pageKey, other.ID + "%s?k=" + pageKey, unknown + "%s?k=" + pageKey,
			closed.ID + "%s?k=" + pageKey,
			"ord_1%s?k=" + pageKey, "%00%s?k=" + pageKey, strings.ToUpper(o.ID) + "%s?k=" + pageKey,
		} {
			path := "/pay/" + strings.Replace(link, "%s", suffix, 1)
			answers := []answer{g.get(path)}
			if suffix == "" {
				answers = append(answers, g.post(path, "method=card", formType))
			}
			for _, a := range answers {
				a.is(404).shows("<h1>There is no such order</h1>", "not req_", `<p class="from">main</p>`,
					`<a href="tel:&#43;41326220000">`, `<a href="mailto:info@roma.example" rel="noreferrer">`,
					"not 000 00 00", "not 7a1fa2")
				a.header.Del("X-Request-Id")
				if same := fmt.Sprint(a.header) + a.body; first == "" {
					first = same
				} else if same != first {
					t.Errorf("%s differs: %s", path, same)
				}
			}
		}
	}
	equal(t, "attempts", g.count(`SELECT count(*) FROM payments`), 0)
	g.page(o).is(200)
}

func TestPayPage_answersErrorsAsPages(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch()
	g.do("PUT", o.path(""), "").is(405).has("Allow: GET, HEAD, POST, OPTIONS").shows("This request isn’t valid")
	g.post(o.path("/return"), "x=y", formType).is(405).has("Allow: GET, HEAD, OPTIONS").shows("isn’t valid")
	g.post(o.path(""), `{"method":"card"}`).is(415).shows("This request isn’t valid")
	g.post(o.path(""), "method="+strings.Repeat("x", maxBody), formType).is(413).shows("This request isn’t valid")
	g.post(o.path(""), "way=card", formType).is(422).shows("This request isn’t valid")
	g.sql(`UPDATE orders SET attempts = ? WHERE id = ?`, usualLimits.attempts, o.ID)
	g.presses(o, "card").is(409).shows("tried to pay too often")
	limited := g.get(o.path(""), "Accept-Language: de")
	for range 100 * g.server.anonymousRate { // the bucket fills up meanwhile
		if limited.status == 429 {
			break
		}
		limited = g.get(o.path(""), "Accept-Language: de")
	}
	limited.is(429).shows(`<html lang="de">`, "Zu viele Anfragen")
	other := g.lunch()
	g.sql(`DROP TABLE refunds`)
	a := g.page(other).is(500)
	a.shows("Something went wrong", "quote "+a.header.Get("X-Request-Id"), "not no such table")
}

func TestPayPage_limitsGuestsByOrderAndStrangersByAddress(t *testing.T) {
	t.Parallel()
	g := newGuestService(t, func(_ *storeOptions, o *serverOptions) { o.anonymousRate = 3 })
	g.server.monotonic = standsStill()
	family := []*order{g.lunch(), g.lunch(), g.lunch()}
	for _, o := range family { // behind one address
		g.page(o).is(200)
		g.returns(o)
	}
	for range 3 {
		g.get("/pay/" + family[0].ID + "?k=wrong").is(404)
	}
	g.get("/pay/" + family[0].ID + "?k=wrong").is(429)
	g.get("/pay/" + newID("ord", time.Now()) + "/return?k=wrong").is(429)
	g.get("/pay/"+family[0].ID+"?k=wrong", "Peer: 198.51.100.7:1").is(404)
	for _, o := range family { // whom the stranger does not stop
		g.presses(o, "cash").is(409)
		g.page(o).is(429)
		g.get(o.path("/return"), "Peer: 198.51.100.7:1").is(429)
	}
}

func TestPayPage_leadsToTheProviderAndItsReturnShowsWhatCame(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch()
	g.returns(o).shows("Not paid yet", `<a class="button" href="../`+o.ID+`?k=`+pageKey+`">`)
	to := g.presses(o, "card").is(303).header.Get("Location")
	session, ok := strings.CutPrefix(to, g.provider.base+"/pay/")
	if !ok {
		t.Fatalf("it leads to %s", to)
	}
	there, ours := g.provider.sessions[0], "/pay/"+o.ID+"/return?"
	contains(t, there.returnURL, ours)
	contains(t, there.cancelURL, ours)
	lacks(t, there.returnURL+there.cancelURL, siteOrigin)
	for _, method := range []string{methodMobile, methodCash, "x"} { // the attempt stays open
		g.presses(o, method).is(409).shows("isn’t available at the moment", `value="card"`)
	}
	equal(t, "where the second click leads", g.presses(o, "card").is(303).header.Get("Location"), to)
	g.returns(o).shows("Waiting for your payment", `<main data-wait="3" data-most="60">`,
		`<div id="state" role="status">`,
		`<a class="button plain" href="return?k=`+pageKey+`">Refresh</a>`, "Go to payment", "not http-equiv",
		"<script>"+embedded("web/pay.js")+"</script>")

	if !g.provider.tryCard(session, true) {
		t.Fatal("the session is not open")
	}
	g.returns(o).shows("<h1>Sent to the restaurant, which can answer until ",
		"You are charged only if the restaurant accepts",
		"not has arrived", "not Go to payment", "Your order")
	g.page(o).is(303).has("Location: " + o.ID + "/return?k=" + pageKey)
	g.presses(o, "card").is(303).has("Location: " + o.ID + "/return?k=" + pageKey)
	equal(t, "the order", g.row(o.ID).State, orderAuthorized)
	g.sql(`UPDATE orders SET state = 'open'`) // nobody is asked to pay again while an attempt is looked into
	g.sql(`UPDATE payments SET state = 'review'`)
	g.page(o).is(303).has("Location: " + o.ID + "/return?k=" + pageKey)
	g.presses(o, "card").is(303).has("Location: " + o.ID + "/return?k=" + pageKey)
	equal(t, "attempts", g.count(`SELECT count(*) FROM payments`), 1)
}

// A guestState is a state in which a guest may find an order, and what the return page then shows.
type guestState struct {
	order, payment string // payment "": nobody has tried to pay online
	change         func(*order)
	shows          []string
}

// guestStates are all of these states.
var guestStates = []guestState{
	{orderOpen, paymentFailed, nil, []string{"The payment was declined", "No money was taken", "Go to payment",
		"You can pay until"}},
	{orderOpen, paymentCancelled, nil, []string{"You did not pay", "Go to payment"}},
	{orderOpen, paymentExpired, nil, []string{"took too long", "Go to payment"}},
	{orderOpen, paymentReview, nil, []string{"is being checked", "don’t pay again", "not Go to payment"}},
	{orderOpen, paymentExpired, func(o *order) { o.ExpiresAt = o.CreatedAt },
		[]string{"The order has expired", "not Go to payment"}},
	{orderAuthorized, paymentAuthorized, nil, []string{"Sent to the restaurant, which can answer until ",
		"The amount is reserved", "Refresh"}},
	{orderAuthorized, paymentCaptured, func(o *order) { o.Method = ptr[orderMethod](methodTwint) },
		[]string{"Sent to the restaurant", "has been charged; it is refunded if the restaurant declines"}},
	{orderAccepted, paymentAuthorized, nil, []string{"Your order is accepted", "will be charged", "Refresh"}},
	{orderOpen, "", func(o *order) { o.Pay = payLater }, []string{"Sent to the restaurant, which can answer until ",
		"hasn’t answered yet. You pay it when you get your order", "Refresh", "not Go to payment"}},
	{orderAccepted, "", func(o *order) { o.Pay = payLater }, []string{"Your order is accepted",
		"You pay it when you get your order", "not reserved"}},
	{orderCancelled, paymentCancelled,
		func(o *order) {
			o.RejectReason, o.RejectText = ptr[orderRejectReason]("sold_out"), ptr("No <b>dough</b>")
		},
		[]string{"The restaurant can’t take your order", "Something that you ordered is sold out.",
			"<p>No &lt;b&gt;dough&lt;/b&gt;</p>", "The reserved amount is released", "not Refresh"}},
	{orderCancelled, paymentCancelled, func(o *order) { o.RejectText = ptr("Our oven is broken") },
		[]string{"The order was cancelled", "<p>Our oven is broken</p>", "The reserved amount is released"}},
	{orderCancelled, paymentRefunded, func(o *order) { o.RejectReason = ptr[orderRejectReason]("closed") },
		[]string{"It is closed at that time.", "What was charged is refunded", "not reserved"}},
	{orderCancelled, "", func(o *order) { o.Pay, o.RejectReason = payLater, ptr[orderRejectReason]("too_far") },
		[]string{"outside its delivery area", "not reserved", "not refunded"}},
	{orderExpired, paymentCancelled, nil, []string{"The restaurant did not answer in time", "is released"}},
	{orderExpired, "", func(o *order) { o.Pay = payLater }, []string{"The restaurant did not answer in time",
		"not reserved"}},
	{orderPaid, paymentCaptured, nil, []string{"Paid. Thank you!", "Receipt", "Paid by</dt><dd>card",
		"not Refresh", "<details open>"}},
	{orderPartRefunded, paymentPartRefunded, nil, []string{"Partly refunded", "Receipt"}},
	{orderRefunded, paymentRefunded, nil, []string{"<h1>Refunded</h1>", "Receipt"}},
	{orderCancelled, paymentCancelled, nil, []string{"The order was cancelled", "is released", "not Receipt",
		"not Go to payment", "not Refresh"}},
	{orderCancelled, paymentReview, nil, []string{"is being checked"}},
	{orderExpired, paymentExpired, nil, []string{"The order has expired", "not Go to payment"}},
	{orderPaid, "", func(o *order) { o.Method = ptr[orderMethod](methodCash) },
		[]string{"Paid. Thank you!", "Paid by</dt><dd>cash"}},
	{orderPaid, "", func(o *order) { o.Method = ptr[orderMethod](methodNone) },
		[]string{"Paid. Thank you!", "not Paid by"}},
}

// inState makes an order in a state; change alters it.
func (g *guestService) inState(c guestState, change ...func(*order)) *order {
	g.t.Helper()
	connection := ""
	g.check(g.store.one(`SELECT id FROM payment_connections`, nil, &connection))
	o := g.lunch(append([]func(*order){func(o *order) {
		o.State, o.Method, o.AcceptBy = orderState(c.order), ptr[orderMethod](methodCard), o.ExpiresAt
		if c.payment == paymentAuthorized || c.payment == paymentCaptured || o.dead() && c.payment != paymentExpired {
			o.AuthorizedAt = o.CreatedAt
		}
		if c.change != nil {
			c.change(o)
		}
		if o.wasPaid() {
			o.PaidAt = o.CreatedAt
		}
		if o.Pay == payLater {
			o.Method, o.AuthorizedAt = nil, stamp{}
		}
	}}, change...)...)
	if c.payment == "" {
		return o
	}
	g.change(func(t *tx) error {
		p := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: connection,
			Provider: providerStripe,
			Method:   paymentMethod(*o.Method), State: paymentState(c.payment), Amount: o.Total, Currency: o.Currency,
			CreatedAt: t.now}
		if c.payment == paymentCaptured || c.payment == paymentRefunded {
			p.Captured = o.Total
		}
		o.PaymentID = &p.ID
		t.addPayment(p)
		t.saveOrder(o)
		return nil
	})
	return o
}

// Against a restaurant or its guest, with the name of a dish, who would run a script on a pay page: names, and the
// restaurant's reasons, are escaped, and the page's policy allows only its own style and script, by their hashes;
// the script fetches the page itself and nothing else. Against a guest who has not paid, presses the link back to the
// restaurant, and reads "Thank you for your order"; and one who has, and is asked to pay again.
func TestReturnPage_saysWhatCameOfTheOrder(t *testing.T) {
	t.Parallel()
	g := newGuestService(t, withoutAddressLimits)
	for _, c := range guestStates {
		o := g.inState(c, func(o *order) { o.CancelURL = new(siteOrigin + "/cart?table=4&state=paid#menu") })
		back, fragment := siteOrigin+"/cart?table=4", "#menu"
		if o.wasPaid() || o.accepting() || c.payment == paymentReview {
			back, fragment = siteOrigin+"/thanks?table=4&x=1", ""
		}
		equal(t, c.order+" "+c.payment, g.returns(o).site(), back+"&order="+o.ID+"&state="+string(o.State)+fragment)
		page := g.returns(g.inState(c))
		equal(t, "without cancel_url", page.site(), siteOrigin+"/thanks?table=4&x=1")
		page.shows(append(c.shows, "Pizza Margherita", "to the restaurant’s site", "not http-equiv")...)
		waits := strings.Contains(page.body, "Refresh")
		if strings.Contains(page.body, "data-wait") != waits {
			t.Errorf("%s with a payment that is %s looks for news in one way only", c.order, c.payment)
		}
		prints := strings.Contains(page.body, ">Print</button>")
		scripted := strings.Contains(page.body, "<script>")
		if prints != strings.Contains(page.body, ">Receipt<") || scripted != (waits || prints) {
			t.Errorf("%s with a payment that is %s is printed in one way only", c.order, c.payment)
		}
	}
}

func TestReturnPage_leadsWhoHasLeftTheProviderBackToTheButtons(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch()
	session := strings.TrimPrefix(g.presses(o, "card").is(303).header.Get("Location"), g.provider.base+"/pay/")
	left := g.get(o.path("/return") + "&left=1").is(303).header.Get("Location")
	equal(t, "where it leads", left, "../"+o.ID+"?k="+pageKey+"&left=1")
	g.get(o.path("")+"&left=1").is(200).shows("Not paid yet. No money was taken: try again below.", `value="card"`)
	g.get(g.lunch().path("") + "&left=1").is(200).shows("not Not paid yet") // nobody has tried to
	// Who leaves by the wrong link has paid all the same.
	if !g.provider.tryCard(session, true) {
		t.Fatal("the session is not open")
	}
	g.get(o.path("/return")+"&left=1").is(200).shows("Sent to the restaurant", "not Not paid yet")
	g.get(o.path("") + "&left=1").is(303).has("Location: " + o.ID + "/return?k=" + pageKey)
}

// TestPayPage_speaksAsTheOrderSaysUnlessTheGuestChooses: what is chosen goes along to the provider and back, and
// nothing but a language that there is can be chosen.
func TestPayPage_speaksAsTheOrderSaysUnlessTheGuestChooses(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch()
	g.sql(`INSERT INTO order_customers (order_id, language, fulfilment) VALUES (?, 'nn-NO', '{"type":"delivery",
		"address":{"line1":"Storgata 1","line2":null,"postal_code":"0155","city":"Oslo","country":"NO"},"table":"7"}')`,
		o.ID)
	g.get(o.path(""), "Accept-Language: fr").is(200).shows(`<html lang="nb">`, "Betal bestillingen din",
		`<a href="?k=`+pageKey+`&amp;lang=fi" lang="fi" hreflang="fi">Suomi</a>`,
		`lang="nb" hreflang="nb" aria-current="true"`,
		"<span>Levering</span> så snart som mulig</p>", "not Storgata", "not Oslo", "not 0155")
	g.get(o.path("/return")+"&lang=sv").is(200).shows(`<html lang="sv">`, "Inte betald ännu",
		`?k=`+pageKey+`&amp;lang=sv">Gå`)
	for _, none := range []string{"xx", "", "\"><script>alert(1)</script>", "../de", "e", strings.Repeat("de", 5000)} {
		g.get(o.path("")+"&lang="+url.QueryEscape(none)).is(200).shows(`<html lang="nb">`, "not alert(1)</script>\"")
	}
	g.post(o.path("")+"&lang=de-AT", "method=card", formType).is(303)
	g.sql(`UPDATE orders SET state = 'authorized', accept_by = expires_at`)
	g.get(o.path("") + "&lang=de").is(303).has("Location: " + o.ID + "/return?k=" + pageKey + "&lang=de")
	g.get(o.path("/return")+"&lang=de").is(200).shows(`<html lang="de-CH">`, "An das Restaurant gesendet, das bis ")
	g.sql(`UPDATE order_customers SET language = 'es'`)
	g.sql(`INSERT INTO account_settings (account_id, vat_number) VALUES (?, 'CHE-123.456.789')`, g.account)
	g.get(o.path("/return"), "Accept-Language: it-IT").is(200).shows(`<html lang="it-CH">`, "N. IVA")
	g.sql(`UPDATE orders SET currency = 'EUR'`) // Swiss words are for francs, or for a restaurant there
	g.get(o.path("/return"), "Accept-Language: it-IT").is(200).shows(`<html lang="it">`, "57,10\u00a0€", "2,6%")
	g.sql(`UPDATE account_settings SET zone = 'Europe/Zurich'`)
	g.get(o.path("/return"), "Accept-Language: it-IT").is(200).shows(`<html lang="it-CH">`)
}

func TestReturnPage_hasNoRefundsOnAReceiptOfMoneyThatDidNotPayIt(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	paid, dead, partly := g.lunch(), g.lunch(), g.lunch()
	for _, o := range []*order{paid, dead} {
		g.presses(o, "card").is(303)
		g.sql(`INSERT INTO refunds (id, order_id, payment_id, amount, vat, state, made_by, created_at, account_id)
			SELECT replace(id, 'pay', 'ref'), order_id, id, amount, '[]', 'succeeded', '', created_at, account_id
			FROM payments WHERE order_id = ?`, o.ID)
	}
	g.presses(partly, "card").is(303)
	g.sql(`INSERT INTO refunds (id, order_id, payment_id, amount, vat, state, made_by, created_at, account_id, kind)
		SELECT replace(id, 'pay', 'ref'), order_id, id, 300, '[]', 'succeeded', '', created_at, account_id, 'not_accepted'
		FROM payments WHERE order_id = ?`, partly.ID)
	g.sql(`UPDATE orders SET state = 'paid', method = 'twint', authorized_at = created_at, paid_at = created_at,
		total = 4977 WHERE id = ?`, partly.ID) // of the 7.33 that were not accepted, a refund of 4.33 failed
	g.returns(partly).shows("Receipt", "CHF\u00a049.77", "Charged", "CHF\u00a057.10", "Not accepted", "CHF\u00a03.00",
		"Paid after refunds", "CHF\u00a054.10")
	g.sql(`UPDATE orders SET state = 'paid', method = 'cash', paid_at = created_at WHERE id = ?`, paid.ID)
	g.sql(`UPDATE orders SET state = 'expired' WHERE id = ?`, dead.ID)
	g.returns(paid).shows("Receipt", "CHF\u00a057.10", "not Refunds", "not Paid after refunds")
	g.returns(dead).shows("The order has expired", "Refunds", "not Paid after refunds")
}

func TestReturnPage_isTheReceiptOfWhatWasAccepted(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch(func(o *order) {
		o.State, o.Method, o.PaidAt = orderPartRefunded, ptr[orderMethod](methodCard), o.CreatedAt
		o.Lines[1].Accepted, o.Total, o.Refunded = 1, 4977, 1230
		o.VAT = []vatSum{{260, 3390, 86}, {810, 1367, 102}}
	})
	g.change(func(t *tx) error {
		add := func(amount int64, state string, vat ...vatSum) error {
			t.addRefund(&refund{ID: t.newID("ref"), OrderID: o.ID, AccountID: o.AccountID, Amount: amount,
				VAT: vat, State: refundState(state),
				Kind: refundAsked, Source: sourceOurs, Reason: ptr("cold"), MadeBy: actorCommand, CreatedAt: t.now})
			return nil
		}
		return errors.Join(add(1000, refundSucceeded, vatSum{260, 1000, 25}), add(230, refundPending),
			add(999, refundFailed))
	})
	g.returns(o).shows("<small>1 × CHF\u00a04.00 (ordered: 3)</small>", "CHF\u00a04.00</td>", "−CHF\u00a03.43",
		"CHF\u00a049.77", "CHF\u00a01.02",
		"Refunds", "CHF\u00a010.00", "VAT 2.6%: CHF\u00a00.25", "CHF\u00a02.30", "(in progress)", "not 9.99",
		"CHF\u00a037.47", "<small>cold</small>")
	g.sql(`UPDATE refunds SET lines = '[{"line":0,"quantity":1,"amount":100}]', delivery = 100, tip = 100,
		reason = 'One was <b>cold'`)
	g.returns(o).shows("<small>1 × Pizza Margherita, Delivery, Tip</small><small>One was &lt;b&gt;cold</small>")
	g.sql(`UPDATE refunds SET lines = '[{"line":0,"quantity":0,"amount":100},{"line":2,"quantity":1}]'`)
	g.returns(o).shows("<small>Pizza Margherita, Delivery, Tip</small>")
	g.sql(`UPDATE refunds SET lines = NULL, delivery = NULL, source = 'provider'`) // a part of all, the tip too
	g.returns(o).shows("Refunds", "not <small>Tip", "not cold")
}

// atItsBase serves the service where its base address says, and returns that.
func (s *service) atItsBase() (base string) {
	s.t.Helper()
	web := httptest.NewServer(s.server)
	s.t.Cleanup(web.Close)
	base = web.URL + "/v1"
	s.must("base-url", "set", base)
	s.check(s.server.refresh())
	return base
}

// press sends keys to whatever has the focus.
func (b *browser) press(keys string) {
	b.t.Helper()
	var actions []any
	for _, key := range keys {
		actions = append(actions, map[string]any{"type": "keyDown", "value": string(key)},
			map[string]any{"type": "keyUp", "value": string(key)})
	}
	source := map[string]any{"type": "key", "id": "keys", "actions": actions}
	b.call("POST", b.session+"/actions", map[string]any{"actions": []any{source}})
}

// focused waits until an element has the focus, which a page that is loaded may give it a little later.
func (b *browser) focused(id string) {
	b.t.Helper()
	b.await(`const [id, done] = arguments;
		const wait = () => document.activeElement.id === id ? done() : setTimeout(wait, 20);
		wait();`, id)
}

// fits opens a page in a language at several widths, takes pictures of it, and looks for what is cut off and
// for targets that are too small. Without a URL it does so with the page that is open.
func (b *browser) fits(name, url string, lang pageLanguage) {
	b.t.Helper()
	const script = `const faults = [], wide = document.documentElement.clientWidth;
		for (const e of document.body.querySelectorAll("*")) {
			const box = e.getBoundingClientRect();
			if (box.right > wide + .5 || box.left < -.5)
				faults.push(e.tagName + " is cut off: " + box.left + " to " + box.right);
			if (e.matches(".links a, button:not([hidden]), .check, .field") && box.height < 44)
				faults.push(e.textContent + " is " + box.height + " high");
			if (e.matches("td, th") && e.scrollWidth > e.clientWidth) faults.push(e.textContent + " overflows its cell");
		}
		return wide + ": " + faults.join(", ");`
	b.emulate("Emulation.setScrollbarsHidden", map[string]any{"hidden": true})
	b.emulate("Network.enable", map[string]any{})
	b.emulate("Network.setExtraHTTPHeaders",
		map[string]any{"headers": map[string]string{"Accept-Language": string(lang)}})
	if url != "" {
		b.open(url) // no page has a script that looks at the width, so that all widths are of one load
	}
	for _, width := range []int{320, 360, 1280} {
		b.emulate("Emulation.setDeviceMetricsOverride", map[string]any{
			"width": width, "height": 1300, "deviceScaleFactor": 1, "mobile": false})
		got, want := "", fmt.Sprintf("%d: ", width)
		for range 100 { // until the page has that width
			measure := map[string]any{"script": script, "args": []any{}}
			got = b.call("POST", b.session+"/execute/sync", measure).(string)
			if strings.HasPrefix(got, want) {
				break
			}
		}
		if got != want {
			b.t.Errorf("%s in %s: %v", name, lang, got)
		}
		for _, scheme := range []string{"light", "dark"} {
			if pictures() == "" { // what is measured is the same in both
				break
			}
			b.emulate("Emulation.setEmulatedMedia",
				node{"features": []any{node{"name": "prefers-color-scheme", "value": scheme}}})
			b.screenshot(fmt.Sprintf("%s-%s-%d-%s.png", name, lang, width, scheme))
		}
	}
}

// framed serves a service at its base address without the policies of its pages, which would let no page have them
// in a frame, and in the language that a parameter names.
func (s *service) framed() (base string) {
	s.t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		r.Header.Set("Accept-Language", query.Get("in"))
		query.Del("in")
		r.URL.RawQuery = query.Encode()
		made := httptest.NewRecorder()
		s.server.ServeHTTP(made, r)
		maps.Copy(w.Header(), made.Header())
		w.Header().Del("Content-Security-Policy")
		w.WriteHeader(made.Code)
		w.Write(made.Body.Bytes())
	}))
	s.t.Cleanup(web.Close)
	return web.URL + "/v1"
}

// fitsFramed looks at a page of a service that is framed as fits does, in a frame of the page that is open, which
// takes a tenth of what it takes to go to each; only for pictures it does go there.
func (b *browser) fitsFramed(name, base, path string, lang pageLanguage) {
	b.t.Helper()
	if pictures() != "" {
		b.fits(name, base+path, lang)
		b.open(strings.TrimSuffix(base, "/v1") + "/robots.txt")
	}
	url := base + path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "in=" + string(lang)
	b.fitsInFrame(url, "[hidden]", `
		if (root.lang.slice(0, 2) != "`+string(lang)+`") fault("it is in " + root.lang);
		for (const e of page.querySelectorAll(".links a, button:not([hidden]), .check, .field"))
			if (box(e).height < 44) fault(e.textContent + " is " + box(e).height + " high");
		for (const e of page.querySelectorAll("td, th"))
			if (e.scrollWidth > e.clientWidth) fault(e.textContent + " overflows its cell");`)
}

// TestReturnPage_keepsItselfUpToDateInABrowser of somebody who has paid without a pointer. That the browser follows the
// form to the provider shows, too, that the policy of the page allows it. The script puts news into the page, leaves
// what has the focus alone, and ends once nothing is to come.
func TestReturnPage_keepsItselfUpToDateInABrowser(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "chromium", "chromedriver")
	g := newGuestService(t, withoutAddressLimits)
	o, b := g.lunch(), startBrowser(t)
	b.open(g.atItsBase() + o.path(""))
	b.find(`//h1[text()="Pay for your order"]`)
	b.press(keyTab)
	b.press(keyEnter)
	b.click(`//button[text()="Pay"]`)
	b.find(`//h1[contains(., "Sent to the restaurant")]`)
	equal(t, "the order", g.row(o.ID).State, orderAuthorized)
	const look = `document.dispatchEvent(new Event("visibilitychange")); arguments[arguments.length - 1]()`
	b.await(`window.marked = true; document.querySelector("#links a").focus();` + look)
	g.sql(`UPDATE orders SET state = 'accepted', accepted_at = created_at WHERE id = ?`, o.ID)
	b.find(`//*[@role="status"]/h1[text()="Your order is accepted"]`)
	equal(t, "what has the focus", b.await(`arguments[0](document.activeElement.textContent)`).(string), "Refresh")
	g.sql(`UPDATE orders SET state = 'paid', paid_at = created_at WHERE id = ?`, o.ID)
	b.await(`document.activeElement.blur();` + look)
	b.find(`//h1[text()="Paid. Thank you!"]`)
	b.find(`//h2[text()="Receipt"]`)
	equal(t, "the title, without loading the page, and no link",
		b.await(`arguments[0](document.title + window.marked + document.querySelectorAll("#links a").length)`).(string),
		"Paid. Thank you! · maintrue0")
}

// TestPayPage_fitsATelephone looks for what is cut off, and for targets that are too small, in every language. With two
// dishes, the total and the button are in sight on a small telephone.
func TestPayPage_fitsATelephone(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	g := newGuestService(t, withoutAddressLimits)
	g.atItsBase()
	base := g.framed()
	large := func(o *order) {
		o.Lines[0].UnitAmount, o.Total, o.VAT = 1_234_567, 2_471_144,
			[]vatSum{{260, 2_468_824, 62_562}, {810, 2100, 157}}
	}
	open := g.lunch(large)
	paid := g.lunch(large, func(o *order) {
		o.State, o.Method, o.PaidAt = orderPaid, ptr[orderMethod](methodCard), o.CreatedAt
	})
	g.sql(`INSERT INTO account_settings (account_id, zone, legal_name, address, vat_number)
		VALUES (?, 'Europe/Zurich', 'Trattoria Altstadt GmbH', 'Hauptgasse 12' || char(10) || '4500 Solothurn',
		'CHE-123.456.789 MWST')`, g.account)
	b := startBrowser(t)
	b.open(strings.TrimSuffix(base, "/v1") + "/robots.txt")
	usual := g.lunch()
	for _, lang := range pageLanguages {
		b.fitsInFrame(base+usual.path("")+"&lang="+string(lang), "[hidden]", `
			if (wide != 360) continue;
			const low = Math.max(...[".due", "form .button", "form"].map(part => box(page.querySelector(part)).bottom));
			if (low > 400) fault("the button ends at " + low);`)
		b.fitsFramed("pay", base, open.path(""), lang)
		b.fitsFramed("return", base, paid.path("/return"), lang)
	}
	for i, c := range guestStates { // all states, in one language each
		lang := pageLanguages[i%len(pageLanguages)]
		b.fitsFramed(fmt.Sprintf("state-%02d", i), base, g.inState(c).path("/return"), lang)
	}
	b.fitsFramed("wrong", base, open.path("/return")+"x", "en")
}

// TestOrderPages_sayHowToReachTheRestaurant: where guests have reason to ask, with a button, and in each receipt.
func TestOrderPages_sayHowToReachTheRestaurant(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	buttons := []string{
		`<a class="button" href="tel:&#43;41326220000">Call the restaurant: &#43;41 (0)32 622 00 00</a>`,
		`<a class="button plain" href="mailto:info@roma.example" rel="noreferrer">Write to the restaurant</a>`}
	rejected := guestState{orderCancelled, paymentCancelled, func(o *order) {
		o.RejectReason = ptr[orderRejectReason]("closed")
	}, nil}
	g.returns(g.inState(rejected)).shows("not tel:", "not Write to")
	g.set("-phone", "+41 (0)32 622 00 00", "-contact", "mailto:info@roma.example")
	asks := []guestState{rejected, {orderOpen, paymentReview, nil, nil}, {orderExpired, paymentCancelled, nil, nil}}
	for _, c := range asks {
		g.returns(g.inState(c)).shows(buttons...)
	}
	g.returns(g.inState(guestState{orderPaid, paymentCaptured, nil, nil})).shows("not Call the", "not Write to",
		`<dt>Telephone</dt><dd><a href="tel:&#43;41326220000">`, `rel="noreferrer">info@roma.example</a></dd>`)
	o := g.lunch()
	g.get(o.path("")).is(200).shows("not Call the")
	g.sql(`UPDATE payment_connections SET removed_at = created_at`)
	g.get(o.path("")).is(200).shows(append(buttons, "can’t be paid online at the moment")...)
}

// set changes settings of the main account.
func (g *guestService) set(options ...string) {
	g.t.Helper()
	_, err := g.command(append([]string{"account", "set", g.account}, options...)...)
	g.check(err)
}

// TestOrder_isReadyWhenTheRestaurantSays: in the answer, in the event and on the page, which keeps how the guest gets
// it until then.
func TestOrder_isReadyWhenTheRestaurantSays(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	auth := g.auth(g.account, scopeOrders, scopeSelling)
	o := g.inState(guestState{orderAuthorized, paymentAuthorized, nil, nil})
	g.sql(`INSERT INTO order_customers (order_id, fulfilment) VALUES (?, '{"type":"pickup"}')`, o.ID)
	accept := "/orders/" + o.ID + "/accept"
	for _, wrong := range []time.Duration{-time.Hour, 61 * 24 * time.Hour} {
		g.post(accept, `{"ready_at":"`+newStamp(time.Now().Add(wrong)).String()+`"}`, auth).is(422,
			"validation_failed").names("#/ready_at out_of_range")
	}
	ready := newStamp(time.Now().Add(40 * time.Minute)).String()
	g.post(accept, `{"ready_at":"`+ready+`"}`, auth).is(200).holds(`state="accepted"`, `ready_at="`+ready+`"`)
	if g.count(`SELECT count(*) FROM events WHERE type = 'order.accepted' AND data ->> 'ready_at' = ?`, ready) != 1 {
		t.Error("the event has no time")
	}
	shown := []string{"<span>Pickup</span> as soon as possible", "<span>Ready</span> "}
	g.returns(o).shows(shown...)
	g.sql(`UPDATE orders SET state = 'paid', paid_at = created_at, ended_at = created_at WHERE id = ?`, o.ID)
	g.returns(o).shows(shown...)
	g.sql(`UPDATE orders SET ready_at = created_at WHERE id = ?`, o.ID)
	g.returns(o).shows("not as soon as possible", "<span>Ready</span> ")
}

// Against whoever may change orders, but not read what is known of their guests: when an order is ready says when it
// is wanted. What is erased of a guest takes that with it.
func TestOrder_isReadyForThoseAloneWhoReadOrders(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		reader, writer := s.seller(), "Authorization: Bearer "+s.token(s.account, scopeSelling)
		wanted := newStamp(time.Now().Add(days(3)))
		ready := wanted.after(-time.Hour)
		wish := aDelivery(`,"wanted_at":"` + wanted.String() + `"`)
		id := s.post("/orders", orderBody("pay", `"later"`, "fulfilment", wish), reader).is(200).text("id")
		s.post("/orders/"+id+"/accept", `{"ready_at":"`+ready.String()+`"}`, writer).is(200).holds("ready_at=null")
		s.get("/orders/"+id, reader).is(200).holds(`ready_at="` + ready.String() + `"`)
		s.counts(1, `SELECT count(*) FROM v_orders WHERE ready_at = ?`, ready)
		s.post("/orders/"+id+"/paid", `{"method":"cash"}`, writer).is(200).holds("ready_at=null")
		s.must("order", "erase", "-order", id, "-force")
		s.get("/orders/"+id, reader).is(200).holds("ready_at=null")
		time.Sleep(days(4))
		s.must("order", "erase", "-order", id, "-force")
		s.counts(0, `SELECT count(*) FROM orders WHERE ready_at = ?`, ready)
	})
}

// axeRules are what .ci/clients/axe.mjs has axe-core look for.
var axeRules = []string{"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"}

// TestClients_axeFindsNothingOnAPageOfAnyStateOfAnOrder has axe-core judge, as .ci/clients/axe.mjs does for the
// other pages, each that a guest may come to see: of every state, with every kind of button and message.
func TestClients_axeFindsNothingOnAPageOfAnyStateOfAnOrder(t *testing.T) {
	t.Parallel()
	axe, err := os.ReadFile(filepath.Join(clientsDirectory(t), "node_modules", "axe-core", "axe.min.js"))
	must(t, err)
	programsOrSkip(t, "chromium", "chromedriver")
	g := newGuestService(t, withoutAddressLimits)
	open := g.lunch()
	pages := []answer{g.page(open), g.get(open.path("") + "x"), g.presses(open, "cash"),
		g.get(open.path("") + "&left=1"), g.post(open.path(""), "way=card", formType)}
	for _, c := range guestStates {
		pages = append(pages, g.returns(g.inState(c)))
	}
	g.sql(`UPDATE payment_connections SET methods = '["twint","card"]'`)
	pages = append(pages, g.page(open))
	for _, color := range []string{"#1a6b3c", "#b3261e", "#6a3fb5", "#000000", "#767600"} {
		nearest, _ := parseColor(color)
		g.set("-color", nearest.readableOn(lightPaper, black).String())
		pages = append(pages, g.page(open), g.returns(g.inState(guestState{orderPaid, paymentCaptured, nil, nil})))
	}
	g.sql(`UPDATE payment_connections SET provider = 'vipps', methods = '[]'`)
	pages = append(pages, g.page(g.lunch(func(o *order) { o.Currency = "NOK" })))
	g.sql(`UPDATE payment_connections SET removed_at = created_at`)
	pages = append(pages, g.page(open))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var page int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &page); err == nil && page < len(pages) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, pages[page].body)
		}
	}))
	t.Cleanup(web.Close)
	b := startBrowser(t)
	for i, page := range pages {
		for scheme, width := range map[string]int{"light": 360, "dark": 1280} {
			b.emulate("Emulation.setEmulatedMedia",
				node{"features": []any{node{"name": "prefers-color-scheme", "value": scheme}}})
			b.emulate("Emulation.setDeviceMetricsOverride",
				node{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
			b.open(fmt.Sprint(web.URL, "/", i))
			found := b.await(string(axe)+`; const done = arguments[1];
				axe.run({ runOnly: arguments[0] }).then(({ passes, violations }) => done({ passes: passes.length,
					faults: violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target)) }))`, axeRules).(node)
			if found["passes"].(float64) < 10 || len(found["faults"].([]any)) > 0 {
				title, _, _ := strings.Cut(page.body[strings.Index(page.body, "<title>"):], "</title>")
				t.Errorf("%s, %s: %v", title, scheme, found)
			}
		}
	}
}

// TestOrder_tellsItsSiteWhichOrderItIsAndHowItStands is of order.siteURL.
func TestOrder_tellsItsSiteWhichOrderItIsAndHowItStands(t *testing.T) {
	t.Parallel()
	const at = "https://www.example.com/"
	long := at + "?x=" + strings.Repeat("y", maxOrderReturnURL-len(at)-3)
	for given, want := range map[string]string{
		at:                                    at + "?*",
		at + "cart":                           at + "cart?*",
		at + "?":                              at + "?*",
		at + "?a=1":                           at + "?a=1&*",
		at + "?a=1&":                          at + "?a=1&*",
		at + "#/thanks?a=1":                   at + "?*#/thanks?a=1",
		at + "?a=1#":                          at + "?a=1&*#",
		at + "#order=x&state=paid":            at + "?*#order=x&state=paid",
		at + "?order=ord_x&state=paid":        at + "?*",
		at + "?a=1&order=x&order=y&b=2&state": at + "?a=1&b=2&*",
		at + "?%6Frder=x&stat%65=paid&%73%74%61%74%65=no":  at + "?*",
		at + "?reorder=1&states=2&Order=3&a=order=4":       at + "?reorder=1&states=2&Order=3&a=order=4&*",
		at + "?note=%3Forder%3Dx%26state%3Dpaid&plus=a+b":  at + "?note=%3Forder%3Dx%26state%3Dpaid&plus=a+b&*",
		at + "?broken=%zz&%zz=1&q=a%20b":                   at + "?broken=%zz&%zz=1&q=a%20b&*",
		at + "?a=1?order=x":                                at + "?a=1?order=x&*",
		at + "a%3Forder=x%23y":                             at + "a%3Forder=x%23y?*",
		long:                                               long + "&*",
		"https://www.example.com:8443/?a=1#a#b?c&state=no": "https://www.example.com:8443/?a=1&*#a#b?c&state=no",
	} {
		want = strings.Replace(want, "*", "order=ord_1&state=open", 1)
		o := &order{ID: "ord_1", State: orderOpen, ReturnURL: given, CancelURL: new(at + "gone")}
		equal(t, "paid", o.siteURL(true), want)
		o.ReturnURL, o.CancelURL = at+"gone", &given
		equal(t, "not paid", o.siteURL(false), want)
		to, err := url.Parse(want)
		must(t, err)
		if of := to.Query(); len(of["order"]) != 1 || len(of["state"]) != 1 || len(want) > len(given)+60 {
			t.Errorf("%s says what differs", want)
		}
		o.ReturnURL, o.CancelURL = given, nil
		equal(t, "without cancel_url", o.siteURL(true)+" "+o.siteURL(false), given+" "+given)
	}
}

// site returns where the link to the restaurant's site leads on a page.
func (a answer) site() string {
	a.t.Helper()
	link := regexp.MustCompile(`<a href="([^"]*)">[^<]*restaurant’s site</a>`).FindStringSubmatch(a.body)
	if link == nil {
		a.t.Fatalf("no link to the site: %s", a.body)
	}
	return html.UnescapeString(link[1])
}
