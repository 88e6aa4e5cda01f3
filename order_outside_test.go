package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// laterOrder is the body of an order that is paid later.
const laterOrder = `{"currency":"CHF","lines":[{"name":"Pizza","quantity":2,"unit_amount":1850,"vat_rate":260}],
	"pay":"later","return_url":"` + siteOrigin + `/thanks"}`

// later makes an order that is paid later, over HTTP, and returns its id.
func (s *service) later(auth string) string {
	s.t.Helper()
	made := s.post("/orders", laterOrder, auth).is(200)
	made.holds(`state="open"`, `pay="later"`, `pay_url=null`)
	return made.json()["id"].(string)
}

func TestOrder_paidAtTheDoorIsAcceptedPaidAndUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		selling := func() string { return "Authorization: Bearer " + s.token(s.account, scopeSelling) }
		auth := selling()
		id := s.later(auth)
		path := "/orders/" + id
		o := s.row(id)
		equal(t, "until when it waits", o.AcceptBy.Sub(o.CreatedAt.Time), minOrderLife)
		equal(t, "its expiry", o.ExpiresAt, o.AcceptBy)
		s.post(path+"/capture", "", auth).is(409, "order_state")
		s.post(path+"/accept", `{"lines":[{"line":0,"quantity":1}]}`, auth).is(200).
			holds(`state="accepted"`, `total=1850`)
		s.post(path+"/accept", "", auth).is(409, "order_state")
		s.post(path+"/reject", "", auth).is(409, "order_state")
		s.do("DELETE", path+"/paid", "", auth).is(409, "order_state")
		time.Sleep(days(2)) // it has no expiry any more
		auth = selling()
		s.check(s.chore("orders can't expire")(t.Context()))
		s.post(path+"/paid", `{"method":"cash"}`, auth).is(200).holds(`state="paid"`, `method="cash"`)
		equal(t, "its sale", s.sums(), 1850)
		s.do("DELETE", path+"/paid", "", auth).is(200).holds(`state="accepted"`, `method=null`, `ended_at=null`)
		equal(t, "its sale once it is undone", s.sums(), 0)
		s.post(path+"/paid", `{"method":"terminal"}`, auth).is(200)
		time.Sleep(outsideFor)
		s.do("DELETE", path+"/paid", "", selling()).is(409, "order_state")
		equal(t, "its sale at last", s.sums(), 1850)
	})
}

// sums returns what all days have received.
func (s *service) sums() int {
	s.t.Helper()
	return s.count(`SELECT coalesce(sum(iif(what IN ('sale', 'delivery', 'tip'), gross, -gross)), 0)
		FROM revenue_sums WHERE what <> 'discount'`)
}

func TestOrder_paidAtTheDoorThatNobodyAcceptsExpiresAndIsRefusedOnline(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		auth := s.seller()
		refused, ignored := s.later(auth), s.later(auth)
		s.post("/orders/"+refused+"/reject", "", auth).is(200).holds(`state="cancelled"`)
		s.post("/orders/"+refused+"/paid", `{"method":"cash"}`, auth).is(409, "order_state")
		_, err := s.engine.startAttempt(s.t.Context(), ignored, methodCard, siteOrigin)
		equal(s.t, "paying it online", err, error(errNotPayable))
		s.post("/orders", strings.Replace(laterOrder, `"pay"`, `"expires_in":3600,"pay"`, 1), auth).
			is(422, "validation_failed").names("#/expires_in conflict")
		time.Sleep(minOrderLife)
		s.check(s.chore("orders can't expire")(s.t.Context()))
		s.get("/orders/"+ignored, auth).is(200).holds(`state="expired"`, `pay="later"`)
		equal(s.t, "why", s.count(`SELECT count(*) FROM events
			WHERE subject_id = ? AND data ->> 'reason' = 'not_accepted'`, ignored), 1)
	})
}

// TestOrder_thatExpiredUnpaidIsMarkedPaidForADay has somebody mark, undo and mark again, which makes the day no
// longer.
func TestOrder_thatExpiredUnpaidIsMarkedPaidForADay(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, expire := s.place(), s.chore("orders can't expire")
		time.Sleep(minOrderLife)
		s.check(expire(s.t.Context()))
		path := "/orders/" + o.ID + "/paid"
		for range 3 {
			time.Sleep(7 * time.Hour)
			auth := s.seller()
			s.post(path, `{"method":"cash"}`, auth).is(200).holds(`state="paid"`)
			s.do("DELETE", path, "", auth).is(200).holds(`state="expired"`)
		}
		time.Sleep(3 * time.Hour)
		s.post(path, `{"method":"cash"}`, s.seller()).is(409, "order_state")

		held, p := s.authorized() // a reservation that is not released yet is no unpaid order
		time.Sleep(minOrderLife)
		s.check(expire(s.t.Context()))
		path = "/orders/" + held.ID + "/paid"
		auth := s.seller()
		s.post(path, `{"method":"cash"}`, auth).is(409, "order_state")
		s.settle(p)
		s.states(held.ID, orderExpired, paymentCancelled)
		s.post(path, `{"method":"cash"}`, auth).is(200).holds(`state="paid"`)
		s.do("DELETE", path, "", auth).is(200).holds(`state="expired"`, `method="card"`)
	})
}

