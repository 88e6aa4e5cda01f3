package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// docsNoun declares what the service says about itself: the OpenAPI document and the pages of the documentation.
func docsNoun() noun {
	return noun{name: "docs", modules: func(s *server) []module { return []module{openapiModule(s), docsModule(s)} }}
}

// The HTML pages: /docs and those below it, and /, which links to them. Their bodies and their twins in Markdown are
// made when the program is built (docs_make_test.go); here they get what only a running service knows, and the frame.
// With them are served the files by which programs discover a site.

const (
	pageCaching = "public, max-age=300" // of pages and what belongs to them

	// pagePolicy lets a page load its own style sheet and pictures, and nothing else.
	pagePolicy = "default-src 'none'; style-src 'self'; img-src 'self'"

	// pageLinks name the documents that describe the interface (RFC 8631), at the root and on /docs.
	pageLinks = `</openapi.json>; rel="service-desc", </docs>; rel="service-doc"`
)

// A docsContents is the outline of the documentation, the contents of docs/outline.json.
type docsContents struct {
	Twins int // of /docs itself, as docsChapter.Twins
	Parts []docsPart
}

// A docsPart is chapters that belong together in the contents.
type docsPart struct {
	Title    string
	Chapters []*docsChapter
}

// A docsChapter is one page.
type docsChapter struct {
	Path     string
	Title    template.HTML
	About    string     // what it answers
	Headings []docsHead // those of the second level, for the contents
	Twins    int        // how many files its twin in Markdown has
}

// A docsHead is a heading of a page.
type docsHead struct {
	ID    string
	Title template.HTML
}

// file returns the name of the embedded file with the page's body, without its ending.
func (c docsChapter) file() string { return strings.TrimPrefix(c.Path, "/") }

// twin returns the name of the embedded file with a part of the page's twin, counted from 0. It is served at the path
// of this name.
func (c docsChapter) twin(part int) string {
	if part == 0 {
		return c.file() + ".md"
	}
	return c.file() + "-" + strconv.Itoa(part+1) + ".md"
}

// A docsFacts is what a running service puts in the place of marks.
type docsFacts struct {
	values map[string]string
	is     map[string]bool // of conditions: "demo", "ended", "documents"
}

var (
	docsChoice = lazyPattern(`(?s)«if (\w+)»(.*?)«else»(.*?)«end»`)
	docsFact   = lazyPattern(`«([^»]*)»`)
	docsLine   = lazyPattern("(?m)(^ *|<pre[^>]*><code>|[^#][ (](?:<code>|`))widgetd ([a-z]+ [a-z])")
	docsInside = lazyPattern(`href="/docs/[a-z0-9-]+#`)
)

// docsText puts facts in the place of the marks in a text. «if demo»…«else»…«end» is the first if the
// condition holds; «a|b|text» is the value of a, else that of b, else the text. In a demo the lines of
// commands, unless they are titles, run its program on its file.
func docsText(text string, facts docsFacts) string {
	text = docsChoice().ReplaceAllStringFunc(text, func(choice string) string {
		found := docsChoice().FindStringSubmatch(choice)
		if facts.is[found[1]] {
			return found[2]
		}
		return found[3]
	})
	if facts.is["demo"] {
		text = docsLine().ReplaceAllString(text, "${1}«widgetd|widgetd» $2")
	}
	return docsFact().ReplaceAllStringFunc(text, func(mark string) string {
		names := strings.Split(strings.Trim(mark, "«»"), "|")
		for _, name := range names {
			if value, known := facts.values[name]; known {
				return value
			}
		}
		return names[len(names)-1]
	})
}

// A docsAPI serves the pages. They are made when they are first asked for, and again after the base addresses have
// changed or the legacy paths have ended.
type docsAPI struct {
	*server
	making  sync.Mutex
	madeFor *routing             // the routing that the pages were made for; nil: nobody has asked yet
	ended   bool                 // whether the legacy paths had ended
	files   map[string]*docsFile // by path
}

// A docsFile is what is served at a path.
type docsFile struct {
	made   func() (*staticFile, error) // makes it once
	twin   string                      // of a page: the path of its twin in Markdown
	pageOf string                      // of a twin: the path of its page
}

// docsScript is the script of the pages below /docs.
var docsScript = sync.OnceValue(func() string { return string(stripScript([]byte(embedded("web/docs.js")))) })

