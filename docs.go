package main

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// docsNoun declares what the service says about itself: the OpenAPI document and the pages of the documentation.
func docsNoun() noun {
	return noun{name: "docs", wings: func(s *server) []wing { return []wing{openapiWing(s), docsWing(s)} }}
}

// The HTML pages: /docs and those below it, made from the OpenAPI document and the chapters in web/docs.html, and /,
// which links to them. With them are served the files by which programs discover a site.

const (
	pageCaching = "public, max-age=300" // of pages and what belongs to them

	// pagePolicy lets a page load its own style sheet and pictures, and nothing else.
	pagePolicy = "default-src 'none'; style-src 'self'; img-src 'self'"

	// pageLinks name the documents that describe the interface (RFC 8631), at the root and on /docs.
	pageLinks = `</openapi.json>; rel="service-desc", </docs>; rel="service-doc"`
)

// A docsAPI serves the pages. They are made on the first request, so that the start does not wait for
// them, and again after the base addresses have changed or the legacy paths have ended.
type docsAPI struct {
	*server
	problems []*problemCode
	events   []eventType
	making   sync.Mutex
	made     *docsPages // nil: nobody has asked yet
}

// docsPages are the pages that name the base address.
type docsPages struct {
	routing *routing // that they were made for
	ended   bool     // whether the legacy paths had ended
	home    *staticFile
	docs    map[string]*staticFile // by path
	robots  *staticFile
}

func docsWing(s *server) wing {
	a := &docsAPI{server: s, problems: problemsOf(s.nouns), events: eventTypesOf(s.nouns)}
	file := func(path, contentType, name string) rootPath { // made on the first request
		made := sync.OnceValue(func() *staticFile {
			return newStaticFile(contentType, pageCaching, []byte(embedded(name)))
		})
		serve := func(w *response, r *http.Request) { a.sendStatic(w, r, made()) }
		return rootPath{path: path, page: true, serve: serve}
	}
	roots := []rootPath{
		{path: "/{$}", page: true, serve: a.page},
		{path: "/docs", page: true, serve: a.page},
		{path: docsPrefix + "{chapter}", page: true, serve: a.page},
		{path: "/robots.txt", page: true, serve: a.page},
		file("/docs.css", "text/css; charset=utf-8", "web/docs.css"),
		file("/favicon.ico", "image/svg+xml", "web/favicon.svg"),
	}
	if len(s.securityContacts) > 0 {
		roots = append(roots, rootPath{path: securityTxtPath, page: true, serve: s.showSecurityTxt})
	}
	return wing{roots: roots}
}

// page answers with the page at a path.
func (a *docsAPI) page(w *response, r *http.Request) {
	pages, err := a.pages()
	if err != nil {
		a.fail(w, r, err)
		return
	}
	file, policy := pages.docs[r.URL.Path], docsPolicy()
	switch r.URL.Path {
	case "/":
		file, policy = pages.home, pagePolicy
	case "/robots.txt":
		a.sendStatic(w, r, pages.robots)
		return
	}
	if file == nil {
		a.pathNotFound(w, r)
		return
	}
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Link", pageLinks)
	a.sendStatic(w, r, file)
}

// pages returns the current pages. It makes them if there are none yet or they are out of date.
func (a *docsAPI) pages() (*docsPages, error) {
	rt, ended := a.routing.Load(), !a.now().Before(a.legacySunset)
	a.making.Lock()
	defer a.making.Unlock()
	if a.made == nil || a.made.routing != rt || a.made.ended != ended {
		made, err := a.makePages(rt, ended)
		if err != nil {
			return nil, err
		}
		a.made = made
	}
	return a.made, nil
}

