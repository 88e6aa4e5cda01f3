package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Vipps MobilePay's ePayment API (description 1.4.1) and its Access token and Webhooks APIs. A payment has a
// reference that we choose: the id of our attempt. What an answer leaves open is read from the payment later, so
// an operation whose answer was lost is looked for before it is sent again.

// vippsLive is the base address where money moves. Every other one is for tests.
const vippsLive = "https://api.vipps.no"

// Limits on what Vipps sends and accepts.
const (
	maxVippsAmount      = 65_000_000       // by the API description, in the minor unit
	maxVippsDescription = 100              // characters
	maxVippsText        = 200              // characters of a code, a reference or a secret
	maxVippsURL         = 4096             // characters: the token of a guest is part of it
	maxVippsTokens      = 1000             // connections whose access tokens are kept
	maxVippsToken       = 8 << 10          // bytes of an access token
	vippsTokenEarly     = 5 * time.Minute  // how long before its end a token is replaced
	vippsTokenLeast     = 10 * time.Second // how long a token is used at least, even if it ends sooner
	vippsTokenMost      = 24 * time.Hour
	vippsSkew           = time.Hour
	vippsSystemName     = "widgetd"
	maxVippsSystem      = 30 // characters of a system header
)

// vippsCurrencies are the currencies of the API description, with the smallest amount that can be paid and how
// long an authorisation lasts. Norwegian cards keep money reserved for longer than those behind MobilePay.
var vippsCurrencies = map[string]struct {
	least int64 // in the minor unit
	lasts time.Duration
}{
	"NOK": {100, 180 * 24 * time.Hour},
	"DKK": {1, 14 * 24 * time.Hour},
	"EUR": {1, 14 * 24 * time.Hour},
	"SEK": {100, 14 * 24 * time.Hour}, // Vipps names no time for Sweden: the shorter one
}

// A vippsProvider is the client of Vipps MobilePay. Make one with newVippsProvider.
type vippsProvider struct {
	out  *outbound
	base string // without a slash at its end
	now  func() time.Time

	mu     sync.Mutex
	tokens map[string]*vippsToken // by the id of a connection; at most maxVippsTokens
}

// A vippsToken is an access token, or a request for one that is on its way. Its other fields may be read once
// done is closed, and do not change after that.
type vippsToken struct {
	done  chan struct{}
	text  string
	until time.Time // when another one is asked for
	err   error     // why there is none
}

// newVippsProvider makes a client. base is the base address; empty means vippsLive. now is the wall clock.
func newVippsProvider(out *outbound, base string, now func() time.Time) *vippsProvider {
	base = strings.TrimRight(cmp.Or(base, vippsLive), "/")
	return &vippsProvider{out: out, base: base, now: now, tokens: map[string]*vippsToken{}}
}

// takes implements provider.
func (v *vippsProvider) takes(method, currency string, amount int64) bool {
	limits, ok := vippsCurrencies[currency]
	return ok && method == methodMobile && amount >= limits.least && amount <= maxVippsAmount
}

// reserves implements provider.
func (v *vippsProvider) reserves(currency string) time.Duration {
	return vippsCurrencies[currency].lasts
}

// tries implements provider. There is one method only, which connect has checked.
func (v *vippsProvider) tries(context.Context, *openConnection, string) error { return nil }

// readsFirst implements provider.
func (v *vippsProvider) readsFirst() bool { return true }

// vippsReference returns the reference of an attempt, which may have no underscore.
func vippsReference(paymentID string) string { return strings.Replace(paymentID, "_", "-", 1) }

// vippsPaymentID returns the id of the attempt that has a reference; "": no attempt of ours can have it.
func vippsPaymentID(reference string) string {
	id := strings.Replace(reference, "-", "_", 1)
	if !validID("pay", id) {
		return ""
	}
	return id
}

// vippsPath returns the path of a payment, or with an action such as "/capture" that of the action.
func vippsPath(paymentID, action string) string {
	return "/epayment/v1/payments/" + vippsReference(paymentID) + action
}

