package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// A refundWish says what is to be given back: some lines, or an amount, or with neither all that is left.
type refundWish struct {
	lines     []lineQuantity
	amount    *int64
	paymentID string // the attempt whose money goes back, if it pays nothing; "": the last one
	reason    string
}

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
}

// refundableOf returns what is left of an order after its refunds that are pending or succeeded.
func refundableOf(o *order, refunds []refund) (*refundable, error) {
	left := &refundable{order: o, vat: slices.Clone(o.VAT), tip: o.Tip, most: o.Total, lines: map[int]int64{}}
	for _, f := range refunds {
		if f.State == refundFailed || !o.paidWith(f.PaymentID) {
			continue
		}
		left.most -= f.Amount
		left.tip = max(0, left.tip-f.Tip)
		for _, sum := range f.VAT {
			if at := left.rate(sum.Rate); at >= 0 {
				left.vat[at].Gross = max(0, left.vat[at].Gross-sum.Gross)
				left.vat[at].VAT = max(0, left.vat[at].VAT-sum.VAT)
			}
		}
		lines, err := f.lines()
		if err != nil {
			return nil, err
		}
		for _, l := range lines {
			left.lines[l.Line] += l.Amount
		}
	}
	return left, nil
}

// lines returns what the refund gives back of each line; nil if it is not by lines.
func (f *refund) lines() (lines []refundLine, err error) {
	if len(f.Lines) > 0 {
		err = json.Unmarshal(f.Lines, &lines)
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

// byLines makes a refund of units of lines. Errors: a refusal that names the lines that are wrong,
// refund_too_large where fewer units are left, or refunds by amount have left less.
func (left *refundable) byLines(wished []lineQuantity) (*refund, error) {
	o := left.order
	if err := checkLineQuantities(o, wished, 1, func(*orderLine) int64 { return maxQuantity }); err != nil {
		return nil, err
	}
	gross, lines, all := make([]int64, len(left.vat)), []refundLine{}, int64(0)
	for _, w := range wished {
		l := &o.Lines[w.Line]
		if units := l.Accepted - l.Refunded; w.Quantity > units {
			return nil, &refusal{code: codeRefundTooLarge, members: []extraMember{{"refundable", left.amount()}},
				detail: fmt.Sprintf("Line %d has %s left that were not given back.", w.Line, countOf(units, "unit"))}
		}
		amount := max(0, l.part(l.Refunded+w.Quantity)-left.lines[w.Line])
		lines, all = append(lines, refundLine{w.Line, w.Quantity, amount}), all+amount
		if at := left.rate(l.VATRate); at >= 0 {
			gross[at] += amount
		}
	}
	if all == 0 {
		return nil, errMember("lines", "nothing_left", "These lines cost nothing.")
	}
	for i, g := range gross {
		if g > left.vat[i].Gross || all > left.amount() {
			return nil, errRefundTooLarge(min(all, left.amount()), o.Currency)
		}
	}
	f := left.give(gross, 0)
	var err error
	f.Lines, err = json.Marshal(lines)
	return f, err
}

// wish makes the refund that w asks for. Errors: refund_too_large, a refusal that names the lines that are wrong.
func (left *refundable) wish(w refundWish) (*refund, error) {
	if len(w.lines) > 0 {
		return left.byLines(w.lines)
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

// paidWith reports whether the attempt with an id has paid the order; nil: whether it was paid without one.
func (o *order) paidWith(paymentID *string) bool {
	if paymentID == nil || o.paidOutside() {
		return paymentID == nil && o.settled()
	}
	return o.settled() && valueOr(o.PaymentID, "") == *paymentID
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
	disputes, err := t.disputesOf(o.ID)
	if err != nil {
		return nil, nil, err
	}
	f, err := wishedRefund(o, p, refunds, disputes, w)
	if err != nil {
		return nil, nil, err
	}
	f.Reason, f.Source, f.MadeBy = nilIfEmpty(w.reason), sourceOurs, actor
	if err := addRefundOf(t, o, p, f); err != nil {
		return nil, nil, err
	}
	if p == nil {
		return o, f, refundDone(t, o, f, actor)
	}
	return o, f, t.lookAt(p.ID)
}

// attemptOf returns an attempt to pay an order. Errors: a refusal of payment_id.
func attemptOf(t *tx, o *order, id string) (*payment, error) {
	p, err := t.payment(id)
	if errors.Is(err, errNotFound) || err == nil && p.OrderID != o.ID {
		return nil, errMember("payment_id", "unknown_value", "The order has no such payment.")
	}
	return p, err
}

// wishedRefund makes the refund of an order that w asks for. p is the attempt whose money goes back, nil if it
// was paid outside; refunds and disputes are those that the order has. What the bank has taken back for a dispute
// can't be given back again.
func wishedRefund(o *order, p *payment, refunds []refund, disputes []dispute, w refundWish) (*refund, error) {
	var paymentID *string
	lost := int64(0)
	if p != nil {
		paymentID, lost = &p.ID, lostOf(disputes, p.ID)
	}
	switch {
	case o.paidWith(paymentID):
		left, err := refundableOf(o, refunds)
		if err != nil {
			return nil, err
		}
		left.most -= lost
		return left.wish(w)
	case !o.dead() && !o.settled() || p == nil || p.Captured == 0:
		return nil, errOrderState(o, "Nothing was paid that could be given back.")
	case len(w.lines) > 0:
		return nil, errOrderState(o, "Refund an amount instead of lines.")
	}
	// What was captured but pays nothing is no revenue, so there is no VAT in it, and no tip.
	ours := int64(0)
	for i := range refunds {
		if f := &refunds[i]; f.State != refundFailed && valueOr(f.PaymentID, "") == p.ID {
			ours += f.Amount
		}
	}
	left := max(0, p.Captured-max(ours, p.Refunded)-lost)
	amount := left
	if w.amount != nil {
		amount = *w.amount
	}
	if amount > left || amount <= 0 {
		return nil, errRefundTooLarge(left, p.Currency)
	}
	return &refund{Amount: amount}, nil
}

// addRefundOf writes a new refund of an order, which is pending, and counts it. p is the attempt whose
// money goes back; nil: it was paid outside.
func addRefundOf(t *tx, o *order, p *payment, f *refund) error {
	f.ID, f.OrderID, f.State = t.newID("ref"), o.ID, refundPending
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
	if !o.paidWith(f.PaymentID) {
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
// refundDone or refundUndone says what came of it. What exceeds the rest of the order has no VAT and no tip.
func addFoundRefund(t *tx, o *order, p *payment, r refundReport, actor string) (*refund, error) {
	f := &refund{Amount: r.amount}
	if o.paidWith(&p.ID) {
		refunds, err := t.refundsOf(o.ID)
		if err != nil {
			return nil, err
		}
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
	done := int64(0)
	for i := range refunds {
		if refunds[i].State == refundSucceeded && o.paidWith(refunds[i].PaymentID) {
			done += refunds[i].Amount
		}
	}
	if err := spreadFound(t, o, refunds); err != nil {
		return err
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
	if err := t.saveOrder(o); err != nil {
		return err
	}
	return t.addEvent(told)
}

// spreadFound recomputes the VAT and the tip of refunds that exceeded the rest of the order when they were found
// at the provider: refunds that have failed since leave more for them. refunds are all of the order's.
func spreadFound(t *tx, o *order, refunds []refund) error {
	for i := range refunds {
		f := &refunds[i]
		if f.State == refundFailed || !o.paidWith(f.PaymentID) || f.parts() == f.Amount {
			continue
		}
		left, err := refundableOf(o, slices.Delete(slices.Clone(refunds), i, i+1))
		if err != nil {
			return err
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
