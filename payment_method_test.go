package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
		"the wine is given back, then not accepted": {func(s *shop, o *order, p *payment) {
			s.givenBackThere(p, 2000)
			noWine(s, o, p)
		}, 3000, 0, 1800, 46, 90, orderPaid, paymentPartRefunded, "found 2000"},
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
		"all is accepted, and a late one of ours makes no room": {func(s *shop, o *order, p *payment) {
			s.accept(o.ID)
			s.fail(opRefund, fault500After)
			s.refund(o.ID, 2000)
			s.settle(p)
			s.late(p)
			s.givenBackThere(p, 1000)
			s.inReview(p, reasonRefundPending, 1)
			s.refundsBecome(p, "succeeded")
		}, 2000, 3000, 1200, 30, 60, orderPartRefunded, paymentPartRefunded, "asked 2000, found 1000"},
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

// TestTwint_whatWasGivenBackThereIsToldAfterThatTheOrderIsCancelled has all be given back while the order waits.
func TestTwint_whatWasGivenBackThereIsToldAfterThatTheOrderIsCancelled(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.charged()
		s.givenBackThere(p, o.Total)
		s.states(o.ID, orderCancelled, paymentRefunded)
		told := ""
		s.check(s.store.each(`SELECT type FROM events WHERE subject_id = ? ORDER BY seq DESC LIMIT 2`, []any{o.ID},
			func(scan func(...any) error) (err error) {
				var kind string
				err = scan(&kind)
				told = kind + " " + told
				return err
			}))
		equal(t, "the last events", told, "order.cancelled order.refunded ")
	})
}

// TestTwint_countsOnTheDayOfItsCaptureAndItsRefundLater refuses a pre-order a week after it was charged.
func TestTwint_countsOnTheDayOfItsCaptureAndItsRefundLater(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.charged(func(o *order) { o.WantedAt = newStamp(time.Now().Add(days(10))) })
		dateOf := func(at time.Time) string { return at.Add(-4 * time.Hour).UTC().Format(time.DateOnly) }
		s.change(func(t *tx) error {
			t.freezeDay(s.account, dateOf(o.PaidAt.Time), "CHF")
			return nil
		})
		time.Sleep(days(7))
		s.decideOn(o.ID, plainReject)
		s.settle(p)
		day := func(at time.Time) int {
			return s.count(`SELECT coalesce(sum(iif(what IN ('sale', 'delivery'), gross, -gross)), 0)
				FROM revenue_sums WHERE date = ?`, dateOf(at))
		}
		equal(s.t, "the day it was charged", day(o.PaidAt.Time), 4200)
		equal(s.t, "the day it was given back", day(time.Now()), -4200)
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
