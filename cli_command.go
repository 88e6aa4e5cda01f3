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
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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

// The options that the commands of several nouns share. A command for which one means
// something more precise gives it a text of its own with says.
var (
	optAddr = option{name: "addr", value: "HOST:PORT", def: "127.0.0.1:8080",
		help: "address to listen on, unless systemd passes a socket; unix:PATH is a Unix socket, which the group of " +
			"the user who runs it may use too",
		hasVariable: true}
	optOutboundAllow = option{name: "outbound-allow", value: "CIDR,…",
		help: "networks or addresses that webhooks may reach although they are not public, " +
			"with http too, on any port and by address; by default only public ones on port 443",
		hasVariable: true}
	optLitestream = option{name: "litestream", help: "Litestream replicates the database and checkpoints it",
		hasVariable: true}
	optLog = option{name: "log", value: "FORMAT", def: "text",
		help: "format of the log on standard error", hasVariable: true,
		words: func() []string { return []string{"text", "json"} }}
	optAccount = option{name: "account", value: accountPlaceholder, member: "account_id",
		help: "name or id of an account; where one is needed, by default the main account"}
	optOfAccount = optAccount.says("only those of this account; by default of all")

	optForce   = option{name: "force", help: "do what the command would otherwise refuse"}
	optUnasked = option{name: "force", asks: true,
		help: "do not ask, and leave out the warning where nobody can be asked"}
	optCSV   = option{name: "csv", help: "print CSV instead of JSON"}
	optLimit = option{name: "limit", value: "N", def: "50", help: "print at most this many rows"}
	optSince = option{name: "since", value: "TIME",
		help: "show only rows since a date or an RFC 3339 time, or of the last days, as 7d"}
	optUntil = option{name: "until", value: "TIME",
		help: "show only rows until the end of a date (UTC), or until an RFC 3339 time"}
	optAllRows = option{name: "limit", value: "N", help: "print at most this many rows; by default all",
		generalHelp: "print at most this many rows; by default 50, where lists are short all"}
	optDryRun  = option{name: "dry-run", help: "check everything, change nothing"}
	optFromDay = option{name: "from", value: "DATE", member: "from", reads: asDay,
		help: "first day; by default 30 days end with the last one"}
	optToDay = option{name: "to", value: "DATE", member: "to", reads: asDay,
		help: "last day, included; by default today"}
	optSecrets = option{name: "secrets", value: "FILE",
		help: "- for standard input, as your shell opens it (-secrets - <stripe.txt), or a file that only the user " +
			"who runs the command can read, with lines of what the provider gave: " +
			"key=rk_live_… for stripe; client_id=, client_secret=, subscription_key= and merchant_serial= for vipps"}
	optScope = option{name: "scope", value: "SCOPE,…", member: "scope", reads: asWords,
		help: "what the token may do, separated by commas", words: func() []string { return grantableScopes }}
)

// commaList returns the elements of an option's value, separated by commas or spaces.
func (e *env) commaList(name string) []string { return splitList(e.str(name)) }

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// parsePrefixes parses the value of an option: networks, and addresses as networks of one.
func parsePrefixes(option string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			address := parseAddress(text)
			if !address.IsValid() {
				return nil, usageError(fmt.Sprintf("-%s: %q is not an address or CIDR", option, text))
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		all = append(all, prefix)
	}
	return all, nil
}

// pastTime parses a moment in the past: a date (its first second in UTC), an
// RFC 3339 time, or a duration back from now, as 7d. For "" it returns the zero stamp.
func (e *env) pastTime(text string) (stamp, error) {
	if age, err := parseSpan(text, true); err == nil {
		return newStamp(age.before(e.now())), nil
	}
	return e.parseTime(text)
}

// timeSpan returns the moments that -since and -until name, zero where they are not given. A date as -until
// means its end.
func (e *env) timeSpan() (since, until stamp, err error) {
	if since, err = e.pastTime(e.str("since")); err != nil {
		return since, until, fmt.Errorf("-since: %w", err)
	}
	if until, err = e.pastTime(e.str("until")); err != nil {
		return since, until, fmt.Errorf("-until: %w", err)
	}
	if _, isDate := parseDate(e.str("until")); isDate {
		until = until.after(24 * time.Hour)
	}
	return since, until, nil
}

