package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestCommand_doesWhatItsHelpSays(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	for name, story := range map[string]func(*testing.T, *operator){
		"a receiver of webhooks": webhookListenStory,
		"orders":                 orderStory,
		"payments":               paymentStory,
		"books":                  booksStory,
	} {
		t.Run(name, func(t *testing.T) {
			o.t = t
			story(t, o)
		})
	}
	o.t = t
	o.do("help")
	o.do("upgrade")
	o.do("promote")
	if v := o.object("clock", "accept"); v["seen_at"] == nil || v["before"] != nil {
		t.Errorf("clock %v", v)
	}
	if v := o.object("version"); v["version"] == "" || o.do("version") != v["version"].(string)+"\n" {
		t.Errorf("version %v", v)
	}
}

// explainedCommands returns all commands with their whole help.
func explainedCommands() []command { return explained(allCommands(), nouns()) }

// noteCommand notes a command line that was run.
func noteCommand(args []string, err error) {
	if name := commandOf(args); err == nil && name != "" {
		answered.Store("command "+name, true)
	}
}

// noteQuestion notes a command line that has asked on a terminal, where it has told people so much.
func noteQuestion(args []string, noted string) {
	if strings.Contains(noted, "\nType yes to go on: ") {
		answered.Store("question of "+commandOf(args), true)
	}
}

// commandOf returns the name of the command that a line calls; "": there is none.
func commandOf(args []string) string {
	words := slices.DeleteFunc(slices.Clone(args), func(word string) bool { return strings.HasPrefix(word, "-") })
	if cmd, _ := findCommand(allCommands(), words); cmd != nil {
		return cmd.name
	}
	return ""
}

// neverRun lists the commands that no test of a whole run has run, but for those that are processes, or need another
// machine or Litestream, whose tests may be skipped; and those that ask first and were never asked on a terminal.
func neverRun() (missing []string) {
	for _, c := range explainedCommands() {
		_, seen := answered.Load("command " + c.name)
		if !seen && !slices.Contains([]string{"serve", "demo", "peer ignore", "replica verify",
			"replica wait"}, c.name) {
			missing = append(missing, "success of the command "+c.name)
		}
		if _, asked := answered.Load("question of " + c.name); c.asks() && !asked && c.name != "restore" {
			missing = append(missing, "the question of the command "+c.name)
		}
	}
	return missing
}

// Lines that text can hold stand in testdata/http/command.txt.
func TestCommand_wrongLineIsAUsageError(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for want, lines := range map[string][][]string{
		"a name has 1 to 200 bytes": {{"account", "add", "red\x1b[31m"}, {"account", "add", "caf\xe9"},
			{"account", "add", " \u00a0"}, {"widget", "add", strings.Repeat("x", 201)}},
		"-product: This must not contain control characters.": {{"license", "add", "-product", "red\x1b[31m"}},
		"-plan: This must be UTF-8.": {{"license", "add", "-product", "p", "-plan",
			"caf\xe9"}},
		"-entitlements: ": {{"license", "add", "-product", "p", "-entitlements",
			strings.Repeat("a,", 101)}},
	} {
		for _, line := range lines {
			_, err := s.command(line...)
			if oneLine(t, err, want); !errors.As(err, new(usageError)) {
				t.Errorf("%q: %v is no usage error", line, err)
			}
		}
	}
}

func TestCommand_thatIsIncompletePrintsItsHelpAsAnError(t *testing.T) {
	t.Parallel()
	screen := runOK(t, "help")
	for line, want := range map[string][2]string{
		"": {"a command is missing", screen}, "-json": {"a command is missing", screen},
		"account":   {"account needs a second word: its commands are listed above", "  account add NAME "},
		"books app": {"books app needs a third word: its commands are listed above", "  books app list "},
	} {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), strings.Fields(line), func(string) string { return "" }, &stdout, &stderr)
		if err != usageError(want[0]) || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), want[1]) {
			t.Errorf("%q: %v, %s, %s", line, err, stdout.String(), stderr.String())
		}
	}
}

