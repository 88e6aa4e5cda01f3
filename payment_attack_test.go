package main

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Stories of accidents, and of those who would profit from them: each led to a state from which nothing led on,
// or to money that nobody counted.

func TestPayment_whoseCaptureWasRefusedIsCapturedOnceItIsAcceptedAgain(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.work()
		o, _ := s.authorized()
		s.fail(opCapture, fault400, fault400, fault400) // the restaurant owes the provider a document
		s.accept(o.ID)
		s.await(o.ID, orderAccepted, paymentReview)
		time.Sleep(time.Minute)
		s.states(o.ID, orderAccepted, paymentReview)
		auth := s.seller()
		before := s.dump()
		s.post("/orders/"+o.ID+"/capture", "", auth).is(409, "order_state").contains(reasonRefused, "accept it again")
		s.unchanged(before)
		s.accept(o.ID)
		s.await(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderReview, eventOrderPaid)
	})
}

func TestPayment_isNotInReviewBecauseItsProviderIsBroken(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.work()
		o, _ := s.authorized()
		keys := map[string]bool{}
		s.provider.watch = func(r *http.Request, acted *testAnswer) *testAnswer {
			key := r.Header.Get("Idempotency-Key")
			if callKind(r.Method+" "+r.URL.Path) != opCapture || acted != nil || keys[key] || len(keys) > maxRefused {
				return nil
			}
			keys[key] = true // the provider replays it
			return &testAnswer{status: 500, body: []byte(`{"error":{"type":"api_error"}}`)}
		}
		s.accept(o.ID)
		s.await(o.ID, orderPaid, paymentCaptured)
		equals(t, "events order.review", s.events(o.ID)[eventOrderReview], 0)
	})
}

func TestPayment_whoseCaptureWasRefusedCanBeCapturedAtTheProvider(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.fail(opCapture, fault400, fault400, fault400)
		s.accept(o.ID)
		s.settle(p)
		s.states(o.ID, orderAccepted, paymentReview)
		s.capturedThere(p, o.Total)
		s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderReview, eventOrderPaid)
	})
}

func TestPayment_thatIsKnownAgainLeavesReview(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]bool{"authorized": false, "paid": true}, func(s *shop, paid bool) {
		o, p := s.authorized()
		if paid {
			s.accept(o.ID)
			s.settle(p)
		}
		session := *s.provider.session(*p.SessionID)
		s.provider.session(*p.SessionID).id = "cs_elsewhere"
		if got := s.settle(p); got.State != paymentReview || valueOr(got.Reason, "") != reasonUnknown {
			s.t.Fatalf("an attempt that the provider does not know is %s", got.State)
		}
		s.provider.session("cs_elsewhere").id = session.id
		if s.settle(p); !paid {
			s.states(o.ID, orderAuthorized, paymentAuthorized)
			s.accept(o.ID)
			s.settle(p)
		}
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderAuthorized, eventOrderReview, eventOrderPaid)
		equals(s.t, "the reason that is left", valueOr(s.attempt(o.ID).Reason, ""), "")
	})
}

func TestPayment_thatAnsweredOnceIsNotGivenUpBecauseItIsNotFoundForAMinute(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		id := *p.SessionID
		s.authorize(p)
		s.provider.session(id).id = "cs_elsewhere"
		s.settle(p)
		s.states(o.ID, orderOpen, paymentPending)
		s.provider.session("cs_elsewhere").id = id
		s.work(2 * time.Second) // nobody comes back, and no webhook comes
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		o = s.place()
		p = s.start(o.ID)
		s.provider.session(*p.SessionID).id = "cs_gone"
		s.await(o.ID, orderOpen, paymentFailed)
	})
}

func TestPayment_thatTheProviderWouldNotCreateForItsKeysHasFailed(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		s.fail(opCreate, fault401)
		_, err := s.engine.startAttempt(s.t.Context(), o.ID, methodCard, siteOrigin)
		equals(t, "what the guest is told", err, error(errProviderDown))
		s.states(o.ID, orderOpen, paymentFailed) // so that another method, or cash, can pay it
		equals(t, "events that the keys are refused", s.eventsOf(eventConnectionRefused), 1)
		time.Sleep(time.Second) // so that the attempts sort by their ids
		s.start(o.ID)
		equals(t, "events that they are accepted", s.eventsOf(eventConnectionRestored), 1)
	})
}

