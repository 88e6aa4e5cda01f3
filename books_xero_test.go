package main

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// A xeroSide is our client of a fake, on a clock of its own.
type xeroSide struct {
	*xeroLedger
	t    testing.TB
	fake *xeroFake
	s    *ledgerSession
	at   time.Time
}

const xeroRedirect = "https://www.example.com/v1/books/callback/xero"

func newXeroSide(t testing.TB) *xeroSide {
	s := &xeroSide{t: t, at: time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)}
	s.fake = newXeroFake(t, func() time.Time { return s.at })
	s.xeroLedger = newXeroLedger(outboundTo(t, loopbackRange), s.fake.base+"/", s.fake.now)
	return s
}

// agreed has the person agree, and returns the tokens.
func (s *xeroSide) agreed() *bookTokens {
	s.t.Helper()
	verifier := strings.Repeat("v", 43)
	address := s.authorizeURL(s.fake.app, xeroRedirect, "state 1", pkceChallenge(verifier))
	back, err := url.Parse(s.fake.approve(address))
	if err != nil || back.Query().Get("state") != "state 1" {
		s.t.Fatal(back, err)
	}
	tokens, err := s.exchange(s.t.Context(), s.fake.app, xeroRedirect, back.Query().Get("code"), verifier)
	must(s.t, err)
	return tokens
}

// connect connects with the first company.
func (s *xeroSide) connect() *xeroSide {
	s.t.Helper()
	tokens := s.agreed()
	all, err := s.organisations(s.t.Context(), tokens)
	if err != nil || len(all) != 1 {
		s.t.Fatal(all, err)
	}
	c := &bookConnection{OrganisationID: &all[0].ID}
	s.s = &ledgerSession{connection: c, access: tokens.Access, linkID: all[0].LinkID}
	return s
}

// xeroDay is the entry of a day with two rates of VAT, a tip and two ways of paying.
func xeroDay() *bookEntry {
	return &bookEntry{Date: "2026-11-22", Currency: "CHF", Status: entryPosted,
		Narration: "Revenue of 2026-11-22 & more (widgetd:acct_1:2026-11-22:r1)",
		Lines: []entryLine{
			{Account: "600", Text: "Card", Debit: 184200},
			{Account: "602", Text: "Cash", Debit: 5},
			{Account: "200", Text: "Sales 8.1 %, food", Credit: 108105, Tax: "OUTPUT2", CostCenter: "Region:North"},
			{Account: "201", Text: "Sales 2.6 %", Credit: 74100, Tax: "OUTPUT3"},
			{Account: "220", Text: "Tips <for> \"the team\"", Credit: 2000, Tax: "NONE"},
		}}
}

const xeroDayKey = "widgetd:acct_1:2026-11-22:r1"

// posted writes an entry into the books.
func (s *xeroSide) posted(e *bookEntry, key string) string {
	s.t.Helper()
	id, err := s.post(s.t.Context(), s.s, e, s.encode(e), key)
	must(s.t, err)
	return id
}

// booked reads an entry.
func (s *xeroSide) booked(id string) *bookedEntry {
	s.t.Helper()
	b, err := s.read(s.t.Context(), s.s, id)
	must(s.t, err)
	return b
}

// found looks for an entry by a sync key.
func (s *xeroSide) found(e *bookEntry, key string) *bookedEntry {
	s.t.Helper()
	b, err := s.find(s.t.Context(), s.s, e, key)
	must(s.t, err)
	return b
}

func TestXero_callsXerosHosts(t *testing.T) {
	t.Parallel()
	x := newXeroLedger(newOutbound(nil), "", time.Now)
	got := []string{x.authorize, x.token, x.api, x.connections}
	want := []string{"https://login.xero.com/identity/connect/authorize", "https://identity.xero.com/connect/token",
		"https://api.xero.com/api.xro/2.0", "https://api.xero.com/connections"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if n, in := xeroProduct.requests, xeroProduct.within; n != 55 || in != time.Minute {
		t.Errorf("%d requests in %v", n, in)
	}
	address := x.authorizeURL(appSecrets{"id&1", "secret"}, "https://a.example/cb?x=1", "st+ate", "cha_ll-enge")
	if address != "https://login.xero.com/identity/connect/authorize?client_id=id%261&code_challenge=cha_ll-enge"+
		"&code_challenge_method=S256&redirect_uri=https%3A%2F%2Fa.example%2Fcb%3Fx%3D1&response_type=code"+
		"&scope=offline_access%20accounting.manualjournals%20accounting.settings.read&state=st%2Bate" {
		t.Error(address)
	}
}

// Against an entry with a text like another's key that would be taken for it: keys are compared as whole words.
func TestXero_findsByTheWholeKey(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	put := func(narration string, date businessDate) string {
		e := xeroDay()
		e.Narration, e.Date = narration, date
		return s.posted(e, "")
	}
	e := xeroDay()
	put("widgetd:acct_1:2026-11-22:r12", "2026-11-22")
	put("xwidgetd:acct_1:2026-11-22:r1", "2026-11-22")
	put(xeroDayKey, "2026-11-20")
	put(xeroDayKey, "2026-11-24")
	if found := s.found(e, xeroDayKey); found != nil {
		t.Errorf("%+v", found)
	}
	for _, date := range []businessDate{"2026-11-21", "2026-11-22", "2026-11-23"} {
		id := put("a widgetd:acct_1:2026-11-22:r12 and "+xeroDayKey+", seen\nby the accountant", date)
		found := s.found(e, xeroDayKey)
		if found == nil || found.ID != id || found.Deleted || len(found.Entry.Lines) != 5 {
			t.Errorf("%s: %+v", date, found)
		}
		s.fake.void(id)
		if found := s.found(e, xeroDayKey); found == nil || !found.Deleted {
			t.Errorf("%s: deleted, %+v", date, found)
		}
	}
	id := put(xeroDayKey, "2026-11-23") // after those that are deleted
	if found := s.found(e, xeroDayKey); found == nil || found.ID != id {
		t.Errorf("%+v", found)
	}
	e.Date = "22.11.2026"
	isVendorError(t, second(s.find(t.Context(), s.s, e, xeroDayKey)), vendorRefused, 0, "date")
}

// isVendorError reports an error unless err is that of a call with an outcome, a status (0: none) and a reason.
func isVendorError(t testing.TB, err error, outcome vendorOutcome, status int, reason string) {
	t.Helper()
	got, ok := errors.AsType[*outboundError](err)
	if !ok || got.outcome != outcome || got.status != status || got.reason != reason {
		t.Errorf("%+v (%v), not outcome %d, status %d, reason %s", got, err, outcome, status, reason)
	}
}
