package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
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

// The tests of this file go through every route of the document, with the requests of its examples: what holds for
// all routes alike is said once, here.

// answered is what the program has answered in this run: an operation's id and a command's name where it succeeded, and
// problem codes, alone and behind the id of the operation.
var answered sync.Map

func noteAnswer(o *operation, status int, body []byte) {
	if o != nil && status < 400 {
		answered.Store(o.id(), true)
	}
	if status >= 400 {
		p, _ := decoded(body).(node)
		answered.Store(fmt.Sprint(p["code"]), true)
		if o != nil {
			answered.Store(o.id()+" "+fmt.Sprint(p["code"]), true)
		}
	}
}

// unseen are declared, and no test shows them yet. Nothing is added here: what a run has seen must go.
var unseen = []string{
	"null as getBookMapping/confirmed_at",
	"null as getBookMapping/mapping",
	"null as getOrder/disputes/*/evidence_by",
	"null as getOrder/disputes/*/reason",
	"null as getPayout/arrival_date",
	"null as getPayout/provider_id",
	"null as getRevenueDay/days/*/late/*/id",
	"null as listDeliveries/data/*/status",
	"null as listOrders/data/*/customer/name",
	"null as listPayouts/data/*/arrival_date",
	"null as listPayouts/data/*/provider_id",
	"the problem books_connection_not_found of POST /books/connections/{id}/exports/{export_id}/retry",
	"the problem books_connection_not_found of POST /books/connections/{id}/exports/{export_id}/reverse",
	"the problem books_connection_state of GET /books/connections/{id}/mapping",
	"the problem books_connection_state of GET /books/connections/{id}/payouts/{payout}/preview",
	"the problem books_connection_state of GET /books/connections/{id}/preview/{date}",
	"the problem books_connection_state of POST /books/connections/{id}/exports",
	"the problem books_not_available of GET /books/connections/{id}/accounts",
	"the problem books_not_available of GET /books/connections/{id}/mapping",
	"the problem books_not_available of GET /books/connections/{id}/payouts/{payout}/preview",
	"the problem books_not_available of GET /books/connections/{id}/preview/{date}",
	"the problem books_unavailable of GET /books/connections/{id}/payouts/{payout}/preview",
	"the problem export_state of POST /books/connections/{id}/exports/{export_id}/retry",
}

// neverSeen is neverAnswered without unseen, and with what of these was seen.
func neverSeen() (missing []string) {
	never := neverAnswered()
	for _, what := range unseen {
		if !slices.Contains(never, what) {
			missing = append(missing, "any use for the line of unseen that has "+what)
		}
	}
	return append(missing, slices.DeleteFunc(never, func(what string) bool { return slices.Contains(unseen, what) })...)
}

// neverAnswered lists what no test of a whole run has seen the service answer: a route's success, or a problem code.
func neverAnswered() (missing []string) {
	looked := map[uintptr]bool{}
	for _, o := range operations() {
		elsewhere := isProviders(o) || o.atRoot // signed by their fakes; legacy paths are noted as their successors
		if _, seen := answered.Load(o.id()); !seen && !elsewhere {
			missing = append(missing, "success of "+o.name())
		}
		if r := routeOf(o); r != nil {
			for _, code := range strings.Fields(r.refuses) {
				if r.noQuery && code == codeValidation.name { // released, and never sent
					continue
				}
				if _, seen := answered.Load(o.id() + " " + code); !seen {
					missing = append(missing, "the problem "+code+" of "+o.name())
				}
			}
		}
		for status, response := range o.responses() {
			if status[0] == '2' {
				for _, media := range child(response, "content") {
					missing = append(missing, neverNull(o.id(), media.(node)["schema"], looked)...)
				}
			}
		}
	}
	for _, c := range problemsOf(nouns()) {
		if _, seen := answered.Load(c.name); !seen {
			missing = append(missing, "the problem "+c.name)
		}
	}
	return missing
}

// seenNull are the schemas of members of answers that were null in this run.
var seenNull sync.Map

