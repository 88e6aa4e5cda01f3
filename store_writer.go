package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	maxBatch    = 256              // jobs in one transaction
	maxQueued   = 1024             // jobs in the queue
	maxBlocked  = 64               // callers that may wait while another process holds the write lock
	lockTimeout = 15 * time.Second // how long a job waits for the writer, and SQLite for a lock, by default
)

// A writer makes all changes to the database, over one connection. Its goroutine (loop) alone uses conn, queries,
// dataVersion and lastCommit; all other fields are channels, atomics, or set once before the first job.
//
// A commit: a job is queued (update) → loop begins a transaction and takes that job and the others that are
// queued → each job runs, in a savepoint of its own if it writes and is not alone, and does what it has left to
// its end (atEnd) → the totals are written → COMMIT, with a sync → what is cached is dropped, unless the jobs
// said otherwise (cacheDrops) → their callers get the result. So no caller gets a result before it is on the
// disk, and after that no cache returns the old value. Jobs that are queued while a commit is under way share the
// next.
//
// A foreign commit, by the sqlite3 shell or a command of widgetd, shows in PRAGMA data_version, which loop reads
// when somebody asks for what is cached and it was last read foreignInterval ago. Until then cached values are not
// used (cachesFresh).
//
// A stop: closing is closed → no job is queued any more → loop runs the queued jobs, closes stopped and ends.
type writer struct {
	db      *sql.DB
	conn    *sql.Conn
	queries *queries     // prepared on conn
	inPlace func() error // fails if the database file is no longer the one that is open
	now     func() time.Time
	limits  limits // of the readers' queries, too

	lockTimeout time.Duration // how long a job waits for its turn; SQLite waits as long for a lock

	jobs         chan *job     // the queue
	checkForeign chan struct{} // loop is to look for foreign commits
	closing      chan struct{} // closed when the writer is to stop
	stopped      chan struct{} // closed when it has stopped
	running      sync.WaitGroup

	state         atomic.Pointer[machineState] // what this machine may do beside another one; nil: everything
	lastCommit    time.Duration                // how long it took
	dataVersion   int64                        // as last read on conn
	lookedAt      atomic.Pointer[time.Time]    // when that was
	callers       atomic.Int64                 // inside update
	blockedSince  atomic.Pointer[time.Time]    // since when BEGIN waits for the lock; nil: it doesn't
	drops         cacheDrops
	faults        *faultLog // what queries have met, the readers' too
	watchMu       sync.Mutex
	watchers      atomic.Pointer[[]func([]writtenEvent)]
	commits       atomic.Int64 // number of commits, for the metrics
	committedJobs atomic.Int64 // number of jobs in them
}

// newWriter makes a writer without a connection; connect gives it one. inPlace returns an error
// if the database file is no longer the one that the connection has open.
func newWriter(inPlace func() error, now func() time.Time, most limits, lockTimeout time.Duration) *writer {
	w := &writer{
		inPlace:      inPlace,
		now:          now,
		limits:       most,
		lockTimeout:  lockTimeout,
		jobs:         make(chan *job, maxQueued),
		checkForeign: make(chan struct{}, 1),
		closing:      make(chan struct{}),
		stopped:      make(chan struct{}),
		faults:       &faultLog{now: now, rows: map[string]*unreadableRow{}, leftOut: map[string]bool{}},
	}
	w.drops.seed = maphash.MakeSeed()
	return w
}

// watch makes the writer call f after a commit, once for each job that wrote events, with these events;
// and with nil after foreign commits. f must return at once. A commit with unknown outcome counts too.
func (w *writer) watch(f func([]writtenEvent)) {
	w.watchMu.Lock()
	defer w.watchMu.Unlock()
	all := []func([]writtenEvent){f}
	if before := w.watchers.Load(); before != nil {
		all = slices.Concat(*before, all)
	}
	w.watchers.Store(&all)
}

// notifyWatchers calls everybody who watches.
func (w *writer) notifyWatchers(written []writtenEvent) {
	if all := w.watchers.Load(); all != nil {
		for _, f := range *all {
			f(written)
		}
	}
}

// start starts the writer's goroutine, which runs until stop.
func (w *writer) start() { w.running.Go(w.loop) }

// stop ends the writer's goroutine after it has run the queued jobs. The caller then owns the connection.
func (w *writer) stop() {
	close(w.closing)
	w.running.Wait()
}

