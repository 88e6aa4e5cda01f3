package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// What tests share. A noun's own helpers are in its files, those of payments and books in
// payment_harness_test.go and books_harness_test.go.
//
//	to get a service                 newService, inBubble; s.another; s.with for a subtest; withoutAddressLimits;
//	                                 withLimits for limits that few rows come to
//	with a licence                   s.addLicense; then s.activate, s.verifyKey, s.verifyLease, s.lease, s.deviceRow
//	with what else it needs          s.addAccount, s.addWidget, s.token, s.change and s.sql for any other row
//	to run its commands              s.command, s.must
//	to ask it                        s.get, s.post, s.do; s.ask for what may be nonsense; s.everyPage for a list
//	to judge an answer               a.is, a.has, a.says, a.names, a.invalid, a.answers; a.json, a.text to read it
//	to make a body or a header       seatBody, activateBody, anyLead; bearer
//	to look into the database        s.count, s.counts, s.dump and s.unchanged, column
//	to have it notice and work       s.notice, s.reopen, s.chore, s.health; s.beside runs something meanwhile
//	to compare and to fail           equal, contains, lacks, must, s.check
//
//	to get an operator               newOperator, operatorIn; o.do, o.object, o.objects, o.try, o.fails, runOK
//	whose commands open the files    o.shares = false
//	with rows                        o.addLeads, o.addDevice, o.change, o.store
//	to get a database alone          makeStore, copyTemplate, openTestStore; raw for SQL without care
//	to hold its writer or its locks  holdWriter and queue, foreignLock, leaveOpen, s.limitPages
//	to make writes fail              useFault with a fault
//	to damage and search files       damage, rename, dirNames, traces
//	to fill it                       manyRows
//
//	to run the program as a process  serveProcess, serveTraced, start; p.stop, p.end; builtProgram for a command
//	to talk to a process             o.customer, newClient, postLead, link, dialRaw, exchange
//	to load it                       startLoad, missing, acknowledged
//	to run other programs            programsOrSkip, runProgram, asOnAServer, openShell
//	to have a small or full disk     smallDisk, fillDisk
//
//	to move time                     inBubble, in which time.Sleep takes none; wallClock for a clock that is set;
//	                                 standsStill for one by which no bucket refills
//	to wait                          soon, for what others do; s.health, settled and o.status until a proof is done
//	to choose how much and what      size, seeds, random
//	to read documents and vectors    codeBlocks, documentBlock, vectors
//	to keep secrets                  discretion: every service and operator has one, which looks where they may not be

func ptr[T any](v T) *T { return &v }

// A service is a real handler over a real store in a directory of its own.
type service struct {
	t        testing.TB
	server   *server
	store    *store
	keys     *keyring
	dir      string
	account  string      // the main one; it owns siteOrigin
	log      *runningLog // what the service logged
	told     *discretion // what was said in confidence
	damaged  bool        // rows hold what no caller could have sent, so answers are not as the document says
	fault    *fault      // of its writer's connection, with withFaults
	commands *store      // what its commands use, see envAt; nil: none has run there yet
	look     *looker     // by which dump reads
}

const (
	siteOrigin = "https://www.example.com"
	testBase   = "http://127.0.0.1:8080/v1"
)

// newDatabase is a new database with one account, one origin and a base address, as most
// tests begin with it. It is made once; a copy costs a twentieth of making one.
var newDatabase = sync.OnceValues(func() (made struct {
	content []byte
	account string
}, err error) {
	dir, err := os.MkdirTemp("", "widgetd-template-")
	if err != nil {
		return made, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "widgetd.db")
	err = createStore(path, func(now *tx) (err error) {
		t := now.at(bubbleStart.Sub(now.exact)) // so that the account is old for every test
		made.account = t.addAccount("main", true)
		t.setBaseURL(testBase)
		originTable.insert(t, &originRow{siteOrigin, made.account, t.now}) // without an event
		return nil
	})
	if err != nil {
		return made, err
	}
	made.content, err = os.ReadFile(path)
	return made, err
})

// bubbleStart is when the clock of a synctest bubble begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// copyTemplate makes a database from newDatabase and returns the id of its account.
func copyTemplate(t testing.TB, path string) (account string) {
	t.Helper()
	made, err := newDatabase()
	if err == nil {
		err = os.WriteFile(path, made.content, 0o600)
	}
	must(t, err)
	return made.account
}

// newService starts a service with one account and one origin. In a synctest
// bubble its clock is the bubble's. change alters the usual options.
func newService(t testing.TB, change ...func(*storeOptions, *serverOptions)) *service {
	t.Helper()
	made, err := newDatabase()
	must(t, err)
	keys, err := newKeyring(time.Now())
	must(t, err)
	return serviceWith(t, made.content, made.account, keys, change...)
}

