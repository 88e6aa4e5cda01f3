package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// withoutRules has a connection write what an old sqlite3 shell lets pass.
const withoutRules = `PRAGMA ignore_check_constraints = ON; `

// noDay is a time that an old shell takes for one, and Go does not.
const noDay = `'2027-02-31T10:00:00Z'`

// overwriteRoot damages the first page of a table or an index in the file, which nobody has read yet, until mend
// is called.
func (s *service) overwriteRoot(table string) (mend func()) {
	s.t.Helper()
	s.reopen(storeOptions{}) // so that the page is in the file, and in nobody's memory
	page := s.count(`SELECT rootpage FROM sqlite_schema WHERE name = ?`, table)
	at := int64(page-1) * 4096
	before := fileBytes(s.t, s.store.path)[at : at+4096]
	damage(s.t, s.store.path, at, bytes.Repeat([]byte{0xff}, 4096)...)
	return func() { damage(s.t, s.store.path, at, before...) }
}

// serveStatus serves the socket of the status command until the test ends.
func (s *service) serveStatus() {
	s.t.Helper()
	s.server.statusSocket = socketPath(s.store.path)
	s.t.Cleanup(s.server.startStatus())
}

// healthNow asks for health past the second for which the last probe counts.
func (s *service) healthNow() answer {
	s.t.Helper()
	s.server.health.mu.Lock()
	s.server.health.at = time.Time{}
	s.server.health.mu.Unlock()
	return s.health()
}

// Against a damaged disk that would pass unnoticed because health reads other pages, or look mended by a check that
// began before: what any query meets is kept in health; a check clears only what was met before it began.
func TestHealth_tellsOfDamageThatARequestMetUntilACheckPasses(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.serveStatus()
	auth := bearer(s.token(s.account, scopeLeads))
	s.post("/widget/leads", anyLead).is(200)
	mend := s.overwriteRoot("leads")
	s.healthNow().is(200).members("status", "pass") // nobody has met it yet

	s.get("/leads", auth).is(503, "storage_unavailable")
	s.health().is(200).members("status", "warn", "output", damageReadReason)
	s.post("/widget/leads", anyLead).is(503, "storage_unavailable")
	s.healthNow().is(503).members("status", "fail", "output", damageWrittenReason)
	s.get("/leads", auth).is(503, "storage_unavailable")
	s.healthNow().is(503).members("status", "fail", "output", damageWrittenReason) // a read later is no comfort
	if _, err := s.command("check"); err == nil {
		t.Error("the check passed")
	}
	s.healthNow().is(503).members("status", "fail")

	met := s.store.faults.damageMet()
	mend()
	if over, err := reportCheck(t.Context(), s.store.path, met.Times-1); over || err != nil {
		t.Errorf("a check that began before damage was met again: %v %v", over, err)
	}
	s.healthNow().is(503)
	out := s.must("check")
	contains(t, out, "ok: ", "note: the service met damage since "+met.At.String())
	s.healthNow().is(200).members("status", "pass", "output", nil)
	if out = s.must("check"); strings.Contains(out, "note: the service") {
		t.Error(out)
	}
}

func TestStatus_printsWhatItCanOfADamagedFileAndNamesTheDamage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.serveStatus()
	s.addLicense(license{})
	mend := s.overwriteRoot("leads")
	s.post("/widget/leads", anyLead).is(503)
	out, err := s.command("status", "-wide")
	if err == nil || err.Error() != "parts of the database that can't be read: 1: run 'widgetd check'" {
		t.Errorf("%v", err)
	}
	for _, line := range []string{
		"health       fail: " + damageWrittenReason + "\n",
		"licences     active 1\n",
		"today (UTC)  can't be read: database disk image is malformed (11)\n",
		"can't be read, so run 'widgetd check': today (UTC): database disk image is malformed (11)\n",
		" (leads: database disk image is malformed (11)): run 'widgetd check'; if it finds faults, restore a backup\n",
	} {
		contains(t, out, line)
	}
	mend()
	head := fileBytes(t, s.store.path)[:100]
	damage(t, s.store.path, 0, make([]byte, 100)...)
	out, err = s.opening("status", "-json") // which can't open the file; the service can be asked
	damage(t, s.store.path, 0, head...)
	if err == nil || !strings.Contains(out, `"health":"fail"`) ||
		!strings.Contains(out, `"unreadable":["database and `) {
		t.Errorf("%v\n%s", err, out)
	}
}

