package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A picture has a bar for each value, as an SVG image that works in an <img> or within a page. It is 400
// by 200 units large and scales with its box. Its texts would scale too, so the style, which sees the
// width of the box, makes them larger in small ones. It brings its own background, since pages do not
// always follow the color scheme that the style follows.

// pictureStyle is the style of every picture.
const pictureStyle = `
.back{fill:#fff}.bars{fill:#0a6c8f}.axis{stroke:#c9d1d9}
text{font:12px system-ui,sans-serif;fill:#1f2328}.total{font-weight:600}.minor{fill:#57606a}
@media(max-width:400px){text{font-size:17px}}
@media(max-width:260px){text{font-size:28px}.busiest{display:none}}
@media(min-width:640px){text{font-size:9px}}
@media(prefers-color-scheme:dark){
.back{fill:#0d1117}.bars{fill:#4fb3d9}.axis{stroke:#3d444d}text{fill:#f0f6fc}.minor{fill:#a3acb6}}
`

// picturePolicy is the Content-Security-Policy of pictures, for browsers that open one as a page: it
// allows pictureStyle and nothing else.
var picturePolicy = "default-src 'none'; style-src '" + hashSource(pictureStyle) + "'"

// Where the parts of a picture are, in its units.
const (
	pictureWidth, pictureHeight = 400, 200
	pictureMargin               = 12 // at the left and right of everything
	barsTop, barsBottom         = 48, 158
)

// A barPicture is a picture of numbers. Its texts but the title and the words are ours, and may have markup.
type barPicture struct {
	lang         pageLanguage
	title, words string // what it is about, and what it shows
	total, most  string // above the bars; "": nothing
	none         string // in place of the bars, where no value is above zero
	from, to     string // below the bars: the first day and the last; "": nothing
	values       []int64
}

// svg returns the picture. id is at the end of the ids in it, of which a document has each once. style is
// pictureStyle, or "" where the document has it.
func (p *barPicture) svg(id, style string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" lang="%s" width="%d" height="%d"`+
		` viewBox="0 0 %[2]d %d" role="img" aria-labelledby="title%[4]s desc%[4]s">`+
		`<title id="title%[4]s">%[5]s</title><desc id="desc%[4]s">%[6]s</desc>`, p.lang, pictureWidth, pictureHeight,
		id, xmlText(p.title), xmlText(p.words))
	if style != "" {
		fmt.Fprintf(&b, `<style>%s</style>`, style)
	}
	b.WriteString(`<rect class="back" width="100%" height="100%" rx="6"/>`)
	const right = pictureWidth - pictureMargin
	if most := slices.Max(p.values); most > 0 {
		if p.total != "" {
			fmt.Fprintf(&b, `<text class="total" x="%d" y="34">%s</text>`, pictureMargin, p.total)
		}
		if p.most != "" {
			fmt.Fprintf(&b, `<text class="minor busiest" x="%d" y="34" text-anchor="end">%s</text>`, right, p.most)
		}
		fmt.Fprintf(&b, `<path class="bars" d="%s"/>`, barsPath(p.values, most))
	} else {
		fmt.Fprintf(&b, `<text class="minor" x="50%%" y="104" text-anchor="middle">%s</text>`, p.none)
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%d %d.5H%d"/>`, pictureMargin, barsBottom, right)
	if p.from != "" {
		fmt.Fprintf(&b, `<text class="minor" x="%d" y="186">%s</text>`, pictureMargin, p.from)
	}
	fmt.Fprintf(&b, `<text class="minor" x="%d" y="186" text-anchor="end">%s</text></svg>`, right, p.to)
	return b.String()
}

// barsPath returns the path of a picture's bars; most is the largest value. A bar leaves a fifth
// of its place empty, unless there are so many that it would blur them. One above zero is at least a
// unit high, so that it can be seen.
func barsPath(values []int64, most int64) string {
	var path strings.Builder
	step := float64(pictureWidth-2*pictureMargin) / float64(len(values))
	width := step
	if len(values) <= 120 {
		width = min(step*0.8, 48)
	}
	for i, n := range values {
		if n <= 0 {
			continue
		}
		height := max(1, float64(barsBottom-barsTop)*(float64(n)/float64(most)))
		x := pictureMargin + step*float64(i) + (step-width)/2
		fmt.Fprintf(&path, "M%.2f %dv-%.1fh%.2fv%.1fz", x, barsBottom, height, width, height)
	}
	return path.String()
}

// xmlText returns a text escaped for XML; what XML can't hold becomes U+FFFD.
func xmlText(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r&0xfffe == 0xfffe {
			return utf8.RuneError
		}
		return r
	}, s))
}
