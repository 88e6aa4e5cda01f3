package main

import (
	"errors"
	"fmt"
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

// Against a partner who knows the id of a payout of another account, and asks for it, for what is in it, or to have it
// booked into books of its own.
func TestPayout_ofAnotherAccountIsNotFound(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, false, func(k *till) {
		p := k.arriving(1, k.sell(methodCard, 1000, 30))
		k.look()
		id := k.payout(p).ID
		other := k.addAccount("another")
		var books string
		k.change(func(t *tx) error {
			c, err := addBooks(t, k.keys, other, productFortnox, nil)
			books = c.ID
			return err
		})
		auth := k.auth(other, scopeRevenue, scopeBooks, scopeOrders)
		for _, path := range []string{"", "/items", "/items?cursor=txn_1"} {
			k.get("/payouts/"+id+path, auth).is(404, "payout_not_found")
		}
		k.get("/payouts?from=1999-01-01", auth).is(200).holds(`data=[]`)
		k.post("/payouts/"+id+"/confirm", "", auth).is(403, "insufficient_scope")
		k.get("/books/connections/"+books+"/payouts/"+id+"/preview", auth).is(404, "payout_not_found")
		k.post("/books/connections/"+books+"/exports", `{"payout":"`+id+`"}`, auth).is(404, "payout_not_found")
		for _, path := range []string{"/payouts/" + id + "/preview", "/exports"} {
			method, body := "GET", ""
			if path == "/exports" {
				method, body = "POST", `{"payout":"`+id+`"}`
			}
			k.do(method, "/books/connections/"+k.books+path, body, auth).is(404, "books_connection_not_found")
		}
		k.hasRows(0, "books_exports WHERE connection_id = ?", books)
		own := k.auth(k.account, scopeRevenue, scopeBooks, scopeOrders)
		k.get("/payouts/"+id, own).is(200).holds(`id="` + id + `"`)
		k.get("/books/connections/"+k.books+"/payouts/"+id+"/preview", own).is(200)
	})
}

// Against an application that was given the books, and reads orders out of what is in payouts; and against one that may
// read revenue, and learns by them which guest has paid what.
func TestPayout_itemsNameOrdersOnlyToThoseWhoReadOrders(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, false, func(k *till) {
		sold := k.sell(methodCard, 1000, 30)
		p := k.arriving(1, sold, k.refund(sold, 200), k.dispute(k.sell(methodCard, 500, 5), 500, 1500))
		k.look()
		id := k.payout(p).ID
		for _, path := range []string{"/payouts/" + id + "/items", "/payouts/" + id, "/payouts"} {
			k.get(path, k.auth(k.account, scopeBooks)).is(403, "insufficient_scope")
			k.get(path, k.auth(k.account, scopeOrders)).is(403, "insufficient_scope")
		}
		row := func(scopes ...string) (found []string) {
			items := k.get("/payouts/"+id+"/items", k.auth(k.account, scopes...)).is(200).json()["data"].([]any)
			for _, r := range items {
				for _, member := range []string{"payment_id", "order_id", "refund_id", "dispute_id", "source"} {
					if value := r.(map[string]any)[member]; value != nil {
						found = append(found, fmt.Sprint(member, " ", value))
					}
				}
			}
			return found
		}
		equal(t, "without orders", row(scopeRevenue), nil)
		all := strings.Join(row(scopeRevenue, scopeOrders), "\n")
		order, pay := k.orderOf(sold)
		contains(t, all, "order_id "+order, "payment_id "+pay, "refund_id ref_", "dispute_id dp_", "source re_")
		equal(t, "members", strings.Count(all, "\n")+1, 3*2+1+1+3)
	})
}

// Against a bank that sends money back days after it was paid out: a provider says paid, then failed, and whatever it
// says later.
func TestPayout_thatFailsAfterItsEntryIsTakenBackOnce(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, false, func(k *till) {
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

// Against the same bank, before the payout was booked: its fees were kept all the same.
func TestPayout_thatFailsBeforeItsEntryHasItsFeesOnly(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, false, func(k *till) {
		p := k.arriving(2, k.sell(methodCard, 1000, 30))
		k.became(p, payoutPaid)
		k.lookNow()
		k.is(p, payoutPaid)
		k.until(2, 12)
		k.became(p, payoutFailed)
		k.lookNow()
		k.book()
		k.posted(p, partPayout, "1580 -30, 6570 30")
		k.until(3, 12)
		k.lookNow()
		k.book()
		if len(k.exports(p, partUndo)) != 0 {
			t.Error("something that was not booked is taken back")
		}
	})
}

// Against a provider that lists what came back before it says that the payout has failed; and against one that is read
// once more, since it was listed wrongly, after it had failed.
func TestPayout_whatCameBackProvesThatItFailed(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, false, func(k *till) {
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
		k.there.tell(payoutReport{providerID: "po_x", amount: 1460, currency: "SEK", automatic: true,
			status: payoutPaid, arrival: "2000-01-03", complete: true})
		k.there.rows["po_x"] = []ledgerRow{k.row(rowReturned, 1460, 0, func(r *ledgerRow) { r.source = p.providerID })}
		for range 3 {
			k.lookNow()
		}
		k.is(p, payoutFailed)
		equal(t, "events", told(), []string{"payout.paid", "payout.held", "payout.paid", "payout.failed"})
		k.book()
		k.posted(p, partPayout, "1580 -40, 6570 40")
	})
}

