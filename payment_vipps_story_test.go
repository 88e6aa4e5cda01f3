package main

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"
)

// Stories of payments by mobile phone, and of orders that can be paid by card and by mobile phone.

// capture asks for the money of an accepted order.
func (s *shop) capture(orderID string) {
	s.t.Helper()
	s.change(func(t *tx) error { _, err := captureOrder(t, anyAccount, orderID); return err })
}

func TestPayment_byVippsIsCapturedAtHandoverOnly(t *testing.T) {
	t.Parallel()
	cases := map[string]string{captureOnAccept: captureOnAccept, captureOnHandover: captureOnHandover}
	inShops(t, cases, func(s *shop, on string) {
		s.sql(`INSERT INTO account_settings (account_id, capture_on) VALUES (?, ?)`, s.account, on)
		s.work(10 * time.Second)
		o := s.place()
		p := s.begin(o.ID)
		s.authorize(p)
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		s.accept(o.ID)
		time.Sleep(3 * time.Hour)
		s.states(o.ID, orderAccepted, paymentAuthorized)
		equals(s.t, "captures before the handover", s.asked(opCapture), 0)
		s.capture(o.ID)
		s.capture(o.ID)
		p = s.await(o.ID, orderPaid, paymentCaptured)
		if got := s.money(p); got.captured != o.Total || got.captures != 1 {
			s.t.Errorf("Vipps has %+v", got)
		}
		s.once(o.ID, eventOrderAuthorized, eventOrderAccepted, eventOrderPaid)
	}, providerVipps)
}

func TestPayment_byVippsOfAPartReleasesTheRest(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.accept(o.ID, lineQuantity{0, 1})
		s.capture(o.ID)
		s.settle(p)
		p = s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.vipps.on(p.ID, func(v *vippsFakePayment) {
			if v.captured != 2350 || v.cancelled != 1850 {
				t.Errorf("%d captured, %d cancelled", v.captured, v.cancelled)
			}
		})
		if o = s.row(o.ID); o.Total != 2350 || p.Captured != 2350 || p.Authorized != 0 {
			t.Errorf("its total is %d, %d captured, %d authorised", o.Total, p.Captured, p.Authorized)
		}
		s.refund(o.ID, 0)
		p = s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		if got := s.money(p); got.refunded != 2350 {
			t.Errorf("Vipps has %+v", got)
		}
	}, providerVipps)
}

func TestRefund_byVippsWhoseAnswerWasLostIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		s.takeCalls()
		s.fail(opRefund, fault500After)
		first, second := s.refund(o.ID, 1000), s.refund(o.ID, 1000)
		s.work()
		for range 600 {
			time.Sleep(time.Second)
			if s.money(p).refunds == 2 {
				break
			}
		}
		time.Sleep(time.Minute)
		s.states(o.ID, orderPartRefunded, paymentPartRefunded)
		if got, n := s.money(p), s.asked(opRefund); got.refunds != 2 || got.refunded != 2000 || n != 2 {
			t.Errorf("asked for %d refunds, Vipps has %+v", n, got)
		}
		refunds := s.refundsOf(o.ID)
		for _, f := range refunds {
			if f.State != refundSucceeded || f.ID != first.ID && f.ID != second.ID {
				t.Errorf("%+v", f)
			}
		}
		if len(refunds) != 2 || *refunds[0].ProviderID == *refunds[1].ProviderID {
			t.Errorf("the refunds are %+v", refunds)
		}
	}, providerVipps)
}

