package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Random histories of orders that can be paid by card, by TWINT or by mobile phone, now or later: guests press all
// buttons and pay in any tab, restaurants decide, providers fail and answer late, webhooks come when they come, and
// all of it at once.

// A history is what happens to one order.
type history struct {
	*shop
	run    *historyRun
	id     string    // of the order
	portal bool      // somebody also acts on the providers' own pages
	failed bool      // the bank was slow with a refund, or has let one fail
	other  *payments // the engine of another process

	mu     sync.Mutex // of what follows
	random *rand.Rand // of the providers
	calm   bool       // the providers answer at once, and always
}

// A historyStep is something that happens in a history.
type historyStep struct {
	*history
	random *rand.Rand // its own
}

// Against a guest's bank, or a provider whose keys may not refund, who would have money that was to be given back
// drop out of sight: an attempt that holds what its order does not count as paid is in review, told of and in
// status, until that is even; check counts all of them.
func TestPayment_historiesAreConsistent(t *testing.T) {
	t.Parallel()
	(&histories[*history]{
		small: 20, large: 160, inOne: 20, together: true,
		start: func(t *testing.T) *history {
			s := newShop(t, providerStripe, providerVipps)
			return &history{shop: s, other: paymentsOf(s.server)}
		},
		begin: (*history).begin,
		ops:   func(random *rand.Rand) int { return 6 + random.IntN(24) },
		pause: func(random *rand.Rand) time.Duration {
			most := []int{1, 1, 3_000, 3_000, 20_000, 300_000}[random.IntN(6)]
			return time.Duration(random.IntN(most)) * time.Millisecond
		},
		op: func(h *history, random *rand.Rand) {
			step := &historyStep{h, random}
			name, act := step.pick(random.IntN(2) == 0)
			h.note(name, act())
		},
		held: func(h *history, random *rand.Rand) {
			h.shop.mu.Lock()
			clear(h.faults)
			h.shop.mu.Unlock()
			h.mu.Lock()
			h.calm = true
			h.mu.Unlock()
			(&historyStep{h, random}).comeToRest()
			h.verify()
			h.takeCalls()
			h.takeNotices()
		},
		end: func(h *history) { h.sumsAreOfFacts() },
	}).run(t)
}

// begin begins a history with an order.
func (h *history) begin(r *historyRun) {
	h.t.Helper()
	h.mu.Lock()
	h.run, h.random, h.calm, h.failed = r, r.random(-3), false, false
	h.mu.Unlock()
	step := &historyStep{h, r.random(-4)}
	h.portal = step.below(4) == 0
	h.sql(`INSERT OR REPLACE INTO account_settings (account_id, capture_on) VALUES (?, ?)`, h.account,
		[]string{captureOnAccept, captureOnHandover}[step.below(2)])
	h.id = h.place(step.orders).ID
	h.passing = h.pass
}

// below returns a random number from 0 to n-1.
func (h *historyStep) below(n int) int { return h.random.IntN(n) }

// orders makes an order of any kind: one that is paid later, for another day, or in a currency of which there is
// TWINT, but no payment by phone.
func (h *historyStep) orders(o *order) {
	if h.below(8) == 0 {
		o.Pay = payLater
	}
	if h.below(2) == 0 {
		o.Currency = "CHF"
	}
	o.Lines[1].UnitAmount = int64(777 * h.below(3))
	if ahead := []time.Duration{0, 0, 0, 3 * time.Hour, days(10)}[h.below(5)]; ahead > 0 {
		o.WantedAt = newStamp(time.Now().Add(ahead))
	}
}

// note notes what happened. Refusals of ours are answers like any other.
func (h *history) note(name string, err error) {
	var refused *refusal
	if err != nil && !errors.As(err, &refused) && !errors.Is(err, context.DeadlineExceeded) {
		h.t.Errorf("%s: %v", name, err)
	}
	if err != nil {
		name += ": " + err.Error()
	}
	h.accountedFor()
	h.run.note(name)
}

