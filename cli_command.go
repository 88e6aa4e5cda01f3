package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A usageError says what is wrong with a command line; the program then exits with 2.
type usageError string

func (u usageError) Error() string { return string(u) }

// An option declares a flag together with its environment variable, if it has one, its line of
// the help and of /docs/commands.
type option struct {
	name        string // of the flag: "max-devices"
	value       string // what the help shows as the value: "FILE"; "" for a switch
	def         string // the default value
	help        string // what the option means to the command that takes it
	generalHelp string // what the list of all options says in place of help; "": the same

	// The words that the value is one of, or a list of. nil: it is another. A function, since lists that are made when
	// the program starts would make every declaration start-up code.
	words func() []string

	asks        bool // its command asks for a typed yes without it, see confirm
	hasVariable bool // also read from an environment variable: those of serve, and -db, -key, -json

	// What the option sets where its command calls a route, see routeCommand, and what it sends; nil: its text.
	member string // "expires_at"
	reads  func(e *env, text string) (any, error)
	null   string // what the help says of the value that sends null: "none"; "": none does
}

// says returns a copy of the option with a help text for one command. The list of all
// options keeps the text that the option was declared with.
func (o option) says(help string) option {
	o.help, o.generalHelp = help, cmp.Or(o.generalHelp, o.help)
	return o
}

// takes returns a copy of the option whose value is of other words.
func (o option) takes(words func() []string) option {
	o.words = words
	return o
}

// general returns a copy of the option with the help text for the list of all options. Where that differs from the one
// of a command, its words may, too.
func (o option) general() option {
	if o.generalHelp != "" {
		o.help, o.words = o.generalHelp, nil
	}
	return o
}

