package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fileNoun declares the database file.
func fileNoun() noun {
	return noun{
		name:     "file",
		wings:    func(s *server) []wing { return []wing{{metrics: backupMetrics(s.store)}} },
		commands: storeCommands,
		events:   storeEvents,
		status:   []statusLine{{label: "today (UTC)", read: todayStatus}},
		sealed:   []string{"idempotency"},
	}
}

// backupMetrics returns how many seconds ago the last backup was written or, if there was none, the main account was
// added. There is no sample where Litestream makes the backups, or while the database can't be read.
func backupMetrics(st *store) []metric {
	return []metric{{"widgetd_backup_age_seconds", "gauge", "Seconds since the last backup, or since the beginning.",
		func() []string {
			at, err := st.lastOrFirst(eventBackupWritten)
			if err != nil || st.noCheckpoints {
				return nil
			}
			return []string{fmt.Sprintf(" %d", max(0, int64(st.now().Sub(at.Time)/time.Second)))}
		}}}
}

// The option of one of these commands.
var optNoCopy = option{name: "no-copy", help: "write no copy of the database before it is upgraded"}

// The event types of the database file.
var (
	storeEvents eventTable

	eventBackupWritten = storeEvents.add("backup.written")
)

// The operator's commands on the database file.
var storeCommands = []command{
	{"upgrade", "", "upgrade an older database to this program's schema, after writing a checked copy beside it",
		[]option{optDryRun, optNoCopy}, upgradeCommand},
	{"backup", "FILE", "write a checked copy of the database, also while the service runs",
		[]option{optVerify}, backupCommand},
	{"clock accept", "", "take the machine's clock for right, so that a running service goes on with what it holds",
		nil, clockAccept},
	{"check", "", "check the whole database and the key file, and print what is wrong", nil, checkCommand},
}

func backupCommand(e *env) error {
	if e.args[0] == "" {
		return usageError("the name of the file is empty")
	}
	said := "written and checked"
	if e.on("verify") {
		_, err := e.prove(proofBackup, "", func(p *proving) error {
			path, err := e.writeBackup(p.st)
			if err == nil {
				err = p.needRoom()
			}
			if err != nil {
				return err
			}
			told := e.progress("")
			defer told.end()
			told.step("restoring the copy", p.copy+".new", fileSize(path))
			return restoreBackup(path, p.copy)
		})
		if err != nil {
			return err
		}
		said += ", restored and checked again"
	} else if err := e.withStore(func(st *store) error { _, err := e.writeBackup(st); return err }); err != nil {
		return err
	}
	return e.print(map[string]string{"file": e.args[0]},
		e.args[0]+": "+said+". The key file is not in it; keep a copy of that too.")
}

// writeBackup writes the backup that the command names, notes that, and returns its path.
func (e *env) writeBackup(st *store) (path string, err error) {
	if path, err = e.target(e.args[0]); err == nil {
		told := e.progress("copying the database")
		err = st.backup(path, told.step)
		told.end()
	}
	if err != nil {
		return "", e.explainPermission(err, filepath.Join(filepath.Dir(st.path), filepath.Base(e.args[0])))
	}
	if err := st.update(e.ctx, noteBackup); err != nil { // the copy is good even without the event
		e.note("'widgetd status' will not know of this backup: %v\n", err)
	}
	return path, nil
}

// clockAccept stores the time of the machine's clock in the file, even if the stored time is later. A running
// service notices that within a second.
func clockAccept(e *env) error {
	var before stamp
	at, err := changed(e, func(t *tx) (at stamp, err error) {
		before, err = t.clockSeen()
		t.setClock(t.now)
		return t.now, err
	})
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s is taken for right", at)
	if !before.IsZero() {
		text += fmt.Sprintf("; the time that the service saw last was %s", before)
	}
	return e.print(map[string]stamp{"seen_at": at, "before": before}, text)
}

// noteBackup writes the event that tells the status command when the last backup was taken. It
// belongs to the main account.
func noteBackup(t *tx) error {
	main, err := t.mainAccount()
	if err != nil {
		return err
	}
	t.addEvent(event{Type: eventBackupWritten, AccountID: main, Actor: actorCommand})
	return nil
}

// openToOthers returns a line for each file of a database that other users can read, and for its directory if they may
// write there.
func openToOthers(database string) (faults []string) {
	dir := filepath.Dir(database)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o022 != 0 {
		faults = append(faults, fmt.Sprintf("permissions: others may write in %s (mode %04o), and put other files in "+
			"place of the database's: run 'chmod go-w %s'", dir, info.Mode().Perm(), dir))
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		file := database + suffix
		if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
			faults = append(faults, fmt.Sprintf("permissions: others can read %s (mode %04o): run 'chmod 600 %s'",
				file, info.Mode().Perm(), file))
		}
	}
	return faults
}

