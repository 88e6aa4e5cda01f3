package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// The states of an order.
const (
	orderOpen         = "open"       // it can be paid
	orderAuthorized   = "authorized" // its money is reserved; the restaurant is to accept it
	orderAccepted     = "accepted"   // by the restaurant; its money is not captured yet
	orderPaid         = "paid"
	orderPartRefunded = "part_refunded"
	orderRefunded     = "refunded"
	orderCancelled    = "cancelled"
	orderExpired      = "expired" // not paid, not accepted or not captured in time
)

// An orderState is how far an order is. `open`: it can be paid. `authorized`: its money is reserved, and it is to
// be accepted. `accepted`: its money is not captured yet. `paid`, `part_refunded`, `refunded`. `cancelled`.
// `expired`: it was not paid, accepted or captured in time.
type orderState string

// orderStates are the states of an order, in the order in which it may pass them.
var orderStates = declareWords[orderState](orderOpen, orderAuthorized, orderAccepted, orderPaid, orderPartRefunded,
	orderRefunded, orderCancelled, orderExpired)

// What an order waits to become once the attempt to pay it is closed at its provider (order.Closing).
const (
	closingExpired = "expired" // to expire
	closingPaid    = "paid"    // to be marked as paid outside
	closingMethod  = "method"  // to be paid by another method
)

// An orderClosing is what waits until the provider has closed the attempt to pay an order: that it expires, is
// marked as paid outside, or is paid by another method; `null`: nothing does.
type orderClosing string

var _ = declareWords[orderClosing](closingExpired, closingPaid, closingMethod)

// dead reports whether the order was cancelled or has expired, so that nothing is to be paid for it any more.
func (o *order) dead() bool { return o.State == orderCancelled || o.State == orderExpired }

// wasPaid reports whether the order was paid, even if all of it was given back since.
func (o *order) wasPaid() bool {
	return o.State == orderPaid || o.State == orderPartRefunded || o.State == orderRefunded
}

// accepting reports whether the order waits to be accepted, or to be paid since: its money is reserved, or was
// charged.
func (o *order) accepting() bool { return o.State == orderAuthorized || o.State == orderAccepted }

// A stateEntry is what an order enters another state with.
type stateEntry struct {
	actor     string
	method    orderMethod // by which it is paid, or to be paid; "": as before
	paymentID *string     // of the attempt by which it is; nil: as before
	paidAt    stamp       // of orderPaid, and of orderAuthorized if it was charged
	acceptBy  stamp       // of orderAuthorized
	data      []string    // of the event, beside the order's total
}

// orderEntries tell that an order has entered a state. What refunds make of it, their own events tell.
var orderEntries = map[orderState]eventType{
	orderAuthorized: eventOrderAuthorized,
	orderAccepted:   eventOrderAccepted,
	orderPaid:       eventOrderPaid,
	orderCancelled:  eventOrderCancelled,
	orderExpired:    eventOrderExpired,
}

// become changes the state of an order, with what goes with that. It alone does, but for follow and unmarkPaid.
func (o *order) become(state orderState, with stateEntry, now stamp) {
	before := o.State
	if o.State = state; with.method != "" {
		o.Method = &with.method
	}
	if with.paymentID != nil {
		o.PaymentID = with.paymentID
	}
	switch state {
	case orderAuthorized:
		o.AuthorizedAt, o.AcceptBy, o.PaidAt = now, with.acceptBy, with.paidAt
	case orderAccepted:
		o.AcceptedAt = now
		return
	case orderPaid:
		o.PaidAt, o.EndedAt, o.Capture = with.paidAt, now, false
		if o.paidOutside() {
			o.PaidFrom = &before
		}
	case orderCancelled, orderExpired:
		o.EndedAt, o.Capture, o.Refunded = now, false, 0 // what is given back pays for nothing
	}
	o.dropClosing()
	o.eraseDeadlines()
}

