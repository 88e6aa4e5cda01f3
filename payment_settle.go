package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Decisions about an attempt, based on its provider's report. settle, in payment_operation.go, asks the provider
// and carries out what is decided here.

// A settlement is an attempt, its order and all that belongs to them, as one transaction sees them, with the
// provider's report. decide changes them; save writes them.
type settlement struct {
	*tx
	provider provider
	report   *paymentReport
	payment  *payment
	order    *order
	refunds  []refund
	disputes []dispute
	accepts  int      // minutes that the restaurant has to accept the order, once it is authorised
	closed   bool     // the account is closed
	behind   bool     // the report is older than an operation that the provider has carried out
	doubted  bool     // the clock is in doubt, so no attempt ends because of the time
	undone   bool     // a refund has failed
	exceeds  bool     // the report lists more refunds than it says was given back
	found    []string // ids of the refunds that the report has named so far
	next     *plannedOperation
}

// A plannedOperation is what is to be asked of the provider next.
type plannedOperation struct {
	kind     string
	amount   int64
	refundID *string
}

// loadSettlement reads an attempt and what belongs to it. Errors: errNotFound.
func loadSettlement(t *tx, paymentID string, of map[string]provider) (s *settlement, err error) {
	s = &settlement{tx: t}
	if s.payment, err = t.payment(paymentID); err != nil {
		return nil, err
	}
	s.provider = of[s.payment.Provider]
	if s.order, err = t.order(anyAccount, s.payment.OrderID); err != nil {
		return nil, err
	}
	if s.refunds, err = t.refundsOf(s.order.ID); err != nil {
		return nil, err
	}
	if s.disputes, err = t.disputesOf(s.order.ID); err != nil {
		return nil, err
	}
	a, err := t.account(s.order.AccountID)
	if err != nil {
		return nil, err
	}
	s.closed = !a.ClosedAt.IsZero()
	settings, err := t.settings(s.order.AccountID)
	s.accepts = settings.AcceptWithin
	return s, err
}

// addOrderEvent writes an event about the order, with the attempt among its data.
func (s *settlement) addOrderEvent(kind eventType, data ...string) {
	data = append([]string{"payment_id", s.payment.ID}, data...)
	s.addEvent(orderEvent(s.order, kind, actorProvider, data...))
}

// enter has the order enter a state because of the attempt. more are further data of the event.
func (s *settlement) enter(state string, more ...string) error {
	with := stateEntry{actor: actorProvider, data: append([]string{"payment_id", s.payment.ID}, more...)}
	if state == orderAuthorized || state == orderPaid {
		with.method, with.paidAt = s.payment.Method, s.payment.CapturedAt
	}
	return s.order.enter(s.tx, state, with)
}

// money returns an amount and the order's currency as data of an event.
func (s *settlement) money(amount int64) []string {
	return []string{"amount", strconv.FormatInt(amount, 10), "currency", s.order.Currency}
}

// decide adopts the provider's report, and sets what is to be asked of the provider next. It ignores a report
// that can't be true, so that the provider is asked again later.
func (s *settlement) decide(report *paymentReport) error {
	s.report = report
	if report.phase != phaseUnknown && report.captured < s.payment.Captured {
		return nil // captured money stays captured: this report is out of date
	}
	s.takeOver()
	switch report.phase {
	case phaseUnknown:
		return s.unknown()
	case phaseOpen:
		s.decideOpen()
		return nil
	case phaseApproved:
		return s.decideApproved()
	}
	return s.decideClosed()
}

// takeOver copies the ids and amounts of the report to the attempt.
func (s *settlement) takeOver() {
	p, r := s.payment, s.report
	p.CheckedAt = s.now
	if r.phase == phaseUnknown {
		return
	}
	p.Authorized, p.Captured, p.Refunded = r.authorized, r.captured, r.refunded
	if r.sessionID != "" {
		p.SessionID = &r.sessionID
	}
	if r.intentID != "" {
		p.IntentID = &r.intentID
	}
	if !r.captureBefore.IsZero() {
		p.CaptureBefore = newStamp(r.captureBefore)
	}
	p.URL = nilIfEmpty(r.url)
}

