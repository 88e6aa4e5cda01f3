package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"html"
	"html/template"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The pages of the documentation are made when the program is built: from web/docs.html, web/openapi.json, CHANGELOG.md
// and what the nouns declare. Each is a body of HTML with its twin in Markdown, in which marks stand for what only a
// running service knows (docsText): «base» for its base address, «widget|WIDGET_ID» for a value that a demo
// has, and a word for the reader to replace elsewhere.
//
//	go test -run TestEmbedded -write-embedded .

// A docsValues numbers the marks of values while a page is made.
type docsValues struct{ keys []string }

// What surrounds the number and the default of a mark while a page is made, so that what is around it can be escaped
// for HTML, JSON and the shell.
const markBegin, markMiddle, markEnd = "\ue000", "\ue001", "\ue002"

// docsMark matches a mark, made or in the making.
var docsMark = lazyPattern("«[^»]*»|" + markBegin + "[^" + markEnd + "]*" + markEnd)

// mark returns the mark of a value that is found under one of some names, else is the one that is given.
func (v *docsValues) mark(otherwise string, names ...string) string {
	for _, name := range names {
		if word := placeholders[name]; word != "" {
			otherwise = word
			break
		}
	}
	v.keys = append(v.keys, strings.Join(names, "|"))
	return markBegin + strconv.Itoa(len(v.keys)-1) + markMiddle + otherwise + markEnd
}

var markInMaking = lazyPattern(markBegin + `(\d+)` + markMiddle + "([^" + markEnd + "]*)" + markEnd)

// finish puts the final marks in the place of those in the making.
func (v *docsValues) finish(text string) string {
	return markInMaking().ReplaceAllStringFunc(text, func(mark string) string {
		found := markInMaking().FindStringSubmatch(mark)
		n, _ := strconv.Atoi(found[1])
		return "«" + v.keys[n] + "|" + found[2] + "»"
	})
}

// placeholders are the words in capitals that the reader of a curl line has to replace, where the service is no demo.
// Their names are those of members and parameters, and paths, or resources such as /webhooks/{id}, that need an id of
// their own.
var placeholders = map[string]string{
	"license_key": "LICENSE_KEY",
	"widget":      "WIDGET_ID",
	"account_id":  "ACCOUNT_ID",
	"device_id":   "DEVICE_ID",
	"delivery":    "DELIVERY_ID",
	"Origin":      "https://YOUR_SITE",
	"return_url":  "https://YOUR_SITE/thanks",
	"url":         "https://YOUR_RECEIVER/",

	"/accounts/{id}":          "ACCOUNT_ID",
	"/apps/{id}":              "APP_ID",
	"/grants/{id}":            "GRANT_ID",
	"client_id":               "APP_ID",
	"client_secret":           "CLIENT_SECRET",
	"/oauth/revoke token":     "REFRESH_TOKEN",
	"/licenses/{id}":          "LICENSE_ID",
	"/plans/{id}":             "PLAN_ID",
	"/webhooks/{id}":          "WEBHOOK_ID",
	"/orders/{id}":            "ORDER_ID",
	"/books/connections/{id}": "CONNECTION_ID",
	"export_id":               "EXPORT_ID",
	"/payouts/{id}":           "PAYOUT_ID",
	"payout":                  "PAYOUT_ID",
}

// tokenVariables are the variables of the shell that have tokens in the curl lines, with the names of their values and
// what they are for the reader.
var tokenVariables = map[string][2]string{
	"TOKEN":        {exampleToken, "the token of your account"},
	"ADMIN_TOKEN":  {exampleAdmin, "the token of an operator"},
	"PORTAL_TOKEN": {examplePortal, "the token of a portal"},
}

