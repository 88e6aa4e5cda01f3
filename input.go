package main

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// An input is what a caller sent: the members of the body, the parameters of the
// query, the wildcards of the path. A request type reads itself from it, member
// by member; every wrong one is noted, so that one answer names them all
// (contract, section 1).
type input struct {
	body      *jsonValue // nil: the request has none
	query     url.Values
	malformed bool          // the query can't be decoded
	request   *http.Request // for the wildcards of its path; nil: none are read
	caller    *caller       // who sent it, as far as a token says; nil: no token
	pointer   string        // of body, in the whole: "#" or "#/customer"
	errs      *[]fieldError
	noted     []fieldError // what errs points to, in the whole
}

// newInput makes the input of a request (nil: there is none, but a body).
func newInput(body *jsonValue, r *http.Request, who *caller) *input {
	in := &input{body: body, request: r, caller: who, pointer: "#"}
	in.errs = &in.noted
	if r != nil && r.URL.RawQuery != "" {
		var err error
		in.query, err = url.ParseQuery(r.URL.RawQuery)
		in.malformed = err != nil
	}
	return in
}

func (in *input) pathValue(name string) string { return in.request.PathValue(name) }

// err returns what is wrong, or nil.
func (in *input) err() error {
	if in.malformed {
		return &refusal{code: codeValidation, detail: "The query can't be decoded."}
	}
	if len(*in.errs) == 0 {
		return nil
	}
	return errFields(*in.errs...)
}

// wrong notes a wrong member of the body.
func (in *input) wrong(name, code, detail string) {
	*in.errs = append(*in.errs, fieldError{Pointer: in.pointer + "/" + name, Code: code, Detail: detail})
}

// wrongParameter notes a wrong parameter of the query.
func (in *input) wrongParameter(name, code, detail string) {
	*in.errs = append(*in.errs, fieldError{Parameter: name, Code: code, Detail: detail})
}

// member returns a member of a kind, or nil when it is absent or, having noted
// that, wrong. A null is a wrong type like any other.
func (in *input) member(name string, kind jsonKind, n need) *jsonValue {
	v, ok := in.body.member(name)
	if !ok {
		if n == required {
			in.wrong(name, "required", "This member is required.")
		}
		return nil
	}
	if v.kind != kind {
		in.wrong(name, "wrong_type", fmt.Sprintf("This must be %s, not %s.", kind, v.kind))
		return nil
	}
	return v
}

// text reads a string of at most max characters without control characters, and
// has check judge it unless that is nil. It returns "" when the member is absent or
// wrong; a required one must not be empty.
func (in *input) text(name string, n need, max int, check textCheck) string {
	v := in.member(name, jsonString, n)
	if v == nil {
		return ""
	}
	code, detail := checkText(v.text, n, max)
	if code == "" && check != nil {
		code, detail = check(v.text)
	}
	if code != "" {
		in.wrong(name, code, detail)
		return ""
	}
	return v.text
}

// object reads a member that is an object; its own members are read from the
// result, which is empty when the member is absent or wrong.
func (in *input) object(name string, n need) *input {
	nested := *in
	nested.pointer += "/" + name
	if nested.body = in.member(name, jsonObject, n); nested.body == nil {
		nested.body = &jsonValue{kind: jsonObject}
	}
	return &nested
}

// objects reads an array of 1 to max objects.
func (in *input) objects(name string, max int) []*input {
	v := in.member(name, jsonArray, required)
	if v == nil {
		return nil
	}
	if len(v.list) == 0 || len(v.list) > max {
		in.wrong(name, "wrong_length", fmt.Sprintf("This must have 1 to %d elements.", max))
		return nil
	}
	all := make([]*input, 0, len(v.list))
	for i := range v.list {
		if v.list[i].kind != jsonObject {
			in.wrong(fmt.Sprintf("%s/%d", name, i), "wrong_type", fmt.Sprintf("This must be an object, not %s.", v.list[i].kind))
			continue
		}
		nested := *in
		nested.pointer += "/" + name + "/" + strconv.Itoa(i)
		nested.body = &v.list[i]
		all = append(all, &nested)
	}
	return all
}

