package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	maxBatch     = 256              // writes that share one commit
	maxQueued    = 1024             // writes that may wait in memory
	maxBlocked   = 64               // writes that may wait while somebody else holds the lock
	lockPatience = 15 * time.Second // how long a write waits for its turn
)

// effects are what a job leaves behind in the transaction that it shares.
type effects struct {
	touches touches
	total   total // that is still to be written, with those of the others; nil: none
	shared  bool  // what it writes must be undone apart: it needs a savepoint
	saved   bool  // and has one
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

// touches is what a transaction says it changes of what others keep in memory.
// Unless it says so, it may be anything: forgetting costs time, not truth.
type touches struct {
	named bool
	ids   []string
}

// only says that of all rows that are kept in memory, this transaction changes
// none but those of the given licences and widgets. It may be said again, for more.
func (t *tx) only(ids ...string) {
	t.touches.named = true
	t.touches.ids = append(t.touches.ids, ids...)
}

// changes counts commits, so that what is kept in memory can be held against the
// file: for each licence and widget apart, by a hash of its id, and for everything
// else together.
type changes struct {
	commits atomic.Uint64 // all of them
	rest    atomic.Uint64 // those that may have changed anything, and those of others
	rows    [4096]atomic.Uint64
	seed    maphash.Seed
}

// A version is what changes said of a row at a moment; another one means that the
// row may be different now.
type version struct{ rest, row uint64 }

// version tells the version of a licence or a widget; "" is whatever is neither.
func (c *changes) version(id string) version {
	v := version{rest: c.rest.Load()}
	if id != "" {
		v.row = c.row(id).Load()
	}
	return v
}

func (c *changes) row(id string) *atomic.Uint64 {
	return &c.rows[maphash.String(c.seed, id)%uint64(len(c.rows))]
}

// note counts what a committed transaction has touched, before its caller hears of it.
func (c *changes) note(t touches) {
	c.commits.Add(1)
	if !t.named {
		c.rest.Add(1)
	}
	for _, id := range t.ids {
		c.row(id).Add(1)
	}
}

// exec runs a statement and returns how many rows it changed. It is the only way to
// write.
func (t *tx) exec(query string, args ...any) (int64, error) {
	if t.shared && !t.saved {
		if err := t.run("SAVEPOINT job"); err != nil {
			return 0, err
		}
		t.saved = true
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
	jobWaiting = iota
	jobTaken   // by the writer: it will be answered
	jobGone    // by its caller: it will not be run
)

// taken takes a job to be run, unless its caller has gone, and tells which.
func (j *job) taken() bool {
	return j.ctx.Err() == nil && j.state.CompareAndSwap(jobWaiting, jobTaken)
}

func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// update runs f in the writer's next transaction, beside the other jobs that
// wait, and returns once it is on disk. When f fails, what it wrote is rolled
// back alone and its error comes back (but see keep). f may run more than once
// and must then start anew. When ctx ends before f's turn, f is not run.
// Errors: f's own, errBusy, errStorageFull, errStorage, errDoubt, errClosed, ctx's.
func (s *store) update(ctx context.Context, f func(*tx) error) error {
	if since := s.blocked.Load(); since != nil && s.calling.Load() >= maxBlocked && s.now().Sub(*since) > time.Second {
		return errBusy
	}
	alone := s.calling.Add(1) == 1 && s.crowd.Load() <= 1
	defer s.calling.Add(-1)
	j := &job{ctx: ctx, run: f, done: make(chan struct{})}
	if _, hurried := ctx.Deadline(); alone && !hurried && s.lead(j) {
		if j.state.CompareAndSwap(jobWaiting, jobGone) {
			return ctx.Err()
		}
		return j.err
	}
	patience := time.NewTimer(lockPatience)
	defer patience.Stop()
	select {
	case s.jobs <- j:
		s.rouse()
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return errBusy
	case <-s.closing:
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
	case <-s.stopped:
	}
	if j.state.CompareAndSwap(jobWaiting, jobGone) {
		return err
	}
	<-j.done
	return j.err
}

// lead has a caller run its job itself when nobody else writes, and whatever comes
// until it has begun, which saves two changes of goroutine. While another program
// holds the lock it waits as long as SQLite does, whatever becomes of the caller's
// context. It reports false when somebody does write.
func (s *store) lead(j *job) bool {
	select {
	case s.turn <- struct{}{}:
	default:
		return false
	}
	defer func() {
		<-s.turn
		if len(s.jobs) > 0 {
			s.rouse()
		}
	}()
	if runtime.GOMAXPROCS(0) == 1 { // nobody else could ask meanwhile
		runtime.Gosched()
	}
	s.runBatch(j)
	return true
}

func (s *store) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// write is the writer's goroutine. It groups what waits: one commit, one sync,
// for as many jobs as came while the last one was running.
func (s *store) write() {
	defer close(s.stopped)
	for {
		select {
		case <-s.wake:
		case <-s.closing:
			s.turn <- struct{}{} // for good
			s.runQueued()
			return
		}
		s.turn <- struct{}{}
		s.runQueued()
		<-s.turn
	}
}

// runQueued runs what waits. Between batches it looks for commits of others when
// that is due: under load something may always wait.
func (s *store) runQueued() {
	for {
		if !s.fresh.Load() {
			s.noteForeign()
		}
		select {
		case first := <-s.jobs:
			runtime.Gosched() // lets those who are about to ask join this batch
			s.runBatch(first)
			if len(s.jobs) > 0 {
				s.yield()
			}
		default:
			return
		}
	}
}

// yield leaves the lock to others for a moment when the last commit took long: a
// program that waits for it looks ten times a second, and where the disk is slow and
// writes always wait here it would find the lock taken until it gives up.
func (s *store) yield() {
	const slow, most = 2 * time.Millisecond, 5 * time.Millisecond
	if s.synced > slow {
		time.Sleep(min(s.synced/16, most))
	}
}

// foreignInterval is how long a change that another process made may go unnoticed
// by what is kept in memory.
const foreignInterval = 250 * time.Millisecond

// current reports whether versions can be trusted: whether the file was asked for
// commits of others within foreignInterval. If not, it has that done, without
// waiting for it: a lock may hold the writer, and reading goes on meanwhile.
func (s *store) current() bool {
	if s.fresh.Load() {
		return true
	}
	s.rouse()
	return false
}

// noteForeign notices commits of others. It must ask on the writer's connection,
// between transactions: there data_version moves for the commits of others only,
// on any other connection for our own too.
func (s *store) noteForeign() {
	var version int64
	if err := s.writes.one(`PRAGMA data_version`, nil, &version); err != nil || version != s.foreign {
		s.foreign = version
		s.changes.note(touches{})
	}
	s.fresh.Store(true)
	s.fading.Reset(foreignInterval) // should an earlier end come only now, the writer looks again
}

// runBatch begins a transaction and only then takes the job that it is for and
// those that still wait, so that nobody is held to a transaction that a lock keeps
// from beginning. Like all that follows it is for whoever has the turn.
func (s *store) runBatch(first *job) {
	if err := s.begin(); err != nil {
		if first.taken() {
			first.finish(err)
		}
		return
	}
	batch := make([]*job, 0, 16)
	for j := first; j != nil; {
		if j.taken() {
			batch = append(batch, j)
		}
		j = nil
		if len(batch) < maxBatch {
			select {
			case j = <-s.jobs:
			default:
			}
		}
	}
	s.crowd.Store(int64(len(batch)))
	if errs, ok := s.runTogether(batch); ok {
		for i, j := range batch {
			j.finish(errs[i])
		}
		return
	}
	for _, j := range batch { // nothing of it was kept: each gets a transaction of its own, and its own error
		j.finish(s.runAlone(j))
	}
}

func (s *store) begin() error {
	if err := s.inPlace(); err != nil {
		return err
	}
	now := s.now()
	s.blocked.CompareAndSwap(nil, &now)
	err := s.writes.run("BEGIN IMMEDIATE")
	if errors.Is(err, errBusy) { // and stays so until a transaction begins
		return err
	}
	s.blocked.Store(nil)
	if errors.Is(err, sql.ErrConnDone) { // database/sql has given up the connection, and its transaction with it
		if err := s.connect(); err != nil {
			return storageError(err)
		}
	}
	if err != nil {
		s.writes.run("ROLLBACK") // of a transaction that an earlier fault left open
		err = s.writes.run("BEGIN IMMEDIATE")
	}
	return err
}

// runTogether runs the jobs, with a savepoint for each that writes rows, and
// commits. It reports false when the transaction was lost before its end and
// nothing of it is kept.
func (s *store) runTogether(batch []*job) ([]error, bool) {
	errs := make([]error, len(batch))
	for i, j := range batch {
		errs[i] = s.call(j, len(batch) > 1)
		lost := false
		switch _, refused := errs[i].(*refusal); {
		case j.effects.saved:
			lost = !keeps(errs[i]) && s.writes.run("ROLLBACK TO job") != nil || s.writes.run("RELEASE job") != nil
		case len(batch) > 1 && !keeps(errs[i]) && !refused:
			lost = s.writes.run("BEGIN") == nil // it can't begin unless the error, of a read perhaps, has ended the transaction
		}
		if lost {
			s.writes.run("ROLLBACK")
			return nil, false
		}
	}
	if err := s.commit(batch, errs); err != nil {
		return nil, false
	}
	return errs, true
}

// runAlone runs a job in a transaction of its own.
func (s *store) runAlone(j *job) error {
	if err := s.begin(); err != nil {
		return err
	}
	errs := []error{s.call(j, false)}
	if err := s.commit([]*job{j}, errs); err != nil {
		return err
	}
	return errs[0]
}

// keeps reports whether a job that ended so keeps what it wrote.
func keeps(err error) bool {
	var kept keptError
	return err == nil || errors.As(err, &kept)
}

// commit ends the transaction of a batch that came to these results, and makes
// them what their callers will hear. It returns an error when nothing was
// committed, for sure: the transaction could still be rolled back. Else a COMMIT
// that failed may have happened all the same, so nothing is run again, and every
// caller hears errDoubt, or that the disk is full, in place of its success.
func (s *store) commit(batch []*job, errs []error) error {
	written := 0
	var sum total
	for i, j := range batch {
		if keeps(errs[i]) {
			written++
			sum = addTotals(sum, j.effects.total)
		}
	}
	if written == 0 {
		s.writes.run("ROLLBACK")
		return nil
	}
	if sum != nil {
		if err := sum.write(&tx{queries: s.writes, effects: &effects{}}); err != nil {
			s.writes.run("ROLLBACK")
			return err
		}
	}
	began := time.Now()
	err := s.writes.run("COMMIT")
	s.synced = time.Since(began)
	if err != nil && s.writes.run("ROLLBACK") == nil {
		return err
	}
	if err != nil {
		s.changes.note(touches{})
	}
	if err != nil && !errors.Is(err, errStorageFull) { // at which SQLite rolls back by itself
		err = fmt.Errorf("%w (%v)", errDoubt, err)
	}
	for i, j := range batch {
		var kept keptError
		switch errors.As(errs[i], &kept); {
		case !keeps(errs[i]):
		case err != nil:
			errs[i] = err
		default:
			s.changes.note(j.effects.touches)
			errs[i] = kept.error
		}
	}
	if err == nil {
		s.batches.Add(1)
		s.written.Add(int64(written))
	}
	return nil
}

// call runs a job's function; a panic in it is its own error, not the writer's end.
func (s *store) call(j *job, shared bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	now := s.now()
	j.effects = effects{shared: shared}
	return j.run(&tx{queries: s.writes, effects: &j.effects, now: newStamp(now), exact: now})
}

// lockedSince tells since when the writer has been waiting for somebody else's
// lock; the zero time when it isn't.
func (s *store) lockedSince() time.Time {
	if since := s.blocked.Load(); since != nil {
		return *since
	}
	return time.Time{}
}
