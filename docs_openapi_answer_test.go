package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var genericList = regexp.MustCompile(`^list\[\*?[\w./-]*?\.?(\w+)\]$`)

// nameOf returns the name of a type's schema.
func (m *openapiMaker) nameOf(t reflect.Type) string {
	if found := genericList.FindStringSubmatch(t.Name()); found != nil && schemaNames["list of "+found[1]] != "" {
		return schemaNames["list of "+found[1]]
	} else if found != nil {
		return cmp.Or(schemaNames[found[1]], capitalized(found[1])) + "Page"
	}
	return cmp.Or(schemaNames[t.Name()], capitalized(t.Name()))
}

// share finds the struct types that answers have, and which of them have a schema of their own: all but those that are
// embedded only.
func (m *openapiMaker) share(t reflect.Type, embedded bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[route]().PkgPath() || m.shared[t] || isTextType(t) {
		return
	}
	if !embedded {
		m.shared[t] = t.Name() != ""
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if tag := f.Tag.Get("json"); f.Anonymous || tag != "" && tag != "-" {
			m.share(f.Type, f.Anonymous)
		}
	}
}

// isTextType reports whether a struct type is a text in JSON.
func isTextType(t reflect.Type) bool { return t == reflect.TypeFor[stamp]() }

// answerSchema returns the schema of a type of Go in an answer. of says what its member's tag has: is, a format or
// the prefix of an id, ^ and a pattern, = and the only value, a type of m.words, the type of what was encoded, or
// texts, of an object of any; least and most, of a number, of the length of a text, or of a list.
func (m *openapiMaker) answerSchema(t reflect.Type, of reflect.StructTag) *jsonValue {
	if t == reflect.TypeFor[stamp]() {
		return jsonObjectOf("type", "string", "format", "date-time")
	}
	if t.String() == "json.RawMessage" {
		for shown := range m.shared {
			if shown.Name() == of.Get("is") {
				return m.answerSchema(shown, "")
			}
		}
		s := jsonObjectOf("type", "object", "additionalProperties", true)
		if of.Get("is") == "texts" {
			s.set("additionalProperties", jsonObjectOf("type", "string"))
		}
		return s
	}
	if words := m.words[t]; words != nil {
		s := jsonObjectOf("type", "string", "enum", jsonTexts(words...), "description", m.typeComment(t.Name()))
		if nullWord.MatchString(m.typeComment(t.Name())) {
			allowNull(s)
		}
		m.addSchema(m.nameOf(t), s)
		return refTo("schemas", m.nameOf(t))
	}
	switch t.Kind() {
	case reflect.Pointer:
		if of.Get("is") == "=null" {
			return jsonObjectOf("type", "null")
		}
		return m.answerSchema(t.Elem(), of)
	case reflect.Bool:
		s := jsonObjectOf("type", "boolean")
		if only, has := strings.CutPrefix(of.Get("is"), "="); has {
			s.set("enum", jsonListOf(jsonBoolOf(only == "true")))
		}
		return s
	case reflect.Int, reflect.Int64:
		s := jsonObjectOf("type", "integer", "format", "int64")
		if least := cmp.Or(of.Get("least"), "0"); least != "-" {
			s.set("minimum", &jsonValue{kind: jsonNumber, text: least})
		}
		if most := of.Get("most"); most != "" {
			s.set("maximum", &jsonValue{kind: jsonNumber, text: most})
		}
		return s
	case reflect.Float64:
		return jsonObjectOf("type", "number")
	case reflect.String:
		for words := range m.words {
			if words.Name() == of.Get("is") {
				return m.answerSchema(words, "")
			}
		}
		return withLengths(answerText(of.Get("is")), of)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 { // which marshals itself
			return answerText(of.Get("is"))
		}
		each := reflect.StructTag(fmt.Sprintf("is:%q", of.Get("is")))
		s := jsonObjectOf("type", "array", "items", m.answerSchema(t.Elem(), each))
		if most := of.Get("most"); most != "" {
			s.set("maxItems", &jsonValue{kind: jsonNumber, text: most})
		}
		return s
	case reflect.Map:
		return jsonObjectOf("type", "object", "additionalProperties", m.answerSchema(t.Elem(), of))
	case reflect.Struct:
		if t.Name() == "" {
			return m.structSchema(t)
		}
		if key := "schemas " + m.nameOf(t); m.made[key] == nil {
			m.made[key] = jsonObjectOf() // a type may contain itself
			m.made[key] = m.structSchema(t)
		}
		return refTo("schemas", m.nameOf(t))
	}
	m.t.Errorf("the type %s has no schema", t)
	return jsonObjectOf()
}

