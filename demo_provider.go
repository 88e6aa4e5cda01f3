package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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
