package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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
			atTill(t, vendor, false, false, func(k *till) { k.sharesItsAccount(method) })
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

// TestPayout_listsOfTheOperatorShowEveryAccount: as those of orders and payments do, by page, and by -account those of
// one.
func TestPayout_listsOfTheOperatorShowEveryAccount(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, false, func(k *till) {
		other, theirs := k.elsewhere(methodCard)
		for day := range 3 {
			k.arriving(day+1, k.sell(methodCard, 1000, 30), theirs)
		}
		k.until(4, 12)
		k.lookNow()
		k.change(func(t *tx) error {
			return second(addBooks(t, k.keys, other, productFortnox, nil))
		})
		admin, dates := k.auth(k.account, scopeAdmin), []string{}
		for cursor, more := "", true; more; {
			page := k.get("/payouts?limit=2"+cursor, admin).is(200).json()
			for _, row := range page["data"].([]any) {
				p := row.(map[string]any)
				dates = append(dates, p["arrival_date"].(string))
			}
			next, left := page["next_cursor"].(string)
			cursor, more = "&cursor="+next, left
		}
		equal(t, "dates", dates, []string{"2000-01-03", "2000-01-03", "2000-01-02", "2000-01-02", "2000-01-01",
			"2000-01-01"})
		equal(t, "payout list", len(k.listed("payout", "list")), 6)
		for _, account := range []string{k.account, other} {
			for _, row := range k.get("/payouts?account_id="+account, admin).is(200).json()["data"].([]any) {
				equal(t, "account", row.(map[string]any)["account_id"], any(account))
			}
			equal(t, "payout list -account", len(k.listed("payout", "list", "-account", account)), 3)
			all := k.get("/books/connections", admin).is(200).body
			contains(t, all, `"account_id":"`+account+`"`)
			one := k.get("/books/connections?account_id="+account, admin).is(200).json()
			equal(t, "books of one", len(one["data"].([]any)), 1)
			own := k.get("/books/connections", k.auth(account, scopeBooks)).is(200).json()
			equal(t, "books of its own", len(own["data"].([]any)), 1)
		}
		equal(t, "books list", len(k.listed("books", "list")), 2)
	})
}

// listed returns the lines that a list prints with -json.
func (k *till) listed(args ...string) []string {
	k.t.Helper()
	return slices.Collect(strings.Lines(k.must(append(args, "-json")...)))
}

// TestPayout_exportAddsUpInASpreadsheet: what was given back, disputed and kept is negative, and a number.
func TestPayout_exportAddsUpInASpreadsheet(t *testing.T) {
	t.Parallel()
	atTill(t, providerStripe, false, false, func(k *till) {
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
	})
}
