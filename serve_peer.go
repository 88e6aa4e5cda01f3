package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// The peer is the other machine of a pair, of which one serves and the other is a warm standby: the same server,
// without a database. The one that serves asks its peer once a minute for its epoch, so that an old machine that is
// started again does nothing beside the one that was promoted. What a machine may do by that is its role
// (store_writer.go).

const (
	peerPath       = "/peer/"
	peerInterval   = time.Minute     // between two questions
	peerLimit      = 5 * time.Second // for a question and its answer
	peerRate       = 60              // questions a minute that an address may ask
	maxPeerMessage = 1 << 10         // bytes
)

// What the log and health say of a pair.
const (
	faultPeer     = "the peer gives no usable answer"
	faultKeyLists = "the key file does not have the same list of keys as that of the peer"
	faultEpoch    = "the epoch of the peer can't be written down"
	faultStalled  = "its copy has not followed the replica for 5 minutes"
	faultFollows  = "its copy is not of the epoch in which the peer serves: run 'pair follow'"

	reasonSilent   = "the peer has not answered since the start: nothing is paid, posted or sent until it does"
	reasonRivalled = "the peer serves in the same epoch: nothing is paid, posted or sent until one of both is promoted"
	reasonBehind   = "the copy of the standby has not followed the replica for 5 minutes"
	reasonMislaid  = "the database is not of the epoch that the file beside it names: nothing is paid, posted or " +
		"sent until it is promoted"
)

// A peerMessage says what a machine is, in a question or in its answer. On the network both are sealed under a key of
// the key file, which both machines have: a question for itself, and an answer for the nonce of its question, so that
// none can be made by somebody else, changed, or taken for another one.
type peerMessage struct {
	Machine string `json:"machine"` // the process that says it, by a random name
	Serves  bool   `json:"serves"`  // it has the database open, in this epoch; else it is the standby
	Number  int64  `json:"epoch"`
	Name    string `json:"id"`
	Behind  bool   `json:"behind,omitempty"` // the copy of the standby does not follow the replica
	Keys    []byte `json:"keys"`             // the hash of the list of keys in its key file
	Nonce   string `json:"nonce,omitempty"`  // of a question
}

// The purposes for which messages are sealed.
const (
	peerQuestion = "peer question"
	peerAnswer   = "peer answer"
)

// epoch returns the epoch of the machine that has said it.
func (m *peerMessage) epoch() epoch { return epoch{Number: m.Number, Name: m.Name} }

// hasKeys reports whether the key file of who has said it has the same list of keys.
func (m *peerMessage) hasKeys(keys *keyring) bool { return string(m.Keys) == string(keys.listHash()) }

// seal returns what a machine says in its form for the network.
func (m peerMessage) seal(keys *keyring, purpose, nonce string) []byte {
	m.Keys = keys.listHash()
	return keys.sealFor(purpose, nonce, encodeJSON(m))
}

// unsealPeer is the reverse of seal.
func unsealPeer(keys *keyring, purpose, nonce string, text []byte) (*peerMessage, error) {
	m := &peerMessage{}
	plain, err := keys.unsealFor(purpose, nonce, text)
	if err == nil {
		err = json.Unmarshal(plain, m)
	}
	if err != nil {
		return nil, errors.New("it is not what the other machine says: do both have the same key file?")
	}
	return m, nil
}

// ask asks the peer what it is. m says what this machine is.
func (m peerMessage) ask(ctx context.Context, keys *keyring, call peerCall) (*peerMessage, error) {
	m.Nonce = randomText(16)
	text, err := call(ctx, m.seal(keys, peerQuestion, ""))
	if err != nil {
		return nil, err
	}
	said, err := unsealPeer(keys, peerAnswer, m.Nonce, text)
	if err == nil && said.Machine == m.Machine {
		err = errors.New("-peer leads to this machine itself")
	}
	return said, err
}

// answer returns what the peer asks, and the answer.
func (m peerMessage) answer(keys *keyring, r *http.Request) (asked *peerMessage, text []byte, err error) {
	if r.Method != http.MethodPost || r.URL.Path != peerPath {
		return nil, nil, errNotFound
	}
	question, err := io.ReadAll(io.LimitReader(r.Body, maxPeerMessage))
	if err == nil {
		asked, err = unsealPeer(keys, peerQuestion, "", question)
	}
	if err != nil {
		return nil, nil, errNotFound
	}
	return asked, m.seal(keys, peerAnswer, asked.Nonce), nil
}

// A peerCall sends a question and returns the body of the answer.
type peerCall func(ctx context.Context, question []byte) ([]byte, error)