func TestPayment_byVippsCapturedAndGivenBackInItsPortal(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.vipps.portalCapture(p.ID, o.Total)
		s.deliver()
		p = s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.wasCapturedThere(p, o.Total)
		s.vipps.portalRefund(p.ID, 500)
		s.vipps.portalRefund(p.ID, 500)
		s.deliver()
		s.settle(p)
		s.settle(p)
		s.states(o.ID, orderPartRefunded, paymentPartRefunded)
		refunds := s.refundsOf(o.ID)
		for _, f := range refunds {
			if f.Source != sourceProvider || f.Amount != 500 || f.State != refundSucceeded {
				t.Errorf("%+v", f)
			}
		}
		if len(refunds) != 2 || s.row(o.ID).Refunded != 1000 {
			t.Errorf("%d refunds, %d count as given back", len(refunds), s.row(o.ID).Refunded)
		}
		s.refund(o.ID, 0)
		p = s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		if got := s.money(p); got.refunds != 3 || got.refunded != o.Total {
			t.Errorf("Vipps has %+v", got)
		}
	}, providerVipps)
}

func TestPayment_byVippsCapturedInItsPortalInParts(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.accept(o.ID)
		s.vipps.portalCapture(p.ID, 1000)
		p = s.settle(p)
		s.states(o.ID, orderAccepted, paymentReview)
		equals(t, "the reason of the review", valueOr(p.Reason, ""), reasonCaptureDiffers)
		s.vipps.portalCapture(p.ID, o.Total-1000)
		s.deliver()
		s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderReview, eventOrderPaid)
	}, providerVipps)
}

func TestPayment_byVippsThatExpiresAndIsBegunAgain(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		first := s.start(o.ID)
		time.Sleep(10 * time.Minute)
		second := s.start(o.ID)
		if second.ID == first.ID || *second.URL == *first.URL {
			t.Error("the guest is sent to the page that has expired")
		}
		if old, err := s.store.payment(first.ID); err != nil || old.State != paymentExpired || old.EndedAt.IsZero() {
			t.Errorf("the first attempt is %s, %v", old.State, err)
		}
		s.deliver() // that the first has expired, too
		s.authorize(second)
		s.settle(second)
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		s.once(o.ID, eventOrderAuthorized)
		equals(t, "attempts", s.row(o.ID).Attempts, 2)
	}, providerVipps)
}

func TestPayment_byVippsWhichTheGuestDeclines(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		s.vipps.abort(p.ID)
		s.deliver()
		s.settle(p)
		s.states(o.ID, orderOpen, paymentCancelled)
		time.Sleep(time.Second) // so that the attempts sort by their ids
		s.authorize(s.start(o.ID))
		s.settle(s.attempt(o.ID))
		s.states(o.ID, orderAuthorized, paymentAuthorized)
	}, providerVipps)
}

func TestPayment_byVippsOfAnotherAmountOrCurrencyIsInReview(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]func(*vippsFakePayment){
		"amount":   func(v *vippsFakePayment) { v.amount = 100 },
		"currency": func(v *vippsFakePayment) { v.currency = "DKK" },
	}, func(s *shop, change func(*vippsFakePayment)) {
		o := s.place()
		p := s.start(o.ID)
		s.vipps.on(p.ID, change)
		s.authorize(p)
		p = s.settle(p)
		s.states(o.ID, orderOpen, paymentReview)
		s.once(o.ID, eventOrderReview)
		for _, method := range []string{methodCard, methodMobile} {
			_, err := s.engine.startAttempt(s.t.Context(), o.ID, method, siteOrigin)
			equals(s.t, "paying what is in review by "+method+" as well", err, error(errNotPayable))
		}
		s.decide(cancelOrder, o.ID)
		p = s.settle(p)
		s.states(o.ID, orderCancelled, paymentCancelled)
		if got := s.money(p); got.held() {
			s.t.Errorf("Vipps has %+v", got)
		}
	}, providerVipps, providerStripe)
}

func TestPayment_whoseCreationIsRefusedRests(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		s.work()
		o := s.place(func(o *order) { o.ReturnURL = siteOrigin })
		_, err := s.engine.startAttempt(s.t.Context(), o.ID, s.method, "nowhere")
		equals(s.t, "what the guest is told", err, error(errRefused))
		time.Sleep(time.Minute)
		s.states(o.ID, orderOpen, paymentFailed)
		s.decide(cancelOrder, o.ID)
		time.Sleep(time.Minute)
		s.states(o.ID, orderCancelled, paymentFailed)
		equals(s.t, "events order.review", s.events(o.ID)[eventOrderReview], 0)
	})
}

