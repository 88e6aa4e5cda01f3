package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// schemaSQL returns the declarations of the present schema: schema.sql.
func schemaSQL() string { return embedded("schema.sql") }

// declaredTables are the names of the tables of schema.sql.
var declaredTables = sync.OnceValue(func() (names []string) {
	for line := range strings.Lines(schemaSQL()) {
		if table, ok := strings.CutPrefix(line, "CREATE TABLE "); ok {
			name, _, _ := strings.Cut(table, " ")
			names = append(names, name)
		}
	}
	return names
})

const (
	applicationID = 2003068788 // "wdgt", as schema.sql sets it

	readerConns = 3        // each keeps up to 2 MiB of pages
	maxWAL      = 64 << 20 // bytes of the write-ahead log, past which it is reported, by default
)

// storeOptions are what the service, commands and tests open a database with.
type storeOptions struct {
	noCheckpoints bool          // never checkpoint: that is the service's or Litestream's job
	busyTimeout   time.Duration // SQLite's busy_timeout, and how long a job waits for the writer; 0: lockTimeout
	maxWAL        int64         // bytes of the write-ahead log, past which it is reported; 0: maxWAL
	now           func() time.Time
	driver        string // of the writer, for tests that inject faults; "": sqlite
	replica       bool   // also open a copy that 'litestream restore -f' was writing, to promote it
	unsynced      bool   // no commit waits for the disk
	limits        limits // the zero value: usualLimits
}

// dsn returns the data source name of a file, with every pragma in it: one that is sent by Exec
// would reach only a single connection of the pool.
func dsn(path, mode string, o storeOptions, more ...string) string {
	patience := cmp.Or(o.busyTimeout, lockTimeout)
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", patience.Milliseconds()), // first: the others may have to wait
		"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "trusted_schema(0)",
		"secure_delete(1)", fmt.Sprintf("journal_size_limit(%d)", cmp.Or(o.maxWAL, maxWAL)),
	}}
	if o.noCheckpoints {
		q.Add("_pragma", "wal_autocheckpoint(0)")
	}
	if o.unsynced {
		q.Add("_pragma", "synchronous(OFF)")
	}
	for _, pragma := range more {
		q.Add("_pragma", pragma)
	}
	return fileURL(path) + "?" + q.Encode()
}

// fileURL returns the URI of a file for SQLite, without options.
func fileURL(path string) string {
	return "file:" + (&url.URL{Path: filepath.Clean(path)}).EscapedPath()
}

// createStore creates a database at path, completely or not at all, mode 0600, with the rows
// that setUp adds. The error wraps fs.ErrExist when there is a file at path.
func createStore(path string, setUp func(*tx) error) error {
	return draftStore(path, storeOptions{}, func(st *store) error { return st.update(context.Background(), setUp) })
}

// draftStore is createStore with what fill does to the store, which has its file only after that.
func draftStore(path string, o storeOptions, fill func(*store) error) error {
	err := writeAtomically(path, false, func(f *os.File) error {
		db, err := sql.Open("sqlite", dsn(f.Name(), "rw", storeOptions{}))
		if err != nil {
			return err
		}
		_, err = db.Exec("BEGIN IMMEDIATE; " + schemaSQL() + "; COMMIT")
		if err := errors.Join(err, db.Close()); err != nil {
			return fmt.Errorf("%s: %w", openHint(err), err)
		}
		st, err := openStore(f.Name(), o)
		if err != nil {
			return err
		}
		return errors.Join(fill(st), st.close())
	})
	if err != nil {
		return fmt.Errorf("make the database: %w", err)
	}
	return nil
}

