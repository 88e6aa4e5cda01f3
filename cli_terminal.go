package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// How commands print for people: tables and details that fit the width of the terminal.

// width returns how many columns the output has: those of its terminal, else COLUMNS. It returns 0 if there is no
// limit: elsewhere, so that grep finds every cell, and with -wide.
func (e *env) width() int {
	if e.on("wide") {
		return 0
	}
	if columns, is := terminalSize(e.stdout); is {
		return columns
	}
	columns, _ := strconv.Atoi(e.getenv("COLUMNS"))
	return max(0, columns)
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

// An accountCell is a table's cell with the id of an account, which is shown by its name.
type accountCell string

const (
	columnGap = 2   // spaces between two columns
	noValue   = "-" // stands for an empty cell
)

// printRows writes rows to standard output: with -json each as an object on its own line,
// else as a table. header holds the titles of the columns, separated by spaces; the first column names the row.
func printRows[T any](e *env, rows []T, header string, cells func(T) []any) error {
	if e.on("json") {
		for _, row := range rows {
			if _, err := e.stdout.Write(encodeJSON(row)); err != nil {
				return err
			}
		}
		return nil
	}
	var table [][]any
	for _, row := range rows {
		table = append(table, cells(row))
	}
	return e.printTable(header, table)
}

// printAll is printRows for the rows of a query.
func printAll[T any](e *env, read func(*queries) ([]T, error), header string, cells func(T) []any) error {
	return e.withStore(func(st *store) error {
		all, err := read(st.queries)
		if err != nil {
			return err
		}
		return printRows(e, all, header, cells)
	})
}

// printOwned is printList for the rows of the account that -account names, else for those of all accounts.
func printOwned[T any](e *env, ids idOf[T], read listFunc[owner, T], header string, cells func(T) []any) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	return printList(e, ids, read, o, header, cells)
}

// printList is printAll for the rows of a list that its options leave, see listRows.
func printList[F, T any](
	e *env, ids idOf[T], read listFunc[F, T], filter F, header string, cells func(T) []any,
) error {
	return printAll(e, func(q *queries) ([]T, error) { return listRows(e, q, ids, read, filter) }, header, cells)
}

// printTable is the part of printRows that is the same for rows of every type. Where a row does not fit the width,
// each is printed as a block of lines, without its empty cells. Nothing is ever shortened.
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
		text = blocksOf(titles, table[1:], width)
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

// blocksOf returns each row of a table as lines of a title and a cell, with an empty line between two rows.
func blocksOf(titles []string, rows [][]string, width int) string {
	var blocks []string
	for _, row := range rows {
		var block []detail
		for i, cell := range row {
			if cell != noValue {
				label := strings.NewReplacer("_", " ", "-", " ").Replace(strings.ToLower(titles[i]))
				block = append(block, detail{label, cell})
			}
		}
		blocks = append(blocks, detailLines(block, width))
	}
	return strings.Join(blocks, "\n")
}

// pointedTo returns what a cell points to, if it is a pointer; "" if that is nil.
func pointedTo(cell any) any {
	v := reflect.ValueOf(cell)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return ""
	}
	return v.Interface()
}

// cellText returns the text of a table's cell. names are those of accounts.
func (e *env) cellText(cell any, names map[string]string) string {
	text := ""
	switch v := pointedTo(cell).(type) {
	case stamp:
		text = e.shortTime(v)
	case accountCell:
		text = cmp.Or(names[string(v)], string(v))
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
		details[i].value = printable(details[i].value)
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
		for _, line := range wrap(d.value, width-indent) {
			text += strings.TrimRight(fmt.Sprintf("%-*s%s", indent, d.label, line), " ") + "\n"
			d.label = ""
		}
	}
	return text
}

// wrap breaks a text between words into lines of at most n characters, where it can; below 1: it stays one line.
func wrap(text string, n int) (lines []string) {
	if n < 1 {
		return []string{text}
	}
	line := ""
	for _, word := range strings.Split(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > n {
			lines, line = append(lines, line), word
		} else {
			line = strings.TrimPrefix(line+" "+word, " ")
		}
	}
	return append(lines, line)
}

// printMembers is printDetails for the members of a value that encodes to a JSON object.
func (e *env) printMembers(v any) error {
	members, err := memberDetails(v)
	if err != nil {
		return err
	}
	return e.printDetails(v, members)
}

// memberDetails returns the members of a value that encodes to a JSON object, as details.
func memberDetails(v any) ([]detail, error) {
	object, err := parseJSON(encodeJSON(v))
	return membersOf(&object), err
}

// membersOf returns the members of a JSON object, as details.
func membersOf(object *jsonValue) (details []detail) {
	for _, m := range object.members {
		details = append(details, detail{strings.ReplaceAll(m.name, "_", " "), memberText(&m.value)})
	}
	return details
}

