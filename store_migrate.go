package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
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

// schemaVersion is the version that schema.sql sets. Until a release has it, whoever changes schema.sql raises it,
// edits the files of releasedSchemas and writes testdata/vN.sql anew.
const schemaVersion = 14

// A releasedSchema is what an upgrade has to know of a schema that a release had.
type releasedSchema struct {
	does  string   // what changes, for people
	fill  string   // file that fills the tables of which more than the names of columns differ, and drops the old ones
	gone  []string // what the present schema has not, as in schemaParts
	parts int      // its tables and columns

	// advice returns what the operator should know or do afterwards, or "". It may be nil.
	advice func(m *migration) (string, error)
}

// releasedSchemas are the schemas that a database can be upgraded from, by version: those of 1.0.0 and 1.1.0.
var releasedSchemas = map[int]releasedSchema{
	1: {
		does: "webhooks, orders, payments, books, applications, plans, and licences as they are now",
		fill: "schema/from1.sql",
		gone: []string{"table item_names", "item_names.widget_id", "item_names.day", "item_names.item",
			"item_counts.quarter", "leads.email_key", "events.license_id", "events.device_id", "events.lead_id",
			"index events_device", "index leads_created", "index leads_email"},
		parts:  132,
		advice: adviseOnTransfers,
	},
	8: {does: "plans, references and offline leases of licences; fulfilment, payment at the door and reasons of orders",
		fill: "schema/from8.sql",
		gone: []string{"trigger orders_payment_changed", "trigger refunds_added", "trigger refunds_changed",
			"trigger disputes_added", "trigger disputes_changed", "revenue_facts.recorded_at", "revenue_sums.facts",
			"books_exports.mapping_at", "table books_renewals", "books_renewals.connection_id",
			"books_renewals.lost_at", "books_renewals.due_at", "index books_renewals_due"},
		parts: 496},
}

// upgradeOptions are the options of one upgrade.
type upgradeOptions struct {
	dryRun bool             // roll back at the end
	noCopy bool             // write no copy of the old database
	now    func() time.Time // for the copy's name; called while nobody else can open the file
	driver string           // for tests that inject faults; "": sqlite
	tell   stepFunc
}

// An upgradeReport says what an upgrade did, or with DryRun what it would do.
type upgradeReport struct {
	From         int          `json:"from"` // versions of the schema
	To           int          `json:"to"`
	DryRun       bool         `json:"dry_run"`
	Steps        []stepReport `json:"steps"` // one, or none if the schema already had this version
	Copy         *string      `json:"copy"`  // path of the copy of the old database; nil: there is none
	Milliseconds int64        `json:"milliseconds"`

	// Values that were carried over although no calendar has such a time or date, the first
	// maxInvalidTimes of them, and how many there are.
	InvalidTimes      []invalidTime `json:"invalid_times"`
	InvalidTimesCount int           `json:"invalid_times_count"`
}

// An invalidTime is a value that the checks of times and dates refuse, and that an old sqlite3 shell could write.
type invalidTime struct {
	Table  string `json:"table"`
	ID     string `json:"id"` // the row's id, or without such a column its primary key
	Column string `json:"column"`
}

// maxInvalidTimes is how many of them a report names.
const maxInvalidTimes = 100

// A stepReport says what an upgrade did to the schema.
type stepReport struct {
	To           int    `json:"to"` // the version that it leads to
	Does         string `json:"does"`
	Rows         int64  `json:"rows"`   // how many it wrote
	Advice       string `json:"advice"` // what to know or do afterwards; "": nothing
	Milliseconds int64  `json:"milliseconds"`
}

