package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	read := func() (all string) {
		for _, name := range []string{"WIDGETD_DB", "WIDGETD_KEY"} {
			text, err := os.ReadFile(o.env[name])
			if err != nil {
				t.Fatal(err)
			}
			all += string(text)
		}
		return all
	}
	before := read()
	o.fails("exist already, and init never changes them", "init")
	if read() != before {
		t.Error("a file was changed")
	}
	key, err := os.ReadFile(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(o.env["WIDGETD_DB"]); err != nil { // the key file outlives its database
		t.Fatal(err)
	}
	if out := o.do("init"); !strings.Contains(out, o.env["WIDGETD_KEY"]+": existed already") {
		t.Errorf("init: %s", out)
	}
	if now, _ := os.ReadFile(o.env["WIDGETD_KEY"]); !bytes.Equal(now, key) {
		t.Error("the key file was changed")
	}
	if got, want := dirNames(t, o.dir), []string{"widgetd.db", "widgetd.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	o.fails("is not a base address", "init", "-db", filepath.Join(o.dir, "new", "x.db"), "-base-url", "https://example.com/")
	o.fails("lacks its scheme", "init", "-db", filepath.Join(o.dir, "new", "x.db"), "-origin", "example.com")
	if _, err := os.Stat(filepath.Join(o.dir, "new")); err == nil {
		t.Error("a refused init made a directory")
	}
	o.do("init", "-db", filepath.Join(o.dir, "new", "x.db"), "-key", filepath.Join(o.dir, "new", "x.key"))
	if info, err := os.Stat(filepath.Join(o.dir, "new")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
}

func TestInit_makesADatabaseWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "widgetd.db")
	if err := createStore(path, func(t *tx) error { return errors.Join(named("x")(t), errors.New("changed my mind")) }); err == nil || !strings.Contains(err.Error(), "changed my mind") {
		t.Errorf("got %v", err)
	}
	if names := dirNames(t, dir); len(names) != 0 {
		t.Errorf("left behind: %q", names)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := createStore(path, named("x")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "mine" || len(dirNames(t, dir)) != 1 {
		t.Errorf("the file is now %q; files %q", text, dirNames(t, dir))
	}
}

func TestFile_isForItsOwnerOnlyWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	s := newService(t)
	s.post("/widget/leads", anyLead).is(200)
	s.check(s.store.backup(filepath.Join(s.dir, "copy.db")))
	for _, name := range []string{"widgetd.db", "widgetd.db-wal", "widgetd.db-shm", "widgetd.key", "copy.db"} {
		info, err := os.Stat(filepath.Join(s.dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %04o", name, info.Mode().Perm())
		}
	}
}

func TestFile_draftOfACommandThatWasKilledIsNamed(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for _, c := range [][]string{
		{"backup", filepath.Join(o.dir, "copy.db")},
		{"init", "-db", filepath.Join(o.dir, "second.db")},
		{"key", "add"},
	} {
		draft := map[string]string{"backup": "copy.db.new", "init": "second.db.new", "key": "widgetd.key.new"}[c[0]]
		if err := os.WriteFile(filepath.Join(o.dir, draft), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		o.fails("remove "+filepath.Join(o.dir, draft), c...)
		if text, _ := os.ReadFile(filepath.Join(o.dir, draft)); string(text) != "half" {
			t.Errorf("%q touched the draft of another: %q", c, text)
		}
		if err := os.Remove(filepath.Join(o.dir, draft)); err != nil {
			t.Fatal(err)
		}
		o.do(c...)
	}
}

func TestFile_headerHoldsWhoseItIs(t *testing.T) {
	t.Parallel()
	head, err := os.ReadFile(makeStore(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(head[68:]))); got != "wdgt" {
		t.Errorf("application id %q", got)
	}
	if got := binary.BigEndian.Uint32(head[60:]); got != schemaVersion {
		t.Errorf("user version %d", got)
	}
}

// badFiles are files that must not be served, and what the refusal says.
var badFiles = []struct {
	name string
	make func(t testing.TB, path string)
	want string
}{
	{"missing", func(t testing.TB, path string) { os.Remove(path) }, "run 'widgetd init' first, or mount the disk"},
	{"empty", func(t testing.TB, path string) { os.Truncate(path, 0) }, "is empty: restore a backup"},
	{"text", func(t testing.TB, path string) { os.WriteFile(path, bytes.Repeat([]byte("hello\n"), 50), 0o600) }, "is not an SQLite database"},
	{"a few bytes", func(t testing.TB, path string) { os.WriteFile(path, []byte("SQLite format 3\x00"), 0o600) }, "another program"},
	{"zeros", func(t testing.TB, path string) { os.WriteFile(path, make([]byte, 8192), 0o600) }, "is not an SQLite database, or its header is damaged"},
	{"another program's", func(t testing.TB, path string) { os.Remove(path); raw(t, path, "CREATE TABLE x (y)") }, "another program: name widgetd's own with -db"},
	{"of a newer program", func(t testing.TB, path string) { raw(t, path, "PRAGMA user_version = 99") }, fmt.Sprintf("schema version 99, this program knows %d: run a newer widgetd", schemaVersion)},
	{"header damaged", func(t testing.TB, path string) { damage(t, path, 0, 'X') }, "header is damaged: restore a backup"},
	{"page size damaged", func(t testing.TB, path string) { damage(t, path, 16, 0xff, 0xff) }, "run 'widgetd check', or restore a backup"},
	{"cut off", func(t testing.TB, path string) { os.Truncate(path, 5000) }, "run 'widgetd check', or restore a backup"},
	{"root page damaged", func(t testing.TB, path string) { damage(t, path, 100, make([]byte, 200)...) }, "run 'widgetd check', or restore a backup"},
	{"a table missing", func(t testing.TB, path string) { raw(t, path, "PRAGMA foreign_keys=0; DROP TABLE probes") }, "the table probes is missing"},
	{"a directory", func(t testing.TB, path string) { os.Remove(path); os.Mkdir(path, 0o700) }, "is a directory"},
}

func TestFile_thatIsNotOursIsRefusedInOneLineWithTheNextStep(t *testing.T) {
	t.Parallel()
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) {
			path := makeStore(t)
			bad.make(t, path)
			before, _ := os.ReadFile(path)
			s, err := openStore(path, storeOptions{})
			if err == nil {
				s.close()
				t.Fatal("it was opened")
			}
			if text := err.Error(); !strings.Contains(text, bad.want) || !strings.Contains(text, path) || strings.Contains(text, "\n") {
				t.Errorf("refused as %q, want one line with %q and the path", text, bad.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("the refused file was changed")
			}
		})
	}
}

func TestFile_orKeyThatIsBadIsRefusedByServeInOneLine(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) {
			o := newOperator(t)
			bad.make(t, o.env["WIDGETD_DB"])
			o.fails(bad.want, "serve", "-addr", "127.0.0.1:0")
		})
	}
	o := newOperator(t)
	if err := os.Chmod(o.env["WIDGETD_KEY"], 0o604); err != nil {
		t.Fatal(err)
	}
	o.fails("run 'chmod 600 "+o.env["WIDGETD_KEY"]+"'", "serve", "-addr", "127.0.0.1:0")
	o.fails("run 'widgetd init' first, or give its path with -key", "serve", "-addr", "127.0.0.1:0", "-key", filepath.Join(o.dir, "none"))
}

