package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

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
			equals(s.t, "sessions", len(s.provider.sessions), 1)
		} else {
			equals(s.t, "requests for a payment", s.asked(opCreate), 1)
		}
	})
}

func TestPayment_ofWebhooksThatRepeatAndComeInAnyOrder(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.work()
		o := s.place()
		p := s.start(o.ID)
		s.authorize(p)
		posts := s.takeNotices()
		for range 10 {
			posts[0]()
		}
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		s.accept(o.ID)
		s.await(o.ID, orderPaid, paymentCaptured)
		posts = append(posts, s.takeNotices()...)
		slices.Reverse(posts)
		for range 2 {
			for _, post := range posts {
				equals(t, "the answer to a late webhook", post(), http.StatusNoContent)
			}
		}
		time.Sleep(time.Minute)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderAuthorized, eventOrderAccepted, eventOrderPaid)
	})
}

func TestPayment_forAnOrderThatWasCancelledIsReleased(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		s.decide(cancelOrder, o.ID)
		s.authorize(p) // before the provider has closed it
		s.deliver()
		p = s.settle(p)
		s.states(o.ID, orderCancelled, paymentCancelled)
		if i := s.intent(p); i.status != "canceled" {
			t.Errorf("the money is still reserved: %s", i.status)
		}
	})
}

func TestPayment_ofAnotherAmountOrCurrencyIsInReviewAndNotCaptured(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]func(*testSession){
		reasonAmountDiffers: func(x *testSession) { x.amount = 1 },
		reasonOtherCurrency: func(x *testSession) { x.currency = "usd" },
	}, func(s *shop, change func(*testSession)) {
		o := s.place()
		p := s.start(o.ID)
		s.atProvider(p, change)
		s.authorize(p)
		p = s.settle(p)
		s.states(o.ID, orderOpen, paymentReview)
		s.once(o.ID, eventOrderReview)
		if !strings.HasSuffix(s.t.Name(), valueOr(p.Reason, "?")) || s.intent(p).received != 0 {
			s.t.Errorf("in review for %q, %d captured", valueOr(p.Reason, ""), s.intent(p).received)
		}
		trouble, err := s.store.troubledPayments(newStamp(time.Now()), 10)
		s.check(err)
		if len(trouble) != 1 || trouble[0].orderID != o.ID {
			s.t.Errorf("status tells of %+v", trouble)
		}
		s.work(10 * time.Second)
		time.Sleep(2 * time.Hour)
		s.states(o.ID, orderOpen, paymentReview)
		if err := s.store.update(s.t.Context(), func(t *tx) error {
			_, err := acceptOrder(t, anyAccount, o.ID, nil, actorCommand)
			return err
		}); err == nil {
			s.t.Error("it can be accepted")
		}
		s.decide(cancelOrder, o.ID)
		s.await(o.ID, orderCancelled, paymentCancelled)
		equals(s.t, "the provider's payment", s.intent(p).status, "canceled")
	})
}

func TestPayment_capturedOnTheProvidersOwnPages(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]func(s *shop, o *order, p *payment){
		"all": func(s *shop, o *order, p *payment) {
			s.capturedThere(p, o.Total)
			p = s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			s.wasCapturedThere(p, o.Total)
		},
		"a part": func(s *shop, o *order, p *payment) {
			s.capturedThere(p, 100)
			s.settle(p)
			s.states(o.ID, orderAuthorized, paymentReview)
			s.decide(cancelOrder, o.ID)
			s.refund(o.ID, 0)
			s.settle(p)
			s.states(o.ID, orderCancelled, paymentRefunded)
			s.once(o.ID, eventOrderReview, eventOrderRefunded)
		},
		"for a dead order": func(s *shop, o *order, p *payment) {
			s.decide(plainReject, o.ID)
			s.capturedThere(p, o.Total)
			p = s.settle(p)
			s.states(o.ID, orderCancelled, paymentReview)
			equals(s.t, "the reason of the review", valueOr(p.Reason, ""), reasonDeadOrder)
			s.accept(o.ID) // the restaurant delivers it all the same
			s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			s.once(o.ID, eventOrderReview, eventOrderPaid)
		},
	}, func(s *shop, story func(*shop, *order, *payment)) {
		o, p := s.authorized()
		story(s, o, p)
	})
}

