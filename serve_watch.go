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

// What a service finds to be wrong with itself. Health tells the first of these that fails or, if none does, the first
// that warns.

// serviceTroubles are the troubles of the service itself, in the order in which health tells them.
var serviceTroubles = []trouble{
	{kind: "service_stops", urgency: whenSeen, health: healthFail, one: "$what",
		inService: func(s *server) (occurrence, error) {
			return occursIf(s.draining.Load(), stamp{}, storageReason(errClosed), ""), nil
		}},
	{kind: "pair_superseded", urgency: rings, health: healthFail, one: "$what",
		advice:    ": stop this machine, and make it the standby with 'pair follow'",
		inService: findState("pair_superseded")},
	{kind: "pair_followed", urgency: rings, health: healthFail, one: "$what",
		advice: ": stop that and the service, and restore the file", inService: findState("pair_followed")},
	{kind: "database_fails", urgency: rings, health: healthFail, one: "requests fail: $what",
		advice: ": 'journalctl -u widgetd -n 50'", inService: probeIs(healthFail)},
	{kind: "damage_written", urgency: rings, health: healthFail, one: "damage was met since $since ($id)",
		advice: damageAdvice, inService: findDamage(true, damageWrittenReason)},
	{kind: "database_waits", urgency: sameDay, health: healthWarn, one: "$what",
		advice: ": end the other program's transaction, or look at the disk", inService: probeIs(healthWarn)},
	{kind: "damage_read", urgency: rings, health: healthWarn, one: "damage was met since $since ($id)",
		advice: damageAdvice, inService: findDamage(false, damageReadReason)},
	{kind: "rows_unreadable", urgency: sameDay, health: healthWarn, one: "$id: what needs it fails or waits",
		many: "$id: what needs them fails or waits", advice: ": run 'widgetd check'",
		inService: func(s *server) (f occurrence, err error) {
			var rows []string
			for _, row := range s.store.faults.rowsMet() {
				rows = append(rows, row.Error())
			}
			f = foundList(rows)
			f.What = rowsUnreadReason
			return f, nil
		}},
	{kind: "log_large", urgency: sameDay, health: healthWarn, one: "$what ($id)",
		advice: ": end that transaction, or see that Litestream runs",
		inService: func(s *server) (occurrence, error) {
			size := s.store.walSize()
			return occursIf(size > s.store.maxWAL, stamp{}, s.walReason(), sizeText(size)), nil
		}},
	{kind: "key_file", urgency: sameDay, health: healthWarn, one: "the key file can't be used: $id",
		inService: func(s *server) (occurrence, error) {
			return occursIf(s.keysStale.Load(), stamp{}, faultKeyFile, "the keys loaded before stay in use"), nil
		},
		outside: func(v *statusView) (occurrence, error) { // who can say why
			_, _, err := v.env.loadKeys()
			return occursIf(err != nil, stamp{}, "", fmt.Sprint(err)), nil
		}},
	{kind: "clock_doubted", urgency: rings, health: healthWarn, one: "$what", advice: clockAdvice,
		inService: func(s *server) (occurrence, error) {
			fault := s.compareClock(s.readClocks())
			return occursIf(fault == clockAhead || fault == clockFarAhead, stamp{}, string(fault), ""), nil
		}},
	{kind: "clock_behind", urgency: sameDay, health: healthWarn, one: "$what", advice: clockAdvice,
		inService: func(s *server) (occurrence, error) {
			fault := s.compareClock(s.readClocks())
			return occursIf(fault == clockBehind, stamp{}, string(fault), ""), nil
		}},
	unproven("replica_unproven", proofReplica, "run 'widgetd replica verify', or enable widgetd-replica.timer"),
	unproven("backup_unproven", proofBackup, "look at 'journalctl -u widgetd-backup'"),
	{kind: "pair_silent", urgency: rings, health: healthWarn, one: "$what",
		advice:    ": start the peer, or if it is off for certain, 'widgetd peer ignore'",
		inService: findState("pair_silent")},
	{kind: "standby_behind", urgency: rings, health: healthWarn, one: "$what",
		advice: ": on the standby 'journalctl -u widgetd-follow'", inService: findState("standby_behind")},
	{kind: "pair_holds", urgency: rings, health: healthWarn, one: "$what",
		advice:    ": stop the machine that is not to serve, and 'widgetd promote' on the other",
		inService: findState("pair_holds")},
	{kind: "requests_fail", urgency: rings, one: "$n answer of the last five minutes was an error of the server",
		many:   "$n answers of the last five minutes were errors of the server",
		advice: ", and more than one of fifty: 'journalctl -u widgetd -n 50'",
		inService: func(s *server) (occurrence, error) {
			failed, all := s.metrics.failing(s.monotonic())
			if failed < leastFailed || failed*failedShare <= all {
				failed = 0
			}
			return occurrence{Count: int(failed)}, nil
		}},
	{kind: "disk_short", urgency: rings, one: "the disk of the database has $id left", advice: ": make room",
		inService: func(s *server) (occurrence, error) {
			free, known := s.freeDisk()
			is := known && (free < leastFree || free < s.store.databaseSize()/4)
			return occursIf(is, stamp{}, "", sizeText(free)), nil
		}},
	{kind: "calls_fail", urgency: rings, one: callsFailAlike + " since $since $what",
		inService: func(s *server) (occurrence, error) {
			fault, since := s.outbound.reach.failing()
			return occursIf(fault != "", newStamp(since), fmt.Sprintf("(%s): %s", fault, callFaults[fault]), ""), nil
		}},
	{kind: "no_authorities", urgency: rings, one: noRootsText, advice: ": " + callFaults[callUnverified],
		inService: func(s *server) (occurrence, error) { return occursIf(s.noRoots, stamp{}, "", ""), nil }},
}

