package main

import (
	"bytes"
	"cmp"
	"compress/flate"
	"crypto/rand"
	"crypto/sha256"
	"database/sql/driver"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// A stamp is a time in UTC with whole seconds, which is how times are written in the database and
// in JSON: "2026-11-21T10:43:26Z". The zero stamp means that there is no time; it is NULL in the
// database and null in JSON.
type stamp struct{ time.Time }

const stampLayout = "2006-01-02T15:04:05Z"

// newStamp returns t in UTC, cut to whole seconds.
func newStamp(t time.Time) stamp { return stamp{t.UTC().Truncate(time.Second)} }

// String returns the time in stampLayout.
func (s stamp) String() string { return s.UTC().Format(stampLayout) }

// day returns the day in UTC: "2026-01-31".
func (s stamp) day() string { return s.UTC().Format(time.DateOnly) }

// days returns the length of n days of 24 hours.
func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// after returns the time d later; for the zero stamp, the zero stamp.
func (s stamp) after(d time.Duration) stamp {
	if s.IsZero() {
		return s
	}
	return newStamp(s.Add(d))
}

// Value implements driver.Valuer.
func (s stamp) Value() (driver.Value, error) {
	if s.IsZero() {
		return nil, nil
	}
	return s.String(), nil
}

// Scan implements sql.Scanner.
func (s *stamp) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*s = stamp{}
		return nil
	case string:
		t, err := time.Parse(time.RFC3339, v)
		*s = newStamp(t)
		return err
	}
	return fmt.Errorf("a time is stored as %T, not as text", v)
}

// MarshalJSON implements json.Marshaler.
func (s stamp) MarshalJSON() ([]byte, error) { return s.appendJSON(nil), nil }

// appendJSON implements jsonAppender.
func (s stamp) appendJSON(b []byte) []byte {
	if s.IsZero() {
		return append(b, "null"...)
	}
	return append(s.UTC().AppendFormat(append(b, '"'), stampLayout), '"')
}

// closerThan reports whether two times are less than d apart, whichever is earlier. Since it does
// not assume an order, a clock that was set back does not delay what runs every d.
func closerThan(d time.Duration, a, b time.Time) bool { return b.Sub(a).Abs() < d }

// crockford is the alphabet of ids (lower case) and of licence keys (upper case).
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// lastID sorts after every id.
const lastID = "~"

// lastStamp is later than every moment that is stored.
var lastStamp = stamp{time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}

// newID makes a random id: the prefix, "_", and 26 symbols of Crockford's base32 that hold 48
// bits of Unix milliseconds and 80 random bits (contract, section 1). Ids of one prefix sort by
// time.
func newID(prefix string, now time.Time) string {
	var random [10]byte
	rand.Read(random[:])
	return formatID(prefix, now, random)
}

// randomText returns n random bytes in base64url, without padding.
func randomText(n int) string {
	random := make([]byte, n)
	rand.Read(random)
	return base64.RawURLEncoding.EncodeToString(random)
}

// hashOf returns the SHA-256 of a code, token or other secret, which is stored in its place. The secret must have
// so many random bits that nobody can guess it.
func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// pkceChallenge returns the challenge of a PKCE verifier by S256 (RFC 7636, section 4.2).
func pkceChallenge(verifier string) string {
	return base64.RawURLEncoding.EncodeToString(hashOf(verifier))
}

// formatID returns the id of a time and random bits. If no random bit is set, it sorts before all
// other ids of that millisecond.
func formatID(prefix string, now time.Time, random [10]byte) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(now.UnixMilli())<<16)
	copy(raw[6:], random[:])
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	var out [26]byte
	for i := 25; i >= 0; i-- {
		out[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return prefix + "_" + string(out[:])
}

// validID reports whether s has the form of an id with that prefix. Its first symbol holds only
// 3 bits, as 26 symbols of 5 bits are 2 more than the 128 bits of an id.
func validID(prefix, s string) bool {
	symbols, ok := strings.CutPrefix(s, prefix+"_")
	return ok && len(symbols) == 26 && symbols[0] <= '7' && strings.Trim(symbols, crockford) == ""
}

// seqCursor returns the cursor of a list that is ordered by the numbers of its rows, for the
// number of the last one on a page. It has the form of an id but is not one.
func seqCursor(prefix string, seq int64) string {
	var low [10]byte
	binary.BigEndian.PutUint64(low[2:], uint64(seq))
	return formatID(prefix, time.UnixMilli(0), low)
}

// parseSeqCursor returns the number that a cursor was made from, and whether it is one.
func parseSeqCursor(prefix, cursor string) (seq int64, ok bool) {
	if !validID(prefix, cursor) {
		return 0, false
	}
	high, low := idBits(prefix, cursor)
	return int64(low), high == 0 && low > 0 && low <= math.MaxInt64
}

// idBits returns the 128 bits of an id.
func idBits(prefix, id string) (high, low uint64) {
	for _, symbol := range []byte(id[len(prefix)+1:]) {
		high = high<<5 | low>>59
		low = low<<5 | uint64(strings.IndexByte(crockford, symbol))
	}
	return high, low
}

// idTime returns when an id was made.
func idTime(prefix, id string) time.Time {
	high, _ := idBits(prefix, id)
	return time.UnixMilli(int64(high >> 16))
}

// firstID returns an id that sorts after those that were made before a time, and before all others.
func firstID(prefix string, t time.Time) string { return formatID(prefix, t, [10]byte{}) }

// lastYear is the last year of a time that is accepted. The database can store times to the end
// of 9999; the rest is room for what is added to them, such as grace periods.
const lastYear = 9000

// parseStamp parses an RFC 3339 time from 1970 to lastYear. It reports false for anything else.
func parseStamp(s string) (stamp, bool) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.UTC().Year() < 1970 || t.UTC().Year() > lastYear {
		return stamp{}, false
	}
	return newStamp(t), true
}

