package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// healthNoun declares the health of the service.
func healthNoun() noun {
	return noun{name: "health", modules: func(s *server) []module { return []module{healthModule(s), daysModule(s)} },
		troubles: slices.Concat(serviceTroubles, statusTroubles)}
}

// healthRoute is the route of health.
const healthRoute = "GET /widget/health"

func healthModule(s *server) module {
	return module{
		// Nothing is refused since no query is read; a release that read it has told clients of the 422.
		routes: []route{{pattern: healthRoute, free: true, noQuery: true, refuses: "validation_failed",
			answers:  answerForm{media: "application/health+json", also: 503},
			endpoint: answeringWith[healthReport](admitted(s, readNoMembers, s.getHealth))}},
		roots: []rootPath{{path: "/livez", serve: s.getLiveness, answers: answerForm{media: "text/plain"},
			endpoint: servedBy[string](s.getLiveness)}},
	}
}

const (
	healthInterval   = time.Second     // least time between two probes, however many callers ask
	healthWait       = 2 * time.Second // callers wait until a probe has run for so long, and then health warns
	maxHealthCallers = 1000            // of them at a time; others get what is known
)

// A healthCheck keeps the result of the last probe of the database, a read and a write, for all
// callers until the next probe.
type healthCheck struct {
	mu      sync.Mutex
	running chan struct{} // closed when the running probe ends; nil: none runs
	began   time.Time     // when that has begun
	callers int           // who wait for it
	at      time.Time     // when the last probe ended
	took    time.Duration // how long it took
	err     error         // its result
	proof   *proof        // what that has read of restoring; nil: none is due
	waiting time.Time     // when the first probe began that has waited for the write lock since; zero: none has
}

// A healthReport is whether the service can do its work (draft-inadarei-api-health-check-06).
type healthReport struct {
	Status    healthStatus `json:"status"`           // The worst of what was found.
	Version   string       `json:"version"`          // The version in the path.
	ReleaseID string       `json:"releaseId"`        // Which build runs.
	Output    string       `json:"output,omitempty"` // Why the status is not `pass`; absent when it is.

	// `true` of the standby of a pair of machines, which answers nothing else; otherwise absent.
	Standby bool `json:"standby,omitempty"`

	// What was observed: `sqlite:responseTime`, and `sqlite:logSize` while the write-ahead log is large.
	Checks map[string][]healthProbe `json:"checks"`
}

// A healthProbe is one observation of the health of a part.
type healthProbe struct {
	ComponentType string       `json:"componentType"`           // Always `datastore`.
	ObservedValue int64        `json:"observedValue" least:"-"` // The value.
	ObservedUnit  string       `json:"observedUnit"`            // Its unit, `ms` or `bytes`.
	Status        healthStatus `json:"status"`                  // Of this component.
	Time          stamp        `json:"time"`                    // When, or null: nothing was observed yet.
	Output        string       `json:"output,omitempty"`        // Why the status is not `pass`; absent when it is.
}

// A healthStatus is how well something works. `warn`: it works, with trouble. `fail`: it can't do its work.
// Damage of the database that a request or a worker has met is `fail` if a write met it, else `warn`, until the
// operator has checked the file or started the service again.
type healthStatus string

var _ = declareWords[healthStatus](healthPass, healthWarn, healthFail)

const (
	healthPass = "pass"
	healthWarn = "warn"
	healthFail = "fail"
)

// Ask for health.
//
// Tells whether the service can do its work: it reads and writes the database, at most once a second however many ask.
// `warn` is 200 too, and `fail` is 503. Never limited or charged.
func (s *server) getHealth(_ context.Context, _ *call, _ noMembers) (*reply, error) {
	report, status := s.healthReport(), http.StatusOK
	if report.Status == healthFail {
		status = http.StatusServiceUnavailable
	}
	return &reply{status: status, body: encodeJSON(report),
		headers: []header{{"Content-Type", "application/health+json"}}}, nil
}