// pass is what the providers do around each call: they take their time, and sometimes break the connection.
func (h *history) pass(acted bool) {
	h.mu.Lock()
	calm, wait, breaks := h.calm, 0, false
	if !calm {
		wait = h.random.IntN([]int{1, 20, 2_000, 9_000}[h.random.IntN(4)])
		breaks = h.random.IntN(25) == 0
	}
	h.mu.Unlock()
	h.checkHeld()
	h.accountedFor()
	if calm {
		return
	}
	time.Sleep(time.Duration(wait) * time.Millisecond)
	if breaks {
		panic(http.ErrAbortHandler)
	}
}

// checkHeld checks that the guest's money is held by one attempt at most, and by none if the order was paid
// outside.
func (h *history) checkHeld() {
	all, err := h.store.paymentsOf(h.id)
	h.check(err)
	held := 0
	for i := range all {
		if m := h.money(&all[i]); m.held() {
			held++
		}
	}
	if held > 1 {
		h.t.Errorf("history %d, %s: %d attempts hold money", h.run.seed, time.Now().Format("15:04:05.000"), held)
	}
	if o := h.row(h.id); held > 0 && o.paidOutside() && !h.portal {
		h.t.Errorf("history %d: an attempt holds money of an order that was paid outside", h.run.seed)
	}
}

// decision runs a decision about the order.
func (h *historyStep) decision(f func(*tx) error) error {
	err := h.store.update(context.Background(), f)
	h.engine.wakeUp()
	h.mu.Lock()
	calm := h.calm
	h.mu.Unlock()
	if err == nil && h.portal && !calm && h.below(2) == 0 { // before the provider hears of it
		err = h.portalActs()
	}
	return err
}

// pick returns something that happens: anything, or what is likely for the state that the order has now.
func (h *historyStep) pick(likely bool) (name string, act func() error) {
	engine := []*payments{h.engine, h.other}[h.below(2)]
	n := h.below(100)
	o := h.row(h.id)
	if h.portal && o.State == orderAuthorized && h.below(4) == 0 { // while it waits
		return "portal", h.portalActs
	}
	if likely && o.State == orderOpen && o.Pay == payOnline {
		n = h.below(46)
	} else if likely {
		return h.pickDecision(map[string]int{orderOpen: 6, orderAuthorized: 6, orderAccepted: 12, orderCancelled: 20,
			orderExpired: 20, orderPaid: 18, orderPartRefunded: 18, orderRefunded: 20}[string(o.State)])
	}
	switch {
	case n < 14:
		return "press card", func() error { return h.press(engine, methodCard) }
	case n < 28 && o.Currency == "CHF":
		return "press twint", func() error { return h.press(engine, methodTwint) }
	case n < 28:
		return "press mobile", func() error { return h.press(engine, methodMobile) }
	case n < 46:
		return "guest pays", h.guestPays
	case n < 54:
		return "webhooks", h.webhooksCome
	case n < 62:
		return "look", func() error { return h.lookAtAll(engine) }
	case n < 67:
		return "guest returns", func() error { return engine.settleLive(context.Background(), h.id) }
	case n < 72:
		return "time", h.chores
	case n < 77:
		kind, fault := []string{opCreate, "look", opCapture, opRefund, opExpire, opCancel, "events",
			"token"}[h.below(8)], allProviderFaults[h.below(len(allProviderFaults))]
		return fmt.Sprintf("%s fails: %s", kind, fault), func() error { h.fail(kind, fault); return nil }
	case n < 80 && h.portal:
		return "portal", h.portalActs
	case n < 83:
		return "bank", h.bankActs
	}
	return h.pickDecision(26)
}

// pickDecision returns something that the restaurant decides, below a number.
func (h *historyStep) pickDecision(most int) (name string, act func() error) {
	simple := func(f func(*tx, owner, string, string) (*order, error)) func() error {
		return func() error {
			return h.decision(func(t *tx) error { _, err := f(t, anyAccount, h.id, actorCommand); return err })
		}
	}
	switch n := h.below(most); {
	case n < 5 || n < 6 && most > 6:
		var lines []linePart
		if h.below(3) == 0 {
			lines = [][]linePart{{{0, 1, 0}}, {{1, 0, 0}}, {{0, 0, 0}}}[h.below(3)]
		}
		return "accept", func() error {
			return h.decision(func(t *tx) error {
				_, err := acceptOrder(t, anyAccount, h.id, lines, stamp{}, actorCommand)
				return err
			})
		}
	case n < 6:
		return "reject", simple(plainReject)
	case n < 12:
		return "capture", func() error {
			return h.decision(func(t *tx) error { _, err := captureOrder(t, anyAccount, h.id); return err })
		}
	case n < 17:
		amount := int64(100 * (1 + h.below(12)))
		return "refund", func() error { return h.givesBack(&amount) }
	case n < 18:
		return "refund all", func() error { return h.givesBack(nil) }
	case n < 19:
		return "reject", simple(plainReject)
	case n < 20:
		return "cancel", simple(cancelOrder)
	case n < 24:
		return "pay in cash", func() error {
			return h.decision(func(t *tx) error {
				_, err := payOutside(t, anyAccount, h.id, methodCash, stamp{}, actorCommand)
				return err
			})
		}
	}
	return "undo cash", simple(undoPaid)
}

