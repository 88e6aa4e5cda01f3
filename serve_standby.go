package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The commands of a pair of machines, and what the standby serves.

// standbyNoun declares the pair of machines.
func standbyNoun() noun {
	return noun{
		name:     "standby",
		commands: standbyCommands,
		status:   []statusLine{{label: "epoch", read: epochStatus}},
		troubles: []trouble{superseded},
	}
}

var (
	optPeer = option{name: "peer", value: "URL",
		help: "address of the other machine of a pair, as http://10.0.0.2:8080, which is asked whether it serves; " +
			"never the base address",
		hasVariable: true}
	optStandby = option{name: "standby",
		help:        "open no database, which 'litestream restore -f' writes, and answer only health and the peer",
		hasVariable: true}
)

var standbyCommands = []command{
	{"promote", "", "begin a new epoch: have this machine serve the stopped file in place of the other machine",
		[]option{optPeer, optForce.says("promote also while the peer serves, a copy of an earlier epoch, or without " +
			"a key that unexpired tokens and leases need")}, promoteCommand},
	{"peer follow", "", "ask the peer, which serves, for its epoch, and name it in the file for the follower",
		[]option{optPeer}, peerFollow},
	{"peer ignore", "", "have the running service go on without an answer of its peer, until its next start",
		nil, peerIgnore},
}

// epochStatus is what the status command says of the epoch; null: the database was never promoted.
func epochStatus(v *statusView, to *statusReport) error {
	e, err := v.epoch()
	to.set("epoch", nil)
	if err != nil || e.Known == 0 {
		return err
	}
	to.set("epoch", e)
	line := fmt.Sprintf("%s, since %s", e, stampText(e.BeganAt))
	if e.superseded() {
		line += fmt.Sprintf("; another machine has %d", e.Known)
	}
	to.say("%s", line)
	return nil
}

// superseded is that the file has heard of a later epoch, whether or not a service holds back for that.
var superseded = trouble{kind: "epoch_superseded", urgency: atOnce,
	one: "another machine was promoted: stop this one, and make it the standby",
	inFile: func(v *statusView) (occurrence, error) {
		e, err := v.epoch()
		return occursIf(err == nil && e.superseded(), stamp{}, "", ""), err
	}}

// A standby answers in place of the service, as long as the database is a copy that is kept up to date.
type standby struct {
	self    peerMessage
	keys    func() (*keyring, error) // reads the key file
	trusted []netip.Prefix
	askedBy *limiter // by address
	told    *teller
	log     *slog.Logger
	db      string // whose copy it is, and beside which it keeps what it has heard

	config  string           // of Litestream; "": its own default
	steady  func() time.Time // a clock that is never set, by which the rate of questions is measured
	started time.Time

	mu        sync.Mutex
	otherKeys bool      // the key file of the peer had another list of keys at its last question
	copied    string    // the last transaction that the follower has applied, when it was looked at last
	behind    time.Time // since when the replica has a later one, or can't be read; zero: it has not
	stalled   bool      // that lasts for followerStalled
}

// newStandby makes a standby for the copy at a path, which keys() reads the key file of.
func newStandby(db string, keys func() (*keyring, error), trusted []netip.Prefix, log *slog.Logger) *standby {
	told := newTeller(log)
	return &standby{self: peerMessage{Machine: randomText(16)}, keys: keys, trusted: trusted,
		askedBy: newLimiter(maxAddressBuckets), told: told, log: slog.New(told), db: db,
		steady: time.Now, started: time.Now()}
}

// learn keeps the epoch of a machine that serves, unless it knows of a later one, and compares their key files.
func (b *standby) learn(m *peerMessage, keys *keyring) {
	b.mu.Lock()
	defer b.mu.Unlock()
	named, heard, _ := epochsBeside(b.db) // fault tells of the error
	if !m.Serves || m.Number < max(named.Number, heard.Number) {
		return
	}
	b.otherKeys = !m.hasKeys(keys)
	if said := m.epoch(); said.outdates(heard) {
		if err := writeEpochFile(heardPath(b.db), said); err != nil {
			b.log.Warn(faultEpoch, "error", err)
		}
	}
	if fault := b.fault(); fault != "" {
		b.log.Warn(fault, "epoch", m.epoch().String())
	}
}

// fault returns what is wrong, as far as the peer has told; "": nothing. The caller holds b.mu.
func (b *standby) fault() string {
	named, heard, err := epochsBeside(b.db)
	switch {
	case err != nil || heard.outdates(named):
		return faultFollows
	case b.otherKeys:
		return faultKeyLists
	case b.stalled:
		return faultStalled
	}
	return ""
}

