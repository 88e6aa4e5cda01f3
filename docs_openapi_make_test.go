package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
)

// writeOpenAPI makes web/openapi.json anew, from the routes, the types and the comments of the program and from what
// testdata/openapi-hand.json has, which is what no code says:
//
//	go test -run TestOpenAPI_isMade -write-openapi .
var writeOpenAPI = flag.Bool("write-openapi", false, "write the OpenAPI document anew")

func TestOpenAPI_isMadeOfTheProgram(t *testing.T) {
	t.Parallel()
	text := makeOpenAPI(t)
	if *writeOpenAPI {
		must(t, os.WriteFile("web/openapi.json", []byte(text), 0o644))
		t.Skip("written; now: go test -run TestEmbedded -write-embedded .")
	}
	made, kept := strings.Split(text, "\n"), strings.Split(fileText(t, "web/openapi.json"), "\n")
	for i := range min(len(made), len(kept)) {
		if made[i] != kept[i] {
			t.Fatalf("web/openapi.json is not what the program says now, which has in line %d\n%s\nin place of\n%s\n"+
				"Write it: go test -run TestOpenAPI_isMade -write-openapi .", i+1, made[i], kept[i])
		}
	}
	failIf(t, len(made) != len(kept), "web/openapi.json has another end: write it")
}

// schemaNames are the names of schemas that a release has and that are not those of their Go types: by the type; by the
// operation, of a request that is no struct of its own; and by where it is, of an object within a request. A customer
// of a NewOrder is else a NewOrderCustomer, and one of its lines a NewOrderLine.
var schemaNames = map[string]string{
	"accountView":           "Account",
	"captureTime":           "CaptureOn",
	"chartView":             "BookChart",
	"dateExports":           "BookExports",
	"deliveryView":          "OrderDelivery",
	"entryIssue":            "BookIssue",
	"entryLine":             "BookEntryLine",
	"erasedLeads":           "Erased",
	"fulfilmentView":        "OrderFulfilment",
	"guest":                 "OrderCustomer",
	"guestAddress":          "OrderFulfilmentAddress",
	"healthProbe":           "HealthCheck",
	"healthReport":          "Health",
	"licenseBasis":          "ExpiryBasis",
	"licenseDetail":         "License",
	"linePart":              "RefundLine",
	"lineTax":               "BookTaxCheck",
	"lineView":              "OrderLine",
	"list of listedPayment": "PaymentPage",
	"list of listedRefund":  "RefundPage",
	"mappingRule":           "BookMappingLine",
	"mappingView":           "BookMappingState",
	"outsidePayment":        "PaidOutside",
	"payment":               "OrderPayment",
	"problemName":           "ProblemCode",
	"providerName":          "PaymentProvider",
	"statsInterval":         "Interval",
	"tokenAnswer":           "Tokens",
	"vatSum":                "VATSum",
	"webhookReplay":         "Replay",

	"activateLicense":    "ActivationRequest",
	"confirmBookMapping": "NewBookMapping",
	"createApp":          "NewApp",
	"deactivateLicense":  "DeactivationRequest",
	"issueTokens":        "TokenRequest",
	"revokeToken":        "RevokeRequest",
	"updateApp":          "AppChange",
	"updateLicense":      "LicenseTerms",
	"updatePlan":         "PlanTerms",
	"updateWebhook":      "WebhookChange",
	"verifyLicense":      "VerificationRequest",

	"AcceptanceLine":           "AcceptedLine",
	"ActivationRequestDevice":  "DeviceInfo",
	"WidgetEventsRequestEvent": "WidgetEvent",
}

// responseNames are the names of shared responses that are not those of their codes, since a release has them, or since
// a schema has the other name: oapi-codegen makes types of both.
var responseNames = map[string]string{
	"malformed_json":                  "MalformedBody",
	"malformed_json malformed_header": "MalformedRequest",
	"token_required invalid_token":    "TokenRefused",
	"internal row_unreadable":         "Internal",
	"order_state":                     "WrongOrderState",
	"payout_state":                    "WrongPayoutState",
	"export_state":                    "WrongExportState",
	"books_connection_state":          "WrongBooksConnectionState",

	"busy storage_full storage_unavailable":                   "Unavailable",
	"books_unavailable busy storage_full storage_unavailable": "BooksUnavailable",
	"clock_doubted busy storage_full storage_unavailable":     "SigningUnavailable",
	"license_not_found account_not_found":                     "LicenseNotFound",
	"license_not_found":                                       "NoSuchLicense",
	"app_not_found account_not_found":                         "AppNotFound",
	"grant_not_found account_not_found":                       "GrantNotFound",
	"webhook_not_found account_not_found":                     "WebhookNotFound",
	"webhook_not_found delivery_not_found account_not_found":  "DeliveryNotFound",
	"order_not_found account_not_found":                       "OrderNotFound",
	"books_connection_not_found account_not_found":            "BookConnectionNotFound",
}

// flattened are types whose schemas have the members of what they embed, and not a reference to that, since a release
// has them so.
var flattened = []string{"refundAnswer", "exportAnswer", "refundedLine", "revenueReport"}

