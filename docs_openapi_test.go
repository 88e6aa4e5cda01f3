package main

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// routeOf returns the route of an operation; nil: it is a path at the root.
func routeOf(o *operation) *route { return routesByPattern()[o.name()] }

var routesByPattern = sync.OnceValue(func() map[string]*route {
	all := map[string]*route{}
	for _, r := range allRoutes() {
		all[r.pattern] = &r
	}
	return all
})

func TestOpenAPI_hasEveryRouteAndNoOther(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, w := range wingsOf(nouns(), &server{authenticator: &authenticator{}, steady: time.Now}) {
		for _, r := range w.routes {
			if r.page == nil {
				want = append(want, r.pattern)
			}
		}
		for _, root := range w.roots {
			if path := root.path; root.page {
				continue
			} else if strings.HasSuffix(path, "/") {
				want = append(want, "root GET "+path+"{path}", "root POST "+path+"{path}")
			} else if path != "/openapi.json" { // a route as well, so its path has both servers
				if root.ofBase {
					path += documentPath
				}
				want = append(want, "root GET "+path)
			}
		}
	}
	ids := map[string]bool{}
	for _, o := range operations() {
		name := o.name()
		if o.atRoot {
			name = "root " + name
		}
		got = append(got, name)
		if ids[o.id()] || !matches(`^[a-z][a-zA-Z]+$`, o.id()) {
			t.Errorf("%s: operationId %q", name, o.id())
		}
		ids[o.id()] = true
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the service has\n%s\nand the document\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

func TestOpenAPI_saysWhatTheRouteTableSays(t *testing.T) {
	t.Parallel()
	rate, err := strconv.ParseFloat(optAnonymousRate.def, 64)
	must(t, err)
	visitorRate, err := strconv.ParseFloat(optVisitorRate.def, 64)
	must(t, err)
	security := map[tokenRule]string{
		tokenIgnored: `[]`, tokenOptional: `[{},{"bearerToken":[]}%s]`, tokenRequired: `[{"bearerToken":[]}%s]`,
		tokenLate: `[{},{"deviceToken":[]},{"bearerToken":[]}]`,
	}
	for _, o := range operations() {
		r := routeOf(o)
		if r == nil {
			continue
		}
		differs := func(what string, want, got any) {
			t.Helper()
			if fmt.Sprint(want) != fmt.Sprint(got) {
				t.Errorf("%s: %s is %v in the document, and %v in the service", o.name(), what, got, want)
			}
		}
		scopes := []string{}
		scopes = append(scopes, strings.Fields(r.scope)...)
		differs("x-required-scopes", scopes, append([]string{}, texts(o.node, "x-required-scopes")...))
		text, _ := json.Marshal(o.node["security"])
		want := security[r.token]
		if r.refused != nil {
			want = `[{"clientSecret":[]},{}]`
		}
		if strings.Contains(want, "%s") {
			want = fmt.Sprintf(want, applicationsOf(r))
		}
		differs("security", want, string(text))

		limit := node{"bucket": cmp.Or(r.bucket, bucketAccount)}
		if r.address != "" {
			limit["address"] = rate
		} else if r.admit != nil {
			limit["address"] = visitorRate
		}
		if r.free {
			limit = nil
		}
		differs("x-rate-limit", limit, child(o.node, "x-rate-limit"))

		body, takes := child(o.node, "requestBody"), takesBody(r.method())
		differs("requestBody", takes, body != nil)
		differs("text/plain", r.beacon, child(body, "content", "text/plain") != nil)
		if takes {
			differs("required of requestBody", !r.noBody, body["required"])
			differs("x-max-body", r.bodyLimit(), o.node["x-max-body"])
		}
		differs("Prefer", r.takesJSON(), o.parameter("Prefer") != nil)
		for status, response := range o.responses() {
			if says := headersOf(openapiDocument(), response)["Preference-Applied"] != nil; r.takesJSON() && !says {
				t.Errorf("%s: %s lacks Preference-Applied", o.name(), status)
			}
		}
		if schema := child(body, "content", "application/json", "schema"); len(propertiesOf(schema)) > 0 {
			const misspelt = "refused if it is nearly one that is, else ignored."
			differs("what becomes of misspelt members", r.careful,
				strings.Contains(schema["description"].(string), misspelt))
		}
		differs("Idempotency-Key", r.creates, o.parameter("Idempotency-Key") != nil)
		differs("Origin", r.origin == originRequired, o.parameter("Origin") != nil)
		differs("form", r.form, child(body, "content", "application/x-www-form-urlencoded") != nil)
		_, busy := child(o.node, "responses", "503")["description"].(string)
		differs("503", r.path() != "/openapi.json", busy)
		asks := strings.HasPrefix(fmt.Sprint(child(o.node, "responses", "503")["description"]),
			"This could not be read within two seconds")
		differs("question", r.question || r.recalled != nil, asks)
		if r.refused == nil {
			checkCodesOf(o, r, differs)
		}
	}
}

// applicationsOf returns what the security of a route that takes tokens has for those of applications: the scheme
// oauth2 with the scope, or nothing where no application can have it.
func applicationsOf(r *route) string {
	switch {
	case r.scope == "":
		return `,{"oauth2":[]}`
	case scopesWithin(r.scope, strings.Join(appScopes, " ")) == r.scope:
		return `,{"oauth2":["` + strings.ReplaceAll(r.scope, " ", `","`) + `"]}`
	}
	return ""
}

// takesBody reports whether requests of a method have a body.
func takesBody(method string) bool { return slices.Contains([]string{"POST", "PATCH", "PUT"}, method) }

// checkCodesOf compares the problem codes of an operation with what its route makes it answer.
func checkCodesOf(o *operation, r *route, differs func(what string, want, got any)) {
	var codes []string
	for _, response := range o.responses() {
		codes = append(codes, texts(response, "x-problem-codes")...)
	}
	takes := takesBody(r.method())
	for code, want := range map[string]bool{
		"internal":                true,
		"validation_failed":       true,
		"rate_limited":            !r.free || r.raw, // webhooks with a wrong signature
		"token_required":          r.token == tokenRequired || strings.HasPrefix(r.pattern, "GET /widget/stats"),
		"invalid_token":           r.token != tokenIgnored,
		"insufficient_scope":      r.scope != "" || r.token == tokenRequired, // ?account_id= needs one
		"origin_not_allowed":      r.origin != originAny,
		"malformed_json":          takes,
		"body_too_large":          takes,
		"unsupported_media_type":  takes && !r.raw,
		"malformed_header":        r.creates,
		"idempotency_in_progress": r.creates,
		"idempotency_key_reused":  r.creates,
		"storage_unavailable":     !r.free || r.raw,
	} {
		differs(code, want, slices.Contains(codes, code))
	}
	replays := false
	for status, response := range o.responses() {
		if status[0] == '2' {
			replays = replays || headersOf(openapiDocument(), response)["Idempotency-Replayed"] != nil
		}
	}
	differs("Idempotency-Replayed", r.creates, replays)
}

func TestOpenAPI_listsEveryProblemCodeAndNoOther(t *testing.T) {
	t.Parallel()
	listed := child(openapiDocument(), "x-problems")
	enum := texts(child(openapiDocument(), "components", "schemas", "ProblemCode"), "enum")
	byName := map[string]*problemCode{}
	for _, c := range problemsOf(nouns()) {
		byName[c.name] = c
		entry := child(listed, c.name)
		if entry == nil || !slices.Contains(enum, c.name) {
			t.Errorf("%s is missing in x-problems or in ProblemCode", c.name)
		} else if entry["status"] != float64(c.status) || entry["title"] != c.title || entry["remedy"] == "" {
			t.Errorf("%s is %v in the document, and %d %q in the service", c.name, entry, c.status, c.title)
		}
	}
	if len(enum) != len(byName) || len(listed) != len(byName) {
		t.Errorf("%d codes in x-problems and %d in ProblemCode, %d in the service", len(listed), len(enum), len(byName))
	}
	used := map[string]bool{}
	judge := func(where, status string, response node) {
		for _, code := range texts(response, "x-problem-codes") {
			used[code] = true
			if c := byName[code]; c == nil || strconv.Itoa(c.status) != status {
				t.Errorf("%s: %s is not a code of the status %s", where, code, status)
			}
			if child(response, "content", "application/problem+json", "examples", code) == nil {
				t.Errorf("%s %s has no example of %s", where, status, code)
			}
		}
	}
	for _, o := range operations() {
		for status, response := range o.responses() {
			judge(o.name(), status, response)
		}
	}
	for status := range child(openapiDocument(), "x-common-responses") {
		judge("x-common-responses", status, child(openapiDocument(), "x-common-responses", status))
	}
	for name := range byName {
		if !used[name] {
			t.Errorf("no response has the code %s", name)
		}
	}
}

func TestOpenAPI_listsEveryWordOfAClosedList(t *testing.T) {
	t.Parallel()
	events := []string{}
	for _, e := range eventTypesOf(nouns()) {
		events = append(events, string(e))
	}
	subscribed := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return e == string(eventWebhookTest) })
	for _, c := range []struct {
		schema, member string
		want           []string
	}{
		{"EventType", "", events},
		{"WebhookType", "", subscribed},
		{"Webhook", "state", []string{webhookPending, webhookEnabled, webhookDisabled}},
		{"Webhook", "reason", []string{disabledByOwner, disabledGone, disabledFailing, ""}},
		{"Order", "state", orderStates},
		{"Order", "dispute", []string{"open", "won", "lost", ""}},
		{"Order", "closing", []string{closingExpired, closingPaid, closingMethod, ""}},
		{"Order", "method", append([]string{methodCard, methodMobile, methodTwint, methodNone, ""}, outsideMethods...)},
		{"OrderPayment", "state", []string{paymentCreated, paymentPending, paymentAuthorized, paymentCaptured,
			paymentPartRefunded,
			paymentRefunded, paymentFailed, paymentCancelled, paymentExpired, paymentReview}},
		{"NewOrder", "currency", currencies},
		{"PaidOutside", "method", outsideMethods},
		{"Refund", "state", []string{refundPending, refundSucceeded, refundFailed}},
		{"Delivery", "outcome", []string{outcomeSucceeded, outcomeFailed}},
		{"Verification", "code", slices.Collect(maps.Keys(verdictDetails))},
		{"License", "status", statuses},
		{"LicenseSummary", "status", statuses},
		{"Device", "state", []string{deviceActive, deviceReleased, deviceBlocked}},
		{"Health", "status", []string{healthPass, healthWarn, healthFail}},
	} {
		schema := child(openapiDocument(), "components", "schemas", c.schema)
		if c.member != "" {
			schema = child(schema, "properties", c.member)
		}
		got := slices.Sorted(slices.Values(texts(schema, "enum")))
		if want := slices.Sorted(slices.Values(c.want)); !slices.Equal(got, want) {
			t.Errorf("%s.%s lists\n%q, and the service has\n%q", c.schema, c.member, got, want)
		}
	}
}

