package main

import (
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
	inShop(t, func(s *shop) {
		o := s.place()
		// The provider acts, the guest pays, and its webhook is here before its answer, which is lost.
		s.fail(opCreate, faultTimeout)
		go s.engine.startAttempt(s.t.Context(), o.ID, methodCard, siteOrigin+"/return")
		time.Sleep(time.Second)
		s.states(o.ID, orderOpen, paymentCreated)
		s.provider.mu.Lock()
		session := s.provider.sessions[0].id
		s.provider.mu.Unlock()
		if !s.provider.tryCard(session, true) {
			t.Fatal("the guest can't pay")
		}
		s.deliver()
		s.work()
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		s.once(o.ID, eventOrderAuthorized)
		if n := len(s.provider.sessions); n != 1 {
			t.Errorf("%d sessions", n)
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
				if post() != http.StatusNoContent {
					t.Error("a late webhook is refused")
				}
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
	for reason, change := range map[string]func(*testSession){
		reasonAmountDiffers: func(x *testSession) { x.amount = 1 },
		reasonOtherCurrency: func(x *testSession) { x.currency = "usd" },
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) {
				o := s.place()
				p := s.start(o.ID)
				s.provider.mu.Lock()
				change(s.provider.session(*p.SessionID))
				s.provider.mu.Unlock()
				s.authorize(p)
				p = s.settle(p)
				s.states(o.ID, orderOpen, paymentReview)
				s.once(o.ID, eventOrderReview)
				if valueOr(p.Reason, "") != reason || s.intent(p).received != 0 {
					t.Errorf("in review for %q, %d captured", valueOr(p.Reason, ""), s.intent(p).received)
				}
				trouble, err := s.store.troubledPayments(newStamp(time.Now()), 10)
				s.check(err)
				if len(trouble) != 1 || trouble[0].orderID != o.ID {
					t.Errorf("status tells of %+v", trouble)
				}
				s.work(10 * time.Second)
				time.Sleep(2 * time.Hour)
				s.states(o.ID, orderOpen, paymentReview)
				if err := s.store.update(s.t.Context(), func(t *tx) error {
					_, err := acceptOrder(t, anyAccount, o.ID, nil, actorCommand)
					return err
				}); err == nil {
					t.Error("it can be accepted")
				}
				s.decide(cancelOrder, o.ID)
				s.await(o.ID, orderCancelled, paymentCancelled)
				if s.intent(p).status != "canceled" {
					t.Error("the money is still reserved")
				}
			})
		})
	}
}

func TestPayment_capturedOnTheProvidersOwnPages(t *testing.T) {
	t.Parallel()
	capture := func(s *shop, p *payment, amount int64) {
		s.provider.mu.Lock()
		defer s.provider.mu.Unlock()
		i := s.provider.session(*p.SessionID).intent
		i.status, i.received, i.capturable = "succeeded", amount, 0
	}
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		inShop(t, func(s *shop) {
			o, p := s.authorized()
			capture(s, p, o.Total)
			p = s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			operations, err := s.store.operationsOf(p.ID)
			s.check(err)
			if !slices.ContainsFunc(operations, func(op paymentOperation) bool {
				return op.Kind == opCapture && op.Source == sourceProvider
			}) {
				t.Errorf("the operations are %+v", operations)
			}
		})
	})
	t.Run("a part", func(t *testing.T) {
		t.Parallel()
		inShop(t, func(s *shop) {
			o, p := s.authorized()
			capture(s, p, 100)
			s.settle(p)
			s.states(o.ID, orderAuthorized, paymentReview)
			s.decide(cancelOrder, o.ID)
			s.refund(o.ID, 0)
			s.settle(p)
			s.states(o.ID, orderCancelled, paymentRefunded)
			s.once(o.ID, eventOrderReview, eventOrderRefunded)
		})
	})
	t.Run("for a dead order", func(t *testing.T) {
		t.Parallel()
		inShop(t, func(s *shop) {
			o, p := s.authorized()
			s.decide(rejectOrder, o.ID)
			capture(s, p, o.Total)
			p = s.settle(p)
			s.states(o.ID, orderCancelled, paymentReview)
			if valueOr(p.Reason, "") != reasonDeadOrder {
				t.Errorf("in review for %q", valueOr(p.Reason, ""))
			}
			s.accept(o.ID) // the restaurant delivers it all the same
			s.settle(p)
			s.states(o.ID, orderPaid, paymentCaptured)
			s.once(o.ID, eventOrderReview, eventOrderPaid)
		})
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
		refunds, err := s.store.refundsOf(o.ID)
		s.check(err)
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
		refunds, err := s.store.refundsOf(o.ID)
		s.check(err)
		s.provider.failRefund(*p.IntentID, *refunds[0].ProviderID)
		s.deliver()
		s.settle(p)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderRefunded, eventOrderRefundFailed)
		if o = s.order(o.ID); o.Refunded != 0 {
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
		refunds, err := s.store.refundsOf(o.ID)
		s.check(err)
		states := map[string]string{}
		for _, r := range refunds {
			states[r.Source] = r.State
		}
		if states[sourceOurs] != refundFailed || states[sourceProvider] != refundSucceeded || refunds[0].ID == "" {
			t.Errorf("the refund %s and the provider's own: %v", f.ID, states)
		}
		if o = s.order(o.ID); o.Refunded != o.Total {
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
		if got := valueOr(s.order(o.ID).Dispute, ""); got != disputeOpen {
			t.Errorf("the dispute is %q", got)
		}
		s.provider.dispute(*p.IntentID, "lost")
		s.deliver()
		s.settle(p)
		s.settle(p)
		if got := valueOr(s.order(o.ID).Dispute, ""); got != disputeLost {
			t.Errorf("the dispute is %q", got)
		}
		if n := s.events(o.ID)[eventOrderDisputed]; n != 2 {
			t.Errorf("%d events order.disputed", n)
		}
		s.states(o.ID, orderPaid, paymentCaptured)
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
	for name, pays := range map[string]bool{"and goes": false, "and pays at the last moment": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) {
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
		})
	}
}

