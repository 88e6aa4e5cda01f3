package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"html"
	"html/template"
	"math"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// What /docs shows of the OpenAPI document, in the order of the document.

// A docsGroup is the calls of one tag.
type docsGroup struct {
	Anchor string
	Name   string
	Page   string // its path
	Text   template.HTML
	Calls  []*docsCall
}

// A docsCall is one operation.
type docsCall struct {
	Anchor        string
	Method, Path  string
	Summary       string
	Text          template.HTML
	Where         string // the address before its path; "": the base address
	Scopes        []string
	TokenOptional bool
	TokenRequired bool
	Idempotent    bool
	Parameters    []docsMember
	Body          []docsMember
	Curl          string
	Answers       []docsAnswer
	Shown         *docsAnswer // what the curl line prints
}

// A docsMember is a member of an object, or a parameter.
type docsMember struct {
	Name     string
	Required bool
	Type     template.HTML
	Text     template.HTML
}

// A docsAnswer is one status of a call.
type docsAnswer struct {
	Status  string
	Text    template.HTML
	Type    template.HTML // of the body; "": none, or a problem
	Codes   []string
	Example string
}

// A docsObject is a schema that calls refer to.
type docsObject struct {
	Anchor  string
	Name    string
	Text    template.HTML
	Members []docsMember
}

// An apiDocument is the OpenAPI document, as it is read to make /docs.
type apiDocument struct {
	all       jsonValue
	values    *docsValues     // in the curl lines
	fromSites map[string]bool // calls, as "POST /widget/leads", that a browser makes from a listed site
}

// newAPIDocument parses an OpenAPI document.
func newAPIDocument(text string) (*apiDocument, error) {
	all, err := parseDocument(text)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	return &apiDocument{all: all}, nil
}

// texts returns the strings of an array, without its other values.
func (v *jsonValue) texts() (all []string) {
	for _, e := range v.list {
		if e.kind == jsonString {
			all = append(all, e.text)
		}
	}
	return all
}

// localize puts the marks of a service's addresses in place of those that the document is written with.
func (d *apiDocument) localize(text string) string {
	return strings.NewReplacer(documentBase, "«base»", documentRoot, "«root»").Replace(text)
}

// textOf returns the description of a part of the document.
func (d *apiDocument) textOf(v *jsonValue) template.HTML {
	return prose(d.localize(v.at("description").text))
}

// follow returns what a $ref refers to, and its name; any other value is returned as it is.
func (d *apiDocument) follow(v *jsonValue) (target *jsonValue, name string) {
	for range 8 { // bounded, so that a document with circular references can't hang the service
		ref, ok := v.member("$ref")
		if !ok {
			break
		}
		steps := strings.Split(strings.TrimPrefix(ref.text, "#/"), "/")
		v, name = d.all.at(steps...), steps[len(steps)-1]
	}
	return v, name
}

// groups returns the calls by tag, in the order of the document.
func (d *apiDocument) groups() (all []docsGroup) {
	for i := range d.all.at("tags").list {
		tag := &d.all.at("tags").list[i]
		name := tag.at("name").text
		group := docsGroup{Anchor: "tag-" + name, Name: name, Page: docsPrefix + "calls-" + name,
			Text: prose(tag.at("description").text)}
		for _, path := range d.all.at("paths").members {
			for _, m := range path.value.members {
				if slices.Contains(m.value.at("tags").texts(), name) {
					group.Calls = append(group.Calls, d.call(path.name, &path.value, m.name, &m.value))
				}
			}
		}
		all = append(all, group)
	}
	return all
}

// posted returns what the service posts to webhooks, from the document's member webhooks, and an
// example of the body.
func (d *apiDocument) posted() (call *docsCall, example string) {
	item := d.all.at("webhooks", "event")
	op := item.at("post")
	if examples := op.at("requestBody", "content", "application/json", "examples").members; len(examples) > 0 {
		first, _ := d.follow(&examples[0].value)
		example = layOutJSON(first.at("value"), "", jsonWidth)
	}
	return d.call("", item, "post", op), example
}

