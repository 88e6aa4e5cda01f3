package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
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

// How commands print for people: tables and details that fit the width of the terminal.

// width returns how many columns the output has: those of its terminal, else COLUMNS. It returns 0 if there is no
// limit: elsewhere, so that grep finds every cell, and with -wide.
func (e *env) width() int { return e.widthOn(e.stdout) }

// widthOn is width for one of the two outputs.
func (e *env) widthOn(stream io.Writer) int {
	if e.on("wide") {
		return 0
	}
	return widthOf(stream, e.getenv)
}

// widthOf is width for any stream.
func widthOf(stream any, getenv func(string) string) int {
	if columns, is := terminalSize(stream); is {
		return columns
	}
	columns, _ := strconv.Atoi(getenv("COLUMNS"))
	return max(0, columns)
}

// note prints lines for people on standard error, which fit its width. A text without a line break at its end waits for
// what is typed behind it.
func (e *env) note(format string, args ...any) {
	e.line.pause()
	fmt.Fprint(e.stderr, fitted(fmt.Sprintf(format, args...), widthOf(e.stderr, e.getenv)))
	e.line.resume()
}

// say prints lines for people on standard output, which fit its width.
func (e *env) say(format string, args ...any) error {
	_, err := io.WriteString(e.stdout, fitted(fmt.Sprintf(format, args...), e.width()))
	return err
}

// fitted breaks the lines of a text between words, see wrap. What goes on below keeps the spaces that its line begins
// with.
func fitted(text string, width int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		words := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(words)]
		if width > 0 {
			lines[i] = indent + strings.Join(wrap(words, max(1, width-len(indent))), "\n"+indent)
		}
	}
	return strings.Join(lines, "\n")
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	_, is := terminalSize(stream)
	return is
}

// terminalSize returns how many columns the terminal that a stream is has, 80 if it does not say; false: it is none.
func terminalSize(stream any) (columns int, is bool) {
	f, ok := stream.(*os.File)
	if !ok {
		return 0, false
	}
	size := new([4]uint16) // rows, columns, and the size in pixels (ioctl_tty(2))
	address := reflect.ValueOf(size).Pointer()
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, address)
	runtime.KeepAlive(size)
	return cmp.Or(int(size[1]), 80), errno == 0
}

// An accountCell is a table's cell with the id of an account, which is shown by its name, or of something else.
type accountCell string

// An idCell is a table's cell with an id, which is shown by its end where the width has a limit.
type idCell string

const (
	columnGap  = 2   // spaces between two columns
	noValue    = "-" // stands for an empty cell
	shownIDEnd = 8   // symbols of an id in a table: at least leastIDEnd, so that every command takes them
)

// printTable prints a table; header holds the titles of its columns, separated by spaces. Where a row does not fit the
// width, what its last columns hold follows below it. Nothing but ids is ever shortened.
func (e *env) printTable(header string, rows [][]any) error {
	titles := strings.Fields(header)
	table := [][]string{titles}
	var names map[string]string // of accounts; read once, if any cell needs them
	for _, row := range rows {
		line := make([]string, len(row))
		for i, cell := range row {
			if id, ok := cell.(accountCell); ok && names == nil && id != "" {
				var err error
				if names, err = queried(e, (*queries).accountNames); err != nil {
					return err
				}
			}
			line[i] = e.cellText(cell, names)
		}
		table = append(table, line)
	}
	text, widest := alignColumns(table)
	if width := e.width(); width > 0 && widest > width && len(rows) > 0 {
		text = narrowTable(table, width)
	}
	_, err := io.WriteString(e.stdout, text)
	return err
}

// alignColumns returns the lines of a table with their cells below each other, and how long the longest is.
func alignColumns(table [][]string) (text string, widest int) {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, columnGap, ' ', 0)
	for _, line := range table {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	w.Flush()
	for line := range strings.Lines(aligned.String()) {
		line = strings.TrimRight(line, " \n")
		text, widest = text+line+"\n", max(widest, utf8.RuneCountInString(line))
	}
	return text, widest
}

