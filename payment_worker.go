package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// The worker of payments. It settles the attempts that are due: somebody asked for a look, an answer was lost, or
// it is time to ask the provider again.

const (
	maxSettling           = 32  // attempts that the worker settles at once
	maxSettlingConnection = 8   // of one connection
	settleRate            = 20  // a second and connection, of one to three requests each; Stripe allows 100
	settleRateOfTests     = 10  // with test keys, for which Stripe allows 25
	settleBurst           = 10  // attempts at once, after a pause
	dueAtOnce             = 256 // see duePayments
	paymentTick           = 250 * time.Millisecond
	settleLimit           = time.Minute // of one call of settle by the worker
	faultSettle           = "a payment can't be settled"
)

// A paymentWorker settles what is due. One goroutine, that of run, owns its fields.
type paymentWorker struct {
	*payments
	steady   func() time.Time // a clock that is never set
	tick     time.Duration    // between two looks for what has become due
	paces    map[string]pace  // by connection
	running  map[string]bool  // attempts that are being settled
	perConn  map[string]int   // of running, by connection
	finished chan duePayment
	working  sync.WaitGroup
}

// newPaymentWorker makes the worker of payments.
func newPaymentWorker(p *payments, steady func() time.Time) *paymentWorker {
	return &paymentWorker{payments: p, steady: steady, tick: paymentTick, paces: map[string]pace{},
		running: map[string]bool{}, perConn: map[string]int{}, finished: make(chan duePayment, maxSettling)}
}

// run settles attempts until ctx ends. Then it cancels what is under way, which the next start resumes, and
// returns.
func (w *paymentWorker) run(ctx context.Context) {
	tick := time.NewTicker(w.tick)
	defer tick.Stop()
	defer w.working.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.wake:
		case d := <-w.finished:
			w.forget(d)
			continue // others of the connection wait for the tick
		}
		w.startDue(ctx)
	}
}

// A pace is the token bucket, of settleBurst, that limits how often a connection's provider is asked.
type pace struct {
	tokens float64
	at     time.Time // by the steady clock
}

// mayAsk reports whether the provider of an attempt may be asked now, and counts that it is.
func (w *paymentWorker) mayAsk(d duePayment) bool {
	rate, now := float64(settleRateOfTests), w.steady()
	if d.live {
		rate = settleRate
	}
	p, known := w.paces[d.connectionID]
	if p.tokens = min(settleBurst, p.tokens+now.Sub(p.at).Seconds()*rate); !known {
		p.tokens = settleBurst
	}
	p.at = now
	ok := p.tokens >= 1
	if ok {
		p.tokens--
	}
	w.paces[d.connectionID] = p
	return ok
}

// forget removes an attempt that was settled from those that are running.
func (w *paymentWorker) forget(d duePayment) {
	delete(w.running, d.id)
	if w.perConn[d.connectionID]--; w.perConn[d.connectionID] == 0 {
		delete(w.perConn, d.connectionID)
	}
}

// startDue begins to settle as many of the attempts that are due as may run. Attempts that somebody asked to look
// at go before those that are only due by the clock.
func (w *paymentWorker) startDue(ctx context.Context) {
	for len(w.finished) > 0 {
		w.forget(<-w.finished)
	}
	if len(w.running) >= maxSettling {
		return
	}
	due, err := w.store.duePayments(newStamp(w.now()), dueAtOnce)
	if err != nil {
		w.strike(faultPaymentsRead, err)
		return
	}
	slices.SortStableFunc(due, func(a, b duePayment) int { return min(a.polls, 1) - min(b.polls, 1) })
	for _, d := range due {
		switch {
		case len(w.running) >= maxSettling:
			return
		case w.running[d.id], w.perConn[d.connectionID] >= maxSettlingConnection:
			continue
		case !w.mayAsk(d):
			continue
		}
		w.running[d.id] = true
		w.perConn[d.connectionID]++
		w.working.Go(func() {
			w.settleDue(ctx, d)
			w.finished <- d // never blocks: there are no more than maxSettling
		})
	}
}

// settleDue settles one attempt.
func (w *paymentWorker) settleDue(ctx context.Context, d duePayment) {
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := w.settle(limited, d.id); err != nil && ctx.Err() == nil && !errors.Is(err, errNotFound) {
		w.strike(faultSettle, err)
	}
}
