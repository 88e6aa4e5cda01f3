package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// This file deals with what can't be used in a database: damage to the file, and single rows with values that this
// program never writes but an old sqlite3 shell lets through. What queries meet of either is noted here, for
// health, status and the log.

// A faultLog notes the damage and the unreadable rows that queries have met in an open file, until a check of the whole
// file passes. Its methods may be called concurrently.
type faultLog struct {
	now     func() time.Time
	mu      sync.Mutex
	damage  *foundDamage
	rows    map[string]*unreadableRow // the first of each table
	leftOut map[string]bool           // ids of what workers go on without, since a row of it can't be read
	notify  func(*unreadableRow)      // is called once for each of rows; nil: nobody wants to know
}

// A foundDamage is damage of the file that a query came upon.
type foundDamage struct {
	At    stamp  `json:"at"`    // when it was met first
	Write bool   `json:"write"` // true: the writer met it; false: a reader
	Table string `json:"table"` // the table that was queried; "": not known
	Error string `json:"error"` // SQLite's message
	Times int64  `json:"times"` // how often damage was met
}

// isDamage reports whether an error says that the file is damaged, not only one row.
func isDamage(err error) bool {
	var se *sqlite.Error
	if errors.As(err, &se) {
		code := se.Code() & 0xff
		return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB
	}
	return errors.Is(err, errHeader)
}

// noteDamage notes that a query met damage. It keeps the first, but prefers what the writer met to what a reader met.
func (f *faultLog) noteDamage(query string, err error, write bool) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damage == nil {
		f.damage = &foundDamage{At: newStamp(f.now())}
	}
	d := f.damage
	if d.Times++; d.Times == 1 || write && !d.Write {
		d.Write, d.Table, d.Error = write, tableOf(query), faultText(err)
	}
}

// damageMet returns what was met, or nil.
func (f *faultLog) damageMet() *foundDamage {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damage == nil {
		return nil
	}
	return new(*f.damage)
}

// checked clears what was noted, and set aside, after a check of the whole file has passed. times is how often damage
// had been met when the check began; if it has been met since, checked reports false and clears nothing.
func (f *faultLog) checked(times int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damage != nil && f.damage.Times != times {
		return false
	}
	f.damage = nil
	clear(f.rows)
	clear(f.leftOut)
	return true
}

// noteRow notes a row that could not be read.
func (f *faultLog) noteRow(u *unreadableRow) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rows[u.table] == nil {
		f.rows[u.table] = u
		if f.notify != nil {
			f.notify(u)
		}
	}
}

// onUnreadable sets notify, which is called once for the first row of each table that can't be read. It must not
// query the database.
func (f *faultLog) onUnreadable(tell func(*unreadableRow)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notify = tell
}

// rowsMet returns the first row of each table that could not be read.
func (f *faultLog) rowsMet() (rows []*unreadableRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, table := range slices.Sorted(maps.Keys(f.rows)) {
		rows = append(rows, f.rows[table])
	}
	return rows
}

// leaveOut makes workers go on without what has an id, if err says that a row of it can't be read: until checked. It
// reports false for any other error.
func (f *faultLog) leaveOut(id string, err error) bool {
	row, ok := errors.AsType[*unreadableRow](err)
	if ok {
		f.noteRow(row)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.leftOut[id] = true
	}
	return ok
}

// leftOutIDs returns the ids of what was set aside, as JSON for a query of what is due.
func (f *faultLog) leftOutIDs() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(encodeJSON(append([]string{}, slices.Collect(maps.Keys(f.leftOut))...)))
}

// errAside is the error of a transaction that has set something aside: undone and run again, it goes on without that.
var errAside = errors.New("rows that can't be read were set aside: try again")

// eachDue calls f for each of ids, which are due to a worker. Errors: errAside if it has met rows that can't be read.
func (t *tx) eachDue(ids []string, f func(id string) error) (err error) {
	for _, id := range ids {
		if failed := f(id); t.faults.leaveOut(id, failed) {
			err = errAside
		} else if failed != nil {
			return failed
		}
	}
	return err
}

// faultText returns what went wrong in one line, for operators: what SQLite says, if it was SQLite.
func faultText(err error) string {
	var se *sqlite.Error
	if errors.As(err, &se) {
		err = se
	}
	return oneLineError{err}.Error()
}

// An unreadableRow is the error of a row with a value that its column can't hold. This program did not write
// it. It wraps errUnreadable.
type unreadableRow struct {
	table, id string         // "": not known
	cause     string         // the column in quotes, and what is wrong with its value
	values    map[string]any // by column
}

// Error implements error.
func (u *unreadableRow) Error() string {
	return cmp.Or(strings.TrimSpace(u.table+" "+u.id), "a row") + " can't be read: " + u.cause
}

// repairHint says what to do about a row that holds what this program does not write: its table, what it is found
// by, and the column.
func repairHint(table, id, column string) string {
	return fmt.Sprintf("restore, or edit this row: %s %s %s", table, printable(cmp.Or(id, "?")), column)
}

// Unwrap returns the refusal that callers get.
func (u *unreadableRow) Unwrap() error { return errUnreadable }

// fault applies storageError to the error of a query, and notes damage.
func (q *statements) fault(query string, err error) error {
	if err = storageError(err); err != nil && isDamage(err) {
		q.faults.noteDamage(query, err, q.writes)
	}
	return err
}