func TestPayments_offAskNoProvider(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		s.authorize(p)
		s.takeCalls()
		before := s.dump()
		var idle atomic.Bool
		idle.Store(true)
		s.engine.idle = idle.Load
		for _, method := range []string{methodCard, methodMobile} {
			if _, err := s.engine.startAttempt(s.t.Context(), o.ID, method, siteOrigin); err != errMethod {
				t.Errorf("the guest is told %v", err)
			}
		}
		stop := s.work()
		time.Sleep(time.Hour)
		if calls := s.takeCalls(); len(calls) != 0 {
			t.Errorf("the provider is asked: %q", calls)
		}
		s.unchanged(before)
		idle.Store(false)
		time.Sleep(time.Hour)
		stop()
		equal(t, "asked once it may be", len(s.takeCalls()) > 0, true)
	})
}

// manyDue adds attempts of another account's connection that are all overdue, as after a day without network.
func (s *shop) manyDue(n int) {
	s.t.Helper()
	other, mine := s.addAccount("a tenant with many"), s.place()
	s.sql(`INSERT INTO payment_connections (id, account_id, provider, live, secrets, created_at)
		VALUES ('con_other', ?, 'stripe', 0, x'00', '1999-01-01T00:00:00Z')`, other)
	s.sql(`WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO payments (id, order_id, account_id, connection_id, provider, method, state, amount, currency,
			captured, due_at, polls, created_at, captured_at)
		SELECT printf('pay_%026d', i), ?, ?, 'con_other', 'stripe', 'card', 'captured', 100, 'CHF', 100,
			'1999-12-31T00:00:00Z', 1, '1999-12-30T00:00:00Z', '1999-12-30T00:00:00Z' FROM n`, n, mine.ID, other)
}

func TestPaymentWorker_manyOfAnotherAccountDelayNobody(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.manyDue(4 * dueAtOnce)
		o, _ := s.authorized()
		s.work()
		time.Sleep(10 * time.Second)
		s.accept(o.ID)
		time.Sleep(5 * time.Second)
		s.states(o.ID, orderPaid, paymentCaptured)
		if n := s.count(`SELECT count(*) FROM payments WHERE due_at < '2000-01-01T00:00:00Z'`); n == 0 ||
			n == 4*dueAtOnce {
			t.Errorf("%d of the others are overdue", n)
		}
	})
}

func TestQuery_aboutPaymentsReadsNoMoreThanItsAnswerNeeds(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		reads, writes := questions(s.store.queries), questions(s.store.writer.queries)
		s.work()
		o, p := s.paid()
		s.provider.dispute(*p.IntentID, "needs_response")
		s.refund(o.ID, 100)
		s.deliver()
		s.await(o.ID, orderPartRefunded, paymentPartRefunded)
		o, _ = s.authorized()
		s.fail(opCapture, fault400, fault400, fault400)
		s.accept(o.ID)
		s.await(o.ID, orderAccepted, paymentReview)
		o, _ = s.authorized()
		s.fail(opCapture, fault500, fault401)
		s.accept(o.ID)
		s.await(o.ID, orderPaid, paymentCaptured)
		_, err := s.engine.methodsFor(s.place())
		s.check(err)
		s.check(s.engine.settleOrder(s.t.Context(), o.ID))
		_, err = s.store.paymentTotals(time.Now())
		s.check(err)
		_, err = s.store.troubledPayments(newStamp(time.Now()), 10)
		s.check(err)
		asked := slices.Concat(reads(), writes())
		for _, query := range asked {
			few := strings.Contains(query, "payment_connections WHERE failing_since") || // one row of a connection
				strings.Contains(query, "AND q.error = ?") || // of operations that are pending
				strings.Contains(query, "ORDER BY due_at LIMIT ?2)) w") || // maxCounted of each kind
				strings.Contains(query, "JOIN disputes") || strings.Contains(query, "ORDER BY p.due_at") ||
				strings.Contains(query, "state = 'review' ORDER BY id LIMIT ?2")
			for _, step := range s.plan(query) {
				if why := readsTooMuch(query, step); why != "" && !few {
					t.Errorf("%s: %s\n%s", why, step, strings.Join(strings.Fields(query), " "))
				}
			}
		}
		for _, part := range []string{"ORDER BY due_at DESC", "state = 'refused'", "WHERE intent_id = ?",
			"INTO disputes",
			"ORDER BY order_id LIMIT ?3) WHERE capture_before <", "failing_since = ?1", "state = 'pending'",
			"ORDER BY order_id LIMIT ?3)\n\t\t\tWHERE capture_before <"} {
			if !slices.ContainsFunc(asked, func(query string) bool { return strings.Contains(query, part) }) {
				t.Errorf("no query has %q: the test sees too little", part)
			}
		}
	})
}

