package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// recordRevenue records what is due of all orders, which changes nothing unless a test has changed their rows itself.
func (s *service) recordRevenue() {
	s.t.Helper()
	s.sql(`INSERT OR IGNORE INTO revenue_backlog SELECT id FROM orders`)
	s.check(retryRevenue(s.t.Context(), s.store))
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

// A revenueHistory is what happens to an account's orders over some days, at random.
type revenueHistory struct {
	*service
	random *rand.Rand
	time   time.Time
	orders []string
	frozen map[accountDay]string // the sums of a frozen day, as JSON
}

// change runs a write at the time of the history, which goes on.
func (h *revenueHistory) change(f func(*tx) error) {
	h.t.Helper()
	h.time = h.time.Add(time.Duration(h.random.Int64N(int64(4 * time.Hour))))
	h.service.change(func(t *tx) error { return f(t.at(h.time.Sub(t.exact))) })
}

// dayText returns the sums of a day as JSON.
func (h *revenueHistory) dayText(day accountDay) string {
	h.t.Helper()
	sums, err := h.store.revenueSums(day.account, day.date, day.currency)
	h.check(err)
	return string(encodeJSON(sums))
}

// sell adds an order that is paid, by card or in cash, or is not paid yet.
func (h *revenueHistory) sell(t *tx) error {
	if h.random.IntN(3) == 0 {
		o := anOrder(h.account)
		o.Currency = "EUR"
		_, err := createOrder(t, o, guest{}, maxOrderLife, anActor)
		h.orders = append(h.orders, o.ID)
		return err
	}
	if h.random.IntN(3) == 0 {
		o := anOrder(h.account)
		o.Currency = "EUR"
		err := sellOutside(t, o, methodCash)
		h.orders = append(h.orders, o.ID)
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
	t.saveOrder(o)
	return nil
}

// move changes an order: it gives something back, fails to, disputes, or is not paid after all.
func (h *revenueHistory) move(t *tx, id string) error {
	o, err := t.order(anyAccount, id)
	if err != nil {
		return err
	}
	switch kind := h.random.IntN(5); {
	case o.State == orderOpen && kind < 2:
		err = chargedByTwint(t, o)
	case o.State == orderAuthorized:
		return h.answerCharged(t, o, kind)
	case o.State == orderOpen:
		at := []stamp{{}, o.CreatedAt}[h.random.IntN(2)] // told at once, or perhaps after that day was frozen
		_, err = payOutside(t, anyAccount, id, orderMethod(outsideMethods[h.random.IntN(4)]), at, anActor)
	case kind < 2 && o.wasPaid() && o.Refunded < o.Total:
		var f *refund
		if o, f, err = refundOrder(t, anyAccount, id, randomWish(o, h.random), anActor); err != nil {
			return nil // the lines do not fit any more
		}
		err = endRefund(t, o, f, "", anActor)
	case kind == 2 && !o.paidOutside():
		var refunds []refund
		if refunds, err = t.refundsOf(id); err != nil || len(refunds) == 0 {
			return err
		}
		f := &refunds[h.random.IntN(len(refunds))]
		if f.State == refundSucceeded {
			return endRefund(t, o, f, "later", anActor)
		} else if o.Refunded+f.Amount <= o.Total && len(f.Lines) == 0 {
			return endRefund(t, o, f, "", anActor)
		}
	case kind == 3 && o.PaymentID != nil:
		d := dispute{PaymentID: *o.PaymentID, ID: "dp_" + id, OrderID: id, Amount: 1 + h.random.Int64N(o.Total),
			State: []disputeState{disputeOpen, disputeWon, disputeLost}[h.random.IntN(3)], OpenedAt: t.now,
			MovedAt: t.now}
		if d.State != disputeOpen {
			d.ClosedAt = t.now
		}
		if d.State != disputeWon {
			d.Taken = d.Amount
		}
		t.saveDispute(&d)
		t.noteRevenue(o) // as a settlement does
	case kind == 4 && o.State == orderPaid && o.paidOutside() && o.Refunded == 0:
		if _, err = undoPaid(t, anyAccount, id, anActor); t.exact.After(o.EndedAt.Add(outsideFor)) {
			return nil // it is too late
		}
	}
	return err
}

// chargedByTwint has the guest pay an open order by TWINT.
func chargedByTwint(t *tx, o *order) error {
	if err := addAttempt(t, o, paymentPending); err != nil {
		return err
	}
	o.State, o.Method, o.AuthorizedAt, o.PaidAt = orderAuthorized, ptr[orderMethod](methodTwint), t.now, t.now
	o.AcceptBy = t.now.after(time.Hour)
	_, err := t.try(`UPDATE payments SET method = 'twint', captured_at = ? WHERE id = ?`, t.now, *o.PaymentID)
	t.saveOrder(o)
	t.noteRevenue(o)
	return errors.Join(err, capturedAll(t, o))
}

// answerCharged accepts an order that was charged, all or a part of it, or refuses it. What is then given back is
// done now, or fails.
func (h *revenueHistory) answerCharged(t *tx, o *order, kind int) (err error) {
	switch lines := []linePart{{Quantity: o.Lines[0].Quantity - 1}}; {
	case kind == 0:
		o, err = plainReject(t, anyAccount, o.ID, anActor)
	case kind < 3 && (len(o.Lines) > 1 || lines[0].Quantity > 0):
		if o, err = acceptOrder(t, anyAccount, o.ID, lines, stamp{}, anActor); err != nil {
			return nil // nothing would be left
		}
	default:
		o, err = acceptOrder(t, anyAccount, o.ID, nil, stamp{}, anActor)
	}
	if err != nil {
		return err
	}
	refunds, err := t.refundsOf(o.ID)
	if err != nil || len(refunds) == 0 {
		return err
	}
	if kind == 4 {
		return endRefund(t, o, &refunds[0], "declined", anActor)
	}
	return endRefund(t, o, &refunds[0], "", anActor)
}

// brought returns what all orders have brought by what they, their refunds and disputes say.
func (h *revenueHistory) brought() (amount int64) {
	h.t.Helper()
	for _, id := range h.orders {
		o := h.row(id)
		switch {
		case o.capturedFirst():
			amount += o.OrderedTotal
		case !o.wasPaid():
			continue
		default:
			amount += o.Total
		}
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
			amount -= d.Taken
		}
	}
	return amount
}

// checkDays checks all days: that both halves of each are equal, that all of them have what the orders have
// brought, and that frozen ones are as they were.
func (h *revenueHistory) checkDays() {
	h.t.Helper()
	first, last := h.time.AddDate(0, 0, 20-maxRevenueDays), h.time.AddDate(0, 0, 10)
	all, err := revenueDays(h.store.queries, h.account, first, last, h.time)
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
	if o.capturedFirst() {
		want = saleFigures(o.sold())
	} else if o.wasPaid() && *o.Method != methodNone {
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

// Against a tenant with any history of orders who would have a day whose halves differ, or money counted on two
// days: facts are never changed, and sums are theirs alone; entries balance or are not sent.
func TestRevenue_daysHaveWhatOrdersHaveBroughtWhateverHappens(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	frozen, late := 0, 0
	for from := range seeds(size(1, 2)) {
		h := &revenueHistory{service: newService(t), random: random(t, from),
			time: time.Date(2026, 3, 20, 9, 0, 0, 0, time.UTC), frozen: map[accountDay]string{}}
		h.change(h.sell)
		for range size(110, 130) {
			switch h.random.IntN(8) {
			case 0, 1, 2:
				h.change(h.sell)
			case 3, 4, 5:
				h.change(func(t *tx) error { return h.move(t, h.orders[h.random.IntN(len(h.orders))]) })
			case 6:
				h.change(h.freezeSome)
			case 7:
				zone := zonesThatMove[h.random.IntN(len(zonesThatMove))]
				change := func(s *accountSettings) { s.Zone = zone }
				h.change(func(t *tx) error { return changeSettings(t, nouns(), h.account, change, anActor) })
			}
			if h.random.IntN(6) == 0 {
				h.recordAndCheck()
			}
		}
		h.recordAndCheck()
		frozen += len(h.frozen)
		late += h.count(`SELECT count(*) FROM revenue_facts WHERE date <> own_date`)
	}
	if *seed == 0 && (frozen == 0 || late == 0) {
		t.Errorf("%d days were frozen, and %d facts late: the test sees too little", frozen, late)
	}
}

// recordAndCheck records the backlog and checks all days; recorded again, nothing changes.
func (h *revenueHistory) recordAndCheck() {
	h.t.Helper()
	h.checkDays()
	before := h.count(`SELECT count(*) FROM revenue_facts`)
	h.recordRevenue()
	if after := h.count(`SELECT count(*) FROM revenue_facts`); after != before {
		h.t.Fatalf("recorded again, %d facts are %d", before, after)
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
		day := accountDay{h.account, k.Date, k.Currency}
		if !k.FrozenAt.IsZero() || h.random.IntN(2) == 0 {
			continue
		}
		t.freezeDay(day.account, day.date, day.currency)
		h.frozen[day] = h.dayText(day)
	}
	return err
}

// accountant issues a token of the main account that reads revenue.
func (s *service) accountant() string {
	s.t.Helper()
	return "Authorization: Bearer " + s.token(s.account, scopeRevenue)
}

// An order whose revenue can't be told is paid all the same, and recorded once its rows are mended.
func TestRevenue_thatCanNotBeToldKeepsNobodyFromPayingAndIsRecordedLater(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.orderIn(orderPaid).ID
	sum := func() int { return s.count(`SELECT coalesce(sum(gross), 0) FROM revenue_sums WHERE what = 'sale'`) }
	once := sum()
	s.sql(`UPDATE revenue_facts SET figures = '[1]' WHERE order_id = ?`, id) // as in the sqlite3 shell
	s.changeOrder(id, func(t *tx, o *order) error {
		_, _, err := refundOrder(t, anyAccount, id, newRefund{}, anActor)
		return err
	})
	s.counts(1, `SELECT count(*) FROM revenue_backlog WHERE order_id = ?`, id)
	s.counts(1, `SELECT count(*) FROM refunds WHERE order_id = ?`, id)
	s.check(retryRevenue(t.Context(), s.store))
	s.counts(1, `SELECT count(*) FROM revenue_backlog`)
	out, err := s.command("check")
	contains(t, out, "\nrevenue: of "+id+" it can't be recorded: revenue_facts ")
	oneLine(t, err, "faults in ")
	s.sql(`DELETE FROM revenue_facts WHERE order_id = ?`, id)
	s.sql(`DELETE FROM revenue_sums`)
	if out, _ = s.command("check"); strings.Contains(out, "revenue") {
		t.Error(out)
	}
	equal(t, "the sales", sum(), once)
	s.counts(0, `SELECT count(*) FROM revenue_backlog`)
}

// sellOutside adds an order that is paid outside, in a way.
func sellOutside(t *tx, o *order, method string) error {
	if _, err := createOrder(t, o, guest{}, minOrderLife, anActor); err != nil {
		return err
	}
	return second(payOutside(t, anyAccount, o.ID, orderMethod(method), stamp{}, anActor))
}

// givesBack refunds an order, and updates its payment as its provider would have reported it.
func givesBack(t *tx, orderID string, w newRefund) error {
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

// at runs f in a transaction at a time.
func (s *service) at(t testing.TB, when string, f func(*tx) error) {
	t.Helper()
	then := moment(t, when)
	s.change(func(t *tx) error {
		return f(t.at(then.Sub(t.exact)))
	})
}

// dayTotal returns what a business day of the main account has brought; "none": nothing counts on it.
func (s *service) dayTotal(date businessDate) string {
	s.t.Helper()
	report, err := reportDate(s.store.queries, s.account, date, time.Now())
	s.check(err)
	texts := []string{}
	for i := range report.Days {
		checkHalves(s.t, &report.Days[i])
		d := &report.Days[i]
		texts = append(texts, fmt.Sprintf("%s %s %d late", d.Currency, formatSigned(d.Totals.Total), len(d.Late)))
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// days checks what business days have brought, each "date: total".
func (s *service) days(want ...string) {
	s.t.Helper()
	for _, w := range want {
		date, total, _ := strings.Cut(w, ": ")
		if got := s.dayTotal(date); got != total {
			s.t.Errorf("%s has %s, want %s", date, got, total)
		}
	}
}

// Against a guest's late refund, or a provider's late report, who would change a day that is in the books: a frozen
// day takes nothing more; late facts count on the open day.
func TestRevenue_lateFactsCountOnTheOpenDayAndLeaveTheFrozenOne(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var o *order
	s.at(t, "2026-05-01T12:00:00Z", func(t *tx) error {
		o = anOrder(s.account)
		_, err := createOrder(t, o, guest{}, minOrderLife, anActor)
		return errors.Join(err, bringTo(t, o, orderPaid))
	})
	s.at(t, "2026-05-02T07:00:00Z", func(t *tx) error {
		t.freezeDay(s.account, "2026-05-01", "CHF")
		return nil
	})
	before, err := s.store.revenueSums(s.account, "2026-05-01", "CHF")
	s.check(err)
	frozen, err := s.store.frozenDay(s.account, "2026-05-01", "CHF")
	if s.check(err); frozen.String() != "2026-05-02T07:00:00Z" {
		t.Errorf("frozen at %s", frozen)
	}
	f := &refund{Amount: 900, Kind: refundFound, MadeBy: actorTime,
		CreatedAt: newStamp(moment(t, "2026-05-01T13:00:00Z"))}
	s.at(t, "2026-05-04T12:00:00Z", func(t *tx) error { // found at the provider three days later
		p, err := t.payment(*o.PaymentID)
		if err != nil {
			return err
		}
		m, err := moneyOf(t, o, p)
		if err != nil {
			return err
		}
		m.add(f)
		m.refunds[0].end("", t.now)
		m.matchFound("")
		return m.save(t, actorTime)
	})
	s.days("2026-05-01: CHF 59.00 0 late", "2026-05-04: CHF -9.00 1 late")
	if after, err := s.store.revenueSums(s.account, "2026-05-01", "CHF"); err != nil || !slices.Equal(before, after) {
		t.Errorf("the frozen day has\n%+v, had\n%+v, %v", after, before, err)
	}
	report, err := reportDate(s.store.queries, s.account, "2026-05-04", time.Now())
	s.check(err)
	if len(report.Days[0].Late) != 1 {
		t.Fatalf("late are %+v", report.Days[0].Late)
	}
	late := report.Days[0].Late[0]
	if late.Date != "2026-05-01" || late.Kind != "refund" || !validID("ref", valueOr(late.ID, "")) ||
		late.Amount != -900 || late.OrderID != o.ID || late.At.String() != "2026-05-01T13:00:00Z" {
		t.Errorf("late is %+v", late)
	}
	// The open day is frozen too: the next one that is not gets it.
	s.at(t, "2026-05-04T12:30:00Z", func(t *tx) error {
		for _, date := range []businessDate{"2026-05-04", "2026-05-05"} {
			t.freezeDay(s.account, date, "CHF")
		}
		now, err := t.order(anyAccount, o.ID)
		if err != nil {
			return err
		}
		refunds, err := t.refundsOf(o.ID)
		if err != nil {
			return err
		}
		return endRefund(t, now, &refunds[0], "later", actorTime)
	})
	s.days("2026-05-04: CHF -9.00 1 late", "2026-05-05: CHF 0.00 0 late", "2026-05-06: CHF 9.00 1 late")
}

func TestRevenue_dayHasFiftyGroupsAtMost(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for round := range 2 { // the second time, all of them are known
		s.at(t, "2026-05-01T12:00:00Z", func(t *tx) error {
			o := anOrder(s.account)
			o.Lines, o.Discount, o.Delivery, o.Tip = nil, 0, 0, 0
			for i := range maxDayGroups + 2 {
				o.Lines = append(o.Lines, orderLine{Name: "x", Quantity: 1, UnitAmount: 100, VATRate: 810,
					Group: fmt.Sprintf("group %02d", i)})
			}
			return sellOutside(t, o, methodCash)
		})
		sums, err := s.store.revenueSums(s.account, "2026-05-01", "CHF")
		s.check(err)
		if n := int64(round + 1); len(sums) != maxDayGroups+1 || sums[0].Group != "" || sums[0].Gross != 200*n ||
			sums[1].Group != "group 00" || sums[1].Gross != 100*n {
			t.Errorf("%d sums, the first two %+v", len(sums), sums[:2])
		}
	}
}

func TestRevenue_zoneCountsFromTheNextDayOn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	set := func(when, zone, cutOff string) {
		t.Helper()
		s.at(t, when, func(t *tx) error {
			change := func(a *accountSettings) { a.Zone, a.CutOff = zone, cutOff }
			return changeSettings(t, nouns(), s.account, change, anActor)
		})
	}
	spans := func(want ...zoneSpan) {
		t.Helper()
		if got, err := s.store.zonesOf(s.account); err != nil || !slices.Equal(got, want) {
			t.Errorf("zones %v, want %v, %v", got, want, err)
		}
	}
	set("2026-05-01T12:00:00Z", "Europe/Zurich", "04:00")
	spans() // nothing was sold yet
	s.at(t, "2026-05-01T12:00:00Z", func(t *tx) error { return sellOutside(t, anOrder(s.account), methodCash) })
	first := zoneSpan{firstDate, "Europe/Zurich", "04:00"}
	set("2026-05-04T01:59:59Z", "America/New_York", "05:00") // still the day before, in Zurich
	spans(first, zoneSpan{"2026-05-04", "America/New_York", "05:00"})
	set("2026-05-04T01:59:59Z", "UTC", "00:00")
	spans(first, zoneSpan{"2026-05-04", "UTC", "00:00"})
	set("2026-05-04T01:59:59Z", "Europe/Zurich", "04:00") // as it was
	spans(first)
	set("2026-05-10T12:00:00Z", "America/New_York", "05:00")
	set("2026-05-20T12:00:00Z", "Europe/Zurich", "04:00")
	spans(first, zoneSpan{"2026-05-11", "America/New_York", "05:00"}, zoneSpan{"2026-05-21", "Europe/Zurich", "04:00"})
	calendar, err := s.store.businessCalendar(s.account)
	s.check(err)
	for date, end := range map[businessDate]string{"2026-05-10": "2026-05-11T02:00:00Z",
		"2026-05-11": "2026-05-12T09:00:00Z", "2026-05-20": "2026-05-21T09:00:00Z",
		"2026-05-21": "2026-05-22T02:00:00Z"} {
		if got := calendar.endOf(date); !got.Equal(moment(t, end)) {
			t.Errorf("%s ends at %s, want %s", date, got, end)
		}
	}
	s.days("2026-05-01: CHF 59.00 0 late")
}

// moment returns the time that a text of RFC 3339 names.
func moment(t testing.TB, s string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, s)
	must(t, err)
	return parsed
}

// aCalendar makes a calendar.
func aCalendar(t testing.TB, spans ...zoneSpan) *businessCalendar {
	t.Helper()
	c, err := newCalendar(spans...)
	must(t, err)
	return c
}

// Expected times are from the rules of the IANA database, reckoned by hand.
func TestCalendar_dayEndsAtItsCutOffWhateverClocksDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, zone, cutOff, date, end string }{
		{"an ordinary day", "Europe/Zurich", "04:00", "2026-11-21", "2026-11-22T03:00:00Z"},
		{"midnight", "Europe/Zurich", "00:00", "2026-11-21", "2026-11-21T23:00:00Z"},
		{"the default", "UTC", "04:00", "2026-11-21", "2026-11-22T04:00:00Z"},
		{"an hour is skipped", "Europe/Zurich", "04:00", "2026-03-28", "2026-03-29T02:00:00Z"},
		{"the day before that", "Europe/Zurich", "04:00", "2026-03-27", "2026-03-28T03:00:00Z"},
		{"in the skipped hour", "Europe/Zurich", "02:30", "2026-03-28", "2026-03-29T01:00:00Z"},
		{"at the start of the skipped hour", "Europe/Zurich", "02:00", "2026-03-28", "2026-03-29T01:00:00Z"},
		{"at the end of the skipped hour", "Europe/Zurich", "03:00", "2026-03-28", "2026-03-29T01:00:00Z"},
		{"an hour is repeated", "Europe/Zurich", "04:00", "2026-10-24", "2026-10-25T03:00:00Z"},
		{"in the repeated hour", "Europe/Zurich", "02:30", "2026-10-24", "2026-10-25T00:30:00Z"},
		{"at the end of the repeated hour", "Europe/Zurich", "03:00", "2026-10-24", "2026-10-25T02:00:00Z"},
		{"New York, skipped", "America/New_York", "02:30", "2026-03-07", "2026-03-08T07:00:00Z"},
		{"New York, repeated", "America/New_York", "01:30", "2026-10-31", "2026-11-01T05:30:00Z"},
		{"Lord Howe, half an hour skipped", "Australia/Lord_Howe", "02:15", "2026-10-03", "2026-10-03T15:30:00Z"},
		{"Lord Howe, half an hour repeated", "Australia/Lord_Howe", "01:45", "2026-04-04", "2026-04-04T14:45:00Z"},
		{"Apia, a date is skipped", "Pacific/Apia", "04:00", "2011-12-29", "2011-12-30T10:00:00Z"},
		{"Apia, the skipped date", "Pacific/Apia", "04:00", "2011-12-30", "2011-12-30T14:00:00Z"},
		{"Apia, the date after", "Pacific/Apia", "04:00", "2011-12-31", "2011-12-31T14:00:00Z"},
	} {
		calendar := aCalendar(t, zoneSpan{firstDate, c.zone, c.cutOff})
		end := moment(t, c.end)
		if got := calendar.endOf(c.date); !got.Equal(end) {
			t.Errorf("%s: %s ends at %s, want %s", c.name, c.date, got.Format(time.RFC3339), c.end)
		}
		if got := calendar.dateOf(end.Add(-1)); got != c.date {
			t.Errorf("%s: just before its end it is %s, want %s", c.name, got, c.date)
		}
		if got := calendar.dateOf(end); got != dateAfter(c.date) {
			t.Errorf("%s: at its end it is %s, want %s", c.name, got, dateAfter(c.date))
		}
		if got := calendar.finalAt(c.date); !got.Equal(end.Add(2 * time.Hour)) {
			t.Errorf("%s: it is final at %s", c.name, got)
		}
	}
}

// zonesThatMove are zones whose clocks and dates were changed in many ways.
var zonesThatMove = []string{
	"UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein",
	"Asia/Kathmandu", "Africa/Casablanca", "America/Caracas", "Antarctica/Troll", "Etc/GMT+12", "Etc/GMT-14",
}

// checkCalendar checks around a time that days have neither gaps nor overlaps, and that a later time is
// never on an earlier day.
func checkCalendar(t *testing.T, c *businessCalendar, around time.Time) {
	t.Helper()
	date := around.UTC().AddDate(0, 0, -5).Format(time.DateOnly)
	for range 10 {
		start, end := c.startOf(date), c.endOf(date)
		if end.Before(start) {
			t.Fatalf("%s begins at %s and ends before, at %s", date, start, end)
		}
		if next := dateAfter(date); !c.startOf(next).Equal(end) {
			t.Fatalf("%s ends at %s, and %s begins at %s", date, end, next, c.startOf(next))
		}
		if end.After(start) {
			for _, inside := range []time.Time{start, end.Add(-1), start.Add(end.Sub(start) / 2)} {
				if got := c.dateOf(inside); got != date {
					t.Fatalf("%s is on %s, and %s lasts from %s to %s", inside, got, date, start, end)
				}
			}
		}
		date = dateAfter(date)
	}
	before, last := "", around.Add(72*time.Hour)
	for then := around.Add(-72 * time.Hour); then.Before(last); then = then.Add(97 * time.Minute) {
		got := c.dateOf(then)
		if got < before {
			t.Fatalf("%s is on %s, and the time before was on %s", then, got, before)
		}
		if !then.Before(c.endOf(got)) || then.Before(c.startOf(got)) {
			t.Fatalf("%s is on %s, from %s to %s", then, got, c.startOf(got), c.endOf(got))
		}
		before = got
	}
}

func TestCalendar_hasNeitherGapsNorOverlaps(t *testing.T) {
	t.Parallel()
	for year := 2028; year < 2130; year += 4 { // of which package time has the ends of some wrong
		for _, zone := range zonesThatMove {
			c := aCalendar(t, zoneSpan{firstDate, zone, "02:01"})
			checkCalendar(t, c, time.Date(year, 12, 31, 12, 0, 0, 0, time.UTC))
		}
	}
	random := random(t, 0)
	for range size(20, 200) {
		around := time.Unix(random.Int64N(100*365*24*3600), 0).UTC()
		span := func(from businessDate) zoneSpan {
			minutes := random.IntN(1440)
			cutOff := fmt.Sprintf("%02d:%02d", minutes/60, minutes%60)
			return zoneSpan{from, zonesThatMove[random.IntN(len(zonesThatMove))], cutOff}
		}
		checkCalendar(t, aCalendar(t, span(firstDate), span(around.Format(time.DateOnly)),
			span(around.AddDate(0, 0, 1+random.IntN(3)).Format(time.DateOnly))), around)
	}
}
