package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A till is a service whose account takes money by a provider that pays out, and sends it to books: both
// are in memory.
type till struct {
	*service
	there      *payoutFake
	ledger     *tillLedger
	payouts    *payouts
	provider   string
	connection string // with the provider, the last one
	books      string // the connection with the books
	serial     int    // of the provider's ids
	tests      bool   // what is paid with test keys is booked, too
}

// The accounts of a till's books.
const (
	tillCard    = "1580" // clearing of cards, and of all ways of paying unless they are told apart
	tillTwint   = "1581"
	tillFee     = "6570"
	tillTax     = "6571"
	tillDispute = "6572"
	tillTransit = "1590"
	tillCash    = "1910"
)

// A payoutFake is what a provider pays out: payouts that are told of, with rows that are read by page, or a ledger
// that schedules payouts itself.
type payoutFake struct {
	provider // what else it is asked, which nobody asks here

	mu     sync.Mutex
	told   []payoutReport
	rows   map[string][]ledgerRow // by the provider's ids of payouts
	ledger []ledgerRow            // instead of both
	page   int                    // how much it tells at once
	calls  []string
	strike func(call string) error // if not nil, may change what is told before a call, or have it fail
}

// tellsAgain is for how long a provider tells of a payout after its arrival.
const tellsAgain = 14 * 24 * time.Hour

// asked notes a call.
func (f *payoutFake) asked(call string) error {
	f.calls = append(f.calls, call)
	if f.strike == nil {
		return nil
	}
	return f.strike(call)
}

// payouts implements provider. A cursor is a place in the ledger; or a date, and the last payout of the page before.
func (f *payoutFake) payouts(
	_ context.Context, _ *unsealedConnection, cursor string, from businessDate, now time.Time,
) (*payoutNews, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.asked("payouts " + cursor); err != nil {
		return nil, err
	}
	if f.rows == nil {
		at, _ := strconv.Atoi(cursor)
		if cursor == "" { // entries have a date, whose first is where a connection begins
			at = len(f.ledger)
			first := func(r ledgerRow) bool { return r.at.Format(time.DateOnly) >= from }
			if i := slices.IndexFunc(f.ledger, first); i >= 0 {
				at = i
			}
		}
		to := min(at+f.page, len(f.ledger))
		return &payoutNews{rows: slices.Clone(f.ledger[at:to]), cursor: strconv.Itoa(to), more: to < len(f.ledger)}, nil
	}
	date, after, _ := strings.Cut(cmp.Or(cursor, from), "/")
	since := midnight(date).Add(-tellsAgain).Format(time.DateOnly)
	if cursor == "" {
		since = date
	}
	all := slices.DeleteFunc(slices.Clone(f.told), func(r payoutReport) bool {
		return r.arrival < since || r.providerID <= after
	})
	slices.SortFunc(all, func(a, b payoutReport) int { return cmp.Compare(a.providerID, b.providerID) })
	if len(all) > f.page {
		return &payoutNews{payouts: all[:f.page], cursor: date + "/" + all[f.page-1].providerID, more: true}, nil
	}
	return &payoutNews{payouts: all, cursor: now.UTC().Format(time.DateOnly)}, nil
}

// payoutRows implements provider. The cursor is the id of the last row of the page before.
func (f *payoutFake) payoutRows(
	_ context.Context, _ *unsealedConnection, payoutID, after string,
) (rows []ledgerRow, next string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.asked("rows " + payoutID + " " + after); err != nil {
		return nil, "", err
	}
	rows = slices.Clone(f.rows[payoutID])
	at := slices.IndexFunc(rows, func(r ledgerRow) bool { return r.id == after })
	if rows = rows[at+1:]; len(rows) > f.page {
		rows = rows[:f.page]
		next = rows[f.page-1].id
	}
	return rows, next, nil
}

// reserves implements provider.
func (f *payoutFake) reserves(string) time.Duration { return 7 * 24 * time.Hour }

// takeCalls returns what was asked since the last time.
func (f *payoutFake) takeCalls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// tell has the provider tell of a payout as it is now, which replaces what it has told of it before.
func (f *payoutFake) tell(p payoutReport) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(slices.DeleteFunc(f.told, func(of payoutReport) bool { return of.providerID == p.providerID }), p)
}