// rowOfEach adds three licences, leads and devices, each of which has an event.
func (s *service) rowOfEach() {
	s.t.Helper()
	var key string
	for i := range 3 {
		_, key = s.addLicense(license{})
		s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"guest%d@example.com"}`, i)).is(200)
	}
	for i := range 3 {
		s.activate(key, fmt.Sprint("device ", i)).is(200)
	}
}

// Against an operator with an old sqlite3 shell that would make whole lists fail by one row that can't be read, or
// have a token, seat or refund decided without it: lists leave the row out, decisions fail; check names it, with
// the statement that mends it.
func TestLists_leaveOutTheRowThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ table, change string }{
		{"licenses", `expires_at = ` + noDay},
		{"licenses", `entitlements = '["kds",'`},
		{"leads", `created_at = ` + noDay},
		{"leads", `fields = '{'`},
		{"devices", `last_seen_at = ` + noDay},
		{"events", `at = ` + noDay},
		{"events", `data = '{"device_id'`},
	} {
		t.Run(c.table+" "+c.change, func(t *testing.T) {
			t.Parallel()
			s := newService(t, withoutAddressLimits)
			auth := bearer(s.token(s.account, scopeAdmin))
			s.damaged = true
			s.rowOfEach()
			path := "/" + c.table + "?limit="
			if c.table == "devices" {
				license, err := oneValue[string](s.store.queries, `SELECT license_id FROM devices LIMIT 1`)
				s.check(err)
				path = "/licenses/" + license + path
			}
			all, _ := s.everyPage(path+"1", auth)
			bad := all[1].(string)
			raw(t, s.store.path, withoutRules+`UPDATE `+c.table+` SET `+c.change+` WHERE id = '`+bad+`'`)
			s.notice()
			want := slices.Delete(slices.Clone(all), 1, 2)
			for _, limit := range []string{"1", "2", "200"} {
				got, empty := s.everyPage(path+limit, auth)
				equal(t, "with limit "+limit, got, want)
				if limit == "1" && empty != 1 {
					t.Errorf("%d pages are empty, want that of the row", empty)
				}
			}
			line := `level=WARN msg="a row can't be read: lists leave it out, and what needs it fails: ` +
				`run 'widgetd check'" table=` + c.table + " id=" + bad + " "
			if log := s.log.String(); strings.Count(log, line) != 1 || strings.Contains(log, "guest1@") {
				t.Errorf("log %q", log)
			}
			s.healthNow().is(200).members("status", "warn", "output", rowsUnreadReason)
		})
	}
}

