package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