// A tillLedger is books in memory whose chart has all accounts of a till.
type tillLedger struct{ *demoLedger }

// chart implements ledger.
func (l *tillLedger) chart(ctx context.Context, s *ledgerSession, date businessDate) (*bookChart, error) {
	chart, err := l.demoLedger.chart(ctx, s, date)
	chart.Accounts = slices.Clone(chart.Accounts)
	for _, code := range []string{tillTwint, tillFee, tillTax, tillDispute, tillTransit, "6352"} {
		chart.Accounts = append(chart.Accounts, bookAccount{Code: code, Name: code, Usable: true})
	}
	return chart, err
}

// balance returns the balance of an account: debits less credits.
func (l *tillLedger) balance(account string) (sum int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.booked {
		for _, line := range b.Entry.Lines {
			if line.Account == account {
				sum += line.Debit - line.Credit
			}
		}
	}
	return sum
}

// newTill makes a till at a provider; see atTill. transfer says whether its books have an account of transit; alone,
// whether each way of paying has a clearing account of its own. Days and payouts are sent from the first day on.
func newTill(t testing.TB, vendor string, transfer, alone bool) *till {
	t.Helper()
	k := &till{provider: vendor, there: &payoutFake{page: 100}}
	if vendor == providerStripe {
		k.there.rows = map[string][]ledgerRow{}
	}
	k.ledger = &tillLedger{newDemoLedger("", "", time.Now)}
	k.service = newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.providers = map[string]provider{vendor: k.there}
		o.ledgers = map[string]ledger{productFortnox: k.ledger}
	})
	k.payouts = &payouts{paymentsOf(k.server)}
	k.connect()
	k.keepsBooks(transfer, alone)
	return k
}

// keepsBooks connects the account to its books, with a mapping; see newTill.
func (k *till) keepsBooks(transfer, alone bool) {
	k.t.Helper()
	k.change(func(t *tx) error {
		setBooksApp(t, k.keys, productFortnox, appSecrets{"client", "secret"})
		c, err := addBooks(t, k.keys, k.account, productFortnox, func(c *bookConnection) {
			c.Series, c.Mapping, c.MappingAt = new("W"), tillMapping(transfer, alone), t.now
			c.SendFrom, c.PayoutsFrom, c.Tests = new(bookkeeperDay), new(bookkeeperDay), k.tests
		})
		k.books = c.ID
		return err
	})
}

// tillMapping names an account for all that a till has.
func tillMapping(transfer, alone bool) *bookMapping {
	m := &bookMapping{Lines: []mappingRule{
		{Kind: ruleSales, VATRate: ptr(int64(1200)), Account: "3002", Tax: ptr("2621")},
		{Kind: ruleTip, Account: "2890"},
		{Kind: ruleDispute, Account: "6352"},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: tillCard},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodTwint), Account: tillCard},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodMobile), Account: tillCard},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCash), Account: tillCash},
		{Kind: ruleFee, Account: tillFee},
		{Kind: ruleFeeTax, Account: tillTax},
		{Kind: ruleDisputeFee, Account: tillDispute},
	}}
	if alone {
		m.clearing(methodTwint).Account = tillTwint
	}
	if transfer {
		m.Lines = append(m.Lines, mappingRule{Kind: ruleTransit, Account: tillTransit})
	}
	return m
}

// connect connects the account to the provider, with live keys.
func (k *till) connect() {
	k.t.Helper()
	c := &unsealedConnection{paymentConnection: &paymentConnection{ID: newID("con", time.Now()), AccountID: k.account,
		Provider: k.provider, Live: true, Methods: providerOf(k.provider).methods, CreatedAt: newStamp(time.Now())}}
	if providerOf(k.provider).confirms { // it is named by its unit there
		c.Name = "123456"
	}
	k.check(c.seal(k.keys))
	k.change(func(t *tx) error {
		t.addPaymentConnection(c.paymentConnection)
		return nil
	})
	k.connection = c.ID
}

// reconnect removes the connection with the provider, and connects the account once more.
func (k *till) reconnect() {
	k.t.Helper()
	k.change(func(t *tx) error { return t.removePaymentConnection(k.connection) })
	k.connect()
}

