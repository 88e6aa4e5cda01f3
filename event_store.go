package main

import "encoding/json"

// An eventType is the type of an event, as "lead.created". Each noun declares its own in an
// eventTable.
type eventType string

// An eventTable lists the event types of one noun.
type eventTable []eventType

// add declares a type and returns it.
func (t *eventTable) add(name string) eventType {
	*t = append(*t, eventType(name))
	return eventType(name)
}

// An event records one change. It is written in the transaction that made the change.
type event struct {
	ID        string          `json:"id"`
	At        stamp           `json:"at"`
	Type      eventType       `json:"type"`
	AccountID string          `json:"account_id"`
	LicenseID string          `json:"license_id,omitempty"`
	DeviceID  string          `json:"device_id,omitempty"`
	LeadID    string          `json:"lead_id,omitempty"`
	Actor     string          `json:"actor"`
	Data      json.RawMessage `json:"data"`
}

// The actors of events: who made the change. Callers with a token are named by it, see
// actorToken.
const (
	actorDevice  = "device"
	actorSite    = "site"
	actorCommand = "command"
	actorTime    = "time"
)

// addEvent writes an event. It sets the id and the time itself, those of the transaction.
func (t *tx) addEvent(e event) error {
	if e.Data == nil {
		e.Data = json.RawMessage("{}")
	}
	_, err := t.exec(`INSERT INTO events (id, at, type, account_id, license_id, device_id, lead_id, actor, data)
		VALUES (?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), ?, ?)`,
		t.newID("evt"), t.now, e.Type, e.AccountID, e.LicenseID, e.DeviceID, e.LeadID, e.Actor,
		string(e.Data))
	return err
}

// eventData returns the data of an event as a JSON object, from names and values in turn.
// Empty values are left out.
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

// happenedSince reports whether the licence has an event of that type later than since.
func (q *queries) happenedSince(licenseID string, kind eventType, since stamp) (bool, error) {
	var n int
	err := q.one(`SELECT count(*) FROM (SELECT 1 FROM events
		WHERE license_id = ? AND type = ? AND at > ? LIMIT 1)`, []any{licenseID, kind, since}, &n)
	return n > 0, err
}

// An eventFilter selects events of an owner; every other field selects only if it is set.
type eventFilter struct {
	owner                     owner
	kind, licenseID, deviceID string
	since                     stamp
}

// events returns up to limit events, newest first: those written before the one with the id
// before, or with "" the newest.
func (q *queries) events(f eventFilter, before string, limit int) ([]event, error) {
	column := "account_id"
	if f.licenseID != "" || f.deviceID != "" {
		column = "+account_id" // the + keeps SQLite from using the account's index: a licence has fewer events
	}
	query, args := f.owner.narrow(`SELECT id, at, type, account_id, coalesce(license_id, ''),
		coalesce(device_id, ''), coalesce(lead_id, ''), actor, data FROM events WHERE 1`, column)
	for _, c := range []struct {
		condition, value string
	}{
		{` AND type = ?`, f.kind}, {` AND license_id = ?`, f.licenseID}, {` AND device_id = ?`, f.deviceID},
		{` AND seq < (SELECT seq FROM events WHERE id = ?)`, before},
	} {
		if c.value != "" {
			query += c.condition
			args = append(args, c.value)
		}
	}
	if !f.since.IsZero() {
		query += ` AND at >= ?`
		args = append(args, f.since)
		if column == "account_id" {
			// at has no index, but ids begin with the time and have one. With the + before seq
			// SQLite uses that, instead of walking the rows in the order of seq.
			query += ` AND seq >= (SELECT min(+seq) FROM events WHERE id >= ?)`
			args = append(args, formatID("evt", f.since.Time, [10]byte{}))
		}
	}
	return collect(q, query+` ORDER BY seq DESC LIMIT ?`, append(args, limit), func(e *event) []any {
		return []any{&e.ID, &e.At, &e.Type, &e.AccountID, &e.LicenseID, &e.DeviceID, &e.LeadID, &e.Actor,
			(*jsonText)(&e.Data)}
	})
}
