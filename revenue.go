package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// The calendar of business days. Day d of an account ends at its cut-off on the local date after d, where
// the next one begins: so a night's orders belong to the evening. Days have no gaps and no overlaps,
// whatever happens to clocks, time zones and cut-offs.

// A zoneSpan is a time zone and a cut-off that an account has from a business day on.
type zoneSpan struct {
	From   businessDate
	Zone   string
	CutOff string // "04:00"
}

// firstDate is before all business days.
const firstDate businessDate = "0001-01-01"

// A businessCalendar knows which business day of an account a time belongs to.
type businessCalendar struct {
	spans []calendarSpan // in order; the first one also covers all days before it
}

// A calendarSpan is a parsed zoneSpan.
type calendarSpan struct {
	from   businessDate
	zone   *time.Location
	cutOff time.Duration // after midnight, by wall clocks
}

// newCalendar makes a calendar of spans in order of their first days; there is at least one.
func newCalendar(spans ...zoneSpan) (*businessCalendar, error) {
	c := &businessCalendar{}
	for _, s := range spans {
		zone, err := loadZone(s.Zone)
		if err != nil {
			return nil, fmt.Errorf("load the time zone %q: %w", s.Zone, err)
		}
		at, err := time.Parse("15:04", s.CutOff)
		if err != nil {
			return nil, fmt.Errorf("parse the cut-off %q: %w", s.CutOff, err)
		}
		cutOff := time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute
		c.spans = append(c.spans, calendarSpan{s.From, zone, cutOff})
	}
	return c, nil
}

// businessCalendar returns the calendar of an account.
func (q *queries) businessCalendar(accountID string) (*businessCalendar, error) {
	spans, err := q.zonesOf(accountID)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		settings, err := q.settings(accountID)
		if err != nil {
			return nil, err
		}
		spans = []zoneSpan{{firstDate, settings.Zone, settings.CutOff}}
	}
	return newCalendar(spans...)
}

// isBusinessDate reports whether a text is a date, as "2026-11-22".
func isBusinessDate(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return err == nil
}

// checkBusinessDate is a textCheck for a business day.
var checkBusinessDate = &textCheck{format: "date", of: func(s string) (code, detail string) {
	if day, err := time.Parse(time.DateOnly, s); err != nil || day.Year() < 1970 || day.Year() > lastYear {
		return "invalid_date", "This must be a date: YYYY-MM-DD."
	}
	return "", ""
}}

// midnight returns the start of a date, by a clock that shows UTC; the zero time if the date is malformed.
func midnight(date businessDate) time.Time {
	t, _ := time.Parse(time.DateOnly, date)
	return t
}

// dateAfter returns the date after another.
func dateAfter(date businessDate) businessDate {
	return midnight(date).AddDate(0, 0, 1).Format(time.DateOnly)
}

// dateBefore returns the date before another.
func dateBefore(date businessDate) businessDate {
	return midnight(date).AddDate(0, 0, -1).Format(time.DateOnly)
}

// lookAround is how many days the business day of a time can be away from its date in UTC: zones are up to 16
// hours from UTC, and a cut-off is up to 24 hours after midnight. A change of zone may move days by that much.
const lookAround = 4

// dateOf returns the business day of a time: the first one that ends after it. Of two times the later one
// never has the earlier day.
func (c *businessCalendar) dateOf(t time.Time) businessDate {
	date := t.UTC().Truncate(24*time.Hour).AddDate(0, 0, -lookAround)
	for !t.Before(c.cutOff(date)) {
		date = date.AddDate(0, 0, 1)
	}
	return date.Format(time.DateOnly)
}

// endOf returns when a business day ends, which is when the next one begins. If a change of the time zone leaves
// no time to a day, it ends when it begins.
func (c *businessCalendar) endOf(date businessDate) time.Time {
	day := midnight(date)
	end := c.cutOff(day)
	for range lookAround {
		day = day.AddDate(0, 0, -1)
		if earlier := c.cutOff(day); earlier.After(end) {
			end = earlier
		}
	}
	return end.UTC()
}

