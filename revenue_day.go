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

// A businessCalendar knows which business day of an account a time belongs to.
type businessCalendar struct {
	spans []calendarSpan // in order; the first one also covers all days before it
}

// A calendarSpan is a parsed zoneSpan.
type calendarSpan struct {
	from   businessDate
	zone   *time.Location
	cutOff time.Duration // after midnight, by wall clocks
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

// isBusinessDate reports whether a text is a date, as "2026-11-22".
func isBusinessDate(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return err == nil
}

// checkBusinessDate is a textCheck for a business day.
var checkBusinessDate = &textCheck{format: "date", of: func(s string) (code, detail string) {
	if day, err := time.Parse(time.DateOnly, s); err != nil || day.Year() < 1970 || day.Year() > lastYear {
		return "invalid_date", "This must be a date: YYYY-MM-DD."
	}
	return "", ""
}}

// midnight returns the start of a date, by a clock that shows UTC; the zero time if the date is malformed.
func midnight(date businessDate) time.Time {
	t, _ := time.Parse(time.DateOnly, date)
	return t
}

// dateAfter returns the date after another.
func dateAfter(date businessDate) businessDate {
	return midnight(date).AddDate(0, 0, 1).Format(time.DateOnly)
}

// dateBefore returns the date before another.
func dateBefore(date businessDate) businessDate {
	return midnight(date).AddDate(0, 0, -1).Format(time.DateOnly)
}

// lookAround is how many days the business day of a time can be away from its date in UTC: zones are up to 16
// hours from UTC, and a cut-off is up to 24 hours after midnight. A change of zone may move days by that much.
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

// endOf returns when a business day ends, which is when the next one begins. If a change of the time zone leaves
// no time to a day, it ends when it begins.
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
	return c.endOf(dateBefore(date))
}

// finalAt returns when a business day becomes final: after that, nothing that happened on it is waited for.
func (c *businessCalendar) finalAt(date businessDate) time.Time {
	return c.endOf(date).Add(revenueGrace)
}

// cutOff returns when wall clocks first show the cut-off of a day, or a later time if they skip the cut-off.
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
		if !end.IsZero() && !end.After(moment) { // package time gives such an end on December 31 of some leap years
			end = moment.Add(days(1))
		}
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

// changeZone is called when the settings of an account change. It keeps the time zone and the cut-off of the days
// so far: new ones apply from the next business day on. An account without revenue has none to keep.
func changeZone(t *tx, accountID string, before, after accountSettings) error {
	if before.Zone == after.Zone && before.CutOff == after.CutOff {
		return nil
	}
	has, err := t.hasFacts(accountID)
	if err != nil {
		return err
	}
	if !has {
		t.removeZones(accountID, firstDate)
		return nil
	}
	spans, err := t.zonesOf(accountID)
	if err != nil {
		return err
	}
	if len(spans) == 0 {
		spans = []zoneSpan{{firstDate, before.Zone, before.CutOff}}
		t.addZone(accountID, spans[0])
	}
	calendar, err := newCalendar(spans...)
	if err != nil {
		return err
	}
	from := dateAfter(calendar.dateOf(t.exact))
	t.removeZones(accountID, from)
	spans = slices.DeleteFunc(spans, func(s zoneSpan) bool { return s.From >= from })
	if last := spans[len(spans)-1]; last.Zone == after.Zone && last.CutOff == after.CutOff {
		return nil // changed back
	}
	t.addZone(accountID, zoneSpan{from, after.Zone, after.CutOff})
	return nil
}
