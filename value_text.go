package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// lazyPattern returns a function that compiles a regular expression when it is first needed, so that no start waits
// for that.
func lazyPattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

const maxNameLength = 100 // characters of a product or a plan

// checkLines is checkText for an optional text of several lines: it may also have line breaks and
// tabs.
func checkLines(s string, max int) (code, detail string) {
	plain := strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(s)
	if code, detail = checkText(plain, optional, max); code == "control_character" {
		detail = "This must not contain control characters other than line breaks and tabs."
	}
	return code, detail
}

// A presence says whether a member or an option may be absent.
type presence bool

const (
	optional presence = false
	required presence = true
)

// A textCheck checks a text, and says what passes as JSON Schema does. nil lets every text pass.
type textCheck struct {
	of func(s string) (code, detail string) // those of a fieldError; "" and "" if the text passes

	pattern, format string
	words           []string     // the only texts that pass
	wordType        reflect.Type // of words
	least, most     int          // characters; 0: as many as there are
	numbers         [2]int       // of a parameter that is a whole number: from and to
}

// fault returns what is wrong with a text, as the code and the detail of a fieldError; "" and "": nothing.
func (c *textCheck) fault(s string) (code, detail string) {
	if c == nil || c.of == nil {
		return "", ""
	}
	return c.of(s)
}

// checkText checks what holds for every text: valid UTF-8, at most max characters, none of them
// a control character, and not empty if it is required. Its results are those of a textCheck.
func checkText(s string, n presence, max int) (code, detail string) {
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

// checkedBy returns the function of a textCheck for what a text has to be, with the code and the detail of what is not.
func checkedBy(is func(s string) bool, code, detail string) func(s string) (string, string) {
	return func(s string) (string, string) {
		if is(s) {
			return "", ""
		}
		return code, detail
	}
}

// notEmptyAnd returns a check of a text that must not be empty, and must pass check.
func notEmptyAnd(check *textCheck) *textCheck {
	both := *check
	both.least = 1
	both.of = func(s string) (code, detail string) {
		if code, detail = notEmpty.of(s); code == "" {
			code, detail = check.of(s)
		}
		return code, detail
	}
	return &both
}

// notEmpty is a check for a text that must not be empty.
var notEmpty = &textCheck{least: 1, of: checkedBy(func(s string) bool { return s != "" },
	"empty", "This must not be empty.")}

// isID returns a check for an id with that prefix.
func isID(prefix string) *textCheck {
	return &textCheck{pattern: idPattern(prefix), of: checkedBy(func(s string) bool { return validID(prefix, s) },
		"invalid_id", "This is not an id of the kind "+prefix+"_…")}
}

// idPattern returns the regular expression of ids with a prefix.
func idPattern(prefix string) string { return "^" + prefix + "_[0-7][0-9a-hjkmnp-tv-z]{25}$" }

// isText returns a check for a text of 1 to max characters.
func isText(max int) *textCheck {
	return &textCheck{least: 1, most: max,
		of: func(s string) (code, detail string) { return checkText(s, required, max) }}
}

// declaredWords are the words that the values of types of text are, by the type.
var declaredWords = map[reflect.Type][]string{}

// declareWords declares the words of a type, and returns them.
func declareWords[T ~string](words ...T) []T {
	declaredWords[reflect.TypeFor[T]()] = asTexts(words)
	return words
}

// asTexts returns words as texts.
func asTexts[T ~string](words []T) []string {
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = string(word)
	}
	return texts
}

