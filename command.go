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

// A usageError says what is wrong with a command line; the program then exits with 2.
type usageError string

func (u usageError) Error() string { return string(u) }

// An option declares a flag together with its environment variable, its line of the help
// and its row of the README.
type option struct {
	name        string // of the flag: "max-devices"; the variable is WIDGETD_MAX_DEVICES
	value       string // placeholder of the value in the help: "FILE"; "" for a switch
	def         string // the default value
	help        string // what the option means to the command that takes it
	generalHelp string // what the list of all options says in place of help; "": the same
}

// says returns a copy of the option with a help text for one command. The list of all
// options keeps the text that the option was declared with.
func (o option) says(help string) option {
	o.help, o.generalHelp = help, cmp.Or(o.generalHelp, o.help)
	return o
}

// general returns a copy of the option with the help text for the list of all options.
func (o option) general() option {
	o.help = cmp.Or(o.generalHelp, o.help)
	return o
}

// variable returns the name of the option's environment variable.
func (o option) variable() string {
	return "WIDGETD_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// The options that the commands of several nouns share. A command for which one means
// something more precise gives it a text of its own with says.
var (
	optDB   = option{name: "db", value: "FILE", def: "widgetd.db", help: "path of the database file"}
	optKey  = option{name: "key", value: "FILE", def: "widgetd.key", help: "path of the key file"}
	optJSON = option{name: "json", help: "print JSON for scripts: one object, or one on each line"}
	optAddr = option{name: "addr", value: "HOST:PORT", def: "127.0.0.1:8080",
		help: "address to listen on, unless systemd passes a socket"}
	optLitestream = option{name: "litestream", help: "Litestream replicates the database and checkpoints it"}
	optLog        = option{name: "log", value: "FORMAT", def: "text",
		help: "format of the log on standard error: text or json"}
	optAccount = option{name: "account", value: "ID",
		help: "id of the account; 'widgetd account list' prints the ids"}
	optCSV   = option{name: "csv", help: "print CSV instead of JSON"}
	optLimit = option{name: "limit", value: "N", def: "50", help: "print at most this many rows"}
)

// A command is a command of the program, named by one word or two.
type command struct {
	name    string   // "version" or "license add"
	args    string   // placeholders of its arguments in the help: "ID N"
	help    string   // what it does, in one line
	options []option // besides commonOptions
	nargs   int      // how many arguments it requires
	run     func(*env) error
}

// commonOptions are the options that every command takes.
var commonOptions = []option{optDB, optKey, optJSON}

// acceptedOptions returns the common options and the command's own.
func (c *command) acceptedOptions() []option { return slices.Concat(commonOptions, c.options) }

// The commands about the program itself.
var helpCommands = []command{
	{"version", "", "print the version of this program", nil, 0, showVersion},
	{"help", "[COMMAND]", "print this list, or the options of a command", nil, 0, showHelp},
}

func showVersion(e *env) error {
	return e.print(map[string]string{"version": buildName()}, buildName())
}

func showHelp(e *env) error { return help(e.stdout, e.commands) }

// An env is what a command works with: its arguments and options, its streams and a clock.
type env struct {
	ctx            context.Context     // ends when the program is told to stop
	getenv         func(string) string // looks up an environment variable
	stdout, stderr io.Writer
	commands       []command // all commands of the program
	command        *command  // the one that runs
	args           []string  // its arguments, without options
	values         map[string]*string
	switches       map[string]*bool
	now            func() time.Time
}

// str returns the value of an option that is not a switch. The command must declare it.
func (e *env) str(name string) string { return *e.values[name] }

// on reports whether a switch is set. The command must declare it.
func (e *env) on(name string) bool { return *e.switches[name] }

// commaList returns the elements of an option's value, separated by commas or spaces.
func (e *env) commaList(name string) []string {
	return strings.FieldsFunc(e.str(name), func(r rune) bool { return r == ',' || r == ' ' })
}

// number returns an option's value as a number from low to high, or a usageError.
func (e *env) number(name string, low, high int) (int, error) {
	text := e.str(name)
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, usageError(fmt.Sprintf("-%s must be a number from %d to %d, not %q", name, low, high, text))
	}
	return n, nil
}

