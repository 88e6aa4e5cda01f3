package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Vipps MobilePay's ePayment API (description 1.4.1) and its Access token and Webhooks APIs. A payment has a
// reference that we choose: the id of our attempt. What an answer leaves open is read from the payment later, so
// an operation whose answer was lost is looked for before it is sent again.

// vippsLive is the base address where money moves. Every other one is for tests.
const providerVipps = "vipps"

// vippsDeclared declares Vipps MobilePay.
var vippsDeclared = paymentProvider{
	name: providerVipps, methods: []string{methodMobile},
	client: func(out *outbound, base string, now func() time.Time) provider {
		return newVippsProvider(out, base, now)
	},
	secrets: func(s *connectionSecrets) map[string]*string {
		return map[string]*string{"client_id": &s.ClientID, "client_secret": &s.ClientSecret,
			"subscription_key": &s.SubscriptionKey, "merchant_serial": &s.MerchantSerial}
	},
	checks: func(s *connectionSecrets) error {
		if n := len(s.MerchantSerial); n < 4 || n > 7 || strings.Trim(s.MerchantSerial, "0123456789") != "" {
			return errors.New("merchant_serial must be 4 to 7 digits")
		}
		return nil
	},
	same: func(c *unsealedConnection) error {
		if c.Name != c.secrets.MerchantSerial {
			return errOtherAccount
		}
		return nil
	},
	confirms: true,
}

const vippsLive = "https://api.vipps.no"

// Limits on what Vipps sends and accepts.
const (
	maxVippsAmount      = 65_000_000       // by the API description, in the minor unit
	maxVippsDescription = 100              // characters
	maxVippsHeader      = 400              // characters of a header of a webhook
	maxVippsTokens      = 1000             // connections whose access tokens are kept
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

// checkMethods implements provider. There is one method only, which connect has checked.
func (v *vippsProvider) checkMethods(context.Context, *unsealedConnection, string) error { return nil }

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
	ctx context.Context, c *unsealedConnection, op *paymentOperation, call providerCall,
) (sent sentOperation, err error) {
	header := http.Header{"Idempotency-Key": {op.ID}}
	if call.ContentType != "" {
		header.Set("Content-Type", call.ContentType)
	}
	creates := op.Kind == opCreate // may be repeated: a reference can't be used twice, and the guest waits
	q := outboundRequest{call.Method, v.base + call.Path, header, []byte(call.Body), 0}
	answer, err := v.ask(ctx, c, q, !creates)
	if failed, ok := err.(*outboundError); ok && answer != nil {
		// The first 401 does not prove that nothing was done: before the same is sent again, the payment is read with
		// another token. A conflict means that the reference exists, or will in a moment; of all else it passes.
		first := answer.status == http.StatusUnauthorized && valueOr(op.Status, 0) != http.StatusUnauthorized
		switch {
		case creates:
			failed.describeVipps(c, answer.body)
		case first, failed.outcome == vendorStale:
			failed.outcome = vendorUnknown
		}
	}
	if err != nil {
		return sent, err
	}
	var state vippsPayment
	sent.status = answer.status
	ok := json.Unmarshal(answer.body, &state) == nil
	switch op.Kind {
	case opCreate:
		sent.url = state.RedirectURL
		ok = ok && state.Reference == vippsReference(op.PaymentID) && isVippsURL(sent.url)
	case opRefund:
		sent.refundID = state.PSPReference
		fallthrough
	default:
		ok = ok && state.isOf(op.PaymentID)
	}
	if !ok {
		return sentOperation{}, malformedAnswer(answer.status)
	}
	return sent, nil
}

// isVippsURL reports whether a guest can be sent to an address. At a sandbox it may be one with http.
func isVippsURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// classifyVipps sets the outcome and the reason of an answer whose status is not 2xx. From a problem (RFC 9457), which
// is Vipps' form, it takes only the name of the type, since the other members are texts for people. Keys are also
// denied in other forms of JSON, where tokens are given out and by the gateway before Vipps, or without a body.
func classifyVipps(answer *outboundAnswer, failed *outboundError) {
	var problem struct{ Type, Title string }
	err := json.Unmarshal(answer.body, &problem)
	own := err == nil && problem.Type+problem.Title != ""
	if name := problem.Type[strings.LastIndexAny(problem.Type, "/#:")+1:]; isVippsCode(name) {
		failed.reason = name
	}
	failed.outcome = answer.outcome(own)
	switch {
	case answer.status == http.StatusUnauthorized, answer.status == http.StatusForbidden:
		failed.outcome = answer.outcome(err == nil || len(answer.body) == 0)
	case answer.status == http.StatusConflict && own:
		failed.outcome = vendorStale
	}
}

