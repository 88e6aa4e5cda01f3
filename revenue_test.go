package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// book books the whole backlog.
func (s *service) book() {
	s.t.Helper()
	for left := true; left; {
		s.change(func(t *tx) (err error) {
			left, err = bookBacklog(t, 3)
			return err
		})
	}
}

// facts returns all facts of an order, as JSON.
func (s *service) facts(orderID string) (all []string) {
	s.t.Helper()
	facts, err := s.store.factsOf(orderID)
	s.check(err)
	for _, f := range facts {
		text, err := json.Marshal(f.Figures)
		s.check(err)
		all = append(all, f.Source+" "+string(text))
	}
	return all
}

func TestRevenue_saleHasTheOrdersOwnAmounts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderPaid)
	s.book()
	// By hand: 6000 are less 300; pizza 3515, wine 1520, delivery 665. 2.6 % of 4180 is 106, 8.1 % of 1520 is 114.
	want := `sale [{"what":"delivery","rate":260,"gross":665,"vat":17},{"what":"discount","gross":300},` +
		`{"what":"sale","rate":260,"group":"food","gross":3515,"vat":89},` +
		`{"what":"sale","rate":810,"gross":1520,"vat":114},{"what":"tip","gross":200}]`
	if got := s.facts(o.ID); len(got) != 1 || got[0] != want {
		t.Errorf("recorded\n%s, want\n%s", got, want)
	}
}

// A revenueHistory is what happens to an account's orders over some days, at random.
type revenueHistory struct {
	*service
	random *rand.Rand
	time   time.Time
	orders []string
	frozen map[bookedDay]string // the sums of a frozen day, as JSON
}

// change runs a write at the time of the history, which goes on.
func (h *revenueHistory) change(f func(*tx) error) {
	h.t.Helper()
	h.time = h.time.Add(time.Duration(h.random.Int64N(int64(4 * time.Hour))))
	h.service.change(func(t *tx) error { return f(t.at(h.time.Sub(t.exact))) })
}

// dayText returns the sums of a day as JSON.
func (h *revenueHistory) dayText(day bookedDay) string {
	h.t.Helper()
	sums, err := h.store.revenueSums(day.account, day.date, day.currency)
	h.check(err)
	return string(encodeJSON(sums))
}

// sell adds an order that is paid, by card or in cash.
func (h *revenueHistory) sell(t *tx) error {
	if h.random.IntN(3) == 0 {
		o := anOrder(h.account)
		o.Currency = "EUR"
		if _, err := createOrder(t, o, guest{}, minOrderLife, anActor); err != nil {
			return err
		}
		h.orders = append(h.orders, o.ID)
		_, err := payOutside(t, anyAccount, o.ID, methodCash, stamp{}, anActor)
		return err
	}
	o, err := randomOrder(t, h.account, h.random)
	if err != nil {
		return err
	}
	for i := range o.Lines {
		o.Lines[i].Group = []string{"", "food", "drinks"}[h.random.IntN(3)]
	}
	h.orders = append(h.orders, o.ID)
	return t.saveOrder(o)
}

// move changes an order: it gives something back, fails to, disputes, or is not paid after all.
func (h *revenueHistory) move(t *tx, id string) error {
	o, err := t.order(anyAccount, id)
	if err != nil {
		return err
	}
	switch kind := h.random.IntN(5); {
	case o.State == orderOpen:
		_, err = payOutside(t, anyAccount, id, outsideMethods[h.random.IntN(4)], stamp{}, anActor)
	case kind < 2 && o.settled() && o.Refunded < o.Total:
		var f *refund
		if o, f, err = refundOrder(t, anyAccount, id, randomWish(o, h.random), anActor); err != nil {
			return nil // the lines do not fit any more
		}
		err = refundDone(t, o, f, anActor)
	case kind == 2 && !o.paidOutside():
		var refunds []refund
		if refunds, err = t.refundsOf(id); err != nil || len(refunds) == 0 {
			return err
		}
		f := &refunds[h.random.IntN(len(refunds))]
		if f.State == refundSucceeded {
			return refundUndone(t, o, f, "later", anActor)
		} else if o.Refunded+f.Amount <= o.Total && len(f.Lines) == 0 {
			return refundDone(t, o, f, anActor)
		}
	case kind == 3 && o.PaymentID != nil:
		d := dispute{PaymentID: *o.PaymentID, ID: "dp_" + id, OrderID: id, Amount: 1 + h.random.Int64N(o.Total),
			State: []string{disputeOpen, disputeWon, disputeLost}[h.random.IntN(3)], OpenedAt: t.now}
		if d.State != disputeOpen {
			d.ClosedAt = t.now
		}
		err = t.saveDispute(&d)
	case kind == 4 && o.State == orderPaid && o.paidOutside() && o.Refunded == 0:
		_, err = undoPaid(t, anyAccount, id, anActor)
	}
	return err
}

