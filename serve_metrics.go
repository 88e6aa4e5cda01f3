package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

// metrics counts answers by route and status, and refusals by problem code. There are few of each,
// so callers can't make the maps grow.
type metrics struct {
	mu        sync.Mutex
	answers   map[answerKey]*answerCount
	durations map[string]*histogram // by route
	refusals  map[string]int64      // by problem code
	history   [minuteSnapshots]snapshot
	next      int // index in history of the next snapshot
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

// durationBounds are the upper bounds of the buckets of a histogram.
var durationBounds = [...]time.Duration{
	time.Millisecond / 4, time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond,
	100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 10 * time.Second,
}

// A histogram counts durations by the first of durationBounds that is not below them; the last count
// is of those above all.
type histogram struct {
	counts [len(durationBounds) + 1]int64
	sum    time.Duration
}

// A snapshot is what was counted up to a moment, by the steady clock.
type snapshot struct {
	at       time.Time
	answers  map[answerKey]int64
	refusals map[string]int64
}

// minuteSnapshots is how many snapshots are kept: one a second, for a minute.
const minuteSnapshots = 61

// count adds an answer that took duration.
func (m *metrics) count(route string, status int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers, m.durations = map[answerKey]*answerCount{}, map[string]*histogram{}
	}
	key := answerKey{route, status}
	c := m.answers[key]
	if c == nil {
		c = &answerCount{}
		m.answers[key] = c
	}
	c.number++
	c.duration += took
	h := m.durations[route]
	if h == nil {
		h = &histogram{}
		m.durations[route] = h
	}
	i := 0
	for i < len(durationBounds) && took > durationBounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += took
}

// countRefusal adds an answer with the problem of that code.
func (m *metrics) countRefusal(code string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusals == nil {
		m.refusals = map[string]int64{}
	}
	m.refusals[code]++
}

// untilNow returns what was counted up to now. Its caller holds the lock.
func (m *metrics) untilNow(now time.Time) snapshot {
	s := snapshot{now, map[answerKey]int64{}, maps.Clone(m.refusals)}
	for key, c := range m.answers {
		s.answers[key] = c.number
	}
	return s
}

// keepSnapshot keeps what was counted up to now, for lastMinute. It is called once a second.
func (m *metrics) keepSnapshot(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.history[m.next] = m.untilNow(now)
	m.next = (m.next + 1) % len(m.history)
}

// lastMinute returns what was counted in the minute before now, or since the start if that is less,
// and all refusals since the start.
func (m *metrics) lastMinute(now time.Time) (answers map[answerKey]int64, refusals, all map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var before snapshot // the latest that is a minute old
	for _, s := range m.history {
		if !s.at.IsZero() && now.Sub(s.at) >= time.Minute && s.at.After(before.at) {
			before = s
		}
	}
	current := m.untilNow(now)
	all = maps.Clone(current.refusals)
	return countedSince(current.answers, before.answers), countedSince(current.refusals, before.refusals), all
}

// countedSince takes what was counted before from counts and returns those that are not 0 then.
func countedSince[K comparable](counts, before map[K]int64) map[K]int64 {
	for key, n := range before {
		counts[key] -= n
	}
	maps.DeleteFunc(counts, func(_ K, n int64) bool { return n == 0 })
	return counts
}

// samples returns the lines of the metrics that are counted by route, status or code, without the
// names of their families.
func (m *metrics) samples() (answers, seconds, durations, refusals []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, c := range m.answers {
		labels := fmt.Sprintf(`{route=%q,status="%d"}`, key.route, key.status)
		answers = append(answers, fmt.Sprintf("%s %d", labels, c.number))
		seconds = append(seconds, fmt.Sprintf("%s %g", labels, c.duration.Seconds()))
	}
	for _, route := range slices.Sorted(maps.Keys(m.durations)) {
		h, n := m.durations[route], int64(0)
		for i, bound := range durationBounds {
			n += h.counts[i]
			durations = append(durations, fmt.Sprintf(`_bucket{route=%q,le="%g"} %d`, route, bound.Seconds(), n))
		}
		n += h.counts[len(durationBounds)]
		durations = append(durations, fmt.Sprintf(`_bucket{route=%q,le="+Inf"} %d`, route, n),
			fmt.Sprintf(`_sum{route=%q} %g`, route, h.sum.Seconds()), fmt.Sprintf(`_count{route=%q} %d`, route, n))
	}
	for code, n := range m.refusals {
		refusals = append(refusals, fmt.Sprintf(`{code=%q} %d`, code, n))
	}
	slices.SortFunc(answers, cmp.Compare)
	slices.SortFunc(seconds, cmp.Compare)
	slices.SortFunc(refusals, cmp.Compare)
	return answers, seconds, durations, refusals
}

// A metric is one family of metrics of a wing.
type metric struct {
	name, kind, help string          // kind is counter or gauge
	samples          func() []string // its lines without its name: " 3", or `{state="enabled"} 3`
}

// writeMetrics writes all metrics in the text format of Prometheus (version 0.0.4).
func (s *server) writeMetrics(w io.Writer) {
	family := func(name, kind, help string, samples ...string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, sample := range samples {
			fmt.Fprintf(w, "%s%s\n", name, sample)
		}
	}
	counter := func(name, help string, n int64) { family(name, "counter", help, fmt.Sprintf(" %d", n)) }
	gauge := func(name, help string, n int64) { family(name, "gauge", help, fmt.Sprintf(" %d", n)) }
	answers, seconds, durations, refusals := s.metrics.samples()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	family("widgetd_build_info", "gauge", "The version of the program; always 1.",
		fmt.Sprintf(`{version=%q} 1`, buildName()))
	family("widgetd_requests_total", "counter", "Requests answered, by route and status.", answers...)
	family("widgetd_request_seconds_total", "counter", "Seconds spent answering requests.", seconds...)
	family("widgetd_request_duration_seconds", "histogram", "How long answers took, by route.", durations...)
	family("widgetd_refusals_total", "counter", "Requests answered with a problem, by its code.", refusals...)
	counter("widgetd_commits_total", "Transactions committed to the database.", s.store.commits.Load())
	counter("widgetd_writes_total", "Writes that these transactions contained.", s.store.committedJobs.Load())
	gauge("widgetd_writes_waiting", "Writes queued for the next transaction.", int64(len(s.store.jobs)))
	gauge("widgetd_database_bytes", "Size of the database file in bytes.", s.store.databaseSize())
	gauge("widgetd_log_bytes", "Size of the write-ahead log in bytes.", s.store.walSize())
	family("widgetd_buckets", "gauge", "Rate limit buckets in memory, by accounts and by addresses.",
		fmt.Sprintf(`{limit="account"} %d`, s.accountBuckets.len()),
		fmt.Sprintf(`{limit="address"} %d`, s.addressBuckets.len()))
	for _, m := range s.wingMetrics {
		family(m.name, m.kind, m.help, m.samples()...)
	}
	gauge("go_goroutines", "Goroutines that exist.", int64(runtime.NumGoroutine()))
	gauge("go_heap_bytes", "Bytes of allocated heap objects.", int64(mem.HeapAlloc))
	gauge("go_sys_bytes", "Bytes of memory obtained from the operating system.", int64(mem.Sys))
}
