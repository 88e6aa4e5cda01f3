package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// notices returns what notices an attempt: the provider's webhook, the guest who comes back, the poller
// and an operator.
func (s *shop) noticers(p *payment, post func() int) []func() {
	other := paymentsOf(s.server) // as of another process
	return []func(){
		func() {
			post()
			s.engine.settle(context.Background(), p.ID) // as the worker that the webhook wakes
		},
		func() { other.settleLive(context.Background(), p.OrderID) },
		func() { s.engine.settle(context.Background(), p.ID) },
		func() { other.settle(context.Background(), p.ID) },
	}
}

// Against two guests, or one who presses twice or in two windows, who would pay one order twice: one live attempt for
// an order, decided in one transaction. Against a webhook, a returning guest and the worker, all at once, or anybody
// with a recorded webhook, that would have one payment captured or told of twice: one function settles, by
// compare-and-set; each operation has one key at the provider; a webhook has the provider asked again, and what was
// done is done.
func TestPayment_noticedByAllAtOnceIsCapturedOnce(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		for i := range size(12, 300) {
			o := s.place()
			p := s.pressedByAll(o.ID)
			s.authorize(p)
			posts := s.takeNotices()
			all := s.noticers(p, posts[0])
			var together sync.WaitGroup
			for k := range all { // each begins first in turn
				together.Go(all[(k+i)%len(all)])
			}
			together.Wait()
			s.states(o.ID, orderAuthorized, paymentAuthorized)
			s.accept(o.ID)
			for k := range all {
				together.Go(all[(k*3+i)%len(all)])
			}
			together.Wait()
			posts = append(s.takeNotices(), posts...)
			for _, post := range slices.Concat(posts, posts) {
				equal(t, "the answer to a late webhook", post(), http.StatusNoContent)
			}
			s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			s.once(o.ID, eventOrderAuthorized, eventOrderAccepted, eventOrderPaid)
			captures := s.asked(opCapture)
			operations, err := s.store.operationsOf(p.ID)
			s.check(err)
			if captures > 2 || len(operations) != 2 || s.intent(p).received != o.Total {
				t.Fatalf("%d captures sent, %d operations, %d received", captures, len(operations),
					s.intent(p).received)
			}
		}
	})
}

// pressedByAll has guests press the button at once, who are all led to one attempt, which it returns.
func (s *shop) pressedByAll(orderID string) *payment {
	s.t.Helper()
	urls, engines, before := make([]string, 6), []*payments{s.engine, paymentsOf(s.server)}, len(s.provider.sessions)
	var together sync.WaitGroup
	for i := range urls {
		together.Go(func() {
			url, err := engines[i%2].startAttempt(context.Background(), orderID, methodCard, siteOrigin)
			if urls[i] = url; err != nil {
				s.t.Error(err)
			}
		})
	}
	together.Wait()
	p := s.attempt(orderID)
	equal(s.t, "where guests are sent", urls, slices.Repeat([]string{*p.URL}, len(urls)))
	s.counts(1, `SELECT count(*) FROM payments WHERE order_id = ?`, orderID)
	equal(s.t, "attempts that count against the limit", s.row(orderID).Attempts, 1)
	equal(s.t, "sessions", len(s.provider.sessions), before+1)
	return p
}

// Each call to a provider fails in each way, and all becomes right by itself.
func TestPayment_survivesEveryFaultOfTheProvider(t *testing.T) {
	t.Parallel()
	for provider, kinds := range map[string][]string{
		providerStripe: {opCreate, "look", opCapture, opRefund, opExpire, opCancel},
		providerVipps:  {"token", opCreate, "look", "events", opCapture, opRefund, opExpire, opCancel},
	} {
		for k, kind := range kinds {
			faults := map[string]providerFault{}
			for i, fault := range allProviderFaults {
				if (i+k)%size(6, 1) == 0 {
					faults[fmt.Sprintf("%s/%s/%s", provider, kind, fault)] = fault
				}
			}
			inShops(t, faults, func(s *shop, fault providerFault) { s.survives(kind, fault) }, provider)
		}
	}
}

