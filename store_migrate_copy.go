package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// This file has the copy that an upgrade writes of the old database, and the checks that the database must pass
// before it is upgraded.

// checkDiskSpace returns an error if the disk has no room for that many times the database: once
// for the copy, if that is still to be written, and twice for a step that rewrites every row.
// With -no-copy it checks nothing, so that an upgrade can still be tried on a small disk: if the
// disk gets full, everything is rolled back.
func (m *migration) checkDiskSpace(times uint64) error {
	if m.noCopy {
		return nil
	}
	var needed uint64
	for suffix, times := range map[string]uint64{"": times, "-wal": 1} {
		needed += times * uint64(fileSize(m.path+suffix))
	}
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

// What follows the database's name in the name of a copy, as in
// widgetd.db.v1-2027-01-31T120000Z, and in the name of an unfinished one, which ends in .new.
var (
	copySuffix       = lazyPattern(`^\.v\d+-`)
	finishedSuffix   = lazyPattern(`^\.v\d+-\d{4}-\d\d-\d\dT\d{6}Z(-\d+)?$`)
	unfinishedSuffix = lazyPattern(`^\.v\d+-\d{4}-\d\d-\d\dT\d{6}Z(-\d+)?\.new(-journal)?$`)
)

// upgradeCopies returns the paths of the copies that upgrades wrote of a database, finished or
// not, sorted. They still hold personal data that was erased since.
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

// removeUnfinishedCopies removes the unfinished copies of upgrades that were killed. While this
// one holds the lock, no other is writing one.
func (m *migration) removeUnfinishedCopies() error {
	if m.dryRun {
		return nil
	}
	for _, draft := range filesBeside(m.path, unfinishedSuffix()) {
		if err := os.Remove(draft); err != nil {
			return fmt.Errorf("remove what is left of an earlier copy: %w", err)
		}
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

// findCopy returns the newest copy of this version beside the database if it is sound and holds
// what the database holds now, to the last value; nil if there is none. An upgrade that was killed
// has left such a copy, and another one would only fill the disk.
func (m *migration) findCopy() (found *string, err error) {
	if m.dryRun || m.noCopy {
		return nil, nil
	}
	newest := ""
	for _, name := range filesBeside(m.path, finishedSuffix()) {
		info, err := os.Lstat(name)
		if err == nil && info.Mode() == 0o600 && ownerOf(info) == os.Geteuid() &&
			strings.HasPrefix(name, fmt.Sprintf("%s.v%d-", m.path, m.from)) {
			newest = name
		}
	}
	if newest == "" {
		return nil, nil
	}
	err = m.withProgress("comparing with "+newest, func() error {
		file, err := openFile(newest) // checks that it has the header of a widgetd database
		if err == nil {
			err = file.Close()
		}
		same := false
		if err == nil {
			same, err = m.holdsTheSame(newest)
		}
		if err == nil && same {
			err = m.checkCopy(newest, (*queries).integrityFaults) // its indexes too: damage may have come since
		}
		if err == nil && same {
			found = &newest
		}
		return m.ctx.Err() // after other errors a new copy is written, which fails if the database is at fault
	})
	return found, explainUpgradeError(err)
}

// holdsTheSame reports whether every table of a copy has the rows of the database, with the same
// numbers. It reads both once.
func (m *migration) holdsTheSame(copied string) (same bool, err error) {
	// Because of immutable, SQLite writes nothing beside the copy, and ignores a log that may be there.
	if err := m.exec(`ATTACH ? AS copied`, fileURL(copied)+"?mode=ro&immutable=1"); err != nil {
		return false, err
	}
	defer func() { err = cmp.Or(err, m.exec(`DETACH copied`)) }()
	type table struct{ name, columns, key string } // conditions: all columns are equal; it is the same row
	tables, err := collect(m.queries, `SELECT name, group_concat(a || ' IS ' || b, ' AND '),
			iif(wr, group_concat(a || ' = ' || b, ' AND ') FILTER (WHERE pk > 0), 'a.rowid = b.rowid')
		FROM (SELECT t.name, t.wr, c.pk, 'a."' || c.name || '"' AS a, 'b."' || c.name || '"' AS b
			FROM pragma_table_list t JOIN pragma_table_info(t.name) c
			WHERE t.schema = 'main' AND t.type = 'table' AND t.name <> 'sqlite_schema')
		GROUP BY name`, nil, func(t *table) []any { return []any{&t.name, &t.columns, &t.key} })
	if err != nil {
		return false, err
	}
	for _, t := range tables {
		one, other := `main."`+t.name+`"`, `copied."`+t.name+`"`
		err := m.one(`SELECT (SELECT count(*) FROM `+one+`) = (SELECT count(*) FROM `+other+`) AND NOT EXISTS
			(SELECT 1 FROM `+one+` a WHERE NOT EXISTS (SELECT 1 FROM `+other+` b WHERE `+t.key+` AND `+t.columns+`))`,
			nil, &same)
		if err := cmp.Or(m.ctx.Err(), err); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// copyOrCheck writes the copy, checks it and returns its path. If no copy is wanted, it checks the
// database itself, so that a damaged one is never upgraded.
func (m *migration) copyOrCheck() (*string, error) {
	if m.dryRun || m.noCopy {
		return nil, m.withProgress("checking the database", func() error {
			return m.checkRows(m.queries, (*queries).quickFaults, func() ([]string, error) {
				if err := m.exec(`PRAGMA ignore_check_constraints = ON`); err != nil {
					return nil, err
				}
				faults, err := m.quickFaults()
				return faults, cmp.Or(err, m.exec(`PRAGMA ignore_check_constraints = OFF`))
			})
		})
	}
	named := fmt.Sprintf("%s.v%d-%s", m.path, m.from, m.now().UTC().Format("2006-01-02T150405Z"))
	name := named
	for n := 2; ; n++ { // an upgrade that was killed within the same second may have left one
		if _, err := os.Lstat(name); err != nil {
			break
		}
		name = fmt.Sprintf("%s-%d", named, n)
	}
	err := m.withProgress("writing the copy", func() error { return writeAtomically(name, false, m.writeCopy) })
	if err != nil {
		return nil, fmt.Errorf("write the copy: %w", err)
	}
	return &name, nil
}

// integrityError makes an error from what integrityFaults has returned, or nil.
func integrityError(faults []string, err error) error {
	if err == nil && len(faults) > 0 {
		err = fmt.Errorf("it is not sound: %s", strings.Join(faults, "; "))
	}
	return explainUpgradeError(err)
}

// checkRows returns an error unless a database is sound except for invalid times, which it notes for
// the report. look returns what is wrong, and withoutChecks the same without evaluating any CHECK.
func (m *migration) checkRows(
	q *queries, look func(*queries) ([]string, error), withoutChecks func() ([]string, error),
) error {
	m.invalidTimes, m.invalidTimesCount = nil, 0
	faults, err := look(q)
	if err != nil || !slices.ContainsFunc(faults, func(f string) bool { return strings.HasPrefix(f, checkFailed) }) {
		return integrityError(faults, err)
	}
	if faults, err = withoutChecks(); err != nil { // those that look returned may have hidden others
		return integrityError(faults, err)
	}
	schema, err := schemaOf(q)
	for name, object := range schema {
		table, isTable := strings.CutPrefix(name, "table ")
		if err != nil || !isTable {
			continue
		}
		var broken bool
		if broken, err = m.noteInvalidTimes(q, table, object); broken {
			faults = append(faults, checkFailed+table)
		}
	}
	return integrityError(faults, err)
}

// checkFailed is the beginning of a fault in the results of integrityFaults and quickFaults that says that a row
// violates a CHECK; the name of the table follows.
const checkFailed = "integrity: CHECK constraint failed in "

// noteInvalidTimes notes the invalid times of a table for the report, and reports whether any row
// breaks another rule of the table.
func (m *migration) noteInvalidTimes(q *queries, table string, declared schemaObject) (broken bool, err error) {
	var others []string
	id, err := rowName(q, table, declared)
	if err != nil {
		return false, err
	}
	for _, check := range checksOf(declared.text()) {
		found := timeCheck().FindStringSubmatch(check)
		if found == nil {
			others = append(others, "NOT "+check)
			continue
		}
		err := q.each(`SELECT `+id+` FROM `+table+` WHERE NOT `+check, nil, func(scan func(...any) error) error {
			invalid := invalidTime{Table: table, Column: found[1]}
			err := scan(&invalid.ID)
			if m.invalidTimesCount++; m.invalidTimesCount <= maxInvalidTimes {
				m.invalidTimes = append(m.invalidTimes, invalid)
			}
			return err
		})
		if err != nil {
			return false, err
		}
	}
	if len(others) == 0 {
		return false, nil
	}
	err = q.one(`SELECT EXISTS (SELECT 1 FROM `+table+` WHERE `+strings.Join(others, " OR ")+`)`, nil, &broken)
	return broken, err
}

// rowName returns SQL for the text that identifies a row of a table to people: its id, or else its primary key.
func rowName(q *queries, table string, declared schemaObject) (string, error) {
	if slices.Contains(declared.columns, "id") {
		return "iif(typeof(id) = 'blob', hex(id), id)", nil
	}
	names, err := q.texts(`SELECT 'iif(typeof(' || name || ') = ''blob'', hex(' || name || '), ' || name || ')'
		FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk`, table)
	return strings.Join(names, " || ' ' || "), err
}

// checksOf returns the conditions of the CHECKs in a table's normalized declaration, in parentheses.
func checksOf(text string) (checks []string) {
	tokens := sqlToken().FindAllString(text, -1)
	for i, token := range tokens {
		if token != "CHECK" {
			continue
		}
		depth, end := 0, i+1
		for ; end < len(tokens); end++ {
			switch tokens[end] {
			case "(":
				depth++
			case ")":
				depth--
			}
			if depth == 0 {
				break
			}
		}
		checks = append(checks, strings.Join(tokens[i+1:min(end+1, len(tokens))], ""))
	}
	return checks
}

// writeCopy writes the database to a draft and checks the draft.
func (m *migration) writeCopy(draft *os.File) error {
	if err := m.exec(`VACUUM INTO ?`, draft.Name()); err != nil {
		return explainUpgradeError(err)
	}
	return m.checkCopy(draft.Name(), (*queries).quickFaults)
}

// checkCopy checks a copy: its pages, indexes and foreign keys, by look, and that it has the version
// and the schema of the original.
func (m *migration) checkCopy(name string, look func(*queries) ([]string, error)) error {
	was, err := schemaOf(m.queries)
	if err != nil {
		return explainUpgradeError(err)
	}
	return readFile(name, func(q *queries) error {
		err := m.checkRows(q, look, func() (faults []string, err error) {
			err = readFile(name, func(q *queries) error {
				faults, err = look(q)
				return err
			}, "ignore_check_constraints(1)")
			return faults, err
		})
		if err != nil {
			return err
		}
		is, err := schemaOf(q)
		if err != nil {
			return explainUpgradeError(err)
		}
		wrong, extra := compareSchemas(was, is)
		var version int
		if err := q.one(`PRAGMA user_version`, nil, &version); err != nil {
			return explainUpgradeError(err)
		}
		if version != m.from || len(wrong)+len(extra) > 0 {
			return fmt.Errorf("it has another schema than the original, of version %d: %s",
				version, strings.Join(append(wrong, extra...), "; "))
		}
		return nil
	})
}
