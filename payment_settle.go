package main

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// How an attempt is settled, in one transaction: its facts are loaded (loadSettlement), what has become known is
// adopted (adoptReport, adoptResult), judge says what follows from that, and carryOut writes it. payment_operation.go
// asks the provider, and sends it the operations.

// facts are all that is known of an attempt when it is judged.
type facts struct {
	orderMoney   // with what the provider reports
	operations   []paymentOperation
	report       *paymentReport // nil: the provider was not asked, or what it says is out of date
	accepts      int            // minutes that the restaurant has to accept the order, once it is authorised
	reserves     time.Duration  // how long the provider reserves the money at least
	closed       bool           // the account is closed
	doubted      bool           // the clock is in doubt, so no attempt ends because of the time
	refundFailed bool           // a refund has failed just now
}

// A verdict is what follows from the facts of an attempt.
type verdict struct {
	payment  payment           // as it is to be
	money    orderMoney        // as it is to be; a refund without an id is to be made
	review   bool              // somebody is to be told that the attempt is in review
	warn     bool              // somebody is to be told that the authorisation is about to lapse
	moves    []orderMove       // of the order, one after the other
	next     *plannedOperation // what is to be asked of the provider; nil: nothing
	outdated bool              // the report is older than an operation that the provider has carried out
}

// An orderMove is a state that an order is to enter.
type orderMove struct {
	state orderState
	with  stateEntry
}

// A plannedOperation is what is to be asked of the provider next.
type plannedOperation struct {
	kind   string
	amount int64
	refund *refund // with opRefund
}

// judge says what follows from the facts. It changes none of them.
func judge(f *facts) verdict {
	state, reason := f.reported(), ""
	v := verdict{moves: f.moves(state)}
	after := f.after(v.moves)
	if !isEnd(state) {
		reason = reviewOf(after)
	}
	v.next, v.outdated = after.operation(state, reason)
	if v.next != nil && f.refusedTooOften(v.next.kind) {
		v.next, reason = nil, cmp.Or(reason, reasonRefused)
	}
	v.payment, v.money = f.attempt(state, reason), after.orderMoney
	if p := &v.payment; reason != "" {
		v.review = f.payment.State != paymentReview || f.refundFailed
	} else if p.State == paymentAuthorized && f.approved() && v.next == nil && !v.outdated {
		v.warn = !p.Warned && !p.CaptureBefore.IsZero() && !f.now.Before(p.CaptureBefore.Add(-endingNotice))
		p.Warned = p.Warned || v.warn
	}
	return v
}

// attempt returns the attempt as its state by the report makes it, and the reason for which somebody has to look at
// it.
func (f *facts) attempt(state paymentState, reason string) payment {
	p, now := *f.payment, newStamp(f.now)
	if f.approved() && p.Captured > 0 && (p.CapturedAt.IsZero() || f.paysNow()) {
		p.CapturedAt = f.capturedAt()
	}
	if state != p.State && isEnd(state) {
		p.Reason, p.EndedAt, p.URL, p.Authorized = nilIfEmpty(f.report.reason), now, nil, 0
		if f.report.phase == phaseUnknown {
			p.Reason = new(reasonUnknown)
		}
	} else if state != p.State {
		if p.Reason = nil; f.approved() {
			p.EndedAt = stamp{}
		}
		if state == paymentAuthorized && reason == "" && p.AuthorizedAt.IsZero() {
			p.AuthorizedAt = now
		}
	}
	if p.State = state; reason != "" {
		p.State, p.Reason = paymentReview, &reason
	}
	return p
}

// endStates are the states in which nothing was paid by an attempt and nothing will be, by what a provider reports.
var endStates = map[paymentPhase]paymentState{
	phaseCancelled: paymentCancelled, phaseExpired: paymentExpired, phaseFailed: paymentFailed,
}

// isEnd reports whether a state of an attempt is one of endStates.
func isEnd(state paymentState) bool {
	return state == paymentCancelled || state == paymentExpired || state == paymentFailed
}

// unknownFor is how long an attempt that the provider has confirmed, but does not find now, is still looked for,
// counted from when it was begun: the guest may be paying it.
const unknownFor = 30 * time.Minute

