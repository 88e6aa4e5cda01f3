package main

import (
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
	"testing/synctest"
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
	next, err := s.renew(ctx, app, nil, first)
	if err != nil || next.Refresh == first.Refresh || next.Access == first.Access || next.LinkID != "link" {
		t.Fatalf("%+v, %v", next, err)
	}
	s.at = s.at.Add(30 * time.Minute)
	if _, err := s.organisations(ctx, next); !isDenied(err) {
		t.Errorf("with an access token that has ended: %v", err)
	}
	if _, err := s.renew(ctx, app, nil, first); err != nil { // the answer might have been lost
		t.Errorf("half an hour later: %v", err)
	}
	s.at = s.at.Add(time.Second)
	isGrantErrorOf(t, second(s.renew(ctx, app, nil, first)), "invalid_grant")
	isGrantErrorOf(t, second(s.renew(ctx, appSecrets{app.clientID, "wrong"}, nil, next)), "invalid_client")
	if _, err := s.renew(ctx, app, nil, next); err != nil {
		t.Error(err)
	}
	s.fake.revoke()
	isGrantErrorOf(t, second(s.renew(ctx, app, nil, next)), "invalid_grant")
	asked := s.fake.came("POST", "/connect/token")
	isGrantErrorOf(t, second(s.renew(ctx, app, nil, &bookTokens{Access: "a"})), "invalid_grant")
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
	address := s.authorizeURL(s.fake.app, xeroRedirect, "s", pkceChallenge(verifier))
	code := func() string {
		back, err := url.Parse(s.fake.approve(address))
		must(t, err)
		return back.Query().Get("code")
	}
	good := code()
	for name, try := range map[string][2]string{
		"another verifier": {code(), strings.Repeat("x", 43)}, "another code": {"code-1", verifier},
	} {
		t.Log(name)
		isGrantErrorOf(t, second(s.exchange(t.Context(), s.fake.app, xeroRedirect, try[0], try[1])), "invalid_grant")
	}
	if _, err := s.exchange(t.Context(), s.fake.app, xeroRedirect, good, verifier); err != nil {
		t.Error(err)
	}
	isGrantErrorOf(t, second(s.exchange(t.Context(), s.fake.app, xeroRedirect, good, verifier)), "invalid_grant")
	isGrantErrorOf(t, second(s.exchange(t.Context(), s.fake.app, xeroRedirect+"?", code(), verifier)), "invalid_grant")
	s.fake.fail("token", fault500After)
	isLedgerError(t, second(s.exchange(t.Context(), s.fake.app, xeroRedirect, code(), verifier)),
		ledgerError{status: 500, reason: "token_endpoint"})
	once := xeroAnswering(t, 200, `{"access_token":"a","token_type":"Bearer","expires_in":1800}`)
	isLedgerError(t, second(once.exchange(t.Context(), s.fake.app, xeroRedirect, "c", verifier)),
		ledgerError{status: 200, reason: "no_refresh_token"})
}

