package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON is parsed here and not by encoding/json, which accepts duplicate members, names in
// another case, invalid UTF-8 and text after the value. Two readers of one body or token must
// never see different values in it, so this parser accepts RFC 8259 with the restrictions of
// I-JSON (RFC 7493) and nothing else.

// A jsonKind is the type of a JSON value.
type jsonKind uint8

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

var jsonKindNames = [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}

// String returns the kind with its article, for sentences: "a number".
func (k jsonKind) String() string { return jsonKindNames[k] }

// A jsonValue is a parsed JSON value. Only the fields of its kind are set.
type jsonValue struct {
	kind    jsonKind
	boolean bool         // of a boolean
	text    string       // of a string, without quotes and escapes; of a number, as it was written
	list    []jsonValue  // elements of an array
	members []jsonMember // of an object, in the order of the text
	raw     string       // text of an object, as it was written; of an array too while it is unread
	unread  bool         // list and members are not built yet: see open
}

// A jsonMember is a member of an object.
type jsonMember struct {
	name  string
	value jsonValue
}

// open builds the members of an object or the elements of an array that parseBody has checked and skipped. What
// is inside these stays unread.
func (v *jsonValue) open() {
	if v.unread {
		p := jsonParser{text: v.raw, lazy: true, left: math.MaxInt}
		*v, _ = p.value(0, true) // parseBody has found nothing wrong in it
	}
}

// member returns the value of the object's member with exactly that name.
func (v *jsonValue) member(name string) (*jsonValue, bool) {
	v.open()
	for i := range v.members {
		if v.members[i].name == name {
			return &v.members[i].value, true
		}
	}
	return nil, false
}

