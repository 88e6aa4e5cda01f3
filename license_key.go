package main

import (
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"strings"
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

var errKeyMalformed = &refusal{code: codeKeyMalformed}

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
	groups := strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) })
	if plain := strings.Join(groups, ""); hasOwnShape(groups, plain) {
		if strings.IndexFunc(plain, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 { // "ı" in upper case is "I"
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

// lookalikes are what people read for one another (Crockford's base32).
var lookalikes = strings.NewReplacer("O", "0", "I", "1", "L", "1")

// hasOwnShape reports whether a text looks like one of our keys, perhaps with one wrong
// symbol: 25 letters and digits however they are grouped, or five groups of five.
func hasOwnShape(groups []string, plain string) bool {
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
