package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A shop is a service with an account that is connected to test providers, in a bubble: their connections
// are in memory.
type shop struct {
	*service
	provider   *testProvider // of cards
	vipps      *vippsFake
	engine     *payments
	connection string // the last one that was made
	method     string // by which guests pay
	currency   string // of orders
	hooks      *http.Client

	mu      sync.Mutex
	notices []func() int // webhooks of the provider that are still to be posted
	calls   []string     // what the provider was asked: "POST /v1/refunds"
	faults  map[string][]providerFault
	before  map[string]func() // by kind of call: done once before the provider acts
	passing func(acted bool)  // if not nil, is called before and after the providers act
}

// A providerFault is how a provider fails to answer one call.
type providerFault string

const (
	faultRefusedConnection providerFault = "connection refused"
	faultResetBefore       providerFault = "reset before it acted"
	faultResetAfter        providerFault = "reset after it acted"
	fault400               providerFault = "400" // it refuses for good, so it is none of allProviderFaults
	fault401               providerFault = "401" // as fault400
	fault401After          providerFault = "401 after it acted"
	fault403               providerFault = "403 of a proxy"
	fault403Keys           providerFault = "403 of the keys" // as fault400
	fault404               providerFault = "404 of a proxy"
	fault413               providerFault = "413 of a gateway"
	fault429After          providerFault = "429 after it acted"
	fault500               providerFault = "500"
	fault500After          providerFault = "500 after it acted"
	fault429               providerFault = "429"
	fault429Day            providerFault = "429 for a day"
	faultTimeout           providerFault = "timeout"
	faultNonsense          providerFault = "nonsense"
	faultHuge              providerFault = "a body of 5 GB"
)

var allProviderFaults = []providerFault{faultRefusedConnection, faultResetBefore, faultResetAfter, fault500,
	fault500After, fault429, fault403, fault404, fault413, faultTimeout, faultNonsense, faultHuge}

const (
	shopProviderURL = "http://127.0.0.1:9"
	shopVippsURL    = "http://127.0.0.1:11"
	shopServiceURL  = "http://127.0.0.1:10"
	shopSecretKey   = "rk_test_51OfTheShopsOwn"
)

// failsFor reports whether an error is a provider's answer, for a reason.
func failsFor(err error, reason string) bool {
	failed, ok := errors.AsType[*outboundError](err)
	return ok && failed.reason == reason
}

// inShop runs a test with a shop in a bubble.
func inShop(t *testing.T, f func(s *shop), connected ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newShop(t, connected...)) })
}

// inShops runs a subtest for each case, with a shop of its own.
func inShops[C any](t *testing.T, cases map[string]C, f func(s *shop, c C), connected ...string) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) { f(s, c) }, connected...)
		})
	}
}

// ofEachProvider runs a subtest in which guests pay by card, and one in which they pay by mobile phone.
func ofEachProvider(t *testing.T, f func(s *shop)) {
	for _, provider := range []string{providerStripe, providerVipps} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			inShop(t, f, provider)
		})
	}
}

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

// serveInMemory serves until the test's end.
func serveInMemory(t testing.TB, h http.Handler) pipes {
	listener := make(pipes)
	web := &http.Server{Handler: h}
	go web.Serve(listener)
	t.Cleanup(func() {
		web.Close()
		time.Sleep(time.Hour) // in the bubble: until every handler has ended
	})
	return listener
}

// dialTo returns how a transport connects to who listens at addresses, "http://127.0.0.1:9".
func dialTo(listening map[string]pipes) func(ctx context.Context, _, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		return listening["http://"+address].connect(ctx)
	}
}