// survives has two calls of a kind fail, and checks that all becomes right.
func (s *shop) survives(kind string, fault providerFault) {
	s.t.Helper()
	if kind == "token" {
		time.Sleep(time.Hour) // the one with which the account was connected has ended
	}
	s.fail(kind, fault, fault)
	s.work()
	switch kind {
	case opExpire:
		s.expiresAtTheProvider()
	case opCancel:
		s.isReleased()
	default:
		s.isPaidAndRefunded()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := len(s.faults[kind]); left > 1 || left == 1 && s.method == methodCard {
		s.t.Errorf("%s was not asked often enough for its faults", kind) // Vipps is read instead of asked again
	}
}

// await waits until the order and its last attempt have these states, for at most an hour.
func (s *shop) await(orderID, order, attempt string) *payment {
	s.t.Helper()
	for range 3600 {
		if o := s.row(orderID); string(o.State) == order && string(s.attempt(orderID).State) == attempt {
			return s.attempt(orderID)
		}
		time.Sleep(time.Second)
	}
	s.states(orderID, order, attempt)
	return nil
}

// begin begins to pay an order as a guest does who presses the button again until it works.
func (s *shop) begin(orderID string) *payment {
	s.t.Helper()
	for range 20 {
		url, err := s.engine.startAttempt(s.t.Context(), orderID, s.method, siteOrigin+"/return")
		if err == nil && url == valueOr(s.attempt(orderID).URL, "-") {
			return s.attempt(orderID)
		}
		time.Sleep(5 * time.Second)
	}
	s.t.Fatal("the guest can't pay")
	return nil
}

func (s *shop) isPaidAndRefunded() {
	s.t.Helper()
	o := s.place(func(o *order) { o.Tip = 1 })
	p := s.begin(o.ID)
	s.authorize(p)
	s.await(o.ID, orderAuthorized, paymentAuthorized)
	s.accept(o.ID)
	s.handOver(p)
	s.await(o.ID, orderPaid, paymentCaptured)
	s.refund(o.ID, 700)
	s.refund(o.ID, 700) // two equal ones are two
	s.await(o.ID, orderPartRefunded, paymentPartRefunded)
	s.refund(o.ID, 0)
	p = s.await(o.ID, orderRefunded, paymentRefunded)
	want := providersMoney{captured: o.Total, refunded: o.Total, captures: 1, refunds: 3}
	equal(s.t, "what the provider has", s.money(p), want)
	s.onlyAttempt(p)
	s.once(o.ID, eventOrderAuthorized, eventOrderAccepted, eventOrderPaid)
	equal(s.t, "events order.refunded", s.events(o.ID)[eventOrderRefunded], 3)
}

// onlyAttempt checks that the guest can pay, or has paid, by no other attempt.
func (s *shop) onlyAttempt(p *payment) {
	s.t.Helper()
	all, err := s.store.paymentsOf(p.OrderID)
	s.check(err)
	for i := range all {
		if m := s.money(&all[i]); all[i].ID != p.ID && (m.payable || m.held() || m.captures > 0) {
			s.t.Errorf("by another attempt, the provider has %+v", m)
		}
	}
	live := 0
	for _, session := range s.provider.sessions {
		if session.intent != nil || session.status == "open" {
			live++
		}
	}
	if live > 1 {
		s.t.Errorf("%d sessions in which the guest has paid, or can", live)
	}
}

func (s *shop) expiresAtTheProvider() {
	s.t.Helper()
	o := s.place()
	p := s.begin(o.ID)
	s.decide(cancelOrder, o.ID)
	p = s.await(o.ID, orderCancelled, closedState(p))
	equal(s.t, "what the provider has", s.money(p), (providersMoney{}))
	s.once(o.ID, eventOrderCancelled)
}

// closedState is the state of an attempt that we have closed before the guest paid.
func closedState(p *payment) string {
	if p.Provider == providerVipps {
		return paymentCancelled // it is terminated
	}
	return paymentExpired
}

func (s *shop) isReleased() {
	s.t.Helper()
	o := s.place()
	p := s.begin(o.ID)
	s.authorize(p)
	s.await(o.ID, orderAuthorized, paymentAuthorized)
	s.decide(plainReject, o.ID)
	p = s.await(o.ID, orderCancelled, paymentCancelled)
	equal(s.t, "what the provider has", s.money(p), (providersMoney{}))
	s.once(o.ID, eventOrderCancelled)
}

// twint has guests pay by TWINT from now on.
func (s *shop) twint() { s.method = methodTwint }

// charged returns an order that was paid by TWINT, and its attempt.
func (s *shop) charged(change ...func(*order)) (*order, *payment) {
	s.t.Helper()
	s.twint()
	o := s.place(change...)
	p := s.start(o.ID)
	s.authorize(p)
	p = s.settle(p)
	s.states(o.ID, orderAuthorized, paymentCaptured)
	return s.row(o.ID), p
}

// decideOn lets somebody decide about an order.
func (s *shop) decideOn(id string, act func(*tx, owner, string, string) (*order, error)) {
	s.t.Helper()
	s.change(func(t *tx) error { return second(act(t, anyAccount, id, actorCommand)) })
	s.accountedFor()
}

// givenBackThere has somebody give an amount back on the provider's own pages. late: it is there for more than a day.
func (s *shop) givenBackThere(p *payment, amount int64, late ...bool) {
	s.t.Helper()
	s.provider.mu.Lock()
	s.provider.createRefund("", map[string][]string{"payment_intent": {*p.IntentID},
		"amount": {strconv.FormatInt(amount, 10)}})
	s.provider.mu.Unlock()
	if len(late) == 0 {
		s.settle(p)
	} else {
		s.late(p)
	}
	s.accountedFor()
}

// late has all refunds of an attempt take more than a day.
func (s *shop) late(p *payment) {
	s.t.Helper()
	s.refundsBecome(p, "pending")
	time.Sleep(refundLate + time.Hour)
	s.settle(p)
	s.inReview(p, reasonRefundPending, 1)
}

// TestTwint_refundsStayAsTheyWereMadeWhateverHappensToOthers has food for 30.00 and wine for 20.00 be paid for days
// before they are wanted.
func TestTwint_refundsStayAsTheyWereMadeWhateverHappensToOthers(t *testing.T) {
	t.Parallel()
	type telling struct {
		happens  func(*shop, *order, *payment)
		held     int64 // that the provider has at last
		refunded int64 // of the total
		food     int64 // at the rate of 2.6 %, and its VAT
		foodVAT  int64
		wineVAT  int64 // at 8.1 %
		order    string
		attempt  string
		refunds  string
	}
	noWine := func(s *shop, o *order, p *payment) {
		s.accept(o.ID, linePart{Line: 1, Quantity: 0})
		s.settle(p)
	}
	bankTakes := func(s *shop, p *payment, amount int64) {
		s.provider.dispute(*p.IntentID, "needs_response")
		s.atProvider(p, func(x *testSession) { x.intent.disputes[0].amount = amount })
		s.settle(p)
	}
	bankPutsBack := func(s *shop, p *payment) {
		s.provider.dispute(*p.IntentID, "won")
		s.settle(p)
		s.settle(p)
	}
	inShops(t, map[string]telling{
		"more than the wine": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 3500)
			noWine(s, o, p)
		}, 1500, 1500, 900, 23, 45, orderPartRefunded, paymentPartRefunded, "found 3500"},
		"less than the wine, and some of the food later": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 500)
			noWine(s, o, p)
			s.givenBackThere(p, 1000)
		}, 2000, 1000, 1800, 46, 15, orderPartRefunded, paymentPartRefunded,
			"found 1000, found 500, not_accepted 1500"},
		"what was given back fails": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 2000)
			noWine(s, o, p)
			s.refundsBecome(p, "failed")
			s.settle(p)
		}, 3000, 0, 3000, 76, 0, orderPaid, paymentPartRefunded, "found 2000 failed, not_accepted 2000"},
		"the bank takes some, and puts it back": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 500)
			bankTakes(s, p, 1000)
			noWine(s, o, p)
			equal(s.t, "what is given back while the bank has 10.00", s.money(p).refunded, 2000)
			bankPutsBack(s, p)
		}, 3000, 0, 2700, 68, 23, orderPaid, paymentPartRefunded, "found 500, not_accepted 1500"},
		"the bank takes most of it": {func(s *shop, o *order, p *payment) {
			bankTakes(s, p, 4000)
			noWine(s, o, p)
			equal(s.t, "what is given back while the bank has 40.00", s.money(p).refunded, 1000)
			bankPutsBack(s, p)
		}, 3000, 0, 3000, 76, 0, orderPaid, paymentPartRefunded, "not_accepted 1000, not_accepted 1000"},
		"all in one, after a refund that failed": {func(s *shop, o *order, p *payment) {
			s.fail(opRefund, fault400)
			noWine(s, o, p)
			s.givenBackThere(p, 5000)
		}, 0, 3000, 0, 0, 0, orderRefunded, paymentRefunded, "found 5000, not_accepted 2000 failed"},
		"asked for, after a refund that failed": {func(s *shop, o *order, p *payment) {
			s.fail(opRefund, fault400)
			noWine(s, o, p)
			s.inReview(p, reasonCaptureDiffers, 1)
			s.refund(o.ID, 2000)
		}, 3000, 0, 1800, 46, 90, orderPaid, paymentPartRefunded, "asked 2000, not_accepted 2000 failed"},
		"accepted while one is late": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 2000, true)
			noWine(s, o, p)
			s.refundsBecome(p, "succeeded")
		}, 3000, 0, 1800, 46, 90, orderPaid, paymentPartRefunded, "found 2000"},
		"accepted while one is late, which fails": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 2000, true)
			noWine(s, o, p)
			s.refundsBecome(p, "failed")
			s.settle(p)
		}, 3000, 0, 3000, 76, 0, orderPaid, paymentPartRefunded, "found 2000 failed, not_accepted 2000"},
		"rejected while one is late": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 2000, true)
			s.decideOn(o.ID, plainReject)
			s.settle(p)
			equal(s.t, "what is given back at once", s.money(p).refunded, 5000)
			s.refundsBecome(p, "succeeded")
		}, 0, 0, 0, 0, 0, orderCancelled, paymentRefunded, "found 2000, not_accepted 3000"},
	}, func(s *shop, want telling) {
		o, p := s.charged(func(o *order) {
			o.Lines, o.Delivery = []orderLine{{Name: "Food", Quantity: 1, UnitAmount: 3000, VATRate: 260},
				{Name: "Wine", Quantity: 1, UnitAmount: 2000, VATRate: 810}}, 0
			o.WantedAt = newStamp(time.Now().Add(days(10)))
		})
		want.happens(s, o, p)
		s.settle(p)
		s.accountedFor()
		s.states(o.ID, want.order, want.attempt)
		o, refunds := s.row(o.ID), []string{}
		for _, f := range s.refundsOf(o.ID) {
			failed := map[string]string{refundFailed: " failed"}[string(f.State)]
			refunds = append(refunds, fmt.Sprint(f.Kind, " ", f.Amount, failed))
		}
		slices.Sort(refunds)
		sum := func(column string, rate int) int64 {
			return int64(s.count(`SELECT coalesce(sum(iif(what LIKE 'refund%', -`+column+`, `+column+`)), 0)
				FROM revenue_sums WHERE what IN ('sale', 'refund') AND rate = ?`, rate))
		}
		equal(s.t, "its refunds", strings.Join(refunds, ", "), want.refunds)
		equal(s.t, "its revenue", int64(s.sums()), want.held)
		m := s.money(p)
		equal(s.t, "held, refunded, food, VAT of food and wine",
			[...]int64{m.captured - m.refunded, o.Refunded, sum("gross", 260), sum("vat", 260), sum("vat", 810)},
			[...]int64{want.held, want.refunded, want.food, want.foodVAT, want.wineVAT})
	})
}