// everywhere are all addresses. A client for which they are admitted calls only where its operator says.
var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// newPeerCall returns the call to the machine at an address, as http://10.0.0.2:8080. It has a client of its own, so
// that nothing else may call that address. The error says what is wrong with the address.
func newPeerCall(address string) (peerCall, error) {
	client := newOutbound(everywhere)
	client.limit = peerLimit
	normal, _, detail := client.checkURL(address)
	u, err := url.Parse(normal)
	if detail != "" || err != nil || u.Path != "/" || u.RawQuery != "" {
		return nil, usageError("-peer must be the address of the other machine, as https://b.example.com or " +
			"http://10.0.0.2:8080, without a path")
	}
	target := u.Scheme + "://" + u.Host + peerPath
	return func(ctx context.Context, question []byte) ([]byte, error) {
		defer client.close()
		answer, err := client.do(ctx, outboundRequest{http.MethodPost, target, nil, question, maxPeerMessage})
		if err == nil && answer.status != http.StatusOK {
			err = fmt.Errorf("it answers with the status %d", answer.status)
		}
		if err != nil {
			return nil, err
		}
		return answer.body, nil
	}, nil
}

// A pairing is what a machine does as one of a pair: it answers the peer and, if it serves, asks it.
type pairing struct {
	server      *server
	self        peerMessage
	call        peerCall // of one that serves: the standby asks nothing
	config      string   // of Litestream, on the standby; "": its own default
	mustPromote bool     // no answer ends that this machine waits: it must be promoted

	mu        sync.Mutex
	otherKeys bool      // the key file of the peer had another list of keys at its last question
	copied    string    // the last transaction that the follower has applied, when it was looked at last
	lagSince  time.Time // since when the replica has a later one, or can't be read; zero: it has not
	stalled   bool      // that lasts for followerStalled
}

// followerStalled is how long the copy may stay behind the replica without a change.
const followerStalled = 5 * time.Minute

// joinPair has a service that does not run yet watch and answer the peer at an address. Until that has answered, the
// service waits. Without an address it does nothing, unless another machine was promoted.
func (s *server) joinPair(address string) (*pairing, error) {
	switch {
	case address == "" && s.store.fenced():
		return nil, errors.New("another machine was promoted: make this one the standby with 'pair follow'; if it is " +
			"to serve instead, run 'widgetd promote -force'")
	case address == "":
		return nil, nil
	}
	call, err := newPeerCall(address)
	if err != nil {
		return nil, err
	}
	for _, base := range s.routing.Load().bases {
		if root, ok := strings.CutPrefix(base.URL, strings.TrimSuffix(address, "/")); ok && root[0] == '/' {
			return nil, usageError("-peer must be the address of the other machine alone, and " + address +
				" is that of the service, which moves from one to the other")
		}
	}
	own, err := s.store.epoch()
	if err != nil {
		return nil, err
	}
	named, err := readEpochFile(epochPath(s.store.path))
	if err != nil {
		return nil, err
	}
	p := &pairing{server: s, call: call, mustPromote: named.String() != own.String(),
		self: peerMessage{Machine: randomText(16), Serves: true, Number: own.Number, Name: own.Name}}
	p.become(dutyWaiting, reasonSilent)
	if p.mustPromote {
		p.become(dutyWaiting, reasonMislaid)
	}
	s.roots = append(s.roots, rootPath{path: peerPath, page: true, serve: p.answer})
	s.workers = append(s.workers, p.run)
	s.routing.Store(nil) // which lacks the path
	return p, s.refresh()
}

// standBy makes a server without a database, which does not run yet, answer health and the peer, and look after the
// copy. config is Litestream's configuration.
func (s *server) standBy(config string) *pairing {
	p := &pairing{server: s, config: config, self: peerMessage{Machine: randomText(16)}}
	s.roots = []rootPath{{path: peerPath, serve: p.answer}, {path: "/", serve: s.answerAsStandby}}
	s.workers = []func(context.Context){p.run, func(ctx context.Context) { every(ctx, time.Second, p.updateHealth) }}
	p.updateHealth()
	return p
}

// answerAsStandby answers everything but the peer: health at any base address, which only the database knows.
func (s *server) answerAsStandby(w *response, r *http.Request) {
	switch {
	case r.URL.Path == "/livez":
		s.getLiveness(w, r)
	case strings.HasSuffix(r.URL.Path, "/widget/health"):
		report, _ := s.getHealth(r.Context(), nil, noMembers{})
		s.write(w, *report)
	default:
		s.fail(w, r, &refusal{code: codeStorage, retryAfter: 30 * time.Second, detail: "This machine is the standby."})
	}
}

// become changes the role, and logs that.
func (p *pairing) become(next role, reason string) {
	switch {
	case !p.server.store.become(machineState{next, reason}):
	case reason == "":
		p.server.log.Info("the peer leaves the work to this machine", "epoch", p.self.epoch().String())
	case reason == reasonStandby:
		p.server.log.Info(reason)
	default:
		p.server.log.Warn(reason)
	}
}

