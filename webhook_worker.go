package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
)

// The worker that sends events to webhooks. The table events is the outbox: a webhook's queue says up
// to which number its events were sent, so that writing an event costs the same however many webhooks
// get it, and a restart continues where the last process stopped.

const (
	maxSending         = 256             // attempts under way at once
	maxTroubled        = 128             // of them for failing and slow webhooks together
	keptPlaces         = 64              // of them for accounts with nothing under way; see hasPlace
	maxSendingWebhook  = 4               // of one webhook
	maxReady           = 64              // numbers of events that a webhook's lane holds in memory
	slowAfter          = 2 * time.Second // an attempt that has lasted so long is slow
	webhookTick        = 250 * time.Millisecond
	webhookReload      = time.Second           // least time between two reloads that foreign commits cause
	webhookSave        = time.Minute           // between two times that progress past unwanted events is recorded
	webhookSweep       = time.Minute           // between two removals of what is no longer kept
	recordDelay        = 50 * time.Millisecond // for which results are gathered before they are recorded
	maxUnrecorded      = 256
	recordRetry        = time.Second // after results could not be recorded
	webhookStop        = 5 * time.Second
	faultWebhooksRead  = "webhooks can't be read"
	faultWebhookSweep  = "old deliveries can't be removed"
	faultWebhookResult = "what came of webhooks can't be recorded, so none are sent"
)

// A webhookWorker sends events to webhooks. One goroutine, that of run, owns all fields but those
// that are set once, channels, atomics, and what mu guards. Each attempt has a goroutine of its own,
// which gets an attempt and passes it back over results.
//
// The path of an event: the transaction that wrote it commits → the writer calls committed → run marks
// the lanes of the webhooks that want it → fill reads the numbers of their next events and begins
// attempts → an attempt reads its event, posts it, and passes itself back → take frees its place →
// record writes the outcomes of all that are back, and how far their lanes have got, in one transaction.
type webhookWorker struct {
	store     *store
	keys      func() *keyring
	outbound  *outbound
	log       *slog.Logger
	now       func() time.Time
	monotonic func() time.Time // a clock that is never set
	doubted   func() bool      // server.clockDoubted
	stopping  func() bool
	blocked   func() bool   // store.waits: nothing is sent
	tick      time.Duration // between two looks for foreign commits and for what has become due

	wake    chan struct{}
	results chan *attempt

	mu      sync.Mutex
	noted   map[writtenEvent]bool // accounts and types of the events that were committed since run last looked
	foreign bool                  // others have committed since then

	senders      map[string]*webhookSender // by the webhook's id
	busy         []*webhookSender          // that may have something to send, in the order of their turns
	changed      bool                      // webhooks or accounts have changed since they were read
	outdated     bool                      // others may have changed them
	reloadedAt   time.Time                 // by the monotonic clock, as all times below
	savedAt      time.Time
	unrecorded   []*attempt     // that are back
	recordFrom   time.Time      // record waits until then, unless there are many
	recordFailed bool           // the last try failed
	recordTimer  *time.Timer    // fires at recordFrom
	fillFrom     time.Time      // fill waits until then, since the database could not be read
	saveAll      bool           // record how far every lane is
	flying       []*attempt     // that are under way, in the order in which they began
	failingNow   int            // of flying, those to webhooks that fail or are not enabled
	slow         int            // of flying, those that are slow and not among failingNow
	perHolder    map[string]int // of flying, by the account whose places they take

	sweptAt time.Time // owned by sweep

	sendingNow atomic.Int64 // for the metrics
	succeeded  atomic.Int64
	failed     atomic.Int64
}

// newWebhookWorker makes a worker over an open store. The caller sets the clocks and the other fields
// that come from the server, and calls run.
func newWebhookWorker(st *store) *webhookWorker {
	w := &webhookWorker{
		store:     st,
		tick:      webhookTick,
		wake:      make(chan struct{}, 1),
		results:   make(chan *attempt, maxSending),
		noted:     map[writtenEvent]bool{},
		senders:   map[string]*webhookSender{},
		perHolder: map[string]int{},
	}
	w.recordTimer = time.NewTimer(0)
	return w
}

// A webhookSender is what the worker knows of one webhook.
type webhookSender struct {
	webhookQueue
	live     *lane // the events since it was enabled
	replayed *lane // nil: none
	retries  []webhookRetry
	retrying map[int64]bool // numbers of events taken from the retries, until their outcomes are recorded
	retryAt  time.Time      // when the next retry is due, by the monotonic clock; zero: none is
	turn     bool           // next last tried retries before new events; it alternates

	inFlight     int       // attempts under way
	testing      int64     // number of the event of the test that was begun last
	failing      bool      // the last attempt failed
	failingSaved bool      // failing_since is set on disk
	slow         int       // of sending, those that are slow
	cautious     bool      // after 429, 502 or 504: one at a time until a 2xx
	pausedUntil  time.Time // by the monotonic clock: it has asked for a pause
	notBefore    time.Time // by the monotonic clock: it waits, since one of its events could not be read
	isBusy       bool      // it is in busy
	gone         bool      // nothing is to be sent to it any more
}

