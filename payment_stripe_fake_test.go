package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A sandbox that speaks the part of Stripe's interface that stripeProvider uses, and has an address at which a guest
// pays. It keeps the rules of Stripe that matter here: the order of states, a single partial capture, idempotency keys
// that replay answers, including failures, and webhooks that arrive at any time and in any order.

const (
	testDeliveryTries = 3
	testRetryDelay    = 2 * time.Second
	testAuthorization = 7 * 24 * time.Hour // after which what is authorised lapses
)

// A testProvider is a test provider. Make one with newTestProvider.
type testProvider struct {
	base     string // its own address, without a slash at its end
	now      func() time.Time
	outbound *outbound

	// watch, if not nil, is called for each call of the interface, before it is carried out with nil, and after
	// that with the answer. A result that is not nil is sent instead of the answer; if it comes before, the call
	// is not carried out. watch may read the body both times, and break the connection by panicking with
	// http.ErrAbortHandler.
	watch func(r *http.Request, acted *testAnswer) *testAnswer
	// deliver, if not nil, is given each webhook instead of having it posted: post posts it once and
	// returns the status, 0 without an answer. It is called with mu held, so it must not post by itself.
	// While calls come, both are to be set with mu held.
	deliver func(kind string, post func() int)

	ctx   context.Context // ends with close
	stop  context.CancelFunc
	posts sync.WaitGroup

	mu       sync.Mutex
	number   int            // of the last object
	sessions []*testSession // the oldest first
	hooks    map[string]*testWebhook
	keys     map[string]*testKey

	payouts []testObject            // the newest first
	moves   map[string][]testObject // of the balance, by the automatic payout in which they are, the newest first
}

// A testSession is a checkout session with its payment.
type testSession struct {
	id, reference, name, returnURL, cancelURL, status string
	amount, created, expires                          int64 // times in Unix seconds
	currency                                          string
	metadata                                          map[string]string
	intentMetadata                                    map[string]string
	twint                                             bool        // it is captured by being paid
	intent                                            *testIntent // nil until a card is tried
}

// A testIntent is a payment with its charge.
type testIntent struct {
	session                       *testSession
	id, charge, status, cancelled string // charge: of the last card; cancelled: why, "" if nothing is said
	capturable, received          int64
	captureBefore                 int64 // Unix seconds
	chargedAt, capturedAt         int64 // Unix seconds
	declined                      bool  // the last card
	refunds                       []*testRefund
	disputes                      []*testDispute
}

// A testRefund is a refund, or what was released when a part was captured.
type testRefund struct {
	id, status, failure string
	amount, created     int64
	released            bool
	metadata            map[string]string
}

// A testDispute is a dispute about a payment.
type testDispute struct {
	id, status                  string
	amount, created, reinstated int64
}

// A testWebhook is a webhook endpoint.
type testWebhook struct {
	id, url, secret, status string
	events                  []string
}

// A testKey is what an idempotency key was used for.
type testKey struct {
	request string // method, path and body
	answer  *testAnswer
}

// A testAnswer is an answer of the interface.
type testAnswer struct {
	status int
	header http.Header
	body   []byte
}