type vippsMoney struct {
	Currency string `json:"currency"`
	Value    int64  `json:"value"` // in the minor unit
}

// call implements provider.
func (v *vippsProvider) call(op *paymentOperation, p *payment, o *order, returnURL string) providerCall {
	call := providerCall{Method: http.MethodPost, ContentType: "application/json"}
	amount := vippsMoney{p.Currency, op.Amount}
	switch op.Kind {
	case opCreate:
		call.Path = "/epayment/v1/payments"
		wallet := map[string]string{"type": "WALLET"}
		call.Body = bodyText(struct {
			Amount        vippsMoney        `json:"amount"`
			PaymentMethod map[string]string `json:"paymentMethod"`
			Reference     string            `json:"reference"`
			UserFlow      string            `json:"userFlow"`
			ReturnURL     string            `json:"returnUrl"`
			Description   string            `json:"paymentDescription"` // the guest, the portal and settlements see it
		}{amount, wallet, vippsReference(p.ID), "WEB_REDIRECT", returnURL, vippsTitle(o)})
	case opCapture, opRefund:
		call.Path = vippsPath(p.ID, "/"+op.Kind)
		call.Body = bodyText(map[string]vippsMoney{"modificationAmount": amount})
	case opExpire: // it is refused if the guest has paid meanwhile
		call.Path = vippsPath(p.ID, "/cancel")
		call.Body = bodyText(map[string]bool{"cancelTransactionOnly": true})
	default: // opCancel: of what is not captured
		call.Path, call.ContentType = vippsPath(p.ID, "/cancel"), ""
	}
	return call
}

// vippsTitle returns the title of an order, cut to what Vipps takes.
func vippsTitle(o *order) string {
	title := []rune(titleOf(o))
	return string(title[:min(len(title), maxVippsDescription)])
}

// send implements provider.
func (v *vippsProvider) send(
	ctx context.Context, c *openConnection, op *paymentOperation, call providerCall,
) sendResult {
	header := http.Header{"Idempotency-Key": {op.ID}}
	if call.ContentType != "" {
		header.Set("Content-Type", call.ContentType)
	}
	once := op.Kind != opCreate // creating may be repeated: a reference can't be used twice, and the guest waits
	q := outboundRequest{call.Method, v.base + call.Path, header, []byte(call.Body), 0}
	answer, err := v.ask(ctx, c, q, once)
	if err != nil {
		return v.notSent(answer, err)
	}
	failed := v.failure(answer)
	if failed == nil {
		return vippsDone(op, answer)
	}
	result := sendResult{status: answer.status, reason: failed.reason, retryAfter: failed.wait}
	switch {
	case once && failed.status == http.StatusUnauthorized && valueOr(op.Status, 0) != http.StatusUnauthorized:
		// It does not prove that nothing was done: before it is sent again, the payment is read with another
		// token.
	case failed.denied:
		result.outcome, result.retryAfter = sendDenied, 0
	case answer.status == http.StatusConflict && op.Kind == opCreate && failed.own:
		// the reference exists, or will in a moment
		result.outcome = sendStale
	case answer.refuses(failed.own):
		result.outcome, result.retryAfter = sendRefused, 0
	}
	return result
}

// notSent returns the result of an operation that has no answer of its own.
func (v *vippsProvider) notSent(answer *outboundAnswer, err error) sendResult {
	result := sendResult{reason: outboundMalformed}
	if answer != nil {
		result.status = answer.status
	}
	var broken *outboundError
	var failed *providerError
	switch {
	case errors.As(err, &broken):
		result.reason = broken.reason
	case errors.As(err, &failed): // there is no access token
		result.status, result.reason, result.retryAfter = failed.status, failed.reason, failed.wait
		if failed.denied {
			result.outcome = sendDenied
		}
	}
	return result
}

