package main

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha512"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/mail"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// A node is an object of the OpenAPI document.
type node = map[string]any

// openapiDocument is the OpenAPI document as it is committed.
var openapiDocument = sync.OnceValue(func() node {
	var doc node
	if err := json.Unmarshal([]byte(embedded("web/openapi.json")), &doc); err != nil {
		panic("web/openapi.json: " + err.Error())
	}
	return doc
})

// child goes down by names; nil: there is no such object.
func child(n node, names ...string) node {
	for _, name := range names {
		next, _ := n[name].(node)
		n = resolve(next)
	}
	return n
}

// resolve follows the reference of an object that is one.
func resolve(n node) node {
	ref, ok := n["$ref"].(string)
	if !ok {
		return n
	}
	target, known := references.Load(ref)
	if !known {
		target, _ = references.LoadOrStore(ref, resolveIn(openapiDocument(), n))
	}
	return target.(node)
}

// references are what those of the document lead to, by their texts; documentedMembers are the results of
// propertiesOf, by the schema: most answers are judged by the same few.
var references, documentedMembers sync.Map

func resolveIn(doc, n node) node {
	for {
		ref, ok := n["$ref"].(string)
		if !ok {
			return n
		}
		names := strings.Split(strings.TrimPrefix(ref, "#/"), "/")
		n = doc
		for _, name := range names {
			if n, ok = n[name].(node); !ok {
				panic("web/openapi.json: there is no " + ref)
			}
		}
	}
}

// texts returns a member that is a list of texts.
func texts(n node, name string) (all []string) {
	list, _ := n[name].([]any)
	for _, v := range list {
		text, _ := v.(string) // "" for null
		all = append(all, text)
	}
	return all
}

// An operation is one method of one path of the document.
type operation struct {
	node
	method string
	path   string   // as the document has it
	steps  []string // the path, cut at its slashes
	atRoot bool     // its servers are the root
	params []node   // of the path and of the operation, resolved
}

func (o *operation) name() string { return o.method + " " + o.path }

func (o *operation) id() string { id, _ := o.node["operationId"].(string); return id }

// responses returns the responses by status, resolved.
func (o *operation) responses() map[string]node {
	all := map[string]node{}
	for status := range child(o.node, "responses") {
		all[status] = child(o.node, "responses", status)
	}
	return all
}

// parameter returns the parameter of that name; nil: there is none.
func (o *operation) parameter(name string) node {
	for _, p := range o.params {
		if p["name"] == name {
			return p
		}
	}
	return nil
}

// operations are all operations of the document, in the order of their paths.
var operations = sync.OnceValue(func() (all []*operation) { return operationsOf(openapiDocument()) })

func operationsOf(doc node) (all []*operation) {
	paths, _ := doc["paths"].(node)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := paths[path].(node)
		servers, _ := item["servers"].([]any)
		for _, method := range []string{"get", "post", "patch", "put", "delete"} {
			op, ok := item[method].(node)
			if !ok {
				continue
			}
			o := &operation{node: op, method: strings.ToUpper(method), path: path,
				steps: strings.Split(path, "/"), atRoot: len(servers) == 1}
			for _, from := range []node{item, op} {
				list, _ := from["parameters"].([]any)
				for _, p := range list {
					o.params = append(o.params, resolveIn(doc, p.(node)))
				}
			}
			all = append(all, o)
		}
	}
	return all
}

// findOperation returns the operation of a method and a path; known reports whether there is one of
// another method.
func findOperation(method, path string, atRoot bool) (found *operation, known bool) {
	if method == "HEAD" {
		method = "GET"
	}
	segments := strings.Split(path, "/")
	best := 0
	for _, o := range operations() {
		literal := matchPath(o.steps, segments)
		if literal == 0 || o.atRoot != atRoot && o.path != "/openapi.json" && o.path != "/llms.txt" {
			continue
		}
		if known = true; o.method == method && literal > best {
			found, best = o, literal
		}
	}
	return found, known
}

// matchPath returns how many segments of a path are as the template has them, and 0 if the path does
// not match.
func matchPath(template, path []string) (literal int) {
	if len(template) != len(path) {
		return 0
	}
	for i, segment := range template {
		switch {
		case segment == path[i]:
			literal++
		case !strings.HasPrefix(segment, "{") || path[i] == "":
			return 0
		}
	}
	return literal
}

