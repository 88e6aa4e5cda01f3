package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxBatch    = 256              // writes that share one commit
	maxQueued   = 1024             // writes that may wait in memory
	maxBlocked  = 64               // writes that may wait while somebody else holds the lock
	lockTimeout = 15 * time.Second // how long a write waits for its turn
)

// A writer makes every change of the file, over one connection, in batches: jobs that
// wait share one transaction and one sync.
//
// Who owns what. turn is a lock that holds one token. Whoever has put the token there
// owns conn, queries, lastCommit and dataVersion until it takes the token out again:
// the writer's goroutine (loop), or a caller that runs its job inline. All else is a
// channel, an atomic, or set once before the first job.
//
// A commit: a job reaches the queue (update) → the goroutine wakes, takes the turn and
// begins a transaction (runBatch) → it takes that job and what else waits → each job
// runs, inside a savepoint of its own if it writes and is not alone → totals are
// written → COMMIT, with its sync → changes counts what the jobs invalidate → their
// callers hear the result. So nobody hears of a write before it is on disk, and no
// cache serves what it replaced after its caller has heard.
//
// An inline run: a caller that finds the writer idle takes the turn itself and does
// the same on its own goroutine, with whatever has reached the queue by then. It saves
// two changes of goroutine; see BenchmarkWrites.
//
// A foreign change, by the sqlite3 shell or a command: data_version tells, and is
// asked for between two batches, at most once in foreignInterval. Until it has been
// asked, caches are not trusted (current).
//
// A stop: closing is closed → no job enters the queue any more → the goroutine takes
// the turn for good, runs what is queued, closes stopped and ends.
type writer struct {
	db      *sql.DB
	conn    *sql.Conn
	queries *queries // prepared on conn
	inPlace func() error
	now     func() time.Time

	jobs    chan *job
	turn    chan struct{}
	wake    chan struct{} // has the goroutine look for jobs and for foreign changes
	closing chan struct{}
	stopped chan struct{}
	running sync.WaitGroup // the goroutine

	lastCommit    time.Duration             // how long it took
	dataVersion   int64                     // as last seen on conn
	callers       atomic.Int64              // in update
	lastBatchSize atomic.Int64              // after a large one others are about to come
	blockedSince  atomic.Pointer[time.Time] // since when BEGIN waits for the lock; nil: it doesn't
	fresh         atomic.Bool               // dataVersion was asked for within foreignInterval
	freshTimer    *time.Timer               // ends fresh
	changes       changes
	commits       atomic.Int64 // so far, for the metrics
	committedJobs atomic.Int64 // jobs committed so far
}

// newWriter makes a writer that has no connection yet. inPlace tells whether the file
// is still the one that the connection has open.
func newWriter(inPlace func() error, now func() time.Time) *writer {
	w := &writer{inPlace: inPlace, now: now, jobs: make(chan *job, maxQueued), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		closing: make(chan struct{}), stopped: make(chan struct{})}
	w.changes.seed = maphash.MakeSeed()
	w.freshTimer = time.AfterFunc(foreignInterval, func() { w.fresh.Store(false) })
	return w
}

// start runs the writer's goroutine until stop.
func (w *writer) start() { w.running.Go(w.loop) }

// stop runs the jobs that are queued and ends the goroutine. The caller owns the
// connection from then on.
func (w *writer) stop() {
	close(w.closing)
	w.running.Wait()
}

// connect gives the writer a connection of its pool.
func (w *writer) connect() (err error) {
	if w.conn, err = w.db.Conn(context.Background()); err != nil {
		return err
	}
	w.queries = newQueries(w.conn.PrepareContext)
	w.dataVersion = -1 // each connection counts from where it likes
	return nil
}

// disconnect closes connection and pool, as far as there are any.
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

// effects are what a job leaves behind in the transaction that it shares.
type effects struct {
	invalid           invalidation
	total             total // that is still to be written, with those of the others; nil: none
	sharesTransaction bool  // what it writes must be undone apart: it needs a savepoint
	hasSavepoint      bool  // and has one
}

// A total is what a job counts: those of a batch are added up, so that a row that many
// of its jobs add to is written once, before the commit.
type total interface {
	merge(other total)
	write(t *tx) error
}

// addTotals adds b, which is not used any more, to a; either may be nil.
func addTotals(a, b total) total {
	switch {
	case a == nil:
		return b
	case b != nil:
		a.merge(b)
	}
	return a
}

// An invalidation names the cached rows that a transaction changes. Without names,
// everything that is cached is invalidated.
type invalidation struct {
	named bool
	ids   []string
}

// invalidate says that of all cached rows this transaction changes only those of the
// given licences and widgets; without ids, none. It may be called again, for more. A
// transaction that never calls it invalidates everything.
func (t *tx) invalidate(ids ...string) {
	t.invalid.named = true
	t.invalid.ids = append(t.invalid.ids, ids...)
}

// changes counts commits, so that what is kept in memory can be held against the
// file: for each licence and widget apart, by a hash of its id, and for everything
// else together.
type changes struct {
	commits atomic.Uint64 // all of them
	global  atomic.Uint64 // those that may have changed anything, and those of others
	rows    [4096]atomic.Uint64
	seed    maphash.Seed
}

