package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealth_passesAndSaysWhatItMeasuredAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		a := s.get("/widget/health").is(200).
			has("Content-Type: application/health+json", "Cache-Control: no-store", "RateLimit: ")
		want := `{"status":"pass","version":"1","releaseId":"` + buildName() + `","checks":{"sqlite:responseTime":[` +
			`{"componentType":"datastore","observedValue":0,"observedUnit":"ms","status":"pass",` +
			`"time":"2000-01-01T00:00:00Z"}]}}` + "\n"
		equal(t, "health", a.body, want)
		s.get("/widget/health", "Origin: "+siteOrigin).is(200)
		equal(t, "proofs within a second", s.store.committedJobs.Load(), 1)
		time.Sleep(time.Second)
		s.get("/widget/health").is(200)
		equal(t, "proofs a second later", s.store.committedJobs.Load(), 2)
	})
}

// Against a status page that warns, or a telephone that rings, since a disk is slow, and against an answer of before
// that stays after room was made: callers wait for the probe that runs, until that has run for two seconds.
func TestHealth_waitsForTheProbeThatRunsAndWarnsFromTwoSecondsOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		h := &s.server.health
		begin := func() { // a probe that does not end by itself
			h.at, h.running, h.began, h.waiting = time.Time{}, make(chan struct{}), time.Now(), time.Now()
		}
		end := func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.at, h.err, h.waiting = time.Now(), nil, time.Time{}
			close(h.running)
			h.running = nil
		}
		asked := func(took time.Duration, says ...any) {
			t.Helper()
			at := time.Now()
			s.get("/widget/health").members(says...)
			equal(t, "waited", time.Since(at), took)
		}
		begin()
		h.err = errStorageFull
		time.AfterFunc(1900*time.Millisecond, end)
		equal(t, "who does not wait is told", s.server.lastHealth().Output, "the disk is full")
		asked(1900*time.Millisecond, "status", "pass")
		begin()
		time.Sleep(1900 * time.Millisecond)
		equal(t, "in less than two seconds", string(s.server.lastHealth().Status), "pass")
		asked(100*time.Millisecond, "status", "warn", "output", "a write has been waiting for 2,000 ms")
		time.Sleep(340 * time.Millisecond)
		asked(0, "status", "warn", "output", "a write has been waiting for 2,340 ms")
		end()
		begin()
		h.callers = maxHealthCallers
		asked(0, "status", "pass")
		end()
	})
}

// openFaults are done to files while the service has them open.
var openFaults = []struct {
	name string
	do   func(t testing.TB, path string)
	undo func(t testing.TB, path string) // nil: it can't be undone
}{
	{"renamed", func(t testing.TB, path string) { rename(t, path, path+".away") },
		func(t testing.TB, path string) { rename(t, path+".away", path) }},
	{"unlinked", func(t testing.TB, path string) { os.Remove(path) }, nil},
	{"replaced", func(t testing.TB, path string) {
		rename(t, path, path+".away")
		rename(t, makeStore(t), path)
	}, func(t testing.TB, path string) { rename(t, path+".away", path) }},
	{"its log renamed", func(t testing.TB, path string) { rename(t, path+"-wal", path+"-away") },
		func(t testing.TB, path string) { rename(t, path+"-away", path+"-wal") }},
	{"its log unlinked", func(t testing.TB, path string) { os.Remove(path + "-wal") }, nil},
	{"emptied", func(t testing.TB, path string) { os.Truncate(path, 0) }, nil},
	{"its header zeroed", func(t testing.TB, path string) { damage(t, path, 0, make([]byte, 100)...) }, nil},
	{"overwritten with text", func(t testing.TB, path string) { os.WriteFile(path, []byte("hello"), 0o600) }, nil},
	{"cut off", func(t testing.TB, path string) { os.Truncate(path, 40960) }, nil},
}

