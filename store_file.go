package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed schema.sql
var schemaSQL string

const (
	applicationID = 2003068788 // "wdgt", as schema.sql sets it
	schemaVersion = 2          // as schema.sql sets it; schemaSteps lead to it

	readerConns = 3        // each keeps up to 2 MiB of pages
	maxWAL      = 64 << 20 // bytes of the write-ahead log, past which it is reported
)

// storeOptions are what differs between opening for the service, for a command
// and for tests.
type storeOptions struct {
	noCheckpoints bool          // never checkpoint: that is the service's or Litestream's job
	busyTimeout   time.Duration // SQLite's busy_timeout; 0: lockPatience
	now           func() time.Time
	driver        string // of the writer, for tests that inject faults; "": sqlite
}

// dsn names the file with every pragma, because one sent by Exec would reach a
// single connection of the pool.
func dsn(path, mode string, o storeOptions, more ...string) string {
	patience := o.busyTimeout
	if patience == 0 {
		patience = lockTimeout
	}
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", patience.Milliseconds()), // first: the others may have to wait
		"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "trusted_schema(0)",
		"secure_delete(1)", fmt.Sprintf("journal_size_limit(%d)", maxWAL),
	}}
	if o.noCheckpoints {
		q.Add("_pragma", "wal_autocheckpoint(0)")
	}
	for _, pragma := range more {
		q.Add("_pragma", pragma)
	}
	return fileURL(path) + "?" + q.Encode()
}

// fileURL is a file's name as SQLite takes it, without options.
func fileURL(path string) string {
	return "file:" + (&url.URL{Path: filepath.Clean(path)}).EscapedPath()
}

// createStore makes a new database at path, whole or not at all, mode 0600. It
// returns an error wrapping fs.ErrExist when there is something already.
func createStore(path string, setUp func(*tx) error) error {
	err := writeAtomically(path, false, func(f *os.File) error {
		db, err := sql.Open("sqlite", dsn(f.Name(), "rw", storeOptions{}))
		if err != nil {
			return err
		}
		_, err = db.Exec("BEGIN IMMEDIATE; " + schemaSQL + "; COMMIT")
		if err := errors.Join(err, db.Close()); err != nil {
			return fmt.Errorf("%s: %w", openHint(err), err)
		}
		st, err := openStore(f.Name(), storeOptions{})
		if err != nil {
			return err
		}
		err = st.update(context.Background(), setUp)
		return errors.Join(err, st.close())
	})
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	return nil
}

// writeAtomically makes a file, whole or not at all, mode 0600: what fill writes into a
// draft beside it takes its place. It replaces an existing one only when told to; else
// the error wraps fs.ErrExist.
func writeAtomically(path string, replace bool, fill func(draft *os.File) error) error {
	place := os.Rename
	if !replace {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s: %w", path, fs.ErrExist)
		}
		place = os.Link // fails when somebody else was faster
	}
	draft, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("remove %s if no other command is making it: %v", path+".new", err) // not ErrExist: that is about path
	}
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	if err := errors.Join(fill(draft), draft.Sync(), draft.Close()); err != nil {
		return err
	}
	if err := place(draft.Name(), path); err != nil {
		return err
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

// openFile opens a database file for looking at it, not before it is found to be
// one that this program understands. While the process has it open by SQLite too,
// the file must not be closed: with any of its descriptors a process loses all its
// locks on a file (fcntl(2)), and whoever closes the database next would take it for
// unused and remove its log.
func openFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no database at %s: run 'widgetd init' first, or mount the disk that holds it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := checkHeader(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkHeader reads the first page's header: is this file a widgetd database
// that this program understands? It takes the same time for any size.
func checkHeader(f *os.File) error {
	_, err := headerVersion(f)
	return err
}

// headerVersion is checkHeader and returns the version of the schema that the header
// names. An older one is no error here: the write-ahead log may hold a later one.
func headerVersion(f *os.File) (int, error) {
	var head [100]byte
	n, err := f.ReadAt(head[:], 0)
	version := int(int32(binary.BigEndian.Uint32(head[60:])))
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return 0, fmt.Errorf("%s is empty: restore a backup, or remove it and run 'widgetd init'", f.Name())
	case err != nil && !errors.Is(err, io.EOF):
		return 0, fmt.Errorf("read %s: %w", f.Name(), err)
	case !bytes.HasPrefix(head[:], []byte("SQLite format 3\x00")):
		return 0, fmt.Errorf("%s is not an SQLite database, or its header is damaged: restore a backup", f.Name())
	case binary.BigEndian.Uint32(head[68:]) != applicationID:
		return 0, fmt.Errorf("%s is an SQLite database of another program: name widgetd's own with -db", f.Name())
	case version > schemaVersion:
		return 0, fmt.Errorf("%s has schema version %d, this program knows %d: run a newer widgetd", f.Name(), version, schemaVersion)
	case version < 1: // the id and the version are written together
		return 0, fmt.Errorf("%s is damaged, its schema version is %d: restore a backup", f.Name(), version)
	}
	return version, nil
}

// realPath is the file behind symbolic links: beside that SQLite keeps the log.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// checkWritable refuses files that SQLite would open for reading only, and then make
// a log that can't be written either. It opens none; see openFile.
func checkWritable(path string) error {
	const writing = 2 // access(2)
	for _, file := range []string{path, path + "-wal", path + "-shm"} {
		if err := syscall.Access(file, writing); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s can't be written: let this user write to it and to its directory: %w", file, err)
		}
	}
	return nil
}

