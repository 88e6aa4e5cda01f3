package main

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// What the pages for people of several nouns share: how they are rendered and what browsers let them do, the
// languages that they are in, and how these write amounts, rates and times. The only script on any of them is
// ours, and what it does can be done without it.

// A pageTemplate makes pages of a template in web/, which is parsed when somebody first asks for one.
type pageTemplate struct {
	parsed func() (*template.Template, error)
	script func() string // "": it has none
}

// pageTemplateOf returns the template in a file, "pay.html", with the script in another one, "pay.js"; "": it has
// none. The template's functions style and script return pageStyle and the script.
func pageTemplateOf(file, script string) *pageTemplate {
	source := sync.OnceValue(func() string {
		if script == "" {
			return ""
		}
		return embedded("web/" + script)
	})
	parsed := sync.OnceValues(func() (*template.Template, error) {
		return template.New(file).Funcs(template.FuncMap{
			"style":  func() template.CSS { return template.CSS(pageStyle()) },
			"script": func() template.JS { return template.JS(source()) },
		}).Parse(embedded("web/" + file))
	})
	return &pageTemplate{parsed, source}
}

// policy returns the Content-Security-Policy of a page.
func (t *pageTemplate) policy(of pageBrand) string {
	if t.script() == "" {
		return of.policy()
	}
	return of.policy() + "; script-src '" + hashSource(t.script()) + "'; connect-src 'self'"
}

// pageStyle is the style sheet, which is inlined into each page.
var pageStyle = sync.OnceValue(func() string { return embedded("web/pay.css") })

// A pageBrand is what an account gives its pages; an empty field is left out.
type pageBrand struct {
	Logo  string // URL of the picture
	color string // of links and buttons
}

// pathToBase returns what leads from the page that answers a call to the base address: "../../".
func pathToBase(c *call) string {
	return strings.Repeat("../", strings.Count(c.core.route.path(), "/")-1)
}

// brandOf returns what an account gives the page that answers a call.
func brandOf(c *call, of accountSettings) (b pageBrand) {
	if of.Logo != nil {
		b.Logo = pathToBase(c) + "logo/" + *of.Logo
	}
	b.color = valueOr(of.Color, "")
	return b
}

// Accent returns the style of the color, for templates, which write it after pageStyle: as it is in the light, lighter
// in the dark. Prints stay black.
func (b pageBrand) Accent() template.CSS {
	c, ok := parseColor(b.color)
	if !ok {
		return ""
	}
	return template.CSS(fmt.Sprintf("@media screen { :root { --accent: %s } }\n@media screen and "+
		"(prefers-color-scheme: dark) { :root { --accent: %s } }\n", c, c.readableOn(darkCard, white)))
}

// policy is the Content-Security-Policy of these pages, but for their script. It has no form-action, since browsers
// would apply that also to the redirect to a provider that answers the form.
func (b pageBrand) policy() string {
	pictures := "data:"
	if b.Logo != "" {
		pictures += " 'self'"
	}
	return "default-src 'none'; style-src '" + hashSource(pageStyle()+string(b.Accent())) + "'; img-src " + pictures +
		"; base-uri 'none'; frame-ancestors 'none'"
}

// guestPolicy is the policy of pages that show no account's brand.
var guestPolicy = sync.OnceValue(pageBrand{}.policy)

// hashSource returns what allows an inlined text in a policy: "sha256-…".
func hashSource(text string) string {
	return "sha256-" + base64.StdEncoding.EncodeToString(hashOf(text))
}

// render makes an answer of what a page shows. of is the brand that it shows, too.
func (t *pageTemplate) render(status int, of pageBrand, shown any) (*reply, error) {
	parsed, err := t.parsed()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, shown); err != nil {
		return nil, err
	}
	return htmlPage(status, t.policy(of), out.Bytes()), nil
}

// renderRefusal is render for a page that shows a refusal; if the template fails, it returns a bare page.
func (t *pageTemplate) renderRefusal(status int, shown any) *reply {
	page, err := t.render(status, pageBrand{}, shown)
	if err != nil { // which a test of every text rules out
		return htmlPage(status, guestPolicy(), []byte("<!doctype html>"+http.StatusText(status)))
	}
	return page
}

// The tones of a page's message: a colour beside what its text says.
const (
	toneGood = "good"
	toneBad  = "bad"
)

