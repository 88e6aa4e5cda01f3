package main

import (
	"fmt"
	"slices"
	"time"
)

// The calendar of business days. Day d of an account ends at its cut-off on the local date after d, where
// the next one begins: so a night's orders belong to the evening. Days have no gaps and no overlaps,
// whatever happens to clocks, time zones and cut-offs.

// A zoneSpan is a time zone and a cut-off that an account has from a business day on.
type zoneSpan struct {
	From   businessDate
	Zone   string
	CutOff string // "04:00"
}

// firstDate is before all business days.
const firstDate businessDate = "0001-01-01"

// A businessCalendar tells the business days of an account.
type businessCalendar struct {
	spans []calendarSpan // in order; the first is for all days before, too
}

// A calendarSpan is a zoneSpan that was parsed.
type calendarSpan struct {
	from   businessDate
	zone   *time.Location
	cutOff time.Duration // after midnight, by the clock on the wall
}

// newCalendar makes a calendar of spans in order of their first days; there is at least one.
func newCalendar(spans ...zoneSpan) (*businessCalendar, error) {
	c := &businessCalendar{}
	for _, s := range spans {
		zone, err := loadZone(s.Zone)
		if err != nil {
			return nil, fmt.Errorf("load the time zone %q: %w", s.Zone, err)
		}
		at, err := time.Parse("15:04", s.CutOff)
		if err != nil {
			return nil, fmt.Errorf("parse the cut-off %q: %w", s.CutOff, err)
		}
		cutOff := time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute
		c.spans = append(c.spans, calendarSpan{s.From, zone, cutOff})
	}
	return c, nil
}

// businessCalendar returns the calendar of an account.
func (q *queries) businessCalendar(accountID string) (*businessCalendar, error) {
	spans, err := q.zonesOf(accountID)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		settings, err := q.settings(accountID)
		if err != nil {
			return nil, err
		}
		spans = []zoneSpan{{firstDate, settings.Zone, settings.CutOff}}
	}
	return newCalendar(spans...)
}

// parseBusinessDate parses a date as "2026-11-22"; it reports false for anything else.
func parseBusinessDate(s string) (time.Time, bool) {
	t, err := time.Parse(time.DateOnly, s)
	return t, err == nil
}

// isBusinessDate reports whether a text is a date, as "2026-11-22".
func isBusinessDate(s string) bool {
	_, ok := parseBusinessDate(s)
	return ok
}

// checkBusinessDate is a textCheck for a business day.
func checkBusinessDate(s string) (code, detail string) {
	if day, ok := parseBusinessDate(s); !ok || day.Year() < 1970 || day.Year() > lastYear {
		return "invalid_date", "This must be a date: YYYY-MM-DD."
	}
	return "", ""
}

// midnight returns the start of a date, by a clock that shows UTC. It is the zero time for what is no date.
func midnight(date businessDate) time.Time {
	t, _ := parseBusinessDate(date)
	return t
}

// dateAfter returns the date after another.
func dateAfter(date businessDate) businessDate {
	return midnight(date).AddDate(0, 0, 1).Format(time.DateOnly)
}

// lookAround is how many days around a time can be its business day: zones are up to 16 hours from UTC, and
// a cut-off up to 24 hours after midnight. Days whose zone was changed may move by that much.
const lookAround = 4

// dateOf returns the business day of a time: the first one that ends after it. Of two times the later one
// never has the earlier day.
func (c *businessCalendar) dateOf(t time.Time) businessDate {
	date := t.UTC().Truncate(24*time.Hour).AddDate(0, 0, -lookAround)
	for !t.Before(c.cutOff(date)) {
		date = date.AddDate(0, 0, 1)
	}
	return date.Format(time.DateOnly)
}

// endOf returns when a business day ends, which is when the next one begins. A day that a change of the
// time zone has left no time ends when it begins.
func (c *businessCalendar) endOf(date businessDate) time.Time {
	day := midnight(date)
	end := c.cutOff(day)
	for range lookAround {
		day = day.AddDate(0, 0, -1)
		if earlier := c.cutOff(day); earlier.After(end) {
			end = earlier
		}
	}
	return end.UTC()
}

// startOf returns when a business day begins.
func (c *businessCalendar) startOf(date businessDate) time.Time {
	return c.endOf(midnight(date).AddDate(0, 0, -1).Format(time.DateOnly))
}

// finalAt returns when nothing that happened on a business day is waited for any more.
func (c *businessCalendar) finalAt(date businessDate) time.Time {
	return c.endOf(date).Add(revenueGrace)
}

// cutOff returns when the clock on the wall first shows the cut-off of a day, or more where it skips that.
func (c *businessCalendar) cutOff(day time.Time) time.Time {
	date := day.Format(time.DateOnly)
	span := c.spans[0]
	for _, s := range c.spans[1:] {
		if s.from <= date {
			span = s
		}
	}
	return firstShown(day.AddDate(0, 0, 1).Add(span.cutOff), span.zone)
}

// farthestZone is more than any zone is from UTC.
const farthestZone = 26 * time.Hour

// firstShown returns the first moment at which clocks in a zone show a time, given as if it were UTC, or a
// later one: of a time that is shown twice, the first; of one that is skipped, the moment of the change.
func firstShown(wall time.Time, zone *time.Location) time.Time {
	moment := wall.Add(-farthestZone).In(zone)
	for {
		_, offset := moment.Zone()
		_, end := moment.ZoneBounds()
		shown := wall.Add(-time.Duration(offset) * time.Second)
		if shown.Before(moment) { // skipped by the change at this moment
			return moment
		}
		if end.IsZero() || shown.Before(end) {
			return shown.In(zone)
		}
		moment = end
	}
}

// changeZone keeps the time zone and the cut-off of the days so far when the settings of an account are
// changed: new ones count from the next business day on. An account without revenue has none to keep.
func changeZone(t *tx, accountID string, before, after accountSettings) error {
	if before.Zone == after.Zone && before.CutOff == after.CutOff {
		return nil
	}
	has, err := t.hasFacts(accountID)
	if err != nil {
		return err
	}
	if !has {
		return t.removeZones(accountID, firstDate)
	}
	spans, err := t.zonesOf(accountID)
	if err != nil {
		return err
	}
	if len(spans) == 0 {
		spans = []zoneSpan{{firstDate, before.Zone, before.CutOff}}
		if err := t.addZone(accountID, spans[0]); err != nil {
			return err
		}
	}
	calendar, err := newCalendar(spans...)
	if err != nil {
		return err
	}
	from := dateAfter(calendar.dateOf(t.exact))
	if err := t.removeZones(accountID, from); err != nil {
		return err
	}
	spans = slices.DeleteFunc(spans, func(s zoneSpan) bool { return s.From >= from })
	if last := spans[len(spans)-1]; last.Zone == after.Zone && last.CutOff == after.CutOff {
		return nil // changed back
	}
	return t.addZone(accountID, zoneSpan{from, after.Zone, after.CutOff})
}