// A lane is a range of an account's events that a webhook gets, in the order of their numbers.
type lane struct {
	read   int64   // up to this number the events were looked at
	end    int64   // the last one
	more   bool    // there may be others after read
	ready  []int64 // that are wanted and not begun
	begun  []int64 // that are under way
	saved  int64   // what done returned when it was last recorded on disk
	queue  int64
	replay bool
}

// lanes returns the lanes of a webhook.
func (s *webhookSender) lanes() (all []*lane) {
	for _, l := range []*lane{s.live, s.replayed} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// done returns the number up to which every event was sent or waits to be tried again.
func (l *lane) done() int64 {
	first := l.read + 1
	for _, seqs := range [][]int64{l.ready, l.begun} {
		for _, seq := range seqs {
			first = min(first, seq)
		}
	}
	return first - 1
}

// unread puts the events that are ready back, to be selected again, since the webhook may want others now.
func (s *webhookSender) unread() {
	for _, l := range s.lanes() {
		if len(l.ready) > 0 {
			l.read, l.ready, l.more = l.ready[0]-1, nil, true
		}
	}
}

// ended removes an event from those that are under way.
func (l *lane) ended(seq int64) {
	if i := slices.Index(l.begun, seq); i >= 0 {
		l.begun = slices.Delete(l.begun, i, i+1)
	}
}

// run sends events until ctx ends. Then it begins no other attempt, waits webhookStop for those under
// way, cancels what is left, which is sent again after the next start, and returns.
func (w *webhookWorker) run(ctx context.Context) {
	if !w.lock(ctx) {
		return
	}
	w.store.watch(w.committed)
	calls, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer w.outbound.close()
	tick := time.NewTicker(w.tick)
	defer tick.Stop()
	for {
		w.step(calls)
		select {
		case <-ctx.Done():
			w.finish(cancel)
			return
		case <-w.wake:
		case a := <-w.results:
			w.take(a)
		case <-w.recordTimer.C:
		case <-tick.C:
			w.store.cachesFresh() // makes the writer look for foreign commits
			w.wakeDue()
		}
	}
}

// lock waits until no other process sends this database's events. It reports false if ctx ends first.
func (w *webhookWorker) lock(ctx context.Context) bool {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for told := false; ; told = true {
		ok, err := w.store.lockForDeliveries()
		switch {
		case ok:
			return true
		case err != nil:
			w.log.Warn("the lock for sending webhooks can't be taken", "error", err)
		case !told:
			w.log.Warn("another service over this database sends its webhooks; this one waits until that ends")
		}
		select {
		case <-ctx.Done():
			return false
		case <-retry.C:
		}
	}
}

// committed is called by the writer after every commit, on any goroutine; see writer.watch.
func (w *webhookWorker) committed(written []writtenEvent) {
	w.mu.Lock()
	w.foreign = w.foreign || written == nil
	for _, e := range written {
		w.noted[e] = true
	}
	w.mu.Unlock()
	w.wakeUp()
}

// changesWebhooks reports whether a transaction that wrote an event of this type may have changed
// which webhooks there are to send to, or how.
func changesWebhooks(kind string) bool {
	return strings.HasPrefix(kind, "webhook.") || kind == string(eventAccountClosed) ||
		kind == string(eventAccountReopened)
}

func (w *webhookWorker) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default: // it has been woken and has not looked yet
	}
}

// step does everything that is due now.
func (w *webhookWorker) step(calls context.Context) {
	for len(w.results) > 0 {
		w.take(<-w.results)
	}
	w.record()
	w.readNoted()
	w.markSlow()
	w.fill(calls)
}

// readNoted reads the webhooks again if they may have changed, and marks those that want any of the events that were
// written since it was last called, so that they look for them.
func (w *webhookWorker) readNoted() {
	w.mu.Lock()
	noted := w.noted
	w.outdated = w.outdated || w.foreign
	w.noted, w.foreign = map[writtenEvent]bool{}, false
	w.mu.Unlock()
	for e := range noted {
		w.changed = w.changed || changesWebhooks(e.kind)
	}
	if w.changed || w.reloadedAt.IsZero() || w.outdated && !closerThan(webhookReload, w.reloadedAt, w.monotonic()) {
		w.reload()
	}
	for _, s := range w.senders {
		if s.live != nil && slices.ContainsFunc(s.Types, func(kind string) bool {
			return noted[writtenEvent{s.AccountID, kind}]
		}) {
			s.live.more = true
			w.markBusy(s)
		}
	}
}

