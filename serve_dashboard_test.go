package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
