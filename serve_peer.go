package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
)

// The peer is the other machine of a pair, of which one serves and the other is a warm standby: the same server,
// without a database. The one that serves asks its peer once a minute for its epoch, so that an old machine that is
// started again does nothing beside the one that was promoted. What a machine may do by that is its standing
// (store_epoch.go).

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

// become changes the standing, and logs that.
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
