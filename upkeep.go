package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// What runs beside the requests: following the files, and doing what time brings
// about.

const (
	upkeepInterval     = time.Second
	sweepInterval      = time.Minute
	clockJump          = time.Minute     // between two looks: more than a clock is ever trimmed by
	finalChoresTimeout = 5 * time.Second // for what is written at the stop
	clockTrustDelay    = time.Hour       // until a clock that was set forward is believed
)

// pollFiles keeps what the service holds in memory true to the database and the key
// file, and watches the files, until ctx ends. It writes nothing, so that no lock
// holds it up.
func (s *server) pollFiles(ctx context.Context, keyFile string) {
	tick := time.NewTicker(upkeepInterval)
	defer tick.Stop()
	keyStamp := "not seen yet" // the file may have changed, or gone, since it was read
	largeLog := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := fileState(keyFile); now != keyStamp {
			keyStamp = now
			s.reloadKeys(keyFile)
		}
		s.store.watch()
		largeLog = s.reportWAL(largeLog)
		if err := s.refresh(); err != nil {
			s.log.Warn("the base addresses can't be read", "error", err.Error())
		}
	}
}

// runChores does the chores of every wing once a second, sweeps, and empties the
// write-ahead log of what was erased, until ctx ends.
func (s *server) runChores(ctx context.Context) {
	tick := time.NewTicker(upkeepInterval)
	defer tick.Stop()
	looked := s.readClocks()
	swept, emptied, believed := looked.steady, looked.steady, looked.steady
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		read := s.readClocks()
		now := read.steady
		if s.store.walNeedsTruncate.Load() && !within(sweepInterval, emptied, now) {
			emptied = now
			s.scrubWAL(0)
		}
		set := clockAdjustment(looked, read)
		if looked = read; set.Abs() >= clockJump {
			s.log.Warn("the clock was set", "by", set.String())
			believed = now
			if set > 0 { // what a time-driven transition writes can't be taken back
				believed = now.Add(clockTrustDelay)
			}
		}
		trusted := !now.Before(believed)
		for _, c := range s.chores {
			if c.timely && !trusted {
				continue
			}
			if err := c.run(ctx); err != nil {
				s.log.Warn(c.fault, "error", err.Error())
			}
		}
		if trusted && !within(sweepInterval, swept, now) {
			swept = now
			if err := s.store.update(ctx, (*tx).sweep); err != nil {
				s.log.Warn("old rows can't be removed", "error", err.Error())
			}
		}
	}
}

// runFinalChores does what is still to be done when the service stops. It has a time of its
// own: waiting for requests may have used up theirs.
func (s *server) runFinalChores() error {
	ctx, cancel := context.WithTimeout(context.Background(), finalChoresTimeout)
	defer cancel()
	var errs []error
	for _, c := range s.chores {
		if c.atEnd {
			errs = append(errs, c.run(ctx))
		}
	}
	return errors.Join(errs...)
}

// reportWAL tells once when the write-ahead log has passed maxLog, and once when it
// is small again. It takes and returns whether it is large.
func (s *server) reportWAL(large bool) bool {
	size := s.store.logSize()
	switch {
	case size > maxLog && !large && s.store.keepLog:
		s.log.Warn("the write-ahead log is large: Litestream does not empty it; is it running?", "bytes", size)
	case size > maxLog && !large:
		s.log.Warn("the write-ahead log is large: it can't be emptied while somebody keeps a transaction open; end that one", "bytes", size)
	case size <= maxLog && large:
		s.log.Info("the write-ahead log is small again", "bytes", size)
	}
	return size > maxLog
}

// clockReadings are what two clocks show at one moment: the wall clock, which people
// and their programs set, and one that only measures time.
type clockReadings struct{ wall, steady time.Time }

func (s *server) readClocks() clockReadings { return clockReadings{s.now(), s.steady()} }

// clockAdjustment tells by how much the wall clock was set between two moments. Round(0) has
// Sub compare what the wall clock showed, not Go's own measure of the time between.
func clockAdjustment(earlier, later clockReadings) time.Duration {
	return later.wall.Round(0).Sub(earlier.wall.Round(0)) - later.steady.Sub(earlier.steady)
}

// reloadKeys takes the keys of a changed file; a bad file changes nothing.
func (s *server) reloadKeys(keyFile string) {
	keys, err := loadKeyring(keyFile)
	if err != nil {
		s.log.Error("the key file has changed and can't be used; the keys from before stay", "error", err.Error())
		return
	}
	if old := s.keys.Swap(keys); old.signer().kid != keys.signer().kid || len(old.keys) != len(keys.keys) {
		s.log.Info("keys", "signing", keys.signer().kid, "number", len(keys.keys))
	}
}

// fileState changes whenever a file does.
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
