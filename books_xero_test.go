package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
	s.s = &ledgerSession{&bookConnection{OrganisationID: &all[0].ID}, tokens.Access, all[0].LinkID}
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

// isGrantError reports an error unless err is the refusal of tokens with a code.
func isGrantErrorOf(t testing.TB, err error, code string) {
	t.Helper()
	var refused *grantError
	if !errors.As(err, &refused) || refused.code != code {
		t.Errorf("%v, not %s", err, code)
	}
}

func TestXero_tokensAreReplacedAtEachUse(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t)
	first := s.agreed()
	first.LinkID = "link"
	if first.ExpiresAt != newStamp(s.at.Add(30*time.Minute)) || first.Refresh == "" {
		t.Errorf("%+v", first)
	}
	ctx, app := t.Context(), s.fake.app
	second, err := s.renew(ctx, app, nil, first)
	if err != nil || second.Refresh == first.Refresh || second.Access == first.Access || second.LinkID != "link" {
		t.Fatalf("%+v, %v", second, err)
	}
	s.at = s.at.Add(30 * time.Minute)
	if _, err := s.organisations(ctx, second); !isDenied(err) {
		t.Errorf("with an access token that has ended: %v", err)
	}
	if _, err := s.renew(ctx, app, nil, first); err != nil { // the answer might have been lost
		t.Errorf("half an hour later: %v", err)
	}
	s.at = s.at.Add(time.Second)
	_, err = s.renew(ctx, app, nil, first)
	isGrantErrorOf(t, err, "invalid_grant")
	_, err = s.renew(ctx, appSecrets{app.clientID, "wrong"}, nil, second)
	isGrantErrorOf(t, err, "invalid_client")
	if _, err := s.renew(ctx, app, nil, second); err != nil {
		t.Error(err)
	}
	s.fake.revoke()
	_, err = s.renew(ctx, app, nil, second)
	isGrantErrorOf(t, err, "invalid_grant")
	asked := s.fake.came("POST", "/connect/token")
	_, err = s.renew(ctx, app, nil, &bookTokens{Access: "a"})
	isGrantErrorOf(t, err, "invalid_grant")
	if s.fake.came("POST", "/connect/token") != asked {
		t.Error("it asks without a refresh token")
	}
	if n := s.fake.tokensGiven(); n != 4 {
		t.Errorf("tokens were given %d times", n)
	}
}

func isDenied(err error) bool {
	var failed *ledgerError
	return errors.As(err, &failed) && failed.denied && !failed.refused
}

func TestXero_codeIsTakenOnceAndWithItsVerifier(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t)
	verifier := strings.Repeat("w", 43)
	proof := sha256.Sum256([]byte(verifier))
	address := s.authorizeURL(s.fake.app, xeroRedirect, "s", base64.RawURLEncoding.EncodeToString(proof[:]))
	code := func() string {
		back, err := url.Parse(s.fake.approve(address))
		if err != nil {
			t.Fatal(err)
		}
		return back.Query().Get("code")
	}
	good := code()
	for name, try := range map[string][2]string{
		"another verifier": {code(), strings.Repeat("x", 43)}, "another code": {"code-1", verifier},
	} {
		t.Log(name)
		_, err := s.exchange(t.Context(), s.fake.app, xeroRedirect, try[0], try[1])
		isGrantErrorOf(t, err, "invalid_grant")
	}
	if _, err := s.exchange(t.Context(), s.fake.app, xeroRedirect, good, verifier); err != nil {
		t.Error(err)
	}
	_, err := s.exchange(t.Context(), s.fake.app, xeroRedirect, good, verifier)
	isGrantErrorOf(t, err, "invalid_grant")
	_, err = s.exchange(t.Context(), s.fake.app, xeroRedirect+"?", code(), verifier)
	isGrantErrorOf(t, err, "invalid_grant")
	s.fake.fail("token", fault500After)
	_, err = s.exchange(t.Context(), s.fake.app, xeroRedirect, code(), verifier)
	isLedgerError(t, err, ledgerError{status: 500, reason: "token_endpoint"})
	_, err = xeroAnswering(t, 200, `{"access_token":"a","token_type":"Bearer","expires_in":1800}`).
		exchange(t.Context(), s.fake.app, xeroRedirect, "c", verifier)
	isLedgerError(t, err, ledgerError{status: 200, reason: "no_refresh_token"})
}