// oneOf returns a check for a text that is one of choices.
func oneOf[T ~string](choices ...T) *textCheck {
	words := asTexts(choices)
	return &textCheck{words: words, wordType: reflect.TypeFor[T](), of: func(s string) (code, detail string) {
		if slices.Contains(words, s) {
			return "", ""
		}
		return "unknown_value", "This must be one of " + strings.Join(words, ", ") + "."
	}}
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

func isNotVisible(r rune) bool { return r <= ' ' || r > '~' }

// printable replaces control characters, and those that change the direction of text, by U+FFFD:
// they could change the state of the terminal that the text is printed on, or how its line reads.
func printable(s string) string { return printableBut(s, "") }

// printableLines is printable for a text of lines that are made already, which may have tabs.
func printableLines(s string) string { return printableBut(s, "\n\t") }

// printableBut is printable, and leaves the given characters.
func printableBut(s, kept string) string {
	return strings.Map(func(r rune) rune {
		if (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) && !strings.ContainsRune(kept, r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// trimUnseen returns a text without what nobody sees around it, and so pastes with it: white space, also no-break, and
// characters without width.
func trimUnseen(s string) string {
	return strings.TrimFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Cf, r) })
}

// smallDotted replaces İ by its small form, which has two characters: strings.ToLower makes it an i, another letter.
func smallDotted(s string) string { return strings.ReplaceAll(s, "İ", "i\u0307") }

// emailKey returns an address for comparing without case, as erasing does.
func emailKey(email string) string { return foldCase(smallDotted(email)) }

// foldCase returns a text for comparing without case, by the simple case folding of Unicode: of all forms of a letter,
// as σ, ς and Σ, the small form of the one that comes first. In ASCII it is strings.ToLower.
func foldCase(s string) string {
	return strings.Map(func(r rune) rune {
		first := r
		for form := unicode.SimpleFold(r); form != r; form = unicode.SimpleFold(form) {
			first = min(first, form)
		}
		return unicode.ToLower(first)
	}, s)
}

// nameKey returns a name for comparing, without case and with single spaces.
func nameKey(name string) string { return foldCase(strings.Join(strings.Fields(name), " ")) }

// cutText returns at most max characters of a text.
func cutText(s string, max int) string {
	if runes := []rune(s); len(runes) > max {
		return strings.TrimSpace(string(runes[:max]))
	}
	return s
}

// countOf returns a number with its noun, in the plural unless it is 1.
func countOf[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// nearest returns the one of the known words that somebody most likely meant by word: the one with the
// fewest edits, at most two and fewer than half of its symbols, or else the first that begins with it or
// has it as a part ("expired" of "license.expired"). False: none is near.
func nearest(word string, known []string) (string, bool) {
	if len(word) > 100 {
		return "", false
	}
	lower := strings.ToLower(word)
	best, fewest := "", min(2, (utf8.RuneCountInString(word)-1)/2)+1
	for _, k := range known {
		if n := edits([]rune(lower), []rune(strings.ToLower(k))); n < fewest {
			best, fewest = k, n
		}
	}
	likely := []func(k string) bool{
		func(k string) bool { return strings.HasPrefix(k, lower) },
		func(k string) bool { return slices.Contains(strings.FieldsFunc(k, unicode.IsPunct), lower) },
	}
	for _, is := range likely {
		if i := slices.IndexFunc(known, is); i >= 0 && best == "" && len(word) > 2 {
			best = known[i]
		}
	}
	return best, best != ""
}

// nearestMeant returns a sentence about an unknown word that names the known one that is meant, if one is near it.
func nearestMeant(sentence, word string, known []string) string {
	if near, ok := nearest(word, known); ok {
		return sentence + ": did you mean " + near + "?"
	}
	return sentence + "."
}

// edits returns how many symbols must be inserted, removed, replaced or swapped with their neighbour to make b
// of a (the optimal string alignment distance).
func edits(a, b []rune) int {
	n := make([][]int, len(a)+1) // of the first i symbols of a and the first j of b
	for i := range n {
		n[i] = make([]int, len(b)+1)
		for j := range n[i] {
			switch {
			case i == 0 || j == 0:
				n[i][j] = i + j
			case a[i-1] == b[j-1]:
				n[i][j] = n[i-1][j-1]
			default:
				n[i][j] = 1 + min(n[i-1][j-1], n[i-1][j], n[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				n[i][j] = min(n[i][j], n[i-2][j-2]+1)
			}
		}
	}
	return n[len(a)][len(b)]
}

// groupDigits puts a sign between the thousands of a whole number: "-1,234".
func groupDigits(digits, sign string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + sign + digits[i:]
	}
	return digits
}

// countries are the officially assigned codes of ISO 3166-1 alpha-2.
const countries = "" +
	"AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV " +
	"BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES " +
	"ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE " +
	"IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY " +
	"MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU " +
	"NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM " +
	"SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE " +
	"VG VI VN VU WF WS YE YT ZA ZM ZW"

// isCountry reports whether s is a code of ISO 3166-1 alpha-2, in capitals.
func isCountry(s string) bool {
	return len(s) == 2 && s[0] != ' ' && s[1] != ' ' && strings.Contains(countries, s)
}

// checkCountry is a textCheck for a country.
var checkCountry = &textCheck{pattern: "^[A-Z]{2}$", of: func(s string) (code, detail string) {
	if !isCountry(s) {
		return "unknown_country", "This must be the code of a country in ISO 3166-1, such as CH."
	}
	return "", ""
}}

const (
	maxCodes      = 100 // of a list
	maxCodeLength = 64
	maxCodesBytes = 1200 // of all of a list as JSON: the longest lease, 4,062 bytes, must fit maxTokenBytes
)

// codePattern matches the code of an entitlement.
const codePattern = "^[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,63}$"

// checkCode checks the code of an entitlement. It returns a validation code and what is
// wrong, or "" when nothing is.
func checkCode(s string) (code, detail string) {
	forbidden := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	}
	if s == "" || len(s) > maxCodeLength || s[0] == '-' || s[0] == '.' || strings.IndexFunc(s, forbidden) >= 0 {
		return "invalid_code", "A code has 1 to 64 letters, digits and - _ . : and begins with a letter or digit."
	}
	return "", ""
}

// checkCodes checks a list of entitlement codes and calls wrong for each that is invalid,
// with its index. It stops at the code that makes the list too long.
func checkCodes(codes []string, wrong func(at int, code, detail string)) {
	total := 0
	for i, c := range codes {
		if total += len(c) + len(`"",`); total > maxCodesBytes {
			wrong(i, "too_long", fmt.Sprintf("With this code the list takes more than %d bytes, "+
				"and would not fit into a token.", maxCodesBytes))
			return
		}
		if i == maxCodes {
			wrong(i, "too_many", fmt.Sprintf("With this code the list has more than %d codes.", maxCodes))
			return
		}
		if code, detail := checkCode(c); code != "" {
			wrong(i, code, detail)
		} else if slices.Contains(codes[:i], c) {
			wrong(i, "repeated", "This code is in the list already.")
		}
	}
}

// phoneKey returns the digits of a telephone number, without what stands for dialling abroad and without a zero in
// brackets, which is not dialled from there: +41 (0)44 and 0041 44 are the same.
func phoneKey(phone string) string {
	digits := strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, strings.Replace(phone, "(0)", "", 1))
	return strings.TrimPrefix(digits, "00")
}

// similarPhones reports whether two telephone numbers are the same, or may be: they end in the same eight digits,
// and one may lack what is dialled from abroad.
func similarPhones(a, b string) bool {
	a, b = phoneKey(a), phoneKey(b)
	return a == b || min(len(a), len(b)) >= 8 && a[len(a)-8:] == b[len(b)-8:]
}

// visible reports whether a text has at least one character and only visible ones.
func visible(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) })
}

