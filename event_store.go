package main

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"
)

// An eventType is a kind of event: "lead.created". Every noun declares its own, in an
// eventTable.
type eventType string

// An eventTable collects the types of one noun.
type eventTable []eventType

// add declares a type.
func (t *eventTable) add(name string) eventType {
	*t = append(*t, eventType(name))
	return eventType(name)
}

// An event is one change, written in the transaction that made it. Of the ids of what it is
// about the file keeps one as the subject: SubjectID, or else LicenseID, or else LeadID; the
// id of a device is a member of data there.
type event struct {
	ID        string          `json:"id"`
	At        stamp           `json:"at"`
	Type      eventType       `json:"type"`
	AccountID string          `json:"account_id"`
	SubjectID string          `json:"subject_id,omitempty"` // a licence (also of a device), lead, widget, token, …
	LicenseID string          `json:"license_id,omitempty"` // the subject, if it is a licence
	DeviceID  string          `json:"device_id,omitempty"`
	LeadID    string          `json:"lead_id,omitempty"` // the subject, if it is a lead
	Actor     string          `json:"actor"`
	Data      json.RawMessage `json:"data"`

	seq int64 // its place in the order in which events were written
}

// The actors of events: who did it. A token's own id stands for a portal.
const (
	actorDevice  = "device"
	actorSite    = "site"
	actorCommand = "command"
	actorTime    = "time"
)

// addEvent writes an event; id and time are its transaction's.
func (t *tx) addEvent(e event) error {
	data := cmp.Or(string(e.Data), "{}")
	if e.DeviceID != "" {
		rest := strings.TrimPrefix(data, "{")
		if rest != "}" {
			rest = "," + rest
		}
		data = `{"device_id":"` + e.DeviceID + `"` + rest
	}
	_, err := t.exec(`INSERT INTO events (id, at, type, account_id, subject_id, actor, data)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		t.newID("evt"), t.now, e.Type, e.AccountID, cmp.Or(e.SubjectID, e.LicenseID, e.LeadID), e.Actor, data)
	return err
}

// eventData makes an event's data from names and values; empty values are left out.
func eventData(pairs ...string) json.RawMessage {
	data := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			data[pairs[i]] = pairs[i+1]
		}
	}
	text, _ := json.Marshal(data)
	return text
}

// An eventFilter chooses events of an owner; what else is empty narrows nothing.
type eventFilter struct {
	owner                     owner
	kind, licenseID, deviceID string
	since                     stamp
}

// events returns a page of events, newest first, older than the one that the cursor before
// stands for ("" for the newest). Where the clock was set back, times do not grow with the
// order of writing, and since may leave out some events of that span.
func (q *queries) events(f eventFilter, before string, limit int) (p listPage[event], err error) {
	list := listQuery{
		columns: `SELECT seq, id, at, type, account_id, subject_id,
			coalesce(json_extract(data, '$.device_id'), ''), actor, json_remove(data, '$.device_id') FROM events`,
		table: `events`,
		key:   `seq`,
	}
	if err := q.scopeOfEvents(&list, f); errors.Is(err, errNotFound) {
		return p, nil
	} else if err != nil {
		return p, err
	}
	if f.kind != "" {
		list.filter(` AND type = ?`, f.kind)
	}
	if f.deviceID != "" {
		list.filter(` AND json_extract(data, '$.device_id') = ?`, f.deviceID)
	}
	newest := int64(math.MaxInt64)
	if before != "" {
		newest, _ = parseEventCursor(before)
	}
	rows, next, err := readPage(q, list, newest, limit, (*event).dest, func(e event) int64 { return e.seq })
	for i := range rows {
		rows[i].nameSubject()
	}
	if p.rows = rows; next > 0 {
		p.next = eventCursor(next)
	}
	return p, err
}

// isLicense is the condition of the index on events of licences. A query for those of one
// licence repeats it, since SQLite would not use the index without it.
const isLicense = ` AND subject_id GLOB 'lic_*'`

// scopeOfEvents sets which events a list goes through: those of a licence, also when the
// filter names one of its devices, or else those of the owner; with since only the latest.
// Errors: errNotFound when the licence belongs to somebody else.
func (q *queries) scopeOfEvents(list *listQuery, f eventFilter) (err error) {
	licenseID := f.licenseID
	if licenseID == "" && f.deviceID != "" {
		err = q.one(`SELECT license_id FROM devices WHERE id = ?`, []any{f.deviceID}, &licenseID)
	}
	switch {
	case err != nil && !errors.Is(err, errNotFound):
		return err
	case licenseID == "":
		list.scope(f.owner.narrow(``, `account_id`))
	default:
		account, err := q.licenseOwner(licenseID)
		if err != nil {
			return err
		}
		if !f.owner.owns(account) {
			return errNotFound
		}
		list.scope(isLicense+` AND subject_id = ?`, []any{licenseID})
		condition, args := f.owner.narrow(``, `+account_id`) // the plus keeps the account's index out
		list.filter(condition, args...)
	}
	if f.since.IsZero() {
		return nil
	}
	first, err := q.firstEventSince(f.since)
	list.scope(` AND seq >= ?`, []any{first})
	list.filter(` AND at >= ?`, f.since)
	return err
}

// firstEventSince returns the number from which on events are not older than since: by a
// binary search, because times have no index and grow with the numbers.
func (q *queries) firstEventSince(since stamp) (first int64, err error) {
	var end int64
	if err := q.one(`SELECT coalesce(max(seq), 0) + 1 FROM events`, nil, &end); err != nil {
		return 0, err
	}
	for first < end {
		middle := first + (end-first)/2
		var seq int64
		var at stamp
		err := q.one(`SELECT seq, at FROM events WHERE seq >= ? ORDER BY seq LIMIT 1`, []any{middle}, &seq, &at)
		switch {
		case err != nil && !errors.Is(err, errNotFound):
			return 0, err
		case err == nil && at.Before(since.Time):
			first = seq + 1
		default:
			end = middle
		}
	}
	return first, nil
}

func (e *event) dest() []any {
	return []any{&e.seq, &e.ID, &e.At, &e.Type, &e.AccountID, &e.SubjectID, &e.DeviceID, &e.Actor, (*jsonText)(&e.Data)}
}

// nameSubject sets the member that tells what kind of thing the subject is.
func (e *event) nameSubject() {
	switch {
	case strings.HasPrefix(e.SubjectID, "lic_"):
		e.LicenseID = e.SubjectID
	case strings.HasPrefix(e.SubjectID, "lead_"):
		e.LeadID = e.SubjectID
	}
}

// eventCursor returns the cursor of a list of events for the number of the last one on a
// page. It has the shape of an event's id, and is none: ids have no index.
func eventCursor(seq int64) string {
	var low [10]byte
	binary.BigEndian.PutUint64(low[2:], uint64(seq))
	return formatID("evt", time.UnixMilli(0), low)
}

// parseEventCursor returns the number that a cursor was made from, and whether it is one.
func parseEventCursor(cursor string) (seq int64, ok bool) {
	if !validID("evt", cursor) {
		return 0, false
	}
	var high, low uint64
	for _, symbol := range []byte(cursor[len("evt_"):]) {
		high = high<<5 | low>>59
		low = low<<5 | uint64(strings.IndexByte(crockford, symbol))
	}
	return int64(low), high == 0 && low > 0 && low <= math.MaxInt64
}
