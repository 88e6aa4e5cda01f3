package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
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

// The methods by which guests pay online: what each of them can do, and which of them may be offered for an order.

// A payingMethod is what there is to know of a method by which guests pay at a provider.
type payingMethod struct {
	name          string
	provider      string
	capturedFirst bool          // it is captured by being paid: there is no reservation
	early         bool          // it may be captured before the goods are handed over
	refunds       time.Duration // how long after its capture it can be given back; 0: no limit of ours
}

// payingMethodList are all of them, local ones first: TWINT is paid in Swiss francs only, Vipps MobilePay in the
// currencies of its countries only.
var payingMethodList = []payingMethod{
	{methodTwint, providerStripe, true, true, days(180)},
	{methodMobile, providerVipps, false, false, 0},
	{methodCard, providerStripe, false, true, 0},
}

// cardReservation is how long the money of a card is reserved where its provider does not say when that ends.
const cardReservation = 7 * 24 * time.Hour

// findMethod returns the method with a name; the zero payingMethod for any other way of paying.
func findMethod[T ~string](name T) payingMethod {
	for _, m := range payingMethodList {
		if m.name == string(name) {
			return m
		}
	}
	return payingMethod{}
}

// capturedFirst reports whether the attempt is captured by being paid.
func (p *payment) capturedFirst() bool { return findMethod(p.Method).capturedFirst }

// lapses returns when the attempt's reservation ends if the provider has not said so; zero: it has none.
func (p *payment) lapses(now stamp) stamp {
	switch {
	case !p.CaptureBefore.IsZero(), p.capturedFirst():
		return p.CaptureBefore
	case p.AuthorizedAt.IsZero():
		return now.after(cardReservation)
	}
	return p.AuthorizedAt.after(cardReservation)
}

// endsEarly reports whether a reservation that ends at a moment ends before the order is wanted.
func (o *order) endsEarly(reserved time.Time) bool {
	return !o.WantedAt.IsZero() && reserved.Before(o.WantedAt.Time)
}

// offers reports whether guests can pay by a method with the connection.
func (c *paymentConnection) offers(m payingMethod) bool {
	switch {
	case m.provider != c.Provider:
		return false
	case len(c.Methods) == 0:
		return m.name == providerOf(c.Provider).methods[0]
	}
	return slices.Contains(c.Methods, m.name)
}

// setMethods sets the methods of a connection. Errors: one for people, if its provider does not have one of them.
func (c *paymentConnection) setMethods(names []string) error {
	known := providerOf(c.Provider).methods
	for i, name := range names {
		if !slices.Contains(known, name) || slices.Contains(names[:i], name) {
			return fmt.Errorf("-methods: %s has %s, each named once", c.Provider, strings.Join(known, " and "))
		}
	}
	c.Methods = names
	return nil
}

// What a guest is to know of a method beside its name (offeredMethod.Note): keys of texts.
const (
	noteChargedNow      = "charged_now"           // and given back if the restaurant declines
	noteChargedAccepted = "charged_on_acceptance" // by the restaurant
	noteChargedHandover = "charged_on_handover"   // and reserved until then
)

// An offeredMethod is a method by which a guest may pay an order.
type offeredMethod struct {
	Method string
	Note   string // when the guest is charged: noteChargedNow, …
}

// methodsFor returns the methods by which an order can be paid, those that are local to its currency first.
func (p *payments) methodsFor(o *order) ([]offeredMethod, error) {
	offered := []offeredMethod{}
	if p.off() {
		return offered, nil
	}
	conns, err := p.store.usedConnections(o.AccountID)
	if err != nil {
		return nil, fmt.Errorf("find the connections of an account: %w", err)
	}
	settings, err := p.store.settings(o.AccountID)
	if err != nil {
		return nil, err
	}
	now := p.now()
	for _, m := range payingMethodList {
		c := p.connectionOf(conns, o, m, now)
		switch {
		case c == nil:
			continue
		case m.capturedFirst:
			offered = append(offered, offeredMethod{m.name, noteChargedNow})
			continue
		}
		note, reserved := noteChargedHandover, now.Add(p.providers[c.Provider].reserves(o.Currency))
		if m.early && (settings.CaptureOn == captureOnAccept || o.endsEarly(reserved)) {
			note = noteChargedAccepted
		}
		offered = append(offered, offeredMethod{m.name, note})
	}
	return offered, nil
}

