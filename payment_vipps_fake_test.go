package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A vippsFake is a Vipps MobilePay over HTTP that keeps state, as its description and its guides say: access
// tokens, payments with their amounts and events, idempotency keys, and webhooks. It is one merchant's.
type vippsFake struct {
	vendorFake
	secrets  connectionSecrets    // of the merchant; requests with others are refused
	tokens   map[string]time.Time // until when each is accepted
	payments map[string]*vippsFakePayment
	answers  map[string]vippsFakeAnswer // by idempotency key
	webhooks map[string]*vippsFakeWebhook
	queue    []vippsFakeNotice // that webhooks are still to be sent, in order

	ledgers  []string                    // of the sales unit; none: there are no settlements, as for tests
	funds    map[string][]map[string]any // entries of all ledgers, by date
	dateEnds func(date string) bool      // whether a date is over

	described bool // events have the member paymentAction, which the description requires and Vipps lacks
}

// A vippsFakePayment is one payment.
type vippsFakePayment struct {
	reference, psp, state, currency, redirect string
	returnURL, description                    string
	amount, authorized, captured              int64
	cancelled, refunded                       int64
	createdAt, capturedAt                     time.Time
	events                                    []map[string]any
}

// A vippsFakeAnswer is what was answered under an idempotency key.
type vippsFakeAnswer struct {
	request string
	status  int
	body    any
}

type vippsFakeWebhook struct {
	id, url, secret string
	events          []string
}

// A vippsFakeNotice is an event that a webhook is to be sent.
type vippsFakeNotice struct {
	webhook string
	body    []byte
}

// newVippsFake serves a fake until the test ends. now is its clock.
func newVippsFake(t testing.TB, now func() time.Time) *vippsFake {
	f := makeVippsFake(t, now, "")
	f.serve()
	return f
}

// makeVippsFake makes a fake that is served at an address by who makes it.
func makeVippsFake(t testing.TB, now func() time.Time, base string) *vippsFake {
	f := &vippsFake{vendorFake: vendorFake{t: t, now: now, base: base}, tokens: map[string]time.Time{},
		payments: map[string]*vippsFakePayment{},
		answers:  map[string]vippsFakeAnswer{}, webhooks: map[string]*vippsFakeWebhook{},
		secrets: connectionSecrets{ClientID: "fb492b5e-7907-4d83-ba20-c7fb60ca35de",
			ClientSecret:    "Y8Kteew6GE2ZmeycEt6egg==",
			SubscriptionKey: "0f14ebcab0ec4b29ae0cb90d91b4a84a", MerchantSerial: "123456"}}
	f.operation = func(string, string) string { return "" }
	f.act = func(r vendorRequest) vendorAnswer {
		status, body := f.answer(r)
		header := http.Header{}
		if status >= 400 || strings.HasPrefix(r.path, "/epayment/") && r.method == "POST" && status == 200 {
			header.Set("Content-Type", "application/problem+json") // so says the description, of adjustments too
		}
		return vendorAnswer{status, header, body}
	}
	return f
}

// A vippsRefused is a problem that the fake answers with.
func vippsRefused(status int, kind string) (int, any) {
	return status, map[string]any{"type": "https://developer.vippsmobilepay.com/docs/APIs/epayment-api/errors#" + kind,
		"title": "Not possible", "detail": "The customer Ola Nordmann can't have that.", "status": status,
		"traceId": "00-4bf9"}
}