// writeAtomically creates a file, completely or not at all, mode 0600: fill writes a draft
// beside it, which then gets its name. It replaces an existing file only if replace is set;
// else the error wraps fs.ErrExist.
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
		return fmt.Errorf("remove %s if no other command is making it: %v", path+".new", err) // wraps no ErrExist
	}
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	if err := errors.Join(fill(draft), checkMade(draft), draft.Sync(), draft.Close()); err != nil {
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

// ownerOf returns the number of the user to whom a file belongs.
func ownerOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// checkMade returns an error unless a file that was made still is the one at its path, for its owner alone.
func checkMade(f *os.File) error {
	made, err := f.Stat()
	now, lstatErr := os.Lstat(f.Name())
	if err := errors.Join(err, lstatErr); err != nil || !os.SameFile(made, now) || now.Mode() != 0o600 {
		return fmt.Errorf("somebody has replaced %s while it was written: keep others out of its directory", f.Name())
	}
	return nil
}

// copyOwnerAndMode gives a file the mode and the owner of another.
func copyOwnerAndMode(f *os.File, like fs.FileInfo) error {
	owner := like.Sys().(*syscall.Stat_t)
	if err := errors.Join(f.Chown(int(owner.Uid), int(owner.Gid)), f.Chmod(like.Mode().Perm())); err != nil {
		return fmt.Errorf("give it the owner of the present file: %w", err)
	}
	return nil
}

// filesOf returns the paths of all files that belong to a database ("db") or key file ("key"), also of those that
// are not there; the first is its own, which alone may be a link.
func filesOf(db, name string) []string {
	real := realPath(db)
	if name == "key" {
		return []string{db, real}
	}
	return []string{db, real, real + "-journal", real + "-wal", real + "-shm", followerPath(db), promotingPath(db),
		epochPath(db), epochPath(db) + ".new", heardPath(db), heardPath(db) + ".new", litestreamPath(db),
		socketPath(db), proofPath(db, ""), watchPath(db), toldPath(db), toldPath(db) + ".new", startsPath(db),
		identityPath(db), identityPath(db) + ".new"}
}

// openFile opens a database file for reading, and checks its header and its write-ahead log. While this process has
// the database open in SQLite too, the file must not be closed: closing any descriptor of a
// file releases all locks that the process holds on it (fcntl(2)), and the next process to
// close the database would take it for unused and remove its write-ahead log. The error is one
// line with the next step.
func openFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		step := "run 'widgetd init' first, or mount the disk that holds it"
		if aside := movedAsideOf(realPath(path)); len(aside) > 0 { // a restore was killed before the copy was in place
			step = "run 'widgetd restore': what was there is " + strings.Join(aside, ", ")
		}
		return nil, fmt.Errorf("no database at %s: %s", path, step)
	}
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := cmp.Or(checkHeader(f), checkLogBelongs(path)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkHeader returns an error unless the header of the first page is that of a widgetd
// database with a schema that this program knows, or an older one. It reads 100 bytes.
func checkHeader(f *os.File) error {
	_, err := headerVersion(f)
	return err
}

// headerVersion is checkHeader, and returns the schema version in the header. An older one is
// no error here, since the write-ahead log may hold a later one.
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
		return 0, fmt.Errorf("%s has schema version %d, this program knows %d: run a newer widgetd",
			f.Name(), version, schemaVersion)
	case version < 1: // the id and the version are written together
		return 0, fmt.Errorf("%s is damaged, its schema version is %d: restore a backup", f.Name(), version)
	}
	return version, nil
}

// realPath resolves symbolic links, since SQLite keeps the write-ahead log beside the file
// itself. A path that can't be resolved is returned as it is.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// linkTarget returns the path that a file of a given path is written to: where its symbolic links
// lead, even if there is no file yet.
func linkTarget(path string) string {
	const maxLinks = 40 // as Linux follows
	for range maxLinks {
		path = filepath.Join(realPath(filepath.Dir(path)), filepath.Base(path))
		target, err := os.Readlink(path)
		switch {
		case err != nil: // no link
			return path
		case filepath.IsAbs(target):
			path = target
		default:
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return path
}

// checkWritable returns an error when this user may not write to the database, its write-ahead
// log or its -shm file: SQLite would open them for reading only. It opens none; see openFile.
func checkWritable(path string) error {
	const writing = 2 // access(2)
	for _, file := range []string{path, path + "-wal", path + "-shm"} {
		if err := syscall.Access(file, writing); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s can't be written: let this user write to it and to its directory: %w", file, err)
		}
	}
	return nil
}

// checkWAL returns an error when the write-ahead log was removed, and with it what was written
// last. SQLite removes the -shm file first and then the log when it closes a database, so a
// -shm file without a log means that somebody else removed the log.
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
	return fmt.Errorf("%s-wal is missing, and with it what was written last: "+
		"put it back, or remove %s-shm to go on without", path, path)
}