// reported returns the state that the provider's report gives the attempt, if nobody has to look at it.
func (f *facts) reported() paymentState {
	p, r := f.payment, f.report
	switch {
	case r == nil:
	case endStates[r.phase] != "":
		return endStates[r.phase]
	case r.phase == phaseUnknown:
		lost := p.State == paymentPending && f.now.Sub(p.CreatedAt.Time) >= unknownFor && !f.doubted
		if lost || p.State == paymentCreated {
			return paymentFailed
		}
	case r.phase == phaseOpen:
		if p.State == paymentCreated {
			return paymentPending
		}
	case p.Captured > 0 && p.Refunded >= p.Captured:
		return paymentRefunded
	case p.Captured > 0 && p.Refunded > 0:
		return paymentPartRefunded
	case p.Captured > 0:
		return paymentCaptured
	case f.current() && (p.EndedAt.IsZero() || f.order.State == orderOpen): // the guest may have paid after all
		return paymentAuthorized
	}
	return p.State
}

// approved reports whether the provider reports that money is authorised, or was captured.
func (f *facts) approved() bool { return f.report != nil && f.report.phase == phaseApproved }

// moves returns what becomes of the order if the provider's report gives the attempt a state.
func (f *facts) moves(state paymentState) []orderMove {
	o, p := f.order, f.payment
	switch {
	case isEnd(state) && state != p.State:
		return f.movesAtEnd(state)
	case f.approved() && p.Captured > 0:
		return f.movesByCapture()
	case f.approved() && f.closed && (o.State == orderOpen || o.accepting()):
		return []orderMove{f.move(orderCancelled)}
	case f.approved() && state == paymentAuthorized && o.State == orderOpen && f.amountFault() == "":
		return []orderMove{f.authorizes()}
	}
	return nil
}

// movesAtEnd returns what becomes of the order if the attempt ends by which it was to be paid.
func (f *facts) movesAtEnd(state paymentState) []orderMove {
	o := f.order
	closing := valueOr(o.Closing, "")
	switch {
	case !f.current() || o.State != orderOpen && !o.accepting():
		return nil
	case o.accepting() && state == paymentExpired:
		return []orderMove{f.move(orderExpired, "reason", "authorization_lapsed")}
	case o.accepting() || f.closed:
		return []orderMove{f.move(orderCancelled)}
	case closing == closingExpired:
		return []orderMove{f.move(orderExpired, "reason", "not_paid")}
	case closing == closingPaid:
		return []orderMove{{orderPaid, stateEntry{actor: actorProvider, method: valueOr(o.OutsideMethod, methodOther),
			paidAt: o.OutsideAt}}}
	case closing == closingMethod:
		return []orderMove{{state: orderOpen}}
	}
	return nil
}

// paysNow reports whether the order is paid with what the attempt has captured: its total, or as much more as was
// given back of it. An order that is captured by being paid waits to be accepted instead.
func (f *facts) paysNow() bool {
	o, p := f.order, f.payment
	whole := p.Captured-p.Refunded == o.Total || p.Captured == o.Total && p.CapturedAt.IsZero()
	return whole && !p.capturedFirst() && f.amountFault() == "" && !o.dead() && !o.wasPaid()
}

// movesByCapture returns what becomes of the order if money was captured. One that is not paid with it waits to be
// accepted, so that nobody else pays it meanwhile.
func (f *facts) movesByCapture() (moves []orderMove) {
	o, p := f.order, f.payment
	switch {
	case f.paysNow():
		pays := f.move(orderPaid)
		pays.with.method, pays.with.paymentID, pays.with.paidAt = orderMethod(p.Method), &p.ID, f.capturedAt()
		return []orderMove{pays}
	case o.State == orderOpen && !f.closed && f.amountFault() == "":
		moves = []orderMove{f.authorizes()}
	}
	waits := o.accepting() || len(moves) > 0
	givenBack := waits && (f.current() || len(moves) > 0) && p.Refunded >= p.Captured // on the provider's pages
	if givenBack || f.closed && p.capturedFirst() && (waits || o.State == orderOpen) {
		moves = append(moves, f.move(orderCancelled))
	}
	return moves
}

// move returns the move of the order to a state because of the attempt. more are further data of the event.
func (f *facts) move(state orderState, more ...string) orderMove {
	return orderMove{state, stateEntry{actor: actorProvider,
		data: append([]string{"payment_id", f.payment.ID}, more...)}}
}