// serviceWith starts a service on a copy of a database, whose main account is given, with its keys. No commit waits
// for the disk: only the machine's own failure would show that, and tests of processes see that the service waits.
func serviceWith(
	t testing.TB, database []byte, account string, keys *keyring, change ...func(*storeOptions, *serverOptions),
) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), log: &runningLog{}, told: newDiscretion(t), account: account, keys: keys}
	db := filepath.Join(s.dir, "widgetd.db")
	s.check(os.WriteFile(db, database, 0o600))
	text, err := s.keys.encode()
	s.check(err)
	s.check(os.WriteFile(filepath.Join(s.dir, "widgetd.key"), text, 0o600))
	s.told.keyFile(t, s.keys)
	s.told.begin(database)
	of := storeOptions{unsynced: true}
	how, err := usualServerOptions(allCommands())
	s.check(err)
	for _, f := range change {
		f(&of, &how)
	}
	if of.driver == faultyDriverName {
		s.fault = &fault{}
		useFault(db, s.fault)
	}
	s.store, err = openStore(db, of)
	s.check(err)
	s.watch()
	how.undescribed = func(name string) {
		t.Errorf("%s is looked up by a route that does not describe it", name)
	}
	s.server, err = newServer(s.store, s.keys, how, slog.New(slog.NewTextHandler(s.log, nil)), nouns())
	s.check(err)
	s.look = &looker{path: db}
	t.Cleanup(func() {
		err := errors.Join(s.look.close(), s.store.close())
		if err != nil {
			t.Errorf("close: %v", err)
		}
		s.told.check(t, []byte(s.log.String()), db)
	})
	return s
}

// A runningLog is a log that may be read while it is written.
type runningLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *runningLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *runningLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Reset forgets what was logged so far.
func (l *runningLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// beside runs something beside the test until its end, or until stop is called.
func (s *service) beside(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan struct{})
	go func() { run(ctx); close(ended) }()
	stop = func() { cancel(); <-ended }
	s.t.Cleanup(stop)
	return stop
}

// withoutAddressLimits lifts the limits that hold anonymous callers.
func withoutAddressLimits(_ *storeOptions, o *serverOptions) {
	o.anonymousRate, o.visitorRate, o.failedLookupRate = 1<<30, 1<<30, 1<<30
}

// withLimits lowers limits that the test comes to. Lowering one to size(50, its value) tries the rule with few rows,
// and the real value with -long.
func withLimits(lower func(*limits)) func(*storeOptions, *serverOptions) {
	return func(o *storeOptions, _ *serverOptions) {
		o.limits = cmp.Or(o.limits, usualLimits)
		lower(&o.limits)
	}
}

// withFaults has the writer's connection fail as s.fault says.
func withFaults(o *storeOptions, _ *serverOptions) { o.driver = faultyDriverName }

// with is the same service for a subtest, which then fails by itself.
func (s *service) with(t testing.TB) *service {
	same := *s
	same.t = t
	return &same
}

func (s *service) check(err error) {
	s.t.Helper()
	must(s.t, err)
}

// must ends a test after an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal compares what a test got with what it wants.
func equal[T any](t testing.TB, what any, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %v, want %v", what, got, want)
	}
}

// contains checks that each of some parts is in a text.
func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in\n%s", part, text)
		}
	}
}

// lacks checks that none of some parts is in a text.
func lacks(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("there is %q in\n%s", part, text)
		}
	}
}

// inBubble runs a test in a synctest bubble, on a service whose clock is the bubble's.
func inBubble(t *testing.T, test func(*testing.T, *service), change ...func(*storeOptions, *serverOptions)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newService(t, change...)) })
}

// bearer is the header of a token.
func bearer(token string) string { return "Authorization: Bearer " + token }

// change runs a write, as an operator's command would.
func (s *service) change(f func(*tx) error) {
	s.t.Helper()
	s.check(s.store.update(s.t.Context(), f))
}

func (s *service) sql(query string, args ...any) {
	s.t.Helper()
	s.change(func(t *tx) error {
		n, err := t.try(query, args...)
		if err == nil && n == 0 {
			err = fmt.Errorf("%s changed nothing", query)
		}
		return err
	})
}

// addLicense issues a licence of the main account, unless l says otherwise, and returns its id and key.
func (s *service) addLicense(l license) (id, key string) {
	s.t.Helper()
	key = newLicenseKey()
	parsed, err := parseLicenseKey(key)
	s.check(err)
	l.AccountID, l.Product = cmp.Or(l.AccountID, s.account), cmp.Or(l.Product, "kds")
	s.change(func(t *tx) (err error) {
		id, err = t.addLicense(&l, parsed, actorCommand)
		return err
	})
	s.told.hear(key)
	return id, key
}

// addAccount opens another account.
func (s *service) addAccount(name string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		id = t.addAccount(name, false)
		return nil
	})
	return id
}

// addWidget adds a widget to an account.
func (s *service) addWidget(account string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		id, err = t.addWidget(account, "Lunch", false, actorCommand)
		return err
	})
	return id
}

// token issues a bearer token for an account.
func (s *service) token(account, scope string) (token string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		token, _, err = issueToken(t, s.keys, tokenRow{AccountID: account, ClientID: "test", Scope: scope}, time.Hour)
		return err
	})
	s.told.hear(token)
	return token
}

// command runs the program and returns what it printed. It finds the database open, unless it names another.
func (s *service) command(args ...string) (string, error) {
	s.t.Helper()
	if slices.Contains(args, "-db") {
		return s.opening(args...)
	}
	e, out, _ := s.envAt(false, strings.NewReader(""))
	return s.dispatch(e, out, args)
}