// markBusy gives a webhook a turn in fill.
func (w *webhookWorker) markBusy(s *webhookSender) {
	if !s.isBusy && !s.gone {
		s.isBusy = true
		w.busy = append(w.busy, s)
	}
}

// wakeDue marks the webhooks that have a retry due or whose pause has ended. Once each webhookSave it marks
// all of them, so that progress past events that no webhook wants is recorded too.
func (w *webhookWorker) wakeDue() {
	now := w.monotonic()
	save := !closerThan(webhookSave, w.savedAt, now)
	w.saveAll = w.saveAll || save
	for _, s := range w.senders {
		if save && s.live != nil {
			s.live.more = true
		}
		due := !s.retryAt.IsZero() && !now.Before(s.retryAt)
		paused := !s.pausedUntil.IsZero() && !now.Before(s.pausedUntil)
		if paused {
			s.pausedUntil = time.Time{}
		}
		if save || due || paused {
			w.markBusy(s)
		}
	}
	if save {
		w.savedAt = now
	}
}

// reload reads the webhooks again.
func (w *webhookWorker) reload() {
	rows, err := w.store.webhookQueues()
	w.changed, w.outdated = false, err != nil // to be tried again
	if err != nil {
		w.log.Warn(faultWebhooksRead, "error", err)
		return
	}
	w.reloadedAt = w.monotonic()
	present := map[string]bool{}
	for _, row := range rows {
		present[row.webhook.ID] = true
		w.update(row)
	}
	for id, s := range w.senders {
		s.gone = !present[id]
		w.dropIfGone(s)
	}
}

// dropIfGone forgets a webhook to which nothing is to be sent any more, once no attempt to it is under way.
// Until then its attempts must go on counting, in case it is enabled again.
func (w *webhookWorker) dropIfGone(s *webhookSender) {
	if s.gone && s.inFlight == 0 {
		delete(w.senders, s.ID)
	}
}

// update brings what the worker knows of a webhook up to date with the database.
func (w *webhookWorker) update(row *webhookQueue) {
	s := w.senders[row.webhook.ID]
	if s == nil {
		s = &webhookSender{retrying: map[int64]bool{}}
		w.senders[row.webhook.ID] = s
	}
	another := s.live == nil || s.number != row.number
	if !slices.Equal(s.Types, row.Types) {
		s.unread()
	}
	s.webhookQueue, s.gone = *row, false
	switch {
	case row.number == 0:
		s.live, s.replayed, s.retries, s.retryAt = nil, nil, nil, time.Time{}
	case another:
		s.failing = !row.FailingSince.IsZero()
		s.failingSaved = s.failing
		s.live = &lane{queue: row.number, read: row.sentSeq, saved: row.sentSeq, end: maxSeq}
		s.replayed, s.retries, s.retrying = nil, nil, map[int64]bool{}
		s.cautious, s.pausedUntil = false, time.Time{}
	}
	if row.number != 0 {
		s.live.more = true
		if s.retryAt.IsZero() || len(s.retries) == 0 {
			s.retryAt = w.monotonic() // a command may have made some due
		}
		w.updateReplay(s, row)
	}
	w.markBusy(s)
}

// updateReplay begins, restarts or ends the replay of a webhook as its row says.
func (w *webhookWorker) updateReplay(s *webhookSender, row *webhookQueue) {
	switch {
	case row.replaySeq < 0:
		s.replayed = nil
	case s.replayed == nil || s.replayed.saved != row.replaySeq || s.replayed.end != row.replayEnd:
		s.replayed = &lane{queue: row.number, replay: true, read: row.replaySeq, saved: row.replaySeq,
			end: row.replayEnd, more: true}
	}
}

// fill begins as many attempts as may run, one of each webhook in turn. When a webhook has looked through
// many events and found none, it returns and wakes run, so that attempts that came back are taken first.
func (w *webhookWorker) fill(calls context.Context) {
	if w.stopping() || w.blocked() || w.recordFailed || w.monotonic().Before(w.fillFrom) {
		return
	}
	for progress := true; progress && len(w.flying) < maxSending; {
		progress = false
		for n := len(w.busy); n > 0 && len(w.flying) < maxSending; n-- {
			s := w.busy[0]
			w.busy = w.busy[1:]
			turn := w.begin(calls, s)
			if s.isBusy = turn != nothingToSend; s.isBusy {
				w.busy = append(w.busy, s)
			}
			if turn == lookedThrough {
				w.wakeUp()
				return
			}
			progress = progress || turn == attemptBegun
		}
	}
}

// A webhookTurn is what came of a webhook's turn in fill.
type webhookTurn int

