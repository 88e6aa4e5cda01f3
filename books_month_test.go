package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// A month of a restaurant: orders by all methods, refunds of all kinds, disputes, and the books of each day,
// reconciled to the cent by an oracle that knows only what was ordered and what was given back.

// A monthDay is what the oracle has counted on a business day.
type monthDay struct{ sales, delivery, tips, refunds, disputes, vat, cards, cash int64 }

// A monthOrder is what the oracle knows of an order.
type monthOrder struct {
	id                   string
	online               bool
	taxed, delivery, tip int64 // delivery is part of taxed
	line, given, tipBack int64 // line: of the first one; given of taxed
	disputed             int64
}

// A month is what happens in one.
type month struct {
	*bookkeeper
	random      *rand.Rand
	connections map[string]*paymentConnection // by ways of paying; the others are paid outside
	days        map[businessDate]*monthDay
	orders      []*monthOrder
}

// vatOf is the VAT in a gross amount, rounded half up.
func (m *month) vatOf(gross int64) int64 {
	return (2*gross*m.rate + 10_000 + m.rate) / (2 * (10_000 + m.rate))
}

// today is the present business day. All of it happens between its cut-offs.
func (m *month) today() *monthDay {
	date := time.Now().UTC().Format(time.DateOnly)
	if m.days[date] == nil {
		m.days[date] = &monthDay{}
	}
	return m.days[date]
}

// moves counts money that came from a guest, or went back.
func (m *month) moves(o *monthOrder, amount int64) {
	if o.online {
		m.today().cards += amount
	} else {
		m.today().cash += amount
	}
}

// sell has a guest order something and pay it.
func (m *month) sell(method string) {
	m.t.Helper()
	price, units := 450+m.random.Int64N(3000), 1+m.random.Int64N(3)
	drink, delivery := m.random.Int64N(2)*(299+m.random.Int64N(900)), m.random.Int64N(2)*690
	tip := m.random.Int64N(3) * 155
	row := &order{AccountID: m.account, Currency: m.currency, ReturnURL: siteOrigin, Delivery: delivery,
		DeliveryRate: m.rate, Tip: tip, Lines: []orderLine{
			{Name: "Menu", Quantity: units, UnitAmount: price, VATRate: m.rate, Group: "food"},
			{Name: "Drink", Quantity: 1, UnitAmount: drink, VATRate: m.rate}}}
	m.change(func(t *tx) error { return m.pays(t, row, method) })
	o := &monthOrder{id: row.ID, online: m.connections[method] != nil, taxed: price*units + drink + delivery,
		delivery: delivery, tip: tip, line: price * units}
	m.orders = append(m.orders, o)
	day := m.today()
	day.sales, day.delivery, day.tips = day.sales+price*units+drink, day.delivery+delivery, day.tips+tip
	day.vat += m.vatOf(o.taxed)
	m.moves(o, o.taxed+tip)
}

// pays writes an order that is paid at once.
func (m *month) pays(t *tx, o *order, method string) error {
	if _, err := createOrder(t, o, guest{}, maxOrderLife, actorCommand); err != nil {
		return err
	}
	connection := m.connections[method]
	if connection == nil {
		return markPaid(t, o, orderMethod(method), t.now, actorCommand)
	}
	paid := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: connection.ID,
		Provider: providerName(connection.Provider), Method: paymentMethod(method),
		State: paymentCaptured, Amount: o.Total, Captured: o.Total,
		Currency: o.Currency, CreatedAt: t.now, AuthorizedAt: t.now, CapturedAt: t.now, CheckedAt: t.now,
		Revision: 2} // as if it had been written when it began, and when it was paid
	paymentTable.insert(t, paid)
	o.PaymentID, o.Attempts, o.AuthorizedAt, o.AcceptedAt = &paid.ID, 1, t.now, t.now
	return markPaid(t, o, orderMethod(method), t.now, actorCommand)
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

