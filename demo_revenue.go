package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sort"
	"time"
)

// The past of the demo's file: what was called of the service, as if it had been running since then. These are the
// calls in web/demo.json, and the orders of the last demoDays business days, which were paid, given back and disputed.
// Amounts and times are drawn with a fixed seed; the guests are invented, and no money has moved.

const (
	demoPast        = 95 * 24 * time.Hour // when it begins
	demoDays        = 30                  // business days before the present one that have revenue
	sampleReference = "sample "           // begins the references of their orders
)

// A demoCounter is where the demo's restaurant sells in one currency: in Solothurn, at a stand that it has in Malmö,
// and to guests from abroad who pay in euros.
type demoCounter struct {
	Currency               string
	Orders                 [7]int // on each day of the week, Sunday first; if more than 1, it varies by one
	Methods                []string
	Food, Drinks           []orderLine
	Delivery, DeliveryRate int64
	Round                  int64 // tips are multiples of this
}

// A demoStep is something that was done at a time of the past.
type demoStep struct {
	at time.Time
	do func(context.Context) error
}

// A demoLife is what was done, in no order.
type demoLife struct {
	*demo
	random *rand.Rand
	deeds  []demoStep
}

// add adds something that was done.
func (l *demoLife) add(at time.Time, do func(context.Context) error) {
	l.deeds = append(l.deeds, demoStep{at, do})
}

// replayPast does all that was done over the store of a new file, the oldest first.
func (d *demo) replayPast(e *env, st *store, log *slog.Logger) error {
	if err := d.newServer(e, st, log); err != nil {
		return err
	}
	l := &demoLife{demo: d, random: rand.New(rand.NewPCG(16, 2026))}
	for _, c := range demoData().Past {
		for i, name := range c.names() {
			ago := time.Duration((c.Ago - float64(i)*c.Every) * float64(days(1)))
			l.add(d.clock().Add(-ago), func(ctx context.Context) error { return d.make(ctx, &c, name) })
		}
	}
	calendar, err := st.businessCalendar(d.account)
	if err != nil {
		return err
	}
	for ago := demoDays; ago >= 0; ago-- {
		date := midnight(d.yesterday).AddDate(0, 0, 1-ago).Format(time.DateOnly)
		if l.add(calendar.startOf(date), d.payOut); ago == 0 {
			break
		}
		for _, c := range demoData().Counters {
			l.addDay(&c, date, calendar.startOf(date), ago)
		}
	}
	sort.SliceStable(l.deeds, func(i, j int) bool { return l.deeds[i].at.Before(l.deeds[j].at) })
	for _, deed := range l.deeds {
		d.past = deed.at
		if err := cmp.Or(deed.do(e.ctx), d.settle(e.ctx)); err != nil {
			return fmt.Errorf("fill the file at %v: %w", deed.at, err)
		}
	}
	return nil
}

// addDay adds the orders of a counter on a business day that begins at start, so many days ago. The counter opens
// seven and a half hours after that: at 11:30 where days begin at 04:00.
func (l *demoLife) addDay(c *demoCounter, date businessDate, start time.Time, ago int) {
	most := c.Orders[midnight(date).Weekday()]
	if most > 1 {
		most += l.random.IntN(3) - 1
	}
	for n := range most {
		opens, open := start.Add(7*time.Hour+30*time.Minute), 2*time.Hour
		if n%3 == 2 { // in the evening
			opens, open = opens.Add(6*time.Hour+30*time.Minute), 3*time.Hour
		}
		at := opens.Add(time.Duration(l.random.Int64N(int64(open))).Truncate(time.Second))
		method := c.Methods[l.random.IntN(len(c.Methods))]
		if n == 0 {
			method = c.Methods[0]
		}
		o := l.makeOrder(c)
		o["reference"] = fmt.Sprintf("%s%s %s %d", sampleReference, date, c.Currency, n+1)
		l.addOrder(at, o, method, ago, n)
	}
}

// makeOrder makes an order.
func (l *demoLife) makeOrder(c *demoCounter) map[string]any {
	lines := []map[string]any{}
	pick := func(items []orderLine, least int) {
		for _, i := range l.random.Perm(len(items))[:least+l.random.IntN(2)] {
			lines = append(lines, items[i].wanted(1+l.random.Int64N(2)))
		}
	}
	pick(c.Food, 1)
	pick(c.Drinks, 0)
	o := map[string]any{"currency": c.Currency, "lines": lines, "return_url": l.page + "/thanks"}
	if l.random.IntN(4) == 0 {
		o["delivery"] = map[string]int64{"amount": c.Delivery, "vat_rate": c.DeliveryRate}
	}
	if l.random.IntN(2) == 0 {
		o["tip"] = c.Round * (1 + l.random.Int64N(8))
	}
	if l.random.IntN(8) == 0 {
		o["discount"] = c.Food[0].UnitAmount / 10
	}
	return o
}

// addOrder adds the nth order of a day, which is paid at once, and what was given back of it: now and then one unit of
// the first line an hour later, the first order of the day before yesterday on the next day, another one three days
// later; and one payment is disputed.
func (l *demoLife) addOrder(at time.Time, o map[string]any, method string, ago, n int) {
	id, currency := "", o["currency"]
	refund := func(after time.Duration, body string) {
		l.add(at.Add(after), func(ctx context.Context) error {
			return l.ask(ctx, l.token, http.MethodPost, "/orders/"+id+"/refunds", json.RawMessage(body), nil)
		})
	}
	l.add(at, func(ctx context.Context) (err error) {
		id, err = l.sell(ctx, o, method)
		return err
	})
	switch {
	case currency == "CHF" && ago == 2 && n == 0:
		refund(days(1), `{"reason": "it never came"}`)
	case currency == "CHF" && ago == 20 && n == 1:
		refund(days(3), `{"reason": "it was paid twice"}`)
	case currency == "CHF" && ago == 12 && n == 0:
		l.add(at.Add(days(4)), func(ctx context.Context) error { return l.dispute(ctx, id) })
	case currency == "CHF" && ago%5 == 1 && n == 1, currency == "SEK" && ago%9 == 1 && n == 0:
		refund(time.Hour, `{"lines": [{"line": 0, "quantity": 1}], "reason": "one was cold"}`)
	}
}

// payOut reads what the provider has paid out, as the worker does each day.
func (d *demo) payOut(ctx context.Context) error {
	used, err := d.server.store.usedConnections(d.account)
	for _, c := range used {
		if err == nil {
			err = (&payouts{paymentsOf(d.server)}).read(ctx, c.ID)
		}
	}
	return err
}

// sell makes an order that is accepted and paid by a method, and returns its id.
func (d *demo) sell(ctx context.Context, o map[string]any, method string) (string, error) {
	var made order
	err := d.ask(ctx, d.token, http.MethodPost, "/orders", o, &made)
	then, body := "/accept", map[string]string{}
	if slices.Contains(outsideMethods, method) {
		then, body["method"] = "/paid", method
	} else if err == nil {
		err = d.payOrder(ctx, made.ID, method)
	}
	if err != nil {
		return "", err
	}
	return made.ID, d.ask(ctx, d.token, http.MethodPost, "/orders/"+made.ID+then, body, nil)
}

// dispute disputes the payment of an order, as its guest.
func (d *demo) dispute(ctx context.Context, id string) error {
	var o order
	if err := d.ask(ctx, d.token, http.MethodGet, "/orders/"+id, nil, &o); err != nil {
		return err
	}
	return d.cards.dispute(ctx, o.Payment.ID)
}
