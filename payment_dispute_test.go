package main

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Stories of disputes and of refunds that nobody told of, over months: as the restaurant, the operator and the
// accountant read them.

// A season is a shop whose days and payouts are sent to books, over months. Its clock begins at noon of 2000-01-01,
// and days are counted from there.
type season struct {
	*shop
	till *till
}

// inSeason runs a test with a season, in a bubble.
func inSeason(t *testing.T, f func(s *season)) {
	t.Helper()
	inShop(t, func(shop *shop) {
		k := &till{service: shop.service, payouts: &payouts{shop.engine}, provider: providerStripe,
			connection: shop.connection, ledger: &tillLedger{newDemoLedger("", "", time.Now)}, tests: true}
		shop.currency, shop.server.ledgers = "SEK", map[string]ledger{productFortnox: k.ledger}
		k.keepsBooks(true, false)
		k.until(1, 12)
		f(&season{shop: shop, till: k})
	})
}

// paid has a guest pay 42.00 today.
func (s *season) paid() (*order, *payment) {
	s.t.Helper()
	o, p := s.authorized(func(o *order) {
		o.Lines, o.Delivery = []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: 4200, VATRate: 1200}}, 0
	})
	s.accept(o.ID)
	return o, s.settle(p)
}

// passes lets days pass until noon of one, and on each has done what the workers do. It returns how often the provider
// was asked about a payment.
func (s *season) passes(day int) (looks int) {
	s.t.Helper()
	s.takeCalls()
	s.takeNotices() // are lost
	for first := int(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) / dailyLook); first < day; first++ {
		s.till.until(first+1, 12)
		paysOut := len(s.provider.payouts) > 0 // else there is nothing to read, and what is sold can be booked later
		if paysOut {
			s.till.look()
		}
		if s.settlesDue(); paysOut {
			s.till.book()
		}
	}
	for _, call := range s.takeCalls() {
		if strings.HasPrefix(call, "GET "+stripeSessions+"/") {
			looks++
		}
	}
	return looks
}

// settlesDue asks the provider about what is due.
func (s *season) settlesDue() {
	s.t.Helper()
	due, err := s.store.duePayments(newStamp(time.Now()), dueAtOnce)
	s.check(err)
	for _, d := range due {
		s.check(s.engine.settle(s.t.Context(), d.id))
	}
	synctest.Wait()
}

// A seasonRow is a row of a payout: its category at Stripe, and the id of the refund or the dispute that it is about.
type seasonRow struct {
	category, of string
	amount, fee  int64
}

// paysOut has the provider pay out rows about a payment, which arrive on a day; off is what their sum lacks.
func (s *season) paysOut(p *payment, day int, off int64, rows ...seasonRow) payoutReport {
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	arrival := time.Date(2000, 1, day, 0, 0, 0, 0, time.UTC)
	id, sum := s.provider.newID("po_"), off
	if s.provider.moves == nil {
		s.provider.moves = map[string][]testObject{}
	}
	for _, r := range rows {
		sum += r.amount - r.fee
		s.provider.moves[id] = append(s.provider.moves[id], testObject{"id": s.provider.newID("txn_"),
			"object": "balance_transaction", "amount": r.amount, "fee": r.fee, "net": r.amount - r.fee,
			"currency": "sek", "reporting_category": r.category, "created": arrival.Unix(),
			"fee_details": []testObject{{"amount": r.fee, "type": "stripe_fee"}},
			"source":      testObject{"id": r.of, "payment_intent": *p.IntentID}})
	}
	s.provider.payouts = append([]testObject{{"id": id, "object": "payout", "automatic": true, "method": "standard",
		"status": "paid", "reconciliation_status": "completed", "currency": "sek", "amount": sum,
		"arrival_date": arrival.Unix()}}, s.provider.payouts...)
	return payoutReport{providerID: id}
}

