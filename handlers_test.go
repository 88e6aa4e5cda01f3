package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func ptr[T any](v T) *T { return &v }

// A service is a real handler over a real store in a directory of its own.
type service struct {
	t       testing.TB
	server  *server
	store   *store
	keys    *keyring
	dir     string
	account string        // the main one; it owns siteOrigin
	log     *bytes.Buffer // what the service logged
	told    *discretion   // what was said in confidence
}

const (
	siteOrigin = "https://www.example.com"
	testBase   = "http://127.0.0.1:8080/v1"
)

// newService starts a service with one account and one origin. In a synctest
// bubble its clock is the bubble's. change alters the usual options.
func newService(t testing.TB, change ...func(*storeOptions, *serverOptions)) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), log: &bytes.Buffer{}, told: newDiscretion(t)}
	db := filepath.Join(s.dir, "widgetd.db")
	err := createStore(db, func(tx *tx) (err error) {
		if s.account, err = tx.addAccount("main", true); err != nil {
			return err
		}
		if err := tx.addOrigin(s.account, siteOrigin); err != nil {
			return err
		}
		return tx.setBaseURL(testBase)
	})
	s.check(err)
	s.keys, err = newKeyring(time.Now())
	s.check(err)
	s.check(s.keys.save(filepath.Join(s.dir, "widgetd.key"), false))
	s.told.keyFile(t, s.keys)
	var of storeOptions
	how, err := usualServerOptions()
	s.check(err)
	for _, f := range change {
		f(&of, &how)
	}
	s.store, err = openStore(db, of)
	s.check(err)
	s.server, err = newServer(s.store, s.keys, how, slog.New(slog.NewTextHandler(s.log, nil)))
	s.check(err)
	t.Cleanup(func() {
		if err := s.store.close(); err != nil {
			t.Errorf("close: %v", err)
		}
		s.told.check(t, s.log.Bytes(), db)
	})
	return s
}

// beside runs something beside the test until its end, or until stop is called.
func (s *service) beside(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan struct{})
	go func() { run(ctx); close(ended) }()
	stop = func() { cancel(); <-ended }
	s.t.Cleanup(stop)
	return stop
}

// withoutAddressLimits lifts the limits that hold anonymous callers.
func withoutAddressLimits(_ *storeOptions, o *serverOptions) {
	o.anonymousRate, o.failedLookupRate = 1<<30, 1<<30
}

// with is the same service for a subtest, which then fails by itself.
func (s *service) with(t testing.TB) *service {
	same := *s
	same.t = t
	return &same
}

func (s *service) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// change runs a write, as an operator's command would.
func (s *service) change(f func(*tx) error) {
	s.t.Helper()
	s.check(s.store.update(s.t.Context(), f))
}

// addLicense issues a licence of the main account, unless l says otherwise, and
// returns its id and key.
func (s *service) addLicense(l license) (id, key string) {
	s.t.Helper()
	key = newLicenseKey()
	parsed, err := parseLicenseKey(key)
	s.check(err)
	l.AccountID, l.Product = cmp.Or(l.AccountID, s.account), cmp.Or(l.Product, "kds")
	s.change(func(t *tx) (err error) {
		id, err = t.addLicense(&l, parsed, actorCommand)
		return err
	})
	s.told.hear(key)
	return id, key
}

// addAccount opens another account.
func (s *service) addAccount(name string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		id, err = t.addAccount(name, false)
		return err
	})
	return id
}

// addWidget adds a widget to an account.
func (s *service) addWidget(account string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		id, err = t.addWidget(account, "Lunch", false)
		return err
	})
	return id
}

// token issues a bearer token for an account.
func (s *service) token(account, scope string) (token string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		token, _, err = issueToken(t, s.keys, tokenRow{AccountID: account, ClientID: "test", Scope: scope}, time.Hour)
		return err
	})
	s.told.hear(token)
	return token
}