// connect takes a connection from the writer's pool.
func (w *writer) connect() (err error) {
	if w.conn, err = w.db.Conn(context.Background()); err != nil {
		return err
	}
	w.queries = newQueries(w.conn.PrepareContext)
	w.queries.faults, w.queries.limits, w.queries.writes = w.faults, w.limits, true
	w.dataVersion = -1 // unknown: each connection starts with a value of its own
	w.lookedAt.Store(new(time.Time))
	return nil
}

// disconnect closes the connection and the pool, if there are any.
func (w *writer) disconnect() error {
	var errs []error
	if w.queries != nil {
		w.queries.close()
	}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	if w.db != nil {
		errs = append(errs, w.db.Close())
	}
	return errors.Join(errs...)
}

// A writtenEvent is what the watcher is told about an event that was committed.
type writtenEvent struct{ account, kind string }

// A total holds what a job adds to counters in the database. The totals of a batch are merged and
// written before the commit, so that a row to which many jobs add is written once.
type total interface {
	merge(other total)
	write(t *tx) error
}

// addTotals merges b into a and returns the result. Either may be nil; b must not be used again.
func addTotals(a, b total) total {
	switch {
	case a == nil:
		return b
	case b != nil:
		a.merge(b)
	}
	return a
}

// dropsNothing declares that the transaction changes nothing that is cached, so that its commit drops nothing. Only the
// outermost function of a job may say so, or only: the one that knows all that the job does.
func (t *tx) dropsNothing() { t.isQuiet = true }

// dropsOnly declares that of what is cached, the transaction changes nothing but what depends on the row with this
// id: a licence or a widget.
func (t *tx) dropsOnly(id string) { t.onlyID = id }

// cacheDrops counts the commits that drop what is cached, so that a value can be checked for staleness without
// reading the file. A commit drops everything, unless each of its jobs said so (dropsNothing), changed no row, or
// named one id (dropsOnly).
type cacheDrops struct {
	any  atomic.Uint64       // all of them
	all  atomic.Uint64       // those that dropped everything
	ofID [4096]atomic.Uint64 // those that named an id, by its hash
	seed maphash.Seed
}

// A version is the state of the counters in drops for a value. If it differs later, the value may be stale.
type version struct{ all, ofID uint64 }

// version returns the version of a value that depends on the row with this id; "": on anything else.
func (d *cacheDrops) version(id string) version {
	v := version{all: d.all.Load()}
	if id != "" {
		v.ofID = d.count(id).Load()
	}
	return v
}

// count returns the counter of an id, which other ids with the same hash share.
func (d *cacheDrops) count(id string) *atomic.Uint64 {
	return &d.ofID[maphash.String(d.seed, id)%uint64(len(d.ofID))]
}

// drop drops what is cached of the row with this id; "": everything. It must run before a caller gets the result.
func (d *cacheDrops) drop(id string) {
	if id == "" {
		d.all.Add(1)
	} else {
		d.count(id).Add(1)
	}
	d.any.Add(1)
}

// exec runs a statement that writes, and returns how many rows it changed. If it fails, the transaction remembers the
// error: further writes do nothing, all is undone, and update returns the error whatever the job returns. So nobody
// checks it; reads go on as if nothing had been written, and a loop must not wait for a write to have an effect.
func (t *tx) exec(query string, args ...any) (changed int64) {
	if t.failed == nil {
		changed, t.failed = t.try(query, args...)
	}
	return changed
}

// try is exec for a write whose error its caller acts on. Jobs must not write in any other way than these two,
// because try makes the savepoint that undoes a failed job alone.
func (t *tx) try(query string, args ...any) (changed int64, err error) {
	if t.failed != nil {
		return 0, t.failed
	}
	if t.shared && !t.hasSavepoint {
		if err := t.run("SAVEPOINT job"); err != nil {
			return 0, err
		}
		t.hasSavepoint = true
	}
	st, err := t.stmt(query)
	if err != nil {
		return 0, err
	}
	res, err := st.Exec(args...)
	if err == nil {
		changed, err = res.RowsAffected()
	}
	t.hasChanged = t.hasChanged || changed > 0
	return changed, t.fault(query, err)
}

// A jobEnding is what a job does at its end.
type jobEnding struct {
	key string
	run func() error
}

