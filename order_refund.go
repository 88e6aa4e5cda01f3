package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// Refunds (contract, section 11). The column refunded of an order counts refunds that are pending or succeeded, from
// the moment they are requested; the order's state follows only those that succeeded. Refunds of money that was
// captured but pays nothing, because the order is dead or was paid otherwise, count for neither. Each refund stores
// the VAT and the tip in it, so that all of an order's refunds together give back exactly its VAT and its tip.

// A refundWish is a request for a refund: of parts of the order, of an amount, or with neither of all that is left.
type refundWish struct {
	lines     []linePart
	delivery  int64
	tip       int64
	amount    *int64
	once      bool   // refuse what was asked for less than refundPause ago
	paymentID string // the attempt whose money goes back, if it pays nothing; "": the last one
	reason    string
}

// refundPause is how long the same refund of an order is refused for, unless it is asked for with an Idempotency-Key.
const refundPause = 10 * time.Second

// aimed reports whether parts of the order are to be given back.
func (w *refundWish) aimed() bool { return len(w.lines) > 0 || w.delivery > 0 || w.tip > 0 }

// upTo returns the amount that is to be given back, of at most what is left. Errors: refund_too_large.
func (w *refundWish) upTo(left int64, currency string) (int64, error) {
	if amount := valueOr(w.amount, left); amount <= left && amount > 0 {
		return amount, nil
	}
	return 0, errLeft(left, currency)
}

// errLeft returns the refusal of a refund of more than what is left.
func errLeft(left int64, currency string) error {
	if left > 0 {
		return errRefundTooLarge(left, "Refund an amount instead: at most "+formatMoney(left, currency)+".")
	}
	return errRefundTooLarge(left, "Nothing is left to be given back.")
}

// errRefundTooLarge returns the refusal of a refund of more than most, the amount that can still be given back.
func errRefundTooLarge(most int64, detail string) error {
	return &refusal{code: codeRefundTooLarge, detail: detail, members: []extraMember{{"refundable", most}}}
}

// A refundable is the part of an order that was not given back yet.
type refundable struct {
	order    *order
	vat      []vatSum // as order.VAT
	tip      int64
	most     int64         // limit of vat and tip together; below their sum if money was given back without either
	lines    map[int]int64 // by the index of a line, how much refunds of that line have given back
	units    map[int]int64 // of that, what was given back for units
	delivery int64         // how much refunds of the delivery have given back
}

// newRefundable returns all of an order, of which nothing was given back.
func newRefundable(o *order) *refundable {
	return &refundable{order: o, vat: slices.Clone(o.VAT), tip: o.Tip, most: o.Total, lines: map[int]int64{},
		units: map[int]int64{}}
}

// take takes off what a refund gives back.
func (left *refundable) take(f *refund) {
	left.most -= f.Amount
	left.tip = max(0, left.tip-f.Tip)
	left.delivery += valueOr(f.Delivery, 0)
	for _, sum := range f.VAT {
		if at := left.rate(sum.Rate); at >= 0 {
			left.vat[at].Gross = max(0, left.vat[at].Gross-sum.Gross)
			left.vat[at].VAT = max(0, left.vat[at].VAT-sum.VAT)
		}
	}
}

// takeLines takes off what a refund gives back of lines, if it counts.
func (left *refundable) takeLines(f *refund, o *order) error {
	if f.ofOrder(o) == 0 {
		return nil
	}
	lines, err := f.lines()
	for _, l := range lines {
		if left.lines[l.Line] += l.Amount; l.Quantity > 0 {
			left.units[l.Line] += l.Amount
		}
	}
	return err
}

// takePart makes a refund of an amount, and takes it off. What exceeds what is left has no VAT and no tip.
func (left *refundable) takePart(amount int64) refund {
	f := left.byAmount(min(amount, left.amount()))
	f.Amount = amount
	left.take(f)
	return *f
}

// takeAll takes off what refunds give back. The VAT and the tip of those marked in anew are computed anew, after the
// others were taken off. So are those of a refund that was found at the provider and exceeded what was left, since more
// may be left now.
func (left *refundable) takeAll(refunds []refund, anew []bool) {
	for i := range refunds {
		f := &refunds[i]
		if anew[i] = anew[i] || f.Source == sourceProvider && f.parts() < f.Amount; !anew[i] {
			left.take(f)
		}
	}
	for i := range refunds {
		if anew[i] {
			refunds[i] = left.takePart(refunds[i].Amount)
		}
	}
}