// judgeAnswer returns where an answer to r differs from the document. rt has the base addresses.
func judgeAnswer(r *http.Request, rt *routing, status int, header http.Header, body []byte) (faults []string) {
	path, inBase := rt.inBase(r.URL.EscapedPath())
	if !inBase {
		path = r.URL.EscapedPath()
		for _, metadata := range []string{serverMetadataPath, resourceMetadataPath} {
			if path == metadata+rt.prefixes[0] {
				path = metadata + documentPath
			}
		}
	}
	if !inBase && status < 400 && isPage(path) {
		return nil
	}
	if status == http.StatusPermanentRedirect { // from a path that is none, see leadFromSlash
		to, err := url.Parse(header.Get("Location"))
		if err != nil || to.Host != "" || r.URL.Path != to.Path+"/" || r.URL.RawQuery != to.RawQuery || len(body) > 0 {
			faults = append(faults, fmt.Sprintf("a path with a slash too many leads to %v: %v", to, err))
		}
		return faults
	}
	if inBase && isRouteForPeople(path) || status == http.StatusNotFound && wantsPage(r) {
		return judgePage(status, header, body)
	}
	if path+"/" == legacyPrefix {
		path = legacyPrefix
	}
	rest, legacy := strings.CutPrefix(path, legacyPrefix)
	legacy = legacy && !inBase
	past, _ := findOperation("GET", legacyPrefix+"x", true)
	ended := child(past.node, "responses", "410")
	if legacy {
		path, faults = "/"+rest, judgeHeaders(ended, header, false)
	}
	op, known := findOperation(r.Method, path, !inBase && !legacy)
	noteAnswer(op, status, body)
	standard := ownFormOf(path, !inBase && !legacy)
	var response node
	switch {
	case r.Method == http.MethodOptions && status < 400:
		return faults
	case r.Method == http.MethodOptions && standard != nil:
		schema := child(openapiDocument(), "components", "schemas", "OAuthError")
		return append(faults, checkSchema(schema, decoded(body), "#", true)...)
	case r.Method == http.MethodOptions:
		return append(faults, judgeProblem(body)...)
	case standard != nil && status == http.StatusMethodNotAllowed:
		response = child(standard.node, "responses", strconv.Itoa(status))
	case legacy && status == http.StatusGone:
		response = ended
	case op != nil:
		response = child(op.node, "responses", strconv.Itoa(status))
	case (known || isPage(path)) && status == http.StatusMethodNotAllowed, !known && status == http.StatusNotFound:
		response = child(openapiDocument(), "x-common-responses", strconv.Itoa(status))
	}
	if response == nil {
		return append(faults, fmt.Sprintf("%s %s has no status %d in the document", r.Method, path, status))
	}
	if header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			body, err = io.ReadAll(z)
		}
		if err != nil {
			return append(faults, "the body can't be decompressed: "+err.Error())
		}
	}
	faults = append(faults, judgeHeaders(response, header, !legacy)...)
	return append(faults, judgeBody(response, header.Get("Content-Type"), body)...)
}

// ownFormOf returns the operation of a path whose refusals have a form of their own; nil: they are problems.
func ownFormOf(path string, atRoot bool) *operation {
	if op, _ := findOperation("POST", path, atRoot); op != nil {
		if r := routeOf(op); r != nil && r.form != "" {
			return op
		}
	}
	return nil
}

// decoded returns a body as JSON; nil: it is none.
func decoded(body []byte) (value any) {
	if json.Unmarshal(body, &value) != nil {
		return nil
	}
	return value
}

// pages are the paths of pages at the root, which the document leaves out.
var pages = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	contacts := serverOptions{nounOptions: nounOptions{securityContacts: []string{"mailto:a@example.com"}}}
	with := &server{authenticator: &authenticator{}, monotonic: time.Now, serverOptions: contacts}
	for _, w := range modulesOf(nouns(), with) {
		for _, root := range w.roots {
			all[strings.TrimSuffix(root.path, "{$}")] = root.page
		}
	}
	return all
})

// isPage reports whether a path at the root is a page.
func isPage(path string) bool {
	return pages()[path] || matches(`^/(widget-[0-9a-f]{12}\.js|docs/([a-z0-9-]+(\.md)?|find\.json))$`, path)
}

// pathsForPeople are the paths of routes with a page, cut into segments.
var pathsForPeople = sync.OnceValue(func() (all [][]string) {
	for _, w := range modulesOf(nouns(), &server{authenticator: &authenticator{}, monotonic: time.Now}) {
		for _, r := range w.routes {
			if r.page != "" {
				all = append(all, strings.Split(r.path(), "/"))
			}
		}
	}
	return all
})

// isRouteForPeople reports whether a path below the base address is that of a route with a page, which the
// document leaves out.
func isRouteForPeople(path string) bool {
	segments := strings.Split(path, "/")
	return slices.ContainsFunc(pathsForPeople(), func(p []string) bool { return matchPath(p, segments) > 0 })
}