// docsOutline are the parts of the contents with the chapters of each, by their templates in web/docs.html, and what
// each answers. The part Reference gets the calls of each tag, too.
var docsOutline = []struct {
	title    string
	chapters [][2]string
}{
	{"For everybody", [][2]string{
		{"tokens", "which credential goes on which call, and what each scope lets it do"},
		{"bodies", "the form of bodies, lists and their cursors, times and ids"},
		{"problems", "every problem code, what it means and what to do; the codes of errors[]"},
		{"limits", "how many requests a minute, and what a 429 wants"},
		{"browsers", "calling from a web page: origins, CORS, cookies"},
		{"twice", "sending a request again without doing it twice: Idempotency-Key"},
		{"events", "what happened, as a list"},
		{"webhooks", "being told of events: adding, receiving and verifying webhooks in four languages"},
		{"clients", "clients with types from the OpenAPI document, and Postman"},
	}},
	{"On a site", [][2]string{
		{"widgets", "the script that counts a menu, sends forms and fills in numbers"},
		{"ordering", "a menu that takes orders, in one file"},
		{"leads", "what forms send, how it is kept and erased"},
		{"statistics", "what widgets counted, as JSON and as a picture"},
	}},
	{"Licences", [][2]string{
		{"licences", "keys, seats, leases and their states"},
		{"offline", "devices that go on without a network, and checking a lease in five languages"},
		{"selling", "plans, and issuing and renewing licences by program"},
	}},
	{"Money", [][2]string{
		{"payments", "an order from its making to its refund: Stripe, TWINT, Vipps MobilePay, cash"},
		{"revenue", "what each business day has brought"},
		{"bookkeeping", "days of revenue in Xero and Fortnox"},
		{"payouts", "which orders made a deposit, what it cost, and its entry in the books"},
	}},
	{"Applications", [][2]string{
		{"applications", "OAuth: acting for accounts whose owners agree"},
	}},
	{"Reference", [][2]string{
		{"calls", "a list of all calls"},
		{"objects", "the members of what answers have in common"},
		{"commands", "every command of widgetd, its options and their environment variables"},
		{"legacy", "the paths of before version 1, and when they end"},
		{"changes", "what each release has changed"},
	}},
}

const docsPrefix = "/docs/"

// chapterPath returns the path of a chapter. That of payments has the name of what a reader looks for.
func chapterPath(chapter string) string {
	if chapter == "payments" {
		chapter = "orders"
	}
	return docsPrefix + chapter
}

// A docsView is everything that the templates in web/docs.html show.
type docsView struct {
	Groups            []docsGroup
	Objects           []docsObject
	Problems          []docsProblem
	Entries           []docsEntry
	Events            []docsEvents
	Options           []option // that every command takes
	Commands          []docsCommands
	Posted            *docsCall // what is posted to webhooks, and what their answers mean
	PostedExample     string
	StripePermissions string   // of a restricted key
	RetryDelays       []string // "5 s", "5 min"
	RetriesEnd        string   // after so long an event is given up
}

// A docsProblem is a row of the table of problem codes.
type docsProblem struct {
	Name    string
	Status  int
	Meaning string
	Remedy  template.HTML
}

// A docsEntry is a row of the table of the codes of errors[].
type docsEntry struct {
	Name    string
	Meaning template.HTML
}

// A docsEvents is the event types of one noun.
type docsEvents struct {
	Noun  string
	Names []string
}

// A docsCommands is the commands that begin with the same word.
type docsCommands struct {
	Word string
	All  []command
}

// What the page of commands shows of one, and of an option: what its help prints.
func (c command) Signature() string { return c.signature() }
func (c command) Help() string      { return c.help }
func (c command) Options() []option { return c.options }
func (o option) Signature() string  { return o.signature() }
func (o option) Text() string       { return o.row().line() }

// groupCommands groups commands by their first words, in their order.
func groupCommands(all []command) (groups []docsCommands) {
	for _, c := range all {
		word, _, _ := strings.Cut(c.name, " ")
		at := slices.IndexFunc(groups, func(g docsCommands) bool { return g.Word == word })
		if at < 0 {
			at, groups = len(groups), append(groups, docsCommands{Word: word})
		}
		groups[at].All = append(groups[at].All, c)
	}
	return groups
}

// Asking returns the names of the commands that ask before they do something.
func (v *docsView) Asking() (names []string) {
	for _, group := range v.Commands {
		for _, c := range group.All {
			if c.asks() {
				names = append(names, c.name)
			}
		}
	}
	return names
}

