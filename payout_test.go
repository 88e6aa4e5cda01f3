package main

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPayout_isHeldForTheFirstReasonThatApplies(t *testing.T) {
	t.Parallel()
	fits := payoutSum{Category: rowPayment, Items: 2, Amount: 1000, Fee: 30, Net: 970}
	of := func(category string) payoutSum { return payoutSum{Category: payoutCategory(category), Items: 1} }
	foreign, shared, other := of(rowPayment), of(rowPayment), of(rowPayment)
	foreign.foreign, shared.shared, other.converted = 1, 1, 1
	cent := of(rowFee)
	cent.Fee, cent.Net = 1, -1
	tests := []struct {
		what        string
		state       string
		sums        []payoutSum
		unconfirmed bool
		want        string
	}{
		{"adds up", payoutReading, []payoutSum{fits}, false, ""},
		{"a reserve, a fee and one that came back", payoutReading,
			[]payoutSum{fits, of(rowReserve), of(rowFee), of(rowReturned), of(rowDispute), of(rowRefund)}, false, ""},
		{"a cent", payoutReading, []payoutSum{fits, cent, of(rowUnknown), foreign}, true, heldDiffers},
		{"nothing is listed", payoutReading, nil, false, heldDiffers},
		{"unknown", payoutReading, []payoutSum{fits, of(rowUnknown), of(rowCorrection), foreign, other}, true,
			heldUnknownRow},
		{"corrected", payoutReading, []payoutSum{fits, of(rowCorrection), foreign, other}, true, heldCorrection},
		{"foreign", payoutReading, []payoutSum{fits, foreign, other}, true, heldForeign},
		{"foreign, and of another shop", payoutReading, []payoutSum{fits, shared, foreign, other}, true, heldForeign},
		{"of another shop", payoutReading, []payoutSum{fits, shared, other}, true, heldShared},
		{"another currency", payoutReading, []payoutSum{fits, other}, true, heldCurrency},
		{"not confirmed", payoutReading, []payoutSum{fits}, true, heldUnconfirmed},
		{"nothing at all", payoutReading, nil, true, heldDiffers},
	}
	for _, c := range tests {
		p := &payout{State: payoutState(c.state), Amount: 970}
		if got := p.judge(c.sums, !c.unconfirmed); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	seen := []string{heldOpaque} // which nothing has to be read for
	for _, c := range tests {
		if c.want != "" && !slices.Contains(seen, c.want) {
			seen = append(seen, c.want)
		}
	}
	for _, h := range payoutHolds {
		if !slices.Contains(seen, h.reason) {
			t.Errorf("nothing is held for %s", h.reason)
		}
	}
}

// linesText returns the lines of an entry: "1580 -120 6570 120".
func linesText(entry *bookEntry) string {
	if entry == nil {
		return ""
	}
	var text []string
	for _, l := range entry.Lines {
		text = append(text, fmt.Sprint(l.Account, " ", l.Debit-l.Credit))
	}
	slices.Sort(text)
	return strings.Join(text, ", ")
}

func TestPayout_entryHasWhatLeavesTheClearingAccounts(t *testing.T) {
	t.Parallel()
	card, twint := ptr[payoutMethod](methodCard), ptr[payoutMethod](methodTwint)
	sum := func(category payoutCategory, method *payoutMethod, amount, fee, tax int64) payoutSum {
		return payoutSum{Category: category, Method: method, Items: 1, Amount: amount, Fee: fee, Tax: tax,
			Net: amount - fee - tax}
	}
	sold := []payoutSum{sum(rowPayment, card, 1000, 20, 4), sum(rowPayment, twint, 500, 10, 0)}
	with := func(more ...payoutSum) []payoutSum { return append(slices.Clone(sold), more...) }
	tests := []struct {
		what            string
		sums            []payoutSum
		transfer, alone bool
		status          string // of one that has ended
		lacks           string // a kind of rule
		want, held      string
	}{
		{what: "fees", sums: sold, want: "1580 -10, 1580 -20, 1580 -4, 6570 30, 6571 4"},
		{what: "fees, told apart", sums: sold, alone: true, want: "1580 -20, 1580 -4, 1581 -10, 6570 30, 6571 4"},
		{what: "nothing", sums: []payoutSum{sum(rowPayment, card, 700, 0, 0)}},
		{what: "transfer", sums: sold, transfer: true,
			want: "1580 -10, 1580 -20, 1580 -4, 1580 -490, 1580 -976, 1590 1466, 6570 30, 6571 4"},
		{what: "transfer, told apart", sums: sold, transfer: true, alone: true,
			want: "1580 -20, 1580 -4, 1580 -976, 1581 -10, 1581 -490, 1590 1466, 6570 30, 6571 4"},
		{what: "negative", sums: []payoutSum{sum(rowRefund, card, -900, 0, 0), sum(rowPayment, card, 100, 3, 0)},
			transfer: true, want: "1580 -3, 1580 803, 1590 -803, 6570 3"},
		{what: "the fee of a dispute", sums: []payoutSum{sum(rowDispute, card, -1000, 1500, 0)},
			want: "1580 -1500, 6572 1500"},
		{what: "the fee of a dispute is given back", sums: with(sum(rowDispute, card, 1000, -1500, 0)),
			want: "1580 -10, 1580 -20, 1580 -4, 1580 1500, 6570 30, 6571 4, 6572 -1500"},
		{what: "one of each that is even", sums: []payoutSum{sum(rowDispute, card, -1000, 1500, 0),
			sum(rowDispute, card, 1000, -1500, 0)}},
		{what: "a fee of its own", sums: with(sum(rowFee, nil, 0, 200, 50)),
			want: "1580 -10, 1580 -20, 1580 -200, 1580 -4, 1580 -50, 6570 230, 6571 54"},
		{what: "a fee of its own, told apart", sums: with(sum(rowFee, nil, 0, 200, 50)), alone: true,
			held: heldNoMethod},
		{what: "a reserve", sums: with(sum(rowReserve, nil, -300, 0, 0)), transfer: true,
			want: "1580 -10, 1580 -20, 1580 -4, 1580 -490, 1580 -976, 1580 300, 1590 1166, 6570 30, 6571 4"},
		{what: "a reserve, told apart", sums: with(sum(rowReserve, nil, -300, 0, 0)), transfer: true, alone: true,
			held: heldNoMethod},
		{what: "a payout that came back", sums: with(sum(rowReturned, twint, 77, 0, 0)), transfer: true, alone: true,
			want: "1580 -20, 1580 -4, 1580 -976, 1581 -10, 1581 -567, 1590 1543, 6570 30, 6571 4"},
		{what: "failed", sums: sold, transfer: true, status: payoutFailed,
			want: "1580 -10, 1580 -20, 1580 -4, 6570 30, 6571 4"},
		{what: "canceled", sums: sold, transfer: true, status: payoutCanceled,
			want: "1580 -10, 1580 -20, 1580 -4, 6570 30, 6571 4"},
		{what: "no account of fees", sums: sold, lacks: ruleFee, held: heldUnmapped},
		{what: "no account of tax", sums: sold, lacks: ruleFeeTax, held: heldUnmapped},
		{what: "no account of tax, and no tax", sums: sold[1:], lacks: ruleFeeTax, want: "1580 -10, 6570 10"},
		{what: "no account of the fees of disputes", sums: with(sum(rowDispute, card, 0, 1, 0)), lacks: ruleDisputeFee,
			held: heldUnmapped},
		{what: "no clearing account", sums: sold, lacks: methodTwint, held: heldUnknownPayment},
		{what: "no mapping", sums: sold, lacks: "all", held: heldUnmapped},
	}
	for _, c := range tests {
		conn := &bookConnection{Product: productFortnox, Series: new("W"), Mapping: tillMapping(c.transfer, c.alone)}
		conn.Mapping.Lines = slices.DeleteFunc(conn.Mapping.Lines, func(r mappingRule) bool {
			return c.lacks != "" && (string(r.Kind) == c.lacks || string(valueOr(r.Method, "")) == c.lacks)
		})
		if c.lacks == "all" {
			conn.Mapping = nil
		}
		p := &payout{Provider: providerStripe, Currency: "SEK"}
		if p.Status = c.status; c.status != "" {
			p.EndedAt = newStamp(time.Now())
		}
		entry, issues := buildPayout(conn, p, "2000-01-02", "widgetd:key", c.sums)
		held := ""
		if len(issues) > 0 {
			held = string(issues[0].Reason)
		}
		if got := linesText(entry); got != c.want || held != c.held {
			t.Errorf("%s: %q %v, want %q %q", c.what, got, issues, c.want, c.held)
		}
		for _, l := range valueOr(entry, bookEntry{}).Lines {
			if transit := strings.Contains(l.Text, payoutTexts[ruleTransit][1:]); l.Transfer != transit {
				t.Errorf("%s: %q is marked as transfer: %v", c.what, l.Text, l.Transfer)
			}
		}
	}
}

func TestPayout_isReadByPageAndGoesOnAfterAStop(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		k.there.page = 3
		var rows []ledgerRow
		for i := range 8 {
			rows = append(rows, k.sell(methodCard, int64(1000+i), 30))
		}
		p := k.arriving(3, rows...)
		stops := 0
		k.there.strike = func(call string) error {
			if strings.HasPrefix(call, "rows") && stops < 2 {
				stops++
				return &outboundError{reason: outboundTimeout}
			}
			return nil
		}
		for range 3 { // a program stops, and another one begins
			k.look()
			k.sql(`UPDATE payment_connections SET payouts_due_at = NULL, payouts_failing = NULL`)
			k.payouts = &payouts{paymentsOf(k.server)}
		}
		row := k.is(p, payoutReady)
		equal(t, "rows", row.Items, 8)
		equal(t, "amount", row.Amount, 8*1000+28-8*30)
		equal(t, "fees", row.Fee, 240)
		calls := k.there.takeCalls()
		first := "rows " + p.providerID + " "
		want := []string{"payouts ", first, first, first, first + rows[2].id, first + rows[5].id, "payouts 2000-01-01"}
		equal(t, "calls", calls, want)
	})
}

