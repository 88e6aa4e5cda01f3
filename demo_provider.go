package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A demoProvider is what the demo has in the place of Stripe and of Vipps: it keeps in memory how attempts to pay
// stand, and has a page of its own on which guests pay. No money moves. Of an attempt of an earlier run it knows what
// its row says, and what it pays out it reads from all rows.
type demoProvider struct {
	provider                                            // says what can be paid; nothing else of it is asked
	base     string                                     // the address of the page, without a slash at its end
	home     string                                     // where guests of an earlier run go back to
	now      func() time.Time                           // the clock
	paid     func(ctx context.Context, id string) error // has the engine look at an attempt that a guest has paid
	store    *store                                     // of the service, which earlier runs have filled, too

	mu       sync.Mutex
	attempts map[string]*demoAttempt // by id
}

// A demoAttempt is how an attempt stands, and what its page shows.
type demoAttempt struct {
	paymentReport
	demoSession
	declined bool // the last card
}

// A demoSession is what an attempt is begun with: the body of the providerCall.
type demoSession struct {
	Title, Return, Currency string
	AtOnce                  bool // it is captured by being paid
}

// demoAuthorization is how long money stays reserved.
const demoAuthorization = 7 * 24 * time.Hour

// readsFirst implements provider: what an earlier run has begun is known once it was looked at.
func (p *demoProvider) readsFirst() bool { return true }

// call implements provider.
func (p *demoProvider) call(op *paymentOperation, pay *payment, o *order, returnURL string) providerCall {
	begin := demoSession{titleOf(o), returnURL, pay.Currency, pay.capturedFirst()}
	return providerCall{Path: op.Kind, Body: string(encodeJSON(begin))}
}

// send implements provider. An operation that the attempt's state does not allow is refused.
func (p *demoProvider) send(
	_ context.Context, _ *unsealedConnection, op *paymentOperation, call providerCall,
) (sent sentOperation, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, known := p.attempts[op.PaymentID]
	sent.status = http.StatusOK
	refused := &outboundError{outcome: vendorRefused, status: http.StatusBadRequest, reason: "unexpected_state"}
	switch {
	case op.Kind == opCreate && (!known || a.phase == phaseUnknown):
		a = &demoAttempt{paymentReport: paymentReport{phase: phaseOpen, amount: op.Amount,
			sessionID: "cs_" + op.PaymentID, url: p.base + "/pay/" + op.PaymentID}}
		if err := json.Unmarshal([]byte(call.Body), &a.demoSession); err != nil {
			return sent, refused
		}
		a.currency, p.attempts[op.PaymentID] = a.Currency, a
		sent.sessionID, sent.url = a.sessionID, a.url
	case !known:
		return sent, refused
	case op.Kind == opExpire && a.phase == phaseOpen:
		a.phase, a.url = phaseExpired, ""
	case op.Kind == opCancel && a.authorized > 0:
		a.phase, a.authorized = phaseCancelled, 0
	case op.Kind == opCapture && op.Amount > 0 && op.Amount <= a.authorized:
		a.captured, a.authorized, a.capturedAt = op.Amount, 0, p.now()
	case op.Kind == opRefund && op.Amount > 0 && op.Amount <= a.captured-a.refunded:
		sent.refundID = "re_" + op.ID
		a.refunded += op.Amount
		a.refunds = append(a.refunds, refundReport{providerID: sent.refundID, refundID: valueOr(op.RefundID, ""),
			amount: op.Amount, state: refundSucceeded, at: p.now()})
	default:
		return sent, refused
	}
	return sent, nil
}

// newDemoProvider makes one in the place of a provider. Its page is at base.
func newDemoProvider(real provider, base, home string, now func() time.Time) *demoProvider {
	return &demoProvider{provider: real, base: base, home: home, now: now, attempts: map[string]*demoAttempt{}}
}

// fetchStatus implements provider.
func (p *demoProvider) fetchStatus(_ context.Context, _ *unsealedConnection, pay *payment) (*paymentReport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.attempts[pay.ID]
	if a == nil {
		a = p.recall(pay)
		p.attempts[pay.ID] = a
	}
	if a.authorized > 0 && !p.now().Before(a.captureBefore) {
		a.phase, a.authorized = phaseExpired, 0
	}
	report := a.paymentReport
	report.refunds = slices.Clone(a.refunds)
	return &report, nil
}