// command runs the program and returns what it printed.
func (s *service) command(args ...string) (string, error) {
	s.t.Helper()
	var out bytes.Buffer
	env := map[string]string{"WIDGETD_DB": filepath.Join(s.dir, "widgetd.db"), "WIDGETD_KEY": filepath.Join(s.dir, "widgetd.key")}
	err := run(s.t.Context(), args, func(name string) string { return env[name] }, &out, &bytes.Buffer{})
	s.notice()
	return out.String(), err
}

// must runs the program, which must succeed.
func (s *service) must(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...)
	if err != nil {
		s.t.Fatalf("widgetd %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// notice lets the service notice what another connection has changed, which it does
// within a second by itself.
func (s *service) notice() {
	s.t.Helper()
	s.store.fresh.Store(false)
	for !s.store.current() {
		runtime.Gosched()
	}
}

// count returns the single number that a query gives.
func (s *service) count(query string, args ...any) (n int) {
	s.t.Helper()
	s.check(s.store.one(query, args, &n))
	return n
}

// An answer is what came back.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

// do sends a request. path is relative to the base address; one that begins with
// // is from the root. headers are "Name: value", of which "Peer: 127.0.0.1:1" is
// the address that the connection comes from; a body without a Content-Type is sent
// as JSON.
func (s *service) do(method, path, body string, headers ...string) answer {
	s.t.Helper()
	if root, ok := strings.CutPrefix(path, "//"); ok {
		path = "/" + root
	} else {
		path = "/v1" + path
	}
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, reader)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	seen := map[string]bool{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Peer" {
			r.RemoteAddr = value
			continue
		}
		if seen[name] {
			r.Header.Add(name, value)
		} else {
			r.Header.Set(name, value)
		}
		seen[name] = true
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	s.told.hearRequest(body, r.Header)
	s.told.hear(w.Body.String())
	return answer{s.t, w.Code, w.Result().Header, w.Body.String()}
}

func (s *service) post(path, body string, headers ...string) answer {
	s.t.Helper()
	return s.do("POST", path, body, headers...)
}

func (s *service) get(path string, headers ...string) answer {
	s.t.Helper()
	return s.do("GET", path, "", headers...)
}

// json decodes the body.
func (a answer) json() map[string]any {
	a.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("%d %q is not JSON: %v", a.status, a.body, err)
	}
	return v
}

// text returns a member of the body that is a string; names go down, as
// "license", "id".
func (a answer) text(names ...string) string {
	a.t.Helper()
	var v any = a.json()
	for _, name := range names {
		v = v.(map[string]any)[name]
	}
	text, ok := v.(string)
	if !ok {
		a.t.Fatalf("%v of %s is no string", names, a.body)
	}
	return text
}

// wrong lists what the errors of a problem name: "#/email invalid_email" for a
// member, "?limit out_of_range" for a parameter.
func (a answer) wrong() []string {
	a.t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		a.t.Fatalf("%d %q is not a problem: %v", a.status, a.body, err)
	}
	named := []string{}
	for _, e := range p.Errors {
		if e.Parameter != "" {
			e.Pointer += "?" + e.Parameter
		}
		named = append(named, e.Pointer+" "+e.Code)
	}
	return named
}

// names checks that a problem names exactly these, in this order.
func (a answer) names(wrong ...string) answer {
	a.t.Helper()
	if got := a.wrong(); !slices.Equal(got, wrong) {
		a.t.Fatalf("errors name %q, want %q", got, wrong)
	}
	return a
}

// has checks headers, each "Name: value"; "Name: " is one that is absent.
func (a answer) has(headers ...string) answer {
	a.t.Helper()
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if got := strings.Join(a.header.Values(name), " | "); got != value {
			a.t.Fatalf("%s is %q, want %q (%d %s)", name, got, value, a.status, a.body)
		}
	}
	return a
}