// xeroAnswering is our client of a server that answers everything alike. header are lines "Name: value".
func xeroAnswering(t testing.TB, status int, body string, header ...string) *xeroLedger {
	address, _ := answering(t, status, body, header...)
	return newXeroLedger(outboundTo(t, loopbackRange), address, time.Now)
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
	next := s.agreed()
	for _, c := range []struct {
		tokens *bookTokens
		want   []string
	}{{first, []string{"Pizzeria Sole AG"}}, {next, []string{"Bar Luna GmbH"}}} {
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
		c := &bookConnection{OrganisationID: &all[i].ID}
		return &ledgerSession{connection: c, access: tokens.Access, linkID: all[i].LinkID}
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
	isLedgerError(t, err, ledgerError{status: 403, reason: heldReconnect, refused: true, removed: true})
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
	must(t, err)
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
		{"INPUT2", "8.1 % on purchases", 810, false}, {"OUTPUT", "7.7 % on sales", 770, false},
		{"NONE", "No tax", 0, true},
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
	isLedgerError(t, second(s.chart(t.Context(), s.s, "2026-11-22")), ledgerError{reason: outboundTooLarge})
}

func TestXero_readsChartsOfOtherForms(t *testing.T) {
	t.Parallel()
	parsed := func(text string) []jsonValue {
		v, err := parseJSON([]byte(text))
		must(t, err)
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
		{"TaxType":"C","EffectiveRate":8.875},{"TaxType":"D","EffectiveRate":-1},
		{"TaxType":"E","EffectiveRate":100.01},
		{"TaxType":"F","EffectiveRate":"5"},{"TaxType":"G"}]}`))
	if want := []bookTaxRate{{"A", "", 810, true}, {"B", "", 1200, false}}; !slices.Equal(chart.TaxRates, want) {
		t.Errorf("%+v", chart.TaxRates)
	}
	many := strings.TrimSuffix(strings.Repeat("{},", maxXeroAccounts+1), ",")
	x := xeroAnswering(t, 200, `{"Organisations":[{"BaseCurrency":"CHF"}],"Accounts":[`+many+`]}`)
	_, err := x.chart(t.Context(), &ledgerSession{connection: &bookConnection{}}, "2026-11-22")
	isLedgerError(t, err, ledgerError{status: 200, reason: outboundTooLarge})
}

func TestXero_whatTheBooksRefuse(t *testing.T) {
	t.Parallel()
	type change = func(s *xeroSide, e *bookEntry)
	account := func(code string) change { return func(_ *xeroSide, e *bookEntry) { e.Lines[0].Account = code } }
	center := func(name string) change { return func(_ *xeroSide, e *bookEntry) { e.Lines[2].CostCenter = name } }
	tax := func(_ *xeroSide, e *bookEntry) { e.Lines[2].Tax = "OUTPUT" }
	for name, c := range map[string]struct {
		spoil  change
		reason string
		detail string
	}{
		"archived":  {func(s *xeroSide, _ *bookEntry) { s.fake.archive("602") }, heldUnusable, "has been archived"},
		"unknown":   {account("999"), heldUnusable, "'999' is not a valid"},
		"bank":      {account("090"), heldUnusable, "'090' is a bank"},
		"debtors":   {account("610"), heldUnusable, "system account"},
		"locked":    {func(s *xeroSide, _ *bookEntry) { s.fake.lock("2026-11-22") }, heldLocked, "period lock date"},
		"one line":  {func(_ *xeroSide, e *bookEntry) { e.Lines = e.Lines[:1] }, "validation", "at least two lines"},
		"a cent":    {func(_ *xeroSide, e *bookEntry) { e.Lines[0].Debit++ }, "validation", "debits must equal"},
		"tax":       {tax, "validation", "'OUTPUT' does not exist"},
		"a center":  {center("Region:East"), "validation", "'East'"},
		"no option": {center("Region"), "validation", "Option ''"},
		"year locked": {func(s *xeroSide, e *bookEntry) {
			tax(s, e) // what tells more goes first
			s.fake.change(0, func(c *xeroFakeCompany) { c.yearLock = "2026-12-31" })
		}, heldLocked, "end of year lock date"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newXeroSide(t).connect()
			e := xeroDay()
			c.spoil(s, e)
			_, err := s.post(t.Context(), s.s, e, s.encode(e), "exp_1")
			isLedgerError(t, err, ledgerError{status: 400, reason: c.reason, refused: true})
			if err == nil || !strings.Contains(err.Error(), c.detail) || len(s.fake.journals()) != 0 {
				t.Errorf("%v, with %d journals", err, len(s.fake.journals()))
			}
		})
	}
	s := newXeroSide(t).connect()
	s.fake.lock("2026-11-21")
	s.posted(xeroDay(), "exp_1") // the first day that is not locked
}

func TestXero_sameKeyIsOneEntry(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	id := s.posted(xeroDay(), "exp_1")
	if again := s.posted(xeroDay(), "exp_1"); again != id || len(s.fake.journals()) != 1 {
		t.Errorf("%s and %s", id, again)
	}
	other := xeroDay()
	other.Lines[0].Text = "Cards"
	_, err := s.post(t.Context(), s.s, other, s.encode(other), "exp_1")
	isLedgerError(t, err, ledgerError{status: 400, reason: "idempotency_key"}) // what was written first is not known
	if second := s.posted(other, "exp_2"); second == id || len(s.fake.journals()) != 2 {
		t.Errorf("%s and %s", id, second)
	}
}

func TestXero_answersAndWhatTheyMean(t *testing.T) {
	t.Parallel()
	const twice = `{"Type":"ValidationException","Elements":[{"ValidationErrors":[{"Message":"First\u0007 one"},` +
		`{"Message":2}]},{"ValidationErrors":[{"Message":"Second"}]}]}`
	const invalid = `{"ManualJournals":[{"ManualJournalID":"00000000","StatusAttributeString":"ERROR",` +
		`"ValidationErrors":[{"Message":"Account code '7' has been archived"}]}]}`
	const lacking = `{"Detail":"AuthorizationUnsuccessful"}`
	invalidly := ledgerError{reason: "validation", refused: true}
	reconnect := ledgerError{reason: heldReconnect, refused: true}
	busy := func(wait time.Duration) ledgerError { return ledgerError{reason: ledgerBusy, retryAfter: wait} }
	for _, c := range []struct {
		status int
		body   string
		header []string
		want   ledgerError
		detail string
	}{
		{400, twice, nil, invalidly, "First one"},
		{400, `{"Message":"` + strings.Repeat("é", 201) + `"}`, nil, invalidly, strings.Repeat("é", 200)},
		{400, ``, nil, ledgerError{reason: "http_400"}, ""},
		{400, `{"error":"Bad Request"}`, nil, ledgerError{reason: "http_400"}, ""}, // of something in between
		{200, invalid, nil, ledgerError{reason: heldUnusable, refused: true}, "Account code '7' has been archived"},
		{401, `{"Detail":"TokenExpired"}`, nil, ledgerError{reason: "http_401", denied: true}, ""},
		{401, lacking, []string{"WWW-Authenticate: insufficient_scope"}, reconnect, "AuthorizationUnsuccessful"},
		{403, lacking, nil, ledgerError{reason: "http_403"}, "AuthorizationUnsuccessful"},
		{403, `<html>`, nil, ledgerError{reason: "http_403"}, ""},
		{403, `{"Detail":"AuthenticationUnsuccessful"}`, nil,
			ledgerError{reason: heldReconnect, refused: true, removed: true}, "AuthenticationUnsuccessful"},
		{404, `<html>`, nil, ledgerError{reason: "http_404"}, ""},
		{404, `The resource you're looking for cannot be found`, nil,
			ledgerError{reason: "http_404", refused: true}, ""},
		{408, ``, nil, ledgerError{reason: "http_408"}, ""},
		{409, ``, nil, ledgerError{reason: "http_409"}, ""},
		{413, ``, nil, ledgerError{reason: "http_413"}, ""},
		{415, `{"Type":null,"Title":"Unsupported","Status":415}`, nil,
			ledgerError{reason: "http_415", refused: true}, ""},
		{429, `limit`, []string{"Retry-After: 17"}, busy(17 * time.Second), ""},
		{429, ``, []string{"X-Rate-Limit-Problem: Day"}, busy(time.Hour), ""},
		{429, ``, []string{"X-Rate-Limit-Problem: concurrent"}, busy(5 * time.Second), ""},
		{429, ``, nil, busy(time.Minute), ""},
		{503, ``, []string{"Retry-After: 300"}, ledgerError{reason: "http_503", retryAfter: 5 * time.Minute}, ""},
		{500, twice, nil, ledgerError{reason: "http_500"}, ""},
		{302, ``, []string{"Location: /"}, ledgerError{reason: "http_302"}, ""},
		{200, `{"ManualJournals":[`, nil, ledgerError{reason: outboundMalformed}, ""},
		{200, `{"ManualJournals":[]}`, nil, ledgerError{reason: outboundMalformed}, ""},
		{200, `{"ManualJournals":[7]}`, nil, ledgerError{reason: outboundMalformed}, ""},
		{200, `{"ManualJournals":[{"ManualJournalID":7}]}`, nil, ledgerError{reason: outboundMalformed}, ""},
		{200, `[]`, nil, ledgerError{reason: outboundMalformed}, ""},
		{204, ``, nil, ledgerError{reason: outboundMalformed}, ""},
	} {
		x := xeroAnswering(t, c.status, c.body, c.header...)
		tenant := "t"
		session := &ledgerSession{connection: &bookConnection{OrganisationID: &tenant}}
		_, err := x.post(t.Context(), session, nil, "{}", "k")
		c.want.status = c.status
		isLedgerError(t, err, c.want)
		var got *ledgerError
		if errors.As(err, &got) && got.detail != c.detail {
			t.Errorf("%d %s: %q", c.status, c.body, got.detail)
		}
	}
}

func TestXero_aJournalIsSentOnceThoughTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	if _, err := s.chart(t.Context(), s.s, "2026-11-22"); err != nil { // whose connection is kept
		t.Fatal(err)
	}
	e := xeroDay()
	s.fake.fail("post", faultResetAfter, fault429)
	_, err := s.post(t.Context(), s.s, e, s.encode(e), "exp_1")
	isLedgerError(t, err, ledgerError{reason: outboundNoConnect})
	if n := s.fake.came("PUT", "/api.xro/2.0/ManualJournals"); n != 1 || len(s.fake.journals()) != 1 {
		t.Errorf("it was sent %d times and written %d times", n, len(s.fake.journals()))
	}
}

func TestXero_lostAnswerIsLookedFor(t *testing.T) {
	t.Parallel()
	for fault, want := range map[providerFault]struct {
		ledgerError
		journals int
	}{
		faultResetBefore: {ledgerError{reason: outboundNoConnect}, 0},
		faultResetAfter:  {ledgerError{reason: outboundNoConnect}, 1},
		fault500:         {ledgerError{status: 500, reason: "http_500"}, 0},
		fault500After:    {ledgerError{status: 500, reason: "http_500"}, 1},
		faultNonsense:    {ledgerError{status: 200, reason: outboundMalformed}, 1},
		faultHuge:        {ledgerError{reason: outboundTooLarge}, 1},
		fault429:         {ledgerError{status: 429, reason: ledgerBusy, retryAfter: 3 * time.Second}, 0},
		fault401:         {ledgerError{status: 401, reason: "http_401", denied: true}, 0},
		fault400:         {ledgerError{status: 400, reason: "validation", refused: true}, 0},
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			s := newXeroSide(t).connect()
			e := xeroDay()
			s.fake.fail("post", fault)
			isLedgerError(t, second(s.post(t.Context(), s.s, e, s.encode(e), "exp_1")), want.ledgerError)
			found, err := s.find(t.Context(), s.s, e, xeroDayKey)
			if err != nil || (found != nil) != (want.journals == 1) || len(s.fake.journals()) != want.journals {
				t.Errorf("%+v, %v: %d journals", found, err, len(s.fake.journals()))
			}
		})
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

