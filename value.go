package main

import (
	"crypto/rand"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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

// within reports whether two times are less than d apart, whichever is earlier. Since it does
// not assume an order, a clock that was set back does not delay what runs every d.
func within(d time.Duration, a, b time.Time) bool { return b.Sub(a).Abs() < d }

// crockford is the alphabet of ids (lower case) and of licence keys (upper case).
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// lastID sorts after every id.
const lastID = "~"

// newID makes a random id: the prefix, "_", and 26 symbols of Crockford's base32 that hold 48
// bits of Unix milliseconds and 80 random bits (contract, section 1). Ids of one prefix sort by
// time.
func newID(prefix string, now time.Time) string {
	var random [10]byte
	rand.Read(random[:])
	return formatID(prefix, now, random)
}

// formatID returns the id of a time and random bits. With no bits set it sorts before all ids of
// that millisecond.
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
	if !ok || len(symbols) != 26 || symbols[0] > '7' {
		return false
	}
	for i := range len(symbols) {
		if strings.IndexByte(crockford, symbols[i]) < 0 {
			return false
		}
	}
	return true
}

// A need says whether a member or an option may be absent.
type need bool

const (
	required need = true
	optional need = false
)

// A textCheck checks a text. It returns the code and the detail of a fieldError, or "" and "" if
// the text passes.
type textCheck func(s string) (code, detail string)

// checkText checks what holds for every text: valid UTF-8, at most max characters, none of them
// a control character, and not empty if it is required. Its results are those of a textCheck.
func checkText(s string, n need, max int) (code, detail string) {
	switch {
	case n == required && s == "":
		return "empty", "This must not be empty."
	case !utf8.ValidString(s):
		return "invalid_utf8", "This must be UTF-8."
	case utf8.RuneCountInString(s) > max:
		return "too_long", fmt.Sprintf("This has more than %d characters.", max)
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		return "control_character", "This must not contain control characters."
	}
	return "", ""
}

// notEmpty is a textCheck for a text that must not be empty.
func notEmpty(s string) (code, detail string) {
	if s == "" {
		return "empty", "This must not be empty."
	}
	return "", ""
}

// isID returns a check for an id with that prefix.
func isID(prefix string) textCheck {
	return func(s string) (code, detail string) {
		if !validID(prefix, s) {
			return "invalid_id", "This is not an id of the kind " + prefix + "_…"
		}
		return "", ""
	}
}

// isText returns a check for a text of 1 to max characters.
func isText(max int) textCheck {
	return func(s string) (code, detail string) { return checkText(s, required, max) }
}

// oneOf returns a check for a text that is one of choices.
func oneOf(choices ...string) textCheck {
	return func(s string) (code, detail string) {
		if slices.Contains(choices, s) {
			return "", ""
		}
		return "unknown_value", "This must be one of " + strings.Join(choices, ", ") + "."
	}
}

// nilIfEmpty returns a pointer to s, or nil for "", which the database stores as NULL.
func nilIfEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// valueOr returns the value that p points to, or otherwise if p is nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

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
