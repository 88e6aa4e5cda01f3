package main

import (
	"encoding/base64"
	"errors"
	"net/url"
	"reflect"
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

func TestXero_connectsPostsAndReads(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	sent := xeroDay()
	id := s.posted(sent, "exp_1")
	last := s.fake.last()
	if got := last.header; got.Get("Authorization") != "Bearer "+s.s.access ||
		got.Get("Idempotency-Key") != "exp_1" || got.Get("Xero-Tenant-Id") != s.fake.companies[0].tenant ||
		got.Get("Accept") != "application/json" ||
		got.Get("Content-Type") != "application/json" || last.method != "PUT" {
		t.Errorf("%s %v", last.method, got)
	}
	b := s.booked(id)
	if b.ID != id || b.Deleted || b.Draft || b.Entry.Status != entryPosted || !sameEntry(sent, &b.Entry) {
		t.Errorf("%+v", b)
	}
	if found := s.found(sent, xeroDayKey); !reflect.DeepEqual(found, b) {
		t.Errorf("%+v", found)
	}
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
	if n, in := x.pace(); n != 55 || in != time.Minute {
		t.Errorf("%d requests in %v", n, in)
	}
	address := x.authorizeURL(appSecrets{"id&1", "secret"}, "https://a.example/cb?x=1", "st+ate", "cha_ll-enge")
	if address != "https://login.xero.com/identity/connect/authorize?client_id=id%261&code_challenge=cha_ll-enge"+
		"&code_challenge_method=S256&redirect_uri=https%3A%2F%2Fa.example%2Fcb%3Fx%3D1&response_type=code"+
		"&scope=offline_access%20accounting.manualjournals%20accounting.settings.read&state=st%2Bate" {
		t.Error(address)
	}
}

func TestXero_bodyOfAnEntry(t *testing.T) {
	t.Parallel()
	x := newXeroLedger(newOutbound(nil), "", time.Now)
	e := xeroDay()
	const lines = `"JournalLines":[` +
		`{"LineAmount":1842.00,"AccountCode":"600","Description":"Card","TaxType":"NONE"},` +
		`{"LineAmount":0.05,"AccountCode":"602","Description":"Cash","TaxType":"NONE"},` +
		`{"LineAmount":-1081.05,"AccountCode":"200","Description":"Sales 8.1 %, food","TaxType":"OUTPUT2",` +
		`"Tracking":[{"Name":"Region","Option":"North"}]},` +
		`{"LineAmount":-741.00,"AccountCode":"201","Description":"Sales 2.6 %","TaxType":"OUTPUT3"},` +
		`{"LineAmount":-20.00,"AccountCode":"220","Description":"Tips <for> \"the team\"","TaxType":"NONE"}]}]}`
	for status, name := range map[string]string{entryPosted: "POSTED", entryDraft: "DRAFT"} {
		e.Status = status
		want := `{"ManualJournals":[{"Narration":"Revenue of 2026-11-22 & more (widgetd:acct_1:2026-11-22:r1)",` +
			`"Date":"2026-11-22","LineAmountTypes":"Inclusive","Status":"` + name + `",` + lines
		if got := x.encode(e); got != want {
			t.Errorf("%s\nnot %s", got, want)
		}
	}
}

// isGrantErrorOf reports an error unless err is the refusal of tokens with a code.
func isGrantErrorOf(t testing.TB, err error, code string) {
	t.Helper()
	var refused *grantError
	if !errors.As(err, &refused) || refused.code != code {
		t.Errorf("%v, not %s", err, code)
	}
}

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
	isLedgerError(t, second(s.find(t.Context(), s.s, e, xeroDayKey)), ledgerError{reason: "date", refused: true})
}

func TestXero_readsWhatTheAccountantDid(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	sent := xeroDay()
	sent.Status = entryDraft
	id := s.posted(sent, "")
	same := func(want bool) {
		t.Helper()
		if b := s.booked(id); sameEntry(sent, &b.Entry) != want {
			t.Errorf("the same: %v, %+v", !want, b)
		}
	}
	same(true)
	s.fake.postDraft(id)
	same(true)
	s.fake.on(id, func(j *xeroFakeJournal) { // the same amounts, shown in another way: VAT is 81.01 and 18.78
		j.kind, j.lines[2].amount, j.lines[3].amount = "Exclusive", -100005, -72222
	})
	same(true)
	s.fake.on(id, func(j *xeroFakeJournal) {
		j.kind, j.lines[2].amount, j.lines[3].amount = "NoTax", -108105, -74100
	})
	same(false)
	s.fake.on(id, func(j *xeroFakeJournal) { j.kind = "Inclusive" })
	same(true)
	s.fake.edit(id)
	same(false)
}

