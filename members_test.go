package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readmeMembers returns the README's tables of members: what a row's first cell
// names, and the other cells.
func readmeMembers(t *testing.T) map[string][]string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(readme), "\n### Members\n")
	text, _, _ = strings.Cut(text, "\n### ")
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) > 1 {
			cells[len(cells)-1] = strings.TrimSuffix(cells[len(cells)-1], " |")
			rows[strings.TrimPrefix(cells[0], "| ")] = cells[1:]
		}
	}
	return rows
}

// shape writes an answer as the README writes members, but with a comma behind each.
// What has a row of its own there goes by its name.
func shape(v *jsonValue) string {
	if v.kind == jsonArray && len(v.list) > 0 && v.list[0].kind == jsonObject {
		return "[" + shape(&v.list[0]) + "]"
	}
	var b strings.Builder
	b.WriteString("{")
	for _, m := range v.members {
		b.WriteString(m.name)
		object := m.value.kind == jsonObject || m.value.kind == jsonArray && len(m.value.list) > 0 && m.value.list[0].kind == jsonObject
		if object && !slices.Contains([]string{"license", "device", "devices", "seats", "data", "metadata"}, m.name) {
			b.WriteString(": " + shape(&m.value))
		}
		b.WriteString(", ")
	}
	return b.String() + "}"
}

var (
	membersOf        = regexp.MustCompile("`(\\{.*\\})`")
	optionalMember   = regexp.MustCompile(`(\w+)\\\?, `)
	optionalWithMore = regexp.MustCompile(`(\w+)\\\?: (\\\[\\\{[^]]*\\\]), `)
)

// shapeOf is what the answers match whose members a cell of the README shows.
func shapeOf(cell string) *regexp.Regexp {
	found := membersOf.FindStringSubmatch(cell)
	if found == nil {
		return regexp.MustCompile("^$")
	}
	quoted := regexp.QuoteMeta(strings.ReplaceAll(found[1], "}", ", }"))
	quoted = optionalMember.ReplaceAllString(quoted, `(?:$1, )?`)
	quoted = optionalWithMore.ReplaceAllString(quoted, `(?:$1: $2, )?`)
	return regexp.MustCompile("^" + quoted + "$")
}

func TestAnswersHaveTheMembersThatTheReadmeShows(t *testing.T) {
	s := newService(t)
	rows := readmeMembers(t)
	compared := map[string]bool{"every list": true}
	// in compares an answer, or what names go down to in it, with a row.
	in := func(row string, a answer, names ...string) {
		t.Helper()
		parsed, err := parseJSON([]byte(a.body))
		s.check(err)
		v := &parsed
		for _, name := range names {
			next, ok := v.member(name)
			if !ok {
				t.Fatalf("%s has no %s", a.body, name)
			}
			if v = next; v.kind == jsonArray {
				v = &v.list[0]
			}
		}
		compared[row] = true
		if cells := rows[row]; len(cells) == 0 || !shapeOf(cells[len(cells)-1]).MatchString(shape(v)) {
			t.Errorf("%s has\n%s\nand the README shows %q", row, shape(v), cells)
		}
	}
	admin, site := "Authorization: Bearer "+s.token(s.account, scopeAdmin), "Origin: "+siteOrigin
	widget := s.addWidget(s.account)
	issued := s.post("/licenses", `{"account_id":"`+s.account+`","product":"kds","max_devices":1,"max_transfers":0,"duration_days":30}`, admin).is(200)
	id, key := issued.text("id"), issued.text("key")

	in("`POST /widget/leads`", s.post("/widget/leads", anyLead, site).is(200))
	in("`POST /widget/license/verify`", s.post("/widget/license/verify", `{"license_key":"`+key+`"}`).is(200))
	active := s.activate(key, "f").is(200)
	in("`POST /widget/license/activate`", active)
	in("`license`", active, "license")
	in("`device`", active, "device")
	in("`seats`", active, "license", "seats")
	in("`POST /widget/license/activate`", s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"f","nonce":"n"}`).is(200))
	for _, members := range []string{``, `,"nonce":"n"`, `,"product":"other"`} {
		in("`POST /widget/license/verify`", s.post("/widget/license/verify", `{"license_key":"`+key+`","fingerprint":"f"`+members+`}`).is(200))
	}
	in("a problem", s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"g"}`).is(409, "seat_limit_reached"))
	in("a device in a list", s.get("/licenses/"+id+"/devices", admin).is(200), "data")
	in("a device in a list", s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"g"}`).is(409), "devices")
	in("a problem", s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"g","replace_device_id":"`+active.text("device", "id")+`"}`).is(409, "transfer_limit_reached"))
	in("`POST /widget/license/deactivate`", s.post("/widget/license/deactivate", `{"license_key":"`+key+`","fingerprint":"f"}`).is(200))
	s.post("/widget/events", `{"widget":"`+widget+`","events":[{"type":"click","item":"Rösti"}]}`, site).is(204)
	in("`GET /widget/stats?widget=`", s.get("/widget/stats?widget="+widget).is(200))
	in("`GET /widget/stats?widget=`", s.get("/widget/stats?widget="+widget, admin).is(200))
	in("`GET /widget/stats`", s.get("/widget/stats", admin).is(200))
	for _, path := range []string{"", "/renew", "/rotate-key", "/suspend", "/reinstate", "/revoke"} {
		method, body := "POST", `{"days":3}`
		if path == "" {
			method, body = "PATCH", `{"plan":"pro"}`
		}
		a := s.do(method, "/licenses/"+id+path, body, admin).is(200)
		in("a licence", answer{t, a.status, a.header, regexp.MustCompile(`,"key":"[^"]+"`).ReplaceAllString(a.body, "")})
	}
	in("a licence", s.get("/licenses", admin).is(200), "data")
	in("a lead", s.get("/leads", admin).is(200), "data")
	for _, about := range []string{"type=lead.created", "license_id=" + id, "device_id=" + active.text("device", "id")} {
		in("an event", s.get("/events?"+about, admin).is(200), "data")
	}
	in("a problem", s.post("/widget/leads", `{}`).is(422))
	in("a problem", s.get("/leads?limit=0", admin).is(422))
	in("`POST /leads/erase`", s.post("/leads/erase", `{"email":"ada@example.com"}`, admin).is(200))
	for row, cells := range rows {
		if membersOf.MatchString(cells[len(cells)-1]) && !compared[row] {
			t.Errorf("nothing was compared with the README's row %s", row)
		}
	}
}