// healthReport returns what GET /widget/health answers. The status is pass; warn while another program holds
// the write lock, the WAL is larger than maxWAL, the key file can't be used or the clock is not taken for
// right; fail when the database can't be read or written, when it has been locked for as long as a write waits,
// or while the service stops. Damage that a request or a worker has met is fail if a write met it, else warn, until
// 'widgetd check' passes or the service is started again. Its output, the reason why it does not pass, is
// one of a closed list of sentences, so it never contains a path or SQL.
func (s *server) healthReport() *healthReport {
	return s.reportOf(s.checkHealth())
}

// reportOf returns the report of the database's health and of every other trouble that health tells of: the first that
// fails or, if none does, the first that warns.
func (s *server) reportOf(found *healthProbe) *healthReport {
	now := s.store.machineState()
	if now.role == roleStandby {
		return &healthReport{Status: healthFail, Version: "1", ReleaseID: buildName(), Output: now.reason,
			Standby: true, Checks: map[string][]healthProbe{}}
	}
	report := &healthReport{Status: healthPass, Version: "1", ReleaseID: buildName(),
		Checks: map[string][]healthProbe{"sqlite:responseTime": {*found}}}
	if size := s.store.walSize(); size > s.store.maxWAL {
		report.Checks["sqlite:logSize"] = []healthProbe{
			{"datastore", size, "bytes", healthWarn, newStamp(s.now()), s.walReason()}}
	}
	for _, t := range s.kinds {
		if t.health == "" || report.Status == healthFail || report.Status == t.health {
			continue
		}
		if f, err := t.inService(s); err == nil && f.Count > 0 {
			report.Status, report.Output = t.health, f.What
		}
	}
	return report
}

// What requests and workers have met, until a check passes or the service is started again.
const (
	damageReadReason    = "a read has met damage in the database"
	damageWrittenReason = "a write has met damage in the database"
	rowsUnreadReason    = "a row of the database can't be read"
)

// Why the write-ahead log is large.
const (
	walLargeReason = "the write-ahead log is large: a transaction that another program keeps open " +
		"prevents its checkpoint"
	walLargeLitestreamReason = "the write-ahead log is large: Litestream does not checkpoint it"
)

// walReason says why the write-ahead log is large.
func (s *server) walReason() string {
	if s.store.noCheckpoints {
		return walLargeLitestreamReason
	}
	return walLargeReason
}

// checkHealth starts a probe of the database, unless one runs, the last one ended less than
// healthInterval ago, or the service is stopping. It waits for it until it has run for healthWait, and returns
// what is known then.
func (s *server) checkHealth() *healthProbe {
	h, now := &s.health, s.now()
	h.mu.Lock()
	if h.running == nil && !closerThan(healthInterval, h.at, now) && !s.draining.Load() &&
		!s.store.standsBy() {
		h.running, h.began = make(chan struct{}), now
		if h.waiting.IsZero() {
			h.waiting = now
		}
		done := h.running
		s.working.Go(func() { s.probeDatabase(now, done) })
	}
	running, left := h.running, min(healthWait, healthWait-now.Sub(h.began))
	waits := running != nil && h.callers < maxHealthCallers
	if waits {
		h.callers++
	}
	h.mu.Unlock()
	if waits {
		timer := time.NewTimer(left)
		select {
		case <-running:
		case <-timer.C:
		}
		timer.Stop()
		h.mu.Lock()
		h.callers--
		h.mu.Unlock()
	}
	return s.lastHealth()
}