// startOf returns when a business day begins.
func (c *businessCalendar) startOf(date businessDate) time.Time {
	return c.endOf(dateBefore(date))
}

// finalAt returns when a business day becomes final: after that, nothing that happened on it is waited for.
func (c *businessCalendar) finalAt(date businessDate) time.Time {
	return c.endOf(date).Add(revenueGrace)
}

// cutOff returns when wall clocks first show the cut-off of a day, or a later time if they skip the cut-off.
func (c *businessCalendar) cutOff(day time.Time) time.Time {
	date := day.Format(time.DateOnly)
	span := c.spans[0]
	for _, s := range c.spans[1:] {
		if s.from <= date {
			span = s
		}
	}
	return firstShown(day.AddDate(0, 0, 1).Add(span.cutOff), span.zone)
}

// farthestZone is more than any zone is from UTC.
const farthestZone = 26 * time.Hour

// firstShown returns the first moment at which clocks in a zone show a time, given as if it were UTC, or a
// later one: of a time that is shown twice, the first; of one that is skipped, the moment of the change.
func firstShown(wall time.Time, zone *time.Location) time.Time {
	moment := wall.Add(-farthestZone).In(zone)
	for {
		_, offset := moment.Zone()
		_, end := moment.ZoneBounds()
		if !end.IsZero() && !end.After(moment) { // package time gives such an end on December 31 of some leap years
			end = moment.Add(days(1))
		}
		shown := wall.Add(-time.Duration(offset) * time.Second)
		if shown.Before(moment) { // skipped by the change at this moment
			return moment
		}
		if end.IsZero() || shown.Before(end) {
			return shown.In(zone)
		}
		moment = end
	}
}

// changeZone is called when the settings of an account change. It keeps the time zone and the cut-off of the days
// so far: new ones apply from the next business day on. An account without revenue has none to keep.
func changeZone(t *tx, accountID string, before, after accountSettings) error {
	if before.Zone == after.Zone && before.CutOff == after.CutOff {
		return nil
	}
	has, err := t.hasFacts(accountID)
	if err != nil {
		return err
	}
	if !has {
		t.removeZones(accountID, firstDate)
		return nil
	}
	spans, err := t.zonesOf(accountID)
	if err != nil {
		return err
	}
	if len(spans) == 0 {
		spans = []zoneSpan{{firstDate, before.Zone, before.CutOff}}
		t.addZone(accountID, spans[0])
	}
	calendar, err := newCalendar(spans...)
	if err != nil {
		return err
	}
	from := dateAfter(calendar.dateOf(t.exact))
	t.removeZones(accountID, from)
	spans = slices.DeleteFunc(spans, func(s zoneSpan) bool { return s.From >= from })
	if last := spans[len(spans)-1]; last.Zone == after.Zone && last.CutOff == after.CutOff {
		return nil // changed back
	}
	t.addZone(accountID, zoneSpan{from, after.Zone, after.CutOff})
	return nil
}

// All SQL about revenue days.

// zonesOf returns the time zones and cut-offs of an account, with the business days from which they apply, in
// order; none if those of its settings apply to all days.
func (q *queries) zonesOf(accountID string) ([]zoneSpan, error) {
	return collect(q, `SELECT from_date, zone, cut_off FROM account_zones WHERE account_id = ? ORDER BY from_date`,
		[]any{accountID}, func(s *zoneSpan) []any { return []any{&s.From, &s.Zone, &s.CutOff} })
}

// addZone writes the business day from which a time zone and a cut-off of an account apply.
func (t *tx) addZone(accountID string, s zoneSpan) {
	t.exec(`INSERT INTO account_zones (account_id, from_date, zone, cut_off) VALUES (?, ?, ?, ?)`,
		accountID, s.From, s.Zone, s.CutOff)
}

// removeZones removes the time zones of an account that apply from a business day or a later one.
func (t *tx) removeZones(accountID string, from businessDate) {
	t.exec(`DELETE FROM account_zones WHERE account_id = ? AND from_date >= ?`, accountID, from)
}

