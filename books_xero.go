package main

import (
	"cmp"
	"context"
	"encoding/base64"
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

// Xero's Accounting API (description 16.1.0), its connections and its side of OAuth 2.0. An entry is a manual
// journal. Its amounts include VAT, and Xero computes the VAT of each line by the line's TaxType.

// Where Xero is.
const (
	xeroLogin    = "https://login.xero.com"
	xeroIdentity = "https://identity.xero.com"
	xeroAPI      = "https://api.xero.com"
)

const productXero = "xero"

// xeroProduct declares Xero. The page of a manual journal opens in the company in which people are at work.
var xeroProduct = bookProduct{name: productXero, title: "Xero",
	client: func(out *outbound, base string, now func() time.Time) ledger { return newXeroLedger(out, base, now) },

	requests: 55, within: time.Minute, // Xero takes 60

	entryPage: "https://go.xero.com/Journal/View.aspx?invoiceID=", drafts: true, taxInside: true,
	account: &textCheck{of: checkedBy(func(s string) bool { return visible(s) && len([]rune(s)) <= 10 },
		"invalid_account", "This must be an account's code, of 1 to 10 visible characters.")},
	tax: &textCheck{of: checkedBy(visible, "invalid_tax", "This must be a TaxType of the books, such as OUTPUT2.")},
	costCenter: &textCheck{of: checkedBy(func(s string) bool {
		category, option, _ := strings.Cut(s, ":")
		return category != "" && option != ""
	}, "invalid_cost_center", "This must be a tracking category and its option: Region:North.")},

	tokenLife: days(60),
}

// xeroScopes are those of applications made since March 2026. Older ones had accounting.transactions, which
// the description still names.
const xeroScopes = "offline_access accounting.manualjournals accounting.settings.read"

// The bounds of what Xero sends and takes.
const (
	maxXeroAnswer        = 4 << 20 // bytes
	maxXeroConnections   = 1 << 20 // bytes of the list of connections
	maxXeroOrganisations = 100     // of one consent; the rest is ignored
	maxXeroAccounts      = 5000    // of a chart, and as many rates of tax
	maxXeroName          = 200     // characters of a name, and of a message that is kept
	xeroPage             = 100     // manual journals of a page
	maxXeroPages         = 10      // that are looked through for one entry
	xeroTokenLife        = 30 * time.Minute
)

// A xeroLedger is the client of Xero. Make one with newXeroLedger.
type xeroLedger struct {
	out                                *outbound
	authorize, token, api, connections string // addresses
	now                                func() time.Time
}

// newXeroLedger makes a client. base replaces the base addresses of all hosts; "": Xero's own. now is the wall
// clock.
func newXeroLedger(out *outbound, base string, now func() time.Time) *xeroLedger {
	base = strings.TrimRight(base, "/")
	return &xeroLedger{
		out:         out,
		authorize:   cmp.Or(base, xeroLogin) + "/identity/connect/authorize",
		token:       cmp.Or(base, xeroIdentity) + "/connect/token",
		api:         cmp.Or(base, xeroAPI) + "/api.xro/2.0",
		connections: cmp.Or(base, xeroAPI) + "/connections",
		now:         now,
	}
}

// authorizeURL implements ledger.
func (x *xeroLedger) authorizeURL(app appSecrets, redirectURL, state, challenge string) string {
	query := authorizeQuery(app, xeroScopes, redirectURL, state, challenge)
	return x.authorize + "?" + strings.ReplaceAll(query.Encode(), "+", "%20")
}

// exchange implements ledger.
func (x *xeroLedger) exchange(
	ctx context.Context, app appSecrets, redirectURL, code, verifier string,
) (*bookTokens, error) {
	tokens, err := requestTokens(ctx, x.out, x.token, app, codeGrantForm(redirectURL, code, verifier), nil,
		xeroTokenLife, x.now)
	if err == nil && tokens.Refresh == "" { // the connection would end with the access token
		return nil, &outboundError{status: http.StatusOK, reason: "no_refresh_token"}
	}
	return tokens, err
}

// renew implements ledger. Xero accepts a refresh token for 30 minutes after its use, in case the answer was lost.
func (x *xeroLedger) renew(
	ctx context.Context, app appSecrets, _ *bookConnection, old *bookTokens,
) (*bookTokens, error) {
	if old.Refresh == "" {
		return nil, &outboundError{outcome: vendorOwnerGone, reason: "invalid_grant"}
	}
	tokens, err := requestTokens(ctx, x.out, x.token, app, url.Values{
		"grant_type":    {"refresh_token"},
		"refresh_token": {old.Refresh},
	}, nil, xeroTokenLife, x.now)
	if err != nil {
		return nil, err
	}
	tokens.Refresh, tokens.LinkID = cmp.Or(tokens.Refresh, old.Refresh), old.LinkID
	return tokens, nil
}

// send sends a request, for a company if tenant is not empty. Errors: an *outboundError.
func (x *xeroLedger) send(
	ctx context.Context, access, tenant string, q outboundRequest,
) (*outboundAnswer, error) {
	if q.header == nil {
		q.header = http.Header{}
	}
	q.header.Set("Authorization", "Bearer "+access)
	q.header.Set("Accept", "application/json")
	if tenant != "" {
		q.header.Set("Xero-Tenant-Id", tenant)
	}
	if len(q.body) > 0 {
		q.header.Set("Content-Type", "application/json")
	}
	return x.out.ask(ctx, q, x.now(), classifyXero)
}

// askXero sends a request for the company of a session and returns the list of that name in its answer. Errors: an
// *outboundError.
func askXero[T any](
	ctx context.Context, x *xeroLedger, s *ledgerSession, name string, q outboundRequest,
) (list []T, err error) {
	if err := s.pause(ctx); err != nil {
		return nil, err
	}
	q.url, q.largest = x.api+q.url, maxXeroAnswer
	answer, err := x.send(ctx, s.access, valueOr(s.connection.OrganisationID, ""), q)
	if err != nil {
		return nil, err
	}
	var body map[string]json.RawMessage
	if json.Unmarshal(answer.body, &body) != nil || json.Unmarshal(body[name], &list) != nil || list == nil {
		return nil, malformedAnswer(answer.status)
	}
	return list, nil
}

// A xeroFailure is what Xero says is wrong with a request, in one of three forms.
type xeroFailure struct {
	Title, Detail, Message string
	ValidationErrors       []xeroError
	Elements               []struct{ ValidationErrors []xeroError }
}

type xeroError struct{ Message string }

// readXeroFailure reads what Xero says is wrong; what is not there stays empty. The case of the names counts: a title
// or a message may be of something in between.
func readXeroFailure(body []byte) (said xeroFailure) {
	var members map[string]json.RawMessage
	json.Unmarshal(body, &members)
	for name, to := range map[string]any{"Title": &said.Title, "Detail": &said.Detail, "Message": &said.Message,
		"ValidationErrors": &said.ValidationErrors, "Elements": &said.Elements} {
		json.Unmarshal(members[name], to)
	}
	return said
}

// classifyXero sets the outcome and the reason of an answer whose status is not 2xx.
func classifyXero(answer *outboundAnswer, failed *outboundError) {
	said := readXeroFailure(answer.body)
	own := len(said.messages()) > 0 || said.Title != "" || string(answer.body) == xeroMissing
	switch answer.status {
	case http.StatusBadRequest:
		if own {
			said.explain(failed)
		}
	case http.StatusTooManyRequests:
		failed.outcome, failed.reason = vendorBusy, reasonRateLimited
		failed.wait = cmp.Or(failed.wait, xeroWait(answer.header.Get("X-Rate-Limit-Problem")))
	case http.StatusUnauthorized:
		failed.outcome = vendorDenied
		if strings.Contains(answer.header.Get("WWW-Authenticate"), "insufficient_scope") { // RFC 6750, section 3.1
			failed.outcome, failed.reason = vendorRefused, heldReconnect // another token would not help
			failed.detail = cutMessage(said.Detail)
		}
	case http.StatusForbidden:
		if failed.detail = cutMessage(said.Detail); failed.detail == xeroRemoved {
			failed.outcome, failed.reason = vendorOwnerGone, heldReconnect
		}
	default:
		failed.outcome = answer.outcome(own)
	}
}

// xeroMissing is the body by which Xero says that something does not exist, the only one that is no JSON.
const xeroMissing = "The resource you're looking for cannot be found"

// xeroRemoved is the detail of a 403 by which Xero says that the company has removed the application. A 403 from a
// proxy in between proves nothing.
const xeroRemoved = "AuthenticationUnsuccessful"

// xeroWait returns how long to wait if Xero only says which of its limits was reached: minute, appminute, day or
// concurrent.
func xeroWait(problem string) time.Duration {
	switch strings.ToLower(problem) {
	case "day":
		return time.Hour
	case "concurrent":
		return 5 * time.Second
	}
	return time.Minute
}

// explain sets the outcome and the reason of a request that Xero finds invalid: in an answer with 400, or in the only
// journal of an answer with 200 that does not summarize errors.
func (said *xeroFailure) explain(failed *outboundError) *outboundError {
	failed.outcome, failed.reason = vendorRefused, heldRefused
	messages := said.messages()
	for _, m := range messages {
		if failed.detail == "" {
			failed.detail = cutMessage(m)
		}
		if reason := xeroReason(m); reason != "" {
			failed.reason, failed.detail = reason, cutMessage(m)
			break
		}
	}
	if strings.Contains(strings.ToLower(strings.Join(messages, "\n")), "idempotency") {
		// Something else was sent before under the same key, and may have been written.
		failed.outcome, failed.reason = vendorUnknown, "idempotency_key"
	}
	return failed
}

// messages returns the messages about what is wrong: first those about single elements, then those about the whole
// request.
func (said *xeroFailure) messages() (all []string) {
	for _, of := range append(said.Elements, struct{ ValidationErrors []xeroError }{said.ValidationErrors}) {
		for _, e := range of.ValidationErrors {
			all = append(all, e.Message)
		}
	}
	all = append(all, said.Message, said.Detail)
	return slices.DeleteFunc(all, func(m string) bool { return m == "" })
}

// xeroReason returns the reason for which a refusal with a message holds the export; "": heldRefused.
func xeroReason(message string) string {
	m := strings.ToLower(message)
	about := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m, w) })
	}
	switch {
	case about("lock date", "locked"):
		return heldLocked
	case about("account") && about("archived", "deleted", "not a valid", "not valid", "not found",
		"not exist", "recognised", "cannot be used", "can't be used", "bank account", "system account"):
		return heldUnusable
	}
	return ""
}

