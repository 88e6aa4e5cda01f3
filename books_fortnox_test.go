package main

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
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

// isFortnoxError compares an error with the one that is wanted, of whose detail a part must be there.
func isFortnoxError(t testing.TB, err error, want ledgerError) {
	t.Helper()
	detail := want.detail
	want.detail = ""
	isLedgerError(t, err, want)
	if err != nil && !strings.Contains(err.Error(), detail) {
		t.Errorf("%v, without %s", err, detail)
	}
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
	isFortnoxError(t, err, ledgerError{status: 401, reason: "http_401", denied: true, detail: "Ogiltig inloggning"})
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

func TestFortnox_grantsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	back, _ := url.Parse(s.fake.approve(s.authorizeURL(s.fake.app, fortnoxRedirect, "state", "challenge")))
	code := back.Query().Get("code")
	for _, redirect := range []string{"https://elsewhere.example.com/", fortnoxRedirect} { // a code counts once
		tokens, err := s.exchange(t.Context(), s.fake.app, redirect, code, "verifier")
		if tokens != nil {
			t.Errorf("%+v", tokens)
		}
		isGrantErrorOf(t, err, "invalid_grant")
	}
	_, err := s.renew(t.Context(), appSecrets{s.fake.app.clientID, "wrong"}, s.c, nil)
	isGrantErrorOf(t, err, "invalid_client")
	other := "7654321"
	s.fake.addCompany(7654321, "Another company")
	_, err = s.renew(t.Context(), s.fake.app, &bookConnection{OrganisationID: &other}, nil)
	isGrantErrorOf(t, err, "invalid_grant")
	_, err = s.renew(t.Context(), s.fake.app, &bookConnection{}, nil)
	isFortnoxError(t, err, ledgerError{reason: heldReconnect, refused: true})
	s.fake.withdrawConsent()
	isGrantErrorOf(t, second(s.renew(t.Context(), s.fake.app, s.c, nil)), "invalid_grant")
	_, err = s.chart(t.Context(), s.s, "2026-11-21")
	isFortnoxError(t, err, ledgerError{status: 401, reason: "http_401", denied: true})
}

func TestFortnox_chartOfADate(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	s.fake.lock("2026-10-31")
	s.fake.change(func(c *fortnoxFakeCompany) {
		c.series = append(c.series, fortnoxFakeSeries{"NEXT", 3, true})
	})
	chart, err := s.chart(t.Context(), s.s, "2026-11-21")
	must(t, err)
	if chart.Currency != "SEK" || chart.LockedUntil != "2026-10-31" || chart.Year != 2 ||
		!slices.Equal(chart.Series, []string{"A", "F", "W"}) || chart.TaxRates != nil || chart.CostCenters != nil {
		t.Errorf("%+v", chart)
	}
	accounts := map[string]bookAccount{}
	for _, a := range chart.Accounts {
		accounts[a.Code] = a
	}
	if len(accounts) != len(s.fake.owner.accounts) {
		t.Errorf("%d accounts", len(accounts))
	}
	for code, want := range map[string]bookAccount{
		"1510": {"1510", "Kundfordringar", "", "", false, "receivable"},
		"1580": {"1580", "Fordringar för kontokort och kuponger", "", "", true, ""},
		"1910": {"1910", "Kassa", "", "", true, ""},
		"1930": {"1930", "Företagskonto", "", "", false, "bank"},
		"2421": {"2421", "Ej inlösta presentkort", "", "", true, ""},
		"2440": {"2440", "Leverantörsskulder", "", "", false, "payable"},
		"2611": {"2611", "Utgående moms 25 %", "", "U1", true, ""},
		"3001": {"3001", "Försäljning 25 %", "", "MP1", true, ""},
		"3004": {"3004", "Försäljning momsfri", "", "", false, "archived"},
	} {
		if accounts[code] != want {
			t.Errorf("%+v, not %+v", accounts[code], want)
		}
	}
	s.fake.lock("")
	s.fake.removeYear("2026-11-21")
	chart, err = s.chart(t.Context(), s.s, "2026-11-21")
	if err != nil || chart.Year != 0 || chart.LockedUntil != "" || chart.Series != nil || len(chart.Accounts) == 0 {
		t.Errorf("without a financial year: %+v, %v", chart, err)
	}
}