const (
	nothingToSend webhookTurn = iota // or what is under way has to come back first, which marks it busy again
	attemptBegun
	lookedThrough // it has looked through many events and wants none of them; there may be one after them
	mustWait      // for a place that others have, or for the database
)

// begin begins the next attempt of a webhook.
func (w *webhookWorker) begin(calls context.Context, s *webhookSender) webhookTurn {
	most := maxSendingWebhook
	if s.cautious {
		most = 1
	}
	failing := s.number == 0 || s.failing
	switch {
	case s.gone || s.inFlight >= most:
		return nothingToSend
	case s.number < 0 || w.monotonic().Before(s.notBefore):
		return mustWait // its queue is to be read again, or an event could not be read
	case !w.hasPlace(s.holder) || failing && w.failingNow >= maxTroubled:
		return mustWait
	case !failing && s.slow > 0 && w.failingNow+w.slow >= maxTroubled: // those that fail do not wait for slow ones
		return mustWait
	}
	a, looked, err := w.next(s)
	switch {
	case err != nil:
		w.log.Warn(faultWebhooksRead, "error", err)
		w.fillFrom = w.monotonic().Add(recordRetry)
		return mustWait
	case looked:
		return lookedThrough
	case a == nil:
		return nothingToSend
	}
	a.sender, a.webhook, a.queue, a.failing = s, s.webhook, s.number, failing
	a.holder, a.began = s.holder, w.monotonic()
	s.inFlight++
	w.flying = append(w.flying, a)
	w.count(a, 1)
	if s.slow > 0 {
		w.countSlow(a)
	}
	go func() {
		w.send(calls, a)
		w.results <- a
	}()
	return attemptBegun
}

// hasPlace reports whether an account may have another attempt under way. An account with none may, as long
// as fill finds any place free. Others may while they have fewer than twice the places that are free, not
// counting keptPlaces. So an account alone gets 128, two get 77 each, and six 29 or 30 each, which leaves
// places for accounts that come later.
func (w *webhookWorker) hasPlace(holder string) bool {
	has := w.perHolder[holder]
	return has == 0 || has < 2*(maxSending-keptPlaces-len(w.flying))
}

// count updates the counts for an attempt: n is 1 when it begins and -1 when it ends.
func (w *webhookWorker) count(a *attempt, n int) {
	w.sendingNow.Store(int64(len(w.flying)))
	if a.failing {
		w.failingNow += n
	}
	if w.perHolder[a.holder] += n; w.perHolder[a.holder] == 0 {
		delete(w.perHolder, a.holder)
	}
}

// countSlow counts an attempt as slow until it ends.
func (w *webhookWorker) countSlow(a *attempt) {
	a.slow = true
	a.sender.slow++
	if !a.failing {
		w.slow++
	}
}

// markSlow counts the attempts that have lasted for slowAfter as slow. It looks only at attempts under way:
// how long earlier answers took says little about the next one, and the receiver can choose it.
func (w *webhookWorker) markSlow() {
	now := w.monotonic()
	for _, a := range w.flying {
		if closerThan(slowAfter, a.began, now) {
			return
		}
		if !a.slow {
			w.countSlow(a)
		}
	}
}

// next returns the next attempt of a webhook: its test, then new events and retries in turn, then events of
// a replay. a is nil if there is none now; looked reports that there may be one after the events that it has
// looked at.
func (w *webhookWorker) next(s *webhookSender) (a *attempt, looked bool, err error) {
	if s.TestSeq != 0 && s.testing != s.TestSeq {
		s.testing = s.TestSeq
		return &attempt{seq: s.TestSeq, number: 1, test: true}, false, nil
	}
	if s.number == 0 || w.monotonic().Before(s.pausedUntil) {
		return nil, false, nil
	}
	s.turn = !s.turn
	if s.turn {
		if a, err = w.nextRetry(s); a != nil || err != nil {
			return a, false, err
		}
	}
	if a, looked, err = w.nextOf(s, s.live); a != nil || looked || err != nil {
		return a, looked, err
	}
	if !s.turn {
		if a, err = w.nextRetry(s); a != nil || err != nil {
			return a, false, err
		}
	}
	if s.replayed != nil {
		return w.nextOf(s, s.replayed)
	}
	return nil, false, nil
}

// nextOf returns an attempt for the next event of a lane; see next.
func (w *webhookWorker) nextOf(s *webhookSender, l *lane) (a *attempt, looked bool, err error) {
	if len(l.ready) == 0 {
		if !l.more {
			return nil, false, nil
		}
		l.ready, l.read, l.more, err = w.store.eventsToSend(&s.webhookQueue, l.read, l.end, maxReady)
		if err != nil || len(l.ready) == 0 {
			return nil, l.more, err
		}
	}
	seq := l.ready[0]
	l.ready = l.ready[1:]
	l.begun = append(l.begun, seq)
	return &attempt{lane: l, seq: seq, number: 1}, false, nil
}

