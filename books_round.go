package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// What the worker does with the exports of one connection: it checks whether anything is missing, sends entries,
// and looks for those whose answer was lost.

const (
	lostAnswerAfter = 2 * time.Minute  // an export that is being sent for longer has lost its answer
	notFoundAfter   = 10 * time.Minute // an entry not found this long after it was sent is not in the books
	heldRecheck     = 30 * time.Minute // between two checks whether the reason of a held export is gone
	refusedRecheck  = 24 * time.Hour   // the same of dailyReasons
	changedPause    = time.Second      // until an entry is made again that has changed
	othersFirst     = 2 * time.Second  // added to the pause of the one export that got no answer
	maxExportDetail = 500              // characters

	retryFirst   = 10 * time.Second // after a look-up or an attempt that got no answer, see backoff
	retryLongest = 30 * time.Minute
	faultPause   = time.Minute // after a fault of the database
)

// An exportRound is one pass of the worker over the exports of a connection that are due.
type exportRound struct {
	*books
	connection *bookConnection
	chart      *bookChart // that the books gave last
	chartDate  businessDate
	answered   bool // the books have given a usable answer at least once
}

// ask is books.ask for the round's connection.
func (r *exportRound) ask(ctx context.Context, f func(*ledgerSession) error) error {
	err := r.books.ask(ctx, r.connection.ID, f)
	r.answered = r.answered || err == nil
	return err
}

// write is ask for an f that writes, see books.askOnce.
func (r *exportRound) write(ctx context.Context, f func(*ledgerSession) error) error {
	_, err := r.books.askOnce(ctx, r.connection.ID, -1, f)
	r.answered = r.answered || err == nil
	return err
}

// advance takes an export as far as it can get now. It returns false if the books could not be asked or gave no
// usable answer, which ends the round. Errors: those of the store.
func (r *exportRound) advance(ctx context.Context, id string) (goOn bool, err error) {
	x, err := r.store.bookExport(anyAccount, id)
	if err != nil {
		return true, err
	}
	switch x.State {
	case exportSending, exportUnknown:
		err = r.lookUp(ctx, x)
	case exportWaiting, exportHeld, exportReady:
		if x.Reverses != nil {
			err = r.prepareReversal(ctx, x)
		} else {
			err = r.prepareEntry(ctx, x)
		}
	default:
		err = r.change(ctx, x, func(*tx) error { x.DueAt = stamp{}; return nil })
	}
	var failed *outboundError
	switch {
	case errors.As(err, &failed) && failed.final() && slices.Contains(lackReasons, failed.reason):
		r.answered = true
		err = r.hold(ctx, x, failed.reason, failed.detail)
		return true, except(err, errChanged)
	case errors.As(err, &failed):
		return false, r.unanswered(ctx, x, failed)
	case err == nil, errors.Is(err, errChanged): // the worker tries it again
		return true, nil
	}
	return true, errors.Join(err, r.update(context.WithoutCancel(ctx), func(t *tx) error {
		t.postponeExport(x.ID, t.now.after(faultPause))
		return nil
	}))
}

// change writes what f has changed of an export. Errors: errChanged.
func (r *exportRound) change(ctx context.Context, x *bookExport, f func(t *tx) error) error {
	return r.update(context.WithoutCancel(ctx), func(t *tx) error {
		if err := f(t); err != nil {
			return err
		}
		return t.saveExport(x)
	})
}

// unanswered notes that the books gave no usable answer about an export, and postpones all exports of its connection.
// That one waits a little longer than the others, so that they get their turn in case only it has the problem.
func (r *exportRound) unanswered(ctx context.Context, x *bookExport, why *outboundError) error {
	if why.reason == heldReconnect {
		return r.hold(ctx, x, heldReconnect, "The connection has to be connected again.")
	}
	r.log.Warn("books give no usable answer", "connection", x.ConnectionID, "product", r.connection.Product,
		"status", why.status, "error", why.reason)
	return r.update(context.WithoutCancel(ctx), func(t *tx) error {
		pause := cmp.Or(why.wait, pauseAfter(r.connection.FailingSince, t.now))
		t.postponeExports(r.connection.ID, t.now.after(pause))
		t.postponeExport(x.ID, t.now.after(max(pause, r.pauseFor(x, t.now))+othersFirst))
		t.setBooksFailing(r.connection.ID, t.now)
		return nil
	})
}

