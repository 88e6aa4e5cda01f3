package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
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