// TestOpenAPI_describesWhatIsPostedToWebhooks holds the member webhooks of the document against what the
// service makes of events, and its example against the signature that it shows.
func TestOpenAPI_describesWhatIsPostedToWebhooks(t *testing.T) {
	t.Parallel()
	op := child(openapiDocument(), "webhooks", "event", "post")
	media := child(op, "requestBody", "content", "application/json")
	big := strings.Repeat("x", maxWebhookBody)
	ids := event{ID: newID("evt", time.Now()), At: newStamp(time.Now()), Type: eventDeviceActivated,
		AccountID: newID("acct", time.Now())}
	device := ids
	device.LicenseID, device.DeviceID = newID("lic", time.Now()), newID("dev", time.Now())
	device.SubjectID = device.LicenseID
	lead := ids
	lead.LeadID, lead.Data = newID("lead", time.Now()), eventData("type", "newsletter")
	ordered := ids
	ordered.OrderID = newID("ord", time.Now())
	for _, e := range []event{ids, device, lead, ordered, {ID: ids.ID, At: ids.At, Type: ids.Type,
		AccountID: ids.AccountID, Data: eventData("big", big)}} {
		if e.Data == nil {
			e.Data = json.RawMessage("{}")
		}
		body, err := webhookBody(&e)
		var posted any
		if err = errors.Join(err, json.Unmarshal(body, &posted)); err != nil {
			t.Fatal(err)
		}
		for _, fault := range checkSchema(child(media, "schema"), posted, "#", true) {
			t.Errorf("%s: %s", body, fault)
		}
	}
	examples := child(media, "examples")
	for name := range examples {
		for _, fault := range checkSchema(child(media, "schema"), child(examples, name)["value"], "#", true) {
			t.Errorf("the example %s: %s", name, fault)
		}
	}
	header := http.Header{}
	for _, p := range op["parameters"].([]any) {
		p := p.(node)
		header.Set(p["name"].(string), p["example"].(string))
		if faults := checkSchema(child(p, "schema"), p["example"], p["name"].(string), true); len(faults) > 0 ||
			p["in"] != "header" || p["required"] != true {
			t.Errorf("the header %s: %v", p["name"], faults)
		}
	}
	checkExampleSignature(t, header, child(examples, "activated")["value"].(node))
	two := webhookHeaders([][]byte{make([]byte, 32), make([]byte, 32)}, ids.ID, time.Now(), nil)
	for name := range two {
		if header.Get(name) == "" || len(two) != len(header) {
			t.Errorf("the document has the headers %v, and the service sends %v", header, two)
		}
	}
	for _, p := range op["parameters"].([]any) {
		for _, fault := range checkSchema(child(p.(node), "schema"), two.Get(p.(node)["name"].(string)),
			"with two secrets", true) {
			t.Error(fault)
		}
	}
	for _, status := range []string{"2XX", "410", "429", "503", "default"} {
		if child(op, "responses", status)["description"] == nil {
			t.Errorf("it is not said what %s means", status)
		}
	}
}