func TestXero_withdrawsOnlyDrafts(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	e := xeroDay()
	e.Status = entryDraft
	draft := s.posted(e, "")
	for range 2 { // the second time it is gone
		if err := s.withdraw(t.Context(), s.s, draft); err != nil {
			t.Error(err)
		}
	}
	if n := s.fake.came("POST", "/api.xro/2.0/ManualJournals/"+draft); n != 1 {
		t.Errorf("%d requests", n)
	}
	if j := s.fake.journals()[0]; j.status != "DELETED" || j.narration != e.Narration || len(j.lines) != 5 {
		t.Errorf("%+v", j)
	}
	posted := s.posted(xeroDay(), "")
	isLedgerError(t, s.withdraw(t.Context(), s.s, posted), ledgerError{reason: "not_a_draft", refused: true})
	if s.fake.journals()[1].status != "POSTED" {
		t.Error("what was posted is deleted")
	}
}

func TestXero_datesAndNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]businessDate{
		"/Date(1573755038314)/": "2019-11-14", "/Date(1546214400000+0000)/": "2018-12-31", "/Date(0)/": "1970-01-01",
		"/Date(-86400000)/": "1969-12-31", "/Date(1546214400000-0100)/": "2018-12-30",
		"/Date(1546210800000+0100)/": "2018-12-31",
		"2019-11-14":                 "2019-11-14", "2019-11-14T00:00:00": "2019-11-14",
		"2019-11-14T23:59:59Z": "2019-11-14",
		"":                     "", "/Date()/": "", "/Date(1)": "", "/Date(x)/": "", "/Date(1+1)/": "",
		"/Date(9223372036854775807)/": "",
		"2019-11-31":                  "", "2019-11-14T": "", "14.11.2019": "",
	} {
		if got, ok := xeroDate(text); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s %v", text, got, ok)
		}
	}
	const bad = maxAmount + 1
	for text, want := range map[string]int64{
		"0": 0, "-2569.0": -256900, "100.0": 10000, "12.5": 1250, "12.50": 1250, "12.5000": 1250, "0.05": 5,
		"-0.01": -1, "10000000000": maxAmount, "8.1000": 810, "12.505": bad, "1e2": bad,
		"10000000000.01": bad, "1.5e0": bad,
	} {
		got, ok := hundredths(&jsonValue{kind: jsonNumber, text: text})
		if ok != (want != bad) || ok && got != want {
			t.Errorf("%s: %d %v", text, got, ok)
		}
	}
	if _, ok := hundredths(&jsonValue{kind: jsonString, text: "1"}); ok {
		t.Error("a string is taken for a number")
	}
}

func TestXero_eventOfAToken(t *testing.T) {
	t.Parallel()
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for access, want := range map[string]string{
		token(`{"authentication_event_id":"d2c"}`): "d2c",
		token(`{"authentication_event_id":7}`):     "",
		token(`{}`):                                "",
		token(`nonsense`):                          "",
		token(`{"x":"` + strings.Repeat("x", maxAccessToken) + `","authentication_event_id":"d2c"}`): "",
		"e30.!.c2ln": "",
		"opaque":     "",
		"":           "",
	} {
		if got := xeroEvent(access); got != want {
			t.Errorf("%.80s: %s", access, got)
		}
	}
}

// FuzzXeroJournal has any journal read: what can be read is the same as itself, and its amounts are not
// negative.
func FuzzXeroJournal(f *testing.F) {
	f.Add([]byte(`{"ManualJournalID":"7","Narration":"k","Date":"/Date(1573755038314+0000)/","Status":"DRAFT",` +
		`"LineAmountTypes":"Exclusive","JournalLines":[{"LineAmount":-100.05,"TaxAmount":8.1,"AccountCode":"200",` +
		`"TaxType":"OUTPUT2","Tracking":[{"Name":"Region","Option":"North"}]},{"IsBlank":true}]}`))
	f.Add([]byte(`{"ManualJournalID":"7","Date":"2026-11-22","Status":"VOIDED",` +
		`"JournalLines":[{"LineAmount":1.000}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseJSON(text)
		if err != nil {
			return
		}
		b, ok := parseXeroJournal(&v)
		if !ok {
			return
		}
		if _, err := time.Parse(time.DateOnly, b.Entry.Date); err != nil || !sameEntry(&b.Entry, &b.Entry) {
			t.Errorf("%+v: %v", b, err)
		}
		for _, l := range b.Entry.Lines {
			if l.Debit < 0 || l.Credit < 0 || l.Debit > 0 && l.Credit > 0 {
				t.Errorf("%+v", l)
			}
		}
	})
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