// call reads one operation.
func (d *apiDocument) call(path string, item *jsonValue, method string, op *jsonValue) *docsCall {
	c := &docsCall{Anchor: "call-" + op.at("operationId").text, Method: strings.ToUpper(method), Path: path,
		Summary: op.at("summary").text, Text: d.textOf(op), Scopes: op.at("x-required-scopes").texts()}
	if servers := item.at("servers").list; len(servers) > 0 {
		c.Where = d.localize(servers[0].at("url").text)
	}
	security := op.at("security").list
	for i := range security {
		c.TokenOptional = c.TokenOptional || len(security[i].members) == 0
	}
	c.TokenRequired = len(security) > 0 && !c.TokenOptional
	var parameters []*jsonValue
	for _, list := range [][]jsonValue{item.at("parameters").list, op.at("parameters").list} {
		for i := range list {
			p, _ := d.follow(&list[i])
			parameters = append(parameters, p)
			if p.at("name").text == "Idempotency-Key" {
				c.Idempotent = true // it has a chapter of its own
				continue
			}
			where := p.at("in").text
			if where == "query" {
				where = "in the query"
			}
			kind := template.HTML(html.EscapeString(where)+", ") + d.typeOf(p.at("schema"))
			c.Parameters = append(c.Parameters,
				docsMember{p.at("name").text, p.at("required").boolean, kind, d.textOf(p)})
		}
	}
	schema, _ := d.follow(bodyOf(op).at("schema"))
	c.Body = d.membersOf(schema, true)
	for _, m := range op.at("responses").members {
		c.Answers = append(c.Answers, d.answer(m.name, &m.value))
	}
	if at := slices.IndexFunc(c.Answers, func(a docsAnswer) bool { return a.Status[0] == '2' }); at >= 0 {
		shown := c.Answers[at]
		c.Shown, c.Answers[at].Example = &shown, ""
	}
	if op.at("x-called-by").text == "" { // only the provider can sign what it posts
		c.Curl = d.curl(c, op, parameters)
	}
	return c
}

// bodyOf returns what an operation says of the body of its requests: JSON, or else a form.
func bodyOf(op *jsonValue) *jsonValue {
	content := op.at("requestBody", "content")
	if form, ok := content.member(formMediaType); ok {
		return form
	}
	return content.at("application/json")
}

// answer reads one response of an operation.
func (d *apiDocument) answer(status string, response *jsonValue) docsAnswer {
	response, _ = d.follow(response)
	if codes := response.at("x-problem-codes").texts(); len(codes) > 0 { // the table of problems says what they mean
		return docsAnswer{Status: status, Codes: codes}
	}
	out, content := docsAnswer{Status: status, Text: d.textOf(response)}, response.at("content").members
	if len(content) == 0 {
		return out
	}
	out.Type = d.typeOf(content[0].value.at("schema"))
	if examples := content[0].value.at("examples").members; len(examples) > 0 {
		example, _ := d.follow(&examples[0].value)
		out.Example = d.localize(layOutJSON(example.at("value"), "", jsonWidth))
	}
	return out
}

// objects returns the schemas that answers and other schemas refer to, in the order of the document.
// Bodies of requests are left out, since they are shown with their calls.
func (d *apiDocument) objects() (all []docsObject) {
	bodies := map[string]bool{}
	for _, path := range d.all.at("paths").members {
		for _, m := range path.value.members {
			_, name := d.follow(bodyOf(&m.value).at("schema"))
			bodies[name] = true
		}
	}
	for _, m := range d.all.at("components", "schemas").members {
		if members := d.membersOf(&m.value, false); len(members) > 0 && !bodies[m.name] {
			all = append(all, docsObject{"object-" + m.name, m.name, d.textOf(&m.value), members})
		}
	}
	return all
}