// variable returns the name of the option's environment variable, as WIDGETD_DEBUG_ADDR; "" if it
// has none.
func (o option) variable() string {
	if !o.hasVariable {
		return ""
	}
	return "WIDGETD_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// A command is a command of the program, named by one to three words.
type command struct {
	name    string   // "version", "license add" or "books app set"
	args    string   // placeholders of its arguments: "ID N"
	help    string   // what it does, in one line
	options []option // besides commonOptions
	run     func(*env) error
}

// The options that every command has.
var (
	optDB = option{name: "db", value: "FILE", def: "widgetd.db", help: "path of the database file",
		hasVariable: true}
	optKey = option{name: "key", value: "FILE", def: "widgetd.key", help: "path of the key file",
		hasVariable: true}
	optJSON = option{name: "json", help: "print JSON for scripts: one object, or one on each line",
		hasVariable: true}
	optWide = option{name: "wide",
		help: "print tables with a row a line, all cells and whole times, also wider than the terminal"}
)

// commonOptions are the options that every command takes.
var commonOptions = []option{optDB, optKey, optJSON, optWide}

// acceptedOptions returns the common options and the command's own.
func (c *command) acceptedOptions() []option { return slices.Concat(commonOptions, c.options) }

// nargs returns how many arguments the command requires: [FILE] may be left out.
func (c *command) nargs() int {
	return len(strings.Fields(c.args)) - strings.Count(c.args, "[")
}

// asks reports whether the command asks for a typed yes before it moves money or does what can't be undone.
func (c *command) asks() bool {
	return slices.ContainsFunc(c.options, func(o option) bool { return o.asks })
}

// An env is what a command works with: its arguments and options, its streams and a clock.
type env struct {
	ctx            context.Context     // ends when the program is told to stop
	getenv         func(string) string // looks up an environment variable
	stdin          io.Reader
	stdout, stderr io.Writer
	nouns          []noun
	commands       []command         // all commands of the program
	command        *command          // the one that runs
	args           []string          // its arguments, without options
	typed          map[string]string // the options that were typed, by name
	values         map[string]string // of every option that the command takes, see take
	now            func() time.Time
	callLimit      time.Duration     // for a call to an address of 'widgetd watch'; 0: watchLimit
	synchronised   func() bool       // whether the kernel says that the clock is right; nil: the clock is not doubted
	opened         *store            // the database, while withStore has it open
	shared         *store            // the database, which tests keep open; nil: withStore opens it
	installed      string            // directory of the installation: installedDir; "": none is looked for
	uid            int               // of the user as whom the program acts
	caller         string            // name of the user who called it, see callingUser
	canAsk         bool              // standard input and standard error are terminals
	rewrites       bool              // standard error is a terminal, whose last line can be rewritten
	line           *progress         // what it tells there; nil: nothing
	files          map[string]string // paths of the database ("db") and the key file ("key"), see locate
	wasRoot        bool              // root has called it, and it acts as another user, see becomeOwner
}

// actor returns the actor of the events that a command writes.
func (e *env) actor() string {
	if e.caller == "" {
		return actorCommand
	}
	return actorCommand + ":" + e.caller
}

// maxCommandWords is how many words the name of a command has at most.
const maxCommandWords = 3

// oldNames are names that commands had before, and those that they have now: scripts may use either.
// No help and no document shows an old one.
var oldNames = map[string]string{
	"account rate": "account set-rate", "base-url": "base-url show", "books export": "books export send",
	"books exports": "books export list", "books mapping": "books map", "books retry": "books export retry",
	"books reverse": "books export reverse", "events": "event list", "leads erase": "lead erase",
	"leads export": "lead export", "leads list": "lead list", "leads purge": "lead purge", "legacy": "legacy list",
	"license patch": "license set", "payments export": "payment export", "stats": "widget stats",
	"webhook deliveries": "webhook delivery list", "webhook patch": "webhook set",
	"webhook retry": "webhook delivery retry",
}

// findCommand returns the command with the longest name, of now or before, that args begin with, and the
// args after that name; nil if there is none. What begins the names of other commands too, as "books
// export", is the old name of one only before as many args as that takes.
func findCommand(commands []command, args []string) (*command, []string) {
	for words := min(maxCommandWords, len(args)); words > 0; words-- {
		name, rest := strings.Join(args[:words], " "), args[words:]
		old := oldNames[name]
		for i := range commands {
			if c := &commands[i]; c.name == name || c.name == old && (len(rest) == c.nargs() ||
				!slices.ContainsFunc(commands, func(other command) bool { return other.startsWith(name) })) {
				return c, rest
			}
		}
	}
	return nil, nil
}

// readLine reads the options of a line into e.typed and returns the words between them. Options may stand anywhere,
// so what follows a word is parsed again; behind "--" are only words. Errors: usageError.
func (e *env) readLine(args []string, known []option) (words []string, err error) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	e.typed = map[string]string{}
	for _, o := range known {
		if o.value == "" {
			flags.BoolFunc(o.name, "", func(text string) error {
				e.typed[o.name] = text
				if _, err := strconv.ParseBool(text); err != nil {
					return errors.New("give true or false")
				}
				return nil
			})
			continue
		}
		flags.Func(o.name, "", func(text string) error {
			if e.given(o.name) {
				return errors.New("it is given twice; write a list as one value, separated by commas")
			}
			e.typed[o.name] = text
			return nil
		})
	}
	var behind []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, behind = args[:i], args[i+1:]
	}
	for {
		err := flags.Parse(args)
		if unknown, is := strings.CutPrefix(fmt.Sprint(err), "flag provided but not defined: -"); is {
			return nil, e.unknownOption(words, unknown, known)
		}
		if err != nil {
			return nil, usageError(printable(err.Error()))
		}
		if flags.NArg() == 0 {
			return append(words, behind...), nil
		}
		words, args = append(words, flags.Arg(0)), flags.Args()[1:]
	}
}

// unknownOption returns the error for an option that the command of these words does not take, or without a command
// for one that no command takes.
func (e *env) unknownOption(words []string, name string, known []option) error {
	what, help := "there is", "help -all"
	if c, _ := findCommand(e.commands, words); c != nil {
		what, help, known = c.name+" has", "help "+c.name, c.acceptedOptions()
	}
	var names []string
	for _, o := range known {
		names = append(names, o.name)
	}
	step := "see 'widgetd " + help + "'"
	if meant, ok := nearest(name, names); ok {
		step = "did you mean -" + meant + "?"
	}
	return usageError(fmt.Sprintf("%s no option -%s: %s", what, printable(name), step))
}

// parse reads the options and arguments of e.command, in any order, into e. Errors: usageError.
func (e *env) parse(args []string) error {
	words, err := e.readLine(args, e.command.acceptedOptions())
	if err != nil {
		return err
	}
	return e.take(words)
}