// storedTypes are the types of members that answers have as they are stored in JSON.
var storedTypes = map[string]reflect.Type{
	"refund.lines": reflect.TypeFor[[]linePart](),
}

// An openapiMaker makes the document.
type openapiMaker struct {
	t        testing.TB
	src      *goSource
	hand     *jsonValue
	examples *jsonValue
	problems map[string]*problemCode
	words    map[reflect.Type][]string // of types of words: those that are declared, and those of lists
	closed   map[string]bool           // paths at the root that scripts of other sites may not read
	shared   map[reflect.Type]bool     // struct types that have a schema of their own
	made     map[string]*jsonValue     // components, by kind and name: "schemas Plan"
}

// makeOpenAPI returns the text of the document.
func makeOpenAPI(t testing.TB) string {
	read := func(name string) *jsonValue {
		d, err := newAPIDocument(fileText(t, name))
		must(t, err)
		return &d.all
	}
	m := &openapiMaker{t: t, src: goComments(), hand: read("testdata/openapi-hand.json"),
		examples: recordedExamples(t), problems: map[string]*problemCode{},
		words: maps.Clone(declaredWords), closed: map[string]bool{}, shared: map[reflect.Type]bool{},
		made: map[string]*jsonValue{}}
	for _, c := range problemsOf(nouns()) {
		m.problems[c.name] = c
		m.words[reflect.TypeFor[problemName]()] = append(m.words[reflect.TypeFor[problemName]()], c.name)
	}
	m.share(reflect.TypeFor[problem](), false)
	m.answerSchema(reflect.TypeFor[problem](), "")
	m.words[reflect.TypeFor[eventType]()] = asTexts(eventTypesOf(nouns()))
	m.words[reflect.TypeFor[webhookType]()] = asTexts(subscribable(nouns()))
	var roots []rootPath
	for _, w := range modulesOf(nouns(), &server{authenticator: &authenticator{}, monotonic: time.Now}) {
		roots = append(roots, w.roots...)
	}
	for i := range roots {
		m.closed[roots[i].path] = !roots[i].open
	}
	routes := allRoutes()
	for i := range routes {
		if rt := &routes[i]; rt.endpoint != nil {
			for _, t := range append(rt.endpoint.others, rt.endpoint.answer) {
				m.share(t, false)
			}
		}
	}
	paths := slices.Clone(m.hand.at("paths").members)
	for i := range routes {
		if rt := &routes[i]; rt.endpoint != nil {
			paths = m.addOperation(paths, rt)
		}
	}
	for i := range roots {
		if roots[i].endpoint != nil {
			paths = m.addRoot(paths, &roots[i])
		}
	}
	for i := range paths {
		for j := range paths[i].value.members {
			m.withRefusals(&paths[i].value.members[j].value)
		}
	}
	return m.assemble(paths)
}

// assemble puts the document together, in the order of the file that is written by hand.
func (m *openapiMaker) assemble(paths []jsonMember) string {
	doc := jsonObjectOf()
	for _, member := range m.hand.members {
		switch value := &member.value; member.name {
		case "paths":
			doc.set("paths", &jsonValue{kind: jsonObject, members: paths})
		case "components":
			components := jsonObjectOf()
			for _, kind := range value.members {
				components.set(kind.name, m.withMade(kind.name, &kind.value))
			}
			doc.set("components", components)
		case "info":
			version := captures(`(?m)^## (\d+\.\d+\.\d+)`, fileText(m.t, "CHANGELOG.md"))[0]
			value.set("version", jsonTextOf(version))
			doc.set("info", value)
		case "x-problems":
			doc.set("x-problems", m.remedies())
		case "x-common-responses":
			doc.set("x-common-responses", m.commonResponses(value))
		case "x-problem-schemas", "x-tag-paths", "x-address-rates", "x-wildcards":
		default:
			doc.set(member.name, value)
		}
	}
	for m.prune(doc) {
	}
	return layOutJSON(doc, "", 118) + "\n"
}

// remedies lists all problems with what to do about them.
func (m *openapiMaker) remedies() *jsonValue {
	all := jsonObjectOf()
	for _, c := range problemsOf(nouns()) {
		all.set(c.name, jsonObjectOf("status", c.status, "title", c.title, "remedy", c.remedy))
	}
	return all
}

// commonResponses describes the refusals of paths and methods that the document does not list. says is what the file
// written by hand says of them, by their codes.
func (m *openapiMaker) commonResponses(says *jsonValue) *jsonValue {
	all := jsonObjectOf()
	either := jsonObjectOf("anyOf", jsonListOf(refTo("schemas", "Problem"), refTo("schemas", "LeadProblem")))
	for _, c := range []*problemCode{codeNotFound, codeMethod} {
		headers := jsonObjectOf("X-Request-Id", refTo("headers", "X-Request-Id"))
		if c == codeMethod {
			headers.set("Allow", refTo("x-headers", "Allow"))
		}
		media := jsonObjectOf("schema", either, "examples", jsonObjectOf(c.name, m.problemExample(c, &route{})))
		all.set(strconv.Itoa(c.status), jsonObjectOf("description", says.at(c.name).text,
			"x-problem-codes", jsonTexts(c.name), "x-headers", headers,
			"content", jsonObjectOf("application/problem+json", media)))
	}
	return all
}

