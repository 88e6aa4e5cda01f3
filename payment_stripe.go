package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The client of Stripe (docs.stripe.com/api): Checkout Sessions, whose PaymentIntents we capture ourselves. This
// file has the requests and the webhooks; payment_stripe.go reads how an attempt stands at Stripe.

const providerStripe = "stripe"

// stripeDeclared declares Stripe.
var stripeDeclared = paymentProvider{
	name: providerStripe, methods: []string{methodCard, methodTwint},
	client: func(out *outbound, base string, _ func() time.Time) provider { return newStripeProvider(out, base) },
	secrets: func(s *connectionSecrets) map[string]*string {
		return map[string]*string{"key": &s.Key}
	},
	checks: func(*connectionSecrets) error { return nil },
	same: func(c *unsealedConnection) error {
		_, err := stripeMode(c.secrets.Key)
		return err
	},
	disputes: true,
}

const (
	stripeBase = "https://api.stripe.com"

	// stripeVersion is the version of Stripe's API that requests, answers and webhooks use. It is the one that
	// stripe-mock 0.203.0 describes, against which the tests check all requests.
	stripeVersion = "2026-08-26.dahlia"

	maxStripeAnswer = 1 << 20    // bytes; disputes come with their evidence
	maxStripeID     = 255        // characters, as Stripe says
	maxStripeAmount = 99_999_999 // of a charge: eight digits
	maxTwintAmount  = 500_000    // 5,000.00, in Swiss francs only (docs.stripe.com/payments/twint)

	// Stripe lets a session live for 30 minutes to 24 hours from when Stripe creates it. That is a little later
	// than its attempt, and later still if Stripe did not answer at first, so the minimum has a margin.
	minStripeSession = 40 * time.Minute
	maxStripeSession = 24 * time.Hour

	stripeTolerance     = 300 // seconds that a webhook may be old, or early
	maxStripeSignature  = 4096
	maxStripeSignatures = 16 // there is one for each secret in use, while secrets are rotated
)

// stripeMinimum is the least amount of a charge by currency, in its minor unit (docs.stripe.com/currencies,
// "Minimum and maximum charge amounts"). Stripe compares in the currency that an account is paid out in, so
// near the minimum it may still refuse. Currencies that are not here are not offered.
var stripeMinimum = map[string]int64{
	"AED": 200, "AUD": 50, "BRL": 50, "CAD": 50, "CHF": 50, "CZK": 1500, "DKK": 250, "EUR": 50, "GBP": 30,
	"HKD": 400, "MXN": 1000, "MYR": 200, "NOK": 300, "NZD": 50, "PLN": 200, "RON": 200, "SEK": 300,
	"SGD": 50, "THB": 1000, "USD": 50,
}

// stripeEvents are the events that a connection's webhook is registered for.
var stripeEvents = []string{
	"checkout.session.completed", "checkout.session.expired",
	"payment_intent.amount_capturable_updated", "payment_intent.canceled", "payment_intent.succeeded",
	"refund.created", "refund.updated", "refund.failed", "charge.refunded",
	"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.funds_reinstated",
	"charge.dispute.closed",
	"payout.created", "payout.updated", "payout.paid", "payout.failed", "payout.canceled",
	"payout.reconciliation_completed",
}

// stripeSecretPrefix is the prefix of the secrets that Stripe signs its webhooks with.
const stripeSecretPrefix = "whsec_"

// stripePermissions is what a restricted key needs, by the names on Stripe's pages. Without Payouts and Balance
// Transaction Sources only payouts can't be read.
const stripePermissions = "Checkout Sessions: write, PaymentIntents: write, Charges and Refunds: write, " +
	"Disputes: read, Balance: read, Payouts: read, Balance Transaction Sources: read, Webhook Endpoints: write"

// A stripeProvider is the client of Stripe. Make one with newStripeProvider.
type stripeProvider struct {
	outbound *outbound
	base     string // without a slash at its end
}

// newStripeProvider returns the client of Stripe. base is its address: stripeBase, except in tests and in the
// demo.
func newStripeProvider(o *outbound, base string) *stripeProvider {
	return &stripeProvider{o, strings.TrimSuffix(base, "/")}
}

var _ provider = (*stripeProvider)(nil)

// takes implements provider.
func (s *stripeProvider) takes(method, currency string, amount int64) bool {
	least, ok := stripeMinimum[currency]
	if method == methodTwint {
		return currency == "CHF" && amount >= least && amount <= maxTwintAmount
	}
	return ok && method == methodCard && amount >= least && amount <= maxStripeAmount
}

// reserves implements provider. TWINT reserves nothing.
func (s *stripeProvider) reserves(string) time.Duration { return cardReservation }

// readsFirst implements provider.
func (s *stripeProvider) readsFirst() bool { return false }

// The paths of Stripe's API.
const (
	stripeSessions = "/v1/checkout/sessions"
	stripeIntents  = "/v1/payment_intents"
	stripeRefunds  = "/v1/refunds"
	stripeDisputes = "/v1/disputes"
	stripeWebhooks = "/v1/webhook_endpoints"
)