// newIdentity is SQL that gives a database another identity: it is another file than the one of which it is a copy, or
// was before. The file at identityPath is removed first, since the log has the new one before the database has it.
const newIdentity = `UPDATE epoch SET identity = lower(hex(randomblob(16)))`

// identityPath returns the path of the file beside a database that says to which identity the write-ahead log belongs.
func identityPath(db string) string { return realPath(db) + "-identity" }

func removeIdentityFile(db string) error {
	if err := os.Remove(identityPath(db)); err != nil {
		return except(err, fs.ErrNotExist)
	}
	return syncDir(filepath.Dir(realPath(db)))
}

// settleIdentityFile removes the file at identityPath where it is that of another database, and then writes this one's
// if that is wanted. It does so only if the write-ahead log was empty when the database was opened, so that the
// database itself has its identity, and before anything is written to that log, which would be refused as another's.
func (s *store) settleIdentityFile(write bool) error {
	path := identityPath(s.path)
	was, err := os.ReadFile(path)
	if s.walInfo.Size() > 0 || !write && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	identity, err := oneValue[string](s.queries, `SELECT identity FROM epoch`)
	if err != nil || string(was) == identity {
		return err
	}
	if err := removeIdentityFile(s.path); err != nil || !write {
		return err
	}
	os.Remove(path + ".new") // of a start that was killed
	return writeAtomically(path, true, func(f *os.File) error {
		_, err := f.WriteString(identity)
		return err
	})
}

// identifyCopy gives a copy of a database that nobody has open an identity of its own.
func identifyCopy(path string) error {
	db, err := sql.Open("sqlite", fileURL(path)+"?mode=rw")
	if err != nil {
		return err
	}
	_, err = db.Exec(newIdentity)
	return errors.Join(err, db.Close())
}

// checkLogBelongs returns an error if the write-ahead log beside a database belongs to another file, as where a backup
// was put beside the log of the file before: SQLite would replay it, and leave a mixture of both. Without the file at
// identityPath a log is taken for the database's own. Only a database of an older schema has no identity; one that a
// checkpoint has left half written may not be readable without its log.
func checkLogBelongs(path string) error {
	path = realPath(path)
	owner, err := os.ReadFile(identityPath(path))
	if err != nil || fileSize(path+"-wal") == 0 {
		return except(err, fs.ErrNotExist)
	}
	alone, err := sql.Open("sqlite", fileURL(path)+"?mode=ro&immutable=1") // without the log
	if err != nil {
		return err
	}
	defer alone.Close()
	identity := ""
	err = alone.QueryRow(`SELECT identity FROM epoch`).Scan(&identity)
	se, ofSQLite := errors.AsType[*sqlite.Error](err)
	if identity == string(owner) || ofSQLite && se.Code() != sqlite3.SQLITE_ERROR {
		return nil
	}
	return fmt.Errorf("%s-wal is the write-ahead log of another file than %s, such as the one in whose place this was "+
		"put: move %s-wal and %s-shm aside to go on without that log, or put its own file back; remove %s only if you "+
		"know that the log belongs to this file", path, path, path, path, identityPath(path))
}

// openStore opens an existing database and starts its writer. Its errors are one line that
// names the file and the next step.
func openStore(path string, o storeOptions) (*store, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	real := realPath(path)
	if !o.replica {
		err = checkNotFollowed(path)
	}
	later, heardErr := laterEpoch(path)
	if err := errors.Join(err, heardErr, checkWAL(path), checkWritable(real)); err != nil {
		file.Close()
		return nil, oneLineError{err}
	}
	s := &store{path: path, walPath: real + "-wal", file: file, now: o.now, noCheckpoints: o.noCheckpoints,
		maxWAL: cmp.Or(o.maxWAL, maxWAL)}
	if s.now == nil {
		s.now = time.Now
	}
	s.writer = newWriter(s.inPlace, s.now, cmp.Or(o.limits, usualLimits), cmp.Or(o.busyTimeout, lockTimeout))
	if err := s.open(o); err != nil {
		s.closeFiles()
		return nil, oneLineError{fmt.Errorf("%s can't be used: %s: %w", path, openHint(err), err)}
	}
	if own, err := s.writer.queries.epoch(); err == nil && later > own.Number && !o.replica {
		s.become(machineState{roleFenced, reasonSuperseded}) // for commands, too
	}
	s.writer.start()
	return s, nil
}