// followerStalled is how long the copy may stay behind the replica without a change.
const followerStalled = 5 * time.Minute

// checkFollower compares the copy with the replica. A follower that has stalled, as 'litestream restore -f' may in
// silence (litestream#1515), is killed, so that its unit starts it again: a signal that it obeys would be a good end.
func (b *standby) checkFollower(ctx context.Context, now time.Time) {
	text, _ := os.ReadFile(followerPath(b.db)) // it is not there while the first copy is made
	copied := string(bytes.TrimSpace(text))
	newest, err := b.newestInReplica(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil && newest <= copied:
		b.behind, b.stalled = time.Time{}, false
	case copied != b.copied || b.behind.IsZero():
		b.behind, b.stalled = now, false
	case now.Sub(b.behind) >= followerStalled:
		b.stalled = true
		b.log.Warn(faultStalled, "copy", copied, "replica", newest, "error", err)
		if err == nil && copied != "" && endFollower(b.db) {
			b.behind = now // the next one has as long
		}
	}
	b.copied = copied
}

// newestInReplica returns the TXID of the last transaction in the replica of the epoch that this machine follows.
// Snapshots (level 9) do not count, since the follower does not apply them.
func (b *standby) newestInReplica(ctx context.Context) (newest string, err error) {
	named, err := readEpochFile(epochPath(b.db))
	if err != nil {
		return "", err
	}
	db, err := filepath.Abs(b.db)
	if err != nil {
		return "", err
	}
	args := []string{"ltx", "-level", "all", "-json"}
	if b.config != "" {
		args = append(args, "-config", b.config)
	}
	limited, cancel := context.WithTimeout(ctx, peerInterval/2)
	defer cancel()
	out, err := runLitestream(limited, named, append(args, db)...)
	var files []struct {
		Level int
		TXID  string `json:"max_txid"`
	}
	if err == nil {
		err = json.Unmarshal(out, &files)
	}
	for _, file := range files {
		if file.Level != 9 {
			newest = max(newest, file.TXID)
		}
	}
	return newest, err
}

// endFollower kills the process of this user that keeps a copy up to date. It reports false if there is none.
func endFollower(db string) (ended bool) {
	db, _ = filepath.Abs(db) // newestInReplica has tried
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		text, _ := os.ReadFile(file) // it may have ended, or belong to another user
		args := strings.Split(string(text), "\x00")
		has := func(word string) bool { return slices.Contains(args, word) }
		if filepath.Base(args[0]) != "litestream" || !has("restore") || !has("-f") || !has(db) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(file, "/")[2])
		ended = err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil || ended
	}
	return ended
}

// startStatus has the status command ask the standby, over the same socket as the service.
func (b *standby) startStatus() (stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		report, health := b.health(), healthStatus(healthPass)
		if report.Output != standbyText {
			health = healthWarn
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(encodeJSON(serviceStatus{Version: buildName(), StartedAt: newStamp(b.started), Health: health,
			Output: report.Output, Standby: true})) // fails only when the client has gone
	})
	return serveSocket(socketPath(b.db), mux, b.log, func(serve func()) { go serve() })
}

// standbyText is what health says of a standby.
const standbyText = "this machine is the standby"

// ServeHTTP implements http.Handler: health, at any base address, fails with the member standby.
func (b *standby) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, id := w.Header(), newID("req", time.Now())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Request-Id", id)
	refused := &refusal{code: codeStorage, detail: "This machine is the standby."}
	status, kind, body := http.StatusServiceUnavailable, "application/problem+json", refused.encode("", id, nil)
	switch {
	case r.URL.Path == "/livez":
		status, kind, body = http.StatusOK, "text/plain; charset=utf-8", []byte("alive\n")
	case strings.HasSuffix(r.URL.Path, "/widget/health"):
		kind, body = "application/health+json", encodeJSON(b.health())
	case r.URL.Path == peerPath:
		status, kind, body = b.answer(r)
	}
	h.Set("Content-Type", kind)
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "30")
	}
	w.WriteHeader(status)
	w.Write(body) // fails only when the client has gone
}

func (b *standby) health() *healthReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	output := standbyText
	if fault := b.fault(); fault != "" {
		output += ", and " + fault
	}
	return &healthReport{Status: healthFail, Version: "1", ReleaseID: buildName(), Standby: true, Output: output,
		Checks: map[string][]healthProbe{}}
}

