package main

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A fortnoxSide is our client of a fake, on a clock of its own, connected with its company.
type fortnoxSide struct {
	*fortnoxLedger
	t    testing.TB
	fake *fortnoxFake
	c    *bookConnection
	s    *ledgerSession
	at   time.Time
}

const fortnoxRedirect = "https://widget.example.com/v1/books/callback/fortnox"

func newFortnoxSide(t testing.TB) *fortnoxSide {
	s := &fortnoxSide{t: t, at: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}
	s.fake = newFortnoxFake(t, func() time.Time { return s.at })
	s.fortnoxLedger = newFortnoxLedger(outboundTo(t, loopbackRange), s.fake.base+"/", s.fake.now)
	tokens, companies := s.agree()
	if tokens.Refresh != "" || !tokens.ExpiresAt.Equal(s.at.Add(time.Hour)) || len(companies) != 1 {
		t.Errorf("%+v, %+v", tokens, companies)
	}
	s.c = &bookConnection{Product: productFortnox, OrganisationID: &companies[0].ID, Organisation: companies[0].Name}
	s.s = &ledgerSession{connection: s.c, access: tokens.Access}
	return s
}

// agree has the owner agree, and returns the tokens and the companies that come of it.
func (s *fortnoxSide) agree() (*bookTokens, []bookOrganisation) {
	s.t.Helper()
	back, err := url.Parse(s.fake.approve(s.authorizeURL(s.fake.app, fortnoxRedirect, "the state", "challenge")))
	if err != nil || back.Query().Get("state") != "the state" {
		s.t.Fatalf("the browser is sent to %s: %v", back, err)
	}
	tokens, err := s.exchange(s.t.Context(), s.fake.app, fortnoxRedirect, back.Query().Get("code"), "verifier")
	must(s.t, err)
	companies, err := s.organisations(s.t.Context(), tokens)
	must(s.t, err)
	return tokens, companies
}

const fortnoxKey = "widgetd:acc_01jd8z6q6r1w5qk1m2n3p4r5s6:2026-11-21:r1"

// fortnoxEntry is an entry of a day of 12,345.67 at two rates.
func fortnoxEntry() *bookEntry {
	return &bookEntry{Date: "2026-11-21", Narration: "Revenue of 2026-11-21 (" + fortnoxKey + ")", Currency: "SEK",
		Series: "W", Year: 2, Lines: []entryLine{
			{Account: "1580", Text: "Card", Debit: 1_234_567},
			{Account: "3001", Text: "Sales 25 %, drinks", Credit: 400_000, CostCenter: "BAR"},
			{Account: "2611", Text: "VAT 25 %", Credit: 100_000},
			{Account: "3002", Text: "Sales 12 %", Credit: 655_863},
			{Account: "2621", Text: "VAT 12 %", Credit: 78_704},
		}}
}

// posted posts an entry, which must be taken.
func (s *fortnoxSide) posted(entry *bookEntry) string {
	s.t.Helper()
	id, err := s.post(s.t.Context(), s.s, entry, s.encode(entry), "key")
	must(s.t, err)
	return id
}

// found looks for the entry with a sync key, and returns its id; "": there is none.
func (s *fortnoxSide) found(key string) string {
	s.t.Helper()
	booked, err := s.find(s.t.Context(), s.s, fortnoxEntry(), key)
	must(s.t, err)
	if booked == nil {
		return ""
	}
	return booked.ID
}

func TestFortnox_asksTheRealHosts(t *testing.T) {
	t.Parallel()
	f := newFortnoxLedger(newOutbound(nil), "", time.Now)
	address := f.authorizeURL(appSecrets{"id/1", "secret"}, "https://a.example/b?c=1&d", "st&te", "ch-_")
	const want = "https://apps.fortnox.se/oauth-v1/auth?access_type=offline&account_type=service&client_id=id%2F1" +
		"&code_challenge=ch-_&code_challenge_method=S256&redirect_uri=https%3A%2F%2Fa.example%2Fb%3Fc%3D1%26d" +
		"&response_type=code&scope=bookkeeping+companyinformation+settings&state=st%26te"
	if address != want || f.api != "https://api.fortnox.se" {
		t.Errorf("%s\n%s", address, f.api)
	}
	if n, in := f.pace(); n != 20 || in != 5*time.Second {
		t.Errorf("%d in %s", n, in)
	}
}