// lines returns what the refund gives back of each line; nil if it is not by lines.
func (f *refund) lines() (lines []linePart, err error) {
	if len(f.Lines) > 0 {
		if json.Unmarshal(f.Lines, &lines) != nil {
			err = &unreadableRow{table: "refunds", id: f.ID, cause: "its lines are no list of lines"}
		}
	}
	return lines, err
}

// rate returns the index of a rate in left.vat, or -1 if nothing in the order has that rate.
func (left *refundable) rate(rate int64) int {
	return slices.IndexFunc(left.vat, func(sum vatSum) bool { return sum.Rate == rate })
}

// amount returns how much is left.
func (left *refundable) amount() int64 {
	amount := left.tip
	for _, sum := range left.vat {
		amount += sum.Gross
	}
	return max(0, min(amount, left.most))
}

// give makes a refund of gross, the amount to give back for each rate in the order of left.vat, and of a tip. The
// VAT for a rate is the VAT on everything given back at that rate so far, less the VAT of earlier refunds.
func (left *refundable) give(gross []int64, tip int64) *refund {
	f := &refund{Amount: tip, Tip: tip}
	for i, g := range gross {
		all, rest := left.order.VAT[i], left.vat[i]
		vat := rest.VAT
		if g < rest.Gross {
			vat = vatIn(all.Gross-rest.Gross+g, all.Rate) - (all.VAT - rest.VAT)
			// Refunds that failed can leave rounding differences behind: neither what is given back nor what is
			// left may contain more VAT than money.
			vat = max(0, rest.VAT-(rest.Gross-g), min(vat, rest.VAT, g))
		}
		if g > 0 {
			f.VAT = append(f.VAT, vatSum{Rate: all.Rate, Gross: g, VAT: vat})
		}
		f.Amount += g
	}
	return f
}

// byAmount makes a refund of an amount, which is spread over the rates of VAT and the tip in proportion to
// what is left of each. The amount is at most left.amount().
func (left *refundable) byAmount(amount int64) *refund {
	weights := make([]int64, 0, len(left.vat)+1)
	for _, sum := range left.vat {
		weights = append(weights, sum.Gross)
	}
	parts := spread(amount, append(weights, left.tip))
	return left.give(parts[:len(left.vat)], parts[len(left.vat)])
}

// line returns what a part of a line gives back, of at most what the line's rate of VAT has left: an amount of it, or
// units, which cost what they do together with those given back before, as far as amounts of the line have left that.
// Errors: refund_too_large, a refusal of the line.
func (left *refundable) line(n linePart, most int64) (int64, error) {
	l := &left.order.Lines[n.Line]
	rest := max(0, l.part(l.Accepted)-left.lines[n.Line])
	if n.Quantity == 0 && n.Amount > 0 {
		return left.part(fmt.Sprintf("Line %d", n.Line), n.Amount, min(rest, most))
	}
	units := min(n.Quantity, l.Accepted-l.Refunded)
	amount := max(0, min(l.part(l.Refunded+units)-left.units[n.Line], rest))
	switch {
	case amount > most:
		return 0, errLeft(min(amount, left.amount()), left.order.Currency)
	case units == n.Quantity:
		return amount, nil
	case units > 0 && amount == 0: // refunds of amounts have left nothing of them
		return 0, errLeft(left.amount(), left.order.Currency)
	}
	return 0, errRefundTooLarge(left.amount(),
		fmt.Sprintf("Line %d has %s left that were not given back.", n.Line, countOf(units, "unit")))
}

// part returns a wished amount of a part of the order, of which rest is left. Errors: refund_too_large.
func (left *refundable) part(name string, wished, rest int64) (int64, error) {
	if wished <= rest {
		return wished, nil
	}
	return 0, errRefundTooLarge(rest, fmt.Sprintf("%s has %s left.", name, formatMoney(rest, left.order.Currency)))
}

