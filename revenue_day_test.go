package main

import (
	"testing"
	"time"
)

// moment returns the time that a text of RFC 3339 names.
func moment(t testing.TB, s string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, s)
	must(t, err)
	return parsed
}

// aCalendar makes a calendar.
func aCalendar(t testing.TB, spans ...zoneSpan) *businessCalendar {
	t.Helper()
	c, err := newCalendar(spans...)
	must(t, err)
	return c
}

// Expected times are from the rules of the IANA database, reckoned by hand.
func TestCalendar_dayEndsAtItsCutOffWhateverClocksDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, zone, cutOff, date, end string }{
		{"an ordinary day", "Europe/Zurich", "04:00", "2026-11-21", "2026-11-22T03:00:00Z"},
		{"midnight", "Europe/Zurich", "00:00", "2026-11-21", "2026-11-21T23:00:00Z"},
		{"the default", "UTC", "04:00", "2026-11-21", "2026-11-22T04:00:00Z"},
		{"an hour is skipped", "Europe/Zurich", "04:00", "2026-03-28", "2026-03-29T02:00:00Z"},
		{"the day before that", "Europe/Zurich", "04:00", "2026-03-27", "2026-03-28T03:00:00Z"},
		{"in the skipped hour", "Europe/Zurich", "02:30", "2026-03-28", "2026-03-29T01:00:00Z"},
		{"at the start of the skipped hour", "Europe/Zurich", "02:00", "2026-03-28", "2026-03-29T01:00:00Z"},
		{"at the end of the skipped hour", "Europe/Zurich", "03:00", "2026-03-28", "2026-03-29T01:00:00Z"},
		{"an hour is repeated", "Europe/Zurich", "04:00", "2026-10-24", "2026-10-25T03:00:00Z"},
		{"in the repeated hour", "Europe/Zurich", "02:30", "2026-10-24", "2026-10-25T00:30:00Z"},
		{"at the end of the repeated hour", "Europe/Zurich", "03:00", "2026-10-24", "2026-10-25T02:00:00Z"},
		{"New York, skipped", "America/New_York", "02:30", "2026-03-07", "2026-03-08T07:00:00Z"},
		{"New York, repeated", "America/New_York", "01:30", "2026-10-31", "2026-11-01T05:30:00Z"},
		{"Lord Howe, half an hour skipped", "Australia/Lord_Howe", "02:15", "2026-10-03", "2026-10-03T15:30:00Z"},
		{"Lord Howe, half an hour repeated", "Australia/Lord_Howe", "01:45", "2026-04-04", "2026-04-04T14:45:00Z"},
		{"Apia, a date is skipped", "Pacific/Apia", "04:00", "2011-12-29", "2011-12-30T10:00:00Z"},
		{"Apia, the skipped date", "Pacific/Apia", "04:00", "2011-12-30", "2011-12-30T14:00:00Z"},
		{"Apia, the date after", "Pacific/Apia", "04:00", "2011-12-31", "2011-12-31T14:00:00Z"},
	} {
		calendar := aCalendar(t, zoneSpan{firstDate, c.zone, c.cutOff})
		end := moment(t, c.end)
		if got := calendar.endOf(c.date); !got.Equal(end) {
			t.Errorf("%s: %s ends at %s, want %s", c.name, c.date, got.Format(time.RFC3339), c.end)
		}
		if got := calendar.dateOf(end.Add(-1)); got != c.date {
			t.Errorf("%s: just before its end it is %s, want %s", c.name, got, c.date)
		}
		if got := calendar.dateOf(end); got != dateAfter(c.date) {
			t.Errorf("%s: at its end it is %s, want %s", c.name, got, dateAfter(c.date))
		}
		if got := calendar.finalAt(c.date); !got.Equal(end.Add(2 * time.Hour)) {
			t.Errorf("%s: it is final at %s", c.name, got)
		}
	}
}

// zonesThatMove are zones whose clocks and dates were changed in many ways.
var zonesThatMove = []string{
	"UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein",
	"Asia/Kathmandu", "Africa/Casablanca", "America/Caracas", "Antarctica/Troll", "Etc/GMT+12", "Etc/GMT-14",
}

// checkCalendar checks around a time that days have neither gaps nor overlaps, and that a later time is
// never on an earlier day.
func checkCalendar(t *testing.T, c *businessCalendar, around time.Time) {
	t.Helper()
	date := around.UTC().AddDate(0, 0, -5).Format(time.DateOnly)
	for range 10 {
		start, end := c.startOf(date), c.endOf(date)
		if end.Before(start) {
			t.Fatalf("%s begins at %s and ends before, at %s", date, start, end)
		}
		if next := dateAfter(date); !c.startOf(next).Equal(end) {
			t.Fatalf("%s ends at %s, and %s begins at %s", date, end, next, c.startOf(next))
		}
		if end.After(start) {
			for _, inside := range []time.Time{start, end.Add(-1), start.Add(end.Sub(start) / 2)} {
				if got := c.dateOf(inside); got != date {
					t.Fatalf("%s is on %s, and %s lasts from %s to %s", inside, got, date, start, end)
				}
			}
		}
		date = dateAfter(date)
	}
	before, last := "", around.Add(72*time.Hour)
	for then := around.Add(-72 * time.Hour); then.Before(last); then = then.Add(97 * time.Minute) {
		got := c.dateOf(then)
		if got < before {
			t.Fatalf("%s is on %s, and the time before was on %s", then, got, before)
		}
		if !then.Before(c.endOf(got)) || then.Before(c.startOf(got)) {
			t.Fatalf("%s is on %s, from %s to %s", then, got, c.startOf(got), c.endOf(got))
		}
		before = got
	}
}

// timeOfDay returns the time so many minutes after midnight, as a cut-off.
func timeOfDay(minutes int) string {
	return midnight(firstDate).Add(time.Duration(minutes%1440) * time.Minute).Format("15:04")
}

func TestCalendar_endsTheLastDayOfEveryLeapYear(t *testing.T) {
	t.Parallel()
	for year := 2028; year < 2130; year += 4 {
		for _, zone := range zonesThatMove {
			c := aCalendar(t, zoneSpan{firstDate, zone, "02:01"})
			checkCalendar(t, c, time.Date(year, 12, 31, 12, 0, 0, 0, time.UTC))
		}
	}
}

func TestCalendar_hasNeitherGapsNorOverlaps(t *testing.T) {
	t.Parallel()
	random := random(t, 0)
	for range size(20, 200) {
		around := time.Unix(random.Int64N(100*365*24*3600), 0).UTC()
		span := func(from businessDate) zoneSpan {
			return zoneSpan{from, zonesThatMove[random.IntN(len(zonesThatMove))], timeOfDay(random.IntN(1440))}
		}
		checkCalendar(t, aCalendar(t, span(firstDate), span(around.Format(time.DateOnly)),
			span(around.AddDate(0, 0, 1+random.IntN(3)).Format(time.DateOnly))), around)
	}
}