// vippsDone returns the result of an operation whose answer has a status of 2xx.
func vippsDone(op *paymentOperation, answer *outboundAnswer) sendResult {
	result := sendResult{outcome: sendDone, status: answer.status}
	reference := vippsReference(op.PaymentID)
	ok := false
	if op.Kind == opCreate {
		body, err := parseJSON(answer.body)
		result.url = vippsText(&body, "redirectUrl", maxVippsURL)
		ok = err == nil && vippsText(&body, "reference", maxVippsText) == reference && isVippsURL(result.url)
	} else {
		var state vippsPayment
		state, ok = parseVippsPayment(answer.body, reference)
		if op.Kind == opRefund {
			result.refundID = state.pspReference
		}
	}
	if !ok {
		return sendResult{status: answer.status, reason: outboundMalformed}
	}
	return result
}

// isVippsURL reports whether a guest can be sent to an address. At a sandbox it may be one with http.
func isVippsURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// failure returns what an answer says went wrong, or nil if its status is 2xx. From a problem (RFC 9457), which is
// Vipps' form, it takes only the name of the type, since the other members are texts for people. Keys are also denied
// in other forms of JSON, where tokens are given out and by the gateway before Vipps, or without a body.
func (v *vippsProvider) failure(answer *outboundAnswer) *providerError {
	if answer.status >= 200 && answer.status < 300 {
		return nil
	}
	failed := &providerError{status: answer.status, reason: "http_" + strconv.Itoa(answer.status)}
	failed.wait, _ = retryAfter(answer.header, v.now())
	problem, err := parseJSON(answer.body)
	failed.denied = answer.deniesKeys(err == nil || len(answer.body) == 0)
	if err == nil {
		kind := vippsText(&problem, "type", maxOutboundURL)
		failed.own = kind+rawMember(&problem, "title") != ""
		if name := kind[strings.LastIndexAny(kind, "/#:")+1:]; isVippsCode(name) {
			failed.reason = name
		}
	}
	return failed
}

// isVippsCode reports whether a text is a code that may be kept and shown.
func isVippsCode(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return s != "" && len(s) <= 64 && strings.Trim(s, letters) == ""
}

// ask sends a request with an access token of a connection. If the token is not accepted, it is not used again;
// unless the request may be sent once only, it asks for another one and sends the request once more. Errors: those
// of outbound.do and token.
func (v *vippsProvider) ask(
	ctx context.Context, c *openConnection, q outboundRequest, once bool,
) (*outboundAnswer, error) {
	if q.header == nil {
		q.header = http.Header{}
	}
	c.vippsHeaders(q.header)
	for again := false; ; again = true {
		token, err := v.token(ctx, c)
		if err != nil {
			return nil, err
		}
		q.header.Set("Authorization", "Bearer "+token.text)
		answer, err := v.out.do(ctx, q)
		if again || err != nil || answer.status != http.StatusUnauthorized {
			return answer, err
		}
		v.drop(c.ID, token)
		if once {
			return answer, nil
		}
	}
}

// vippsHeaders sets the headers of every request of a connection.
func (c *openConnection) vippsHeaders(header http.Header) {
	header.Set("Ocp-Apim-Subscription-Key", c.secrets.SubscriptionKey)
	header.Set("Merchant-Serial-Number", c.secrets.MerchantSerial)
	version := buildName()
	version = version[:min(len(version), maxVippsSystem)]
	header.Set("Vipps-System-Name", vippsSystemName)
	header.Set("Vipps-System-Version", version)
	header.Set("Vipps-System-Plugin-Name", vippsSystemName)
	header.Set("Vipps-System-Plugin-Version", version)
}

// token returns an access token of a connection that does not end soon. While one call asks for a token, others
// wait for it. Errors: an *outboundError, or a *providerError.
func (v *vippsProvider) token(ctx context.Context, c *openConnection) (*vippsToken, error) {
	for {
		v.mu.Lock()
		token := v.tokens[c.ID]
		if token == nil || token.ended(v.now()) {
			token = &vippsToken{done: make(chan struct{})}
			v.keep(c.ID, token)
			v.mu.Unlock()
			token.text, token.until, token.err = v.fetchToken(ctx, c)
			close(token.done)
			if token.err != nil {
				v.drop(c.ID, token)
			}
			return token, token.err
		}
		v.mu.Unlock()
		select {
		case <-token.done:
		case <-ctx.Done():
			return nil, &outboundError{outboundCanceled, ctx.Err()}
		}
		var broken *outboundError
		if errors.As(token.err, &broken) && broken.reason == outboundCanceled && ctx.Err() == nil {
			continue // the caller that asked for it has gone away
		}
		return token, token.err
	}
}

