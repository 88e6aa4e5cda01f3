package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestInit_neverTouchesWhatIsThere(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	before := directory(t, o.dir)
	o.fails("exist already, and init never changes them", "init")
	if !maps.Equal(directory(t, o.dir), before) {
		t.Error("a file was changed")
	}
	must(t, os.Remove(o.env["WIDGETD_DB"])) // the key file outlives its database
	if out := o.do("init"); !strings.Contains(out, o.env["WIDGETD_KEY"]+": existed already") {
		t.Errorf("init: %s", out)
	}
	if directory(t, o.dir)["widgetd.key"] != before["widgetd.key"] {
		t.Error("the key file was changed")
	}
	equal(t, "files", dirNames(t, o.dir), []string{"widgetd.db", "widgetd.key"})
	dir := filepath.Join(o.dir, "new")
	files := []string{"init", "-db", filepath.Join(dir, "x.db"), "-key", filepath.Join(dir, "x.key")}
	o.fails("is not a base address", append(files, "-base-url", "https://example.com/")...)
	o.fails("lacks its scheme", append(files, "-origin", "example.com")...)
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused init made a directory")
	}
	o.do(files...)
	hasMode(t, dir, 0o700)
}

func TestFile_isForItsOwnerOnlyWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	s := newService(t)
	s.post("/widget/leads", anyLead).is(200)
	s.check(s.store.backup(filepath.Join(s.dir, "copy.db"), nil))
	for _, name := range []string{"widgetd.db", "widgetd.db-wal", "widgetd.db-shm", "widgetd.key", "copy.db"} {
		hasMode(t, filepath.Join(s.dir, name), 0o600)
	}
}

func TestFile_draftOfACommandThatWasKilledIsNamed(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	in := func(name string) string { return filepath.Join(o.dir, name) }
	for draft, command := range map[string][]string{
		in("copy.db.new"):     {"backup", in("copy.db")},
		in("second.db.new"):   {"init", "-db", in("second.db")},
		in("widgetd.key.new"): {"key", "add"},
	} {
		writeFile(t, draft, "half")
		o.fails("remove "+draft, command...)
		if text := fileBytes(t, draft); string(text) != "half" {
			t.Errorf("%q touched the draft of another: %q", command, text)
		}
		must(t, os.Remove(draft))
		o.do(command...)
	}
}

// A badFile is what was done to a database, and what the refusal to use it says.
type badFile struct {
	name string
	make func(t testing.TB, path string)
	want string
}

// bySQL runs statements on a database.
func bySQL(statements string) func(t testing.TB, path string) {
	return func(t testing.TB, path string) { raw(t, path, statements) }
}

// byDamage changes bytes of a database.
func byDamage(at int64, bytes ...byte) func(t testing.TB, path string) {
	return func(t testing.TB, path string) { damage(t, path, at, bytes...) }
}

// byWriting puts something else in the place of a database.
func byWriting(text string) func(t testing.TB, path string) {
	return func(t testing.TB, path string) { writeFile(t, path, text) }
}

// unusableFiles are files that nothing can be done with.
var unusableFiles = []badFile{
	{"missing", func(_ testing.TB, path string) { os.Remove(path) }, "run 'widgetd init' first, or mount the disk"},
	{"empty", byWriting(""), "is empty: restore a backup"},
	{"text", byWriting(strings.Repeat("hello\n", 50)), "is not an SQLite database"},
	{"a few bytes", byWriting("SQLite format 3\x00"), "another program"},
	{"zeros", byWriting(strings.Repeat("\x00", 8192)), "is not an SQLite database, or its header is damaged"},
	{"another program's", bySQL("PRAGMA application_id = 7"), "another program: name widgetd's own with -db"},
	{"header damaged", byDamage(0, 'X'), "header is damaged: restore a backup"},
	{"page size damaged", byDamage(16, 0xff, 0xff), "run 'widgetd check', or restore a backup"},
	{"cut off", func(_ testing.TB, path string) { os.Truncate(path, 5000) },
		"run 'widgetd check', or restore a backup"},
	{"root page damaged", byDamage(100, make([]byte, 200)...), "run 'widgetd check', or restore a backup"},
	{"a directory", func(_ testing.TB, path string) { os.Remove(path); os.Mkdir(path, 0o700) }, "is a directory"},
}

