package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	must(t, os.Mkdir(dir, 0o700))
	for draft, command := range map[string][]string{filepath.Join(dir, "x.db.new"): files,
		o.env["WIDGETD_KEY"] + ".new": {"key", "add"}} { // of a command that was killed
		writeFile(t, draft, "half")
		o.fails("remove "+draft, command...)
		equal(t, "the draft of another", fileText(t, draft), "half")
		must(t, os.Remove(draft))
	}
	must(t, os.RemoveAll(dir))
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
	name := `a b100%50%41what?mode=memorysharp#1semi;colonand&_pragma=query_only(1)plus+üquote'"file:x`
	dir := filepath.Join(t.TempDir(), name)
	must(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, name+".db")
	must(t, createStore(path, named("first")))
	s := openTestStore(t, path, storeOptions{})
	must(t, s.update(t.Context(), named("second")))
	must(t, errors.Join(s.backup(filepath.Join(dir, name+".copy"), nil), s.truncateWAL(time.Second)))
	isSound(t, path)
	must(t, s.close())
	equal(t, "files", dirNames(t, dir), []string{name + ".copy", name + ".db"})
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
	for _, fault := range []badFile{
		{"a database that others can read", func(t testing.TB, db string) { must(t, os.Chmod(db, 0o644)) },
			"(mode 0644): run 'chmod 600 "},
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

// keepCopy writes a backup where the unit has them.
func (o *operator) keepCopy(name string) (file string) {
	o.t.Helper()
	dir := filepath.Join(o.dir, "backup")
	must(o.t, errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)))
	file = filepath.Join(dir, name)
	o.do("backup", file)
	return file
}

// typing runs a command on a terminal, on which somebody types lines. noted is what it asks.
func (o *operator) typing(args []string, lines ...string) (out, noted string, err error) {
	o.t.Helper()
	o.close()
	var stdout, stderr strings.Builder
	var typed []io.Reader
	for _, line := range lines {
		typed = append(typed, strings.NewReader(line+"\n"))
	}
	e := newEnv(o.t.Context(), func(name string) string { return o.env[name] }, &stdout, &stderr)
	e.stdin, e.canAsk = io.MultiReader(typed...), true
	err = e.dispatch(args)
	noteCommand(args, err)
	return stdout.String(), stderr.String(), err
}

// identityOf returns the identity of a database.
func identityOf(t testing.TB, db string) (identity string) {
	t.Helper()
	must(t, readFile(db, func(q *queries) error { return q.one(`SELECT identity FROM epoch`, nil, &identity) }))
	return identity
}

// wholeContent is contentOf for a copy of a database's directory, since looking may empty the log.
func wholeContent(t testing.TB, db string) content {
	t.Helper()
	return contentOf(t, filepath.Join(copyFiles(t, filepath.Dir(db)), filepath.Base(db)), nil)
}

// aside are the databases that restoring has moved aside.
func (o *operator) aside() []string { return movedAsideOf(o.env["WIDGETD_DB"]) }