// opening is command for a program that opens the database itself.
func (s *service) opening(args ...string) (string, error) {
	s.t.Helper()
	e, out, _ := s.envAt(false, strings.NewReader(""))
	e.shared = nil
	return s.dispatch(e, out, args)
}

func (s *service) dispatch(e *env, out *strings.Builder, args []string) (string, error) {
	err := e.dispatch(args)
	noteCommand(args, err)
	noteTroubles(args, out.String())
	s.notice()
	return out.String(), err
}

// must runs the program, which must succeed.
func (s *service) must(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...)
	if err != nil {
		s.t.Fatalf("widgetd %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// jsonLines are the objects that a command with -json has printed.
func jsonLines(t testing.TB, out string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q is no JSON object: %v", line, err)
		}
		all = append(all, v)
	}
	return all
}

// notice lets the service notice what another connection has changed, which it does within a second by itself.
func (s *service) notice() {
	s.t.Helper()
	noticeIn(s.store)
}

// noticeIn lets a store notice what another connection has changed.
func noticeIn(st *store) {
	for range 3 { // the first may meet a fault; in a file that was replaced none can write
		if st.update(context.Background(), func(*tx) error {
			st.lookForForeignCommits()
			return errReleased
		}) == errReleased {
			return
		}
	}
}

// thisActor returns the actor of the events that commands of this process write.
func thisActor(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	must(t, err)
	return "command:" + u.Username
}

// count returns the single number that a query gives.
func (s *service) count(query string, args ...any) (n int) {
	s.t.Helper()
	s.check(s.store.one(query, args, &n))
	return n
}

// counts checks the single number that a query gives.
func (s *service) counts(want int, query string, args ...any) {
	s.t.Helper()
	if n := s.count(query, args...); n != want {
		s.t.Errorf("%s %v: %d, want %d", query, args, n, want)
	}
}

// A looker reads a database for a test over a connection of its own, which it keeps: to open one takes longer than
// to read all that a test writes.
type looker struct {
	path  string
	db    *sql.DB
	file  os.FileInfo // which the connection has open
	at    uint32      // data_version when it read what it has
	whole string      // what dump returned then
}

// close closes the connection, if there is one. The next dump opens another.
func (l *looker) close() (err error) {
	if l.db != nil {
		err = l.db.Close()
	}
	*l = looker{path: l.path}
	return err
}

// open opens a connection, unless it has one to the file that is at its path now.
func (l *looker) open() error {
	file, err := os.Stat(l.path)
	if err != nil || l.db != nil && os.SameFile(file, l.file) {
		return err
	}
	if err = l.close(); err != nil {
		return err
	}
	l.db, err = sql.Open("sqlite", dsn(l.path, "rw", storeOptions{}, "query_only(1)"))
	if err != nil {
		return err
	}
	l.db.SetMaxOpenConns(1) // data_version is the connection's own
	l.file = file
	return nil
}

// each calls row for every row of a query.
func (l *looker) each(query string, row func(*sql.Rows) error) error {
	rows, err := l.db.Query(query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// dump is every row of every table but the proofs of health. Unless somebody has committed since it was called last,
// it is what it was then.
func (s *service) dump() string {
	s.t.Helper()
	l, version := s.look, uint32(0)
	s.check(l.open())
	s.check(l.db.QueryRow(`PRAGMA data_version`).Scan(&version))
	if l.whole != "" && version == l.at {
		return l.whole
	}
	var tables []string
	s.check(l.each(`SELECT name FROM sqlite_schema
		WHERE type = 'table' AND name NOT IN ('probes', 'sqlite_stat1') ORDER BY name`, func(rows *sql.Rows) error {
		tables = append(tables, "")
		return rows.Scan(&tables[len(tables)-1])
	}))
	var out strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&out, "== %s\n", table)
		var lines []string
		s.check(l.each(`SELECT * FROM `+table, func(rows *sql.Rows) error {
			columns, err := rows.Columns()
			s.check(err)
			values, dest := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			err = rows.Scan(dest...)
			lines = append(lines, fmt.Sprintf("%v", values))
			return err
		}))
		slices.Sort(lines)
		fmt.Fprintln(&out, strings.Join(lines, "\n"))
	}
	l.at, l.whole = version, out.String()
	return l.whole
}

// unchanged checks that no table has changed since a dump.
func (s *service) unchanged(before string) {
	s.t.Helper()
	after := s.dump()
	if after == before {
		return
	}
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	only := func(lines, others []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
			return slices.Contains(others, line)
		}), "\n")
	}
	s.t.Fatalf("the database has changed; gone:\n%s\nnew:\n%s", only(old, now), only(now, old))
}

func TestHarness_databaseFilesAreWhereDumpLooks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	before := s.dump()
	s.post("/widget/leads", anyLead).is(200)
	after := s.dump()
	if after == before || !strings.Contains(after, "ada@example.com") {
		t.Fatal("dump does not see a new lead")
	}
	raw(t, s.store.path, `UPDATE accounts SET name = 'By somebody else'`)
	contains(t, s.dump(), "By somebody else")
	s.closeStore()
	contains(t, s.dump(), "By somebody else")
	another := filepath.Join(s.dir, "another.db")
	copyTemplate(t, another)
	rename(t, another, s.store.path)
	lacks(t, s.dump(), "By somebody else")
	var err error
	s.store, err = openStore(s.store.path, storeOptions{}) // for the harness, which closes it
	s.check(err)
}

