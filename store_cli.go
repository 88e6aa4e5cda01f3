package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fileNoun declares the database file.
func fileNoun() noun {
	return noun{
		name:     "file",
		modules:  func(s *server) []module { return []module{{metrics: backupMetrics(s.store)}} },
		commands: storeCommands,
		events:   storeEvents,
		status:   []statusLine{{label: "today (UTC)", read: todayStatus}},
		troubles: fileTroubles,
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

// The options of one of these commands.
var (
	optNoCopy  = option{name: "no-copy", help: "keep no copy of the database as it was, and try it with little room"}
	optReplica = option{name: "replica", help: "take what Litestream has replicated, in place of a file"}
)

// The event types of the database file.
var (
	storeEvents eventTable

	eventBackupWritten = storeEvents.add("backup.written")
)

// The operator's commands on the database file.
var storeCommands = []command{
	{"upgrade", "", "upgrade an older database to this program's schema, and keep it as it was beside it",
		[]option{optDryRun, optNoCopy}, upgradeCommand},
	{"backup", "FILE", "write a checked copy of the database, also while the service runs",
		[]option{optVerify}, backupCommand},
	{"restore", "[FILE]", "put a checked copy in the place of the database, which is kept beside it; without a file, " +
		"list the copies that there are, and take the number of one",
		[]option{optReplica, optLitestreamConfig, optUnasked}, restoreCommand},
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
		_, err := e.prove(proofBackup, "", func(p *proofRun) error {
			path, err := e.writeBackup(p.st)
			if err == nil {
				err = p.checkRoom()
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
		return "", e.explainPermission(err, nameAnother)
	}
	if err := st.update(e.ctx, noteBackup); err != nil { // the copy is good even without the event
		e.note("'widgetd status' will not know of this backup: %v\n", err)
	}
	return path, nil
}

// restoreCommand puts a copy in the place of the database.
func restoreCommand(e *env) error {
	path, err := e.file("db")
	if err != nil {
		return err
	}
	db, err := filepath.Abs(linkTarget(path))
	if err != nil {
		return err
	}
	from, err := e.chooseCopy(db)
	if err == nil {
		err = e.refuseOpen(db)
	}
	if err != nil {
		return err
	}
	r, err := beginRestoring(db)
	if err != nil {
		return err
	}
	defer r.dir.remove() // what stays is removed by the next one, or by a start
	if err := e.copyChosen(r, from); err != nil {
		return fmt.Errorf("%s can't be restored: %w", from, err)
	}
	next, err := e.afterRestoring(r)
	if err != nil {
		return err
	}
	lost, lostText := r.lostText()
	if err := e.ask("puts " + from + lastEventText(r.copy) + " in the place of " + db + ". " + lostText); err != nil {
		return err
	}
	if e.ctx.Err() != nil {
		return errors.New("it was stopped, and nothing was changed")
	}
	if err := e.refuseOpen(db); err != nil { // it may have been started since
		return err
	}
	aside, err := r.replace(e.now())
	if err != nil {
		return err
	}
	details := []detail{{"database", db}, {"copy", from}, {"before", cmp.Or(aside, "nothing was there")},
		{"next", next[0]}}
	for _, line := range next[1:] {
		details = append(details, detail{"", line})
	}
	return e.printDetails(map[string]any{"file": db, "from": from, "aside": aside, "schema_version": r.version,
		"lost": lost, "next": next}, details)
}

// chooseCopy returns the file that the command names, or theReplica, or without either the file of the number that is
// typed. Where nobody can type, it lists the files, and the error says to name one.
func (e *env) chooseCopy(db string) (string, error) {
	switch {
	case e.on("replica") && len(e.args) == 0:
		return theReplica, nil
	case e.on("replica"):
		return "", usageError("name a file, or give -replica")
	case len(e.args) > 0 && e.args[0] == "":
		return "", usageError("the name of the file is empty")
	case len(e.args) > 0:
		return e.args[0], nil
	}
	copies := keptCopies(db)
	if len(copies) == 0 {
		return "", usageError("no copy is beside " + db + ": name a file, or give -replica")
	}
	err := printObjects(e, "N=number FILE LAST-EVENT=last_event_at KIND SIZE=bytes SCHEMA=schema_version",
		func(member string, row *jsonValue) any {
			text := memberAt(row, member).text
			switch {
			case member == "bytes":
				n, _ := strconv.ParseInt(text, 10, 64)
				return sizeText(n)
			case member == "schema_version" && text == "0":
				return "damaged"
			}
			return nil
		}, copies)
	if err != nil {
		return "", err
	}
	if !e.canAsk || e.on("json") {
		return "", usageError("name one of these files, or another one: 'widgetd restore FILE'")
	}
	e.note("Type the number of one: ")
	typed := e.answered()
	for _, kept := range copies {
		if typed == strconv.Itoa(kept.Number) {
			return kept.File, nil
		}
	}
	return "", fmt.Errorf("nothing was changed: %q is not a number of this list", typed)
}

// refuseOpen returns an error if the service runs over a database, or another process has it open.
func (e *env) refuseOpen(db string) error {
	service, err := askService(e.ctx, db)
	open := service != nil || err != nil
	if info, err := os.Stat(db); err == nil && info.Mode().IsRegular() && !open {
		if open, err = isOpenElsewhere(db); err != nil {
			return err
		}
	}
	if open {
		return fmt.Errorf("the service runs, or another program has %s open: stop it, and Litestream where it runs "+
			"('sudo systemctl stop widgetd.socket widgetd.service litestream'), and run this again", db)
	}
	return nil
}

// copyChosen brings the copy that was chosen to where it is made whole and checked.
func (e *env) copyChosen(r *restoreRun, from string) (err error) {
	told := e.progress("")
	defer told.end()
	told.step("copying "+from, r.copy, fileSize(from))
	if from == theReplica {
		err = e.restoreReplica(r)
	} else {
		err = r.copyFrom(from, e.stdin)
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: what this user can't read comes by standard input: 'widgetd restore - <FILE'", err)
	}
	if err == nil {
		told.step("checking the copy", "", 0)
		err = r.settle()
	}
	return err
}

// theReplica stands for a file where Litestream makes the copy.
const theReplica = "the replica"

// restoreReplica makes the copy by Litestream, of what it has replicated in the epoch that the file beside the database
// names.
func (e *env) restoreReplica(r *restoreRun) error {
	in, err := readEpochFile(epochPath(r.db))
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(e.ctx, restoreLimit)
	defer cancel()
	_, err = runLitestream(limited, in, e.litestreamRestore(r.copy, r.db)...)
	return err
}

// lastEventText says of when the last event of a copy is.
func lastEventText(path string) string {
	at, _, err := lastEvent(path, "mode=ro&immutable=1")
	if err != nil || at.IsZero() {
		return ""
	}
	return fmt.Sprintf(", whose last event is of %s,", at)
}

// lostText says what is lost when the copy takes the place of the database: by number with -json, and as text.
func (r *restoreRun) lostText() (lost map[string]int, text string) {
	if r.present == nil {
		text = "There is no database now"
		if aside := movedAsideOf(r.db); len(aside) > 0 {
			text += "; what was moved away from there before is " + strings.Join(aside, ", ")
		}
		return nil, text
	}
	rows, err := r.lost()
	if err != nil {
		return nil, "What is lost by that is not known, since the present file can't be read: " +
			oneLineError{err}.Error()
	}
	lost, counts := map[string]int{}, []string{}
	for _, row := range rows {
		if lost[row.table] = row.n; row.n > 0 {
			counts = append(counts, countedUpTo(row.n, row.one, row.many))
		}
	}
	text = "Later than that, and lost by it: "
	if r.foreign {
		text = "That is another database, whose copy it is not, by its main account. Lost with it: "
	}
	return lost, text + cmp.Or(strings.Join(counts, ", "), "no row")
}

// afterRestoring returns what is to be done once the copy is in place, in this order.
func (e *env) afterRestoring(r *restoreRun) (next []string, err error) {
	keyFile, err := e.file("key")
	if err != nil {
		return nil, err
	}
	keys, err := loadKeyring(keyFile)
	if err != nil {
		next = append(next, "key: "+err.Error())
	}
	pair, err := readEpochFile(epochPath(r.db))
	if err != nil {
		return nil, err
	}
	if r.version < schemaVersion {
		next = append(next, fmt.Sprintf("its schema has version %d: 'widgetd upgrade', which the service's unit runs "+
			"before the start; to go back to the program that made it, install that one before the start", r.version))
	} else if keys != nil {
		err = readFile(r.copy, func(q *queries) error {
			checks := foreignOf(e.nouns)
			checks = append(checks, func(q *queries, keys *keyring) ([]string, error) {
				return lackingKeys(q, keys, e.now())
			})
			for _, check := range checks {
				lines, err := check(q, keys)
				if err != nil {
					return err
				}
				for _, line := range lines {
					next = append(next, "key: "+line)
				}
			}
			return nil
		})
	}
	if pair.Number > 0 {
		next = append(next, "of a pair: 'widgetd promote'")
	}
	return append(next, "if 'date' shows the right time: 'widgetd clock accept'",
		"'sudo systemctl start widgetd.socket widgetd.service', and litestream where it runs",
		"do again what was done since the copy: erase addresses, revoke tokens, suspend licences, close accounts"), err
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
	if service != nil && len(faults) == 0 && (service.Damage != nil || service.found("rows_unreadable").Count > 0) {
		notes = append(notes, e.clearDamage(db, service))
	}
	lines := slices.Concat(faults, notes)
	if len(faults) == 0 {
		lines = append([]string{"ok: pages, indexes, foreign keys, schema, payments, permissions, key file"}, notes...)
	}
	result := map[string]any{"ok": len(faults) == 0, "faults": append([]string{}, faults...), "notes": notes}
	if err := e.print(result, strings.Join(lines, "\n")); err != nil {
		return err
	}
	if len(faults) == 0 {
		return nil
	}
	step := ""
	if slices.ContainsFunc(faults, wantsRestore) {
		step = ": stop the service, and put a copy in its place with 'widgetd restore'"
	}
	return fmt.Errorf("faults in %s: %d%s", db, len(faults), step)
}

// clearDamage tells the service that a check of the whole file has passed, and returns a note of what it had met.
func (e *env) clearDamage(db string, service *serviceStatus) string {
	met, times := "that "+service.found("rows_unreadable").ID, int64(0)
	if d := service.Damage; d != nil {
		met, times = "damage since "+d.At.String(), d.Times
	}
	over, err := reportCheck(e.ctx, db, times)
	switch {
	case err != nil:
		return "note: the service can't be told that this passed: restart it: " + err.Error()
	case over:
		return "note: the service met " + met + "; its health does not tell of it any more"
	}
	return "note: the service has met damage since this check began: check again"
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

// copyNotes returns a line for each copy that upgrades and restores have left of a database.
func copyNotes(database string) []string {
	notes := []string{}
	for _, name := range upgradeCopies(database) {
		what := "a copy from before an upgrade: remove it once you are sure that you will not go back"
		if draftSuffix().MatchString(strings.TrimPrefix(name, database)) {
			what = "an unfinished copy of an upgrade that was stopped: remove it"
		}
		notes = append(notes, fmt.Sprintf("note: %s (%d KiB) is %s", name, fileSize(name)>>10, what))
	}
	for _, name := range movedAsideOf(database) {
		notes = append(notes, fmt.Sprintf("note: %s (%d KiB) was put aside by a restore: remove its directory once "+
			"you miss nothing of it", name, fileSize(name)>>10))
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