// date returns the start in UTC of the day that an option names, or the zero time if it is not given.
// Errors: usageError.
func (e *env) date(name string) (time.Time, error) {
	text := e.str(name)
	if text == "" {
		return time.Time{}, nil
	}
	day, ok := parseDate(text)
	if !ok {
		return time.Time{}, usageError(fmt.Sprintf("-%s must be a date, YYYY-MM-DD, not %q", name, text))
	}
	return day.Time, nil
}

// fromTo returns the days that -from and -to name, as date does. Errors: usageError.
func (e *env) fromTo() (from, to time.Time, err error) {
	if from, err = e.date("from"); err == nil {
		to, err = e.date("to")
	}
	return from, to, err
}

// choice returns an option that is one of a few words; "" means that it was not given. Errors: usageError.
func (e *env) choice(name string, words []string) (string, error) {
	word := e.str(name)
	if word == "" || slices.Contains(words, word) {
		return word, nil
	}
	return "", unknownWord("-"+name+": there is no", word, words)
}

// unknownWord returns a usageError for a word that is none of those that are known: it names the one that was most
// likely meant, else all. what comes before the word.
func unknownWord(what, word string, known []string) error {
	if meant, ok := nearest(word, known); ok {
		return usageError(fmt.Sprintf("%s %q: did you mean %s?", what, printable(word), meant))
	}
	return usageError(fmt.Sprintf("%s %q: take one of %s", what, printable(word), strings.Join(known, ", ")))
}

// filterID returns an option that names a row to filter by; "" means that it was not given.
// A malformed id is a usageError, because it would silently match nothing.
func (e *env) filterID(name, prefix string) (string, error) {
	id := e.str(name)
	switch {
	case id == "" || validID(prefix, id):
		return id, nil
	case len(idEnd(prefix, id)) >= leastIDEnd:
		return "", fmt.Errorf("-%s: no id of the kind %s_… ends in %q", name, prefix, id)
	}
	const text = "-%s: %q is not an id of the kind %s_…, nor the end of one, of %d or more symbols"
	return "", usageError(fmt.Sprintf(text, name, printable(id), prefix, leastIDEnd))
}

// A span is a length of time as options give it: calendar years plus a duration.
type span struct {
	years int
	rest  time.Duration
}

// after returns the time a span later than t.
func (s span) after(t time.Time) time.Time { return t.AddDate(s.years, 0, 0).Add(s.rest) }

// before returns the time a span earlier than t.
func (s span) before(t time.Time) time.Time { return t.AddDate(-s.years, 0, 0).Add(-s.rest) }

const maxSpanDays = 36500 // about a hundred years

// parseSpan parses a whole number of days, weeks or calendar years, as "365d", "52w" or "1y", of
// at most a hundred years; withHours allows "720h" too. Minutes are refused, not least because
// "12m" would be taken for months. Errors: usageError.
func parseSpan(s string, withHours bool) (span, error) {
	units := map[string]struct {
		most int
		span func(n int) span
	}{
		"d": {maxSpanDays, func(n int) span { return span{rest: days(n)} }},
		"w": {maxSpanDays / 7, func(n int) span { return span{rest: days(7 * n)} }},
		"y": {100, func(n int) span { return span{years: n} }},
	}
	example := "days, weeks or years, as 365d, 52w or 1y"
	if withHours {
		hours := units["d"]
		hours.most *= 24
		hours.span = func(n int) span { return span{rest: time.Duration(n) * time.Hour} }
		units["h"] = hours
		example = "hours, days, weeks or years, as 720h, 365d, 52w or 1y"
	}
	if s != "" {
		last := len(s) - 1
		unit, known := units[s[last:]]
		if n, err := strconv.Atoi(s[:last]); err == nil && known && n > 0 && n <= unit.most {
			return unit.span(n), nil
		}
	}
	return span{}, usageError(fmt.Sprintf("%q is not a duration: write %s", s, example))
}