// unknownFor is how long an attempt that the provider has confirmed, but does not find now, is still looked for,
// counted from when it was begun: the guest may be paying it.
const unknownFor = 30 * time.Minute

// unknown decides about an attempt that the provider does not know. An attempt that has ended may never have
// reached the provider, so nothing follows from that.
func (s *settlement) unknown() error {
	p := s.payment
	switch p.State {
	case paymentPending:
		if s.exact.Sub(p.CreatedAt.Time) < unknownFor || s.doubted {
			return nil
		}
		return s.end(paymentFailed, reasonUnknown)
	case paymentCreated:
		return s.end(paymentFailed, reasonUnknown)
	case paymentFailed, paymentCancelled, paymentExpired:
		return nil
	}
	s.review(reasonUnknown)
	return nil
}

// checkMoney marks the attempt for review if its amount or its currency at the provider is not ours.
func (s *settlement) checkMoney() {
	switch {
	case s.report.currency != s.payment.Currency:
		s.review(reasonOtherCurrency)
		return
	case s.report.amount != s.payment.Amount:
		s.review(reasonAmountDiffers)
		return
	}
}

// asksOther reports whether the attempt, which is in review, is there because the provider asks the guest for
// another amount or currency.
func (p *payment) asksOther() bool {
	reason := valueOr(p.Reason, "")
	return reason == reasonAmountDiffers || reason == reasonOtherCurrency
}

// decideOpen decides about an attempt that the guest can still pay.
func (s *settlement) decideOpen() {
	if s.payment.State == paymentCreated {
		s.payment.State = paymentPending
	}
	s.checkMoney()
	o, p := s.order, s.payment
	if p.State == paymentReview || !p.EndedAt.IsZero() || o.State != orderOpen || o.Closing != nil || s.closed {
		s.plan(opExpire, 0, nil)
	}
}

// decideApproved decides about an attempt whose money is authorised, or was captured.
func (s *settlement) decideApproved() error {
	p, o := s.payment, s.order
	if !p.EndedAt.IsZero() && o.State == orderOpen && o.PaymentID != nil && *o.PaymentID == p.ID {
		p.State, p.Reason, p.EndedAt = paymentPending, nil, stamp{} // the guest has paid after all
	}
	s.leaveUnknown()
	if p.State == paymentCreated || p.State == paymentPending {
		s.checkMoney()
	}
	if s.report.captured > 0 {
		return s.decideCaptured()
	}
	if p.State == paymentCreated || p.State == paymentPending {
		p.State, p.AuthorizedAt = paymentAuthorized, s.now
		if err := s.authorizeOrder(); err != nil {
			return err
		}
	}
	return s.decideAuthorized()
}

// leaveUnknown takes an attempt out of review if it is there only because the provider did not know it for a while.
func (s *settlement) leaveUnknown() {
	p := s.payment
	if p.State != paymentReview || valueOr(p.Reason, "") != reasonUnknown || valueOr(s.order.PaymentID, "") != p.ID {
		return
	}
	if p.State, p.Reason = paymentAuthorized, nil; !p.CapturedAt.IsZero() {
		p.State = paymentCaptured
	}
}

// authorizeOrder makes an open order, whose money is authorised or was charged, wait for the restaurant to accept it.
// What was to happen once the attempt was closed is dropped, since the guest has paid.
func (s *settlement) authorizeOrder() error {
	o := s.order
	if o.State != orderOpen || s.closed {
		return nil
	}
	lapses := s.payment.CaptureBefore
	if lapses.IsZero() && !s.payment.atOnce() {
		lapses = s.now.after(s.provider.reserves(s.payment.Currency))
	}
	o.AcceptBy = acceptDeadline(s.tx, o, s.accepts, lapses)
	if s.payment.atOnce() {
		o.PaidAt = s.payment.CapturedAt
	}
	o.PaymentID = &s.payment.ID
	return s.enter(orderAuthorized)
}