func (h *historyStep) givesBack(amount *int64) error {
	return h.decision(func(t *tx) error {
		_, _, err := refundOrder(t, anyAccount, h.id, newRefund{amount: amount}, actorCommand)
		return err
	})
}

// press presses a button of the order's page.
func (h *history) press(engine *payments, method string) error {
	const back = siteOrigin + "/return"
	url, err := engine.startAttempt(context.Background(), h.id, method, back)
	provider := shopProviderURL
	if method == methodMobile {
		provider = shopVippsURL
	}
	if err == nil && url != back && !strings.HasPrefix(url, provider) {
		h.t.Errorf("history %d: who wants to pay by %s is sent to %s", h.run.seed, method, url)
	}
	return err
}

// guestPays pays at any page of a provider that is still open, or declines.
func (h *historyStep) guestPays() error {
	all, err := h.store.paymentsOf(h.id)
	if err != nil {
		return err
	}
	good := h.below(6) > 0
	for i := range all {
		p := &all[i]
		switch {
		case p.Provider == providerVipps:
			h.vipps.mu.Lock()
			if h.vipps.guestAnswers(vippsReference(p.ID), good) && good {
				h.note("paid by phone "+p.ID[20:], nil)
			}
			h.vipps.mu.Unlock()
		case p.SessionID != nil && h.provider.tryCard(*p.SessionID, good):
			h.note("paid by card "+p.ID[20:], nil)
		}
	}
	h.checkHeld()
	return nil
}

// portalActs captures what is authorised, or gives some of what was captured back, on the providers' pages.
func (h *historyStep) portalActs() error {
	all, err := h.store.paymentsOf(h.id)
	if err != nil {
		return err
	}
	for i := range all {
		p := &all[i]
		m, back := h.money(p), int64(100*(1+h.below(30)))
		if h.below(4) == 0 {
			back = max(1, m.captured-m.refunded)
		}
		switch {
		case m.authorized > 0 && m.captured == 0 && p.Provider == providerVipps:
			h.vipps.on(p.ID, func(v *vippsFakePayment) {
				v.captured, v.capturedAt = v.authorized-v.cancelled, time.Now()
				h.vipps.record(v, "CAPTURED", v.captured, "")
			})
		case m.captured-m.refunded >= back && p.Provider == providerVipps:
			h.vipps.portalRefund(p.ID, back)
		case m.authorized > 0 && p.IntentID != nil:
			h.provider.mu.Lock()
			h.provider.captureIntent(h.provider.intent(*p.IntentID), nil)
			h.provider.mu.Unlock()
		case m.captured-m.refunded >= back && p.IntentID != nil:
			h.provider.mu.Lock()
			h.provider.createRefund("", map[string][]string{"payment_intent": {*p.IntentID},
				"amount": {strconv.FormatInt(back, 10)}})
			if h.below(3) == 0 {
				h.failed = true // or is slow, until refundsArrive
				made := h.provider.intent(*p.IntentID).refunds
				made[len(made)-1].status = "pending"
			}
			h.provider.mu.Unlock()
		}
	}
	h.checkHeld()
	return nil
}

// bankActs has the last refund of each card fail, or take long.
func (h *historyStep) bankActs() error {
	h.provider.mu.Lock()
	defer h.provider.mu.Unlock()
	for _, session := range h.provider.sessions {
		if session.intent == nil || !h.ours(session.reference) {
			continue
		}
		for i := len(session.intent.refunds) - 1; i >= 0; i-- {
			r := session.intent.refunds[i]
			if r.status == "failed" || r.released {
				continue
			}
			if h.failed = true; h.below(3) > 0 {
				r.status, r.failure = "failed", "lost_or_stolen_card"
			} else {
				r.status = "pending"
			}
			break
		}
	}
	return nil
}

