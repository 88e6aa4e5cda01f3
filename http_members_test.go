package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/mail"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
)

// A memberRule is what the contract says about one member of a body.
type memberRule struct {
	path     string // "email", "device/name", "events/0/type"
	kind     jsonKind
	nullable bool              // null takes it away
	required string            // code when it is absent; "": optional
	empty    string            // code of "" or [] ; "": allowed
	max      int               // characters or elements; 0: some other rule bounds it
	long     string            // code past max; "": too_long
	control  string            // code of a control character; "": control_character
	wrong    map[string]string // raw values that are wrong, with their codes
}

// A bodyRule is a path with a right body and the rules of all its members.
type bodyRule struct {
	method  string // "": POST
	path    string // {id} stands for the id of a licence
	state   string // that this licence must be in; "": any
	body    string
	headers []string
	members []memberRule
}

const someDevice = "dev_00000000000000000000000000"

// bodyRules are all bodies of the contract; %s stands for a licence key, or for the
// id of a widget or an account.
var bodyRules = []bodyRule{
	{path: "/widget/leads", body: `{"type":"newsletter","email":"ada@example.com","source":"footer","page":"/menu",` +
		`"website":""}`, members: []memberRule{
		{path: "type", kind: jsonString, required: "required", empty: "empty", max: 32, wrong: map[string]string{
			`"Newsletter"`: "invalid_type", `"1st"`: "invalid_type", `"-a"`: "invalid_type",
			`"a b"`: "invalid_type", `"é"`: "invalid_type", `" a"`: "invalid_type", `"a.b"`: "invalid_type"}},
		{path: "email", kind: jsonString, required: "required", empty: "empty", max: 254, wrong: map[string]string{
			`"ada"`: "invalid_email", `" ada@example.com"`: "invalid_email",
			`"Ada <ada@example.com>"`: "invalid_email", `"ada@example.com,eve@example.com"`: "invalid_email"}},
		{path: "source", kind: jsonString, max: 100},
		{path: "page", kind: jsonString, empty: "invalid_page", max: 2048,
			wrong: map[string]string{`"menu"`: "invalid_page", `"https://example.com/menu"`: "invalid_page",
				`"?a"`: "invalid_page"}},
		{path: "website", kind: jsonString, max: 2048},
	}},
	{path: "/leads/erase", body: `{"email":"ada@example.com"}`, members: []memberRule{
		{path: "email", kind: jsonString, required: "required", empty: "empty", max: 254,
			wrong: map[string]string{`"ada"`: "invalid_email", `"%"`: "invalid_email"}},
	}},
	{path: "/widget/events", body: `{"widget":"%s","events":[{"type":"click","item":"Rösti","page":"/menu"},` +
		`{"type":"view"}]}`, headers: []string{"Origin: " + siteOrigin}, members: []memberRule{
		{path: "widget", kind: jsonString, required: "required", empty: "empty", wrong: map[string]string{
			`"wgt_"`: "invalid_id", `"wgt_80000000000000000000000000"`: "invalid_id",
			`"WGT_00000000000000000000000000"`: "invalid_id", `"lead_00000000000000000000000000"`: "invalid_id",
			`"wgt_0000000000000000000000000U"`: "invalid_id"}},
		{path: "events", kind: jsonArray, required: "required", empty: "wrong_length", max: 50, long: "wrong_length"},
		{path: "events/0", kind: jsonObject},
		{path: "events/0/type", kind: jsonString, required: "required", empty: "empty",
			wrong: map[string]string{`"View"`: "unknown_value", `"visit"`: "unknown_value"}},
		{path: "events/0/item", kind: jsonString, max: 100},
		{path: "events/0/page", kind: jsonString, empty: "invalid_page", max: 2048,
			wrong: map[string]string{`"menu"`: "invalid_page"}},
		{path: "events/1/type", kind: jsonString, required: "required", empty: "empty"},
	}},
	{path: "/widget/license/activate", body: `{"license_key":"%s","fingerprint":"f1","product":"kds",` +
		`"replace_device_id":"` + someDevice + `","nonce":"n",` +
		`"device":{"name":"Kitchen 1","platform":"linux/arm64","app_version":"2.4.1"}}`, members: []memberRule{
		{path: "license_key", kind: jsonString, required: "required", empty: "key_malformed", max: 255,
			long: "key_malformed"},
		{path: "fingerprint", kind: jsonString, required: "required", empty: "empty", max: 255},
		{path: "product", kind: jsonString, empty: "empty", max: 100},
		{path: "replace_device_id", kind: jsonString, empty: "invalid_id",
			wrong: map[string]string{`"dev_"`: "invalid_id", `"lic_00000000000000000000000000"`: "invalid_id"}},
		{path: "nonce", kind: jsonString, empty: "empty", max: 128},
		{path: "device", kind: jsonObject},
		{path: "device/name", kind: jsonString, max: 100},
		{path: "device/platform", kind: jsonString, max: 100},
		{path: "device/app_version", kind: jsonString, max: 100},
	}},
	{path: "/widget/license/verify", body: `{"license_key":"%s","fingerprint":"f1","product":"kds",` +
		`"entitlements":["a"],"nonce":"n","app_version":"2.4.1"}`, members: []memberRule{
		{path: "license_key", kind: jsonString, required: "required"},
		{path: "fingerprint", kind: jsonString, empty: "empty", max: 255},
		{path: "product", kind: jsonString, empty: "empty", max: 100},
		{path: "entitlements", kind: jsonArray, max: 100, long: "wrong_length"},
		{path: "entitlements/0", kind: jsonString, empty: "empty", max: 64},
		{path: "nonce", kind: jsonString, empty: "empty", max: 128},
		{path: "app_version", kind: jsonString, max: 100},
	}},
	{path: "/widget/license/deactivate", body: `{"license_key":"%s","fingerprint":"f1"}`, members: []memberRule{
		{path: "license_key", kind: jsonString, required: "required", empty: "key_malformed", max: 255,
			long: "key_malformed"},
		{path: "fingerprint", kind: jsonString, required: "required", empty: "empty", max: 255},
	}},
	{path: "/licenses", body: `{"account_id":"%s","product":"kds","kind":"floating","expiry_basis":"issue",` +
		someTerms + `}`, members: append([]memberRule{
		{path: "account_id", kind: jsonString, empty: "invalid_id", wrong: map[string]string{
			`"acct_"`: "invalid_id", `"ACCT_00000000000000000000000000"`: "invalid_id",
			`"lic_00000000000000000000000000"`: "invalid_id"}},
		{path: "product", kind: jsonString, nullable: true, required: "required", empty: "empty", max: 100,
			wrong: map[string]string{`null`: "required"}},
		{path: "kind", kind: jsonString, nullable: true, empty: "unknown_value",
			wrong: map[string]string{`"Floating"`: "unknown_value", `"site"`: "unknown_value"}},
		{path: "expiry_basis", kind: jsonString, nullable: true, empty: "unknown_value",
			wrong: map[string]string{`"Issue"`: "unknown_value"}},
	}, termRules...)},
	{method: "PATCH", path: "/licenses/{id}", body: `{` + someTerms + `}`, members: termRules},
	{path: "/licenses/{id}/renew", body: `{"days":30}`, members: []memberRule{
		{path: "days", kind: jsonNumber, wrong: map[string]string{`0`: "out_of_range", `36501`: "out_of_range",
			`1.5`: "out_of_range"}},
	}},
	{path: "/licenses/{id}/suspend", state: "active", body: `{"reason":"unpaid"}`,
		members: []memberRule{{path: "reason", kind: jsonString, max: 500}}},
	{path: "/licenses/{id}/reinstate", state: "suspended", body: `{"reason":"paid"}`,
		members: []memberRule{{path: "reason", kind: jsonString, max: 500}}},
	{path: "/licenses/{id}/revoke", state: "suspended", body: `{"reason":"unpaid"}`,
		members: []memberRule{{path: "reason", kind: jsonString, max: 500}}},
	{path: "/licenses/{id}/rotate-key", body: `{"old_key_until":"2030-01-31T12:00:00Z"}`, members: []memberRule{
		{path: "old_key_until", kind: jsonString, empty: "invalid_time", control: "invalid_time",
			wrong: map[string]string{`"2030-01-31"`: "invalid_time", `"7d"`: "invalid_time"}},
	}},
}

