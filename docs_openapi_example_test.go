package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

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
		return exampleValue(f.t, operationByID(f.t, "issueTokens"), example).(node)[member].(string)
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

func exampleValue(t testing.TB, o *operation, name string) any {
	t.Helper()
	example := child(bodyExamples(o), name)
	if example == nil {
		t.Fatalf("%s has no example %s", o.name(), name)
	}
	return example["value"]
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

func (f *exampleFixture) sendTo(o *operation, path string, body any, headers ...string) node {
	f.t.Helper()
	text := sentBody(o, body)
	if text != "" {
		headers = append(headers, "Content-Type: "+bodyTypeOf(o))
	}
	a := f.do(o.method, path, text, append(f.headersOf(o), headers...)...)
	if a.status >= 300 {
		f.t.Errorf("%s %s: %d %s", o.method, path, a.status, a.body)
		return nil
	}
	if kind := a.header.Get("Content-Type"); a.body == "" || !strings.HasSuffix(kind, "json") {
		return nil
	}
	return a.json()
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

func TestOpenAPI_examplesOfParametersSucceed(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	fixtures := &fixtures{t: t}
	for _, o := range operations() {
		f := fixtures.next(o)
		query, headers := url.Values{}, []string{}
		for _, p := range o.params {
			example, given := p["example"]
			switch value := f.fillText(fmt.Sprint(example)); {
			case !given:
				t.Errorf("%s: %s has no example", o.name(), p["name"])
			case p["in"] == "query":
				query.Set(p["name"].(string), value)
			case p["in"] == "header":
				headers = append(headers, p["name"].(string)+": "+value)
			}
			for _, fault := range checkSchema(child(p, "schema"), example, p["name"].(string), true) {
				t.Errorf("%s: the example of a parameter: %s", o.name(), fault)
			}
		}
		if o.atRoot && o.path == "/api/legacy/{path}" || isProviders(o) {
			continue // what it answers is its successor's
		}
		var body any
		if query.Has("after") {
			query.Del("cursor") // they exclude each other, and a feed has no end
			query.Del("until")
		}
		if o.parameter("Origin") != nil {
			// headersOf has it
			headers = slices.DeleteFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Origin: ") })
		}
		if prepare := before[o.id()]; prepare != nil {
			prepare(f)
		}
		if bodyExamples(o) != nil {
			body = f.fill(firstExample(o))
		}
		f.sendTo(o, f.pathOf(o)+"?"+query.Encode(), body, headers...)
	}
}

// eachMedia calls f with every kind of body that the document shows: of requests and responses, those
// that all have in common too.
func eachMedia(f func(where string, media node, answer bool)) {
	each := func(where string, content node, answer bool) {
		for kind := range content {
			f(where+" "+kind, child(content, kind), answer)
		}
	}
	for _, o := range operations() {
		each(o.name(), child(o.node, "requestBody", "content"), false)
		for status, response := range o.responses() {
			each(o.name()+" "+status, child(response, "content"), true)
		}
	}
	for status := range child(openapiDocument(), "x-common-responses") {
		each(status, child(openapiDocument(), "x-common-responses", status, "content"), true)
	}
}

func TestOpenAPI_examplesFitTheirSchemas(t *testing.T) {
	t.Parallel()
	titles, checked := map[string]*problemCode{}, 0
	for _, c := range problemsOf(nouns()) {
		titles[c.name] = c
	}
	eachMedia(func(where string, media node, isAnswer bool) {
		examples := child(media, "examples")
		if len(examples) == 0 {
			t.Errorf("%s has no example", where)
		}
		for name := range examples {
			value := child(examples, name)["value"]
			for _, fault := range checkSchema(child(media, "schema"), value, "#", isAnswer) {
				if child(media, "schema")["additionalProperties"] != true {
					t.Errorf("%s: the example %s: %s", where, name, fault)
				}
			}
			checked++
			if p, ok := value.(node); ok && p["code"] != nil && p["request_id"] != nil {
				c := titles[name]
				if c == nil || p["code"] != name || p["title"] != c.title || p["status"] != float64(c.status) ||
					p["type"] != documentRoot+"/docs#"+name {
					t.Errorf("%s: the example %s is not what the service answers: %v", where, name, p)
				}
			}
		}
	})
	headers := child(openapiDocument(), "components", "headers")
	for name := range headers {
		h := child(headers, name)
		for _, fault := range checkSchema(child(h, "schema"), h["example"], name, true) {
			t.Errorf("the example of a header: %s", fault)
		}
	}
	if checked < 150 {
		t.Errorf("checked %d examples only", checked)
	}
}
