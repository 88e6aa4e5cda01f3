package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// oddZones have clocks that are set at midnight, by half an hour, by two hours or a day, or that differ
// from UTC by odd amounts; the first half are usual ones.
var oddZones = strings.Fields(`
	UTC Europe/Zurich Europe/London America/New_York America/Los_Angeles Asia/Tokyo Asia/Kolkata
	Australia/Sydney America/Sao_Paulo America/St_Johns America/Goose_Bay America/Havana America/Santiago America/Asuncion
	America/Scoresbysund America/Caracas America/Godthab Atlantic/Azores Africa/Cairo Africa/Casablanca Africa/Monrovia
	Asia/Beirut Asia/Amman Asia/Gaza Asia/Tehran Asia/Kathmandu Asia/Pyongyang Asia/Damascus Asia/Hebron
	Australia/Lord_Howe Antarctica/Troll Antarctica/Casey Pacific/Apia Pacific/Kwajalein Pacific/Enderbury
	Pacific/Kiritimati Pacific/Chatham Pacific/Norfolk Etc/GMT+12 Europe/Dublin Europe/Lisbon Europe/Volgograd`)

// transitions calls f for every time from 1970 to 2037 at which the clocks of a zone are set.
func transitions(zone *time.Location, f func(time.Time)) {
	for t := time.Date(1970, 1, 3, 0, 0, 0, 0, time.UTC).In(zone); ; {
		_, next := t.ZoneBounds()
		if next.IsZero() || next.Year() > 2037 {
			return
		}
		if !next.After(t) { // as for some times in the last year of a zone's table
			next = t.Add(time.Hour)
		} else {
			f(next)
		}
		t = next
	}
}

// countByQuarters counts the quarter-hours of a range by what their clocks show at their beginning, one by one.
func countByQuarters(r statsRange) map[string]int64 {
	found := map[string]int64{}
	first, last := r.From.Format(time.DateOnly), r.To.Format(time.DateOnly)
	for t := r.From.AddDate(0, 0, -2); t.Before(r.To.AddDate(0, 0, 3)); t = t.Add(quarterHour) {
		date := t.In(r.Zone).Format(time.DateOnly)
		if date < first || date > last {
			continue
		}
		switch r.Interval {
		case "week":
			monday, _ := time.Parse(time.DateOnly, date)
			for monday.Weekday() != time.Monday {
				monday = monday.AddDate(0, 0, -1)
			}
			date = monday.Format(time.DateOnly)
		case "month":
			date = date[:8] + "01"
		}
		found[date]++
	}
	return found
}

// countByPeriods counts the quarter-hours of a range by the periods of its series.
func countByPeriods(t *testing.T, r statsRange) map[string]int64 {
	s := newSeries(r)
	for i, p := range s.periods {
		if !p.from.Before(p.until.Time) || i > 0 && p.from.Before(s.periods[i-1].until.Time) {
			t.Errorf("%s %v: period %v follows %v", r.Zone, r.From, p, s.periods[max(0, i-1)])
		}
		for q := p.from.Truncate(quarterHour).Add(-quarterHour); q.Before(p.until.Time); q = q.Add(quarterHour) {
			if !q.Before(p.from.Time) {
				s.add(p, counts{Views: 1})
			}
		}
	}
	found := map[string]int64{}
	for _, p := range s.points {
		if p.Views > 0 {
			found[p.Date] += p.Views
		}
	}
	return found
}

func TestStats_daysAreThoseOfTheClocksAroundEveryChangeOfEveryZone(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	checked, twice := 0, 0
	for n, name := range oddZones {
		zone, err := loadZone(name)
		must(t, err)
		i := n
		transitions(zone, func(at time.Time) {
			if i++; i%size(8, 1) != 0 {
				return
			}
			day := dateIn(zone, at)
			r := statsRange{day.AddDate(0, 0, -1), day.AddDate(0, 0, 1), statsIntervals[i%3], zone}
			equal(t, fmt.Sprint(name, " by ", r.Interval, " around ", day), countByPeriods(t, r), countByQuarters(r))
			if r.Interval == "day" && len(newSeries(r).periods) > 3 {
				twice++
			}
			checked++
		})
	}
	if checked < 400 || twice < 2 {
		t.Errorf("%d changes were checked, at %d of which a day began twice: too few", checked, twice)
	}
}
