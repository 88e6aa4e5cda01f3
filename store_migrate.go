package main

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// upgradeOptions are the options of one upgrade.
type upgradeOptions struct {
	dryRun bool             // roll back at the end
	noCopy bool             // write no copy of the old database
	now    func() time.Time // for the copy's name

	// progress is called every progressInterval while a long part runs, on a goroutine of its
	// own, with a line that names the part. It may be nil.
	progress         func(text string)
	progressInterval time.Duration // 0: 5 seconds

	driver string       // for tests that inject faults; "": sqlite
	steps  []schemaStep // for tests; nil: schemaSteps and schema.sql
	schema string       // that steps lead to
}

// An upgradeReport says what an upgrade did, or with DryRun what it would do.
type upgradeReport struct {
	From         int          `json:"from"` // versions of the schema
	To           int          `json:"to"`
	DryRun       bool         `json:"dry_run"`
	Steps        []stepReport `json:"steps"` // empty: the schema already had this version
	Copy         *string      `json:"copy"`  // path of the copy of the old database; nil: there is none
	Milliseconds int64        `json:"milliseconds"`

	// Values that were carried over although no calendar has such a time or date, the first
	// maxInvalidTimes of them, and how many there are.
	InvalidTimes      []invalidTime `json:"invalid_times"`
	InvalidTimesCount int           `json:"invalid_times_count"`
}

// An invalidTime is a value that the checks of times and dates refuse, and that an old sqlite3 shell
// could write until version 7: see timeCheck.
type invalidTime struct {
	Table  string `json:"table"`
	ID     string `json:"id"` // the row's id, or without such a column its primary key; blobs in hexadecimal
	Column string `json:"column"`
}

// maxInvalidTimes is how many of them a report names.
const maxInvalidTimes = 100

// A stepReport says what one step did.
type stepReport struct {
	To           int    `json:"to"` // the version that it leads to
	Does         string `json:"does"`
	Rows         int64  `json:"rows"`   // how many it wrote; ALTER TABLE writes none
	Advice       string `json:"advice"` // what to know or do afterwards; "": nothing
	Milliseconds int64  `json:"milliseconds"`
}

// upgradeFile upgrades an older database to this program's schema. It writes a checked copy
// beside it, mode 0600, then runs the missing steps in one transaction, so that after an error,
// a kill or a power cut the file has the old schema or the new one. Nobody else can open the
// file meanwhile. Its errors are one line that names the file and the next step; after an error
// nothing has changed, unless the error wraps errMaybeUpgraded.
func upgradeFile(ctx context.Context, path string, o upgradeOptions) (*upgradeReport, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // after the database: see openFile
	if o.steps == nil {
		o.steps, o.schema = schemaSteps, schemaSQL()
	}
	m := &migration{upgradeOptions: o, ctx: ctx, path: realPath(path), to: len(o.steps) + 1}
	began := time.Now()
	report, err := m.upgrade(file)
	switch {
	case errors.Is(err, errMaybeUpgraded):
		return nil, oneLineError{fmt.Errorf("%s: %w", path, err)}
	case err != nil:
		return nil, oneLineError{fmt.Errorf("%s was not upgraded: %w", path, err)}
	}
	report.Milliseconds = time.Since(began).Milliseconds()
	return report, nil
}

var errMaybeUpgraded = errors.New("it is not known whether it was upgraded: " +
	"run 'widgetd upgrade' again to find out")

// A migration is one upgrade: its versions, and the only connection to the file. The steps
// that are written in Go get it inside the transaction.
type migration struct {
	upgradeOptions
	*queries
	ctx      context.Context // its end interrupts the steps, but not COMMIT or ROLLBACK
	path     string          // without symbolic links
	from, to int
	db       *sql.DB
	conn     *sql.Conn
	part     atomic.Pointer[string] // of the step that runs, for progress; nil: nothing to add

	invalidTimes      []invalidTime // as in the report
	invalidTimesCount int
}

