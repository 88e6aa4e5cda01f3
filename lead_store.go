package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const leadColumns = `seq, id, account_id, type, email, source, page, fields, created_at`

func (l *lead) dest() []any {
	return []any{&l.seq, &l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page,
		(*optionalJSON)(&l.Fields), &l.CreatedAt}
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
		id, l.AccountID, l.Type, l.Email, l.Source, l.Page, optionalJSON(l.Fields), digest, t.now)
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
	list.along(f.owner.narrow(``, `account_id`))
	if f.kind != "" {
		list.along(` AND type = ?`, []any{f.kind})
	}
	if err := q.scopeTimes(&list, `created_at`, f.since, f.until); err != nil {
		return p, err
	}
	return readNumbered(q, list, "lead", before, limit, (*lead).dest, func(l lead) int64 { return l.seq })
}

// erasedAtOnce is how many leads of an address the first transaction of erasing takes. The next ones
// take more while they are short and fewer while they are long, between a fifth and twenty times as
// many, so that other writes wait less than 100 ms whatever leads hold (BenchmarkErase).
const (
	erasedAtOnce = 100
	shortErasing = 10 * time.Millisecond
	longErasing  = 30 * time.Millisecond
	fewestErased = erasedAtOnce / 5
	mostErased   = erasedAtOnce * 20
)

// eraseLeads removes every lead of an owner that has the address, compared without case, and
// returns how many there were. It does so in short transactions, so that other writes go on in
// between; after an error, those that are left are found again. Until the WAL is
// truncated, it still holds the address.
func (s *store) eraseLeads(ctx context.Context, o owner, email string) (erased int64, err error) {
	// All rows are overwritten before the first is deleted: deleting moves rows to other pages,
	// and SQLite leaves the bytes where a row was.
	err = s.eachLeadOfAddress(ctx, o, email, func(t *tx, found []leadAddress) error {
		t.blankLeads(email, found)
		return nil
	})
	if err != nil {
		return 0, err
	}
	err = s.eachLeadOfAddress(ctx, o, email, func(t *tx, found []leadAddress) error {
		erased += t.deleteLeads(found)
		return nil
	})
	return erased, err
}

// eachLeadOfAddress calls f with batches of an owner's leads that include all those of an address, each
// batch in a transaction of its own. See erasedAtOnce for the size of a batch.
func (s *store) eachLeadOfAddress(
	ctx context.Context, o owner, email string, f func(*tx, []leadAddress) error,
) error {
	atOnce := erasedAtOnce
	for _, r := range leadRanges(email) {
		for more := true; more; {
			began := time.Now()
			var found []leadAddress
			err := s.update(ctx, func(t *tx) (err error) {
				if found, err = t.leadsInRange(o, r, atOnce); err != nil {
					return err
				}
				return f(t, found)
			})
			if err != nil {
				return err
			}
			took := time.Since(began)
			if more = len(found) == atOnce; more {
				r.after = found[len(found)-1].leadPlace
				time.Sleep(took) // see updateInParts
			}
			switch {
			case took < shortErasing:
				atOnce = min(2*atOnce, mostErased)
			case took > longErasing:
				atOnce = max(atOnce/2, fewestErased)
			}
		}
	}
	return nil
}

// A leadPlace is a place in the order of the index on digests.
type leadPlace struct {
	digest []byte
	seq    int64
}

// A leadRange is a part of the index on digests: what comes after a place, up to a digest.
type leadRange struct {
	after leadPlace
	last  []byte
}

// leadRanges returns where the leads of an address are: among those that have its digest, and
// among those without one, whose address somebody has changed with the sqlite3 shell.
func leadRanges(email string) []leadRange {
	half, none := addressDigest(email), make([]byte, 16)
	return []leadRange{
		{leadPlace{slices.Concat(half, make([]byte, 8)), 0}, slices.Concat(half, bytes.Repeat([]byte{0xff}, 8))},
		{leadPlace{none, 0}, none},
	}
}

// A leadAddress is what erasing reads of a lead.
type leadAddress struct {
	leadPlace
	email string
}

// leadsInRange returns the first leads of an owner in a range, up to limit of them.
func (q *queries) leadsInRange(o owner, r leadRange, limit int) ([]leadAddress, error) {
	const columns = `SELECT digest, seq, email FROM leads WHERE `
	// If the query compared pairs, SQLite would go through all leads with the digest of the place each time.
	same, args := o.narrow(columns+`digest = ? AND seq > ?`, `+account_id`, r.after.digest, r.after.seq)
	later, more := o.narrow(columns+`digest > ? AND digest <= ?`, `+account_id`, r.after.digest, r.last)
	return collect(q, same+` UNION ALL `+later+` ORDER BY digest, seq LIMIT ?`, slices.Concat(args, more, []any{limit}),
		func(l *leadAddress) []any { return []any{&l.digest, &l.seq, &l.email} })
}