// integer returns a number that is written as an integer and fits into an int64.
func (v *jsonValue) integer() (int64, bool) {
	if v.kind != jsonNumber {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

// textMember returns a member of an object that is a text of at most max bytes without control characters;
// "" for anything else.
func textMember(v *jsonValue, name string, max int) string {
	m, ok := v.member(name)
	if !ok || m.kind != jsonString || len(m.text) > max || strings.IndexFunc(m.text, unicode.IsControl) >= 0 {
		return ""
	}
	return m.text
}

// rawMember returns a member that is a string, whatever it contains; "" for anything else.
func rawMember(v *jsonValue, name string) string {
	if m, ok := v.member(name); ok && m.kind == jsonString {
		return m.text
	}
	return ""
}

// integerMember returns a member of an object that is an integer. v may be nil.
func integerMember(v *jsonValue, name string) (int64, bool) {
	if v == nil {
		return 0, false
	}
	m, ok := v.member(name)
	if !ok {
		return 0, false
	}
	return m.integer()
}

// trueMember reports whether a member of an object is true.
func trueMember(v *jsonValue, name string) bool {
	m, ok := v.member(name)
	return ok && m.kind == jsonBool && m.boolean
}

const (
	memberMemory      = 2 * 96 // bytes that a member of an object takes at most, in a list that grows by doubling
	maxJSONDepth      = 8
	maxScannedMembers = 16 // in larger objects a set finds duplicate names faster than a scan
)

// parseJSON parses a text that is one JSON object: in UTF-8, without duplicate member names,
// nested at most maxJSONDepth deep, surrounded by nothing but white space. Its errors say what
// is wrong and at which byte, and quote nothing of the text.
func parseJSON(text []byte) (jsonValue, error) {
	return (&jsonParser{text: string(text), left: math.MaxInt}).document()
}

// parseBody is parseJSON for the body of a request, which may come from anybody: it refuses a body with more than
// most values (of members and elements, at any depth), and builds only the members of the outermost object. What
// is inside these is checked as well, but built only on demand (open), so that unknown members cost nothing.
func parseBody(text []byte, most int) (jsonValue, error) {
	return (&jsonParser{text: string(text), lazy: true, left: most + 1}).document() // plus one for the object
}

// documentDepth is how deep the OpenAPI document may be nested; what clients send, maxJSONDepth.
const documentDepth = 64

// parseDocument is parseJSON for the OpenAPI document.
func parseDocument(text string) (jsonValue, error) {
	p := &jsonParser{text: text, left: math.MaxInt}
	return p.value(maxJSONDepth-documentDepth, true)
}

// at returns the member that a path of names leads to; null if there is none.
func (v *jsonValue) at(names ...string) *jsonValue {
	for _, name := range names {
		next, ok := v.member(name)
		if !ok {
			return &jsonValue{}
		}
		v = next
	}
	return v
}

// A jsonParser reads one text. Values that it returns are parts of the text, which is not copied again.
type jsonParser struct {
	text string
	pos  int  // index of the next byte
	left int  // how many values there may be from here on
	lazy bool // build the outermost value only
}

// document parses the whole text.
func (p *jsonParser) document() (jsonValue, error) {
	if !utf8.ValidString(p.text) {
		return jsonValue{}, errors.New("the text is not valid UTF-8")
	}
	p.space()
	if p.peek() != '{' {
		return jsonValue{}, errors.New("the text is not a JSON object")
	}
	v, err := p.value(0, true)
	if err != nil {
		return jsonValue{}, err
	}
	p.space()
	if p.pos < len(p.text) {
		return jsonValue{}, p.syntaxError("there is more text after the object")
	}
	return v, nil
}

func (p *jsonParser) syntaxError(what string) error {
	return fmt.Errorf("%s, at byte %d", what, p.pos)
}

// peek returns the next byte, or 0 at the end. No rule accepts a NUL byte in the text, so the
// two need not be told apart.
func (p *jsonParser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

// space skips white space.
func (p *jsonParser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// value parses any value that is nested in depth arrays and objects. Unless build is set, of an array or an object
// it returns only the kind and the text.
func (p *jsonParser) value(depth int, build bool) (jsonValue, error) {
	if p.left--; p.left < 0 {
		return jsonValue{}, p.syntaxError("there are too many values")
	}
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth == maxJSONDepth {
			return jsonValue{}, p.syntaxError("the text is nested more than 8 levels deep")
		}
		start := p.pos
		if c == '[' {
			v, err := p.array(depth+1, build)
			if !build {
				v.raw, v.unread = p.text[start:p.pos], true
			}
			return v, err
		}
		v, err := p.object(depth+1, build)
		v.raw, v.unread = p.text[start:p.pos], !build
		return v, err
	case c == '"':
		s, err := p.string()
		return jsonValue{kind: jsonString, text: s}, err
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case p.word("null"):
		return jsonValue{}, nil
	case p.word("true"):
		return jsonValue{kind: jsonBool, boolean: true}, nil
	case p.word("false"):
		return jsonValue{kind: jsonBool}, nil
	}
	return jsonValue{}, p.syntaxError("a value is missing or not JSON")
}

// word skips a word if it comes next.
func (p *jsonParser) word(word string) bool {
	if !strings.HasPrefix(p.text[p.pos:], word) {
		return false
	}
	p.pos += len(word)
	return true
}

// object parses an object, from its brace on.
func (p *jsonParser) object(depth int, build bool) (jsonValue, error) {
	v := jsonValue{kind: jsonObject}
	var few [maxScannedMembers]string
	names := memberNames{few: few[:0]}
	p.pos++
	for first := true; ; first = false {
		if p.space(); p.peek() == '}' {
			p.pos++
			return v, nil
		}
		if !first {
			if p.peek() != ',' {
				return v, p.syntaxError("a comma or the object's end is missing")
			}
			p.pos++
			p.space()
		}
		if p.peek() != '"' {
			return v, p.syntaxError("a member's name is missing")
		}
		name, err := p.string()
		if err != nil {
			return v, err
		}
		if !names.add(name) {
			return v, p.syntaxError("a member appears twice")
		}
		p.space()
		if p.peek() != ':' {
			return v, p.syntaxError("a colon is missing")
		}
		p.pos++
		p.space()
		member, err := p.value(depth, build && !p.lazy)
		if err != nil {
			return v, err
		}
		if build {
			v.members = append(v.members, jsonMember{name, member})
		}
	}
}

// memberNames are the names of an object's members so far.
type memberNames struct {
	few  []string
	many map[string]bool // all of them; nil: few enough to scan
}

// add adds a name, and reports whether it is a new one.
func (n *memberNames) add(name string) bool {
	if n.many != nil {
		before := len(n.many)
		n.many[name] = true
		return len(n.many) > before
	}
	if slices.Contains(n.few, name) {
		return false
	}
	if n.few = append(n.few, name); len(n.few) == maxScannedMembers {
		n.many = make(map[string]bool, 2*maxScannedMembers)
		for _, earlier := range n.few {
			n.many[earlier] = true
		}
	}
	return true
}

// array parses an array, from its bracket on.
func (p *jsonParser) array(depth int, build bool) (jsonValue, error) {
	v := jsonValue{kind: jsonArray}
	p.pos++
	for first := true; ; first = false {
		if p.space(); p.peek() == ']' {
			p.pos++
			return v, nil
		}
		if !first {
			if p.peek() != ',' {
				return v, p.syntaxError("a comma or the array's end is missing")
			}
			p.pos++
			p.space()
		}
		element, err := p.value(depth, build && !p.lazy)
		if err != nil {
			return v, err
		}
		if build {
			v.list = append(v.list, element)
		}
	}
}

// number parses a number by the grammar of RFC 8259, section 6.
func (p *jsonParser) number() (jsonValue, error) {
	start := p.pos
	digits := func() int {
		n := 0
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.pos++
			n++
		}
		return n
	}
	if p.peek() == '-' {
		p.pos++
	}
	zero := p.peek() == '0'
	n := digits()
	ok := n == 1 || n > 1 && !zero
	if ok && p.peek() == '.' {
		p.pos++
		ok = digits() > 0
	}
	if c := p.peek(); ok && (c == 'e' || c == 'E') {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		ok = digits() > 0
	}
	if !ok {
		return jsonValue{}, p.syntaxError("a number is malformed")
	}
	return jsonValue{kind: jsonNumber, text: p.text[start:p.pos]}, nil
}

// string parses a string, from its quote on.
func (p *jsonParser) string() (string, error) {
	p.pos++
	start := p.pos
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == '"':
			s := p.text[start:p.pos]
			p.pos++
			return s, nil
		case c == '\\':
			return p.stringWithEscapes(start)
		case c < ' ':
			return "", p.syntaxError("a string contains a control character")
		default:
			p.pos++
		}
	}
	return "", p.syntaxError("a string is not closed")
}