// describeVipps adds to the refusal of a new payment what Vipps says of it.
func (e *outboundError) describeVipps(c *unsealedConnection, body []byte) {
	var said struct {
		Title, Detail string
		ExtraDetails  []struct{ Name, Reason string }
	}
	json.Unmarshal(body, &said) // what has another type stays empty
	words, about := said.Title+" "+said.Detail, e.reason+" "+said.Title
	for _, more := range said.ExtraDetails {
		words, about = words+" "+more.Name+" "+more.Reason, about+" "+more.Name
	}
	e.detail, e.ofOrder = c.words(words), orderOnly().MatchString(about)
}

// isVippsCode reports whether a text is a code that may be kept and shown.
func isVippsCode(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	return s != "" && len(s) <= 64 && strings.Trim(s, letters) == ""
}

// ask sends a request with an access token of a connection. If the token is not accepted, it is not used again;
// unless the request may be sent once only, it asks for another one and sends the request once more. Errors: those
// of token, without an answer, and of outbound.ask.
func (v *vippsProvider) ask(
	ctx context.Context, c *unsealedConnection, q outboundRequest, once bool,
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
		answer, err := v.out.ask(ctx, q, v.now(), classifyVipps)
		if again || answer == nil || answer.status != http.StatusUnauthorized {
			return answer, err
		}
		if v.drop(c.ID, token); once {
			return answer, err
		}
	}
}