// authorizes returns the move by which the order begins to wait for the restaurant, since its money is authorised or
// was charged.
func (f *facts) authorizes() orderMove {
	p, m, lapses := f.payment, f.move(orderAuthorized), f.payment.CaptureBefore
	if p.capturedFirst() {
		m.with.paidAt = f.capturedAt()
	} else if lapses.IsZero() {
		lapses = newStamp(f.now).after(f.reserves)
	}
	m.with.method, m.with.paymentID = orderMethod(p.Method), &p.ID
	m.with.acceptBy = acceptDeadline(newStamp(f.now), f.order, f.accepts, lapses)
	return m
}

// capturedAt returns when the attempt's money was captured: as the provider says, but no later than now and no earlier
// than the attempt; now, if it does not say.
func (f *facts) capturedAt() stamp {
	now, created := newStamp(f.now), f.payment.CreatedAt
	if at := notAfter(now, f.report.capturedAt); !at.Before(created.Time) || now.Before(created.Time) {
		return at
	}
	return created
}

// notAfter returns the time that a provider names, or now if it names none or a later one.
func notAfter(now stamp, told time.Time) stamp {
	if at := newStamp(told); !at.IsZero() && at.Before(now.Time) {
		return at
	}
	return now
}

// after returns the facts once the order has made its moves: with what refunds have that were found just now, and one
// that gives back at once what the attempt holds too much, if it is captured by being paid.
func (f *facts) after(moves []orderMove) *facts {
	then, o, p := *f, *f.order, f.payment
	for _, m := range moves {
		o.become(m.state, m.with, newStamp(f.now))
	}
	if then.order, then.refunds = &o, slices.Clone(f.refunds); p.Captured == 0 {
		return &then
	}
	if then.matchFound(f.sent()); f.report != nil && f.amountFault() == "" {
		then.giveBack(actorProvider)
	}
	return &then
}

// sent returns the id of the refund that the provider is being asked for, "" if of none.
func (f *facts) sent() string {
	for _, op := range f.operations {
		if op.State == operationPending && op.RefundID != nil {
			return *op.RefundID
		}
	}
	return ""
}

// amountFault returns why what the provider asks the guest for is not what the order costs, amount_differs or
// currency_differs; "": it is, or somebody has accepted the order in spite of that.
func (f *facts) amountFault() string {
	p, r, reason := f.payment, f.report, valueOr(f.payment.Reason, "")
	switch {
	case f.current() && f.order.State == orderAccepted:
	case r == nil || r.phase == phaseUnknown:
		if p.State == paymentReview && (reason == reasonAmountDiffers || reason == reasonOtherCurrency) {
			return reason
		}
	case r.currency != p.Currency:
		return reasonOtherCurrency
	case r.amount != p.Amount:
		return reasonAmountDiffers
	}
	return ""
}

// reviewOf returns why somebody has to look at an attempt that has not ended, except for operations that were refused;
// "": nobody has to.
func reviewOf(f *facts) string {
	o, p, asks := f.order, f.payment, f.amountFault()
	unknown := f.report != nil && f.report.phase == phaseUnknown && p.State != paymentPending
	if p.Captured == 0 {
		switch {
		case unknown:
			return reasonUnknown
		case asks == "" && f.toCapture() && o.Total > p.Authorized:
			return reasonCaptureDiffers
		}
		return asks
	}
	b := f.balance()
	amount := b.unaccounted()
	switch {
	case amount == 0 && f.refundsDiffer():
		return reasonRefundsDiffer
	case amount == 0 && unknown:
		return reasonUnknown
	case amount == 0 && !f.stillHeld():
		return ""
	case asks != "":
		return asks
	case b.late >= amount && b.late > 0:
		return reasonRefundPending
	case o.dead():
		return reasonDeadOrder
	case o.wasPaid() && !f.pays():
		return reasonPaidTwice
	}
	return reasonCaptureDiffers
}

// stillHeld reports whether the provider still holds what an attempt in review has captured for no order. A refund of
// ours that is under way changes that only once it is done: until then another attempt could take money twice.
func (f *facts) stillHeld() bool {
	p := f.payment
	return p.State == paymentReview && !f.pays() && p.Refunded+f.disputed() < p.Captured
}

// refundsDiffer reports whether the provider lists more refunds than it says was given back, or has listed fewer for
// refundsLag.
func (f *facts) refundsDiffer() bool {
	since := f.payment.RefundsDifferSince
	return f.report != nil && f.report.exceeds() || !since.IsZero() && !f.now.Before(since.Add(refundsLag))
}