// judgePage returns what an answer for people lacks.
func judgePage(status int, header http.Header, body []byte) (faults []string) {
	want := map[string]string{"Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
	switch {
	case status == http.StatusNoContent:
		return nil
	case status == http.StatusSeeOther:
		if strings.Contains(header.Get("Location"), "iss=") { // an answer to an application
			want["Referrer-Policy"] = "no-referrer"
		}
		if header.Get("Location") == "" || len(body) > 0 {
			faults = append(faults, "a redirect has no Location, or a body")
		}
	case strings.HasPrefix(header.Get("Content-Type"), "image/"):
		want = map[string]string{"Cache-Control": "public, max-age=31536000, immutable",
			"Content-Security-Policy": "default-src 'none'; sandbox"}
	case header.Get("Content-Disposition") != "":
		want["Content-Type"] = "application/jwt"
		if header.Get("Content-Security-Policy") == "" {
			faults = append(faults, "a file has no policy")
		}
	default:
		want["Content-Type"] = "text/html; charset=utf-8"
		if header.Get("Content-Security-Policy") == "" || !bytes.HasPrefix(body, []byte("<!doctype html>")) {
			faults = append(faults, "a page has no policy, or is none")
		}
	}
	for name, value := range want {
		if got := header.Get(name); got != value {
			faults = append(faults, name+" of a page is "+got)
		}
	}
	return faults
}

// headersOf returns the headers of a response by name. Problems have theirs as x-headers, since oapi-codegen makes a
// type of the headers of each status of each operation.
func headersOf(doc, response node) map[string]node {
	all := map[string]node{}
	for _, member := range []string{"headers", "x-headers"} {
		listed, _ := response[member].(node)
		for name, h := range listed {
			all[name] = resolveIn(doc, h.(node))
		}
	}
	return all
}

// ownHeaders are headers that an answer has only where its response lists them.
var ownHeaders = []string{"RateLimit", "RateLimit-Policy", "Retry-After", "ETag", "Idempotency-Replayed",
	"WWW-Authenticate", "Accept", "Allow", "Sunset", "Deprecation", "Link", "Preference-Applied"}

// judgeHeaders compares the headers of an answer with those of its response; with closed, it must
// have no other of ownHeaders.
func judgeHeaders(response node, header http.Header, closed bool) (faults []string) {
	listed := headersOf(openapiDocument(), response)
	for _, name := range ownHeaders {
		if closed && header[http.CanonicalHeaderKey(name)] != nil && listed[name] == nil {
			faults = append(faults, "the header "+name+" is not documented")
		}
	}
	for name, h := range listed {
		values := header.Values(name)
		if len(values) == 0 {
			if h["required"] == true {
				faults = append(faults, "the header "+name+" is missing")
			}
			continue
		}
		var value any = values[0]
		if n, err := strconv.ParseFloat(values[0], 64); err == nil && child(h, "schema")["type"] == "integer" {
			value = n
		}
		faults = append(faults, checkSchema(child(h, "schema"), value, name, true)...)
	}
	return faults
}

// judgeBody compares the body of an answer with the schema of its response.
func judgeBody(response node, contentType string, body []byte) (faults []string) {
	content := child(response, "content")
	if len(body) == 0 || content == nil {
		if len(body) > 0 || content != nil {
			return []string{fmt.Sprintf("the body has %d bytes, and the response documents %d types", len(body),
				len(content))}
		}
		return nil
	}
	kind, _, _ := mime.ParseMediaType(contentType)
	media := child(content, kind)
	if media == nil {
		return []string{fmt.Sprintf("the Content-Type %q is not documented", contentType)}
	}
	var value any = string(body)
	if strings.HasSuffix(kind, "json") {
		if err := json.Unmarshal(body, &value); err != nil {
			return []string{"the body is not JSON: " + err.Error()}
		}
	}
	faults = checkSchema(child(media, "schema"), value, "#", true)
	if codes := texts(response, "x-problem-codes"); kind == "application/problem+json" {
		if code := value.(node)["code"].(string); !slices.Contains(codes, code) {
			faults = append(faults, fmt.Sprintf("the code %s is not one of %v", code, codes))
		}
	}
	return faults
}

// judgeProblem compares a body with the schema of every problem.
func judgeProblem(body []byte) []string {
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return []string{"the body is not JSON: " + err.Error()}
	}
	delete(value.(node), "ok") // of leads
	faults := checkSchema(child(openapiDocument(), "components", "schemas", "Problem"), value, "#", true)
	entries, _ := value.(node)["errors"].([]any)
	for _, entry := range entries {
		if code, _ := entry.(node)["code"].(string); child(openapiDocument(), "x-entries")[code] == nil {
			faults = append(faults, "no line of x-entries explains "+code)
		}
	}
	return faults
}

var patterns sync.Map // the compiled patterns of schemas, by their text

func matches(pattern, text string) bool {
	compiled, known := patterns.Load(pattern)
	if !known {
		compiled, _ = patterns.LoadOrStore(pattern, regexp.MustCompile(pattern))
	}
	return compiled.(*regexp.Regexp).MatchString(text)
}

