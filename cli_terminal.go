package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
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

// usualWidth is how many columns are used where the output is no terminal and COLUMNS is not set.
const usualWidth = 80

// width returns how many columns the output has: those of its terminal, else COLUMNS, else usualWidth.
func (e *env) width() int {
	if columns := terminalWidth(e.stdout); columns > 0 {
		return columns
	}
	if columns, err := strconv.Atoi(e.getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return usualWidth
}

// terminalWidth returns the width in columns of the terminal that w writes to; 0: w is not a terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size := new([4]uint16) // rows, columns, and the size in pixels (ioctl_tty(2))
	address := reflect.ValueOf(size).Pointer()
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, address)
	runtime.KeepAlive(size)
	if errno != 0 {
		return 0
	}
	return int(size[1])
}

// A tableColumn is one column of a table for people, its title first. A column of text may be
// shortened; times, numbers and flags are shortened only when that is not enough.
type tableColumn struct {
	cells  []string
	isText bool
	width  int
}

const (
	columnGap      = 2 // spaces between two columns
	leastTextWidth = 8 // to which columns of text are shortened at first
	leastWidth     = 4 // to which all columns are shortened if that is not enough
)

// printRows writes rows to standard output: with -json each as an object on its own line,
// else as a table, which is shortened to the width of the terminal unless -wide is set. header
// holds the titles of the columns, separated by spaces.
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

// printTable is the part of printRows that is the same for rows of every type.
func (e *env) printTable(header string, rows [][]any) error {
	columns := []*tableColumn{}
	for _, title := range strings.Fields(header) {
		columns = append(columns, &tableColumn{cells: []string{title}, isText: true})
	}
	for _, row := range rows {
		for i, cell := range row {
			columns[i].cells = append(columns[i].cells, cellText(cell))
			switch cell.(type) {
			case stamp, int, int64, bool:
				columns[i].isText = false
			}
		}
	}
	if e.on("wide") {
		return writeTable(e.stdout, columns, 0)
	}
	return writeTable(e.stdout, columns, e.width())
}

// writeTable writes a table that is at most width columns wide, if possible; 0: no limit.
func writeTable(w io.Writer, columns []*tableColumn, width int) error {
	for _, c := range columns {
		for _, cell := range c.cells {
			c.width = max(c.width, utf8.RuneCountInString(cell))
		}
	}
	if width > 0 {
		shrinkColumns(columns, width, func(c *tableColumn) int { return c.leastReadable() })
		shrinkColumns(columns, width, func(c *tableColumn) int { return leastWidth })
	}
	var table strings.Builder
	last := columns[len(columns)-1]
	for row := range last.cells {
		for _, c := range columns[:len(columns)-1] {
			fmt.Fprintf(&table, "%-*s", c.width+columnGap, shorten(c.cells[row], c.width))
		}
		table.WriteString(shorten(last.cells[row], last.width) + "\n")
	}
	_, err := io.WriteString(w, table.String())
	return err
}

// leastReadable returns the width below which a column says too little: that of its title, of the
// ends of its ids, or all of it if it is no text.
func (c *tableColumn) leastReadable() int {
	if !c.isText {
		return c.width
	}
	least := max(leastTextWidth, utf8.RuneCountInString(c.cells[0]))
	for _, cell := range c.cells {
		if head, _, ok := cutID(cell); ok {
			least = max(least, len(head)+len("…")+3)
		}
	}
	return least
}

// shrinkColumns takes from the widest columns until the table fits the width, or until no column is
// wider than its least width.
func shrinkColumns(columns []*tableColumn, width int, least func(*tableColumn) int) {
	total := columnGap * (len(columns) - 1)
	for _, c := range columns {
		total += c.width
	}
	for ; total > width; total-- {
		var widest *tableColumn
		for _, c := range columns {
			if c.width > least(c) && (widest == nil || c.width > widest.width) {
				widest = c
			}
		}
		if widest == nil {
			return
		}
		widest.width--
	}
}

// shorten returns a text of at most n characters. What it leaves out it replaces by "…": of an id the
// middle, since ids made at about the same time begin alike; of any other text the end.
func shorten(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	if head, tail, ok := cutID(text); ok && n >= len(head)+3 {
		return head + "…" + tail[len(tail)-(n-len(head)-1):]
	}
	return string(runes[:n-1]) + "…"
}

// cutID splits a text that ends in an id after the id's prefix: "token tok_", "01m7…".
func cutID(text string) (head, tail string, ok bool) {
	const symbols = 26
	i := strings.LastIndexByte(text, '_') + 1
	if i == 0 || len(text)-i != symbols {
		return "", "", false
	}
	return text[:i], text[i:], true
}

// cellText returns the text of a table's cell; "-" stands for an empty one.
func cellText(v any) string {
	text := ""
	switch v := v.(type) {
	case stamp:
		if !v.IsZero() {
			text = v.String()
		}
	case *string:
		if v != nil {
			text = *v
		}
	case bool:
		if v {
			text = "yes"
		}
	default:
		text = fmt.Sprint(v)
	}
	return cmp.Or(text, "-")
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
	for _, d := range details {
		indent = max(indent, utf8.RuneCountInString(d.label)+columnGap)
	}
	room := max(leastTextWidth, e.width()-indent)
	var text strings.Builder
	for _, d := range details {
		lines := []string{d.value}
		if !e.on("wide") {
			lines = wrap(d.value, room)
		}
		for i, line := range lines {
			label := ""
			if i == 0 {
				label = d.label
			}
			text.WriteString(strings.TrimRight(fmt.Sprintf("%-*s%s", indent, label, line), " ") + "\n")
		}
	}
	_, err := io.WriteString(e.stdout, text.String())
	return err
}

// wrap breaks a text into lines of at most n characters, at spaces where there are some.
func wrap(text string, n int) (lines []string) {
	line := []rune{}
	for _, word := range strings.Split(text, " ") {
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
				return printable(v.raw)
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
	return cmp.Or(printable(strings.Join(parts, ", ")), "-")
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

// labelled returns a detail for each row, the first with the label; without rows it says "none".
func labelled[T any](label string, rows []T, text func(T) string) (details []detail) {
	for _, row := range rows {
		details = append(details, detail{label, text(row)})
		label = ""
	}
	if len(rows) == 0 {
		details = []detail{{label, "none"}}
	}
	return details
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
	cells func(T) []string,
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
					w.Write(cells(row))
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

// csvTextCell makes s safe for a CSV cell, since callers of the API choose these texts. It puts an
// apostrophe before a text that a spreadsheet would run as a formula, also where something that
// can't be seen comes first, and replaces characters that change the direction in which the row is
// shown by U+FFFD.
func csvTextCell(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Bidi_Control, r) {
			return utf8.RuneError
		}
		return r
	}, s)
	seen := strings.TrimLeftFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsGraphic(r)
	})
	if first, _ := utf8.DecodeRuneInString(seen); strings.ContainsRune("=+-@＝＋－＠", first) && seen != "" {
		return "'" + s
	}
	return s
}

// csvJSONCell returns a JSON object for a CSV cell. Characters that change the direction in which
// the row is shown are escaped.
func csvJSONCell(object []byte) string {
	var b strings.Builder
	for _, r := range string(object) {
		if unicode.Is(unicode.Bidi_Control, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// numberCell returns a number for a CSV cell, "" for nil.
func numberCell(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

// stampCell returns a time for a CSV cell, "" for the zero stamp.
func stampCell(s stamp) string {
	if s.IsZero() {
		return ""
	}
	return s.String()
}