// exec runs one or more statements. When the migration's context ends, it interrupts them.
func (m *migration) exec(query string, args ...any) error {
	_, err := m.conn.ExecContext(m.ctx, query, args...)
	return cmp.Or(m.ctx.Err(), storageError(err))
}

// explainUpgradeError puts the next step before the text of an error.
func explainUpgradeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("it was stopped, so run it again: %w", err)
	case errors.Is(err, errBusy):
		return errors.New("another process has it open: stop the service, end whatever else reads it, " +
			"as Litestream and the sqlite3 shell, and run this again")
	}
	return fmt.Errorf("%s: %w", openHint(err), err)
}

// upgrade is upgradeFile, once the header of the file has been checked.
func (m *migration) upgrade(file *os.File) (*upgradeReport, error) {
	version, err := fileVersion(m.path, file)
	if err == nil {
		err = m.setFrom(version)
	}
	if err != nil {
		return nil, explainUpgradeError(err)
	}
	if m.from == m.to {
		return m.report(), nil
	}
	if err := errors.Join(checkWAL(m.path), checkWritable(m.path)); err != nil {
		return nil, err
	}
	defer m.close()
	registerLeadDigest() // before lockExclusively opens the connection that uses it
	if err := m.lockExclusively(); err != nil {
		return nil, err
	}
	report := m.report()
	if m.from == m.to { // another upgrade has done it meanwhile
		return report, nil
	}
	if err := cmp.Or(m.removeUnfinishedCopies(), m.truncateWAL()); err != nil {
		return nil, err
	}
	found, err := m.findCopy()
	if err != nil {
		return nil, err
	}
	var written *string
	if found == nil {
		if err := m.checkDiskSpace(3); err != nil {
			return nil, err
		}
		written, err = m.copyOrCheck()
	} else {
		err = m.checkDiskSpace(2)
	}
	if err != nil {
		return nil, err
	}
	if report.Steps, err = m.runSteps(); err != nil {
		return nil, m.rollBack(written, err)
	}
	report.Copy = cmp.Or(found, written)
	report.InvalidTimes = append(report.InvalidTimes, m.invalidTimes...)
	report.InvalidTimesCount = m.invalidTimesCount
	return report, nil
}

func (m *migration) report() *upgradeReport {
	return &upgradeReport{From: m.from, To: m.to, DryRun: m.dryRun, Steps: []stepReport{},
		InvalidTimes: []invalidTime{}}
}

// setFrom sets the version to upgrade from. Errors: errNewerSchema, errNoSchemaVersion.
func (m *migration) setFrom(version int) error {
	switch {
	case version > m.to:
		return errNewerSchema
	case version < 1:
		return errNoSchemaVersion
	}
	m.from = version
	return nil
}

// fileVersion returns the version of the database's schema without changing anything. It reads
// the file's header, or asks SQLite if there is a write-ahead log, which may hold a later one.
func fileVersion(path string, file *os.File) (version int, err error) {
	version, err = headerVersion(file)
	wal, statErr := os.Stat(path + "-wal")
	if err != nil || statErr != nil || wal.Size() == 0 {
		return version, err
	}
	// With mode=rw SQLite would checkpoint and remove the log when the connection is closed.
	db, err := sql.Open("sqlite", fileURL(path)+"?mode=ro&_pragma=busy_timeout(500)")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.QueryRow(`PRAGMA user_version`).Scan(&version)
	return version, storageError(err)
}

// upgradeCache is how many bytes of pages an upgrade keeps in memory. VACUUM INTO uses as much again for the copy,
// and sorting for an index half as much again before it spills to a temporary file.
const upgradeCache = 16 << 20