// memberText returns a JSON value as text for people; "-" stands for null and for an empty one.
func memberText(v *jsonValue) string {
	parts := []string{}
	switch v.kind {
	case jsonNull:
	case jsonBool:
		return map[bool]string{false: "no", true: "yes"}[v.boolean]
	case jsonObject:
		for _, m := range v.members {
			if m.value.kind == jsonObject || m.value.kind == jsonArray {
				return v.raw
			}
			parts = append(parts, m.name+" "+memberText(&m.value))
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

// firstRows returns the first limit rows of a query for limit+1. If there are more, it says
// so on standard error; how names the option or command that prints them.
func firstRows[T any](e *env, rows []T, limit int, how string) []T {
	if len(rows) <= limit {
		return rows
	}
	fmt.Fprintf(e.stderr, "these are the first %d; print more with %s\n", limit, how)
	return rows[:limit]
}

// exportPageSize is how many rows commands read with one query.
const exportPageSize = 500

// A listFunc reads up to limit rows of a list that come after the cursor before ("" for the first page). filter
// says which rows the list has.
type listFunc[F, T any] func(q *queries, filter F, before string, limit int) (listPage[T], error)

// collectPages returns the first rows of a list, up to limit of them, from as many of its
// pages as it takes.
func collectPages[F, T any](q *queries, read listFunc[F, T], filter F, limit int) (all []T, err error) {
	for before := ""; ; {
		p, err := read(q, filter, before, min(limit-len(all), exportPageSize))
		all = append(all, p.rows...)
		if before = p.next; err != nil || before == "" || len(all) == limit {
			return all, err
		}
	}
}

// wholeList makes a list of one page of a query for all rows of a short table.
func wholeList[F, T any](read func(*queries, F) ([]T, error)) listFunc[F, T] {
	return func(q *queries, filter F, _ string, _ int) (p listPage[T], err error) {
		p.rows, err = read(q, filter)
		return p, err
	}
}

// An idOf says what the ids of rows begin with, and which id a row has. The zero idOf is for lists that are not ordered
// by ids.
type idOf[T any] struct {
	prefix string
	id     func(T) string
}

// spanned returns a list that has only those rows of another, ordered by their ids, that -since and -until leave.
func spanned[F, T any](e *env, ids idOf[T], read listFunc[F, T]) (listFunc[F, T], error) {
	if ids.prefix == "" {
		return read, nil
	}
	since, until, err := e.timeSpan()
	from, before := firstID(ids.prefix, since.Time), firstID(ids.prefix, cmp.Or(until, lastStamp).Time)
	if since.IsZero() {
		from = ""
	}
	return func(q *queries, filter F, after string, limit int) (p listPage[T], err error) {
		p, err = read(q, filter, cmp.Or(after, before), limit)
		outside := func(row T) bool { return ids.id(row) < from || ids.id(row) >= before }
		p.rows = slices.DeleteFunc(p.rows, outside)
		if p.next < from {
			p.next = ""
		}
		return p, err
	}, err
}

// listRows returns as many of the first rows of a list, of those that -since and -until leave, as -limit says; without
// it all. If there are more, standard error says so.
func listRows[F, T any](e *env, q *queries, ids idOf[T], read listFunc[F, T], filter F) ([]T, error) {
	list, err := spanned(e, ids, read)
	if err != nil {
		return nil, err
	}
	limit, err := e.rowLimit()
	if err != nil {
		return nil, err
	}
	all, err := collectPages(q, list, filter, limit+1)
	return firstRows(e, all, limit, "-limit N"), err
}

// exportRows prints all rows of a table as NDJSON, or with -csv as CSV with columns, see routeCommand. page reads up to
// exportPageSize rows that come after the cursor before ("" for the first page). cells returns the cells of a row; nil:
// they are the members that the columns name.
func exportRows[T any](
	e *env,
	columns string,
	page func(st *store, before string) (listPage[T], error),
	cells func(T) []any,
) error {
	titles, members := columnsOf(columns)
	if cells == nil {
		cells = func(row T) []any { return membersInCSV(row, members) }
	}
	return e.withStore(func(st *store) error {
		out := bufio.NewWriter(e.stdout)
		w := csv.NewWriter(out)
		if e.on("csv") {
			w.Write(titles)
		}
		for before := ""; ; {
			p, err := page(st, before)
			if err != nil {
				return err
			}
			for _, row := range p.rows {
				if e.on("csv") {
					w.Write(csvCells(cells(row)))
				} else {
					out.Write(encodeJSON(row))
				}
			}
			if before = p.next; before == "" {
				if w.Flush(); w.Error() != nil {
					return w.Error()
				}
				return out.Flush()
			}
		}
	})
}

// columnsOf returns the titles of columns, and the members that they show, see routeCommand.
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

// membersInCSV returns members of a row for a line of CSV; the elements of lists with spaces between them.
func membersInCSV(row any, members []string) (cells []any) {
	object, _ := parseJSON(encodeJSON(row))
	for _, member := range members {
		switch v := memberAt(&object, member); v.kind {
		case jsonObject:
			cells = append(cells, json.RawMessage(v.raw))
		case jsonArray:
			var texts []string
			for _, element := range v.list {
				texts = append(texts, element.text)
			}
			cells = append(cells, strings.Join(texts, " "))
		case jsonBool:
			cells = append(cells, v.boolean)
		default:
			cells = append(cells, v.text)
		}
	}
	return cells
}

// An amountCell is a number of ours in a cell of CSV, which may begin with a minus sign.
type amountCell string

// csvCells returns the cells of a row of CSV. All but an amountCell counts as what strangers may have written.
func csvCells(row []any) []string {
	cells := make([]string, len(row))
	for i, cell := range row {
		switch v := pointedTo(cell).(type) {
		case amountCell:
			cells[i] = string(v)
		case json.RawMessage:
			cells[i] = csvJSONCell(v)
		case stamp:
			cells[i] = stampCell(v)
		default:
			cells[i] = csvTextCell(fmt.Sprint(v))
		}
	}
	return cells
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

// stampCell returns a time for a CSV cell, "" for the zero stamp.
func stampCell(s stamp) string {
	if s.IsZero() {
		return ""
	}
	return s.String()
}