// atEnd has f run at the end of the job, before its transaction is committed: once for each key, however often it is
// called with that. An error of f is one of the job.
func (t *tx) atEnd(key string, f func() error) {
	if !slices.ContainsFunc(t.endings, func(e jobEnding) bool { return e.key == key }) {
		t.endings = append(t.endings, jobEnding{key, f})
	}
}

// end does what atEnd was given. The writer calls it; a job does that goes on with what it brings about.
func (t *tx) end() error {
	for len(t.endings) > 0 {
		next := t.endings[0]
		t.endings = t.endings[1:]
		if err := next.run(); err != nil {
			return err
		}
	}
	return nil
}

// A job is a function to be run in a transaction, and its result.
type job struct {
	ctx     context.Context // of the caller; the driver never gets it
	run     func(*tx) error
	state   atomic.Int32
	effects effects       // of its last run
	err     error         // its result
	done    chan struct{} // closed once err is final
}

// The states of a job. It leaves jobWaiting once, by compare-and-set: either the writer claims it
// or its caller abandons it.
const (
	jobWaiting   = iota
	jobClaimed   // the writer runs it and sets its result
	jobAbandoned // the caller has stopped waiting, and it will not run
)

// claim claims a waiting job for the writer. It reports false if the caller has abandoned it, or
// is about to because its context has ended.
func (j *job) claim() bool {
	return j.ctx.Err() == nil && j.state.CompareAndSwap(jobWaiting, jobClaimed)
}

// abandoned reports whether the caller of a job has stopped waiting, or is about to because its context has ended.
func (j *job) abandoned() bool { return j.ctx.Err() != nil || j.state.Load() == jobAbandoned }

// finish sets the result of a job that was claimed.
func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// update runs f in the writer's next transaction, together with the other jobs that wait, and
// returns when the transaction is on the disk. If f returns an error, only what f wrote is rolled
// back (but see keep), and update returns that error. f may be called more than once, and must
// not build on what an earlier call did. If ctx ends before f is called, f is not called.
// Errors: those of f, errBusy, errStorageFull, errStorage, errCommitUnknown, errClosed, errFenced, that of ctx.
func (w *writer) update(ctx context.Context, f func(*tx) error) error {
	if w.fenced() {
		return errFenced
	}
	blocked := w.lockedSince()
	if !blocked.IsZero() && w.callers.Load() >= maxBlocked && w.now().Sub(blocked) > time.Second {
		return errBusy
	}
	w.callers.Add(1)
	defer w.callers.Add(-1)
	run := func(t *tx) error {
		if w.fenced() { // since it waits
			return errFenced
		}
		return f(t)
	}
	j := &job{ctx: ctx, run: run, done: make(chan struct{})}
	timeout := time.NewTimer(w.lockTimeout)
	defer timeout.Stop()
	select {
	case w.jobs <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return errBusy
	case <-w.closing:
		return errClosed
	}
	err := error(errClosed)
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = errBusy
	case <-w.stopped:
	}
	if j.state.CompareAndSwap(jobWaiting, jobAbandoned) {
		return err
	}
	<-j.done // it is too late to abandon the job: the writer has claimed it
	return j.err
}

// inParts runs f in one transaction after the other, until one of them leaves nothing. Each gets what the one before,
// which is committed, has returned: where to go on, or what was done so far; the first gets from. f may run again with
// what it got, so it must not change that. Other jobs run in between. It returns what the last that was committed has
// returned.
func inParts[Place any](
	ctx context.Context, w *writer, from Place, f func(t *tx, at Place) (next Place, more bool, err error),
) (at Place, err error) {
	at = from
	for more := true; more; {
		var next Place
		began := time.Now()
		err := w.update(ctx, func(t *tx) (err error) {
			next, more, err = f(t, at)
			return err
		})
		switch {
		case errors.Is(err, errAside):
			more = true
			continue
		case err != nil:
			return at, err
		}
		if at = next; more { // another process that waits for the lock tries ten times a second, and must find it free
			time.Sleep(min(time.Since(began), time.Second))
		}
	}
	return at, nil
}

// updateInParts is inParts for an f that returns how many rows it has changed: fewer than atOnce leave nothing. It
// returns how many rows all transactions changed.
func (w *writer) updateInParts(
	ctx context.Context, atOnce int64, f func(*tx) (int64, error),
) (total int64, err error) {
	return inParts(ctx, w, 0, func(t *tx, total int64) (int64, bool, error) {
		n, err := f(t)
		return total + n, n >= atOnce, err
	})
}