// newShop makes a shop whose account is connected to providers: to that of cards, if none is named. It must
// be made in a bubble.
func newShop(t testing.TB, connected ...string) *shop {
	t.Helper()
	if len(connected) == 0 {
		connected = []string{providerStripe}
	}
	s := &shop{faults: map[string][]providerFault{}, method: providerOf(connected[0]).methods[0], currency: "CHF"}
	s.service = newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow = demoOutbound
		o.urls = map[string]string{"stripe-url": shopProviderURL, "vipps-url": shopVippsURL}
	})
	s.provider = newTestProvider(newOutbound(demoOutbound), shopProviderURL, time.Now)
	s.provider.watch = s.meddle
	s.provider.deliver = func(_ string, post func() int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notices = append(s.notices, post)
	}
	s.vipps = makeVippsFake(t, time.Now, shopVippsURL)
	s.vipps.strikes(s.meddleWithVipps)
	s.engine = paymentsOf(s.server)
	s.serveAll()
	for _, provider := range connected {
		s.connect(provider)
	}
	return s
}

// serveAll has the shop and its providers reach each other.
func (s *shop) serveAll() {
	s.server.outbound.plain.DialContext = dialTo(map[string]pipes{
		shopProviderURL: serveInMemory(s.t, s.provider.handler()), shopVippsURL: serveInMemory(s.t, s.vipps)})
	toShop := dialTo(map[string]pipes{shopServiceURL: serveInMemory(s.t, s.server)})
	s.provider.outbound.plain.DialContext = toShop
	transport := &http.Transport{DialContext: toShop}
	s.hooks = &http.Client{Transport: transport}
	s.t.Cleanup(func() {
		s.server.outbound.close()
		s.provider.outbound.close()
		s.provider.close()
		transport.CloseIdleConnections()
	})
}

// providerOfGuests is that by which guests pay.
func (s *shop) providerOfGuests() string {
	return findMethod(s.method).provider
}

// atProvider changes the session of an attempt at the provider of cards.
func (s *shop) atProvider(p *payment, change func(*testSession)) {
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	change(s.provider.session(*p.SessionID))
}

// capturedThere has somebody capture a part of an attempt on the own pages of the provider of cards.
func (s *shop) capturedThere(p *payment, amount int64) {
	s.atProvider(p, func(x *testSession) {
		x.intent.status, x.intent.received, x.intent.capturable = "succeeded", amount, 0
		x.intent.capturedAt = time.Now().Unix()
	})
}

// connect connects the account to a provider.
func (s *shop) connect(provider string) {
	s.t.Helper()
	id, now := newID("con", time.Now()), newStamp(time.Now())
	conn := &unsealedConnection{paymentConnection: &paymentConnection{ID: id, AccountID: s.account, Provider: provider,
		CreatedAt: now}}
	conn.secrets.Key, conn.Methods = shopSecretKey, providerOf(provider).methods
	if provider == providerVipps {
		conn.secrets, s.currency = s.vipps.secrets, "NOK"
		s.told.hear(conn.secrets.ClientSecret)
	}
	url := shopServiceURL + "/v1/payments/" + provider + "/" + id
	s.check(s.engine.providers[provider].connect(s.t.Context(), conn, url))
	conn.WebhookURL = &url
	s.check(conn.seal(s.keys))
	s.told.hear(shopSecretKey)
	s.told.hear(conn.secrets.WebhookSecret)
	s.change(func(t *tx) error {
		t.addPaymentConnection(conn.paymentConnection)
		return nil
	})
	s.connection = id
	s.takeCalls()
}

// meddle is the watch of the provider of cards.
func (s *shop) meddle(r *http.Request, acted *testAnswer) *testAnswer {
	return s.strike(r.Method+" "+r.URL.Path, acted != nil)
}

// meddleWithVipps is what goes wrong at Vipps. A cancellation of what nobody has paid counts as an expiry.
func (s *shop) meddleWithVipps(r vendorRequest, acted bool) *vendorFault {
	name := r.method + " " + r.path
	if before, ok := strings.CutSuffix(name, "/cancel"); ok && len(r.body) > 0 {
		name = before + "/expire"
	}
	answer := s.strike(name, acted)
	if answer == nil {
		return nil
	}
	if answer.status == 400 { // in Vipps' own form
		_, problem := vippsRefused(answer.status, "state")
		answer.body = encodeJSON(problem)
	}
	return answersWith(answer.status, answer.header, string(answer.body))
}