// take sets the arguments of e.command, and its options: as they were typed, else by their environment variables,
// else by default. Errors: usageError.
func (e *env) take(args []string) error {
	accepted := e.command.acceptedOptions()
	for _, name := range slices.Sorted(maps.Keys(e.typed)) {
		if !slices.ContainsFunc(accepted, func(o option) bool { return o.name == name }) {
			return e.unknownOption(strings.Fields(e.command.name), name, nil)
		}
	}
	e.values = map[string]string{}
	for _, o := range accepted {
		set := ""
		if o.hasVariable {
			set = e.getenv(o.variable())
		}
		if _, err := strconv.ParseBool(set); o.value == "" && set != "" && err != nil {
			return usageError(fmt.Sprintf("%s must be true or false, not %q", o.variable(), set))
		}
		e.values[o.name] = cmp.Or(set, o.def)
		if e.given(o.name) {
			e.values[o.name] = e.typed[o.name]
		}
		if value := e.values[o.name]; o.isVendorAddress() && value != "" && !isBaseAddress(value) {
			return usageError(fmt.Sprintf("-%s must be an address such as https://api.example.com, not %q", o.name,
				value))
		}
	}
	if e.args = args; len(args) < e.command.nargs() || len(args) > len(strings.Fields(e.command.args)) {
		return usageError("usage: widgetd " + e.command.usage())
	}
	return nil
}

// startsWith reports whether the command's name begins with these words and has more.
func (c *command) startsWith(words string) bool { return strings.HasPrefix(c.name, words+" ") }

// usage returns the command's name with the placeholders of its arguments and options.
func (c *command) usage() string {
	usage := c.signature()
	for _, o := range c.options {
		usage += " [" + o.signature() + "]"
	}
	return usage
}

// withStore opens the database, calls f and closes the database again. Standard error names the tables in which f
// left out rows that can't be read.
func (e *env) withStore(f func(*store) error) error {
	if e.opened != nil { // by a caller
		return f(e.opened)
	}
	path, err := e.file("db")
	if err != nil {
		return err
	}
	st := e.shared
	if st == nil {
		if st, err = openStore(path, storeOptions{noCheckpoints: true, now: e.now}); err != nil {
			return err
		}
	}
	e.opened = st
	err = withNextStep(f(st))
	e.opened = nil
	if err == nil {
		for _, row := range st.faults.rowsMet() {
			e.note("rows of %s can't be read and were left out, such as %s (%s): run 'widgetd check'\n",
				row.table, cmp.Or(row.id, "one"), row.cause)
		}
	}
	if st == e.shared {
		return err
	}
	return errors.Join(err, st.close())
}

// isVendorAddress reports whether an option has an address in the place of a vendor's.
func (o option) isVendorAddress() bool { return strings.HasSuffix(o.name, "-url") && o.hasVariable }

// isBaseAddress reports whether a text is the address of a service.
func isBaseAddress(text string) bool {
	at, err := url.Parse(text)
	return err == nil && at.Host != "" && (at.Scheme == "http" || at.Scheme == "https")
}

// queried opens the database and returns what a query finds there.
func queried[T any](e *env, query func(*queries) (T, error)) (found T, err error) {
	err = e.withStore(func(st *store) (err error) {
		found, err = query(st.queries)
		return err
	})
	return found, err
}

// change opens the database and runs f in a transaction.
func (e *env) change(f func(*tx) error) error {
	return e.withStore(func(st *store) error { return st.update(e.ctx, f) })
}

// changed is change, and returns what f has returned.
func changed[T any](e *env, f func(*tx) (T, error)) (result T, err error) {
	err = e.withStore(func(st *store) (err error) {
		result, err = updated(e.ctx, st, f)
		return err
	})
	return result, err
}

// changeAndName is change for a command that has no result. f returns the line that names what was changed; see done.
func (e *env) changeAndName(f func(*tx) (string, error)) error {
	line, err := changed(e, f)
	if err != nil {
		return err
	}
	return e.done(line)
}

// done ends a command that has no result: it prints a line that names what was changed, or {"ok":true} with -json.
func (e *env) done(line string) error { return e.print(map[string]bool{"ok": true}, line) }