// narrowTable returns a table with as many of its first columns as fit the width. Below each row stand the other cells
// that have a value, with their titles and two spaces between them, which are nowhere within one.
func narrowTable(table [][]string, width int) (text string) {
	columns, head := len(table[0])+1, make([][]string, len(table))
	aligned, widest := "", width+1
	for widest > width && columns > 1 {
		columns--
		for i, line := range table {
			head[i] = line[:columns]
		}
		aligned, widest = alignColumns(head)
	}
	const unbroken = "\u00a0"
	for i, line := range slices.Collect(strings.Lines(aligned)) {
		var rest []string
		for at := columns; at < len(table[0]) && i > 0; at++ {
			if table[i][at] == noValue {
				continue
			}
			label := strings.NewReplacer("_", " ", "-", " ").Replace(strings.ToLower(table[0][at]))
			cell := strings.Join(strings.Fields(label+" "+table[i][at]), " ")
			if utf8.RuneCountInString(cell) <= width-columnGap {
				cell = strings.ReplaceAll(cell, " ", unbroken)
			}
			rest = append(rest, cell)
		}
		text += line
		for _, below := range wrap(strings.Join(rest, "  "), width-columnGap) {
			if len(rest) > 0 {
				text += strings.TrimRight("  "+strings.ReplaceAll(below, unbroken, " "), " ") + "\n"
			}
		}
	}
	return text
}

