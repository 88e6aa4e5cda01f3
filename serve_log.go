package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// What the log says of what happens again and again, such as refusals and lasting faults. With a line for each, a
// caller that sends many requests could fill the disk.

const (
	tellInterval = time.Minute     // between two lines of one warning
	tellOver     = 2 * time.Minute // a warning that has not come again for so long is over
	maxNamed     = 20              // values that one line lists; the others are counted together
)

// A teller is an slog.Handler that passes everything on to another one, but warnings. Of those with the same message
// it passes on the first within a minute, then how many came since, and at last that it is over. Their first attribute
// is what they are counted by, such as the origin or the error; of the others a line has those of the last one. The
// messages are a closed list, so that callers can't make the map grow.
type teller struct {
	slog.Handler
	mu       sync.Mutex
	warnings map[string]*warning // by message
}

// A warning is what was counted of a message since its last line.
type warning struct {
	last                  slog.Record
	began, toldAt, cameAt time.Time
	all                   int64 // since it began
	times                 int64 // since its last line
	values                map[string]int64
}

func newTeller(of *slog.Logger) *teller {
	return &teller{Handler: of.Handler(), warnings: map[string]*warning{}}
}

// Handle implements slog.Handler.
func (h *teller) Handle(ctx context.Context, r slog.Record) error {
	if r.Level != slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.warnings[r.Message]
	if w == nil {
		w = &warning{began: now, values: map[string]int64{}}
		h.warnings[r.Message] = w
	}
	w.cameAt = now
	w.all++
	if w.times == 0 && now.Sub(w.toldAt) >= tellInterval {
		w.toldAt = now
		return h.Handler.Handle(ctx, r)
	}
	w.last = r.Clone()
	w.times++
	r.Attrs(func(first slog.Attr) bool {
		value := first.Value.String()
		if _, known := w.values[value]; known || len(w.values) < maxNamed {
			w.values[value]++
		}
		return false
	})
	return nil
}

// tell passes on what was counted since the last line of each warning, if that was tellInterval ago or the service
// stops, and that a warning is over. It is called each second.
func (h *teller) tell(stopping bool) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for message, w := range h.warnings {
		switch {
		case w.times > 0 && (stopping || now.Sub(w.toldAt) >= tellInterval):
			line := slog.NewRecord(now, slog.LevelWarn, message, 0)
			line.AddAttrs(slog.Int64("times", w.times))
			w.last.Attrs(func(a slog.Attr) bool {
				if line.NumAttrs() == 1 {
					a = slog.String(a.Key, w.text())
				}
				line.AddAttrs(a)
				return true
			})
			h.Handler.Handle(context.Background(), line) // as with any logger, nobody could be told of its error
			w.times, w.toldAt = 0, now
			clear(w.values)
		case now.Sub(w.cameAt) >= tellOver:
			if delete(h.warnings, message); w.all > 1 {
				line := slog.NewRecord(now, slog.LevelInfo, "over: "+message, 0)
				line.AddAttrs(slog.Int64("times", w.all), slog.String("lasted", w.cameAt.Sub(w.began).String()))
				h.Handler.Handle(context.Background(), line)
			}
		}
	}
}

// text returns the values with their counts, the highest count first: "https://a.example 3, others 2".
func (w *warning) text() string {
	rest, parts := w.times, []string{}
	for _, value := range slices.SortedFunc(maps.Keys(w.values), func(a, b string) int {
		return cmp.Or(cmp.Compare(w.values[b], w.values[a]), strings.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%s %d", value, w.values[value]))
		rest -= w.values[value]
	}
	if rest > 0 {
		parts = append(parts, fmt.Sprintf("others %d", rest))
	}
	return strings.Join(parts, ", ")
}

// The warnings of refusals, and of what requests and health meet. Chores name their own (chore.fault).
const (
	warnOrigins   = "origins were refused"
	warnRates     = "requests were over a rate limit"
	warnBusy      = "requests failed since another program has locked the database"
	warnFull      = "requests found no room beside others"
	warnTokens    = "tokens were refused"
	faultDiskFull = "the disk is full, so nothing is written"
	faultStorage  = "the database can't be used"
	faultKeyFile  = "the key file can't be used: the keys loaded before stay in use"
)

// noteRefusal counts a request that is answered with a problem. err is what the request's handling
// returned, from which ref was made.
func (s *server) noteRefusal(w *response, r *http.Request, ref *refusal, err error) {
	s.metrics.countRefusal(ref.code.name, s.steady())
	switch ref.code {
	case codeOrigin:
		s.log.Warn(warnOrigins, "by", originName(r))
	case codeRateLimited:
		s.log.Warn(warnRates, "by", cmp.Or(w.account, "address"))
	case codeBusy:
		why := warnFull
		if errors.Is(err, errBusy) {
			why = warnBusy
		}
		s.log.Warn(why, "by", cmp.Or(w.pattern, noRoute))
	case codeInvalidToken:
		reason := "other"
		var refused *refusedToken
		if errors.As(err, &refused) {
			reason = refused.reason
		}
		s.log.Warn(warnTokens, "by", reason)
	case codeStorageFull, codeStorage:
		if ref.code == codeStorageFull || error(ref) != err { // else the service is stopping, or fenced
			s.warnOfStorage(err, "request_id", w.requestID, "route", w.pattern)
		}
	}
}

// warnOfStorage logs why the database could not be read or written.
func (s *server) warnOfStorage(err error, attrs ...any) {
	fault := faultStorage
	if errors.Is(err, errStorageFull) {
		fault = faultDiskFull
	}
	s.log.Warn(fault, append([]any{"error", err}, attrs...)...)
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