// answer answers a question of the peer.
func (b *standby) answer(r *http.Request) (status int, kind string, body []byte) {
	peer := clientOf(r, b.trusted)
	if v := b.askedBy.take(addressKey(peer, networkOfClient), peerRate, b.steady()); !v.ok {
		return http.StatusTooManyRequests, "", nil
	}
	keys, err := b.keys()
	if err != nil {
		b.log.Warn(faultKeyFile, "error", err)
		return http.StatusServiceUnavailable, "", nil
	}
	self := b.self
	b.mu.Lock()
	self.Behind = b.stalled
	b.mu.Unlock()
	asked, text, err := self.answer(keys, r)
	if err != nil {
		return http.StatusNotFound, "", nil
	}
	b.learn(asked, keys)
	return http.StatusOK, "application/octet-stream", text
}

// A promotion is what the promote command prints.
type promotion struct {
	Epoch         epoch    `json:"epoch"`
	File          string   `json:"file"`            // that names the epoch for Litestream's unit
	LastWrittenAt stamp    `json:"last_written_at"` // what was written later may be lost
	Peer          string   `json:"peer"`            // what the peer said
	Check         []string `json:"check"`           // in the span that may be lost

	heard   epoch // see epochsBeside
	highest int64 // of the epochs that the files beside the database and the peer know
}

// lostChecks say what to look for in the span that may be lost.
var lostChecks = []string{
	"revocations: tokens, licences and devices that were revoked, suspended or released work again: end them again",
	"new tokens and applications: their bearers are refused: issue them again",
	"new licence keys: 'no such licence' at the customer's: issue them again",
	"orders and payments of that time: compare 'payment list' with the provider's own list, and refund what no order " +
		"stands for",
}