// byParts makes a refund of lines, of the delivery and of the tip. Errors: a refusal that names the lines that are
// wrong, refund_too_large where less is left of a part, or refunds by amount have left less of its rate of VAT.
func (left *refundable) byParts(w *refundWish) (*refund, error) {
	o := left.order
	if err := checkLineParts(o, w.lines, func(*orderLine) int64 { return maxQuantity }); err != nil {
		return nil, err
	}
	gross, all, lines := make([]int64, len(left.vat)), int64(0), []linePart{}
	// most returns how much of rest can be given back at a rate beside the parts before, and add adds a part.
	most := func(rate, rest int64) int64 {
		if at := left.rate(rate); at >= 0 {
			rest = min(rest, left.vat[at].Gross-gross[at])
		}
		return max(0, min(rest, left.amount()-all))
	}
	add := func(rate, amount int64) {
		if at := left.rate(rate); at >= 0 {
			gross[at] += amount
		}
		all += amount
	}
	for _, n := range w.lines {
		rate := o.Lines[n.Line].VATRate
		amount, err := left.line(n, most(rate, math.MaxInt64))
		if err != nil {
			return nil, err
		}
		lines = append(lines, linePart{n.Line, n.Quantity, amount})
		add(rate, amount)
	}
	delivery, err := left.part("The delivery", w.delivery, most(o.DeliveryRate, o.DeliveryGross-left.delivery))
	if err != nil {
		return nil, err
	}
	add(o.DeliveryRate, delivery)
	tip, err := left.part("The tip", w.tip, max(0, min(left.tip, left.amount()-all)))
	if err != nil {
		return nil, err
	}
	if all+tip == 0 {
		return nil, errMember("lines", "nothing_left", "These lines cost nothing.")
	}
	f := left.give(gross, tip)
	if delivery > 0 {
		f.Delivery = &delivery
	}
	if len(lines) > 0 {
		f.Lines, err = json.Marshal(lines)
	}
	return f, err
}

// wish makes the refund that w asks for. Errors: refund_too_large, a refusal that names the lines that are wrong.
func (left *refundable) wish(w refundWish) (*refund, error) {
	if w.aimed() {
		return left.byParts(&w)
	}
	amount, err := w.upTo(left.amount(), left.order.Currency)
	if err != nil {
		return nil, err
	}
	return left.byAmount(amount), nil
}

// paidWith reports whether the order was paid with the attempt that has an id, or was charged by it and waits to be
// accepted. For nil it reports whether the order was paid without an attempt.
func (o *order) paidWith(paymentID *string) bool {
	if paymentID == nil || o.paidOutside() {
		return paymentID == nil && o.wasPaid()
	}
	return (o.wasPaid() || o.charged() && !o.dead()) && valueOr(o.PaymentID, "") == *paymentID
}

// charged reports whether the guest was charged at once, before the restaurant accepted the order.
func (o *order) charged() bool {
	return !o.PaidAt.IsZero() && findMethod(valueOr(o.Method, "")).atOnce
}

// chargedBy reports whether the guest was charged at once by the attempt with an id, even if the order is dead now.
func (o *order) chargedBy(paymentID *string) bool {
	return o.charged() && paymentID != nil && valueOr(o.PaymentID, "") == *paymentID
}

// soldBy reports whether the money of the attempt with an id is or was for the order, nil: of no attempt. Its refunds
// are then divided.
func (o *order) soldBy(paymentID *string) bool {
	return o.paidWith(paymentID) || o.chargedBy(paymentID)
}

// ofOrder returns how much a refund gives back of the order's total: 0 if it failed.
func (f *refund) ofOrder(o *order) int64 {
	if f.State == refundFailed || !o.paidWith(f.PaymentID) {
		return 0
	}
	return f.Amount - f.ReleasedAmount
}

// findRefund returns the refund with an id, nil if there is none.
func findRefund(refunds []refund, id string) *refund {
	for i := range refunds {
		if refunds[i].ID == id {
			return &refunds[i]
		}
	}
	return nil
}

// An orderMoney is an order with the attempt whose money is concerned, and what was given back.
type orderMoney struct {
	order    *order
	payment  *payment // nil: it was paid outside
	refunds  []refund // of the order
	stored   []refund // as they are stored
	disputes []dispute
	now      time.Time
}