// membersOf returns the members of an object, those of objects within it as "device.name" unless these have a name of
// their own, and those of all parts of an allOf; with named those of all objects within it: what a request can have is
// shown with its call.
func (d *apiDocument) membersOf(schema *jsonValue, named bool) (all []docsMember) {
	for i := range schema.at("allOf").list {
		part, _ := d.follow(&schema.at("allOf").list[i])
		all = append(all, d.membersOf(part, named)...)
	}
	required := schema.at("required").texts()
	for _, m := range schema.at("properties").members {
		target, _ := d.follow(&m.value)
		all = append(all, docsMember{m.name, slices.Contains(required, m.name), d.typeOf(&m.value), d.textOf(target)})
		inner := &m.value
		if items := m.value.at("items"); items.kind == jsonObject {
			inner = items
		}
		if named {
			inner, _ = d.follow(inner)
		}
		for _, deeper := range d.membersOf(inner, named) {
			deeper.Name = m.name + "." + deeper.Name
			all = append(all, deeper)
		}
	}
	return all
}

// typeOf says in words what a schema allows: "text, at most 254 characters".
func (d *apiDocument) typeOf(schema *jsonValue) template.HTML {
	target, name := d.follow(schema)
	if name != "" && len(d.membersOf(target, false)) > 0 {
		return template.HTML(`<a href="#object-` + html.EscapeString(name) + `">` + html.EscapeString(name) + `</a>`)
	}
	for _, choice := range []string{"oneOf", "anyOf"} {
		var parts []string
		for i := range target.at(choice).list {
			part := &target.at(choice).list[i]
			if _, constrains := part.member("required"); constrains && part.at("type").kind == jsonNull {
				continue // it only says which members go together, as the description does
			}
			parts = append(parts, string(d.typeOf(part)))
		}
		if len(parts) > 0 {
			return template.HTML(strings.Join(parts, " or "))
		}
	}
	kinds := target.at("type").texts()
	if one := target.at("type"); one.kind == jsonString {
		kinds = []string{one.text}
	}
	null := slices.Contains(kinds, "null")
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return k == "null" })
	text := template.HTML("any value")
	if len(kinds) > 0 {
		text = d.kindOf(kinds[0], target)
	}
	if null {
		text += ", or null"
	}
	return text
}

// shownValues is how many values an enum has at most to be listed here; chapters list longer ones.
const shownValues = 20

// kindOf says in words what a schema with one type allows.
func (d *apiDocument) kindOf(kind string, schema *jsonValue) template.HTML {
	text := map[string]string{"string": "text", "integer": "whole number", "number": "number",
		"boolean": "true or false", "object": "object", "array": "list"}[kind]
	switch schema.at("format").text {
	case "date-time":
		text = "time"
	case "date":
		text = "date, as 2027-01-31"
	case "uri":
		text = "address"
	}
	out := template.HTML(html.EscapeString(text))
	if kind == "array" {
		out += " of " + d.typeOf(schema.at("items"))
	}
	if values := schema.at("enum").texts(); len(values) > 0 && len(values) <= shownValues {
		var words []string
		for _, value := range values {
			words = append(words, "<code>"+html.EscapeString(value)+"</code>")
		}
		out = template.HTML(strings.Join(words, ", "))
	}
	for _, limit := range []struct{ name, before, after string }{
		{"minLength", "at least ", " characters"}, {"maxLength", "at most ", " characters"},
		{"minimum", "from ", ""}, {"maximum", "to ", ""},
		{"minItems", "at least ", " of them"}, {"maxItems", "at most ", " of them"},
		{"maxProperties", "at most ", " members"},
	} {
		if n := schema.at(limit.name); n.kind == jsonNumber && !(limit.name == "minLength" && n.text == "1") {
			separator := ", "
			if limit.name == "maximum" && schema.at("minimum").kind == jsonNumber {
				separator = " "
			}
			digits := n.text
			if len(digits) > 4 {
				digits = groupDigits(digits, ",")
			}
			out += template.HTML(separator + limit.before + html.EscapeString(digits) + limit.after)
		}
	}
	return out
}

