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
	"path/filepath"
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
)

// A reportedTrouble is what was told of a kind of trouble.
type reportedTrouble struct {
	Count int       `json:"count"`
	Text  string    `json:"text"`
	Gone  time.Time `json:"gone,omitzero"` // since when it is not there any more
}

// A watchState is what was told, by kind, and when.
type watchState struct {
	Told map[string]reportedTrouble `json:"told"`
	Sent []time.Time                `json:"sent"` // messages of the last hour with something new or worse, no digests
	Last time.Time                  `json:"last"` // when a message was sent last
	At   time.Time                  `json:"at"`   // when this was written
}

// A watchMessage is what has changed.
type watchMessage struct {
	news  []foundTrouble // what is new or worse
	fresh int            // how many of these are new
	over  []string       // kinds
	lines []string
}

// compare notes which of the told troubles are gone, and returns what has changed since something was told: what is
// new or worse in the order of found, and then what is over.
func (w *watchState) compare(found []foundTrouble, now time.Time) (m watchMessage) {
	lasts := map[string]bool{}
	for _, f := range found {
		lasts[f.kind] = true
		before, known := w.Told[f.kind]
		if known && f.Count < 2*before.Count {
			continue
		}
		how := "worse: "
		if !known {
			how, m.fresh = "new: ", m.fresh+1
		}
		m.news, m.lines = append(m.news, f), append(m.lines, how+f.text(false))
	}
	for _, kind := range slices.Sorted(maps.Keys(w.Told)) {
		before := w.Told[kind]
		switch {
		case lasts[kind]:
			before.Gone = time.Time{}
		case before.Gone.IsZero():
			before.Gone = now
		case now.Sub(before.Gone) >= watchOver:
			m.over, m.lines = append(m.over, kind), append(m.lines, "over: "+before.Text)
		}
		w.Told[kind] = before
	}
	return m
}

// rings reports whether something in a message can't wait.
func (m *watchMessage) rings() bool {
	for _, f := range m.news {
		if f.urgency == rings {
			return true
		}
	}
	return false
}

// text says how much has changed.
func (m *watchMessage) text() string {
	return fmt.Sprintf("%d new, %d worse, %d over", m.fresh, len(m.news)-m.fresh, len(m.over))
}

// burst reports whether there were too many messages within an hour for each to be sent at once.
func (w *watchState) burst(now time.Time) bool {
	w.Sent = slices.DeleteFunc(w.Sent, func(at time.Time) bool { return !closerThan(time.Hour, at, now) })
	return len(w.Sent) >= watchBurst
}

// maySend reports whether a message may be sent now: what rings always may.
func (w *watchState) maySend(m *watchMessage, now time.Time) bool {
	return m.rings() || !w.burst(now) || now.Sub(w.Last) >= watchPause
}

// tell notes that a message was sent. A digest counts for no burst, and neither does what only says that all is well.
func (w *watchState) tell(m *watchMessage, now time.Time) {
	for _, f := range m.news {
		w.Told[f.kind] = reportedTrouble{Count: f.Count, Text: f.text(false)}
	}
	for _, kind := range m.over {
		delete(w.Told, kind)
	}
	if len(m.news) > 0 && !w.burst(now) {
		w.Sent = append(w.Sent, now)
	}
	w.Last = now
}

// statePaths returns where what was told is kept: beside the database, and where systemd keeps what does not need a
// disk, so that one of both can be written while the other is full or read-only.
func (e *env) statePaths(db string) []string {
	paths := []string{toldPath(db)}
	if dir := e.getenv("RUNTIME_DIRECTORY"); dir != "" {
		paths = append(paths, filepath.Join(dir, filepath.Base(toldPath(db))))
	}
	return paths
}

// readTold reads what was told: the later of the states that can be read. What can't be read is told anew, and so not
// lost.
func readTold(paths []string) *watchState {
	latest := &watchState{}
	for _, path := range paths {
		state := &watchState{}
		text, _ := os.ReadFile(path)
		if json.Unmarshal(text, state) == nil && state.Told != nil && !state.At.Before(latest.At) {
			latest = state
		}
	}
	if latest.Told == nil {
		latest.Told = map[string]reportedTrouble{}
	}
	return latest
}

