package main

import (
	"cmp"
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

// printTable prints a table; header holds the titles of its columns, separated by spaces. Where a row does not fit the
// width, each is printed as a block of lines, without its empty cells. Nothing is ever shortened.
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

// cellText returns the text of a table's cell. names are those of accounts.
func (e *env) cellText(cell any, names map[string]string) string {
	text := ""
	switch v := cell.(type) {
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

// stampText returns a time, "" for the zero stamp.
func stampText(s stamp) string {
	if s.IsZero() {
		return ""
	}
	return s.String()
}
