package main

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestJSON_errorsSayWhereAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"secret":"x","secret":"y"}`: "a member appears twice, at byte 22",
		`{"secret":"x"} secret`:       "there is more text after the object, at byte 15",
		`{"secret":"\x"}`:             "an escape is malformed, at byte 12",
		`{"secret":-}`:                "a number is malformed, at byte 11",
		`["secret"]`:                  "the text is not a JSON object",
		"{\"secret\":\"\xff\"}":       "the text is not valid UTF-8",
	} {
		if _, err := parseJSON([]byte(body)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

func TestJSON_ofThePublicVectorsIsRefusedAsALead(t *testing.T) {
	t.Parallel()
	var suite struct {
		Cases []struct {
			ID       string `json:"id"`
			Endpoint string `json:"endpoint"`
			Expect   []int  `json:"expect"`
			Body     []byte `json:"body_b64"`
		} `json:"cases"`
	}
	must(t, json.Unmarshal(vectors(t, "json_testsuite.json"), &suite))
	if len(suite.Cases) == 0 {
		t.Fatal("the file holds no case")
	}
	s := newService(t, withoutAddressLimits)
	for _, c := range suite.Cases {
		if c.Endpoint != "leads" {
			t.Errorf("%s is for %q, which this test does not know", c.ID, c.Endpoint)
			continue
		}
		a := s.post("/widget/leads", string(c.Body), "Content-Type: application/json")
		if !slices.Contains(c.Expect, a.status) {
			t.Errorf("%s, %.60q: %d, want one of %v", c.ID, c.Body, a.status, c.Expect)
			continue
		}
		a.is(a.status, a.text("code"))
	}
	if n := s.count(`SELECT (SELECT count(*) FROM leads) + (SELECT count(*) FROM events) + (SELECT count(*) FROM ` +
		`idempotency)`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// plain turns a value into what encoding/json gives with UseNumber.
func (v *jsonValue) plain() any {
	v.open()
	switch v.kind {
	case jsonBool:
		return v.boolean
	case jsonNumber:
		return json.Number(v.text)
	case jsonString:
		return v.text
	case jsonArray:
		all := []any{}
		for i := range v.list {
			all = append(all, v.list[i].plain())
		}
		return all
	case jsonObject:
		all := map[string]any{}
		for i := range v.members {
			all[v.members[i].name] = v.members[i].value.plain()
		}
		return all
	}
	return nil
}

// Whatever this parser takes encoding/json takes too, and reads the same; and what
// encoding/json then writes of it is taken again, unless its members' order told it
// apart, which JSON does not know.
func FuzzJSON(f *testing.F) {
	for _, body := range malformedBodies {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseJSON(text)
		if body, failed := parseBody(text, len(text)); (err == nil) != (failed == nil) {
			t.Fatalf("%q is read as %v, and as the body of a request as %v", text, err, failed)
		} else if err == nil && !reflect.DeepEqual(body.plain(), v.plain()) {
			t.Fatalf("%q is %v, and as the body of a request %v", text, v.plain(), body.plain())
		}
		if err != nil {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		var theirs any
		if err := dec.Decode(&theirs); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", text, err)
		}
		if _, err := dec.Token(); err != io.EOF {
			t.Fatalf("encoding/json finds more behind %q: %v", text, err)
		}
		if ours := v.plain(); !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("%q is %v here, %v for encoding/json", text, ours, theirs)
		}
		again, err := json.Marshal(theirs)
		must(t, err)
		if second, err := parseJSON(again); err != nil || !reflect.DeepEqual(second.plain(), theirs) {
			t.Fatalf("%q, written again as %q, is %v, %v", text, again, second.plain(), err)
		}
	})
}

// holdSeeds has a parser read the seeds in testdata/fuzz of a target whose inputs are one text each: it must take
// those that are called good-… and refuse those that are called bad-….
func holdSeeds(t *testing.T, target string, parse func(text string) error) {
	t.Helper()
	taken := map[string]int{}
	for _, name := range dirNames(t, "testdata/fuzz/"+target) {
		quoted := captures(`(?m)^(?:string|\[\]byte)\((".*")\)$`, fileText(t, "testdata/fuzz/"+target+"/"+name))
		text, err := strconv.Unquote(strings.Join(quoted, ""))
		must(t, err)
		kind, _, _ := strings.Cut(name, "-")
		taken[kind]++
		if err := parse(text); kind != "good" && kind != "bad" || (err == nil) != (kind == "good") {
			t.Errorf("%s: %q is read as %v", name, text, err)
		}
	}
	if taken["good"] < 10 || taken["bad"] < 10 {
		t.Errorf("%s has the seeds %v only", target, taken)
	}
}

func TestJSON_seedsAreTakenOrNotAsTheirNamesSay(t *testing.T) {
	t.Parallel()
	holdSeeds(t, "FuzzJSON", func(text string) error { return second(parseJSON([]byte(text))) })
}

func TestJSON_ofABodyHasAtMostAThousandValues(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	for values, status := range map[int]int{1000: 200, 1001: 400} {
		// type, email, x, and what is in x, which nobody knows
		unknown := strings.TrimSuffix(strings.Repeat("[],", values-3), ",")
		body := `{"type":"newsletter","email":"ada@example.com","x":[` + unknown + `]}`
		if a := s.post("/widget/leads", body); a.status != status {
			t.Errorf("%d values: %d %s, want %d", values, a.status, a.body, status)
		}
	}
	s.post("/widget/leads", `{"x":[`+strings.Repeat("1,", 1001)+`1]}`).is(400, "malformed_json")
}
