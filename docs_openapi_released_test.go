package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What callers of v1 may rely on is testdata/openapi-released.json: the document of the commit that released this
// version. To renew it at a release, when TestReleased passes: cp web/openapi.json testdata/openapi-released.json, and
// write the version here. Renewing it while that test fails breaks clients: needs a /v2. Where the released program
// refused what its document did not say, that document is corrected, in a commit that shows what it refused.
const keptVersion = "1.2.0"

// widerInteger is a format that says no more than the type integer does: a client that has it reads what it read
// before. (A named schema in place of the same one inline takes nothing away either: references are followed.)
const widerInteger = "int64"

// A promise compares a released document with a newer one. faults are what callers of the released
// one can't rely on any more.
type promise struct {
	released, now node
	compared      map[string]bool // pairs of schemas, since they may be recursive
	faults        []string
}

// brokenPromises returns what a newer document takes away from the callers of a released one.
func brokenPromises(released, now node) []string {
	p := &promise{released: released, now: now, compared: map[string]bool{}}
	newer := map[string]*operation{}
	for _, o := range operationsOf(now) {
		newer[o.place()] = o
	}
	for _, o := range operationsOf(released) {
		if newer[o.place()] == nil {
			p.fault(o.name(), "is gone")
			continue
		}
		p.compareOperation(o, newer[o.place()])
	}
	return p.faults
}

// placeholder is a parameter in a path.
var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// place is the method and the path, in which parameters have no names: clients put values into their places.
func (o *operation) place() string {
	at := o.method + " " + placeholder.ReplaceAllString(o.path, "{}")
	if o.atRoot {
		return at + " at the root"
	}
	return at
}

// placeOf is where a client puts the value of a parameter: in a path by its position, elsewhere by its name.
func (o *operation) placeOf(parameter node) string {
	name, in := parameter["name"].(string), parameter["in"].(string)
	if in == "path" {
		name = fmt.Sprint(slices.Index(captures(placeholder.String(), o.path), name))
	}
	return in + " " + name
}

// parameterAt returns the parameter at a place; nil: there is none.
func (o *operation) parameterAt(place string) node {
	i := slices.IndexFunc(o.params, func(p node) bool { return o.placeOf(p) == place })
	if i < 0 {
		return nil
	}
	return o.params[i]
}

func (p *promise) fault(at, format string, args ...any) {
	p.faults = append(p.faults, at+" "+fmt.Sprintf(format, args...))
}

func (p *promise) compareOperation(old, new *operation) {
	at := old.name()
	if old.id() != new.id() {
		p.fault(at, "has the operationId %s, which was %s", new.id(), old.id())
	}
	withoutToken := func(of any) bool { return len(of.(node)) == 0 }
	for _, scope := range texts(new.node, "x-required-scopes") {
		if security, _ := new.node["security"].([]any); slices.ContainsFunc(security, withoutToken) {
			continue // only a call with a token needs it
		}
		had := texts(old.node, "x-required-scopes")
		if !slices.Contains(had, scope) && !slices.Contains(had, scopeAdmin) { // which includes every other
			p.fault(at, "needs the scope %s", scope)
		}
	}
	if limit, ok := new.node["x-max-body"].(float64); ok && limit < valueOf(old.node["x-max-body"]) {
		p.fault(at, "takes a body of at most %v bytes", limit)
	}
	for _, was := range old.params {
		is := new.parameterAt(old.placeOf(was))
		if is == nil {
			p.fault(at, "has no parameter %s any more", was["name"])
			continue
		}
		p.compareSchemas(fmt.Sprint(at, " ?", was["name"]), was["schema"], is["schema"], true)
	}
	for _, is := range new.params {
		if was := old.parameterAt(new.placeOf(is)); is["required"] == true && (was == nil ||
			was["required"] != true) {
			p.fault(at, "needs the parameter %s", is["name"])
		}
	}
	p.compareBodies(at, old, new)
}

func valueOf(v any) float64 { n, _ := v.(float64); return n }