// releasedVersion is the version that CHANGELOG.md names, and the commit: "1.1.0 (commit 0123456789ab)".
// deploy/package sets it when it links the program.
var releasedVersion string

// buildName returns what the program was built from: releasedVersion, or if another build has made it, what that has
// noted, as "development (commit 0123456789ab with changes)".
var buildName = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if releasedVersion != "" || !ok {
		return cmp.Or(releasedVersion, "unknown")
	}
	commit, changes := "", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			commit = setting.Value[:min(12, len(setting.Value))]
		case setting.Key == "vcs.modified" && setting.Value == "true":
			changes = " with changes"
		}
	}
	if commit == "" {
		return "development"
	}
	return "development (commit " + commit + changes + ")"
})

// compressedFiles are the compressed copies of schema.sql, schema/, web/ and CHANGELOG.md that the program embeds;
// "go test -run TestEmbedded -write-embedded ." writes them anew.
//
//go:embed compressed
var compressedFiles embed.FS

// embedded returns the text of a file that compressedFiles has a copy of, such as "web/openapi.json"; it panics if
// there is none. Each call decompresses it, so a caller that needs it more than once should keep the result.
func embedded(name string) string {
	file, err := compressedFiles.ReadFile("compressed/" + name + ".deflate")
	if err != nil {
		panic(err)
	}
	var text strings.Builder
	if _, err = io.Copy(&text, flate.NewReaderDict(bytes.NewReader(file), dictionaryOf(name, embedded))); err != nil {
		panic(name + ": " + err.Error()) // which a test rules out
	}
	return text.String()
}

// models are pairs of the names of some embedded files and that of one which has many of their words.
var models = [][2]string{
	{"docs/calls-*.html", "docs/calls-leads.html"},
	{"docs/*.html", "docs/orders.html"},
	{"web/*.html", "web/books.html"},
	{"web/text_*.json", "web/text_en.json"},
}

// dictionaryOf returns the dictionary with which a file is compressed, as much of another file as a reference can
// reach: for a page that of its model; for its twin in Markdown, which says the same, that of the page. read returns
// the text of a file.
func dictionaryOf(name string, read func(name string) string) []byte {
	const reach = 32 << 10
	if twin, inMarkdown := strings.CutSuffix(name, ".md"); inMarkdown {
		page := strings.TrimSuffix(strings.TrimRight(twin, "0123456789"), "-")
		text := read(page + ".html")
		if page == twin {
			return []byte(text[:min(len(text), reach)])
		}
		return []byte(text[max(0, len(text)-reach):]) // a later part of the twin
	}
	for _, model := range models {
		if is, _ := path.Match(model[0], name); is && name != model[1] {
			text := read(model[1])
			return []byte(text[:min(len(text), reach)])
		}
	}
	return nil
}

// makeRoom removes an arbitrary entry of a map that has max of them, unless it has one of the key already.
func makeRoom[K comparable, V any](m map[K]V, key K, max int) {
	if _, known := m[key]; known || len(m) < max {
		return
	}
	for other := range m {
		delete(m, other)
		return
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// How many symbols of the end of an id may stand for it; leastShortEnd, where that is enough for an id that was made
// within recentIDs.
const (
	leastIDEnd    = 6
	leastShortEnd = 4
	recentIDs     = 7 * 24 * time.Hour
	mostEndings   = 10 // ids that are listed where several end so
)

// idEnd returns the symbols of a text that may be the end of an id: at least leastShortEnd, in any case, with or
// without the prefix, and with … where others are left out. It returns "" for any other text.
func idEnd(prefix, typed string) string {
	symbols := strings.TrimPrefix(strings.ToLower(typed), prefix+"_")
	symbols = strings.ToUpper(strings.TrimLeft(symbols, "….")) // dots, too
	symbols = strings.ToLower(lookalikes.Replace(symbols))
	if len(symbols) < leastShortEnd || strings.Trim(symbols, crockford) != "" {
		return ""
	}
	return symbols
}

// lookalikes replaces letters that people mistake for digits (Crockford's base32).
var lookalikes = strings.NewReplacer("O", "0", "I", "1", "L", "1")

// upperCrockford is the alphabet of licence keys.
var upperCrockford = strings.ToUpper(crockford)

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
var checkZone = &textCheck{pattern: "^[A-Za-z0-9_+/-]+$", of: func(s string) (code, detail string) {
	if _, err := loadZone(s); err != nil {
		return "unknown_zone", "This must be a time zone such as Europe/Zurich."
	}
	return "", ""
}}

// checkCutOff is a textCheck for a time of day, from 00:00 to 23:59.
var checkCutOff = &textCheck{pattern: "^([01][0-9]|2[0-3]):[0-5][0-9]$", of: func(s string) (code, detail string) {
	if _, err := time.Parse("15:04", s); err != nil || len(s) != len("15:04") {
		return "invalid_time", "This must be a time of day such as 04:00."
	}
	return "", ""
}}

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
