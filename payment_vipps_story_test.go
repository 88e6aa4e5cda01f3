package main

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"
)

// Stories of payments by mobile phone, and of orders that can be paid by card and by mobile phone.

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
		equal(t, "the answer to the right one", s.postOfVipps(last), http.StatusNoContent)
		s.settle(p)
		s.states(o.ID, orderAuthorized, paymentAuthorized)
	}, providerVipps)
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
		equal(t, "the reason", valueOr(s.attempt(o.ID).Reason, ""), reasonRefundsDiffer)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[:len(v.events)-2] })
		is(4, 1400, paymentPartRefunded)
	}, providerVipps)
}