// TestMembersThatTheReadmeShowsAreReadAndNeededAsItSays sends each with a wrong type,
// and leaves each out.
func TestMembersThatTheReadmeShowsAreReadAndNeededAsItSays(t *testing.T) {
	s := newService(t, withoutAddressLimits)
	rows := readmeMembers(t)
	s.change(func(tx *tx) error { return tx.setRate(s.account, 100000) })
	admin, site := "Authorization: Bearer "+s.token(s.account, scopeAdmin), "Origin: "+siteOrigin
	id, key := s.addLicense(license{})
	licensed := `{"license_key":"` + key + `","fingerprint":"f"}`
	tried := map[string]bool{}
	names := regexp.MustCompile(`(\w+)(\??)(: \[?\{)?|\}`)
	for _, r := range []struct{ row, method, path, body string }{
		{"`POST /widget/leads`", "POST", "/widget/leads", anyLead},
		{"`POST /widget/license/activate`", "POST", "/widget/license/activate", licensed},
		{"`POST /widget/license/verify`", "POST", "/widget/license/verify", licensed},
		{"`POST /widget/license/deactivate`", "POST", "/widget/license/deactivate", licensed},
		{"`POST /widget/events`", "POST", "/widget/events", `{"widget":"` + s.addWidget(s.account) + `","events":[{"type":"click"}]}`},
		{"`POST /leads/erase`", "POST", "/leads/erase", `{"email":"ada@example.com"}`},
		{"`POST /licenses`", "POST", "/licenses", `{"account_id":"` + s.account + `","product":"kds"}`},
		{"`PATCH /licenses/{id}`", "POST", "/licenses", `{"account_id":"` + s.account + `","product":"kds"}`},
		{"`PATCH /licenses/{id}`", "PATCH", "/licenses/" + id, `{}`},
		{"`POST /licenses/{id}/renew`", "POST", "/licenses/" + id + "/renew", `{"days":1}`},
		{"`POST /licenses/{id}/suspend`, `/reinstate`, `/revoke`", "POST", "/licenses/" + id + "/suspend", `{}`},
		{"`POST /licenses/{id}/suspend`, `/reinstate`, `/revoke`", "POST", "/licenses/" + id + "/reinstate", `{}`},
		{"`POST /licenses/{id}/rotate-key`", "POST", "/licenses/" + id + "/rotate-key", `{}`},
		{"`POST /licenses/{id}/suspend`, `/reinstate`, `/revoke`", "POST", "/licenses/" + id + "/revoke", `{}`},
	} {
		token := admin
		if strings.HasPrefix(r.path, "/widget/") {
			token = "Accept: */*"
		}
		if len(rows[r.row]) == 0 {
			t.Fatalf("the README has no %s", r.row)
		}
		tried[r.row] = true
		var outer, pointer string
		for _, m := range names.FindAllStringSubmatch(membersOf.FindString(rows[r.row][0]), -1) {
			if m[0] == "}" {
				outer = ""
				continue
			}
			// change sends the body with the member set, or without it for nil, and
			// tells whether the answer names it.
			change := func(value any) bool {
				var body map[string]any
				s.check(json.Unmarshal([]byte(r.body), &body))
				in, _ := body[outer].(map[string]any)
				pointer = "#/" + outer + "/" + m[1]
				switch list, isList := body[outer].([]any); {
				case outer == "":
					in, pointer = body, "#/"+m[1]
				case isList:
					in, pointer = list[0].(map[string]any), "#/"+outer+"/0/"+m[1]
				case in == nil:
					in = map[string]any{}
					body[outer] = in
				}
				delete(in, m[1])
				if value != nil {
					in[m[1]] = value
				}
				text, err := json.Marshal(body)
				s.check(err)
				a := s.do(r.method, r.path, string(text), token, site)
				return a.status == 422 && slices.ContainsFunc(a.wrong(), func(w string) bool { return strings.HasPrefix(w, pointer) })
			}
			if !change([]any{[]any{1}}) {
				t.Errorf("%s %s does not read %s", r.method, r.path, pointer)
			}
			if needed := m[2] == ""; change(nil) != needed {
				t.Errorf("%s %s: %s is needed: %v", r.method, r.path, pointer, needed)
			}
			if m[3] != "" {
				outer = m[1]
			}
		}
	}
	for row, cells := range rows {
		if len(cells) == 2 && membersOf.MatchString(cells[0]) && !tried[row] {
			t.Errorf("nothing was sent as the README's row %s says", row)
		}
	}
	for _, parameter := range regexp.MustCompile(`\w+=`).FindAllString(rows["`GET /widget/stats?widget=`"][0], -1) {
		s.get("/widget/stats?" + parameter + "!&" + "widget=" + s.addWidget(s.account)).is(422).names("?" + strings.TrimSuffix(parameter, "=") + " " + map[string]string{
			"from=": "invalid_date", "to=": "invalid_date", "interval=": "unknown_value", "timezone=": "unknown_timezone"}[parameter])
	}
}
