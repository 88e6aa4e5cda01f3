package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
)

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