func (p *promise) in(doc node, n any) node {
	object, _ := n.(node)
	return resolveIn(doc, object)
}

// get goes down by names, through references of the document.
func get(doc, n node, names ...string) node {
	for _, name := range names {
		next, _ := n[name].(node)
		n = resolveIn(doc, next)
	}
	return n
}

// compareBodies compares the bodies of requests and answers.
func (p *promise) compareBodies(at string, old, new *operation) {
	was, is := get(p.released, old.node, "requestBody"), get(p.now, new.node, "requestBody")
	if is["required"] == true && was["required"] != true {
		p.fault(at, "needs a body")
	}
	for kind := range get(p.released, was, "content") {
		media := get(p.now, is, "content", kind)
		if media == nil {
			p.fault(at, "takes no %s any more", kind)
			continue
		}
		p.compareSchemas(at+" #", get(p.released, was, "content", kind)["schema"], media["schema"], true)
	}
	for _, status := range slices.Sorted(maps.Keys(get(p.released, old.node, "responses"))) {
		kept := slices.DeleteFunc(slices.Sorted(maps.Keys(get(p.now, new.node, "responses"))), func(is string) bool {
			return is != status && (status != "2XX" || !strings.HasPrefix(is, "2") || is == "204") // without content
		})
		if len(kept) == 0 {
			p.fault(at, "has no status %s any more", status)
		}
		for _, is := range kept {
			p.compareResponse(at+" "+is, get(p.released, old.node, "responses", status),
				get(p.now, new.node, "responses", is))
		}
	}
}

// compareResponse compares the answers with a status.
func (p *promise) compareResponse(at string, was, is node) {
	for name := range headersOf(p.released, was) {
		if headersOf(p.now, is)[name] == nil {
			p.fault(at, "has no header %s any more", name)
		}
	}
	for kind := range get(p.released, was, "content") {
		media := get(p.now, is, "content", kind)
		if media == nil {
			p.fault(at, "is no %s any more", kind)
			continue
		}
		p.compareSchemas(at+" #", get(p.released, was, "content", kind)["schema"], media["schema"], false)
	}
}

// compareSchemas faults a schema of a request that refuses what the released one took, and one of an answer that lacks
// what the released one promised: every value, every member, every word.
func (p *promise) compareSchemas(at string, was, is any, asked bool) {
	old, new := p.in(p.released, was), p.in(p.now, is)
	key := fmt.Sprintf("%p %p %v", old, new, asked)
	if old == nil || new == nil || p.compared[key] {
		return
	}
	p.compared[key] = true
	from, to := old, new // who sends a value, and who must take it
	says := []string{"takes no %s any more", "needs the member %s"}
	if !asked {
		from, to, says = new, old, []string{"may be %s", "may lack the member %s"}
	}
	for _, kind := range typesOf(from) {
		if typesOf(to) != nil && !slices.Contains(typesOf(to), kind) {
			p.fault(at, says[0], kind)
		}
	}
	for _, name := range texts(to, "required") {
		if !slices.Contains(texts(from, "required"), name) {
			p.fault(at, says[1], name)
		}
	}
	for _, word := range texts(old, "enum") {
		if (!asked || new["enum"] != nil) && !slices.Contains(texts(new, "enum"), word) {
			p.fault(at, "has not the word %q any more", word)
		}
	}
	if to["format"] != nil && from["format"] != to["format"] && to["format"] != widerInteger {
		p.fault(at, "has the format %v, which was %v", new["format"], old["format"])
	}
	if asked {
		p.compareBounds(at, old, new)
	}
	p.compareParts(at, old, new, asked)
}