// cut returns a text of at most n characters; below 1: it stays whole.
func cut(text string, n int) string {
	if runes := []rune(text); n > 0 && len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// cutBeginning returns the last n characters of a text, where it has more; below 1: it stays whole.
func cutBeginning(text string, n int) string {
	if runes := []rune(text); n > 0 && len(runes) > n {
		return "…" + string(runes[len(runes)-n+1:])
	}
	return text
}

// shownID returns the end of an id; all of it where the width has no limit.
func (e *env) shownID(id string) string {
	if kind, _, _ := strings.Cut(id, "_"); e.width() > 0 && validID(kind, id) {
		return id[len(id)-shownIDEnd:]
	}
	return id
}

// cellText returns the text of a table's cell. names are those of accounts.
func (e *env) cellText(cell any, names map[string]string) string {
	text := ""
	switch v := cell.(type) {
	case stamp:
		text = e.shortTime(v)
	case accountCell:
		text = cmp.Or(names[string(v)], e.shownID(string(v)))
	case idCell:
		text = e.shownID(string(v))
	case bool:
		if v {
			text = "yes"
		}
	default:
		text = fmt.Sprint(v)
	}
	return cmp.Or(printable(text), noValue)
}

// shortTime returns a time in UTC for a table: "11-22 19:37", with the year if that is another one than now, and
// whole with -wide.
func (e *env) shortTime(s stamp) string {
	switch {
	case s.IsZero():
		return ""
	case e.on("wide"):
		return s.String()
	case s.Year() == e.now().UTC().Year():
		return s.Format("01-02 15:04")
	}
	return s.Format("2006-01-02 15:04")
}

// A detail is a line of output: a label and a value. Without a label it belongs to the line before it.
type detail struct{ label, value string }

// printDetails writes v to standard output with -json, else the details, one below the other. Values
// that are wider than the terminal go on in the next line, unless -wide is set.
func (e *env) printDetails(v any, details []detail) error {
	if e.on("json") {
		return e.print(v, "")
	}
	details = slices.Clone(details)
	for i, d := range details {
		if d.label == "account id" {
			names, err := queried(e, (*queries).accountNames)
			if err != nil {
				return err
			}
			details[i] = detail{"account", cmp.Or(names[d.value], d.value)}
		}
		details[i].value = printableBut(details[i].value, "\n")
	}
	_, err := io.WriteString(e.stdout, detailLines(details, e.width()))
	return err
}

// detailLines returns details whose values begin below each other, in lines of width columns where their words
// allow it; 0: no limit.
func detailLines(details []detail, width int) (text string) {
	indent := 0
	for _, d := range details {
		indent = max(indent, utf8.RuneCountInString(d.label)+columnGap)
	}
	for _, d := range details {
		for line := range strings.SplitSeq(fitted(d.value, width-indent), "\n") {
			text += strings.TrimRight(fmt.Sprintf("%-*s%s", indent, d.label, line), " ") + "\n"
			d.label = ""
		}
	}
	return text
}

// wrap breaks a text between words into lines of at most n characters, where it can; below 1: it stays one line. What
// is in quotes, as 'widgetd check', is one word: a command does not break, and a longer one stands alone on its line.
func wrap(text string, n int) (lines []string) {
	if n < 1 {
		return []string{text}
	}
	line := ""
	for _, word := range wordsToWrap(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > n {
			lines, line = append(lines, line), word
		} else {
			line = strings.TrimPrefix(line+" "+word, " ")
		}
	}
	return append(lines, line)
}

// wordsToWrap returns the words of a text, between which it may break, see wrap. A quote begins a word and ends one,
// since within a word it is an apostrophe; a command may have others within it. One that does not end is none.
func wordsToWrap(text string) (words []string) {
	all := strings.Split(text, " ")
	for len(all) > 0 {
		n, open := 1, 0
		for i, word := range all {
			if strings.HasPrefix(strings.TrimLeft(word, "("), "'") {
				open++
			}
			if open == 0 { // the text's first word begins no quote
				break
			}
			end := strings.TrimRight(word, ".,;:?!)")
			if open -= len(end) - len(strings.TrimRight(end, "'")); open <= 0 {
				n = i + 1
				break
			}
		}
		words, all = append(words, strings.Join(all[:n], " ")), all[n:]
	}
	return words
}

// membersOf returns the members of a JSON object, as details.
func membersOf(object *jsonValue) (details []detail) {
	for _, m := range object.members {
		text, isMoney := moneyText(m.name, object, rawMember(object, "currency"))
		if !isMoney {
			text = memberText(&m.value)
		}
		details = append(details, detail{strings.ReplaceAll(m.name, "_", " "), text})
	}
	return details
}

// amountMembers are the members that are amounts of money where they are numbers. Of a line of an order, which has a
// quantity, refunded counts units.
var amountMembers = strings.Fields("amount captured credit debit delivery difference discount discounts disputed " +
	"disputes fee gross net ordered_total ours received refunded refunds sales tax tax_difference taken test theirs " +
	"tip tips total unit_amount vat")

// moneyText returns the text of the member at a path that is an amount, with a currency unless that is "", or a rate of
// VAT; false: it is neither.
func moneyText(path string, row *jsonValue, currency string) (text string, isMoney bool) {
	n, isNumber := memberAt(row, path).integer()
	name, object := path, row
	if dot := strings.LastIndex(path, "."); dot >= 0 {
		name, object = path[dot+1:], memberAt(row, path[:dot])
	}
	_, isLine := object.member("quantity")
	_, isTax := object.member("vat")
	switch {
	case !isNumber:
		return "", false
	case name == "vat_rate" || name == "rate" && isTax:
		return formatRate(n), true
	case !slices.Contains(amountMembers, name) || isLine && name == "refunded":
		return "", false
	}
	return strings.TrimSuffix(formatMoney(n, currency), " "), true
}

// printAnswer prints an object with all its members, one below the other: those of larger objects by both names, and
// below them each list of objects; with -json as it is.
func (e *env) printAnswer(v *jsonValue) error {
	if e.on("json") {
		_, err := fmt.Fprintln(e.stdout, v.raw)
		return err
	}
	var shown shownAnswer
	shown.add("", v)
	if err := e.printDetails(nil, shown.details); err != nil {
		return err
	}
	for _, list := range shown.lists {
		if err := e.printList(list.label, elementsOf(list.value)); err != nil {
			return err
		}
	}
	return nil
}

// printObject is printAnswer for a value that encodes to an object.
func (e *env) printObject(v any) error {
	object, err := parseJSON(encodeJSON(v))
	if err != nil {
		return err
	}
	return e.printAnswer(&object)
}

const inlineMembers = 4 // of an object that is shown on one line

// A shownAnswer is what people see of an object.
type shownAnswer struct {
	details []detail
	lists   []shownList
}

// A shownList is a list of objects, and what it is called.
type shownList struct {
	label string
	value *jsonValue
}

// add adds the members of an object; within is what it is called in the one that is shown.
func (s *shownAnswer) add(within string, object *jsonValue) {
	details := membersOf(object)
	for i, d := range details {
		d.label = strings.TrimPrefix(within+" "+d.label, " ")
		switch v := &object.members[i].value; {
		case v.kind == jsonArray && len(v.list) > 0 && v.list[0].kind == jsonObject:
			s.lists = append(s.lists, shownList{d.label, v})
		case v.kind == jsonObject && (v.hasLists() || len(v.members) > inlineMembers && d.value != v.raw):
			s.add(d.label, v)
		default:
			s.details = append(s.details, d)
		}
	}
}

// hasLists reports whether an object has lists of objects.
func (v *jsonValue) hasLists() bool {
	return slices.ContainsFunc(v.members, func(m jsonMember) bool {
		return len(m.value.list) > 0 && m.value.list[0].kind == jsonObject
	})
}

// printList prints a list of objects below what it belongs to: as a table, whose first column counts from 0, or each by
// itself if it has lists of its own.
func (e *env) printList(label string, rows []*jsonValue) error {
	label = strings.ToUpper(strings.ReplaceAll(label, " ", "-"))
	if slices.ContainsFunc(rows, (*jsonValue).hasLists) {
		for i, row := range rows {
			fmt.Fprintf(e.stdout, "\n%s %d\n", label, i)
			if err := e.printAnswer(row); err != nil {
				return err
			}
		}
		return nil
	}
	columns := []string{label + "=#"}
	for _, row := range rows {
		for _, m := range row.members {
			empty := m.value.kind == jsonNull || m.value.kind == jsonArray && len(m.value.list) == 0
			if column := strings.ToUpper(m.name) + "=" + m.name; !empty && !slices.Contains(columns, column) {
				columns = append(columns, column)
			}
		}
	}
	fmt.Fprintln(e.stdout)
	return e.printRows(strings.Join(columns, " "), func(member string, row *jsonValue) any {
		if member == "#" {
			return slices.Index(rows, row)
		}
		return nil
	}, rows)
}

// memberText returns a JSON value as text for people; "-" stands for null and for an empty one.
func memberText(v *jsonValue) string {
	parts := []string{}
	switch v.kind {
	case jsonNull:
	case jsonBool:
		return map[bool]string{false: "no", true: "yes"}[v.boolean]
	case jsonObject:
		for i, d := range membersOf(v) {
			if m := v.members[i]; m.value.kind == jsonObject || m.value.kind == jsonArray {
				return v.raw
			}
			parts = append(parts, v.members[i].name+" "+d.value)
		}
	case jsonArray:
		for i := range v.list {
			parts = append(parts, memberText(&v.list[i]))
		}
	default:
		parts = append(parts, v.text)
	}
	return cmp.Or(strings.Join(parts, ", "), noValue)
}

// countsText returns the names with a count above zero, each with its count; "none" if there are none.
func countsText(names []string, counts map[string]int64) string {
	texts := []string{}
	for _, name := range names {
		if n := counts[name]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s %d", name, n))
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// stampText returns a time, "" for the zero stamp.
func stampText(s stamp) string {
	if s.IsZero() {
		return ""
	}
	return s.String()
}

// What a command that lasts tells on a terminal: one line of standard error, which is rewritten and removed at the end.

const (
	progressAfter = 2 * time.Second // what is over sooner tells nothing
	progressEvery = 250 * time.Millisecond
	clearLine     = "\r\x1b[K"
)

// A progress tells how far something is. A nil one does nothing: where standard error is no terminal there is none.
type progress struct {
	env            *env
	began          time.Time
	stop, finished chan struct{}

	mu      sync.Mutex // guards what follows, and standard error
	what    string     // the step: "copying the database"
	since   time.Time  // when the step began
	measure func() (done, total int64)
	shown   bool // the line is there
}

// progress begins to tell what a command does. Whoever calls it calls end, too, before anything else is printed but
// what note writes. It returns nil while something is told already.
func (e *env) progress(what string) *progress {
	if !e.rewrites || e.line != nil {
		return nil
	}
	p := &progress{env: e, began: e.now(), stop: make(chan struct{}), finished: make(chan struct{})}
	p.step(what, "", 0)
	e.line = p
	go p.run()
	return p
}

// isFile reports whether a stream is a file on a disk.
func isFile(stream any) bool {
	file, opened := stream.(*os.File)
	if !opened {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode().IsRegular()
}

// run writes the line until end.
func (p *progress) run() {
	defer close(p.finished)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-ticker.C:
			p.mu.Lock()
			p.write()
			p.mu.Unlock()
		}
	}
}

// end removes the line. It may be called again.
func (p *progress) end() {
	if p == nil || p.env.line != p {
		return
	}
	close(p.stop)
	<-p.finished
	p.pause()
	p.resume()
	p.env.line = nil
}

// step tells that the next step begins. file is the path of what grows by it, to about size bytes; "": nothing does. It
// is a stepFunc.
func (p *progress) step(what, file string, size int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.what, p.since = what, p.env.now()
	p.measure = func() (done, total int64) { return fileSize(file), size }
	p.write()
	p.mu.Unlock()
}

// at tells how much of the step is done: of rows, bytes or anything else; total 0: it is not known, and rows are done.
func (p *progress) at(done, total int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.measure = func() (int64, int64) { return done, total }
	p.mu.Unlock()
}

// pause removes the line and keeps it away until resume, so that something else can be written.
func (p *progress) pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	if p.shown {
		io.WriteString(p.env.stderr, clearLine)
		p.shown = false
	}
}

func (p *progress) resume() {
	if p != nil {
		p.mu.Unlock()
	}
}

// write writes the line anew, without its last column, in which some terminals begin the next one. The caller has
// locked it.
func (p *progress) write() {
	now := p.env.now()
	if now.Sub(p.began) < progressAfter {
		return
	}
	done, total := p.measure()
	line := progressText(p.what, done, total, now.Sub(p.since), widthOf(p.env.stderr, p.env.getenv)-1)
	io.WriteString(p.env.stderr, clearLine+line)
	p.shown = true
}

// progressText returns what a line of at most width columns tells; below 1: it has no limit. What does not fit is left
// out.
func progressText(what string, done, total int64, gone time.Duration, width int) string {
	what = printable(what) // names of files are in it
	var parts []string
	switch {
	case total > 0:
		parts = append(parts, fmt.Sprintf("%d %%", 100*min(done, total)/total))
	case done > 0:
		parts = append(parts, countOf(done, "row"))
	}
	parts = append(parts, gone.Truncate(time.Second).String())
	if total > 0 && done >= total/50 && done > 0 && done < total { // less says too little of the rest
		left := time.Duration(float64(gone) * float64(total-done) / float64(done))
		parts = append(parts, "about "+left.Round(time.Second).String()+" left")
	}
	for {
		line := strings.TrimSuffix(what+": "+strings.Join(parts, ", "), ": ")
		if width < 1 || utf8.RuneCountInString(line) <= width || len(parts) == 0 {
			return cut(line, width)
		}
		parts = parts[:len(parts)-1]
	}
}