// neverNull lists the members within a schema that may be null and never were. Each is listed once.
func neverNull(at string, schema any, looked map[uintptr]bool) (missing []string) {
	of, _ := schema.(node)
	of = resolve(of)
	if key := reflect.ValueOf(of).Pointer(); of == nil || looked[key] {
		return nil
	} else {
		looked[key] = true
	}
	properties := propertiesOf(of)
	for _, name := range slices.Sorted(maps.Keys(properties)) { // so that what is missing has the same name each time
		p := properties[name]
		types := typesOf(p)
		choice, _ := p["anyOf"].([]any)
		mayBe := slices.Contains(types, "null") || len(choice) == 2 && choice[1].(node)["type"] == "null"
		if seen, _ := seenNull.Load(reflect.ValueOf(p).Pointer()); mayBe && seen == nil {
			missing = append(missing, "null as "+at+"/"+name)
		}
		if len(choice) > 0 {
			missing = append(missing, neverNull(at+"/"+name, choice[0], looked)...)
		}
		missing = append(missing, neverNull(at+"/"+name, p, looked)...)
	}
	return append(missing, neverNull(at+"/*", of["items"], looked)...)
}

// everyRoute calls try for each route but those of payment providers, which sign what they send, with a service that
// has what its examples name. A route whose example ends that gets a service of its own.
func everyRoute(
	t *testing.T, try func(f *exampleFixture, o *operation, r *route), change ...func(*storeOptions, *serverOptions),
) {
	t.Helper()
	tried, fixtures := 0, &fixtures{t: t, change: change}
	for _, o := range operations() {
		if r := routeOf(o); r != nil && !isProviders(o) {
			try(fixtures.next(o), o, r)
			tried++
		}
	}
	if tried < len(routesByPattern())*3/4 {
		t.Errorf("%d routes are tried, of %d", tried, len(routesByPattern()))
	}
}

// prepared makes what must be there before the example of an operation can succeed.
func (f *exampleFixture) prepared(o *operation) {
	f.t.Helper()
	if prepare := before[o.id()]; prepare != nil {
		prepare(f)
	}
}

// exampleBody returns the text of the example of a body with the most members, and its Content-Type; "": it has
// none.
func (f *exampleFixture) exampleBody(o *operation) (body string, header string) {
	f.t.Helper()
	if bodyExamples(o) == nil {
		return "", "Accept: */*"
	}
	return sentBody(o, f.fill(firstExample(o))), "Content-Type: " + bodyTypeOf(o)
}

// withoutRequestID is the body of an answer but for what is another one each time.
func withoutRequestID(body string) string { return requestIDs.ReplaceAllString(body, "req_") }

var requestIDs = regexp.MustCompile(`req_[0-9a-z]{26}`)

// Another account's row is answered exactly as one that does not exist, stands in no list or sum, and the account
// can't be asked for.
func TestEveryRoute_findsNothingOfAnotherAccount(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	compared, listed := 0, 0
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if r.token != tokenRequired || r.scope == scopeAdmin {
			return
		}
		stranger := bearer(f.token(f.addAccount("stranger"), r.scope))
		body, kind := f.exampleBody(o)
		before := f.dump()
		theirs := f.pathOf(o)
		if o.parameter("account_id") != nil {
			f.do(o.method, theirs+"?account_id="+f.account, body, stranger, kind).is(403, "insufficient_scope")
		}
		if o.method == "GET" && !strings.Contains(o.path, "{") {
			f.prepared(o)
			query := f.neededQuery(o)
			own, strangers := f.get(theirs+query, f.admin).is(200), f.get(theirs+query, stranger)
			ids := idInPath.FindAllString(withoutRequestID(own.body), -1)
			for _, id := range ids {
				if strings.Contains(strangers.body, id) {
					t.Errorf("%s shows a stranger %s", o.name(), id)
				}
			}
			if listed += len(ids); strangers.status != 200 || len(ids) > 0 && own.body == strangers.body {
				t.Errorf("%s answers a stranger %d %s", o.name(), strangers.status, strangers.body)
			}
			return
		}
		for _, id := range idInPath.FindAllString(theirs, -1) {
			other := id[:len(id)-26] + "00000000000000000000000000"
			unknown := strings.Replace(theirs, id, other, 1)
			a, b := f.do(o.method, theirs, body, stranger, kind), f.do(o.method, unknown, body, stranger, kind)
			got, want := withoutRequestID(a.body), strings.ReplaceAll(withoutRequestID(b.body), other, id)
			if a.status < 400 || a.status != b.status || got != want {
				t.Errorf("%s: %s is answered %d %s, an unknown one %d %s", o.name(), id, a.status, got, b.status, want)
			}
			compared++
		}
		f.unchanged(before)
	})
	if compared < 40 || listed < 40 {
		t.Errorf("compared %d ids, and looked for %d in lists, only", compared, listed)
	}
}