func TestPayment_webhooksOfVippsWithAWrongSignatureChangeNothing(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		s.authorize(p)
		s.vipps.mu.Lock()
		last := s.vipps.queue[len(s.vipps.queue)-1]
		right := s.vipps.signed(last)
		s.vipps.mu.Unlock()
		before := s.dump()
		for name, value := range map[string]string{"X-Ms-Date": "Sat, 01 Jan 2000 00:00:01 GMT",
			"Authorization": right.Header.Get("Authorization") + "A", "X-Ms-Content-Sha256": ""} {
			headers := []string{name + ": " + value}
			for other, values := range right.Header {
				if other != name {
					headers = append(headers, other+": "+values[0])
				}
			}
			s.post("/payments/vipps/"+s.connection, string(last.body), headers...).is(401, "invalid_signature")
		}
		s.unchanged(before)
		equals(t, "the answer to the right one", s.postOfVipps(last), http.StatusNoContent)
		s.settle(p)
		s.states(o.ID, orderAuthorized, paymentAuthorized)
	}, providerVipps)
}

// changeMethod has a guest begin by one method, do something, and press the button of the other.
func changeMethod(t *testing.T, f func(s *shop, o *order, first *payment, other string)) {
	t.Helper()
	for first, other := range map[string]string{providerStripe: providerVipps, providerVipps: providerStripe} {
		t.Run("from "+first, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) {
				s.currency = "NOK"
				o := s.place()
				p := s.start(o.ID)
				time.Sleep(time.Second) // so that the attempts sort by their ids
				f(s, o, p, methodsOf(other)[0])
			}, first, other)
		})
	}
}

func TestPayment_byAnotherMethodClosesTheFirstAttempt(t *testing.T) {
	t.Parallel()
	changeMethod(t, func(s *shop, o *order, first *payment, other string) {
		s.takeCalls()
		s.method = other
		second := s.start(o.ID)
		if second.ID == first.ID || second.Method != other {
			s.t.Fatalf("the second attempt is %s by %s", second.ID, second.Method)
		}
		kinds := []string{}
		for _, call := range s.takeCalls() {
			if kind := callKind(call); kind == opExpire || kind == opCreate {
				kinds = append(kinds, kind)
			}
		}
		if got, err := s.store.payment(first.ID); err != nil || got.State != closedState(first) {
			s.t.Errorf("the first attempt is %s, %v", got.State, err)
		}
		if s.money(first).payable || !slices.Equal(kinds, []string{opExpire, opCreate}) {
			s.t.Errorf("the providers were asked to %v", kinds)
		}
		s.authorize(second)
		s.settle(second)
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		equals(s.t, "the method", valueOr(s.row(o.ID).Method, ""), other)
	})
}

func TestPayment_byAnotherMethodAfterTheGuestHasPaid(t *testing.T) {
	t.Parallel()
	changeMethod(t, func(s *shop, o *order, first *payment, other string) {
		s.authorize(first)
		url, err := s.engine.startAttempt(s.t.Context(), o.ID, other, siteOrigin+"/return")
		if err != nil || url != siteOrigin+"/return" {
			s.t.Errorf("the guest is sent to %q, %v", url, err)
		}
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		if got := s.attempt(o.ID); got.ID != first.ID || s.row(o.ID).Closing != nil {
			s.t.Errorf("the last attempt is by %s", got.Method)
		}
	})
}

// The guest pays between our look, which sees that nobody has, and the closing of the attempt.
func TestPayment_byAnotherMethodWhileTheGuestPays(t *testing.T) {
	t.Parallel()
	changeMethod(t, func(s *shop, o *order, first *payment, other string) {
		s.beforeKind(opExpire, func() { s.authorize(first) })
		url, err := s.engine.startAttempt(s.t.Context(), o.ID, other, siteOrigin+"/return")
		if err != nil || url != siteOrigin+"/return" {
			s.t.Errorf("the guest is sent to %q, %v", url, err)
		}
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		if m := s.money(first); m.authorized != o.Total {
			s.t.Errorf("the provider has %+v", m)
		}
		s.once(o.ID, eventOrderAuthorized)
	})
}

