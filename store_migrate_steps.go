package main

import (
	"cmp"
	"crypto/sha256"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"modernc.org/sqlite"
)

// schemaVersion is the version that schema.sql sets, to which schemaSteps lead.
const schemaVersion = 12

// A schemaStep takes a database from one version of the schema to the next.
type schemaStep struct {
	does string // what it changes, for people
	run  func(m *migration) error

	// advice returns what the operator should know or do afterwards, or "". It may be nil.
	advice func(m *migration) (string, error)
}

// schemaSteps[n-1] takes a database from version n to version n+1. Whoever changes
// schema.sql adds a step at the end, raises schemaVersion by one and adds
// testdata/vN.sql. A step that has landed is never edited: files that it made are in
// use.
var schemaSteps = []schemaStep{
	{does: "tables that are ordered by their ids, counted seats, items by day, customers and " +
		"fields of leads", run: upgradeToV2, advice: adviseOnV2},
	{does: "tables of webhooks, and of the pages that widgets are on", run: declares("schema/v3.sql")},
	{does: "tables of orders and payments", run: declares("schema/v4.sql")},
	{does: "tables of revenue days and books", run: declares("schema/v5.sql")},
	{does: "tables of applications and of what accounts have agreed to", run: declares("schema/v6.sql")},
	{does: "tables of the time that the service saw last, and of tokens of books that could not be replaced",
		run: declares("schema/v7.sql")},
	{does: "indexes of the types of events and leads, and the view of tokens", run: declares("schema/v8.sql")},
	{does: "fulfilment, payment at the door and reasons of orders, TWINT, refunds by account", run: upgradeToV9},
	{does: "plans, references and offline leases of licences; accounts that issue them", run: upgradeToV10},
	{does: "a table of the epoch that promoting a standby begins", run: declares("schema/v11.sql")},
	{does: "what a second audit of orders, payments and books found", run: upgradeToV12},
}

// declares returns the run of a step that only executes the statements of a file. schema/vN.sql has what version N
// declares in addition to the version before it; those of versions 1 and 2 have the whole schema of their version.
func declares(file string) func(*migration) error {
	return func(m *migration) error { return m.exec(embedded(file)) }
}

// graceEndV2 is SQL for the end of a licence's grace, written as in an index that both versions have.
const graceEndV2 = `strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, grace_days || ' days')`

// countsUntilV2 is SQL for the time until which the fingerprint of a device of version 1 counts: the
// end of its last lease, and at least 30 days after it left a node-locked licence.
const countsUntilV2 = `nullif(max(coalesce(lease_expires_at, ''), CASE
	WHEN state <> 'active' AND released_at IS NOT NULL
	AND (SELECT kind FROM licenses l WHERE l.id = license_id) = 'node_locked'
	THEN strftime('%Y-%m-%dT%H:%M:%SZ', released_at, '30 days') ELSE '' END), '')`

// seatTakenAwayV2 is SQL for whether somebody else took away the seat of a device of version 1; if so,
// its tokens have ended.
const seatTakenAwayV2 = `state = 'blocked' OR state = 'released'
	AND released_by IN ('replacement', 'portal', 'operator')`

// upgradeToV2 rebuilds the tables of version 1 whose declaration has changed.
func upgradeToV2(m *migration) error {
	if err := m.requireSchema(embedded("schema/v1.sql")); err != nil {
		return err
	}
	// Every name in it that was counted is in item_counts too, under its day.
	if err := m.drop(`TABLE item_names`, false); err != nil {
		return err
	}
	return m.rebuild(embedded("schema/v2.sql"), map[string]tableSource{
		"leads": {erase: true, columns: map[string]string{
			"seq":    "rowid",
			"fields": "NULL",
			"digest": "widgetd_lead_digest(account_id, type, email, coalesce(source, ''), coalesce(page, ''))",
		}},
		"licenses": {columns: map[string]string{
			"customer": "NULL", "seat_limit_noted_at": "NULL", "transfer_limit_noted_at": "NULL",
			"tokens_end_at": "NULL",
			"expiring_noted": "CASE WHEN grace_noted IS expires_at OR expired_noted IS " + graceEndV2 +
				" THEN expires_at END",
		}},
		"events": {columns: map[string]string{
			"subject_id": "coalesce(license_id, lead_id, '')",
			"data":       "CASE WHEN device_id IS NULL THEN data ELSE json_set(data, '$.device_id', device_id) END",
		}},
		"item_counts": {query: `SELECT widget_id, substr(quarter, 1, 10), item, sum(clicks), sum(orders)
			FROM old_item_counts GROUP BY 1, 2, 3`},
		// Ordered by its key: in any other order each row would go to a page far from the last one.
		"license_keys": {query: `SELECT * FROM old_license_keys ORDER BY hash`},
		"devices": {columns: map[string]string{
			"counts_until":  countsUntilV2,
			"ended_seq":     "iif(" + seatTakenAwayV2 + ", max(lease_seq, presented_seq), 0)",
			"tokens_end_at": "iif(" + seatTakenAwayV2 + ", released_at, NULL)",
		}},
		"license_seats": {query: `SELECT license_id, count(*) FILTER (WHERE state = 'active'), count(*) FROM devices
			WHERE state = 'active' OR counts_until IS NOT NULL GROUP BY license_id`},
	})
}