func TestFile_ofANewerSchemaIsRefusedAlsoWhileOnlyTheWALSaysSo(t *testing.T) {
	t.Parallel()
	path := makeStore(t)
	leaveOpen(t, path) // keeps the log from being emptied, as a kill does
	raw(t, path, fmt.Sprint("PRAGMA user_version = ", schemaVersion+1))
	if s, err := openStore(path, storeOptions{}); err == nil {
		s.close()
		t.Error("it was opened")
	} else if !strings.Contains(err.Error(), path+" can't be used: run a newer widgetd") {
		t.Error(err)
	}
}

func TestFile_pathMayHaveOddCharacters(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, name := range []string{"a b", "100%", "50%41", "what?mode=memory", "sharp#1", "semi;colon", "and&_pragma=query_only(1)", "plus+", "ü", `quote'"`, "file:x"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name+".db")
			if err := createStore(path, named("first")); err != nil {
				t.Fatal(err)
			}
			s := openTestStore(t, path, storeOptions{})
			if err := s.update(t.Context(), named("second")); err != nil {
				t.Fatal(err)
			}
			if err := s.backup(filepath.Join(dir, name+".copy")); err != nil {
				t.Error(err)
			}
			if err := s.truncateWAL(time.Second); err != nil {
				t.Error(err)
			}
			if faults, err := checkFile(path); err != nil || len(faults) > 0 {
				t.Error(faults, err)
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
			if got, want := dirNames(t, dir), []string{name + ".copy", name + ".db"}; !slices.Equal(got, want) {
				t.Errorf("files %q, want %q", got, want)
			}
		})
	}
}