// Each page is on the disk with the cursor of the next one: what another process has read meanwhile is not read again.
func TestPayout_pageThatSomebodyElseHasReadIsLeft(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		k.there.page = 2
		rows := []ledgerRow{k.sell(methodCard, 100, 1), k.sell(methodCard, 200, 2), k.sell(methodCard, 300, 3),
			k.sell(methodCard, 400, 4), k.sell(methodCard, 500, 5)}
		p := k.arriving(3, rows...)
		other := &payouts{paymentsOf(k.server)}
		read := 0
		k.there.strike = func(call string) error {
			if read++; read == 3 { // of the second page of rows
				k.there.mu.Unlock()
				defer k.there.mu.Lock()
				return other.read(k.t.Context(), k.connection)
			}
			return nil
		}
		k.look()
		equal(t, "rows", k.is(p, payoutReady).Items, 5)
		if n := k.count(`SELECT count(*) FROM payout_items`); n != 5 {
			t.Errorf("%d rows are kept", n)
		}
	})
}

func TestPayout_thatIsHeldIsReadAgainOnceADay(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		rows := []ledgerRow{k.sell(methodCard, 1000, 30), k.sell(methodCard, 500, 15)}
		p := k.arriving(3, rows...)
		p.status = payoutPaid
		k.there.tell(p)
		k.there.rows[p.providerID] = rows[:1]
		hook := k.webhookEvents()
		k.look()
		first := k.is(p, payoutPaid, heldDiffers)
		contains(t, k.status(), "1 payout does not add up, the first since ")
		k.there.takeCalls()
		k.until(1, 15)
		k.lookNow() // the provider has news, but it was read just now
		equal(t, "calls", k.there.takeCalls(), []string{"payouts 2000-01-01"})
		k.until(2, 17)
		k.look()
		again := []string{"payouts 2000-01-01", "rows " + p.providerID + " ", "payouts 2000-01-02"}
		equal(t, "calls", k.there.takeCalls(), again)
		k.is(p, payoutPaid, heldDiffers)
		k.until(3, 20)
		k.there.rows[p.providerID] = rows
		k.book()
		k.booked(p, partPayout, exportHeld, heldDiffers)
		k.look()
		second := k.is(p, payoutPaid)
		if !second.ReadAt.After(first.ReadAt.Time) || second.Items != 2 {
			t.Errorf("it has %d rows, read at %s", second.Items, second.ReadAt)
		}
		k.book()
		k.posted(p, partPayout, "1580 -45, 6570 45")
		k.until(4, 23)
		k.look() // what is booked is not read again
		k.there.takeCalls()
		k.until(6, 3)
		k.look()
		equal(t, "calls", k.there.takeCalls(), []string{"payouts 2000-01-04"})
		equal(t, "events", hook(), []string{"payout.paid", "payout.held"})
	})
}

