package main

import (
	"fmt"
	"testing"
	"time"
)

// yearOfItems is how many rows the payouts of a year have together.
const yearOfItems = 100_000

// newPayoutYear makes a till with a year of payouts, all that is in which is of payments of its account, and the first
// day.
func newPayoutYear(b *testing.B) (k *till, first time.Time) {
	k = newTill(b, providerStripe, false, false)
	sold := k.sell(methodCard, 2000, 50)
	_, paid := k.orderOf(sold)
	each := yearOfItems/benchmarkedDays + 1
	k.sql(manyRows(yearOfItems)+`INSERT INTO payments (id, order_id, account_id, connection_id, provider, method, state,
			amount, currency, captured, revision, created_at, intent_id)
		SELECT printf('pay_%026d', n.i), p.order_id, p.account_id, p.connection_id, p.provider, p.method, p.state,
			p.amount, p.currency, p.captured, p.revision, p.created_at, printf('pi_b%d', n.i)
		FROM payments p, n WHERE p.id = ?`, paid)
	first = time.Now().UTC().AddDate(0, 0, -benchmarkedDays).Truncate(24 * time.Hour)
	for day := range benchmarkedDays {
		at := first.AddDate(0, 0, day)
		id := fmt.Sprintf("pot_%026d", day)
		k.sql(`INSERT INTO payouts (id, account_id, connection_id, provider, provider_id, state, amount, currency,
				arrival_date, automatic, created_at, read_at, items)
			VALUES (?, ?, ?, 'stripe', ?, 'paid', 500000, 'SEK', ?, 1, ?, ?, ?)`, id, k.account, k.connection, id,
			at.Format(time.DateOnly), newStamp(at), newStamp(at), each)
		k.sql(manyRows(each)+`INSERT INTO payout_items (payout_id, id, category, kind, amount, fee, tax, method, source,
				payment_id, at)
			SELECT ?1, printf('txn_%d', n.i), iif(n.i % 20, 'payment', 'refund'), 'charge', 2000, 50, 0, 'card', 'ch_1',
				printf('pay_%026d', 1 + (?2 + n.i) % ?4), ?3 FROM n`, id, day*each, newStamp(at), yearOfItems)
	}
	return k, first
}

// BenchmarkPayout measures a year of payouts: listing it by pages of 100, a page of 100 rows of one with their orders,
// showing one with the sums of what is in it, and keeping one of 1,000 rows, as it is told by page.
func BenchmarkPayout(b *testing.B) {
	k, first := newPayoutYear(b)
	from, auth := first.Format(time.DateOnly), k.auth(k.account, scopeRevenue, scopeOrders)
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			pages := 0
			for next := ""; pages == 0 || next != ""; pages++ {
				asked := "/payouts?limit=100&from=" + from
				if next != "" {
					asked += "&cursor=" + next
				}
				next, _ = k.get(asked, auth).is(200).json()["next_cursor"].(string)
			}
			if pages != benchmarkedDays/100+1 {
				b.Fatalf("%d pages", pages)
			}
		}
	})
	for name, path := range map[string]string{"items": "/items?limit=100&cursor=txn_1", "show": ""} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				k.get(fmt.Sprintf("/payouts/pot_%026d%s", i%benchmarkedDays, path), auth).is(200)
			}
		})
	}
	b.Run("read", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			k.readsThousandRows(i)
		}
		b.ReportMetric(float64(len(k.there.takeCalls()))/float64(b.N), "calls/op")
	})
}

// readsThousandRows keeps a payout of 1,000 rows, the i-th that is told.
func (k *till) readsThousandRows(i int) {
	rows := make([]ledgerRow, 1000)
	for n := range rows {
		rows[n] = k.row(rowPayment, 2000, 50, func(r *ledgerRow) {
			r.intentID = fmt.Sprintf("pi_b%d", 1+(i*1000+n)%yearOfItems)
		})
	}
	p := k.arriving(1, rows...)
	p.arrival = time.Now().UTC().Format(time.DateOnly)
	k.there.told = []payoutReport{p}
	for more := true; more; {
		source, err := k.store.paymentConnection(anyAccount, k.connection)
		k.check(err)
		k.check(k.store.update(k.t.Context(), func(t *tx) error {
			reading, err := t.payoutToRead(k.connection)
			if err != nil {
				return err
			}
			if reading != nil {
				rows, next, err := k.there.payoutRows(k.t.Context(), nil, *reading.ProviderID, reading.Cursor)
				if err != nil {
					return err
				}
				return k.payouts.addPage(t, reading, rows, next)
			}
			news, err := k.there.payouts(k.t.Context(), nil, source.PayoutsCursor, p.arrival, time.Now())
			if err != nil {
				return err
			}
			more, err = k.payouts.adoptNews(t, source, news)
			return err
		}))
	}
	if row := k.payout(p); row.Items != 1000 || row.Reason != nil {
		k.t.Fatalf("it has %d rows, held for %q", row.Items, valueOr(row.Reason, ""))
	}
}
