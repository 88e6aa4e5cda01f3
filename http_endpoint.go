package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An endpoint is what a route does: how its request is read, and who answers it with what. The OpenAPI document, the
// members that a strict route knows and the options of commands are made of it, so nothing of a request or an answer
// is said twice.
//
// Reading and answering are two functions. The first reads all that the request may have, whoever calls and whatever
// the values are: it may ask whether a member is there, and leaves every other judgement to the second. The second has
// the name of the operation, and its comment is what the document says of it: the first sentence is the summary.
type endpoint struct {
	run             handler
	read            func(in *input)   // reads a request, or says what it would read
	known           func() knownNames // what it reads
	request, answer reflect.Type      // of what it reads, and of what it answers with, as JSON; see also answerForm
	others          []reflect.Type    // what it may answer with instead
	doc             uintptr           // the answering function, whose comment describes the route
}

// A noMembers is the request of an endpoint that reads none, and the answer of one that answers with none.
type noMembers struct{}

func readNoMembers(*input) noMembers { return noMembers{} }

// A reader reads a request, and returns what answers it for who was admitted.
type reader func(in *input) func(ctx context.Context, c *call, of owner) (any, error)

// owned returns an endpoint that acts on what one owner has: it reads, has the caller charged, refuses what is wrong,
// and answers for the owner on whose rows the caller may act (server.finishReadingFor), which ?account_id= may name.
func owned[Req, Res any](
	s *server, read func(*input) Req, answer func(context.Context, *call, owner, Req) (Res, error),
) *endpoint {
	return s.ownedAny(func(in *input) func(context.Context, *call, owner) (any, error) {
		request := read(in)
		return func(ctx context.Context, c *call, of owner) (any, error) { return answer(ctx, c, of, request) }
	}, reflect.TypeFor[Req](), reflect.TypeFor[Res](), answer)
}

// ownedAny is owned for any types: what it does is not copied for every pair of them.
func (s *server) ownedAny(read reader, request, answer reflect.Type, function any) *endpoint {
	e := newEndpoint(func(in *input) { read(in); in.accountID() }, request, answer, function)
	e.run = func(ctx context.Context, c *call) (any, error) {
		answer := read(c.in)
		of, err := s.finishReadingFor(ctx, c)
		if err != nil {
			return nil, err
		}
		return answer(ctx, c, of)
	}
	return e
}

// admitted returns an endpoint whose caller is charged (server.finishReading), and that acts on nobody's rows or
// finds out by itself on whose.
func admitted[Req, Res any](
	s *server, read func(*input) Req, answer func(context.Context, *call, Req) (Res, error),
) *endpoint {
	e := admitting(read, answer)
	e.run = func(ctx context.Context, c *call) (any, error) {
		request := read(c.in)
		if err := s.finishReading(ctx, c); err != nil {
			return nil, err
		}
		return answer(ctx, c, request)
	}
	return e
}

// admitting returns an endpoint whose answering function ends the reading itself, before it decides anything.
func admitting[Req, Res any](read func(*input) Req, answer func(context.Context, *call, Req) (Res, error)) *endpoint {
	e := newEndpoint(func(in *input) { read(in) }, reflect.TypeFor[Req](), reflect.TypeFor[Res](), answer)
	e.run = func(ctx context.Context, c *call) (any, error) { return answer(ctx, c, read(c.in)) }
	return e
}

// servedBy returns the endpoint of a root path: serve writes a Res, as JSON or in the type that its answerForm has.
func servedBy[Res any](serve func(w *response, r *http.Request)) *endpoint {
	return newEndpoint(func(*input) {}, reflect.TypeFor[noMembers](), reflect.TypeFor[Res](), serve)
}

// newEndpoint returns an endpoint without its run. function is the one that answers, whose comment describes it.
func newEndpoint(read func(*input), request, answer reflect.Type, function any) *endpoint {
	if request.Kind() == reflect.Pointer {
		request = request.Elem()
	}
	return &endpoint{read: read, request: request, answer: answer, doc: reflect.ValueOf(function).Pointer(),
		known: sync.OnceValue(func() knownNames { return knownOf(read) })}
}

// answeringWith returns an endpoint whose function encodes its answer itself, in a *reply or a *staticFile: a T or,
// if it is called again, one of several types.
func answeringWith[T any](e *endpoint) *endpoint {
	if e.answer == reflect.TypeFor[*reply]() || e.answer == reflect.TypeFor[*staticFile]() {
		e.answer = reflect.TypeFor[T]()
	} else {
		e.others = append(e.others, reflect.TypeFor[T]())
	}
	return e
}

