package main

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
)

// This file has how a copy takes the place of a database. The copy is made in the directory for proofs, checked there,
// and made one file. Then the present database is moved into a directory of its own, and the copy to where it was.

// The kinds of copies that are kept of a database.
const (
	copyOfBackup  = "backup"         // the unit for backups has written it, or somebody as the README says
	copyOfUpgrade = "before upgrade" // an upgrade has
	copyAside     = "put aside"      // it was the database, until another copy was restored
)

// A keptCopy is a copy of a database that lies beside it.
type keptCopy struct {
	Number        int    `json:"number"` // by which 'widgetd restore' takes it
	File          string `json:"file"`
	Kind          string `json:"kind"`
	LastEventAt   stamp  `json:"last_event_at"` // zero: there is none, or it can't be read
	Bytes         int64  `json:"bytes"`
	SchemaVersion int    `json:"schema_version"` // 0: it is no database of this program, or damaged

	lastSeq int64 // of its last event: which of two is newer whose last events are of the same second
}

// keptCopies returns the copies that lie beside a database, the newest first, and after them what was put aside.
func keptCopies(db string) []keptCopy {
	all, dir := []keptCopy{}, filepath.Dir(db)
	add := func(kind string, files ...string) {
		for _, file := range files {
			kept := keptCopy{File: file, Kind: kind, Bytes: fileSize(file)}
			if f, err := os.Open(file); err == nil {
				kept.SchemaVersion, _ = headerVersion(f)
				f.Close()
			}
			kept.LastEventAt, kept.lastSeq, _ = lastEvent(file, "mode=ro&immutable=1")
			all = append(all, kept)
		}
	}
	in := func(pattern string) (files []string) {
		names, _ := fs.Glob(os.DirFS(dir), pattern) // where this program can't read, there is none for it
		for _, name := range names {
			files = append(files, filepath.Join(dir, name))
		}
		return files
	}
	add(copyOfBackup, append(in("backup/*.db"), in("backup*.db")...)...)
	for _, file := range upgradeCopies(db) {
		if !draftSuffix().MatchString(strings.TrimPrefix(file, db)) {
			add(copyOfUpgrade, file)
		}
	}
	all = slices.DeleteFunc(all, func(kept keptCopy) bool { return kept.File == db })
	sortNewestFirst := func(some []keptCopy) {
		sort.Slice(some, func(i, j int) bool {
			a, b := &some[i], &some[j]
			return cmp.Or(b.LastEventAt.Compare(a.LastEventAt.Time), cmp.Compare(b.lastSeq, a.lastSeq),
				strings.Compare(b.File, a.File)) < 0
		})
	}
	sortNewestFirst(all)
	copies := len(all)
	for _, file := range movedAsideOf(db) {
		add(copyAside, file)
	}
	sortNewestFirst(all[copies:])
	for i := range all {
		all[i].Number = i + 1
	}
	return all
}

// movedAsideOf returns the databases that restoring has moved aside from a path.
func movedAsideOf(db string) []string { return besideIn(db, "lost-*") }

// besideIn returns the databases of the same name in the directories beside one whose names match a pattern.
func besideIn(db, pattern string) (files []string) {
	dirs, _ := fs.Glob(os.DirFS(filepath.Dir(db)), pattern)
	for _, dir := range dirs {
		if file := filepath.Join(filepath.Dir(db), dir, filepath.Base(db)); fileExists(file) {
			files = append(files, file)
		}
	}
	return files
}

// readUnchanged opens a database of any version with the options of a URI, which let nothing be written, calls f with
// it and closes it.
func readUnchanged(path, options string, f func(*queries) error) error {
	db, err := sql.Open("sqlite", fileURL(path)+"?"+options+"&_pragma=busy_timeout(500)&_pragma=trusted_schema(0)")
	if err != nil {
		return err
	}
	defer db.Close()
	return f(newQueries(db.PrepareContext))
}