func TestFortnox_chartOfManyAccounts(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	s.fake.change(func(c *fortnoxFakeCompany) {
		c.accounts = nil
		for number := int64(3000); len(c.accounts) < maxFortnoxAccounts; number++ {
			c.accounts = append(c.accounts, fortnoxFakeAccount{number, "Konto", "", true})
		}
	})
	before := s.fake.came("GET", "/3/accounts")
	chart, err := s.chart(t.Context(), s.s, "2026-11-21")
	if err != nil || len(chart.Accounts) != maxFortnoxAccounts || chart.Accounts[4999].Code != "7999" {
		t.Fatalf("%v", err)
	}
	if n := s.fake.came("GET", "/3/accounts") - before; n != 10 {
		t.Errorf("%d requests", n)
	}
	s.at = s.at.Add(5 * time.Second)
	s.fake.change(func(c *fortnoxFakeCompany) {
		c.accounts = append(c.accounts, fortnoxFakeAccount{8000, "One too many", "", true})
	})
	_, err = s.chart(t.Context(), s.s, "2026-11-21")
	isFortnoxError(t, err, ledgerError{reason: outboundTooLarge, detail: "5000"})
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
	isFortnoxError(t, s.withdraw(t.Context(), s.s, "W-1-2"), ledgerError{reason: "no_drafts", refused: true})
}

func TestFortnox_readsWhatAnAccountantChanged(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	id := s.posted(fortnoxEntry())
	s.fake.strikeRow(0, 3002, 3003)
	booked, err := s.read(t.Context(), s.s, id)
	if err != nil || booked.Deleted || booked.Draft || len(booked.Entry.Lines) != 5 {
		t.Fatalf("%+v, %v", booked, err)
	}
	for _, line := range booked.Entry.Lines {
		if line.Account == "3002" || line.Account == "3003" && line.Credit != 655_863 {
			t.Errorf("%+v", line)
		}
	}
}

func TestFortnox_amountsOfRows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "12": 1200, "12.5": 1250, "12.50": 1250, "12.05": 1205,
		"12.5000": 1250, "12.0": 1200, "-3.5": -350, "0.01": 1, "10000000000": 1_000_000_000_000} {
		body, err := parseJSON([]byte(`{"Debit":` + text + `}`))
		if got, ok := amountMember(&body, "Debit"); err != nil || !ok || got != want {
			t.Errorf("%s is %d", text, got)
		}
	}
	for _, text := range []string{"12.505", "1e2", `"12"`, "true", "10000000000.01", "99999999999999999999"} {
		body, err := parseJSON([]byte(`{"Debit":` + text + `}`))
		if got, ok := amountMember(&body, "Debit"); err != nil || ok {
			t.Errorf("%s is %d", text, got)
		}
	}
	body, _ := parseJSON([]byte(`{"Voucher":{"VoucherSeries":"W","VoucherNumber":1,"TransactionDate":"2026-11-21",` +
		`"VoucherRows":[{"Account":3001,"Debit":-12.5,"Credit":0},{"Account":3002,"Credit":-1}]}}`))
	voucher, ok := parseFortnoxVoucher(&body, 2)
	want := []entryLine{{Account: "3001", Credit: 1250}, {Account: "3002", Debit: 100}}
	if !ok || !slices.Equal(voucher.Entry.Lines, want) || voucher.ID != "W-1-2" {
		t.Errorf("%+v", voucher)
	}
}

