package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

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