// recall returns how an attempt stands by its row.
func (p *demoProvider) recall(pay *payment) *demoAttempt {
	a := &demoAttempt{demoSession: demoSession{"Order " + pay.OrderID, p.home, pay.Currency, pay.capturedFirst()},
		paymentReport: paymentReport{phase: phaseApproved, amount: pay.Amount, currency: pay.Currency,
			authorized: pay.Authorized, captured: pay.Captured, capturedAt: pay.CapturedAt.Time, refunded: pay.Refunded,
			captureBefore: pay.CaptureBefore.Time, sessionID: "cs_" + pay.ID}}
	switch pay.State {
	case paymentCreated:
		a.phase = phaseUnknown
	case paymentPending:
		a.phase, a.url = phaseOpen, p.base+"/pay/"+pay.ID
	}
	for phase, state := range endStates {
		if pay.State == state {
			a.phase = phase
		}
	}
	return a
}

// The rest of provider: what the demo is connected with is always there, and sends no webhooks.

func (p *demoProvider) notice(*unsealedConnection, *http.Request, []byte, time.Time) (paymentNotice, error) {
	return paymentNotice{}, errNotice
}
func (p *demoProvider) checkMethods(context.Context, *unsealedConnection, string) error { return nil }
func (p *demoProvider) connect(context.Context, *unsealedConnection, string) error      { return nil }
func (p *demoProvider) disconnect(context.Context, *unsealedConnection) error           { return nil }
func (p *demoProvider) check(context.Context, *unsealedConnection) ([]string, error)    { return nil, nil }

// payouts implements provider. At midnight by UTC what is not paid out yet is, in each currency in which that is any
// money, and arrives two days later.
func (p *demoProvider) payouts(
	_ context.Context, c *unsealedConnection, _, _ string, now time.Time,
) (*payoutNews, error) {
	today, news, sums := now.UTC().Format(time.DateOnly), &payoutNews{}, map[string]int64{}
	arrived, err := p.store.payoutsBetween(ownedBy(c.AccountID), "", today, nil, 100)
	if err != nil {
		return nil, err
	}
	tell := func(id, currency string, amount int64, arrival businessDate, status string) {
		news.payouts = append(news.payouts, payoutReport{providerID: id, amount: amount, currency: currency,
			arrival: arrival, automatic: true, method: "standard", status: status, complete: true})
	}
	for _, row := range arrived {
		if row.Status == demoInTransit {
			tell(*row.ProviderID, row.Currency, row.Amount, *row.ArrivalDate, payoutPaid)
		}
	}
	rows, err := p.notPaidOut(c.AccountID, today)
	for i := range rows {
		sums[rows[i].currency] += rows[i].net()
	}
	for currency, sum := range sums {
		if sum > 0 {
			tell(demoPayout+today+currency, currency, sum, dateAfter(dateAfter(today)), demoInTransit)
		}
	}
	return news, err
}

// payoutRows implements provider.
func (p *demoProvider) payoutRows(
	_ context.Context, c *unsealedConnection, id, _ string,
) (rows []ledgerRow, next string, err error) {
	of := strings.TrimPrefix(id, demoPayout)
	date, currency := of[:len(time.DateOnly)], of[len(time.DateOnly):]
	rows, err = p.notPaidOut(c.AccountID, date)
	return slices.DeleteFunc(rows, func(r ledgerRow) bool { return r.currency != currency }), "", err
}

// The ids of the demo's payouts begin with demoPayout, before the date and the currency.
const (
	demoPayout    = "po_"
	demoInTransit = "in_transit"
)

// notPaidOut returns what is in no payout yet at the beginning of a date, less 1.4 % and 0.25 for a payment, and
// 15.00 for a dispute.
func (p *demoProvider) notPaidOut(accountID string, date businessDate) ([]ledgerRow, error) {
	rows, err := p.store.notPaidOut(accountID, newStamp(midnight(date)), lastID)
	for i := range rows {
		switch r := &rows[i]; r.category {
		case rowPayment:
			r.fee = (r.amount*14+500)/1000 + 25
		case rowDispute:
			r.fee = 1500
		}
	}
	return rows, err
}

