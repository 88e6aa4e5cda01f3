package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A killedShop is one whose account is connected with a test provider.
type killedShop struct {
	*killed
	provider *testProvider
}

func newKilledShop(t *testing.T) *killedShop {
	s := &killedShop{newKilled(newOperator(t)), newTestProvider(newOutbound(demoOutbound), "", time.Now)}
	provider := s.provider.handler()
	s.vendor = func(r *http.Request) (http.Handler, string) { return provider, callKind(r.Method + " " + r.URL.Path) }
	s.options = func() []string { return []string{"-outbound-allow", "127.0.0.0/8", "-stripe-url", s.web.URL} }
	s.provider.base = s.web.URL
	s.provider.deliver = func(string, func() int) {} // nothing but the poller notices
	t.Cleanup(s.provider.close)
	s.connectCards()
	s.serve()
	return s
}

// connectCards connects the operator's account with a test provider of cards.
func (o *operator) connectCards() {
	o.t.Helper()
	keys, err := loadKeyring(o.env["WIDGETD_KEY"])
	must(o.t, err)
	o.change(func(t *tx) error {
		conn := &unsealedConnection{paymentConnection: &paymentConnection{ID: t.newID("con"), AccountID: o.account,
			Provider: providerStripe, CreatedAt: t.now}}
		conn.secrets.Key = shopSecretKey
		if err := conn.seal(keys); err != nil {
			return err
		}
		t.addPaymentConnection(conn.paymentConnection)
		return nil
	})
}

// killedAt has the service killed at the next call of a kind, runs act, which leads to that call, and starts the
// service again. What it waits for after that, which would take seconds, is due at once; its file is changed only once
// it has started, so that it finds it as the kill has left it.
func (s *killedShop) killedAt(kind, moment string, act func()) {
	s.t.Helper()
	s.killAt(kind, moment, 0)
	act()
	s.awaitKill()
	s.serve()
	s.change(func(t *tx) error {
		_, err := t.try(`UPDATE payments SET due_at = ?1 WHERE due_at > ?1`, t.now)
		return err
	})
}

// pay presses the button of the pay page, and returns the address of the provider's page; "" without an
// answer.
func (s *killedShop) pay(order, key string) string {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.PostForm(s.process.base+"/pay/"+order+"?k="+key, url.Values{"method": {methodCard}})
	if err != nil {
		return ""
	}
	res.Body.Close()
	return res.Header.Get("Location")
}

// authorize has the guest pay on the provider's page at an address.
func (s *killedShop) authorize(order, page string) {
	s.t.Helper()
	if !s.provider.tryCard(page[strings.LastIndexByte(page, '/')+1:], true) {
		s.t.Fatal("the guest can't pay")
	}
	s.do("order", "settle", order)
	s.await(order, orderAuthorized, paymentAuthorized)
}

// await waits until an order and its payment have these states. The database is open meanwhile only, so that
// whoever starts after a kill finds it as the kill has left it.
func (s *killedShop) await(order, state, payment string) {
	s.t.Helper()
	s.store(func(st *store) {
		for end := time.Now().Add(time.Minute); ; {
			o, err := st.order(anyAccount, order)
			must(s.t, err)
			all, err := st.paymentsOf(order)
			must(s.t, err)
			got := string(o.State)
			if len(all) > 0 {
				got += " " + string(all[len(all)-1].State)
			}
			if got == state+" "+payment {
				return
			}
			if time.Now().After(end) {
				s.t.Fatalf("the order and its payment are %s; want %s %s\n%s", got, state, payment,
					s.process.log.String())
			}
			<-time.After(20 * time.Millisecond)
		}
	})
}

// place makes an order of 37.00 CHF, and returns its id and the key of its page.
func (s *killedShop) place() (id, key string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		o := &order{AccountID: s.account, Currency: "CHF", ReturnURL: siteOrigin + "/thanks",
			Lines: []orderLine{{Name: "Pizza", Quantity: 2, UnitAmount: 1850, VATRate: 260}}}
		key, err = createOrder(t, o, guest{}, minOrderLife, anActor)
		id = o.ID
		return err
	})
	s.told.hear(key)
	return id, key
}