// is checks the status and, for a problem, its code, its type and the rules that
// every answer keeps.
func (a answer) is(status int, code ...string) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if !strings.HasPrefix(a.header.Get("X-Request-Id"), "req_") || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cache-Control") == "" {
		a.t.Fatalf("a header that every answer has is missing: %v", a.header)
	}
	if status < 400 || len(code) == 0 {
		return a
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Fatalf("Content-Type %q of a problem", got)
	}
	p := a.json()
	if p["code"] != code[0] || p["status"] != float64(status) || p["type"] != "http://127.0.0.1:8080/docs#"+code[0] ||
		p["request_id"] != a.header.Get("X-Request-Id") || p["title"] == "" {
		a.t.Fatalf("problem %s, want code %s", a.body, code[0])
	}
	return a
}

// postPaths are the routes that take a body, with a body that is right but for what
// it names.
var postPaths = map[string]string{
	"/widget/leads":              `{"type":"newsletter","email":"ada@example.com"}`,
	"/widget/events":             `{"widget":"wgt_00000000000000000000000000","events":[{"type":"view"}]}`,
	"/widget/license/activate":   `{}`,
	"/widget/license/verify":     `{}`,
	"/widget/license/deactivate": `{}`,
	"/leads/erase":               `{"email":"ada@example.com"}`,
	"/licenses":                  `{"account_id":"acct_00000000000000000000000000","product":"kds"}`,
	"/licenses/{id}/renew":       `{}`,
	"/licenses/{id}/suspend":     `{}`,
	"/licenses/{id}/reinstate":   `{}`,
	"/licenses/{id}/revoke":      `{}`,
	"/licenses/{id}/rotate-key":  `{}`,
}

func TestPostPathsOfTheseTestsAreThoseOfTheRouteTable(t *testing.T) {
	for _, r := range routes {
		if _, tested := postPaths[r.path()]; r.method() == "POST" && !tested {
			t.Errorf("POST %s is not in postPaths", r.path())
		}
	}
}

func TestABodyOfAnotherMediaTypeIs415OnEveryPath(t *testing.T) {
	s := newService(t, withoutAddressLimits)
	token := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	before := s.dump()
	for path, body := range postPaths {
		headers := []string{"Origin: " + siteOrigin}
		if path == "/leads/erase" || strings.HasPrefix(path, "/licenses") {
			headers = append(headers, token)
		}
		for _, wrong := range []string{
			"Content-Type: application/x-www-form-urlencoded", "Content-Type: multipart/form-data; boundary=x", "Content-Type: text/html",
			"Content-Type: text/plain", "Content-Type: application/jsonx", "Content-Type: application/problem+json", "Content-Type: ",
			"Content-Type: application/json; charset=iso-8859-1", "Content-Type: application/json; charset=utf-16",
			"Content-Type: application/json; charset=utf-8; charset=latin1", "Content-Type: application/json; =", "Content-Type: json",
			"Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: identity, gzip",
		} {
			if path == "/widget/events" && wrong == "Content-Type: text/plain" {
				continue // a beacon's
			}
			a := s.post(path, body, append(headers, wrong)...)
			if a.status != 415 {
				t.Fatalf("%s with %s: %d %s", path, wrong, a.status, a.body)
			}
			a.is(415, "unsupported_media_type").has("Accept: application/json")
		}
	}
	for _, twice := range [][]string{{"Content-Type: application/json", "Content-Type: text/plain"}, {"Content-Encoding: identity", "Content-Encoding: gzip"}} {
		s.post("/widget/leads", postPaths["/widget/leads"], twice...).is(415, "unsupported_media_type")
	}
	s.unchanged(before)
}