func TestMethods_offeredAreThoseThatCanSucceed(t *testing.T) {
	t.Parallel()
	const now, accepted, handover = ":" + noteChargedNow, ":" + noteChargedAccepted, ":" + noteChargedHandover
	inShop(t, func(s *shop) {
		for _, c := range []struct {
			currency string
			amount   int64
			ahead    time.Duration
			handover bool
			want     string
		}{
			{"CHF", 4200, 0, false, "twint" + now + " card" + accepted},
			{"CHF", 500_000, 0, false, "twint" + now + " card" + accepted},
			{"CHF", 500_001, 0, false, "card" + accepted},
			{"EUR", 4200, 0, false, "mobile" + handover + " card" + accepted},
			{"NOK", 4200, days(50), false, "mobile" + handover + " card" + accepted},
			{"DKK", 4200, days(13), false, "mobile" + handover + " card" + accepted},
			{"DKK", 4200, days(15), false, "card" + accepted},
			{"CHF", 4200, days(6), true, "twint" + now + " card" + handover},
			{"CHF", 4200, days(8), true, "twint" + now + " card" + accepted},
			{"ISK", 4200, 0, false, ""},
		} {
			capture := map[bool]string{true: captureOnHandover, false: captureOnAccept}[c.handover]
			s.sql(`INSERT OR REPLACE INTO account_settings (account_id, capture_on) VALUES (?, ?)`, s.account, capture)
			o := &order{AccountID: s.account, Currency: c.currency, Total: c.amount}
			if c.ahead > 0 {
				o.WantedAt = newStamp(time.Now().Add(c.ahead))
			}
			offered, err := s.engine.methodsFor(o)
			s.check(err)
			got := ""
			for i, m := range offered {
				if i > 0 {
					got += " "
				}
				got += m.Method + ":" + m.Note
			}
			equal(s.t, fmt.Sprint(c), got, c.want)
		}
		s.sql(`UPDATE payment_connections SET methods = '[]'`) // as before TWINT
		offered, err := s.engine.methodsFor(&order{AccountID: s.account, Currency: "CHF", Total: 4200})
		s.check(err)
		equal(s.t, "offered without -methods", fmt.Sprint(offered), "[{card "+noteChargedAccepted+"}]")
		o := s.place(func(o *order) { o.Currency = "CHF" })
		_, err = s.engine.startAttempt(s.t.Context(), o.ID, methodTwint, siteOrigin)
		equal(s.t, "TWINT where it is not offered", err, error(errMethod))
	}, providerStripe, providerVipps)
}

