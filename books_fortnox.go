package main

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Fortnox (its description of February 2026, and its guides for developers). An entry is a voucher, which
// can be neither changed nor deleted, and a request has no idempotency key: what was posted is found by the
// sync key in its description. The owner agrees once, as a service account; after that access tokens are
// asked for with the client's own credentials and the number of the company's database.

// Where Fortnox is.
const (
	fortnoxAuthHost = "https://apps.fortnox.se"
	fortnoxAPIHost  = "https://api.fortnox.se"
)

const productFortnox = "fortnox"

// fortnoxProduct declares Fortnox. Its pages have an id in their address that its API does not tell.
var fortnoxProduct = bookProduct{name: productFortnox, title: "Fortnox",
	client: func(out *outbound, base string, now func() time.Time) ledger { return newFortnoxLedger(out, base, now) },

	requests: 20, within: fortnoxWindow, // Fortnox takes 25, and counts everything that an application does there

	series: true, account: checkFortnoxAccount, tax: checkFortnoxAccount,
	standard: &standardAccounts{ // BAS, the chart of nearly all Swedish books
		byRate: map[int64]rateAccounts{
			2500: {"3001", "2611"}, 1200: {"3002", "2621"}, 600: {"3003", "2631"}, 0: {"3004", ""}},
		tips: "2890", cash: "1910", voucher: "2421", clearing: "1580"},
}

// checkFortnoxAccount is a textCheck of the code of an account.
var checkFortnoxAccount = checkedBy(func(s string) bool { _, ok := fortnoxAccount(s); return ok },
	"invalid_account", "This must be an account from 1000 to 9999.")

const (
	fortnoxScope     = "bookkeeping companyinformation settings"
	fortnoxCurrency  = "SEK" // that Swedish books are kept in: vouchers have no currency
	fortnoxWindow    = 5 * time.Second
	fortnoxTokenLife = time.Hour
)

// The bounds of what Fortnox takes and sends.
const (
	maxFortnoxDescription = 200 // characters
	maxFortnoxRowText     = 100 // characters
	maxFortnoxSeries      = 10  // characters
	maxFortnoxText        = 1000
	maxFortnoxAnswer      = 4 << 20 // bytes of a list: 500 vouchers with comments
	maxFortnoxAccounts    = 5000
	maxFortnoxPages       = 20 // of vouchers that are searched
	fortnoxPage           = 500
	fortnoxDaysAround     = 3 // days before and after the date of an entry that are searched
)

// A fortnoxLedger is the client of Fortnox. Make one with newFortnoxLedger.
type fortnoxLedger struct {
	out       *outbound
	auth, api string // base addresses, without a slash at their ends
	now       func() time.Time
}

// newFortnoxLedger makes a client. base replaces the base addresses of both hosts; "": Fortnox' own. now is the
// wall clock.
func newFortnoxLedger(out *outbound, base string, now func() time.Time) *fortnoxLedger {
	base = strings.TrimRight(base, "/")
	f := &fortnoxLedger{out, base, base, now}
	if base == "" {
		f.auth, f.api = fortnoxAuthHost, fortnoxAPIHost
	}
	return f
}

// authorizeURL implements ledger. Fortnox does not document PKCE. The challenge is sent anyway: a server that does
// not support PKCE ignores it (RFC 7636, section 5).
func (f *fortnoxLedger) authorizeURL(app appSecrets, redirectURL, state, challenge string) string {
	query := authorizeQuery(app, fortnoxScope, redirectURL, state, challenge)
	query.Set("access_type", "offline")
	query.Set("account_type", "service")
	return f.auth + "/oauth-v1/auth?" + query.Encode()
}

// exchange implements ledger. The refresh token that comes too is not kept, since renew needs none.
func (f *fortnoxLedger) exchange(
	ctx context.Context, app appSecrets, redirectURL, code, verifier string,
) (*bookTokens, error) {
	return f.tokens(ctx, app, codeGrantForm(redirectURL, code, verifier), nil)
}