// badFiles are files that must not be served.
var badFiles = append(slices.Clone(unusableFiles),
	badFile{"of another program, and nothing else",
		func(t testing.TB, path string) { os.Remove(path); raw(t, path, "CREATE TABLE x (y)") },
		"another program: name widgetd's own with -db"},
	badFile{"of a newer program", bySQL("PRAGMA user_version = 99"),
		fmt.Sprintf("schema version 99, this program knows %d: run a newer widgetd", schemaVersion)},
	badFile{"a table missing", bySQL("PRAGMA foreign_keys=0; DROP TABLE probes"), "the table probes is missing"})

func TestFile_orKeyThatIsBadIsRefusedByServeInOneLine(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) {
			o := newOperator(t)
			bad.make(t, o.env["WIDGETD_DB"])
			before, _ := os.ReadFile(o.env["WIDGETD_DB"])
			oneLine(t, o.fails(bad.want, "serve", "-addr", "127.0.0.1:0"), o.env["WIDGETD_DB"])
			isUnchanged(t, o.env["WIDGETD_DB"], before)
		})
	}
	o := newOperator(t)
	must(t, os.Chmod(o.env["WIDGETD_KEY"], 0o604))
	o.fails("run 'chmod 600 "+o.env["WIDGETD_KEY"]+"'", "serve", "-addr", "127.0.0.1:0")
	o.fails("run 'widgetd init' first, or mount the disk that holds it, or give its path with -key",
		"serve", "-addr", "127.0.0.1:0", "-key", filepath.Join(o.dir, "none"))
}

func TestFile_pathMayHaveOddCharacters(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	names := []string{"a b", "100%", "50%41", "what?mode=memory", "sharp#1", "semi;colon", "and&_pragma=query_only(1)",
		"plus+", "ü", `quote'"`, "file:x"}
	if !inFull() {
		names = []string{strings.Join(names, "")}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			must(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, name+".db")
			must(t, createStore(path, named("first")))
			s := openTestStore(t, path, storeOptions{})
			must(t, s.update(t.Context(), named("second")))
			err := errors.Join(s.backup(filepath.Join(dir, name+".copy"), nil), s.truncateWAL(time.Second))
			if err != nil {
				t.Error(err)
			}
			isSound(t, path)
			must(t, s.close())
			equal(t, "files", dirNames(t, dir), []string{name + ".copy", name + ".db"})
		})
	}
}

func TestFile_behindASymbolicLinkIsTheOneThatTheLinkNames(t *testing.T) {
	t.Parallel()
	path := makeStore(t)
	link := filepath.Join(t.TempDir(), "link.db")
	must(t, os.Symlink(path, link))
	s := openTestStore(t, link, storeOptions{})
	must(t, s.update(t.Context(), named("through the link")))
	if s.walSize() == 0 {
		t.Error("the log was not found")
	}
	if err := s.backup(link+".copy", nil); err != nil {
		t.Error(err)
	}
	rename(t, path+"-wal", path+"-away")
	if err := s.inPlace(); !errors.Is(err, errStorage) {
		t.Errorf("its log taken away: %v", err)
	}
	faults, err := checkFile(link)
	if err != nil || len(faults) != 1 || !strings.Contains(faults[0], "-wal is missing") {
		t.Errorf("check without the log: %q, %v", faults, err)
	}
	rename(t, path+"-away", path+"-wal")
	must(t, errors.Join(os.Remove(link), os.Symlink(makeStore(t), link)))
	if err := s.inPlace(); !errors.Is(err, errStorage) {
		t.Errorf("the link names another file: %v", err)
	}
}

