package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How commands list rows, and export them.

// A listCommand prints the rows of a list, those that -since, -until and -limit leave. With -json each is an object on
// a line of its own.
type listCommand struct {
	pages func(e *env, q *queries) (rowPages, error) // what reads them, where no route does

	// The titles of the columns, separated by spaces, each with the member that it shows unless that has the same
	// name: "ID PRODUCT KEY=key_hint USED=seats.used".
	columns string
	cell    cellFunc // what they show in place of some members; nil: nothing

	// With what the ids begin by which the rows are ordered. "": they have another order, and whatever reads them heeds
	// -since and -until: a route has the parameters since and until.
	prefix string

	export bool // the rows are printed as JSON, or with -csv as CSV
	short  bool // a list prints all rows, not the first 50, unless -limit says how many
}

// rowPages reads up to limit rows of a list that come after a cursor ("": the first ones). next is the cursor of the
// next page; "": this is the last.
type rowPages func(cursor string, limit int) (rows []*jsonValue, next string, err error)

// A cellFunc returns what a table or CSV shows of a member of a row: a text; a number; nil: its value.
type cellFunc func(member string, row *jsonValue) any

// options returns the options of a list that are not those of the route that answers with its rows; nil: none does.
func (c listCommand) options(rt *route) (all []option) {
	switch {
	case c.export:
		all = append(all, optCSV)
	case c.short:
		all = append(all, optAllRows)
	default:
		all = append(all, optLimit)
	}
	if c.prefix != "" || rt != nil && rt.endpoint.known().has(inQuery, "since") {
		all = append(all, optSince, optUntil)
	}
	return all
}

// run prints the rows that a request of a route is answered with, or where no route is, those that pages reads.
func (c listCommand) run(e *env, r *routeRequest) error {
	if r.route == "" {
		return e.withStore(func(st *store) error {
			pages, err := c.pages(e, st.queries)
			if err != nil {
				return err
			}
			return c.print(e, pages)
		})
	}
	since, until, err := e.timeSpan()
	if err != nil {
		return err
	}
	for name, at := range map[string]stamp{"since": since, "until": until} {
		if !at.IsZero() && c.prefix == "" {
			r.query.Set(name, at.String())
		}
	}
	return e.asOperator(nil, func(o *routeCaller) error { return c.print(e, o.pages(r)) })
}

// print prints the rows.
func (c listCommand) print(e *env, pages rowPages) error {
	if c.export {
		return c.printAll(e, pages)
	}
	limit, err := e.rowLimit()
	if err != nil {
		return err
	}
	rows, err := c.firstRows(e, pages, limit, "-limit N")
	if err != nil {
		return err
	}
	err = e.printRows(c.columns, c.cell, rows)
	if len(rows) == 0 && !e.on("json") {
		e.noteEmpty()
	}
	return err
}

// noteEmpty says that a list is empty, and with which of its options.
func (e *env) noteEmpty() {
	var filters []string
	for _, o := range e.command.options {
		switch {
		case !e.given(o.name) || e.str(o.name) == "" || o.name == "limit":
		case o.value != "":
			filters = append(filters, "-"+o.name+" "+printable(e.typed[o.name]))
		case e.on(o.name):
			filters = append(filters, "-"+o.name)
		}
	}
	if len(filters) == 0 {
		e.note("the list is empty\n")
		return
	}
	e.note("the list is empty with %s\n", strings.Join(filters, " "))
}

// firstRows returns the first limit rows. If there are more, it says so on standard error; how names the option or
// command that prints them.
func (c listCommand) firstRows(e *env, pages rowPages, limit int, how string) (rows []*jsonValue, err error) {
	err = c.eachPage(e, pages, limit, func(page []*jsonValue) bool {
		rows = append(rows, page...)
		return len(rows) <= limit
	})
	if len(rows) > limit {
		e.note("these are the first %d; print more with %s\n", limit, how)
		rows = rows[:limit]
	}
	return rows, err
}

// listPageSize is how many rows a page has at most.
const listPageSize = 200

// eachPage calls f with the rows of each page, until it returns false: with up to limit rows and one more.
func (c listCommand) eachPage(e *env, pages rowPages, limit int, f func(rows []*jsonValue) (more bool)) error {
	since, until, err := e.timeSpan()
	if err != nil {
		return err
	}
	first, end := "", "" // the lowest id, and the one that ids are below
	if c.prefix != "" && !since.IsZero() {
		first = firstID(c.prefix, since.Time)
	}
	if c.prefix != "" && !until.IsZero() {
		end = firstID(c.prefix, until.Time)
	}
	for cursor := end; ; {
		rows, next, err := pages(cursor, min(limit+1, listPageSize))
		rows = slices.DeleteFunc(rows, func(row *jsonValue) bool {
			id := memberAt(row, "id").text
			return id < first || end != "" && id >= end
		})
		if err != nil || !f(rows) || next == "" || next < first {
			return err
		}
		cursor = next
	}
}

// rowLimit returns how many rows -limit allows a list; without it all.
func (e *env) rowLimit() (int, error) {
	if e.str("limit") == "" {
		return math.MaxInt - 1, nil
	}
	return e.number("limit", 1, 1_000_000)
}