// renew implements ledger, by client credentials (RFC 6749, section 4.4) for the company's database.
func (f *fortnoxLedger) renew(
	ctx context.Context, app appSecrets, c *bookConnection, _ *bookTokens,
) (*bookTokens, error) {
	if c.OrganisationID == nil {
		return nil, &outboundError{outcome: vendorRefused, reason: heldReconnect}
	}
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {fortnoxScope}}
	return f.tokens(ctx, app, form, http.Header{"TenantId": {*c.OrganisationID}})
}

func (f *fortnoxLedger) tokens(
	ctx context.Context, app appSecrets, form url.Values, header http.Header,
) (*bookTokens, error) {
	tokens, err := requestTokens(ctx, f.out, f.auth+"/oauth-v1/token", app, form, header, fortnoxTokenLife,
		f.now)
	if err != nil {
		return nil, err
	}
	tokens.Refresh = ""
	return tokens, nil
}

// disconnect implements ledger. Fortnox revokes refresh tokens only, of which we keep none: the company's
// administrator removes the integration in Fortnox.
func (f *fortnoxLedger) disconnect(context.Context, *ledgerSession) error { return nil }

// withdraw implements ledger.
func (f *fortnoxLedger) withdraw(context.Context, *ledgerSession, string) error {
	return &outboundError{outcome: vendorRefused, reason: "no_drafts",
		detail: "Fortnox has no drafts of vouchers."}
}

// organisations implements ledger.
func (f *fortnoxLedger) organisations(ctx context.Context, tokens *bookTokens) ([]bookOrganisation, error) {
	body, err := f.ask(ctx, &ledgerSession{access: tokens.Access}, "companyinformation", nil, "")
	if err != nil {
		return nil, err
	}
	company, _ := body.member("CompanyInformation")
	number, ok := integerMember(company, "DatabaseNumber")
	if !ok || number <= 0 {
		return nil, malformedAnswer(http.StatusOK)
	}
	name := textMember(company, "CompanyName", maxFortnoxText)
	return []bookOrganisation{{ID: strconv.FormatInt(number, 10), Name: name}}, nil
}

// ask sends a request to a resource below /3/, a GET unless it has a body, and returns the body of its answer.
// Errors: an *outboundError.
func (f *fortnoxLedger) ask(
	ctx context.Context, s *ledgerSession, path string, query url.Values, body string,
) (*jsonValue, error) {
	if err := s.pause(ctx); err != nil {
		return nil, err
	}
	address := f.api + "/3/" + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	header := http.Header{"Authorization": {"Bearer " + s.access}, "Accept": {"application/json"}}
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
		header.Set("Content-Type", "application/json")
	}
	q := outboundRequest{method, address, header, []byte(body), maxFortnoxAnswer}
	answer, err := f.out.ask(ctx, q, f.now(), classifyFortnox)
	if err != nil {
		return nil, err
	}
	value, err := parseJSON(answer.body)
	if err != nil {
		return nil, malformedAnswer(answer.status)
	}
	return &value, nil
}

// fortnoxCodes are the error codes of Fortnox that matter here. The list in its guide has few of them, so other
// errors are told apart by the words of their message, see fortnoxWords.
var fortnoxCodes = map[int64]string{
	2000401: heldLocked,
	2002141: heldLocked,
	2001304: heldUnusable,  // an account that is not there
	2000947: heldUnusable,  // a cost centre that is not active
	2000663: heldReconnect, // no permission for the scope
	2001101: heldReconnect, // no licence for the scope
	2001103: heldReconnect, // no licence for the API
}

const (
	fortnoxSystemException = 1000003 // "Something went wrong on our end"
	fortnoxNoLogin         = 2000310 // the access token is missing or wrong
	fortnoxNoLogin2        = 2000311
)