// nextRetry returns an attempt for an event that is to be tried again now; nil: none is.
func (w *webhookWorker) nextRetry(s *webhookSender) (*attempt, error) {
	now := w.monotonic()
	if len(s.retries) == 0 && (s.retryAt.IsZero() || now.Before(s.retryAt)) {
		return nil, nil
	}
	if len(s.retries) == 0 {
		at := newStamp(w.now())
		due, err := w.store.retriesDue(s.number, at, maxReady+len(s.retrying))
		if err != nil {
			return nil, err
		}
		for _, r := range due {
			if !s.retrying[r.eventSeq] {
				s.retries = append(s.retries, r)
			}
		}
		if len(s.retries) == 0 {
			next, err := w.store.nextRetry(s.number, at)
			switch {
			case err == nil:
				s.retryAt = now.Add(min(next.Sub(at.Time), latestRetry))
			case errors.Is(err, errNotFound):
				s.retryAt, err = time.Time{}, nil
			}
			return nil, err
		}
	}
	r := s.retries[0]
	s.retries = s.retries[1:]
	s.retrying[r.eventSeq] = true
	return &attempt{seq: r.eventSeq, number: r.attempts + 1}, nil
}

// take takes back an attempt whose goroutine has ended.
func (w *webhookWorker) take(a *attempt) {
	w.release(a)
	if a.canceled {
		s := a.sender
		s.number, s.testing, s.notBefore = -1, 0, w.monotonic().Add(recordRetry) // its queue is read again, with it
		w.reloadedAt = time.Time{}
		return
	}
	if a.lane != nil {
		a.lane.ended(a.seq)
	}
	a.id = newID("whd", a.at.Add(a.took))
	w.unrecorded = append(w.unrecorded, a)
	switch {
	case w.recordFailed:
	case a.status == http.StatusGone: // nothing else may be sent to it
		w.recordFrom = time.Time{}
	case len(w.unrecorded) == 1:
		w.recordIn(recordDelay)
	}
}

// finish waits for the attempts under way, cancels those that take longer than webhookStop, and records.
func (w *webhookWorker) finish(cancel context.CancelFunc) {
	patience := time.NewTimer(webhookStop)
	defer patience.Stop()
	for len(w.flying) > 0 {
		select {
		case a := <-w.results:
			w.take(a)
		case <-patience.C:
			cancel()
		}
	}
	w.recordFrom, w.saveAll = time.Time{}, true
	w.record()
}

// sweep removes deliveries and retries that are no longer kept, in short transactions, at most once each
// webhookSweep. It is a chore, and may run concurrently with run.
func (w *webhookWorker) sweep(ctx context.Context) error {
	now := w.monotonic()
	if closerThan(webhookSweep, w.sweptAt, now) {
		return nil
	}
	w.sweptAt = now
	for r := (deliveryRange{}); ; {
		var err error
		if r, err = w.store.nextDeliveries(r.webhookID, w.now()); errors.Is(err, errNotFound) {
			break
		}
		if err == nil && r.below != "" {
			err = w.removeInParts(ctx, func(t *tx) (int64, error) { return t.removeDeliveries(r), nil })
		}
		if err != nil {
			return err
		}
	}
	for {
		queue, err := w.store.abandonedQueue(0)
		if err == nil {
			err = w.removeInParts(ctx, func(t *tx) (int64, error) { return t.removeRetries(queue), nil })
		}
		if err != nil {
			return except(err, errNotFound)
		}
	}
}

// removeInParts runs f, which removes up to limits.swept rows, until it removes fewer.
func (w *webhookWorker) removeInParts(ctx context.Context, f func(*tx) (int64, error)) error {
	_, err := w.store.updateInParts(ctx, w.store.limits.swept, f)
	return err
}

// What the worker does with attempts to send events: it posts them, records their outcomes, and adjusts
// how it sends to their webhooks.

// An attempt is one request to a webhook. Its goroutine owns it until it passes it back over results.
type attempt struct {
	sender  *webhookSender // owned by run
	lane    *lane          // where the event is from; nil: a retry, or a test
	webhook webhook        // as it was when the attempt began
	queue   int64
	seq     int64 // number of the event
	number  int   // which try it is, from 1
	test    bool

	holder  string    // the account whose place it takes
	began   time.Time // by the monotonic clock
	failing bool      // it counts among webhookWorker.failingNow
	slow    bool      // it has lasted for slowAfter, or began while another to the webhook was slow; owned by run

	event    event
	at       time.Time // by the wall clock
	took     time.Duration
	status   int           // 0: no answer
	reason   string        // why there was none
	answer   string        // the beginning of the answer if the attempt failed
	pause    time.Duration // what Retry-After asked for
	missing  bool          // there is nothing to send any more; see send
	canceled bool          // it says nothing about the webhook: the service stops, or can't read the event

	id    string        // of the delivery
	delay time.Duration // after which it is tried again; 0: it is not
}

