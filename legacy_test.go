package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

var defaultSunset = time.Date(2026, time.July, 1, 0, 0, 0, 0, time.UTC)

func TestLegacy_countsThatCanNotBeWrittenWait(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		gone, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		go s.store.update(t.Context(), func(*tx) error { <-release; return nil })
		synctest.Wait()
		s.get("//api/legacy/old").is(404)
		failed := make(chan error, 1)
		go func() { failed <- s.chore(countLegacyCalls)(gone) }()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		later := newStamp(time.Now())
		s.get("//api/legacy/old").is(404) // while that waits
		cancel()
		if err := <-failed; err == nil {
			t.Fatal("written although the writer was busy")
		}
		close(release)
		s.check(s.chore(countLegacyCalls)(t.Context()))
		s.counts(2, `SELECT sum(calls) FROM legacy_calls WHERE last_at = ?`, later)
	})
}