func TestCommand_optionWinsOverItsVariableAndMayFollowArguments(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	o.env["WIDGETD_DB"] = filepath.Join(o.dir, "none.db")
	o.fails("no database at "+o.env["WIDGETD_DB"], "widget", "add", "Lunch", "-account", o.account)
	o.do("widget", "add", "Lunch", "-account", o.account, "-db", db)
	o.env["WIDGETD_DB"] = db
	o.do("widget", "add", "Dinner", "-account", o.account)
	o.do("widget", "add", "-public-orders", "-account", o.account, "Breakfast", "-json")
	o.env["WIDGETD_JSON"] = "true"
	if out := o.do("widget", "list"); strings.Count(out, "\n") != 3 || !strings.HasPrefix(out, "{") {
		t.Errorf("with WIDGETD_JSON: %s", out)
	}
	if out := o.do("widget", "list", "-json=false"); !strings.HasPrefix(out, "ID ") {
		t.Errorf("with -json=false: %s", out)
	}
	o.env["WIDGETD_JSON"] = "perhaps"
	o.fails("WIDGETD_JSON must be true or false", "widget", "list")
}

// TestCommand_readsOnlyTheVariablesOfServeAndOfTheFiles is about an operator in whose environment
// a forgotten variable must not decide which licences a command shows, or that it may go on.
func TestCommand_readsOnlyTheVariablesOfServeAndOfTheFiles(t *testing.T) {
	t.Parallel()
	serve, _ := findCommand(allCommands(), []string{"serve"})
	asked := map[string]bool{}
	for _, c := range explainedCommands() {
		e := &env{command: &c, getenv: func(name string) string { asked[name] = true; return "" }}
		e.parse(nil)
	}
	for _, o := range allOptions(explainedCommands()) {
		takes := func(taken option) bool { return taken.name == o.name }
		want := slices.ContainsFunc(serve.acceptedOptions(), takes) && o.name != "wide" ||
			o.name == "secret" // which others could see in a command line
		name := "WIDGETD_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
		if asked[name] != want || (o.variable() == name) != want {
			t.Errorf("%s is read: %v, want %v; -%s names %q", name, asked[name], want, o.name, o.variable())
		}
	}
}

// runAs runs the program with the files of the working directory, an installation's directory and
// a user, and returns what it printed.
func runAs(t testing.TB, installed string, uid int, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, noted strings.Builder
	e := &env{ctx: t.Context(), getenv: func(string) string { return "" }, stdout: &out, stderr: &noted,
		nouns: nouns(), commands: allCommands(), now: time.Now, installed: installed, uid: uid}
	err = e.dispatch(args)
	return out.String(), noted.String(), err
}

// Not parallel: it changes the working directory.
func TestCommand_findsTheInstallationAndSaysSo(t *testing.T) {
	o := newOperator(t)
	installed, elsewhere := o.dir, t.TempDir()
	t.Chdir(elsewhere)
	db, key := filepath.Join(installed, "widgetd.db"), filepath.Join(installed, "widgetd.key")
	out, noted, err := runAs(t, installed, os.Geteuid(), "account", "list")
	if err != nil || !strings.Contains(out, o.account) || noted != "using "+db+"\n" {
		t.Errorf("%q, %q, %v", out, noted, err)
	}
	out, noted, err = runAs(t, installed, os.Geteuid(), "token", "issue", "-scope", "leads:read")
	o.told.hear(out)
	if err != nil || noted != "using "+db+"\n" {
		t.Errorf("%q, %v", noted, err)
	}
	if _, noted, err = runAs(t, installed, os.Geteuid(), "version"); err != nil || noted != "" {
		t.Errorf("version: %q, %v", noted, err)
	}
	_, noted, err = runAs(t, installed, os.Geteuid(), "account", "list", "-db", "widgetd.db")
	if oneLine(t, err, "widgetd.db"); noted != "" {
		t.Errorf("with -db: %q", noted)
	}
	_, _, err = runAs(t, installed, os.Geteuid(), "init")
	oneLine(t, err, db+" and "+key+" exist already")
	_, _, err = runAs(t, installed, 54321, "init") // to whom the directory does not belong
	oneLine(t, err, installed+" holds an installation already", "add -force")
	if names := dirNames(t, elsewhere); len(names) > 0 {
		t.Errorf("init made %q", names)
	}
	if out, _, err = runAs(t, installed, os.Geteuid(), "init", "-force", "-json"); err != nil {
		t.Fatal(err)
	}
	var made struct{ Account_id string }
	must(t, json.Unmarshal([]byte(out), &made))
	out, noted, err = runAs(t, installed, os.Geteuid(), "account", "list")
	if err != nil || !strings.Contains(out, made.Account_id) || noted != "" {
		t.Errorf("with a database here: %q, %q, %v", out, noted, err)
	}
	t.Chdir(installed) // where a lost key file is replaced
	must(t, os.Remove(key))
	_, _, err = runAs(t, installed, os.Geteuid(), "init")
	oneLine(t, err, "restore it from your copy") // since a token was issued
	if out, _, err = runAs(t, installed, os.Geteuid(), "init", "-new-keys"); err != nil ||
		!strings.Contains(out, "widgetd.key: created") {
		t.Errorf("init in the installation: %q, %v", out, err)
	}
	if _, _, err = runAs(t, filepath.Join(installed, "none"), os.Geteuid(), "init", "-db", "b/widgetd.db", "-key",
		"b/widgetd.key"); err != nil {
		t.Errorf("init where nothing is installed: %v", err)
	}
}