// texts reads an optional array of at most count strings, each not empty, of at
// most max characters.
func (in *input) texts(name string, count, max int) []string {
	v := in.member(name, jsonArray, optional)
	if v == nil {
		return nil
	}
	if len(v.list) > count {
		in.wrong(name, "wrong_length", fmt.Sprintf("This must have at most %d elements.", count))
		return nil
	}
	all := make([]string, len(v.list)) // a wrong one is empty, so that the others keep their places
	for i := range v.list {
		element := fmt.Sprintf("%s/%d", name, i)
		if v.list[i].kind != jsonString {
			in.wrong(element, "wrong_type", fmt.Sprintf("This must be a string, not %s.", v.list[i].kind))
		} else if code, detail := checkText(v.list[i].text, required, max); code != "" {
			in.wrong(element, code, detail)
		} else {
			all[i] = v.list[i].text
		}
	}
	return all
}

// number reads an optional whole number from low to high; nil when it is absent or
// wrong. Like JSON Schema it takes 3.0 and 3e0 for 3.
func (in *input) number(name string, low, high int) *int {
	v := in.member(name, jsonNumber, optional)
	if v == nil {
		return nil
	}
	n, err := strconv.ParseFloat(v.text, 64) // exact for every limit that we set
	if err != nil || n != math.Trunc(n) || n < float64(low) || n > float64(high) {
		in.wrong(name, "out_of_range", fmt.Sprintf("This must be a whole number from %d to %d.", low, high))
		return nil
	}
	number := int(n)
	return &number
}

// timestamp reads an optional time as RFC 3339 writes it; the zero stamp when it is
// absent or wrong.
func (in *input) timestamp(name string) stamp {
	v := in.member(name, jsonString, optional)
	if v == nil {
		return stamp{}
	}
	t, ok := parseStamp(v.text)
	if !ok {
		in.wrong(name, "invalid_time", "This must be a time as 2027-01-31T12:00:00Z.")
	}
	return t
}

// parameter reads a parameter of the query, which may stand there once; check
// judges it unless it is absent.
func (in *input) parameter(name string, check textCheck) string {
	values := in.query[name]
	if len(values) == 0 {
		return ""
	}
	code, detail := "repeated", "This parameter may stand there once."
	if len(values) == 1 {
		code, detail = check(values[0])
	}
	if code != "" {
		in.wrongParameter(name, code, detail)
		return ""
	}
	return values[0]
}

// date reads a parameter that is a calendar date, YYYY-MM-DD; the zero time when
// it is absent or wrong.
func (in *input) date(name string) (t time.Time) {
	in.parameter(name, func(s string) (string, string) {
		var err error
		if t, err = time.Parse(time.DateOnly, s); err != nil || t.Year() < 1970 {
			t = time.Time{}
			return "invalid_date", "This must be a date: YYYY-MM-DD."
		}
		return "", ""
	})
	return t
}

// A pageQuery is the part of a list that a caller asks for.
type pageQuery struct {
	limit  int
	before string // the id that the page before ended with
}

// page reads ?limit= and ?cursor= for a list of ids with a prefix.
func (in *input) page(prefix string) pageQuery {
	p := pageQuery{limit: 50}
	in.parameter("limit", func(s string) (string, string) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 200 || strconv.Itoa(n) != s {
			return "out_of_range", "This must be a number from 1 to 200."
		}
		p.limit = n
		return "", ""
	})
	p.before = in.parameter("cursor", func(s string) (string, string) {
		if !validID(prefix, s) {
			return "invalid_cursor", "This is not a cursor that this list gave."
		}
		return "", ""
	})
	return p
}

// emptyRequest is the request of an endpoint that reads no member.
type emptyRequest struct{}

func (emptyRequest) read(*input) {}

// isNull reports whether a member is there and null, which takes a term away.
func (in *input) isNull(name string) bool {
	v, ok := in.body.member(name)
	return ok && v.kind == jsonNull
}

func (in *input) has(name string) bool { _, ok := in.body.member(name); return ok }