// neededQuery is the query of an operation with the examples of the parameters that it can't do without.
func (f *exampleFixture) neededQuery(o *operation) string {
	var all []string
	for _, p := range o.params {
		if p["in"] == "query" && p["required"] == true {
			all = append(all, queryOf(p["name"].(string), f.fillText(fmt.Sprint(p["example"]))))
		}
	}
	return "?" + strings.Join(all, "&")
}

var idInPath = regexp.MustCompile(`[a-z]+_[0-9a-z]{26}`)

// No list or report of a command shows a row of another account than the one that it is asked for.
func TestEveryCommand_thatListsShowsOneAccountAlone(t *testing.T) {
	t.Parallel()
	f := newExampleFixture(t)
	stranger, shown := f.addAccount("stranger"), 0
	f.must("token", "issue", "-scope", "leads:read")
	f.change(func(t *tx) error {
		t.countLegacy([]legacyCall{{t.now.Format(time.DateOnly), "widget/leads", f.account, 1, t.now}})
		return nil
	})
	for _, c := range allCommands() {
		list := c.name
		hasAccount := slices.ContainsFunc(c.options, func(o option) bool { return o.name == "account" })
		if !hasAccount || c.nargs() > 0 || !strings.HasSuffix(list, " list") && list != "lead export" {
			continue
		}
		args := append(strings.Fields(list), "-json", "-account")
		own, theirs := f.must(append(args, f.account)...), f.must(append(args, stranger)...)
		for _, id := range append(idInPath.FindAllString(own, -1), siteOrigin) {
			if shown++; strings.Contains(theirs, id) {
				t.Errorf("%s shows a stranger %s", list, id)
			}
		}
		if own == theirs {
			t.Errorf("%s: both accounts are shown %s", list, own)
		}
	}
	if shown < 30 {
		t.Errorf("%d ids only", shown)
	}
}

// Whoever has used up the account's allowance is answered 429 on every route that is charged, and nothing happens.
func TestEveryRoute_thatIsChargedSaysWhenItsBucketIsEmpty(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	f, tokens := newExampleFixture(t), map[*operation]string{}
	f.server.monotonic = standsStill() // or buckets refill meanwhile
	f.change(func(t *tx) error {
		for _, o := range operations() {
			r := routeOf(o)
			if r == nil || isProviders(o) || r.free || r.token != tokenRequired {
				continue
			}
			poor := t.addAccount("poor", false)
			row := tokenRow{AccountID: poor, ClientID: "test", Scope: r.scope}
			token, _, err := issueToken(t, f.keys, row, time.Hour)
			if err := errors.Join(err, t.setRate(poor, 1)); err != nil {
				return err
			}
			f.told.hear(token)
			tokens[o] = bearer(token)
		}
		return nil
	})
	failIf(t, len(tokens) < 50, "%d routes only", len(tokens))
	for _, token := range tokens {
		f.get("/account", token).is(200)
	}
	before := f.dump()
	for o, token := range tokens {
		body, kind := f.exampleBody(o)
		a := f.do(o.method, f.pathOf(o), body, token, kind).is(429, "rate_limited")
		a.has(`RateLimit-Policy: "account";q=1;w=60`, `RateLimit: "account";r=0;t=60`)
	}
	f.unchanged(before)
}

