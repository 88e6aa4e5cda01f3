package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Stories of accidents, and of those who would profit from them: each led to a state from which nothing led on,
// or to money that nobody counted.

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

// Against a tenant with many payments under way who would hold up the payments of others: 8 at once and 20 a second
// for each connection, of 32 in all.
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

func TestPayment_whoseAnswerCanNotBeWrittenIsAskedForLater(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, _ := s.authorized()
		s.change(func(t *tx) error {
			_, err := t.try(`CREATE TRIGGER broken BEFORE UPDATE ON payments WHEN new.captured > 0
				BEGIN SELECT RAISE(ABORT, 'broken'); END`)
			return err
		})
		s.work()
		s.accept(o.ID)
		time.Sleep(time.Minute)
		if calls := s.takeCalls(); len(calls) > 30 {
			t.Errorf("in a minute the provider is asked %d times", len(calls))
		}
		s.change(func(t *tx) error { _, err := t.try(`DROP TRIGGER broken`); return err })
		s.await(o.ID, orderPaid, paymentCaptured)
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
		equal(t, "cancellations", s.asked(opCancel), 0)
		s.once(o.ID, eventOrderPaid)
	})
}

// inReview checks that an attempt is in review for a reason, that status says so, and how often it was told.
func (s *shop) inReview(p *payment, reason string, told int) {
	s.t.Helper()
	p = s.attempt(p.OrderID)
	asks := statusAsks(s.t, s.store, paymentTroubles[0])
	if p.State != paymentReview || valueOr(p.Reason, "") != reason || len(asks) != 1 ||
		!strings.Contains(asks[0], "order show "+p.OrderID) {
		s.t.Fatalf("the attempt is %s (%s), status asks %q", p.State, valueOr(p.Reason, ""), asks)
	}
	equal(s.t, "events order.review", s.events(p.OrderID)[eventOrderReview], told)
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

// Against whoever may refund who would give back more than is left, after a failed refund or a lost dispute: what
// is left counts all refunds that did not fail, found ones too, and lost disputes.
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
			if !slices.Equal(found.VAT, o.VAT) || found.Amount != o.Total {
				t.Errorf("what was found is %+v", found)
			}
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
			equal(t, "what is left of the revenue", [2]int64{rate, sum}, [2]int64{rate, 0})
		}
		s.accountedFor()
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
	contains(t, out, "payments: pay_", "differs by 59.00 CHF", "'widgetd order settle "+o.ID+"'")
	s.sql(`UPDATE payments SET state = 'review', reason = 'order_is_dead' WHERE order_id = ?`, o.ID)
	contains(t, s.must("check"), "ok: ")
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
					equal(t, "captured", s.attempt(p.OrderID).Captured, 0)
					s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[:1] })
				}
				p = s.settle(p)
				o := s.row(p.OrderID)
				equal(t, "paid at", o.PaidAt, c.at(p))
				equal(t, "events that its keys are refused", s.eventsOf(eventConnectionRefused), 0)
				if p.capturedFirst() {
					equal(t, "the time to accept it", time.Until(o.AcceptBy.Time), 30*time.Minute)
				}
				equal(t, "its revenue", s.sums(), int(o.Total))
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
		equal(s.t, "when it is looked at", s.attempt(o.ID).DueAt, since.after(time.Hour))
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
		equal(s.t, "revenue", s.sums(), 0)
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
		equal(t, "events order.review", s.events(o.ID)[eventOrderReview], 0)
	}, providerVipps)
}

// Against a provider that asks to wait for a day that would delay a capture until its authorisation lapses: it is
// obeyed for 15 minutes.
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

// refusalText is sentText, with what a vendor says of a new attempt that it has refused.
func refusalText(sent sentOperation, err error) string {
	text := sentText(sent, err)
	if failed, ok := err.(*outboundError); ok && failed.detail != "" {
		text += ": " + failed.detail
	}
	if failed, ok := err.(*outboundError); ok && failed.ofOrder {
		text += ", of this order"
	}
	return text
}

// restricted is what Stripe says of an account that it has restricted.
const restricted = "Your account cannot currently make live charges."