// checkExampleSignature checks the example of a signature: whoever tries a library with the document's
// examples must find that they fit, with the secret that the document shows.
func checkExampleSignature(t *testing.T, header http.Header, body node) {
	t.Helper()
	answer := child(operationByID(t, "createWebhook").node, "responses", "200", "content", "application/json",
		"examples", "added", "value")
	secret, err := parseWebhookSecret(answer["secret"].(string))
	must(t, err)
	data := body["data"].(node)
	e := event{ID: body["id"].(string), Type: eventType(body["type"].(string)), AccountID: data["account_id"].(string),
		Data: json.RawMessage("{}")}
	e.SubjectID, e.LicenseID, e.DeviceID = data["subject_id"].(string), data["license_id"].(string),
		data["device_id"].(string)
	if e.At.Time, err = time.Parse(time.RFC3339, body["timestamp"].(string)); err != nil {
		t.Fatal(err)
	}
	posted, err := webhookBody(&e)
	if err = errors.Join(err, verifyWebhook(secret, header, posted, e.At.Time)); err != nil {
		t.Errorf("the example %s with %v: %v", posted, header, err)
	}
}

// readers are the methods of input, and of termsReader, that read a member of a body, and those
// that read a parameter of a query.
var readers = map[string]string{
	"text": "member", "number": "member", "texts": "member", "object": "member", "objects": "member",
	"timestamp": "member",
	"fields":    "member", "member": "member", "textTerm": "member", "numberTerm": "member", "boolTerm": "member",
	"timeTerm": "member", "codesTerm": "member", "objectTerm": "member", "amount": "member", "lines": "member",
	"parameter": "parameter", "date": "parameter", "moment": "parameter",
}