func TestProvider_takesWhatItsDescriptionSays(t *testing.T) {
	t.Parallel()
	card, phone := newStripeProvider(nil, stripeBase), newVippsProvider(nil, "", time.Now)
	for _, c := range []struct {
		by               provider
		method, currency string
		least, most      int64 // 0: it takes nothing
	}{
		{card, methodCard, "CHF", 50, 99_999_999}, {card, methodCard, "GBP", 30, 99_999_999},
		{card, methodCard, "DKK", 250, 99_999_999}, {card, methodCard, "CZK", 1500, 99_999_999},
		{card, methodCard, "ISK", 0, 0}, {card, methodCard, "JPY", 0, 0}, {card, methodCard, "chf", 0, 0},
		{card, methodTwint, "CHF", 50, 500_000}, {card, methodTwint, "EUR", 0, 0}, {card, methodMobile, "EUR", 0, 0},
		{phone, methodMobile, "NOK", 100, 65_000_000}, {phone, methodMobile, "DKK", 1, 65_000_000},
		{phone, methodMobile, "EUR", 1, 65_000_000}, {phone, methodMobile, "SEK", 100, 65_000_000},
		{phone, methodMobile, "CHF", 0, 0}, {phone, methodMobile, "", 0, 0}, {phone, methodCard, "EUR", 0, 0},
	} {
		for amount, want := range map[int64]bool{-1: false, 0: false, c.least - 1: false, c.least: c.least > 0,
			c.most: c.most > 0, c.most + 1: false} {
			equal(t, fmt.Sprint(c.method, " ", amount, " ", c.currency), c.by.takes(c.method, c.currency, amount), want)
		}
	}
}

