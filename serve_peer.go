package main

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The peer is the other machine of a pair, of which one serves and the other is a warm standby. Each asks the other
// for its epoch, so that an old machine that is started again does nothing beside the one that was promoted.

const (
	peerPath       = "/peer/"
	peerInterval   = time.Minute     // between two questions
	peerLimit      = 5 * time.Second // for a question and its answer
	peerRate       = 60              // questions a minute that an address may ask
	maxPeerMessage = 1 << 10         // bytes
	faultPeer      = "the peer gives no usable answer"
	faultKeyLists  = "the key file does not have the same list of keys as that of the peer"
	faultEpoch     = "the epoch of the peer can't be written down"
)

// The roles of a machine.
const (
	rolePrimary = "primary" // it has the database open
	roleStandby = "standby" // it has not
)

// A peerMessage is a question or an answer. Both say what a machine is.
type peerMessage struct {
	Machine string `json:"machine"` // the process that says it, by a random name
	Role    string `json:"role"`
	Number  int64  `json:"epoch"`
	Name    string `json:"id"`    // of the epoch
	Keys    []byte `json:"keys"`  // the hash of the list of keys in the key file
	Nonce   string `json:"nonce"` // of the question, repeated in its answer
	Hash    []byte `json:"hash"`
}

// epoch returns the epoch of the machine that has said it.
func (m *peerMessage) epoch() epoch { return epoch{Number: m.Number, Name: m.Name} }

// hasKeys reports whether the key file of who has said it has the same list of keys.
func (m *peerMessage) hasKeys(keys *keyring) bool { return hmac.Equal(m.Keys, keys.listHash()) }

// The purposes of the keyed hashes of messages. They differ, so that no question can be passed off as an answer.
const (
	peerQuestion = "peer question"
	peerAnswer   = "peer answer"
)

// hash returns the keyed hash of a message. asker is the machine that is answered; "" in a question.
func (m *peerMessage) hash(keys *keyring, purpose, asker string) []byte {
	return keys.hash(purpose, asker, m.Machine, m.Role, strconv.FormatInt(m.Number, 10), m.Name, string(m.Keys),
		m.Nonce)
}

// A peerVoice says what this machine is, and understands what the other says. Both have the same key file.
type peerVoice struct {
	machine string
	role    string
	keys    func() *keyring
	present func() epoch
}

// say returns a message in its form for the network.
func (v *peerVoice) say(purpose, asker, nonce string) []byte {
	e := v.present()
	keys := v.keys()
	m := &peerMessage{Machine: v.machine, Role: v.role, Number: e.Number, Name: e.Name, Keys: keys.listHash(),
		Nonce: nonce}
	m.Hash = m.hash(keys, purpose, asker)
	return encodeJSON(m)
}

// hear reads a message and checks its hash.
func (v *peerVoice) hear(text []byte, purpose, asker string) (*peerMessage, error) {
	m := &peerMessage{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, errors.New("it is not what a widgetd says")
	}
	if !hmac.Equal(m.Hash, m.hash(v.keys(), purpose, asker)) {
		return nil, errors.New("its hash is wrong: do both machines have the same key file?")
	}
	if m.Role != rolePrimary && m.Role != roleStandby || m.Number < 0 {
		return nil, errors.New("it has an unknown role")
	}
	return m, nil
}

// reply returns what was asked, and the answer to it.
func (v *peerVoice) reply(question []byte) (asked *peerMessage, answer []byte, err error) {
	if asked, err = v.hear(question, peerQuestion, ""); err != nil {
		return nil, nil, err
	}
	return asked, v.say(peerAnswer, asked.Machine, asked.Nonce), nil
}

// ask puts a question through call and returns the answer. One that was given before, to somebody else or by this
// process itself is an error.
func (v *peerVoice) ask(ctx context.Context, call peerCall) (*peerMessage, error) {
	nonce := randomText(16)
	text, err := call(ctx, v.say(peerQuestion, "", nonce))
	if err != nil {
		return nil, err
	}
	m, err := v.hear(text, peerAnswer, v.machine)
	switch {
	case err != nil:
		return nil, err
	case m.Nonce != nonce:
		return nil, errors.New("it answers another question")
	case m.Machine == v.machine:
		return nil, errors.New("-peer leads to this machine itself")
	}
	return m, nil
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
	header := http.Header{"Content-Type": {"application/json"}}
	target := u.Scheme + "://" + u.Host + peerPath
	return func(ctx context.Context, question []byte) ([]byte, error) {
		defer client.close()
		answer, err := client.do(ctx, outboundRequest{http.MethodPost, target, header, question, maxPeerMessage})
		if err != nil {
			return nil, err
		}
		if answer.status != http.StatusOK {
			return nil, fmt.Errorf("it answers with the status %d", answer.status)
		}
		return answer.body, nil
	}, nil
}