// compareBounds faults a schema of a request that is narrower than it was.
func (p *promise) compareBounds(at string, was, is node) {
	if is["enum"] != nil && was["enum"] == nil {
		p.fault(at, "takes listed words only")
	}
	for _, keyword := range []string{"maxLength", "maximum", "maxItems", "maxProperties",
		"minLength", "minimum", "minItems", "minProperties"} {
		before, had := was[keyword].(float64)
		n, has := is[keyword].(float64)
		if lower := keyword[:3] == "min"; has && (!had || lower && n > before || !lower && n < before) {
			p.fault(at, "has the %s %v, which was %v", keyword, n, was[keyword])
		}
	}
	if is["pattern"] != nil && is["pattern"] != was["pattern"] {
		p.fault(at, "has the pattern %v, which was %v", is["pattern"], was["pattern"])
	}
	if is["additionalProperties"] == false && was["additionalProperties"] != false {
		p.fault(at, "takes no other members any more")
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf", "not", "const"} { // no released request has any
		if is[keyword] != nil {
			p.fault(at, "has %s, which is not compared in requests", keyword)
		}
	}
}

// compareParts compares the members of two schemas, the elements of lists, and what one is all or some of.
func (p *promise) compareParts(at string, was, is node, asked bool) {
	before, after := get(p.released, was, "properties"), get(p.now, is, "properties")
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == nil {
			p.fault(at, "has no member %s any more", name)
			continue
		}
		p.compareSchemas(at+"/"+name, before[name], after[name], asked)
	}
	for _, keyword := range []string{"items", "additionalProperties", "propertyNames"} {
		p.compareSchemas(at+"/("+keyword+")", was[keyword], is[keyword], asked)
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		before, _ := was[keyword].([]any)
		after, _ := is[keyword].([]any)
		if len(after) < len(before) {
			p.fault(at, "has %d of %s, which were %d", len(after), keyword, len(before))
		}
		for i := range min(len(before), len(after)) {
			p.compareSchemas(fmt.Sprintf("%s(%s %d)", at, keyword, i), before[i], after[i], asked)
		}
	}
}

func TestReleased_nothingThatCallersRelyOnIsGone(t *testing.T) {
	t.Parallel()
	var released node
	must(t, json.Unmarshal([]byte(fileText(t, "testdata/openapi-released.json")), &released))
	last := captures(`(?m)^## (\d+\.\d+\.\d+), \d`, fileText(t, "CHANGELOG.md"))[0] // with its day
	equal(t, "the version that is kept, beside the last that CHANGELOG.md has the day of", keptVersion, last)
	if n := len(operationsOf(released)); n < 82 { // of 1.1.0
		t.Fatalf("the released document has %d operations only", n)
	}
	for _, fault := range brokenPromises(released, openapiDocument()) {
		t.Error(fault)
	}
}

// movedFrom is the path of what is moved elsewhere in a document.
type movedFrom string

// set sets what stands at the path of a document, such as "components schemas License required"; nil takes it away.
func set(doc node, path string, value any) {
	names := strings.Fields(path)
	last := len(names) - 1
	if moved, ok := value.(movedFrom); ok {
		value = get(doc, doc, strings.Fields(string(moved))...)
		set(doc, string(moved), nil)
	}
	if at := get(doc, doc, names[:last]...); value == nil {
		delete(at, names[last])
	} else {
		at[names[last]] = value
	}
}

// changedDocument returns a copy of the document with another value at a path.
func changedDocument(t *testing.T, at string, value any) (doc node) {
	t.Helper()
	must(t, json.Unmarshal([]byte(embedded("web/openapi.json")), &doc))
	set(doc, at, value)
	return doc
}