// enterState moves an order into a state, and writes what follows from that: when its guest is to be erased, what is
// due of it, and the event. The caller saves the order.
func (o *order) enterState(t *tx, state orderState, with stateEntry) (err error) {
	o.become(state, with, t.now)
	t.setErasure(o)
	t.noteRevenue(o)
	data := with.data
	switch state {
	case orderOpen:
		return nil
	case orderAuthorized:
		data = append(data, "method", string(*o.Method))
	case orderAccepted:
		if data = append(data, "ordered_total", strconv.FormatInt(o.OrderedTotal, 10)); !o.ReadyAt.IsZero() {
			data = append(data, "ready_at", o.ReadyAt.String())
		}
	case orderPaid:
		o.Seller, err = t.sellerOf(o.AccountID)
		data = append(data, "method", string(*o.Method))
	}
	t.addEvent(totalEvent(o, orderEntries[state], with.actor, data...))
	return err
}

// follow has the state of an order that was paid follow how much of its total was given back.
func (o *order) follow(back int64) {
	switch {
	case !o.wasPaid():
	case back == 0:
		o.State = orderPaid
	case back < o.Total:
		o.State = orderPartRefunded
	default:
		o.State = orderRefunded
	}
}

// acceptOrder accepts an order of an owner that waits for that; lines names the lines of which fewer units are
// accepted. If the account captures cards on acceptance, or their reservation would end before the order is wanted,
// its money is captured; one that was charged already is paid, even if a refund of it takes long. An order whose
// payment is in review for anything else is accepted in spite of that, see acceptFromReview. ready is when it will be
// ready; zero: that is not said. Errors: errOrder, order_state, a refusal that names the lines or the time that are
// wrong.
func acceptOrder(t *tx, by owner, id string, lines []linePart, ready stamp, actor string) (*order, error) {
	if err := checkAhead(t, "ready_at", ready); err != nil {
		return nil, err
	}
	o, p, err := orderAndPayment(t, by, id)
	if err != nil {
		return nil, err
	}
	if !ready.IsZero() {
		o.ReadyAt = ready
	}
	late := o.capturedFirst() && o.waits() && p != nil && valueOr(p.Reason, "") == reasonRefundPending
	if p != nil && p.State == paymentReview && !late {
		return o, acceptFromReview(t, o, p, lines, actor)
	}
	if !o.waits() {
		return nil, errOrderState(o, "Only an authorized one, or an open one that is paid later, can be accepted.")
	}
	if err := o.lower(lines); err != nil {
		return nil, err
	}
	if p == nil {
		return o, noteAccepted(t, o, actor)
	}
	settings, err := t.settings(o.AccountID)
	if err != nil {
		return nil, err
	}
	o.Capture = findMethod(p.Method).early &&
		(settings.CaptureOn == captureOnAccept || o.endsEarly(p.lapses(t.now).Time))
	if err := noteAccepted(t, o, actor); err != nil || !o.capturedFirst() {
		return o, err
	}
	return o, payAccepted(t, o, p, actor)
}

// waits reports whether the order waits for the restaurant to accept it.
func (o *order) waits() bool {
	return o.State == orderAuthorized || o.State == orderOpen && o.Pay == payLater
}

// noteAccepted writes that an order was accepted.
func noteAccepted(t *tx, o *order, actor string) error {
	if o.PaymentID != nil {
		t.pollPayment(*o.PaymentID)
	}
	err := o.enterState(t, orderAccepted, stateEntry{actor: actor})
	t.saveOrder(o)
	return err
}