// moreThan returns the schema of an object that has all members of another one and more, each of its own, since
// released ones have no allOf.
func moreThan(of, more *jsonValue) *jsonValue {
	needed, properties := of.at("required").texts(), slices.Clone(of.at("properties").members)
	return jsonObjectOf("type", "object", "description", more.at("description").text,
		"required", jsonTexts(append(needed, more.at("required").texts()...)...),
		"properties", &jsonValue{kind: jsonObject, members: append(properties, more.at("properties").members...)})
}

// prune removes components that nothing refers to. It reports whether there were any.
func (m *openapiMaker) prune(doc *jsonValue) (pruned bool) {
	text := layOutJSON(doc, "", math.MaxInt)
	components := doc.at("components")
	for i := range components.members {
		kind := &components.members[i]
		if kind.name == "securitySchemes" {
			continue
		}
		kind.value.members = slices.DeleteFunc(kind.value.members, func(c jsonMember) bool {
			unused := !strings.Contains(text, `"#/components/`+kind.name+"/"+c.name+`"`) && c.name != "OAuthError"
			pruned = pruned || unused
			return unused
		})
	}
	return pruned
}

// withMade adds what is made to the components of a kind that are written by hand.
func (m *openapiMaker) withMade(kind string, hand *jsonValue) *jsonValue {
	all := &jsonValue{kind: jsonObject, members: slices.Clone(hand.members)}
	for _, key := range slices.Sorted(maps.Keys(m.made)) {
		name, ofKind := strings.CutPrefix(key, kind+" ")
		if _, both := hand.member(name); ofKind && both {
			m.t.Errorf("testdata/openapi-hand.json has %s, which is made", key)
		}
		if kind == "responses" && m.made["schemas "+name] != nil {
			m.t.Errorf("a response and a schema are called %s: name the response in responseNames", name)
		}
		if ofKind {
			all.set(name, m.made[key])
		}
	}
	for i := range all.members {
		if s := &all.members[i].value; s.at("x-more-than-problem").boolean {
			*s = *moreThan(m.made["schemas Problem"], s)
		}
	}
	return all
}

// addOperation adds the operation of a route to the paths.
func (m *openapiMaker) addOperation(paths []jsonMember, rt *route) []jsonMember {
	at := slices.IndexFunc(paths, func(p jsonMember) bool { return p.name == rt.path() })
	if at < 0 {
		at, paths = len(paths), append(paths, jsonMember{rt.path(), *jsonObjectOf()})
	}
	if list := m.wildcards(rt); len(list) > 0 {
		paths[at].value.set("parameters", jsonListOf(list...))
	}
	paths[at].value.set(strings.ToLower(rt.method()), m.operation(rt))
	return paths
}

// addRoot adds the operation of a root path, which no account is charged for and which needs no database.
func (m *openapiMaker) addRoot(paths []jsonMember, root *rootPath) []jsonMember {
	path := root.path
	if root.ofBase {
		path += documentPath
	}
	op := m.operation(&route{pattern: "GET " + path, free: true, open: root.open, answers: root.answers,
		endpoint: root.endpoint})
	all := op.at("responses")
	all.members = slices.DeleteFunc(all.members, func(m jsonMember) bool { return m.name != "200" && m.name != "500" })
	all.set("431", jsonObjectOf("description", "The headers of the request have more than 16 KiB."))
	server := jsonObjectOf("url", documentRoot, "description", "The root")
	return append(paths, jsonMember{path, *jsonObjectOf("servers", jsonListOf(server), "get", op)})
}

// withRefusals describes the refusals of an operation that is written by hand, which lists their codes in x-refuses.
func (m *openapiMaker) withRefusals(op *jsonValue) {
	names := op.at("x-refuses").text
	if names == "" {
		return
	}
	op.members = slices.DeleteFunc(op.members, func(m jsonMember) bool { return m.name == "x-refuses" })
	rt := &route{pattern: "POST /", raw: true, free: true, refuses: names}
	byStatus := map[string][]string{}
	for _, name := range strings.Fields(names) {
		status := strconv.Itoa(m.problems[name].status)
		byStatus[status] = append(byStatus[status], name)
	}
	for _, status := range slices.Sorted(maps.Keys(byStatus)) {
		op.at("responses").set(status, m.refusal(rt, op.at("operationId").text, status, byStatus[status]))
	}
}

