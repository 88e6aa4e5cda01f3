package main

import (
	"bytes"
	"cmp"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Exchanges are tests as text: testdata/http/NOUN.txt says what is sent to the service and to its commands, and what
// comes of it. All cases of a file are run one after the other on one service, each with an account of its own, the
// owner, which has the origin $origin. A case begins with its title:
//
//	# A licence can be renewed
//	world: license L {"max_devices":2}        makes something, see worldKinds and make, here as L, else as license
//	as: owner licenses:read                   who sends from here on: an account made here or main, with scopes;
//	                                          admin; nobody; or a token: $D.token
//	with: Idempotency-Key: one                a header of the next request
//	> POST /licenses/$L/renew {"days":30}     a request; a body that is no object or list is a form, which may go
//	                                          on before an &
//	< 200 license.renewed {"id":"$L"}         its answer: status, types of all events that it wrote, members of it
//	< 409 seat_limit_reached + device.full    a refusal that is noted in events, and so changes the database
//	header: Cache-Control: no-store           of the last answer; without a value: it has no such header
//	has: text                                 and what stands in its body, or in what a command printed
//	lacks: text
//	event: license.renewed {"days":30}        members of the data of an event that the last request wrote
//	refuse:                                   variants of the last request, none of which changes the database:
//	{"days":0}  out_of_range /days            another body, and what is wrong: code and pointer of each entry
//	days=0&x=y  400 invalid_request           another form; the errors of OAuth are like codes
//	{"days":9}  409 not_renewable             or another status than 422, and its code
//	?limit=0    out_of_range ?limit           another query
//	shows: seats Two seats | issued Done      in document.txt: has the OpenAPI document show the body and the query of
//	                                          the next request, and behind the bar its answer, under a name and with
//	                                          a summary; without a body, the answer alone. It needs no line < if it
//	                                          succeeds
//	wait: 10m                                 so much later, with the chores that are due then; "events:" may follow
//	receiver: 204 license.renewed             webhooks are sent for two seconds; a receiver at http://127.0.0.1:9
//	                                          answers so, and has got these of the owner's events
//	$ license show $L -json                   a command
//	= {"state":"active"}                      a line that it prints, as JSON or in full
//	! 1 no such licence                       or its exit status and what its error says, while it prints nothing;
//	                                          it may also stand behind the command: $ license show x ! 1 not found
//	types: yes no                             the next command is on a terminal at which these lines are typed; none:
//	                                          Ctrl-D
//	notes: text                               what the last command has told people beside its output; none: nothing
//
// A line that begins with white space continues the one above it. What is expected of a member is a value, or one of
//
//	"$name"      what was captured, or made, under that name; a name that is new captures the value
//	"$now+30d"   that time, as the clock of the test has it
//	"$any"       any value but null
//	"$absent"    no such member
//
// $L is the id of what was made or captured as L, and $L.device.id a member of the answer that made it. Members that
// are not named may be anything that the OpenAPI document allows. There are no conditions, loops or computed values:
// what needs these is written in Go.
func TestExchange(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/http/*.txt")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no exchanges")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			if file == "testdata/http/document.txt" {
				recordedExamples(t)
				return
			}
			cases, err := readExchanges(file)
			must(t, err)
			inBubble(t, func(t *testing.T, s *service) {
				commits := s.commitCounter()
				for _, c := range cases {
					if err := newExchange(s, commits).run(c); err != nil {
						t.Errorf("%s: %v", c.title, err)
					}
				}
			}, withoutAddressLimits, admitLoopback)
		})
	}
}

// An exchangeCase is one case of a file.
type exchangeCase struct {
	title string
	steps []exchangeStep
}

// An exchangeStep is a line with those that continue it. verb is "world:", ">", "{" for a variant of a request, ….
type exchangeStep struct{ at, verb, text string }

var exchangeVerbs = regexp.MustCompile(
	`^(world:|as:|with:|header:|has:|lacks:|event:|events:|refuse:|wait:|receiver:|types:|notes:|[<>$=!])(?:\s+|$)`)

// formLine is a variant of a request with a form.
var formLine = regexp.MustCompile(`^([a-z_:]+=|\$[A-Z])`)

// readExchanges reads the cases of a file, which may have more verbs than exchanges have.
func readExchanges(file string, more ...string) (cases []exchangeCase, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		at := fmt.Sprintf("%s:%d", file, i+1)
		if title, begins := strings.CutPrefix(line, "# "); begins {
			cases = append(cases, exchangeCase{title: at + " " + title})
			continue
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		if len(cases) == 0 {
			return nil, fmt.Errorf("%s: no case has begun", at)
		}
		steps := &cases[len(cases)-1].steps
		verb, rest := "", line
		if m := exchangeVerbs.FindString(line); m != "" {
			verb, rest = strings.TrimSpace(m), line[len(m):]
		} else if word, after, _ := strings.Cut(line, " "); slices.Contains(more, word) {
			verb, rest = word, after
		}
		switch {
		case strings.TrimLeft(line, " \t") != line && len(*steps) > 0:
			(*steps)[len(*steps)-1].text += " " + strings.TrimSpace(line)
		case verb != "" || strings.ContainsRune(`{[?-&`, rune(line[0])) || formLine.MatchString(line):
			*steps = append(*steps, exchangeStep{at, verb, strings.TrimSpace(rest)})
		default:
			return nil, fmt.Errorf("%s: what is %q?", at, line)
		}
	}
	return cases, nil
}

// An exchangeRun carries out one case.
type exchangeRun struct {
	*service
	made     map[string]any // what was made or captured, by name
	unused   map[string]bool
	who      []string // as 'as:' has it
	auth     string   // the Authorization header; "": none
	headers  []string // of the next request
	request  [3]string
	mark     string // that has the next request shown in the OpenAPI document
	expected bool   // the last request's answer, or the last command's end, was judged
	last     answer
	typed    *string // at the terminal of the next command; nil: it has none
	output   string  // that the last command printed
	noted    string  // that it has told people beside that
	failure  error   // of the last command
	events   []event
	seq      int64 // of the last event that was looked at
	refusing bool
	wrote    bool          // the last request has committed something
	commits  func() uint32 // a number that every commit changes
	recorder *recorder     // nil: nothing is kept for the OpenAPI document

	pass func(time.Duration) // lets time go by: time.Sleep in a bubble, or what moves the clock of a recorder
}

// worldKinds are what 'world:' makes: the request for it, sent as the operator unless owner has the scope for it.
var worldKinds = map[string]struct{ scope, request string }{
	"license": {"admin", `POST /licenses {"account_id":"$owner","product":"kds"}`},
	"plan":    {"admin", `POST /plans?account_id=$owner {"name":"pro","product":"kds"}`},
	"device":  {"", `POST /widget/license/activate {"license_key":"$license.key","fingerprint":"till-1"}`},
	"lead":    {"leads:write", `POST /widget/leads {"type":"newsletter","email":"ada@example.com"}`},
	"order": {"orders:write", `POST /orders {"currency":"CHF","lines":[{"name":"Pizza","quantity":2,` +
		`"unit_amount":1850,"vat_rate":260}],"return_url":"$origin/thanks"}`},
	"webhook": {"webhooks:write events:read leads:read",
		`POST /webhooks {"url":"https://hooks.example.com/","types":["lead.created"]}`},
	"app": {"apps:write orders:read", `POST /apps {"name":"Till","home_page":"https://till.example",` +
		`"kind":"web","redirect_uris":["https://till.example/back"],"scope":"orders:read"}`},
}

// commitCounter returns a function whose number every commit changes, whatever connection makes it.
func (s *service) commitCounter() func() uint32 {
	s.t.Helper()
	db, err := sql.Open("sqlite", dsn(s.store.path, "rw", storeOptions{}, "query_only(1)"))
	s.check(err)
	db.SetMaxOpenConns(1) // the number is the connection's own
	s.t.Cleanup(func() { db.Close() })
	return func() (n uint32) {
		s.check(db.QueryRow(`PRAGMA data_version`).Scan(&n))
		return n
	}
}

func newExchange(s *service, commits func() uint32) *exchangeRun {
	e := &exchangeRun{service: s, made: map[string]any{}, unused: map[string]bool{}, expected: true, commits: commits,
		pass: time.Sleep}
	owner := s.addAccount(fmt.Sprint("owner of case ", s.count(`SELECT count(*) FROM accounts`)))
	origin := "https://" + strings.ToLower(strings.TrimPrefix(owner, "acct_")) + ".example"
	s.change(func(t *tx) error {
		originTable.insert(t, &originRow{origin, owner, t.now}) // without an event
		return nil
	})
	e.made["owner"], e.made["main"], e.made["origin"] = owner, s.account, origin
	e.newEvents()
	return e
}

// run carries out the steps of a case and returns what is not as it should be.
func (e *exchangeRun) run(c exchangeCase) error {
	for _, step := range c.steps {
		if err := e.step(step); err != nil {
			return fmt.Errorf("%s: %w", step.at, err)
		}
	}
	if !e.expected {
		return errors.New("the last answer is not judged")
	}
	for name := range e.unused {
		return fmt.Errorf("$%s is captured and not used", name)
	}
	return nil
}

func (e *exchangeRun) step(step exchangeStep) error {
	judges := slices.Contains([]string{"<", "=", "!", "events:", "has:", "notes:"}, step.verb)
	if !e.expected && !judges {
		return errors.New("the answer before is not judged: " + e.last.body)
	}
	if e.refusing = e.refusing && step.verb == "" || step.verb == "refuse:"; step.verb == "refuse:" {
		return nil
	}
	if step.verb == "" && !e.refusing {
		return errors.New("a variant of a request without refuse:")
	}
	switch step.verb {
	case "<", "event:": // what they expect may capture
		return e.judge(step)
	case "=":
		return e.judgeOutput(step.text)
	}
	text, err := e.fill(step.text)
	if err != nil {
		return err
	}
	if e.recorder != nil {
		e.pass(time.Millisecond) // what is made next is later, by less than an answer shows
	}
	switch step.verb {
	case "world:":
		return e.make(text)
	case "as:":
		return e.as(strings.Fields(text))
	case "with:":
		e.headers = append(e.headers, text)
	case ">":
		return e.ask(text)
	case "shows:":
		e.mark = text
	case "kept:":
		return e.recorder.keep()
	case "":
		return e.refuse(text)
	case "header:":
		name, want, _ := strings.Cut(text, ": ")
		name = strings.TrimSuffix(name, ":")
		if got := strings.Join(e.last.header.Values(name), " | "); got != want {
			return fmt.Errorf("the header %s is %q", name, got)
		}
	case "has:", "lacks:":
		e.expected = true
		if strings.Contains(e.last.body+e.output, text) != (step.verb == "has:") {
			return fmt.Errorf("the answer is %s%s", e.last.body, e.output)
		}
	case "wait:":
		return e.wait(text)
	case "receiver:":
		return e.receiveWebhooks(text)
	case "$":
		line, end, ends := strings.Cut(text, " ! ")
		if e.carryOut(splitWords(line)); ends {
			return e.judgeFailure(end)
		}
	case "types:":
		e.typed = &text
	case "notes:":
		return e.judgeNotes(text)
	case "events:":
		return e.judgeEvents(strings.Fields(text))
	case "!":
		return e.judgeFailure(text)
	}
	return nil
}

// ask sends the request of a line '>', and has it shown as the line before says. What is shown and succeeds needs no
// other judge than the document.
func (e *exchangeRun) ask(text string) error {
	e.request[0], text, _ = strings.Cut(text, " ")
	e.request[1], e.request[2], _ = strings.Cut(text, " ")
	mark, headers := e.mark, e.headers
	e.send(e.request)
	e.mark, e.headers, e.expected = "", nil, mark != "" && e.last.status < 300
	if mark == "" {
		return nil
	}
	return e.recorder.show(mark, headers)
}

// carryOut runs the command of a line '$'.
func (e *exchangeRun) carryOut(args []string) {
	typed := typedLines(strings.Fields(valueOr(e.typed, "")))
	on, out, noted := e.envAt(e.typed != nil, &typed)
	if slices.Contains(args, "-db") { // which it opens by itself
		on.shared = nil
	}
	e.output, e.failure = e.dispatch(on, out, args)
	noteQuestion(args, noted.String())
	e.last, e.noted, e.typed, e.events, e.expected = answer{}, noted.String(), nil, e.newEvents(), false
}

// judgeNotes holds what the last command has told people against what is expected.
func (e *exchangeRun) judgeNotes(text string) error {
	if !e.expected && e.failure != nil {
		return e.failure
	}
	e.expected = true
	if text == "" && e.noted != "" || !strings.Contains(e.noted, text) {
		return fmt.Errorf("it notes %q", e.noted)
	}
	return nil
}

// judgeFailure holds the end of the last command against its exit status and what its error says.
func (e *exchangeRun) judgeFailure(text string) error {
	status, says, _ := strings.Cut(text, " ")
	got, failure := statusOf(e.failure), fmt.Sprint(e.failure)
	if got != status || !strings.Contains(failure, says) || strings.Contains(failure, "\n") || e.output != "" {
		return fmt.Errorf("it ends with %s: %v, and prints %q", got, e.failure, e.output)
	}
	return e.judgeEvents(nil)
}

// statusOf returns the exit status that main makes of what run returns.
func statusOf(err error) string {
	var status exitStatus
	switch {
	case err == nil:
		return "0"
	case errors.As(err, &status):
		return fmt.Sprint(int(status))
	case errors.As(err, new(usageError)):
		return "2"
	}
	return "1"
}

// splitWords splits a command line as a shell does, with single quotes.
func splitWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// make makes one thing of a world: KIND [NAME] [MEMBERS].
func (e *exchangeRun) make(text string) error {
	kind, rest, _ := strings.Cut(text, " ")
	name, members := kind, rest
	if rest != "" && rest[0] != '{' {
		name, members, _ = strings.Cut(rest, " ")
	}
	switch kind {
	case "account":
		e.made[name] = e.addAccount(name)
		return nil
	case "widget":
		e.made[name] = e.addWidget(e.name("owner"))
		e.newEvents()
		return nil
	case "grant", "code", "visitor":
		return e.makeAgreed(kind, name, members)
	case "payout":
		return e.makePayout(name, members)
	case "sale":
		return e.makeSale(name, members)
	case "bank", "ledger":
		e.made[name] = e.connect(kind)
		return nil
	case "brought", "consent", "posted", "delivery", "draining":
		return e.recorder.makeShown(kind, name, members)
	}
	of, known := worldKinds[kind]
	if !known {
		return fmt.Errorf("nobody knows how to make %s", kind)
	}
	request, err := e.fill(of.request)
	if err != nil {
		return err
	}
	method, request, _ := strings.Cut(request, " ")
	path, body, _ := strings.Cut(request, " ")
	var all, more map[string]any
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		return err
	}
	if err := readMembers(members, &more); err != nil {
		return err
	}
	maps.Copy(all, more)
	before := e.auth
	if e.auth = ""; of.scope != "" {
		account := e.name("owner")
		if of.scope == "admin" {
			account = e.account
		}
		e.auth = bearer(e.token(account, of.scope))
	}
	a := e.send([3]string{method, path, encode(all)})
	e.auth = before
	if a.status != 200 {
		return fmt.Errorf("it is not made: %d %s", a.status, a.body)
	}
	e.made[name] = a.json()
	return nil
}

// makeAgreed makes what comes of somebody's consent for the owner: a visitor, who has signed in, with a cookie; or for
// an application, which is one that the operator vouches for unless members name another, a code, with the form that
// exchanges it, or a grant, with an access token. Its scope is all that an application may have, unless members say
// less.
func (e *exchangeRun) makeAgreed(kind, name, members string) error {
	made := struct{ App, Account, Scope string }{"", e.name("owner"), strings.Join(appScopes, " ")}
	if err := readMembers(members, &made); err != nil {
		return err
	}
	if kind == "visitor" {
		e.made[name] = map[string]any{"cookie": e.signedIn(made.Account).cookie}
		e.newEvents()
		return nil
	}
	p, secret := &app{}, ""
	if made.App == "" {
		p, secret = e.registerApp(everything)
	} else {
		var err error
		if p, err = e.store.app(anyAccount, made.App); err != nil {
			return err
		}
	}
	of := map[string]any{"app": map[string]any{"id": p.ID, "secret": secret}}
	if e.made[name] = of; kind == "code" {
		code := e.agree(p, made.Account, made.Scope)
		of["id"], of["form"] = code, codeForm(p, code)
		of["unproved"] = codeForm(p, code, "client_id", "", "code_verifier", "")
		return nil
	}
	of["token"], of["id"] = e.appToken(p, made.Account, made.Scope)
	return nil
}

// readMembers reads the members that a line has; "": none.
func readMembers(members string, into any) error {
	if members == "" {
		return nil
	}
	return json.Unmarshal([]byte(members), into)
}

// makePayout makes an order of the owner that was paid and given back in part, and a payout by which the provider pays
// out what it has brought, unless members say what is different.
func (e *exchangeRun) makePayout(name, members string) error {
	made := struct {
		Provider, Arrives, Status string
		Manual, Unread            bool
		Differs                   int64
	}{Provider: providerStripe, Arrives: "2000-01-03", Status: payoutPaid}
	if err := readMembers(members, &made); err != nil {
		return err
	}
	o := anOrder(e.name("owner"))
	o.ReturnURL = e.name("origin") + "/thanks"
	e.addOrder(o)
	e.change(func(t *tx) error {
		t.exec(`INSERT INTO payment_connections (id, account_id, provider, live, secrets, created_at)
			VALUES (?, ?, ?, 0, x'00', ?) ON CONFLICT DO NOTHING`, t.newID("con"), o.AccountID, made.Provider, t.now)
		if err := bringTo(t, o, orderPartRefunded); err != nil {
			return err
		}
		t.exec(`UPDATE payments SET provider = ?1, connection_id = (SELECT id FROM payment_connections
			WHERE account_id = ?2 AND provider = ?1) WHERE id = ?3`, made.Provider, o.AccountID, *o.PaymentID)
		return nil
	})
	p := e.addPayout(e.row(o.ID), func(told *payoutReport, _ *[]ledgerRow) {
		told.arrival, told.status = made.Arrives, made.Status
		if made.Provider == providerVipps {
			told.status = "payout-scheduled"
		}
		told.automatic, told.complete, told.amount = !made.Manual, !made.Unread, told.amount+made.Differs
	})
	e.made[name] = map[string]any{"id": p.ID, "provider_id": *p.ProviderID, "order": o.ID, "payment": *o.PaymentID}
	e.newEvents()
	return nil
}

// makeSale makes an order of the owner that is paid by card, unless members name another state.
func (e *exchangeRun) makeSale(name, members string) error {
	made := struct{ State string }{orderPaid}
	if err := readMembers(members, &made); err != nil {
		return err
	}
	o := anOrder(e.name("owner"))
	o.ReturnURL = e.name("origin") + "/thanks"
	e.addOrder(o)
	e.change(func(t *tx) error { return bringTo(t, o, made.State) })
	e.made[name] = o.ID
	e.newEvents()
	return nil
}

// connect connects the owner with a bank, by which it takes payments, or with a ledger. It returns the connection's id.
func (e *exchangeRun) connect(kind string) (id string) {
	e.change(func(t *tx) error {
		if kind == "ledger" {
			id = t.newID("bkc")
			t.addBookConnection(&bookConnection{ID: id, AccountID: e.name("owner"), Product: productXero,
				OrganisationID: &id, Organisation: "Demo", Status: entryDraft})
			return nil
		}
		id = t.newID("con")
		t.addPaymentConnection(&paymentConnection{ID: id, AccountID: e.name("owner"), Provider: providerVipps,
			Name: "12345", Sealed: []byte{0}, CreatedAt: t.now})
		return nil
	})
	return id
}

// as says who sends from here on.
func (e *exchangeRun) as(who []string) error {
	e.who = who
	switch {
	case len(who) == 1 && who[0] == "nobody":
		e.auth = ""
	case len(who) == 1 && who[0] == "admin":
		e.auth = bearer(e.token(e.account, "admin"))
	case len(who) == 1 && strings.Count(who[0], ".") == 2:
		e.auth = bearer(who[0])
	case len(who) > 1 && e.name(who[0]) != "":
		e.auth = bearer(e.token(e.name(who[0]), strings.Join(who[1:], " ")))
	default:
		return fmt.Errorf("who is %v?", who)
	}
	return nil
}

// send sends a request: its method, path and body.
func (e *exchangeRun) send(request [3]string) answer {
	headers := slices.Clone(e.headers)
	if body := request[2]; body != "" && !strings.ContainsRune("{[", rune(body[0])) &&
		!slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Content-Type:") }) {
		headers = append(headers, formType)
		request[2] = strings.ReplaceAll(body, " ", "")
	}
	if e.auth != "" {
		headers = append(headers, e.auth)
	}
	before := e.commits()
	e.last = e.do(request[0], request[1], request[2], headers...)
	e.wrote = e.commits() != before
	e.events, e.output = e.newEvents(), ""
	return e.last
}

// refuse sends a variant of the last request, which must be refused as its line says.
func (e *exchangeRun) refuse(text string) error {
	request := e.request
	var wants string
	switch text[0] {
	case '{', '[':
		var body json.RawMessage
		d := json.NewDecoder(strings.NewReader(text))
		if err := d.Decode(&body); err != nil {
			return err
		}
		request[2], wants = string(body), text[d.InputOffset():]
	case '?', '&':
		query, rest, _ := strings.Cut(text, " ")
		path, _, _ := strings.Cut(request[1], "?")
		request[1], wants = path+query, rest
	default:
		words := strings.Fields(text)
		form := 1
		for form < len(words) && words[form][0] == '&' {
			form++
		}
		request[2], wants = strings.Join(words[:form], ""), strings.Join(words[form:], " ")
		if request[2] == "-" {
			request[2] = ""
		}
	}
	a := e.send(request)
	if err := judgeStatus(a, strings.Fields(wants), 422); err != nil {
		return err
	}
	return e.wroteNothing()
}

// wroteNothing checks that the last request has committed nothing.
func (e *exchangeRun) wroteNothing() error {
	if e.wrote {
		return fmt.Errorf("it is refused with %d and changes the database", e.last.status)
	}
	return nil
}

// judge holds the last answer against a line '<', or an event's data against a line 'event:'.
func (e *exchangeRun) judge(step exchangeStep) error {
	head, members := step.text, ""
	if i := strings.IndexAny(step.text, "{["); i >= 0 {
		head, members = step.text[:i], step.text[i:]
	}
	words := strings.Fields(head)
	if step.verb == "event:" {
		i := slices.IndexFunc(e.events, func(ev event) bool { return len(words) == 1 && string(ev.Type) == words[0] })
		if i < 0 {
			return fmt.Errorf("there is no such event among %v", typesOfEvents(e.events))
		}
		return e.match(members, []byte(e.events[i].Data))
	}
	e.expected = true
	noted := slices.Index(words, "+")
	if noted >= 0 {
		if err := e.judgeEvents(words[noted+1:]); err != nil {
			return err
		}
		words = words[:noted]
	}
	if e.last.status < 400 && len(words) > 0 {
		if err := e.judgeEvents(words[1:]); err != nil {
			return err
		}
		words = words[:1]
	}
	if err := judgeStatus(e.last, words, 0); err != nil {
		return err
	}
	if e.last.status >= 400 && noted < 0 {
		if err := e.wroteNothing(); err != nil {
			return err
		}
	}
	if members == "" {
		return nil
	}
	return e.match(members, []byte(e.last.body))
}

// match holds JSON against the members that are expected of it.
func (e *exchangeRun) match(members string, got []byte) error {
	var want, is any
	if err := json.Unmarshal([]byte(members), &want); err != nil {
		return fmt.Errorf("%s: %w", members, err)
	}
	if err := json.Unmarshal(got, &is); err != nil {
		return fmt.Errorf("the answer %s: %w", got, err)
	}
	if err := e.matchValue("", want, is); err != nil {
		return fmt.Errorf("%w in %s", err, got)
	}
	return nil
}

// judgeStatus holds an answer against its status, which is usual unless the words begin with one, the problem's code,
// and the code and pointer of each entry of its errors.
func judgeStatus(a answer, words []string, usual int) error {
	var want []string
	status, code := usual, ""
	if len(words) > 0 {
		if n, err := strconv.Atoi(words[0]); err == nil {
			status, words = n, words[1:]
		}
	}
	isPointer := func(i int) bool { return i < len(words) && strings.ContainsRune("/?", rune(words[i][0])) }
	if len(words) > 0 {
		if code = "validation_failed"; !isPointer(1) || status != 422 {
			code, words = words[0], words[1:]
		}
		for len(words) > 1 && isPointer(1) {
			want, words = append(want, strings.Replace(words[1], "/", "#/", 1)+" "+words[0]), words[2:]
		}
	}
	if len(words) > 0 {
		return fmt.Errorf("what is %q?", words)
	}
	got := ""
	kind := a.header.Get("Content-Type")
	problem := kind == "application/problem+json"
	switch {
	case a.status < 400:
	case problem:
		got, _ = a.json()["code"].(string)
	case kind == "application/json": // of OAuth; others are pages
		got, _ = a.json()["error"].(string)
	}
	if a.status != status || code != "" && got != code {
		return fmt.Errorf("it answers %d %s", a.status, a.body)
	}
	if !problem {
		return nil
	}
	slices.Sort(want)
	if wrong := slices.Sorted(slices.Values(a.wrong())); !slices.Equal(wrong, want) {
		return fmt.Errorf("it names %q: %s", wrong, a.body)
	}
	return nil
}

// matchValue compares what is expected with what there is. Objects may have more members than are expected.
func (e *exchangeRun) matchValue(at string, want, is any) error {
	differs := fmt.Errorf("%s is %s and not %s", cmp.Or(at, "the whole"), encode(is), encode(want))
	switch want := want.(type) {
	case map[string]any:
		object, ok := is.(map[string]any)
		if !ok {
			return differs
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			value, has := object[name]
			if want[name] == "$absent" && !has {
				continue
			}
			if !has {
				return fmt.Errorf("%s/%s is missing", at, name)
			}
			if err := e.matchValue(at+"/"+name, want[name], value); err != nil {
				return err
			}
		}
		return nil
	case []any:
		list, ok := is.([]any)
		if !ok || len(list) != len(want) {
			return differs
		}
		for i := range want {
			if err := e.matchValue(fmt.Sprintf("%s/%d", at, i), want[i], list[i]); err != nil {
				return err
			}
		}
		return nil
	case string:
		if want == "$any" && is != nil {
			return nil
		}
		name, names := strings.CutPrefix(want, "$")
		if names && name != "now" && e.made[name] == nil && captureName.MatchString(name) {
			e.made[name], e.unused[name] = is, true
			return nil
		}
		filled, err := e.fill(want)
		if err != nil || any(filled) == is {
			return err
		}
		return differs
	}
	if encode(want) != encode(is) {
		return differs
	}
	return nil
}

var (
	captureName = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
	variable    = regexp.MustCompile(`\$(now(?:[-+][0-9a-z]+)?|[A-Za-z][A-Za-z0-9_]*(?:\.[a-z0-9_]+)*)`)
)

// fill puts what was made or captured into a text.
func (e *exchangeRun) fill(text string) (filled string, err error) {
	return variable.ReplaceAllStringFunc(text, func(name string) string {
		if name = name[1:]; name == "any" || name == "absent" {
			return "$" + name
		}
		if offset, isTime := strings.CutPrefix(name, "now"); isTime {
			d, wrong := parseWait(offset)
			if wrong != nil {
				err = wrong
			}
			return newStamp(e.server.now().Add(d)).String()
		}
		value := e.name(name)
		if value == "" {
			err = fmt.Errorf("nothing was made or captured as $%s", name)
		}
		return value
	}), err
}

// name returns what was made under a name: its id, or the member that the name ends with; "": there is none.
func (e *exchangeRun) name(name string) string {
	name, path, _ := strings.Cut(name, ".")
	delete(e.unused, name)
	value := e.made[name]
	if object, ok := value.(map[string]any); ok && path == "" {
		value = object["id"]
	}
	for _, member := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' }) {
		switch of := value.(type) {
		case map[string]any:
			value = of[member]
		case []any:
			if i, err := strconv.Atoi(member); err == nil && i < len(of) {
				value = of[i]
			}
		}
	}
	if value == nil {
		return ""
	}
	if text, ok := value.(string); ok {
		return text
	}
	return encode(value)
}

// parseWait reads a duration, of which a day is written d.
func parseWait(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	if n, isDays := strings.CutSuffix(text, "d"); isDays {
		count, err := strconv.Atoi(n)
		return time.Duration(count) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// wait lets time pass and runs the chores that are due then.
func (e *exchangeRun) wait(text string) error {
	d, err := parseWait(text)
	if err != nil {
		return err
	}
	e.pass(d)
	if len(e.who) > 1 || slices.Equal(e.who, []string{"admin"}) { // whose token may have expired
		if err := e.as(e.who); err != nil {
			return err
		}
	}
	for _, c := range e.server.chores {
		if err := c.run(e.t.Context()); err != nil {
			return err
		}
	}
	e.events = e.newEvents()
	return nil
}

// receiveWebhooks has the service send webhooks to a receiver, which answers all with a status, and compares the types
// of the owner's events that it gets, in any order.
func (e *exchangeRun) receiveWebhooks(text string) error {
	status, types, _ := strings.Cut(text, " ")
	code, err := strconv.Atoi(status)
	if err != nil {
		return err
	}
	r := e.receive()
	r.status(code)
	stop := e.startSending()
	time.Sleep(2 * time.Second)
	stop()
	var got []string
	for _, m := range r.take() {
		var kind, account string
		e.check(e.store.one(`SELECT type, account_id FROM events WHERE id = ?`, []any{m.id}, &kind, &account))
		if account == e.name("owner") {
			got = append(got, kind)
		}
	}
	slices.Sort(got)
	e.events = slices.DeleteFunc(e.newEvents(), func(ev event) bool { return ev.AccountID != e.name("owner") })
	if strings.Join(got, " ") != types {
		return fmt.Errorf("the receiver gets %v", got)
	}
	return nil
}

// newEvents returns the events that were written since it was called before.
func (e *exchangeRun) newEvents() (all []event) {
	e.t.Helper()
	e.check(e.store.each(`SELECT seq, type, data, account_id FROM events WHERE seq > ? ORDER BY seq`, []any{e.seq},
		func(scan func(...any) error) error {
			var ev event
			var data []byte
			if err := scan(&e.seq, &ev.Type, &data, &ev.AccountID); err != nil {
				return err
			}
			ev.Data = bytes.Clone(data)
			all = append(all, ev)
			return nil
		}))
	return all
}

func typesOfEvents(events []event) (types []string) {
	for _, ev := range events {
		types = append(types, string(ev.Type))
	}
	return types
}

// judgeEvents holds the types of the last events against those that are expected, in their order.
func (e *exchangeRun) judgeEvents(want []string) error {
	e.expected = true
	if got := typesOfEvents(e.events); !slices.Equal(got, want) {
		return fmt.Errorf("it writes the events %v", got)
	}
	return nil
}

// judgeOutput holds a line that the last command printed against what is expected.
func (e *exchangeRun) judgeOutput(want string) error {
	e.expected = true
	if e.failure != nil {
		return e.failure
	}
	if !strings.HasPrefix(want, "{") {
		text, err := e.fill(want)
		if err == nil && !slices.Contains(strings.Split(e.output, "\n"), text) {
			err = fmt.Errorf("it prints\n%s", e.output)
		}
		return err
	}
	var first error
	for line := range strings.Lines(e.output) {
		err := e.match(want, []byte(line))
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
	}
	return cmp.Or(first, errors.New("it prints nothing"))
}