func TestInit_saysHowToServeAtTheBaseAddress(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"http://127.0.0.1:9000/v1": " -addr 127.0.0.1:9000", "http://[::1]:9000/v1": " -addr [::1]:9000",
		"http://localhost:9000/v1": " -addr localhost:9000", "http://127.0.0.1:8080/v1": "",
		"https://127.0.0.1:9000/v1": "", "http://10.0.0.2:9000/v1": "", "http://127.0.0.1/v1": "",
		"https://api.example.com/v1": "",
	} {
		equal(t, base, listenOption(base), want)
	}
}

// Not parallel: it changes the working directory.
func TestInit_makesTheInstallationWhereItsDirectoryIs(t *testing.T) {
	installed, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(elsewhere)
	if _, _, err := runAs(t, installed, 54321, "init"); err != nil { // who may not: here
		t.Error(err)
	}
	if names := dirNames(t, elsewhere); len(names) != 2 {
		t.Errorf("made here: %q", names)
	}
	t.Chdir(t.TempDir())
	out, noted, err := runAs(t, installed, os.Geteuid(), "init")
	if err != nil || noted != "" || !strings.Contains(out, installed+"/widgetd.key: created") ||
		!strings.Contains(out, "next: 'sudo systemctl enable --now widgetd.socket widgetd.service'") {
		t.Errorf("%q, %q, %v", out, noted, err)
	}
	if names := dirNames(t, installed); len(names) != 2 {
		t.Errorf("made: %q", names)
	}
	out, noted, err = runAs(t, installed, os.Geteuid(), "status")
	if err != nil || noted != "using "+installed+"/widgetd.db\n" || !strings.Contains(out, "widgetd.db, ") {
		t.Errorf("%q, %q, %v", out, noted, err)
	}
}

func TestFile_thatWasReplacedWhileItWasWrittenGetsNoName(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(draft string) error{
		"by a file": func(draft string) error { return os.WriteFile(draft, nil, 0o600) },
		"by a link": func(draft string) error { return os.Symlink("/dev/null", draft) },
	} {
		path := filepath.Join(t.TempDir(), "copy.db")
		oneLine(t, writeAtomically(path, false, func(draft *os.File) error {
			return errors.Join(os.Rename(draft.Name(), path+".taken"), replace(draft.Name()))
		}), "somebody has replaced")
		if fileExists(path) {
			t.Errorf("%s: there is a file", name)
		}
	}
}

