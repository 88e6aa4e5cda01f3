package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
}

// TestConfirm_holdsNobodyUp is about a question that stays open, perhaps for hours.
func TestConfirm_holdsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addWidget(s.account)
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

// TestConfirm_asksInTheProgram runs the program in a terminal.
func TestConfirm_asksInTheProgram(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "script", "sh")
	o := newOperator(t)
	program := builtProgram(t)
	o.do("origin", "add", "https://a.example", "-account", o.account)
	cmd := exec.Command("script", "-qec", "exec '"+program+"' origin remove https://a.example", "/dev/null")
	cmd.Env = append(os.Environ(), "WIDGETD_DB="+o.env["WIDGETD_DB"])
	cmd.Stdin = strings.NewReader("yes\n")
	out, err := cmd.Output()
	must(t, err)
	contains(t, string(out), "Type yes to go on: ")
	if slices.Contains(column(o.objects("origin", "list"), "origin"), any("https://a.example")) {
		t.Error("the origin is still there")
	}
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

// A list that is empty says so to people, and to nobody else.
func TestList_saysThatItIsEmpty(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, c := range allCommands() {
		if !strings.HasSuffix(c.name, " list") || c.nargs() > 0 {
			continue
		}
		out, noted := s.noting(strings.Fields(c.name)...)
		if rows := strings.Count(out, "\n") - 1; (rows <= 0) != strings.Contains(noted, "the list is empty\n") {
			t.Errorf("%s prints %q and notes %q", c.name, out, noted)
		}
	}
}