// pages returns the pages of a list that a route answers with.
func (o *routeCaller) pages(r *routeRequest) rowPages {
	known := o.route(r.route).endpoint.known()
	return func(cursor string, limit int) (rows []*jsonValue, next string, err error) {
		if known.has(inQuery, "limit") { // else it answers with all rows at once
			r.query.Set("limit", strconv.Itoa(limit))
		}
		if known.has(inQuery, "cursor") && cursor != "" {
			r.query.Set("cursor", cursor)
		}
		answer, err := o.call(r)
		if err != nil {
			return nil, "", err
		}
		var page struct {
			Data []json.RawMessage `json:"data"`
			Next string            `json:"next_cursor"`
		}
		if err := json.Unmarshal(answer, &page); err != nil || page.Data == nil {
			return nil, "", cmp.Or(err, errNoList)
		}
		for _, text := range page.Data {
			row, err := parseJSON(text)
			if err != nil {
				return nil, "", err
			}
			rows = append(rows, &row)
		}
		return rows, page.Next, nil
	}
}

// errNoList is the error of a call of any route, where that answers with no list.
var errNoList error = usageError("-all is for lists, and this answers with none")

// rowObjects returns the rows of a slice as -json prints them. It has no type parameter, nor has what it is called by
// where that can be: each type of rows would have a copy of its own in the program.
func rowObjects(rows any) (objects []*jsonValue, err error) {
	all := reflect.ValueOf(rows)
	for i := range all.Len() {
		object, err := parseJSON(encodeJSON(all.Index(i).Interface()))
		if err != nil {
			return nil, err
		}
		objects = append(objects, &object)
	}
	return objects, nil
}

// A rowQuery reads a page of the rows of an owner, a slice of any type, and returns the cursor of the next one.
type rowQuery func(q *queries, o owner, before string, limit int) (rows any, next string, err error)

// pages makes the pages of a listCommand from a query: for the account that -account names, else for any.
func (read rowQuery) pages(e *env, q *queries) (rowPages, error) {
	o, err := e.filterAccount()
	return func(cursor string, limit int) ([]*jsonValue, string, error) {
		rows, next, err := read(q, o, cursor, limit)
		if err != nil {
			return nil, "", err
		}
		objects, err := rowObjects(rows)
		return objects, next, err
	}, err
}

// paged is rowQuery.pages for a query of one type of rows.
func paged[T any](
	read func(q *queries, o owner, before string, limit int) (listPage[T], error),
) func(*env, *queries) (rowPages, error) {
	return rowQuery(func(q *queries, o owner, before string, limit int) (any, string, error) {
		page, err := read(q, o, before, limit)
		return page.rows, page.next, err
	}).pages
}

// pagesOf returns the pages of a query.
func pagesOf[T any](read func(before string, limit int) (listPage[T], error)) rowPages {
	return func(cursor string, limit int) (rows []*jsonValue, next string, err error) {
		page, err := read(cursor, limit)
		if err == nil {
			rows, err = rowObjects(page.rows)
		}
		return rows, page.next, err
	}
}

// wholeTable is paged for a query that reads all rows of a short table at once.
func wholeTable[T any](read func(q *queries, o owner) ([]T, error)) func(*env, *queries) (rowPages, error) {
	return rowQuery(func(q *queries, o owner, _ string, _ int) (any, string, error) {
		rows, err := read(q, o)
		return rows, "", err
	}).pages
}

// printObjects is printRows for rows of any type.
func printObjects[T any](e *env, columns string, cell cellFunc, rows []T) error {
	objects, err := rowObjects(rows)
	if err != nil {
		return err
	}
	return e.printRows(columns, cell, objects)
}

// printRows prints rows as a table with columns, see listCommand; with -json each as it is. cell may be nil.
func (e *env) printRows(columns string, cell cellFunc, rows []*jsonValue) error {
	if e.on("json") {
		for _, row := range rows {
			if _, err := fmt.Fprintln(e.stdout, row.raw); err != nil {
				return err
			}
		}
		return nil
	}
	titles, members := columnsOf(columns)
	var table [][]any
	for _, row := range rows {
		var cells []any
		for _, member := range members {
			cells = append(cells, cellOf(member, row, cell))
		}
		table = append(table, cells)
	}
	return e.printTable(strings.Join(titles, " "), table)
}

// elementsOf returns the elements of an array.
func elementsOf(array *jsonValue) (all []*jsonValue) {
	for i := range array.list {
		all = append(all, &array.list[i])
	}
	return all
}

// columnsOf returns the titles of columns, and the members that they show, see listCommand.
func columnsOf(columns string) (titles, members []string) {
	for column := range strings.FieldsSeq(columns) {
		title, member, named := strings.Cut(column, "=")
		if !named {
			member = strings.ToLower(title)
		}
		titles, members = append(titles, title), append(members, member)
	}
	return titles, members
}

