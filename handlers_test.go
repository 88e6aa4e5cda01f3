package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBody_ofTwoMediaTypesIs415(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, twice := range [][]string{{"Content-Type: application/json", "Content-Type: text/plain"},
		{"Content-Encoding: identity", "Content-Encoding: gzip"}} {
		s.post("/widget/leads", anyLead, twice...).is(415, "unsupported_media_type")
	}
	s.counts(0, `SELECT count(*) FROM leads`)
}

func TestBody_ofJSONInUTF8IsTakenHoweverItIsNamed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, header := range []string{"Content-Type: application/json", "Content-Type: application/json; charset=utf-8",
		"Content-Type: APPLICATION/JSON;CHARSET=\"UTF-8\"",
		"Content-Type: application/json; profile=x", "Content-Encoding: identity"} {
		s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"a%d@example.com"}`, i), header).is(200)
	}
	if n := s.count(`SELECT count(*) FROM leads`); n != 5 {
		t.Fatalf("%d leads", n)
	}
}

func TestBody_mayBeEmptyWhereEveryMemberMayBeAbsent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{DurationDays: ptr(30), ExpiresAt: newStamp(time.Now())})
	empty := func(path, kind string, headers ...string) answer {
		t.Helper()
		r := httptest.NewRequest("POST", "/v1"+path, http.NoBody)
		for _, h := range append(headers, token, "Content-Type: "+kind) {
			if name, value, _ := strings.Cut(h, ": "); value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		return answer{t, w.Code, w.Result().Header, w.Body.String()}
	}
	for _, kind := range []string{"", "application/json", "application/x-www-form-urlencoded"} {
		for _, action := range []string{"renew", "suspend", "reinstate", "rotate-key"} {
			empty("/licenses/"+id+"/"+action, kind).is(200)
		}
		for _, path := range []string{"/widget/leads", "/widget/license/verify", "/licenses", "/leads/erase"} {
			if a := empty(path, kind, "Origin: "+siteOrigin); a.status != 415 && a.status != 400 {
				t.Errorf("%s takes an empty body: %d %s", path, a.status, a.body)
			}
		}
	}
	before := s.get("/licenses/"+id, token).text("expires_at")
	a := empty("/licenses/"+id+"/renew", "", "Idempotency-Key: one").is(200)
	s.post("/licenses/"+id+"/renew", "{}", token, "Idempotency-Key: one").is(200).has("Idempotency-Replayed: true")
	if end := s.get("/licenses/"+id, token).text("expires_at"); end == before || end != a.text("expires_at") {
		t.Errorf("renewed from %s to %s, answered %s", before, end, a.text("expires_at"))
	}
	empty("/licenses/"+id+"/revoke", "").is(200)
}

// withRoutes adds routes of a test to a service.
func (s *service) withRoutes(routes ...route) {
	s.t.Helper()
	how := s.server.serverOptions
	var err error
	s.server, err = newServer(s.store, s.keys, how, slog.New(slog.NewTextHandler(s.log, nil)),
		append(nouns(), noun{name: "test", wings: func(*server) []wing { return []wing{{routes: routes}} }}))
	s.check(err)
}

// A routeEcho answers with what it was sent.
type routeEcho struct{ color, shade string }

func (r *routeEcho) read(in *input) {
	if in.body != nil {
		r.color, r.shade = in.text("color", required, 10, nil), in.text("shade", optional, 10, nil)
	}
}

func TestBody_ofARouteForPeopleIsAFormAndItsRefusalsArePages(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.damaged = true // the OpenAPI document knows these routes not
	page := func(_ *http.Request, ref *refusal, requestID string) *htmlPage {
		return &htmlPage{ref.code.status, "default-src 'none'", []byte("<!doctype html>" + ref.text() + " " +
			requestID)}
	}
	show := func(_ context.Context, _ *call, r *routeEcho) (any, error) {
		switch r.color {
		case "":
			return &htmlPage{200, "default-src 'self'", []byte("<!doctype html>Which?")}, nil
		case "pink":
			return nil, errors.New("the file is gone")
		case "black":
			panic("black")
		}
		return seeOther("https://pay.example/" + r.color + "?" + r.shade), nil
	}
	s.withRoutes(route{pattern: "GET /paint/{wall}", free: true, page: page, run: endpoint(show)},
		route{pattern: "POST /paint/{wall}", free: true, page: page, address: "paint", run: endpoint(show)})
	const form = "Content-Type: application/x-www-form-urlencoded"
	s.get("/paint/1").is(200).has("Content-Type: text/html; charset=utf-8",
		"Content-Security-Policy: default-src 'self'",
		"Cache-Control: no-store", "Referrer-Policy: same-origin", "X-Robots-Tag: noindex",
		"Vary: Origin | Accept-Language")
	s.post("/paint/1", "color=red&shade=a+%26%C3%A9", form).is(303).has("Location: https://pay.example/red?a &é",
		"Content-Type: ")
	s.post("/paint/1", "color=red&other=x", form+"; charset=UTF-8").is(303)
	for want, a := range map[int]answer{
		405: s.do("PUT", "/paint/1", "").has("Allow: GET, HEAD, POST, OPTIONS"),
		413: s.post("/paint/1", strings.Repeat("x", maxBody+1), form),
		415: s.post("/paint/1", `{"color":"red"}`).has("Accept: application/x-www-form-urlencoded"),
		422: s.post("/paint/1", "shade=light", form),
		500: s.post("/paint/1", "color=pink", form),
	} {
		a.is(want).has("Content-Type: text/html; charset=utf-8", "Content-Security-Policy: default-src 'none'",
			"Referrer-Policy: same-origin")
		if !strings.HasPrefix(a.body, "<!doctype html>") || !strings.HasSuffix(a.body, a.header.Get("X-Request-Id")) ||
			strings.Contains(a.body, "gone") {
			t.Errorf("%d: %s", want, a.body)
		}
	}
	s.post("/paint/1", "color=black", form).is(500).has("Content-Type: text/html; charset=utf-8")
	for _, wrong := range []string{"color=red&color=blue", "color=%zz", "color=%ff", "color=a%00", "color=a;b=c"} {
		s.post("/paint/1", wrong, form).is(422).has("Content-Type: text/html; charset=utf-8")
	}
	for _, wrong := range []string{form + "; charset=latin1", "Content-Type: multipart/form-data; boundary=x",
		"Content-Type: text/plain"} {
		s.post("/paint/1", "color=red", wrong).is(415)
	}
	s.post("/paint/1", "color=red", form, "Content-Encoding: gzip").is(415)
	for range s.server.anonymousRate {
		s.post("/paint/1", "color=red", form)
	}
	if a := s.post("/paint/1", "color=red", form).is(429).has("Content-Type: text/html; charset=utf-8"); a.header.Get(
		"Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	s.get("/painting").is(404, "not_found")
	s.post("/widget/leads", "color=red", form).is(415, "unsupported_media_type") // a route for programs
}

func TestBody_ofARawRouteIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.damaged = true // the OpenAPI document knows this route not
	var got string
	take := func(_ context.Context, c *call, _ *emptyRequest) (any, error) {
		got = string(c.body)
		return noContent{}, nil
	}
	s.withRoutes(route{pattern: "POST /raw", free: true, raw: true, run: endpoint(take)})
	for _, kind := range []string{"application/json", "application/x-www-form-urlencoded", "", "nonsense"} {
		for _, body := range []string{`{"a":1,"a":2} `, "\xff\x00", strings.Repeat("x", maxRawBody)} {
			s.post("/raw", body, "Content-Type: "+kind, "Content-Encoding: br").is(204)
			if got != body {
				t.Errorf("%s: %.80q arrives as %.80q", kind, body, got)
			}
		}
	}
	s.post("/raw", "").is(204)
	s.post("/raw", strings.Repeat("x", maxRawBody+1)).is(413, "body_too_large")
}

func TestBody_hasAtMost16KiB(t *testing.T) {
	t.Parallel()
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
	"empty":                    " ",
	"an array":                 `[{"type":"newsletter","email":"ada@example.com"}]`,
	"a string":                 `"newsletter"`,
	"null":                     `null`,
	"no end":                   `{"type":"newsletter","email":"ada@example.com"`,
	"text behind":              `{"type":"newsletter","email":"ada@example.com"} {}`,
	"a brace behind":           `{"type":"newsletter","email":"ada@example.com"}}`,
	"a NUL behind":             "{\"type\":\"newsletter\",\"email\":\"ada@example.com\"}\x00",
	"a byte order mark":        "\uFEFF" + `{"type":"newsletter","email":"ada@example.com"}`,
	"UTF-16":                   "\xff\xfe{\x00}\x00",
	"invalid UTF-8":            "{\"type\":\"newsletter\",\"email\":\"ada@example.com\",\"source\":\"\xff\"}",
	"an overlong form":         "{\"source\":\"\xc0\xaf\"}",
	"a surrogate in UTF-8":     "{\"source\":\"\xed\xa0\x80\"}",
	"invalid UTF-8 in a name":  "{\"\xff\":1}",
	"half a surrogate pair":    `{"source":"\ud800"}`,
	"a comment":                `{"type":"newsletter"/* */}`,
	"single quotes":            `{'type':'newsletter'}`,
	"a bare name":              `{type:"newsletter"}`,
	"a trailing comma":         `{"type":"newsletter",}`,
	"NaN":                      `{"n":NaN}`,
	"a leading zero":           `{"n":01}`,
	"a plus":                   `{"n":+1}`,
	"hexadecimal":              `{"n":0x1}`,
	"a line break in a string": "{\"source\":\"a\nb\"}",
	"a member twice":           `{"type":"newsletter","type":"newsletter","email":"ada@example.com"}`,
	"an unknown member twice":  `{"x":1,"type":"newsletter","email":"ada@example.com","x":1}`,
	"twice by an escape":       `{"type":"newsletter","email":"ada@example.com","\u0065mail":"eve@example.com"}`,
	"twice at depth":           `{"type":"newsletter","email":"ada@example.com","x":[{"y":{"z":1,"z":1}}]}`,
	"twice behind many": `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,` +
		`"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"c":2}`,
	"nine deep":                 `{"type":"newsletter","email":"ada@example.com","x":[[[[[[[[]]]]]]]]}`,
	"a hundred thousand braces": strings.Repeat(`{"a":`, 3000),
}

