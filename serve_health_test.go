package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealth_passesAndSaysWhatItMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		a := s.get("/widget/health").is(200).
			has("Content-Type: application/health+json", "Cache-Control: no-store", "RateLimit: ")
		want := `{"status":"pass","version":"1","releaseId":"` + buildName() + `","checks":{"sqlite:responseTime":[` +
			`{"componentType":"datastore","observedValue":0,"observedUnit":"ms","status":"pass",` +
			`"time":"2000-01-01T00:00:00Z"}]}}` + "\n"
		if a.body != want {
			t.Fatalf("%s, want %s", a.body, want)
		}
	})
}

func TestHealth_isProvedAtMostOnceASecondAndNeverLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		for range size(100, 1000) {
			s.get("/widget/health", "Origin: "+siteOrigin).is(200)
		}
		if n := s.store.committedJobs.Load(); n != 1 {
			t.Fatalf("%d proofs", n)
		}
		time.Sleep(time.Second)
		s.get("/widget/health").is(200)
		if n := s.store.committedJobs.Load(); n != 2 {
			t.Fatalf("%d proofs a second later", n)
		}
	})
}

// heldFor is what health says while another program holds the lock.
var heldFor = regexp.MustCompile(`^another program has held the write lock for [\d,]+ ms$`)

func TestHealth_warnsWhileAnOperatorHoldsTheLockAndFailsAfter15Seconds(t *testing.T) {
	t.Parallel()
	var later atomic.Int64 // how far the service's clock is ahead of the real one, in which SQLite waits
	s := newService(t, func(o *storeOptions, _ *serverOptions) {
		o.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	s.health().is(200).members("status", "pass")
	release := foreignLock(t, s.store.path)
	later.Add(int64(time.Second))
	go s.server.checkHealth() // whose proof waits
	if !soon(func() bool { return !s.store.lockedSince().IsZero() }) {
		t.Fatal("no write waits for the lock")
	}
	for _, c := range []struct {
		more   time.Duration
		status int
		says   string
	}{{2 * time.Second, 200, "warn"}, {8 * time.Second, 200, "warn"}, {6 * time.Second, 503, "fail"}} {
		later.Add(int64(c.more))
		a := s.get("/widget/health").is(c.status).members("status", c.says)
		if !heldFor.MatchString(a.text("output")) {
			t.Fatal(a.body)
		}
	}
	release()
	if !soon(func() bool { return s.get("/widget/health").json()["status"] == "pass" }) {
		t.Fatal("health does not pass again")
	}
	equal(t, "the lock is over", s.store.lockedSince().IsZero(), true)
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

func TestHealth_failsOnceTheFileIsNotTheOneThatIsOpen(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(path string) error{
		"renamed":  func(path string) error { return os.Rename(path, path+".old") },
		"removed":  os.Remove,
		"replaced": func(path string) error { return os.Rename(path+".copy", path) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				s.check(s.store.backup(s.store.path+".copy", nil))
				s.get("/widget/health").is(200)
				s.check(lose(s.store.path))
				time.Sleep(time.Second)
				a := s.get("/widget/health").is(503).
					members("status", "fail", "output", "the file at the path is not the one that is open")
				if strings.Contains(a.body, s.dir) || strings.Contains(a.body, "widgetd.db") {
					t.Fatal(a.body)
				}
				s.post("/widget/leads", aLead).is(503, "storage_unavailable").has("Retry-After: 30")
				s.counts(0, `SELECT count(*) FROM leads`)
			})
		})
	}
}

func TestLivez_answersWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.check(s.store.readers.Close())
	if a := s.get("//livez").is(200).has("Content-Type: text/plain; charset=utf-8"); a.body != "alive\n" {
		t.Fatal(a.body)
	}
}

// histogramSample tells whether a sample is one of a histogram.
func histogramSample(family, sample string) bool {
	suffix, ok := strings.CutPrefix(sample, family)
	return ok && slices.Contains([]string{"_bucket", "_sum", "_count"}, suffix)
}

