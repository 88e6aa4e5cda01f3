package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A pair is two services with the same keys, each the peer of the other.
type pair struct {
	a, b    *service
	address string      // of the peer of each; nothing is sent there
	cut     atomic.Bool // no question arrives
	watches map[*service]*pairing
}

func newPair(t *testing.T) *pair {
	p := &pair{a: newService(t), b: newService(t), address: "http://10.0.0.2:8080",
		watches: map[*service]*pairing{}}
	p.b.keys = p.a.keys
	p.start(p.a, p.b)
	p.start(p.b, p.a)
	return p
}

// start starts a machine anew, with another one as its peer.
func (p *pair) start(s, peer *service) {
	s.t.Helper()
	p.startBeside(s, func(w http.ResponseWriter, r *http.Request) { peer.server.ServeHTTP(w, r) })
}

// startBeside starts a machine anew, with a peer that answers like f.
func (p *pair) startBeside(s *service, f http.HandlerFunc) {
	s.t.Helper()
	how := s.server.serverOptions
	var err error
	s.store.state.Store(nil)
	own, ownErr := s.store.epoch()
	_, heard, heardErr := epochsBeside(s.store.path)
	s.check(errors.Join(ownErr, heardErr))
	if heard.Number > own.Number { // as when it is opened
		s.store.become(machineState{roleFenced, reasonSuperseded})
	}
	s.server, err = newServer(s.store, s.keys, how, slog.New(slog.NewTextHandler(s.log, nil)), nouns())
	s.check(err)
	if p.watches[s], err = s.server.joinPair(p.address); err != nil {
		s.t.Fatal(err)
	}
	p.watches[s].call = func(_ context.Context, question []byte) ([]byte, error) {
		if p.cut.Load() {
			return nil, errors.New("no route to host")
		}
		w := httptest.NewRecorder()
		f(w, httptest.NewRequest("POST", peerPath, bytes.NewReader(question)))
		if w.Code != http.StatusOK {
			return nil, fmt.Errorf("status %d", w.Code)
		}
		return w.Body.Bytes(), nil
	}
}

// promoted begins the epoch of that number on a stopped machine.
func (s *service) promoted(number int64) {
	s.t.Helper()
	s.store.state.Store(nil)
	e := epoch{Number: number, Name: randomText(6)}
	s.change(func(t *tx) error {
		t.setEpoch(e)
		return nil
	})
	s.check(writeEpochFile(epochPath(s.store.path), e))
}

// asks has a machine ask its peer once.
func (p *pair) asks(s *service) { p.watches[s].check(s.t.Context()) }