func TestCommand_ofRootOnAnotherUsersFilesSaysHowToRunIt(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db, key := o.env["WIDGETD_DB"], o.env["WIDGETD_KEY"]
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	for _, path := range []string{db, key} { // in a directory of root
		must(t, os.Chown(path, 54321, 54321))
		defer os.Chown(path, 0, 0)
	}
	before, err := os.ReadFile(db)
	must(t, err)
	for _, line := range []string{"account list", "account add x", "check", "upgrade", "key list", "serve", "init",
		"backup copy.db"} {
		cmd, _ := findCommand(allCommands(), strings.Fields(line))
		_, _, err := runAs(t, "", 0, append(strings.Fields(line), "-db", db, "-key", key)...)
		oneLine(t, err, o.dir+"/widgetd.", " belongs to the user #54321: run 'sudo -u #54321 widgetd "+cmd.name+" …'")
	}
	if after, _ := os.ReadFile(db); !bytes.Equal(before, after) {
		t.Error("the database has changed")
	}
	if _, _, err := runAs(t, "", 0, "version"); err != nil {
		t.Error(err)
	}
}

// Against a sender of leads who would have a spreadsheet or terminal of the operator run something: cells, and
// parts of cells after a semicolon, a tab or a line break, that begin like a formula get an apostrophe; no list,
// line or message of a command has control or bidirectional characters.
func TestCSV_cellsThatStrangersWroteAreNoFormulasAndReadAsTheyStand(t *testing.T) {
	t.Parallel()
	s := newService(t)
	// no address has that plus sign
	lead := func(email string) answer {
		return s.post("/widget/leads", `{"type":"demo","email":"`+email+`","source":"\uff1d1+1","page":"/\u202emenu",`+
			`"fields":{"name":"\u202eadA \u0645"}}`)
	}
	lead(`\uff0bada@example.com`).is(422, "validation_failed") // no address has that plus sign
	lead(`+ada@example.com`).is(200)
	made := s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"\uff1dkds","plan":"\uff20pro",`+
		`"customer":"\u2066x","metadata":{"a":"%s"}}`, s.account, "\u2067b"),
		"Authorization: Bearer "+s.token(s.account, scopeAdmin)).is(200)
	s.post("/widget/license/activate", `{"license_key":"`+made.text("key")+`","fingerprint":"`+
		strings.Repeat("f", 32)+`","device":{"name":"\uff0dkitchen","platform":"\u202ex","app_version":"\uff0b1"}}`).is(
		200)
	for _, list := range [][]string{{"lead", "list"}, {"license", "list"}, {"device", "list", made.text("id")}} {
		equal(t, list[0]+" list", strings.IndexFunc(s.must(list...), movesCursor), -1)
	}
	for command, want := range map[string]map[string]string{
		"lead": {"email": "'+ada@example.com", "source": "'\uff1d1+1", "page": "/\ufffdmenu",
			"fields": `{"name":"\u202eadA ` + "\u0645" + `"}`},
		"license": {"product": "'\uff1dkds", "plan": "'\uff20pro", "customer": "\ufffdx",
			"metadata": `{"a":"\u2067b"}`},
		"device": {"name": "'\uff0dkitchen", "platform": "\ufffdx", "app_version": "'\uff0b1"},
	} {
		rows, err := csv.NewReader(strings.NewReader(s.must(command, "export", "-csv"))).ReadAll()
		if err != nil || len(rows) != 2 || len(slices.Compact(slices.Sorted(slices.Values(rows[0])))) != len(rows[0]) {
			t.Fatalf("%s: %q, %v", command, rows, err)
		}
		for column, want := range want {
			if got := rows[1][slices.Index(rows[0], column)]; got != want {
				t.Errorf("%s: %s is %q, want %q", command, column, got, want)
			}
		}
	}
}

// TestCSV_theTypeOfACellDecidesWhetherItIsGuarded: a number is one, whatever it begins with, and a text never, whatever
// it looks like.
func TestCSV_theTypeOfACellDecidesWhetherItIsGuarded(t *testing.T) {
	t.Parallel()
	row, err := parseJSON([]byte(`{"n":-5,"f":-1.5,"s":"-5","plus":"+41 44 555 01 23","at":"2026-11-28T05:00:00Z",
		"none":null,"yes":true,"list":["-1","=2"],"amount":-5,"tip":"-5"}`))
	must(t, err)
	rate := func(string, *jsonValue) any { return -2.5 }
	word := func(string, *jsonValue) any { return "-2.5" }
	for _, c := range []struct {
		member string
		cell   cellFunc
		want   string
	}{{"n", nil, "-5"}, {"f", nil, "-1.5"}, {"s", nil, "'-5"}, {"plus", nil, "'+41 44 555 01 23"},
		{"at", nil, "2026-11-28T05:00:00Z"}, {"none", nil, ""}, {"yes", nil, "true"}, {"list", nil, "'-1 =2"},
		{"amount", nil, "-0.05"}, {"tip", nil, "'-5"}, {"n", rate, "-2.5"}, {"n", word, "'-2.5"}} {
		equal(t, c.member, csvCellOf(c.member, &row, c.cell), c.want)
	}
}

