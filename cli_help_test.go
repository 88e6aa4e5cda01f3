package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// quotedCommand finds commands in quotes, with what is before the quote.
var quotedCommand = regexp.MustCompile(`(?m)(?:^|[ (])'[a-z]+ [^'\n]*'`)

func TestHelp_fitsTheTerminalButForACommandThatStandsAlone(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"help", "help -all", "help license", "help license add", "help books export",
		"help serve", "help restore", "help token issue", "help order", "help webhook listen"} {
		whole := runOK(t, strings.Fields(line)...)
		for _, columns := range []int{45, 80} {
			getenv := func(name string) string { return map[string]string{"COLUMNS": fmt.Sprint(columns)}[name] }
			var out, wide bytes.Buffer
			must(t, run(t.Context(), strings.Fields(line), getenv, &out, &out))
			for text := range strings.Lines(out.String()) {
				text = strings.TrimSuffix(text, "\n")
				alone := quotedCommand.ReplaceAllString(strings.TrimSpace(text), "")
				if utf8.RuneCountInString(text) > columns && len(alone) > 1 {
					t.Errorf("%s has more than %d columns: %s", line, columns, text)
				}
			}
			for _, command := range quotedCommand.FindAllString(whole, -1) {
				contains(t, out.String(), strings.Trim(command, " ("))
			}
			if line == "help" {
				for _, topic := range slices.Concat(wholeTopics, nounTopics) {
					contains(t, out.String(), "  "+topic.name+" ")
				}
			}
			must(t, run(t.Context(), append(strings.Fields(line), "-wide"), getenv, &wide, &wide))
			equal(t, line+" -wide", wide.String(), whole)
		}
	}
}

func TestHelp_showsWordsOfOptionsInColumns(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	scopes := []string{"stats:read", "leads:read", "leads:write"}
	writeHelpRows(&out, []helpRow{{"-scope S", "what it may do", scopes}}, 45)
	equal(t, "at 45 columns", out.String(), "  -scope S  what it may do:\n"+
		"            stats:read   leads:read\n            leads:write\n")
}

// completed returns what bash makes of the last of the words of a line, parted as bash parts them.
func completed(t *testing.T, words ...string) string {
	t.Helper()
	const script = `source <(widgetd completion bash) && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) &&
		compopt() { printf '(%s) ' "$*"; } && _widgetd && echo "${COMPREPLY[@]}"`
	cmd := exec.Command("bash", append([]string{"-c", script, "bash"}, words...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(builtProgram(t))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v %s", words, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestCompletion_isThatOfBash(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "bash")
	for want, words := range map[string][]string{
		"license":       {"lic"},
		"retry reverse": {"books", "export", "re"},
		"-status":       {"license", "list", "-st"},
		"(-o nospace) read,leads:read read,leads:write": {"token", "issue", "-scope", "stats", ":", "read,le"},
		"(-o nospace) read":                             {"token", "issue", "-scope", "=", "stats", ":"},
		"(-o default)":                                  {"license", "import", "my"},
		"fish":                                          {"completion", "f"},
		"":                                              {"account", "show", ""},
	} {
		equal(t, strings.Join(words, " "), completed(t, append([]string{"widgetd"}, words...)...), want)
	}
	contains(t, runOK(t, "completion", "zsh"), "#compdef widgetd", "widgetd __complete")
}

// manPages writes the man pages and returns their texts by their names, and where they are.
func manPages(t *testing.T) (pages map[string]string, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "man")
	var out bytes.Buffer
	dated := func(name string) string { return map[string]string{"SOURCE_DATE_EPOCH": "1795000000"}[name] }
	must(t, run(t.Context(), []string{"help", "-man", dir}, dated, &out, &out))
	pages = map[string]string{}
	for _, page := range dirNames(t, dir) {
		pages[page] = fileText(t, filepath.Join(dir, page))
	}
	return pages, dir
}

// Every form of the help is made of the declarations: what is printed of all and of one, the page of commands in /docs,
// what 'widgetd help --markdown' prints, and man pages.
func TestHelp_lacksNothingInAnyForm(t *testing.T) {
	t.Parallel()
	s := newService(t)
	page := s.get("//docs/commands.md").is(200).body + s.get("//docs/commands-2.md").is(200).body
	all, reference := runOK(t, "help", "-all"), runOK(t, "help", "--markdown")
	man, _ := manPages(t)
	for _, c := range explainedCommands() {
		contains(t, all, "  "+strings.TrimSuffix(c.name+" "+c.args, " ")+" ", " "+c.help+"\n")
		contains(t, page, "\n### `widgetd "+c.signature()+"`\n\n"+c.help+".\n")
		contains(t, reference, "\n| `"+c.signature()+"` | "+markdownCell(c.help)+" |\n")
		contains(t, man["widgetd.1"], "\n"+manItem(c.name, c.args, c.help))
		word, _, _ := strings.Cut(c.name, " ")
		_, ofMan, _ := strings.Cut(man["widgetd-"+word+".1"], "\n.SS "+roff("widgetd "+c.signature())+"\n")
		_, onPage, _ := strings.Cut(page, "\n### `widgetd "+c.signature()+"`\n")
		onPage, _, _ = strings.Cut(onPage, "\n##")
		for _, o := range c.options {
			contains(t, onPage, "\n- `"+o.signature()+"`: "+o.row().line()+"\n")
			contains(t, reference, "\n| `"+o.signature()+"` |")
			contains(t, ofMan, manItem("-"+o.name, o.value, o.row().line()))
		}
		equal(t, c.name+" has options", strings.Count(onPage, "\n- `-"), len(c.options))
		own := runOK(t, append(strings.Fields(c.name), "-h")...)
		contains(t, own, "widgetd "+c.name, c.help)
		for _, o := range c.acceptedOptions() {
			contains(t, own, "\n  "+o.signature()+" ")
		}
		equal(t, c.name+" -h has options", len(captures(`(?m)^  (-[a-z-]+)`, own)), len(c.acceptedOptions()))
	}
	for _, o := range commonOptions {
		contains(t, page, "\n- `"+o.signature()+"`: "+o.row().line()+"\n")
	}
	for _, o := range allOptions(explainedCommands()) {
		r := o.general().row()
		shown := "\n  " + regexp.QuoteMeta(r.name) + " +" + regexp.QuoteMeta(r.line()) + "\n"
		failIf(t, !regexp.MustCompile(shown).MatchString(all), "help does not list -%s", o.name)
	}
}

func TestHelp_isManPages(t *testing.T) {
	t.Parallel()
	pages, dir := manPages(t)
	again, _ := manPages(t)
	equal(t, "the same, written again", again, pages)
	for page, text := range pages {
		contains(t, text, ` 1 "2026-11-18" "widgetd `)
		if wrong := regexp.MustCompile(`(?m)^('|\.[^A-Zabnhr]).*`).FindString(text); wrong != "" {
			t.Errorf("%s: a request that is none: %s", page, wrong)
		}
	}
	equal(t, "a text that roff would take for its own", manText(`.so \n-- 'run it' now`),
		`\&.so \en\-\- \(aqrun\~it\(aq now`+"\n")
	if _, err := exec.LookPath("mandoc"); err != nil {
		t.Skipf("the man pages are not checked: %v", err)
	}
	for page := range pages {
		if said, err := exec.Command("mandoc", "-Tlint", filepath.Join(dir, page)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", page, err, said)
		}
	}
}