func TestOrder_paidInCashWhileAnAttemptIsPending(t *testing.T) {
	t.Parallel()
	for name, pays := range map[string]bool{"which the guest leaves": false, "which the guest pays first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) {
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
				if got := valueOr(s.order(o.ID).Method, ""); got != methodCash {
					t.Errorf("paid by %s", got)
				}
				s.once(o.ID, eventOrderPaid)
			})
		})
	}
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
		if n := s.events(o.ID)[eventOrderEnding]; n != 0 {
			t.Error("it warns too early")
		}
		time.Sleep(4 * time.Hour)
		s.once(o.ID, eventOrderEnding)
		if !strings.Contains(s.log.String(), "lapses") {
			t.Error("the log does not say so")
		}
		s.states(o.ID, orderAccepted, paymentAuthorized)
		time.Sleep(endingNotice)
		s.states(o.ID, orderExpired, paymentExpired)
		s.once(o.ID, eventOrderEnding, eventOrderExpired)
		if s.intent(p).status != "canceled" {
			t.Error("the provider has it still")
		}
	})
}

func TestPayment_ofAnAccountThatIsClosedIsReleased(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.account = s.addAccount("a tenant")
		s.change(func(t *tx) error { return t.addOrigin(s.account, "https://tenant.example") })
		s.connect(providerStripe)
		home := func(o *order) { o.ReturnURL = "https://tenant.example/thanks" }
		authorized, p := s.authorized(home)
		s.accept(authorized.ID)
		open := s.place(home)
		pending := s.start(open.ID)
		s.change(func(t *tx) error { return shutAccount(t, s.account, actorCommand) })
		s.work()
		s.await(authorized.ID, orderCancelled, paymentCancelled)
		s.await(open.ID, orderCancelled, paymentExpired)
		if s.intent(p).status != "canceled" || s.provider.session(*pending.SessionID).status != "expired" {
			t.Error("the provider has them still")
		}
		_, err := s.engine.startAttempt(s.t.Context(), open.ID, methodCard, siteOrigin)
		if err != errNotPayable {
			t.Errorf("a closed account's order can be paid: %v", err)
		}
	})
}

func TestPayment_asksNoMoreThanTwentyTimes(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		for range maxAttempts {
			time.Sleep(time.Second) // so that the attempts sort by their ids
			p := s.start(o.ID)
			s.provider.mu.Lock()
			s.provider.endSession(s.provider.session(*p.SessionID))
			s.provider.mu.Unlock()
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
		o, p := s.authorized()
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
		if n := s.count(`SELECT count(*) FROM events WHERE type = ?`, eventConnectionRefused); conn.FailingSince.IsZero() || n != 1 {
			t.Errorf("failing since %s, %d events", conn.FailingSince, n)
		}
		refuse = false
		s.await(o.ID, orderPaid, paymentCaptured)
		time.Sleep(time.Minute)
		if n := s.count(`SELECT count(*) FROM events WHERE type = ?`, eventConnectionRestored); n != 1 {
			t.Errorf("%d events that it works again", n)
		}
		_ = p
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
			s.post(path, body, "Stripe-Signature", "t=1,v1=00").is(401, "invalid_signature")
			s.post(path, body).is(401, "invalid_signature")
		}
		s.unchanged(before)
	})
}
