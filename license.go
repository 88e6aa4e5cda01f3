package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A licenseKey is a key as it is looked up: our own in its normal form, an
// imported one as it was sent.
type licenseKey string

const (
	keySymbols  = 25 // five groups of five, the last symbol checks the others
	keyGroup    = 5
	maxKeyBytes = 255
	minImported = 16
)

var errKeyMalformed = &refusal{code: "key_malformed", detail: "That is not a licence key: a symbol is missing, wrong or swapped. Please compare it with the one you were given."}

// upperCrockford is the alphabet of licence keys.
var upperCrockford = strings.ToUpper(crockford)

// gf32 holds the powers of a generator of GF(32), x⁵+x²+1: gf32[i] = αⁱ, with
// α = 2. All 31 are different, so that a symbol's weight is unlike any other's.
var gf32 = func() (powers [31]byte) {
	for i, x := 0, byte(1); i < len(powers); i++ {
		powers[i] = x
		if x <<= 1; x&32 != 0 {
			x ^= 0b100101
		}
	}
	return powers
}()

// gfLog is the inverse of gf32: α^gfLog[x] = x, for x from 1 to 31.
var gfLog = func() (logs [32]byte) {
	for i, x := range gf32 {
		logs[x] = byte(i)
	}
	return logs
}()

func gfMul(a, b byte) byte {
	if a == 0 || b == 0 {
		return 0
	}
	return gf32[(int(gfLog[a])+int(gfLog[b]))%31]
}

// keySum is the sum of the symbols, each weighted with its own power of the
// generator. A key is right when the sum over all 25 is 0: one wrong symbol adds
// a non-zero multiple of its weight, two swapped ones a non-zero multiple of the
// difference of theirs, so neither is ever 0 (contract, section 4).
func keySum(symbols []byte) (sum byte) {
	for i, s := range symbols {
		sum ^= gfMul(gf32[i], s)
	}
	return sum
}

// newLicenseKey makes a key of 120 random bits and its check symbol, as shown to
// people: "XXXXX-XXXXX-XXXXX-XXXXX-XXXXX".
func newLicenseKey() string {
	symbols := make([]byte, keySymbols)
	rand.Read(symbols)
	for i := range symbols {
		symbols[i] &= 31
	}
	last := keySymbols - 1
	inverse := gf32[31-last] // α^-24 = α^7
	symbols[last] = gfMul(keySum(symbols[:last]), inverse)
	var b strings.Builder
	for i, s := range symbols {
		if i > 0 && i%keyGroup == 0 {
			b.WriteByte('-')
		}
		b.WriteByte(upperCrockford[s])
	}
	return b.String()
}

// parseLicenseKey reads a key as people type it: without regard to case, dashes
// and spaces, O as 0, I and L as 1. Whatever has the shape of our own keys must
// satisfy the check symbol, and is never looked up else; anything other may be an
// imported key, 16 to 255 visible ASCII characters, and is taken as it is.
// Errors: errKeyMalformed.
func parseLicenseKey(s string) (licenseKey, error) {
	if len(s) > maxKeyBytes {
		return "", errKeyMalformed
	}
	if key, ok := parsePrintedKey(s); ok {
		return key, nil
	}
	groups := strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) })
	if plain := strings.Join(groups, ""); ownShape(groups, plain) {
		if strings.IndexFunc(plain, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 { // "ı" in upper case is "I"
			return "", errKeyMalformed
		}
		plain = sameSymbols.Replace(strings.ToUpper(plain))
		symbols := make([]byte, 0, keySymbols)
		for _, r := range plain {
			i := strings.IndexRune(upperCrockford, r)
			if i < 0 {
				return "", errKeyMalformed
			}
			symbols = append(symbols, byte(i))
		}
		if keySum(symbols) != 0 {
			return "", errKeyMalformed
		}
		return licenseKey(plain), nil
	}
	if len(s) < minImported || strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return "", errKeyMalformed
	}
	return licenseKey(s), nil
}

