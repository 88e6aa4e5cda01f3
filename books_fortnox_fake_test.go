package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// A fortnoxFake is a Fortnox over HTTP that keeps state, as its description and its guides say: applications,
// what owners have agreed to, and companies with their books. Vouchers are only ever added, and nothing is
// idempotent. Of the errors that the guides give no code for it answers the message only, with a code that
// says nothing.
type fortnoxFake struct {
	bookFake
	companies []*fortnoxFakeCompany
	owner     *fortnoxFakeCompany // of whom approve agrees
	codes     map[string]fortnoxFakeCode
	tokens    map[string]fortnoxFakeToken
	dates     string // what it makes of dates in a search: "" uses, "ignored", "refused"
}

// A fortnoxFakeCompany is a company and its books.
type fortnoxFakeCompany struct {
	number      int64 // of its database
	name        string
	agreed      []string        // scopes; nil: none
	lacks       fortnoxFakeLack // that every call is refused for
	years       []fortnoxFakeYear
	series      []fortnoxFakeSeries
	accounts    []fortnoxFakeAccount
	centers     []string     // cost centres that are active
	lockedUntil businessDate // "": nothing is
	vouchers    []*fortnoxFakeVoucher
	calls       []time.Time // that count for the limit
}

// A fortnoxFakeLack is a licence or a right that a company lacks; zero: none.
type fortnoxFakeLack struct {
	status  int
	code    int64
	message string
	tokens  bool   // no tokens are given either
	path    string // only for calls below it: "vouchers"
}

// fortnoxNoLicense is the lack of a licence for the API.
var fortnoxNoLicense = fortnoxFakeLack{status: 403, code: 2001103, message: "Api-licens saknas."}

type fortnoxFakeYear struct {
	id       int64
	from, to businessDate
}

type fortnoxFakeSeries struct {
	code   string
	year   int64
	manual bool
}

type fortnoxFakeAccount struct {
	number    int64
	name, vat string
	active    bool
}

// A fortnoxFakeVoucher is a voucher. Its rows may be struck by an accountant, but never vanish.
type fortnoxFakeVoucher struct {
	series       string
	number, year int64
	description  string
	date         businessDate
	rows         []fortnoxFakeRow
}

type fortnoxFakeRow struct {
	account       int64
	debit, credit int64 // in öre
	center, text  string
	removed       bool
}

// A fortnoxFakeCode is a code that is to be swapped for tokens.
type fortnoxFakeCode struct {
	company  *fortnoxFakeCompany
	redirect string
	scope    string
	until    time.Time
}

type fortnoxFakeToken struct {
	company *fortnoxFakeCompany
	until   time.Time
}

// fortnoxNoCode is the code of errors of which the guides give none.
const fortnoxNoCode = 2009999

// newFortnoxFake serves a fake until the test ends. now is its clock.
func newFortnoxFake(t testing.TB, now func() time.Time) *fortnoxFake {
	f := makeFortnoxFake(t, now, "")
	f.serve()
	return f
}

// makeFortnoxFake makes a fake that is served at an address by who makes it. It has one company, with a year
// of the calendar before, in and after now.
func makeFortnoxFake(t testing.TB, now func() time.Time, base string) *fortnoxFake {
	f := &fortnoxFake{codes: map[string]fortnoxFakeCode{}, tokens: map[string]fortnoxFakeToken{}}
	f.vendorFake = vendorFake{t: t, now: now, base: base, operation: fortnoxKind, act: f.answer}
	f.app = appSecrets{"8VurtMGDTeAI", "yFKwme8LEQ+/"}
	f.owner = f.addCompany(1234567, "Krogen på hörnet AB")
	return f
}

