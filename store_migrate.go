package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// schemaVersion is the version that schema.sql sets. Who first changes schema.sql after a release raises it. Every
// change before the next release edits the files of releasedSchemas and writes testdata/vN.sql anew.
const schemaVersion = 13

// A releasedSchema is what an upgrade has to know of a schema that a release had.
type releasedSchema struct {
	does  string   // what changes, for people
	fill  string   // file that fills the tables of which more than the names of columns differ
	gone  []string // what the present schema has not, as in schemaParts
	parts int      // its tables and columns

	// advice returns what the operator should know or do afterwards, or "". It may be nil.
	advice func(q *queries) (string, error)
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
	dryRun bool             // remove the new file at the end
	noCopy bool             // keep no copy of the old database
	now    func() time.Time // for the names of files; called while nobody else can open the file
	driver string           // for tests that inject faults; "": sqlite
	tell   stepFunc
}

// An upgradeReport says what an upgrade did, or with DryRun what it would do.
type upgradeReport struct {
	From         int          `json:"from"` // versions of the schema
	To           int          `json:"to"`
	DryRun       bool         `json:"dry_run"`
	Steps        []stepReport `json:"steps"` // one, or none if the schema already had this version
	Copy         *string      `json:"copy"`  // path where the old database is now; nil: nowhere
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

// upgradeFile upgrades a database of an earlier release to this program's schema. It makes a new file beside it, with
// the rows of the old one, checks it, and gives it the old one's place, which stays as a copy: so after an error, a
// kill or a power cut the file is the old one or the new one. Nobody else can open the old one meanwhile. Its errors
// are one line that names the file and the next step; after an error nothing has changed, unless the error wraps
// errMaybeUpgraded.
func upgradeFile(ctx context.Context, path string, o upgradeOptions) (*upgradeReport, error) {
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // after the database: see openFile
	m := &migration{upgradeOptions: o, ctx: ctx, path: realPath(path)}
	defer m.close()
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

// A migration is one upgrade.
type migration struct {
	upgradeOptions
	ctx   context.Context
	path  string      // without symbolic links
	was   os.FileInfo // of the old file
	from  int         // the version to upgrade from
	old   *onlyConn
	draft *os.File  // the new file; nil: not yet made
	new   *onlyConn // to it, while it is made
}

// An onlyConn is the only connection to a file. Without one its methods do nothing.
type onlyConn struct {
	*queries
	ctx  context.Context // its end interrupts statements of exec
	db   *sql.DB
	conn *sql.Conn
}

// connect opens a file with pragmas.
func (m *migration) connect(path string, pragmas ...string) (*onlyConn, error) {
	pragmas = append([]string{"busy_timeout(500)", "trusted_schema(0)", "foreign_keys(0)"}, pragmas...)
	db, err := sql.Open(cmp.Or(m.driver, "sqlite"),
		fileURL(path)+"?"+url.Values{"mode": {"rw"}, "_pragma": pragmas}.Encode())
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, errors.Join(storageError(err), db.Close())
	}
	return &onlyConn{queries: newQueries(conn.PrepareContext), ctx: m.ctx, db: db, conn: conn}, nil
}

// exec runs one or more statements.
func (c *onlyConn) exec(query string, args ...any) error {
	_, err := c.conn.ExecContext(c.ctx, query, args...)
	return cmp.Or(c.ctx.Err(), storageError(err))
}

// execAll runs statements one after the other, until one fails.
func (c *onlyConn) execAll(queries ...string) (err error) {
	for _, query := range queries {
		if err == nil {
			err = c.exec(query)
		}
	}
	return err
}

// close closes the connection. An error could only be about a checkpoint.
func (c *onlyConn) close() {
	if c != nil {
		c.queries.close()
		c.conn.Close()
		c.db.Close()
	}
}

// close closes both files, and removes a new one that did not get its place.
func (m *migration) close() {
	m.new.close()
	m.old.close()
	if m.draft != nil {
		m.draft.Close()
		os.Remove(m.draft.Name())
	}
}

// explainUpgradeError puts the next step before the text of an error.
func explainUpgradeError(err error) error {
	switch {
	case err == nil, errors.Is(err, errUnexpectedSchema), errors.Is(err, errUnsound), errors.Is(err, errMaybeUpgraded):
		return err
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("it was stopped, so run it again: %w", err)
	case errors.Is(err, errBusy):
		return errors.New("another process has it open: stop the service, end whatever else reads it, " +
			"as Litestream and the sqlite3 shell, and run this again")
	}
	return fmt.Errorf("%s: %w", openHint(err), err)
}

// upgrade is upgradeFile, once the header of the file has been checked.
func (m *migration) upgrade(file *os.File) (report *upgradeReport, err error) {
	version := 0
	if m.was, err = file.Stat(); err == nil {
		version, err = fileVersion(m.path, file)
	}
	if err == nil {
		err = m.setFrom(version)
	}
	if err != nil {
		return nil, explainUpgradeError(err)
	}
	if m.from == schemaVersion {
		return m.report(), nil
	}
	if err := errors.Join(checkWAL(m.path), checkWritable(m.path)); err != nil {
		return nil, err
	}
	registerLeadDigest() // before lockExclusively opens the connection that uses it
	if err := m.lockExclusively(); err != nil {
		return nil, explainUpgradeError(err)
	}
	report = m.report()
	if m.from == schemaVersion { // another upgrade has done it meanwhile
		return report, nil
	}
	for _, step := range []func() error{m.removeLeftovers, m.checkDiskSpace, m.checkPages, m.openDraft} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if err := m.makeNew(report); err != nil {
		return nil, explainUpgradeError(cmp.Or(m.ctx.Err(), err))
	}
	report.Steps[0].Milliseconds = time.Since(began).Milliseconds()
	if m.dryRun {
		return report, nil
	}
	report.Copy, err = m.place()
	return report, err
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

// lockExclusively opens the database with an EXCLUSIVE lock that lasts until it is closed. A
// process that has a database in WAL mode open holds SQLite's SHARED lock on the file all the
// time, also between transactions. So the EXCLUSIVE lock, which after locking_mode=EXCLUSIVE the
// next transaction takes and keeps, is refused while any other process has the file open; once it
// is held, any other process that opens the file gets SQLITE_BUSY.
func (m *migration) lockExclusively() (err error) {
	// The rows of the new file are judged once, when they all are in it: by checkResult.
	if m.old, err = m.connect(m.path, "synchronous(FULL)", "ignore_check_constraints(1)"); err != nil {
		return err
	}
	var version int
	var mode string
	if err := m.old.one(`PRAGMA locking_mode = EXCLUSIVE`, nil, &mode); err != nil {
		return err
	}
	if err := m.old.run("BEGIN EXCLUSIVE"); err != nil {
		return err
	}
	err = m.old.one(`PRAGMA user_version`, nil, &version)
	if err := cmp.Or(err, m.old.run("ROLLBACK")); err != nil { // the lock stays
		return err
	}
	return m.setFrom(version)
}

// makeNew makes the new file, with the present schema and the rows of the old one, and checks it. It says in report
// what it has done. Without a journal or a sync it is written fast, and worth nothing until it is whole.
func (m *migration) makeNew(report *upgradeReport) (err error) {
	of := releasedSchemas[m.from]
	parts, err := releasedParts(m.old.queries, m.from)
	if err != nil {
		return err
	}
	m.tell.step("moving all rows", m.draft.Name(), fileSize(m.path))
	// Its cache is as much as is sorted in memory for an index; rows come in the order of their tables.
	m.new, err = m.connect(m.draft.Name(), "journal_mode(OFF)", "synchronous(OFF)", "cache_size(-5000)")
	if err != nil {
		return err
	}
	if err = m.new.execAll("BEGIN", schemaSQL(), "COMMIT"); err != nil {
		return err
	}
	putBack, err := m.dropTriggersAndIndexes()
	if err == nil {
		err = m.copyRows(of, parts)
	}
	if err == nil {
		err = m.new.execAll(slices.Concat([]string{"BEGIN"}, putBack, []string{"COMMIT"})...)
	}
	if err == nil {
		m.tell.step("checking the new file", "", 0)
		err = m.checkResult(report)
	}
	step := stepReport{To: schemaVersion, Does: of.does}
	if err == nil {
		err = m.old.one(`SELECT total_changes()`, nil, &step.Rows)
	}
	if err == nil && of.advice != nil {
		step.Advice, err = of.advice(m.new.queries)
	}
	if se, ofSQLite := errors.AsType[*sqlite.Error](err); ofSQLite && se.Code() == sqlite3.SQLITE_ERROR {
		err = fmt.Errorf("%w, so restore a backup or mend it: %w", errUnexpectedSchema, err)
	}
	report.Steps = append(report.Steps, step)
	return err
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

// releasedParts returns the parts of a database that has the schema of a release. Errors: errUnexpectedSchema, also if
// it has anything in addition, which would be lost.
func releasedParts(q *queries, version int) ([]string, error) {
	of := releasedSchemas[version]
	parts, err := schemaParts(q)
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
			errUnexpectedSchema, count, version, of.parts)
	}
	return parts, nil
}

// dropTriggersAndIndexes drops the triggers and indexes of the new file and returns their declarations: rows that
// were there are no news for triggers, and to make an index in one go is faster.
func (m *migration) dropTriggersAndIndexes() (declarations []string, err error) {
	const all = ` FROM sqlite_schema WHERE type IN ('trigger', 'index') AND sql IS NOT NULL`
	declarations, err = m.new.texts(`SELECT sql` + all)
	if err != nil {
		return nil, err
	}
	drops, err := m.new.texts(`SELECT 'DROP ' || type || ' ' || name` + all)
	if err != nil {
		return nil, err
	}
	return declarations, m.new.execAll(drops...)
}

// filledTable matches the tables that a file of releasedSchemas fills.
var filledTable = lazyPattern(`(?m)^INSERT INTO new\.(\w+)`)

// copyRows fills the new tables from the old ones: by the names of their columns, where the file of the release does
// not. Columns that are new have their default.
func (m *migration) copyRows(of releasedSchema, parts []string) error {
	fill, others := embedded(of.fill), map[string]bool{}
	for _, found := range filledTable().FindAllStringSubmatch(fill, -1) {
		others[found[1]] = true
	}
	err := m.old.exec(`ATTACH ? AS new`, fileURL(m.draft.Name())+"?mode=rw")
	if err == nil {
		err = m.old.execAll(`PRAGMA new.journal_mode = OFF`, `PRAGMA new.synchronous = OFF`, "BEGIN")
	}
	for _, part := range parts {
		if table, ok := strings.CutPrefix(part, "table "); ok && !others[table] && err == nil {
			err = m.copyTable(table)
		}
	}
	if err != nil {
		return err
	}
	return m.old.execAll(fill,
		// so that no number is assigned twice, even if the rows with the highest ones are gone
		`DELETE FROM new.sqlite_sequence WHERE name IN (SELECT name FROM sqlite_sequence)`,
		`INSERT INTO new.sqlite_sequence SELECT * FROM sqlite_sequence`, "COMMIT", "DETACH new")
}

// copyTable fills a new table from the old one by the names of its columns.
func (m *migration) copyTable(table string) error {
	columns, err := m.old.texts(`SELECT name FROM pragma_table_info(?1, 'main')
		WHERE name IN (SELECT name FROM pragma_table_info(?1, 'new'))`, table)
	if err != nil || len(columns) == 0 {
		return err
	}
	names := strings.Join(columns, ", ")
	err = m.old.exec(`INSERT INTO new.` + table + ` (` + names + `) SELECT ` + names + ` FROM ` + table)
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	return nil
}

// checkPages returns an error unless the pages of the old file are sound, so that a damaged one is never upgraded. Its
// rows are judged in the new one.
func (m *migration) checkPages() error {
	faults, err := m.old.integrityFaults(`PRAGMA quick_check(20)`)
	if err == nil {
		err = unsound(faults)
	}
	return explainUpgradeError(err)
}

// checkResult returns an error unless the new file has exactly the present schema, and is sound but for times that no
// calendar has, which it names in report. It is the one judge of the rows. Errors: errUnexpectedSchema, errUnsound.
func (m *migration) checkResult(report *upgradeReport) error {
	faults, extra, err := diffSchema(m.new.queries)
	if faults = append(faults, extra...); err == nil && len(faults) > 0 {
		err = fmt.Errorf("%w, so mend this first: %s", errUnexpectedSchema, strings.Join(faults, "; "))
	}
	if err != nil {
		return err
	}
	// Indexes were just made. It returns a line for each row that breaks a rule of its table.
	broken := map[string]int{} // how many rows, by table
	err = m.new.each(`PRAGMA quick_check(2147483647)`, nil, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		if table, ofRule := strings.CutPrefix("integrity: "+line, checkFailed); ofRule {
			broken[table]++
		} else if line != "ok" && len(faults) < shownOfTable {
			faults = append(faults, "integrity: "+line)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("integrity: %w", err)
	}
	for _, table := range slices.Sorted(maps.Keys(broken)) {
		invalid, err := m.noteInvalidTimes(report, table)
		if err != nil {
			return err
		}
		if broken[table] > invalid {
			faults = append(faults, checkFailed+table)
		}
	}
	keys, err := m.new.brokenKeys()
	if err != nil {
		return err
	}
	return unsound(append(faults, keys...))
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

// noteInvalidTimes names in report the times of a table that no calendar has, and returns how many rows have any.
func (m *migration) noteInvalidTimes(report *upgradeReport, table string) (rows int, err error) {
	rules := timeRules()[table]
	columns, where := slices.Sorted(maps.Keys(rules)), "0"
	for _, column := range columns {
		where += " OR NOT " + rules[column]
	}
	err = m.new.one(`SELECT count(*) FROM `+table+` WHERE `+where, nil, &rows)
	for i := 0; i < len(columns) && rows > 0 && err == nil; i++ {
		err = m.nameInvalidTimes(report, table, columns[i], "NOT "+rules[columns[i]])
	}
	return rows, err
}

// nameInvalidTimes adds to report the rows of a table for which a condition of a column is true.
func (m *migration) nameInvalidTimes(report *upgradeReport, table, column, condition string) error {
	var id string
	err := m.new.one(`SELECT coalesce(max(name) FILTER (WHERE name = 'id'), group_concat(name, ' || '' '' || '))
		FROM pragma_table_info(?) WHERE pk > 0 OR name = 'id'`, []any{table}, &id)
	if err != nil {
		return err
	}
	query := `SELECT iif(typeof(id) = 'blob', hex(id), id) FROM (SELECT ` + id + ` AS id FROM ` + table + ` WHERE ` +
		condition + `)`
	return m.new.each(query, nil, func(scan func(...any) error) error {
		invalid := invalidTime{Table: table, Column: column}
		err := scan(&invalid.ID)
		if report.InvalidTimesCount++; report.InvalidTimesCount <= maxInvalidTimes {
			report.InvalidTimes = append(report.InvalidTimes, invalid)
		}
		return err
	})
}

// unlimitedTransfers is the SQL condition for licences that limit devices but not transfers, and are not revoked.
const unlimitedTransfers = `max_devices IS NOT NULL AND max_transfers IS NULL AND state <> 'revoked'`

// adviseOnTransfers says how many licences limit devices but not transfers. Version 1 made them so by default, later
// ones do not.
func adviseOnTransfers(q *queries) (string, error) {
	unlimited, err := oneValue[int64](q, `SELECT count(*) FROM licenses WHERE `+unlimitedTransfers)
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

// This file has the files beside a database that upgrades make: the draft of the new one, whose name ends in .new, and
// the old one, which keeps a name of its own when the new one takes its place.

// What follows the database's name in the name of a copy, as in
// widgetd.db.v1-2027-01-31T120000Z, and in the name of a draft, which ends in .new.
var (
	copySuffix  = lazyPattern(`^\.v\d+-`)
	draftSuffix = lazyPattern(`^\.v\d+-\d{4}-\d\d-\d\dT\d{6}Z(-\d+)?\.new(-journal)?$`)
)

// upgradeCopies returns the paths of the copies that upgrades left of a database, drafts
// included, sorted. They still hold personal data that was erased since.
func upgradeCopies(path string) []string { return filesBeside(realPath(path), copySuffix()) }

// filesBeside returns the files in the directory of path whose name is that of path followed by a
// suffix that matches.
func filesBeside(path string, suffix *regexp.Regexp) (files []string) {
	entries, _ := os.ReadDir(filepath.Dir(path)) // where this program can't read, it has written none
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), filepath.Base(path))
		if ok && suffix.MatchString(rest) {
			files = append(files, filepath.Join(filepath.Dir(path), entry.Name()))
		}
	}
	return files
}

// nameBeside returns the path of a file that the upgrade makes beside the database, for one of this version.
func (m *migration) nameBeside(version int) string {
	return fmt.Sprintf("%s.v%d-%s", m.path, version, m.now().UTC().Format("2006-01-02T150405Z"))
}

// openDraft makes the file that is to be the new database.
func (m *migration) openDraft() (err error) {
	m.draft, err = os.OpenFile(m.nameBeside(schemaVersion)+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		m.draft = nil // nothing to remove
		return fmt.Errorf("make the new file: %w", err)
	}
	return nil
}

// removeLeftovers removes what upgrades that were killed have left: drafts, and second names of the database itself.
// While this one holds the lock, no other is making one.
func (m *migration) removeLeftovers() error {
	if m.dryRun {
		return nil
	}
	for _, name := range upgradeCopies(m.path) {
		if isDraft := draftSuffix().MatchString(strings.TrimPrefix(name, m.path)); !isDraft && !m.isOld(name) {
			continue
		}
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("remove what is left of an earlier upgrade: %w", err)
		}
	}
	return nil
}