// pauseFor returns how long an export waits that got no answer.
func (r *exportRound) pauseFor(x *bookExport, now stamp) time.Duration {
	switch {
	case x.State == exportUnknown || x.State == exportSending:
		return pauseAfter(x.SentAt, now)
	case x.Reverses != nil:
		return pauseAfter(x.CreatedAt, now)
	}
	return pauseAfter(r.connection.FailingSince, now)
}

// pauseAfter returns the pause before something is retried that has failed since a time; zero: since now.
func pauseAfter(since, now stamp) time.Duration {
	if since.IsZero() {
		return retryFirst
	}
	return backoff(now.Sub(since.Time), retryFirst, retryLongest)
}

// hold marks an export as held for a reason, with an event unless it was held for that reason before. One whose
// answer was lost stays unknown, and is told of if somebody has to do something for it to be found.
func (r *exportRound) hold(ctx context.Context, x *bookExport, reason, detail string) error {
	detail = cutText(detail, maxExportDetail)
	return r.change(ctx, x, func(t *tx) error {
		x.DueAt = t.now.after(heldRecheck)
		daily := slices.Contains(dailyReasons, reason)
		if daily {
			x.DueAt = t.now.after(refusedRecheck)
		}
		lost := x.State == exportUnknown || x.State == exportSending
		if x.HeldAt.IsZero() && (daily || !lost) {
			x.HeldAt = t.now
		}
		if lost {
			if x.State = exportUnknown; daily {
				x.Detail = &detail
			}
			return nil
		}
		isNew := valueOr(x.Reason, "") != reason
		x.State, x.Reason, x.Detail = exportHeld, &reason, &detail
		if untilChanged(reason) { // whatever may change that makes the export due
			x.DueAt = stamp{}
		}
		if !isNew {
			return nil
		}
		t.addEvent(exportEvent(r.connection, x, eventBooksHeld, actorProvider))
		return nil
	})
}

// holdFor holds an export for the first of some issues, with the details of all of them.
func (r *exportRound) holdFor(ctx context.Context, x *bookExport, issues []entryIssue) error {
	var details []string
	for _, issue := range issues {
		details = append(details, issue.Detail)
	}
	return r.hold(ctx, x, string(issues[0].Reason), strings.Join(details, " "))
}

// chartFor returns what the books report about themselves, for entries of a date. It asks them once a round for
// each financial year.
func (r *exportRound) chartFor(ctx context.Context, date businessDate) (*bookChart, error) {
	if r.chart != nil {
		anyDate := !r.connection.product().series
		sameYear := r.chart.Year != 0 && r.chart.YearFrom <= date && date <= r.chart.YearTo
		if anyDate || sameYear || r.chartDate == date {
			return r.chart, nil
		}
	}
	chart, err := r.books.chart(ctx, r.connection, date)
	if err == nil {
		r.chart, r.chartDate, r.answered = chart, date, true
	}
	return chart, err
}

// chart reads what the books of a connection report about themselves, for entries of a date. Errors: an *outboundError.
func (b *books) chart(ctx context.Context, c *bookConnection, date businessDate) (chart *bookChart, err error) {
	err = b.ask(ctx, c.ID, func(s *ledgerSession) (err error) {
		chart, err = b.ledgers[c.Product].chart(ctx, s, date)
		return err
	})
	if err != nil {
		return nil, err
	}
	if valueOr(c.Currency, "") == chart.Currency {
		return chart, nil
	}
	return chart, b.update(context.WithoutCancel(ctx), func(t *tx) error {
		now, err := t.usedBookConnection(anyAccount, c.ID)
		if err != nil {
			return err
		}
		now.Currency, c.Currency = &chart.Currency, &chart.Currency
		t.wakeHeldFor(c.ID, heldCurrency)
		t.saveBookConnection(now)
		return nil
	})
}