func TestPayment_whoseAnswerCanNotBeWrittenIsAskedForLater(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, _ := s.authorized()
		s.change(func(t *tx) error {
			_, err := t.exec(`CREATE TRIGGER broken BEFORE UPDATE ON payments WHEN new.captured > 0
				BEGIN SELECT RAISE(ABORT, 'broken'); END`)
			return err
		})
		s.work()
		s.accept(o.ID)
		time.Sleep(time.Minute)
		if calls := s.takeCalls(); len(calls) > 30 {
			t.Errorf("in a minute the provider is asked %d times", len(calls))
		}
		s.change(func(t *tx) error { _, err := t.exec(`DROP TRIGGER broken`); return err })
		s.await(o.ID, orderPaid, paymentCaptured)
	})
}

func TestStripe_timesThatCanNotBeAreNotBelieved(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.work()
		o, p := s.authorized()
		intent := s.provider.session(*p.SessionID).intent
		right := intent.captureBefore
		intent.captureBefore = 1 << 60
		s.check(s.engine.settle(s.t.Context(), p.ID))
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		intent.captureBefore = right
		s.accept(o.ID)
		s.await(o.ID, orderPaid, paymentCaptured)
		s.provider.createRefund("", map[string][]string{"payment_intent": {intent.id}, "amount": {"100"}})
		intent.refunds[0].created = 1 << 60
		s.check(s.engine.settle(s.t.Context(), p.ID))
		s.states(o.ID, orderPaid, paymentCaptured)
	})
}

func TestRefund_thatFailedHereAndWasDoneThereCounts(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		s.refund(o.ID, 1000)
		s.fail(opRefund, fault400)
		s.settle(p)
		refunds := s.refundsOf(o.ID)
		if refunds[0].State != refundFailed {
			t.Fatalf("the refund is %s", refunds[0].State)
		}
		s.provider.createRefund("", map[string][]string{"payment_intent": {*p.IntentID}, "amount": {"1000"},
			"metadata[payment]": {p.ID}, "metadata[refund]": {refunds[0].ID}})
		s.settle(p)
		s.states(o.ID, orderPartRefunded, paymentPartRefunded)
		if o = s.row(o.ID); o.Refunded != 1000 {
			t.Errorf("%d count as given back", o.Refunded)
		}
		s.settle(p)
		s.once(o.ID, eventOrderRefunded, eventOrderRefundFailed)
	})
}

func TestPayment_isNotCapturedAgainWhileTheProviderTellsTheOldState(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.accept(o.ID)
		s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		// Its pages of the state are behind by a minute, and we have not seen the capture yet.
		s.sql(`UPDATE orders SET state = 'accepted', capture = 1, paid_at = NULL, ended_at = NULL WHERE id = ?`, o.ID)
		s.sql(`UPDATE payments SET state = 'authorized', captured = 0, captured_at = NULL WHERE id = ?`, p.ID)
		s.atProvider(p, func(x *testSession) {
			x.intent.status, x.intent.received, x.intent.capturable = "requires_capture", 0, o.Total
		})
		s.takeCalls()
		s.settle(p)
		s.capturedThere(p, o.Total)
		s.work()
		time.Sleep(time.Minute)
		s.states(o.ID, orderPaid, paymentCaptured)
		equals(t, "further captures", s.asked(opCapture), 0)
	})
}

func TestPayment_thatEndedAndWasCapturedAllTheSameIsLookedAtDaily(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.sql(`UPDATE orders SET state = 'expired', ended_at = ? WHERE id = ?`, newStamp(time.Now()), o.ID)
		s.sql(`UPDATE payments SET state = 'failed', ended_at = ? WHERE id = ?`, newStamp(time.Now()), p.ID)
		s.capturedThere(p, o.Total)
		p = s.settle(p)
		s.states(o.ID, orderExpired, paymentReview)
		s.once(o.ID, eventOrderReview)
		if p.DueAt.IsZero() || !p.EndedAt.IsZero() {
			t.Errorf("it is due %s, and ended %s", p.DueAt, p.EndedAt)
		}
	})
}

