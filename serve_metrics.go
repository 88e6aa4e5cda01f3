package main

import (
	"bytes"
	"cmp"
	"errors"
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

// metrics counts answers by route and status, and refusals by problem code. There are few of each,
// so callers can't make the maps grow.
type metrics struct {
	mu           sync.Mutex
	answers      map[answerKey]answerCount
	durations    map[string]histogram // by route
	refusals     map[string]int64     // by problem code
	lastAnswers  recentCounts[answerKey]
	lastRefusals recentCounts[string]
	callers      recentCounts[callerKey]
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
// is of those above all bounds.
type histogram struct {
	counts [len(durationBounds) + 1]int64
	sum    time.Duration
}

// recentCounts counts by some key what happened in the last minute, in steps of ten seconds, and in the last hour, in
// minutes. It counts maxRecent keys one by one, in some 500 bytes each, and all others together.
type recentCounts[K comparable] struct {
	began   time.Time // of the first step, by the steady clock
	counts  map[K]*recentCount
	others  recentCount
	cleared int64 // the step in which those that were quiet for an hour were last removed
}

const (
	maxRecent      = 2000
	recentStep     = 10 * time.Second
	stepsPerMinute = int64(time.Minute / recentStep)
	recentMinutes  = 60
)

// A recentCount is how often something happened in each of the last steps and minutes.
type recentCount struct {
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

// stepAt returns the number of the step at now.
func (c *recentCounts[K]) stepAt(now time.Time) int64 { return int64(now.Sub(c.began) / recentStep) }

// add counts that something happened at now.
func (c *recentCounts[K]) add(key K, now time.Time) {
	if c.counts == nil {
		c.counts, c.began = map[K]*recentCount{}, now
	}
	step := c.stepAt(now)
	found := c.counts[key]
	if found == nil {
		if len(c.counts) >= maxRecent && c.cleared < step {
			c.cleared = step
			maps.DeleteFunc(c.counts, func(_ K, old *recentCount) bool {
				return step-old.step >= recentMinutes*stepsPerMinute
			})
		}
		if found = &c.others; len(c.counts) < maxRecent {
			found = &recentCount{step: step}
			c.counts[key] = found
		}
	}
	found.moveTo(step)
	found.steps[step%stepsPerMinute]++
	found.minutes[step/stepsPerMinute%recentMinutes]++
}

// lastMinute returns the counts of the minute before now.
func (c *recentCounts[K]) lastMinute(now time.Time) map[K]int64 {
	counts := map[K]int64{}
	for key, n := range c.counts {
		if minute, _ := n.sums(c.stepAt(now)); minute > 0 {
			counts[key] = minute
		}
	}
	return counts
}

// count adds an answer at now, to whom, and how long it took.
func (m *metrics) count(route string, status int, took time.Duration, to callerKey, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastAnswers.add(answerKey{route, status}, now)
	m.callers.add(to, now)
	if m.answers == nil {
		m.answers, m.durations = map[answerKey]answerCount{}, map[string]histogram{}
	}
	key := answerKey{route, status}
	c, h := m.answers[key], m.durations[route]
	m.answers[key] = answerCount{c.number + 1, c.duration + took}
	i, _ := slices.BinarySearch(durationBounds[:], took)
	h.counts[i]++
	h.sum += took
	m.durations[route] = h
}

// countRefusal adds an answer with the problem of that code at now.
func (m *metrics) countRefusal(code string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastRefusals.add(code, now)
	if m.refusals == nil {
		m.refusals = map[string]int64{}
	}
	m.refusals[code]++
}

// lastMinute returns what was counted in the minute before now, and all refusals since the start.
func (m *metrics) lastMinute(now time.Time) (answers map[answerKey]int64, refusals, all map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastAnswers.lastMinute(now), m.lastRefusals.lastMinute(now), maps.Clone(m.refusals)
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
	slices.Sort(answers)
	slices.Sort(seconds)
	slices.Sort(refusals)
	return answers, seconds, durations, refusals
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
	step := m.callers.stepAt(now)
	add := func(who callerKey, n *recentCount) {
		if minute, hour := n.sums(step); hour > 0 {
			all = append(all, callerRow{AccountID: who.account, Client: cmp.Or(who.client, clientAnonymous),
				LastMinute: minute, LastHour: hour})
		}
	}
	for who, n := range m.callers.counts {
		add(who, n)
	}
	slices.SortFunc(all, func(a, b callerRow) int {
		return cmp.Or(cmp.Compare(b.LastHour, a.LastHour), cmp.Compare(b.LastMinute, a.LastMinute),
			strings.Compare(a.AccountID, b.AccountID), strings.Compare(a.Client, b.Client))
	})
	add(callerKey{client: clientOthers}, &m.callers.others)
	if len(all) > limit {
		rest := callerRow{Client: clientOthers}
		for _, row := range all[limit-1:] {
			rest.LastMinute += row.LastMinute
			rest.LastHour += row.LastHour
		}
		all = append(all[:limit-1], rest)
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

// What the log says about requests that were refused, and about faults that last: a count once a
// minute, or a line at the beginning and one at the end. With a line for each request, a
// caller that sends many could fill the disk.

const (
	noticeInterval = time.Minute      // between two log lines of one kind of notice
	maxNamed       = 20               // names that one such line lists; the others are counted together
	faultQuiet     = 10 * time.Second // a fault that has not happened for so long may be over
)

// The kinds of notices, which are the texts of their log lines.
const (
	noticeOrigins = "origins were refused"
	noticeRates   = "requests were over a rate limit"
	noticeBusy    = "requests failed since another program has locked the database"
	noticeTokens  = "tokens were refused"
)

// notices counts refusals by kind and name. The kinds are a closed list, and each remembers at most
// maxNamed names, so that callers can't make it grow.
type notices struct {
	mu    sync.Mutex
	kinds map[string]*notice
}

// A notice is what was counted of one kind since its last log line.
type notice struct {
	times    int64
	names    map[string]int64
	loggedAt time.Time // by the steady clock; zero: never
}

// add counts one refusal of a kind under a name, such as an origin or an account.
func (n *notices) add(kind, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.kinds[kind]
	if k == nil {
		k = &notice{names: map[string]int64{}}
		n.kinds[kind] = k
	}
	k.times++
	if _, known := k.names[name]; known || len(k.names) < maxNamed {
		k.names[name]++
	}
}

// text returns the names with their counts, the highest count first: "https://a.example 3, others 2".
func (k *notice) text() string {
	type named struct {
		name  string
		times int64
	}
	all, rest := []named{}, k.times
	for name, times := range k.names {
		all = append(all, named{name, times})
		rest -= times
	}
	slices.SortFunc(all, func(a, b named) int {
		return cmp.Or(cmp.Compare(b.times, a.times), strings.Compare(a.name, b.name))
	})
	if rest > 0 {
		all = append(all, named{"others", rest})
	}
	parts := []string{}
	for _, n := range all {
		parts = append(parts, fmt.Sprintf("%s %d", n.name, n.times))
	}
	return strings.Join(parts, ", ")
}

// logNotices writes a log line for each kind with new notices that has had none for
// noticeInterval; at the stop, for each with new notices.
func (s *server) logNotices(stopping bool) {
	now, n := s.steady(), &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	for kind, k := range n.kinds {
		if k.times > 0 && (stopping || !closerThan(noticeInterval, k.loggedAt, now)) {
			s.log.Warn(kind, "times", k.times, "by", k.text())
			*k = notice{names: map[string]int64{}, loggedAt: now}
		}
	}
}

// noteRefusal counts a request that is answered with a problem. err is what the request's handling
// returned, from which ref was made.
func (s *server) noteRefusal(w *response, r *http.Request, ref *refusal, err error) {
	s.metrics.countRefusal(ref.code.name, s.steady())
	switch ref.code {
	case codeOrigin:
		s.notices.add(noticeOrigins, originName(r))
	case codeRateLimited:
		s.notices.add(noticeRates, cmp.Or(w.account, "address"))
	case codeBusy:
		s.notices.add(noticeBusy, cmp.Or(w.pattern, noRoute))
	case codeInvalidToken:
		reason := "other"
		var refused *refusedToken
		if errors.As(err, &refused) {
			reason = refused.reason
		}
		s.notices.add(noticeTokens, reason)
	case codeStorageFull:
		s.noteFault(faultDiskFull, err, "request_id", w.requestID, "route", w.pattern)
	case codeStorage:
		if error(ref) != err { // else the service is stopping
			s.noteFault(faultStorage, err, "request_id", w.requestID, "route", w.pattern)
		}
	}
}

// originName returns the name under which a refused Origin is counted: the origin in its normal
// form, or why it has none.
func originName(r *http.Request) string {
	values := r.Header["Origin"]
	if len(values) == 0 {
		return "none sent"
	}
	origin, err := parseOrigin(values[0])
	switch {
	case len(values) == 1 && err == nil:
		return origin
	case len(values) == 1 && values[0] == "null":
		return "null"
	}
	return "malformed"
}

// The names of the faults that requests meet, and of that of the key file. Chores name their own (chore.fault).
const (
	faultDiskFull = "the disk is full, so nothing is written"
	faultStorage  = "the database can't be used"
	faultKeyFile  = "the key file can't be used: the keys loaded before stay in use"
)

// lastingFaults are the faults that are not over, by the text of their first log line, one of a closed list.
type lastingFaults struct {
	mu   sync.Mutex
	open map[string]*lastingFault
}

// A lastingFault is one that is not over yet.
type lastingFault struct {
	began, last time.Time // by the steady clock
	times       int64
	lastError   string
	commits     int64 // of the database, when it happened last
}

// noteFault counts a fault, and logs it with attrs if it was not there before. It is over, which is
// logged too, when it has not happened for faultQuiet and the database has been written since.
func (s *server) noteFault(name string, err error, attrs ...any) {
	now, f := s.steady(), &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	open := f.open[name]
	if open == nil {
		s.log.Warn(name, append([]any{"error", err.Error()}, attrs...)...)
		open = &lastingFault{began: now}
		f.open[name] = open
	}
	open.times++
	open.last, open.lastError, open.commits = now, err.Error(), s.store.commits.Load()
}

// any reports whether there is a fault that is not over yet.
func (f *lastingFaults) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open) > 0
}

// reviewFaults logs which faults are over. While there are any, it has health write to the database, so
// that their end is noticed even if nobody calls. At the stop it logs those that are left.
func (s *server) reviewFaults(stopping bool) {
	f := &s.faults
	if !f.any() {
		return
	}
	s.checkHealth()
	now := s.steady()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, open := range f.open {
		over := !closerThan(faultQuiet, open.last, now) && s.store.commits.Load() > open.commits
		if !over && !stopping {
			continue
		}
		prefix := "over: "
		if !over {
			prefix = "not over at the stop: "
		}
		s.log.Info(prefix+name, "times", open.times, "lasted", open.last.Sub(open.began).String(),
			"last_error", open.lastError)
		delete(f.open, name)
	}
}
