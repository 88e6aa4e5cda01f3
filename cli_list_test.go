package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"
)

// widest returns the length of the longest line.
func widest(text string) (n int) {
	for line := range strings.Lines(text) {
		n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return n
}

// movesCursor reports whether a terminal acts on a character, other than to begin a line, or turns its line around.
func movesCursor(r rune) bool {
	return r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// fillTables gives an operator rows for tables, with long cells among them, and returns a licence.
func fillTables(o *operator) (license string) {
	license = o.object("license", "add", "-account", o.account, "-product", "kitchen-display-for-the-second-floor",
		"-plan", "professional", "-expires", "2y", "-entitlements", "kds,reports",
		"-metadata", `{"note":"`+strings.Repeat("long ", 40)+`"}`)["id"].(string)
	o.do("license", "add", "-product", "kds", "-max-devices", "2")
	o.addDevice(license, "kid")
	o.do("token", "issue", "-account", o.account, "-scope", "stats:read leads:read leads:write licenses:read")
	for _, name := range []string{"Lunch", "Dinner on the terrace, also in winter"} {
		o.do("widget", "add", name)
	}
	o.do("account", "add", "Trattoria Bellavista on the lake")
	o.addLeads("guest1@example.com", "somebody.with.a.long.name@subdomain.example.com")
	o.do("app", "add", "Planner", "-home-page", "https://app.example", "-redirect-uri", "https://app.example/back",
		"-scope", "orders:read orders:write")
	return license
}

// wholeIDs finds the ids of rows in JSON output.
var wholeIDs = regexp.MustCompile(`"id":"([^"]+)"`)

func TestTable_fitsTerminalsOf80ColumnsWithTheEndsOfIDsAndNothingElseCut(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	license := fillTables(o)
	for _, args := range [][]string{
		{"license", "list"}, {"license", "show", license}, {"device", "list", license}, {"account", "list"},
		{"origin", "list"}, {"token", "list"}, {"lead", "list"}, {"events"}, {"widget", "list"}, {"app", "list"},
		{"key", "list"}, {"stats"}, {"legacy"}, {"base-url"}, {"webhook", "list"}, {"order", "list"},
	} {
		ids := wholeIDs.FindAllStringSubmatch(o.do(append(args, "-json")...), -1)
		for _, columns := range []string{"80", "45"} {
			o.env["COLUMNS"] = columns
			out := o.do(args...)
			if n := widest(out); columns == "80" && n > 80 {
				t.Errorf("%q has %d columns:\n%s", args, n, out)
			}
			for _, id := range ids {
				if !strings.Contains(out, id[1][len(id[1])-8:]) {
					t.Errorf("%q at %s columns lacks %s:\n%s", args, columns, id[1], out)
				}
			}
			lacks(t, strings.NewReplacer(" …", "", "… ", "", "…\n", "").Replace(out), "…") // hints of keys and devices
		}
		delete(o.env, "COLUMNS")
	}
}

// printedTable returns a table as a terminal of so many columns shows it, at noon of 22 November 2026.
func printedTable(t testing.TB, columns int, header string, rows ...[]any) string {
	t.Helper()
	var out bytes.Buffer
	variables := map[string]string{"COLUMNS": fmt.Sprint(columns)}
	e := &env{stdout: &out, getenv: func(name string) string { return variables[name] }, command: &command{},
		now: func() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }}
	must(t, e.parse([]string{fmt.Sprintf("-wide=%v", columns == 0)}))
	must(t, e.printTable(header, rows))
	return out.String()
}

func TestTable_printsWhatDoesNotFitBelowItsRow(t *testing.T) {
	t.Parallel()
	rows := [][]any{
		{idCell("wgt_01jea0vpf02dc5k9yk0bjb0af7"), "Lunch", stamp{}, "menu", "x"},
		{idCell("wgt_01jea0xj182fv928c40bkhmc60"), "Dinner on the terrace", newStamp(bubbleStart), "menu",
			"served until the kitchen closes, and longer where somebody asks"},
	}
	const header = "ID NAME CREATED KIND LONG_TEXT"
	equal(t, "at 45 columns", printedTable(t, 45, header, rows...), `ID        NAME
0bjb0af7  Lunch
  kind menu  long text x
0bkhmc60  Dinner on the terrace
  created 2000-01-01 00:00  kind menu  long
  text served until the kitchen closes, and
  longer where somebody asks
`)
	contains(t, printedTable(t, 140, header, rows...), "ID        NAME                   CREATED")
	contains(t, printedTable(t, 0, header, rows...), "wgt_01jea0vpf02dc5k9yk0bjb0af7  Lunch")
	equal(t, "one column", printedTable(t, 10, "NAME", []any{"Dinner on the terrace"}), "NAME\nDinner on the terrace\n")
}

// Against a tenant whose text would pass for further cells of its row.
func TestTable_hasTwoSpacesBetweenCellsOnly(t *testing.T) {
	t.Parallel()
	out := printedTable(t, 45, "ID STATE REFERENCE TOTAL",
		[]any{"1", "open", "R-1  total 99999.00 CHF  state\u00a0\u00a0paid", "5.00 CHF"})
	equal(t, "at 45 columns", out, `ID  STATE
1   open
  reference R-1 total 99999.00 CHF state paid
  total 5.00 CHF
`)
}

// TestCommand_asksTheTerminalForItsWidth runs the program in a terminal that is 50 columns wide.
func TestCommand_asksTheTerminalForItsWidth(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "script", "stty", "sh")
	o := newOperator(t)
	cmd := exec.Command("script", "-qec", "stty cols 50; exec '"+builtProgram(t)+"' account list", "/dev/null")
	cmd.Env = append(os.Environ(), "COLUMNS=200", "WIDGETD_DB="+o.env["WIDGETD_DB"])
	var out bytes.Buffer
	cmd.Stdout = &out
	must(t, cmd.Run())
	text := strings.ReplaceAll(out.String(), "\r\n", "\n")
	if n := widest(text); n > 50 || !strings.Contains(text, "\n"+o.account[len(o.account)-8:]+"  main ") {
		t.Errorf("%d columns:\n%s", n, text)
	}
}