// lastEvent returns when the last event of a database was written, and its number; zero: it has none. See
// readUnchanged for options.
func lastEvent(path, options string) (at stamp, seq int64, err error) {
	err = readUnchanged(path, options, func(q *queries) error {
		return except(q.one(`SELECT at, seq FROM events ORDER BY seq DESC LIMIT 1`, nil, &at, &seq), errNotFound)
	})
	return at, seq, err
}

// A restoreRun is a copy that is to take the place of a database.
type restoreRun struct {
	db   string   // the path of the database, without links
	dir  proofDir // where the copy is made
	copy string   // its path there

	version int         // of the copy's schema
	present fs.FileInfo // of the database; nil: there is none
	foreign bool        // the copy is of another database, with another main account: see lost
}

// beginRestoring makes a directory for the copy. The caller removes it.
func beginRestoring(db string) (r *restoreRun, err error) {
	r = &restoreRun{db: db}
	if r.present, err = os.Stat(db); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r.dir, err = openProofDir(proofPath(db, ""))
	if errors.Is(err, errProofRuns) {
		err = errors.New("another restore runs, or a proof is being made: wait for its end")
	}
	if err != nil {
		return nil, err
	}
	r.copy = filepath.Join(r.dir.Name(), "copy.db")
	return r, nil
}

// copyFrom copies a database, with what belongs to it, to where the copy is made; "-" is what stdin has. It changes
// nothing where that lies.
func (r *restoreRun) copyFrom(from string, stdin io.Reader) error {
	if from == "-" {
		return copyInto(r.copy, stdin)
	}
	there, err := os.Stat(from)
	if err != nil {
		return err
	}
	if r.present != nil && os.SameFile(there, r.present) {
		return fmt.Errorf("%s is the database itself: name a copy of it", from)
	}
	file, err := openFile(from)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := errors.Join(checkNotFollowed(from), checkWAL(from)); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-journal"} {
		if suffix != "" && fileSize(realPath(from)+suffix) == 0 {
			continue
		}
		if err := restoreBackup(realPath(from)+suffix, r.copy+suffix); err != nil {
			return err
		}
	}
	return nil
}