func TestProblem_saysAllAndNoMore(t *testing.T) {
	t.Parallel()
	s := newService(t)
	a := s.post("/widget/leads", `{"email":"nobody","type":7}`).is(422, "validation_failed")
	want := `{"type":"http://127.0.0.1:8080/docs#validation_failed","title":"Validation ` +
		`failed","status":422,"detail":"These values are wrong: type, email.",` +
		`"code":"validation_failed","request_id":"` + a.header.Get("X-Request-Id") + `","errors":[` +
		`{"pointer":"#/type","code":"wrong_type","detail":"This must be a string, not a number."},` +
		`{"pointer":"#/email","code":"invalid_email","detail":"An address is name@example.com."}],"ok":false}` + "\n"
	if a.body != want {
		t.Fatalf("problem\n%s, want\n%s", a.body, want)
	}
	a = s.get("/leads").is(401, "token_required")
	want = `{"type":"http://127.0.0.1:8080/docs#token_required","title":"Token required","status":401,"detail":"This ` +
		`request needs a bearer token in the Authorization header.",` +
		`"code":"token_required","request_id":"` + a.header.Get("X-Request-Id") + `"}` + "\n"
	if a.body != want {
		t.Fatalf("problem\n%s, want\n%s", a.body, want)
	}
}

func TestProblem_ofEveryStatusOnLeadsSaysOKFalse(t *testing.T) {
	t.Parallel()
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

func TestProblem_ofAnUnknownErrorIs500WithoutDetailAndOneLogLine(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token := s.token(s.account, scopeLeads)
	s.check(s.store.readers.Close()) // every question now fails in a way that nobody foresaw
	a := s.get("/leads", "Authorization: Bearer "+token).is(500, "internal")
	if strings.Contains(a.body, "sql") || a.text("detail") != "An error occurred in the service. Give the request_id "+
		"when you report it." {
		t.Fatalf("problem %s", a.body)
	}
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], a.header.Get("X-Request-Id")) ||
		!strings.Contains(lines[0], "sql: database is closed") {
		t.Fatalf("log %q", lines)
	}
}