// answer does what a request asks for. The caller holds f.mu.
func (f *vippsFake) answer(r vendorRequest) (int, any) {
	if r.header.Get("Ocp-Apim-Subscription-Key") != f.secrets.SubscriptionKey {
		return vippsRefused(401, "subscription-key")
	}
	if r.method == "POST" && r.path == "/accesstoken/get" {
		return f.giveToken(r)
	}
	token, bearer := strings.CutPrefix(r.header.Get("Authorization"), "Bearer ")
	until, known := f.tokens[token]
	if !bearer || !known || !f.now().Before(until) {
		return vippsRefused(401, "unauthorized")
	}
	if r.header.Get("Merchant-Serial-Number") != f.secrets.MerchantSerial {
		return vippsRefused(403, "merchant-not-allowed")
	}
	if webhook, ok := strings.CutPrefix(r.path, "/webhooks/v1/webhooks"); ok {
		return f.webhookCall(r, strings.TrimPrefix(webhook, "/"))
	}
	if tested, ok := strings.CutPrefix(r.path, "/epayment/v1/test/payments/"); ok && r.method == "POST" {
		return f.forceApprove(strings.TrimSuffix(tested, "/approve"))
	}
	if r.path == "/settlement/v1/ledgers" || strings.HasPrefix(r.path, "/report/v2/ledgers/") {
		return f.settlements(r)
	}
	rest, ok := strings.CutPrefix(r.path, "/epayment/v1/payments")
	reference, action, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	switch {
	case ok && r.method == "POST":
		for _, name := range []string{"Name", "Version", "Plugin-Name", "Plugin-Version"} {
			if text := r.header.Get("Vipps-System-" + name); text == "" || len(text) > 30 {
				return vippsRefused(400, "system-header")
			}
		}
		return f.once(r, reference, action)
	case ok && r.method == "GET":
		p := f.payment(reference)
		if p == nil {
			return vippsRefused(404, "not-found")
		}
		if action == "events" {
			return 200, p.events
		}
		return 200, p.shown()
	}
	return vippsRefused(404, "no-such-path")
}

// giveToken answers with an access token that lasts an hour, as in the test environment.
func (f *vippsFake) giveToken(r vendorRequest) (int, any) {
	if r.header.Get("client_id") != f.secrets.ClientID || r.header.Get("client_secret") != f.secrets.ClientSecret {
		return 401, map[string]any{"error": "invalid_client", "error_description": "AADSTS7000215"}
	}
	token, until := f.newID("token"), f.now().Add(time.Hour)
	f.tokens[token] = until
	return 200, map[string]any{"token_type": "Bearer", "expires_in": "3600", "ext_expires_in": "3600",
		"expires_on": strconv.FormatInt(until.Unix(), 10), "not_before": "0",
		"resource":     "00000002-0000-0000-c000-000000000000",
		"access_token": token}
}

func (f *vippsFake) newID(kind string) string {
	f.number++
	return fmt.Sprintf("%s-%06d", kind, f.number)
}

// once does what is asked for once for an idempotency key, and answers the same again under that key. What
// was refused may be tried again.
func (f *vippsFake) once(r vendorRequest, reference, action string) (int, any) {
	if r.key() == "" || len(r.key()) > 50 {
		return vippsRefused(400, "idempotency-key")
	}
	request := r.path + "\n" + string(r.body)
	if before, ok := f.answers[r.key()]; ok {
		if before.request != request {
			return vippsRefused(409, "idempotency-key-reused")
		}
		return before.status, before.body
	}
	var status int
	var body any
	if reference == "" {
		status, body = f.create(r)
	} else {
		status, body = f.adjust(r, reference, action)
	}
	if status < 300 {
		f.answers[r.key()] = vippsFakeAnswer{request, status, body}
	}
	return status, body
}

var vippsFakeReference = regexp.MustCompile(`^[a-zA-Z0-9-]{8,50}$`)

// vippsFakeLeast are the smallest amounts that can be paid.
var vippsFakeLeast = map[string]int64{"NOK": 100, "DKK": 1, "EUR": 1, "SEK": 100}