// absentStore returns the store of a standby, whose file at a path Litestream writes and nobody may open: it has no
// rows, and takes none.
func absentStore(path string) *store {
	s := &store{path: path, walPath: realPath(path) + "-wal", now: time.Now, maxWAL: maxWAL}
	s.writer = newWriter(nil, s.now, usualLimits, lockTimeout)
	s.queries = newQueries(func(context.Context, string) (*sql.Stmt, error) { return nil, errNotFound })
	s.become(machineState{roleStandby, reasonStandby})
	return s
}

// openHint returns what to do about a database that can't be opened, read or written.
func openHint(err error) string {
	var se *sqlite.Error
	switch err := storageError(err); {
	case errors.Is(err, errBusy):
		return "another process holds its lock, so end that process"
	case errors.Is(err, errStorageFull):
		return "make room on its disk"
	case errors.Is(err, errNewerSchema):
		return "run a newer widgetd"
	case errors.Is(err, errNotReleased):
		return "upgrade it with the widgetd that made it, or restore a backup of a release"
	case errors.Is(err, errOlderSchema):
		return "stop the service and run 'widgetd upgrade' with the same -db"
	case errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_CANTOPEN:
		return "let this user write to it and to its directory, and keep its path under 500 bytes"
	case errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_READONLY:
		return "let this user write to it and to its directory"
	}
	return "run 'widgetd check', or restore a backup"
}

// A oneLineError removes the line breaks from the text of an error, in which SQLite may quote
// a damaged schema.
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
	connector, err := sqlite.NewConnector(dsn(s.path, "rw", o, "query_only(1)"))
	if err != nil {
		return err
	}
	s.readers = sql.OpenDB(readerConnector{connector, s.filesInPlace})
	s.readers.SetMaxOpenConns(readerConns)
	s.readers.SetMaxIdleConns(readerConns)
	s.queries = newQueries(s.readers.PrepareContext)
	s.queries.faults, s.queries.limits = s.faults, s.writer.limits
	if s.walInfo, err = os.Stat(s.walPath); err != nil {
		return err
	}
	// The log may hold what was erased before an earlier process ended without truncating it.
	s.walNeedsTruncate.Store(s.walInfo.Size() > 0)
	if s.fileInfo, err = s.file.Stat(); err != nil {
		return err
	}
	return s.settleIdentityFile(false)
}

// What can be wrong with the version of a schema. SQLite tells the current one; the file's
// header may lag behind the write-ahead log.
var (
	errNewerSchema     = fmt.Errorf("its schema is newer than version %d", schemaVersion)
	errOlderSchema     = fmt.Errorf("its schema is older than version %d", schemaVersion)
	errNoSchemaVersion = errors.New("its schema has no version, so it is damaged")
	errNotReleased     = errors.New("no release had its schema's version")
)

// versionError returns errNewerSchema, errNoSchemaVersion or errNotReleased if neither is a version this program's
// nor can a database of it be upgraded.
func versionError(version int) error {
	_, released := releasedSchemas[version]
	switch {
	case version > schemaVersion:
		return errNewerSchema
	case version < 1:
		return errNoSchemaVersion
	case version < schemaVersion && !released:
		return errNotReleased
	}
	return nil
}

// checkVersion returns an error of versionError, or errOlderSchema, unless the schema has this program's version.
func checkVersion(q *queries) error {
	var version int
	if err := q.one(`PRAGMA user_version`, nil, &version); err != nil {
		return err
	}
	if err := versionError(version); err != nil || version == schemaVersion {
		return err
	}
	return errOlderSchema
}

