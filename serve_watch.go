package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// 'widgetd watch', which a timer runs each minute, tells one person what 'widgetd status' says needs doing: what is
// new, worse or over, in one message to one address; and it calls a second address after each run, whose owner tells
// when that stops. It is a process of its own, so that nothing waits for those addresses.

var watchCommands = []command{{"watch", "", "post what is new, worse or over of what needs doing to the address in " +
	"the file widgetd.watch beside the database, and then call the one that notices silence", []option{optUnit},
	watchRun}}

var optUnit = option{name: "unit", value: "UNIT", help: "also tell that this unit of systemd has failed"}

const (
	watchOver    = 5 * time.Minute  // how long a trouble must be gone to be over: one that comes and goes is told once
	watchBurst   = 6                // messages within an hour, after which one comes every watchPause
	watchPause   = 15 * time.Minute // and has all that has changed meanwhile
	watchLimit   = 10 * time.Second // for a call, by default
	watchLines   = 8                // troubles that a message names
	maxWatchLine = 300              // bytes of each
	maxWatchFile = 64 << 10         // bytes
)

// A trouble is one thing that needs doing, in words that hold nothing that anybody else has written: a name, an address
// and a message of a program are "…" in it.
type trouble struct {
	key   string // the same as long as it is the same trouble, however many there are
	count int
	text  string
}

// closedText is one of the program's own texts, which may go into a trouble.
type closedText string

// newTrouble makes a trouble of a format and what fills it.
func newTrouble(format string, args []any) trouble {
	shown, fixed, count := []any{}, []any{}, 1
	for _, arg := range args {
		switch v := arg.(type) {
		case closedText, clockFault, callFault:
			text := fmt.Sprint(v)
			if i := strings.LastIndex(text, " for ") + 5; i < len(text) && i > 4 && text[i] >= '0' && text[i] <= '9' {
				text = text[:i-5] // without how long it has lasted
			}
			shown, fixed = append(shown, text), append(fixed, text)
		case int:
			shown, fixed, count = append(shown, v), append(fixed, 0), v
		case stamp:
			shown, fixed = append(shown, v), append(fixed, "…")
		default:
			shown, fixed = append(shown, "…"), append(fixed, "…")
		}
	}
	format = strings.ReplaceAll(format, "%v", "%s")
	return trouble{fmt.Sprintf(format, fixed...), count, fmt.Sprintf(format, shown...)}
}

// A toldTrouble is what was told of a trouble.
type toldTrouble struct {
	Count int       `json:"count"`
	Text  string    `json:"text"`
	Gone  time.Time `json:"gone,omitzero"` // since when it is not there any more
}

// A watchState is what was told, and when messages were sent in the last hour.
type watchState struct {
	Told map[string]toldTrouble `json:"told"`
	Sent []time.Time            `json:"sent"`
}

// A watchMessage is what has changed.
type watchMessage struct {
	fresh, worse, over []string // keys
	lines              []string
}

// compare notes which of the told troubles are gone, and returns what has changed since something was told.
func (w *watchState) compare(found map[string]trouble, now time.Time) (m watchMessage) {
	for _, key := range slices.Sorted(maps.Keys(found)) {
		told, known := w.Told[key]
		switch t := found[key]; {
		case !known:
			m.fresh, m.lines = append(m.fresh, key), append(m.lines, "new: "+t.text)
		case t.count >= 2*told.Count:
			m.worse, m.lines = append(m.worse, key), append(m.lines, "worse: "+t.text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.Told)) {
		told := w.Told[key]
		switch _, lasts := found[key]; {
		case lasts:
			told.Gone = time.Time{}
		case told.Gone.IsZero():
			told.Gone = now
		case now.Sub(told.Gone) >= watchOver:
			m.over, m.lines = append(m.over, key), append(m.lines, "over: "+told.Text)
		}
		w.Told[key] = told
	}
	return m
}

// mayTell reports whether a message may be sent now.
func (w *watchState) mayTell(now time.Time) bool {
	w.Sent = slices.DeleteFunc(w.Sent, func(at time.Time) bool { return !closerThan(time.Hour, at, now) })
	return len(w.Sent) < watchBurst || now.Sub(w.Sent[len(w.Sent)-1]) >= watchPause
}

// told notes that a message was sent.
func (w *watchState) told(m watchMessage, found map[string]trouble, now time.Time) {
	for _, key := range slices.Concat(m.fresh, m.worse) {
		t := found[key]
		w.Told[key] = toldTrouble{Count: t.count, Text: t.text}
	}
	for _, key := range m.over {
		delete(w.Told, key)
	}
	w.Sent = append(w.Sent, now)
}

// A watchTarget is where the file widgetd.watch says that messages go.
type watchTarget struct {
	ntfy, webhook, token, ping string

	limit time.Duration // for a call; 0: watchLimit
}

// readWatchFile reads the addresses. The error never has one in it.
func readWatchFile(f *os.File) (w watchTarget, err error) {
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("others can read %s: run 'chmod 600 %s', and take other addresses if somebody may have",
			f.Name(), f.Name())
	}
	if err != nil {
		return w, err
	}
	text := make([]byte, maxWatchFile)
	n, _ := f.Read(text) // an empty file lacks an address
	for line := range strings.Lines(string(text[:n])) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		to := map[string]*string{"ntfy": &w.ntfy, "webhook": &w.webhook, "token": &w.token, "ping": &w.ping}[name]
		switch {
		case name == "" || strings.HasPrefix(name, "#"):
		case to == nil:
			return w, fmt.Errorf("%s has a line that is none of ntfy=, webhook=, token= and ping=", f.Name())
		case name != "token" && !isWatchAddress(value):
			return w, fmt.Errorf("%s: the address of %s= must begin with https://; http reaches this machine only, as "+
				"http://127.0.0.1", f.Name(), name)
		default:
			*to = value
		}
	}
	if (w.ntfy == "") == (w.webhook == "") {
		return w, fmt.Errorf("%s must have one line ntfy=ADDRESS or webhook=ADDRESS", f.Name())
	}
	return w, nil
}