// A pageFrame is what all translated pages show. Title, Notice and Text are keys of texts; an
// empty field is left out.
type pageFrame struct {
	pageLanguage
	pageBrand
	texts      map[string]string // of the noun, in the language
	Title      string
	Notice     string // the outcome of the form
	Text, Tone string
	RequestID  string
}

// T returns a text of the page, for the template. args fill in its verbs.
func (f *pageFrame) T(key string, args ...any) (string, error) {
	text, ok := f.texts[key]
	switch {
	case !ok:
		return "", fmt.Errorf("there is no text %s", key)
	case len(args) == 0:
		return text, nil
	}
	return fmt.Sprintf(text, args...), nil
}

// refuse makes the page show a refusal, with the text for its status or else for the class of its status: "4xx".
// The text for "5xx" is shown with the id of the request.
func (f *pageFrame) refuse(ref *refusal, requestID string) {
	kind := strconv.Itoa(ref.code.status)
	if _, ok := f.texts["title_"+kind]; !ok {
		kind = kind[:1] + "xx"
	}
	f.Title, f.Text, f.Tone = "title_"+kind, "text_"+kind, toneBad
	if kind == "5xx" {
		f.RequestID = requestID
	}
}

// A pageLanguage is the tag of a language that there are texts in (BCP 47): one of pageLanguages or swissLanguages.
type pageLanguage string

// pageLanguages are the languages of the pages for guests; those for owners of accounts are in the first
// ownerLanguages of them. The first is the default, if a request accepts none of them.
var pageLanguages = []pageLanguage{"en", "de", "fr", "it", "nb", "sv", "da", "fi"}

const ownerLanguages = 4

// languageList returns the tags of pageLanguages for a problem.
func languageList() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(pageLanguages), "[]"), " ", ", ")
}

// languageNames are the names of pageLanguages, each in its own language.
var languageNames = []string{"English", "Deutsch", "Français", "Italiano", "Norsk", "Svenska", "Dansk", "Suomi"}

// A languageLink is a link to a page in another language.
type languageLink struct {
	Lang      pageLanguage
	Name, URL string
	Current   bool
}

// switches returns the links to a page with a query in each language for owners.
func (l pageLanguage) switches(query url.Values) (all []languageLink) {
	for i, other := range pageLanguages[:ownerLanguages] {
		query.Set(langParameter, string(other))
		all = append(all, languageLink{other, languageNames[i], "?" + query.Encode(), l == other})
	}
	return all
}

// swissLanguages are the languages with words of their own for Swiss accounts, such as "MWST-Nummer".
var swissLanguages = []pageLanguage{"de-CH", "it-CH"}

// pageTexts are the texts of pages in one language, by their keys: web/text_LANGUAGE.json. Where a line must
// not break, they have non-breaking spaces and hyphens. The file of a Swiss language has only what differs from
// that of the language.
type pageTexts struct {
	Months      []string          `json:"months"`
	ShortMonths []string          `json:"short_months"`
	Times       map[string]string `json:"times"` // how times are written, see moment and until
	Picture     map[string]string `json:"picture"`
	Pay         map[string]string `json:"pay"`
	OAuth       map[string]string `json:"oauth"`
	Books       map[string]string `json:"books"`
	Activate    map[string]string `json:"activate"`
	Scopes      map[string]string `json:"scopes"` // what each scope allows, in short: people decide by it

	ScopeDetails map[string]string `json:"scope_details"` // … and what else they should know of it
}

// textsByLanguage has the texts of each language, which are read when somebody first asks for a page in it.
var textsByLanguage = func() map[pageLanguage]func() *pageTexts {
	all := map[pageLanguage]func() *pageTexts{}
	for _, l := range slices.Concat(pageLanguages, swissLanguages) {
		all[l] = sync.OnceValue(func() *pageTexts {
			read := &pageTexts{}
			for _, tag := range slices.Compact([]pageLanguage{l.spoken(), l}) {
				if err := json.Unmarshal([]byte(embedded("web/text_"+string(tag)+".json")), read); err != nil {
					panic("web/text_" + string(tag) + ".json: " + err.Error()) // which a test rules out
				}
			}
			return read
		})
	}
	return all
}()

// Lang returns the language's tag, for templates.
func (l pageLanguage) Lang() string { return string(l) }

// spoken returns the language without a country: "de" for "de-CH".
func (l pageLanguage) spoken() pageLanguage {
	spoken, _, _ := strings.Cut(string(l), "-")
	return pageLanguage(spoken)
}

