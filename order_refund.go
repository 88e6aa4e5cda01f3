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

// Refunds (contract, section 11). A refund is one row of one kind, with the VAT and the tip in it: these, its kind and
// its amount never change, whatever else happens to the order. It is taken off what the order has sold, which is all
// that was ordered if its money was captured by being paid, before the restaurant accepted it; else what was accepted.
// The column refunded of an order counts those that are pending or succeeded, from the moment they are requested, less
// what was captured beyond the order's total; the order's state follows those that succeeded.

// The kinds of refunds.
const (
	refundAsked       = "asked"        // by the restaurant
	refundNotAccepted = "not_accepted" // made by accepting less, refusing, cancelling or not answering
	refundFound       = "found"        // made on the provider's own pages
)

// A refundKind is why a refund was made. `asked`: by the restaurant. `not_accepted`: made by accepting less,
// refusing, cancelling or not answering an order whose money was captured by being paid. `found`: made on the
// provider's own pages.
type refundKind string

var _ = declareWords[refundKind](refundAsked, refundNotAccepted, refundFound)

// A newRefund is what is given back: parts (`lines`, `delivery`, `tip`), an `amount`, or with neither all that is
// left.
type newRefund struct {
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

// namesParts reports whether parts of the order are to be given back.
func (w *newRefund) namesParts() bool { return len(w.lines) > 0 || w.delivery > 0 || w.tip > 0 }

// upTo returns the amount that is to be given back, of at most what is left. Errors: refund_too_large.
func (w *newRefund) upTo(left int64, currency string) (int64, error) {
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

// A refundable is what an order has sold and did not give back yet.
type refundable struct {
	order    *order   // whose lines can be given back
	sold     []vatSum // as order.VAT, of all that was sold
	vat      []vatSum // of that, what is left, at the same indexes
	tip      int64
	money    int64         // that is left; more than vat and tip if more was captured than was sold
	lines    map[int]int64 // by the index of a line, how much refunds of that line have given back
	units    map[int]int64 // of that, what was given back for units
	delivery int64         // how much refunds of the delivery have given back
}

// newRefundable returns all that an order has sold by rate of VAT, with its tip, for which money was paid.
func newRefundable(o *order, sold []vatSum, tip, money int64) *refundable {
	return &refundable{order: o, sold: sold, vat: slices.Clone(sold), tip: tip, money: money, lines: map[int]int64{},
		units: map[int]int64{}}
}

// take takes off what a refund gives back.
func (left *refundable) take(f *refund) {
	left.money -= f.Amount
	left.tip = max(0, left.tip-f.Tip)
	left.delivery += valueOr(f.Delivery, 0)
	for _, sum := range f.VAT {
		if at := left.rate(sum.Rate); at >= 0 {
			left.vat[at].Gross = max(0, left.vat[at].Gross-sum.Gross)
			left.vat[at].VAT = max(0, left.vat[at].VAT-sum.VAT)
		}
	}
}

// takeLines takes off what a refund gives back of lines.
func (left *refundable) takeLines(f *refund) error {
	lines, err := f.lines()
	for _, l := range lines {
		if left.lines[l.Line] += l.Amount; l.Quantity > 0 {
			left.units[l.Line] += l.Amount
		}
	}
	return err
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

// parts returns how much of what was sold is left.
func (left *refundable) parts() int64 {
	parts := left.tip
	for _, sum := range left.vat {
		parts += sum.Gross
	}
	return parts
}

// amount returns how much of what was sold is left, and is there in money.
func (left *refundable) amount() int64 { return max(0, min(left.parts(), left.money)) }

// give makes a refund of gross, the amount to give back for each rate in the order of left.vat, and of a tip. The
// VAT for a rate is the VAT on everything given back at that rate so far, less the VAT of earlier refunds.
func (left *refundable) give(gross []int64, tip int64) *refund {
	f := &refund{Amount: tip, Tip: tip}
	for i, g := range gross {
		all, rest := left.sold[i], left.vat[i]
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
func (left *refundable) byParts(w *newRefund) (*refund, error) {
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
func (left *refundable) wish(w newRefund) (*refund, error) {
	if w.namesParts() {
		return left.byParts(&w)
	}
	amount, err := w.upTo(left.amount(), left.order.Currency)
	if err != nil {
		return nil, err
	}
	return left.byAmount(amount), nil
}

// capturedFirst reports whether the order's money was captured by being paid, before the restaurant accepted it.
// That is the sale, of all that was ordered.
func (o *order) capturedFirst() bool {
	return !o.PaidAt.IsZero() && !o.AuthorizedAt.IsZero() && findMethod(valueOr(o.Method, "")).capturedFirst
}

// sold returns the order as it is sold: with all units accepted if its money was captured before that.
func (o *order) sold() *order {
	if !o.capturedFirst() {
		return o
	}
	all := *o
	all.Lines = slices.Clone(o.Lines)
	for i := range all.Lines {
		all.Lines[i].Accepted = all.Lines[i].Quantity
	}
	all.addLines()
	return &all
}

// soldBy reports whether the money of the attempt with an id was paid for what the order has sold, even if the order
// is dead now; nil: what was paid outside.
func (o *order) soldBy(paymentID *string) bool {
	if paymentID == nil || o.paidOutside() {
		return paymentID == nil && o.wasPaid()
	}
	return (o.wasPaid() || o.capturedFirst()) && valueOr(o.PaymentID, "") == *paymentID
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

// pays reports whether the order is paid with the money, or waits to be accepted with it.
func (m *orderMoney) pays() bool { return m.order.soldBy(m.paymentID()) && !m.order.dead() }

// paymentID returns the id of the attempt, nil if the order was paid outside.
func (m *orderMoney) paymentID() *string {
	if m.payment == nil {
		return nil
	}
	return &m.payment.ID
}

// refundsOfMoney ranges over the refunds that give the attempt's money back, or what was paid outside.
func (m *orderMoney) refundsOfMoney(yield func(*refund) bool) {
	for i := range m.refunds {
		f := &m.refunds[i]
		if valueOr(f.PaymentID, "") == valueOr(m.paymentID(), "") && !yield(f) {
			return
		}
	}
}

// refundOf returns the first refund of back that is so, nil if there is none.
func (m *orderMoney) refundOf(is func(*refund) bool) *refund {
	for f := range m.refundsOfMoney {
		if is(f) {
			return f
		}
	}
	return nil
}

// disputed returns how much the bank has taken of the attempt for disputes, and has not put back.
func (m *orderMoney) disputed() int64 { return withdrawnOf(m.disputes, valueOr(m.paymentID(), "")) }

// balance returns the balance of the attempt, or of what was paid outside.
func (m *orderMoney) balance() *balance {
	b := &balance{pays: m.pays(), total: m.order.Total, disputed: m.disputed()}
	if m.payment != nil {
		b.captured = m.payment.Captured
	}
	for f := range m.refundsOfMoney {
		if f.State != refundFailed {
			b.refunded += f.Amount
		}
		if f.State == refundPending && !m.now.Before(f.CreatedAt.Add(refundLate)) {
			b.late += f.Amount
		}
	}
	return b
}

// kept returns what the attempt has captured, less what was given back or is to be given back.
func (m *orderMoney) kept() int64 {
	return m.payment.Captured - max(m.balance().refunded, m.payment.Refunded)
}

// unaccountedIfPaid returns how much an order that is to be paid with the attempt would not account for, if that is in
// review since more than the total was captured on the provider's own pages; else 0 or less.
func (m *orderMoney) unaccountedIfPaid() int64 {
	o, p := m.order, m.payment
	if p.State != paymentReview || valueOr(p.Reason, "") != reasonCaptureDiffers || o.dead() || o.wasPaid() {
		return 0
	}
	return m.kept() - o.Total
}

// left returns what the money has sold, less what refunds give back of it.
func (m *orderMoney) left(refunds []refund) *refundable {
	sold := m.order.sold()
	left := newRefundable(m.order, sold.VAT, sold.Tip, sold.Total)
	if m.payment != nil {
		left.money = max(sold.Total, m.payment.Captured)
	}
	return m.lessRefunds(left, refunds)
}

// lessRefunds takes off what refunds of the money give back that have not failed.
func (m *orderMoney) lessRefunds(left *refundable, refunds []refund) *refundable {
	for i := range refunds {
		if f := &refunds[i]; f.State != refundFailed && valueOr(f.PaymentID, "") == valueOr(m.paymentID(), "") {
			left.take(f)
		}
	}
	return left
}

// repeated returns a refund that was asked for by the same wish less than refundPause ago, since somebody may have
// clicked twice; nil if there is none.
func (m *orderMoney) repeated(w *newRefund) *refund {
	return m.refundOf(func(f *refund) bool {
		return f.State != refundFailed && f.Asked != nil && bytes.Equal(f.Asked, w.asked()) &&
			m.now.Sub(f.CreatedAt.Time) < refundPause
	})
}

// A moneyPurpose is what the money is for of which a refund is asked.
type moneyPurpose int

const (
	useNothing     moneyPurpose = iota // nothing was paid that could be given back
	useWaits                           // it was captured by being paid, and the order waits to be accepted
	useSold                            // the order is paid with it
	useUnaccounted                     // the order does not account for it
)

// use judges what the money is for of which w asks some back, and how much of it the order does not account for.
func (m *orderMoney) use(w *newRefund) (use moneyPurpose, unaccounted int64) {
	o, p := m.order, m.payment
	switch {
	case o.capturedFirst() && !o.wasPaid() && !o.dead():
		return useWaits, 0
	case m.pays():
		if p != nil && w.paymentID != "" {
			unaccounted = m.balance().toGiveBack()
		}
		if use = useSold; unaccounted > 0 {
			use = useUnaccounted
		}
		return use, unaccounted
	case p == nil || p.Captured == 0:
		return useNothing, 0
	case o.dead(), o.wasPaid():
		return useUnaccounted, max(0, m.kept()-m.disputed())
	}
	if unaccounted = m.unaccountedIfPaid() - m.disputed(); unaccounted > 0 {
		use = useUnaccounted
	}
	return use, unaccounted
}

// newRefund makes the refund that w asks for. What the bank has taken for a dispute can't be given back again.
func (m *orderMoney) newRefund(w newRefund) (*refund, error) {
	o, p := m.order, m.payment
	if p != nil {
		limit := findMethod(p.Method).refunds
		if limit > 0 && m.now.After(p.CapturedAt.Add(limit)) && p.Captured > 0 {
			return nil, errOrderState(o, fmt.Sprintf("Payments by %s can be given back for %d days: "+
				"give the money back outside.", p.Method, int(limit.Hours())/24))
		}
	}
	use, unaccounted := m.use(&w)
	switch {
	case use == useWaits:
		return nil, errOrderState(o, "Accept or reject it instead.")
	case use == useNothing:
		return nil, errOrderState(o, "Nothing was paid that could be given back.")
	case use == useSold:
		return m.newRefundOfSale(w)
	case w.namesParts():
		return nil, errOrderState(o, "Refund an amount instead of parts.")
	}
	amount, err := w.upTo(unaccounted, p.Currency)
	if err != nil {
		return nil, err
	}
	return m.byAmount(amount, m.refunds), nil
}

// newRefundOfSale makes the refund that w asks for of what was sold.
func (m *orderMoney) newRefundOfSale(w newRefund) (*refund, error) {
	left := m.left(m.refunds)
	for f := range m.refundsOfMoney {
		if f.State == refundFailed {
			continue
		}
		if err := left.takeLines(f); err != nil {
			return nil, err
		}
	}
	left.money -= m.disputed()
	return left.wish(w)
}

// byAmount makes the refund of an amount, with the VAT and the tip that it has of what the money has sold and refunds
// have left. What was captured beyond that goes back first, and has none; nor has what was no sale.
func (m *orderMoney) byAmount(amount int64, refunds []refund) *refund {
	f := &refund{}
	if m.order.soldBy(m.paymentID()) {
		left := m.left(refunds)
		beyond := max(0, left.money-left.parts())
		f = left.byAmount(min(max(0, amount-beyond), left.amount()))
	}
	f.Amount = amount
	return f
}

// byUnits makes the refund of an amount of what was not accepted of an order that is paid: with the VAT of these
// units, as far as other refunds have left that.
func (m *orderMoney) byUnits(amount int64) *refund {
	o := m.order
	units := m.lessRefunds(newRefundable(o, lessVAT(o.sold().VAT, o.VAT), 0, amount), m.refunds)
	if o.dead() || units.parts() < amount {
		return m.byAmount(amount, m.refunds)
	}
	return units.byAmount(amount)
}

// lessVAT returns sums of VAT less others.
func lessVAT(all, others []vatSum) (rest []vatSum) {
	for _, sum := range all {
		for _, other := range others {
			if other.Rate == sum.Rate {
				sum.Gross, sum.VAT = sum.Gross-other.Gross, max(0, sum.VAT-other.VAT)
			}
		}
		if sum.Gross > 0 {
			rest = append(rest, sum)
		}
	}
	return rest
}

// matchFound gives the refunds that were found just now the VAT and the tip in them, of what others leave. Those of
// ours for which the provider has not enough left fail, the latest first: it would refuse them. That with the id sent
// it is being asked for already, so that one is only left out.
func (m *orderMoney) matchFound(sent string) {
	isNew := func(f refund) bool { return f.Kind == refundFound && findRefund(m.stored, f.ID) == nil }
	if !slices.ContainsFunc(m.refunds, isNew) {
		return
	}
	left, refused := m.payment.Captured, ""
	for f := range m.refundsOfMoney {
		if f.State != refundFailed && !f.toMake() {
			left -= f.Amount
		}
	}
	for f := range m.refundsOfMoney {
		switch {
		case !f.toMake():
		case f.Amount <= left:
			left -= f.Amount
		case f.ID == sent:
			refused = sent
		default:
			f.end(reasonRefused, newStamp(m.now))
		}
	}
	others := slices.DeleteFunc(slices.Clone(m.refunds), func(f refund) bool { return isNew(f) || f.ID == refused })
	for i := range m.refunds {
		if f := &m.refunds[i]; isNew(*f) {
			parts := m.byAmount(f.Amount, others)
			f.VAT, f.Tip = parts.VAT, parts.Tip
			others = append(others, *f)
		}
	}
}

// toMake reports whether the refund is to be made at the provider.
func (f *refund) toMake() bool {
	return f.State == refundPending && f.ProviderID == nil && f.Kind != refundFound
}

// giveBack adds a refund that is to be made at once of what the order does not account for, if the attempt was
// captured by being paid: there was no authorisation of which that could be released. It adds none if somebody has
// to look at the attempt, for more than a refund that takes long, or if a refund of ours has failed.
func (m *orderMoney) giveBack(actor string) {
	p := m.payment
	inReview := p.State == paymentReview && valueOr(p.Reason, "") != reasonRefundPending
	failed := m.refundOf(func(f *refund) bool { return f.State == refundFailed && f.Kind != refundFound }) != nil
	if amount := m.balance().toGiveBack(); p.capturedFirst() && !inReview && !failed && amount > 0 {
		f := m.byUnits(amount)
		f.Kind, f.MadeBy, f.Reason = refundNotAccepted, actor, new("not accepted")
		m.add(f)
	}
}

// add adds a refund, which is pending. It has no id before it is saved.
func (m *orderMoney) add(f *refund) {
	f.OrderID, f.AccountID, f.PaymentID, f.State = m.order.ID, m.order.AccountID, m.paymentID(), refundPending
	if f.Source = sourceOurs; f.Kind == refundFound {
		f.Source = sourceProvider
	}
	if f.CreatedAt.IsZero() {
		f.CreatedAt = newStamp(m.now)
	}
	m.refunds = append(m.refunds, *f)
}

// save writes the refunds that are not as they are stored, each that has ended with its event, and the order, which
// counts them, with what follows from that.
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
	err := m.count()
	t.saveOrder(m.order)
	t.setErasure(m.order)
	t.noteRevenue(m.order)
	return err
}

// payAccepted writes that an order is paid whose money was captured before it was accepted.
func payAccepted(t *tx, o *order, p *payment, actor string) error {
	err := o.enterState(t, orderPaid, stateEntry{actor: actor, method: orderMethod(p.Method), paidAt: o.PaidAt})
	if err != nil {
		return err
	}
	return refundRest(t, o, p, actor)
}

// refundRest gives back what an attempt holds that its order does not account for, see giveBack. p as in moneyOf.
func refundRest(t *tx, o *order, p *payment, actor string) error {
	m, err := moneyOf(t, o, p)
	if err != nil {
		return err
	}
	m.giveBack(actor)
	return m.save(t, actor)
}

// refundOrder gives back money of an order of an owner: of one that is paid; or money that was captured but pays
// nothing, since the order is dead or was paid otherwise, so that the attempt is in review. The provider is asked
// later (refundPending); what was paid outside counts as given back at once. Errors: errOrder,
// order_state, refund_too_large, refund_limit_reached, a refusal that names the lines that are wrong.
func refundOrder(t *tx, by owner, id string, w newRefund, actor string) (*order, *refund, error) {
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
	if m.counted() >= t.limits.refunds {
		return nil, nil, &refusal{code: codeRefundLimit}
	}
	if earlier := m.repeated(&w); w.once && earlier != nil {
		return nil, nil, &refusal{code: codeRefundRepeated, members: []extraMember{{"refund_id", earlier.ID}}}
	}
	f, err := m.newRefund(w)
	if err != nil {
		return nil, nil, err
	}
	f.Kind, f.Reason, f.MadeBy, f.Asked = refundAsked, nilIfEmpty(w.reason), actor, w.asked()
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
		t.pollPayment(p.ID)
	}
	err = m.save(t, actor)
	return o, &m.refunds[len(m.refunds)-1], err
}

// counted returns how many refunds count for the limit of an order: those that the service has made do not.
func (m *orderMoney) counted() (n int) {
	for i := range m.refunds {
		if m.refunds[i].Kind != refundNotAccepted {
			n++
		}
	}
	return n
}

// asked returns the wish as JSON, which is the same for equal wishes; nil: it is for all that is left.
func (w *newRefund) asked() json.RawMessage {
	if !w.namesParts() && w.amount == nil {
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

// count sets what the order says of the refunds of the money that pays it, less what was captured beyond its total,
// and its state follow those that succeeded.
func (m *orderMoney) count() error {
	if !m.pays() {
		return nil
	}
	o, b, done := m.order, m.balance(), int64(0)
	for i := range o.Lines {
		o.Lines[i].Refunded = 0
	}
	for f := range m.refundsOfMoney {
		if f.State == refundFailed {
			continue
		}
		lines, err := f.lines()
		if err != nil {
			return err
		}
		for _, l := range lines {
			if l.Line < len(o.Lines) {
				o.Lines[l.Line].Refunded += l.Quantity
			}
		}
		if f.State == refundSucceeded {
			done += f.Amount
		}
	}
	// While one takes long, the same may be given back on the provider's pages, too.
	o.Refunded = min(max(0, b.refunded-b.overcaptured()), o.Total)
	o.follow(max(0, done-b.overcaptured()))
	return nil
}

// A balance is the money of an attempt, as far as it matters for what its order accounts for.
type balance struct {
	pays     bool  // the order was paid with it, or waits to be accepted with it
	total    int64 // of the order
	captured int64
	disputed int64 // by disputes
	refunded int64 // given back, or under way
	late     int64 // of that, what has been under way for longer than refundLate and does not count as given back
}

// unaccounted returns how much money the attempt holds that its order does not account for, 0 if they agree; negative:
// that it lacks. What is given back counts first for what was captured beyond the total.
func (b *balance) unaccounted() int64 {
	held := max(0, b.captured-(b.refunded-b.late)-b.disputed)
	if !b.pays {
		return held
	}
	more := b.captured - b.total
	if more > 0 {
		more = max(0, more-b.refunded)
	}
	return min(more+b.late, held)
}

// toGiveBack returns how much of what is not accounted for is not being given back yet.
func (b *balance) toGiveBack() int64 { return b.unaccounted() - b.late }

// overcaptured returns how much more than the order's total was captured: what was not accepted of an order that was
// captured before that, or what somebody captured on the provider's own pages.
func (b *balance) overcaptured() int64 { return max(0, b.captured-b.total) }

// end ends the refund: it succeeded, or failed if failure says why, even after it had succeeded. It reports whether
// it had not ended so before.
func (f *refund) end(failure string, now stamp) bool {
	state := refundState(refundSucceeded)
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