// reopen gives a service a store that was opened otherwise.
func (s *service) reopen(o storeOptions) {
	s.t.Helper()
	s.closeStore()
	var err error
	s.store, err = openStore(filepath.Join(s.dir, "widgetd.db"), o)
	s.check(err)
	s.server.store = s.store
	if o.now != nil {
		s.server.now = o.now
	}
}

// another is a second service over the same files, with a log in common. Whoever asks for it closes its store.
func (s *service) another() *service {
	s.t.Helper()
	other := *s
	var err error
	other.store, err = openStore(s.store.path, storeOptions{})
	s.check(err)
	other.server, err = newServer(other.store, s.keys, s.server.serverOptions, s.server.log, nouns())
	s.check(err)
	return &other
}

// closeStore closes the database, with the lock for sending its webhooks. A program that another test
// is just starting has a copy of each open file until it runs, so of such a lock too.
func (s *service) closeStore() {
	s.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s.check(errors.Join(s.look.close(), s.store.close()))
}

const anyLead = `{"type":"newsletter","email":"ada@example.com"}`

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

// An answer is what came back.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

// setHeaders sets headers of lines, each "Name: value", as every helper that sends or answers takes them. Lines of
// one name are values of one header, in the place of what it has. A line of any other form is an error: a header
// that goes out empty, or not at all, would have a test pass for another reason than it says.
func setHeaders(h http.Header, lines []string) error {
	seen := map[string]bool{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ": ")
		if !ok || name == "" || strings.ContainsAny(name, " /:") {
			return fmt.Errorf("%q is no header: it must be \"Name: value\"", line)
		}
		if !seen[name] {
			h.Del(name) // such as our Content-Type
		}
		h.Add(name, value)
		seen[name] = true
	}
	return nil
}

func TestHarness_refusesWhatIsNoHeader(t *testing.T) {
	t.Parallel()
	for _, lines := range [][]string{{"Origin", siteOrigin}, {""}, {"Origin:x"}, {": x"}, {siteOrigin + "/a: b: c d"}} {
		if h := (http.Header{}); setHeaders(h, lines) == nil {
			t.Errorf("%q sets %v", lines, h)
		}
	}
}

// do sends a request. path is relative to the base address; one that begins with // is from the root. headers are
// "Name: value", of which "Peer: 127.0.0.1:1" is the address that the connection comes from; a body without a
// Content-Type is sent as JSON.
func (s *service) do(method, path, body string, headers ...string) answer {
	s.t.Helper()
	if path = "/v1" + path; strings.HasPrefix(path, "/v1//") {
		path = path[len("/v1/"):]
	}
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	s.check(setHeaders(r.Header, headers))
	if peers := r.Header.Values("Peer"); len(peers) > 0 {
		r.RemoteAddr = peers[len(peers)-1]
		r.Header.Del("Peer")
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	s.told.hearRequest(body, r.Header)
	if !strings.HasSuffix(path, "/openapi.json") && !strings.HasPrefix(path, "/docs") { // which are long, and public
		s.told.hear(w.Body.String())
	}
	return s.documented(r, w)
}

// documented returns an answer, which must be as the OpenAPI document says.
func (s *service) documented(r *http.Request, w *httptest.ResponseRecorder) answer {
	s.t.Helper()
	header := w.Result().Header
	if s.damaged {
		return answer{s.t, w.Code, header, w.Body.String()}
	}
	for _, fault := range judgeAnswer(r, s.server.routing.Load(), w.Code, header, w.Body.Bytes()) {
		s.t.Errorf("%s %s: %d %.300s\nis not as the document says: %s", r.Method, r.URL, w.Code, w.Body, fault)
	}
	return answer{s.t, w.Code, header, w.Body.String()}
}

func (s *service) post(path, body string, headers ...string) answer {
	s.t.Helper()
	return s.do("POST", path, body, headers...)
}

func (s *service) get(path string, headers ...string) answer {
	s.t.Helper()
	return s.do("GET", path, "", headers...)
}

// proofWaits is what health says while its own proof is under way: a request waits a quarter of a second for it, and
// where the machine is busy that may be too short.
var proofWaits = regexp.MustCompile(`(a write has been waiting|another program has held the write lock) for [\d,]+ ms`)

// settled asks for something until it does not say that a proof of health is under way.
func settled(ask func() string) (said string) {
	for range 1000 {
		if said = ask(); !proofWaits.MatchString(said) {
			break
		}
	}
	return said
}

// health asks for health until its proof is done.
func (s *service) health() (a answer) {
	s.t.Helper()
	settled(func() string {
		a = s.get("/widget/health")
		return a.body
	})
	return a
}

// status asks for the status until the proof of health is done.
func (o *operator) status() (v map[string]any) {
	o.t.Helper()
	settled(func() string {
		v = o.object("status")
		return fmt.Sprint(v["service"])
	})
	return v
}

// standsStill returns a clock that shows the same time for good.
func standsStill() func() time.Time {
	now := time.Now()
	return func() time.Time { return now }
}

// ask sends a request as it is to the service and checks that the answer is one of the contract's.
func (s *service) ask(method, path, query, body string, header http.Header) answer {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/v1"+path, strings.NewReader(body))
	r.URL.RawQuery = query
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	a := s.documented(r, w)
	if a.status >= 500 {
		s.t.Fatalf("%s %s?%s %v %q: %d %s\n%s", method, path, query, header, body, a.status, a.body, s.log)
	}
	if a.status >= 400 {
		return a.is(a.status, a.text("code"))
	}
	return a.is(a.status)
}

// says checks the whole body.
func (a answer) says(body string) answer {
	a.t.Helper()
	if a.body != body {
		a.t.Errorf("the answer is %s, want %s", a.body, body)
	}
	return a
}

// json decodes the body.
func (a answer) json() map[string]any {
	a.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("%d %q is not JSON: %v", a.status, a.body, err)
	}
	return v
}