func TestFile_pathTooLongForSQLiteIsRefusedWithTheNextStep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("a", 250), strings.Repeat("b", 250), "x.db")
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	oneLine(t, createStore(path, named("first")), "keep its path under 500 bytes")
	equal(t, "files left behind", len(dirNames(t, filepath.Dir(path))), 0)
}

func TestWAL_thatAReaderKeepsFromBeingEmptiedIsReportedOnce(t *testing.T) {
	t.Parallel()
	const most = 5 << 20 // more than SQLite lets it have by itself
	small := func(o *storeOptions, _ *serverOptions) { o.maxWAL = most }
	inBubble(t, func(t *testing.T, s *service) {
		db, err := sql.Open("sqlite", "file:"+s.store.path+"?mode=ro")
		s.check(err)
		defer db.Close()
		reader, err := db.Begin()
		s.check(err)
		var n int
		s.check(reader.QueryRow(`SELECT count(*) FROM leads`).Scan(&n)) // the transaction begins here
		stop := s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, "") })
		a := s.health().is(200)
		if a.text("status") != "pass" || strings.Contains(a.body, "logSize") {
			t.Errorf("a small log: %s", a.body)
		}
		for s.store.walSize() <= most {
			s.change(named(strings.Repeat("x", 1<<20)))
		}
		const said = "the write-ahead log is large: a transaction that another program keeps open"
		time.Sleep(5 * upkeepInterval)
		stop()
		equal(t, "lines", strings.Count(s.log.String(), said), 1)
		a = s.get("/widget/health").is(200) // which writes
		observed := fmt.Sprintf(`"sqlite:logSize":[{"componentType":"datastore","observedValue":%d,`,
			s.store.walSize())
		if a.text("status") != "warn" || !strings.Contains(a.body, observed) {
			t.Errorf("health: %s", a.body)
		}
		var metrics strings.Builder
		s.server.writeMetrics(&metrics)
		if !strings.Contains(metrics.String(), fmt.Sprintf("\nwidgetd_log_bytes %d\n", s.store.walSize())) {
			t.Errorf("metrics: %s", metrics.String())
		}
		s.check(reader.Rollback())
		for range 3 { // the first moves the log into the file, the next begins it anew
			s.change(named("small"))
		}
		if a := s.get("/widget/health").is(200); strings.Contains(a.body, "logSize") {
			t.Errorf("health: %s", a.body)
		}
	}, small)
}

func TestBackup_replacesNoFileThatComesWhileItRuns(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.change(named(strings.Repeat("x", 8<<20))) // so that it takes a while
	path := filepath.Join(s.dir, "copy.db")
	ended := make(chan error, 1)
	go func() { ended <- s.store.backup(path, nil) }()
	for {
		if _, err := os.Stat(path + ".new"); err == nil {
			break
		}
		runtime.Gosched()
	}
	s.check(os.WriteFile(path, []byte("mine"), 0o600))
	if err := <-ended; !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file that came meanwhile: %v", err)
	}
	if text, _ := os.ReadFile(path); !bytes.Equal(text, []byte("mine")) {
		t.Errorf("the file that came meanwhile now has %d bytes", len(text))
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the draft is left behind")
	}
}