// ours reports whether an attempt is one of the history's order.
func (h *history) ours(paymentID string) bool {
	all, err := h.store.paymentsOf(h.id)
	h.check(err)
	return slices.ContainsFunc(all, func(p payment) bool { return p.ID == paymentID })
}

// refundsArrive has the refunds that take long succeed.
func (h *history) refundsArrive() {
	h.provider.mu.Lock()
	defer h.provider.mu.Unlock()
	for _, session := range h.provider.sessions {
		if session.intent == nil {
			continue
		}
		for _, r := range session.intent.refunds {
			if r.status == "pending" {
				r.status = "succeeded"
			}
		}
	}
}

// webhooksCome posts the webhooks that the providers have, in any order, some of them twice.
func (h *historyStep) webhooksCome() error {
	posts := h.takeNotices()
	var together sync.WaitGroup
	for _, post := range posts {
		for range 1 + h.below(4)/3 {
			wait := time.Duration(h.below(3000)) * time.Millisecond
			together.Go(func() { time.Sleep(wait); post() })
		}
	}
	together.Wait()
	return h.settleDue(h.engine)
}

// lookAtAll settles every attempt.
func (h *history) lookAtAll(engine *payments) error {
	all, err := h.store.paymentsOf(h.id)
	for i := range all {
		err = errors.Join(err, engine.settle(context.Background(), all[i].ID))
	}
	return err
}

// settleDue settles what is due, as the worker does.
func (h *history) settleDue(engine *payments) error {
	due, err := h.store.duePayments(newStamp(time.Now()), dueAtOnce)
	for _, d := range due {
		err = errors.Join(err, engine.settle(context.Background(), d.id))
	}
	return err
}

// chores runs what time brings: orders expire.
func (h *history) chores() error {
	return h.chore("orders can't expire")(context.Background())
}

// comeToRest lets hours pass, in which nothing is done but what is due. An order that was accepted is then
// paid, or cancelled.
func (h *historyStep) comeToRest() {
	h.t.Helper()
	if h.failed { // webhooks tell of it
		if h.check(h.lookAtAll(h.engine)); h.below(2) == 0 {
			time.Sleep(refundLate + 2*time.Hour)
			h.check(h.settleDue(h.engine))
			if h.accountedFor(); h.below(2) == 0 {
				h.decideAtLast(0)
				h.check(h.settleDue(h.engine))
				h.accountedFor()
			}
		}
		h.refundsArrive()
		h.check(h.lookAtAll(h.engine))
	}
	for hours := range 4 {
		for range 12 {
			time.Sleep(5 * time.Minute)
			h.check(h.chores())
			h.check(h.settleDue(h.engine))
			h.accountedFor()
		}
		if hours < 3 {
			h.decideAtLast(hours)
		}
		if hours < 2 && h.below(3) == 0 {
			h.check(h.lookAtAll(h.engine))
			h.note("bank at last", h.bankActs())
			h.check(h.lookAtAll(h.engine))
			h.accountedFor()
			h.refundsArrive()
		}
	}
	time.Sleep(dailyLook)
	h.check(h.settleDue(h.engine)) // what nobody told us of
}

// decideAtLast has an order accepted in the first hour, and later paid or cancelled, and gives back what pays nothing.
func (h *historyStep) decideAtLast(hour int) {
	h.t.Helper()
	all, err := h.store.paymentsOf(h.id)
	h.check(err)
	review := false
	for i := range all {
		if p := &all[i]; p.State == paymentReview {
			review = true
			h.note("give back what pays nothing", h.decision(func(t *tx) error {
				_, _, err := refundOrder(t, anyAccount, h.id, newRefund{paymentID: p.ID}, actorCommand)
				return err
			}))
		}
	}
	if o := h.row(h.id); o.State == orderAccepted || o.waits() {
		act := cancelOrder
		switch {
		case review || h.below(2) == 0:
		case o.waits() && hour == 0:
			act = func(t *tx, by owner, id, actor string) (*order, error) {
				return acceptOrder(t, by, id, nil, stamp{}, actor)
			}
		case o.Pay == payLater:
			act = func(t *tx, by owner, id, actor string) (*order, error) {
				return payOutside(t, by, id, methodTerminal, stamp{}, actor)
			}
		case o.State == orderAccepted:
			act = func(t *tx, by owner, id, _ string) (*order, error) { return captureOrder(t, by, id) }
		}
		h.note("at last", h.decision(func(t *tx) error {
			_, err := act(t, anyAccount, h.id, actorCommand)
			return err
		}))
	}
}

