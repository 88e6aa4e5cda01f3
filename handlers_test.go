package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http/httptest"
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
	empty := func(path string, headers ...string) answer {
		t.Helper()
		return s.post(path, "", append(headers, token)...)
	}
	for _, kind := range []string{"Accept: */*", "Content-Type: application/json", formType} {
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
	a := empty("/licenses/"+id+"/renew", "Idempotency-Key: one").is(200)
	s.post("/licenses/"+id+"/renew", "{}", token, "Idempotency-Key: one").is(200).has("Idempotency-Replayed: true")
	if end := s.get("/licenses/"+id, token).text("expires_at"); end == before || end != a.text("expires_at") {
		t.Errorf("renewed from %s to %s, answered %s", before, end, a.text("expires_at"))
	}
	empty("/licenses/" + id + "/revoke").is(200)
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

// What nobody foresaw is answered 500 without a detail, and logged: a panic with its stack, an error in one line.
func TestHandlers_answerWhatNobodyForesawWith500(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token, limiter := s.token(s.account, scopeLeads), s.server.addressBuckets
	s.server.addressBuckets = nil // the next anonymous lead finds no limiter
	a := s.post("/widget/leads", `{}`).is(500, "internal")
	if strings.Contains(a.body, "nil pointer") || a.json()["ok"] != false {
		t.Fatalf("problem %s", a.body)
	}
	contains(t, s.log.String(), "nil pointer", a.header.Get("X-Request-Id"), "limitAddress")
	s.server.addressBuckets = limiter
	const given = "req_00000000000000000000000000"
	id := s.get("/widget/health", "X-Request-Id: "+given).is(200).header.Get("X-Request-Id") // the service goes on
	failIf(t, !validID("req", id) || id == given || id == a.header.Get("X-Request-Id"), "the request's id is %q", id)
	s.log.Reset()
	s.check(s.store.readers.Close()) // every question now fails in a way that nobody foresaw
	a = s.get("/leads", bearer(token)).is(500, "internal")
	equal(t, "detail", a.text("detail"), "An error occurred in the service. Give the request_id when you report it.")
	contains(t, s.log.String(), a.header.Get("X-Request-Id"), "sql: database is closed")
	equal(t, "lines that are logged", strings.Count(s.log.String(), "\n"), 1)
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

func TestAnswer_ofVerifyIsEncodedAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	at := newStamp(time.Unix(1_800_000_000, 0))
	for _, text := range []string{"", "kds", `"100%"`, `a\b`, "<&>", "é😀", "\u2028\u2029", "a\tb", "\x7f"} {
		for _, v := range []*verification{
			{Code: "valid", Detail: "The licence is valid.", CheckedAt: at, Nonce: text, ExpiresIn: 1},
			{Valid: true, CheckedAt: at, Device: &deviceSummary{"dev_1", nil, "active"}, Token: "e30.e30.AA",
				License: &licenseSummary{"lic_1", text, nil, "floating", "active", false, stamp{}, at, []string{},
					seats{3, nil, ptr(0)}}},
			{CheckedAt: at, Device: &deviceSummary{"dev_1", &text, "active"}, Token: "e30.e30.AA", ExpiresIn: 900,
				License: &licenseSummary{"lic_1", text, &text, "floating", "active", true, at, stamp{},
					[]string{text, "kds"}, seats{0, ptr(99), nil}}, RefreshAfter: 2},
		} {
			var want bytes.Buffer
			enc := json.NewEncoder(&want)
			enc.SetEscapeHTML(false)
			must(t, enc.Encode((*plainAnswer)(v)))
			equal(t, text, string(encodeJSON(v)), want.String())
		}
	}
}

// plainAnswer is a verification that encoding/json encodes.
type plainAnswer verification