// settle checks the copy, by the means of its own schema, makes it one file with another identity, and with the mode
// and the owner of the database.
func (r *restoreRun) settle() error {
	db, err := sql.Open("sqlite", fileURL(r.copy)+"?mode=rw&_pragma=trusted_schema(0)"+
		"&_pragma=ignore_check_constraints(1)") // rows that break a rule are in a faithful copy, too
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	q := newQueries(db.PrepareContext)
	faults, err := r.faults(q)
	if len(faults) > 0 {
		err = unsound(faults)
	}
	if err == nil && r.version == schemaVersion { // an older schema has no identity
		_, err = db.Exec(newIdentity)
	}
	if err == nil {
		_, err = oneValue[string](q, `PRAGMA journal_mode = DELETE`) // what its write-ahead log had is in the file then
	}
	q.close()
	if err := errors.Join(err, db.Close()); err != nil {
		return oneLineError{err}
	}
	file, err := os.OpenFile(r.copy, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if r.present != nil {
		if err := copyOwnerAndMode(file, r.present); err != nil {
			return err
		}
	}
	return errors.Join(file.Sync(), syncDir(filepath.Dir(r.copy)))
}

// faults reads the whole copy, notes its version, and returns what is wrong with its pages, foreign keys and tables.
// The error says why it can't be used.
func (r *restoreRun) faults(q *queries) (faults []string, err error) {
	if r.version, err = oneValue[int](q, `PRAGMA user_version`); err == nil {
		err = versionError(r.version)
	}
	if err != nil {
		return nil, err
	}
	if faults, err = q.faultsBy(`PRAGMA integrity_check(20)`); err != nil || len(faults) > 0 {
		return faults, err
	}
	if r.version == schemaVersion {
		faults, _, err = diffSchema(q)
		return faults, err
	}
	_, err = releasedParts(q, r.version)
	return nil, err
}

// lostRows are rows of one kind, and how many of the present database are later than the copy.
type lostRows struct {
	table, one, many string
	newest           string // id in the copy; "": it has none
	n                int
}

// lost returns how many rows of the present database are later than those of the copy; all, if that is of another
// database. The error says why that is not known.
func (r *restoreRun) lost() ([]lostRows, error) {
	mains := []string{}
	rows := []lostRows{{table: "leads", one: "lead", many: "leads"}, {table: "orders", one: "order", many: "orders"},
		{table: "licenses", one: "licence", many: "licences"}, {table: "events", one: "event", many: "events"}}
	each := func(read func(q *queries, row *lostRows) error) func(q *queries) error {
		return func(q *queries) error {
			tables, err := q.texts(`SELECT name FROM sqlite_schema WHERE type = 'table'`)
			if err == nil && slices.Contains(tables, "accounts") {
				var main []string
				main, err = q.texts(`SELECT id FROM accounts WHERE is_main = 1`)
				mains = append(mains, main...)
			}
			r.foreign = len(mains) == 2 && mains[0] != mains[1]
			for i := range rows {
				if err == nil && slices.Contains(tables, rows[i].table) { // an older schema lacks some
					err = read(q, &rows[i])
				}
			}
			return err
		}
	}
	err := readUnchanged(r.copy, "mode=ro&immutable=1", each(func(q *queries, row *lostRows) error {
		return q.one(`SELECT coalesce(max(id), '') FROM `+row.table, nil, &row.newest)
	}))
	if err == nil {
		err = checkLogBelongs(r.db)
	}
	options := "mode=ro"
	if fileSize(r.db+"-wal") == 0 {
		options += "&immutable=1" // which makes no file beside it
	}
	if err == nil {
		err = readUnchanged(r.db, options, each(func(q *queries, row *lostRows) error {
			return q.one(`SELECT count(*) FROM `+row.table+` WHERE ? OR id > ?`, []any{r.foreign, row.newest}, &row.n)
		}))
	}
	return rows, storageError(err)
}

// filesAround returns the paths of what lies around a database and belongs to that file, not to the machine, and is
// there.
func filesAround(db string) (there []string) {
	for _, file := range []string{db + "-journal", db + "-wal", db + "-shm", identityPath(db),
		identityPath(db) + ".new", followerPath(db), promotingPath(db)} {
		if _, err := os.Lstat(file); err == nil {
			there = append(there, file)
		}
	}
	return there
}

// replace moves the database aside, with all its files, and the copy to where it was. It returns the directory that
// the database is in then, "" if there was none. Wherever it is broken off, the database is whole, with its
// write-ahead log, where it was or in that directory: the other files are linked there first; then its own is moved,
// so that nobody can open it without them; and then they lose their first names. Litestream begins with all of the
// copy, as of another database, once what it keeps beside this one is gone.
func (r *restoreRun) replace(now time.Time) (aside string, err error) {
	around, replication := filesAround(r.db), litestreamPath(r.db)
	if r.present != nil || len(notYetLinked(r.db, around)) > 0 || fileExists(replication) {
		if aside, err = r.moveAside(around, now); err != nil {
			return "", fmt.Errorf("the database is where it was, and as it was: %w", err)
		}
	}
	if err := r.moveIn(around, aside); err != nil {
		return aside, fmt.Errorf("there is no database at %s now, and what was is in %s; restore again: %w", r.db,
			filepath.Join(cmp.Or(aside, "no other place"), filepath.Base(r.db)), err)
	}
	return aside, nil
}

// notYetLinked returns those of the files around a database that have no second name in a directory that an earlier
// try, which was killed, has moved it to.
func notYetLinked(db string, around []string) (files []string) {
	for _, file := range around {
		info, err := os.Lstat(file)
		named := slices.ContainsFunc(movedAsideOf(db), func(other string) bool {
			second, secondErr := os.Lstat(filepath.Join(filepath.Dir(other), filepath.Base(file)))
			return err == nil && secondErr == nil && os.SameFile(info, second)
		})
		if !named {
			files = append(files, file)
		}
	}
	return files
}

// moveAside moves the database's own file into a new directory, once the files around it are linked there. After an
// error everything is as it was.
func (r *restoreRun) moveAside(around []string, now time.Time) (aside string, err error) {
	dir := filepath.Dir(r.db)
	if aside, err = os.MkdirTemp(dir, "lost-"+now.Format(time.DateOnly)+"-"); err != nil {
		return "", err
	}
	for _, file := range around {
		if err == nil {
			err = os.Link(file, filepath.Join(aside, filepath.Base(file)))
		}
	}
	if err == nil {
		err = errors.Join(syncDir(aside), syncDir(dir))
	}
	if err == nil && r.present != nil {
		err = os.Rename(r.db, filepath.Join(aside, filepath.Base(r.db)))
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(aside)) // there are only second names in it
	}
	return aside, nil
}