// until lets time pass until an hour of a day of January 2000, or of the months after that.
func (k *till) until(day, hour int) {
	time.Sleep(time.Until(time.Date(2000, 1, day, hour, 0, 0, 0, time.UTC)))
	synctest.Wait()
}

// id returns another id of the provider.
func (k *till) id(prefix string) string {
	k.serial++
	return prefix + "_" + strconv.Itoa(100_000+k.serial)
}

// sell writes an order whose money was captured by a method, and returns its row of the provider's ledger, less a fee.
func (k *till) sell(method string, amount, fee int64) ledgerRow {
	k.t.Helper()
	o := &order{AccountID: k.account, Currency: "SEK", ReturnURL: siteOrigin,
		Lines: []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: amount, VATRate: 1200, Group: "food"}}}
	p := &payment{AccountID: k.account, ConnectionID: k.connection,
		Provider: providerName(k.provider), Method: paymentMethod(method),
		State: paymentCaptured, Amount: amount, Captured: amount, Currency: o.Currency, IntentID: new(k.id("pi")),
		Revision: 2}
	k.change(func(t *tx) error {
		if _, err := createOrder(t, o, guest{}, maxOrderLife, actorCommand); err != nil {
			return err
		}
		p.ID, p.OrderID, p.CreatedAt, p.AuthorizedAt, p.CapturedAt = t.newID("pay"), o.ID, t.now, t.now, t.now
		paymentTable.insert(t, p)
		o.PaymentID, o.Attempts, o.AuthorizedAt, o.AcceptedAt = &p.ID, 1, t.now, t.now
		return markPaid(t, o, orderMethod(method), t.now, actorCommand)
	})
	return k.row(rowPayment, amount, fee, func(r *ledgerRow) {
		r.intentID, r.paymentID, r.source = *p.IntentID, p.ID, *p.IntentID
	})
}

// row makes a row of the provider's ledger.
func (k *till) row(category string, amount, fee int64, change ...func(r *ledgerRow)) ledgerRow {
	r := ledgerRow{id: k.id("txn"), category: category, kind: category, amount: amount, fee: fee, currency: "SEK",
		at: time.Now()}
	for _, f := range change {
		f(&r)
	}
	if k.provider == providerStripe { // which does not know our ids of refunds and captures
		r.paymentID = ""
	}
	return r
}

// orderOf returns the order that a row is about, and its payment.
func (k *till) orderOf(row ledgerRow) (orderID, paymentID string) {
	k.t.Helper()
	k.check(k.store.one(`SELECT order_id, id FROM payments WHERE intent_id = ?`, []any{row.intentID}, &orderID,
		&paymentID))
	return orderID, paymentID
}

// refund gives an amount of what a row has captured back, and returns the row of that.
func (k *till) refund(of ledgerRow, amount int64) ledgerRow {
	k.t.Helper()
	id, paymentID := k.orderOf(of)
	source := k.id("re")
	k.change(func(t *tx) error {
		if err := givesBack(t, id, newRefund{amount: &amount}); err != nil {
			return err
		}
		_, err := t.try(`UPDATE refunds SET provider_id = ? WHERE order_id = ? AND provider_id IS NULL`, source, id)
		return err
	})
	return k.row(rowRefund, -amount, 0, func(r *ledgerRow) {
		r.intentID, r.paymentID, r.source = of.intentID, paymentID, source
	})
}

// dispute has a bank take an amount of what a row has captured, or with less than 0 put it back, and returns the row
// of that. At Vipps only the row tells.
func (k *till) dispute(of ledgerRow, amount, fee int64) ledgerRow {
	k.t.Helper()
	id, paymentID := k.orderOf(of)
	if k.provider == providerStripe {
		k.change(func(t *tx) error {
			o, err := t.order(anyAccount, id)
			if err != nil {
				return err
			}
			d := &dispute{PaymentID: paymentID, ID: "dp_" + of.id, OrderID: id, Amount: max(amount, -amount),
				State: disputeOpen, OpenedAt: t.now, Taken: max(amount, 0), MovedAt: t.now}
			if amount < 0 {
				d.State, d.ClosedAt = disputeWon, t.now
			}
			t.saveDispute(d)
			t.noteRevenue(o)
			return nil
		})
	}
	return k.row(rowDispute, -amount, fee, func(r *ledgerRow) {
		r.intentID, r.paymentID, r.source = of.intentID, paymentID, "dp_"+of.id
	})
}

