package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// encoding/json takes a member twice, in another case, with broken UTF-8 and with
// more text behind it. Here two readers must never see different values in one
// body or token, so this parser takes RFC 8259 with I-JSON's rules (RFC 7493) and
// nothing else.

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

func (k jsonKind) String() string { return jsonKindNames[k] }

// A jsonValue is a parsed value. text holds a string's characters or a number's
// digits; list an array's elements; members an object's, in their order.
type jsonValue struct {
	kind    jsonKind
	boolean bool
	text    string
	list    []jsonValue
	members []jsonMember
	raw     []byte // an object as it was written
}

type jsonMember struct {
	name  string
	value jsonValue
}

// member returns the object's member of exactly that name.
func (v *jsonValue) member(name string) (*jsonValue, bool) {
	for i := range v.members {
		if v.members[i].name == name {
			return &v.members[i].value, true
		}
	}
	return nil, false
}

// integer returns a number that is a whole one and fits.
func (v *jsonValue) integer() (int64, bool) {
	if v.kind != jsonNumber {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

const (
	maxJSONDepth      = 8
	maxScannedMembers = 16 // above that a set finds duplicates faster than a scan
)

// parseJSON reads one object, nothing before it but white space and nothing after
// it, no member twice, UTF-8, at most eight deep. Its errors say what is wrong
// and where, and repeat nothing of the text.
func parseJSON(text []byte) (jsonValue, error) {
	p := jsonParser{text: text}
	if !utf8.Valid(text) {
		return jsonValue{}, errors.New("the text is not valid UTF-8")
	}
	p.space()
	if p.peek() != '{' {
		return jsonValue{}, errors.New("the text is not a JSON object")
	}
	v, err := p.value(0)
	if err != nil {
		return jsonValue{}, err
	}
	p.space()
	if p.pos < len(p.text) {
		return jsonValue{}, p.syntaxError("there is more text after the object")
	}
	return v, nil
}

type jsonParser struct {
	text []byte
	pos  int
}

func (p *jsonParser) syntaxError(what string) error {
	return fmt.Errorf("%s, at byte %d", what, p.pos)
}

// peek returns the next byte, 0 at the end; a real NUL is an error everywhere.
func (p *jsonParser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *jsonParser) space() {
	for p.pos < len(p.text) && (p.text[p.pos] == ' ' || p.text[p.pos] == '\t' || p.text[p.pos] == '\n' || p.text[p.pos] == '\r') {
		p.pos++
	}
}

func (p *jsonParser) value(depth int) (jsonValue, error) {
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth == maxJSONDepth {
			return jsonValue{}, p.syntaxError("the text is nested more than 8 deep")
		}
		if c == '{' {
			return p.object(depth + 1)
		}
		return p.array(depth + 1)
	case c == '"':
		s, err := p.string()
		return jsonValue{kind: jsonString, text: s}, err
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	for word, v := range map[string]jsonValue{"null": {}, "true": {kind: jsonBool, boolean: true}, "false": {kind: jsonBool}} {
		if bytes.HasPrefix(p.text[p.pos:], []byte(word)) {
			p.pos += len(word)
			return v, nil
		}
	}
	return jsonValue{}, p.syntaxError("a value is missing or not JSON")
}

func (p *jsonParser) object(depth int) (jsonValue, error) {
	v := jsonValue{kind: jsonObject}
	var names map[string]bool
	start := p.pos
	p.pos++
	for p.space(); p.peek() != '}'; p.space() {
		if len(v.members) > 0 {
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
		if len(v.members) == maxScannedMembers {
			names = make(map[string]bool, 2*maxScannedMembers)
			for _, m := range v.members {
				names[m.name] = true
			}
		}
		if names == nil {
			if _, twice := v.member(name); twice {
				return v, p.syntaxError("a member is there twice")
			}
		} else if names[name] {
			return v, p.syntaxError("a member is there twice")
		} else {
			names[name] = true
		}
		p.space()
		if p.peek() != ':' {
			return v, p.syntaxError("a colon is missing")
		}
		p.pos++
		p.space()
		member, err := p.value(depth)
		if err != nil {
			return v, err
		}
		v.members = append(v.members, jsonMember{name, member})
	}
	p.pos++
	v.raw = p.text[start:p.pos]
	return v, nil
}

func (p *jsonParser) array(depth int) (jsonValue, error) {
	v := jsonValue{kind: jsonArray}
	p.pos++
	for p.space(); p.peek() != ']'; p.space() {
		if len(v.list) > 0 {
			if p.peek() != ',' {
				return v, p.syntaxError("a comma or the array's end is missing")
			}
			p.pos++
			p.space()
		}
		element, err := p.value(depth)
		if err != nil {
			return v, err
		}
		v.list = append(v.list, element)
	}
	p.pos++
	return v, nil
}

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
	if n := digits(); n == 0 || zero && n > 1 {
		return jsonValue{}, p.syntaxError("a number is malformed")
	}
	if p.peek() == '.' {
		p.pos++
		if digits() == 0 {
			return jsonValue{}, p.syntaxError("a number is malformed")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if digits() == 0 {
			return jsonValue{}, p.syntaxError("a number is malformed")
		}
	}
	return jsonValue{kind: jsonNumber, text: string(p.text[start:p.pos])}, nil
}

func (p *jsonParser) string() (string, error) {
	p.pos++
	start := p.pos
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == '"':
			s := string(p.text[start:p.pos])
			p.pos++
			return s, nil
		case c == '\\':
			return p.stringWithEscapes(start)
		case c < ' ':
			return "", p.syntaxError("a control character stands in a string")
		default:
			p.pos++
		}
	}
	return "", p.syntaxError("a string has no end")
}

// stringWithEscapes goes on with a string that has an escape, from its beginning.
func (p *jsonParser) stringWithEscapes(start int) (string, error) {
	var b strings.Builder
	b.Write(p.text[start:p.pos])
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case c == '"':
			p.pos++
			return b.String(), nil
		case c < ' ':
			return "", p.syntaxError("a control character stands in a string")
		case c != '\\':
			b.WriteByte(c)
			p.pos++
			continue
		}
		p.pos++
		short := strings.IndexByte(`"\/bfnrt`, p.peek())
		switch {
		case p.pos == len(p.text):
			return "", p.syntaxError("a string has no end")
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
	return "", p.syntaxError("a string has no end")
}

// unicodeEscape reads uXXXX, and a second one for the second half of a pair.
func (p *jsonParser) unicodeEscape() (rune, error) {
	hex := func() (rune, bool) {
		if p.pos+5 > len(p.text) || p.text[p.pos] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(p.text[p.pos+1:p.pos+5]), 16, 16)
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
	return 0, p.syntaxError("half of a surrogate pair stands alone")
}

// An jsonAppender encodes itself, without reflection.
type jsonAppender interface{ appendJSON(b []byte) []byte }

// appendMember appends a comma, a name and a string.
func appendMember(b []byte, name, value string) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	return appendString(b, value)
}

// appendUnescaped is appendMember for what this program made, which needs no escapes:
// an id, a code, a token.
func appendUnescaped(b []byte, name, value string) []byte {
	b = append(append(append(b, `,"`...), name...), `":"`...)
	return append(append(b, value...), '"')
}

// appendOptional is appendMember for a string that may be null.
func appendOptional(b []byte, name string, value *string) []byte {
	if value != nil {
		return appendMember(b, name, *value)
	}
	return append(append(append(b, `,"`...), name...), `":null`...)
}

// appendOptionalInt appends a number that may be null.
func appendOptionalInt(b []byte, n *int) []byte {
	if n == nil {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, int64(*n), 10)
}

// appendString appends a string as encoding/json writes it without HTML escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return append(b, strings.TrimSuffix(string(encodeJSON(s)), "\n")...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// encodeJSON encodes what this program made; that can't fail. It ends in a line break.
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