// promoteCommand begins a new epoch in a database that nobody has open. What it does in which order leaves a file
// that is not served, or held, and that no follower goes on with, wherever it is broken off; then it is run again.
func promoteCommand(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	open, err := isOpenElsewhere(db)
	if err == nil && open {
		err = errors.New("another process has it open: stop the service, Litestream and 'litestream restore -f'")
	}
	done := &promotion{File: epochPath(db), Check: lostChecks, Peer: "none is named"}
	if err == nil {
		err = e.weighPromotion(db, keys, done) // before anything is changed
	}
	if err != nil {
		return fmt.Errorf("%s was not promoted: %w", db, err)
	}
	err = os.Rename(followerPath(db), promotingPath(db)) // from here on no follower writes into it
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if _, err := upgradeFile(e.ctx, db, upgradeOptions{now: e.now}); err != nil { // that of a follower may be older
		return err
	}
	st, err := openStore(db, storeOptions{noCheckpoints: true, now: e.now, followed: true})
	if err != nil {
		return err
	}
	if err := errors.Join(e.promote(st, keys, done), st.close()); err != nil {
		return fmt.Errorf("%s was not promoted: %w", db, err)
	}
	if err := os.Remove(promotingPath(db)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return e.print(done, done.text())
}

// askPeer asks the peer that -peer names. Most often it is lost, so it has 2 seconds.
func (e *env) askPeer(keys *keyring) (*peerMessage, error) {
	call, err := newPeerCall(e.str("peer"))
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(e.ctx, 2*time.Second)
	defer cancel()
	return peerMessage{Machine: randomText(16)}.ask(limited, keys, call)
}

// epochsBeside returns the epochs that the files beside a database name: its own, and the one of which a standby has
// heard, zero if its own is later.
func epochsBeside(db string) (named, heard epoch, err error) {
	named, err = readEpochFile(epochPath(db))
	heard, heardErr := readEpochFile(heardPath(db))
	if heard.Number < named.Number {
		heard = epoch{}
	}
	return named, heard, errors.Join(err, heardErr)
}

// weighPromotion asks the peer, if one is named, and reads the file, and refuses what takes -force. A file of an older
// schema is judged once it is upgraded.
func (e *env) weighPromotion(db string, keys *keyring, done *promotion) error {
	named, heard, err := epochsBeside(db)
	if err != nil {
		return err
	}
	done.heard, done.highest = heard, max(named.Number, heard.Number)
	if e.str("peer") != "" {
		m, err := e.askPeer(keys)
		switch {
		case errors.As(err, new(usageError)):
			return err
		case err != nil:
			done.Peer = "no usable answer: " + oneLineError{err}.Error()
		case m.Serves && !e.on("force"):
			return fmt.Errorf("the peer serves, in epoch %d: switch it off, or add -force", m.Number)
		case m.Serves:
			done.Peer, done.highest = fmt.Sprintf("it serves, in epoch %d", m.Number), max(done.highest, m.Number)
		default:
			done.Peer = "it is the standby"
		}
	}
	return readFile(db, func(q *queries) error {
		err := checkVersion(q)
		if errors.Is(err, errOlderSchema) {
			return nil
		}
		return cmp.Or(err, q.refuseDemo(db), e.weighFile(q, heard, keys))
	})
}

// weighFile refuses, without -force, a file that misses what the epoch of which was heard has brought, and one whose
// unexpired tokens and leases need keys that the key file lacks.
func (e *env) weighFile(q *queries, heard epoch, keys *keyring) error {
	was, err := q.epoch()
	if err != nil {
		return err
	}
	faults, err := lackingKeys(q, keys, e.now())
	if heard.outdates(was) {
		faults = append(faults, fmt.Sprintf("it is of epoch %s, and the peer has served in %s since: run "+
			"'pair follow' while it serves, or copy the file .heard to .epoch and run 'pair follow -force'",
			was, heard))
	}
	if err != nil || len(faults) == 0 || e.on("force") {
		return err
	}
	return errors.New(strings.Join(faults, "; ") + "; or add -force")
}

// promote begins an epoch above every one that the database, the files beside it and the peer know.
func (e *env) promote(st *store, keys *keyring, done *promotion) error {
	was, err := st.epoch()
	if err != nil {
		return err
	}
	if done.LastWrittenAt, err = st.lastWritten(); err != nil {
		return err
	}
	if err := e.weighFile(st.queries, done.heard, keys); err != nil {
		return err
	}
	done.Epoch = epoch{Number: max(was.Number, was.Known, done.highest) + 1, Name: randomText(6),
		BeganAt: newStamp(e.now())}
	done.Epoch.Known = done.Epoch.Number
	// The file comes first: until the database has the same epoch, the service waits.
	if err := writeEpochFile(epochPath(st.path), done.Epoch); err != nil {
		return err
	}
	// What Litestream has kept goes on from a replica of the earlier epoch: with it, the new one stays without
	// the transactions that were pruned here.
	if err := os.RemoveAll(litestreamPath(st.path)); err != nil {
		return err
	}
	if err := removeIdentityFile(st.path); err != nil {
		return err
	}
	return st.update(e.ctx, func(t *tx) error {
		for _, n := range e.nouns {
			if n.promoted == nil {
				continue
			}
			if err := n.promoted(t); err != nil {
				return err
			}
		}
		t.setEpoch(done.Epoch)
		t.exec(newIdentity)
		return nil
	})
}

// text returns what was done for people.
func (p *promotion) text() string {
	since := "at any time"
	if !p.LastWrittenAt.IsZero() {
		since = "after " + p.LastWrittenAt.String()
	}
	return fmt.Sprintf("epoch %s, in %s; the peer: %s\n"+
		"may be lost: what the other machine wrote %s and before it stopped. In that span, check\n  %s",
		p.Epoch, p.File, p.Peer, since, strings.Join(p.Check, "\n  "))
}

// peerFollow has the follower take the replica of the epoch in which the peer serves, never of an earlier one.
func peerFollow(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	named, heard, err := epochsBeside(db)
	_, keys, keysErr := e.loadKeys()
	if err := cmp.Or(err, keysErr); err != nil {
		return err
	}
	m, err := e.askPeer(keys)
	if err != nil {
		return fmt.Errorf("the peer is asked first: %w", err)
	}
	switch known := max(named.Number, heard.Number); {
	case !m.Serves:
		return errors.New("the peer does not serve")
	case m.Number < known:
		return fmt.Errorf("the peer serves in epoch %s, and this machine knows of epoch %d", m.epoch(), known)
	case !m.hasKeys(keys):
		return errors.New(faultKeyLists + ": copy it from there")
	case m.Number > 0:
		if err := writeEpochFile(epochPath(db), m.epoch()); err != nil {
			return err
		}
	}
	return e.done("the peer serves in epoch " + m.epoch().String())
}

// peerIgnore has the running service go on without an answer of its peer.
func peerIgnore(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	res, err := callService(e.ctx, db, "POST", "/peer/ignore")
	switch {
	case err != nil:
		return err
	case res == nil:
		return fmt.Errorf("no service runs over %s", db)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New("that does not help: 'widgetd status' says why the service holds back")
	}
	return e.done("the service goes on without an answer of its peer, until its next start or until the peer answers")
}
