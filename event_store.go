package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
)

// addEvent writes an event. It sets the id and the time itself, those of the transaction.
func (t *tx) addEvent(e event) {
	data := cmp.Or(string(e.Data), "{}")
	if e.DeviceID != "" {
		rest := strings.TrimPrefix(data, "{")
		if rest != "}" {
			rest = "," + rest
		}
		data = `{"device_id":"` + e.DeviceID + `"` + rest
	}
	t.exec(`INSERT INTO events (id, at, type, account_id, subject_id, actor, data)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		t.newID("evt"), t.now, e.Type, e.AccountID, e.SubjectID, e.Actor, data)
	t.written = append(t.written, writtenEvent{e.AccountID, string(e.Type)})
}

// An eventFilter selects events of an owner; an empty field does not narrow the selection.
type eventFilter struct {
	owner                     owner
	kind, licenseID, deviceID string
	since, until              stamp
}

// events returns a page of events, newest first, older than the one that the cursor before
// stands for ("" for the newest). If the clock was set back, times are not in the order of
// writing, and since and until may leave out some events of that span.
func (q *queries) events(f eventFilter, before string, limit int) (p listPage[event], err error) {
	list := listQuery{columns: selectEvents, table: `events`, key: `seq`}
	licenseID, account, err := q.licenseOfEvents(f.licenseID, f.deviceID)
	switch {
	case err != nil:
		return p, err
	case licenseID == "" && f.deviceID != "":
		return p, nil // nothing happens to a device that does not exist
	case licenseID == "":
		list.byIndex(f.owner.narrow(``, `account_id`))
		if f.kind != "" {
			list.byIndex(` AND type = ?`, []any{f.kind})
		}
	case account != "" && !f.owner.owns(account):
		return p, nil // an empty page with a cursor would tell that the licence has many events
	default: // the + keeps SQLite from using the indexes of accounts and types
		list.scope(isLicense+` AND subject_id = ?`, []any{licenseID})
		condition, args := f.owner.narrow(``, `+account_id`)
		list.filter(condition, args...)
		if f.kind != "" {
			list.filter(` AND +type = ?`, f.kind)
		}
	}
	if err := q.scopeTimes(&list, `at`, f.since, f.until); err != nil {
		return p, err
	}
	if f.deviceID != "" {
		list.filter(isOfDevice, f.deviceID)
	}
	p, err = readNumbered(q, list, "evt", before, limit, (*event).dest, func(e event) int64 { return e.seq })
	for i := range p.rows {
		p.rows[i].nameSubject()
	}
	return p, err
}

// A feedPage is what follows a place in the order of writing.
type feedPage struct {
	rows []event
	next feedPosition // up to where rows were looked at, past those that the filter leaves out
	more bool         // others may follow
}

// eventRange returns the number of the oldest event that is kept and of the last one that was ever written. Without
// any that is kept, first is last+1.
func (q *queries) eventRange() (first, last int64, err error) {
	err = q.one(`SELECT coalesce((SELECT min(seq) FROM events), 1 + coalesce(max(seq), 0)), coalesce(max(seq), 0)
		FROM sqlite_sequence WHERE name = 'events'`, nil, &first, &last)
	return first, last, err
}

// feedPositionAt returns the position after the event with a number.
func (q *queries) feedPositionAt(seq int64) (p feedPosition, err error) {
	now, err := q.epoch()
	if err != nil {
		return p, err
	}
	id, err := oneValue[string](q, `SELECT id FROM events WHERE seq = ?`, seq)
	return feedPosition{epoch: now.String(), seq: seq, id: id}, except(err, errNotFound)
}

// checkFeedPosition checks that a caller at a position has missed nothing. The event's id decides while it is kept.
// Where it is not, the epoch does, and no event may have been removed after it. Errors: errCursorUnknown, for a
// position in what another database has written; errEventsExpired.
func (q *queries) checkFeedPosition(p feedPosition) error {
	first, last, err := q.eventRange()
	if err != nil {
		return err
	}
	here, err := q.feedPositionAt(p.seq)
	switch {
	case err != nil:
		return err
	case p.seq > last, here.id != "" && here.id != p.id, here.id == "" && here.epoch != p.epoch:
		return errCursorUnknown
	case p.seq < first-1:
		return errEventsExpired
	}
	return nil
}

// eventsAfter returns the first events after a position, oldest first, up to limit. It goes through at most
// limits.listRows events of the account, or of the licence. Errors: those of checkFeedPosition.
func (q *queries) eventsAfter(f eventFilter, after feedPosition, limit int) (p feedPage, err error) {
	_, last, err := q.eventRange() // before the rows: what is written meanwhile comes after it
	if err != nil {
		return p, err
	}
	licenseID, account, err := q.licenseOfEvents(f.licenseID, f.deviceID)
	if err != nil {
		return p, err
	}
	end := last
	if none := licenseID == "" && f.deviceID != "" || account != "" && !f.owner.owns(account); !none {
		if p.rows, end, err = q.readFeed(f, licenseID, after.seq, last, limit); err != nil {
			return p, err
		}
	}
	if p.next, err = q.feedPositionAt(end); err != nil {
		return p, err
	}
	p.more = end < last
	return p, q.checkFeedPosition(after) // after the rows, since a sweep may run meanwhile
}

// readFeed reads the rows of eventsAfter that come after one number, up to another. It returns up to which it has
// looked.
func (q *queries) readFeed(
	f eventFilter, licenseID string, after, last int64, limit int,
) (rows []event, end int64, err error) {
	where, args := f.owner.narrow(` WHERE seq > ? AND seq <= ?`, `account_id`, after, last)
	if licenseID != "" { // the + keeps SQLite from using the index of accounts
		where, args = f.owner.narrow(` WHERE seq > ? AND seq <= ?`+isLicense+` AND subject_id = ?`, `+account_id`,
			after, last, licenseID)
	}
	end, err = oneValue[int64](q, `SELECT seq FROM events`+where+` ORDER BY seq LIMIT 1 OFFSET ?`,
		append(args, q.limits.listRows-1)...)
	if errors.Is(err, errNotFound) {
		end, err = last, nil
	}
	if err != nil {
		return nil, 0, err
	}
	args[1] = end
	if f.kind != "" {
		where, args = where+` AND +type = ?`, append(args, f.kind)
	}
	if !f.since.IsZero() {
		where, args = where+` AND at >= ?`, append(args, f.since)
	}
	if f.deviceID != "" {
		where, args = where+isOfDevice, append(args, f.deviceID)
	}
	rows, next, err := collectPage(q, selectEvents+where+` ORDER BY seq LIMIT ?`, args, `seq`, limit, (*event).dest,
		func(e event) int64 { return e.seq })
	for i := range rows {
		rows[i].nameSubject()
	}
	return rows, cmp.Or(next, end), err
}

// isOfDevice is a condition. SQLite's JSON functions would fail the whole query at data that is not JSON.
const isOfDevice = ` AND CASE WHEN json_valid(data) THEN json_extract(data, '$.device_id') = ? END`

// selectEvents selects what dest scans. SQLite's JSON functions would fail the whole query at data that is not
// JSON; dest fails for that row alone.
const selectEvents = `SELECT seq, id, at, type, account_id, subject_id,
	CASE WHEN json_valid(data) THEN coalesce(json_extract(data, '$.device_id'), '') ELSE '' END, actor,
	CASE WHEN json_valid(data) THEN json_remove(data, '$.device_id') ELSE data END FROM events`

// unreadableEvents is a rowReader.
func unreadableEvents(q *queries) ([]string, error) {
	return unreadableRows(q, selectEvents, (*event).dest)
}

// eventBySeq returns the event with a number, or errNotFound.
func (q *queries) eventBySeq(seq int64) (e event, err error) {
	err = q.one(selectEvents+` WHERE seq = ?`, []any{seq}, e.dest()...)
	e.nameSubject()
	return e, err
}

// eventByID returns the event with an id, or errNotFound. No index has ids, so it looks at those of that second
// first, and if the clock was set back and it is not there, at all events.
func (q *queries) eventByID(id string) (e event, err error) {
	second := newStamp(idTime("evt", id))
	first, err := q.firstSince(`events`, `at`, second)
	if err != nil {
		return e, err
	}
	err = q.one(selectEvents+` WHERE seq >= ?1 AND at = ?2 AND id = ?3 AND seq < ?1 + ?4`,
		[]any{first, second, id, q.limits.listRows}, e.dest()...)
	if errors.Is(err, errNotFound) {
		err = q.one(selectEvents+` WHERE id = ?`, []any{id}, e.dest()...)
	}
	e.nameSubject()
	return e, err
}

// latestEvent returns the number and the id of the event that was written last: in a transaction that
// has just written one, of that one.
func (t *tx) latestEvent() (seq int64, id string, err error) {
	err = t.one(`SELECT seq, id FROM events WHERE seq = (SELECT max(seq) FROM events)`, nil, &seq, &id)
	return seq, id, err
}

// removeEvents removes up to limit of the oldest events, those from before a time, and returns how
// many. Old events that follow newer ones, as after the clock was set back, are left to removeEventsAfter.
func (t *tx) removeEvents(before stamp, limit int64) int64 {
	return t.exec(`DELETE FROM events WHERE seq IN
		(SELECT seq FROM (SELECT seq, at FROM events ORDER BY seq LIMIT ?2) WHERE at < ?1)`, before, limit)
}

// removeEventsAfter removes up to limit events from before a time among the limits.listRows that follow number
// after, and returns how many. next is the number to go on after: after itself if more of them may be
// left here, 0 at the end. It reads no more rows than that, which takes some 5 ms, so 100 calls go through a
// million events.
func (t *tx) removeEventsAfter(after int64, before stamp, limit int64) (removed, next int64, err error) {
	err = t.one(`SELECT seq FROM events WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?`,
		[]any{after, t.limits.listRows - 1}, &next)
	if err != nil && !errors.Is(err, errNotFound) {
		return 0, after, err
	}
	removed = t.exec(`DELETE FROM events WHERE seq IN
		(SELECT seq FROM (SELECT seq, at FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2) WHERE at < ?3 LIMIT ?4)`,
		after, t.limits.listRows, before, limit)
	if removed == limit {
		next = after
	}
	return removed, next, nil
}

// isLicense is the condition of the partial index on events of licences. A query for those of one
// licence repeats it, since SQLite would not use the index without it.
const isLicense = ` AND subject_id GLOB 'lic_*'`

// licenseOfEvents returns the licence whose events a list goes through, and the account that
// owns it: the licence that is given, or that of the device. A licence that does not exist is
// returned without an account; for a device that does not exist both are "".
func (q *queries) licenseOfEvents(licenseID, deviceID string) (id, account string, err error) {
	if id = licenseID; id == "" && deviceID != "" {
		err = q.one(`SELECT license_id FROM devices WHERE id = ?`, []any{deviceID}, &id)
	}
	if id != "" && err == nil {
		account, err = q.licenseOwner(id)
	}
	return id, account, except(err, errNotFound)
}

func (e *event) dest() []any {
	return []any{&e.seq, &e.ID, &e.At, &e.Type, &e.AccountID, &e.SubjectID, &e.DeviceID, &e.Actor,
		jsonColumn[json.RawMessage]{&e.Data}}
}

// nameSubject sets the member for the kind of the subject: LicenseID, LeadID or OrderID.
func (e *event) nameSubject() {
	switch {
	case strings.HasPrefix(e.SubjectID, "lic_"):
		e.LicenseID = e.SubjectID
	case strings.HasPrefix(e.SubjectID, "lead_"):
		e.LeadID = e.SubjectID
	case strings.HasPrefix(e.SubjectID, "ord_"):
		e.OrderID = e.SubjectID
	}
}

// countToday returns how many leads and events were written since a time. It does not count through
// older ones, since row numbers grow with time (firstSince).
func (q *queries) countToday(midnight stamp) (leads, events int64, err error) {
	firstLead, err := q.firstSince(`leads`, `created_at`, midnight)
	if err != nil {
		return 0, 0, err
	}
	firstEvent, err := q.firstSince(`events`, `at`, midnight)
	if err != nil {
		return 0, 0, err
	}
	err = q.one(`SELECT (SELECT count(*) FROM leads WHERE seq >= ?), (SELECT count(*) FROM events WHERE seq >= ?)`,
		[]any{firstLead, firstEvent}, &leads, &events)
	return leads, events, err
}

// lastOrFirst returns when the latest event of a type of the main account was written or, if there is none, that
// account was added.
func (q *queries) lastOrFirst(kind eventType) (stamp, error) {
	return oneValue[stamp](q, `SELECT coalesce((SELECT at FROM events e WHERE +e.account_id = a.id AND e.type = ?
		ORDER BY e.seq DESC LIMIT 1), a.created_at) FROM accounts a WHERE a.is_main = 1`, kind)
}

// lastEventAt returns when the latest event of an account and type was written, or errNotFound. It reads the
// events of that type, newest first, until it finds one of the account.
func (q *queries) lastEventAt(account string, kind eventType) (at stamp, err error) {
	return oneValue[stamp](q, `SELECT at FROM events WHERE +account_id = ? AND type = ? ORDER BY seq DESC LIMIT 1`,
		account, kind)
}