// call implements provider.
func (s *stripeProvider) call(op *paymentOperation, p *payment, o *order, returnURL string) providerCall {
	session := stripeSessions + "/" + url.PathEscape(valueOr(p.SessionID, ""))
	intent := stripeIntents + "/" + url.PathEscape(valueOr(p.IntentID, ""))
	path, form := "", url.Values{}
	switch op.Kind {
	case opCreate:
		path, form = stripeSessions, stripeSessionForm(op, p, o, returnURL)
	case opCapture:
		path = intent + "/capture"
		form.Set("amount_to_capture", strconv.FormatInt(op.Amount, 10))
	case opCancel:
		path = intent + "/cancel"
	case opExpire:
		path = session + "/expire"
	case opRefund:
		path = stripeRefunds
		form.Set("payment_intent", valueOr(p.IntentID, ""))
		form.Set("amount", strconv.FormatInt(op.Amount, 10))
		form.Set("metadata[payment]", p.ID)
		form.Set("metadata[refund]", valueOr(op.RefundID, ""))
	}
	return providerCall{http.MethodPost, path, stripeFormType, form.Encode()}
}

const stripeFormType = "application/x-www-form-urlencoded"

// stripeSessionForm returns the parameters of a new session. They contain nothing about the customer.
func stripeSessionForm(op *paymentOperation, p *payment, o *order, returnURL string) url.Values {
	expires := o.ExpiresAt.Time
	if earliest := p.CreatedAt.Add(minStripeSession); expires.Before(earliest) {
		expires = earliest
	}
	if latest := p.CreatedAt.Add(maxStripeSession); expires.After(latest) {
		expires = latest
	}
	form := url.Values{}
	for name, value := range map[string]string{
		"mode":                                          "payment",
		"payment_method_types[0]":                       string(p.Method),
		"line_items[0][quantity]":                       "1",
		"line_items[0][price_data][currency]":           strings.ToLower(p.Currency),
		"line_items[0][price_data][unit_amount]":        strconv.FormatInt(op.Amount, 10),
		"line_items[0][price_data][product_data][name]": titleOf(o),
		"payment_intent_data[description]":              titleOf(o),
		"payment_intent_data[metadata][order]":          o.ID,
		"payment_intent_data[metadata][payment]":        p.ID,
		"adaptive_pricing[enabled]":                     "false",
		"client_reference_id":                           p.ID,
		"metadata[payment]":                             p.ID,
		"success_url":                                   returnURL,
		"cancel_url":                                    leftURL(returnURL),
		"expires_at":                                    strconv.FormatInt(expires.Unix(), 10),
	} {
		form.Set(name, value)
	}
	if !p.capturedFirst() { // Stripe refuses a capture_method with TWINT
		form.Set("payment_intent_data[capture_method]", "manual")
	}
	if o.Reference != nil {
		form.Set("payment_intent_data[metadata][reference]", *o.Reference)
	}
	return form
}

// read sends a request and decodes the answer. key is its idempotency key; "": none. It returns the status of the
// answer. Errors: an *outboundError.
func (s *stripeProvider) read(
	ctx context.Context, c *unsealedConnection, key string, call providerCall, into any,
) (status int, err error) {
	header := http.Header{
		"Authorization":  {"Bearer " + c.secrets.Key},
		"Stripe-Version": {stripeVersion},
	}
	if call.ContentType != "" {
		header.Set("Content-Type", call.ContentType)
	}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	largest := int64(maxStripeAnswer)
	if strings.HasPrefix(call.Path, stripeMoves) {
		largest = maxStripeMoves
	}
	q := outboundRequest{call.Method, s.base + call.Path, header, []byte(call.Body), largest}
	answer, err := s.outbound.ask(ctx, q, time.Now(), classifyStripe)
	if err != nil {
		if failed, ok := err.(*outboundError); ok && answer != nil && call.Path == stripeSessions {
			failed.describeStripe(c, answer.body)
		}
		return 0, err
	}
	if json.Unmarshal(answer.body, into) != nil {
		return answer.status, malformedAnswer(answer.status)
	}
	return answer.status, nil
}

// A stripeObject is what the answers to operations have in common, and those about webhook endpoints.
type stripeObject struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Status    string `json:"status"`
	Reference string `json:"client_reference_id"` // of a session
	URL       string `json:"url"`                 // of a session or a webhook endpoint
	Amount    int64  `json:"amount"`              // of a refund
	Secret    string `json:"secret"`              // of a webhook endpoint, only in the answer that creates it
}

// send implements provider.
func (s *stripeProvider) send(
	ctx context.Context, c *unsealedConnection, op *paymentOperation, call providerCall,
) (sent sentOperation, err error) {
	var done stripeObject
	if sent.status, err = s.read(ctx, c, op.ID, call, &done); err != nil {
		return sent, err
	}
	if !done.answers(op, call) {
		return sent, malformedAnswer(sent.status)
	}
	switch op.Kind {
	case opCreate:
		sent.sessionID, sent.url = done.ID, done.URL
	case opRefund:
		sent.refundID = done.ID
	}
	return sent, nil
}

