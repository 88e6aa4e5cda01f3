package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
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

func TestTable_fitsTerminalsOf80ColumnsWithWholeIDsAndNothingCut(t *testing.T) {
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
				if !strings.Contains(out, id[1]) {
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

func TestTable_printsARecordABlockWhereARowDoesNotFit(t *testing.T) {
	t.Parallel()
	rows := [][]any{
		{"wgt_01jea0vpf02dc5k9yk0bjb0af7", "Lunch", stamp{}, "menu", "x"},
		{"wgt_01jea0xj182fv928c40bkhmc60", "Dinner on the terrace", newStamp(bubbleStart), "menu",
			"served until the kitchen closes"},
	}
	const header = "ID NAME CREATED KIND LONG_TEXT"
	narrow := printedTable(t, 45, header, rows...)
	for _, block := range []string{`id         wgt_01jea0vpf02dc5k9yk0bjb0af7
name       Lunch
`, `id         wgt_01jea0xj182fv928c40bkhmc60
name       Dinner on the terrace
created    2000-01-01 00:00
`} {
		contains(t, narrow, block)
	}
	contains(t, narrow, "long text  x\n\n", "long text  served until the kitchen closes\n")
	failIf(t, !strings.HasPrefix(printedTable(t, 120, header, rows...), "ID  "), "a row is a block at 120 columns")
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
	if n := widest(text); n > 50 || !strings.HasPrefix(text, "id       "+o.account+"\nname     main\n") {
		t.Errorf("%d columns:\n%s", n, text)
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
