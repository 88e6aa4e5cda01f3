package main

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"database/sql/driver"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
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

// hashOf returns the SHA-256 of a code, token or other secret with so many random bits that nobody can guess it:
// as that it is stored.
func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// pkceChallenge returns the challenge of a PKCE verifier by S256 (RFC 7636, section 4.2).
func pkceChallenge(verifier string) string {
	return base64.RawURLEncoding.EncodeToString(hashOf(verifier))
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

// seqCursor returns the cursor of a list that is ordered by the numbers of its rows, for the
// number of the last one on a page. It has the shape of an id, and is none.
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
	var high, low uint64
	for _, symbol := range []byte(cursor[len(prefix)+1:]) {
		high = high<<5 | low>>59
		low = low<<5 | uint64(strings.IndexByte(crockford, symbol))
	}
	return int64(low), high == 0 && low > 0 && low <= math.MaxInt64
}

// asciiHost returns a host name, with or without a port, in the form that browsers send: labels
// with other letters than ASCII's are in Punycode, after xn-- (RFC 5891, section 4.4). It reports
// false for a name with combining marks, which would first have to be composed with their letters.
func asciiHost(host string) (string, bool) {
	labels := strings.Split(strings.ToLower(host), ".")
	for i, label := range labels {
		name, port, hasPort := strings.Cut(label, ":")
		if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
			continue
		}
		if !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsMark) >= 0 {
			return "", false
		}
		labels[i] = "xn--" + punycode(name)
		if hasPort {
			labels[i] += ":" + port
		}
	}
	return strings.Join(labels, "."), true
}

// punycode encodes a text as RFC 3492, section 6.3, does: its ASCII characters and a hyphen, then
// for each other character, in order of value, how far it is from the one before it.
func punycode(s string) string {
	const base, tmin, tmax, initialBias, initialN = 36, 1, 26, 72, 128
	text, out := []rune(s), []byte{}
	for _, r := range text {
		if r < utf8.RuneSelf {
			out = append(out, byte(r))
		}
	}
	handled := len(out)
	basic := handled
	if basic > 0 {
		out = append(out, '-')
	}
	n, delta, bias := rune(initialN), 0, initialBias
	for handled < len(text) {
		next := rune(unicode.MaxRune)
		for _, r := range text {
			if r >= n {
				next = min(next, r)
			}
		}
		delta += int(next-n) * (handled + 1)
		n = next
		for _, r := range text {
			if r < n {
				delta++
			}
			if r != n {
				continue
			}
			q := delta
			for k := base; ; k += base {
				threshold := min(max(k-bias, tmin), tmax)
				if q < threshold {
					break
				}
				out = append(out, punycodeDigit(threshold+(q-threshold)%(base-threshold)))
				q = (q - threshold) / (base - threshold)
			}
			out = append(out, punycodeDigit(q))
			bias = punycodeBias(delta, handled+1, handled == basic)
			delta = 0
			handled++
		}
		delta++
		n++
	}
	return string(out)
}

const punycodeDigits = "abcdefghijklmnopqrstuvwxyz0123456789"

func punycodeDigit(d int) byte { return punycodeDigits[d] }

// unpunycode decodes a label in lower case, without its xn--, as RFC 3492, section 6.2, does. It
// reports false for one that no text is encoded as, or that is longer than a label can be.
func unpunycode(s string) (string, bool) {
	const base, tmin, tmax, initialBias, initialN, maxLabel = 36, 1, 26, 72, 128, 63
	if len(s) > maxLabel {
		return "", false
	}
	var out []rune
	if hyphen := strings.LastIndexByte(s, '-'); hyphen > 0 {
		out, s = []rune(s[:hyphen]), s[hyphen+1:]
	}
	for i, n, bias := 0, initialN, initialBias; s != ""; i++ {
		before, weight, threshold := i, 1, 0
		for k := base; ; k += base {
			if s == "" || weight > math.MaxInt32 {
				return "", false
			}
			digit := strings.IndexByte(punycodeDigits, s[0])
			if digit < 0 {
				return "", false
			}
			s = s[1:]
			i += digit * weight
			if threshold = min(max(k-bias, tmin), tmax); digit < threshold {
				break
			}
			weight *= base - threshold
		}
		points := len(out) + 1
		bias = punycodeBias(i-before, points, before == 0)
		n += i / points
		i %= points
		if n > unicode.MaxRune || !utf8.ValidRune(rune(n)) {
			return "", false
		}
		out = slices.Insert(out, i, rune(n))
	}
	return string(out), utf8.ValidString(string(out))
}

// punycodeBias adapts the bias (RFC 3492, section 6.1).
func punycodeBias(delta, points int, first bool) int {
	const base, tmin, tmax, skew, damp = 36, 1, 26, 38, 700
	if first {
		delta /= damp
	} else {
		delta /= 2
	}
	delta += delta / points
	k := 0
	for ; delta > (base-tmin)*tmax/2; k += base {
		delta /= base - tmin
	}
	return k + (base-tmin+1)*delta/(delta+skew)
}

// checkLines is checkText for an optional text of several lines: it may also have line breaks and
// tabs.
func checkLines(s string, max int) (code, detail string) {
	plain := strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(s)
	if code, detail = checkText(plain, optional, max); code == "control_character" {
		detail = "This must not contain control characters other than line breaks and tabs."
	}
	return code, detail
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

// buildName returns the program's version, or the revision that it was built from.
var buildName = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			revision = setting.Value
		case "vcs.modified":
			if setting.Value == "true" {
				modified = "+changes"
			}
		}
	}
	switch {
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	case revision != "":
		return revision[:min(12, len(revision))] + modified
	}
	return "development"
})

// compressedFiles are the texts that the program has compressed, of schema.sql, schema/ and web/:
// "go test -run TestEmbedded -write-embedded ." makes them anew.
//
//go:embed compressed
var compressedFiles embed.FS

// embedded returns the text of a file of which compressedFiles has a copy: "web/openapi.json". Each call decompresses
// it, so a caller that needs it more than once keeps what it has made of it. It panics if there is no such file.
func embedded(name string) string {
	file, err := compressedFiles.ReadFile("compressed/" + name + ".gz")
	if err != nil {
		panic(err)
	}
	var text strings.Builder
	text.Grow(int(binary.LittleEndian.Uint32(file[len(file)-4:]))) // its length (RFC 1952, section 2.3.1)
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err == nil {
		_, err = io.Copy(&text, z)
	}
	if err != nil {
		panic(name + ": " + err.Error()) // which a test rules out
	}
	return text.String()
}
