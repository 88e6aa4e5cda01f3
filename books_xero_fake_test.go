package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A xeroFake is a Xero over HTTP that keeps state, as its description and its guides say: consents, rotating
// tokens, connections, and companies with accounts, rates of tax, locked periods and manual journals.
type xeroFake struct {
	bookFake
	companies []*xeroFakeCompany
	consent   []*xeroFakeCompany // those that the person agrees to; at first the first one
	codes     map[string]*xeroFakeConsent
	refreshes map[string]*xeroFakeRefresh
	accesses  map[string]xeroFakeAccess
	links     []*xeroFakeLink
	answers   map[string]xeroFakeAnswer // by tenant and idempotency key
	perMinute int                       // requests of a company that are taken; 0: any number
}

// A xeroFakeCompany is an organisation, with its books.
type xeroFakeCompany struct {
	tenant, name, kind string
	currency           string
	periodLock         businessDate
	accounts           []*xeroFakeAccount
	rates              []xeroFakeRate
	options            []string // of tracking: "category:option"
	journals           []*xeroFakeJournal
	taken              []time.Time // the requests of the last minute
}

// xeroFields are the members of an object.
type xeroFields = map[string]any

type xeroFakeAccount struct{ code, name, kind, tax, status, system string }

type xeroFakeRate struct {
	code, name string
	rate       int64 // in hundredths of a percent
	status     string
	revenue    bool
}

// A xeroFakeJournal is a manual journal.
type xeroFakeJournal struct {
	id, narration, date, kind, status string
	lines                             []xeroFakeLine
	updatedAt                         time.Time
}

type xeroFakeLine struct {
	amount                 int64 // debit positive
	account, text, taxType string
	tracking               []xeroTracking
}

// A xeroFakeConsent is what somebody has agreed to and no code was redeemed for.
type xeroFakeConsent struct {
	event, redirect, challenge, scope string
	at                                time.Time
}

type xeroFakeRefresh struct {
	event, scope  string
	at, replaced  time.Time // replaced is zero until it is used first
	revokedByUser bool
}

type xeroFakeAccess struct {
	event, scope string
	until        time.Time
}

type xeroFakeLink struct {
	id, event string
	company   *xeroFakeCompany
}

type xeroFakeAnswer struct {
	request string
	status  int
	body    any
}

// newXeroFake serves a fake until the test ends. now is its clock. Not for bubbles: see makeXeroFake.
func newXeroFake(t testing.TB, now func() time.Time) *xeroFake {
	f := makeXeroFake(t, now, "")
	f.serve()
	return f
}

// makeXeroFake makes a fake that is served at an address by who makes it; in a bubble with serveInMemory. It
// has three companies with the same chart.
func makeXeroFake(t testing.TB, now func() time.Time, base string) *xeroFake {
	f := &xeroFake{codes: map[string]*xeroFakeConsent{}, refreshes: map[string]*xeroFakeRefresh{},
		accesses: map[string]xeroFakeAccess{}, answers: map[string]xeroFakeAnswer{}, perMinute: 60}
	f.vendorFake = vendorFake{t: t, now: now, base: base, operation: xeroKind, act: f.answer}
	f.app = appSecrets{"5D1B8E8C4B6D4B0FA2C7B1A0E5D3C9F1", "s+cret/of:the app~"}
	for _, name := range []string{"Pizzeria Sole AG", "Bar Luna GmbH", "Trattoria Stella SA"} {
		f.companies = append(f.companies, &xeroFakeCompany{
			tenant: f.newID(), name: name, kind: "ORGANISATION", currency: "CHF",
			options: []string{"Region:North", "Region:South"},
			accounts: []*xeroFakeAccount{
				{"200", "Sales", "REVENUE", "OUTPUT2", "ACTIVE", ""},
				{"201", "Sales, reduced rate", "REVENUE", "OUTPUT3", "ACTIVE", ""},
				{"210", "Delivery", "REVENUE", "OUTPUT2", "ACTIVE", ""},
				{"220", "Tips", "CURRLIAB", "NONE", "ACTIVE", ""},
				{"225", "Old sales", "REVENUE", "OUTPUT2", "ARCHIVED", ""},
				{"480", "Disputes", "EXPENSE", "NONE", "ACTIVE", ""},
				{"600", "Cards, clearing", "CURRENT", "NONE", "ACTIVE", ""},
				{"601", "Vipps, clearing", "CURRENT", "NONE", "ACTIVE", ""},
				{"602", "Cash, clearing", "CURRENT", "NONE", "ACTIVE", ""},
				{"090", "Bank", "BANK", "NONE", "ACTIVE", ""},
				{"610", "Accounts Receivable", "CURRENT", "NONE", "ACTIVE", "DEBTORS"},
				{"800", "Accounts Payable", "CURRLIAB", "NONE", "ACTIVE", "CREDITORS"},
				{"960", "Retained Earnings", "EQUITY", "NONE", "ACTIVE", "RETAINEDEARNINGS"},
				{"", "No code", "EXPENSE", "NONE", "ACTIVE", ""},
			},
			rates: []xeroFakeRate{
				{"OUTPUT2", "8.1 % on sales", 810, "ACTIVE", true},
				{"OUTPUT3", "2.6 % on sales", 260, "ACTIVE", true},
				{"INPUT2", "8.1 % on purchases", 810, "ACTIVE", false},
				{"OUTPUT", "7.7 % on sales", 770, "DELETED", true},
				{"NONE", "No tax", 0, "ACTIVE", true},
			}})
	}
	f.consent = f.companies[:1]
	return f
}