// cutMessage returns a text of Xero for people, without control characters and at most maxXeroName long.
func cutMessage(s string) string {
	return cutText(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, s), maxXeroName)
}

// organisations implements ledger. The list also has companies of earlier consents by the same person, so those of
// this consent are chosen by the event that the access token names.
func (x *xeroLedger) organisations(ctx context.Context, tokens *bookTokens) ([]bookCompany, error) {
	answer, err := x.send(ctx, tokens.Access, "",
		outboundRequest{method: http.MethodGet, url: x.connections, largest: maxXeroConnections})
	if err != nil {
		return nil, err
	}
	var list []struct{ ID, TenantID, TenantName, TenantType, AuthEventID string }
	if json.Unmarshal(answer.body, &list) != nil || list == nil {
		return nil, malformedAnswer(answer.status)
	}
	event := xeroEvent(tokens.Access)
	var found, agreed []bookCompany
	for _, c := range list {
		if c.ID == "" || c.TenantID == "" || c.TenantType != "ORGANISATION" {
			continue
		}
		o := bookCompany{ID: c.TenantID, Name: cmp.Or(cutMessage(c.TenantName), c.TenantID), LinkID: c.ID}
		found = append(found, o)
		if event != "" && c.AuthEventID == event {
			agreed = append(agreed, o)
		}
	}
	if len(agreed) > 0 {
		found = agreed
	}
	return found[:min(len(found), maxXeroOrganisations)], nil
}

