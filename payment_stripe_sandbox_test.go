package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A stripeTest is the client of Stripe, connected to a sandbox whose clock the test moves.
type stripeTest struct {
	*testProvider
	t      testing.TB
	ahead  atomic.Int64 // of the provider's clock
	client *stripeProvider
	c      *unsealedConnection
	guest  *http.Client // a browser that follows no redirect
	order  *order
}

const testReturnURL = "https://orders.example.com/done"

// newStripeTest starts a test provider on loopback.
func newStripeTest(t testing.TB) *stripeTest {
	t.Helper()
	s := &stripeTest{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler().ServeHTTP(w, r)
	}))
	o := newOutbound(demoOutbound)
	s.testProvider = newTestProvider(o, server.URL, s.clock)
	t.Cleanup(func() { server.Close(); s.close(); o.close() })
	s.client = newStripeProvider(o, server.URL)
	s.c = testConnection()
	s.guest = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(s.guest.CloseIdleConnections)
	s.order = &order{ID: newID("ord", s.clock()), Currency: "CHF", ExpiresAt: newStamp(s.clock()).after(time.Hour)}
	return s
}

func testConnection() *unsealedConnection {
	return &unsealedConnection{&paymentConnection{ID: newID("con", time.Now()), Provider: providerStripe},
		connectionSecrets{Key: "rk_test_123"}}
}

func (s *stripeTest) clock() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// inside looks into the provider, or changes it, between two calls.
func (s *stripeTest) inside(look func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	look()
}

// watches sets the provider's watch.
func (s *stripeTest) watches(watch func(*http.Request, *testAnswer) *testAnswer) {
	s.inside(func() { s.watch = watch })
}

// does carries out an operation, which must succeed.
func (s *stripeTest) does(kind string, p *payment, amount int64) sentOperation {
	s.t.Helper()
	op := testOperation(kind, p, amount)
	sent, err := s.client.send(s.t.Context(), s.c, op, s.client.call(op, p, s.order, testReturnURL))
	if err != nil {
		s.t.Fatalf("%s: %v", kind, err)
	}
	return sent
}

func testOperation(kind string, p *payment, amount int64) *paymentOperation {
	op := &paymentOperation{ID: newID("op", time.Now()), PaymentID: p.ID, Kind: kind, Amount: amount}
	if kind == opRefund {
		op.RefundID = ptr(newID("ref", time.Now()))
	}
	return op
}

// starts makes an attempt of 20.00, for which there is a session then.
func (s *stripeTest) starts() *payment {
	s.t.Helper()
	now := newStamp(s.clock())
	p := &payment{ID: newID("pay", now.Time), OrderID: s.order.ID, Method: methodCard, Amount: 2000, Currency: "CHF",
		State: paymentCreated, CreatedAt: now}
	done := s.does(opCreate, p, p.Amount)
	p.SessionID, p.URL, p.State = &done.sessionID, &done.url, paymentPending
	return p
}

// looks reads the state of an attempt, which must succeed, and keeps what it says.
func (s *stripeTest) looks(p *payment) *paymentReport {
	s.t.Helper()
	r, err := s.client.fetchStatus(s.t.Context(), s.c, p)
	must(s.t, err)
	p.SessionID, p.IntentID = nilIfEmpty(r.sessionID), nilIfEmpty(r.intentID)
	if r.captured > 0 {
		p.State = paymentCaptured
	}
	return r
}

// chooses presses a button on the page of an attempt.
func (s *stripeTest) chooses(p *payment, choice string) *http.Response {
	s.t.Helper()
	resp, err := s.guest.PostForm(*p.URL, url.Values{"do": {choice}})
	must(s.t, err)
	s.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// authorized starts an attempt and pays it.
func (s *stripeTest) authorized() *payment {
	s.t.Helper()
	p := s.starts()
	if resp := s.chooses(p, "pay"); resp.StatusCode != 303 || resp.Header.Get("Location") != testReturnURL {
		s.t.Fatalf("paying answers %d to %q", resp.StatusCode, resp.Header.Get("Location"))
	}
	s.looks(p)
	return p
}

// captured starts an attempt, pays it, and captures a part.
func (s *stripeTest) captured(amount int64) *payment {
	s.t.Helper()
	p := s.authorized()
	s.does(opCapture, p, amount)
	s.looks(p)
	return p
}

// failRefund lets a refund fail that had succeeded.
func (p *testProvider) failRefund(intentID, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.intent(intentID)
	r := i.refunds[slices.IndexFunc(i.refunds, func(r *testRefund) bool { return r.id == id })]
	r.status, r.failure = "failed", "lost_or_stolen_card"
	p.emit("refund.failed", r.object(i))
}

// dispute opens a dispute about all of a payment, or decides it: "needs_response", "won", "lost".
func (p *testProvider) dispute(intentID, status string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, kind := p.intent(intentID), "charge.dispute.closed"
	if len(i.disputes) == 0 {
		i.disputes, kind = append(i.disputes, &testDispute{p.newID("du_"), "", i.received, p.now().Unix(), 0}),
			"charge.dispute.created"
	}
	if i.disputes[0].status = status; status == "won" {
		i.disputes[0].reinstated = p.now().Unix()
	}
	p.emit(kind, i.disputes[0].object(i))
}

// startStripeMock starts the vendor's own mock, which knows the form of every request, and returns its
// address.
func startStripeMock(t testing.TB) string {
	t.Helper()
	programsOrSkip(t, "stripe-mock")
	cmd := exec.Command("stripe-mock", "-http-addr", "127.0.0.1:", "-strict-version-check")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		io.Copy(io.Discard, out)
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), "Listening for HTTP at address: "); ok {
			go io.Copy(io.Discard, out) // what it logs of each request
			return "http://" + address
		}
	}
	t.Fatal("stripe-mock does not say where it listens")
	return ""
}