// decideAuthorized decides about money that can be captured: it is captured if that was requested, released if
// nothing is to be paid with it, and otherwise left waiting.
func (s *settlement) decideAuthorized() error {
	o, p := s.order, s.payment
	if s.closed && (o.State == orderOpen || o.State == orderAuthorized || o.State == orderAccepted) {
		if err := s.enter(orderCancelled); err != nil { // its account is closed
			return err
		}
	}
	switch {
	case o.dead(), o.settled(), o.PaymentID == nil || *o.PaymentID != p.ID, !p.EndedAt.IsZero():
		s.plan(opCancel, 0, nil)
	case p.State == paymentReview:
	case o.State == orderAccepted && o.Capture && o.Total > p.Authorized:
		s.review(reasonCaptureDiffers)
		return nil
	case o.State == orderAccepted && o.Capture:
		return s.capture()
	default:
		s.warnOfEnd()
		return nil
	}
	return nil
}

// capture plans the capture of the order's total, unless that was done and the provider's report is older.
func (s *settlement) capture() error {
	operations, err := s.operationsOf(s.payment.ID)
	if err != nil {
		return err
	}
	s.behind = slices.ContainsFunc(operations, func(op paymentOperation) bool {
		return op.Kind == opCapture && op.State == operationDone
	})
	if !s.behind {
		s.plan(opCapture, s.order.Total, nil)
	}
	return nil
}

// warnOfEnd writes an event, once, when an authorisation is about to lapse.
func (s *settlement) warnOfEnd() {
	p := s.payment
	if p.Warned || p.CaptureBefore.IsZero() || s.exact.Before(p.CaptureBefore.Add(-endingNotice)) {
		return
	}
	p.Warned = true
	s.addOrderEvent(eventOrderEnding, "capture_before", p.CaptureBefore.String())
}

// decideCaptured decides about captured money, and about what was given back of it.
func (s *settlement) decideCaptured() error {
	p, o := s.payment, s.order
	rest := s.completesCapture()
	if rest {
		p.State, p.Reason = paymentCaptured, nil
	}
	if p.CapturedAt.IsZero() || rest {
		p.CapturedAt, p.EndedAt = s.capturedAt(), stamp{}
		if err := s.payOrder(); err != nil {
			return err
		}
	}
	if err := s.reconcileRefunds(); err != nil {
		return err
	}
	s.takeDisputes()
	accepting := o.State == orderAuthorized || o.State == orderAccepted
	givenBack := accepting && valueOr(o.PaymentID, "") == p.ID && p.Refunded >= p.Captured // on the provider's pages
	if givenBack || s.closed && p.atOnce() && (accepting || o.State == orderOpen) {
		if err := s.enter(orderCancelled); err != nil {
			return err
		}
	}
	var err error
	if s.refunds, err = divideRefunds(s.tx, s.order, p); err == nil { // the order may be paid or dead by now
		err = s.release()
	}
	if err != nil {
		return err
	}
	even := s.weigh()
	if differs := s.refundsDiffer(); s.exceeds || differs {
		even = false
		s.review(reasonRefundsDiffer)
	}
	if even && s.mayLeaveReview() {
		switch {
		case p.Refunded >= p.Captured:
			p.State = paymentRefunded
		case p.Refunded > 0:
			p.State = paymentPartRefunded
		default:
			p.State = paymentCaptured
		}
		p.Reason = nil
	}
	if f := s.refundToMake(); f != nil {
		s.plan(opRefund, f.Amount, &f.ID)
	} else if p.Authorized > 0 && p.State != paymentReview { // release what was not accepted
		s.plan(opCancel, 0, nil)
	}
	return nil
}

// capturedAt returns when the attempt's money was captured: as the provider says, but no later than now and no earlier
// than the attempt; now, if it does not say.
func (s *settlement) capturedAt() stamp {
	at := newStamp(s.report.capturedAt)
	switch {
	case at.IsZero(), at.After(s.now.Time):
		return s.now
	case at.Before(s.payment.CreatedAt.Time):
		return s.payment.CreatedAt
	}
	return at
}

// refundsDiffer notes since when the provider says that more was given back than our refunds that are done or under
// way, and reports whether that was more than refundsLag ago.
func (s *settlement) refundsDiffer() bool {
	p, ours := s.payment, int64(0)
	for i := range s.refunds {
		if f := &s.refunds[i]; f.State != refundFailed && s.ofPayment(f) {
			ours += f.Amount
		}
	}
	switch {
	case p.Refunded <= ours:
		p.RefundsDifferSince = stamp{}
	case p.RefundsDifferSince.IsZero():
		p.RefundsDifferSince = s.now
	}
	return !p.RefundsDifferSince.IsZero() && !s.exact.Before(p.RefundsDifferSince.Add(refundsLag))
}