// moneyOf reads the money of an order. p is an attempt to pay it; nil: the last one, unless it was paid outside.
func moneyOf(t *tx, o *order, p *payment) (m *orderMoney, err error) {
	m = &orderMoney{order: o, payment: p, now: t.exact}
	if p == nil && o.PaymentID != nil && !o.paidOutside() {
		if m.payment, err = t.payment(*o.PaymentID); err != nil {
			return nil, err
		}
	}
	if m.stored, err = t.refundsOf(o.ID); err != nil {
		return nil, err
	}
	m.refunds = slices.Clone(m.stored)
	m.disputes, err = t.disputesOf(o.ID)
	return m, err
}

// current reports whether the attempt is the last one to pay the order.
func (m *orderMoney) current() bool {
	return m.payment != nil && valueOr(m.order.PaymentID, "") == m.payment.ID
}

// pays reports whether the attempt has paid the order, see paidWith.
func (m *orderMoney) pays() bool { return m.order.paidWith(m.paymentID()) }

// paymentID returns the id of the attempt, nil if the order was paid outside.
func (m *orderMoney) paymentID() *string {
	if m.payment == nil {
		return nil
	}
	return &m.payment.ID
}

// back ranges over the refunds that give the attempt's money back, or what was paid outside.
func (m *orderMoney) back(yield func(*refund) bool) {
	for i := range m.refunds {
		f := &m.refunds[i]
		if valueOr(f.PaymentID, "") == valueOr(m.paymentID(), "") && !yield(f) {
			return
		}
	}
}

// refundOf returns the first refund of back that is so, nil if there is none.
func (m *orderMoney) refundOf(is func(*refund) bool) *refund {
	for f := range m.back {
		if is(f) {
			return f
		}
	}
	return nil
}

// given returns what was given back of the money, that under way included: all of it, what was not accepted, and what
// has been under way for longer than refundLate.
func (m *orderMoney) given() (all, released, late int64) {
	for f := range m.back {
		if f.State != refundFailed {
			all, released = all+f.Amount, released+f.ReleasedAmount
		}
		if f.State == refundPending && !m.now.Before(f.CreatedAt.Add(refundLate)) {
			late += f.Amount
		}
	}
	return all, released, late
}

// taken returns how much the bank has taken of the attempt for disputes, and has not put back.
func (m *orderMoney) taken() int64 { return takenOf(m.disputes, valueOr(m.paymentID(), "")) }

// keeps returns what the attempt has captured, less what was given back or is to be given back.
func (m *orderMoney) keeps() int64 {
	given, _, _ := m.given()
	return m.payment.Captured - max(given, m.payment.Refunded)
}

// exceeding returns how much more than the order's total the attempt has captured and keeps, if it is in review since
// that was captured on the provider's own pages; else 0.
func (m *orderMoney) exceeding() int64 {
	o, p := m.order, m.payment
	if p.State != paymentReview || valueOr(p.Reason, "") != reasonCaptureDiffers || o.dead() || o.wasPaid() {
		return 0
	}
	return max(0, m.keeps()-o.Total)
}

// unaccounted returns how much money the attempt holds that the order does not account for, see balance, and how much
// is in refunds that have been under way for longer than refundLate.
func (m *orderMoney) unaccounted() (amount, late int64) {
	b := balance{pays: m.pays(), total: m.order.Total, captured: m.payment.Captured, taken: m.taken()}
	b.back, b.released, b.late = m.given()
	return b.unaccounted(), b.late
}

// repeated returns a refund that was asked for by the same wish less than refundPause ago, since somebody may have
// clicked twice; nil if there is none.
func (m *orderMoney) repeated(w *refundWish) *refund {
	return m.refundOf(func(f *refund) bool {
		return f.State != refundFailed && f.Asked != nil && bytes.Equal(f.Asked, w.asked()) &&
			m.now.Sub(f.CreatedAt.Time) < refundPause
	})
}