// prepareEntry sends the entry of a day or of a payout if nothing is missing, or holds it. Errors: errChanged, an
// *outboundError.
func (r *exportRound) prepareEntry(ctx context.Context, x *bookExport) error {
	c := r.connection
	calendar, err := r.store.businessCalendar(c.AccountID)
	if err != nil {
		return err
	}
	if final := calendar.finalAt(x.Date); x.PayoutID == nil && final.After(r.now()) {
		return r.change(ctx, x, func(*tx) error { x.DueAt = newStamp(final.Add(time.Second - 1)); return nil })
	}
	if !c.NeedsReconnectAt.IsZero() {
		return r.hold(ctx, x, heldReconnect, "The connection has to be connected again.")
	}
	entry, issues, err := r.store.draft(c, x)
	if err != nil {
		return err
	}
	if len(issues) > 0 {
		return r.holdFor(ctx, x, issues)
	}
	if entry == nil {
		return r.skip(ctx, x)
	}
	counts, err := r.formerCounts(ctx, x)
	if err != nil {
		return err
	}
	if counts {
		return r.hold(ctx, x, heldEdited,
			"The entry that reverses the former one was voided in the books, so that one counts again.")
	}
	chart, err := r.chartFor(ctx, x.EntryDate)
	if err != nil {
		return err
	}
	entry.Year = chart.Year
	if issues := checkEntry(c, entry, chart); len(issues) > 0 {
		return r.holdFor(ctx, x, issues)
	}
	return r.send(ctx, x, entry)
}

// formerCounts reports whether a former entry of the day counts again in the books, because somebody has voided
// the entry that reversed it. A draft was deleted instead, so no entry reverses it.
func (r *exportRound) formerCounts(ctx context.Context, x *bookExport) (counts bool, err error) {
	if x.Revision == 1 {
		return false, nil
	}
	reversal, err := r.store.lastReversal(x)
	if err != nil || reversal == nil || reversal.State != exportPosted {
		return false, err
	}
	former, err := r.store.bookExport(anyAccount, *reversal.Reverses)
	if err != nil || valueOr(former.EntryID, "") == valueOr(reversal.EntryID, "") {
		return false, err
	}
	ledger := r.ledgers[r.connection.Product]
	err = r.ask(ctx, func(s *ledgerSession) error {
		found, err := ledger.read(ctx, s, valueOr(reversal.EntryID, ""))
		if err != nil || found != nil && !found.Deleted {
			return err
		}
		found, err = ledger.read(ctx, s, valueOr(former.EntryID, ""))
		counts = found != nil && !found.Deleted
		return err
	})
	return counts, err
}

// skip handles an export with nothing to be booked. If its day no longer has revenue that the connection sends, it
// is removed. If that revenue adds up to nothing on each account, or it is of a payout, the export stays and waits for
// more: otherwise it would be made anew every minute.
func (r *exportRound) skip(ctx context.Context, x *bookExport) error {
	return r.update(context.WithoutCancel(ctx), func(t *tx) error {
		sums, err := t.revenueSums(r.connection.AccountID, x.Date, x.Currency)
		if err != nil {
			return err
		}
		if x.PayoutID == nil && !r.connection.wantsAny(x.Date, sums) {
			t.removeExport(x)
			return nil
		}
		if x.become(exportWaiting, t.now.after(heldRecheck)); x.PayoutID != nil { // a change makes it due
			x.DueAt = stamp{}
		}
		x.Detail = new("What counts on this day adds up to nothing, so nothing is sent.")
		return t.saveExport(x)
	})
}