func TestRefund_thatSomebodyMadeAtTheProviderBecomesARow(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		answer := s.provider.createRefund("", map[string][]string{"payment_intent": {*p.IntentID}, "amount": {"1500"}})
		if answer.status != http.StatusOK {
			t.Fatalf("the provider answers %d", answer.status)
		}
		s.deliver()
		s.settle(p)
		s.states(o.ID, orderPartRefunded, paymentPartRefunded)
		refunds := s.refundsOf(o.ID)
		if len(refunds) != 1 || refunds[0].Source != sourceProvider || refunds[0].Amount != 1500 ||
			refunds[0].State != refundSucceeded {
			t.Errorf("the refunds are %+v", refunds)
		}
		if err := s.store.update(s.t.Context(), func(t *tx) error {
			amount := int64(4000) // more than is left
			_, _, err := refundOrder(t, anyAccount, o.ID, refundWish{amount: &amount}, actorCommand)
			return err
		}); err == nil {
			t.Error("more is given back than is left")
		}
		s.refund(o.ID, 0)
		s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
	})
}

func TestRefund_thatFailsAfterItWasDone(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		f := s.refund(o.ID, 0)
		p = s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		refunds := s.refundsOf(o.ID)
		s.provider.failRefund(*p.IntentID, *refunds[0].ProviderID)
		s.deliver()
		s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderRefunded, eventOrderRefundFailed)
		if o = s.row(o.ID); o.Refunded != 0 {
			t.Errorf("%d count as given back", o.Refunded)
		}
		if again := s.refund(o.ID, 0); again.ID == f.ID {
			t.Error("the failed refund is used again")
		}
		s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
	})
}

func TestRefund_thatTheProviderRefusesHasFailed(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		s.provider.createRefund("", map[string][]string{"payment_intent": {*p.IntentID}})
		s.takeNotices()        // nobody has told us of it
		f := s.refund(o.ID, 0) // so this is too much
		s.settle(p)
		s.states(o.ID, orderRefunded, paymentRefunded)
		refunds := s.refundsOf(o.ID)
		states := map[string]string{}
		for _, r := range refunds {
			states[r.Source] = r.State
		}
		if states[sourceOurs] != refundFailed || states[sourceProvider] != refundSucceeded || refunds[0].ID == "" {
			t.Errorf("the refund %s and the provider's own: %v", f.ID, states)
		}
		if o = s.row(o.ID); o.Refunded != o.Total {
			t.Errorf("%d of %d count as given back", o.Refunded, o.Total)
		}
	})
}

func TestDispute_openedAndLost(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		s.provider.dispute(*p.IntentID, "needs_response")
		s.deliver()
		s.settle(p)
		equals(t, "the dispute", valueOr(s.row(o.ID).Dispute, ""), disputeOpen)
		s.provider.dispute(*p.IntentID, "lost")
		s.deliver()
		s.settle(p)
		s.settle(p)
		equals(t, "the dispute", valueOr(s.row(o.ID).Dispute, ""), disputeLost)
		equals(t, "events order.disputed", s.events(o.ID)[eventOrderDisputed], 2)
		s.states(o.ID, orderPaid, paymentCaptured)
	})
}