func TestXero_looksThroughTenPages(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	s.fake.perMinute = 0
	e := xeroDay()
	id := s.posted(e, "")
	s.fake.change(0, func(c *xeroFakeCompany) {
		for i := range maxXeroPages*xeroPage - 2 { // before ours
			other := &xeroFakeJournal{id: fmt.Sprint(i), narration: "Salaries", date: "2026-11-21", status: "POSTED"}
			c.journals = append(c.journals, other)
		}
	})
	pages := func() int { return s.fake.came("GET", "/api.xro/2.0/ManualJournals") }
	found, err := s.find(t.Context(), s.s, e, xeroDayKey)
	if err != nil || found == nil || found.ID != id || pages() != 10 {
		t.Errorf("%+v, %v, after %d pages", found, err, pages())
	}
	if found, err := s.find(t.Context(), s.s, e, "other"); err != nil || found != nil || pages() != 20 {
		t.Errorf("%+v, %v, after %d pages", found, err, pages())
	}
	s.posted(xeroDay(), "")
	_, err = s.find(t.Context(), s.s, e, "other") // nobody knows what the eleventh page has
	isLedgerError(t, err, ledgerError{status: 200, reason: "too_many_entries"})
	if pages() != 30 {
		t.Errorf("after %d pages", pages())
	}
}