// draft makes the entry of an export by the mapping of its connection; see buildEntry and draftPayout.
func (q *queries) draft(c *bookConnection, x *bookExport) (*bookEntry, []entryIssue, error) {
	if x.PayoutID != nil {
		return q.draftPayout(c, x)
	}
	sums, err := q.revenueSums(c.AccountID, x.Date, x.Currency)
	if err != nil {
		return nil, nil, err
	}
	entry, issues := buildEntry(c, x.Date, x.Currency, x.SyncKey, sums)
	return entry, issues, nil
}

// freezeEntry makes the entry of an export again, from everything that has happened until now, and freezes its day. It
// returns nil if that is not possible any more.
func freezeEntry(t *tx, c *bookConnection, x *bookExport, year int64) (*bookEntry, error) {
	now, err := t.usedBookConnection(anyAccount, c.ID)
	if err != nil {
		return nil, err
	}
	entry, issues, err := t.draft(now, x)
	if err != nil || entry == nil || len(issues) > 0 {
		return nil, err
	}
	if entry.Year = year; x.PayoutID == nil {
		t.freezeDay(c.AccountID, x.Date, x.Currency)
	}
	return entry, nil
}

// send notes that an entry is being sent, and sends it, unless the books have it already: a database that was
// restored from a backup does not know what was sent since, and a refusal may have come from a proxy in between.
// The entry is made again in the transaction that freezes its day, and sent only if it equals the one that was checked.
// Errors: errChanged, an *outboundError.
func (r *exportRound) send(ctx context.Context, x *bookExport, checked *bookEntry) error {
	there, err := r.find(ctx, x, checked)
	if err != nil {
		return err
	}
	if there != nil && there.Deleted {
		there = nil
	}
	if there != nil && !sameEntry(checked, &there.Entry) {
		return r.hold(ctx, x, heldEdited, "The books have this entry already, with other figures.")
	}
	want := encodeJSON(checked)
	later := false
	err = r.change(ctx, x, func(t *tx) error {
		if x.Reverses == nil {
			entry, err := freezeEntry(t, r.connection, x, checked.Year)
			if err != nil {
				return err
			}
			if later = !bytes.Equal(encodeJSON(entry), want); later { // it is checked again; the day stays frozen
				x.DueAt = t.now.after(changedPause)
				return nil
			}
		}
		body := r.ledgers[r.connection.Product].encode(checked)
		x.State, x.DueAt = exportSending, t.now.after(lostAnswerAfter) // it may be refused for the same reason again
		x.Entry, x.Request = json.RawMessage(bytes.TrimSpace(want)), &body
		x.Attempts, x.SentAt = x.Attempts+1, t.now
		return nil
	})
	switch {
	case err != nil || later:
		return err
	case there != nil:
		return r.posted(ctx, x, there.ID)
	}
	return r.post(ctx, x, checked)
}

// find looks in the books for the entry of an export; nil: it is not there. Errors: an *outboundError.
func (r *exportRound) find(ctx context.Context, x *bookExport, entry *bookEntry) (found *bookedEntry, err error) {
	err = r.ask(ctx, func(s *ledgerSession) (err error) {
		found, err = r.ledgers[r.connection.Product].find(ctx, s, entry, x.SyncKey)
		return err
	})
	return found, err
}

// idempotencyKey returns the key under which an export is sent. It changes when the bytes change, since products
// refuse other bytes under the same key.
func (x *bookExport) idempotencyKey() string {
	sum := sha256.Sum256([]byte(valueOr(x.Request, "")))
	return x.ID + "-" + hex.EncodeToString(sum[:8])
}