// cellOf returns the cell of a table that shows a member of a row.
func cellOf(member string, row *jsonValue, cell cellFunc) any {
	if cell != nil {
		if shown := cell(member, row); shown != nil {
			return shown
		}
	}
	if text, isMoney := moneyText(member, row, rawMember(row, "currency")); isMoney {
		return text
	}
	v := memberAt(row, member)
	at, isTime := parseStamp(v.text)
	switch {
	case isTime && v.kind == jsonString && v.text == at.String():
		return at
	case slices.Contains([]string{"account_id", "subject_id", "caller"}, member):
		return accountCell(v.text)
	case v.kind == jsonString && (member == "id" || strings.HasSuffix(member, "_id")):
		return idCell(v.text)
	case v.kind == jsonBool:
		return v.boolean
	case v.kind == jsonObject:
		return v.raw
	case v.kind == jsonNull:
		return ""
	case v.kind == jsonArray:
		return listText(v)
	}
	return memberText(v)
}

// listText returns the elements of a list with spaces between them.
func listText(v *jsonValue) string {
	var texts []string
	for _, element := range v.list {
		texts = append(texts, element.text)
	}
	return strings.Join(texts, " ")
}

// printAll prints all rows, one JSON object a line, or with -csv as CSV.
func (c listCommand) printAll(e *env, pages rowPages) error {
	out := bufio.NewWriter(e.stdout)
	titles, members := columnsOf(c.columns)
	w := csv.NewWriter(out)
	if e.on("csv") {
		w.Write(titles)
	}
	var told *progress
	if isFile(e.stdout) { // else what is printed and what is told would mix
		told = e.progress("exporting")
	}
	defer told.end()
	printed := int64(0)
	err := c.eachPage(e, pages, listPageSize, func(rows []*jsonValue) bool {
		printed += int64(len(rows))
		told.at(printed, 0)
		for _, row := range rows {
			if !e.on("csv") {
				out.WriteString(row.raw + "\n")
				continue
			}
			var cells []string
			for _, member := range members {
				cells = append(cells, csvCellOf(member, row, c.cell))
			}
			w.Write(cells)
		}
		w.Flush()
		return w.Error() == nil
	})
	if err == nil {
		err = w.Error()
	}
	if err != nil {
		return err
	}
	return out.Flush()
}

// csvCellOf returns the cell of CSV that shows a member of a row. Its type decides: a number stays one, and every text
// counts as what strangers may have written.
func csvCellOf(member string, row *jsonValue, cell cellFunc) string {
	var shown any
	if cell != nil {
		shown = cell(member, row)
	}
	v := memberAt(row, member)
	text, isText := shown.(string)
	amount, isMoney := moneyText(member, row, "")
	switch {
	case isText:
		return csvTextCell(text)
	case shown != nil:
		return fmt.Sprint(shown)
	case isMoney:
		return amount // a number, which may be negative
	case v.kind == jsonNumber:
		return v.text
	case v.kind == jsonBool:
		return strconv.FormatBool(v.boolean)
	case v.kind == jsonObject:
		return csvJSONCell([]byte(v.raw))
	case v.kind == jsonArray:
		return csvTextCell(listText(v))
	}
	return csvTextCell(v.text)
}

// csvTextCell makes s safe for a CSV cell, since callers of the API choose these texts. It puts an apostrophe before
// each part that a spreadsheet would run as a formula, see guardParts, and replaces characters that change the
// direction in which the row is shown by U+FFFD.
func csvTextCell(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Bidi_Control, r) {
			return utf8.RuneError
		}
		return r
	}, s)
	return guardParts(s, func(lead, sign string) string { return "'" + lead + sign })
}

// csvJSONCell is csvTextCell for a JSON object, whose members keep their values: there, the sign of a formula and
// characters that change the direction are escaped.
func csvJSONCell(object []byte) string {
	var b strings.Builder
	for _, r := range string(object) {
		if unicode.Is(unicode.Bidi_Control, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return guardParts(b.String(), func(lead, sign string) string {
		r, _ := utf8.DecodeRuneInString(sign)
		return lead + fmt.Sprintf(`\u%04x`, r)
	})
}

// guardParts returns s with what guard makes of the beginning of each part that could be run as a formula: of spaces,
// quotes and what can't be seen, and of the sign after them. Spreadsheets end a cell not only at commas: depending on
// country and settings a part begins after a semicolon, a tab or a line break, too.
func guardParts(s string, guard func(lead, sign string) string) string {
	var b strings.Builder
	done, begins := 0, true // what of s is written; whether nothing is seen yet of the part that begins there
	for i, r := range s {
		end := i + utf8.RuneLen(r)
		switch {
		case strings.ContainsRune(";\t\n\v\f\r\u0085\u2028\u2029", r):
			b.WriteString(s[done:end])
			done, begins = end, true
		case begins && strings.ContainsRune("=+-@＝＋－＠", r):
			b.WriteString(guard(s[done:i], s[i:end]))
			done, begins = end, false
		case !strings.ContainsRune(`"'`, r) && !unicode.IsSpace(r) && unicode.IsGraphic(r):
			begins = false
		}
	}
	return b.String() + s[done:]
}