// judged is a verdict in words: the state of the attempt with its reason, the states that its order enters, what is
// asked of the provider, and what somebody is told.
func judged(v verdict) string {
	said := []string{string(v.payment.State)}
	if v.payment.Reason != nil {
		said[0] += " (" + *v.payment.Reason + ")"
	}
	for _, m := range v.moves {
		said = append(said, "order "+string(m.state))
	}
	if v.next != nil && v.next.amount > 0 {
		said = append(said, v.next.kind+" "+strconv.FormatInt(v.next.amount, 10))
	} else if v.next != nil {
		said = append(said, v.next.kind)
	}
	if v.review {
		said = append(said, "told")
	}
	if v.warn {
		said = append(said, "warned")
	}
	return strings.Join(said, ", ")
}

// judgedFacts are those of an order of 42.00 that a guest has been able to pay by card for an hour, and still is.
func judgedFacts() *facts {
	at := newStamp(time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC))
	o := &order{ID: "ord_1", State: orderOpen, Currency: "CHF", Total: 4200, PaymentID: new("pay_1"),
		VAT:   []vatSum{{Rate: 810, Gross: 4200, VAT: 315}},
		Lines: []orderLine{{Quantity: 1, Accepted: 1, UnitAmount: 4200, VATRate: 810, Gross: 4200}}}
	p := &payment{ID: "pay_1", OrderID: o.ID, Provider: providerStripe, Method: methodCard, State: paymentPending,
		Amount: 4200, Currency: "CHF", CreatedAt: at.after(-time.Hour)}
	return &facts{orderMoney: orderMoney{order: o, payment: p, now: at.Time}, accepts: 30, reserves: days(7),
		report: &paymentReport{phase: phaseOpen, amount: 4200, currency: "CHF"}}
}