// addCompany adds a company.
func (f *fortnoxFake) addCompany(number int64, name string) *fortnoxFakeCompany {
	c := &fortnoxFakeCompany{number: number, name: name, centers: []string{"BAR", "KÖK"}}
	for id := range int64(3) {
		year := strconv.Itoa(f.now().Year() - 1 + int(id))
		c.years = append(c.years, fortnoxFakeYear{id + 1, year + "-01-01", year + "-12-31"})
		for _, code := range []string{"A", "B", "F", "W"} {
			c.series = append(c.series, fortnoxFakeSeries{code, id + 1, code != "B"})
		}
	}
	c.accounts = []fortnoxFakeAccount{
		{1510, "Kundfordringar", "", true}, {1580, "Fordringar för kontokort och kuponger", "", true},
		{1581, "Fordran Swish", "", true}, {1910, "Kassa", "", true}, {1930, "Företagskonto", "", true},
		{2421, "Ej inlösta presentkort", "", true}, {2440, "Leverantörsskulder", "", true},
		{2611, "Utgående moms 25 %", "U1", true}, {2621, "Utgående moms 12 %", "U2", true},
		{2631, "Utgående moms 6 %", "U3", true}, {2890, "Dricks", "", true},
		{3001, "Försäljning 25 %", "MP1", true}, {3002, "Försäljning 12 %", "MP2", true},
		{3003, "Försäljning 6 %", "MP3", true}, {3004, "Försäljning momsfri", "", false},
		{3520, "Fakturerade frakter", "MP2", true}, {6352, "Tvister", "", true},
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.companies = append(f.companies, c)
	return c
}

// approve is the owner's browser at the address that authorizeURL returns. It returns where the browser is sent.
func (f *fortnoxFake) approve(address string) (redirect string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.agree(address)
}

// agree has the owner agree for their company. The caller holds f.mu.
func (f *fortnoxFake) agree(address string) (redirect string) {
	u, err := url.Parse(address)
	if err != nil || u.Path != "/oauth-v1/auth" {
		f.t.Errorf("the browser is sent to %s: %v", address, err)
		return ""
	}
	q := u.Query()
	for name, want := range map[string]string{"client_id": f.app.clientID, "response_type": "code",
		"account_type": "service", "access_type": "offline"} {
		if q.Get(name) != want {
			f.t.Errorf("%s is %q at the authorisation", name, q.Get(name))
		}
	}
	scopes := strings.Fields(q.Get("scope"))
	if q.Get("state") == "" || q.Get("redirect_uri") == "" || len(scopes) == 0 {
		f.t.Errorf("what is asked of the owner lacks something: %s", u.RawQuery)
	}
	f.number++
	code := fmt.Sprintf("code-%d", f.number)
	f.codes[code] = fortnoxFakeCode{f.owner, q.Get("redirect_uri"), q.Get("scope"), f.now().Add(10 * time.Minute)}
	f.owner.agreed = scopes
	return q.Get("redirect_uri") + "?" + url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
}

// fortnoxRefused is an error that the fake answers with.
func fortnoxRefused(status int, code int64, message string) (int, any) {
	return status, map[string]any{"ErrorInformation": map[string]any{"Error": 1, "Message": message, "Code": code}}
}

// answer does what a request asks for. The caller holds f.mu.
func (f *fortnoxFake) answer(r vendorRequest) vendorAnswer {
	if r.method == "GET" && r.path == "/oauth-v1/auth" {
		back := f.agree(r.path + "?" + r.query.Encode())
		return vendorAnswer{302, http.Header{"Location": {back}}, nil}
	}
	status, body := f.call(r)
	return vendorAnswer{status, nil, body}
}

func (f *fortnoxFake) call(r vendorRequest) (int, any) {
	if r.method == "POST" && r.path == "/oauth-v1/token" {
		return f.giveToken(r)
	}
	text, bearer := strings.CutPrefix(r.header.Get("Authorization"), "Bearer ")
	token, known := f.tokens[text]
	if !bearer || !known || !f.now().Before(token.until) || token.company.agreed == nil {
		return 401, map[string]any{"ErrorInformation": map[string]any{ // whose members are small, here only
			"error": 1, "message": "Ogiltig inloggning", "code": 2000310}}
	}
	c := token.company
	c.calls = slices.DeleteFunc(c.calls, func(at time.Time) bool { return !f.now().Before(at.Add(5 * time.Second)) })
	if len(c.calls) >= 25 {
		return 429, map[string]any{"message": "API rate limit exceeded"}
	}
	c.calls = append(c.calls, f.now())
	path, ok := strings.CutPrefix(r.path, "/3/")
	if c.lacks.status != 0 && strings.HasPrefix(path, c.lacks.path) {
		return fortnoxRefused(c.lacks.status, c.lacks.code, c.lacks.message)
	}
	parts := strings.Split(path, "/")
	switch {
	case !ok || r.method != "GET" && !(r.method == "POST" && path == "vouchers"):
		return fortnoxRefused(404, fortnoxNoCode, "Not found")
	case r.method == "POST":
		return c.postVoucher(r)
	case path == "companyinformation":
		return 200, map[string]any{"CompanyInformation": map[string]any{"CompanyName": c.name,
			"DatabaseNumber": c.number, "OrganizationNumber": "556012-5790", "CountryCode": "SE"}}
	case path == "settings/lockedperiod":
		period := map[string]any{}
		if c.lockedUntil != "" {
			period["EndDate"] = c.lockedUntil
		}
		return 200, map[string]any{"LockedPeriod": period}
	case path == "financialyears":
		return c.listYears(cmp.Or(r.query.Get("date"), r.query.Get("Date")))
	case path == "accounts":
		return c.listAccounts(r)
	case path == "voucherseries":
		return c.listSeries(r)
	case len(parts) == 3 && parts[0] == "vouchers" && parts[1] == "sublist":
		return f.searchVouchers(c, r, parts[2])
	case len(parts) == 3 && parts[0] == "vouchers":
		return c.readVoucher(r, parts[1], parts[2])
	}
	return fortnoxRefused(404, fortnoxNoCode, "Not found")
}

// giveToken answers at the token endpoint.
func (f *fortnoxFake) giveToken(r vendorRequest) (int, any) {
	refused := func(status int, code string) (int, any) {
		return status, map[string]any{"error": code, "error_description": "Nej."}
	}
	form, why := f.tokenForm(r)
	switch why {
	case "invalid_client":
		return refused(401, why)
	case "invalid_request":
		return refused(400, why)
	}
	var company *fortnoxFakeCompany
	scope := form.Get("scope")
	answer := map[string]any{"token_type": "bearer"}
	f.lasting(answer, 3600)
	switch form.Get("grant_type") {
	case "authorization_code":
		code, known := f.codes[form.Get("code")]
		delete(f.codes, form.Get("code"))
		if !known || code.redirect != form.Get("redirect_uri") || !f.now().Before(code.until) {
			return refused(400, "invalid_grant")
		}
		company, scope = code.company, code.scope
		answer["refresh_token"] = "a7302e6b-b1cb-4508-b884-cf9abd9a51de"
	case "client_credentials":
		for _, c := range f.companies {
			if strconv.FormatInt(c.number, 10) == r.header.Get("TenantId") && c.agreed != nil {
				company = c
			}
		}
		if company == nil {
			return refused(400, "invalid_grant")
		}
		if company.lacks.tokens {
			return refused(400, "error_missing_license")
		}
		for _, one := range strings.Fields(scope) {
			if !slices.Contains(company.agreed, one) {
				return refused(400, "invalid_scope")
			}
		}
	default:
		return refused(400, "unsupported_grant_type")
	}
	f.number++
	answer["access_token"], answer["scope"] = fmt.Sprintf("access-%d", f.number), scope
	f.tokens[answer["access_token"].(string)] = fortnoxFakeToken{company, f.now().Add(time.Hour)}
	return 200, answer
}

// fortnoxFakeList answers a page of a list.
func fortnoxFakeList(r vendorRequest, member string, all []map[string]any) (int, any) {
	limit, page := 100, 1
	for name, n := range map[string]*int{"limit": &limit, "page": &page} {
		if text := r.query.Get(name); text != "" {
			var err error
			if *n, err = strconv.Atoi(text); err != nil || *n < 1 || limit > 500 {
				return fortnoxRefused(400, 2000588, "Ogiltig parameter i anropet.")
			}
		}
	}
	pages := max((len(all)+limit-1)/limit, 1)
	from := min((page-1)*limit, len(all))
	return 200, map[string]any{member: all[from:min(from+limit, len(all))], "MetaInformation": map[string]any{
		"@TotalResources": len(all), "@TotalPages": pages, "@CurrentPage": page}}
}

func (c *fortnoxFakeCompany) listYears(date businessDate) (int, any) {
	years := []map[string]any{}
	for _, y := range c.years {
		if date == "" || y.from <= date && date <= y.to {
			years = append(years, map[string]any{"Id": y.id, "FromDate": y.from, "ToDate": y.to,
				"AccountChartType": "BAS 2026", "AccountingMethod": "ACCRUAL"})
		}
	}
	return 200, map[string]any{"FinancialYears": years}
}

func (c *fortnoxFakeCompany) listAccounts(r vendorRequest) (int, any) {
	accounts := []map[string]any{}
	for _, a := range c.accounts {
		accounts = append(accounts, map[string]any{"Number": a.number, "Description": a.name, "Active": a.active,
			"VATCode": a.vat, "Year": 1})
	}
	return fortnoxFakeList(r, "Accounts", accounts)
}

func (c *fortnoxFakeCompany) listSeries(r vendorRequest) (int, any) {
	series := []map[string]any{}
	for _, s := range c.series {
		if strconv.FormatInt(s.year, 10) == r.query.Get("financialyear") {
			series = append(series, map[string]any{"Code": s.code, "Description": "Serie " + s.code,
				"Manual": s.manual, "Year": s.year})
		}
	}
	return fortnoxFakeList(r, "VoucherSeriesCollection", series)
}

// searchVouchers answers the vouchers of a series, with the lowest number first.
func (f *fortnoxFake) searchVouchers(c *fortnoxFakeCompany, r vendorRequest, series string) (int, any) {
	from, to := r.query.Get("fromdate"), cmp.Or(r.query.Get("todate"), "9999-12-31")
	if f.dates == "refused" && r.query.Has("fromdate") {
		return fortnoxRefused(400, 2000588, "Ogiltig parameter i anropet.")
	}
	if f.dates == "ignored" {
		from, to = "", "9999-12-31"
	}
	found := []map[string]any{}
	for _, v := range c.vouchers {
		if v.series == series && v.isOf(r) && from <= v.date && v.date <= to {
			head := v.answer()
			delete(head, "VoucherRows")
			found = append(found, head)
		}
	}
	return fortnoxFakeList(r, "Vouchers", found)
}

// isOf reports whether a voucher is of the financial year that a request names.
func (v *fortnoxFakeVoucher) isOf(r vendorRequest) bool {
	return strconv.FormatInt(v.year, 10) == r.query.Get("financialyear")
}

func (c *fortnoxFakeCompany) readVoucher(r vendorRequest, series, number string) (int, any) {
	for _, v := range c.vouchers {
		if v.series == series && strconv.FormatInt(v.number, 10) == number && v.isOf(r) {
			return 200, map[string]any{"Voucher": v.answer()}
		}
	}
	return fortnoxRefused(404, fortnoxNoCode, "Kan inte hitta verifikat.")
}

// answer returns a voucher as it is answered.
func (v *fortnoxFakeVoucher) answer() map[string]any {
	rows := []map[string]any{}
	for _, row := range v.rows {
		rows = append(rows, map[string]any{"Account": row.account, "Debit": fortnoxFakeAmount(row.debit),
			"Credit": fortnoxFakeAmount(row.credit), "CostCenter": row.center, "Project": "", "Quantity": 0,
			"Description": "Konto", "TransactionInformation": row.text, "Removed": row.removed})
	}
	address := fmt.Sprintf("https://api.fortnox.se/3/vouchers/%s/%d?financialyear=%d", v.series, v.number, v.year)
	return map[string]any{"@url": address, "ApprovalState": 0, "Comments": "",
		"Description": v.description, "ReferenceNumber": "", "ReferenceType": "MANUAL",
		"TransactionDate": v.date, "VoucherNumber": v.number, "VoucherSeries": v.series, "Year": v.year,
		"VoucherRows": rows}
}

// fortnoxFakeAmount writes an amount as Fortnox does, without needless decimals.
func fortnoxFakeAmount(amount int64) json.Number {
	sign := ""
	if amount < 0 {
		sign, amount = "-", -amount
	}
	return json.Number(sign + strings.TrimSuffix(strings.TrimRight(formatAmount(amount), "0"), "."))
}

// postVoucher adds a voucher, unless something is not right about it.
func (c *fortnoxFakeCompany) postVoucher(r vendorRequest) (int, any) {
	v, code, wrong := c.checkVoucher(r)
	if wrong != "" {
		return fortnoxRefused(400, code, wrong)
	}
	v.number = 1
	for _, other := range c.vouchers {
		if other.series == v.series && other.year == v.year {
			v.number++
		}
	}
	c.vouchers = append(c.vouchers, v)
	return 201, map[string]any{"Voucher": v.answer()}
}

// checkVoucher returns the voucher that a request is to add, or what is wrong with it and the code of that.
func (c *fortnoxFakeCompany) checkVoucher(r vendorRequest) (v *fortnoxFakeVoucher, code int64, wrong string) {
	var body struct {
		Voucher struct {
			Description, TransactionDate, VoucherSeries string
			VoucherRows                                 []struct {
				Account                            int64
				Debit, Credit                      json.Number
				CostCenter, TransactionInformation string
			}
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(r.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil || r.header.Get("Content-Type") != "application/json" {
		return nil, 2001392, "Ingen eller felaktig typ av data."
	}
	b := body.Voucher
	v = &fortnoxFakeVoucher{series: b.VoucherSeries, description: b.Description, date: b.TransactionDate}
	if b.Description == "" || utf8.RuneCountInString(b.Description) > 200 {
		return nil, fortnoxNoCode, "Beskrivningen är för lång."
	}
	for _, row := range b.VoucherRows {
		debit, ok := parseAmount(row.Debit.String())
		credit, ok2 := parseAmount(row.Credit.String())
		if !ok || !ok2 || debit > 0 && credit > 0 || utf8.RuneCountInString(row.TransactionInformation) > 100 {
			return nil, 2000108, "Värdet måste vara numeriskt (" + row.Debit.String() + ")"
		}
		if strings.IndexFunc(b.Description+row.TransactionInformation, unicode.IsControl) >= 0 ||
			strings.ContainsAny(b.Description+row.TransactionInformation, "🍕\u200d\ufe0f") {
			return nil, 2000359, "Värdet innehåller ej tillåtna tecken."
		}
		v.rows = append(v.rows,
			fortnoxFakeRow{row.Account, debit, credit, row.CostCenter, row.TransactionInformation, false})
	}
	code, wrong = c.judge(v, r)
	return v, code, wrong
}

// judge says what is wrong with a voucher for these books, and the code of that; "": nothing is.
func (c *fortnoxFakeCompany) judge(v *fortnoxFakeVoucher, r vendorRequest) (code int64, wrong string) {
	for _, y := range c.years {
		if strconv.FormatInt(y.id, 10) == r.query.Get("financialyear") && y.from <= v.date && v.date <= y.to {
			v.year = y.id
		}
	}
	series := slices.IndexFunc(c.series,
		func(s fortnoxFakeSeries) bool { return s.code == v.series && s.year == v.year })
	switch {
	case v.year == 0:
		return fortnoxNoCode, "Räkenskapsår saknas för valt datum."
	case v.date <= c.lockedUntil:
		return 2000401, "Anna har låst perioden t.o.m. " + c.lockedUntil + ". Lås upp perioden för att fortsätta."
	case series < 0:
		return fortnoxNoCode, "Ogiltig verifikationsserie angiven."
	case !c.series[series].manual:
		return fortnoxNoCode, "Verifikationsserien är inte manuell (" + v.series + ")."
	case len(v.rows) < 2:
		return fortnoxNoCode, "Minst två rader krävs."
	}
	sum := int64(0)
	for _, row := range v.rows {
		i := slices.IndexFunc(c.accounts, func(a fortnoxFakeAccount) bool { return a.number == row.account })
		switch {
		case i < 0:
			return 2001304, "Kunde inte hitta konto"
		case !c.accounts[i].active:
			return fortnoxNoCode, fmt.Sprintf(`Konto "%d" är inte aktivt.`, row.account)
		case row.center != "" && !slices.Contains(c.centers, row.center):
			return 2000947, "Kostnadsstället är inte aktivt."
		}
		sum += row.debit - row.credit
	}
	if sum != 0 {
		return fortnoxNoCode, "Verifikationen balanserar inte."
	}
	return 0, ""
}

// vouchers returns the vouchers of the owner's company, in the order in which they were posted.
func (f *fortnoxFake) vouchers() (all []fortnoxFakeVoucher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.owner.vouchers {
		copied := *v
		copied.rows = slices.Clone(v.rows)
		all = append(all, copied)
	}
	return all
}

// change changes the books of the owner's company.
func (f *fortnoxFake) change(with func(c *fortnoxFakeCompany)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	with(f.owner)
}

// lock locks the books up to a date, that day included; "": nothing is locked any more.
func (f *fortnoxFake) lock(until businessDate) {
	f.change(func(c *fortnoxFakeCompany) { c.lockedUntil = until })
}

// setActive says whether an account can be booked on.
func (f *fortnoxFake) setActive(number int64, active bool) {
	f.change(func(c *fortnoxFakeCompany) {
		for i := range c.accounts {
			if c.accounts[i].number == number {
				c.accounts[i].active = active
			}
		}
	})
}

// withdrawConsent ends what the owner has agreed to: the integration was removed in Fortnox.
func (f *fortnoxFake) withdrawConsent() {
	f.change(func(c *fortnoxFakeCompany) { c.agreed = nil })
}

// forgetTokens has every access token refused that was given so far.
func (f *fortnoxFake) forgetTokens() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.tokens)
}

// strikeRow is an accountant who strikes the row of an account of a voucher and books its amount on another
// one in its place, as Fortnox shows that: the row stays and is marked.
func (f *fortnoxFake) strikeRow(at int, account, other int64) {
	f.change(func(c *fortnoxFakeCompany) {
		v := c.vouchers[at]
		for i, row := range v.rows {
			if row.account == account && !row.removed {
				v.rows[i].removed = true
				row.account = other
				v.rows = append(v.rows, row)
			}
		}
	})
}
