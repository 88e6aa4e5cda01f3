package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
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

// takesBody reports whether requests of a method have a body.
func takesBody(method string) bool { return slices.Contains([]string{"POST", "PATCH", "PUT"}, method) }

// TestOpenAPI_describesWhatIsPostedToWebhooks holds the examples of the member webhooks against their schemas, and
// against the signature that they show.
func TestOpenAPI_describesWhatIsPostedToWebhooks(t *testing.T) {
	t.Parallel()
	op := child(openapiDocument(), "webhooks", "event", "post")
	media := child(op, "requestBody", "content", "application/json")
	examples := child(media, "examples")
	for name := range examples {
		for _, fault := range checkSchema(child(media, "schema"), child(examples, name)["value"], "#", true) {
			t.Errorf("the example %s: %s", name, fault)
		}
	}
	header := http.Header{}
	two := webhookHeaders([][]byte{make([]byte, 32), make([]byte, 32)}, newID("evt", time.Now()), time.Now(), nil)
	for _, p := range op["parameters"].([]any) {
		p := p.(node)
		name := p["name"].(string)
		header.Set(name, p["example"].(string))
		for _, value := range []any{p["example"], two.Get(name)} {
			if faults := checkSchema(child(p, "schema"), value, name, true); len(faults) > 0 {
				t.Errorf("the header %s: %v", name, faults)
			}
		}
	}
	equal(t, "headers", slices.Sorted(maps.Keys(two)), slices.Sorted(maps.Keys(header)))
	checkExampleSignature(t, header, child(examples, "activated")["value"].(node))
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
		letter := "é"
		if n > maxBody { // a body has no room for as many of two bytes
			letter = "e"
		}
		long := strings.Repeat(letter, n)
		breaks["a long text"] = long + "e"
		if plain {
			fits["the longest text"] = long
			breaks["a control character"] = "a\u0085b"
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

// beyond are members whose largest number is more than the order in the example has.
var beyond = []string{"#/discount", "#/lines/0/line"}

// unless are members that may be absent only beside another, which the example lacks, or without one that it has.
var unless = []string{"POST /licenses #/product", "POST /plans/{id}/apply #/revision",
	"POST /widget/license/activate #/nonce", "POST /books/connections/{id}/exports #/date"}

// codesOfBreaks are patterns of the codes of what breaks a schema, by what edges calls it.
var codesOfBreaks = map[string]string{
	"a wrong type":        "wrong_type",
	"null":                "wrong_type|required",
	"its absence":         "required",
	"an empty text":       "empty|key_malformed|invalid_page",
	"a long text":         "too_long|key_malformed|invalid_(page|url|nonce)",
	"a control character": "control_character|key_malformed",
	"another form":        "(invalid|unknown)_[a-z]+|scheme_not_allowed|wrong_type|out_of_range",
	"another word":        "unknown_value|too_long",
	"a small number":      "out_of_range",
	"a large number":      "out_of_range",
	"a long list":         "wrong_length",
	"an empty list":       "wrong_length",
	"many members":        "wrong_length",
}

// refusalOf sends a body with a member that has a value, and returns the code under which the answer names it; "":
// it is not refused.
func (f *exampleFixture) refusalOf(o *operation, body any, m bodyMember, value any) string {
	f.t.Helper()
	headers := f.headersOf(o)
	if strings.HasPrefix(o.path, "/widget/license/") {
		headers = append(headers, "Authorization: Bearer "+f.lease)
	}
	a := f.do(o.method, f.pathOf(o), encode(setMember(body, m.names, value)), headers...)
	if a.status != 422 {
		return ""
	}
	for _, w := range a.wrong() {
		at, code, _ := strings.Cut(w, " ")
		if (at == m.pointer() || strings.HasPrefix(at, m.pointer()+"/")) && !slices.Contains(ofAnother, code) {
			return code
		}
	}
	if m.names[0] == "license_key" && a.text("code") == "key_malformed" {
		return "key_malformed"
	}
	return ""
}

// tries sends values to a place, a member of a body or a parameter: those that break its schema must be refused under a
// code that says so, and those that fit must not be. It returns how many there were.
func tries(t *testing.T, at string, breaks, fits map[string]any, refusal func(value any) (code string)) int {
	t.Helper()
	for what, value := range breaks {
		if code := refusal(value); !matches("^("+codesOfBreaks[what]+")$", code) {
			t.Errorf("%s answers %s with %q", at, what, code)
		}
	}
	for what, value := range fits {
		if code := refusal(value); code != "" {
			t.Errorf("%s refuses %s: %s", at, what, code)
		}
	}
	return len(breaks) + len(fits)
}

func TestOpenAPI_bodyMembersAreJudgedAsTheirSchemasSay(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	f, tried := newExampleFixture(t), 0
	for _, o := range operations() {
		members := bodyMembers(o)
		if len(members) == 0 || o.atRoot {
			continue
		}
		base := f.fill(firstExample(o))
		ask := func(m bodyMember) func(any) string {
			return func(value any) string { return f.refusalOf(o, base, m, value) }
		}
		for _, m := range members {
			breaks, fits := edges(m.schema)
			at := o.name() + " " + m.pointer()
			ofItsKind, notAlone := slices.Contains(ofKind, m.pointer()), slices.Contains(unless, at)
			if slices.Contains(beyond, m.pointer()) {
				delete(fits, "the largest number")
			}
			switch {
			case ofItsKind:
				delete(fits, "null")
				breaks["null"] = nil
			case m.required || notAlone:
				breaks["its absence"] = absent{}
			default:
				fits["its absence"] = absent{}
			}
			if notAlone {
				delete(fits, "null")
			}
			tried += tries(t, at, breaks, fits, ask(m))
		}
		if !routeOf(o).careful {
			later := bodyMember{names: []string{"of_a_later_version"}}
			tried += tries(t, o.name(), nil, map[string]any{"an unknown member": 1}, ask(later))
		}
	}
	failIf(t, tried < 200, "sent %d bodies only", tried)
}

func TestOpenAPI_parametersAreJudgedAsTheirSchemasSay(t *testing.T) {
	t.Parallel()
	f := newExampleFixture(t)
	tried := 0
	for _, o := range operations() {
		for _, p := range o.params {
			name, schema := p["name"].(string), child(p, "schema")
			for _, fault := range checkSchema(schema, p["example"], name, true) {
				t.Errorf("%s: the example of a parameter: %s", o.name(), fault)
			}
			if p["in"] != "query" {
				continue
			}
			body := ""
			if takesBody(o.method) {
				body = encode(f.fill(firstExample(o)))
			}
			breaks, fits := edges(schema)
			for _, ofBodies := range []string{"a wrong type", "null"} {
				delete(breaks, ofBodies)
				delete(fits, ofBodies)
			}
			fits["the example"] = f.fillText(fmt.Sprint(p["example"]))
			tried += tries(t, o.name()+" ?"+name, breaks, fits, func(value any) (code string) {
				query := "?" + queryOf(name, fmt.Sprint(value))
				a := f.do(o.method, f.pathOf(o)+query, body, f.headersOf(o)...)
				if a.status == 422 {
					for _, w := range a.wrong() {
						code += strings.TrimPrefix(w, "?"+name+" ")
					}
				}
				return code
			})
			failIf(t, p["required"] == true, "%s: the parameter %s is required", o.name(), name)
		}
	}
	failIf(t, tried < 60, "sent %d queries only", tried)
}

// encode returns a value as JSON.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
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

// An exampleFixture is a service that has what the document's examples name.
type exampleFixture struct {
	*service
	admin string
	lease string            // the token of the device
	real  map[string]string // what an id or a key of the examples is here
	spent bool              // a request has changed something since the operation began, see fixtures
}

// exampleOf returns the example of a member or a parameter that holds an id.
func exampleOf(t testing.TB, names ...string) string {
	t.Helper()
	text, ok := child(openapiDocument(), append([]string{"components", "parameters"}, names...)...)["example"].(string)
	if !ok {
		t.Fatalf("the document has no example of %v", names)
	}
	return text
}

// newExampleFixture starts a service that has what the examples name.
func newExampleFixture(t testing.TB, change ...func(*storeOptions, *serverOptions)) *exampleFixture {
	t.Helper()
	recordedExamples(t)
	xero, began := recorded.xero.twin(t), time.Now()
	change = append(change, withoutAddressLimits, atLoopback(xero), func(o *storeOptions, _ *serverOptions) {
		// What the examples name is as old as it was when it was made: a lease is renewed once it is a minute old.
		o.now = func() time.Time { return recorded.ready.Add(time.Since(began)) }
	})
	f := &exampleFixture{service: serviceWith(t, recorded.database, recorded.account, recorded.keys, change...),
		lease: recorded.lease, real: maps.Clone(recorded.real)}
	findsHosts(f.service)
	f.admin = bearer(f.token(f.account, scopeAdmin))
	f.sql(`UPDATE orders SET reference = NULL WHERE reference = 'R-2041'`) // which the example of a new order has
	maps.Copy(f.told.secrets, recorded.told.secrets)
	return f
}

// atLoopback lets a service reach its own machine, and finds Xero there.
func atLoopback(xero *xeroFake) func(*storeOptions, *serverOptions) {
	return func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		o.urls = map[string]string{"xero-url": xero.base}
	}
}

// do is the service's, and notes that something has changed.
func (f *exampleFixture) do(method, path, body string, headers ...string) answer {
	f.t.Helper()
	a := f.service.do(method, path, body, headers...)
	f.spent = f.spent || a.status < 400 && !slices.Contains([]string{"GET", "HEAD", "OPTIONS"}, method)
	return a
}

// postExport has an export in the books.
func (s *service) postExport(id string) {
	s.t.Helper()
	x, err := s.store.bookExport(anyAccount, id)
	s.check(err)
	x.State, x.EntryID, x.SentAt, x.PostedAt, x.DueAt = exportPosted, ptr("entry"), x.CreatedAt, x.CreatedAt, stamp{}
	s.change(func(t *tx) error { return t.saveExport(x) })
}

// nextOrder makes an order in a state the one that the document's examples name.
func (f *exampleFixture) nextOrder(state string) {
	f.t.Helper()
	f.real[exampleOf(f.t, "order_id")] = f.orderIn(state).ID
}

// addApps registers the applications of the examples, with a code and a refresh token that have not been used.
func (f *exampleFixture) addApps() {
	f.t.Helper()
	text := func(example, member string) string {
		return child(bodyExamples(operationByID(f.t, "issueTokens")), example, "value")[member].(string)
	}
	browser, _ := f.registerApp(inBrowsers)
	own, secret := f.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
	first := f.askToken(codeForm(browser, f.agree(browser, f.account, scopeOrders))).is(200)
	f.real[text("code", "client_id")], f.real[text("own", "client_id")] = browser.ID, own.ID
	f.real[text("own", "client_secret")], f.real[text("code", "redirect_uri")] = secret, browser.RedirectURIs[0]
	f.real[text("code", "code")] = f.agree(browser, f.account, scopeOrders)
	f.real[text("refresh", "refresh_token")] = first.text("refresh_token")
}

func operationByID(t testing.TB, id string) *operation {
	t.Helper()
	for _, o := range operations() {
		if o.id() == id {
			return o
		}
	}
	t.Fatalf("the document has no operation %s", id)
	return nil
}

// bodyTypeOf returns the Content-Type of an operation's bodies.
func bodyTypeOf(o *operation) string {
	if r := routeOf(o); r != nil {
		return r.bodyType()
	}
	return "application/json"
}

// bodyExamples returns the examples of an operation's body, by name.
func bodyExamples(o *operation) node {
	return child(o.node, "requestBody", "content", bodyTypeOf(o), "examples")
}

// firstExample returns the example of a body with the most members.
func firstExample(o *operation) (value any) {
	examples := bodyExamples(o)
	for _, name := range slices.Sorted(maps.Keys(examples)) {
		if v, ok := child(examples, name)["value"].(node); ok && (value == nil || len(v) > len(value.(node))) {
			value = v
		}
	}
	return value
}

// fill puts the ids and keys of the service into an example.
func (f *exampleFixture) fill(value any) any {
	f.t.Helper()
	var filled any
	f.check(json.Unmarshal([]byte(f.fillText(encode(value))), &filled))
	return filled
}

func (f *exampleFixture) fillText(text string) string {
	for example, real := range f.real {
		text = strings.ReplaceAll(text, example, real)
	}
	return text
}

// pathOf returns an operation's path with the examples of its parameters.
func (f *exampleFixture) pathOf(o *operation) string {
	path := o.path
	for _, p := range o.params {
		if p["in"] == "path" {
			path = strings.Replace(path, "{"+p["name"].(string)+"}", f.fillText(p["example"].(string)), 1)
		}
	}
	if o.atRoot {
		return "/" + path
	}
	return path
}

// headersOf returns what an operation needs: a token, an Origin.
func (f *exampleFixture) headersOf(o *operation) (headers []string) {
	if routeOf(o) != nil && routeOf(o).token == tokenRequired || len(texts(o.node, "x-required-scopes")) > 0 {
		headers = append(headers, f.admin)
	}
	if p := o.parameter("Origin"); p != nil {
		headers = append(headers, "Origin: "+p["example"].(string))
	}
	return headers
}

// sentBody returns a body as an operation takes it: as JSON or as a form; "": there is none.
func sentBody(o *operation, body any) string {
	if fields, ok := body.(node); ok && bodyTypeOf(o) != "application/json" {
		form := url.Values{}
		for name, value := range fields {
			form.Set(name, value.(string))
		}
		return form.Encode()
	}
	if body == nil {
		return ""
	}
	return encode(body)
}

func queryOf(name, value string) string { return url.Values{name: {value}}.Encode() }

// before is what must have happened before a request can succeed.
var before = map[string]func(*exampleFixture){
	"reinstateLicense": func(f *exampleFixture) {
		f.post(f.fillText("/licenses/"+exampleOf(f.t, "license_id"))+"/suspend", `{}`, f.admin).is(200)
	},
	"listRefunds":       func(f *exampleFixture) { f.orderIn(orderPartRefunded) },
	"acceptOrder":       func(f *exampleFixture) { f.nextOrder(orderAuthorized) },
	"captureOrder":      func(f *exampleFixture) { f.nextOrder(orderAccepted) },
	"rejectOrder":       func(f *exampleFixture) { f.nextOrder(orderAuthorized) },
	"cancelOrder":       func(f *exampleFixture) { f.nextOrder(orderOpen) },
	"refundOrder":       func(f *exampleFixture) { f.nextOrder(orderPaid) },
	"markOrderPaid":     func(f *exampleFixture) { f.nextOrder(orderOpen) },
	"reverseBookExport": func(f *exampleFixture) { f.postExport(f.fillText(exampleOf(f.t, "export_id"))) },
	"issueTokens":       func(f *exampleFixture) { f.addApps() },
	"revokeToken":       func(f *exampleFixture) { f.addApps() },
	"undoOrderPaid": func(f *exampleFixture) {
		f.nextOrder(orderOpen)
		f.post(f.fillText("/orders/"+exampleOf(f.t, "order_id"))+"/paid", `{"method":"cash"}`, f.admin).is(200)
	},
}

// fixtures hands out one service for many operations, and another one once a request of an operation has ended what
// the examples of others name.
type fixtures struct {
	t      testing.TB
	last   *exampleFixture
	ends   bool // the last operation is one that ends something
	change []func(*storeOptions, *serverOptions)
}

func (all *fixtures) next(o *operation) *exampleFixture {
	all.t.Helper()
	if all.last == nil || all.ends && all.last.spent {
		all.last = newExampleFixture(all.t, all.change...)
	}
	all.last.spent, all.ends = false, slices.Contains(ending, o.id())
	return all.last
}

// ending are the operations whose examples end what others name.
var ending = []string{"suspendLicense", "revokeLicense", "deactivateLicense", "releaseDevice", "rotateLicenseKey",
	"updateWebhook", "deleteWebhook",
	"removeApp", "disconnectBooks", "endGrant", "retirePlan"}

// isProviders reports whether an operation is for a payment provider, whose signature no example has.
func isProviders(o *operation) bool { r := routeOf(o); return r != nil && r.raw }

// Examples of every kind of body that the document shows fit their schemas, those of requests, of answers and of what
// all have in common; and those of headers.
func TestOpenAPI_examplesFitTheirSchemas(t *testing.T) {
	t.Parallel()
	checked := 0
	fit := func(where string, content node, isAnswer bool) {
		for kind := range content {
			schema, examples := child(content, kind, "schema"), child(content, kind, "examples")
			failIf(t, len(examples) == 0, "%s %s has no example", where, kind)
			for name := range examples {
				checked++
				for _, fault := range checkSchema(schema, child(examples, name)["value"], "#", isAnswer) {
					if schema["additionalProperties"] != true {
						t.Errorf("%s %s: the example %s: %s", where, kind, name, fault)
					}
				}
			}
		}
	}
	for _, o := range operations() {
		fit(o.name(), child(o.node, "requestBody", "content"), false)
		for status, response := range o.responses() {
			fit(o.name()+" "+status, child(response, "content"), true)
		}
	}
	for status := range child(openapiDocument(), "x-common-responses") {
		fit(status, child(openapiDocument(), "x-common-responses", status, "content"), true)
	}
	headers := child(openapiDocument(), "components", "headers")
	for name := range headers {
		h := child(headers, name)
		for _, fault := range checkSchema(child(h, "schema"), h["example"], name, true) {
			t.Errorf("the example of a header: %s", fault)
		}
	}
	failIf(t, checked < 150, "checked %d examples only", checked)
}