func TestPayment_keysThatMayDoSomeThingsAreRefusedOnce(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, _ := s.paid()
		s.authorized() // others are looked at meanwhile, which the keys may
		may := false
		s.provider.watch = func(r *http.Request, _ *testAnswer) *testAnswer {
			if may || callKind(r.Method+" "+r.URL.Path) != opRefund {
				return nil
			}
			return &testAnswer{status: 403, body: []byte(`{"error":{"type":"invalid_request_error"}}`)}
		}
		s.refund(o.ID, 0)
		s.work(5 * time.Second)
		time.Sleep(65 * time.Minute)
		equals(t, "events that the keys are refused", s.eventsOf(eventConnectionRefused), 1)
		equals(t, "events that they are accepted", s.eventsOf(eventConnectionRestored), 0)
		may = true
		s.await(o.ID, orderRefunded, paymentRefunded)
		equals(t, "events that they are accepted", s.eventsOf(eventConnectionRestored), 1)
	})
}

func TestPayment_isNotUnpaidByAProviderThatLags(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		for status, capturable := range map[string]int64{"requires_capture": o.Total, "canceled": 0} {
			s.atProvider(p, func(x *testSession) { // as a replica of the provider's that has not caught up
				x.intent.status, x.intent.received, x.intent.capturable = status, 0, capturable
			})
			p = s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			if p.Captured != o.Total || p.DueAt.IsZero() {
				t.Errorf("%d captured, asked again at %s", p.Captured, p.DueAt)
			}
		}
		equals(t, "cancellations", s.asked(opCancel), 0)
		s.once(o.ID, eventOrderPaid)
	})
}

// capturedDead returns an order that was rejected, whose money somebody has captured on the provider's pages all the
// same, and its attempt, which is in review.
func (s *shop) capturedDead() (*order, *payment) {
	s.t.Helper()
	o, p := s.authorized()
	s.decide(plainReject, o.ID)
	s.capturedThere(p, o.Total)
	p = s.settle(p)
	s.states(o.ID, orderCancelled, paymentReview)
	return s.row(o.ID), p
}

// inReview checks that an attempt is in review for a reason, that status says so, and how often it was told.
func (s *shop) inReview(p *payment, reason string, told int) {
	s.t.Helper()
	p = s.attempt(p.OrderID)
	trouble, err := s.store.troubledPayments(newStamp(time.Now()), 10)
	s.check(err)
	if p.State != paymentReview || valueOr(p.Reason, "") != reason || len(trouble) != 1 || trouble[0].reason != reason {
		s.t.Fatalf("the attempt is %s (%s), status tells of %+v", p.State, valueOr(p.Reason, ""), trouble)
	}
	equals(s.t, "events order.review", s.events(p.OrderID)[eventOrderReview], told)
}

// refundsBecome sets the state of all refunds of an attempt at the provider, and settles it.
func (s *shop) refundsBecome(p *payment, status string) {
	s.t.Helper()
	s.atProvider(p, func(x *testSession) {
		for _, r := range x.intent.refunds {
			r.status = status
		}
	})
	s.settle(p)
}

// accountedFor checks that what every attempt holds is what its order counts as paid, or in review.
func (s *shop) accountedFor() {
	s.t.Helper()
	wrong, err := s.store.unaccountedPayments(time.Now(), 1)
	s.check(err)
	for _, u := range wrong {
		s.t.Errorf("%s: %d of %s are neither paid nor in review", time.Now(), u.amount, u.id)
	}
}