// A peerStanding says what a machine with a peer may do.
type peerStanding int32

const (
	standsAlone peerStanding = iota // everything: the peer is a standby, or in an earlier epoch
	peerSilent                      // the peer has not answered since the start
	rivalled                        // the peer serves in the same epoch
	mislaid                         // the database is not of the epoch that the file beside it names
	superseded                      // the peer serves in a later epoch
	followed                        // 'litestream restore -f' writes into the database
)

// What health and the log say of a machine that waits.
const (
	reasonSilent   = "the peer has not answered since the start: nothing is paid, posted or sent until it does"
	reasonRivalled = "the peer serves in the same epoch: nothing is paid, posted or sent until one of both is promoted"
	reasonMislaid  = "the database is not of the epoch that the file beside it names: nothing is paid, posted or sent " +
		"until it is promoted"
)

// standingReasons are what health and the log say of each standing.
var standingReasons = map[peerStanding]string{
	peerSilent: reasonSilent,
	rivalled:   reasonRivalled,
	mislaid:    reasonMislaid,
	superseded: reasonSuperseded,
	followed:   reasonFollowed,
}

// fences reports whether nothing may be written, besides what is held.
func (s peerStanding) fences() bool { return s == superseded || s == followed }

// A peerWatch decides by what the peer says what this machine may do. Its methods may be called on nil, which
// stands for a machine without a peer, and by any goroutine.
type peerWatch struct {
	peerVoice
	call      peerCall
	store     *store
	log       *slog.Logger
	noteFault func(fault string, err error, attrs ...any)
	now       atomic.Int32 // a peerStanding
	changing  sync.Mutex   // held while now is set
	heard     atomic.Int64 // the latest epoch of which this machine knows
	kept      atomic.Int64 // the one that the database knows
	otherKeys atomic.Bool  // the key file of the peer had another list of keys when it answered last
}

// newPeerWatch begins to watch the peer at an address. Until it has answered, everything is held. Without an address it
// returns nil.
func newPeerWatch(s *server, address string) (*peerWatch, error) {
	switch {
	case address == "" && s.store.fenced.Load():
		return nil, errors.New("another machine was promoted: make this one the standby, or run 'widgetd promote'")
	case address == "":
		return nil, nil
	}
	call, err := newPeerCall(address)
	if err != nil {
		return nil, err
	}
	if err := checkPeerAddress(s.store.queries, address); err != nil {
		return nil, err
	}
	own, err := s.store.epoch()
	if err != nil {
		return nil, err
	}
	named, err := readEpochFile(epochPath(s.store.path))
	if err != nil {
		return nil, err
	}
	p := &peerWatch{call: call, store: s.store, log: s.log, noteFault: s.noteFault, peerVoice: peerVoice{
		machine: randomText(16), role: rolePrimary, keys: s.keys.Load, present: func() epoch { return own }}}
	p.heard.Store(own.Known)
	p.kept.Store(own.Known)
	p.become(peerSilent)
	if named.String() != own.String() {
		p.become(mislaid)
	}
	if own.superseded() {
		p.become(superseded)
	}
	return p, nil
}

func (p *peerWatch) standing() peerStanding {
	if p == nil {
		return standsAlone
	}
	return peerStanding(p.now.Load())
}

// holds reports whether nothing outside may be asked.
func (p *peerWatch) holds() bool { return p.standing() != standsAlone }

// become changes the standing. From mislaid on it only gets worse: it ends with a promotion, and so a new start.
func (p *peerWatch) become(next peerStanding) {
	p.changing.Lock()
	defer p.changing.Unlock()
	now := p.standing()
	if next == now || now >= mislaid && next < now {
		return
	}
	p.now.Store(int32(next))
	if next == standsAlone {
		p.log.Info("the peer leaves the work to this machine", "epoch", p.present().String())
		return
	}
	if next.fences() {
		p.store.fence()
	}
	p.log.Warn(standingReasons[next], "epoch", p.present().String())
}

// learn takes it that the peer serves in the epoch of a message, or has done so at some time: from then on this machine
// writes nothing but that.
func (p *peerWatch) learn(m *peerMessage) {
	if m.Role != rolePrimary || m.Number <= p.heard.Load() {
		return
	}
	p.heard.Store(m.Number)
	p.become(superseded)
	p.keepHeard(context.Background())
}