// vippsHeaders sets the headers of every request of a connection.
func (c *unsealedConnection) vippsHeaders(header http.Header) {
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
// wait for it. Errors: an *outboundError.
func (v *vippsProvider) token(ctx context.Context, c *unsealedConnection) (*vippsToken, error) {
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
			return nil, noAnswer(outboundCanceled, ctx.Err())
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
func (v *vippsProvider) fetchToken(ctx context.Context, c *unsealedConnection) (string, time.Time, error) {
	header := http.Header{ // names with underscores are sent as Vipps writes them
		"client_id":     {c.secrets.ClientID},
		"client_secret": {c.secrets.ClientSecret},
	}
	c.vippsHeaders(header)
	asked := v.now()
	q := outboundRequest{http.MethodPost, v.base + "/accesstoken/get", header, nil, 0}
	answer, err := v.out.ask(ctx, q, asked, func(answer *outboundAnswer, failed *outboundError) {
		classifyVipps(answer, failed)
		if answer.status == http.StatusBadRequest && json.Valid(answer.body) { // the client_id is unknown
			failed.outcome = vendorDenied
		}
	})
	if err != nil {
		return "", time.Time{}, err
	}
	var given struct {
		Token   string      `json:"access_token"`
		Seconds json.Number `json:"expires_in"` // Vipps sends digits in quotes
	}
	err = json.Unmarshal(answer.body, &given)
	seconds, _ := given.Seconds.Int64()
	if err != nil || given.Token == "" || strings.IndexFunc(given.Token, isNotVisible) >= 0 || seconds <= 0 {
		return "", time.Time{}, malformedAnswer(answer.status)
	}
	lasts := time.Duration(min(seconds, int64(vippsTokenMost/time.Second))) * time.Second
	return given.Token, asked.Add(max(lasts-vippsTokenEarly, vippsTokenLeast)), nil
}

// request is ask for a request with a body of JSON; "": with none. It decodes the answer; nil: whatever it is.
func (v *vippsProvider) request(
	ctx context.Context, c *unsealedConnection, method, path, body string, into any,
) error {
	q := outboundRequest{method: method, url: v.base + path, body: []byte(body)}
	if body != "" {
		q.header = http.Header{"Content-Type": {"application/json"}}
	}
	answer, err := v.ask(ctx, c, q, false)
	if err == nil && into != nil && json.Unmarshal(answer.body, into) != nil {
		err = malformedAnswer(answer.status)
	}
	return err
}

// read reads an object of the merchant.
func (v *vippsProvider) read(ctx context.Context, c *unsealedConnection, path string, into any) error {
	return v.request(ctx, c, http.MethodGet, path, "", into)
}

// fetchStatus implements provider. The operations are read from the list of events, but the amounts from the payment
// itself, since that list may lack what has just happened.
func (v *vippsProvider) fetchStatus(ctx context.Context, c *unsealedConnection, p *payment) (*paymentReport, error) {
	state, err := v.readState(ctx, c, p)
	if isMissing(err) {
		return &paymentReport{}, nil
	}
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := v.read(ctx, c, vippsPath(p.ID, "/events"), &list); err != nil && !isMissing(err) {
		return nil, err // if the list is missing, it is not written yet
	}
	events := vippsEventsOf(list, p, state.Amount.Currency)
	report := state.report()
	if report.addVippsEvents(events); report.exceeds() { // perhaps something was given back between the two
		if state, err = v.readState(ctx, c, p); err != nil {
			return nil, err
		}
		report = state.report()
		report.addVippsEvents(events)
	}
	lapses := vippsCaptureBefore(events, p, state.Amount.Currency)
	if report.authorized > 0 {
		report.captureBefore = lapses
	}
	if report.phase == phaseCancelled && state.State == "AUTHORIZED" && vippsLapsed(events, lapses) {
		report.phase = phaseExpired
	}
	return report, nil
}

// readState reads the state of an attempt. Errors: those of read, also for a payment that can't be right.
func (v *vippsProvider) readState(ctx context.Context, c *unsealedConnection, p *payment) (vippsPayment, error) {
	var state vippsPayment
	err := v.read(ctx, c, vippsPath(p.ID, ""), &state)
	if err == nil && !state.isOf(p.ID) {
		err = malformedAnswer(http.StatusOK)
	}
	return state, err
}

// vippsLapsed reports whether an authorisation that lapses at a time was released by that, and by nobody. Vipps
// releases it under no key of ours; its clock may be a little ahead.
func vippsLapsed(events []vippsEvent, lapses time.Time) bool {
	return slices.ContainsFunc(events, func(e vippsEvent) bool {
		return e.Name == "EXPIRED" || e.Name == "CANCELLED" && !validID("opr", e.Key) && !lapses.IsZero() &&
			e.At.After(lapses.Add(-vippsSkew))
	})
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
		if e.Name == "AUTHORIZED" {
			since = e.At
			break
		}
	}
	if since.IsZero() {
		return time.Time{}
	}
	return since.Add(limits.lasts)
}

// A vippsPayment is the state of a payment, as Vipps reports it, also in answer to an operation.
type vippsPayment struct {
	Reference    string     `json:"reference"`
	State        string     `json:"state"`
	PSPReference string     `json:"pspReference"`
	RedirectURL  string     `json:"redirectUrl"`
	Amount       vippsMoney `json:"amount"`
	Aggregate    struct {
		Authorized vippsMoney `json:"authorizedAmount"`
		Captured   vippsMoney `json:"capturedAmount"`
		Cancelled  vippsMoney `json:"cancelledAmount"`
		Refunded   vippsMoney `json:"refundedAmount"`
	} `json:"aggregate"`
}

// vippsStates maps the states of a payment to phases, which report corrects by the amounts.
var vippsStates = map[string]paymentPhase{
	"CREATED": phaseOpen, "ABORTED": phaseCancelled, "EXPIRED": phaseExpired, "TERMINATED": phaseCancelled,
	"AUTHORIZED": phaseApproved,
}

// isOf reports whether it is the payment of an attempt, and its amounts do not contradict each other.
func (p *vippsPayment) isOf(paymentID string) bool {
	a := &p.Aggregate
	for _, amount := range []vippsMoney{p.Amount, a.Authorized, a.Captured, a.Cancelled, a.Refunded} {
		if amount.Value < 0 || amount.Value > maxVippsAmount || amount.Currency != p.Amount.Currency {
			return false
		}
	}
	_, known := vippsStates[p.State]
	paid := p.State != "AUTHORIZED" || a.Authorized.Value > 0
	return known && paid && p.Reference == vippsReference(paymentID) && p.PSPReference != "" &&
		len(p.Amount.Currency) == 3 && a.Captured.Value+a.Cancelled.Value <= max(a.Authorized.Value, p.Amount.Value) &&
		a.Refunded.Value <= a.Captured.Value
}

// report returns what a payment's state means. The state stays AUTHORIZED after a capture, a refund and a
// cancellation.
func (p *vippsPayment) report() *paymentReport {
	captured := p.Aggregate.Captured.Value
	report := &paymentReport{
		phase:    vippsStates[p.State],
		amount:   p.Amount.Value,
		currency: p.Amount.Currency,
		captured: captured,
		refunded: p.Aggregate.Refunded.Value,
		intentID: p.PSPReference,
	}
	switch {
	case p.State == "AUTHORIZED":
		report.authorized = max(p.Aggregate.Authorized.Value-captured-p.Aggregate.Cancelled.Value, 0)
		if report.authorized+captured == 0 {
			report.phase = phaseCancelled
		}
	case captured > 0:
		report.phase = phaseApproved
	case p.State == "CREATED" && isVippsURL(p.RedirectURL):
		report.url = p.RedirectURL
	}
	return report
}

// A vippsEvent is something that was done to a payment.
type vippsEvent struct {
	Reference    string     `json:"reference"`
	Name         string     `json:"name"`
	PSPReference string     `json:"pspReference"`
	Key          string     `json:"idempotencyKey"` // of the request; "": none
	Amount       vippsMoney `json:"amount"`
	At           time.Time  `json:"timestamp"`
	Success      bool       `json:"success"`
}

// vippsEventsOf returns the events of an attempt that have happened, in the order of the list. One that lacks what it
// needs is left out, since the amounts are known without it.
func vippsEventsOf(list []json.RawMessage, p *payment, currency string) (events []vippsEvent) {
	for _, text := range list {
		var e vippsEvent
		ours := json.Unmarshal(text, &e) == nil && e.Success && e.Reference == vippsReference(p.ID)
		amount := e.Amount.Currency == currency && e.Amount.Value >= 0 && e.Amount.Value <= maxVippsAmount
		if ours && amount && e.PSPReference != "" && !e.At.IsZero() {
			events = append(events, e)
		}
	}
	return events
}

// same reports whether two events are one, told twice.
func (e *vippsEvent) same(other *vippsEvent) bool {
	return e.Name == other.Name && e.PSPReference == other.PSPReference && e.At.Equal(other.At) &&
		e.Amount == other.Amount
}

// addVippsEvents adds what was done to a payment: the keys of our own operations, when it was captured, and each
// refund, ours first. A refund that was made in Vipps' portal has a key that is not ours, or none. A pspReference may
// be of several events.
func (r *paymentReport) addVippsEvents(events []vippsEvent) {
	var others []refundReport
	for i, e := range events {
		ours := validID("opr", e.Key)
		if ours && !slices.Contains(r.done, e.Key) {
			r.done = append(r.done, e.Key)
		}
		if e.Name == "CAPTURED" && e.At.After(r.capturedAt) {
			r.capturedAt = e.At
		}
		told := slices.ContainsFunc(events[:i], func(other vippsEvent) bool { return e.same(&other) })
		if e.Name != "REFUNDED" || e.Amount.Value <= 0 || told {
			continue
		}
		refund := refundReport{providerID: e.PSPReference, amount: e.Amount.Value, state: refundSucceeded, at: e.At,
			longID: fmt.Sprintf("%s/%s/%d", e.PSPReference, e.At.UTC().Format(time.RFC3339Nano), e.Amount.Value)}
		if ours {
			refund.operationID = e.Key
			r.refunds = append(r.refunds, refund)
		} else {
			others = append(others, refund)
		}
	}
	r.refunds = append(r.refunds, others...)
}

// Webhooks of Vipps MobilePay: their signatures, and the Webhooks API, which registers our webhook when an
// account is connected.

// notice implements provider. The signature covers the registered address of the webhook, whatever a proxy in
// front of this service has made of it. Vipps repeats a delivery for seven days, with the date of the first
// attempt, so the age is not checked.
func (v *vippsProvider) notice(
	c *unsealedConnection, r *http.Request, body []byte, _ time.Time,
) (paymentNotice, error) {
	if c.WebhookURL == nil || c.secrets.WebhookSecret == "" {
		return paymentNotice{}, errNotice
	}
	one := func(name string) string { // a header that appears only once
		if values := r.Header.Values(name); len(values) == 1 && len(values[0]) <= maxVippsHeader {
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
	var told vippsEvent
	if json.Unmarshal(body, &told) != nil {
		return paymentNotice{}, nil // it is signed by Vipps, which would repeat it for a week if it were refused
	}
	return paymentNotice{paymentID: vippsPaymentID(told.Reference)}, nil
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

// vippsPathID is the form of the id of a webhook or a ledger, which becomes part of a path.
var vippsPathID = lazyPattern(`^[A-Za-z0-9_-]{1,64}$`)

// connect implements provider. If the answer of the registration is lost, it removes what may have been
// registered.
func (v *vippsProvider) connect(ctx context.Context, c *unsealedConnection, webhookURL string) error {
	v.drop(c.ID, nil)
	body := bodyText(map[string]any{"url": webhookURL, "events": vippsEvents})
	var made struct{ ID, Secret string }
	err := v.request(ctx, c, http.MethodPost, vippsWebhooks, body, &made)
	if err == nil {
		if vippsPathID().MatchString(made.ID) && made.Secret != "" {
			c.Live, c.Name, c.WebhookID = v.base == vippsLive, c.secrets.MerchantSerial, &made.ID
			c.secrets.WebhookSecret = made.Secret
			return nil
		}
		err = malformedAnswer(http.StatusOK)
	}
	if outcome := vendorSaid(err); outcome == vendorUnknown || outcome == vendorBusy {
		if removed := v.removeWebhooks(ctx, c, webhookURL); removed != nil {
			return fmt.Errorf("%w; and a webhook at %s may be left at Vipps, to be removed there: %w",
				err, webhookURL, removed)
		}
	}
	return err
}

// A vippsWebhook is a webhook of a merchant.
type vippsWebhook struct{ ID, URL string }

// webhooks returns the webhooks of a merchant, ours and others'.
func (v *vippsProvider) webhooks(ctx context.Context, c *unsealedConnection) ([]vippsWebhook, error) {
	var list struct{ Webhooks *[]vippsWebhook }
	err := v.read(ctx, c, vippsWebhooks, &list)
	if err == nil && list.Webhooks == nil {
		err = malformedAnswer(http.StatusOK)
	}
	if err != nil {
		return nil, err
	}
	return *list.Webhooks, nil
}

// removeWebhooks removes the webhooks of a merchant that post to an address.
func (v *vippsProvider) removeWebhooks(ctx context.Context, c *unsealedConnection, webhookURL string) error {
	all, err := v.webhooks(ctx, c)
	for _, w := range all {
		if w.URL == webhookURL {
			if err := v.removeWebhook(ctx, c, w.ID); err != nil {
				return err
			}
		}
	}
	return err
}

// removeWebhook removes a webhook of a merchant, if it is there.
func (v *vippsProvider) removeWebhook(ctx context.Context, c *unsealedConnection, id string) error {
	if !vippsPathID().MatchString(id) {
		return malformedAnswer(0)
	}
	err := v.request(ctx, c, http.MethodDelete, vippsWebhooks+"/"+id, "", nil)
	if isMissing(err) {
		return nil
	}
	return err
}

// disconnect implements provider.
func (v *vippsProvider) disconnect(ctx context.Context, c *unsealedConnection) error {
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
func (v *vippsProvider) check(ctx context.Context, c *unsealedConnection) (lacks []string, err error) {
	v.drop(c.ID, nil)
	all, err := v.webhooks(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.WebhookID == nil || c.WebhookURL == nil ||
		!slices.Contains(all, vippsWebhook{*c.WebhookID, *c.WebhookURL}) {
		return nil, &outboundError{reason: "webhook_gone"}
	}
	return v.payoutLacks(ctx, c)
}

// The ledger of a sales unit, by Vipps MobilePay's Settlement and Report APIs, which exist in production only. What it
// says of a date never changes once it is told, and new kinds of entries come unannounced. We read the topic "funds",
// whose balance is what is paid out. What the topic "fees" lists is owed beside it, until fees-retained takes it from
// the funds or an invoice asks for it, so it names no money that the funds lack.

const (
	vippsLedgers   = "/settlement/v1/ledgers"
	maxVippsReport = 2 << 20 // bytes of a page, which has up to 1000 entries
	maxVippsCursor = 1000    // characters
	maxVippsName   = 100     // characters of what an entry is known by

	// How long after midnight UTC a ledger's date is over. It ends at midnight where the sales unit is, or by
	// agreement some hours later, such as at 04:00. Until then Vipps only answers that it is too early.
	vippsDateEnds = 6 * time.Hour
)

// ledger returns the id of the ledger of a connection's sales unit; "": there is none, or the keys may not read it,
// between which Vipps does not distinguish. Errors: those of read, and one with the reason several_ledgers.
func (v *vippsProvider) ledger(ctx context.Context, c *unsealedConnection) (id string, err error) {
	var list struct{ Items *[]struct{ LedgerID string } }
	query := url.Values{"settlesForRecipientHandles": {"api:" + c.secrets.MerchantSerial}}
	err = v.read(ctx, c, vippsLedgers+"?"+query.Encode(), &list)
	failed, _ := errors.AsType[*outboundError](err)
	switch {
	case failed != nil && failed.status == http.StatusNotFound: // of a gateway, too: nothing is lost by asking later
		return "", nil
	case err != nil:
		return "", err
	case list.Items == nil:
		return "", malformedAnswer(http.StatusOK)
	case len(*list.Items) == 0:
		return "", nil
	case len(*list.Items) > 1:
		return "", &outboundError{status: http.StatusOK, reason: "several_ledgers"}
	}
	if id = (*list.Items)[0].LedgerID; !vippsPathID().MatchString(id) {
		return "", malformedAnswer(http.StatusOK)
	}
	return id, nil
}

// A vippsReport is a page of what is in a ledger on a date.
type vippsReport struct {
	Items  []vippsEntry
	More   *bool `json:"hasMore"`
	Cursor string
	Later  bool `json:"tryLater"` // the date is not over, which may last for 60 days
}

// A vippsEntry is an entry of a ledger.
type vippsEntry struct {
	PSPReference string // of what has moved; a dispute has that of the capture
	Reference    string // of the payment; of a payout, what the bank shows
	Type         string `json:"entryType"`
	Currency     string
	Amount       int64
	Time         time.Time
}

// payouts implements provider. The cursor is the next date to read, "2026-11-25", and inside a date also the page,
// "2026-11-25 PAGE". A sales unit may have no ledger before its first sale.
func (v *vippsProvider) payouts(
	ctx context.Context, c *unsealedConnection, cursor, from string, now time.Time,
) (*payoutNews, error) {
	date, at, _ := strings.Cut(cmp.Or(cursor, from), " ")
	day, ok := parseDate(date)
	if !ok {
		return nil, malformedAnswer(0)
	}
	today := newStamp(now.Add(-vippsDateEnds)).day()
	news := &payoutNews{cursor: cursor}
	if date >= today {
		return news, nil
	}
	ledger, err := v.ledger(ctx, c)
	if err != nil {
		return nil, err
	}
	if ledger == "" {
		return news, nil
	}
	page, err := v.readReport(ctx, c, ledger, date, at)
	if err != nil {
		return nil, err
	}
	if page.Later {
		return news, nil
	}
	rows, ok := page.rows(date)
	if !ok || *page.More && page.Cursor == at {
		return nil, malformedAnswer(http.StatusOK)
	}
	if news.rows = rows; *page.More {
		news.cursor, news.more = date+" "+page.Cursor, true
	} else {
		news.cursor = day.after(days(1)).day()
		news.more = news.cursor < today
	}
	return news, nil
}

// readReport reads a page of a ledger's funds on a date; "": the first.
func (v *vippsProvider) readReport(
	ctx context.Context, c *unsealedConnection, ledger, date, at string,
) (page vippsReport, err error) {
	path := "/report/v2/ledgers/" + ledger + "/funds/dates/" + date
	if at != "" {
		path += "?" + url.Values{"cursor": {at}}.Encode()
	}
	q := outboundRequest{method: http.MethodGet, url: v.base + path, largest: maxVippsReport}
	answer, err := v.ask(ctx, c, q, false)
	if err == nil && json.Unmarshal(answer.body, &page) != nil {
		err = malformedAnswer(answer.status)
	}
	return page, err
}

// rows returns the rows of a page of a date, and false for a page that can't be right.
func (p *vippsReport) rows(date string) (rows []ledgerRow, ok bool) {
	visible := p.Cursor != "" && len(p.Cursor) <= maxVippsCursor && strings.IndexFunc(p.Cursor, isNotVisible) < 0
	if p.More == nil || *p.More && !visible {
		return nil, false
	}
	for i := range p.Items {
		row, ok := p.Items[i].row(date)
		if !ok {
			return nil, false
		}
		rows = append(rows, row)
	}
	return rows, true
}

// vippsCategories maps the types of entries of funds to ours. The invoice of fees is of the topic of fees.
var vippsCategories = map[string]string{
	"capture": rowPayment, "refund": rowRefund,
	"retained-disputed-capture": rowDispute, "returned-disputed-capture": rowDispute,
	"fees-retained": rowFee, "service-fee": rowFee,
	vippsAborted: rowReturned,
	"correction": rowCorrection, "top-up": rowCorrection, "credit-note": rowCorrection,
}

// The types of entries about payouts. Scheduled is not paid, and nothing reports that it was.
const (
	vippsScheduled = "payout-scheduled"
	vippsAborted   = "payout-aborted"
)

// row returns what an entry of a date says, and false for one that can't be right. Its id has the time, since a
// capture may be disputed, and put back, more than once.
func (e *vippsEntry) row(date string) (r ledgerRow, ok bool) {
	if !isVippsCode(e.Type) || len(e.PSPReference) > maxVippsName ||
		strings.IndexFunc(e.PSPReference, isNotVisible) >= 0 || len(e.Currency) != 3 ||
		strings.Trim(e.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || !inBounds(e.Amount) ||
		e.Time.UTC().Year() < 1970 || e.Time.UTC().Year() > lastYear {
		return r, false
	}
	r = ledgerRow{id: e.Type + "/" + e.PSPReference + "/" + e.Time.UTC().Format(time.RFC3339Nano),
		category: cmp.Or(vippsCategories[e.Type], rowUnknown), kind: e.Type, amount: e.Amount, currency: e.Currency,
		at: e.Time.UTC(), paymentID: vippsPaymentID(e.Reference)}
	switch r.category {
	case rowFee:
		r.amount, r.fee = 0, -e.Amount
	case rowRefund, rowReturned:
		r.source = e.PSPReference
	case rowDispute:
		if r.paymentID != "" {
			r.source = "dispute-" + r.paymentID // what was taken and what was put back are of one
		}
	}
	if e.Type == vippsScheduled {
		r.schedules = &payoutReport{providerID: e.PSPReference, amount: -e.Amount, currency: e.Currency, arrival: date,
			automatic: true, status: e.Type, complete: true}
	}
	return r, e.Type != vippsScheduled || e.PSPReference != ""
}

// payoutRows implements provider. There are none: what is in a payout came with payouts before it was scheduled.
func (v *vippsProvider) payoutRows(
	context.Context, *unsealedConnection, string, string,
) (rows []ledgerRow, next string, err error) {
	return nil, "", nil
}

// payoutLacks returns what the keys lack that only payouts need.
func (v *vippsProvider) payoutLacks(ctx context.Context, c *unsealedConnection) (lacks []string, err error) {
	if !c.Live {
		return nil, nil // there are no settlements for tests
	}
	id, err := v.ledger(ctx, c)
	failed, _ := errors.AsType[*outboundError](err)
	if err == nil && id == "" || failed != nil && failed.status == http.StatusForbidden {
		return []string{"the reports of its settlements"}, nil
	}
	return nil, err
}