// text returns a member of the body that is a string; names go down, as "license", "id".
func (a answer) text(names ...string) string {
	a.t.Helper()
	var v any = a.json()
	for _, name := range names {
		v = v.(map[string]any)[name]
	}
	text, ok := v.(string)
	if !ok {
		a.t.Fatalf("%v of %s is no string", names, a.body)
	}
	return text
}

// wrong lists what the errors of a problem name: "#/email invalid_email" for a
// member, "?limit out_of_range" for a parameter.
func (a answer) wrong() []string {
	a.t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		a.t.Fatalf("%d %q is not a problem: %v", a.status, a.body, err)
	}
	named := []string{}
	for _, e := range p.Errors {
		if e.Parameter != "" {
			e.Pointer += "?" + e.Parameter
		}
		named = append(named, e.Pointer+" "+e.Code)
	}
	return named
}

// contains checks that each of some texts stands in the body.
func (a answer) contains(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			a.t.Fatalf("there is no %q in %d %s", text, a.status, a.body)
		}
	}
	return a
}

// names checks that a problem names exactly these, in this order.
func (a answer) names(wrong ...string) answer {
	a.t.Helper()
	if got := a.wrong(); !slices.Equal(got, wrong) {
		a.t.Fatalf("errors name %q, want %q", got, wrong)
	}
	return a
}

// invalid checks that a request is refused for its members or parameters, and names exactly these.
func (a answer) invalid(wrong ...string) answer {
	a.t.Helper()
	return a.is(422, "validation_failed").names(wrong...)
}

// has checks headers, each "Name: value"; "Name: " is one that is absent.
func (a answer) has(headers ...string) answer {
	a.t.Helper()
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ": ")
		if !ok {
			a.t.Fatalf("%q is no header: it must be \"Name: value\"", h)
		}
		if got := strings.Join(a.header.Values(name), " | "); got != value {
			a.t.Fatalf("%s is %q, want %q (%d %s)", name, got, value, a.status, a.body)
		}
	}
	return a
}

// is checks the status, the code where one is given and, for a problem, its type and the rules that
// every answer keeps.
func (a answer) is(status int, code ...string) answer {
	a.t.Helper()
	if a.status != status || len(code) > 1 { // an answer has one code
		a.t.Fatalf("status %d, want %d %v: %s", a.status, status, code, a.body)
	}
	if !strings.HasPrefix(a.header.Get("X-Request-Id"), "req_") ||
		a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cache-Control") == "" {
		a.t.Fatalf("a header that every answer has is missing: %v", a.header)
	}
	if status == 429 && (!strings.Contains(a.header.Get("RateLimit"), ";r=0;") || a.header.Get("Retry-After") == "" ||
		a.header.Get("RateLimit-Policy") == "") {
		a.t.Fatalf("429 does not say which limit it was: %v", a.header)
	}
	if len(code) == 0 || code[0] == "" {
		return a
	}
	if status < 400 {
		if got := a.text("code"); got != code[0] {
			a.t.Fatalf("code %s, want %s: %s", got, code[0], a.body)
		}
		return a
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Fatalf("Content-Type %q of a problem", got)
	}
	p := a.json()
	if p["code"] != code[0] || p["status"] != float64(status) || p["type"] != "http://127.0.0.1:8080/docs#"+code[0] ||
		p["request_id"] != a.header.Get("X-Request-Id") || p["title"] == "" {
		a.t.Fatalf("problem %s, want code %s", a.body, code[0])
	}
	return a
}