// brought returns what all orders have brought by what they, their refunds and disputes say.
func (h *revenueHistory) brought() (amount int64) {
	h.t.Helper()
	for _, id := range h.orders {
		o := h.row(id)
		if !o.settled() {
			continue
		}
		amount += o.Total
		refunds, err := h.store.refundsOf(id)
		h.check(err)
		for _, f := range refunds {
			if f.State == refundSucceeded {
				amount -= f.Amount
			}
		}
		disputes, err := h.store.disputesOf(id)
		h.check(err)
		for _, d := range disputes {
			if d.State != disputeWon {
				amount -= d.Amount
			}
		}
	}
	return amount
}

// checkDays checks all days: that both halves of each are equal, that all of them have what the orders have
// brought, and that frozen ones are as they were.
func (h *revenueHistory) checkDays() {
	h.t.Helper()
	all, err := revenueDays(h.store.queries, h.account, firstDate, "9999-12-31", h.time)
	h.check(err)
	sum := int64(0)
	for _, d := range all {
		sum += d.Totals.Total
		report, err := reportDate(h.store.queries, h.account, d.Date, h.time)
		h.check(err)
		r := &report.Days[0]
		if len(report.Days) != 1 || r.revenueDay != d {
			h.t.Fatalf("the list has %+v and the day %+v", d, report.Days)
		}
		checkHalves(h.t, r)
	}
	if want := h.brought(); sum != want {
		h.t.Fatalf("the days have %d, the orders have brought %d", sum, want)
	}
	for day, before := range h.frozen {
		if now := h.dayText(day); now != before {
			h.t.Fatalf("the frozen %s has\n%s, had\n%s", day.date, now, before)
		}
	}
	for _, id := range h.orders {
		h.checkOrder(id)
	}
}

// checkHalves checks that what was sold and how it was paid add up to the same.
func checkHalves(t testing.TB, r *revenueReport) {
	t.Helper()
	sold, vat, paid, test := r.Totals.Tips-r.Totals.Disputes, int64(0), int64(0), int64(0)
	for _, l := range slices.Concat(r.Sales, r.Delivery) {
		sold, vat = sold+l.Gross, vat+l.VAT
	}
	for _, l := range r.Refunds {
		sold, vat = sold-l.Gross, vat-l.VAT
	}
	for _, m := range r.Payments {
		if paid += m.Total; m.Test {
			test += m.Total
		}
	}
	byRate := int64(0)
	for _, l := range r.VAT {
		byRate += l.VAT
	}
	if sold != r.Totals.Total || paid != sold || vat != r.Totals.VAT || byRate != vat || test != r.Totals.Test {
		t.Fatalf("sold %d, paid %d; VAT %d, by rate %d; test %d: %+v", sold, paid, vat, byRate, test, r)
	}
}

