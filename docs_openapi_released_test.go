package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// What callers of v1 may rely on is testdata/openapi-released.json: the document as it was released
// last. To renew it at a release, when TestReleased passes: cp web/openapi.json
// testdata/openapi-released.json. Renewing it while that test fails breaks clients, and needs a /v2.

// widerInteger is a format that says no more than the type integer does: a client that has it reads what it read
// before. (A named schema in place of the same one inline takes nothing away either: references are followed.)
const widerInteger = "int64"

// A promise compares a released document with a newer one. faults are what callers of the released
// one can't rely on any more.
type promise struct {
	released, now node
	seen          map[string]bool // pairs of references that were compared, since schemas may be recursive
	faults        []string
}

// brokenPromises returns what a newer document takes away from the callers of a released one.
func brokenPromises(released, now node) []string {
	p := &promise{released: released, now: now, seen: map[string]bool{}}
	newer := map[string]*operation{}
	for _, o := range operationsOf(now) {
		newer[o.name()] = o
	}
	for _, o := range operationsOf(released) {
		if newer[o.name()] == nil {
			p.fault(o.name(), "is gone")
			continue
		}
		p.compareOperation(o, newer[o.name()])
	}
	return p.faults
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
		name := was["name"].(string)
		is := new.parameter(name)
		if is == nil || is["in"] != was["in"] {
			p.fault(at, "has no parameter %s any more", name)
			continue
		}
		p.compareRequest(at+" ?"+name, was["schema"].(node), is["schema"].(node))
	}
	for _, is := range new.params {
		if was := old.parameter(is["name"].(string)); is["required"] == true && (was == nil ||
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
		p.compareRequest(at+" #", get(p.released, was, "content", kind)["schema"].(node),
			media["schema"].(node))
	}
	for status := range get(p.released, old.node, "responses") {
		was, is := get(p.released, old.node, "responses", status), get(p.now, new.node, "responses", status)
		if is == nil {
			p.fault(at, "has no status %s any more", status)
			continue
		}
		for name := range headersOf(p.released, was) {
			if headersOf(p.now, is)[name] == nil {
				p.fault(at, "%s has no header %s any more", status, name)
			}
		}
		for kind := range get(p.released, was, "content") {
			media := get(p.now, is, "content", kind)
			if media == nil {
				p.fault(at, "%s is no %s any more", status, kind)
				continue
			}
			p.compareAnswer(at+" "+status+" #", get(p.released, was, "content", kind)["schema"],
				media["schema"])
		}
	}
}

// once reports whether two schemas need comparing: not if both are references that were compared.
func (p *promise) once(kind string, was, is any) bool {
	key := kind + fmt.Sprint(was.(node)["$ref"], is.(node)["$ref"])
	again := p.seen[key] && was.(node)["$ref"] != nil
	p.seen[key] = true
	return !again
}

// compareRequest faults a schema that refuses what the released one took: every value, every member.
func (p *promise) compareRequest(at string, was, is node) {
	if !p.once("request", was, is) {
		return
	}
	was, is = resolveIn(p.released, was), resolveIn(p.now, is)
	for _, kind := range typesOf(was) {
		if typesOf(is) != nil && !slices.Contains(typesOf(is), kind) {
			p.fault(at, "takes no %s any more", kind)
		}
	}
	if is["enum"] != nil && was["enum"] == nil {
		p.fault(at, "takes listed words only")
	}
	for _, word := range texts(was, "enum") {
		if is["enum"] != nil && !slices.Contains(texts(is, "enum"), word) {
			p.fault(at, "does not take %q any more", word)
		}
	}
	for _, keyword := range []string{"maxLength", "maximum", "maxItems", "maxProperties"} {
		if n, ok := is[keyword].(float64); ok && (was[keyword] == nil || n < was[keyword].(float64)) {
			p.fault(at, "has the %s %v", keyword, n)
		}
	}
	for _, keyword := range []string{"minLength", "minimum", "minItems"} {
		if n, ok := is[keyword].(float64); ok && (was[keyword] == nil || n > was[keyword].(float64)) {
			p.fault(at, "has the %s %v", keyword, n)
		}
	}
	for _, keyword := range []string{"pattern", "format"} {
		if is[keyword] != nil && is[keyword] != was[keyword] && is[keyword] != widerInteger {
			p.fault(at, "has the %s %v, which was %v", keyword, is[keyword], was[keyword])
		}
	}
	for _, name := range texts(is, "required") {
		if !slices.Contains(texts(was, "required"), name) {
			p.fault(at, "needs the member %s", name)
		}
	}
	p.compareMembers(at, was, is, func(at string, was, is any) {
		p.compareRequest(at, was.(node), is.(node))
	})
}