// checkWAL notices a write-ahead log that was taken away, and with it what was
// written last: whoever closes the database removes the -shm file first and the log
// after it, so that one without the other means that somebody else did.
func checkWAL(path string) error {
	path = realPath(path)
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
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	real := realPath(path)
	if err := errors.Join(checkWAL(path), checkWritable(real)); err != nil {
		file.Close()
		return nil, oneLineError{err}
	}
	s := &store{path: path, walPath: real + "-wal", file: file, now: o.now, noCheckpoints: o.noCheckpoints}
	if s.now == nil {
		s.now = time.Now
	}
	s.writer = newWriter(s.inPlace, s.now)
	if err := s.open(o); err != nil {
		s.closeFiles()
		return nil, oneLineError{fmt.Errorf("%s can't be used: %s: %w", path, openHint(err), err)}
	}
	s.writer.start()
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
	case errors.Is(err, errNewerSchema):
		return "run a newer widgetd"
	case errors.Is(err, errOlderSchema):
		return "stop the service and run 'widgetd upgrade' with the same -db"
	case errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_CANTOPEN:
		return "let this user write to it and to its directory, and keep its path under 500 bytes"
	case errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_READONLY:
		return "let this user write to it and to its directory"
	}
	return "run 'widgetd check', or restore a backup"
}

// A oneLineError is an error whose text has no line breaks: SQLite quotes a damaged schema.
type oneLineError struct{ error }

func (o oneLineError) Error() string { return strings.Join(strings.Fields(o.error.Error()), " ") }

func (o oneLineError) Unwrap() error { return o.error }

func (s *store) open(o storeOptions) (err error) {
	if s.writer.db, err = sql.Open(cmp.Or(o.driver, "sqlite"), dsn(s.path, "rw", o)); err != nil {
		return err
	}
	s.writer.db.SetMaxOpenConns(1)
	if err := s.writer.connect(); err != nil {
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
	if s.walInfo, err = os.Stat(s.walPath); err != nil {
		return err
	}
	s.walNeedsTruncate.Store(s.walInfo.Size() > 0) // of what was erased before a service ended that could not empty it
	s.fileInfo, err = s.file.Stat()
	return err
}

// What can be wrong with the version of a schema, as the write-ahead log may say, and
// the file's header not yet.
var (
	errNewerSchema     = fmt.Errorf("its schema is newer than version %d", schemaVersion)
	errOlderSchema     = fmt.Errorf("its schema is older than version %d", schemaVersion)
	errNoSchemaVersion = errors.New("its schema has no version, so it is damaged")
)

// checkVersion returns errNewerSchema, errOlderSchema or errNoSchemaVersion when the
// schema is not of this program's version.
func checkVersion(q *queries) error {
	var version int
	err := q.one(`PRAGMA user_version`, nil, &version)
	switch {
	case err != nil:
		return err
	case version > schemaVersion:
		return errNewerSchema
	case version < 1:
		return errNoSchemaVersion
	case version < schemaVersion:
		return errOlderSchema
	}
	return nil
}

// checkSchema asks for the version, and for the tables that make a database ours. A
// file whose write-ahead log was taken away can lack even those.
func (s *store) checkSchema() error {
	if err := checkVersion(s.writer.queries); err != nil {
		return err
	}
	for line := range strings.Lines(schemaSQL) {
		table, ok := strings.CutPrefix(line, "CREATE TABLE ")
		if !ok {
			continue
		}
		table, _, _ = strings.Cut(table, " ")
		var n int
		if err := s.writer.queries.one(`SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`, []any{table}, &n); err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("the table %s is missing", table)
		}
	}
	var main string
	if err := s.writer.queries.one(`SELECT id FROM accounts WHERE is_main = 1`, nil, &main); err != nil && !errors.Is(err, errNotFound) {
		return err
	}
	return nil
}

