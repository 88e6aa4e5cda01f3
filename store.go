package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed schema.sql
var schemaSQL string

const (
	applicationID = 2003068788 // "wdgt", as schema.sql sets it
	schemaVersion = 1          // as schema.sql sets it

	readerConns  = 3                // each keeps up to 2 MiB of pages
	maxBatch     = 256              // writes that share one commit
	maxQueued    = 1024             // writes that may wait in memory
	maxBlocked   = 64               // writes that may wait while somebody else holds the lock
	lockPatience = 15 * time.Second // how long a write waits for its turn
	maxLog       = 64 << 20         // bytes of the write-ahead log, past which it is reported
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

// crockford is the alphabet of ids (lower case) and of licence keys (upper case).
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// newID makes an identifier: the prefix, "_", and 26 Crockford symbols that hold
// 48 bits of milliseconds and 80 random bits (contract, section 1), so that ids
// sort by time.
func newID(prefix string, now time.Time) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(now.UnixMilli())<<16)
	rand.Read(raw[6:])
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

// A tx is the writer's transaction as one job sees it: every question of
// queries, the verbs that change rows, and one now for all of them.
type tx struct {
	*queries
	*effects
	now   stamp
	exact time.Time // the same now, unrounded
}

// effects are what a job leaves behind in the transaction that it shares.
type effects struct {
	touches touches
	tally   tally // counts that are still to be written, with those of the others
	shared  bool  // what it writes must be undone apart: it needs a savepoint
	saved   bool  // and has one
}

// touches is what a transaction says it changes of what others keep in memory.
// Unless it says so, it may be anything: forgetting costs time, not truth.
type touches struct {
	named bool
	ids   []string
}

// only says that of all rows that are kept in memory, this transaction changes
// none but those of the given licences and widgets. It may be said again, for more.
func (t *tx) only(ids ...string) {
	t.touches.named = true
	t.touches.ids = append(t.touches.ids, ids...)
}

// changes counts commits, so that what is kept in memory can be held against the
// file: for each licence and widget apart, by a hash of its id, and for everything
// else together.
type changes struct {
	commits atomic.Uint64 // all of them
	rest    atomic.Uint64 // those that may have changed anything, and those of others
	rows    [4096]atomic.Uint64
	seed    maphash.Seed
}

// A version is what changes said of a row at a moment; another one means that the
// row may be different now.
type version struct{ rest, row uint64 }

// version tells the version of a licence or a widget; "" is whatever is neither.
func (c *changes) version(id string) version {
	v := version{rest: c.rest.Load()}
	if id != "" {
		v.row = c.row(id).Load()
	}
	return v
}

func (c *changes) row(id string) *atomic.Uint64 {
	return &c.rows[maphash.String(c.seed, id)%uint64(len(c.rows))]
}

// note counts what a committed transaction has touched, before its caller hears of it.
func (c *changes) note(t touches) {
	c.commits.Add(1)
	if !t.named {
		c.rest.Add(1)
	}
	for _, id := range t.ids {
		c.row(id).Add(1)
	}
}

// newID makes an id of the transaction's moment.
func (t *tx) newID(prefix string) string { return newID(prefix, t.exact) }

// exec runs a statement and returns how many rows it changed. It is the only way to
// write.
func (t *tx) exec(query string, args ...any) (int64, error) {
	if t.shared && !t.saved {
		if err := t.run("SAVEPOINT job"); err != nil {
			return 0, err
		}
		t.saved = true
	}
	st, err := t.stmt(query)
	if err != nil {
		return 0, err
	}
	res, err := st.Exec(args...)
	if err != nil {
		return 0, storageError(err)
	}
	return res.RowsAffected()
}

// A store is one open database file: a pool of readers, whose questions it
// answers itself (queries), and one writer connection that a single goroutine
// owns.
type store struct {
	*queries
	path    string
	now     func() time.Time
	readers *sql.DB
	writers *sql.DB
	conn    *sql.Conn // the writer
	writes  *queries  // prepared on conn
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
	foreign int64        // data_version, as the writer last saw it
	fresh   atomic.Bool  // the writer looked at it within foreignInterval
	fading  *time.Timer  // ends fresh
	batches atomic.Int64 // commits so far, for the metrics
	written atomic.Int64 // jobs committed so far

	keepLog bool
}

