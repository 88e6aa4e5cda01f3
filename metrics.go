package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// metrics counts answers by route and status. Both are few, so nobody outside can
// make it grow.
type metrics struct {
	mu      sync.Mutex
	answers map[answerKey]*answerCount
}

type answerKey struct {
	route  string // as the route table writes it; "" for what is no route
	status int
}

type answerCount struct {
	number int64
	spent  time.Duration
}

func (m *metrics) count(route string, status int, spent time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers = map[answerKey]*answerCount{}
	}
	key := answerKey{route, status}
	c := m.answers[key]
	if c == nil {
		c = &answerCount{}
		m.answers[key] = c
	}
	c.number++
	c.spent += spent
}

// writeMetrics writes what there is to know about a running service, in the text
// format that Prometheus reads.
func (s *server) writeMetrics(w io.Writer) {
	m := &s.metrics
	var lines []string
	m.mu.Lock()
	for key, c := range m.answers {
		labels := fmt.Sprintf(`{route=%q,status="%d"}`, key.route, key.status)
		lines = append(lines,
			fmt.Sprintf("widgetd_requests_total%s %d", labels, c.number),
			fmt.Sprintf("widgetd_request_seconds_sum%s %g", labels, c.spent.Seconds()))
	}
	m.mu.Unlock()
	slices.Sort(lines)
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	lines = append(lines,
		fmt.Sprintf("widgetd_commits_total %d", s.store.batches.Load()),
		fmt.Sprintf("widgetd_writes_total %d", s.store.written.Load()),
		fmt.Sprintf("widgetd_writes_waiting %d", len(s.store.jobs)),
		fmt.Sprintf("widgetd_log_bytes %d", s.store.logSize()),
		fmt.Sprintf(`widgetd_buckets{limit="account"} %d`, s.accounts.len()),
		fmt.Sprintf(`widgetd_buckets{limit="address"} %d`, s.addresses.len()),
		fmt.Sprintf("go_goroutines %d", runtime.NumGoroutine()),
		fmt.Sprintf("go_heap_bytes %d", mem.HeapAlloc),
		fmt.Sprintf("go_sys_bytes %d", mem.Sys))
	fmt.Fprintln(w, strings.Join(lines, "\n"))
}