// post sends the entry of an export, whose request is stored with it. It is sent again only after lookUp has not
// found it, unless the books themselves refuse it, or it was not sent at all. Errors: errChanged, an
// *outboundError, those of the store.
func (r *exportRound) post(ctx context.Context, x *bookExport, entry *bookEntry) error {
	var id string
	err := r.write(ctx, func(s *ledgerSession) (err error) {
		id, err = r.ledgers[r.connection.Product].post(ctx, s, entry, *x.Request, x.idempotencyKey())
		return err
	})
	if err == nil {
		return r.posted(ctx, x, id)
	}
	refused, ok := errors.AsType[*outboundError](err)
	switch {
	case !ok:
		return err
	case refused.outcome == vendorBusy && refused.status == 0: // it was not sent
		if err := r.change(ctx, x, func(*tx) error { x.State = exportReady; return nil }); err != nil {
			return err
		}
		return refused
	case !refused.final():
		r.log.Warn("whether an entry is in the books is not known", "export", x.ID, "status", refused.status,
			"error", refused.reason)
		err := r.change(ctx, x, func(t *tx) error {
			x.become(exportUnknown, t.now.after(retryFirst))
			return nil
		})
		if err != nil || refused.outcome != vendorBusy && refused.outcome != vendorDenied {
			return err
		}
		return refused // all other exports would get the same answer
	}
	x.State = exportReady // nothing was written
	return r.holdOrFail(ctx, x, refused)
}

// holdOrFail holds an export that the books refuse for one of heldReasons, which may pass, and fails one that they
// refuse for another reason, until somebody retries it.
func (r *exportRound) holdOrFail(ctx context.Context, x *bookExport, why *outboundError) error {
	if slices.Contains(heldReasons, why.reason) {
		return r.hold(ctx, x, why.reason, cmp.Or(why.detail, "The books refuse the entry for this reason."))
	}
	r.log.Warn("books refuse an entry", "export", x.ID, "status", why.status, "error", why.reason)
	return r.change(ctx, x, func(t *tx) error {
		detail := cutText(why.detail, maxExportDetail)
		x.State, x.Reason, x.Detail, x.DueAt = exportFailed, &why.reason, nilIfEmpty(detail), stamp{}
		x.HeldAt = t.now
		t.addEvent(exportEvent(r.connection, x, eventBooksFailed, actorProvider))
		return nil
	})
}

// posted notes that an entry is in the books. If it reverses another, that one becomes reversed.
func (r *exportRound) posted(ctx context.Context, x *bookExport, id string) error {
	return r.change(ctx, x, func(t *tx) error {
		x.become(exportPosted, stamp{})
		x.EntryID, x.PostedAt = &id, t.now
		if x.Reverses != nil {
			if err := markReversed(t, r.connection, *x.Reverses); err != nil {
				return err
			}
		}
		t.addEvent(exportEvent(r.connection, x, eventBooksPosted, actorProvider))
		return nil
	})
}

// markReversed notes that the entry of an export no longer counts in the books.
func markReversed(t *tx, c *bookConnection, id string) error {
	x, err := t.bookExport(anyAccount, id)
	if err != nil || x.State == exportReversed {
		return err
	}
	x.State, x.ReversedAt, x.DueAt = exportReversed, t.now, stamp{}
	if err := t.saveExport(x); err != nil {
		return err
	}
	t.addEvent(exportEvent(c, x, eventBooksReversed, actorProvider))
	return nil
}

// lookUp looks in the books for an entry whose answer was lost. If it is not there ten minutes after it was sent,
// the same bytes are sent again under the same key; or the export is removed, see reasonDisconnected. Errors:
// errChanged, an *outboundError.
func (r *exportRound) lookUp(ctx context.Context, x *bookExport) error {
	entry, err := x.sentEntry()
	if err != nil {
		return err
	}
	found, err := r.find(ctx, x, entry)
	switch {
	case err != nil:
		return err
	case found != nil && found.Deleted:
		return r.markReversed(ctx, x, found.ID)
	case found != nil:
		return r.posted(ctx, x, found.ID)
	}
	if valueOr(x.Reason, "") == reasonDisconnected && r.now().Sub(x.SentAt.Time) >= notFoundAfter {
		return r.update(context.WithoutCancel(ctx), func(t *tx) error {
			x.State = exportReady // nothing is in the books
			if err := t.saveExport(x); err != nil {
				return err
			}
			t.removeExport(x)
			return nil
		})
	}
	again := false
	err = r.change(ctx, x, func(t *tx) error {
		if valueOr(x.Reason, "") != reasonDisconnected {
			x.become(x.State, x.DueAt) // it lacks nothing any more to be looked for
		}
		again = t.now.Sub(x.SentAt.Time) >= notFoundAfter
		if !again {
			x.State, x.DueAt = exportUnknown, t.now.after(r.pauseFor(x, t.now))
			return nil
		}
		x.State, x.Attempts = exportSending, x.Attempts+1
		x.SentAt, x.DueAt = t.now, t.now.after(lostAnswerAfter)
		return nil
	})
	if err != nil || !again {
		return err
	}
	return r.post(ctx, x, entry)
}