// operation describes one route.
func (m *openapiMaker) operation(rt *route) *jsonValue {
	id := rt.endpoint.operation()
	summary, text, _ := strings.Cut(plainText(m.src.funcs[docOf(rt.endpoint.doc)]), "\n\n")
	if summary = strings.TrimSuffix(summary, "."); summary == "" || strings.Contains(summary, ". ") {
		m.t.Errorf("the comment of %s does not begin with a paragraph of one sentence", id)
	}
	op := jsonObjectOf("operationId", id, "tags", jsonTexts(m.tagOf(rt.path())), "summary", summary)
	if rt.noBody {
		text = strings.TrimSpace(text + " An empty body stands for `{}`.")
	}
	op.set("description", jsonTextOf(cmp.Or(text, summary+".")))
	if op.set("security", securityOf(rt)); rt.form != "" {
		op.set("security", m.byHand(rt, "security"))
	}
	if rt.scope != "" {
		op.set("x-required-scopes", jsonTexts(strings.Fields(rt.scope)...))
	}
	if !rt.free {
		limit := jsonObjectOf("bucket", cmp.Or(rt.bucket, bucketAccount))
		if rate := m.hand.at("x-address-rates", cmp.Or(rt.address, rt.ownAddress)); rate.kind == jsonNumber {
			limit.set("address", rate)
		}
		op.set("x-rate-limit", limit)
	}
	if takesBody(rt.method()) {
		op.set("x-max-body", jsonNumberOf(rt.bodyLimit()))
	}
	request := m.describe(rt)
	parameters := request.parameters
	for _, p := range m.byHand(rt, "parameters").list {
		if p.at("in").text == "path" { // of which no other operation has one
			parameters = append(parameters, &p)
		}
	}
	for _, header := range []struct {
		name string
		has  bool
	}{{"Origin", rt.origin == originRequired}, {"Idempotency-Key", rt.creates}, {"Prefer", rt.takesJSON()}} {
		if header.has {
			parameters = append(parameters, refTo("parameters", header.name))
		}
	}
	if isTagged(rt) {
		parameters = append(parameters, refTo("parameters", "If-None-Match"))
	}
	if len(parameters) > 0 {
		op.set("parameters", jsonListOf(parameters...))
	}
	if takesBody(rt.method()) {
		op.set("requestBody", m.requestBody(rt, id, request.body))
	}
	op.set("responses", m.responses(rt, id))
	return op
}

// docOf returns the name under which goSource has the comment of a function.
func docOf(pc uintptr) string {
	name := strings.TrimSuffix(runtime.FuncForPC(pc).Name(), "-fm") // "widgetd.(*server).createPlan"
	name = name[strings.IndexByte(name, '.')+1:]
	return strings.NewReplacer("(*", "", ")", "").Replace(name)
}

// tagOf returns the tag of a path: that of the longest beginning that testdata/openapi-hand.json has, else its first
// segment, and "service" of a file.
func (m *openapiMaker) tagOf(path string) string {
	best, tag := "", strings.Split(path, "/")[1]
	if strings.Contains(tag, ".") {
		tag = "service"
	}
	for _, of := range m.hand.at("x-tag-paths").members {
		if strings.HasPrefix(path, of.name) && len(of.name) > len(best) {
			best, tag = of.name, of.value.text
		}
	}
	return tag
}

// securityOf says which credentials a route takes.
func securityOf(rt *route) *jsonValue {
	var all []*jsonValue
	if rt.token != tokenRequired && rt.token != tokenIgnored {
		all = append(all, jsonObjectOf())
	}
	if rt.token == tokenLate {
		all = append(all, jsonObjectOf("deviceToken", jsonListOf()))
	}
	if rt.token != tokenIgnored {
		all = append(all, jsonObjectOf("bearerToken", jsonListOf()))
	}
	scopes := strings.Fields(rt.scope)
	ofApps := !slices.ContainsFunc(scopes, func(s string) bool { return !slices.Contains(appScopes, s) })
	if ofApps && !rt.noApps && rt.token != tokenIgnored && rt.token != tokenLate {
		all = append(all, jsonObjectOf("oauth2", jsonTexts(scopes...)))
	}
	return jsonListOf(all...)
}

// wildcards describes the wildcards of a path.
func (m *openapiMaker) wildcards(rt *route) (all []*jsonValue) {
	for _, found := range captures(`\{([a-z_]+)\}`, rt.path()) {
		if rt.endpoint.known().has(inPath, found) { // its reader describes it
			continue
		}
		p := m.hand.at("x-wildcards", rt.path()[:strings.Index(rt.path(), "{"+found+"}")]+"{"+found+"}")
		if p.kind != jsonString {
			m.t.Errorf("testdata/openapi-hand.json does not say which parameter {%s} of %s is", found, rt.path())
		}
		named, says, _ := strings.Cut(p.text, ": ")
		name, prefix, _ := strings.Cut(named, " ")
		m.made["parameters "+name] = jsonObjectOf("name", found, "in", "path", "required", true, "description", says,
			"schema", jsonObjectOf("type", "string"), "example", shownFirst[prefix])
		all = append(all, refTo("parameters", name))
	}
	return all
}

// A describedRequest is what a route reads.
type describedRequest struct {
	parameters []*jsonValue
	body       *jsonValue // the schema; without members: none is read
}

// A readingAt is a reading, with what is said of it.
type readingAt struct {
	reading
	says string
}

// readingMethods are the methods of an input that read one member: the comment of a reading is where they are called.
var readingMethods = []string{"member", "text", "object", "objects", "texts", "number", "numberOf",
	"timestamp", "parameter", "moment", "date", "boolTerm", "amount", "vatRate", "lines", "change",
	"readMember", "noteMember", "field", "fieldOf",
	"list", "anyObject", "has", "given", "refuseChange", "fields"}

