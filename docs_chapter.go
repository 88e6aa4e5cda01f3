package main

import (
	"bytes"
	"html"
	"html/template"
	"maps"
	"slices"
	"strings"
)

// The pages below /docs: one for each chapter of web/docs.html, for the calls of each tag and for all objects, and one
// with everything. Chapters link to each other as if they were one page, as "#limits": here such a link gets the page
// where that is.

const docsPrefix = "/docs/"

// A docsPart is chapters that belong together in the contents.
type docsPart struct {
	Title    string
	Chapters []*docsSection
}

// docsOutline are the parts of the contents with the chapters of each, by their templates in web/docs.html. The part
// Reference gets the calls of each tag, too.
var docsOutline = []struct {
	title    string
	chapters []string
}{
	{"For everybody", []string{"tokens", "bodies", "problems", "limits", "browsers", "twice", "events", "webhooks",
		"clients"}},
	{"On a site", []string{"widgets", "ordering", "leads", "statistics"}},
	{"Licences", []string{"licences", "offline", "selling"}},
	{"Money", []string{"payments", "revenue", "bookkeeping"}},
	{"Applications", []string{"applications"}},
	{"Reference", []string{"calls", "objects", "legacy", "changes"}},
}

// chapterPath returns the path of a chapter. That of payments has the name of what a reader looks for.
func chapterPath(chapter string) string {
	if chapter == "payments" {
		chapter = "orders"
	}
	return docsPrefix + chapter
}

// A docsSection is one page.
type docsSection struct {
	Path, Title string
	Headings    []docsAnchor // those of the second level, for the contents
	Anchors     []docsAnchor // everything that has an id, for the index
	text        string       // of the section; HTML
	ids         []string
}

// A docsAnchor is an element that has an id, as a link to it.
type docsAnchor struct {
	ID, Href string
	Title    template.HTML
	Within   []string // ids of elements that are labels of this one
}

var (
	docsTitle   = lazyPattern(`<h2 id="[^"]*">(.*?)</h2>`)
	docsHeading = lazyPattern(`<h3 id="([^"]*)">(.*?)</h3>`)
	docsID      = lazyPattern(`\sid="([^"]*)"`)
	docsUnnamed = lazyPattern(`<h3>([^<]*)</h3>`)
	docsLink    = lazyPattern(`href="#([^"]*)"`)
	docsTag     = lazyPattern(`<[^>]*>`)
	docsNoWord  = lazyPattern(`[^a-z0-9]+`)
	docsSample  = lazyPattern(`(?s)<pre class="sample".*?</pre>`)
	docsWord    = lazyPattern(`(?:[/= ]|&#3[49];)([A-Z_]+)`) // in a line: =WIDGET_ID, "LICENSE_KEY"
)

// newDocsSection reads the section of a chapter. Headings without an id get one from their text.
func newDocsSection(path, name, text string) *docsSection {
	text = docsUnnamed().ReplaceAllStringFunc(text, func(heading string) string {
		title := docsUnnamed().FindStringSubmatch(heading)[1]
		id := name + "-" + strings.Trim(docsNoWord().ReplaceAllString(strings.ToLower(title), "-"), "-")
		return `<h3 id="` + id + `">` + title + `</h3>`
	})
	c := &docsSection{Path: path, text: text}
	if found := docsTitle().FindStringSubmatch(text); found != nil {
		c.Title = found[1]
	}
	titles := map[string]template.HTML{}
	for _, found := range docsHeading().FindAllStringSubmatch(text, -1) {
		title := template.HTML(docsTag().ReplaceAllString(found[2], ""))
		titles[found[1]] = title
		id := strings.TrimSuffix(found[1], "-title") // a section, rather than its heading
		c.Headings = append(c.Headings, docsAnchor{ID: id, Title: title})
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
			a.Title = template.HTML(html.EscapeString(id))
		}
		c.Anchors = append(c.Anchors, a)
	}
	return c
}

// A docsFrame is what the frame around each page of the documentation shows.
type docsFrame struct {
	*docsView
	Path     string
	Here     *docsSection // nil: the first page, or the one with everything
	Parts    []docsPart
	Body     template.HTML
	Script   template.JS
	Settings []string // lines that set what the page's other lines use
	Words    []string // in these lines, for the reader to replace
}

// A docsMaker makes the pages of a view.
type docsMaker struct {
	templates *template.Template
	view      *docsView
	values    map[string]string // those of apiDocument
	parts     []docsPart
	chapters  []*docsSection
	pageOf    map[string]string // the path of the page that has an id
}