// ended reports whether another token is to be asked for: this one has arrived and is no longer of use.
func (t *vippsToken) ended(now time.Time) bool {
	select {
	case <-t.done:
		return !now.Before(t.until)
	default:
		return false
	}
}

// keep remembers the token of a connection. The caller holds v.mu.
func (v *vippsProvider) keep(connectionID string, token *vippsToken) {
	if _, known := v.tokens[connectionID]; !known && len(v.tokens) >= maxVippsTokens {
		for other := range v.tokens {
			delete(v.tokens, other)
			break
		}
	}
	v.tokens[connectionID] = token
}

// drop forgets a token of a connection, unless another one has replaced it; nil: whichever there is.
func (v *vippsProvider) drop(connectionID string, token *vippsToken) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if token == nil || v.tokens[connectionID] == token {
		delete(v.tokens, connectionID)
	}
}

// fetchToken asks for an access token and returns it with the time when another one is to be asked for.
func (v *vippsProvider) fetchToken(ctx context.Context, c *openConnection) (string, time.Time, error) {
	header := http.Header{ // names with underscores are sent as Vipps writes them
		"client_id":     {c.secrets.ClientID},
		"client_secret": {c.secrets.ClientSecret},
	}
	c.vippsHeaders(header)
	asked := v.now()
	answer, err := v.out.do(ctx, outboundRequest{http.MethodPost, v.base + "/accesstoken/get", header, nil, 0})
	if err != nil {
		return "", time.Time{}, err
	}
	body, err := parseJSON(answer.body)
	if failed := v.failure(answer); failed != nil {
		unknown := answer.status == http.StatusBadRequest && err == nil // client_id
		failed.denied = failed.denied || unknown
		return "", time.Time{}, failed
	}
	text := vippsText(&body, "access_token", maxVippsToken)
	seconds := int64(0)
	if lasts, ok := body.member("expires_in"); ok && lasts.kind == jsonString { // Vipps sends digits in quotes
		seconds, _ = strconv.ParseInt(lasts.text, 10, 64)
	} else if ok {
		seconds, _ = lasts.integer()
	}
	if err != nil || text == "" || strings.Contains(text, " ") || seconds <= 0 {
		return "", time.Time{}, malformedAnswer(answer.status)
	}
	lasts := time.Duration(min(seconds, int64(vippsTokenMost/time.Second))) * time.Second
	return text, asked.Add(max(lasts-vippsTokenEarly, vippsTokenLeast)), nil
}

// request is ask for a request with a body of JSON; "": with none. A status other than 2xx is a *providerError, beside
// the answer.
func (v *vippsProvider) request(
	ctx context.Context, c *openConnection, method, path, body string,
) (*outboundAnswer, error) {
	q := outboundRequest{method: method, url: v.base + path, body: []byte(body)}
	if body != "" {
		q.header = http.Header{"Content-Type": {"application/json"}}
	}
	answer, err := v.ask(ctx, c, q, false)
	if err != nil {
		return answer, err
	}
	if failed := v.failure(answer); failed != nil {
		return answer, failed
	}
	return answer, nil
}

// read sends a GET request and returns the answer. A status other than 2xx is a *providerError.
func (v *vippsProvider) read(ctx context.Context, c *openConnection, path string) (*outboundAnswer, error) {
	return v.request(ctx, c, http.MethodGet, path, "")
}

