package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// scopeRevenue is the scope that allows reading the revenue of days.
const scopeRevenue = "revenue:read"

// revenueNoun declares business days and their revenue.
func revenueNoun() noun {
	return noun{
		name:     "revenue",
		modules:  func(s *server) []module { return []module{revenueModule(s)} },
		commands: revenueCommands,
		calls:    revenueRouteCommands,
		rows:     []rowReader{factTable.unreadable},
		retry:    checkBacklog,
		troubles: []trouble{unrecordedRevenue},
		settings: changeZone,
	}
}

// Revenue days (contract, section 12): the revenue of an account's orders on each business day, in each currency. The
// transaction that changes an order whose money has moved also writes what is due as facts, which never change, and
// adds their figures to the sums of a day that is not frozen.

const (
	// revenueGrace is how long a business day stays open after its cut-off.
	revenueGrace = 2 * time.Hour

	// maxDayGroups is how many groups the sums of a day and currency have; figures of further groups get no group.
	maxDayGroups = 50
)

// The kinds of figures, see figureKinds.
const (
	figureSale           = "sale"
	figureDelivery       = "delivery"
	figureTip            = "tip"
	figureDiscount       = "discount"
	figureRefund         = "refund"
	figureRefundDelivery = "refund_delivery"
	figureRefundTip      = "refund_tip"
	figureDispute        = "dispute"
)

// A figureKind says what figures of one kind count for.
type figureKind struct {
	sign  int64                       // of what they add to the money received; 0: they are informative only
	taxed bool                        // they contain VAT
	of    string                      // of refunds: the kind of what they give back
	total func(*revenueTotals) *int64 // the total of a day to which they are added
}

// figureKinds are all kinds of figures. Money is received by a sale, a delivery and a tip; it is given back by a
// refund of each and by a dispute. A discount is informative only, since prices are already less their discount.
var figureKinds = map[string]figureKind{
	figureSale:           {1, true, "", func(t *revenueTotals) *int64 { return &t.Sales }},
	figureDelivery:       {1, true, "", func(t *revenueTotals) *int64 { return &t.Delivery }},
	figureTip:            {1, false, "", func(t *revenueTotals) *int64 { return &t.Tips }},
	figureDiscount:       {0, false, "", func(t *revenueTotals) *int64 { return &t.Discounts }},
	figureRefund:         {-1, true, figureSale, func(t *revenueTotals) *int64 { return &t.Refunds }},
	figureRefundDelivery: {-1, true, figureDelivery, func(t *revenueTotals) *int64 { return &t.Refunds }},
	figureRefundTip:      {-1, false, figureTip, func(t *revenueTotals) *int64 { return &t.Refunds }},
	figureDispute:        {-1, false, "", func(t *revenueTotals) *int64 { return &t.Disputes }},
}

// refundOf returns the kind of figures that give back what those of another kind have received.
func refundOf(what string) string {
	for refund, kind := range figureKinds {
		if kind.of == what {
			return refund
		}
	}
	return ""
}

// A figure is one amount of a fact. A figure with the opposite sign takes it back when something has changed.
type figure struct {
	What  string `json:"what"`            // figureSale, …
	Rate  int64  `json:"rate,omitempty"`  // VAT rate of sales, deliveries and their refunds
	Group string `json:"group,omitempty"` // of sales and their refunds; "": none
	Gross int64  `json:"gross"`           // VAT included
	VAT   int64  `json:"vat,omitempty"`
}

// received returns how much a figure adds to the money received; it is negative for what was given back.
func (f *figure) received() int64 { return figureKinds[f.What].sign * f.Gross }

// A revenueSum is the sum of the figures of a day, a currency and a way of paying.
type revenueSum struct {
	Method string // methodCard, …
	Test   bool   // paid with test keys, so no money moved
	figure
}

// A revenueTotals is what a day has brought in all. An amount is negative where more was taken back than there
// was.
type revenueTotals struct {
	Sales    int64 `json:"sales" least:"-"`    // Sold, VAT included, less discounts.
	Delivery int64 `json:"delivery" least:"-"` // For bringing it, VAT included, less discounts.
	Tips     int64 `json:"tips" least:"-"`     // Without VAT.
	Refunds  int64 `json:"refunds" least:"-"`  // Given back of all three.
	Disputes int64 `json:"disputes" least:"-"` // Disputed by guests with their banks, and not won.
	Total    int64 `json:"total" least:"-"`    // `sales`, `delivery` and `tips` less `refunds` and `disputes`.
	VAT      int64 `json:"vat" least:"-"`      // The VAT in `sales` and `delivery` less that in `refunds`.

	// By how much prices were lowered; told only, since all amounts are less discounts.
	Discounts int64 `json:"discounts" least:"-"`
	Test      int64 `json:"test" least:"-"` // How much of `total` was paid with test keys, so that no money moved.
}