// withLengths adds the lengths that a tag has to the schema of a text, and returns it.
func withLengths(s *jsonValue, of reflect.StructTag) *jsonValue {
	for _, keyword := range [][2]string{{"least", "minLength"}, {"most", "maxLength"}} {
		if n := of.Get(keyword[0]); n != "" {
			s.set(keyword[1], &jsonValue{kind: jsonNumber, text: n})
		}
	}
	return s
}

// formatsOfText are formats of JSON Schema.
var formatsOfText = []string{"date", "date-time", "uri", "email"}

// answerText returns the schema of a text, see answerSchema.
func answerText(is string) *jsonValue {
	s := jsonObjectOf("type", "string")
	only, one := strings.CutPrefix(is, "=")
	switch {
	case is == "":
	case one:
		s.set("enum", jsonTexts(strings.Split(only, "|")...))
	case slices.Contains(formatsOfText, is):
		s.set("format", jsonTextOf(is))
	case is[0] == '^':
		s.set("pattern", jsonTextOf(is))
	default:
		s.set("pattern", jsonTextOf(idPattern(is)))
	}
	return s
}

// structSchema returns the schema of a struct. One that embeds a type with a schema of its own is all of that, and
// more.
func (m *openapiMaker) structSchema(t reflect.Type) *jsonValue {
	name := t.Name()
	if i := strings.IndexByte(name, '['); i >= 0 {
		name = name[:i]
	}
	says := m.typeComment(name)
	if t.Name() != "" && says == "" {
		m.t.Errorf("the type %s has no comment, which the document shows", t.Name())
	}
	if name == "list" {
		says = "A page of a list."
	}
	needed, properties, parts, open := []string{}, jsonObjectOf(), []*jsonValue{}, false
	var add func(t reflect.Type, of string)
	add = func(t reflect.Type, of string) {
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous {
				e := f.Type
				if e.Kind() == reflect.Pointer {
					e = e.Elem()
				}
				if of == name && m.shared[e] && !slices.Contains(flattened, name) {
					parts = append(parts, m.answerSchema(e, ""))
				} else {
					add(e, e.Name())
				}
				continue
			}
			member, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			open = open || f.Tag.Get("is") == "open"
			if _, hidden := properties.member(member); hidden || member == "" || member == "-" {
				continue
			}
			if !strings.Contains(options, "omit") {
				needed = append(needed, member)
			}
			if i := strings.IndexByte(of, '['); i >= 0 {
				of = of[:i]
			}
			properties.set(member, m.answerMember(f, of, member))
		}
	}
	add(t, name)
	s := jsonObjectOf()
	if len(parts) == 0 || says != "" {
		s.set("type", jsonTextOf("object"))
	}
	if says != "" {
		s.set("description", jsonTextOf(says))
	}
	own := s
	if len(parts) > 0 {
		own = jsonObjectOf("type", "object")
		s = jsonObjectOf("description", says)
	}
	if len(needed) > 0 {
		own.set("required", jsonTexts(needed...))
	}
	own.set("properties", properties)
	if open { // it has a field _ that says so
		own.set("additionalProperties", jsonBoolOf(true))
	}
	if nullWord.MatchString(says) && len(parts) == 0 {
		allowNull(s)
	}
	if len(parts) > 0 {
		s.set("allOf", jsonListOf(append(parts, own)...))
	}
	return s
}

// nullWord begins what a comment says of null: the member may be that.
var nullWord = regexp.MustCompile("(^|[^a-z])null`?:")

// answerMember describes a member of an answer.
func (m *openapiMaker) answerMember(f reflect.StructField, of, member string) *jsonValue {
	says := m.src.field(of, member)
	if says == "" {
		m.t.Errorf("the member %s of %s has no comment, which the document shows", member, of)
	}
	as := f.Type
	if stored := storedTypes[of+"."+member]; stored != nil {
		as = stored
	}
	s := m.answerSchema(as, f.Tag)
	if ref, isRef := s.member("$ref"); isRef {
		to := m.made["schemas "+ref.text[strings.LastIndexByte(ref.text, '/')+1:]]
		if !nullWord.MatchString(says) || to.at("type").kind == jsonArray { // it is nullable itself
			return s
		}
		if words, isWords := to.member("enum"); isWords {
			list := slices.Concat(words.list, []jsonValue{{}})
			return jsonObjectOf("type", jsonTexts("string", "null"), "enum", &jsonValue{kind: jsonArray, list: list},
				"description", says)
		}
		return jsonObjectOf("anyOf", jsonListOf(s, jsonObjectOf("type", "null")), "description", says)
	}
	if nullWord.MatchString(says) {
		allowNull(s)
	}
	s.set("description", jsonTextOf(says))
	return s
}

// allowNull has a schema of one type allow null, too.
func allowNull(s *jsonValue) {
	s.set("type", jsonTexts(s.at("type").text, "null"))
	if words, has := s.member("enum"); has {
		words.list = append(words.list, jsonValue{})
	}
}

