package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"
)

// A hookServer is a receiver on a real port. It passes on the id of each webhook, and answers 204 once
// it is told to.
type hookServer struct {
	t    *testing.T
	url  string
	ids  chan string
	hold chan struct{} // closed: answers at once
}

func newHookServer(t *testing.T) *hookServer {
	h := &hookServer{t: t, ids: make(chan string, 100), hold: make(chan struct{})}
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	h.url = web.URL
	return h
}

func (h *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ ID, Type string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.ID != r.Header.Get("webhook-id") {
		h.t.Errorf("a webhook with the id %q and the body's %q: %v", r.Header.Get("webhook-id"), body.ID, err)
	}
	if body.Type != string(eventWebhookTest) {
		h.ids <- body.ID
		select {
		case <-h.hold:
		case <-r.Context().Done():
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// next returns the id of the next webhook.
func (h *hookServer) next() string {
	h.t.Helper()
	select {
	case id := <-h.ids:
		return id
	case <-time.After(time.Minute):
		h.t.Fatal("no webhook came for a minute")
		return ""
	}
}

// enabled waits until a webhook is enabled.
func (o *operator) enabled(id string) {
	o.t.Helper()
	for end := time.Now().Add(time.Minute); o.object("webhook", "show", id)["state"] != webhookEnabled; {
		if time.Now().After(end) {
			o.t.Fatalf("it is not enabled: %v\n%s", o.object("webhook", "show", id),
				o.do("webhook", "delivery", "list", id))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// Against a crash between sending a webhook and recording it that would lose an event, or send it as another one:
// it is sent again with the same id; positions and results are written in one transaction.
func TestWebhook_killedBetweenSendingAndRecordingIsSentAgainWithTheSameID(t *testing.T) {
	t.Parallel()
	o, h := newOperator(t), newHookServer(t)
	p := serveProcess(t, o, "-outbound-allow", "127.0.0.0/8")
	o.env["WIDGETD_OUTBOUND_ALLOW"] = "127.0.0.0/8"
	hook := o.object("webhook", "add", h.url, "-account", o.account, "-type", "lead.created")["id"].(string)
	o.enabled(hook)
	o.customer(p).lead("ada@example.com")
	first := h.next()
	p.stop(os.Kill)
	for range 2 { // and once more, since it may be killed again
		p = serveProcess(t, o, "-outbound-allow", "127.0.0.0/8")
		if again := h.next(); again != first {
			t.Fatalf("after a kill came %s, want %s again", again, first)
		}
		p.stop(os.Kill)
	}
	close(h.hold)
	p = serveProcess(t, o, "-outbound-allow", "127.0.0.0/8")
	if again := h.next(); again != first {
		t.Fatalf("then came %s, want %s again", again, first)
	}
	o.customer(p).lead("grace@example.com")
	if next := h.next(); next == first {
		t.Fatalf("%s came again, although it was accepted", next)
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Errorf("the stop: %v", err)
	}
	leads := 0
	for _, d := range o.objects("webhook", "delivery", "list", hook) {
		if d["type"] == string(eventLeadCreated) && d["status"] == 204.0 {
			leads++
		}
	}
	if leads != 2 {
		t.Errorf("the log of deliveries has %d of 2 leads", leads)
	}
	p = serveProcess(t, o, "-outbound-allow", "127.0.0.0/8", "-no-webhooks")
	o.customer(p).lead("edith@example.com")
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Errorf("the stop: %v", err)
	}
	if len(h.ids) > 0 {
		t.Error("a service sent a webhook that was told to send none")
	}
}
