package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// paysOut adds a payout to the sandbox, with as many charges of 20.00 as are wanted, and one dispute.
func (s *stripeTest) paysOut(id string, arrival time.Time, charges int) {
	s.inside(func() {
		of := testObject{"id": id, "object": "payout", "automatic": true, "method": "standard", "status": "paid",
			"reconciliation_status": "completed", "currency": "chf", "amount": int64(charges)*1942 - 3500,
			"arrival_date": arrival.Unix()}
		s.payouts = append([]testObject{of}, s.payouts...)
		move := func(kind string, amount, fee int64, source testObject) {
			s.moves[id] = append(s.moves[id], testObject{"id": s.newID("txn_"), "object": "balance_transaction",
				"amount": amount, "fee": fee, "net": amount - fee, "currency": "chf", "reporting_category": kind,
				"fee_details": []testObject{{"amount": fee, "type": "stripe_fee"}}, "created": arrival.Unix(),
				"source": source})
		}
		if s.moves == nil {
			s.moves = map[string][]testObject{}
		}
		move("payout", -of["amount"].(int64), 0, of)
		charge := testObject{"object": "charge", "text": strings.Repeat("x", 4000)}
		for range charges {
			charge := testObject{"id": s.newID("ch_"), "payment_intent": s.newID("pi_"), "text": charge["text"]}
			move("charge", 2000, 58, charge)
		}
		move("dispute", -2000, 1500, testObject{"id": s.newID("du_"), "payment_intent": s.newID("pi_"),
			"text": strings.Repeat("evidence ", 20_000)})
	})
}

// readsPayout reads what is in a payout, and returns its rows.
func (s *stripeTest) readsPayout(id string) (rows []ledgerRow) {
	s.t.Helper()
	for after := ""; ; {
		page, next, err := s.client.payoutRows(s.t.Context(), s.c, id, after)
		must(s.t, err)
		if rows, after = append(rows, page...), next; after == "" {
			return rows
		}
	}
}

// readsPayouts reads a payout from the sandbox, so that the vendor's mock at an address judges the requests, and from
// the mock itself, whose only movement is in US dollars.
func (s *stripeTest) readsPayouts(mock string) {
	s.t.Helper()
	s.paysOut("po_1", s.clock(), stripePayoutsPage) // and two movements more: two pages
	from := newStamp(s.clock()).day()
	news, err := s.client.payouts(s.t.Context(), s.c, "", from, s.clock())
	if err != nil || len(news.payouts) != 1 {
		s.t.Fatalf("payouts: %+v %v", news, err)
	}
	equal(s.t, "rows", len(s.readsPayout(news.payouts[0].providerID)), stripePayoutsPage+1)

	own := newStripeProvider(s.client.outbound, mock)
	c := testConnection()
	c.secrets.Key = "sk_test_123"
	news, err = own.payouts(s.t.Context(), c, "2026-11-26", from, s.clock())
	if err != nil || len(news.payouts) != 1 || news.payouts[0].currency != "USD" {
		s.t.Fatalf("the mock's payouts: %+v %v", news, err)
	}
	rows, next, err := own.payoutRows(s.t.Context(), c, "po_other", "txn_1")
	if err != nil || len(rows) != 1 || rows[0].currency != "USD" || next != "" {
		s.t.Errorf("the mock's movements: %+v %q %v", rows, next, err)
	}
	if lacks, err := own.payoutLacks(s.t.Context(), c); err != nil || len(lacks) > 0 {
		s.t.Errorf("the mock lacks %v, %v", lacks, err)
	}
}

func TestStripePayout_ofAThousandRowsIsReadByTwelveCalls(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	s.paysOut("po_1", s.clock(), 998) // with its own movement and a dispute, a thousand
	calls := 0
	s.watches(func(_ *http.Request, acted *testAnswer) *testAnswer {
		if acted != nil {
			calls++
		}
		return nil
	})
	news, err := s.client.payouts(t.Context(), s.c, "", newStamp(s.clock()).day(), s.clock())
	must(t, err)
	sum, ids := int64(0), map[string]bool{}
	for _, row := range s.readsPayout(news.payouts[0].providerID) {
		sum, ids[row.id] = sum+row.net(), true
	}
	if len(ids) != 999 || sum != news.payouts[0].amount || news.payouts[0].amount != 998*1942-3500 {
		t.Errorf("%d rows of %d, and the payout is %d", len(ids), sum, news.payouts[0].amount)
	}
	if calls > 12 {
		t.Errorf("%d calls", calls)
	}
}

