package main

import (
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"unicode"
)

// A licenseKey is a licence key in the form that is hashed and looked up: one of 25 letters and
// digits, as this program makes them, in upper case without dashes, with O as 0 and I and L as
// 1; any other imported key as it was sent.
type licenseKey string

const (
	keySymbols  = 25 // of a key that this program makes; the last one is the check symbol
	keyGroup    = 5  // symbols between two dashes of a printed key
	maxKeyBytes = 255
	minImported = 16 // characters of an imported key
)

var errKeyMalformed = &refusal{code: codeKeyMalformed}

// upperCrockford is the alphabet of licence keys.
var upperCrockford = strings.ToUpper(crockford)

// gf32 holds the powers of a generator α = 2 of GF(32), the field with the polynomial x⁵+x²+1:
// gf32[i] = αⁱ. All 31 differ, so that every position of a key has a weight of its own.
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

// gfMul multiplies in GF(32).
func gfMul(a, b byte) byte {
	if a == 0 || b == 0 {
		return 0
	}
	return gf32[(int(gfLog[a])+int(gfLog[b]))%31]
}

// keySum returns the sum in GF(32) of the symbols, each multiplied by the weight of its
// position. A key is valid if the sum of all 25 is 0. One wrong symbol changes the sum by a
// non-zero multiple of its weight, and two swapped symbols change it by a non-zero multiple of
// the difference of their weights, so both are always detected (contract, section 4).
func keySum(symbols []byte) (sum byte) {
	for i, s := range symbols {
		sum ^= gfMul(gf32[i], s)
	}
	return sum
}

// newLicenseKey makes a key of 120 random bits and a check symbol, in the printed form:
// "XXXXX-XXXXX-XXXXX-XXXXX-XXXXX".
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

// parseLicenseKey returns the form of a key that is looked up (contract, section 4). A key of 25
// ASCII letters and digits may be typed in upper or lower case, with dashes and white space
// anywhere, and with O for 0 and I or L for 1. Its check symbol need not be right, because other
// vendors' keys have that shape too: see mistyped. Any other text of 16 to 255 visible ASCII
// characters is returned unchanged. Errors: errKeyMalformed.
func parseLicenseKey(s string) (licenseKey, error) {
	if len(s) > maxKeyBytes {
		return "", errKeyMalformed
	}
	isSeparator := func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) }
	plain := strings.Join(strings.FieldsFunc(s, isSeparator), "")
	if hasOwnShape(plain) {
		return licenseKey(lookalikes.Replace(strings.ToUpper(plain))), nil
	}
	if len(s) < minImported || strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return "", errKeyMalformed
	}
	return licenseKey(s), nil
}

// lookalikes replaces letters that people mistake for digits (Crockford's base32).
var lookalikes = strings.NewReplacer("O", "0", "I", "1", "L", "1")

// hasOwnShape reports whether a text without dashes and spaces is 25 ASCII letters and digits,
// which every key is that this program makes.
func hasOwnShape(plain string) bool {
	return len(plain) == keySymbols && strings.IndexFunc(plain, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9')
	}) < 0
}

// mistyped reports whether a key has the shape of those that this program makes, but not their
// check symbol. It is another vendor's key that was imported, or else a key with a wrong symbol.
func (k licenseKey) mistyped() bool {
	if !hasOwnShape(string(k)) {
		return false
	}
	symbols := make([]byte, 0, keySymbols)
	for _, r := range k {
		i := strings.IndexRune(upperCrockford, r)
		if i < 0 { // U, which Crockford's alphabet does not have
			return true
		}
		symbols = append(symbols, byte(i))
	}
	return keySum(symbols) != 0
}

// hash returns the SHA-256 of a key, which the database stores in place of the key.
func (k licenseKey) hash() [32]byte { return sha256.Sum256([]byte(k)) }

// hint returns the last five symbols of a key, by which people recognise it.
func (k licenseKey) hint() string { return string(k[len(k)-keyGroup:]) }