// scanned is fault for the error of scanning the current row of rows. If a value can't be read, it notes and
// returns an unreadableRow.
func (q *statements) scanned(rows *sql.Rows, query string, err error) error {
	var se *sqlite.Error
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if err == nil || ended || errors.As(err, &se) {
		return q.fault(query, err)
	}
	_, cause, ofValue := strings.Cut(err.Error(), ", name ")
	columns, failed := rows.Columns()
	values := make([]any, len(columns))
	pointers := []any{}
	for i := range values {
		pointers = append(pointers, &values[i])
	}
	if !ofValue || failed != nil || rows.Scan(pointers...) != nil {
		return fmt.Errorf("%w (%w)", errStorage, err)
	}
	u := &unreadableRow{table: tableOf(query), cause: cause, values: map[string]any{}}
	for i, column := range columns {
		if _, known := u.values[column]; !known {
			u.values[column] = values[i]
		}
	}
	for _, column := range []string{"id", "seq", "origin", "order_id"} {
		if value := u.values[column]; u.id == "" && value != nil {
			u.id = fmt.Sprint(value)
		}
	}
	q.faults.noteRow(u)
	return u
}

var (
	innermost  = lazyPattern(`\([^()]*\)`)
	namedTable = lazyPattern(`\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+)(?:\s|$)`)
)

// tableOf returns the first table that a query names outside of parentheses; "" if it names none.
func tableOf(query string) string {
	for innermost().MatchString(query) {
		query = innermost().ReplaceAllString(query, "[]")
	}
	if found := namedTable().FindStringSubmatch(query); found != nil {
		return found[1]
	}
	return ""
}

// eachReadable calls row for every row of a query, including those that can't be read: for these it passes the
// unreadableRow that says what is wrong, for all others nil.
func eachReadable[T any](
	q *queries, query string, args []any, dest func(*T) []any, row func(*T, *unreadableRow) error,
) error {
	return q.each(query, args, func(scan func(...any) error) error {
		var value T
		var bad *unreadableRow
		if err := scan(dest(&value)...); err != nil && !errors.As(err, &bad) {
			return err
		}
		return row(&value, bad)
	})
}

// collectReadable is collect for rows that are only displayed: it leaves out those that can't be read. Code that
// bases a decision on the rows must use collect, which fails instead.
func collectReadable[T any](q *queries, query string, args []any, dest func(*T) []any) (all []T, err error) {
	err = eachReadable(q, query, args, dest, func(row *T, bad *unreadableRow) error {
		if bad == nil {
			all = append(all, *row)
		}
		return nil
	})
	return all, err
}

// collectPage is collectReadable for up to limit rows of a query that ends with LIMIT ?. column holds the key of each
// row. next is the key of the last row of the page, even if that row was left out; zero if no row follows it.
func collectPage[T any, K string | int64](
	q *queries, query string, args []any, column string, limit int, dest func(*T) []any, key func(T) K,
) (rows []T, next K, err error) {
	read, last, end := 0, next, next
	err = eachReadable(q, query, append(args, limit+1), dest, func(row *T, bad *unreadableRow) error {
		known := true
		if read++; read > limit {
			next = last
		} else if bad == nil {
			rows, last = append(rows, *row), key(*row)
		} else if last, known = bad.values[column].(K); !known {
			return bad
		}
		return nil
	})
	if err != nil {
		next = end
	}
	return rows, next, err
}

// unreadableRows reads all rows of a table as dest does, whose JSON may be what the table's rules allow and the program
// can't use, and returns a line for each of the first that it can't read. It has one row in memory at a time. A million
// licences take about 6 s.
func unreadableRows[T any](q *queries, query string, dest func(*T) []any) (faults []string, err error) {
	found := 0
	err = eachReadable(q, query, nil, dest, func(_ *T, bad *unreadableRow) error {
		if bad == nil {
			return nil
		}
		if found++; found <= shownOfTable {
			_, column, _ := strings.Cut(bad.cause, `"`)
			column, _, _ = strings.Cut(column, `"`)
			faults = append(faults, "row: "+bad.Error()+": "+repairHint(bad.table, bad.id, column))
		}
		return nil
	})
	if found > shownOfTable {
		faults = append(faults, fmt.Sprintf("row: %d rows of %s can't be read, of which %d are named",
			found, tableOf(query), shownOfTable))
	}
	return faults, err
}

// unreadable is a rowReader of the columns that the table itself has.
func (d *table[T]) unreadable(q *queries) (faults []string, err error) {
	return unreadableOwn(q, d.name, d.own, func() []field { return d.fields(new(T)) })
}

// unreadableOwn is unreadableRows for those fields of a table's rows that are its own columns. row makes a row's
// fields. Since it has no type parameter, it is compiled once and not for each table.
func unreadableOwn(q *queries, table string, own []bool, row func() []field) (faults []string, err error) {
	fields := func() (all []field) {
		for i, f := range row() {
			if own[i] {
				all = append(all, f)
			}
		}
		return all
	}
	columns := ""
	for _, f := range fields() {
		columns += ", " + f.column
	}
	return unreadableRows(q, `SELECT `+columns[2:]+` FROM `+table,
		func(*struct{}) []any { return placesOf(fields()) })
}

const shownOfTable = 20 // how many rows that break one rule are listed at most

// breaksRule reports whether a fault that SQLite has found is a row that breaks a rule, not a damaged page.
func breaksRule(fault string) bool {
	return strings.HasPrefix(fault, checkFailed) || strings.Contains(fault, malformedJSON)
}

// wantsRestore reports whether a fault of a database file is one that only a copy mends: damage, or a table that is not
// there.
func wantsRestore(fault string) bool {
	unreadable := strings.HasPrefix(fault, "integrity: ") || strings.HasPrefix(fault, "foreign keys: ")
	return unreadable && !breaksRule(fault) || strings.Contains(fault, "restore a backup") ||
		strings.HasPrefix(fault, "schema: table ") && strings.HasSuffix(fault, " is missing")
}
