package main

import (
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
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

func TestSchema_foreignKeysAreOneColumnThatNamesOne(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const keys = `SELECT count(*) FROM sqlite_schema t JOIN pragma_foreign_key_list(t.name) k WHERE t.type = 'table'`
	if n := s.count(keys); n < 10 {
		t.Fatalf("%d foreign keys: the test looks at the wrong place", n)
	}
	if n := s.count(keys + ` AND (k.seq > 0 OR k."to" IS NULL)`); n > 0 {
		t.Errorf("%d foreign keys that foreignKeyFaults does not look at as they are", n)
	}
}

func TestSchema_columnsAllHaveACommentAndTimesARule(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, makeStore(t), storeOptions{})
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
}

func FuzzID(f *testing.F) {
	for _, seed := range []string{"lead_00000000000000000000000000", "lead_80000000000000000000000000",
		"lead_7zzzzzzzzzzzzzzzzzzzzzzzzz", "LEAD_00000000000000000000000000",
		"lead_0000000000000000000000000i", "wgt_", "",
		newID("lead", time.Unix(1_800_000_000, 0))} {
		f.Add("lead", seed)
	}
	f.Add("", "_00000000000000000000000000")
	shape := regexp.MustCompile(`\A[0-7][0-9a-hjkmnp-tv-z]{25}\z`)
	f.Fuzz(func(t *testing.T, prefix, s string) {
		rest, ok := strings.CutPrefix(s, prefix+"_")
		if want := ok && shape.MatchString(rest); validID(prefix, s) != want {
			t.Fatalf("validID(%q, %q) is %v", prefix, s, !want)
		}
		if id := newID(prefix, time.UnixMilli(int64(len(s)))); !validID(prefix, id) {
			t.Fatalf("newID made %q", id)
		}
	})
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