// makePages makes the pages for the base addresses of a routing. ended tells whether the legacy paths
// have ended.
func (a *docsAPI) makePages(rt *routing, ended bool) (*docsPages, error) {
	d, err := newAPIDocument(embedded("web/openapi.json"))
	if err != nil {
		return nil, err
	}
	view := a.view(rt, ended, d)
	line, err := newSnippet(d.values["widget"], d.base)
	if err != nil {
		return nil, err
	}
	view.Widget, view.Snippet = line.Widget, line.HTML
	script, err := presentScript(d.base)
	if err != nil {
		return nil, err
	}
	view.ScriptSize = fmt.Sprintf("%.1f", float64(len(compress(script.text).body))/1024)
	templates, err := template.New("").Funcs(template.FuncMap{
		"file":    func(name string) string { return embedded("web/" + name) },
		"changes": shownChanges,
		"curl": func(name string) (string, error) {
			c, err := view.call(name)
			return c.Curl, err
		},
		"anchor": func(name string) (string, error) {
			c, err := view.call(name)
			return "#" + c.Anchor, err
		},
	}).Parse(embedded("web/docs.html"))
	if err != nil {
		return nil, err
	}
	m := &docsMaker{templates: templates, view: view, values: d.values}
	home, err := m.execute("home", view)
	if err != nil {
		return nil, err
	}
	texts, err := m.pages()
	if err != nil {
		return nil, err
	}
	const html = "text/html; charset=utf-8"
	made := &docsPages{routing: rt, ended: ended, docs: map[string]*staticFile{},
		home:   newStaticFile(html, pageCaching, []byte(home)),
		robots: newStaticFile("text/plain; charset=utf-8", pageCaching, []byte(robotsText(rt.prefixes)))}
	for path, text := range texts {
		made.docs[path] = newStaticFile(html, pageCaching, []byte(text))
	}
	return made, nil
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

// placeholders are the values in the curl lines of /docs where the service has no examples that work:
// words in capitals for the reader to replace. Their names are those of members and parameters,
// exampleToken and exampleAdmin, and paths, or resources such as /webhooks/{id}, that need an id of
// their own.
var placeholders = map[string]string{
	"license_key": "LICENSE_KEY",
	"widget":      "WIDGET_ID",
	"account_id":  "ACCOUNT_ID",
	"device_id":   "DEVICE_ID",
	"delivery":    "DELIVERY_ID",
	"Origin":      "https://www.example.com",
	exampleToken:  "the token of your account",
	exampleAdmin:  "the token of an operator",
	examplePortal: "the token of a portal",

	"/accounts/{id}":             "ACCOUNT_ID",
	"/apps/{id}":                 "APP_ID",
	"/grants/{id}":               "GRANT_ID",
	"client_id":                  "APP_ID",
	"/oauth/token code":          "CODE",
	"/oauth/token code_verifier": "VERIFIER",
	"/oauth/revoke token":        "REFRESH_TOKEN",
	"/licenses/{id}":             "LICENSE_ID",
	"/plans/{id}":                "PLAN_ID",
	"/webhooks/{id}":             "WEBHOOK_ID",
	"/orders/{id}":               "ORDER_ID",
	"/books/connections/{id}":    "CONNECTION_ID",
	"export":                     "EXPORT_ID",
}

// A docsView is everything that the templates in web/docs.html show.
type docsView struct {
	Base, Root, Prefix string // "https://api.example.com/v1" and its parts
	Release            string
	Demo               bool
	Widget             string // id in the lines that include the script
	Snippet            string // such a line, with the script's hash
	ScriptSize         string // of the script compressed, in KiB: "3.4"
	Contact            string // URI of who gives tokens to partners; "": not known
	ContactText        string // the same for people
	AnonymousRate      int    // limits a minute and address, see serverOptions
	VisitorRate        int
	FailedRate         int
	UnprovedRate       int
	LegacySunset       string
	LegacyEnded        bool
	Groups             []docsGroup
	Objects            []docsObject
	Problems           []docsProblem
	Events             []docsEvents
	Posted             *docsCall // what is posted to webhooks, and what their answers mean
	PostedExample      string
	Origin             string   // a listed one, for curl lines
	StripePermissions  string   // of a restricted key
	RetryDelays        []string // "5 s", "5 min"
	RetriesEnd         string   // after so long an event is given up
}

// A docsProblem is a row of the table of problem codes.
type docsProblem struct {
	Name    string
	Status  int
	Meaning string
	Remedy  template.HTML
}

// A docsEvents is the event types of one noun.
type docsEvents struct {
	Noun  string
	Names []string
}

// view collects what the pages show.
func (a *docsAPI) view(rt *routing, ended bool, d *apiDocument) *docsView {
	d.values = placeholders
	if a.examples != nil {
		d.values = a.examples
	}
	d.base, d.root = rt.bases[0].URL, rt.root
	d.fromSites = map[string]bool{}
	for i := range a.routes {
		d.fromSites[a.routes[i].pattern] = a.routes[i].origin != originAny
	}
	v := &docsView{Base: d.base, Root: d.root, Prefix: rt.prefixes[0], Release: buildName(), Demo: a.examples != nil,
		LegacySunset: a.legacySunset.UTC().Format("2 January 2006"), LegacyEnded: ended,
		Groups: d.groups(), Objects: d.objects(), Events: groupEvents(a.events),
		Origin: d.values["Origin"], StripePermissions: stripePermissions,
		Contact: a.contact, ContactText: cmp.Or(contactEmail(a.contact), a.contact),
		AnonymousRate: a.anonymousRate, VisitorRate: a.visitorRate, FailedRate: a.failedLookupRate,
		UnprovedRate: unprovedShare * a.anonymousRate}
	v.Posted, v.PostedExample = d.posted()
	v.RetryDelays, v.RetriesEnd = showRetries()
	for _, c := range a.problems {
		remedy := prose(d.localize(d.all.at("x-problems", c.name, "remedy").text))
		v.Problems = append(v.Problems, docsProblem{c.name, c.status, c.detail, remedy})
	}
	slices.SortStableFunc(v.Problems, func(p, q docsProblem) int { return p.Status - q.Status })
	return v
}

// call returns the operation with a method and path, such as "POST /widget/events". If the document lacks
// it, call returns an error and an empty docsCall, so that the result can be read either way.
func (v *docsView) call(name string) (*docsCall, error) {
	for _, group := range v.Groups {
		for _, c := range group.Calls {
			if c.Method+" "+c.Path == name {
				return c, nil
			}
		}
	}
	return &docsCall{}, fmt.Errorf("the OpenAPI document has no %s", name)
}

// groupEvents groups event types by their noun, in the order in which the nouns first appear.
func groupEvents(types []eventType) (groups []docsEvents) {
	for _, typ := range types {
		noun, name, _ := strings.Cut(string(typ), ".")
		at := slices.IndexFunc(groups, func(g docsEvents) bool { return g.Noun == noun })
		if at < 0 {
			at = len(groups)
			groups = append(groups, docsEvents{Noun: noun})
		}
		groups[at].Names = append(groups[at].Names, name)
	}
	return groups
}

// showRetries returns retryDelays in readable form, and their sum: "75 h 35 min".
func showRetries() (delays []string, sum string) {
	var all time.Duration
	for _, delay := range retryDelays {
		delays = append(delays, showDelay(delay))
		all += delay
	}
	return delays, showDelay(all.Truncate(time.Minute))
}

// showDelay writes a length of time with its units: "5 s", "75 h 35 min".
func showDelay(d time.Duration) string {
	var parts []string
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if n := d / unit.length; n > 0 {
			parts = append(parts, fmt.Sprint(int64(n), " ", unit.name))
		}
		d %= unit.length
	}
	return strings.Join(parts, " ")
}

// The OpenAPI document (contract, section 9). It is written by hand; docs_openapi_test.go compares it
// with the routes, the problem codes and every answer that a test gets.

// documentPath is the path of documentBase. The document also has it in the paths of the metadata,
// where the configured prefix replaces it.
const documentPath = "/v1"

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