// pay pays an open attempt as a guest does on its page, with a card that is good or is declined. It reports false if
// the attempt is not open.
func (p *demoProvider) pay(ctx context.Context, id string, good bool) (bool, error) {
	p.mu.Lock()
	a := p.attempts[id]
	if a == nil || a.phase != phaseOpen {
		p.mu.Unlock()
		return false, nil
	}
	if a.declined = !good; good {
		a.phase, a.url = phaseApproved, ""
		if a.AtOnce {
			a.captured, a.capturedAt = a.amount, p.now()
		} else {
			a.authorized, a.captureBefore = a.amount, p.now().Add(demoAuthorization)
		}
	}
	p.mu.Unlock()
	if !good {
		return true, nil
	}
	return true, p.paid(ctx, id)
}

// dispute disputes what an attempt has captured, as its guest.
func (p *demoProvider) dispute(ctx context.Context, id string) error {
	p.mu.Lock()
	a := p.attempts[id]
	a.disputes = append(a.disputes, disputeReport{id: "dp_demo", amount: a.captured, withdrawn: a.captured,
		state: disputeOpen, reason: "fraudulent", at: p.now(), evidenceBy: p.now().Add(days(14))})
	p.mu.Unlock()
	return p.paid(ctx, id)
}

// A demoPayView is what the page shows.
type demoPayView struct {
	Open, Declined      bool
	Title, Name, Amount string
	Return, Cancel      string
}

// view returns what the page of an attempt shows, with its status.
func (p *demoProvider) view(id string) (demoPayView, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := demoPayView{Title: "There is no such payment"}
	a := p.attempts[id]
	if a == nil || a.phase == phaseUnknown {
		return v, http.StatusNotFound
	}
	v.Name, v.Return, v.Cancel, v.Open = a.Title, a.Return, leftURL(a.Return), a.phase == phaseOpen
	v.Amount, v.Declined = a.currency+" "+formatAmount(a.amount), a.declined
	if v.Title = "This payment is done"; a.phase != phaseApproved {
		v.Title = "This payment has expired"
	}
	return v, http.StatusOK
}

// handler serves the page of an attempt, and does what a guest has chosen on it.
func (p *demoProvider) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "A test provider of payments: guests come here from the page of an order, and no money moves.")
	})
	mux.HandleFunc("/pay/{id}", func(w http.ResponseWriter, r *http.Request) {
		const maxForm = 1024
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		id, choice := r.PathValue("id"), r.PostFormValue("do") // "": it is only to be shown
		v, status := p.view(id)
		if status == http.StatusOK && choice == "back" {
			http.Redirect(w, r, v.Cancel, http.StatusSeeOther)
			return
		}
		if choice == "pay" || choice == "decline" {
			done, err := p.pay(r.Context(), id, choice == "pay")
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			if done && choice == "pay" {
				http.Redirect(w, r, v.Return, http.StatusSeeOther)
				return
			}
			v, status = p.view(id)
		}
		h := w.Header()
		h.Set("Content-Security-Policy", guestPolicy())
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		showDemo(w, status, "demo_pay.html", v)
	})
	return mux
}

// A demoLedger is what the demo has in the place of Fortnox: the books of one company, with the chart of accounts in
// web/demo.json, kept in memory. A financial year is the year of the calendar, which is its id. The company has another
// number in each run, so that nothing is expected to be in the books that was sent to those of an earlier one.
type demoLedger struct {
	base    string // the address of its pages, without a slash at its end
	back    string // where browsers may be sent back to begins with this
	company bookCompany
	now     func() time.Time

	mu     sync.Mutex
	booked []bookedEntry // the earliest first
}

// newDemoLedger makes books whose pages are reached at an address.
func newDemoLedger(base, back string, now func() time.Time) *demoLedger {
	number := strconv.FormatInt(now().UnixMilli(), 10)
	return &demoLedger{base: base, back: back, now: now,
		company: bookCompany{ID: number, Name: "Trattoria Altstadt i Malmö AB"}}
}