// newDocsView collects what the pages show, of a server's routes and of the document.
func newDocsView(t testing.TB, s *server, values *docsValues) *docsView {
	d, err := newAPIDocument(fileText(t, "web/openapi.json"))
	must(t, err)
	d.values, d.fromSites = values, map[string]bool{}
	for i := range s.routes {
		d.fromSites[s.routes[i].pattern] = s.routes[i].origin != originAny
	}
	v := &docsView{Groups: d.groups(), Objects: d.objects(), Events: groupEvents(eventTypesOf(s.nouns)),
		StripePermissions: stripePermissions, Options: commonOptions,
		Commands: groupCommands(explained(allCommands(), s.nouns))}
	v.Posted, v.PostedExample = d.posted()
	v.RetryDelays, v.RetriesEnd = showRetries()
	for _, c := range problemsOf(s.nouns) {
		remedy := prose(d.localize(c.remedy))
		v.Problems = append(v.Problems, docsProblem{c.name, c.status, c.detail, remedy})
	}
	slices.SortStableFunc(v.Problems, func(p, q docsProblem) int { return p.Status - q.Status })
	for _, m := range d.all.at("x-entries").members {
		v.Entries = append(v.Entries, docsEntry{m.name, prose(m.value.text)})
	}
	return v
}

// call returns the operation with a method and path, such as "POST /widget/events".
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