// twin serves a fake that knows who has agreed to what, as this one does now, until the test ends.
func (f *xeroFake) twin(t testing.TB) *xeroFake {
	other := newXeroFake(t, f.now)
	f.mu.Lock()
	defer f.mu.Unlock()
	other.number, other.accesses = f.number, maps.Clone(f.accesses)
	for token, refresh := range f.refreshes {
		same := *refresh
		other.refreshes[token] = &same
	}
	for _, link := range f.links {
		same := *link
		same.company = other.companies[slices.Index(f.companies, link.company)]
		other.links = append(other.links, &same)
	}
	return other
}

// newID returns an id in the form of a UUID. The caller holds f.mu, or nobody else knows f.
func (f *xeroFake) newID() string {
	f.number++
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", f.number, f.number)
}

// xeroKind names what a request asks for.
func xeroKind(method, path string) string {
	rest, journals := strings.CutPrefix(path, "/api.xro/2.0/ManualJournals")
	switch {
	case path == "/connect/token":
		return "token"
	case strings.HasPrefix(path, "/connections"):
		return "connections"
	case !journals:
		return "chart"
	case rest == "" && method == "GET":
		return "find"
	case rest == "":
		return "post"
	case method == "GET":
		return "read"
	}
	return "withdraw"
}

func xeroFakeSays(status int, body any) vendorAnswer { return vendorAnswer{status, nil, body} }

func xeroFakeDenied(status int, title, detail string) vendorAnswer {
	return xeroFakeSays(status, xeroFields{"Type": nil, "Title": title, "Status": status, "Detail": detail})
}

// answer does what a request asks for. The caller holds f.mu.
func (f *xeroFake) answer(r vendorRequest) vendorAnswer {
	switch {
	case r.path == "/identity/connect/authorize":
		back, why := f.agree(r.query)
		if why != "" {
			return xeroFakeSays(400, xeroFields{"error": why})
		}
		return vendorAnswer{302, http.Header{"Location": {back}}, nil}
	case r.path == "/connect/token" && r.method == "POST":
		return f.giveTokens(r)
	}
	text, _ := strings.CutPrefix(r.header.Get("Authorization"), "Bearer ")
	access, known := f.accesses[text]
	if !known || !f.now().Before(access.until) {
		return xeroFakeDenied(401, "Unauthorized", "TokenExpired: token expired")
	}
	if id, ok := strings.CutPrefix(r.path, "/connections"); ok {
		return f.connectionCall(r, strings.TrimPrefix(id, "/"))
	}
	return f.companyCall(r, access)
}