// curl returns a shell command that makes a call with the first example of the document.
func (d *apiDocument) curl(c *docsCall, op *jsonValue, parameters []*jsonValue) string {
	address, query := c.Where, []string{}
	if address == "" {
		address = "«base»"
	}
	address += c.Path
	var options []string
	for _, p := range parameters {
		name, value := p.at("name").text, p.at("example").text
		switch p.at("in").text {
		case "path":
			address = strings.ReplaceAll(address, "{"+name+"}", d.exampleOf(c.Path, name, value))
		case "query":
			if slices.Contains([]string{"widget", "interval", "timezone"}, name) {
				query = append(query, name+"="+d.exampleOf(c.Path, name, value))
			}
			if name == "limit" {
				query = append(query, "limit=2")
			}
		}
	}
	if d.fromSites[c.Method+" "+c.Path] {
		options = append(options, "-H "+quoteMarked("Origin: "+d.values.mark("Origin", "Origin")))
	}
	if c.TokenRequired {
		variable := "TOKEN"
		switch {
		case slices.Contains(c.Scopes, scopeAdmin):
			variable = "ADMIN_TOKEN"
		case slices.Contains(c.Scopes, scopeConsent):
			variable = "PORTAL_TOKEN"
		}
		options = append(options, `-H "Authorization: Bearer $`+variable+`"`)
	}
	body := d.bodyExample(c.Path, op)
	switch _, form := op.at("requestBody", "content").member(formMediaType); {
	case form:
		for _, m := range body.members {
			options = append(options, "--data-urlencode "+quoteMarked(m.name+"="+m.value.text))
		}
	case body.kind == jsonObject:
		text := quoteMarked(layOutJSON(body, "  ", jsonWidth))
		options = append(options, "-H 'Content-Type: application/json'", "-d "+text)
	case c.Method != "GET":
		options = append(options, "-X "+c.Method)
	}
	if len(query) > 0 {
		address += "?" + strings.Join(query, "&")
	}
	command := "curl -s "
	if c.Method == "PATCH" || c.Method == "PUT" {
		command += "-X " + c.Method + " "
	}
	if _, empty := op.at("responses").member("204"); empty {
		command += "-i " // otherwise it would print nothing
	}
	return strings.Join(append([]string{command + quoteMarked(address)}, options...), " \\\n  ")
}

// exampleOf returns the mark of the value of a parameter or a member in a curl line. documented is the document's own.
func (d *apiDocument) exampleOf(path, name, documented string) string {
	if name == "id" {
		resource, _, _ := strings.Cut(path, "{id}")
		return d.values.mark(documented, path, resource+"{id}")
	}
	return d.values.mark(documented, path+" "+name, name)
}

// docsExamples name the examples of bodies that curl lines send where it is not the document's first.
var docsExamples = map[string]string{"/oauth/token": "own", "/oauth/revoke": "own",
	"/books/connections": productFortnox, "/books/connections/{id}/mapping": productFortnox}

// bodyExample returns the example of a call's body that its curl line sends, with the marks of exampleOf in it; null:
// the document has none.
func (d *apiDocument) bodyExample(path string, op *jsonValue) *jsonValue {
	examples := bodyOf(op).at("examples").members
	if len(examples) == 0 {
		return &jsonValue{}
	}
	chosen, _ := d.follow(&examples[0].value)
	if name := docsExamples[path]; name != "" {
		chosen, _ = d.follow(bodyOf(op).at("examples", name))
	}
	return d.withExamples(path, chosen.at("value"))
}

