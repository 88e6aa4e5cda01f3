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
	account: checkedBy(func(s string) bool { return visible(s) && len([]rune(s)) <= 10 },
		"invalid_account", "This must be an account's code, of 1 to 10 visible characters."),
	tax: checkedBy(visible, "invalid_tax", "This must be a TaxType of the books, such as OUTPUT2."),
	costCenter: checkedBy(func(s string) bool {
		category, option, _ := strings.Cut(s, ":")
		return category != "" && option != ""
	}, "invalid_cost_center", "This must be a tracking category and its option: Region:North."),
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
	maxXeroID            = 100     // characters of an id or a code
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

// ask sends a request for the company of a session and returns the elements of a list in its answer, which
// are objects. Errors: an *outboundError.
func (x *xeroLedger) ask(
	ctx context.Context, s *ledgerSession, list string, q outboundRequest,
) ([]jsonValue, error) {
	if err := s.pause(ctx); err != nil {
		return nil, err
	}
	q.url, q.largest = x.api+q.url, maxXeroAnswer
	answer, err := x.send(ctx, s.access, valueOr(s.connection.OrganisationID, ""), q)
	if err != nil {
		return nil, err
	}
	body, err := parseJSON(answer.body)
	elements, ok := body.member(list)
	if err != nil || !ok || elements.kind != jsonArray ||
		slices.ContainsFunc(elements.list, func(v jsonValue) bool { return v.kind != jsonObject }) {
		return nil, malformedAnswer(answer.status)
	}
	return elements.list, nil
}