// loop is the writer's goroutine.
func (w *writer) loop() {
	defer close(w.stopped)
	for {
		select {
		case first := <-w.jobs:
			runtime.Gosched() // lets goroutines that are about to queue a job join this batch
			w.runBatch(first)
			if len(w.jobs) > 0 {
				w.yield()
			}
		case <-w.checkForeign:
			w.lookForForeignCommits()
		case <-w.closing:
			for len(w.jobs) > 0 {
				w.runBatch(<-w.jobs)
			}
			return
		}
	}
}

// yield pauses after a slow commit, so that another process that waits for the write lock can
// take it. SQLite looks for the lock only some ten times a second; on a slow disk, with jobs always
// queued here, it would find the lock held each time until it gives up.
func (w *writer) yield() {
	const slow, most = 2 * time.Millisecond, 5 * time.Millisecond
	if w.lastCommit > slow {
		time.Sleep(min(w.lastCommit/16, most))
	}
}

// foreignInterval is how long caches may return old values after a commit of another process.
const foreignInterval = 250 * time.Millisecond

// cachesFresh reports whether what is cached may be used: whether the writer has looked for foreign commits within
// foreignInterval. If not, it has the writer look, and does not wait for that, since the writer may wait for the
// lock of another process; callers read the database meanwhile.
func (w *writer) cachesFresh() bool {
	if time.Since(*w.lookedAt.Load()) < foreignInterval {
		return true
	}
	select {
	case w.checkForeign <- struct{}{}:
	default: // it is to look already
	}
	return false
}

// lookForForeignCommits reads data_version, and drops everything that is cached if it has changed. On the writer's
// connection it changes with commits of other processes only, while on any other connection it changes with ours too.
func (w *writer) lookForForeignCommits() {
	var version int64
	if err := w.queries.one(`PRAGMA data_version`, nil, &version); err != nil || version != w.dataVersion {
		w.dataVersion = version
		w.drops.drop("")
		w.notifyWatchers(nil)
	}
	w.lookedAt.Store(new(time.Now()))
}

// runBatch runs first and the jobs that are queued in one transaction. It claims them only when the
// transaction has begun: while a lock delays that, callers can still abandon their jobs. For one that was abandoned
// before, none begins: under a lock, each would have those behind it wait, and a stop, until SQLite gives up.
func (w *writer) runBatch(first *job) {
	if first.abandoned() {
		return
	}
	if err := w.begin(); err != nil {
		if first.claim() {
			first.finish(err)
		}
		return
	}
	batch := make([]*job, 0, 16)
	for j := first; j != nil; {
		if j.claim() {
			batch = append(batch, j)
		}
		j = nil
		if len(batch) < maxBatch {
			select {
			case j = <-w.jobs:
			default:
			}
		}
	}
	if errs, ok := w.runTogether(batch); ok {
		for i, j := range batch {
			j.finish(errs[i])
		}
		return
	}
	for _, j := range batch { // nothing was committed: give each a transaction and an error of its own
		j.finish(w.runAlone(j))
	}
}

// begin begins a transaction with the write lock. It waits for the lock as long as SQLite does
// (busy_timeout). If the driver has closed the connection, it takes a new one.
// Errors: errBusy, errStorageFull, errStorage.
func (w *writer) begin() error {
	if err := w.inPlace(); err != nil {
		return w.queries.fault("", err)
	}
	now := w.now()
	w.blockedSince.CompareAndSwap(nil, &now)
	err := w.queries.run("BEGIN IMMEDIATE")
	if errors.Is(err, errBusy) {
		return err // blockedSince stays set until a transaction begins
	}
	w.blockedSince.Store(nil)
	if errors.Is(err, sql.ErrConnDone) { // database/sql has closed the connection
		if err := w.connect(); err != nil {
			return storageError(err)
		}
	}
	if err != nil {
		w.queries.run("ROLLBACK") // an earlier fault may have left a transaction open
		err = w.queries.run("BEGIN IMMEDIATE")
	}
	if err == nil && time.Since(*w.lookedAt.Load()) > foreignInterval { // jobs are always queued, or it waited long
		w.lookForForeignCommits()
	}
	return err
}