// TestOrder_ofWhichTooMuchWasCapturedThereIsPaidOnceTheRestIsGivenBack has somebody capture all of an order that was
// accepted in part. What the refusal says can be done.
func TestOrder_ofWhichTooMuchWasCapturedThereIsPaidOnceTheRestIsGivenBack(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]func(*shop, *order, *payment){
		"there":            func(s *shop, _ *order, p *payment) { s.givenBackThere(p, 1850) },
		"there, in halves": func(s *shop, _ *order, p *payment) { s.givenBackThere(p, 1000); s.givenBackThere(p, 850) },
		"here": func(s *shop, o *order, p *payment) {
			path := "/orders/" + o.ID + "/refunds"
			s.post(path, `{"amount":1900}`, s.seller()).is(409, "refund_too_large").holds("refundable=1850")
			s.post(path, `{"amount":1000}`, s.seller()).is(200).holds("released=true")
			s.settle(p)
			s.post("/orders/"+o.ID+"/accept", `{}`, s.seller()).is(409, "order_state")
			s.post(path, `{}`, s.seller()).is(200).holds("amount=850")
			s.settle(p)
		},
	}, func(s *shop, giveBack func(*shop, *order, *payment)) {
		o, p := s.authorized()
		s.accept(o.ID, lineQuantity{0, 1})
		s.capturedThere(p, 4200)
		p = s.settle(p)
		s.inReview(p, reasonCaptureDiffers, 1)
		has(s.t, string(s.post("/orders/"+o.ID+"/accept", `{}`, s.seller()).is(409, "order_state").body),
			"18.50 CHF more than its total", "with a refund, here or on the provider's pages")
		giveBack(s, o, p)
		s.settle(p)
		s.states(o.ID, orderPaid, paymentPartRefunded)
		s.accountedFor()
		equals(s.t, "its revenue", s.sums(), 2350)
		equals(s.t, "what counts as refunded", s.row(o.ID).Refunded, 0)
		s.refund(o.ID, 0)
		s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		equals(s.t, "its revenue at last", s.sums(), 0)
	})
}

// TestOrder_whoseMoneyWasGivenBackThereIsCancelled has somebody capture all of an order that was accepted in part,
// on Stripe's pages, and give it back there.
func TestOrder_whoseMoneyWasGivenBackThereIsCancelled(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]bool{"accepted": true, "waiting": false}, func(s *shop, accepted bool) {
		o, p := s.authorized()
		s.capturedThere(p, 4200-100)
		if accepted {
			s.accept(o.ID, lineQuantity{0, 1})
		}
		s.settle(p)
		s.inReview(p, reasonCaptureDiffers, 1)
		s.givenBackThere(p, 4000)
		s.settle(p)
		s.inReview(p, reasonCaptureDiffers, 1)
		s.givenBackThere(p, 100)
		s.settle(p)
		s.states(o.ID, orderCancelled, paymentRefunded)
		s.accountedFor()
		s.post("/orders/"+o.ID+"/capture", ``, s.seller()).is(409, "order_state")
	})
}

func TestRefund_ofADeadOrderThatFailsPutsItsMoneyInReviewAgain(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.capturedDead()
		s.inReview(p, reasonDeadOrder, 1)
		for told := 2; told < 4; told++ {
			s.refund(o.ID, 0)
			s.settle(p)
			s.states(o.ID, orderCancelled, paymentRefunded)
			time.Sleep(3 * 24 * time.Hour)
			refunds := s.refundsOf(o.ID)
			s.provider.failRefund(*s.attempt(o.ID).IntentID, *refunds[len(refunds)-1].ProviderID)
			s.settle(p)
			s.inReview(p, reasonDeadOrder, told)
			s.accountedFor()
		}
		s.refund(o.ID, 0)
		s.fail(opRefund, fault400) // refused at once
		s.settle(p)
		s.inReview(p, reasonDeadOrder, 4)
		s.refund(o.ID, 1000) // a part
		s.settle(p)
		s.inReview(p, reasonDeadOrder, 4)
		s.accountedFor()
		s.refund(o.ID, 0)
		s.settle(p)
		s.states(o.ID, orderCancelled, paymentRefunded)
		s.accountedFor()
	})
}

func TestRefund_thatIsUnderWayForADayPutsItsPaymentInReview(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]bool{"of a dead order": true, "of a paid one": false}, func(s *shop, dead bool) {
		o, p := s.paid()
		told, order := 0, orderPaid
		if dead {
			o, p = s.capturedDead()
			told, order = 1, orderCancelled
		}
		s.refund(o.ID, 0)
		s.settle(p)
		s.refundsBecome(p, "pending") // the bank takes its time
		if s.sql(`UPDATE refunds SET state = 'pending', ended_at = NULL`); !dead {
			s.sql(`UPDATE orders SET state = 'paid' WHERE id = ?`, o.ID)
		}
		s.settle(p)
		stop := s.work(30 * time.Second)
		time.Sleep(refundLate - time.Minute)
		s.states(o.ID, order, paymentRefunded)
		time.Sleep(2 * time.Minute)
		s.inReview(p, reasonRefundPending, told+1)
		s.accountedFor()
		stop()
		if s.refundsBecome(p, "failed"); dead {
			s.inReview(p, reasonDeadOrder, told+2)
		} else {
			s.states(o.ID, orderPaid, paymentCaptured)
		}
		s.accountedFor()
		s.refund(o.ID, 0)
		s.settle(p)
		s.states(o.ID, map[bool]string{true: orderCancelled, false: orderRefunded}[dead], paymentRefunded)
		s.accountedFor()
	})
}