// webhookEvents returns a function that returns the types of the events of payouts since then.
func (k *till) webhookEvents() func() []string {
	before := k.count(`SELECT coalesce(max(seq), 0) FROM events`)
	return func() []string {
		types, err := k.store.texts(`SELECT type FROM events WHERE seq > ? AND type LIKE 'payout.%' ORDER BY seq`,
			before)
		k.check(err)
		return types
	}
}

// status returns what the status command prints.
func (k *till) status() string {
	k.t.Helper()
	return k.must("status", "-db", k.store.path, "-key", k.keyFile())
}

// posted requires a part of a payout to be in the books once, with lines; see linesText.
func (k *till) posted(p payoutReport, part bookPart, lines string) {
	k.t.Helper()
	equal(k.t, "the lines of "+string(part), linesText(k.sent(k.booked(p, part, exportPosted))), lines)
}

// sent returns the entry of an export, as it was sent.
func (k *till) sent(x *bookExport) *bookEntry {
	k.t.Helper()
	entry, err := x.sentEntry()
	k.check(err)
	return entry
}

func TestPayout_keysThatMayNotReadItLeavePaymentsAlone(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		p := k.arriving(3, k.sell(methodCard, 1000, 30))
		denied := &outboundError{outcome: vendorDenied, status: 403, reason: "http_403"}
		k.there.strike = func(string) error { return denied }
		k.look()
		c, err := k.store.paymentConnection(anyAccount, k.connection)
		if k.check(err); !c.FailingSince.IsZero() {
			t.Error("the connection's keys count as refused")
		}
		k.sell(methodCard, 1000, 30) // payments go on
		contains(t, k.status(),
			"1 payment connection does not tell what it pays out: 'widgetd payment check "+k.connection+"'")
		k.until(2, 10)
		k.look()
		equal(t, "calls", k.there.takeCalls(), []string{"payouts "})
		k.there.strike = nil
		k.until(2, 16)
		k.look()
		k.is(p, payoutReady)
		lacks(t, k.status(), "does not tell what it pays out")
	})
}

func TestPayout_providerThatDoesNotAnswerIsAskedInAnHour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failed *outboundError
		before time.Duration // it is not asked until then
		then   time.Duration // it was asked by then
	}{
		{&outboundError{reason: outboundTimeout}, 59 * time.Minute, 80 * time.Minute},
		{&outboundError{status: 500, reason: "http_500"}, 59 * time.Minute, 80 * time.Minute},
		{&outboundError{outcome: vendorBusy, status: 429, reason: "http_429", wait: time.Minute}, 59 * time.Minute,
			80 * time.Minute},
		{&outboundError{outcome: vendorBusy, status: 429, reason: "http_429", wait: 5 * time.Hour}, 5 * time.Hour,
			6 * time.Hour},
		{&outboundError{outcome: vendorRefused, status: 400, reason: "http_400"}, 22 * time.Hour, 26 * time.Hour},
	} {
		t.Run(fmt.Sprint(c.failed.reason, " ", c.failed.wait), func(t *testing.T) {
			t.Parallel()
			atTill(t, providerStripe, false, func(k *till) {
				k.there.strike = func(string) error { return c.failed }
				k.look()
				k.there.strike = nil
				k.there.takeCalls()
				time.Sleep(c.before)
				k.look()
				equal(t, "calls too early", k.there.takeCalls(), nil)
				time.Sleep(c.then - c.before)
				k.look()
				equal(t, "calls", k.there.takeCalls(), []string{"payouts "})
			})
		})
	}
}