func docsModule(s *server) module {
	a := &docsAPI{server: s}
	file := func(path, contentType, name string) rootPath { // made on the first request
		made := sync.OnceValue(func() *staticFile {
			return newStaticFile(contentType, pageCaching, []byte(embedded(name)))
		})
		serve := func(w *response, r *http.Request) { a.sendStatic(w, r, made()) }
		return rootPath{path: path, page: true, serve: serve}
	}
	roots := []rootPath{
		file("/docs.css", "text/css; charset=utf-8", "web/docs.css"),
		file("/favicon.ico", "image/svg+xml", "web/favicon.svg"),
	}
	for _, path := range strings.Fields("/{$} /docs /docs.md /docs/{chapter} /robots.txt /llms.txt") {
		roots = append(roots, rootPath{path: path, page: path != "/llms.txt", serve: a.page})
	}
	if len(s.securityContacts) > 0 {
		roots = append(roots, rootPath{path: securityTxtPath, page: true, serve: s.showSecurityTxt})
	}
	routes := []route{{pattern: "GET /llms.txt", free: true, open: true,
		answers:  answerForm{media: "text/plain", static: true},
		endpoint: answeringWith[string](admitted(s, readNoMembers, a.getGuide))}}
	return module{roots: roots, routes: routes}
}

// page answers with the page at a path, or with its twin in Markdown for who prefers that.
func (a *docsAPI) page(w *response, r *http.Request) {
	path, h := r.URL.Path, w.Header()
	of, err := a.fileAt(path)
	if err == nil && of != nil && of.twin != "" {
		h.Add("Vary", "Accept")
		if prefersMarkdown(r) {
			of, err = a.fileAt(of.twin)
		}
	}
	switch {
	case err != nil:
		a.fail(w, r, err)
		return
	case of == nil:
		a.pathNotFound(w, r)
		return
	}
	file, err := of.made()
	if err != nil {
		a.fail(w, r, err)
		return
	}
	switch {
	case of.pageOf != "":
		h.Set("Link", fmt.Sprintf(`<%s>; rel="canonical"`, a.routing.Load().root+of.pageOf))
	case strings.HasPrefix(file.contentType, "text/html"):
		links, policy := pageLinks, pagePolicy
		if of.twin != "" {
			links += `, <` + of.twin + `>; rel="alternate"; type="text/markdown"`
		}
		if path != "/" {
			policy += "; connect-src 'self'; script-src '" + hashSource(docsScript()) + "'"
		}
		h.Set("Link", links)
		h.Set("Content-Security-Policy", policy)
	}
	a.sendStatic(w, r, file)
}

// prefersMarkdown reports whether a request names text/markdown, with a quality no lower than that of text/html.
func prefersMarkdown(r *http.Request) bool {
	quality := map[string]float64{"text/markdown": 0, "text/html": 0}
	for accepted := range strings.SplitSeq(strings.Join(r.Header["Accept"], ","), ",") {
		kind, parameters, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(accepted, " ", "")), ";")
		weight := 1.0
		if _, q, weighed := strings.Cut(";"+parameters, ";q="); weighed {
			weight, _ = strconv.ParseFloat(q, 64) // what is no number counts as 0
		}
		if _, asked := quality[kind]; asked {
			quality[kind] = weight
		}
	}
	return quality["text/markdown"] > 0 && quality["text/markdown"] >= quality["text/html"]
}

// fileAt returns what is served at a path; nil: there is nothing.
func (a *docsAPI) fileAt(path string) (*docsFile, error) {
	rt, ended := a.routing.Load(), !a.now().Before(a.legacySunset)
	a.making.Lock()
	defer a.making.Unlock()
	if a.madeFor != rt || a.ended != ended {
		files, err := a.newFiles(rt, ended)
		if err != nil {
			return nil, err
		}
		a.madeFor, a.ended, a.files = rt, ended, files
	}
	return a.files[path], nil
}