// succeeded reports whether the webhook has accepted the event.
func (a *attempt) succeeded() bool { return succeeded(a.status) }

// unwanted reports whether an event is not to be tried again because the webhook no longer subscribes to
// its type. Events of a lane were selected by the types of the webhook, and a retry that is a first attempt
// was asked for explicitly, so these are sent.
func (a *attempt) unwanted() bool {
	return a.lane == nil && !a.test && a.number > 1 && !slices.Contains(a.webhook.Types, string(a.event.Type))
}

// dueAt returns when the next attempt is due after one that is recorded in t: after its delay, rounded up
// to a whole second.
func (a *attempt) dueAt(t *tx) stamp { return newStamp(t.exact.Add(a.delay + time.Second - 1)) }

// send carries out an attempt.
func (w *webhookWorker) send(calls context.Context, a *attempt) {
	var err error
	may := false
	if a.event, err = w.store.eventBySeq(a.seq); err == nil {
		may, err = w.store.mayGet(a.webhook.ID, a.event.Type)
	}
	if err != nil {
		a.missing = errors.Is(err, errNotFound)
		if a.canceled = !a.missing; a.canceled {
			w.log.Warn(faultWebhooksRead, "error", err)
		}
		return
	}
	body, err := webhookBody(&a.event)
	if err != nil || !may || a.unwanted() {
		a.missing = true // its data are damaged, or the webhook may not get it or does not want it any more
		return
	}
	began := w.monotonic()
	a.at = w.now()
	header := webhookHeaders(a.webhook.secrets(w.keys(), a.at), a.event.ID, a.at, body)
	header.Set("Content-Type", "application/json")
	answer, err := w.outbound.do(calls, outboundRequest{http.MethodPost, a.webhook.URL, header, body, 0})
	a.took = w.monotonic().Sub(began)
	if answer == nil {
		a.reason = reasonOf(err)
		a.canceled = a.reason == outboundCanceled
		return
	}
	a.status = answer.status // whatever became of the body
	if a.succeeded() {
		return
	}
	if pause, ok := retryAfter(answer.header, a.at); ok {
		a.pause = pause
	}
	if !answer.inner {
		a.answer = excerpt(answer.body, maxDeliveryAnswer)
	}
}