// The names that the code reads are found in its source, so that a member that somebody adds must be
// in the document too. That each route reads its own is what the next test finds.
func TestOpenAPI_hasEveryMemberAndParameterThatTheCodeReads(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	documented := map[string]bool{}
	for _, o := range operations() {
		for _, p := range o.params {
			documented["parameter "+p["name"].(string)] = true
		}
		for _, m := range bodyMembers(o) {
			documented["member "+m.names[len(m.names)-1]] = true
		}
	}
	found := 0
	for _, f := range sourceFiles(t) {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			name, isText := call.Args[0].(*ast.BasicLit)
			if !ok || !isText || readers[method.Sel.Name] == "" || !isInput(source(t).info.Uses[method.Sel]) {
				return true
			}
			text, err := strconv.Unquote(name.Value)
			if err != nil {
				return true
			}
			found++
			if !documented[readers[method.Sel.Name]+" "+text] {
				t.Errorf("%s: the document has no %s %s", source(t).at(call), readers[method.Sel.Name], text)
			}
			return true
		})
	}
	if found < 50 {
		t.Errorf("found %d reads only: the test sees too little", found)
	}
}

// isInput reports whether a method is one of input or of termsReader.
func isInput(method types.Object) bool {
	fn, ok := method.(*types.Func)
	if !ok || fn.Signature().Recv() == nil {
		return false
	}
	of := fn.Signature().Recv().Type().String()
	return strings.HasSuffix(of, "main.input") || strings.HasSuffix(of, "main.termsReader")
}

