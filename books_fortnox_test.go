package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
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
func (s *fortnoxSide) agree() (*bookTokens, []bookCompany) {
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
	if n, in := fortnoxProduct.requests, fortnoxProduct.within; n != 20 || in != 5*time.Second {
		t.Errorf("%d in %s", n, in)
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

func TestFortnox_doesNotSendWhatFortnoxWouldRefuse(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*bookEntry){
		heldCurrency:   func(e *bookEntry) { e.Currency = "EUR" },
		heldNoYear:     func(e *bookEntry) { e.Year = 0 },
		heldNoSeries:   func(e *bookEntry) { e.Series = "" },
		"too_few_rows": func(e *bookEntry) { e.Lines = e.Lines[:1] },
		heldUnusable:   func(e *bookEntry) { e.Lines[0].Account = "30" },
		"":             func(*bookEntry) {},
	} {
		e := &bookEntry{Currency: "SEK", Year: 1, Series: "W", Date: "2026-11-21", Narration: "x",
			Lines: []entryLine{{Account: "1580", Debit: 100}, {Account: "3001", Credit: 100}}}
		change(e)
		got, _ := fortnoxRefuses(e)
		equal(t, "the reason", got, want)
	}
}

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
	s.fake.setActive(3001, false)
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
