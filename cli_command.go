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
	"io/fs"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

// A usageError says what is wrong with a command line; the program then exits with 2.
type usageError string

func (u usageError) Error() string { return string(u) }

// An option declares a flag together with its environment variable, if it has one, its line of
// the help and its row of docs/operating.md.
type option struct {
	name        string // of the flag: "max-devices"
	value       string // what the help shows as the value: "FILE"; "" for a switch
	def         string // the default value
	help        string // what the option means to the command that takes it
	generalHelp string // what the list of all options says in place of help; "": the same
	hasVariable bool   // also read from an environment variable: those of serve, and -db, -key, -json
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

// variable returns the name of the option's environment variable, as WIDGETD_DEBUG_ADDR; "" if it
// has none.
func (o option) variable() string {
	if !o.hasVariable {
		return ""
	}
	return "WIDGETD_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// The options that the commands of several nouns share. A command for which one means
// something more precise gives it a text of its own with says.
var (
	optDB = option{name: "db", value: "FILE", def: "widgetd.db", help: "path of the database file",
		hasVariable: true}
	optKey = option{name: "key", value: "FILE", def: "widgetd.key", help: "path of the key file",
		hasVariable: true}
	optJSON = option{name: "json", help: "print JSON for scripts: one object, or one on each line",
		hasVariable: true}
	optWide = option{name: "wide", help: "print tables in full, also wider than the terminal"}
	optAddr = option{name: "addr", value: "HOST:PORT", def: "127.0.0.1:8080",
		help: "address to listen on, unless systemd passes a socket", hasVariable: true}
	optOutboundAllow = option{name: "outbound-allow", value: "CIDR,…",
		help: "networks or addresses that webhooks may reach although they are not public, " +
			"with http too, on any port and by address; by default only public ones on port 443",
		hasVariable: true}
	optLitestream = option{name: "litestream", help: "Litestream replicates the database and checkpoints it",
		hasVariable: true}
	optLog = option{name: "log", value: "FORMAT", def: "text",
		help: "format of the log on standard error: text or json", hasVariable: true}
	optAccount = option{name: "account", value: "ID",
		help: "id or unique name of an account; where one is needed, by default the main account"}
	optForce = option{name: "force", help: "do what the command would otherwise refuse"}
	optCSV   = option{name: "csv", help: "print CSV instead of JSON"}
	optLimit = option{name: "limit", value: "N", def: "50", help: "print at most this many rows"}
)

// A command is a command of the program, named by one to three words.
type command struct {
	name    string   // "version", "license add" or "books app set"
	args    string   // placeholders of its arguments in the help: "ID N"
	help    string   // what it does, in one line
	options []option // besides commonOptions
	nargs   int      // how many arguments it requires
	run     func(*env) error
}

// commonOptions are the options that every command takes.
var commonOptions = []option{optDB, optKey, optJSON, optWide}

// acceptedOptions returns the common options and the command's own.
func (c *command) acceptedOptions() []option { return slices.Concat(commonOptions, c.options) }

// An env is what a command works with: its arguments and options, its streams and a clock.
type env struct {
	ctx            context.Context     // ends when the program is told to stop
	getenv         func(string) string // looks up an environment variable
	stdin          io.Reader
	stdout, stderr io.Writer
	nouns          []noun
	commands       []command // all commands of the program
	command        *command  // the one that runs
	args           []string  // its arguments, without options
	values         map[string]*onceValue
	switches       map[string]*bool
	now            func() time.Time
	installed      string          // directory of the installation: installedDir; "": none is looked for
	uid            int             // of the user who runs the program, as whom it acts
	caller         string          // name of the user who called it, see callingUser
	announced      map[string]bool // files of the installation that file has named
}

// installedDir is where an installation on a server has its files.
const installedDir = "/var/lib/widgetd"

// str returns the value of an option that is not a switch. The command must declare it.
func (e *env) str(name string) string { return e.values[name].value }

// file returns the path of the database ("db") or of the key file ("key"). Where neither -db
// nor the option itself is given and the working directory has neither file, it is the
// installation's file, if there is one; standard error says so. It refuses to let root work on
// the file of another user: the service could not open what root would write beside it.
func (e *env) file(name string) (string, error) {
	path := e.str(name)
	if !e.values[name].set && !e.values[optDB.name].set && !fileExists(optDB.def) && !fileExists(optKey.def) {
		installed := filepath.Join(e.installed, path)
		if _, err := os.Stat(installed); e.installed != "" && !errors.Is(err, fs.ErrNotExist) {
			path = installed
			if !e.announced[name] {
				fmt.Fprintln(e.stderr, "using", path)
				e.announced[name] = true
			}
		}
	}
	return path, e.checkOwner(path)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkOwner returns an error with the next step if this user should not work on a file that
// belongs to another: as root, or without the right to look into its directory.
func (e *env) checkOwner(path string) error {
	info, err := os.Stat(path)
	foreign := e.uid == 0
	if errors.Is(err, fs.ErrPermission) {
		foreign = true
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return nil // whoever opens the file says what is wrong
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if !foreign || owner == e.uid {
		return nil
	}
	name := "#" + strconv.Itoa(owner) // as sudo takes a user without a name
	if u, err := user.LookupId(strconv.Itoa(owner)); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s belongs to the user %s: run 'sudo -u %s widgetd %s …'",
		path, name, name, e.command.name)
}

// actor returns the actor of the events that a command writes.
func (e *env) actor() string {
	if e.caller == "" {
		return actorCommand
	}
	return actorCommand + ":" + e.caller
}

// callingUser returns the name of the system's user who runs the program, or called sudo to run it
// as another one; a number if the user has no name.
func callingUser(getenv func(string) string) string {
	if u, err := user.Lookup(getenv("SUDO_USER")); err == nil {
		return printable(u.Username)
	}
	uid := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil {
		return printable(u.Username)
	}
	return uid
}

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

// given reports whether an option that is not a switch was given as a flag, perhaps with an empty value.
func (e *env) given(name string) bool { return e.values[name].given }

// optionalNumber is like number, but returns nil for an option that is empty.
func (e *env) optionalNumber(name string, low, high int) (*int, error) {
	if e.str(name) == "" {
		return nil, nil
	}
	n, err := e.number(name, low, high)
	return &n, err
}

func isHelp(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }

// maxCommandWords is how many words the name of a command has at most.
const maxCommandWords = 3

// unknownCommand handles a command line whose first words name no command. If commands
// begin with those ("license", "books app"), it lists them; -h turns that list into a success.
func unknownCommand(commands []command, args []string, stdout, stderr io.Writer) error {
	group := 0 // how many of the words all begin the names of commands
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

// findCommand returns the command with the longest name that args begin with, and the args
// behind that name; nil if there is none.
func findCommand(commands []command, args []string) (*command, []string) {
	for words := min(maxCommandWords, len(args)); words > 0; words-- {
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
// variable, if it has one. It returns a usageError, or flag.ErrHelp when help was asked for.
func (e *env) parse(args []string) error {
	fs := flag.NewFlagSet(e.command.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	e.values, e.switches, e.announced = map[string]*onceValue{}, map[string]*bool{}, map[string]bool{}
	for _, o := range e.command.acceptedOptions() {
		set := ""
		if o.hasVariable {
			set = e.getenv(o.variable())
		}
		if o.value == "" {
			on, err := strconv.ParseBool(cmp.Or(set, "false"))
			if err != nil {
				return usageError(fmt.Sprintf("%s must be true or false, not %q", o.variable(), set))
			}
			e.switches[o.name] = fs.Bool(o.name, on, o.help)
			continue
		}
		v := &onceValue{value: cmp.Or(set, o.def), set: set != ""}
		e.values[o.name] = v
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
	given bool // as a flag
	set   bool // as a flag or by its environment variable
}

func (v *onceValue) String() string { return v.value }

func (v *onceValue) Set(s string) error {
	if v.given {
		return errors.New("the option is given twice; write a list as one value, separated by commas")
	}
	v.value, v.given, v.set = s, true, true
	return nil
}

// startsWith reports whether the command's name has more words than these, with which it begins.
func (c *command) startsWith(words string) bool { return strings.HasPrefix(c.name, words+" ") }

// usage returns the command's name with the placeholders of its arguments and options.
func (c *command) usage() string {
	usage := c.signature()
	for _, o := range c.options {
		usage += " [" + o.signature() + "]"
	}
	return usage
}

// pastTime parses an option that is a moment in the past: a date (its first second in UTC), an
// RFC 3339 time, or a duration back from now, as 7d. For "" it returns the zero stamp.
func (e *env) pastTime(name string) (stamp, error) {
	if age, err := parseSpan(e.str(name), true); err == nil {
		return newStamp(age.before(e.now())), nil
	}
	return e.parseTime(e.str(name))
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

// A span is a length of time as options have it: calendar years, and a duration.
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

// withStore opens the database, calls f and closes the database again. It tells which tables f has left rows
// out of that can't be read.
func (e *env) withStore(f func(*store) error) error {
	path, err := e.file("db")
	if err != nil {
		return err
	}
	st, err := openStore(path, storeOptions{noCheckpoints: true, now: e.now})
	if err != nil {
		return err
	}
	err = withNextStep(f(st))
	if err == nil {
		for _, row := range st.met.newRows(e.now()) {
			fmt.Fprintf(e.stderr, "rows of %s can't be read and were left out, such as %s (%s): run 'widgetd check'\n",
				row.table, cmp.Or(row.id, "one"), row.cause)
		}
	}
	return errors.Join(err, st.close())
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
	case errors.Is(err, errUnreadable):
		return fmt.Errorf("%w: 'widgetd check' prints how to mend it", err)
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

// firstRows returns the first limit rows of a query for limit+1. If there are more, it says
// so on standard error; how names the option or command that prints them.
func firstRows[T any](e *env, rows []T, limit int, how string) []T {
	if len(rows) <= limit {
		return rows
	}
	fmt.Fprintf(e.stderr, "these are the first %d; print more with %s\n", limit, how)
	return rows[:limit]
}

// exportPageSize is how many rows an export reads with one query.
const exportPageSize = 500

// collectPages returns the first rows of a list, up to limit of them, from as many of its
// pages as it takes.
func collectPages[T any](limit int, page func(before string, limit int) (listPage[T], error)) (all []T, err error) {
	for before := ""; ; {
		p, err := page(before, limit-len(all))
		all = append(all, p.rows...)
		if before = p.next; err != nil || before == "" || len(all) == limit {
			return all, err
		}
	}
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

// csvTextCell returns s for a CSV cell, since callers of the API choose these texts. It puts an
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

// printable replaces control characters, and those that change the direction of text, by U+FFFD:
// they could change the state of the terminal that the text is printed on, or how its line reads.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