// checkSchema returns how a value differs from a schema (JSON Schema 2020-12, as far as the document
// uses it); at is a JSON pointer to the value. With closed, every member must be documented.
func checkSchema(schema node, value any, at string, closed bool) (faults []string) {
	schema = resolve(schema)
	wrong := func(format string, args ...any) {
		faults = append(faults, at+": "+fmt.Sprintf(format, args...))
	}
	if types := typesOf(schema); types != nil && !slices.Contains(types, typeOf(value)) &&
		!(typeOf(value) == "integer" && slices.Contains(types, "number")) {
		wrong("%.80v is not %v", value, types)
		return faults
	}
	for keyword, limit := range schema {
		switch keyword {
		case "type", "description", "default", "example", "properties", "additionalProperties", "propertyNames":
		case "enum":
			if !slices.Contains(limit.([]any), value) {
				wrong("%v is not one of %v", value, limit)
			}
		case "allOf":
		case "anyOf", "oneOf":
			faults = append(faults, checkChoice(keyword, limit.([]any), value, at, closed)...)
		case "pattern", "format", "minLength", "maxLength":
			if text, ok := value.(string); ok {
				if fault := checkTextRule(keyword, limit, text); fault != "" {
					wrong("%.80q %s", text, fault)
				}
			}
		case "minimum", "maximum":
			if n, ok := value.(float64); ok && (keyword == "minimum" && n < limit.(float64) || keyword == "maximum" &&
				n > limit.(float64)) {
				wrong("%v is beyond the %s %v", n, keyword, limit)
			}
		case "items", "minItems", "maxItems":
			if list, ok := value.([]any); ok {
				faults = append(faults, checkListRule(keyword, limit, list, at, closed)...)
			}
		case "required", "maxProperties":
			if object, ok := value.(node); ok {
				faults = append(faults, checkObjectRule(keyword, limit, object, at)...)
			}
		default:
			wrong("the schema has the keyword %s, which this test does not know", keyword)
		}
	}
	if object, ok := value.(node); ok && schema["anyOf"] == nil && schema["oneOf"] == nil {
		faults = append(faults, checkMembers(schema, object, at, closed)...)
	}
	return faults
}

