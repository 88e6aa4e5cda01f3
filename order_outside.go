package main

import (
	"slices"
	"time"
)

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
