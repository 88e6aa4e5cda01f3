package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// runOK runs a command that must succeed and returns what it printed.
func runOK(t testing.TB, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), args, func(string) string { return "" }, &stdout, &stderr); err != nil {
		t.Fatalf("widgetd %q: %v\n%s%s", args, err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// An operator runs commands on a directory of its own. Where the files lie comes
// from the environment, as on a server.
type operator struct {
	t            testing.TB
	dir          string
	env          map[string]string
	account      string      // the main one
	told         *discretion // what was printed in confidence
	noted        string      // what the last command wrote to standard error
	shares       bool        // the open database, among commands; else each opens it
	opened       *store      // that one
	clockUnknown bool        // the kernel can't say whether the clock is right
}

// filesIn is the environment that says where the database and the keys lie.
func filesIn(dir string) map[string]string {
	return map[string]string{
		"WIDGETD_DB": filepath.Join(dir, "widgetd.db"), "WIDGETD_KEY": filepath.Join(dir, "widgetd.key"),
	}
}

// initialised is what init made when a test first asked for it: a database, a key file and an account. A copy takes
// a fiftieth of the time.
var initialised struct {
	sync.Once
	db, key, account string
}

// init gives the operator what init makes, and returns the account. In a synctest bubble, whose clock is another, it
// runs init.
func (o *operator) init() (account string) {
	o.t.Helper()
	run := func() string {
		return o.object("init", "-origin", siteOrigin+",https://Partner.example:443")["account_id"].(string)
	}
	if time.Now().Before(bubbleStart.AddDate(20, 0, 0)) {
		return run()
	}
	initialised.Do(func() {
		initialised.account = run()
		initialised.db, initialised.key = fileText(o.t, o.env["WIDGETD_DB"]), fileText(o.t, o.env["WIDGETD_KEY"])
	})
	must(o.t, os.WriteFile(o.env["WIDGETD_DB"], []byte(initialised.db), 0o600))
	must(o.t, os.WriteFile(o.env["WIDGETD_KEY"], []byte(initialised.key), 0o600))
	noteCommand([]string{"init"}, nil)
	o.told.begin([]byte(initialised.db))
	return initialised.account
}

// newOperator has a directory where init was run, and commands that share an open database.
func newOperator(t testing.TB) *operator {
	t.Helper()
	dir := t.TempDir()
	o := &operator{t: t, dir: dir, env: filesIn(dir), told: newDiscretion(t), shares: true}
	o.account = o.init()
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	must(t, err)
	o.told.keyFile(t, ring)
	t.Cleanup(func() {
		o.close()
		o.told.check(t, nil, filepath.Join(dir, "widgetd.db"))
	})
	return o
}

// expectedNotes is what commands may write to standard error, each in one line.
var expectedNotes = regexp.MustCompile(`^((these are the first |warning: |queued: |this is the revenue of |` +
	`the list is empty|the secrets of the payment connection |acct_\w+ \([^\n]+\) has no revenue; |` +
	`for [^\n]+, once, until )[^\n]*\n)*$`)

// try runs a command and returns what it printed.
func (o *operator) try(args ...string) (string, error) {
	o.t.Helper()
	var stdout, stderr bytes.Buffer
	run := func() error {
		stdout.Reset()
		stderr.Reset()
		getenv := func(name string) string { return o.env[name] + "\r" } // as in a file that was edited on Windows
		e := newEnv(o.t.Context(), getenv, &stdout, &stderr)
		e.shared, e.synchronised = o.database(args), func() bool { return !o.clockUnknown }
		return e.dispatch(args)
	}
	err := run()
	for n := 0; n < 5 && err != nil && strings.Contains(err.Error(), "another process has it open"); n++ {
		// A program that another test is starting has for a moment what this process had: by then one more has run.
		runProgram(o.t, "sh", "-c", ":")
		err = run()
	}
	noteCommand(args, err)
	noteTroubles(args, stdout.String())
	o.told.hear(stdout.String())
	o.noted = stderr.String()
	if !expectedNotes.MatchString(o.noted) {
		o.t.Errorf("widgetd %q wrote to standard error: %s", args, o.noted)
	}
	return stdout.String(), err
}

// do runs a command that must succeed.
func (o *operator) do(args ...string) string {
	o.t.Helper()
	out, err := o.try(args...)
	if err != nil {
		o.t.Fatalf("widgetd %q: %v\n%s", args, err, out)
	}
	return out
}

// objects runs a command with -json behind its arguments and returns the objects it printed, one a line.
func (o *operator) objects(args ...string) (all []map[string]any) {
	o.t.Helper()
	return jsonLines(o.t, o.do(append(args, "-json")...))
}

func (o *operator) object(args ...string) map[string]any {
	o.t.Helper()
	all := o.objects(args...)
	if len(all) != 1 {
		o.t.Fatalf("widgetd %q printed %d objects", args, len(all))
	}
	return all[0]
}

// fails runs a command that must fail with that text, in one line.
func (o *operator) fails(want string, args ...string) error {
	o.t.Helper()
	_, err := o.try(args...)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		o.t.Errorf("widgetd %q: %v, want one line with %q", args, err, want)
	}
	return err
}

// replaceKeyFile puts another key file in the place of the operator's, and returns its keys.
func (o *operator) replaceKeyFile() *keyring {
	o.t.Helper()
	other, err := newKeyring(time.Now())
	must(o.t, err)
	must(o.t, other.save(o.env["WIDGETD_KEY"], true))
	o.told.keyFile(o.t, other)
	return other
}

// store opens the operator's database for the test to look into.
func (o *operator) store(f func(*store)) {
	o.t.Helper()
	if o.opened != nil && o.opened.filesInPlace() == nil {
		f(o.opened)
		return
	}
	s, err := openStore(o.env["WIDGETD_DB"], storeOptions{noCheckpoints: true})
	must(o.t, err)
	f(s)
	must(o.t, s.close())
}

// database is what commands of the operator have open in common, since most of what one costs is to open it; nil: this
// one opens the database itself, or needs it for itself.
func (o *operator) database(args []string) *store {
	alone := []string{"init", "promote", "upgrade", "restore", "serve", "demo"}
	moved := o.opened != nil && (o.opened.path != o.env["WIDGETD_DB"] || o.opened.filesInPlace() != nil)
	if moved || slices.Contains(alone, args[0]) {
		o.close()
		untilAlone()
	}
	if !o.shares || slices.Contains(alone, args[0]) || slices.Contains(args, "-db") {
		return nil
	}
	if o.opened == nil {
		var err error
		if o.opened, err = openStore(o.env["WIDGETD_DB"], storeOptions{noCheckpoints: true}); err != nil {
			return nil // as the command finds
		}
	}
	noticeIn(o.opened)
	return o.opened
}

// untilAlone waits for programs that other tests are starting: until they run they have open what this process had.
func untilAlone() {
	syscall.ForkLock.Lock() // is free when they run; later ones have nothing of what was closed
	defer syscall.ForkLock.Unlock()
}

// close closes what the commands have open. The next one opens it again.
func (o *operator) close() {
	o.t.Helper()
	if o.opened != nil {
		must(o.t, o.opened.close())
	}
	o.opened = nil
}

func (o *operator) change(f func(*tx) error) {
	o.t.Helper()
	o.store(func(s *store) { must(o.t, s.update(o.t.Context(), f)) })
}

// addLeads puts leads there, each posted a day before the one before it.
func (o *operator) addLeads(emails ...string) {
	o.t.Helper()
	o.change(func(t *tx) error {
		for i := len(emails) - 1; i >= 0; i-- { // the oldest first, as they would come
			posted := lead{AccountID: o.account, Type: "newsletter", Email: emails[i], Source: ptr("=footer"),
				Page: ptr("/+menu")}
			if _, err := t.at(-time.Duration(i) * 24 * time.Hour).addLead(posted); err != nil {
				return err
			}
		}
		return nil
	})
}

// column returns one member of each object.
func column(rows []map[string]any, name string) (all []any) {
	for _, row := range rows {
		all = append(all, row[name])
	}
	return all
}

// addDevice puts an active device on a licence.
func (o *operator) addDevice(licenseID, kid string) (id string) {
	o.t.Helper()
	o.change(func(t *tx) error {
		id = t.newID("dev")
		hash := fingerprintHash(id)
		deviceTable.insert(t, &device{ID: id, LicenseID: licenseID, Fingerprint: hash[:], State: deviceActive,
			ActivatedAt: t.now, LastSeenAt: t.now, LeaseKid: kid, LeasedAt: t.now,
			LeaseExpiresAt: t.now.after(time.Hour)})
		return nil
	})
	return id
}

// makeStore makes a database with a main account and an origin and returns its path.
func makeStore(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "widgetd.db")
	copyTemplate(t, path)
	return path
}