// keepHeard takes it that the peer serves in the epoch of a message, or has done so at some time. The latest such
// epoch is kept beside the database: if it is later than this machine's own, nothing is written here any more, by
// commands neither, also after a restart. What can't be kept is tried again when the peer says it again.
func (p *pairing) keepHeard(m *peerMessage, keys *keyring) {
	p.mu.Lock()
	defer p.mu.Unlock()
	db, own, said := p.server.store.path, p.self.epoch(), m.epoch()
	named, heard, _ := epochsBeside(db) // joinPair and fault tell of the error
	if !p.self.Serves {
		own = named // of the copy
	}
	if !m.Serves || said.Number < max(own.Number, heard.Number) || p.self.Serves && said.Number == own.Number {
		return
	}
	if p.self.Serves {
		p.become(roleFenced, reasonSuperseded)
	}
	if said.outdates(heard) {
		if err := writeEpochFile(heardPath(db), said); err != nil {
			p.server.log.Warn(faultEpoch, "error", err)
		}
	}
	p.otherKeys = !m.hasKeys(keys)
}

// updateHealth sets what health says of the standby.
func (p *pairing) updateHealth() {
	p.mu.Lock()
	defer p.mu.Unlock()
	reason := reasonStandby
	if fault := p.fault(); fault != "" {
		reason += ", and " + fault
	}
	p.become(roleStandby, reason)
}

// fault returns what is wrong with the standby; "": nothing. The caller holds p.mu.
func (p *pairing) fault() string {
	named, heard, err := epochsBeside(p.server.store.path)
	switch {
	case err != nil || heard.outdates(named):
		return faultFollows
	case p.server.keysStale.Load():
		return faultKeyFile
	case p.otherKeys:
		return faultKeyLists
	case p.stalled:
		return faultStalled
	}
	return ""
}

// compare notes whether the copy follows the replica: 'litestream restore -f' may stall in silence (litestream#1515).
// Its unit starts it again.
func (p *pairing) compare(ctx context.Context, now time.Time) {
	copied, newest, err := replicaPosition(ctx, p.server.store.path, p.config)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && newest <= copied:
		p.lagSince, p.stalled = time.Time{}, false
	case copied != p.copied || p.lagSince.IsZero():
		p.lagSince, p.stalled = now, false
	case now.Sub(p.lagSince) >= followerStalled:
		p.stalled = true
		p.server.log.Warn(faultStalled, "copy", copied, "replica", newest, "error", err)
	}
	p.copied = copied
}

// check asks the peer once, and acts on its answer. Without one, everything stays as it is.
func (p *pairing) check(ctx context.Context) {
	keys := p.server.keys.Load()
	m, err := p.self.ask(ctx, keys, p.call)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		p.server.log.Warn(faultPeer, "error", err)
		return
	}
	p.keepHeard(m, keys)
	switch {
	case p.mustPromote:
	case m.Serves && m.Number == p.self.Number:
		p.become(dutyWaiting, reasonRivalled)
	case !m.hasKeys(keys):
		p.become(roleAlone, faultKeyLists)
	case m.Behind:
		p.become(roleAlone, reasonBehind)
	default:
		p.become(roleAlone, "")
	}
}

// run asks the peer or, on the standby, compares the copy with the replica, at once and then every peerInterval until
// ctx ends.
func (p *pairing) run(ctx context.Context) {
	once := func() { p.check(ctx) }
	if !p.self.Serves {
		once = func() { p.compare(ctx, p.server.monotonic()) }
	}
	once()
	every(ctx, peerInterval, once)
}

// lookForFollower ends all writing if 'litestream restore -f' was started on the database.
func (s *server) lookForFollower() {
	if checkNotFollowed(s.store.path) != nil && s.store.become(machineState{roleFenced, reasonFollowed}) {
		s.log.Warn(reasonFollowed)
	}
}

// answer answers a question of the peer.
func (p *pairing) answer(w *response, r *http.Request) {
	s, self, keys := p.server, p.self, p.server.keys.Load()
	p.mu.Lock()
	self.Behind = p.stalled
	p.mu.Unlock()
	err := s.limitAddress("peer", s.address(r), peerRate)
	var asked *peerMessage
	var text []byte
	if err == nil {
		asked, text, err = self.answer(keys, r)
	}
	if err == nil {
		p.keepHeard(asked, keys)
		if s.store.fenced() && s.outbound.flying.Load() > 0 {
			err = errFenced // it asks again: until these calls have ended, it must not do the same
		}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	s.write(w, reply{status: http.StatusOK, body: text})
}

// ignorePeer goes on without an answer of the peer until the next start. It reports false if that does not help.
func (s *server) ignorePeer() bool {
	if s.store.machineState().reason == reasonSilent && s.store.become(machineState{}) {
		s.log.Warn("the peer is ignored until the next start")
	}
	return !s.store.waits()
}

// The commands of a pair of machines.

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
		[]option{optPeer, optLitestreamConfig, optForce.says("promote also while the peer serves, a copy of an " +
			"earlier epoch or that lacks what the replica has, or without a key that unexpired tokens and leases " +
			"need")}, promoteCommand},
	{"peer follow", "", "ask the peer, which serves, for its epoch, and name it in the file for the follower",
		[]option{optPeer}, peerFollow},
	{"peer ignore", "", "have the running service go on without an answer of its peer, until its next start",
		nil, peerIgnore},
}