// typesOf returns the types that a schema allows; nil: any.
func typesOf(schema node) []string {
	if one, ok := schema["type"].(string); ok {
		return []string{one}
	}
	return texts(schema, "type")
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// checkChoice checks anyOf and oneOf.
func checkChoice(keyword string, choices []any, value any, at string, closed bool) []string {
	fit, all := 0, []string{}
	for _, choice := range choices {
		faults := checkSchema(choice.(node), value, at, closed)
		if len(faults) == 0 {
			fit++
		}
		all = append(all, faults...)
	}
	if fit == 1 || fit > 0 && keyword == "anyOf" {
		return nil
	}
	return append(all, fmt.Sprintf("%s: fits %d of %s", at, fit, keyword))
}

// checkTextRule returns what is wrong with a text, or "".
func checkTextRule(keyword string, limit any, text string) string {
	var err error
	switch keyword {
	case "pattern":
		if !matches(limit.(string), text) {
			return "does not match " + limit.(string)
		}
		return ""
	case "minLength", "maxLength":
		n := float64(utf8.RuneCountInString(text))
		if keyword == "minLength" && n < limit.(float64) || keyword == "maxLength" && n > limit.(float64) {
			return fmt.Sprintf("is beyond the %s %v", keyword, limit)
		}
		return ""
	}
	switch limit {
	case "date-time":
		_, err = time.Parse(stampLayout, text)
	case "date":
		_, err = time.Parse(time.DateOnly, text)
	case "uri":
		var u *url.URL
		if u, err = url.Parse(text); err == nil && !u.IsAbs() {
			return "is not absolute"
		}
	case "email":
		_, err = mail.ParseAddress(text)
	default:
		return fmt.Sprintf("has the format %v, which this test does not know", limit)
	}
	if err != nil {
		return "has not the format " + limit.(string)
	}
	return ""
}

func checkListRule(keyword string, limit any, list []any, at string, closed bool) (faults []string) {
	n := float64(len(list))
	switch {
	case keyword == "items":
		for i, element := range list {
			faults = append(faults, checkSchema(limit.(node), element, fmt.Sprintf("%s/%d", at, i), closed)...)
		}
	case keyword == "minItems" && n < limit.(float64), keyword == "maxItems" && n > limit.(float64):
		faults = append(faults, fmt.Sprintf("%s: %d elements are beyond the %s %v", at, len(list), keyword, limit))
	}
	return faults
}

func checkObjectRule(keyword string, limit any, object node, at string) (faults []string) {
	if keyword == "maxProperties" {
		if float64(len(object)) > limit.(float64) {
			faults = append(faults, fmt.Sprintf("%s: %d members are more than %v", at, len(object), limit))
		}
		return faults
	}
	for _, name := range limit.([]any) {
		if _, ok := object[name.(string)]; !ok {
			faults = append(faults, fmt.Sprintf("%s: the member %s is missing", at, name))
		}
	}
	return faults
}

// checkMembers checks the members of an object, with closed also that each is documented.
func checkMembers(schema, object node, at string, closed bool) (faults []string) {
	properties := propertiesOf(schema)
	for name, value := range object {
		here := at + "/" + name
		if property, ok := properties[name]; ok {
			if value == nil {
				seenNull.Store(reflect.ValueOf(property).Pointer(), true)
			}
			faults = append(faults, checkSchema(property, value, here, closed)...)
			continue
		}
		if names := child(schema, "propertyNames"); names != nil {
			faults = append(faults, checkSchema(names, name, here, closed)...)
		}
		switch more := schema["additionalProperties"].(type) {
		case node:
			faults = append(faults, checkSchema(more, value, here, closed)...)
		case bool:
		default:
			if closed {
				faults = append(faults, here+": is not documented")
			}
		}
	}
	for _, part := range parts(schema) {
		if required, ok := part["required"]; ok {
			faults = append(faults, checkObjectRule("required", required, object, at)...)
		}
	}
	return faults
}

// parts returns the schemas of allOf, resolved.
func parts(schema node) (all []node) {
	list, _ := schema["allOf"].([]any)
	for _, part := range list {
		all = append(all, resolve(part.(node)))
	}
	return all
}

// propertiesOf returns the members that a schema documents, by name. Schemas are not changed while tests run.
func propertiesOf(schema node) map[string]node {
	type found struct {
		of  node // which keeps it, and so its address, in use
		all map[string]node
	}
	at := reflect.ValueOf(schema).Pointer()
	if known, ok := documentedMembers.Load(at); ok {
		return known.(found).all
	}
	all := map[string]node{}
	for _, part := range append(parts(schema), schema) {
		for name, property := range child(part, "properties") {
			all[name] = property.(node)
		}
	}
	if schema != nil {
		documentedMembers.Store(at, found{schema, all})
	}
	return all
}

// recorded is what testdata/http/document.txt has left, which is carried out once in a run: what its lines 'shows:'
// mark, and the service as it was at 'kept:', with what the examples name.
var recorded struct {
	sync.Once
	failed   bool
	examples *jsonValue
	exampleFixture
	database []byte
	xero     *xeroFake
	ready    time.Time // on the clock of the service
}

// recordedExamples returns the examples that the document shows, as makeOpenAPI takes them: of each operation those of
// its "parameters" by their names, of its "request" and of its answers, as "200", each with "value" and "summary".
func recordedExamples(t testing.TB) *jsonValue {
	t.Helper()
	recorded.Do(func() { record(t) })
	if recorded.failed {
		t.Fatal("testdata/http/document.txt fails: see the test that carried it out first")
	}
	return recorded.examples
}

// A recorder carries out an exchange and keeps what the document shows of it.
type recorder struct {
	*exchangeRun
	clock  time.Time
	xero   *xeroFake
	shown  map[string]string // what an id, a key or a secret is shown as: the same in each run
	counts map[string]int    // how many of a kind are shown
}

// The signing key of the examples is that of RFC 8037, appendix A.1.
const exampleSeed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"

// shownFirst are what the first ones of a kind are shown as, and so the examples of ids in paths. With this secret of a
// webhook the example of what is posted is signed.
var shownFirst = map[string]string{
	"license key": "TKWGD-QP26G-DVSCS-ZCPCX-BP2HZ",
	"whsec":       "whsec_CfPIDTsy/guKHR7jjSTNLHDC3aHwbJ2hYe7SRTUT9zs=",
	"wgt":         "wgt_01m8a4yb6c3n7s0k9f2x5q8jdr",
	"lead":        "lead_01m8a5c3h1f0q2n8r7wj6vk4td",
	"tok":         "tok_01m8a4x7c5k2f9v3b6n1h4q8wd",
	"evt":         "evt_01m8a5ge1k8p4z7d3v0t6m9xwc",
	"pay":         "pay_01m8a7d9r4v2x7n1c6j3z8mkq0",
	"ref":         "ref_01m8a7qm6n0t4x9zc2k8p5d7vh",
	"acct":        "acct_01m8a4wq2se4s9xkd0t1y6bv3f",
	"app":         "app_01m8a9c4h7p2r5t8v1x3z6b0de",
	"bkc":         "bkc_01m8a6b2q7w3d8h5n0t4x9zcke",
	"con":         "con_01m8a7c3x5k2f9v3b6n1h4q8wd",
	"dev":         "dev_01m8a5e9r4v2x7n1c6j3z8mkq0",
	"exp":         "exp_01m8a6c9v1j4r7p2s5y8b3m6fg",
	"grt":         "grt_01m8a9f2n5r8t1v4x7z0b3d6gh",
	"lic":         "lic_01m8a4zt5x9hc3r6k2m8d0qwe7",
	"ord":         "ord_01m8a7c3x5k2f9v3b6n1h4q8wd",
	"pln":         "pln_01m8a4y02q7d5v3k8m1n6t9bxz",
	"pot":         "pot_01m8a9k2q7w3d8h5n0t4x9zcke",
	"whd":         "whd_01m8a6c9v1j4r7p2s5y8b3m6fg",
	"whe":         "whe_01m8a6b2q7w3d8h5n0t4x9zcke",
}

// shownToken stands for every token that is signed.
const shownToken = "eyJhbGciOiJFZERTQSIsImtpZCI6IjVCZjEiLCJ0eXAiOiJhdCtqd3QifQ.eyJzdWIiOiJhY2N0X…In0.Zk9t…Q3BA"

func record(t testing.TB) {
	recorded.failed = true
	cases, err := readExchanges("testdata/http/document.txt", "shows:", "kept:")
	must(t, err)
	seed, err := hex.DecodeString(exampleSeed)
	must(t, err)
	r := &recorder{clock: time.Date(2026, 11, 21, 10, 40, 0, 0, time.UTC), counts: map[string]int{}}
	r.shown = map[string]string{testChallenge: testChallenge, testVerifier: testVerifier}
	key := signingKeyOf(ed25519.NewKeyFromSeed(seed), newStamp(r.clock))
	for _, same := range []string{key.kid, key.jwk().X} {
		r.shown[same] = same
	}
	for _, id := range shownFirst {
		r.shown[id] = id
	}
	made, err := newDatabase()
	must(t, err)
	now := func() time.Time { return r.clock }
	r.xero = newXeroFake(t, now)
	s := serviceWith(t, made.content, made.account, &keyring{keys: []signingKey{key}, secret: hashOf(exampleSeed)},
		withoutAddressLimits, atLoopback(r.xero), func(o *storeOptions, _ *serverOptions) { o.now = now })
	findsHosts(s)
	s.damaged = true // the document is not yet what it will be: TestOpenAPI_examplesFitTheirSchemas judges them
	s.change(func(t *tx) error {
		setBooksApp(t, s.keys, productXero, r.xero.app)
		setBooksApp(t, s.keys, productFortnox, appSecrets{"id", "secret"})
		return t.setRate(s.account, 1_000_000)
	})
	r.exchangeRun = newExchange(s, s.commitCounter())
	r.pass = r.moveClock
	r.recorder, r.made["owner"], r.made["origin"] = r, s.account, siteOrigin
	recorded.examples = jsonObjectOf()
	var all exchangeCase
	for _, c := range cases {
		all.steps = append(all.steps, c.steps...)
	}
	must(t, r.run(all))
	recorded.failed = recorded.database == nil
	failIf(t, recorded.failed, "testdata/http/document.txt has no line kept:")
	for real, shown := range r.shown {
		if real != shown {
			recorded.real[shown] = real
		}
	}
	showOAuthErrors(recorded.examples)
}

// findsHosts gives every host an address.
func findsHosts(s *service) {
	s.server.outbound.resolver, _ = resolverOf(s.t, func(string, int) []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	})
}