// newFiles says how each file is made for a routing. ended tells whether the legacy paths have ended.
func (a *docsAPI) newFiles(rt *routing, ended bool) (map[string]*docsFile, error) {
	var contents docsContents
	if err := json.Unmarshal([]byte(embedded("docs/outline.json")), &contents); err != nil {
		return nil, fmt.Errorf("read the outline of the documentation: %w", err)
	}
	inText, inHTML, err := a.facts(rt, ended)
	if err != nil {
		return nil, err
	}
	files := map[string]*docsFile{}
	add := func(path, contentType string, text func() (string, error)) {
		files[path] = &docsFile{made: sync.OnceValues(func() (*staticFile, error) {
			made, err := text()
			return newStaticFile(contentType, pageCaching, []byte(made)), err
		})}
	}
	plain := func(path, contentType, name string) {
		add(path, contentType, func() (string, error) { return docsText(embedded(name), inText), nil })
	}
	frame, err := template.New("").Parse(embedded("web/docs_page.html"))
	if err != nil {
		return nil, err
	}
	page := func(c *docsChapter, body func() string) {
		twin := ""
		for part := range c.Twins {
			at := "/" + c.twin(part)
			plain(at, "text/markdown; charset=utf-8", c.twin(part))
			files[at].pageOf, twin = c.Path, "/"+c.twin(0)
		}
		add(c.Path, "text/html; charset=utf-8", func() (string, error) {
			var text strings.Builder
			err := frame.Execute(&text, map[string]any{"Base": rt.bases[0].URL, "Release": buildName(), "Path": c.Path,
				"Twin": twin, "Title": c.Title, "Parts": contents.Parts, "Script": template.JS(docsScript()),
				"Body": template.HTML(docsText(body(), inHTML))})
			return text.String(), err
		})
		files[c.Path].twin = twin
	}
	var all []*docsChapter
	for _, part := range contents.Parts {
		all = append(all, part.Chapters...)
	}
	for _, c := range append([]*docsChapter{{Path: "/docs", Twins: contents.Twins}}, all...) {
		page(c, func() string { return embedded(c.file() + ".html") })
	}
	page(&docsChapter{Path: "/docs/all"}, func() string { return allChapters(all) })
	add("/", "text/html; charset=utf-8", func() (string, error) {
		return docsText(embedded("web/home.html"), inHTML), nil
	})
	plain("/llms.txt", "text/plain; charset=utf-8", "docs/llms.txt")
	plain("/docs/find.json", "application/json", "docs/find.json")
	add("/robots.txt", "text/plain; charset=utf-8", func() (string, error) { return robotsText(rt.prefixes), nil })
	return files, nil
}

// allChapters returns the bodies of all chapters, with links to each other within the page.
func allChapters(all []*docsChapter) string {
	text := embedded("docs.html")
	text, _, _ = strings.Cut(text, `<section aria-labelledby="index-title">`)
	for _, c := range all {
		text += embedded(c.file() + ".html")
	}
	return docsInside().ReplaceAllString(text, `href="#`)
}

// facts returns what is put in the place of marks, in a text and in HTML.
func (a *docsAPI) facts(rt *routing, ended bool) (inText, inHTML docsFacts, err error) {
	base := rt.bases[0].URL
	line, err := newSnippet(cmp.Or(a.examples["widget"], "WIDGET_ID"), base)
	if err != nil {
		return inText, inHTML, err
	}
	script, err := presentScript(base)
	is := map[string]bool{"demo": a.examples != nil, "ended": ended, "documents": a.clientDocuments}
	inText = docsFacts{is: is, values: map[string]string{
		"base": base, "root": rt.root, "prefix": rt.prefixes[0], "release": buildName(), "snippet": line.HTML,
		"giver":          "the operator of this service",
		"script_size":    fmt.Sprintf("%.1f", float64(len(compress(script.text).body))/1024),
		"anonymous_rate": strconv.Itoa(a.anonymousRate), "visitor_rate": strconv.Itoa(a.visitorRate),
		"failed_rate": strconv.Itoa(a.failedLookupRate), "unproved_rate": strconv.Itoa(unprovedShare * a.anonymousRate),
		"sunset": a.legacySunset.UTC().Format("2 January 2006")}}
	maps.Copy(inText.values, a.examples)
	inHTML = docsFacts{map[string]string{}, inText.is}
	for name, value := range inText.values {
		inHTML.values[name] = html.EscapeString(value)
	}
	if a.contact != "" {
		who := cmp.Or(contactEmail(a.contact), a.contact)
		inText.values["giver"] = "[" + who + "](" + a.contact + ")"
		inHTML.values["giver"] = `<a href="` + html.EscapeString(a.contact) + `">` + html.EscapeString(who) + `</a>`
	}
	return inText, inHTML, err
}

// Read where the documentation has what.
//
// A guide for programs that read the documentation for people (llmstxt.org), in Markdown: what is got wrong most often,
// and each page in Markdown with what it answers. It is the same at the root and below the base address.
func (a *docsAPI) getGuide(_ context.Context, _ *call, _ noMembers) (*staticFile, error) {
	guide, err := a.fileAt("/llms.txt")
	if err != nil {
		return nil, err
	}
	return guide.made()
}

// robotsText asks crawlers to read the pages and to leave the interface alone (RFC 9309).
func robotsText(prefixes []string) string {
	text := "User-agent: *\n"
	for _, prefix := range prefixes {
		text += "Disallow: " + prefix + "/\n"
	}
	return text + "Disallow: " + legacyPrefix + "\n"
}

