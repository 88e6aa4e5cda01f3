package main

import (
	"context"
	"errors"
	"slices"
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

// A paymentWorker settles what is due.
type paymentWorker struct {
	*payments
	dueWorker
	paces map[string]pace // by connection
}

// newPaymentWorker makes the worker of payments.
func newPaymentWorker(p *payments) *paymentWorker {
	return &paymentWorker{payments: p, dueWorker: newDueWorker(paymentTick, maxSettling, false),
		paces: map[string]pace{}}
}

// run settles attempts until ctx ends.
func (w *paymentWorker) run(ctx context.Context) { w.dueWorker.run(ctx, w.wake, w.startDue) }

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

// startDue begins to settle as many of the attempts that are due as may run. Attempts that somebody asked to look
// at go before those that are only due by the clock.
func (w *paymentWorker) startDue(ctx context.Context) {
	if w.full() {
		return
	}
	due, err := w.store.duePayments(newStamp(w.now()), dueAtOnce)
	if err != nil {
		w.noteFault(faultPaymentsRead, err)
		return
	}
	slices.SortStableFunc(due, func(a, b duePayment) int { return min(a.polls, 1) - min(b.polls, 1) })
	for _, d := range due {
		switch {
		case w.full():
			return
		case w.runs(d.id), w.runningOf(d.connectionID) >= maxSettlingConnection:
			continue
		case !w.mayAsk(d):
			continue
		}
		w.start(d.id, d.connectionID, func() {
			limited, cancel := context.WithTimeout(ctx, settleLimit)
			defer cancel()
			if err := w.settle(limited, d.id); err != nil && ctx.Err() == nil && !errors.Is(err, errNotFound) {
				w.noteFault(faultSettle, err)
			}
		})
	}
}
