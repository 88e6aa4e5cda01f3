package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The picture of statistics: a bar for each interval, as an SVG image that works in an <img>. It is 400
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
var picturePolicy = func() string {
	hash := sha256.Sum256([]byte(pictureStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}()

// Where the parts of a picture are, in its units.
const (
	pictureWidth, pictureHeight = 400, 200
	pictureMargin               = 12 // at the left and right of everything
	barsTop, barsBottom         = 48, 158
)

// picture returns a report as an SVG image (contract, section 5).
func (r *statsReport) picture() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" lang="en" width="%d" height="%d"`+
		` viewBox="0 0 %[1]d %d" role="img" aria-labelledby="title desc">`+
		`<title id="title">%s</title><desc id="desc">%s</desc><style>%s</style>`+
		`<rect class="back" width="100%%" height="100%%" rx="6"/>`, pictureWidth, pictureHeight,
		xmlText(r.pictureTitle()), xmlText(r.pictureText()), pictureStyle)
	const right = pictureWidth - pictureMargin
	if busiest := r.busiest(); busiest.Views > 0 {
		fmt.Fprintf(&b, `<text class="total" x="%d" y="34">%s</text>`, pictureMargin, amount(r.Totals.Views, "view"))
		if len(r.Series) > 1 {
			fmt.Fprintf(&b, `<text class="minor busiest" x="%d" y="34" text-anchor="end">most in a %s: %s</text>`,
				right, r.Interval, thousands(busiest.Views))
		}
		fmt.Fprintf(&b, `<path class="bars" d="%s"/>`, r.bars(busiest.Views))
	} else {
		fmt.Fprintf(&b, `<text class="minor" x="50%%" y="104" text-anchor="middle">No views yet</text>`)
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%d %d.5H%d"/>`, pictureMargin, barsBottom, right)
	first, last := r.rangeLabels()
	if first != "" {
		fmt.Fprintf(&b, `<text class="minor" x="%d" y="186">%s</text>`, pictureMargin, first)
	}
	fmt.Fprintf(&b, `<text class="minor" x="%d" y="186" text-anchor="end">%s</text></svg>`+"\n", right, last)
	return []byte(b.String())
}

// bars returns the path of a picture's bars; most is the largest number of views. A bar leaves a fifth
// of its place empty, unless there are so many that it would blur them. One with any view is at least a
// unit high, so that it can be seen.
func (r *statsReport) bars(most int64) string {
	var path strings.Builder
	step := float64(pictureWidth-2*pictureMargin) / float64(len(r.Series))
	width := step
	if len(r.Series) <= 120 {
		width = min(step*0.8, 48)
	}
	for i, p := range r.Series {
		if p.Views <= 0 {
			continue
		}
		height := max(1, float64(barsBottom-barsTop)*(float64(p.Views)/float64(most)))
		x := pictureMargin + step*float64(i) + (step-width)/2
		fmt.Fprintf(&path, "M%.2f %dv-%.1fh%.2fv%.1fz", x, barsBottom, height, width, height)
	}
	return path.String()
}

// pictureTitle returns the title of a picture: what it is about, and how many views there were.
func (r *statsReport) pictureTitle() string {
	name := "All widgets"
	if r.Widget != "" {
		name = r.Name
	}
	if r.busiest().Views <= 0 {
		return name + ": no views yet"
	}
	return name + ": " + amount(r.Totals.Views, "view")
}

// pictureText returns in words what a picture shows.
func (r *statsReport) pictureText() string {
	when := "On " + dateWords(r.From)
	if r.From != r.To {
		when = "From " + dateWords(r.From) + " to " + dateWords(r.To)
	}
	text := fmt.Sprintf("%s (%s): %s.", when, r.Timezone, strings.Join(r.Totals.inWords(), ", "))
	busiest := r.busiest()
	if busiest.Views <= 0 || len(r.Series) == 1 {
		return text
	}
	began := dateWords(busiest.Date)
	switch r.Interval {
	case "week":
		began = "that of " + began
	case "month":
		_, began, _ = strings.Cut(began, " ")
	}
	return fmt.Sprintf("%s The busiest %s was %s, with %s.", text, r.Interval, began, amount(busiest.Views, "view"))
}

// busiest returns the point with the most views, the first one if there are several.
func (r *statsReport) busiest() shownPoint {
	return slices.MaxFunc(r.Series, func(a, b shownPoint) int {
		return cmp.Compare(a.Views, b.Views)
	})
}

// rangeLabels returns the first and last date of a picture, in short; a range of one day has no first.
func (r *statsReport) rangeLabels() (first, last string) {
	from, to := dayOf(r.From), dayOf(r.To)
	switch {
	case r.From == r.To:
	case from.Year() == to.Year():
		first = from.Format("2 Jan")
	default:
		first = from.Format("2 Jan 2006")
	}
	return first, to.Format("2 Jan 2006")
}

// dateWords returns a date of a report in words: 2 January 2026.
func dateWords(date string) string { return dayOf(date).Format("2 January 2006") }

// dayOf returns a date of a report as midnight UTC.
func dayOf(date string) time.Time {
	day, _ := time.Parse(time.DateOnly, date) // a report has only dates that time has formatted
	return day
}

// inWords returns counts as "1,200 views", "70 visitors" and so on, without the orders if these are not
// shown.
func (c shownCounts) inWords() []string {
	words := []string{amount(c.Views, "view"), amount(c.Visitors, "visitor"), amount(c.Clicks, "click")}
	if c.Orders != nil {
		words = append(words, amount(*c.Orders, "order"))
	}
	return words
}

// amount returns a number of things in words: "1 view", "1,200 views".
func amount(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return thousands(n) + " " + noun
}

// thousands returns a number with commas: 1,234,567.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// xmlText returns a text escaped for XML; what XML can't hold becomes U+FFFD.
func xmlText(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s)) // a strings.Builder never fails
	return b.String()
}