// moveIn removes the first names of what was moved aside, and moves the copy to where the database was.
func (r *restoreRun) moveIn(around []string, aside string) error {
	dir, replication := filepath.Dir(r.db), litestreamPath(r.db)
	if aside != "" {
		if err := errors.Join(syncDir(aside), syncDir(dir)); err != nil {
			return err
		}
	}
	for _, file := range around {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	if fileExists(replication) {
		if err := os.Rename(replication, filepath.Join(aside, filepath.Base(replication))); err != nil {
			return err
		}
	}
	if err := syncDir(dir); err != nil { // before the copy is there: it would be beside the log of another file
		return err
	}
	if _, err := os.Lstat(r.db); err == nil {
		return errors.New("somebody has made another one meanwhile")
	}
	if err := os.Rename(r.copy, r.db); err != nil {
		return err
	}
	return syncDir(dir)
}

// What is known of whether the replica and the backups can be restored: what was restored last and found good.

// The places from which a database is restored.
const (
	proofReplica = "replica"
	proofBackup  = "backup"
)

// proofOverdue is how old the last proof is when health warns: it is made once a day, and an hour later at most.
const proofOverdue = 26 * time.Hour

// What health says of a proof that is overdue, by what would be restored.
var faultsUnproven = map[string]string{
	proofReplica: "for 26 hours nothing has proven that the replica can be restored",
	proofBackup:  "for 26 hours nothing has proven that a backup can be restored",
}

// A proof is what is known of restoring from one place.
type proof struct {
	What       string `json:"what"`
	DueSince   stamp  `json:"due_since"`  // from when on a first one is due
	TriedAt    stamp  `json:"tried_at"`   // zero: never
	ProvedAt   stamp  `json:"proved_at"`  // zero: never
	Behind     int64  `json:"behind"`     // seconds until the replica had what was written when the try began
	Bytes      int64  `json:"bytes"`      // of what was restored
	TXID       string `json:"txid"`       // Litestream's number of its last transaction
	Litestream string `json:"litestream"` // its version at the last try
	Fault      string `json:"fault"`      // what failed in the last try; "": nothing
}

// since returns from when on the next proof is waited for.
func (p *proof) since() stamp {
	if p.ProvedAt.IsZero() {
		return p.DueSince
	}
	return p.ProvedAt
}

// proof returns what is known of restoring from one place; nil: nothing, and no proof is due.
func (q *queries) proof(what string) (*proof, error) {
	p := &proof{}
	err := q.one(`SELECT what, due_since, tried_at, proved_at, behind, bytes, txid, litestream, fault FROM proofs
		WHERE what = ?`, []any{what}, &p.What, &p.DueSince, &p.TriedAt, &p.ProvedAt, &p.Behind, &p.Bytes, &p.TXID,
		&p.Litestream, &p.Fault)
	return orNil(p, err)
}

// wantedProof is proof of the place that counts: the replica where Litestream replicates, else the backups.
func (s *store) wantedProof() (*proof, error) {
	if s.noCheckpoints {
		return s.proof(proofReplica)
	}
	return s.proof(proofBackup)
}

// wantProof has proofs of one place be due from now on, unless they are already.
func (t *tx) wantProof(what string) {
	t.exec(`INSERT OR IGNORE INTO proofs (what, due_since, mark) VALUES (?, ?, '')`, what, t.now)
}

// forgetProofs makes a promoted database be proven anew: its replica begins with it.
func (t *tx) forgetProofs() error {
	t.exec(`UPDATE proofs SET due_since = ?, proved_at = NULL, fault = '' WHERE what = ?`, t.now, proofReplica)
	return nil
}

// markProof begins a try: what is restored must have the mark.
func (t *tx) markProof(what, mark string) {
	t.wantProof(what)
	t.exec(`UPDATE proofs SET mark = ?, tried_at = ? WHERE what = ?`, mark, t.now, what)
}

// endProof writes down what has come of a try.
func (t *tx) endProof(p *proof) {
	t.exec(`UPDATE proofs SET litestream = ?, fault = ? WHERE what = ?`, p.Litestream, p.Fault, p.What)
	if p.Fault == "" {
		t.exec(`UPDATE proofs SET proved_at = ?, behind = ?, bytes = ?, txid = ? WHERE what = ?`, t.now, p.Behind,
			p.Bytes, p.TXID, p.What)
	}
}

// rowCounts are how many rows there are of accounts, licences, orders and payments, of which none is ever removed.
func (q *queries) rowCounts() (n [4]int64, err error) {
	err = q.one(`SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM licenses),
		(SELECT count(*) FROM orders), (SELECT count(*) FROM payments)`, nil, &n[0], &n[1], &n[2], &n[3])
	return n, err
}

// fitsMark returns an error unless a restored copy has the mark, the epoch, and as many rows as there were when the
// mark was written, or more, but no more than there are now.
func (q *queries) fitsMark(what, mark string, in epoch, then, now [4]int64) error {
	has, err := oneValue[string](q, `SELECT mark FROM proofs WHERE what = ?`, what)
	if err = except(err, errNotFound); err != nil || has != mark {
		return errors.Join(errors.New("it does not have what was written just before: "+
			"it is of another database, or of an earlier time"), err)
	}
	was, err := q.epoch()
	if err != nil || was.String() != in.String() {
		return errors.Join(fmt.Errorf("it is of the epoch %s, and this database of %s", was.variable(), in.variable()),
			err)
	}
	counts, err := q.rowCounts()
	for i, n := range counts {
		if n < then[i] || n > now[i] {
			err = errors.Join(err, fmt.Errorf("it has %v accounts, licences, orders and payments, and there were %v "+
				"before and are %v now", counts, then, now))
			break
		}
	}
	return err
}

var errProofRuns = errors.New("another proof is being made")

// A proofDir is a directory of its own in which a copy is restored, mode 0700. Whoever has it open has locked it.
type proofDir struct{ *os.File }

// proofPath returns the path of that directory: widgetd.proof beside widgetd.db, or in another directory.
func proofPath(db, dir string) string {
	name := strings.TrimSuffix(filepath.Base(db), ".db") + ".proof"
	if dir == "" {
		dir = filepath.Dir(realPath(db))
	}
	return filepath.Join(dir, name)
}

// openProofDir makes the directory, or takes the one that a killed run has left, and removes what is in it. No link is
// followed there.
func openProofDir(path string) (d proofDir, err error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return d, err
	}
	d.File, err = os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return d, err
	}
	info, err := d.Stat()
	switch {
	case err != nil:
	case ownerOf(info) != os.Geteuid() || info.Mode().Perm() != 0o700:
		err = fmt.Errorf("%s is not this program's: remove it", path)
	case syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil:
		err = errProofRuns
	default:
		err = d.clear()
	}
	if err != nil {
		d.Close()
	}
	return d, err
}

// clear removes what is in the directory.
func (d proofDir) clear() error {
	entries, err := os.ReadDir(d.Name())
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(d.Name(), entry.Name())))
	}
	return err
}

// remove removes the directory with what is in it.
func (d proofDir) remove() error {
	return errors.Join(d.clear(), os.Remove(d.Name()), d.Close())
}

// removeLeftProof removes the directory beside a database that a killed run has left.
func removeLeftProof(db string) error {
	if _, err := os.Lstat(proofPath(db, "")); err != nil {
		return nil
	}
	d, err := openProofDir(proofPath(db, ""))
	if err != nil {
		return err
	}
	return d.remove()
}
