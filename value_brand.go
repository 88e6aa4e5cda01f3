package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
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
func checkColor(s string) (code, detail string) {
	c, ok := parseColor(s)
	switch near := c.readableOn(lightPaper, black); {
	case !ok:
		return "invalid_color", "This must be a colour as #1a6b3c."
	case near != c:
		return "low_contrast", "White can't be read on this colour, nor text of it on a light page: the nearest " +
			"shade that can is " + near.String() + "."
	}
	return "", ""
}

// A logo is a picture that pages show beside the name of an account.
type logo struct {
	Hash    string // hexadecimal SHA-256 of Content, by which it is served
	Type    string // image/svg+xml or image/png
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
	maxLogoSide = 2048             // pixels of a PNG
	maxLogoURI  = maxLogo*4/3 + 40 // characters

	svgType = "image/svg+xml"
	pngType = "image/png"
)

// parseLogo reads a logo from a data: URI (RFC 2397). detail says to callers what is wrong; "": nothing is.
func parseLogo(uri string) (l *logo, detail string) {
	kind, data, ok := strings.Cut(strings.TrimPrefix(uri, "data:"), ";base64,")
	content, err := base64.StdEncoding.DecodeString(data)
	l = &logo{hex.EncodeToString(hashOf(string(content))), kind, content}
	switch {
	case !ok, err != nil, kind != svgType && kind != pngType:
		return nil, "This must be a data: URI in base64 of an SVG (image/svg+xml) or a PNG (image/png)."
	case len(content) > maxLogo:
		return nil, "The picture has more than 32 KiB."
	case kind == svgType:
		return l, checkSVG(content)
	}
	return l, checkPNG(content)
}

// pngStart is what a PNG begins with, before its width and height (PNG specification, sections 5.2 and 11.2.1).
const pngStart = "\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"

// checkPNG refuses what is no PNG, and one whose size would have a browser take much memory. It returns
// the detail of a problem, or "".
func checkPNG(content []byte) (detail string) {
	size, ok := bytes.CutPrefix(content, []byte(pngStart))
	if !ok || len(size) < 8 ||
		max(binary.BigEndian.Uint32(size), binary.BigEndian.Uint32(size[4:])) > maxLogoSide {
		return fmt.Sprintf("This must be a PNG of at most %d pixels each way.", maxLogoSide)
	}
	return ""
}

// logoURI returns the data: URI of a picture.
func logoURI(content []byte) string {
	kind := svgType
	if bytes.HasPrefix(content, []byte("\x89PNG")) {
		kind = pngType
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(content)
}

// svgElements are the elements that a logo may have: those that draw, and none that runs, embeds, repeats or links.
var svgElements = strings.Fields("svg g defs title desc path rect circle ellipse line polyline polygon text tspan " +
	"linearGradient radialGradient stop clipPath style")

// Of what an SVG says, localURL is a reference to one of its own elements, and svgForbidden what may lead out of it or
// hide that: other references, functions and rules of CSS that load something, and escapes.
var (
	localURL     = regexp.MustCompile(`url\(\s*["']?#[\w.-]+["']?\s*\)`)
	svgForbidden = regexp.MustCompile(`(?i)//|\\|@|url|src|image|import|expression|(java|vb)script|data:`)
)

// checkSVG refuses an SVG that may do more than draw a picture of a bounded size. It returns the detail of a
// problem, or "".
func checkSVG(content []byte) (detail string) {
	in, depth, roots := xml.NewDecoder(bytes.NewReader(content)), 0, 0
	var style []byte // text of the element style that is being read; nil: none is
	for {
		token, err := in.Token()
		if err == io.EOF && roots == 1 {
			return ""
		} else if err != nil {
			return "This is not an SVG: it can't be read as XML."
		}
		switch v := token.(type) {
		case xml.StartElement:
			if depth++; depth == 1 {
				roots++
			}
			if detail := checkSVGElement(&v, depth == 1 || style != nil); detail != "" {
				return detail
			}
			if v.Name.Local == "style" {
				style = []byte{}
			}
		case xml.EndElement:
			depth--
			if svgForbidden.Match(localURL.ReplaceAll(style, nil)) {
				return "The style of the SVG must not refer to anything but ids in it, nor have @-rules or escapes."
			}
			style = nil
		case xml.CharData:
			if style != nil {
				style = append(style, v...)
			}
		case xml.Directive:
			return "The SVG must not have a DOCTYPE or declare entities."
		case xml.ProcInst:
			if v.Target != "xml" {
				return "The SVG must not have processing instructions."
			}
		}
	}
}

// checkSVGElement is checkSVG for an element and its attributes. root: only the element svg may be here.
func checkSVGElement(e *xml.StartElement, root bool) (detail string) {
	name := e.Name.Local
	if e.Name.Space != "http://www.w3.org/2000/svg" || !slices.Contains(svgElements, name) || root != (name == "svg") {
		return fmt.Sprintf("The SVG must not have <%.40s> here: it may have %s.", printable(name),
			strings.Join(svgElements, ", "))
	}
	for _, a := range e.Attr {
		name := strings.ToLower(a.Name.Local)
		isLink := name == "href" || name == "src"
		switch {
		case a.Name.Space == "xmlns" || a.Name.Space == "" && name == "xmlns":
		case strings.HasPrefix(name, "on"), isLink && !strings.HasPrefix(a.Value, "#"),
			svgForbidden.MatchString(localURL.ReplaceAllString(a.Value, "")):
			return fmt.Sprintf("The SVG must not have the attribute %.40s with that value: no scripts, and no "+
				"references but to ids in it.", printable(a.Name.Local))
		}
	}
	return ""
}