// lockExclusively opens the database with an EXCLUSIVE lock that lasts until it is closed. A
// process that has a database in WAL mode open holds SQLite's SHARED lock on the file all the
// time, also between transactions. So the EXCLUSIVE lock, which after locking_mode=EXCLUSIVE the
// next transaction takes and keeps, is refused while any other process has the file open; once it
// is held, any other process that opens the file gets SQLITE_BUSY.
func (m *migration) lockExclusively() (err error) {
	pragmas := url.Values{"mode": {"rw"}, "_pragma": {
		"busy_timeout(500)", "synchronous(FULL)", "trusted_schema(0)", "secure_delete(1)",
		// With these two a step may rebuild a table that other tables and views refer to;
		// checkResult checks the foreign keys and the schema at the end.
		"foreign_keys(0)", "legacy_alter_table(1)",
		fmt.Sprintf("cache_size(-%d)", upgradeCache>>10),
	}}
	m.db, err = sql.Open(cmp.Or(m.driver, "sqlite"), fileURL(m.path)+"?"+pragmas.Encode())
	if err != nil {
		return explainUpgradeError(err)
	}
	if m.conn, err = m.db.Conn(context.Background()); err != nil {
		return explainUpgradeError(storageError(err))
	}
	m.queries = newQueries(m.conn.PrepareContext)
	var version int
	var mode string
	if err := m.one(`PRAGMA locking_mode = EXCLUSIVE`, nil, &mode); err != nil {
		return explainUpgradeError(err)
	}
	if err := m.run("BEGIN EXCLUSIVE"); err != nil {
		return explainUpgradeError(err)
	}
	err = m.one(`PRAGMA user_version`, nil, &version)
	if err := cmp.Or(err, m.run("ROLLBACK")); err != nil { // the lock stays
		return explainUpgradeError(err)
	}
	return explainUpgradeError(m.setFrom(version))
}

func (m *migration) close() {
	if m.queries != nil {
		m.queries.close()
	}
	if m.conn != nil {
		m.conn.Close()
	}
	if m.db != nil {
		m.db.Close() // an error can only be about the checkpoint; what was committed is in the write-ahead log
	}
}

// runSteps runs the missing steps in one transaction, and commits it if the schema is then the
// one that they should lead to and no foreign key is broken.
func (m *migration) runSteps() ([]stepReport, error) {
	if !m.dryRun {
		var mode string // a restored copy is in another mode
		if err := m.one(`PRAGMA journal_mode = WAL`, nil, &mode); err != nil {
			return nil, explainUpgradeError(err)
		}
	}
	if err := m.run("BEGIN IMMEDIATE"); err != nil {
		return nil, explainUpgradeError(err)
	}
	done := []stepReport{}
	for i, step := range m.steps[m.from-1:] {
		r, err := m.runStep(step, fmt.Sprintf("step %d of %d, %s", i+1, m.to-m.from, step.does))
		if err != nil {
			return nil, err
		}
		r.To = m.from + i + 1
		done = append(done, r)
	}
	if err := m.exec(fmt.Sprintf(`PRAGMA user_version = %d`, m.to)); err != nil {
		return nil, explainUpgradeError(err)
	}
	if err := m.writeDeclarations(); err != nil {
		return nil, err
	}
	if err := m.withProgress("checking the result", m.checkResult); err != nil {
		return nil, err
	}
	switch {
	case m.ctx.Err() != nil:
		return nil, explainUpgradeError(m.ctx.Err())
	case m.dryRun:
		return done, explainUpgradeError(m.run("ROLLBACK"))
	}
	return done, explainUpgradeError(m.run("COMMIT"))
}

// runStep runs one step. what names it in progress lines and errors.
func (m *migration) runStep(step schemaStep, what string) (stepReport, error) {
	began := time.Now()
	var before, after int64 // rows that the connection has written
	if err := m.one(`SELECT total_changes()`, nil, &before); err != nil {
		return stepReport{}, explainUpgradeError(err)
	}
	err := m.withProgress(what, func() error { return step.run(m) })
	m.part.Store(nil)
	if err == nil {
		err = m.one(`SELECT total_changes()`, nil, &after)
	}
	advice := ""
	if err == nil && step.advice != nil {
		advice, err = step.advice(m)
	}
	var se *sqlite.Error
	switch {
	case errors.As(err, &se) && se.Code() == sqlite3.SQLITE_ERROR:
		return stepReport{}, fmt.Errorf("%s: the database is not as version %d should be, "+
			"so restore a backup or mend it: %w", what, m.from, err)
	case errors.Is(err, errUnexpectedSchema):
		return stepReport{}, fmt.Errorf("%s: %w", what, err)
	case err != nil:
		return stepReport{}, fmt.Errorf("%s: %w", what, explainUpgradeError(err))
	}
	return stepReport{Does: step.does, Rows: after - before, Advice: advice,
		Milliseconds: time.Since(began).Milliseconds()}, nil
}