// answers reports whether an object is what the request of an operation asks for.
func (o *stripeObject) answers(op *paymentOperation, call providerCall) bool {
	of := func(object, prefix string) bool { return o.Object == object && isStripeID(prefix, o.ID) }
	named := func(action string) bool { return strings.HasSuffix(call.Path, "/"+o.ID+"/"+action) }
	switch op.Kind {
	case opCreate:
		return of("checkout.session", "cs_") && o.Reference == op.PaymentID && isWebAddress(o.URL)
	case opCapture:
		return of("payment_intent", "pi_") && named("capture") && o.Status == "succeeded"
	case opCancel:
		return of("payment_intent", "pi_") && named("cancel") && o.Status == "canceled"
	case opExpire:
		return of("checkout.session", "cs_") && named("expire") && o.Status == "expired"
	case opRefund:
		return o.Object == "refund" && isStripeRefundID(o.ID) && o.Amount == op.Amount
	}
	return false
}

// isStripeID reports whether s has the form of one of Stripe's ids, with that prefix.
func isStripeID(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && rest != "" && len(s) <= maxStripeID && strings.IndexFunc(rest, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// isWebAddress reports whether a browser can be sent to an address.
func isWebAddress(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" &&
		strings.IndexFunc(address, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// classifyStripe sets the outcome and the reason of an answer whose status is not 2xx. The reason is Stripe's code or
// type, never its message, which may contain details of a card. A 409 means that another request with the key is in
// progress, or that an object is locked; Stripe keeps neither it nor a 429 under the key.
func classifyStripe(answer *outboundAnswer, failed *outboundError) {
	var said struct {
		Error *struct {
			Type string `json:"type"`
			Code string `json:"code"`
		} `json:"error"`
	}
	own := json.Unmarshal(answer.body, &said) == nil && said.Error != nil
	if own {
		code := said.Error.Code
		if said.Error.Type == "idempotency_error" && answer.status == http.StatusBadRequest {
			code = said.Error.Type
		}
		failed.reason = stripeName(code, stripeName(said.Error.Type, failed.reason))
	}
	failed.outcome = answer.outcome(own)
	switch {
	case failed.outcome == vendorMissing && failed.reason != "resource_missing": // of something else in the request
		failed.outcome = vendorRefused
	case answer.status >= 500 && answer.header.Get("Idempotent-Replayed") == "true":
		failed.outcome = vendorStale
	}
}

// describeStripe adds what Stripe says of a new session that it refuses, which can hold nothing of a card.
func (e *outboundError) describeStripe(c *unsealedConnection, body []byte) {
	var said struct {
		Error struct{ Message, Param string }
	}
	json.Unmarshal(body, &said) // what has another type stays empty
	e.detail, e.ofOrder = c.words(said.Error.Message), orderOnly().MatchString(e.reason+" "+said.Error.Param)
}

// get reads an object, or a page of a list.
func (s *stripeProvider) get(
	ctx context.Context, c *unsealedConnection, path string, query url.Values, into any,
) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	_, err := s.read(ctx, c, "", providerCall{Method: http.MethodGet, Path: path}, into)
	return err
}

// notice implements provider. A body that is signed but is not an event names no attempt.
func (s *stripeProvider) notice(
	c *unsealedConnection, r *http.Request, body []byte, now time.Time,
) (paymentNotice, error) {
	headers := r.Header.Values("Stripe-Signature")
	if len(headers) != 1 || !verifyStripe(c.secrets.WebhookSecret, headers[0], body, now) {
		return paymentNotice{}, errNotice
	}
	return readStripeEvent(body), nil
}

// verifyStripe checks the header Stripe-Signature, "t=1700000000,v1=…": each v1 is the HMAC-SHA-256, in
// hexadecimal, of t, a dot and the body, with the secret's whole text as its key. One of them must match, and t
// must be within stripeTolerance of now. Other schemes, such as v0, are ignored.
func verifyStripe(secret, header string, body []byte, now time.Time) bool {
	sent, signatures := "", []string(nil)
	for item := range strings.SplitSeq(header[:min(len(header), maxStripeSignature)], ",") {
		name, value, ok := strings.Cut(item, "=")
		switch {
		case !ok, name == "t" && sent != "":
			return false
		case name == "t":
			sent = value
		case name == "v1":
			signatures = append(signatures, value)
		}
	}
	seconds, err := strconv.ParseInt(sent, 10, 64)
	if secret == "" || err != nil || sent != strconv.FormatInt(seconds, 10) ||
		len(header) > maxStripeSignature || len(signatures) > maxStripeSignatures {
		return false
	}
	if at := now.Unix(); seconds < at-stripeTolerance || seconds > at+stripeTolerance {
		return false
	}
	want := signStripe(secret, seconds, body)
	return slices.ContainsFunc(signatures, func(signature string) bool {
		return hmac.Equal([]byte(signature), want)
	})
}

// signStripe returns the v1 signature of a webhook that is sent at a time in Unix seconds.
func signStripe(secret string, at int64, body []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.", at)
	mac.Write(body)
	return hex.AppendEncode(nil, mac.Sum(nil))
}

// readStripeEvent returns what the event is about that is a webhook's body. Its object may be of many kinds, so
// members that are missing, or of another type, are ignored.
func readStripeEvent(body []byte) paymentNotice {
	var e struct {
		Type string `json:"type"`
		Data struct {
			Object map[string]json.RawMessage `json:"object"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &e) != nil || !isStripeEvent(e.Type) {
		return paymentNotice{}
	}
	if strings.HasPrefix(e.Type, "payout.") {
		return paymentNotice{payout: true}
	}
	text := func(name string) (s string) {
		json.Unmarshal(e.Data.Object[name], &s) // s stays empty if this fails
		return s
	}
	n := paymentNotice{}
	var metadata struct {
		Payment string `json:"payment"`
	}
	if json.Unmarshal(e.Data.Object["metadata"], &metadata) != nil || !validID("pay", metadata.Payment) {
		metadata.Payment = text("client_reference_id")
	}
	if validID("pay", metadata.Payment) {
		n.paymentID = metadata.Payment
		return n
	}
	intent := text("payment_intent")
	if text("object") == "payment_intent" {
		intent = text("id")
	}
	if isStripeID("pi_", intent) {
		n.intentID = intent
	}
	return n
}

// isStripeEvent reports whether s has the form of a type of event: "charge.dispute.created".
func isStripeEvent(s string) bool {
	const maxType = 100
	return s != "" && len(s) <= maxType && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_.") == ""
}

// connect implements provider. Besides the errors of outbound and of Stripe it may return one that says how to
// make the key.
func (s *stripeProvider) connect(ctx context.Context, c *unsealedConnection, webhookURL string) error {
	live, err := stripeMode(c.secrets.Key)
	if err != nil {
		return err
	}
	if err := s.readsAll(ctx, c); err != nil {
		return err
	}
	form := url.Values{"url": {webhookURL}, "api_version": {stripeVersion}}
	for i, event := range stripeEvents {
		form.Set(fmt.Sprintf("enabled_events[%d]", i), event)
	}
	var made stripeObject
	call := providerCall{http.MethodPost, stripeWebhooks, stripeFormType, form.Encode()}
	key := c.ID             // so that a repeated call, after a lost answer, makes no second webhook
	if c.WebhookID != nil { // a new webhook is wanted, which that key would not make
		key = newID("opr", time.Now())
	}
	if _, err := s.read(ctx, c, key, call, &made); err != nil {
		return fmt.Errorf("registering the webhook: %w", err)
	}
	if made.Object != "webhook_endpoint" || !isStripeID("we_", made.ID) || made.URL != webhookURL ||
		!strings.HasPrefix(made.Secret, stripeSecretPrefix) {
		return fmt.Errorf("registering the webhook: %w", malformedAnswer(http.StatusOK))
	}
	c.Live, c.WebhookID, c.secrets.WebhookSecret = live, &made.ID, made.Secret
	return nil
}

// checkMethods implements provider. Stripe tells whether TWINT was switched on when a session asks for it, which is
// expired at once.
func (s *stripeProvider) checkMethods(ctx context.Context, c *unsealedConnection, returnURL string) error {
	if !slices.Contains(c.Methods, methodTwint) {
		return nil
	}
	now := time.Now()
	p := &payment{ID: newID("pay", now), Method: methodTwint, Currency: "CHF", CreatedAt: newStamp(now)}
	form := stripeSessionForm(&paymentOperation{Amount: 100}, p, &order{ID: "test"}, returnURL)
	var made stripeObject
	call := providerCall{http.MethodPost, stripeSessions, stripeFormType, form.Encode()}
	if _, err := s.read(ctx, c, newID("opr", now), call, &made); err != nil {
		return fmt.Errorf("trying TWINT (is it switched on at Stripe, under Settings, Payment methods?): %w", err)
	}
	if !isStripeID("cs_", made.ID) {
		return fmt.Errorf("trying TWINT: %w", malformedAnswer(http.StatusOK))
	}
	call = providerCall{http.MethodPost, stripeSessions + "/" + made.ID + "/expire", stripeFormType, ""}
	_, err := s.read(ctx, c, newID("opr", now), call, &made)
	return err
}

// stripeMode reports whether a key is a live one. It returns an error that says how to make one unless it is
// restricted.
func stripeMode(key string) (live bool, err error) {
	live = isStripeID("rk_live_", key)
	switch {
	case strings.HasPrefix(key, "sk_"):
		return false, errors.New("this is a secret key, which may do everything at Stripe: " +
			"make a restricted key (rk_live_…) with the permissions " + stripePermissions)
	case !live && !isStripeID("rk_test_", key):
		return false, errors.New("this is not a restricted key of Stripe (rk_live_… or rk_test_…): " +
			"make one with the permissions " + stripePermissions)
	}
	return live, nil
}

// readsAll checks that the key may list each kind of object. It lists those created from tomorrow on, of which
// there are none, so that the answers are small.
func (s *stripeProvider) readsAll(ctx context.Context, c *unsealedConnection) error {
	tomorrow := strconv.FormatInt(time.Now().Add(days(1)).Unix(), 10)
	for _, path := range []string{stripeSessions, stripeIntents, stripeRefunds, stripeDisputes} {
		var page stripePage[stripeObject]
		err := s.get(ctx, c, path, url.Values{"limit": {"1"}, "created[gte]": {tomorrow}}, &page)
		if err == nil && page.Object != "list" {
			err = malformedAnswer(http.StatusOK)
		}
		if err != nil {
			return fmt.Errorf("reading %s (the key needs the permissions %s): %w", path, stripePermissions, err)
		}
	}
	return nil
}

// disconnect implements provider. A webhook that is gone already is no error.
func (s *stripeProvider) disconnect(ctx context.Context, c *unsealedConnection) error {
	if c.WebhookID == nil {
		return nil
	}
	call := providerCall{Method: http.MethodDelete, Path: stripeWebhooks + "/" + url.PathEscape(*c.WebhookID)}
	_, err := s.read(ctx, c, "", call, new(stripeObject))
	if isMissing(err) {
		return nil
	}
	return err
}

// check implements provider. An *outboundError may also have the reason webhook_gone, webhook_disabled or
// webhook_address.
func (s *stripeProvider) check(ctx context.Context, c *unsealedConnection) (lacks []string, err error) {
	if err := s.readsAll(ctx, c); err != nil {
		return nil, err
	}
	var found stripeObject
	err = s.get(ctx, c, stripeWebhooks+"/"+url.PathEscape(valueOr(c.WebhookID, "")), nil, &found)
	switch {
	case c.WebhookID == nil || isMissing(err):
		return nil, &outboundError{status: http.StatusNotFound, reason: "webhook_gone"}
	case err != nil:
		return nil, fmt.Errorf("reading the webhook: %w", err)
	case found.Object != "webhook_endpoint" || found.ID != *c.WebhookID:
		return nil, fmt.Errorf("reading the webhook: %w", malformedAnswer(http.StatusOK))
	case found.Status != "enabled":
		return nil, &outboundError{status: http.StatusOK, reason: "webhook_disabled"}
	case c.WebhookURL != nil && found.URL != *c.WebhookURL:
		return nil, &outboundError{status: http.StatusOK, reason: "webhook_address"}
	}
	return s.payoutLacks(ctx, c)
}

// How an attempt stands at Stripe: its session, the session's PaymentIntent with its charge, and the refunds and
// disputes of that. Answers are decoded by encoding/json rather than parseJSON, since disputes are nested deeper
// than the JSON that our own callers may send; a member of a wrong type makes the answer malformed.

const (
	// The pages of lists are small enough for outbound to read them whole: a session has some 4 KB, and a
	// dispute may have long texts of evidence. A charge seldom has two disputes.
	stripeSessionsPage = 10
	stripeRefundsPage  = 20
	stripeDisputesPage = 1
	maxStripePages     = 50

	// An unknown session was requested at most keysLast after its attempt was made, give or take this much.
	stripeClockSkew = 5 * time.Minute
)

// A stripePage is one page of a list at Stripe.
type stripePage[T any] struct {
	Object string `json:"object"` // "list"
	Data   []T    `json:"data"`
	More   bool   `json:"has_more"`
}

// valid reports whether a page can be one of at most size elements.
func (p *stripePage[T]) valid(size int) bool {
	return p.Object == "list" && len(p.Data) <= size && (!p.More || len(p.Data) > 0)
}

// A stripeSession is a Checkout Session, expanded to its PaymentIntent and that to its latest charge.
type stripeSession struct {
	stripeObject
	Total    *int64        `json:"amount_total"`
	Currency string        `json:"currency"`
	Intent   *stripeIntent `json:"payment_intent"` // nil until the guest has tried to pay
}

// A stripeIntent is a PaymentIntent.
type stripeIntent struct {
	ID          string        `json:"id"`
	Object      string        `json:"object"`
	Status      string        `json:"status"`
	Amount      int64         `json:"amount"`
	Capturable  int64         `json:"amount_capturable"`
	Received    int64         `json:"amount_received"`
	Currency    string        `json:"currency"`
	CancelledBy string        `json:"cancellation_reason"`
	Charge      *stripeCharge `json:"latest_charge"`
	LastError   struct {
		Code string `json:"code"`
	} `json:"last_payment_error"`
}

// A stripeCharge is the latest charge of a PaymentIntent: that of the last card that was tried.
type stripeCharge struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Amount   int64  `json:"amount"`
	Captured int64  `json:"amount_captured"`
	Refunded int64  `json:"amount_refunded"`
	Disputed bool   `json:"disputed"`

	// What it has moved of the balance: null until it is captured, then an id or, if it is asked for, an object.
	Moved json.RawMessage `json:"balance_transaction"`

	Details struct {
		Card struct {
			CaptureBefore int64 `json:"capture_before"` // Unix seconds; 0: not known
		} `json:"card"`
	} `json:"payment_method_details"`
}

// fetchStatus implements provider.
func (s *stripeProvider) fetchStatus(ctx context.Context, c *unsealedConnection, p *payment) (*paymentReport, error) {
	id := valueOr(p.SessionID, "")
	if id == "" {
		found, err := s.findSession(ctx, c, p)
		if err != nil || found == "" {
			return &paymentReport{phase: phaseUnknown}, err
		}
		id = found
	}
	session, err := s.readSession(ctx, c, id, p.CapturedAt.IsZero())
	if isMissing(err) {
		return &paymentReport{phase: phaseUnknown}, nil
	}
	if err != nil {
		return nil, err
	}
	report, ok := session.report(id, p)
	if !ok {
		return nil, malformedAnswer(http.StatusOK)
	}
	if i := session.Intent; i != nil && i.Charge != nil && report.captured > 0 {
		charge := i.Charge
		if charge.Refunded > 0 || !p.live() { // Refunded no longer includes those that failed
			if err := s.readRefunds(ctx, c, report, charge); err != nil {
				return nil, err
			}
		}
		if charge.Disputed {
			if err := s.readDisputes(ctx, c, report); err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// readSession reads a session with its intent, the intent's latest charge and, if moved is true, what that has moved
// of the balance: nothing else tells when a card was captured. A key that may not read this gets the rest.
func (s *stripeProvider) readSession(
	ctx context.Context, c *unsealedConnection, id string, moved bool,
) (session *stripeSession, err error) {
	path, expand := stripeSessions+"/"+url.PathEscape(id), "payment_intent.latest_charge"
	if session = new(stripeSession); moved {
		err = s.get(ctx, c, path, url.Values{"expand[]": {expand + ".balance_transaction"}}, session)
		if failed, ok := errors.AsType[*outboundError](err); !ok || failed.status != http.StatusForbidden {
			return session, err
		}
	}
	return session, s.get(ctx, c, path, url.Values{"expand[]": {expand}}, session)
}

// capturedAt returns when a charge was captured, as far as was asked for and is told; zero: it is not.
func (c *stripeCharge) capturedAt() time.Time {
	var moved struct {
		Created int64 `json:"created"` // Unix seconds
	}
	if json.Unmarshal(c.Moved, &moved) != nil || moved.Created == 0 || !isStripeTime(moved.Created) {
		return time.Time{}
	}
	return time.Unix(moved.Created, 0).UTC()
}

// report returns what a session says of an attempt, without refunds and disputes. It reports false for a session
// that belongs to another attempt, or that can't be right.
func (s *stripeSession) report(id string, p *payment) (*paymentReport, bool) {
	if s.Object != "checkout.session" || s.ID != id || !isStripeID("cs_", id) || s.Reference != p.ID ||
		s.Total == nil || *s.Total < 0 || len(s.Currency) != 3 {
		return nil, false
	}
	phase, ok := s.phase()
	if !ok {
		return nil, false
	}
	r := &paymentReport{
		phase: phase, sessionID: s.ID, amount: *s.Total, currency: strings.ToUpper(s.Currency),
	}
	if phase == phaseOpen && isWebAddress(s.URL) {
		r.url = s.URL
	}
	i := s.Intent
	if i == nil {
		return r, p.IntentID == nil
	}
	if !i.valid() || i.Currency != s.Currency || p.IntentID != nil && *p.IntentID != i.ID {
		return nil, false
	}
	if r.intentID, r.captured = i.ID, i.Received; i.Charge != nil {
		r.capturedAt = i.Charge.capturedAt()
	}
	if i.Status == "requires_capture" {
		r.authorized = i.Capturable
		if i.Charge != nil && i.Charge.Details.Card.CaptureBefore > 0 {
			r.captureBefore = time.Unix(i.Charge.Details.Card.CaptureBefore, 0).UTC()
		}
	}
	if phase == phaseFailed {
		r.reason = stripeName(i.LastError.Code, reasonDeclined)
	}
	return r, true
}

// valid reports whether an intent's amounts and its charge can be right.
func (i *stripeIntent) valid() bool {
	c := i.Charge
	return i.Object == "payment_intent" && isStripeID("pi_", i.ID) &&
		i.Capturable >= 0 && i.Capturable <= i.Amount && i.Received >= 0 && i.Received <= i.Amount &&
		(c == nil || c.Object == "charge" && c.Captured >= 0 && c.Captured <= c.Amount && c.Refunded >= 0 &&
			isStripeTime(c.Details.Card.CaptureBefore))
}

// isStripeTime reports whether Unix seconds are a time that can be written with a four-digit year: until 9999.
func isStripeTime(seconds int64) bool { return seconds >= 0 && seconds <= 253_402_300_799 }

// phase returns the phase of an attempt, from the states of its session and its PaymentIntent. While the session
// is open, a card that was declined, or whose bank asks the guest for something, leaves the attempt open. It
// reports false for states that are unknown or contradict each other.
func (s *stripeSession) phase() (paymentPhase, bool) {
	if s.Status != "open" && s.Status != "complete" && s.Status != "expired" {
		return phaseUnknown, false
	}
	if s.Intent != nil {
		switch s.Intent.Status {
		case "requires_capture", "succeeded":
			return phaseApproved, true
		case "canceled":
			switch s.Intent.CancelledBy {
			case "automatic", "expired": // its authorisation has lapsed
				return phaseExpired, true
			}
			if s.Status == "expired" { // which also cancels the intent of a card that was declined
				return phaseExpired, true
			}
			return phaseCancelled, true
		case "requires_payment_method", "requires_confirmation", "requires_action", "processing":
		default:
			return phaseUnknown, false
		}
	}
	switch s.Status {
	case "open":
		return phaseOpen, true
	case "expired":
		if s.Intent != nil && (s.Intent.Status == "processing" || s.Intent.Status == "requires_action") {
			return phaseOpen, true // the bank may still say yes
		}
		return phaseExpired, true
	}
	if s.Intent != nil && s.Intent.Status == "requires_payment_method" {
		return phaseFailed, true
	}
	return phaseOpen, s.Intent != nil
}

// findSession looks for the session of an attempt whose creation was never answered. Stripe can't list sessions
// by our id, so it lists those that were created in the period in which ours was requested. If an attempt has
// several, a complete one goes first, then an open one. It returns "" if there is none. Errors: those of read,
// and one with the reason too_many_sessions.
func (s *stripeProvider) findSession(ctx context.Context, c *unsealedConnection, p *payment) (id string, err error) {
	query := url.Values{
		"created[gte]": {strconv.FormatInt(p.CreatedAt.Add(-stripeClockSkew).Unix(), 10)},
		"created[lte]": {strconv.FormatInt(p.CreatedAt.Add(keysLast+stripeClockSkew).Unix(), 10)},
	}
	rank, best := map[string]int{"expired": 1, "open": 2, "complete": 3}, 0
	more := &outboundError{status: http.StatusOK, reason: "too_many_sessions"}
	err = readList(ctx, s, c, stripeSessions, query, stripeSessionsPage, more, func(o *stripeObject) (string, bool) {
		if o.Object != "checkout.session" || !isStripeID("cs_", o.ID) {
			return "", false
		}
		if o.Reference == p.ID && rank[o.Status] > best {
			id, best = o.ID, rank[o.Status]
		}
		return o.ID, true
	})
	if err != nil && (err != more || id == "") {
		return "", err
	}
	return id, nil
}

// readList reads a list, at most maxStripePages of it: if that is not all, it returns more. take is called with each
// element and returns its id, or false for a malformed one. Errors: those of read, more.
func readList[T any](ctx context.Context, s *stripeProvider, c *unsealedConnection, path string, query url.Values,
	pageSize int, more *outboundError, take func(*T) (id string, ok bool)) error {
	query.Set("limit", strconv.Itoa(pageSize))
	for range maxStripePages {
		var page stripePage[T]
		if err := s.get(ctx, c, path, query, &page); err != nil {
			return err
		}
		if !page.valid(pageSize) {
			return malformedAnswer(http.StatusOK)
		}
		last := ""
		for i := range page.Data {
			id, ok := take(&page.Data[i])
			if !ok {
				return malformedAnswer(http.StatusOK)
			}
			last = id
		}
		if !page.More {
			return nil
		}
		query.Set("starting_after", last)
	}
	return more
}

// A stripeReturn is what refunds and disputes at Stripe have in common.
type stripeReturn struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Status  string `json:"status"`
	Intent  string `json:"payment_intent"`
	Amount  int64  `json:"amount"`
	Created int64  `json:"created"`
	Reason  string `json:"reason"`
}

// A stripeRefund is a refund at Stripe.
type stripeRefund struct {
	stripeReturn
	Failure  string          `json:"failure_reason"`
	Balance  json.RawMessage `json:"balance_transaction"`
	Metadata struct {
		Refund string `json:"refund"`
	} `json:"metadata"`
}

// releases reports whether a refund is only Stripe's way to show that rest, the money that was authorised but not
// captured, was released. No money of ours has moved for it, and nobody asked for it.
func (r *stripeRefund) releases(rest int64) bool {
	if r.Metadata.Refund != "" {
		return false
	}
	moved := len(r.Balance) > 0 && string(r.Balance) != "null"
	return r.Reason == "expired_uncaptured_charge" || r.Reason == "partial_capture" ||
		rest > 0 && r.Amount == rest && !moved && r.Status == "succeeded"
}

// stripeRefundStates maps Stripe's names for the states of refunds to ours.
var stripeRefundStates = map[string]string{
	"pending": refundPending, "requires_action": refundPending, "succeeded": refundSucceeded,
	"failed": refundFailed, "canceled": refundFailed,
}

// readRefunds adds the refunds of an attempt to a report.
func (s *stripeProvider) readRefunds(ctx context.Context, c *unsealedConnection, to *paymentReport,
	of *stripeCharge) error {
	query := url.Values{"payment_intent": {to.intentID}}
	more := &outboundError{status: http.StatusOK, reason: "too_many_refunds"}
	return readList(ctx, s, c, stripeRefunds, query, stripeRefundsPage, more, func(r *stripeRefund) (string, bool) {
		state := stripeRefundStates[r.Status]
		if r.Object != "refund" || !isStripeRefundID(r.ID) || r.Intent != to.intentID ||
			state == "" || r.Amount <= 0 || !isStripeTime(r.Created) {
			return "", false
		}
		if r.releases(of.Amount - of.Captured) {
			return r.ID, true
		}
		report := refundReport{
			providerID: r.ID, amount: r.Amount, state: state, at: time.Unix(r.Created, 0).UTC(),
		}
		if validID("ref", r.Metadata.Refund) {
			report.refundID = r.Metadata.Refund
		}
		if state == refundFailed {
			report.reason = stripeName(r.Failure, stripeName(r.Status, reasonDeclined))
		} else {
			to.refunded += r.Amount
		}
		to.refunds = append(to.refunds, report)
		return r.ID, true
	})
}

// A stripeDispute is a dispute at Stripe.
type stripeDispute struct {
	stripeReturn
	Currency string `json:"currency"`
	Evidence struct {
		DueBy int64 `json:"due_by"` // Unix seconds; 0: it can't be answered
	} `json:"evidence_details"`
	Moves *[]struct { // of the account's balance: at most one that takes, and one that puts back
		Amount   int64  `json:"amount"`   // below 0: taken; the fee is beside it
		Currency string `json:"currency"` // of the balance
		Created  int64  `json:"created"`
	} `json:"balance_transactions"`
}

// stripeDisputeStates maps Stripe's names for the states of disputes to ours. A warning is an inquiry, which may
// become a dispute; one that was prevented has cost nothing.
var stripeDisputeStates = map[string]disputeState{
	"warning_needs_response": disputeInquiry, "warning_under_review": disputeInquiry,
	"warning_closed": disputeInquiry, "needs_response": disputeOpen, "under_review": disputeOpen,
	"prevented": disputeWon, "won": disputeWon, "lost": disputeLost,
}

// report returns what a dispute says, and false for one that can't be right. Where the balance has another currency,
// what was taken and not put back is the amount in dispute. Stripe's fee is a cost like those of payments, and is not
// part of it.
func (d *stripeDispute) report(intentID string) (r disputeReport, ok bool) {
	state := stripeDisputeStates[d.Status]
	if d.Object != "dispute" || !isStripeDisputeID(d.ID) || d.Intent != intentID || state == "" || d.Amount < 0 ||
		d.Moves == nil || !isStripeTime(d.Created) || !isStripeTime(d.Evidence.DueBy) {
		return r, false
	}
	r = disputeReport{id: d.ID, amount: d.Amount, state: state, reason: stripeName(d.Reason, "other"),
		closed: d.Status == "warning_closed" || state == disputeWon || state == disputeLost}
	opened, moved, converted, standing := d.Created, int64(0), false, 0
	for _, m := range *d.Moves {
		if !isStripeTime(m.Created) || m.Amount < -maxAmount || m.Amount > maxAmount {
			return r, false
		}
		if m.Amount < 0 {
			standing++
			opened = max(opened, m.Created)
		} else {
			standing--
		}
		r.withdrawn -= m.Amount
		moved = max(moved, m.Created)
		converted = converted || m.Currency != d.Currency
	}
	if r.withdrawn = max(0, r.withdrawn); converted {
		r.withdrawn = d.Amount * int64(max(0, min(standing, 1)))
	}
	if r.at = time.Unix(opened, 0).UTC(); moved > 0 {
		r.movedAt = time.Unix(moved, 0).UTC()
	}
	if d.Evidence.DueBy > 0 {
		r.evidenceBy = time.Unix(d.Evidence.DueBy, 0).UTC()
	}
	return r, true
}

// readDisputes adds the disputes of an attempt to a report.
func (s *stripeProvider) readDisputes(ctx context.Context, c *unsealedConnection, to *paymentReport) error {
	query := url.Values{"payment_intent": {to.intentID}}
	more := &outboundError{status: http.StatusOK, reason: "too_many_disputes"}
	return readList(ctx, s, c, stripeDisputes, query, stripeDisputesPage, more, func(d *stripeDispute) (string, bool) {
		report, ok := d.report(to.intentID)
		to.disputes = append(to.disputes, report)
		return d.ID, ok
	})
}

// isStripeDisputeID reports whether s is the id of a dispute; older ones begin with dp_.
func isStripeDisputeID(s string) bool { return isStripeID("du_", s) || isStripeID("dp_", s) }

// stripeName returns a reason as Stripe names it, or otherwise if the reason does not have the form of Stripe's
// names. Reasons are checked because they are stored and become part of events.
func stripeName(reason, otherwise string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
	if reason == "" || len(reason) > 64 || strings.Trim(reason, letters) != "" {
		return otherwise
	}
	return reason
}