// fortnoxWords are words of Fortnox' messages, which are in Swedish or English, in lower case. The first row with
// a word that is in the message decides: a message about a series that is missing in a year names both.
var fortnoxWords = []struct {
	reason string
	words  []string
}{
	{heldLocked, []string{"låst", "locked"}},
	{heldNoSeries, []string{"verifikationsserie", "verifikatserie", "voucher series", "voucherseries"}},
	{heldNoYear, []string{"räkenskapsår", "bokföringsår", "financial year", "fiscal year"}},
	{"unbalanced", []string{"balansera", "balanced", "not balance"}},
	{heldUnusable, []string{"kostnadsställe", "cost center", "cost centre", "konto", "account"}},
}

// classifyFortnox sets the outcome and the reason of an answer whose status is not 2xx. It is a refusal only if Fortnox
// itself says so, in its own form of errors, whose members some answers write in lower case: the answer may also come
// from a proxy in between.
func classifyFortnox(answer *outboundAnswer, failed *outboundError) {
	var said struct {
		ErrorInformation struct {
			Code    *int64
			Message string
		}
	}
	json.Unmarshal(answer.body, &said) // it stays empty if this fails
	code, own := valueOr(said.ErrorInformation.Code, 0), said.ErrorInformation.Code != nil
	failed.detail = cutText(said.ErrorInformation.Message, maxFortnoxText)
	switch {
	case answer.status == http.StatusTooManyRequests:
		failed.outcome, failed.reason = vendorBusy, reasonRateLimited
		failed.wait = cmp.Or(failed.wait, fortnoxWindow)
	case answer.status == http.StatusUnauthorized, code == fortnoxNoLogin, code == fortnoxNoLogin2:
		failed.outcome = vendorDenied
	case answer.status == http.StatusForbidden:
		if own || failed.detail != "" {
			failed.outcome, failed.reason = vendorOwnerGone, heldReconnect
		}
	default:
		if failed.outcome = answer.outcome(own && code != fortnoxSystemException); failed.final() {
			failed.reason = fortnoxReason(code, failed.detail)
		}
	}
}

// fortnoxReason returns why Fortnox refuses something.
func fortnoxReason(code int64, message string) string {
	if reason, ok := fortnoxCodes[code]; ok {
		return reason
	}
	message = strings.ToLower(message)
	for _, row := range fortnoxWords {
		if slices.ContainsFunc(row.words, func(word string) bool { return strings.Contains(message, word) }) {
			return row.reason
		}
	}
	return "fortnox_" + strconv.FormatInt(code, 10)
}

// page asks for a page of a list, counted from 1, and returns its elements and how many pages there are.
func (f *fortnoxLedger) page(
	ctx context.Context, s *ledgerSession, path string, query url.Values, member string, number int,
) (items []jsonValue, pages int, err error) {
	query.Set("limit", strconv.Itoa(fortnoxPage))
	query.Set("page", strconv.Itoa(number))
	body, err := f.ask(ctx, s, path, query, "")
	if err != nil {
		return nil, 0, err
	}
	list, ok := body.member(member)
	if !ok || list.kind != jsonArray {
		return nil, 0, malformedAnswer(http.StatusOK)
	}
	meta, _ := body.member("MetaInformation")
	total, ok := integerMember(meta, "@TotalPages")
	if !ok { // without a count, only a page that is not full can be the last one
		total = 1
		if len(list.list) >= fortnoxPage {
			return nil, 0, malformedAnswer(http.StatusOK)
		}
	}
	return list.list, int(min(max(total, 1), 1<<20)), nil
}

// all returns the elements of a list that has at most max.
func (f *fortnoxLedger) all(
	ctx context.Context, s *ledgerSession, path string, query url.Values, member string, max int,
) (all []jsonValue, err error) {
	for number, pages := 1, 1; number <= pages; number++ {
		var items []jsonValue
		items, pages, err = f.page(ctx, s, path, query, member, number)
		if err != nil {
			return nil, err
		}
		if all = append(all, items...); len(all) > max || pages > max/fortnoxPage {
			return nil, &outboundError{reason: outboundTooLarge, detail: "more than " + strconv.Itoa(max) + " " + path}
		}
	}
	return all, nil
}

