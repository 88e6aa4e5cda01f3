package main

import (
	"errors"
	"path"
	"sync"
	"time"
)

// zones caches time zones by name, since loading one reads a file. Only zones that exist are
// added, so it has no more entries than the machine has zones.
var zones = struct {
	sync.RWMutex
	loaded map[string]*time.Location
}{loaded: map[string]*time.Location{}}

// loadZone returns the time zone of the IANA database with that name, or an error.
func loadZone(name string) (*time.Location, error) {
	zones.RLock()
	zone := zones.loaded[name]
	zones.RUnlock()
	if zone != nil {
		return zone, nil
	}
	if name == "" || name == "Local" || path.Clean(name) != name {
		return nil, errors.New("no time zone")
	}
	zone, err := time.LoadLocation(name)
	if err == nil {
		zones.Lock()
		zones.loaded[name] = zone
		zones.Unlock()
	}
	return zone, err
}

// dateIn returns the calendar date that a time has in a zone, as midnight UTC of that date.
func dateIn(zone *time.Location, moment time.Time) time.Time {
	year, month, day := moment.In(zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// checkZone is a textCheck for a time zone of the IANA database.
func checkZone(s string) (code, detail string) {
	if _, err := loadZone(s); err != nil {
		return "unknown_zone", "This must be a time zone such as Europe/Zurich."
	}
	return "", ""
}

// checkCutOff is a textCheck for a time of day, from 00:00 to 23:59.
func checkCutOff(s string) (code, detail string) {
	if _, err := time.Parse("15:04", s); err != nil || len(s) != len("15:04") {
		return "invalid_time", "This must be a time of day such as 04:00."
	}
	return "", ""
}

// parseDate parses a calendar day from 1970 to lastYear, as 2027-01-31 or 31.01.2027, and returns
// its first second in UTC. It reports false for anything else.
func parseDate(s string) (stamp, bool) {
	day, err := time.Parse(time.DateOnly, s)
	if err != nil {
		day, err = time.Parse("2.1.2006", s)
	}
	if err != nil || day.Year() < 1970 || day.Year() > lastYear {
		return stamp{}, false
	}
	return newStamp(day), true
}

// endOfDay returns the last second of the day whose first second is s.
func (s stamp) endOfDay() stamp { return s.after(days(1) - time.Second) }
