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

// Refunds (contract, section 11). The column refunded of an order counts refunds that are pending or succeeded, from
// the moment they are requested; the order's state follows only those that succeeded. Refunds of money that was
// captured but pays nothing, because the order is dead or was paid otherwise, count for neither. Each refund stores
// the VAT and the tip in it, so that all of an order's refunds together give back exactly its VAT and its tip.

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

// take takes off what a refund gives back, or adds it again if sign is -1.
func (left *refundable) take(f *refund, sign int64) {
	left.most -= sign * f.Amount
	left.tip = max(0, left.tip-sign*f.Tip)
	left.delivery += sign * valueOr(f.Delivery, 0)
	for _, sum := range f.VAT {
		if at := left.rate(sum.Rate); at >= 0 {
			left.vat[at].Gross = max(0, left.vat[at].Gross-sign*sum.Gross)
			left.vat[at].VAT = max(0, left.vat[at].VAT-sign*sum.VAT)
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
	left.take(f, 1)
	return *f
}

// takeAll takes off what refunds give back. Those that are marked are made anew after the others, and so is one that
// was found and exceeded what was left, if there is more now: others have failed.
func (left *refundable) takeAll(refunds []refund, anew []bool) {
	for i := range refunds {
		if !anew[i] {
			left.take(&refunds[i], 1)
		}
	}
	for i := range refunds {
		f := &refunds[i]
		if !anew[i] && f.Source == sourceProvider && f.parts() < f.Amount {
			left.take(f, -1)
			if anew[i] = min(f.Amount, left.amount()) > f.parts(); !anew[i] {
				left.take(f, 1)
			}
		}
		if anew[i] {
			*f = left.takePart(f.Amount)
		}
	}
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

// ofOrder returns how much a refund gives back of the order's total: 0 if it failed.
func (f *refund) ofOrder(o *order) int64 {
	if f.State == refundFailed || !o.paidWith(f.PaymentID) {
		return 0
	}
	return f.Amount - f.ReleasedAmount
}

// refundOrder gives back money of an order of an owner: of an order that is paid, or money that was captured but
// pays nothing, because the order is dead or was paid otherwise, so that the attempt is in review. The provider
// is asked later (refundPending); money that was paid outside counts as given back at once. Errors: errOrder,
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
	t.lookAt(p.ID)
	return o, f, nil
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
		if w.paymentID != "" && o.settled() && o.paidWith(&p.ID) {
			amount, late := unaccounted(o, p, refunds, disputes, now)
			rest = amount - late
		} else if !o.settled() {
			rest = exceeding(o, p, refunds) - taken
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
		d := o.divide(p, refunds)
		for i := range refunds {
			if err := d.kept.takeLines(&refunds[i], o); err != nil {
				return nil, err
			}
		}
		d.kept.most -= max(0, taken-max(0, d.rest.most)) // the bank's first counts for what was not accepted
		return d.kept.wish(w)
	case !o.dead() && !o.settled() || p == nil || p.Captured == 0:
		return nil, errOrderState(o, "Nothing was paid that could be given back.")
	case w.aimed():
		return nil, errOrderState(o, "Refund an amount instead of parts.")
	}
	return restRefund(o, p, refunds, max(0, p.keeps(refunds)-taken), w.amount)
}

// keeps returns what the attempt has captured, less what was given back or is to be.
func (p *payment) keeps(refunds []refund) int64 {
	ours := int64(0)
	for i := range refunds {
		if f := &refunds[i]; f.State != refundFailed && valueOr(f.PaymentID, "") == p.ID {
			ours += f.Amount
		}
	}
	return p.Captured - max(ours, p.Refunded)
}

// exceeding returns how much more than an order's total an attempt has captured and keeps, if it is in review since
// that was captured on the provider's own pages; else 0.
func exceeding(o *order, p *payment, refunds []refund) int64 {
	if p.State != paymentReview || valueOr(p.Reason, "") != reasonCaptureDiffers || o.dead() || o.settled() {
		return 0
	}
	return max(0, p.keeps(refunds)-o.Total)
}

// restRefund makes the refund of an amount, nil for all, of what is left of an attempt's money beyond what its order
// accounts for. Errors: refund_too_large.
func restRefund(o *order, p *payment, refunds []refund, left int64, wished *int64) (*refund, error) {
	if amount := valueOr(wished, left); amount <= left && amount > 0 {
		return notAcceptedRefund(o, p, refunds, amount), nil
	}
	return nil, errRefundTooLarge(left, p.Currency)
}

// What an attempt has captured is for the order's total, or for what was not accepted. There is something of the latter
// where a method captures by being paid, which is before the restaurant has accepted the order: the sale then counts
// when it is charged, and what is not accepted of it is given back by refunds, as the rest of an authorisation would be
// released; or where somebody captures too much on the provider's own pages, which is no revenue. A refund gives back
// of the one or of the other, and a single one of an attempt may give back all that is left of the latter and some of
// the former. divide decides that, and stores it with each refund.

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
	rest.VAT = mergeVAT(rest.VAT, o.VAT, -1)
	return rest
}

// notAcceptedRefund makes the refund of an amount that an attempt holds beyond what its order accounts for. If the
// order was charged, it has its part of the VAT; otherwise what was captured is no revenue, and has none.
func notAcceptedRefund(o *order, p *payment, refunds []refund, amount int64) *refund {
	if !o.chargedBy(&p.ID) && (o.dead() || o.settled() && !o.paidWith(&p.ID)) {
		return &refund{Amount: amount}
	}
	f := o.divide(p, refunds).rest.takePart(amount)
	f.Released, f.ReleasedAmount = true, amount
	return &f
}

// A division is what the attempt that pays an order has captured, in two parts, and what its refunds give back of each.
type division struct {
	kept     *refundable // what is left of the order's total
	rest     *refundable // what is left of what was not accepted; its most is the money, of which not all may be taxed
	released []refund    // of each refund what it gives back of the rest
}

// divide divides what the attempt that pays an order, or has charged it, has captured, and each of its refunds. It
// sets how much of a refund is of what was not accepted, and the VAT and the tip in it where that changes them.
// p is nil for an order that was paid outside. What we give back stays as it was made; what was found gives back first
// what was not accepted, as far as there is something left: always if it was made before the order was accepted, later
// only if there was when it was found, or nothing is left of the total.
func (o *order) divide(p *payment, refunds []refund) *division {
	d := &division{newRefundable(o), o.chargedRest(p), make([]refund, len(refunds))}
	counts, anew, kept := make([]bool, len(refunds)), make([]bool, len(refunds)), make([]refund, len(refunds))
	room, most := d.rest.most, o.Total
	for _, source := range []string{sourceOurs, sourceProvider} {
		for i := range refunds {
			f := &refunds[i]
			if f.Source != source || f.State == refundFailed || !o.paidWith(f.PaymentID) && !o.chargedBy(f.PaymentID) {
				continue
			}
			released := f.ReleasedAmount
			if source == sourceProvider {
				released = f.releases(o, room, most)
			}
			counts[i], anew[i] = true, released != f.ReleasedAmount
			room, most = room-released, most-(f.Amount-released)
			f.ReleasedAmount, f.Released = released, released == f.Amount
		}
	}
	renewed := slices.Clone(anew) // and one of both parts, which gives back all that is left of the rest
	for i := range refunds {
		if f := &refunds[i]; counts[i] {
			if d.released[i] = *f; !f.Released {
				d.released[i], renewed[i] = refund{Amount: f.ReleasedAmount}, true
			}
		}
	}
	d.rest.takeAll(d.released, renewed)
	for i := range refunds {
		if f := &refunds[i]; counts[i] {
			if kept[i] = f.less(&d.released[i]); kept[i].Amount == 0 {
				kept[i].VAT, kept[i].Tip = nil, 0
			}
		}
	}
	d.kept.takeAll(kept, anew)
	for i := range refunds {
		if f := &refunds[i]; counts[i] {
			f.VAT, f.Tip = mergeVAT(d.released[i].VAT, kept[i].VAT, 1), d.released[i].Tip+kept[i].Tip
		}
	}
	return d
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

// releases returns how much of a refund that was found gives back what was not accepted, of which room is left. Most is
// left of the total: what exceeds it is of the former, as far as that goes.
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
	slices.SortFunc(sums, func(a, b vatSum) int { return int(a.Rate - b.Rate) })
	return sums
}

// less returns the refund without a part of it.
func (f *refund) less(part *refund) refund {
	rest := *f
	rest.Amount, rest.Tip, rest.VAT = f.Amount-part.Amount, max(0, f.Tip-part.Tip), mergeVAT(f.VAT, part.VAT, -1)
	return rest
}

// divideRefunds divides the refunds of an order anew, writes those that this changes, has the order count them, and
// returns them. p is an attempt that the transaction has changed and not written yet; nil: there is none.
func divideRefunds(t *tx, o *order, p *payment) ([]refund, error) {
	refunds, err := t.refundsOf(o.ID)
	if err != nil {
		return nil, err
	}
	if o.PaymentID == nil || o.paidOutside() {
		p = nil
	} else if p == nil || p.ID != *o.PaymentID {
		if p, err = t.payment(*o.PaymentID); err != nil {
			return nil, err
		}
	}
	before := slices.Clone(refunds)
	o.divide(p, refunds)
	for i := range refunds {
		f, old := &refunds[i], &before[i]
		if f.ReleasedAmount == old.ReleasedAmount && f.Tip == old.Tip && slices.Equal(f.VAT, old.VAT) {
			continue
		}
		t.saveRefundParts(f)
	}
	return refunds, o.count(refunds)
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
		o.Refunded = min(o.Refunded+amount, o.Total) // a late one may be given back there beside it
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

// releaseOf returns the refund that is to be made at once, of what an attempt that is captured by being paid holds
// beyond what its order accounts for; nil if it holds no more, or somebody has to look at it, since it is in review
// for more than a refund that takes long, or such a refund of ours has failed.
func releaseOf(o *order, p *payment, refunds []refund, disputes []dispute, now time.Time) *refund {
	inReview := p.State == paymentReview && valueOr(p.Reason, "") != reasonRefundPending
	if !p.atOnce() || inReview || slices.ContainsFunc(refunds, func(f refund) bool {
		return f.State == refundFailed && f.Source == sourceOurs && valueOr(f.PaymentID, "") == p.ID
	}) {
		return nil
	}
	amount, late := unaccounted(o, p, refunds, disputes, now)
	if amount <= late {
		return nil
	}
	f := notAcceptedRefund(o, p, refunds, amount-late)
	f.Source, f.Reason = sourceOurs, new("not accepted")
	return f
}

// releaseCharged gives back what an order that was charged does not account for any more, and saves the order.
func releaseCharged(t *tx, o *order, p *payment, actor string) error {
	refunds, err := divideRefunds(t, o, p)
	if err != nil {
		return err
	}
	disputes, err := t.disputesOf(o.ID)
	if err != nil {
		return err
	}
	f := releaseOf(o, p, refunds, disputes, t.exact)
	if f == nil {
		t.saveOrder(o)
		return nil
	}
	f.MadeBy = actor
	return addRefundOf(t, o, p, f)
}

// payCharged writes that an order is paid which was charged and has been accepted.
func payCharged(t *tx, o *order, p *payment, actor string) error {
	err := o.enter(t, orderPaid, stateEntry{actor: actor, method: p.Method, paidAt: o.PaidAt})
	if err != nil {
		return err
	}
	t.dropFoundParts(o.ID)
	return releaseCharged(t, o, p, actor)
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

// unaccounted returns how much money an attempt holds at now that its order does not account for, and how much is in
// refunds that have been under way for longer than refundLate.
func unaccounted(
	o *order, p *payment, refunds []refund, disputes []dispute, now time.Time,
) (amount, late int64) {
	b := balance{pays: o.paidWith(&p.ID), total: o.Total, captured: p.Captured, taken: takenOf(disputes, p.ID)}
	for i := range refunds {
		f := &refunds[i]
		if f.State == refundFailed || valueOr(f.PaymentID, "") != p.ID {
			continue
		}
		b.back += f.Amount
		b.released += f.ReleasedAmount
		if f.State == refundPending && !now.Before(f.CreatedAt.Add(refundLate)) {
			b.late += f.Amount
		}
	}
	return b.unaccounted(), b.late
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
	t.addRefund(f)
	refunds, err := divideRefunds(t, o, p)
	if err != nil {
		return err
	}
	*f = refunds[slices.IndexFunc(refunds, func(made refund) bool { return made.ID == f.ID })]
	t.saveOrder(o)
	return nil
}

// addFoundRefund adds a refund that somebody made on the provider's own pages, and returns it. It is pending:
// refundDone or refundUndone says what came of it. What exceeds the rest of the order has no VAT and no tip. As much
// of it as there is left of that gives back what was not accepted.
func addFoundRefund(t *tx, o *order, p *payment, r refundReport, actor string) (*refund, error) {
	f := &refund{Amount: r.amount, Source: sourceProvider, MadeBy: actor, ProviderID: nilIfEmpty(r.providerID)}
	if !r.at.IsZero() {
		f.CreatedAt = newStamp(r.at)
	}
	if o.paidWith(&p.ID) || o.chargedBy(&p.ID) {
		f.ReleasedAmount = r.amount // until it is divided
	}
	return f, addRefundOf(t, o, p, f)
}

// refundDone writes that a refund of an order succeeded, with its event. If it had succeeded before, nothing changes.
func refundDone(t *tx, o *order, f *refund, actor string) error {
	if f.State == refundSucceeded {
		return nil
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
	t.saveRefund(f)
	if _, err := divideRefunds(t, o, nil); err != nil {
		return err
	}
	t.saveOrder(o)
	t.addEvent(told)
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