func TestOrder_undoneAfterItsDayIsPostedIsANegativeFactOnTheOpenDay(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var o *order
	s.at(t, "2026-05-04T12:00:00Z", func(t *tx) (err error) {
		o = anOrder(s.account)
		o.Pay = payLater
		if _, err = createOrder(t, o, guest{}, maxOrderLife, anActor); err == nil {
			_, err = acceptOrder(t, anyAccount, o.ID, nil, stamp{}, anActor)
		}
		if err == nil {
			_, err = payOutside(t, anyAccount, o.ID, methodTerminal, stamp{}, anActor)
		}
		return err
	})
	s.change(func(t *tx) error {
		t.freezeDay(s.account, "2026-05-04", "CHF")
		return nil
	})
	s.at(t, "2026-05-05T11:00:00Z", func(t *tx) error { return second(undoPaid(t, anyAccount, o.ID, anActor)) })
	s.days("2026-05-04: CHF 59.00 0 late", "2026-05-05: CHF -59.00 1 late")
	equal(t, "its state", s.row(o.ID).State, orderAccepted)
}

// TestOrder_acceptedOnesThatArePaidLaterCountAsOpen has somebody accept each order at once, so that none is open.
func TestOrder_acceptedOnesThatArePaidLaterCountAsOpen(t *testing.T) {
	t.Parallel()
	s := newService(t, withFewOpenOrders)
	auth := s.seller()
	id := s.later(auth)
	s.post("/orders/"+id+"/accept", "", auth).is(200)
	s.sql(manyRows(s.store.limits.openOrders-1)+`
		INSERT INTO orders (id, account_id, state, currency, lines, ordered_total, total, vat, return_url, page_key,
			expires_at, created_at, pay)
		SELECT printf('ord_%026d', n.i), account_id, 'accepted', currency, lines, 1, 1, '[]', '', page_key, expires_at,
		created_at, 'later' FROM n, orders WHERE id = ?`, id)
	s.post("/orders", laterOrder, auth).is(409, "order_limit_reached")
	s.post("/orders/"+id+"/paid", `{"method":"cash"}`, auth).is(200)
	s.later(auth)
	s.do("DELETE", "/orders/"+id+"/paid", "", auth).is(409, "order_limit_reached")
}

func TestOrder_paidLaterOfAClosedAccountIsCancelledAndItsGuestErased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		tenant := s.addAccount("Trattoria")
		s.change(func(t *tx) error { return addOrigin(t, tenant, "https://trattoria.example", anActor) })
		make := func() *order {
			o := anOrder(tenant)
			o.Pay, o.ReturnURL = payLater, "https://trattoria.example/"
			return s.addOrder(o)
		}
		open, accepted, kept := make(), make(), make()
		for _, o := range []*order{accepted, kept} {
			s.change(func(t *tx) error { return second(acceptOrder(t, anyAccount, o.ID, nil, stamp{}, anActor)) })
		}
		time.Sleep(keptCustomersFor) // nobody has marked it as paid, and its guest is forgotten all the same
		s.change(func(t *tx) error { return second(t.eraseCustomers(10)) })
		equal(t, "guests", s.count(`SELECT count(*) FROM order_customers`), 1)
		s.change(func(t *tx) error { return closeAccount(t, nouns(), tenant, actorCommand) })
		for _, o := range []*order{open, accepted, kept} {
			equal(t, "the order's state", s.row(o.ID).State, orderCancelled)
		}
	})
}

func TestOrder_wantedLaterCanBeAcceptedUntilShortlyBefore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ahead, want time.Duration // after it begins to wait
		method      string
	}{
		"as soon as possible":              {0, 30 * time.Minute, methodCard},
		"within the hour":                  {time.Hour, 30 * time.Minute, methodCard},
		"tonight":                          {8 * time.Hour, 6 * time.Hour, methodCard},
		"after the reservation":            {days(20), days(6), methodCard},
		"after it was charged":             {days(20), days(20) - 2*time.Hour, methodTwint},
		"after it was charged, as soon as": {0, 30 * time.Minute, methodTwint},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) {
				s.method = c.method
				o := s.place(func(o *order) {
					if c.ahead > 0 {
						o.WantedAt = newStamp(time.Now().Add(c.ahead))
					}
				})
				p := s.start(o.ID)
				s.authorize(p)
				s.settle(p)
				o = s.row(o.ID)
				equal(s.t, "how long it waits", o.AcceptBy.Sub(o.CreatedAt.Time), c.want)
			})
		})
	}
}

// TestOrder_thatWaitedWhileTheServiceWasStoppedHasTenMinutes starts the service again after a day.
func TestOrder_thatWaitedWhileTheServiceWasStoppedHasTenMinutes(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		later := s.later(s.seller())
		time.Sleep(days(1))
		s.server.startedAt = time.Now()
		expire := s.chore("orders can't expire")
		s.check(expire(s.t.Context()))
		time.Sleep(startNotice - time.Second)
		s.check(expire(s.t.Context()))
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		equal(s.t, "one that is paid later", s.row(later).State, orderOpen)
		time.Sleep(time.Second)
		s.check(expire(s.t.Context()))
		s.settle(p)
		s.states(o.ID, orderExpired, paymentCancelled)
		equal(s.t, "one that is paid later", s.row(later).State, orderExpired)
	})
}