// A bodyMember is one member that a body may have, at any depth.
type bodyMember struct {
	names    []string // "device", "name"; "0" for an element of a list
	schema   node
	required bool
}

func (m bodyMember) pointer() string { return "#/" + strings.Join(m.names, "/") }

// bodyMembers lists the members of an operation's body, the outer ones first.
func bodyMembers(o *operation) (all []bodyMember) {
	var list func(schema node, names []string)
	list = func(schema node, names []string) {
		required := texts(schema, "required")
		for _, name := range slices.Sorted(maps.Keys(propertiesOf(schema))) {
			m := bodyMember{append(slices.Clone(names), name), resolve(propertiesOf(schema)[name]),
				slices.Contains(required, name)}
			all = append(all, m)
			list(m.schema, m.names)
			if items := child(m.schema, "items"); items["type"] == "object" {
				list(items, append(slices.Clone(m.names), "0"))
			}
		}
	}
	list(child(o.node, "requestBody", "content", "application/json", "schema"), nil)
	return all
}

// edges returns values that a schema does not allow (breaks), and some (fits) at the edge of what it allows, by
// what they try.
func edges(schema node) (breaks, fits map[string]any) {
	breaks, fits = map[string]any{"a wrong type": []any{[]any{1}}}, map[string]any{}
	types := typesOf(schema)
	if !slices.Contains(types, "null") && types != nil {
		breaks["null"] = nil
	} else {
		fits["null"] = nil
	}
	number := func(name string) (int, bool) { n, ok := schema[name].(float64); return int(n), ok }
	plain := schema["pattern"] == nil && schema["format"] == nil && schema["enum"] == nil
	if n, ok := number("maxLength"); ok {
		long := strings.Repeat("é", n)
		breaks["a long text"] = long + "e"
		if plain {
			fits["the longest text"] = long
		}
	}
	if n, ok := number("minLength"); ok && n == 1 {
		breaks["an empty text"] = ""
	}
	if n, ok := number("minimum"); ok {
		breaks["a small number"], fits["the smallest number"] = n-1, n
	}
	if n, ok := number("maximum"); ok {
		breaks["a large number"], fits["the largest number"] = n+1, n
	}
	if schema["pattern"] != nil || schema["format"] != nil {
		breaks["another form"] = "\u00a0?"
	}
	for _, word := range texts(schema, "enum") {
		if word == "" { // null
			continue
		}
		fits["the word "+word], breaks["another word"] = word, "others"
	}
	if n, ok := number("maxItems"); ok {
		element := any("code")
		if child(schema, "items")["type"] == "object" {
			element = node{"type": "view"}
		}
		breaks["a long list"] = slices.Repeat([]any{element}, n+1)
	}
	if n, ok := number("minItems"); ok && n == 1 {
		breaks["an empty list"] = []any{}
	}
	if n, ok := number("maxProperties"); ok {
		fields := node{}
		for i := range n + 1 {
			fields[fmt.Sprint("field", i)] = "x"
		}
		breaks["many members"] = fields
	}
	return breaks, fits
}

// setMember returns body, an object or list, with a member set, or removed for absent.
func setMember(body any, names []string, value any) any {
	if len(names) == 0 {
		return value
	}
	if list, ok := body.([]any); ok {
		list = slices.Clone(list)
		list[0] = setMember(list[0], names[1:], value)
		return list
	}
	object, _ := body.(node)
	if object = maps.Clone(object); object == nil {
		object = node{}
	}
	object[names[0]] = setMember(object[names[0]], names[1:], value)
	if value == (absent{}) && len(names) == 1 {
		delete(object, names[0])
	}
	return object
}

type absent struct{}

// ofAnother are the codes of faults that no schema shows: of a value that fits, but not the connection's product,
// the kind of a mapping's line or the type of a fulfilment.
var ofAnother = []string{"not_of_this_product", "not_of_this_kind", "not_of_this_type", "invalid_cost_center"}

// ofKind are members that a schema allows to be absent, which the kind of the line, or the type, in the example
// needs.
var ofKind = []string{"#/lines/0/vat_rate", "#/lines/0/tax", "#/fulfilment/address"}

