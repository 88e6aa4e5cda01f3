package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

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