// is sets the states of the attempt and of the order.
func (f *facts) is(attempt, order string) {
	f.payment.State, f.order.State = paymentState(attempt), orderState(order)
}

// approves has the provider report what can be captured, was captured and was given back.
func (f *facts) approves(authorized, captured, refunded int64) {
	f.report.phase, f.payment.Authorized, f.payment.Captured, f.payment.Refunded = phaseApproved, authorized, captured,
		refunded
}

// refuses has the provider have refused an operation three times.
func (f *facts) refuses(kind string) {
	for range maxRefused {
		f.operations = append(f.operations, paymentOperation{Kind: kind, State: operationRefused, Status: new(400),
			CreatedAt: newStamp(f.now)})
	}
}

// TestPayment_isJudgedByItsFacts: what no story in testdata/story comes to.
func TestPayment_isJudgedByItsFacts(t *testing.T) {
	t.Parallel()
	ended := func(f *facts, phase paymentPhase, attempt, order string) {
		f.is(attempt, order)
		f.report.phase = phase
	}
	for rule, c := range map[string]struct {
		with func(f *facts)
		want string
	}{
		"confirmed, and unknown since": {func(f *facts) { ended(f, phaseUnknown, paymentPending, orderOpen) },
			"failed (unknown_there)"},
		"unknown for less than half an hour": {func(f *facts) {
			ended(f, phaseUnknown, paymentPending, orderOpen)
			f.payment.CreatedAt = newStamp(f.now.Add(-29 * time.Minute))
		}, "pending"},
		"unknown while the clock is in doubt": {func(f *facts) {
			ended(f, phaseUnknown, paymentPending, orderOpen)
			f.doubted = true
		}, "pending"},
		"can't be closed": {func(f *facts) { f.closed = true; f.refuses(opExpire) },
			"review (operation_refused), told"},
		"authorised after it had expired": {func(f *facts) {
			f.payment.State, f.payment.EndedAt = paymentExpired, newStamp(f.now)
			f.approves(4200, 0, 0)
		}, "authorized, order authorized"},
		"authorised, and another attempt is live": {func(f *facts) {
			f.payment.State, f.payment.EndedAt, f.order.PaymentID = paymentFailed, newStamp(f.now), new("pay_2")
			f.approves(4200, 0, 0)
		}, "failed, cancel"},
		"authorised for a closed account": {func(f *facts) { f.closed = true; f.approves(4200, 0, 0) },
			"authorized, order cancelled, cancel"},
		"charged for a closed account": {func(f *facts) {
			f.payment.Method, f.closed = methodTwint, true
			f.approves(0, 4200, 0)
		}, "captured, order cancelled, refund 4200"},
		"was captured, says an older report": {func(f *facts) {
			f.accepted()
			f.approves(4200, 0, 0)
			f.operations = []paymentOperation{{Kind: opCapture, State: operationDone}}
		}, "authorized"},
		"less is authorised than the total": {func(f *facts) { f.accepted(); f.approves(4199, 0, 0) },
			"review (capture_differs), told"},
		"captured, another amount": {func(f *facts) { f.approves(0, 5000, 0) },
			"review (capture_differs), order authorized, told"},
		"captured for an order that was paid in cash": {func(f *facts) {
			f.is(paymentAuthorized, orderPaid)
			f.order.Method = new(orderMethod(methodCash))
			f.approves(0, 4200, 0)
		}, "review (order_is_paid), told"},
		"under way for a day, and the provider can't be asked": {func(f *facts) {
			f.is(paymentCaptured, orderPaid)
			f.payment.CapturedAt = f.payment.CreatedAt
			f.order.PaidAt, f.order.Method = f.payment.CreatedAt, new(orderMethod(f.payment.Method))
			f.refunds = []refund{{ID: "ref_1", PaymentID: &f.payment.ID, Amount: 1000, State: refundPending,
				Kind: refundAsked, Source: sourceOurs, CreatedAt: newStamp(f.now.Add(-refundLate))}}
			f.stored = slices.Clone(f.refunds)
			f.approves(0, 4200, 1000)
			f.report = nil
		}, "review (refund_pending), told"},
	} {
		f := judgedFacts()
		c.with(f)
		p, o := *f.payment, *f.order
		equal(t, rule, judged(judge(f)), c.want)
		equal(t, rule+": again, of the same facts", judged(judge(f)), c.want)
		if *f.payment != p || f.order.State != o.State || f.order.PaymentID != o.PaymentID {
			t.Errorf("%s: the facts are changed", rule)
		}
	}
}