// write writes what was told to all places, and reports whether it could to one of them.
func (w *watchState) write(paths []string, now time.Time) (kept bool) {
	w.At = now
	for _, path := range paths {
		os.Remove(path + ".new") // of a run that was killed
		err := writeAtomically(path, true, func(f *os.File) error {
			_, err := f.Write(encodeJSON(w))
			return err
		})
		kept = kept || err == nil
	}
	return kept
}

// A watchTarget is where the file widgetd.watch says that messages go.
type watchTarget struct {
	ntfy, webhook, token, ping string

	limit time.Duration // for a call; 0: watchLimit
}

// readWatchFile reads the addresses. The error never has one in it.
func readWatchFile(f *os.File) (w watchTarget, err error) {
	if err := checkPrivate(f); err != nil {
		return w, err
	}
	fields := map[string]*string{"ntfy": &w.ntfy, "webhook": &w.webhook, "token": &w.token, "ping": &w.ping}
	text, err := readSecretText(f)
	if err == nil {
		err = parseSecretLines(fields, text)
	}
	for name, value := range fields {
		if err == nil && name != "token" && *value != "" && !isWatchAddress(*value) {
			err = fmt.Errorf("%s= must begin with https://; http reaches this machine only, as http://127.0.0.1", name)
		}
	}
	if err == nil && (w.ntfy == "") == (w.webhook == "") {
		err = errors.New("it must have one line ntfy=ADDRESS or webhook=ADDRESS")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", f.Name(), err)
	}
	return w, err
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

// timeout returns how long a call may take.
func (w *watchTarget) timeout() time.Duration { return cmp.Or(w.limit, watchLimit) }

// call calls an address. The error does not name it.
func (w *watchTarget) call(ctx context.Context, method, address string, header http.Header, body []byte) error {
	client := newOutbound(everywhere)
	defer client.close()
	client.limit = w.timeout()
	answer, err := client.do(ctx, outboundRequest{method, address, header, body, maxPeerMessage})
	switch {
	case answer == nil:
		return errors.New(reasonOf(err))
	case !answer.ok():
		return fmt.Errorf("it answers with the status %d", answer.status)
	}
	return nil
}

// send posts a message.
func (w *watchTarget) send(ctx context.Context, m *watchMessage) error {
	priority, tag := 4, "warning"
	switch {
	case m.rings():
		priority, tag = 5, "rotating_light"
	case len(m.over) == len(m.lines):
		priority, tag = 3, "white_check_mark"
	}
	host, _ := os.Hostname()
	title := fmt.Sprintf("widgetd on %s: %s", cmp.Or(host, "?"), m.text())
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
	said, err := e.tellChanges(target, e.statePaths(db))
	if err != nil {
		return err
	}
	if target.ping != "" {
		if err := target.call(e.ctx, http.MethodGet, target.ping, nil, nil); err != nil {
			return fmt.Errorf("the address that notices silence could not be called: %w", err)
		}
	}
	if said == "" {
		return nil
	}
	return e.done(said)
}

// tellChanges posts what has changed since something was told last, unless it has to wait. What was told is written
// down before and after: where it can't be, a message comes once an hour, by the clock alone. An error also says that
// what rings waits, so that nobody is told that all is well.
func (e *env) tellChanges(target watchTarget, paths []string) (said string, err error) {
	now, unit, state := e.now(), e.str("unit"), readTold(paths)
	if unit != "" {
		delete(state.Told, "unit_failed") // it has failed again
	}
	before := string(encodeJSON(state))
	m := state.compare(e.foundTroubles(), now)
	kept := string(encodeJSON(state)) == before && len(m.lines) == 0 || state.write(paths, now)
	switch {
	case len(m.lines) == 0:
		return "", nil
	case !kept && unit == "" && now.Minute() > 0 && m.rings():
		return "", errors.New("what rings waits for the next hour, since what was told can't be written down")
	case !kept && unit == "" && now.Minute() > 0, kept && !state.maySend(&m, now):
		return "", nil
	}
	if err := target.send(e.ctx, &m); err != nil {
		return "", fmt.Errorf("the message could not be sent: %w", err) // and silence tells of it
	}
	state.tell(&m, now)
	state.write(paths, now)
	return "told: " + m.text(), nil
}

// foundTroubles returns what needs doing, the most urgent first.
func (e *env) foundTroubles() []foundTrouble {
	r, _, err := e.readStatus(true)
	if err != nil {
		return []foundTrouble{{&partsUnreadable, occurrence{Count: 1, ID: fmt.Sprint(err)}}}
	}
	return r.found
}
