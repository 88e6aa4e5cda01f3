package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// reads reads on from a cursor until there is no more at once, and returns the rows, and the cursor in the end.
func (s *vippsSide) reads(cursor, from string) (rows []ledgerRow, end string) {
	s.t.Helper()
	for {
		news, err := s.payouts(s.t.Context(), s.c, cursor, from, s.at)
		must(s.t, err)
		if rows, cursor = append(rows, news.rows...), news.cursor; !news.more {
			return rows, cursor
		}
	}
}

func TestVippsPayout_isReadByDatesThatAreOver(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	if rows, end := s.reads("", "2026-11-18"); len(rows) > 0 || end != "" { // there are no settlements for tests
		t.Errorf("%+v until %s", rows, end)
	}
	s.fake.ledgers = []string{"302321"}
	for date, captures := range map[string]int{"2026-11-18": 2500, "2026-11-20": 1, "2026-11-21": 999} {
		for range captures {
			s.fake.books(date, "capture", vippsReference(s.p.ID), 1000)
		}
		s.fake.books(date, "payout-scheduled", "", -1000*int64(captures))
	}
	read := func(at, cursor string, want int, wantEnd string) {
		t.Helper()
		var err error
		s.at, err = time.Parse(time.RFC3339, at)
		must(t, err)
		rows, end := s.reads(cursor, "2026-11-18")
		ids, left, open := map[string]bool{}, int64(0), int64(0)
		for _, r := range rows {
			ids[r.id] = true
			if r.schedules != nil && r.schedules.amount != open {
				t.Errorf("%s has %d, not %d", r.schedules.providerID, r.schedules.amount, open)
			}
			if open += r.net(); r.schedules != nil {
				open = 0
			}
			left += r.net()
		}
		if len(rows) != want || len(ids) != want || left != 0 || end != wantEnd {
			t.Errorf("%s from %q on: %d rows, %d of them different, %d left, until %q, not %d until %q",
				at, cursor, len(rows), len(ids), left, end, want, wantEnd)
		}
	}
	read("2026-11-22T10:00:00Z", "", 2501+2+1000, "2026-11-22")
	read("2026-11-22T05:59:59Z", "", 2501+2, "2026-11-21")
	read("2026-11-22T06:00:00Z", "2026-11-20", 2+1000, "2026-11-22")
	read("2026-11-22T23:00:00Z", "2026-11-22", 0, "2026-11-22") // it is not over
	read("2026-11-18T23:00:00Z", "", 0, "")
	s.fake.dateEnds = func(date string) bool { return date < "2026-11-20" }
	read("2026-11-22T10:00:00Z", "", 2501, "2026-11-20")
	read("2026-11-22T10:00:00Z", "2026-11-20", 0, "2026-11-20")
	s.fake.dateEnds = nil
	read("2026-11-22T10:00:00Z", "2026-11-20", 2+1000, "2026-11-22")

	news, err := s.payouts(t.Context(), s.c, "2026-11-18 after=2000", "", s.at)
	if err != nil || len(news.rows) != 501 || news.cursor != "2026-11-19" || !news.more {
		t.Errorf("inside a date: %d rows, then %q, %v", len(news.rows), news.cursor, err)
	}
	for _, wrong := range []string{"soon", "../x", " after=1"} {
		if news, err := s.payouts(t.Context(), s.c, wrong, "2026-11-18", s.at); news != nil || err == nil {
			t.Errorf("from %q on: %+v", wrong, news)
		}
	}
	if rows, next, err := s.payoutRows(t.Context(), s.c, "302321-1", ""); rows != nil || next != "" || err != nil {
		t.Errorf("%+v %q %v", rows, next, err)
	}
}

// Against a page whose cursor is the one that was asked for, which would be read for ever.
func TestVippsPayout_endsWithAPageThatNamesItselfTheNext(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.fake.ledgers = []string{"302321"}
	s.fake.strikes(answerOf("/report/v2/ledgers/302321/funds/dates/2026-11-20",
		`{"items":[],"hasMore":true,"tryLater":false,"cursor":"Mw=="}`))
	_, err := s.payouts(t.Context(), s.c, "2026-11-20 Mw==", "", s.at)
	isVendorError(t, err, vendorUnknown, 200, outboundMalformed)
}

