package main

import (
	"cmp"
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
	CreatedAt stamp   `json:"created_at"`
}

const leadColumns = `id, account_id, type, email, source, page, created_at`

func (l *lead) dest() []any {
	return []any{&l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page, &l.CreatedAt}
}

// emailKey returns the address in lower case, for comparing without case.
func emailKey(email string) string { return strings.ToLower(email) }

// addLead adds a lead with its event and returns its id. For a submission that equals one
// of the last 24 hours it returns the id of that one and writes nothing.
func (t *tx) addLead(l lead) (id string, err error) {
	yesterday := t.now.after(-24 * time.Hour)
	err = t.one(`SELECT id FROM leads WHERE email_key = ? AND created_at > ? AND account_id = ?
		AND type = ? AND email = ? AND source IS ? AND page IS ? ORDER BY created_at DESC LIMIT 1`,
		[]any{emailKey(l.Email), yesterday, l.AccountID, l.Type, l.Email, l.Source, l.Page}, &id)
	if !errors.Is(err, errNotFound) {
		return id, err
	}
	id = t.newID("lead")
	_, err = t.exec(`INSERT INTO leads (id, account_id, type, email, email_key, source, page, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, emailKey(l.Email), l.Source, l.Page, t.now)
	if err != nil {
		return "", err
	}
	return id, t.addEvent(event{
		Type:      eventLeadCreated,
		AccountID: l.AccountID,
		LeadID:    id,
		Actor:     actorSite,
	})
}

// leads returns up to limit leads of an owner, newest first: those older than the one with
// the id before, or with "" the newest.
func (q *queries) leads(o owner, before string, limit int) ([]lead, error) {
	query, args := o.narrow(`SELECT `+leadColumns+` FROM leads WHERE id < ?`, `account_id`,
		cmp.Or(before, lastID))
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