// complete sets what follows from the rest of a route: one with a scope needs a token, and one that writes with one of
// the careful scopes refuses members that it does not know.
func (rt *route) complete(careful []string) {
	if rt.endpoint != nil {
		rt.run = rt.endpoint.run
	}
	if rt.scope != "" && rt.token == tokenIgnored {
		rt.token = tokenRequired
	}
	rt.careful = rt.careful || rt.method() != "GET" && slices.ContainsFunc(careful, func(scope string) bool {
		return slices.Contains(strings.Fields(rt.scope), scope)
	})
}

// An input is what a request contains: the members of the body, the parameters of the query,
// the wildcards of the path. The read method of a request type reads its fields from an
// input. Each reading method returns a zero value for a wrong member and records it, so that
// one answer can name all wrong members (contract, section 1).
type input struct {
	body    *jsonValue // an object; nil: the request has no body
	query   url.Values
	unread  error         // why the query was not read; nil: it was
	request *http.Request // for the wildcards of its path; nil: none are read
	pointer string        // JSON pointer of body within the request's body: "#" or "#/customer"
	errs    *[]fieldError // every wrong member so far, shared with the inputs of nested objects
	noted   []fieldError  // holds errs for the outermost input

	path   string            // of body as pointer has it, with * for the index of an element: "#/lines/*"
	note   func(reading)     // is told what would be read, and nothing is read; nil: it is read
	known  knownNames        // what the route reads; nil: a page, which refuses nothing that it does not know
	strict bool              // members of the body that the route does not read are refused
	late   func(name string) // is told of what is looked up and not described; nil: nobody is
	dry    bool              // with ?dry_run=true: only tell what the call would do
}

// A reading is what is read of a request at one place: a member or a parameter, and what it may be.
type reading struct {
	path      string // of the object that has it, as input.path; inQuery: it is a parameter
	name      string
	kind      jsonKind
	need      presence
	low, high int        // of a number; of a list how many elements it has; high of a text: the most characters
	unit      string     // of a number: what it counts, for its refusal; "": units
	each      int        // of a list of texts: the most characters of an element; of an object of texts: of a text
	check     *textCheck // of a text, beside its length; of a list or an object of texts: of each
	format    string     // of a text, where it has no check: "date-time"
	lines     bool       // a text of several lines

	asked    bool // whether it is there is asked, so that it may be absent
	nullable bool // it may be null
	fixed    bool // it can't be changed, and is refused by words of its own
}

// inQuery and inPath are the paths of parameters.
const (
	inQuery = "?"
	inPath  = "{}"
)

// newDescribed makes an input of which nothing is read: note is told what would be. Every optional member is there.
func newDescribed(note func(reading)) *input {
	in := newInput(&jsonValue{kind: jsonObject}, nil)
	in.note = func(r reading) {
		if r.check == nil {
			r.check = &textCheck{} // so that note need not ask
		}
		note(r)
	}
	return in
}

// newInput makes the input of a request with a parsed body. r is nil where there is a body but no request.
func newInput(body *jsonValue, r *http.Request) *input {
	in := &input{body: body, request: r, pointer: "#", path: "#"}
	in.errs = &in.noted
	if r != nil && r.URL.RawQuery != "" {
		in.query, in.unread = parseFields("The query string of the URL", r.URL.RawQuery, maxFields)
	}
	return in
}

// maxFields is how many fields a form has at most, unless its route names more, and parameters a query; of each field a
// hundred bytes and more are kept, however short it is.
const maxFields = 100

// parseFields parses what is the query of a URL or a form. Errors: a refusal that begins with what it is.
func parseFields(what, text string, most int) (url.Values, error) {
	if strings.Count(text, "&") >= most {
		detail := fmt.Sprintf("%s has more than %d parameters.", what, most)
		return nil, &refusal{code: codeValidation, detail: detail}
	}
	fields, err := url.ParseQuery(text)
	if err != nil {
		return fields, &refusal{code: codeValidation, detail: what + " is malformed."}
	}
	return fields, nil
}