// optionalNumber is like number, but returns nil for an option that is empty.
func (e *env) optionalNumber(name string, low, high int) (*int, error) {
	if e.str(name) == "" {
		return nil, nil
	}
	n, err := e.number(name, low, high)
	return &n, err
}

func isHelp(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }

// unknownCommand handles a command line whose first words name no command. If commands
// begin with the first word ("license"), it lists those; -h turns that list into a success.
func unknownCommand(commands []command, args []string, stdout, stderr io.Writer) error {
	words := args[:1]
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		words = args[:2]
	}
	name := strings.Join(words, " ")
	known := slices.ContainsFunc(commands, func(c command) bool { return c.startsWith(args[0]) })
	switch {
	case known && len(words) == 1 && slices.ContainsFunc(args, isHelp):
		fmt.Fprintf(stdout, "The commands of widgetd %s; add -h to one for its options:\n\n", args[0])
		listCommands(stdout, commands, args[0])
		return nil
	case known && len(words) == 1:
		listCommands(stderr, commands, args[0])
		return usageError(args[0] + " needs a second word: its commands are listed above")
	case known:
		return usageError(fmt.Sprintf("there is no command %q: see 'widgetd help %s'", name, args[0]))
	}
	return usageError(fmt.Sprintf("there is no command %q: see 'widgetd help'", name))
}

// findCommand returns the command with the longest name that args begin with, and the args
// behind that name; nil if there is none.
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

// parse reads options and arguments, in any order, into e. A flag overrides its environment
// variable. It returns a usageError, or flag.ErrHelp when help was asked for.
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
		return usageError("usage: widgetd " + e.command.usage())
	}
	return nil
}

// A onceValue is the value of a flag that may be given only once. The flag package would
// drop the first of two values silently.
type onceValue struct {
	value string
	given bool
}

func (v *onceValue) String() string { return v.value }

func (v *onceValue) Set(s string) error {
	if v.given {
		return errors.New("the option is given twice; write a list as one value, separated by commas")
	}
	v.value, v.given = s, true
	return nil
}

// startsWith reports whether the command's name has two words, of which word is the first.
func (c *command) startsWith(word string) bool { return strings.HasPrefix(c.name, word+" ") }

// usage returns the command's name with the placeholders of its arguments and options.
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
	fmt.Fprintln(w, "\nThe options of all commands, with their environment variables.")
	fmt.Fprintln(w, "'widgetd help COMMAND' shows the options of one command:")
	fmt.Fprintln(w)
	for _, o := range allOptions(commands) {
		writeOption(w, o.general())
	}
	return nil
}

// listCommands prints the commands whose first word is word, or all if word is "".
func listCommands(w io.Writer, commands []command, word string) {
	for _, c := range commands {
		if word == "" || c.startsWith(word) {
			fmt.Fprintf(w, "  %-34s %s\n", strings.TrimSuffix(c.name+" "+c.args, " "), c.help)
		}
	}
}

// commandHelp prints the help of one command.
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

// writeOption prints an option's line of the help.
func writeOption(w io.Writer, o option) {
	def := ""
	if o.def != "" {
		def = " (default " + o.def + ")"
	}
	name := strings.TrimSuffix("-"+o.name+" "+o.value, " ")
	fmt.Fprintf(w, "  %-34s %s%s, %s\n", name, o.help, def, o.variable())
}

// text returns an option whose value is stored as it is, after the checks that a string of
// a request body must pass (checkText): at most max characters, no control characters.
func (e *env) text(name string, max int) (string, error) {
	if _, detail := checkText(e.str(name), optional, max); detail != "" {
		return "", usageError("-" + name + ": " + detail)
	}
	return e.str(name), nil
}

