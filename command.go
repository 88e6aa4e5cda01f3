package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// A usageError says how a command line is wrong.
type usageError string

func (u usageError) Error() string { return string(u) }

// An option is a flag, an environment variable WIDGETD_…, a line of the help and a
// row of the README at once.
type option struct {
	name        string // of the flag; upper-cased with _ for -, of the variable
	value       string // what stands for the value in the help; "": a switch
	def         string // the default
	help        string
	generalHelp string // help beside the program's list of options, where help is about one command
}

// says is the option with a help text for one command, to which it means something of
// its own.
func (o option) says(help string) option {
	o.help, o.generalHelp = help, cmp.Or(o.generalHelp, o.help)
	return o
}

// general is the option as the list of all options shows it.
func (o option) general() option {
	o.help = cmp.Or(o.generalHelp, o.help)
	return o
}

func (o option) variable() string {
	return "WIDGETD_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// The options that several nouns' commands share.
var (
	optDB         = option{name: "db", value: "FILE", def: "widgetd.db", help: "the database file"}
	optKey        = option{name: "key", value: "FILE", def: "widgetd.key", help: "the key file"}
	optJSON       = option{name: "json", help: "print JSON, one object or one a line, for scripts"}
	optAddr       = option{name: "addr", value: "HOST:PORT", def: "127.0.0.1:8080", help: "where to listen; ignored under systemd socket activation"}
	optLitestream = option{name: "litestream", help: "leave checkpoints to Litestream"}
	optLog        = option{name: "log", value: "FORMAT", def: "text", help: "text or json, on standard error"}
	optAccount    = option{name: "account", value: "ID", help: "whose it is"}
	optCSV        = option{name: "csv", help: "print CSV"}
	optLimit      = option{name: "limit", value: "N", def: "50", help: "how many to show"}
)

// A command is one word or two of the command line.
type command struct {
	name    string
	args    string // what follows, for the help
	help    string
	options []option // beside those of all commands
	nargs   int      // how many arguments it takes
	run     func(*env) error
}

// commonOptions are those that every command takes.
var commonOptions = []option{optDB, optKey, optJSON}

// acceptedOptions returns every option of the command.
func (c *command) acceptedOptions() []option { return slices.Concat(commonOptions, c.options) }

// The commands about the program itself.
var helpCommands = []command{
	{"version", "", "tell which build this is", nil, 0, showVersion},
	{"help", "[COMMAND]", "show this, or what a command takes", nil, 0, func(e *env) error { return help(e.stdout, e.commands) }},
}

func showVersion(e *env) error {
	return e.print(map[string]string{"version": buildName()}, buildName())
}

// An env is what a command runs in: its values, its arguments, and the world.
type env struct {
	ctx            context.Context
	getenv         func(string) string
	stdout, stderr io.Writer
	commands       []command // all there are
	command        *command
	args           []string
	values         map[string]*string
	switches       map[string]*bool
	now            func() time.Time
}

// str returns an option's value.
func (e *env) str(name string) string { return *e.values[name] }

// on returns whether a switch is set.
func (e *env) on(name string) bool { return *e.switches[name] }

// commaList returns the comma-separated parts of an option's value.
func (e *env) commaList(name string) []string {
	return strings.FieldsFunc(e.str(name), func(r rune) bool { return r == ',' || r == ' ' })
}

// number returns an option that is a number from low to high.
func (e *env) number(name string, low, high int) (int, error) {
	n, err := strconv.Atoi(e.str(name))
	if err != nil || n < low || n > high {
		return 0, usageError(fmt.Sprintf("-%s must be a number from %d to %d, not %q", name, low, high, e.str(name)))
	}
	return n, nil
}

// optionalNumber is number for an option that may be empty: then nil.
func (e *env) optionalNumber(name string, low, high int) (*int, error) {
	if e.str(name) == "" {
		return nil, nil
	}
	n, err := e.number(name, low, high)
	return &n, err
}

func isHelp(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }

// unknownCommand answers a line that names no whole command: with the commands that
// begin with its first word, if there are some.
func unknownCommand(commands []command, args []string, stdout, stderr io.Writer) error {
	words := args[:1]
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		words = args[:2]
	}
	known := slices.ContainsFunc(commands, func(c command) bool { return c.startsWith(args[0]) })
	switch {
	case known && len(words) == 1 && slices.ContainsFunc(args, isHelp):
		fmt.Fprintf(stdout, "widgetd %s has these commands; each shows its options with -h:\n\n", args[0])
		listCommands(stdout, commands, args[0])
		return nil
	case known && len(words) == 1:
		listCommands(stderr, commands, args[0])
		return usageError(args[0] + " needs a second word: these are its commands")
	case known:
		return usageError(fmt.Sprintf("there is no command %q: 'widgetd help %s' lists them", strings.Join(words, " "), args[0]))
	}
	return usageError(fmt.Sprintf("there is no command %q: 'widgetd help' lists them", strings.Join(words, " ")))
}