// refundThere has somebody give an amount back on the provider's own pages.
func (s *season) refundThere(p *payment, amount int64) (id string) {
	s.atProvider(p, func(x *testSession) {
		id = s.provider.newID("re_")
		x.intent.refunds = append(x.intent.refunds, &testRefund{id: id, status: "succeeded", amount: amount,
			created: time.Now().Unix()})
	})
	return id
}

// disputeID returns the provider's id of the dispute of a payment.
func (s *season) disputeID(p *payment) string { return s.intent(p).disputes[0].id }

// due returns when the provider is asked about an attempt next; "": never again.
func (s *season) due(p *payment) string {
	if at := s.attempt(p.OrderID).DueAt; !at.IsZero() {
		return at.String()
	}
	return ""
}

// disputed returns the revenue of disputes of an order: each fact with the date on which it counts, its own, and how
// much it takes.
func (s *service) disputed(orderID string) (all []string) {
	s.t.Helper()
	facts, err := s.store.factsOf(orderID)
	s.check(err)
	for _, f := range facts {
		if f.Figures[0].What == figureDispute {
			all = append(all, fmt.Sprint(f.Date, " of ", f.OwnDate, " ", -f.received()))
		}
	}
	return all
}

// A dispute that is opened on day 171 and won on day 200, of which no webhook tells, is asked about each day until
// then. The money is back in the revenue, the order and the books, and what is paid out leaves nothing behind.
func TestDispute_isLookedAtEachDayUntilItIsOver(t *testing.T) {
	t.Parallel()
	inSeason(t, func(s *season) {
		o, p := s.paid()
		first := s.paysOut(p, 3, 0, seasonRow{category: "charge", of: "ch_1", amount: 4200, fee: 100})
		s.passes(171)
		s.till.booked(first, partPayout, exportPosted)
		s.provider.dispute(*p.IntentID, "needs_response")
		s.deliver()
		s.settlesDue()
		equal(t, "the order's dispute", valueOr(s.row(o.ID).Dispute, ""), disputeOpen)
		took := s.paysOut(p, 174, 0,
			seasonRow{category: "dispute", of: s.disputeID(p), amount: -4200, fee: 1500})
		equal(t, "looks in 28 days", s.passes(199), 28)
		equal(t, "the account of disputes", s.till.ledger.balance("6352"), int64(4200))
		equal(t, "clearing", s.till.ledger.balance(tillCard), int64(0))
		lacks(t, s.till.status(), "stays open")

		s.till.until(200, 7)
		s.provider.dispute(*p.IntentID, "won")
		back := s.paysOut(p, 203, 0, seasonRow{category: "dispute_reversal", of: s.disputeID(p), amount: 4200})
		s.passes(205)
		equal(t, "the order's dispute", valueOr(s.row(o.ID).Dispute, ""), disputeWon)
		equal(t, "events", s.events(o.ID)[eventOrderDisputed], 2)
		equal(t, "revenue", s.disputed(o.ID),
			[]string{"2000-06-19 of 2000-06-19 4200", "2000-07-18 of 2000-07-18 -4200"})
		for _, payout := range []payoutReport{took, back} {
			s.till.booked(payout, partPayout, exportPosted)
		}
		equal(t, "the account of disputes", s.till.ledger.balance("6352"), int64(0))
		equal(t, "clearing", s.till.ledger.balance(tillCard), int64(0))
		equal(t, "the next look", s.due(p), "")
		s.accountedFor()
	})
}