// unaccounted is unaccounted for the attempt and its order.
func (s *settlement) unaccounted() (amount, late int64) {
	return unaccounted(s.order, s.payment, s.refunds, s.disputes, s.exact)
}

// release gives back at once what the attempt holds beyond what its order accounts for, if it is captured by being
// paid: there was no authorisation that could be released.
func (s *settlement) release() error {
	f := releaseOf(s.order, s.payment, s.refunds, s.disputes, s.exact)
	if f == nil {
		return nil
	}
	f.MadeBy = actorProvider
	err := addRefundOf(s.tx, s.order, s.payment, f)
	s.refunds = append(s.refunds, *f)
	return err
}

// weigh marks the attempt for review if its money differs from what its order accounts for, and reports whether
// they agree. Whenever a refund has failed, it writes the event of the review again.
func (s *settlement) weigh() (even bool) {
	p := s.payment
	amount, late := s.unaccounted()
	if amount == 0 {
		return true
	}
	reason := reasonCaptureDiffers
	switch {
	case late >= amount && late > 0:
		reason = reasonRefundPending
	case s.order.dead():
		reason = reasonDeadOrder
	case s.order.settled() && !s.order.paidWith(&p.ID):
		reason = reasonPaidTwice
	}
	if p.State != paymentReview {
		s.review(reason)
		return false
	}
	if valueOr(p.Reason, reasonRefundPending) == reasonRefundPending {
		p.Reason = &reason
	}
	if s.undone {
		s.addOrderEvent(eventOrderReview, "reason", *p.Reason)
	}
	return false
}

// mayLeaveReview reports whether an attempt whose money is accounted for is not in review, or need not be any
// more. Our own refund counts once the provider has it: until then another attempt could take money twice. What was
// given back without a refund that we have accounts for nothing.
func (s *settlement) mayLeaveReview() bool {
	p := s.payment
	reason := valueOr(p.Reason, "")
	return p.State != paymentReview || p.RefundsDifferSince.IsZero() && (reason == reasonRefundPending ||
		reason == reasonRefundsDiffer || p.Refunded+takenOf(s.disputes, p.ID) >= p.Captured ||
		s.order.paidWith(&p.ID) && p.Authorized == 0)
}

// completesCapture reports whether an attempt is in review because another amount than the order's total was
// captured, and what it keeps has become that: the rest was captured on the provider's own pages, or given back.
func (s *settlement) completesCapture() bool {
	p, o := s.payment, s.order
	return p.State == paymentReview && valueOr(p.Reason, "") == reasonCaptureDiffers && !o.dead() && !o.settled() &&
		p.Captured-p.Refunded == o.Total && valueOr(o.PaymentID, "") == p.ID
}

// payOrder marks the order as paid by the attempt, or the attempt for review if it can't be. An order whose method is
// captured by being paid waits to be accepted instead, and money that it does not account for is given back.
func (s *settlement) payOrder() error {
	o, p := s.order, s.payment
	if err := s.addCaptureEvent(); err != nil {
		return err
	}
	switch {
	case p.State == paymentReview && p.asksOther(), p.atOnce() && o.State != orderOpen:
		return nil
	case o.dead():
		s.review(reasonDeadOrder)
		return nil
	case o.settled():
		s.review(reasonPaidTwice)
		return nil
	case p.Captured != o.Total && p.Captured-p.Refunded != o.Total:
		var err error
		if o.State == orderOpen { // nobody else may pay it meanwhile
			err = s.authorizeOrder()
		}
		s.review(reasonCaptureDiffers)
		return err
	case p.atOnce():
		return s.authorizeOrder()
	}
	o.PaymentID = &p.ID
	return s.enter(orderPaid)
}