func TestRestore_putsTheCopyOfANumberInPlaceAndKeepsWhatWasThereWithItsLog(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	older := o.keepCopy("20260131T031500Z.db")
	o.addLeads("ada@example.com", "eve@example.com")
	newer := o.keepCopy("20260101T031500Z.db") // a name says nothing
	o.do("license", "add", "-account", o.account, "-product", "kds")
	o.close()
	killed := onlyInTheLog(t, db, `UPDATE accounts SET name = 'in the log'`)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		rename(t, killed+suffix, db+suffix)
	}
	must(t, os.Chmod(db, 0o640))
	writeFile(t, identityPath(db), identityOf(t, filepath.Join(copyFiles(t, o.dir), "widgetd.db")))
	must(t, os.Mkdir(litestreamPath(db), 0o700))
	before := wholeContent(t, db)
	unread := func() map[string]string { // reading a log makes its index anew
		files := directory(t, o.dir)
		delete(files, "widgetd.db-shm")
		return files
	}
	files := unread()

	out, err := o.try("restore")
	failIf(t, !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), "name one of these files"), "%v", err)
	if !regexp.MustCompile(`^N .*\n1 +` + newer + ` .* KiB +13\n2 +` + older + ` .*\n$`).MatchString(out) {
		t.Errorf("the list: %s", out)
	}
	for _, typed := range [][]string{{"3"}, {""}, {"1", "no"}, {"2", ""}} {
		_, _, err := o.typing([]string{"restore"}, typed...)
		failIf(t, err == nil || !strings.Contains(err.Error(), "nothing was changed"), "%q: %v", typed, err)
	}
	if !maps.Equal(unread(), files) {
		t.Errorf("a file was changed: %q", dirNames(t, o.dir))
	}
	out, noted, err := o.typing([]string{"restore"}, "2", "yes")
	must(t, err)
	contains(t, noted, "This puts "+older+", whose last event is of ", " in the place of "+db,
		"lost by it: 2 leads, 1 licence, 4 events.\nType yes to go on: ")
	contains(t, out, "'widgetd clock accept'", "'sudo systemctl start widgetd.socket widgetd.service'")
	sameContent(t, "restored", contentOf(t, db, nil), contentOf(t, older, nil))
	hasMode(t, db, 0o640)
	if id := identityOf(t, db); id == identityOf(t, older) || id == files["widgetd.db-identity"] {
		t.Error("it has the identity of another file")
	}
	aside := o.aside()
	equal(t, "put aside", len(aside), 1)
	equal(t, "what is there", dirNames(t, o.dir), []string{"backup", filepath.Base(filepath.Dir(aside[0])),
		"widgetd.db", "widgetd.key"})
	equal(t, "what is aside", dirNames(t, filepath.Dir(aside[0])), []string{".widgetd.db-litestream", "widgetd.db",
		"widgetd.db-identity", "widgetd.db-shm", "widgetd.db-wal"})
	sameContent(t, "aside", wholeContent(t, aside[0]), before)

	// And back, on the same day. Copies come before what was put aside, though that is newer.
	if out, _ = o.try("restore", "-json"); jsonLines(t, out)[2]["kind"] != copyAside {
		t.Errorf("the list: %s", out)
	}
	back := o.object("restore", aside[0], "-force")
	sameContent(t, "back again", contentOf(t, db, nil), before)
	sameContent(t, "still aside", wholeContent(t, aside[0]), before)
	equal(t, "lost", back["lost"], any(map[string]any{"leads": 0., "orders": 0., "licenses": 0., "events": 0.}))
	equal(t, "put aside", len(o.aside()), 2)
	isSound(t, db)
	check, _ := o.try("check")
	contains(t, check, "note: "+aside[0]+" (", "was put aside by a restore: remove its directory")
	contains(t, o.do("status"), "remove what a restore has put aside, once you miss nothing of it: ", aside[0])
	contains(t, o.do("lead", "erase", "ada@example.com"), "a restore still hold it, so remove them: ", aside[0])
}

func TestRestore_refusesWhatIsNoSoundCopyAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	o.close()
	bad := append(slices.Clone(badFiles),
		badFile{"damaged", func(t testing.TB, path string) { damage(t, path, 8192, make([]byte, 4096)...) }, ""},
		badFile{"no release's", bySQL("PRAGMA user_version = 7"), ""},
		badFile{"of the first version by name only", bySQL("PRAGMA user_version = 1"), ""},
		badFile{"followed", func(t testing.TB, path string) { writeFile(t, followerPath(path), "9") }, ""},
		badFile{"without its log", func(t testing.TB, path string) { writeFile(t, path+"-shm", "") }, ""})
	for _, bad := range bad {
		file := filepath.Join(o.dir, "copies", "copy.db")
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		writeFile(t, file, fileBytes(t, o.env["WIDGETD_DB"]))
		bad.make(t, file)
		before, copied := directory(t, o.dir), directory(t, filepath.Dir(file))
		t.Logf("%s: %v", bad.name, o.fails(file+" can't be restored: ", "restore", file, "-force"))
		if !maps.Equal(directory(t, o.dir), before) || !maps.Equal(directory(t, filepath.Dir(file)), copied) {
			t.Errorf("%s: a file was changed: %q", bad.name, dirNames(t, o.dir))
		}
		must(t, os.RemoveAll(filepath.Dir(file)))
	}
	o.fails("is the database itself", "restore", o.env["WIDGETD_DB"])
	must(t, os.Symlink(o.env["WIDGETD_DB"], filepath.Join(o.dir, "link")))
	o.fails("is the database itself", "restore", filepath.Join(o.dir, "link"))
}

// A copy that an upgrade has written, to go back to the program before, has no identity.
func TestRestore_ofACopyOfAnOlderSchemaLeavesNoMarkAndSaysUpgrade(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 8} {
		o := anOperatorOf(t, version)
		o.do("upgrade")
		o.store(func(st *store) { o.account, _ = st.mainAccount() })
		o.addLeads("ada@example.com")
		o.close()
		db := o.env["WIDGETD_DB"]
		file := upgradeCopies(db)[0]
		writeFile(t, identityPath(db), identityOf(t, db))
		writeFile(t, file+".new", "a draft")
		out, _ := o.try("restore")
		contains(t, out, file+" ", copyOfUpgrade)
		lacks(t, out, "draft", ".new")
		out = o.do("restore", file)
		contains(t, o.noted, "Later than that, and lost by it: 1 lead, 1 event; -force leaves out this line")
		contains(t, out, fmt.Sprintf("its schema has version %d: 'widgetd upgrade'", version))
		failIf(t, fileExists(identityPath(db)), "the mark of the file before is left")
		sameContent(t, "restored", contentOf(t, db, nil), contentOf(t, file, nil))
	}
}

