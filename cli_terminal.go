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
	"syscall"
	"unicode"
	"unicode/utf8"
)

// How commands print for people: tables and details that fit the width of the terminal.

// usualWidth is how many columns a terminal has that does not say.
const usualWidth = 80

// width returns how many columns the output has: those of its terminal, else COLUMNS. It returns 0 if there is no
// limit: elsewhere, so that grep finds every cell, and with -wide.
func (e *env) width() int {
	if e.command != nil && e.on("wide") {
		return 0
	}
	if columns := terminalWidth(e.stdout); columns > 0 {
		return columns
	}
	columns, err := strconv.Atoi(e.getenv("COLUMNS"))
	if err != nil {
		return 0
	}
	return max(0, columns)
}

// terminalWidth returns the width in columns of the terminal that w writes to, usualWidth if it does not know it; 0: w
// is not a terminal.
func terminalWidth(w any) int {
	columns, _ := terminalSize(w)
	return columns
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	_, is := terminalSize(stream)
	return is
}

// terminalSize returns the width of the terminal that a stream is, see terminalWidth; false: it is none.
func terminalSize(stream any) (columns int, is bool) {
	f, ok := stream.(*os.File)
	if !ok {
		return 0, false
	}
	size := new([4]uint16) // rows, columns, and the size in pixels (ioctl_tty(2))
	address := reflect.ValueOf(size).Pointer()
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, address)
	runtime.KeepAlive(size)
	if errno != 0 {
		return 0, false
	}
	return cmp.Or(int(size[1]), usualWidth), true
}

// An accountCell is a table's cell with the id of an account, which is shown by its name.
type accountCell string

// A textTable is a table for people: its lines, the titles of the columns first.
type textTable [][]string

const (
	columnGap      = 2   // spaces between two columns
	leastTextWidth = 8   // of what is broken into lines
	noValue        = "-" // stands for an empty cell
	chartTitle     = "." // of a column of bars, which is never left out
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

// printOwned is printSpan for the rows of the account that -account names, else for those of all accounts.
func printOwned[T any](e *env, ids idOf[T], read listFunc[owner, T], header string, cells func(T) []any) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	return printSpan(e, ids, read, o, header, cells)
}

// printSpan is printAll for the rows of a list that -since, -until and -limit leave, see spanRows.
func printSpan[F, T any](
	e *env, ids idOf[T], read listFunc[F, T], filter F, header string, cells func(T) []any,
) error {
	return printAll(e, func(q *queries) ([]T, error) { return spanRows(e, q, ids, read, filter) }, header, cells)
}

// printList is printAll for the first rows of a list, see listRows.
func printList[F, T any](e *env, read listFunc[F, T], filter F, header string, cells func(T) []any) error {
	return printAll(e, func(q *queries) ([]T, error) { return listRows(e, q, read, filter, "") }, header, cells)
}

// printTable is the part of printRows that is the same for rows of every type. In a terminal it leaves out columns
// that say nothing about any row, and prints the rows one below the other if the rest does not fit. Nothing is ever
// shortened.
func (e *env) printTable(header string, rows [][]any) error {
	table := textTable{strings.Fields(header)}
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
	width, left := e.width(), ""
	if width > 0 && len(rows) > 0 {
		table, left = table.withoutIdle()
	}
	var text strings.Builder
	switch widths, total := table.widths(); {
	case width == 0 || total <= width:
		table.write(&text, widths)
	case len(rows) == 0:
		text.WriteString("none\n")
	default:
		table.writeBlocks(&text, width)
		left = strings.TrimSuffix("\n"+left, "\n")
	}
	if left != "" {
		text.WriteString(strings.Join(wrap(left, width), "\n") + "\n")
	}
	_, err := io.WriteString(e.stdout, text.String())
	return err
}

// withoutIdle returns the table without the columns that are empty in every row, or the same in each of several rows,
// and a line that names those. The first column stays.
func (t textTable) withoutIdle() (kept textTable, left string) {
	stays := []int{0}
	var same, empty []string
	for i, title := range t[0][1:] {
		at := i + 1
		value := t[1][at]
		differs := slices.ContainsFunc(t[2:], func(line []string) bool { return line[at] != value })
		switch {
		case title == chartTitle || differs || value != noValue && len(t) == 2:
			stays = append(stays, at)
		case value == noValue:
			empty = append(empty, columnLabel(title))
		default:
			same = append(same, columnLabel(title)+" "+value)
		}
	}
	for _, line := range t {
		var cells []string
		for _, at := range stays {
			cells = append(cells, line[at])
		}
		kept = append(kept, cells)
	}
	var parts []string
	if len(same) > 0 {
		parts = append(parts, "all: "+strings.Join(same, ", "))
	}
	if len(empty) > 0 {
		parts = append(parts, "nothing in: "+strings.Join(empty, ", "))
	}
	return kept, strings.Join(parts, "; ")
}

// columnLabel returns the title of a column as the label of a line: "sends from" for SENDS_FROM.
func columnLabel(title string) string {
	return strings.NewReplacer("_", " ", "-", " ").Replace(strings.ToLower(title))
}

// widths returns the width of each column, and of the whole table.
func (t textTable) widths() (all []int, total int) {
	all = make([]int, len(t[0]))
	for _, line := range t {
		for i, cell := range line {
			all[i] = max(all[i], utf8.RuneCountInString(cell))
		}
	}
	for _, width := range all {
		total += width + columnGap
	}
	return all, total - columnGap
}