// checkCommand prints everything that is wrong with the database, the key file and their
// permissions, and fails if anything is.
func checkCommand(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	service, _ := askService(e.ctx, db) // before the check, so that damage met during it is not cleared
	told := e.progress("checking pages, indexes and keys")
	faults, err := checkFile(db)
	if told.end(); err != nil {
		return err
	}
	database := realPath(db)
	faults = append(faults, openToOthers(database)...)
	_, keys, err := e.loadKeys()
	if err != nil {
		faults = append(faults, "key: "+err.Error())
	}
	if !slices.ContainsFunc(faults, func(fault string) bool { return !breaksRule(fault) }) {
		rows, err := e.faultsInRows(keys)
		if faults = append(faults, rows...); err != nil {
			return err
		}
	}
	notes := copyNotes(database)
	dir := filepath.Dir(database)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o044 != 0 {
		const text = "note: others can list what is in %s (mode %04o)"
		notes = append(notes, fmt.Sprintf(text, dir, info.Mode().Perm()))
	}
	if service != nil && len(faults) == 0 && (service.Damage != nil || len(service.Unreadable) > 0) {
		met, times := "that "+strings.Join(service.Unreadable, ", and that "), int64(0)
		if d := service.Damage; d != nil {
			met, times = "damage since "+d.At.String(), d.Times
		}
		over, err := reportCheck(e.ctx, db, times)
		switch {
		case err != nil:
			notes = append(notes, "note: the service can't be told that this passed: restart it: "+err.Error())
		case over:
			notes = append(notes, "note: the service met "+met+"; its health does not tell of it any more")
		default:
			notes = append(notes, "note: the service has met damage since this check began: check again")
		}
	}
	lines := slices.Concat(faults, notes)
	if len(faults) == 0 {
		lines = append([]string{"ok: pages, indexes, foreign keys, schema, payments, permissions, key file"}, notes...)
	}
	result := map[string]any{"ok": len(faults) == 0, "faults": append([]string{}, faults...), "notes": notes}
	if err := e.print(result, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if len(faults) > 0 {
		return fmt.Errorf("faults in %s: %d", db, len(faults))
	}
	return nil
}

// faultsInRows is faultsOfRows of the command's own database.
func (e *env) faultsInRows(keys *keyring) (faults []string, err error) {
	told := e.progress("reading all rows")
	defer told.end()
	err = e.withStore(func(st *store) (err error) {
		faults, err = e.faultsOfRows(st, keys)
		return err
	})
	return faults, err
}

// faultsOfRows reads all rows, tries again what could not be done, and if nothing is wrong with either, runs the checks
// that nouns have for rows. It returns what that finds.
func (e *env) faultsOfRows(st *store, keys *keyring) (faults []string, err error) {
	rows := newQueries(st.prepare) // which does not tell of the same rows on standard error
	defer rows.close()
	for _, unreadable := range collectNouns(e.nouns, func(n *noun) []rowReader { return n.rows }) {
		lines, err := unreadable(rows)
		if faults = append(faults, lines...); err != nil {
			return faults, err
		}
	}
	for _, n := range e.nouns {
		if n.retry == nil {
			continue
		}
		lines, err := n.retry(e.ctx, st)
		if faults = append(faults, lines...); err != nil {
			return faults, err
		}
	}
	if len(faults) > 0 {
		return faults, nil
	}
	for _, foreign := range foreignOf(e.nouns) {
		lines, err := foreign(st.queries, keys)
		if err != nil {
			return faults, err
		}
		for _, line := range lines {
			faults = append(faults, "key: "+line)
		}
	}
	for _, n := range e.nouns {
		if n.check == nil {
			continue
		}
		lines, err := n.check(st.queries, keys, e.now())
		if faults = append(faults, lines...); err != nil {
			return faults, err
		}
	}
	return faults, nil
}

// copyNotes returns a line for each copy that upgrades have left of a database.
func copyNotes(database string) []string {
	notes := []string{}
	for _, name := range upgradeCopies(database) {
		what := "a copy from before an upgrade: remove it once you are sure that you will not go back"
		if draftSuffix().MatchString(strings.TrimPrefix(name, database)) {
			what = "an unfinished copy of an upgrade that was stopped: remove it"
		}
		notes = append(notes, fmt.Sprintf("note: %s (%d KiB) is %s", name, fileSize(name)>>10, what))
	}
	return notes
}

// upgradeCommand upgrades an older database. The service's unit runs it before every start.
func upgradeCommand(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	if err := checkNotFollowed(db); err != nil {
		return err
	}
	told := e.progress("checking the database")
	report, err := upgradeFile(e.ctx, db, upgradeOptions{dryRun: e.on("dry-run"), noCopy: e.on("no-copy"), now: e.now,
		tell: told.step})
	if told.end(); err != nil {
		return err
	}
	return e.print(report, upgradeText(db, report))
}

// upgradeText returns a report of an upgrade as text.
func upgradeText(db string, r *upgradeReport) string {
	if len(r.Steps) == 0 {
		return fmt.Sprintf("%s: has schema version %d, as this program needs it; nothing to do", db, r.To)
	}
	took := func(milliseconds int64) string {
		return (time.Duration(max(1, milliseconds)) * time.Millisecond).String()
	}
	did := "upgraded"
	if r.DryRun {
		did = "can be upgraded"
	}
	lines := []string{fmt.Sprintf("%s: %s from schema version %d to %d (%s)",
		db, did, r.From, r.To, took(r.Milliseconds))}
	for _, step := range r.Steps {
		rows := ""
		if step.Rows > 0 {
			rows = fmt.Sprintf("%d rows, ", step.Rows)
		}
		lines = append(lines, fmt.Sprintf("version %d: %s (%s%s)", step.To, step.Does, rows, took(step.Milliseconds)))
		if step.Advice != "" {
			lines = append(lines, step.Advice)
		}
	}
	for _, invalid := range r.InvalidTimes {
		lines = append(lines, fmt.Sprintf("%s %s: %s is no time or date that a calendar has; it was left as it is",
			invalid.Table, printable(invalid.ID), invalid.Column))
	}
	if more := r.InvalidTimesCount - len(r.InvalidTimes); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more such values: see 'widgetd check'", more))
	}
	switch {
	case r.DryRun:
		lines = append(lines, "this was a dry run: nothing was changed")
	case r.Copy != nil:
		lines = append(lines, "the database as it was: "+*r.Copy+
			"; remove it once you are sure that you will not go back")
	}
	return strings.Join(lines, "\n")
}
