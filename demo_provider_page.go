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

func (p *testProvider) readWebhook(id string, _ url.Values) *testAnswer {
	h := p.hooks[id]
	if h == nil {
		return testMissing()
	}
	return testOK(h.object())
}

func (p *testProvider) deleteWebhook(id string, _ url.Values) *testAnswer {
	if p.hooks[id] == nil {
		return testMissing()
	}
	delete(p.hooks, id)
	return testOK(testObject{"id": id, "object": "webhook_endpoint", "deleted": true})
}

// emit sends an event to all webhooks that ask for it, independently of each other and in no particular order.
func (p *testProvider) emit(kind string, object testObject) {
	body := encodeJSON(testObject{
		"id": p.newID("evt_"), "object": "event", "type": kind, "api_version": stripeVersion,
		"created": p.now().Unix(), "livemode": false, "data": testObject{"object": object},
	})
	for _, h := range p.hooks {
		if h.status != "enabled" || !slices.Contains(h.events, kind) {
			continue
		}
		post := func() int { return p.post(h.url, h.secret, body) }
		if p.deliver != nil {
			p.deliver(kind, post)
			continue
		}
		if p.pending >= maxTestDeliveries {
			continue
		}
		p.pending++
		p.posts.Go(func() { p.postUntilTaken(post) })
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
const testStyle = `
:root{color-scheme:light dark;--back:#fff;--text:#1f2328;--warn:#ffe8a3;--line:#8c959f;--pay:#0a5c7d;--on:#fff}
@media(prefers-color-scheme:dark){
:root{--back:#0d1117;--text:#f0f6fc;--warn:#5c4400;--line:#8b949e;--pay:#7cc7e8;--on:#0d1117}}
body{margin:0;background:var(--back);color:var(--text);font:1.0625rem/1.5 system-ui,sans-serif}
.test{margin:0;padding:.75rem 1rem;background:var(--warn);text-align:center}
main{max-width:26rem;margin:0 auto;padding:1rem}
h1{font-size:1.25rem;overflow-wrap:anywhere}
.amount{font-size:2rem;margin:.5rem 0 1rem}
button,.back{display:block;box-sizing:border-box;width:100%;min-height:3rem;margin:.75rem 0;padding:.6rem 1rem;
border:1px solid var(--line);border-radius:.5rem;background:none;color:inherit;font:inherit;text-align:center;
text-decoration:none;cursor:pointer}
.pay{background:var(--pay);border-color:var(--pay);color:var(--on);font-weight:600}
`

// testPolicy is the Content-Security-Policy of the pages. It has no form-action, since browsers apply that also to
// redirects that answer a form.
var testPolicy = func() string {
	hash := sha256.Sum256([]byte(testStyle))
	return "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(hash[:]) + "'"
}()

// testPage is the page of a session.
var testPage = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Test payment</title>
<style>{{.Style}}</style>
</head>
<body>
<p class="test"><strong>This is a test provider of the demo. No money moves.</strong></p>
<main>
{{- if .Open}}
<h1>{{.Name}}</h1>
<p class="amount">{{.Amount}}</p>
{{- if .Declined}}
<p role="alert">The card was declined. Nothing was taken; you can try again.</p>
{{- end}}
<form method="post">
<button class="pay" name="do" value="pay">Pay</button>
<button name="do" value="decline">Decline</button>
<button name="do" value="back">Go back</button>
</form>
{{- else}}
<h1>{{.Title}}</h1>
{{- if .Return}}
<a class="back" href="{{.Return}}">Go back</a>
{{- end}}
{{- end}}
</main>
</body>
</html>
`))

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
	v := testView{Style: testStyle, Title: "There is no such payment"}
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
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", testPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	testPage.Execute(w, v) // the client has gone, so write errors are ignored
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