// parseTime parses a date (meaning its first second in UTC), an RFC 3339 time, or a span from
// now ("365d"). For "" it returns the zero stamp. Errors: usageError.
func (e *env) parseTime(s string) (stamp, error) {
	if day, ok := parseDate(s); ok {
		return day, nil
	}
	if t, ok := parseStamp(s); ok || s == "" {
		return t, nil
	}
	length, err := parseSpan(s, false)
	if err == nil {
		return newStamp(length.after(e.now())), nil
	}
	if s[0] >= '0' && s[0] <= '9' && strings.IndexFunc(s, unicode.IsPunct) < 0 { // neither date nor time
		return stamp{}, err
	}
	return stamp{}, usageError(fmt.Sprintf(
		"%q is not a time from 1970 to %d, such as 2027-01-31, 2027-01-31T12:00:00Z or 365d", s, lastYear))
}

// parseEnd is parseTime for an end: a date means the last second of that day in UTC.
func (e *env) parseEnd(s string) (stamp, error) {
	if day, ok := parseDate(s); ok {
		return day.endOfDay(), nil
	}
	return e.parseTime(s)
}

// needAccount returns the id of the account that -account names; if it is not given, the id of the main account.
// Errors name the next step.
func (e *env) needAccount() (string, error) {
	if id := e.str("account"); id != "" {
		return id, nil
	}
	return queried(e, (*queries).mainAccount)
}

// filterAccount returns the owner of the rows that a list shows: the account that -account
// names, else any account, since whoever may run commands may read everything.
func (e *env) filterAccount() (owner, error) {
	if e.str("account") == "" {
		return anyAccount, nil
	}
	id := e.str("account")
	_, err := queried(e, func(q *queries) (a account, err error) {
		a, err = q.account(id)
		return a, replaced(err, errNotFound, errAccount)
	})
	return ownedBy(id), err
}

const accountPlaceholder = "ACCOUNT" // of accounts, which are named by their names too

// resolveIDs replaces what arguments and options name by the end of its id, or an account by its name, by the whole
// ids. What names nothing stays, for the command to say so.
func (e *env) resolveIDs() (err error) {
	for i, word := range strings.Fields(e.command.args) {
		if err == nil && i < len(e.args) {
			e.args[i], err = e.resolveID(word, e.args[i])
		}
	}
	for _, o := range e.command.options {
		if err == nil && o.value != "" {
			e.values[o.name], err = e.resolveID(o.value, e.values[o.name])
		}
	}
	return err
}

// resolveID is resolveIDs for one text; word is what the help has in its place, such as LICENSE. A whole id is not
// looked up. Errors: usageError where it is not clear which id is meant, and one for an account that does not exist.
func (e *env) resolveID(word, typed string) (string, error) {
	if typed == "" {
		return "", nil
	}
	var found []string
	ends := "several ids end"
	for _, kind := range collectNouns(e.nouns, func(n *noun) []idKind { return n.ids }) {
		if kind.argument != word {
			continue
		}
		if whole := strings.ToLower(typed); validID(kind.prefix, whole) {
			return whole, nil
		}
		if kind.search != nil {
			ends = "several ids or keys end"
		}
		ids, err := e.idsMeant(kind, typed)
		if found = append(found, ids...); err != nil {
			return "", err
		}
	}
	slices.Sort(found)
	found = slices.Compact(found)
	if len(found) == 1 {
		return found[0], nil
	}
	if word == accountPlaceholder {
		return e.guessAccount(typed, found)
	}
	if len(found) > 1 {
		return "", usageError(fmt.Sprintf("%s in %q; give more of the one that you mean: %s", ends, printable(typed),
			joinSome(found, " ")))
	}
	return typed, nil
}