// acceptFromReview accepts an order in spite of what is wrong with its payment. If exactly its total was
// captured, the order becomes paid, even if it is dead; if at least its total is authorised, the total is
// captured. Errors: as acceptOrder.
func acceptFromReview(t *tx, o *order, p *payment, lines []linePart, actor string) error {
	m, err := moneyOf(t, o, p)
	if err != nil {
		return err
	}
	if more := m.unaccountedIfPaid(); more > 0 {
		return errOrderState(o, formatMoney(more, o.Currency)+" more than its total was captured: give that back with "+
			"a refund, here or on the provider's pages, and it is paid. Or cancel the order, and refund all.")
	}
	if err := o.lower(lines); err != nil {
		return err
	}
	sameCurrency := p.Currency == o.Currency && valueOr(p.Reason, "") != reasonOtherCurrency
	switch {
	case !o.wasPaid() && sameCurrency && p.Captured == o.Total && p.Refunded == 0:
		if slices.ContainsFunc(m.refunds, func(f refund) bool { return f.State != refundFailed }) {
			return errOrderState(o, "Some of what was captured is being given back: refund the rest.")
		}
		t.setPaymentState(p.ID, paymentCaptured)
		return markPaid(t, o, orderMethod(p.Method), p.CapturedAt, actor)
	case !o.dead() && !o.wasPaid() && sameCurrency && p.Captured == 0 && p.Authorized >= o.Total:
		t.setPaymentState(p.ID, paymentAuthorized)
		o.Capture = true
		o.dropClosing()
		o.Method = new(orderMethod(p.Method))
		if o.AuthorizedAt.IsZero() {
			o.AuthorizedAt = t.now
		}
		return noteAccepted(t, o, actor)
	}
	return errOrderState(o, fmt.Sprintf("Its payment is in review (%s), and what is authorised or captured "+
		"does not pay its total. Accept fewer units, or cancel the order and refund what was captured.",
		valueOr(p.Reason, "no reason")))
}

// dropClosing drops what was to happen once the order's attempt is closed.
func (o *order) dropClosing() { o.Closing, o.OutsideMethod, o.OutsideAt = nil, nil, stamp{} }

// orderAndPayment returns an order of an owner and the last attempt to pay it, nil if there is none.
// Errors: errOrder.
func orderAndPayment(t *tx, by owner, id string) (*order, *payment, error) {
	o, err := t.order(by, id)
	if err != nil || o.PaymentID == nil {
		return o, nil, err
	}
	p, err := t.payment(*o.PaymentID)
	return o, p, err
}

// captureOrder requests that the money of an accepted order of an owner be captured. A repeated request changes
// nothing. Errors: errOrder; order_state, also while its payment is in review.
func captureOrder(t *tx, by owner, id string) (*order, error) {
	o, p, err := orderAndPayment(t, by, id)
	switch {
	case err != nil:
		return nil, err
	case o.State != orderAccepted || p == nil:
		return nil, errOrderState(o, "Only an accepted one that is paid online can be captured.")
	case p.State == paymentReview:
		return nil, errOrderState(o, fmt.Sprintf("Its payment is in review (%s), so nothing is captured. Once that is "+
			"settled at the provider, accept it again, with fewer units if less is reserved; else cancel it.",
			valueOr(p.Reason, "no reason")))
	case o.Capture:
		return o, nil
	}
	o.Capture = true
	t.saveAndPoll(o, *o.PaymentID)
	return o, nil
}

// endOrder writes that an order was cancelled or has expired for a reason, and schedules a look at its attempt, so
// that the money is released. What was charged already is given back. more are further data of the event.
func endOrder(t *tx, o *order, state orderState, reason, actor string, more ...string) error {
	data := append([]string{"reason", reason}, more...)
	if err := o.enterState(t, state, stateEntry{actor: actor, data: data}); err != nil {
		return err
	}
	t.saveOrder(o)
	if o.PaymentID == nil {
		return nil
	}
	t.pollPayment(*o.PaymentID)
	if !o.capturedFirst() {
		return nil
	}
	return refundRest(t, o, nil, actor)
}

// An orderRejectReason is why an order was refused; `null`: it was not, or no reason was given.
type orderRejectReason string

// rejectReasons are why a restaurant may refuse an order.
var rejectReasons = declareWords[orderRejectReason]("sold_out", "closed", "too_busy", "too_far", "address", "other")

// An orderRejection is why an order is refused.
type orderRejection struct {
	reason *orderRejectReason // nil: none is given
	text   *string            // for the guest; nil: none
}