// withExamples returns an example of the document with the values of exampleOf in it.
func (d *apiDocument) withExamples(path string, v *jsonValue) *jsonValue {
	out := *v
	out.members = slices.Clone(v.members)
	for i := range out.members {
		m := &out.members[i]
		if m.value.kind == jsonString {
			m.value.text = d.exampleOf(path, m.name, m.value.text)
		}
	}
	return &out
}

// quoteMarked is shellWord for a text with marks: what stands in their place is plain.
func quoteMarked(text string) string {
	if plain := docsMark().ReplaceAllString(text, "x"); shellWord(plain) == plain {
		return text
	}
	return shellWord(text)
}

const jsonWidth = 76 // of a line of JSON

// layOutJSON writes a value for people: on one line if it has at most width characters, else with each
// member on a line of its own. Lines after the first are indented by indent.
func layOutJSON(v *jsonValue, indent string, width int) string {
	switch v.kind {
	case jsonString:
		return quoteJSON(v.text)
	case jsonNumber:
		return v.text
	case jsonBool:
		return fmt.Sprint(v.boolean)
	case jsonNull:
		return "null"
	}
	deeper, begin, between, end := indent+"  ", "", ", ", ""
	if width < math.MaxInt && len(indent)+len(layOutJSON(v, "", math.MaxInt)) > width {
		begin, between, end = "\n"+deeper, ",\n"+deeper, "\n"+indent
	}
	var parts []string
	for i := range v.list {
		parts = append(parts, layOutJSON(&v.list[i], deeper, width))
	}
	for i := range v.members {
		parts = append(parts, quoteJSON(v.members[i].name)+": "+layOutJSON(&v.members[i].value, deeper, width))
	}
	text := begin + strings.Join(parts, between) + end
	if v.kind == jsonObject {
		return "{" + text + "}"
	}
	return "[" + text + "]"
}

var (
	proseCode = lazyPattern("`([^`]+)`")
	proseBold = lazyPattern(`\*\*([^*]+)\*\*`)
)

// prose turns the CommonMark that the document uses into HTML: paragraphs, `code` and **strong**.
func prose(text string) template.HTML {
	var out strings.Builder
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for _, p := range paragraphs {
		p = proseCode().ReplaceAllString(html.EscapeString(p), "<code>$1</code>")
		p = proseBold().ReplaceAllString(p, "<b>$1</b>")
		if len(paragraphs) > 1 {
			p = "<p>" + p + "</p>"
		}
		out.WriteString(p)
	}
	return template.HTML(out.String())
}

func TestDocs_sendTheTwinToWhoNamesIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tags := map[string]string{}
	for accept, want := range map[string]string{
		"":                                       "text/html",
		"*/*":                                    "text/html",
		"text/*":                                 "text/html",
		"text/html":                              "text/html",
		"text/html, text/markdown;q=0.9":         "text/html",
		"text/markdown;q=0":                      "text/html",
		"text/markdown;q=high, text/html;q=0.1":  "text/html",
		"text/markdown":                          "text/markdown",
		"text/markdown, text/html":               "text/markdown",
		"text/markdown;q=0.5, text/html;q=0.5":   "text/markdown",
		"Text/Markdown, */*;q=0.1":               "text/markdown",
		"text/markdown;charset=utf-8;q=0.4":      "text/markdown",
		"text/html;q=0.2, text/markdown; q=0.3 ": "text/markdown",
	} {
		for _, path := range []string{"//docs", "//docs/limits"} {
			a := s.get(path, "Accept: "+accept).is(200).has("Content-Type: " + want + "; charset=utf-8")
			if !slices.Contains(a.header["Vary"], "Accept") {
				t.Errorf("%s varies by %v", path, a.header["Vary"])
			}
			if known := tags[path+want]; known != "" && known != a.header.Get("ETag") {
				t.Errorf("%s as %s has two tags", path, want)
			}
			tags[path+want] = a.header.Get("ETag")
			s.get(path, "Accept: "+accept, "If-None-Match: "+a.header.Get("ETag")).is(304)
		}
	}
	if tags["//docstext/html"] == tags["//docstext/markdown"] {
		t.Error("a page and its twin have one tag")
	}
	s.get("//docs/limits.md", "Accept: text/html").is(200).has("Content-Type: text/markdown; charset=utf-8",
		`Link: <http://127.0.0.1:8080/docs/limits>; rel="canonical"`)
	s.get("//docs/objects-2.md").is(200).has(`Link: <http://127.0.0.1:8080/docs/objects>; rel="canonical"`)
	s.get("//docs/limits.md", "Host: elsewhere.example").is(200)
	for _, path := range []string{"//docs/nothing.md", "//docs/all.md", "//docs/limits-2.md", "//docs/find.md"} {
		s.get(path).is(404, "not_found")
	}
}

