package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// A member is a column of a row that callers may set, and that is called so in JSON, too. The members of a row are
// listed once. From the list come the columns of the table, what is read of a request or of a row of CSV, what a change
// alters, and the data of its event.
type member struct {
	name string // "offline_days"

	// at is where the row has the value. A *string is never empty, and null only where it has a default. A **string,
	// **int or *stamp may be null. Others are *int, *bool, *codeList (codes, see checkCodes) and *jsonText (an object).
	at any

	atFirst    bool      // it is set when the row is made, and can't be changed
	hasDefault bool      // null stands for its default, which the noun sets where the value is 0
	low, high  int       // of a number; high of a text: the most characters
	check      textCheck // of a text, beside its length; nil: none
	lines      bool      // a text of several lines
	private    bool      // events name it, but leave its values out
}

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

// A difference lists the members in which a row has been changed. It is the data of the change's event.
type difference struct {
	Names string                     `json:"changed"` // sorted, separated by spaces: "expires_at max_devices"
	From  map[string]json.RawMessage `json:"from"`    // values before the change, without those of private members
	To    map[string]json.RawMessage `json:"to"`      // and after it
}

// differenceOf compares the members of a row before and after a change.
func differenceOf(before, after []member) difference {
	d := difference{From: map[string]json.RawMessage{}, To: map[string]json.RawMessage{}}
	var names []string
	for i, m := range after {
		was, is := bytes.TrimSpace(encodeJSON(before[i].at)), bytes.TrimSpace(encodeJSON(m.at))
		if bytes.Equal(was, is) {
			continue
		}
		if names = append(names, m.name); !m.private {
			d.From[m.name], d.To[m.name] = was, is
		}
	}
	slices.Sort(names)
	d.Names = strings.Join(names, " ")
	return d
}

// data returns the difference as the data of an event.
func (d difference) data() []byte { return bytes.TrimSpace(encodeJSON(d)) }