// rejectOrder cancels an order of an owner that waits to be accepted, whose money is then released. Errors:
// errOrder, order_state.
func rejectOrder(t *tx, by owner, id string, why orderRejection, actor string) (*order, error) {
	o, err := t.order(by, id)
	if err != nil {
		return nil, err
	}
	if !o.waits() {
		return nil, errOrderState(o, "Only an authorized one, or an open one that is paid later, can be rejected.")
	}
	o.RejectReason, o.RejectText = why.reason, why.text
	if why.text != nil { // which is personal, so it is to be erased, even if nothing else is known of the guest
		t.ensureCustomer(o)
	}
	return o, endOrder(t, o, orderCancelled, "rejected", actor, "reject_reason", string(valueOr(why.reason, "")))
}

// cancelOrder cancels an order of an owner that is not paid. The attempt to pay it is then closed, and money that
// is authorised is released. Errors: errOrder; order_state, also while its money is being captured.
func cancelOrder(t *tx, by owner, id, actor string) (*order, error) {
	o, p, err := orderAndPayment(t, by, id)
	if err != nil {
		return nil, err
	}
	switch {
	case o.wasPaid() && valueOr(o.Method, "") != methodNone: // one whose total is 0 is paid, but has no money
		return nil, errOrderState(o, "Give its money back with a refund instead.")
	case o.dead():
		return nil, errOrderState(o, "It can't be cancelled any more.")
	case o.Capture && p != nil && p.live():
		return nil, errOrderState(o, "Its money is being captured: wait until it is paid, then refund it.")
	}
	return o, endOrder(t, o, orderCancelled, "cancelled", actor)
}

// expireOrder expires an open order: at once, or if an attempt is live, once that is closed (closingExpired).
func expireOrder(t *tx, o *order) error {
	live, err := t.livePayment(o.ID)
	if err != nil {
		return err
	}
	if live == nil {
		reason := "not_paid"
		if o.Pay == payLater {
			reason = "not_accepted"
		}
		return endOrder(t, o, orderExpired, reason, actorTime)
	}
	o.Closing = new(orderClosing(closingExpired))
	t.saveAndPoll(o, live.ID)
	return nil
}

// expireOrders expires up to limit open orders whose time is over, and returns how many there were.
func expireOrders(t *tx, limit int64) (int64, error) {
	return eachOrder(t, t.overdueOrders, limit, expireOrder)
}

// releaseUnaccepted expires up to limit authorised orders that nobody has accepted in time, and returns how many
// there were. Their money is then released.
func releaseUnaccepted(t *tx, limit int64) (int64, error) {
	return eachOrder(t, t.unacceptedOrders, limit, func(t *tx, o *order) error {
		return endOrder(t, o, orderExpired, "not_accepted", actorTime)
	})
}

// eachOrder calls f with up to limit orders whose ids find returns, and returns how many there were. Errors: as
// eachDue.
func eachOrder(
	t *tx, find func(limit int64) ([]string, error), limit int64, f func(*tx, *order) error,
) (int64, error) {
	found, err := find(limit)
	if err != nil {
		return 0, err
	}
	return int64(len(found)), t.eachDue(found, func(id string) error {
		o, err := t.order(anyAccount, id)
		if err != nil {
			return err
		}
		return f(t, o)
	})
}

// pollOrder polls each attempt to pay an order of an owner, and returns how many
// attempts there are. Errors: errOrder.
func pollOrder(t *tx, by owner, id string) (attempts int, err error) {
	o, err := t.order(by, id)
	if err != nil {
		return 0, err
	}
	all, err := t.paymentsOf(o.ID)
	if err != nil {
		return 0, err
	}
	for i := range all {
		t.pollPayment(all[i].ID)
	}
	return len(all), nil
}

// Orders that are paid outside: at the door, at the counter, with a voucher. One that is made to be paid so
// (payLater) waits for the restaurant without a payment; any other may be marked as paid so while nobody has paid
// it online.