// printedSymbols are the values of the symbols that we print; 255: none.
var printedSymbols = func() (values [256]byte) {
	for i := range values {
		values[i] = 255
	}
	for i := range len(upperCrockford) {
		values[upperCrockford[i]] = byte(i)
	}
	return values
}()

// parsePrintedKey reads a key that is written as we print it, which nearly all are,
// without the steps that forgiving people takes.
func parsePrintedKey(s string) (licenseKey, bool) {
	if len(s) != keySymbols+keySymbols/keyGroup-1 {
		return "", false
	}
	var plain, symbols [keySymbols]byte
	n := 0
	for i := range len(s) {
		if i%(keyGroup+1) == keyGroup {
			if s[i] != '-' {
				return "", false
			}
			continue
		}
		plain[n], symbols[n] = s[i], printedSymbols[s[i]]
		if symbols[n] == 255 {
			return "", false
		}
		n++
	}
	return licenseKey(plain[:]), keySum(symbols[:]) == 0
}

// sameSymbols are what people read for one another (Crockford's base32).
var sameSymbols = strings.NewReplacer("O", "0", "I", "1", "L", "1")

// ownShape reports whether a text looks like one of our keys, perhaps with one wrong
// symbol: 25 letters and digits however they are grouped, or five groups of five.
func ownShape(groups []string, plain string) bool {
	if utf8.RuneCountInString(plain) != keySymbols {
		return false
	}
	strange := 0
	for _, r := range plain {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') {
			strange++
		}
	}
	five := len(groups) == keySymbols/keyGroup && !slices.ContainsFunc(groups, func(g string) bool { return utf8.RuneCountInString(g) != keyGroup })
	return five || strange <= 1
}

// hash is what the database knows of a key.
func (k licenseKey) hash() [32]byte { return sha256.Sum256([]byte(k)) }

// hint is what people may see of a key: its last five symbols.
func (k licenseKey) hint() string { return string(k[len(k)-keyGroup:]) }

// fingerprintHash is what the database knows of a device's fingerprint.
func fingerprintHash(fingerprint string) [32]byte { return sha256.Sum256([]byte(fingerprint)) }

// The statuses of a licence.
const (
	statusActive     = "active"
	statusSuspended  = "suspended"
	statusRevoked    = "revoked"
	statusNotStarted = "not_started"
	statusExpired    = "expired"
	statusGrace      = "grace"
)

// statuses are all of them.
var statuses = []string{statusActive, statusGrace, statusExpired, statusNotStarted, statusSuspended, statusRevoked}

// status computes what a licence is at a moment, in the contract's precedence:
// revoked, suspended, not_started, expired, grace, active. The licence of a
// closed account is suspended.
func (l *license) status(now time.Time) string {
	switch {
	case l.State == statusRevoked:
		return statusRevoked
	case l.State == statusSuspended || l.AccountClosed:
		return statusSuspended
	case !l.StartsAt.IsZero() && l.StartsAt.After(now):
		return statusNotStarted
	case l.ExpiresAt.IsZero() || l.ExpiresAt.After(now):
		return statusActive
	case l.graceUntil().After(now):
		return statusGrace
	}
	return statusExpired
}

// graceUntil is when the licence really ends: expires_at and the days of grace.
// It is absent when the licence never ends.
func (l *license) graceUntil() stamp {
	return l.ExpiresAt.after(days(l.GraceDays))
}

// leaseEnd is until when a lease given now proves the licence: the licence's
// lease, but never past the end of grace.
func (l *license) leaseEnd(now time.Time) stamp {
	end := newStamp(now.Add(time.Duration(l.LeaseHours) * time.Hour))
	if last := l.graceUntil(); !last.IsZero() && last.Before(end.Time) {
		return last
	}
	return end
}

// leaseReuse is how long a lease serves again, and how rarely verify writes.
const leaseReuse = time.Minute

// refreshAfter is how long after a lease began its device should ask again: the
// lesser of a day and half the lease, which the end of the licence may have made
// short; but not sooner than an answer would bring a new one.
func refreshAfter(lease time.Duration) time.Duration {
	return max(min(24*time.Hour, lease/2).Truncate(time.Second), leaseReuse)
}