// A version is what changes said of a row at a moment; another one means that the
// row may be different now.
type version struct{ global, row uint64 }

// versionOf tells the versionOf of a licence or a widget; "" is whatever is neither.
func (c *changes) versionOf(id string) version {
	v := version{global: c.global.Load()}
	if id != "" {
		v.row = c.rowCounter(id).Load()
	}
	return v
}

func (c *changes) rowCounter(id string) *atomic.Uint64 {
	return &c.rows[maphash.String(c.seed, id)%uint64(len(c.rows))]
}

// record counts what a committed transaction has touched, before its caller hears of it.
func (c *changes) record(i invalidation) {
	c.commits.Add(1)
	if !i.named {
		c.global.Add(1)
	}
	for _, id := range i.ids {
		c.rowCounter(id).Add(1)
	}
}

// exec runs a statement and returns how many rows it changed. It is the only way to
// write.
func (t *tx) exec(query string, args ...any) (int64, error) {
	if t.sharesTransaction && !t.hasSavepoint {
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
	if err != nil {
		return 0, storageError(err)
	}
	return res.RowsAffected()
}

// A job is one function that waits for the writer.
type job struct {
	ctx     context.Context // its caller's; it never reaches the driver
	run     func(*tx) error
	state   atomic.Int32
	effects effects // of its last run
	err     error
	done    chan struct{} // closed once err is final
}

// The states of a job: whoever moves it away from waiting decides its fate.
const (
	jobWaiting   = iota
	jobClaimed   // by the writer: it will be answered
	jobAbandoned // by its caller: it will not be run
)

// claim takes a job to be run, unless its caller has gone, and tells which.
func (j *job) claim() bool {
	return j.ctx.Err() == nil && j.state.CompareAndSwap(jobWaiting, jobClaimed)
}

func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// update runs f in the writer's next transaction, beside the other jobs that
// wait, and returns once it is on disk. When f fails, what it wrote is rolled
// back alone and its error comes back (but see keep). f may run more than once
// and must then start anew. When ctx ends before f's turn, f is not run.
// Errors: f's own, errBusy, errStorageFull, errStorage, errCommitUnknown, errClosed, ctx'w.
func (w *writer) update(ctx context.Context, f func(*tx) error) error {
	if since := w.blockedSince.Load(); since != nil && w.callers.Load() >= maxBlocked && w.now().Sub(*since) > time.Second {
		return errBusy
	}
	alone := w.callers.Add(1) == 1 && w.lastBatchSize.Load() <= 1
	defer w.callers.Add(-1)
	j := &job{ctx: ctx, run: f, done: make(chan struct{})}
	if _, hurried := ctx.Deadline(); alone && !hurried && w.runInline(j) {
		if j.state.CompareAndSwap(jobWaiting, jobAbandoned) {
			return ctx.Err()
		}
		return j.err
	}
	patience := time.NewTimer(lockTimeout)
	defer patience.Stop()
	select {
	case w.jobs <- j:
		w.wakeUp()
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
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
	case <-patience.C:
		err = errBusy
	case <-w.stopped:
	}
	if j.state.CompareAndSwap(jobWaiting, jobAbandoned) {
		return err
	}
	<-j.done
	return j.err
}

// lead has a caller run its job itself when nobody else writes, and whatever comes
// until it has begun, which saves two changes of goroutine. While another program
// holds the lock it waits as long as SQLite does, whatever becomes of the caller's
// context. It reports false when somebody does write.
func (w *writer) runInline(j *job) bool {
	select {
	case w.turn <- struct{}{}:
	default:
		return false
	}
	defer func() {
		<-w.turn
		if len(w.jobs) > 0 {
			w.wakeUp()
		}
	}()
	if runtime.GOMAXPROCS(0) == 1 { // nobody else could ask meanwhile
		runtime.Gosched()
	}
	w.runBatch(j)
	return true
}

func (w *writer) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default: // it is awake
	}
}

// loop is the writer's goroutine. It groups what waits: one commit, one sync,
// for as many jobs as came while the last one was running.
func (w *writer) loop() {
	defer close(w.stopped)
	for {
		select {
		case <-w.wake:
		case <-w.closing:
			w.turn <- struct{}{} // for good
			w.runQueued()
			return
		}
		w.turn <- struct{}{}
		w.runQueued()
		<-w.turn
	}
}

// runQueued runs what waits. Between batches it looks for commits of others when
// that is due: under load something may always wait.
func (w *writer) runQueued() {
	for {
		if !w.fresh.Load() {
			w.checkForeignCommits()
		}
		select {
		case first := <-w.jobs:
			runtime.Gosched() // lets those who are about to ask join this batch
			w.runBatch(first)
			if len(w.jobs) > 0 {
				w.yield()
			}
		default:
			return
		}
	}
}

// yield leaves the lock to others for a moment when the last commit took long: a
// program that waits for it looks ten times a second, and where the disk is slow and
// writes always wait here it would find the lock taken until it gives up.
func (w *writer) yield() {
	const slow, most = 2 * time.Millisecond, 5 * time.Millisecond
	if w.lastCommit > slow {
		time.Sleep(min(w.lastCommit/16, most))
	}
}