// accepted has the order be accepted, and its money be to be captured.
func (f *facts) accepted() {
	f.is(paymentAuthorized, orderAccepted)
	f.order.Capture = true
}

// Stories of payments: what comes early, late, twice, in another order, or from somebody else.

// decide runs one of the decisions about an order.
func (s *shop) decide(f func(*tx, owner, string, string) (*order, error), id string) {
	s.t.Helper()
	s.change(func(t *tx) error { _, err := f(t, anyAccount, id, actorCommand); return err })
}

func TestPayment_noticedBeforeOurOwnAnswer(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		o := s.place()
		// The provider acts, the guest pays, and its webhook is here before its answer, which is lost.
		s.fail(opCreate, faultTimeout)
		go s.engine.startAttempt(s.t.Context(), o.ID, s.method, siteOrigin+"/return")
		time.Sleep(time.Second)
		s.states(o.ID, orderOpen, paymentCreated)
		p := s.attempt(o.ID)
		if s.method == methodCard {
			s.provider.mu.Lock()
			p.SessionID = &s.provider.sessions[0].id
			s.provider.mu.Unlock()
		}
		s.authorize(p)
		s.deliver()
		s.work()
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		s.once(o.ID, eventOrderAuthorized)
		if s.method == methodCard { // asked again under the same key
			equal(s.t, "sessions", len(s.provider.sessions), 1)
		} else {
			equal(s.t, "requests for a payment", s.asked(opCreate), 1)
		}
	})
}

func TestPayment_ofAnAccountThatIsClosedIsReleased(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		s.account = s.addAccount("a tenant")
		s.change(func(t *tx) error { return addOrigin(t, s.account, "https://tenant.example", anActor) })
		s.connect(s.providerOfGuests())
		home := func(o *order) { o.ReturnURL = "https://tenant.example/thanks" }
		authorized, p := s.authorized(home)
		s.accept(authorized.ID)
		open := s.place(home)
		pending, charged := s.start(open.ID), ""
		if s.method == methodCard {
			o, _ := s.charged(home)
			charged = o.ID
		}
		s.change(func(t *tx) error { return closeAccount(t, nouns(), s.account, actorCommand) })
		s.work()
		s.await(authorized.ID, orderCancelled, paymentCancelled)
		s.await(open.ID, orderCancelled, closedState(pending))
		if charged != "" {
			s.await(charged, orderCancelled, paymentRefunded)
		}
		s.accountedFor()
		if a, b := s.money(p), s.money(pending); a != (providersMoney{}) || b != (providersMoney{}) {
			s.t.Errorf("the provider has %+v and %+v", a, b)
		}
		_, err := s.engine.startAttempt(s.t.Context(), open.ID, s.method, siteOrigin)
		equal(s.t, "paying a closed account's order", err, error(errNotPayable))
	})
}

// Against anybody with the address of a provider's webhook who would have an order taken for paid, by a forged
// webhook or one of another connection: signatures, and a webhook only has the provider asked; an unknown
// connection is answered as a wrong signature is.
func TestPayment_webhooksWithAWrongSignatureChangeNothing(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		before := s.dump()
		body := `{"id":"evt_1","object":"event","type":"checkout.session.completed","data":{"object":{"id":"` +
			*p.SessionID + `","object":"checkout.session","client_reference_id":"` + p.ID + `"}}}`
		for _, path := range []string{
			"/payments/stripe/" + s.connection,
			"/payments/stripe/" + newID("con", time.Now()),
			"/payments/vipps/" + s.connection,
			"/payments/stripe/x",
		} {
			signed := fmt.Sprintf("Stripe-Signature: t=%d,v1=%s", time.Now().Unix(), strings.Repeat("00", 32))
			s.post(path, body, signed).is(401, "invalid_signature")
			s.post(path, body).is(401, "invalid_signature")
		}
		s.unchanged(before)
		unsent := s.begins("POST", "/payments/stripe/"+newID("con", time.Now()), "{", 64<<10)
		equal(t, "before the body has come", <-unsent.answer, 401)
		s.post("/payments/stripe/"+s.connection, strings.Repeat(" ", maxRawBody+1)).is(413)
	})
}