// describe runs the reader of a route, and puts together what it would read.
func (m *openapiMaker) describe(rt *route) describedRequest {
	byPath, order := map[string][]*readingAt{}, []string{}
	find := func(r reading) *readingAt {
		at := slices.IndexFunc(byPath[r.path], func(other *readingAt) bool { return other.name == r.name })
		if at < 0 {
			if byPath[r.path] == nil {
				order = append(order, r.path)
			}
			byPath[r.path] = append(byPath[r.path], &readingAt{reading: reading{path: r.path, name: r.name}})
			at = len(byPath[r.path]) - 1
		}
		return byPath[r.path][at]
	}
	rt.endpoint.read(newDescribed(func(r reading) {
		into := find(r)
		asked, nullable, fixed := into.asked || r.asked, into.nullable || r.nullable, into.fixed || r.fixed
		if r.kind != jsonNull {
			into.reading, into.says = r, cmp.Or(m.said(r.name), into.says)
		}
		if r.need {
			into.need = required
		}
		into.asked, into.nullable, into.fixed = asked, nullable, fixed
	}))
	var out describedRequest
	for _, p := range slices.Concat(byPath[inPath], byPath[inQuery]) {
		out.parameters = append(out.parameters, m.parameter(rt, p))
	}
	out.body = m.object("#", m.requestName(rt), byPath)
	return out
}

// said returns the comment at the reading that is going on.
func (m *openapiMaker) said(name string) string {
	pcs := make([]uintptr, 20)
	frames, ofRow := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs)]), false
	for {
		f, more := frames.Next()
		method, ofInput := strings.CutPrefix(f.Function, "widgetd.(*input).")
		ofRow = ofRow || method == "noteMember"
		if !strings.HasSuffix(f.File, "_test.go") && (!ofInput || !slices.Contains(readingMethods, method)) {
			return m.src.reading(f.File, f.Line, name, ofRow)
		}
		if !more {
			return ""
		}
	}
}

// nestedName returns the name of the schema of an object, or of an element of a list, within an object of a request.
func nestedName(of, member string) string {
	name := of + codeName([]string{member})
	return cmp.Or(schemaNames[name], name)
}

// object returns the schema of the object of a request at a path, and adds those of objects within it.
func (m *openapiMaker) object(path, name string, byPath map[string][]*readingAt) *jsonValue {
	needed, properties := []string{}, jsonObjectOf()
	for _, r := range byPath[path] {
		if r.kind == jsonNull { // it is asked for or refused, and not read
			continue
		}
		if r.need == required && !r.asked {
			needed = append(needed, r.name)
		}
		if r.says == "" {
			m.t.Errorf("nothing is said of the member %s/%s", path, r.name)
		}
		p := m.readSchema(r)
		within, nested := path+"/"+r.name, nestedName(name, r.name)
		if r.kind == jsonArray {
			nested = nestedName(name, strings.TrimSuffix(r.name, "s"))
		}
		if byPath[within] != nil {
			of := m.object(within, nested, byPath)
			of.set("description", jsonTextOf(r.says))
			m.addSchema(nested, of)
			if p = refTo("schemas", nested); r.nullable {
				p = jsonObjectOf("anyOf", jsonListOf(p, jsonObjectOf("type", "null")))
			}
		} else if byPath[within+"/*"] != nil {
			m.addSchema(nested, m.object(within+"/*", nested, byPath))
			p.set("items", refTo("schemas", nested))
		}
		if _, isRef := p.member("$ref"); !isRef { // which says it
			p.set("description", jsonTextOf(r.says))
		}
		properties.set(r.name, p)
	}
	of := jsonObjectOf("type", "object")
	if len(needed) > 0 {
		of.set("required", jsonTexts(needed...))
	}
	if len(properties.members) > 0 {
		of.set("properties", properties)
	}
	return of
}

// readSchema returns the schema of what is read at one place.
func (m *openapiMaker) readSchema(r *readingAt) *jsonValue {
	kinds := map[jsonKind]string{jsonBool: "boolean", jsonNumber: "integer", jsonString: "string", jsonArray: "array",
		jsonObject: "object"}
	s := jsonObjectOf("type", kinds[r.kind])
	if ref := m.refToWords(r.check); ref != nil && r.kind == jsonString && !r.nullable {
		return ref
	}
	switch r.kind {
	case jsonNumber:
		s.set("format", jsonTextOf("int64"))
		s.set("minimum", jsonNumberOf(r.low))
		s.set("maximum", jsonNumberOf(r.high))
	case jsonString:
		m.addText(s, r)
	case jsonArray:
		if r.low > 0 {
			s.set("minItems", jsonNumberOf(r.low))
		}
		words := m.refToWords(r.check)
		if words == nil { // else it has at most all of them
			s.set("maxItems", jsonNumberOf(r.high))
		}
		if r.each > 0 {
			s.set("items", cmp.Or(words, m.addText(jsonObjectOf("type", "string"),
				&readingAt{reading: reading{need: true, high: r.each, check: r.check}})))
		}
	case jsonObject:
		switch {
		case r.each < 0:
			s.set("additionalProperties", jsonBoolOf(true))
		case r.each > 0:
			s.set("maxProperties", jsonNumberOf(r.high))
			s.set("propertyNames", jsonObjectOf("pattern", checkLeadType.pattern))
			s.set("additionalProperties", jsonObjectOf("type", "string", "maxLength", r.each))
		}
	}
	if r.nullable {
		allowNull(s)
	}
	return s
}

