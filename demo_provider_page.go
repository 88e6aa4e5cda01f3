package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// What the demo's test provider shows to guests, and the webhooks that it sends.

func (p *testProvider) createWebhook(_ string, form url.Values) *testAnswer {
	h := &testWebhook{url: form.Get("url"), status: "enabled"}
	for parameter, values := range form {
		if strings.HasPrefix(parameter, "enabled_events[") {
			h.events = append(h.events, values...)
		}
	}
	if !isWebAddress(h.url) || len(h.events) == 0 || len(p.hooks) >= maxTestWebhooks {
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
		case p.pending < maxTestDeliveries:
			p.pending++
			p.posts.Go(func() { p.postUntilTaken(post) })
		}
	}
}

// postUntilTaken posts a webhook, and again after a while if it is not accepted.
func (p *testProvider) postUntilTaken(post func() int) {
	defer func() {
		p.mu.Lock()
		p.pending--
		p.mu.Unlock()
	}()
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

// testStyle is the style of the pages.
var testStyle = demoFile("demo_pay.css")

// testPolicy is the Content-Security-Policy of the pages. It has no form-action, since browsers apply that also to
// redirects that answer a form.
var testPolicy = func() string {
	hash := sha256.Sum256([]byte(testStyle))
	return "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(hash[:]) + "'"
}()

// A testView is what a page shows.
type testView struct {
	Style                       template.CSS
	Open, Declined              bool
	Title, Name, Amount, Return string
}

// view returns what the page of a session shows, with its status.
func (p *testProvider) view(id string) (testView, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passTime()
	v := testView{Style: template.CSS(testStyle), Title: "There is no such payment"}
	s := p.session(id)
	if s == nil {
		return v, http.StatusNotFound
	}
	v.Name, v.Return, v.Open = s.name, s.returnURL, s.status == "open"
	v.Amount = strings.ToUpper(s.currency) + " " + formatAmount(s.amount)
	v.Declined = s.intent != nil && s.intent.declined
	v.Title = "This payment is done"
	if s.status == "expired" {
		v.Title = "This payment has expired"
	}
	return v, http.StatusOK
}

func (p *testProvider) showPage(w http.ResponseWriter, r *http.Request) {
	v, status := p.view(r.PathValue("id"))
	h := w.Header()
	h.Set("Content-Security-Policy", testPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	showDemo(w, status, "demo_pay.html", v)
}

// takeForm does what a guest has chosen on the page of a session.
func (p *testProvider) takeForm(w http.ResponseWriter, r *http.Request) {
	const maxForm = 1024
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	id, choice := r.PathValue("id"), r.PostFormValue("do")
	v, status := p.view(id)
	if status == http.StatusOK && (choice == "back" || choice == "pay" && p.tryCard(id, true)) {
		http.Redirect(w, r, v.Return, http.StatusSeeOther)
		return
	}
	if choice == "decline" {
		p.tryCard(id, false)
	}
	p.showPage(w, r)
}