// TestMetrics_followTheRulesOfPrometheus reads them as a scrape does: each family has
// its help and its type before its samples, and all of them together, and counters
// alone end in _total.
func TestMetrics_followTheRulesOfPrometheus(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/leads", `{}`).is(422)
	s.get("/nowhere").is(404)
	var text strings.Builder
	s.server.writeMetrics(&text)
	help := regexp.MustCompile(`^# HELP (\w+) [A-Z][^\\]+\.$`)
	kind := regexp.MustCompile(`^# TYPE (\w+) (counter|gauge|histogram)$`)
	sample := regexp.MustCompile(`^(\w+)(?:\{\w+="[^"\\]*"(?:,\w+="[^"\\]*")*\})? [0-9.]+(?:e-\d+)?$`)
	var name, described string
	seen, samples := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSuffix(line, "\n")
		if m := help.FindStringSubmatch(line); m != nil && !seen[m[1]] {
			described, seen[m[1]] = m[1], true
		} else if m := kind.FindStringSubmatch(line); m != nil && m[1] == described &&
			strings.HasSuffix(m[1], "_total") == (m[2] == "counter") {
			name = m[1]
		} else if m := sample.FindStringSubmatch(line); m == nil || samples[line] ||
			m[1] != name && !histogramSample(name, m[1]) {
			t.Errorf("%q under %q", line, name)
		} else {
			samples[line] = true
		}
	}
	for _, want := range []string{
		`widgetd_build_info{version="` + buildName() + `"} 1`,
		`widgetd_request_duration_seconds_count{route="POST /widget/leads"} 2`,
		`widgetd_request_duration_seconds_bucket{route="POST /widget/leads",le="+Inf"} 2`,
		`widgetd_refusals_total{code="not_found"} 1`,
		`widgetd_refusals_total{code="validation_failed"} 1`,
		`widgetd_webhooks{state="enabled"} 0`,
		`widgetd_webhooks_failing 0`,
		`widgetd_webhook_deliveries_total{outcome="succeeded"} 0`,
		fmt.Sprintf("widgetd_database_bytes %d", s.store.databaseSize()),
	} {
		if !samples[want] {
			t.Errorf("there is no %s", want)
		}
	}
	if len(seen) != 27 || !samples[`widgetd_requests_total{route="POST /widget/leads",status="422"} 1`] {
		t.Errorf("%d families:\n%s", len(seen), text.String())
	}
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

var writeDashboard = flag.Bool("write-dashboard", false, "write deploy/dashboard.json anew")

// A dashPanel is a panel of the dashboard: pairs of a legend and what it shows.
type dashPanel struct {
	title, unit string
	shows       []string
}