// unless are members that may be absent only beside another, which the example lacks, or without one that it has.
var unless = []string{"POST /licenses #/product", "POST /plans/{id}/apply #/revision",
	"POST /widget/license/activate #/nonce"}

func TestOpenAPI_bodyMembersAreJudgedAsTheirSchemasSay(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	f := newExampleFixture(t)
	tried := 0
	for _, o := range operations() {
		members := bodyMembers(o)
		if len(members) == 0 || o.atRoot {
			continue
		}
		base := f.fill(firstExample(o))
		// refuses sends the body with the member so, and reports whether the answer names it.
		refuses := func(m bodyMember, value any) bool {
			t.Helper()
			text, err := json.Marshal(setMember(base, m.names, value))
			f.check(err)
			headers := append(f.headersOf(o), "Authorization: Bearer "+f.lease)
			if o.parameter("Idempotency-Key") == nil || !strings.HasPrefix(o.path, "/widget/license/") {
				headers = append(f.headersOf(o), map[bool]string{true: "Authorization: Bearer " + f.lease,
					false: "Accept: */*"}[strings.HasPrefix(o.path, "/widget/license/")])
			}
			a := f.do(o.method, f.pathOf(o), string(text), headers...)
			tried++
			return a.status == 422 && slices.ContainsFunc(a.wrong(), func(w string) bool {
				if _, code, _ := strings.Cut(w, " "); slices.Contains(ofAnother, code) {
					return false
				}
				return strings.HasPrefix(w, m.pointer()+" ") || strings.HasPrefix(w, m.pointer()+"/") ||
					a.text("code") == "key_malformed" && m.names[0] == "license_key"
			})
		}
		for _, m := range members {
			breaks, fits := edges(m.schema)
			if slices.Contains(ofKind, m.pointer()) {
				m.required = true
				delete(fits, "null")
			}
			if slices.Contains(unless, o.name()+" "+m.pointer()) {
				m.required = true
			}
			for what, value := range breaks {
				if !refuses(m, value) {
					t.Errorf("%s takes %s as %s", o.name(), what, m.pointer())
				}
			}
			for what, value := range fits {
				if refuses(m, value) {
					t.Errorf("%s refuses %s as %s", o.name(), what, m.pointer())
				}
			}
			if refuses(m, absent{}) != m.required {
				t.Errorf("%s: %s is required: %v in the document", o.name(), m.pointer(), m.required)
			}
		}
		if refuses(bodyMember{names: []string{"of_a_later_version"}}, []any{node{"x": 1}}) {
			t.Errorf("%s refuses a member that it does not know", o.name())
		}
	}
	if tried < 200 {
		t.Errorf("sent %d bodies only", tried)
	}
}

func TestOpenAPI_parametersAreJudgedAsTheirSchemasSay(t *testing.T) {
	t.Parallel()
	f := newExampleFixture(t)
	tried := 0
	for _, o := range operations() {
		for _, p := range o.params {
			name, schema := p["name"].(string), child(p, "schema")
			if p["in"] != "query" {
				continue
			}
			body := ""
			if takesBody(o.method) {
				body = encode(f.fill(firstExample(o)))
			}
			judge := func(value any, want bool) {
				t.Helper()
				tried++
				query := "?" + queryOf(name, fmt.Sprint(value))
				a := f.do(o.method, f.pathOf(o)+query, body, f.headersOf(o)...)
				named := a.status == 422 && slices.ContainsFunc(a.wrong(),
					func(w string) bool { return strings.HasPrefix(w, "?"+name+" ") })
				if named != want {
					t.Errorf("%s %s: refused is %v, want %v: %d %s", o.name(), query, named, want, a.status, a.body)
				}
			}
			breaks, fits := edges(schema)
			delete(breaks, "a wrong type")
			delete(breaks, "null")
			delete(fits, "null")
			for _, value := range breaks {
				judge(value, true)
			}
			for _, value := range fits {
				judge(value, false)
			}
			if p["required"] == true {
				t.Errorf("%s: the parameter %s is required", o.name(), name)
			}
		}
	}
	if tried < 60 {
		t.Errorf("sent %d queries only", tried)
	}
}

