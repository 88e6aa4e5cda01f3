package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// What the log says about requests that were refused, and about faults that last: a count once a
// minute, or a line at the beginning and one at the end, since with a line for each request
// whoever sends many could fill the disk.

const (
	noticeInterval = time.Minute      // between two log lines of one kind of notice
	maxNamed       = 20               // names that one such line lists; the others are counted together
	faultQuiet     = 10 * time.Second // how long a fault must not have happened to be over
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
	if n.kinds == nil {
		n.kinds = map[string]*notice{}
	}
	k := n.kinds[kind]
	if k == nil {
		k = &notice{}
		n.kinds[kind] = k
	}
	if k.names == nil {
		k.names = map[string]int64{}
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
		if k.times > 0 && (stopping || !within(noticeInterval, k.loggedAt, now)) {
			s.log.Warn(kind, "times", k.times, "by", k.text())
			*k = notice{loggedAt: now}
		}
	}
}

// logUnreadable writes a log line for each table that has a row that could not be read and has had none for
// rowInterval.
func (s *server) logUnreadable() {
	for _, row := range s.store.met.newRows(s.steady()) {
		s.log.Warn("a row can't be read: lists leave it out, and what needs it fails: run 'widgetd check'",
			"table", row.table, "id", row.id, "error", row.cause)
	}
}

// noteRefusal counts a request that is answered with a problem. err is what the request's handling
// returned, which ref was made from.
func (s *server) noteRefusal(w *response, r *http.Request, ref *refusal, err error) {
	s.metrics.countRefusal(ref.code.name)
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
		s.strike(faultDiskFull, err, "request_id", w.requestID, "route", w.pattern)
	case codeStorage:
		if error(ref) != err { // else the service is stopping
			s.strike(faultStorage, err, "request_id", w.requestID, "route", w.pattern)
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

// The faults that requests meet, and that of the key file. The chores have names of their own for theirs.
const (
	faultDiskFull = "the disk is full, so nothing is written"
	faultStorage  = "the database can't be used"
	faultKeyFile  = "the key file can't be used: the keys loaded before stay in use"
)

// lastingFaults are the faults that last, by the text of their first log line, which is from a closed list.
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

// strike counts a fault, and logs it with attrs if it was not there before. It is over, which is
// logged too, when it has not happened for faultQuiet and the database has been written since.
func (s *server) strike(name string, err error, attrs ...any) {
	now, f := s.steady(), &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = map[string]*lastingFault{}
	}
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

// reviewFaults logs which faults are over. While there are some it has health write to the database,
// so that this is noticed when nobody calls. At the stop it logs those that are left.
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
		over := !within(faultQuiet, open.last, now) && s.store.commits.Load() > open.commits
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
