package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// This file has the copy that an upgrade writes of the old database. It is a draft, whose name ends in .new, until the
// upgrade is committed: the draft of one that was killed or has failed is replaced by the next.

// What follows the database's name in the name of a copy, as in
// widgetd.db.v1-2027-01-31T120000Z, and in the name of a draft, which ends in .new.
var (
	copySuffix  = lazyPattern(`^\.v\d+-`)
	draftSuffix = lazyPattern(`^\.v\d+-\d{4}-\d\d-\d\dT\d{6}Z(-\d+)?\.new(-journal)?$`)
)

// upgradeCopies returns the paths of the copies that upgrades wrote of a database, drafts
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

// removeDrafts removes the drafts of upgrades that were killed or have failed. While this one holds the lock, no other
// is writing one.
func (m *migration) removeDrafts() error {
	if m.dryRun {
		return nil
	}
	for _, draft := range filesBeside(m.path, draftSuffix()) {
		if err := os.Remove(draft); err != nil {
			return fmt.Errorf("remove what is left of an earlier copy: %w", err)
		}
	}
	return nil
}

// nameCopies gives the drafts beside a database that was upgraded their names, and returns the last one. A draft keeps
// its name where there is a file with the other one.
func (m *migration) nameCopies() (copied *string) {
	if m.dryRun {
		return nil
	}
	for _, draft := range filesBeside(m.path, draftSuffix()) {
		name := strings.TrimSuffix(draft, ".new")
		if _, err := os.Lstat(name); err == nil || os.Rename(draft, name) != nil {
			name = draft
		}
		copied = &name
	}
	return copied
}

// copyOrCheck writes the draft of the copy and checks it. If no copy is wanted, it checks the
// database itself, so that a damaged one is never upgraded. Rules of tables are checked after the upgrade.
func (m *migration) copyOrCheck() error {
	at := m.now().UTC().Format("2006-01-02T150405Z")
	if m.dryRun || m.noCopy {
		return m.check(m.queries)
	}
	draft, err := os.OpenFile(fmt.Sprintf("%s.v%d-%s.new", m.path, m.from, at), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	defer draft.Close()
	m.tell.step("copying the database", draft.Name(), fileSize(m.path))
	if err = explainUpgradeError(m.exec(`VACUUM INTO ?`, draft.Name())); err == nil {
		m.tell.step("checking the copy", "", 0)
		err = readFile(draft.Name(), m.check, "ignore_check_constraints(1)")
	}
	for _, last := range []func() error{func() error { return checkMade(draft) }, draft.Sync,
		func() error { return syncDir(filepath.Dir(m.path)) }} {
		if err == nil {
			err = last()
		}
	}
	if err != nil {
		os.Remove(draft.Name())
		return fmt.Errorf("write the copy: %w", err)
	}
	return nil
}

// check returns an error unless the pages and foreign keys of a database are sound.
func (m *migration) check(q *queries) error {
	faults, err := q.faultsBy(`PRAGMA quick_check(20)`)
	if err == nil {
		err = unsound(faults)
	}
	return explainUpgradeError(err)
}
