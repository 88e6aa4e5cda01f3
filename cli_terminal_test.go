package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

// widest returns the length of the longest line.
func widest(text string) (n int) {
	for line := range strings.Lines(text) {
		n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return n
}

func TestCommand_tablesFitTheWidthAndAreWholeWithWide(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	id := o.object("license", "add", "-account", o.account, "-product", "kitchen-display-for-the-second-floor", "-plan",
		"professional",
		"-expires", "365d", "-entitlements", "kds,reports", "-metadata", `{"note":"`+strings.Repeat("long ",
			40)+`"}`)["id"].(string)
	o.addDevice(id, "kid")
	o.do("token", "issue", "-account", o.account, "-scope", "stats:read leads:read leads:write licenses:read")
	for _, args := range [][]string{
		{"license", "list"}, {"license", "show", id}, {"device", "list", id}, {"account", "list"}, {"origin", "list"},
		{"token", "list"},
		{"event", "list"}, {"widget", "list"}, {"widget", "stats"}, {"legacy", "list"},
		{"base-url", "show"}, {"status"},
	} {
		for columns, want := range map[string]int{"": 80, "60": 60, "100": 100, "nonsense": 80} {
			o.env["COLUMNS"] = columns
			if out := o.do(args...); widest(out) > want {
				t.Errorf("%q has %d columns with COLUMNS=%q:\n%s", args, widest(out), columns, out)
			}
		}
	}
	o.env["COLUMNS"] = ""
	if out := o.do("license", "list"); strings.Contains(out, id) || !strings.Contains(out, "lic_…") ||
		!strings.Contains(out, id[len(id)-2:]) {
		t.Errorf("the id is not shortened to its ends:\n%s", out)
	}
	if out := o.do("license", "list", "-wide"); !strings.Contains(out, id) ||
		!strings.Contains(out, "kitchen-display-for-the-second-floor") || !strings.Contains(out, o.account) {
		t.Errorf("-wide:\n%s", out)
	}
}

func TestLicense_isShownAsATableForPeopleAndAsJSONForScripts(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	id := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", "2",
		"-entitlements", "a,b",
		"-metadata", `{"order":{"number":7}}`)["id"].(string)
	o.addDevice(id, "kid")
	out := o.do("license", "show", id)
	for _, line := range []string{
		"id                  " + id, "product             kds", "plan                -", "trial               no",
		"max devices         2",
		"entitlements        a, b", `metadata            {"order":{"number":7}}`, "status              active",
		"seats               used 1, max 2, free 1",
	} {
		if !strings.Contains("\n"+out, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if strings.Contains(out, `"product"`) || !strings.Contains(out, "\n\nDEVICE ") {
		t.Errorf("%s", out)
	}
	if v := o.object("license", "show", id); v["id"] != id || len(v["devices"].([]any)) != 1 {
		t.Errorf("with -json: %v", v)
	}
}

func TestShorten_keepsTheEndsOfAnIDAndTheBeginningOfAnyOtherText(t *testing.T) {
	t.Parallel()
	const id = "lic_01m7yy3y7mt03d6gh2898ysjcg"
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{id, 30, id}, {id, 11, "lic_…8ysjcg"}, {id, 7, "lic_…cg"}, {id, 6, "lic_0…"},
		{"token " + id, 15, "token lic_…sjcg"}, {"Trattoria Altstadt", 10, "Trattoria…"}, {"Tiramisù", 8, "Tiramisù"},
		{"ü_ü", 2, "ü…"}, {"", 4, ""}, {"abc", 1, "…"},
	} {
		if got := shorten(c.text, c.n); got != c.want || utf8.RuneCountInString(got) > c.n {
			t.Errorf("%q to %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestWrap_breaksAtSpacesAndWithinWordsThatAreTooLong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "one two three": "one two|three", "extraordinary": "extraordin|ary",
		"a extraordinary b": "a|extraordin|ary b", "0123456789": "0123456789",
	} {
		if got := strings.Join(wrap(text, 10), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
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
	if n := widest(text); n > 50 || !strings.HasPrefix(text, "ID ") || strings.Contains(text, o.account) {
		t.Errorf("%d columns:\n%s", n, text)
	}
	out.Reset()
	cmd = exec.Command("script", "-qec", "stty cols 70; exec '"+builtProgram(t)+"' help -all", "/dev/null")
	cmd.Stdout = &out
	must(t, cmd.Run())
	if text := strings.ReplaceAll(out.String(), "\r\n", "\n"); !strings.Contains(text,
		"\n  license show ID\n      show a licence and its devices\n") || widest(text) > 70 {
		t.Errorf("help is %d columns wide:\n%s", widest(text), text)
	}
}