// wished makes the refund that w asks for. What the bank has taken for a dispute can't be given back again.
func (m *orderMoney) wished(w refundWish) (*refund, error) {
	o, p, taken, rest := m.order, m.payment, m.taken(), int64(0)
	if p != nil {
		limit := findMethod(p.Method).refunds
		if limit > 0 && m.now.After(p.CapturedAt.Add(limit)) && p.Captured > 0 {
			return nil, errOrderState(o, fmt.Sprintf("Payments by %s can be given back for %d days: "+
				"give the money back outside.", p.Method, int(limit.Hours())/24))
		}
		if w.paymentID != "" && o.wasPaid() && m.pays() {
			amount, late := m.unaccounted()
			rest = amount - late
		} else if !o.wasPaid() {
			rest = m.exceeding() - taken
		}
	}
	switch {
	case rest > 0: // it was not accepted, and could not be given back at once
	case o.charged() && !o.wasPaid() && !o.dead():
		return nil, errOrderState(o, "Accept or reject it instead.")
	case m.pays():
		d := o.divide(p, m.refunds)
		for i := range d.refunds {
			if err := d.kept.takeLines(&d.refunds[i], o); err != nil {
				return nil, err
			}
		}
		// What the bank has taken counts against what was not accepted first, and then against the total.
		d.kept.most -= max(0, taken-max(0, d.rest.most))
		return d.kept.wish(w)
	case !o.dead() && !o.wasPaid() || p == nil || p.Captured == 0:
		return nil, errOrderState(o, "Nothing was paid that could be given back.")
	default:
		rest = max(0, m.keeps()-taken)
	}
	if w.aimed() {
		return nil, errOrderState(o, "Refund an amount instead of parts.")
	}
	amount, err := w.upTo(rest, p.Currency)
	if err != nil {
		return nil, err
	}
	return m.surplus(amount), nil
}

// surplus makes the refund of an amount that the attempt holds beyond what the order accounts for. If the guest was
// charged at once, the refund has its part of the VAT; otherwise the amount was no revenue and has none.
func (m *orderMoney) surplus(amount int64) *refund {
	o := m.order
	if !o.soldBy(m.paymentID()) && (o.dead() || o.wasPaid()) {
		return &refund{Amount: amount}
	}
	f := o.divide(m.payment, m.refunds).rest.takePart(amount)
	f.Released, f.ReleasedAmount = true, amount
	return &f
}

// release divides the refunds, and adds one that is to be made at once if the attempt was captured by being paid and
// holds more than the order accounts for: there was no authorisation of which that could be released. It adds none if
// somebody has to look at the attempt, for more than a refund that takes long, or if a refund of ours has failed.
func (m *orderMoney) release(actor string) {
	p := m.payment
	m.divide()
	inReview := p.State == paymentReview && valueOr(p.Reason, "") != reasonRefundPending
	failed := m.refundOf(func(f *refund) bool { return f.State == refundFailed && f.Source == sourceOurs }) != nil
	if amount, late := m.unaccounted(); p.atOnce() && !inReview && !failed && amount > late {
		f := m.surplus(amount - late)
		f.Source, f.MadeBy, f.Reason = sourceOurs, actor, new("not accepted")
		m.add(f)
		m.divide()
	}
}

// add adds a refund, which is pending. It has no id before it is saved.
func (m *orderMoney) add(f *refund) {
	f.OrderID, f.AccountID, f.PaymentID, f.State = m.order.ID, m.order.AccountID, m.paymentID(), refundPending
	if f.CreatedAt.IsZero() {
		f.CreatedAt = newStamp(m.now)
	}
	m.refunds = append(m.refunds, *f)
}

// divide divides the refunds anew if they give back what the order was paid with.
func (m *orderMoney) divide() {
	if m.payment == nil || m.current() && !m.order.paidOutside() {
		m.refunds = m.order.divide(m.payment, m.refunds).refunds
	}
}

// save writes the refunds that are not as they are stored, each that has ended with its event, and the order, which
// counts them.
func (m *orderMoney) save(t *tx, actor string) error {
	for i := range m.refunds {
		f, before := &m.refunds[i], findRefund(m.stored, m.refunds[i].ID)
		if before != nil {
			t.saveRefund(f, before)
		} else {
			f.ID = cmp.Or(f.ID, t.newID("ref"))
			t.addRefund(f)
		}
		if f.State != refundPending && (before == nil || f.State != before.State) {
			t.addEvent(refundEvent(m.order, f, actor))
		}
	}
	err := m.order.count(m.refunds)
	t.saveOrder(m.order)
	return err
}

