package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// How commands are listed and explained, and which one was meant by a line that names none.

// The commands about the program itself.
var helpCommands = []command{
	{"version", "", "print the version of this program", nil, showVersion},
	{"help", "[COMMAND]", "list the commands, those that begin with a word, or the options of one", []option{
		{name: "all", help: "print all commands and all options"},
		{name: "markdown", help: "print all commands and all options as Markdown"},
	}, showHelp},
}

// What 'widgetd help' lists: the words with which commands begin, and what they are about. Those of the first
// list are commands by themselves, those of the second take a verb.
var (
	wholeTopics = []helpRow{
		{"init", "make database and keys"}, {"serve", "run the service"}, {"status", "how the service is"},
		{"check", "look for damage"}, {"backup", "copy the database"}, {"upgrade", "upgrade the database"},
		{"promote", "have the standby serve"}, {"watch", "tell what needs doing"},
		{"demo", "run with sample data"}, {"version", "print the version"}, {"help", "explain commands"},
	}
	nounTopics = []helpRow{
		{"account", "accounts and settings"}, {"app", "registered applications"},
		{"base-url", "the service's address"}, {"books", "bookkeeping connections"},
		{"clock", "take the clock for right"}, {"device", "what uses a licence"},
		{"event", "what happened, who did it"}, {"grant", "what applications may do"},
		{"key", "keys that sign tokens"}, {"lead", "contacts from sites"}, {"lease", "explain device tokens"},
		{"legacy", "calls of old paths"}, {"license", "licences and their terms"}, {"order", "orders and refunds"},
		{"origin", "sites that may call"}, {"payment", "payment providers"}, {"payout", "what providers pay out"},
		{"peer", "the other machine"},
		{"plan", "templates of licences"}, {"replica", "prove that it restores"},
		{"revenue", "what days have brought"},
		{"token", "bearer tokens"}, {"webhook", "where events are sent"}, {"widget", "widgets and their counts"},
	}
)

func showVersion(e *env) error {
	return e.print(map[string]string{"version": buildName()}, buildName())
}

func showHelp(e *env) error {
	switch {
	case e.on("markdown"):
		return markdownHelp(e.stdout, e.commands)
	case e.on("all"):
		return e.helpAll()
	}
	return e.helpScreen(e.stdout)
}

const helpBegins = "widgetd serves widgets, leads, licences, paid orders and books. Its commands:\n"

// helpScreen prints the topics, on at most 23 lines of 80 columns.
func (e *env) helpScreen(w io.Writer) error {
	fmt.Fprint(w, helpBegins)
	writeTopics(w, wholeTopics)
	fmt.Fprint(w, "\nA noun takes a verb, as in 'widgetd license list':\n")
	writeTopics(w, nounTopics)
	fmt.Fprint(w, "\n'widgetd help license' lists its verbs, 'widgetd help -all' tells everything.\n")
	return nil
}