func TestDispute_inquiryTakesNothingUntilTheBankDoes(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		is := func(state string, taken int64, ofOrder string, inquiries, disputes int, closed bool) {
			t.Helper()
			s.deliver()
			s.settle(p)
			s.settle(p)
			s.accountedFor()
			s.recordRevenue()
			all, err := s.store.disputesOf(o.ID)
			s.check(err)
			due := newStamp(time.Unix(s.intent(p).disputes[0].created, 0).Add(days(14)))
			if len(all) != 1 || all[0].State != state || all[0].Taken != taken || all[0].ClosedAt.IsZero() == closed ||
				!all[0].EvidenceBy.Equal(due.Time) {
				t.Errorf("%+v, want %s, %d taken", all, state, taken)
			}
			equals(t, "the order's dispute", valueOr(s.row(o.ID).Dispute, ""), ofOrder)
			equals(t, "events order.inquiry", s.events(o.ID)[eventOrderInquiry], inquiries)
			equals(t, "events order.disputed", s.events(o.ID)[eventOrderDisputed], disputes)
			left := s.count(`SELECT sum(CASE what WHEN 'sale' THEN gross WHEN 'delivery' THEN gross
				WHEN 'dispute' THEN -gross ELSE 0 END) FROM revenue_sums`)
			equals(t, "the revenue", int64(left), o.Total-taken)
		}
		s.provider.dispute(*p.IntentID, "warning_needs_response")
		is(disputeInquiry, 0, "", 1, 0, false)
		reader := "Authorization: Bearer " + s.token(s.account, scopeEvents+" "+scopeOrders)
		has(t, s.get("/events", reader).is(200).body, `"evidence_by":"`)
		s.provider.dispute(*p.IntentID, "warning_under_review")
		is(disputeInquiry, 0, "", 1, 0, false)
		s.provider.dispute(*p.IntentID, "warning_closed")
		is(disputeInquiry, 0, "", 2, 0, true)
		s.provider.dispute(*p.IntentID, "needs_response") // the bank goes on
		is(disputeOpen, o.Total, disputeOpen, 2, 1, false)
		s.post("/orders/"+o.ID+"/refunds", "", s.seller()).is(409, "refund_too_large").holds(`refundable=0`)
		s.provider.dispute(*p.IntentID, "won")
		is(disputeWon, 0, disputeWon, 2, 2, true)
	})
}

func TestOrder_thatNobodyAcceptsIsReleased(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.work(5 * time.Second)
		chore := s.chore("orders can't expire")
		o := s.place()
		p := s.begin(o.ID)
		s.authorize(p)
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		time.Sleep(29 * time.Minute)
		s.check(chore(s.t.Context()))
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		time.Sleep(time.Minute + time.Second)
		s.check(chore(s.t.Context()))
		s.await(o.ID, orderExpired, paymentCancelled)
		s.once(o.ID, eventOrderAuthorized, eventOrderExpired)
	})
}

func TestOrder_thatExpiresWhileTheGuestIsAtTheProvider(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]bool{"and goes": false, "and pays at the last moment": true}, func(s *shop, pays bool) {
		chore := s.chore("orders can't expire")
		o := s.place()
		p := s.start(o.ID)
		time.Sleep(minOrderLife + time.Second)
		if pays {
			s.authorize(p)
		}
		s.check(chore(s.t.Context()))
		s.states(o.ID, orderOpen, paymentPending) // not yet: the provider is to say so
		s.settle(p)
		if pays {
			s.states(o.ID, orderAuthorized, paymentAuthorized)
			s.accept(o.ID)
			s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			return
		}
		s.states(o.ID, orderExpired, paymentExpired)
		s.once(o.ID, eventOrderExpired)
	})
}

func TestOrder_paidInCashWhileAnAttemptIsPending(t *testing.T) {
	t.Parallel()
	cases := map[string]bool{"which the guest leaves": false, "which the guest pays first": true}
	inShops(t, cases, func(s *shop, pays bool) {
		o := s.place()
		p := s.start(o.ID)
		if pays {
			s.authorize(p)
		}
		s.change(func(t *tx) error {
			_, err := payOutside(t, anyAccount, o.ID, methodCash, t.now, actorCommand)
			return err
		})
		s.states(o.ID, orderOpen, paymentPending)
		s.settle(p)
		if pays { // authorised wins, so that nobody pays twice
			s.states(o.ID, orderAuthorized, paymentAuthorized)
			return
		}
		s.states(o.ID, orderPaid, paymentExpired)
		equals(s.t, "the method", valueOr(s.row(o.ID).Method, ""), methodCash)
		s.once(o.ID, eventOrderPaid)
	})
}