// agree has the person agree to what an authorisation request asks for, for the companies in f.consent. It
// returns where the browser goes next, or what is wrong with the request.
func (f *xeroFake) agree(query url.Values) (back, why string) {
	redirect, err := url.Parse(query.Get("redirect_uri"))
	switch {
	case query.Get("client_id") != f.app.clientID:
		return "", "unauthorized_client"
	case query.Get("response_type") != "code":
		return "", "unsupported_response_type"
	case err != nil || redirect.Scheme != "https" && redirect.Hostname() != "127.0.0.1":
		return "", "invalid redirect_uri"
	case query.Get("scope") != "offline_access accounting.manualjournals accounting.settings.read":
		return "", "invalid_scope"
	case query.Get("code_challenge_method") != "S256" || len(query.Get("code_challenge")) != 43:
		return "", "invalid_request: code_challenge"
	case query.Get("state") == "":
		return "", "invalid_request: state"
	}
	event := f.newID()
	for _, c := range f.consent {
		i := slices.IndexFunc(f.links, func(l *xeroFakeLink) bool { return l.company == c })
		if i < 0 {
			f.links = append(f.links, &xeroFakeLink{id: f.newID(), company: c})
			i = len(f.links) - 1
		}
		f.links[i].event = event
	}
	code := "code-" + f.newID()
	f.codes[code] = &xeroFakeConsent{
		event, redirect.String(), query.Get("code_challenge"), query.Get("scope"), f.now(),
	}
	values := redirect.Query()
	values.Set("code", code)
	values.Set("scope", query.Get("scope"))
	values.Set("state", query.Get("state"))
	values.Set("session_state", "s.1")
	redirect.RawQuery = values.Encode()
	return redirect.String(), ""
}