func TestFortnox_whatItRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(s *fortnoxSide)
		change func(e *bookEntry)
		want   ledgerError
	}{
		"locked": {before: func(s *fortnoxSide) { s.fake.lock("2026-11-21") },
			want: ledgerError{status: 400, reason: heldLocked, detail: "t.o.m. 2026-11-21", refused: true}},
		"no year": {before: func(s *fortnoxSide) { s.fake.removeYear("2026-01-01") },
			want: ledgerError{status: 400, reason: heldNoYear, detail: "Räkenskapsår saknas", refused: true}},
		"a date of another year": {change: func(e *bookEntry) { e.Date = "2027-01-01" },
			want: ledgerError{status: 400, reason: heldNoYear, refused: true}},
		"no series": {before: func(s *fortnoxSide) { s.fake.removeSeries("W") },
			want: ledgerError{status: 400, reason: heldNoSeries, refused: true}},
		"not manual": {before: func(s *fortnoxSide) { s.fake.setManual("W", false) },
			want: ledgerError{status: 400, reason: heldNoSeries, detail: "inte manuell", refused: true}},
		"inactive": {before: func(s *fortnoxSide) { s.fake.deactivate(3001) },
			want: ledgerError{status: 400, reason: heldUnusable, detail: `"3001" är inte aktivt`, refused: true}},
		"unknown account": {change: func(e *bookEntry) { e.Lines[0].Account = "1599" },
			want: ledgerError{status: 400, reason: heldUnusable, detail: "Kunde inte hitta konto", refused: true}},
		"cost centre": {change: func(e *bookEntry) { e.Lines[1].CostCenter = "GONE" },
			want: ledgerError{status: 400, reason: heldUnusable, detail: "Kostnadsstället", refused: true}},
		"unbalanced": {change: func(e *bookEntry) { e.Lines[0].Debit++ },
			want: ledgerError{status: 400, reason: "unbalanced", refused: true}},
		"no description": {change: func(e *bookEntry) { e.Narration = "" },
			want: ledgerError{status: 400, reason: "fortnox_2009999", refused: true}},
		"no licence": {
			before: func(s *fortnoxSide) { s.fake.change(func(c *fortnoxFakeCompany) { c.unlicensed = true }) },
			want: ledgerError{status: 403, reason: heldReconnect, detail: "Api-licens saknas.", refused: true,
				removed: true}},
		"a token that has ended": {before: func(s *fortnoxSide) { s.fake.forgetTokens() },
			want: ledgerError{status: 401, reason: "http_401", denied: true}},
		// These are not sent.
		"another currency": {change: func(e *bookEntry) { e.Currency = "EUR" },
			want: ledgerError{reason: heldCurrency, refused: true}},
		"year 0": {change: func(e *bookEntry) { e.Year = 0 }, want: ledgerError{reason: heldNoYear, refused: true}},
		"series of none": {change: func(e *bookEntry) { e.Series = "" },
			want: ledgerError{reason: heldNoSeries, refused: true}},
		"a code that is no number": {change: func(e *bookEntry) { e.Lines[0].Account = "15800" },
			want: ledgerError{reason: heldUnusable, detail: "15800", refused: true}},
		"one row": {change: func(e *bookEntry) { e.Lines = e.Lines[:1] },
			want: ledgerError{reason: "too_few_rows", refused: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, entry := newFortnoxSide(t), fortnoxEntry()
			if c.before != nil {
				c.before(s)
			}
			if c.change != nil {
				c.change(entry)
			}
			id, err := s.post(t.Context(), s.s, entry, s.encode(entry), "key")
			isFortnoxError(t, err, c.want)
			sent := s.fake.came("POST", "/3/vouchers")
			if id != "" || len(s.fake.vouchers()) != 0 || (sent == 1) != (c.want.status != 0) {
				t.Errorf("%q, %d requests, %+v", id, sent, s.fake.vouchers())
			}
		})
	}
}