// epochStatus is what the status command says of the epoch; null: the database was never promoted.
func epochStatus(v *statusView, to *statusReport) error {
	e, err := v.epoch()
	later, heardErr := laterEpoch(v.path)
	e.Known = max(e.Known, later)
	to.set("epoch", nil)
	if err := cmp.Or(err, heardErr); err != nil || e.Known == 0 {
		return err
	}
	to.set("epoch", e)
	line := fmt.Sprintf("%s, since %s", e, stampText(e.BeganAt))
	if e.Known > e.Number {
		line += fmt.Sprintf("; another machine has %d", e.Known)
	}
	to.say("%s", line)
	return nil
}

// superseded is that the file has heard of a later epoch, whether or not a service holds back for that.
var superseded = trouble{kind: "epoch_superseded", urgency: rings,
	one: "another machine was promoted: stop this one, and make it the standby",
	inFile: func(v *statusView) (occurrence, error) {
		e, err := v.epoch()
		later, heardErr := laterEpoch(v.path)
		err = cmp.Or(err, heardErr)
		return occursIf(err == nil && later > e.Number, stamp{}, "", ""), err
	}}

// A promotion is what the promote command prints.
type promotion struct {
	Epoch         epoch    `json:"epoch"`
	File          string   `json:"file"`            // that names the epoch for Litestream's unit
	LastWrittenAt stamp    `json:"last_written_at"` // what was written later may be lost
	Peer          string   `json:"peer"`            // what the peer said
	Check         []string `json:"check"`           // in the span that may be lost

	peerEpoch epoch // see epochsBeside
	highest   int64 // of the epochs that the files beside the database and the peer know
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
		err = e.checkPromotion(db, keys, done) // before anything is changed
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
	st, err := openStore(db, storeOptions{noCheckpoints: true, now: e.now, replica: true})
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

// checkPromotion asks the peer, if one is named, and reads the file, and refuses what takes -force. A file of an older
// schema is judged once it is upgraded.
func (e *env) checkPromotion(db string, keys *keyring, done *promotion) error {
	named, heard, err := epochsBeside(db)
	if err != nil {
		return err
	}
	done.peerEpoch, done.highest = heard, max(named.Number, heard.Number)
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
	var faults []string
	if fileExists(followerPath(db)) {
		if _, err := copiedTo(e.ctx, db, e.str("config")); err != nil {
			faults = append(faults, err.Error())
		}
	}
	err = readFile(db, func(q *queries) error {
		err := checkVersion(q)
		if errors.Is(err, errOlderSchema) {
			return nil
		}
		if err := cmp.Or(err, q.refuseDemo(db)); err != nil {
			return err
		}
		more, err := e.faultsOfFile(q, heard, keys)
		faults = append(faults, more...)
		return err
	})
	return cmp.Or(e.unlessForced(faults), err) // a copy that lacks something may not be readable
}

// faultsOfFile returns what promote must not do without -force: to a file that misses what the epoch of which was heard
// has brought, or one whose unexpired tokens and leases need keys that the key file lacks.
func (e *env) faultsOfFile(q *queries, heard epoch, keys *keyring) (faults []string, err error) {
	was, err := q.epoch()
	if err != nil {
		return nil, err
	}
	faults, err = lackingKeys(q, keys, e.now())
	if heard.outdates(was) {
		faults = append(faults, fmt.Sprintf("it is of epoch %s, and the peer has served in %s since: run "+
			"'pair follow' while it serves, or copy the file .heard to .epoch and run 'pair follow -force'",
			was, heard))
	}
	return faults, err
}

// unlessForced returns faults as an error; nil: there are none, or -force was given.
func (e *env) unlessForced(faults []string) error {
	if len(faults) == 0 || e.on("force") {
		return nil
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
	faults, err := e.faultsOfFile(st.queries, done.peerEpoch, keys)
	if err := cmp.Or(err, e.unlessForced(faults)); err != nil {
		return err
	}
	done.Epoch = epoch{Number: max(was.Number, done.highest) + 1, Name: randomText(6),
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

// peerFollow makes the follower take the replica of the epoch in which the peer serves, never of an earlier one.
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

// peerIgnore tells the running service to go on without an answer of its peer.
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
