package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// Reading what providers pay out: once a day for each connection, or when its provider says that there is news, page
// by page. Each page is on the disk with the cursor of the next one, so that a kill in between costs one page.

const (
	payoutTick     = 5 * time.Second     // between two looks for connections that are due
	maxReadingAt   = 2                   // connections at once
	payoutLimit    = time.Minute         // of one connection, which then goes on when it is due again: at once
	payoutPages    = 5                   // requests of a connection within a second
	payoutRetry    = time.Hour           // after an answer that was none
	payoutDaily    = 23 * time.Hour      // between two readings, with what jittered adds
	readAgain      = 20 * time.Hour      // before a payout is read again that can't be booked as it was read
	paidAfter      = 30 * 24 * time.Hour // its removal what a connection took may still be paid out
	faultPayouts   = "payouts can't be read"
	quietMinutes   = 10 // of each hour, in which Vipps asks not to be asked
	reasonUnopened = "secrets_unreadable"
)

// payouts reads and keeps what providers pay out. Any number of goroutines may use it.
type payouts struct{ *payments }

// A payoutWorker reads what is due.
type payoutWorker struct {
	*payouts
	dueWorker
}

// run reads until ctx ends.
func (w *payoutWorker) run(ctx context.Context) { w.dueWorker.run(ctx, w.wake, w.startDue) }

// startDue begins to read the payouts of connections that are due.
func (w *payoutWorker) startDue(ctx context.Context) {
	if w.full() || w.off() {
		return
	}
	now := newStamp(w.now())
	due, err := w.store.duePayouts(now, now.after(-paidAfter), maxReadingAt)
	if err != nil {
		w.log.Warn(faultPayouts, "error", err)
	}
	for _, id := range due {
		if w.full() || w.runs(id) {
			continue
		}
		w.start(id, id, func() {
			limited, cancel := context.WithTimeout(ctx, payoutLimit)
			defer cancel()
			err := w.read(limited, id)
			if err != nil && limited.Err() == nil && !w.store.faults.leaveOut(id, err) {
				w.log.Warn(faultPayouts, "connection", id, "error", err)
			}
		})
	}
}