// xeroEvent returns the event of the consent that an access token came from; "": it names none. The token is a JWT
// (RFC 7519), which came over TLS from its issuer, so its signature is not verified.
func xeroEvent(access string) string {
	parts := strings.Split(access, ".")
	if len(parts) != 3 || len(access) > maxTokenAnswer {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Event string `json:"authentication_event_id"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Event
}

// disconnect implements ledger. A token is never revoked, since that would end every connection of the
// person who agreed.
func (x *xeroLedger) disconnect(ctx context.Context, s *ledgerSession) error {
	if s.linkID == "" {
		return &outboundError{outcome: vendorRefused, reason: "no_link"}
	}
	address := x.connections + "/" + url.PathEscape(s.linkID)
	_, err := x.send(ctx, s.access, "", outboundRequest{method: http.MethodDelete, url: address})
	if isMissing(err) {
		return nil
	}
	return err
}

// The company, the accounts, the tracking categories and the rates of tax of Xero, as far as they are read.
type (
	xeroCompany struct{ BaseCurrency, PeriodLockDate, EndOfYearLockDate string }
	xeroAccount struct{ Code, Name, Type, TaxType, Status, SystemAccount string }
	xeroTracker struct {
		Name, Status string
		Options      []struct{ Name, Status string }
	}
	xeroRate struct {
		TaxType, Name, Status         string
		EffectiveRate, DisplayTaxRate json.RawMessage
		CanApplyToRevenue             *bool // nil: it can
	}
)

// chart implements ledger. It is the same for each date.
func (x *xeroLedger) chart(ctx context.Context, s *ledgerSession, _ businessDate) (*bookChart, error) {
	get := func(path string) outboundRequest { return outboundRequest{method: http.MethodGet, url: path} }
	companies, err := askXero[xeroCompany](ctx, x, s, "Organisations", get("/Organisation"))
	if err != nil {
		return nil, err
	}
	accounts, err := askXero[xeroAccount](ctx, x, s, "Accounts", get("/Accounts"))
	if err != nil {
		return nil, err
	}
	rates, err := askXero[xeroRate](ctx, x, s, "TaxRates", get("/TaxRates"))
	if err != nil {
		return nil, err
	}
	tracked, err := askXero[xeroTracker](ctx, x, s, "TrackingCategories", get("/TrackingCategories"))
	if err != nil {
		return nil, err
	}
	if len(accounts) > maxXeroAccounts || len(rates) > maxXeroAccounts {
		return nil, &outboundError{status: http.StatusOK, reason: outboundTooLarge}
	}
	if len(companies) != 1 || len(companies[0].BaseCurrency) != len("CHF") {
		return nil, malformedAnswer(http.StatusOK)
	}
	chart := &bookChart{Currency: companies[0].BaseCurrency}
	for _, text := range []string{companies[0].PeriodLockDate, companies[0].EndOfYearLockDate} {
		date, ok := xeroDate(text)
		if text != "" && !ok {
			return nil, malformedAnswer(http.StatusOK)
		}
		if ok {
			chart.LockedUntil = max(chart.LockedUntil, date)
		}
	}
	chart.addXeroAccounts(accounts)
	chart.addXeroRates(rates)
	chart.CostCenters = []string{}
	for _, category := range tracked {
		for _, option := range category.Options {
			if category.Status == "ACTIVE" && option.Status == "ACTIVE" {
				chart.CostCenters = append(chart.CostCenters, category.Name+":"+option.Name)
			}
		}
	}
	return chart, nil
}

// addXeroAccounts adds the accounts that have a code, by which lines name them.
func (chart *bookChart) addXeroAccounts(list []xeroAccount) {
	for _, v := range list {
		a := bookAccount{Code: v.Code, Name: cutMessage(v.Name), Type: v.Type, Tax: v.TaxType}
		switch {
		case a.Code == "":
			continue
		case v.Status != "ACTIVE":
			a.Why = "archived"
		case a.Type == "BANK":
			a.Why = "bank"
		case v.SystemAccount == "DEBTORS":
			a.Why = "receivable"
		case v.SystemAccount == "CREDITORS":
			a.Why = "payable"
		case v.SystemAccount != "": // VAT, rounding, earnings: kept by Xero itself
			a.Why = "system"
		}
		a.Usable = a.Why == ""
		chart.Accounts = append(chart.Accounts, a)
	}
}

// addXeroRates adds the rates of tax. Those finer than a hundredth of a percent are skipped: no rate of ours is.
func (chart *bookChart) addXeroRates(list []xeroRate) {
	for _, v := range list {
		text := v.EffectiveRate
		if text == nil {
			text = v.DisplayTaxRate
		}
		rate, ok := hundredths(string(text))
		if !ok || v.TaxType == "" || rate < 0 || rate > maxVATRate {
			continue
		}
		chart.TaxRates = append(chart.TaxRates, bookTaxRate{Code: v.TaxType, Name: cutMessage(v.Name), Rate: rate,
			Usable: v.Status == "ACTIVE" && valueOr(v.CanApplyToRevenue, true)})
	}
}

// xeroDate returns the date of a text as Xero writes it: "/Date(1573755038314)/" and
// "/Date(1573755038314+0000)/", in milliseconds since 1970, or "2019-11-14" and "2019-11-14T00:00:00".
func xeroDate(text string) (businessDate, bool) {
	inner, ok := strings.CutPrefix(text, "/Date(")
	if !ok {
		day, rest, timed := strings.Cut(text, "T")
		t, err := time.Parse(time.DateOnly, day)
		return t.Format(time.DateOnly), err == nil && t.Year() > 0 && (!timed || rest != "")
	}
	inner, ok = strings.CutSuffix(inner, ")/")
	offset := time.Duration(0)
	if i := strings.LastIndexAny(inner, "+-"); ok && i > 0 {
		zone, err := time.Parse("-0700", inner[i:])
		if err != nil {
			return "", false
		}
		_, seconds := zone.Zone()
		inner, offset = inner[:i], time.Duration(seconds)*time.Second
	}
	ms, err := strconv.ParseInt(inner, 10, 64)
	t := time.UnixMilli(ms).UTC().Add(offset)
	return t.Format(time.DateOnly), ok && err == nil && t.Year() > 0 && t.Year() <= 9999
}

// Manual journals of Xero, as they are written and read.

// A xeroJournal is a manual journal. Requests about it have the body {"ManualJournals":[…]}.
type xeroJournal struct {
	ManualJournalID string `json:",omitempty"`
	Narration       string
	Date            string `json:",omitempty"`
	LineAmountTypes string `json:",omitempty"`
	Status          string
	JournalLines    []xeroLine `json:",omitempty"`

	ValidationErrors []xeroError `json:",omitempty"` // of answers
}

type xeroLine struct {
	LineAmount  json.RawMessage // debit positive, credit negative; with two decimals
	AccountCode string
	Description string
	TaxType     string
	Tracking    []xeroTracking  `json:",omitempty"`
	TaxAmount   json.RawMessage `json:",omitempty"` // of answers
}

type xeroTracking struct{ Name, Option string }

// encode implements ledger.
func (x *xeroLedger) encode(entry *bookEntry) string {
	j := xeroJournal{Narration: entry.Narration, Date: entry.Date, LineAmountTypes: "Inclusive"}
	j.Status = "DRAFT"
	if entry.Status == entryPosted {
		j.Status = "POSTED"
	}
	for _, line := range entry.Lines {
		amount := formatAmount(line.Debit)
		if line.Credit > 0 {
			amount = "-" + formatAmount(line.Credit)
		}
		l := xeroLine{json.RawMessage(amount), line.Account, line.Text, cmp.Or(line.Tax, noTax), nil, nil}
		if line.CostCenter != "" {
			category, option, _ := strings.Cut(line.CostCenter, ":")
			l.Tracking = []xeroTracking{{category, option}}
		}
		j.JournalLines = append(j.JournalLines, l)
	}
	return bodyText(map[string][]xeroJournal{"ManualJournals": {j}})
}

// journal sends a request about one manual journal, and returns it as Xero answers with it. Errors: an *outboundError.
func (x *xeroLedger) journal(ctx context.Context, s *ledgerSession, q outboundRequest) (*xeroJournal, error) {
	list, err := askXero[xeroJournal](ctx, x, s, "ManualJournals", q)
	if err == nil && len(list) != 1 {
		err = malformedAnswer(http.StatusOK)
	}
	if err != nil {
		return nil, err
	}
	return &list[0], nil
}

// write is journal for a request that changes it. Errors: also those that Xero finds in it.
func (x *xeroLedger) write(ctx context.Context, s *ledgerSession, q outboundRequest) (*xeroJournal, error) {
	j, err := x.journal(ctx, s, q)
	if err == nil && len(j.ValidationErrors) > 0 {
		said := xeroFailure{ValidationErrors: j.ValidationErrors}
		return nil, said.explain(malformedAnswer(http.StatusOK))
	}
	return j, err
}

// post implements ledger. key has at most 128 characters.
func (x *xeroLedger) post(
	ctx context.Context, s *ledgerSession, _ *bookEntry, body, key string,
) (id string, err error) {
	j, err := x.write(ctx, s, outboundRequest{
		method: http.MethodPut,
		url:    "/ManualJournals",
		header: http.Header{"Idempotency-Key": {key}},
		body:   []byte(body),
	})
	if err == nil && j.ManualJournalID == "" {
		err = malformedAnswer(http.StatusOK)
	}
	if err != nil {
		return "", err
	}
	return j.ManualJournalID, nil
}

// find implements ledger. It looks at the days before and after too, and at deleted entries; an entry that is not
// deleted takes precedence. If there are more than maxXeroPages can hold, the entry may be among the rest, so that
// is an error.
func (x *xeroLedger) find(
	ctx context.Context, s *ledgerSession, entry *bookEntry, syncKey string,
) (*bookedEntry, error) {
	day, err := time.Parse(time.DateOnly, entry.Date)
	if err != nil {
		return nil, &outboundError{outcome: vendorRefused, reason: "date"}
	}
	at := func(days int) string { return day.AddDate(0, 0, days).Format("DateTime(2006, 1, 2)") }
	query := url.Values{
		"where":    {fmt.Sprintf("Date >= %s AND Date < %s", at(-1), at(2))},
		"order":    {"Date ASC"},
		"pageSize": {strconv.Itoa(xeroPage)},
	}
	var deleted *bookedEntry
	for page := 1; page <= maxXeroPages; page++ {
		query.Set("page", strconv.Itoa(page))
		path := "/ManualJournals?" + strings.ReplaceAll(query.Encode(), "+", "%20")
		list, err := askXero[xeroJournal](ctx, x, s, "ManualJournals",
			outboundRequest{method: http.MethodGet, url: path})
		if err != nil {
			return nil, err
		}
		for _, j := range list {
			if !hasSyncKey(j.Narration, syncKey) {
				continue
			}
			booked, ok := j.booked()
			switch {
			case !ok:
				return nil, malformedAnswer(http.StatusOK)
			case booked.Deleted:
				deleted = booked
			case len(booked.Entry.Lines) == 0: // the list is only a summary
				return x.read(ctx, s, booked.ID)
			default:
				return booked, nil
			}
		}
		if len(list) < xeroPage {
			return deleted, nil
		}
	}
	return nil, &outboundError{status: http.StatusOK, reason: "too_many_entries"}
}

// read implements ledger.
func (x *xeroLedger) read(ctx context.Context, s *ledgerSession, id string) (*bookedEntry, error) {
	path := "/ManualJournals/" + url.PathEscape(id)
	j, err := x.journal(ctx, s, outboundRequest{method: http.MethodGet, url: path})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	booked, ok := j.booked()
	if !ok {
		return nil, malformedAnswer(http.StatusOK)
	}
	return booked, nil
}

// booked returns a manual journal as an entry. It reports false for one that can't be understood. Amounts include VAT,
// however Xero shows them.
func (j *xeroJournal) booked() (*bookedEntry, bool) {
	date, ok := xeroDate(j.Date)
	booked := &bookedEntry{ID: j.ManualJournalID, Draft: j.Status == "DRAFT",
		Deleted: j.Status == "VOIDED" || j.Status == "DELETED",
		Entry:   bookEntry{Date: date, Narration: j.Narration, Status: entryPosted}}
	if booked.Draft {
		booked.Entry.Status = entryDraft
	}
	if !ok || booked.ID == "" || j.Status == "" {
		return nil, false
	}
	for _, l := range j.JournalLines {
		line, ok := l.booked(j.LineAmountTypes)
		if !ok {
			return nil, false
		}
		if line != (entryLine{}) { // Xero may keep blank lines
			booked.Entry.Lines = append(booked.Entry.Lines, line)
		}
	}
	return booked, true
}

// booked returns a line of a manual journal whose amounts are "Inclusive", "Exclusive" or "NoTax".
func (l *xeroLine) booked(kind string) (line entryLine, ok bool) {
	amount, ok := hundredths(cmp.Or(string(l.LineAmount), "0"))
	if ok && kind == "Exclusive" {
		var tax int64
		tax, ok = hundredths(cmp.Or(string(l.TaxAmount), "0"))
		amount += tax
	}
	line = entryLine{Account: l.AccountCode, Text: l.Description, Tax: l.TaxType,
		Debit: max(amount, 0), Credit: max(-amount, 0)}
	if line.Tax == noTax || kind == "NoTax" {
		line.Tax = ""
	}
	var centers []string
	for _, t := range l.Tracking {
		centers = append(centers, t.Name+":"+t.Option)
	}
	line.CostCenter = strings.Join(centers, "; ")
	return line, ok
}

// withdraw implements ledger. Xero's description requires a narration in every journal, so the entry is read
// first; it is left alone if it has been posted meanwhile.
func (x *xeroLedger) withdraw(ctx context.Context, s *ledgerSession, id string) error {
	booked, err := x.read(ctx, s, id)
	switch {
	case err != nil:
		return err
	case booked == nil || booked.Deleted:
		return nil
	case !booked.Draft:
		return &outboundError{outcome: vendorRefused, reason: "not_a_draft"}
	}
	deleted := xeroJournal{ManualJournalID: id, Narration: booked.Entry.Narration, Status: "DELETED"}
	gone, err := x.write(ctx, s, outboundRequest{
		method: http.MethodPost,
		url:    "/ManualJournals/" + url.PathEscape(id),
		body:   []byte(bodyText(map[string][]xeroJournal{"ManualJournals": {deleted}})),
	})
	if err == nil && gone.Status != "DELETED" {
		err = malformedAnswer(http.StatusOK)
	}
	return err
}