// A capture that is disputed, put back, and disputed again has three rows of its own, of one dispute.
func TestVippsPayout_tellsTheRowsOfOneCaptureApart(t *testing.T) {
	t.Parallel()
	ids, sources := map[string]bool{}, map[string]bool{}
	for i, kind := range []string{"retained", "returned", "retained"} {
		e := vippsEntry{PSPReference: "1", Reference: "pay-01jd8z6q6r1w5qk1m2n3p4r5s6", Currency: "NOK", Amount: 100,
			Type: kind + "-disputed-capture", Time: time.Date(2026, 11, 20, i, 0, 0, 0, time.UTC)}
		row, ok := e.row("2026-11-20")
		ids[row.id], sources[row.source] = ok, ok
	}
	if len(ids) != 3 || len(sources) != 1 || !sources["dispute-pay_01jd8z6q6r1w5qk1m2n3p4r5s6"] {
		t.Errorf("%v of %v", ids, sources)
	}
}

func TestVippsPayout_namesTheMissingReports(t *testing.T) {
	t.Parallel()
	const missing = "[the reports of its settlements] <nil>"
	for _, c := range []struct {
		live    bool
		ledgers []string
		fault   *vendorFault
		want    string
	}{
		{false, nil, nil, "[] <nil>"}, // there are none for tests
		{false, nil, answersWith(403, nil, ""), "[] <nil>"},
		{true, nil, nil, missing},
		{true, []string{"302321"}, nil, "[] <nil>"},
		{true, nil, answersWith(403, nil, `{"statusCode":403,"message":"Forbidden"}`), missing},
		{true, nil, answersWith(200, nil, `{"items":[]}`), missing},
		{true, nil, answersWith(503, nil, ""), "[] the answer is http_503"},
		{true, []string{"1", "2"}, nil, "[] the answer is several_ledgers"},
	} {
		s := newVippsSide(t)
		must(t, s.connect(t.Context(), s.c, "https://a.example/v1/payments/vipps/con_1"))
		s.c.WebhookURL, s.c.Live, s.fake.ledgers = ptr("https://a.example/v1/payments/vipps/con_1"), c.live, c.ledgers
		s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
			if r.path == vippsLedgers {
				return c.fault
			}
			return nil
		})
		lacks, err := s.check(t.Context(), s.c)
		equal(t, fmt.Sprintf("%v %v", c.live, c.ledgers), fmt.Sprint(lacks, " ", err), c.want)
	}
}

func FuzzVippsReport(f *testing.F) {
	f.Add(`{"items":[{"pspReference":"3343121302","time":"2026-11-20T12:30:00.123456Z","entryType":"capture",` +
		`"reference":"pay-01jd8z6q6r1w5qk1m2n3p4r5s6","currency":"NOK","amount":49900}],"hasMore":false}`)
	f.Add(`{"items":[{"pspReference":"1-2","time":"2026-11-20T12:30:00+14:00","entryType":"payout-scheduled",` +
		`"currency":"NOK","amount":-5},{"entryType":"fees-retained","amount":-9e3,"currency":"NOK",` +
		`"time":"2026-11-20T00:00:00Z"}],"hasMore":true,"cursor":"Mw==","tryLater":true}`)
	f.Add(`{"items":[{"time":null,"entryType":"\u0000"},null,{"amount":1e99}],"hasMore":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		var page vippsReport
		if json.Unmarshal([]byte(body), &page) != nil {
			return
		}
		rows, ok := page.rows("2026-11-20")
		if !ok {
			return
		}
		if len(rows) != len(page.Items) {
			t.Errorf("%d rows of %d", len(rows), len(page.Items))
		}
		for i, r := range rows {
			checkLedgerRow(t, &r)
			if r.net() != page.Items[i].Amount || r.paymentID != "" && !validID("pay", r.paymentID) ||
				r.schedules != nil && (r.schedules.providerID == "" || r.schedules.amount != -r.net()) {
				t.Errorf("%+v of %s", r, body)
			}
		}
	})
}
