package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The demo's month of revenue: orders of the last demoDays business days that were paid, given back and disputed,
// as if the demo had been running since then. Amounts and times are drawn with a fixed seed; the guests are
// invented and no money has moved, so the payments belong to connections with test keys.

const (
	demoDays        = 30        // business days before the present one that have revenue
	sampleReference = "sample " // begins the references of their orders, which no provider knows
)

// A demoCounter is where the demo's restaurant sells in one currency: in Solothurn, at a stand that it has in Malmö,
// and to guests from abroad who pay in euros with their telephones.
type demoCounter struct {
	Currency               string
	Orders                 [7]int // on each day of the week, Sunday first; if more than 1, it varies by one
	Methods                []string
	Food, Drinks           []orderLine
	Delivery, DeliveryRate int64
	Round                  int64 // tips are multiples of this
}

// A demoDeed is something that was done at a time of the past.
type demoDeed struct {
	at time.Time
	do func(*tx) error
}

// A demoPast collects what was done, to be written in the order of the times.
type demoPast struct {
	account, page string                        // the account's id, and where guests come back to
	connections   map[string]*paymentConnection // by ways of paying; the others are paid outside
	random        *rand.Rand
	deeds         []demoDeed
}

// add adds something that was done.
func (p *demoPast) add(at time.Time, do func(*tx) error) { p.deeds = append(p.deeds, demoDeed{at, do}) }

// write writes all that was done, the oldest first, since events are ordered by when they are written.
func (p *demoPast) write(t *tx) error {
	slices.SortStableFunc(p.deeds, func(a, b demoDeed) int { return a.at.Compare(b.at) })
	for _, deed := range p.deeds {
		if err := deed.do(t.at(deed.at.Sub(t.exact))); err != nil {
			return err
		}
	}
	return nil
}

// addMonth adds the orders of the days before the present one, and what was given back of them. keys seals the
// keys of the providers, which are not real ones.
func (p *demoPast) addMonth(t *tx, keys *keyring) error {
	calendar, err := t.businessCalendar(p.account)
	if err != nil {
		return err
	}
	today := midnight(calendar.dateOf(t.exact))
	p.connections = map[string]*paymentConnection{}
	before := t.at(-days(demoDays + 2))
	for method, provider := range map[string]string{methodCard: providerStripe, methodMobile: providerVipps} {
		if p.connections[method], err = addDemoConnection(before, keys, p.account, provider); err != nil {
			return err
		}
	}
	for ago := demoDays; ago > 0; ago-- {
		date := today.AddDate(0, 0, -ago).Format(time.DateOnly)
		for _, c := range demoData().Counters {
			p.addDay(&c, date, calendar.startOf(date), ago)
		}
	}
	return nil
}

// addDay adds the orders of a counter on a business day that begins at start, so many days ago. The counter opens
// seven and a half hours after start: at 11:30 where days begin at 04:00.
func (p *demoPast) addDay(c *demoCounter, date businessDate, start time.Time, ago int) {
	most := c.Orders[midnight(date).Weekday()]
	if most > 1 {
		most += p.random.IntN(3) - 1
	}
	for n := range most {
		opens, open := start.Add(7*time.Hour+30*time.Minute), 2*time.Hour
		if n%3 == 2 { // in the evening
			opens, open = opens.Add(6*time.Hour+30*time.Minute), 3*time.Hour
		}
		at := opens.Add(time.Duration(p.random.Int64N(int64(open))).Truncate(time.Second))
		method := c.Methods[p.random.IntN(len(c.Methods))]
		if n == 0 {
			method = c.Methods[0]
		}
		o := p.draw(c)
		o.Reference = new(fmt.Sprintf("%s%s %s %d", sampleReference, date, c.Currency, n+1))
		p.add(at, func(t *tx) error { return p.sell(t, o, method) })
		p.addReturns(c, o, at, ago, n)
	}
}