// checkOrder checks that what is recorded of an order is its sale, once, or nothing; and that refunds of all
// of it leave nothing of any group.
func (h *revenueHistory) checkOrder(id string) {
	h.t.Helper()
	o := h.row(id)
	facts, err := h.store.factsOf(id)
	h.check(err)
	var sale, all []figure
	for _, f := range facts {
		if f.Source == factSale {
			sale = append(sale, f.Figures...)
		}
		all = append(all, f.Figures...)
	}
	want := []figure{}
	if o.settled() && *o.Method != methodNone {
		want = saleFigures(o)
	}
	if got := addFigures(sale); !slices.Equal(got, want) {
		h.t.Fatalf("%s is recorded as %+v, and sold %+v", id, got, want)
	}
	if o.State != orderRefunded {
		return
	}
	left := map[string]vatSum{}
	for _, f := range addFigures(all) {
		sign := int64(1)
		what := strings.TrimPrefix(f.What, "refund_")
		if f.What == figureRefund {
			what = figureSale
		}
		if what != f.What {
			sign = -1
		}
		key := fmt.Sprint(what, f.Rate, f.Group)
		left[key] = vatSum{0, left[key].Gross + sign*f.Gross, left[key].VAT + sign*f.VAT}
	}
	for key, sum := range left {
		if !strings.HasPrefix(key, figureDiscount) && !strings.HasPrefix(key, figureDispute) && sum.Gross != 0 {
			h.t.Fatalf("all of %s was given back, and %s has %+v left: %+v", id, key, sum, addFigures(all))
		}
	}
}

func TestRevenue_daysHaveWhatOrdersHaveBroughtWhateverHappens(t *testing.T) {
	t.Parallel()
	rounds := 4
	if underRace() {
		rounds = 1
	}
	for round := range rounds {
		h := &revenueHistory{service: newService(t), random: rand.New(rand.NewPCG(16, uint64(round))),
			time: time.Date(2026, 3, 20, 9, 0, 0, 0, time.UTC), frozen: map[bookedDay]string{}}
		h.change(func(t *tx) error { return h.sell(t) })
		for range 130 {
			switch h.random.IntN(8) {
			case 0, 1, 2:
				h.change(func(t *tx) error { return h.sell(t) })
			case 3, 4, 5:
				h.change(func(t *tx) error { return h.move(t, h.orders[h.random.IntN(len(h.orders))]) })
			case 6:
				h.change(func(t *tx) error { return h.freezeSome(t) })
			case 7:
				zone := zonesThatMove[h.random.IntN(len(zonesThatMove))]
				h.change(func(t *tx) error {
					return changeSettings(t, h.account, settingsChange{func(s *accountSettings) { s.Zone = zone }}, anActor)
				})
			}
			if h.random.IntN(6) == 0 {
				h.bookAndCheck()
			}
		}
		h.bookAndCheck()
		if len(h.frozen) == 0 || h.count(`SELECT count(*) FROM revenue_facts WHERE date <> own_date`) == 0 {
			t.Error("nothing was late: the test sees too little")
		}
	}
}

// bookAndCheck books the backlog and checks all days; booked again, nothing changes.
func (h *revenueHistory) bookAndCheck() {
	h.t.Helper()
	bookAll := func() {
		h.change(func(t *tx) error {
			for left := true; left; {
				var err error
				if left, err = bookBacklog(t, 7); err != nil {
					return err
				}
			}
			return nil
		})
	}
	bookAll()
	h.checkDays()
	before := h.count(`SELECT count(*) FROM revenue_facts`)
	h.sql(`INSERT INTO revenue_backlog SELECT id FROM orders`)
	bookAll()
	if after := h.count(`SELECT count(*) FROM revenue_facts`); after != before {
		h.t.Fatalf("booked again, %d facts are %d", before, after)
	}
}

// freezeSome freezes some of the days before the present one.
func (h *revenueHistory) freezeSome(t *tx) error {
	calendar, err := t.businessCalendar(h.account)
	if err != nil {
		return err
	}
	keys, err := t.revenueDayKeys(h.account, firstDate, calendar.dateOf(h.time.Add(-24*time.Hour)))
	for _, k := range keys {
		day := bookedDay{h.account, k.Date, k.Currency}
		if !k.FrozenAt.IsZero() || h.random.IntN(2) == 0 {
			continue
		}
		if err := t.freezeDay(day.account, day.date, day.currency); err != nil {
			return err
		}
		h.frozen[day] = h.dayText(day)
	}
	return err
}