// Against anybody who would learn another's ids from a row that can't be read, or fill the log with it: a problem
// names the row only to who named it in the path; one line for each table until a check passes.
func TestRow_thatCanNotBeReadIsNamedToWhoNamesItAndOthersGoOn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := bearer(s.token(s.account, scopeAdmin))
	bad, badKey := s.addLicense(license{})
	good, _ := s.addLicense(license{})
	raw(t, s.store.path, withoutRules+`UPDATE licenses SET expires_at = `+noDay+` WHERE id = '`+bad+`'`)
	s.notice()
	named := "What the database holds of " + bad + " can't be read. " +
		"The operator of the service finds out how to mend it with 'widgetd check'."
	s.get("/licenses/"+bad, auth).is(500, "row_unreadable").members("detail", named).has("Retry-After: ")
	patch := `{"grace_days":3}`
	s.do("PATCH", "/licenses/"+bad, patch, auth).is(500, "row_unreadable").members("detail", named)
	s.do("PATCH", "/licenses/"+good, patch, auth).is(200)
	s.get("/licenses/"+good, auth).is(200)
	a := s.activate(badKey, "kitchen").is(500, "row_unreadable").members("detail", codeUnreadable.detail)
	lacks(t, a.body, bad) // who has the key did not name it
	if _, err := s.command("license", "show", bad); err == nil || !strings.Contains(err.Error(), "licenses "+bad+
		" can't be read: \"expires_at\": ") || !strings.Contains(err.Error(), "'widgetd check' prints how to mend it") {
		t.Errorf("show: %v", err)
	}
	s.must("license", "show", good)
	var out, told bytes.Buffer
	env := filesIn(s.dir)
	s.check(run(t.Context(), []string{"license", "export"}, func(name string) string { return env[name] }, &out, &told))
	contains(t, out.String(), good)
	lacks(t, out.String(), bad)
	contains(t, told.String(), "rows of licenses can't be read and were left out, such as "+bad)
	s.healthNow().is(200)

	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/licenses", nil)
	s.server.fail(&response{ResponseWriter: w}, r, &unreadableRow{table: "origins"}) // a query without an id
	contains(t, w.Body.String(), codeUnreadable.detail)
}

func TestDecisions_stillFailOnARowThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.damaged = true
	token := s.token(s.account, scopeAdmin)
	other := s.token(s.account, scopeAdmin)
	id, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1)}})
	s.activate(key, "kitchen-1").is(200)
	change := func(query string) {
		raw(t, s.store.path, withoutRules+query)
		s.notice()
	}
	change(`UPDATE tokens SET revoked_at = ` + noDay + ` WHERE id = (SELECT min(id) FROM tokens)`)
	refused := 0
	for _, token := range []string{token, other} {
		if a := s.get("/licenses", bearer(token)); a.status != 200 {
			a.is(401)
			refused++
		}
	}
	equal(t, "refused tokens", refused, 1)
	change(`UPDATE tokens SET revoked_at = NULL, expires_at = ` + noDay)
	s.get("/licenses", bearer(token)).is(500, "row_unreadable")
	change(`UPDATE devices SET last_seen_at = ` + noDay)
	s.activate(key, "kitchen-2").is(500, "row_unreadable") // no seat without knowing who holds the others
	s.counts(1, `SELECT count(*) FROM devices WHERE license_id = ?`, id)
	change(`INSERT INTO webhooks (id, account_id, url, types, state, made_by, created_at, updated_at) VALUES
		('whe_x', '` + s.account + `', 'https://example.com/', '[]', 'pending', 'x', '2026-01-01T00:00:00Z', ` + noDay +
		`); UPDATE webhooks SET test_seq = 1`)
	var bad *unreadableRow
	if _, err := s.store.webhookQueues(); !errors.As(err, &bad) || !errors.Is(err, errUnreadable) {
		t.Errorf("the queues of webhooks: %v", err)
	}
}

func TestEvents_ofADayThatIsNoneDelayNeitherRetentionNorASearch(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.rowOfEach()
	s.damaged = true
	raw(t, s.store.path, withoutRules+`UPDATE events SET at = '2020-02-31T10:00:00Z'
		WHERE seq = (SELECT min(seq) FROM events); UPDATE leads SET created_at = '2020-02-31T10:00:00Z'`)
	s.notice()
	auth := bearer(s.token(s.account, scopeAdmin))
	s.get("/events?since=2021-01-01T00:00:00Z", auth).is(200)
	s.get("/leads?since=2021-01-01T00:00:00Z", auth).is(200)
	before := s.count(`SELECT count(*) FROM events`)
	s.server.sweep(context.Background(), time.Now().Add(time.Hour))
	s.counts(before-1, `SELECT count(*) FROM events`)
}