// filterID returns an option that names a row to filter by; "" means that it was not given.
// A malformed id is a usageError, because it would silently match nothing.
func (e *env) filterID(name, prefix string) (string, error) {
	id := e.str(name)
	if id != "" && !validID(prefix, id) {
		return "", usageError(fmt.Sprintf("-%s: %q is not an id of the kind %s_…", name, id, prefix))
	}
	return id, nil
}

// parseAge parses a duration of at least a second, in days ("365d", at most 100 years) or as
// time.ParseDuration has it ("720h").
func parseAge(s string) (time.Duration, error) {
	if number, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(number)
		if err == nil && n > 0 && n <= 36500 {
			return days(n), nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d >= time.Second {
		return d, nil
	}
	return 0, usageError(fmt.Sprintf("%q is not a duration such as 720h or 365d", s))
}

// parseTime parses a date (meaning its first second in UTC), an RFC 3339 time, or a duration
// from now ("365d"). For "" it returns the zero stamp.
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
		return stamp{}, usageError(fmt.Sprintf(
			"%q is not a time from 1970 to %d, such as 2027-01-31, 2027-01-31T12:00:00Z or 365d", s, lastYear))
	}
	return newStamp(e.now().Add(age)), nil
}

// withStore opens the database, calls f and closes the database again.
func (e *env) withStore(f func(*store) error) error {
	st, err := openStore(e.str("db"), storeOptions{noCheckpoints: true, now: e.now})
	if err != nil {
		return err
	}
	return errors.Join(withNextStep(f(st)), st.close())
}

// change opens the database and runs f in a transaction.
func (e *env) change(f func(*tx) error) error {
	return e.withStore(func(st *store) error { return st.update(e.ctx, f) })
}

// changeQuietly is change for a command that prints no result; see done.
func (e *env) changeQuietly(f func(*tx) error) error {
	if err := e.change(f); err != nil {
		return err
	}
	return e.done()
}

// done ends a command that has no result: it prints nothing, or {"ok":true} with -json.
func (e *env) done() error {
	if !e.on("json") {
		return nil
	}
	return e.print(map[string]bool{"ok": true}, "")
}

// withNextStep turns the store's sentinel errors, which are worded for callers of the API,
// into texts for the operator that name the next step.
func withNextStep(err error) error {
	switch {
	case errors.Is(err, errNotFound):
		return errors.New("not found: the matching list command prints what there is")
	case errors.Is(err, errAccount):
		return errors.New("there is no such account, or it is closed: 'widgetd account list' prints all accounts")
	case errors.Is(err, errBusy):
		return fmt.Errorf("another program keeps the database locked: end its transaction and try again: %w", err)
	}
	return err
}

// print writes a command's result to standard output: v with -json, else text.
func (e *env) print(v any, text string) error {
	if e.on("json") {
		_, err := e.stdout.Write(encodeJSON(v))
		return err
	}
	_, err := fmt.Fprintln(e.stdout, text)
	return err
}

// printRows writes rows to standard output: with -json each as an object on its own line,
// else as a table. header holds the titles of the columns, separated by spaces.
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

// firstRows returns the first limit rows of a query for limit+1. If there are more, it says
// so on standard error; how names the option or command that prints them.
func firstRows[T any](e *env, rows []T, limit int, how string) []T {
	if len(rows) <= limit {
		return rows
	}
	fmt.Fprintf(e.stderr, "these are the first %d; print more with %s\n", limit, how)
	return rows[:limit]
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

// exportPageSize is how many rows an export reads with one query.
const exportPageSize = 500

// exportRows prints all rows of a table as NDJSON, or with -csv as CSV. page reads up to
// exportPageSize rows that come after the row with the id before ("" for the first page).
func exportRows[T any](
	e *env,
	header []string,
	page func(st *store, before string) ([]T, error),
	id func(T) string,
	cells func(T) []string,
) error {
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

// csvTextCell returns s for a CSV cell. It puts an apostrophe before a text that a
// spreadsheet would run as a formula, since callers of the API choose these texts.
func csvTextCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
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

// printable replaces control characters by U+FFFD: they could change the state of the
// terminal that the text is printed on.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// buildName returns the program's version, or the revision that it was built from.
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
