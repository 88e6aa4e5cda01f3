package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
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

	rival: "Fortnox' own product for Stripe",

	series: true, account: checkFortnoxAccount, tax: checkFortnoxAccount,
	standard: &standardAccounts{ // BAS, the chart of nearly all Swedish books
		byRate: map[int64]rateAccounts{
			2500: {"3001", "2611"}, 1200: {"3002", "2621"}, 600: {"3003", "2631"}, 0: {"3004", ""}},
		tips: "2890", cash: "1910", voucher: "2421", clearing: "1580", fees: "6570"},
}

// checkFortnoxAccount is a textCheck of the code of an account.
var checkFortnoxAccount = &textCheck{of: checkedBy(func(s string) bool { _, ok := fortnoxNumber(s); return ok },
	"invalid_account", "This must be an account from 1000 to 9999.")}

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
func (f *fortnoxLedger) organisations(ctx context.Context, tokens *bookTokens) ([]bookCompany, error) {
	var answer struct {
		CompanyInformation struct {
			CompanyName    string
			DatabaseNumber int64
		}
	}
	err := f.ask(ctx, &ledgerSession{access: tokens.Access}, "companyinformation", nil, "", &answer)
	company := answer.CompanyInformation
	if err == nil && company.DatabaseNumber <= 0 {
		err = malformedAnswer(http.StatusOK)
	}
	if err != nil {
		return nil, err
	}
	return []bookCompany{{ID: strconv.FormatInt(company.DatabaseNumber, 10), Name: company.CompanyName}}, nil
}

// ask sends a request to a resource below /3/, a GET unless it has a body, and reads its answer. Errors: an
// *outboundError.
func (f *fortnoxLedger) ask(
	ctx context.Context, s *ledgerSession, path string, query url.Values, body string, read any,
) error {
	if err := s.pause(ctx); err != nil {
		return err
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
	if err == nil && json.Unmarshal(answer.body, read) != nil {
		return malformedAnswer(answer.status)
	}
	return err
}

// fortnoxCodes are the error codes of Fortnox that matter here. The list in its guide has few of them, so other
// errors are told apart by the words of their message, see fortnoxWords.
var fortnoxCodes = map[int64]string{
	2000401: heldLocked,
	2002141: heldLocked,
	2001304: heldUnusable,  // an account that is not there
	2000947: heldUnusable,  // a cost centre that is not active
	2000663: heldNoRight,   // no permission for the scope
	2001101: heldNoLicense, // no licence for the scope
	2001103: heldNoLicense, // no licence for the API
	2000588: fortnoxBadParameter,
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
	{heldNoLicense, []string{"licens", "licence"}},
	{heldNoRight, []string{"behörighet", "rättighet", "permission", "not authorized"}},
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
	reason := fortnoxReason(code, failed.detail)
	switch {
	case answer.status == http.StatusTooManyRequests:
		failed.outcome, failed.reason = vendorBusy, reasonRateLimited
		failed.wait = cmp.Or(failed.wait, fortnoxWindow)
	case answer.status == http.StatusUnauthorized, code == fortnoxNoLogin, code == fortnoxNoLogin2:
		failed.outcome = vendorDenied
	case answer.status == http.StatusForbidden:
		if own || failed.detail != "" {
			if failed.outcome = vendorRefused; !slices.Contains(lackReasons, reason) {
				reason = heldNoRight // Fortnox itself forbids it
			}
			failed.reason = reason
		}
	default:
		if failed.outcome = answer.outcome(own && code != fortnoxSystemException); failed.final() {
			failed.reason = reason
		}
	}
	if own && slices.Contains(dailyReasons, failed.reason) {
		failed.detail = strings.TrimSpace(strconv.FormatInt(code, 10) + " " + failed.detail)
	}
}

// fortnoxReason returns why Fortnox refuses something; heldRefused: for nothing that is known.
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
	return heldRefused
}

// askFortnox asks for a page of a list, counted from 1, and returns its elements and how many pages there are. Errors:
// an *outboundError.
func askFortnox[T any](
	ctx context.Context, f *fortnoxLedger, s *ledgerSession, path string, query url.Values, name string, number int,
) (items []T, pages int, err error) {
	query.Set("limit", strconv.Itoa(fortnoxPage))
	query.Set("page", strconv.Itoa(number))
	var body map[string]json.RawMessage
	if err := f.ask(ctx, s, path, query, "", &body); err != nil {
		return nil, 0, err
	}
	var about struct {
		Pages *int `json:"@TotalPages"`
	}
	json.Unmarshal(body["MetaInformation"], &about)
	// Without a count, only a page that is not full can be the last one.
	if json.Unmarshal(body[name], &items) != nil || items == nil || about.Pages == nil && len(items) >= fortnoxPage {
		return nil, 0, malformedAnswer(http.StatusOK)
	}
	return items, max(valueOr(about.Pages, 1), 1), nil
}