func TestCheck_namesTableRowAndColumnWhichTheShellCanEdit(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sqlite3")
	s := newService(t)
	id, _ := s.addLicense(license{})
	other, _ := s.addLicense(license{})
	path := s.store.path
	runProgram(t, "sqlite3", path, withoutRules+`UPDATE licenses SET expires_at = `+noDay+` WHERE id = '`+id+`';
		UPDATE licenses SET state = 'on', metadata = '{}' WHERE id = '`+other+`';`)
	out, err := s.command("check")
	if err == nil || !strings.Contains(err.Error(), "faults in "+path+": 3") {
		t.Errorf("%v", err)
	}
	contains(t, out, checkFailed+"licenses\n", "row: licenses "+id+" can't be read: \"expires_at\": ",
		": restore, or edit this row: licenses "+id+" expires_at\n")
	s.check(s.store.backup(path+".copy", nil)) // a copy with the row is a faithful one
	runProgram(t, "sqlite3", "-bail", path, `UPDATE licenses SET expires_at = NULL WHERE id = '`+id+`'`,
		`UPDATE licenses SET state = 'active' WHERE id = '`+other+`'`)
	contains(t, s.must("check"), "ok: ")
}

func TestCheck_seesDamagedPagesBesideRowsThatBreakARule(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.addLicense(license{})
	s.post("/widget/leads", anyLead).is(200)
	raw(t, s.store.path, withoutRules+`UPDATE licenses SET created_at = `+noDay)
	defer s.overwriteRoot("webhooks")()
	faults, err := checkFile(s.store.path)
	must(t, err)
	contains(t, strings.Join(faults, "\n"), "integrity: *** in database main ***", "btreeInitPage()")
	if err := s.store.backup(s.store.path+".copy", nil); err == nil {
		t.Error("a copy of a damaged page was taken for a sound one")
	}
	if _, err := os.Stat(s.store.path + ".copy"); err == nil {
		t.Error("the copy is left")
	}
}

func TestCheck_readsEveryRowAsTheProgramDoes(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	path := o.env["WIDGETD_DB"]
	writeFile(t, path, fileBytes(t, upgradedDatabase(t, 8)))
	out, _ := o.try("check")
	lacks(t, out, "can't be read")
	objects, err := declaredObjects()
	must(t, err)
	query, filled, read := "", []string{}, map[string]bool{}
	o.store(func(s *store) {
		rows := newQueries(s.prepare)
		defer rows.close()
		for _, unreadable := range collectNouns(nouns(), func(n *noun) []rowReader { return n.rows }) {
			_, err := unreadable(rows)
			must(t, err)
		}
		for query := range rows.stmts {
			read[tableOf(query)] = true
		}
		for name, text := range objects {
			table, isTable := strings.CutPrefix(name, "table ")
			if !isTable {
				continue
			}
			for _, of := range regexp.MustCompile(`json_type\((\w+)\) = '(\w+)'`).FindAllStringSubmatch(text, -1) {
				equal(t, fmt.Sprintf("check reads %s", table), read[table], true)
				if table == "webhooks" || table == "apps" {
					continue // of whose arrays only the strings are read
				}
				// SQLite takes both for what the rule wants: any array, and an object as JSON5 has it.
				value := map[string]string{"array": "[[1]]", "object": "{a: 1}"}[of[2]]
				if n := 0; s.one(`SELECT count(`+of[1]+`) FROM `+table, nil, &n) == nil && n > 0 {
					query += fmt.Sprintf("UPDATE %[1]s SET %[2]s = '%[3]s' WHERE %[2]s IS NOT NULL; ", table, of[1],
						value)
					filled = append(filled, table)
				}
			}
		}
	})
	equal(t, fmt.Sprintf("%v", filled), len(filled) >= 4, true)
	raw(t, path, query)
	out, err = o.try("check")
	equal(t, "check fails", err != nil, true)
	for _, table := range filled {
		contains(t, out, "row: "+table+" ")
	}
}

