package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Exports (contract, section 12): the entry of a day, or of a payout, gets into the books exactly once. It is on disk,
// and its day frozen, before it is sent. If the answer is lost, it is looked for in the books by its sync key, and sent
// again only if it was not found for ten minutes. An export of a day and a revision is one row, and a further revision
// comes only after the one before was reversed.

// heldTooLong is how long an export may be held before the status command reports it.
const heldTooLong = 72 * time.Hour

// dayKey returns what the sync keys of all entries of a day begin with.
func dayKey(accountID string, date businessDate) string { return "widgetd:" + accountID + ":" + date }

// syncKey returns the text by which an entry is found in the books, of what all those of its subject begin with.
func syncKey(of string, revision int64) string { return of + ":r" + strconv.FormatInt(revision, 10) }

// become puts an export into a state in which it is neither held nor failed. due is when the worker turns to it next.
func (x *bookExport) become(state bookExportState, due stamp) {
	x.State, x.DueAt = state, due
	x.Reason, x.Detail, x.HeldAt = nil, nil, stamp{}
}

// sentEntry returns the entry of an export, as it was sent last.
func (x *bookExport) sentEntry() (*bookEntry, error) {
	entry := &bookEntry{}
	if err := json.Unmarshal(x.Entry, entry); err != nil {
		return nil, fmt.Errorf("read the entry of %s: %w", x.ID, err)
	}
	return entry, nil
}

// exportEvent returns an event about an export.
func exportEvent(c *bookConnection, x *bookExport, kind eventType, actor string) event {
	data := []string{"product", c.Product, "connection_id", x.ConnectionID, "date", x.Date, "currency", x.Currency,
		"revision", strconv.FormatInt(x.Revision, 10), "reason", valueOr(x.Reason, ""),
		"reverses", valueOr(x.Reverses, ""), "payout_id", valueOr(x.PayoutID, ""), "part", string(valueOr(x.Part, ""))}
	return event{Type: kind, AccountID: x.AccountID, SubjectID: x.ID, Actor: actor, Data: eventData(data...)}
}

// newExport inserts an export of a connection that is due at due. key is what all sync keys of its subject begin with.
func newExport(
	t *tx, c *bookConnection, of exportSubject, key string, revision int64, reverses *bookExport, due stamp,
) *bookExport {
	x := &bookExport{ID: t.newID("exp"), ConnectionID: c.ID, AccountID: c.AccountID, exportSubject: of,
		Revision: revision, EntryDate: of.Date, State: exportWaiting, DueAt: due, CreatedAt: t.now,
		SyncKey: syncKey(key, revision)}
	if reverses != nil {
		x.Reverses, x.EntryDate = &reverses.ID, reverses.EntryDate
	}
	exportTable.insert(t, x)
	return x
}

// requestExport asks for the export of a business day of a connection, in each currency that has something to
// send, and returns the exports. A day that has one keeps it, unless its entry was reversed: then it gets a
// further revision. Errors: errBooksConnection, books_connection_state, no_revenue, a refusal of the date.
func requestExport(t *tx, o owner, connectionID string, date businessDate) ([]bookExport, error) {
	c, err := t.usedBookConnection(o, connectionID)
	if err != nil {
		return nil, err
	}
	if c.OrganisationID == nil {
		return nil, errNoCompany
	}
	calendar, err := t.businessCalendar(c.AccountID)
	if err != nil {
		return nil, err
	}
	if date > calendar.dateOf(t.now.Time) {
		return nil, errMember("date", "out_of_range", "This day has not begun.")
	}
	days, err := t.revenueDayKeys(c.AccountID, date, date)
	if err != nil {
		return nil, err
	}
	var all []bookExport
	for _, day := range days {
		x, err := requestOne(t, c, date, day.Currency, newStamp(later(t.now.Time, calendar.finalAt(date))))
		if err != nil {
			return nil, err
		}
		if x != nil {
			all = append(all, *x)
		}
	}
	if len(all) == 0 {
		return nil, &refusal{code: codeNoRevenue}
	}
	return all, nil
}

// requestOne is requestExport for one currency. It returns nil if there is nothing to send.
func requestOne(t *tx, c *bookConnection, date businessDate, currency string, due stamp) (*bookExport, error) {
	of := exportSubject{Date: date, Currency: currency}
	there, revision, err := includedExport(t, c, of)
	if there != nil || err != nil {
		return there, err
	}
	sums, err := t.revenueSums(c.AccountID, date, currency)
	if err != nil || !c.wantsAny(date, sums) {
		return nil, err
	}
	return newExport(t, c, of, dayKey(c.AccountID, date), revision, nil, due), nil
}

