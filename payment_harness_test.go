package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A shop is a service with an account that is connected to a test provider, in a bubble: their
// connections are in memory.
type shop struct {
	*service
	provider   *testProvider
	engine     *payments
	connection string

	mu      sync.Mutex
	notices []func() int // webhooks of the provider that are still to be posted
	calls   []string     // what the provider was asked: "POST /v1/refunds"
	faults  map[string][]providerFault
}

// A providerFault is how a provider fails to answer one call.
type providerFault string

const (
	faultRefusedConnection providerFault = "connection refused"
	faultResetBefore       providerFault = "reset before it acted"
	faultResetAfter        providerFault = "reset after it acted"
	fault500               providerFault = "500"
	fault500After          providerFault = "500 after it acted"
	fault429               providerFault = "429"
	faultTimeout           providerFault = "timeout"
	faultNonsense          providerFault = "nonsense"
	faultHuge              providerFault = "a body of 5 GB"
)

var allProviderFaults = []providerFault{faultRefusedConnection, faultResetBefore, faultResetAfter, fault500,
	fault500After, fault429, faultTimeout, faultNonsense, faultHuge}

const (
	shopProviderURL = "http://127.0.0.1:9"
	shopServiceURL  = "http://127.0.0.1:10"
	shopSecretKey   = "rk_test_51OfTheShopsOwn"
)

// pipes is a listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { defer func() { recover() }(); close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// connect returns a new connection to who listens.
func (p pipes) connect(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p <- there:
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveInMemory serves until the test's end, and has an outbound client connect to it whatever it calls.
func serveInMemory(t testing.TB, h http.Handler, o *outbound) {
	listener := make(pipes)
	o.plain.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.connect(ctx) }
	web := &http.Server{Handler: h}
	go web.Serve(listener)
	t.Cleanup(func() {
		o.close()
		web.Close()
		time.Sleep(time.Hour) // in the bubble: until every handler has ended
	})
}

// newShop makes a shop. It must be made in a bubble.
func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{faults: map[string][]providerFault{}}
	s.service = newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.stripeURL = demoOutbound, shopProviderURL
	})
	s.provider = newTestProvider(newOutbound(demoOutbound), shopProviderURL, time.Now)
	s.provider.watch = s.meddle
	s.provider.deliver = func(_ string, post func() int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notices = append(s.notices, post)
	}
	serveInMemory(t, s.provider.handler(), s.server.outbound)
	serveInMemory(t, s.server, s.provider.outbound)
	t.Cleanup(s.provider.close)
	s.engine = paymentsOf(s.server)
	s.connect()
	return s
}

// connect connects the account to the provider.
func (s *shop) connect() {
	s.t.Helper()
	id := newID("con", time.Now())
	conn := &openConnection{paymentConnection: &paymentConnection{ID: id, AccountID: s.account,
		Provider: providerStripe, CreatedAt: newStamp(time.Now())}}
	conn.secrets.Key = shopSecretKey
	url := shopServiceURL + "/v1/payments/stripe/" + id
	s.check(s.engine.providers[providerStripe].connect(s.t.Context(), conn, url))
	conn.WebhookURL = &url
	s.check(conn.seal(s.keys))
	s.told.hear(shopSecretKey)
	s.told.hear(conn.secrets.WebhookSecret)
	s.change(func(t *tx) error { return t.addPaymentConnection(conn.paymentConnection) })
	s.connection = id
	s.takeCalls()
}

// meddle is the provider's watch: it notes calls, and has those fail that are to.
func (s *shop) meddle(r *http.Request, acted *testAnswer) *testAnswer {
	name := r.Method + " " + r.URL.Path
	s.mu.Lock()
	defer s.mu.Unlock()
	if acted == nil {
		s.calls = append(s.calls, name)
	}
	kind := callKind(name)
	if len(s.faults[kind]) == 0 {
		return nil
	}
	fault := s.faults[kind][0]
	after := fault == faultResetAfter || fault == fault500After || fault == faultTimeout || fault == faultNonsense ||
		fault == faultHuge
	if after != (acted != nil) {
		return nil
	}
	s.faults[kind] = s.faults[kind][1:]
	switch fault {
	case fault500, fault500After:
		return &testAnswer{status: 500, body: []byte(`{"error":{"type":"api_error"}}`)}
	case fault429:
		return &testAnswer{status: 429, header: http.Header{"Retry-After": {"3"}}, body: []byte(`{"error":{"type":"x"}}`)}
	case faultTimeout:
		s.mu.Unlock()
		time.Sleep(time.Minute)
		s.mu.Lock()
	case faultNonsense:
		return &testAnswer{status: 200, body: []byte(`{"id":`)}
	case faultHuge:
		return &testAnswer{status: 200, body: []byte(strings.Repeat(" ", maxStripeAnswer+1))}
	}
	panic(http.ErrAbortHandler)
}

// callKind names what a call asks for: create, look, capture, cancel, expire or refund.
func callKind(call string) string {
	method, path, _ := strings.Cut(call, " ")
	last := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case last == opCapture, last == opCancel, last == opExpire:
		return last
	case method == "POST" && last == "refunds":
		return opRefund
	case method == "POST" && last == "sessions":
		return opCreate
	}
	return "look"
}

// fail has the next calls of a kind fail.
func (s *shop) fail(kind string, faults ...providerFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[kind] = faults
}

// takeCalls returns what the provider was asked since the last call.
func (s *shop) takeCalls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// takeNotices returns the webhooks that the provider wants to post.
func (s *shop) takeNotices() []func() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	posts := s.notices
	s.notices = nil
	return posts
}

