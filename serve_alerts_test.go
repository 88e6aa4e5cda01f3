package main

import (
	"encoding/json"
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