// lastHealth returns what is known of the database without asking it: the last probe, or the one that has been waiting
// for healthWait, which fails from lockTimeout on.
func (s *server) lastHealth() *healthProbe {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	last := &healthProbe{"datastore", h.took.Milliseconds(), "ms", healthPass, newStamp(h.at), ""}
	if h.running == nil && h.err == nil {
		return last
	}
	if h.err != nil && !errors.Is(h.err, errBusy) {
		last.Status, last.Output = healthFail, storageReason(h.err)
		return last
	}
	now, locked := s.now(), s.store.lockedSince()
	since, reason := h.waiting, "a write has been waiting for %s ms"
	if h.err != nil || !locked.IsZero() {
		reason = "another program has held the write lock for %s ms"
	}
	if !locked.IsZero() && locked.Before(since) {
		since = locked
	}
	waited := now.Sub(since)
	if h.err == nil && waited < healthWait {
		return last
	}
	last.ObservedValue, last.Time, last.Status = waited.Milliseconds(), newStamp(now), healthWarn
	if waited >= s.store.lockTimeout {
		last.Status = healthFail
	}
	last.Output = fmt.Sprintf(reason, groupDigits(fmt.Sprint(waited.Milliseconds()), ","))
	return last
}

// probeDatabase reads and writes the database, records the result and closes done.
func (s *server) probeDatabase(start time.Time, done chan struct{}) {
	err := s.store.probe(context.Background())
	p, _ := s.store.wantedProof() // the probe tells whether it can be read
	if errors.Is(err, errStorage) || errors.Is(err, errStorageFull) {
		s.warnOfStorage(err)
	}
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.proof = s.now(), p
	if h.took, h.err, h.running = h.at.Sub(start), err, nil; !errors.Is(err, errBusy) {
		h.waiting = time.Time{}
	}
	close(done)
}

// Ask whether the process runs.
//
// Answers without the database: an answer says that the process runs and serves requests.
func (s *server) getLiveness(w *response, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s.write(w, reply{status: http.StatusOK, body: []byte("alive\n")})
}

// Whether the wall clock is right. It is compared with the latest time that the service took for right, which the
// database file keeps, plus the time that has passed since then by the monotonic clock.

// clockReadings are what two clocks show at one moment: the wall clock, which people
// and their programs set, and one that only measures time.
type clockReadings struct{ wall, monotonic time.Time }

func (s *server) readClocks() clockReadings { return clockReadings{s.now(), s.monotonic()} }

// clockAdjustment returns by how much the wall clock was set between two moments. Round(0) makes
// Sub compare the readings of the wall clock, not Go's monotonic ones.
func clockAdjustment(earlier, later clockReadings) time.Duration {
	return later.wall.Round(0).Sub(earlier.wall.Round(0)) - later.monotonic.Sub(earlier.monotonic)
}

// How far the clock may be ahead of the last time that was taken for right, unless the kernel or the operator
// confirms it.
const (
	clockTrusted   = time.Hour      // beyond that it is doubted: what can't be undone waits
	signingTrusted = 24 * time.Hour // beyond that nothing is signed either: a device trusts a signed iat for good

	clockJump = time.Minute     // within a second: more than a clock is ever slewed by
	clockWait = 2 * time.Second // for writing the time to the file
)

// A clockFault says why the wall clock is not taken for right; "": it is. Health shows it to everybody, so it is
// one of a closed list.
type clockFault string

const (
	clockBehind clockFault = "the clock is behind the time that the service saw last"
	clockAhead  clockFault = "the clock is more than an hour ahead of the time that the service saw last: " +
		"until it is known to be right, nothing expires, and nothing is removed or sent to books"
	clockFarAhead clockFault = "the clock is more than a day ahead of the time that the service saw last: " +
		"until it is known to be right, nothing expires, and nothing is removed, sent to books or signed"
)

const faultClock = "the time can't be written to the database"

// A clockWatch is what the wall clock is compared with.
type clockWatch struct {
	right atomic.Pointer[clockReadings] // when the wall clock was last taken for right; always set

	// The goroutine of the chores owns these.
	seen  stamp     // the time that the file has; zero: none
	tried time.Time // when the service last tried to write it, by the monotonic clock
}