// Vipps asks not to be asked in the first ten minutes of an hour.
func TestPayout_providerThatDoesNotTellWhatIsInOneTellsOfTheOthers(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		first, then := k.arriving(2, k.sell(methodCard, 1000, 30)), k.arriving(2, k.sell(methodCard, 500, 15))
		k.there.strike = func(call string) error {
			if strings.HasPrefix(call, "rows "+first.providerID) {
				return &outboundError{outcome: vendorRefused, status: 400, reason: "invalid_request_error"}
			}
			return nil
		}
		k.look()
		k.is(first, payoutReady, heldOpaque)
		k.is(then, payoutReady)
		k.there.strike = nil
		k.until(2, 15)
		k.look()
		k.is(first, payoutReady)
		equal(t, "rows", k.payout(first).Items, 1)
	})
}

func TestPayout_nobodyIsAskedAtTheBeginningOfAnHour(t *testing.T) {
	t.Parallel()
	at := func(minute int) stamp { return newStamp(time.Date(2026, 11, 26, 12, minute, 30, 0, time.UTC)) }
	for minute := range 60 {
		if got := outsideQuiet(at(minute)); got.Minute() < quietMinutes || got.Before(at(minute).Time) {
			t.Errorf("at minute %d: %s", minute, got)
		}
	}
}

// Vipps tells that a payout is scheduled, and never that it has arrived: the first is compared with the bank.
func TestPayout_waitsUntilOneOfItsConnectionIsConfirmed(t *testing.T) {
	t.Parallel()
	atTill(t, providerVipps, true, func(k *till) {
		first := k.arriving(1, k.sell(methodMobile, 1000, 0), k.row(rowFee, 0, 15))
		k.look()
		contains(t, k.status(), "1 payout waits to be compared with the bank "+
			"since 2000-01-01: 'widgetd payout confirm "+k.payout(first).ID+"'")
		k.until(2, 12)
		second := k.arriving(2, k.sell(methodMobile, 700, 0))
		k.sell(methodMobile, 1, 0)
		k.there.ledger = append(k.there.ledger, k.sell(methodMobile, 300, 0))
		k.lookNow()
		k.book()
		k.is(first, payoutReady, heldUnconfirmed)
		k.booked(first, partPayout, exportHeld, heldUnconfirmed)
		for range 2 { // twice is once
			k.change(func(t *tx) error { return confirmPayout(t, anyAccount, k.payout(first).ID) })
		}
		k.until(3, 12)
		k.book()
		k.is(second, payoutReady)
		k.posted(first, partPayout, "1580 -1000, 1580 -15, 1580 15, 1590 985, 6570 15")
		time.Sleep(heldRecheck)
		k.book()
		k.posted(second, partPayout, "1580 -700, 1590 700")
		k.until(4, 12)
		third := k.arriving(4, k.sell(methodMobile, 50, 0))
		k.there.ledger[len(k.there.ledger)-1].schedules.amount += 300 // with what was left
		k.lookNow()
		k.is(third, payoutReady)
	})
}

// addPayout has the provider pay out what an order that was paid has brought, less a fee of 1.08, three days ago.
// change changes what it says of the payout, or its rows.
func (s *service) addPayout(o *order, change ...func(told *payoutReport, rows *[]ledgerRow)) (row *payout) {
	s.t.Helper()
	now := s.server.now()
	rows := []ledgerRow{{id: "txn_" + o.ID[4:], category: rowPayment, kind: "charge", amount: o.OrderedTotal, fee: 108,
		currency: o.Currency, at: now, paymentID: *o.PaymentID, source: "ch_" + o.ID}}
	told := payoutReport{providerID: "po_" + o.ID, currency: o.Currency, automatic: true, method: "standard",
		arrival: now.AddDate(0, 0, -3).Format(time.DateOnly), status: payoutPaid, complete: true}
	for _, r := range rows {
		told.amount += r.net()
	}
	for _, f := range change {
		f(&told, &rows)
	}
	s.change(func(t *tx) error {
		p, err := t.payment(*o.PaymentID)
		if err != nil {
			return err
		}
		c, err := t.paymentConnection(anyAccount, p.ConnectionID)
		if err != nil {
			return err
		}
		if err := adoptPayout(t, c, &told); err != nil {
			return err
		}
		row, err = t.payoutOf(o.AccountID, c.Provider, told.providerID)
		if err == nil && row.State == payoutReading {
			err = new(payouts).addPage(t, row, rows, "")
		}
		return err
	})
	return row
}