// A dry run succeeds where the request would, says that it was one, and changes nothing.
func TestEveryRoute_thatIsTriedFirstChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	tried := 0
	everyRoute(t, func(f *exampleFixture, o *operation, _ *route) {
		if o.parameter("dry_run") == nil {
			return
		}
		tried++
		f.prepared(o)
		body, kind := f.exampleBody(o)
		before := f.dump()
		a := f.do(o.method, f.pathOf(o)+"?dry_run=true", body, f.admin, kind)
		if confirmed := o.id() == "confirmPayout"; a.status != 200 && !confirmed { // the example is not of Vipps
			t.Errorf("%s: %d %s", o.name(), a.status, a.body)
		} else if !confirmed {
			a.tells("dry_run", true)
		}
		f.unchanged(before)
	})
	equal(t, "routes", tried, 11)
}

func TestEveryRoute_takesABodyUpToItsLimitAndNoMore(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if !takesBody(o.method) {
			return
		}
		body, kind := f.exampleBody(o)
		filled := func(n int64) string {
			if strings.HasPrefix(body, "{") {
				return body[:len(body)-1] + strings.Repeat(" ", int(n)-len(body)) + "}"
			}
			return body + "&later=" + strings.Repeat("x", int(n)-len(body)-len("&later="))
		}
		before := f.dump()
		headers := append(f.headersOf(o), kind)
		f.do(o.method, f.pathOf(o), filled(r.bodyLimit()+1), headers...).is(413)
		f.unchanged(before)
		f.prepared(o)
		if a := f.do(o.method, f.pathOf(o), filled(r.bodyLimit()), headers...); a.status == 413 {
			t.Errorf("%s refuses a body of %d bytes: %s", o.name(), r.bodyLimit(), a.body)
		}
	})
}

// Every route that creates answers a repetition from memory, and refuses the key with another body.
func TestEveryRoute_thatCreatesHonoursAnIdempotencyKey(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	created := 0
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if !r.creates {
			return
		}
		created++
		f.prepared(o)
		body, kind := f.exampleBody(o)
		headers := append(f.headersOf(o), kind, "Idempotency-Key: "+o.id())
		first := f.do(o.method, f.pathOf(o), body, headers...)
		if first.status >= 300 {
			t.Errorf("%s: %d %s", o.name(), first.status, first.body)
			return
		}
		before := f.dump()
		again := f.do(o.method, f.pathOf(o), body, headers...).is(first.status).has("Idempotency-Replayed: true")
		equal(t, o.name()+" again", again.body, first.body)
		f.do(o.method, f.pathOf(o), body+" ", headers...).is(422, "idempotency_key_reused")
		f.unchanged(before)
	})
	if created < 10 {
		t.Errorf("%d routes create something", created)
	}
}

// A write that fails at any of its statements, or at the commit, is done in whole or not at all, and is answered
// 5xx.
func TestEveryRoute_thatWritesDoesSoInWholeOrNotAtAll(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	fail := errors.New("disk I/O error")
	struck := 0
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if o.method == "GET" || r.form != "" {
			return
		}
		f.prepared(o)
		body, kind := f.exampleBody(o)
		headers := append(f.headersOf(o), kind)
		for left := 1; ; left++ { // a transaction that can't begin is tried again
			before := f.dump()
			f.fault.set(left, "exec ", notDone, fail)
			f.fault.arm(true)
			a := f.do(o.method, f.pathOf(o), body, headers...)
			f.fault.arm(false)
			_, hit := f.fault.next()
			if hit {
				struck++
			}
			// A batch whose commit, or whose counters, can't be written runs once more, each of its jobs alone.
			again := f.fault.hit() == "exec COMMIT" || strings.Contains(f.fault.hit(), "INTO widget_counts")
			if a.status < 300 && (!hit || again) {
				break
			}
			if !hit || a.status < 500 {
				t.Errorf("%s: %d %s after a fault at %q", o.name(), a.status, a.body, f.fault.hit())
				break
			}
			f.notice()
			f.unchanged(before)
		}
	}, withFaults)
	if struck < 100 {
		t.Errorf("%d faults only", struck)
	}
}

