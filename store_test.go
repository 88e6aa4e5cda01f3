package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// makeStore makes a database with a main account and returns its path.
func makeStore(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "widgetd.db")
	if err := createStore(path, func(t *tx) error {
		_, err := t.addAccount("main", true)
		return errors.Join(err, t.setBaseURL(testBase))
	}); err != nil {
		t.Fatal(err)
	}
	return path
}

// openTestStore opens a database until the test ends.
func openTestStore(t testing.TB, path string, o storeOptions) *store {
	t.Helper()
	s, err := openStore(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-s.closing: // the test has closed it
		default:
			if err := s.close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return s
}

// named is a job that opens an account.
func named(name string) func(*tx) error {
	return func(t *tx) error {
		_, err := t.addAccount(name, false)
		return err
	}
}

// accountNames are the accounts but the main one, sorted by name.
func accountNames(t testing.TB, s *store) (names []string) {
	t.Helper()
	all, err := s.accounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if !a.Main {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

// holdWriter keeps the writer in a job until release is called: what is asked
// meanwhile waits, and makes one batch.
func holdWriter(t testing.TB, s *store) (release func()) {
	t.Helper()
	held, let := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.update(context.Background(), func(*tx) error {
			close(held)
			<-let
			return nil
		})
	}()
	<-held
	return func() {
		close(let)
		if err := <-done; err != nil {
			t.Errorf("the job that held the writer: %v", err)
		}
	}
}

// queue asks for jobs, in order, while the writer is held, and returns where each
// one's result will be.
func queue(s *store, ctx context.Context, jobs ...func(*tx) error) []chan error {
	results := make([]chan error, len(jobs))
	for i, f := range jobs {
		before := len(s.jobs)
		results[i] = make(chan error, 1)
		go func() { results[i] <- s.update(ctx, f) }()
		for len(s.jobs) == before {
			runtime.Gosched()
		}
	}
	return results
}

// foreignLock takes the write lock as another program would.
func foreignLock(t testing.TB, path string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "rw", storeOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	transaction, err := db.Begin() // immediate, as the DSN says
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(transaction.Commit(), db.Close()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}

func TestWritesThatWaitShareOneCommit(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	batches, written := s.batches.Load(), s.written.Load()
	release := holdWriter(t, s)
	const writes = 200
	jobs := make([]func(*tx) error, writes)
	for i := range jobs {
		jobs[i] = named(fmt.Sprintf("%03d", i))
	}
	results := queue(s, t.Context(), jobs...)
	release()
	for i, result := range results {
		if err := <-result; err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if got := s.batches.Load() - batches; got != 2 { // the one that held the writer, and the rest
		t.Errorf("%d commits for %d waiting writes", got, writes)
	}
	if got := s.written.Load() - written; got != writes+1 {
		t.Errorf("%d jobs counted as written, want %d", got, writes+1)
	}
	if got := len(accountNames(t, s)); got != writes {
		t.Errorf("%d rows, want %d", got, writes)
	}
}

func TestManyCallersAtOnceNeedFewerCommitsThanWrites(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	before := s.batches.Load()
	const callers, each = 32, 10
	var wait sync.WaitGroup
	for c := range callers {
		wait.Go(func() {
			for i := range each {
				if err := s.update(t.Context(), named(fmt.Sprintf("%d-%d", c, i))); err != nil {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	wait.Wait()
	if got := len(accountNames(t, s)); got != callers*each {
		t.Errorf("%d rows, want %d", got, callers*each)
	}
	if got := s.batches.Load() - before; got >= callers*each {
		t.Errorf("%d commits for %d writes", got, callers*each)
	}
}

func TestABatchHasABound(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	before := s.batches.Load()
	release := holdWriter(t, s)
	jobs := make([]func(*tx) error, maxBatch+1)
	for i := range jobs {
		jobs[i] = named(fmt.Sprint(i))
	}
	results := queue(s, t.Context(), jobs...)
	release()
	for _, result := range results {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if got := s.batches.Load() - before; got != 3 {
		t.Errorf("%d commits for the holder and %d waiting writes, want 3", got, len(jobs))
	}
}

// A fate is a job and what becomes of it.
type fate struct {
	name string
	job  func(*tx) error
	kept bool
	err  string // part of the error; "": none
}

var fates = []fate{
	{"a plain write", named("plain"), true, ""},
	{"one that fails", func(t *tx) error { return errors.Join(named("failed")(t), errors.New("no such luck")) }, false, "no such luck"},
	{"a refusal that is kept", func(t *tx) error {
		if err := named("kept")(t); err != nil {
			return err
		}
		return keep(&refusal{code: "seat_limit_reached"})
	}, true, "seat_limit_reached"},
	{"one that panics", func(t *tx) error {
		if err := named("panicked")(t); err != nil {
			return err
		}
		panic("out of order")
	}, false, "panic in a write: out of order"},
	{"one that breaks a rule of the schema", func(t *tx) error {
		if err := named("ruled out")(t); err != nil {
			return err
		}
		_, err := t.exec(`INSERT INTO accounts (id, name, created_at) VALUES ('nonsense', 'x', 'yesterday')`)
		return err
	}, false, "CHECK constraint failed"},
	{"one that makes SQLite end the transaction", func(t *tx) error {
		if err := named("ended")(t); err != nil {
			return err
		}
		_, err := t.exec(`INSERT OR ROLLBACK INTO accounts (id, name, is_main, created_at) VALUES ('acct_second', 'x', 1, ?)`, t.now)
		return err
	}, false, "UNIQUE constraint failed"},
	{"one that ends it and says nothing", func(t *tx) error {
		if err := named("silent")(t); err != nil {
			return err
		}
		_, err := t.exec(`ROLLBACK`)
		return err
	}, false, "no transaction"},
	{"another plain write", named("second"), true, ""},
}

func checkFates(t *testing.T, s *store, all []fate, errs []error) {
	t.Helper()
	var want []string
	for i, f := range all {
		switch err := errs[i]; {
		case f.err == "" && err != nil:
			t.Errorf("%s: %v", f.name, err)
		case f.err != "" && (err == nil || !strings.Contains(err.Error(), f.err)):
			t.Errorf("%s: error %v, want %q", f.name, err, f.err)
		}
		if f.kept {
			want = append(want, map[string]string{"a plain write": "plain", "a refusal that is kept": "kept", "another plain write": "second"}[f.name])
		}
	}
	slices.Sort(want)
	if got := accountNames(t, s); !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
}

func TestEachJobOfABatchHasItsOwnFate(t *testing.T) {
	endsTransaction := func(f fate) bool {
		return strings.HasPrefix(f.name, "one that makes SQLite") || strings.HasPrefix(f.name, "one that ends it")
	}
	for name, all := range map[string][]fate{
		"in one transaction":                              slices.DeleteFunc(slices.Clone(fates), endsTransaction),
		"one by one, when SQLite has ended the first one": fates,
	} {
		t.Run(name, func(t *testing.T) {
			s := openTestStore(t, makeStore(t), storeOptions{})
			release := holdWriter(t, s)
			jobs := make([]func(*tx) error, len(all))
			for i, f := range all {
				jobs[i] = f.job
			}
			results := queue(s, t.Context(), jobs...)
			release()
			errs := make([]error, len(all))
			for i := range all {
				errs[i] = <-results[i]
			}
			checkFates(t, s, all, errs)
		})
	}
	t.Run("alone", func(t *testing.T) {
		s := openTestStore(t, makeStore(t), storeOptions{})
		errs := make([]error, len(fates))
		for i, f := range fates {
			errs[i] = s.update(t.Context(), f.job)
		}
		checkFates(t, s, fates, errs)
	})
}

func TestAKeptRefusalComesBackAsItself(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	want := &refusal{code: "seat_limit_reached"}
	err := s.update(t.Context(), func(*tx) error { return keep(want) })
	if err != error(want) {
		t.Errorf("%#v, want the refusal itself", err)
	}
}

func TestACallerWhoWritesAloneRunsItsJobItself(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	var stack string
	if err := s.update(t.Context(), func(*tx) error {
		stack = string(debug.Stack())
		return nil
	}); err != nil || !strings.Contains(stack, t.Name()) {
		t.Errorf("%v, on the stack %s", err, stack)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := s.update(gone, named("never")); !errors.Is(err, context.Canceled) || slices.Contains(accountNames(t, s), "never") {
		t.Errorf("of a caller who had left: %v, accounts %v", err, accountNames(t, s))
	}
}

func TestACallerWhoLeavesBeforeItsTurnIsSkipped(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	release := holdWriter(t, s)
	ctx, leave := context.WithCancel(t.Context())
	ran := false
	gone := queue(s, ctx, func(*tx) error { ran = true; return nil })[0]
	stays := queue(s, t.Context(), named("stays"))[0]
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who left got %v", err)
	}
	release()
	if err := <-stays; err != nil {
		t.Errorf("the caller who stayed got %v", err)
	}
	if ran {
		t.Error("the function of the caller who left was run")
	}
}

func TestACallerWhoLeavesDuringItsTurnGetsTheResult(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	ctx, leave := context.WithCancel(t.Context())
	err := s.update(ctx, func(t *tx) error {
		leave()
		return named("on disk")(t)
	})
	if err != nil {
		t.Errorf("got %v", err)
	}
	if got := accountNames(t, s); !slices.Equal(got, []string{"on disk"}) {
		t.Errorf("rows %q", got)
	}
}

func TestAWriteWaitsFifteenSecondsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := openStore(makeStore(t), storeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		release := holdWriter(t, s)
		start, ran := time.Now(), false
		if err := s.update(t.Context(), func(*tx) error { ran = true; return nil }); !errors.Is(err, errBusy) {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(start); waited != lockPatience {
			t.Errorf("gave up after %v", waited)
		}
		release()
		if err := s.update(t.Context(), named("later")); err != nil || ran {
			t.Errorf("afterwards: %v; the function that was given up ran: %v", err, ran)
		}
	})
}

func TestClosingRunsWhatIsQueuedAndRefusesTheRest(t *testing.T) {
	path := makeStore(t)
	s := openTestStore(t, path, storeOptions{})
	release := holdWriter(t, s)
	queued := queue(s, t.Context(), named("a"), named("b"), named("c"))
	closed := make(chan error, 1)
	go func() { closed <- s.close() }()
	<-s.closing
	release()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	for i, result := range queued {
		if err := <-result; err != nil {
			t.Errorf("queued write %d: %v", i, err)
		}
	}
	for range 20 { // both ways through update's select
		if err := s.update(t.Context(), named("late")); !errors.Is(err, errClosed) {
			t.Fatalf("a write after the end: %v", err)
		}
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the log is still there: %v", err)
	}
	again := openTestStore(t, path, storeOptions{})
	if got := accountNames(t, again); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("after reopening: %q", got)
	}
}

func TestATransactionHasOneNow(t *testing.T) {
	start := time.Date(2026, 11, 21, 23, 59, 59, 5e8, time.FixedZone("", 3600))
	var calls atomic.Int64
	s := openTestStore(t, makeStore(t), storeOptions{now: func() time.Time { // a clock that jumps whenever it is read
		return start.Add(time.Duration(calls.Add(1)) * time.Hour)
	}})
	err := s.update(t.Context(), func(t *tx) error {
		return errors.Join(named("first")(t), named("second")(t))
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.accounts()
	if err != nil || len(all) != 3 {
		t.Fatalf("%v %v", all, err)
	}
	if first, second := all[1], all[2]; first.CreatedAt != second.CreatedAt || first.ID[:15] != second.ID[:15] {
		t.Errorf("two rows of one transaction: %v %s, %v %s", first.CreatedAt, first.ID, second.CreatedAt, second.ID)
	}
	if got := all[1].CreatedAt.String(); !strings.HasSuffix(got, ":59:59Z") {
		t.Errorf("created at %s, want whole seconds in UTC", got)
	}
}

func TestAForeignWriterDelaysWritesAndFailsNone(t *testing.T) {
	path := makeStore(t)
	s := openTestStore(t, path, storeOptions{})
	release := foreignLock(t, path)
	results := make([]chan error, 50)
	for i := range results {
		results[i] = make(chan error, 1)
		go func() { results[i] <- s.update(context.Background(), named(fmt.Sprint(i))) }()
	}
	for len(s.jobs) < len(results)-1 || s.lockedSince().IsZero() {
		runtime.Gosched()
	}
	if got := accountNames(t, s); len(got) != 0 {
		t.Errorf("written through the lock: %q", got)
	}
	release()
	for i, result := range results {
		if err := <-result; err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if got := accountNames(t, s); len(got) != len(results) {
		t.Errorf("%d rows, want %d", len(got), len(results))
	}
	if since := s.lockedSince(); !since.IsZero() {
		t.Errorf("still said to be locked since %v", since)
	}
}

// reopen gives a service a store that was opened otherwise.
func (s *service) reopen(o storeOptions) {
	s.t.Helper()
	s.check(s.store.close())
	var err error
	s.store, err = openStore(filepath.Join(s.dir, "widgetd.db"), o)
	s.check(err)
	s.server.store = s.store
	if o.now != nil {
		s.server.now = o.now
	}
}

const anyLead = `{"type":"newsletter","email":"ada@example.com"}`

func TestALockPastTheWaitIsBusyAndWritesNothing(t *testing.T) {
	s := newService(t)
	s.reopen(storeOptions{patience: 20 * time.Millisecond})
	token := s.token(s.account, scopeLeads)
	release := foreignLock(t, s.store.path)
	a := s.post("/widget/leads", anyLead).is(503, "busy")
	if a.header.Get("Retry-After") != "5" || a.json()["ok"] != false {
		t.Errorf("Retry-After %q, body %s", a.header.Get("Retry-After"), a.body)
	}
	s.get("/leads", "Authorization: Bearer "+token).is(200)
	release()
	if n := s.count(`SELECT count(*) FROM leads`); n != 0 {
		t.Errorf("%d leads were written", n)
	}
	s.post("/widget/leads", anyLead).is(200)
}

func TestWhileALockLastsMoreThanSixtyFourWritesAreRefusedAtOnce(t *testing.T) {
	s := newService(t)
	var ahead atomic.Int64
	s.reopen(storeOptions{now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	release := foreignLock(t, s.store.path)
	results := make([]chan error, 1+maxBlocked) // one that the writer holds, and those behind it
	for i := range results {
		results[i] = make(chan error, 1)
		go func() { results[i] <- s.store.update(context.Background(), named(fmt.Sprint(i))) }()
	}
	for len(s.store.jobs) < maxBlocked || s.store.lockedSince().IsZero() {
		runtime.Gosched()
	}
	ahead.Store(int64(2 * time.Second))
	if a := s.post("/widget/leads", anyLead).is(503, "busy"); a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	release()
	for i, result := range results {
		if err := <-result; err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	s.post("/widget/leads", anyLead).is(200)
}

// limitPages lets the database grow by some pages only; a negative number lifts that.
func (s *service) limitPages(more int) {
	s.t.Helper()
	s.change(func(t *tx) error {
		pages, limit := 0, 0
		if err := t.one(`PRAGMA page_count`, nil, &pages); err != nil {
			return err
		}
		if pages += more; more < 0 {
			pages = 1 << 30
		}
		return t.one(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages), nil, &limit)
	})
}

func TestAFullDiskIsSaidSoAndReadingGoesOn(t *testing.T) {
	s := newService(t)
	token := s.token(s.account, scopeLeads)
	now := time.Now()
	s.server.now = func() time.Time { now = now.Add(2 * time.Second); return now } // the address limit is another test's
	s.limitPages(3)
	kept, full := 0, 0
	for i := range 60 {
		a := s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"u%d@example.com","page":"/%s"}`, i, strings.Repeat("x", 1000)))
		switch a.status {
		case 200:
			kept++
		default:
			a.is(503, "storage_full")
			if a.header.Get("Retry-After") == "" || a.json()["ok"] != false {
				t.Errorf("Retry-After %q: %s", a.header.Get("Retry-After"), a.body)
			}
			full++
		}
	}
	if full == 0 {
		t.Fatal("the disk never got full")
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != kept {
		t.Errorf("%d leads are kept, %d were acknowledged", n, kept)
	}
	s.get("/leads", "Authorization: Bearer "+token).is(200)
	s.limitPages(-1)
	s.post("/widget/leads", anyLead).is(200)
}

func TestABatchOnAFullDiskKeepsWhatFits(t *testing.T) {
	s := newService(t)
	s.limitPages(8)
	release := holdWriter(t, s.store)
	big := func(name string, pages int) func(*tx) error {
		return func(t *tx) error { return named(name + strings.Repeat("x", pages*4096))(t) }
	}
	results := queue(s.store, t.Context(), big("small ", 1), big("huge ", 40), big("small too ", 1))
	release()
	for i, full := range []bool{false, true, false} {
		if err := <-results[i]; errors.Is(err, errStorageFull) != full || !full && err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if n := s.count(`SELECT count(*) FROM accounts WHERE name LIKE 'small %'`); n != 2 {
		t.Errorf("%d of the two small ones are kept", n)
	}
	if n := s.count(`SELECT count(*) FROM accounts WHERE name LIKE 'huge %'`); n != 0 {
		t.Error("a part of the huge one is kept")
	}
}

func TestAFileThatIsNotTheOpenOneAnyMoreFailsWritesAndHealth(t *testing.T) {
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
			if a := s.get("/widget/health").is(503); a.text("status") != "fail" || strings.Contains(a.body, s.dir) {
				t.Errorf("health: %s", a.body)
			}
			if name != "renamed" {
				return
			}
			s.check(os.Rename(s.store.path+".away", s.store.path))
			now = now.Add(2 * time.Second)
			s.post("/widget/leads", `{"type":"newsletter","email":"third@example.com"}`).is(200)
			if a := s.get("/widget/health").is(200); a.text("status") != "pass" {
				t.Errorf("health: %s", a.body)
			}
			if n := s.count(`SELECT count(*) FROM leads`); n != 2 {
				t.Errorf("%d leads, want 2", n)
			}
		})
	}
}

// damage changes bytes of a file.
func damage(t testing.TB, path string, at int64, bytes ...byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes, at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// raw runs SQL on a file without any of the store's care.
func raw(t testing.TB, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec(query)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
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
	{"of a newer program", func(t testing.TB, path string) { raw(t, path, "PRAGMA user_version = 99") }, "schema version 99, this program knows 2: run a newer widgetd"},
	{"header damaged", func(t testing.TB, path string) { damage(t, path, 0, 'X') }, "header is damaged: restore a backup"},
	{"page size damaged", func(t testing.TB, path string) { damage(t, path, 16, 0xff, 0xff) }, "run 'widgetd check', or restore a backup"},
	{"cut off", func(t testing.TB, path string) { os.Truncate(path, 5000) }, "run 'widgetd check', or restore a backup"},
	{"root page damaged", func(t testing.TB, path string) { damage(t, path, 100, make([]byte, 200)...) }, "run 'widgetd check', or restore a backup"},
	{"a table missing", func(t testing.TB, path string) { raw(t, path, "PRAGMA foreign_keys=0; DROP TABLE probes") }, "the table probes is missing"},
	{"a directory", func(t testing.TB, path string) { os.Remove(path); os.Mkdir(path, 0o700) }, "is a directory"},
}

func TestAFileThatIsNotOursIsRefusedInOneLineWithTheNextStep(t *testing.T) {
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

func TestANewerSchemaIsRefusedAlsoWhileOnlyTheLogSaysSo(t *testing.T) {
	path := makeStore(t)
	leaveOpen(t, path) // keeps the log from being emptied, as a kill does
	raw(t, path, "PRAGMA user_version = 3")
	if s, err := openStore(path, storeOptions{}); err == nil {
		s.close()
		t.Error("it was opened")
	} else if !strings.Contains(err.Error(), path+" can't be used: run a newer widgetd") {
		t.Error(err)
	}
}

func TestOddCharactersInThePathAreJustCharacters(t *testing.T) {
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
			if err := s.emptyLog(time.Second); err != nil {
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

func TestADatabaseBehindASymbolicLinkIsTheFileThatTheLinkNames(t *testing.T) {
	path := makeStore(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s := openTestStore(t, link, storeOptions{})
	if err := s.update(t.Context(), named("through the link")); err != nil {
		t.Fatal(err)
	}
	if s.logSize() == 0 {
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

func TestAPathTooLongForSQLiteIsRefusedWithTheNextStep(t *testing.T) {
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

func dirNames(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEveryFileIsForItsOwnerOnlyWhateverTheUmask(t *testing.T) {
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

func TestADatabaseIsMadeWholeOrNotAtAll(t *testing.T) {
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

func TestABackupTakenWhileWritingIsSoundAndNeverReplacesAFile(t *testing.T) {
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
	for s.store.written.Load() < 100 {
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

func TestCheckFindsWhatIsWrongAndChangesNothing(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name string
		make func(t testing.TB, path string)
		want string
	}{
		{"nothing", func(testing.TB, string) {}, ""},
		{"one flipped byte in what an index names", func(t testing.TB, path string) {
			text, _ := os.ReadFile(path)
			damage(t, path, int64(bytes.LastIndex(text, []byte("flip-me@example.com"))), 'F')
		}, "integrity: "},
		{"a page of zeros", func(t testing.TB, path string) {
			text, _ := os.ReadFile(path)
			page := bytes.Index(text, []byte("flip-me@example.com")) / 4096
			damage(t, path, int64(page)*4096, make([]byte, 4096)...)
		}, "integrity: "},
		{"a row that names no account", func(t testing.TB, path string) {
			raw(t, path, `PRAGMA foreign_keys=0; INSERT INTO widgets (id, account_id, name, created_at) VALUES ('wgt_x', 'acct_gone', 'x', '2026-01-01T00:00:00Z')`)
		}, "foreign key: row 1 of widgets names a row of accounts that is not there"},
		{"an index is missing", func(t testing.TB, path string) { raw(t, path, `DROP INDEX leads_email`) }, "schema: index leads_email is missing"},
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

// eachConnection calls f with a name and a way to ask each connection of a store.
func eachConnection(t testing.TB, s *store, f func(name string, ask func(query string, dest ...any) error)) {
	t.Helper()
	f("the writer", func(query string, dest ...any) error { return s.writes.one(query, nil, dest...) })
	for i := range readerConns {
		conn, err := s.readers.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() // not before all are taken, so that each is another one
		f(fmt.Sprintf("reader %d", i), func(query string, dest ...any) error {
			return conn.QueryRowContext(t.Context(), query).Scan(dest...)
		})
	}
}

func TestEveryConnectionHasItsPragmas(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	eachConnection(t, s, func(name string, ask func(string, ...any) error) {
		queryOnly := "1"
		if name == "the writer" {
			queryOnly = "0"
		}
		for pragma, want := range map[string]string{
			"journal_mode": "wal", "synchronous": "2", "busy_timeout": "15000", "foreign_keys": "1", "trusted_schema": "0", "secure_delete": "1",
			"journal_size_limit": "67108864", "wal_autocheckpoint": "1000", "query_only": queryOnly, "application_id": fmt.Sprint(applicationID), "user_version": fmt.Sprint(schemaVersion),
		} {
			var got string
			if err := ask("PRAGMA "+pragma, &got); err != nil || got != want {
				t.Errorf("%s: %s is %q (%v), want %q", name, pragma, got, err, want)
			}
		}
	})
	litestream := openTestStore(t, makeStore(t), storeOptions{keepLog: true, patience: 70 * time.Millisecond})
	eachConnection(t, litestream, func(name string, ask func(string, ...any) error) {
		var pages, patience int
		if err := errors.Join(ask("PRAGMA wal_autocheckpoint", &pages), ask("PRAGMA busy_timeout", &patience)); err != nil || pages != 0 || patience != 70 {
			t.Errorf("%s with Litestream: checkpoints after %d pages, patience %d ms, %v", name, pages, patience, err)
		}
	})
}

func TestReadersCannotWriteAndForeignKeysHold(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	if _, err := s.readers.Exec(`DELETE FROM accounts`); err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("a reader deleted: %v", err)
	}
	err := s.update(t.Context(), func(t *tx) error {
		_, err := t.exec(`INSERT INTO widgets (id, account_id, name, created_at) VALUES ('wgt_x', 'acct_gone', 'x', ?)`, t.now)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "FOREIGN KEY constraint failed") {
		t.Errorf("a widget of no account: %v", err)
	}
}

func TestALogThatLitestreamOwnsIsLeftAlone(t *testing.T) {
	path := makeStore(t)
	reader := openTestStore(t, path, storeOptions{keepLog: true}) // stands for Litestream, which keeps a connection
	s := openTestStore(t, path, storeOptions{keepLog: true})
	if err := errors.Join(s.update(t.Context(), named("x")), s.close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path + "-wal"); err != nil || info.Size() == 0 {
		t.Errorf("the log was taken away: %v", err)
	}
	if got := accountNames(t, reader); !slices.Equal(got, []string{"x"}) {
		t.Errorf("rows %q", got)
	}
}

// schemaTables are the tables of a new database.
func schemaTables(t testing.TB, q *queries) (tables []string) {
	t.Helper()
	err := q.each(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`, nil, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		tables = append(tables, name)
		return err
	})
	if err != nil || len(tables) < 16 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	return tables
}

func TestEveryTableIsStrict(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	for _, table := range schemaTables(t, s.queries) {
		var strict int
		if err := s.one(`SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ?`, []any{table}, &strict); err != nil || strict != 1 {
			t.Errorf("%s: strict %d, %v", table, strict, err)
		}
	}
}

func TestATimeThatNoCalendarHasIsRefused(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	for _, wrong := range []string{"2026-13-45T99:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "abcd-ef-ghTij:kl:mnZ", "2026-01-01 00:00:00", ""} {
		err := s.update(t.Context(), func(t *tx) error {
			_, err := t.exec(`UPDATE accounts SET closed_at = ?`, wrong)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "CHECK constraint failed") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestEveryColumnHasACommentAndEveryTimeARule(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	for _, table := range schemaTables(t, s.queries) {
		_, block, found := strings.Cut(schemaSQL, "CREATE TABLE "+table+" (\n")
		block, _, ended := strings.Cut(block, "\n) STRICT")
		if !found || !ended {
			t.Errorf("schema.sql writes %s in another way than this test reads", table)
			continue
		}
		err := s.each(`SELECT name FROM pragma_table_info(?)`, []any{table}, func(scan func(...any) error) error {
			var column string
			if err := scan(&column); err != nil {
				return err
			}
			line := regexp.MustCompile(`(?m)^  ` + column + ` .*$`).FindString(block)
			declared, comment, _ := strings.Cut(line, " -- ")
			if len(comment) < 3 {
				t.Errorf("%s.%s has no comment: %q", table, column, line)
			}
			isTime := strings.HasSuffix(column, "_at") || column == "at" || column == "quarter"
			if isTime && !strings.Contains(declared, "TEXT") || isTime && !regexp.MustCompile(`CHECK \(`+column+` (IS strftime\('%Y-%m-%dT%H:%M:%SZ', `+column+`\)|LIKE '____-__-__T__:__:00Z')\)`).MatchString(declared) ||
				column == "day" && !strings.Contains(declared, `CHECK (day LIKE '____-__-__')`) {
				t.Errorf("%s.%s has no rule for times: %s", table, column, declared)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPeopleCanReadTheViewsWhileItServes(t *testing.T) {
	s := newService(t)
	widget := s.addWidget(s.account)
	_, key := s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(-time.Hour)), GraceDays: 3})
	other, _ := s.addLicense(license{Product: "board"})
	s.change(func(t *tx) error {
		_, err := changeState(t, other, "suspend", "unpaid", actorCommand)
		return err
	})
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/events", `{"widget":"`+widget+`","events":[{"type":"view"}]}`, "Origin: "+siteOrigin).is(204)
	s.get("//api/legacy/widget/stats")
	s.check(s.server.flushLegacy(t.Context()))
	if key == "" {
		t.Fatal("no key")
	}
	db, err := sql.Open("sqlite", "file:"+s.store.path+"?mode=ro")
	s.check(err)
	defer db.Close()
	for view, want := range map[string]string{
		"v_licenses":       `SELECT group_concat(product || ' ' || status || ' ' || seats_used, ', ') FROM (SELECT * FROM v_licenses ORDER BY product)`,
		"v_devices":        `SELECT count(*) || ' devices' FROM v_devices`,
		"v_leads_by_day":   `SELECT account || ' ' || type || ' ' || leads FROM v_leads_by_day`,
		"v_widget_days":    `SELECT widget || ' ' || views || ' ' || visitors FROM v_widget_days`,
		"v_legacy_callers": `SELECT path || ' ' || caller || ' ' || calls FROM v_legacy_callers`,
		"v_audit":          `SELECT group_concat(type, ', ') FROM v_audit`,
	} {
		expected := map[string]string{
			"v_licenses": "board suspended 0, kds grace 0", "v_devices": "0 devices", "v_leads_by_day": "main newsletter 1", "v_widget_days": "Lunch 1 1",
			"v_legacy_callers": "/api/legacy/widget/stats unknown 1", "v_audit": "lead.created, license.suspended, license.created, license.created",
		}[view]
		var got string
		if err := db.QueryRow(want).Scan(&got); err != nil || got != expected {
			t.Errorf("%s: %q (%v), want %q", view, got, err, expected)
		}
	}
	if _, err := db.Exec(`DELETE FROM leads`); err == nil {
		t.Error("a reader could delete")
	}
}

func TestIDsSortByTimeAndHaveOneShape(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	last := ""
	for i := range 1000 {
		for _, prefix := range []string{"acct", "lead", "lic", "dev", "wgt", "tok", "evt", "req", "whe"} {
			if id := newID(prefix, start.Add(time.Duration(i)*time.Millisecond)); !validID(prefix, id) || len(id) != len(prefix)+27 {
				t.Fatalf("id %q", id)
			}
		}
		id := newID("lead", start.Add(time.Duration(i)*time.Millisecond))
		if id <= last {
			t.Fatalf("%q comes after %q", id, last)
		}
		last = id
	}
	good := newID("lead", start)
	for _, later := range []time.Duration{time.Hour, 100 * 365 * 24 * time.Hour} {
		if id := newID("lead", start.Add(later)); id <= good {
			t.Errorf("%q comes after %q, and %v later", good, id, later)
		}
	}
	for _, bad := range []string{"", "lead_", good[:30], good + "0", strings.ToUpper(good), "wgt" + good[4:], "lead-" + good[5:], "lead_8" + good[6:], good[:30] + "u", good[:30] + "é", good[:29] + "é"} {
		if validID("lead", bad) {
			t.Errorf("%q passes for an id", bad)
		}
	}
}

func TestSweepingRemovesWhatHasServedItsTime(t *testing.T) {
	s := newService(t)
	hash := func(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }
	s.change(func(t *tx) error {
		old := t.at(-25 * time.Hour)
		return errors.Join(
			old.storeAnswer(hash(1), storedAnswer{hash(1), []byte("x")}), t.storeAnswer(hash(2), storedAnswer{hash(2), []byte("x")}))
	})
	widget := s.addWidget(s.account)
	s.change(func(t *tx) error {
		item := []itemCount{{Item: "Soup", Clicks: 1}}
		t.at(-48*time.Hour).addCounts(widget, counts{Clicks: 1}, item)
		t.addCounts(widget, counts{Clicks: 1}, item)
		return nil
	})
	s.change((*tx).sweep)
	if answers, names, items := s.count(`SELECT count(*) FROM idempotency`), s.count(`SELECT count(*) FROM item_names`), s.count(`SELECT count(*) FROM item_counts`); answers != 1 || names != 1 || items != 2 {
		t.Errorf("left: %d answers, %d names, %d counts; want 1, 1, 2", answers, names, items)
	}
}

func TestTheHeaderHoldsWhoseFileItIs(t *testing.T) {
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

// BenchmarkWrites compares a lead written alone through the writer with the same in
// a plain transaction of its own, and with 64 callers at once, who share commits.
func BenchmarkWrites(b *testing.B) {
	b.Run("plain transaction", func(b *testing.B) {
		s := openTestStore(b, makeStore(b), storeOptions{})
		main, err := s.mainAccount()
		if err != nil {
			b.Fatal(err)
		}
		db, err := sql.Open("sqlite", dsn(s.path, "rw", storeOptions{}))
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		conn, err := db.Conn(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		q := newQueries(conn.PrepareContext)
		defer conn.Close()
		defer q.close()
		run := func(query string) {
			st, err := q.stmt(query)
			if err == nil {
				_, err = st.Exec()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		for n := 0; b.Loop(); n++ {
			now := time.Now()
			run("BEGIN IMMEDIATE")
			t := &tx{queries: q, effects: &effects{}, now: newStamp(now), exact: now}
			if _, err := t.addLead(lead{AccountID: main, Type: "newsletter", Email: fmt.Sprintf("u%d@example.com", n)}); err != nil {
				b.Fatal(err)
			}
			run("COMMIT")
		}
	})
	for name, parallel := range map[string]int{"alone": 1, "64 at once": 64} {
		b.Run(name, func(b *testing.B) {
			s := openTestStore(b, makeStore(b), storeOptions{})
			main, err := s.mainAccount()
			if err != nil {
				b.Fatal(err)
			}
			var n atomic.Int64
			write := func() {
				err := s.update(context.Background(), func(t *tx) error {
					_, err := t.addLead(lead{AccountID: main, Type: "newsletter", Email: fmt.Sprintf("u%d@example.com", n.Add(1))})
					return err
				})
				if err != nil {
					b.Error(err)
				}
			}
			b.ResetTimer()
			if parallel == 1 {
				for b.Loop() {
					write()
				}
				return
			}
			b.SetParallelism(parallel / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					write()
				}
			})
		})
	}
}
