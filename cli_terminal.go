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