func TestTable_showsEndsOfIDsThatCommandsTake(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	license := fillTables(o)
	o.env["COLUMNS"] = "45"
	for _, c := range []struct{ list, takes string }{
		{"license list", "license show"}, {"account list", "account show"}, {"widget list", "widget snippet"},
		{"app list", "app remove -force"}, {"event list", "event show"}, {"device list " + license, "device block"},
		{"token list", "token revoke"},
	} {
		out := o.do(strings.Fields(c.list)...)
		end := strings.Fields(strings.SplitAfterN(out, "\n", 2)[1])[0]
		whole := fmt.Sprint(o.objects(strings.Fields(c.list)...)[0]["id"])
		if len(end) != 8 || !strings.HasSuffix(whole, end) {
			t.Errorf("%s shows %q for %s:\n%s", c.list, end, whole, out)
		}
		contains(t, o.do(append(strings.Fields(c.list), "-wide")...), whole)
		o.do(append(strings.Fields(c.takes), end)...)
	}
	delete(o.env, "COLUMNS")
	contains(t, o.do("license", "list"), license)
}

func TestError_breaksBetweenWordsOnATerminal(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "script", "stty", "sh")
	o := newOperator(t)
	cmd := exec.Command("script", "-qec", "stty cols 45; exec '"+builtProgram(t)+"' license show 1234567", "/dev/null")
	cmd.Env = append(os.Environ(), "WIDGETD_DB="+o.env["WIDGETD_DB"])
	out, err := cmd.Output()
	failIf(t, err == nil, "a licence that does not exist was shown")
	text := strings.ReplaceAll(string(out), "\r\n", "\n")
	if !strings.HasPrefix(text, "widgetd: not found: 'widgetd license list'\n") || widest(text) > 45 {
		t.Errorf("%q", text)
	}
	equal(t, "elsewhere", fitted("a line that nobody breaks\nand another", 0), "a line that nobody breaks\nand another")
}

func TestText_breaksBetweenWordsAndNeverWithinACommand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"as 'widgetd key add' adds":             "as\n'widgetd key add'\nadds",
		"see ('widgetd key add'), then go":      "see\n('widgetd key add'),\nthen go",
		"run 'widgetd account list -json' now":  "run\n'widgetd account list -json'\nnow",
		"'widgetd order list -account 'a b'' x": "'widgetd order list -account 'a b''\nx",
		"the guests' own 'list of names":        "the guests' own\n'list of names",
		"it isn't one's own, it's the other's":  "it isn't one's\nown, it's the\nother's",
		"  - indented text goes on":             "  - indented\n  text goes on",
		"two  spaces  stay":                     "two  spaces \nstay",
		"":                                      "",
		"Type yes to go: ":                      "Type yes to go: ",
	} {
		equal(t, text, fitted(text, 16), want)
		equal(t, text+", without a limit", fitted(text, 0), text)
	}
}