func TestRestore_goesOnWhereTheDatabaseIsDamagedOrGone(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.addLeads("ada@example.com")
	db, file := o.env["WIDGETD_DB"], o.keepCopy("20260131T031500Z.db")
	o.close()
	for _, bad := range unusableFiles {
		bad.make(t, db)
		out := o.do("restore", file)
		switch bad.name {
		case "missing":
			contains(t, o.noted, "There is no database now")
			contains(t, out, "nothing was there")
		case "empty", "another program's": // in which nothing is lost
			contains(t, o.noted, "lost by it: no row; ")
		default:
			contains(t, o.noted, "What is lost by that is not known, since the present file can't be read: ")
		}
		contains(t, o.do("check"), "ok: ")
		o.close()
	}
	// The log of one that somebody has taken away is kept.
	must(t, os.Remove(db))
	writeFile(t, db+"-wal", "what was written last")
	o.fails("no database at "+db+": run 'widgetd restore': what was there is "+o.aside()[0], "serve", "-addr",
		"127.0.0.1:0")
	before := dirNames(t, o.dir)
	o.do("restore", file)
	for _, name := range dirNames(t, o.dir) {
		if !slices.Contains(before, name) && name != "widgetd.db" {
			equal(t, "the log", directory(t, filepath.Join(o.dir, name)),
				map[string]string{"widgetd.db-wal": "what was written last"})
		}
	}
	contains(t, o.do("check"), "ok: ")
}

func TestRestore_saysWhatIsNext(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	file := o.keepCopy("20260131T031500Z.db")
	must(t, writeEpochFile(epochPath(o.env["WIDGETD_DB"]), epoch{Number: 2, Name: "a"}))
	must(t, os.Remove(o.env["WIDGETD_KEY"]))
	contains(t, o.do("restore", file), "no key file at "+o.env["WIDGETD_KEY"]+": restore it from your copy",
		"of a pair: 'widgetd promote'")
	o.replaceKeyFile()
	raw(t, file, `INSERT INTO events (id, at, type, account_id, actor, data)
		SELECT 'evt_1', created_at, 'key.retired', id, 'command', '{"kid":"kid-1"}' FROM accounts LIMIT 1`)
	lacks(t, o.do("restore", file), "no key file")
	// A copy of another database, though it is later, loses everything.
	other := operatorIn(t, t.TempDir())
	other.do("license", "add", "-account", other.account, "-product", "kds")
	o.do("license", "add", "-account", o.account, "-product", "kds")
	o.do("restore", other.keepCopy("other.db"))
	contains(t, o.noted, "is another database, whose copy it is not, by its main account. Lost with it: 1 licence, ")
}

func TestRestore_isRefusedWhileAnybodyHasTheDatabaseOpen(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	file := o.keepCopy("20260131T031500Z.db")
	o.close()
	before := directory(t, o.dir)
	untilAlone()
	end := leaveOpen(t, o.env["WIDGETD_DB"])
	o.fails("another program has "+o.env["WIDGETD_DB"]+" open: stop it", "restore", file)
	end()
	if after := directory(t, o.dir); after["widgetd.db"] != before["widgetd.db"] {
		t.Error("the database was changed")
	}
	p := serveProcess(t, o)
	o.fails("the service runs, or another program", "restore", file)
	// It has issued nothing, but goes on with keys of which there was a file.
	rename(t, o.env["WIDGETD_KEY"], o.env["WIDGETD_KEY"]+".away")
	contains(t, o.do("status"), "the key file can't be used: no key file at "+
		o.env["WIDGETD_KEY"]+": restore it from your copy")
	rename(t, o.env["WIDGETD_KEY"]+".away", o.env["WIDGETD_KEY"])
	p.stop(os.Kill)
	o.close()
	must(t, os.Rename(file, file+".read"))
	cmd := exec.Command(builtProgram(t), "restore", "-", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
	cmd.Stdin = bytes.NewReader(fileBytes(t, file+".read"))
	out, err := cmd.CombinedOutput()
	failIf(t, err != nil, "%v: %s", err, out)
	contains(t, o.do("check"), "ok: ")
}