// giveBack gives a part of an order back, which is taxed, and a part of its tip.
func (m *month) giveBack(o *monthOrder, w newRefund, taxed, tip int64) {
	m.t.Helper()
	m.change(func(t *tx) error { return givesBack(t, o.id, w) })
	day, vat := m.today(), m.vatOf(o.given+taxed)-m.vatOf(o.given)
	o.given, o.tipBack = o.given+taxed, o.tipBack+tip
	day.refunds, day.vat = day.refunds+taxed+tip, day.vat-vat
	m.moves(o, -taxed-tip)
}

// refund gives something of an order back, in one of all ways: parts of it once, or all that is left.
func (m *month) refund(o *monthOrder) {
	m.t.Helper()
	amount := 1 + m.random.Int64N(o.line)
	switch kind := m.random.IntN(4); {
	case o.disputed > 0 || o.given == o.taxed && o.tipBack == o.tip:
	case kind == 0 || o.given > 0 || o.tipBack > 0:
		m.giveBack(o, newRefund{}, o.taxed-o.given, o.tip-o.tipBack)
	case kind == 1 && o.delivery > 0:
		m.giveBack(o, newRefund{delivery: o.delivery, tip: o.tip}, o.delivery, o.tip)
	case kind == 2 && o.tip > 0:
		m.giveBack(o, newRefund{tip: o.tip - 1}, 0, o.tip-1)
	default:
		m.giveBack(o, newRefund{lines: []linePart{{Amount: amount}}}, amount, 0)
	}
}

// dispute has the bank say something of an order: what it has taken now counts.
func (m *month) dispute(o *monthOrder, state string, taken int64) {
	m.t.Helper()
	m.change(func(t *tx) error {
		row, err := t.order(anyAccount, o.id)
		if err != nil {
			return err
		}
		d := &dispute{PaymentID: *row.PaymentID, ID: "du_" + o.id, OrderID: o.id, Amount: row.Total,
			State:    disputeState(state),
			OpenedAt: t.now, Taken: taken, MovedAt: t.now}
		if state == disputeWon || state == disputeLost {
			d.ClosedAt = t.now
		}
		t.saveDispute(d)
		return nil
	})
	m.today().disputes += taken - o.disputed
	m.moves(o, o.disputed-taken)
	o.disputed = taken
}

// opens has a day go by: its orders, refunds of it and of earlier days, and what banks say of earlier ones.
func (m *month) opens(day, orders int) {
	m.t.Helper()
	methods := []string{methodCard, methodMobile, methodTwint, methodCash, methodTerminal, methodVoucher, methodOther}
	for n := range orders {
		m.sell(methods[(day+n)%len(methods)])
	}
	for range 1 + orders/8 {
		m.refund(m.orders[m.random.IntN(len(m.orders))])
	}
	asked := m.orders[day*orders] // of a day that begins with a card, mobile or TWINT
	if asked.online && asked.given+asked.tipBack == 0 {
		m.dispute(asked, disputeInquiry, 0)
	}
	if before := day - 2; before >= 0 {
		if o := m.orders[before*orders]; o.online && o.given+o.tipBack == 0 {
			m.dispute(o, disputeOpen, o.taxed+o.tip)
		}
	}
	if before := day - 4; before >= 0 && m.orders[before*orders].disputed > 0 {
		o := m.orders[before*orders]
		if day%2 == 0 {
			m.dispute(o, disputeWon, 0)
		} else {
			m.dispute(o, disputeLost, o.disputed)
		}
	}
	m.recordRevenue()
}

// daysAgree compares the revenue of each day with what the oracle has counted.
func (m *month) daysAgree() (sum monthDay) {
	m.t.Helper()
	for date, want := range m.days {
		day := m.get("/revenue/days/"+date, m.accountant()).is(200).json()
		totals := day["days"].([]any)[0].(map[string]any)["totals"].(map[string]any)
		got := fmt.Sprint(totals["sales"], totals["delivery"], totals["tips"], totals["refunds"], totals["disputes"],
			totals["total"], totals["vat"])
		money := want.cards + want.cash
		expected := fmt.Sprint(float64(want.sales), float64(want.delivery), float64(want.tips), float64(want.refunds),
			float64(want.disputes), float64(money), float64(want.vat))
		equal(m.t, "the revenue of "+date, got, expected)
		if want.sales+want.delivery+want.tips-want.refunds-want.disputes != money {
			m.t.Errorf("the oracle contradicts itself: %+v", want)
		}
		sum.cards, sum.cash, sum.vat = sum.cards+want.cards, sum.cash+want.cash, sum.vat+want.vat
		sum.disputes += want.disputes
	}
	return sum
}