// includedExport returns the export of a subject that counts, or is to count; nil: there is none, or its entry was
// reversed, so that one of a further revision may come.
func includedExport(t *tx, c *bookConnection, subject exportSubject) (there *bookExport, revision int64, err error) {
	last, err := t.lastExport(c.ID, subject)
	if err != nil || last == nil {
		return nil, 1, err
	}
	of := last // the export whose entry counts, unless it was reversed
	if last.Reverses != nil {
		if of, err = t.bookExport(anyAccount, *last.Reverses); err != nil {
			return nil, 0, err
		}
	}
	switch {
	case of.State == exportReversed:
		return nil, last.Revision + 1, nil
	case last.State == exportReversed: // somebody has voided the reversal
		return of, 0, nil
	case valueOr(last.Reason, "") == reasonDisconnected:
		last.Reason = nil
		return last, 0, t.saveExport(last)
	}
	return last, 0, nil
}

// ownExport returns an export of a connection in use of an owner, with the connection. Errors: errExport,
// errBooksConnection.
func ownExport(t *tx, o owner, connectionID, id string) (*bookConnection, *bookExport, error) {
	x, err := t.bookExport(o, id)
	if err == nil && connectionID != "" && x.ConnectionID != connectionID {
		err = errExport
	}
	if err != nil {
		return nil, nil, err
	}
	c, err := t.usedBookConnection(o, x.ConnectionID)
	return c, x, err
}

// errExportState returns the refusal of what the export's state does not allow. why is a sentence.
func errExportState(x *bookExport, why string) error {
	return &refusal{code: codeExportState, detail: "The export is " + string(x.State) + ". " + why}
}

// retryExport makes an export that is held, failed or unknown due now. connectionID is "" if any connection will
// do. Errors: errExport, errBooksConnection, export_state.
func retryExport(t *tx, o owner, connectionID, id string) (*bookExport, error) {
	_, x, err := ownExport(t, o, connectionID, id)
	if err != nil {
		return nil, err
	}
	switch x.State {
	case exportPosted, exportReversed, exportSending:
		return nil, errExportState(x, "There is nothing to be tried again.")
	case exportFailed:
		x.become(exportWaiting, t.now)
	case exportUnknown:
		x.Reason = nil // it was reasonDisconnected, and is asked for by name again
	}
	x.DueAt = t.now
	return x, t.saveExport(x)
}

// reverseExport requests that the entry of an export is reversed by another entry, or deleted if it is a draft,
// and returns the export that does so. A repeated request can only change the date in the books, as long as the
// reversal is not written there. date is the date there; "" is that of the entry. Errors: errExport,
// errBooksConnection, export_state, a refusal of the date.
func reverseExport(t *tx, o owner, connectionID, id string, date businessDate) (*bookExport, error) {
	c, x, err := ownExport(t, o, connectionID, id)
	if err != nil {
		return nil, err
	}
	if date != "" && date < x.EntryDate {
		return nil, errMember("date", "out_of_range", "This is before the date of the entry.")
	}
	last, err := t.lastExport(c.ID, x.exportSubject)
	if err != nil {
		return nil, err
	}
	if valueOr(last.Reverses, "") == x.ID && last.State != exportReversed { // not voided by somebody
		if date != "" && date != last.EntryDate && slices.Contains(unwrittenStates, last.State) {
			last.become(exportWaiting, t.now)
			last.EntryDate = date
			return last, t.saveExport(last)
		}
		return last, nil
	}
	if x.State != exportPosted || x.Reverses != nil {
		return nil, errExportState(x, "Only the entry of a day that is in the books can be reversed.")
	}
	if err := mayReverse(t, x); err != nil {
		return nil, err
	}
	key := strings.TrimSuffix(x.SyncKey, syncKey("", x.Revision))
	reversal := newExport(t, c, x.exportSubject, key, last.Revision+1, x, t.now)
	if date == "" {
		return reversal, nil
	}
	reversal.EntryDate = date
	return reversal, t.saveExport(reversal)
}

// unwrittenStates are those in which it is certain that nothing of an export is in the books.
var unwrittenStates = []bookExportState{exportWaiting, exportHeld, exportReady, exportFailed}

// A newSubject is what gets its first export.
type newSubject struct {
	exportSubject
	key string // what its sync keys begin with
}

// toSend returns what a connection sends automatically and has no export yet: up to daysAtOnce business days that are
// over at now, and as many payouts that have arrived, or failed after they were booked.
func (q *queries) toSend(c *bookConnection, now time.Time) (all []newSubject, err error) {
	calendar, err := q.businessCalendar(c.AccountID)
	if err != nil {
		return nil, err
	}
	if c.SendFrom != nil {
		unsent, err := q.unsentDays(c, *c.SendFrom, calendar.dateOf(now), daysAtOnce)
		if err != nil {
			return nil, err
		}
		for _, d := range unsent {
			if !calendar.finalAt(d.Date).After(now) {
				of := exportSubject{Date: d.Date, Currency: d.Currency}
				all = append(all, newSubject{of, dayKey(c.AccountID, d.Date)})
			}
		}
	}
	if c.PayoutsFrom != nil {
		payouts, err := q.payoutSubjects(c, calendar.dateOf(now))
		return append(all, payouts...), err
	}
	return all, nil
}