// approve plays the person's browser at an address of authorizeURL, and returns where it goes next.
func (f *xeroFake) approve(address string) (redirect string) {
	f.t.Helper()
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, f.base+"/identity/connect/authorize?") {
		f.t.Fatalf("%s is not where consent is asked for: %v", address, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	back, why := f.agree(u.Query())
	if why != "" {
		f.t.Fatalf("%s: %s", address, why)
	}
	return back
}

// giveTokens redeems a code or a refresh token. One that was used is taken for 30 minutes more.
func (f *xeroFake) giveTokens(r vendorRequest) vendorAnswer {
	refused := func(code string) vendorAnswer { return xeroFakeSays(400, xeroFields{"error": code}) }
	form, why := f.tokenForm(r)
	if why != "" {
		return refused(why)
	}
	switch form.Get("grant_type") {
	case "authorization_code":
		c := f.codes[form.Get("code")]
		delete(f.codes, form.Get("code"))
		if c == nil || f.now().After(c.at.Add(5*time.Minute)) || form.Get("redirect_uri") != c.redirect ||
			pkceChallenge(form.Get("code_verifier")) != c.challenge {
			return refused("invalid_grant")
		}
		return f.newTokens(c.event, c.scope)
	case "refresh_token":
		old := f.refreshes[form.Get("refresh_token")]
		if old == nil || old.revokedByUser || f.now().After(old.at.Add(days(60))) ||
			!old.replaced.IsZero() && f.now().After(old.replaced.Add(30*time.Minute)) {
			return refused("invalid_grant")
		}
		if old.replaced.IsZero() {
			old.replaced = f.now()
		}
		return f.newTokens(old.event, old.scope)
	}
	return refused("unsupported_grant_type")
}

func (f *xeroFake) newTokens(event, scope string) vendorAnswer {
	until := f.now().Add(30 * time.Minute)
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			f.t.Error(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	claims := xeroFields{"iss": xeroIdentity, "exp": until.Unix(), "authentication_event_id": event,
		"jti": f.newID(), "scope": strings.Fields(scope)}
	access := part(xeroFields{"alg": "RS256", "typ": "JWT"}) + "." + part(claims) + ".c2ln"
	refresh := "refresh-" + f.newID()
	f.accesses[access] = xeroFakeAccess{event, scope, until}
	f.refreshes[refresh] = &xeroFakeRefresh{event: event, scope: scope, at: f.now()}
	answer := xeroFields{"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "scope": scope}
	f.lasting(answer, 1800)
	return xeroFakeSays(200, answer)
}

// connectionCall lists and removes connections.
func (f *xeroFake) connectionCall(r vendorRequest, id string) vendorAnswer {
	i := slices.IndexFunc(f.links, func(l *xeroFakeLink) bool { return l.id == id })
	switch {
	case r.method == "GET" && id == "":
		list := []xeroFields{}
		for _, l := range f.links {
			list = append(list, xeroFields{"id": l.id, "authEventId": l.event,
				"tenantId": l.company.tenant, "tenantType": l.company.kind, "tenantName": l.company.name,
				"createdDateUtc": "2026-11-22T10:00:00.0000000"})
		}
		return xeroFakeSays(200, list)
	case r.method == "DELETE" && i >= 0:
		f.links = slices.Delete(f.links, i, i+1)
		return xeroFakeSays(204, nil)
	}
	return xeroFakeDenied(404, "Not Found", "NotFound")
}

// companyCall is a request about a company.
func (f *xeroFake) companyCall(r vendorRequest, access xeroFakeAccess) vendorAnswer {
	i := slices.IndexFunc(f.links, func(l *xeroFakeLink) bool {
		return l.company.tenant == r.header.Get("Xero-Tenant-Id")
	})
	if i < 0 {
		return xeroFakeDenied(403, "Forbidden", "AuthenticationUnsuccessful")
	}
	c := f.links[i].company
	c.taken = slices.DeleteFunc(c.taken, func(at time.Time) bool { return f.now().Sub(at) >= time.Minute })
	if f.perMinute > 0 && len(c.taken) >= f.perMinute {
		wait := time.Minute - f.now().Sub(c.taken[0])
		return vendorAnswer{429, http.Header{"X-Rate-Limit-Problem": {"minute"},
			"Retry-After": {strconv.Itoa(int((wait + time.Second - 1) / time.Second))}}, nil}
	}
	c.taken = append(c.taken, f.now())
	path, _ := strings.CutPrefix(r.path, "/api.xro/2.0")
	if journals, ok := strings.CutPrefix(path, "/ManualJournals"); ok {
		return f.journalCall(c, r, strings.TrimPrefix(journals, "/"))
	}
	body := xeroFields{"Id": f.newID(), "Status": "OK"}
	switch r.method + " " + path {
	case "GET /Organisation":
		body["Organisations"] = []any{c.shown()}
	case "GET /Accounts":
		body["Accounts"] = c.shownAccounts(f)
	case "GET /TaxRates":
		body["TaxRates"] = c.shownRates()
	case "GET /TrackingCategories":
		body["TrackingCategories"] = c.shownTracking(f)
	default:
		return xeroFakeDenied(404, "Not Found", "NotFound")
	}
	return xeroFakeSays(200, body)
}

// fakeXeroDate is a date as Xero writes it.
func fakeXeroDate(date businessDate) string {
	t, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("/Date(%d+0000)/", t.UnixMilli())
}

// fakeXeroNumber is an amount as Xero writes it: 12.5, 100.0.
func fakeXeroNumber(hundredths int64) json.RawMessage {
	sign := ""
	if hundredths < 0 {
		sign, hundredths = "-", -hundredths
	}
	return json.RawMessage(sign + strings.TrimSuffix(formatAmount(hundredths), "0"))
}

func (c *xeroFakeCompany) shown() xeroFields {
	shown := xeroFields{"Name": c.name, "BaseCurrency": c.currency, "CountryCode": "CH",
		"OrganisationID": c.tenant, "OrganisationStatus": "ACTIVE"}
	if c.periodLock != "" {
		shown["PeriodLockDate"] = fakeXeroDate(c.periodLock)
	}
	return shown
}

func (c *xeroFakeCompany) shownAccounts(f *xeroFake) []any {
	list := []any{}
	for _, a := range c.accounts {
		shown := xeroFields{"AccountID": f.newID(), "Name": a.name, "Type": a.kind, "TaxType": a.tax,
			"Status": a.status, "SystemAccount": a.system}
		if a.code != "" {
			shown["Code"] = a.code
		}
		list = append(list, shown)
	}
	return list
}

func (c *xeroFakeCompany) shownRates() []any {
	list := []any{}
	for _, r := range c.rates {
		rate := json.RawMessage(formatAmount(r.rate) + "00")
		list = append(list, xeroFields{"TaxType": r.code, "Name": r.name, "EffectiveRate": rate,
			"DisplayTaxRate": rate, "Status": r.status, "CanApplyToRevenue": r.revenue})
	}
	return list
}

// shownTracking has a category for each name of c.options, with those of its options that are active.
func (c *xeroFakeCompany) shownTracking(f *xeroFake) []any {
	options, names := map[string][]any{}, []string{}
	for _, o := range c.options {
		category, option, _ := strings.Cut(o, ":")
		if options[category] == nil {
			names = append(names, category)
		}
		options[category] = append(options[category],
			xeroFields{"TrackingOptionID": f.newID(), "Name": option, "Status": "ACTIVE"})
	}
	list := []any{}
	for _, name := range names {
		list = append(list, xeroFields{"TrackingCategoryID": f.newID(), "Name": name, "Status": "ACTIVE",
			"Options": options[name]})
	}
	return list
}

// journalCall creates, changes, lists and reads manual journals.
func (f *xeroFake) journalCall(c *xeroFakeCompany, r vendorRequest, id string) vendorAnswer {
	i := slices.IndexFunc(c.journals, func(j *xeroFakeJournal) bool { return j.id == id })
	switch {
	case r.method == "GET" && id == "":
		return f.listJournals(c, r.query)
	case id != "" && i < 0:
		return vendorAnswer{404, nil, "The resource you're looking for cannot be found"}
	case r.method == "GET":
		return f.showJournals(c, nil, c.journals[i])
	case (r.method == "PUT" || r.method == "POST") && r.header.Get("Content-Type") == "application/json":
	default:
		return xeroFakeDenied(415, "Unsupported", "UnsupportedMediaType")
	}
	key := r.header.Get("Idempotency-Key")
	if len(key) > 128 {
		return xeroFakeInvalid("The Idempotency-Key is longer than 128 characters.")
	}
	request := r.method + " " + r.path + "\n" + string(r.body)
	if before, ok := f.answers[c.tenant+key]; ok && key != "" {
		if before.request != request {
			return xeroFakeInvalid("The Idempotency-Key was used for another request.")
		}
		return xeroFakeSays(before.status, before.body)
	}
	var result vendorAnswer
	if id == "" {
		result = f.createJournal(c, r.body)
	} else {
		result = f.changeJournal(c, c.journals[i], r.body)
	}
	if key != "" && result.status == 200 {
		f.answers[c.tenant+key] = xeroFakeAnswer{request, result.status, result.body}
	}
	return result
}

// xeroFakeInvalid is the answer to a request with mistakes.
func xeroFakeInvalid(messages ...string) vendorAnswer {
	list := []any{}
	for _, m := range messages {
		list = append(list, xeroFields{"Message": m})
	}
	element := xeroFields{"ManualJournalID": "00000000-0000-0000-0000-000000000000", "ValidationErrors": list}
	return xeroFakeSays(400, xeroFields{"ErrorNumber": 10, "Type": "ValidationException",
		"Message": "A validation exception occurred", "Elements": []any{element}})
}

// createJournal makes a journal. Xero takes several in one request, and the fake only one.
func (f *xeroFake) createJournal(c *xeroFakeCompany, body []byte) vendorAnswer {
	var asked struct {
		ManualJournals []struct {
			Narration, Date, LineAmountTypes, Status string
			JournalLines                             []struct {
				LineAmount                        json.Number
				AccountCode, Description, TaxType string
				Tracking                          []xeroTracking
			}
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil || len(asked.ManualJournals) != 1 {
		return xeroFakeSays(400, xeroFields{"ErrorNumber": 17, "Type": "NoDataProcessedException",
			"Message": fmt.Sprintf("No data has been processed: %v", err)})
	}
	a := asked.ManualJournals[0]
	j := &xeroFakeJournal{f.newID(), a.Narration, a.Date, a.LineAmountTypes, a.Status, nil, f.now()}
	var wrong []string
	for _, l := range a.JournalLines {
		amount, ok := hundredths(l.LineAmount.String())
		if !ok {
			wrong = append(wrong, "The amount "+l.LineAmount.String()+" is not valid.")
		}
		j.lines = append(j.lines, xeroFakeLine{amount, l.AccountCode, l.Description, l.TaxType, l.Tracking})
	}
	wrong = append(wrong, c.wrongWith(j)...)
	if len(wrong) > 0 {
		return xeroFakeInvalid(wrong...)
	}
	c.journals = append(c.journals, j)
	return f.showJournals(c, nil, j)
}

// wrongWith returns what keeps a journal out of the books.
func (c *xeroFakeCompany) wrongWith(j *xeroFakeJournal) (messages []string) {
	say := func(format string, args ...any) { messages = append(messages, fmt.Sprintf(format, args...)) }
	sum := int64(0)
	for _, l := range j.lines {
		sum += l.amount
		i := slices.IndexFunc(c.accounts, func(a *xeroFakeAccount) bool {
			return a.code != "" && a.code == l.account
		})
		switch {
		case i < 0:
			say("Account code '%s' is not a valid code for this document.", l.account)
		case c.accounts[i].status != "ACTIVE":
			say("Account code '%s' has been archived, or deleted.", l.account)
		case c.accounts[i].kind == "BANK":
			say("Account code '%s' is a bank account, which cannot be used in manual journals.", l.account)
		case c.accounts[i].system != "":
			say("Account code '%s' is a system account, which cannot be used in manual journals.", l.account)
		}
		if !slices.ContainsFunc(c.rates, func(r xeroFakeRate) bool {
			return r.code == l.taxType && r.status == "ACTIVE"
		}) {
			say("The TaxType code '%s' does not exist or cannot be used.", l.taxType)
		}
		for _, t := range l.tracking {
			if !slices.Contains(c.options, t.Name+":"+t.Option) {
				say("The TrackingCategory or Option '%s' does not exist.", t.Option)
			}
		}
	}
	_, err := time.Parse(time.DateOnly, j.date)
	switch {
	case len(j.lines) < 2:
		say("A manual journal must contain at least two lines.")
	case sum != 0:
		say("The total debits must equal total credits: they differ by %d.", sum)
	case j.kind != "Inclusive":
		say("LineAmountTypes is not valid.")
	case j.status != "DRAFT" && j.status != "POSTED":
		say("Status is not valid.")
	case j.narration == "":
		say("Narration is mandatory.")
	case err != nil:
		say("Date is not valid.")
	}
	if j.date <= c.periodLock {
		say("The document date cannot be before the period lock date, currently set at %s.", c.periodLock)
	}
	return messages
}

// changeJournal changes the status of a journal: a draft may be posted or deleted, a posted one voided.
func (f *xeroFake) changeJournal(c *xeroFakeCompany, j *xeroFakeJournal, body []byte) vendorAnswer {
	var asked struct {
		ManualJournals []struct{ ManualJournalID, Narration, Status string }
	}
	if json.Unmarshal(body, &asked) != nil || len(asked.ManualJournals) != 1 ||
		asked.ManualJournals[0].Narration == "" {
		return xeroFakeSays(400, xeroFields{"ErrorNumber": 17, "Message": "No data"})
	}
	switch change := asked.ManualJournals[0]; {
	case change.ManualJournalID != j.id:
		return xeroFakeInvalid("The ids of the path and of the body are not the same.")
	case j.date <= c.periodLock:
		return xeroFakeInvalid("The document date cannot be before the period lock date.")
	case j.status == "DRAFT" && (change.Status == "DELETED" || change.Status == "POSTED"),
		j.status == "POSTED" && change.Status == "VOIDED":
		j.status, j.narration, j.updatedAt = change.Status, change.Narration, f.now()
		return f.showJournals(c, nil, j)
	}
	return xeroFakeInvalid("Manual journal not of valid status for modification.")
}

var xeroFakeWhere = regexp.MustCompile(
	`^Date >= DateTime\((\d+), (\d+), (\d+)\) AND Date < DateTime\((\d+), (\d+), (\d+)\)$`)

// listJournals answers with a page of the journals of some days.
func (f *xeroFake) listJournals(c *xeroFakeCompany, query url.Values) vendorAnswer {
	m := xeroFakeWhere.FindStringSubmatch(query.Get("where"))
	page, err := strconv.Atoi(query.Get("page"))
	if m == nil || err != nil || page < 1 || query.Get("pageSize") != "100" ||
		query.Get("order") != "Date ASC" {
		return xeroFakeSays(400, xeroFields{"ErrorNumber": 16, "Type": "QueryParseException",
			"Message": "The query can't be parsed: " + query.Encode()})
	}
	date := func(at int) string {
		var n [3]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[at+i])
		}
		return time.Date(n[0], time.Month(n[1]), n[2], 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
	}
	from, until := date(1), date(4)
	var found []*xeroFakeJournal
	for _, j := range c.journals {
		if j.date >= from && j.date < until {
			found = append(found, j)
		}
	}
	slices.SortStableFunc(found, func(a, b *xeroFakeJournal) int { return strings.Compare(a.date, b.date) })
	at := min((page-1)*100, len(found))
	pagination := xeroFields{"page": page, "pageSize": 100,
		"pageCount": (len(found) + 99) / 100, "itemCount": len(found)}
	return f.showJournals(c, pagination, found[at:min(at+100, len(found))]...)
}

// showJournals answers with journals as they are now.
func (f *xeroFake) showJournals(
	c *xeroFakeCompany, pagination any, journals ...*xeroFakeJournal,
) vendorAnswer {
	list := []any{}
	for _, j := range journals {
		list = append(list, xeroFields{"ManualJournalID": j.id, "Narration": j.narration, "Status": j.status,
			"Date": fakeXeroDate(j.date), "LineAmountTypes": j.kind, "JournalLines": f.showLines(c, j),
			"ShowOnCashBasisReports": true, "HasAttachments": false,
			"UpdatedDateUTC": fmt.Sprintf("/Date(%d+0000)/", j.updatedAt.UnixMilli())})
	}
	body := xeroFields{"Id": f.newID(), "Status": "OK", "ProviderName": "widgetd", "ManualJournals": list,
		"DateTimeUTC": fmt.Sprintf("/Date(%d)/", f.now().UnixMilli())}
	if pagination != nil {
		body["pagination"] = pagination
	}
	return xeroFakeSays(200, body)
}

// showLines are the lines of a journal, with the tax that is in each.
func (f *xeroFake) showLines(c *xeroFakeCompany, j *xeroFakeJournal) []any {
	lines := []any{}
	for _, l := range j.lines {
		i := slices.IndexFunc(c.rates, func(r xeroFakeRate) bool { return r.code == l.taxType })
		tax := vatIn(max(l.amount, -l.amount), c.rates[i].rate)
		if l.amount < 0 {
			tax = -tax
		}
		tracking := []any{}
		for _, t := range l.tracking {
			tracking = append(tracking, xeroFields{"Name": t.Name, "Option": t.Option,
				"TrackingCategoryID": f.newID(), "TrackingOptionID": f.newID()})
		}
		lines = append(lines, xeroFields{"LineAmount": fakeXeroNumber(l.amount), "AccountCode": l.account,
			"Description": l.text, "TaxType": l.taxType, "TaxAmount": fakeXeroNumber(tax),
			"Tracking": tracking, "AccountID": f.newID(), "IsBlank": false})
	}
	return lines
}

// change has something done to a company's books while nobody else looks.
func (f *xeroFake) change(company int, do func(c *xeroFakeCompany)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.companies[company])
}

// on has something done to a journal of any company.
func (f *xeroFake) on(id string, do func(j *xeroFakeJournal)) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.companies {
		for _, j := range c.journals {
			if j.id == id {
				do(j)
				return
			}
		}
	}
	f.t.Fatalf("there is no journal %s", id)
}

// void has the accountant void a journal that is posted, or delete a draft.
func (f *xeroFake) void(id string) {
	f.t.Helper()
	f.on(id, func(j *xeroFakeJournal) {
		if j.status == "DRAFT" {
			j.status = "DELETED"
		} else {
			j.status = "VOIDED"
		}
	})
}

// lock has the accountant of the first company lock all days up to a date; "": none is.
func (f *xeroFake) lock(date businessDate) {
	f.change(0, func(c *xeroFakeCompany) { c.periodLock = date })
}

// journals returns the journals of the first company, in the order in which they were made.
func (f *xeroFake) journals() (all []xeroFakeJournal) {
	f.change(0, func(c *xeroFakeCompany) {
		for _, j := range c.journals {
			all = append(all, *j)
		}
	})
	return all
}

// forgetKeys has the time pass after which idempotency keys are not known any more.
func (f *xeroFake) forgetKeys() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.answers)
}

// remove has the person remove the application in the company's settings.
func (f *xeroFake) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links = nil
}

// revoke has the person take back what was agreed to: no refresh token is taken any more.
func (f *xeroFake) revoke() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.refreshes {
		r.revokedByUser = true
	}
}