func TestCheck_findsWhatOnlyAShellLeavesBehindAndSaysWhatMendsIt(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	programsOrSkip(t, "sqlite3")
	o := newOperator(t)
	main, path := o.account, o.env["WIDGETD_DB"]
	app := `INSERT INTO apps (id, account_id, name, home_page, kind, redirect_uris, scope, made_by, created_at,
		updated_at) VALUES ('app_1', '` + main + `', 'P', 'https://p.example', 'browser', '[]', 'orders:read', 'anna',
		'2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z');`
	origin := func(text string) string {
		return `INSERT INTO origins (origin, account_id) VALUES ('` + text + `', '` + main + `')`
	}
	rounds := []map[string]string{{`UPDATE accounts SET closed_at = created_at WHERE is_main = 1`: "account: the " +
		"main one is closed: run 'widgetd account reopen main'\n"}, {
		`UPDATE accounts SET is_main = 0`:     "account: none is the main one, so leads without an Origin are ",
		`UPDATE base_urls SET is_current = 0`: "base address: none is the current one, so the service does not start: ",
		`INSERT INTO account_settings (account_id, zone) VALUES ('` + main + `', 'Europe/Zürich')`: "there is no " +
			`time zone "Europe/Zürich"`,
		`INSERT INTO account_zones VALUES ('` + main + `', '2026-01-01', 'Mars', '04:00')`: "zone: there is no time " +
			"zone \"Mars\": restore, or edit this row: account_zones " + main + " 2026-01-01 zone\n",
		origin("https://www.example.com:443"): "origin: https://www.example.com:443 never matches: browsers send " +
			"https://www.example.com: restore, or edit this row: origins https://www.example.com:443 origin\n",
		origin("https://www.example.com/menu"): "browsers send https://www.example.com: ",
		origin("https://müller.example"):       "müller.example never matches: no browser sends such an origin",
		origin("https://*.example.com"):        "no browser sends such an origin: ",
		app + `INSERT INTO app_origins SELECT value, 'app_1'
			FROM json_each('["https://p.example:443", "https://p.example"]')`: "origin: " +
			"https://p.example:443 never matches: ",
	}}
	for _, round := range rounds { // of what can be wrong at the same time
		for breaks := range round {
			raw(t, path, breaks)
		}
		out, err := o.try("check")
		failIf(t, err == nil, "nothing is found")
		for _, want := range round {
			contains(t, out, want)
		}
		for _, row := range captures(`edit this row: (.*)\n`, out) {
			words := strings.Fields(row)
			raw(t, path, map[string]string{
				"zone":    `UPDATE ` + words[0] + ` SET zone = 'UTC' WHERE account_id = '` + words[1] + `'`,
				"origin":  `DELETE FROM ` + words[0] + ` WHERE origin = '` + words[1] + `'`,
				"is_main": `UPDATE accounts SET is_main = 1 WHERE id = '` + words[1] + `'`,
			}[words[len(words)-1]])
		}
		for _, command := range captures(`run 'widgetd (.*)'\n`, out) {
			o.do(strings.Fields(command)...)
		}
		if out, err := o.try("check"); err != nil {
			t.Errorf("after it was mended: %s", out)
		}
	}
	left := runProgram(t, "sqlite3", path, `SELECT origin FROM origins UNION ALL SELECT origin FROM app_origins`)
	for _, origin := range []string{"https://www.example.com\n", "https://p.example\n"} {
		if strings.Count(left, origin) != 1 {
			t.Errorf("left are\n%s, want %s once", left, origin)
		}
	}
}

