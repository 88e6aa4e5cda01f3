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
	followInterval = time.Second
	sweepInterval  = time.Minute
	clockJump      = time.Minute     // between two looks: more than a clock is ever trimmed by
	lastPatience   = 5 * time.Second // for what is written at the stop
	clockTrial     = time.Hour       // until a clock that was set forward is believed
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
		s.store.recheckHeader()
		largeLog = s.reportLog(largeLog)
		if err := s.refresh(); err != nil {
			s.log.Warn("the base addresses can't be read", "error", err.Error())
		}
	}
}

// tend does the chores of every wing once a second, sweeps, and empties the
// write-ahead log of what was erased, until ctx ends.
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
		now := s.now()
		if s.store.walNeedsTruncate.Load() && !within(sweepInterval, emptied, now) {
			emptied = now
			s.scrubWAL(0)
		}
		set := clockSet(looked, now)
		if looked = now; set.Abs() >= clockJump {
			s.log.Warn("the clock was set", "by", set.String())
			believed = now
			if set > 0 { // what a time-driven transition writes can't be taken back
				believed = now.Add(clockTrial)
			}
		}
		trusted := !now.Before(believed)
		for _, c := range s.chores {
			if c.timeDriven && !trusted {
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

// lastChores does what is still to be done when the service stops. It has a time of its
// own: waiting for requests may have used up theirs.
func (s *server) lastChores() error {
	ctx, cancel := context.WithTimeout(context.Background(), lastPatience)
	defer cancel()
	var errs []error
	for _, c := range s.chores {
		if c.atEnd {
			errs = append(errs, c.run(ctx))
		}
	}
	return errors.Join(errs...)
}

// reportLog tells once when the write-ahead log has passed maxWAL, and once when it
// is small again. It takes and returns whether it is large.
func (s *server) reportLog(large bool) bool {
	size := s.store.walSize()
	switch {
	case size > maxWAL && !large && s.store.noCheckpoints:
		s.log.Warn("the write-ahead log is large: Litestream does not empty it; is it running?", "bytes", size)
	case size > maxWAL && !large:
		s.log.Warn("the write-ahead log is large: it can't be emptied while somebody keeps a transaction open; end that one", "bytes", size)
	case size <= maxWAL && large:
		s.log.Info("the write-ahead log is small again", "bytes", size)
	}
	return size > maxWAL
}

// clockSet tells by how much the wall clock was set between two moments, as the
// monotonic clock knows; 0 where a moment has no reading of that.
func clockSet(earlier, later time.Time) time.Duration {
	return later.Round(0).Sub(earlier.Round(0)) - later.Sub(earlier)
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