// withName returns an id with the name that people know it by: "acct_… (Bistro)".
func withName(id, name string) string { return fmt.Sprintf("%s (%s)", id, printable(name)) }

// errDeclined is the error of a command whose question was not answered with yes.
var errDeclined = errors.New("nothing was changed: only the word yes goes on")

// confirm says what a command is about to do, unless -force is given. On a terminal it goes on only after a typed
// yes, else it returns errDeclined; elsewhere, where nobody could answer, it goes on. plan reads what will be done,
// with its counts, also with -force; "" asks nothing. The database is closed while it waits, so that nothing waits
// for the answer, and what is changed afterwards has to be looked up again.
func (e *env) confirm(plan func(*queries) (string, error)) error {
	text, err := queried(e, plan)
	if err != nil {
		return err
	}
	return e.ask(text)
}

// ask is confirm with the text itself.
func (e *env) ask(text string) error {
	text = printableLines(text)
	switch {
	case text == "" || e.on("force"):
		return nil
	case !e.canAsk:
		e.note("warning: this %s; -force leaves out this line\n", text)
		return nil
	}
	e.note("This %s.\nType yes to go on: ", text)
	if e.answered() != "yes" {
		fmt.Fprintln(e.stderr)
		return errDeclined
	}
	return nil
}

// answered returns the line that somebody types on the terminal. It returns "" for a line that has no end, and when
// the program is told to stop.
func (e *env) answered() string {
	line := make(chan string, 1)
	go func() {
		text, err := bufio.NewReader(e.stdin).ReadString('\n') // of a terminal, which gives a line at a time
		if err != nil {
			text = ""
		}
		line <- strings.TrimSpace(text)
	}()
	select {
	case text := <-line:
		return text
	case <-e.ctx.Done():
		return ""
	}
}

// withNextStep turns the store's sentinel errors, which are worded for callers of the API,
// into texts for the operator that name the next step.
func withNextStep(err error) error {
	switch {
	case errors.Is(err, errNotFound):
		return errors.New("not found: the matching list command prints what there is")
	case errors.Is(err, errAccount):
		return errors.New("there is no such account, or it is closed: 'widgetd account list' prints all accounts")
	case errors.Is(err, errUnreadable):
		return fmt.Errorf("%w: 'widgetd check' prints how to mend it", err)
	case errors.Is(err, errBusy):
		return fmt.Errorf("another program keeps the database locked: end its transaction and try again: %w", err)
	}
	return err
}

// print writes a command's result to standard output: v with -json, else text, which fits the width.
func (e *env) print(v any, text string) error {
	return e.printAsIs(v, fitted(printableLines(text), e.width()))
}

// printAsIs is print for a text that programs read, too: its lines stay as they are.
func (e *env) printAsIs(v any, text string) error {
	if e.on("json") {
		_, err := e.stdout.Write(encodeJSON(v))
		return err
	}
	_, err := fmt.Fprintln(e.stdout, printableLines(text))
	return err
}

// on reports whether a switch is set. The command must declare it.
func (e *env) on(name string) bool {
	on, _ := strconv.ParseBool(e.values[name]) // take has checked it
	return on
}

// str returns the value of an option that is not a switch. The command must declare it.
func (e *env) str(name string) string { return e.values[name] }

// given reports whether an option was typed, perhaps with an empty value.
func (e *env) given(name string) bool {
	_, is := e.typed[name]
	return is
}

// isSet reports whether an option was typed or is set by its environment variable.
func (e *env) isSet(o option) bool { return e.given(o.name) || e.getenv(o.variable()) != "" }

// signature returns the command's name with the names of its arguments: "account set-rate ID N".
func (c *command) signature() string { return strings.TrimSuffix(c.name+" "+c.args, " ") }

// signature returns the option with the name of its value: "-max-devices N".
func (o option) signature() string { return strings.TrimSuffix("-"+o.name+" "+o.value, " ") }

// number returns an option's value as a number from low to high, or a usageError.
func (e *env) number(name string, low, high int) (int, error) {
	text := e.str(name)
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, usageError(fmt.Sprintf("-%s must be a number from %d to %d, not %q", name, low, high, text))
	}
	return n, nil
}