// TestWorkers_goOnWithoutWhatCanNotBeRead has more orders that can't be read than one transaction takes, each the first
// that is due, and one whose payment can't be read.
func TestWorkers_goOnWithoutWhatCanNotBeRead(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.damaged = true
	s.serveStatus()
	bad, half, good := s.orderIn(orderOpen), s.orderIn(orderOpen), s.orderIn(orderOpen)
	waiting, sold, unsold := s.orderIn(orderAuthorized), s.orderIn(orderPaid), s.orderIn(orderPaid)
	s.change(func(t *tx) error { return addAttempt(t, half, paymentPending) })
	const past = `'2020-01-01T00:00:00Z'`
	query := withoutRules + `UPDATE orders SET expires_at = ` + past + `, accept_by = ` + past + `;
		UPDATE payments SET created_at = ` + noDay + ` WHERE order_id = '` + half.ID + `';
		UPDATE orders SET lines = '[1]' WHERE id = '` + unsold.ID + `';
		CREATE TEMP TABLE copy AS SELECT * FROM orders WHERE id = '` + bad.ID + `'; UPDATE copy SET reference = NULL;`
	for i := range rowsAtOnce + 100 {
		query += fmt.Sprintf(`UPDATE copy SET id = 'ord_%d'; INSERT INTO orders SELECT * FROM copy;`, i)
	}
	raw(t, s.store.path, query+`UPDATE orders SET created_at = `+noDay+` WHERE id = '`+bad.ID+`' OR length(id) < 9`)
	s.notice()
	s.server.startedAt = time.Now().Add(-time.Hour)
	for range 2 {
		s.check(s.chore("orders can't expire")(t.Context()))
		s.check(s.chore("revenue can't be recorded")(t.Context()))
	}
	for id, want := range map[string]string{good.ID: orderExpired, waiting.ID: orderExpired, half.ID: orderOpen} {
		equal(t, "state of "+id, s.row(id).State, orderState(want))
	}
	equal(t, "facts", []int{len(s.facts(sold.ID)), len(s.facts(unsold.ID))}, []int{1, 1}) // since they were sold
	s.counts(rowsAtOnce+101, `SELECT count(*) FROM orders WHERE created_at = `+noDay+` AND state = 'open'`)
	s.healthNow().is(200).members("status", "warn", "output", rowsUnreadReason)
	equal(t, "lines of the log", strings.Count(s.log.String(), "a row can't be read"), 2) // of orders and of payments
	out, err := s.command("status", "-wide")
	contains(t, fmt.Sprint(out, err), "payments "+*half.PaymentID+" can't be read: ",
		": what needs them fails or waits: run 'widgetd check'")
	many := fmt.Sprintf("row: %d rows of orders can't be read, of which 20 are named", rowsAtOnce+102)
	if out, err := s.command("check"); err == nil || !strings.Contains(out, many) {
		t.Errorf("check: %v\n%s", err, out)
	}
	raw(t, s.store.path, `UPDATE orders SET created_at = `+past+`; UPDATE payments SET created_at = `+past+`;
		UPDATE orders SET lines = '[]' WHERE lines = '[1]'; UPDATE payment_connections SET removed_at = `+past+`;
		UPDATE payments SET state = 'failed', due_at = NULL WHERE captured = 0`) // whose keys no test has
	out, err = s.command("check")
	contains(t, fmt.Sprint(out, err), "note: the service met that orders ", " can't be read: ")
	s.healthNow().is(200).members("status", "pass")
	s.check(s.chore("orders can't expire")(t.Context()))
	s.counts(0, `SELECT count(*) FROM orders WHERE state = 'open' AND closing IS NULL`)
}

// TestWorkers_askNoProviderAboutAPaymentThatCanNotBeRead has a payment that is due all the time use up no turns.
func TestWorkers_askNoProviderAboutAPaymentThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.damaged = true
		bad, good := s.start(s.place().ID), s.start(s.place().ID)
		s.authorize(good)
		raw(t, s.store.path, withoutRules+`UPDATE payments SET created_at = `+noDay+` WHERE id = '`+bad.ID+`'`)
		s.sql(`UPDATE payments SET due_at = created_at WHERE id = ?`, good.ID)
		s.sql(`UPDATE payments SET due_at = '2000-01-01T00:00:00Z' WHERE id = ?`, bad.ID)
		s.work()
		time.Sleep(time.Second)
		s.states(good.OrderID, orderAuthorized, paymentAuthorized)
		due, err := s.store.duePayments(newStamp(time.Now()), 10)
		if err != nil || len(due) > 0 {
			t.Errorf("%d are due: %v", len(due), err)
		}
		s.healthNow().is(200).members("status", "warn")
	})
}