// newTestProvider makes a test provider that is reached at an address, "http://127.0.0.1:8083". o posts its
// webhooks.
func newTestProvider(o *outbound, base string, now func() time.Time) *testProvider {
	p := &testProvider{base: base, now: now, outbound: o, hooks: map[string]*testWebhook{}, keys: map[string]*testKey{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// close ends the webhooks that are on their way.
func (p *testProvider) close() {
	p.stop()
	p.posts.Wait()
}

// A testAction carries out one call, with mu held. id is that in the path.
type testAction func(p *testProvider, id string, form url.Values) *testAnswer

// handler returns the interface and the pages.
func (p *testProvider) handler() http.Handler {
	intents := listOf(func(i *testIntent) []testObject { return []testObject{i.object()} })
	refunds := listOf(func(i *testIntent) []testObject { return objectsOf(i, i.refunds) })
	disputes := listOf(func(i *testIntent) []testObject { return objectsOf(i, i.disputes) })
	mux := http.NewServeMux()
	for pattern, act := range map[string]testAction{
		"POST /v1/checkout/sessions":             (*testProvider).createSession,
		"GET /v1/checkout/sessions":              (*testProvider).listSessions,
		"GET /v1/checkout/sessions/{id}":         actOn((*testProvider).session, (*testProvider).readSession),
		"POST /v1/checkout/sessions/{id}/expire": actOn((*testProvider).session, (*testProvider).expireSession),
		"GET /v1/payment_intents":                intents,
		"POST /v1/payment_intents/{id}/capture":  actOn((*testProvider).intent, (*testProvider).captureIntent),
		"POST /v1/payment_intents/{id}/cancel":   actOn((*testProvider).intent, (*testProvider).cancelIntent),
		"POST /v1/refunds":                       (*testProvider).createRefund,
		"GET /v1/refunds":                        refunds,
		"GET /v1/disputes":                       disputes,
		"GET /v1/payouts":                        (*testProvider).listPayouts,
		"GET /v1/balance_transactions":           (*testProvider).listMoves,
		"POST /v1/webhook_endpoints":             (*testProvider).createWebhook,
		"GET /v1/webhook_endpoints/{id}":         actOn((*testProvider).webhook, (*testProvider).readWebhook),
		"DELETE /v1/webhook_endpoints/{id}":      actOn((*testProvider).webhook, (*testProvider).deleteWebhook),
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, act) })
	}
	mux.HandleFunc("GET /pay/{id}", p.showPage)
	mux.HandleFunc("POST /pay/{id}", p.takeForm)
	return mux
}

// actOn makes an action of one that acts on an object, which find returns; nil: there is none.
func actOn[T any](find func(*testProvider, string) *T, act func(*testProvider, *T, url.Values) *testAnswer) testAction {
	return func(p *testProvider, id string, form url.Values) *testAnswer {
		object := find(p, id)
		if object == nil {
			return testMissing()
		}
		return act(p, object, form)
	}
}

// serve answers one call of the interface.
func (p *testProvider) serve(w http.ResponseWriter, r *http.Request, act testAction) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOutboundBody))
	if err != nil {
		return
	}
	answer := p.watched(r, body, nil)
	if answer == nil {
		answer = p.answer(r, body, act)
		answer = cmp.Or(p.watched(r, body, answer), answer)
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" && answer.status >= 500 {
		p.mu.Lock()
		p.keep(key, r, body).answer = answer
		p.mu.Unlock()
	}
	maps.Copy(w.Header(), answer.header)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.status)
	w.Write(answer.body)
}