// authorizeURL implements ledger: the address of a page that agrees at once.
func (l *demoLedger) authorizeURL(app appSecrets, redirectURL, state, challenge string) string {
	return l.base + "/agree?" + authorizeQuery(app, "", redirectURL, state, challenge).Encode()
}

// exchange implements ledger. Which tokens were given makes no difference.
func (l *demoLedger) exchange(context.Context, appSecrets, string, string, string) (*bookTokens, error) {
	return &bookTokens{Access: randomText(32), ExpiresAt: newStamp(l.now()).after(time.Hour)}, nil
}

// renew implements ledger.
func (l *demoLedger) renew(ctx context.Context, app appSecrets, _ *bookConnection, _ *bookTokens) (*bookTokens, error) {
	return l.exchange(ctx, app, "", "", "")
}

// organisations implements ledger.
func (l *demoLedger) organisations(context.Context, *bookTokens) ([]bookCompany, error) {
	return []bookCompany{l.company}, nil
}

// disconnect implements ledger.
func (l *demoLedger) disconnect(context.Context, *ledgerSession) error { return nil }

// chart implements ledger.
func (l *demoLedger) chart(_ context.Context, _ *ledgerSession, date businessDate) (*bookChart, error) {
	chart, year := demoData().Fortnox, midnight(date).Format("2006")
	chart.Year, chart.YearFrom, chart.YearTo = int64(midnight(date).Year()), year+"-01-01", year+"-12-31"
	return &chart, nil
}

// encode implements ledger.
func (l *demoLedger) encode(entry *bookEntry) string { return string(encodeJSON(entry)) }

// post implements ledger. An entry gets the next number of its series and year: "W-1-2026".
func (l *demoLedger) post(_ context.Context, _ *ledgerSession, entry *bookEntry, _, _ string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := 1
	for _, other := range l.booked {
		if other.Entry.Series == entry.Series && other.Entry.Year == entry.Year {
			number++
		}
	}
	id := fmt.Sprintf("%s-%d-%d", entry.Series, number, entry.Year)
	l.booked = append(l.booked, bookedEntry{ID: id, Entry: *entry})
	return id, nil
}

// find implements ledger.
func (l *demoLedger) find(_ context.Context, _ *ledgerSession, _ *bookEntry, syncKey string) (*bookedEntry, error) {
	return l.first(func(b bookedEntry) bool { return strings.Contains(b.Entry.Narration, syncKey) }), nil
}

// read implements ledger.
func (l *demoLedger) read(_ context.Context, _ *ledgerSession, id string) (*bookedEntry, error) {
	return l.first(func(b bookedEntry) bool { return b.ID == id }), nil
}

// first returns the first entry that is wanted; nil: there is none.
func (l *demoLedger) first(wanted func(bookedEntry) bool) *bookedEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return firstWhere(l.booked, wanted)
}

// withdraw implements ledger.
func (l *demoLedger) withdraw(context.Context, *ledgerSession, string) error {
	return &outboundError{outcome: vendorRefused, reason: "no_drafts"}
}

// handler serves the page on which an owner would agree to a connection (here somebody always does), and a page that
// lists what was booked.
func (l *demoLedger) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", l.showBooked)
	mux.HandleFunc("GET /agree", l.agree)
	return mux
}

// agree sends the browser back with a code, as if the company's owner had agreed.
func (l *demoLedger) agree(w http.ResponseWriter, r *http.Request) {
	back := r.FormValue("redirect_uri")
	if !strings.HasPrefix(back, l.back) {
		http.Error(w, "The redirect address is not the service's.", http.StatusBadRequest)
		return
	}
	query := url.Values{"code": {randomText(32)}, "state": {r.FormValue("state")}}
	http.Redirect(w, r, back+"?"+query.Encode(), http.StatusFound)
}

// Accounts of the chart: of what is at the provider or on its way to the bank, of what has arrived there, which the
// accountant codes as the bank's statement has it, and of cash.
const (
	demoClearing = "1580"
	demoTransit  = "1589"
	demoCash     = "1910"
)

