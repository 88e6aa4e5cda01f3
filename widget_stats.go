package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"path"
	"sort"
	"sync"
	"time"
)

// A statsRange is the calendar that statistics are asked for: the days from From
// to To, both included, as they fall in Zone, grouped by Interval.
type statsRange struct {
	From, To time.Time // midnight UTC of the calendar dates
	Interval string    // day, week or month
	Zone     *time.Location
}

const (
	maxStatsDays     = 366
	defaultStatsDays = 30
	topItemsShown    = 10
)

// zones are the time zones that were asked for, by name: finding one reads a file.
// Only names of files are kept, so there are as many as the machine has.
var zones sync.Map

// loadZone returns a time zone of the IANA database.
func loadZone(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	if name == "" || name == "Local" || path.Clean(name) != name {
		return nil, errors.New("no time zone")
	}
	zone, err := time.LoadLocation(name)
	if err == nil {
		zones.Store(name, zone)
	}
	return zone, err
}

// dateIn is the calendar date of a moment in a zone, as midnight UTC.
func dateIn(zone *time.Location, moment time.Time) time.Time {
	year, month, day := moment.In(zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// bounds are the moments at which the first day begins and the last one ends.
func (r statsRange) bounds() (from, until stamp) {
	return r.midnight(r.From), r.midnight(r.To.AddDate(0, 0, 1))
}

// midnight is the moment at which a calendar date begins in the zone. Where clocks
// skip it, or the whole day, it is the first moment after the gap, which time.Date
// may miss either way.
func (r statsRange) midnight(date time.Time) stamp {
	year, month, day := date.Date()
	t := time.Date(year, month, day, 0, 0, 0, 0, r.Zone)
	switch here := t.Format(time.DateOnly); {
	case here < date.Format(time.DateOnly):
		_, t = t.ZoneBounds()
	case here > date.Format(time.DateOnly):
		t, _ = t.ZoneBounds()
	}
	return newStamp(t)
}

// group is the date that stands for the interval a calendar date falls in: itself,
// the Monday of its week, the first of its month.
func (r statsRange) group(date time.Time) time.Time {
	switch r.Interval {
	case "week":
		return date.AddDate(0, 0, -(int(date.Weekday())+6)%7)
	case "month":
		return date.AddDate(0, 0, 1-date.Day())
	}
	return date
}

// A point is one interval of a series.
type point struct {
	Date string `json:"date"` // the day, the Monday of the week, the first of the month
	counts
}

// A widgetRow is what one of many widgets counted in a range.
type widgetRow struct {
	Widget string `json:"widget"`
	Name   string `json:"name"`
	counts
}

// A series adds counts up by interval. Every interval of the range is there, with
// zeros where nothing was counted.
type series struct {
	points []point
	starts []string // when each day begins, as the file writes moments
	days   []int    // which point each day belongs to
	totals counts
}

func newSeries(r statsRange) *series {
	s := &series{points: []point{}}
	for date := r.From; !date.After(r.To); date = date.AddDate(0, 0, 1) {
		label := r.group(date).Format(time.DateOnly)
		if n := len(s.points); n == 0 || s.points[n-1].Date != label {
			s.points = append(s.points, point{Date: label})
		}
		s.starts = append(s.starts, r.midnight(date).String())
		s.days = append(s.days, len(s.points)-1)
	}
	return s
}

// add counts a quarter-hour, which must lie in the range.
func (s *series) add(quarter string, c counts) {
	day := sort.SearchStrings(s.starts, quarter+"~") - 1 // the last day that begins at or before it
	s.points[s.days[max(day, 0)]].add(c)
	s.totals.add(c)
}

// A visitorSet knows who was counted as a visitor today, without cookies and
// without keeping an address: it holds keyed hashes under a salt that is replaced
// every UTC day, in memory only (contract, section 5).
type visitorSet struct {
	mu   sync.Mutex
	day  string
	salt [32]byte
	seen map[uint64]struct{}
}

// maxVisitors bounds the book; past it nobody new is counted until tomorrow. A
// million entries take about 20 MiB.
const maxVisitors = 1_000_000

// enter notes a view and reports whether it is the visitor's first of the UTC day
// of now. The returned function takes the entry back, for when the view could not
// be counted.
func (b *visitorSet) addVisitor(widgetID, address, userAgent string, now time.Time) (first bool, undo func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if today := now.UTC().Format(time.DateOnly); today != b.day {
		b.day, b.seen = today, map[uint64]struct{}{}
		rand.Read(b.salt[:])
	}
	visit := append(make([]byte, 0, 512), b.salt[:]...)
	visit = append(append(append(append(append(visit, widgetID...), '\n'), address...), '\n'), userAgent...)
	sum := sha256.Sum256(visit) // its beginning is all that leaves this function, and stays in memory
	hash := binary.BigEndian.Uint64(sum[:])
	if _, again := b.seen[hash]; again || len(b.seen) >= maxVisitors {
		return false, func() {}
	}
	b.seen[hash] = struct{}{}
	day := b.day
	return true, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.day == day {
			delete(b.seen, hash)
		}
	}
}