// toCapture reports whether somebody has requested that what is authorised be captured.
func (f *facts) toCapture() bool {
	return f.approved() && f.current() && f.order.State == orderAccepted && f.order.Capture
}

// operation returns what is to be asked of the provider; behind as in verdict. state is that of the attempt by the
// provider's report, reason is why somebody has to look at it.
func (f *facts) operation(state paymentState, reason string) (next *plannedOperation, behind bool) {
	o, p := f.order, f.payment
	switch {
	case f.report == nil:
	case f.report.phase == phaseOpen:
		if reason != "" || state != paymentPending || o.State != orderOpen || o.Closing != nil || f.closed {
			return &plannedOperation{kind: opExpire}, false
		}
	case !f.approved():
	case p.Captured > 0:
		if toMake := f.refundOf((*refund).toMake); toMake != nil {
			return &plannedOperation{opRefund, toMake.Amount, toMake}, false
		}
		if p.Authorized > 0 && reason == "" { // release what was not accepted
			return &plannedOperation{kind: opCancel}, false
		}
	case o.dead(), o.wasPaid(), !f.current(), isEnd(state):
		return &plannedOperation{kind: opCancel}, false
	case reason == "" && f.toCapture():
		behind = slices.ContainsFunc(f.operations, func(op paymentOperation) bool {
			return op.Kind == opCapture && op.State == operationDone
		})
		if !behind {
			next = &plannedOperation{kind: opCapture, amount: o.Total}
		}
	}
	return next, behind
}

// refusedTooOften reports whether the provider has refused operations of a kind, other than refunds, maxRefused times
// since somebody last decided about the order. Those that it failed to answer are not counted.
func (f *facts) refusedTooOften(kind string) bool {
	decided, n := f.order.AcceptedAt, 0
	if f.order.EndedAt.After(decided.Time) {
		decided = f.order.EndedAt
	}
	for i := range f.operations {
		if op := &f.operations[i]; op.Kind == kind && op.State == operationRefused && op.Status != nil &&
			*op.Status < 500 && !op.CreatedAt.Before(decided.Time) {
			n++
		}
	}
	return n >= maxRefused && kind != opRefund
}

// A settlement is an attempt that is settled in a transaction.
type settlement struct {
	t *tx
	facts
}

// loadSettlement reads the facts of an attempt. Errors: errNotFound.
func (p *payments) loadSettlement(t *tx, paymentID string) (s *settlement, err error) {
	s = &settlement{t: t, facts: facts{doubted: p.doubted()}}
	pay, err := t.payment(paymentID)
	if err != nil {
		return nil, err
	}
	o, err := t.order(anyAccount, pay.OrderID)
	if err != nil {
		return nil, err
	}
	m, err := moneyOf(t, o, pay)
	if err != nil {
		return nil, err
	}
	s.orderMoney = *m
	if s.operations, err = t.operationsOf(paymentID); err != nil {
		return nil, err
	}
	a, err := t.account(s.order.AccountID)
	if err != nil {
		return nil, err
	}
	settings, err := t.settings(s.order.AccountID)
	s.closed, s.accepts = !a.ClosedAt.IsZero(), settings.AcceptWithin
	s.reserves = p.providers[string(s.payment.Provider)].reserves(s.payment.Currency)
	return s, err
}

// adoptReport adopts the ids, the amounts, the refunds and the disputes that the provider reports. It ignores a report
// that is out of date: captured money stays captured.
func (s *settlement) adoptReport(r *paymentReport) {
	p := s.payment
	if r.phase != phaseUnknown && r.captured < p.Captured {
		return
	}
	s.report, p.CheckedAt = r, s.t.now
	if r.phase == phaseUnknown {
		return
	}
	p.Authorized, p.Captured, p.Refunded, p.URL = r.authorized, r.captured, r.refunded, nilIfEmpty(r.url)
	if r.sessionID != "" {
		p.SessionID = &r.sessionID
	}
	if r.intentID != "" {
		p.IntentID = &r.intentID
	}
	if !r.captureBefore.IsZero() {
		p.CaptureBefore = newStamp(r.captureBefore)
	}
	if r.phase == phaseApproved && p.Captured > 0 {
		s.adoptCapture()
		s.adoptRefunds()
		s.adoptDisputes(s.report.disputes)
	}
}