// Against a company that removes its connection and connects once more: both tell of the same payouts.
func TestPayout_ofTwoConnectionsIsOne(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, false, func(k *till) {
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
	atTill(t, providerVipps, true, false, func(k *till) {
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
	atTill(t, providerStripe, false, false, func(k *till) {
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

// Against whoever asks for a payout of test keys to be booked, in which no money has moved.
func TestPayout_ofTestKeysIsNotBooked(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, false, func(k *till) {
		k.sql(`UPDATE payment_connections SET live = 0`)
		p := k.arriving(1, k.sell(methodCard, 1000, 30))
		k.until(2, 12)
		k.look()
		k.book()
		equal(t, "exports", len(k.exports(p, partPayout)), 0)
		k.change(func(t *tx) error {
			return second(requestPayout(t, ownedBy(k.account), k.books, k.payout(p).ID))
		})
		k.book()
		k.booked(p, partPayout, exportWaiting)
		equal(t, "entries", len(k.ledger.booked), 0)
	})
}

// Against whoever would have days and payouts differ: where test keys are sent from a day on, what arrived before
// stays out, asked for by name, too.
func TestPayout_ofTestKeysIsBookedFromTheDayOfTheSwitch(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, true, false, func(k *till) {
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
	atTill(t, providerVipps, false, false, func(k *till) {
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

// Against a bank that takes money back at Vipps, of which only the ledger tells: it is a dispute as any other, and the
// attempt is not in review, since what was captured and given back is as it was.
func TestPayout_ledgerOfVippsTellsOfDisputes(t *testing.T) {
	t.Parallel()
	atTill(t, providerVipps, false, false, func(k *till) {
		sold := k.sell(methodMobile, 1000, 0)
		order, paid := k.orderOf(sold)
		events := func() (all []string) {
			all, err := k.store.texts(`SELECT json_extract(data, '$.state') || ' ' || json_extract(data, '$.taken')
				FROM events WHERE type = 'order.disputed' ORDER BY seq`)
			k.check(err)
			return all
		}
		is := func(state string, taken int64, revenue string) {
			t.Helper()
			k.hasRows(1, "disputes WHERE state = ? AND taken = ?", state, taken)
			equal(t, "the order", valueOr(k.service.row(order).Dispute, ""), orderDispute(state))
			p, err := k.store.payment(paid)
			if k.check(err); p.State != paymentCaptured || p.Captured-p.Refunded != 1000 {
				t.Errorf("the attempt is %s, captured %d, refunded %d", p.State, p.Captured, p.Refunded)
			}
			facts := k.facts(order)
			contains(t, facts[len(facts)-1], revenue)
		}
		taken := k.dispute(sold, 1000, 0)
		k.there.ledger = append(k.there.ledger, sold, taken)
		k.look()
		is(disputeOpen, 1000, `"gross":1000`)
		k.lookNow() // nothing is told twice
		is(disputeOpen, 1000, `"gross":1000`)
		k.until(9, 12)
		some := k.dispute(sold, -400, 0)
		some.source = taken.source
		k.there.ledger = append(k.there.ledger, some)
		k.lookNow()
		is(disputeOpen, 600, `"gross":600`)
		rest := some
		rest.id, rest.amount = k.id("txn"), 600
		k.there.ledger = append(k.there.ledger, rest)
		k.lookNow()
		is(disputeWon, 0, `"gross":-600`)
		equal(t, "events", events(), []string{"open 1000", "open 600", "won 0"})
	})
}

// notice implements provider: all that comes is about a payout.
func (f *payoutFake) notice(*unsealedConnection, *http.Request, []byte, time.Time) (paymentNotice, error) {
	return paymentNotice{payout: true}, nil
}

// Against a flood of webhooks about payouts, such as those of a busy account: the provider is asked once.
func TestPayout_manyNoticesAreOneLook(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, false, func(k *till) {
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

// Against a payout that was read wrongly, and is asked for before it was read at all.
func TestPayout_thatWasNotReadCantBeBooked(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, false, func(k *till) {
		p := k.arriving(3, k.sell(methodCard, 1000, 30))
		p.complete = false
		k.there.tell(p)
		k.look()
		err := k.store.update(k.t.Context(), func(t *tx) error {
			return second(requestPayout(t, ownedBy(k.account), k.books, k.payout(p).ID))
		})
		if refused, ok := errors.AsType[*refusal](err); !ok || refused.code != codePayoutState {
			t.Errorf("it is booked: %v", err)
		}
	})
}
