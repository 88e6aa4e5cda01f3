package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// strict asks for every unknown member to be refused (RFC 7240, section 4.4).
const strict = "Prefer: handling=strict"

func TestUnknownMember_thatIsNearlyAKnownOneIsRefusedWhereMoneyMoves(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	before := s.dump()
	a := s.post("/orders", orderBody("discont", "500"), auth)
	a.invalid("#/discont unknown_member").contains(`"detail":"There is no such member: did you mean discount?"`,
		`"detail":"These values are wrong: discont."`)
	s.post("/orders", orderBody("lines", `[{"name":"Soup","quantity":1,"unit_amount":900,"vat_rate":260,"gruop":"food"},
		{"name":"Tea","quantity":2,"unit_amout":400,"vat_rate":260}]`, "delivery", `{"ammount":500,"vat_rate":810}`,
		"customer", `{"nmae":"Ada","phone":"+41"}`), auth).invalid("#/lines/1/unit_amount required",
		"#/delivery/amount required", "#/lines/0/gruop unknown_member", "#/lines/1/unit_amout unknown_member",
		"#/delivery/ammount unknown_member", "#/customer/nmae unknown_member")
	for name, want := range map[string]string{"Discount": "discount", "tp": "tip", "return_ulr": "return_url",
		"expires": "expires_in", "url": "return_url", "refrence": "reference"} {
		s.post("/orders", orderBody(name, "null"), auth).invalid("#/" + name + " unknown_member").
			contains("did you mean " + want + "?")
	}
	s.unchanged(before)

	s.post("/orders", orderBody("of_a_later_version", `{"discont":500,"x":[{"tp":1}]}`, "id", "1", "channel", `"web"`,
		"lines", `[{"name":"Soup","quantity":1,"unit_amount":900,"vat_rate":260,"sku":"S-1","allergens":["milk"]}]`,
		"discount", "0"), auth).is(200).has("Preference-Applied: ")
	s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","emial":"x","sourse":"x"}`).is(200)
}