// close runs the writes that are queued, checkpoints and closes the file. While
// somebody else has a transaction open the log stays, for the next start.
func (s *store) close() error {
	s.writer.stop()
	s.closeReaders() // first, so that none of them holds back the checkpoint
	var err error
	if !s.noCheckpoints {
		err = errors.Join(s.writer.queries.run("PRAGMA busy_timeout(1000)"), s.checkpoint())
	}
	return errors.Join(err, s.closeFiles())
}

// checkpoint moves the write-ahead log into the database file and empties it.
// Only whoever outlives the writer's goroutine may call it.
func (s *store) checkpoint() error {
	var busy, pages, moved int
	return s.writer.queries.one(`PRAGMA wal_checkpoint(TRUNCATE)`, nil, &busy, &pages, &moved)
}

// truncateWAL checkpoints and truncates the write-ahead log while the service runs,
// over a connection of its own, so that what was erased is gone from there too.
// It waits for readers and the writer as long as told, in short tries with pauses:
// SQLite holds writers up while such a checkpoint waits for a reader.
func (s *store) truncateWAL(patience time.Duration) error {
	const try, pause = 50 * time.Millisecond, 200 * time.Millisecond
	db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{busyTimeout: try}))
	if err != nil {
		return err
	}
	defer db.Close()
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		var busy, pages, moved int
		if err := db.QueryRow(`PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &pages, &moved); err != nil {
			return storageError(err)
		}
		if busy == 0 {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("a reader holds an earlier state of the database")
		}
	}
}

// scrubWAL empties the write-ahead log of what was erased. What it can't do now, since
// somebody has a transaction open, stays to be done (walNeedsTruncate). later reports
// that this was left over from an earlier time.
func (s *store) scrubWAL(patience time.Duration) (later bool, err error) {
	if s.noCheckpoints { // Litestream's, and it ends there with its retention
		return false, nil
	}
	later = s.walNeedsTruncate.Swap(false)
	if err = s.truncateWAL(patience); err != nil {
		s.walNeedsTruncate.Store(true)
	}
	return later, err
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

func (s *store) closeFiles() error {
	return errors.Join(s.closeReaders(), s.writer.disconnect(), s.file.Close())
}

// inPlace reports whether the database and its log are still the files that are
// open, and looked sound when watch last looked. What is written elsewhere is lost.
func (s *store) inPlace() error {
	database, err := os.Stat(s.path)
	if err != nil || !os.SameFile(database, s.fileInfo) {
		return fmt.Errorf("%w (the file at %s is no longer the one that is open)", errStorage, s.path)
	}
	log, err := os.Stat(s.walPath)
	if err != nil || !os.SameFile(log, s.walInfo) {
		return fmt.Errorf("%w (the file at %s is no longer the one that is open)", errStorage, s.walPath)
	}
	if s.damaged.Load() == nil {
		return nil
	}
	s.recheckHeader()
	if damage := s.damaged.Load(); damage != nil {
		return fmt.Errorf("%w (%w)", errStorage, *damage)
	}
	return nil
}

// watch looks at the file's header, which SQLite reads once and then keeps in memory.
func (s *store) recheckHeader() {
	if err := checkHeader(s.file); err != nil {
		s.damaged.Store(&err)
	} else {
		s.damaged.Store(nil)
	}
}

// walSize is how many bytes the write-ahead log takes on the disk.
func (s *store) walSize() int64 {
	info, err := os.Stat(s.walPath)
	if err != nil {
		return 0
	}
	return info.Size()
}

// readable reports whether the file at the path is the open one and answers.
func (s *store) checkReadable() error {
	s.recheckHeader()
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
	if err := s.checkReadable(); err != nil {
		return err
	}
	return s.update(ctx, func(t *tx) error {
		t.invalidate()
		_, err := t.exec(`INSERT INTO probes (id, written_at) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET written_at = excluded.written_at`, t.now)
		return err
	})
}

// backup writes a consistent copy of the database to a new file, mode 0600,
// while the service runs, and checks the copy.
func (s *store) backup(path string) error {
	err := writeAtomically(path, false, func(f *os.File) error {
		db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{}))
		if err != nil {
			return err
		}
		defer db.Close()
		if _, err := db.Exec(`VACUUM INTO ?`, f.Name()); err != nil {
			return storageError(err)
		}
		faults, _, err := inspectFile(f.Name()) // what the database holds beside its own schema is in the copy too
		if len(faults) > 0 {
			err = oneLineError{fmt.Errorf("the copy is not sound: %s", strings.Join(faults, "; "))}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

// checkFile reads the whole database and tells what is wrong with it: pages,
// indexes, foreign keys, and a schema that is not schema.sql's, or not that alone. It
// changes nothing. The error says why it could not look.
func checkFile(path string) (faults []string, err error) {
	faults, extra, err := inspectFile(path)
	return append(faults, extra...), err
}

// inspectFile is checkFile, but returns apart what makes no copy unsound: what the schema has
// beside schema.sql's, as an index that an operator has added, and seats that are counted wrong.
func inspectFile(path string) (faults, extra []string, err error) {
	file, err := openFile(path)
	if err != nil {
		return []string{err.Error()}, nil, nil
	}
	defer file.Close() // after the database
	if err := checkWAL(path); err != nil {
		return []string{err.Error()}, nil, nil
	}
	err = readFile(path, func(q *queries) (err error) {
		if faults, err = q.integrityFaults(); err != nil {
			faults, err = append(faults, oneLineError{err}.Error()), nil
			return err
		}
		if err := checkVersion(q); err != nil {
			faults = append(faults, fmt.Sprintf("schema: %s: %v", openHint(err), err))
			return nil
		}
		var wrong []string
		wrong, extra, err = diffSchema(q, schemaSQL)
		if faults = append(faults, wrong...); err != nil || len(wrong) > 0 {
			return err
		}
		miscounted, err := q.seatFaults()
		extra = append(extra, miscounted...)
		return err
	})
	return faults, extra, err
}

// readFile has f read a database, of any version, and closes it.
func readFile(path string, f func(*queries) error) error {
	db, err := sql.Open("sqlite", fileURL(path)+"?mode=rw&_pragma=busy_timeout(15000)&_pragma=query_only(1)")
	if err != nil {
		return err
	}
	defer db.Close()
	return f(newQueries(db.PrepareContext))
}

// damage reads the whole database and tells what is wrong with its pages, indexes and
// foreign keys. The error says what it could not read.
func (q *queries) integrityFaults() (faults []string, err error) {
	err = q.each(`PRAGMA integrity_check(20)`, nil, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		if line != "ok" {
			faults = append(faults, "integrity: "+line)
		}
		return err
	})
	if err != nil {
		return faults, fmt.Errorf("integrity: %w", err)
	}
	broken, err := q.foreignKeyFaults()
	return append(faults, broken...), err
}

// foreignKeyFaults tells of which tables how many rows name another one that is not there, and
// how to find them. It asks itself, one key of one column after the other: that reads indexes,
// where PRAGMA foreign_key_check reads all tables.
func (q *queries) foreignKeyFaults() (faults []string, err error) {
	type key struct{ table, from, parent, to string }
	keys, err := collect(q, `SELECT t.name, k."from", k."table", k."to" FROM sqlite_schema t
		JOIN pragma_foreign_key_list(t.name) k WHERE t.type = 'table' AND k."to" IS NOT NULL`, nil,
		func(k *key) []any { return []any{&k.table, &k.from, &k.parent, &k.to} })
	if err != nil {
		return nil, fmt.Errorf("foreign keys: %w", err)
	}
	for _, k := range keys {
		broken := fmt.Sprintf(`FROM %[1]s WHERE %[2]s IS NOT NULL AND NOT EXISTS (SELECT 1 FROM %[3]s p WHERE p.%[4]s = %[1]s.%[2]s)`,
			k.table, k.from, k.parent, k.to)
		var rows int
		if err := q.one(`SELECT count(*) `+broken, nil, &rows); err != nil {
			return nil, fmt.Errorf("foreign keys: %w", err)
		}
		if rows > 0 {
			faults = append(faults, fmt.Sprintf("foreign key: %d of %s names a row of %s that is not there: see SELECT * %s",
				rows, k.table, k.parent, broken))
		}
	}
	return faults, nil
}

// recountSeats mends what seatFaults tells, also while the service runs.
const recountSeats = `BEGIN IMMEDIATE; DELETE FROM license_seats; INSERT INTO license_seats ` +
	`SELECT license_id, count(*) FROM devices WHERE state = 'active' GROUP BY license_id; COMMIT;`

// seatFaults tells whether seats are counted that no active device holds, or the other way
// round, and how to count them anew. Triggers keep the counts, but not when the shell replaces
// a device (INSERT OR REPLACE) or changes a count itself.
func (q *queries) seatFaults() (faults []string, err error) {
	var wrong int
	var example sql.NullString
	err = q.one(`SELECT count(*), min(coalesce(d.license_id, s.license_id))
		FROM (SELECT license_id, count(*) AS active FROM devices WHERE state = 'active' GROUP BY license_id) d
		FULL JOIN license_seats s ON s.license_id = d.license_id
		WHERE coalesce(d.active, 0) <> coalesce(s.used, 0)`, nil, &wrong, &example)
	if err != nil {
		return nil, fmt.Errorf("seats: %w", err)
	}
	if wrong > 0 {
		faults = append(faults, fmt.Sprintf("seats: of %d licences, %s for one, another number of seats is counted than of "+
			"active devices: count anew with the sqlite3 shell: %s", wrong, example.String, recountSeats))
	}
	return faults, nil
}

// diffSchema compares a database's schema, but for comments and white space, with the
// one that schema declares: it tells what is missing or different, and what is there
// beside it.
func diffSchema(q *queries, schema string) (wrong, extra []string, err error) {
	memory, err := sql.Open("sqlite", "file::memory:")
	if err != nil {
		return nil, nil, err
	}
	defer memory.Close()
	memory.SetMaxOpenConns(1)
	if _, err := memory.Exec(schema); err != nil {
		return nil, nil, err
	}
	want, err := schemaOf(newQueries(memory.PrepareContext))
	if err != nil {
		return nil, nil, err
	}
	got, err := schemaOf(q)
	if err != nil {
		return nil, nil, err
	}
	wrong, extra = compareSchemas(want, got)
	return wrong, extra, nil
}

// compareSchemas tells what of want got has not or has otherwise, and what it has
// beside that.
func compareSchemas(want, got map[string]schemaObject) (wrong, extra []string) {
	without := func(columns, others []string) []string {
		return slices.DeleteFunc(slices.Clone(columns), func(c string) bool { return slices.Contains(others, c) })
	}
	for name, object := range want {
		found, there := got[name]
		more, less := without(found.columns, object.columns), without(object.columns, found.columns)
		switch {
		case !there:
			wrong = append(wrong, "schema: "+name+" is missing")
		case len(more)+len(less) > 0:
			for _, column := range less {
				wrong = append(wrong, "schema: "+name+" has no column "+column)
			}
			for _, column := range more {
				wrong = append(wrong, "schema: "+name+" has a column "+column+" that this program does not make: drop it")
			}
		case found.text != object.text:
			wrong = append(wrong, "schema: "+name+" is not as this program makes it")
		}
	}
	for name := range got {
		if _, known := want[name]; !known {
			extra = append(extra, "schema: "+name+" is not this program's: drop it, since 'widgetd upgrade' refuses a schema with anything else in it")
		}
	}
	slices.Sort(wrong)
	slices.Sort(extra)
	return wrong, extra
}