// stands compares what health says of how a machine stands, and that it does no more than it may; "": everything.
func (s *service) stands(reason string) {
	s.t.Helper()
	status, health, wrote := 200, "pass", 200
	switch reason {
	case "":
	case reasonSuperseded, reasonFollowed:
		status, health, wrote = 503, "fail", 503
	default:
		health = "warn"
	}
	a := s.health().is(status)
	equal(s.t, "health", a.text("status"), health)
	engine := s.server.connector(false)
	equal(s.t, "payments and books are off", engine.off(), reason != "")
	if reason != "" {
		equal(s.t, "why", a.text("output"), reason)
		_, err := s.server.outbound.do(s.t.Context(), outboundRequest{method: "GET", url: "https://api.example.com/"})
		equal(s.t, "a call", fmt.Sprint(err), outboundCanceled+": the peer may do it")
	}
	s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"%s@example.com"}`, randomText(6)),
		"Origin: "+siteOrigin).is(wrote)
}

func TestPeer_twoOfTheSameEpochHoldUntilOneIsPromoted(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	both := []*service{p.a, p.b}
	for _, number := range []int64{0, 2} {
		for i, s := range both {
			if number > 0 { // with no network between them
				s.promoted(number)
			}
			p.start(s, both[1-i])
		}
		p.asks(p.a)
		p.asks(p.b)
		p.a.stands(reasonRivalled)
		p.b.stands(reasonRivalled)
		equal(t, "ignoring it helps", p.a.server.ignorePeer(), false)

		p.b.promoted(number + 1)
		p.start(p.b, p.a)
		p.asks(p.b) // which tells a
		p.b.stands("")
		p.a.stands(reasonSuperseded)
		p.asks(p.a)
		p.a.stands(reasonSuperseded)
	}
	p.cut.Store(true)
	p.start(p.a, p.b)
	p.a.stands(reasonSuperseded) // it has kept that
}

// asked returns the question that a machine puts to its peer, and the answer that it gets from a handler.
func (p *pair) asked(s *service, by http.Handler) (question, answer []byte) {
	s.t.Helper()
	p.startBeside(s, func(w http.ResponseWriter, r *http.Request) {
		question, _ = io.ReadAll(r.Body)
		answered := httptest.NewRecorder()
		by.ServeHTTP(answered, httptest.NewRequest("POST", peerPath, bytes.NewReader(question)))
		answer = answered.Body.Bytes()
		w.WriteHeader(http.StatusNotFound)
	})
	p.asks(s)
	return question, answer
}

func TestPeer_believesNothingThatItsPeerHasNotAnsweredToThisQuestion(t *testing.T) {
	t.Parallel()
	p, strangers := newPair(t), newPair(t)
	peer := standbyWith(t, p.a.keys)
	asked, now := standbyWith(t, p.a.keys), time.Now()
	asked.monotonic = func() time.Time { now = now.Add(time.Second); return now } // never too often
	answered := func(question []byte) []byte {
		w := httptest.NewRecorder()
		asked.ServeHTTP(w, httptest.NewRequest("POST", peerPath, bytes.NewReader(question)))
		equal(t, "the status of an answer", w.Code, http.StatusOK)
		return w.Body.Bytes()
	}
	_, earlier := p.asked(p.a, peer)
	_, toAnother := p.asked(p.b, peer)
	_, forged := strangers.asked(strangers.a, standbyWith(t, strangers.a.keys))
	answers := map[string]func(question []byte) []byte{
		"forged":     func([]byte) []byte { return forged },
		"replayed":   func([]byte) []byte { return earlier },
		"to another": func([]byte) []byte { return toAnother },
		"reflected":  func(question []byte) []byte { return question },
		"from oneself": func(question []byte) []byte {
			w := httptest.NewRecorder()
			p.a.server.ServeHTTP(w, httptest.NewRequest("POST", peerPath, bytes.NewReader(question)))
			return w.Body.Bytes()
		},
		"no answer": func([]byte) []byte { return []byte("<html>") },
	}
	for at := range len(earlier) {
		answers[fmt.Sprint("cut after ", at)] = func(question []byte) []byte {
			answer := answered(question)
			return answer[:min(at, len(answer)-2)]
		}
	}
	var answer func(question []byte) []byte
	p.startBeside(p.a, func(w http.ResponseWriter, r *http.Request) {
		question, _ := io.ReadAll(r.Body)
		w.Write(answer(question))
	})
	for name, next := range answers {
		answer = next
		p.asks(p.a)
		if output := p.a.server.healthReport().Output; output != reasonSilent && !proofWaits.MatchString(output) {
			t.Fatalf("%s is believed: health is %s", name, p.a.health().body)
		}
		equal(t, name+": the standing", p.a.store.machineState(), machineState{dutyWaiting, reasonSilent})
	}
	equal(t, "health", p.a.health().text("output"), reasonSilent)
	p.startBeside(p.a, peer.ServeHTTP)
	p.asks(p.a)
	p.a.stands("")
}

func TestPeer_aQuestionThatIsForgedOrReplayedChangesNothing(t *testing.T) {
	t.Parallel()
	p, strangers := newPair(t), newPair(t)
	peer := standbyWith(t, p.a.keys)
	old, answer := p.asked(p.b, peer) // of the time when b served in this epoch, too
	strangers.a.promoted(7)
	forged, _ := strangers.asked(strangers.a, peer)
	p.startBeside(p.a, peer.ServeHTTP)
	p.asks(p.a)
	ask := func(method, path string, question []byte) int {
		w := httptest.NewRecorder()
		p.a.server.ServeHTTP(w, httptest.NewRequest(method, path, bytes.NewReader(question)))
		return w.Code
	}
	p.a.server.monotonic = standsStill()
	equal(t, "forged", ask("POST", peerPath, forged), 404)
	equal(t, "an answer", ask("POST", peerPath, answer), 404)
	equal(t, "too long", ask("POST", peerPath, make([]byte, 2*maxPeerMessage)), 404)
	equal(t, "got", ask("GET", peerPath, old), 404)
	equal(t, "another path", ask("POST", peerPath+"x", old), 404)
	equal(t, "replayed", ask("POST", peerPath, old), 200)
	p.a.stands("")
	for range peerRate {
		ask("POST", peerPath, nil)
	}
	equal(t, "the last of many", ask("POST", peerPath, old), 429)
}

func TestPeer_isAskedAtItsAddressAloneAndNothingElseMayCallThat(t *testing.T) {
	t.Parallel()
	asked := 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+peerPath, http.StatusTemporaryRedirect)
		},
		"too large": func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, maxPeerMessage+1)) },
		"an error":  func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) },
		"too slow":  func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() },
	} {
		peer := httptest.NewServer(answer)
		call, err := newPeerCall(peer.URL)
		must(t, err)
		patience := hangs
		if name == "too slow" {
			patience = 100 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := call(ctx, []byte("{}")); err == nil {
			t.Errorf("%s is taken for an answer", name)
		}
		cancel()
		peer.Close()
	}
	equal(t, "questions elsewhere", asked, 0)

	p := newPair(t)
	p.address = elsewhere.URL
	p.startBeside(p.a, standbyWith(t, p.a.keys).ServeHTTP)
	p.asks(p.a)
	p.a.stands("")
	s := p.a
	_, err := s.server.outbound.do(t.Context(), outboundRequest{method: "POST", url: elsewhere.URL + peerPath})
	contains(t, fmt.Sprint(err), outboundRefused)
	u := netip.MustParseAddrPort(strings.TrimPrefix(elsewhere.URL, "http://"))
	equal(t, "the class of its address", s.server.outbound.classOf(u, false), refusedAddress)
	equal(t, "questions of webhooks", asked, 0)
}

func TestPeer_commandsWriteNothingIntoASupersededDatabaseAndItIsNotServedWithoutAPeer(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.do("lead", "list")
	o.hears(3)
	o.fails("nothing was written", "token", "issue", "-scope", scopeStats)
	keys := fileText(t, o.env["WIDGETD_KEY"])
	for _, change := range [][]string{{"add"}, {"rotate", "-force"}, {"retire", "x"}} {
		o.fails("nothing was written", append([]string{"key"}, change...)...)
		equal(t, "the key file", fileText(t, o.env["WIDGETD_KEY"]), keys)
	}
	o.fails("another machine was promoted", "serve", "-addr", "127.0.0.1:0")
	contains(t, o.do("status"), "another machine has 3")
	contains(t, o.do("promote", "-force"), "epoch 4-")
	o.do("token", "issue", "-scope", scopeStats)
}

func TestPeer_answersALaterEpochOnlyOnceItsOwnCallsHaveEnded(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.startBeside(p.a, standbyWith(t, p.a.keys).ServeHTTP)
	p.asks(p.a)
	p.a.stands("")
	reached, answer := make(chan bool), make(chan bool)
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		reached <- true
		<-answer
	}))
	defer slow.Close()
	p.a.server.outbound.allow = everywhere
	ended := make(chan error)
	go func() {
		_, err := p.a.server.outbound.do(context.Background(), outboundRequest{method: "POST", url: slow.URL + "/"})
		ended <- err
	}()
	<-reached
	p.b.promoted(1)
	p.start(p.b, p.a)
	p.asks(p.b)
	p.b.stands(reasonSilent)
	p.a.stands(reasonSuperseded)
	answer <- true
	must(t, <-ended)
	p.asks(p.b)
	p.b.stands("")
}

func TestPeer_aBackupOfAnEarlierEpochIsHeldUntilItIsPromoted(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db, backup := o.env["WIDGETD_DB"], filepath.Join(o.dir, "old")
	keys, err := loadKeyring(o.env["WIDGETD_KEY"])
	must(t, err)
	peer := httptest.NewServer(standbyWith(t, keys))
	defer peer.Close()
	o.do("promote")
	o.do("backup", backup)
	o.do("promote")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		os.Remove(db + suffix)
	}
	rename(t, backup, db)
	for _, want := range []string{reasonMislaid, ""} {
		p := serveProcess(t, o, "-peer", peer.URL)
		customer := o.customer(p)
		var output any
		soon(func() bool {
			output = customer.ask("GET", "/widget/health", "").json()["output"]
			return fmt.Sprint(output) == cmp.Or(want, "<nil>")
		})
		equal(t, "health", fmt.Sprint(output), cmp.Or(want, "<nil>"))
		must(t, p.stop(os.Interrupt))
		if want != "" {
			contains(t, o.do("promote"), "epoch 3-", "may be lost: what the other machine wrote after 20")
		}
	}
}

func TestPeer_writesEndWhenAFollowerIsStartedBesideTheService(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.startBeside(p.a, standbyWith(t, p.a.keys).ServeHTTP)
	p.asks(p.a)
	p.a.server.lookForFollower()
	p.a.stands("")
	p.cut.Store(true)
	p.asks(p.a)
	p.a.stands("") // it goes on when its standby is cut off
	p.cut.Store(false)
	writeFile(t, followerPath(p.a.store.path), "0000000000000009\n")
	p.a.server.lookForFollower()
	p.a.stands(reasonFollowed)
	must(t, os.Remove(followerPath(p.a.store.path)))
	p.asks(p.a)
	p.a.stands(reasonFollowed)
}

func TestPromote_takesAFileThatNobodyHasOpenAndIsRunTwice(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sh")
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	writeFile(t, followerPath(db), "0000000000000009\n")
	for _, command := range [][]string{{"lead", "list"}, {"serve", "-addr", "127.0.0.1:0"}, {"upgrade"}, {"status"},
		{"backup", db + ".copy"}} {
		o.fails("is written by 'litestream restore -f' (TXID 0000000000000009, since 20", command...)
	}
	faults, err := checkFile(db)
	must(t, err)
	contains(t, strings.Join(faults, "\n"), "must not be opened")
	holder := exec.Command("sh", "-c", `exec 3<"$0"; echo; read line || true`, db)
	stdin, err := holder.StdinPipe()
	must(t, err)
	stdout, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	_, err = stdout.Read(make([]byte, 1))
	must(t, err)
	o.fails("another process has it open", "promote")
	must(t, stdin.Close())
	must(t, holder.Wait())
	for number := 1; number <= 2; number++ {
		made := o.object("promote", "-force") // there is no replica
		e, err := readEpochFile(epochPath(db))
		must(t, err)
		equal(t, "the number", e.Number, int64(number))
		equal(t, "the epoch", made["epoch"].(map[string]any)["name"], any(e.Name))
		o.store(func(s *store) {
			kept, err := s.epoch()
			must(t, err)
			equal(t, "that of the database", kept.String(), e.String())
		})
		o.do("lead", "list")
	}
	writeFile(t, epochPath(db), "WIDGETD_EPOCH=8-abc\n") // of the other machine
	contains(t, o.do("promote"), "epoch 9-")
	o.do("base-url", "set", "https://api.example.com/v1")
	for _, peer := range []string{"https://api.example.com", "10.0.0.2:8080", "http://10.0.0.2/v1", "ftp://x.example",
		"http://u:p@10.0.0.2", "http://10.0.0.2:8080/?x"} { // no base address, and without a path
		o.fails("-peer must be", "serve", "-addr", "127.0.0.1:0", "-peer", peer)
	}
	o.fails("-peer must be", "promote", "-peer", "x")
	o.fails("-peer must be", "peer", "follow")
	writeFile(t, epochPath(db), "8\n")
	o.fails("does not name an epoch", "promote")
	o.close()
	o.do("lead", "list") // without a peer it stops nobody
	o.close()
	writeFile(t, heardPath(db), "9-abc")
	o.fails("does not name an epoch", "lead", "list")
	must(t, os.Remove(heardPath(db)))
	o.fails("no service runs", "peer", "ignore")
	contains(t, o.do("promote", "-h"), "promote")
}

func TestPromote_goesOnWhereverItWasBrokenOff(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	litestreams := litestreamPath(db)
	must(t, os.MkdirAll(filepath.Join(litestreams, "ltx"), 0o700))
	writeFile(t, followerPath(db), "0000000000000009\n")
	o.fails("no key file", "promote", "-key", "nowhere")
	failIf(t, !fileExists(followerPath(db)), "something was begun")
	must(t, os.MkdirAll(filepath.Join(epochPath(db)+".new", "x"), 0o700))
	o.fails("directory not empty", "promote", "-force")
	failIf(t, fileExists(followerPath(db)), "a follower would go on with a file that was begun to be promoted")
	for _, command := range [][]string{{"lead", "list"}, {"serve", "-addr", "127.0.0.1:0"}, {"upgrade"}} {
		o.fails("run 'widgetd promote' again", command...)
	}
	must(t, os.RemoveAll(epochPath(db)+".new"))
	writeFile(t, epochPath(db)+".new", "WIDGETD_EP") // it was killed while it wrote that
	contains(t, o.do("promote"), "epoch 1-")
	o.do("lead", "list")
	failIf(t, fileExists(litestreams), "what Litestream kept of the earlier epoch is there, for a new replica")
}

func TestPromote_hasEveryEntryLookedForWhoseAnswerIsNotKnown(t *testing.T) {
	t.Parallel()
	builtProgram(t)
	k := newKilledBookkeeper(t, productXero)
	dates := k.sell(1)
	k.do("books", "export", "send", k.connection, dates[0])
	k.killAt("post", killActed)
	k.serve()
	k.awaitKill()
	k.do("promote")
	k.serve()
	k.awaitPosted() // and not two minutes after it was sent
	must(t, k.process.stop(os.Interrupt))
	k.hasOnce(dates)
}

func TestPromote_takesOneMoreThanItsPeerAndHasEveryLiveAttemptLookedAt(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.a
	s.promoted(4)
	p.start(s, p.b)
	peer := httptest.NewServer(s.server)
	defer peer.Close()
	o := newOperator(t)
	must(t, s.keys.save(o.env["WIDGETD_KEY"], true))
	o.told.keyFile(t, s.keys)
	more := *s.keys
	more.keys = append(more.keys[:1:1], newKey(t, time.Now()))
	must(t, more.save(o.env["WIDGETD_KEY"], true))
	o.fails(faultKeyLists, "peer", "follow", "-peer", peer.URL)
	must(t, s.keys.save(o.env["WIDGETD_KEY"], true))
	contains(t, o.do("peer", "follow", "-peer", peer.URL), "the peer serves in epoch 4-")
	equal(t, "the file", fileText(t, epochPath(o.env["WIDGETD_DB"])), fileText(t, epochPath(s.store.path)))
	o.fails("the peer serves, in epoch 4: switch it off", "promote", "-peer", peer.URL)
	contains(t, o.do("promote", "-force", "-peer", peer.URL), "epoch 5-", "the peer: it serves, in epoch 4")
	o.fails("this machine knows of epoch 5", "peer", "follow", "-peer", peer.URL)
	o.fails("asked first", "peer", "follow", "-peer", "http://127.0.0.1:1")
	contains(t, o.do("promote", "-peer", "http://127.0.0.1:1"), "epoch 6-", "the peer: no usable answer")

	selling := newOperator(t)
	rename(t, upgradedDatabase(t, 8), selling.env["WIDGETD_DB"])
	raw(t, selling.env["WIDGETD_DB"], `UPDATE payments SET due_at = NULL`)
	selling.do("promote", "-force") // without the keys of its time
	selling.store(func(s *store) {
		live, due := 0, 0
		must(t, s.one(`SELECT count(*), count(due_at) FROM payments
			WHERE state IN ('created', 'pending', 'authorized')`, nil, &live, &due))
		failIf(t, live == 0 || due != live, "%d of %d live attempts are looked at", due, live)
	})
}

func TestPromote_refusesAFileThatMissesKeysOrALaterEpoch(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db, key := o.env["WIDGETD_DB"], o.env["WIDGETD_KEY"]
	stale := fileText(t, key)
	kid := o.object("key", "add")["kid"].(string)
	o.do("key", "rotate", "-force")
	o.do("token", "issue", "-scope", scopeStats)
	newest := fileText(t, key)
	must(t, os.WriteFile(key, []byte(stale), 0o600))
	lacks := "the key file lacks " + kid + ", which 0 unexpired device leases and 1 unexpired tokens need"
	contains(t, fmt.Sprint(needsDoing(o.object("status"))), lacks)
	out, err := o.try("check")
	contains(t, out+fmt.Sprint(err), lacks, "faults in")

	o.close()
	writeFile(t, followerPath(db), "0000000000000009\n")
	before := fileText(t, db)
	refused := func(why ...string) {
		t.Helper()
		err := o.fails("or add -force", "promote")
		contains(t, fmt.Sprint(err), why...)
		equal(t, "the copy", fileText(t, db), before)
		equal(t, "what the follower goes on with", fileText(t, followerPath(db)), "0000000000000009\n")
	}
	refused(lacks)
	must(t, os.WriteFile(key, []byte(newest), 0o600))
	must(t, writeEpochFile(heardPath(db), epoch{Number: 5, Name: "abc"}))
	refused("it is of epoch 0-, and the peer has served in 5-abc since")
	must(t, writeEpochFile(epochPath(db), epoch{Number: 5, Name: "abc"})) // the file alone does not make it newer
	refused("it is of epoch 0-, and the peer has served in 5-abc since")
	must(t, os.WriteFile(key, []byte(stale), 0o600))
	refused(lacks, "5-abc")
	contains(t, o.do("promote", "-force"), "epoch 6-")

	must(t, os.WriteFile(key, []byte(newest), 0o600))
	contains(t, o.do("promote"), "epoch 7-") // what was heard is past
	o.do("check")
	o.do("key", "add")
	o.do("key", "rotate", "-force")
	o.do("key", "retire", kid, "-force")
	o.do("check") // nobody expects these tokens to work
}

// A standbyMachine is a standby, whose key file is beside its copy.
type standbyMachine struct {
	*server
	pairing *pairing
	keyFile string
}

// newStandbyMachine makes the standby of the copy at a path, with keys.
func newStandbyMachine(t testing.TB, db string, keys *keyring, log io.Writer) *standbyMachine {
	t.Helper()
	keyFile := filepath.Join(filepath.Dir(db), "standby.key")
	must(t, keys.save(keyFile, true))
	s, err := newServer(absentStore(db), keys, serverOptions{}, slog.New(slog.NewTextHandler(log, nil)), nil)
	must(t, err)
	return &standbyMachine{s, s.standBy(""), keyFile}
}

// standbyWith returns a standby that has keys, with a new directory.
func standbyWith(t testing.TB, keys *keyring) *standbyMachine {
	t.Helper()
	return newStandbyMachine(t, filepath.Join(t.TempDir(), "widgetd.db"), keys, io.Discard)
}

// looks has a standby look at its files, as it does each second.
func (b *standbyMachine) looks() {
	b.followKeys(b.keyFile)
	b.pairing.updateHealth()
}

// says compares what the health of a standby says is wrong.
func (b *standbyMachine) says(t *testing.T, want string) {
	t.Helper()
	b.looks()
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequest("GET", "/v1/widget/health", nil))
	if want != "" {
		want = ", and " + want
	}
	contains(t, w.Body.String(), `"this machine is the standby`+want+`"`)
}

// hears has a stopped machine hear of an epoch.
func (o *operator) hears(number int64) {
	o.t.Helper()
	o.close()
	must(o.t, writeEpochFile(heardPath(o.env["WIDGETD_DB"]), epoch{Number: number, Name: "abc"}))
}

func TestPeer_bothWarnWhileTheirKeyFilesHaveOtherLists(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	b := newStandbyMachine(t, filepath.Join(t.TempDir(), "widgetd.db"), p.a.keys, p.a.log)
	p.startBeside(p.a, b.ServeHTTP)
	both := func(want string) {
		t.Helper()
		p.asks(p.a)
		equal(t, "the primary", fmt.Sprint(p.a.health().is(200).json()["output"]), cmp.Or(want, "<nil>"))
		b.says(t, want)
	}
	both("")
	added, rotated := *p.a.keys, *p.a.keys
	added.keys = append(added.keys[:1:1], newKey(t, time.Now()))
	rotated.keys = []signingKey{added.keys[1], added.keys[0]}
	for i, keys := range []*keyring{&added, &rotated} {
		p.a.server.keys.Store(keys)
		both(faultKeyLists)
		if i == 0 {
			equal(t, "lines of the log", strings.Count(p.a.log.String(), faultKeyLists), 2) // one of each
		}
		must(t, keys.save(b.keyFile, true))
		b.looks()
		both("")
	}
}

func TestStandby_keepsTheLatestEpochThatItHasHeardOf(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	db := filepath.Join(t.TempDir(), "widgetd.db")
	b := newStandbyMachine(t, db, p.a.keys, p.a.log)
	p.a.promoted(2)
	p.startBeside(p.a, b.ServeHTTP)
	b.says(t, "")
	p.asks(p.a)
	b.says(t, faultFollows)
	contains(t, p.a.log.String(), faultFollows)
	newStandbyMachine(t, db, p.a.keys, io.Discard).says(t, faultFollows)
	own := fileText(t, epochPath(p.a.store.path))
	p.b.promoted(1) // an old machine asks, too
	p.startBeside(p.b, b.ServeHTTP)
	p.asks(p.b)
	equal(t, "what it keeps", fileText(t, heardPath(db)), own)
	writeFile(t, epochPath(db), own)
	b.says(t, "")
	writeFile(t, epochPath(db), "WIDGETD_EPOCH=2-other\n") // both were promoted apart
	b.says(t, faultFollows)
}