// refuses has the provider of cards refuse new sessions by methods from now on.
func (s *shop) refuses(code, message, param string, methods ...string) {
	said := testObject{"type": "invalid_request_error", "message": message}
	for name, value := range map[string]string{"code": code, "param": param} {
		if value != "" {
			said[name] = value
		}
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.provider.watch = func(r *http.Request, acted *testAnswer) *testAnswer {
		if acted == nil && r.Method == "POST" && r.URL.Path == stripeSessions && r.ParseForm() == nil {
			for _, method := range methods {
				if r.PostForm.Get("payment_method_types[0]") == method {
					return &testAnswer{status: 400, body: encodeJSON(testObject{"error": said})}
				}
			}
		}
		return s.meddle(r, acted)
	}
}

// takesAll has the provider of cards refuse no session any more.
func (s *shop) takesAll() { s.refuses("", "", "") }

// guestOrder places an order whose pages a guest can open.
func (s *shop) guestOrder(change ...func(*order)) *order {
	s.t.Helper()
	o := s.place(change...)
	sum := sha256.Sum256([]byte(pageKey))
	s.sql(`UPDATE orders SET page_key = ? WHERE id = ?`, sum[:], o.ID)
	return o
}

// presses has a guest press the button of a method, a second after what was before.
func (s *shop) presses(o *order, method string) answer {
	s.t.Helper()
	time.Sleep(time.Second)
	return s.post(o.path(""), "method="+method, formType)
}

// evening has so many orders be refused by a method.
func (s *shop) evening(orders int, method string) {
	s.t.Helper()
	for range orders {
		s.presses(s.guestOrder(), method).is(409)
	}
}

// hears checks what the operator and the restaurant hear: of how many methods, and how often it was told.
func (s *shop) hears(methods, events int) (asked string) {
	s.t.Helper()
	asks := statusAsks(s.t, s.store, paymentTroubles[len(paymentTroubles)-1])
	equal(s.t, "what status asks", len(asks), min(methods, 1))
	equal(s.t, "the metric", s.metricOf("payment_methods_refused"), fmt.Sprint(methods))
	equal(s.t, "the events", s.eventsOf(eventAttemptsRefused), events)
	return strings.Join(asks, "")
}

// buttons are what the buttons of a pay page begin with, by method.
func buttons(methods ...string) (all []string) {
	for _, method := range []string{methodCard, methodTwint, methodMobile} {
		text, not := `name="method" value="`+method+`"`, "not "
		for _, shown := range methods {
			if shown == method {
				not = ""
			}
		}
		all = append(all, not+text)
	}
	return all
}

// TestRefusals_ofAnEveningAreToldOnceAndEndWithASession has Stripe restrict an account, whose guests have TWINT.
// Against somebody who would have a method hidden by one order, or two, that are tried again and again; and against
// the words of a provider, which may change a terminal, hold a key of ours or the number of an account.
func TestRefusals_ofAnEveningAreToldOnceAndEndWithASession(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.refuses("account_invalid", "\x1b[31m\u202e\n key "+shopSecretKey+". "+strings.Repeat(restricted+" ", 300), "",
			methodCard)
		one, two := s.guestOrder(), s.guestOrder()
		since := newStamp(time.Now().Add(time.Second))
		for range 4 {
			s.presses(one, methodCard).is(409).shows(buttons(methodCard, methodTwint)...).shows("No money was taken")
			s.presses(two, methodCard).is(409)
			s.hears(0, 0)
		}
		three := s.guestOrder()
		s.presses(three, methodCard).is(409).shows(buttons(methodTwint)...).shows("Please choose another one.",
			"not live charges")
		asked := s.hears(1, 1)
		words := "\uFFFD[31m\uFFFD key …. " + strings.Repeat(restricted+" ", 300)
		words = string([]rune(words)[:maxVendorWords])
		equal(t, "what status asks", asked, "1 payment method is refused by its provider, each new payment since "+
			since.String()+": 'widgetd payment check' with "+s.connection+" (card, 3 in a row, account_invalid: "+
			words+")")
		events := s.get("/events?type=payment.refused", bearer(s.token(s.account, scopeEvents+" "+scopeOrders))).is(200)
		contains(t, events.body, `"subject_id":"`+s.connection+`"`,
			`"data":{"code":"account_invalid","connection_id":"`+s.connection+`","count":"3","method":"card"}}`)
		lacks(t, events.body, "live charges")
		s.evening(4, methodCard)
		contains(t, s.hears(1, 1), "card, 7 in a row") // told once
		s.presses(one, methodTwint).is(303)
		s.hears(1, 1)
		other := s.another()
		defer other.store.close()
		other.get(three.path("")).is(200).shows(buttons(methodTwint)...) // a restart forgets nothing
		s.takesAll()
		s.presses(three, methodCard).is(303)
		s.hears(0, 1)
		s.counts(0, `SELECT count(*) FROM payment_refusals`)
		s.get(three.path("")).is(200).shows(buttons(methodCard, methodTwint)...)
		s.refuses("account_invalid", restricted, "", methodCard)
		s.evening(2, methodCard)
		s.hears(0, 1)
		s.evening(1, methodCard)
		s.hears(1, 2)
	})
}