func TestFortnox_connectsOnceThenByClientCredentials(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	if *s.c.OrganisationID != "1234567" || s.c.Organisation != "Krogen på hörnet AB" {
		t.Errorf("the company is %s, %s", *s.c.OrganisationID, s.c.Organisation)
	}
	tokens, err := s.renew(t.Context(), s.fake.app, s.c, &bookTokens{Refresh: "never sent"})
	if err != nil || tokens.Access == s.s.access || tokens.Refresh != "" ||
		!tokens.ExpiresAt.Equal(s.at.Add(time.Hour)) {
		t.Fatalf("%+v, %v", tokens, err)
	}
	s.at = s.at.Add(time.Hour)
	_, err = s.read(t.Context(), s.s, "W-1-2")
	isLedgerError(t, err, ledgerError{status: 401, reason: "http_401", denied: true})
	tokens, err = s.renew(t.Context(), s.fake.app, s.c, tokens)
	must(t, err)
	if booked, err := s.read(t.Context(), &ledgerSession{connection: s.c, access: tokens.Access},
		"W-1-2"); booked != nil || err != nil {
		t.Errorf("%+v, %v", booked, err)
	}
	if err := s.disconnect(t.Context(), s.s); err != nil {
		t.Error(err)
	}
}

func TestFortnox_writesVouchers(t *testing.T) {
	t.Parallel()
	f := newFortnoxLedger(newOutbound(nil), "", time.Now)
	const want = `{"Voucher":{"Description":"Revenue of 2026-11-21 (` + fortnoxKey + `)",` +
		`"TransactionDate":"2026-11-21","VoucherSeries":"W","VoucherRows":[` +
		`{"Account":1580,"Debit":12345.67,"Credit":0.00,"TransactionInformation":"Card"},` +
		`{"Account":3001,"Debit":0.00,"Credit":4000.00,"CostCenter":"BAR",` +
		`"TransactionInformation":"Sales 25 %, drinks"},` +
		`{"Account":2611,"Debit":0.00,"Credit":1000.00,"TransactionInformation":"VAT 25 %"},` +
		`{"Account":3002,"Debit":0.00,"Credit":6558.63,"TransactionInformation":"Sales 12 %"},` +
		`{"Account":2621,"Debit":0.00,"Credit":787.04,"TransactionInformation":"VAT 12 %"}]}}`
	if got := f.encode(fortnoxEntry()); got != want {
		t.Errorf("%s", got)
	}
}

func TestFortnox_textsAreWhatItTakes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Sales 25 %, food":                   "Sales 25 %, food",
		"🍕 Pizza\u200d & \ufe0fPasta\n – kr": "Pizza & Pasta – kr",
		"Sma\u030a rätter «€» \t½":           "Sma\u030a rätter «€» ½",
		"\x00":                               "",
	} {
		if got := fortnoxText(in); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
	long := strings.Repeat("åäö ", 100)
	for _, narration := range []string{fortnoxKey + " " + long, long + fortnoxKey,
		long + "(" + fortnoxKey + ") " + long} {
		got := fortnoxDescription(narration)
		if !hasSyncKey(got, fortnoxKey) || utf8.RuneCountInString(got) > 200 || utf8.RuneCountInString(got) < 190 {
			t.Errorf("%q", got)
		}
	}
	if got := fortnoxDescription("Short, " + fortnoxKey); got != "Short, "+fortnoxKey {
		t.Errorf("%q", got)
	}
	if got := cutText(long, 100); utf8.RuneCountInString(got) != 99 { // a space at its end is left out
		t.Errorf("%q", got)
	}
}

func TestFortnox_postsAndReads(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	entry := fortnoxEntry()
	entry.Lines[1].Text = "🍕 " + strings.Repeat("Pizza ", 30)
	if id := s.posted(entry); id != "W-1-2" {
		t.Errorf("its id is %s", id)
	}
	if id := s.posted(entry); id != "W-2-2" { // nothing is idempotent
		t.Errorf("its id is %s", id)
	}
	if all := s.fake.vouchers(); len(all) != 2 || all[0].rows[0].debit != 1_234_567 || all[0].rows[4].credit != 78_704 {
		t.Errorf("%+v", all)
	}
	booked, err := s.read(t.Context(), s.s, "W-2-2")
	must(t, err)
	want := &bookedEntry{ID: "W-2-2", Entry: *entry}
	want.Entry.Lines[1].Text = strings.TrimSpace(strings.Repeat("Pizza ", 30)[:100])
	if !reflect.DeepEqual(booked, want) {
		t.Errorf("%+v\nnot\n%+v", booked, want)
	}
	for _, id := range []string{"W-3-2", "W-1-1", "A-1-2", "W-1", "", "W-0-2", "W--2", "-1-2"} {
		if booked, err := s.read(t.Context(), s.s, id); booked != nil || err != nil {
			t.Errorf("%s: %+v, %v", id, booked, err)
		}
	}
	isLedgerError(t, s.withdraw(t.Context(), s.s, "W-1-2"), ledgerError{reason: "no_drafts", refused: true})
}