// responses describes what a route answers.
func (m *openapiMaker) responses(rt *route, id string) *jsonValue {
	all := map[string]*jsonValue{}
	status, kind := success(rt)
	all[status] = jsonObjectOf("description", m.saysOfAnswer(rt))
	all[status].set("headers", m.headers(rt, status, nil))
	m.addContent(all[status], rt, id, status, kind)
	if isTagged(rt) {
		all["304"] = jsonObjectOf("description", "The answer that the caller has is current.",
			"headers", m.headers(rt, "304", nil))
	}
	if rt.answers.also != 0 {
		also := strconv.Itoa(rt.answers.also)
		all[also] = jsonObjectOf("description", m.saysOfAnswer(rt), "x-headers", m.headers(rt, status, nil))
		m.addContent(all[also], rt, id, also, kind)
	}
	if rt.answers.empty != 0 && rt.endpoint.known().has(inQuery, "dry_run") {
		all["200"] = jsonObjectOf("description", "With `dry_run`: what would end.",
			"headers", m.headers(rt, "200", nil))
		m.addContent(all["200"], rt, id, "200", "application/json")
	}
	if rt.form != "" { // whose refusals are no problems, but as its standard has them
		for _, r := range m.byHand(rt, "responses").members {
			if r.name != status {
				all[r.name] = &r.value
			}
		}
		all[status].set("headers", m.byHand(rt, "responses", status, "headers"))
		return inOrder(all)
	}
	codes := map[string][]string{}
	for _, name := range m.refusalsOf(rt) {
		c := m.problems[name]
		if c == nil {
			m.t.Errorf("%s refuses with %s, which is no problem", rt.pattern, name)
			continue
		}
		if of := strconv.Itoa(c.status); all[of] == nil {
			codes[of] = append(codes[of], name)
		}
	}
	for status, names := range codes {
		all[status] = m.refusal(rt, id, status, names)
	}
	return inOrder(all)
}

// byHand returns what the file that is written by hand says of a route.
func (m *openapiMaker) byHand(rt *route, names ...string) *jsonValue {
	return m.hand.at(append([]string{"paths", rt.path(), strings.ToLower(rt.method())}, names...)...)
}

// inOrder makes an object of responses by their statuses.
func inOrder(all map[string]*jsonValue) *jsonValue {
	out := jsonObjectOf()
	for _, status := range slices.Sorted(maps.Keys(all)) {
		out.set(status, all[status])
	}
	return out
}

// addContent adds to a response what a route answers, of a kind; "": nothing.
func (m *openapiMaker) addContent(to *jsonValue, rt *route, id, status, kind string) {
	if kind != "" {
		s := jsonObjectOf("type", "string")
		if strings.HasSuffix(kind, "json") {
			s = m.answerSchema(rt.endpoint.answer, "")
		}
		if others := rt.endpoint.others; others != nil {
			either := []*jsonValue{s}
			for _, t := range others {
				either = append(either, m.answerSchema(t, ""))
			}
			s = jsonObjectOf("oneOf", jsonListOf(either...))
		}
		media := jsonObjectOf("schema", s)
		if examples := m.examples.at(id, status); len(examples.members) > 0 {
			media.set("examples", examples)
		} else {
			m.t.Errorf("there is no example of an answer of %s", id)
		}
		to.set("content", jsonObjectOf(kind, media))
	}
}

// success returns the status of a route's answer, and its type; "": none.
func success(rt *route) (status, kind string) {
	if rt.answers.empty != 0 {
		return strconv.Itoa(rt.answers.empty), ""
	}
	return "200", cmp.Or(rt.answers.media, "application/json")
}

// typeComment returns what is said of a type; "": nothing.
func (m *openapiMaker) typeComment(name string) string {
	if m.src.unnamed[name] && m.src.types[name] != "" {
		m.t.Errorf("the comment of the type %s does not begin with %q, as the document needs it", name, "A "+name+" is")
	}
	return m.src.types[name]
}

// saysOfAnswer returns the description of a route's answer: the first sentence on its type or, of a text, what it is.
func (m *openapiMaker) saysOfAnswer(rt *route) string {
	t := rt.endpoint.answer
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch kind := cmp.Or(rt.answers.media, "application/json"); {
	case rt.answers.empty != 0:
		return "Done. The answer has no body."
	case strings.HasPrefix(kind, "image/"):
		return "The picture."
	case !strings.HasSuffix(kind, "json"):
		return "The text."
	case genericList.MatchString(t.Name()):
		return "A page of the list."
	}
	first, _, _ := strings.Cut(m.typeComment(t.Name()), ". ")
	return strings.TrimSuffix(first, ".") + "."
}
