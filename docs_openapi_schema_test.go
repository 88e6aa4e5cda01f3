package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/mail"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	ended := child(legacyOperation().node, "responses", "410")
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

func legacyOperation() *operation {
	op, _ := findOperation("GET", legacyPrefix+"x", true)
	return op
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