// add adds a sum of a day.
func (t *revenueTotals) add(s *revenueSum) {
	kind := figureKinds[s.What]
	*kind.total(t) += s.Gross
	t.VAT += kind.sign * s.VAT
	t.Total += s.received()
	if s.Test {
		t.Test += s.received()
	}
}

// A businessDate is a local date in an account's time zone, as "2026-11-22".
type businessDate = string

// A revenueDayKey names a business day of an account and a currency in which something counts on it.
type revenueDayKey struct {
	Date     businessDate
	Currency string
	FrozenAt stamp // zero: it is not frozen
}

// factSale is the source of the fact of a sale. Those of refunds and disputes are their ids.
const factSale = "sale"

// A revenueFact is a row of revenue_facts.
type revenueFact struct {
	Seq       int64
	AccountID string
	OrderID   string
	Source    string // factSale, or the id of a refund or dispute
	Currency  string
	Date      businessDate // on which it counts
	OwnDate   businessDate // on which it happened
	At        stamp
	Method    string
	Test      bool
	Figures   []figure
}

// received returns how much a fact adds to the money received.
func (f *revenueFact) received() (amount int64) {
	for i := range f.Figures {
		amount += f.Figures[i].received()
	}
	return amount
}

// sameKind compares what two figures are about.
func sameKind(a, b figure) int {
	return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Rate, b.Rate), cmp.Compare(a.Group, b.Group))
}

// addFigures returns figures with those of one kind added up, sorted, and without those that become 0.
func addFigures(all []figure) (sums []figure) {
	for _, f := range all {
		at, found := slices.BinarySearchFunc(sums, f, sameKind)
		if !found {
			sums = slices.Insert(sums, at, f)
			continue
		}
		sums[at].Gross += f.Gross
		sums[at].VAT += f.VAT
	}
	return slices.DeleteFunc(sums, func(f figure) bool { return f.Gross == 0 && f.VAT == 0 })
}

// negated returns figures with the opposite sign.
func negated(all []figure) []figure {
	opposite := slices.Clone(all)
	for i := range opposite {
		opposite[i].Gross, opposite[i].VAT = -opposite[i].Gross, -opposite[i].VAT
	}
	return opposite
}

// soldFigures returns what an order has sold, by rate of VAT and group, and its delivery. For each rate the sum
// of the amounts and of the VAT is that of the order itself, whose VAT is spread over the figures of that rate.
func soldFigures(o *order) (sold []figure) {
	for _, l := range o.Lines {
		sold = append(sold, figure{What: figureSale, Rate: l.VATRate, Group: l.Group, Gross: l.part(l.Accepted)})
	}
	if o.DeliveryGross > 0 {
		sold = append(sold, figure{What: figureDelivery, Rate: o.DeliveryRate, Gross: o.DeliveryGross})
	}
	parts := addFigures(sold)
	sold = nil
	for _, sum := range o.VAT {
		sold = append(sold, spreadFigures(figureSale, sum, ofRate(parts, sum.Rate))...)
	}
	return sold
}

// ofRate returns the figures with a rate of VAT that are above 0.
func ofRate(all []figure, rate int64) (some []figure) {
	for _, f := range all {
		if f.Rate == rate && f.Gross > 0 {
			some = append(some, f)
		}
	}
	return some
}

// spreadFigures spreads an amount and its VAT over figures, in proportion to their amounts. Without figures
// it becomes one of the kind what, without a group.
func spreadFigures(what string, sum vatSum, over []figure) []figure {
	if len(over) == 0 {
		return []figure{{What: what, Rate: sum.Rate, Gross: sum.Gross, VAT: sum.VAT}}
	}
	weights := make([]int64, len(over))
	for i := range over {
		weights[i] = over[i].Gross
	}
	gross := spread(sum.Gross, weights)
	vat := spread(sum.VAT, gross)
	parts := slices.Clone(over)
	exact := true // everything is taken, so each part keeps its own VAT
	left := sum.VAT
	for i := range parts {
		exact = exact && gross[i] == over[i].Gross && over[i].VAT >= 0 && over[i].VAT <= gross[i]
		left -= over[i].VAT
	}
	for i := range parts {
		parts[i].Gross = gross[i]
		if !exact || left != 0 {
			parts[i].VAT = vat[i]
		}
	}
	return parts
}

