package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"
)

// metrics counts answers by route and status. There are few of either, so callers can't make
// the map grow.
type metrics struct {
	mu      sync.Mutex
	answers map[answerKey]*answerCount
}

type answerKey struct {
	route  string // as in the route table: "POST /widget/leads"; "" if none matched
	status int
}

// An answerCount is how many answers there were, and how long all of them took together.
type answerCount struct {
	number   int64
	duration time.Duration
}

// count adds an answer that took duration.
func (m *metrics) count(route string, status int, took time.Duration) {
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
	c.duration += took
}

// writeMetrics writes all metrics in the text format of Prometheus (version 0.0.4).
func (s *server) writeMetrics(w io.Writer) {
	family := func(name, kind, help string, samples ...string) {
		slices.Sort(samples)
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, sample := range samples {
			fmt.Fprintf(w, "%s%s\n", name, sample)
		}
	}
	counter := func(name, help string, n int64) { family(name, "counter", help, fmt.Sprintf(" %d", n)) }
	gauge := func(name, help string, n int64) { family(name, "gauge", help, fmt.Sprintf(" %d", n)) }
	m := &s.metrics
	var answers, seconds []string
	m.mu.Lock()
	for key, c := range m.answers {
		labels := fmt.Sprintf(`{route=%q,status="%d"}`, key.route, key.status)
		answers = append(answers, fmt.Sprintf("%s %d", labels, c.number))
		seconds = append(seconds, fmt.Sprintf("%s %g", labels, c.duration.Seconds()))
	}
	m.mu.Unlock()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	family("widgetd_requests_total", "counter", "Requests answered, by route and status.", answers...)
	family("widgetd_request_seconds_total", "counter", "Seconds spent answering requests.", seconds...)
	counter("widgetd_commits_total", "Transactions committed to the database.", s.store.commits.Load())
	counter("widgetd_writes_total", "Writes that these transactions contained.", s.store.committedJobs.Load())
	gauge("widgetd_writes_waiting", "Writes queued for the next transaction.", int64(len(s.store.jobs)))
	gauge("widgetd_log_bytes", "Size of the write-ahead log in bytes.", s.store.walSize())
	family("widgetd_buckets", "gauge", "Rate limit buckets in memory, by accounts and by addresses.",
		fmt.Sprintf(`{limit="account"} %d`, s.accountBuckets.len()),
		fmt.Sprintf(`{limit="address"} %d`, s.addressBuckets.len()))
	gauge("go_goroutines", "Goroutines that exist.", int64(runtime.NumGoroutine()))
	gauge("go_heap_bytes", "Bytes of allocated heap objects.", int64(mem.HeapAlloc))
	gauge("go_sys_bytes", "Bytes of memory obtained from the operating system.", int64(mem.Sys))
}