// showBooked lists what was booked, as text, and what is on two of the accounts then.
func (l *demoLedger) showBooked(w http.ResponseWriter, _ *http.Request) {
	balance := map[string]int64{}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(w, "Test books, in the place of Fortnox: %d vouchers.\n", len(l.booked))
	for _, b := range l.booked {
		series, number, _, _ := parseFortnoxID(b.ID)
		fmt.Fprintf(w, "\n%s %d, %s: %s\n", series, number, b.Entry.Date, b.Entry.Narration)
		for _, line := range b.Entry.Lines {
			balance[line.Account] += line.Debit - line.Credit
			debit, credit := formatAmount(line.Debit), formatAmount(line.Credit)
			fmt.Fprintf(w, "%6s %12s %12s  %s\n", line.Account, debit, credit, line.Text)
		}
	}
	fmt.Fprintf(w, `
Clearing account %s, of what the provider has of these days: %s
Account of transit %s, of what has arrived at the bank: %s
`, demoClearing, formatSigned(balance[demoClearing]), demoTransit, formatSigned(balance[demoTransit]))
}

// The past of the demo's file: what was called of the service, as if it had been running since then. These are the
// calls in web/demo.json, and the orders of the last demoDays business days, which were paid, given back and disputed.
// Amounts and times are drawn with a fixed seed; the guests are invented, and no money has moved.

const (
	demoPast        = 95 * 24 * time.Hour // when it begins
	demoDays        = 30                  // business days before the present one that have revenue
	sampleReference = "sample "           // begins the references of their orders
)

// A demoCounter is where the demo's restaurant sells in one currency: in Solothurn, at a stand that it has in Malmö,
// and to guests from abroad who pay in euros.
type demoCounter struct {
	Currency               string
	Orders                 [7]int // on each day of the week, Sunday first; if more than 1, it varies by one
	Methods                []string
	Food, Drinks           []orderLine
	Delivery, DeliveryRate int64
	Round                  int64 // tips are multiples of this
}

// A demoStep is something that was done at a time of the past.
type demoStep struct {
	at time.Time
	do func(context.Context) error
}

// A demoLife is what was done, in no order.
type demoLife struct {
	*demo
	random *rand.Rand
	deeds  []demoStep
}

// add adds something that was done.
func (l *demoLife) add(at time.Time, do func(context.Context) error) {
	l.deeds = append(l.deeds, demoStep{at, do})
}

// replayPast does all that was done over the store of a new file, the oldest first.
func (d *demo) replayPast(e *env, st *store, log *slog.Logger) error {
	if err := d.newServer(e, st, log); err != nil {
		return err
	}
	l := &demoLife{demo: d, random: rand.New(rand.NewPCG(16, 2026))}
	for _, c := range demoData().Past {
		for i, name := range c.names() {
			ago := time.Duration((c.Ago - float64(i)*c.Every) * float64(days(1)))
			l.add(d.clock().Add(-ago), func(ctx context.Context) error { return d.make(ctx, &c, name) })
		}
	}
	calendar, err := st.businessCalendar(d.account)
	if err != nil {
		return err
	}
	for ago := demoDays; ago >= 0; ago-- {
		date := midnight(d.yesterday).AddDate(0, 0, 1-ago).Format(time.DateOnly)
		if l.add(calendar.startOf(date), d.payOut); ago == 0 {
			break
		}
		for _, c := range demoData().Counters {
			l.addDay(&c, date, calendar.startOf(date), ago)
		}
	}
	sort.SliceStable(l.deeds, func(i, j int) bool { return l.deeds[i].at.Before(l.deeds[j].at) })
	for _, deed := range l.deeds {
		d.past = deed.at
		if err := cmp.Or(deed.do(e.ctx), d.settle(e.ctx)); err != nil {
			return fmt.Errorf("fill the file at %v: %w", deed.at, err)
		}
	}
	return nil
}

// addDay adds the orders of a counter on a business day that begins at start, so many days ago. The counter opens
// seven and a half hours after that: at 11:30 where days begin at 04:00.
func (l *demoLife) addDay(c *demoCounter, date businessDate, start time.Time, ago int) {
	most := c.Orders[midnight(date).Weekday()]
	if most > 1 {
		most += l.random.IntN(3) - 1
	}
	for n := range most {
		opens, open := start.Add(7*time.Hour+30*time.Minute), 2*time.Hour
		if n%3 == 2 { // in the evening
			opens, open = opens.Add(6*time.Hour+30*time.Minute), 3*time.Hour
		}
		at := opens.Add(time.Duration(l.random.Int64N(int64(open))).Truncate(time.Second))
		method := c.Methods[l.random.IntN(len(c.Methods))]
		if n == 0 {
			method = c.Methods[0]
		}
		o := l.makeOrder(c)
		o["reference"] = fmt.Sprintf("%s%s %s %d", sampleReference, date, c.Currency, n+1)
		l.addOrder(at, o, method, ago, n)
	}
}