func TestBackup_thatCannotBeMadeSaysWhy(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	err := o.fails("no such file or directory", "backup", filepath.Join(o.dir, "none", "copy.db"))
	if err != nil && strings.Contains(err.Error(), "remove") {
		t.Errorf("nothing is there to remove: %v", err)
	}
	copied := filepath.Join(o.dir, "copy.db")
	writeFile(t, copied+".new", "")
	o.fails("remove "+copied+".new if no other command is making it", "backup", copied)
	must(t, os.Remove(copied+".new"))
	o.do("backup", copied)
	before := fileBytes(t, copied)
	o.fails(copied+": file already exists", "backup", copied)
	isUnchanged(t, copied, before)
	t.Run("of a database that is not as it should be", func(t *testing.T) {
		o := newOperator(t)
		raw(t, o.env["WIDGETD_DB"], `CREATE TABLE mine (a TEXT)`) // which is no fault of a copy
		o.do("backup", filepath.Join(o.dir, "first.db"))
		raw(t, o.env["WIDGETD_DB"], `DROP INDEX leads_digest`)
		err := o.fails("the copy is not sound: schema: index leads_digest is missing",
			"backup", filepath.Join(o.dir, "copy.db"))
		if strings.Contains(err.Error(), "nil") {
			t.Error(err)
		}
	})
	t.Run("on a full disk", func(t *testing.T) {
		dir := smallDisk(t, 64<<10)
		o.t = t
		o.fails("The disk is full", "backup", filepath.Join(dir, "copy.db"))
		equal(t, "files left behind", len(dirNames(t, dir)), 0)
	})
}

// rowOfNobody adds a row whose account is not there.
const rowOfNobody = `PRAGMA foreign_keys=0; INSERT INTO widgets (id, account_id, name, created_at)
	VALUES ('wgt_x', 'acct_gone', 'x', '2026-01-01T00:00:00Z')`

func TestCheck_saysWhatIsTrueOfTheDirectory(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for mode, lists := range map[os.FileMode]bool{0o700: false, 0o711: false, 0o750: true, 0o755: true} {
		must(t, os.Chmod(filepath.Dir(o.env["WIDGETD_DB"]), mode))
		if out := o.do("check"); strings.Contains(out, "note: others can list what is in ") != lists {
			t.Errorf("%04o: %s", mode, out)
		}
	}
	for mode, want := range map[os.FileMode]string{0o770: "(mode 0770), and put", 0o702: "run 'chmod go-w "} {
		must(t, os.Chmod(filepath.Dir(o.env["WIDGETD_DB"]), mode))
		out, err := o.try("check")
		failIf(t, err == nil, "%04o passes", mode)
		contains(t, out, "others may write in ", want)
	}
}