// startClock sets what the clock is compared with: the time in the file or, if a new file has none, the clock
// itself. Faults of the clock count from then on.
func (s *server) startClock() {
	read := s.readClocks()
	seen, err := s.store.clockSeen()
	if err != nil {
		s.log.Warn("the time that the service saw last can't be read", "error", err)
	}
	if s.clock.seen = seen; !seen.IsZero() {
		read.wall = seen.Time
	}
	s.clock.right.Store(&read)
}

// compareClock compares what the clocks show with their readings when the wall clock was last taken for right. A
// clock that is ahead is right if the kernel says that it is synchronised. Any goroutine may call it.
func (s *server) compareClock(read clockReadings) clockFault {
	return judgeClock(clockAdjustment(*s.clock.right.Load(), read), s.synchronised)
}

// judgeClock says what is wrong with a clock that is so far ahead of the time that was taken for right. synchronised
// asks the kernel; nil: it never says so.
func judgeClock(ahead time.Duration, synchronised func() bool) clockFault {
	switch {
	case ahead <= -clockJump:
		return clockBehind
	case ahead <= clockTrusted || synchronised != nil && synchronised():
		return ""
	case ahead > signingTrusted:
		return clockFarAhead
	}
	return clockAhead
}

// clockDoubted reports whether what can't be undone must wait until the clock is known to be right.
func (s *server) clockDoubted() bool {
	fault := s.compareClock(s.readClocks())
	return fault == clockAhead || fault == clockFarAhead
}

// signingHeld reports whether the clock is too far ahead for anything to be signed with its time.
func (s *server) signingHeld() bool { return s.compareClock(s.readClocks()) == clockFarAhead }

// followClock takes the clock for right if compareClock finds no fault. If the file has another time than the
// service has seen there, the operator has accepted the clock, and it is compared with that. Else it warns.
func (s *server) followClock() {
	read := s.readClocks()
	fault := s.compareClock(read)
	if fault != "" {
		seen, err := s.store.clockSeen()
		if err == nil && !seen.IsZero() && !seen.Equal(s.clock.seen.Time) {
			s.clock.seen = seen
			s.clock.right.Store(&clockReadings{seen.Time, read.monotonic})
			fault = s.compareClock(read)
		}
	}
	if fault == "" {
		s.clock.right.Store(&read)
		return
	}
	s.log.Warn("the clock is not taken for right", "why", string(fault),
		"by", clockAdjustment(*s.clock.right.Load(), read).String())
}

// recordClock writes the time to the file if the clock is right, unless the file's time or the last try is less than
// later old. A failure is logged.
func (s *server) recordClock(ctx context.Context, later time.Duration) {
	read := s.readClocks()
	now := newStamp(read.wall)
	if s.store.fenced() || s.compareClock(read) != "" || now.Sub(s.clock.seen.Time) < later ||
		closerThan(later, s.clock.tried, read.monotonic) {
		return
	}
	s.clock.tried = read.monotonic
	bounded, cancel := context.WithTimeout(ctx, clockWait)
	defer cancel()
	err := s.store.update(bounded, func(t *tx) error {
		t.raiseClock(now)
		return nil
	})
	switch {
	case err == nil:
		s.clock.seen = now
	case ctx.Err() == nil:
		s.log.Warn(faultClock, "error", err)
	}
}

// kernelSynchronised reports whether the kernel says that something such as NTP keeps the clock right
// (adjtimex(2)). It returns false where the kernel may not be asked.
func kernelSynchronised() bool {
	const timeError, unsynchronised = 5, 0x40 // TIME_ERROR, STA_UNSYNC
	var answer syscall.Timex
	state, err := syscall.Adjtimex(&answer)
	return err == nil && state != timeError && answer.Status&unsynchronised == 0
}