// saleFigures returns the figures of a paid order: what it has sold, its tip, and its discount.
func saleFigures(o *order) []figure {
	discount := o.Delivery - o.DeliveryGross
	for _, l := range o.Lines {
		discount += l.UnitAmount*l.Accepted - l.part(l.Accepted)
	}
	return addFigures(append(soldFigures(o), figure{What: figureTip, Gross: o.Tip},
		figure{What: figureDiscount, Gross: discount}))
}

// refundFigures returns the figures of a refund. left is what the order has sold and not given back yet. A refund of
// lines, of the delivery, or of units that were not accepted gives back of their groups, as far as refunds by amount
// have left enough of them. Its rest, and any other refund, is taken for each rate of VAT from all that is left, in
// proportion. What exceeds that, with neither VAT nor tip, gets the rate 0 and no group.
func refundFigures(o *order, f *refund, left []figure) ([]figure, error) {
	named, err := o.namedBy(f)
	if err != nil {
		return nil, err
	}
	beside := slices.Clone(left) // less what is named
	for i := range named {
		at := slices.IndexFunc(left, func(l figure) bool { return sameKind(l, named[i]) == 0 })
		if at < 0 {
			named[i].Gross = 0
			continue
		}
		named[i].VAT = left[at].VAT // applies if all of it is given back
		named[i].Gross = min(named[i].Gross, left[at].Gross)
		beside[at].Gross -= named[i].Gross
	}
	rest := f.Amount - f.Tip
	given := []figure{{What: figureRefundTip, Gross: f.Tip}}
	for _, sum := range f.VAT {
		rest -= sum.Gross
		over, all := ofRate(named, sum.Rate), ofRate(left, sum.Rate)
		if len(named) == 0 || sum.Gross == grossOf(all) {
			over = all
		} else if more := sum.Gross - grossOf(over); more > 0 {
			over = append(over, spreadFigures(figureSale, vatSum{Rate: sum.Rate, Gross: more},
				ofRate(beside, sum.Rate))...)
		}
		if len(over) == 0 {
			over = ofRate(soldFigures(o.sold()), sum.Rate)
		}
		for _, part := range spreadFigures(figureSale, sum, over) {
			part.What = refundOf(part.What)
			given = append(given, part)
		}
	}
	return addFigures(append(given, figure{What: figureRefund, Gross: rest})), nil
}

// namedBy returns what a refund of the order gives back by name: lines, the delivery, or units that were not accepted.
func (o *order) namedBy(f *refund) (named []figure, err error) {
	if f.Kind == refundNotAccepted && !o.dead() {
		for _, l := range o.Lines {
			left := l.Gross - l.part(l.Accepted)
			named = append(named, figure{What: figureSale, Rate: l.VATRate, Group: l.Group, Gross: left})
		}
	}
	lines, err := f.lines()
	for _, l := range lines {
		if l.Line >= 0 && l.Line < len(o.Lines) {
			line := &o.Lines[l.Line]
			named = append(named, figure{What: figureSale, Rate: line.VATRate, Group: line.Group, Gross: l.Amount})
		}
	}
	if f.Delivery != nil {
		named = append(named, figure{What: figureDelivery, Rate: o.DeliveryRate, Gross: *f.Delivery})
	}
	return addFigures(named), err
}

// grossOf returns the sum of the gross amounts of figures.
func grossOf(all []figure) (sum int64) {
	for i := range all {
		sum += all[i].Gross
	}
	return sum
}

// A dueFact is what should be recorded of one source.
type dueFact struct {
	figures []figure // nil: nothing
	at      stamp    // of the first fact
	thenAt  stamp    // of those that take back all of it, and record it once more; zero: at
	moves   bool     // thenAt is also of those that change how much it is
}

// A paidOrder is an order with everything that its revenue depends on.
type paidOrder struct {
	*order
	payment  *payment // the last attempt; nil: it was paid outside, or without one
	test     bool     // paid with test keys
	refunds  []refund
	disputes []dispute
	recorded map[string][]recordedNet // by source
	sources  []string                 // of recorded, in order of writing
}

