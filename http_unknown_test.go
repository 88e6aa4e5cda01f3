package main

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// strict asks for every unknown member to be refused (RFC 7240, section 4.4).
const strict = "Prefer: handling=strict"

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
	for _, headers := range [][]string{{auth}, {auth, strict}} {
		if wrong := s.post("/orders", with(members(900, "tip%02d")), headers...).is(422).wrong(); len(wrong) != 20 {
			t.Errorf("%d are named: %q", len(wrong), wrong)
		}
	}
	lines := strings.Repeat(`{"name":"Soup","quantity":1,"unit_amount":900,"vat_rate":260},`, 180)
	s.post("/orders", orderBody("lines", "["+lines+`{"name":"Tea","quantity":1,"unit_amount":900,"vat_rate":260,
		"qantity":2}]`), auth).invalid("#/lines/180/qantity unknown_member")

	huge := strings.Repeat("é", 7000)
	a := s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","`+huge+`":1}`, strict).is(422)
	if wrong := a.wrong(); len(wrong) != 1 || len(wrong[0]) > 300 ||
		!strings.HasSuffix(wrong[0], "%E2%80%A6 unknown_member") {
		t.Errorf("a huge name is shown as %q", wrong)
	}
	s.post("/orders", with(`"a/b~c":1,"discount\u202e":1,"\u0000tip":1,"":1,"\u001b[31m":1,"<tip>":1`), auth).
		invalid("#/a~1b~0c unknown_member", "#/discount%E2%80%AE unknown_member", "#/%00tip unknown_member",
			"#/ unknown_member", "#/%1B%5B31m unknown_member", "#/%3Ctip%3E unknown_member")
}

// namesOfOthers are members that the interfaces of other vendors have where ours have another, or none: each is a limit
// or a sum that its caller meant.
var namesOfOthers = []string{"refund_amount", "amount_to_capture", "refund_application_fee", "line_items", "items",
	"coupon", "delivery_fee", "modifiers", "max_seats", "quantity_limit", "expires_at_unix", "dryRun"}

// Against somebody whose client was written for another vendor: nothing is done that it did not mean, and the answer
// names what it may send, just as the document does.
func TestEveryRoute_thatIsCarefulRefusesTheNamesOfOtherVendors(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if !r.careful || !r.takesJSON() || !takesBody(o.method) {
			return
		}
		listed := []string{}
		for _, m := range bodyMembers(o) {
			if len(m.names) == 1 {
				listed = append(listed, m.names[0])
			}
		}
		before := f.dump()
		for _, name := range namesOfOthers {
			body := encode(setMember(f.fill(firstExample(o)), []string{name}, 500))
			a := f.do(o.method, f.pathOf(o), body, append(f.headersOf(o), "Content-Type: application/json")...)
			if a.status != 422 || !slices.Contains(a.wrong(), "#/"+name+" unknown_member") {
				t.Errorf("%s with %s: %d %s", o.name(), name, a.status, a.body)
				continue
			}
			for _, e := range a.json()["errors"].([]any) {
				if e := e.(node); e["code"] == "unknown_member" {
					equal(t, o.name()+": allowed", append([]string{}, texts(e, "allowed")...), listed)
				}
			}
		}
		f.unchanged(before)
	})
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

// What a reader reads does not depend on values: where all is there, all is looked up, whatever it is. Else the
// document, which is made of a reading without values, would be wrong about what comes with some of them only.
func TestEveryRoute_readsTheSameWhateverTheValuesAre(t *testing.T) {
	t.Parallel()
	s, tried := newService(t), 0
	for _, rt := range s.server.routes {
		if rt.endpoint == nil {
			continue
		}
		described, rounds := map[string]map[string]reading{}, 2
		rt.endpoint.read(newDescribed(func(r reading) {
			if described[r.path] == nil {
				described[r.path] = map[string]reading{}
			}
			if before, again := described[r.path][r.name]; !again || before.kind == jsonNull {
				described[r.path][r.name] = r
			}
			rounds = max(rounds, len(r.check.words))
		}))
		delete(described, inPath)
		for round := range rounds {
			body, err := parseBody([]byte(encode(filled(described, "#", round))), maxBodyValues)
			must(t, err)
			query := url.Values{}
			for name, value := range filled(described, inQuery, round) {
				query.Set(name, fmt.Sprint(value))
			}
			looked := map[string]bool{}
			in := newInput(&body, httptest.NewRequest(rt.method(), "/?"+query.Encode(), nil))
			in.known, in.late = knownNames{}, func(name string) { looked[name] = true }
			rt.endpoint.read(in)
			for path, members := range described {
				for name := range members {
					if tried++; !looked[path+"/"+name] {
						t.Errorf("%s reads %s/%s with some values only: read it always, and judge it in the answering "+
							"function. It was not read of %s ?%s", rt.pattern, path, name, encode(filled(described, "#",
							round)), query.Encode())
					}
				}
			}
		}
	}
	failIf(t, tried < 1000, "looked for %d members only", tried)
}

// filled makes an object with all members that are described at a path: of each kind the least value in round 0 and a
// larger one in others; of words another one in each.
func filled(described map[string]map[string]reading, path string, round int) node {
	object := node{}
	for name, r := range described[path] {
		within := path + "/" + name
		text := any(map[bool]string{true: "x"}[round > 0])
		if words := r.check.words; len(words) > 0 {
			text = words[round%len(words)]
		}
		switch {
		case r.kind == jsonBool:
			object[name] = round > 0
		case r.kind == jsonNumber:
			object[name] = min(r.low+round, r.high)
		case described[within+"/*"] != nil:
			object[name] = []any{filled(described, within+"/*", round)}
		case r.kind == jsonArray:
			object[name] = []any{text}
		case r.kind == jsonObject:
			object[name] = filled(described, within, round)
		default:
			object[name] = text
		}
	}
	return object
}