// dashPanels are the panels of deploy/dashboard.json, two in a row. Each metric is in one of them.
var dashPanels = []dashPanel{
	{"What needs somebody", "short", []string{"{{urgency}}: {{kind}}", `widgetd_trouble > 0`}},
	{"Where money waits", "short", []string{"{{kind}}", `widgetd_trouble{money="true"} > 0`}},
	{"Health", "short", []string{"{{status}} {{reason}}", `widgetd_health`,
		"restarts in an hour", `changes(process_start_time_seconds[1h])`}},
	{"Age of the last backup and proof", "s", []string{"backup", `widgetd_backup_age_seconds`,
		"proof of the {{what}}", `widgetd_proof_age_seconds`}},
	{"Requests by route", "reqps", []string{"{{route}}", `sum by (route) (rate(widgetd_requests_total[5m]))`}},
	{"Refused requests by route", "reqps", []string{"{{route}} {{status}}",
		`sum by (route, status) (rate(widgetd_requests_total{status=~"[45].."}[5m])) > 0`}},
	{"Refusals by problem", "reqps", []string{"{{code}}", `sum by (code) (rate(widgetd_refusals_total[5m])) > 0`}},
	{"Time of answers", "s", []string{
		"half of them", `histogram_quantile(0.5, sum by (le) (rate(widgetd_request_duration_seconds_bucket[5m])))`,
		"99 of 100", `histogram_quantile(0.99, sum by (le) (rate(widgetd_request_duration_seconds_bucket[5m])))`,
		"mean", `sum(rate(widgetd_request_seconds_total[5m])) / sum(rate(widgetd_requests_total[5m]))`}},
	{"Writes", "short", []string{"writes a second", `rate(widgetd_writes_total[5m])`,
		"commits a second", `rate(widgetd_commits_total[5m])`,
		"writes in a commit", `rate(widgetd_writes_total[5m]) / rate(widgetd_commits_total[5m])`,
		"waiting", `widgetd_writes_waiting`}},
	{"Size", "bytes", []string{"database", `widgetd_database_bytes`, "write-ahead log", `widgetd_log_bytes`,
		"free on the disk", `widgetd_disk_free_bytes`}},
	{"Webhooks: lag", "s", []string{"the oldest event waits", `widgetd_webhook_waiting{what="oldest_seconds"}`}},
	{"Webhooks: deliveries", "short", []string{"{{outcome}} a second", `rate(widgetd_webhook_deliveries_total[5m])`,
		"running", `widgetd_webhook_deliveries_running`, "waiting", `widgetd_webhook_waiting{what="new"}`,
		"to be tried again", `widgetd_webhook_waiting{what="retried"}`}},
	{"Webhooks", "short", []string{"{{state}}", `widgetd_webhooks`, "failing", `widgetd_webhooks_failing`}},
	{"Limits", "short", []string{"buckets by {{limit}}", `widgetd_buckets`,
		"addresses of failed lookups", `widgetd_lookup_addresses`}},
	{"Memory", "bytes", []string{"process", `process_resident_memory_bytes`, "heap", `go_heap_bytes`,
		"of the system", `go_sys_bytes`}},
	{"Process", "short", []string{"goroutines", `go_goroutines`, "{{version}}", `widgetd_build_info`}},
}

// dashboard returns deploy/dashboard.json, with a line for each thing that is shown.
func dashboard() string {
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${source}"}
	text := `{"title": "widgetd", "uid": "widgetd", "tags": ["widgetd"], "schemaVersion": 39,` + "\n" +
		` "time": {"from": "now-24h", "to": "now"}, "refresh": "1m", "timezone": "browser",` +
		` "annotations": {"list": []},` + "\n" +
		` "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},` + "\n" +
		` "panels": [`
	between := "\n"
	for i, p := range dashPanels {
		head := string(encodeJSON(object{"id": i + 1, "type": "timeseries", "title": p.title, "datasource": source,
			"gridPos":     object{"h": 8, "w": 12, "x": i % 2 * 12, "y": i / 2 * 8},
			"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}}}))
		targets := []string{}
		for at := 0; at < len(p.shows); at += 2 {
			targets = append(targets, "\n   "+string(encodeJSON(object{"refId": string(rune('A' + at/2)),
				"legendFormat": p.shows[at], "expr": p.shows[at+1], "datasource": source})))
		}
		text += between + "  " + strings.TrimSuffix(strings.TrimSpace(head), "}") + `,"targets":[` +
			strings.ReplaceAll(strings.Join(targets, ","), "\n,", ",") + "]}"
		between = ",\n"
	}
	return text + "\n ]}\n"
}

func TestDashboard_isMadeAndShowsEachMetric(t *testing.T) {
	t.Parallel()
	const path = "deploy/dashboard.json"
	if *writeDashboard {
		must(t, os.WriteFile(path, []byte(dashboard()), 0o644))
	}
	failIf(t, fileText(t, path) != dashboard(), "%s: write it anew with -write-dashboard", path)
	failIf(t, strings.Count(dashboard(), "\n") > 200, "it is too long to be read")
	var shown struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must(t, json.Unmarshal([]byte(dashboard()), &shown))
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