func TestAccount_isShownWithItsAddressInLines(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.do("account", "set", o.account, "-address", "Hauptgasse 1\n4500 Solothurn\nstate  closed")
	contains(t, o.do("account", "show", o.account),
		"address        Hauptgasse 1\n               4500 Solothurn\n               state  closed\n")
}

func TestID_mayBeNamedByItsEnd(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	const id = "lic_01m84qxem9y60cmcjqm39d1398"
	o.change(func(t *tx) error {
		t.exec(`INSERT INTO licenses (id, account_id, product, created_at, updated_at) VALUES (?, ?, ?, ?, ?)`,
			id, o.account, "edge", t.now, t.now)
		return nil
	})
	for _, typed := range []string{
		id, "39d1398", "9d1398", "lic_9d1398", "lic_…9d1398", "…9d1398", "lic_...9d1398", "9D1398", "9dl398",
		"LIC_01M84QXEM9Y60CMCJQM39D1398", "01m84qxem9y60cmcjqm39d1398",
	} {
		out, err := o.try("license", "show", typed)
		failIf(t, err != nil || !strings.Contains(out, id), "%s: %v, %s", typed, err, out)
	}
	for typed, want := range map[string]string{"d1398": "not found", "1234567": "not found", "dev_9d1398": "not found",
		"lic_%39d1398": "not found", id + "9": "not found"} {
		if err := o.fails(want, "license", "show", typed); errors.As(err, new(usageError)) {
			t.Errorf("%s is a wrong command line", typed)
		}
	}
	contains(t, o.do("license", "set", "9d1398", `{"plan":"pro"}`), id+" is active\n")
	equal(t, "plan", o.object("license", "show", "9D1398")["plan"], any("pro"))
	contains(t, o.do("license", "suspend", "9d1398"), id+" is suspended\n")
	contains(t, o.do("event", "list", "-license", "…9d1398", "-wide"), "license.suspended")
	err := o.fails("-license: no id of the kind lic_… ends in \"9d1399\"", "events", "-license", "9d1399")
	failIf(t, errors.As(err, new(usageError)), "a licence that does not exist is a wrong command line")
}

func TestID_whoseEndSeveralHaveIsAskedFor(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	var all []string
	o.change(func(t *tx) error {
		for i := range 12 {
			id := fmt.Sprintf("wgt_01jea0vpf02dc5k9yk%02db0af78", i)
			all = append(all, id)
			t.exec(`INSERT INTO widgets (id, account_id, name, created_at) VALUES (?, ?, ?, ?)`,
				id, o.account, fmt.Sprint("widget ", i), t.now)
		}
		return nil
	})
	err := o.fails(`several ids end in "b0af78"; give more of the one that you mean: `+strings.Join(all[:10], " ")+
		" and others", "widget", "rename", "b0af78", "Lunch")
	failIf(t, !errors.As(err, new(usageError)), "%v is no usage error", err)
	err = o.fails(`several ids end in "b0af78"`, "stats", "-widget", "b0af78")
	failIf(t, !errors.As(err, new(usageError)), "%v is no usage error", err)
	o.do("widget", "rename", "k07b0af78", "Lunch")
	equal(t, "names", slices.Contains(column(o.objects("widget", "list"), "name"), any("Lunch")), true)
}

func TestKey_mayBeNamedByTheEndOfItsKid(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	kid := o.objects("key", "list")[0]["kid"].(string)
	// Behind "--", since one in 64 ends begins with a minus.
	o.fails("this is the signing key", "key", "retire", "--", kid[len(kid)-6:])
	o.fails("there is no such key", "key", "retire", "--", kid[len(kid)-5:])
}

// tellingEnv returns an env whose standard error is one, of so many columns, and what it is sent.
func tellingEnv(columns string) (*env, *strings.Builder) {
	var sent strings.Builder
	e := &env{stderr: &sent, rewrites: true, now: time.Now, getenv: func(string) string { return columns }}
	return e, &sent
}