// Against an application with books:write alone that learns amounts of payouts, and against the id of a payout of
// another account.
func TestPayoutHTTP_isPreviewedAndSentByItsID(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		mapping := k.mapping()
		for _, kind := range []bookMappingKind{ruleFee, ruleFeeTax, ruleDisputeFee, ruleTransit} {
			account := mapping.clearing(methodCard).Account
			mapping.Lines = append(mapping.Lines, mappingRule{Kind: kind, Account: account})
		}
		k.asked("GET", at+"/mapping", "").is(200).contains(`"warnings":[]`)
		want := map[string]string{productXero: "Another connector of the payment provider",
			productFortnox: "Fortnox' own product for Stripe"}[k.product]
		body := string(encodeJSON(mapping))
		k.asked("PUT", at+"/mapping", body).is(200).contains(`"warnings":["` + want + " would book ")
		k.asked("GET", at+"/mapping", "").is(200).contains(want)
		k.set(func(c *bookConnection) { c.Tests = true })
		k.sql(`DELETE FROM books_switches`) // since ever

		o := anOrder(k.account)
		o.Currency = k.currency
		k.addOrder(o)
		k.change(func(t *tx) error { return bringTo(t, o, orderPaid) })
		p := k.addPayout(o)
		preview := at + "/payouts/" + p.ID + "/preview"
		k.asked("GET", preview, "").is(200).contains(`"reason":"day_not_posted"`, `"final":true`, `"entry":null`)
		x := k.asked("POST", at+"/exports", `{"payout":"`+p.ID+`"}`).is(200).contains(`"payout_id":"`+p.ID+`"`,
			`"part":"payout"`, `"date":"`+*p.ArrivalDate+`"`, ":payout:stripe:po_"+o.ID+`:r1"`).body
		equal(t, "the export", k.asked("POST", at+"/exports", `{"payout":"`+p.ID+`"}`).is(200).body, x)
		for wrong, why := range map[string]string{`"payout":"` + p.ID + `","date":"` + bookkeeperDay + `"`: "not_both",
			`"payout":"` + o.ID + `"`: "invalid_id", ``: "required"} {
			k.asked("POST", at+"/exports", "{"+wrong+"}").is(422, "validation_failed").contains(`"code":"` + why + `"`)
		}
		unread := k.addPayout(o, func(told *payoutReport, _ *[]ledgerRow) {
			told.providerID, told.complete = "po_2", false
		})
		k.asked("POST", at+"/exports", `{"payout":"`+unread.ID+`"}`).is(409, "payout_state")
		k.asked("GET", at+"/payouts/"+unread.ID+"/preview", "").is(200).contains(`"final":false`)

		foreign := anOrder(k.addAccount("Another"))
		foreign.ReturnURL = "https://another.example/thanks"
		k.change(func(t *tx) error {
			originTable.insert(t, &originRow{"https://another.example", foreign.AccountID, t.now})
			return nil
		})
		k.addOrder(foreign)
		k.change(func(t *tx) error { return bringTo(t, foreign, orderPaid) })
		other := k.addPayout(foreign)
		k.asked("POST", at+"/exports", `{"payout":"`+other.ID+`"}`).is(404, "payout_not_found")
		k.asked("GET", at+"/payouts/"+other.ID+"/preview", "").is(404, "payout_not_found")
		auth := "Authorization: Bearer " + k.token(k.account, scopeBooks)
		k.get("/books/connections"+preview, auth).is(403, "insufficient_scope")
		k.get("/payouts", auth).is(403, "insufficient_scope")

		k.asked("PATCH", at, `{"payouts_from":"1999-12-01"}`).is(422, "validation_failed").contains("/payouts_from")
		k.asked("PATCH", at, `{"payouts_from":"1999-12-01","history":true}`).is(200).contains(
			`"payouts_from":"1999-12-01"`)
		k.asked("PATCH", at, `{"payouts_from":null}`).is(200).contains(`"payouts_from":null`)
	})
}

func TestPayoutHTTP_commandsPreviewAndSendIt(t *testing.T) {
	t.Parallel()
	xero := newXeroFake(t, time.Now)
	s := newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.urls = demoOutbound, map[string]string{"xero-url": xero.base}
	})
	books := s.connectToXero(xero)
	p := s.addPayout(s.orderIn(orderPaid))
	out := s.must(booksLine(xero, "books", "payout", books, p.ID)...)
	contains(t, out, "unmapped  No mapping was confirmed yet.")
	contains(t, s.must("books", "export", "payout", books, p.ID), "payout  1         waiting")
	contains(t, s.must("books", "export", "list"), "  payout  ")
	contains(t, s.must("books", "set", books, "-payouts-from", "2026-01-01", "-history", "-json"),
		`"payouts_from":"2026-01-01"`)
}

// TestDocs_sayWhyPayoutsAreHeld holds the chapter against the reasons and events of payouts.
func TestDocs_sayWhyPayoutsAreHeld(t *testing.T) {
	t.Parallel()
	chapter := chapterOf(t, newDocsPage(t), "payouts")
	want := []string{heldNotPosted, heldNoMethod}
	for _, h := range payoutHolds {
		want = append(want, h.reason)
	}
	found := captures(`<tr role="row"><td role="cell"><code>(\w+)</code>`, chapter)
	slices.Sort(want)
	slices.Sort(found)
	if !slices.Equal(found, want) {
		t.Errorf("the chapter has %q, want %q", found, want)
	}
	for _, kind := range payoutEvents.types {
		contains(t, chapter, "<code>"+string(kind)+"</code>")
	}
}

// elsewhere makes another account, which is connected with the same one of the provider, and sells there: it returns
// the account and the row of that.
func (k *till) elsewhere(method string) (account string, sold ledgerRow) {
	k.t.Helper()
	own, connection := k.account, k.connection
	k.account = k.addAccount("Trattoria Verdi")
	k.sql(`UPDATE origins SET account_id = ?`, k.account)
	k.connect()
	sold = k.sell(method, 700, 10)
	k.sql(`UPDATE origins SET account_id = ?`, own)
	account, k.account, k.connection = k.account, own, connection
	return account, sold
}