// keep copies the service as it is for the tests that need one with what the examples name.
func (r *recorder) keep() error {
	db, err := sql.Open("sqlite", dsn(r.store.path, "rw", storeOptions{}))
	if err != nil {
		return err
	}
	copied := filepath.Join(r.t.TempDir(), "kept.db")
	_, err = db.Exec(`VACUUM INTO ?`, copied)
	recorded.database = fileBytes(r.t, copied)
	recorded.exampleFixture = exampleFixture{service: r.service, lease: r.name("lease"), real: map[string]string{}}
	recorded.xero, recorded.ready = r.xero, r.clock
	return errors.Join(err, db.Close())
}

// moveClock moves the clock, which stands still otherwise.
func (r *recorder) moveClock(d time.Duration) { r.clock = r.clock.Add(d) }

// show keeps what a line 'shows:' marks of the last request, "NAME SUMMARY | NAME SUMMARY": of the request, and of the
// answer; without a body of the request the answer's alone.
func (r *recorder) show(mark string, headers []string) error {
	id, rt := shownOperation(r.request[0], r.request[1])
	if id == "" {
		return errors.New("there is no such operation")
	}
	of := recorded.examples.at(id)
	if of.kind == jsonNull {
		recorded.examples.set(id, jsonObjectOf())
		of = recorded.examples.at(id)
	}
	path, query, _ := strings.Cut(r.request[1], "?")
	parameters := pairsOf(query)
	segments := strings.Split(path, "/")
	for i, segment := range strings.Split(rt, "/") {
		if strings.HasPrefix(segment, "{") {
			parameters = append(parameters, [2]string{strings.Trim(segment, "{}"), segments[i]})
		}
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Origin" || name == "Authorization" {
			continue
		}
		parameters = append(parameters, [2]string{name, value})
	}
	for _, p := range parameters {
		addShown(of, "parameters", p[0], r.valueOf(p[1]))
	}
	asked, answered, both := strings.Cut(mark, "|")
	switch {
	case r.request[2] == "":
		answered, both = mark, true
	case strings.TrimSpace(asked) == "":
	case strings.HasPrefix(r.request[2], "{"):
		addShown(of, "request", asked, r.exampleOf(asked, r.request[2], true))
	default:
		form := jsonObjectOf()
		for _, p := range pairsOf(r.request[2]) {
			form.set(p[0], jsonTextOf(r.fixed(p[1])))
		}
		addShown(of, "request", asked, r.exampleOf(asked, layOutJSON(form, "", 120), true))
	}
	if both {
		isJSON := strings.HasSuffix(r.last.header.Get("Content-Type"), "json")
		status := strconv.Itoa(r.last.status)
		addShown(of, status, answered, r.exampleOf(answered, r.last.body, isJSON))
	}
	return nil
}