// seatBody makes a body of names and values, in turn.
func seatBody(pairs ...any) string {
	parts := []string{}
	for i := 0; i < len(pairs); i += 2 {
		value, _ := json.Marshal(pairs[i+1])
		parts = append(parts, fmt.Sprintf("%q:%s", pairs[i], value))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// activateBody is a body of activate, deactivate or verify; more are further members.
func activateBody(key, fingerprint string, more ...any) string {
	return seatBody(append([]any{"license_key", key, "fingerprint", fingerprint}, more...)...)
}

// activate activates a fingerprint by key; more are members of the body.
func (s *service) activate(key, fingerprint string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/activate", activateBody(key, fingerprint, more...))
}

// verifyLease verifies by device token; more are members of the body.
func (s *service) verifyLease(token string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/verify", seatBody(more...), bearer(token))
}

// verifyKey verifies by key; more are members of the body.
func (s *service) verifyKey(key, fingerprint string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/verify", activateBody(key, fingerprint, more...))
}

// answers checks a verify answer's code and validity.
func (a answer) answers(code string) answer {
	a.t.Helper()
	a.is(200)
	body := a.json()
	valid := code == "valid" || code == "grace"
	if body["code"] != code || body["valid"] != valid || body["detail"] != verdictDetails[code] {
		a.t.Fatalf("want %s: %s", code, a.body)
	}
	return a
}

func (a answer) hasToken() bool { _, ok := a.json()["token"]; return ok }

// lease reads the claims of an answer's token.
func (s *service) lease(a answer) claims {
	s.t.Helper()
	c, err := s.server.keys.Load().verify(a.text("token"))
	s.check(err)
	return c
}

func (s *service) deviceRow(id string) *device {
	s.t.Helper()
	d, err := s.store.deviceByID(anyAccount, id)
	s.check(err)
	return d
}

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
	e := newEnv(o.t.Context(), func(name string) string { return o.env[name] }, &stdout, &stderr)
	e.shared, e.synchronised = o.database(args), func() bool { return !o.clockUnknown }
	err := e.dispatch(args)
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

// vectors reads a file of public test vectors, or skips.
func vectors(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "shared", "vectors", name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("skipped: ../shared/vectors/%s is not there", name)
	}
	must(t, err)
	return text
}

// A codeBlock is a fenced block of a document: what it is written in, such as "sh", and its text.
type codeBlock struct{ language, text string }

// codeBlocks returns the code blocks of the README and of docs/operating.md, whose commands are run by tests.
func codeBlocks(t testing.TB) (all []codeBlock) {
	t.Helper()
	for _, name := range []string{"README.md", "docs/operating.md"} {
		text, err := os.ReadFile(name)
		must(t, err)
		for _, found := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(string(text),
			-1) {
			all = append(all, codeBlock{found[1], found[2]})
		}
	}
	return all
}

// documentBlock returns the one block of codeBlocks that holds a text.
func documentBlock(t testing.TB, holds string) string {
	t.Helper()
	var found []string
	for _, block := range codeBlocks(t) {
		if strings.Contains(block.text, holds) {
			found = append(found, block.text)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d blocks of the README and docs/operating.md hold %q", len(found), holds)
	}
	return found[0]
}

// The shapes of what may stand in no log: a licence key of ours, a token or a part of
// one, a key file's blocks, an address.
var (
	keyShape = regexp.MustCompile(`(?i)\b[0-9a-z]{5}(?:-[0-9a-z]{5}){4}\b`)
	// within a key's id those letters may stand by chance
	tokenShape = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}`)
	// among random bytes
	wholeToken = regexp.MustCompile(tokenShape.String() + `\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`)
	// at the beginning, or one byte later
	tokenHere  = regexp.MustCompile(`^(?s:.?)` + wholeToken.String())
	pemShape   = regexp.MustCompile(`-----BEGIN [A-Z ]+-----`)
	whsecShape = regexp.MustCompile(`whsec_([A-Za-z0-9+/]{32,}={0,2})`)
	emailShape = regexp.MustCompile(`[\pL\pN.!#$%&'*+/=?^_{|}~-]+@[\pL\pN-]+(?:\.[\pL\pN-]+)+`)
)

// A discretion remembers what a service was told and gave away in confidence, so that the end of every test can
// look for it where it must not be: nothing of it in the log, and in the database no key, token or secret. A nil
// one hears nothing: a benchmark's or a fuzz target's, whose bodies may hold anything, anywhere.
type discretion struct {
	mu      sync.Mutex
	secrets map[string]string // what it is, by what is written
	emails  map[string]bool
	begun   []byte // what the database held at first, which another test has looked at
}

func newDiscretion(t testing.TB) *discretion {
	if _, test := t.(*testing.T); !test {
		return nil
	}
	return &discretion{secrets: map[string]string{}, emails: map[string]bool{}}
}

// begin says what the database holds at first.
func (d *discretion) begin(database []byte) {
	if d != nil {
		d.begun = database
	}
}

// hear remembers the keys, tokens, secrets and addresses of a text that went in or out.
func (d *discretion) hear(text string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if hasDashesOfAKey(text) {
		for _, key := range keyShape.FindAllString(text, -1) {
			if parsed, err := parseLicenseKey(key); err == nil && !parsed.mistyped() {
				d.keep("a licence key", key)
			}
		}
	}
	if strings.Contains(text, "eyJ") {
		for _, token := range wholeToken.FindAllString(text, -1) {
			d.keep("a token", token)
			d.keep("a token's signature", token[strings.LastIndexByte(token, '.')+1:])
		}
	}
	for _, secret := range whsecShape.FindAllStringSubmatch(text, -1) {
		d.keep("a webhook's secret", secret[0])
		d.keep("a webhook's secret", secret[1])
		if raw, err := base64.StdEncoding.DecodeString(secret[1]); err == nil {
			d.keep("a webhook's secret", string(raw))
		}
	}
	if strings.Contains(text, "@") {
		for _, email := range emailShape.FindAllString(text, -1) {
			d.emails[strings.ToLower(email)] = true
		}
	}
}

// hasDashesOfAKey reports whether dashes stand in a text as they do in a licence key. It is much quicker than
// keyShape, which few texts need to be asked.
func hasDashesOfAKey(text string) bool {
	for i := 0; i+18 < len(text); i++ {
		if text[i] == '-' && text[i+6] == '-' && text[i+12] == '-' && text[i+18] == '-' {
			return true
		}
	}
	return false
}

// keep remembers one secret; short ones would be found anywhere.
func (d *discretion) keep(what, secret string) {
	if len(secret) < 12 {
		return
	}
	d.secrets[string(lowerASCII([]byte(secret)))] = what
	if what == "a licence key" {
		d.secrets[strings.ToLower(strings.ReplaceAll(secret, "-", ""))] = what
	}
}

// hearRequest remembers what a request carries.
func (d *discretion) hearRequest(body string, header http.Header) {
	if d == nil {
		return
	}
	d.hear(body)
	d.hear(strings.Join(header.Values("Authorization"), " "))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range header.Values("Idempotency-Key") {
		d.keep("an Idempotency-Key", strings.Trim(key, `"`))
	}
}

// keyFile remembers the secrets of a key file, in every form that a careless line could write.
func (d *discretion) keyFile(t testing.TB, ring *keyring) {
	t.Helper()
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	raw := map[string][]byte{"the secret block": ring.secret}
	for i := range ring.keys {
		der, err := x509.MarshalPKCS8PrivateKey(ring.keys[i].private)
		must(t, err)
		raw[fmt.Sprint("signing key ", i)] = ring.keys[i].private.Seed()
		raw[fmt.Sprint("the block of signing key ", i)] = der
	}
	for what, secret := range raw {
		d.secrets[string(lowerASCII(secret))] = what
		for _, text := range []string{base64.StdEncoding.EncodeToString(secret),
			base64.RawURLEncoding.EncodeToString(secret), hex.EncodeToString(secret), fmt.Sprint(secret)} {
			d.secrets[strings.ToLower(text)] = what
		}
	}
}

// indiscretions are what a log gives away, by its shape or because it was said.
func (d *discretion) indiscretions(log []byte) (found []string) {
	for what, shape := range map[string]*regexp.Regexp{"a licence key": keyShape, "a token": tokenShape,
		"a key block": pemShape, "a webhook's secret": whsecShape, "an address": emailShape} {
		if text := shape.Find(log); text != nil {
			found = append(found, fmt.Sprintf("%s: %q", what, text))
		}
	}
	found = append(found, d.said(log)...)
	log = bytes.ToLower(log)
	for email := range d.emails {
		if bytes.Contains(log, []byte(email)) {
			found = append(found, "an address: "+email)
		}
	}
	return found
}

// said are the secrets that stand in a text, in letters of either case. It reads the
// text once, however many secrets there are: most places in it begin like none of them.
func (d *discretion) said(text []byte) (found []string) {
	var begins [1 << 16]bool // by the first two bytes
	starts := map[uint32][]string{}
	for secret := range d.secrets {
		begins[binary.BigEndian.Uint16([]byte(secret))] = true
		start := binary.BigEndian.Uint32([]byte(secret))
		starts[start] = append(starts[start], secret)
	}
	text = lowerASCII(text)
	for i := 0; i+4 <= len(text); i++ {
		if !begins[binary.BigEndian.Uint16(text[i:])] {
			continue
		}
		for _, secret := range starts[binary.BigEndian.Uint32(text[i:])] {
			if what := fmt.Sprintf("%s: %q", d.secrets[secret], secret); bytes.HasPrefix(text[i:], []byte(secret)) &&
				!slices.Contains(found, what) {
				found = append(found, what)
			}
		}
	}
	return found
}

// lowerASCII makes ASCII letters small and leaves every other byte as it is: in a file
// of random bytes there is no other text.
func lowerASCII(text []byte) []byte {
	small := bytes.Clone(text)
	for i, c := range small {
		if 'A' <= c && c <= 'Z' {
			small[i] = c + 'a' - 'A'
		}
	}
	return small
}

// check looks into the log, and into every file of the database as it lies there.
func (d *discretion) check(t testing.TB, log []byte, db string) {
	t.Helper()
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, found := range d.indiscretions(log) {
		t.Errorf("the log gives away %s", found)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		content, err := os.ReadFile(db + suffix)
		if err != nil {
			continue // gone by the test's own hand, or never there
		}
		if suffix == "" {
			content = changedPages(content, d.begun)
		}
		for _, found := range d.said(content) {
			t.Errorf("%s gives away %s", filepath.Base(db)+suffix, found)
		}
		if token := findToken(content); token != nil {
			t.Errorf("%s holds a token: %q", filepath.Base(db)+suffix, token)
		}
	}
}

// changedPages returns the pages of a database that are not the same as it held at first: a small part of it.
func changedPages(content, begun []byte) (changed []byte) {
	const page = 4096
	for i := 0; i < len(content); i += page {
		end := min(i+page, len(content))
		if end > len(begun) || !bytes.Equal(content[i:end], begun[i:end]) {
			changed = append(changed, content[i:end]...)
		}
	}
	return changed
}

// findToken returns a token that stands in a text; nil: there is none. A file of a database is long, and a search
// for three letters much faster than one by an expression.
func findToken(text []byte) []byte {
	for i := 0; ; i += len("eyJ") {
		next := bytes.Index(text[i:], []byte("eyJ"))
		if next < 0 {
			return nil
		}
		i += next
		if found := tokenHere.Find(text[max(i-1, 0):]); found != nil {
			return found
		}
	}
}

// commandLog checks what a process wrote to standard error.
func commandLog(t testing.TB, log string) {
	t.Helper()
	for _, found := range (&discretion{}).indiscretions([]byte(log)) {
		t.Errorf("standard error gives away %s", found)
	}
}

func TestHarness_findsWhatIsSecretWhereItMustNotBe(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	token := s.token(s.account, scopeLeads)
	s.post("/widget/leads", `{"type":"newsletter","email":"Ada.Lovelace@example.com"}`,
		"Idempotency-Key: only-ada-knows-this").is(200)
	s.get("/leads", bearer(token)).is(200)
	lease := s.activate(key, "till-1").text("token")
	secret := base64.StdEncoding.EncodeToString(s.keys.secret)
	hook := s.addWebhook(s.account, "lead.created")
	signs := s.post("/webhooks/"+hook+"/rotate-secret", "", s.auth(s.account, scopeAdmin)).is(200).text("secret")
	for _, planted := range []string{signs, strings.TrimPrefix(signs, "whsec_"), key, strings.ToLower(key),
		strings.ReplaceAll(key, "-", ""), token, lease, lease[strings.LastIndexByte(lease, '.')+1:],
		"only-ada-knows-this", "ada.lovelace@EXAMPLE.com", secret, string(s.keys.secret),
		"-----BEGIN PRIVATE KEY-----", "nobody.ever.said@example.org"} {
		if found := s.told.indiscretions([]byte(`level=WARN msg=storage error="read ` + planted +
			`: no"`)); len(found) == 0 {
			t.Errorf("%q in a log is not found", planted)
		}
	}
	const harmless = `time=2026-11-21T13:47:00.000Z level=ERROR msg="internal error" ` +
		`request_id=req_01234567890123456789012345 route="POST /widget/leads" error="open /var/lib/widgetd: no"`
	if found := s.told.indiscretions([]byte(harmless)); len(found) > 0 {
		t.Errorf("found in a harmless line: %q", found)
	}
	for _, planted := range []string{signs, string(webhookSecret(s.keys, hook, 2)), key,
		strings.ReplaceAll(key, "-", ""), token, "only-ada-knows-this", secret, string(s.keys.secret),
		string(s.keys.signer().private.Seed())} {
		if found := s.told.said([]byte("\x00\x01" + planted + "\x02")); len(found) == 0 {
			t.Errorf("%q in a file is not found", planted)
		}
	}
	for text, want := range map[string]string{
		token: token, "\x00eyJ\x01" + token + "\x02": token, "xeyJhbGciOiJ.x.y": "",
	} {
		if found := strings.TrimLeft(string(findToken([]byte(text))), "\x01"); found != want {
			t.Errorf("in %q the token %q is found", text, found)
		}
	}
	if len(s.told.said([]byte("ada.lovelace@example.com"))) > 0 {
		t.Error("an address in the database counts as a secret")
	}
}

// allRoutes is every route of the service that is for programs.
var allRoutes = sync.OnceValue(func() (all []route) {
	s := &server{authenticator: &authenticator{}, nouns: nouns(), monotonic: time.Now}
	for _, w := range modulesOf(nouns(), s) {
		for _, r := range w.routes {
			if r.page == "" {
				all = append(all, r)
			}
		}
	}
	return all
})

const countLegacyCalls = "legacy calls can't be counted" // the fault of the chore that counts them

// chore returns what a chore of the service runs; fault names it.
func (s *service) chore(fault string) func(context.Context) error {
	s.t.Helper()
	for _, c := range s.server.chores {
		if c.fault == fault {
			return c.run
		}
	}
	s.t.Fatalf("the service has no chore %q", fault)
	return nil
}

// everyPage follows a list from page to page and returns the ids of its rows, and how many pages were empty.
func (s *service) everyPage(path, auth string) (ids []any, empty int) {
	s.t.Helper()
	for cursor, before := "", ""; ; before = cursor {
		page := s.get(path+cursor, auth).is(200).json()
		rows := page["data"].([]any)
		for _, row := range rows {
			ids = append(ids, row.(map[string]any)["id"])
		}
		if len(rows) == 0 {
			empty++
		}
		next, more := page["next_cursor"].(string)
		if cursor = "&cursor=" + next; !more {
			return ids, empty
		}
		if cursor == before {
			s.t.Fatalf("%s: the next page after %s is itself", path, next)
		}
	}
}

// manyRows is the beginning of a statement that inserts n rows, from a table n(i).
func manyRows(n int) string {
	return fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) `, n)
}

// at returns the same transaction with its time shifted, for data of the past.
func (t *tx) at(shift time.Duration) *tx {
	moved := *t
	moved.exact = t.exact.Add(shift)
	moved.now = newStamp(moved.exact)
	return &moved
}