// runTogether runs the jobs of a batch in the transaction that has begun, each that writes in a
// savepoint, and commits it. It returns their results. It reports false if the transaction ended
// early, in which case nothing was committed.
func (w *writer) runTogether(batch []*job) ([]error, bool) {
	errs := make([]error, len(batch))
	for i, j := range batch {
		errs[i] = w.runJob(j, len(batch) > 1)
		lost := false
		switch _, refused := errs[i].(*refusal); {
		case j.effects.hasSavepoint:
			if !keepsWrites(errs[i]) {
				lost = w.queries.run("ROLLBACK TO job") != nil
			}
			lost = lost || w.queries.run("RELEASE job") != nil
		case len(batch) > 1 && !keepsWrites(errs[i]) && !refused:
			// The error, perhaps of a read, may have made SQLite end the transaction; only then can
			// another one begin.
			lost = w.queries.run("BEGIN") == nil
		}
		if lost {
			w.queries.run("ROLLBACK")
			return nil, false
		}
	}
	if err := w.commit(batch, errs); err != nil {
		return nil, false
	}
	return errs, true
}

// runAlone runs a job in a transaction of its own and returns its result.
func (w *writer) runAlone(j *job) error {
	if err := w.begin(); err != nil {
		return err
	}
	errs := []error{w.runJob(j, false)}
	if err := w.commit([]*job{j}, errs); err != nil {
		return err
	}
	return errs[0]
}

// keepsWrites reports whether what a job wrote is committed when the job returns err.
func keepsWrites(err error) bool {
	var kept committedError
	return err == nil || errors.As(err, &kept)
}

// commit ends the transaction of a batch whose jobs returned errs, and replaces those by what the
// callers are to get.
//
// It returns an error only if certainly nothing was committed, because the transaction could still
// be rolled back. If COMMIT failed otherwise, the transaction may have been committed all the same.
// Then commit returns nil, so that no job is run again, and the result of every job that would have
// succeeded is errCommitUnknown, or errStorageFull, at which SQLite certainly rolls back.
func (w *writer) commit(batch []*job, errs []error) error {
	written := 0
	var sum total
	for i, j := range batch {
		if keepsWrites(errs[i]) {
			written++
			sum = addTotals(sum, j.effects.total)
		}
	}
	if written == 0 {
		w.queries.run("ROLLBACK")
		return nil
	}
	if sum != nil {
		t := &tx{queries: w.queries, effects: &effects{}}
		err := sum.write(t)
		if err = cmp.Or(t.failed, err); err != nil {
			w.queries.run("ROLLBACK")
			return err
		}
	}
	began := time.Now()
	err := w.queries.run("COMMIT")
	w.lastCommit = time.Since(began)
	if err != nil && w.queries.run("ROLLBACK") == nil {
		return err
	}
	if err != nil {
		w.drops.drop("")
	}
	if err != nil && !errors.Is(err, errStorageFull) {
		err = fmt.Errorf("%w (%v)", errCommitUnknown, err)
	}
	for i, j := range batch {
		var kept committedError
		switch errors.As(errs[i], &kept); {
		case !keepsWrites(errs[i]):
			continue
		case err != nil:
			errs[i] = err
		default:
			if !j.effects.isQuiet && (j.effects.hasChanged || j.effects.total != nil) {
				w.drops.drop(j.effects.onlyID)
			}
			errs[i] = kept.error
		}
		if len(j.effects.written) > 0 {
			w.notifyWatchers(j.effects.written)
		}
	}
	if err == nil {
		w.commits.Add(1)
		w.committedJobs.Add(int64(written))
	}
	return nil
}

// runJob calls a job's function and returns its error. A panic becomes an error of that job. shared
// says whether other jobs share the transaction.
func (w *writer) runJob(j *job, shared bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	now := w.now()
	j.effects = effects{shared: shared}
	t := &tx{queries: w.queries, effects: &j.effects, now: newStamp(now), exact: now}
	if err = j.run(t); keepsWrites(err) {
		err = cmp.Or(t.end(), err)
	}
	return cmp.Or(t.failed, err)
}