// FuzzCSV splits rows at each separator that a spreadsheet may have.
func FuzzCSV(f *testing.F) {
	for _, text := range []string{"x;=1+cmd|' /C calc'!A0;y", "\"\t@x\n\"\" -1,+1", "\u202e\uff1d1\r;\u3000=",
		"\\\";\"=1\"", "\xff;=\u2029+"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		object := encodeJSON(map[string]string{"member": text})
		object = object[:len(object)-1] // a line break
		var out strings.Builder
		w := csv.NewWriter(&out)
		must(t, w.WriteAll([][]string{{"id", csvTextCell(text), csvJSONCell(object), "-20.00", csvTextCell(text)}}))
		rows, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
		if err != nil || len(rows) != 1 || len(rows[0]) != 5 || rows[0][3] != "-20.00" {
			t.Fatalf("%q: %q %v", text, rows, err)
		}
		var back, sent map[string]string
		must(t, cmp.Or(json.Unmarshal([]byte(rows[0][2]), &back), json.Unmarshal(object, &sent)))
		equal(t, "the JSON", back["member"], sent["member"])
		parts := append(slices.Delete(rows[0], 3, 4), strings.FieldsFunc(out.String(), func(r rune) bool {
			return strings.ContainsRune(";\t\r\n\v\f\u0085\u2028\u2029", r)
		})...)
		for _, part := range parts {
			seen := strings.TrimLeftFunc(part, func(r rune) bool {
				return r == '"' || unicode.IsSpace(r) || !unicode.IsGraphic(r)
			})
			if r, _ := utf8.DecodeRuneInString(seen); strings.ContainsRune("=+-@＝＋－＠", r) {
				t.Errorf("%q: a cell is %q of %q", text, part, out.String())
			}
		}
	})
}

func TestCommand_takesItsOldNames(t *testing.T) {
	t.Parallel()
	commands := allCommands()
	for old, name := range oldNames {
		c, rest := findCommand(commands, strings.Fields(name))
		if c == nil || c.name != name || len(rest) > 0 {
			t.Errorf("%q is to be %q, which is no command", old, name)
			continue
		}
		args := slices.Repeat([]string{"x"}, c.nargs())
		found, rest := findCommand(commands, append(strings.Fields(old), args...))
		if found != c || !slices.Equal(rest, args) {
			t.Errorf("%q finds %v, %q", old, found, rest)
		}
	}
	for line, want := range map[string]string{
		"base-url set URL": "base-url set", "books export list": "books export list",
		"books export bkc_1 2026-01-01": "books export send", "books app set": "books app set",
	} {
		if c, _ := findCommand(commands, strings.Fields(line)); c == nil || c.name != want {
			t.Errorf("%q finds %v, want %q", line, c, want)
		}
	}
}

func TestHelp_fitsAScreenAndNamesWhatEveryCommandBeginsWith(t *testing.T) {
	t.Parallel()
	screen := runOK(t, "help")
	if n := strings.Count(screen, "\n"); n > 23 || widest(screen) > 80 { // and the shell's prompt
		t.Errorf("%d lines, %d columns:\n%s", n, widest(screen), screen)
	}
	for _, args := range [][]string{{"-h"}, {"--help"}, {"-json", "-help"}} {
		equal(t, strings.Join(args, " "), runOK(t, args...), screen)
	}
	want := map[string]bool{}
	for _, c := range explainedCommands() {
		first, verb, _ := strings.Cut(c.name, " ")
		want[first] = verb != ""
	}
	got := map[string]bool{}
	for _, topic := range wholeTopics {
		got[topic.name] = false
	}
	for _, topic := range nounTopics {
		got[topic.name] = true
	}
	equal(t, "topics", got, want)
	for _, topic := range slices.Concat(wholeTopics, nounTopics) {
		if !strings.Contains(screen, fmt.Sprintf("  %-10s %s", topic.name, topic.text)) || len(topic.text) > 26 {
			t.Errorf("the screen lacks %s, or it is too long:\n%s", topic.name, screen)
		}
	}
}