// encode returns a value as JSON.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestOpenAPI_isServedAtTheRootAndBelowTheBaseAddress(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, path := range []string{"//openapi.json", "/openapi.json"} {
		a := s.get(path).is(200).has("Content-Type: application/json", "Cache-Control: public, max-age=300",
			"Vary: Accept-Encoding",
			"Access-Control-Allow-Origin: *", "Content-Encoding: ",
			"Content-Length: "+strconv.Itoa(len(s.get(path).body)), "RateLimit: ")
		tag := a.header.Get("ETag")
		if !matches(`^"[0-9a-f]{24}"$`, tag) || s.get("//openapi.json").body != a.body {
			t.Errorf("%s: ETag %s", path, tag)
		}
		if fresh := s.get(path, "If-None-Match: "+tag).is(304).has("ETag: "+tag, "Cache-Control: public, max-age=300",
			"Vary: Accept-Encoding"); fresh.body != "" {
			t.Errorf("%s: a 304 with a body", path)
		}
		s.get(path, `If-None-Match: "another"`).is(200)
		s.do("HEAD", path, "").is(200).has("ETag: "+tag, "Content-Length: "+strconv.Itoa(len(a.body)))
		s.post(path, "").is(405, "method_not_allowed").has("Allow: GET, HEAD, OPTIONS")
		for _, origin := range []string{siteOrigin, "https://elsewhere.example", "null"} {
			s.get(path, "Origin: "+origin).is(200).has("Access-Control-Allow-Origin: *", "Vary: Accept-Encoding")
			s.do("OPTIONS", path, "", "Origin: "+origin, "Access-Control-Request-Method: GET").is(204).has(
				"Access-Control-Allow-Origin: *",
				"Access-Control-Allow-Methods: GET, HEAD", "Access-Control-Max-Age: 7200",
				"Access-Control-Allow-Credentials: ")
		}
		s.do("OPTIONS", path, "").is(204).has("Allow: GET, HEAD, OPTIONS")
	}
}

func TestOpenAPI_isCompressedForWhoAcceptsIt(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	plain := s.get("/openapi.json").is(200)
	for accept, compressed := range map[string]bool{
		"gzip": true, "GZip": true, "gzip, deflate, br": true, "br, gzip;q=0.5": true, "*": true, "x-gzip": true,
		"gzip ; q=1.0": true, "": false, "identity": false, "br": false, "gzip;q=0": false, "gzip;q=0.000, *": false,
		"*;q=0": false, "gzip;q=x": false, "gzipped": false, "gzip;q=2": false, "gzip;q=NaN": false,
	} {
		a := s.get("/openapi.json", "Accept-Encoding: "+accept).is(200).has("Vary: Accept-Encoding")
		if !compressed {
			if a.has("Content-Encoding: "); a.body != plain.body {
				t.Errorf("Accept-Encoding %q changes the body", accept)
			}
			continue
		}
		a.has("Content-Encoding: gzip", "Content-Type: application/json", "Content-Length: "+strconv.Itoa(len(a.body)))
		z, err := gzip.NewReader(strings.NewReader(a.body))
		s.check(err)
		text, err := io.ReadAll(z)
		s.check(err)
		if string(text) != plain.body || len(a.body)*5 > len(text) {
			t.Errorf("Accept-Encoding %q: %d bytes, and %d when decompressed", accept, len(a.body), len(text))
		}
		tag := a.header.Get("ETag")
		if tag == plain.header.Get("ETag") {
			t.Error("two encodings share a strong ETag")
		}
		s.get("/openapi.json", "Accept-Encoding: "+accept, "If-None-Match: "+tag).is(304).has("ETag: " + tag)
	}
}

func TestOpenAPI_namesTheConfiguredBaseAddress(t *testing.T) {
	t.Parallel()
	s := newService(t)
	before := s.get("//openapi.json").is(200)
	if again := s.get("//openapi.json"); again.header.Get("ETag") != before.header.Get("ETag") {
		t.Error("the document changes by itself")
	}
	s.must("base-url", "set", "https://menus.example:8443/api/v1")
	s.check(s.server.refresh())
	after := s.do("GET", "//api/v1/openapi.json", "").is(200)
	for text, a := range map[string]answer{testBase: before, "https://menus.example:8443/api/v1": after} {
		base := strings.TrimSuffix(text, "/v1")
		root := strings.TrimSuffix(base, "/api")
		servers := func(n node) string { return fmt.Sprint(n["servers"].([]any)[0].(node)["url"]) }
		paths := a.json()["paths"].(node)
		if got := servers(a.json()); got != text {
			t.Errorf("servers names %s, want %s", got, text)
		}
		if got := servers(paths["/livez"].(node)); got != root {
			t.Errorf("the servers of /livez name %s, want %s", got, root)
		}
		if strings.Contains(a.body, "api.example.net") {
			t.Error("the document still has the address that it was written with")
		}
	}
	if after.header.Get("ETag") == before.header.Get("ETag") {
		t.Error("another document has the same ETag")
	}
}