// look implements provider. The operations are read from the list of events, but the amounts from the payment
// itself, since that list may lack what has just happened.
func (v *vippsProvider) look(ctx context.Context, c *openConnection, p *payment) (*paymentReport, error) {
	state, err := v.readState(ctx, c, p)
	if isVippsNotFound(err) {
		return &paymentReport{}, nil
	}
	if err != nil {
		return nil, err
	}
	answer, err := v.read(ctx, c, vippsPath(p.ID, "/events"))
	var events []vippsEvent
	switch {
	case isVippsNotFound(err): // the list is not written yet
	case err != nil:
		return nil, err
	default:
		var ok bool
		if events, ok = parseVippsEvents(answer.body, vippsReference(p.ID), state.currency); !ok {
			return nil, malformedAnswer(answer.status)
		}
	}
	report := state.report()
	if report.addVippsEvents(events); report.exceeds() { // perhaps something was given back between the two
		if state, err = v.readState(ctx, c, p); err != nil {
			return nil, err
		}
		report = state.report()
		report.addVippsEvents(events)
	}
	lapses := vippsCaptureBefore(events, p, state.currency)
	if report.authorized > 0 {
		report.captureBefore = lapses
	}
	if report.phase == phaseCancelled && state.state == "AUTHORIZED" && vippsLapsed(events, lapses) {
		report.phase = phaseExpired
	}
	return report, nil
}

// readState reads the state of an attempt. Errors: those of read, also for a payment that can't be right.
func (v *vippsProvider) readState(ctx context.Context, c *openConnection, p *payment) (vippsPayment, error) {
	answer, err := v.read(ctx, c, vippsPath(p.ID, ""))
	if err != nil {
		return vippsPayment{}, err
	}
	state, ok := parseVippsPayment(answer.body, vippsReference(p.ID))
	if !ok {
		err = malformedAnswer(answer.status)
	}
	return state, err
}

// vippsLapsed reports whether an authorisation that lapses at a time was released by that, and by nobody. Vipps
// releases it under no key of ours; its clock may be a little ahead.
func vippsLapsed(events []vippsEvent, lapses time.Time) bool {
	return slices.ContainsFunc(events, func(e vippsEvent) bool {
		return e.name == "EXPIRED" || e.name == "CANCELLED" && !validID("opr", e.key) && !lapses.IsZero() &&
			e.at.After(lapses.Add(-vippsSkew))
	})
}

// isVippsNotFound reports whether Vipps says that something does not exist.
func isVippsNotFound(err error) bool {
	var failed *providerError
	return errors.As(err, &failed) && failed.own && failed.status == http.StatusNotFound
}

// vippsCaptureBefore returns when an authorisation lapses. Vipps does not say, so it is computed from the event
// of the authorisation or, without one, from the attempt's creation, which is earlier.
func vippsCaptureBefore(events []vippsEvent, p *payment, currency string) time.Time {
	limits, ok := vippsCurrencies[currency]
	if !ok {
		return time.Time{}
	}
	since := p.CreatedAt.Time
	for _, e := range events {
		if e.name == "AUTHORIZED" {
			since = e.at
			break
		}
	}
	if since.IsZero() {
		return time.Time{}
	}
	return since.Add(limits.lasts)
}

// A vippsPayment is the state of a payment, as Vipps reports it.
type vippsPayment struct {
	state, pspReference, redirectURL, currency string

	amount, authorized, captured, cancelled, refunded int64 // in the minor unit
}

// vippsStates maps the states of a payment to phases, which report corrects by the amounts.
var vippsStates = map[string]paymentPhase{
	"CREATED": phaseOpen, "ABORTED": phaseCancelled, "EXPIRED": phaseExpired, "TERMINATED": phaseCancelled,
	"AUTHORIZED": phaseApproved,
}