// write writes the table, a row a line.
func (t textTable) write(to *strings.Builder, widths []int) {
	for _, line := range t {
		text := ""
		for i, cell := range line {
			text += fmt.Sprintf("%-*s", widths[i]+columnGap, cell)
		}
		to.WriteString(strings.TrimRight(text, " ") + "\n")
	}
}

// writeBlocks writes each row as lines of a title and a cell, without the empty ones, and an empty line between two
// rows.
func (t textTable) writeBlocks(to *strings.Builder, width int) {
	indent := 0
	for _, title := range t[0] {
		indent = max(indent, len(title)+columnGap)
	}
	for n, line := range t[1:] {
		if n > 0 {
			to.WriteString("\n")
		}
		var block []detail
		for i, cell := range line {
			if cell != noValue {
				block = append(block, detail{columnLabel(t[0][i]), cell})
			}
		}
		writeDetails(to, block, indent, width)
	}
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
	indent := 0
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
		indent = max(indent, utf8.RuneCountInString(details[i].label)+columnGap)
	}
	var text strings.Builder
	writeDetails(&text, details, indent, e.width())
	_, err := io.WriteString(e.stdout, text.String())
	return err
}

// writeDetails writes details whose values begin after indent columns, in lines of width columns; 0: no limit.
func writeDetails(to *strings.Builder, details []detail, indent, width int) {
	at := indent
	for i, d := range details {
		lines := []string{d.value}
		if width > 0 {
			if d.label != "" {
				at = valueIndent(details[i:], indent, width)
			}
			lines = wrap(d.value, max(leastTextWidth, width-at))
		}
		if utf8.RuneCountInString(d.label)+columnGap > at {
			to.WriteString(d.label + "\n")
			d.label = ""
		}
		for _, line := range lines {
			to.WriteString(strings.TrimRight(fmt.Sprintf("%-*s%s", at, d.label, line), " ") + "\n")
			d.label = ""
		}
	}
}

// valueIndent returns after how many columns the value of the first detail begins, and those of the details without a
// label after it: indent, or less if a word of theirs, such as an id, would be broken otherwise.
func valueIndent(details []detail, indent, width int) int {
	longest := 0 // word that fits in a line
	for i, d := range details {
		if i > 0 && d.label != "" {
			break
		}
		for _, word := range unbroken(d.value) {
			if n := utf8.RuneCountInString(word); n <= width-columnGap {
				longest = max(longest, n)
			}
		}
	}
	for _, at := range []int{indent, utf8.RuneCountInString(details[0].label) + columnGap} {
		if at+longest <= width {
			return at
		}
	}
	return columnGap
}

// unbroken returns the words of a text between which it may be broken into lines. A number stays with its unit, and a
// date with its time.
func unbroken(text string) (words []string) {
	for _, word := range strings.Split(text, " ") {
		if last := len(words) - 1; last >= 0 && word != "" && len(word) <= len("15:04") && words[last] != "" &&
			strings.Trim(words[last], "0123456789.:-") == "" {
			words[last] += " " + word
		} else {
			words = append(words, word)
		}
	}
	return words
}

// wrap breaks a text into lines of at most n characters, at spaces where there are some; 0: it stays one line.
func wrap(text string, n int) (lines []string) {
	if n == 0 {
		return []string{text}
	}
	line := []rune{}
	for _, word := range unbroken(text) {
		rest := []rune(word)
		if len(line) > 0 && len(line)+1+len(rest) <= n {
			line = append(append(line, ' '), rest...)
			continue
		}
		if len(line) > 0 {
			lines = append(lines, string(line))
		}
		for len(rest) > n {
			lines, rest = append(lines, string(rest[:n])), rest[n:]
		}
		line = slices.Clone(rest)
	}
	return append(lines, string(line))
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
	details := []detail{}
	for _, m := range object.members {
		details = append(details, detail{strings.ReplaceAll(m.name, "_", " "), memberText(&m.value)})
	}
	return details, err
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

// An idOf says what the ids of rows begin with, and which id a row has.
type idOf[T any] struct {
	prefix string
	id     func(T) string
}

// spanned returns a list that has only those rows of another, ordered by their ids, that -since and -until leave.
func spanned[F, T any](e *env, ids idOf[T], read listFunc[F, T]) (listFunc[F, T], error) {
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

// spanRows is listRows for the rows of a list ordered by their ids that -since and -until leave.
func spanRows[F, T any](e *env, q *queries, ids idOf[T], read listFunc[F, T], filter F) ([]T, error) {
	list, err := spanned(e, ids, read)
	if err != nil {
		return nil, err
	}
	return listRows(e, q, list, filter, "")
}

// listRows returns as many of the first rows of a list as -limit says, without it all. If there are more,
// standard error says so; more names another command that prints them, "": none.
func listRows[F, T any](e *env, q *queries, read listFunc[F, T], filter F, more string) ([]T, error) {
	limit := math.MaxInt - 1
	if e.str("limit") != "" {
		var err error
		if limit, err = e.number("limit", 1, 1_000_000); err != nil {
			return nil, err
		}
	}
	all, err := collectPages(q, read, filter, limit+1)
	return firstRows(e, all, limit, "-limit N"+more), err
}

// exportRows prints all rows of a table as NDJSON, or with -csv as CSV. page reads up to
// exportPageSize rows that come after the cursor before ("" for the first page).
func exportRows[T any](
	e *env,
	header []string,
	page func(st *store, before string) (listPage[T], error),
	cells func(T) []any,
) error {
	return e.withStore(func(st *store) error {
		out := bufio.NewWriter(e.stdout)
		w := csv.NewWriter(out)
		if e.on("csv") {
			w.Write(header)
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
