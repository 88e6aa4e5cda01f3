package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

var defaultSunset = time.Date(2026, time.July, 1, 0, 0, 0, 0, time.UTC)

func TestLegacy_dateOfSunsetIsAnOption(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(_ *storeOptions, o *serverOptions) {
			o.legacySunset = time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)
		})
		s.get("//api/legacy/widget/health").is(410, "gone").has("Sunset: Fri, 31 Dec 1999 00:00:00 GMT")
	})
}

func TestLegacy_countsAreWrittenAtTheEndOfADrainThatTookAllItsTime(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.get("//api/legacy/old").is(410)
	s.check(s.server.runFinalChores())
	s.counts(1, `SELECT sum(calls) FROM legacy_calls`)
}

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
