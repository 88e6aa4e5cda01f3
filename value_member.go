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