// TestOpenAPI_generatesGoodClients holds the document to what generators make of it: with a default an optional member
// becomes a required one, an object within an object gets no name, an integer may have 32 bits only, and the headers of
// each problem become a type.
func TestOpenAPI_generatesGoodClients(t *testing.T) {
	t.Parallel()
	var walk func(at string, v any)
	walk = func(at string, v any) {
		object, _ := v.(node)
		if list, ok := v.([]any); ok {
			for i, e := range list {
				walk(fmt.Sprint(at, "/", i), e)
			}
		}
		properties, _ := object["properties"].(node)
		_, scalar := object["default"].(node)
		switch outer := strings.Count(at, "/") == 3 && strings.HasPrefix(at, "#/components/schemas/"); {
		case object["type"] != nil && object["default"] != nil && !scalar:
			t.Errorf("%s has the default %v", at, object["default"])
		case len(properties) > 0 && !outer && !strings.Contains(at, "/allOf/"):
			t.Errorf("%s has no name", at)
		case slices.Contains(typesOf(object), "integer") && object["format"] != "int64":
			t.Errorf("%s has the format %v", at, object["format"])
		case matches("/responses/([45]..|[A-Z][A-Za-z]+)$", at) && object["headers"] != nil:
			t.Errorf("%s has headers, and no x-headers", at)
		}
		for name, member := range object {
			if !slices.Contains([]string{"example", "examples", "enum", "webhooks", "x-problems"}, name) {
				walk(at+"/"+name, member)
			}
		}
	}
	walk("#", openapiDocument())
}

// TestOpenAPI_isReadable holds the file to what JSON can't: no member twice, and no line that a
// tab, a missing indentation or a space at its end has come into.
func TestOpenAPI_isReadable(t *testing.T) {
	t.Parallel()
	number := 0
	for line := range strings.Lines(embedded("web/openapi.json")) {
		number++
		text := strings.TrimRight(line, "\n")
		if indent := len(text) - len(strings.TrimLeft(text, " ")); indent%2 != 0 || strings.Contains(text, "\t") ||
			strings.HasSuffix(text, " ") {
			t.Errorf("web/openapi.json:%d: %s", number, text)
		}
	}
	decoder := json.NewDecoder(strings.NewReader(embedded("web/openapi.json")))
	var open []map[string]bool // the names so far in each object that is open; nil: a list
	name := false              // whether the next token is a member's name
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		}
		must(t, err)
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				open, name = append(open, map[string]bool{}), true
			case '[':
				open, name = append(open, nil), false
			default:
				open = open[:len(open)-1]
				name = len(open) > 0 && open[len(open)-1] != nil
			}
			continue
		case string:
			if name {
				if names := open[len(open)-1]; names[v] {
					t.Errorf("before byte %d: the member %s is there twice", decoder.InputOffset(), v)
				} else {
					names[v] = true
				}
				name = false
				continue
			}
		}
		name = open[len(open)-1] != nil
	}
}

// BenchmarkOpenAPI holds the document against a bare net/http server that writes the same bytes, in
// turn; the metric is the rate of the service divided by that of the bare server.
func BenchmarkOpenAPI(b *testing.B) {
	s := newService(b)
	body := []byte(s.get("/openapi.json").is(200).body)
	ours := httptest.NewServer(s.server)
	defer ours.Close()
	bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}))
	defer bare.Close()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	get := func(address string) time.Duration {
		began := time.Now()
		r, err := client.Get(address)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r.Body)
		if r.Body.Close(); err != nil || n != int64(len(body)) {
			b.Fatalf("%s: %d bytes, %v", address, n, err)
		}
		return time.Since(began)
	}
	var here, there time.Duration
	for b.Loop() {
		here += get(ours.URL + "/v1/openapi.json")
		there += get(bare.URL)
	}
	b.ReportMetric(float64(there)/float64(here), "of-bare")
}