// TestPayout_ofTwoShopsOnOneAccountOfAProviderSaysSo is read by the restaurant, its accountant and the operator: each
// learns what to change, and none of the first two whose the other money is.
func TestPayout_ofTwoShopsOnOneAccountOfAProviderSaysSo(t *testing.T) {
	t.Parallel()
	for vendor, method := range map[string]string{providerStripe: methodCard, providerVipps: methodMobile} {
		t.Run(vendor, func(t *testing.T) {
			t.Parallel()
			atTill(t, vendor, false, func(k *till) { k.sharesItsAccount(method) })
		})
	}
}

func (k *till) sharesItsAccount(method string) {
	k.t.Helper()
	own := k.sell(method, 1000, 30)
	other, theirs := k.elsewhere(method)
	_, theirPayment := k.orderOf(theirs)
	back := k.row(rowRefund, -100, 0, func(r *ledgerRow) { r.intentID, r.paymentID = theirs.intentID, theirPayment })
	read := k.webhookEvents()
	p := k.arriving(2, own, theirs, back)
	foreign := k.row(rowPayment, 50, 0, func(r *ledgerRow) { r.intentID, r.paymentID = "pi_nobody", "pay_nobody" })
	mixed := k.arriving(2, theirs, foreign)
	k.until(3, 12)
	k.lookNow()
	k.book()
	state := payoutReady // in transit
	row := k.is(p, state, heldShared)
	k.is(mixed, state, heldForeign)
	k.booked(p, partPayout, exportHeld, heldShared)
	if told := read(); slices.Index(told, string(eventPayoutHeld)) < 0 {
		k.t.Errorf("events: %v", told)
	}
	k.counts(2, `SELECT count(*) FROM payouts WHERE reason = 'shared_account'`) // of each shop one

	auth := k.auth(k.account, scopeRevenue, scopeBooks, scopeOrders, scopeEvents)
	preview := "/books/connections/" + k.books + "/payouts/" + row.ID + "/preview"
	k.get(preview, auth).is(200).contains(`"reason":"shared_account"`, "one account there for each set of books")
	for _, path := range []string{"/payouts/" + row.ID, "/payouts/" + row.ID + "/items", "/events", preview} {
		body := k.get(path, auth).is(200).body
		for _, secret := range []string{other, theirPayment, "Trattoria Verdi"} {
			if strings.Contains(body, secret) {
				k.t.Errorf("%s names %s: %s", path, secret, body)
			}
		}
	}
	list := k.must("payout", "list", "-wide")
	for _, part := range []string{heldShared, heldForeign, "Trattoria Verdi"} {
		contains(k.t, list, part)
	}

	k.sql(`UPDATE payment_connections SET live = 0 WHERE account_id = ?`, other) // which can't be one account there
	k.is(k.readAnew(own, theirs), state, heldForeign)
}

// readAnew has the provider pay rows out once more, and reads that.
func (k *till) readAnew(rows ...ledgerRow) payoutReport {
	k.t.Helper()
	for i := range rows {
		rows[i].id = k.id("txn")
	}
	p := k.arriving(3, rows...)
	k.lookNow()
	return p
}

// TestPayout_exportAddsUpInASpreadsheet: what was given back, disputed and kept is negative, and a number. Against an
// application that may read revenue, and learns by what is in payouts which guest has paid what: only who reads orders
// does.
func TestPayout_exportAddsUpInASpreadsheet(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		sold := k.sell(methodCard, 1000, 30)
		fee := k.row(rowFee, 0, 250)
		p := k.arriving(2, sold, k.refund(sold, 300), k.dispute(sold, 500, 15), fee)
		k.until(3, 12)
		k.lookNow()
		sums := map[string]int{} // in the minor unit
		lines := strings.Split(strings.TrimSpace(k.must("payout", "export", k.payout(p).ID, "-csv")), "\n")
		titles := strings.Split(lines[0], ",")
		for _, line := range lines[1:] {
			for i, cell := range strings.Split(line, ",") {
				if slices.Contains([]string{"amount", "fee", "tax", "net"}, titles[i]) {
					n, err := strconv.ParseFloat(cell, 64)
					if err != nil {
						t.Errorf("%s is %q in %s", titles[i], cell, line)
					}
					sums[titles[i]] += int(math.Round(n * 100))
				}
			}
		}
		equal(t, "sums", fmt.Sprint(sums), "map[amount:200 fee:295 net:-95 tax:0]")

		items, names := "/payouts/"+k.payout(p).ID+"/items", []string{`"re_`, `"ref_`, `"dp_`, `"ord_`, `"pay_`}
		lacks(t, k.get(items, k.auth(k.account, scopeRevenue)).is(200).body, names...)
		contains(t, k.get(items, k.auth(k.account, scopeRevenue, scopeOrders)).is(200).body, names...)
	})
}

// reversed has the entry of an export reversed, and returns the error.
func (k *till) reversed(x *bookExport) error {
	return k.store.update(k.t.Context(), func(t *tx) error {
		return second(reverseExport(t, ownedBy(k.account), "", x.ID, ""))
	})
}