// verify checks that our rows say what the providers say, and that nothing was paid, captured, given back
// or told twice.
func (h *history) verify() {
	h.t.Helper()
	o := h.row(h.id)
	all, err := h.store.paymentsOf(h.id)
	h.check(err)
	refunds, err := h.store.refundsOf(h.id)
	h.check(err)
	fail := func(format string, args ...any) {
		h.t.Helper()
		h.t.Errorf("history %d, the order is %s: %s", h.run.seed, o.State, fmt.Sprintf(format, args...))
	}
	if o.Closing != nil || !o.dead() && !o.wasPaid() {
		fail("it has not ended, closing %q", valueOr(o.Closing, ""))
	}
	given, held := int64(0), int64(0)
	for i := range all {
		p := &all[i]
		m := h.money(p)
		held += m.captured - m.refunded
		if m.payable || m.authorized > 0 || m.captures > 1 {
			fail("%s has %+v", p.Provider, m)
		}
		if p.Captured != m.captured || p.Refunded != m.refunded || p.Authorized != 0 {
			fail("the attempt is %s with %d, %d, %d; %s has %+v", p.State, p.Authorized, p.Captured, p.Refunded,
				p.Provider, m)
		}
		if want := stateOf(m); string(p.State) != want && (want != "" || p.EndedAt.IsZero()) {
			fail("the attempt is %s; %s has %+v", p.State, p.Provider, m)
		}
		pays, beyond := o.soldBy(&p.ID) && !o.dead(), m.captured-o.Total // which goes back before anything else
		if pays && (beyond < 0 || beyond > m.refunded) || !pays && m.captured > m.refunded {
			fail("its total is %d, the attempt is %s; %s has %+v", o.Total, p.State, p.Provider, m)
		}
		if pays {
			given = m.refunded - beyond
		}
		h.verifyRefunds(p, m, refunds)
	}
	if o.Refunded != given && !o.paidOutside() {
		fail("%d count as given back, %d were", o.Refunded, given)
	}
	if o.paidOutside() {
		held += o.Total - o.Refunded
	}
	h.addsUp(o, held, refunds)
	h.verifyEvents(o, refunds)
}

// addsUp checks the revenue of the order by account, way of paying and rate of VAT against what was accepted of it
// and what is held: to the cent, or, where some of what was accepted was given back, to the cent in all, and by rate
// to a cent for each of its refunds. Refunds by amount of an order of which a part was not accepted are of all that
// it sold.
func (h *history) addsUp(o *order, held int64, refunds []refund) {
	h.t.Helper()
	sold, total, revenue := map[int64]int64{}, int64(0), int64(0)
	if o.wasPaid() {
		sold[o.DeliveryRate] += o.Delivery
		for _, l := range o.Lines {
			sold[l.VATRate] += l.Accepted * l.UnitAmount
		}
		total = sold[260] + sold[810]
	}
	ofAll := total < o.OrderedTotal && o.capturedFirst() && slices.ContainsFunc(refunds, func(f refund) bool {
		return f.State == refundSucceeded && f.Kind != refundNotAccepted
	})
	cents := int64(len(refunds))
	if (held == 0 || held == total) && !ofAll {
		cents = 0
	}
	h.sums()
	h.check(h.store.each(`SELECT f.account_id, f.method, coalesce(j.value ->> 'rate', 0),
			sum(iif(j.value ->> 'what' LIKE 'refund%', -1, 1) * (j.value ->> 'gross')),
			sum(iif(j.value ->> 'what' LIKE 'refund%', -1, 1) * coalesce(j.value ->> 'vat', 0))
		FROM revenue_facts f, json_each(f.figures) j WHERE f.order_id = ? GROUP BY 1, 2, 3`, []any{o.ID},
		func(scan func(...any) error) error {
			var account, method string
			var rate, gross, vat, want int64
			if err := scan(&account, &method, &rate, &gross, &vat); err != nil {
				return err
			}
			if ofAll {
				want = gross
			} else if total > 0 && method == string(valueOr(o.Method, "")) {
				want = sold[rate] * held / total
			}
			wantVAT := (2*gross*rate + 10_000 + rate) / (2 * (10_000 + rate))
			if revenue += gross; account != h.account || rate > 0 && min(gross, vat) < 0 ||
				max(want-gross, gross-want) > cents || max(wantVAT-vat, vat-wantVAT) > cents {
				h.t.Errorf("history %d, the order is %s: of %d, of which %d are held, %s at %d has %d with VAT of %d, "+
					"want %d with %d", h.run.seed, o.State, total, held, method, rate, gross, vat, want, wantVAT)
			}
			return nil
		}))
	if revenue != held {
		h.t.Errorf("history %d, the order is %s: its revenue is %d, %d are held", h.run.seed, o.State, revenue, held)
	}
}