// timeCheck matches, in normalized SQL, the condition that a column holds a time or a date. Its groups are the
// column, and the beginning of the call that makes a valid value. Versions before 7 lack the modifier '+0 days' at
// the end of the call, without which SQLite 3.40 accepts the 31st of any month.
var timeCheck = lazyPattern(`^\((\w+) IS (strftime\('%Y-%m-%dT%H:%M:%SZ',|date\()\w+(?:,'\+0 days')?\)\)$`)

var oldTimeCheck = lazyPattern(`CHECK\((\w+ IS (?:strftime\('%Y-%m-%dT%H:%M:%SZ',|date\()\w+)\)\)`)

// withPresentTimeChecks returns a normalized declaration with its checks of times and dates as version 7 has them.
func withPresentTimeChecks(text string) string {
	return oldTimeCheck().ReplaceAllString(text, `CHECK($1,'+0 days'))`)
}

// writeDeclarations gives every object in sqlite_schema the text that it has in a new file, comments
// included, without rewriting any row of a table. It does so only if nothing differs but comments,
// white space and the checks of times and dates.
func (m *migration) writeDeclarations() error {
	want, err := declaredSchema(m.schema)
	if err != nil {
		return explainUpgradeError(err)
	}
	have, err := schemaOf(m.queries)
	if err != nil {
		return explainUpgradeError(err)
	}
	for name, object := range have {
		if object.sql != want[name].sql {
			object.sql = withPresentTimeChecks(object.text())
			have[name] = object
		}
	}
	if wrong, extra := compareSchemas(want, have); len(wrong)+len(extra) > 0 {
		return resultError(append(wrong, extra...))
	}
	texts := map[string]string{}
	for name, object := range want {
		texts[name] = object.sql
	}
	return m.setDeclarations(texts)
}

// setDeclarations sets the text of objects in sqlite_schema, by kind and name ("table leads"). No row is rewritten, so
// a table's new declaration must fit the rows that it has: see https://sqlite.org/lang_altertable.html, section 7.
func (m *migration) setDeclarations(texts map[string]string) error {
	encoded, err := json.Marshal(texts)
	if err != nil {
		return err
	}
	var cookie int
	if err := m.one(`PRAGMA schema_version`, nil, &cookie); err != nil {
		return explainUpgradeError(err)
	}
	err = m.exec(`PRAGMA writable_schema = ON`)
	if err == nil {
		err = m.exec(`UPDATE sqlite_schema SET sql = t.value FROM json_each(?) t
			WHERE t.key = sqlite_schema.type || ' ' || sqlite_schema.name`, string(encoded))
	}
	if err == nil { // other connections read the schema again when this number changes, and this one at RESET
		err = m.exec(fmt.Sprintf(`PRAGMA schema_version = %d`, cookie+1))
	}
	return explainUpgradeError(cmp.Or(err, m.exec(`PRAGMA writable_schema = RESET`)))
}

// resultError returns the error of an upgrade that would lead to a database with these faults.
func resultError(faults []string) error {
	return fmt.Errorf("the result would not be as it should, so mend this first: %s", strings.Join(faults, "; "))
}

// checkResult returns an error unless the schema is the one that the steps should lead to and
// no foreign key is broken.
func (m *migration) checkResult() error {
	faults, extra, err := diffSchema(m.queries, m.schema)
	if err != nil {
		return explainUpgradeError(err)
	}
	faults = append(faults, extra...)
	broken, err := m.foreignKeyFaults()
	if err != nil {
		return explainUpgradeError(err)
	}
	if faults = append(faults, broken...); len(faults) > 0 {
		return resultError(faults)
	}
	return nil
}

