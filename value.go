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
	"math/bits"
	"net/netip"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
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

var checkPage = &textCheck{pattern: "^/", of: func(s string) (code, detail string) {
	if !strings.HasPrefix(s, "/") {
		return "invalid_page", "A page is a path: it begins with /."
	}
	return "", ""
}}

// parseOrigin returns an origin in its normal form (RFC 6454): scheme and host in lower case,
// without a default port. Anything but one http or https origin is an error, "null" too.
func parseOrigin(s string) (string, error) {
	err := errors.New("an origin is a scheme and a host, such as https://www.example.com, without a path")
	if !isASCII(s) {
		return "", errors.New("a host has ASCII only: " + asBrowsersSend)
	}
	scheme, host, ok := strings.Cut(strings.ToLower(s), "://")
	if len(s) > 255 || !ok || scheme != "http" && scheme != "https" {
		return "", err
	}
	host, port, ok := cutPort(host)
	if !ok {
		return "", err
	}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		addr, bad := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		if bad != nil || !strings.HasSuffix(host, "]") || !addr.Is6() || addr.Zone() != "" {
			return "", err
		}
		host = "[" + addr.String() + "]"
	} else if !validHost(host) {
		return "", err
	}
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return scheme + "://" + host, nil
	}
	return scheme + "://" + host + ":" + port, nil
}

// asBrowsersSend is what to do about the host of an address that has letters beyond ASCII.
const asBrowsersSend = "give it as a browser sends it (location.origin)"

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// validHost reports whether host is a host name as browsers send it in an Origin: labels of
// lower-case ASCII letters, digits, hyphens and underscores, separated by dots.
func validHost(host string) bool {
	return !slices.ContainsFunc(strings.Split(host, "."), func(label string) bool {
		return label == "" || strings.Trim(label, hostSymbols) != ""
	})
}

// isURLText reports whether s has only characters that may follow the host of a URL (RFC 3986, appendix A)
// and each of its percent signs is followed by two hexadecimal digits.
func isURLText(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '%':
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return false
			}
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("-._~:/?[]@!$&'()*+,;=", c) < 0:
			return false
		}
	}
	return true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// isNumber reports whether programs take a host with this last label for an IPv4 address, since the
// label is a decimal, octal or hexadecimal number (URL Standard of WHATWG, "ends in a number").
func isNumber(label string) bool {
	digits := strings.Trim(label, "0123456789") == ""
	return label != "" && (digits || strings.HasPrefix(label, "0x"))
}

// isHostLabel reports whether s is a label of a host name, in lower case. It accepts underscores:
// names of hosts have none, but names of services in their domains do.
func isHostLabel(s string) bool {
	return s != "" && len(s) <= maxHostLabel && s[0] != '-' && s[len(s)-1] != '-' &&
		strings.Trim(s, hostSymbols) == ""
}

const hostSymbols = "abcdefghijklmnopqrstuvwxyz0123456789-_"

// cutPort splits the host and the port of a URL; the port is "" if there is none. It reports false
// for a port that is not a number from 1 to 65535, written in digits without leading zeros.
func cutPort(authority string) (host, port string, ok bool) {
	i := strings.LastIndexByte(authority, ':')
	if i <= strings.LastIndexByte(authority, ']') { // no port; also if there is neither a colon nor a bracket
		return authority, "", true
	}
	host, port = authority[:i], authority[i+1:]
	n, err := strconv.ParseUint(port, 10, 16)
	return host, port, err == nil && n > 0 && port == strconv.FormatUint(n, 10)
}

const maxHostLabel = 63

// isContact reports whether a text is a URI of one of some schemes at which somebody can be reached.
func isContact(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Host+u.Opaque != ""
}