// accounts adds up what the books have on each account, debits above 0.
func (m *month) accounts() map[string]int64 {
	on := map[string]int64{}
	for _, v := range m.fortnox.vouchers() {
		for _, row := range v.rows {
			if !row.removed {
				on[strconv.FormatInt(row.account, 10)] += row.debit - row.credit
			}
		}
	}
	for _, j := range m.xero.journals() {
		for _, l := range j.lines {
			on[l.account] += l.amount // VAT included
		}
	}
	return on
}

// Against a guest's late refund, or a provider's late report, who would change a day that is in the books: a frozen
// day takes nothing more; late facts count on the open day.
func TestBooks_ofAMonthOfARestaurantAgreeToTheCent(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, product := range []string{productXero, productFortnox} {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &month{bookkeeper: newBookkeeper(t, product), random: random(t, 9),
					days: map[businessDate]*monthDay{}}
				m.pass()
			})
		})
	}
}

// pass has the month pass, and compares both books with the oracle.
func (m *month) pass() {
	m.t.Helper()
	m.connections = map[string]*paymentConnection{}
	for method, provider := range map[string]string{methodCard: providerStripe, methodMobile: providerVipps} {
		c := &unsealedConnection{&paymentConnection{ID: newID("con", time.Now()), AccountID: m.account,
			Provider: provider, Live: true, CreatedAt: newStamp(time.Now()), Methods: providerOf(provider).methods},
			connectionSecrets{Key: "rk_live_month"}}
		m.check(c.seal(m.keys))
		m.change(func(t *tx) error {
			t.addPaymentConnection(c.paymentConnection)
			return nil
		})
		m.connections[method] = c.paymentConnection
	}
	m.connections[methodTwint] = m.connections[methodCard]
	cards, cash, sales, tips, disputes, vat := "600", "602", "200", "220", "480", ""
	if m.product == productFortnox {
		cards, cash, sales, tips, disputes, vat = "1580", "1910", "3002", "2890", "6352", "2621"
	}
	m.remap(func(b *bookMapping) {
		for _, method := range []bookPayMethod{methodMobile, methodTwint} {
			b.Lines = append(b.Lines, mappingRule{Kind: rulePayment, Method: &method, Account: cards})
		}
		for _, method := range []bookPayMethod{methodTerminal, methodVoucher, methodOther} {
			b.Lines = append(b.Lines, mappingRule{Kind: rulePayment, Method: &method, Account: cash})
		}
	})
	m.set(func(c *bookConnection) { c.Outside = true })
	m.sendFrom(bookkeeperDay)
	days := size(6, 30)
	for day := range days {
		m.opens(day, size(12, 24))
		m.time(6 * time.Hour)
		m.time(12 * time.Hour) // after the cut-off and its grace
		m.work(time.Hour)
		m.time(5 * time.Hour)
	}
	m.time(24 * time.Hour)
	m.work(time.Hour)
	posted := 0
	for _, x := range m.exports() {
		if x.State != exportPosted {
			m.t.Errorf("the export of %s is %s: %s", x.Date, x.State, valueOr(x.Detail, ""))
		}
		posted++
	}
	equal(m.t, "days in the books", posted, len(m.days))
	sum := m.daysAgree()
	tip := int64(0)
	for _, o := range m.orders {
		tip += o.tip - o.tipBack
	}
	sold := sum.cards + sum.cash + sum.disputes - tip // VAT included
	want := map[string]int64{cards: sum.cards, cash: sum.cash, tips: -tip, disputes: sum.disputes, sales: -sold}
	if vat != "" {
		want[vat], want[sales] = -sum.vat, sum.vat-sold
	}
	got := m.accounts()
	for account, amount := range want {
		equal(m.t, "account "+account, got[account], amount)
	}
	equal(m.t, "accounts in the books", len(got), len(want))
}