// The provider of the first attempt does not answer, so no second one is begun.
func TestPayment_byAnotherMethodWhileTheFirstCantBeClosed(t *testing.T) {
	t.Parallel()
	changeMethod(t, func(s *shop, o *order, first *payment, other string) {
		s.fail(opExpire, fault500, fault500, fault500)
		if url, err := s.engine.startAttempt(s.t.Context(), o.ID, other, siteOrigin); err != errClosing {
			s.t.Errorf("the guest is sent to %q, %v", url, err)
		}
		s.states(o.ID, orderOpen, paymentPending)
		s.work()
		time.Sleep(10 * time.Minute)
		s.method = other
		second := s.start(o.ID)
		if second.Method != other || s.money(first).payable {
			s.t.Errorf("the second attempt is by %s, the first has %+v", second.Method, s.money(first))
		}
	})
}

func TestVipps_authorisationThatLapsesIsExpiredAndNotCancelled(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]struct {
		event string
		early time.Duration
		order string
		p     string
	}{
		"lapsed":        {"CANCELLED", 0, orderExpired, paymentExpired},
		"said so":       {"EXPIRED", days(3), orderExpired, paymentExpired},
		"in the portal": {"CANCELLED", days(1), orderCancelled, paymentCancelled},
	}, func(s *shop, c struct {
		event string
		early time.Duration
		order string
		p     string
	}) {
		o, p := s.authorized()
		s.accept(o.ID)
		time.Sleep(time.Until(p.CaptureBefore.Add(-c.early)))
		s.vipps.on(p.ID, func(v *vippsFakePayment) {
			v.cancelled = v.authorized
			s.vipps.record(v, c.event, v.amount, "")
		})
		s.settle(p)
		s.states(o.ID, c.order, c.p)
	}, providerVipps)
}

func TestVipps_refundsOfOnePspReferenceAreTold(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		ours := s.refund(o.ID, 500)
		s.settle(p)
		s.settle(p)
		for range 3 { // in the portal, two of them alike within a second
			s.vipps.portalRefund(p.ID, 300)
			time.Sleep(300 * time.Millisecond)
		}
		one := s.attempt(o.ID)
		s.vipps.on(p.ID, func(v *vippsFakePayment) {
			for _, e := range v.events {
				e["pspReference"] = *s.refundsOf(o.ID)[0].ProviderID
			}
		})
		is := func(n int, refunded int64, state string) {
			t.Helper()
			s.settle(one)
			s.states(o.ID, orderPartRefunded, state)
			all := s.refundsOf(o.ID)
			if len(all) != n || all[0].ID != ours.ID || s.row(o.ID).Refunded != refunded {
				t.Fatalf("%+v", all)
			}
			s.accountedFor()
		}
		is(4, 1400, paymentPartRefunded)
		is(4, 1400, paymentPartRefunded) // told again
		s.vipps.on(p.ID, func(v *vippsFakePayment) { slices.Reverse(v.events) })
		is(4, 1400, paymentPartRefunded)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[1:] }) // the list lags
		is(4, 1400, paymentPartRefunded)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { // rows above the aggregate
			v.events = append(v.events, maps.Clone(v.events[0]), maps.Clone(v.events[0]))
			v.events[len(v.events)-1]["amount"] = vippsMoney{"NOK", 299}
			v.events[len(v.events)-2]["amount"] = vippsMoney{"NOK", 298}
		})
		is(4, 1400, paymentReview)
		equals(t, "the reason", valueOr(s.attempt(o.ID).Reason, ""), reasonRefundsDiffer)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[:len(v.events)-2] })
		is(4, 1400, paymentPartRefunded)
	}, providerVipps)
}