func TestFile_behindASymbolicLinkIsTheOneThatTheLinkNames(t *testing.T) {
	t.Parallel()
	path := makeStore(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s := openTestStore(t, link, storeOptions{})
	if err := s.update(t.Context(), named("through the link")); err != nil {
		t.Fatal(err)
	}
	if s.walSize() == 0 {
		t.Error("the log was not found")
	}
	if err := s.backup(link + ".copy"); err != nil {
		t.Error(err)
	}
	rename(t, path+"-wal", path+"-away")
	if err := s.inPlace(); !errors.Is(err, errStorage) {
		t.Errorf("its log taken away: %v", err)
	}
	if faults, err := checkFile(link); err != nil || len(faults) != 1 || !strings.Contains(faults[0], "-wal is missing") {
		t.Errorf("check without the log: %q, %v", faults, err)
	}
	rename(t, path+"-away", path+"-wal")
	if err := errors.Join(os.Remove(link), os.Symlink(makeStore(t), link)); err != nil {
		t.Fatal(err)
	}
	if err := s.inPlace(); !errors.Is(err, errStorage) {
		t.Errorf("the link names another file: %v", err)
	}
}

func TestFile_pathTooLongForSQLiteIsRefusedWithTheNextStep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("a", 250), strings.Repeat("b", 250), "x.db")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := createStore(path, named("first")); err == nil || !strings.Contains(err.Error(), "keep its path under 500 bytes") {
		t.Errorf("%v", err)
	}
	if names := dirNames(t, filepath.Dir(path)); len(names) > 0 {
		t.Errorf("left behind: %q", names)
	}
}

func TestFile_thatIsNotTheOpenOneAnyMoreFailsWritesAndHealth(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(path string) error{
		"renamed":  func(path string) error { return os.Rename(path, path+".away") },
		"unlinked": os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".away"), os.WriteFile(path, []byte("other"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			now := time.Now()
			s.server.now = func() time.Time { return now }
			s.post("/widget/leads", anyLead).is(200)
			s.get("/widget/health").is(200)
			s.check(take(s.store.path))
			now = now.Add(2 * time.Second)
			a := s.post("/widget/leads", `{"type":"newsletter","email":"second@example.com"}`).is(503, "storage_unavailable")
			if a.header.Get("Retry-After") == "" || strings.Contains(a.body, s.dir) {
				t.Errorf("Retry-After %q, body %s", a.header.Get("Retry-After"), a.body)
			}
			if a := s.health().is(503); a.text("status") != "fail" || strings.Contains(a.body, s.dir) {
				t.Errorf("health: %s", a.body)
			}
			if name != "renamed" {
				return
			}
			s.check(os.Rename(s.store.path+".away", s.store.path))
			now = now.Add(2 * time.Second)
			s.post("/widget/leads", `{"type":"newsletter","email":"third@example.com"}`).is(200)
			if a := s.health().is(200); a.text("status") != "pass" {
				t.Errorf("health: %s", a.body)
			}
			if n := s.count(`SELECT count(*) FROM leads`); n != 2 {
				t.Errorf("%d leads, want 2", n)
			}
		})
	}
}