// compareAnswer faults a schema that lacks what the released one promised: a member, a type, a word.
func (p *promise) compareAnswer(at string, was, is any) {
	if was == nil || is == nil || !p.once("answer", was, is) {
		return
	}
	old, new := p.in(p.released, was), p.in(p.now, is)
	for _, kind := range typesOf(new) {
		if typesOf(old) != nil && !slices.Contains(typesOf(old), kind) {
			p.fault(at, "may be %s", kind)
		}
	}
	for _, word := range texts(old, "enum") {
		if !slices.Contains(texts(new, "enum"), word) {
			p.fault(at, "is never %q any more", word)
		}
	}
	if old["format"] != nil && new["format"] != old["format"] {
		p.fault(at, "has not the format %v any more", old["format"])
	}
	for _, name := range texts(old, "required") {
		if !slices.Contains(texts(new, "required"), name) {
			p.fault(at, "may lack the member %s", name)
		}
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		before, _ := old[keyword].([]any)
		after, _ := new[keyword].([]any)
		for i := range before {
			if i >= len(after) {
				p.fault(at, "has %d of %s, which were %d", len(after), keyword, len(before))
				break
			}
			p.compareAnswer(fmt.Sprintf("%s(%s %d)", at, keyword, i), before[i], after[i])
		}
	}
	p.compareMembers(at, old, new, p.compareAnswer)
}

// compareMembers compares the members of two schemas, and the elements of lists.
func (p *promise) compareMembers(at string, was, is node, compare func(at string, was, is any)) {
	before, after := get(p.released, was, "properties"), get(p.now, is, "properties")
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == nil {
			p.fault(at, "has no member %s any more", name)
			continue
		}
		compare(at+"/"+name, before[name], after[name])
	}
	if was["items"] != nil && is["items"] != nil {
		compare(at+"/0", was["items"], is["items"])
	}
}

func TestReleased_nothingThatCallersRelyOnIsGone(t *testing.T) {
	t.Parallel()
	var released node
	must(t, json.Unmarshal([]byte(fileText(t, "testdata/openapi-released.json")), &released))
	if len(operationsOf(released)) < 25 {
		t.Fatalf("the released document has %d operations only", len(operationsOf(released)))
	}
	for _, fault := range brokenPromises(released, openapiDocument()) {
		if fault != "POST /orders 200 #(allOf 1)/pay_url may be null" { // only if the request says pay: later
			t.Error(fault)
		}
	}
}

// set sets what stands at the path of a document, such as "components schemas License required"; nil takes it away.
func set(doc node, path string, value any) {
	names := strings.Fields(path)
	last := len(names) - 1
	if at := get(doc, doc, names[:last]...); value == nil {
		delete(at, names[last])
	} else {
		at[names[last]] = value
	}
}

// TestReleased_seesWhatWouldBreakAClient changes a copy of the document in ways that break clients, and
// in ways that don't.
func TestReleased_seesWhatWouldBreakAClient(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	list := func(words ...any) []any { return words }
	const leads, schemas = "paths /widget/leads post ", "components schemas "
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
		{`#/kind does not take "floating"`, schemas + "NewLicense properties kind enum", list("node_locked", nil)},
		{"# has no member nonce any more", schemas + "ActivationRequest properties nonce", nil},
		{"has no member seats any more", schemas + "License properties seats", nil},
		{"may lack the member status", schemas + "LicenseSummary required", list("id")},
		{`is never "revoked" any more`, schemas + "License properties status enum", list("active")},
		{"/product may be null", schemas + "License properties product type", list("string", "null")},
		{"/created_at has not the format date-time", schemas + "License properties created_at format", nil},
		{"has the pattern ^x$, which was ^/", schemas + "LeadRequest properties page pattern", "^x$"},
		{`is never "seat_limit_reached" any more`, schemas + "ProblemCode enum", list("internal")},
		{"takes no text/plain any more", "paths /widget/events post requestBody content text/plain", nil},
		{"needs a body", "paths /licenses/{id}/renew post requestBody required", true},
		{"#/grace_days has the format int32", schemas + "NewLicense properties grace_days format", "int32"},
		{"", schemas + "LeadRequest properties source maxLength", 200.0}, // what breaks nobody
		{"", schemas + "License properties of_a_later_version", node{"type": "string"}},
		{"", schemas + "LeadReceipt example", "another"},
	} {
		var doc node
		must(t, json.Unmarshal([]byte(embedded("web/openapi.json")), &doc))
		set(doc, c.at, c.value)
		faults := brokenPromises(openapiDocument(), doc)
		if seen := strings.Contains(strings.Join(faults, "\n"), c.want); !seen || c.want == "" && len(faults) > 0 {
			t.Errorf("%s %v has the faults %q, want %q", c.at, c.value, faults, c.want)
		}
	}
}