// parseVippsPayment reads a payment, or the answer to a modification of it. It reports false if that is not
// the payment with a reference, or its amounts contradict each other.
func parseVippsPayment(text []byte, reference string) (p vippsPayment, ok bool) {
	body, err := parseJSON(text)
	if err != nil || vippsText(&body, "reference", maxVippsText) != reference {
		return p, false
	}
	p.state = vippsText(&body, "state", maxVippsText)
	p.pspReference = vippsText(&body, "pspReference", maxVippsText)
	p.redirectURL = vippsText(&body, "redirectUrl", maxVippsURL)
	p.amount, p.currency, ok = vippsAmount(&body, "amount")
	aggregate, _ := body.member("aggregate")
	if _, known := vippsStates[p.state]; !ok || !known || p.pspReference == "" || aggregate == nil {
		return p, false
	}
	for name, into := range map[string]*int64{"authorizedAmount": &p.authorized, "capturedAmount": &p.captured,
		"cancelledAmount": &p.cancelled, "refundedAmount": &p.refunded} {
		value, currency, ok := vippsAmount(aggregate, name)
		if !ok || currency != p.currency {
			return p, false
		}
		*into = value
	}
	rightURL := p.redirectURL == "" || isVippsURL(p.redirectURL)
	paid := p.state != "AUTHORIZED" || p.authorized > 0
	return p, rightURL && paid && p.captured+p.cancelled <= max(p.authorized, p.amount) && p.refunded <= p.captured
}

// report returns what a payment's state means. The state stays AUTHORIZED after a capture, a refund and a
// cancellation.
func (p *vippsPayment) report() *paymentReport {
	report := &paymentReport{
		phase:    vippsStates[p.state],
		amount:   p.amount,
		currency: p.currency,
		captured: p.captured,
		refunded: p.refunded,
		intentID: p.pspReference,
	}
	switch {
	case p.state == "AUTHORIZED":
		if report.authorized = max(p.authorized-p.captured-p.cancelled, 0); report.authorized+p.captured == 0 {
			report.phase = phaseCancelled
		}
	case p.captured > 0:
		report.phase = phaseApproved
	case p.state == "CREATED":
		report.url = p.redirectURL
	}
	return report
}

// A vippsEvent is something that was done to a payment.
type vippsEvent struct {
	name, pspReference string
	key                string // the idempotency key of the request; "": none
	amount             int64
	at                 time.Time
}

// parseVippsEvents reads the list of events of a payment and returns those that succeeded, in the order of the
// list. It reports false for anything but a list. An event that lacks a member it needs is left out, since the
// amounts are known without it.
func parseVippsEvents(text []byte, reference, currency string) (events []vippsEvent, ok bool) {
	body, err := parseJSON(slices.Concat([]byte(`{"events":`), text, []byte(`}`)))
	if err != nil || len(body.members) != 1 || body.members[0].value.kind != jsonArray {
		return nil, false
	}
	for _, v := range body.members[0].value.list {
		e := vippsEvent{
			name:         vippsText(&v, "name", maxVippsText),
			pspReference: vippsText(&v, "pspReference", maxVippsText),
			key:          vippsText(&v, "idempotencyKey", maxVippsText),
		}
		amount, in, hasAmount := vippsAmount(&v, "amount")
		at, err := time.Parse(time.RFC3339, vippsText(&v, "timestamp", maxVippsText))
		e.amount, e.at = amount, at
		if !trueMember(&v, "success") || err != nil || e.pspReference == "" ||
			!hasAmount || in != currency || vippsText(&v, "reference", maxVippsText) != reference {
			continue
		}
		events = append(events, e)
	}
	return events, true
}

// same reports whether two events are one, told twice.
func (e *vippsEvent) same(other *vippsEvent) bool {
	return e.name == other.name && e.pspReference == other.pspReference && e.at.Equal(other.at) &&
		e.amount == other.amount
}

// addVippsEvents adds what was done to a payment: the keys of our own operations, when it was captured, and each
// refund, ours first. A refund that was made in Vipps' portal has a key that is not ours, or none. A pspReference may
// be of several events.
func (r *paymentReport) addVippsEvents(events []vippsEvent) {
	var others []refundReport
	for i, e := range events {
		ours := validID("opr", e.key)
		if ours && !slices.Contains(r.done, e.key) {
			r.done = append(r.done, e.key)
		}
		if e.name == "CAPTURED" && e.at.After(r.capturedAt) {
			r.capturedAt = e.at
		}
		told := slices.ContainsFunc(events[:i], func(other vippsEvent) bool { return e.same(&other) })
		if e.name != "REFUNDED" || e.amount <= 0 || told {
			continue
		}
		refund := refundReport{providerID: e.pspReference, amount: e.amount, state: refundSucceeded, at: e.at,
			longID: fmt.Sprintf("%s/%s/%d", e.pspReference, e.at.UTC().Format(time.RFC3339Nano), e.amount)}
		if ours {
			refund.operationID = e.key
			r.refunds = append(r.refunds, refund)
		} else {
			others = append(others, refund)
		}
	}
	r.refunds = append(r.refunds, others...)
}