func TestDamage_ofOneByteIsRefusedOrServedWithProperAnswers(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	s.rowOfEach()
	license, key := s.addLicense(license{})
	lease := bearer(s.activate(key, "kitchen-1").is(200).text("token"))
	admin := bearer(s.token(s.account, scopeAdmin))
	s.post("/widget/leads", anyLead, "Idempotency-Key: again").is(200)
	s.reopen(storeOptions{}) // so that all is in the file
	sound, path := fileBytes(t, s.store.path), filepath.Join(t.TempDir(), "damaged.db")
	damages, choices, refused, statuses := size(4, 60), random(t, 0), 0, map[int]int{}
	for n := range damages {
		at, with := choices.IntN(len(sound)), byte(1+choices.IntN(255))
		switch {
		case n%8 == 1:
			at = choices.IntN(4096) // the first page
		case n%2 == 0:
			at += choices.IntN(12) - at%4096 // the header of a page breaks more
		}
		content := slices.Clone(sound)
		content[at] ^= with
		writeFile(t, path, content)
		what := fmt.Sprintf("byte %d changed by %#02x", at, with)
		hangs := time.AfterFunc(hangs, func() { panic(what + ": no answer") })
		all, ok := serveDamaged(t, what, path, s.keys, func(s *service) []answer {
			defer s.server.sweep(t.Context(), time.Now().Add(time.Hour)) // errors go to the log
			defer s.server.runTransitions(t.Context())
			return []answer{s.get("/widget/health"), s.get("/licenses?limit=200", admin),
				s.get("/leads?limit=200", admin), s.get("/licenses/"+license+"/devices", admin),
				s.get("/events?limit=200", admin), s.get("/widget/stats", admin), s.activate(key, "kitchen-2"),
				s.post("/widget/license/verify", `{}`, lease), s.post("/widget/leads", anyLead),
				s.post("/widget/leads", anyLead, "Idempotency-Key: again"),
				s.post("/leads/erase", `{"email":"guest1@example.com"}`, admin),
				s.post("/licenses/"+license+"/suspend", `{"reason":"test"}`, admin)}
		})
		hangs.Stop()
		must(t, errors.Join(os.Remove(path), removeLog(path)))
		refused += oneIf[!ok]
		for _, a := range all {
			statuses[a.status]++
		}
	}
	t.Logf("%d changes: %d refused at start, answers %v", damages, refused, statuses)
}

// serveDamaged asks a service on a damaged file, unless its start is refused. It complains about whatever is neither a
// clear line nor a proper answer.
func serveDamaged(t *testing.T, what, path string, keys *keyring, ask func(*service) []answer) (all []answer, ok bool) {
	t.Helper()
	faults, err := checkFile(path)
	found := err != nil || len(faults) > 0
	st, err := openStore(path, storeOptions{busyTimeout: time.Second})
	if err != nil {
		oneLine(t, err, "")
		failIf(t, !found, "%s: refused (%v), but check finds nothing", what, err)
		return nil, false
	}
	defer st.close() // its error is the damage
	var log strings.Builder
	s := &service{t: t, dir: filepath.Dir(path), store: st, keys: keys, damaged: true}
	how := serverOptions{nounOptions: nounOptions{legacySunset: defaultSunset}}
	withoutAddressLimits(nil, &how)
	s.server, err = newServer(st, keys, how, slog.New(slog.NewTextHandler(&log, nil)), nouns())
	if err != nil {
		oneLine(t, err, "")
		return nil, false
	}
	all = ask(s)
	lacks(t, log.String(), "panic")
	for _, a := range all {
		// A rule or an index that was changed and now refuses what is right can't be told from a fault of ours that
		// it stops.
		ruled := found && strings.Contains(log.String(), "constraint failed")
		proper := a.status < 500 || a.status == 503 || ruled || a.text("code") == "row_unreadable"
		failIf(t, !proper, "%s: %d %s\n%s", what, a.status, a.body, log.String())
	}
	return all, true
}

// removeLog removes what a service that could not close its file has left.
func removeLog(path string) (err error) {
	for _, suffix := range []string{"-wal", "-shm"} {
		if e := os.Remove(path + suffix); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
