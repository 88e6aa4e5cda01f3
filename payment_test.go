package main

import (
	"context"
	"fmt"
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

// Against a webhook, a returning guest and the worker, all at once, that would have one payment captured or told of
// twice: one function settles, by compare-and-set; each operation has one key at the provider.
func TestPayment_noticedByAllAtOnceIsCapturedOnce(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		for i := range size(12, 300) {
			o := s.place()
			p := s.start(o.ID)
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
			s.states(o.ID, orderPaid, paymentCaptured)
			s.once(o.ID, eventOrderAuthorized, eventOrderAccepted, eventOrderPaid)
			captures := s.asked(opCapture)
			operations, err := s.store.operationsOf(p.ID)
			s.check(err)
			if captures > 2 || len(operations) != 2 || s.intent(p).received != o.Total {
				t.Fatalf("%d captures sent, %d operations, %d received", captures, len(operations),
					s.intent(p).received)
			}
			s.takeNotices()
		}
	})
}

// Against two guests, or one who presses twice or in two windows, who would pay one order twice: one live attempt
// for an order, decided in one transaction.
func TestPayment_twoGuestsPressAtOnceAndPayOnce(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		other := paymentsOf(s.server)
		urls := make([]string, 6)
		var together sync.WaitGroup
		for i := range urls {
			engine := []*payments{s.engine, other}[i%2]
			together.Go(func() {
				var err error
				if urls[i], err = engine.startAttempt(context.Background(), o.ID, methodCard,
					"https://x.example"); err != nil {
					t.Error(err)
				}
			})
		}
		together.Wait()
		for _, url := range urls {
			equal(t, "where guests are sent", url, urls[0])
		}
		all, err := s.store.paymentsOf(o.ID)
		s.check(err)
		if len(all) != 1 || len(s.provider.sessions) != 1 {
			t.Errorf("%d attempts, %d sessions", len(all), len(s.provider.sessions))
		}
	})
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