// parseForm parses the body of a form (application/x-www-form-urlencoded) into an object whose members are
// strings. Errors: a refusal if it is malformed, or has more than most fields or one twice.
func parseForm(body []byte, most int) (jsonValue, error) {
	fields, err := parseFields("The form", string(body), most)
	if err != nil {
		return jsonValue{}, err
	}
	form := jsonValue{kind: jsonObject}
	for name, values := range fields {
		if len(values) > 1 {
			return jsonValue{}, &refusal{code: codeValidation, detail: "The form has a field twice."}
		}
		form.members = append(form.members, jsonMember{name, jsonValue{kind: jsonString, text: values[0]}})
	}
	return form, nil
}

// pathValue returns what a wildcard of the route's path matched.
func (in *input) pathValue(name string) string {
	if in.note != nil {
		return ""
	}
	return in.request.PathValue(name)
}

// err returns a refusal that names every wrong member and parameter, or nil if there are none. It is called once all
// members were read: what is unknown is noted by its first call only.
func (in *input) err() error {
	if in.unread != nil {
		return in.unread
	}
	if in.strict {
		(&unknownWalk{}).object(in)
		in.strict = false
	}
	if len(*in.errs) == 0 {
		return nil
	}
	return errFields(*in.errs...)
}

// wrong records an error of a member of the body. name may be a path below it: "events/3".
func (in *input) wrong(name, code, detail string) {
	*in.errs = append(*in.errs, fieldError{Pointer: in.pointer + "/" + name, Code: code, Detail: detail})
}

// allowMissing takes back that members of the body are missing.
func (in *input) allowMissing(names ...string) {
	*in.errs = slices.DeleteFunc(*in.errs, func(f fieldError) bool {
		return f.Code == "required" && slices.Contains(names, strings.TrimPrefix(f.Pointer, "#/"))
	})
}

// wrongParameter records an error of a parameter of the query.
func (in *input) wrongParameter(name, code, detail string) {
	*in.errs = append(*in.errs, fieldError{Parameter: name, Code: code, Detail: detail})
}

// find returns a member of any kind.
func (in *input) find(name string) (*jsonValue, bool) {
	in.noteExpected(in.path, name)
	return in.body.member(name)
}

// noteExpected tells of a name that is looked up and not described.
func (in *input) noteExpected(path, name string) {
	if in.late != nil && in.known != nil && !in.known.has(path, name) {
		in.late(path + "/" + name)
	}
}

// member returns the member that a reading is of. It returns nil for a member that is absent, and for one of another
// kind, which it records. A null counts as another kind.
func (in *input) member(r reading) *jsonValue {
	if in.note != nil {
		r.path = in.path
		in.note(r)
		return nil
	}
	v, ok := in.find(r.name)
	if !ok {
		if r.need == required {
			in.wrong(r.name, "required", "This member is required.")
		}
		return nil
	}
	if v.kind != r.kind {
		in.wrong(r.name, "wrong_type", fmt.Sprintf("This must be %s, not %s.", r.kind, v.kind))
		return nil
	}
	v.open()
	return v
}

// text reads a string of at most max characters without control characters that also passes
// check. It returns "" if the member is absent or wrong. A required one must not be empty.
func (in *input) text(name string, n presence, max int, check *textCheck) string {
	v := in.member(reading{name: name, kind: jsonString, need: n, high: max, check: check})
	if v == nil {
		return ""
	}
	code, detail := checkText(v.text, n, max)
	if code == "" {
		code, detail = check.fault(v.text)
	}
	if code != "" {
		in.wrong(name, code, detail)
		return ""
	}
	return strings.Clone(v.text) // else it would keep the whole body in memory
}

// trim takes what nobody sees from around a member that is a text, before it is read.
func (in *input) trim(name string) {
	if v, ok := in.body.member(name); ok && v.kind == jsonString {
		v.open()
		v.text = trimUnseen(v.text)
	}
}

// field returns a field of a form as it was sent, and "" if there is none.
func (in *input) field(name string) string { return in.fieldOf(reading{name: name}) }

// fieldOf is field, and says what the field may be, which is judged elsewhere.
func (in *input) fieldOf(r reading) string {
	if in.note != nil {
		r.path, r.kind = in.path, jsonString
		in.note(r)
		return ""
	}
	if v, ok := in.find(r.name); ok {
		return v.text
	}
	return ""
}