const someTerms = `"plan":"pro","customer":"Trattoria Roma","trial":true,"max_devices":3,"max_transfers":2,` +
	`"starts_at":"2020-01-01T00:00:00Z","expires_at":"2040-01-01T00:00:00Z",` +
	`"grace_days":7,"duration_days":365,"lease_hours":24,"entitlements":["kds"],"metadata":{"order":"7"}`

// termRules are those of the terms of a licence that can be changed.
var termRules = []memberRule{
	{path: "plan", kind: jsonString, nullable: true, max: 100},
	{path: "customer", kind: jsonString, nullable: true, max: 200},
	{path: "trial", kind: jsonBool},
	{path: "max_devices", kind: jsonNumber, nullable: true,
		wrong: map[string]string{`0`: "out_of_range", `1000001`: "out_of_range", `1.5`: "out_of_range"}},
	{path: "max_transfers", kind: jsonNumber, nullable: true,
		wrong: map[string]string{`-1`: "out_of_range", `1000001`: "out_of_range"}},
	{path: "starts_at", kind: jsonString, nullable: true, empty: "invalid_time", control: "invalid_time",
		wrong: map[string]string{`"2030-01-01"`: "invalid_time"}},
	{path: "expires_at", kind: jsonString, nullable: true, empty: "invalid_time", control: "invalid_time",
		wrong: map[string]string{
			`"tomorrow"`: "invalid_time", `"2019-12-31T00:00:00Z"`: "inconsistent"}},
	{path: "grace_days", kind: jsonNumber, nullable: true,
		wrong: map[string]string{`-1`: "out_of_range", `3651`: "out_of_range"}},
	{path: "duration_days", kind: jsonNumber, nullable: true,
		wrong: map[string]string{`0`: "out_of_range", `36501`: "out_of_range"}},
	{path: "lease_hours", kind: jsonNumber, nullable: true,
		wrong: map[string]string{`0`: "out_of_range", `2161`: "out_of_range"}},
	{path: "entitlements", kind: jsonArray, max: 100, long: "wrong_length"},
	{path: "entitlements/0", kind: jsonString, empty: "empty", max: 64,
		wrong: map[string]string{`"a b"`: "invalid_code", `"-a"`: "invalid_code", `"é"`: "invalid_code"}},
	{path: "metadata", kind: jsonObject, wrong: map[string]string{
		`{"a":"\u0001"}`: "control_character", `{"\u0001":1}`: "control_character",
		`{"a":"` + strings.Repeat("x", 16<<10) + `"}`: "too_long"}},
}