// findCommand takes the longest name that args begin with.
func findCommand(commands []command, args []string) (*command, []string) {
	for words := min(2, len(args)); words > 0; words-- {
		name := strings.Join(args[:words], " ")
		for i := range commands {
			if commands[i].name == name {
				return &commands[i], args[words:]
			}
		}
	}
	return nil, nil
}

// parse reads flags and arguments in any order. A flag wins over its variable.
func (e *env) parse(args []string) error {
	fs := flag.NewFlagSet(e.command.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	e.values, e.switches = map[string]*string{}, map[string]*bool{}
	for _, o := range e.command.acceptedOptions() {
		set := e.getenv(o.variable())
		if o.value == "" {
			on, err := strconv.ParseBool(cmp.Or(set, "false"))
			if err != nil {
				return usageError(fmt.Sprintf("%s must be true or false, not %q", o.variable(), set))
			}
			e.switches[o.name] = fs.Bool(o.name, on, o.help)
			continue
		}
		v := &onceValue{value: cmp.Or(set, o.def)}
		e.values[o.name] = &v.value
		fs.Var(v, o.name, o.help)
	}
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return usageError(fmt.Sprintf("%s: %v", e.command.name, err))
		}
		if fs.NArg() == 0 {
			break
		}
		e.args = append(e.args, fs.Arg(0))
		if args = fs.Args()[1:]; len(args) == 0 {
			break
		}
	}
	if len(e.args) != e.command.nargs {
		return usageError(fmt.Sprintf("this is used as: widgetd %s", e.command.usage()))
	}
	return nil
}

// A onceValue is a flag's text. Given twice it is refused: the first would be lost
// without a word.
type onceValue struct {
	value string
	given bool
}

func (v *onceValue) String() string { return v.value }

func (v *onceValue) Set(s string) error {
	if v.given {
		return errors.New("it stands there twice; a list is one value, with commas")
	}
	v.value, v.given = s, true
	return nil
}

// startsWith reports whether the command's name begins with a word and goes on.
func (c *command) startsWith(word string) bool { return strings.HasPrefix(c.name, word+" ") }

func (c *command) usage() string {
	usage := c.name
	if c.args != "" {
		usage += " " + c.args
	}
	for _, o := range c.options {
		usage += " [-" + strings.TrimSuffix(o.name+" "+o.value, " ") + "]"
	}
	return usage
}

// allOptions returns every option of the commands once, the common ones first.
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

// help lists commands and options.
func help(w io.Writer, commands []command) error {
	fmt.Fprintln(w, "widgetd is the public widget and licensing interface. Its commands:")
	fmt.Fprintln(w)
	listCommands(w, commands, "")
	fmt.Fprintln(w, "\nIts options, also as environment variables; 'widgetd help COMMAND' shows which one takes which:")
	fmt.Fprintln(w)
	for _, o := range allOptions(commands) {
		writeOption(w, o.general())
	}
	return nil
}

// listCommands lists the commands that begin with a word, or all.
func listCommands(w io.Writer, commands []command, word string) {
	for _, c := range commands {
		if word == "" || c.startsWith(word) {
			fmt.Fprintf(w, "  %-34s %s\n", strings.TrimSuffix(c.name+" "+c.args, " "), c.help)
		}
	}
}

func commandHelp(w io.Writer, commands []command, c *command) error {
	fmt.Fprintf(w, "widgetd %s\n\n  %s\n\n", strings.TrimSuffix(c.name+" "+c.args, " "), c.help)
	for _, o := range c.acceptedOptions() {
		writeOption(w, o)
	}
	if slices.ContainsFunc(commands, func(other command) bool { return other.startsWith(c.name) }) {
		fmt.Fprintln(w)
		listCommands(w, commands, c.name)
	}
	return nil
}

func writeOption(w io.Writer, o option) {
	def := ""
	if o.def != "" {
		def = " (" + o.def + ")"
	}
	fmt.Fprintf(w, "  %-34s %s%s, %s\n", strings.TrimSuffix("-"+o.name+" "+o.value, " "), o.help, def, o.variable())
}

// text returns an option that is kept as it is written, held to the rules of a
// member of a body.
func (e *env) text(name string, max int) (string, error) {
	if _, detail := checkText(e.str(name), optional, max); detail != "" {
		return "", usageError("-" + name + ": " + detail)
	}
	return e.str(name), nil
}

// filterID returns an option that names a row to filter by, or is empty. A mistyped
// id would look like a list without rows.
func (e *env) filterID(name, prefix string) (string, error) {
	id := e.str(name)
	if id != "" && !validID(prefix, id) {
		return "", usageError(fmt.Sprintf("-%s: %q is not an id of the kind %s_…", name, id, prefix))
	}
	return id, nil
}