// read reads the payouts of a connection until there is no more. Errors: that of ctx, and of the store.
func (p *payouts) read(ctx context.Context, connectionID string) error {
	for more := true; more; {
		var err error
		more, err = p.step(ctx, connectionID)
		if errors.Is(err, errChanged) { // somebody else is reading them
			return nil
		}
		if failed, ok := errors.AsType[*outboundError](err); ok && ctx.Err() == nil {
			return p.unread(connectionID, failed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step makes one request, and keeps its answer: a page of what is in a payout, or what there is besides. It reports
// whether there is more. Errors: an *outboundError, errChanged.
func (p *payouts) step(ctx context.Context, connectionID string) (more bool, err error) {
	source, err := p.store.paymentConnection(anyAccount, connectionID)
	if err != nil {
		return false, err
	}
	conn, err := source.open(p.keys())
	if err != nil {
		return false, &outboundError{reason: reasonUnopened, err: err}
	}
	if err := p.waitTurn(ctx, connectionID); err != nil {
		return false, err
	}
	client := p.providers[source.Provider]
	reading, err := p.store.payoutToRead(connectionID)
	if err != nil {
		return false, err
	}
	if reading != nil {
		rows, next, err := client.payoutRows(ctx, conn, valueOr(reading.ProviderID, ""), reading.Cursor)
		refused, ok := errors.AsType[*outboundError](err)
		if ok && refused.final() { // of this one, so that the others go on
			return true, p.update(ctx, func(t *tx) error { return closePayout(t, reading) })
		}
		if err != nil {
			return false, err
		}
		return true, p.update(ctx, func(t *tx) error { return p.addPage(t, reading, rows, next) })
	}
	news, err := client.payouts(ctx, conn, source.PayoutsCursor, source.CreatedAt.Format(time.DateOnly), p.now())
	if err != nil {
		return false, err
	}
	err = p.update(ctx, func(t *tx) error {
		now, err := t.paymentConnection(anyAccount, connectionID)
		if err != nil || now.PayoutsCursor != source.PayoutsCursor || !now.RemovedAt.Equal(source.RemovedAt.Time) {
			return cmp.Or(err, errChanged)
		}
		more, err = p.saveNews(t, source, news)
		return err
	})
	return more, err
}

// waitTurn waits until another request may be made for a connection.
func (p *payouts) waitTurn(ctx context.Context, connectionID string) error {
	wait, _ := p.pace.reserve(connectionID, p.monotonic(), payoutPages, time.Second, time.Minute)
	turn := time.NewTimer(wait)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unread notes that a provider does not tell what it pays out, and when it is asked again. Payments go on: keys that
// may not read payouts are not refused.
func (p *payouts) unread(connectionID string, failed *outboundError) error {
	wait := max(payoutRetry, failed.wait)
	if failed.final() || failed.outcome == vendorDenied {
		wait = payoutDaily
	}
	p.log.Warn("a provider does not tell what it pays out", "connection", connectionID, "status", failed.status,
		"error", failed.reason)
	return p.update(context.Background(), func(t *tx) error {
		c, err := t.paymentConnection(anyAccount, connectionID)
		if err == nil {
			t.postponePayouts(c, outsideQuiet(fromNow(t.exact, jittered(wait))), failed.reason)
		}
		return err
	})
}

// outsideQuiet returns a time that is not within quietMinutes.
func outsideQuiet(at stamp) stamp {
	if at.Minute() < quietMinutes {
		return at.after(quietMinutes * time.Minute)
	}
	return at
}

// saveNews keeps what a provider tells of what it pays out to a connection. It reports whether there is more to be
// read at once; if not, the connection is due tomorrow.
func (p *payouts) saveNews(t *tx, c *paymentConnection, news *payoutNews) (more bool, err error) {
	for i := range news.payouts {
		if err := adoptPayout(t, c, &news.payouts[i]); err != nil {
			return false, err
		}
	}
	for i := range news.rows {
		if err := p.adoptRow(t, c, &news.rows[i]); err != nil {
			return false, err
		}
	}
	t.saveCursor(c.ID, news.cursor)
	reading, err := t.payoutToRead(c.ID)
	if err != nil || reading != nil || news.more {
		return true, err
	}
	t.postponePayouts(c, outsideQuiet(fromNow(t.exact, jittered(payoutDaily))), "")
	return false, nil
}

// adoptPayout keeps a payout that its provider tells of. It is one payout, by whichever connection of the account it
// is seen. One that can't be booked as it was read is read again, since its provider may have listed it wrongly.
func adoptPayout(t *tx, c *paymentConnection, told *payoutReport) error {
	row, err := t.payoutOf(c.AccountID, c.Provider, told.providerID)
	if err != nil {
		return err
	}
	if row == nil {
		row = addPayout(t, c, told.currency)
		row.ProviderID = &told.providerID
	}
	before := *row
	again := []payoutReason{heldDiffers, heldForeign, heldUnknownRow, heldOpaque}
	if slices.Contains(again, valueOr(row.Reason, "")) && t.now.Sub(row.ReadAt.Time) > readAgain {
		row.ReadAt, row.Cursor = stamp{}, ""
	}
	if row.ReadAt.IsZero() { // the connection by which it was seen first may be gone
		row.ConnectionID = c.ID
	}
	row.adopt(told, t.now)
	if payoutTable.changed(&before, row) != "" {
		row.save(t, &before)
	}
	return nil
}

// addPayout adds a payout of a connection that is not scheduled yet.
func addPayout(t *tx, c *paymentConnection, currency string) *payout {
	row := &payout{ID: t.newID("pot"), AccountID: c.AccountID, ConnectionID: c.ID, Provider: providerName(c.Provider),
		State: payoutExpected, Currency: currency, Automatic: true, CreatedAt: t.now}
	payoutTable.insert(t, row)
	return row
}

// addPage adds a page of what is in a payout. next is the cursor of the page after it; "": it is the last. Errors:
// errChanged if the payout has changed since it was read.
func (p *payouts) addPage(t *tx, read *payout, rows []ledgerRow, next string) error {
	row, err := t.payout(anyAccount, read.ID)
	if err != nil || row.State != payoutReading || row.Cursor != read.Cursor {
		return cmp.Or(err, errChanged)
	}
	before := *row
	if row.Cursor == "" { // it may have been read before
		t.removeItems(row.ID)
	}
	for i := range rows {
		if err := addRow(t, row, &rows[i]); err != nil {
			return err
		}
	}
	if row.Cursor = next; next != "" {
		t.savePayout(row)
		return nil
	}
	return finishPayout(t, row, &before)
}

// closePayout notes that a provider refuses to tell what is in a payout. It is asked again once a day, while it lists
// that.
func closePayout(t *tx, read *payout) error {
	row, err := t.payout(anyAccount, read.ID)
	if err != nil {
		return err
	}
	before := *row
	row.Reason, row.ReadAt, row.Cursor = new(payoutReason(heldOpaque)), t.now, ""
	row.settle(true)
	row.save(t, &before)
	return nil
}

// adoptRow adds a row of a ledger to the payout of its currency that is not scheduled yet, or schedules that. Disputes
// are in such a ledger only.
func (p *payouts) adoptRow(t *tx, c *paymentConnection, r *ledgerRow) error {
	row, err := t.unscheduledPayout(c.ID, r.currency)
	if err != nil {
		return err
	}
	if row == nil {
		row = addPayout(t, c, r.currency)
	}
	if r.schedules != nil {
		before := *row
		row.ProviderID = &r.schedules.providerID
		row.adopt(r.schedules, t.now)
		return finishPayout(t, row, &before)
	}
	if r.category == rowDispute {
		if err := p.adoptDispute(t, c.AccountID, r.paymentID, r.disputed()); err != nil {
			return err
		}
	}
	row.Amount += r.net() // so far
	t.savePayout(row)
	return addRow(t, row, r)
}

// addRow adds a row of a provider's ledger to a payout. One by which an earlier payout came back proves that it
// failed, and is divided among the methods of what was in that.
func addRow(t *tx, to *payout, r *ledgerRow) error {
	if r.category != rowReturned {
		t.addItem(to, r)
		return nil
	}
	earlier, err := t.payoutOf(to.AccountID, string(to.Provider), r.source)
	if err != nil {
		return err
	}
	if earlier == nil {
		r.category = rowUnknown
		t.addItem(to, r)
		return nil
	}
	sums, err := t.payoutSums(earlier.ID)
	if err != nil {
		return err
	}
	if totalOf(sums).Net == r.net() && len(sums) > 0 {
		t.addReturned(to, r, earlier)
	} else {
		t.addItem(to, r)
	}
	if before := *earlier; !earlier.ended() {
		earlier.EndedAt = t.now
		earlier.settle(earlier.State == payoutReading)
		earlier.save(t, &before)
	}
	return nil
}

// finishPayout notes that all that is in a payout was read.
func finishPayout(t *tx, row, before *payout) error {
	sums, err := t.payoutSums(row.ID)
	if err != nil {
		return err
	}
	confirmed := !providerOf(string(row.Provider)).confirms
	if !confirmed {
		if confirmed, err = t.hasConfirmed(row.ConnectionID); err != nil {
			return err
		}
	}
	total := totalOf(sums)
	row.Items, row.Fee, row.Tax = total.Items, total.Fee, total.Tax
	row.ReadAt, row.Cursor = t.now, ""
	row.settle(true)
	row.Reason = (*payoutReason)(nilIfEmpty(row.judge(sums, confirmed)))
	row.save(t, before)
	t.pollUnmatched(row.ID)
	return nil
}

// disputed returns what a row of a ledger says of a dispute; taken is what it takes, or is negative for what it puts
// back.
func (r *ledgerRow) disputed() disputeReport {
	return disputeReport{id: r.source, amount: max(-r.amount, r.amount), withdrawn: -r.amount, at: r.at, movedAt: r.at}
}
