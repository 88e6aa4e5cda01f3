package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"
)

// How attempts are begun and settled: asking the provider, and carrying out there what was decided.

const (
	settleRounds   = 6                // looks and operations in one call of settle; news leads to the next one
	attemptLimit   = 12 * time.Second // how long the guest's browser waits for the provider
	receiptLimit   = 4 * time.Second  // how long a page that the guest came back to waits
	resendFirst    = 2 * time.Second  // after an operation without an answer, see backoff
	resendLongest  = 5 * time.Minute
	deniedDelay    = 5 * time.Minute // after a provider has refused the keys of a connection
	faultConnected = "the secrets of a payment connection can't be read: connect it again"
)

// Why an attempt can't be begun. Guests see it as a page, so the API does not have these codes.
var (
	codeNotPayable        = &problemCode{name: "order_not_payable", status: 409}
	codeMethodUnavailable = &problemCode{name: "method_unavailable", status: 409}
	codeAttemptLimit      = &problemCode{name: "attempt_limit_reached", status: 409}
	codeAttemptClosing    = &problemCode{name: "attempt_closing", status: 409}
	codeProviderDown      = &problemCode{name: "provider_unavailable", status: 503}
	codeProviderRefused   = &problemCode{name: "provider_refused", status: 409}
	codeTooSmall          = &problemCode{name: reasonTooSmall, status: 409}

	errNotPayable   = &refusal{code: codeNotPayable}
	errMethod       = &refusal{code: codeMethodUnavailable}
	errRefused      = &refusal{code: codeProviderRefused}
	errTooSmall     = &refusal{code: codeTooSmall}
	errAttemptLimit = &refusal{code: codeAttemptLimit}
	errClosing      = &refusal{code: codeAttemptClosing, retryAfter: 2 * time.Second}
	errProviderDown = &refusal{code: codeProviderDown, retryAfter: 5 * time.Second}
)

// payments begins and settles attempts. Any number of goroutines may use it.
type payments struct {
	connector
	providers map[string]provider // by name
	locked    sync.Map            // by the id of an attempt that is being settled: a channel that is closed at the end
}