// deliver posts the provider's webhooks.
func (s *shop) deliver() {
	s.t.Helper()
	for _, post := range s.takeNotices() {
		if status := post(); status != http.StatusNoContent {
			s.t.Errorf("a webhook is answered with %d", status)
		}
	}
}

// place makes an order of two dishes and a delivery, 42.00 CHF.
func (s *shop) place(change ...func(*order)) *order {
	s.t.Helper()
	o := &order{AccountID: s.account, Currency: "CHF", ReturnURL: siteOrigin + "/thanks", Lines: []orderLine{
		{Name: "Pizza", Quantity: 2, UnitAmount: 1850, VATRate: 260, Group: "food"},
		{Name: "Wine", Quantity: 1, UnitAmount: 0, VATRate: 810},
	}, Delivery: 500, DeliveryRate: 810}
	for _, f := range change {
		f(o)
	}
	s.change(func(t *tx) error {
		_, err := createOrder(t, o, guest{}, minOrderLife, actorCommand)
		return err
	})
	return s.order(o.ID)
}

// order reads an order.
func (s *shop) order(id string) *order {
	s.t.Helper()
	o, err := s.store.order(anyAccount, id)
	s.check(err)
	return o
}

// attempt reads the last attempt to pay an order.
func (s *shop) attempt(orderID string) *payment {
	s.t.Helper()
	all, err := s.store.paymentsOf(orderID)
	s.check(err)
	if len(all) == 0 {
		s.t.Fatal("there is no attempt")
	}
	return &all[len(all)-1]
}

// start begins to pay an order by card, and returns the attempt.
func (s *shop) start(orderID string) *payment {
	s.t.Helper()
	url, err := s.engine.startAttempt(s.t.Context(), orderID, methodCard, siteOrigin+"/return")
	s.check(err)
	p := s.attempt(orderID)
	if url != valueOr(p.URL, "") {
		s.t.Fatalf("the guest is sent to %s", url)
	}
	return p
}

// authorize has the guest pay an attempt at the provider.
func (s *shop) authorize(p *payment) {
	s.t.Helper()
	if !s.provider.tryCard(*p.SessionID, true) {
		s.t.Fatal("the provider does not take the card")
	}
}

// settle settles an attempt.
func (s *shop) settle(p *payment) *payment {
	s.t.Helper()
	s.check(s.engine.settle(s.t.Context(), p.ID))
	return s.attempt(p.OrderID)
}

// authorized returns an order whose money is authorised, and its attempt.
func (s *shop) authorized(change ...func(*order)) (*order, *payment) {
	s.t.Helper()
	o := s.place(change...)
	p := s.start(o.ID)
	s.authorize(p)
	p = s.settle(p)
	s.states(o.ID, orderAuthorized, paymentAuthorized)
	return s.order(o.ID), p
}

// paid returns an order that was paid, and its attempt.
func (s *shop) paid() (*order, *payment) {
	s.t.Helper()
	o, p := s.authorized()
	s.accept(o.ID)
	p = s.settle(p)
	s.states(o.ID, orderPaid, paymentCaptured)
	return s.order(o.ID), p
}

// accept accepts an order.
func (s *shop) accept(id string, lines ...lineQuantity) {
	s.t.Helper()
	s.change(func(t *tx) error {
		_, err := acceptOrder(t, anyAccount, id, lines, actorCommand)
		return err
	})
}

// refund asks for a refund of an amount, 0 for all that is left.
func (s *shop) refund(id string, amount int64) *refund {
	s.t.Helper()
	var made *refund
	s.change(func(t *tx) (err error) {
		w := refundWish{}
		if amount > 0 {
			w.amount = &amount
		}
		_, made, err = refundOrder(t, anyAccount, id, w, actorCommand)
		return err
	})
	return made
}

// states compares the states of an order and its last attempt.
func (s *shop) states(orderID, order, attempt string) {
	s.t.Helper()
	o, p := s.order(orderID), s.attempt(orderID)
	if o.State != order || p.State != attempt {
		s.t.Fatalf("the order is %s (closing %q), its attempt %s (%s); want %s and %s", o.State, valueOr(o.Closing, ""),
			p.State, valueOr(p.Reason, ""), order, attempt)
	}
}

// events counts the events of an order by type.
func (s *shop) events(orderID string) map[eventType]int {
	s.t.Helper()
	n := map[eventType]int{}
	s.check(s.store.each(`SELECT type FROM events WHERE subject_id = ?`, []any{orderID},
		func(scan func(...any) error) error {
			var kind eventType
			err := scan(&kind)
			n[kind]++
			return err
		}))
	return n
}

// once checks that an order has exactly one event of each of some types.
func (s *shop) once(orderID string, kinds ...eventType) {
	s.t.Helper()
	n := s.events(orderID)
	for _, kind := range kinds {
		if n[kind] != 1 {
			s.t.Errorf("%d events %s; want one", n[kind], kind)
		}
	}
}

// intent returns the provider's payment of an attempt.
func (s *shop) intent(p *payment) testIntent {
	s.t.Helper()
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	session := s.provider.session(*p.SessionID)
	if session == nil || session.intent == nil {
		s.t.Fatal("the provider has no payment of this attempt")
	}
	return *session.intent
}

// work runs the worker until the test's end.
func (s *shop) work() (stop func()) {
	return s.beside(newPaymentWorker(s.engine, time.Now).run)
}