// metrics counts answers by route and status, refusals by problem code, and who calls. Of the former there are few, so
// callers can't make the maps grow. It counts maxCallers one by one, in some 400 bytes each, and all others together.
type metrics struct {
	mu       sync.Mutex
	began    time.Time // of the first step, by the monotonic clock
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

// lastMinutes returns how often it happened in so many minutes up to a step, the minute that runs among them.
func (c *recentCount) lastMinutes(step, minutes int64) (n int64) {
	c.moveTo(step)
	for i := range minutes {
		n += int64(c.minutes[(step/stepsPerMinute+recentMinutes-i)%recentMinutes])
	}
	return n
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
	sort.Slice(answers, func(i, j int) bool {
		a, b := &answers[i], &answers[j]
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Route, b.Route), a.Status-b.Status) < 0
	})
	sort.Slice(refusals, func(i, j int) bool {
		a, b := &refusals[i], &refusals[j]
		return cmp.Or(cmp.Compare(b.SinceStart, a.SinceStart), strings.Compare(a.Code, b.Code)) < 0
	})
	return answers, refusals
}

// failing returns how many answers of the last five minutes were errors of the server (5xx), and of how many. Health is
// left out, whose 503 says what it finds.
func (m *metrics) failing(now time.Time) (failed, all int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.stepAt(now)
	for key, c := range m.answers {
		if key.route == healthRoute {
			continue
		}
		n := c.lastMinutes(step, 5)
		if all += n; key.status >= 500 {
			failed += n
		}
	}
	return failed, all
}

