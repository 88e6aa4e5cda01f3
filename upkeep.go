package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// What runs beside the requests: following the files, and doing what time brings
// about.

const (
	followInterval = time.Second
	sweepInterval  = time.Minute
	clockJump      = time.Minute // between two looks: more than a clock is ever trimmed by
	clockTrial     = time.Hour   // until a clock that was set forward is believed
)

// follow keeps what the service holds in memory true to the database and the key
// file, and watches the files, until ctx ends. It writes nothing, so that no lock
// holds it up.
func (s *server) follow(ctx context.Context, keyFile string) {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	keyStamp := "not seen yet" // the file may have changed, or gone, since it was read
	largeLog := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := fileStamp(keyFile); now != keyStamp {
			keyStamp = now
			s.followKeys(keyFile)
		}
		s.store.watch()
		largeLog = s.reportLog(largeLog)
		if err := s.refresh(); err != nil {
			s.log.Warn("the base addresses can't be read", "error", err.Error())
		}
	}
}

// tend writes what the service collected and what time brings about, sweeps, and
// empties the log of what was erased, until ctx ends.
func (s *server) tend(ctx context.Context) {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	swept := s.now()
	emptied, looked, believed := swept, swept, swept
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.flushLegacy(ctx); err != nil {
			s.log.Warn("legacy calls can't be counted", "error", err.Error())
		}
		now := s.now()
		if s.traces.Load() && !within(sweepInterval, emptied, now) {
			emptied = now
			s.forget(0)
		}
		set := clockSet(looked, now)
		if looked = now; set.Abs() >= clockJump {
			s.log.Warn("the clock was set", "by", set.String())
			believed = now
			if set > 0 { // what time brings about can't be taken back
				believed = now.Add(clockTrial)
			}
		}
		if now.Before(believed) {
			continue
		}
		if err := s.advance(ctx); err != nil {
			s.log.Warn("what time brings about can't be written", "error", err.Error())
		}
		if !within(sweepInterval, swept, now) {
			swept = now
			if err := s.store.update(ctx, (*tx).sweep); err != nil {
				s.log.Warn("old rows can't be removed", "error", err.Error())
			}
		}
	}
}

// reportLog tells once when the write-ahead log has passed maxLog, and once when it
// is small again. It takes and returns whether it is large.
func (s *server) reportLog(large bool) bool {
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

// clockSet tells by how much the wall clock was set between two moments, as the
// monotonic clock knows; 0 where a moment has no reading of that.
func clockSet(earlier, later time.Time) time.Duration {
	return later.Round(0).Sub(earlier.Round(0)) - later.Sub(earlier)
}

// advance does what time has brought about since the last second, or since the
// service last ran, a bounded number of rows at a time.
func (s *server) advance(ctx context.Context) error {
	due, err := s.store.timeHasWork(newStamp(s.now()))
	for due && err == nil {
		done := 0
		err = s.store.update(ctx, func(t *tx) (err error) {
			done, err = advanceTime(t)
			return err
		})
		due = done >= maxAdvance
	}
	return err
}

// followKeys takes the keys of a changed file; a bad file changes nothing.
func (s *server) followKeys(keyFile string) {
	keys, err := loadKeyring(keyFile)
	if err != nil {
		s.log.Error("the key file has changed and can't be used; the keys from before stay", "error", err.Error())
		return
	}
	if old := s.keys.Swap(keys); old.signer().kid != keys.signer().kid || len(old.keys) != len(keys.keys) {
		s.log.Info("keys", "signing", keys.signer().kid, "number", len(keys.keys))
	}
}

// fileStamp changes whenever a file does.
func fileStamp(path string) string {
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