// blankLeads overwrites the personal data in those of the leads that have the address, in place:
// the values that it writes have the same length.
func (t *tx) blankLeads(email string, leads []leadAddress) {
	t.exec(`UPDATE leads SET email = `+blanked("email", "x")+`, source = `+blanked("source", "x")+`,
		page = '/' || substr(`+blanked("page", "x")+`, 2),
		fields = '{' || substr(`+blanked("fields", " ")+`, 3) || '}' WHERE seq IN (SELECT value FROM json_each(?))`,
		numbersOf(leads, func(l leadAddress) bool {
			return emailKey(l.email) == emailKey(email) // else the digest matched by chance, or is missing
		}))
}

// numbersOf returns the numbers of the leads that are chosen, as a JSON array.
func numbersOf(leads []leadAddress, chosen func(leadAddress) bool) string {
	numbers := []int64{}
	for _, l := range leads {
		if chosen(l) {
			numbers = append(numbers, l.seq)
		}
	}
	return string(encodeJSON(numbers))
}

// deleteLeads removes those of the leads that blankLeads has overwritten, and returns how many.
func (t *tx) deleteLeads(leads []leadAddress) (deleted int64) {
	return t.exec(`DELETE FROM leads WHERE seq IN (SELECT value FROM json_each(?))`,
		numbersOf(leads, func(l leadAddress) bool {
			return strings.Trim(l.email, "x") == "" // else another address, or added since
		}))
}

// A similarAddress is an address that resembles another one.
type similarAddress struct {
	Email string `json:"email"`
	Leads int    `json:"leads"` // how many have it
	ID    string `json:"id"`    // of the last of them
}

// leadsReadAtOnce is how many leads similarAddresses reads with one query.
const leadsReadAtOnce = 5_000

// similarAddresses returns up to max addresses in an owner's leads that resemble an address
// (looseEmail) but are not removed by erasing it; more reports whether there are others. It reads
// all leads, which takes a second or two for a million, but with many short queries.
func (q *queries) similarAddresses(
	ctx context.Context, o owner, email string, max int,
) (similar []similarAddress, more bool, err error) {
	loose, exact := looseEmail(email), emailKey(email)
	query, first := o.narrow(`SELECT seq, id, email FROM leads WHERE seq > ?`, `account_id`, int64(0))
	for {
		leads, err := collect(q, query+` ORDER BY seq LIMIT ?`, append(first, leadsReadAtOnce),
			func(l *lead) []any { return []any{&l.seq, &l.ID, &l.Email} })
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, false, err
		}
		for _, l := range leads {
			if looseEmail(l.Email) != loose || emailKey(l.Email) == exact {
				continue
			}
			at := slices.IndexFunc(similar, func(s similarAddress) bool { return s.Email == l.Email })
			if at < 0 && len(similar) == max {
				more = true
				continue
			}
			if at < 0 {
				at, similar = len(similar), append(similar, similarAddress{Email: l.Email})
			}
			similar[at].Leads++
			similar[at].ID = l.ID
		}
		if len(leads) < leadsReadAtOnce {
			return similar, more, nil
		}
		first[0] = leads[len(leads)-1].seq
	}
}

// purgedAtOnce is how many leads one transaction looks at to purge.
const purgedAtOnce = 1_000

// purgeLeads looks at the next purgedAtOnce leads after a number and removes those of an owner that
// were posted before a time. It returns how many it removed, and the number to go on after, 0 at
// the end.
func (t *tx) purgeLeads(o owner, before stamp, after int64) (purged, last int64, err error) {
	err = t.one(`SELECT coalesce(max(seq), 0) FROM (SELECT seq FROM leads WHERE seq > ? ORDER BY seq LIMIT ?)`,
		[]any{after, purgedAtOnce}, &last)
	if err != nil || last == 0 {
		return 0, 0, err
	}
	query, args := o.narrow(`DELETE FROM leads WHERE seq > ? AND seq <= ? AND created_at < ?`, `+account_id`,
		after, last, before)
	return t.exec(query, args...), last, nil
}

// countLeads returns how many leads of an owner were created before a time.
func (q *queries) countLeads(o owner, before stamp) (n int64, err error) {
	query, args := o.narrow(`SELECT count(*) FROM leads WHERE created_at < ?`, `account_id`, before)
	return oneValue[int64](q, query, args...)
}
