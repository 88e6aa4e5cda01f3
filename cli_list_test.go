package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// A table has 80 columns at most, or as many as it needs where nobody says how many there are; nothing is cut but ids,
// of which it has the ends, which commands take.
func TestTable_fitsTerminalsOf80ColumnsWithTheEndsOfIDsAndNothingElseCut(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	license := fillTables(o)
	for list, takes := range map[string]string{
		"license list": "license show", "license show " + license: "", "device list " + license: "device block",
		"account list": "account show", "origin list": "", "token list": "token revoke", "lead list": "",
		"event list": "event show", "widget list": "widget snippet", "app list": "app remove -force", "key list": "",
		"stats": "", "legacy": "", "base-url": "", "webhook list": "", "order list": "",
	} {
		args := strings.Fields(list)
		ids := captures(`"id":"([^"]+)"`, o.do(append(args, "-json")...))
		out := ""
		for _, columns := range []string{"80", "45"} {
			o.env["COLUMNS"] = columns
			out = o.do(args...)
			if n := widest(out); columns == "80" && n > 80 {
				t.Errorf("%q has %d columns:\n%s", args, n, out)
			}
			for _, id := range ids {
				contains(t, out, id[len(id)-8:])
			}
			// but for hints of keys and devices
			lacks(t, strings.NewReplacer(" …", "", "… ", "", "…\n", "").Replace(out), "…")
		}
		delete(o.env, "COLUMNS")
		if takes != "" {
			end := strings.Fields(strings.SplitAfterN(out, "\n", 2)[1])[0]
			equal(t, "what "+list+" shows", end, ids[0][len(ids[0])-8:])
			contains(t, o.do(append(args, "-wide")...), ids[0])
			o.do(append(strings.Fields(takes), end)...)
		}
	}
	contains(t, o.do("license", "list"), license)
	o.do("account", "set", o.account, "-address", "Hauptgasse 1\n4500 Solothurn\nstate  closed")
	contains(t, o.do("account", "show", o.account), // in lines
		"address        Hauptgasse 1\n               4500 Solothurn\n               state  closed\n")
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

// Against a tenant, too, whose text would pass for further cells of its row: it has no two spaces in a row.
func TestTable_printsWhatDoesNotFitBelowItsRow(t *testing.T) {
	t.Parallel()
	equal(t, "two spaces between cells only", printedTable(t, 45, "ID STATE REFERENCE TOTAL",
		[]any{"1", "open", "R-1  total 99999.00 CHF  state\u00a0\u00a0paid", "5.00 CHF"}), `ID  STATE
1   open
  reference R-1 total 99999.00 CHF state paid
  total 5.00 CHF
`)
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

// onTerminal runs the program in a terminal of so many columns, on which somebody types, and returns what it shows.
func (o *operator) onTerminal(columns int, typed, line string) (shown string, err error) {
	o.t.Helper()
	cmd := exec.Command("script", "-qec", fmt.Sprintf("stty cols %d; exec '%s' %s", columns, builtProgram(o.t), line),
		"/dev/null")
	cmd.Env = append(os.Environ(), "COLUMNS=200", "WIDGETD_DB="+o.env["WIDGETD_DB"])
	cmd.Stdin = strings.NewReader(typed)
	out, err := cmd.Output()
	return strings.ReplaceAll(string(out), "\r\n", "\n"), err
}

func TestCommand_knowsItsTerminal(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "script", "stty", "sh")
	o := newOperator(t)
	text, err := o.onTerminal(50, "", "account list")
	must(t, err)
	if n := widest(text); n > 50 || !strings.Contains(text, "\n"+o.account[len(o.account)-8:]+"  main ") {
		t.Errorf("%d columns:\n%s", n, text)
	}
	text, err = o.onTerminal(45, "", "license show 1234567")
	if err == nil || !strings.HasPrefix(text, "widgetd: not found: 'widgetd license list'\n") || widest(text) > 45 {
		t.Errorf("%v %q", err, text)
	}
	o.do("origin", "add", "https://a.example", "-account", o.account)
	text, err = o.onTerminal(80, "yes\n", "origin remove https://a.example")
	must(t, err)
	contains(t, text, "Type yes to go on: ")
	lacks(t, o.do("origin", "list"), "https://a.example")
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
	contains(t, o.do("license", "suspend", "9d1398"), id+" is suspended\n")
	contains(t, o.do("event", "list", "-license", "…9d1398", "-wide"), "license.suspended")
	err := o.fails("-license: no id of the kind lic_… ends in \"9d1399\"", "events", "-license", "9d1399")
	failIf(t, errors.As(err, new(usageError)), "a licence that does not exist is a wrong command line")
	kid := o.objects("key", "list")[0]["kid"].(string)
	// Behind "--", since one in 64 ends begins with a minus.
	o.fails("this is the signing key", "key", "retire", "--", kid[len(kid)-6:])
	o.fails("there is no such key", "key", "retire", "--", kid[len(kid)-5:])
	var widgets []string // whose end several have
	o.change(func(t *tx) error {
		for i := range 12 {
			widgets = append(widgets, fmt.Sprintf("wgt_01jea0vpf02dc5k9yk%02db0af78", i))
			t.exec(`INSERT INTO widgets (id, account_id, name, created_at) VALUES (?, ?, ?, ?)`,
				widgets[i], o.account, fmt.Sprint("widget ", i), t.now)
		}
		return nil
	})
	for _, command := range []string{"widget rename b0af78 Lunch", "stats -widget b0af78"} {
		err := o.fails(`several ids end in "b0af78"; give more of the one that you mean: `+
			strings.Join(widgets[:10], " ")+" and others", strings.Fields(command)...)
		failIf(t, !errors.As(err, new(usageError)), "%v is no usage error", err)
	}
	contains(t, o.do("widget", "rename", "k07b0af78", "Lunch"), widgets[7])
}

// tellingEnv returns an env whose standard error is one, of so many columns, and what it is sent.
func tellingEnv(columns string) (*env, *strings.Builder) {
	var sent strings.Builder
	e := &env{stderr: &sent, rewrites: true, now: time.Now, getenv: func(string) string { return columns }}
	return e, &sent
}

func TestProgress_tellsOnOneLineWhatLastsMoreThanTwoSeconds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "copy.db")
	writeFile(t, file, strings.Repeat("x", 750))
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
		failIf(t, e.progress("inside") != nil, "two tell at once")
		p.step("copying the database", file, 1000) // by the size of a file that grows
		time.Sleep(1200 * time.Millisecond)
		contains(t, last(), "copying the database: 75 %")
		p.end()
		equal(t, "at the end", lines(), []string{""})
		p.end()
		time.Sleep(time.Minute)
		e.note("a line behind\n")
		equal(t, "behind the end", sent.String(), "a line behind\n")
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