func TestCheck_tellsEveryFaultAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	key := func(change func(key string) error) func(testing.TB, string) {
		return func(t testing.TB, db string) { must(t, change(strings.TrimSuffix(db, "db")+"key")) }
	}
	at := func(part []byte, bytes ...byte) func(testing.TB, string) {
		return func(t testing.TB, db string) { damage(t, db, lastIndex(t, db, part), bytes...) }
	}
	for i, fault := range []badFile{
		{"a database that others can read", func(t testing.TB, db string) { must(t, os.Chmod(db, 0o644)) },
			"(mode 0644): run 'chmod 600 "},
		{"a directory in which others may write", func(t testing.TB, db string) {
			must(t, os.Chmod(filepath.Dir(db), 0o1777))
		}, "permissions: others may write in "},
		{"a key that others can read", key(func(key string) error { return os.Chmod(key, 0o640) }),
			"other users can read the key file"},
		{"no key", key(os.Remove), "no key file at"},
		{"a damaged key", key(func(key string) error { return os.Truncate(key, 100) }),
			"is damaged: restore it from a copy"},
		{"no database", func(t testing.TB, db string) { must(t, os.Remove(db)) }, "no database at"},
		{"a row without its account", bySQL(rowOfNobody), "foreign key: 1 of widgets names a row of accounts that " +
			"is not there: see SELECT * FROM widgets WHERE account_id NOT IN (SELECT id FROM accounts)"},
		{"a flipped byte in what an index names", at(addressDigest("flip-me@example.com"), 'F'), "integrity: "},
		{"a page of zeros", func(t testing.TB, db string) {
			damage(t, db, lastIndex(t, db, []byte("flip-me@example.com"))/4096*4096, make([]byte, 4096)...)
		}, "integrity: "},
		{"an index missing", bySQL(`DROP INDEX leads_digest`), "schema: index leads_digest is missing"},
		{"a view changed", bySQL(`DROP VIEW v_audit; CREATE VIEW v_audit AS SELECT 1`),
			"schema: view v_audit is not as this program makes it"},
		{"a table of somebody's own", bySQL(`CREATE TABLE mine (a TEXT)`),
			"schema: table mine is not this program's: "},
		{"a trigger of somebody's own", bySQL(`CREATE TRIGGER mine AFTER INSERT ON leads
			BEGIN DELETE FROM probes; END`), "schema: trigger mine is not this program's: drop it"},
		{"a column of somebody's own", bySQL(`ALTER TABLE leads ADD COLUMN mine TEXT`),
			"schema: table leads is not as this program makes it"},
		{"a column missing", bySQL(`DROP VIEW v_audit; ALTER TABLE events DROP COLUMN data`),
			"schema: table events is not as this program makes it"},
		{"an index of another column", bySQL(`DROP INDEX leads_digest; CREATE INDEX leads_digest ON leads (email)`),
			"schema: index leads_digest is not as"},
		{"Litestream's table and SQLite's", bySQL(`CREATE TABLE _litestream_seq (a); ANALYZE`), ""},
		{"another program's file", bySQL(`PRAGMA application_id = 1`), "another program"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			o := newOperator(t)
			o.addLeads("flip-me@example.com")
			db := o.env["WIDGETD_DB"]
			fault.make(t, db)
			before, _ := os.ReadFile(db)
			out, err := o.try("check")
			if isUnchanged(t, db, before); fault.want == "" {
				must(t, err)
				return
			}
			var usage usageError
			failIf(t, err == nil || errors.As(err, &usage), "%v", err)
			contains(t, out, fault.want)
			contains(t, fmt.Sprint(err), "faults in "+db+": ")
			const step = ": stop the service, and put a copy in its place with 'widgetd restore'"
			if strings.HasPrefix(fault.want, "integrity: ") != strings.HasSuffix(err.Error(), step) {
				t.Errorf("it ends with %q", err)
			}
			if i%3 > 0 && !inFull() {
				return
			}
			asJSON, _ := o.try("check", "-json")
			contains(t, asJSON, `"faults":["`, `"ok":false`)
		})
	}
}

// lastIndex is where a part of a file begins for the last time.
func lastIndex(t testing.TB, path string, part []byte) int64 {
	t.Helper()
	at := bytes.LastIndex(fileBytes(t, path), part)
	failIf(t, at < 0, "%s does not hold %q", path, part)
	return int64(at)
}

// The keys of licences lie in the order of their hashes: looked up in that, each licence would be on a page far from
// the last one.
func TestCheck_looksForeignKeysUpInTheOrderOfTheirIndex(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", fileURL(makeStore(t)))
	must(t, err)
	defer db.Close()
	for table, index := range map[string]string{"license_keys": "license_keys_license", "devices": "devices_seats"} {
		steps, err := explain(db, lostReferences([]string{table, "license_id", "licenses", "id"}))
		must(t, err)
		if !matches(`c USING COVERING INDEX `+index, strings.Join(steps, "\n")) {
			t.Errorf("%s: %q", table, steps)
		}
	}
}

func TestFile_headerDamagedWhileOpenIsNoticedUntilItIsMended(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, makeStore(t), storeOptions{})
	for _, at := range []int64{0, 68} { // what says SQLite, what says whose
		head := fileBytes(t, s.path)
		damage(t, s.path, at, 'X')
		if s.recheckHeader(); !errors.Is(s.inPlace(), errStorage) {
			t.Errorf("byte %d changed: %v", at, s.inPlace())
		}
		damage(t, s.path, at, head[at])
		if s.recheckHeader(); s.inPlace() != nil {
			t.Errorf("byte %d mended: %v", at, s.inPlace())
		}
	}
}