// storeOptions are what differs between opening for the service, for a command
// and for tests.
type storeOptions struct {
	keepLog  bool          // never checkpoint: that is the service's or Litestream's job
	patience time.Duration // SQLite's busy_timeout; 0: lockPatience
	now      func() time.Time
	driver   string // of the writer, for tests that inject faults; "": sqlite
}

// dsn names the file with every pragma, because one sent by Exec would reach a
// single connection of the pool.
func dsn(path, mode string, o storeOptions, more ...string) string {
	patience := o.patience
	if patience == 0 {
		patience = lockPatience
	}
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", patience.Milliseconds()), // first: the others may have to wait
		"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "trusted_schema(0)",
		"secure_delete(1)", fmt.Sprintf("journal_size_limit(%d)", maxLog),
	}}
	if o.keepLog {
		q.Add("_pragma", "wal_autocheckpoint(0)")
	}
	for _, pragma := range more {
		q.Add("_pragma", pragma)
	}
	return "file:" + (&url.URL{Path: filepath.Clean(path)}).EscapedPath() + "?" + q.Encode()
}

// createStore makes a new database at path, whole or not at all, mode 0600. It
// returns an error wrapping fs.ErrExist when there is something already.
func createStore(path string, setUp func(*tx) error) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", path, fs.ErrExist)
	}
	draft := path + ".new"
	f, err := os.OpenFile(draft, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the database (remove %s if no other command is making it): %v", draft, err) // not ErrExist: that is about path
	}
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	f.Close()
	defer os.Remove(draft)
	db, err := sql.Open("sqlite", dsn(draft, "rwc", storeOptions{}))
	if err != nil {
		return err
	}
	_, err = db.Exec("BEGIN IMMEDIATE; " + schemaSQL + "; COMMIT")
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("make the schema: %w", err)
	}
	st, err := openStore(draft, storeOptions{})
	if err != nil {
		return err
	}
	err = st.update(context.Background(), setUp)
	if err := errors.Join(err, st.close()); err != nil {
		return err
	}
	if err := os.Link(draft, path); err != nil { // unlike a rename it never replaces a file
		return fmt.Errorf("make the database: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// checkHeader reads the first page's header: is this file a widgetd database
// that this program understands? It takes the same time for any size.
func checkHeader(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no database at %s: run 'widgetd init' first, or mount the disk that holds it", path)
	}
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer f.Close()
	var head [100]byte
	n, err := f.Read(head[:])
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return fmt.Errorf("%s is empty: restore a backup, or remove it and run 'widgetd init'", path)
	case err != nil:
		return fmt.Errorf("read %s: %w", path, err)
	case !bytes.HasPrefix(head[:], []byte("SQLite format 3\x00")):
		return fmt.Errorf("%s is not an SQLite database, or its header is damaged: restore a backup", path)
	case binary.BigEndian.Uint32(head[68:]) != applicationID:
		return fmt.Errorf("%s is an SQLite database of another program: name widgetd's own with -db", path)
	case binary.BigEndian.Uint32(head[60:]) > schemaVersion:
		return fmt.Errorf("%s has schema version %d, this program knows %d: run a newer widgetd", path, binary.BigEndian.Uint32(head[60:]), schemaVersion)
	}
	return nil
}