// unknownArguments fill the arguments of a command with what does not exist. more are options that it needs.
func unknownArguments(c command, more map[string][]string) (args []string, unknown bool) {
	none := func(prefix string) string { return newID(prefix, time.Now()) }
	values := map[string]string{"N": "5", "NAME": "x", "JSON": "{}", "DATE": "2026-01-01", "KID": "none",
		"ORIGIN": "https://none.example", "URL": "https://none.example/v1", "FILE.csv": "none.csv"}
	for _, kind := range collectNouns(nouns(), func(n *noun) []idKind { return n.ids }) {
		if kind.argument != "CONNECTION" || strings.HasPrefix(c.name, "books") == (kind.prefix == "bkc") {
			values[kind.argument] = none(kind.prefix)
		}
	}
	for _, argument := range strings.Fields(c.args) {
		value, isOther := values[argument]
		if !isOther {
			value, _, _ = strings.Cut(argument, "|")
		}
		unknown = unknown || strings.Contains(value, "_") || value == "none"
		args = append(args, value)
	}
	if !unknown && slices.ContainsFunc(c.options, func(o option) bool { return o.name == "account" }) {
		args, unknown = append(args, "-account", "nobody"), true
	}
	return append(args, more[c.name]...), unknown
}

func TestCommand_exitsWith1ForWhatDoesNotExistAndWith2ForAWrongLine(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	s := newService(t)
	writeFile(t, filepath.Join(s.dir, "secrets"), "key=rk_test_1\n")
	more := map[string][]string{"webhook set": {"-description", "x"}, "webhook replay": {"-since", "7d"},
		"payment reconnect": {"-secrets", filepath.Join(s.dir, "secrets")}, "license add": {"-product", "p"},
		"token issue": {"-scope", "admin"}, "webhook add": {"-type", "lead.created"},
		"order erase": {"-order", newID("ord", time.Now())},
		"app add":     {"-home-page", "https://a.example", "-redirect-uri", "https://a.example/", "-scope", "x"}}
	dispatch := func(name, args []string) (string, error) {
		e, out, _ := s.envAt(false, strings.NewReader(""))
		err := e.dispatch(slices.Concat(name, args))
		return out.String(), err
	}
	for _, c := range explainedCommands() {
		var usage usageError
		if args, unknown := unknownArguments(c, more); unknown {
			out, err := dispatch(strings.Fields(c.name), args)
			if err == nil || errors.As(err, &usage) || out != "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %q: %v is taken for a wrong command line, or it printed %s", c.name, args, err, out)
			}
		}
		wrong := [][]string{{"-nonsense"}, slices.Repeat([]string{"x"}, len(strings.Fields(c.args))+1)}
		if c.nargs() > 0 {
			wrong = append(wrong, nil)
		}
		if c.name == "help" {
			wrong = wrong[:1] // its words are those of another
		}
		for _, args := range wrong {
			if _, err := dispatch(strings.Fields(c.name), args); !errors.As(err, &usage) {
				t.Errorf("%s %q: %v is no usage error", c.name, args, err)
			}
		}
	}
}

func TestCommand_thatCallsARouteNeedsKeysForSecretsOnlyAndWritesNothingOnceFenced(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	must(t, os.Remove(o.env["WIDGETD_KEY"]))
	id := o.object("license", "add", "-product", "kds")["id"].(string)
	made := o.objects("event", "list", "-limit", "1")[0]
	equal(t, "type", made["type"], any("license.created"))
	contains(t, fmt.Sprint(made["actor"]), "command:")
	o.fails("no key file at "+o.env["WIDGETD_KEY"], "webhook", "add", "https://a.example", "-type", "lead.created")
	o.hears(7)
	o.fails("Another machine serves now; nothing was written.", "license", "suspend", id)
	equal(t, "status", o.object("license", "show", id)["status"], any("active"))
}