// vippsText returns a member that is a text of at most max visible ASCII characters and spaces; "": there is
// none.
func vippsText(v *jsonValue, name string, max int) string {
	m, ok := v.member(name)
	if !ok || m.kind != jsonString || len(m.text) > max ||
		strings.IndexFunc(m.text, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return ""
	}
	return m.text
}

// vippsAmount returns a member that is an amount: {"currency":"NOK","value":49900}.
func vippsAmount(v *jsonValue, name string) (value int64, currency string, ok bool) {
	m, ok := v.member(name)
	if !ok {
		return 0, "", false
	}
	value, ok = integerMember(m, "value")
	currency = vippsText(m, "currency", maxVippsText)
	return value, currency, ok && value >= 0 && value <= maxVippsAmount && len(currency) == 3
}

// Webhooks of Vipps MobilePay: their signatures, and the Webhooks API, which registers our webhook when an
// account is connected.

// notice implements provider. The signature covers the registered address of the webhook, whatever a proxy in
// front of this service has made of it. Vipps repeats a delivery for seven days, with the date of the first
// attempt, so the age is not checked.
func (v *vippsProvider) notice(
	c *openConnection, r *http.Request, body []byte, _ time.Time,
) (paymentNotice, error) {
	if c.WebhookURL == nil || c.secrets.WebhookSecret == "" {
		return paymentNotice{}, errNotice
	}
	one := func(name string) string { // a header that appears only once
		if values := r.Header.Values(name); len(values) == 1 && len(values[0]) <= 2*maxVippsText {
			return values[0]
		}
		return ""
	}
	want := signVipps(c.secrets.WebhookSecret, *c.WebhookURL, one("X-Ms-Date"), body)
	hash, authorization := one("X-Ms-Content-Sha256"), one("Authorization")
	sameHash := hmac.Equal([]byte(hash), []byte(want.hash))
	if !hmac.Equal([]byte(authorization), []byte(want.authorization)) || !sameHash {
		return paymentNotice{}, errNotice
	}
	told, err := parseJSON(body)
	if err != nil {
		return paymentNotice{}, nil // it is signed by Vipps, which would repeat it for a week if it were refused
	}
	return paymentNotice{paymentID: vippsPaymentID(vippsText(&told, "reference", maxVippsText))}, nil
}

// A vippsSignature holds the headers that prove that a webhook is from Vipps.
type vippsSignature struct{ hash, authorization string }

// signVipps returns the signature of a webhook, as Vipps' Webhooks API describes it. secret is used as text,
// though it looks like base64. target is the registered address.
func signVipps(secret, target, date string, body []byte) vippsSignature {
	path, host := "/", ""
	if u, err := url.Parse(target); err == nil {
		path, host = u.RequestURI(), u.Host
	}
	sum := sha256.Sum256(body)
	hash := base64.StdEncoding.EncodeToString(sum[:])
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "POST\n%s\n%s;%s;%s", path, date, host, hash)
	return vippsSignature{hash, "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature=" +
		base64.StdEncoding.EncodeToString(mac.Sum(nil))}
}

// vippsEvents are the types that our webhook is registered for.
var vippsEvents = []string{
	"epayments.payment.created.v1", "epayments.payment.aborted.v1", "epayments.payment.expired.v1",
	"epayments.payment.cancelled.v1", "epayments.payment.captured.v1", "epayments.payment.refunded.v1",
	"epayments.payment.authorized.v1", "epayments.payment.terminated.v1",
}