func TestRefund_thatTheKeysMayNotMakeIsInReviewAfterADay(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		s.provider.watch = func(r *http.Request, _ *testAnswer) *testAnswer {
			if callKind(r.Method+" "+r.URL.Path) != opRefund {
				return nil
			}
			return &testAnswer{status: 403, body: []byte(`{"error":{"type":"invalid_request_error"}}`)}
		}
		s.refund(o.ID, 0)
		s.work(30 * time.Second)
		time.Sleep(refundLate - time.Hour)
		equals(t, "what the refund says", valueOr(s.refundsOf(o.ID)[0].Failure, ""), reasonDenied)
		s.states(o.ID, orderPaid, paymentCaptured)
		time.Sleep(time.Hour + deniedDelay + deniedDelay/2)
		s.inReview(p, reasonRefundPending, 1)
		s.accountedFor()
		s.provider.watch = nil
		s.await(o.ID, orderRefunded, paymentRefunded)
		equals(t, "what the refund says", valueOr(s.refundsOf(o.ID)[0].Failure, ""), "")
		s.accountedFor()
		o, _ = s.paid()
		s.sql(`UPDATE payment_connections SET failing_since = created_at`)
		s.post("/orders/"+o.ID+"/refunds", `{"amount":1}`, s.seller()).is(200).holds(`failure="keys_refused"`)
	})
}

func TestRefund_foundWhileOneOfOursFailsHasAllOfTheVAT(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		s.refund(o.ID, 1500)
		s.provider.createRefund("", map[string][]string{"payment_intent": {*p.IntentID}})
		ours, found := refund{}, refund{}
		read := func() {
			for _, f := range s.refundsOf(o.ID) {
				if f.Source == sourceOurs {
					ours = f
				} else {
					found = f
				}
			}
		}
		s.beforeKind(opRefund, func() { // ours is still under way
			s.recordRevenue()
			read()
			if found.parts() != o.Total-1500 || found.Amount != o.Total {
				t.Errorf("%d of the %d that were found have a rate", found.parts(), found.Amount)
			}
			equals(t, "what is left", s.row(o.ID).divide(s.attempt(o.ID), s.refundsOf(o.ID)).kept.amount(), 0)
		})
		s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		if read(); ours.State != refundFailed || !slices.Equal(found.VAT, o.VAT) {
			t.Errorf("the refunds are %+v and %+v, the order has %+v", ours, found, o.VAT)
		}
		s.recordRevenue()
		facts, err := s.store.factsOf(o.ID)
		s.check(err)
		sold := map[int64]int64{}
		for _, fact := range facts {
			for _, f := range fact.Figures {
				if sold[f.Rate] += f.received(); f.What == figureSale || f.What == figureDelivery {
					sold[-1-f.Rate] += f.VAT
				} else {
					sold[-1-f.Rate] -= f.VAT
				}
			}
		}
		for rate, sum := range sold {
			equals(t, "what is left of the revenue", [2]int64{rate, sum}, [2]int64{rate, 0})
		}
		s.accountedFor()
	})
}

func TestRefund_whatTheBankHasTakenBackIsNotLeft(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]bool{"of a dead order": true, "of a paid one": false}, func(s *shop, dead bool) {
		o, _ := s.paid()
		if dead {
			o, _ = s.capturedDead()
		}
		p := s.attempt(o.ID)
		s.provider.dispute(*p.IntentID, "needs_response")
		s.provider.dispute(*p.IntentID, "lost")
		s.settle(p)
		s.accountedFor()
		s.states(o.ID, map[bool]string{true: orderCancelled, false: orderPaid}[dead], paymentCaptured)
		s.post("/orders/"+o.ID+"/refunds", "", s.seller()).is(409, "refund_too_large").holds(`refundable=0`)
		s.provider.dispute(*p.IntentID, "won") // after all
		if s.settle(p); dead {
			s.inReview(p, reasonDeadOrder, 2)
		}
		s.accountedFor()
		s.post("/orders/"+o.ID+"/refunds", "", s.seller()).is(200)
	})
}