// swiss returns the language as it is written for Swiss accounts.
func (l pageLanguage) swiss() pageLanguage {
	if swiss := l + "-CH"; slices.Contains(swissLanguages, swiss) {
		return swiss
	}
	return l
}

// Scope returns what a scope allows, for templates.
func (l pageLanguage) Scope(name string) (string, error) {
	text, ok := textsByLanguage[l]().Scopes[name]
	if !ok {
		return "", fmt.Errorf("there is no text for the scope %s", name)
	}
	return text, nil
}

// ScopeDetail returns what else people should know of a scope, for templates.
func (l pageLanguage) ScopeDetail(name string) (string, error) {
	text, ok := textsByLanguage[l]().ScopeDetails[name]
	if !ok {
		return "", fmt.Errorf("there are no details of the scope %s", name)
	}
	return text, nil
}

const (
	maxLanguages      = 20  // of an Accept-Language that are looked at
	maxLanguageHeader = 512 // bytes of it
)

// knownLanguage returns the one of some languages that a tag names: "de-AT" names de, and each Norwegian is nb.
func knownLanguage(tag string, known []pageLanguage) (pageLanguage, bool) {
	name := pageLanguage(strings.ToLower(strings.TrimSpace(tag))).spoken()
	if name == "no" || name == "nn" {
		name = "nb"
	}
	return name, slices.Contains(known, name)
}

// checkLanguage is a textCheck for one of pageLanguages, perhaps as a country speaks it: de-CH.
var checkLanguage = &textCheck{pattern: "^([a-zA-Z]{2}(-[a-zA-Z]{2})?)?$", of: func(s string) (code, detail string) {
	language, country, of := strings.Cut(languageTag(s), "-")
	if s != "" && !slices.Contains(pageLanguages, pageLanguage(language)) || of && !isCountry(country) {
		return "unknown_language", "This must be one of " + languageList() + ", perhaps with a country, as de-CH."
	}
	return "", ""
}}

// languageTag returns a tag of a language and a country in its normal spelling (BCP 47, section 2.1.1).
func languageTag(s string) string {
	language, _, _ := strings.Cut(s, "-")
	return strings.ToLower(language) + strings.ToUpper(s[len(language):])
}

// languageOf returns the one of some languages that a request prefers.
func languageOf(r *http.Request, known []pageLanguage) pageLanguage {
	return acceptedLanguage(r.Header.Values("Accept-Language"), known)
}

const (
	langParameter = "lang"         // the language that somebody has chosen on a page
	langCookie    = "widgetd-lang" // … and that the pages of books keep
)

// ownerLanguage returns the language of a page for owners: the one that was chosen on it, else the one that is kept,
// else the one that the browser prefers.
func ownerLanguage(r *http.Request) pageLanguage {
	known, chosen := pageLanguages[:ownerLanguages], r.URL.Query()[langParameter]
	if kept, err := r.Cookie(langCookie); err == nil {
		chosen = append(chosen, kept.Value)
	}
	for _, tag := range chosen {
		if lang, is := knownLanguage(tag, known); is {
			return lang
		}
	}
	return languageOf(r, known)
}

// acceptedLanguage returns the one of some languages that the values of Accept-Language prefer (RFC 9110, section
// 12.5.4): of those with the highest weight the first.
func acceptedLanguage(values []string, known []pageLanguage) pageLanguage {
	header := strings.Join(values, ",")
	header = header[:min(len(header), maxLanguageHeader)]
	best, highest := known[0], 0.0
	for _, each := range strings.SplitN(header, ",", maxLanguages+1)[:min(maxLanguages, strings.Count(header, ",")+1)] {
		name, weight, weighted := strings.Cut(each, ";")
		l, ok := knownLanguage(name, known)
		if strings.TrimSpace(name) == "*" {
			l, ok = known[0], true
		}
		q := 1.0
		if weighted {
			value, isWeight := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
			n, err := strconv.ParseFloat(value, 64)
			if !isWeight || err != nil || !(n >= 0 && n <= 1) {
				continue
			}
			q = n
		}
		if ok && q > highest {
			best, highest = l, q
		}
	}
	return best
}

// Non-breaking spaces.
const (
	wideSpace   = "\u00a0"
	narrowSpace = "\u202f"
)