// TestRefusals_leaveAMethodOutForFiveMinutesFromTheLast has guests whose page is older press a button that others
// lack.
func TestRefusals_leaveAMethodOutForFiveMinutesFromTheLast(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.refuses("", restricted, "", methodCard)
		o := s.guestOrder()
		s.evening(3, methodCard)
		shows := func(after time.Duration, methods ...string) {
			t.Helper()
			time.Sleep(after)
			s.get(o.path("")).is(200).shows(buttons(methods...)...)
		}
		shows(4*time.Minute, methodTwint)
		s.presses(o, methodCard).is(409).shows(buttons(methodTwint)...)
		shows(4*time.Minute, methodTwint)
		shows(59*time.Second, methodTwint)
		shows(2*time.Second, methodCard, methodTwint)
		s.hears(1, 1) // until it works
		s.presses(o, methodCard).is(409).shows(buttons(methodTwint)...)
		s.refuses("", restricted, "", methodCard, methodTwint)
		s.evening(3, methodTwint)
		s.get(o.path("")).shows(buttons(methodCard, methodTwint)...).shows("Paying online doesn’t work at the moment")
		contains(t, s.hears(2, 2), "2 payment methods are refused by their providers")
		shows(refusedPause-10*time.Second, methodTwint, methodCard)
		s.sql(`UPDATE payment_connections SET removed_at = created_at`) // nobody can do anything about it
		s.hears(0, 2)
		s.sql(`UPDATE payment_connections SET removed_at = NULL`)
		s.hears(2, 2)
		s.sql(`UPDATE accounts SET is_main = 0, closed_at = created_at`)
		s.hears(0, 2)
	})
}

// TestRefusals_ofTheOnlyMethodLeaveItsButtonAndSayWhomToAsk reads the pages in all languages.
func TestRefusals_ofTheOnlyMethodLeaveItsButtonAndSayWhomToAsk(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		s.sql(`UPDATE payment_connections SET methods = '[]'`)
		s.sql(`INSERT INTO account_settings (account_id, phone) VALUES (?, '+41 32 622 00 00')`, s.account)
		o := s.guestOrder()
		s.get(o.path("")).is(200).shows(buttons(s.method)...).shows(`not class="button" href="tel:`,
			"not Paying online doesn")
		for range 3 {
			s.fail(opCreate, fault400)
			s.evening(1, s.method)
		}
		for _, l := range pageLanguages {
			texts := textsByLanguage[l]().Pay
			page := s.get(o.path("") + "&lang=" + string(l)).is(200).shows(buttons(s.method)...)
			page.shows(`class="button" href="tel:&#43;41326220000"`)
			said, button := strings.Index(page.body, texts["online_fails"]), strings.Index(page.body, `name="method"`)
			failIf(s.t, said < 0 || said > button, "in %s the page does not say it above the button", l)
			failIf(s.t, texts["refused_other"] == "" || texts["refused_other"] == texts["refused"], "no text in %s", l)
		}
		s.hears(1, 1)
		s.presses(o, s.method).is(303)
		s.hears(0, 1)
		s.get(o.path("")).is(200).shows("not Paying online doesn")
	})
}