func TestHandlers_answerAPanicWith500AndLogItsStack(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.server.addressBuckets = nil // the next anonymous lead finds no limiter
	a := s.post("/widget/leads", `{}`).is(500, "internal")
	if strings.Contains(a.body, "nil pointer") || a.json()["ok"] != false {
		t.Fatalf("problem %s", a.body)
	}
	if log := s.log.String(); !strings.Contains(log, "nil pointer") ||
		!strings.Contains(log, a.header.Get("X-Request-Id")) || !strings.Contains(log, "limitAddress") {
		t.Fatalf("log %q", log)
	}
	s.get("/widget/health").is(200) // the service goes on
}

func TestHandlers_makeTheRequestIDThemselves(t *testing.T) {
	t.Parallel()
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

func TestRoute_ofAPageAnswersOtherMethodsWith405(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, path := range []string{"//", "//docs"} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"} {
			s.do(method, path, "").is(405, "method_not_allowed").has("Allow: GET, HEAD, OPTIONS")
		}
	}
}

func TestRoute_unknownOrUncleanIs404AndNeverRedirects(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, path := range []string{
		"//v1", "//v1/", "//v2/widget/leads", "//widget/leads", "//V1/widget/leads", "//v1x/widget/leads",
		"/widget", "/widget/", "/widget/lead", "/widget/leads/", "/Widget/leads", "/widget/leads/x", "/licenses/",
		"/licenses/x/devices/",
		"//v1//widget/leads", "//v1/./widget/leads", "//v1/widget/../widget/leads", "//v1/../v1/widget/leads",
		"//../v1/widget/leads", "//v1/widget//leads",
		"//v1/%2e%2e/v1/widget/leads", "//v1/widget%2fleads", "//v1%2fwidget/leads", "//v1/widget/%2fleads",
		"//v1/widget/leads%00",
		"//.well-known/jwks.json/", "//livez/", "////livez", "//api/legacyx", "//debug/pprof/", "//metrics",
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

// The contract's order: route, origin, token, address limit, body (415, 413, 400),
// account limit, members (422), effect; on licence calls members come before the look-up
// and the account limit. Each test breaks two that stand next to each other; no path has
// both a rule on origins and one on tokens.
func TestHandlers_judgeInTheOrderOfTheContract(t *testing.T) {
	t.Parallel()
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
		// token, address limit
		s.get("/widget/stats?widget="+widget, "Authorization: Bearer x").is(401, "invalid_token")
		// address limit, account limit
		s.get("/widget/stats?widget=x").is(429, "rate_limited")
		s.drain(bucketLeads, s.account)
		// 400, account limit
		s.post("/widget/leads", "{", "Origin: "+siteOrigin).is(400, "malformed_json").has("RateLimit: ")
		// account limit, 422
		s.post("/widget/leads", badMember, "Origin: "+siteOrigin).is(429, "rate_limited")
		minute()
		s.post("/widget/events", `{"widget":"wgt_00000000000000000000000000","events":[]}`, "Origin: "+siteOrigin).
			is(422, "validation_failed").has(`RateLimit: "widgets";r=599;t=1`) // 422, effect
		_, key := s.addLicense(license{})
		s.drain(bucketLicenses, s.account)
		s.guessAll()
		for _, path := range licenseCalls { // members, then guessing, then the account limit
			s.post(path, seatBody("license_key", key, "fingerprint", 7)).is(422, "validation_failed").has("RateLimit: ")
			s.post(path, activateBody(key, "f")).is(429, "rate_limited").has(`RateLimit: "failures";r=0;t=60`)
			s.post(path, activateBody(key, "f"), "Peer: 192.0.2.2:1").is(429,
				"rate_limited").has(`RateLimit: "licenses";r=0;t=60`)
		}
		// token, 422
		s.get("/leads?limit=x", "Authorization: Bearer "+s.token(s.account, scopeStats)).is(403, "insufficient_scope")
	})
}