// leaseClaims are the claims of the device token that is the lease of d on l
// (contract, section 4). The caller adds the address of the service and the jti.
func leaseClaims(l *license, d *device, now time.Time, nonce string) claims {
	c := claims{
		Subject:      l.AccountID,
		ClientID:     d.ID,
		Scope:        scopeDevice,
		IssuedAt:     now.Unix(),
		Expires:      l.leaseEnd(now).Unix(),
		License:      l.ID,
		Device:       d.ID,
		Fingerprint:  base64.RawURLEncoding.EncodeToString(d.Fingerprint),
		Product:      l.Product,
		Entitlements: l.Entitlements,
		Seq:          d.LeaseSeq,
		Nonce:        nonce,
	}
	if !d.LapsesAt.IsZero() { // a floating seat's token must not outlive the seat
		c.Expires = min(c.Expires, d.LapsesAt.Unix())
	}
	c.RefreshAfter = int64(refreshAfter(time.Duration(c.Expires-c.IssuedAt) * time.Second).Seconds())
	if !l.ExpiresAt.IsZero() {
		c.LicenseEnd, c.GraceEnd = l.ExpiresAt.Unix(), l.graceUntil().Unix()
	}
	return c
}

// A question is what a device or a portal asks about a licence.
type question struct {
	product      string   // "": any
	entitlements []string // all must be held
	hasDevice    bool     // a fingerprint or a device token came along
	mismatch     bool     // they name different devices
}

// judge answers a question about a licence and the device it names (nil: none
// that was ever activated), with the first code of the contract's list that
// holds, and whether the licence may be used. l is nil when no licence was found.
func judge(l *license, d *device, q question, now time.Time) (code string, valid bool) {
	if l == nil {
		return "not_found", false
	}
	if !l.KeyRetiresAt.IsZero() && !l.KeyRetiresAt.After(now) {
		return "key_retired", false
	}
	status := l.status(now)
	switch {
	case status == statusRevoked, status == statusSuspended:
		return status, false
	case q.product != "" && q.product != l.Product:
		return "product_mismatch", false
	case status == statusNotStarted, status == statusExpired:
		return status, false
	case l.MaxDevices != nil && !q.hasDevice:
		return "fingerprint_required", false
	case q.mismatch:
		return "fingerprint_mismatch", false
	}
	if q.hasDevice {
		switch {
		case d == nil:
			return "device_not_activated", false
		case d.State == deviceBlocked:
			return "device_blocked", false
		case d.State == deviceReleased, d.lapsed(now):
			return "device_released", false
		}
	}
	for _, code := range q.entitlements {
		if !slices.Contains(l.Entitlements, code) {
			return "entitlement_missing", false
		}
	}
	if status == statusGrace {
		return statusGrace, true
	}
	return "valid", true
}

// verdictDetails say for people what judge's codes mean.
var verdictDetails = map[string]string{
	"valid":                "The licence is valid.",
	"grace":                "The licence has ended; this device may go on until grace_until.",
	"key_malformed":        errKeyMalformed.detail,
	"not_found":            "There is no licence with this key.",
	"key_retired":          "This key was replaced by a newer one.",
	"revoked":              "The licence was revoked.",
	"suspended":            "The licence is suspended.",
	"product_mismatch":     "The licence is for another product.",
	"not_started":          "The licence has not begun yet.",
	"expired":              "The licence has ended.",
	"fingerprint_required": "The licence limits devices; send the device's fingerprint or token.",
	"fingerprint_mismatch": "The fingerprint is not the one of the token's device.",
	"device_blocked":       "This device is blocked.",
	"device_released":      "This device has given its seat back; activate it again.",
	"device_not_activated": "This device has not been activated.",
	"entitlement_missing":  "The licence does not include all that was asked for.",
}

