package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

func healthWing(s *server) wing {
	return wing{
		routes: []route{{pattern: "GET /widget/health", free: true, run: endpoint(s.showHealth)}},
		roots:  []rootPath{{"/livez", s.showAlive}},
	}
}

const (
	healthInterval = time.Second            // how often the database is really asked, whatever the load
	healthWait     = 250 * time.Millisecond // how long a caller waits for that
)

// A healthCheck remembers the last proof that the database can be read and
// written, and who is waiting for the next.
type healthCheck struct {
	mu           sync.Mutex
	running      chan struct{} // closed when the proof that runs is done; nil: none runs
	at           time.Time     // when the last one was done
	took         time.Duration
	err          error
	blockedSince time.Time // since when a lock keeps the writer from writing
}

// A healthReport is the answer of GET /widget/health (draft-inadarei-api-health-check-06).
type healthReport struct {
	Status    string                   `json:"status"` // pass, warn or fail
	Version   string                   `json:"version"`
	ReleaseID string                   `json:"releaseId"`
	Checks    map[string][]healthProbe `json:"checks"`
}

type healthProbe struct {
	ComponentType string `json:"componentType"`
	ObservedValue int64  `json:"observedValue"`
	ObservedUnit  string `json:"observedUnit"`
	Status        string `json:"status"`
	Time          stamp  `json:"time"`
}

const (
	healthPass = "pass"
	healthWarn = "warn"
	healthFail = "fail"
)

func (h *healthReport) httpStatus() int {
	if h.Status == healthFail {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// showHealth tells whether the service can do its work: pass; warn, while someone
// else holds the write lock, or the write-ahead log is larger than it should be;
// fail, when the database can't be read or written, or while the service is stopping.
func (s *server) showHealth(context.Context, *call, *emptyRequest) (*document, error) {
	status, took, at := s.checkHealth()
	report := &healthReport{Version: "1", ReleaseID: buildName(), Status: status, Checks: map[string][]healthProbe{
		"sqlite:responseTime": {{ComponentType: "datastore", ObservedValue: took.Milliseconds(), ObservedUnit: "ms", Status: status, Time: newStamp(at)}},
	}}
	if size := s.store.logSize(); size > maxLog {
		report.Checks["sqlite:logSize"] = []healthProbe{{ComponentType: "datastore", ObservedValue: size, ObservedUnit: "bytes", Status: healthWarn, Time: newStamp(s.now())}}
		if status == healthPass {
			report.Status = healthWarn
		}
	}
	if s.draining.Load() {
		report.Status = healthFail
	}
	return &document{report.httpStatus(), "application/health+json", report}, nil
}

// checkHealth proves, at most once a second, that the database can be read and
// written. It waits a moment for a proof that is under way, not for a lock.
func (s *server) checkHealth() (status string, took time.Duration, at time.Time) {
	h := &s.health
	h.mu.Lock()
	if h.running == nil && !within(healthInterval, h.at, s.now()) && !s.draining.Load() {
		h.running = make(chan struct{})
		done := h.running
		s.working.Go(func() { s.probeDatabase(done) })
	}
	running := h.running
	h.mu.Unlock()
	if running != nil {
		wait := time.NewTimer(healthWait)
		defer wait.Stop()
		select {
		case <-running:
		case <-wait.C:
		}
	}
	now, blocked := s.now(), s.store.lockedSince()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.err != nil && !errors.Is(h.err, errBusy):
		return healthFail, h.took, h.at
	case h.running == nil && h.err == nil:
		h.blockedSince = time.Time{}
		return healthPass, h.took, h.at
	}
	if h.blockedSince.IsZero() { // the proof waits for a lock
		h.blockedSince = now
		if !blocked.IsZero() && blocked.Before(now) {
			h.blockedSince = blocked
		}
	}
	if now.Sub(h.blockedSince) < lockTimeout {
		return healthWarn, now.Sub(h.blockedSince), now
	}
	return healthFail, now.Sub(h.blockedSince), now
}

func (s *server) probeDatabase(done chan struct{}) {
	start := s.now()
	err := s.store.probe(context.Background())
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = s.now()
	h.took, h.err, h.running = h.at.Sub(start), err, nil
	close(done)
}

// showAlive answers GET /livez without the database: the process answers.
func (s *server) showAlive(w *response, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s.write(w, reply{http.StatusOK, []byte("alive\n")})
}