// Whatever stands in a header is answered and never a fault of ours.
func FuzzHeader(f *testing.F) {
	names := []string{"Idempotency-Key", "Authorization", "Origin", "Content-Type", "Content-Encoding",
		"X-Forwarded-For", "If-None-Match"}
	s := newService(f, withoutAddressLimits)
	for i, value := range []string{`"key-1"`, "Bearer eyJ.eyJ.AA", siteOrigin, "application/json; charset=\"utf-8\"",
		"gzip, identity", "192.0.2.1, [2001:db8::1]:80", `W/"x", *`, `"`, `""`, "\x00",
		strings.Repeat("k", 256), "a b"} {
		f.Add(uint8(i), value)
		f.Add(uint8(0), value)
	}
	shape := regexp.MustCompile(`\A([!-~]{1,255}|"[!-~]{1,255}")\z`)
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		s := s.with(t)
		s.server.accountBuckets = newLimiter(10)
		name := names[int(which)%len(names)]
		header := http.Header{"Content-Type": {"application/json"}}
		header[name] = []string{value}
		a := s.ask("POST", "/widget/leads", "", anyLead, header)
		if refused := a.status == 400; name == "Idempotency-Key" && refused == shape.MatchString(value) &&
			value != `""` {
			t.Fatalf("Idempotency-Key: %q is answered with %d", value, a.status)
		}
		s.ask("GET", "/widget/stats", "", "", header)
	})
}