func (f *vippsFake) create(r vendorRequest) (int, any) {
	var asked struct {
		Amount                         vippsMoney
		PaymentMethod                  struct{ Type string }
		Reference, UserFlow, ReturnURL string
		PaymentDescription             string
	}
	if json.Unmarshal(r.body, &asked) != nil {
		return vippsRefused(400, "not-json")
	}
	least, known := vippsFakeLeast[asked.Amount.Currency]
	back, err := url.Parse(asked.ReturnURL)
	switch {
	case !known || asked.Amount.Value < least || asked.Amount.Value > 65_000_000:
		return vippsRefused(400, "amount")
	case !vippsFakeReference.MatchString(asked.Reference):
		return vippsRefused(400, "reference")
	case asked.PaymentMethod.Type != "WALLET" || asked.UserFlow != "WEB_REDIRECT":
		return vippsRefused(400, "user-flow")
	case err != nil || back.Scheme != "https" && back.Hostname() != "127.0.0.1":
		return vippsRefused(400, "return-url")
	case len(asked.PaymentDescription) < 3 || utf8.RuneCountInString(asked.PaymentDescription) > 100:
		return vippsRefused(400, "description")
	case f.payments[asked.Reference] != nil:
		return vippsRefused(409, "reference-not-unique")
	}
	p := &vippsFakePayment{reference: asked.Reference, psp: f.newID("psp"), state: "CREATED",
		currency: asked.Amount.Currency, amount: asked.Amount.Value, returnURL: asked.ReturnURL,
		description: asked.PaymentDescription, createdAt: f.now(),
		redirect: f.base + "/landing?token=" + asked.Reference}
	f.payments[p.reference] = p
	f.record(p, "CREATED", p.amount, r.key())
	return 201, map[string]any{"reference": p.reference, "redirectUrl": p.redirect}
}

// payment returns a payment as it is now, or nil. One that nobody has paid for ten minutes has expired.
func (f *vippsFake) payment(reference string) *vippsFakePayment {
	p := f.payments[reference]
	if p != nil && p.state == "CREATED" && !f.now().Before(p.createdAt.Add(10*time.Minute)) {
		p.state = "EXPIRED"
		f.record(p, "EXPIRED", p.amount, "")
	}
	return p
}

// forceApprove pays in the guest's place, as Vipps' test environment can.
func (f *vippsFake) forceApprove(reference string) (int, any) {
	if !f.guestAnswers(reference, true) {
		return vippsRefused(404, "not-found")
	}
	return 200, map[string]any{}
}

// guestAnswers has the guest pay, or decline. It reports false if the payment is not open. The caller holds f.mu.
func (f *vippsFake) guestAnswers(reference string, pays bool) bool {
	p := f.payment(reference)
	if p == nil || p.state != "CREATED" {
		return false
	}
	if p.state = "ABORTED"; pays {
		p.state, p.authorized = "AUTHORIZED", p.amount
	}
	f.record(p, p.state, p.amount, "")
	return true
}

// adjust captures, cancels or gives back.
func (f *vippsFake) adjust(r vendorRequest, reference, action string) (int, any) {
	p := f.payment(reference)
	if p == nil {
		return vippsRefused(404, "not-found")
	}
	var asked struct {
		ModificationAmount    vippsMoney
		CancelTransactionOnly bool
	}
	amount := &asked.ModificationAmount
	wrong := len(r.body) > 0 && json.Unmarshal(r.body, &asked) != nil
	if action != "cancel" {
		if wrong || amount.Currency != p.currency || amount.Value <= 0 {
			return vippsRefused(400, "amount")
		}
	}
	left := p.authorized - p.captured - p.cancelled
	switch {
	case action == "cancel" && p.state == "CREATED":
		p.state = "TERMINATED"
		f.record(p, "TERMINATED", p.amount, r.key())
	case p.state != "AUTHORIZED":
		return vippsRefused(400, "state")
	case action == "cancel" && asked.CancelTransactionOnly:
		return vippsRefused(400, "6060")
	case action == "cancel":
		if left == 0 {
			return vippsRefused(400, "nothing-to-cancel")
		}
		p.cancelled += left
		f.record(p, "CANCELLED", left, r.key())
	case action == "capture":
		if amount.Value > left {
			return vippsRefused(400, "capture-too-large")
		}
		p.captured, p.capturedAt = p.captured+amount.Value, f.now()
		f.record(p, "CAPTURED", amount.Value, r.key())
	case action == "refund":
		if amount.Value > p.captured-p.refunded || f.now().After(p.capturedAt.AddDate(0, 0, 365)) {
			return vippsRefused(400, "refund-too-large")
		}
		p.refunded += amount.Value
		f.record(p, "REFUNDED", amount.Value, r.key())
	default:
		return vippsRefused(404, "no-such-path")
	}
	shown := p.shown()
	shown["pspReference"] = p.events[len(p.events)-1]["pspReference"]
	return 200, map[string]any{"amount": shown["amount"], "state": shown["state"], "aggregate": shown["aggregate"],
		"pspReference": shown["pspReference"], "reference": shown["reference"]}
}