// exampleOf makes an example of a text. Of a long one only the beginning is shown.
func (r *recorder) exampleOf(mark, text string, isJSON bool) *jsonValue {
	_, summary, _ := strings.Cut(strings.TrimSpace(mark), " ")
	example := jsonObjectOf()
	if summary != "" {
		example.set("summary", jsonTextOf(summary))
	}
	if !isJSON {
		if text = r.fixed(text); len(text) > 2000 {
			text, _, _ = strings.Cut(text, "\n")
		}
		example.set("value", jsonTextOf(text))
		return example
	}
	doc, err := newAPIDocument(r.fixed(text))
	r.check(err)
	if len(text) > 100_000 { // the document itself
		doc.all = *jsonObjectOf("openapi", doc.all.at("openapi"), "info",
			jsonObjectOf("title", doc.all.at("info", "title"), "version", "1.0.0"))
	}
	example.set("value", &doc.all)
	return example
}

// addShown adds an example under the first word of a mark, unless there is one.
func addShown(of *jsonValue, kind, mark string, value *jsonValue) {
	name, _, _ := strings.Cut(strings.TrimSpace(mark), " ")
	all := of.at(kind)
	if all.kind == jsonNull {
		of.set(kind, jsonObjectOf())
		all = of.at(kind)
	}
	if all.at(name).kind == jsonNull {
		all.set(name, value)
	}
}

// pairsOf returns the names and values of a query or a form, in their order.
func pairsOf(text string) (all [][2]string) {
	for pair := range strings.SplitSeq(text, "&") {
		if name, value, is := strings.Cut(pair, "="); is {
			plain, _ := url.QueryUnescape(value)
			all = append(all, [2]string{name, plain})
		}
	}
	return all
}

// valueOf is the example of a parameter: a number or a boolean where it is one.
func (r *recorder) valueOf(text string) *jsonValue {
	text = r.fixed(text)
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		return &jsonValue{kind: jsonNumber, text: text}
	}
	return jsonTextOf(text)
}

// shownOperation returns the operation that a request is for, and the path that it has in the document.
func shownOperation(method, target string) (id, path string) {
	target, _, _ = strings.Cut(target, "?")
	plain, atRoot := strings.CutPrefix(target, "//")
	if atRoot {
		plain = "/" + plain
	}
	segments, best := strings.Split(plain, "/"), 0
	for _, rt := range allRoutes() {
		literal := matchPath(strings.Split(rt.path(), "/"), segments)
		if !atRoot && rt.method() == method && literal > best && rt.endpoint != nil {
			id, path, best = rt.endpoint.operation(), rt.path(), literal
		}
	}
	if o, _ := findOperation(method, plain, atRoot); o != nil && matchPath(o.steps, segments) > best {
		id, path = o.id(), strings.Join(o.steps, "/")
	}
	return id, path
}

// randomTexts are what is another one in each run: ids, licence keys and their hints, codes to sign in, secrets,
// tokens, and other texts of random bits.
var randomTexts = regexp.MustCompile(`[a-z]+_[0-7][0-9a-hjkmnp-tv-z]{25}|eyJ[\w-]*\.[\w-]+\.[\w-]+` +
	`|[0-9A-HJKMNP-TV-Z]{5}(?:-[0-9A-HJKMNP-TV-Z]{5}){4}|"key_hint":"[0-9A-Z]{5}"` +
	`|"code":"[0-9A-HJKMNP-TV-Z]{4}(?:-[0-9A-HJKMNP-TV-Z]{4}){2}"|whsec_[0-9A-Za-z+/]{43}=|\b[A-Z2-7]{52}\b` +
	`|[\w-]{43,}|\b[0-9a-f]{64}\b|k=[\w-]{22}|"(?:observedValue|duration_ms)":\d+`)

// linkBack is the part of a link to sign in elsewhere that has the base address, which the served document replaces
// only where it is not escaped.
var linkBack = regexp.MustCompile(`&redirect_uri=https%3A%2F%2F[^&"]*`)

// fixed replaces what is another one in each run by what the document shows.
func (r *recorder) fixed(text string) string {
	text = strings.NewReplacer("http://127.0.0.1:8080", documentRoot, url.QueryEscape("http://127.0.0.1:8080"),
		url.QueryEscape(documentRoot), r.xero.base, "https://login.xero.com").Replace(text)
	text = linkBack.ReplaceAllString(text, "")
	return randomTexts.ReplaceAllStringFunc(text, func(real string) string {
		if r.shown[real] == "" {
			shown := r.showAs(real)
			r.shown[real], r.shown[shown] = shown, shown // which may be fixed again
		}
		return r.shown[real]
	})
}