func TestHealth_failsAndNothingIsWrittenWhileAFileIsTakenAway(t *testing.T) {
	t.Parallel()
	for _, fault := range openFaults {
		t.Run(fault.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *service) {
				s.damaged = true
				lead := func(n int) answer {
					email := fmt.Sprintf("guest%d@example.com", n)
					return s.post("/widget/leads", seatBody("type", "newsletter", "email", email))
				}
				lead(0).is(200)
				s.get("/widget/health").is(200)
				fault.do(t, s.store.path)
				time.Sleep(2 * upkeepInterval)
				if fault.name == "cut off" { // until SQLite misses a page, what is there is served
					for i := range 50 {
						a := lead(i)
						failIf(t, a.status != 200 && a.status != 503, "%d %s", a.status, a.body)
					}
					return
				}
				a := s.get("/widget/health").is(503).members("status", "fail")
				lacks(t, a.body, s.dir, "widgetd.db")
				equal(t, "alive", s.get("//livez").is(200).body, "alive\n")
				lead(1).is(503, "storage_unavailable").has("Retry-After: 30")
				if fault.undo == nil {
					s.store.close() // its error is the damage
					var err error
					s.store, err = openStore(makeStore(t), storeOptions{}) // for the harness, which closes it
					must(t, err)
					return
				}
				fault.undo(t, s.store.path)
				time.Sleep(2 * upkeepInterval)
				s.get("/widget/health").is(200).members("status", "pass")
				lead(2).is(200)
				s.counts(2, `SELECT count(*) FROM leads`)
			})
		})
	}
}

func TestMetrics_followTheRulesOfPrometheus(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/leads", `{}`).is(422)
	s.get("/nowhere").is(404)
	series, size := scrape(s.server), fmt.Sprint(s.store.databaseSize())
	for name, want := range map[string]string{
		`widgetd_build_info{version="` + buildName() + `"}`:                             "1",
		`widgetd_request_duration_seconds_count{route="POST /widget/leads"}`:            "2",
		`widgetd_request_duration_seconds_bucket{route="POST /widget/leads",le="+Inf"}`: "2",
		`widgetd_requests_total{route="POST /widget/leads",status="422"}`:               "1",
		`widgetd_refusals_total{code="not_found"}`:                                      "1",
		`widgetd_refusals_total{code="validation_failed"}`:                              "1",
		`widgetd_webhooks{state="enabled"}`:                                             "0",
		`widgetd_webhooks_failing`:                                                      "0",
		`widgetd_webhook_deliveries_total{outcome="succeeded"}`:                         "0",
		`widgetd_database_bytes`:                                                        size,
	} {
		equal(t, name, series[name], want)
	}
	programsOrSkip(t, "promtool")
	var text strings.Builder
	s.server.writeMetrics(&text)
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text.String())
	out, err := check.CombinedOutput()
	failIf(t, err != nil, "%v: %s", err, out)
}

func TestMetrics_areServedOnLoopbackUntilTheEnd(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.check(s.server.startDebug("127.0.0.1:0"))
	_, addr, _ := strings.Cut(strings.TrimSpace(s.log.String()), "addr=")
	stop, client := s.serving(), newClient(t)
	s.post("/widget/leads", anyLead).is(200)
	pages := map[string]string{
		"/metrics":                       "widgetd_requests_total{route=\"POST /widget/leads\",status=\"200\"} 1\n",
		"/debug/pprof/goroutine?debug=1": "goroutine profile: total ",
		"/debug/pprof/heap":              "\x1f\x8b", // compressed
	}
	if flag.Lookup("test.cpuprofile").Value.String() == "" { // else there is one already
		pages["/debug/pprof/profile?seconds=0"] = "\x1f\x8b"
	}
	for path, want := range pages {
		a, err := send(client, "GET", "http://"+addr+path, "")
		s.check(err)
		if a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	stop()
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("metrics are still served after the service has stopped")
	}
}