// Every list is walked to its end, a row a page.
func TestEveryRoute_thatListsIsReadToItsEnd(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	lists := 0
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if o.method != "GET" || o.parameter("cursor") == nil {
			return
		}
		lists++
		f.prepared(o)
		whole := f.get(f.pathOf(o)+"?limit=200", f.headersOf(o)...).is(200).json()["data"].([]any)
		if len(whole) == 0 {
			t.Errorf("%s: the example fixture has no row for it", o.name())
		}
		var byOne []any
		for query := "?limit=1"; ; {
			page := f.get(f.pathOf(o)+query, f.headersOf(o)...).is(200).json()
			byOne = append(byOne, page["data"].([]any)...)
			next, more := page["next_cursor"].(string)
			if !more || len(byOne) > len(whole) {
				break
			}
			query = "?limit=1&" + queryOf("cursor", next)
		}
		equal(t, o.name()+" a row a page", encode(byOne), encode(whole))
	})
	if lists < 8 {
		t.Errorf("%d lists only", lists)
	}
}

// A path answers OPTIONS with its methods, another method with 405, and HEAD as GET.
func TestEveryRoute_answersOtherMethodsAsItsPathSays(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	methods := map[string][]string{}
	for _, r := range allRoutes() {
		methods[r.path()] = append(methods[r.path()], r.method())
	}
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		path, own := f.pathOf(o), methods[r.path()]
		preflight := f.do("OPTIONS", path, "", "Origin: "+siteOrigin, "Access-Control-Request-Method: "+o.method)
		if r.form == "" && !r.open {
			preflight.is(204).has("Access-Control-Allow-Origin: "+siteOrigin, "Access-Control-Max-Age: 7200")
			if allowed := preflight.header.Get("Access-Control-Allow-Methods"); !strings.Contains(allowed, o.method) {
				t.Errorf("%s: a preflight allows %s", o.name(), allowed)
			}
		}
		allow := append(slices.Clone(own), "OPTIONS")
		if slices.Contains(own, "GET") {
			allow = append(allow, "HEAD")
		}
		slices.Sort(allow)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"} {
			if slices.Contains(allow, method) {
				continue
			}
			allowed := strings.Split(f.do(method, path, "", f.headersOf(o)...).is(405).header.Get("Allow"), ", ")
			if slices.Sort(allowed); !slices.Equal(allowed, allow) {
				t.Errorf("%s: 405 to %s allows %s, want %s", o.name(), method, allowed, allow)
			}
		}
		if o.method == "GET" {
			get, head := f.get(path, f.headersOf(o)...), f.do("HEAD", path, "", f.headersOf(o)...)
			if head.status != get.status || get.status != 200 {
				t.Errorf("%s: HEAD answers %d, GET %d", o.name(), head.status, get.status)
			}
		}
	})
}

// A token that is wrong, expired or cut short is refused wherever one may be sent, and none where one must be.
func TestEveryRoute_refusesWrongTokens(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if r.token == tokenIgnored {
			return
		}
		good, expired := f.token(f.account, "admin"), f.expiredToken()
		var without []string // tokens with every scope but one that the route needs
		for _, needed := range strings.Fields(r.scope) {
			others := slices.DeleteFunc(slices.Clone(grantableScopes),
				func(scope string) bool { return scope == needed || scope == scopeAdmin })
			without = append(without, f.token(f.account, strings.Join(others, " ")))
		}
		body, kind := f.exampleBody(o)
		ask := func(headers ...string) answer {
			if p := o.parameter("Origin"); p != nil {
				headers = append(headers, "Origin: "+p["example"].(string))
			}
			return f.do(o.method, f.pathOf(o), body, append(headers, kind)...)
		}
		before := f.dump()
		_, claims, _ := strings.Cut(good, ".")
		for what, token := range map[string]string{
			"one that has expired":       expired,
			"one of another's signature": good[:strings.LastIndex(good, ".")] + "." + strings.Repeat("A", 86),
			"one that is cut short":      good[:len(good)-1],
			"one without a header":       claims,
			"no token at all":            "x",
		} {
			if a := ask(bearer(token)); a.status != 401 {
				t.Errorf("%s takes %s: %d %s", o.name(), what, a.status, a.body)
			}
		}
		if r.token == tokenRequired {
			ask().is(401, "token_required").has(`WWW-Authenticate: ` + bareChallenge)
		}
		for _, token := range without {
			ask(bearer(token)).is(403, "insufficient_scope")
		}
		f.unchanged(before)
	})
}