// classifyXero sets the outcome and the reason of an answer whose status is not 2xx.
func classifyXero(answer *outboundAnswer, failed *outboundError) {
	body, _ := parseJSON(answer.body)
	own := len(xeroMessages(&body)) > 0 || rawMember(&body, "Title") != "" || string(answer.body) == xeroMissing
	switch answer.status {
	case http.StatusBadRequest:
		if own {
			xeroInvalid(failed, &body)
		}
	case http.StatusTooManyRequests:
		failed.outcome, failed.reason = vendorBusy, reasonRateLimited
		failed.wait = cmp.Or(failed.wait, xeroWait(answer.header.Get("X-Rate-Limit-Problem")))
	case http.StatusUnauthorized:
		failed.outcome = vendorDenied
		if strings.Contains(answer.header.Get("WWW-Authenticate"), "insufficient_scope") { // RFC 6750, section 3.1
			failed.outcome, failed.reason = vendorRefused, heldReconnect // another token would not help
			failed.detail = cutMessage(rawMember(&body, "Detail"))
		}
	case http.StatusForbidden:
		if failed.detail = cutMessage(rawMember(&body, "Detail")); failed.detail == xeroRemoved {
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

// xeroInvalid sets the outcome and the reason by what Xero says is wrong with a request: in an answer with 400, or in
// the only journal of an answer with 200 that does not summarize errors.
func xeroInvalid(failed *outboundError, body *jsonValue) *outboundError {
	failed.outcome, failed.reason = vendorRefused, "validation"
	messages := xeroMessages(body)
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

// xeroMessages returns the messages about what is wrong: first those about single elements, then those about the
// whole request.
func xeroMessages(body *jsonValue) (all []string) {
	for _, v := range append(listMember(body, "Elements"), *body) {
		for _, e := range listMember(&v, "ValidationErrors") {
			all = append(all, rawMember(&e, "Message"))
		}
	}
	all = append(all, rawMember(body, "Message"), rawMember(body, "Detail"))
	return slices.DeleteFunc(all, func(m string) bool { return m == "" })
}

// xeroReason returns the reason for which a refusal with a message holds the export; "": it does not.
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
func (x *xeroLedger) organisations(ctx context.Context, tokens *bookTokens) ([]bookOrganisation, error) {
	answer, err := x.send(ctx, tokens.Access, "",
		outboundRequest{method: http.MethodGet, url: x.connections, largest: maxXeroConnections})
	if err != nil {
		return nil, err
	}
	body, err := parseJSON(slices.Concat([]byte(`{"all":`), answer.body, []byte(`}`)))
	if all, ok := body.member("all"); err != nil || !ok || all.kind != jsonArray {
		return nil, malformedAnswer(answer.status)
	}
	event := xeroEvent(tokens.Access)
	var found, agreed []bookOrganisation
	for _, v := range listMember(&body, "all") {
		o := bookOrganisation{
			ID:     textMember(&v, "tenantId", maxXeroID),
			Name:   cutMessage(rawMember(&v, "tenantName")),
			LinkID: textMember(&v, "id", maxXeroID),
		}
		if o.ID == "" || o.LinkID == "" || rawMember(&v, "tenantType") != "ORGANISATION" {
			continue
		}
		o.Name = cmp.Or(o.Name, o.ID)
		found = append(found, o)
		if event != "" && rawMember(&v, "authEventId") == event {
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
	if err != nil {
		return ""
	}
	claims, err := parseJSON(payload)
	if err != nil {
		return ""
	}
	return textMember(&claims, "authentication_event_id", maxXeroID)
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

// chart implements ledger. It is the same for each date.
func (x *xeroLedger) chart(ctx context.Context, s *ledgerSession, _ businessDate) (*bookChart, error) {
	chart := &bookChart{}
	for _, part := range []struct {
		path, list string
		read       func(chart *bookChart, list []jsonValue) bool
	}{
		{"/Organisation", "Organisations", readXeroOrganisation},
		{"/Accounts", "Accounts", readXeroAccounts},
		{"/TaxRates", "TaxRates", readXeroRates},
	} {
		list, err := x.ask(ctx, s, part.list, outboundRequest{method: http.MethodGet, url: part.path})
		if err != nil {
			return nil, err
		}
		if len(list) > maxXeroAccounts {
			return nil, &outboundError{status: http.StatusOK, reason: outboundTooLarge}
		}
		if !part.read(chart, list) {
			return nil, malformedAnswer(http.StatusOK)
		}
	}
	return chart, nil
}

// readXeroOrganisation reads the currency and the locked days of a company. It reports false if they can't
// be read.
func readXeroOrganisation(chart *bookChart, list []jsonValue) bool {
	if len(list) != 1 {
		return false
	}
	chart.Currency = textMember(&list[0], "BaseCurrency", len("CHF"))
	for _, name := range []string{"PeriodLockDate", "EndOfYearLockDate"} {
		text := rawMember(&list[0], name)
		if text == "" {
			continue
		}
		date, ok := xeroDate(text)
		if !ok {
			return false
		}
		chart.LockedUntil = max(chart.LockedUntil, date)
	}
	return chart.Currency != ""
}

// readXeroAccounts reads the accounts that have a code, by which lines name them.
func readXeroAccounts(chart *bookChart, list []jsonValue) bool {
	for _, v := range list {
		a := bookAccount{
			Code: textMember(&v, "Code", maxXeroID),
			Name: cutMessage(rawMember(&v, "Name")),
			Type: textMember(&v, "Type", maxXeroID),
			Tax:  textMember(&v, "TaxType", maxXeroID),
		}
		if a.Code == "" {
			continue
		}
		system := rawMember(&v, "SystemAccount")
		switch {
		case rawMember(&v, "Status") != "ACTIVE":
			a.Why = "archived"
		case a.Type == "BANK":
			a.Why = "bank"
		case system == "DEBTORS":
			a.Why = "receivable"
		case system == "CREDITORS":
			a.Why = "payable"
		case system != "": // VAT, rounding, earnings: kept by Xero itself
			a.Why = "system"
		}
		a.Usable = a.Why == ""
		chart.Accounts = append(chart.Accounts, a)
	}
	return true
}

// readXeroRates reads the rates of tax. Those finer than a hundredth of a percent are skipped: no rate of ours is.
func readXeroRates(chart *bookChart, list []jsonValue) bool {
	for _, v := range list {
		r := bookTaxRate{Code: textMember(&v, "TaxType", maxXeroID), Name: cutMessage(rawMember(&v, "Name"))}
		rate, ok := v.member("EffectiveRate")
		if !ok {
			rate, ok = v.member("DisplayTaxRate")
		}
		if !ok || r.Code == "" {
			continue
		}
		if r.Rate, ok = hundredths(rate); !ok || r.Rate < 0 || r.Rate > maxVATRate {
			continue
		}
		forRevenue, known := v.member("CanApplyToRevenue")
		r.Usable = rawMember(&v, "Status") == "ACTIVE" && (!known || forRevenue.boolean)
		chart.TaxRates = append(chart.TaxRates, r)
	}
	return true
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
}

type xeroLine struct {
	LineAmount  json.RawMessage // debit positive, credit negative; with two decimals
	AccountCode string
	Description string
	TaxType     string
	Tracking    []xeroTracking `json:",omitempty"`
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
		l := xeroLine{json.RawMessage(amount), line.Account, line.Text, cmp.Or(line.Tax, noTax), nil}
		if line.CostCenter != "" {
			category, option, _ := strings.Cut(line.CostCenter, ":")
			l.Tracking = []xeroTracking{{category, option}}
		}
		j.JournalLines = append(j.JournalLines, l)
	}
	return bodyText(map[string][]xeroJournal{"ManualJournals": {j}})
}

// post implements ledger. key has at most 128 characters.
func (x *xeroLedger) post(
	ctx context.Context, s *ledgerSession, _ *bookEntry, body, key string,
) (id string, err error) {
	list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{
		method: http.MethodPut,
		url:    "/ManualJournals",
		header: http.Header{"Idempotency-Key": {key}},
		body:   []byte(body),
	})
	if err != nil {
		return "", err
	}
	if len(list) != 1 {
		return "", malformedAnswer(http.StatusOK)
	}
	if len(listMember(&list[0], "ValidationErrors")) > 0 {
		return "", xeroInvalid(malformedAnswer(http.StatusOK), &list[0])
	}
	if id = textMember(&list[0], "ManualJournalID", maxXeroID); id == "" {
		return "", malformedAnswer(http.StatusOK)
	}
	return id, nil
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
		list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{method: http.MethodGet, url: path})
		if err != nil {
			return nil, err
		}
		for _, v := range list {
			if !hasSyncKey(rawMember(&v, "Narration"), syncKey) {
				continue
			}
			booked, ok := parseXeroJournal(&v)
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
	list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{method: http.MethodGet, url: path})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(list) == 1 {
		if booked, ok := parseXeroJournal(&list[0]); ok {
			return booked, nil
		}
	}
	return nil, malformedAnswer(http.StatusOK)
}

// parseXeroJournal reads a manual journal. It reports false for one that can't be understood. The amounts that it
// returns include VAT, however Xero shows them.
func parseXeroJournal(v *jsonValue) (*bookedEntry, bool) {
	status := rawMember(v, "Status")
	date, ok := xeroDate(rawMember(v, "Date"))
	booked := &bookedEntry{
		ID:      textMember(v, "ManualJournalID", maxXeroID),
		Deleted: status == "VOIDED" || status == "DELETED",
		Draft:   status == "DRAFT",
		Entry:   bookEntry{Date: date, Narration: rawMember(v, "Narration"), Status: entryPosted},
	}
	if booked.Draft {
		booked.Entry.Status = entryDraft
	}
	if !ok || booked.ID == "" || status == "" {
		return nil, false
	}
	kind := rawMember(v, "LineAmountTypes")
	for _, l := range listMember(v, "JournalLines") {
		line, ok := parseXeroLine(&l, kind)
		if !ok {
			return nil, false
		}
		if line != (entryLine{}) { // Xero may keep blank lines
			booked.Entry.Lines = append(booked.Entry.Lines, line)
		}
	}
	return booked, true
}

// parseXeroLine reads a line of a manual journal whose amounts are "Inclusive", "Exclusive" or "NoTax".
func parseXeroLine(v *jsonValue, kind string) (line entryLine, ok bool) {
	amount := int64(0)
	if m, has := v.member("LineAmount"); has {
		if amount, ok = hundredths(m); !ok {
			return line, false
		}
	}
	if m, has := v.member("TaxAmount"); has && kind == "Exclusive" {
		tax, ok := hundredths(m)
		if !ok {
			return line, false
		}
		amount += tax
	}
	line.Debit, line.Credit = max(amount, 0), max(-amount, 0)
	line.Account, line.Text = rawMember(v, "AccountCode"), rawMember(v, "Description")
	if line.Tax = rawMember(v, "TaxType"); line.Tax == noTax || kind == "NoTax" {
		line.Tax = ""
	}
	var centers []string
	for _, t := range listMember(v, "Tracking") {
		centers = append(centers, rawMember(&t, "Name")+":"+rawMember(&t, "Option"))
	}
	line.CostCenter = strings.Join(centers, "; ")
	return line, true
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
	list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{
		method: http.MethodPost,
		url:    "/ManualJournals/" + url.PathEscape(id),
		body:   []byte(bodyText(map[string][]xeroJournal{"ManualJournals": {deleted}})),
	})
	switch {
	case err != nil:
		return err
	case len(list) == 1 && len(listMember(&list[0], "ValidationErrors")) > 0:
		return xeroInvalid(malformedAnswer(http.StatusOK), &list[0])
	case len(list) != 1 || rawMember(&list[0], "Status") != "DELETED":
		return malformedAnswer(http.StatusOK)
	}
	return nil
}