// execute returns what a template makes of a value.
func (m *docsMaker) execute(name string, shown any) (string, error) {
	var out bytes.Buffer
	err := m.templates.ExecuteTemplate(&out, name, shown)
	return out.String(), err
}

// pages returns all pages below /docs, and /docs itself, by their paths.
func (m *docsMaker) pages() (map[string]string, error) {
	m.pageOf = map[string]string{}
	for _, part := range docsOutline {
		made := docsPart{Title: part.title}
		for _, name := range part.chapters {
			text, err := m.execute(name, m.view)
			if err != nil {
				return nil, err
			}
			made.Chapters = append(made.Chapters, newDocsSection(chapterPath(name), name, text))
		}
		if slices.Contains(part.chapters, "calls") {
			calls, err := m.callChapters()
			if err != nil {
				return nil, err
			}
			made.Chapters = slices.Insert(made.Chapters, 1, calls...)
		}
		m.parts, m.chapters = append(m.parts, made), append(m.chapters, made.Chapters...)
	}
	for _, c := range m.chapters {
		for _, id := range c.ids {
			m.pageOf[id] = c.Path
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
	all := start
	for _, c := range m.chapters {
		all += c.text
	}
	pages := map[string]string{}
	if pages["/docs"], err = m.frame("/docs", nil, start+index); err != nil {
		return nil, err
	}
	if pages[docsPrefix+"all"], err = m.frame(docsPrefix+"all", nil, all); err != nil {
		return nil, err
	}
	for _, c := range m.chapters {
		if pages[c.Path], err = m.frame(c.Path, c, c.text); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// callChapters returns a chapter for the calls of each tag.
func (m *docsMaker) callChapters() (all []*docsSection, err error) {
	for i := range m.view.Groups {
		text, err := m.execute("group", &m.view.Groups[i])
		if err != nil {
			return nil, err
		}
		all = append(all, newDocsSection(m.view.Groups[i].Page, "calls", text))
	}
	return all, nil
}

// frame puts the text of a page into the frame. Its links to what other pages have get the paths of these; those of
// the page with everything stay as they are.
func (m *docsMaker) frame(path string, here *docsSection, text string) (string, error) {
	if path != docsPrefix+"all" {
		text = docsLink().ReplaceAllStringFunc(text, func(link string) string {
			id := docsLink().FindStringSubmatch(link)[1]
			if page, known := m.pageOf[id]; known && page != path {
				return `href="` + page + `#` + id + `"`
			}
			return link
		})
	}
	f := &docsFrame{docsView: m.view, Path: path, Here: here, Parts: m.parts, Script: template.JS(docsScript())}
	for _, name := range []string{exampleToken, exampleAdmin, examplePortal} {
		if variable := tokenVariables[name]; strings.Contains(text, "Bearer $"+variable) ||
			strings.Contains(text, "=$"+variable) {
			f.Settings = append(f.Settings, variable+"="+shellQuote(m.values[name]))
		}
	}
	if !m.view.Demo {
		known := slices.Collect(maps.Values(placeholders))
		for _, found := range docsWord().FindAllStringSubmatch(docsSample().ReplaceAllString(text, ""), -1) {
			if word := found[1]; slices.Contains(known, word) && !slices.Contains(f.Words, word) {
				f.Words = append(f.Words, word)
			}
		}
		slices.Sort(f.Words)
	}
	if len(f.Settings)+len(f.Words) > 0 {
		set, err := m.execute("set", f)
		if err != nil {
			return "", err
		}
		text = set + text
	}
	f.Body = template.HTML(text)
	return m.execute("page", f)
}

// docsScript is the pages' own script, which copies, finds and marks; every page reads without it.
func docsScript() string { return string(stripScript([]byte(embedded("web/docs.js")))) }

// docsPolicy lets a page load its own style sheet and pictures and run the one script, and nothing else.
func docsPolicy() string {
	return pagePolicy + "; script-src '" + hashSource(docsScript()) + "'"
}

var changeLink = lazyPattern(`\[([^\]]*)\]\([^)]*\)`)

// shownChanges returns the sections of CHANGELOG.md as HTML. Links lead into the repository, which readers of /docs
// don't have, so their texts stay alone.
func shownChanges() template.HTML {
	var out strings.Builder
	_, text, _ := strings.Cut(changeLink().ReplaceAllString(embedded("CHANGELOG.md"), "$1"), "\n## ")
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