// connectionOf returns the connection by which an order can be paid by a method at now, nil if there is none. A
// method that must fail is never offered: the provider does not take the amount or the currency, or its reservation
// would end before the order is wanted, and it forbids capture before that.
func (p *payments) connectionOf(
	conns []*paymentConnection, o *order, m payingMethod, now time.Time,
) *paymentConnection {
	for _, c := range conns {
		client := p.providers[c.Provider]
		if client == nil || !c.offers(m) || !client.takes(m.name, o.Currency, o.Total) {
			continue
		}
		if m.early || !o.endsEarly(now.Add(client.reserves(o.Currency))) {
			return c
		}
	}
	return nil
}

// What providers report of what they pay out (contract, section 12). The clients only read and name; payout.go
// keeps what they say, and payout.go judges it.

// What comes of a payout, as its provider calls it, and as its states are called.
const (
	payoutPaid     = "paid"
	payoutFailed   = "failed"
	payoutCanceled = "canceled"
)

// A payoutReport is one payout, as its provider reports it.
type payoutReport struct {
	providerID string // unique at the provider
	amount     int64  // in the minor unit; negative: the provider takes it
	currency   string
	arrival    string // the date on which it arrives, as far as the provider knows
	automatic  bool   // no: somebody has asked for it, so the provider does not tell what is in it
	method     string // standard or instant; "": the provider does not say
	status     string // the provider's own word; payoutPaid, payoutFailed and payoutCanceled mean that
	complete   bool   // what is in it can be read, and does not change any more
}

// The categories of the rows of a provider's ledger.
const (
	rowPayment    = "payment"    // captured, or taken back of that
	rowRefund     = "refund"     // given back, or put back since that has failed
	rowDispute    = "dispute"    // taken for a dispute, or put back
	rowFee        = "fee"        // kept by the provider, beside what it keeps of other rows
	rowReserve    = "reserve"    // withheld, or returned of that
	rowReturned   = "returned"   // an earlier payout that did not arrive
	rowCorrection = "correction" // by the provider or the account there, which says nothing of orders
	rowUnknown    = "unknown"    // of a kind that we do not know
)

// A payoutCategory is what a row of a payout is. `payment`: captured, or taken back of that. `refund`: given
// back, or put back since that has failed. `dispute`: taken for a dispute, or put back. `fee`: kept by the
// provider beside what it keeps of other rows. `reserve`: withheld, or returned of that. `returned`: an earlier
// payout that did not arrive. `correction`: by the provider or the account there. `unknown`: of a kind that this
// service does not know.
type payoutCategory string

// A payoutMethod is how what is in a payout was paid; `null`: it is of no payment of the account's.
type payoutMethod string

var (
	_ = declareWords[payoutCategory](rowPayment, rowRefund, rowDispute, rowFee, rowReserve, rowReturned, rowCorrection,
		rowUnknown)
	_ = declareWords[payoutMethod](methodCard, methodMobile, methodTwint)
)

// A ledgerRow is one movement of money in a provider's ledger. Amounts are in the minor unit, and negative for what
// was taken; what remains of it is amount - fee - tax. Of rowFee all is fee or tax, and the amount is 0.
type ledgerRow struct {
	id       string // unique in its payout
	category string // rowPayment, …
	kind     string // the provider's own name
	amount   int64
	fee, tax int64
	currency string
	at       time.Time

	// What it is about: the attempt by our id or by the provider's (payment.IntentID), and the provider's id of a
	// refund or a dispute, or of the payout that has come back. "": unknown.
	paymentID, intentID, source string

	// The payout that this row schedules, with what came since the one before in the same currency. The row itself is
	// not in it. nil: another row.
	schedules *payoutReport
}

// net returns what a row adds to a balance.
func (r *ledgerRow) net() int64 { return r.amount - r.fee - r.tax }

// A payoutNews is what a provider tells of what it pays out.
type payoutNews struct {
	payouts []payoutReport // payouts, as they are now, whose rows are read by provider.payoutRows
	rows    []ledgerRow    // rows of a ledger that schedules payouts itself, the earliest first, each once
	cursor  string         // from where it goes on the next time
	more    bool           // there is more at once
}