// payCharged writes that an order is paid whose guest was charged at once, now that it is accepted. The VAT and the
// tip in refunds that were found are computed anew, since some of what they give back may not have been accepted.
func payCharged(t *tx, o *order, p *payment, actor string) error {
	err := o.enter(t, orderPaid, stateEntry{actor: actor, method: p.Method, paidAt: o.PaidAt})
	if err != nil {
		return err
	}
	m, err := moneyOf(t, o, p)
	if err != nil {
		return err
	}
	for i := range m.refunds {
		if f := &m.refunds[i]; f.Source == sourceProvider {
			f.VAT, f.Tip = nil, 0
		}
	}
	m.release(actor)
	return m.save(t, actor)
}

// endRefund writes that a refund of an order has ended: it succeeded, or failed if failure says why. The amount of one
// that has failed can be given back again.
func endRefund(t *tx, o *order, f *refund, failure, actor string) error {
	m, err := moneyOf(t, o, nil)
	if err != nil {
		return err
	}
	made := findRefund(m.refunds, f.ID)
	made.end(failure, t.now)
	m.divide()
	if err := m.save(t, actor); err != nil {
		return err
	}
	*f = *findRefund(m.refunds, f.ID)
	return nil
}

// refundOrder gives back money of an order of an owner: of one that is paid; or money that was captured but pays
// nothing, since the order is dead or was paid otherwise, so that the attempt is in review. The provider is asked
// later (refundPending); what was paid outside counts as given back at once. Errors: errOrder,
// order_state, refund_too_large, refund_limit_reached, a refusal that names the lines that are wrong.
func refundOrder(t *tx, by owner, id string, w refundWish, actor string) (*order, *refund, error) {
	o, p, err := orderAndPayment(t, by, id)
	if err == nil && o.paidOutside() {
		p = nil
	}
	if err == nil && w.paymentID != "" {
		p, err = attemptOf(t, o, w.paymentID)
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := moneyOf(t, o, p)
	if err != nil {
		return nil, nil, err
	}
	if len(m.refunds) >= t.limits.refunds {
		return nil, nil, &refusal{code: codeRefundLimit}
	}
	if earlier := m.repeated(&w); w.once && earlier != nil {
		return nil, nil, &refusal{code: codeRefundRepeated, members: []extraMember{{"refund_id", earlier.ID}}}
	}
	f, err := m.wished(w)
	if err != nil {
		return nil, nil, err
	}
	f.Reason, f.Source, f.MadeBy, f.Asked = nilIfEmpty(w.reason), sourceOurs, actor, w.asked()
	if p != nil {
		c, err := t.paymentConnection(anyAccount, p.ConnectionID)
		if err != nil {
			return nil, nil, err
		}
		if !c.FailingSince.IsZero() {
			f.Failure = new(reasonDenied) // until they are changed
		}
	}
	if m.add(f); p == nil {
		m.refunds[len(m.refunds)-1].end("", t.now)
	} else {
		t.lookAt(p.ID)
	}
	m.divide()
	err = m.save(t, actor)
	return o, &m.refunds[len(m.refunds)-1], err
}

// asked returns the wish as JSON, which is the same for equal wishes; nil: it is for all that is left.
func (w *refundWish) asked() json.RawMessage {
	if !w.aimed() && w.amount == nil {
		return nil
	}
	return bytes.TrimSpace(encodeJSON(map[string]any{"lines": w.lines, "delivery": w.delivery, "tip": w.tip,
		"amount": w.amount}))
}

// attemptOf returns an attempt to pay an order. Errors: a refusal of payment_id.
func attemptOf(t *tx, o *order, id string) (*payment, error) {
	p, err := t.payment(id)
	if errors.Is(err, errNotFound) || err == nil && p.OrderID != o.ID {
		return nil, errMember("payment_id", "unknown_value", "The order has no such payment.")
	}
	return p, err
}

// asOrdered returns a copy of the order of which all is accepted.
func (o *order) asOrdered() *order {
	all := *o
	all.Lines = slices.Clone(o.Lines)
	for i := range all.Lines {
		all.Lines[i].Accepted = all.Lines[i].Quantity
	}
	all.addLines()
	return &all
}

// notAccepted returns a copy of the order with what was ordered and not accepted: all of it, if it is dead.
func (o *order) notAccepted() *order {
	rest := o.asOrdered()
	if o.dead() {
		return rest
	}
	for i := range rest.Lines {
		l := &rest.Lines[i]
		l.Gross, l.Quantity, l.Accepted = l.Gross-o.Lines[i].part(o.Lines[i].Accepted), 1, 1
	}
	rest.Total, rest.Tip, rest.DeliveryGross = rest.Total-o.Total, 0, 0
	rest.VAT = mergeVAT(rest.VAT, o.VAT, -1)
	return rest
}

// A division is the money that the attempt to pay an order has captured, in its two parts.
type division struct {
	kept     *refundable // what is left of the order's total
	rest     *refundable // what is left of the rest; its most is money, of which some may have no VAT
	refunds  []refund    // with how much of each is of the rest, the VAT and the tip in it
	released []refund    // of each refund what it gives back of the rest
}

// divide divides the money that the attempt p to pay an order has captured, and each of its refunds. p is nil for an
// order that was paid outside. A refund of ours stays as it was made. One that was found at the provider gives back the
// rest first: always if it was made before the order was accepted, else as far as there was a rest when it was found,
// or nothing is left of the total.
func (o *order) divide(p *payment, refunds []refund) *division {
	n := len(refunds)
	d := &division{newRefundable(o), o.chargedRest(p), slices.Clone(refunds), make([]refund, n)}
	kept, anew, renewed, counted := make([]refund, n), make([]bool, n), make([]bool, n), d.shareOut(o)
	for _, i := range counted {
		f := &d.refunds[i]
		anew[i] = f.ReleasedAmount != refunds[i].ReleasedAmount
		if d.released[i], renewed[i] = *f, anew[i]; !f.Released { // one of both parts takes all of the rest
			d.released[i], renewed[i] = refund{Amount: f.ReleasedAmount}, true
		}
	}
	d.rest.takeAll(d.released, renewed)
	for _, i := range counted {
		if kept[i] = d.refunds[i].less(&d.released[i]); kept[i].Amount == 0 {
			kept[i].VAT, kept[i].Tip = nil, 0
		}
	}
	d.kept.takeAll(kept, anew)
	for _, i := range counted {
		f, released := &d.refunds[i], &d.released[i]
		f.VAT, f.Tip = mergeVAT(released.VAT, kept[i].VAT, 1), released.Tip+kept[i].Tip
	}
	return d
}

// shareOut sets how much of each refund is of the rest, and returns the indexes of those that count.
func (d *division) shareOut(o *order) (counted []int) {
	room, most := d.rest.most, o.Total // what is left of both
	for _, source := range []string{sourceOurs, sourceProvider} {
		for i := range d.refunds {
			f := &d.refunds[i]
			if f.Source != source || f.State == refundFailed || !o.soldBy(f.PaymentID) {
				continue
			}
			if source == sourceProvider {
				f.ReleasedAmount = f.releases(o, room, most)
			}
			f.Released = f.ReleasedAmount == f.Amount
			room, most = room-f.ReleasedAmount, most-(f.Amount-f.ReleasedAmount)
			counted = append(counted, i)
		}
	}
	slices.Sort(counted)
	return counted
}

// chargedRest returns what an attempt has captured that is not for the order's total. Its VAT is that of what was
// charged and not accepted.
func (o *order) chargedRest(p *payment) *refundable {
	rest := &order{Currency: o.Currency}
	if p != nil && o.chargedBy(&p.ID) {
		rest = o.notAccepted()
	}
	left := newRefundable(rest)
	if left.most = 0; p != nil && o.dead() {
		left.most = p.Captured
	} else if p != nil {
		left.most = p.Captured - o.Total
	}
	return left
}

// releases returns how much of a refund that was found at the provider gives back of the rest, of which room is left.
// most is left of the total: what exceeds that is of the rest, as far as there is one.
func (f *refund) releases(o *order, room, most int64) int64 {
	released := min(f.ReleasedAmount, room)
	switch {
	case o.dead():
		return f.Amount
	case !f.CreatedAt.After(o.EndedAt.Time): // which is when it was accepted
		released = min(f.Amount, room)
	}
	return max(0, released, min(f.Amount-most, room, f.Amount))
}

// mergeVAT returns sums of VAT with others added, or taken off if sign is -1.
func mergeVAT(all, others []vatSum, sign int64) []vatSum {
	sums := slices.Clone(all)
	for _, sum := range others {
		at := slices.IndexFunc(sums, func(s vatSum) bool { return s.Rate == sum.Rate })
		if at < 0 {
			at, sums = len(sums), append(sums, vatSum{Rate: sum.Rate})
		}
		sums[at].Gross = max(0, sums[at].Gross+sign*sum.Gross)
		sums[at].VAT = max(0, sums[at].VAT+sign*sum.VAT)
	}
	sums = slices.DeleteFunc(sums, func(s vatSum) bool { return s.Gross == 0 })
	arrange(sums, func(a, b *vatSum) int { return int(a.Rate - b.Rate) })
	return sums
}

// less returns the refund without a part of it.
func (f *refund) less(part *refund) refund {
	rest := *f
	rest.Amount, rest.Tip, rest.VAT = f.Amount-part.Amount, max(0, f.Tip-part.Tip), mergeVAT(f.VAT, part.VAT, -1)
	return rest
}

// count has the order count the refunds of its total, and its state follow those that succeeded.
func (o *order) count(refunds []refund) error {
	done := int64(0)
	o.Refunded = 0
	for i := range o.Lines {
		o.Lines[i].Refunded = 0
	}
	for i := range refunds {
		f := &refunds[i]
		amount := f.ofOrder(o)
		if amount == 0 {
			continue
		}
		lines, err := f.lines()
		if err != nil {
			return err
		}
		// While one takes long, the same may be given back on the provider's pages, too.
		o.Refunded = min(o.Refunded+amount, o.Total)
		for _, l := range lines {
			if l.Line < len(o.Lines) {
				o.Lines[l.Line].Refunded += l.Quantity
			}
		}
		if f.State == refundSucceeded {
			done += amount
		}
	}
	o.follow(done)
	return nil
}

// A balance is the money of an attempt, as far as it matters for what its order accounts for.
type balance struct {
	pays     bool  // the order was paid with it, or charged while it waits to be accepted
	total    int64 // of the order
	captured int64
	taken    int64 // by disputes
	back     int64 // given back, or under way
	released int64 // of that, what was not accepted
	late     int64 // of back, what has been under way for longer than refundLate and does not count as given back
}

// unaccounted returns how much money the attempt holds that its order does not account for, 0 if they agree; negative:
// that it lacks. What the bank has taken counts first for what was not accepted.
func (b *balance) unaccounted() int64 {
	held := max(0, b.captured-(b.back-b.late)-b.taken)
	if !b.pays {
		return held
	}
	rest := b.captured - b.total - b.released
	if rest > 0 {
		rest = max(0, rest-b.taken)
	}
	return min(rest+b.late, held)
}

// end has the refund end: it succeeded, or failed if failure says why, even after it had succeeded. It reports whether
// it had not ended so before.
func (f *refund) end(failure string, now stamp) bool {
	state := refundSucceeded
	if failure != "" {
		state = refundFailed
	}
	if f.State == state {
		return false
	}
	f.State, f.Failure, f.EndedAt = state, nilIfEmpty(failure), now
	return true
}

// refundEvent returns the event that a refund of an order has ended.
func refundEvent(o *order, f *refund, actor string) event {
	data := []string{"refund_id", f.ID, "amount", strconv.FormatInt(f.Amount, 10), "currency", o.Currency}
	if f.State == refundFailed {
		return orderEvent(o, eventOrderRefundFailed, actor, append(data, "reason", valueOr(f.Failure, ""))...)
	}
	return orderEvent(o, eventOrderRefunded, actor, data...)
}

// parts returns how much of the refund is taxed at some rate or is tip: all, unless it exceeds what was left.
func (f *refund) parts() int64 {
	sum := f.Tip
	for _, part := range f.VAT {
		sum += part.Gross
	}
	return sum
}

// viewRefund returns a refund as callers see it.
func viewRefund(f refund) refund {
	f.MadeBy, f.VAT = publicActor(f.MadeBy), append([]vatSum{}, f.VAT...)
	return f
}