// openTestStore opens a database until the test ends.
func openTestStore(t testing.TB, path string, o storeOptions) *store {
	t.Helper()
	s, err := openStore(path, o)
	must(t, err)
	t.Cleanup(func() {
		select {
		case <-s.closing: // the test has closed it
		default:
			must(t, s.close())
		}
	})
	return s
}

// named is a job that opens an account.
func named(name string) func(*tx) error {
	return func(t *tx) error {
		t.addAccount(name, false)
		return nil
	}
}

// accountNames are the accounts but the main one, sorted by name.
func accountNames(t testing.TB, s *store) (names []string) {
	t.Helper()
	all, err := s.accounts()
	must(t, err)
	for _, a := range all {
		if !a.Main {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

var errReleased = errors.New("the writer is released")

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
			return errReleased
		})
	}()
	<-held
	return func() {
		close(let)
		if err := <-done; !errors.Is(err, errReleased) {
			t.Errorf("the job that held the writer: %v", err)
		}
	}
}

// queue asks for jobs, in order, while the writer is held, and returns where each one's result will be.
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
	must(t, err)
	transaction, err := db.Begin() // immediate, as the DSN says
	must(t, err)
	return func() {
		if err := errors.Join(transaction.Commit(), db.Close()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}

// leaveOpen starts to read the database as another program would, until the test ends
// or what it returns is called.
func leaveOpen(t testing.TB, path string) (end func()) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "rw", storeOptions{}, "query_only(1)"))
	must(t, err)
	rows, err := db.Query(`SELECT id FROM accounts`)
	must(t, err)
	end = func() {
		rows.Close()
		db.Close()
	}
	t.Cleanup(end)
	return end
}

// damage changes bytes of a file.
func damage(t testing.TB, path string, at int64, bytes ...byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(bytes, at)
	must(t, errors.Join(err, f.Close()))
}

// raw runs SQL on a file without any of the store's care.
func raw(t testing.TB, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(15000)") // while a service writes
	must(t, err)
	_, err = db.Exec(query)
	must(t, errors.Join(err, db.Close()))
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	must(t, os.Rename(from, to))
}

func dirNames(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// traces are the files of a directory in which a text stands. A socket holds none.
func traces(t testing.TB, dir, text string) (names []string) {
	t.Helper()
	for _, name := range dirNames(t, dir) {
		if strings.HasSuffix(name, ".sock") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if bytes.Contains(bytes.ToLower(content), []byte(text)) {
			names = append(names, name)
		}
	}
	return names
}
