package main

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"
)

// Whether the wall clock is right. It is compared with the time that the file keeps, which is the latest that
// the service took for right, and with the steady clock since.

// clockReadings are what two clocks show at one moment: the wall clock, which people
// and their programs set, and one that only measures time.
type clockReadings struct{ wall, steady time.Time }

func (s *server) readClocks() clockReadings { return clockReadings{s.now(), s.steady()} }

// clockAdjustment tells by how much the wall clock was set between two moments. Round(0) has
// Sub compare what the wall clock showed, not Go's own measure of the time between.
func clockAdjustment(earlier, later clockReadings) time.Duration {
	return later.wall.Round(0).Sub(earlier.wall.Round(0)) - later.steady.Sub(earlier.steady)
}

// How far ahead of the last time that was taken for right the clock may be while nothing vouches for it.
const (
	clockTrusted   = time.Hour      // more is doubted: what can't be undone waits
	signingTrusted = 24 * time.Hour // more is not signed either, since a device believes a signed iat for good

	clockJump = time.Minute     // within a second: more than a clock is ever slewed by
	clockWait = 2 * time.Second // for writing the time to the file
)

// A clockFault says why the wall clock is not taken for right; "": it is. Health shows it to everybody, so there
// are no others than these.
type clockFault string

const (
	clockBehind clockFault = "the clock is behind the time that the service saw last"
	clockAhead  clockFault = "the clock is more than an hour ahead of the time that the service saw last: " +
		"until it is known to be right, nothing expires, and nothing is removed or sent to books"
	clockFarAhead clockFault = "the clock is more than a day ahead of the time that the service saw last: " +
		"until it is known to be right, nothing expires, and nothing is removed, sent to books or signed"
)

const faultClock = "the time can't be written to the database"

// A clockWatch is what the wall clock is compared with.
type clockWatch struct {
	right atomic.Pointer[clockReadings] // when the wall clock was taken for right last; always set

	// The goroutine of the chores owns these.
	seen  stamp      // what the file has; zero: nothing
	tried time.Time  // when that was written last, by the steady clock
	told  clockFault // what the log said last
}

// startClock has the clock compared with the time in the file, where it is not the start of a new one. What
// is wrong with the clock holds from then on.
func (s *server) startClock() {
	read := s.readClocks()
	seen, err := s.store.clockSeen()
	if err != nil {
		s.strike("the time that the service saw last can't be read", err)
	}
	if s.clock.seen = seen; !seen.IsZero() {
		read.wall = seen.Time
	}
	s.clock.right.Store(&read)
}

// judgeClock compares what the clocks show with when the wall clock was taken for right last. One that is
// ahead is right if the kernel says that it is synchronised. Any goroutine may call it.
func (s *server) judgeClock(read clockReadings) clockFault {
	switch ahead := clockAdjustment(*s.clock.right.Load(), read); {
	case ahead <= -clockJump:
		return clockBehind
	case ahead <= clockTrusted || s.synchronised != nil && s.synchronised():
		return ""
	case ahead > signingTrusted:
		return clockFarAhead
	}
	return clockAhead
}

// clockDoubted reports whether what can't be undone must wait until the clock is known to be right.
func (s *server) clockDoubted() bool {
	fault := s.judgeClock(s.readClocks())
	return fault == clockAhead || fault == clockFarAhead
}

// signingHeld reports whether the clock is too far ahead for anything to be signed with its time.
func (s *server) signingHeld() bool { return s.judgeClock(s.readClocks()) == clockFarAhead }

// followClock takes the clock for right if it is, or if the operator says so: then the file has another time
// than the service has seen there. It logs when that changes.
func (s *server) followClock() {
	read := s.readClocks()
	fault := s.judgeClock(read)
	if fault != "" {
		seen, err := s.store.clockSeen()
		if err == nil && !seen.IsZero() && !seen.Equal(s.clock.seen.Time) {
			s.clock.seen = seen
			s.clock.right.Store(&clockReadings{seen.Time, read.steady})
			fault = s.judgeClock(read)
		}
	}
	last := *s.clock.right.Load()
	if fault == "" {
		s.clock.right.Store(&read)
	}
	switch {
	case fault == s.clock.told:
		return
	case fault == "":
		s.log.Info("the clock is taken for right")
	default:
		s.log.Warn("the clock is not taken for right", "why", string(fault),
			"by", clockAdjustment(last, read).String())
	}
	s.clock.told = fault
}

// keepClock writes to the file what the clock shows, if that is right, at least that much later than what the
// file has, and not tried within that time. A failure is logged.
func (s *server) keepClock(ctx context.Context, later time.Duration) {
	read := s.readClocks()
	now := newStamp(read.wall)
	if s.judgeClock(read) != "" || now.Sub(s.clock.seen.Time) < later || within(later, s.clock.tried, read.steady) {
		return
	}
	s.clock.tried = read.steady
	bounded, cancel := context.WithTimeout(ctx, clockWait)
	defer cancel()
	err := s.store.update(bounded, func(t *tx) error { return t.raiseClock(now) })
	switch {
	case err == nil:
		s.clock.seen = now
	case ctx.Err() == nil:
		s.strike(faultClock, err)
	}
}

// kernelSynchronised reports whether the kernel says that something such as NTP keeps the clock right
// (adjtimex(2)). Where it may not be asked, it does not say so.
func kernelSynchronised() bool {
	const timeError, unsynchronised = 5, 0x40 // TIME_ERROR, STA_UNSYNC
	var answer syscall.Timex
	state, err := syscall.Adjtimex(&answer)
	return err == nil && state != timeError && answer.Status&unsynchronised == 0
}
