package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A demoTill is the demo's provider of cards, asked as the engine asks it.
type demoTill struct {
	*demoProvider
	t testing.TB
}

func newDemoTill(t testing.TB) *demoTill {
	p := newDemoProvider(newStripeProvider(nil, stripeBase), "http://127.0.0.1:8083", "http://127.0.0.1:8081",
		func() time.Time { return demoDawn })
	p.paid = func(context.Context, string) error { return nil }
	return &demoTill{p, t}
}

// starts begins an attempt of 20.00.
func (d *demoTill) starts(reference string) *payment {
	d.t.Helper()
	p := &payment{ID: newID("pay", demoDawn), Method: methodCard, Amount: 2000, Currency: "CHF",
		State: paymentCreated}
	d.does(opCreate, p, 2000, reference)
	return p
}

// does carries out an operation, and returns why it was refused.
func (d *demoTill) does(kind string, p *payment, amount int64, reference ...string) error {
	op := testOperation(kind, p, amount)
	o := &order{ID: "ord_1"}
	if len(reference) > 0 {
		o.Reference = &reference[0]
	}
	_, err := d.send(d.t.Context(), nil, op, d.call(op, p, o, testReturnURL))
	return err
}

// asks sends a request to the page of an attempt.
func (d *demoTill) asks(method, id, choice string) *http.Response {
	form := url.Values{"do": {choice}}
	r := httptest.NewRequest(method, "/pay/"+id, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	d.handler().ServeHTTP(w, r)
	return w.Result()
}

func TestDemoProvider_saysOnEveryPageThatItIsOne(t *testing.T) {
	t.Parallel()
	d := newDemoTill(t)
	open, declined, paid, expired := d.starts("<b>Table 4</b>"), d.starts("1"), d.starts("2"), d.starts("3")
	must(t, d.does(opExpire, expired, 0))
	equal(t, "declining", d.asks("POST", declined.ID, "decline").StatusCode, 200)
	for choice, want := range map[string]string{"back": leftURL(testReturnURL), "pay": testReturnURL} {
		if resp := d.asks("POST", paid.ID, choice); resp.StatusCode != 303 || resp.Header.Get("Location") != want {
			t.Errorf("%s answers %d to %s", choice, resp.StatusCode, resp.Header.Get("Location"))
		}
	}
	for name, c := range map[string]struct {
		id, has, hasNot string
		status          int
	}{
		"open": {open.ID, "<h1>Order &lt;b&gt;Table 4&lt;/b&gt;</h1>\n" +
			"<p class=\"amount\">CHF 20.00</p>\n<form", "declined", 200},
		"declined": {declined.ID, "The card was declined", "is done", 200},
		"paid":     {paid.ID, "<h1>This payment is done</h1>\n<a class=\"back\" href=\"" + testReturnURL, "<form", 200},
		"expired":  {expired.ID, "This payment has expired", "<form", 200},
		"none":     {"pay_none", "There is no such payment", "<form", 404},
	} {
		resp := d.asks("GET", c.id, "")
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		page := string(body)
		top, _, _ := strings.Cut(page, "<main>")
		if resp.StatusCode != c.status || !strings.Contains(page, c.has) || strings.Contains(page, c.hasNot) ||
			!strings.Contains(top, "This is a test provider of the demo. No money moves.") ||
			strings.Contains(page, "<script") {
			t.Errorf("%s: %d\n%s", name, resp.StatusCode, page)
		}
		policy := resp.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "form-action") ||
			strings.Contains(policy, "unsafe") || !strings.Contains(page, "<style>"+pageStyle()+"</style>") {
			t.Errorf("%s: %q does not let its style in, or lets other things in", name, policy)
		}
	}
}