// refToWords refers to the schema of the declared type whose words are the only ones that pass; nil: there is none.
func (m *openapiMaker) refToWords(c *textCheck) *jsonValue {
	t := c.wordType
	if t == nil || !slices.Equal(m.words[t], c.words) || nullWord.MatchString(m.typeComment(t.Name())) {
		return nil
	}
	return m.answerSchema(t, "")
}

// addText adds what a text may be to its schema, and returns that.
func (m *openapiMaker) addText(s *jsonValue, r *readingAt) *jsonValue {
	c := r.check
	switch {
	case len(c.words) > 0:
		s.set("enum", jsonTexts(c.words...))
	case cmp.Or(c.format, r.format) != "":
		s.set("format", jsonTextOf(cmp.Or(c.format, r.format)))
	case c.pattern != "":
		s.set("pattern", jsonTextOf(c.pattern))
	}
	isID, isDate := c.pattern == idPattern(prefixOf(c.pattern)), c.format == "date" || r.format != ""
	if ofList := r.name == ""; len(c.words) > 0 || isID || isDate || ofList && c.pattern != "" {
		return s // says how long it is, too
	}
	notEmpty := bool(r.need) && c.pattern == "" && !r.lines && r.high > 0 // a field of a form has no high
	if least := max(c.least, map[bool]int{true: 1}[notEmpty]); least > 0 {
		s.set("minLength", jsonNumberOf(least))
	}
	saysMost := c.most == 0 && strings.HasSuffix(c.pattern, "}$")
	if most := cmp.Or(c.most, r.high); most > 0 && !saysMost {
		s.set("maxLength", jsonNumberOf(most))
	}
	return s
}

// prefixOf returns the prefix of ids that a pattern describes.
func prefixOf(pattern string) string {
	prefix, _, _ := strings.Cut(strings.TrimPrefix(pattern, "^"), "_")
	return prefix
}

// parameter describes a parameter of the query: shared ones by a reference.
func (m *openapiMaker) parameter(rt *route, r *readingAt) *jsonValue {
	if m.hand.at("components", "parameters", r.name, "in").text == "query" {
		return refTo("parameters", r.name)
	}
	s := m.readSchema(r)
	if n := r.check.numbers; n != [2]int{} {
		s = jsonObjectOf("type", "integer", "format", "int64", "minimum", n[0], "maximum", n[1])
	}
	if r.says == "" {
		m.t.Errorf("nothing is said of the parameter %s of %s", r.name, rt.pattern)
	}
	p := jsonObjectOf("name", r.name, "in", "query", "description", r.says, "schema", s)
	if r.path == inPath {
		p = jsonObjectOf("name", r.name, "in", "path", "required", true, "description", r.says, "schema", s)
	}
	example := m.examples.at(rt.endpoint.operation(), "parameters", r.name)
	if example.kind == jsonNull && r.name == "cursor" {
		example = m.shownCursor(rt.endpoint.operation())
	}
	if example.kind == jsonNull {
		example = r.example()
	}
	if example.text == "" {
		m.t.Errorf("there is no example of the parameter %s of %s: show one in testdata/http/document.txt", r.name,
			rt.pattern)
	}
	p.set("example", example)
	return p
}

// shownCursor returns the cursor that the list of an operation has behind the first element that is shown.
func (m *openapiMaker) shownCursor(id string) *jsonValue {
	for _, shown := range m.examples.at(id, "200").members {
		if data := shown.value.at("value", "data"); len(data.list) > 0 {
			return data.list[0].at("id")
		}
	}
	return &jsonValue{}
}

// example makes the example of a parameter that no exchange shows, from its check.
func (r *readingAt) example() *jsonValue {
	id := prefixOf(r.check.pattern)
	switch format := cmp.Or(r.check.format, r.format); {
	case len(r.check.words) > 0:
		return jsonTextOf(r.check.words[0])
	case format == "date":
		return jsonTextOf("2026-11-21")
	case format == "date-time":
		return jsonTextOf("2026-11-01T00:00:00Z")
	case r.check.numbers != [2]int{}:
		return jsonNumberOf(r.check.numbers[0])
	case r.check.pattern == idPattern(id):
		return jsonTextOf(shownFirst[id])
	}
	return &jsonValue{}
}

// requestName returns the name of the schema of a route's request; "": it has none.
func (m *openapiMaker) requestName(rt *route) string {
	name := schemaNames[rt.endpoint.operation()]
	if rt.endpoint.request != nil && rt.endpoint.request.Kind() == reflect.Struct && name == "" {
		name = m.nameOf(rt.endpoint.request)
	}
	return name
}

