package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
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
	ID        string          `json:"id"`
	AccountID string          `json:"account_id"`
	Type      string          `json:"type"` // newsletter, demo, …
	Email     string          `json:"email"`
	Source    *string         `json:"source"` // which form
	Page      *string         `json:"page"`   // path of the page
	Fields    json.RawMessage `json:"fields"` // what else the form asked for, an object of texts; nil: nothing
	CreatedAt stamp           `json:"created_at"`
}

const leadColumns = `id, account_id, type, email, source, page, fields, created_at`

func (l *lead) dest() []any {
	return []any{&l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page, (*optionalJSON)(&l.Fields), &l.CreatedAt}
}

// emailKey is the form of an address that compares without case.
func emailKey(email string) string { return strings.ToLower(email) }

// addressDigest is the first half of the digest of every lead of an address.
func addressDigest(email string) []byte {
	sum := sha256.Sum256([]byte(emailKey(email)))
	return sum[:8]
}

// digest is what a lead is found by: addressDigest, and 8 bytes of the hash of everything
// that was sent. Two submissions that are the same have the same digest.
func (l *lead) digest() []byte {
	sent := sha256.New()
	parts := []string{l.AccountID, l.Type, l.Email, valueOr(l.Source, ""), valueOr(l.Page, ""), string(l.Fields)}
	for _, part := range parts {
		fmt.Fprintf(sent, "%d:%s", len(part), part)
	}
	return append(addressDigest(l.Email), sent.Sum(nil)[:8]...)
}

// dedupeWindow is how long a submission that is sent again is the same lead.
const dedupeWindow = 24 * time.Hour

// addLead inserts a lead and its event, and returns its id. The same submission within
// dedupeWindow is the same lead: its id comes back and nothing is written.
func (t *tx) addLead(l lead) (id string, err error) {
	digest := l.digest()
	err = t.one(`SELECT id FROM leads WHERE digest = ? AND id > ? AND email = ? ORDER BY id DESC LIMIT 1`,
		[]any{digest, formatID("lead", t.exact.Add(-dedupeWindow), [10]byte{}), l.Email}, &id)
	if !errors.Is(err, errNotFound) {
		return id, err
	}
	id = t.newID("lead")
	_, err = t.exec(`INSERT INTO leads (id, account_id, type, email, source, page, fields, digest, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, l.Source, l.Page, optionalJSON(l.Fields), digest, t.now)
	if err != nil {
		return "", err
	}
	return id, t.addEvent(event{Type: eventLeadCreated, AccountID: l.AccountID, SubjectID: id, Actor: actorSite})
}

// A leadFilter chooses leads of an owner; what else is empty narrows nothing.
type leadFilter struct {
	owner        owner
	kind         string // the lead's type
	since, until stamp  // posted at since or later, and before until
}

// leads returns a page of leads, newest first, older than the id before ("" for the newest).
// Ids tell when a lead was posted.
func (q *queries) leads(f leadFilter, before string, limit int) (p listPage[lead], err error) {
	list := listQuery{columns: `SELECT ` + leadColumns + ` FROM leads`, table: `leads`, key: `id`}
	list.scope(f.owner.narrow(``, `account_id`))
	before = cmp.Or(before, lastID)
	if !f.until.IsZero() {
		before = min(before, formatID("lead", f.until.Time, [10]byte{}))
	}
	if !f.since.IsZero() {
		list.scope(` AND id >= ?`, []any{formatID("lead", f.since.Time, [10]byte{})})
	}
	if f.kind != "" {
		list.filter(` AND type = ?`, f.kind)
	}
	p.rows, p.next, err = readPage(q, list, before, limit, (*lead).dest, func(l lead) string { return l.ID })
	return p, err
}

// erasedAtOnce is how many leads of an address one transaction erases.
const erasedAtOnce = 1_000

// eraseLeads removes up to erasedAtOnce leads of an owner that have the address, compared
// without case, and returns how many there were: fewer than erasedAtOnce means that none is
// left. Until the WAL is truncated, it still holds the address.
func (t *tx) eraseLeads(o owner, email string) (int64, error) {
	type candidate struct{ id, email string }
	first := addressDigest(email)
	past := append(append([]byte{}, first...), strings.Repeat("\xff", 8)...)
	query, args := o.narrow(`SELECT id, email FROM leads WHERE digest >= ? AND digest <= ?`, `account_id`,
		append(append([]byte{}, first...), make([]byte, 8)...), past)
	found, err := collect(t.queries, query+` LIMIT ?`, append(args, erasedAtOnce), func(c *candidate) []any { return []any{&c.id, &c.email} })
	if err != nil {
		return 0, err
	}
	erased := int64(0)
	for _, c := range found {
		if emailKey(c.email) != emailKey(email) { // the digests of two addresses are the same
			continue
		}
		n, err := t.exec(`DELETE FROM leads WHERE id = ?`, c.id)
		if err != nil {
			return 0, err
		}
		erased += n
	}
	return erased, nil
}

// purgedAtOnce is how many leads one transaction purges.
const purgedAtOnce = 1_000

// purgeLeads removes up to purgedAtOnce leads of an owner that were posted before a moment and
// returns how many it removed. Ids sort by the time they were made.
func (t *tx) purgeLeads(o owner, before stamp) (int64, error) {
	query, args := o.narrow(`SELECT id FROM leads WHERE id < ?`, `account_id`, formatID("lead", before.Time, [10]byte{}))
	return t.exec(`DELETE FROM leads WHERE id IN (`+query+` ORDER BY id LIMIT ?)`, append(args, purgedAtOnce)...)
}
