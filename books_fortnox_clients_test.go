package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// fortnoxOwnDescription is Fortnox' own description of its API, of what we use.
const fortnoxOwnDescription = "../shared/vendor/fortnox-vouchers.json"

// TestClients_fortnoxDescriptionAllowsWhatWeSendAndTheFakeAnswers has Prism judge each request of our client
// and each answer of the fake. Not judged are: tokens and authentication, which the description lacks; what
// the parameters limit, page, date, fromdate and todate mean, and MetaInformation, which Fortnox' guides
// have and the description lacks; and whether a voucher balances.
func TestClients_fortnoxDescriptionAllowsWhatWeSendAndTheFakeAnswers(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	s := newFortnoxSide(t)
	prism := judgeBy(t, dir, fortnoxOwnDescription, s.fake.base)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/3/") {
			prism.ServeHTTP(w, r)
		} else {
			s.fake.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	s.fortnoxLedger = newFortnoxLedger(s.out, front.URL, s.fake.now)
	s.wholeLife()
	if prism.judged != 18 || len(prism.violations) > 0 {
		t.Errorf("%d requests were judged: %s", prism.judged, strings.Join(prism.violations, "\n"))
	}
	s.isJudged(prism)
}

// wholeLife connects with a company and posts, finds, reads, and is refused.
func (s *fortnoxSide) wholeLife() {
	s.t.Helper()
	tokens, companies := s.agree()
	s.s = &ledgerSession{connection: s.c, access: tokens.Access}
	if len(companies) != 1 || companies[0].ID != "1234567" {
		s.t.Errorf("%+v", companies)
	}
	for _, until := range []businessDate{"", "2026-10-31"} {
		s.fake.lock(until)
		chart, err := s.chart(s.t.Context(), s.s, "2026-11-21")
		if err != nil || chart.Year != 2 || chart.LockedUntil != until || len(chart.Series) != 3 {
			s.t.Errorf("%+v, %v", chart, err)
		}
	}
	entry := fortnoxEntry()
	before, id := s.found(fortnoxKey), s.posted(entry)
	if found := s.found(fortnoxKey); before != "" || found != id {
		s.t.Errorf("found %q before and %q after it was posted", before, found)
	}
	s.fake.strikeRow(0, 3002, 3003)
	if booked, err := s.read(s.t.Context(), s.s, id); err != nil || len(booked.Entry.Lines) != 5 {
		s.t.Errorf("%+v, %v", booked, err)
	}
	if booked, err := s.read(s.t.Context(), s.s, "W-9-2"); booked != nil || err != nil {
		s.t.Errorf("%+v, %v", booked, err)
	}
	s.at = s.at.Add(5 * time.Second)
	s.fake.lock("2026-11-30")
	_, err := s.post(s.t.Context(), s.s, entry, s.encode(entry), "")
	isVendorError(s.t, err, vendorRefused, 400, heldLocked)
	s.fake.lock("")
	s.fake.deactivate(3001)
	_, err = s.post(s.t.Context(), s.s, entry, s.encode(entry), "")
	isVendorError(s.t, err, vendorRefused, 400, heldUnusable)
	s.fake.forgetTokens()
	_, err = s.read(s.t.Context(), s.s, id)
	isVendorError(s.t, err, vendorDenied, 401, "http_401")
}

// isJudged reports an error unless a request and an answer that break the description are found.
func (s *fortnoxSide) isJudged(prism *prismJudge) {
	s.t.Helper()
	tokens, err := s.renew(s.t.Context(), s.fake.app, s.c, nil)
	must(s.t, err)
	s.s.access = tokens.Access
	entry, sent := fortnoxEntry(), s.fake.came("POST", "/3/vouchers")
	body := strings.Replace(s.encode(entry), "1580", "158", 1) // no account has a number below 1000
	if _, err := s.post(s.t.Context(), s.s, entry, body, ""); err == nil ||
		s.fake.came("POST", "/3/vouchers") != sent {
		s.t.Errorf("a request that breaks the description: %v", err)
	}
	for operation, body := range map[string]string{
		"read":  `{"Voucher":{"Description":"x"}}`,
		"chart": `{"FinancialYears":[{"Id":"2"}]}`,
	} {
		prism.violations = nil
		s.fake.strike(operation, vendorFault{after: true, answer: vendorAnswer{200, nil, body}})
		_, err := s.read(s.t.Context(), s.s, "W-1-2")
		if err == nil {
			_, err = s.chart(s.t.Context(), s.s, "2026-11-21")
		}
		if err == nil || len(prism.violations) == 0 {
			s.t.Errorf("%s, an answer that breaks the description: %v", operation, err)
		}
	}
}