// strike notes a call, and has it fail if it is to.
func (s *shop) strike(call string, acted bool) *testAnswer {
	if s.passing != nil {
		s.passing(acted)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := callKind(call)
	if !acted {
		s.calls = append(s.calls, call)
		if f := s.before[kind]; f != nil {
			delete(s.before, kind)
			s.mu.Unlock()
			f()
			s.mu.Lock()
		}
	}
	if len(s.faults[kind]) == 0 {
		return nil
	}
	name, own := s.faults[kind][0], 0 // the status of an answer in the provider's own form
	fault := vendorFaults()[name]
	if fault.after != acted {
		return nil
	}
	s.faults[kind] = s.faults[kind][1:]
	switch name {
	case fault400:
		own = 400
	case fault401:
		own = 401
	case fault403Keys:
		own = 403
	case fault429Day:
		return &testAnswer{status: 429, header: http.Header{"Retry-After": {"86400"}}}
	}
	switch body, _ := fault.answer.body.(string); {
	case own > 0:
		return &testAnswer{status: own, body: []byte(`{"error":{"type":"invalid_request_error"}}`)}
	case fault.answer.status > 0:
		return &testAnswer{fault.answer.status, fault.answer.header, []byte(body)}
	case fault.hang:
		s.mu.Unlock()
		time.Sleep(time.Minute)
		s.mu.Lock()
	}
	panic(http.ErrAbortHandler)
}

// callKind names what a call asks for: create, look, capture, cancel, expire or refund, and of Vipps token
// and events.
func callKind(call string) string {
	method, path, _ := strings.Cut(call, " ")
	last := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case last == opCapture, last == opCancel, last == opExpire:
		return last
	case method == "POST" && (last == "refunds" || last == opRefund):
		return opRefund
	case method == "POST" && (last == "sessions" || last == "payments"):
		return opCreate
	case last == "events":
		return last
	case last == "get":
		return "token"
	}
	return "look"
}

// fail has the next calls of a kind fail.
func (s *shop) fail(kind string, faults ...providerFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[kind] = faults
}

// beforeKind has something done when the next call of a kind comes, before the provider acts.
func (s *shop) beforeKind(kind string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = map[string]func(){kind: f}
}

// takeCalls returns what the provider was asked since the last call.
func (s *shop) takeCalls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// takeNotices returns the webhooks that the providers want to post.
func (s *shop) takeNotices() []func() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	posts := s.notices
	s.notices = nil
	s.vipps.mu.Lock()
	defer s.vipps.mu.Unlock()
	for _, n := range s.vipps.queue {
		posts = append(posts, func() int { return s.postOfVipps(n) })
	}
	s.vipps.queue = nil
	return posts
}