// addCaptureEvent records, as an operation, a capture that somebody has made on the provider's own pages.
func (s *settlement) addCaptureEvent() error {
	if s.payment.atOnce() { // the guest has
		return nil
	}
	operations, err := s.operationsOf(s.payment.ID)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(operations, func(op paymentOperation) bool {
		return op.Kind == opCapture && op.State != operationRefused
	}) {
		return nil
	}
	s.addOperation(&paymentOperation{ID: s.newID("opr"), PaymentID: s.payment.ID, Kind: opCapture,
		Amount: s.report.captured, Source: sourceProvider, State: operationDone, CreatedAt: s.now, EndedAt: s.now})
	return nil
}

// decideClosed decides about an attempt by which nothing was paid and nothing will be.
func (s *settlement) decideClosed() error {
	state := map[paymentPhase]string{
		phaseCancelled: paymentCancelled, phaseExpired: paymentExpired, phaseFailed: paymentFailed,
	}[s.report.phase]
	return s.end(state, s.report.reason)
}

// end ends an attempt by which nothing was paid, and does what was waiting for that.
func (s *settlement) end(state, reason string) error {
	o, p := s.order, s.payment
	ended := p.State == paymentCancelled || p.State == paymentExpired || p.State == paymentFailed
	if ended && p.State == state {
		return nil
	}
	p.State, p.Reason, p.EndedAt, p.URL, p.Authorized = state, nilIfEmpty(reason), s.now, nil, 0
	switch {
	case o.PaymentID == nil || *o.PaymentID != p.ID:
		return nil
	case o.State == orderOpen:
		return s.afterClosing()
	case (o.State == orderAuthorized || o.State == orderAccepted) && state == paymentExpired:
		return s.enter(orderExpired, "reason", "authorization_lapsed")
	case o.State == orderAuthorized || o.State == orderAccepted:
		return s.enter(orderCancelled)
	}
	return nil
}

// afterClosing does what was to happen once the attempt of an open order was closed.
func (s *settlement) afterClosing() error {
	o := s.order
	closing := valueOr(o.Closing, "")
	o.Closing = nil
	switch {
	case s.closed:
		return s.enter(orderCancelled)
	case closing == closingExpired:
		return s.enter(orderExpired, "reason", "not_paid")
	case closing == closingPaid:
		return finishPayOutside(s.tx, o, actorProvider)
	}
	return nil
}

// review marks the attempt as one that somebody has to look at, and writes an event.
func (s *settlement) review(reason string) {
	if s.payment.State == paymentReview {
		return
	}
	s.payment.State, s.payment.Reason = paymentReview, &reason
	s.addOrderEvent(eventOrderReview, "reason", reason)
}

// plan sets the operation that the provider is asked for next.
func (s *settlement) plan(kind string, amount int64, refundID *string) {
	s.next = &plannedOperation{kind, amount, refundID}
}

// refundToMake returns the oldest refund of the attempt that the provider was not asked for yet, nil if there is none.
func (s *settlement) refundToMake() *refund {
	for i := range s.refunds {
		f := &s.refunds[i]
		if f.State == refundPending && f.ProviderID == nil && f.Source == sourceOurs && s.ofPayment(f) {
			return f
		}
	}
	return nil
}

// ofPayment reports whether a refund gives the attempt's money back.
func (s *settlement) ofPayment(f *refund) bool { return valueOr(f.PaymentID, "") == s.payment.ID }

