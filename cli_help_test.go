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

// helpLines returns every line that asks for help: for all, for words with which commands begin, for each.
func helpLines() (lines []string) {
	lines = []string{"help", "help -all"}
	for _, c := range allCommands() {
		for words := strings.Fields(c.name); len(words) > 0; words = words[:len(words)-1] {
			if line := "help " + strings.Join(words, " "); !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// quotedCommand finds commands in quotes, with what is before the quote.
var quotedCommand = regexp.MustCompile(`(?m)(?:^|[ (])'[a-z]+ [^'\n]*'`)

func TestHelp_fitsTheTerminalButForACommandThatStandsAlone(t *testing.T) {
	t.Parallel()
	for _, line := range helpLines() {
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
}

func TestCompletion_isAScriptThatEachShellTakes(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "widgetd")
			must(t, os.WriteFile(path, []byte(runOK(t, "completion", shell)), 0o600))
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("the script for %s is not tried: %v", shell, err)
			}
			if out, err := exec.Command(shell, "-n", path).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func TestHelp_isManPagesThatLackNothing(t *testing.T) {
	t.Parallel()
	dir, again := filepath.Join(t.TempDir(), "man"), t.TempDir()
	var out bytes.Buffer
	dated := func(name string) string { return map[string]string{"SOURCE_DATE_EPOCH": "1795000000"}[name] }
	for _, to := range []string{dir, again} {
		must(t, run(t.Context(), []string{"help", "-man", to}, dated, &out, &out))
	}
	pages := dirNames(t, dir)
	text := func(dir, page string) string {
		read, err := os.ReadFile(filepath.Join(dir, page))
		must(t, err)
		return string(read)
	}
	for _, page := range pages {
		equal(t, page+", written again", text(again, page), text(dir, page))
		contains(t, text(dir, page), ` 1 "2026-11-18" "widgetd `)
		for line := range strings.Lines(text(dir, page)) {
			if strings.HasPrefix(line, "'") || regexp.MustCompile(`^\.[^A-Zabnhr]`).MatchString(line) {
				t.Errorf("%s: a request that is none: %s", page, line)
			}
		}
	}
	for _, c := range explainedCommands() {
		word, _, _ := strings.Cut(c.name, " ")
		contains(t, text(dir, "widgetd.1"), "\n"+manItem(c.name, c.args, c.help))
		own := text(dir, "widgetd-"+word+".1")
		_, own, _ = strings.Cut(own, "\n.SS "+roff("widgetd "+c.signature())+"\n")
		for _, o := range c.options {
			contains(t, own, manItem("-"+o.name, o.value, o.row().line()))
		}
	}
	equal(t, "a text that roff would take for its own", manText(`.so \n-- 'run it' now`),
		`\&.so \en\-\- \(aqrun\~it\(aq now`+"\n")
	if _, err := exec.LookPath("mandoc"); err != nil {
		t.Skipf("the man pages are not checked: %v", err)
	}
	for _, page := range pages {
		if said, err := exec.Command("mandoc", "-Tlint", filepath.Join(dir, page)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", page, err, said)
		}
	}
}
