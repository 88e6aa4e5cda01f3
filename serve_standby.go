package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

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
