package main

import (
	"cmp"
	"context"
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
	err = e.dispatch(args)
	s.notice()
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

// A lasting is a command whose effect can't be undone.
type lasting struct {
	args   []string
	says   string // what it asks
	prints string // what it prints once it was done
	alone  bool   // where nobody can be asked it does nothing without -force
}

// lastingCommands has one of each thing, and returns the commands that end it.
func (s *service) lastingCommands() []lasting {
	s.t.Helper()
	licenseID, key := s.addLicense(license{})
	s.activate(key, "kitchen").is(200)
	p, _ := s.registerApp()
	s.appToken(p, s.account, scopeOrders)
	hook := s.addWebhook(s.account, "lead.created")
	widgetID := s.addWidget(s.account)
	tenant := s.addAccount("Trattoria")
	s.addLicense(license{AccountID: tenant})
	s.change(func(t *tx) error {
		t.addCounts(widgetID, counts{Views: 1}, nil, nil)
		for origin, account := range map[string]string{"https://a.example": s.account, "https://t.example": tenant} {
			if err := addOrigin(t, account, origin, anActor); err != nil {
				return err
			}
		}
		o := anOrder(tenant)
		o.ReturnURL = "https://t.example/thanks"
		_, err := createOrder(t, o, guest{}, minOrderLife, anActor)
		_, later := t.at(-48 * time.Hour).addLead(lead{AccountID: s.account, Type: "demo", Email: "anna@example.com"})
		_, now := t.addLead(lead{AccountID: s.account, Type: "demo", Email: "eve@example.com"})
		return errors.Join(err, later, now, bringTo(t, o, orderAuthorized),
			second(t.try(`INSERT INTO webhook_retries (queue_id, event_seq, attempts, due_at)
				SELECT id, 1, 1, '2030-01-01T00:00:00Z' FROM webhook_queues WHERE webhook_id = ?`, hook)))
	})
	paid, waiting := s.orderIn(orderPaid), s.orderIn(orderAuthorized)
	var arrived *payout
	bank, ledger := &paymentConnection{AccountID: s.account, Provider: providerVipps, Name: "12345", Sealed: []byte{0}},
		&bookConnection{AccountID: s.account, Product: productXero, OrganisationID: new("demo"), Organisation: "Demo",
			Status: entryDraft}
	s.change(func(t *tx) error {
		bank.ID, bank.CreatedAt, ledger.ID = t.newID("con"), t.now, t.newID("bkc")
		t.addPaymentConnection(bank)
		t.addBookConnection(ledger)
		err := adoptPayout(t, bank, &payoutReport{providerID: "1-1", currency: "NOK", arrival: "2026-01-02",
			automatic: true, complete: true})
		if err != nil {
			return err
		}
		if arrived, err = t.payoutOf(s.account, providerVipps, "1-1"); err != nil {
			return err
		}
		return finishPayout(t, arrived, new(*arrived))
	})
	const held = "1 origin, 1 licence, 1 live payment (59.00 CHF released)"
	return []lasting{
		{args: []string{"license", "revoke", licenseID, "-reason", "fraud"}, prints: licenseID + " is revoked",
			says: "ends the licence " + licenseID + " (kds) for good, and its 1 device with it"},
		{args: []string{"app", "remove", p.ID}, prints: "application " + p.ID + " (Table Planner) removed",
			says: "removes the application " + p.ID + " (Table Planner) for good, with 1 grant and 0 webhooks"},
		{args: []string{"webhook", "remove", hook}, prints: "webhook " + hook + " (127.0.0.1:9) removed",
			says: "removes the webhook " + hook + " (127.0.0.1:9) for good; still to be sent again to it: 1 event"},
		{args: []string{"origin", "remove", "https://a.example/"}, prints: "origin https://a.example removed",
			says: "removes the origin https://a.example of " + s.account + " (main), so that"},
		{args: []string{"lead", "purge", "-older-than", "1d"}, prints: "1 lead removed", says: "removes 1 lead that"},
		{args: []string{"lead", "erase", "Eve@example.com"}, prints: "1 lead erased; " + inNoFile,
			says: "removes 1 lead of Eve@example.com, of all accounts"},
		{args: []string{"account", "close", tenant}, alone: true,
			prints: "account " + tenant + " (Trattoria) closed: " + held + " stopped",
			says:   "closes the account " + tenant + " (Trattoria) and stops " + held + ", until"},
		{args: []string{"widget", "remove", widgetID}, alone: true,
			prints: "widget " + widgetID + " (Lunch) removed, with 1 row of what it counted",
			says:   "removes the widget " + widgetID + " (Lunch) for good, with 1 row of what it counted"},
		{args: []string{"order", "refund", paid.ID}, prints: " of 59.00 CHF is pending",
			says: "gives back 59.00 CHF, all that is left, to the card that paid"},
		{args: []string{"order", "reject", waiting.ID}, prints: waiting.ID + " is cancelled: 59.00 CHF",
			says: "rejects " + waiting.ID + " for good, and the 59.00 CHF that the guest has paid by card go back"},
		{args: []string{"payment", "disconnect", bank.ID}, prints: "connection " + bank.ID + " disconnected",
			says: "disconnects " + bank.ID + " (vipps): guests can't pay with it any more"},
		{args: []string{"payout", "confirm", arrived.ID}, prints: arrived.ID + " was compared with the bank",
			says: "says that " + arrived.ID + " has arrived with 0.00 NOK on 2026-01-02, so that the payouts of its"},
		{args: []string{"books", "disconnect", ledger.ID}, prints: ledger.ID + " with books disconnected",
			says: "disconnects the books " + ledger.ID + " (Demo), and drops what was not sent to them"},
		{args: []string{"base-url", "set", "https://b.example/v1"}, prints: "base address https://b.example/v1 set",
			says: "has new tokens, leases and links name https://b.example/v1 instead of " + testBase},
	}
}

func TestConfirm_wantsATypedYesOnATerminal(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	s := newService(t)
	asked := []string{"account add", "order erase", "plan apply", "restore"} // which have tests of their own
	commands := s.lastingCommands()
	before := s.dump()
	for i, c := range commands {
		asked = append(asked, c.args[0]+" "+c.args[1])
		for j, typed := range []string{"", "\n", "no\n", "y\n", "YES\n", "yes", "yes, please\n", "\nyes\n",
			strings.Repeat("yes", 1000) + "\n"} { // the empty one is Ctrl-D
			if i > 0 && i%9 != j && !inFull() { // one function reads them all
				continue
			}
			format := []string{"-json", "-json=false"}[j%2]
			out, noted, err := s.typing(typed, append(c.args, format)...)
			if !errors.Is(err, errDeclined) || out != "" || strings.Count(noted, "Type yes to go on: ") != 1 ||
				!strings.HasPrefix(noted, "This "+c.says) {
				t.Errorf("%q after %q: %v, %q, %q", c.args, typed, err, out, noted)
			}
		}
		s.unchanged(before)
		out, noted, err := s.typing("yes\r\nno\n", c.args...)
		if err != nil || !strings.HasSuffix(out, c.prints+"\n") || !strings.Contains(noted, c.says) {
			t.Errorf("%q after yes: %v, %q, %q", c.args, err, out, noted)
		}
		after := s.dump()
		if after == before {
			t.Errorf("%q after yes changed nothing", c.args)
		}
		before = after
	}
	var asks []string
	for _, c := range allCommands() {
		if c.asks() {
			asks = append(asks, c.name)
		}
	}
	equal(t, "commands that ask", slices.Sorted(slices.Values(asked)), slices.Sorted(slices.Values(asks)))
}

func TestConfirm_warnsWhereNobodyCanBeAskedAndForceSaysNothing(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	warned, forced := newService(t), newService(t)
	for _, c := range warned.lastingCommands() {
		if c.alone {
			before := warned.dump()
			e, out, noted := warned.envAt(false, strings.NewReader("yes\n"))
			oneLine(t, e.dispatch(c.args), ": add -force to ")
			if out.String()+noted.String() != "" {
				t.Errorf("%q: %q, %q", c.args, out, noted)
			}
			warned.unchanged(before)
			continue
		}
		out, noted := warned.noting(c.args...)
		noted, _, _ = strings.Cut(noted, "queued: ")
		if !strings.HasSuffix(out, c.prints+"\n") || !strings.HasPrefix(noted, "warning: this "+c.says) ||
			strings.Count(noted, "\n") != 1 {
			t.Errorf("%q: %q, %q", c.args, out, noted)
		}
	}
	for _, c := range forced.lastingCommands() {
		out, noted := forced.noting(append(c.args, "-force", "-json")...)
		if !strings.HasPrefix(out, "{") || noted != "" && !strings.HasPrefix(noted, "queued: ") {
			t.Errorf("%q: %q, %q", c.args, out, noted)
		}
	}
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
	for _, c := range s.lastingCommands() {
		if slices.Contains([]string{"lead", "account", "license", "order", "payout", "base-url"}, c.args[0]) {
			continue // whose rows stay
		}
		before := ""
		e, out, _ := s.envAt(true, &meanwhile{func() {
			s.noting(append(c.args, "-force")...)
			before = s.dump()
		}, strings.NewReader("yes\n")})
		oneLine(t, e.dispatch(c.args), "not found")
		if out.String() != "" {
			t.Errorf("%q printed %q", c.args, out)
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

func TestConfirm_neverAsksInAnEmergency(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	device := s.activate(key, "kitchen").is(200).json()["device"].(map[string]any)["id"].(string)
	for _, args := range [][]string{{"token", "revoke", s.revocableToken(s.account)}, {"device", "block", device}} {
		if out, noted, err := s.typing("", args...); err != nil || noted != "" || !strings.Contains(out, args[2]) {
			t.Errorf("%q: %q, %q, %v", args, out, noted, err)
		}
	}
}

func TestConfirm_asksForASecondAccountOfAName(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addAccount("Bistro")
	_, noted, err := s.typing("no\n", "account", "add", "bistro")
	if !errors.Is(err, errDeclined) || !strings.Contains(noted, "a name that is taken: "+id+" (Bistro).\n") {
		t.Errorf("%v, %q", err, noted)
	}
	s.hasRows(2, "accounts")
	if _, noted := s.noting("account", "add", "Bistro"); !strings.HasPrefix(noted, "warning: ") {
		t.Errorf("noted %q", noted)
	}
	if _, noted := s.noting("account", "add", "Bistro", "-force"); noted != "" {
		t.Errorf("with -force: %q", noted)
	}
	if _, noted, err := s.typing("", "account", "add", "Trattoria"); err != nil || noted != "" {
		t.Errorf("another name: %v, %q", err, noted)
	}
	s.hasRows(5, "accounts")
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

func TestCommand_saysSoWhenTheServiceIsToDoItAndNoneRuns(t *testing.T) {
	t.Parallel()
	s := newService(t)
	hook := s.addWebhook(s.account, "lead.created")
	var orders []string
	s.change(func(t *tx) error {
		for _, state := range []string{orderPaid, orderAuthorized, orderAuthorized, orderOpen} {
			o := anOrder(s.account)
			if _, err := createOrder(t, o, guest{}, minOrderLife, anActor); err != nil {
				return err
			}
			if err := bringTo(t, o, state); err != nil {
				return err
			}
			orders = append(orders, o.ID)
		}
		return nil
	})
	for _, args := range [][]string{
		{"order", "settle", orders[0]}, {"order", "refund", orders[0], "-amount", "1.00", "-force"},
		{"order", "accept", orders[1]}, {"order", "capture", orders[1]}, {"order", "reject", orders[2], "-force"},
		{"webhook", "test", hook},
		{"webhook", "replay", hook, "-since", "1d"},
		{"webhook", "add", "https://other.example", "-type", "lead.created"},
	} {
		_, noted := s.noting(args...)
		if !strings.HasPrefix(noted, "queued: the service does it when it runs, and none runs over ") ||
			strings.Count(noted, "\n") != 1 {
			t.Errorf("%q: %q", args, noted)
		}
	}
	if _, noted := s.noting("order", "settle", orders[3]); noted != "" {
		t.Errorf("without a payment: %q", noted)
	}
	listener, err := listenUnix(socketPath(filepath.Join(s.dir, "widgetd.db")), 0o600)
	s.check(err)
	defer listener.Close()
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{}`)
	}))
	if _, noted := s.noting("order", "settle", orders[0]); noted != "" {
		t.Errorf("beside a service: %q", noted)
	}
}

func TestToken_warnsOfALongLife(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.must("base-url", "set", testBase)
	for ttl, warns := range map[string]bool{"100y": true, "3y": true, "2y": false, "730d": false, "1h": false} {
		_, noted := s.noting("token", "issue", "-scope", "stats:read", "-ttl", ttl)
		if warned := strings.HasPrefix(noted, "warning: "); warned != warns || strings.Count(noted, "\n") > 1 {
			t.Errorf("%s: %q", ttl, noted)
		}
	}
}

func TestRefund_thatIsRepeatedAtOnceNeedsForce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderPaid)
	s.must("order", "refund", o.ID, "-amount", "9")
	s.fails("asked for less than 10 seconds ago", "order", "refund", o.ID, "-amount", "9")
	contains(t, s.must("order", "refund", o.ID, "-amount", "9", "-force"), " of 9.00 CHF is pending")
	s.hasRows(2, `refunds`)
}

func TestCommand_amountsReadAlike(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderPaid)
	refunded, _ := s.noting("order", "refund", o.ID, "-amount", "9")
	contains(t, refunded, " of 9.00 CHF is pending")
	list, show := s.must("order", "list", "-wide"), s.must("order", "show", o.ID, "-wide")
	contains(t, list, "  59.00 CHF", "  9.00 CHF")
	const column = 24 // in which values begin
	for label, value := range map[string]string{"total": "59.00 CHF", "discount": "3.00 CHF", "tip": "2.00 CHF",
		"delivery": "amount 7.00, vat_rate 2.6 %", "refunded": "9.00 CHF"} {
		contains(t, show, fmt.Sprintf("\n%-*s%s\n", column, label, value))
	}
	contains(t, show, "\nVAT  RATE   GROSS  VAT\n0    2.6 %  41.80  1.06\n")
	events := s.must("event", "list", "-wide")
	contains(t, events, "total 59.00 CHF")
	for name, text := range map[string]string{"list": list, "show": show, "events": events} {
		if found := regexp.MustCompile(`\b(5900|900|300|700)\b`).FindString(text); found != "" {
			t.Errorf("%s has %s:\n%s", name, found, text)
		}
	}
	_, err := s.command("order", "refund", o.ID, "-amount", "99")
	oneLine(t, err, "at most 50.00 CHF.")
	if row := s.must("order", "show", o.ID, "-json"); !strings.Contains(row, `"total":5900`) {
		t.Errorf("with -json: %s", row)
	}
}

func TestRevenue_saysWhoseItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(3 * time.Hour)               // it is still the business day of 31 December
		noting := func(args ...string) string { // of whose revenue it is
			_, noted := s.noting(args...)
			whose, _, _ := strings.Cut(noted, "the list is empty")
			return whose
		}
		equal(t, "of the only account", noting("revenue", "list"), "")
		bistro, cafe := s.addAccount("Bistro"), s.addAccount("Café")
		main := s.account + " (main)"
		sell := func(account string) {
			s.change(func(t *tx) error {
				o, origin := anOrder(account), "https://"+strings.ReplaceAll(account, "_", "-")+".example"
				o.ReturnURL = origin + "/"
				return errors.Join(addOrigin(t, account, origin, anActor), sellOutside(t, o, methodCash))
			})
		}
		notes := func(want ...string) {
			t.Helper()
			show := []string{"revenue", "show", "1999-12-31"}
			for _, args := range [][]string{{"revenue", "list"}, {"revenue", "export"}, show} {
				noted := noting(args...)
				if contains(t, noted, want...); strings.Count(noted, "\n") != 1 {
					t.Errorf("%q: %q", args, noted)
				}
				equal(t, "with an account", noting(append(args, "-account", cafe)...), "")
			}
		}
		notes("this is the revenue of " + main)
		sell(bistro)
		notes(main+" has no revenue; there is some of "+bistro+" (Bistro): 'widgetd revenue ",
			"-account Bistro'\n")
		sell(cafe)
		notes(bistro + " (Bistro), " + cafe + " (Café): '")
		sell(s.account)
		notes("this is the revenue of " + main)
		all, noted := s.noting("revenue", "list", "-all")
		if contains(t, all, "ACCOUNT", "Bistro ", "Café ", "main "); noted != "" {
			t.Errorf("with -all: %q", noted)
		}
		equal(t, "rows of all at most", strings.Count(s.must("revenue", "list", "-all", "-limit", "2"), "\n"), 3)
		_, err := s.command("revenue", "list", "-all", "-account", cafe)
		oneLine(t, err, "-account or -all, not both")
		_, err = s.command("revenue", "list", "-all", "-from", "1990-01-01")
		oneLine(t, err, "The range has more than 400 days.")
	})
}

func TestRevenue_showsTodayAndYesterdayByTheAccountsCalendar(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.must("account", "set", s.account, "-zone", "Pacific/Auckland", "-cut-off", "00:00")
		time.Sleep(13 * time.Hour) // it is the next day there
		s.change(func(t *tx) error { return sellOutside(t, anOrder(s.account), methodCash) })
		equal(t, "date", strings.Contains(s.must("revenue", "show", "today"), "date              2000-01-02\n"), true)
		equal(t, "yesterday", s.must("revenue", "show", "yesterday"), "date  2000-01-01\ndays  -\n")
		time.Sleep(24 * time.Hour)
		contains(t, s.must("revenue", "show", "yesterday"), "date              2000-01-02\n")
	})
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

func TestNames_areAskedAboutByCommandsThatChangeSomething(t *testing.T) {
	t.Parallel()
	s := newService(t)
	lake, closed := s.addAccount("Trattoria al Lago"), s.addAccount("Trattoria Chiusa")
	s.must("account", "close", closed, "-force")
	for _, c := range []struct {
		line, typed, asks, fails string
	}{
		{"account set-rate lago 700", "yes", lake + " (Trattoria al Lago)", ""},
		{"account set-rate lago 800", "y", lake + " (Trattoria al Lago)", errDeclined.Error()},
		{"account set-rate LAGO 800", "", lake + " (Trattoria al Lago)", errDeclined.Error()},
		{"account reopen chiusa", "yes", closed + " (Trattoria Chiusa), closed", ""},
		{"account set-rate trattoria 800", "yes", "", `several accounts have "trattoria" in their names`},
		{"account set-rate nobody 800", "yes", "", `no account has the id or the name "nobody"`},
		{"account show lago", "", "", ""},
		{"account close lago", "yes yes", lake + " (Trattoria al Lago)", ""},
	} {
		typed := typedLines(strings.Fields(c.typed))
		e, _, noted := s.envAt(true, &typed)
		err := e.dispatch(strings.Fields(c.line))
		question := "Did you mean " + c.asks + "?\nType yes to go on: "
		if asked := strings.HasPrefix(noted.String(), question); asked != (c.asks != "") {
			t.Errorf("%s asks %q", c.line, noted)
		}
		if c.fails == "" && err != nil || c.fails != "" && !strings.Contains(fmt.Sprint(err), c.fails) {
			t.Errorf("%s: %v, want %q", c.line, err, c.fails)
		}
	}
	a, err := s.store.account(lake)
	if s.check(err); a.Rate != 700 || a.ClosedAt.IsZero() {
		t.Errorf("%+v", a)
	}
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
	id := s.addAccount("Osteria Bella")
	lunch := s.must("widget", "add", "Lunch", "-account", id)
	_, noted := s.noting("widget", "snippet", strings.Fields(lunch)[0])
	contains(t, noted, `'widgetd origin add https://www.example.com -account "Osteria Bella"'`)
}

// A list that is empty says so to people, and to nobody else.
func TestList_saysThatItIsEmpty(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for line, want := range map[string]string{
		"order list": "the list is empty\n",
		"order list -state paid -since 7d -limit 3": "the list is empty with -state paid -since 7d\n",
		"webhook list -failing -account main":       "the list is empty with -account main -failing\n",
		"order list -json":                          "",
		"account list":                              "",
		"license export":                            "",
		"lead export -csv":                          "",
		"books export list":                         "the list is empty\n",
		"webhook list -since 1d":                    "the list is empty with -since 1d\n",
	} {
		_, noted := s.noting(strings.Fields(line)...)
		equal(t, line, noted, want)
	}
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