// postOfVipps posts a webhook of Vipps and returns the status; 0: there was no answer.
func (s *shop) postOfVipps(n vippsFakeNotice) int {
	s.vipps.mu.Lock()
	request := s.vipps.signed(n)
	s.vipps.mu.Unlock()
	answer, err := s.hooks.Do(request)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

// deliver posts the provider's webhooks.
func (s *shop) deliver() {
	s.t.Helper()
	for _, post := range s.takeNotices() {
		equal(s.t, "the answer to a webhook", post(), http.StatusNoContent)
	}
}

// place makes an order of two dishes and a delivery, 42.00.
func (s *shop) place(change ...func(*order)) *order {
	s.t.Helper()
	o := &order{AccountID: s.account, Currency: s.currency, ReturnURL: siteOrigin + "/thanks", Lines: []orderLine{
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
	return s.row(o.ID)
}

// refundsOf reads the refunds of an order.
func (s *shop) refundsOf(orderID string) []refund {
	s.t.Helper()
	refunds, err := s.store.refundsOf(orderID)
	s.check(err)
	return refunds
}

// eventsOf counts the events of a type.
func (s *shop) eventsOf(kind eventType) int {
	s.t.Helper()
	return s.count(`SELECT count(*) FROM events WHERE type = ?`, kind)
}

// asked counts the calls of a kind that came since takeCalls.
func (s *shop) asked(kind string) (n int) {
	for _, call := range s.takeCalls() {
		if callKind(call) == kind {
			n++
		}
	}
	return n
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

// start begins to pay an order, and returns the attempt.
func (s *shop) start(orderID string) *payment {
	s.t.Helper()
	url, err := s.engine.startAttempt(s.t.Context(), orderID, s.method, siteOrigin+"/return")
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
	if p.Provider == providerVipps {
		s.vipps.approve(p.ID)
	} else if !s.provider.tryCard(*p.SessionID, true) {
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
	return s.row(o.ID), p
}

// paid returns an order that was paid, and its attempt.
func (s *shop) paid() (*order, *payment) {
	s.t.Helper()
	o, p := s.authorized()
	s.accept(o.ID)
	s.handOver(p)
	p = s.settle(p)
	s.states(o.ID, orderPaid, paymentCaptured)
	return s.row(o.ID), p
}

// handOver has the money of an accepted order captured, if accepting it did not ask for that.
func (s *shop) handOver(p *payment) {
	s.t.Helper()
	if p.Provider == providerVipps {
		s.change(func(t *tx) error { _, err := captureOrder(t, anyAccount, p.OrderID); return err })
	}
}

// accept accepts an order.
func (s *shop) accept(id string, lines ...linePart) {
	s.t.Helper()
	s.change(func(t *tx) error {
		_, err := acceptOrder(t, anyAccount, id, lines, stamp{}, actorCommand)
		return err
	})
}

// refund asks for a refund of an amount, 0 for all that is left.
func (s *shop) refund(id string, amount int64) *refund {
	s.t.Helper()
	var made *refund
	s.change(func(t *tx) (err error) {
		w := newRefund{}
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
	o, p := s.row(orderID), s.attempt(orderID)
	if string(o.State) != order || string(p.State) != attempt {
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

// A providersMoney is what a provider has of an attempt.
type providersMoney struct {
	payable                        bool  // the guest can pay
	authorized, captured, refunded int64 // authorized: what can still be captured
	captures, refunds              int   // how often
}

// held reports whether money of the guest is with the provider.
func (m *providersMoney) held() bool { return m.authorized > 0 || m.captured > m.refunded }

// money returns what the provider has of an attempt, whatever our rows say.
func (s *shop) money(p *payment) (m providersMoney) {
	if p.Provider == providerVipps {
		s.vipps.mu.Lock()
		defer s.vipps.mu.Unlock()
		if v := s.vipps.payment(vippsReference(p.ID)); v != nil {
			m = providersMoney{payable: v.state == "CREATED", captured: v.captured, refunded: v.refunded,
				authorized: max(0, v.authorized-v.captured-v.cancelled)}
			for _, e := range v.events {
				switch e["name"] {
				case "CAPTURED":
					m.captures++
				case "REFUNDED":
					m.refunds++
				}
			}
		}
		return m
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.provider.passTime()
	for _, session := range s.provider.sessions {
		if session.reference == p.ID {
			m.add(session)
		}
	}
	return m
}

// add adds what a session has.
func (m *providersMoney) add(session *testSession) {
	m.payable = m.payable || session.status == "open"
	i := session.intent
	if i == nil {
		return
	}
	m.authorized, m.captured = m.authorized+i.capturable, m.captured+i.received
	if i.received > 0 {
		m.captures++
	}
	for _, r := range i.refunds {
		if r.status != "failed" && !r.released {
			m.refunds, m.refunded = m.refunds+1, m.refunded+r.amount
		}
	}
}

// work runs the worker until the test's end. tick is for tests that last for hours.
func (s *shop) work(tick ...time.Duration) (stop func()) {
	w := newPaymentWorker(s.engine)
	if len(tick) > 0 {
		w.tick = tick[0]
	}
	return s.beside(w.run)
}