func TestUnknownMember_isRefusedOfEveryKindWithStrictHandling(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.server.legacySunset = s.server.now().Add(time.Hour)
	applied := "Preference-Applied: handling=strict"
	lead := `{"type":"demo","email":"ada@example.com","fields":{"emial":"any name will do"},"utm":1,"emial":2}`
	s.post("/widget/leads", lead, strict).invalid("#/utm unknown_member", "#/emial unknown_member").has(applied)
	s.counts(0, "SELECT count(*) FROM leads")
	s.post("/widget/leads", strings.Replace(lead, `,"utm":1,"emial":2`, "", 1), strict).is(200).has(applied)
	s.post("//api/legacy/widget/leads", lead, strict).invalid("#/utm unknown_member", "#/emial unknown_member")

	_, key := s.addLicense(license{})
	s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"f","device":{"name":"a","os":"b"}}`,
		strict).invalid("#/device/os unknown_member").has(applied, "RateLimit: ") // nothing is told of the key
	s.post("/widget/license/verify", `{"license_key":"`+key+`","fingerprint":"f","language":"de"}`, strict).
		invalid("#/language unknown_member")
	s.post("/widget/events", `{"widget":"`+s.addWidget(s.account)+`","events":[{"type":"view"},
		{"type":"view","weight":2}]}`, "Origin: "+siteOrigin, strict).invalid("#/events/1/weight unknown_member")
	s.post("/licenses", `{"account_id":"`+s.account+`","product":"kds","metadata":{"max_device":1,"x":{"y":2}}}`,
		s.auth(s.account, scopeAdmin), strict).is(200).has(applied)

	for _, a := range []answer{ // every answer to such a request says so
		s.post("/leads/erase", `{}`, strict).is(401),
		s.post("/widget/leads", `{}`, strict, "Origin: https://other.example").is(403),
		s.post("/widget/leads", `{`, strict).is(400),
		s.post("/widget/leads", `{"x":"`+strings.Repeat("x", maxBody)+`"}`, strict).is(413),
		s.post("/widget/leads", `{}`, strict, "Content-Type: text/xml").is(415),
		s.post("/licenses/x/renew", "", strict, s.auth(s.account, scopeAdmin)).is(404),
	} {
		a.has(applied)
	}
	for _, a := range []answer{ // those without a body of JSON have nothing that could be unknown
		s.get("/widget/health", strict).is(200),
		s.post("/oauth/token", "grant_type=x&unknown=y", formType, strict).is(400),
		s.post("/widget/leads", lead, "Prefer: handling=lenient").is(200),
		s.get("/widget/leads", strict).is(405),
	} {
		a.has("Preference-Applied: ")
	}
}

func TestUnknownMember_leavesItsIdempotencyKeyUnused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth, key := s.seller(), "Idempotency-Key: once"
	before := s.dump()
	s.post("/orders", orderBody("discont", "500"), auth, key).invalid("#/discont unknown_member")
	s.unchanged(before)
	made := s.post("/orders", orderBody(), auth, key).is(200)
	again := s.post("/orders", orderBody(), auth, key, strict).is(200)
	again.has("Idempotency-Replayed: true", "Preference-Applied: handling=strict").says(made.body)
	s.counts(1, "SELECT count(*) FROM orders")
}

// TestUnknownMember_isJudgedWhereARequestMovesMoneyOrMakesSomething names every route that takes JSON and ignores
// what is misspelt: devices and sites in the field send to them, or nobody loses by it.
func TestUnknownMember_isJudgedWhereARequestMovesMoneyOrMakesSomething(t *testing.T) {
	t.Parallel()
	lenient := []string{"POST /widget/leads", "POST /widget/events", "POST /widget/license/activate",
		"POST /widget/license/verify", "POST /widget/license/deactivate", "POST /leads/erase", "PATCH /account",
		"POST /accounts/{id}/signin"}
	careful := 0
	for _, r := range allRoutes() {
		if !r.takesJSON() {
			continue
		}
		if ignores := slices.Contains(lenient, r.pattern); ignores == r.careful {
			t.Errorf("%s is careful: %v", r.pattern, r.careful)
		}
		if r.careful {
			careful++
		}
	}
	if careful < 30 {
		t.Errorf("only %d routes are careful", careful)
	}
}

func TestUnknownMember_costsAndShowsNoMoreThanItsBounds(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	members := func(n int, format string) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, `,"`+format+`":0`, i)
		}
		return all.String()[1:]
	}
	with := func(more string) string { return strings.TrimSuffix(orderBody(), "}") + "," + more + "}" }
	s.post("/orders", with(members(900, "discoun%03d")), auth).is(200) // three letters off
	for _, headers := range [][]string{{auth}, {auth, strict}} {
		if wrong := s.post("/orders", with(members(900, "tip%02d")), headers...).is(422).wrong(); len(wrong) != 20 {
			t.Errorf("%d are named: %q", len(wrong), wrong)
		}
	}
	// the same names again and again are compared once, so that a misspelt one is found behind them
	lines := strings.Repeat(`{"name":"Soup","quantity":1,"unit_amount":900,"vat_rate":260,"sku":"S-1","tags":[]},`, 180)
	s.post("/orders", orderBody("lines", "["+lines+`{"name":"Tea","quantity":1,"unit_amount":900,"vat_rate":260,
		"qantity":2}]`), auth).invalid("#/lines/180/qantity unknown_member")

	huge := strings.Repeat("é", 7000)
	a := s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","`+huge+`":1}`, strict).is(422)
	if wrong := a.wrong(); len(wrong) != 1 || len(wrong[0]) > 300 ||
		!strings.HasSuffix(wrong[0], "%E2%80%A6 unknown_member") {
		t.Errorf("a huge name is shown as %q", wrong)
	}
	s.post("/orders", with(`"`+huge+`":1`), auth).is(200)
	s.post("/orders", with(`"a/b~c":1,"discount\u202e":1,"\u0000tip":1,"":1,"\u001b[31m":1,"<tip>":1`), auth, strict).
		invalid("#/a~1b~0c unknown_member", "#/discount%E2%80%AE unknown_member", "#/%00tip unknown_member",
			"#/ unknown_member", "#/%1B%5B31m unknown_member", "#/%3Ctip%3E unknown_member")
}

