package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// newLogger returns a logger that writes to w; format is "text" or "json". Where w is the journal, each line begins
// with its priority.
func newLogger(w io.Writer, format string, journal bool) (*slog.Logger, error) {
	var h slog.Handler
	switch format {
	case "text":
		h = slog.NewTextHandler(w, nil)
	case "json":
		h = slog.NewJSONHandler(w, nil)
	default:
		return nil, usageError(fmt.Sprintf("-log must be text or json, not %q", format))
	}
	if journal {
		h = &journalHandler{Handler: h, to: w}
	}
	return slog.New(h), nil
}

// A journalHandler is an slog.Handler that writes before each line what the journal takes for its priority
// (sd-daemon(3)).
type journalHandler struct {
	slog.Handler // which writes a line at once
	to           io.Writer
	mu           sync.Mutex // held until a line stands behind its priority
}

// Handle implements slog.Handler.
func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	io.WriteString(h.to, journalPriority(r.Level)) // if it can't be written, the line can't
	return h.Handler.Handle(ctx, r)
}

// journalPriority returns the prefix of a line of a level: err, warning or info.
func journalPriority(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "<3>"
	case level >= slog.LevelWarn:
		return "<4>"
	}
	return "<6>"
}

// isJournal reports whether a stream is the journal's, which systemd names in the environment by its file.
func isJournal(w io.Writer, getenv func(string) string) bool {
	f, ok := w.(*os.File)
	if !ok || getenv("JOURNAL_STREAM") == "" {
		return false
	}
	var stat syscall.Stat_t
	err := syscall.Fstat(int(f.Fd()), &stat)
	return err == nil && getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// forJournal returns the lines of an error, each with its priority.
func forJournal(text string) string {
	return "<3>" + strings.ReplaceAll(text, "\n", "\n<3>")
}

// A notifySocket is where systemd hears how the service is (sd_notify(3)); "": nobody listens. A name that begins with
// @ is an abstract one, as in package net.
type notifySocket string

// tell tells systemd a state. A failure is logged: then systemd waits, and the log says for what.
func (n notifySocket) tell(state string, log *slog.Logger) {
	if n == "" {
		return
	}
	conn, err := net.Dial("unixgram", string(n))
	if err == nil {
		_, err = io.WriteString(conn, state)
		conn.Close() // the datagram is sent, or not
	}
	if err != nil {
		log.Warn("systemd can't be told how the service is", "error", err)
	}
}

// repeatInterval is how long the log is silent of a warning that repeats itself.
const repeatInterval = time.Minute

// A repeatFilter is an slog.Handler that passes everything on to another one, but warnings that repeat themselves:
// with a line for each, a caller that sends many requests could fill the disk. Of warnings with the same message it
// passes on the first, and after each minute the last, with how often it has come meanwhile. What repeats itself is
// forgotten after a minute without it, and messages are a closed list, so callers can't make the map grow.
type repeatFilter struct {
	slog.Handler
	mu       sync.Mutex
	repeated map[string]*repetition // by message: what was told within repeatInterval
}

// A repetition is what came of a message since its last line.
type repetition struct {
	times int
	last  slog.Record
	due   *time.Timer
}

func newRepeatFilter(of *slog.Logger) *repeatFilter {
	return &repeatFilter{Handler: of.Handler(), repeated: map[string]*repetition{}}
}

// Handle implements slog.Handler.
func (h *repeatFilter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level != slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	if isCanceled(r) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if again := h.repeated[r.Message]; again != nil {
		again.times++
		again.last = r.Clone()
		return nil
	}
	h.repeated[r.Message] = &repetition{due: time.AfterFunc(repeatInterval, func() { h.pass(r.Message) })}
	return h.Handler.Handle(ctx, r)
}

// isCanceled reports whether a warning is about what was broken off since the service stops, or the caller has gone:
// that is no fault, wherever it is met.
func isCanceled(r slog.Record) (is bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, _ := a.Value.Any().(error)
		is = errors.Is(err, context.Canceled) || a.Key == "error" && a.Value.String() == outboundCanceled
		return !is
	})
	return is
}

// pass passes on what has come of a message since its last line, and forgets a message that has not come.
func (h *repeatFilter) pass(message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	again := h.repeated[message]
	if again.times == 0 {
		delete(h.repeated, message)
		return
	}
	h.sumUp(again)
	again.due.Reset(repeatInterval)
}

// passAll passes on what has come since the last lines, when the service stops.
func (h *repeatFilter) passAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, again := range h.repeated {
		if again.times > 0 {
			h.sumUp(again)
		}
	}
}

// sumUp passes on the last line of a repetition with its count. The caller holds h.mu.
func (h *repeatFilter) sumUp(again *repetition) {
	again.last.Add("times", again.times)
	h.Handler.Handle(context.Background(), again.last) // as with any logger, nobody could be told of its error
	again.times = 0
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
	s.metrics.countRefusal(ref.code.name, s.monotonic())
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
