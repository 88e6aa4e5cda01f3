package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// docsNoun declares what the service says of itself: the OpenAPI document and the pages of the documentation.
func docsNoun() noun {
	return noun{name: "docs", wings: func(s *server) []wing { return []wing{openapiWing(s), docsWing(s)} }}
}

// The pages for people: /docs, made from the OpenAPI document and the chapters in web/docs.html, and
// /, which leads there. Beside them stand the files by which programs discover a site.

var (
	//go:embed web/docs.html
	docsHTML string
	//go:embed web/docs.css
	docsCSS []byte
	//go:embed web/favicon.svg
	faviconSVG []byte
)

const (
	pageCaching = "public, max-age=300" // of pages and what belongs to them

	// pagePolicy lets a page load its own style sheet and pictures, and nothing else.
	pagePolicy = "default-src 'none'; style-src 'self'; img-src 'self'"

	// pageLinks name the documents that describe the interface (RFC 8631), at the root and on /docs.
	pageLinks = `</openapi.json>; rel="service-desc", </docs>; rel="service-doc"`
)

// A docsAPI serves the pages. They are made when one is asked for first, so that a start does not wait
// for them, and again after the base addresses have changed or the old paths have ended.
type docsAPI struct {
	*server
	problems []*problemCode
	events   []eventType
	making   sync.Mutex
	made     atomic.Pointer[docsPages]
}

// docsPages are the pages that name the base address.
type docsPages struct {
	routing *routing // that they were made for
	ended   bool     // whether the legacy paths had ended
	home    *staticFile
	docs    *staticFile
	robots  *staticFile
}

// The files that are the same for every service.
var (
	styleFile = sync.OnceValue(func() *staticFile {
		return newStaticFile("text/css; charset=utf-8", pageCaching, docsCSS)
	})
	faviconFile = sync.OnceValue(func() *staticFile {
		return newStaticFile("image/svg+xml", pageCaching, faviconSVG)
	})
)

func docsWing(s *server) wing {
	a := &docsAPI{server: s, problems: problemsOf(s.nouns), events: eventTypesOf(s.nouns)}
	roots := []rootPath{
		{path: "/{$}", page: true, serve: a.page(func(p *docsPages) *staticFile { return p.home })},
		{path: "/docs", page: true, serve: a.page(func(p *docsPages) *staticFile { return p.docs })},
		{path: "/docs.css", page: true, serve: a.file(func(*docsPages) *staticFile { return styleFile() })},
		{path: "/favicon.ico", page: true, serve: a.file(func(*docsPages) *staticFile { return faviconFile() })},
		{path: "/robots.txt", page: true, serve: a.file(func(p *docsPages) *staticFile { return p.robots })},
	}
	if len(s.securityContacts) > 0 {
		roots = append(roots, rootPath{path: securityTxtPath, page: true, serve: s.showSecurityTxt})
	}
	return wing{roots: roots}
}

// file returns a function that answers with one of the pages.
func (a *docsAPI) file(which func(*docsPages) *staticFile) func(*response, *http.Request) {
	return func(w *response, r *http.Request) {
		pages, err := a.pages()
		if err != nil {
			a.fail(w, r, err)
			return
		}
		a.sendStatic(w, r, which(pages))
	}
}

// page is like file, for a page that is HTML.
func (a *docsAPI) page(which func(*docsPages) *staticFile) func(*response, *http.Request) {
	send := a.file(which)
	return func(w *response, r *http.Request) {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		w.Header().Set("Link", pageLinks)
		send(w, r)
	}
}

// pages returns the pages as they are now.
func (a *docsAPI) pages() (*docsPages, error) {
	rt, ended := a.routing.Load(), !a.now().Before(a.legacySunset)
	if made := a.made.Load(); made != nil && made.routing == rt && made.ended == ended {
		return made, nil
	}
	a.making.Lock()
	defer a.making.Unlock()
	if made := a.made.Load(); made != nil && made.routing == rt && made.ended == ended {
		return made, nil // made while this call waited
	}
	made, err := a.makePages(rt, ended)
	if err != nil {
		return nil, err
	}
	a.made.Store(made)
	return made, nil
}

