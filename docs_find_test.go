package main

import (
	"html"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A finder makes the index in which the box of the pages finds words: for each word the places that have it. A place is
// a heading or a row with an id, and what is below it.
type finder struct {
	pages  [][2]string      // path and title
	places [][3]any         // number of the page, id, title
	words  map[string][]int // the numbers of the places, ascending
}

func newFinder() *finder { return &finder{words: map[string][]int{}} }

// findSynonyms are words that readers look for, with those that the pages have.
var findSynonyms = map[string]string{
	"pagination": "cursor", "paging": "cursor", "page": "cursor", "apikey": "token", "api": "token",
	"auth": "token", "authentication": "token", "authorization": "token", "bearer": "token", "jwt": "token",
	"password": "token", "credential": "token", "login": "signin", "sdk": "clients", "library": "clients",
	"swagger": "openapi", "sandbox": "demo", "testing": "demo", "testcard": "demo", "mock": "demo",
	"throttling": "limits", "throttle": "limits", "429": "rate_limited", "retry": "retries",
	"callback": "webhook", "hook": "webhook", "signature": "verifying", "verify": "verifying",
	"license": "licence", "licensing": "licences", "seat": "seats", "activation": "activate", "refund": "refunds",
	"chargeback": "disputed", "tax": "vat", "accounting": "bookkeeping", "invoice": "receipt", "gdpr": "erase",
	"privacy": "erased", "delete": "remove", "cors": "origin", "typescript": "javascript", "nodejs": "javascript",
	"node": "javascript", "golang": "go", "idempotent": "idempotency", "timezone": "zone",
	"permissions": "scopes", "permission": "scope", "ios": "clients", "php": "clients", "error": "problem",
	"errors": "problems",

	// German
	"kasse": "devices", "rechnung": "receipt", "bestellung": "orders", "zahlung": "payments", "erstattung": "refunds",
	"lizenz": "licence", "gerät": "devices", "buchhaltung": "bookkeeping", "speisekarte": "menu", "umsatz": "revenue",
	"auszahlung": "payouts", "trinkgeld": "tip", "mehrwertsteuer": "vat", "gutschrift": "refunds", "fehler": "problems",
	"zugang": "token", "datenschutz": "privacy", "schnittstelle": "openapi",
}

// findStops are words that tell nothing of what a reader looks for.
var findStops = strings.Fields("the and for are not has have its that this with from what which when who how does " +
	"can you your was one all any but may then than there they them will only also into each other more over")

var findWord = regexp.MustCompile(`[a-z0-9à-ÿ_]+`)

// add adds a page.
func (f *finder) add(c *docsChapter, body string) error {
	root, err := parseDocs(docsText(body, docsFacts{}))
	if err != nil {
		return err
	}
	page := len(f.pages)
	f.pages = append(f.pages, [2]string{c.Path, html.UnescapeString(string(c.Title))})
	first := len(f.places)
	if f.walk(root, page, -1); first < len(f.places) { // its address names it, too: /docs/offline
		f.note(strings.ReplaceAll(strings.TrimPrefix(c.Path, docsPrefix), "-", " "), first)
	}
	return nil
}

// walk adds the words in an element to a place, or to those that begin in it.
func (f *finder) walk(n *docsNode, page, place int) int {
	if n.name == "" {
		f.note(n.text, place)
		return place
	}
	id, title := n.attrs["id"], ""
	switch n.name {
	case "h2", "h3", "h4":
		title = n.plain()
	case "tr":
		if id != "" {
			title = n.inner[0].plain()
		}
	}
	if title != "" && id != "" {
		id = strings.TrimSuffix(id, "-title")
		f.places = append(f.places, [3]any{page, id, strings.TrimSpace(title)})
		place = len(f.places) - 1
	}
	inner := place
	for _, c := range n.inner {
		inner = f.walk(c, page, inner)
	}
	if n.name == "tr" { // what follows a row is not in it
		return place
	}
	return inner
}

// note adds the words of a text to a place, those with underscores in parts, too.
func (f *finder) note(text string, place int) {
	if place < 0 {
		return
	}
	for _, word := range findWord.FindAllString(strings.ToLower(text), -1) {
		for _, part := range append(strings.Split(word, "_"), word) {
			if len(part) < 3 && part != "go" || slices.Contains(findStops, part) || len(part) > 40 {
				continue
			}
			if at := f.words[part]; len(at) == 0 || at[len(at)-1] != place {
				f.words[part] = append(at, place)
			}
		}
	}
}

// json returns the index. The numbers of places are the differences to the one before.
func (f *finder) json() string {
	words := map[string][]int{}
	for word, places := range f.words {
		last, steps := 0, []int(nil)
		for _, place := range slices.Compact(slices.Sorted(slices.Values(places))) {
			steps, last = append(steps, place-last), place
		}
		words[word] = steps
	}
	same := maps.Clone(findSynonyms)
	maps.DeleteFunc(same, func(_, known string) bool { return len(f.words[known]) == 0 })
	return string(encodeJSON(map[string]any{"pages": f.pages, "places": f.places, "words": words, "same": same,
		"stops": append(strings.Fields("about reads which does mean"), findStops...)}))
}