// activationRefusals turn judge's codes into those of activate.
var activationRefusals = map[string]string{
	"not_found":        "license_not_found",
	"key_retired":      "key_retired",
	"revoked":          "license_revoked",
	"suspended":        "license_suspended",
	"product_mismatch": "product_mismatch",
	"not_started":      "license_not_started",
	"expired":          "license_expired",
	"device_blocked":   "device_blocked",
}

// mayActivate tells whether a device may take a seat on a licence: nil, or the
// refusal of the contract's section 4. Whether a seat is free is not its question.
// d is nil for a device never seen.
func mayActivate(l *license, d *device, product string, now time.Time) error {
	code, _ := judge(l, d, question{product: product, hasDevice: true}, now)
	if refused, ok := activationRefusals[code]; ok {
		return &refusal{code: refused, detail: verdictDetails[code]}
	}
	if d == nil && l.status(now) == statusGrace {
		return &refusal{code: "license_in_grace", detail: "The licence has ended; devices that it already knows may go on, new ones may not begin."}
	}
	return nil
}

// nextState returns the state that an operator's action leads to, or
// illegal_transition.
func nextState(l *license, action string) (string, error) {
	switch {
	case action == "suspend" && l.State == statusActive:
		return statusSuspended, nil
	case action == "reinstate" && l.State == statusSuspended:
		return statusActive, nil
	case action == "revoke" && l.State != statusRevoked:
		return statusRevoked, nil
	}
	return "", errTransition(l, action)
}

// errTransition says that an action does not apply to a licence as it is.
func errTransition(l *license, action string) error {
	state := l.State
	if action == "renew" && state != statusRevoked {
		state += " and has no end yet"
	}
	return &refusal{code: "illegal_transition", detail: "The licence is " + state + "; " + action + " does not apply to it."}
}

// mayMove tells whether a licence's seats may be moved once more, given the moments
// of the owner's releases of the last 30 days, oldest first, and how many more are
// about to count; and if not, when: the zero stamp for never.
func mayMove(l *license, releases []stamp, more int) (ok bool, next stamp) {
	if l.MaxTransfers == nil || len(releases)+more <= *l.MaxTransfers {
		return true, stamp{}
	}
	if over := len(releases) + more - *l.MaxTransfers; over <= len(releases) {
		return false, releases[over-1].after(transferWindow)
	}
	return false, stamp{}
}

// An offlineClock is what a device without a network judges its lease by
// (contract, section 4): the later of its own clock and a mark that it saves. The
// mark grows from what the service signed and from the monotonic clock, never from
// the wall clock, so that a clock that was once wrong can't poison it. The service
// itself needs none: this is the rule that the README gives devices, for tests to try.
type offlineClock struct {
	mark int64 // Unix seconds, saved with the token
}

// signed notes the iat of a token whose signature holds.
func (c *offlineClock) signed(issuedAt int64) { c.mark = max(c.mark, issuedAt) }

// elapsed notes time that has passed by the monotonic clock.
func (c *offlineClock) elapsed(d time.Duration) {
	if d > 0 {
		c.mark += int64(d / time.Second)
	}
}

// now is the moment to compare exp with, given the wall clock.
func (c *offlineClock) now(wall time.Time) time.Time {
	return time.Unix(max(c.mark, wall.Unix()), 0)
}

// leaseFault tells why a lease whose signature holds does not prove its licence to
// a device at a moment of its offlineClock; "" when it does. fingerprint and
// audience are compared unless they are empty.
func leaseFault(c claims, fingerprint, audience string, now time.Time) string {
	hash := fingerprintHash(fingerprint)
	switch {
	case !c.isDevice():
		return "it is no device's lease"
	case audience != "" && c.Audience != audience:
		return "it is for another service: " + c.Audience
	case fingerprint != "" && c.Fingerprint != base64.RawURLEncoding.EncodeToString(hash[:]):
		return "it is bound to another device's fingerprint"
	case !time.Unix(c.Expires, 0).After(now):
		return "it ended at " + newStamp(time.Unix(c.Expires, 0)).String()
	}
	return ""
}