func TestHealth_saysWhyInASentenceThatNamesNoFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	sqliteError := func(query string) error {
		return s.store.update(t.Context(), func(t *tx) error { _, err := t.try(query); return err })
	}
	s.limitPages(0)
	full := sqliteError(`INSERT INTO item_counts (widget_id, day, item)
		SELECT 'wgt_x', '2026-01-01', hex(randomblob(50000))`)
	readOnly := storageError(s.store.queries.run(
		`INSERT INTO probes (id, written_at) VALUES (1, '2026-01-01T00:00:00Z')`))
	for _, c := range []struct {
		err  error
		want string
	}{
		{full, "the disk is full"},
		{errBusy, "another program holds the write lock"},
		{errClosed, "the service is stopping"},
		{fmt.Errorf("%w (%w: /var/lib/widgetd.db)", errStorage, errHeader), "the database is damaged"},
		{fmt.Errorf("%w (the file at /var/lib/widgetd.db %w)", errStorage, errReplaced),
			"the file at the path is not the one that is open"},
		{readOnly, "the database can't be written, only read"},
		{fmt.Errorf("%w (SELECT 1)", errStorage), "the database can't be read or written"},
	} {
		if got := storageReason(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestDashboard_showsEachMetric(t *testing.T) {
	t.Parallel()
	var shown struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must(t, json.Unmarshal(fileBytes(t, "deploy/dashboard.json"), &shown))
	rules, names := "groups:\n- name: dashboard\n  rules:\n", map[string]bool{}
	name := regexp.MustCompile(`\b(?:widgetd|process|go)_\w+`)
	for i, p := range shown.Panels {
		for j, target := range p.Targets {
			rules += fmt.Sprintf("  - {record: shown:x%dx%d, expr: '%s'}\n", i, j, target.Expr)
			for _, found := range name.FindAllString(target.Expr, -1) {
				names[strings.TrimSuffix(found, "_bucket")] = true
			}
		}
	}
	s, families := newService(t), map[string]bool{}
	for _, m := range append(s.server.coreMetrics(), s.server.moduleMetrics...) {
		families[m.name] = true
	}
	sameText(t, "metrics", slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(families)))
	programsOrSkip(t, "promtool")
	file := filepath.Join(t.TempDir(), "rules.yml")
	must(t, os.WriteFile(file, []byte(rules), 0o600))
	runProgram(t, "promtool", "check", "rules", file)
}

// scrape returns what Prometheus would read of a service, as series with their values.
func scrape(s *server) map[string]string {
	var text strings.Builder
	s.writeMetrics(&text)
	series := map[string]string{}
	for line := range strings.Lines(text.String()) {
		if i := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") {
			series[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return series
}

// TestAlerts_fireForEachKindOfItsUrgencyOnceItHasLasted has promtool evaluate the rules on the series of a service: in
// the tenth step it goes down, and all troubles begin.
func TestAlerts_fireForEachKindOfItsUrgencyOnceItHasLasted(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "promtool")
	rules, err := filepath.Abs("deploy/alerts.yml")
	must(t, err)
	runProgram(t, "promtool", "check", "rules", rules)
	series := newService(t).samplesOf("widgetd_trouble")
	input := []map[string]string{{"series": `up{job="widgetd"}`, "values": "1x9 0x100"}}
	for name, value := range series {
		equal(t, name+", of a service that is well", value == "0" || strings.Contains(name, "backup_missing"), true)
		input = append(input, map[string]string{"series": name, "values": "0x9 1x100"})
	}
	files := []string{}
	for _, alert := range captures(`(?m)^      - alert: (\w+)$`, fileText(t, rules)) {
		rule := captures(`(?s)- alert: (`+alert+`\n.*?annotations.*?\n)`, fileText(t, rules))[0]
		lasts, err := time.ParseDuration(strings.Replace(captures(`for: (\w+)`, rule)[0], "1d", "24h", 1))
		must(t, err)
		fires := 1
		if urgency := captures(`urgency="(\w+)"`, rule); len(urgency) > 0 {
			fires = 0
			for name := range series {
				if strings.Contains(name, `,urgency="`+urgency[0]+`",`) {
					fires++
				}
			}
		}
		failIf(t, fires == 0, "%s fires for nothing", alert)
		step := max(time.Minute, lasts/48) // each step has promtool write the text of each alert
		expr := `count(ALERTS{alertname="` + alert + `",alertstate="firing"})`
		checks := []any{
			map[string]any{"eval_time": (9*step + lasts).String(), "expr": expr, "exp_samples": []any{}},
			map[string]any{"eval_time": (12*step + lasts).String(), "expr": expr,
				"exp_samples": []any{map[string]any{"labels": "{}", "value": fires}}}}
		test := map[string]any{"interval": step.String(), "input_series": input, "promql_expr_test": checks}
		text, err := json.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": step.String(),
			"tests": []any{test}})
		must(t, err)
		files = append(files, filepath.Join(t.TempDir(), alert+".yml")) // JSON is YAML
		writeFile(t, files[len(files)-1], text)
	}
	equal(t, "alerts", len(files), len(urgencies)+1)
	runProgram(t, "promtool", append([]string{"test", "rules"}, files...)...)
}

