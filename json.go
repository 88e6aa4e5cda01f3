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
	truth   bool
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
	maxJSONDepth  = 8
	manyJSONNames = 16 // above that a set finds duplicates faster than a scan
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
	if p.at < len(p.text) {
		return jsonValue{}, p.fail("there is more text after the object")
	}
	return v, nil
}

type jsonParser struct {
	text []byte
	at   int
}

func (p *jsonParser) fail(what string) error {
	return fmt.Errorf("%s, at byte %d", what, p.at)
}

// peek returns the next byte, 0 at the end; a real NUL is an error everywhere.
func (p *jsonParser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *jsonParser) space() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t' || p.text[p.at] == '\n' || p.text[p.at] == '\r') {
		p.at++
	}
}

func (p *jsonParser) value(depth int) (jsonValue, error) {
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth == maxJSONDepth {
			return jsonValue{}, p.fail("the text is nested more than 8 deep")
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
	for word, v := range map[string]jsonValue{"null": {}, "true": {kind: jsonBool, truth: true}, "false": {kind: jsonBool}} {
		if bytes.HasPrefix(p.text[p.at:], []byte(word)) {
			p.at += len(word)
			return v, nil
		}
	}
	return jsonValue{}, p.fail("a value is missing or not JSON")
}

func (p *jsonParser) object(depth int) (jsonValue, error) {
	v := jsonValue{kind: jsonObject}
	var names map[string]bool
	start := p.at
	p.at++
	for p.space(); p.peek() != '}'; p.space() {
		if len(v.members) > 0 {
			if p.peek() != ',' {
				return v, p.fail("a comma or the object's end is missing")
			}
			p.at++
			p.space()
		}
		if p.peek() != '"' {
			return v, p.fail("a member's name is missing")
		}
		name, err := p.string()
		if err != nil {
			return v, err
		}
		if len(v.members) == manyJSONNames {
			names = make(map[string]bool, 2*manyJSONNames)
			for _, m := range v.members {
				names[m.name] = true
			}
		}
		if names == nil {
			if _, twice := v.member(name); twice {
				return v, p.fail("a member is there twice")
			}
		} else if names[name] {
			return v, p.fail("a member is there twice")
		} else {
			names[name] = true
		}
		p.space()
		if p.peek() != ':' {
			return v, p.fail("a colon is missing")
		}
		p.at++
		p.space()
		member, err := p.value(depth)
		if err != nil {
			return v, err
		}
		v.members = append(v.members, jsonMember{name, member})
	}
	p.at++
	v.raw = p.text[start:p.at]
	return v, nil
}

func (p *jsonParser) array(depth int) (jsonValue, error) {
	v := jsonValue{kind: jsonArray}
	p.at++
	for p.space(); p.peek() != ']'; p.space() {
		if len(v.list) > 0 {
			if p.peek() != ',' {
				return v, p.fail("a comma or the array's end is missing")
			}
			p.at++
			p.space()
		}
		element, err := p.value(depth)
		if err != nil {
			return v, err
		}
		v.list = append(v.list, element)
	}
	p.at++
	return v, nil
}

func (p *jsonParser) number() (jsonValue, error) {
	start := p.at
	digits := func() int {
		n := 0
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.at++
			n++
		}
		return n
	}
	if p.peek() == '-' {
		p.at++
	}
	zero := p.peek() == '0'
	if n := digits(); n == 0 || zero && n > 1 {
		return jsonValue{}, p.fail("a number is malformed")
	}
	if p.peek() == '.' {
		p.at++
		if digits() == 0 {
			return jsonValue{}, p.fail("a number is malformed")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if digits() == 0 {
			return jsonValue{}, p.fail("a number is malformed")
		}
	}
	return jsonValue{kind: jsonNumber, text: string(p.text[start:p.at])}, nil
}

func (p *jsonParser) string() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			s := string(p.text[start:p.at])
			p.at++
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return "", p.fail("a control character stands in a string")
		default:
			p.at++
		}
	}
	return "", p.fail("a string has no end")
}

// escaped goes on with a string that has an escape, from its beginning.
func (p *jsonParser) escaped(start int) (string, error) {
	var b strings.Builder
	b.Write(p.text[start:p.at])
	for p.at < len(p.text) {
		c := p.text[p.at]
		switch {
		case c == '"':
			p.at++
			return b.String(), nil
		case c < ' ':
			return "", p.fail("a control character stands in a string")
		case c != '\\':
			b.WriteByte(c)
			p.at++
			continue
		}
		p.at++
		short := strings.IndexByte(`"\/bfnrt`, p.peek())
		switch {
		case p.at == len(p.text):
			return "", p.fail("a string has no end")
		case p.text[p.at] == 'u':
			r, err := p.unicodeEscape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case short >= 0:
			b.WriteByte("\"\\/\b\f\n\r\t"[short])
			p.at++
		default:
			return "", p.fail("an escape is malformed")
		}
	}
	return "", p.fail("a string has no end")
}

// unicodeEscape reads uXXXX, and a second one for the second half of a pair.
func (p *jsonParser) unicodeEscape() (rune, error) {
	hex := func() (rune, bool) {
		if p.at+5 > len(p.text) || p.text[p.at] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(p.text[p.at+1:p.at+5]), 16, 16)
		p.at += 5
		return rune(n), err == nil
	}
	r, ok := hex()
	if !ok {
		return 0, p.fail("an escape is malformed")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if p.peek() == '\\' {
		p.at++
		if second, ok := hex(); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, p.fail("half of a surrogate pair stands alone")
}

// An appender encodes itself, without reflection.
type appender interface{ appendJSON(b []byte) []byte }

// appendMember appends a comma, a name and a string.
func appendMember(b []byte, name, value string) []byte {
	b = append(append(append(b, `,"`...), name...), `":`...)
	return appendString(b, value)
}

// appendPlain is appendMember for what this program made, which needs no escapes:
// an id, a code, a token.
func appendPlain(b []byte, name, value string) []byte {
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

// appendCount appends a number that may be null.
func appendCount(b []byte, n *int) []byte {
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
	if a, ok := v.(appender); ok {
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
