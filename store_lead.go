package main

import (
	"encoding/json"
	"strings"
	"time"
)

// A lead is what a marketing site's form sent.
type lead struct {
	ID        string  `json:"id"`
	AccountID string  `json:"account_id"`
	Type      string  `json:"type"`
	Email     string  `json:"email"`
	Source    *string `json:"source"`
	Page      *string `json:"page"`
	CreatedAt stamp   `json:"created_at"`
}

const leadColumns = `id, account_id, type, email, source, page, created_at`

func (l *lead) scan(scan func(...any) error) error {
	return scan(&l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page, &l.CreatedAt)
}

// emailKey is the form of an address that compares without case.
func emailKey(email string) string { return strings.ToLower(email) }

// addLead keeps a lead and its event, and returns its id. The same submission
// within 24 hours is the same lead: its id comes back and nothing is written.
func (t *tx) addLead(l lead) (id string, err error) {
	err = t.one(`SELECT id FROM leads WHERE email_key = ? AND created_at > ? AND account_id = ? AND type = ? AND email = ? AND source IS ? AND page IS ? ORDER BY created_at DESC LIMIT 1`,
		[]any{emailKey(l.Email), t.now.after(-24 * time.Hour), l.AccountID, l.Type, l.Email, l.Source, l.Page}, &id)
	if err != errNotFound {
		return id, err
	}
	id = t.newID("lead")
	_, err = t.exec(`INSERT INTO leads (id, account_id, type, email, email_key, source, page, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, emailKey(l.Email), l.Source, l.Page, t.now)
	if err != nil {
		return "", err
	}
	return id, t.addEvent(event{Type: "lead.created", AccountID: l.AccountID, LeadID: id, Actor: "site"})
}

// leads returns a page of an account's leads ("" for every account), newest
// first, older than the id before ("" for the newest).
func (q *queries) leads(accountID, before string, limit int) (page []lead, err error) {
	query, args := listQuery(`SELECT `+leadColumns+` FROM leads`, accountID, before, limit)
	err = q.each(query, args, func(scan func(...any) error) error {
		var l lead
		err := l.scan(scan)
		page = append(page, l)
		return err
	})
	return page, err
}

// listQuery completes a SELECT over a table with id and account_id to one page,
// newest first.
func listQuery(selectFrom, accountID, before string, limit int) (string, []any) {
	if before == "" {
		before = "~" // after every id
	}
	if accountID == "" {
		return selectFrom + ` WHERE id < ? ORDER BY id DESC LIMIT ?`, []any{before, limit}
	}
	return selectFrom + ` WHERE account_id = ? AND id < ? ORDER BY id DESC LIMIT ?`, []any{accountID, before, limit}
}

// eraseLeads removes every lead of an address, compared without case, of one
// account ("" for all), and returns how many there were. Until the next
// checkpoint the write-ahead log still holds the address.
func (t *tx) eraseLeads(accountID, email string) (int64, error) {
	if accountID == "" {
		return t.exec(`DELETE FROM leads WHERE email_key = ?`, emailKey(email))
	}
	return t.exec(`DELETE FROM leads WHERE email_key = ? AND account_id = ?`, emailKey(email), accountID)
}

// purgeLeads removes up to 1,000 leads that were posted before a moment and
// returns how many it removed.
func (t *tx) purgeLeads(before stamp) (int64, error) {
	return t.exec(`DELETE FROM leads WHERE id IN (SELECT id FROM leads WHERE created_at < ? LIMIT 1000)`, before)
}

// An event is one change, written in the transaction that made it.
type event struct {
	ID        string          `json:"id"`
	At        stamp           `json:"at"`
	Type      string          `json:"type"`
	AccountID string          `json:"account_id"`
	LicenseID string          `json:"license_id,omitempty"`
	DeviceID  string          `json:"device_id,omitempty"`
	LeadID    string          `json:"lead_id,omitempty"`
	Actor     string          `json:"actor"`
	Data      json.RawMessage `json:"data"`
}

// addEvent writes an event; id and time are its transaction's.
func (t *tx) addEvent(e event) error {
	if e.Data == nil {
		e.Data = json.RawMessage("{}")
	}
	_, err := t.exec(`INSERT INTO events (id, at, type, account_id, license_id, device_id, lead_id, actor, data) VALUES (?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), ?, ?)`,
		t.newID("evt"), t.now, e.Type, e.AccountID, e.LicenseID, e.DeviceID, e.LeadID, e.Actor, string(e.Data))
	return err
}

// An eventFilter chooses events; what is empty chooses all.
type eventFilter struct {
	accountID, eventType, licenseID, deviceID string
	since                                     stamp
}

// events returns a page of events, newest first, written before the one with the
// id before ("" for the newest).
func (q *queries) events(f eventFilter, before string, limit int) (all []event, err error) {
	query := `SELECT id, at, type, account_id, coalesce(license_id, ''), coalesce(device_id, ''), coalesce(lead_id, ''), actor, data FROM events WHERE 1`
	var args []any
	owner := "account_id"
	if f.licenseID != "" || f.deviceID != "" {
		owner = "+account_id" // the plus keeps the account's index out: these have fewer events
	}
	for _, c := range []struct {
		condition, value string
	}{
		{` AND ` + owner + ` = ?`, f.accountID}, {` AND type = ?`, f.eventType}, {` AND license_id = ?`, f.licenseID}, {` AND device_id = ?`, f.deviceID},
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
		if owner == "account_id" { // ids tell the time too, and have an index; the plus has it used
			query += ` AND seq >= (SELECT min(+seq) FROM events WHERE id >= ?)`
			args = append(args, formatID("evt", f.since.Time, [10]byte{}))
		}
	}
	err = q.each(query+` ORDER BY seq DESC LIMIT ?`, append(args, limit), func(scan func(...any) error) error {
		var e event
		err := scan(&e.ID, &e.At, &e.Type, &e.AccountID, &e.LicenseID, &e.DeviceID, &e.LeadID, &e.Actor, (*jsonText)(&e.Data))
		all = append(all, e)
		return err
	})
	return all, err
}

// A legacyCall counts how often one caller used one path on one UTC day.
type legacyCall struct {
	Day    string `json:"day"`
	Path   string `json:"path"`   // a known one, or "other"
	Caller string `json:"caller"` // an account, or "unknown"
	Calls  int64  `json:"calls"`
	LastAt stamp  `json:"last_at"`
}

// countLegacy adds calls to their rows.
func (t *tx) countLegacy(calls []legacyCall) error {
	for _, c := range calls {
		if _, err := t.exec(`INSERT INTO legacy_calls (day, path, caller, calls, last_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET calls = calls + excluded.calls, last_at = max(last_at, excluded.last_at)`,
			c.Day, c.Path, c.Caller, c.Calls, c.LastAt); err != nil {
			return err
		}
	}
	return nil
}

// legacyCalls returns all counts, the latest day first.
func (q *queries) legacyCalls() (all []legacyCall, err error) {
	err = q.each(`SELECT day, path, caller, calls, last_at FROM legacy_calls ORDER BY day DESC, calls DESC`, nil, func(scan func(...any) error) error {
		var c legacyCall
		err := scan(&c.Day, &c.Path, &c.Caller, &c.Calls, &c.LastAt)
		all = append(all, c)
		return err
	})
	return all, err
}