func TestJSONInUTF8IsTakenHoweverItIsNamed(t *testing.T) {
	s := newService(t)
	for i, header := range []string{"Content-Type: application/json", "Content-Type: application/json; charset=utf-8", "Content-Type: APPLICATION/JSON;CHARSET=\"UTF-8\"",
		"Content-Type: application/json; profile=x", "Content-Encoding: identity"} {
		s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"a%d@example.com"}`, i), header).is(200)
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != 5 {
		t.Fatalf("%d leads", n)
	}
}

func TestABodyHasAtMost16KiB(t *testing.T) {
	s := newService(t)
	sized := func(n int) string {
		const head, tail = `{"type":"newsletter","email":"ada@example.com","filler":"`, `"}`
		return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
	}
	s.post("/widget/leads", sized(16<<10)).is(200)
	s.post("/widget/leads", sized(16<<10+1)).is(413, "body_too_large")
	unannounced := func(n int) answer { // without a Content-Length
		r := httptest.NewRequest("POST", "/v1/widget/leads", io.MultiReader(strings.NewReader(sized(n))))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		return answer{t, w.Code, w.Result().Header, w.Body.String()}
	}
	unannounced(16 << 10).is(200)
	unannounced(16<<10+1).is(413, "body_too_large")
	if n := s.count(`SELECT count(*) FROM leads`); n != 1 {
		t.Fatalf("%d leads", n)
	}
}

// malformedBodies are bodies that every path refuses with 400.
var malformedBodies = map[string]string{
	"empty":                     " ",
	"an array":                  `[{"type":"newsletter","email":"ada@example.com"}]`,
	"a string":                  `"newsletter"`,
	"null":                      `null`,
	"no end":                    `{"type":"newsletter","email":"ada@example.com"`,
	"text behind":               `{"type":"newsletter","email":"ada@example.com"} {}`,
	"a brace behind":            `{"type":"newsletter","email":"ada@example.com"}}`,
	"a NUL behind":              "{\"type\":\"newsletter\",\"email\":\"ada@example.com\"}\x00",
	"a byte order mark":         "\uFEFF" + `{"type":"newsletter","email":"ada@example.com"}`,
	"UTF-16":                    "\xff\xfe{\x00}\x00",
	"invalid UTF-8":             "{\"type\":\"newsletter\",\"email\":\"ada@example.com\",\"source\":\"\xff\"}",
	"an overlong form":          "{\"source\":\"\xc0\xaf\"}",
	"a surrogate in UTF-8":      "{\"source\":\"\xed\xa0\x80\"}",
	"invalid UTF-8 in a name":   "{\"\xff\":1}",
	"half a surrogate pair":     `{"source":"\ud800"}`,
	"a comment":                 `{"type":"newsletter"/* */}`,
	"single quotes":             `{'type':'newsletter'}`,
	"a bare name":               `{type:"newsletter"}`,
	"a trailing comma":          `{"type":"newsletter",}`,
	"NaN":                       `{"n":NaN}`,
	"a leading zero":            `{"n":01}`,
	"a plus":                    `{"n":+1}`,
	"hexadecimal":               `{"n":0x1}`,
	"a line break in a string":  "{\"source\":\"a\nb\"}",
	"a member twice":            `{"type":"newsletter","type":"newsletter","email":"ada@example.com"}`,
	"an unknown member twice":   `{"x":1,"type":"newsletter","email":"ada@example.com","x":1}`,
	"twice by an escape":        `{"type":"newsletter","email":"ada@example.com","\u0065mail":"eve@example.com"}`,
	"twice at depth":            `{"type":"newsletter","email":"ada@example.com","x":[{"y":{"z":1,"z":1}}]}`,
	"twice behind many":         `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"c":2}`,
	"nine deep":                 `{"type":"newsletter","email":"ada@example.com","x":[[[[[[[[]]]]]]]]}`,
	"a hundred thousand braces": strings.Repeat(`{"a":`, 3000),
}

func TestAMalformedBodyIs400OnEveryPathAndChangesNothing(t *testing.T) {
	s := newService(t, withoutAddressLimits)
	token := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	before := s.dump()
	for path := range postPaths {
		for name, body := range malformedBodies {
			headers := []string{"Origin: " + siteOrigin}
			if path == "/leads/erase" || strings.HasPrefix(path, "/licenses") {
				headers = append(headers, token)
			}
			a := s.post(path, body, headers...)
			if a.status != 400 {
				t.Fatalf("%s with %s: %d %s", path, name, a.status, a.body)
			}
			a.is(400, "malformed_json")
			if len(a.wrong()) != 0 || a.header.Get("RateLimit") != "" {
				t.Fatalf("%s with %s names members or was charged: %s", path, name, a.body)
			}
		}
	}
	s.unchanged(before)
}

func TestEightDeepIsNotTooDeep(t *testing.T) {
	newService(t).post("/widget/leads", `{"type":"newsletter","email":"ada@example.com","x":[[[[[[[1]]]]]]]}`).is(200)
}

func TestAProblemSaysAllAndNoMore(t *testing.T) {
	s := newService(t)
	a := s.post("/widget/leads", `{"email":"nobody","type":7}`).is(422, "validation_failed")
	want := `{"type":"http://127.0.0.1:8080/docs#validation_failed","title":"Validation failed","status":422,"detail":"These values are wrong: type, email.",` +
		`"code":"validation_failed","request_id":"` + a.header.Get("X-Request-Id") + `","ok":false,"errors":[` +
		`{"pointer":"#/type","code":"wrong_type","detail":"This must be a string, not a number."},` +
		`{"pointer":"#/email","code":"invalid_email","detail":"An address is name@example.com."}]}` + "\n"
	if a.body != want {
		t.Fatalf("problem\n%s, want\n%s", a.body, want)
	}
	a = s.get("/leads").is(401, "token_required")
	want = `{"type":"http://127.0.0.1:8080/docs#token_required","title":"Token required","status":401,"detail":"This needs a bearer token in the Authorization header.",` +
		`"code":"token_required","request_id":"` + a.header.Get("X-Request-Id") + `"}` + "\n"
	if a.body != want {
		t.Fatalf("problem\n%s, want\n%s", a.body, want)
	}
}

func TestAProblemOfEveryStatusOnLeadsSaysOKFalse(t *testing.T) {
	s := newService(t)
	for status, a := range map[int]answer{
		400: s.post("/widget/leads", `{`),
		403: s.post("/widget/leads", `{}`, "Origin: https://other.example"),
		405: s.do("PUT", "/widget/leads", `{}`),
		413: s.post("/widget/leads", strings.Repeat(" ", 20<<10)),
		415: s.post("/widget/leads", `{}`, "Content-Type: text/csv"),
		422: s.post("/widget/leads", `{}`),
	} {
		if a.status != status || a.json()["ok"] != false {
			t.Errorf("%d, want %d: %s", a.status, status, a.body)
		}
	}
	if _, has := s.get("/leads").is(401).json()["ok"]; has {
		t.Error("another path's problem has a member ok")
	}
}

func TestAnUnknownErrorIs500WithoutDetailAndOneLogLine(t *testing.T) {
	s := newService(t)
	token := s.token(s.account, scopeLeads)
	s.check(s.store.readers.Close()) // every question now fails in a way that nobody foresaw
	a := s.get("/leads", "Authorization: Bearer "+token).is(500, "internal")
	if strings.Contains(a.body, "sql") || a.text("detail") != "Something went wrong on our side. The request id helps to find out what." {
		t.Fatalf("problem %s", a.body)
	}
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], a.header.Get("X-Request-Id")) || !strings.Contains(lines[0], "sql: database is closed") {
		t.Fatalf("log %q", lines)
	}
}

func TestAPanicIs500AndItsStackIsLogged(t *testing.T) {
	s := newService(t)
	s.server.addresses = nil // the next anonymous lead finds no limiter
	a := s.post("/widget/leads", `{}`).is(500, "internal")
	if strings.Contains(a.body, "nil pointer") || a.json()["ok"] != false {
		t.Fatalf("problem %s", a.body)
	}
	if log := s.log.String(); !strings.Contains(log, "nil pointer") || !strings.Contains(log, a.header.Get("X-Request-Id")) || !strings.Contains(log, "limitAddress") {
		t.Fatalf("log %q", log)
	}
	s.get("/widget/health").is(200) // the service goes on
}

func TestTheServerMakesTheRequestID(t *testing.T) {
	s := newService(t)
	seen := map[string]bool{}
	for range 10 {
		id := s.get("/widget/health", "X-Request-Id: req_00000000000000000000000000").is(200).header.Get("X-Request-Id")
		if !validID("req", id) || id == "req_00000000000000000000000000" || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

func TestOtherMethodsAre405WithAllow(t *testing.T) {
	s := newService(t)
	for path, allow := range map[string]string{
		"/widget/leads":              "POST, OPTIONS",
		"/widget/license/activate":   "POST, OPTIONS",
		"/widget/license/verify":     "POST, OPTIONS",
		"/widget/license/deactivate": "POST, OPTIONS",
		"/widget/events":             "POST, OPTIONS",
		"/leads/erase":               "POST, OPTIONS",
		"/widget/stats":              "GET, HEAD, OPTIONS",
		"/widget/health":             "GET, HEAD, OPTIONS",
		"/leads":                     "GET, HEAD, OPTIONS",
		"/licenses/x/devices":        "GET, HEAD, OPTIONS",
		"/licenses/x/devices/y":      "DELETE, OPTIONS",
		"//.well-known/jwks.json":    "GET, HEAD, OPTIONS",
		"//livez":                    "GET, HEAD, OPTIONS",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"} {
			if strings.Contains(allow, method) {
				continue
			}
			a := s.do(method, path, "")
			if a.status != 405 {
				t.Fatalf("%s %s: %d", method, path, a.status)
			}
			a.is(405, "method_not_allowed").has("Allow: " + allow)
		}
	}
}

func TestUnknownAndUncleanPathsAre404AndNeverRedirect(t *testing.T) {
	s := newService(t)
	for _, path := range []string{
		"//", "//v1", "//v1/", "//v2/widget/leads", "//widget/leads", "//V1/widget/leads", "//v1x/widget/leads",
		"/widget", "/widget/", "/widget/lead", "/widget/leads/", "/Widget/leads", "/widget/leads/x", "/licenses/", "/licenses/x/devices/",
		"//v1//widget/leads", "//v1/./widget/leads", "//v1/widget/../widget/leads", "//v1/../v1/widget/leads", "//../v1/widget/leads", "//v1/widget//leads",
		"//v1/%2e%2e/v1/widget/leads", "//v1/widget%2fleads", "//v1%2fwidget/leads", "//v1/widget/%2fleads", "//v1/widget/leads%00",
		"//.well-known/jwks.json/", "//livez/", "////livez", "//api/legacy", "//debug/pprof/", "//metrics",
	} {
		for _, method := range []string{"GET", "POST"} {
			a := s.do(method, path, "")
			if a.status != 404 {
				t.Errorf("%s %s: %d %v", method, path, a.status, a.header)
				continue
			}
			a.is(404, "not_found").has("Location: ")
		}
	}
}

func TestOverAConnection(t *testing.T) {
	s := newService(t)
	web := httptest.NewServer(s.server)
	defer web.Close()
	send := func(t *testing.T, request string) (*http.Response, string) {
		t.Helper()
		conn, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(request, " ")
		res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	t.Run("a chunked body is taken and ends its connection", func(t *testing.T) {
		body := `{"type":"newsletter","email":"chunked@example.com"}`
		res, text := send(t, fmt.Sprintf("POST /v1/widget/leads HTTP/1.1\nHost: x\nContent-Type: application/json\nTransfer-Encoding: chunked\n\n%x\n%s\n0\n\n", len(body), body))
		if res.StatusCode != 200 || !res.Close {
			t.Fatalf("%d, close %v: %s", res.StatusCode, res.Close, text)
		}
	})
	t.Run("both lengths at once are answered once", func(t *testing.T) {
		body := `{"type":"newsletter","email":"both@example.com"}`
		res, text := send(t, fmt.Sprintf("POST /v1/widget/leads HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 4\nTransfer-Encoding: chunked\n\n%x\n%s\n0\n\nGET /livez HTTP/1.1\nHost: x\n\n", len(body), body))
		if !res.Close {
			t.Fatalf("%d, close %v: %s", res.StatusCode, res.Close, text)
		}
	})
	t.Run("a body that ends early is 400", func(t *testing.T) {
		conn, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"type\":")
		conn.(*net.TCPConn).CloseWrite()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 400 {
			t.Fatalf("%v %v", res, err)
		}
	})
	for _, path := range []string{"/v1/widget/health", "/livez", "/.well-known/jwks.json"} {
		t.Run("HEAD "+path+" is GET without its body", func(t *testing.T) {
			get, body := send(t, "GET "+path+" HTTP/1.1\nHost: x\n\n")
			head, none := send(t, "HEAD "+path+" HTTP/1.1\nHost: x\n\n")
			if get.StatusCode != 200 || head.StatusCode != 200 || body == "" || none != "" || get.Header.Get("Content-Type") != head.Header.Get("Content-Type") {
				t.Fatalf("GET %d %q, HEAD %d %q", get.StatusCode, body, head.StatusCode, none)
			}
		})
	}
	t.Run("HEAD of a path that only takes POST is 405", func(t *testing.T) {
		if res, body := send(t, "HEAD /v1/widget/leads HTTP/1.1\nHost: x\n\n"); res.StatusCode != 405 || body != "" || res.Header.Get("Allow") != "POST, OPTIONS" {
			t.Fatalf("%d %q %v", res.StatusCode, body, res.Header)
		}
	})
}

// The contract's order: route, origin, token, address limit, body (415, 413, 400),
// account limit, members (422), effect. Each test breaks two that stand next to each
// other; no path has both a rule on origins and one on tokens.
func TestOrderOfJudging(t *testing.T) {
	const foreign, csv = "Origin: https://other.example", "Content-Type: text/csv"
	large, badMember := strings.Repeat(" ", 17<<10), `{"type":7}`
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		drainAddress := func(limit string) {
			for range 60 {
				s.check(s.server.limitAddress(limit, "192.0.2.1", 60))
			}
		}
		drainAccount := func() {
			for range 600 {
				s.server.accounts.take(s.account, 600, time.Now())
			}
		}
		minute := func() { time.Sleep(time.Minute) } // and every bucket is full again

		s.post("/widget/lead", "{}", foreign).is(404, "not_found") // route, origin
		s.do("PUT", "/widget/leads", "{}", foreign).is(405)        // route, origin
		drainAddress("leads")
		s.post("/widget/leads", "{}", foreign).is(403, "origin_not_allowed") // origin, address limit
		s.post("/widget/leads", "{}", csv).is(429, "rate_limited")           // address limit, 415
		minute()
		for range 61 { // what is refused before it costs the address nothing
			s.post("/widget/leads", "{}", foreign).is(403, "origin_not_allowed")
		}
		s.post("/widget/leads", large, csv).is(415, "unsupported_media_type") // 415, 413
		s.post("/widget/leads", "{"+large).is(413, "body_too_large")          // 413, 400
		drainAddress("stats")
		s.get("/widget/stats?widget="+widget, "Authorization: Bearer x").is(401, "invalid_token") // token, address limit
		s.get("/widget/stats?widget=x").is(429, "rate_limited")                                   // address limit, account limit
		drainAccount()
		s.post("/widget/leads", "{", "Origin: "+siteOrigin).is(400, "malformed_json").has("RateLimit: ") // 400, account limit
		s.post("/widget/leads", badMember, "Origin: "+siteOrigin).is(429, "rate_limited")                // account limit, 422
		minute()
		s.post("/widget/events", `{"widget":"wgt_00000000000000000000000000","events":[]}`, "Origin: "+siteOrigin).
			is(422, "validation_failed").has(`RateLimit: "account";r=599;t=1`) // 422, effect
		s.get("/leads?limit=x", "Authorization: Bearer "+s.token(s.account, scopeStats)).is(403, "insufficient_scope") // token, 422
	})
}