const (
	securityTxtPath = "/.well-known/security.txt"

	// For how many days security.txt declares itself valid, from the day of the request. RFC 9116
	// recommends less than a year, so that no copy stays in use for longer.
	securityTxtDays = 180
)

// showSecurityTxt answers GET /.well-known/security.txt (RFC 9116) with the contacts of the option
// -security-contact.
func (s *server) showSecurityTxt(w *response, _ *http.Request) {
	var text strings.Builder
	for _, contact := range s.securityContacts {
		fmt.Fprintf(&text, "Contact: %s\n", contact)
	}
	expires := s.now().UTC().Truncate(24*time.Hour).AddDate(0, 0, securityTxtDays)
	fmt.Fprintf(&text, "Expires: %s\n", expires.Format(time.RFC3339))
	fmt.Fprintf(&text, "Canonical: %s%s\n", s.routing.Load().root, securityTxtPath)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", pageCaching)
	s.write(w, reply{status: http.StatusOK, body: []byte(text.String())})
}

// The OpenAPI document (contract, section 9). It is made of the program by docs_openapi_make_test.go.

// An openapiAPI serves the OpenAPI document.
type openapiAPI struct {
	*server
	making sync.Mutex
	base   string      // that the service had when the document was made
	made   *staticFile // nil: nobody has asked for it yet
}

func openapiModule(s *server) module {
	a := &openapiAPI{server: s}
	return module{
		routes: []route{{pattern: "GET /openapi.json", free: true, open: true, answers: answerForm{static: true},
			endpoint: answeringWith[openAPI](admitted(s, readNoMembers, a.getOpenAPI))}},
		roots: []rootPath{{path: "/openapi.json", open: true, serve: func(w *response, r *http.Request) {
			a.sendStatic(w, r, a.document())
		}}},
	}
}

// contactEmail returns the address in a mailto: URI; "": it is another one.
func contactEmail(uri string) string {
	address, ok := strings.CutPrefix(uri, "mailto:")
	if !ok {
		return ""
	}
	address, _, _ = strings.Cut(address, "?")
	return address
}

// withContact adds who gives tokens to partners to the text of the document; "": nobody.
func withContact(text, contact string) string {
	if contact == "" {
		return text
	}
	member, value := "url", contact
	if address := contactEmail(contact); address != "" {
		member, value = "email", address
	}
	const info = `"info": {`
	return strings.Replace(text, info, fmt.Sprintf("%s\n    \"contact\": {\"name\": %s, %s: %s},", info,
		quoteJSON("Who gives tokens, licence keys and widgets to partners"), quoteJSON(member), quoteJSON(value)), 1)
}

// quoteJSON writes a string as JSON.
func quoteJSON(text string) string { return strings.TrimSpace(string(encodeJSON(text))) }

// An openAPI is a document of OpenAPI.
type openAPI struct {
	OpenAPI string          `json:"openapi"` // The version of OpenAPI.
	Info    json.RawMessage `json:"info"`    // What it is about.
	_       struct{}        `is:"open"`      // and more
}

// Read this document.
//
// This document, the same at the root and below the base address. `servers` has the address of this service. Scripts of
// every site may read it; compressed for who accepts gzip.
func (a *openapiAPI) getOpenAPI(_ context.Context, _ *call, _ noMembers) (*staticFile, error) {
	return a.document(), nil
}

// document returns the document with the current base address. It is made, and compressed, on the
// first request and again after the base address has changed.
func (a *openapiAPI) document() *staticFile {
	rt := a.routing.Load()
	a.making.Lock()
	defer a.making.Unlock()
	if base := rt.bases[0].URL; a.made == nil || a.base != base {
		local := strings.NewReplacer(documentBase, base, documentRoot, rt.root,
			serverMetadataPath+documentPath, serverMetadataPath+rt.prefixes[0],
			resourceMetadataPath+documentPath, resourceMetadataPath+rt.prefixes[0])
		text := withContact(local.Replace(embedded("web/openapi.json")), a.contact)
		a.base, a.made = base, newStaticFile("application/json", pageCaching, []byte(text))
	}
	return a.made
}

// The base address that the document is written with, in its servers and examples, and its parts. The document is
// served with the configured ones in their place, also in the paths of the metadata.
const (
	documentRoot = "https://api.example.net"
	documentPath = "/v1"
	documentBase = documentRoot + documentPath
)

// The names of the tokens among the values that a demo gives the pages (serverOptions.examples): that of the account,
// of the operator and of a portal.
const (
	exampleToken  = "token"
	exampleAdmin  = "admin"
	examplePortal = "portal"
)