// object reads a member that is an object, and returns an input for that object's members.
// It is an empty object if the member is absent or wrong.
func (in *input) object(name string, n presence) *input {
	nested := *in
	nested.pointer, nested.path = in.pointer+"/"+name, in.path+"/"+name
	if nested.body = in.member(reading{name: name, kind: jsonObject, need: n}); nested.body == nil {
		nested.body = &jsonValue{kind: jsonObject}
	}
	return &nested
}

// objects reads a required array of 1 to max objects, and returns an input for each. Elements
// that are no objects are left out.
func (in *input) objects(name string, max int) []*input {
	v := in.member(reading{name: name, kind: jsonArray, need: required, low: 1, high: max})
	if in.note != nil {
		nested := *in
		nested.path = in.path + "/" + name + "/*"
		return []*input{&nested}
	}
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
			detail := fmt.Sprintf("This must be an object, not %s.", v.list[i].kind)
			in.wrong(fmt.Sprintf("%s/%d", name, i), "wrong_type", detail)
			continue
		}
		nested := *in
		nested.pointer, nested.path = in.pointer+"/"+name+"/"+strconv.Itoa(i), in.path+"/"+name+"/*"
		nested.body = &v.list[i]
		all = append(all, &nested)
	}
	return all
}

// texts reads an array of r.low to r.high strings, each of 1 to r.each characters and as r.check has it. A wrong
// element is returned as "", so that the others keep their index.
func (in *input) texts(r reading) []string {
	r.kind = jsonArray
	v := in.member(r)
	if v == nil {
		return nil
	}
	if len(v.list) < r.low || len(v.list) > r.high {
		may := fmt.Sprintf("at most %d", r.high)
		if r.low > 0 {
			may = fmt.Sprintf("%d to %d", r.low, r.high)
		}
		in.wrong(r.name, "wrong_length", "This must have "+may+" elements.")
		return nil
	}
	all := make([]string, len(v.list))
	for i := range v.list {
		element := fmt.Sprintf("%s/%d", r.name, i)
		if v.list[i].kind != jsonString {
			in.wrong(element, "wrong_type", fmt.Sprintf("This must be a string, not %s.", v.list[i].kind))
		} else if code, detail := checkText(v.list[i].text, required, r.each); code != "" {
			in.wrong(element, code, detail)
		} else if code, detail = r.check.fault(v.list[i].text); code != "" {
			in.wrong(element, code, detail)
		} else {
			all[i] = strings.Clone(v.list[i].text)
		}
	}
	return all
}

// number reads an optional whole number from low to high. It returns nil if the member is
// absent or wrong. As in JSON Schema, 3.0 and 3e0 are the whole number 3.
func (in *input) number(name string, low, high int) *int {
	return in.numberOf(reading{name: name, low: low, high: high})
}

// numberOf is number for a member that may be required.
func (in *input) numberOf(r reading) *int {
	r.kind = jsonNumber
	v := in.member(r)
	if v == nil {
		return nil
	}
	n, err := strconv.ParseFloat(v.text, 64) // exact up to 2^53, far above every limit here
	if err != nil || n != math.Trunc(n) || n < float64(r.low) || n > float64(r.high) {
		detail := fmt.Sprintf("This must be a whole number%s from %d to %d.", r.unit, r.low, r.high)
		in.wrong(r.name, "out_of_range", detail)
		return nil
	}
	return new(int(n))
}

// timestamp reads an RFC 3339 time. It returns the zero stamp if the member is absent or wrong.
func (in *input) timestamp(name string, n presence) stamp {
	v := in.member(reading{name: name, kind: jsonString, need: n, format: "date-time"})
	if v == nil {
		return stamp{}
	}
	t, ok := parseStamp(v.text)
	if !ok {
		in.wrong(name, "invalid_time", "This must be a time such as 2027-01-31T12:00:00Z.")
	}
	return t
}

// parameter reads a parameter of the query that may be given once. It returns "" if the
// parameter is absent, or if check finds an error in it.
func (in *input) parameter(name string, check *textCheck) string {
	if in.note != nil {
		in.note(reading{path: inQuery, name: name, kind: jsonString, check: check})
		return ""
	}
	in.noteExpected(inQuery, name)
	values := in.query[name]
	if len(values) == 0 {
		return ""
	}
	code, detail := "repeated", "This parameter must be given only once."
	if len(values) == 1 {
		code, detail = check.of(values[0])
	}
	if code != "" {
		in.wrongParameter(name, code, detail)
		return ""
	}
	return values[0]
}

