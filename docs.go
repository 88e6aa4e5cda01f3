package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// docsNoun declares what the service says about itself: the OpenAPI document and the pages of the documentation.
func docsNoun() noun {
	return noun{name: "docs", wings: func(s *server) []wing { return []wing{openapiWing(s), docsWing(s)} }}
}

// The HTML pages: /docs and those below it, and /, which links to them. Their bodies and their twins in Markdown are
// made when the program is built (docs_make_test.go); here they get what only a running service knows, and the frame.
// With them are served the files by which programs discover a site.

const (
	docsPrefix  = "/docs/"
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
func (c docsChapter) file() string {
	if c.Path == "/docs" {
		return "docs/start"
	}
	return strings.TrimPrefix(c.Path, "/")
}

// twin returns the name of the embedded file with a part of the page's twin, counted from 0.
func (c docsChapter) twin(part int) string {
	if part == 0 {
		return c.file() + ".md"
	}
	return c.file() + "-" + strconv.Itoa(part+1) + ".md"
}

// address returns the path at which a part of the page's twin is served.
func (c docsChapter) address(part int) string {
	if c.Path == "/docs" && part == 0 {
		return "/docs.md"
	}
	return "/" + c.twin(part)
}

// A docsFacts is what a running service puts in the place of marks.
type docsFacts struct {
	values map[string]string
	is     map[string]bool // of conditions: "demo", "ended"
}

var (
	docsChoice = lazyPattern(`(?s)«if (\w+)»(.*?)«else»(.*?)«end»`)
	docsFact   = lazyPattern(`«([^»]*)»`)
	docsInside = lazyPattern(`href="/docs/[a-z0-9-]+#`)
)

// docsText puts facts in the place of the marks in a text. «if demo»…«else»…«end» is the first if the condition holds;
// «a|b|text» is the value of a, else that of b, else the text.
func docsText(text string, facts docsFacts) string {
	text = docsChoice().ReplaceAllStringFunc(text, func(choice string) string {
		found := docsChoice().FindStringSubmatch(choice)
		if facts.is[found[1]] {
			return found[2]
		}
		return found[3]
	})
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
	making   sync.Mutex
	routing  *routing // that the pages were made for; nil: nobody has asked yet
	ended    bool     // whether the legacy paths had ended
	contents docsContents
	files    map[string]func() (*staticFile, error) // by path; each makes its file once
	script   string
}

func docsWing(s *server) wing {
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
	for _, path := range []string{"/{$}", "/docs", "/docs.md", docsPrefix + "{chapter}", "/robots.txt", "/llms.txt"} {
		roots = append(roots, rootPath{path: path, page: path != "/llms.txt", serve: a.page})
	}
	if len(s.securityContacts) > 0 {
		roots = append(roots, rootPath{path: securityTxtPath, page: true, serve: s.showSecurityTxt})
	}
	routes := []route{{pattern: "GET /llms.txt", free: true, open: true, run: a.showGuide}}
	return wing{roots: roots, routes: routes}
}

// page answers with the page at a path, or with its twin in Markdown for who prefers that.
func (a *docsAPI) page(w *response, r *http.Request) {
	path, h := r.URL.Path, w.Header()
	file, err := a.file(path)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if file == nil {
		a.pathNotFound(w, r)
		return
	}
	twin := path + ".md"
	other, err := a.file(twin)
	if err == nil && other != nil {
		h.Add("Vary", "Accept")
		if h.Set("Link", pageLinks+`, <`+twin+`>; rel="alternate"; type="text/markdown"`); prefersMarkdown(r) {
			path, file = twin, other
		}
	} else {
		h.Set("Link", pageLinks)
	}
	switch {
	case strings.HasSuffix(path, ".md"):
		h.Set("Link", fmt.Sprintf(`<%s>; rel="canonical"`, a.routing.root+strings.TrimSuffix(path, ".md")))
	case path == "/":
		h.Set("Content-Security-Policy", pagePolicy)
	case strings.HasPrefix(file.contentType, "text/html"):
		h.Set("Content-Security-Policy", pagePolicy+"; connect-src 'self'; script-src '"+hashSource(a.script)+"'")
	default:
		h.Del("Link")
	}
	a.sendStatic(w, r, file)
}

// prefersMarkdown reports whether a request names text/markdown, with a quality no lower than that of text/html.
func prefersMarkdown(r *http.Request) bool {
	quality := map[string]float64{"text/markdown": 0, "text/html": 0}
	for accepted := range strings.SplitSeq(strings.Join(r.Header["Accept"], ","), ",") {
		kind, q, weighed := strings.Cut(strings.ToLower(strings.ReplaceAll(accepted, " ", "")), ";q=")
		weight := 1.0
		if weighed {
			weight, _ = strconv.ParseFloat(q, 64) // what is no number counts as 0
		}
		if _, asked := quality[kind]; asked {
			quality[kind] = weight
		}
	}
	return quality["text/markdown"] > 0 && quality["text/markdown"] >= quality["text/html"]
}

// file returns the file at a path; nil: there is none.
func (a *docsAPI) file(path string) (*staticFile, error) {
	rt, ended := a.server.routing.Load(), !a.now().Before(a.legacySunset)
	a.making.Lock()
	defer a.making.Unlock()
	if a.routing != rt || a.ended != ended {
		if err := a.begin(rt, ended); err != nil {
			return nil, err
		}
	}
	if a.files[path] == nil {
		return nil, nil
	}
	return a.files[path]()
}

// begin says how each file is made for a routing. ended tells whether the legacy paths have ended.
func (a *docsAPI) begin(rt *routing, ended bool) error {
	a.routing, a.ended, a.files = rt, ended, map[string]func() (*staticFile, error){}
	if a.contents.Parts == nil {
		a.script = string(stripScript([]byte(embedded("web/docs.js"))))
		if err := json.Unmarshal([]byte(embedded("docs/outline.json")), &a.contents); err != nil {
			return fmt.Errorf("read the outline of the documentation: %w", err)
		}
	}
	inHTML, err := a.facts(html.EscapeString)
	inText, err2 := a.facts(func(text string) string { return text })
	if err := cmp.Or(err, err2); err != nil {
		return err
	}
	add := func(path, contentType string, text func() (string, error)) {
		a.files[path] = sync.OnceValues(func() (*staticFile, error) {
			made, err := text()
			return newStaticFile(contentType, pageCaching, []byte(made)), err
		})
	}
	plain := func(path, contentType, name string) {
		add(path, contentType, func() (string, error) { return docsText(embedded(name), inText), nil })
	}
	page := func(c *docsChapter, body func() string) {
		add(c.Path, "text/html; charset=utf-8", func() (string, error) { return a.frame(c, docsText(body(), inHTML)) })
		for part := range c.Twins {
			plain(c.address(part), "text/markdown; charset=utf-8", c.twin(part))
		}
	}
	var all []*docsChapter
	for _, part := range a.contents.Parts {
		all = append(all, part.Chapters...)
	}
	for _, c := range append([]*docsChapter{{Path: "/docs", Twins: a.contents.Twins}}, all...) {
		page(c, func() string { return embedded(c.file() + ".html") })
	}
	page(&docsChapter{Path: docsPrefix + "all"}, func() string { return allChapters(all) })
	add("/", "text/html; charset=utf-8", func() (string, error) {
		return docsText(embedded("web/home.html"), inHTML), nil
	})
	plain("/llms.txt", "text/plain; charset=utf-8", "docs/llms.txt")
	plain(docsPrefix+"find.json", "application/json", "docs/find.json")
	add("/robots.txt", "text/plain; charset=utf-8", func() (string, error) { return robotsText(rt.prefixes), nil })
	return nil
}

// allChapters returns the bodies of all chapters, with links to each other within the page.
func allChapters(all []*docsChapter) string {
	text := embedded("docs/start.html")
	text, _, _ = strings.Cut(text, `<section aria-labelledby="index-title">`)
	for _, c := range all {
		text += embedded(c.file() + ".html")
	}
	return docsInside().ReplaceAllString(text, `href="#`)
}

// facts returns what is put in the place of marks. escape is for the form of the text.
func (a *docsAPI) facts(escape func(string) string) (docsFacts, error) {
	base := a.routing.bases[0].URL
	line, err := newSnippet(cmp.Or(a.examples["widget"], "WIDGET_ID"), base)
	if err != nil {
		return docsFacts{}, err
	}
	script, err := presentScript(base)
	if err != nil {
		return docsFacts{}, err
	}
	giver := "the operator of this service"
	if a.contact != "" {
		giver = `<a href="` + escape(a.contact) + `">` + escape(cmp.Or(contactEmail(a.contact), a.contact)) + `</a>`
	}
	facts := docsFacts{is: map[string]bool{"demo": a.examples != nil, "ended": a.ended}, values: map[string]string{
		"base": escape(base), "root": escape(a.routing.root), "prefix": escape(a.routing.prefixes[0]), "giver": giver,
		"release": escape(buildName()), "snippet": escape(line.HTML),
		"script_size":    fmt.Sprintf("%.1f", float64(len(compress(script.text).body))/1024),
		"anonymous_rate": strconv.Itoa(a.anonymousRate), "visitor_rate": strconv.Itoa(a.visitorRate),
		"failed_rate": strconv.Itoa(a.failedLookupRate), "unproved_rate": strconv.Itoa(unprovedShare * a.anonymousRate),
		"sunset": a.legacySunset.UTC().Format("2 January 2006")}}
	for name, value := range a.examples {
		facts.values[name] = escape(value)
	}
	return facts, nil
}

// frame puts the body of a page into the frame.
func (a *docsAPI) frame(c *docsChapter, body string) (string, error) {
	page, err := template.New("").Parse(embedded("web/docs_page.html"))
	if err != nil {
		return "", err
	}
	twin := ""
	if c.Twins > 0 {
		twin = c.address(0)
	}
	var text strings.Builder
	err = page.Execute(&text, map[string]any{"Base": a.routing.bases[0].URL, "Release": buildName(), "Path": c.Path,
		"Twin": twin, "Title": c.Title, "Parts": a.contents.Parts, "Body": template.HTML(body),
		"Script": template.JS(a.script)})
	return text.String(), err
}

// showGuide answers GET /llms.txt below the base address.
func (a *docsAPI) showGuide(ctx context.Context, c *call) (any, error) {
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	return a.file("/llms.txt")
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

// The OpenAPI document (contract, section 9). It is written by hand; docs_openapi_test.go compares it
// with the routes, the problem codes and every answer that a test gets.

// An openapiAPI serves the OpenAPI document.
type openapiAPI struct {
	*server
	making sync.Mutex
	base   string      // that the service had when the document was made
	made   *staticFile // nil: nobody has asked for it yet
}

func openapiWing(s *server) wing {
	a := &openapiAPI{server: s}
	return wing{
		routes: []route{{pattern: "GET /openapi.json", free: true, open: true, run: a.showDocument}},
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

// showDocument answers GET /openapi.json below the base address.
func (a *openapiAPI) showDocument(ctx context.Context, c *call) (any, error) {
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
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