// parseAge reads a duration that may be in days: "365d", "720h".
func parseAge(s string) (time.Duration, error) {
	if number, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(number)
		if err == nil && n > 0 && n <= 36500 {
			return days(n), nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d >= time.Second {
		return d, nil
	}
	return 0, usageError(fmt.Sprintf("%q is not a duration: it is like 720h or 365d", s))
}

// parseTime reads a date (its beginning in UTC), an RFC 3339 time, or a duration
// from now; the zero stamp for "".
func (e *env) parseTime(s string) (stamp, error) {
	if s == "" {
		return stamp{}, nil
	}
	if day, err := time.Parse(time.DateOnly, s); err == nil {
		s = day.Format(time.RFC3339)
	}
	if t, ok := parseStamp(s); ok {
		return t, nil
	}
	age, err := parseAge(s)
	if err != nil {
		return stamp{}, usageError(fmt.Sprintf("%q is not a time from 1970 to %d: it is like 2027-01-31, 2027-01-31T12:00:00Z or 365d", s, lastYear))
	}
	return newStamp(e.now().Add(age)), nil
}

// withStore opens the database for a command and closes it.
func (e *env) withStore(f func(*store) error) error {
	st, err := openStore(e.str("db"), storeOptions{keepLog: true, now: e.now})
	if err != nil {
		return err
	}
	return errors.Join(withNextStep(f(st)), st.close())
}

// change runs one transaction of a command.
func (e *env) change(f func(*tx) error) error {
	return e.withStore(func(st *store) error { return st.update(e.ctx, f) })
}

// changeQuietly is change for a command that has nothing to show for it: a script
// still gets its object.
func (e *env) changeQuietly(f func(*tx) error) error {
	if err := e.change(f); err != nil {
		return err
	}
	return e.done()
}

// done is the answer of a command that has nothing to show.
func (e *env) done() error {
	if !e.on("json") {
		return nil
	}
	return e.print(map[string]bool{"ok": true}, "")
}

// withNextStep tells an operator what a sentinel leaves open.
func withNextStep(err error) error {
	switch {
	case errors.Is(err, errNotFound):
		return errors.New("there is no such row: the list command shows the ids")
	case errors.Is(err, errAccount):
		return errors.New("there is no such account, or it is closed: 'widgetd account list' shows them")
	case errors.Is(err, errBusy):
		return fmt.Errorf("the database stayed locked: end the other writer and try again: %w", err)
	}
	return err
}

// print writes one result: as JSON, or as text for people.
func (e *env) print(v any, text string) error {
	if e.on("json") {
		_, err := e.stdout.Write(encodeJSON(v))
		return err
	}
	_, err := fmt.Fprintln(e.stdout, text)
	return err
}

// printRows writes rows: as JSON, one a line, or as a table.
func printRows[T any](e *env, rows []T, header string, cells func(T) []any) error {
	if e.on("json") {
		for _, row := range rows {
			if _, err := e.stdout.Write(encodeJSON(row)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(e.stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		texts := []string{}
		for _, cell := range cells(row) {
			texts = append(texts, cellText(cell))
		}
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	}
	return w.Flush()
}

// firstRows cuts rows, of which one more than the limit was asked for, and says
// what shows the rest.
func firstRows[T any](e *env, rows []T, limit int, rest string) []T {
	if len(rows) <= limit {
		return rows
	}
	fmt.Fprintf(e.stderr, "these are the first %d; there are more: %s shows them\n", limit, rest)
	return rows[:limit]
}

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

// exportPageSize is how many rows an export reads at a time.
const exportPageSize = 500

// exportRows prints rows of one kind in pages, as NDJSON or CSV.
func exportRows[T any](e *env, header []string, page func(st *store, before string) ([]T, error), id func(T) string, cells func(T) []string) error {
	return e.withStore(func(st *store) error {
		out := bufio.NewWriter(e.stdout)
		w := csv.NewWriter(out)
		if e.on("csv") {
			w.Write(header)
		}
		for before := ""; ; {
			rows, err := page(st, before)
			if err != nil {
				return err
			}
			for _, row := range rows {
				if e.on("csv") {
					w.Write(cells(row))
				} else {
					out.Write(encodeJSON(row))
				}
			}
			if len(rows) < exportPageSize {
				if w.Flush(); w.Error() != nil {
					return w.Error()
				}
				return out.Flush()
			}
			before = id(rows[len(rows)-1])
		}
	})
}

// csvTextCell keeps a spreadsheet from taking what a stranger wrote for a formula.
func csvTextCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}

func numberCell(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func stampCell(s stamp) string {
	if s.IsZero() {
		return ""
	}
	return s.String()
}

// printable is a text without what could play with a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// buildName names the build: its version, or the revision it was built from.
var buildName = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			revision = setting.Value
		case "vcs.modified":
			if setting.Value == "true" {
				modified = "+changes"
			}
		}
	}
	switch {
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	case revision != "":
		return revision[:min(12, len(revision))] + modified
	}
	return "development"
})