// plainWord matches words that a shell takes literally without quotes.
var plainWord = lazyPattern(`^[A-Za-z0-9_./:@%+=-]+$`)

// shellWord quotes a text as one word for a POSIX shell, unless it is one without quotes.
func shellWord(text string) string {
	if plainWord().MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// What an account gives its pages: a colour and a logo. Both are judged when they are set, so that pages show them as
// they are.

// An rgb is a colour: its red, green and blue.
type rgb [3]byte

// leastContrast is what text needs (WCAG 2.2, success criterion 1.4.3).
const leastContrast = 4.5

// The backgrounds of web/pay.css on which text is hardest to read: the darkest light one, the lightest dark one.
var (
	lightPaper = rgb{0xf4, 0xf5, 0xf7}
	darkCard   = rgb{0x1e, 0x23, 0x28}
	black      = rgb{}
	white      = rgb{0xff, 0xff, 0xff}
)

// String writes the colour as CSS does: "#1a6b3c".
func (c rgb) String() string { return "#" + hex.EncodeToString(c[:]) }

// parseColor reads a colour, as String writes it. It reports false for anything else.
func parseColor(s string) (c rgb, ok bool) {
	digits, hash := strings.CutPrefix(s, "#")
	all, err := hex.DecodeString(digits)
	if !hash || err != nil || len(all) != len(c) {
		return c, false
	}
	return rgb(all), true
}

// luminance returns how light the colour is, 0 to 1 (WCAG 2.2, relative luminance).
func (c rgb) luminance() (sum float64) {
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		part := float64(c[i]) / 255
		if part <= 0.04045 {
			part /= 12.92
		} else {
			part = math.Pow((part+0.055)/1.055, 2.4)
		}
		sum += weight * part
	}
	return sum
}

// contrast returns how well two colours can be told apart, 1 to 21 (WCAG 2.2, contrast ratio).
func contrast(a, b rgb) float64 {
	ratio := (a.luminance() + 0.05) / (b.luminance() + 0.05)
	return max(ratio, 1/ratio)
}

// readableOn returns the colour with as little black or white in it as makes text of it readable on a background.
func (c rgb) readableOn(paper, mixedWith rgb) rgb {
	for part := range 255 {
		mixed := c
		for i := range mixed {
			mixed[i] = byte((int(c[i])*(255-part) + int(mixedWith[i])*part) / 255)
		}
		if contrast(mixed, paper) >= leastContrast {
			return mixed
		}
	}
	return mixedWith
}

// checkColor is a textCheck for a colour in which text can be read on a light page. Pages in the dark lighten it.
var checkColor = &textCheck{pattern: "^#[0-9A-Fa-f]{6}$", of: func(s string) (code, detail string) {
	c, ok := parseColor(s)
	switch near := c.readableOn(lightPaper, black); {
	case !ok:
		return "invalid_color", "This must be a colour as #1a6b3c."
	case near != c:
		return "low_contrast", "White can't be read on this colour, nor text of it on a light page: the nearest " +
			"shade that can is " + near.String() + "."
	}
	return "", ""
}}