// A bank that only asks may take the money later, and what was won may come back later: both are asked about. A
// dispute that lasts for longer than any does is told to the operator, and asked about all the same.
func TestDispute_thatDoesNotEndIsATrouble(t *testing.T) {
	t.Parallel()
	inSeason(t, func(s *season) {
		o, p := s.paid()
		_, other := s.paid()
		s.passes(171)
		s.provider.dispute(*p.IntentID, "warning_needs_response")
		s.deliver()
		s.settlesDue()
		equal(t, "looks while the bank asks", s.passes(300), 129+2) // and the last two of the other payment
		equal(t, "the next look at the other payment", s.due(other), "")
		s.provider.dispute(*p.IntentID, "needs_response")
		s.atProvider(p, func(x *testSession) { x.intent.disputes[0].created = time.Now().Unix() })
		equal(t, "looks while it is open", s.passes(699), 399)
		equal(t, "the order's dispute", valueOr(s.row(o.ID).Dispute, ""), disputeOpen)
		lacks(t, s.till.status(), "stays open")
		s.passes(701)
		contains(t, s.till.status(), "1 dispute stays open for longer than banks take, since 2000-10-26: "+
			"ask the provider, 'widgetd order show "+o.ID+"'")
		equal(t, "looks", s.passes(720), 19)
		s.provider.dispute(*p.IntentID, "won")
		s.atProvider(p, func(x *testSession) { x.intent.disputes[0].reinstated = 0 })
		equal(t, "looks while the money is not back", s.passes(730), 10)
		equal(t, "the order's dispute", valueOr(s.row(o.ID).Dispute, ""), disputeWon)
		lacks(t, s.till.status(), "stays open")
		s.provider.dispute(*p.IntentID, "won")
		equal(t, "looks once it is", s.passes(740), 1)
		s.hasRows(1, "disputes WHERE state = ? AND taken = 0", disputeWon)
		equal(t, "the next look", s.due(p), "")
	})
}

// What happened after day 180, and of which no webhook tells, the payout tells that has it: it is held until the
// provider was asked, and then in the books.
func TestPayout_rowThatDoesNotMatchHasItsPaymentLookedAt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		does    func(s *season, p *payment) []seasonRow
		order   string
		revenue string
		state   string // of the payout's export, afterwards
		reason  string
		later   bool // once more after that
	}{
		"a refund": {does: func(s *season, p *payment) []seasonRow {
			return []seasonRow{{category: "refund", of: s.refundThere(p, 1000), amount: -1000}}
		}, order: orderPartRefunded, revenue: "-10.00", state: exportPosted},
		"a dispute": {does: func(s *season, p *payment) []seasonRow {
			s.provider.dispute(*p.IntentID, "needs_response")
			return []seasonRow{{category: "dispute", of: s.disputeID(p), amount: -4200, fee: 1500}}
		}, order: orderPaid, revenue: "-42.00", state: exportPosted, later: true},
		"a refund that nobody lists": {does: func(s *season, p *payment) []seasonRow {
			return []seasonRow{{category: "refund", of: "re_unknown", amount: -1000}}
		}, order: orderPaid, state: exportHeld, reason: heldNotPosted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inSeason(t, func(s *season) {
				o, p := s.paid()
				s.passes(190)
				s.paysOut(p, 191, 0, seasonRow{category: "charge", of: "ch_1", amount: 4200, fee: 100})
				equal(t, "looks at what is as its payout says", s.passes(194), 0)
				s.till.until(195, 7)
				rows := c.does(s, p)
				payout := s.paysOut(p, 198, 0, rows...)
				s.till.until(198, 12)
				s.till.look()
				s.till.book() // before the provider was asked
				s.till.booked(payout, partPayout, exportHeld, heldNotPosted)
				want := 1 // for its row
				if c.later {
					want += 4 // one a day
				}
				equal(t, "looks", s.passes(202), want)
				equal(t, "the order", s.row(o.ID).State, orderState(c.order))
				if c.revenue != "" {
					s.days("2000-07-13: SEK " + c.revenue + " 0 late")
					equal(t, "clearing", s.till.ledger.balance(tillCard), int64(0))
				}
				s.till.booked(payout, partPayout, bookExportState(c.state), c.reason)
				equal(t, "it is asked about again", s.due(p) != "", c.later)
				if !c.later {
					equal(t, "looks later", s.passes(250), 0)
				}
			})
		})
	}
}