// lockedSince returns since when the writer has been waiting for another process's write lock, or
// the zero time if it is not.
func (w *writer) lockedSince() time.Time {
	if since := w.blockedSince.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// An epoch is the time between two promotions of a database ('widgetd promote'): the machine of the highest one
// serves. Its name is random, so that two machines that were promoted to the same number tell each other apart.
type epoch struct {
	Number  int64  `json:"number"` // 0: never promoted
	Name    string `json:"name"`
	Known   int64  `json:"known"` // the highest number that this machine has heard of
	BeganAt stamp  `json:"began_at"`
}

// String returns the epoch as the path of a replica names it: "2-Zk3…".
func (e epoch) String() string { return fmt.Sprintf("%d-%s", e.Number, e.Name) }

// variable returns the epoch as epochVariable has it: "0" of a database that was never promoted.
func (e epoch) variable() string { return strings.TrimSuffix(e.String(), "-") }

// epoch returns the epoch of the database, of number 0 if it was never promoted.
func (q *queries) epoch() (e epoch, err error) {
	err = q.one(`SELECT number, name, began_at FROM epoch`, nil, &e.Number, &e.Name, &e.BeganAt)
	e.Known = e.Number
	return e, err
}

// setEpoch begins an epoch.
func (t *tx) setEpoch(e epoch) {
	t.exec(`UPDATE epoch SET number = ?, name = ?, began_at = ?`, e.Number, e.Name, t.now)
}

// lastWritten returns the latest time that the database tells of: of an event, of health's proof, of the clock. It
// reads one row of each.
func (q *queries) lastWritten() (at stamp, err error) {
	return oneValue[stamp](q, `SELECT max(at) FROM (
		SELECT * FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1)
		UNION ALL SELECT seen_at FROM clock UNION ALL SELECT written_at FROM probes)`)
}

// errFenced is the error of every write once another machine serves in a later epoch.
var errFenced = &refusal{code: codeStorage, detail: "Another machine serves now; nothing was written."}

// What health says of a machine on which nothing is written any more.
const (
	reasonSuperseded = "the peer serves in a later epoch: nothing is written, paid, posted or sent here any more"
	reasonStandby    = "this machine is the standby"
	reasonFollowed   = "'litestream restore -f' has been started on the database: nothing is written here any more"
)

// A role is what a machine may do beside the other one of a pair; all of them without one.
type role int

const (
	roleAlone   role = iota // everything
	dutyWaiting             // whatever stays here: the other machine may pay, post and send
	roleFenced              // only read, until the next start
	roleStandby             // nothing, since Litestream writes the file: only health and the peer are answered
)

// A machineState is the role of a machine, and what health says of it; "": all is well.
type machineState struct {
	role   role
	reason string
}

// machineState returns what this machine may do.
func (w *writer) machineState() machineState {
	if now := w.state.Load(); now != nil {
		return *now
	}
	return machineState{}
}

// fenced reports whether nothing may be written.
func (w *writer) fenced() bool { return w.machineState().role >= roleFenced }

// standsBy reports whether this machine is the standby, whose store has no file.
func (w *writer) standsBy() bool { return w.machineState().role == roleStandby }

// waits reports whether nothing outside may be asked.
func (w *writer) waits() bool { return w.machineState().role != roleAlone }

// become changes the role. It reports false if that is the same already, or if this machine is fenced or the
// standby, for good.
func (w *writer) become(next machineState) bool {
	for {
		old, now := w.state.Load(), w.machineState()
		if now == next || now.role == roleFenced || now.role == roleStandby && next.role != roleStandby {
			return false
		}
		if w.state.CompareAndSwap(old, &next) {
			return true
		}
	}
}

// epochVariable is the environment variable from which Litestream's configuration takes the path of its replica.
const epochVariable = "WIDGETD_EPOCH"

// epochPath returns the path of the file beside a database that names its epoch, for the unit of Litestream.
func epochPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".epoch" }

// heardPath returns the path of the file beside a database in which a machine keeps the latest epoch of its peer of
// which it has heard, in the form of that file.
func heardPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".heard" }

// watchPath returns the path of the file beside a database with the addresses for 'widgetd watch'.
func watchPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".watch" }

// toldPath returns the path of the file beside a database with what that has told.
func toldPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".told" }

// startsPath returns the path of the file beside a database with the starts that nobody has asked for.
func startsPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".starts" }

// outdates reports whether a copy of another epoch has missed what this one, of which was heard, has brought.
func (e epoch) outdates(copied epoch) bool {
	return e.Number >= copied.Number && e.String() != copied.String()
}