func TestFortnox_whatCantBeTakenIsNotSent(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	for name, c := range map[string]struct {
		change func(e *bookEntry)
		reason string
	}{
		"another currency":         {func(e *bookEntry) { e.Currency = "EUR" }, heldCurrency},
		"year 0":                   {func(e *bookEntry) { e.Year = 0 }, heldNoYear},
		"no series":                {func(e *bookEntry) { e.Series = "" }, heldNoSeries},
		"a code that is no number": {func(e *bookEntry) { e.Lines[0].Account = "15800" }, heldUnusable},
		"one row":                  {func(e *bookEntry) { e.Lines = e.Lines[:1] }, "too_few_rows"},
	} {
		entry := fortnoxEntry()
		c.change(entry)
		_, err := s.post(t.Context(), s.s, entry, s.encode(entry), "key")
		t.Log(name)
		isLedgerError(t, err, ledgerError{reason: c.reason, refused: true})
	}
	equal(t, "requests", s.fake.came("POST", "/3/vouchers"), 0)
}

func TestFortnox_findsByTheWholeSyncKey(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	other := fortnoxEntry()
	other.Narration = "Revenue " + fortnoxKey + "2"
	s.posted(other)
	if id := s.found(fortnoxKey); id != "" {
		t.Errorf("found %s by the key of another revision", id)
	}
	s.fake.fail("post", faultResetAfter) // the answer is lost
	if id, err := s.post(t.Context(), s.s, fortnoxEntry(), s.encode(fortnoxEntry()), ""); err == nil {
		t.Fatalf("posted %s", id)
	}
	if id := s.found(fortnoxKey); id != "W-2-2" {
		t.Errorf("found %q", id)
	}
	if id := s.found(fortnoxKey + "2"); id != "W-1-2" {
		t.Errorf("found %q", id)
	}
	s.fake.removeSeries("W")
	s.fake.change(func(c *fortnoxFakeCompany) { c.vouchers = nil })
	if id := s.found(fortnoxKey); id != "" {
		t.Errorf("found %q", id)
	}
}

func TestFortnox_syncKeyIsAWord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		fortnoxKey:                              true,
		"(" + fortnoxKey + ").":                 true,
		"Revenue: " + fortnoxKey + ": food":     true,
		fortnoxKey + "2 " + fortnoxKey:          true,
		fortnoxKey + "2":                        false,
		fortnoxKey + "å":                        false,
		"x" + fortnoxKey:                        false,
		strings.ToUpper(fortnoxKey):             false,
		fortnoxKey + fortnoxKey:                 false,
		"":                                      false,
		"nothing of ours, widgetd:acc_1:2026:r": false,
	} {
		if hasSyncKey(text, fortnoxKey) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	if hasSyncKey("anything", "") {
		t.Error("the empty key is found")
	}
}

// TestFortnox_searchesThroughAllPages looks for the oldest of a year's vouchers while dates are of no use.
func TestFortnox_searchesThroughAllPages(t *testing.T) {
	t.Parallel()
	for _, dates := range []string{"ignored", "refused"} {
		s := newFortnoxSide(t)
		s.fake.dates = dates
		s.posted(fortnoxEntry())
		s.fake.change(func(c *fortnoxFakeCompany) {
			for number := int64(2); number <= 2400; number++ {
				c.vouchers = append(c.vouchers, &fortnoxFakeVoucher{series: "W", number: number, year: 2,
					description: fmt.Sprintf("Voucher %d", number), date: "2026-11-22"})
			}
			c.vouchers[2000].description = "A second one " + fortnoxKey + "3"
		})
		before := s.fake.came("GET", "/3/vouchers/sublist/W")
		if id := s.found(fortnoxKey); id != "W-1-2" {
			t.Fatalf("%s: %q", dates, id)
		}
		if n := s.fake.came("GET", "/3/vouchers/sublist/W") - before; n != 5 && dates == "ignored" || n > 6 {
			t.Errorf("%s: %d requests", dates, n)
		}
	}
}

func FuzzFortnoxVoucher(f *testing.F) {
	for _, body := range []string{`{"Voucher":{"VoucherSeries":"W-2","VoucherNumber":17,"Year":2,` +
		`"TransactionDate":"2026-11-21","Description":"x","VoucherRows":[` +
		`{"Account":3001,"Debit":1.5,"Credit":0},{"Account":3002,"Credit":-1000}]}}`, `{}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		body, err := parseJSON(text)
		if err != nil {
			return
		}
		voucher, ok := parseFortnoxVoucher(&body, 3)
		if !ok {
			return
		}
		series, number, year, ok := parseFortnoxID(voucher.ID)
		if !ok || series != voucher.Entry.Series || year != voucher.Entry.Year ||
			fortnoxID(series, number, year) != voucher.ID {
			t.Errorf("%q is %s, %d, %d", voucher.ID, series, number, year)
		}
		for _, line := range voucher.Entry.Lines {
			if line.Debit < 0 || line.Credit < 0 {
				t.Errorf("%+v", line)
			}
		}
	})
}