// hasFacts reports whether anything was ever recorded for an account.
func (q *queries) hasFacts(accountID string) (has bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM revenue_facts WHERE account_id = ?)`, accountID)
}

// accountsWithRevenue returns up to limit accounts for which something was ever recorded, that with the given id
// first, and others by name.
func (q *queries) accountsWithRevenue(first string, limit int) ([]account, error) {
	return accountTable.all(q, `WHERE EXISTS (SELECT 1 FROM revenue_days d WHERE d.account_id = a.id)
		ORDER BY a.id <> ?, a.name, a.id LIMIT ?`, first, limit)
}

// unrecordedRevenue is the orders of the backlog.
var unrecordedRevenue = trouble{kind: "revenue_waits", urgency: sameDay, money: true, one: "$n order has revenue",
	many: "$n orders have revenue", advice: " that can't be recorded: 'widgetd check' says why of $id",
	query: `SELECT NULL AS since, order_id AS id FROM revenue_backlog`}

// backlog returns the ids of up to limit orders of the backlog, in their order, after the id after.
func (q *queries) backlog(after string, limit int64) ([]string, error) {
	return q.texts(`SELECT order_id FROM revenue_backlog WHERE order_id > ? ORDER BY order_id LIMIT ?`, after, limit)
}

// addBacklog adds an order to the backlog, unless it is there.
func (t *tx) addBacklog(orderID string) {
	t.exec(`INSERT OR IGNORE INTO revenue_backlog (order_id) VALUES (?)`, orderID)
}

// leaveBacklog takes an order out of the backlog.
func (t *tx) leaveBacklog(orderID string) {
	t.exec(`DELETE FROM revenue_backlog WHERE order_id = ?`, orderID)
}

// paidOrder returns an order with everything that its revenue depends on. Errors: errOrder.
func (t *tx) paidOrder(id string) (p *paidOrder, err error) {
	p = &paidOrder{}
	if p.order, err = t.order(anyAccount, id); err != nil {
		return nil, err
	}
	if p.PaymentID != nil && !p.paidOutside() {
		if p.payment, err = orNil(t.payment(*p.PaymentID)); err != nil {
			return nil, err
		}
	}
	if p.payment != nil {
		if p.test, err = orNil(oneValue[bool](t.queries, `SELECT live = 0 FROM payment_connections WHERE id = ?`,
			p.payment.ConnectionID)); err != nil {
			return nil, err
		}
	}
	if p.refunds, err = t.refundsOf(id); err != nil {
		return nil, err
	}
	if p.disputes, err = t.disputesOf(id); err != nil {
		return nil, err
	}
	facts, err := t.factsOf(id)
	for i := range facts {
		p.record(&facts[i])
	}
	return p, err
}

// factTable describes the table revenue_facts.
var factTable = newTable("revenue_facts", "r", func(f *revenueFact) []field {
	return []field{{"seq", &f.Seq}, {"account_id", &f.AccountID}, {"order_id", &f.OrderID}, {"source", &f.Source},
		{"currency", &f.Currency}, {"date", &f.Date}, {"own_date", &f.OwnDate}, {"at", &f.At}, {"method", &f.Method},
		{"test", &f.Test}, {"figures", jsonColumn[[]figure]{&f.Figures}}}
})

// factsOf returns the facts of an order, in order of writing.
func (q *queries) factsOf(orderID string) ([]revenueFact, error) {
	return factTable.all(q, `WHERE r.order_id = ? ORDER BY r.seq`, orderID)
}

// lateFacts returns up to limit facts that count on a day and happened on an earlier one, the earliest
// day's first.
func (q *queries) lateFacts(accountID string, date businessDate, currency string, limit int) ([]revenueFact, error) {
	return factTable.all(q, `WHERE r.account_id = ? AND r.date = ? AND r.own_date < ? AND r.currency = ?
		ORDER BY r.own_date, r.seq LIMIT ?`, accountID, date, date, currency, limit)
}

// addFact inserts a fact.
func (t *tx) addFact(f *revenueFact) {
	t.exec(`INSERT INTO revenue_facts (account_id, order_id, source, currency, date, own_date, at, method,
		test, figures) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.AccountID, f.OrderID, f.Source, f.Currency, f.Date, f.OwnDate, f.At, f.Method, f.Test,
		jsonColumn[[]figure]{&f.Figures})
}