const (
	damageAdvice = ": run 'widgetd check'; if it finds faults, restore a backup"
	clockAdvice  = ": set the clock right, or if it is right, run 'widgetd clock accept'"

	leastFailed = 3         // errors of the server within five minutes that are told, if they are
	failedShare = 50        // more than one of so many answers
	leastFree   = 200 << 20 // bytes on the disk; a quarter of the database is the least, too
)

// findState finds what a machine of a pair may not do.
func findState(kind string) func(s *server) (occurrence, error) {
	return func(s *server) (occurrence, error) {
		now := s.store.machineState()
		return occursIf(now.trouble() == kind, stamp{}, now.reason, ""), nil
	}
}

// trouble returns the kind of trouble that a role is; "": none. A reason that is nowhere named holds the machine,
// or ends it.
func (now machineState) trouble() string {
	switch {
	case now.reason == reasonSilent:
		return "pair_silent"
	case now.reason == reasonBehind:
		return "standby_behind"
	case now.reason == reasonFollowed:
		return "pair_followed"
	case now.role == roleFenced:
		return "pair_superseded"
	case now.reason != "":
		return "pair_holds"
	}
	return ""
}

// probeIs finds what the last probe of the database says.
func probeIs(status healthStatus) func(s *server) (occurrence, error) {
	return func(s *server) (occurrence, error) {
		last := s.lastHealth()
		return occursIf(last.Status == status, stamp{}, last.Output, ""), nil
	}
}

// findDamage finds damage that a write came upon, or only reads.
func findDamage(write bool, reason string) func(s *server) (occurrence, error) {
	return func(s *server) (occurrence, error) {
		met := s.store.faults.damageMet()
		if met == nil || met.Write != write {
			return occurrence{}, nil
		}
		return occurrence{Count: 1, Since: met.At, What: reason,
			ID: cmp.Or(met.Table, "the file") + ": " + met.Error}, nil
	}
}

// unproven is that nothing has proven for proofOverdue that what is kept in one place can be restored.
func unproven(kind, place, advice string) trouble {
	overdue := func(p *proof, now time.Time) occurrence {
		if p == nil || p.What != place || now.Sub(p.since().Time) <= proofOverdue {
			return occurrence{}
		}
		return occurrence{Count: 1, Since: p.since(), What: faultsUnproven[place]}
	}
	return trouble{kind: kind, urgency: sameDay, health: healthWarn,
		one: "nothing has proven since $since that the " + place + " can be restored", advice: ": " + advice,
		inService: func(s *server) (occurrence, error) {
			s.health.mu.Lock()
			defer s.health.mu.Unlock()
			return overdue(s.health.proof, s.now()), nil
		},
		inFile: func(v *statusView) (occurrence, error) {
			p, err := v.proofOf(place)
			return overdue(p, v.now), err
		}}
}

// proofFailed is that the last try to restore from one place has failed.
func proofFailed(kind, place string) trouble {
	return trouble{kind: kind, urgency: rings,
		one: "the last try to restore the " + place + ", at $since, has failed: $id",
		inFile: func(v *statusView) (occurrence, error) {
			p, err := v.proofOf(place)
			if err != nil || p == nil {
				return occurrence{}, err
			}
			return occursIf(p.Fault != "", p.TriedAt, "", p.Fault), nil
		}}
}

// proofOf returns what is known of restoring from a place; nil: nothing, or another place counts.
func (v *statusView) proofOf(place string) (*proof, error) {
	if v.service != nil && v.litestream() != (place == proofReplica) || place == proofBackup && v.litestream() {
		return nil, nil
	}
	return v.proof(place)
}

// ownTroubles returns what the service knows of itself, for the status command.
func (s *server) ownTroubles() []occurrence {
	found := []occurrence{}
	for _, t := range s.kinds {
		if t.inService == nil {
			continue
		}
		if f, err := t.inService(s); err == nil && f.Count > 0 {
			f.Kind = t.kind
			found = append(found, f)
		}
	}
	return found
}

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