// isWatchAddress reports whether an address may be called: over https, or over http on this machine.
func isWatchAddress(address string) bool {
	_, code, _ := newOutbound(everywhere).checkURL(address)
	u, err := url.Parse(address)
	if code != "" || err != nil {
		return false
	}
	return strings.EqualFold(u.Scheme, "https") || parseAddress(u.Hostname()).IsLoopback()
}

// patience returns how long a call may take.
func (w *watchTarget) patience() time.Duration { return cmp.Or(w.limit, watchLimit) }

// call calls an address. The error does not name it.
func (w *watchTarget) call(ctx context.Context, method, address string, header http.Header, body []byte) error {
	client := newOutbound(everywhere)
	defer client.close()
	client.limit = w.patience()
	answer, err := client.do(ctx, outboundRequest{method, address, header, body, maxPeerMessage})
	switch {
	case answer == nil:
		return errors.New(reasonOf(err))
	case !answer.ok():
		return fmt.Errorf("it answers with the status %d", answer.status)
	}
	return nil
}

// send posts a message. urgent: the service does not run, or its health fails.
func (w *watchTarget) send(ctx context.Context, m watchMessage, urgent bool) error {
	priority, tag := 4, "warning"
	switch {
	case urgent && len(m.fresh)+len(m.worse) > 0:
		priority, tag = 5, "rotating_light"
	case len(m.over) == len(m.lines):
		priority, tag = 3, "white_check_mark"
	}
	host, _ := os.Hostname()
	title := fmt.Sprintf("widgetd on %s: %d new, %d worse, %d over", cmp.Or(host, "?"), len(m.fresh), len(m.worse),
		len(m.over))
	lines := slices.Clone(m.lines[:min(len(m.lines), watchLines)])
	for i, line := range lines {
		lines[i] = strings.ToValidUTF8(printable(line[:min(len(line), maxWatchLine)]), "")
	}
	if more := len(m.lines) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more: widgetd status", more))
	}
	text := strings.Join(lines, "\n")
	if w.webhook != "" {
		body := encodeJSON(map[string]any{"title": title, "message": text, "priority": priority, "tags": []string{tag}})
		return w.call(ctx, http.MethodPost, w.webhook, http.Header{"Content-Type": {"application/json"}}, body)
	}
	header := http.Header{"Title": {title}, "Priority": {fmt.Sprint(priority)}, "Tags": {tag}}
	if w.token != "" {
		header.Set("Authorization", "Bearer "+w.token)
	}
	return w.call(ctx, http.MethodPost, w.ntfy, header, []byte(text))
}

// watchRun runs 'widgetd watch'.
func watchRun(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	file, err := os.Open(watchPath(db))
	if err != nil {
		return fmt.Errorf("write the address into the file first: %w", err)
	}
	defer file.Close()
	target, err := readWatchFile(file)
	target.limit = e.callLimit
	if err == nil { // one at a time, whose state the other reads
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return err
	}
	found, urgent := e.troubles()
	state := &watchState{}
	text, _ := os.ReadFile(toldPath(db))
	if json.Unmarshal(text, state) != nil || state.Told == nil {
		state = &watchState{Told: map[string]toldTrouble{}} // it is told anew, and so not lost
	}
	m, now, said, unit := state.compare(found, e.now()), e.now(), "", e.str("unit")
	if unit != "" {
		m.lines = slices.Insert(m.lines, 0, fmt.Sprintf("the unit %s has failed: journalctl -u %s", unit, unit))
	}
	if len(m.lines) > 0 && (state.mayTell(now) || unit != "") {
		if err := target.send(e.ctx, m, urgent); err != nil {
			return fmt.Errorf("the message could not be sent: %w", err) // and silence tells of it
		}
		state.told(m, found, now)
		said = fmt.Sprintf("told: %d new, %d worse, %d over", len(m.fresh), len(m.worse), len(m.over))
	}
	err = nil
	if after := encodeJSON(state); string(after) != string(text) {
		os.Remove(toldPath(db) + ".new") // of a run that was killed
		err = writeAtomically(toldPath(db), true, func(f *os.File) error {
			_, err := f.Write(after)
			return err
		})
	}
	if target.ping != "" {
		if failed := target.call(e.ctx, http.MethodGet, target.ping, nil, nil); failed != nil {
			err = errors.Join(err, fmt.Errorf("the address that notices silence could not be called: %w", failed))
		}
	}
	if err != nil || said == "" {
		return err
	}
	return e.done(said)
}

// troubles returns what needs doing, by key. urgent: the service does not run, or its health fails.
func (e *env) troubles() (found map[string]trouble, urgent bool) {
	found = map[string]trouble{}
	r, service, err := e.readStatus(true)
	if err != nil {
		t := newTrouble("what needs doing can't be read: run 'widgetd status'", nil)
		return map[string]trouble{t.key: t}, true
	}
	for _, t := range r.troubles {
		if strings.Trim(t.key, "…0 ;:(),") == "" {
			t.key = "something needs doing: run 'widgetd status'"
			t.text = t.key
		}
		found[t.key] = t
	}
	return found, service == nil || service.Health == healthFail
}