// requestBody describes the body of a request.
func (m *openapiMaker) requestBody(rt *route, id string, schema *jsonValue) *jsonValue {
	name := m.requestName(rt)
	if schemaNames[id] == "" && name != "" {
		if says := m.typeComment(rt.endpoint.request.Name()); says != "" {
			schema.set("description", jsonTextOf(says))
		}
	}
	if properties, has := schema.member("properties"); !has || len(properties.members) == 0 {
		name = "NoMembers"
		schema = jsonObjectOf("type", "object", "description", "A body without members.")
	}
	if name == "" {
		m.t.Errorf("the request of %s has no name: give it a type, or a line in schemaNames", id)
	}
	m.addSchema(name, schema)
	media := jsonObjectOf("schema", refTo("schemas", name))
	if examples := m.examples.at(id, "request"); len(examples.members) > 0 {
		media.set("examples", examples)
	}
	content := jsonObjectOf(rt.bodyType(), media)
	if rt.beacon {
		content.set("text/plain", media)
	}
	return jsonObjectOf("required", !rt.noBody, "content", content)
}

// addSchema adds a schema, which must be the same wherever it is used.
func (m *openapiMaker) addSchema(name string, schema *jsonValue) {
	if ref := m.shareAs("schemas", name, schema); ref == schema {
		m.t.Errorf("two schemas are called %s:\n%s\n%s", name, layOutJSON(m.made["schemas "+name], "", 80),
			layOutJSON(schema, "", 80))
	}
}

// jsonTextOf makes a string.
func jsonTextOf(text string) *jsonValue { return &jsonValue{kind: jsonString, text: text} }

func jsonNumberOf[N int | int64](n N) *jsonValue {
	return &jsonValue{kind: jsonNumber, text: strconv.FormatInt(int64(n), 10)}
}

func jsonBoolOf(b bool) *jsonValue { return &jsonValue{kind: jsonBool, boolean: b} }

func jsonTexts(texts ...string) *jsonValue {
	list := &jsonValue{kind: jsonArray}
	for _, text := range texts {
		list.list = append(list.list, *jsonTextOf(text))
	}
	return list
}

func jsonListOf(values ...*jsonValue) *jsonValue {
	list := &jsonValue{kind: jsonArray}
	for _, v := range values {
		list.list = append(list.list, *v)
	}
	return list
}

// jsonObjectOf makes an object of names and values.
func jsonObjectOf(pairs ...any) *jsonValue {
	o := &jsonValue{kind: jsonObject}
	for i := 0; i < len(pairs); i += 2 {
		var value *jsonValue
		switch v := pairs[i+1].(type) {
		case string:
			value = jsonTextOf(v)
		case int:
			value = jsonNumberOf(v)
		case bool:
			value = jsonBoolOf(v)
		case *jsonValue:
			value = v
		default:
			panic(fmt.Sprintf("%T", v))
		}
		o.set(pairs[i].(string), value)
	}
	return o
}

// set sets a member of an object.
func (v *jsonValue) set(name string, value *jsonValue) {
	if before, has := v.member(name); has {
		*before = *value
		return
	}
	v.members = append(v.members, jsonMember{name, *value})
}

// refTo makes a reference to a component.
func refTo(kind, name string) *jsonValue {
	return jsonObjectOf("$ref", "#/components/"+kind+"/"+name)
}

// capitalized returns a name with a capital.
func capitalized(name string) string {
	if name == "" {
		return ""
	}
	return string(unicode.ToUpper(rune(name[0]))) + name[1:]
}

// isTagged reports whether a route's answers have an ETag.
func isTagged(rt *route) bool { return rt.answers.tagged || rt.answers.static }