// addRevenueDay inserts the row of a day on which something counts, unless it exists.
func (t *tx) addRevenueDay(day accountDay) {
	t.exec(`INSERT OR IGNORE INTO revenue_days (account_id, date, currency) VALUES (?, ?, ?)`,
		day.account, day.date, day.currency)
}

// addSum adds a figure of a fact to the sums of a day.
func (t *tx) addSum(day accountDay, f *revenueFact, sum figure) {
	t.exec(`INSERT INTO revenue_sums
		(account_id, date, currency, method, test, what, rate, group_name, gross, vat)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (account_id, date, currency, method, test, what, rate, group_name) DO UPDATE SET
		gross = gross + excluded.gross, vat = vat + excluded.vat`,
		day.account, day.date, day.currency, f.Method, f.Test, sum.What, sum.Rate, sum.Group, sum.Gross, sum.VAT)
}

// dayGroups returns the groups that the sums of a day have.
func (t *tx) dayGroups(day accountDay) ([]string, error) {
	return t.texts(`SELECT DISTINCT group_name FROM revenue_sums
		WHERE account_id = ? AND date = ? AND currency = ? AND group_name <> ''`,
		day.account, day.date, day.currency)
}

// revenueSums returns the sums of a business day that are not 0, by way of paying, kind, rate and group.
func (q *queries) revenueSums(accountID string, date businessDate, currency string) ([]revenueSum, error) {
	return collect(q, `SELECT method, test, what, rate, group_name, gross, vat FROM revenue_sums
		WHERE account_id = ? AND date = ? AND currency = ? AND (gross <> 0 OR vat <> 0)
		ORDER BY method, test, what, rate, group_name`, []any{accountID, date, currency}, (*revenueSum).dest)
}

func (s *revenueSum) dest() []any {
	return []any{&s.Method, &s.Test, &s.What, &s.Rate, &s.Group, &s.Gross, &s.VAT}
}

// revenueDayKeys returns the business days of an account from one date to another on which something
// counts, in order of date and currency.
func (q *queries) revenueDayKeys(accountID string, from, to businessDate) ([]revenueDayKey, error) {
	return collect(q, `SELECT date, currency, frozen_at FROM revenue_days
		WHERE account_id = ? AND date BETWEEN ? AND ? ORDER BY date, currency`, []any{accountID, from, to},
		func(k *revenueDayKey) []any { return []any{&k.Date, &k.Currency, &k.FrozenAt} })
}

// freezeDay freezes a business day, so that nothing is added to it any more. A frozen one stays as it is.
func (t *tx) freezeDay(accountID string, date businessDate, currency string) {
	t.exec(`INSERT INTO revenue_days (account_id, date, currency, frozen_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (account_id, date, currency) DO UPDATE SET frozen_at = excluded.frozen_at
		WHERE frozen_at IS NULL`, accountID, date, currency, t.now)
}

// frozenDay returns since when a business day is frozen; the zero stamp if it is not.
func (q *queries) frozenDay(accountID string, date businessDate, currency string) (at stamp, err error) {
	return orNil(oneValue[stamp](q, `SELECT frozen_at FROM revenue_days
		WHERE account_id = ? AND date = ? AND currency = ?`, accountID, date, currency))
}

// A daySum is a sum of a day and a currency, over all rates and groups.
type daySum struct {
	date     businessDate
	currency string
	revenueSum
}

// daySums returns the sums of the business days of an account from one date to another, by way of paying and kind.
func (q *queries) daySums(accountID string, from, to businessDate) ([]daySum, error) {
	return collect(q, `SELECT date, currency, method, test, what, sum(gross), sum(vat) FROM revenue_sums
		WHERE account_id = ? AND date BETWEEN ? AND ? GROUP BY account_id, date, currency, method, test, what`,
		[]any{accountID, from, to}, func(s *daySum) []any {
			return []any{&s.date, &s.currency, &s.Method, &s.Test, &s.What, &s.Gross, &s.VAT}
		})
}