// chart implements ledger. Where there is no financial year of the date, the accounts are those of the year
// that is selected in Fortnox, so that a mapping can be made all the same.
func (f *fortnoxLedger) chart(ctx context.Context, s *ledgerSession, date businessDate) (*bookChart, error) {
	chart := &bookChart{Currency: fortnoxCurrency}
	if err := f.readYear(ctx, s, date, chart); err != nil {
		return nil, err
	}
	locked, err := f.ask(ctx, s, "settings/lockedperiod", nil, "")
	if err != nil {
		return nil, err
	}
	if period, ok := locked.member("LockedPeriod"); ok {
		if end := textMember(period, "EndDate", maxFortnoxText); isBusinessDate(end) {
			chart.LockedUntil = end
		} else if end != "" {
			return nil, malformedAnswer(http.StatusOK)
		}
	}
	query := url.Values{}
	if chart.Year != 0 {
		query.Set("financialyear", strconv.FormatInt(chart.Year, 10))
	}
	accounts, err := f.all(ctx, s, "accounts", query, "Accounts", maxFortnoxAccounts)
	if err != nil {
		return nil, err
	}
	for i := range accounts {
		if account, ok := parseFortnoxAccount(&accounts[i]); ok {
			chart.Accounts = append(chart.Accounts, account)
		}
	}
	if chart.Year == 0 {
		return chart, nil
	}
	series, err := f.all(ctx, s, "voucherseries", query, "VoucherSeriesCollection", maxFortnoxAccounts)
	if err != nil {
		return nil, err
	}
	for i := range series {
		code := textMember(&series[i], "Code", 4*maxFortnoxSeries)
		year, dated := integerMember(&series[i], "Year")
		if code != "" && trueMember(&series[i], "Manual") && (!dated || year == chart.Year) {
			chart.Series = append(chart.Series, code)
		}
	}
	return chart, nil
}

// readYear reads the financial year that a date is in, if there is one.
func (f *fortnoxLedger) readYear(ctx context.Context, s *ledgerSession, date businessDate, chart *bookChart) error {
	body, err := f.ask(ctx, s, "financialyears", url.Values{"date": {date}}, "")
	if err != nil {
		return err
	}
	years, ok := body.member("FinancialYears")
	if !ok || years.kind != jsonArray {
		return malformedAnswer(http.StatusOK)
	}
	for _, year := range years.list {
		from, to := textMember(&year, "FromDate", maxFortnoxText), textMember(&year, "ToDate", maxFortnoxText)
		id, ok := integerMember(&year, "Id")
		if ok && id > 0 && isBusinessDate(from) && isBusinessDate(to) && from <= date && date <= to {
			chart.Year, chart.YearFrom, chart.YearTo = id, from, to
		}
	}
	return nil
}

// fortnoxKept are the accounts that other parts of the books maintain, so entries of ours must not name them: the
// customers' and the suppliers' ledgers, and what is compared with statements of the bank. The numbers are those
// of BAS, the chart that nearly all Swedish books use. Of its group 15, 151, 156 and 157 are customers'
// ("kundfordringar"), but 158 is "fordringar för kontokort och kuponger": what providers of cards owe, which is a
// clearing account. Of 19, 191 is the cash in the till, all from 192 up to 198 is banks, and 199 is where many
// have clearing accounts. Of 24, 244, 246 and 247 are suppliers' ("leverantörsskulder"); 242 has prepayments and
// gift cards.
var fortnoxKept = []struct {
	from, to int64
	why      string
}{
	{1510, 1519, "receivable"},
	{1560, 1579, "receivable"},
	{1920, 1989, "bank"},
	{2440, 2449, "payable"},
	{2460, 2479, "payable"},
}