// Against a bank that sends money back days after it was paid out: a provider says paid, then failed, and whatever it
// says later.
func TestPayout_thatFailsAfterItsEntryIsTakenBackOnce(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, func(k *till) {
		rows := []ledgerRow{k.sell(methodCard, 1000, 30), k.sell(methodTwint, 500, 10)}
		told := k.webhookEvents()
		k.until(2, 12)
		p := k.arriving(2, rows...)
		k.became(p, payoutPaid)
		k.lookNow()
		k.book()
		entry := k.booked(p, partPayout, exportPosted)
		equal(t, "transit", k.ledger.balance(tillTransit), 1460)
		equal(t, "clearing", k.ledger.balance(tillCard), 0)
		k.until(4, 12)
		k.became(p, payoutFailed)
		k.lookNow()
		k.book()
		k.is(p, payoutFailed)
		k.posted(p, partUndo, "1580 490, 1580 970, 1590 -1460")
		if date := k.booked(p, partUndo, exportPosted).EntryDate; date != "2000-01-04" {
			t.Errorf("it is undone on %s", date)
		}
		equal(t, "clearing", k.ledger.balance(tillCard), 1460)
		equal(t, "fees", k.ledger.balance(tillFee), 40)

		// Nobody takes it back twice: not by reversing the entry, nor by a later payout that has what came back.
		if err := k.reversed(entry); err == nil || !strings.Contains(err.Error(), "reverse that first") {
			t.Errorf("reversing the entry: %v", err)
		}
		k.until(5, 12)
		back := k.arriving(5, k.row(rowReturned, 1460, 0, func(r *ledgerRow) { r.source = p.providerID }))
		k.became(back, payoutPaid)
		k.lookNow()
		k.book()
		k.posted(back, partPayout, "1580 -490, 1580 -970, 1590 1460")
		k.booked(p, partUndo, exportPosted)
		equal(t, "clearing", k.ledger.balance(tillCard), 0)

		for _, outcome := range []string{payoutPaid, "", payoutCanceled, payoutPaid} {
			k.became(p, outcome)
			k.lookNow()
			k.book()
			row, entries, undone := k.payout(p), len(k.exports(p, partPayout)), len(k.exports(p, partUndo))
			if !row.ended() || entries != 1 || undone != 1 {
				t.Errorf("after %q it is %s", outcome, row.State)
			}
		}
		equal(t, "transit", k.ledger.balance(tillTransit), 1460)
		equal(t, "events", told(), []string{"payout.paid", "payout.failed", "payout.paid"})

		k.check(k.reversed(k.booked(p, partUndo, exportPosted)))
		k.book()
		k.check(k.reversed(entry))
		k.book()
		equal(t, "all is reversed", k.ledger.balance(tillFee), 0)
	})
}

// Against a provider that lists what came back before it says that the payout has failed; and against one that is read
// once more, since it was listed wrongly, after it had failed.
func TestPayout_whatCameBackProvesThatItFailed(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, func(k *till) {
		rows := []ledgerRow{k.sell(methodCard, 1000, 30), k.sell(methodCard, 500, 10)}
		k.until(2, 12)
		p := k.arriving(2, rows...)
		k.became(p, payoutPaid)
		k.there.rows[p.providerID] = rows[:1]
		told := k.webhookEvents()
		k.lookNow()
		k.is(p, payoutPaid, heldDiffers)
		k.until(3, 12)
		k.there.rows[p.providerID] = rows
		comesBack := func(in string, amount int64) {
			k.there.tell(payoutReport{providerID: in, amount: amount, currency: "SEK", automatic: true,
				status: payoutPaid, arrival: "2000-01-03", complete: true})
			k.there.rows[in] = []ledgerRow{k.row(rowReturned, amount, 0,
				func(r *ledgerRow) { r.source = p.providerID })}
		}
		comesBack("po_x", 1460)
		for range 3 {
			k.lookNow()
		}
		k.is(p, payoutFailed)
		equal(t, "events", told(), []string{"payout.paid", "payout.held", "payout.paid", "payout.failed"})
		k.book()
		k.posted(p, partPayout, "1580 -40, 6570 40")
		comesBack("po_y", 100) // which is not what was in it
		k.lookNow()
		k.is(payoutReport{providerID: "po_y"}, payoutPaid)
	})
}

// Against a company that removes its connection and connects once more: both tell of the same payouts.
func TestPayout_ofTwoConnectionsIsOne(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, func(k *till) {
		first := k.connection
		p := k.arriving(2, k.sell(methodCard, 1000, 30))
		p.complete = false
		k.there.tell(p)
		k.look()
		k.is(p, payoutExpected)
		k.reconnect()
		k.there.strike = nil
		p.complete = true
		k.there.tell(p)
		k.until(2, 12)
		k.sql(`UPDATE payment_connections SET payouts_due_at = '2001-01-01T00:00:00Z' WHERE id = ?`, first)
		k.look() // the keys of the first may be revoked
		k.is(p, payoutReady)
		k.lookNow()
		k.book()
		k.posted(p, partPayout, "1580 -30, 1580 -970, 1590 970, 6570 30")
		k.hasRows(1, "payouts")
	})
}

// Against the same company at Vipps, whose ledger both connections could read: the latter goes on where the former was,
// so that neither is a payout booked twice, nor a dispute taken twice, nor is a row left out.
func TestPayout_ofALedgerIsReadOnByTheNextConnection(t *testing.T) {
	t.Parallel()
	atTill(t, providerVipps, true, func(k *till) {
		sold, early := k.sell(methodMobile, 1000, 0), k.sell(methodMobile, 700, 0)
		k.there.ledger = append(k.there.ledger, early, sold, k.dispute(sold, 1000, 0))
		k.look()
		k.until(2, 12)
		k.reconnect()
		k.there.takeCalls()
		p := k.arriving(2, k.row(rowFee, 0, 15))
		p.amount += 700
		k.there.ledger[len(k.there.ledger)-1].schedules = &p
		for range 2 {
			k.lookNow()
		}
		equal(t, "calls", k.there.takeCalls(), []string{"payouts 3", "payouts 5"})
		k.is(p, payoutReady, heldUnconfirmed)
		k.hasRows(4, "payout_items")
		k.hasRows(1, "payouts")
		k.hasRows(1, "disputes WHERE taken = 1000")
		k.change(func(t *tx) error { return confirmPayout(t, anyAccount, k.payout(p).ID) })
		k.until(3, 12)
		k.book()
		k.posted(p, partPayout, "1580 -15, 1580 -700, 1580 15, 1590 685, 6570 15")
	})
}