// xeroAnswering is our client of a server that answers everything alike. header are lines "Name: value".
func xeroAnswering(t testing.TB, status int, body string, header ...string) *xeroLedger {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, line := range header {
			name, value, _ := strings.Cut(line, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(web.Close)
	return newXeroLedger(outboundTo(t, loopbackRange), web.URL, time.Now)
}

func TestXero_organisationsOfThisConsent(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t)
	names := func(tokens *bookTokens) (all []string) {
		t.Helper()
		found, err := s.organisations(t.Context(), tokens)
		if err != nil {
			t.Error(err)
		}
		for _, o := range found {
			all = append(all, o.Name)
		}
		return all
	}
	first := s.agreed()
	s.fake.change(2, func(c *xeroFakeCompany) { c.kind = "PRACTICE" })
	s.fake.consent = s.fake.companies[1:]
	second := s.agreed()
	for _, c := range []struct {
		tokens *bookTokens
		want   []string
	}{{first, []string{"Pizzeria Sole AG"}}, {second, []string{"Bar Luna GmbH"}}} {
		if got := names(c.tokens); !slices.Equal(got, c.want) {
			t.Errorf("%q, not %q", got, c.want)
		}
	}
	both := []string{"Pizzeria Sole AG", "Bar Luna GmbH"}
	s.fake.accesses["opaque"] = s.fake.accesses[first.Access]
	if got := names(&bookTokens{Access: "opaque"}); !slices.Equal(got, both) {
		t.Errorf("with a token that names no event: %q", got)
	}
	s.fake.consent = s.fake.companies[:2]
	s.agreed()
	if got := names(first); !slices.Equal(got, both) {
		t.Errorf("with an event that was replaced: %q", got)
	}
}

func TestXero_organisationsAreBounded(t *testing.T) {
	t.Parallel()
	one := func(i int) string {
		return fmt.Sprintf(`{"id":"l%d","tenantId":"t%d","tenantType":"ORGANISATION","tenantName":null}`, i, i)
	}
	list := []string{`{"id":"","tenantId":"t","tenantType":"ORGANISATION"}`, `7`,
		`{"id":"l","tenantId":"t` + strings.Repeat("t", maxXeroID) + `","tenantType":"ORGANISATION"}`}
	for i := range maxXeroOrganisations + 1 {
		list = append(list, one(i))
	}
	all, err := xeroAnswering(t, 200, "["+strings.Join(list, ",")+"]").organisations(t.Context(), &bookTokens{})
	if err != nil || len(all) != maxXeroOrganisations || all[0] != (bookOrganisation{"t0", "t0", "l0"}) {
		t.Errorf("%d organisations: %v", len(all), err)
	}
	for _, body := range []string{"", "{}", "null", "[1", `[],"all":[]`} {
		_, err = xeroAnswering(t, 200, body).organisations(t.Context(), &bookTokens{})
		isLedgerError(t, err, ledgerError{status: 200, reason: outboundMalformed})
	}
}

func TestXero_disconnectsOneCompanyAndRevokesNothing(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t)
	s.fake.consent = s.fake.companies[:2]
	tokens := s.agreed()
	all, err := s.organisations(t.Context(), tokens)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	session := func(i int) *ledgerSession {
		return &ledgerSession{&bookConnection{OrganisationID: &all[i].ID}, tokens.Access, all[i].LinkID}
	}
	for range 2 { // the second one finds nothing
		if err := s.disconnect(t.Context(), session(0)); err != nil {
			t.Error(err)
		}
	}
	if n := s.fake.came("DELETE", "/connections/"+all[0].LinkID); n != 2 {
		t.Errorf("%d requests", n)
	}
	_, err = s.chart(t.Context(), session(0), "2026-11-22")
	isLedgerError(t, err, ledgerError{status: 403, reason: heldReconnect, refused: true})
	if _, err = s.chart(t.Context(), session(1), "2026-11-22"); err != nil {
		t.Errorf("the other company: %v", err)
	}
	none := session(0)
	none.linkID = ""
	isLedgerError(t, s.disconnect(t.Context(), none), ledgerError{reason: "no_link", refused: true})
	s.fake.fail("connections", fault500)
	isLedgerError(t, s.disconnect(t.Context(), session(1)), ledgerError{status: 500, reason: "http_500"})
}