// watched tells watch of a call.
func (p *testProvider) watched(r *http.Request, body []byte, acted *testAnswer) *testAnswer {
	p.mu.Lock()
	watch := p.watch
	p.mu.Unlock()
	if watch == nil {
		return nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return watch(r, acted)
}

// answer carries out a call, or replays the answer to an earlier one with the same key.
func (p *testProvider) answer(r *http.Request, body []byte, act testAction) *testAnswer {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer rk_") {
		return testFailure(http.StatusUnauthorized, "invalid_request_error", "")
	}
	form, err := url.ParseQuery(string(body))
	if r.Method == http.MethodGet {
		form, err = r.URL.Query(), nil
	}
	if err != nil {
		return testFailure(http.StatusBadRequest, "invalid_request_error", "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passTime()
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		return act(p, r.PathValue("id"), form)
	}
	kept := p.keep(key, r, body)
	switch {
	case kept.request != testRequest(r, body):
		return testFailure(http.StatusBadRequest, "idempotency_error", "")
	case kept.answer != nil:
		replayed := *kept.answer
		replayed.header = http.Header{"Idempotent-Replayed": {"true"}}
		return &replayed
	}
	kept.answer = act(p, r.PathValue("id"), form)
	return kept.answer
}

// testRequest returns what must be the same under one key.
func testRequest(r *http.Request, body []byte) string {
	return r.Method + " " + r.URL.Path + "\n" + string(body)
}

// keep returns what a key is used for.
func (p *testProvider) keep(key string, r *http.Request, body []byte) *testKey {
	if kept, ok := p.keys[key]; ok {
		return kept
	}
	p.keys[key] = &testKey{request: testRequest(r, body)}
	return p.keys[key]
}

// A testObject is an object of the interface.
type testObject map[string]any

func testOK(o testObject) *testAnswer { return &testAnswer{status: http.StatusOK, body: encodeJSON(o)} }

// testFailure returns an error as Stripe forms it. code may be "".
func testFailure(status int, kind, code string) *testAnswer {
	failure := testObject{"type": kind, "message": "The test provider refuses this."}
	if code != "" {
		failure["code"] = code
	}
	return &testAnswer{status: status, body: encodeJSON(testObject{"error": failure})}
}

func testMissing() *testAnswer {
	return testFailure(http.StatusNotFound, "invalid_request_error", "resource_missing")
}

func testRefused(code string) *testAnswer {
	return testFailure(http.StatusBadRequest, "invalid_request_error", code)
}

// testList returns a page of a list; all is the whole list, the newest first.
func testList(form url.Values, all []testObject) *testAnswer {
	if after := form.Get("starting_after"); after != "" {
		at := slices.IndexFunc(all, func(o testObject) bool { return o["id"] == after })
		all = all[at+1:]
	}
	limit, err := strconv.Atoi(cmp.Or(form.Get("limit"), "10"))
	if err != nil || limit < 1 || limit > 100 {
		return testRefused("parameter_invalid_integer")
	}
	page := append([]testObject{}, all[:min(limit, len(all))]...)
	return testOK(testObject{"object": "list", "data": page, "has_more": len(page) < len(all)})
}

// listOf makes an action that lists what payments have, the newest first: all of them, or the one that is named.
func listOf(has func(i *testIntent) []testObject) testAction {
	return func(p *testProvider, _ string, form url.Values) *testAnswer {
		var all []testObject
		for _, s := range slices.Backward(p.sessions) {
			if id := form.Get("payment_intent"); s.intent != nil && (id == "" || id == s.intent.id) {
				all = append(all, has(s.intent)...)
			}
		}
		return testList(form, all)
	}
}

// objectsOf returns the refunds or the disputes of a payment, the newest first.
func objectsOf[T interface{ object(*testIntent) testObject }](i *testIntent, has []T) (all []testObject) {
	for _, part := range slices.Backward(has) {
		all = append(all, part.object(i))
	}
	return all
}

func (p *testProvider) listPayouts(_ string, form url.Values) *testAnswer {
	var all []testObject
	for _, o := range p.payouts {
		if o["arrival_date"].(int64) >= testAmount(form, "arrival_date[gte]", 0) {
			all = append(all, o)
		}
	}
	return testList(form, all)
}

func (p *testProvider) listMoves(_ string, form url.Values) *testAnswer {
	payout := form.Get("payout")
	all, automatic := p.moves[payout]
	if !automatic && payout != "" {
		return testRefused("")
	}
	if form.Get("expand[]") != "data.source" {
		return testRefused("parameter_missing")
	}
	return testList(form, all)
}

// newID returns the id of a new object. The last digits are its number.
func (p *testProvider) newID(prefix string) string {
	p.number++
	return fmt.Sprintf("%stest_%06d", prefix, p.number)
}

// passTime expires the sessions and lets the authorisations lapse whose time is over.
func (p *testProvider) passTime() {
	now := p.now().Unix()
	for _, s := range p.sessions {
		if s.status == "open" && now >= s.expires {
			p.endSession(s)
		}
		if i := s.intent; i != nil && i.status == "requires_capture" && now >= i.captureBefore {
			p.endIntent(i, "automatic")
		}
	}
}

// endSession expires a session.
func (p *testProvider) endSession(s *testSession) {
	s.status = "expired"
	p.emit("checkout.session.expired", s.object(p))
	if s.intent != nil {
		p.endIntent(s.intent, "")
	}
}

// endIntent cancels a payment, and releases what is authorised.
func (p *testProvider) endIntent(i *testIntent, reason string) {
	i.status, i.cancelled, i.capturable = "canceled", reason, 0
	p.emit("payment_intent.canceled", i.object())
}

// session returns a session; nil: there is none.
func (p *testProvider) session(id string) *testSession {
	i := slices.IndexFunc(p.sessions, func(s *testSession) bool { return s.id == id })
	if i < 0 {
		return nil
	}
	return p.sessions[i]
}

// intent returns a payment; nil: there is none.
func (p *testProvider) intent(id string) *testIntent {
	for _, s := range p.sessions {
		if s.intent != nil && s.intent.id == id {
			return s.intent
		}
	}
	return nil
}

// testMetadata returns the parameters below a name, "metadata".
func testMetadata(form url.Values, name string) map[string]string {
	all := map[string]string{}
	for parameter := range form {
		if key, ok := strings.CutPrefix(parameter, name+"["); ok {
			all[strings.TrimSuffix(key, "]")] = form.Get(parameter)
		}
	}
	return all
}

// testAmount returns a parameter that is an amount, or a time in Unix seconds; 0: it is not one. Without the parameter
// it returns the other amount.
func testAmount(form url.Values, name string, other int64) int64 {
	text := form.Get(name)
	if text == "" {
		return other
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

func (p *testProvider) createSession(_ string, form url.Values) *testAnswer {
	const price = "line_items[0][price_data]"
	now := p.now().Unix()
	s := &testSession{
		id: p.newID("cs_"), status: "open", created: now,
		reference:      form.Get("client_reference_id"),
		name:           form.Get(price + "[product_data][name]"),
		returnURL:      form.Get("success_url"),
		cancelURL:      form.Get("cancel_url"),
		amount:         testAmount(form, price+"[unit_amount]", 0),
		currency:       form.Get(price + "[currency]"),
		expires:        testAmount(form, "expires_at", 0),
		metadata:       testMetadata(form, "metadata"),
		intentMetadata: testMetadata(form, "payment_intent_data[metadata]"),
		twint:          form.Get("payment_method_types[0]") == methodTwint,
	}
	capture := "manual"
	if s.twint {
		capture = ""
	}
	const most, least = 24 * 60 * 60, 30 * 60
	switch {
	case form.Get("mode") != "payment", form.Get("payment_intent_data[capture_method]") != capture,
		form.Get("line_items[0][quantity]") != "1", !isWebAddress(s.returnURL), !isWebAddress(s.cancelURL):
		return testRefused("parameter_missing")
	case s.expires < now+least, s.expires > now+most:
		return testRefused("parameter_invalid_integer")
	case s.amount < max(1, stripeMinimum[strings.ToUpper(s.currency)]):
		return testRefused("amount_too_small")
	case s.twint && (s.currency != "chf" || s.amount > maxTwintAmount):
		return testRefused("amount_too_large")
	}
	p.sessions = append(p.sessions, s)
	return testOK(s.object(p))
}

// object returns a session with the id of its payment.
func (s *testSession) object(p *testProvider) testObject {
	o := testObject{
		"id": s.id, "object": "checkout.session", "status": s.status, "client_reference_id": s.reference,
		"amount_total": s.amount, "currency": s.currency, "mode": "payment", "payment_status": "unpaid",
		"created": s.created, "expires_at": s.expires, "metadata": s.metadata, "livemode": false,
		"url": nil, "payment_intent": nil,
	}
	if s.status == "open" {
		o["url"] = p.base + "/pay/" + s.id
	}
	if s.intent != nil {
		o["payment_intent"] = s.intent.id
	}
	return o
}

func (p *testProvider) listSessions(_ string, form url.Values) *testAnswer {
	var all []testObject
	first, last := testAmount(form, "created[gte]", 0), testAmount(form, "created[lte]", 0)
	for _, s := range slices.Backward(p.sessions) {
		if s.created >= first && (last == 0 || s.created <= last) {
			all = append(all, s.object(p))
		}
	}
	return testList(form, all)
}

func (p *testProvider) readSession(s *testSession, form url.Values) *testAnswer {
	o := s.object(p)
	expand := form.Get("expand[]")
	if s.intent == nil || !strings.HasPrefix(expand, "payment_intent.latest_charge") {
		return testOK(o)
	}
	intent, charge := s.intent.object(), s.intent.chargeObject()
	if s.intent.received > 0 && strings.HasSuffix(expand, ".balance_transaction") {
		charge["balance_transaction"] = testObject{"id": charge["balance_transaction"], "type": "charge",
			"object": "balance_transaction", "amount": s.intent.received, "created": s.intent.capturedAt}
	}
	intent["latest_charge"], o["payment_intent"] = charge, intent
	return testOK(o)
}

func (p *testProvider) expireSession(s *testSession, _ url.Values) *testAnswer {
	if s.status != "open" {
		return testRefused("")
	}
	p.endSession(s)
	return testOK(s.object(p))
}

// tryCard pays an open session as a guest does on its page, with a card or by TWINT, which is good or is declined. It
// reports false if the session is not open.
func (p *testProvider) tryCard(id string, good bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passTime()
	s := p.session(id)
	if s == nil || s.status != "open" {
		return false
	}
	if s.intent == nil {
		s.intent = &testIntent{session: s, id: p.newID("pi_"), status: "requires_payment_method"}
	}
	i := s.intent
	i.charge, i.chargedAt, i.declined = p.newID("ch_"), p.now().Unix(), !good
	if !good {
		return true
	}
	if s.status = "complete"; s.twint {
		i.status, i.received, i.capturedAt = "succeeded", s.amount, p.now().Unix()
		p.emit("payment_intent.succeeded", i.object())
	} else {
		i.status, i.capturable = "requires_capture", s.amount
		i.captureBefore = p.now().Add(testAuthorization).Unix()
		p.emit("payment_intent.amount_capturable_updated", i.object())
	}
	p.emit("checkout.session.completed", s.object(p))
	return true
}

// object returns a payment.
func (i *testIntent) object() testObject {
	o := testObject{
		"id": i.id, "object": "payment_intent", "status": i.status, "amount": i.session.amount,
		"amount_capturable": i.capturable, "amount_received": i.received, "currency": i.session.currency,
		"metadata": i.session.intentMetadata, "livemode": false,
		"cancellation_reason": nilIfEmpty(i.cancelled), "last_payment_error": nil, "latest_charge": i.charge,
	}
	if i.declined {
		o["last_payment_error"] = testObject{"type": "card_error", "code": "card_declined"}
	}
	return o
}

// chargeObject returns the charge of a payment. As at Stripe, what was authorised and not captured counts
// as refunded.
func (i *testIntent) chargeObject() testObject {
	card := testObject{"brand": "visa", "last4": "4242"}
	if i.status == "requires_capture" {
		card["capture_before"] = i.captureBefore
	}
	refunded := int64(0)
	for _, r := range i.refunds {
		if r.status != "failed" {
			refunded += r.amount
		}
	}
	if i.status == "canceled" {
		refunded = i.session.amount
	}
	var moved *string // what it has moved of the balance: nothing before it is captured
	if i.received > 0 {
		moved = new("txn_" + i.charge)
	}
	return testObject{
		"id": i.charge, "object": "charge", "payment_intent": i.id, "currency": i.session.currency,
		"created": i.chargedAt, "balance_transaction": moved,
		"amount": i.session.amount, "amount_captured": i.received, "captured": i.received > 0,
		"amount_refunded": refunded, "refunded": refunded == i.session.amount, "disputed": len(i.disputes) > 0,
		"metadata": i.session.intentMetadata, "payment_method_details": testObject{"type": "card", "card": card},
	}
}

func (p *testProvider) captureIntent(i *testIntent, form url.Values) *testAnswer {
	amount := testAmount(form, "amount_to_capture", i.capturable)
	switch {
	case i.status != "requires_capture":
		return testRefused("payment_intent_unexpected_state")
	case amount > i.capturable:
		return testRefused("amount_too_large")
	case amount < 1:
		return testRefused("amount_too_small")
	}
	i.status, i.received, i.capturable, i.capturedAt = "succeeded", amount, 0, p.now().Unix()
	if rest := i.session.amount - amount; rest > 0 {
		i.refunds = append(i.refunds, &testRefund{id: p.newID("re_"), status: "succeeded", amount: rest,
			created: p.now().Unix(), released: true})
	}
	p.emit("payment_intent.succeeded", i.object())
	return testOK(i.object())
}

func (p *testProvider) cancelIntent(i *testIntent, _ url.Values) *testAnswer {
	if i.status != "requires_capture" {
		return testRefused("payment_intent_unexpected_state")
	}
	p.endIntent(i, "")
	return testOK(i.object())
}

func (p *testProvider) createRefund(_ string, form url.Values) *testAnswer {
	i := p.intent(form.Get("payment_intent"))
	if i == nil {
		return testMissing()
	}
	left := i.received
	for _, r := range i.refunds {
		if r.status != "failed" && !r.released {
			left -= r.amount
		}
	}
	amount := testAmount(form, "amount", left)
	switch {
	case i.status != "succeeded":
		return testRefused("payment_intent_unexpected_state")
	case left == 0:
		return testRefused("charge_already_refunded")
	case amount < 1:
		return testRefused("parameter_invalid_integer")
	case amount > left:
		return testRefused("amount_too_large")
	}
	r := &testRefund{id: p.newID("re_"), status: "succeeded", amount: amount, created: p.now().Unix(),
		metadata: testMetadata(form, "metadata")}
	i.refunds = append(i.refunds, r)
	p.emit("refund.created", r.object(i))
	p.emit("charge.refunded", i.chargeObject())
	return testOK(r.object(i))
}

// object returns a refund. One that only releases has moved no money.
func (r *testRefund) object(i *testIntent) testObject {
	o := testObject{
		"id": r.id, "object": "refund", "payment_intent": i.id, "charge": i.charge, "status": r.status,
		"amount": r.amount, "currency": i.session.currency, "created": r.created, "metadata": r.metadata,
		"reason": nil, "balance_transaction": nil,
	}
	if !r.released {
		o["balance_transaction"] = "txn_" + r.id
	}
	if r.failure != "" {
		o["failure_reason"] = r.failure
	}
	return o
}

// object returns a dispute.
func (d *testDispute) object(i *testIntent) testObject {
	return testObject{
		"id": d.id, "object": "dispute", "payment_intent": i.id, "charge": i.charge, "status": d.status,
		"amount": d.amount, "currency": i.session.currency, "created": d.created, "reason": "fraudulent",
		"metadata": testObject{}, "balance_transactions": d.moves(i),
		"evidence_details": testObject{"due_by": d.created + 14*24*60*60, "has_evidence": false},
	}
}

// moves returns what a dispute has moved of the balance: nothing as long as the bank only asks.
func (d *testDispute) moves(i *testIntent) []testObject {
	moves := []testObject{}
	move := func(amount, created int64) {
		moves = append(moves, testObject{"object": "balance_transaction", "amount": amount, "fee": 1500,
			"currency": i.session.currency, "created": created})
	}
	if !strings.HasPrefix(d.status, "warning_") {
		move(-d.amount, d.created)
	}
	if d.status == "won" && d.reinstated > 0 { // the money comes back at once, or later
		move(d.amount, d.reinstated)
	}
	return moves
}

// The webhooks that the sandbox sends.

func (p *testProvider) createWebhook(_ string, form url.Values) *testAnswer {
	h := &testWebhook{url: form.Get("url"), status: "enabled"}
	for parameter, values := range form {
		if strings.HasPrefix(parameter, "enabled_events[") {
			h.events = append(h.events, values...)
		}
	}
	if !isWebAddress(h.url) || len(h.events) == 0 {
		return testRefused("url_invalid")
	}
	h.id = p.newID("we_")
	h.secret = webhookSecretPrefix + "test_" + h.id
	p.hooks[h.id] = h
	o := h.object()
	o["secret"] = h.secret
	return testOK(o)
}

// object returns a webhook without its secret.
func (h *testWebhook) object() testObject {
	return testObject{
		"id": h.id, "object": "webhook_endpoint", "url": h.url, "status": h.status, "enabled_events": h.events,
	}
}

// webhook returns a webhook endpoint; nil: there is none.
func (p *testProvider) webhook(id string) *testWebhook { return p.hooks[id] }

func (p *testProvider) readWebhook(h *testWebhook, _ url.Values) *testAnswer {
	return testOK(h.object())
}

func (p *testProvider) deleteWebhook(h *testWebhook, _ url.Values) *testAnswer {
	delete(p.hooks, h.id)
	return testOK(testObject{"id": h.id, "object": "webhook_endpoint", "deleted": true})
}

// emit sends an event to all webhooks that ask for it, independently of each other and in no particular order.
func (p *testProvider) emit(kind string, object testObject) {
	body := encodeJSON(testObject{
		"id": p.newID("evt_"), "object": "event", "type": kind, "api_version": stripeVersion,
		"created": p.now().Unix(), "livemode": false, "data": testObject{"object": object},
	})
	for _, h := range p.hooks {
		post := func() int { return p.post(h.url, h.secret, body) }
		switch {
		case h.status != "enabled" || !slices.Contains(h.events, kind):
		case p.deliver != nil:
			p.deliver(kind, post)
		default:
			p.posts.Go(func() { p.postUntilTaken(post) })
		}
	}
}

// postUntilTaken posts a webhook, and again after a while if it is not accepted.
func (p *testProvider) postUntilTaken(post func() int) {
	for try := 1; !succeeded(post()) && try < testDeliveryTries; try++ {
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(testRetryDelay):
		}
	}
}

// post posts a webhook once and returns the status; 0: there was no answer.
func (p *testProvider) post(url, secret string, body []byte) int {
	at := p.now().Unix()
	answer, err := p.outbound.do(p.ctx, outboundRequest{http.MethodPost, url, http.Header{
		"Content-Type":     {"application/json"},
		"Stripe-Signature": {fmt.Sprintf("t=%d,v1=%s", at, signStripe(secret, at, body))},
	}, body, 0})
	if err != nil {
		return 0
	}
	return answer.status
}

// takeForm does what a guest chooses at the address of a session: "pay", "decline" or "back".
func (p *testProvider) takeForm(w http.ResponseWriter, r *http.Request) {
	id, choice := r.PathValue("id"), r.PostFormValue("do")
	p.mu.Lock()
	s := p.session(id)
	p.mu.Unlock()
	switch {
	case s == nil:
		http.NotFound(w, r)
	case choice == "pay" && p.tryCard(id, true):
		http.Redirect(w, r, s.returnURL, http.StatusSeeOther)
	case choice == "back":
		http.Redirect(w, r, s.cancelURL, http.StatusSeeOther)
	default:
		fmt.Fprintln(w, "Nothing was paid.", choice == "decline" && p.tryCard(id, false))
	}
}

// showPage is what the address of a session shows.
func (p *testProvider) showPage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintln(w, `<!doctype html><form method="post"><button name="do" value="pay">Pay</button></form>`)
}