// expiredToken is a token of the operator that ended an hour ago.
func (f *exampleFixture) expiredToken() (token string) {
	f.t.Helper()
	f.change(func(t *tx) (err error) {
		token, _, err = issueToken(t.at(-2*time.Hour), f.keys,
			tokenRow{AccountID: f.account, ClientID: "test", Scope: "admin"}, time.Hour)
		return err
	})
	return token
}

// Against somebody whose client was written for another vendor, or misspells a limit or a sum: nothing is done that it
// did not mean. What is not JSON in UTF-8, or isn't called so, is refused on every route of JSON, and what is unknown
// with Prefer: handling=strict, and without where money moves, before anything is charged or happens.
func TestEveryRoute_ofJSONRefusesWhatItDoesNotKnow(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if !r.takesJSON() || !takesBody(o.method) {
			return
		}
		before := f.dump()
		for name, malformed := range malformedBodies {
			a := f.do(o.method, f.pathOf(o), malformed, f.headersOf(o)...)
			if a.status != 400 || a.json()["code"] != "malformed_json" || len(a.wrong()) != 0 ||
				a.header.Get("RateLimit") != "" {
				t.Errorf("%s with %s: %d %v %s", o.name(), name, a.status, a.header, a.body)
			}
		}
		body, _ := f.exampleBody(o)
		for _, wrong := range wrongMediaTypes {
			if o.path == "/widget/events" && wrong == "Content-Type: text/plain" {
				continue // a beacon's
			}
			a := f.do(o.method, f.pathOf(o), body, append(f.headersOf(o), wrong)...)
			if a.status != 415 || a.json()["code"] != "unsupported_media_type" ||
				a.header.Get("Accept") != "application/json" {
				t.Errorf("%s with %s: %d %v %s", o.name(), wrong, a.status, a.header, a.body)
			}
		}
		unknown := []string{"of_a_later_version", "refund_amount", "line_items", "coupon", "dryRun"}
		for _, m := range bodyMembers(o) {
			if len(m.names) == 1 {
				unknown = append(unknown, "q"+m.names[0])
			}
		}
		for _, name := range unknown {
			if f.refusesUnknown(o, name, strict); r.careful {
				f.refusesUnknown(o, name)
			}
		}
		f.unchanged(before)
	})
}

// refusesUnknown sends a body with an unknown member, which must be refused, and those named that the document has.
func (f *exampleFixture) refusesUnknown(o *operation, name string, headers ...string) {
	f.t.Helper()
	listed := []string{}
	for _, m := range bodyMembers(o) {
		if len(m.names) == 1 {
			listed = append(listed, m.names[0])
		}
	}
	body := encode(setMember(f.fill(firstExample(o)), []string{name}, 500))
	a := f.do(o.method, f.pathOf(o), body, append(f.headersOf(o), headers...)...)
	if a.status != 422 || !slices.Contains(a.wrong(), "#/"+name+" unknown_member") {
		f.t.Errorf("%s with %s: %d %s", o.name(), name, a.status, a.body)
		return
	}
	for _, e := range a.json()["errors"].([]any) {
		if e := e.(node); e["code"] == "unknown_member" {
			equal(f.t, o.name()+": allowed", append([]string{}, texts(e, "allowed")...), listed)
		}
	}
}

var wrongMediaTypes = []string{"Content-Type: application/x-www-form-urlencoded",
	"Content-Type: multipart/form-data; boundary=x", "Content-Type: text/html", "Content-Type: text/plain",
	"Content-Type: application/jsonx", "Content-Type: application/problem+json", "Content-Type: ",
	"Content-Type: application/json; charset=iso-8859-1", "Content-Type: application/json; charset=utf-16",
	"Content-Type: application/json; charset=utf-8; charset=latin1", "Content-Type: application/json; =",
	"Content-Type: json",
	"Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: identity, gzip"}
