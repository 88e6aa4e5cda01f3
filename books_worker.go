package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The worker of books: it makes exports of the days that are over, and takes what is due to the books, one
// connection's exports after another, and some connections at once.

const (
	maxExporting     = 4                // connections at once
	maxRenewing      = 64               // connections whose tokens are replaced at once, beside those
	exportsAtOnce    = 50               // of a connection, after which others have their turn
	maxDue           = 1000             // connections that are considered at once
	booksTick        = time.Second      // between two looks for what is due
	enqueueEvery     = time.Minute      // between two looks for days that are over
	daysAtOnce       = 100              // of a connection
	roundLimit       = 10 * time.Minute // of one connection's exports; a product may have us wait for a minute
	faultBooksRead   = "exports can't be read"
	faultBooksDays   = "days can't be queued for the books"
	faultBooksExport = "an export can't be worked on"
)

// A booksWorker works on what is due. One goroutine, that of run, owns its fields.
type booksWorker struct {
	*books
	tick     time.Duration
	enqueued time.Time        // when days were queued last, by the steady clock
	running  map[string]bool  // connections
	turns    map[string]int64 // of the connections that are due: when each had its last turn, counted by turn
	turn     int64
	finished chan string
	renewing atomic.Bool // tokens are being replaced that could not be before
	working  sync.WaitGroup
}

// newBooksWorker makes the worker of books.
func newBooksWorker(b *books) *booksWorker {
	return &booksWorker{books: b, tick: booksTick, running: map[string]bool{}, turns: map[string]int64{},
		finished: make(chan string, maxExporting)}
}

// run works until ctx ends. Then it breaks off what is under way, which the next start goes on with, and
// returns.
func (w *booksWorker) run(ctx context.Context) {
	tick := time.NewTicker(w.tick)
	defer tick.Stop()
	defer w.working.Wait()
	for {
		held := w.held()
		if now := w.steady(); !held && (w.enqueued.IsZero() || now.Sub(w.enqueued) >= enqueueEvery) {
			w.enqueued = now
			w.enqueue(ctx)
		}
		w.startRenewals(ctx)
		if !held {
			w.startDue(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.wake:
		case id := <-w.finished:
			delete(w.running, id)
		}
	}
}

// held reports whether exports wait: whether a day is over can't be told by a clock that is doubted.
func (b *books) held() bool { return b.doubted != nil && b.doubted() }

// enqueue makes exports of the days that are over, for every connection that sends on its own.
func (w *booksWorker) enqueue(ctx context.Context) {
	connections, err := w.store.sendingConnections()
	if err != nil {
		w.strike(faultBooksRead, err)
		return
	}
	for _, c := range connections {
		err := w.enqueueFor(ctx, c)
		if err != nil && ctx.Err() == nil {
			w.strike(faultBooksDays, err)
		}
	}
}

// enqueueFor makes exports of the days of one connection. It writes only if there are any.
func (w *booksWorker) enqueueFor(ctx context.Context, c *bookConnection) error {
	calendar, err := w.store.businessCalendar(c.AccountID)
	if err != nil {
		return err
	}
	unsent, err := w.store.unsentDays(c, *c.SendFrom, calendar.dateOf(w.now()), daysAtOnce)
	if err != nil || len(unsent) == 0 || calendar.finalAt(unsent[0].date).After(w.now()) {
		return err
	}
	return w.store.update(ctx, func(t *tx) error {
		t.invalidate()
		now, err := t.usedBookConnection(anyAccount, c.ID)
		if err != nil || now.SendFrom == nil {
			return err
		}
		_, err = enqueueDays(t, now, daysAtOnce)
		return err
	})
}

// startRenewals begins to replace tokens that could not be replaced before, where that is due, whatever else waits.
func (w *booksWorker) startRenewals(ctx context.Context) {
	if w.renewing.Load() {
		return
	}
	due, err := w.store.dueRenewals(newStamp(w.now()), maxRenewing)
	if err != nil {
		w.strike(faultBooksRead, err)
	}
	if len(due) == 0 {
		return
	}
	w.renewing.Store(true)
	w.working.Go(func() {
		defer w.renewing.Store(false)
		var all sync.WaitGroup
		for _, id := range due {
			all.Go(func() {
				if err := w.renewLost(ctx, id); err != nil && ctx.Err() == nil {
					w.strike(faultBooksTokens, err)
				}
			})
		}
		all.Wait()
	})
}

// startDue begins to work on connections that have something due: those first whose last turn is the longest
// ago, so that some with much to send, or that are slow, do not keep others waiting.
func (w *booksWorker) startDue(ctx context.Context) {
	for len(w.finished) > 0 {
		delete(w.running, <-w.finished)
	}
	if len(w.running) >= maxExporting {
		return
	}
	due, err := w.store.dueConnections(newStamp(w.now()), maxDue)
	if err != nil {
		w.strike(faultBooksRead, err)
		return
	}
	maps.DeleteFunc(w.turns, func(id string, _ int64) bool { return !w.running[id] && !slices.Contains(due, id) })
	slices.SortStableFunc(due, func(x, y string) int { return cmp.Compare(w.turns[x], w.turns[y]) })
	for _, id := range due {
		if len(w.running) >= maxExporting {
			return
		}
		if w.running[id] {
			continue
		}
		w.turn++
		w.running[id], w.turns[id] = true, w.turn
		w.working.Go(func() {
			if err := w.export(ctx, id); err != nil && ctx.Err() == nil && !errors.Is(err, errBooksConnection) {
				w.strike(faultBooksExport, err)
			}
			w.finished <- id // never blocks: there are no more than maxExporting
		})
	}
}

// export works on the exports of a connection that are due.
func (w *booksWorker) export(ctx context.Context, connectionID string) error {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	c, err := w.store.usedBookConnection(anyAccount, connectionID)
	if err != nil {
		return err
	}
	due, err := w.store.dueExports(c.ID, newStamp(w.now()), exportsAtOnce)
	if err != nil {
		return err
	}
	round := &exportRound{books: w.books, connection: c}
	var all error
	for _, id := range due {
		goOn, err := round.advance(ctx, id)
		if err != nil && !errors.Is(err, errExport) { // it was removed meanwhile
			all = errors.Join(all, err)
		}
		if !goOn || ctx.Err() != nil || w.held() {
			return all
		}
	}
	if !round.answered || c.FailingSince.IsZero() {
		return all
	}
	return errors.Join(all, w.store.update(ctx, func(t *tx) error {
		t.invalidate()
		_, err := t.setBooksFailing(c.ID, stamp{})
		return err
	}))
}