// adoptCapture records, as an operation, a capture that somebody has made on the provider's own pages.
func (s *settlement) adoptCapture() {
	p := s.payment
	ours := slices.ContainsFunc(s.operations, func(op paymentOperation) bool {
		return op.Kind == opCapture && op.State != operationRefused
	})
	if p.capturedFirst() || ours || !p.CapturedAt.IsZero() {
		return
	}
	s.t.addOperation(&paymentOperation{ID: s.t.newID("opr"), PaymentID: p.ID, Kind: opCapture, Amount: p.Captured,
		Source: sourceProvider, State: operationDone, CreatedAt: s.t.now, EndedAt: s.t.now})
}

// adoptRefunds adopts the refunds that the provider reports. Those that we do not have were made by somebody on the
// provider's own pages. It notes since when the provider says that more was given back than they are.
func (s *settlement) adoptRefunds() {
	named := []string{} // ids of the refunds that the report has named so far
	for _, told := range s.report.refunds {
		f := s.ourRefund(told, named)
		if f == nil {
			if told.state == refundFailed || s.report.exceeds() {
				continue
			}
			s.refunds = append(s.refunds, s.foundRefund(told))
			f = &s.refunds[len(s.refunds)-1]
		} else if f.ProviderID == nil || told.longID == "" {
			f.ProviderID = new(s.unusedID(told.providerID, told.longID))
		}
		named = append(named, f.ID)
		switch {
		case told.state == refundSucceeded:
			f.end("", s.t.now)
		case told.state == refundFailed && f.end(cmp.Or(told.reason, reasonDeclined), s.t.now):
			s.refundFailed = true
		}
	}
	sort.SliceStable(s.refunds, func(i, j int) bool { return s.refunds[i].ID < s.refunds[j].ID })
	p := s.payment
	if p.Refunded <= s.balance().refunded {
		p.RefundsDifferSince = stamp{}
	} else if p.RefundsDifferSince.IsZero() {
		p.RefundsDifferSince = s.t.now
	}
}

// foundRefund returns a refund that somebody made on the provider's own pages. It is pending, until it is known what
// came of it.
func (s *settlement) foundRefund(told refundReport) refund {
	f := refund{ID: s.t.newID("ref"), OrderID: s.order.ID, AccountID: s.order.AccountID, PaymentID: &s.payment.ID,
		Amount: told.amount, Kind: refundFound, Source: sourceProvider, State: refundPending, MadeBy: actorProvider,
		CreatedAt: s.t.now, ProviderID: new(s.unusedID(told.providerID, told.longID))}
	if !told.at.IsZero() {
		f.CreatedAt = newStamp(told.at)
	}
	return f
}

// ourRefund returns our refund that the provider reports, nil if there is none. named are the ids of those that it has
// reported before.
func (s *settlement) ourRefund(told refundReport, named []string) *refund {
	ours := told.refundID
	if ours == "" && told.operationID != "" {
		for _, op := range s.operations {
			if op.ID == told.operationID {
				ours = valueOr(op.RefundID, "")
			}
		}
	}
	f := s.refundOf(func(f *refund) bool {
		id := valueOr(f.ProviderID, "")
		return f.ID == ours || told.longID != "" && id == told.longID || told.longID == "" && id == told.providerID
	})
	if f != nil || told.longID == "" {
		return f
	}
	return s.refundOf(func(f *refund) bool { // the parts after a slash are what tells it from others
		id, _, _ := strings.Cut(valueOr(f.ProviderID, ""), "/")
		at := f.Source == sourceOurs || f.CreatedAt.Equal(newStamp(told.at).Time)
		return id == told.providerID && f.Amount == told.amount && at && !slices.Contains(named, f.ID)
	})
}

// unusedID returns the provider's id of a refund, or the longer one if another refund of the attempt has it.
func (s *settlement) unusedID(id, longID string) string {
	if s.refundOf(func(f *refund) bool { return valueOr(f.ProviderID, "") == id }) != nil {
		return cmp.Or(longID, id)
	}
	return id
}

// adoptDisputes adopts disputes that the provider reports. An inquiry is no dispute of the order's until the bank
// takes the money.
func (s *settlement) adoptDisputes(reports []disputeReport) {
	for _, told := range reports {
		at := slices.IndexFunc(s.disputes, func(d dispute) bool {
			return d.ID == told.id && d.PaymentID == s.payment.ID
		})
		if at < 0 {
			at = len(s.disputes)
			s.disputes = append(s.disputes, dispute{PaymentID: s.payment.ID, ID: told.id, OrderID: s.order.ID})
		}
		if d := &s.disputes[at]; d.adopt(told, s.t.now) {
			s.tellDispute(d)
		}
	}
	open, taking := false, false
	for _, d := range s.disputes {
		open, taking = open || d.State == disputeOpen, taking || d.State != disputeInquiry
	}
	if open {
		s.order.Dispute = new(orderDispute(disputeOpen))
	} else if !taking {
		s.order.Dispute = nil // before version 9 an inquiry counted as a dispute
	}
}