// hostWithPort returns the host of an address, with its port if it has one; "" for what is none, as an operator may
// have edited the row.
func hostWithPort(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

// Amounts of money are integers in the minor unit of a currency, so that 1250 is 12.50. None is negative.
// Rates of VAT are in hundredths of a percent, so that 810 is 8.1 %.

// currencies are those that orders can have (ISO 4217): those to which every provider gives two decimals.
// Providers disagree about the decimals of others, such as HUF and ISK.
var currencies = []string{
	"AUD", "CAD", "CHF", "CZK", "DKK", "EUR", "GBP", "NOK", "NZD", "PLN", "RON", "SEK", "USD",
}

const (
	maxAmount  = 1_000_000_000_000 // 10,000,000,000.00; far below what an int64 holds
	maxVATRate = 10_000            // 100 %
)

// checkCurrency is a textCheck for a currency.
var checkCurrency = &textCheck{words: currencies, of: func(s string) (code, detail string) {
	if !slices.Contains(currencies, s) {
		return "unknown_currency", "This must be one of " + strings.Join(currencies, ", ") + ", in capitals."
	}
	return "", ""
}}

// addUp returns the sum of amounts. It reports false if one is negative or above maxAmount, or the sum is.
func addUp(amounts ...int64) (sum int64, ok bool) {
	for _, a := range amounts {
		if a < 0 || a > maxAmount-sum {
			return 0, false
		}
		sum += a
	}
	return sum, true
}

// inBounds reports whether an amount that may be negative is at most maxAmount.
func inBounds(amount int64) bool { return amount >= -maxAmount && amount <= maxAmount }

// multiply returns an amount times a quantity. It reports false if either is negative, or the product is
// above maxAmount.
func multiply(amount, quantity int64) (product int64, ok bool) {
	if amount < 0 || quantity < 0 {
		return 0, false
	}
	high, low := bits.Mul64(uint64(amount), uint64(quantity))
	if high > 0 || low > maxAmount {
		return 0, false
	}
	return int64(low), true
}

// vatIn returns the VAT that is included in a gross amount of at most maxAmount, at a rate of at most
// maxVATRate, rounded half up.
func vatIn(gross, rate int64) int64 {
	return portion(gross, rate, maxVATRate+rate)
}

// portion returns part/whole of an amount, rounded half up. The amount is at most maxAmount, and
// 0 <= part <= whole, 0 < whole.
func portion(amount, part, whole int64) int64 {
	high, low := bits.Mul64(uint64(amount), uint64(part))
	quotient, rest := bits.Div64(high, low, uint64(whole))
	if rest >= uint64(whole)-rest {
		quotient++
	}
	return int64(quotient)
}

// spread divides an amount in proportion to weights by the method of the largest remainder: each part is
// less than one unit from its exact proportion, and they add up to the amount. Of equal remainders the
// first ones get the units that are left. No part is above its weight if the amount is at most the sum of
// the weights. Amount and weights are not negative, and their sum is at most maxAmount; if all weights are
// 0, so must be the amount.
func spread(amount int64, weights []int64) []int64 {
	whole := int64(0)
	for _, w := range weights {
		whole += w
	}
	parts := make([]int64, len(weights))
	if amount == 0 || whole == 0 {
		return parts
	}
	left, order, rests := amount, make([]int, len(weights)), make([]uint64, len(weights))
	for i, w := range weights {
		high, low := bits.Mul64(uint64(amount), uint64(w))
		quotient, rest := bits.Div64(high, low, uint64(whole))
		parts[i], rests[i], order[i] = int64(quotient), rest, i
		left -= parts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rests[b], rests[a]) })
	for _, i := range order[:left] {
		parts[i]++
	}
	return parts
}

// formatAmount returns an amount in the major unit: "12.50".
func formatAmount(amount int64) string { return fmt.Sprintf("%d.%02d", amount/100, amount%100) }

// formatSigned returns an amount in the major unit, which may be negative: "-12.50".
func formatSigned(amount int64) string {
	if amount < 0 {
		return "-" + formatAmount(-amount)
	}
	return formatAmount(amount)
}

// formatMoney returns an amount, which may be negative, with its currency, as people read it: "57.00 CHF".
func formatMoney(amount int64, currency string) string { return formatSigned(amount) + " " + currency }

// formatRate returns a rate of VAT: "8.1 %".
func formatRate(rate int64) string {
	return strconv.FormatFloat(float64(rate)/100, 'f', -1, 64) + " %"
}

// parseAmount parses an amount in the major unit, with a point and two decimals or without decimals:
// "12.50", "12". It reports false for anything else, and above maxAmount.
func parseAmount(s string) (int64, bool) {
	major, minor, hasMinor := strings.Cut(s, ".")
	if !hasMinor {
		minor = "00"
	}
	digits := major + minor
	if major == "" || len(minor) != 2 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil && n <= maxAmount
}

// hundredths returns a number times 100, exactly. It reports false for a text that is no number, has a digit other
// than 0 after its second decimal, has an exponent, or is above maxAmount.
func hundredths(text string) (int64, bool) {
	text, negative := strings.CutPrefix(text, "-")
	major, minor, _ := strings.Cut(text, ".")
	minor = strings.TrimRight(minor, "0")
	if len(minor) > 2 {
		return 0, false
	}
	n, ok := parseAmount(major + "." + minor + "00"[len(minor):])
	if negative {
		n = -n
	}
	return n, ok
}
