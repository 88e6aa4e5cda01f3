package main

import (
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A licenseKey is a licence key in the form that is hashed and looked up: a key that this
// program made as 25 upper-case symbols without dashes, an imported key as it was sent.
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

// parseLicenseKey parses a key as people type it: case, dashes and white space don't matter, O
// counts as 0, I and L as 1. A text in the form of a key that this program makes must have the
// right check symbol. Any other text of 16 to 255 visible ASCII characters may be an imported
// key, and is returned unchanged. Errors: errKeyMalformed.
func parseLicenseKey(s string) (licenseKey, error) {
	if len(s) > maxKeyBytes {
		return "", errKeyMalformed
	}
	isSeparator := func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) }
	groups := strings.FieldsFunc(s, isSeparator)
	if plain := strings.Join(groups, ""); hasOwnShape(groups, plain) {
		// ToUpper would turn some letters outside ASCII into a symbol: "ı" into "I".
		if strings.IndexFunc(plain, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
			return "", errKeyMalformed
		}
		plain = lookalikes.Replace(strings.ToUpper(plain))
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

// lookalikes replaces letters that people mistake for digits (Crockford's base32).
var lookalikes = strings.NewReplacer("O", "0", "I", "1", "L", "1")

// hasOwnShape reports whether a text looks like a key that this program made, perhaps mistyped:
// five groups of five characters, or 25 characters in any groups of which at most one is
// neither an ASCII letter nor a digit. plain is the groups joined.
func hasOwnShape(groups []string, plain string) bool {
	if utf8.RuneCountInString(plain) != keySymbols {
		return false
	}
	others := 0
	for _, r := range plain {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') {
			others++
		}
	}
	otherLength := func(group string) bool { return utf8.RuneCountInString(group) != keyGroup }
	fiveGroups := len(groups) == keySymbols/keyGroup && !slices.ContainsFunc(groups, otherLength)
	return fiveGroups || others <= 1
}

// hash returns the SHA-256 of a key, which the database stores in place of the key.
func (k licenseKey) hash() [32]byte { return sha256.Sum256([]byte(k)) }

// hint returns the last five symbols of a key, by which people recognise it.
func (k licenseKey) hint() string { return string(k[len(k)-keyGroup:]) }