func TestXero_readsTheLinesOfASummary(t *testing.T) {
	t.Parallel()
	const summary = `{"ManualJournalID":"7","Narration":"k","Date":"2026-11-22","Status":"POSTED"`
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := `,"JournalLines":[]`
		if r.URL.Path == "/api.xro/2.0/ManualJournals/7" {
			lines = `,"JournalLines":[{"LineAmount":-2569,"AccountCode":"7"},{"IsBlank":true}]`
		}
		io.WriteString(w, `{"ManualJournals":[`+summary+lines+`}]}`)
	}))
	t.Cleanup(web.Close)
	x := newXeroLedger(outboundTo(t, loopbackRange), web.URL, time.Now)
	session := &ledgerSession{connection: &bookConnection{}}
	found, err := x.find(t.Context(), session, &bookEntry{Date: "2026-11-22"}, "k")
	if err != nil || !slices.Equal(found.Entry.Lines, []entryLine{{Account: "7", Credit: 256900}}) {
		t.Errorf("%+v, %v", found, err)
	}
	for _, wrong := range []string{`{"Narration":"k","Status":"POSTED","Date":"2026-11-22"}`,
		summary + `,"JournalLines":[{"LineAmount":"1"}]}`, `{"ManualJournalID":"7","Narration":"k","Status":"DRAFT"}`,
		`{"ManualJournalID":"7","Narration":"k","Date":"2026-11-22"}`,
		summary + `,"LineAmountTypes":"Exclusive","JournalLines":[{"LineAmount":1,"TaxAmount":0.001}]}`} {
		x := xeroAnswering(t, 200, `{"ManualJournals":[`+wrong+`]}`)
		_, err := x.read(t.Context(), session, "7")
		isLedgerError(t, err, ledgerError{status: 200, reason: outboundMalformed})
		_, err = x.find(t.Context(), session, &bookEntry{Date: "2026-11-22"}, "k")
		isLedgerError(t, err, ledgerError{status: 200, reason: outboundMalformed})
	}
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
	if b := s.booked(id); !b.Draft || b.Deleted || b.Entry.Status != entryDraft {
		t.Errorf("%+v", b)
	}
	same(true)
	s.fake.postDraft(id)
	if b := s.booked(id); b.Draft || b.Deleted {
		t.Errorf("%+v", b)
	}
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
	s.fake.void(id)
	if b := s.booked(id); !b.Deleted || b.Draft {
		t.Errorf("%+v", b)
	}
	if b := s.booked("00000000-0000-0000-0000-000000000000"); b != nil {
		t.Errorf("%+v", b)
	}
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
	if err := s.withdraw(t.Context(), s.s, "0-0"); err != nil {
		t.Error(err)
	}
	locked := s.posted(e, "")
	s.fake.lock("2026-11-22")
	err := s.withdraw(t.Context(), s.s, locked)
	isLedgerError(t, err, ledgerError{status: 400, reason: heldLocked, refused: true})
	s.fake.lock("")
	s.fake.fail("withdraw", fault500After)
	isLedgerError(t, s.withdraw(t.Context(), s.s, locked), ledgerError{status: 500, reason: "http_500"})
	if b := s.booked(locked); !b.Deleted {
		t.Errorf("%+v", b)
	}
	s.fake.fail("read", fault429)
	isLedgerError(t, s.withdraw(t.Context(), s.s, locked),
		ledgerError{status: 429, reason: ledgerBusy, retryAfter: 3 * time.Second})
}

func TestXero_staysInsideItsLimit(t *testing.T) {
	t.Parallel()
	s := newXeroSide(t).connect()
	n, in := s.pace()
	for range 2 {
		for range n {
			s.booked("0-0")
		}
		s.at = s.at.Add(in)
	}
	for range 60 {
		s.booked("0-0")
	}
	s.at = s.at.Add(20 * time.Second)
	_, err := s.read(t.Context(), s.s, "0-0")
	isLedgerError(t, err, ledgerError{status: 429, reason: ledgerBusy, retryAfter: 40 * time.Second})
	s.at = s.at.Add(40 * time.Second)
	s.booked("0-0")
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

// newXeroBubble is newXeroSide in a bubble, whose clock it has: the connections are in memory.
func newXeroBubble(t testing.TB) *xeroSide {
	const address = "http://127.0.0.1:12"
	s := &xeroSide{t: t, fake: makeXeroFake(t, time.Now, address)}
	out := outboundTo(t, loopbackRange)
	out.plain.DialContext = dialTo(map[string]pipes{address: serveInMemory(t, s.fake)})
	t.Cleanup(out.close)
	s.xeroLedger = newXeroLedger(out, address, time.Now)
	return s
}

func TestXero_timesOutAndIsLookedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newXeroBubble(t).connect()
		e := xeroDay()
		for _, fault := range []providerFault{faultTimeout, faultResetAfter} {
			s.fake.fail("post", fault)
			_, err := s.post(t.Context(), s.s, e, s.encode(e), "exp_1")
			want := ledgerError{reason: outboundTimeout}
			if fault == faultResetAfter {
				want.reason = outboundNoConnect
			}
			isLedgerError(t, err, want)
		}
		if found, err := s.find(t.Context(), s.s, e, xeroDayKey); err != nil || found == nil ||
			len(s.fake.journals()) != 1 {
			t.Errorf("%+v, %v", found, err)
		}
		time.Sleep(30 * time.Minute)
		if _, err := s.read(t.Context(), s.s, "0-0"); !isDenied(err) {
			t.Error(err)
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