// TestRefusals_areOfEachMethodAndConnection has methods, providers and accounts take turns. Against somebody who orders
// what the provider must refuse, so that others can't pay: what is wrong with the order alone does not count.
func TestRefusals_areOfEachMethodAndConnection(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		francs := func(o *order) { o.Currency = "CHF" }
		one, two, three := s.guestOrder(francs), s.guestOrder(francs), s.guestOrder(francs)
		s.refuses("amount_too_small", "No.", "", methodCard)
		for _, o := range []*order{one, two, three} {
			s.presses(o, methodCard).is(409).shows("The amount is too small for this way of paying.")
		}
		s.counts(0, `SELECT count(*) FROM payment_refusals`)
		s.counts(3, `SELECT count(*) FROM payments WHERE reason = ?`, reasonTooSmall)
		s.refuses("", restricted, "", methodCard, methodTwint)
		for _, o := range []*order{one, two} {
			s.presses(o, methodCard).is(409)
			s.presses(o, methodTwint).is(409)
		}
		s.hears(0, 0)
		s.refuses("", restricted, "", methodTwint)
		s.presses(one, methodCard).is(303) // begins cards anew, and not TWINT
		s.presses(three, methodTwint).is(409)
		contains(t, s.hears(1, 1), "(twint, 3 in a row")
		s.refuses("", restricted, "", methodCard, methodTwint)
		s.presses(two, methodCard).is(409)
		s.presses(three, methodCard).is(409)
		s.hears(1, 1)
		for range 3 { // at the other provider
			s.fail(opCreate, fault400)
			s.presses(s.guestOrder(func(o *order) { o.Currency = "EUR" }), methodMobile).is(409)
		}
		s.hears(2, 2)
		s.counts(1, `SELECT count(*) FROM payment_refusals WHERE connection_id = ? AND method = 'mobile'`, s.connection)
		s.get(two.path("")).is(200).shows(buttons(methodCard)...)
		s.account = s.addAccount("another")
		s.connect(providerStripe) // a second connection, at which nothing was refused
		s.sql(`UPDATE orders SET account_id = ? WHERE id = ?`, s.account, two.ID)
		s.get(two.path("")).is(200).shows(buttons(methodCard, methodTwint)...)
	}, providerStripe, providerVipps)
}

// TestRefusals_ofKeysLeaveTheMethodOut has a key that may not make sessions any more, though it may do the rest.
func TestRefusals_ofKeysLeaveTheMethodOut(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		_, earlier := s.authorized()
		o := s.guestOrder()
		for range 3 {
			s.fail(opCreate, fault403Keys)
			s.presses(s.guestOrder(), methodCard).is(503).shows("provider can’t be reached", `role="alert"`)
		}
		s.hears(0, 1)
		equal(t, "what status asks", len(statusAsks(t, s.store, paymentTroubles...)), 1)
		s.get(o.path("")).is(200).shows(buttons(methodTwint)...)
		s.settle(earlier) // after which its keys are not refused
		s.hears(1, 1)
	})
}

// showsRefusals has 'payment check' tell of refusals, and 'payment set' end those of methods that it tries or takes
// away.
func (c *connecting) showsRefusals(id string) {
	c.t.Helper()
	note := func(method string, count int) {
		raw(c.t, c.env["WIDGETD_DB"], fmt.Sprintf(`INSERT OR REPLACE INTO payment_refusals VALUES ('%s', '%s',
			'account_invalid', '%s', '2026-11-28T19:00:00Z', '2026-11-28T21:30:00Z', %d, '[]')`, id, method, restricted,
			count))
	}
	noted := func() string {
		c.t.Helper()
		members := c.object(c.called("payment", "check", id)...)
		text := fmt.Sprint(members["ok"])
		for _, r := range members["refused"].([]any) {
			text += fmt.Sprint(" ", r.(map[string]any)["method"], r.(map[string]any)["count"])
		}
		return text
	}
	check := c.called("payment", "check", id)
	note(methodTwint, 2)
	equal(c.t, "check after two", c.do(check...), "ok: the provider accepts the keys, and has our webhook\n"+
		"it has refused each new payment by twint since 2026-11-28T19:00:00Z, of 2 orders in a row, the last one at "+
		"2026-11-28T21:30:00Z: account_invalid: "+restricted+"\n")
	equal(c.t, "as JSON", noted(), "true twint2")
	note(methodCard, 3)
	out, err := c.try(check...)
	equal(c.t, "the exit status", err, error(exitStatus(exitNeedsDoing)))
	contains(c.t, out, "the provider accepts", "by card", "of 3 orders in a row", "by twint", restricted)
	lacks(c.t, out, "ok: the")
	set := func(methods string) { c.do(c.called("payment", "set", id, "-methods", methods)...) }
	set("card,twint") // TWINT is tried, cards are not
	out, _ = c.try(check...)
	lacks(c.t, out, "by twint")
	contains(c.t, out, "by card")
	note(methodTwint, 3)
	set("card")
	out, _ = c.try(check...)
	lacks(c.t, out, "by twint")
	set("twint")
	equal(c.t, "without cards", noted(), "true")
	set("twint,card")
}