// separators returns what the language writes between thousands and before decimals. Francs are written with a
// point in the languages of Switzerland, unlike the euros of its neighbours.
func (l pageLanguage) separators(currency string) (thousands, point string) {
	switch lang := l.spoken(); {
	case lang == "en":
		return ",", "."
	case lang == "fr" && currency == "CHF":
		return narrowSpace, "."
	case lang == "fr":
		return narrowSpace, ","
	case (lang == "de" || lang == "it") && currency == "CHF":
		return "’", "."
	case lang == "nb" || lang == "sv" || lang == "fi":
		return wideSpace, ","
	}
	return ".", ","
}

// number writes a whole number as the language does: "1,234,567".
func (l pageLanguage) number(n int64) string {
	thousands, _ := l.separators("")
	return groupDigits(strconv.FormatInt(n, 10), thousands)
}

// symbols are the signs of currencies; a krone has one only in its own language.
var symbols = map[string]string{"EUR": "€", "GBP": "£", "nbNOK": "kr", "svSEK": "kr", "daDKK": "kr."}

// money writes an amount as the language does: "CHF 1,234.50", "1.234,50 €". A negative one begins with a
// minus sign.
func (l pageLanguage) money(currency string, amount int64) string {
	sign := ""
	if amount < 0 {
		sign, amount = "−", -amount
	}
	thousands, point := l.separators(currency)
	number := fmt.Sprintf("%s%s%02d", groupDigits(strconv.FormatInt(amount/100, 10), thousands), point, amount%100)
	lang := l.spoken()
	symbol := cmp.Or(symbols[currency], symbols[string(lang)+currency], currency)
	switch {
	case lang == "en" && symbol != currency:
		return sign + symbol + number
	case lang == "en", (lang == "de" || lang == "it") && currency == "CHF":
		return sign + symbol + wideSpace + number
	}
	return sign + number + wideSpace + symbol
}

// rate writes a rate of VAT, in hundredths of a percent, as the language does: "8.1%", "8,1 %".
func (l pageLanguage) rate(rate int64) string {
	_, point := l.separators("")
	text := fmt.Sprintf("%d%s%02d", rate/100, point, rate%100)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), point)
	if lang := l.spoken(); lang == "en" || lang == "it" {
		return text + "%"
	}
	return text + wideSpace + "%"
}

// moment writes a time in a zone with its date: "22 November 2026, 14:05"; "" if there is none.
func (l pageLanguage) moment(at stamp, zone *time.Location) string {
	if at.IsZero() {
		return ""
	}
	return l.dateAndClock(at.In(zone), true)
}

// until writes a time, which something lasts until, as one says it in a zone: on the same day as now without the
// date ("until 14:05"), in the same year without the year. It returns "" if there is none.
func (l pageLanguage) until(at stamp, now time.Time, zone *time.Location) string {
	if at.IsZero() {
		return ""
	}
	t, today := at.In(zone), now.In(zone)
	times := textsByLanguage[l]().Times
	if t.Year() == today.Year() && t.YearDay() == today.YearDay() {
		return fmt.Sprintf(times["until_clock"], fmt.Sprintf(times["clock"], t.Hour(), t.Minute()))
	}
	return fmt.Sprintf(times["until_date"], l.dateAndClock(t, t.Year() != today.Year()))
}

// dateAndClock writes a time with its date.
func (l pageLanguage) dateAndClock(t time.Time, withYear bool) string {
	texts := textsByLanguage[l]()
	clock := fmt.Sprintf(texts.Times["clock"], t.Hour(), t.Minute())
	return fmt.Sprintf(texts.Times["moment"], l.date(t, texts.Months, withYear), clock)
}

// date writes the day of a time with one of the names of months: "22 November 2026".
func (l pageLanguage) date(t time.Time, months []string, withYear bool) string {
	date := strconv.Itoa(t.Day())
	switch lang := l.spoken(); {
	case lang == "fr" && t.Day() == 1:
		date = "1er"
	case lang == "it" && t.Day() == 1:
		date = "1º"
	case slices.Contains([]pageLanguage{"de", "nb", "da", "fi"}, lang):
		date += "."
	}
	date += wideSpace + months[t.Month()-1]
	if withYear {
		date += " " + strconv.Itoa(t.Year())
	}
	return date
}

// shownZone returns the time zone of an account for its pages: UTC for one that this build does not know.
func shownZone(name string) *time.Location {
	zone, err := loadZone(name)
	if err != nil {
		return time.UTC
	}
	return zone
}

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