// envAt is what the program works with, on a terminal or not, with what is typed there. out and noted get what it
// writes. All that ask for one have the same open database, since most of what a command costs is to open it.
func (s *service) envAt(terminal bool, typed io.Reader) (e *env, out, noted *strings.Builder) {
	files := filesIn(s.dir)
	if s.commands == nil {
		s.commands = openTestStore(s.t, files["WIDGETD_DB"], storeOptions{noCheckpoints: true,
			limits: s.store.limits})
	}
	noticeIn(s.commands)
	out, noted = &strings.Builder{}, &strings.Builder{}
	e = newEnv(s.t.Context(), func(name string) string { return files[name] }, out, noted)
	e.stdin, e.canAsk, e.shared = typed, terminal, s.commands
	return e, out, noted
}

// typing runs the program on a terminal on which somebody types.
func (s *service) typing(typed string, args ...string) (stdout, stderr string, err error) {
	e, out, noted := s.envAt(true, strings.NewReader(typed))
	_, err = s.dispatch(e, out, args)
	noteQuestion(args, noted.String())
	return out.String(), noted.String(), err
}

// noting runs the program without a terminal, where it must succeed and must read nothing.
func (s *service) noting(args ...string) (stdout, stderr string) {
	s.t.Helper()
	piped := strings.NewReader("yes\n")
	e, out, noted := s.envAt(false, piped)
	if err := e.dispatch(args); err != nil || piped.Len() != len("yes\n") {
		s.t.Errorf("%q: %v, and %d bytes of standard input are left", args, err, piped.Len())
	}
	s.notice()
	s.told.hear(out.String())
	return out.String(), noted.String()
}

func TestConfirm_wantsATypedYesOnATerminal(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addWidget(s.account)
	remove := []string{"widget", "remove", id}
	for _, typed := range []string{"", "\n", "no\n", "y\n", "YES\n", "yes", "yes, please\n", "\nyes\n",
		strings.Repeat("yes", 1000) + "\n"} { // the empty one is Ctrl-D
		out, noted, err := s.typing(typed, remove...)
		if !errors.Is(err, errDeclined) || out != "" || strings.Count(noted, "Type yes to go on: ") != 1 {
			t.Errorf("after %q: %v, %q, %q", typed, err, out, noted)
		}
	}
	s.hasRows(1, "widgets")
	if out, _, err := s.typing("yes\r\nno\n", remove...); err != nil || !strings.Contains(out, " removed") {
		t.Errorf("after yes: %v, %q", err, out)
	}
	s.hasRows(0, "widgets")
}

// A meanwhile does something when it is first read from, and then is what was typed.
type meanwhile struct {
	do    func()
	typed io.Reader
}

func (m *meanwhile) Read(b []byte) (int, error) {
	if m.do != nil {
		m.do()
		m.do = nil
	}
	return m.typed.Read(b)
}

func TestConfirm_ofWhatHasGoneMeanwhileChangesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.must("origin", "add", "https://a.example")
	app, _ := s.registerApp()
	for _, line := range []string{"origin remove https://a.example", "app remove " + app.ID,
		"widget remove " + s.addWidget(s.account), "webhook remove " + s.addWebhook(s.account, "lead.created")} {
		before := ""
		e, out, _ := s.envAt(true, &meanwhile{func() {
			s.noting(strings.Fields(line + " -force")...)
			before = s.dump()
		}, strings.NewReader("yes\n")})
		oneLine(t, e.dispatch(strings.Fields(line)), "not found")
		if out.String() != "" {
			t.Errorf("%q printed %q", line, out)
		}
		s.unchanged(before)
	}
	id := s.addWidget(s.account) // a question may stay open for hours, and holds nobody up
	ctx, interrupt := context.WithCancel(t.Context())
	silent, end := io.Pipe()
	defer end.Close()
	e, _, _ := s.envAt(true, &meanwhile{func() {
		s.addWidget(s.account) // the database is free, which the command has opened by itself
		interrupt()            // Ctrl-C, at which no line ends
	}, silent})
	e.ctx, e.shared = ctx, nil
	if err := e.dispatch([]string{"widget", "remove", id}); !errors.Is(err, errDeclined) {
		t.Error(err)
	}
	s.hasRows(2, "widgets")
}