const maxUnknownParameters = 20 // that one answer names

// refuseUnknownParameters records an error of every parameter of the query that the route does not read, so
// that a misspelt filter doesn't pass for one that matches everything.
func (in *input) refuseUnknownParameters() {
	unknown := []string{}
	for name := range in.query {
		if !in.known.has(inQuery, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	sentence, known := "This route has no such parameter", []string{}
	if p := in.known[inQuery]; p != nil && len(p.allowed) > 0 {
		known = slices.Sorted(slices.Values(p.allowed))
		sentence += "; it has " + strings.Join(known, ", ")
	}
	for _, name := range unknown[:min(len(unknown), maxUnknownParameters)] {
		in.wrongParameter(name, "unknown_parameter", nearestMeant(sentence, name, known))
	}
}

// names are different names, in the order in which they were added.
type names []string

func (n *names) add(name string) {
	if !slices.Contains(*n, name) {
		*n = append(*n, name)
	}
}

// A place is where a body has objects that are read alike: itself, an object in it, or all elements of an array.
// Objects whose members may have any name, such as metadata, have no place.
type place struct {
	allowed names // members that are looked up
	fixed   names // those that can't be changed, which are refused by words of their own
}

// knownNames are what a route reads, by path: inQuery has its parameters.
type knownNames map[string]*place

// readingsOf returns what a reader reads, each once, in the order in which it does.
func readingsOf(read func(*input)) (all []reading) {
	read(newDescribed(func(r reading) {
		at := slices.IndexFunc(all, func(other reading) bool { return other.path == r.path && other.name == r.name })
		if at < 0 {
			all = append(all, r)
			return
		}
		nullable := r.nullable || all[at].nullable
		if r.kind != jsonNull { // else it is only asked for
			all[at] = r
		}
		all[at].nullable = nullable
	}))
	return all
}

// knownOf returns what a reader reads.
func knownOf(read func(*input)) knownNames {
	known := knownNames{"#": {}, inQuery: {}}
	at := func(path string) *place {
		if known[path] == nil {
			known[path] = &place{}
		}
		return known[path]
	}
	read(newDescribed(func(r reading) {
		if r.fixed {
			at(r.path).fixed.add(r.name)
			return
		}
		at(r.path).allowed.add(r.name)
		if r.kind == jsonObject && r.each == 0 {
			at(r.path + "/" + r.name)
		}
	}))
	return known
}

// has reports whether a name at a path is read.
func (k knownNames) has(path, name string) bool {
	p := k[path]
	return p != nil && (slices.Contains(p.allowed, name) || slices.Contains(p.fixed, name))
}

// How much one answer says of unknown members.
const (
	maxUnknownMembers = 20 // that it names
	maxUnknownName    = 64 // bytes of a name that it shows
)

// An unknownWalk goes through what was read of a body, and records what is unknown.
type unknownWalk struct{ listed int } // see maxUnknownMembers

// object goes through the members of an object, then through the objects within it.
func (w *unknownWalk) object(in *input) {
	p := in.known[in.path]
	if p == nil {
		return
	}
	for i := range in.body.members {
		name := in.body.members[i].name
		if !in.known.has(in.path, name) && w.listed < maxUnknownMembers {
			in.wrongUnknown(name, p.allowed)
			w.listed++
		}
	}
	for i := range in.body.members {
		within := *in
		name, v := in.body.members[i].name, &in.body.members[i].value
		within.pointer, within.path = in.pointer+"/"+pointerSegment(name), in.path+"/"+name
		if within.body = v; v.kind == jsonObject {
			w.object(&within)
		}
		pointer := within.pointer
		within.path += "/*"
		for at := range v.list {
			within.pointer, within.body = pointer+"/"+strconv.Itoa(at), &v.list[at]
			w.object(&within)
		}
	}
}

// wrongUnknown records an error of an unknown member, with the names that its object may have.
func (in *input) wrongUnknown(name string, allowed names) {
	if len(name) > maxUnknownName {
		name = strings.ToValidUTF8(name[:maxUnknownName], "") + "…"
	}
	allowed = append(names{}, allowed...) // a list of its own, and not null
	slices.Sort(allowed)
	*in.errs = append(*in.errs, fieldError{Pointer: in.pointer + "/" + pointerSegment(name), Code: "unknown_member",
		Detail: "There is no such member.", Allowed: allowed})
}

// pointerSegment returns a member's name as a part of a JSON pointer in a URI fragment (RFC 6901,
// section 6).
func pointerSegment(name string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
}

// moment reads a parameter of the query that is an RFC 3339 time. It returns the zero stamp if it
// is absent or wrong.
func (in *input) moment(name string) (t stamp) {
	in.parameter(name, &textCheck{format: "date-time", of: func(s string) (string, string) {
		var ok bool
		if t, ok = parseStamp(s); !ok {
			return "invalid_time", "This must be a time such as 2027-01-31T12:00:00Z."
		}
		return "", ""
	}})
	return t
}

// date reads a parameter of the query that is a calendar date, YYYY-MM-DD, from 1970 on. It
// returns the start of that day in UTC, or the zero time if it is absent or wrong.
func (in *input) date(name string) (t time.Time) {
	in.parameter(name, &textCheck{format: "date", of: func(s string) (string, string) {
		var err error
		if t, err = time.Parse(time.DateOnly, s); err != nil || t.Year() < 1970 {
			t = time.Time{}
			return "invalid_date", "This must be a date: YYYY-MM-DD."
		}
		return "", ""
	}})
	return t
}

// pageBySeq reads ?limit= and ?cursor= for a list whose cursors are made by seqCursor.
func (in *input) pageBySeq(prefix string) pageQuery {
	return in.pageOf(func(cursor string) bool {
		_, ok := parseSeqCursor(prefix, cursor)
		return ok
	})
}

// A pageQuery says which page of a list a caller asks for.
type pageQuery struct {
	limit  int    // rows of a page, 1 to 200
	before string // cursor of the page before; "": the first page is asked for
}

// page reads ?limit= and ?cursor= for a list of rows whose ids have the given prefix.
func (in *input) page(prefix string) pageQuery {
	return in.pageOf(func(cursor string) bool { return validID(prefix, cursor) })
}

// readOnlyPage returns a reader of what input.page reads, and nothing else.
func readOnlyPage(prefix string) func(*input) pageQuery {
	return func(in *input) pageQuery { return in.page(prefix) }
}

// pageOf reads ?limit= and ?cursor= for a list; valid reports whether a text is one of its cursors.
func (in *input) pageOf(valid func(cursor string) bool) pageQuery {
	p := pageQuery{limit: 50}
	// The most rows of a page; 50 if it is left out.
	in.parameter("limit", &textCheck{numbers: [2]int{1, 200}, of: func(s string) (string, string) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 200 || strconv.Itoa(n) != s {
			return "out_of_range", "This must be a number from 1 to 200."
		}
		p.limit = n
		return "", ""
	}})
	// `next_cursor` of the page before.
	p.before = in.parameter("cursor", &textCheck{of: checkedBy(valid, "invalid_cursor",
		"This is not the next_cursor of a page of this list.")})
	return p
}

// isNull reports whether a member is present and null.
func (in *input) isNull(name string) bool {
	if in.note != nil {
		in.note(reading{path: in.path, name: name, nullable: true})
		return false
	}
	v, ok := in.find(name)
	return ok && v.kind == jsonNull
}

// has reports whether a member is present. What is read only if it is may be absent.
func (in *input) has(name string) bool {
	if in.note != nil {
		in.note(reading{path: in.path, name: name, asked: true})
		return true
	}
	_, ok := in.find(name)
	return ok
}

// accountID reads ?account_id=, the account that a call acts on; see server.ownerOf.
func (in *input) accountID() string { return in.parameter("account_id", isID("acct")) }

// dryRun reads ?dry_run=, of which enact takes notice.
func (in *input) dryRun() bool {
	in.dry = in.parameter("dry_run", oneOf("true", "false")) == "true"
	return in.dry
}

// readDryRun is the reader of a route that reads nothing else.
func readDryRun(in *input) noMembers {
	in.dryRun()
	return noMembers{}
}

func (in *input) boolTerm(name string) (value, present bool) {
	if v := in.member(reading{name: name, kind: jsonBool}); v != nil {
		return v.boolean, true
	}
	return false, false
}

// amount reads a whole number, such as an amount of money, a quantity or a rate, from least to most. It
// returns 0 if it is absent or wrong.
func (in *input) amount(name string, n presence, least, most int64) int64 {
	return int64(valueOr(in.numberOf(reading{name: name, need: n, low: int(least), high: int(most)}), 0))
}

// vatRate reads a required rate of VAT.
func (in *input) vatRate(name string) int64 {
	return int64(valueOr(in.numberOf(reading{name: name, need: required, high: maxVATRate,
		unit: " of hundredths of a percent (810 is 8.1 %)"}), 0))
}

// lines reads an optional text of several lines.
func (in *input) lines(name string, max int) string {
	v := in.member(reading{name: name, kind: jsonString, high: max, lines: true})
	if v == nil {
		return ""
	}
	if code, detail := checkLines(v.text, max); code != "" {
		in.wrong(name, code, detail)
		return ""
	}
	return v.text
}

// given reports whether a member is present and not null.
func (in *input) given(name string) bool { return in.has(name) && !in.isNull(name) }

// change reads the members of a row that a caller sets: of a new one all, else those that can be changed. It records
// an error of each other one, and of each that is fixed.
func (in *input) change(row []member, isNew bool, fixed ...string) (c change) {
	for _, name := range fixed {
		row = append(row, member{name: name, atFirst: true})
	}
	for _, m := range row {
		if m.atFirst && !isNew {
			in.refuseChange(m.name)
			continue
		}
		if in.note != nil {
			in.noteMember(m, isNew)
			continue
		}
		null := in.isNull(m.name)
		_, isText := m.at.(*string)
		left := !in.has(m.name) || null && isText && isNew
		switch {
		case isNew && m.needed && left:
			in.wrong(m.name, "required", "This member is required.")
			continue
		case left, m.apart:
			continue
		case !null || !m.isNullable():
			in.readMember(m)
		}
		c = append(c, m)
	}
	return c
}

// noteMember notes a member of a row.
func (in *input) noteMember(m member, isNew bool) {
	if m.apart {
		return
	}
	_, isText := m.at.(*string)
	in.readMember(m)
	in.note(reading{path: in.path, name: m.name, asked: !isNew || !m.needed,
		nullable: m.isNullable() || isNew && isText && !m.needed && m.check != nil, need: presence(isNew && m.needed)})
}

// refuseChange records an error of a member that can't be changed, if it is there.
func (in *input) refuseChange(name string) {
	if in.note != nil {
		in.note(reading{path: in.path, name: name, fixed: true})
		return
	}
	in.noteExpected(in.path, name)
	if _, given := in.body.member(name); given {
		in.wrong(name, "immutable", "This can't be changed.")
	}
}

// readMember reads a member that is there to where its row has it.
func (in *input) readMember(m member) {
	switch at := m.at.(type) {
	case *string:
		*at = in.text(m.name, presence(m.check == nil || m.check.of == nil), m.high, m.check)
	case **string:
		if m.lines {
			*at = nilIfEmpty(in.lines(m.name, m.high))
		} else {
			*at = nilIfEmpty(in.text(m.name, optional, m.high, m.check))
		}
	case *int:
		*at = valueOr(in.number(m.name, m.low, m.high), 0)
	case **int:
		*at = in.number(m.name, m.low, m.high)
	case *bool:
		*at, _ = in.boolTerm(m.name)
	case *stamp:
		*at = in.timestamp(m.name, optional)
	case *[]string:
		*at = in.list(m)
	case *json.RawMessage:
		*at = in.anyObject(m.name, m.high)
	}
}

// list reads an array of texts.
func (in *input) list(m member) []string {
	list := in.texts(reading{name: m.name, low: m.low, high: m.high, each: m.each, check: m.check})
	if m.checkList != nil {
		m.checkList(list, func(at int, code, detail string) {
			if list[at] != "" { // in.texts has already reported an empty one
				in.wrong(fmt.Sprintf("%s/%d", m.name, at), code, detail)
			}
		})
	}
	return list
}

// anyObject reads an object of at most max bytes whose members may have any name.
func (in *input) anyObject(name string, max int) json.RawMessage {
	v := in.member(reading{name: name, kind: jsonObject, each: -1})
	switch {
	case v == nil:
		return nil
	case len(v.raw) > max:
		in.wrong(name, "too_long", fmt.Sprintf("This has more than %d KiB.", max>>10))
	case v.hasControlCharacter():
		in.wrong(name, "control_character", "This must not contain control characters.")
	}
	return json.RawMessage(v.raw)
}

// readBody reads and parses the body. It refuses a wrong type (415), size (413) or syntax (400).
// On a route whose members may all be absent it reads an empty body of any type as {}.
func (c *call) readBody() error {
	r := c.request
	if c.core.route.noBody && r.ContentLength == 0 {
		c.core.body, c.core.parsed = []byte("{}"), jsonValue{kind: jsonObject}
		return nil
	}
	// Several lines of a header mean the same as a list, which neither of these may be.
	kind := strings.Join(r.Header["Content-Type"], ", ")
	coding := strings.Join(r.Header["Content-Encoding"], ", ")
	plain := slices.Contains([]string{"", "identity"}, strings.ToLower(coding))
	if !plain || !c.acceptsContentType(kind) {
		c.response.Header().Set("Accept", c.core.route.bodyType())
		return &refusal{code: codeMediaType}
	}
	if _, err := c.receive(); err != nil {
		return err
	}
	return c.parse()
}

const firstRead = 512 // bytes of a body that are read first, then twice as many each time

// receive reads the bytes of the body, for which memory is held as they arrive: announcing some takes none. Errors: a
// refusal (413, 400), errHeld; the connection is closed then, since net/http would read the rest before it answers.
func (c *call) receive() (body []byte, err error) {
	limit := int(c.core.route.bodyLimit())
	tooLarge := c.request.ContentLength > int64(limit)
	for !tooLarge && err == nil {
		n := len(c.core.body)
		if n == cap(c.core.body) {
			size := min(max(firstRead, 2*n), limit+1)
			if err = c.core.held.set(int64(size)); err != nil {
				break
			}
			c.core.body = append(make([]byte, 0, size), c.core.body...)
		}
		n, err = c.request.Body.Read(c.core.body[n:cap(c.core.body)])
		c.core.body = c.core.body[:len(c.core.body)+n]
		tooLarge = len(c.core.body) > limit
	}
	switch {
	case tooLarge:
		err = &refusal{code: codeBodySize, detail: fmt.Sprintf("The body has more than %d KiB.", limit>>10)}
	case err == io.EOF:
		return c.core.body, nil
	case err != errHeld:
		err = &refusal{code: codeMalformedJSON, detail: "The body ended early."}
	}
	c.response.Header().Set("Connection", "close")
	return nil, err
}

// parse parses the body, for which memory is held until finish; if the route reads later, until the answer. Errors: a
// refusal (400, 422), errHeld.
func (c *call) parse() (err error) {
	values, most := 1, cmp.Or(c.core.route.values, maxBodyValues)
	for _, before := range []byte(",[{&") { // a value or a field
		values += bytes.Count(c.core.body, []byte{before})
	}
	if err := c.core.held.set(2*int64(len(c.core.body)) + int64(min(values, most))*memberMemory); err != nil {
		return err
	}
	if c.core.route.takesForm() {
		c.core.parsed, err = parseForm(c.core.body, cmp.Or(c.core.route.values, maxFields))
		return err
	}
	if c.core.parsed, err = parseBody(c.core.body, most); err != nil {
		return &refusal{code: codeMalformedJSON, detail: "The body can't be read: " + err.Error() + "."}
	}
	return nil
}

// takesForm reports whether bodies are forms.
func (rt *route) takesForm() bool { return rt.form != "" || rt.page != "" }

// takesBody reports whether requests have a body, which is parsed as a form or as JSON.
func (rt *route) takesBody() bool {
	return slices.Contains([]string{"POST", "PATCH", "PUT"}, rt.method()) && !rt.raw
}

// takesJSON reports whether requests have a body, which is parsed as JSON.
func (rt *route) takesJSON() bool { return rt.takesBody() && !rt.takesForm() }

// formMediaType is the Content-Type of forms.
const formMediaType = "application/x-www-form-urlencoded"

// bodyType returns the Content-Type of bodies.
func (rt *route) bodyType() string {
	if rt.takesForm() {
		return formMediaType
	}
	return "application/json"
}

// acceptsContentType reports whether a Content-Type is the route's, in UTF-8, or for a beacon plain
// text in UTF-8.
func (c *call) acceptsContentType(contentType string) bool {
	want := c.core.route.bodyType()
	if contentType == want { // the common case
		return true
	}
	kind, params, err := mime.ParseMediaType(contentType)
	charset, hasCharset := params["charset"]
	return err == nil && (kind == want || kind == "text/plain" && c.core.route.beacon) &&
		(!hasCharset || strings.EqualFold(charset, "utf-8"))
}