// refusalsOf returns the codes of a route's refusals: its own, and those that follow from the rest of it.
func (m *openapiMaker) refusalsOf(rt *route) []string {
	var all []string
	add := func(when bool, names ...string) {
		for _, name := range names {
			if when && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	own := strings.Fields(rt.refuses)
	body, named := takesBody(rt.method()), m.takesAccount(rt)
	add(body, "malformed_json")
	add(rt.creates, "malformed_header")
	add(rt.token == tokenRequired || slices.Contains(own, "token_required"), "token_required")
	add(rt.token != tokenIgnored, "invalid_token")
	add(rt.origin == originListed || rt.origin == originRequired, "origin_not_allowed")
	add(rt.scope != "" || named, "insufficient_scope")
	add(true, own...)
	add(named, "account_not_found")
	add(rt.creates, "idempotency_in_progress")
	add(body, "body_too_large")
	add(body && !rt.raw, "unsupported_media_type")
	add(!rt.noQuery, "validation_failed")
	add(rt.creates, "idempotency_key_reused")
	add(!rt.free || rt.address != "", "rate_limited")
	add(true, "internal", "row_unreadable")
	add(!rt.answers.static, "busy", "storage_full", "storage_unavailable")
	return all
}

// takesAccount reports whether a route reads ?account_id=.
func (m *openapiMaker) takesAccount(rt *route) (takes bool) {
	rt.endpoint.read(newDescribed(func(r reading) { takes = takes || r.path == inQuery && r.name == "account_id" }))
	return takes
}

// refusal describes the refusals of a route with one status. Those that several routes have are shared.
func (m *openapiMaker) refusal(rt *route, id, status string, names []string) *jsonValue {
	details, examples, schema, special := []string{}, jsonObjectOf(), refTo("schemas", "Problem"), ""
	for _, of := range m.hand.at("x-problem-schemas").members {
		words := strings.Fields(of.value.text)
		if slices.Contains(words, id) || slices.Contains(words, id+"/"+status) {
			schema, special = refTo("schemas", of.name), of.name
		}
	}
	for _, name := range names {
		c := m.problems[name]
		details = append(details, "`"+name+"`: "+c.detail)
		example := m.examples.at(id, status, name)
		if example.kind == jsonNull {
			example = m.problemExample(c, rt)
		}
		examples.set(name, example)
	}
	media := jsonObjectOf("schema", schema, "examples", examples)
	refusal := jsonObjectOf("description", strings.Join(details, " "), "x-problem-codes", jsonTexts(names...),
		"x-headers", m.headers(rt, status, names), "content", jsonObjectOf("application/problem+json", media))
	name := responseNames[strings.Join(names, " ")]
	if name == "" && len(names) > 3 { // clients that are generated have types of these names
		return refusal
	}
	return m.shareAs("responses", special+cmp.Or(name, codeName(names)), refusal)
}

// shareAs adds a component unless there is another one of the name, and returns a reference to it; else the value.
func (m *openapiMaker) shareAs(kind, name string, value *jsonValue) *jsonValue {
	key := kind + " " + name
	if before := m.made[key]; before != nil && layOutJSON(before, "", 80) != layOutJSON(value, "", 80) {
		return value
	}
	m.made[key] = value
	return refTo(kind, name)
}

// codeName returns the name of a shared response: "PlanNotFoundOrAccountNotFound".
func codeName(codes []string) string {
	var words []string
	for _, code := range codes {
		word := ""
		for _, part := range strings.Split(code, "_") {
			word += capitalized(part)
		}
		words = append(words, word)
	}
	return strings.Join(words, "Or")
}

// problemExample makes the example of a refusal.
func (m *openapiMaker) problemExample(c *problemCode, rt *route) *jsonValue {
	value := jsonObjectOf("type", documentRoot+"/docs#"+c.name, "title", c.title, "status", c.status,
		"detail", c.detail, "code", c.name, "request_id", "req_01m7yy3y7mt03d6gh2898ysjcg")
	for _, extra := range rt.members {
		value.set(extra.name, jsonBoolOf(extra.value.(bool)))
	}
	return jsonObjectOf("value", value)
}

// pictureHeaders are headers of an answer that is a picture, which browsers may open as a page.
var pictureHeaders = map[string]string{
	"Content-Security-Policy":      "Allows the style of the picture and nothing else.",
	"Cross-Origin-Resource-Policy": "`cross-origin`: every page may show it.",
}

// headers describes the headers of a response. Those of problems are x-headers: oapi-codegen makes a type of the
// headers of each status of each operation.
func (m *openapiMaker) headers(rt *route, status string, codes []string) *jsonValue {
	all := jsonObjectOf()
	add := func(when bool, names ...string) {
		for _, name := range names {
			if when {
				kind := "headers"
				if m.hand.at("components", "x-headers", name).kind == jsonObject {
					kind = "x-headers"
				}
				all.set(name, refTo(kind, name))
			}
		}
	}
	success := status[0] == '2' || status[0] == '3'
	add(true, "X-Request-Id")
	add(rt.takesJSON() && status[0] != '3' || !success, "Preference-Applied")
	add(success && rt.creates, "Idempotency-Replayed")
	add(status == "409" && rt.creates || status == "429" || status == "503", "Retry-After")
	ofToken := slices.Contains(codes, "token_required") || slices.Contains(codes, "invalid_token")
	add(ofToken || status == "403" && slices.Contains(codes, "insufficient_scope"), "WWW-Authenticate")
	if status == "403" && all.at("WWW-Authenticate").kind == jsonObject {
		all.set("WWW-Authenticate", refTo("x-headers", "ScopeChallenge"))
	}
	add(status == "415", "Accept")
	isOwn := func(code string) bool { return slices.Contains(strings.Fields(rt.refuses), code) }
	early := slices.Contains([]string{"400", "401", "413", "415"}, status) && !slices.ContainsFunc(codes, isOwn)
	add((!rt.free || !success) && !early, "RateLimit", "RateLimit-Policy")
	add(success && isTagged(rt), "Cache-Control", "ETag")
	add(success && rt.answers.cached, "Cache-Control")
	add(success && rt.open && !m.closed[rt.path()], "Access-Control-Allow-Origin")
	if success && status[0] == '2' && strings.HasPrefix(rt.answers.media, "image/") {
		for _, name := range slices.Sorted(maps.Keys(pictureHeaders)) {
			all.set(name, jsonObjectOf("description", pictureHeaders[name], "schema", jsonObjectOf("type", "string")))
		}
	}
	return all
}

// operation returns the name of the answering function, which is that of the operation in the OpenAPI document.
func (e *endpoint) operation() string {
	name := runtime.FuncForPC(e.doc).Name() // "widgetd.(*server).createPlan-fm"
	return strings.TrimSuffix(name[strings.LastIndexByte(name, '.')+1:], "-fm")
}