// idsMeant returns the ids of a kind that end in a text, or are known by it.
func (e *env) idsMeant(kind idKind, typed string) (ids []string, err error) {
	end, from := idEnd(kind.prefix, typed), ""
	if len(end) < leastIDEnd {
		from = firstID(kind.prefix, e.now().Add(-recentIDs))
	}
	ends := len(end) >= leastIDEnd || end != "" && kind.short
	if !ends && kind.search == nil {
		return nil, nil
	}
	err = e.withStore(func(st *store) (err error) {
		if kind.search != nil {
			ids, err = kind.search(st.queries, typed)
		}
		if err != nil || !ends {
			return err
		}
		ending, err := st.idsEndingIn(kind.table, end, from, mostEndings+1)
		ids = append(ids, ending...)
		return err
	})
	return ids, err
}

// joinSome returns up to mostEndings texts.
func joinSome(texts []string, separator string) string {
	if len(texts) > mostEndings {
		return strings.Join(texts[:mostEndings], separator) + " and others"
	}
	return strings.Join(texts, separator)
}

// guessAccount returns the id of the account that somebody means by a text that is no whole id, where several accounts
// have that name or an id that ends so, or none. A command that only reads takes the only one whose name has the text
// as a part; any other asks, on a terminal.
func (e *env) guessAccount(typed string, several []string) (string, error) {
	like, err := queried(e, func(q *queries) (like []account, err error) {
		if len(several) == 0 {
			return q.accountsLike(typed)
		}
		all, err := q.accounts()
		return slices.DeleteFunc(all, func(a account) bool { return !slices.Contains(several, a.ID) }), err
	})
	var names []string
	for _, a := range like {
		name := withName(a.ID, a.Name)
		if !a.ClosedAt.IsZero() {
			name += ", closed"
		}
		names = append(names, name)
	}
	switch {
	case err != nil:
		return "", err
	case len(several) > 0:
		return "", usageError(fmt.Sprintf("several accounts have the name %q or an id that ends so; give the id of "+
			"the one that you mean: %s", printable(typed), joinSome(names, "; ")))
	case len(like) > 1 && (e.command.reads() || e.canAsk):
		return "", usageError(fmt.Sprintf("several accounts have %q in their names; give more of the one that you "+
			"mean, or its id: %s", printable(typed), joinSome(names, "; ")))
	case len(like) == 1 && e.command.reads():
		return like[0].ID, nil
	case len(like) == 1 && e.canAsk:
		e.note("Did you mean %s?\nType yes to go on: ", names[0])
		if e.answered() == "yes" {
			return like[0].ID, nil
		}
		fmt.Fprintln(e.stderr)
		return "", errDeclined
	}
	step := "'widgetd account list' prints both"
	if len(like) > 0 {
		step = "did you mean " + joinSome(names, " or ") +
			"? A command that changes something wants the whole name or id"
	}
	return "", fmt.Errorf("no account has the id or the name %q: %s", printable(typed), step)
}

// reads reports whether the command changes nothing, by its verb.
func (c *command) reads() bool {
	words := strings.Fields(c.name)
	return slices.Contains([]string{"list", "show", "export", "refunds", "status"}, words[len(words)-1])
}

// checkRowName returns a usageError unless an operator may give a row that name: 1 to 200 bytes, not only spaces,
// no control characters, which could change what a terminal shows, and no account's id, for which it would be taken.
func checkRowName(s string) error {
	if strings.TrimSpace(s) == "" || len(s) > 200 || !utf8.ValidString(s) ||
		strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return usageError("a name has 1 to 200 bytes of UTF-8, not only spaces, and no control characters")
	}
	if validID("acct", s) {
		return usageError("a name can't be the id of an account")
	}
	return nil
}

// secretText returns the text that -secrets names, and where it is from.
func (e *env) secretText() (name, text string, err error) {
	path := e.str("secrets")
	if path == "" {
		return "", "", usageError("-secrets FILE is needed, or -secrets - for standard input: " +
			"secrets are never options")
	}
	file, err := e.open(path)
	if err != nil {
		return "", "", err
	}
	defer file.Close()
	name = "standard input"
	if opened, ok := file.(*os.File); ok && path != "-" {
		if name, err = path, checkPrivate(opened); err != nil {
			return "", "", err
		}
	}
	if text, err = readSecretText(file); err != nil {
		return "", "", fmt.Errorf("read %s: %w", name, err)
	}
	return name, text, nil
}