// A logo is a picture that pages show beside the name of an account.
type logo struct {
	Hash    string // hexadecimal SHA-256 of Content, by which it is served
	Type    string // image/png, image/jpeg or image/webp
	Content []byte
}

// name returns the hash by which an account names the logo; nil: there is none.
func (l *logo) name() *string {
	if l == nil {
		return nil
	}
	return &l.Hash
}

const (
	maxLogo     = 32 << 10         // bytes
	maxLogoSide = 1024             // pixels
	maxLogoURI  = maxLogo*4/3 + 40 // characters

	pngStart = "\x89PNG\r\n\x1a\n" // PNG specification, section 5.2
)

// parseLogo reads a logo from a data: URI (RFC 2397). detail says to callers what is wrong; "": nothing is.
func parseLogo(uri string) (l *logo, detail string) {
	kind, data, _ := strings.Cut(strings.TrimPrefix(uri, "data:"), ";base64,")
	content, err := base64.StdEncoding.DecodeString(data)
	width, height := 0, 0
	if err == nil && kind == pictureType(content) {
		width, height = pictureSize(kind, content)
	}
	switch {
	case len(content) > maxLogo:
		return nil, "The picture has more than 32 KiB."
	case min(width, height) < 1, max(width, height) > maxLogoSide:
		return nil, "This must be a data: URI in base64 of a PNG, JPEG or WebP, as its type says, of at most 1024 " +
			"pixels each way, with nothing behind the picture. In place of an SVG, send a PNG."
	}
	return &logo{hex.EncodeToString(hashOf(string(content))), kind, content}, ""
}

// pictureType returns the media type of a picture by its first bytes; "": it is of no type that a logo may have.
func pictureType(content []byte) string {
	switch s := string(content); {
	case strings.HasPrefix(s, pngStart):
		return "image/png"
	case strings.HasPrefix(s, "\xff\xd8\xff"):
		return "image/jpeg"
	case strings.HasPrefix(s, "RIFF") && len(s) > 12 && s[8:12] == "WEBP":
		return "image/webp"
	}
	return ""
}

// logoURI returns the data: URI of a picture.
func logoURI(content []byte) string {
	return "data:" + pictureType(content) + ";base64," + base64.StdEncoding.EncodeToString(content)
}

// pictureSize returns how wide and high a picture of a type is, in pixels, as its header says; 0: it is none.
func pictureSize(kind string, content []byte) (width, height int) {
	switch kind {
	case "image/png":
		return pngSize(content[len(pngStart):])
	case "image/jpeg":
		return jpegSize(content[2:])
	case "image/webp":
		return webpSize(content[12:])
	}
	return 0, 0
}

// pngSize is pictureSize for the chunks of a PNG (PNG specification, section 5.3), of which the last must end it.
func pngSize(chunks []byte) (width, height int) {
	rest := chunks
	for len(rest) >= 12 {
		kind, end := string(rest[4:8]), 12+int64(binary.BigEndian.Uint32(rest))
		if end > int64(len(rest)) {
			break
		}
		if rest = rest[end:]; kind == "IEND" && len(rest) == 0 && string(chunks[4:8]) == "IHDR" && len(chunks) >= 16 {
			return clampedSide(chunks[8:]), clampedSide(chunks[12:])
		}
	}
	return 0, 0
}

// clampedSide reads 32 bits; what is more than any side is as much as that.
func clampedSide(b []byte) int { return int(min(binary.BigEndian.Uint32(b), maxLogoSide+1)) }

// jpegSize is pictureSize for the segments of a JPEG (ITU-T T.81, section B.2), of which the first frame tells.
func jpegSize(rest []byte) (width, height int) {
	for len(rest) >= 9 && rest[0] == 0xff {
		marker, length := rest[1], int(binary.BigEndian.Uint16(rest[2:]))
		if marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc {
			return int(binary.BigEndian.Uint16(rest[7:])), int(binary.BigEndian.Uint16(rest[5:]))
		}
		rest = rest[min(2+length, len(rest)):]
	}
	return 0, 0
}

// webpSize is pictureSize for the first chunk of a WebP (RFC 9649, sections 2.5 to 2.7).
func webpSize(chunk []byte) (width, height int) {
	if len(chunk) < 18 {
		return 0, 0
	}
	b, little := chunk[8:], binary.LittleEndian
	switch string(chunk[:4]) {
	case "VP8 ":
		return int(little.Uint16(b[6:]) & 0x3fff), int(little.Uint16(b[8:]) & 0x3fff)
	case "VP8L":
		sides := little.Uint32(b[1:])
		return int(sides&0x3fff) + 1, int(sides>>14&0x3fff) + 1
	case "VP8X":
		return int(little.Uint32(b[3:])>>8) + 1, int(little.Uint32(b[6:])>>8) + 1
	}
	return 0, 0
}
