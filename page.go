package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What the pages for people of several nouns share: how they are rendered and what browsers let them do, the
// languages that they are in, and how these write amounts, rates and times. No script runs on any of them.

// A pageTemplate makes pages of a template in web/, which is parsed when somebody first asks for one.
type pageTemplate func() (*template.Template, error)

// pageTemplateOf returns the template in a file: "pay.html". Its function style returns pageStyle.
func pageTemplateOf(file string) pageTemplate {
	return sync.OnceValues(func() (*template.Template, error) {
		style := func() template.CSS { return template.CSS(pageStyle()) }
		return template.New(file).Funcs(template.FuncMap{"style": style}).Parse(embedded("web/" + file))
	})
}

// pageStyle is the style sheet, which is inlined into each page.
var pageStyle = sync.OnceValue(func() string { return embedded("web/pay.css") })

// guestPolicy is the Content-Security-Policy of these pages. It has no form-action, since browsers would apply
// that also to the redirect to a provider that answers the form.
var guestPolicy = sync.OnceValue(func() string {
	sum := sha256.Sum256([]byte(pageStyle()))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
})

// render makes an answer of what a page shows.
func (t pageTemplate) render(status int, shown any) (*htmlPage, error) {
	parsed, err := t()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, shown); err != nil {
		return nil, err
	}
	return &htmlPage{status, guestPolicy(), out.Bytes()}, nil
}

// renderRefusal is render for a page that shows a refusal; if the template fails, it returns a bare page.
func (t pageTemplate) renderRefusal(status int, shown any) *htmlPage {
	page, err := t.render(status, shown)
	if err != nil { // which a test of every text rules out
		return &htmlPage{status, guestPolicy(), []byte("<!doctype html>" + http.StatusText(status))}
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

// A pageLanguage is the index of a language in pageLanguages.
type pageLanguage int

// pageLanguages are the languages of pages (BCP 47). The first is the default, if a request accepts none of them.
var pageLanguages = []string{"en", "de", "fr", "it"}

// pageTexts are the texts of pages in one language, by their keys: web/text_LANGUAGE.json. Where a line must
// not break, they have non-breaking spaces and hyphens.
type pageTexts struct {
	Months []string          `json:"months"`
	Pay    map[string]string `json:"pay"`
	OAuth  map[string]string `json:"oauth"`
	Scopes map[string]string `json:"scopes"` // what each scope allows, in full: people decide by it
}

// textsByLanguage are the texts in the order of pageLanguages. They are read when somebody first asks for a page.
var textsByLanguage = sync.OnceValue(func() []pageTexts {
	all := make([]pageTexts, len(pageLanguages))
	for i, lang := range pageLanguages {
		if err := json.Unmarshal([]byte(embedded("web/text_"+lang+".json")), &all[i]); err != nil {
			panic("web/text_" + lang + ".json: " + err.Error()) // which a test rules out
		}
	}
	return all
})

// Lang returns the language's tag, for templates.
func (l pageLanguage) Lang() string { return pageLanguages[l] }

// Scope returns what a scope allows, for templates.
func (l pageLanguage) Scope(name string) (string, error) {
	text, ok := textsByLanguage()[l].Scopes[name]
	if !ok {
		return "", fmt.Errorf("there is no text for the scope %s", name)
	}
	return text, nil
}

const (
	maxLanguages      = 20  // of an Accept-Language that are looked at
	maxLanguageHeader = 512 // bytes of it
)

// languageOf returns the language that a request prefers.
func languageOf(r *http.Request) pageLanguage {
	return acceptedLanguage(r.Header.Values("Accept-Language"))
}

// acceptedLanguage returns the language that the values of Accept-Language prefer (RFC 9110, section
// 12.5.4): of those with the highest weight the first. "de-CH" asks for de.
func acceptedLanguage(values []string) pageLanguage {
	header := strings.Join(values, ",")
	header = header[:min(len(header), maxLanguageHeader)]
	best, highest := pageLanguage(0), 0.0
	for _, each := range strings.SplitN(header, ",", maxLanguages+1)[:min(maxLanguages, strings.Count(header, ",")+1)] {
		name, weight, weighted := strings.Cut(each, ";")
		name, _, _ = strings.Cut(strings.ToLower(strings.TrimSpace(name)), "-")
		i, q := slices.Index(pageLanguages, name), 1.0
		if name == "*" {
			i = 0
		}
		if weighted {
			value, ok := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
			n, err := strconv.ParseFloat(value, 64)
			if !ok || err != nil || !(n >= 0 && n <= 1) {
				continue
			}
			q = n
		}
		if i >= 0 && q > highest {
			best, highest = pageLanguage(i), q
		}
	}
	return best
}

// Non-breaking spaces.
const (
	wideSpace   = "\u00a0"
	narrowSpace = "\u202f"
)

// separators returns what the language writes between thousands and before decimals. Francs are
// written with a point, as in Switzerland, unlike the euros of its neighbours.
func (l pageLanguage) separators(currency string) (thousands, point string) {
	switch lang := pageLanguages[l]; {
	case lang == "en":
		return ",", "."
	case lang == "fr" && currency == "CHF":
		return narrowSpace, "."
	case lang == "fr":
		return narrowSpace, ","
	case currency == "CHF":
		return "’", "."
	}
	return ".", ","
}

// money writes an amount as the language does: "CHF 1,234.50", "1.234,50 €". A negative one begins with a
// minus sign.
func (l pageLanguage) money(currency string, amount int64) string {
	sign := ""
	if amount < 0 {
		sign, amount = "−", -amount
	}
	thousands, point := l.separators(currency)
	digits := strconv.FormatInt(amount/100, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + thousands + digits[i:]
	}
	number := fmt.Sprintf("%s%s%02d", digits, point, amount%100)
	symbol, known := map[string]string{"EUR": "€", "GBP": "£"}[currency]
	if !known {
		symbol = currency
	}
	switch lang := pageLanguages[l]; {
	case lang == "en" && known:
		return sign + symbol + number
	case lang == "en", lang != "fr" && currency == "CHF":
		return sign + symbol + wideSpace + number
	}
	return sign + number + wideSpace + symbol
}

// rate writes a rate of VAT, in hundredths of a percent, as the language does: "8.1%", "8,1 %".
func (l pageLanguage) rate(currency string, rate int64) string {
	_, point := l.separators(currency)
	text := fmt.Sprintf("%d%s%02d", rate/100, point, rate%100)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), point)
	if pageLanguages[l] == "en" {
		return text + "%"
	}
	return text + wideSpace + "%"
}

// moment writes a time in a zone: "22 November 2026, 14:05 CET"; "" if there is none.
func (l pageLanguage) moment(at stamp, zone *time.Location) string {
	if at.IsZero() {
		return ""
	}
	t := at.In(zone)
	day, month := strconv.Itoa(t.Day()), textsByLanguage()[l].Months[t.Month()-1]
	switch lang := pageLanguages[l]; {
	case lang == "de":
		day += "."
	case lang == "fr" && t.Day() == 1:
		day = "1er"
	case lang == "it" && t.Day() == 1:
		day = "1º"
	}
	return fmt.Sprintf("%s %s %d, %s", day, month, t.Year(), t.Format("15:04 MST"))
}

// shownZone returns the time zone of an account for its pages: UTC for one that this build does not know.
func shownZone(name string) *time.Location {
	zone, err := loadZone(name)
	if err != nil {
		return time.UTC
	}
	return zone
}