// stringWithEscapes parses the rest of a string from its first backslash on. start is the
// index of the string's first character.
func (p *jsonParser) stringWithEscapes(start int) (string, error) {
	var b strings.Builder
	b.WriteString(p.text[start:p.pos])
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case c == '"':
			p.pos++
			return b.String(), nil
		case c < ' ':
			return "", p.syntaxError("a string contains a control character")
		case c != '\\':
			b.WriteByte(c)
			p.pos++
			continue
		}
		p.pos++
		short := strings.IndexByte(`"\/bfnrt`, p.peek())
		switch {
		case p.pos == len(p.text):
			return "", p.syntaxError("a string is not closed")
		case p.text[p.pos] == 'u':
			r, err := p.unicodeEscape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case short >= 0:
			b.WriteByte("\"\\/\b\f\n\r\t"[short])
			p.pos++
		default:
			return "", p.syntaxError("an escape is malformed")
		}
	}
	return "", p.syntaxError("a string is not closed")
}

// unicodeEscape parses the uXXXX of an escape, and the whole second escape of a surrogate pair.
func (p *jsonParser) unicodeEscape() (rune, error) {
	hex := func() (rune, bool) {
		if p.pos+5 > len(p.text) || p.text[p.pos] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(p.text[p.pos+1:p.pos+5], 16, 16)
		p.pos += 5
		return rune(n), err == nil
	}
	r, ok := hex()
	if !ok {
		return 0, p.syntaxError("an escape is malformed")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if p.peek() == '\\' {
		p.pos++
		if second, ok := hex(); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, p.syntaxError("an escape is only half of a surrogate pair")
}

// A jsonAppender appends its own JSON to b, without reflection.
type jsonAppender interface{ appendJSON(b []byte) []byte }

// appendMember appends a comma, a member's name and its value, a string.
func appendMember(b []byte, name, value string) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	return appendString(b, value)
}

// appendUnescaped is like appendMember, for values that never need an escape because this
// program made them: ids, codes, tokens.
func appendUnescaped(b []byte, name, value string) []byte {
	b = append(append(append(b, `,"`...), name...), `":"`...)
	return append(append(b, value...), '"')
}

// appendOptional is like appendMember, and appends null for nil.
func appendOptional(b []byte, name string, value *string) []byte {
	if value != nil {
		return appendMember(b, name, *value)
	}
	return append(append(append(b, `,"`...), name...), `":null`...)
}

// appendOptionalInt appends a number, or null for nil.
func appendOptionalInt(b []byte, n *int) []byte {
	if n == nil {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, int64(*n), 10)
}

// appendString appends a string as encoding/json encodes it with SetEscapeHTML(false).
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return append(b, strings.TrimSuffix(string(encodeJSON(s)), "\n")...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// encodeJSON returns v as JSON, followed by a line break. It panics for a type that can't be
// encoded, which is a mistake in this program.
func encodeJSON(v any) []byte {
	if a, ok := v.(jsonAppender); ok {
		return append(a.appendJSON(nil), '\n')
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// hasControlCharacter reports whether a string anywhere in the value, or the name of a
// member, contains a control character.
func (v *jsonValue) hasControlCharacter() bool {
	v.open()
	if v.kind == jsonString && strings.IndexFunc(v.text, unicode.IsControl) >= 0 {
		return true
	}
	for i := range v.list {
		if v.list[i].hasControlCharacter() {
			return true
		}
	}
	for i := range v.members {
		m := &v.members[i]
		if strings.IndexFunc(m.name, unicode.IsControl) >= 0 || m.value.hasControlCharacter() {
			return true
		}
	}
	return false
}

// A member is a column of a row that callers may set, and that is called so in JSON, too. The members of a row are
// listed once. From the list come the columns of the table, what is read of a request or of a row of CSV, what a change
// alters, and the data of its event.
type member struct {
	name string // "max_devices"

	// at is where the row has the value. A *string is never empty; in a new row null counts as left out. A **string,
	// **int or *stamp may be null. Others are *int, *bool, *[]string and *json.RawMessage (an object).
	at any

	needed     bool       // a new row must have it
	atFirst    bool       // it is set when the row is made, and can't be changed
	apart      bool       // the noun reads it itself
	hasDefault bool       // null stands for its default, which the noun sets where the value is 0
	low, high  int        // of a number; of a list how many elements; high of a text: the most characters
	each       int        // of a list: the most characters of an element
	check      *textCheck // of a text, beside its length; nil: none
	checkList  listCheck  // of a list, beside the lengths; nil: none
	lines      bool       // a text of several lines
	private    bool       // events name it, but leave its values out
}

// A listCheck checks the elements of a list, and calls wrong for each that is wrong, with its index, and the code and
// the detail of a fieldError.
type listCheck func(list []string, wrong func(at int, code, detail string))

// isNullable reports whether a caller may set the member to null.
func (m *member) isNullable() bool {
	switch m.at.(type) {
	case **string, **int, *stamp:
		return true
	}
	return m.hasDefault
}

// A change lists the members that a caller sets, with their values.
type change []member

// has reports whether the change sets a member.
func (c change) has(name string) bool {
	return slices.ContainsFunc(c, func(m member) bool { return m.name == name })
}

// apply gives the members of a row the values that the change sets. The row must have them all.
func (c change) apply(row []member) {
	for _, m := range c {
		of := slices.IndexFunc(row, func(other member) bool { return other.name == m.name })
		reflect.ValueOf(row[of].at).Elem().Set(reflect.ValueOf(m.at).Elem())
	}
}

// A difference lists the members in which a row has been changed.
type difference struct {
	names    []string                   // sorted
	from, to map[string]json.RawMessage // values before and after, without those of private members
}

// differenceOf compares the members of a row before and after a change.
func differenceOf(before, after []member) difference {
	d := difference{from: map[string]json.RawMessage{}, to: map[string]json.RawMessage{}}
	for i, m := range after {
		was, is := bytes.TrimSpace(encodeJSON(before[i].at)), bytes.TrimSpace(encodeJSON(m.at))
		if bytes.Equal(was, is) {
			continue
		}
		if d.names = append(d.names, m.name); !m.private {
			d.from[m.name], d.to[m.name] = was, is
		}
	}
	slices.Sort(d.names)
	return d
}

// text returns the names, separated by spaces: "expires_at max_devices".
func (d difference) text() string { return strings.Join(d.names, " ") }

// data returns the difference as the data of an event.
func (d difference) data() json.RawMessage {
	return bytes.TrimSpace(encodeJSON(map[string]any{"changed": d.text(), "from": d.from, "to": d.to}))
}

// A dryAnswer is in what routes with ?dry_run= answer.
type dryAnswer struct {
	DryRun bool `json:"dry_run,omitempty"` // `true`: nothing was done, since the request had `dry_run`.
}

// A dryEnd is in what is answered to a dry run of a DELETE.
type dryEnd struct {
	dryAnswer

	// In a dry run, how many others would end with it: `events` that wait, `exports`, `grants`, `webhooks`.
	Ends map[string]int64 `json:"ends,omitempty"`
}

// dryEndOf returns a dryEnd with one count.
func dryEndOf(kind string, n int) dryEnd {
	return dryEnd{dryAnswer{true}, map[string]int64{kind: int64(n)}}
}