// excerpt returns the beginning of an answer's body as text: valid UTF-8 without control characters other
// than line breaks and tabs. C1 controls such as U+009B are dropped too, since they begin escape sequences.
func excerpt(body []byte, most int) string {
	text := strings.ToValidUTF8(string(body[:min(len(body), most)]), "")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

// A laneMove is how far a lane has got, to be recorded.
type laneMove struct {
	lane *lane
	to   int64
}

// record writes the outcomes of the attempts that are back, and the progress of their webhooks, in one
// transaction. It gathers them for recordDelay first, so that requests that write seldom have to wait for
// such a transaction. After a failure, nothing is sent until a later call has succeeded.
func (w *webhookWorker) record() {
	early := w.monotonic().Before(w.recordFrom) && (w.recordFailed || len(w.unrecorded) < maxUnrecorded)
	if len(w.unrecorded) == 0 && !w.saveAll || early {
		return
	}
	moves := w.moves()
	if len(w.unrecorded) > 0 || len(moves) > 0 {
		err := w.store.update(context.Background(), func(t *tx) error {
			t.dropsNothing()
			failing := map[int64]bool{}
			for _, a := range w.unrecorded {
				if err := w.recordAttempt(t, a, failing); err != nil {
					return err
				}
			}
			for _, m := range moves {
				t.saveLane(m.lane, m.to)
			}
			return nil
		})
		if w.recordFailed = err != nil; w.recordFailed {
			w.log.Warn(faultWebhookResult, "error", err)
			w.recordIn(recordRetry)
			return
		}
	}
	w.saveAll = false
	for _, m := range moves {
		m.lane.saved = m.to
	}
	now := w.monotonic()
	for _, a := range w.unrecorded {
		s := a.sender
		if a.queue != s.number {
			continue
		}
		if a.lane == nil {
			delete(s.retrying, a.seq)
		}
		if !a.missing {
			s.failingSaved = !a.succeeded()
		}
		if due := now.Add(a.delay); a.delay > 0 && (s.retryAt.IsZero() || due.Before(s.retryAt)) {
			s.retryAt = due
		}
		w.markBusy(s)
	}
	w.unrecorded = w.unrecorded[:0]
}

// recordIn makes run call record after delay. Until then record waits, unless many attempts are back.
func (w *webhookWorker) recordIn(delay time.Duration) {
	w.recordFrom = w.monotonic().Add(delay)
	w.recordTimer.Reset(delay)
}

// moves returns how far lanes have got beyond what is on disk: those of the webhooks whose attempts are back, or with
// saveAll of all.
func (w *webhookWorker) moves() (all []laneMove) {
	seen := map[*webhookSender]bool{}
	add := func(s *webhookSender) {
		if seen[s] || s.number <= 0 {
			return
		}
		seen[s] = true
		for _, l := range s.lanes() {
			if to := l.done(); to != l.saved {
				all = append(all, laneMove{l, to})
			}
		}
	}
	for _, a := range w.unrecorded {
		add(a.sender)
	}
	if w.saveAll {
		for _, s := range w.senders {
			add(s)
		}
	}
	return all
}

// recordAttempt writes the outcome of an attempt. failing holds the queues for which a failure was recorded
// earlier in the transaction.
func (w *webhookWorker) recordAttempt(t *tx, a *attempt, failing map[int64]bool) (err error) {
	a.delay = 0
	passed := a.succeeded() || a.missing
	switch {
	case a.test:
		err = recordTest(t, a)
	case passed && a.lane == nil:
		t.removeRetry(a.queue, a.seq)
	}
	if err != nil || a.missing {
		return err
	}
	if a.succeeded() {
		if failing[a.queue] || a.sender.failingSaved {
			t.setFailing(a.queue, stamp{})
		}
	} else {
		failing[a.queue] = true
		err = w.recordFailure(t, a)
	}
	if err != nil {
		return err
	}
	d := &delivery{ID: a.id, WebhookID: a.webhook.ID, EventID: a.event.ID, Type: a.event.Type, Attempt: a.number,
		At: newStamp(a.at), Error: nilIfEmpty(a.reason), Milliseconds: a.took.Milliseconds(),
		Answer: nilIfEmpty(a.answer), eventSeq: a.seq}
	if a.status != 0 {
		d.Status = &a.status
	}
	if a.delay > 0 {
		d.NextAt = a.dueAt(t)
	}
	t.addDelivery(d)
	return nil
}

// recordTest ends a test, so that it is not sent again, and enables a pending webhook that has accepted it.
func recordTest(t *tx, a *attempt) error {
	if latest := t.endTest(a.webhook.ID, a.seq); !latest || !a.succeeded() {
		return nil
	}
	hook, err := t.webhook(anyAccount, a.webhook.ID)
	if err != nil || hook.State != webhookPending {
		return err
	}
	t.addEvent(webhookEvent(hook, eventWebhookEnabled, actorReceiver))
	t.setWebhookState(hook.ID, webhookEnabled, nil)
	return nil // after addEvent: its queue begins after the last event
}

// recordFailure schedules the next attempt to send an event, gives the event up, or disables its webhook.
func (w *webhookWorker) recordFailure(t *tx, a *attempt) error {
	hook, err := t.webhookOfQueue(a.queue)
	if err != nil {
		return except(err, errNotFound) // it is not enabled any more
	}
	since := hook.FailingSince
	if since.IsZero() || since.After(t.now.Time) { // the clock was set back
		since = t.now
		t.setFailing(a.queue, since)
	}
	reason := ""
	switch {
	case a.status == http.StatusGone:
		reason = disabledGone
	case t.now.Sub(since.Time) >= maxFailing && !w.doubted():
		reason = disabledFailing
	}
	switch {
	case reason != "":
		t.addEvent(webhookEvent(hook, eventWebhookDisabled, actorReceiver, "reason", reason))
		t.setWebhookState(hook.ID, webhookDisabled, &reason)
		return nil
	case a.test:
		return nil
	case a.number > len(retryDelays):
		t.removeRetry(a.queue, a.seq)
		return nil
	}
	a.delay = jittered(max(retryDelays[a.number-1], a.pause))
	t.setRetry(a.queue, a.seq, a.number, a.dueAt(t))
	return nil
}

// release frees the place of an attempt, and adjusts how its webhook is sent to by the outcome.
func (w *webhookWorker) release(a *attempt) {
	s := a.sender
	s.inFlight--
	if a.slow {
		s.slow--
		if !a.failing {
			w.slow--
		}
	}
	i := slices.Index(w.flying, a)
	w.flying = slices.Delete(w.flying, i, i+1)
	w.count(a, -1)
	w.dropIfGone(s)
	w.markBusy(s)
	current := a.queue == s.number // else its queue was removed since, or is to be read again
	switch {
	case a.canceled || a.missing:
	case a.succeeded():
		w.succeeded.Add(1)
		if current {
			s.cautious, s.failing = false, false
		}
	default:
		w.failed.Add(1)
		if current {
			w.learnFromFailure(s, a)
		}
	}
}

// learnFromFailure adjusts how a webhook is sent to after a failure.
func (w *webhookWorker) learnFromFailure(s *webhookSender, a *attempt) {
	s.failing = true
	switch a.status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
		s.cautious = true
	}
	if a.pause > 0 && (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable) {
		s.pausedUntil = w.monotonic().Add(a.pause)
	}
}