// shown is a payment as it is read.
func (p *vippsFakePayment) shown() map[string]any {
	in := func(value int64) vippsMoney { return vippsMoney{p.currency, value} }
	shown := map[string]any{"reference": p.reference, "pspReference": p.psp, "state": p.state, "amount": in(p.amount),
		"aggregate": map[string]vippsMoney{"authorizedAmount": in(p.authorized), "capturedAmount": in(p.captured),
			"cancelledAmount": in(p.cancelled), "refundedAmount": in(p.refunded)},
		"paymentMethod": map[string]string{"type": "WALLET"}, "profile": map[string]string{}}
	if p.state == "CREATED" {
		shown["redirectUrl"] = p.redirect
	}
	return shown
}

// record writes what was done to a payment, and queues it for the webhooks.
func (f *vippsFake) record(p *vippsFakePayment, name string, amount int64, key string) {
	e := map[string]any{"reference": p.reference, "pspReference": f.newID("event"), "name": name,
		"amount": vippsMoney{p.currency, amount}, "timestamp": f.now().UTC().Format(time.RFC3339Nano),
		"idempotencyKey": key, "success": true}
	if key == "" {
		e["idempotencyKey"] = nil
	}
	notice := map[string]any{"msn": f.secrets.MerchantSerial}
	for name, value := range e {
		notice[name] = value
	}
	if f.described {
		e["paymentAction"] = name
	}
	p.events = append(p.events, e)
	body, err := json.Marshal(notice)
	if err != nil {
		f.t.Error(err)
	}
	for _, w := range f.webhooks {
		if slices.Contains(w.events, "epayments.payment."+strings.ToLower(name)+".v1") {
			f.queue = append(f.queue, vippsFakeNotice{w.id, body})
		}
	}
}

// webhookCall registers, lists and removes webhooks.
func (f *vippsFake) webhookCall(r vendorRequest, id string) (int, any) {
	switch {
	case r.method == "POST" && id == "":
		var asked struct {
			URL    string
			Events []string
		}
		if json.Unmarshal(r.body, &asked) != nil || asked.URL == "" || len(asked.Events) == 0 {
			return vippsRefused(400, "webhook")
		}
		id := f.newID("webhook")
		f.webhooks[id] = &vippsFakeWebhook{id, asked.URL, "c2VjcmV0+" + id + "==", asked.Events}
		return 201, map[string]any{"id": id, "secret": f.webhooks[id].secret}
	case r.method == "GET" && id == "":
		list := []map[string]any{}
		for _, w := range f.webhooks {
			list = append(list, map[string]any{"id": w.id, "url": w.url, "events": w.events})
		}
		return 200, map[string]any{"webhooks": list}
	case r.method == "DELETE" && f.webhooks[id] != nil:
		delete(f.webhooks, id)
		return 204, nil
	}
	return vippsRefused(404, "not-found")
}

// vippsFakePage is how many entries a page of a report has at most.
const vippsFakePage = 1000