func TestFile_headerDamagedWhileOpenIsNoticedUntilItIsMended(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, makeStore(t), storeOptions{})
	for _, at := range []int64{0, 68} { // what says SQLite, what says whose
		head, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
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

func TestWAL_thatAReaderKeepsFromBeingEmptiedIsReportedOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	db, err := sql.Open("sqlite", "file:"+s.store.path+"?mode=ro")
	s.check(err)
	defer db.Close()
	reader, err := db.Begin()
	s.check(err)
	var n int
	s.check(reader.QueryRow(`SELECT count(*) FROM leads`).Scan(&n)) // the transaction begins here
	fill := func() {
		for s.store.walSize() <= maxWAL {
			s.change(named(strings.Repeat("x", 4<<20)))
		}
	}
	if a := s.health().is(200); a.text("status") != "pass" || strings.Contains(a.body, "logSize") || s.server.reportWAL(false) {
		t.Errorf("a small log: %s\n%s", a.body, s.log.String())
	}
	fill()
	large := s.server.reportWAL(s.server.reportWAL(s.server.reportWAL(false)))
	if !large || strings.Count(s.log.String(), "the write-ahead log is large: a transaction that another program keeps open") != 1 {
		t.Errorf("a large log: %v\n%s", large, s.log.String())
	}
	if a := s.get("/widget/health").is(200); a.text("status") != "warn" || !strings.Contains(a.body, `"sqlite:logSize":[{"componentType":"datastore","observedValue":6`) {
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
	if s.server.reportWAL(large) || strings.Count(s.log.String(), "the write-ahead log is small again") != 1 {
		t.Errorf("%d bytes\n%s", s.store.walSize(), s.log.String())
	}
	if a := s.get("/widget/health").is(200); strings.Contains(a.body, "logSize") {
		t.Errorf("health: %s", a.body)
	}
}

func TestWAL_emptiedUnderAReaderHoldsNoWriterUp(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, makeStore(t), storeOptions{})
	leaveOpen(t, s.path)
	emptied := make(chan error, 1)
	go func() { emptied <- s.truncateWAL(time.Second) }()
	for writes := 0; ; writes++ { // SQLite lets nobody write while such a checkpoint waits for a reader
		if err := s.update(t.Context(), named("meanwhile")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-emptied:
			if err == nil {
				t.Error("it was emptied under a reader")
			}
			if writes < 5 {
				t.Errorf("%d writes were kept before it gave up", writes)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestBackup_takenWhileWritingIsSoundAndNeverReplacesAFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stop, written := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				written <- n
				return
			default:
			}
			err := s.store.update(context.Background(), func(t *tx) error {
				_, err := t.addLead(lead{AccountID: s.account, Type: "newsletter", Email: fmt.Sprintf("u%d@example.com", n)})
				return err
			})
			if err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	for s.store.committedJobs.Load() < 100 {
		runtime.Gosched()
	}
	path := filepath.Join(s.dir, "copy.db")
	err := s.store.backup(path)
	close(stop)
	total := <-written
	s.check(err)
	copied := openTestStore(t, path, storeOptions{})
	var leads, events int
	s.check(copied.one(`SELECT (SELECT count(*) FROM leads), (SELECT count(*) FROM events)`, nil, &leads, &events))
	if leads < 90 || leads > total || leads != events {
		t.Errorf("the copy has %d leads and %d events of %d", leads, events, total)
	}
	s.check(copied.close())
	before, _ := os.ReadFile(path)
	if err := s.store.backup(path); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("over a file: %v", err)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the older copy was changed")
	}
	if err := s.store.backup(filepath.Join(s.dir, "no", "such", "place.db")); err == nil {
		t.Error("a copy into nowhere passed")
	}
	if got, want := dirNames(t, s.dir), []string{"copy.db", "widgetd.db", "widgetd.db-shm", "widgetd.db-wal", "widgetd.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

func TestBackup_replacesNoFileThatComesWhileItRuns(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.change(named(strings.Repeat("x", 8<<20))) // so that it takes a while
	path := filepath.Join(s.dir, "copy.db")
	ended := make(chan error, 1)
	go func() { ended <- s.store.backup(path) }()
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
	if err := o.fails("no such file or directory", "backup", filepath.Join(o.dir, "none", "copy.db")); err != nil && strings.Contains(err.Error(), "remove") {
		t.Errorf("nothing is there to remove: %v", err)
	}
	copied := filepath.Join(o.dir, "copy.db")
	if err := os.WriteFile(copied+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.fails("remove "+copied+".new if no other command is making it", "backup", copied)
	t.Run("of a database that is not as it should be", func(t *testing.T) {
		o := newOperator(t)
		raw(t, o.env["WIDGETD_DB"], `DROP INDEX leads_digest`)
		if err := o.fails("the copy is not sound: schema: index leads_digest is missing", "backup", filepath.Join(o.dir, "copy.db")); strings.Contains(err.Error(), "nil") {
			t.Error(err)
		}
	})
	t.Run("on a full disk", func(t *testing.T) {
		dir := smallDisk(t, 64<<10)
		o.t = t
		o.fails("The disk is full", "backup", filepath.Join(dir, "copy.db"))
		if names := dirNames(t, dir); len(names) > 0 {
			t.Errorf("left behind: %q", names)
		}
	})
}

func TestCheck_findsWhatIsWrongAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, fault := range []struct {
		name string
		make func(t testing.TB, path string)
		want string
	}{
		{"nothing", func(testing.TB, string) {}, ""},
		{"one flipped byte in what an index names", func(t testing.TB, path string) {
			text, _ := os.ReadFile(path)
			damage(t, path, int64(bytes.LastIndex(text, addressDigest("flip-me@example.com"))), 'F')
		}, "integrity: "},
		{"a page of zeros", func(t testing.TB, path string) {
			text, _ := os.ReadFile(path)
			page := bytes.Index(text, []byte("flip-me@example.com")) / 4096
			damage(t, path, int64(page)*4096, make([]byte, 4096)...)
		}, "integrity: "},
		{"a row that names no account", func(t testing.TB, path string) {
			raw(t, path, `PRAGMA foreign_keys=0; INSERT INTO widgets (id, account_id, name, created_at) VALUES ('wgt_x', 'acct_gone', 'x', '2026-01-01T00:00:00Z')`)
		}, "foreign key: 1 of widgets names a row of accounts that is not there: see SELECT * FROM widgets WHERE account_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM accounts p WHERE p.id = widgets.account_id)"},
		{"an index is missing", func(t testing.TB, path string) { raw(t, path, `DROP INDEX leads_digest`) }, "schema: index leads_digest is missing"},
		{"a view was changed", func(t testing.TB, path string) {
			raw(t, path, `DROP VIEW v_audit; CREATE VIEW v_audit AS SELECT 1`)
		}, "schema: view v_audit is not as this program makes it"},
		{"a comment of another build", func(t testing.TB, path string) {
			raw(t, path, `PRAGMA writable_schema=1; UPDATE sqlite_schema SET sql = replace(sql, '-- for people', '--   for everybody'); PRAGMA writable_schema=RESET`)
		}, ""},
		{"another program's file", func(t testing.TB, path string) { raw(t, path, `PRAGMA application_id = 1`) }, "another program"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			path := makeStore(t)
			s := openTestStore(t, path, storeOptions{})
			err := s.update(t.Context(), func(t *tx) error {
				main, err := t.mainAccount()
				if err == nil {
					_, err = t.addLead(lead{AccountID: main, Type: "newsletter", Email: "flip-me@example.com"})
				}
				return err
			})
			if err := errors.Join(err, s.close()); err != nil {
				t.Fatal(err)
			}
			fault.make(t, path)
			before, _ := os.ReadFile(path)
			faults, err := checkFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(faults, "\n"); fault.want == "" && text != "" || !strings.Contains(text, fault.want) {
				t.Errorf("faults %q, want %q", text, fault.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("looking changed the file")
			}
		})
	}
}

func TestCheck_tellsEveryFaultAndFails(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, fault := range []struct {
		name string
		make func(o *operator) error
		want string
	}{
		{"a database that others can read", func(o *operator) error { return os.Chmod(o.env["WIDGETD_DB"], 0o644) }, "(mode 0644): run 'chmod 600 "},
		{"a key that others can read", func(o *operator) error { return os.Chmod(o.env["WIDGETD_KEY"], 0o640) }, "other users can read the key file"},
		{"no key", func(o *operator) error { return os.Remove(o.env["WIDGETD_KEY"]) }, "no key file at"},
		{"a damaged key", func(o *operator) error { return os.Truncate(o.env["WIDGETD_KEY"], 100) }, "is damaged: restore it from a copy"},
		{"no database", func(o *operator) error { return os.Remove(o.env["WIDGETD_DB"]) }, "no database at"},
		{"a row without its account", func(o *operator) error {
			raw(o.t, o.env["WIDGETD_DB"], `PRAGMA foreign_keys=0; INSERT INTO widgets (id, account_id, name, created_at) VALUES ('wgt_x', 'acct_gone', 'x', '2026-01-01T00:00:00Z')`)
			return nil
		}, "foreign key: 1 of widgets"},
		{"a damaged page", func(o *operator) error {
			text, err := os.ReadFile(o.env["WIDGETD_DB"])
			damage(o.t, o.env["WIDGETD_DB"], int64(bytes.LastIndex(text, []byte(o.account))), 'X')
			return err
		}, "integrity: "},
	} {
		t.Run(fault.name, func(t *testing.T) {
			o := newOperator(t)
			o.t = t
			if err := fault.make(o); err != nil {
				t.Fatal(err)
			}
			out, err := o.try("check")
			var usage usageError
			if err == nil || errors.As(err, &usage) || !strings.Contains(out, fault.want) || !strings.Contains(err.Error(), "faults in "+o.env["WIDGETD_DB"]+": ") {
				t.Errorf("check: %v\n%s\nwant %q", err, out, fault.want)
			}
			asJSON, _ := o.try("check", "-json")
			var report struct {
				OK     bool
				Faults []string
			}
			if err := json.Unmarshal([]byte(asJSON), &report); err != nil || report.OK || len(report.Faults) == 0 {
				t.Errorf("as JSON: %s, %v", asJSON, err)
			}
		})
	}
}