func TestCommand_isNotQueuedBesideAService(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderPaid)
	listener, err := listenUnix(socketPath(filepath.Join(s.dir, "widgetd.db")), 0o600)
	s.check(err)
	defer listener.Close()
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{}`)
	}))
	if _, noted := s.noting("order", "settle", o.ID); noted != "" {
		t.Errorf("noted %q", noted)
	}
}

// A typedLines is what somebody types on a terminal, which gives a line at a time.
type typedLines []string

func (l *typedLines) Read(p []byte) (int, error) {
	if len(*l) == 0 {
		return 0, io.EOF
	}
	n := copy(p, (*l)[0]+"\n")
	*l = (*l)[1:]
	return n, nil
}

// A part of a name is not enough for any command but those that only read.
func TestNames_areWholeWhereACommandChangesSomething(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.addAccount("Trattoria al Lago")
	var reading []string
	for _, c := range allCommands() {
		args := strings.Fields(c.name)
		for arg := range strings.FieldsSeq(c.args) {
			args = append(args, map[bool]string{true: "lago", false: "x"}[arg == accountPlaceholder])
		}
		if slices.ContainsFunc(c.options, func(o option) bool { return o.value == accountPlaceholder }) {
			args = append(args, "-account", "lago")
		}
		if !slices.Contains(args, "lago") {
			continue
		}
		e, _, _ := s.envAt(false, strings.NewReader(""))
		if err := e.dispatch(args); err == nil || !strings.Contains(err.Error(), "wants the whole name or id") {
			reading = append(reading, c.name)
		}
	}
	equal(t, "commands that take a part", strings.Join(reading, ", "), "status, account show, app list, "+
		"books export list, books list, event list, grant list, lead export, lead list, legacy list, "+
		"license export, license list, order list, order refunds, origin list, payment export, payment list, "+
		"payout list, plan list, revenue export, revenue list, revenue show, token list, webhook list, widget list")
}

func TestNames_thatTwoRowsHaveAreNotGuessed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	first, _ := s.addLicense(license{})
	second, _ := s.addLicense(license{})
	hint := strings.ToUpper(second[len(second)-keyGroup:])
	s.sql(`UPDATE license_keys SET hint = ? WHERE license_id = ?`, hint, first)
	for _, typed := range []string{hint, strings.ToLower(hint), "…" + hint} {
		_, err := s.command("license", "revoke", typed, "-force")
		if oneLine(t, err, first); !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), second) {
			t.Errorf("%q: %v", typed, err)
		}
	}
	twin := s.addAccount("x")
	s.sql(`UPDATE accounts SET name = ? WHERE id = ?`, s.account[len(s.account)-8:], twin)
	for _, verb := range []string{"show", "close"} {
		_, err := s.command("account", verb, s.account[len(s.account)-8:])
		if oneLine(t, err, "several accounts have the name"); !errors.As(err, new(usageError)) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	word, err := s.store.accountWord(twin)
	s.check(err)
	equal(t, "in a hint", word, twin)
}

func TestNames_ofHintsAreThoseThatAShellReads(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.addAccount("Twin")
	for name, want := range map[string]string{"Bistro": "Bistro", "Bistro Ltd": `"Bistro Ltd"`,
		"Café-1.2_b": "Café-1.2_b",
		"A & B; C":   `"A & B; C"`, "L'Osteria": "", `Say "hi"`: "", "$HOME": "", "-force": "", "`x`": "", `a\b`: "",
		"Twin": "", "acct_x": ""} {
		id := s.addAccount(name)
		word, err := s.store.accountWord(id)
		s.check(err)
		equal(t, name, word, cmp.Or(want, id))
		if _, err := s.command("account", "show", strings.Trim(word, `"`)); err != nil {
			t.Errorf("%s: %v", word, err)
		}
	}
}

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