// makeOrder makes an order.
func (l *demoLife) makeOrder(c *demoCounter) map[string]any {
	lines := []map[string]any{}
	pick := func(items []orderLine, least int) {
		for _, i := range l.random.Perm(len(items))[:least+l.random.IntN(2)] {
			lines = append(lines, items[i].wanted(1+l.random.Int64N(2)))
		}
	}
	pick(c.Food, 1)
	pick(c.Drinks, 0)
	o := map[string]any{"currency": c.Currency, "lines": lines, "return_url": l.page + "/thanks"}
	if l.random.IntN(4) == 0 {
		o["delivery"] = map[string]int64{"amount": c.Delivery, "vat_rate": c.DeliveryRate}
	}
	if l.random.IntN(2) == 0 {
		o["tip"] = c.Round * (1 + l.random.Int64N(8))
	}
	if l.random.IntN(8) == 0 {
		o["discount"] = c.Food[0].UnitAmount / 10
	}
	return o
}

// addOrder adds the nth order of a day, which is paid at once, and what was given back of it: now and then one unit of
// the first line an hour later, the first order of the day before yesterday on the next day, another one three days
// later; and one payment is disputed.
func (l *demoLife) addOrder(at time.Time, o map[string]any, method string, ago, n int) {
	id, currency := "", o["currency"]
	refund := func(after time.Duration, body string) {
		l.add(at.Add(after), func(ctx context.Context) error {
			return l.ask(ctx, l.token, http.MethodPost, "/orders/"+id+"/refunds", json.RawMessage(body), nil)
		})
	}
	l.add(at, func(ctx context.Context) (err error) {
		id, err = l.sell(ctx, o, method)
		return err
	})
	switch {
	case currency == "CHF" && ago == 2 && n == 0:
		refund(days(1), `{"reason": "it never came"}`)
	case currency == "CHF" && ago == 20 && n == 1:
		refund(days(3), `{"reason": "it was paid twice"}`)
	case currency == "CHF" && ago == 12 && n == 0:
		l.add(at.Add(days(4)), func(ctx context.Context) error { return l.dispute(ctx, id) })
	case currency == "CHF" && ago%5 == 1 && n == 1, currency == "SEK" && ago%9 == 1 && n == 0:
		refund(time.Hour, `{"lines": [{"line": 0, "quantity": 1}], "reason": "one was cold"}`)
	}
}

// payOut reads what the provider has paid out, as the worker does each day.
func (d *demo) payOut(ctx context.Context) error {
	used, err := d.server.store.usedConnections(d.account)
	for _, c := range used {
		if err == nil {
			err = (&payouts{paymentsOf(d.server)}).read(ctx, c.ID)
		}
	}
	return err
}

// sell makes an order that is accepted and paid by a method, and returns its id.
func (d *demo) sell(ctx context.Context, o map[string]any, method string) (string, error) {
	var made order
	err := d.ask(ctx, d.token, http.MethodPost, "/orders", o, &made)
	then, body := "/accept", map[string]string{}
	if slices.Contains(outsideMethods, method) {
		then, body["method"] = "/paid", method
	} else if err == nil {
		err = d.payOrder(ctx, made.ID, method)
	}
	if err != nil {
		return "", err
	}
	return made.ID, d.ask(ctx, d.token, http.MethodPost, "/orders/"+made.ID+then, body, nil)
}

// dispute disputes the payment of an order, as its guest.
func (d *demo) dispute(ctx context.Context, id string) error {
	var o order
	if err := d.ask(ctx, d.token, http.MethodGet, "/orders/"+id, nil, &o); err != nil {
		return err
	}
	return d.cards.dispute(ctx, o.Payment.ID)
}