func TestDocs_guideForProgramsNamesEveryTwin(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	guide := s.get("//llms.txt").is(200).has("Content-Type: text/plain; charset=utf-8").body
	equal(t, "the guide below the base address", s.get("/llms.txt").is(200).body, guide)
	if n := len(captures(`(?m)^(# )`, guide)); n != 1 || len(captures(`(?m)^(> )`, guide)) != 1 || len(guide) > 12_000 {
		t.Errorf("it has %d titles, or no one sentence, or %d bytes", n, len(guide))
	}
	named := captures(`(?m)^- \[[^\]]+\]\(http://127\.0\.0\.1:8080(/docs[^)]*\.md)\): \S`, guide)
	for path, page := range docsPages(t) {
		if path != "/" && path != "/docs/all" {
			failIf(t, !slices.Contains(named, path+".md"), "it does not name %s", path)
			contains(t, page.body, `<a href="`+path+`.md">this page as Markdown</a>`)
		}
	}
	links := map[string]bool{}
	for _, path := range named {
		text := s.get("/" + path).is(200).has("Content-Type: text/markdown; charset=utf-8").body
		prose := regexp.MustCompile("(?s)```\n.*?\n```").ReplaceAllString(text, "")
		if !strings.HasPrefix(text, "# ") || strings.Contains(text, "«") || strings.Contains(prose, "\n<") ||
			utf8.RuneCountInString(text) >= 50_000 {
			t.Errorf("%s is no Markdown, has marks, or more than readers take:\n%.300s", path, text)
		}
		for _, link := range captures(`\]\(http://127\.0\.0\.1:8080(/[^)#]*)`, text) {
			links[link] = true
		}
	}
	for link := range links {
		s.get("/" + link).is(200)
	}
}

// TestDocs_findWhatIsAsked types questions into the box of a page, whatever is in its address, as a reader does.
func TestDocs_findWhatIsAsked(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	root := strings.TrimSuffix(printed(t, sharedDemo(t), "The service behind it"), "/v1")
	b := startBrowser(t)
	b.open(root + "/docs/limits#100%")
	for question, want := range map[string]string{
		"what do I do about seat_limit_reached": "/docs/problems#seat_limit_reached",
		"how do I verify a webhook in Python":   "/docs/webhooks#webhooks-verify",
		"pagination":                            "/docs/bodies#bodies",
		"api key":                               "/docs/tokens#tokens",
		"test card":                             "/docs/orders#payments-walk",
		"refund part of an order":               "/docs/calls-orders#call-refundOrder",
		"xero":                                  "/docs/bookkeeping#bookkeeping-xero",
		"typescript client":                     "/docs/clients#clients",

		// With / and Enter these are few keys, so they must be the first place.
		"^seat":            "/docs/licences#licences", // guides come before codes
		"^veri":            "/docs/webhooks#webhooks-verify",
		"^menu that takes": "/docs/ordering",
		"^Lizenz":          "/docs/licences",
		"^rate_limited":    "/docs/problems",
	} {
		typed, first := strings.CutPrefix(question, "^")
		places := b.placesFound(typed)
		if first {
			places = places[:1]
		}
		if !slices.ContainsFunc(places, func(place string) bool { return strings.HasPrefix(place, want) }) {
			t.Errorf("%q leads to %s, want %s among them", question, places, want)
		}
	}
	equal(t, "all places, each in a line", b.await(`const [done] = arguments, found = document.querySelector("#found");
		document.querySelector("#find").value = "order";
		document.querySelector("#find").dispatchEvent(new Event("input"));
		const look = () => found.children.length > 100 && found.className == "all" ? done(true) : setTimeout(look, 20);
		const ask = () => {
			if (!/^Show all/.test(found.lastChild.textContent)) return setTimeout(ask, 20);
			found.lastChild.click();
			look();
		};
		ask();`), any(true))
	at := b.await(`const [done] = arguments, input = document.querySelector("#find");
		for (const key of ["ArrowDown", "ArrowUp", "Enter"])
			input.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
		setTimeout(() => done(location.pathname != "/docs/limits" || document.querySelector("#found").hidden), 500);`)
	equal(t, "Enter goes there", at, any(true))
}

