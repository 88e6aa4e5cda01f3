package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
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
	if e.on("wide") {
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
	return cmp.Or(int(size[1]), usualWidth)
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

// printOwned is printAll for the rows of the account that -account names, else for those of all accounts.
func printOwned[T any](e *env, read func(*queries, owner) ([]T, error), header string, cells func(T) []any) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	return printAll(e, func(q *queries) ([]T, error) { return read(q, o) }, header, cells)
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

// cellText returns the text of a table's cell. names are those of accounts.
func (e *env) cellText(v any, names map[string]string) string {
	text := ""
	switch v := v.(type) {
	case stamp:
		text = e.shortTime(v)
	case accountCell:
		text = cmp.Or(names[string(v)], string(v))
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
	return cmp.Or(text, noValue)
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

// wrap breaks a text into lines of at most n characters, at spaces where there are some.
func wrap(text string, n int) (lines []string) {
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

// writeHelpLine writes a line of the help: a name and what it means, which goes on in the next line
// where w is a terminal that is too narrow. Elsewhere it stays one line, which grep finds whole.
func writeHelpLine(w io.Writer, name, text string) {
	const indent = 37 // of the text
	lines := []string{text}
	if columns := terminalWidth(w); columns > 0 {
		lines = wrap(text, max(leastTextWidth, columns-indent))
	}
	fmt.Fprintf(w, "  %-34s %s\n", name, lines[0])
	for _, line := range lines[1:] {
		fmt.Fprintf(w, "%*s%s\n", indent, "", line)
	}
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
	return cmp.Or(printable(strings.Join(parts, ", ")), noValue)
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

// listRows returns as many of the first rows of a list as -limit says. If there are more, standard error says
// so; more names another command that prints them, "": none.
func listRows[F, T any](e *env, q *queries, read listFunc[F, T], filter F, more string) ([]T, error) {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return nil, err
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

// The commands about the program itself.
var helpCommands = []command{
	{"version", "", "print the version of this program", nil, 0, showVersion},
	{"help", "[COMMAND]", "print this list, or the options of a command", []option{
		{name: "markdown", help: "print all commands and all options as Markdown, as docs/operating.md has them"},
	}, 0, showHelp},
}

func showVersion(e *env) error {
	return e.print(map[string]string{"version": buildName()}, buildName())
}

func showHelp(e *env) error {
	if e.on("markdown") {
		return markdownHelp(e.stdout, e.commands)
	}
	return help(e.stdout, e.commands)
}

// allOptions returns every option of the commands, each once, the common ones first.
func allOptions(commands []command) []option {
	all := slices.Clone(commonOptions)
	for _, c := range commands {
		for _, o := range c.options {
			if !slices.ContainsFunc(all, func(known option) bool { return known.name == o.name }) {
				all = append(all, o)
			}
		}
	}
	return all
}

// help prints all commands and all options.
func help(w io.Writer, commands []command) error {
	fmt.Fprintln(w, "widgetd serves the public API for widgets and licences. Its commands:")
	fmt.Fprintln(w)
	listCommands(w, commands, "")
	fmt.Fprintln(w, "\nThe options of all commands, some with an environment variable.")
	fmt.Fprintln(w, "'widgetd help COMMAND' shows the options of one command:")
	fmt.Fprintln(w)
	for _, o := range allOptions(commands) {
		writeOption(w, o.general())
	}
	return nil
}

// listCommands prints the commands whose names begin with words, or all if that is "".
func listCommands(w io.Writer, commands []command, words string) {
	for _, c := range commands {
		if words == "" || c.startsWith(words) {
			writeHelpLine(w, c.signature(), c.help)
		}
	}
}

// commandHelp prints the help of one command.
func commandHelp(w io.Writer, commands []command, c *command) error {
	fmt.Fprintf(w, "widgetd %s\n\n  %s\n\n", c.signature(), c.help)
	for _, o := range c.acceptedOptions() {
		writeOption(w, o)
	}
	if slices.ContainsFunc(commands, func(other command) bool { return other.startsWith(c.name) }) {
		fmt.Fprintln(w)
		listCommands(w, commands, c.name)
	}
	return nil
}

// writeOption prints an option's line of the help.
func writeOption(w io.Writer, o option) {
	def := ""
	if o.def != "" {
		def = " (default " + o.def + ")"
	}
	variable := ""
	if o.hasVariable {
		variable = ", " + o.variable()
	}
	writeHelpLine(w, o.signature(), o.help+def+variable)
}

// markdownHelp prints all commands, the options of each, and all options as Markdown (GitHub's, which
// has tables). docs/operating.md contains what it prints.
func markdownHelp(w io.Writer, commands []command) error {
	fmt.Fprint(w, "## Commands\n\n| Command | Does |\n|---|---|\n")
	for _, c := range commands {
		fmt.Fprintf(w, "| `%s` | %s |\n", c.signature(), markdownCell(c.help))
	}
	var common []string
	for _, o := range commonOptions {
		common = append(common, "`-"+o.name+"`")
	}
	fmt.Fprintf(w, "\n## The options of each command\n\nEvery command takes %s. "+
		"A command that is missing here takes no other option.\n", strings.Join(common, ", "))
	for _, c := range commands {
		if len(c.options) > 0 {
			fmt.Fprintf(w, "\n### %s\n\n`widgetd %s`: %s\n\n", c.name, c.signature(), c.help)
			writeOptionTable(w, c.options)
		}
	}
	fmt.Fprint(w, "\n## All options\n\nWhere there is a variable, an environment variable of that name sets the "+
		"option, unless the command line does.\n\n")
	all := allOptions(commands)
	for i, o := range all {
		all[i] = o.general()
	}
	writeOptionTable(w, all)
	return nil
}

// writeOptionTable prints a table of options as Markdown.
func writeOptionTable(w io.Writer, options []option) {
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	fmt.Fprint(w, "| Option | Variable | Default | Meaning |\n|---|---|---|---|\n")
	for _, o := range options {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n",
			o.signature(), code(o.variable()), code(o.def), markdownCell(o.help))
	}
}

// markdownCell returns a text for a cell of a Markdown table, with the characters escaped that mean
// something in Markdown.
func markdownCell(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "`", "\\`", "<", `\<`, "[", `\[`).Replace(s)
}

// unknownCommand handles a command line whose first words name no command. If commands
// begin with those ("license", "books app"), it lists them; -h turns that list into a success.
func unknownCommand(commands []command, args []string, stdout, stderr io.Writer) error {
	group := 0 // how many of the first words begin the name of some command
	for group < min(maxCommandWords, len(args)) && slices.ContainsFunc(commands, func(c command) bool {
		return c.startsWith(strings.Join(args[:group+1], " "))
	}) {
		group++
	}
	name, rest := strings.Join(args[:group], " "), args[group:]
	switch another := len(rest) > 0 && !strings.HasPrefix(rest[0], "-"); {
	case group == 0:
		words := args[:1]
		if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
			words = args[:2]
		}
		return usageError(fmt.Sprintf("there is no command %q: see 'widgetd help'", strings.Join(words, " ")))
	case another:
		return usageError(fmt.Sprintf("there is no command %q: see 'widgetd help %s'", name+" "+rest[0], name))
	case slices.ContainsFunc(rest, isHelp):
		fmt.Fprintf(stdout, "The commands of widgetd %s; add -h to one for its options:\n\n", name)
		listCommands(stdout, commands, name)
		return nil
	}
	listCommands(stderr, commands, name)
	which := []string{"second", "third"}[group-1]
	return usageError(name + " needs a " + which + " word: its commands are listed above")
}