// lock takes the lock of an attempt, so that this process does not ask its provider about it twice at once.
// Errors: that of ctx.
func (p *payments) lock(ctx context.Context, id string) (unlock func(), err error) {
	ended := make(chan struct{})
	for {
		other, locked := p.locked.LoadOrStore(id, ended)
		if !locked {
			return func() { p.locked.Delete(id); close(ended) }, nil
		}
		select {
		case <-other.(chan struct{}):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// settle asks the provider about an attempt, adopts the answer, and has the provider do what follows from it,
// until there is no news (contract, section 11: one function settles an attempt, whoever noticed). Any number of
// calls for one attempt, in any order and in several processes, have the effect of one. If the provider can't be
// asked, or does not answer, the worker asks it again later. Errors: that of ctx, and of the store.
func (p *payments) settle(ctx context.Context, id string) error {
	unlock, err := p.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	for range settleRounds {
		again, err := p.round(ctx, id)
		if err != nil || !again {
			return err
		}
	}
	return nil // it is still due, so the worker continues
}

// round carries out the operation that an attempt waits for, or else looks at it once. It reports whether
// there is more to be done now.
func (p *payments) round(ctx context.Context, id string) (again bool, err error) {
	pay, err := p.store.payment(id)
	if err != nil {
		return false, err
	}
	conn, err := p.openConnection(pay)
	switch {
	case errors.Is(err, errUnreadable):
		return false, err
	case err != nil:
		return false, p.postpone(pay, deniedDelay)
	}
	op, err := p.store.pendingOperation(id)
	if err != nil {
		return false, err
	}
	if op != nil {
		return p.resume(ctx, conn, pay, op)
	}
	report, err := p.providers[string(pay.Provider)].fetchStatus(ctx, conn, pay)
	if err != nil {
		return false, p.pollLater(ctx, conn, pay, err)
	}
	op, call, err := p.decide(pay, conn, report)
	switch {
	case errors.Is(err, errChanged):
		return true, nil
	case err != nil: // postponed, so that the provider is not asked again without a pause
		return false, errors.Join(err, p.postpone(pay, max(pollDelay(pay.Polls), resendFirst)))
	case op == nil:
		return false, nil
	}
	return p.send(ctx, conn, pay, op, *call)
}

// openConnection returns the connection of an attempt with its secrets.
func (p *payments) openConnection(pay *payment) (*unsealedConnection, error) {
	c, err := p.store.paymentConnection(anyAccount, pay.ConnectionID)
	if err != nil {
		return nil, err
	}
	conn, err := c.open(p.keys())
	if err != nil {
		p.log.Warn(faultConnected, "error", err, "connection", c.ID)
	}
	return conn, err
}

// decide decides about an attempt from its provider's report. It returns the operation to be sent, nil if there is
// none. Errors: errChanged if the attempt has changed since pay was read.
func (p *payments) decide(
	pay *payment, conn *unsealedConnection, report *paymentReport,
) (op *paymentOperation, call *providerCall, err error) {
	err = p.update(context.Background(), func(t *tx) error {
		s, err := p.loadSettlement(t, pay.ID)
		if err != nil {
			return err
		}
		if s.payment.Revision != pay.Revision {
			return errChanged
		}
		before := *s.payment
		s.adoptReport(report)
		v := judge(&s.facts)
		if v.payment.State != before.State {
			v.payment.Polls = 0
		}
		if v.payment.DueAt = v.dueAt(t.exact); v.next == nil {
			v.payment.Polls++
		}
		if err := s.carryOut(&v); err != nil {
			return err
		}
		if v.next != nil {
			op, call = p.addOperation(t, &v.payment, s.order, v.next, "")
		}
		p.logTrouble(&before, &v.payment)
		t.noteBegun(&before, &v.payment)
		return setConnectionRefused(t, conn.paymentConnection, false)
	})
	return op, call, err
}

// logTrouble logs a warning if an attempt has begun to need somebody's attention.
func (p *payments) logTrouble(before, after *payment) {
	if after.Warned && !before.Warned {
		p.log.Warn("an authorisation lapses soon: capture or cancel it", "order", after.OrderID,
			"payment", after.ID, "at", after.CaptureBefore.String())
	}
	if after.State == paymentReview && before.State != paymentReview {
		p.log.Warn("a payment is in review: look at it", "order", after.OrderID, "payment", after.ID,
			"reason", valueOr(after.Reason, ""))
	}
}

// setConnectionRefused notes whether a provider refuses a connection's keys, and writes an event if that changes.
// While an operation waits for other keys, the connection stays refused, even if its keys may do the rest.
func setConnectionRefused(t *tx, c *paymentConnection, refused bool) error {
	if refused == !c.FailingSince.IsZero() {
		return nil
	}
	since, kind := stamp{}, eventConnectionRestored
	if refused {
		since, kind = t.now, eventConnectionRefused
	} else if waits, err := t.hasDenied(c.ID); err != nil || waits {
		return err
	}
	if t.setConnectionFailing(c.ID, since) {
		c.FailingSince = since
		t.addEvent(connectionEvent(c, kind, actorProvider))
	}
	return nil
}

// noteBegun ends what was noted of refusals, if a provider has begun an attempt that was only created before.
func (t *tx) noteBegun(before, now *payment) {
	if before.State == paymentCreated && (now.live() && now.State != paymentCreated || now.Captured > 0) {
		t.endRefusal(now.ConnectionID, string(now.Method))
	}
}

// noteRefusal notes that a provider has refused for good to begin an attempt, for a reason that is not its order's. An
// order that is tried again counts once.
func (s *settlement) noteRefusal(c *paymentConnection, failed *outboundError) {
	t, r := s.t, paymentRefusal{ConnectionID: c.ID, Method: string(s.payment.Method), Since: s.t.now}
	noted, _ := t.paymentRefusals(c.ID) // rows that can't be read are written anew
	for _, before := range noted {
		if before.Method == r.Method {
			r = before
		}
	}
	r.Code, r.Words, r.RefusedAt = failed.reason, failed.detail, t.now
	if !slices.Contains(r.OrderIDs, s.order.ID) {
		r.Count, r.OrderIDs = r.Count+1, append(r.OrderIDs, s.order.ID)
		r.OrderIDs = r.OrderIDs[max(0, len(r.OrderIDs)-refusedTold):]
		if r.Count == refusedTold {
			t.addEvent(event{Type: eventAttemptsRefused, AccountID: c.AccountID, SubjectID: c.ID, Actor: actorProvider,
				Data: eventData("connection_id", c.ID, "method", r.Method, "code", r.Code,
					"count", strconv.Itoa(r.Count))})
		}
	}
	t.endRefusal(c.ID, r.Method)
	paymentRefusalTable.insert(t, &r)
}

// pollLater postpones an attempt whose provider could not be asked.
func (p *payments) pollLater(ctx context.Context, conn *unsealedConnection, pay *payment, failure error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	wait := max(pollDelay(pay.Polls), resendFirst)
	if answer, ok := errors.AsType[*outboundError](failure); ok {
		if answer.outcome == vendorDenied {
			return errors.Join(p.noteDenied(conn, nil), p.postpone(pay, deniedDelay))
		}
		wait = max(wait, min(answer.wait, longestWait))
	}
	return p.postpone(pay, wait)
}

// noteDenied notes that the provider refuses a connection's keys. op is an operation that the keys may not carry
// out and that waits for other keys; nil: none does.
func (p *payments) noteDenied(conn *unsealedConnection, op *paymentOperation) error {
	return p.update(context.Background(), func(t *tx) error {
		if op != nil {
			op.Error = new(reasonDenied)
			if err := t.saveOperation(op); err != nil && !errors.Is(err, errChanged) {
				return err
			}
			t.setRefundWaits(valueOr(op.RefundID, ""))
		}
		return setConnectionRefused(t, conn.paymentConnection, true)
	})
}

// postpone settles an attempt later, unless it has changed since pay was read. If a refund of it has been
// under way for too long, perhaps because the provider can't be asked, it is marked for review.
func (p *payments) postpone(pay *payment, wait time.Duration) error {
	pay.Polls++
	return p.update(context.Background(), func(t *tx) error {
		at := fromNow(t.exact, jittered(wait))
		if t.postpone(pay, at); pay.Captured == 0 || pay.State == paymentReview {
			return nil
		}
		s, err := p.loadSettlement(t, pay.ID)
		if err != nil {
			return err
		}
		if v := judge(&s.facts); v.review {
			p.logTrouble(pay, &v.payment)
			return s.carryOut(&v)
		}
		return nil
	})
}

// resume carries out an operation whose answer is not known: an earlier call has sent it, or was about to.
func (p *payments) resume(
	ctx context.Context, conn *unsealedConnection, pay *payment, op *paymentOperation,
) (again bool, err error) {
	client := p.providers[string(pay.Provider)]
	old := p.now().Sub(op.CreatedAt.Time) > keysLast
	if client.readsFirst() || old {
		report, err := client.fetchStatus(ctx, conn, pay)
		if err != nil {
			return false, p.pollLater(ctx, conn, pay, err)
		}
		if report.shows(op) {
			return p.finish(pay, conn, op, sentOperation{sessionID: report.sessionID, url: report.url}, nil)
		}
		if old {
			return p.finish(pay, conn, op, sentOperation{}, &outboundError{outcome: vendorStale, reason: "no_answer"})
		}
	}
	call := providerCall{}
	plain, err := p.keys().unsealFor(sealedOperation, op.ID, op.Sealed)
	if err == nil {
		err = json.Unmarshal(plain, &call)
	}
	if err != nil {
		return p.finish(pay, conn, op, sentOperation{},
			&outboundError{outcome: vendorStale, reason: "request_unreadable"})
	}
	return p.send(ctx, conn, pay, op, call)
}

// shows reports whether a provider's report proves that an operation was carried out.
func (r *paymentReport) shows(op *paymentOperation) bool {
	if slices.Contains(r.done, op.ID) {
		return true
	}
	switch op.Kind {
	case opCreate:
		return r.phase != phaseUnknown
	case opCapture:
		return r.captured > 0
	case opCancel, opExpire:
		return r.phase != phaseUnknown && r.phase != phaseOpen && r.authorized == 0
	}
	return slices.ContainsFunc(r.refunds, func(f refundReport) bool {
		return f.operationID == op.ID || f.refundID != "" && f.refundID == valueOr(op.RefundID, "")
	})
}

// send sends an operation and processes the result.
func (p *payments) send(
	ctx context.Context, conn *unsealedConnection, pay *payment, op *paymentOperation, call providerCall,
) (again bool, err error) {
	sent, err := p.providers[string(pay.Provider)].send(ctx, conn, op, call)
	failed, _ := errors.AsType[*outboundError](err)
	switch {
	case failed == nil:
	case failed.outcome == vendorDenied && op.Kind == opCreate:
		// No guest was ever sent to it, so nobody can pay it: it fails, and the order does not wait for valid keys.
		if err := p.noteDenied(conn, nil); err != nil {
			return false, err
		}
		failed.outcome = vendorRefused
	case failed.outcome == vendorDenied:
		return false, errors.Join(p.noteDenied(conn, op), p.postpone(pay, deniedDelay))
	case !failed.final() && failed.outcome != vendorStale && ctx.Err() != nil:
		return false, ctx.Err() // it stays due, and is sent again
	}
	return p.finish(pay, conn, op, sent, failed)
}

// finish processes what has become of an operation; failed is nil if the provider has carried it out. It reports
// whether the attempt is to be looked at now.
func (p *payments) finish(
	pay *payment, conn *unsealedConnection, op *paymentOperation, sent sentOperation, failed *outboundError,
) (again bool, err error) {
	err = p.update(context.Background(), func(t *tx) error {
		s, err := p.loadSettlement(t, pay.ID)
		if err != nil {
			return err
		}
		before := *s.payment
		s.adoptResult(op, sent, failed)
		v := judge(&s.facts)
		stale := failed != nil && failed.outcome == vendorStale
		switch now := &v.payment; {
		case failed != nil && !failed.final() && !stale:
			now.Polls++
			wait := backoff(t.exact.Sub(op.CreatedAt.Time), resendFirst, resendLongest)
			now.DueAt = fromNow(t.exact, jittered(max(wait, min(failed.wait, longestWait))))
		case failed == nil && op.Kind == opCreate && now.State == paymentPending:
			now.DueAt = fromNow(t.exact, pollDelay(0))
		default:
			now.DueAt, again = t.now, now.EndedAt.IsZero() || stale
		}
		if err := t.saveOperation(op); err != nil {
			return err
		}
		if err := s.carryOut(&v); err != nil {
			return err
		}
		p.logTrouble(&before, &v.payment)
		t.noteBegun(&before, &v.payment)
		switch {
		case failed == nil:
			err = setConnectionRefused(t, conn.paymentConnection, false)
		case op.Kind == opCreate && failed.final() && !failed.ofOrder:
			s.noteRefusal(conn.paymentConnection, failed)
		}
		return err
	})
	if errors.Is(err, errChanged) {
		return true, nil // another process has finished it
	}
	return again, err
}

// A begunAttempt is what begin has found or made.
type begunAttempt struct {
	payment *payment
	op      *paymentOperation // to be sent; nil: the attempt existed already
	call    *providerCall
	closing bool // the attempt is by another method, and is to be closed
}

// startAttempt begins an attempt to pay an order by a method, unless one by that method is live, and returns
// where to send the guest: the provider's page, or returnURL if there is nothing to pay any more. An attempt by
// another method is closed first. Errors: errOrder, errNotPayable, errMethod, errAttemptLimit, errClosing,
// errTooSmall, errRefused, errProviderDown.
func (p *payments) startAttempt(ctx context.Context, orderID, method, returnURL string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	for range 3 {
		begun, err := p.begin(ctx, orderID, method, returnURL)
		if err != nil {
			return "", err
		}
		if err := p.carryOut(ctx, begun); err != nil && ctx.Err() == nil {
			return "", err
		}
		now, err := p.store.payment(begun.payment.ID)
		switch {
		case err != nil:
			return "", err
		case now.State == paymentPending && now.URL != nil && !begun.closing:
			return *now.URL, nil
		case now.State == paymentFailed:
			return "", p.creationError(now)
		case now.live() && now.State != paymentAuthorized && begun.closing:
			return "", errClosing
		case now.live() && now.State != paymentAuthorized:
			return "", errProviderDown
		case now.EndedAt.IsZero():
			return returnURL, nil // the guest has paid already
		}
	}
	return "", errClosing
}

// creationError returns why an attempt could not be created: errTooSmall or errRefused if its provider has refused
// that, else errProviderDown.
func (p *payments) creationError(pay *payment) error {
	operations, err := p.store.operationsOf(pay.ID)
	if err != nil {
		return err
	}
	for i := range operations {
		op, status := &operations[i], valueOr(operations[i].Status, 0)
		denied := status == http.StatusUnauthorized || status == http.StatusForbidden
		switch {
		case op.Kind != opCreate || status < 400 || status >= 500 || denied || slices.Contains(passingStatuses, status):
		case valueOr(op.Error, "") == reasonTooSmall:
			return errTooSmall
		default:
			return errRefused
		}
	}
	return errProviderDown
}

// carryOut carries out what begin has found or made: it creates the attempt at the provider, or looks at it.
func (p *payments) carryOut(ctx context.Context, begun *begunAttempt) error {
	if begun.op == nil {
		return p.settle(ctx, begun.payment.ID)
	}
	unlock, err := p.lock(ctx, begun.payment.ID)
	if err != nil {
		return err
	}
	defer unlock()
	conn, err := p.openConnection(begun.payment)
	if err != nil {
		return err
	}
	_, err = p.send(ctx, conn, begun.payment, begun.op, *begun.call)
	return err
}

// begin returns the attempt by which an order is being paid, or makes one, with the operation that creates
// it at the provider, on disk before it is sent.
func (p *payments) begin(ctx context.Context, orderID, method, returnURL string) (begun *begunAttempt, err error) {
	err = p.update(ctx, func(t *tx) error {
		begun = &begunAttempt{}
		o, err := t.order(anyAccount, orderID)
		if err != nil {
			return err
		}
		if err := t.openAccount(o.AccountID); err != nil || o.State != orderOpen || o.Pay == payLater ||
			!t.exact.Before(o.ExpiresAt.Time) {
			return errNotPayable
		}
		if p.off() {
			return errMethod
		}
		if begun.payment, err = t.livePayment(o.ID); err != nil {
			return err
		}
		if live := begun.payment; live != nil {
			if string(live.Method) != method { // the live one is not closed for an unavailable method
				if _, err := p.connectionFor(t, o, method); err != nil {
					return err
				}
			}
			begun.closing = string(live.Method) != method || o.Closing != nil
			p.closeForMethod(t, o, begun)
			return nil
		}
		if err := notInReview(t, o); err != nil {
			return err
		}
		return p.newAttempt(t, o, method, returnURL, begun)
	})
	return begun, err
}

// notInReview returns errNotPayable if the last attempt to pay an order is in review: it may hold the guest's
// money, so that another attempt could take the money twice.
func notInReview(t *tx, o *order) error {
	if o.PaymentID == nil {
		return nil
	}
	last, err := t.payment(*o.PaymentID)
	if err == nil && last.State == paymentReview {
		err = errNotPayable
	}
	return err
}

// connectionFor returns the connection by which an order can be paid by a method. Errors: errMethod.
func (p *payments) connectionFor(t *tx, o *order, method string) (*paymentConnection, error) {
	conns, err := t.usedConnections(o.AccountID)
	if err != nil {
		return nil, err
	}
	if c := p.connectionOf(conns, o, findMethod(method), t.exact); c != nil {
		return c, nil
	}
	return nil, errMethod
}

// closeForMethod requests that the live attempt to pay an order be closed if the guest now wants another method.
func (p *payments) closeForMethod(t *tx, o *order, begun *begunAttempt) {
	if !begun.closing || o.Closing != nil {
		return
	}
	o.Closing = new(orderClosing(closingMethod))
	t.saveAndPoll(o, begun.payment.ID)
}

// newAttempt makes an attempt to pay an order. Errors: errAttemptLimit, errMethod.
func (p *payments) newAttempt(t *tx, o *order, method, returnURL string, begun *begunAttempt) error {
	if o.Attempts >= t.limits.attempts {
		return errAttemptLimit
	}
	c, err := p.connectionFor(t, o, method)
	if err != nil {
		return err
	}
	pay := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: c.ID,
		Provider: providerName(c.Provider), Method: paymentMethod(method), State: paymentCreated,
		Amount: o.Total, Currency: o.Currency, Revision: 1, CreatedAt: t.now}
	pay.DueAt = fromNow(t.exact, pollDelay(0)+attemptLimit) // then the worker takes over, if this process has ended
	t.addPayment(pay)
	o.Attempts++
	o.PaymentID = &pay.ID
	t.saveOrder(o)
	begun.payment = pay
	begun.op, begun.call = p.addOperation(t, pay, o, &plannedOperation{kind: opCreate, amount: o.Total}, returnURL)
	return nil
}

// settleLive settles the live attempt of an order, if there is one, for at most receiptLimit: the worker finds
// out what is not known by then.
func (p *payments) settleLive(ctx context.Context, orderID string) error {
	live, err := p.store.livePayment(orderID)
	if err != nil || live == nil || p.off() {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, receiptLimit)
	defer cancel()
	err = p.settle(limited, live.ID)
	if limited.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

const faultPaymentsRead = "payments can't be read"

// The worker of payments. It settles the attempts that are due: somebody asked for a look, an answer was lost, or
// it is time to ask the provider again.

const (
	maxSettling           = 32  // attempts that the worker settles at once
	maxSettlingConnection = 8   // of one connection
	settlesAtOnce         = 10  // of a connection, within settleWithin; of one to three requests each
	dueAtOnce             = 256 // see duePayments
	paymentTick           = 250 * time.Millisecond
	settleWithin          = time.Second / 2 // Stripe allows 100 requests a second
	testSettleWithin      = time.Second     // with test keys, for which Stripe allows 25
	settleLimit           = time.Minute     // of one call of settle by the worker
	faultSettle           = "a payment can't be settled"
)

// A paymentWorker settles what is due.
type paymentWorker struct {
	*payments
	dueWorker
}

// newPaymentWorker makes the worker of payments.
func newPaymentWorker(p *payments) *paymentWorker {
	return &paymentWorker{payments: p, dueWorker: newDueWorker(paymentTick, maxSettling, false)}
}

// run settles attempts until ctx ends.
func (w *paymentWorker) run(ctx context.Context) { w.dueWorker.run(ctx, w.wake, w.startDue) }

// takeTurn reports whether the provider of an attempt may be asked now, and counts that it is.
func (w *paymentWorker) takeTurn(d duePayment) bool {
	within := testSettleWithin
	if d.live {
		within = settleWithin
	}
	_, ok := w.pace.reserve(d.connectionID, w.monotonic(), settlesAtOnce, within, 0)
	return ok
}

// startDue begins to settle as many of the attempts that are due as may run. Attempts that somebody asked to look
// at go before those that are only due by the clock.
func (w *paymentWorker) startDue(ctx context.Context) {
	if w.full() || w.off() {
		return
	}
	due, err := w.store.duePayments(newStamp(w.now()), dueAtOnce)
	if err != nil {
		w.log.Warn(faultPaymentsRead, "error", err)
		return
	}
	sort.SliceStable(due, func(i, j int) bool { return due[i].polls == 0 && due[j].polls > 0 })
	for _, d := range due {
		switch {
		case w.full():
			return
		case w.runs(d.id), w.runningOf(d.connectionID) >= maxSettlingConnection:
			continue
		case !w.takeTurn(d):
			continue
		}
		w.start(d.id, d.connectionID, func() {
			limited, cancel := context.WithTimeout(ctx, settleLimit)
			defer cancel()
			if err := w.settle(limited, d.id); err != nil && ctx.Err() == nil && !errors.Is(err, errNotFound) &&
				!w.store.faults.leaveOut(d.id, err) {
				w.log.Warn(faultSettle, "error", err)
			}
		})
	}
}