// Against a company whose books have a payout of before already: nobody sends it unasked, nor what has money of days
// that are not in the books.
func TestPayout_ofBeforeIsSentOnlyIfAskedFor(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		old, early := k.sell(methodCard, 1000, 30), k.sell(methodCard, 500, 10)
		before := k.arriving(2, old)
		k.until(3, 12)
		k.change(func(t *tx) error {
			return second(changeConnection(t, ownedBy(k.account), k.books, func(c *bookConnection) {
				c.SendFrom, c.PayoutsFrom = new("2000-01-03"), new("2000-01-03")
			}, anActor))
		})
		auth := func() string { return k.auth(k.account, scopeBooks, scopeRevenue) }
		path := "/books/connections/" + k.books
		k.do("PATCH", path, `{"payouts_from":"2000-01-02"}`, auth()).is(422).names("#/payouts_from in_the_past")
		sold := k.sell(methodCard, 700, 7)
		k.until(4, 12)
		mixed := k.arriving(4, early, sold)
		k.look()
		k.book()
		if n := len(k.exports(before, partPayout)); n != 0 {
			t.Errorf("%d exports of before", n)
		}
		k.booked(mixed, partPayout, exportHeld, heldForeign)
		k.post(path+"/exports", `{"payout":"`+k.payout(before).ID+`"}`, auth()).is(200)
		k.book()
		k.booked(before, partPayout, exportHeld, heldForeign)
		k.do("PATCH", path, `{"send_from":"2000-01-01","payouts_from":"2000-01-02","history":true}`, auth()).is(200)
		k.book()
		time.Sleep(heldRecheck)
		k.book()
		k.posted(mixed, partPayout, "1580 -17, 6570 17")
		k.posted(before, partPayout, "1580 -30, 6570 30")
	})
}

// Against whoever would have days and payouts differ: where test keys are sent from a day on, what arrived before
// stays out, asked for by name, too.
func TestPayout_ofTestKeysIsBookedFromTheDayOfTheSwitch(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, func(k *till) {
		k.sql(`UPDATE payment_connections SET live = 0`)
		before, asked := k.arriving(1, k.sell(methodCard, 1000, 30)), k.arriving(1, k.sell(methodCard, 500, 20))
		k.until(2, 12)
		k.do("PATCH", "/books/connections/"+k.books, `{"tests":true}`, k.auth(k.account, scopeBooks)).is(200)
		sold := k.sell(methodCard, 700, 10)
		k.until(3, 12)
		after := k.arriving(3, sold)
		k.look()
		k.change(func(t *tx) error {
			return second(requestPayout(t, ownedBy(k.account), k.books, k.payout(asked).ID))
		})
		k.book()
		k.posted(after, partPayout, "1580 -10, 1580 -690, 1590 690, 6570 10")
		equal(t, "exports of the one before", len(k.exports(before, partPayout)), 0)
		k.booked(asked, partPayout, exportWaiting)
	})
}

// Against another account at Vipps that writes our id of a payment as its reference.
func TestPayout_rowsNameNoPaymentOfAnotherAccount(t *testing.T) {
	t.Parallel()
	atTill(t, providerVipps, false, func(k *till) {
		theirs := k.sell(methodMobile, 1000, 0)
		order, paid := k.orderOf(theirs)
		other := k.addAccount("another")
		k.account, k.books = other, ""
		k.connect()
		k.sql(`UPDATE payment_connections SET name = '654321' WHERE account_id = ?`, other)
		p := k.arriving(1, k.row(rowPayment, 1000, 0, func(r *ledgerRow) { r.paymentID = paid }),
			k.row(rowDispute, -500, 0, func(r *ledgerRow) { r.paymentID, r.source = paid, "du_1" }))
		k.sql(`UPDATE payment_connections SET payouts_due_at = '2001-01-01T00:00:00Z' WHERE account_id <> ?`, other)
		before := k.facts(order)
		k.look()
		k.is(p, payoutReady, heldForeign)
		k.hasRows(0, "payout_items WHERE payment_id IS NOT NULL OR method IS NOT NULL")
		k.hasRows(0, "disputes")
		equal(t, "facts", k.facts(order), before)
	})
}

// notice implements provider: all that comes is about a payout.
func (f *payoutFake) notice(*unsealedConnection, *http.Request, []byte, time.Time) (paymentNotice, error) {
	return paymentNotice{payout: true}, nil
}

// Against a flood of webhooks about payouts, such as those of a busy account: the provider is asked once.
func TestPayout_manyNoticesAreOneLook(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, func(k *till) {
		k.look()
		k.there.takeCalls()
		p := k.arriving(3, k.sell(methodCard, 1000, 30))
		for range 300 {
			k.post("/payments/stripe/"+k.connection, `{}`).is(204)
		}
		w := &payoutWorker{k.payouts, newDueWorker(payoutTick, maxReadingAt, false)}
		stop := k.beside(w.run)
		time.Sleep(time.Hour)
		stop()
		k.is(p, payoutReady)
		equal(t, "calls", len(k.there.takeCalls()), 3)
	})
}