// adoptDispute adopts what a provider's ledger says of a dispute of an account's payment, where nothing else reports
// disputes: taken is what a row of that takes, or negative for what it puts back. Errors: errChanged.
func (p *payments) adoptDispute(t *tx, accountID, paymentID string, told disputeReport) error {
	s, err := p.loadSettlement(t, paymentID)
	if err != nil || s.order.AccountID != accountID {
		return except(err, errNotFound)
	}
	for _, d := range s.disputes {
		if d.ID == told.id {
			told.amount, told.withdrawn, told.at = max(told.amount, d.Amount), told.withdrawn+d.Taken, d.OpenedAt.Time
		}
	}
	if told.state = disputeOpen; told.withdrawn <= 0 {
		told.state, told.closed = disputeWon, true
	}
	s.adoptDisputes([]disputeReport{told})
	v := judge(&s.facts)
	return s.carryOut(&v)
}

// adopt adopts what a provider reports of the dispute, and reports whether that is news.
func (d *dispute) adopt(told disputeReport, now stamp) bool {
	due := newStamp(told.evidenceBy)
	if d.State == told.state && d.Amount == told.amount && d.Taken == told.withdrawn && d.EvidenceBy.Equal(due.Time) &&
		d.ClosedAt.IsZero() != told.closed {
		return false
	}
	if d.Taken != told.withdrawn || d.MovedAt.IsZero() {
		d.MovedAt = notAfter(now, told.movedAt)
	}
	d.State, d.Amount, d.Taken, d.EvidenceBy = told.state, told.amount, told.withdrawn, due
	d.Reason, d.OpenedAt = nilIfEmpty(told.reason), notAfter(now, told.at)
	if !told.closed {
		d.ClosedAt = stamp{}
	} else if d.ClosedAt.IsZero() {
		d.ClosedAt = now
	}
	return true
}

// awaited reports whether there will be news of the dispute: it is not decided, or was won, and nothing of its money
// is back.
func (d *dispute) awaited() bool {
	return d.ClosedAt.IsZero() || d.State == disputeWon && d.Taken >= max(d.Amount, 1)
}

// tellDispute writes a dispute of which there is news, with its event.
func (s *settlement) tellDispute(d *dispute) {
	s.t.saveDispute(d)
	kind := eventOrderInquiry
	if d.State != disputeInquiry {
		kind, s.order.Dispute = eventOrderDisputed, new(orderDispute(d.State))
	}
	data := []string{"amount", strconv.FormatInt(d.Amount, 10), "currency", s.order.Currency, "dispute_id", d.ID,
		"state", string(d.State), "taken", strconv.FormatInt(d.Taken, 10)}
	if !d.EvidenceBy.IsZero() {
		data = append(data, "evidence_by", d.EvidenceBy.String())
	}
	if !d.ClosedAt.IsZero() {
		data = append(data, "closed_at", d.ClosedAt.String())
	}
	s.addOrderEvent(kind, data...)
}

// adoptResult adopts what has become of an operation; failed is nil if the provider has carried it out. An attempt
// or a refund that is refused has failed. What follows for captures and cancellations, the provider's next report
// decides.
func (s *settlement) adoptResult(op *paymentOperation, sent sentOperation, failed *outboundError) {
	op.Error = nil
	if failed != nil {
		op.Error, sent.status = &failed.reason, failed.status
	}
	if sent.status != 0 {
		op.Status = &sent.status
	}
	switch {
	case failed == nil:
		op.State, op.EndedAt = operationDone, s.t.now
		s.adoptAnswer(op, sent)
	case failed.final(), failed.outcome == vendorStale:
		op.State, op.EndedAt = operationRefused, s.t.now
	}
	if failed == nil || !failed.final() {
		return
	}
	reason := cmp.Or(failed.reason, reasonRefused)
	if r := findRefund(s.refunds, valueOr(op.RefundID, "")); r != nil && r.State == refundPending {
		s.refundFailed = r.end(reason, s.t.now)
	}
	if op.Kind == opCreate {
		s.report = &paymentReport{phase: phaseFailed, reason: reason}
	}
}