// checkLog notices a write-ahead log that was taken away, and with it what was
// written last: whoever closes the database removes the -shm file first and the log
// after it, so that one without the other means that somebody else did.
func checkLog(path string) error {
	before, err := os.Stat(path + "-shm")
	if err != nil {
		return nil
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if after, err := os.Stat(path + "-shm"); err != nil || !os.SameFile(before, after) {
		return nil // it was being closed, or opened, at that moment
	}
	return fmt.Errorf("%s-wal is missing, and with it what was written last: put it back, or remove %s-shm to go on without", path, path)
}

// openStore opens an existing database and starts its writer. Its errors are one
// line that names the file and the next step.
func openStore(path string, o storeOptions) (*store, error) {
	if err := checkHeader(path); err != nil {
		return nil, err
	}
	if err := checkLog(path); err != nil {
		return nil, err
	}
	s := &store{path: path, now: o.now, keepLog: o.keepLog,
		jobs: make(chan *job, maxQueued), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{})}
	if s.now == nil {
		s.now = time.Now
	}
	s.changes.seed = maphash.MakeSeed()
	s.fading = time.AfterFunc(foreignInterval, func() { s.fresh.Store(false) })
	if err := s.open(o); err != nil {
		s.release()
		return nil, lineError{fmt.Errorf("%s can't be used: %s: %w", path, openHint(err), err)}
	}
	go s.write()
	return s, nil
}

// openHint is what to do about a database that can't be opened.
func openHint(err error) string {
	var se *sqlite.Error
	switch err := storageError(err); {
	case errors.Is(err, errBusy):
		return "somebody else holds its lock; end that"
	case errors.Is(err, errStorageFull):
		return "make room on its disk"
	case errors.As(err, &se) && (se.Code()&0xff == sqlite3.SQLITE_CANTOPEN || se.Code()&0xff == sqlite3.SQLITE_READONLY):
		return "let this user write to it and to its directory"
	}
	return "run 'widgetd check', or restore a backup"
}

// A lineError is an error whose text has no line breaks: SQLite quotes a damaged schema.
type lineError struct{ error }

func (o lineError) Error() string { return strings.Join(strings.Fields(o.error.Error()), " ") }

func (o lineError) Unwrap() error { return o.error }

func (s *store) open(o storeOptions) (err error) {
	if s.writers, err = sql.Open(orDefault(o.driver, "sqlite"), dsn(s.path, "rw", o)); err != nil {
		return err
	}
	s.writers.SetMaxOpenConns(1)
	if err := s.connect(); err != nil {
		return err
	}
	if err := s.checkSchema(); err != nil {
		return err
	}
	if s.readers, err = sql.Open("sqlite", dsn(s.path, "rw", o, "query_only(1)")); err != nil {
		return err
	}
	s.readers.SetMaxOpenConns(readerConns)
	s.readers.SetMaxIdleConns(readerConns)
	s.queries = newQueries(s.readers.PrepareContext)
	if s.log, err = os.Stat(s.path + "-wal"); err != nil {
		return err
	}
	s.opened, err = os.Stat(s.path)
	return err
}

// connect gives the writer a connection.
func (s *store) connect() (err error) {
	if s.conn, err = s.writers.Conn(context.Background()); err != nil {
		return err
	}
	s.writes = newQueries(s.conn.PrepareContext)
	s.foreign = -1 // data_version is each connection's own
	return nil
}

// checkSchema asks for one row of the tables that make a database ours. A file
// whose write-ahead log was taken away can lack even those.
func (s *store) checkSchema() error {
	var tables int
	err := s.writes.one(`SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN
		('accounts', 'base_urls', 'probes', 'origins', 'tokens', 'leads', 'licenses', 'license_keys', 'devices', 'widgets',
		 'widget_counts', 'item_counts', 'item_names', 'events', 'idempotency', 'legacy_calls')`, nil, &tables)
	if err != nil {
		return err
	}
	if tables != 16 {
		return errors.New("tables are missing")
	}
	var main string
	if err := s.writes.one(`SELECT id FROM accounts WHERE is_main = 1`, nil, &main); err != nil && !errors.Is(err, errNotFound) {
		return err
	}
	return nil
}

// close runs the writes that are queued, checkpoints and closes the file.
func (s *store) close() error {
	close(s.closing)
	<-s.stopped
	s.closeReaders() // first, so that none of them holds back the checkpoint
	var err error
	if !s.keepLog {
		err = s.checkpoint()
	}
	return errors.Join(err, s.release())
}

