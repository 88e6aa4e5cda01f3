package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

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

// ofTwint makes it an attempt that is captured by being paid.
func (f *facts) ofTwint() { f.payment.Method = methodTwint }

// paidBefore has the attempt have paid the order an hour ago.
func (f *facts) paidBefore() {
	f.is(paymentCaptured, orderPaid)
	f.payment.CapturedAt = f.payment.CreatedAt
	f.order.PaidAt, f.order.Method = f.payment.CreatedAt, new(orderMethod(f.payment.Method))
}

// deadBefore has the attempt be in review since the order was dead when its money was captured.
func (f *facts) deadBefore() {
	f.is(paymentReview, orderCancelled)
	f.payment.CapturedAt, f.payment.Reason = f.payment.CreatedAt, new(reasonDeadOrder)
}

// givesBack adds a refund of ours, made a while ago.
func (f *facts) givesBack(amount int64, state string, ago time.Duration) {
	f.refunds = append(f.refunds, refund{ID: "ref_1", PaymentID: &f.payment.ID, Amount: amount,
		State: refundState(state),
		Kind:  refundAsked, Source: sourceOurs, CreatedAt: newStamp(f.now.Add(-ago))})
	f.stored = slices.Clone(f.refunds)
}

// refuses has the provider have refused an operation three times.
func (f *facts) refuses(kind string) {
	for range maxRefused {
		f.operations = append(f.operations, paymentOperation{Kind: kind, State: operationRefused, Status: new(400),
			CreatedAt: newStamp(f.now)})
	}
}

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
		// The provider does not know it.
		"never reached the provider": {func(f *facts) { ended(f, phaseUnknown, paymentCreated, orderOpen) },
			"failed (unknown_there)"},
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
		"authorised, and unknown since": {func(f *facts) { ended(f, phaseUnknown, paymentAuthorized, orderAuthorized) },
			"review (unknown_there), told"},
		"known again": {func(f *facts) {
			f.is(paymentReview, orderAuthorized)
			f.payment.Reason = new(reasonUnknown)
			f.approves(4200, 0, 0)
		}, "authorized"},

		// The guest can still pay.
		"confirmed":               {func(f *facts) { f.payment.State = paymentCreated }, "pending"},
		"asks for another amount": {func(f *facts) { f.report.amount++ }, "review (amount_differs), expire, told"},
		"asks for another currency": {func(f *facts) { f.report.currency = "EUR" },
			"review (currency_differs), expire, told"},
		"nothing is to be paid any more": {func(f *facts) { f.order.State = orderCancelled }, "pending, expire"},
		"the order is to end": {func(f *facts) { f.order.Closing = new(orderClosing(closingExpired)) },
			"pending, expire"},
		"the account is closed": {func(f *facts) { f.closed = true }, "pending, expire"},
		"can't be closed": {func(f *facts) { f.closed = true; f.refuses(opExpire) },
			"review (operation_refused), told"},

		// Its money is authorised.
		"authorised": {func(f *facts) { f.approves(4200, 0, 0) }, "authorized, order authorized"},
		"authorised, another amount": {func(f *facts) { f.approves(4200, 0, 0); f.report.amount++ },
			"review (amount_differs), told"},
		"authorised after it had expired": {func(f *facts) {
			f.payment.State, f.payment.EndedAt = paymentExpired, newStamp(f.now)
			f.approves(4200, 0, 0)
		}, "authorized, order authorized"},
		"authorised while the order was to end": {func(f *facts) {
			f.order.Closing = new(orderClosing(closingExpired))
			f.approves(4200, 0, 0)
		}, "authorized, order authorized"},
		"authorised for a dead order": {func(f *facts) { f.is(paymentPending, orderExpired); f.approves(4200, 0, 0) },
			"authorized, cancel"},
		"authorised, and another attempt is live": {func(f *facts) {
			f.payment.State, f.payment.EndedAt, f.order.PaymentID = paymentFailed, newStamp(f.now), new("pay_2")
			f.approves(4200, 0, 0)
		}, "failed, cancel"},
		"authorised for a closed account": {func(f *facts) { f.closed = true; f.approves(4200, 0, 0) },
			"authorized, order cancelled, cancel"},
		"waits to be accepted": {func(f *facts) { f.is(paymentAuthorized, orderAuthorized); f.approves(4200, 0, 0) },
			"authorized"},
		"lapses within a day": {func(f *facts) {
			f.is(paymentAuthorized, orderAuthorized)
			f.approves(4200, 0, 0)
			f.payment.CaptureBefore = newStamp(f.now.Add(endingNotice))
		}, "authorized, warned"},
		"to be captured": {func(f *facts) { f.accepted(); f.approves(4200, 0, 0) }, "authorized, capture 4200"},
		"was captured, says an older report": {func(f *facts) {
			f.accepted()
			f.approves(4200, 0, 0)
			f.operations = []paymentOperation{{Kind: opCapture, State: operationDone}}
		}, "authorized"},
		"less is authorised than the total": {func(f *facts) { f.accepted(); f.approves(4199, 0, 0) },
			"review (capture_differs), told"},
		"can't be captured": {func(f *facts) { f.accepted(); f.approves(4200, 0, 0); f.refuses(opCapture) },
			"review (operation_refused), told"},

		// Its money was captured.
		"captured": {func(f *facts) { f.accepted(); f.approves(0, 4200, 0) }, "captured, order paid"},
		"captured, and less than was reserved": {func(f *facts) { f.accepted(); f.approves(800, 4200, 0) },
			"captured, order paid, cancel"},
		"captured, another amount": {func(f *facts) { f.approves(0, 5000, 0) },
			"review (capture_differs), order authorized, told"},
		"captured, and too much was given back": {func(f *facts) {
			f.is(paymentReview, orderAuthorized)
			f.payment.Reason, f.payment.CapturedAt = new(reasonCaptureDiffers), f.payment.CreatedAt
			f.givesBack(800, refundSucceeded, time.Hour)
			f.approves(0, 5000, 800)
		}, "part_refunded, order paid"},
		"captured, and all of it was given back there": {func(f *facts) {
			f.is(paymentAuthorized, orderAuthorized)
			f.approves(0, 4000, 4000)
			f.givesBack(4000, refundSucceeded, 0)
		}, "refunded, order cancelled"},
		"captured for a dead order": {func(f *facts) { f.is(paymentAuthorized, orderExpired); f.approves(0, 4200, 0) },
			"review (order_is_dead), told"},
		"captured for an order that was paid in cash": {func(f *facts) {
			f.is(paymentAuthorized, orderPaid)
			f.order.Method = new(orderMethod(methodCash))
			f.approves(0, 4200, 0)
		}, "review (order_is_paid), told"},
		"charged": {func(f *facts) { f.ofTwint(); f.approves(0, 4200, 0) }, "captured, order authorized"},
		"charged for a dead order": {func(f *facts) {
			f.ofTwint()
			f.order.State = orderExpired
			f.approves(0, 4200, 0)
		}, "captured, refund 4200"},
		"charged for a closed account": {func(f *facts) { f.ofTwint(); f.closed = true; f.approves(0, 4200, 0) },
			"captured, order cancelled, refund 4200"},

		// Some of it is given back.
		"to be given back": {func(f *facts) {
			f.paidBefore()
			f.givesBack(1000, refundPending, 0)
			f.approves(0, 4200, 0)
		}, "captured, refund 1000"},
		"given back": {func(f *facts) {
			f.paidBefore()
			f.givesBack(1000, refundSucceeded, 0)
			f.approves(0, 4200, 1000)
		}, "part_refunded"},
		"under way for a day": {func(f *facts) {
			f.paidBefore()
			f.givesBack(1000, refundPending, refundLate)
			f.refunds[0].ProviderID = new("re_1")
			f.approves(0, 4200, 1000)
		}, "review (refund_pending), told"},
		"under way for a day, and the provider can't be asked": {func(f *facts) {
			f.paidBefore()
			f.givesBack(1000, refundPending, refundLate)
			f.approves(0, 4200, 1000)
			f.report = nil
		}, "review (refund_pending), told"},
		"not given back yet": {func(f *facts) {
			f.deadBefore()
			f.givesBack(4200, refundPending, 0)
			f.approves(0, 4200, 0)
		}, "review (order_is_dead), refund 4200"},
		"given back at last": {func(f *facts) {
			f.deadBefore()
			f.givesBack(4200, refundSucceeded, 0)
			f.approves(0, 4200, 4200)
		}, "refunded"},
		"can't be given back": {func(f *facts) {
			f.deadBefore()
			f.givesBack(4200, refundFailed, 0)
			f.refundFailed = true
			f.approves(0, 4200, 0)
		}, "review (order_is_dead), told"},
		"given back there, nobody knows how": {func(f *facts) {
			f.paidBefore()
			f.payment.RefundsDifferSince = newStamp(f.now.Add(-refundsLag))
			f.approves(0, 4200, 1000)
		}, "review (refunds_differ), told"},
		"given back there just now": {func(f *facts) {
			f.paidBefore()
			f.payment.RefundsDifferSince = newStamp(f.now.Add(-refundsLag + time.Second))
			f.approves(0, 4200, 1000)
		}, "part_refunded"},

		// Nothing was paid and nothing will be.
		"declined": {func(f *facts) { ended(f, phaseFailed, paymentPending, orderOpen) }, "failed"},
		"cancelled": {func(f *facts) { ended(f, phaseCancelled, paymentAuthorized, orderAccepted) },
			"cancelled, order cancelled"},
		"lapsed": {func(f *facts) { ended(f, phaseExpired, paymentAuthorized, orderAuthorized) },
			"expired, order expired"},
		"closed, so that the order expires": {func(f *facts) {
			ended(f, phaseExpired, paymentPending, orderOpen)
			f.order.Closing = new(orderClosing(closingExpired))
		}, "expired, order expired"},
		"closed, so that the order is paid in cash": {func(f *facts) {
			ended(f, phaseExpired, paymentPending, orderOpen)
			f.order.Closing, f.order.OutsideMethod = new(orderClosing(closingPaid)), new(orderMethod(methodCash))
		}, "expired, order paid"},
		"closed, so that another method can pay": {func(f *facts) {
			ended(f, phaseCancelled, paymentPending, orderOpen)
			f.order.Closing = new(orderClosing(closingMethod))
		}, "cancelled, order open"},
		"ended before": {func(f *facts) { ended(f, phaseExpired, paymentExpired, orderOpen) }, "expired"},
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