// sumsAreOfFacts checks that the days' sums of all histories of a shop are those of their facts, by account, way of
// paying and rate of VAT.
func (s *shop) sumsAreOfFacts() {
	s.t.Helper()
	s.counts(0, `SELECT count(*) FROM (SELECT 1 FROM (
			SELECT account_id, method, what, rate, gross, vat FROM revenue_sums UNION ALL
			SELECT f.account_id, f.method, j.value ->> 'what', coalesce(j.value ->> 'rate', 0), -(j.value ->> 'gross'),
				-coalesce(j.value ->> 'vat', 0)
			FROM revenue_facts f, json_each(f.figures) j)
		GROUP BY account_id, method, what, rate HAVING sum(gross) <> 0 OR sum(vat) <> 0)`)
}

// stateOf returns the state of an attempt at rest; "": one that has ended, or cancelled, expired or failed.
func stateOf(m providersMoney) string {
	switch {
	case m.captured == 0:
		return ""
	case m.refunded == m.captured:
		return paymentRefunded
	case m.refunded > 0:
		return paymentPartRefunded
	}
	return paymentCaptured
}

// verifyRefunds checks that each refund of an attempt was made once.
func (h *history) verifyRefunds(p *payment, m providersMoney, refunds []refund) {
	h.t.Helper()
	n, sum := 0, int64(0)
	for _, f := range refunds {
		if valueOr(f.PaymentID, "") != p.ID {
			continue
		}
		if f.State == refundPending {
			h.t.Errorf("history %d: a refund is still pending", h.run.seed)
		}
		if f.State == refundSucceeded {
			n, sum = n+1, sum+f.Amount
		}
	}
	if n != m.refunds || sum != m.refunded {
		h.t.Errorf("history %d: %d refunds of %d together; %s has %+v", h.run.seed, n, sum, p.Provider, m)
	}
}

// verifyEvents checks that each thing was told once.
func (h *history) verifyEvents(o *order, refunds []refund) {
	h.t.Helper()
	n := h.events(o.ID)
	done := 0
	for _, f := range refunds {
		if f.State == refundSucceeded {
			done++
		}
	}
	ended, paid := 0, n[eventOrderUnpaid]
	if o.dead() {
		ended = 1
	} else if o.wasPaid() {
		paid++
	}
	if n[eventOrderReview] > 0 && o.wasPaid() {
		ended = n[eventOrderCancelled] + n[eventOrderExpired] // before it was accepted all the same
	}
	if h.failed { // some that were done have failed since
		done = h.count(`SELECT count(DISTINCT data ->> 'refund_id') FROM events
			WHERE type = ? AND subject_id = ?`, eventOrderRefunded, o.ID)
	}
	if n[eventOrderCreated] != 1 || n[eventOrderAuthorized] > 1 || n[eventOrderAccepted] > 1 ||
		n[eventOrderPaid] != paid ||
		n[eventOrderRefunded] != done || n[eventOrderCancelled]+n[eventOrderExpired] != ended {
		h.t.Errorf("history %d, the order is %s: the events are %v", h.run.seed, o.State, n)
	}
}