// The money that comes back counts on the day on which it did, as the provider says, and no later than today; where
// that is in the books, it counts on the open day and keeps its own date.
func TestDispute_moneyThatComesBackHasTheDayOfItsMovement(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opened, lost, won, heard int // days; lost: 0 if it was not
		ahead                    time.Duration
		frozen                   string // a day
		opens, returns           string // what is counted
	}{
		"lost on 20 March, and reinstated on 5 May": {opened: 61, lost: 80, won: 126, heard: 126,
			opens: "2000-03-01 of 2000-03-01", returns: "2000-05-05 of 2000-05-05"},
		"won on 30 December, and heard on 3 January": {opened: 340, won: 365, heard: 369,
			opens: "2000-12-05 of 2000-12-05", returns: "2000-12-30 of 2000-12-30"},
		"won on a day that is in the books": {opened: 340, won: 365, heard: 369, frozen: "2000-12-30",
			opens: "2000-12-05 of 2000-12-05", returns: "2001-01-03 of 2000-12-30"},
		"of a provider whose clock is ahead": {opened: 61, won: 65, heard: 65, ahead: days(2),
			opens: "2000-03-01 of 2000-03-01", returns: "2000-03-05 of 2000-03-05"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inSeason(t, func(s *season) {
				o, p := s.paid()
				tells := func(day int, status string, ahead time.Duration) {
					s.till.until(day, 7)
					s.provider.dispute(*p.IntentID, status)
					s.atProvider(p, func(x *testSession) { x.intent.disputes[0].reinstated += int64(ahead.Seconds()) })
					s.takeNotices()
				}
				tells(c.opened, "needs_response", 0)
				s.settle(p)
				if c.lost > 0 {
					tells(c.lost, "lost", 0)
					s.settle(p)
				}
				if s.till.book(); c.frozen != "" {
					s.change(func(t *tx) error { t.freezeDay(s.account, c.frozen, "SEK"); return nil })
				}
				tells(c.won, "won", c.ahead)
				s.till.until(c.heard, 12)
				s.settle(p)
				equal(t, "revenue", s.disputed(o.ID), []string{c.opens + " 4200", c.returns + " -4200"})
				late := 0
				if c.frozen != "" {
					late = 1
				}
				s.days(fmt.Sprintf("%s: SEK 42.00 %d late", c.returns[:10], late))
				s.till.until(c.heard+1, 12)
				s.till.book()
				equal(t, "the account of disputes", s.till.ledger.balance("6352"), int64(0))
			})
		})
	}
}

// Against a bank that takes money back at Vipps, of which only the ledger tells: it is a dispute as any other, and the
// attempt is not in review. Each row has the day that it names: what is taken, put back in part, put back, and taken
// once more.
func TestPayout_ledgerOfVippsHasTheDayOfEachMovement(t *testing.T) {
	t.Parallel()
	atTill(t, providerVipps, false, func(k *till) {
		sold := k.sell(methodMobile, 1000, 0)
		order, paid := k.orderOf(sold)
		k.there.ledger = append(k.there.ledger, sold)
		first := k.dispute(sold, 1000, 0)
		for _, m := range []struct {
			day    int
			amount int64
			state  string
			taken  int64
		}{{2, -1000, disputeOpen, 1000}, {5, 400, disputeOpen, 600}, {9, 600, disputeWon, 0},
			{12, -500, disputeOpen, 500}} {
			row := first
			row.id, row.amount, row.at = k.id("txn"), m.amount, time.Date(2000, 1, m.day, 9, 0, 0, 0, time.UTC)
			k.there.ledger = append(k.there.ledger, row)
			k.until(m.day+2, 12) // it is told two days later
			for range 2 {        // and not twice
				k.lookNow()
			}
			k.hasRows(1, "disputes WHERE state = ? AND taken = ?", m.state, m.taken)
			equal(t, "the order", valueOr(k.service.row(order).Dispute, ""), orderDispute(m.state))
			p, err := k.store.payment(paid)
			if k.check(err); p.State != paymentCaptured || p.Captured-p.Refunded != 1000 {
				t.Errorf("the attempt is %s, captured %d, refunded %d", p.State, p.Captured, p.Refunded)
			}
		}
		k.counts(4, `SELECT count(*) FROM events WHERE type = 'order.disputed'`)
		equal(t, "revenue", k.disputed(order), []string{"2000-01-02 of 2000-01-02 1000",
			"2000-01-05 of 2000-01-05 -1000", "2000-01-05 of 2000-01-05 600",
			"2000-01-09 of 2000-01-09 -600", "2000-01-12 of 2000-01-12 500"})
		k.until(500, 12)
		k.hasRows(1, "disputes WHERE closed_at IS NULL")
		lacks(t, k.status(), "stays open") // nobody could do anything about it
	})
}