func TestXero_chart(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	s.fake.change(0, func(c *xeroFakeCompany) {
		c.periodLock, c.yearLock = "2026-10-31", "2025-12-31"
		c.rates = append(c.rates, xeroFakeRate{"", "no code", 100, "ACTIVE", true})
	})
	chart, err := s.chart(t.Context(), s.s, "2026-11-22")
	if err != nil {
		t.Fatal(err)
	}
	if chart.Currency != "CHF" || chart.LockedUntil != "2026-10-31" || chart.Year != 0 || chart.CostCenters != nil {
		t.Errorf("%+v", chart)
	}
	why := map[string]string{}
	for _, a := range chart.Accounts {
		if why[a.Code] = a.Why; a.Usable != (a.Why == "") {
			t.Errorf("%+v", a)
		}
	}
	if want := map[string]string{"200": "", "201": "", "210": "", "220": "", "225": "archived", "480": "", "600": "",
		"601": "", "602": "", "090": "bank", "610": "receivable", "800": "payable", "960": "system",
	}; !reflect.DeepEqual(why, want) {
		t.Errorf("%v", why)
	}
	if a := chart.Accounts[1]; a != (bookAccount{"201", "Sales, reduced rate", "REVENUE", "OUTPUT3", true, ""}) {
		t.Errorf("%+v", a)
	}
	if want := []bookTaxRate{{"OUTPUT2", "8.1 % on sales", 810, true}, {"OUTPUT3", "2.6 % on sales", 260, true},
		{"INPUT2", "8.1 % on purchases", 810, false}, {"OUTPUT", "7.7 % on sales", 770, false}, {"NONE", "No tax", 0, true},
	}; !slices.Equal(chart.TaxRates, want) {
		t.Errorf("%+v", chart.TaxRates)
	}
	s.fake.change(0, func(c *xeroFakeCompany) { c.yearLock = "2026-12-31" })
	if chart, err = s.chart(t.Context(), s.s, "2026-11-22"); err != nil || chart.LockedUntil != "2026-12-31" {
		t.Errorf("%+v, %v", chart, err)
	}
	s.fake.fail("chart", fault401)
	if _, err = s.chart(t.Context(), s.s, "2026-11-22"); !isDenied(err) {
		t.Error(err)
	}
	s.fake.fail("chart", faultHuge)
	_, err = s.chart(t.Context(), s.s, "2026-11-22")
	isLedgerError(t, err, ledgerError{reason: outboundTooLarge})
}

func TestXero_readsChartsOfOtherForms(t *testing.T) {
	t.Parallel()
	parsed := func(text string) []jsonValue {
		v, err := parseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return listMember(&v, "list")
	}
	for text, want := range map[string]businessDate{
		`{"BaseCurrency":"CHF"}`: "",
		`{"BaseCurrency":"CHF","PeriodLockDate":null,"EndOfYearLockDate":"2025-12-31"}`: "2025-12-31",
		`{"BaseCurrency":"CHF","PeriodLockDate":"2026-01-31T00:00:00"}`:                 "2026-01-31",
		`{"BaseCurrency":"CHF","PeriodLockDate":"soon"}`:                                "error",
		`{"BaseCurrency":""}`: "error",
		`{},{}`:               "error",
	} {
		chart := &bookChart{}
		ok := readXeroOrganisation(chart, parsed(`{"list":[`+text+`]}`))
		if ok != (want != "error") || ok && chart.LockedUntil != want {
			t.Errorf("%s: %+v %v", text, chart, ok)
		}
	}
	chart := &bookChart{}
	readXeroRates(chart, parsed(`{"list":[{"TaxType":"A","DisplayTaxRate":8.1000,"Status":"ACTIVE"},
		{"TaxType":"B","EffectiveRate":12,"Status":"ACTIVE","CanApplyToRevenue":false},
		{"TaxType":"C","EffectiveRate":8.875},{"TaxType":"D","EffectiveRate":-1},{"TaxType":"E","EffectiveRate":100.01},
		{"TaxType":"F","EffectiveRate":"5"},{"TaxType":"G"}]}`))
	if want := []bookTaxRate{{"A", "", 810, true}, {"B", "", 1200, false}}; !slices.Equal(chart.TaxRates, want) {
		t.Errorf("%+v", chart.TaxRates)
	}
	many := strings.TrimSuffix(strings.Repeat("{},", maxXeroAccounts+1), ",")
	x := xeroAnswering(t, 200, `{"Organisations":[{"BaseCurrency":"CHF"}],"Accounts":[`+many+`]}`)
	_, err := x.chart(t.Context(), &ledgerSession{connection: &bookConnection{}}, "2026-11-22")
	isLedgerError(t, err, ledgerError{status: 200, reason: outboundTooLarge})
}
