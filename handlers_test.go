package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBody_mayBeEmptyWhereEveryMemberMayBeAbsent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{ExpiresAt: newStamp(time.Now()), terms: terms{DurationDays: ptr(30)}})
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

func TestBody_ofARouteForPeopleIsAForm(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, path := range []string{"/activate", "/oauth/signin"} {
		s.do("PUT", path, "").is(405).has("Allow: GET, HEAD, POST, OPTIONS")
		s.post(path, strings.Repeat("x", 1<<20), formType).is(413)
		s.post(path, `{}`).is(415).has("Accept: application/x-www-form-urlencoded")
		s.post(path, "code=1", formType, "Content-Encoding: gzip").is(415)
		for _, wrong := range []string{formType + "; charset=latin1", "Content-Type: multipart/form-data; boundary=x",
			"Content-Type: text/plain"} {
			s.post(path, "code=1", wrong).is(415)
		}
		for _, wrong := range []string{"code=1&code=2", "code=%zz", "code=%ff", "code=a%00", "code=a;b=c"} {
			if a := s.post(path, wrong, formType); a.status < 400 || a.status >= 500 {
				t.Errorf("%s takes %s: %d", path, wrong, a.status)
			}
		}
	}
}

func TestBody_ofNoAnnouncedLengthHasAtMost16KiB(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for n, want := range map[int]int{16 << 10: 200, 16<<10 + 1: 413} {
		body := anyLead + strings.Repeat(" ", n-len(anyLead))
		r := httptest.NewRequest("POST", "/v1/widget/leads", io.MultiReader(strings.NewReader(body)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		equal(t, n, w.Code, want)
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
func randomAnswer(r *rand.Rand) *verification {
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
	v := &verification{Valid: r.IntN(2) == 0, Code: "valid", Detail: "The licence is valid.",
		CheckedAt: newStamp(time.Unix(r.Int64N(4_000_000_000), 0)), Nonce: text()}
	if r.IntN(4) > 0 {
		v.License = &licenseSummary{"lic_1", text(), optional(), "floating", "active", r.IntN(2) == 0, moment(),
			moment(), []string{}, seats{r.IntN(9), count(), count()}}
		for range r.IntN(3) {
			v.License.Entitlements = append(v.License.Entitlements, text())
		}
	}
	if r.IntN(2) == 0 {
		v.Device = &deviceSummary{"dev_1", optional(), "active"}
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

// plainAnswer is a verification that encoding/json encodes.
type plainAnswer verification
