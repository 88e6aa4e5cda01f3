package main

import (
	"flag"
	"fmt"
	"net"
	"os"
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