// adviseOnV2 says how many licences limit devices but not transfers. Version 1 made them so by default,
// version 2 does not.
func adviseOnV2(m *migration) (string, error) {
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

// registerLeadDigest adds the SQL function that the step to version 2 calls.
var registerLeadDigest = sync.OnceFunc(func() {
	sqlite.MustRegisterDeterministicScalarFunction("widgetd_lead_digest", 5,
		func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			var parts [5]string
			for i, arg := range args {
				parts[i], _ = arg.(string)
			}
			return leadDigestV2(parts[0], parts[1], parts[2], parts[3], parts[4]), nil
		})
})

// leadDigestV2 is the digest of a lead of version 1, which had no fields: 8 bytes of the hash
// of the address in lower case, and 8 of that of everything that was sent.
func leadDigestV2(accountID, kind, email, source, page string) []byte {
	address, sent := sha256.Sum256([]byte(strings.ToLower(email))), sha256.New()
	for _, part := range []string{accountID, kind, email, source, page, ""} {
		fmt.Fprintf(sent, "%d:%s", len(part), part)
	}
	return append(address[:8:8], sent.Sum(nil)[:8]...)
}

// redeclare executes the CREATE statements of a file. A table that exists keeps its rows and gets the declaration
// without their being rewritten, so it must begin with the columns that the table has, and what it adds must be null
// or have a constant default; a view or trigger that exists is replaced. In the tables that are named as widened,
// checks of earlier columns may differ, too.
func (m *migration) redeclare(file string, widened ...string) error {
	have, err := schemaOf(m.queries)
	if err != nil {
		return err
	}
	var others []declaration
	tables := map[string]string{}
	for _, d := range splitStatements(embedded(file)) {
		object := d.kind + " " + d.name
		old, exists := have[object]
		switch {
		case d.kind == "table" && exists:
			if err := m.requireSameColumns(d, old); err != nil {
				return err
			}
			was := withPresentTimeChecks(old.text())
			was = was[:strings.LastIndex(was, ")")]
			if !slices.Contains(widened, d.name) && !strings.HasPrefix(normalizeSQL(d.text), was) {
				return fmt.Errorf("%w, so mend this first: schema: table %s is not as this program makes it",
					errUnexpectedSchema, d.name)
			}
			tables[object] = d.text
			continue
		case exists:
			if err := m.drop(d.kind+" "+d.name, false); err != nil {
				return err
			}
		}
		others = append(others, d)
	}
	if err := m.setDeclarations(tables); err != nil {
		return err
	}
	for _, d := range others {
		if err := m.exec(d.text); err != nil {
			return err
		}
	}
	return nil
}

// requireSameColumns returns errUnexpectedSchema unless a declaration begins with the columns of the old table.
func (m *migration) requireSameColumns(d declaration, old schemaObject) error {
	declared, err := declaredSchema(d.text)
	if err != nil {
		return err
	}
	columns := declared["table "+d.name].columns
	if n := len(old.columns); n > len(columns) || !slices.Equal(columns[:n], old.columns) {
		return fmt.Errorf("%w, so mend this first: table %s has the columns %s", errUnexpectedSchema, d.name,
			strings.Join(old.columns, ", "))
	}
	return nil
}

// upgradeToV9 sets the account of every refund, and what a dispute of an earlier version counted as taken.
func upgradeToV9(m *migration) error {
	if err := m.redeclare("schema/v9.sql", "orders", "payments", "disputes", "revenue_facts"); err != nil {
		return err
	}
	return m.exec(`UPDATE refunds SET account_id = (SELECT account_id FROM orders o WHERE o.id = refunds.order_id);
		UPDATE disputes SET taken = amount WHERE state IN ('open', 'lost')`)
}