// vippsWebhooks is the path of the webhooks of a merchant.
const vippsWebhooks = "/webhooks/v1/webhooks"

// vippsWebhookID is the form of a webhook's id, which becomes part of a path.
var vippsWebhookID = lazyPattern(`^[A-Za-z0-9_-]{1,64}$`)

// connect implements provider. If the answer of the registration is lost, it removes what may have been
// registered.
func (v *vippsProvider) connect(ctx context.Context, c *openConnection, webhookURL string) error {
	v.drop(c.ID, nil)
	body := bodyText(map[string]any{"url": webhookURL, "events": vippsEvents})
	answer, err := v.request(ctx, c, http.MethodPost, vippsWebhooks, body)
	if err == nil {
		told, _ := parseJSON(answer.body)
		id, secret := vippsText(&told, "id", maxVippsText), vippsText(&told, "secret", maxVippsText)
		if vippsWebhookID().MatchString(id) && secret != "" {
			c.Live, c.Name, c.WebhookID = v.base == vippsLive, c.secrets.MerchantSerial, &id
			c.secrets.WebhookSecret = secret
			return nil
		}
		err = malformedAnswer(answer.status)
	}
	var failed *providerError
	if !errors.As(err, &failed) || !failed.own && !failed.denied || failed.status >= 500 {
		if removed := v.removeWebhooks(ctx, c, webhookURL); removed != nil {
			return fmt.Errorf("%w; and a webhook at %s may be left at Vipps, to be removed there: %w",
				err, webhookURL, removed)
		}
	}
	return err
}

// A vippsWebhook is a webhook of a merchant.
type vippsWebhook struct{ id, url string }

// webhooks returns the webhooks of a merchant, ours and others'.
func (v *vippsProvider) webhooks(ctx context.Context, c *openConnection) (all []vippsWebhook, err error) {
	answer, err := v.read(ctx, c, vippsWebhooks)
	if err != nil {
		return nil, err
	}
	body, err := parseJSON(answer.body)
	list, ok := body.member("webhooks")
	if err != nil || !ok || list.kind != jsonArray {
		return nil, malformedAnswer(answer.status)
	}
	for _, w := range list.list {
		all = append(all, vippsWebhook{vippsText(&w, "id", maxVippsText), vippsText(&w, "url", maxOutboundURL)})
	}
	return all, nil
}

// removeWebhooks removes the webhooks of a merchant that post to an address.
func (v *vippsProvider) removeWebhooks(ctx context.Context, c *openConnection, webhookURL string) error {
	all, err := v.webhooks(ctx, c)
	for _, w := range all {
		if w.url == webhookURL {
			if err := v.removeWebhook(ctx, c, w.id); err != nil {
				return err
			}
		}
	}
	return err
}

// removeWebhook removes a webhook of a merchant, if it is there.
func (v *vippsProvider) removeWebhook(ctx context.Context, c *openConnection, id string) error {
	if !vippsWebhookID().MatchString(id) {
		return &providerError{reason: outboundMalformed}
	}
	_, err := v.request(ctx, c, http.MethodDelete, vippsWebhooks+"/"+id, "")
	if isVippsNotFound(err) {
		return nil
	}
	return err
}

// disconnect implements provider.
func (v *vippsProvider) disconnect(ctx context.Context, c *openConnection) error {
	if c.WebhookID == nil {
		return nil
	}
	err := v.removeWebhook(ctx, c, *c.WebhookID)
	if err == nil {
		v.drop(c.ID, nil)
	}
	return err
}

// check implements provider. It asks for another access token, so that secrets that were changed at Vipps
// are noticed while an earlier token is still accepted.
func (v *vippsProvider) check(ctx context.Context, c *openConnection) error {
	v.drop(c.ID, nil)
	all, err := v.webhooks(ctx, c)
	if err != nil {
		return err
	}
	if c.WebhookID == nil || c.WebhookURL == nil ||
		!slices.Contains(all, vippsWebhook{*c.WebhookID, *c.WebhookURL}) {
		return &providerError{reason: "webhook_gone"}
	}
	return nil
}