// A bodyFault is one wrong body.
type bodyFault struct {
	name, body string
	status     int
	names      []string // what errors name; nil: nothing
}

const rawJSON jsonKind = 99 // a value whose text is JSON already

// render writes a value as JSON.
func render(v *jsonValue) string {
	var parts []string
	switch v.kind {
	case jsonNull:
		return "null"
	case jsonBool:
		return strconv.FormatBool(v.boolean)
	case jsonString:
		return strconv.Quote(v.text)
	case jsonArray:
		for i := range v.list {
			parts = append(parts, render(&v.list[i]))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case jsonObject:
		for i := range v.members {
			parts = append(parts, strconv.Quote(v.members[i].name)+":"+render(&v.members[i].value))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	return v.text
}

// edited returns the body after a change to what stands at path: its parent, and
// its place there.
func edited(t testing.TB, body, path string, change func(parent *jsonValue, i int)) string {
	t.Helper()
	root, err := parseJSON([]byte(body))
	must(t, err)
	parent, steps := &root, strings.Split(path, "/")
	for _, step := range steps[:len(steps)-1] {
		if n, err := strconv.Atoi(step); err == nil {
			parent = &parent.list[n]
		} else {
			parent, _ = parent.member(step)
		}
	}
	last := steps[len(steps)-1]
	i, err := strconv.Atoi(last)
	if err != nil {
		i = slices.IndexFunc(parent.members, func(m jsonMember) bool { return m.name == last })
	}
	change(parent, i)
	return render(&root)
}

func withValue(t testing.TB, body, path, raw string) string {
	t.Helper()
	return edited(t, body, path, func(parent *jsonValue, i int) {
		value := jsonValue{kind: rawJSON, text: raw}
		if parent.kind == jsonArray {
			parent.list[i] = value
		} else {
			parent.members[i].value = value
		}
	})
}

// faults are all ways in which one member of a body can be wrong.
func (m memberRule) faults(t testing.TB, body string) (all []bodyFault) {
	t.Helper()
	inArray := m.path[len(m.path)-1] >= '0' && m.path[len(m.path)-1] <= '9'
	add := func(name, body, code string) {
		status, names := 422, []string{"#/" + m.path + " " + code}
		if code == "malformed_json" {
			status, names = 400, nil
		}
		all = append(all, bodyFault{name, body, status, names})
	}
	for kind, raw := range map[jsonKind]string{jsonNull: "null", jsonBool: "true", jsonNumber: "1",
		jsonString: `"x"`, jsonArray: "[]", jsonObject: "{}"} {
		if kind != m.kind && !(kind == jsonNull && m.nullable) {
			add("is "+kind.String(), withValue(t, body, m.path, raw), "wrong_type")
		}
	}
	for raw, code := range m.wrong {
		add("is "+raw[:min(len(raw), 40)], withValue(t, body, m.path, raw), code)
	}
	if m.required != "" {
		add("is absent", edited(t, body, m.path,
			func(parent *jsonValue, i int) { parent.members = slices.Delete(parent.members, i, i+1) }), m.required)
		for name, change := range map[string]func(string) string{
			"begins with a capital": func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
			"is in capitals":        strings.ToUpper,
			"has a space":           func(s string) string { return s + " " },
		} {
			add("'s name "+name, edited(t, body, m.path,
				func(parent *jsonValue, i int) { parent.members[i].name = change(parent.members[i].name) }), m.required)
		}
	}
	if !inArray {
		add("is there twice", edited(t, body, m.path,
			func(parent *jsonValue, i int) { parent.members = append(parent.members, parent.members[i]) }),
			"malformed_json")
	}
	long := cmp.Or(m.long, "too_long")
	switch m.kind {
	case jsonString:
		if m.empty != "" {
			add("is empty", withValue(t, body, m.path, `""`), m.empty)
		}
		if m.max > 0 {
			add("is too long", withValue(t, body, m.path, `"/`+strings.Repeat("a", m.max)+`"`), long)
			if m.long == "" {
				add("is too long in characters", withValue(t, body, m.path, `"/`+strings.Repeat("ä", m.max)+`"`), long)
			}
		}
		for _, c := range []string{`\u0000`, `\u0001`, `\n`, `\t`, `\r`, `\u001b`, `\u007f`, `\u0085`, `\u009f`} {
			add("holds "+c, edited(t, body, m.path, func(parent *jsonValue, i int) {
				v := &jsonValue{}
				if inArray {
					v = &parent.list[i]
				} else {
					v = &parent.members[i].value
				}
				half := len(v.text) / 2
				*v = jsonValue{kind: rawJSON, text: `"` + v.text[:half] + c + v.text[half:] + `"`}
			}), cmp.Or(m.control, "control_character"))
		}
	case jsonArray:
		if m.empty != "" {
			add("is empty", withValue(t, body, m.path, `[]`), m.empty)
		}
		add("is too long", withValue(t, body, m.path,
			"["+strings.TrimSuffix(strings.Repeat("1,", m.max+1), ",")+"]"), long)
	}
	return all
}

// careful reports whether the route refuses misspelt members.
func (r bodyRule) careful() bool {
	return slices.ContainsFunc(allRoutes(), func(of route) bool { return of.careful && of.path() == r.path })
}

// start gives a service with what a body names, the body itself, and what sends it.
func (r bodyRule) start(t testing.TB) (s *service, body string, send func(s *service, body string) answer) {
	t.Helper()
	s = newService(t, withoutAddressLimits)
	id, key := s.addLicense(license{MaxDevices: ptr(5), ExpiresAt: newStamp(time.Now()).after(days(9)),
		DurationDays: ptr(30)})
	for _, fingerprint := range []string{"f1", "other"} {
		s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"`+fingerprint+`"}`).is(200)
	}
	s.post("/widget/leads", `{"type":"newsletter","email":"bob@example.com"}`).is(200)
	body, headers := r.body, slices.Clone(r.headers)
	switch {
	case r.path == "/widget/events":
		body = fmt.Sprintf(body, s.addWidget(s.account))
	case strings.HasPrefix(r.path, "/widget/license/"):
		body = fmt.Sprintf(body, key)
		body = strings.Replace(body, someDevice, deviceOf(s, "other"), 1)
	case r.path == "/licenses":
		body = fmt.Sprintf(body, s.account)
	}
	if !strings.HasPrefix(r.path, "/widget/") {
		headers = append(headers, "Authorization: Bearer "+s.token(s.account, scopeAdmin))
	}
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	become := func(s *service) {
		if r.state != "" {
			s.sql(`UPDATE licenses SET state = ?`, r.state)
		}
	}
	become(s)
	return s, body, func(s *service, body string) answer {
		s.t.Helper()
		become(s)
		return s.do(cmp.Or(r.method, "POST"), strings.Replace(r.path, "{id}", id, 1), body, headers...)
	}
}

func deviceOf(s *service, fingerprint string) (id string) {
	s.t.Helper()
	hash := fingerprintHash(fingerprint)
	s.check(s.store.one(`SELECT id FROM devices WHERE fingerprint = ?`, []any{hash[:]}, &id))
	return id
}

func TestMember_wrongInAnyBodyIsNamedAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, rule := range bodyRules {
		t.Run(rule.path, func(t *testing.T) {
			s, body, send := rule.start(t)
			careful := rule.careful()
			before, commits := s.dump(), s.store.commits.Load()
			for _, member := range rule.members {
				for _, fault := range member.faults(t, body) {
					t.Run(member.path+" "+fault.name, func(t *testing.T) {
						s := s.with(t)
						a := send(s, fault.body)
						if a.status != fault.status {
							t.Fatalf("%d, want %d, for %.200s: %s", a.status, fault.status, fault.body, a.body)
						}
						if a.is(fault.status); careful && strings.Contains(fault.name, "'s name ") { // misspelt
							named := slices.DeleteFunc(a.wrong(), func(w string) bool {
								return strings.HasSuffix(w, " unknown_member")
							})
							equal(t, "names", named, fault.names)
						} else {
							a.names(fault.names...)
						}
						if n := s.store.commits.Load(); n != commits { // reading all rows each time would take minutes
							commits = n
							s.unchanged(before)
						}
					})
				}
			}
			s.unchanged(before)
			if a := send(s, body); a.status > 204 { // the body was right but for its fault
				t.Fatalf("the right body: %d %s", a.status, a.body)
			}
		})
	}
}

func TestMember_optionalMayBeAbsentAndInAnotherCaseIsUnknown(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, rule := range bodyRules {
		s, body, send := rule.start(t)
		careful := rule.careful()
		for _, m := range rule.members {
			if m.required != "" || m.path[len(m.path)-1] == '0' {
				continue
			}
			if m.path == "max_devices" {
				continue // without it there is no max_transfers: see TestTransfer_limitIsChosenByDefault
			}
			for name, changed := range map[string]string{
				"absent": edited(t, body, m.path,
					func(parent *jsonValue, i int) { parent.members = slices.Delete(parent.members, i, i+1) }),
				"in another case": edited(t, body, m.path, func(parent *jsonValue, i int) {
					parent.members[i] = jsonMember{strings.ToUpper(parent.members[i].name), jsonValue{kind: jsonNull}}
				}),
			} {
				a := send(s, changed)
				if careful && name == "in another case" {
					if !strings.HasSuffix(strings.Join(a.wrong(), "; "), "/"+strings.ToUpper(path.Base(m.path))+
						" unknown_member") {
						t.Errorf("%s, %s %s: %d %s", rule.path, m.path, name, a.status, a.body)
					}
				} else if a.status > 204 {
					t.Errorf("%s, %s %s: %d %s", rule.path, m.path, name, a.status, a.body)
				}
			}
		}
	}
}

func TestMember_atItsLimitIsTaken(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, rule := range bodyRules {
		s, body, send := rule.start(t)
		for _, m := range rule.members {
			if m.max == 0 || m.kind != jsonString || m.path == "email" || m.path == "license_key" ||
				m.path == "product" || m.path == "entitlements/0" {
				continue // those have tests of their own
			}
			fill := "ä"
			if m.path == "type" || m.path == "nonce" {
				fill = "a"
			}
			text := strings.Repeat(fill, m.max)
			if strings.HasSuffix(m.path, "page") {
				text = "/" + strings.Repeat(fill, m.max-1)
			}
			if a := send(s, withValue(t, body, m.path, `"`+text+`"`)); a.status > 204 {
				t.Errorf("%s, %s with %d characters: %d %s", rule.path, m.path, m.max, a.status, a.body)
			}
		}
	}
}

func TestMember_wrongIsNamedWithAllOthersAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", `{"email":"x","source":1,"page":"x","website":null}`).is(422, "validation_failed").
		names("#/type required", "#/email invalid_email", "#/source wrong_type", "#/page invalid_page",
			"#/website wrong_type")
	s.post("/widget/events", `{"events":[{"type":"view"},7,{"item":1},{"type":"x","page":2}]}`,
		"Origin: "+siteOrigin).is(422, "validation_failed").
		names("#/widget required", "#/events/1 wrong_type", "#/events/2/type required",
			"#/events/2/item wrong_type", "#/events/3/type unknown_value", "#/events/3/page wrong_type")
	const body = `{"license_key":1,"fingerprint":2,"device":{"name":3,"platform":"\u0000"}}`
	s.post("/widget/license/activate", body).is(422, "validation_failed").
		names("#/license_key wrong_type", "#/fingerprint wrong_type", "#/device/name wrong_type",
			"#/device/platform control_character")
	s.post("/widget/license/verify", `{"license_key":1,"entitlements":["a",1,""]}`).is(422, "validation_failed").
		names("#/license_key wrong_type", "#/entitlements/1 wrong_type", "#/entitlements/2 empty")
}

func TestMember_thatIsAWholeNumberIsOneHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{})
	for text, want := range map[string]float64{"3": 3, "3.0": 3, "0.4e1": 4, "50E-1": 5, "1e6": 1_000_000} {
		if got := s.do("PATCH", "/licenses/"+id, `{"max_devices":`+text+`}`,
			admin).is(200).json()["max_devices"]; got != want {
			t.Errorf("%s is %v", text, got)
		}
	}
}

func TestMember_thatIsAnEmailAddressIsJudged(t *testing.T) {
	t.Parallel()
	label63, local64 := strings.Repeat("a", 63), strings.Repeat("l", 64)
	longest := local64 + "@" + label63 + "." + label63 + "." + strings.Repeat("b", 61) // 254 octets
	for _, right := range []string{
		"a@b.co", "ada.lovelace+menu@sub.example.co.uk", "!#$%&'*+-/=?^_`{|}~@example.com", "jürg@zürich.example",
		"用户@例子.广告", "a@xn--fsq.com",
		"A@EXAMPLE.COM", local64 + "@example.com", longest, "a@1.2.example", "a@" + label63 + ".com",
	} {
		if code, _ := checkEmail(right); code != "" {
			t.Errorf("%q is refused: %s", right, code)
		}
	}
	for _, wrong := range []string{
		"@", "a@", "@b.co", "a", "a.b.co", "a@b", "a@b.", "a@.co", "a@b..co", "a@-b.co", "a@b-.co", "a@b_c.co",
		"a@b.1", "a@127.0.0.1", "a@[127.0.0.1]", "a@[IPv6:::1]",
		".a@b.co", "a.@b.co", "a..b@b.co", `"a b"@b.co`, `"a"@b.co`, "a b@c.co", "a@b c.co", "Ada <a@b.co>",
		"<a@b.co>", "a@b.co (x)", "a(x)@b.co", "a@b.co,c@d.co", "a@b.co;c@d.co",
		"a@b@c.co", "a\\@b.co", "a,b@c.co", "mailto:a@b.co", "a@b.co\n", "a@b.co ", "a@http://b.co", "a@b.co/x",
		"a@b.co:25", "l" + local64 + "@example.com",
		"a" + longest, strings.Replace(longest, ".b", ".bb", 1), "a@a" + label63 + ".com", "a\u200b@b.co",
		"a\u202e@b.co", "a@b\u3002co", "a\ufffd@b.co", "😀@b.co",
	} {
		if code, _ := checkEmail(wrong); code == "" {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func TestParameter_isJudgedAndNamed(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	widget := s.addWidget(s.account)
	token := "Authorization: Bearer " + s.token(s.account, scopeLeads+" "+scopeStats+" "+scopeLicenses)
	for query, want := range map[string]string{
		"/leads?limit=0":                                      "?limit out_of_range",
		"/leads?limit=201":                                    "?limit out_of_range",
		"/leads?limit=":                                       "?limit out_of_range",
		"/leads?limit=1.5":                                    "?limit out_of_range",
		"/leads?limit=99999999999999999999":                   "?limit out_of_range",
		"/leads?limit=1&limit=2":                              "?limit repeated",
		"/licenses?q=%ff":                                     "?q invalid_utf8",
		"/leads?cursor=":                                      "?cursor invalid_cursor",
		"/leads?cursor=lic_00000000000000000000000000":        "?cursor invalid_cursor",
		"/leads?account_id=x":                                 "?account_id invalid_id",
		"/widget/stats?widget=x":                              "?widget invalid_id",
		"/widget/stats?widget=" + widget + "&interval=year":   "?interval unknown_value",
		"/widget/stats?widget=" + widget + "&interval=":       "?interval unknown_value",
		"/widget/stats?timezone=":                             "?timezone unknown_timezone",
		"/widget/stats?timezone=Local":                        "?timezone unknown_timezone",
		"/widget/stats?timezone=Europe/Atlantis":              "?timezone unknown_timezone",
		"/widget/stats?timezone=../etc/passwd":                "?timezone unknown_timezone",
		"/widget/stats?timezone=%2Fetc%2Flocaltime":           "?timezone unknown_timezone",
		"/widget/stats?from=2026-02-30":                       "?from invalid_date",
		"/widget/stats?from=2026-2-3":                         "?from invalid_date",
		"/widget/stats?from=1969-12-31":                       "?from invalid_date",
		"/widget/stats?to=2026-01-01T00:00:00Z":               "?to invalid_date",
		"/widget/stats?from=2026-01-02&to=2026-01-01":         "?to out_of_range",
		"/widget/stats?from=2025-01-01&to=2026-01-02":         "?to out_of_range",
		"/widget/stats?from=9000-01-01":                       "?from out_of_range",
		"/widget/stats?from=2026-01-01&from=2026-01-01&to=no": "?from repeated,?to invalid_date",
	} {
		a := s.get(query, token)
		if a.status != 422 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
			continue
		}
		a.is(422, "validation_failed").names(strings.Split(want, ",")...)
	}
	s.get("/leads?limit=%zz", token).is(422, "validation_failed")
}

func TestParameter_limitIsOneToTwoHundredAndFiftyUnlessAsked(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
	s.change(func(t *tx) error {
		for range 202 {
			key, err := parseLicenseKey(newLicenseKey())
			if err != nil {
				return err
			}
			if _, err := t.addLicense(&license{AccountID: s.account, Product: "kds"}, key, actorCommand); err != nil {
				return err
			}
		}
		return nil
	})
	for query, rows := range map[string]int{"": 50, "?limit=1": 1, "?limit=200": 200} {
		if ids, next := pageOf(s.get("/licenses"+query, auth)); len(ids) != rows || next == "" {
			t.Errorf("%q: %d rows, next %q", query, len(ids), next)
		}
	}
	device := newID("dev", time.Now())
	for _, query := range []string{"limit=0", "limit=201", "limit=-1", "limit=1.5", "limit=1e2", "limit=",
		"limit=ten", "limit=%2B5", "limit=+5", "limit=05", "limit=5%20", "limit=99999999999999999999",
		"limit=5&limit=5"} {
		a := s.get("/licenses?"+query, auth).is(422, "validation_failed")
		if !strings.Contains(a.body, `"parameter":"limit"`) {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	for _, query := range []string{"cursor=", "cursor=x", "cursor=" + device, "cursor=lic_",
		"cursor=lic_'%20OR%201=1--", "cursor=" + newID("lic", time.Now()) + "&cursor=" + newID("lic", time.Now())} {
		a := s.get("/licenses?"+query, auth).is(422, "validation_failed")
		if !strings.Contains(a.body, `"parameter":"cursor"`) {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	s.get("/licenses?account_id=acct_1", auth).is(422, "validation_failed")
}

func FuzzEmail(f *testing.F) {
	for _, seed := range []string{"ada@example.com", "Ada <ada@example.com>", `"a b"@example.com`, "a@[127.0.0.1]",
		"jürg@ZÜRICH.example", "a@b", "a@b..c", "İ@İ.example", "a@K.example", "a..b@c.de", "", "@"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if code, _ := checkText(s, required, 254); code != "" {
			return
		}
		if code, _ := checkEmail(s); code != "" {
			return
		}
		local, domain, _ := strings.Cut(s, "@")
		if strings.Count(s, "@") != 1 || len(s) > 254 || len(local) > 64 || !strings.Contains(domain, ".") ||
			strings.ContainsAny(s, " \"(),:;<>[]\\\x00") ||
			strings.IndexFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) >= 0 {
			t.Fatalf("%q is taken", s)
		}
		if a, err := mail.ParseAddress(s); err != nil || a.Name != "" || a.Address != s {
			t.Fatalf("net/mail reads %q as %+v, %v", s, a, err)
		}
		if emailKey(normalEmail(s)) != emailKey(s) {
			t.Fatalf("erasing %q would not find it", s)
		}
	})
}

// A time that is taken, on the wire or at the command line, is one that the file
// holds and gives back.
func FuzzMoment(f *testing.F) {
	for _, seed := range []string{"2027-01-31", "2027-01-31T12:00:00Z", "2027-01-31T12:00:00.999999999+23:59",
		"365d", "7d", "52w", "100y", "101y", "31.01.2027", "12m", "24h", "-1d", "9999999h", "106751d", "106752d",
		"9223372036854775807d", "0000-01-01T00:00:00Z", "9000-12-31T23:59:60Z", "1970-01-01T00:00:00+01:00",
		"2027-1-31", ""} {
		f.Add(seed)
	}
	e := &env{now: func() time.Time { return time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC) }}
	f.Fuzz(func(t *testing.T, s string) {
		check := func(got stamp) {
			var back stamp
			if err := back.Scan(got.String()); err != nil || back != got || got.Year() < 1600 ||
				got.Year() > lastYear || len(got.String()) != len(stampLayout) {
				t.Fatalf("%q is %v, and that comes back as %v, %v", s, got, back, err)
			}
		}
		if got, ok := parseStamp(s); ok {
			check(got)
		}
		if got, err := e.parseTime(s); err == nil && s != "" {
			check(got)
			end, err := e.parseEnd(s)
			if err != nil || end.Before(got.Time) || end.Sub(got.Time) >= days(1) {
				t.Fatalf("%q begins at %v and ends at %v, %v", s, got, end, err)
			}
			check(end)
		}
	})
}

// Whatever stands behind the ? is answered and never a fault of ours.
func FuzzQuery(f *testing.F) {
	paths := []string{"/licenses", "/leads", "/events", "/widget/stats"}
	s := newService(f, withoutAddressLimits)
	widget := s.addWidget(s.account)
	header := http.Header{"Authorization": {"Bearer " + s.token(s.account, scopeAdmin)}}
	for i, query := range []string{
		"limit=5&cursor=lic_00000000000000000000000000&status=grace&product=kds&q=%25_%5c",
		"limit=%2B5&account_id=" + s.account,
		"type=lead.created&since=2026-01-01T00:00:00Z&license_id=x&device_id=y",
		"widget=" + widget + "&from=2026-01-01&to=2026-12-31&interval=week&timezone=Europe/Zurich", "limit=%zz;a",
		"timezone=../../etc/passwd&from=0001-01-01&to=9999-12-31",
	} {
		for offset := range paths {
			f.Add(uint8(i+offset), query)
		}
	}
	canonical := regexp.MustCompile(`\A[1-9][0-9]{0,2}\z`)
	f.Fuzz(func(t *testing.T, which uint8, query string) {
		s := s.with(t)
		s.server.accountBuckets = newLimiter(10)
		a := s.ask("GET", paths[int(which)%len(paths)], query, "", header)
		values, err := url.ParseQuery(query)
		if err == nil && which%4 < 3 && a.status == 200 && values.Has("limit") &&
			!canonical.MatchString(values.Get("limit")) {
			t.Fatalf("?%s is taken", query)
		}
		if err != nil && a.status != 422 {
			t.Fatalf("?%s can't be decoded (%v), and is answered with %d", query, err, a.status)
		}
	})
}

func TestParameter_unknownIsNamedWhereATokenIsRequiredAndIgnoredElsewhere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{})
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/leads", ""}, {"GET", "/events", ""}, {"GET", "/licenses", ""}, {"GET", "/licenses/" + id, ""},
		{"GET", "/licenses/" + id + "/devices", ""},
		{"POST", "/licenses/" + id + "/renew", `{"days":1}`}, {"POST", "/leads/erase", `{"email":"ada@example.com"}`},
	} {
		before := s.dump()
		s.do(r.method, r.path+"?z=1&Limit=2&z=3&account=x", r.body, admin).is(422, "validation_failed").
			names("?Limit unknown_parameter", "?account unknown_parameter", "?z unknown_parameter")
		s.unchanged(before)
	}
	s.get("/leads?limit=0&typ=demo", admin).is(422, "validation_failed").names("?limit out_of_range",
		"?typ unknown_parameter")
	s.get("/widget/health?x=1").is(200)
	s.get("/widget/stats?widget="+s.addWidget(s.account)+"&x=1", admin).is(200)
	s.post("/widget/leads?utm=x", `{"type":"demo","email":"ada@example.com"}`).is(200)
	names := []string{}
	for i := range 30 {
		names = append(names, fmt.Sprintf("p%02d=", i))
	}
	if got := s.get("/leads?"+strings.Join(names, "&"), admin).is(422).wrong(); len(got) != 20 ||
		got[19] != "?p19 unknown_parameter" {
		t.Errorf("of 30 unknown parameters %d are named: %q", len(got), got)
	}
}