func TestPayment_whoseAuthorizationEndsWarnsAndLapses(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		s.sql(`INSERT INTO account_settings (account_id, capture_on) VALUES (?, 'handover')`, s.account)
		s.accept(o.ID)
		s.work(time.Minute)
		time.Sleep(testAuthorization - endingNotice - 2*time.Hour)
		equals(t, "events order.ending, too early", s.events(o.ID)[eventOrderEnding], 0)
		time.Sleep(4 * time.Hour)
		s.once(o.ID, eventOrderEnding)
		if !strings.Contains(s.log.String(), "lapses") {
			t.Error("the log does not say so")
		}
		s.states(o.ID, orderAccepted, paymentAuthorized)
		time.Sleep(endingNotice)
		s.states(o.ID, orderExpired, paymentExpired)
		s.once(o.ID, eventOrderEnding, eventOrderExpired)
		equals(t, "the provider's payment", s.intent(p).status, "canceled")
	})
}

func TestPayment_ofAnAccountThatIsClosedIsReleased(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		s.account = s.addAccount("a tenant")
		s.change(func(t *tx) error { return t.addOrigin(s.account, "https://tenant.example") })
		s.connect(s.providerOfGuests())
		home := func(o *order) { o.ReturnURL = "https://tenant.example/thanks" }
		authorized, p := s.authorized(home)
		s.accept(authorized.ID)
		open := s.place(home)
		pending := s.start(open.ID)
		s.change(func(t *tx) error { return closeAccount(t, nouns(), s.account, actorCommand) })
		s.work()
		s.await(authorized.ID, orderCancelled, paymentCancelled)
		s.await(open.ID, orderCancelled, closedState(pending))
		if a, b := s.money(p), s.money(pending); a != (providersMoney{}) || b != (providersMoney{}) {
			s.t.Errorf("the provider has %+v and %+v", a, b)
		}
		_, err := s.engine.startAttempt(s.t.Context(), open.ID, s.method, siteOrigin)
		equals(s.t, "paying a closed account's order", err, error(errNotPayable))
	})
}

func TestPayment_asksNoMoreThanTwentyTimes(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		for range maxAttempts {
			time.Sleep(time.Second) // so that the attempts sort by their ids
			p := s.start(o.ID)
			s.atProvider(p, s.provider.endSession)
			s.settle(p)
			s.states(o.ID, orderOpen, paymentExpired)
		}
		if _, err := s.engine.startAttempt(s.t.Context(), o.ID, methodCard, siteOrigin); err != errAttemptLimit {
			t.Errorf("the attempt after the last: %v", err)
		}
	})
}

func TestPayment_ofAConnectionWhoseKeysAreRefused(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, _ := s.authorized()
		refuse := true
		s.provider.watch = func(*http.Request, *testAnswer) *testAnswer {
			if refuse {
				return &testAnswer{status: 401, body: []byte(`{"error":{"type":"invalid_request_error"}}`)}
			}
			return nil
		}
		s.accept(o.ID)
		s.work(10 * time.Second)
		time.Sleep(time.Hour)
		s.states(o.ID, orderAccepted, paymentAuthorized)
		conn, err := s.store.paymentConnection(anyAccount, s.connection)
		s.check(err)
		equals(t, "failing", conn.FailingSince.IsZero(), false)
		equals(t, "events that its keys are refused", s.eventsOf(eventConnectionRefused), 1)
		refuse = false
		s.await(o.ID, orderPaid, paymentCaptured)
		time.Sleep(time.Minute)
		equals(t, "events that it works again", s.eventsOf(eventConnectionRestored), 1)
	})
}

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
	})
}