// Webhooks are signed as Standard Webhooks 1.0.0 says, so that its public libraries verify them: an
// HMAC-SHA-256 of the message's id, its time and its body.

// webhookSecretPrefix begins the text form of a secret.
const webhookSecretPrefix = "whsec_"

// The headers of a webhook.
const (
	webhookIDHeader        = "Webhook-Id"
	webhookTimestampHeader = "Webhook-Timestamp" // Unix seconds
	webhookSignatureHeader = "Webhook-Signature"
)

const (
	webhookVersion   = "v1," // of a signature: with a shared secret
	webhookTolerance = 5 * time.Minute
	minWebhookSecret = 24 // bytes
	maxWebhookSecret = 64
)

// webhookSecret derives the secret of a webhook: 32 bytes, from the secret of the key file, the
// webhook's id and the number of the rotation. Nothing of it is stored.
func webhookSecret(keys *keyring, webhookID string, number int) []byte {
	return keys.derive("webhook", fmt.Appendf(nil, "%s %d", webhookID, number))
}

// formatWebhookSecret returns the text form of a secret: whsec_ and standard base64.
func formatWebhookSecret(secret []byte) string {
	return webhookSecretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// parseWebhookSecret parses the text form of a secret, with or without its prefix. A secret has 24 to
// 64 bytes. The error does not contain the text.
func parseWebhookSecret(text string) ([]byte, error) {
	encoded := strings.TrimPrefix(text, webhookSecretPrefix)
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") || // which the decoder skips
		len(secret) < minWebhookSecret || len(secret) > maxWebhookSecret {
		return nil, fmt.Errorf("a webhook's secret is %s and %d to %d bytes in base64",
			webhookSecretPrefix, minWebhookSecret, maxWebhookSecret)
	}
	return secret, nil
}

// signWebhook returns the signature of a message that is sent at a time, with its version: "v1,…".
func signWebhook(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return webhookVersion + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// webhookHeaders returns the three headers of a message that is sent at a time. It is signed with
// each of the secrets, of which the current one comes first, so that a receiver may know either.
func webhookHeaders(secrets [][]byte, id string, at time.Time, body []byte) http.Header {
	signatures := make([]string, 0, len(secrets))
	for _, secret := range secrets {
		signatures = append(signatures, signWebhook(secret, id, at, body))
	}
	return http.Header{
		webhookIDHeader:        {id},
		webhookTimestampHeader: {strconv.FormatInt(at.Unix(), 10)},
		webhookSignatureHeader: {strings.Join(signatures, " ")},
	}
}

// The errors of verifyWebhook.
var (
	errWebhookHeaders   = errors.New("webhook-id, webhook-timestamp or webhook-signature is missing")
	errWebhookTimestamp = errors.New("webhook-timestamp is not a time in Unix seconds")
	errWebhookTooOld    = errors.New("webhook-timestamp is more than five minutes ago")
	errWebhookTooNew    = errors.New("webhook-timestamp is more than five minutes in the future")
	errWebhookSignature = errors.New("no signature is of this id, time, body and secret")
)

// verifyWebhook checks what a receiver got, as the public libraries do: the time must be within five
// minutes of now, and one of the v1 signatures must match.
func verifyWebhook(secret []byte, h http.Header, body []byte, now time.Time) error {
	id, sent, signatures := h.Get(webhookIDHeader), h.Get(webhookTimestampHeader), h.Get(webhookSignatureHeader)
	if id == "" || sent == "" || signatures == "" {
		return errWebhookHeaders
	}
	seconds, err := strconv.ParseInt(sent, 10, 64)
	if err != nil || sent != strconv.FormatInt(seconds, 10) { // the digits themselves are signed
		return errWebhookTimestamp
	}
	const tolerance = int64(webhookTolerance / time.Second)
	switch at := now.Unix(); {
	case seconds < at-tolerance:
		return errWebhookTooOld
	case seconds > at+tolerance:
		return errWebhookTooNew
	}
	want := []byte(signWebhook(secret, id, time.Unix(seconds, 0), body))
	for signature := range strings.SplitSeq(signatures, " ") {
		if hmac.Equal([]byte(signature), want) {
			return nil
		}
	}
	return errWebhookSignature
}