// makePages makes the pages for the base addresses of a routing. ended tells whether the legacy paths
// have ended.
func (a *docsAPI) makePages(rt *routing, ended bool) (*docsPages, error) {
	d, err := newAPIDocument(openapiText)
	if err != nil {
		return nil, err
	}
	view := a.view(rt, ended, d)
	line, err := newSnippet(d.values["widget"], d.base)
	if err != nil {
		return nil, err
	}
	view.Widget, view.Snippet = line.Widget, line.HTML
	calls := map[string]*docsCall{} // by method and path
	for _, group := range view.Groups {
		for _, c := range group.Calls {
			calls[c.Method+" "+c.Path] = c
		}
	}
	call := func(name string) (*docsCall, error) {
		if c := calls[name]; c != nil {
			return c, nil
		}
		return nil, fmt.Errorf("the OpenAPI document has no %s", name)
	}
	pages, err := template.New("").Funcs(template.FuncMap{
		"curl": func(name string) (string, error) {
			c, err := call(name)
			if err != nil {
				return "", err
			}
			return c.Curl, nil
		},
		"anchor": func(name string) (string, error) {
			c, err := call(name)
			if err != nil {
				return "", err
			}
			return "#" + c.Anchor, nil
		},
	}).Parse(docsHTML)
	if err != nil {
		return nil, err
	}
	var home, docs bytes.Buffer
	if err := pages.ExecuteTemplate(&home, "home", view); err != nil {
		return nil, err
	}
	if err := pages.ExecuteTemplate(&docs, "page", view); err != nil {
		return nil, err
	}
	const html = "text/html; charset=utf-8"
	return &docsPages{
		routing: rt,
		ended:   ended,
		home:    newStaticFile(html, pageCaching, home.Bytes()),
		docs:    newStaticFile(html, pageCaching, docs.Bytes()),
		robots:  newStaticFile("text/plain; charset=utf-8", pageCaching, []byte(robotsText(rt.prefixes))),
	}, nil
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

	// How long security.txt says that it is right, from the day that it is asked for. RFC 9116
	// recommends less than a year, so that a copy does not stay in use for longer.
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
	s.write(w, reply{http.StatusOK, []byte(text.String())})
}

// The names of tokens among the examples. The other names are those of members and parameters, and
// the paths, or resources such as /webhooks/{id}, that want an id of their own.
const (
	exampleToken = "token" // of the account
	exampleAdmin = "admin" // of the operator
)

// placeholders are the values in the curl lines of /docs where the service has no examples that work:
// words in capitals for the reader to replace.
var placeholders = map[string]string{
	"license_key": "LICENSE_KEY",
	"widget":      "WIDGET_ID",
	"account_id":  "ACCOUNT_ID",
	"device_id":   "DEVICE_ID",
	"delivery":    "DELIVERY_ID",
	"Origin":      "https://www.example.com",
	exampleToken:  "TOKEN",
	exampleAdmin:  "ADMIN_TOKEN",

	"/licenses/{id}":          "LICENSE_ID",
	"/webhooks/{id}":          "WEBHOOK_ID",
	"/orders/{id}":            "ORDER_ID",
	"/books/connections/{id}": "CONNECTION_ID",
	"export":                  "EXPORT_ID",
}

// The OpenAPI document (contract, section 9). It is written by hand; docs_openapi_test.go holds it
// against the routes, the problem codes and every answer that a test gets.

//go:embed web/openapi.json
var openapiText string

// The addresses that the document is written with, in its servers, its examples and the paths of the metadata. It
// is served with the configured ones in their place.
const (
	documentBase = "https://api.example.com/v1"
	documentRoot = "https://api.example.com"
	documentPath = "/v1"
)

// An openapiAPI serves the OpenAPI document.
type openapiAPI struct {
	*server
	making sync.Mutex
	made   atomic.Pointer[openapiFile]
}

// An openapiFile is the document with the base address that the service had when it was made.
type openapiFile struct {
	base string
	*staticFile
}

func openapiWing(s *server) wing {
	a := &openapiAPI{server: s}
	return wing{
		routes: []route{{pattern: "GET /openapi.json", free: true, open: true, run: endpoint(a.showDocument)}},
		roots: []rootPath{{path: "/openapi.json", open: true, serve: func(w *response, r *http.Request) {
			a.sendStatic(w, r, a.document())
		}}},
	}
}

// showDocument answers GET /openapi.json below the base address.
func (a *openapiAPI) showDocument(context.Context, *call, *emptyRequest) (*staticFile, error) {
	return a.document(), nil
}

// document returns the document with the current base address. It is made, and compressed, when it
// is asked for first and after the base address was changed.
func (a *openapiAPI) document() *staticFile {
	rt := a.routing.Load()
	base := rt.bases[0].URL
	if made := a.made.Load(); made != nil && made.base == base {
		return made.staticFile
	}
	a.making.Lock()
	defer a.making.Unlock()
	if made := a.made.Load(); made != nil && made.base == base { // made while this call waited
		return made.staticFile
	}
	text := strings.NewReplacer(documentBase, base, documentRoot, rt.root,
		serverMetadataPath+documentPath, serverMetadataPath+rt.prefixes[0],
		resourceMetadataPath+documentPath, resourceMetadataPath+rt.prefixes[0]).Replace(openapiText)
	made := &openapiFile{base, newStaticFile("application/json", "public, max-age=300", []byte(text))}
	a.made.Store(made)
	return made.staticFile
}
