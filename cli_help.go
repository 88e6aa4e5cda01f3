package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

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