// settlements lists the ledgers of the sales unit, and what is in one on a date.
func (f *vippsFake) settlements(r vendorRequest) (int, any) {
	handle := "api:" + f.secrets.MerchantSerial
	ledger, date, _ := strings.Cut(strings.TrimPrefix(r.path, "/report/v2/ledgers/"), "/funds/dates/")
	switch {
	case len(f.ledgers) == 0:
		return 404, map[string]any{"statusCode": 404, "message": "Resource not found"}
	case r.path == "/settlement/v1/ledgers":
		list := []map[string]any{}
		for _, id := range f.ledgers {
			if r.query.Get("settlesForRecipientHandles") == handle {
				list = append(list, map[string]any{"ledgerId": id, "currency": "NOK",
					"settlesForRecipientHandles": []string{handle}})
			}
		}
		return 200, map[string]any{"items": list, "cursor": ""}
	case !slices.Contains(f.ledgers, ledger):
		return vippsRefused(404, "no-such-ledger")
	case f.dateEnds != nil && !f.dateEnds(date):
		return 200, map[string]any{"items": f.funds[date], "hasMore": false, "tryLater": true}
	}
	all := f.funds[date]
	from, _ := strconv.Atoi(strings.TrimPrefix(r.query.Get("cursor"), "after="))
	to := min(from+vippsFakePage, len(all))
	page := map[string]any{"items": append([]map[string]any{}, all[from:to]...), "hasMore": to < len(all),
		"tryLater": false}
	if to < len(all) {
		page["cursor"] = fmt.Sprintf("after=%d", to)
	}
	return 200, page
}

// books adds an entry to the ledger on a date.
func (f *vippsFake) books(date, kind, reference string, amount int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.funds == nil {
		f.funds = map[string][]map[string]any{}
	}
	f.funds[date] = append(f.funds[date], map[string]any{"pspReference": f.newID("psp"), "ledgerDate": date,
		"time": date + "T12:00:00.000000Z", "entryType": kind, "reference": reference, "currency": "NOK",
		"amount": amount, "recipientHandle": "api:" + f.secrets.MerchantSerial})
}

// signed returns the request of a notice. The caller holds f.mu.
func (f *vippsFake) signed(n vippsFakeNotice) *http.Request {
	f.t.Helper()
	w := f.webhooks[n.webhook]
	r, err := http.NewRequest("POST", w.url, bytes.NewReader(n.body))
	must(f.t, err)
	date := f.now().UTC().Format(http.TimeFormat)
	signed := signVipps(w.secret, w.url, date, n.body)
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-Ms-Date": {date},
		"X-Ms-Content-Sha256": {signed.hash}, "Authorization": {signed.authorization}}
	return r
}

// on changes the payment of an attempt. f.mu is held meanwhile.
func (f *vippsFake) on(paymentID string, change func(*vippsFakePayment)) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.payment(vippsReference(paymentID))
	if p == nil {
		f.t.Fatalf("no payment %s", paymentID)
	}
	change(p)
}

// approve has the guest pay.
func (f *vippsFake) approve(paymentID string) {
	f.t.Helper()
	f.on(paymentID, func(p *vippsFakePayment) {
		if !f.guestAnswers(p.reference, true) {
			f.t.Fatalf("the payment is %s", p.state)
		}
	})
}

// abort has the guest decline.
func (f *vippsFake) abort(paymentID string) {
	f.t.Helper()
	f.on(paymentID, func(p *vippsFakePayment) { f.guestAnswers(p.reference, false) })
}

// portalRefund has somebody give money back in Vipps' portal, under a key that is not ours.
func (f *vippsFake) portalRefund(paymentID string, amount int64) {
	f.t.Helper()
	f.on(paymentID, func(p *vippsFakePayment) {
		if amount > p.captured-p.refunded {
			f.t.Fatalf("%d can't be given back", amount)
		}
		p.refunded += amount
		f.record(p, "REFUNDED", amount, f.newID("portal"))
	})
}

// portalCapture has somebody capture money in Vipps' portal.
func (f *vippsFake) portalCapture(paymentID string, amount int64) {
	f.t.Helper()
	f.on(paymentID, func(p *vippsFakePayment) {
		if amount > p.authorized-p.captured-p.cancelled {
			f.t.Fatalf("%d can't be captured", amount)
		}
		p.captured, p.capturedAt = p.captured+amount, f.now()
		f.record(p, "CAPTURED", amount, "")
	})
}

// forgetTokens has every access token refused that was given so far.
func (f *vippsFake) forgetTokens() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.tokens)
}