// writeTopics prints topics in two columns, to be read downwards.
func writeTopics(w io.Writer, topics []helpRow) {
	half := (len(topics) + 1) / 2
	for i, left := range topics[:half] {
		line := fmt.Sprintf("  %-10s%-27s", left.name, left.text)
		if half+i < len(topics) {
			line += fmt.Sprintf("  %-10s%s", topics[half+i].name, topics[half+i].text)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
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

// helpAll prints all commands and all options.
func (e *env) helpAll() error {
	fmt.Fprint(e.stdout, helpBegins)
	e.listCommands(e.stdout, "")
	fmt.Fprint(e.stdout, "\nThe options of all commands, some with an environment variable.\n"+
		"'widgetd help COMMAND' shows the options of one command:\n\n")
	rows := []helpRow{}
	for _, o := range allOptions(e.commands) {
		rows = append(rows, o.general().row())
	}
	writeHelpRows(e.stdout, rows)
	return nil
}

// helpOn prints the help of a command, or the commands that begin with words.
func (e *env) helpOn(words []string) error {
	name := strings.Join(words, " ")
	begins := slices.ContainsFunc(e.commands, func(c command) bool { return c.startsWith(name) })
	c, _ := findCommand(e.commands, words)
	switch {
	case begins && (c == nil || c.name != name):
		fmt.Fprintf(e.stdout, "The commands of widgetd %s:\n\n", name)
		e.listCommands(e.stdout, name)
		fmt.Fprintf(e.stdout, "\n'widgetd help %s VERB' prints the options of one.\n", name)
		return nil
	case c == nil:
		return e.unknownCommand(words)
	}
	fmt.Fprintf(e.stdout, "widgetd %s\n\n  %s\n\n", c.signature(), c.help)
	rows := []helpRow{}
	for _, o := range c.options {
		rows = append(rows, o.row())
	}
	if len(rows) > 0 {
		rows = append(rows, helpRow{})
	}
	for _, o := range commonOptions {
		rows = append(rows, o.row())
	}
	writeHelpRows(e.stdout, rows)
	return nil
}

// listCommands prints the commands whose names begin with words, or all if that is "".
func (e *env) listCommands(w io.Writer, words string) {
	rows := []helpRow{}
	for _, c := range e.commands {
		if words == "" || c.startsWith(words) {
			rows = append(rows, helpRow{c.signature(), c.help})
		}
	}
	writeHelpRows(w, rows)
}

// A helpRow is a command or an option, and what it means. An empty one is an empty line.
type helpRow struct{ name, text string }

// row returns what the help says of an option.
func (o option) row() helpRow {
	text := o.help
	if o.def != "" {
		text += " (default " + o.def + ")"
	}
	if o.hasVariable {
		text += ", " + o.variable()
	}
	return helpRow{o.signature(), text}
}

// writeHelpRows prints rows, a line each, which grep finds whole. A long name moves its text to the right.
func writeHelpRows(w io.Writer, rows []helpRow) {
	const most = 34 // columns of a name
	longest := 0
	for _, r := range rows {
		longest = max(longest, min(most, utf8.RuneCountInString(r.name)))
	}
	for _, r := range rows {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %-*s  %s", longest, r.name, r.text), " "))
	}
}

// markdownHelp prints all commands, the options of each, and all options as Markdown (GitHub's, which
// has tables).
func markdownHelp(w io.Writer, commands []command) error {
	fmt.Fprint(w, "## Commands\n\n| Command | Does |\n|---|---|\n")
	for _, c := range commands {
		fmt.Fprintf(w, "| `%s` | %s |\n", c.signature(), markdownCell(c.help))
	}
	var common, asking []string
	for _, c := range commands {
		if c.asks() {
			asking = append(asking, "`"+c.name+"`")
		}
	}
	fmt.Fprintf(w, "\nThese ask for a typed `yes` on a terminal, unless `-force` is given: %s.\n",
		strings.Join(asking, ", "))
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

// unknownCommand is for words that name no command: its error says which one may have been meant. Words
// that begin the names of commands list those.
func (e *env) unknownCommand(words []string) error {
	group := 0 // how many of the first words begin the name of some command
	for group < len(words) && slices.ContainsFunc(e.commands, func(c command) bool {
		return c.startsWith(strings.Join(words[:group+1], " "))
	}) {
		group++
	}
	name := strings.Join(words[:group], " ")
	if group == len(words) {
		e.listCommands(e.stderr, name)
		return usageError(fmt.Sprintf("%s needs a %s word: its commands are listed above", name,
			[]string{"second", "third"}[group-1]))
	}
	var known []string // the beginnings of names, with one word more than is right
	for _, c := range e.commands {
		if all := strings.Fields(c.name); len(all) > group && (group == 0 || c.startsWith(name)) {
			known = append(known, strings.Join(all[:group+1], " "))
		}
	}
	typed, step := strings.Join(words[:group+1], " "), "see 'widgetd "+strings.TrimSpace("help "+name)+"'"
	meant, ok := alikeVerb(name, words[group], known)
	if !ok {
		meant, ok = nearest(typed, known)
	}
	if !ok {
		if verb, near := nearest(words[group], slices.Concat(alikeVerbs...)); near {
			meant, ok = alikeVerb(name, verb, known)
		}
	}
	if ok {
		step = "did you mean 'widgetd " + meant + "'?"
	}
	return usageError(fmt.Sprintf("there is no command %q: %s", typed, step))
}

// alikeVerbs are words that other programs have for verbs of ours. Each is taken for the first of its line that a noun
// has.
var alikeVerbs = [][]string{
	{"show", "list", "view", "get", "print", "info", "status", "find", "ls"},
	{"add", "issue", "connect", "create", "new", "make", "register"},
	{"remove", "revoke", "disconnect", "retire", "close", "delete", "rm", "drop", "del"},
	{"set", "edit", "update", "change", "modify", "patch"},
}

// alikeVerb returns the known name that has, behind a noun, another word for a verb.
func alikeVerb(noun, verb string, known []string) (name string, found bool) {
	for _, alike := range alikeVerbs {
		for _, other := range alike {
			name = noun + " " + other
			if noun != "" && slices.Contains(alike, strings.ToLower(verb)) && slices.Contains(known, name) {
				return name, true
			}
		}
	}
	return "", false
}