func TestFortnox_answersThatAreLostOrNonsense(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	usual := s.out.limit
	entry := fortnoxEntry()
	for i, c := range []struct {
		after   bool
		trouble vippsTrouble
		want    ledgerError
	}{
		{false, vippsTrouble{status: 500}, ledgerError{status: 500, reason: "http_500"}},
		{true, vippsTrouble{status: 502, body: "<html>"}, ledgerError{status: 502, reason: "http_502"}},
		{true, vippsTrouble{reset: true}, ledgerError{reason: outboundNoConnect}},
		{true, vippsTrouble{hang: true}, ledgerError{reason: outboundTimeout}},
		{true, vippsTrouble{status: 201, body: `{"Voucher":`}, ledgerError{status: 201, reason: outboundMalformed}},
		{true, vippsTrouble{status: 201, body: `{}`}, ledgerError{status: 201, reason: outboundMalformed}},
		{true, vippsTrouble{status: 201, body: `{"Voucher":{"VoucherSeries":"A","VoucherNumber":1}}`},
			ledgerError{status: 201, reason: outboundMalformed}},
		{false, vippsTrouble{status: 400, body: "<html>"}, ledgerError{status: 400, reason: "http_400"}},
		{false, vippsTrouble{status: 400, body: `{"ErrorInformation":{"Message":"System exception","Code":1000003}}`},
			ledgerError{status: 400, reason: "http_400", detail: "System exception"}},
		{false, vippsTrouble{status: 409, body: `{"ErrorInformation":{"Error":1,"Message":"Vänta.","Code":1}}`},
			ledgerError{status: 409, reason: "http_409"}},
		{false, vippsTrouble{status: 302}, ledgerError{status: 302, reason: "http_302"}},
		{false, vippsTrouble{status: 403, body: "<html>"}, ledgerError{status: 403, reason: "http_403"}},
		{false, vippsTrouble{status: 429, header: http.Header{"Retry-After": {"7"}}},
			ledgerError{status: 429, reason: ledgerBusy, retryAfter: 7 * time.Second}},
		{false, vippsTrouble{status: 400, body: `{"ErrorInformation":{"message":"Ogiltig inloggning","code":2000311}}`},
			ledgerError{status: 400, reason: "http_400", detail: "Ogiltig inloggning", denied: true}},
		{false, vippsTrouble{status: 422, body: `{"ErrorInformation":{"Message":"The period is locked.","Code":7}}`},
			ledgerError{status: 422, reason: heldLocked, refused: true}},
	} {
		if s.out.limit = usual; c.trouble.hang {
			s.out.limit = 300 * time.Millisecond
		}
		before := len(s.fake.vouchers())
		s.fake.strikesOnce("POST", "/3/vouchers", c.after, &c.trouble)
		id, err := s.post(t.Context(), s.s, entry, s.encode(entry), "key")
		isFortnoxError(t, err, c.want)
		if written := len(s.fake.vouchers()) > before; id != "" || written != c.after {
			t.Errorf("%d: %q, written: %v", i, id, written)
		}
	}
}