// socketPath returns the path of the socket of the service over a database: widgetd.sock beside widgetd.db.
func socketPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".sock" }

// litestreamPath returns the directory in which Litestream keeps what it has replicated of a database last.
func litestreamPath(db string) string {
	db = realPath(db)
	return filepath.Join(filepath.Dir(db), "."+filepath.Base(db)+"-litestream")
}

// writeEpochFile names an epoch in a file beside a database: see epochPath and heardPath.
func writeEpochFile(path string, e epoch) error {
	if err := os.Remove(path + ".new"); err != nil && !os.IsNotExist(err) { // of a promotion that was killed
		return err
	}
	return writeAtomically(path, true, func(f *os.File) error {
		_, err := fmt.Fprintf(f, "%s=%s\n", epochVariable, e)
		return err
	})
}

// readEpochFile returns number and name of the epoch in a file beside a database; zero if there is no file.
func readEpochFile(path string) (e epoch, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	value, found := strings.CutPrefix(strings.TrimSpace(string(text)), epochVariable+"=")
	number, name, _ := strings.Cut(value, "-")
	e.Name = name
	if err == nil {
		e.Number, err = strconv.ParseInt(number, 10, 64)
	}
	if err != nil || !found || e.Number < 0 {
		return epoch{}, fmt.Errorf("%s does not name an epoch as %s=2-name: "+
			"copy it from the other machine, or remove it", path, epochVariable)
	}
	return e, nil
}

// epochsBeside returns the epochs that the files beside a database name: its own, and that of the peer of which this
// machine has heard, zero if its own is later, since it was promoted then.
func epochsBeside(db string) (named, heard epoch, err error) {
	named, err = readEpochFile(epochPath(db))
	heard, heardErr := readEpochFile(heardPath(db))
	if heard.Number < named.Number {
		heard = epoch{}
	}
	return named, heard, errors.Join(err, heardErr)
}

// laterEpoch returns the number of the epoch of the peer of which a machine has heard, from the file beside a database;
// 0: of none that counts. Without that file no other is read, so that a fault there stops nobody without a peer.
func laterEpoch(db string) (int64, error) {
	if !fileExists(heardPath(db)) {
		return 0, nil
	}
	_, heard, err := epochsBeside(db)
	return heard.Number, err
}

// followerPath returns the path of the file in which 'litestream restore -f' notes how far it has got. As long as it
// is there, the database is Litestream's: its pages may be of different transactions.
func followerPath(db string) string { return realPath(db) + "-txid" }

// promotingPath returns the path to which promote moves that file first. Without it Litestream refuses to go on, so
// that a promotion that was broken off is only finished by another one.
func promotingPath(db string) string { return realPath(db) + "-promoting" }

// checkNotFollowed returns an error if a database is a copy that 'litestream restore -f' writes, or one whose
// promotion was broken off.
func checkNotFollowed(db string) error {
	if _, err := os.Stat(promotingPath(db)); err == nil {
		return fmt.Errorf("%s was not promoted to its end: run 'widgetd promote' again", db)
	}
	info, err := os.Stat(followerPath(db))
	if err != nil {
		return nil
	}
	text, _ := os.ReadFile(followerPath(db)) // Litestream replaces it with each change that it takes over
	return fmt.Errorf("%s is written by 'litestream restore -f' (TXID %s, since %s), and must not be opened: to "+
		"serve it, stop that and run 'widgetd promote'", db, bytes.TrimSpace(text), newStamp(info.ModTime()))
}

// isOpenElsewhere reports whether another process has a file open. A lease that is asked for writing is granted only
// if nobody has (fcntl(2), F_SETLEASE). Where the file system knows no leases, it looks at the open files of those
// processes that this user may look at. This process must not have the file open.
func isOpenElsewhere(path string) (open bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	var refused syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, refused = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_SETLEASE, syscall.F_WRLCK)
	})
	if err != nil || refused == 0 || refused == syscall.EAGAIN {
		return refused == syscall.EAGAIN, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	own := fmt.Sprintf("/proc/%d/", os.Getpid())
	for _, file := range files {
		if other, err := os.Stat(file); err == nil && os.SameFile(info, other) && !strings.HasPrefix(file, own) {
			return true, nil
		}
	}
	return false, err
}