// showAs makes what a random text is shown as: a text of its form, from its kind and how many came before it.
func (r *recorder) showAs(real string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	kind, keep, alphabet := "text", 0, letters
	name, _, _ := strings.Cut(real, ":")
	prefix, _, _ := strings.Cut(real, "_")
	switch {
	case strings.HasPrefix(real, "eyJ"):
		return shownToken // which is no such text
	case name == `"observedValue"` || name == `"duration_ms"`:
		return name + ":1"
	case name == `"key_hint"`:
		kind, keep, alphabet = "hint", len(name)+2, upperCrockford
	case strings.Contains(real, "_0000000000"): // the cursor of a list that is not ordered by ids
		return real
	case idInPath.MatchString(real):
		kind, keep, alphabet = prefix, len(prefix)+9, crockford // the time stays, to about a second
	case keyShape.MatchString(real):
		kind, alphabet = "license key", upperCrockford
	case name == `"code"`:
		kind, keep, alphabet = "code", len(name)+2, upperCrockford
	case prefix == "whsec":
		kind, keep = prefix, len(prefix)+1
	case strings.HasPrefix(real, "k="):
		kind, keep = "page key", 2
	case len(real) == 52:
		kind, alphabet = "client secret", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	case len(real) != 43 && len(real) != 86:
		return real
	}
	r.counts[kind]++
	shown := []byte(real)
	for try := 0; try == 0 || kind == "license key" && licenseKey(withoutDashes(string(shown))).mistyped(); try++ {
		sum := sha512.Sum512(fmt.Append(nil, kind, r.counts[kind], try))
		for i := keep; i < len(shown); i++ {
			if shown[i] != '-' && shown[i] != '"' || alphabet == letters {
				shown[i] = alphabet[int(sum[i%len(sum)])%len(alphabet)]
			}
		}
		if kind == "whsec" {
			shown = append(shown[:keep], base64.StdEncoding.EncodeToString(sum[:32])...)
		}
	}
	if first := shownFirst[kind]; first != "" && r.counts[kind] == 1 {
		shown = []byte(first)
	}
	if kind == "license key" {
		r.shown[hintOf(real)] = hintOf(string(shown))
	}
	return string(shown)
}

// showOAuthErrors adds the errors of OAuth that an exchange does not bring about.
func showOAuthErrors(examples *jsonValue) {
	asks, revokes := examples.at("issueTokens"), examples.at("revokeToken")
	for _, e := range [][3]string{
		{"405", "invalid_request", "This path allows only the methods POST."},
		{"413", "invalid_request", "The body has more than 16 KiB."},
		{"429", "temporarily_unavailable", "Too many requests of this application."},
		{"500", "server_error", "An error occurred in the service. Give the X-Request-Id when you report it."},
		{"503", "temporarily_unavailable", "The database can't be used at the moment; nothing was written."},
	} {
		addShown(asks, e[0], e[1], jsonObjectOf("value", jsonObjectOf("error", e[1], "error_description", e[2])))
	}
	for i := range asks.members {
		if m := &asks.members[i]; m.name[0] == '4' || m.name[0] == '5' {
			revokes.set(m.name, &m.value)
		}
	}
}

func withoutDashes(key string) string { return strings.ReplaceAll(key, "-", "") }

// hintOf is the member of a licence that shows the end of its key.
func hintOf(key string) string { return `"key_hint":"` + key[len(key)-keyGroup:] + `"` }

// makeShown makes what only the exchange of the document has.
func (r *recorder) makeShown(kind, name, members string) error {
	var of map[string]string
	if err := json.Unmarshal([]byte(members), &of); err != nil {
		return err
	}
	defer r.newEvents()
	switch kind {
	case "brought": // an order, to a state
		o := r.row(of["order"])
		r.change(func(t *tx) error { return bringTo(t, o, of["to"]) })
	case "consent": // to what a link to an accounting product asks for
		back, err := url.Parse(r.xero.approve(of["link"]))
		if err != nil {
			return err
		}
		if a := r.get(strings.TrimPrefix(back.Path, "/v1") + "?" + back.RawQuery); a.status != 200 {
			return fmt.Errorf("it is not connected: %d %s", a.status, a.body)
		}
	case "posted": // an export, which is in the books
		r.postExport(of["export"])
	case "draining":
		r.server.draining.Store(true)
	case "delivery": // one that failed, of a webhook that is enabled
		r.change(func(t *tx) error {
			t.setWebhookState(of["webhook"], webhookEnabled, nil)
			seq, event, err := t.latestEvent()
			d := &delivery{ID: t.newID("whd"), WebhookID: of["webhook"], EventID: event, Type: eventWebhookTest,
				Attempt: 1, At: t.now, eventSeq: seq, Status: ptr(503), Answer: ptr("The CRM is being updated."),
				NextAt: t.now.after(retryDelays[0])}
			r.made[name] = d.ID
			t.addDelivery(d)
			return err
		})
	}
	return nil
}