// Against a payout that is told to be paid, and fails some days later: it is listed again.
func TestStripePayout_isListedAgainForTwoWeeks(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	now := time.Date(2026, 11, 26, 23, 30, 0, 0, time.UTC)
	for day := 1; day <= 26; day++ {
		s.paysOut(fmt.Sprintf("po_%d", day), time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC), 1)
	}
	for _, c := range []struct{ cursor, from, last string }{
		{"", "2026-11-20", "po_20"}, {"", "2026-10-01", "po_1"}, {"2026-11-26", "2026-11-20", "po_20"},
		{"2026-11-26", "2026-11-12", "po_12"}, {"2026-11-20", "2026-01-01", "po_6"},
		{"2026-11-10", "2026-01-01", "po_1"}, {"", "2026-11-27", ""}, {"2026-12-20", "2026-01-01", ""},
	} {
		news, err := s.client.payouts(t.Context(), s.c, c.cursor, c.from, now)
		must(t, err)
		last := ""
		for _, told := range news.payouts {
			last = told.providerID
		}
		equal(t, c.cursor+" from "+c.from, last, c.last)
		if news.cursor != "2026-11-26" || news.more || len(news.rows) > 0 {
			t.Errorf("%+v", news)
		}
	}
	for _, wrong := range []string{"yesterday", "2026-11-26 x"} {
		if news, err := s.client.payouts(t.Context(), s.c, wrong, "2026-11-26", now); news != nil || err == nil {
			t.Errorf("from %s on: %+v", wrong, news)
		}
	}
}

func TestStripePayout_namesTheMissingPermissions(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	const hook = "https://api.example.com/v1/payments/stripe/con_1"
	var denied []string // paths
	var answer *testAnswer
	s.watches(func(r *http.Request, _ *testAnswer) *testAnswer {
		for _, path := range denied {
			if r.URL.Path == path {
				return answer
			}
		}
		return nil
	})
	forbidden := testFailure(403, "invalid_request_error", "more_permissions_required")
	denied, answer = []string{stripePayouts, stripeMoves}, forbidden
	must(t, s.client.connect(t.Context(), s.c, hook)) // a key without them takes payments
	for _, c := range []struct {
		denied []string
		answer *testAnswer
		want   string
	}{
		{nil, nil, "[] <nil>"},
		{[]string{stripePayouts}, forbidden, "[Payouts: read] <nil>"},
		{[]string{stripeMoves}, forbidden, "[Balance Transaction Sources: read] <nil>"},
		{[]string{stripePayouts, stripeMoves}, forbidden,
			"[Payouts: read Balance Transaction Sources: read] <nil>"},
		{[]string{stripeMoves}, &testAnswer{status: 403, body: []byte("<html>")},
			"[] reading /v1/balance_transactions: the answer is http_403"},
		{[]string{stripePayouts}, testFailure(401, "invalid_request_error", "api_key_expired"),
			"[] reading /v1/payouts: the answer is api_key_expired"},
		{[]string{stripePayouts}, testOK(testObject{"object": "charge"}),
			"[] reading /v1/payouts: the answer is malformed_answer"},
	} {
		s.inside(func() { denied, answer = c.denied, c.answer })
		lacks, err := s.client.check(t.Context(), s.c)
		equal(t, fmt.Sprint(c.denied), fmt.Sprint(lacks, " ", err), c.want)
	}
}

func FuzzStripeMoves(f *testing.F) {
	f.Add(`{"object":"list","has_more":true,"data":[{"id":"txn_1","object":"balance_transaction","amount":-2000,` +
		`"fee":1500,"net":-3500,"fee_details":[{"amount":1400,"type":"stripe_fee"},{"amount":100,"type":"tax"}],` +
		`"currency":"chf","created":1795400000,"reporting_category":"dispute","source":{"id":"du_1",` +
		`"payment_intent":"pi_1"}}]}`)
	f.Add(`{"object":"list","data":[{"id":"txn_1","object":"balance_transaction","amount":-5,"net":-5,` +
		`"currency":"chf","reporting_category":"tax","source":"po_1"},{"id":"txn_2","object":"balance_transaction",` +
		`"currency":"chf","reporting_category":"payout","source":"po_1"}]}`)
	f.Add(`{"object":"list","data":[{"source":null},{"source":7},{"fee_details":[{"amount":9e18}]}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		var page stripePage[stripeMove]
		if json.Unmarshal([]byte(body), &page) != nil {
			return
		}
		rows, next, ok := rowsOf(&page, "po_1")
		if !ok {
			return
		}
		if next != "" && !isStripeID("txn_", next) || page.More != (next != "") {
			t.Errorf("it goes on after %q", next)
		}
		for _, r := range rows {
			checkLedgerRow(t, &r)
			told := slices.ContainsFunc(page.Data, func(m stripeMove) bool { return m.ID == r.id && m.Net == r.net() })
			if !told || r.intentID != "" && !isStripeID("pi_", r.intentID) {
				t.Errorf("%+v of %s", r, body)
			}
		}
	})
}

// checkLedgerRow checks what is true of each row of a provider's ledger.
func checkLedgerRow(t *testing.T, r *ledgerRow) {
	t.Helper()
	known := map[string]bool{rowPayment: true, rowRefund: true, rowDispute: true, rowFee: true, rowReserve: true,
		rowReturned: true, rowCorrection: true, rowUnknown: true}
	for _, text := range []string{r.id, r.kind, r.source, r.intentID, r.paymentID} {
		if strings.IndexFunc(text, isNotVisible) >= 0 || len(text) > 300 {
			t.Errorf("%+v", r)
		}
	}
	if r.id == "" || r.kind == "" || !known[r.category] || len(r.currency) != 3 || !inBounds(r.amount) ||
		r.category == rowFee && r.amount != 0 || r.at.Year() < 1970 || r.at.Year() > 9999 {
		t.Errorf("%+v", r)
	}
}
