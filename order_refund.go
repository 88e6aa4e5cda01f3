package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// Refunds (contract, section 11). The column refunded of an order counts refunds that are pending or succeeded,
// from the moment they are requested; the order's state follows only those that succeeded. Refunds of money that
// was captured but pays nothing, because the order is dead or was paid otherwise, count for neither. Each refund
// stores the VAT and the tip in it, so that all of an order's refunds together give back exactly its VAT and its
// tip.

// A refundLine is what a refund gives back of one line of its order.
type refundLine struct {
	Line     int   `json:"line"` // index, from 0
	Quantity int64 `json:"quantity"`
	Amount   int64 `json:"amount"`
}

// A refundWish says what is to be given back: parts of the order, an amount, or with neither all that is left.
type refundWish struct {
	lines     []lineQuantity // a quantity of 0: by amounts
	amounts   []int64        // of lines, by the index in lines, instead of their quantities
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

// errRefundTooLarge returns the refusal of a refund of more than most, the amount that can still be given back.
func errRefundTooLarge(most int64, currency string) error {
	detail := "Nothing is left to be given back."
	if most > 0 {
		detail = "Refund an amount instead: at most " + formatMoney(most, currency) + "."
	}
	return &refusal{code: codeRefundTooLarge, detail: detail, members: []extraMember{{"refundable", most}}}
}

// A refundable is the part of an order that was not given back yet.
type refundable struct {
	order *order
	vat   []vatSum // as order.VAT
	tip   int64
	most  int64         // limit of vat and tip together; below their sum if money was given back without either
	lines map[int]int64 // the amounts given back by line, by the index of the line
	units map[int]int64 // the part of lines that was given back for units

	delivery int64 // that refunds of the delivery have given back
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

// refundableOf returns what is left of an order after its refunds that are pending or succeeded.
func refundableOf(o *order, refunds []refund) (*refundable, error) {
	left := newRefundable(o)
	for _, f := range refunds {
		if !f.ofOrder(o) {
			continue
		}
		left.take(&f)
		lines, err := f.lines()
		if err != nil {
			return nil, err
		}
		for _, l := range lines {
			if left.lines[l.Line] += l.Amount; l.Quantity > 0 {
				left.units[l.Line] += l.Amount
			}
		}
	}
	return left, nil
}

// lines returns what the refund gives back of each line; nil if it is not by lines.
func (f *refund) lines() (lines []refundLine, err error) {
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

// line returns what the line of a wish gives back, of at most what the line's rate of VAT has left: an amount of it, or
// units, which cost what they do together with those given back before, as far as amounts of the line have left that.
// Errors: refund_too_large, a refusal of the line.
func (left *refundable) line(w *refundWish, i int, most int64) (int64, error) {
	n, l := w.lines[i], &left.order.Lines[w.lines[i].Line]
	rest := max(0, l.part(l.Accepted)-left.lines[n.Line])
	if n.Quantity == 0 && i < len(w.amounts) && w.amounts[i] > 0 {
		return left.part(fmt.Sprintf("Line %d", n.Line), w.amounts[i], min(rest, most))
	}
	units := min(n.Quantity, l.Accepted-l.Refunded)
	amount := max(0, min(l.part(l.Refunded+units)-left.units[n.Line], rest))
	switch {
	case n.Quantity == 0:
		return 0, errMember(fmt.Sprintf("lines/%d/quantity", i), "out_of_range", "This must be 1 or more.")
	case amount > most:
		return 0, errRefundTooLarge(min(amount, left.amount()), left.order.Currency)
	case units == n.Quantity:
		return amount, nil
	case units > 0 && amount == 0: // refunds of amounts have left nothing of them
		return 0, errRefundTooLarge(left.amount(), left.order.Currency)
	}
	return 0, &refusal{code: codeRefundTooLarge, members: []extraMember{{"refundable", left.amount()}},
		detail: fmt.Sprintf("Line %d has %s left that were not given back.", n.Line, countOf(units, "unit"))}
}

// part returns a wished amount of a part of the order, of which rest is left. Errors: refund_too_large.
func (left *refundable) part(name string, wished, rest int64) (int64, error) {
	if wished <= rest {
		return wished, nil
	}
	return 0, &refusal{code: codeRefundTooLarge, members: []extraMember{{"refundable", rest}},
		detail: fmt.Sprintf("%s has %s left.", name, formatMoney(rest, left.order.Currency))}
}

// byParts makes a refund of lines, of the delivery and of the tip. Errors: a refusal that names the lines that are
// wrong, refund_too_large where less is left of a part, or refunds by amount have left less of its rate of VAT.
func (left *refundable) byParts(w *refundWish) (*refund, error) {
	o := left.order
	if err := checkLineQuantities(o, w.lines, 0, func(*orderLine) int64 { return maxQuantity }); err != nil {
		return nil, err
	}
	gross, all, lines := make([]int64, len(left.vat)), int64(0), []refundLine{}
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
	for i, n := range w.lines {
		rate := o.Lines[n.Line].VATRate
		amount, err := left.line(w, i, most(rate, math.MaxInt64))
		if err != nil {
			return nil, err
		}
		lines = append(lines, refundLine{n.Line, n.Quantity, amount})
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
	amount := left.amount()
	if most := amount; w.amount != nil {
		if amount = *w.amount; amount > most {
			return nil, errRefundTooLarge(most, left.order.Currency)
		}
	}
	if amount <= 0 {
		return nil, errRefundTooLarge(0, left.order.Currency)
	}
	return left.byAmount(amount), nil
}

// paidWith reports whether the attempt with an id has paid the order, or has been charged for it while it waits to be
// accepted; nil: whether it was paid without one.
func (o *order) paidWith(paymentID *string) bool {
	if paymentID == nil || o.paidOutside() {
		return paymentID == nil && o.settled()
	}
	return (o.settled() || o.charged() && !o.dead()) && valueOr(o.PaymentID, "") == *paymentID
}

// ofOrder reports whether a refund that did not fail gives back a part of the order's total.
func (f *refund) ofOrder(o *order) bool {
	return f.State != refundFailed && !f.Released && o.paidWith(f.PaymentID)
}

// refundOrder gives back money of an order of an owner: of an order that is paid, or money that was captured but
// pays nothing, because the order is dead or was paid otherwise, so that the attempt is in review. The provider
// is asked later (refundPending); money that was paid outside counts as given back at once. Errors: errOrder,
// order_state, refund_too_large, refund_limit_reached, a refusal that names the lines that are wrong.
func refundOrder(t *tx, by owner, id string, w refundWish, actor string) (*order, *refund, error) {
	t.invalidate()
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
	refunds, err := t.refundsOf(o.ID)
	if err != nil {
		return nil, nil, err
	}
	if len(refunds) >= maxRefunds {
		return nil, nil, &refusal{code: codeRefundLimit}
	}
	if w.once {
		if err := w.refuseRepeated(t, p, refunds); err != nil {
			return nil, nil, err
		}
	}
	disputes, err := t.disputesOf(o.ID)
	if err != nil {
		return nil, nil, err
	}
	f, err := wishedRefund(o, p, refunds, disputes, w, t.exact)
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
	if err := addRefundOf(t, o, p, f); err != nil {
		return nil, nil, err
	}
	if p == nil {
		return o, f, refundDone(t, o, f, actor)
	}
	return o, f, t.lookAt(p.ID)
}

// refuseRepeated returns the refusal of a wish that is like one of the last refundPause: somebody has pressed twice.
// p is the attempt whose money goes back, refunds are those of the order.
func (w *refundWish) refuseRepeated(t *tx, p *payment, refunds []refund) error {
	paymentID := ""
	if p != nil {
		paymentID = p.ID
	}
	for i := range refunds {
		f := &refunds[i]
		if f.State != refundFailed && f.Asked != nil && bytes.Equal(f.Asked, w.asked()) &&
			valueOr(f.PaymentID, "") == paymentID && t.exact.Sub(f.CreatedAt.Time) < refundPause {
			return &refusal{code: codeRefundRepeated, members: []extraMember{{"refund_id", f.ID}}}
		}
	}
	return nil
}

// asked returns what the wish asks for as JSON, alike for wishes that are alike; nil: for all that is left.
func (w *refundWish) asked() json.RawMessage {
	if !w.aimed() && w.amount == nil {
		return nil
	}
	return bytes.TrimSpace(encodeJSON(map[string]any{"lines": w.lines, "amounts": w.amounts, "delivery": w.delivery,
		"tip": w.tip, "amount": w.amount}))
}

// attemptOf returns an attempt to pay an order. Errors: a refusal of payment_id.
func attemptOf(t *tx, o *order, id string) (*payment, error) {
	p, err := t.payment(id)
	if errors.Is(err, errNotFound) || err == nil && p.OrderID != o.ID {
		return nil, errMember("payment_id", "unknown_value", "The order has no such payment.")
	}
	return p, err
}

// wishedRefund makes the refund of an order that w asks for at now. p is the attempt whose money goes back, nil if it
// was paid outside; refunds and disputes are those that the order has. What the bank has taken back for a dispute
// can't be given back again.
func wishedRefund(
	o *order, p *payment, refunds []refund, disputes []dispute, w refundWish, now time.Time,
) (*refund, error) {
	var paymentID *string
	taken, rest := int64(0), int64(0)
	if p != nil {
		paymentID, taken = &p.ID, takenOf(disputes, p.ID)
		if limit := findMethod(p.Method).refunds; limit > 0 && now.After(p.CapturedAt.Add(limit)) && p.Captured > 0 {
			return nil, errOrderState(o, fmt.Sprintf("Payments by %s can be given back for %d days: "+
				"give the money back outside.", p.Method, int(limit.Hours())/24))
		}
		if w.paymentID != "" && o.charged() && o.settled() {
			rest, _ = unaccounted(o, p, refunds, disputes, now)
		}
	}
	switch {
	case rest > 0 && w.aimed():
		return nil, errOrderState(o, "Refund an amount instead of parts.")
	case rest > 0: // what was not accepted, and could not be given back at once
		return restRefund(o, p, refunds, rest, w.amount)
	case o.charged() && !o.settled() && !o.dead():
		return nil, errOrderState(o, "Accept or reject it instead.")
	case o.paidWith(paymentID):
		left, err := refundableOf(o, refunds)
		if err != nil {
			return nil, err
		}
		left.most -= taken
		return left.wish(w)
	case !o.dead() && !o.settled() || p == nil || p.Captured == 0:
		return nil, errOrderState(o, "Nothing was paid that could be given back.")
	case w.aimed():
		return nil, errOrderState(o, "Refund an amount instead of parts.")
	}
	ours := int64(0)
	for i := range refunds {
		if f := &refunds[i]; f.State != refundFailed && valueOr(f.PaymentID, "") == p.ID {
			ours += f.Amount
		}
	}
	return restRefund(o, p, refunds, max(0, p.Captured-max(ours, p.Refunded)-taken), w.amount)
}

// restRefund makes the refund of an amount, nil for all, of what is left of an attempt's money beyond what its order
// accounts for. Errors: refund_too_large.
func restRefund(o *order, p *payment, refunds []refund, left int64, wished *int64) (*refund, error) {
	if amount := valueOr(wished, left); amount <= left && amount > 0 {
		return notAcceptedRefund(o, p, refunds, amount), nil
	}
	return nil, errRefundTooLarge(left, p.Currency)
}

// What a method captures by being paid is charged before the restaurant has accepted the order. The sale then counts
// when it is charged, and what is not accepted of it is given back by a refund that is none of the order's total
// (refund.Released), as the rest of an authorisation would be released.

// charged reports whether the order was charged by being paid, which is before it was accepted.
func (o *order) charged() bool {
	return !o.PaidAt.IsZero() && findMethod(valueOr(o.Method, "")).atOnce
}

// chargedBy reports whether the order was charged by the attempt with an id, even if it is dead since.
func (o *order) chargedBy(paymentID *string) bool {
	return o.charged() && paymentID != nil && valueOr(o.PaymentID, "") == *paymentID
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

// notAccepted returns a copy of the order that has what was ordered and not accepted: all of it, if it is dead.
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
	left := newRefundable(rest)
	left.take(&refund{VAT: o.VAT})
	rest.VAT = slices.DeleteFunc(left.vat, func(sum vatSum) bool { return sum.Gross == 0 })
	return rest
}

// notAcceptedRefund makes the refund of an amount that an attempt holds beyond what its order accounts for. If the
// order was charged, it has its part of the VAT; otherwise what was captured is no revenue, and has none.
func notAcceptedRefund(o *order, p *payment, refunds []refund, amount int64) *refund {
	if !o.chargedBy(&p.ID) {
		return &refund{Amount: amount}
	}
	left := releasableOf(o, refunds)
	f := left.byAmount(min(amount, left.amount()))
	f.Amount, f.Released = amount, true
	return f
}

// ofRest reports whether a refund that did not fail gives back what the order was charged for and was not accepted.
func (f *refund) ofRest(o *order) bool {
	return f.State != refundFailed && o.chargedBy(f.PaymentID) && (f.Released || o.dead())
}

// releasableOf returns what is left of what an order was charged for and was not accepted, after its refunds.
func releasableOf(o *order, refunds []refund) *refundable {
	left := newRefundable(o.notAccepted())
	for i := range refunds {
		if f := &refunds[i]; f.ofRest(o) {
			left.take(f)
		}
	}
	return left
}

// releaseOf returns the refund that is to be made at once, of what an attempt that is captured by being paid holds
// beyond what its order accounts for; nil if it holds no more, or somebody has to look at it, since it is in review
// or such a refund has failed.
func releaseOf(o *order, p *payment, refunds []refund, disputes []dispute, now time.Time) *refund {
	if !p.atOnce() || p.State == paymentReview || slices.ContainsFunc(refunds, func(f refund) bool {
		return f.State == refundFailed && f.Source == sourceOurs && valueOr(f.PaymentID, "") == p.ID
	}) {
		return nil
	}
	amount, late := unaccounted(o, p, refunds, disputes, now)
	if amount <= 0 || late > 0 {
		return nil
	}
	f := notAcceptedRefund(o, p, refunds, amount)
	f.Source, f.Reason = sourceOurs, new("not accepted")
	return f
}

// releaseCharged gives back what an order that was charged does not account for any more, and saves the order.
func releaseCharged(t *tx, o *order, p *payment, actor string) error {
	refunds, err := t.refundsOf(o.ID)
	if err != nil {
		return err
	}
	disputes, err := t.disputesOf(o.ID)
	if err != nil {
		return err
	}
	o.follow(refunds)
	f := releaseOf(o, p, refunds, disputes, t.exact)
	if f == nil {
		return t.saveOrder(o)
	}
	f.MadeBy = actor
	return addRefundOf(t, o, p, f)
}

// payCharged writes that an order is paid which was charged and has been accepted.
func payCharged(t *tx, o *order, p *payment, actor string) error {
	o.State, o.EndedAt, o.Capture = orderPaid, t.now, false
	var err error
	if o.Seller, err = t.sellerOf(o.AccountID); err != nil {
		return err
	}
	if err := releaseCharged(t, o, p, actor); err != nil {
		return err
	}
	return t.addEvent(totalEvent(o, eventOrderPaid, actor, "method", p.Method))
}

// unaccounted returns how much money an attempt holds at now that its order does not account for, 0 if they agree:
// captured - refunds done or under way - what disputes have taken - what the order counts as paid, or as charged
// while it waits to be accepted. late is the part of it in refunds that have been under way for longer than
// refundLate, which no longer count as given back.
func unaccounted(
	o *order, p *payment, refunds []refund, disputes []dispute, now time.Time,
) (amount, late int64) {
	given, released := int64(0), int64(0)
	for i := range refunds {
		f := &refunds[i]
		if f.State == refundFailed || valueOr(f.PaymentID, "") != p.ID {
			continue
		}
		if f.Released {
			released += f.Amount
		}
		if f.State == refundPending && !now.Before(f.CreatedAt.Add(refundLate)) {
			late += f.Amount
		} else {
			given += f.Amount
		}
	}
	if o.paidWith(&p.ID) { // refunds of the total and disputes lower both sides alike, until nothing is left of it
		rest := p.Captured - o.Total - released
		over := given + late - released + takenOf(disputes, p.ID) - o.Total
		return rest - max(0, min(rest, over)) + late, late
	}
	return max(0, p.Captured-given-takenOf(disputes, p.ID)), late
}

// addRefundOf writes a new refund of an order, which is pending, and counts it. p is the attempt whose
// money goes back; nil: it was paid outside.
func addRefundOf(t *tx, o *order, p *payment, f *refund) error {
	f.ID, f.OrderID, f.AccountID, f.State = t.newID("ref"), o.ID, o.AccountID, refundPending
	if f.CreatedAt.IsZero() {
		f.CreatedAt = t.now
	}
	if p != nil {
		f.PaymentID = &p.ID
	}
	if err := countRefund(o, f, 1); err != nil {
		return err
	}
	if err := t.addRefund(f); err != nil {
		return err
	}
	return t.saveOrder(o)
}

// countRefund adds a refund to the refunded amounts of its order, or subtracts it if sign is -1. Money that pays
// nothing is not counted.
func countRefund(o *order, f *refund, sign int64) error {
	if f.Released || !o.paidWith(f.PaymentID) {
		return nil
	}
	lines, err := f.lines()
	if err != nil {
		return err
	}
	o.Refunded = max(0, o.Refunded+sign*f.Amount)
	for _, l := range lines {
		if l.Line < len(o.Lines) {
			o.Lines[l.Line].Refunded += sign * l.Quantity
		}
	}
	return nil
}

// addFoundRefund adds a refund that somebody made on the provider's own pages, and returns it. It is pending:
// refundDone or refundUndone says what came of it. What exceeds the rest of the order has no VAT and no tip. One of an
// order that was charged gives back first what was not accepted, if that is still held.
func addFoundRefund(t *tx, o *order, p *payment, r refundReport, actor string) (*refund, error) {
	refunds, err := t.refundsOf(o.ID)
	if err != nil {
		return nil, err
	}
	f := &refund{Amount: r.amount}
	rest, _ := unaccounted(o, p, refunds, nil, t.exact)
	switch {
	case o.chargedBy(&p.ID) && (o.dead() || o.settled() && rest >= r.amount):
		f = notAcceptedRefund(o, p, refunds, r.amount)
	case o.paidWith(&p.ID):
		left, err := refundableOf(o, refunds)
		if err != nil {
			return nil, err
		}
		f = left.byAmount(min(r.amount, left.amount()))
		f.Amount = r.amount
	}
	f.Source, f.MadeBy = sourceProvider, actor
	f.ProviderID = nilIfEmpty(r.providerID)
	if !r.at.IsZero() {
		f.CreatedAt = newStamp(r.at)
	}
	return f, addRefundOf(t, o, p, f)
}

// refundDone writes that a refund of an order succeeded, with its event. If it had succeeded before, nothing
// changes.
func refundDone(t *tx, o *order, f *refund, actor string) error {
	if f.State == refundSucceeded {
		return nil
	}
	if f.State == refundFailed { // the provider says now that it succeeded after all
		if err := countRefund(o, f, 1); err != nil {
			return err
		}
	}
	f.State, f.Failure, f.EndedAt = refundSucceeded, nil, t.now
	return keepRefund(t, o, f, orderEvent(o, eventOrderRefunded, actor, refundData(o, f)...))
}

// refundUndone writes that a refund of an order failed, even after it had succeeded, with its event: its amount
// can be given back again. failure says why, "" if that is not known. If it had failed before, nothing changes.
func refundUndone(t *tx, o *order, f *refund, failure, actor string) error {
	if f.State == refundFailed {
		return nil
	}
	if err := countRefund(o, f, -1); err != nil {
		return err
	}
	f.State, f.Failure, f.EndedAt = refundFailed, nilIfEmpty(failure), t.now
	return keepRefund(t, o, f, orderEvent(o, eventOrderRefundFailed, actor,
		append(refundData(o, f), "reason", failure)...))
}

// refundData returns the data of the events of a refund.
func refundData(o *order, f *refund) []string {
	return []string{"refund_id", f.ID, "amount", strconv.FormatInt(f.Amount, 10), "currency", o.Currency}
}

// keepRefund writes what came of a refund: the refund, its order, whose state follows the refunds that
// succeeded unless it is dead, and the event.
func keepRefund(t *tx, o *order, f *refund, told event) error {
	if err := t.saveRefund(f); err != nil {
		return err
	}
	refunds, err := t.refundsOf(o.ID)
	if err != nil {
		return err
	}
	if err := spreadFound(t, o, refunds); err != nil {
		return err
	}
	o.follow(refunds)
	if err := t.saveOrder(o); err != nil {
		return err
	}
	return t.addEvent(told)
}

// follow has the state of an order that was paid follow the refunds of its total that succeeded.
func (o *order) follow(refunds []refund) {
	done := int64(0)
	for i := range refunds {
		if refunds[i].State == refundSucceeded && refunds[i].ofOrder(o) {
			done += refunds[i].Amount
		}
	}
	switch {
	case !o.settled():
	case done == 0:
		o.State = orderPaid
	case done < o.Total:
		o.State = orderPartRefunded
	default:
		o.State = orderRefunded
	}
}

// spreadFound recomputes the VAT and the tip of refunds that exceeded the rest of the order when they were found
// at the provider: refunds that have failed since leave more for them. refunds are all of the order's.
func spreadFound(t *tx, o *order, refunds []refund) error {
	for i := range refunds {
		f := &refunds[i]
		if !f.ofOrder(o) && !f.ofRest(o) || f.parts() == f.Amount {
			continue
		}
		others := slices.Delete(slices.Clone(refunds), i, i+1)
		left, err := refundableOf(o, others)
		if err != nil {
			return err
		}
		if f.ofRest(o) {
			left = releasableOf(o, others)
		}
		anew := left.byAmount(min(f.Amount, left.amount()))
		if anew.Amount <= f.parts() {
			continue
		}
		f.VAT, f.Tip = anew.VAT, anew.Tip
		if err := t.saveRefundParts(f); err != nil {
			return err
		}
	}
	return nil
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
