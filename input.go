package main

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// An input is what a caller sent: the members of the body, the parameters of the
// query, the wildcards of the path. A request type reads itself from it, member
// by member; every wrong one is noted, so that one answer names them all
// (contract, section 1).
type input struct {
	body    *jsonValue // nil: the request has none
	query   url.Values
	request *http.Request // for the wildcards of its path; nil: none are read
	device  bool          // a device token came along, which names licence and device
	pointer string        // of body, in the whole: "#" or "#/device"
	errs    *[]fieldError
	noted   []fieldError // what errs points to, in the whole
}

func newInput(body *jsonValue, query url.Values, r *http.Request) *input {
	in := &input{body: body, query: query, request: r, pointer: "#"}
	in.errs = &in.noted
	return in
}

func (in *input) path(name string) string { return in.request.PathValue(name) }

// refusal returns what is wrong, or nil.
func (in *input) refusal() error {
	if len(*in.errs) == 0 {
		return nil
	}
	return errFields(*in.errs...)
}

// errFields refuses a request for wrong members or parameters, and names them.
func errFields(wrong ...fieldError) error {
	names := make([]string, 0, len(wrong))
	for _, e := range wrong {
		names = append(names, strings.TrimPrefix(e.Pointer, "#/")+e.Parameter)
	}
	return &refusal{code: "validation_failed", detail: "These values are wrong: " + strings.Join(names, ", ") + ".", fields: wrong}
}

// wrong notes a wrong member of the body.
func (in *input) wrong(name, code, detail string) {
	*in.errs = append(*in.errs, fieldError{Pointer: in.pointer + "/" + name, Code: code, Detail: detail})
}

// wrongParameter notes a wrong parameter of the query.
func (in *input) wrongParameter(name, code, detail string) {
	*in.errs = append(*in.errs, fieldError{Parameter: name, Code: code, Detail: detail})
}

type need bool

const (
	required need = true
	optional need = false
)

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

// A textCheck judges a text: it returns a field error's code and detail, both "" when
// there is nothing wrong.
type textCheck func(s string) (code, detail string)

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

// checkText judges what every text keeps to: at most max characters, UTF-8, none of
// them a control character, and not empty when it is required.
func checkText(s string, n need, max int) (code, detail string) {
	switch {
	case n == required && s == "":
		return "empty", "This must not be empty."
	case !utf8.ValidString(s):
		return "invalid_utf8", "This must be UTF-8."
	case utf8.RuneCountInString(s) > max:
		return "too_long", fmt.Sprintf("This has more than %d characters.", max)
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		return "control_character", "This must not contain control characters."
	}
	return "", ""
}

func notEmpty(s string) (code, detail string) {
	if s == "" {
		return "empty", "This must not be empty."
	}
	return "", ""
}

// nilIfEmpty returns a pointer to s, or nil for "": what the database keeps of an
// optional text.
func nilIfEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// valueOr returns what p points to, or otherwise for nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
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

// moment reads an optional time as RFC 3339 writes it; the zero stamp when it is
// absent or wrong.
func (in *input) moment(name string) stamp {
	v := in.member(name, jsonString, optional)
	if v == nil {
		return stamp{}
	}
	t, ok := parseMoment(v.text)
	if !ok {
		in.wrong(name, "invalid_time", "This must be a time as 2027-01-31T12:00:00Z.")
	}
	return t
}

// lastYear leaves room for grace behind the latest time that is taken.
const lastYear = 9000

// parseMoment reads an RFC 3339 time of the years that the file can hold.
func parseMoment(s string) (stamp, bool) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.UTC().Year() < 1970 || t.UTC().Year() > lastYear {
		return stamp{}, false
	}
	return newStamp(t), true
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

// isID returns a check for ids with a prefix.
func isID(prefix string) textCheck {
	return func(s string) (code, detail string) {
		if !validID(prefix, s) {
			return "invalid_id", "This is not an id of the kind " + prefix + "_…"
		}
		return "", ""
	}
}

// isText returns a check for a text of 1 to max characters.
func isText(max int) textCheck {
	return func(s string) (code, detail string) { return checkText(s, required, max) }
}

// oneOf returns a check for a choice.
func oneOf(choices ...string) textCheck {
	return func(s string) (code, detail string) {
		if slices.Contains(choices, s) {
			return "", ""
		}
		return "unknown_value", "This must be one of " + strings.Join(choices, ", ") + "."
	}
}

// A page is the part of a list that a caller asks for.
type page struct {
	limit  int
	before string // the id that the page before ended with
}

// page reads ?limit= and ?cursor= for a list of ids with a prefix.
func (in *input) page(prefix string) page {
	p := page{limit: 50}
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

// checkEmail judges one plain address (contract, section 3): no display name,
// comment, quoted local part or address literal; a dotted domain whose labels are
// valid. An internationalised domain or local part passes as it is.
func checkEmail(s string) (code, detail string) {
	const invalid = "invalid_email"
	at := strings.LastIndexByte(s, '@')
	switch {
	case len(s) > 254:
		return "too_long", "An address has at most 254 octets."
	case at <= 0 || at == len(s)-1:
		return invalid, "An address is name@example.com."
	case at > 64:
		return invalid, "The part before the @ has more than 64 octets."
	}
	for _, atom := range strings.Split(s[:at], ".") {
		if atom == "" || strings.IndexFunc(atom, func(r rune) bool { return !isAtomText(r) }) >= 0 {
			return invalid, "The part before the @ is not valid."
		}
	}
	if !validDomain(s[at+1:]) {
		return invalid, "The domain after the @ is not valid."
	}
	return "", ""
}

// isAtomText is atext of RFC 5322, with RFC 6531's letters beyond ASCII.
func isAtomText(r rune) bool {
	return isLabelRune(r) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
}

func isLabelRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r >= utf8.RuneSelf && r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r))
}

// validDomain takes two or more labels of letters, digits and inner hyphens, at
// most 63 octets each and 253 in all, the last one not a number (RFC 1123).
func validDomain(domain string) bool {
	labels := strings.Split(domain, ".")
	if len(domain) > 253 || len(labels) < 2 {
		return false
	}
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.IndexFunc(label, func(r rune) bool { return r != '-' && !isLabelRune(r) }) >= 0 {
			return false
		}
	}
	return strings.IndexFunc(labels[len(labels)-1], unicode.IsLetter) >= 0
}

// normalEmail is an address with its domain in lower case, as it is kept.
func normalEmail(s string) string {
	at := strings.LastIndexByte(s, '@')
	return s[:at+1] + strings.ToLower(s[at+1:])
}
