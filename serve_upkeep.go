package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// What runs in the background of the service: polling the files for changes, and the chores of
// the wings, such as time-driven transitions (lapsed seats, expiry).

const (
	upkeepInterval     = time.Second     // between two polls, and between two runs of the chores
	sweepInterval      = time.Minute     // between two sweeps, and two tries to truncate the WAL
	finalChoresTimeout = 5 * time.Second // for the chores that run at the stop
)

// pollFiles picks up changes of the key file and of the base addresses, and checks the header
// of the database and the size of its WAL, every upkeepInterval until ctx ends. It also logs
// what was counted of refusals and faults, and rows that could not be read. It only reads the database, so that
// a write lock does not delay it.
func (s *server) pollFiles(ctx context.Context, keys *keyWatch) {
	walIsLarge := false
	everyInterval(ctx, func() {
		s.followKeys(keys)
		s.store.recheckHeader()
		walIsLarge = s.reportWAL(walIsLarge)
		s.metrics.keepSnapshot(s.steady())
		s.logNotices(false)
		s.logUnreadable()
		s.reviewFaults(false)
		if err := s.refresh(); err != nil {
			s.noteFault("the base addresses can't be read", err)
		}
	})
}

// everyInterval calls f every upkeepInterval until ctx ends.
func everyInterval(ctx context.Context, f func()) {
	tick := time.NewTicker(upkeepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// runChores runs the chores of every wing every upkeepInterval until ctx ends. Every
// sweepInterval it also removes all expired rows, and truncates the WAL if erased data may still
// be in it, and writes to the file what the clock shows. While the clock is doubted, time-driven chores and
// sweeps are skipped.
func (s *server) runChores(ctx context.Context) {
	lastRun := s.readClocks()
	lastSweep, lastTruncate := lastRun.steady, lastRun.steady
	sweepDue := false
	s.followClock()
	everyInterval(ctx, func() {
		read := s.readClocks()
		now := read.steady
		if s.store.walNeedsTruncate.Load() && !closerThan(sweepInterval, lastTruncate, now) {
			lastTruncate = now
			s.scrubWAL(0)
		}
		adjustment := clockAdjustment(lastRun, read)
		if lastRun = read; adjustment.Abs() >= clockJump {
			s.log.Warn("the clock was set", "by", adjustment.String())
		}
		s.followClock()
		s.keepClock(ctx, sweepInterval)
		for _, c := range s.chores {
			if c.timeDriven && s.clockDoubted() {
				continue
			}
			if err := c.run(ctx); err != nil {
				s.noteFault(c.fault, err)
			}
		}
		if !closerThan(sweepInterval, lastSweep, now) {
			lastSweep, sweepDue = now, true
		}
		if sweepDue && !s.clockDoubted() {
			sweepDue = s.sweep(ctx, now.Add(upkeepInterval))
		}
	})
}

// sweep removes rows whose retention has ended until none is left, in short transactions that let other
// writers in between (contract, section 10): expired answers to Idempotency-Keys, and what the wings' sweeps
// remove. At until, by the steady clock, it stops, so that the chores get their turn, and reports that more is
// left.
func (s *server) sweep(ctx context.Context, until time.Time) (more bool) {
	for _, remove := range append([]func(*tx) (int64, error){(*tx).sweep}, s.sweeps...) {
		_, err := s.store.updateInParts(ctx, sweptAtOnce, func(t *tx) (int64, error) {
			if more = !s.steady().Before(until); more {
				return 0, nil
			}
			return remove(t)
		})
		if err != nil && ctx.Err() == nil {
			s.noteFault("expired rows can't be removed", err)
		}
		if more || err != nil {
			return more && err == nil
		}
	}
	return false
}

// runFinalChores runs the chores that are due when the service stops, and writes the time to the file. They get a
// time-out of their own, because waiting for requests may have used up the time-out of the stop.
func (s *server) runFinalChores() error {
	ctx, cancel := context.WithTimeout(context.Background(), finalChoresTimeout)
	defer cancel()
	var errs []error
	for _, c := range s.chores {
		if c.atEnd {
			errs = append(errs, c.run(ctx))
		}
	}
	s.keepClock(ctx, time.Second)
	return errors.Join(errs...)
}

// reportWAL logs when the WAL has grown past maxWAL, and again when it is back below it. large
// is what the last call returned: whether the WAL was larger than maxWAL.
func (s *server) reportWAL(large bool) bool {
	size := s.store.walSize()
	switch {
	case size > maxWAL && !large && s.store.noCheckpoints:
		s.log.Warn("the write-ahead log is large: Litestream does not checkpoint it: check that it runs",
			"bytes", size)
	case size > maxWAL && !large:
		s.log.Warn("the write-ahead log is large: a transaction that another program keeps open "+
			"prevents its checkpoint: end it", "bytes", size)
	case size <= maxWAL && large:
		s.log.Info("the write-ahead log is small again", "bytes", size)
	}
	return size > maxWAL
}

// A keyWatch is what the service knows of the key file at a path. The goroutine of pollFiles owns it.
type keyWatch struct {
	path    string      // "": there is none
	loaded  string      // the fileState with which it was loaded last; "": it was not
	dir     fs.FileInfo // its directory when it was last loaded or unchanged; nil: never, or it is a symbolic link
	seq     int64       // the loaded keys include what commands did up to this event
	changed bool        // since then it was seen with other content that could not be read
	missing bool        // at the last look
}

// watchKeys begins to follow the key file at a path; "": there is none. It looks at once: the file may have
// changed since it was loaded at the start, and it is to be put back if it goes missing soon after the start.
func (s *server) watchKeys(path string) *keyWatch {
	w := &keyWatch{path: path}
	s.followKeys(w)
	return w
}

// followKeys loads the key file if it has changed. While the file can't be used, the keys in memory stay and it
// is loaded again at every call: a key that was retired must not stay accepted because of one failure. Meanwhile
// health warns, and the log has a line at the beginning and one at the end. A file that is missing at two looks
// in a row is put back: at the first, somebody may be just replacing it.
func (s *server) followKeys(w *keyWatch) {
	if w.path == "" {
		return
	}
	seq, seqErr := s.store.lastSeq() // read before the file, since commands write the file before their event
	state, dir := fileState(w.path), dirOfFile(w.path)
	if state == "" || state != w.loaded {
		if err := s.reloadKeys(w.path); err != nil {
			s.keysStale.Store(true)
			if err = s.noteUnusableKeys(w, state, err); err != nil {
				s.noteFault(faultKeyFile, err)
			}
			return
		}
		w.loaded = state
		os.Remove(filepath.Join(filepath.Dir(w.path), draftOfKeys(filepath.Base(w.path)))) // of a killed putBack
	}
	if seqErr == nil {
		w.seq = seq
	}
	w.dir, w.changed, w.missing = dir, false, false
	s.keysStale.Store(false)
}

// noteUnusableKeys notes that the key file with this fileState could not be loaded, and puts it back if it is
// missing for the second time in a row. It returns the error to report, if any.
func (s *server) noteUnusableKeys(w *keyWatch, state string, err error) error {
	again := w.missing
	w.missing = errors.As(err, new(missingKeys))
	switch {
	case !w.missing:
		w.changed = w.changed || state != "" && !errors.Is(err, errDamagedKeys)
	case !again:
		return nil
	default:
		why := s.putKeysBack(w)
		if why == nil || errors.Is(why, errKeysBusy) { // the next look will tell
			return nil
		}
		err = fmt.Errorf("%w; it is not put back from memory: %w", err, why)
	}
	return err
}

// putKeysBack writes the missing key file from memory. It does so only if the database is still the file at its
// path and the directory still the one that the key file was read from: another installation may be there by now,
// or the volume may be unmounted. And the keys in memory must be the last that the file had. Otherwise the error
// says why not.
func (s *server) putKeysBack(w *keyWatch) error {
	if err := s.store.filesInPlace(); err != nil {
		return err
	}
	dir, err := os.OpenRoot(filepath.Dir(w.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	now, err := dir.Stat(".")
	if err != nil {
		return err
	}
	name, keys := filepath.Base(w.path), s.keys.Load()
	if link, err := dir.Lstat(name); w.dir == nil || err == nil && link.Mode()&fs.ModeSymlink != 0 {
		return errors.New("it was not read from there, or over a symbolic link")
	}
	if !os.SameFile(now, w.dir) {
		return errors.New("its directory is another one than that from which it was read")
	}
	changed, err := s.store.wroteSince(w.seq, eventKeyAdded, eventKeyRotated, eventKeyRetired)
	if err != nil || changed || w.changed {
		return cmp.Or(err, errors.New("it was changed after it was read"))
	}
	if err := keys.putBack(dir, name); err != nil {
		return err
	}
	s.log.Warn("the key file was missing, and was put back from memory", "file", w.path, "signing", keys.signer().kid)
	s.keysPutBack.Store(true)
	return nil
}

// dirOfFile identifies the directory of a file; nil: it can't be told, or the path is not a regular file, such as
// a symbolic link.
func dirOfFile(path string) fs.FileInfo {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if info, err = os.Stat(filepath.Dir(path)); err != nil {
		return nil
	}
	return info
}

// reloadKeys loads the key file. When that fails, the keys in memory stay in use.
func (s *server) reloadKeys(keyFile string) error {
	keys, err := loadKeyring(keyFile)
	if err != nil {
		return err
	}
	if old := s.keys.Swap(keys); old.signer().kid != keys.signer().kid || len(old.keys) != len(keys.keys) {
		s.log.Info("loaded the key file", "signing", keys.signer().kid, "keys", len(keys.keys))
	}
	return nil
}

// fileState returns a string that differs after every change of the file; "" if there is no
// file.
func fileState(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size(), inode, info.Mode())
}
