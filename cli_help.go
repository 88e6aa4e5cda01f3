package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// How commands are listed and explained, and which one was meant by a line that names none.

// The commands about the program itself.
var helpCommands = []command{
	{"version", "", "print the version of this program", nil, showVersion},
	{"help", "[COMMAND]", "list the commands, those that begin with a word, or the options of one", []option{
		{name: "all", help: "print all commands and all options"},
		{name: "markdown", help: "print all commands and all options as Markdown"},
		{name: "man", value: "DIR", help: "write man pages into a directory: widgetd.1, and one for each first word"},
	}, showHelp},
	{"completion", "bash|zsh|fish", "print the script by which a shell completes command lines, " +
		"for its start: 'source <(widgetd completion bash)'", nil, printCompletion},
}

// A topic is a word with which commands begin, and what they are about.
type topic struct{ name, text string }

// What 'widgetd help' lists: the words with which commands begin, and what they are about. Those of the first
// list are commands by themselves, those of the second take a verb.
var (
	wholeTopics = []topic{
		{"init", "make database and keys"}, {"serve", "run the service"}, {"status", "how the service is"},
		{"check", "look for damage"}, {"backup", "copy the database"},
		{"restore", "go back to a copy"}, {"upgrade", "upgrade the database"},
		{"promote", "have the standby serve"}, {"watch", "tell what needs doing"}, {"api", "call any route"},
		{"demo", "run with sample data"}, {"version", "print the version"}, {"help", "explain commands"},
		{"completion", "of lines, for shells"},
	}
	nounTopics = []topic{
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

// topicText says what the commands that begin with a word are about.
func topicText(word string) string {
	for _, t := range slices.Concat(wholeTopics, nounTopics) {
		if t.name == word {
			return t.text
		}
	}
	return ""
}

func showVersion(e *env) error {
	return e.print(map[string]string{"version": buildName()}, buildName())
}

func showHelp(e *env) error {
	e.commands = explained(e.commands, e.nouns)
	switch {
	case e.on("markdown"):
		return markdownHelp(e.stdout, e.commands)
	case e.str("man") != "":
		return e.writeManPages(e.str("man"))
	case e.on("all"):
		return e.helpAll()
	}
	return e.helpScreen(e.stdout)
}

const helpBegins = "widgetd serves widgets, leads, licences, paid orders and books. Its commands:\n"

// helpScreen prints the topics, on at most 23 lines of 80 columns.
func (e *env) helpScreen(w io.Writer) error {
	width := e.widthOn(w)
	fmt.Fprint(w, fitted(helpBegins, width))
	writeTopics(w, wholeTopics, width)
	fmt.Fprint(w, fitted("\nA noun takes a verb, as in 'widgetd license list':\n", width))
	writeTopics(w, nounTopics, width)
	fmt.Fprint(w, fitted("'widgetd help license' lists its verbs, 'widgetd help -all' tells everything.\n", width))
	return nil
}

// writeTopics prints topics in two columns, to be read downwards, or in one where two do not fit.
func writeTopics(w io.Writer, topics []topic, width int) {
	half := (len(topics) + 1) / 2
	if width > 0 && width < 78 {
		var rows []helpRow
		for _, t := range topics {
			rows = append(rows, helpRow{name: t.name, text: t.text})
		}
		writeHelpRows(w, rows, width)
		return
	}
	for i, left := range topics[:half] {
		line := fmt.Sprintf("  %-11s%-26s", left.name, left.text)
		if half+i < len(topics) {
			line += fmt.Sprintf("  %-11s%s", topics[half+i].name, topics[half+i].text)
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
	e.say(helpBegins)
	e.listCommands(e.stdout, "")
	e.say("\nThe options of all commands, some with an environment variable.\n" +
		"'widgetd help COMMAND' shows the options of one command:\n\n")
	rows := []helpRow{}
	for _, o := range allOptions(e.commands) {
		rows = append(rows, o.general().row())
	}
	writeHelpRows(e.stdout, rows, e.width())
	return nil
}

// helpOn prints the help of a command, or the commands that begin with words.
func (e *env) helpOn(words []string) error {
	name := strings.Join(words, " ")
	begins := slices.ContainsFunc(e.commands, func(c command) bool { return c.startsWith(name) })
	e.commands = explained(e.commands, e.nouns)
	c, _ := findCommand(e.commands, words)
	switch {
	case begins && (c == nil || c.name != name):
		e.say("The commands of widgetd %s:\n\n", name)
		e.listCommands(e.stdout, name)
		return e.say("\n'widgetd help %s VERB' prints the options of one.\n", name)
	case c == nil:
		return e.unknownCommand(words)
	}
	e.say("widgetd %s\n\n  %s\n\n", c.signature(), c.help)
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
	writeHelpRows(e.stdout, rows, e.width())
	return nil
}

// listCommands prints the commands whose names begin with words, or all if that is "".
func (e *env) listCommands(w io.Writer, words string) {
	rows := []helpRow{}
	for _, c := range e.commands {
		if words == "" || c.startsWith(words) {
			rows = append(rows, helpRow{name: c.signature(), text: c.help})
		}
	}
	writeHelpRows(w, rows, e.widthOn(w))
}

// A helpRow is a command or an option, what it means, and the words that it takes. An empty one is an empty line.
type helpRow struct {
	name, text string
	words      []string
}

// line returns what the row says of its name, in one line.
func (r helpRow) line() string {
	if len(r.words) > 0 {
		return r.text + ": " + strings.Join(r.words, ", ")
	}
	return r.text
}

// row returns what the help says of an option.
func (o option) row() helpRow {
	text := o.help
	if o.def != "" {
		text += " (default " + o.def + ")"
	}
	if o.hasVariable {
		text += ", " + o.variable()
	}
	return helpRow{o.signature(), text, o.wordList()}
}

// wordList returns the words that the option's value is one of; nil: it is another.
func (o option) wordList() []string {
	if strings.Contains(o.value, "|") || o.words == nil {
		return nil // the signature shows them
	}
	return o.words()
}

// writeHelpRows prints rows: a line each without a limit of the width, which grep finds whole, and else with what they
// say in lines beside their names, and words in columns. A long name has a line of its own, or moves its text.
func writeHelpRows(w io.Writer, rows []helpRow, width int) {
	most, longest := 34, 0 // columns of a name
	if width > 0 {
		most = min(most, max(0, width-20)/2)
	}
	for _, r := range rows {
		longest = max(longest, min(most, utf8.RuneCountInString(r.name)))
	}
	for _, r := range rows {
		text := r.line()
		if beside := max(1, width-longest-2*columnGap); width > 0 {
			text = fitted(r.text, beside)
			if len(r.words) > 0 {
				text = fitted(r.text+":", beside) + inColumns(r.words, beside)
			}
			if utf8.RuneCountInString(r.name) > longest {
				text = "\n" + text
			}
		}
		text = strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", longest+2*columnGap))
		line, below, _ := strings.Cut(fmt.Sprintf("  %-*s  %s", longest, r.name, text), "\n")
		fmt.Fprintln(w, strings.TrimRight(strings.TrimRight(line, " ")+"\n"+below, "\n"))
	}
}

// inColumns returns words in lines that fit a width, each after a line break, below each other.
func inColumns(words []string, width int) (text string) {
	widest := 0
	for _, word := range words {
		widest = max(widest, len(word))
	}
	line := ""
	for i, word := range words {
		if i%max(1, (width+columnGap)/(widest+columnGap)) == 0 {
			text, line = strings.TrimRight(text+line, " ")+"\n", ""
		}
		line += fmt.Sprintf("%-*s", widest+columnGap, word)
	}
	return strings.TrimRight(text+line, " ")
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
			o.signature(), code(o.variable()), code(o.def),
			markdownCell(helpRow{text: o.help, words: o.wordList()}.line()))
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
	e.commands = explained(e.commands, e.nouns)
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
	meant, ok := similarVerb(name, words[group], known)
	if !ok {
		meant, ok = nearest(typed, known)
	}
	if !ok {
		if verb, near := nearest(words[group], slices.Concat(similarVerbs...)); near {
			meant, ok = similarVerb(name, verb, known)
		}
	}
	if ok {
		step = "did you mean 'widgetd " + meant + "'?"
	}
	return usageError(fmt.Sprintf("there is no command %q: %s", typed, step))
}

// writeManPages writes man pages into a directory: one for the program, and one for each first word of its commands.
// SOURCE_DATE_EPOCH dates them, if it is set, as for other builders: nothing else depends on when they are made.
func (e *env) writeManPages(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	names := []string{"widgetd"}
	for _, t := range slices.Concat(wholeTopics, nounTopics) {
		names = append(names, "widgetd-"+t.name)
	}
	slices.Sort(names)
	for _, name := range names {
		path, page := filepath.Join(dir, name+".1"), ""
		if _, word, ofWord := strings.Cut(name, "-"); ofWord {
			page = e.manPage(word)
		} else {
			page = e.mainManPage(names[1:])
		}
		if err := errors.Join(os.WriteFile(path, []byte(page), 0o644), os.Chmod(path, 0o644)); err != nil {
			return err
		}
	}
	return e.done("man pages written to " + dir)
}

// mainManPage returns the man page of the program, which names others.
func (e *env) mainManPage(others []string) string {
	page := e.manBegin("widgetd", "interface for widgets, leads, licences, paid orders and books") +
		".B widgetd\n.I COMMAND\n.RI [ OPTIONS ]\n" +
		".SH DESCRIPTION\n" + manText("One program and one SQLite file. Options go anywhere in a line; behind -- are "+
		"only arguments. The name of an account stands for its id, and so does the end of an id.") + ".SH COMMANDS\n"
	for _, c := range e.commands {
		page += manItem(c.name, c.args, c.help)
	}
	page += ".SH OPTIONS\nEvery command takes these, and those of its own.\n" + manOptions(commonOptions)
	page += ".SH EXIT STATUS\n" + manItem("0", "", "it is done") +
		manItem("1", "", "it failed, as standard error says") +
		manItem("2", "", "the line was wrong: nothing was done") + ".SH ENVIRONMENT\n"
	for _, o := range allOptions(e.commands) {
		if o.hasVariable {
			page += manItem(o.variable(), "", "sets -"+o.name+", unless the line does")
		}
	}
	page += ".SH SEE ALSO\n"
	for _, name := range others {
		page += ".BR " + roff(name) + " (1),\n"
	}
	return strings.TrimSuffix(page, ",\n") + "\n"
}

// manPage returns the man page of the commands that begin with a word.
func (e *env) manPage(word string) string {
	page, below := e.manBegin("widgetd-"+word, topicText(word)), ""
	for _, c := range e.commands {
		if c.name != word && !c.startsWith(word) {
			continue
		}
		if below != "" {
			page += ".br\n"
		}
		page += manTerm("widgetd "+c.name, c.args) + "\n"
		below += ".SS widgetd " + roff(c.signature()) + "\n" + manText(c.help) + manOptions(c.options)
	}
	return page + ".SH DESCRIPTION\n" + below + ".SH OPTIONS\nEvery command takes these, too.\n" +
		manOptions(commonOptions) + ".SH SEE ALSO\n.BR widgetd (1)\n"
}

// manBegin returns the beginning of a man page, up to its synopsis.
func (e *env) manBegin(name, does string) string {
	date := ""
	if seconds, err := strconv.ParseInt(e.getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		date = time.Unix(seconds, 0).UTC().Format(time.DateOnly)
	}
	version, _, _ := strings.Cut(buildName(), " ")
	const begins = ".TH %s 1 \"%s\" \"widgetd %s\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n"
	return fmt.Sprintf(begins, roff(strings.ToUpper(name)), date, roff(version), roff(name), roff(does))
}

// manOptions returns options as a man page lists them.
func manOptions(options []option) (list string) {
	for _, o := range options {
		list += manItem("-"+o.name, o.value, o.row().line())
	}
	return list
}

// manItem returns an item of a list: a name, a placeholder, and what they mean.
func manItem(name, value, means string) string {
	return ".TP\n" + manTerm(name, value) + "\n" + manText(means)
}

// manTerm returns a name in bold and a placeholder in italics.
func manTerm(name, value string) string {
	return strings.TrimSuffix(`\fB`+roff(name)+`\fR \fI`+roff(value)+`\fR`, ` \fI\fR`)
}

// manText returns a text as lines of a man page, which does not break commands in quotes.
func manText(text string) string {
	words := wordsToWrap(text)
	for i, word := range words {
		words[i] = strings.ReplaceAll(roff(word), " ", `\~`)
	}
	lines := strings.Join(wrap(strings.Join(words, " "), 80), "\n")
	return strings.ReplaceAll("\n"+lines, "\n.", "\n\\&.")[1:] + "\n"
}

// roff returns a text as it stands within a line of roff.
func roff(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, `"`, `\(dq`, "`", "\\(ga", "^", `\(ha`, "~", `\(ti`,
		"…", "...").Replace(text)
}

// similarVerbs are words that other programs have for verbs of ours. Each is taken for the first of its line that a
// noun has.
var similarVerbs = [][]string{
	{"show", "list", "view", "get", "print", "info", "status", "find", "ls"},
	{"add", "issue", "connect", "create", "new", "make", "register"},
	{"remove", "revoke", "disconnect", "retire", "close", "delete", "rm", "drop", "del"},
	{"set", "edit", "update", "change", "modify", "patch"},
}

// similarVerb returns the known name that has, behind a noun, another word for a verb.
func similarVerb(noun, verb string, known []string) (name string, found bool) {
	for _, alike := range similarVerbs {
		for _, other := range alike {
			name = noun + " " + other
			if noun != "" && slices.Contains(alike, strings.ToLower(verb)) && slices.Contains(known, name) {
				return name, true
			}
		}
	}
	return "", false
}

// How a shell completes command lines: its script asks the program, by a command that no help shows, for what may stand
// in place of the last word. The answer is made of the declarations alone: no file is opened and no variable read.

// completeCommand is that command. Its arguments are the words of the line up to the cursor, behind the program's name.
const completeCommand = "__complete"

// What a script is told in a first line, in place of words or before them.
const (
	completeFiles = ":files" // names of files may stand there
	completeList  = ":list"  // others may follow behind a comma: no space does
)

// complete prints what may stand in place of the last of the words, each in a line, with a tab and what it means.
func (e *env) complete(line []string) {
	last := max(0, len(line)-1)
	typed := strings.Join(line[last:], "")
	words, before, behind := e.wordsBefore(line[:last])
	c, rest := findCommand(e.commands, words)
	known := commonOptions
	if c != nil {
		known = c.acceptedOptions()
	}
	name, value, hasValue := strings.Cut(typed, "=")
	switch isOption := strings.HasPrefix(typed, "-") && !behind; {
	case before != "":
		e.completeOption(known, before, "", typed)
		return
	case isOption && hasValue:
		e.completeOption(known, strings.TrimLeft(name, "-"), name+"=", value)
		return
	case isOption:
		dashes := typed[:min(2, len(typed)-len(strings.TrimLeft(typed, "-")))]
		for _, o := range known {
			if text := dashes + o.name; !e.given(o.name) && strings.HasPrefix(text, typed) {
				e.printCandidate(text, o.help)
			}
		}
		return
	}
	if c != nil && len(rest) < c.nargs() {
		e.completeValue(strings.Fields(c.args)[len(rest)], nil, "", typed)
		return
	}
	if len(words) > 0 && words[0] == "help" {
		words = words[1:]
	}
	e.completeName(words, typed)
}

// printCandidate prints what may stand in a line. Of its meaning a shell shows what comes before the first semicolon.
func (e *env) printCandidate(text, means string) {
	means, _, _ = strings.Cut(means, ";")
	fmt.Fprintln(e.stdout, strings.TrimRight(text+"\t"+means, "\t"))
}

// wordsBefore returns the words of a line that are no options, the name of the option whose value comes next, if one
// does, and whether only words come behind them. It sets e.typed to the options.
func (e *env) wordsBefore(line []string) (words []string, next string, behind bool) {
	e.typed = map[string]string{}
	all := allOptions(e.commands)
	for _, word := range line {
		switch name := strings.TrimLeft(word, "-"); {
		case next != "":
			e.typed[next], next = word, ""
		case behind || !strings.HasPrefix(word, "-") || word == "-":
			words = append(words, word)
		case word == "--":
			behind = true
		default:
			name, value, hasValue := strings.Cut(name, "=")
			e.typed[name] = value
			if !hasValue && slices.ContainsFunc(all, func(o option) bool { return o.name == name && o.value != "" }) {
				next = name
			}
		}
	}
	return words, next, behind
}

// completeOption is completeValue for the value of the option that is so called.
func (e *env) completeOption(known []option, name, before, typed string) {
	for i := range known {
		if o := &known[i]; o.name == name {
			e.completeValue(o.value, o.wordList(), before, typed)
		}
	}
}

// completeValue prints the words that begin as typed and may stand where the help has a value or argument, as yes|no;
// before comes before each.
func (e *env) completeValue(value string, words []string, before, typed string) {
	if strings.Contains(value, "|") {
		words = strings.Split(value, "|")
	}
	switch {
	case slices.Contains([]string{"FILE", "FILE.csv", "PATH", "DIR"}, value):
		fmt.Fprintln(e.stdout, completeFiles)
	case strings.HasSuffix(value, ",…"):
		fmt.Fprintln(e.stdout, completeList)
	}
	done := typed[:strings.LastIndex(typed, ",")+1] // words of a list that are complete
	for _, word := range words {
		if strings.HasPrefix(done+word, typed) && !slices.Contains(splitList(done), word) {
			e.printCandidate(before+done+word, "")
		}
	}
}

// completeName prints the words that begin as typed and come next in the names of commands.
func (e *env) completeName(words []string, typed string) {
	seen := map[string]bool{}
	for _, c := range e.commands {
		all := strings.Fields(c.name)
		if len(all) <= len(words) || !slices.Equal(all[:len(words)], words) || seen[all[len(words)]] ||
			!strings.HasPrefix(all[len(words)], typed) {
			continue
		}
		next, means := all[len(words)], ""
		seen[next] = true
		switch {
		case len(words) == 0:
			means = topicText(next)
		case len(all) == len(words)+1:
			means = c.help
		}
		e.printCandidate(next, means)
	}
}

// printCompletion prints the script of a shell. Each asks the widgetd that its PATH finds, whatever is to be completed.
func printCompletion(e *env) error {
	script := ""
	switch e.args[0] {
	case "bash":
		script = bashCompletion
	case "zsh":
		script = zshCompletion
	case "fish":
		script = fishCompletion
	default:
		return usageError(unknownWord("there is no completion for", e.args[0], []string{"bash", "zsh", "fish"}).Error())
	}
	_, err := io.WriteString(e.stdout, script)
	return err
}

// bash takes = and : for the ends of words, also within them: what it has parted is put together, and of a candidate
// only what belongs to the last part is left.
const bashCompletion = `_widgetd() {
	local word answer part=' ' words=() found=()
	for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
		if ((${#words[@]})) && [[ -n $word && ($word == [=:]* || $part == *[=:]) ]]; then
			words[-1]+=$word
		else
			words+=("$word")
		fi
		part=$word
	done
	part=${part##*[=:]}
	answer=$(widgetd __complete "${words[@]}" 2>/dev/null)
	[[ -z $answer ]] || mapfile -t found <<<"$answer"
	case ${found[0]-} in
	:files) compopt -o default; found=() ;;
	:list) compopt -o nospace; found=("${found[@]:1}") ;;
	esac
	found=("${found[@]%%$'\t'*}")
	COMPREPLY=("${found[@]#"${words[-1]%"$part"}"}")
}
complete -F _widgetd widgetd
`

const zshCompletion = `#compdef widgetd
_widgetd() {
	local -a found ending
	found=("${(@f)$(widgetd __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
	case $found[1] in
	'') return 1 ;;
	:files) compset -P '-*='; _files; return ;;
	:list) shift found; ending=(-q -S ,) ;;
	esac
	found=("${(@)${(@)found//:/\\:}/$'\t'/:}")
	_describe command found $ending
}
if [[ $funcstack[1] == _widgetd ]]; then _widgetd; else compdef _widgetd widgetd; fi
`

const fishCompletion = `function __widgetd_complete
	set -l words (commandline -opc) (commandline -ct)
	set -l found (widgetd __complete $words[2..-1] 2>/dev/null)
	switch "$found[1]"
		case :files
			set -l option (string match -r '^-[^=]*=' -- $words[-1])
			for path in (__fish_complete_path (string unescape -- (string replace -r '^-[^=]*=' '' -- $words[-1])))
				echo "$option$path"
			end
		case :list
			string join \n -- $found[2..-1]
		case '*'
			string join \n -- $found
	end
end
complete -c widgetd -f -a '(__widgetd_complete)'
`