// markReversed notes that an entry got into the books and has been voided there since.
func (r *exportRound) markReversed(ctx context.Context, x *bookExport, id string) error {
	return r.change(ctx, x, func(t *tx) error {
		x.become(exportReversed, stamp{})
		x.EntryID, x.ReversedAt = &id, t.now
		t.addEvent(exportEvent(r.connection, x, eventBooksReversed, actorProvider))
		return nil
	})
}

// prepareReversal reverses the entry of another export, if it is still in the books as it was sent: it deletes a
// draft, and sends a reversing entry for any other. Errors: errChanged, an *outboundError.
func (r *exportRound) prepareReversal(ctx context.Context, x *bookExport) error {
	c := r.connection
	if !c.NeedsReconnectAt.IsZero() {
		return r.hold(ctx, x, heldReconnect, "The connection has to be connected again.")
	}
	of, err := r.store.bookExport(anyAccount, *x.Reverses)
	if err != nil {
		return err
	}
	sent, err := of.sentEntry()
	if err != nil {
		return err
	}
	var found *bookedEntry
	ledger := r.ledgers[c.Product]
	err = r.ask(ctx, func(s *ledgerSession) (err error) {
		found, err = ledger.read(ctx, s, valueOr(of.EntryID, ""))
		if err == nil && found == nil { // a missing entry would allow the day to be sent again, so make sure
			found, err = ledger.find(ctx, s, sent, of.SyncKey)
		}
		return err
	})
	var refused *outboundError
	switch {
	case errors.As(err, &refused) && refused.final():
		return r.holdOrFail(ctx, x, refused)
	case err != nil:
		return err
	case of.State == exportReversed, found == nil, found.Deleted:
		return r.markSuperfluous(ctx, x, of.ID)
	case !sameEntry(sent, &found.Entry):
		return r.hold(ctx, x, heldEdited, "The entry was changed in the books: reverse it there.")
	case found.Draft:
		err := r.write(ctx, func(s *ledgerSession) error { return ledger.withdraw(ctx, s, found.ID) })
		if errors.As(err, &refused) && refused.final() {
			return r.holdOrFail(ctx, x, refused)
		}
		if err != nil {
			return err
		}
		return r.posted(ctx, x, found.ID)
	}
	chart, err := r.chartFor(ctx, x.EntryDate)
	if err != nil {
		return err
	}
	entry := reverseEntry(sent, x.EntryDate, x.SyncKey, valueOr(of.EntryID, of.ID))
	entry.Year = chart.Year
	if chart.Year != 0 && !slices.Contains(chart.Series, entry.Series) { // its series does not exist any more
		entry.Series = valueOr(c.Series, entry.Series)
	}
	if issues := checkEntry(c, entry, chart); len(issues) > 0 {
		return r.holdFor(ctx, x, issues)
	}
	return r.send(ctx, x, entry)
}

// markSuperfluous notes that there is nothing left to reverse, since somebody has voided the entry.
func (r *exportRound) markSuperfluous(ctx context.Context, x *bookExport, of string) error {
	return r.change(ctx, x, func(t *tx) error {
		x.become(exportReversed, stamp{})
		x.ReversedAt = t.now
		return markReversed(t, r.connection, of)
	})
}