// TestReleased_seesWhatWouldBreakAClient changes a copy of the document in ways that break clients, and
// in ways that don't.
func TestReleased_seesWhatWouldBreakAClient(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	list := func(words ...any) []any { return words }
	const leads, schemas = "paths /widget/leads post ", "components schemas "
	const legacy, preview = "paths /api/legacy/{path} get responses ", "paths /books/connections/{id}/preview/{date}"
	released, paths := maps.Clone(openapiDocument()), node{} // which show all of these: each is held against all paths
	for _, path := range []string{"/widget/leads", "/licenses", "/licenses/{id}/renew", "/leads", "/widget/stats",
		"/widget/events", "/widget/license/activate", "/books/connections/{id}/preview/{date}",
		"/api/legacy/{path}"} {
		paths[path] = get(released, released, "paths", path)
	}
	released["paths"] = paths
	for _, c := range []struct {
		want, at string
		value    any
	}{
		{"POST /widget/leads is gone", "paths /widget/leads", nil},
		{"GET /licenses is gone", "paths /licenses get", nil},
		{"has the operationId", leads + "operationId", "postLead"},
		{"needs the scope admin", "paths /leads get x-required-scopes", list("admin")},
		{"takes a body of at most 1 bytes", leads + "x-max-body", 1.0},
		{"has no parameter Idempotency-Key", leads + "parameters", list()},
		{"needs the parameter account_id", "components parameters account_id required", true},
		{"has no status 200 any more", leads + "responses 200", nil},
		{"has no header ETag", "paths /widget/stats get responses 200 headers ETag", nil},
		{"needs the member source", schemas + "LeadRequest required", list("type", "email", "source")},
		{"#/source has the maxLength 50", schemas + "LeadRequest properties source maxLength", 50.0},
		{"#/plan takes no null any more", schemas + "NewLicense properties plan type", "string"},
		{`#/kind has not the word "floating"`, schemas + "NewLicense properties kind enum", list("node_locked", nil)},
		{"# has no member nonce any more", schemas + "ActivationRequest properties nonce", nil},
		{"has no member seats any more", schemas + "License properties seats", nil},
		{"may lack the member status", schemas + "LicenseSummary required", list("id")},
		{`has not the word "revoked" any more`, schemas + "License properties status enum", list("active")},
		{"/product may be null", schemas + "License properties product type", list("string", "null")},
		{"/created_at has the format <nil>, which was", schemas + "License properties created_at format", nil},
		{"has the pattern ^x$, which was ^/", schemas + "LeadRequest properties page pattern", "^x$"},
		{`has not the word "seat_limit_reached"`, schemas + "ProblemCode enum", list("internal")},
		{"takes no text/plain any more", "paths /widget/events post requestBody content text/plain", nil},
		{"needs a body", "paths /licenses/{id}/renew post requestBody required", true},
		{"#/grace_days has the format int32", schemas + "NewLicense properties grace_days format", "int32"},
		{"/preview/{date} ?id has the", "paths /books/connections/{date}/preview/{id}", movedFrom(preview)},
		{"has no status 200 any more", legacy + "200", nil},
		{"has no status 200 any more", legacy + "302", movedFrom(legacy + "200")},
		{"200 has no header Sunset any more", legacy + "200", node{"description": "What the successor answers."}},
		{"#/fields/(additionalProperties) has the maxLength 9", schemas +
			"LeadRequest properties fields additionalProperties maxLength", 9.0},
		{"#/fields takes no other", schemas + "LeadRequest properties fields additionalProperties", false},
		{"# has anyOf, which", schemas + "LeadRequest anyOf", list(node{"required": list("page")})},
		{"GET /api/legacy/{path} is gone", "paths /api/legacy/{path} servers", nil},
		{"", schemas + "LeadRequest properties source maxLength", 200.0}, // what breaks nobody
		{"", schemas + "License properties of_a_later_version", node{"type": "string"}},
		{"", schemas + "LeadReceipt example", "another"},
	} {
		faults := brokenPromises(released, changedDocument(t, c.at, c.value))
		if seen := strings.Contains(strings.Join(faults, "\n"), c.want); !seen || c.want == "" && len(faults) > 0 {
			t.Errorf("%s %v has the faults %q, want %q", c.at, c.value, faults, c.want)
		}
	}
}

func TestReleased_asksForPlacesInAPathAndNotForTheirNames(t *testing.T) {
	t.Parallel()
	text := embedded("web/openapi.json")
	renamed := strings.NewReplacer("{id}", "{any}", `"name": "id"`, `"name": "any"`).Replace(text)
	var doc node
	must(t, json.Unmarshal([]byte(renamed), &doc))
	if get(doc, doc, "paths", "/licenses/{any}") == nil {
		t.Fatal("nothing is renamed")
	}
	equal(t, "faults", brokenPromises(openapiDocument(), doc), nil)
}