// checkpoint moves the write-ahead log into the database file and empties it.
// Only the writer's goroutine, or whoever outlives it, may call it.
func (s *store) checkpoint() error {
	var busy, pages, moved int
	return s.writes.one(`PRAGMA wal_checkpoint(TRUNCATE)`, nil, &busy, &pages, &moved)
}

// emptyLog checkpoints and truncates the write-ahead log while the service runs,
// over a connection of its own, so that what was erased is gone from there too.
// It waits for readers and the writer as long as told.
func (s *store) emptyLog(patience time.Duration) error {
	db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{patience: patience}))
	if err != nil {
		return err
	}
	defer db.Close()
	var busy, pages, moved int
	if err := db.QueryRow(`PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &pages, &moved); err != nil {
		return storageError(err)
	}
	if busy != 0 {
		return errors.New("a reader holds an earlier state of the database")
	}
	return nil
}

func (s *store) closeReaders() error {
	if s.readers == nil {
		return nil
	}
	if s.queries != nil {
		s.queries.close()
	}
	err := s.readers.Close()
	s.readers = nil
	return err
}

func (s *store) release() error {
	errs := []error{s.closeReaders()}
	if s.conn != nil {
		if s.writes != nil {
			s.writes.close()
		}
		errs = append(errs, s.conn.Close())
	}
	if s.writers != nil {
		errs = append(errs, s.writers.Close())
	}
	return errors.Join(errs...)
}

// A job is one function that waits for the writer.
type job struct {
	ctx     context.Context // its caller's; it never reaches the driver
	run     func(*tx) error
	state   atomic.Int32
	effects effects // of its last run
	err     error
	done    chan struct{} // closed once err is final
}

// The states of a job: whoever moves it away from waiting decides its fate.
const (
	jobWaiting = iota
	jobTaken   // by the writer: it will be answered
	jobGone    // by its caller: it will not be run
)

// taken takes a job to be run, unless its caller has gone, and tells which.
func (j *job) taken() bool {
	return j.ctx.Err() == nil && j.state.CompareAndSwap(jobWaiting, jobTaken)
}

func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// update runs f in the writer's next transaction, beside the other jobs that
// wait, and returns once it is on disk. When f fails, what it wrote is rolled
// back alone and its error comes back (but see keep). f may run more than once
// and must then start anew. When ctx ends before f's turn, f is not run.
// Errors: f's own, errBusy, errStorageFull, errStorage, errDoubt, errClosed, ctx's.
func (s *store) update(ctx context.Context, f func(*tx) error) error {
	if since := s.blocked.Load(); since != nil && s.calling.Load() >= maxBlocked && s.now().Sub(*since) > time.Second {
		return errBusy
	}
	alone := s.calling.Add(1) == 1 && s.crowd.Load() <= 1
	defer s.calling.Add(-1)
	j := &job{ctx: ctx, run: f, done: make(chan struct{})}
	if _, hurried := ctx.Deadline(); alone && !hurried && s.lead(j) {
		if j.state.CompareAndSwap(jobWaiting, jobGone) {
			return ctx.Err()
		}
		return j.err
	}
	patience := time.NewTimer(lockPatience)
	defer patience.Stop()
	select {
	case s.jobs <- j:
		s.rouse()
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return errBusy
	case <-s.closing:
		return errClosed
	}
	err := error(errClosed)
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
		err = errBusy
	case <-s.stopped:
	}
	if j.state.CompareAndSwap(jobWaiting, jobGone) {
		return err
	}
	<-j.done
	return j.err
}

// lead has a caller run its job itself when nobody else writes, and whatever comes
// until it has begun, which saves two changes of goroutine. While another program
// holds the lock it waits as long as SQLite does, whatever becomes of the caller's
// context. It reports false when somebody does write.
func (s *store) lead(j *job) bool {
	select {
	case s.turn <- struct{}{}:
	default:
		return false
	}
	defer func() {
		<-s.turn
		if len(s.jobs) > 0 {
			s.rouse()
		}
	}()
	if runtime.GOMAXPROCS(0) == 1 { // nobody else could ask meanwhile
		runtime.Gosched()
	}
	s.runBatch(j)
	return true
}

func (s *store) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// write is the writer's goroutine. It groups what waits: one commit, one sync,
// for as many jobs as came while the last one was running.
func (s *store) write() {
	defer close(s.stopped)
	for {
		select {
		case <-s.wake:
		case <-s.closing:
			s.turn <- struct{}{} // for good
			s.runQueued()
			return
		}
		s.turn <- struct{}{}
		s.runQueued()
		if !s.fresh.Load() {
			s.noteForeign()
		}
		<-s.turn
	}
}

func (s *store) runQueued() {
	for {
		select {
		case first := <-s.jobs:
			runtime.Gosched() // lets those who are about to ask join this batch
			s.runBatch(first)
		default:
			return
		}
	}
}

// foreignInterval is how long a change that another process made may go unnoticed
// by what is kept in memory.
const foreignInterval = 250 * time.Millisecond

// current reports whether versions can be trusted: whether the file was asked for
// commits of others within foreignInterval. If not, it has that done, without
// waiting for it: a lock may hold the writer, and reading goes on meanwhile.
func (s *store) current() bool {
	if s.fresh.Load() {
		return true
	}
	s.rouse()
	return false
}

// noteForeign notices commits of others. It must ask on the writer's connection,
// between transactions: there data_version moves for the commits of others only,
// on any other connection for our own too.
func (s *store) noteForeign() {
	var version int64
	if err := s.writes.one(`PRAGMA data_version`, nil, &version); err != nil || version != s.foreign {
		s.foreign = version
		s.changes.note(touches{})
	}
	s.fresh.Store(true)
	s.fading.Reset(foreignInterval) // should an earlier end come only now, the writer looks again
}

// runBatch begins a transaction and only then takes the job that it is for and
// those that still wait, so that nobody is held to a transaction that a lock keeps
// from beginning. Like all that follows it is for whoever has the turn.
func (s *store) runBatch(first *job) {
	if err := s.begin(); err != nil {
		if first.taken() {
			first.finish(err)
		}
		return
	}
	batch := make([]*job, 0, 16)
	for j := first; j != nil; {
		if j.taken() {
			batch = append(batch, j)
		}
		j = nil
		if len(batch) < maxBatch {
			select {
			case j = <-s.jobs:
			default:
			}
		}
	}
	s.crowd.Store(int64(len(batch)))
	if errs, ok := s.runTogether(batch); ok {
		for i, j := range batch {
			j.finish(errs[i])
		}
		return
	}
	for _, j := range batch { // nothing of it was kept: each gets a transaction of its own, and its own error
		j.finish(s.runAlone(j))
	}
}

func (s *store) begin() error {
	if err := s.inPlace(); err != nil {
		return err
	}
	now := s.now()
	s.blocked.CompareAndSwap(nil, &now)
	err := s.writes.run("BEGIN IMMEDIATE")
	if errors.Is(err, errBusy) { // and stays so until a transaction begins
		return err
	}
	s.blocked.Store(nil)
	if errors.Is(err, sql.ErrConnDone) { // database/sql has given up the connection, and its transaction with it
		if err := s.connect(); err != nil {
			return storageError(err)
		}
	}
	if err != nil {
		s.writes.run("ROLLBACK") // of a transaction that an earlier fault left open
		err = s.writes.run("BEGIN IMMEDIATE")
	}
	return err
}

// runTogether runs the jobs, with a savepoint for each that writes rows, and
// commits. It reports false when the transaction was lost before its end and
// nothing of it is kept.
func (s *store) runTogether(batch []*job) ([]error, bool) {
	errs := make([]error, len(batch))
	for i, j := range batch {
		errs[i] = s.call(j, len(batch) > 1)
		lost := false
		switch _, refused := errs[i].(*refusal); {
		case j.effects.saved:
			lost = !keeps(errs[i]) && s.writes.run("ROLLBACK TO job") != nil || s.writes.run("RELEASE job") != nil
		case len(batch) > 1 && !keeps(errs[i]) && !refused:
			lost = s.writes.run("BEGIN") == nil // it can't begin unless the error, of a read perhaps, has ended the transaction
		}
		if lost {
			s.writes.run("ROLLBACK")
			return nil, false
		}
	}
	if err := s.commit(batch, errs); err != nil {
		return nil, false
	}
	return errs, true
}

// runAlone runs a job in a transaction of its own.
func (s *store) runAlone(j *job) error {
	if err := s.begin(); err != nil {
		return err
	}
	errs := []error{s.call(j, false)}
	if err := s.commit([]*job{j}, errs); err != nil {
		return err
	}
	return errs[0]
}

// keeps reports whether a job that ended so keeps what it wrote.
func keeps(err error) bool {
	var kept keptError
	return err == nil || errors.As(err, &kept)
}

// commit ends the transaction of a batch that came to these results, and makes
// them what their callers will hear. It returns an error when nothing was
// committed, for sure: the transaction could still be rolled back. Else a COMMIT
// that failed may have happened all the same, so nothing is run again, and every
// caller hears errDoubt, or that the disk is full, in place of its success.
func (s *store) commit(batch []*job, errs []error) error {
	written := 0
	var sum tally
	for i, j := range batch {
		if keeps(errs[i]) {
			written++
			sum.merge(j.effects.tally)
		}
	}
	if written == 0 {
		s.writes.run("ROLLBACK")
		return nil
	}
	if err := s.writes.writeTally(sum); err != nil {
		s.writes.run("ROLLBACK")
		return err
	}
	err := s.writes.run("COMMIT")
	if err != nil && s.writes.run("ROLLBACK") == nil {
		return err
	}
	if err != nil {
		s.changes.note(touches{})
	}
	if err != nil && !errors.Is(err, errStorageFull) { // at which SQLite rolls back by itself
		err = fmt.Errorf("%w (%v)", errDoubt, err)
	}
	for i, j := range batch {
		var kept keptError
		switch errors.As(errs[i], &kept); {
		case !keeps(errs[i]):
		case err != nil:
			errs[i] = err
		default:
			s.changes.note(j.effects.touches)
			errs[i] = kept.error
		}
	}
	if err == nil {
		s.batches.Add(1)
		s.written.Add(int64(written))
	}
	return nil
}

// call runs a job's function; a panic in it is its own error, not the writer's end.
func (s *store) call(j *job, shared bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	now := s.now()
	j.effects = effects{shared: shared}
	return j.run(&tx{queries: s.writes, effects: &j.effects, now: newStamp(now), exact: now})
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

// inPlace reports whether the database and its log are still the files that are
// open, and looked sound when watch last looked. What is written elsewhere is lost.
func (s *store) inPlace() error {
	database, err := os.Stat(s.path)
	if err != nil || !os.SameFile(database, s.opened) {
		return fmt.Errorf("%w (the file at %s is no longer the one that is open)", errStorage, s.path)
	}
	log, err := os.Stat(s.path + "-wal")
	if err != nil || !os.SameFile(log, s.log) {
		return fmt.Errorf("%w (the file at %s-wal is no longer the one that is open)", errStorage, s.path)
	}
	if s.damaged.Load() == nil {
		return nil
	}
	s.watch()
	if damage := s.damaged.Load(); damage != nil {
		return fmt.Errorf("%w (%w)", errStorage, *damage)
	}
	return nil
}

// watch looks at the file's header, which SQLite reads once and then keeps in memory.
func (s *store) watch() {
	if err := checkHeader(s.path); err != nil {
		s.damaged.Store(&err)
	} else {
		s.damaged.Store(nil)
	}
}

// logSize is how many bytes the write-ahead log takes on the disk.
func (s *store) logSize() int64 {
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		return 0
	}
	return info.Size()
}

// readable reports whether the file at the path is the open one and answers.
func (s *store) readable() error {
	s.watch()
	if err := s.inPlace(); err != nil {
		return err
	}
	var n int
	if err := s.one(`SELECT count(*) FROM probes`, nil, &n); err != nil {
		return err
	}
	return nil
}

// probe proves that the file can be read and written by doing both.
// Errors: errBusy, errStorageFull, errStorage.
func (s *store) probe(ctx context.Context) error {
	if err := s.readable(); err != nil {
		return err
	}
	return s.update(ctx, func(t *tx) error {
		t.only()
		_, err := t.exec(`INSERT INTO probes (id, written_at) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET written_at = excluded.written_at`, t.now)
		return err
	})
}

// lockedSince tells since when the writer has been waiting for somebody else's
// lock; the zero time when it isn't.
func (s *store) lockedSince() time.Time {
	if since := s.blocked.Load(); since != nil {
		return *since
	}
	return time.Time{}
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

// backup writes a consistent copy of the database to a new file, mode 0600,
// while the service runs, and checks the copy.
func (s *store) backup(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("back up to %s: %w", path, fs.ErrExist)
	}
	draft := path + ".new"
	f, err := os.OpenFile(draft, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // before VACUUM, which would follow the umask
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("back up (remove %s if no other backup is running): %w", draft, err)
	}
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	f.Close()
	defer os.Remove(draft)
	db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{}))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(`VACUUM INTO ?`, draft); err != nil {
		return fmt.Errorf("back up: %w", storageError(err))
	}
	if faults, err := checkFile(draft); err != nil || len(faults) > 0 {
		return fmt.Errorf("the copy is not sound: %v %w", faults, err)
	}
	if f, err = os.OpenFile(draft, os.O_RDWR, 0); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	if err := os.Link(draft, path); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// checkFile reads the whole database and tells what is wrong with it: pages,
// indexes, foreign keys, and a schema that is not schema.sql's. It changes
// nothing. The error says why it could not look.
func checkFile(path string) (faults []string, err error) {
	if err := checkHeader(path); err != nil {
		return []string{err.Error()}, nil
	}
	if err := checkLog(path); err != nil {
		return []string{err.Error()}, nil
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: filepath.Clean(path)}).EscapedPath()+"?mode=rw&_pragma=busy_timeout(15000)&_pragma=query_only(1)")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	q := newQueries(db.PrepareContext)
	err = q.each(`PRAGMA integrity_check(20)`, nil, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		if line != "ok" {
			faults = append(faults, "integrity: "+line)
		}
		return err
	})
	if err != nil {
		return append(faults, "integrity: "+lineError{err}.Error()), nil
	}
	err = q.each(`SELECT "table", rowid, parent FROM pragma_foreign_key_check LIMIT 20`, nil, func(scan func(...any) error) error {
		var table, parent string
		var row sql.NullInt64
		err := scan(&table, &row, &parent)
		faults = append(faults, "foreign key: row "+strconv.FormatInt(row.Int64, 10)+" of "+table+" names a row of "+parent+" that is not there")
		return err
	})
	if err != nil {
		return append(faults, "foreign keys: "+lineError{err}.Error()), nil
	}
	schemaFaults, err := diffSchema(q)
	return append(faults, schemaFaults...), err
}

// diffSchema compares the file's schema with the one this program would make.
func diffSchema(q *queries) (faults []string, err error) {
	memory, err := sql.Open("sqlite", "file::memory:")
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	memory.SetMaxOpenConns(1)
	if _, err := memory.Exec(schemaSQL); err != nil {
		return nil, err
	}
	const objects = `SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '\_litestream%' ESCAPE '\'`
	read := func(q *queries) (map[string]string, error) {
		found := map[string]string{}
		err := q.each(objects, nil, func(scan func(...any) error) error {
			var name, text string
			err := scan(&name, &text)
			found[name] = text
			return err
		})
		return found, err
	}
	want, err := read(newQueries(memory.PrepareContext))
	if err != nil {
		return nil, err
	}
	got, err := read(q)
	if err != nil {
		return nil, err
	}
	for name, text := range want {
		switch {
		case got[name] == "":
			faults = append(faults, "schema: "+name+" is missing")
		case got[name] != text:
			faults = append(faults, "schema: "+name+" is not as this program makes it")
		}
	}
	slices.Sort(faults)
	return faults, nil
}
