package main

import (
	"bytes"
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

// A stamp is a moment as the file and the wire know it: UTC, whole seconds,
// "2026-11-21T10:43:26Z". The zero stamp is NULL in the file and null in JSON.
type stamp struct{ time.Time }

const stampLayout = "2006-01-02T15:04:05Z"

func newStamp(t time.Time) stamp { return stamp{t.UTC().Truncate(time.Second)} }

func (s stamp) String() string { return s.UTC().Format(stampLayout) }

// days is the length of n days of 24 hours.
func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// after shifts a stamp; the zero stamp stays absent.
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
	return fmt.Errorf("a time is stored as %T", v)
}

// MarshalJSON implements json.Marshaler.
func (s stamp) MarshalJSON() ([]byte, error) { return s.appendJSON(nil), nil }

func (s stamp) appendJSON(b []byte) []byte {
	if s.IsZero() {
		return append(b, "null"...)
	}
	return append(s.UTC().AppendFormat(append(b, '"'), stampLayout), '"')
}

// within reports whether two moments are less than d apart, whichever is first: a
// clock that was set must not hold anything up for years.
func within(d time.Duration, a, b time.Time) bool { return b.Sub(a).Abs() < d }

// crockford is the alphabet of ids (lower case) and of licence keys (upper case).
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// lastID comes after every id.
const lastID = "~"

// newID makes an identifier: the prefix, "_", and 26 Crockford symbols that hold
// 48 bits of milliseconds and 80 random bits (contract, section 1), so that ids
// sort by time.
func newID(prefix string, now time.Time) string {
	var random [10]byte
	rand.Read(random[:])
	return formatID(prefix, now, random)
}

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

// validID reports whether s has the shape of an id with that prefix.
func validID(prefix, s string) bool {
	if len(s) != len(prefix)+27 || s[:len(prefix)] != prefix || s[len(prefix)] != '_' || s[len(prefix)+1] > '7' {
		return false
	}
	for _, c := range []byte(s[len(prefix)+1:]) {
		if bytes.IndexByte([]byte(crockford), c) < 0 {
			return false
		}
	}
	return true
}

type need bool

const (
	required need = true
	optional need = false
)

// A textCheck judges a text: it returns a field error's code and detail, both "" when
// there is nothing wrong.
type textCheck func(s string) (code, detail string)

// checkText judges what every text keeps to: at most max characters, UTF-8, none of
// them a control character, and not empty when it is required.
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

func notEmpty(s string) (code, detail string) {
	if s == "" {
		return "empty", "This must not be empty."
	}
	return "", ""
}

// isID returns a check for ids with a prefix.
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

// oneOf returns a check for a choice.
func oneOf(choices ...string) textCheck {
	return func(s string) (code, detail string) {
		if slices.Contains(choices, s) {
			return "", ""
		}
		return "unknown_value", "This must be one of " + strings.Join(choices, ", ") + "."
	}
}

// nilIfEmpty returns a pointer to s, or nil for "": what the database keeps of an
// optional text.
func nilIfEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// valueOr returns what p points to, or otherwise for nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// lastYear leaves room for grace behind the latest time that is taken.
const lastYear = 9000

// parseStamp reads an RFC 3339 time of the years that the file can hold.
func parseStamp(s string) (stamp, bool) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.UTC().Year() < 1970 || t.UTC().Year() > lastYear {
		return stamp{}, false
	}
	return newStamp(t), true
}