// placesFound types a question into the box and returns the first places that it leads to.
func (b *browser) placesFound(question string) []string {
	b.t.Helper()
	return strings.Fields(b.await(`const [question, done] = arguments, input = document.querySelector("#find");
		document.querySelector("#found").replaceChildren(); // of the question before
		input.blur();
		dispatchEvent(new KeyboardEvent("keydown", { key: "/" }));
		if (document.activeElement != input) return done("/ does not lead to the box");
		input.value = question;
		input.dispatchEvent(new Event("input"));
		const look = () => {
			const all = [...document.querySelectorAll("#found a")];
			all.length ? done(all.slice(0, 4).map(a => a.pathname + a.hash).join(" ")) : setTimeout(look, 20);
		};
		look();`, question).(string))
}

// A goSource is what the comments of the program say: the prose of the OpenAPI document.
type goSource struct {
	lines    map[string][]string          // of each file
	beside   map[string]map[int]string    // by file and line: the comment behind code
	above    map[string]map[int]string    // by file and line of code: the comment that stands above it, alone
	funcs    map[string]string            // by name, of methods as by receiver: "server.createPlan"
	types    map[string]string            // by name, see readType
	unnamed  map[string]bool              // types whose comments do not begin with their names
	fields   map[string]map[string]string // by type and name in JSON
	members  map[string]map[string]string // by type and name: beside the member in the type's list, or above it
	embedded map[string][]string          // types that a struct embeds
}

// goComments reads the program.
var goComments = sync.OnceValue(func() *goSource {
	src := &goSource{lines: map[string][]string{}, beside: map[string]map[int]string{},
		above: map[string]map[int]string{}, funcs: map[string]string{}, types: map[string]string{},
		fields: map[string]map[string]string{}, members: map[string]map[string]string{},
		unnamed: map[string]bool{}, embedded: map[string][]string{}}
	program, err := parseSource()
	if err != nil {
		panic(err)
	}
	for _, f := range program.files {
		src.read(program.fset, f)
	}
	return src
})

// read adds the comments of a file.
func (src *goSource) read(set *token.FileSet, of sourceFile) {
	name, f := of.name, of.tree
	lines, beside, above := strings.Split(of.text, "\n"), map[int]string{}, map[int]string{}
	src.lines[name], src.beside[name], src.above[name] = lines, beside, above
	for _, c := range f.Comments {
		from, to := set.Position(c.Pos()), set.Position(c.End())
		if strings.TrimSpace(lines[from.Line-1][:from.Column-1]) == "" {
			above[to.Line+1] = plainText(c.Text())
		} else {
			beside[from.Line] = plainText(c.Text())
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			receiver := receiverOf(d)
			src.funcs[strings.TrimPrefix(receiver+"."+d.Name.Name, ".")] = d.Doc.Text()
			if d.Name.Name == "members" && receiver != "" {
				src.readMembers(set, receiver, d, beside, above)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if of, ok := spec.(*ast.TypeSpec); ok {
					src.readType(of, d.Doc.Text())
				}
			}
		}
	}
}

