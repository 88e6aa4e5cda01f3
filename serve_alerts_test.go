package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// scrape returns what Prometheus would read of a service, as series with their values.
func scrape(s *server) map[string]string {
	var text strings.Builder
	s.writeMetrics(&text)
	return seriesOf(text.String())
}

// seriesOf reads metrics in the text format of Prometheus. The metrics of one that serves none are up 0.
func seriesOf(text string) map[string]string {
	series := map[string]string{`up{job="widgetd"}`: "0"}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		series[`up{job="widgetd"}`] = "1"
		i := strings.LastIndexByte(line, ' ')
		series[line[:i]] = strings.TrimSpace(line[i:])
	}
	return series
}

// unitTest returns the test of promtool that an alert fires once its state has lasted as long as it must, and not
// before: the state begins in the tenth minute, or the one after it.
func unitTest(alert string, lasts time.Duration, first, then map[string]string) map[string]any {
	input := []map[string]string{}
	names := slices.Collect(maps.Keys(first))
	for name := range then {
		if _, known := first[name]; !known {
			names = append(names, name)
		}
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		before, after := cmp.Or(first[name], "_"), "stale"
		if value := then[name]; value != "" {
			after = fmt.Sprint(value, "x", lasts.Minutes()+2)
		}
		input = append(input, map[string]string{"series": name, "values": before + "x10 " + after})
	}
	firing := func(at time.Duration, samples ...map[string]any) map[string]any {
		return map[string]any{"eval_time": at.String(), "exp_samples": append([]map[string]any{}, samples...),
			"expr": `group(ALERTS{alertname="` + alert + `",alertstate="firing"})`}
	}
	return map[string]any{"name": alert, "interval": "1m", "input_series": input, "promql_expr_test": []any{
		firing(9*time.Minute + lasts), firing(12*time.Minute+lasts, map[string]any{"labels": "{}", "value": 1}),
	}}
}