// problemsOf returns the problem codes of the core and of the given nouns.
func problemsOf(of []noun) []*problemCode {
	return slices.Concat(coreProblems, authProblems, corsProblems, idempotencyProblems,
		collectNouns(of, func(n *noun) []*problemCode { return n.problems }))
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

// A docsAnchor is an element that has an id, as a link to it.
type docsAnchor struct {
	ID, Href string
	Title    template.HTML
	Within   []string // ids of elements that are labels of this one
}

// A madeChapter is a chapter with its section, before links get the paths of their pages.
type madeChapter struct {
	docsChapter
	Anchors []docsAnchor // everything that has an id, for the index
	text    string       // of the section; HTML
	ids     []string
}

var (
	docsTitle   = lazyPattern(`<h2 id="[^"]*">(.*?)</h2>`)
	docsHeading = lazyPattern(`<h3 id="([^"]*)">(.*?)</h3>`)
	docsID      = lazyPattern(`\sid="([^"]*)"`)
	docsCaption = lazyPattern(`<table[^>]* id="([^"]*)">\s*<caption>(.*?)</caption>`)
	docsUnnamed = lazyPattern(`<h3>([^<]*)</h3>`)
	docsLink    = lazyPattern(`href="#([^"]*)"`)
	docsTag     = lazyPattern(`<[^>]*>`)
	docsNoWord  = lazyPattern(`[^a-z0-9]+`)
	docsSample  = lazyPattern(`(?s)<pre class="sample".*?</pre>`)
	docsWord    = lazyPattern(`(?:https://|[/= ]|&#3[49];)([A-Z_]+)`) // in a line: =WIDGET_ID, "LICENSE_KEY"
)

// newChapter reads the section of a chapter. Headings without an id get one from their text.
func newChapter(path, name, about, text string) *madeChapter {
	text = docsUnnamed().ReplaceAllStringFunc(text, func(heading string) string {
		title := docsUnnamed().FindStringSubmatch(heading)[1]
		id := name + "-" + strings.Trim(docsNoWord().ReplaceAllString(strings.ToLower(title), "-"), "-")
		return `<h3 id="` + id + `">` + title + `</h3>`
	})
	c := &madeChapter{docsChapter: docsChapter{Path: path, About: about}, text: text}
	if found := docsTitle().FindStringSubmatch(text); found != nil {
		c.Title = template.HTML(found[1])
	}
	titles := map[string]template.HTML{}
	for _, found := range docsHeading().FindAllStringSubmatch(text, -1) {
		title := template.HTML(docsTag().ReplaceAllString(found[2], ""))
		titles[found[1]] = title
		id := strings.TrimSuffix(found[1], "-title") // a section, rather than its heading
		c.Headings = append(c.Headings, docsHead{ID: id, Title: title})
	}
	for _, found := range docsCaption().FindAllStringSubmatch(text, -1) {
		titles[found[1]] = template.HTML(docsTag().ReplaceAllString(found[2], ""))
	}
	for _, found := range docsID().FindAllStringSubmatch(text, -1) {
		c.ids = append(c.ids, found[1])
	}
	for _, id := range c.ids {
		if base, label := strings.CutSuffix(id, "-title"); label && slices.Contains(c.ids, base) {
			continue
		}
		a := docsAnchor{ID: id, Href: path + "#" + id, Title: titles[id]}
		if label := id + "-title"; slices.Contains(c.ids, label) {
			a.Within, a.Title = []string{label}, titles[label]
		}
		if a.Title == "" {
			a.Title = template.HTML(html.EscapeString(cmp.Or(docsNames[id], id)))
		}
		c.Anchors = append(c.Anchors, a)
	}
	return c
}

// docsNames are the names of what has an id but no heading, other than problem codes.
var docsNames = map[string]string{"misspelt": "Misspelt members"}

// A docsMaker makes the pages.
type docsMaker struct {
	templates *template.Template
	view      *docsView
	values    *docsValues
	parts     []docsPart
	chapters  []*madeChapter
	pageOf    map[string]string // the path of the page that has an id
	intro     string            // of llms.txt
}

// makeDocs returns the files of the documentation that the program embeds, by their names.
func makeDocs(t testing.TB) map[string]string {
	t.Helper()
	values := &docsValues{}
	m := &docsMaker{values: values, view: newDocsView(t, newService(t).server, values), pageOf: map[string]string{},
		intro: fileText(t, "web/llms.md")}
	var err error
	m.templates, err = template.New("").Funcs(template.FuncMap{
		"file":    func(name string) string { return fileText(t, "web/"+name) },
		"changes": func() template.HTML { return shownChanges(fileText(t, "CHANGELOG.md")) },
		"curl": func(name string) (string, error) {
			c, err := m.view.call(name)
			return c.Curl, err
		},
		"anchor": func(name string) (string, error) {
			c, err := m.view.call(name)
			return "#" + c.Anchor, err
		},
	}).Parse(fileText(t, "web/docs.html"))
	must(t, err)
	files, err := m.files()
	must(t, err)
	return files
}

// execute returns what a template makes of a value.
func (m *docsMaker) execute(name string, shown any) (string, error) {
	var out bytes.Buffer
	err := m.templates.ExecuteTemplate(&out, name, shown)
	return m.values.finish(out.String()), err
}

// files returns the bodies of all pages with their twins in Markdown, the outline, and the index that the box finds
// words in.
func (m *docsMaker) files() (map[string]string, error) {
	for _, part := range docsOutline {
		var made []*madeChapter
		for _, chapter := range part.chapters {
			text, err := m.execute(chapter[0], m.view)
			if err != nil {
				return nil, err
			}
			made = append(made, newChapter(chapterPath(chapter[0]), chapter[0], chapter[1], text))
			if chapter[0] != "calls" {
				continue
			}
			for i := range m.view.Groups {
				g := &m.view.Groups[i]
				if text, err = m.execute("group", g); err != nil {
					return nil, err
				}
				about := "the calls of " + g.Name + ": members, answers, a line for curl"
				made = append(made, newChapter(g.Page, "calls", about, text))
			}
		}
		m.chapters, m.parts = append(m.chapters, made...), append(m.parts, docsPart{Title: part.title})
		for _, c := range made {
			at := &m.parts[len(m.parts)-1]
			at.Chapters = append(at.Chapters, &c.docsChapter)
			for _, id := range c.ids {
				m.pageOf[id] = c.Path
			}
		}
	}
	start, err := m.execute("start", m.view)
	if err != nil {
		return nil, err
	}
	index, err := m.execute("index", m.chapters)
	if err != nil {
		return nil, err
	}
	first := &docsChapter{Path: "/docs", Title: "Documentation"}
	bodies := map[*docsChapter]string{first: m.body(first.Path, start) + index}
	for _, c := range m.chapters {
		bodies[&c.docsChapter] = m.body(c.Path, c.text)
	}
	files, find := map[string]string{}, newFinder()
	for _, c := range append([]*docsChapter{first}, m.contents()...) {
		files[c.file()+".html"] = bodies[c]
		text := bodies[c]
		if c == first {
			text = strings.TrimSuffix(text, index)
		}
		pages, err := markdownPages(c, text)
		if err != nil {
			return nil, err
		}
		c.Twins = len(pages)
		for i, page := range pages {
			files[c.twin(i)] = page
		}
		if err := find.add(c, text); err != nil {
			return nil, err
		}
	}
	files["docs/outline.json"] = string(encodeJSON(docsContents{first.Twins, m.parts}))
	files["docs/find.json"] = find.json()
	files["docs/llms.txt"] = m.guide(first)
	return files, nil
}

// guide returns /llms.txt (llmstxt.org): what programs that read for people get wrong, and where each thing is.
func (m *docsMaker) guide(first *docsChapter) string {
	var out strings.Builder
	out.WriteString(m.intro)
	link := func(c *docsChapter) {
		title := html.UnescapeString(string(c.Title))
		for part := range c.Twins {
			fmt.Fprintf(&out, "- [%s](«root»%s): %s\n", title, "/"+c.twin(part), c.About)
			title = html.UnescapeString(string(c.Title)) + ", part " + strconv.Itoa(part+2)
		}
	}
	first.About = "the first calls, by who you are"
	link(first)
	for _, part := range m.parts {
		fmt.Fprintf(&out, "\n## %s\n\n", part.Title)
		for _, c := range part.Chapters {
			link(c)
		}
	}
	return out.String()
}

// contents returns all chapters, in the order of the contents.
func (m *docsMaker) contents() (all []*docsChapter) {
	for _, c := range m.chapters {
		all = append(all, &c.docsChapter)
	}
	return all
}

// body returns the text of a page: with what is to be set and replaced in its lines at its beginning, and links to what
// other pages have with the paths of these.
func (m *docsMaker) body(path, text string) string {
	text = docsLink().ReplaceAllStringFunc(text, func(link string) string {
		id := docsLink().FindStringSubmatch(link)[1]
		if page, known := m.pageOf[id]; known && page != path {
			return `href="` + page + `#` + id + `"`
		}
		return link
	})
	var settings, words []string
	for _, variable := range slices.Sorted(maps.Keys(tokenVariables)) {
		if strings.Contains(text, "Bearer $"+variable) || strings.Contains(text, "=$"+variable) {
			value := tokenVariables[variable]
			settings = append(settings, variable+"=«"+value[0]+"|"+quoteMarked(value[1])+"»")
		}
	}
	slices.Reverse(settings) // that of an account first
	known := strings.Fields(docsNoCapital.Replace(strings.Join(slices.Collect(maps.Values(placeholders)), " ")))
	plain := docsText(docsSample().ReplaceAllString(text, ""), docsFacts{})
	for _, found := range docsWord().FindAllStringSubmatch(plain, -1) {
		if word := found[1]; slices.Contains(known, word) && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	if len(settings)+len(words) == 0 {
		return text
	}
	set, err := m.execute("set", struct{ Settings, Words []string }{settings, words})
	if err != nil {
		panic(err) // which only a wrong template can cause
	}
	at := strings.Index(text, "</h2>\n") + len("</h2>\n")
	return text[:at] + set + text[at:]
}

// docsNoCapital leaves only the words in capitals of placeholders.
var docsNoCapital = strings.NewReplacer("https://", "", "/thanks", "", "/", "")

var changeLink = lazyPattern(`\[([^\]]*)\]\([^)]*\)`)

// shownChanges returns the sections of a changelog as HTML. Links lead into the repository, which readers of /docs
// don't have, so their texts stay alone.
func shownChanges(text string) template.HTML {
	var out strings.Builder
	_, text, _ = strings.Cut(changeLink().ReplaceAllString(text, "$1"), "\n## ")
	for block := range strings.SplitSeq("## "+text, "\n\n") {
		lines := strings.Split(strings.Trim(block, "\n"), "\n")
		for len(lines) > 0 && strings.HasPrefix(lines[0], "##") {
			level, title, _ := strings.Cut(lines[0], " ")
			tag := map[bool]string{true: "h3", false: "h4"}[len(level) == 2]
			out.WriteString("<" + tag + ">" + string(prose(title)) + "</" + tag + ">\n")
			lines = lines[1:]
		}
		switch joined := strings.Join(lines, "\n"); {
		case joined == "":
		case strings.HasPrefix(joined, "- "):
			out.WriteString("<ul>\n")
			for item := range strings.SplitSeq(joined[2:], "\n- ") {
				out.WriteString("<li>" + string(prose(item)) + "</li>\n")
			}
			out.WriteString("</ul>\n")
		default:
			out.WriteString("<p>" + string(prose(joined)) + "</p>\n")
		}
	}
	return template.HTML(out.String())
}

// A docsNode is an element of a page, or a text.
type docsNode struct {
	name  string // "": a text
	attrs map[string]string
	text  string
	inner []*docsNode
}

// parseDocs parses the body of a page, which is well-formed.
func parseDocs(text string) (*docsNode, error) {
	d := xml.NewDecoder(strings.NewReader("<body>" + text + "</body>"))
	d.Strict, d.Entity = false, xml.HTMLEntity
	root := &docsNode{}
	open := []*docsNode{root}
	for {
		token, err := d.Token()
		if err == io.EOF {
			return root.inner[0], nil
		}
		if err != nil {
			return nil, err
		}
		at := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			n := &docsNode{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				n.attrs[a.Name.Local] = a.Value
			}
			at.inner, open = append(at.inner, n), append(open, n)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			at.inner = append(at.inner, &docsNode{text: string(token)})
		}
	}
}

// plain returns all text in an element as it is.
func (n *docsNode) plain() string {
	text := n.text
	for _, c := range n.inner {
		text += c.plain()
	}
	return text
}

// A twinWriter writes Markdown.
type twinWriter struct {
	out  strings.Builder
	path string // of the page
}

var spaces = regexp.MustCompile(`\s+`)

// line returns what is in an element as Markdown within a line.
func (w *twinWriter) line(n *docsNode) string {
	switch n.name {
	case "":
		return spaces.ReplaceAllString(n.text, " ")
	case "code":
		return "`" + strings.TrimSpace(spaces.ReplaceAllString(n.plain(), " ")) + "`"
	}
	text := ""
	for _, c := range n.inner {
		text += w.line(c)
	}
	switch trimmed := strings.TrimSpace(text); n.name {
	case "b", "strong", "em":
		return "**" + trimmed + "**"
	case "a":
		return "[" + trimmed + "](" + w.address(n.attrs["href"]) + ")"
	case "p", "div", "li", "summary":
		return " " + trimmed + " "
	}
	return text
}

var docsAddress = regexp.MustCompile(`^/docs(/[a-z0-9-]+)?(#.*)?$`)

// address returns the address of a link in a twin: of the twin, where a page of the documentation is linked.
func (w *twinWriter) address(href string) string {
	if strings.HasPrefix(href, "#") {
		href = w.path + href
	}
	if found := docsAddress.FindStringSubmatch(href); found != nil && found[1] != "/all" {
		return "«root»/docs" + found[1] + ".md" + found[2]
	}
	if strings.HasPrefix(href, "/") {
		return "«root»" + href
	}
	return href
}

// block writes an element as a block of its own.
func (w *twinWriter) block(n *docsNode) {
	put := func(text string) {
		if text = strings.TrimSpace(text); text != "" {
			fmt.Fprintf(&w.out, "%s\n\n", text)
		}
	}
	switch n.name {
	case "h2", "h3", "h4":
		put(strings.Repeat("#", int(n.name[1]-'1')) + " " + strings.ReplaceAll(strings.TrimSpace(w.line(n)), "**", ""))
	case "pre":
		put("```\n" + strings.TrimRight(n.plain(), "\n") + "\n```")
	case "dl":
		w.members(n)
	case "ul", "ol":
		for _, c := range n.inner {
			if c.name == "li" {
				fmt.Fprintf(&w.out, "- %s\n", strings.TrimSpace(w.line(c)))
			}
		}
		w.out.WriteString("\n")
	case "table":
		w.table(n)
	case "p":
		put(w.line(n))
	default:
		text := ""
		for _, c := range n.inner {
			if slices.Contains([]string{"", "code", "b", "a", "em", "span"}, c.name) {
				text += w.line(c)
				continue
			}
			put(text)
			text = ""
			w.block(c)
		}
		put(text)
	}
}

// members writes a list of members, or of answers, with the blocks in it behind them.
func (w *twinWriter) members(list *docsNode) {
	var after []*docsNode
	for _, n := range list.inner {
		switch n.name {
		case "dt":
			fmt.Fprintf(&w.out, "- %s", strings.TrimSpace(w.line(n)))
		case "dd":
			text := &docsNode{name: "dd"}
			for _, c := range n.inner {
				if c.name == "details" {
					after = append(after, c)
				} else {
					text.inner = append(text.inner, c)
				}
			}
			fmt.Fprintf(&w.out, ": %s\n", strings.TrimSpace(spaces.ReplaceAllString(w.line(text), " ")))
		}
	}
	w.out.WriteString("\n")
	for _, n := range after {
		w.block(n)
	}
}

// table writes a table.
func (w *twinWriter) table(n *docsNode) {
	var rows func(n *docsNode)
	rows = func(n *docsNode) {
		if n.name != "tr" {
			for _, c := range n.inner {
				rows(c)
			}
			return
		}
		cells, head := 0, false
		for _, c := range n.inner {
			if c.name == "td" || c.name == "th" {
				cells, head = cells+1, head || c.name == "th" && c.attrs["scope"] == "col"
				text := strings.ReplaceAll(strings.TrimSpace(spaces.ReplaceAllString(w.line(c), " ")), "|", `\|`)
				fmt.Fprintf(&w.out, "| %s ", text)
			}
		}
		w.out.WriteString("|\n")
		if head {
			w.out.WriteString(strings.Repeat("|---", cells) + "|\n")
		}
	}
	rows(n)
	w.out.WriteString("\n")
}

// maxTwin is how many bytes a twin has at most, since readers cut longer texts off. What is put in the place of marks
// may be a little longer.
const maxTwin = 44_000

// markdownPages returns the twin of a page in Markdown, in as many parts as it needs.
func markdownPages(c *docsChapter, body string) ([]string, error) {
	root, err := parseDocs(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	w := &twinWriter{path: c.Path}
	w.block(root)
	text := regexp.MustCompile(`(«if \w+»|«else»)\n\n`).ReplaceAllString(w.out.String(), "$1")
	text = regexp.MustCompile(`\n\n(«else»|«end»)`).ReplaceAllString(text, "$1\n\n")
	var pages []string
	for section := range strings.SplitSeq(text, "\n## ") {
		if len(pages) > 0 {
			section = "\n## " + section
		}
		if last := len(pages) - 1; last >= 0 && len(pages[last])+len(section) < maxTwin {
			pages[last] += section
		} else {
			pages = append(pages, section)
		}
	}
	for i := range pages {
		head := "> " + cmp.Or(c.About, "where to begin") + ". The same for people: «root»" + c.Path +
			". All pages: «root»/llms.txt\n\n"
		if i > 0 {
			head = "# " + html.UnescapeString(string(c.Title)) + ", continued\n\n" + head
		}
		if i+1 < len(pages) {
			pages[i] += "\nIt goes on at «root»" + "/" + docsChapter{Path: c.Path}.twin(i+1) + "\n"
		}
		pages[i] = head + strings.TrimLeft(pages[i], "\n")
		if title, rest, ok := strings.Cut(strings.TrimPrefix(pages[i], head), "\n"); i == 0 && ok {
			pages[i] = title + "\n\n" + head + strings.TrimLeft(rest, "\n")
		}
	}
	return pages, nil
}