// plainText returns a comment as one line for each of its paragraphs.
func plainText(comment string) string {
	paragraphs := strings.Split(strings.TrimSpace(comment), "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.Join(strings.Fields(p), " ")
	}
	return strings.Join(paragraphs, "\n\n")
}

// receiverOf returns the name of a method's receiver; "": it is a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

// readMembers notes what is said of the members in a type's list of them.
func (src *goSource) readMembers(
	set *token.FileSet, of string, list *ast.FuncDecl, beside, above map[int]string,
) {
	src.members[of] = map[string]string{}
	ast.Inspect(list, func(n ast.Node) bool {
		pair, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		key, _ := pair.Key.(*ast.Ident)
		name, _ := pair.Value.(*ast.BasicLit)
		if key != nil && key.Name == "name" && name != nil {
			line := set.Position(name.Pos()).Line
			src.members[of][strings.Trim(name.Value, `"`)] = cmp.Or(beside[line], above[line])
		}
		return true
	})
}

// readType notes what is said of a type and of its fields. The comment of a type begins with its name, "A planChange
// is what to change", of which those who call read "What to change".
func (src *goSource) readType(of *ast.TypeSpec, doc string) {
	name := of.Name.Name
	if doc == "" {
		doc = of.Doc.Text()
	}
	src.types[name] = plainText(doc)
	if named := regexp.MustCompile(`^(An?|The) ` + name + ` (is|are) `).FindString(src.types[name]); named != "" {
		src.types[name] = capitalized(src.types[name][len(named):])
	} else {
		src.unnamed[name] = true
	}
	fields, ok := of.Type.(*ast.StructType)
	if !ok {
		return
	}
	src.fields[name] = map[string]string{}
	for _, field := range fields.Fields.List {
		if len(field.Names) == 0 {
			embedded := field.Type
			if star, ok := embedded.(*ast.StarExpr); ok {
				embedded = star.X
			}
			if id, ok := embedded.(*ast.Ident); ok {
				src.embedded[name] = append(src.embedded[name], id.Name)
			}
			continue
		}
		if field.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json")
		says := plainText(field.Comment.Text())
		if says == "" {
			says = plainText(field.Doc.Text())
		}
		src.fields[name][strings.Split(tag, ",")[0]] = says
	}
}

// field returns what is said of a member of a type's JSON.
func (src *goSource) field(of, name string) string { return src.lookUp(src.fields, of, name) }

// lookUp looks up what is said of a name in a type and those that it embeds.
func (src *goSource) lookUp(in map[string]map[string]string, of, name string) string {
	if says := in[of][name]; says != "" {
		return says
	}
	for _, e := range src.embedded[of] {
		if says := src.lookUp(in, e, name); says != "" {
			return says
		}
	}
	return ""
}

var listOfRow = regexp.MustCompile(`new\((\w+)\)\.members\(\)`)

// reading returns what is said of a member or a parameter that is read at a place of the program: behind its reading,
// above it or, if it is one of a row's, in its list or at its field.
func (src *goSource) reading(file string, line int, name string, ofRow bool) string {
	file = filepath.Base(file)
	if ofRow {
		for _, found := range listOfRow.FindAllStringSubmatch(src.lines[file][line-1], -1) {
			says := src.lookUp(src.members, found[1], name)
			if says == "" {
				says = src.field(found[1], name)
			}
			if says != "" {
				return says
			}
		}
		return ""
	}
	if says := src.beside[file][line]; says != "" {
		return says
	}
	return src.above[file][line]
}
