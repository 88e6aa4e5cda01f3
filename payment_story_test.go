package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Stories of payments: what comes early, late, twice, in another order, or from somebody else.

// decide runs one of the decisions about an order.
func (s *shop) decide(f func(*tx, owner, string, string) (*order, error), id string) {
	s.t.Helper()
	s.change(func(t *tx) error { _, err := f(t, anyAccount, id, actorCommand); return err })
}

func TestPayment_noticedBeforeOurOwnAnswer(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		o := s.place()
		// The provider acts, the guest pays, and its webhook is here before its answer, which is lost.
		s.fail(opCreate, faultTimeout)
		go s.engine.startAttempt(s.t.Context(), o.ID, s.method, siteOrigin+"/return")
		time.Sleep(time.Second)
		s.states(o.ID, orderOpen, paymentCreated)
		p := s.attempt(o.ID)
		if s.method == methodCard {
			s.provider.mu.Lock()
			p.SessionID = &s.provider.sessions[0].id
			s.provider.mu.Unlock()
		}
		s.authorize(p)
		s.deliver()
		s.work()
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		s.once(o.ID, eventOrderAuthorized)
		if s.method == methodCard { // asked again under the same key
			equal(s.t, "sessions", len(s.provider.sessions), 1)
		} else {
			equal(s.t, "requests for a payment", s.asked(opCreate), 1)
		}
	})
}

// Against anybody with a recorded webhook who would have something done twice: it has the provider asked again, and
// what was done is done.
func TestPayment_ofWebhooksThatRepeatAndComeInAnyOrder(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.work()
		o := s.place()
		p := s.start(o.ID)
		s.authorize(p)
		posts := s.takeNotices()
		for range 10 {
			posts[0]()
		}
		s.await(o.ID, orderAuthorized, paymentAuthorized)
		s.accept(o.ID)
		s.await(o.ID, orderPaid, paymentCaptured)
		posts = append(posts, s.takeNotices()...)
		slices.Reverse(posts)
		for range 2 {
			for _, post := range posts {
				equal(t, "the answer to a late webhook", post(), http.StatusNoContent)
			}
		}
		time.Sleep(time.Minute)
		s.states(o.ID, orderPaid, paymentCaptured)
		s.once(o.ID, eventOrderAuthorized, eventOrderAccepted, eventOrderPaid)
	})
}

func TestPayment_ofAnAccountThatIsClosedIsReleased(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		s.account = s.addAccount("a tenant")
		s.change(func(t *tx) error { return addOrigin(t, s.account, "https://tenant.example", anActor) })
		s.connect(s.providerOfGuests())
		home := func(o *order) { o.ReturnURL = "https://tenant.example/thanks" }
		authorized, p := s.authorized(home)
		s.accept(authorized.ID)
		open := s.place(home)
		pending, charged := s.start(open.ID), ""
		if s.method == methodCard {
			o, _ := s.charged(home)
			charged = o.ID
		}
		s.change(func(t *tx) error { return closeAccount(t, nouns(), s.account, actorCommand) })
		s.work()
		s.await(authorized.ID, orderCancelled, paymentCancelled)
		s.await(open.ID, orderCancelled, closedState(pending))
		if charged != "" {
			s.await(charged, orderCancelled, paymentRefunded)
		}
		s.accountedFor()
		if a, b := s.money(p), s.money(pending); a != (providersMoney{}) || b != (providersMoney{}) {
			s.t.Errorf("the provider has %+v and %+v", a, b)
		}
		_, err := s.engine.startAttempt(s.t.Context(), open.ID, s.method, siteOrigin)
		equal(s.t, "paying a closed account's order", err, error(errNotPayable))
	})
}

func TestPayment_asksNoMoreThanTwentyTimes(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		for range s.store.limits.attempts {
			time.Sleep(time.Second) // so that the attempts sort by their ids
			p := s.start(o.ID)
			s.atProvider(p, s.provider.endSession)
			s.settle(p)
			s.states(o.ID, orderOpen, paymentExpired)
		}
		if _, err := s.engine.startAttempt(s.t.Context(), o.ID, methodCard, siteOrigin); err != errAttemptLimit {
			t.Errorf("the attempt after the last: %v", err)
		}
	})
}

// Against anybody with the address of a provider's webhook who would have an order taken for paid, by a forged
// webhook or one of another connection: signatures, and a webhook only has the provider asked; an unknown
// connection is answered as a wrong signature is.
func TestPayment_webhooksWithAWrongSignatureChangeNothing(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o := s.place()
		p := s.start(o.ID)
		before := s.dump()
		body := `{"id":"evt_1","object":"event","type":"checkout.session.completed","data":{"object":{"id":"` +
			*p.SessionID + `","object":"checkout.session","client_reference_id":"` + p.ID + `"}}}`
		for _, path := range []string{
			"/payments/stripe/" + s.connection,
			"/payments/stripe/" + newID("con", time.Now()),
			"/payments/vipps/" + s.connection,
			"/payments/stripe/x",
		} {
			signed := fmt.Sprintf("Stripe-Signature: t=%d,v1=%s", time.Now().Unix(), strings.Repeat("00", 32))
			s.post(path, body, signed).is(401, "invalid_signature")
			s.post(path, body).is(401, "invalid_signature")
		}
		s.unchanged(before)
		unsent := s.begins("POST", "/payments/stripe/"+newID("con", time.Now()), "{", 64<<10)
		equal(t, "before the body has come", <-unsent.answer, 401)
		s.post("/payments/stripe/"+s.connection, strings.Repeat(" ", maxRawBody+1)).is(413)
	})
}