// randomAnswer makes an answer of verify with odd texts in it.
func randomAnswer(r *rand.Rand) *verifyResponse {
	texts := []string{"", "kds", "Gold \"100%\"", "a\\b", "<&>", "é😀", "\u2028\u2029", "tab\there", "\x7f"}
	text := func() string { return texts[r.IntN(len(texts))] }
	optional := func() *string {
		if r.IntN(2) == 0 {
			return nil
		}
		return ptr(text())
	}
	count := func() *int {
		if r.IntN(2) == 0 {
			return nil
		}
		return ptr(r.IntN(100))
	}
	moment := func() stamp {
		if r.IntN(2) == 0 {
			return stamp{}
		}
		return newStamp(time.Unix(r.Int64N(4_000_000_000), 0))
	}
	v := &verifyResponse{Valid: r.IntN(2) == 0, Code: "valid", Detail: "The licence is valid.",
		CheckedAt: newStamp(time.Unix(r.Int64N(4_000_000_000), 0)), Nonce: text()}
	if r.IntN(4) > 0 {
		v.License = &licenseView{"lic_1", text(), optional(), "floating", "active", r.IntN(2) == 0, moment(), moment(),
			codeList{}, seats{r.IntN(9), count(), count()}}
		for range r.IntN(3) {
			v.License.Entitlements = append(v.License.Entitlements, text())
		}
	}
	if r.IntN(2) == 0 {
		v.Device = &deviceState{"dev_1", optional(), "active"}
	}
	if r.IntN(2) == 0 {
		v.Token, v.ExpiresIn, v.RefreshAfter = "e30.e30.AA", r.Int64N(1000), r.Int64N(3)
	}
	return v
}

func TestAnswer_ofVerifyIsEncodedAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2026))
	for range 2000 {
		v := randomAnswer(r)
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		must(t, enc.Encode((*plainAnswer)(v)))
		if got := encodeJSON(v); !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("got  %s\nwant %s", got, want.Bytes())
		}
	}
}

// plainAnswer is a verifyResponse that encoding/json encodes.
type plainAnswer verifyResponse

func BenchmarkVerifyAnswer(b *testing.B) {
	id := newID("lic", time.Now())
	v := &verifyResponse{Valid: true, Code: "valid", Detail: verdictDetails["valid"], CheckedAt: newStamp(time.Now()),
		RefreshAfter: 86400,
		License: &licenseView{ID: id, Product: "kds", Kind: "node_locked", Status: "active",
			Entitlements: codeList{"kds"}, Seats: seats{1, ptr(3), ptr(2)}},
		Device: &deviceState{ID: id, Name: ptr("Kitchen 1"), State: "active"}}
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encodeJSON(v)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encodeJSON((*plainAnswer)(v))
		}
	})
}

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// BenchmarkAlone is what the service itself adds to a request: the handler without
// net/http's part and without the harness.
func BenchmarkAlone(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	_, key := s.addLicense(license{MaxDevices: ptr(3)})
	token := s.activate(key, "kitchen-1").is(200).text("token")
	stats := "/widget/stats?widget=" + s.addWidget(s.account)
	tag := s.get(stats).is(200).header.Get("ETag")
	for name, c := range map[string]struct{ method, path, body, header, value string }{
		"verify/token":       {"POST", "/widget/license/verify", `{}`, "Authorization", "Bearer " + token},
		"verify/key":         {"POST", "/widget/license/verify", activateBody(key, "kitchen-1"), "", ""},
		"stats":              {"GET", stats, "", "", ""},
		"stats/zone":         {"GET", stats + "&timezone=Europe/Zurich", "", "", ""},
		"stats/not modified": {"GET", stats, "", "If-None-Match", tag},
	} {
		b.Run(name, func(b *testing.B) {
			s.server.accountBuckets = newLimiter(maxAccountBuckets) // a million requests a run
			body := strings.NewReader(c.body)
			r := httptest.NewRequest(c.method, "/v1"+c.path, body)
			r.Header.Set("Content-Type", "application/json")
			if c.header != "" {
				r.Header.Set(c.header, c.value)
			}
			w := &discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Seek(0, io.SeekStart)
				clear(w.header)
				s.server.ServeHTTP(w, r)
			}
		})
	}
}

func TestProblem_codesAreUniqueAndSayWhatTheyMean(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range problemsOf(nouns()) {
		if seen[c.name] || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(c.name) {
			t.Errorf("code %q is declared twice or is not lower snake case", c.name)
		}
		seen[c.name] = true
		if http.StatusText(c.status) == "" || c.status < 400 || c.title == "" || !strings.HasSuffix(c.detail, ".") {
			t.Errorf("%s: status %d, title %q, detail %q", c.name, c.status, c.title, c.detail)
		}
	}
	if len(seen) < 30 {
		t.Errorf("found %d codes only", len(seen))
	}
}

func TestEvent_typesAreUniqueAndNameTheirNoun(t *testing.T) {
	t.Parallel()
	seen := map[eventType]bool{}
	for _, typ := range eventTypesOf(nouns()) {
		if seen[typ] || !regexp.MustCompile(`^[a-z]+\.[a-z]+(_[a-z]+)*$`).MatchString(string(typ)) {
			t.Errorf("type %q is declared twice or is not NOUN.WHAT_HAPPENED", typ)
		}
		seen[typ] = true
	}
	if len(seen) < 15 {
		t.Errorf("found %d types only", len(seen))
	}
}