func TestFortnox_readingWhatIsNonsense(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	s.posted(fortnoxEntry())
	const row = `{"Account":3001,"Debit":1,"Credit":0}`
	for _, body := range []string{"", "[]", "{}", `{"Voucher":{}}`,
		`{"Voucher":{"VoucherSeries":"W","VoucherNumber":2,"TransactionDate":"2026-11-21","VoucherRows":[` + row +
			`]}}`,
		`{"Voucher":{"VoucherSeries":"W","VoucherNumber":1,"TransactionDate":"21/11","VoucherRows":[` + row + `]}}`,
		`{"Voucher":{"VoucherSeries":"W","VoucherNumber":1,"TransactionDate":"2026-11-21"}}`,
		`{"Voucher":{"VoucherSeries":"W","VoucherNumber":1,"TransactionDate":"2026-11-21",` +
			`"VoucherRows":[{"Account":"3"}]}}`,
	} {
		s.fake.strikesOnce("GET", "/3/vouchers/W/1", true, &vippsTrouble{status: 200, body: body})
		booked, err := s.read(t.Context(), s.s, "W-1-2")
		isFortnoxError(t, err, ledgerError{status: 200, reason: outboundMalformed})
		if booked != nil {
			t.Errorf("%s is %+v", body, booked)
		}
		s.at = s.at.Add(5 * time.Second)
	}
	for path, body := range map[string]string{
		"/3/companyinformation":    `{"CompanyInformation":{"DatabaseNumber":"1"}}`,
		"/3/financialyears":        `{"FinancialYears":{}}`,
		"/3/settings/lockedperiod": `{"LockedPeriod":{"EndDate":"yesterday"}}`,
		"/3/accounts":              `{"Accounts":null}`,
		"/3/voucherseries":         `{}`,
		"/3/vouchers/sublist/W":    `{"Vouchers":[` + strings.Repeat("{},", 499) + `{}]}`, // pages are not told
	} {
		s.at = s.at.Add(5 * time.Second)
		s.fake.strikesOnce("GET", path, true, &vippsTrouble{status: 200, body: body})
		_, err := s.organisations(t.Context(), &bookTokens{Access: s.s.access})
		if err == nil {
			_, err = s.chart(t.Context(), s.s, "2026-11-21")
		}
		if err == nil {
			_, err = s.find(t.Context(), s.s, fortnoxEntry(), fortnoxKey)
		}
		isFortnoxError(t, err, ledgerError{status: 200, reason: outboundMalformed})
	}
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
	s.fake.strikesOnce("POST", "/3/vouchers", true, &vippsTrouble{reset: true}) // the answer is lost
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

func TestFortnox_searchHasABound(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	asked := 0
	s.fake.strikes(func(r bookFakeRequest, acted bool) *vippsTrouble {
		if !strings.HasPrefix(r.path, "/3/vouchers/sublist/") {
			return nil
		}
		asked++
		return &vippsTrouble{status: 200, body: `{"MetaInformation":{"@TotalPages":100},"Vouchers":[]}`}
	})
	booked, err := s.find(t.Context(), s.s, fortnoxEntry(), fortnoxKey)
	isFortnoxError(t, err, ledgerError{reason: "too_many_vouchers", detail: "too many vouchers"})
	if booked != nil || asked != maxFortnoxPages {
		t.Errorf("%+v, %d requests", booked, asked)
	}
}

func TestFortnox_rateLimit(t *testing.T) {
	t.Parallel()
	s := newFortnoxSide(t)
	s.at = s.at.Add(5 * time.Second)
	for range 25 {
		if _, err := s.read(t.Context(), s.s, "W-1-2"); err != nil {
			t.Fatal(err)
		}
	}
	entry := fortnoxEntry()
	_, err := s.post(t.Context(), s.s, entry, s.encode(entry), "")
	isFortnoxError(t, err, ledgerError{status: 429, reason: ledgerBusy, retryAfter: 5 * time.Second})
	s.at = s.at.Add(5 * time.Second)
	s.posted(entry)
}

func TestFortnox_messagesWithoutACodeOfOurs(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"Anna har låst perioden t.o.m. 2024-09-30. Lås upp perioden för att fortsätta.": heldLocked,
		"Verifikationsserien är inte manuell (F)":                                       heldNoSeries,
		"Verifikationsserie W saknas för räkenskapsår 2026":                             heldNoSeries,
		"Ogiltig verifikationsserie angiven":                                            heldNoSeries,
		"Räkenskapsår saknas för valt datum.":                                           heldNoYear,
		"Financial year is missing":                                                     heldNoYear,
		`Konto "3001" är inte aktivt`:                                                   heldUnusable,
		"Ogiltigt konto":                                                                heldUnusable,
		"The account is not active":                                                     heldUnusable,
		"Verifikatet balanserar inte":                                                   "unbalanced",
		"Värdet innehåller ej tillåtna tecken.":                                         "fortnox_2000359",
	} {
		if got := fortnoxReason(2000359, message); got != want {
			t.Errorf("%s: %s, not %s", message, got, want)
		}
	}
	for code, want := range map[int64]string{2000401: heldLocked, 2002141: heldLocked, 2001304: heldUnusable,
		2000947: heldUnusable, 2000663: heldReconnect, 2001101: heldReconnect, 2001103: heldReconnect} {
		if got := fortnoxReason(code, "Something else"); got != want {
			t.Errorf("%d: %s, not %s", code, got, want)
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