const (
	// preorderNotice is how long before it is wanted an order can be accepted at the latest.
	preorderNotice = 2 * time.Hour

	// outsideFor is how long an order that has expired can still be marked as paid outside, and how long that
	// marking of any order can be undone.
	outsideFor = 24 * time.Hour

	// startNotice is how long every order that waits to be accepted can be accepted at least after the service has
	// started: it may not have been reached for a while.
	startNotice = 10 * time.Minute
)

// acceptDeadline returns until when the restaurant can accept an order that begins to wait now. That is in as many
// minutes as within, a setting of its account, or preorderNotice before the guest wants it if that is later. But a
// reservation of money that ends at lapses (zero: there is none) has to be accepted endingNotice before.
func acceptDeadline(now stamp, o *order, within int, lapses stamp) stamp {
	least := now.after(time.Duration(within) * time.Minute)
	if o.WantedAt.IsZero() {
		return least
	}
	until := o.WantedAt.after(-preorderNotice)
	if last := lapses.after(-endingNotice); !lapses.IsZero() && last.Before(until.Time) {
		until = last
	}
	if until.Before(least.Time) {
		return least
	}
	return until
}

// waitForAcceptance makes an open order that is paid later wait for the restaurant.
func waitForAcceptance(t *tx, o *order) error {
	settings, err := t.settings(o.AccountID)
	o.AcceptBy = acceptDeadline(t.now, o, settings.AcceptWithin, stamp{})
	o.ExpiresAt = o.AcceptBy
	return err
}

// markPaid writes that an order was paid.
func markPaid(t *tx, o *order, method orderMethod, at stamp, actor string) error {
	err := o.enterState(t, orderPaid, stateEntry{actor: actor, method: method, paidAt: at})
	t.saveOrder(o)
	return err
}

// payOutside marks an order of an owner as paid outside, by methodCash, methodTerminal, methodVoucher or methodOther:
// an open one, an accepted one that is paid later, or one that expired unpaid within outsideFor. at is when it was
// paid; the zero stamp means the time of the transaction. If an attempt to pay it online is live, that attempt is
// closed first (closingPaid). Errors: errOrder, order_state, a refusal of at.
func payOutside(t *tx, by owner, id string, method orderMethod, at stamp, actor string) (*order, error) {
	o, err := t.order(by, id)
	if err == nil {
		err = mayPayOutside(t, o)
	}
	if err != nil {
		return nil, err
	}
	if at.IsZero() {
		at = t.now
	}
	if at.After(t.exact.Add(clockSkew)) {
		return nil, errMember("paid_at", "out_of_range", "This is in the future.")
	}
	if at.Before(o.CreatedAt.Add(-clockSkew)) {
		return nil, errMember("paid_at", "out_of_range", "This is before the order was created.")
	}
	live, err := t.livePayment(o.ID)
	if err != nil {
		return nil, err
	}
	if o.OutsideMethod, o.OutsideAt = &method, at; live == nil {
		return o, markPaid(t, o, method, at, actor)
	}
	o.Closing = new(orderClosing(closingPaid))
	t.saveAndPoll(o, live.ID)
	return o, nil
}

// mayPayOutside returns the refusal if the state of an order does not allow marking it as paid outside, else nil.
func mayPayOutside(t *tx, o *order) error {
	switch {
	case o.State == orderOpen, o.State == orderAccepted && o.Pay == payLater:
		return nil
	case o.State == orderAuthorized, o.State == orderAccepted:
		return errOrderState(o, "Its money is authorised: capture it, or cancel the order.")
	case o.State != orderExpired:
		return errOrderState(o, "Only an open one, or one that expired, can be marked as paid.")
	case !t.exact.Before(o.EndedAt.Add(outsideFor)):
		return errOrderState(o, "It can be marked as paid for 24 hours after it expired.")
	}
	all, err := t.paymentsOf(o.ID)
	if slices.ContainsFunc(all, func(p payment) bool {
		return p.live() || p.State == paymentReview || p.Captured > 0
	}) {
		return errOrderState(o, "A guest has paid it online, and that money was not released yet, or is given back.")
	}
	return err
}