// A recordedNet is the sum of the facts of one source for one way of paying.
type recordedNet struct {
	method  string
	test    bool
	figures []figure
	at      stamp // of the last fact that left figures standing
}

// counted returns the figures of a source that are recorded and were not taken back; nil: none.
func (p *paidOrder) counted(source string) []figure {
	for _, net := range p.recorded[source] {
		if len(net.figures) > 0 {
			return net.figures
		}
	}
	return nil
}

// record adds a fact to what is recorded of an order.
func (p *paidOrder) record(f *revenueFact) {
	if p.recorded == nil {
		p.recorded = map[string][]recordedNet{}
	}
	nets, known := p.recorded[f.Source]
	if !known {
		p.sources = append(p.sources, f.Source)
	}
	at := slices.IndexFunc(nets, func(n recordedNet) bool { return n.method == f.Method && n.test == f.Test })
	if at < 0 {
		at, nets = len(nets), append(nets, recordedNet{method: f.Method, test: f.Test})
	}
	net := &nets[at]
	if net.figures = addFigures(append(net.figures, f.Figures...)); len(net.figures) > 0 {
		net.at = f.At
	}
	p.recorded[f.Source] = nets
}

// left returns what the order has sold, less what the other recorded refunds beside one give back of that.
func (p *paidOrder) left(beside *refund) []figure {
	left := soldFigures(p.sold())
	for i := range p.refunds {
		if p.refunds[i].ID == beside.ID {
			continue
		}
		for _, f := range p.counted(p.refunds[i].ID) {
			if kind := figureKinds[f.What]; kind.of != "" && kind.taxed {
				left = append(left, figure{kind.of, f.Rate, f.Group, -f.Gross, -f.VAT})
			}
		}
	}
	return addFigures(left)
}

// counts reports whether the order has any revenue: it was paid and its total was not 0, or its money was captured
// before it was accepted.
func (p *paidOrder) counts() bool {
	return p.wasPaid() && valueOr(p.Method, methodNone) != methodNone || p.capturedFirst()
}

// dueSale returns what is to be recorded of the order's sale.
func (p *paidOrder) dueSale() dueFact {
	if !p.counts() {
		return dueFact{}
	}
	return dueFact{at: p.PaidAt, figures: saleFigures(p.sold())}
}

// dueRefund returns what is to be recorded of a refund. What is recorded of it stays as long as the refund counts.
// What it gives back of money that was captured beyond the sale is none.
func (p *paidOrder) dueRefund(f *refund) (d dueFact, err error) {
	d = dueFact{at: f.CreatedAt, thenAt: f.EndedAt}
	if f.State != refundSucceeded || !p.counts() || !p.soldBy(f.PaymentID) {
		return d, nil
	}
	if d.figures = p.counted(f.ID); d.figures == nil {
		ofSale := *f
		if p.payment != nil {
			ofSale.Amount -= min(f.Amount-f.parts(), max(0, p.payment.Captured-p.sold().Total))
		}
		d.figures, err = refundFigures(p.order, &ofSale, p.left(f))
	}
	return d, err
}

// dueDispute returns what is to be recorded of a dispute: what it has taken, at first when it was opened, then each
// change when the money moved.
func (p *paidOrder) dueDispute(d *dispute) dueFact {
	due := dueFact{at: d.OpenedAt, thenAt: d.MovedAt, moves: true}
	if p.counts() && p.soldBy(&d.PaymentID) {
		due.figures = addFigures([]figure{{What: figureDispute, Gross: d.Taken}})
	}
	return due
}

// An accountDay names a row of revenue_days.
type accountDay struct{ account, date, currency string }

// noteRevenue has what is due of an order that was paid recorded at the end of the job. Whoever changes its state or
// its refunds calls it; of its disputes the settlement, which saves the refunds, too.
func (t *tx) noteRevenue(o *order) {
	if id := o.ID; !o.PaidAt.IsZero() {
		t.atEnd("revenue "+id, func() error { return recordRevenue(t, id) })
	}
}

// recordRevenue records what is due of an order. If that can't be told, the order waits in the backlog, and what else
// the job has done stays: a guest can pay all the same. Errors: those of the store.
func recordRevenue(t *tx, orderID string) error {
	err := recordOrder(t, orderID)
	if isUnrecordable(err) {
		t.addBacklog(orderID)
		return nil
	}
	return err
}