// paidWhileKilled kills the service at a moment while it makes a page for paying, captures and gives back money.
func (s *killedShop) paidWhileKilled(create, capture, refund string) {
	s.t.Helper()
	id, key := s.place()
	before := len(s.provider.sessions)
	s.killedAt(opCreate, create, func() { go s.pay(id, key) })
	where := s.pay(id, key)
	for end := time.Now().Add(time.Minute); !strings.HasPrefix(where, s.provider.base); where = s.pay(id, key) {
		if time.Now().After(end) {
			s.t.Fatalf("the guest is sent to %q\n%s", where, s.process.log.String())
		}
		<-time.After(50 * time.Millisecond)
	}
	if n := len(s.provider.sessions) - before; n != 1 {
		s.t.Fatalf("%d sessions of one order", n)
	}
	s.authorize(id, where)
	s.killedAt(opCapture, capture, func() { s.do("order", "accept", id) })
	s.await(id, orderPaid, paymentCaptured)
	s.killedAt(opRefund, refund, func() { s.do("order", "refund", id, "-amount", "10.00") })
	s.await(id, orderPartRefunded, paymentPartRefunded)
	s.do("order", "refund", id)
	s.await(id, orderRefunded, paymentRefunded)
	equal(s.t, "refunds", len(s.object("order", "show", id)["refunds"].([]any)), 2)
	s.provider.mu.Lock()
	if i := s.provider.sessions[len(s.provider.sessions)-1].intent; i.received != 3700 || len(i.refunds) != 2 {
		s.t.Errorf("received %d, %d refunds", i.received, len(i.refunds))
	}
	s.provider.mu.Unlock()
	for _, kind := range []eventType{eventOrderAuthorized, eventOrderAccepted, eventOrderPaid} {
		n := 0
		for _, e := range s.objects("event", "list", "-type", string(kind)) {
			if e["subject_id"] == id {
				n++
			}
		}
		equal(s.t, string(kind), n, 1)
	}
}

// releasedWhileKilled kills the service at a moment while it gives back what is reserved, and while it ends a page for
// paying.
func (s *killedShop) releasedWhileKilled(release, expire string) {
	s.t.Helper()
	id, key := s.place()
	s.authorize(id, s.pay(id, key))
	s.killedAt(opCancel, release, func() { s.do("order", "reject", id) })
	s.await(id, orderCancelled, paymentCancelled)

	token := strings.TrimSpace(s.do("token", "issue", "-scope", scopeSelling))
	id, key = s.place()
	s.pay(id, key)
	s.killedAt(opExpire, expire, func() {
		r, err := http.NewRequest("POST", s.process.base+"/orders/"+id+"/cancel", nil)
		must(s.t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(r)
		must(s.t, err)
		res.Body.Close()
		equal(s.t, "the status of cancelling", res.StatusCode, http.StatusOK)
	})
	s.await(id, orderCancelled, paymentExpired)
}

// Against a lost answer, a crash or a provider with faults that would have a payment captured twice or lost: an
// operation is on the disk before it is sent, and is sent again under its key or looked for first. Each kind of call
// meets a kill at one moment by default, and with -long at the other one, too.
func TestPayment_killedAtEachCallGoesOnAfterTheRestart(t *testing.T) {
	t.Parallel()
	s := newKilledShop(t)
	rounds := []struct{ create, capture, refund, release, expire string }{
		{killActed, killBefore, killActed, killBefore, killActed},
		{killBefore, killActed, killBefore, killActed, killBefore},
	}
	for _, moment := range rounds[:size(1, len(rounds))] {
		s.paidWhileKilled(moment.create, moment.capture, moment.refund)
		s.releasedWhileKilled(moment.release, moment.expire)
	}
	for _, session := range s.provider.sessions {
		if session.status == "open" || session.intent != nil && session.intent.capturable > 0 {
			t.Errorf("the guest can pay, or has reserved money: %+v", session)
		}
	}
	s.process.stopCleanly()
}