// draw makes an order.
func (p *demoPast) draw(c *demoCounter) *order {
	o := &order{AccountID: p.account, Currency: c.Currency, ReturnURL: p.page + "/thanks",
		DeliveryRate: c.DeliveryRate}
	pick := func(items []orderLine, least int) {
		for _, i := range p.random.Perm(len(items))[:least+p.random.IntN(2)] {
			line := items[i]
			line.Quantity = 1 + p.random.Int64N(2)
			o.Lines = append(o.Lines, line)
		}
	}
	pick(c.Food, 1)
	pick(c.Drinks, 0)
	if p.random.IntN(4) == 0 {
		o.Delivery = c.Delivery
	}
	if p.random.IntN(2) == 0 {
		o.Tip = c.Round * (1 + p.random.Int64N(8))
	}
	if p.random.IntN(8) == 0 {
		o.Discount = o.Lines[0].UnitAmount / 10
	}
	return o
}

// sell writes an order that is paid at once.
func (p *demoPast) sell(t *tx, o *order, method string) error {
	if _, err := createOrder(t, o, guest{}, maxOrderLife, actorCommand); err != nil {
		return err
	}
	connection := p.connections[method]
	if connection == nil {
		return markPaid(t, o, method, t.now, actorCommand)
	}
	paid := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: connection.ID,
		Provider: connection.Provider, Method: method, State: paymentCaptured, Amount: o.Total, Captured: o.Total,
		Currency: o.Currency, CreatedAt: t.now, AuthorizedAt: t.now, CapturedAt: t.now, CheckedAt: t.now,
		Revision: 2} // as if it had been written when it began, and when it was paid
	paymentTable.insert(t, paid)
	o.PaymentID, o.Attempts, o.AuthorizedAt, o.AcceptedAt = &paid.ID, 1, t.now, t.now
	return markPaid(t, o, method, t.now, actorCommand)
}

// addReturns adds what was given back of the nth order of a day: now and then one unit of the first line an
// hour later, the first order of the day before yesterday on the next day, another one three days later;
// and one payment is disputed.
func (p *demoPast) addReturns(c *demoCounter, o *order, at time.Time, ago, n int) {
	giveBack := func(after time.Duration, w refundWish) {
		p.add(at.Add(after), func(t *tx) error { return giveBackSample(t, o.ID, w) })
	}
	switch {
	case c.Currency == "CHF" && ago == 2 && n == 0:
		o.Tip = 4 * c.Round // given back, too
		giveBack(days(1), refundWish{reason: "it never came"})
	case c.Currency == "CHF" && ago == 20 && n == 1:
		giveBack(days(3), refundWish{reason: "it was paid twice"})
	case c.Currency == "CHF" && ago == 12 && n == 0:
		p.add(at.Add(days(4)), func(t *tx) error { return disputeSample(t, o.ID) })
	case c.Currency == "CHF" && ago%5 == 1 && n == 1, c.Currency == "SEK" && ago%9 == 1 && n == 0:
		giveBack(time.Hour, refundWish{lines: []linePart{{Quantity: 1}}, reason: "one was cold"})
	}
}

// giveBackSample refunds an order, and updates its payment as its provider would have reported it.
func giveBackSample(t *tx, orderID string, w refundWish) error {
	o, f, err := refundOrder(t, anyAccount, orderID, w, actorCommand)
	if err != nil {
		return err
	}
	if err := endRefund(t, o, f, "", actorCommand); err != nil || f.PaymentID == nil {
		return err
	}
	paid, err := t.payment(*f.PaymentID)
	if err != nil {
		return err
	}
	paid.State, paid.Refunded, paid.DueAt = paymentPartRefunded, paid.Refunded+f.Amount, stamp{}
	if paid.Refunded == paid.Captured {
		paid.State = paymentRefunded
	}
	return t.savePayment(paid)
}

// disputeSample has the guest dispute the payment of an order.
func disputeSample(t *tx, orderID string) error {
	o, err := t.order(anyAccount, orderID)
	if err != nil {
		return err
	}
	d := &dispute{PaymentID: *o.PaymentID, ID: "dp_demo", OrderID: o.ID, Amount: o.Total, State: disputeOpen,
		Reason: new("fraudulent"), OpenedAt: t.now, Taken: o.Total, EvidenceBy: t.now.after(days(14))}
	o.Dispute = new(disputeOpen)
	told := orderEvent(o, eventOrderDisputed, actorProvider, "amount", fmt.Sprint(d.Amount),
		"currency", o.Currency, "dispute_id", d.ID, "state", d.State)
	t.saveDispute(d)
	t.saveOrder(o)
	t.addEvent(told)
	return nil
}