// paidOutside reports whether the order was paid without a provider, and not because its total is 0.
func (o *order) paidOutside() bool {
	return slices.Contains(outsideMethods, string(valueOr(o.Method, "")))
}

// undoPaid undoes the marking of an order of an owner as paid outside, within outsideFor: the order has the state
// again that it had before. If that is open, it is so for at least minOrderLife. If the order still waits for its
// attempt to be closed before it is marked, it stops waiting. Errors: errOrder, order_state, order_limit_reached.
func undoPaid(t *tx, by owner, id, actor string) (*order, error) {
	o, err := t.order(by, id)
	if err != nil {
		return nil, err
	}
	if o.State == orderOpen && valueOr(o.Closing, "") == closingPaid {
		o.dropClosing()
		t.saveOrder(o)
		return o, nil
	}
	if o.State != orderPaid || !o.paidOutside() || o.Refunded > 0 {
		return nil, errOrderState(o, "Only a payment outside can be undone, and only before anything is refunded.")
	}
	if !t.exact.Before(o.EndedAt.Add(outsideFor)) {
		return nil, errOrderState(o, "It can be undone for 24 hours after it was marked: refund it instead.")
	}
	method := string(*o.Method)
	t.noteRevenue(o)
	if err := unmarkPaid(t, o); err != nil {
		return nil, err
	}
	t.saveOrder(o)
	t.setErasure(o)
	t.addEvent(totalEvent(o, eventOrderUnpaid, actor, "method", method))
	return o, nil
}

// unmarkPaid gives an order the state that it had before it was marked as paid outside. One that had expired then gets
// the end that it had, or an earlier one: it can't be marked again for longer than outsideFor after that. Errors:
// order_limit_reached.
func unmarkPaid(t *tx, o *order) error {
	o.State, o.PaidFrom = valueOr(o.PaidFrom, orderOpen), nil // before version 9 only open ones were marked
	o.Method, o.PaidAt, o.EndedAt, o.Seller = nil, stamp{}, stamp{}, nil
	switch o.State {
	case orderExpired:
		o.EndedAt = o.ExpiresAt
		if !o.AuthorizedAt.IsZero() { // it ended when its money was released
			p, err := t.payment(*o.PaymentID)
			if err != nil {
				return err
			}
			if o.Method = new(orderMethod(p.Method)); p.EndedAt.After(o.EndedAt.Time) {
				o.EndedAt = p.EndedAt
			}
		}
		if t.now.Before(o.EndedAt.Time) {
			o.EndedAt = t.now
		}
		return nil
	case orderOpen:
		if again := t.now.after(minOrderLife); again.After(o.ExpiresAt.Time) {
			o.ExpiresAt = again
		}
		if o.Pay == payLater {
			o.AcceptBy = o.ExpiresAt
		}
	}
	return mayOpen(t, o)
}

// cancelLater cancels the orders of an account that is closed for which nobody pays online: at the door nobody can
// mark them as paid any more. The providers' answers cancel the others.
func cancelLater(t *tx, accountID string) error {
	all, err := t.laterOrders(accountID, int64(t.limits.openOrders))
	for i := range all {
		if err == nil {
			err = endOrder(t, &all[i], orderCancelled, "account_closed", actorTime)
		}
	}
	return err
}

// eraseAt returns when the guest of an order is to be erased: keptCustomersFor after its end, or after it was accepted
// if nobody marks it as paid. One that the restaurant still has to make has its guest until then. Zero: it goes on.
func (o *order) eraseAt() stamp {
	end := o.EndedAt
	if o.State == orderAccepted && o.Pay == payLater {
		end = o.AcceptedAt
	}
	if !end.IsZero() && !o.dead() && o.State != orderRefunded && o.WantedAt.After(end.Time) {
		end = o.WantedAt
	}
	return end.after(keptCustomersFor)
}