// checkSchema returns an error unless the schema has this program's version and all its tables.
// A file whose write-ahead log was removed can lack both.
func (s *store) checkSchema() error {
	if err := checkVersion(s.writer.queries); err != nil {
		return err
	}
	tables, err := s.writer.queries.texts(`SELECT name FROM sqlite_schema WHERE type = 'table'`)
	if err != nil {
		return err
	}
	for _, table := range declaredTables() {
		if !slices.Contains(tables, table) {
			return fmt.Errorf("the table %s is missing", table)
		}
	}
	var main string
	err = s.writer.queries.one(`SELECT id FROM accounts WHERE is_main = 1`, nil, &main)
	return except(err, errNotFound)
}

// close runs the queued writes, checkpoints and closes the file. When somebody else has a
// transaction open, the write-ahead log stays as it is, for the next process that opens it.
func (s *store) close() error {
	if s.standsBy() {
		return nil
	}
	s.writer.stop()
	s.closeReaders() // first, so that none of them holds back the checkpoint
	var err error
	if !s.noCheckpoints {
		err = errors.Join(s.writer.queries.run("PRAGMA busy_timeout(1000)"), s.checkpoint())
	}
	return errors.Join(err, s.closeFiles())
}

// checkpoint copies the write-ahead log into the database file and truncates it. It uses the
// writer's connection, so it may be called only after the writer has stopped.
func (s *store) checkpoint() error {
	var busy, pages, moved int
	return s.writer.queries.one(`PRAGMA wal_checkpoint(TRUNCATE)`, nil, &busy, &pages, &moved)
}