// causes bring a service into the state of each alert of deploy/alerts.yml. Each returns what was read before and
// after.
var causes = map[string]func(t *testing.T) (before, after map[string]string){
	"WidgetdDown": func(t *testing.T) (before, after map[string]string) {
		s := newService(t)
		read := func(addr string) map[string]string {
			res, err := newClient(t).Get("http://" + addr + "/metrics")
			if err != nil {
				return seriesOf("")
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			s.check(err)
			return seriesOf(string(text))
		}
		s.check(s.server.startDebug("127.0.0.1:0"))
		_, addr, _ := strings.Cut(strings.TrimSpace(s.log.String()), "addr=")
		before = read(addr)
		s.serving()()
		return before, read(addr)
	},
	"WidgetdFails": inBubbleCause(func(s *service) {
		s.check(os.Rename(s.store.path, s.store.path+".moved"))
		time.Sleep(healthInterval)
		s.get("/widget/health").is(503)
		s.check(os.Rename(s.store.path+".moved", s.store.path))
	}),
	"WidgetdErrors": func(t *testing.T) (before, after map[string]string) {
		inBubble(t, func(_ *testing.T, s *service) {
			for range 2 { // one failure long ago is no reason
				s.limitPages(0)
				for i := range 100 { // the first may find room
					s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"g%d@example.com"}`, i))
				}
				if after = scrape(s.server); before == nil {
					before = after
				}
				s.limitPages(-1)
			}
		}, withoutAddressLimits)
		return before, after
	},
	"WidgetdWarns": inBubbleCause(func(s *service) {
		path := filepath.Join(s.dir, "widgetd.key")
		s.check(os.WriteFile(path, []byte("nonsense"), 0o600))
		s.server.followKeys(path)
	}),
	"WidgetdClockDoubted": inBubbleCause(func(s *service) { s.startsAfter(days(400)) }),
	"WidgetdBackupOld":    inBubbleCause(func(*service) { time.Sleep(40 * time.Hour) }),
	"WidgetdProofFails": inBubbleCause(func(s *service) {
		s.change(func(t *tx) error {
			t.markProof(proofBackup, "mark")
			t.endProof(&proof{What: proofBackup, Fault: "there is no room"})
			return nil
		})
	}),
	"WidgetdProofOld": inBubbleCause(func(s *service) {
		s.change(func(t *tx) error { t.wantProof(proofBackup); return nil })
		time.Sleep(proofOverdue + time.Hour)
	}),
	"WidgetdStandbyBehind": inBubbleCause(func(s *service) {
		s.store.become(standing{dutyAlone, reasonBehind}) // as the standby's answer has it
	}),
	"WidgetdDiskFull": func(t *testing.T) (before, after map[string]string) {
		s := newService(t)
		before = scrape(s.server)
		path := filepath.Join(smallDisk(t, 64<<20), "widgetd.db")
		copyTemplate(t, path)
		on, err := newServer(openTestStore(t, path, storeOptions{}), s.keys, s.server.serverOptions, s.server.log,
			s.server.nouns)
		s.check(err)
		return before, scrape(on)
	},
	"WidgetdCallsFail": inBubbleCause(func(s *service) {
		s.callUnresolvable("a.example", "b.example", "c.example", "d.example")
		time.Sleep(time.Minute)
	}),
	"WidgetdWebhooksLate": inBubbleCause(func(s *service) { // no worker runs
		s.subscribe(s.account, "https://hooks.example.com/", eventLeadCreated)
		s.announce(s.account, eventLeadCreated)
		time.Sleep(time.Hour)
	}),
	"WidgetdPaymentsLate": inShopCause(func(s *shop) { // no worker runs
		s.start(s.place().ID)
		time.Sleep(time.Hour)
	}),
	"WidgetdPaymentsInReview": inShopCause(func(s *shop) {
		p := s.start(s.place().ID)
		s.atProvider(p, func(x *testSession) { x.amount = 1 })
		s.authorize(p)
		s.settle(p)
	}),
	"WidgetdProviderRefuses": inShopCause(func(s *shop) {
		o, _ := s.authorized()
		s.fail(opCapture, fault401)
		s.accept(o.ID)
		s.check(s.engine.settleLive(s.t.Context(), o.ID))
	}),
	"WidgetdPaymentsRefused": inShopCause(func(s *shop) {
		s.refuses("account_invalid", restricted, "", methodCard)
		s.evening(refusedTold, methodCard)
	}),
	"WidgetdRevenueLate": inShopCause(func(s *shop) {
		s.paid()
		s.sql(`INSERT INTO revenue_backlog SELECT id FROM orders`)
	}),
	"WidgetdBooksHeld": inBubbleCause(func(s *service) {
		s.change(func(t *tx) error {
			c, err := addBooks(t, s.keys, s.account, productXero, nil)
			if err == nil {
				_, err = addBooksExport(t, c, "2000-01-01", exportHeld, heldReconnect, t.now.after(-heldTooLong))
			}
			return err
		})
	}),
}

// inBubbleCause makes a cause of what happens to a service in a bubble.
func inBubbleCause(cause func(s *service)) func(t *testing.T) (before, after map[string]string) {
	return func(t *testing.T) (before, after map[string]string) {
		inBubble(t, func(_ *testing.T, s *service) {
			s.get("/widget/health").is(200)
			before = scrape(s.server)
			cause(s)
			after = scrape(s.server)
		})
		return before, after
	}
}

// inShopCause is inBubbleCause for a shop.
func inShopCause(cause func(s *shop)) func(t *testing.T) (before, after map[string]string) {
	return func(t *testing.T) (before, after map[string]string) {
		inShop(t, func(s *shop) {
			before = scrape(s.server)
			cause(s)
			after = scrape(s.server)
		})
		return before, after
	}
}

// callUnresolvable calls hosts whose names can't be looked up, since the name server fails. (A real one can't be asked
// from a bubble.)
func (s *service) callUnresolvable(hosts ...string) {
	s.t.Helper()
	out := s.server.outbound
	out.secure.DialTLSContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, noAnswer(outboundNoAddress, &net.DNSError{Err: "server misbehaving", IsTemporary: true})
	}
	for _, host := range hosts {
		_, err := out.do(s.t.Context(), outboundRequest{method: "GET", url: "https://" + host + "/"})
		failIf(s.t, err == nil, "%s can be called", host)
	}
}

// TestAlerts_fireInTheStateThatTheyAreForAndNotBefore brings a service into the state of each alert, and has
// promtool evaluate the rules on what Prometheus would have read.
func TestAlerts_fireInTheStateThatTheyAreForAndNotBefore(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	programsOrSkip(t, "promtool")
	rules, err := filepath.Abs("deploy/alerts.yml")
	must(t, err)
	runProgram(t, "promtool", "check", "rules", rules)
	text := fileText(t, rules)
	names := captures(`(?m)^      - alert: (\w+)$`, text)
	for _, part := range []string{"expr", "for", "summary", "command"} {
		if n := len(captures(`(?m)^ +(`+part+`): .`, text)); n != len(names) {
			t.Errorf("%d alerts, %d with %s", len(names), n, part)
		}
	}
	if slices.Sort(names); !slices.Equal(names, slices.Sorted(maps.Keys(causes))) || len(names) < 12 {
		t.Fatalf("the alerts are %q", names)
	}
	read := func(series map[string]string) map[string]string { // those that the rules name: promtool keeps each sample
		maps.DeleteFunc(series, func(name, _ string) bool {
			metric, _, _ := strings.Cut(name, "{")
			return !strings.Contains(text, metric)
		})
		return series
	}
	tests := []map[string]any{}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			before, after := causes[name](t)
			lasts, err := time.ParseDuration(captures(`- alert: `+name+`\n(?:.+\n)*? +for: (\w+)\n`, text)[0])
			must(t, err)
			tests = append(tests, unitTest(name, lasts, read(before), read(after)))
		})
	}
	unitTests, err := json.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": tests})
	must(t, err)
	file := filepath.Join(t.TempDir(), "alerts_test.yml") // JSON is YAML
	must(t, os.WriteFile(file, unitTests, 0o600))
	runProgram(t, "promtool", "test", "rules", file)
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
			"widgetd_backup_age_seconds": "3600", "widgetd_clock_doubted": "0", `widgetd_calls_failing{why=""}`: "0",
			`widgetd_webhook_waiting{what="new"}`: "0", "widgetd_revenue_backlog": "0",
			`widgetd_books{what="waiting"}`: "0"} {
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
