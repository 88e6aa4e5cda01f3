package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// metrics counts answers by route and status, refusals by problem code, and who calls. Of the former there are few, so
// callers can't make the maps grow. It counts maxCallers one by one, in some 400 bytes each, and all others together.
type metrics struct {
	mu       sync.Mutex
	began    time.Time // of the first step, by the steady clock
	answers  map[answerKey]*answerCount
	refusals map[string]*recentCount
	callers  map[callerKey]*recentCount
	others   recentCount
	cleared  int64 // the step in which callers that were quiet for an hour were last removed
}

type answerKey struct {
	route  string // as in the route table: "POST /widget/leads"; "" if none matched
	status int
}

// An answerCount is how many answers there were, and how long they took: all together, and how many of them by the
// first of durationBounds that is not below; the last is of those above all bounds.
type answerCount struct {
	recentCount
	took   time.Duration
	within [len(durationBounds) + 1]int64
}

// durationBounds are the upper bounds of the buckets of a histogram.
var durationBounds = [...]time.Duration{
	time.Millisecond / 4, time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond,
	100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 10 * time.Second,
}

const (
	maxCallers     = 2000
	recentStep     = 10 * time.Second
	stepsPerMinute = int64(time.Minute / recentStep)
	recentMinutes  = 60
)

// A recentCount is how often something happened since the start, and in each of the last steps and minutes.
type recentCount struct {
	all     int64
	step    int64 // of the last time
	steps   [stepsPerMinute]uint32
	minutes [recentMinutes]uint32
}

// moveTo clears the counts of the steps and minutes that have begun since the last call.
func (c *recentCount) moveTo(step int64) {
	for i := max(c.step, step-stepsPerMinute) + 1; i <= step; i++ {
		c.steps[i%stepsPerMinute] = 0
	}
	minute := step / stepsPerMinute
	for i := max(c.step/stepsPerMinute, minute-recentMinutes) + 1; i <= minute; i++ {
		c.minutes[i%recentMinutes] = 0
	}
	c.step = max(c.step, step)
}

// add counts that it happened in a step.
func (c *recentCount) add(step int64) {
	c.moveTo(step)
	c.all++
	c.steps[step%stepsPerMinute]++
	c.minutes[step/stepsPerMinute%recentMinutes]++
}

// sums returns how often it happened in the minute and in the hour before a step.
func (c *recentCount) sums(step int64) (minute, hour int64) {
	c.moveTo(step)
	for _, n := range c.steps {
		minute += int64(n)
	}
	for _, n := range c.minutes {
		hour += int64(n)
	}
	return minute, hour
}

// stepAt returns the number of the step at now. The caller holds mu.
func (m *metrics) stepAt(now time.Time) int64 {
	if m.answers == nil {
		m.began, m.answers = now, map[answerKey]*answerCount{}
		m.refusals, m.callers = map[string]*recentCount{}, map[callerKey]*recentCount{}
	}
	return int64(now.Sub(m.began) / recentStep)
}

// count adds an answer at now, to whom, and how long it took.
func (m *metrics) count(route string, status int, took time.Duration, to callerKey, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step, key := m.stepAt(now), answerKey{route, status}
	m.callerAt(to, step).add(step)
	c := m.answers[key]
	if c == nil {
		c = &answerCount{}
		m.answers[key] = c
	}
	c.add(step)
	c.took += took
	i, _ := slices.BinarySearch(durationBounds[:], took)
	c.within[i]++
}

// callerAt returns the count of a caller, or of all others if there is no room.
func (m *metrics) callerAt(who callerKey, step int64) *recentCount {
	found := m.callers[who]
	if found != nil {
		return found
	}
	if len(m.callers) >= maxCallers && m.cleared < step {
		m.cleared = step
		maps.DeleteFunc(m.callers, func(_ callerKey, old *recentCount) bool {
			return step-old.step >= recentMinutes*stepsPerMinute
		})
	}
	if len(m.callers) >= maxCallers {
		return &m.others
	}
	m.callers[who] = &recentCount{step: step}
	return m.callers[who]
}

// countRefusal adds an answer with the problem of that code at now.
func (m *metrics) countRefusal(code string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.stepAt(now)
	if m.refusals[code] == nil {
		m.refusals[code] = &recentCount{}
	}
	m.refusals[code].add(step)
}