// mistakes returns what a name becomes when a letter is left out, doubled, swapped with the next one or replaced.
func mistakes(name string) (all []string) {
	for i := range name {
		all = append(all, name[:i]+name[i+1:], name[:i+1]+name[i:], name[:i]+"q"+name[i+1:])
		if i > 0 {
			all = append(all, name[:i-1]+name[i:i+1]+name[i-1:i]+name[i+1:])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hasPlace reports whether an example has the list that a member is in.
func hasPlace(body any, names []string) bool {
	for _, name := range names[:len(names)-1] {
		if list, ok := body.([]any); name == "0" {
			if !ok {
				return false
			}
			body = list[0]
			continue
		}
		object, _ := body.(node)
		body = object[name]
	}
	return true
}

// Every mistake in every member of the document's bodies is refused where the route is careful, ignored elsewhere,
// and refused everywhere with strict handling, which takes every member that is listed.
func TestUnknownMember_isFoundInEveryBodyOfTheDocument(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	tried, fixtures := 0, &fixtures{t: t}
	for _, o := range operations() {
		r := routeOf(o)
		if r == nil || !r.takesJSON() {
			continue
		}
		f := fixtures.next(o)
		base := f.fill(firstExample(o))
		headers := append(f.headersOf(o), map[bool]string{true: "Authorization: Bearer " + f.lease,
			false: "Accept: */*"}[strings.HasPrefix(o.path, "/widget/license/")])
		unknown := func(body any, headers ...string) (named []string) {
			t.Helper()
			tried++
			a := f.do(o.method, f.pathOf(o), encode(body), headers...)
			if a.status != 422 {
				return nil
			}
			return slices.DeleteFunc(a.wrong(), func(w string) bool { return !strings.HasSuffix(w, " unknown_member") })
		}
		listed := map[string]bool{}
		for _, m := range bodyMembers(o) {
			listed[m.pointer()] = true
		}
		for _, m := range bodyMembers(o) {
			if !hasPlace(base, m.names) {
				continue
			}
			last := len(m.names) - 1
			if named := unknown(setMember(base, m.names, []any{}), append(headers, strict)...); len(named) > 0 {
				t.Errorf("%s does not know %s: %q", o.name(), m.pointer(), named)
			}
			body, want := base, []string{}
			for _, wrong := range mistakes(m.names[last]) {
				names := append(slices.Clone(m.names[:last]), wrong)
				pointer := bodyMember{names: names}.pointer()
				if wrong == "" || listed[pointer] {
					continue
				}
				body, want = setMember(body, names, 0), append(want, pointer+" unknown_member")
				if len(want) < maxUnknownMembers {
					continue
				}
				f.judgesAll(o, unknown, body, want, headers)
				body, want = base, nil
			}
			f.judgesAll(o, unknown, body, want, headers)
		}
		if prepare := before[o.id()]; prepare != nil {
			prepare(f)
		}
		misspelt := setMember(base, []string{"of_a_later_version"}, 0)
		if !r.careful {
			for name := range base.(node) {
				misspelt = setMember(misspelt, []string{name[:1] + name}, 0)
			}
		}
		f.send(o, misspelt)
	}
	if tried < 500 {
		t.Errorf("sent %d bodies only", tried)
	}
}

// judgesAll sends a body with wrong members, with and without strict handling.
func (f *exampleFixture) judgesAll(
	o *operation, unknown func(any, ...string) []string, body any, want, headers []string,
) {
	f.t.Helper()
	for _, more := range [][]string{nil, {strict}} {
		if more == nil && !routeOf(o).careful || len(want) == 0 {
			continue
		}
		got := unknown(body, append(slices.Clone(headers), more...)...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			f.t.Errorf("%s %s: names %q, want %q", o.name(), encode(body), got, want)
		}
	}
}

// What was answered can be sent again: of its members hardly one counts as misspelt in a request.
func TestUnknownMember_isNoneOfThoseThatAreAnswered(t *testing.T) {
	t.Parallel()
	// Whoever sends one of these has mistaken it for another, or sends what nobody would.
	mistaken := []string{"createOrder #/expires_at expires_in", "createLicense #/transfers max_transfers",
		"updateLicense #/transfers max_transfers", "rotateLicenseKey #/key old_key_until",
		"exportRevenueDay #/data date", "reverseBookExport #/state date"}
	tolerated := []string{"createOrder #/lines/0/amount unit_amount", "updateBookConnection #/state status"}
	compared, found := 0, []string{}
	for _, o := range operations() {
		if r := routeOf(o); r == nil || !r.careful {
			continue
		}
		request := child(o.node, "requestBody", "content", "application/json", "schema")
		for status, response := range o.responses() {
			if status[0] != '2' {
				continue
			}
			answer := child(response, "content", "application/json", "schema")
			var compare func(at string, request, answer node)
			compare = func(at string, request, answer node) {
				known := slices.Sorted(maps.Keys(propertiesOf(request)))
				for name, of := range propertiesOf(answer) {
					compared++
					if slices.Contains(known, name) {
						compare(at+"/"+name, resolve(propertiesOf(request)[name]), resolve(of))
						compare(at+"/"+name+"/0", child(resolve(propertiesOf(request)[name]), "items"),
							child(resolve(of), "items"))
					} else if near := nearestMember(name, known); near != "" {
						found = append(found, fmt.Sprintf("%s %s/%s %s", o.id(), at, name, near))
					}
				}
			}
			compare("#", request, answer)
		}
	}
	want := slices.Concat(mistaken, tolerated)
	if slices.Sort(want); compared < 100 || !slices.Equal(slices.Sorted(slices.Values(found)), want) {
		t.Errorf("of %d members these are nearly others:\n%s", compared, strings.Join(found, "\n"))
	}

	xero := newXeroFake(t, time.Now)
	s := newService(t, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.xeroURL = demoOutbound, xero.base
	})
	lines := `[{"name":"Soup","quantity":1,"unit_amount":900,"vat_rate":260,"amount":900}]`
	s.post("/orders", orderBody("lines", lines, "discount", "0"), s.seller()).is(200)
	s.post("/orders", orderBody("lines", lines), s.seller(), strict).invalid("#/lines/0/amount unknown_member")
	connection := s.connectToXero(xero)
	s.do("PATCH", "/books/connections/"+connection, `{"state":"connected","history":false}`,
		s.auth(s.account, scopeBooks)).is(200)
}

func TestPrefer_isReadAsRFC7240Says(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []string
		want   bool
	}{
		{nil, false},
		{[]string{""}, false},
		{[]string{"handling=strict"}, true},
		{[]string{"handling=lenient"}, false},
		{[]string{"Handling = Strict"}, true},
		{[]string{`handling="strict"`}, true},
		{[]string{`handling="strict`}, false},
		{[]string{"respond-async, wait=10, handling=strict; why=tests"}, true},
		{[]string{"respond-async; x=1", "return=minimal,\thandling=strict"}, true},
		{[]string{"handling=lenient, handling=strict"}, false}, // the first counts
		{[]string{"handling=strict", "handling=lenient"}, true},
		{[]string{"handling"}, false},
		{[]string{"handling; strict"}, false},
		{[]string{"strict"}, false},
		{[]string{"foo; handling=strict"}, false},         // a parameter of another preference
		{[]string{`foo="a, handling=strict"`}, false},     // a part of another's value
		{[]string{`foo="a\", b", handling=strict`}, true}, // behind such a value
		{[]string{`foo="\`, "handling=strict"}, false},    // which may be malformed
		{[]string{",,;;==,,", "handling==strict"}, false},
		{[]string{strings.Repeat(`"\,;`, 10_000)}, false},
	} {
		if got := prefersStrict(tt.values); got != tt.want {
			t.Errorf("%.100q: %v", tt.values, got)
		}
	}
}

func TestFarApart_dismissesNoWordThatNearestFinds(t *testing.T) {
	t.Parallel()
	seed := rand.New(rand.NewPCG(1, 2))
	const letters = "abcdefé_"
	word := func() string {
		var w []rune
		for range 1 + seed.IntN(8) {
			w = append(w, []rune(letters)[seed.IntN(8)])
		}
		return string(w)
	}
	near := 0
	for range 20_000 {
		a, b := word(), word()
		if edits([]rune(a), []rune(b)) <= 2 {
			if near++; farApart(a, b) {
				t.Fatalf("%s and %s are at most two edits from each other", a, b)
			}
		}
	}
	if near < 500 || !farApart("discount", "return_url") {
		t.Errorf("of 20,000 pairs %d are near", near)
	}
}

// BenchmarkUnknownMembers is what a body of as many unknown members as it may have costs where misspelt ones are
// looked for, beside a route that ignores them.
func BenchmarkUnknownMembers(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	_, token, _ := strings.Cut(s.auth(s.account, scopeAdmin), ": ")
	for _, path := range []string{"/leads/erase", "/licenses"} {
		var body strings.Builder
		for i := range 990 {
			fmt.Fprintf(&body, `,"max_l%05d":0`, i)
		}
		b.Run(path[1:], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.server.accountBuckets = newLimiter(maxAccountBuckets)
				r := httptest.NewRequest("POST", "/v1"+path, strings.NewReader("{"+body.String()[1:]+"}"))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Authorization", token)
				s.server.ServeHTTP(&response{ResponseWriter: &discard{http.Header{}}}, r)
			}
		})
	}
}