// forwardTo sends each request to the vendor's mock before it is carried out, and fails the test with what
// the mock refuses.
func (s *stripeTest) forwardTo(mock string) (seen *[]string) {
	seen = new([]string)
	s.watches(func(r *http.Request, acted *testAnswer) *testAnswer {
		if acted != nil {
			return nil
		}
		body, _ := io.ReadAll(r.Body)
		forwarded, err := http.NewRequest(r.Method, mock+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			s.t.Error(err)
			return nil
		}
		forwarded.Header = r.Header.Clone()
		forwarded.Header.Set("Authorization", "Bearer sk_test_123")
		resp, err := s.guest.Do(forwarded)
		if err != nil {
			s.t.Error(err)
			return nil
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
			s.t.Errorf("%s %s: stripe-mock answers %d to %s\n%s", r.Method, r.URL, resp.StatusCode, body, text)
		}
		*seen = append(*seen, r.Method+" "+r.URL.Path)
		return nil
	})
	return seen
}

func TestTestProvider_refusesWhatCanNotFollow(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	open, authorized, captured, cancelled := s.starts(), s.authorized(), s.captured(1500), s.authorized()
	s.does(opCancel, cancelled, 0)
	refunded := s.captured(2000)
	s.does(opRefund, refunded, 1999)
	for _, c := range []struct {
		name, kind string
		p          *payment
		amount     int64
		reason     string
	}{
		{"capturing what nobody has paid", opCapture, open, 100, "resource_missing"},
		{"capturing more than is authorised", opCapture, authorized, 2001, "amount_too_large"},
		{"capturing nothing", opCapture, authorized, 0, "amount_too_small"},
		{"capturing twice", opCapture, captured, 500, "payment_intent_unexpected_state"},
		{"capturing what was cancelled", opCapture, cancelled, 500, "payment_intent_unexpected_state"},
		{"cancelling twice", opCancel, cancelled, 0, "payment_intent_unexpected_state"},
		{"cancelling what was captured", opCancel, captured, 0, "payment_intent_unexpected_state"},
		{"expiring what was paid", opExpire, authorized, 0, "invalid_request_error"},
		{"giving back what was not captured", opRefund, authorized, 100, "payment_intent_unexpected_state"},
		{"giving back more than was captured", opRefund, captured, 1501, "amount_too_large"},
		{"giving back more than is left", opRefund, refunded, 2, "amount_too_large"},
	} {
		op := testOperation(c.kind, c.p, c.amount)
		call := s.client.call(op, c.p, s.order, testReturnURL)
		if c.p.IntentID == nil && c.kind == opCapture {
			call.Path = "/v1/payment_intents/pi_none/capture"
		}
		_, err := s.client.send(t.Context(), s.c, op, call)
		if failed, ok := errors.AsType[*outboundError](err); !ok || !failed.final() || failed.reason != c.reason {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	s.does(opRefund, refunded, 1)
	s.does(opCancel, authorized, 0)
}

// TestClients_sandboxOfStripe serves a sandbox at the address that WIDGETD_SANDBOX names, for the programs of
// .ci/clients/run, until its standard input ends.
func TestClients_sandboxOfStripe(t *testing.T) {
	t.Parallel()
	address := os.Getenv("WIDGETD_SANDBOX")
	if address == "" {
		t.Skip("WIDGETD_SANDBOX names no address: .ci/clients/run runs this test")
	}
	sandbox := newTestProvider(newOutbound(demoOutbound), "http://"+address, time.Now)
	defer sandbox.close()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	web := &http.Server{Handler: sandbox.handler()}
	go web.Serve(listener)
	defer web.Close()
	io.Copy(io.Discard, os.Stdin)
}