// foreignInterval is how long a change that another process made may go unnoticed
// by what is kept in memory.
const foreignInterval = 250 * time.Millisecond

// cachesFresh reports whether versions can be trusted: whether the file was asked for
// commits of others within foreignInterval. If not, it has that done, without
// waiting for it: a lock may hold the writer, and reading goes on meanwhile.
func (w *writer) cachesFresh() bool {
	if w.fresh.Load() {
		return true
	}
	w.wakeUp()
	return false
}

// checkForeignCommits notices commits of others. It must ask on the writer's connection,
// between transactions: there data_version moves for the commits of others only,
// on any other connection for our own too.
func (w *writer) checkForeignCommits() {
	var version int64
	if err := w.queries.one(`PRAGMA data_version`, nil, &version); err != nil || version != w.dataVersion {
		w.dataVersion = version
		w.changes.record(invalidation{})
	}
	w.fresh.Store(true)
	w.freshTimer.Reset(foreignInterval) // should an earlier end come only now, the writer looks again
}

// runBatch begins a transaction and only then takes the job that it is for and
// those that still wait, so that nobody is held to a transaction that a lock keeps
// from beginning. Like all that follows it is for whoever has the turn.
func (w *writer) runBatch(first *job) {
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
	w.lastBatchSize.Store(int64(len(batch)))
	if errs, ok := w.runTogether(batch); ok {
		for i, j := range batch {
			j.finish(errs[i])
		}
		return
	}
	for _, j := range batch { // nothing of it was kept: each gets a transaction of its own, and its own error
		j.finish(w.runAlone(j))
	}
}

func (w *writer) begin() error {
	if err := w.inPlace(); err != nil {
		return err
	}
	now := w.now()
	w.blockedSince.CompareAndSwap(nil, &now)
	err := w.queries.run("BEGIN IMMEDIATE")
	if errors.Is(err, errBusy) { // and stays so until a transaction begins
		return err
	}
	w.blockedSince.Store(nil)
	if errors.Is(err, sql.ErrConnDone) { // database/sql has given up the connection, and its transaction with it
		if err := w.connect(); err != nil {
			return storageError(err)
		}
	}
	if err != nil {
		w.queries.run("ROLLBACK") // of a transaction that an earlier fault left open
		err = w.queries.run("BEGIN IMMEDIATE")
	}
	return err
}

// runTogether runs the jobs, with a savepoint for each that writes rows, and
// commits. It reports false when the transaction was lost before its end and
// nothing of it is kept.
func (w *writer) runTogether(batch []*job) ([]error, bool) {
	errs := make([]error, len(batch))
	for i, j := range batch {
		errs[i] = w.runJob(j, len(batch) > 1)
		lost := false
		switch _, refused := errs[i].(*refusal); {
		case j.effects.hasSavepoint:
			lost = !keepsWrites(errs[i]) && w.queries.run("ROLLBACK TO job") != nil || w.queries.run("RELEASE job") != nil
		case len(batch) > 1 && !keepsWrites(errs[i]) && !refused:
			lost = w.queries.run("BEGIN") == nil // it can't begin unless the error, of a read perhaps, has ended the transaction
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

// runAlone runs a job in a transaction of its own.
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

// keepsWrites reports whether a job that ended so keepsWrites what it wrote.
func keepsWrites(err error) bool {
	var kept keptError
	return err == nil || errors.As(err, &kept)
}

// commit ends the transaction of a batch that came to these results, and makes
// them what their callers will hear. It returns an error when nothing was
// committed, for sure: the transaction could still be rolled back. Else a COMMIT
// that failed may have happened all the same, so nothing is run again, and every
// caller hears errCommitUnknown, or that the disk is full, in place of its success.
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
		if err := sum.write(&tx{queries: w.queries, effects: &effects{}}); err != nil {
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
		w.changes.record(invalidation{})
	}
	if err != nil && !errors.Is(err, errStorageFull) { // at which SQLite rolls back by itself
		err = fmt.Errorf("%w (%v)", errCommitUnknown, err)
	}
	for i, j := range batch {
		var kept keptError
		switch errors.As(errs[i], &kept); {
		case !keepsWrites(errs[i]):
		case err != nil:
			errs[i] = err
		default:
			w.changes.record(j.effects.invalid)
			errs[i] = kept.error
		}
	}
	if err == nil {
		w.commits.Add(1)
		w.committedJobs.Add(int64(written))
	}
	return nil
}

// runJob runs a job's function; a panic in it is its own error, not the writer's end.
func (w *writer) runJob(j *job, shared bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	now := w.now()
	j.effects = effects{sharesTransaction: shared}
	return j.run(&tx{queries: w.queries, effects: &j.effects, now: newStamp(now), exact: now})
}

// lockedSince tells since when the writer has been waiting for somebody else's
// lock; the zero time when it isn't.
func (w *writer) lockedSince() time.Time {
	if since := w.blockedSince.Load(); since != nil {
		return *since
	}
	return time.Time{}
}