func TestProgress_tellsOnOneLineWhatLastsMoreThanTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, sent := tellingEnv("")
		lines := func() []string { // since it was asked last
			synctest.Wait()
			if e.line != nil { // whose ticker writes
				e.line.mu.Lock()
				defer e.line.mu.Unlock()
			}
			all := strings.Split(sent.String(), clearLine)
			sent.Reset()
			return all[1:]
		}
		last := func() string { all := lines(); return all[len(all)-1] }
		p := e.progress("copying")
		time.Sleep(1900 * time.Millisecond)
		equal(t, "before two seconds", lines(), []string{})
		time.Sleep(time.Second)
		equal(t, "without a measure", last(), "copying: 2s")
		p.at(25, 100)
		time.Sleep(time.Second)
		equal(t, "of a hundred", last(), "copying: 25 %, 3s, about 11s left")
		e.note("a line between\n")
		equal(t, "a line between", lines(), []string{"a line between\n"})
		p.step("checking", "", 0)
		time.Sleep(1200 * time.Millisecond)
		equal(t, "the next step", last(), "checking: 1s")
		p.at(1234, 0)
		time.Sleep(1200 * time.Millisecond)
		equal(t, "of an unknown number", last(), "checking: 1234 rows, 2s")
		p.end()
		equal(t, "at the end", lines(), []string{""})
		p.end()
		time.Sleep(time.Minute)
		e.note("a line behind\n")
		equal(t, "behind the end", sent.String(), "a line behind\n")
	})
}

func TestProgress_tellsByTheSizeOfAFileThatGrows(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "copy.db")
	writeFile(t, file, strings.Repeat("x", 750))
	synctest.Test(t, func(t *testing.T) {
		e, sent := tellingEnv("30")
		p := e.progress("")
		p.step("copying the database", file, 1000)
		if inner := e.progress("inside"); inner != nil {
			t.Error("two tell at once")
		}
		time.Sleep(6100 * time.Millisecond)
		p.end()
		if line := strings.Split(sent.String(), clearLine)[3]; line != "copying the database: 75 %" {
			t.Errorf("%q", line)
		}
	})
}

func TestProgress_fitsItsLine(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		0:  "copying the database: 50 %, 1m2s, about 1m2s left",
		44: "copying the database: 50 %, 1m2s",
		27: "copying the database: 50 %",
		25: "copying the database",
		10: "copying t…",
	} {
		equal(t, "a line", progressText("copying the database", 5, 10, 62*time.Second, width), want)
	}
	equal(t, "a name that would move the cursor", progressText("reading \x1b[2Ja\nb", 0, 0, time.Second, 0),
		"reading "+printable("\x1b[2Ja\nb")+": 1s")
	equal(t, "more than all", progressText("a", 11, 10, time.Second, 0), "a: 100 %, 1s")
	equal(t, "too little to tell", progressText("a", 1, 100, time.Hour, 0), "a: 1 %, 1h0m0s")
}

func TestProgress_needsATerminal(t *testing.T) {
	t.Parallel()
	var sent strings.Builder
	e := &env{stderr: &sent, now: time.Now, getenv: func(string) string { return "" }}
	p := e.progress("copying")
	p.step("checking", "", 0)
	p.at(1, 2)
	p.end()
	if p != nil || sent.Len() > 0 {
		t.Errorf("%q", sent.String())
	}
}

func TestProgress_isToldByWhatLasts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.addLicense(license{})
	file := s.importFile("key", "IMPORTED-KEY-00000001")
	for line, want := range map[string]string{
		"check":                     "checking pages, indexes and keys, reading all rows",
		"backup " + s.dir + "/a.db": "copying the database, checking the copy",
		"backup " + s.dir + "/b.db -verify": "copying the database, checking the copy, restoring the copy, " +
			"checking what was restored",
		"license import " + file + " -product kds -account " + s.account: "reading " + file + ", importing",
		"license export": "exporting",
	} {
		began, looks := time.Now(), new(atomic.Int64)
		e, _, noted := s.envAt(false, strings.NewReader(""))
		e.rewrites = true
		e.now = func() time.Time { // each look at the clock is a step of three seconds
			return began.Add(time.Duration(looks.Add(1)) * 3 * time.Second)
		}
		if strings.HasSuffix(line, "export") {
			out, err := os.Create(filepath.Join(s.dir, "exported"))
			must(t, err)
			defer out.Close()
			e.stdout = out
		}
		must(t, e.dispatch(strings.Fields(line)))
		var steps []string
		for told := range strings.SplitSeq(noted.String(), clearLine) {
			step, _, _ := strings.Cut(told, ": ")
			if step != "" && !slices.Contains(steps, step) {
				steps = append(steps, step)
			}
		}
		equal(t, line, strings.Join(steps, ", "), want)
		if !strings.HasSuffix(noted.String(), clearLine) {
			t.Errorf("%s leaves %q", line, noted)
		}
	}
}
