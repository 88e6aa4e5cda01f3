package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// A paymentAPI serves the webhooks of payment providers.
type paymentAPI struct {
	*server
	payments *payments
	extended atomic.Bool // orders that wait to be accepted were given the time after the start
}

// paymentModule makes the routes and the background work of payments.
func paymentModule(s *server, p *payments) module {
	a := &paymentAPI{server: s, payments: p}
	w := module{
		routes: []route{
			{pattern: "GET /payments", scope: scopeOrders, question: true,
				endpoint: owned(s, readPaymentQuery, s.listPayments)},
		},
		chores: []chore{{fault: "customers of orders can't be erased", timeDriven: true, run: a.eraseCustomers}},
	}
	for _, p := range paymentProviders {
		w.routes = append(w.routes, route{pattern: "POST /payments/" + p.name + "/{connection}", raw: true, free: true,
			run: func(ctx context.Context, c *call) (any, error) { return a.takeNotice(ctx, c, p.name) }})
	}
	if !s.noPayments {
		w.workers = append(w.workers, newPaymentWorker(p).run)
		w.chores = append(w.chores, chore{fault: "orders can't expire", timeDriven: true, run: a.expireOrders})
	}
	return w
}

// paymentsOf makes the engine of a server's payments.
func paymentsOf(s *server) *payments {
	clients := s.providers
	if clients == nil {
		clients = newProviders(s.outbound, s.urls, s.now)
	}
	return &payments{connector: s.connector(s.noPayments), providers: clients}
}

// A paymentQuery asks for a page of attempts.
type paymentQuery struct {
	filter paymentFilter // without owner and ids
	days   dayRange
	page   pageQuery
}

func readPaymentQuery(in *input) (r *paymentQuery) {
	r = new(paymentQuery)
	r.filter.state = in.parameter("state", oneOf(paymentStates...))    // Only attempts in this state.
	r.filter.method = in.parameter("method", oneOf(paymentMethods...)) // Only attempts of this way to pay.
	r.days, r.page = in.dayRange(), in.page("pay")
	return r
}

// List payments.
//
// They are the attempts to pay orders of an account at its providers, newest first; `payout_id` says with what the
// money was paid out. Business days as of `GET /orders`. A request has two seconds, waiting included, and a page
// reads at most 10,000 rows.
func (s *server) listPayments(
	ctx context.Context, c *call, of owner, r *paymentQuery,
) (_ *list[listedPayment], err error) {
	filter, from := r.filter, s.store.within(ctx)
	filter.owner = of
	if filter.ids, err = r.days.ids(from, "pay", c.narrowToOne(of).account); err != nil {
		return nil, err
	}
	return showRows(from.payments(filter, r.page.before, r.page.limit))
}

// noticeRate is how many webhooks with a wrong signature an address may send a minute before it gets a 429.
const noticeRate = 60

// takeNotice answers a provider's webhook. Only those with a wrong signature count against the
// address's limit, since a provider sends the webhooks of all accounts from a few addresses.
func (a *paymentAPI) takeNotice(ctx context.Context, c *call, provider string) (any, error) {
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	err := a.readNotice(ctx, c, provider, c.in.pathValue("connection"))
	if errors.Is(err, errNotice) {
		// Else net/http would read the rest of the body, before it answers or then.
		c.response.Header().Set("Connection", "close")
		http.NewResponseController(c.response).SetReadDeadline(time.Unix(1, 0))
		err = cmp.Or(a.limitAddress("payment webhook", a.address(c.request), noticeRate), err)
	}
	return noContent, err
}

// readNotice schedules a look at what a webhook of a provider is about, and returns when that is on disk. A
// connection that does not exist gets the same error as a wrong signature, errNotice, before the body is read.
func (a *paymentAPI) readNotice(ctx context.Context, c *call, name, connection string) error {
	row, err := a.store.paymentConnection(anyAccount, connection)
	switch {
	case errors.Is(err, errNotFound), err == nil && row.Provider != name:
		return errNotice
	case err != nil:
		return err
	}
	conn, err := row.open(a.keys.Load())
	if err != nil {
		a.log.Warn(faultConnected, "error", err, "connection", row.ID)
		return errNotice
	}
	body, err := c.receive()
	if err != nil {
		return err
	}
	notice, err := a.payments.providers[name].notice(conn, c.request, body, a.now())
	if err != nil {
		return err
	}
	if notice == (paymentNotice{}) {
		return nil // of a kind that is about neither an attempt nor a payout
	}
	err = a.payments.update(ctx, func(t *tx) error {
		switch {
		case notice.payout:
			t.pollPayouts(row.ID)
		case notice.paymentID != "":
			t.pollPaymentOf(row.ID, notice.paymentID)
		default:
			t.pollIntent(row.ID, notice.intentID)
		}
		return nil
	})
	a.payments.wakeUp()
	return err
}

// expireOrders is the chore that expires orders that were not paid, or not accepted, in time. When it first runs,
// it has those that wait to be accepted do so until startNotice after the start, whatever the clock said then.
func (a *paymentAPI) expireOrders(ctx context.Context) error {
	if a.payments.off() {
		return nil
	}
	if !a.extended.Load() {
		now := a.now()
		until := newStamp(now).after(startNotice - max(0, now.Sub(a.startedAt)))
		if err := a.store.update(ctx, func(t *tx) error {
			t.extendWaiting(until)
			return nil
		}); err != nil {
			return err
		}
		a.extended.Store(true)
	}
	for _, expire := range []func(*tx, int64) (int64, error){expireOrders, releaseUnaccepted} {
		_, err := a.store.updateInParts(ctx, rowsAtOnce, func(t *tx) (int64, error) { return expire(t, rowsAtOnce) })
		if err != nil {
			return err
		}
	}
	return nil
}

// eraseCustomers is the chore that erases the guests of orders, keptCustomersFor after the order's end.
func (a *paymentAPI) eraseCustomers(ctx context.Context) error {
	erase := func(t *tx) (int64, error) { return t.eraseCustomers(rowsAtOnce) }
	n, err := a.store.updateInParts(ctx, rowsAtOnce, erase)
	if n > 0 {
		a.scrubWAL(0)
	}
	return err
}
