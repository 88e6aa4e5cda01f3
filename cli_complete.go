package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

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
