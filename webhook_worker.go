package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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