func upgradeToV10(m *migration) error { return m.redeclare("schema/v10.sql") }

// upgradeToV12 adds the columns that the rules of the second audit read.
func upgradeToV12(m *migration) error {
	if err := m.redeclare("schema/v12.sql"); err != nil {
		return err
	}
	return m.exec(`UPDATE refunds SET released_amount = amount WHERE released = 1`)
}

// A tableSource says where the rows of a rebuilt table come from, if not from the table of
// the same name with the same columns.
type tableSource struct {
	query   string            // selects the rows; "": all rows of the old table of the same name
	columns map[string]string // by column: SQL over the old table for one that it lacks or had differently
	erase   bool              // overwrite what the old table and its indexes leave in free pages
}

// copiedAtOnce is how many rows of a table one statement copies, so that progress can be told.
const copiedAtOnce = 10_000

var errUnexpectedSchema = errors.New("it is not as its version should be")

// requireSchema refuses a database whose schema is not the one that declarations make, or that has
// anything in addition, which a rebuild would lose.
func (m *migration) requireSchema(declarations string) error {
	faults, extra, err := diffSchema(m.queries, declarations)
	if faults = append(faults, extra...); err == nil && len(faults) > 0 {
		err = fmt.Errorf("%w, so mend this first: %s", errUnexpectedSchema, strings.Join(faults, "; "))
	}
	return err
}

// rebuild changes the schema to declarations, the text of a whole schema. Tables whose declaration
// differs from the old one are created anew and filled with their old rows; sources says where these
// come from, unless every column is as it was.
func (m *migration) rebuild(declarations string, sources map[string]tableSource) error {
	old, err := schemaOf(m.queries)
	if err != nil {
		return err
	}
	var tables, others []declaration // tables that change; indexes, views and triggers
	changed := map[string]bool{}
	for _, d := range splitStatements(declarations) {
		switch {
		case d.kind != "table":
			others = append(others, d)
		case old["table "+d.name].text() != normalizeSQL(d.text):
			tables = append(tables, d)
			changed[d.name] = true
		}
	}
	kept, err := m.dropObjects(changed, sources)
	if err != nil {
		return err
	}
	sequences, err := m.sequences()
	if err != nil {
		return err
	}
	if err := m.exec(`PRAGMA ignore_check_constraints = ON`); err != nil { // what is copied was checked before
		return err
	}
	if err := m.rebuildTables(tables, others, old, sources); err != nil {
		return err
	}
	if err := m.exec(`PRAGMA ignore_check_constraints = OFF`); err != nil {
		return err
	}
	for _, d := range others {
		if kept[d.kind+" "+d.name] || d.isPartialIndexOf(changed) {
			continue
		}
		m.setPart("making " + d.kind + " " + d.name)
		if err := m.exec(d.text); err != nil {
			return err
		}
	}
	return m.restoreSequences(sequences)
}

