package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Exports (contract, section 12): the entry of a day gets into the books once. It is on disk, and its day
// frozen, before it is given away; when the answer is lost, it is looked for in the books by its sync key, and
// sent again only when it was not found for ten minutes. An export of a day and a revision is one row, and
// a further revision comes only after the one before was reversed.

// heldTooLong is how long an export may be held before status tells of it.
const heldTooLong = 72 * time.Hour

// syncKey returns the text by which the entry of a day is found in the books.
func syncKey(accountID string, date businessDate, revision int64) string {
	return "widgetd:" + accountID + ":" + date + ":r" + strconv.FormatInt(revision, 10)
}

// become puts an export into a state in which it is neither held nor failed. due is when it is looked at next.
func (x *bookExport) become(state string, due stamp) {
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
		"reverses", valueOr(x.Reverses, "")}
	return event{Type: kind, AccountID: x.AccountID, SubjectID: x.ID, Actor: actor, Data: eventData(data...)}
}

// newExport inserts an export of a connection, which is looked at from due on.
func newExport(
	t *tx, c *bookConnection, date businessDate, currency string, revision int64, reverses *bookExport, due stamp,
) (*bookExport, error) {
	x := &bookExport{ID: t.newID("exp"), ConnectionID: c.ID, AccountID: c.AccountID, Date: date, Currency: currency,
		Revision: revision, EntryDate: date, State: exportWaiting, DueAt: due, CreatedAt: t.now,
		SyncKey: syncKey(c.AccountID, date, revision)}
	if reverses != nil {
		x.Reverses, x.EntryDate = &reverses.ID, reverses.EntryDate
	}
	return x, t.addExport(x)
}

// requestExport asks for the export of a business day of a connection, in each currency that has something to
// send, and returns the exports. A day that has one keeps it, unless its entry was reversed: then it gets a
// further revision. Errors: errBooksConnection, books_connection_state, no_revenue, a refusal of the date.
func requestExport(t *tx, o owner, connectionID string, date businessDate) ([]bookExport, error) {
	t.invalidate()
	c, err := t.usedBookConnection(o, connectionID)
	if err != nil {
		return nil, err
	}
	if c.OrganisationID == nil {
		return nil, &refusal{code: codeBooksState, detail: "Choose a company first."}
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// requestOne is requestExport for one currency. It returns nil if there is nothing to send.
func requestOne(t *tx, c *bookConnection, date businessDate, currency string, due stamp) (*bookExport, error) {
	last, err := t.lastExport(c.ID, date, currency)
	if err != nil {
		return nil, err
	}
	revision := int64(1)
	if last != nil {
		revision = last.Revision + 1
		of := last // whose entry counts unless it is reversed
		if last.Reverses != nil {
			if of, err = t.bookExport(anyAccount, *last.Reverses); err != nil {
				return nil, err
			}
		}
		switch {
		case of.State != exportReversed && last.State == exportReversed: // somebody has voided the reversal
			return of, nil
		case of.State != exportReversed && valueOr(last.Reason, "") == reasonDisconnected:
			last.Reason = nil
			return last, t.saveExport(last)
		case of.State != exportReversed:
			return last, nil
		}
	}
	sums, err := t.revenueSums(c.AccountID, date, currency)
	if err != nil {
		return nil, err
	}
	for i := range sums {
		if c.wants(&sums[i]) {
			return newExport(t, c, date, currency, revision, nil, due)
		}
	}
	return nil, nil
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
	return &refusal{code: codeExportState, detail: "The export is " + x.State + ". " + why}
}

// retryExport has an export that is held, failed or unknown looked at now. connectionID is "" if it does not
// matter. Errors: errExport, errBooksConnection, export_state.
func retryExport(t *tx, o owner, connectionID, id string) (*bookExport, error) {
	t.invalidate()
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

// reverseExport has the entry of an export taken back by another entry, or by deleting it where it is a draft,
// and returns the export that does so. Asked for again, it changes nothing but the date in the books, until
// that is done. date is the date there; "" is that of the entry. Errors: errExport, errBooksConnection,
// export_state, a refusal of the date.
func reverseExport(t *tx, o owner, connectionID, id string, date businessDate) (*bookExport, error) {
	t.invalidate()
	c, x, err := ownExport(t, o, connectionID, id)
	if err != nil {
		return nil, err
	}
	if date != "" && date < x.EntryDate {
		return nil, errMember("date", "out_of_range", "This is before the date of the entry.")
	}
	last, err := t.lastExport(c.ID, x.Date, x.Currency)
	if err != nil {
		return nil, err
	}
	if valueOr(last.Reverses, "") == x.ID && last.State != exportReversed { // not voided by somebody
		if date != "" && date != last.EntryDate && last.unwritten() {
			last.EntryDate, last.State, last.DueAt = date, exportWaiting, t.now
			last.Reason, last.Detail, last.HeldAt = nil, nil, stamp{}
			return last, t.saveExport(last)
		}
		return last, nil
	}
	if x.State != exportPosted || x.Reverses != nil {
		return nil, errExportState(x, "Only the entry of a day that is in the books can be reversed.")
	}
	reversal, err := newExport(t, c, x.Date, x.Currency, last.Revision+1, x, t.now)
	if err != nil || date == "" {
		return reversal, err
	}
	reversal.EntryDate = date
	return reversal, t.saveExport(reversal)
}

// unwritten reports whether it is certain that nothing of an export is in the books.
func (x *bookExport) unwritten() bool {
	switch x.State {
	case exportWaiting, exportHeld, exportReady, exportFailed:
		return true
	}
	return false
}

// enqueueDays makes exports of the business days that a connection sends on its own, that are over, and of
// which it has none. It returns how many.
func enqueueDays(t *tx, c *bookConnection, limit int) (n int, err error) {
	calendar, err := t.businessCalendar(c.AccountID)
	if err != nil {
		return 0, err
	}
	unsent, err := t.unsentDays(c, *c.SendFrom, calendar.dateOf(t.now.Time), limit)
	if err != nil {
		return 0, err
	}
	for _, d := range unsent {
		if calendar.finalAt(d.date).After(t.now.Time) {
			continue
		}
		if _, err := newExport(t, c, d.date, d.currency, 1, nil, t.now); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
