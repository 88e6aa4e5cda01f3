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

// A statsRange is what statistics are asked for: the days from From to To, both included, in
// the time zone Zone, grouped by Interval.
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

// zones caches time zones by name, since loading one reads a file. Only zones that exist are
// added, so it has no more entries than the machine has zones.
var zones sync.Map

// loadZone returns the time zone of the IANA database with that name, or an error.
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

// dateIn returns the calendar date that a time has in a zone, as midnight UTC of that date.
func dateIn(zone *time.Location, moment time.Time) time.Time {
	year, month, day := moment.In(zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// bounds returns when the first day of the range begins and when the last one ends.
func (r statsRange) bounds() (from, until stamp) {
	return r.midnight(r.From), r.midnight(r.To.AddDate(0, 0, 1))
}

// midnight returns when a calendar date begins in the zone. Where the clocks skip midnight,
// or the whole day, that is the end of the gap; time.Date may return a time before or after it.
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

// group returns the first date of the interval that a date belongs to: the date itself, the
// Monday of its week or the first of its month.
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

// A widgetRow holds the totals of one widget in a range.
type widgetRow struct {
	Widget string `json:"widget"`
	Name   string `json:"name"`
	counts
}

// A series adds up counts by interval. It has a point for every interval of the range, with
// zeros where nothing was counted.
type series struct {
	points []point
	starts []string // when each day begins, in the format of the database
	days   []int    // index in points, for each day
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

// add adds the counts of a quarter-hour, which must lie in the range. quarter is its start.
func (s *series) add(quarter string, c counts) {
	day := sort.SearchStrings(s.starts, quarter+"~") - 1 // the last day that begins at or before it
	s.points[s.days[max(day, 0)]].add(c)
	s.totals.add(c)
}

// A visitorSet remembers who was counted as a visitor on the current UTC day, without cookies
// and without addresses: it holds hashes with a salt that is replaced every UTC day, in memory
// only (contract, section 5). Its zero value is ready for use.
type visitorSet struct {
	mu   sync.Mutex
	day  string
	salt [32]byte
	seen map[uint64]struct{}
}

// maxVisitors bounds a visitorSet; once it is full, no new visitor is counted until the next
// UTC day. A million entries take about 20 MiB.
const maxVisitors = 1_000_000

// addVisitor adds a visitor of a widget and reports whether this is its first view of the UTC
// day of now. undo removes the entry again, for when the view could not be counted.
func (b *visitorSet) addVisitor(widgetID, address, userAgent string,
	now time.Time) (first bool, undo func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if today := now.UTC().Format(time.DateOnly); today != b.day {
		b.day, b.seen = today, map[uint64]struct{}{}
		rand.Read(b.salt[:])
	}
	visit := append(make([]byte, 0, 512), b.salt[:]...)
	visit = append(append(append(append(append(visit, widgetID...), '\n'), address...), '\n'), userAgent...)
	sum := sha256.Sum256(visit) // only its first eight bytes are kept, and only in memory
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
