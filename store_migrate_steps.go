package main

import (
	"cmp"
	"crypto/sha256"
	"database/sql/driver"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"modernc.org/sqlite"
)

// A schemaStep takes a database from one version of the schema to the next.
type schemaStep struct {
	does string                   // what it changes, for people
	sql  string                   // one or more statements
	run  func(m *migration) error // what SQL alone can't do, after sql; nil: nothing
}

// schemaSteps[n-1] takes a database from version n to version n+1. Whoever changes
// schema.sql adds a step at the end, raises schemaVersion by one and adds
// testdata/vN.sql. A step that has landed is never edited: files that it made are in
// use.
var schemaSteps = []schemaStep{
	{does: "tables that are ordered by their ids, counted seats, customers and fields of leads", run: upgradeToV2},
}

//go:embed store_migrate_v2.sql
var schemaV2 string

// upgradeToV2 rebuilds the tables of version 1 whose declaration has changed.
func upgradeToV2(m *migration) error {
	return m.rebuild(schemaV2, map[string]tableSource{
		"leads": {from: "leads", columns: map[string]string{
			"fields": "NULL",
			"digest": "widgetd_lead_digest(account_id, type, email, coalesce(source, ''), coalesce(page, ''))",
		}},
		"licenses": {from: "licenses", columns: map[string]string{
			"customer": "NULL", "expiring_noted": "NULL", "seat_limit_noted_at": "NULL",
		}},
		"events": {from: "events", columns: map[string]string{
			"subject_id": "coalesce(license_id, lead_id, '')",
			"data":       "CASE WHEN device_id IS NULL THEN data ELSE json_set(data, '$.device_id', device_id) END",
		}},
		"license_seats": {from: "(SELECT license_id, count(*) AS used FROM devices WHERE state = 'active' GROUP BY license_id)"},
	})
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

// A tableSource says where the rows of a rebuilt table come from.
type tableSource struct {
	from    string            // a table of the old schema, or a query in parentheses
	columns map[string]string // what columns that it lacks, or has otherwise, are filled with
}

// copiedAtOnce is how many rows of a table one statement copies, so that progress can be told.
const copiedAtOnce = 50_000

// rebuild brings the schema to declarations, the text of a whole schema. Tables that are
// declared in another way than before are made anew, and filled with the rows that they had;
// sources says where these come from, unless every column is as it was.
func (m *migration) rebuild(declarations string, sources map[string]tableSource) error {
	old, err := schemaOf(m.queries)
	if err != nil {
		return err
	}
	statements := splitStatements(declarations)
	changed := map[string]bool{} // tables
	for _, st := range statements {
		if st.kind == "table" && old["table "+st.name].text != normalizeSQL(st.text) {
			changed[st.name] = true
		}
	}
	kept, err := m.dropObjects(changed)
	if err != nil {
		return err
	}
	sequences, err := m.sequences()
	if err != nil {
		return err
	}
	for name := range changed {
		if _, existed := old["table "+name]; existed {
			if err := m.exec(`ALTER TABLE ` + name + ` RENAME TO old_` + name); err != nil {
				return err
			}
		}
	}
	for _, st := range statements {
		if st.kind != "table" || !changed[st.name] {
			continue
		}
		if err := m.exec(st.text); err != nil {
			return err
		}
	}
	for _, st := range statements {
		if st.kind != "table" || !changed[st.name] {
			continue
		}
		source, given := sources[st.name]
		if !given {
			source.from = st.name
		}
		if err := m.copyTable(st.name, source, changed); err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
	}
	for name := range changed {
		if _, existed := old["table "+name]; existed {
			if err := m.exec(`DROP TABLE old_` + name); err != nil {
				return err
			}
		}
	}
	for _, st := range statements {
		if st.kind != "table" && !kept[st.kind+" "+st.name] {
			m.setPart("making " + st.kind + " " + st.name)
			if err := m.exec(st.text); err != nil {
				return err
			}
		}
	}
	return m.restoreSequences(sequences)
}

func (m *migration) setPart(part string) { m.part.Store(&part) }

// dropObjects drops every view and trigger, and the indexes of tables that are made anew. It
// returns the indexes that stay, as "index NAME".
func (m *migration) dropObjects(changed map[string]bool) (kept map[string]bool, err error) {
	type object struct{ kind, name, table string }
	objects, err := collect(m.queries, `SELECT type, name, tbl_name FROM sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL`, nil,
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
		if err := m.exec(`DROP ` + o.kind + ` ` + o.name); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// copyTable fills a new table, in the order of its key. Where the old table has row numbers,
// it does so in parts.
func (m *migration) copyTable(name string, source tableSource, changed map[string]bool) error {
	columns, err := collect(m.queries, `SELECT name FROM pragma_table_info(?)`, []any{name}, func(c *string) []any { return []any{c} })
	if err != nil {
		return err
	}
	from, numbered := source.from, false
	switch {
	case strings.HasPrefix(from, "("):
		for table := range changed {
			from = regexp.MustCompile(`\bFROM `+table+`\b`).ReplaceAllString(from, "FROM old_"+table)
		}
	case changed[from]:
		from = "old_" + from
		numbered = true // every table that is rebuilt so far had row numbers
	}
	values := make([]string, len(columns))
	for i, column := range columns {
		values[i] = cmp.Or(source.columns[column], column)
	}
	insert := `INSERT INTO ` + name + ` (` + strings.Join(columns, ", ") + `) SELECT ` + strings.Join(values, ", ") + ` FROM ` + from
	if !numbered {
		return m.exec(insert)
	}
	var last int64
	if err := m.one(`SELECT coalesce(max(rowid), 0) FROM `+from, nil, &last); err != nil {
		return err
	}
	for row := int64(0); row < last; row += copiedAtOnce {
		m.setPart(fmt.Sprintf("%s, row %d of %d", name, row, last))
		if err := m.exec(insert+` WHERE rowid > ? AND rowid <= ?`, row, row+copiedAtOnce); err != nil {
			return err
		}
	}
	return nil
}

// A sequence is the highest number that an AUTOINCREMENT table has given.
type sequence struct {
	table string
	last  int64
}

func (m *migration) sequences() ([]sequence, error) {
	return collect(m.queries, `SELECT name, seq FROM sqlite_sequence`, nil, func(s *sequence) []any { return []any{&s.table, &s.last} })
}

// restoreSequences has AUTOINCREMENT go on where it was: no number is given twice, also when
// the rows with the highest ones are gone.
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

var createStatement = regexp.MustCompile(`^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW|TRIGGER) (\w+)`)

// splitStatements returns the CREATE statements of a schema. A statement ends with a line that
// ends in a semicolon, a trigger with END;.
func splitStatements(schema string) (all []declaration) {
	var text strings.Builder
	for line := range strings.Lines(schema) {
		text.WriteString(line)
		code, _, _ := strings.Cut(line, " --")
		created := createStatement.FindStringSubmatch(strings.TrimSpace(sqlLineComment.ReplaceAllString(text.String(), "")))
		trigger := created != nil && created[1] == "TRIGGER"
		code = strings.TrimSpace(code)
		if !strings.HasSuffix(code, ";") || trigger && code != "END;" {
			continue
		}
		if created != nil {
			all = append(all, declaration{strings.ToLower(created[1]), created[2], strings.TrimSpace(text.String())})
		}
		text.Reset()
	}
	return all
}

var sqlLineComment = regexp.MustCompile(`(?m)^\s*--.*$`)
