package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// The event types of leads.
var (
	leadEvents eventTable

	eventLeadCreated = leadEvents.add("lead.created")
)

// A lead is what a marketing site's form sent.
type lead struct {
	ID        string  `json:"id"`
	AccountID string  `json:"account_id"`
	Type      string  `json:"type"`
	Email     string  `json:"email"`
	Source    *string `json:"source"`
	Page      *string `json:"page"`
	// Fields is an object of texts, with its names sorted: what else the form asked for. nil: nothing.
	Fields    json.RawMessage `json:"fields"`
	CreatedAt stamp           `json:"created_at"`
}

const leadColumns = `id, account_id, type, email, source, page, fields, created_at`

func (l *lead) dest() []any {
	return []any{&l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page,
		(*optionalJSON)(&l.Fields), &l.CreatedAt}
}

// emailKey returns the address in lower case, for comparing without case.
func emailKey(email string) string { return strings.ToLower(email) }

// addLead adds a lead with its event and returns its id. For a submission that equals one
// of the last 24 hours it returns the id of that one and writes nothing.
func (t *tx) addLead(l lead) (id string, err error) {
	yesterday := t.now.after(-24 * time.Hour)
	err = t.one(`SELECT id FROM leads WHERE email_key = ? AND created_at > ? AND account_id = ?
		AND type = ? AND email = ? AND source IS ? AND page IS ? AND fields IS ? ORDER BY created_at DESC LIMIT 1`,
		[]any{emailKey(l.Email), yesterday, l.AccountID, l.Type, l.Email, l.Source, l.Page,
			optionalJSON(l.Fields)}, &id)
	if !errors.Is(err, errNotFound) {
		return id, err
	}
	id = t.newID("lead")
	_, err = t.exec(`INSERT INTO leads (id, account_id, type, email, email_key, source, page, fields, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, emailKey(l.Email), l.Source, l.Page, optionalJSON(l.Fields), t.now)
	if err != nil {
		return "", err
	}
	return id, t.addEvent(event{
		Type:      eventLeadCreated,
		AccountID: l.AccountID,
		SubjectID: id,
		LeadID:    id,
		Actor:     actorSite,
	})
}

// A leadFilter selects leads of an owner; every other field selects only if it is set.
type leadFilter struct {
	owner        owner
	kind         string // their type
	since, until stamp  // when they were posted: since is included, until is not
}

// narrow adds the filter's conditions to a query that ends in a WHERE clause. Ids begin with
// the time at which a lead was posted and have an index, so times are compared by them.
func (f *leadFilter) narrow(query string, args ...any) (string, []any) {
	query, args = f.owner.narrow(query, `account_id`, args...)
	if f.kind != "" {
		query, args = query+` AND type = ?`, append(args, f.kind)
	}
	if !f.since.IsZero() {
		query, args = query+` AND id >= ?`, append(args, formatID("lead", f.since.Time, [10]byte{}))
	}
	if !f.until.IsZero() {
		query, args = query+` AND id < ?`, append(args, formatID("lead", f.until.Time, [10]byte{}))
	}
	return query, args
}

// leads returns up to limit leads, newest first: those older than the one with the id before,
// or with "" the newest.
func (q *queries) leads(f leadFilter, before string, limit int) ([]lead, error) {
	query, args := f.narrow(`SELECT `+leadColumns+` FROM leads WHERE id < ?`, cmp.Or(before, lastID))
	return collect(q, query+` ORDER BY id DESC LIMIT ?`, append(args, limit), (*lead).dest)
}

// eraseLeads removes every lead of an owner that has the address, compared without case,
// and returns how many there were. The write-ahead log still holds the address until it is
// truncated.
func (t *tx) eraseLeads(o owner, email string) (int64, error) {
	query, args := o.narrow(`DELETE FROM leads WHERE email_key = ?`, `account_id`, emailKey(email))
	return t.exec(query, args...)
}

// purgeLeads removes up to 1,000 leads of an owner that were created before a time, and
// returns how many it removed.
func (t *tx) purgeLeads(o owner, before stamp) (int64, error) {
	query, args := o.narrow(`SELECT id FROM leads WHERE created_at < ?`, `account_id`, before)
	return t.exec(`DELETE FROM leads WHERE id IN (`+query+` LIMIT 1000)`, args...)
}

// countLeads returns how many leads of an owner were created before a time.
func (q *queries) countLeads(o owner, before stamp) (n int64, err error) {
	query, args := o.narrow(`SELECT count(*) FROM leads WHERE created_at < ?`, `account_id`, before)
	err = q.one(query, args, &n)
	return n, err
}