func TestCheck_namesMoneyThatNoOrderAccountsFor(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderAuthorized)
	s.post("/orders/"+o.ID+"/reject", "", s.seller()).is(200)
	s.sql(`UPDATE payments SET state = 'captured', authorized = 0, captured = 5900 WHERE order_id = ?`, o.ID)
	s.sql(`UPDATE payment_connections SET removed_at = created_at`) // its keys are none
	out, err := s.command("check")
	if err == nil {
		t.Error("check succeeds")
	}
	has(t, out, "payments: pay_", "differs by 59.00 CHF", "'widgetd order settle "+o.ID+"'")
	s.sql(`UPDATE payments SET state = 'review', reason = 'order_is_dead' WHERE order_id = ?`, o.ID)
	has(t, s.must("check"), "ok: ")
}

// Somebody has paid, or the goods are handed over, while the service is away. It is back the next day.
func TestPayment_countsWhenItWasCapturedAndNotWhenThatIsNoticed(t *testing.T) {
	t.Parallel()
	card := func(s *shop) *payment {
		o, p := s.authorized()
		s.accept(o.ID)
		time.Sleep(3*time.Hour + 35*time.Minute)
		s.capturedThere(p, o.Total)
		return p
	}
	dated := func(unix int64) func(s *shop) *payment {
		return func(s *shop) *payment {
			p := card(s)
			s.atProvider(p, func(x *testSession) { x.intent.capturedAt = unix })
			return p
		}
	}
	late := func(p *payment) stamp { return p.CheckedAt }
	made := func(p *payment) stamp { return p.CreatedAt }
	then := func(p *payment) stamp { return p.CreatedAt.after(3*time.Hour + 35*time.Minute) }
	for name, c := range map[string]struct {
		provider string
		pay      func(s *shop) *payment
		at       func(p *payment) stamp
	}{
		"card": {providerStripe, card, then},
		"TWINT": {providerStripe, func(s *shop) *payment {
			time.Sleep(3*time.Hour + 35*time.Minute)
			s.twint()
			p := s.start(s.place().ID)
			s.authorize(p)
			return p
		}, made},
		"Vipps": {providerVipps, func(s *shop) *payment {
			o, p := s.authorized()
			s.accept(o.ID)
			time.Sleep(3*time.Hour + 35*time.Minute)
			s.vipps.portalCapture(p.ID, o.Total)
			return p
		}, then},
		"Vipps without its list": {providerVipps, func(s *shop) *payment {
			o, p := s.authorized()
			s.accept(o.ID)
			s.vipps.portalCapture(p.ID, o.Total)
			s.fail("events", fault404)
			return p
		}, late},
		"at a time to come":       {providerStripe, dated(bubbleStart.Add(days(2)).Unix()), late},
		"before it was asked for": {providerStripe, dated(bubbleStart.Add(-days(2)).Unix()), made},
		"at no time":              {providerStripe, dated(0), late},
		"accepted after all": {providerStripe, func(s *shop) *payment {
			o, p := s.authorized()
			s.decide(cancelOrder, o.ID)
			time.Sleep(3*time.Hour + 35*time.Minute)
			s.capturedThere(p, o.Total)
			s.settle(p)
			s.inReview(p, reasonDeadOrder, 1)
			time.Sleep(time.Hour)
			s.accept(o.ID)
			return p
		}, then},
		"with a key that may not read it": {providerStripe, func(s *shop) *payment {
			p := card(s)
			s.provider.watch = func(r *http.Request, _ *testAnswer) *testAnswer {
				if strings.Contains(r.URL.RawQuery, "balance_transaction") {
					return testFailure(403, "invalid_request_error", "more_permissions_required")
				}
				return nil
			}
			return p
		}, late},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) {
				p := c.pay(s)
				time.Sleep(8 * time.Hour)
				if name == "Vipps without its list" {
					s.check(s.engine.settle(s.t.Context(), p.ID)) // which a proxy has kept back
					equals(t, "captured", s.attempt(p.OrderID).Captured, 0)
					s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[:1] })
				}
				p = s.settle(p)
				o := s.row(p.OrderID)
				equals(t, "paid at", o.PaidAt, c.at(p))
				equals(t, "events that its keys are refused", s.eventsOf(eventConnectionRefused), 0)
				if p.atOnce() {
					equals(t, "the time to accept it", time.Until(o.AcceptBy.Time), 30*time.Minute)
				}
				equals(t, "its revenue", s.sums(), int(o.Total))
				day := "1999-12-31" // until 04:00
				if !o.PaidAt.Before(bubbleStart.Add(4 * time.Hour)) {
					day = "2000-01-01"
				}
				s.counts(1, `SELECT count(DISTINCT date) FROM revenue_sums WHERE date = ?`, day)
			}, c.provider)
		})
	}
}