// allOfFortnox returns the elements of a list that has at most maxFortnoxAccounts.
func allOfFortnox[T any](
	ctx context.Context, f *fortnoxLedger, s *ledgerSession, path string, query url.Values, name string,
) (all []T, err error) {
	const most = maxFortnoxAccounts
	for number, pages := 1, 1; number <= pages; number++ {
		var items []T
		if items, pages, err = askFortnox[T](ctx, f, s, path, query, name, number); err != nil {
			return nil, err
		}
		if all = append(all, items...); len(all) > most || pages > most/fortnoxPage {
			return nil, &outboundError{reason: outboundTooLarge, detail: "more than " + strconv.Itoa(most) + " " + path}
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
	var locked struct{ LockedPeriod struct{ EndDate string } }
	if err := f.ask(ctx, s, "settings/lockedperiod", nil, "", &locked); err != nil {
		return nil, err
	}
	chart.LockedUntil = locked.LockedPeriod.EndDate
	if chart.LockedUntil != "" && !isBusinessDate(chart.LockedUntil) {
		return nil, malformedAnswer(http.StatusOK)
	}
	query := url.Values{}
	if chart.Year != 0 {
		query.Set("financialyear", strconv.FormatInt(chart.Year, 10))
	}
	accounts, err := allOfFortnox[fortnoxAccount](ctx, f, s, "accounts", query, "Accounts")
	if err != nil {
		return nil, err
	}
	for _, a := range accounts {
		if a.Number >= 1000 && a.Number <= 9999 { // vouchers can't name others
			chart.Accounts = append(chart.Accounts, a.account())
		}
	}
	if chart.Year == 0 {
		return chart, nil
	}
	type voucherSeries struct {
		Code   string
		Manual bool
		Year   *int64
	}
	series, err := allOfFortnox[voucherSeries](ctx, f, s, "voucherseries", query, "VoucherSeriesCollection")
	if err != nil {
		return nil, err
	}
	for _, one := range series {
		if one.Code != "" && one.Manual && valueOr(one.Year, chart.Year) == chart.Year {
			chart.Series = append(chart.Series, one.Code)
		}
	}
	return chart, nil
}

// readYear reads the financial year that a date is in, if there is one.
func (f *fortnoxLedger) readYear(ctx context.Context, s *ledgerSession, date businessDate, chart *bookChart) error {
	var answer struct {
		FinancialYears []struct {
			ID               int64
			FromDate, ToDate businessDate
		}
	}
	err := f.ask(ctx, s, "financialyears", url.Values{"date": {date}}, "", &answer)
	if err == nil && answer.FinancialYears == nil {
		err = malformedAnswer(http.StatusOK)
	}
	for _, y := range answer.FinancialYears {
		dated := isBusinessDate(y.FromDate) && isBusinessDate(y.ToDate)
		if y.ID > 0 && dated && y.FromDate <= date && date <= y.ToDate {
			chart.Year, chart.YearFrom, chart.YearTo = y.ID, y.FromDate, y.ToDate
		}
	}
	return err
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

// A fortnoxAccount is an account of a list.
type fortnoxAccount struct {
	Number               int64
	Description, VATCode string
	Active               bool
}

// account returns it as an account of a chart.
func (a *fortnoxAccount) account() bookAccount {
	account := bookAccount{Code: strconv.FormatInt(a.Number, 10), Name: a.Description, Tax: a.VATCode}
	for _, kept := range fortnoxKept {
		if a.Number >= kept.from && a.Number <= kept.to {
			account.Why = kept.why
		}
	}
	if !a.Active {
		account.Why = "archived"
	}
	account.Usable = account.Why == ""
	return account
}

// A fortnoxVoucher is a voucher, as it is written and read. In a list it has no rows. One is named by its series, its
// number and its financial year together: each year numbers anew.
type fortnoxVoucher struct {
	Description     string
	TransactionDate businessDate
	VoucherSeries   string
	VoucherRows     []fortnoxRow `json:",omitempty"`

	VoucherNumber int64 `json:",omitempty"` // of answers, as the others
	Year          int64 `json:",omitempty"` // 0: it does not say
}

// A fortnoxRow is a row of a voucher.
type fortnoxRow struct {
	Account    int64
	Debit      json.Number
	Credit     json.Number
	CostCenter string `json:",omitempty"`
	Text       string `json:"TransactionInformation,omitempty"`
	Removed    bool   `json:",omitempty"` // of answers: somebody has struck it out
}

// encode implements ledger.
func (f *fortnoxLedger) encode(entry *bookEntry) string {
	rows := make([]fortnoxRow, len(entry.Lines))
	for i, line := range entry.Lines {
		number, _ := fortnoxNumber(line.Account)
		rows[i] = fortnoxRow{number, json.Number(formatAmount(line.Debit)), json.Number(formatAmount(line.Credit)),
			line.CostCenter, cutText(fortnoxText(line.Text), maxFortnoxRowText), false}
	}
	return bodyText(map[string]fortnoxVoucher{"Voucher": {Description: fortnoxDescription(entry.Narration),
		TransactionDate: entry.Date, VoucherSeries: entry.Series, VoucherRows: rows}})
}

// fortnoxNumber parses the code of an account. It reports false for what vouchers can't name.
func fortnoxNumber(code string) (int64, bool) {
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
	var made struct{ Voucher fortnoxVoucher }
	if err := f.ask(ctx, s, "vouchers", query, body, &made); err != nil {
		return "", err
	}
	if made.Voucher.VoucherNumber <= 0 || made.Voucher.VoucherSeries != entry.Series {
		return "", malformedAnswer(http.StatusCreated)
	}
	return made.Voucher.id(entry.Year), nil
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
		if _, ok := fortnoxNumber(line.Account); !ok {
			return heldUnusable, line.Account
		}
	}
	return "", ""
}

// id returns the id of a voucher: "K-17-3". year is the financial year in which it was asked for, if it names none.
func (v *fortnoxVoucher) id(year int64) string {
	return fmt.Sprintf("%s-%d-%d", v.VoucherSeries, v.VoucherNumber, cmp.Or(v.Year, year))
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

// booked returns a voucher as an entry, see id. It reports false for one that can't be understood.
func (v *fortnoxVoucher) booked(year int64) (*bookedEntry, bool) {
	entry := bookEntry{Series: v.VoucherSeries, Narration: v.Description, Date: v.TransactionDate,
		Currency: fortnoxCurrency, Year: cmp.Or(v.Year, year)}
	for _, row := range v.VoucherRows {
		if row.Removed {
			continue
		}
		debit, ok := hundredths(cmp.Or(row.Debit.String(), "0"))
		credit, ok2 := hundredths(cmp.Or(row.Credit.String(), "0"))
		if !ok || !ok2 {
			return nil, false
		}
		line := entryLine{Account: strconv.FormatInt(row.Account, 10), Text: row.Text, CostCenter: row.CostCenter,
			// A negative amount is one on the other side.
			Debit: max(debit, 0) + max(-credit, 0), Credit: max(credit, 0) + max(-debit, 0)}
		entry.Lines = append(entry.Lines, line)
	}
	return &bookedEntry{ID: v.id(year), Entry: entry}, v.VoucherRows != nil && isBusinessDate(entry.Date)
}

// read implements ledger. A voucher can't be deleted.
func (f *fortnoxLedger) read(ctx context.Context, s *ledgerSession, id string) (*bookedEntry, error) {
	series, number, year, ok := parseFortnoxID(id)
	if !ok {
		return nil, nil
	}
	path := "vouchers/" + url.PathEscape(series) + "/" + strconv.FormatInt(number, 10)
	query := url.Values{"financialyear": {strconv.FormatInt(year, 10)}}
	var answer struct{ Voucher fortnoxVoucher }
	err := f.ask(ctx, s, path, query, "", &answer)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	voucher, ok := answer.Voucher.booked(year)
	if !ok || voucher.ID != id {
		return nil, malformedAnswer(http.StatusOK)
	}
	return voucher, nil
}

// fortnoxBadParameter is the reason of what is refused for a parameter of its query.
const fortnoxBadParameter = "bad_parameter"

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
	vouchers := func(page int) ([]fortnoxVoucher, int, error) {
		return askFortnox[fortnoxVoucher](ctx, f, s, path, query, "Vouchers", page)
	}
	first, pages, err := vouchers(1)
	if reasonOf(err) == fortnoxBadParameter {
		query.Del("fromdate")
		query.Del("todate")
		first, pages, err = vouchers(1)
	}
	if isMissing(err) { // the series is not there in that year, so there is no voucher in it
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for number := pages; number > 0; number-- { // lower numbers come first
		items := first
		switch {
		case number == 1:
		case pages-number == maxFortnoxPages-1:
			return nil, &outboundError{reason: "too_many_vouchers",
				detail: "There are too many vouchers in the series to search."}
		default:
			if items, _, err = vouchers(number); err != nil {
				return nil, err
			}
		}
		if id := findFortnoxKey(items, entry.Year, syncKey); id != "" {
			return f.read(ctx, s, id)
		}
	}
	return nil, nil
}

// findFortnoxKey returns the id of the newest voucher of a list whose description has a sync key; "": none
// has it.
func findFortnoxKey(items []fortnoxVoucher, year int64, syncKey string) string {
	for _, v := range slices.Backward(items) {
		if cmp.Or(v.Year, year) == year && hasSyncKey(v.Description, syncKey) {
			return v.id(year)
		}
	}
	return ""
}
