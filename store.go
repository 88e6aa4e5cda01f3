package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// A refusal is an answer that is not success and not a fault of ours: the code
// is stable and listed in problemCodes, the detail is for people. It never
// carries SQL, a path or another caller's data.
type refusal struct {
	code    string
	detail  string
	fields  []fieldError // which members are wrong, for validation_failed
	seats   any          // for seat_limit_reached
	devices any          // that hold the seats

	nextTransfer stamp // for transfer_limit_reached

	retryAfter time.Duration // how long to wait, for rate_limited and busy
	scope      string        // the scope that is missing, for insufficient_scope
}

// A fieldError names one wrong member of a body (pointer, RFC 6901 in a URI
// fragment) or one wrong query parameter.
type fieldError struct {
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
}

func (r *refusal) Error() string {
	text := r.code
	if r.detail != "" {
		text += ": " + r.detail
	}
	for _, f := range r.fields {
		text += " " + f.Pointer + f.Parameter + ": " + f.Detail
	}
	return text
}

// The sentinels that store verbs return.
var (
	errNotFound    = &refusal{code: "not_found", detail: "There is nothing here by that name."}
	errBusy        = &refusal{code: "busy", detail: "The database is locked by someone else; try again shortly.", retryAfter: 5 * time.Second}
	errStorageFull = &refusal{code: "storage_full", detail: "The disk is full; nothing was written.", retryAfter: 30 * time.Second}
	errStorage     = &refusal{code: "storage_unavailable", detail: "The database can't be used at the moment; nothing was written.", retryAfter: 30 * time.Second}
	errDoubt       = &refusal{code: "storage_unavailable", detail: "The database failed at the last moment: it is not known whether this was written. Send it again, with the same Idempotency-Key if it had one.", retryAfter: 30 * time.Second}
	errClosed      = &refusal{code: "storage_unavailable", detail: "The service is stopping.", retryAfter: 5 * time.Second}
)

// keep marks an error as a committed result: the transaction that returns it is
// kept, and its caller gets err. So a refusal can write an event.
func keep(err error) error { return keptError{err} }

type keptError struct{ error }

func (k keptError) Unwrap() error { return k.error }

// A stamp is a moment as the file and the wire know it: UTC, whole seconds,
// "2026-11-21T10:43:26Z". The zero stamp is NULL in the file and null in JSON.
type stamp struct{ time.Time }

const stampLayout = "2006-01-02T15:04:05Z"

func newStamp(t time.Time) stamp { return stamp{t.UTC().Truncate(time.Second)} }

func (s stamp) String() string { return s.UTC().Format(stampLayout) }

// days is the length of n days of 24 hours.
func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// after shifts a stamp; the zero stamp stays absent.
func (s stamp) after(d time.Duration) stamp {
	if s.IsZero() {
		return s
	}
	return newStamp(s.Add(d))
}

// Value implements driver.Valuer.
func (s stamp) Value() (driver.Value, error) {
	if s.IsZero() {
		return nil, nil
	}
	return s.String(), nil
}

// Scan implements sql.Scanner.
func (s *stamp) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*s = stamp{}
		return nil
	case string:
		t, err := time.Parse(time.RFC3339, v)
		*s = newStamp(t)
		return err
	}
	return fmt.Errorf("a time is stored as %T", v)
}

// MarshalJSON implements json.Marshaler.
func (s stamp) MarshalJSON() ([]byte, error) { return s.appendJSON(nil), nil }

func (s stamp) appendJSON(b []byte) []byte {
	if s.IsZero() {
		return append(b, "null"...)
	}
	return append(s.UTC().AppendFormat(append(b, '"'), stampLayout), '"')
}

// within reports whether two moments are less than d apart, whichever is first: a
// clock that was set must not hold anything up for years.
func within(d time.Duration, a, b time.Time) bool { return b.Sub(a).Abs() < d }

// crockford is the alphabet of ids (lower case) and of licence keys (upper case).
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// lastID comes after every id.
const lastID = "~"

// newID makes an identifier: the prefix, "_", and 26 Crockford symbols that hold
// 48 bits of milliseconds and 80 random bits (contract, section 1), so that ids
// sort by time.
func newID(prefix string, now time.Time) string {
	var random [10]byte
	rand.Read(random[:])
	return formatID(prefix, now, random)
}

func formatID(prefix string, now time.Time, random [10]byte) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(now.UnixMilli())<<16)
	copy(raw[6:], random[:])
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	var out [26]byte
	for i := 25; i >= 0; i-- {
		out[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return prefix + "_" + string(out[:])
}

// validID reports whether s has the shape of an id with that prefix.
func validID(prefix, s string) bool {
	if len(s) != len(prefix)+27 || s[:len(prefix)] != prefix || s[len(prefix)] != '_' || s[len(prefix)+1] > '7' {
		return false
	}
	for _, c := range []byte(s[len(prefix)+1:]) {
		if bytes.IndexByte([]byte(crockford), c) < 0 {
			return false
		}
	}
	return true
}

// queries answers questions over prepared statements, which it keeps by their
// text. Its verbs take no context: in the writer a cancelled statement would
// roll back the whole batch, and for the readers a cancellable context costs
// more than the short, bounded queries they run.
type queries struct {
	prepare func(ctx context.Context, query string) (*sql.Stmt, error)
	mu      sync.RWMutex
	stmts   map[string]*sql.Stmt
}

func newQueries(prepare func(context.Context, string) (*sql.Stmt, error)) *queries {
	return &queries{prepare: prepare, stmts: map[string]*sql.Stmt{}}
}

func (q *queries) stmt(query string) (*sql.Stmt, error) {
	q.mu.RLock()
	st := q.stmts[query]
	q.mu.RUnlock()
	if st != nil {
		return st, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if st := q.stmts[query]; st != nil {
		return st, nil
	}
	st, err := q.prepare(context.Background(), query)
	var se *sqlite.Error
	if errors.As(err, &se) && se.Code() == sqlite3.SQLITE_ERROR { // our questions fit our schema: this is another
		return nil, fmt.Errorf("%w (%w)", errStorage, err)
	}
	if err != nil {
		return nil, storageError(err)
	}
	q.stmts[query] = st
	return st, nil
}

// run runs a statement that has neither arguments nor rows.
func (q *queries) run(query string) error {
	st, err := q.stmt(query)
	if err == nil {
		_, err = st.Exec()
	}
	return storageError(err)
}

// close ends the statements; a connection with open ones would not let go of the
// write-ahead log.
func (q *queries) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, st := range q.stmts {
		st.Close()
	}
	clear(q.stmts)
}

// one scans the only row of a query, or returns errNotFound.
func (q *queries) one(query string, args []any, dest ...any) error {
	st, err := q.stmt(query)
	if err != nil {
		return err
	}
	row := st.QueryRow(args...)
	if err := row.Err(); err != nil {
		return storageError(err)
	}
	err = row.Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return errNotFound
	}
	return scanError(err)
}

