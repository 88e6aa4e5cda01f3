package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
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

func TestStore_givesEveryConnectionItsPragmas(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, makeStore(t), storeOptions{})
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "busy_timeout": "15000", "foreign_keys": "1",
		"trusted_schema": "0", "secure_delete": "1", "journal_size_limit": "67108864",
		"wal_autocheckpoint": "1000", "query_only": "1",
		"application_id": fmt.Sprint(applicationID), "user_version": fmt.Sprint(schemaVersion),
	} {
		read, err := oneValue[string](s.queries, "PRAGMA "+pragma)
		must(t, err)
		equal(t, pragma+" of a reader", read, want)
		if pragma == "query_only" {
			want = "0"
		}
		written, err := oneValue[string](s.writer.queries, "PRAGMA "+pragma)
		must(t, err)
		equal(t, pragma+" of the writer", written, want)
	}
}

// schemaTables are the tables of a new database.
func schemaTables(t testing.TB, q *queries) (tables []string) {
	t.Helper()
	tables, err := collect(q, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
		ORDER BY name`, nil, func(name *string) []any { return []any{name} })
	if err != nil || len(tables) < 16 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	return tables
}

func TestSchema_columnsAllHaveACommentAndTimesARule(t *testing.T) {
	t.Parallel()
	s, rules := openTestStore(t, makeStore(t), storeOptions{}), timeRules()
	const keys = `FROM sqlite_schema t JOIN pragma_foreign_key_list(t.name) k WHERE t.type = 'table'`
	var all, other int
	must(t, s.one(`SELECT count(*), count(*) FILTER (WHERE k.seq > 0 OR k."to" IS NULL) `+keys, nil, &all, &other))
	failIf(t, all < 10 || other > 0, "of %d foreign keys %d are of several columns, or name none", all, other)
	for _, table := range schemaTables(t, s.queries) {
		_, block, found := strings.Cut(schemaSQL(), "CREATE TABLE "+table+" (\n")
		block, _, ended := strings.Cut(block, "\n) STRICT")
		if !found || !ended {
			t.Errorf("schema.sql writes %s in another way than this test reads", table)
			continue
		}
		err := s.each(`SELECT name FROM pragma_table_xinfo(?)`, []any{table}, func(scan func(...any) error) error {
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
			if strings.Contains(declared, " AS (") {
				return nil // SQLite makes it of columns that have rules
			}
			known := rules[table][column] != "" || !strings.HasSuffix(column, "_at")
			failIf(t, !known, "an upgrade knows no rule of %s.%s", table, column)
			rule := regexp.MustCompile(`CHECK \(` + column +
				` (IS strftime\('%Y-%m-%dT%H:%M:%SZ', ` + column + `, '\+0 days'\)|LIKE '____-__-__T__:__:00Z')\)`)
			if isTime && !(strings.Contains(declared, "TEXT") && rule.MatchString(declared)) ||
				column == "day" && !strings.Contains(declared, `CHECK (day LIKE '____-__-__')`) {
				t.Errorf("%s.%s has no rule for times: %s", table, column, declared)
			}
			return nil
		})
		must(t, err)
	}
}

func TestView_canBeReadByPeopleWhileItServes(t *testing.T) {
	t.Parallel()
	s := newService(t)
	widget := s.addWidget(s.account)
	_, key := s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(-time.Hour)), terms: terms{GraceDays: 3}})
	other, _ := s.addLicense(license{terms: terms{Product: "board"}})
	s.change(func(t *tx) error {
		_, err := changeState(t, anyAccount, other, "suspend", "unpaid", true, actorCommand)
		return err
	})
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/events", `{"widget":"`+widget+`","events":[{"type":"view"}]}`, "Origin: "+siteOrigin).is(204)
	s.get("//api/legacy/widget/stats")
	s.check(s.chore(countLegacyCalls)(t.Context()))
	if key == "" {
		t.Fatal("no key")
	}
	db, err := sql.Open("sqlite", "file:"+s.store.path+"?mode=ro")
	s.check(err)
	defer db.Close()
	for query, want := range map[string]string{
		`SELECT group_concat(product || ' ' || status || ' ' || seats_used, ', ')
			FROM (SELECT * FROM v_licenses ORDER BY product)`: "board suspended 0, kds grace 0",
		`SELECT count(*) || ' devices' FROM v_devices`:                        "0 devices",
		`SELECT account || ' ' || type || ' ' || leads FROM v_leads_by_day`:   "main newsletter 1",
		`SELECT widget || ' ' || views || ' ' || visitors FROM v_widget_days`: "Lunch 1 1",
		`SELECT path || ' ' || caller || ' ' || calls FROM v_legacy_callers`:  "/api/legacy/widget/stats unknown 1",
		`SELECT group_concat(type, ', ') FROM v_audit`: "lead.created, license.suspended, license.created, " +
			"license.created, widget.created",
		// joined, SQLite drops the order of a view
		`SELECT group_concat(type, ', ') FROM (SELECT u.type FROM licenses l JOIN v_audit u ON u.subject_id = l.id
			ORDER BY u.seq DESC)`: "license.suspended, license.created, license.created",
	} {
		var got string
		if err := db.QueryRow(query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", query, got, err, want)
		}
	}
	if _, err := db.Exec(`DELETE FROM leads`); err == nil {
		t.Error("a reader could delete")
	}
}

func TestView_ofWhatHappenedHasTheDeviceAlsoBesideDataThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	device := s.activate(key, "a").is(200).text("device", "id")
	raw(t, s.store.path, withoutRules+`UPDATE events SET data = '{' WHERE type = 'license.created'`)
	s.counts(1, `SELECT count(*) FROM v_audit WHERE device_id = '`+device+`' AND type = 'device.activated'`)
	s.counts(1, `SELECT count(*) FROM v_audit WHERE device_id IS NULL AND type = 'license.created'`)
}

func TestView_ofTokensSaysWhichWork(t *testing.T) {
	t.Parallel()
	s := newService(t)
	closed := s.addAccount("Closed")
	raw(t, s.store.path, fmt.Sprintf(`DELETE FROM tokens;
		INSERT INTO tokens (id, account_id, client_id, scope, all_accounts, kid, created_at, expires_at, revoked_at)
			SELECT 'tok_' || (value ->> 0), value ->> 1, 'portal', 'stats:read', 0, 'k', '2026-01-01T00:00:00Z',
			value ->> 2, value ->> 3 FROM json_each('[["1", "%[1]s", "2999-01-01T00:00:00Z"],
			["2", "%[1]s", "2026-02-01T00:00:00Z"], ["3", "%[1]s", "2026-02-01T00:00:00Z", "2026-01-02T00:00:00Z"],
			["4", "%[2]s", "2999-01-01T00:00:00Z"]]');
		UPDATE accounts SET closed_at = '2026-01-03T00:00:00Z' WHERE id = '%[2]s';
		INSERT INTO apps (id, account_id, name, home_page, kind, redirect_uris, scope, made_by, created_at, updated_at)
			VALUES ('app_1', '%[1]s', 'Planner', 'https://planner.example', 'web', '[]', 'orders:read', 'command',
			'2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z');
		INSERT INTO app_tokens (id, app_id, account_id, scope, kid, created_at, expires_at)
			VALUES ('tok_5', 'app_1', '%[1]s', 'orders:read', 'k', '2026-01-01T00:00:00Z', '2999-01-01T00:00:00Z')`,
		s.account, closed))
	var got string
	s.check(s.store.one(`SELECT group_concat(id || ' ' || account || ' ' || client_id || ' ' || state, ', ')
		FROM v_tokens`, nil, &got))
	if want := "tok_5 main app_1 active, tok_4 Closed portal closed, tok_3 main portal revoked, " +
		"tok_2 main portal expired, tok_1 main portal active"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestID_sortsByTimeAndHasOneShape(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	last := ""
	for i := range 1000 {
		for _, prefix := range []string{"acct", "lead", "lic", "dev", "wgt", "tok", "evt", "req", "whe"} {
			id := newID(prefix, start.Add(time.Duration(i)*time.Millisecond))
			if !validID(prefix, id) || len(id) != len(prefix)+27 {
				t.Fatalf("id %q", id)
			}
		}
		id := newID("lead", start.Add(time.Duration(i)*time.Millisecond))
		if id <= last {
			t.Fatalf("%q comes after %q", id, last)
		}
		last = id
	}
	for _, bad := range []string{"lead_80000000000000000000000000", "LEAD_00000000000000000000000000", "lead_", "",
		"lead_0000000000000000000000000i", "lead_000000000000000000000000000", "wgt_00000000000000000000000000"} {
		failIf(t, validID("lead", bad), "%q is taken for an id", bad)
	}
}

// readsTooMuch says why a step of SQLite's plan for a query takes longer the more
// licences there are; "" when it does not.
func readsTooMuch(query, step string) string {
	asks := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(query, part) })
	}
	begins := func(starts ...string) bool {
		return slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(step, start) })
	}
	switch {
	case begins("SCAN CONSTANT", "SCAN (", "SCAN base_urls", "SCAN json_each"):
		// no table, what is read already, a table of few rows, a list of few
	case begins("SCAN "):
		return "it reads a whole table"
	case begins("USE TEMP B-TREE") && !asks("FROM base_urls"): // they are few
		return "it sorts"
	case asks("subject_id = ?") && strings.Contains(step, "INDEX events_account "):
		return "it reads the events of other licences too"
	case asks("FROM devices WHERE license_id = ? AND lapses_at <= ?") && strings.Contains(step, "devices ") &&
		!strings.Contains(step, "INDEX devices_lapsing_license (license_id=? AND lapses_at<?)"):
		return "it reads the devices that have not lapsed, or those of other licences"
	case asks("FROM devices WHERE license_id = ? AND state <> 'active'") && strings.Contains(step, "devices ") &&
		!strings.Contains(step, "devices_counting_license (license_id=? AND counts_until") &&
		!strings.Contains(step, "PRIMARY KEY"):
		return "it reads the devices that count on, or those of other licences"
	case asks("AND type = ?") && !asks("subject_id = ?") && begins("SEARCH events ", "SEARCH leads ") &&
		!strings.Contains(step, "_type (type=?"):
		return "it reads rows of other types"
	case strings.Count(query, "seq < ?") > 1 || strings.Count(query, "seq >= ?") > 1:
		return "it has two bounds at one end, and SQLite may read all rows up to the other"
	case asks("FROM license_keys k WHERE k.license_id = l.id") && begins("SEARCH k ") &&
		!strings.Contains(step, "COVERING INDEX license_keys_license") && !strings.Contains(step, "PRIMARY KEY"):
		return "it reads each key of a licence where that lies"
	case asks("count(*) FROM devices"):
		return "it counts devices"
	}
	return ""
}

// explain returns the steps in which SQLite would answer a query.
func explain(db *sql.DB, query string) (steps []string, err error) {
	args := make([]any, strings.Count(query, "?"))
	if strings.Contains(query, "?1") { // numbered ones may stand there twice
		for args = args[:1]; strings.Contains(query, fmt.Sprint("?", len(args)+1)); args = append(args, nil) {
		}
	}
	rows, err := db.Query("EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		var step string
		if err := rows.Scan(&n, &n, &n, &step); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, rows.Err()
}

// What a test lowers is as high as it is said to be.
func TestStore_limitsAreThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	equal(t, "limits", usualLimits, limits{listRows: 10_000, planLicenses: 5_000, swept: 1_000, plans: 500,
		openOrders: 10_000, attempts: 20, refunds: 100, talliedLicenses: 10_000})
	for file, says := range map[string][]string{
		"web/openapi.json": {"goes through at most 10,000 rows", "up to 5,000 a call", "at most 10,000 open orders"},
		"web/docs.html": {"looks at no more than 10,000 rows", "at most 500 plans in use", "10,000 open orders",
			"20 attempts to pay; 100 refunds"},
	} {
		text, err := os.ReadFile(file)
		must(t, err)
		contains(t, string(text), says...)
	}
	s := newService(t)
	for name, q := range map[string]*queries{"the readers'": s.store.queries, "the writer's": s.store.writer.queries} {
		equal(t, name, q.limits, usualLimits)
	}
}

// watched are the distinct statements that services of this run have prepared, with the place that asked for each.
var watched = struct {
	sync.Mutex
	statements map[string]string
}{statements: map[string]string{}}

// watch notes every statement that the program prepares from now on, but not those that tests ask for themselves.
func (s *service) watch() {
	for _, q := range []*queries{s.store.queries, s.store.writer.queries} {
		prepare := q.prepare
		q.prepare = func(ctx context.Context, query string) (*sql.Stmt, error) {
			watched.Lock()
			if _, known := watched.statements[query]; !known {
				if place := askedAt(); !strings.Contains(place, "_test.go:") {
					watched.statements[query] = place
				}
			}
			watched.Unlock()
			return prepare(ctx, query)
		}
	}
}

// askers are the files of the functions by which all others run statements.
var askers = []string{"store.go", "store_writer.go", "store_damage.go"}

// askedAt returns the file and line, outside of the askers, that have a statement prepared.
func askedAt() string {
	callers := make([]uintptr, 16)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	for {
		frame, more := frames.Next()
		if file := filepath.Base(frame.File); !slices.Contains(askers, file) || !more {
			return fmt.Sprintf("%s:%d", file, frame.Line)
		}
	}
}

// fewRows are the tables that are read whole: they have a row, or few for each account or day.
var fewRows = regexp.MustCompile(`^SCAN (clock|epoch|probes|base_urls|legacy_calls|revenue_backlog|proofs)\b`)

// aliveOnly are the partial indexes that may be read whole: what has ended is not in them.
var aliveOnly = regexp.MustCompile(`^SCAN .* INDEX (payments_live|payments_review|payment_operations_pending|` +
	`books_connections_used|books_exports_due)$`)

// mayRead are parts of the statements that may read a whole table, or sort, and why that is little.
var mayRead = map[string]string{
	"FROM books_connections b":                   "an account has one or two, and a switch changes on few days",
	"FROM books_connections WHERE product":       "an account has one or two",
	"FROM payment_connections c":                 "an account has one or two",
	"FROM payment_refusals r":                    "one for each method by which the last attempt was refused",
	"FROM books_authorizations WHERE account_id": "an account has few at a time",
	"FROM books_apps":                            "there are two",
	"FROM books_exports x WHERE x.connection_id": "one for each day of a connection, of those that are due",
	"FROM books_exports x WHERE x.id < ?":        "one for each day of a connection",
	"FROM accounts a ORDER BY":                   "the operator lists all accounts",
	"FROM origins WHERE 1":                       "the operator lists all sites",
	"FROM widgets w":                             "the operator lists all widgets; an account has few",
	"FROM widget_counts WHERE quarter":           "those of a day, of all widgets",
	"FROM tokens WHERE account_id":               "people issue them one by one",
	"FROM tokens WHERE revoked_at IS NULL":       "people issue them one by one",
	"FROM tokens WHERE expires_at":               "people issue them one by one",
	"lease_kid = ?1":                             "retiring a key asks about every device",
	"authorized amount, currency FROM payments":  "closing an account says what money it holds",
	"p.order_id WHERE p.state <> 'review'":       "'check' looks at every payment",
	"SELECT id, email FROM leads WHERE 1":        "erasing compares all addresses, once",
	"FROM leads WHERE created_at <":              "purging asks how many leads are old before it begins",
	"FROM events ORDER BY seq LIMIT":             "from the oldest on, up to a limit",
	"JOIN disputes d":                            "those of one order",
	"DISTINCT currency FROM revenue_days":        "one for each account, day and currency, of the days that are shown",
	"DISTINCT group_name FROM revenue_sums":      "those of one day",
	"FROM legacy_calls":                          "one for each day, known path and caller",
	"FROM item_counts WHERE widget_id":           "at most 100 a day of a widget, over 366 days",
	"FROM page_counts WHERE widget_id":           "at most 100 a day of a widget, over 366 days",
	"FROM payments WHERE due_at <= ?":            "both ends of what is due, up to a limit each",
	"FROM payments WHERE state = 'review'":       "those in review, up to a limit",
	"JOIN payout_items i ON i.payout_id":         "those of one payout",
	"FROM payout_items WHERE payout_id = ?7":     "those of one payout",
	"FROM payout_items i WHERE i.payout_id = ?":  "a page of those of one payout, and the refunds of a payment",
	"FROM webhooks":                              "an account has at most 50",
}

// checkPlans explains every statement that was watched, once. Its error names those that read more the more rows there
// are.
func checkPlans() error {
	dir, err := os.MkdirTemp("", "widgetd-plans-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	made, err := newDatabase()
	path := filepath.Join(dir, "widgetd.db")
	if err = errors.Join(err, os.WriteFile(path, made.content, 0o600)); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", dsn(path, "rw", storeOptions{}))
	if err != nil {
		return err
	}
	defer db.Close()
	watched.Lock()
	defer watched.Unlock()
	var faults []error
	for _, query := range slices.Sorted(maps.Keys(watched.statements)) {
		steps, err := explain(db, query)
		if err != nil {
			continue // of a table that a test has made, or one that reads no table
		}
		plain := strings.Join(strings.Fields(query), " ")
		if strings.Contains(plain, " AND 0") { // asked for an owner of nothing
			continue
		}
		few := slices.ContainsFunc(slices.Collect(maps.Keys(mayRead)), func(part string) bool {
			return strings.Contains(plain, part)
		})
		for _, step := range steps {
			few := few || fewRows.MatchString(step) || aliveOnly.MatchString(step) ||
				strings.Contains(step, " VIRTUAL TABLE ") // a list of few
			if why := readsTooMuch(plain, step); why != "" && !few {
				faults = append(faults, fmt.Errorf("%s: %s: %s\n\t%s", watched.statements[query], why, step, plain))
			}
		}
	}
	return errors.Join(faults...)
}

// fileBytes returns what a file holds.
func fileBytes(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// isUnchanged complains unless a file still holds what it held before.
func isUnchanged(t testing.TB, path string, before []byte) {
	t.Helper()
	if after, err := os.ReadFile(path); string(after) != string(before) { // a directory holds nothing, before and after
		t.Errorf("%s was changed: %v", path, err)
	}
}

// writeFile writes a file that is its owner's only.
func writeFile[T string | []byte](t testing.TB, path string, content T) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// hasMode checks that a file is there and who may use it.
func hasMode(t testing.TB, path string, want os.FileMode) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
		t.Errorf("%s: %v, %v; want the mode %04o", path, info, err, want)
	}
}

// allKept waits for writes, each of which must succeed.
func allKept(t testing.TB, results []chan error) {
	t.Helper()
	for i, result := range results {
		if err := <-result; err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
}

// stopCleanly stops a process as systemd does; it must end without an error.
func (p *process) stopCleanly() {
	p.t.Helper()
	if err := p.stop(syscall.SIGTERM); err != nil {
		p.t.Errorf("ended with %v\n%s", err, p.log.String())
	}
}

// serveOn serves a service on a listener with every limit of serve, until stop is called or the test ends. ended
// waits until it has stopped, which must be without an error; its store is then closed.
func (s *service) serveOn(l net.Listener) (stop, ended func()) {
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.server.serveUntil(ctx, l, "") }()
	ended = sync.OnceFunc(func() {
		if err := <-result; err != nil {
			s.t.Errorf("ended with %v", err)
		}
	})
	s.t.Cleanup(func() {
		stop()
		ended()
		var err error
		s.store, err = openStore(s.store.path, storeOptions{}) // for the harness, which closes it
		s.check(err)
	})
	return stop, ended
}

// A pipeListener hands over the ends of pipes, so that serving runs in a bubble too.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
