package main

import (
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