// each calls row for every row of a query; row scans it and asks nothing else.
func (q *queries) each(query string, args []any, row func(scan func(dest ...any) error) error) error {
	st, err := q.stmt(query)
	if err != nil {
		return err
	}
	rows, err := st.Query(args...)
	if err != nil {
		return storageError(err)
	}
	defer rows.Close()
	scan := func(dest ...any) error { return scanError(rows.Scan(dest...)) }
	for rows.Next() {
		if err := row(scan); err != nil {
			return err
		}
	}
	return storageError(rows.Err())
}

// collect returns what every row of a query holds; dest tells where the columns of
// a row go.
func collect[T any](q *queries, query string, args []any, dest func(*T) []any) (all []T, err error) {
	err = q.each(query, args, func(scan func(...any) error) error {
		var row T
		if err := scan(dest(&row)...); err != nil {
			return err
		}
		all = append(all, row)
		return nil
	})
	return all, err
}

// A tx is the writer's transaction as one job sees it: every question of
// queries, the verbs that change rows, and one now for all of them.
type tx struct {
	*queries
	*effects
	now   stamp
	exact time.Time // the same now, unrounded
}

// newID makes an id of the transaction's moment.
func (t *tx) newID(prefix string) string { return newID(prefix, t.exact) }

// A store is one open database file: a pool of readers, whose questions it
// answers itself (queries), and one writer connection, which is owned by whoever has
// the turn.
type store struct {
	*queries
	path    string
	logPath string // of the write-ahead log
	now     func() time.Time
	readers *sql.DB
	writers *sql.DB
	conn    *sql.Conn // the writer
	writes  *queries  // prepared on conn
	file    *os.File  // the database, to look at; open as long as the connections are
	opened  os.FileInfo
	log     os.FileInfo           // the write-ahead log that is open
	damaged atomic.Pointer[error] // what the last look at the file's header found; nil: nothing

	jobs    chan *job
	turn    chan struct{}             // holds one token: whoever put it there owns the writer's connection
	wake    chan struct{}             // has the writer's goroutine look for jobs and for commits of others
	calling atomic.Int64              // callers in update
	crowd   atomic.Int64              // jobs of the last batch: after a large one others are about to come
	closing chan struct{}             // closed: no job is taken that is not already queued
	stopped chan struct{}             // closed: the writer has ended
	blocked atomic.Pointer[time.Time] // since when the writer waits for the lock; nil: it doesn't
	changes changes
	synced  time.Duration // how long the last commit took
	foreign int64         // data_version, as the writer last saw it
	fresh   atomic.Bool   // the writer looked at it within foreignInterval
	fading  *time.Timer   // ends fresh
	batches atomic.Int64  // commits so far, for the metrics
	written atomic.Int64  // jobs committed so far

	keepLog bool
}

// storageError gives SQLite's errors the sentinel that they mean, and keeps their
// own text for the log. Others pass.
func storageError(err error) error {
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("%w (%w)", errStorage, err)
	}
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	switch code := se.Code(); {
	case code&0xff == sqlite3.SQLITE_BUSY, code&0xff == sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%w (%w)", errBusy, err)
	case code == sqlite3.SQLITE_FULL, code == sqlite3.SQLITE_IOERR_WRITE, code == sqlite3.SQLITE_IOERR_SHMSIZE:
		return fmt.Errorf("%w (%w)", errStorageFull, err)
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("%w (%w)", errStorage, err)
	}
	return err
}

// scanError is storageError for reading a row: a value that its column can't hold
// was not written by this program, so the file is damaged.
func scanError(err error) error {
	var se *sqlite.Error
	if err == nil || errors.As(err, &se) {
		return storageError(err)
	}
	return fmt.Errorf("%w (%w)", errStorage, err)
}

// isDuplicate reports whether err says that a row with that key exists.
func isDuplicate(err error) bool {
	var se *sqlite.Error
	return errors.As(err, &se) && (se.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || se.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// sweep removes what has served its time: replayed answers, names of items of
// past days. It removes a bounded number of rows, so that writes go on between.
func (t *tx) sweep() error {
	t.only()
	if _, err := t.exec(`DELETE FROM idempotency WHERE id IN (SELECT id FROM idempotency WHERE expires_at <= ? LIMIT 1000)`, t.now); err != nil {
		return err
	}
	_, err := t.exec(`DELETE FROM item_names WHERE (widget_id, day, item) IN (SELECT widget_id, day, item FROM item_names WHERE day < ? LIMIT 1000)`, t.now.Format(time.DateOnly))
	return err
}