// truncateWAL checkpoints and truncates the write-ahead log while the service runs, over a
// connection of its own, so that it no longer holds what was erased. It waits up to timeout for
// readers and the writer, in short tries with pauses: while such a checkpoint waits for a
// reader, SQLite lets nobody write.
func (s *store) truncateWAL(timeout time.Duration) error {
	const try, pause = 50 * time.Millisecond, 200 * time.Millisecond
	db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{busyTimeout: try}))
	if err != nil {
		return err
	}
	defer db.Close()
	for end := time.Now().Add(timeout); ; time.Sleep(pause) {
		var busy, pages, moved int
		if err := db.QueryRow(`PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &pages, &moved); err != nil {
			return s.queries.fault("", err)
		}
		if busy == 0 {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("somebody has a transaction open")
		}
	}
}

// scrubWAL truncates the write-ahead log, so that it no longer holds what was erased. If that
// fails, usually because another transaction is open, it sets walNeedsTruncate so that it is
// tried again; later reports whether that was already set before.
func (s *store) scrubWAL(timeout time.Duration) (later bool, err error) {
	if s.noCheckpoints { // Litestream truncates the log, and a retention period limits its replica
		return false, nil
	}
	later = s.walNeedsTruncate.Swap(false)
	if err = s.truncateWAL(timeout); err != nil {
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

// lockForDeliveries takes the lock on the database file that its holder must have to send events to
// webhooks, so that of two services over one file only one sends. It reports false if another process
// has it. The lock lasts until the file is closed or the process ends. It does not interfere with
// SQLite's locks, which are of another kind (fcntl(2), not flock(2)).
func (s *store) lockForDeliveries() (bool, error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return false, err
	}
	var locked error
	err = raw.Control(func(fd uintptr) { locked = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(locked, syscall.EWOULDBLOCK) {
		return false, nil
	}
	err = errors.Join(err, locked)
	return err == nil, err
}

// Why the open file can't be used any more.
var (
	errReplaced = errors.New("is no longer the one that is open")
	errHeader   = errors.New("its header was changed")
)

// inPlace returns errStorage unless the database and its write-ahead log are still the files
// that are open, and the header is sound: writes to a file that was replaced or deleted would
// be lost.
func (s *store) inPlace() error {
	if err := s.filesInPlace(); err != nil || s.damaged.Load() == nil {
		return err
	}
	s.recheckHeader()
	if damage := s.damaged.Load(); damage != nil {
		return fmt.Errorf("%w (%w: %w)", errStorage, errHeader, *damage)
	}
	return nil
}

// filesInPlace returns errStorage unless the database and its write-ahead log are still the files
// that are open.
func (s *store) filesInPlace() error {
	database, err := os.Stat(s.path)
	if err != nil || !os.SameFile(database, s.fileInfo) {
		return fmt.Errorf("%w (the file at %s %w)", errStorage, s.path, errReplaced)
	}
	wal, err := os.Stat(s.walPath)
	if err != nil || !os.SameFile(wal, s.walInfo) {
		return fmt.Errorf("%w (the file at %s %w)", errStorage, s.walPath, errReplaced)
	}
	return nil
}

// A readerConnector opens the readers' connections. Some are opened late, because a connection whose
// query was interrupted is closed and replaced. So it checks before and after opening one that the file
// at the path is still the one that is open.
type readerConnector struct {
	driver.Connector
	filesInPlace func() error
}

// Connect implements driver.Connector.
func (c readerConnector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.filesInPlace(); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.filesInPlace(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// recheckHeader checks the file's header again, since SQLite reads it once and then keeps it in
// memory. inPlace returns what it found.
func (s *store) recheckHeader() {
	if s.standsBy() {
		return
	}
	if err := checkHeader(s.file); err != nil {
		s.damaged.Store(&err)
	} else {
		s.damaged.Store(nil)
	}
}

// databaseSize returns the size of the database file in bytes, without its write-ahead log.
func (s *store) databaseSize() int64 { return fileSize(s.path) }

// walSize returns the size of the write-ahead log in bytes.
func (s *store) walSize() int64 { return fileSize(s.walPath) }

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// fileSize returns the size of a file in bytes; 0 if there is none.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// probe reads from the database and writes to it, to prove that both work, and that the file at the path is the open
// one. Errors: errBusy, errStorageFull, errStorage.
func (s *store) probe(ctx context.Context) error {
	s.recheckHeader()
	if err := s.inPlace(); err != nil {
		return err
	}
	var n int
	if err := s.one(`SELECT count(*) FROM probes`, nil, &n); err != nil {
		return err
	}
	return s.update(ctx, func(t *tx) error {
		t.dropsNothing()
		t.writeProbe()
		return nil
	})
}

// writeProbe writes the one row of probes.
func (t *tx) writeProbe() {
	t.exec(`INSERT INTO probes (id, written_at) VALUES (1, ?)
		ON CONFLICT (id) DO UPDATE SET written_at = excluded.written_at`, t.now)
}

// A stepFunc is told of each step of what may last, with the path of the file that grows by it to about size bytes; "":
// none does. It may be nil.
type stepFunc func(what, file string, size int64)

func (tell stepFunc) step(what, file string, size int64) {
	if tell != nil {
		tell(what, file, size)
	}
}

// backup writes a consistent copy of the database to a new file, mode 0600,
// while the service runs, and checks the copy.
func (s *store) backup(path string, tell stepFunc) error {
	err := writeAtomically(path, false, func(f *os.File) error {
		db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{}))
		if err != nil {
			return err
		}
		defer db.Close()
		tell.step("copying the database", f.Name(), s.databaseSize())
		if _, err := db.Exec(`VACUUM INTO ?`, f.Name()); err != nil {
			return storageError(err)
		}
		tell.step("checking the copy", "", 0)
		if err := identifyCopy(f.Name()); err != nil {
			return storageError(err)
		}
		// What an operator added to the schema, and rows that break a rule, are no faults of the copy.
		faults, _, err := inspectFile(f.Name(), "ignore_check_constraints(1)")
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

// restoreBackup copies a backup to a new file, mode 0600, as restoring it does.
func restoreBackup(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return copyInto(to, in)
}

// copyInto copies what a reader has to a new file, mode 0600.
func copyInto(to string, in io.Reader) error {
	return writeAtomically(to, false, func(f *os.File) error { _, err := io.Copy(f, in); return err })
}

// checkFile reads the whole database, changes nothing, and returns what is wrong with its
// pages, indexes and foreign keys, and every difference between its schema and schema.sql. The
// error says why it could not be checked.
func checkFile(path string) (faults []string, err error) {
	faults, extra, err := inspectFile(path)
	return append(faults, extra...), err
}

// inspectFile is checkFile with further pragmas, but returns in extra what does not make a copy unsound, because a
// faithful copy has it too: what the schema has beyond schema.sql, such as an index that an operator has added, and
// seats counted wrong.
func inspectFile(path string, pragmas ...string) (faults, extra []string, err error) {
	file, err := openFile(path)
	if err != nil {
		return []string{err.Error()}, nil, nil
	}
	defer file.Close() // after the database
	if err := errors.Join(checkNotFollowed(path), checkWAL(path)); err != nil {
		return []string{oneLineError{err}.Error()}, nil, nil
	}
	err = readFile(path, func(q *queries) (err error) {
		if faults, err = q.faultsBy(`PRAGMA integrity_check(20)`); errors.Is(err, errBusy) {
			return err
		} else if err != nil {
			faults, err = append(faults, oneLineError{err}.Error()), nil
			return err
		}
		if err := checkVersion(q); err != nil {
			faults = append(faults, fmt.Sprintf("schema: %s: %v", openHint(err), err))
			return nil
		}
		var wrong []string
		wrong, extra, err = diffSchema(q)
		if faults = append(faults, wrong...); err != nil || len(wrong) > 0 {
			return err
		}
		miscounted, err := q.seatFaults()
		extra = append(extra, miscounted...)
		return err
	}, pragmas...)
	return faults, extra, err
}

// readFile opens a database of any version for reading, with further pragmas, calls f with it and closes it.
func readFile(path string, f func(*queries) error, pragmas ...string) error {
	options := url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(15000)", "query_only(1)"}}
	options["_pragma"] = append(options["_pragma"], pragmas...)
	if err := checkLogBelongs(path); err != nil { // closing the file would replay it
		return err
	}
	db, err := sql.Open("sqlite", fileURL(path)+"?"+options.Encode())
	if err != nil {
		return err
	}
	defer db.Close()
	return f(newQueries(db.PrepareContext))
}

// checkFailed is the beginning of a fault that says that a row violates a CHECK; the name of the table follows.
const checkFailed = "integrity: CHECK constraint failed in "

// faultsBy reads the whole database and returns what is wrong with its pages, indexes and rows, as a pragma of
// SQLite says (see integrityFaults), and with its foreign keys. The error says what it could not read.
func (q *queries) faultsBy(pragma string) (faults []string, err error) {
	faults, err = q.integrityFaults(pragma)
	if err != nil {
		return faults, err
	}
	broken, err := q.brokenKeys()
	return append(faults, broken...), err
}

// integrityFaults returns the lines of a pragma: integrity_check, or quick_check, which does not compare indexes with
// their tables.
func (q *queries) integrityFaults(pragma string) (faults []string, err error) {
	err = q.each(pragma, nil, func(scan func(...any) error) error {
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
	return faults, nil
}

// brokenKeys returns a fault for each foreign key with rows that name a row that is not there. SQLite goes through a
// column by its index, if it has one, so that it finds neighbours one after the other; its own pragma goes through the
// table, whose order may be any: that takes twice as long.
func (q *queries) brokenKeys() (faults []string, err error) {
	keys, err := q.texts(`SELECT concat_ws(' ', o.name, k."from", k."table", k."to")
		FROM sqlite_schema o JOIN pragma_foreign_key_list(o.name) k
		WHERE o.type = 'table' AND k."table" IN (SELECT name FROM sqlite_schema) ORDER BY 1`)
	for _, key := range keys {
		k, n := strings.Fields(key), 0
		if err == nil {
			err = q.one(lostReferences(k), nil, &n)
		}
		if n > 0 {
			faults = append(faults, fmt.Sprintf("foreign key: %d of %s names a row of %s that is not there: see "+
				"SELECT * FROM %s WHERE %s NOT IN (SELECT %s FROM %s)", n, k[0], k[2], k[0], k[1], k[3], k[2]))
		}
	}
	if err != nil {
		return faults, fmt.Errorf("foreign keys: %w", err)
	}
	return faults, nil
}

// lostReferences returns SQL that counts the rows of a table with a value in a column that is in no row of the parent's
// column; key has these four names in that order.
func lostReferences(key []string) string {
	return `SELECT count(*) FROM ` + key[0] + ` c WHERE ` + key[1] + ` IS NOT NULL AND NOT EXISTS (SELECT 1 FROM ` +
		key[2] + ` p WHERE p.` + key[3] + ` = c.` + key[1] + `)`
}

// seatCounts is SQL for what license_seats should hold.
const seatCounts = `SELECT license_id, count(*) FILTER (WHERE active) AS used, count(*) AS counting FROM (` +
	`SELECT license_id, state = 'active' AS active FROM devices WHERE counting ` +
	`UNION ALL SELECT license_id, 0 FROM past_fingerprints) GROUP BY license_id`

// seatFaults returns a fault if license_seats differs from the number of active devices or of
// fingerprints that count. Triggers keep the counts up to date, but not when the shell replaces a device (INSERT OR
// REPLACE) or changes a count itself.
func (q *queries) seatFaults() (faults []string, err error) {
	var wrong int
	var example sql.NullString
	err = q.one(`SELECT count(*), min(coalesce(d.license_id, s.license_id))
		FROM (`+seatCounts+`) d FULL JOIN license_seats s ON s.license_id = d.license_id
		WHERE coalesce(d.used, 0) <> coalesce(s.used, 0) OR coalesce(d.counting, 0) <> coalesce(s.counting, 0)`,
		nil, &wrong, &example)
	if err != nil {
		return nil, fmt.Errorf("seats: %w", err)
	}
	if wrong > 0 {
		faults = append(faults, fmt.Sprintf(
			"seats: of %d licences, %s for one, another number of seats is counted than of active devices, "+
				"or of fingerprints than there are: %s",
			wrong, example.String, repairHint("license_seats", example.String, "used, counting")))
	}
	return faults, nil
}

// diffSchema compares a database's schema with schema.sql. It returns what is missing or different, and what the
// database has in addition.
func diffSchema(q *queries) (wrong, extra []string, err error) {
	want, err := declaredObjects()
	if err != nil {
		return nil, nil, err
	}
	got, err := schemaOf(q)
	if err != nil {
		return nil, nil, err
	}
	for _, object := range slices.Sorted(maps.Keys(want)) {
		if text, there := got[object]; !there {
			wrong = append(wrong, "schema: "+object+" is missing")
		} else if text != want[object] {
			wrong = append(wrong, "schema: "+object+" is not as this program makes it")
		}
	}
	for _, object := range slices.Sorted(maps.Keys(got)) {
		if _, known := want[object]; !known {
			extra = append(extra, "schema: "+object+" is not this program's: drop it, "+
				"since 'widgetd upgrade' refuses a schema with anything else in it")
		}
	}
	return wrong, extra, nil
}

// declaredObjects and declaredParts are schemaOf and schemaParts of a new database, which is made once for each. Nobody
// may change what they return.
var (
	declaredObjects = sync.OnceValues(func() (map[string]string, error) { return declared(schemaOf) })
	declaredParts   = sync.OnceValues(func() ([]string, error) { return declared(schemaParts) })
)

// declared returns what read finds in a new database.
func declared[T any](read func(*queries) (T, error)) (found T, err error) {
	memory, err := sql.Open("sqlite", "file::memory:")
	if err != nil {
		return found, err
	}
	defer memory.Close()
	memory.SetMaxOpenConns(1)
	if _, err := memory.Exec(schemaSQL()); err != nil {
		return found, err
	}
	return read(newQueries(memory.PrepareContext))
}

// schemaOf returns the declarations of a database by kind and name, as "table leads", except for those that SQLite
// and Litestream make for themselves.
func schemaOf(q *queries) (map[string]string, error) {
	objects := map[string]string{}
	err := q.each(`SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL
			AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_litestream%' ESCAPE '\'`, nil,
		func(scan func(...any) error) error {
			var object, text string
			err := scan(&object, &text)
			objects[object] = text
			return err
		})
	return objects, err
}

// demoMark is the name of the payment connections of a demo, by which its file is known.
const demoMark = "widgetd demo"

// refuseDemo returns an error if the demo has made the file at a path, which every server asks that is no demo's and
// every command before it asks a vendor: the demo's are within it.
func (q *queries) refuseDemo(path string) error {
	made := false
	err := q.one(`SELECT EXISTS (SELECT 1 FROM payment_connections WHERE name = ?)`, []any{demoMark}, &made)
	if err == nil && made {
		err = fmt.Errorf("%s is a demo's, whose vendors only the running demo reaches: widgetd demo -dir %s", path,
			shellWord(filepath.Dir(path)))
	}
	return err
}