// isUnrecordable reports whether an error of recordOrder is one of the order's rows, not of the store.
func isUnrecordable(err error) bool {
	_, unreadable := errors.AsType[*unreadableRow](err)
	return err != nil && (unreadable || !isStorageError(err))
}

// retriedAtOnce is how many orders of the backlog one transaction tries again, some 20 ms of the writer.
const retriedAtOnce = 100

// retryRevenue tries to record the orders of the backlog again.
func retryRevenue(ctx context.Context, st *store) error {
	_, err := inParts(ctx, st.writer, "", func(t *tx, after string) (last string, more bool, err error) {
		t.dropsNothing()
		ids, err := t.backlog(after, retriedAtOnce)
		for _, id := range ids {
			last = id
			if err == nil {
				t.leaveBacklog(id)
				err = recordRevenue(t, id)
			}
		}
		return last, len(ids) == retriedAtOnce, err
	})
	return err
}

// recordOrder records what is due of an order. For an order that no longer exists, nothing is due.
func recordOrder(t *tx, id string) error {
	p, err := t.paidOrder(id)
	if err != nil {
		return except(err, errOrder)
	}
	if err := recordSource(t, p, factSale, p.dueSale()); err != nil {
		return err
	}
	for i := range p.refunds {
		due, err := p.dueRefund(&p.refunds[i])
		if err == nil {
			err = recordSource(t, p, p.refunds[i].ID, due)
		}
		if err != nil {
			return err
		}
	}
	for i := range p.disputes {
		if err := recordSource(t, p, p.disputes[i].ID, p.dueDispute(&p.disputes[i])); err != nil {
			return err
		}
	}
	return nil
}

// recordSource records what is due of one source: nothing if that is recorded, otherwise a fact that takes back
// what is recorded, and one with what is due.
func recordSource(t *tx, p *paidOrder, source string, due dueFact) error {
	method, before := string(valueOr(p.Method, methodNone)), p.recorded[source]
	done, changed := false, false
	for _, net := range slices.Clone(before) {
		if len(net.figures) == 0 {
			continue
		}
		// A sale whose time has changed was undone and paid again.
		same := net.method == method && net.test == p.test && (source != factSale || net.at.Equal(due.at.Time))
		if same && slices.Equal(net.figures, due.figures) {
			done = true
			continue
		}
		at := net.at
		changed = changed || same && due.moves
		if (len(due.figures) == 0 || same && due.moves) && !due.thenAt.IsZero() {
			at = due.thenAt
		}
		if err := writeFact(t, p, &revenueFact{Source: source, At: at, Method: net.method, Test: net.test,
			Figures: negated(net.figures)}); err != nil {
			return err
		}
	}
	if done || len(due.figures) == 0 {
		return nil
	}
	takenBack := len(before) > 0 && !slices.ContainsFunc(before, func(n recordedNet) bool { return len(n.figures) > 0 })
	if (takenBack || changed) && !due.thenAt.IsZero() {
		due.at = due.thenAt
	}
	return writeFact(t, p, &revenueFact{Source: source, At: due.at, Method: method, Test: p.test, Figures: due.figures})
}

// writeFact writes a fact of an order and adds its figures to the sums of the day on which it counts: its own day, or
// today if that is frozen, or the next day that is not frozen if today is frozen too.
func writeFact(t *tx, p *paidOrder, f *revenueFact) error {
	f.AccountID, f.OrderID, f.Currency = p.AccountID, p.ID, p.Currency
	calendar, err := t.businessCalendar(f.AccountID)
	if err != nil {
		return err
	}
	f.OwnDate = calendar.dateOf(f.At.Time)
	f.Date = f.OwnDate
	for {
		frozenAt, err := t.frozenDay(f.AccountID, f.Date, f.Currency)
		if err != nil {
			return err
		}
		if frozenAt.IsZero() {
			break
		}
		f.Date = max(dateAfter(f.Date), calendar.dateOf(t.now.Time))
	}
	t.addFact(f)
	p.record(f)
	day := accountDay{f.AccountID, f.Date, f.Currency}
	t.addRevenueDay(day)
	groups, err := t.dayGroups(day)
	if err != nil {
		return err
	}
	for _, sum := range f.Figures {
		switch {
		case sum.Group == "" || slices.Contains(groups, sum.Group):
		case len(groups) >= maxDayGroups:
			sum.Group = ""
		default:
			groups = append(groups, sum.Group)
		}
		t.addSum(day, f, sum)
	}
	return nil
}
