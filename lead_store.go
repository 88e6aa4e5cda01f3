package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const leadColumns = `seq, id, account_id, type, email, source, page, fields, created_at`

func (l *lead) dest() []any {
	return []any{&l.seq, &l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page,
		jsonColumn[json.RawMessage]{&l.Fields}, &l.CreatedAt}
}

// unreadableLeads is a rowReader.
func unreadableLeads(q *queries) ([]string, error) {
	return unreadableRows(q, `SELECT `+leadColumns+` FROM leads`, (*lead).dest)
}

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

// dedupeWindow is how long a repeated submission counts as the same lead: long enough for a double
// click or a retry. It is no longer, since the id tells whoever repeats somebody else's submission
// when that was sent.
const dedupeWindow = 10 * time.Minute

// addLead inserts a lead and its event, and returns its id. For the same submission
// within dedupeWindow it returns the id of that lead and writes nothing. To find it, only the last
// row with its digest is read, however many there are.
func (t *tx) addLead(l lead) (id string, err error) {
	digest := l.digest()
	err = t.one(`SELECT id FROM (SELECT id, email, created_at FROM leads WHERE digest = ? ORDER BY seq DESC LIMIT 1)
		WHERE created_at > ? AND created_at < ? AND email = ?`,
		[]any{digest, t.now.after(-dedupeWindow), t.now.after(dedupeWindow), l.Email}, &id)
	if !errors.Is(err, errNotFound) {
		return id, err
	}
	id = t.newID("lead")
	t.exec(`INSERT INTO leads (id, account_id, type, email, source, page, fields, digest, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, l.Source, l.Page, jsonColumn[json.RawMessage]{&l.Fields}, digest, t.now)
	t.addEvent(event{Type: eventLeadCreated, AccountID: l.AccountID, SubjectID: id,
		Actor: cmp.Or(l.sender, actorSite)})
	return id, nil
}

// A leadFilter selects leads of an owner; an empty field does not narrow the selection.
type leadFilter struct {
	owner        owner
	kind         string // the lead's type
	since, until stamp  // posted at since or later, and before until
}

// leads returns a page of leads, newest first, older than the one that the cursor before stands
// for ("" for the newest). For since and until see firstSince.
func (q *queries) leads(f leadFilter, before string, limit int) (p listPage[lead], err error) {
	list := listQuery{columns: `SELECT ` + leadColumns + ` FROM leads`, table: `leads`, key: `seq`}
	list.byIndex(f.owner.narrow(``, `account_id`))
	if f.kind != "" {
		list.byIndex(` AND type = ?`, []any{f.kind})
	}
	if err := q.scopeTimes(&list, `created_at`, f.since, f.until); err != nil {
		return p, err
	}
	return readNumbered(q, list, "lead", before, limit, (*lead).dest, func(l lead) int64 { return l.seq })
}

// eraseLeads removes every lead of an owner that has the address, compared without case, and
// returns how many there were. It does so in short transactions, so that other writes go on in
// between; after an error, those that are left are found again. Until the WAL is
// truncated, it still holds the address.
func (s *store) eraseLeads(ctx context.Context, o owner, email string) (erased int64, err error) {
	numbers, err := s.within(ctx).leadsOfAddress(o, email)
	if err == nil {
		// All rows are overwritten before the first is deleted: deleting moves rows to other pages,
		// and SQLite leaves the bytes where a row was.
		_, err = s.changeLeads(ctx, numbers, (*tx).blankLeads)
	}
	if err != nil {
		return 0, err
	}
	return s.changeLeads(ctx, numbers, (*tx).deleteLeads)
}

// leadsAtOnce is how many leads one transaction erases or purges: so few that other writes wait less than 100 ms
// whatever leads hold (BenchmarkErase).
const leadsAtOnce = 200

// changeLeads calls change with the leads of these numbers, leadsAtOnce in each transaction, and returns how many it
// has changed.
func (s *store) changeLeads(
	ctx context.Context, numbers []int64, change func(t *tx, numbers []int64) int64,
) (changed int64, err error) {
	type progress struct {
		done    int
		changed int64
	}
	end, err := inParts(ctx, s.writer, progress{}, func(t *tx, at progress) (progress, bool, error) {
		next := min(at.done+leadsAtOnce, len(numbers))
		return progress{next, at.changed + change(t, numbers[at.done:next])}, next < len(numbers), nil
	})
	return end.changed, err
}

// leadsOfAddress returns the numbers of an owner's leads that have the address, and of those that were overwritten when
// erasing was interrupted. They are among those that have the digest of the address, and among those without one,
// whose address somebody has changed with the sqlite3 shell.
func (q *queries) leadsOfAddress(o owner, email string) (numbers []int64, err error) {
	half, none := addressDigest(email), make([]byte, 16)
	query, args := o.narrow(`SELECT seq, email FROM leads WHERE (digest >= ? AND digest <= ? OR digest = ?)`,
		`+account_id`, slices.Concat(half, none[:8]), slices.Concat(half, bytes.Repeat([]byte{0xff}, 8)), none)
	err = q.each(query, args, func(scan func(...any) error) error {
		var seq int64
		var found string
		err := scan(&seq, &found)
		if err == nil && (emailKey(found) == emailKey(email) || strings.Trim(found, "x") == "") {
			numbers = append(numbers, seq) // else the digest matched by chance, or is missing
		}
		return err
	})
	return numbers, err
}

// blankLeads overwrites the personal data in leads, in place: the values that it writes have the same length.
func (t *tx) blankLeads(numbers []int64) int64 {
	return t.exec(`UPDATE leads SET email = `+fillerOf("email", "x")+`, source = `+fillerOf("source", "x")+`,
		page = '/' || substr(`+fillerOf("page", "x")+`, 2),
		fields = '{' || substr(`+fillerOf("fields", " ")+`, 3) || '}' WHERE seq IN (SELECT value FROM json_each(?))`,
		string(encodeJSON(numbers)))
}

// deleteLeads removes leads that blankLeads has overwritten, and returns how many.
func (t *tx) deleteLeads(numbers []int64) (deleted int64) {
	return t.exec(`DELETE FROM leads WHERE seq IN (SELECT value FROM json_each(?))`, string(encodeJSON(numbers)))
}

// A similarAddress is an address that resembles another one.
type similarAddress struct {
	Email string `json:"email"`
	Leads int    `json:"leads"` // how many have it
	ID    string `json:"id"`    // of the last of them
}

// similarAddresses returns up to max addresses in an owner's leads that resemble an address
// (similarEmailKey) but are not removed by erasing it; more reports whether there are others. It reads
// all leads, which takes a second or two for a million.
func (q *queries) similarAddresses(o owner, email string, max int) (similar []similarAddress, more bool, err error) {
	loose, exact := similarEmailKey(email), emailKey(email)
	query, args := o.narrow(`SELECT id, email FROM leads WHERE 1`, `account_id`)
	err = q.each(query+` ORDER BY seq`, args, func(scan func(...any) error) error {
		var found similarAddress
		if err := scan(&found.ID, &found.Email); err != nil {
			return err
		}
		if similarEmailKey(found.Email) != loose || emailKey(found.Email) == exact {
			return nil
		}
		at := slices.IndexFunc(similar, func(s similarAddress) bool { return s.Email == found.Email })
		switch {
		case at >= 0:
			similar[at].Leads++
			similar[at].ID = found.ID
		case len(similar) < max:
			similar = append(similar, similarAddress{Email: found.Email, Leads: 1, ID: found.ID})
		default:
			more = true
		}
		return nil
	})
	return similar, more, err
}

// purgeLeads removes the leads of an owner that were posted before a time, and returns how many. It first reads all
// leads.
func (s *store) purgeLeads(ctx context.Context, o owner, before stamp) (purged int64, err error) {
	query, args := o.narrow(`SELECT seq FROM leads WHERE created_at < ?`, `account_id`, before)
	numbers, err := collect(s.within(ctx), query, args, func(seq *int64) []any { return []any{seq} })
	if err != nil {
		return 0, err
	}
	return s.changeLeads(ctx, numbers, (*tx).deleteLeads)
}

// countLeads returns how many leads of an owner were created before a time.
func (q *queries) countLeads(o owner, before stamp) (n int64, err error) {
	query, args := o.narrow(`SELECT count(*) FROM leads WHERE created_at < ?`, `account_id`, before)
	return oneValue[int64](q, query, args...)
}