// upgradeFile upgrades a database of an earlier release to this program's schema. It writes a checked copy beside it,
// mode 0600, then makes the new tables and fills them in one transaction, so that after an error, a kill or a power
// cut the file has the old schema or the new one. Nobody else can open the file meanwhile. Its errors are one line
// that names the file and the next step; after an error nothing has changed, unless the error wraps
// errMaybeUpgraded.
func upgradeFile(ctx context.Context, path string, o upgradeOptions) (*upgradeReport, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // after the database: see openFile
	m := &migration{upgradeOptions: o, ctx: ctx, path: realPath(path)}
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

// A migration is one upgrade, with the only connection to the file.
type migration struct {
	upgradeOptions
	*queries
	ctx  context.Context // its end interrupts statements, but not COMMIT or ROLLBACK
	path string          // without symbolic links
	from int             // the version to upgrade from
	db   *sql.DB
	conn *sql.Conn
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
	if m.from == schemaVersion {
		m.nameCopies() // of one that was killed after its commit
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
	if m.from == schemaVersion { // another upgrade has done it meanwhile
		return report, nil
	}
	if err := cmp.Or(m.removeDrafts(), m.truncateWAL(), m.checkDiskSpace()); err != nil {
		return nil, err
	}
	if err := m.copyOrCheck(); err != nil {
		return nil, err
	}
	m.tell.step("moving all rows", "", 0)
	if err := m.replaceSchema(report); err != nil {
		return nil, m.rollBack(err)
	}
	report.Copy = m.nameCopies()
	return report, nil
}

func (m *migration) report() *upgradeReport {
	return &upgradeReport{From: m.from, To: schemaVersion, DryRun: m.dryRun, Steps: []stepReport{},
		InvalidTimes: []invalidTime{}}
}

// setFrom sets the version to upgrade from. Errors: errNewerSchema, errNoSchemaVersion, errNotReleased.
func (m *migration) setFrom(version int) error {
	m.from = version
	return versionError(version)
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
		// So tables can be renamed and dropped that others refer to, and what was checked before is not checked for
		// each row; checkResult does that at the end.
		"foreign_keys(0)", "legacy_alter_table(1)", "ignore_check_constraints(1)",
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

// replaceSchema gives the database the present schema and the rows of the old one, in one transaction, and commits
// it if the result is as it should be. It says in report what it has done.
func (m *migration) replaceSchema(report *upgradeReport) error {
	if !m.dryRun {
		var mode string // a restored copy is in another mode
		if err := cmp.Or(removeIdentityFile(m.path), m.one(`PRAGMA journal_mode = WAL`, nil, &mode)); err != nil {
			return explainUpgradeError(err)
		}
	}
	began := time.Now()
	if err := m.run("BEGIN IMMEDIATE"); err != nil {
		return explainUpgradeError(err)
	}
	of := releasedSchemas[m.from]
	step := stepReport{To: schemaVersion, Does: of.does}
	err := m.fill(of)
	if err == nil {
		err = m.checkResult(report)
	}
	if err == nil {
		err = m.one(`SELECT total_changes()`, nil, &step.Rows)
	}
	if err == nil && of.advice != nil {
		step.Advice, err = of.advice(m)
	}
	switch se, ofSQLite := errors.AsType[*sqlite.Error](err); {
	case ofSQLite && se.Code() == sqlite3.SQLITE_ERROR:
		return fmt.Errorf("%w, so restore a backup or mend it: %w", errUnexpectedSchema, err)
	case errors.Is(err, errUnexpectedSchema), errors.Is(err, errUnsound):
		return err
	case cmp.Or(err, m.ctx.Err()) != nil:
		return explainUpgradeError(cmp.Or(err, m.ctx.Err()))
	}
	step.Milliseconds = time.Since(began).Milliseconds()
	report.Steps = append(report.Steps, step)
	if m.dryRun {
		return explainUpgradeError(m.run("ROLLBACK"))
	}
	return explainUpgradeError(m.run("COMMIT"))
}

var (
	errUnexpectedSchema = errors.New("it is not as its version should be")
	errUnsound          = errors.New("it is not sound")
)

// schemaParts returns the parts of a database's schema as "table leads", "leads.email", "index …", "view …" and
// "trigger …", except for those that SQLite and Litestream make for themselves.
func schemaParts(q *queries) ([]string, error) {
	return q.texts(`WITH o AS (SELECT type, name FROM sqlite_schema WHERE sql IS NOT NULL
			AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_litestream%' ESCAPE '\')
		SELECT type || ' ' || name FROM o UNION ALL
		SELECT o.name || '.' || c.name FROM o JOIN pragma_table_info(o.name) c WHERE o.type = 'table'`)
}

// fill renames the tables of a released schema aside, makes the present schema, and moves the rows into it.
func (m *migration) fill(of releasedSchema) error {
	parts, err := m.checkParts(of)
	if err != nil {
		return err
	}
	sequences, err := m.sequences()
	if err != nil {
		return err
	}
	tables := []string{}
	for _, part := range parts {
		kind, name, isObject := strings.Cut(part, " ")
		if kind == "table" {
			tables = append(tables, name)
		} else if isObject {
			err = m.exec(`DROP ` + part)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range tables { // when the rest is gone, since SQLite reads all declarations anew for each
		if err := m.exec(`ALTER TABLE ` + name + ` RENAME TO old_` + name); err != nil {
			return err
		}
	}
	if err := m.exec(schemaSQL()); err != nil {
		return err
	}
	putBack, err := m.takeOff()
	if err == nil {
		err = m.exec(embedded(of.fill))
	}
	for _, table := range tables {
		if err == nil {
			err = m.carryOver(table)
		}
	}
	for _, declaration := range putBack {
		if err == nil {
			err = m.exec(declaration)
		}
	}
	return cmp.Or(err, m.restoreSequences(sequences))
}

// checkParts returns the parts of a database that has the schema of a release. Errors: errUnexpectedSchema, also if
// it has anything in addition, which would be lost.
func (m *migration) checkParts(of releasedSchema) ([]string, error) {
	parts, err := schemaParts(m.queries)
	if err != nil {
		return nil, err
	}
	present, err := declaredParts()
	if err != nil {
		return nil, err
	}
	count := 0
	for _, part := range parts {
		kind, _, isObject := strings.Cut(part, " ")
		if kind == "table" || !isObject {
			count++
		}
		if !slices.Contains(present, part) && !slices.Contains(of.gone, part) {
			return nil, fmt.Errorf("%w, so mend this first: %s is not this program's: drop it",
				errUnexpectedSchema, part)
		}
	}
	if count != of.parts {
		return nil, fmt.Errorf("%w: it has %d tables and columns, and version %d has %d: restore a backup, or mend it",
			errUnexpectedSchema, count, m.from, of.parts)
	}
	return parts, nil
}

// takeOff drops the triggers and indexes of the new tables and returns their declarations: rows that were there are no
// news for triggers, and to make an index in one go is faster.
func (m *migration) takeOff() (declarations []string, err error) {
	taken, err := collect(m.queries, `SELECT type || ' ' || name, sql FROM sqlite_schema
		WHERE type IN ('trigger', 'index') AND sql IS NOT NULL AND name NOT LIKE '\_litestream%' ESCAPE '\'`, nil,
		func(part *[2]string) []any { return []any{&part[0], &part[1]} })
	for _, part := range taken {
		if err == nil {
			err = m.exec(`DROP ` + part[0])
		}
		declarations = append(declarations, part[1])
	}
	return declarations, err
}

// carryOver fills a new table from the old one by the names of its columns, and drops the old one, unless that is gone
// already. Columns that are new have their default.
func (m *migration) carryOver(table string) error {
	columns, err := m.texts(`SELECT name FROM pragma_table_info('old_' || ?1)
		WHERE name IN (SELECT name FROM pragma_table_info(?1))`, table)
	if err != nil || len(columns) == 0 {
		return err
	}
	names := strings.Join(columns, ", ")
	err = m.exec(`INSERT INTO ` + table + ` (` + names + `) SELECT ` + names + ` FROM old_` + table)
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	return m.exec(`DROP TABLE old_` + table)
}

// A sequence is the highest number that an AUTOINCREMENT table has assigned.
type sequence struct {
	table string
	last  int64
}

func (m *migration) sequences() ([]sequence, error) {
	return collect(m.queries, `SELECT name, seq FROM sqlite_sequence`, nil,
		func(s *sequence) []any { return []any{&s.table, &s.last} })
}

// restoreSequences makes AUTOINCREMENT continue where it was, so that no number is assigned twice,
// even if the rows with the highest ones are gone.
func (m *migration) restoreSequences(all []sequence) error {
	for _, s := range all {
		if err := m.exec(`DELETE FROM sqlite_sequence WHERE name = ?`, s.table); err != nil {
			return err
		}
		if err := m.exec(`INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)`, s.table, s.last); err != nil {
			return err
		}
	}
	return nil
}

// checkResult returns an error unless the database has exactly the present schema, and is sound but for times that no
// calendar has, which it names in report. Errors: errUnexpectedSchema, errUnsound.
func (m *migration) checkResult(report *upgradeReport) error {
	faults, extra, err := diffSchema(m.queries)
	if faults = append(faults, extra...); err == nil && len(faults) > 0 {
		err = fmt.Errorf("%w, so mend this first: %s", errUnexpectedSchema, strings.Join(faults, "; "))
	}
	if err != nil {
		return err
	}
	rows, err := m.noteInvalidTimes(report)
	if err != nil {
		return err
	}
	if err := m.exec(`PRAGMA ignore_check_constraints = OFF`); err != nil {
		return err
	}
	all := 0
	for _, n := range rows {
		all += n
	}
	// Indexes were just made. It returns a line for each row that breaks a rule of its table.
	faults, err = m.faultsBy(fmt.Sprintf(`PRAGMA quick_check(%d)`, all+20))
	if err != nil {
		return err
	}
	faults = slices.DeleteFunc(faults, func(fault string) bool {
		table, ofRule := strings.CutPrefix(fault, checkFailed)
		if ofRule {
			rows[table]--
		}
		return ofRule && rows[table] >= 0 // it may be that of an impossible time
	})
	return unsound(faults)
}

// unsound returns errUnsound with faults, nil if there are none.
func unsound(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errUnsound, strings.Join(faults, "; "))
}

// timeRule matches, in a line of schema.sql, a column and its rule that it holds a time or a date that a calendar has.
var timeRule = lazyPattern(`^\s+(\w+) .*CHECK ` +
	`(\(\w+ IS (?:strftime\('%Y-%m-%dT%H:%M:%SZ', |date\()\w+, '\+0 days'\)\))`)

// timeRules returns the rules of schema.sql about times and dates, by table and column.
func timeRules() map[string]map[string]string {
	rules, table := map[string]map[string]string{}, ""
	for line := range strings.Lines(schemaSQL()) {
		if name, ok := strings.CutPrefix(line, "CREATE TABLE "); ok {
			table, _, _ = strings.Cut(name, " ")
			rules[table] = map[string]string{}
		}
		if found := timeRule().FindStringSubmatch(line); found != nil {
			rules[table][found[1]] = found[2]
		}
	}
	return rules
}

// noteInvalidTimes names in report the times that no calendar has, and returns how many rows of each table have any.
func (m *migration) noteInvalidTimes(report *upgradeReport) (rows map[string]int, err error) {
	rows = map[string]int{}
	all := timeRules()
	for _, table := range slices.Sorted(maps.Keys(all)) {
		columns, where := slices.Sorted(maps.Keys(all[table])), "0"
		for _, column := range columns {
			where += " OR NOT " + all[table][column]
		}
		n := 0
		if err := m.one(`SELECT count(*) FROM `+table+` WHERE `+where, nil, &n); err != nil {
			return nil, err
		}
		rows[table] = n
		for i := 0; i < len(columns) && n > 0; i++ {
			if err := m.nameInvalidTimes(report, table, columns[i], "NOT "+all[table][columns[i]]); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

// nameInvalidTimes adds to report the rows of a table for which a condition of a column is true.
func (m *migration) nameInvalidTimes(report *upgradeReport, table, column, condition string) error {
	var id string
	err := m.one(`SELECT coalesce(max(name) FILTER (WHERE name = 'id'), group_concat(name, ' || '' '' || '))
		FROM pragma_table_info(?) WHERE pk > 0 OR name = 'id'`, []any{table}, &id)
	if err != nil {
		return err
	}
	query := `SELECT iif(typeof(id) = 'blob', hex(id), id) FROM (SELECT ` + id + ` AS id FROM ` + table + ` WHERE ` +
		condition + `)`
	return m.each(query, nil, func(scan func(...any) error) error {
		invalid := invalidTime{Table: table, Column: column}
		err := scan(&invalid.ID)
		if report.InvalidTimesCount++; report.InvalidTimesCount <= maxInvalidTimes {
			report.InvalidTimes = append(report.InvalidTimes, invalid)
		}
		return err
	})
}

// rollBack ends a failed upgrade and returns its error: it rolls back and removes the copy, since
// a service that systemd restarts again and again would fill the disk with copies. When it is
// not known whether the transaction was committed, the copy stays and the error wraps
// errMaybeUpgraded.
func (m *migration) rollBack(err error) error {
	m.run("ROLLBACK") // fails if SQLite has already rolled back or committed; the version shows which
	var version int
	if unknown := m.one(`PRAGMA user_version`, nil, &version); unknown != nil || version != m.from {
		return fmt.Errorf("%w: %w", errMaybeUpgraded, err)
	}
	if removed := m.removeDrafts(); removed != nil {
		return errors.Join(err, removed)
	}
	return err
}

// adviseOnTransfers says how many licences limit devices but not transfers. Version 1 made them so by default, later
// ones do not.
func adviseOnTransfers(m *migration) (string, error) {
	var unlimited int64
	err := m.one(`SELECT count(*) FROM licenses
		WHERE max_devices IS NOT NULL AND max_transfers IS NULL AND state <> 'revoked'`, nil, &unlimited)
	if err != nil || unlimited == 0 {
		return "", err
	}
	return transferAdvice(unlimited), nil
}

// transferAdvice says how many licences limit devices but not transfers, and what to do about them.
func transferAdvice(licenses int64) string {
	return fmt.Sprintf("licences with a limit of devices and none of transfers: %d: "+
		"'widgetd license limit-transfers' gives them the default, 'widgetd license set' another", licenses)
}

// registerLeadDigest adds the SQL function that schema/from1.sql calls.
var registerLeadDigest = sync.OnceFunc(func() {
	sqlite.MustRegisterDeterministicScalarFunction("widgetd_lead_digest", 5,
		func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			var parts [5]string
			for i, arg := range args {
				parts[i], _ = arg.(string)
			}
			return oldLeadDigest(parts[0], parts[1], parts[2], parts[3], parts[4]), nil
		})
})

// oldLeadDigest is the digest of a lead of version 1, which had no fields: 8 bytes of the hash
// of the address without case, and 8 of that of everything that was sent.
func oldLeadDigest(accountID, kind, email, source, page string) []byte {
	address, sent := sha256.Sum256([]byte(emailKey(email))), sha256.New()
	for _, part := range []string{accountID, kind, email, source, page, ""} {
		fmt.Fprintf(sent, "%d:%s", len(part), part)
	}
	return append(address[:8:8], sent.Sum(nil)[:8]...)
}

// checkDiskSpace returns an error if the disk has no room for the copy, the new tables and the log through which
// they go. With -no-copy it checks nothing, so that an upgrade can still be tried on a small disk: if the disk gets
// full, everything is rolled back.
func (m *migration) checkDiskSpace() error {
	if m.noCopy {
		return nil
	}
	needed := 3*uint64(fileSize(m.path)) + uint64(fileSize(m.path+"-wal"))
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(m.path), &disk); err != nil {
		return fmt.Errorf("read how much room its disk has: %w", err)
	}
	if free := uint64(disk.Bavail) * uint64(disk.Bsize); free < needed {
		return fmt.Errorf("make room on its disk, or leave the copy out with -no-copy: "+
			"a copy and the upgrade need %d KiB, and %d KiB are free", needed>>10+1, free>>10)
	}
	return nil
}

// truncateWAL moves what was committed from the write-ahead log into the file and truncates the log, to free the
// room that an upgrade that was killed still takes up there.
func (m *migration) truncateWAL() error {
	if m.dryRun {
		return nil
	}
	var busy, pages, moved int
	return explainUpgradeError(m.one(`PRAGMA wal_checkpoint(TRUNCATE)`, nil, &busy, &pages, &moved))
}