// parseFortnoxAccount parses an account of a list. It reports false for what vouchers can't name.
func parseFortnoxAccount(v *jsonValue) (bookAccount, bool) {
	number, ok := integerMember(v, "Number")
	if !ok || number < 1000 || number > 9999 {
		return bookAccount{}, false
	}
	account := bookAccount{
		Code: strconv.FormatInt(number, 10),
		Name: textMember(v, "Description", maxFortnoxText),
		Tax:  textMember(v, "VATCode", maxFortnoxText),
	}
	for _, kept := range fortnoxKept {
		if number >= kept.from && number <= kept.to {
			account.Why = kept.why
		}
	}
	if !trueMember(v, "Active") {
		account.Why = "archived"
	}
	account.Usable = account.Why == ""
	return account, true
}

// A fortnoxRow is a row of a voucher.
type fortnoxRow struct {
	Account    int64       `json:"Account"`
	Debit      json.Number `json:"Debit"`
	Credit     json.Number `json:"Credit"`
	CostCenter string      `json:"CostCenter,omitempty"`
	Text       string      `json:"TransactionInformation,omitempty"`
}

// encode implements ledger.
func (f *fortnoxLedger) encode(entry *bookEntry) string {
	type voucher struct {
		Description     string       `json:"Description"`
		TransactionDate businessDate `json:"TransactionDate"`
		VoucherSeries   string       `json:"VoucherSeries"`
		VoucherRows     []fortnoxRow `json:"VoucherRows"`
	}
	rows := make([]fortnoxRow, len(entry.Lines))
	for i, line := range entry.Lines {
		number, _ := fortnoxAccount(line.Account)
		rows[i] = fortnoxRow{number, json.Number(formatAmount(line.Debit)), json.Number(formatAmount(line.Credit)),
			line.CostCenter, cutText(fortnoxText(line.Text), maxFortnoxRowText)}
	}
	return bodyText(map[string]voucher{
		"Voucher": {fortnoxDescription(entry.Narration), entry.Date, entry.Series, rows},
	})
}

// fortnoxAccount parses the code of an account. It reports false for what vouchers can't name.
func fortnoxAccount(code string) (int64, bool) {
	n, err := strconv.ParseInt(code, 10, 64)
	return n, err == nil && n >= 1000 && n <= 9999 && len(code) == 4
}

// fortnoxText makes a text one line of characters that Fortnox takes: it refuses a voucher with any other
// character (error 2000359), and does not list those that it takes. Letters, digits, punctuation and currency
// symbols stay.
func fortnoxText(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r):
			return ' '
		case r >= ' ' && r <= '~', unicode.In(r, unicode.L, unicode.N, unicode.P, unicode.Sc):
			return r
		case unicode.Is(unicode.M, r) && !unicode.Is(unicode.Variation_Selector, r):
			return r
		}
		return -1
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// fortnoxDescription returns the description of a voucher. If the narration is too long, its sync key is moved to
// the beginning, so that the key is never cut.
func fortnoxDescription(narration string) string {
	text := fortnoxText(narration)
	words := strings.Fields(text)
	at := slices.IndexFunc(words, func(word string) bool { return strings.Contains(word, "widgetd:") })
	if at > 0 && len([]rune(text)) > maxFortnoxDescription {
		key := words[at]
		text = key + " " + strings.Join(slices.Delete(words, at, at+1), " ")
	}
	return cutText(text, maxFortnoxDescription)
}