// A payout asks about the payments that it names and that are not as its rows say, and about no others.
func TestPayout_onlyRowsThatDoNotMatchHaveAPaymentLookedAt(t *testing.T) {
	t.Parallel()
	const sold, reversed, given, failed, back, disputed, reinstated = 0, 1, 2, 3, 4, 5, 6
	cases := map[string]struct {
		change func(rows []ledgerRow)
		looks  int
	}{
		"all as it is":             {func([]ledgerRow) {}, 0},
		"in another currency":      {func(rows []ledgerRow) { convert(rows) }, 0},
		"more was captured":        {func(rows []ledgerRow) { rows[sold].amount++ }, 1},
		"none was captured":        {func(rows []ledgerRow) { rows[reversed].amount = -rows[sold].amount }, 1},
		"an unknown refund":        {func(rows []ledgerRow) { rows[given].source = "re_unknown" }, 1},
		"a refund of more":         {func(rows []ledgerRow) { rows[given].amount-- }, 1},
		"a refund that has failed": {func(rows []ledgerRow) { rows[given].amount = -rows[given].amount }, 1},
		"one that has not failed":  {func(rows []ledgerRow) { rows[back].amount = 0 }, 1},
		"an unknown dispute":       {func(rows []ledgerRow) { rows[disputed].source = "dp_unknown" }, 1},
		"a dispute about more":     {func(rows []ledgerRow) { rows[disputed].amount-- }, 1},
		"a dispute that was won":   {func(rows []ledgerRow) { rows[reinstated].amount = -rows[disputed].amount }, 1},
		"in another currency, too": {func(rows []ledgerRow) {
			convert(rows)
			rows[disputed].amount, rows[given].source = -rows[disputed].amount, "re_unknown"
		}, 2},
	}
	atTill(t, providerStripe, false, func(k *till) {
		for name, c := range cases {
			rows := make([]ledgerRow, 7)
			rows[sold] = k.sell(methodCard, 1000, 30)
			rows[reversed] = rows[sold]
			rows[reversed].id, rows[reversed].amount = k.id("txn"), -100
			rows[sold].amount = 1100
			rows[given] = k.refund(rows[sold], 200)
			other := k.sell(methodCard, 1000, 30)
			rows[failed] = k.refund(other, 300)
			k.sql(`UPDATE refunds SET state = 'failed' WHERE provider_id = ?`, rows[failed].source)
			rows[back] = rows[failed]
			rows[back].id, rows[back].amount = k.id("txn"), 300
			rows[disputed] = k.dispute(k.sell(methodCard, 1000, 30), 700, 1500)
			rows[reinstated] = rows[disputed]
			rows[reinstated].id, rows[reinstated].amount = k.id("txn"), 0
			c.change(rows)
			k.sql(`UPDATE payments SET due_at = NULL`)
			p := k.arriving(3, rows...)
			p.currency = rows[sold].currency
			k.there.tell(p)
			k.lookNow()
			asked := k.count(`SELECT count(*) FROM payments WHERE due_at <= ? AND polls = 0`, newStamp(time.Now()))
			due := k.count(`SELECT count(*) FROM payments WHERE due_at IS NOT NULL`)
			equal(t, name, []int{asked, due}, []int{c.looks, c.looks})
		}
	})
}

// convert has all rows of a payout be in another currency than what they are about.
func convert(rows []ledgerRow) {
	for i := range rows {
		rows[i].currency, rows[i].amount = "EUR", rows[i].amount/11
	}
}