// dayCounts returns how many answers there were since the start, by names in daily_counts. Health is left out, which
// those who watch ask for all day long.
func (m *metrics) dayCounts() map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]int64{}
	for key, c := range m.answers {
		if key.route == healthRoute {
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
	case c.core.bearer != nil && c.core.bearer.claims.isDevice():
		return callerKey{c.core.bearer.claims.Subject, clientDevices}
	case c.core.bearer != nil:
		return callerKey{c.core.bearer.claims.Subject, c.core.bearer.claims.ClientID}
	case c.core.account != "":
		return callerKey{c.core.account, cmp.Or(c.core.route.bucket, clientAnonymous)}
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
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(b.LastHour, a.LastHour), cmp.Compare(b.LastMinute, a.LastMinute),
			strings.Compare(a.AccountID, b.AccountID), strings.Compare(a.Client, b.Client)) < 0
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

// A metric is one family of metrics of a module.
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
		if !closerThan(metricsFor, at, s.monotonic()) {
			page.Reset()
			s.writeMetrics(&page)
			at = s.monotonic()
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

// freeDisk returns how many bytes are free for the database, if that is known.
func (s *server) freeDisk() (bytes int64, known bool) {
	var disk syscall.Statfs_t
	err := syscall.Statfs(filepath.Dir(s.store.path), &disk)
	return int64(disk.Bavail) * disk.Bsize, err == nil
}

// residentMemory returns how many bytes of memory the process has (proc_pid_statm(5)).
func residentMemory() (bytes int64, known bool) {
	var size, resident int64
	text, _ := os.ReadFile("/proc/self/statm")
	_, err := fmt.Sscan(string(text), &size, &resident)
	return resident * int64(os.Getpagesize()), err == nil
}

// oneIf is 1 for true.
var oneIf = map[bool]int{true: 1}

// A countOfTroubles is how often there was each trouble when a service looked last.
type countOfTroubles struct {
	mu      sync.Mutex
	at      time.Time // by the monotonic clock
	samples []string
}

// troublesFor is how long the counts of troubles stand, since some are read from the database.
const troublesFor = time.Minute

// troubleSamples returns the metric of troubles: a sample for each that a service can find, unless it can't be read.
func (s *server) troubleSamples() []string {
	c := &s.troubles
	c.mu.Lock()
	defer c.mu.Unlock()
	if closerThan(troublesFor, c.at, s.monotonic()) {
		return c.samples
	}
	v, samples, unreadable := s.view(), []string{}, 0
	for _, t := range s.kinds {
		f, err := v.find(&t)
		if t.inService != nil && t.inFile == nil {
			f, err = t.inService(s)
		}
		switch {
		case t.kind == unreadableKind:
			f.Count = unreadable
		case !t.measured():
			continue
		case err != nil:
			unreadable++
			continue
		}
		samples = append(samples,
			fmt.Sprintf(`{kind=%q,urgency=%q,money="%t"} %d`, t.kind, t.urgency, t.money, f.Count))
	}
	c.at, c.samples = s.monotonic(), samples
	return samples
}

// always makes the samples of a metric that has one, which is always known.
func always(n func() int64) func() []string {
	return ifKnown(func() (int64, bool) { return n(), true })
}

// ifKnown makes the samples of a metric that has one, if that is known.
func ifKnown(n func() (int64, bool)) func() []string {
	return func() []string {
		value, known := n()
		if !known {
			return nil
		}
		return []string{fmt.Sprintf(" %d", value)}
	}
}

// coreMetrics returns the metrics of the service itself.
func (s *server) coreMetrics() []metric {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	answers, seconds, durations, refusals := s.metrics.samples()
	read := func(samples []string) func() []string { return func() []string { return samples } }
	return []metric{
		{"widgetd_build_info", "gauge", "The version of the program; always 1.",
			read([]string{fmt.Sprintf(`{version=%q} 1`, buildName())})},
		{"widgetd_requests_total", "counter", "Requests answered, by route and status.", read(answers)},
		{"widgetd_request_seconds_total", "counter", "Seconds spent answering requests.", read(seconds)},
		{"widgetd_request_duration_seconds", "histogram", "How long answers took, by route.", read(durations)},
		{"widgetd_refusals_total", "counter", "Requests answered with a problem, by its code.", read(refusals)},
		{"widgetd_commits_total", "counter", "Transactions committed to the database.", always(s.store.commits.Load)},
		{"widgetd_writes_total", "counter", "Writes that these transactions contained.",
			always(s.store.committedJobs.Load)},
		{"widgetd_writes_waiting", "gauge", "Writes queued for the next transaction.",
			always(func() int64 { return int64(len(s.store.jobs)) })},
		{"widgetd_database_bytes", "gauge", "Size of the database file in bytes.", always(s.store.databaseSize)},
		{"widgetd_log_bytes", "gauge", "Size of the write-ahead log in bytes.", always(s.store.walSize)},
		{"widgetd_disk_free_bytes", "gauge", "Bytes that are free for the database.", ifKnown(s.freeDisk)},
		{"widgetd_buckets", "gauge", "Rate limit buckets in memory, by accounts and by addresses.",
			read([]string{fmt.Sprintf(`{limit="account"} %d`, s.accountBuckets.len()),
				fmt.Sprintf(`{limit="address"} %d`, s.addressBuckets.len())})},
		{"widgetd_health", "gauge", "How the service is, and why it is not pass; always 1.",
			read([]string{s.healthSample()})},
		{"widgetd_trouble", "gauge", "How many there are of what needs somebody, by kind, each minute.",
			s.troubleSamples},
		{"process_start_time_seconds", "gauge", "When the service was started, in Unix seconds.",
			always(s.startedAt.Unix)},
		{"process_resident_memory_bytes", "gauge", "Bytes of memory that the process has.", ifKnown(residentMemory)},
		{"go_goroutines", "gauge", "Goroutines that exist.",
			always(func() int64 { return int64(runtime.NumGoroutine()) })},
		{"go_heap_bytes", "gauge", "Bytes of allocated heap objects.",
			always(func() int64 { return int64(mem.HeapAlloc) })},
		{"go_sys_bytes", "gauge", "Bytes of memory obtained from the operating system.",
			always(func() int64 { return int64(mem.Sys) })},
	}
}

// writeMetrics writes all metrics in the text format of Prometheus (version 0.0.4).
func (s *server) writeMetrics(w io.Writer) {
	for _, m := range append(s.coreMetrics(), s.moduleMetrics...) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		for _, sample := range m.samples() {
			fmt.Fprintf(w, "%s%s\n", m.name, sample)
		}
	}
}