func TestMetrics_areReadWhileNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.get("/widget/health").is(200)
		release := holdWriter(t, s.store)
		defer release()
		commits := s.store.commits.Load()
		time.Sleep(time.Hour)
		series := scrape(s.server)
		for name, want := range map[string]string{`widgetd_health{status="pass",reason=""}`: "1",
			"widgetd_backup_age_seconds": "3600", `widgetd_webhook_waiting{what="new"}`: "0",
			`widgetd_trouble{kind="books_held",urgency="day",money="true"}`: "0"} {
			equal(t, name, series[name], want)
		}
		for _, name := range []string{"widgetd_disk_free_bytes", "process_resident_memory_bytes", "go_heap_bytes",
			"process_start_time_seconds"} {
			failIf(t, len(series[name]) < 6, "%s %q", name, series[name])
		}
		failIf(t, s.store.commits.Load() != commits, "something was written")
	})
}

func TestCallers_areCountedForAMinuteAndAnHourUpToABound(t *testing.T) {
	t.Parallel()
	var m metrics
	now := time.Now()
	send := func(client string, times int) {
		for range times {
			m.count("GET /x", 200, 0, callerKey{"acct", client}, now)
		}
	}
	is := func(when string, limit int, want ...callerRow) {
		t.Helper()
		if got := m.mostCallers(now, limit); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	row := func(client string, minute, hour int64) callerRow {
		return callerRow{AccountID: "acct", Client: client, LastMinute: minute, LastHour: hour}
	}
	send("a", 3)
	now = now.Add(30 * time.Second)
	send("b", 5)
	is("half a minute later", 8, row("b", 5, 5), row("a", 3, 3))
	now = now.Add(40 * time.Second)
	is("a minute after the first", 8, row("b", 5, 5), row("a", 0, 3))
	now = now.Add(50 * time.Minute)
	send("a", 1)
	send("c", 1)
	is("an hour later", 2, row("b", 0, 5), callerRow{Client: clientOthers, LastMinute: 2, LastHour: 5})
	now = now.Add(2 * time.Hour)
	is("after two quiet hours", 8)
	for i := range maxCallers + 10 {
		send(string(rune('A'+i/100))+string(rune('0'+i%100)), 1)
	}
	rows := m.mostCallers(now, 3)
	others := callerRow{Client: clientOthers, LastMinute: maxCallers + 8, LastHour: maxCallers + 8}
	if len(rows) != 3 || rows[2] != others || len(m.callers) > maxCallers {
		t.Errorf("of more than the bound: %+v, %d counted", rows, len(m.callers))
	}
	now = now.Add(61 * time.Minute)
	send("new", 1)
	if len(m.callers) != 1 {
		t.Errorf("%d are counted an hour later", len(m.callers))
	}
}