// keepHeard writes the latest epoch that was heard of to the database, if it is not there yet, so that no process
// writes there any more, also after a restart. It tries for peerLimit; the chores try again.
func (p *peerWatch) keepHeard(ctx context.Context) {
	if p == nil || p.heard.Load() <= p.kept.Load() || p.standing() == followed { // then Litestream alone writes
		return
	}
	heard := p.heard.Load()
	limited, cancel := context.WithTimeout(ctx, peerLimit)
	defer cancel()
	err := p.store.updateFenced(limited, func(t *tx) error { return t.learnEpoch(heard) })
	if err == nil {
		p.kept.Store(heard)
	} else if ctx.Err() == nil {
		p.noteFault(faultEpoch, err)
	}
}

// check asks the peer once, and acts on its answer. Without one, everything stays as it is.
func (p *peerWatch) check(ctx context.Context) {
	m, err := p.ask(ctx, p.call)
	if err == nil {
		p.otherKeys.Store(!m.hasKeys(p.keys()))
	}
	if p.otherKeys.Load() {
		p.noteFault(faultKeyLists, errors.New("copy the key file of the machine that serves to the other one"))
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.noteFault(faultPeer, err)
	case m.Role == rolePrimary && m.Number == p.present().Number:
		p.become(rivalled)
	default:
		p.learn(m)
		p.become(standsAlone) // unless the standing is worse
	}
}

// run asks the peer at once, and then every peerInterval until ctx ends.
func (p *peerWatch) run(ctx context.Context) {
	tick := time.NewTicker(peerInterval)
	defer tick.Stop()
	for {
		p.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lookForFollower ends all writing if 'litestream restore -f' was started on the database.
func (p *peerWatch) lookForFollower() {
	if p != nil && checkNotFollowed(p.store.path) != nil {
		p.become(followed)
	}
}

// ignore goes on without an answer of the peer until the next start. It reports false if that would not help.
func (p *peerWatch) ignore() bool {
	if p.standing() == peerSilent {
		p.log.Warn("the peer is ignored until the next start")
		p.become(standsAlone)
	}
	return !p.holds()
}

// serve answers questions of the peer.
func (p *peerWatch) serve(s *server) func(w *response, r *http.Request) {
	return func(w *response, r *http.Request) {
		if err := s.limitAddress("peer", s.address(r), peerRate); err != nil {
			s.fail(w, r, err)
			return
		}
		asked, answer, err := p.replyTo(r)
		if err != nil {
			s.fail(w, r, errNotFound)
			return
		}
		p.learn(asked)
		if p.standing() == superseded && s.outbound.flying.Load() > 0 {
			s.fail(w, r, errFenced) // it asks again: until these calls have ended, it must not do the same
			return
		}
		w.Header().Set("Content-Type", "application/json")
		s.write(w, reply{http.StatusOK, answer})
	}
}

// replyTo is reply for a question of the network.
func (v *peerVoice) replyTo(r *http.Request) (asked *peerMessage, answer []byte, err error) {
	if r.Method != http.MethodPost || r.URL.Path != peerPath {
		return nil, nil, errNotFound
	}
	question, err := io.ReadAll(io.LimitReader(r.Body, maxPeerMessage))
	if err != nil {
		return nil, nil, err
	}
	return v.reply(question)
}

// peerWing is the part of the service that answers and asks the peer, if there is one.
func peerWing(s *server) wing {
	if s.peer == nil {
		return wing{}
	}
	return wing{roots: []rootPath{{path: peerPath, page: true, serve: s.peer.serve(s)}},
		workers: []func(context.Context){s.peer.run}}
}

// tellPeer adds to a health report why this machine does not do everything, or could not be replaced.
func (h *healthReport) tellPeer(p *peerWatch) {
	now := p.standing()
	if h.Status == healthPass && p != nil && now == standsAlone && p.otherKeys.Load() {
		h.Status, h.Output = healthWarn, faultKeyLists
	}
	if reason := standingReasons[now]; now.fences() {
		h.Status, h.Output = healthFail, reason
	} else if reason != "" && h.Status == healthPass {
		h.Status, h.Output = healthWarn, reason
	}
}

// checkPeerAddress refuses a peer that is the base address: it leads to whichever machine serves.
func checkPeerAddress(q *queries, peer string) error {
	of, err := url.Parse(peer)
	if err != nil {
		return err
	}
	bases, err := q.baseURLs()
	for _, base := range bases {
		if u, err := url.Parse(base.URL); err == nil && u.Scheme == of.Scheme && u.Host == of.Host {
			return usageError("-peer must be the address of the other machine alone, and " + u.Host +
				" is that of the service, which moves from one to the other")
		}
	}
	return err
}