// reconcileRefunds adopts the provider's report on refunds. Refunds that we do not have were made by somebody on
// the provider's own pages.
func (s *settlement) reconcileRefunds() error {
	s.exceeds = s.report.exceeds()
	for _, told := range s.report.refunds {
		f, err := s.findRefund(told)
		if err != nil {
			return err
		}
		if f == nil {
			if told.state == refundFailed || s.exceeds {
				continue
			}
			told.providerID = s.freeID(told.providerID, told.longID)
			if f, err = addFoundRefund(s.tx, s.order, s.payment, told, actorProvider); err != nil {
				return err
			}
			s.refunds = append(s.refunds, *f)
			f = &s.refunds[len(s.refunds)-1]
		}
		if s.found = append(s.found, f.ID); f.ProviderID == nil || told.longID == "" {
			f.ProviderID = new(s.freeID(told.providerID, told.longID))
		}
		switch {
		case told.state == refundSucceeded && f.State != refundSucceeded:
			err = refundDone(s.tx, s.order, f, actorProvider)
		case told.state == refundFailed && f.State != refundFailed:
			s.undone = true
			err = refundUndone(s.tx, s.order, f, cmp.Or(told.reason, reasonDeclined), actorProvider)
		default:
			s.saveRefund(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findRefund returns our row of a refund that the provider reports, nil if there is none.
func (s *settlement) findRefund(told refundReport) (*refund, error) {
	ours := told.refundID
	if ours == "" && told.operationID != "" {
		operations, err := s.operationsOf(s.payment.ID)
		if err != nil {
			return nil, err
		}
		for _, op := range operations {
			if op.ID == told.operationID {
				ours = valueOr(op.RefundID, "")
			}
		}
	}
	is := func(same func(f *refund, id string) bool) *refund {
		for i := range s.refunds {
			if f := &s.refunds[i]; s.ofPayment(f) && same(f, valueOr(f.ProviderID, "")) {
				return f
			}
		}
		return nil
	}
	f := is(func(f *refund, id string) bool {
		return f.ID == ours || told.longID != "" && id == told.longID || told.longID == "" && id == told.providerID
	})
	if f != nil || told.longID == "" {
		return f, nil
	}
	return is(func(f *refund, id string) bool { // the parts after a slash are what tells it from others
		id, _, _ = strings.Cut(id, "/")
		at := f.Source == sourceOurs || f.CreatedAt.Equal(newStamp(told.at).Time)
		return id == told.providerID && f.Amount == told.amount && at && !slices.Contains(s.found, f.ID)
	}), nil
}

// freeID returns the provider's id of a refund, or the longer one if another refund of the attempt has it.
func (s *settlement) freeID(id, longID string) string {
	if longID != "" && slices.ContainsFunc(s.refunds, func(f refund) bool {
		return s.ofPayment(&f) && valueOr(f.ProviderID, "") == id
	}) {
		return longID
	}
	return id
}

// takeDisputes adopts the provider's report on disputes.
func (s *settlement) takeDisputes() {
	for _, told := range s.report.disputes {
		at := slices.IndexFunc(s.disputes, func(d dispute) bool {
			return d.ID == told.id && d.PaymentID == s.payment.ID
		})
		if at < 0 {
			s.disputes = append(s.disputes, dispute{PaymentID: s.payment.ID, ID: told.id, OrderID: s.order.ID})
			at = len(s.disputes) - 1
		}
		s.takeDispute(&s.disputes[at], told)
	}
	is := func(state string) func(dispute) bool { return func(d dispute) bool { return d.State == state } }
	inquiry := is(disputeInquiry)
	switch {
	case slices.ContainsFunc(s.disputes, is(disputeOpen)):
		s.order.Dispute = new(disputeOpen)
	case !slices.ContainsFunc(s.disputes, func(d dispute) bool { return !inquiry(d) }):
		s.order.Dispute = nil // before version 9 an inquiry counted as a dispute
	}
}

// takeDispute adopts the provider's report on one dispute. An inquiry is no dispute of the order's until the bank
// takes the money.
func (s *settlement) takeDispute(d *dispute, told disputeReport) {
	due := newStamp(told.evidenceBy)
	if d.State == told.state && d.Amount == told.amount && d.Taken == told.taken && d.EvidenceBy.Equal(due.Time) &&
		d.ClosedAt.IsZero() != told.closed {
		return
	}
	d.State, d.Amount, d.Taken, d.EvidenceBy = told.state, told.amount, told.taken, due
	d.Reason, d.OpenedAt = nilIfEmpty(told.reason), newStamp(told.at)
	switch {
	case !told.closed:
		d.ClosedAt = stamp{}
	case d.ClosedAt.IsZero():
		d.ClosedAt = s.now
	}
	s.saveDispute(d)
	kind := eventOrderInquiry
	if d.State != disputeInquiry {
		kind, s.order.Dispute = eventOrderDisputed, &d.State
	}
	data := append(s.money(d.Amount), "dispute_id", d.ID, "state", d.State, "taken", strconv.FormatInt(d.Taken, 10))
	if !due.IsZero() {
		data = append(data, "evidence_by", due.String())
	}
	if !d.ClosedAt.IsZero() {
		data = append(data, "closed_at", d.ClosedAt.String())
	}
	s.addOrderEvent(kind, data...)
}

// save writes what decide has changed, when the provider is asked next, and the operation that is to be
// sent, which it returns with its request; nil: none. Errors: errChanged.
func (s *settlement) save(keys *keyring, changed bool) (*paymentOperation, *providerCall, error) {
	p := s.payment
	var op *paymentOperation
	var call *providerCall
	if s.next != nil {
		tooOften, err := s.refusedTooOften()
		switch {
		case err != nil:
			return nil, nil, err
		case tooOften:
			s.next = nil
			s.review(reasonRefused)
		default:
			op, call = s.prepare(keys, "")
		}
	}
	if changed {
		p.Polls = 0
	}
	if p.DueAt = s.dueAt(); op == nil {
		p.Polls++
	}
	if err := s.savePayment(p); err != nil {
		return nil, nil, err
	}
	s.saveOrder(s.order)
	if op != nil {
		s.addOperation(op)
		return op, call, nil
	}
	return nil, nil, nil
}

// refusedTooOften reports whether the provider has refused the next operation maxRefused times already, since
// somebody last decided about the order.
func (s *settlement) refusedTooOften() (bool, error) {
	decided := s.order.AcceptedAt
	if s.order.EndedAt.After(decided.Time) {
		decided = s.order.EndedAt
	}
	n, err := s.refusedOperations(s.payment.ID, s.next.kind, decided)
	return n >= maxRefused && s.next.kind != opRefund, err
}

// prepare makes the next operation, with its request sealed.
func (s *settlement) prepare(keys *keyring, returnURL string) (*paymentOperation, *providerCall) {
	op := &paymentOperation{ID: s.newID("opr"), PaymentID: s.payment.ID, Kind: s.next.kind, Amount: s.next.amount,
		RefundID: s.next.refundID, Source: sourceOurs, State: operationPending, CreatedAt: s.now}
	call := s.provider.call(op, s.payment, s.order, returnURL)
	op.Sealed = keys.sealFor(sealedOperation, op.ID, encodeJSON(call))
	return op, &call
}

// pollDelays are the pauses between looks at an attempt that can still be paid, as long as there is no news; the
// last one is repeated.
var pollDelays = [...]time.Duration{
	5 * time.Second, 5 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute,
}

// pollDelay returns the pause after that many looks without news.
func pollDelay(polls int) time.Duration { return pollDelays[min(polls, len(pollDelays)-1)] }

const (
	authorizedLook = time.Hour
	dailyLook      = 24 * time.Hour
	weeklyLook     = 7 * 24 * time.Hour
	dailyLookFor   = 30 * 24 * time.Hour  // after the money was captured
	weeklyLookFor  = 180 * 24 * time.Hour // after the money was captured; after that it is never looked at again
)

// dueAt returns when the provider is to be asked about the attempt next; zero: never again.
func (s *settlement) dueAt() stamp {
	p := s.payment
	pending, hourly := false, s.in(authorizedLook)
	if again := p.RefundsDifferSince.after(refundsLag); again.After(s.exact) {
		pending, hourly = true, again
	}
	for i := range s.refunds {
		if f := &s.refunds[i]; f.State == refundPending && s.ofPayment(f) {
			pending = true
			if late := f.CreatedAt.after(refundLate); late.After(s.exact) && late.Before(hourly.Time) {
				hourly = late
			}
		}
	}
	held := s.exact.Sub(p.CapturedAt.Time)
	switch {
	case s.next != nil, s.behind, p.State == paymentCreated, p.State == paymentPending:
		return s.in(pollDelay(p.Polls))
	case !p.EndedAt.IsZero():
		return stamp{}
	case p.CapturedAt.IsZero(), pending:
		return hourly
	case held < dailyLookFor:
		return s.in(dailyLook)
	case held < weeklyLookFor:
		return s.in(weeklyLook)
	}
	return stamp{}
}

// in returns the time d after that of the transaction, rounded up to a whole second.
func (s *settlement) in(d time.Duration) stamp { return newStamp(s.exact.Add(d + time.Second - 1)) }