// adoptAnswer adopts the provider's answer to an operation that it has carried out.
func (s *settlement) adoptAnswer(op *paymentOperation, sent sentOperation) {
	p := s.payment
	if sent.sessionID != "" {
		p.SessionID = &sent.sessionID
	}
	if p.State == paymentCreated && sent.url != "" {
		p.State, p.URL, p.Polls = paymentPending, &sent.url, 0
	}
	if r := findRefund(s.refunds, valueOr(op.RefundID, "")); r != nil && r.ProviderID == nil {
		if r.Failure = nil; sent.refundID != "" {
			r.ProviderID = new(s.unusedID(sent.refundID, sent.refundID+"/"+op.ID))
		}
	}
}

// carryOut writes what has been adopted and what a verdict says, with the events. Errors: errChanged.
func (s *settlement) carryOut(v *verdict) error {
	for _, m := range v.moves {
		if err := s.order.enterState(s.t, m.state, m.with); err != nil {
			return err
		}
	}
	if v.money.order = s.order; v.payment.Captured > 0 {
		if err := v.money.save(s.t, actorProvider); err != nil {
			return err
		}
	}
	if v.warn {
		s.addOrderEvent(eventOrderEnding, "capture_before", v.payment.CaptureBefore.String())
	}
	if v.review {
		s.addOrderEvent(eventOrderReview, "reason", *v.payment.Reason)
	}
	s.t.saveOrder(s.order)
	return s.t.savePayment(&v.payment)
}

// addOrderEvent writes an event about the order, with the attempt among its data.
func (s *settlement) addOrderEvent(kind eventType, data ...string) {
	data = append([]string{"payment_id", s.payment.ID}, data...)
	s.t.addEvent(orderEvent(s.order, kind, actorProvider, data...))
}

// addOperation adds the operation that is to be asked of the provider of an attempt, with its request sealed.
func (p *payments) addOperation(
	t *tx, pay *payment, o *order, next *plannedOperation, returnURL string,
) (*paymentOperation, *providerCall) {
	op := &paymentOperation{ID: t.newID("opr"), PaymentID: pay.ID, Kind: next.kind, Amount: next.amount,
		Source: sourceOurs, State: operationPending, CreatedAt: t.now}
	if next.refund != nil {
		op.RefundID = &next.refund.ID
	}
	call := p.providers[string(pay.Provider)].call(op, pay, o, returnURL)
	op.Sealed = p.keys().sealFor(sealedOperation, op.ID, encodeJSON(call))
	t.addOperation(op)
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
	weeklyLookFor  = 180 * 24 * time.Hour // after the money was captured; after that only if somebody says why
)

// dueAt returns when the provider is to be asked about the attempt next, after a look at now; zero: only once there
// is a reason, such as a row of a payout that does not match it. Of a dispute it is asked until that is over, since
// a bank may take longer than any number of days.
func (v *verdict) dueAt(now time.Time) stamp {
	p := &v.payment
	pending, hourly := false, fromNow(now, authorizedLook)
	if again := p.RefundsDifferSince.after(refundsLag); again.After(now) {
		pending, hourly = true, again
	}
	for f := range v.money.refundsOfMoney {
		if f.State == refundPending {
			pending = true
			if late := f.CreatedAt.after(refundLate); late.After(now) && late.Before(hourly.Time) {
				hourly = late
			}
		}
	}
	disputed := providerOf(string(p.Provider)).disputes && slices.ContainsFunc(v.money.disputes, func(d dispute) bool {
		return d.PaymentID == p.ID && d.awaited()
	})
	age := now.Sub(p.CapturedAt.Time)
	switch {
	case v.next != nil, v.outdated, p.State == paymentCreated, p.State == paymentPending:
		return fromNow(now, pollDelay(p.Polls))
	case !p.EndedAt.IsZero():
		return stamp{}
	case p.CapturedAt.IsZero(), pending:
		return hourly
	case age < dailyLookFor, disputed:
		return fromNow(now, dailyLook)
	case age < weeklyLookFor:
		return fromNow(now, weeklyLook)
	}
	return stamp{}
}

// fromNow returns the time d after now, rounded up to a whole second.
func fromNow(now time.Time, d time.Duration) stamp { return newStamp(now.Add(d + time.Second - 1)) }