// isOld reports whether a path leads to the old file.
func (m *migration) isOld(path string) bool {
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(m.was, now)
}

// checkDiskSpace returns an error if the disk has no room for the new file and for what is sorted for its indexes.
// With -no-copy it checks nothing, so that an upgrade can still be tried on a small disk: if the disk gets full, the
// new file is removed.
func (m *migration) checkDiskSpace() error {
	if m.noCopy {
		return nil
	}
	needed := 2 * uint64(fileSize(m.path)+fileSize(m.path+"-wal"))
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(m.path), &disk); err != nil {
		return fmt.Errorf("read how much room its disk has: %w", err)
	}
	if free := uint64(disk.Bavail) * uint64(disk.Bsize); free < needed {
		return fmt.Errorf("make room on its disk, or try it all the same with -no-copy: "+
			"the new file needs up to %d KiB, and %d KiB are free", needed>>10+1, free>>10)
	}
	return nil
}

// place gives the new file the place of the old one, which keeps a name of its own as a copy, whose path it returns.
// Until the new file has that place, all is as it was.
func (m *migration) place() (copied *string, err error) {
	m.new.close()
	m.new = nil
	dir, name := filepath.Dir(m.path), m.nameBeside(m.from)
	err = errors.Join(checkMade(m.draft), copyOwnerAndMode(m.draft, m.was), m.draft.Sync())
	if err == nil && !m.isOld(m.path) {
		err = errors.New("somebody has replaced it meanwhile")
	}
	if err == nil {
		err = m.endWAL()
	}
	if err == nil {
		err = removeIdentityFile(m.path) // that of the new file is another
	}
	if err == nil && !m.noCopy {
		copied, err = &name, os.Link(m.path, name)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err == nil {
		err = os.Rename(m.draft.Name(), m.path)
	}
	if err != nil {
		if m.isOld(name) {
			os.Remove(name)
		}
		return nil, fmt.Errorf("put the new file in its place: %w", err)
	}
	if copied != nil {
		err = os.Chmod(name, 0o600) // whoever else was given the database was not given this
	}
	if err := errors.Join(err, syncDir(dir)); err != nil {
		return nil, fmt.Errorf("%w: %w", errMaybeUpgraded, err)
	}
	return copied, nil
}

// endWAL moves what was committed from the write-ahead log into the old file, and makes SQLite keep no log of it any
// more: beside the new file it would be taken for that one's. A program that had opened the old file before, and waits
// for the lock, begins none either: without a log SQLite lets nobody write to a file that has another name than it had.
func (m *migration) endWAL() error {
	mode, err := oneValue[string](m.old.queries, `PRAGMA journal_mode = DELETE`)
	if err == nil && (mode != "delete" || fileExists(m.path+"-wal")) {
		err = errors.New("its write-ahead log stays")
	}
	if err == nil { // the journal of that change is left, since nobody else could have needed it
		err = except(os.Remove(m.path+"-journal"), fs.ErrNotExist)
	}
	return err
}