// rollBack ends a failed upgrade and returns its error: it rolls back and removes the copy, since
// a service that systemd restarts again and again would fill the disk with copies. When it is
// not known whether the transaction was committed, the copy stays and the error wraps
// errMaybeUpgraded.
func (m *migration) rollBack(copied *string, err error) error {
	m.run("ROLLBACK") // fails if SQLite has already rolled back or committed; the version shows which
	var version int
	if unknown := m.one(`PRAGMA user_version`, nil, &version); unknown != nil || version != m.from {
		return fmt.Errorf("%w: %w", errMaybeUpgraded, err)
	}
	if copied != nil {
		err = errors.Join(err, os.Remove(*copied))
	}
	return err
}

// withProgress runs a part of the upgrade that may take long, and calls progress meanwhile.
func (m *migration) withProgress(what string, part func() error) error {
	began, ended := time.Now(), make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		ticker := time.NewTicker(cmp.Or(m.progressInterval, 5*time.Second))
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				if m.progress == nil {
					continue
				}
				part := ""
				if now := m.part.Load(); now != nil {
					part = ", " + *now
				}
				m.progress(fmt.Sprintf("%s%s: %s so far", what, part, time.Since(began).Round(time.Second)))
			}
		}
	})
	defer reporter.Wait()
	defer close(ended)
	return part()
}

// A schemaObject is a table, an index, a view or a trigger.
type schemaObject struct {
	sql     string   // its declaration, as it is in sqlite_schema
	columns []string // of a table
}

// text returns the declaration normalized by normalizeSQL.
func (o schemaObject) text() string { return normalizeSQL(o.sql) }

// schemaOf returns every object of a database's schema by its kind and name, as "table leads",
// except for those that SQLite and Litestream create for themselves.
func schemaOf(q *queries) (map[string]schemaObject, error) {
	objects := map[string]schemaObject{}
	err := q.each(`SELECT s.type || ' ' || s.name, s.sql, coalesce(CASE WHEN s.type = 'table' AND s.rootpage > 0
			THEN (SELECT group_concat(name, char(10)) FROM pragma_table_xinfo(s.name)) END, '')
		FROM sqlite_schema s WHERE s.sql IS NOT NULL
			AND s.name NOT LIKE 'sqlite\_%' ESCAPE '\' AND s.name NOT LIKE '\_litestream%' ESCAPE '\'`, nil,
		func(scan func(...any) error) error {
			var name, declaration, columns string
			err := scan(&name, &declaration, &columns)
			objects[name] = schemaObject{declaration, strings.Split(columns, "\n")}
			return err
		})
	return objects, err
}

var sqlToken = lazyPattern(`(?s)--[^\n]*|/\*.*?(?:\*/|$)|` +
	`'(?:[^']|'')*'|"(?:[^"]|"")*"|[\pL\pN_$]+|\s+|.`)

// sqlWord returns a token that is a name, a keyword or a number, without double quotes around it.
func sqlWord(token string) (word string, ok bool) {
	word = strings.TrimPrefix(strings.TrimSuffix(token, `"`), `"`)
	return word, word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '_' && r != '$'
	})
}

// normalizeSQL returns a statement without comments, without the white space that it doesn't
// need, and without the double quotes that ALTER TABLE … RENAME puts around names. Statements
// that are equal then declare the same.
func normalizeSQL(statement string) string {
	var plain strings.Builder
	afterWord := false
	for _, token := range sqlToken().FindAllString(statement, -1) {
		if strings.HasPrefix(token, "--") || strings.HasPrefix(token, "/*") || strings.TrimSpace(token) == "" {
			continue
		}
		word, isWord := sqlWord(token)
		if isWord {
			token = word
		}
		if isWord && afterWord {
			plain.WriteByte(' ')
		}
		plain.WriteString(token)
		afterWord = isWord
	}
	return plain.String()
}