// The worker of books: it makes exports of the days that are over, and works on the exports that are due, one
// after another for each connection, and for up to maxExporting connections at once.

const (
	maxExporting     = 4                // connections at once
	maxRenewing      = 64               // connections whose tokens are replaced at once, besides those
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
	dueWorker
	enqueued time.Time   // when days were queued last, by the monotonic clock
	last     string      // the connection whose exports were started last
	renewing atomic.Bool // tokens that are due are being renewed now
}

// newBooksWorker makes the worker of books.
func newBooksWorker(b *books) *booksWorker {
	return &booksWorker{books: b, dueWorker: newDueWorker(booksTick, maxExporting, true)}
}

// run works until ctx ends.
func (w *booksWorker) run(ctx context.Context) {
	w.dueWorker.run(ctx, w.wake, func(ctx context.Context) {
		held := w.held()
		if now := w.monotonic(); !held && (w.enqueued.IsZero() || now.Sub(w.enqueued) >= enqueueEvery) {
			w.enqueued = now
			w.enqueue(ctx)
		}
		w.startRenewals(ctx)
		if !held {
			w.startDue(ctx)
		}
	})
}

// held reports whether exports wait: while the clock is doubted, it can't tell whether a day is over; and while nothing
// outside is asked.
func (b *books) held() bool { return b.off() || b.doubted != nil && b.doubted() }

// enqueue makes exports of the days that are over, for every connection that sends them automatically.
func (w *booksWorker) enqueue(ctx context.Context) {
	connections, err := w.store.sendingConnections()
	if err != nil {
		w.log.Warn(faultBooksRead, "error", err)
		return
	}
	for _, c := range connections {
		if err := w.enqueueFor(ctx, c); err != nil && ctx.Err() == nil {
			w.log.Warn(faultBooksDays, "error", err)
		}
	}
}

// enqueueFor makes exports of the days of one connection. It writes only if there are any.
func (w *booksWorker) enqueueFor(ctx context.Context, c *bookConnection) error {
	over, err := w.store.toSend(c, w.now())
	if err != nil || len(over) == 0 {
		return err
	}
	return w.update(ctx, func(t *tx) error {
		now, err := t.usedBookConnection(anyAccount, c.ID)
		if err != nil {
			return err
		}
		over, err := t.toSend(now, t.now.Time)
		for _, of := range over {
			newExport(t, now, of.exportSubject, of.key, 1, nil, t.now)
		}
		return err
	})
}

// startRenewals starts the due replacements of tokens that nobody has used for long, and the retries of those that
// failed. Exports that wait do not delay them.
func (w *booksWorker) startRenewals(ctx context.Context) {
	if w.renewing.Load() || w.off() {
		return
	}
	due, err := w.store.dueRenewals(newStamp(w.now()), maxRenewing)
	if err != nil {
		w.log.Warn(faultBooksRead, "error", err)
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
				if err := w.renewIdle(ctx, id); err != nil && ctx.Err() == nil {
					w.log.Warn(faultBooksTokens, "error", err)
				}
			})
		}
		all.Wait()
	})
}

// startDue starts work on the connections that have something due, in turn by their ids, so that slow ones, or ones
// with much to send, do not keep the others waiting.
func (w *booksWorker) startDue(ctx context.Context) {
	if w.full() {
		return
	}
	due, err := w.store.dueConnections(newStamp(w.now()), maxDue)
	if err != nil {
		w.log.Warn(faultBooksRead, "error", err)
		return
	}
	slices.Sort(due)
	next := slices.IndexFunc(due, func(id string) bool { return id > w.last })
	for _, id := range slices.Concat(due[max(next, 0):], due[:max(next, 0)]) {
		if w.full() {
			return
		}
		if w.runs(id) {
			continue
		}
		w.last = id
		w.start(id, id, func() {
			if err := w.export(ctx, id); err != nil && ctx.Err() == nil && !errors.Is(err, errBooksConnection) &&
				!w.store.faults.leaveOut(id, err) {
				w.log.Warn(faultBooksExport, "error", err)
			}
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
		if err != nil && !errors.Is(err, errExport) && !w.store.faults.leaveOut(id, err) { // it was removed meanwhile
			all = errors.Join(all, err)
		}
		if !goOn || ctx.Err() != nil || w.held() {
			return all
		}
	}
	if !round.answered || c.FailingSince.IsZero() {
		return all
	}
	return errors.Join(all, w.update(ctx, func(t *tx) error {
		t.setBooksFailing(c.ID, stamp{})
		return nil
	}))
}
