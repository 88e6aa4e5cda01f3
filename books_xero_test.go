package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/url"
	"reflect"
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
	proof := sha256.Sum256([]byte(verifier))
	challenge := base64.RawURLEncoding.EncodeToString(proof[:])
	back, err := url.Parse(s.fake.approve(s.authorizeURL(s.fake.app, xeroRedirect, "state 1", challenge)))
	if err != nil || back.Query().Get("state") != "state 1" {
		s.t.Fatal(back, err)
	}
	tokens, err := s.exchange(s.t.Context(), s.fake.app, xeroRedirect, back.Query().Get("code"), verifier)
	if err != nil {
		s.t.Fatal(err)
	}
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
	s.s = &ledgerSession{connection: &bookConnection{OrganisationID: &all[0].ID}, access: tokens.Access, linkID: all[0].LinkID}
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
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// booked reads an entry.
func (s *xeroSide) booked(id string) *bookedEntry {
	s.t.Helper()
	b, err := s.read(s.t.Context(), s.s, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// isLedgerError compares an error with the one that is wanted, but for its detail.
func isLedgerError(t testing.TB, err error, want ledgerError) {
	t.Helper()
	var got *ledgerError
	if !errors.As(err, &got) {
		t.Errorf("%v is no ledgerError", err)
		return
	}
	plain := *got
	plain.detail = ""
	if plain != want {
		t.Errorf("%+v, not %+v", *got, want)
	}
}

func TestXero_connectsPostsAndReads(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	sent := xeroDay()
	id := s.posted(sent, "exp_1")
	last := s.fake.last()
	if got := last.header; got.Get("Authorization") != "Bearer "+s.s.access || got.Get("Idempotency-Key") != "exp_1" ||
		got.Get("Xero-Tenant-Id") != s.fake.companies[0].tenant || got.Get("Accept") != "application/json" ||
		got.Get("Content-Type") != "application/json" || last.method != "PUT" {
		t.Errorf("%s %v", last.method, got)
	}
	b := s.booked(id)
	if b.ID != id || b.Deleted || b.Draft || b.Entry.Status != entryPosted || !sameXeroEntry(sent, &b.Entry) {
		t.Errorf("%+v", b)
	}
	found, err := s.find(t.Context(), s.s, sent, xeroDayKey)
	if err != nil || !reflect.DeepEqual(found, b) {
		t.Errorf("%+v, %v", found, err)
	}
}