// An accountant gives money back in Vipps' portal, and no event tells of it, or one that can't be read.
func TestVipps_givenBackThereWithoutAnEventIsInReviewAfterAnHour(t *testing.T) {
	t.Parallel()
	tells := func(v *vippsFakePayment, f *vippsFake) { f.record(v, "REFUNDED", 4200, "portal") }
	inShops(t, map[string]func(v *vippsFakePayment, f *vippsFake){
		"none": func(*vippsFakePayment, *vippsFake) {},
		"without its amount": func(v *vippsFakePayment, f *vippsFake) {
			tells(v, f)
			delete(v.events[len(v.events)-1], "amount")
		},
	}, func(s *shop, tell func(*vippsFakePayment, *vippsFake)) {
		o, p := s.paid()
		s.vipps.on(p.ID, func(v *vippsFakePayment) { v.refunded = 4200; tell(v, s.vipps) })
		s.settle(p)
		s.states(o.ID, orderPaid, paymentRefunded)
		since := newStamp(time.Now())
		time.Sleep(30 * time.Minute)
		s.settle(p)
		s.states(o.ID, orderPaid, paymentRefunded)
		equals(s.t, "when it is looked at", s.attempt(o.ID).DueAt, since.after(time.Hour))
		stop := s.work(time.Minute)
		time.Sleep(32 * time.Minute)
		s.inReview(p, reasonRefundsDiffer, 1)
		time.Sleep(days(2))
		stop()
		s.inReview(p, reasonRefundsDiffer, 1)
		s.sql(`UPDATE payments SET reason = ? WHERE id = ?`, reasonRefused, p.ID)
		s.settle(p) // all is given back, but whose that is, nobody knows
		s.states(o.ID, orderPaid, paymentReview)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { tells(v, s.vipps) })
		s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		equals(s.t, "revenue", s.sums(), 0)
	}, providerVipps)
}

// Vipps' list of events is late by some minutes, as often.
func TestVipps_givenBackThereWithALateEventIsNotInReview(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		for range 2 { // the second begins an hour of its own
			s.vipps.on(p.ID, func(v *vippsFakePayment) { v.refunded += 1000 })
			s.settle(p)
			time.Sleep(40 * time.Minute)
			s.vipps.on(p.ID, func(v *vippsFakePayment) { s.vipps.record(v, "REFUNDED", 1000, "portal") })
			s.settle(p)
			s.states(o.ID, orderPartRefunded, paymentPartRefunded)
		}
		equals(t, "events order.review", s.events(o.ID)[eventOrderReview], 0)
	}, providerVipps)
}

// A proxy knows no such path, a gateway finds a body too large, a firewall bans: none of them is the provider.
func TestPayment_whatSomethingInBetweenAnswersIsNoRefusal(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		between := []providerFault{fault404, fault413, fault404, fault403}
		o, p := s.authorized()
		s.accept(o.ID)
		s.handOver(p)
		s.fail(opCapture, between...)
		s.work(time.Second)
		s.await(o.ID, orderPaid, paymentCaptured)
		s.fail(opRefund, between...)
		s.refund(o.ID, 1000)
		s.await(o.ID, orderPartRefunded, paymentPartRefunded)
		s.fail("look", between...)
		time.Sleep(days(2))
		s.states(o.ID, orderPartRefunded, paymentPartRefunded)
		for _, kind := range []eventType{eventOrderReview, eventOrderRefundFailed} {
			equals(s.t, string(kind), s.events(o.ID)[kind], 0)
		}
		equals(s.t, "events that its keys are refused", s.eventsOf(eventConnectionRefused), 0)
	})
}

func TestPayment_waitsForAProviderForAQuarterOfAnHourAtMost(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		o, p := s.authorized()
		s.accept(o.ID)
		s.handOver(p)
		for _, kind := range []string{opCapture, "look"} {
			s.fail(kind, fault429Day)
			s.settle(p)
			if wait := time.Until(s.attempt(o.ID).DueAt.Time); wait < 10*time.Minute || wait > 15*time.Minute {
				s.t.Errorf("after a %s that is to wait for a day, it is due in %s", kind, wait)
			}
		}
	})
}