// lastMinute returns what was answered in the minute before now, and refused then and since the start, each the most
// first.
func (m *metrics) lastMinute(now time.Time) (answers []routeCount, refusals []refusalCount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.stepAt(now)
	for key, c := range m.answers {
		if n, _ := c.sums(step); n > 0 {
			answers = append(answers, routeCount{cmp.Or(key.route, noRoute), key.status, n})
		}
	}
	for code, c := range m.refusals {
		n, _ := c.sums(step)
		refusals = append(refusals, refusalCount{code, n, c.all})
	}
	arrange(answers, func(a, b *routeCount) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Route, b.Route), a.Status-b.Status)
	})
	arrange(refusals, func(a, b *refusalCount) int {
		return cmp.Or(cmp.Compare(b.SinceStart, a.SinceStart), strings.Compare(a.Code, b.Code))
	})
	return answers, refusals
}

// dayCounts returns how many answers there were since the start, by names in daily_counts. Health is left out, which
// those who watch ask for all day long.
func (m *metrics) dayCounts() map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]int64{}
	for key, c := range m.answers {
		if key.route == "GET /widget/health" {
			continue
		}
		if key.route == "POST /widget/license/verify" && key.status == http.StatusOK {
			counts[countVerified] += c.all
		}
		if key.status >= 400 {
			status := key.status
			if !slices.Contains(refusedStatuses, status) {
				status = 0
			}
			counts[fmt.Sprintf(countRefused, status)] += c.all
		}
		for i, n := range c.within {
			bound := 2 * durationBounds[len(durationBounds)-1] // above all
			if i < len(durationBounds) {
				bound = durationBounds[i]
			}
			counts[fmt.Sprintf(countWithin, bound.Microseconds())] += n
		}
	}
	return counts
}

// A routeCount is how many requests to a route were answered with a status in the last minute.
type routeCount struct {
	Route    string `json:"route"`
	Status   int    `json:"status"`
	Requests int64  `json:"requests"`
}

// A refusalCount is how many requests were answered with a problem.
type refusalCount struct {
	Code       string `json:"code"`
	LastMinute int64  `json:"last_minute"`
	SinceStart int64  `json:"since_start"`
}

// A callerKey is an account and its client: the client_id of a token, or what else the request was charged as. The
// zero value stands for requests without either.
type callerKey struct{ account, client string }

// The clients of requests without a token of an account, besides those that are named like the bucket they are
// charged to.
const (
	clientAnonymous = "anonymous"
	clientDevices   = "devices" // with device tokens
	clientOthers    = "others"  // those that are not counted one by one
)

// callerOf returns who is counted as having sent a call.
func callerOf(c *call) callerKey {
	switch {
	case c.bearer != nil && c.bearer.claims.isDevice():
		return callerKey{c.bearer.claims.Subject, clientDevices}
	case c.bearer != nil:
		return callerKey{c.bearer.claims.Subject, c.bearer.claims.ClientID}
	case c.account != "":
		return callerKey{c.account, cmp.Or(c.route.bucket, clientAnonymous)}
	}
	return callerKey{}
}

// A callerRow is how many requests a caller has sent.
type callerRow struct {
	AccountID  string `json:"account_id,omitempty"`
	Account    string `json:"account,omitempty"` // its name
	Client     string `json:"client"`
	LastMinute int64  `json:"last_minute"`
	LastHour   int64  `json:"last_hour"`
}

// mostCallers returns the callers with the most requests in the hour before now, the most first, and last what all
// others have sent together; no more than limit.
func (m *metrics) mostCallers(now time.Time, limit int) (all []callerRow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.stepAt(now)
	for who, n := range m.callers {
		if minute, hour := n.sums(step); hour > 0 {
			all = append(all, callerRow{AccountID: who.account, Client: cmp.Or(who.client, clientAnonymous),
				LastMinute: minute, LastHour: hour})
		}
	}
	arrange(all, func(a, b *callerRow) int {
		return cmp.Or(cmp.Compare(b.LastHour, a.LastHour), cmp.Compare(b.LastMinute, a.LastMinute),
			strings.Compare(a.AccountID, b.AccountID), strings.Compare(a.Client, b.Client))
	})
	rest := callerRow{Client: clientOthers}
	if rest.LastMinute, rest.LastHour = m.others.sums(step); rest.LastHour > 0 || len(all) > limit {
		kept := min(len(all), limit-1)
		for _, row := range all[kept:] {
			rest.LastMinute += row.LastMinute
			rest.LastHour += row.LastHour
		}
		all = append(all[:kept], rest)
	}
	return all
}

// A metric is one family of metrics of a wing.
type metric struct {
	name, kind, help string          // kind is counter or gauge
	samples          func() []string // its lines without its name: " 3", or `{state="enabled"} 3`
}