// rebuildTables creates tables anew and fills them. An old table is renamed to old_NAME, and dropped
// when its rows are copied, which makes room for the next. Partial indexes, which have few rows, are
// created before the table is filled, since creating them later would read the whole table; rebuild
// creates all others afterwards, each in one go.
func (m *migration) rebuildTables(
	tables, others []declaration, old map[string]schemaObject, sources map[string]tableSource,
) error {
	for _, d := range tables {
		_, existed := old["table "+d.name]
		if existed {
			if err := m.exec(`ALTER TABLE ` + d.name + ` RENAME TO old_` + d.name); err != nil {
				return err
			}
		}
		err := m.exec(d.text)
		for _, index := range others {
			if err == nil && index.isPartialIndexOf(map[string]bool{d.name: true}) {
				err = m.exec(index.text)
			}
		}
		if err != nil {
			return err
		}
		source := sources[d.name]
		m.setPart("copying " + d.name)
		switch {
		case err != nil:
		case source.query != "":
			err = m.exec(`INSERT INTO ` + d.name + ` ` + source.query)
		case existed:
			err = m.copyTable(d.name, source.columns)
		}
		if existed && err == nil {
			m.setPart("removing what was copied of " + d.name)
			err = m.drop(`TABLE old_`+d.name, source.erase)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}

// drop drops a table or another object. Only with erase does it overwrite the pages that the object
// had, because that takes as long as copying them.
func (m *migration) drop(object string, erase bool) error {
	statements := `DROP ` + object + `; PRAGMA secure_delete = ON`
	if !erase {
		statements = `PRAGMA secure_delete = OFF; ` + statements
	}
	return m.exec(statements)
}

// setPart says what a step is about to do, for those who are told of its progress.
func (m *migration) setPart(part string) { m.part.Store(&part) }

// dropObjects drops every view and trigger, and the indexes of tables that are made anew. It
// returns the indexes that stay, as "index NAME".
func (m *migration) dropObjects(
	changed map[string]bool, sources map[string]tableSource,
) (kept map[string]bool, err error) {
	type object struct{ kind, name, table string }
	objects, err := collect(m.queries, `SELECT type, name, tbl_name FROM sqlite_schema
		WHERE type <> 'table' AND sql IS NOT NULL`, nil,
		func(o *object) []any { return []any{&o.kind, &o.name, &o.table} })
	if err != nil {
		return nil, err
	}
	kept = map[string]bool{}
	for _, o := range objects {
		if o.kind == "index" && !changed[o.table] {
			kept["index "+o.name] = true
			continue
		}
		if err := m.drop(o.kind+` `+o.name, sources[o.table].erase); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// copyTable fills a new table from the old one, which must have rowids, in their order and in
// parts of copiedAtOnce rows. values has SQL for the columns that are not simply copied.
func (m *migration) copyTable(name string, values map[string]string) error {
	columns, err := m.texts(`SELECT name FROM pragma_table_info(?)`, name)
	if err != nil {
		return err
	}
	from := `old_` + name
	taken := make([]string, len(columns))
	for i, column := range columns {
		taken[i] = cmp.Or(values[column], column)
	}
	insert := `INSERT INTO ` + name + ` (` + strings.Join(columns, ", ") + `)
		SELECT ` + strings.Join(taken, ", ") + ` FROM ` + from + ` WHERE rowid > ? AND rowid <= ? ORDER BY rowid`
	var rows, copied int64
	if err := m.one(`SELECT count(*) FROM `+from, nil, &rows); err != nil {
		return err
	}
	for last := int64(math.MinInt64); copied < rows; {
		m.setPart(fmt.Sprintf("%s: %d of %d rows", name, copied, rows))
		var n, end int64
		if err := m.one(`SELECT count(*), max(rowid) FROM
			(SELECT rowid FROM `+from+` WHERE rowid > ? ORDER BY rowid LIMIT ?)`,
			[]any{last, copiedAtOnce}, &n, &end); err != nil {
			return err
		}
		if err := m.exec(insert, last, end); err != nil {
			return err
		}
		last, copied = end, copied+n
	}
	return nil
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

// A declaration is one CREATE statement.
type declaration struct{ kind, name, text string }

// isPartialIndexOf reports whether d declares a partial index (one with a WHERE) on one of the tables.
func (d declaration) isPartialIndexOf(tables map[string]bool) bool {
	on := partialIndex.FindStringSubmatch(d.text)
	return on != nil && tables[on[1]]
}

var partialIndex = regexp.MustCompile(`(?ms)^CREATE (?:UNIQUE )?INDEX \w+ ON (\w+) .*\bWHERE\b`)

var createStatement = regexp.MustCompile(`^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW|TRIGGER) (\w+)`)

// splitStatements returns the CREATE statements of a schema. A statement ends with a line that
// ends in a semicolon, a trigger with END;.
func splitStatements(schema string) (all []declaration) {
	var text strings.Builder
	for line := range strings.Lines(schema) {
		text.WriteString(line)
		code, _, _ := strings.Cut(line, " --")
		plain := strings.TrimSpace(sqlLineComment.ReplaceAllString(text.String(), ""))
		created := createStatement.FindStringSubmatch(plain)
		trigger := created != nil && created[1] == "TRIGGER"
		code = strings.TrimSpace(code)
		if !strings.HasSuffix(code, ";") || trigger && code != "END;" {
			continue
		}
		if created != nil {
			statement := strings.TrimSuffix(strings.TrimSpace(text.String()), ";")
			all = append(all, declaration{strings.ToLower(created[1]), created[2], statement})
		}
		text.Reset()
	}
	return all
}

var sqlLineComment = regexp.MustCompile(`(?m)^\s*--.*$`)