// post implements ledger. What is known to be refused is not sent.
func (f *fortnoxLedger) post(
	ctx context.Context, s *ledgerSession, entry *bookEntry, body, _ string,
) (id string, err error) {
	if reason, detail := fortnoxRefuses(entry); reason != "" {
		return "", &outboundError{outcome: vendorRefused, reason: reason, detail: detail}
	}
	query := url.Values{"financialyear": {strconv.FormatInt(entry.Year, 10)}}
	answer, err := f.ask(ctx, s, "vouchers", query, body)
	if err != nil {
		return "", err
	}
	if voucher, ok := answer.member("Voucher"); ok {
		made, ok := parseFortnoxHead(voucher, entry.Year)
		if ok && made.Entry.Series == entry.Series {
			return made.ID, nil
		}
	}
	return "", malformedAnswer(http.StatusCreated)
}

// fortnoxRefuses returns why Fortnox can't take an entry; "": it may.
func fortnoxRefuses(entry *bookEntry) (reason, detail string) {
	switch {
	case entry.Currency != fortnoxCurrency:
		return heldCurrency, ""
	case entry.Year <= 0:
		return heldNoYear, ""
	case entry.Series == "":
		return heldNoSeries, ""
	case len(entry.Lines) < 2:
		return "too_few_rows", ""
	}
	for _, line := range entry.Lines {
		if _, ok := fortnoxAccount(line.Account); !ok {
			return heldUnusable, line.Account
		}
	}
	return "", ""
}

// Vouchers of Fortnox as they are read. In a list they have no rows. One is named by its series, its number and its
// financial year together: each year numbers anew.

// fortnoxID returns the id of a voucher: "K-17-3".
func fortnoxID(series string, number, year int64) string {
	return series + "-" + strconv.FormatInt(number, 10) + "-" + strconv.FormatInt(year, 10)
}

// parseFortnoxID parses the id of a voucher. Only a series may have a hyphen.
func parseFortnoxID(id string) (series string, number, year int64, ok bool) {
	parts := strings.Split(id, "-")
	if len(parts) < 3 {
		return "", 0, 0, false
	}
	last := len(parts) - 1
	year, err := strconv.ParseInt(parts[last], 10, 64)
	number, err2 := strconv.ParseInt(parts[last-1], 10, 64)
	series = strings.Join(parts[:last-1], "-")
	return series, number, year, err == nil && err2 == nil && year > 0 && number > 0 && series != ""
}

// parseFortnoxVoucher parses {"Voucher":{…}}. year is the financial year in which it was asked for, which is used
// if the voucher names none.
func parseFortnoxVoucher(body *jsonValue, year int64) (*bookedEntry, bool) {
	voucher, ok := body.member("Voucher")
	if !ok {
		return nil, false
	}
	parsed, ok := parseFortnoxHead(voucher, year)
	if !ok || !isBusinessDate(parsed.Entry.Date) {
		return nil, false
	}
	rows, ok := voucher.member("VoucherRows")
	if !ok || rows.kind != jsonArray {
		return nil, false
	}
	for i := range rows.list {
		row := &rows.list[i]
		if trueMember(row, "Removed") { // somebody has struck it out
			continue
		}
		number, ok := integerMember(row, "Account")
		debit, ok2 := amountMember(row, "Debit")
		credit, ok3 := amountMember(row, "Credit")
		if !ok || !ok2 || !ok3 {
			return nil, false
		}
		line := entryLine{Account: strconv.FormatInt(number, 10), Debit: debit, Credit: credit,
			Text:       textMember(row, "TransactionInformation", maxFortnoxText),
			CostCenter: textMember(row, "CostCenter", maxFortnoxText)}
		if debit < 0 || credit < 0 { // a negative amount is one on the other side
			line.Debit, line.Credit = max(debit, 0)+max(-credit, 0), max(credit, 0)+max(-debit, 0)
		}
		parsed.Entry.Lines = append(parsed.Entry.Lines, line)
	}
	return parsed, true
}