// metricsFor is how long the page of metrics is served before they are read again, however many ask for it.
const metricsFor = 5 * time.Second

// metricsPage returns the handler of the metrics.
func (s *server) metricsPage() http.HandlerFunc {
	var mu sync.Mutex
	var page bytes.Buffer
	var at time.Time
	return func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		if !closerThan(metricsFor, at, s.steady()) {
			page.Reset()
			s.writeMetrics(&page)
			at = s.steady()
		}
		text := bytes.Clone(page.Bytes())
		mu.Unlock()
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		w.Write(text) // fails only when the client has gone
	}
}

// healthSample returns the state of health as labels. The reason is one of the closed list of healthReport, without
// how long it has lasted.
func (s *server) healthSample() string {
	report := s.reportOf(s.lastHealth())
	reason, _, _ := strings.Cut(report.Output, " for ")
	return fmt.Sprintf(`{status=%q,reason=%q} 1`, report.Status, reason)
}

// samples returns the lines of the metrics that are counted by route, status or code, without the names of their
// families.
func (m *metrics) samples() (answers, seconds, durations, refusals []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	routes := map[string]answerCount{}
	for key, c := range m.answers {
		labels := fmt.Sprintf(`{route=%q,status="%d"}`, key.route, key.status)
		answers = append(answers, fmt.Sprintf("%s %d", labels, c.all))
		seconds = append(seconds, fmt.Sprintf("%s %g", labels, c.took.Seconds()))
		sum := routes[key.route]
		sum.took += c.took
		for i, n := range c.within {
			sum.within[i] += n
		}
		routes[key.route] = sum
	}
	for _, route := range slices.Sorted(maps.Keys(routes)) {
		c, n := routes[route], int64(0)
		for i, within := range c.within {
			bound := "+Inf"
			if n += within; i < len(durationBounds) {
				bound = fmt.Sprintf("%g", durationBounds[i].Seconds())
			}
			durations = append(durations, fmt.Sprintf(`_bucket{route=%q,le=%q} %d`, route, bound, n))
		}
		durations = append(durations, fmt.Sprintf(`_sum{route=%q} %g`, route, c.took.Seconds()),
			fmt.Sprintf(`_count{route=%q} %d`, route, n))
	}
	for code, c := range m.refusals {
		refusals = append(refusals, fmt.Sprintf(`{code=%q} %d`, code, c.all))
	}
	slices.Sort(answers)
	slices.Sort(seconds)
	slices.Sort(refusals)
	return answers, seconds, durations, refusals
}

// freeDisk returns how many bytes are free for the database.
func (s *server) freeDisk() []string {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(s.store.path), &disk); err != nil {
		return nil
	}
	return []string{fmt.Sprintf(" %d", disk.Bavail*uint64(disk.Bsize))}
}

// residentMemory returns how many bytes of memory the process has (proc_pid_statm(5)).
func residentMemory() []string {
	var size, resident int
	text, _ := os.ReadFile("/proc/self/statm")
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return nil
	}
	return []string{fmt.Sprintf(" %d", resident*os.Getpagesize())}
}

// oneIf is 1 for true.
var oneIf = map[bool]int{true: 1}

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
	family("widgetd_health", "gauge", "How the service is, and why it is not pass; always 1.", s.healthSample())
	family("widgetd_clock_doubted", "gauge", "Whether what time brings about waits since the clock may be wrong.",
		fmt.Sprintf(" %d", oneIf[s.compareClock(s.readClocks()) != ""]))
	family("widgetd_disk_free_bytes", "gauge", "Bytes that are free for the database.", s.freeDisk()...)
	failing, _ := s.outbound.reach.failing()
	family("widgetd_calls_failing", "gauge", "Whether most calls to different hosts fail alike, and how.",
		fmt.Sprintf(`{why=%q} %d`, failing, oneIf[failing != ""]))
	family("process_start_time_seconds", "gauge", "When the service was started, in Unix seconds.",
		fmt.Sprintf(" %d", s.startedAt.Unix()))
	family("process_resident_memory_bytes", "gauge", "Bytes of memory that the process has.", residentMemory()...)
	for _, m := range s.wingMetrics {
		family(m.name, m.kind, m.help, m.samples()...)
	}
	gauge("go_goroutines", "Goroutines that exist.", int64(runtime.NumGoroutine()))
	gauge("go_heap_bytes", "Bytes of allocated heap objects.", int64(mem.HeapAlloc))
	gauge("go_sys_bytes", "Bytes of memory obtained from the operating system.", int64(mem.Sys))
}