// arriving makes a payout of rows that arrives on a day of January.
func (k *till) arriving(day int, rows ...ledgerRow) payoutReport {
	p := payoutReport{providerID: k.id("po"), currency: "SEK", automatic: true, method: "standard",
		status: "in_transit", complete: true,
		arrival: time.Date(2000, 1, day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)}
	for i := range rows {
		p.amount += rows[i].net()
	}
	if k.provider == providerVipps {
		p.status, p.method = "payout-scheduled", ""
		k.there.mu.Lock()
		defer k.there.mu.Unlock()
		k.there.ledger = append(append(k.there.ledger, rows...),
			ledgerRow{id: p.providerID, category: "", currency: "SEK", at: time.Now(), schedules: &p})
		return p
	}
	k.there.rows[p.providerID] = rows
	k.there.tell(p)
	return p
}

// became has the provider say what came of a payout.
func (k *till) became(p payoutReport, outcome string) {
	p.status = cmp.Or(outcome, "in_transit")
	k.there.tell(p)
}

// look reads what is due of payouts.
func (k *till) look() {
	k.t.Helper()
	now := newStamp(time.Now())
	due, err := k.store.duePayouts(now, now.after(-paidAfter), 10)
	k.check(err)
	for _, id := range due {
		if err := k.payouts.read(k.t.Context(), id); err != nil {
			k.t.Logf("reading the payouts of %s: %v", id, err)
		}
	}
}

// lookNow is look as if the provider had said that there is news.
func (k *till) lookNow() {
	k.t.Helper()
	k.sql(`UPDATE payment_connections SET payouts_due_at = NULL`)
	k.look()
}

// book sends what is due to the books.
func (k *till) book() {
	k.t.Helper()
	w := newBooksWorker(booksOf(k.server))
	w.enqueue(k.t.Context())
	for range 20 {
		due, err := k.store.dueExports(k.books, newStamp(time.Now()), 1)
		if k.check(err); len(due) == 0 {
			return
		}
		k.check(w.export(k.t.Context(), k.books))
	}
	k.t.Fatal("exports stay due")
}

// payout returns what is kept of a payout.
func (k *till) payout(p payoutReport) *payout {
	k.t.Helper()
	row, err := k.store.payoutOf(k.account, k.provider, p.providerID)
	k.check(err)
	if row == nil {
		k.t.Fatalf("there is no payout %s", p.providerID)
	}
	return row
}

// is requires a payout to be in a state, for a reason or for none, and returns it.
func (k *till) is(p payoutReport, state string, reason ...string) *payout {
	k.t.Helper()
	row, want := k.payout(p), strings.Join(reason, "")
	if string(row.State) != state || string(valueOr(row.Reason, "")) != want {
		k.t.Fatalf("the payout is %s %q, want %s %q", row.State, valueOr(row.Reason, ""), state, want)
	}
	return row
}

// exports returns the exports of a part of a payout, oldest first.
func (k *till) exports(p payoutReport, part bookPart) []bookExport {
	k.t.Helper()
	all, err := exportTable.all(k.store.queries, `WHERE x.payout_id = ? AND x.part = ? ORDER BY x.revision`,
		k.payout(p).ID, part)
	k.check(err)
	return all
}

// booked requires a payout to have one export, in a state, for a reason or for none, and returns it.
func (k *till) booked(p payoutReport, part bookPart, state bookExportState, reason ...string) *bookExport {
	k.t.Helper()
	all, want := k.exports(p, part), strings.Join(reason, "")
	if len(all) != 1 || all[0].State != state || valueOr(all[0].Reason, "") != want {
		k.t.Fatalf("the exports of %s of the payout are %s, want one that is %s %q", part, encodeJSON(all), state, want)
	}
	return &all[0]
}

// atTill runs a test with a till in a bubble, whose clock begins at noon of 2000-01-01, UTC.
func atTill(t *testing.T, vendor string, transfer bool, f func(k *till)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := newTill(t, vendor, transfer, false)
		k.until(1, 12)
		f(k)
	})
}
