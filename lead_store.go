package main

import (
	"cmp"
	"errors"
	"strings"
	"time"
)

// The events of leads.
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

// emailKey is the form of an address that compares without case.
func emailKey(email string) string { return strings.ToLower(email) }

// addLead keeps a lead and its event, and returns its id. The same submission
// within 24 hours is the same lead: its id comes back and nothing is written.
func (t *tx) addLead(l lead) (id string, err error) {
	err = t.one(`SELECT id FROM leads WHERE email_key = ? AND created_at > ? AND account_id = ? AND type = ? AND email = ? AND source IS ? AND page IS ? ORDER BY created_at DESC LIMIT 1`,
		[]any{emailKey(l.Email), t.now.after(-24 * time.Hour), l.AccountID, l.Type, l.Email, l.Source, l.Page}, &id)
	if !errors.Is(err, errNotFound) {
		return id, err
	}
	id = t.newID("lead")
	_, err = t.exec(`INSERT INTO leads (id, account_id, type, email, email_key, source, page, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, emailKey(l.Email), l.Source, l.Page, t.now)
	if err != nil {
		return "", err
	}
	return id, t.addEvent(event{Type: eventLeadCreated, AccountID: l.AccountID, LeadID: id, Actor: actorSite})
}

// leads returns a page of an owner's leads, newest first, older than the id before (""
// for the newest).
func (q *queries) leads(o owner, before string, limit int) ([]lead, error) {
	query, args := o.narrow(`SELECT `+leadColumns+` FROM leads WHERE id < ?`, `account_id`, cmp.Or(before, lastID))
	return collect(q, query+` ORDER BY id DESC LIMIT ?`, append(args, limit), (*lead).dest)
}

// eraseLeads removes every lead of an owner that has the address, compared without
// case, and returns how many there were. Until the next checkpoint the write-ahead log
// still holds the address.
func (t *tx) eraseLeads(o owner, email string) (int64, error) {
	query, args := o.narrow(`DELETE FROM leads WHERE email_key = ?`, `account_id`, emailKey(email))
	return t.exec(query, args...)
}

// purgeLeads removes up to 1,000 leads of an owner that were posted before a moment and
// returns how many it removed.
func (t *tx) purgeLeads(o owner, before stamp) (int64, error) {
	query, args := o.narrow(`SELECT id FROM leads WHERE created_at < ?`, `account_id`, before)
	return t.exec(`DELETE FROM leads WHERE id IN (`+query+` LIMIT 1000)`, args...)
}