// TestDemoProvider_goesOnFromTheRows looks at attempts of which another run has known more.
func TestDemoProvider_goesOnFromTheRows(t *testing.T) {
	t.Parallel()
	d := newDemoTill(t)
	row := func(state string, authorized, captured, refunded int64) *payment {
		return &payment{ID: newID("pay", demoDawn), Method: methodCard, Amount: 2000, Currency: "CHF",
			State:      paymentState(state),
			Authorized: authorized, Captured: captured, Refunded: refunded,
			CaptureBefore: newStamp(demoDawn).after(time.Hour)}
	}
	open, authorized, captured := row(paymentPending, 0, 0, 0), row(paymentAuthorized, 2000, 0, 0),
		row(paymentPartRefunded, 0, 2000, 500)
	for p, want := range map[*payment]paymentPhase{open: phaseOpen, authorized: phaseApproved, captured: phaseApproved,
		row(paymentCancelled, 0, 0, 0): phaseCancelled, row(paymentCreated, 0, 0, 0): phaseUnknown} {
		r, err := d.fetchStatus(t.Context(), nil, p)
		if err != nil || r.phase != want || r.amount != 2000 || r.captured != p.Captured || r.refunded != p.Refunded {
			t.Errorf("%s: %+v, %v", p.State, r, err)
		}
	}
	equal(t, "paying", d.asks("POST", open.ID, "pay").StatusCode, 303)
	for _, step := range []struct {
		kind   string
		p      *payment
		amount int64
		done   bool
	}{
		{opCapture, open, 2001, false}, {opCapture, open, 1500, true}, {opCapture, open, 500, false},
		{opRefund, authorized, 1, false}, {opCancel, authorized, 0, true}, {opCancel, authorized, 0, false},
		{opRefund, captured, 1501, false}, {opRefund, captured, 1500, true}, {opExpire, captured, 0, false},
	} {
		if err := d.does(step.kind, step.p, step.amount); (err == nil) != step.done {
			t.Errorf("%s of %d: %v", step.kind, step.amount, err)
		}
	}
	r, err := d.fetchStatus(t.Context(), nil, captured)
	if err != nil || r.refunded != 2000 || len(r.refunds) != 1 || r.exceeds() {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestDemoProvider_paysOutOnceWhatIsOwed looks at the payouts of a file that another run has filled, of which some
// rows are forgotten then, and with them that these were paid out.
func TestDemoProvider_paysOutOnceWhatIsOwed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, copyDemo(dir))
	st := openTestStore(t, filepath.Join(dir, "widgetd.db"), storeOptions{now: func() time.Time { return demoDawn }})
	count := func(query string) int64 {
		t.Helper()
		n, err := oneValue[int64](st.queries, query)
		must(t, err)
		return n
	}
	equal(t, "payouts that differ", count(`SELECT count(*) FROM payouts p WHERE reason IS NOT NULL
		OR state <> iif(status = 'paid', 'paid', 'ready')
		OR provider_id <> 'po_' || date(arrival_date, '-2 days') || currency
		OR amount <> (SELECT sum(amount - fee - tax) FROM payout_items i WHERE i.payout_id = p.id)`), 0)
	equal(t, "payments that are not in one payout", count(`SELECT count(*) FROM payments y WHERE captured > 0 AND 1 <>
		(SELECT count(*) FROM payout_items i WHERE i.payment_id = y.id AND category = 'payment')`), 0)
	onItsWay := count(`SELECT count(*) FROM payouts WHERE status = 'in_transit'`)
	failIf(t, onItsWay < 2, "%d are on their way", onItsWay)

	d := newDemoTill(t)
	d.store = st
	account, err := oneValue[string](st.queries, `SELECT account_id FROM payouts LIMIT 1`)
	must(t, err)
	c := &unsealedConnection{&paymentConnection{AccountID: account}, connectionSecrets{}}
	later := demoDawn.AddDate(0, 0, 3)
	owes := func(step, forget string) map[string]int64 {
		t.Helper()
		must(t, st.update(t.Context(), func(t *tx) error { t.exec(forget); return nil }))
		news, err := d.payouts(t.Context(), c, "", "", later)
		must(t, err)
		arrived, owed := int64(0), map[string]int64{}
		for _, r := range news.payouts {
			if r.status == payoutPaid {
				arrived++
				continue
			}
			owed[r.currency] = r.amount
			rows, _, err := d.payoutRows(t.Context(), c, r.providerID, "")
			must(t, err)
			for _, row := range rows {
				r.amount -= row.net()
			}
			equal(t, step+": the amount less the rows", r.amount, 0)
		}
		equal(t, step+": have arrived", arrived, onItsWay)
		return owed
	}
	equal(t, "nothing is paid out twice", owes("another run", `SELECT 1`), map[string]int64{})
	equal(t, "less than nothing waits", owes("refunds", `DELETE FROM payout_items WHERE amount < 0`),
		map[string]int64{})
	all := map[string]int64{}
	for _, currency := range []string{"CHF", "EUR", "SEK"} {
		all[currency] = count(`SELECT sum(amount) FROM payouts WHERE currency = '` + currency + `'`)
	}
	equal(t, "all is owed", owes("everything", `DELETE FROM payout_items`), all)
}