// parseFortnoxHead parses those members of a voucher that lists have, too.
func parseFortnoxHead(v *jsonValue, year int64) (*bookedEntry, bool) {
	entry := bookEntry{
		Series:    textMember(v, "VoucherSeries", 4*maxFortnoxSeries),
		Narration: textMember(v, "Description", maxFortnoxText),
		Date:      textMember(v, "TransactionDate", maxFortnoxText),
		Currency:  fortnoxCurrency,
		Year:      year,
	}
	if said, ok := integerMember(v, "Year"); ok && said > 0 {
		entry.Year = said
	}
	number, ok := integerMember(v, "VoucherNumber")
	return &bookedEntry{ID: fortnoxID(entry.Series, number, entry.Year), Entry: entry},
		ok && number > 0 && entry.Series != ""
}

// read implements ledger. A voucher can't be deleted.
func (f *fortnoxLedger) read(ctx context.Context, s *ledgerSession, id string) (*bookedEntry, error) {
	series, number, year, ok := parseFortnoxID(id)
	if !ok {
		return nil, nil
	}
	path := "vouchers/" + url.PathEscape(series) + "/" + strconv.FormatInt(number, 10)
	query := url.Values{"financialyear": {strconv.FormatInt(year, 10)}}
	body, err := f.ask(ctx, s, path, query, "")
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	voucher, ok := parseFortnoxVoucher(body, year)
	if !ok || voucher.ID != id {
		return nil, malformedAnswer(http.StatusOK)
	}
	return voucher, nil
}

// fortnoxBadParameter is the reason of what is refused for a parameter of its query.
const fortnoxBadParameter = "fortnox_2000588"

// find implements ledger. It asks only for the days around the date, a filter that Fortnox' guide has for
// vouchers, but its description does not. If the filter is refused or ignored, all vouchers of the series in that
// year are listed, of which the newest are searched first, at most maxFortnoxPages pages of fortnoxPage. If there
// are more, the entry may be among the rest, so that is an error.
func (f *fortnoxLedger) find(
	ctx context.Context, s *ledgerSession, entry *bookEntry, syncKey string,
) (*bookedEntry, error) {
	date, err := time.Parse(time.DateOnly, entry.Date)
	if err != nil {
		return nil, &outboundError{outcome: vendorRefused, reason: "date", detail: "It is not a date."}
	}
	path := "vouchers/sublist/" + url.PathEscape(entry.Series)
	query := url.Values{
		"financialyear": {strconv.FormatInt(entry.Year, 10)},
		"fromdate":      {date.AddDate(0, 0, -fortnoxDaysAround).Format(time.DateOnly)},
		"todate":        {date.AddDate(0, 0, fortnoxDaysAround).Format(time.DateOnly)},
	}
	first, pages, err := f.page(ctx, s, path, query, "Vouchers", 1)
	if reasonOf(err) == fortnoxBadParameter {
		query.Del("fromdate")
		query.Del("todate")
		first, pages, err = f.page(ctx, s, path, query, "Vouchers", 1)
	}
	if isMissing(err) { // the series is not there in that year, so there is no voucher in it
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	asked := 1
	for number := pages; number > 1; number-- { // lower numbers come first
		if asked == maxFortnoxPages {
			return nil, &outboundError{reason: "too_many_vouchers",
				detail: "There are too many vouchers in the series to search."}
		}
		asked++
		items, _, err := f.page(ctx, s, path, query, "Vouchers", number)
		if err != nil {
			return nil, err
		}
		if id := findFortnoxKey(items, entry.Year, syncKey); id != "" {
			return f.read(ctx, s, id)
		}
	}
	if id := findFortnoxKey(first, entry.Year, syncKey); id != "" {
		return f.read(ctx, s, id)
	}
	return nil, nil
}

// findFortnoxKey returns the id of the newest voucher of a list whose description has a sync key; "": none
// has it.
func findFortnoxKey(items []jsonValue, year int64, syncKey string) string {
	for _, v := range slices.Backward(items) {
		voucher, ok := parseFortnoxHead(&v, year)
		if ok && voucher.Entry.Year == year && hasSyncKey(voucher.Entry.Narration, syncKey) {
			return voucher.ID
		}
	}
	return ""
}
