package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The options of these commands.
var (
	optTypes = option{name: "type", value: "NAME", member: "types", reads: asList, generalHelp: optType.help,
		help: "types of the events that it gets, separated by commas, as lead.created,license.created"}
	optReplaySince = option{name: "since", value: "TIME", member: "since", reads: asTime((*env).pastTime),
		generalHelp: optSince.help,
		help:        "since a date or an RFC 3339 time, or of the last days, as 7d; at most 30 days"}
	optWebhookState = option{name: "state", value: "STATE",
		help: "show only webhooks in this state", words: func() []string { return asTexts(webhookStates) },
		generalHelp: "show only what is in this state"}
	optFailing = option{name: "failing",
		help: "show only webhooks that did not accept what they were sent last, or were disabled for that"}
	optFailed = option{name: "failed", member: "outcome", reads: switchValue(outcomeFailed),
		help: "show only attempts that failed"}
	optReachable = optOutboundAllow.says("what the service may reach besides public addresses, as for serve")
)

// eventIsSent is what comes of an event that the running service sends.
const eventIsSent = "${event_id} is to be sent: 'widgetd webhook delivery list ${id}' shows what came of it"

// The commands on webhooks that are names for routes, and the list, whose rows have the host in place of the address,
// and what waits, which is too much to count at each call of a route.
var webhookRouteCommands = []routeCommand{
	{name: "webhook add", route: "POST /webhooks", args: "URL", options: []option{optTypes, optReachable},
		help: "send events to an address; the secret that signs them is shown once", keys: (*env).keyFile,
		text: "id:     ${id}\nsecret: ${secret}  (shown once)\nnext:   the service sends a test, and events once it " +
			"is answered with 2xx: 'widgetd webhook show ${id}'", after: noteSending},
	{name: "webhook show", route: "GET /webhooks/{id}"},
	{name: "webhook set", route: "PATCH /webhooks/{id}", options: []option{optTypes, optReachable},
		help: "change the address, types or description of a webhook", before: wantChange, text: "${id} is ${state}",
		after: noteSending},
	{name: "webhook test", route: "POST /webhooks/{id}/test", text: eventIsSent, after: noteSending,
		help: "send a test to a webhook; a pending one is enabled if it answers with 2xx"},
	{name: "webhook enable", route: "POST /webhooks/{id}/enable", text: "${id} is ${state}", after: noteSending,
		help: "send a test to a disabled webhook, which enables it if it answers with 2xx"},
	{name: "webhook disable", route: "PATCH /webhooks/{id}", sends: map[string]any{"state": webhookDisabled},
		help: "send a webhook no more events; those until it is enabled can be replayed", text: "${id} is ${state}"},
	{name: "webhook rotate-secret", route: "POST /webhooks/{id}/rotate-secret", keys: (*env).keyFile,
		help: "give a webhook another secret, shown once; the one before signs too for a day",
		text: "secret: ${secret}  (shown once)\nthe one before signs too until ${previous_secret_until}"},
	{name: "webhook replay", route: "POST /webhooks/{id}/replay", options: []option{optReplaySince},
		help: "send events again, those that the webhook has accepted too", text: "${id} is ${state}",
		after: noteSending},
	{name: "webhook delivery list", route: "GET /webhooks/{id}/deliveries", options: []option{optFailed},
		help: "show the attempts to send events to a webhook, newest first", rows: &listCommand{prefix: "whd",
			columns: "DELIVERY=id AT TYPE ATTEMPT STATUS ERROR MS=duration_ms NEXT=next_attempt_at EVENT=event_id " +
				"ANSWER"}},
	{name: "webhook delivery retry", route: "POST /webhooks/{id}/deliveries/{delivery}/retry", text: eventIsSent,
		help: "send the event of a delivery again, at once", after: noteSending},
	{name: "webhook remove", route: "DELETE /webhooks/{id}", options: []option{optUnasked},
		help: "remove a webhook; what was still to be sent to it is not sent",
		text: "webhook ${id} (${url host}) removed",
		asks: asking("removes the webhook ${id} (${url host}) for good; still to be sent again to it: " +
			"${ends.events event}")},
	{name: "webhook list",
		help:    "list webhooks, newest first, with the events that wait and when one was last accepted",
		options: []option{optOfAccount, optWebhookState, optFailing},
		rows: &listCommand{short: true, prefix: "whe", pages: webhookPages, cell: webhookCell, columns: "ID STATE " +
			"REASON FAILING-SINCE=failing_since WAITING LAST-SUCCESS=last_success_at HOST TYPES ACCOUNT=account_id"}},
}

// noteSending says so where the service is to send something and none runs.
func noteSending(e *env, answer *jsonValue) {
	state, isWebhook := answer.member("state")
	if !isWebhook || state.text == webhookPending || trueMember(answer, "replaying") {
		e.noteQueued()
	}
}

// wantChange refuses a change of a webhook that names nothing to change.
func wantChange(_ *env, r *routeRequest) error {
	if len(r.members) == 0 {
		return usageError("nothing to change: give -url, -type or -description")
	}
	return nil
}

// A webhookRow is a webhook as webhook list prints it, without the path of its address, which may be a secret.
type webhookRow struct {
	ID           string         `json:"id"`
	State        webhookState   `json:"state"`
	Reason       *webhookReason `json:"reason"`
	FailingSince stamp          `json:"failing_since"`
	Host         string         `json:"host"`
	Types        []string       `json:"types"`
	Description  *string        `json:"description"`
	AccountID    string         `json:"account_id"`
	Waiting      int            `json:"waiting"` // events that are still to be sent, up to maxWaiting
	LastSuccess  stamp          `json:"last_success_at"`
}

// webhookPages reads the webhooks that the options of webhook list leave.
func webhookPages(e *env, q *queries) (rowPages, error) {
	state, err := e.choice("state", asTexts(webhookStates))
	if err != nil {
		return nil, err
	}
	o, err := e.filterAccount()
	if err != nil {
		return nil, err
	}
	backlogs, err := q.webhookBacklogs(o, math.MaxInt)
	return pagesOf(func(before string, limit int) (p listPage[webhookRow], err error) {
		page, err := q.webhooks(o, before, limit)
		for _, w := range page.rows {
			fails := !w.FailingSince.IsZero() || w.Reason != nil && *w.Reason != disabledByOwner
			if state != "" && string(w.State) != state || e.on("failing") && !fails {
				continue
			}
			row := webhookRow{ID: w.ID, State: w.State, Reason: w.Reason, FailingSince: w.FailingSince, Host: w.host(),
				Types: w.Types, Description: w.Description, AccountID: w.AccountID}
			if i := slices.IndexFunc(backlogs, func(b webhookBacklog) bool { return b.webhookID == w.ID }); i >= 0 {
				row.Waiting, row.LastSuccess = backlogs[i].waiting+backlogs[i].retried, backlogs[i].accepted
			}
			p.rows = append(p.rows, row)
		}
		p.next = page.next
		return p, err
	}), err
}

// webhookCell is a cellFunc. More events than maxWaiting are not counted.
func webhookCell(member string, row *jsonValue) any {
	if n, _ := memberAt(row, member).integer(); member == "waiting" && n >= maxWaiting {
		return strconv.Itoa(maxWaiting) + "+"
	}
	return nil
}

// webhookStatus is what the status command says of webhooks.
func webhookStatus(v *statusView, to *statusReport) error {
	n, err := v.countWebhooksByState()
	to.set("webhooks", n)
	if err == nil {
		to.say("%s", countsText([]string{webhookEnabled, webhookPending, webhookDisabled}, n))
	}
	return err
}

// The options of this command. -addr has no environment variable here, since that of serve's -addr would
// make the receiver listen on the service's address.
var (
	optListenAddr = option{name: "addr", value: "HOST:PORT", def: "127.0.0.1:9090",
		help: "address to listen on"}
	optWebhookSecret = option{name: "secret", value: "SECRET",
		help: "the webhook's secret, whsec_…; in a command line it is seen by others and kept by the shell, " +
			"so prefer the variable or -secret-file",
		hasVariable: true}
	optSecretFile = option{name: "secret-file", value: "FILE",
		help: "file that contains the webhook's secret; - <FILE has your shell open it"}
	optAnswer = option{name: "answer", value: "N", def: "204",
		help: "status to answer what verifies with, to see how a failure is sent again: 200 to 599"}
)

// The command for partners to try webhooks with.
var webhookListenCommands = []command{
	{"webhook listen", "", "receive webhooks, verify and print them, to try them out",
		[]option{optListenAddr, optWebhookSecret, optSecretFile, optAnswer}, webhookListen},
}

// The bounds of the receiver.
const (
	maxReceivedBody   = 64 << 10 // bytes that are accepted
	maxWebhookExcerpt = 1_000    // bytes that are printed of a body that is no JSON object
	listenTimeout     = 10 * time.Second
)

// webhookListen receives webhooks until the context ends.
func webhookListen(e *env) error {
	secret, err := e.webhookSecret()
	if err != nil {
		return err
	}
	status, err := e.number("answer", 200, 599)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", e.str("addr"))
	if err != nil {
		return fmt.Errorf("listen: %w: choose another address with -addr", err)
	}
	receiver := &webhookReceiver{secret: secret, status: status, out: e.stdout, now: e.now, json: e.on("json")}
	web := &http.Server{Handler: receiver, ReadHeaderTimeout: listenTimeout, ReadTimeout: listenTimeout,
		WriteTimeout: listenTimeout, MaxHeaderBytes: maxOutboundHeader}
	e.note("listening on http://%s; end with Ctrl-C\n", listener.Addr())
	stopped := make(chan error, 1)
	stop := context.AfterFunc(e.ctx, func() {
		drain, cancel := context.WithTimeout(context.Background(), listenTimeout)
		defer cancel()
		stopped <- web.Shutdown(drain)
	})
	err = web.Serve(listener)
	if stop() { // it did not end because of the context
		return err
	}
	return <-stopped
}

// webhookSecret returns the secret that the options give, or a usageError, which does not contain it.
func (e *env) webhookSecret() ([]byte, error) {
	text, file := e.str("secret"), e.str("secret-file")
	switch {
	case file != "" && e.given("secret"): // only the option: the variable may be set for other receivers
		return nil, usageError("-secret and -secret-file exclude each other")
	case file != "":
		from, err := e.open(file)
		if err != nil {
			return nil, err
		}
		defer from.Close()
		read, err := io.ReadAll(io.LimitReader(from, 1024)) // more than any secret has
		if err != nil {
			return nil, fmt.Errorf("read the secret: %w", err)
		}
		text = strings.TrimSpace(string(read))
	case text == "":
		return nil, usageError("the webhook's secret is needed: give it in the environment variable " +
			optWebhookSecret.variable() + " or with -secret-file FILE")
	}
	secret, err := parseWebhookSecret(text)
	if err != nil {
		return nil, usageError(err.Error())
	}
	return secret, nil
}

// A webhookReceiver is the handler of a receiver of webhooks, for people to see what arrives. It verifies each request
// with the secret, prints it to out, and answers with the status, or with 401 for one that does not verify, and 400,
// 405 or 413 for one that is no webhook.
type webhookReceiver struct {
	secret []byte
	status int
	now    func() time.Time // the clock that the times of webhooks are compared with
	json   bool             // print one JSON object a line, not text

	mu  sync.Mutex // guards out
	out io.Writer
}

// A receivedWebhook is what is printed of a request. Its texts may come from anybody.
type receivedWebhook struct {
	ReceivedAt stamp           `json:"received_at"`
	Type       *string         `json:"type"`
	ID         *string         `json:"id"`
	Verified   bool            `json:"verified"`
	Reason     *string         `json:"reason"` // why it is refused
	Answered   int             `json:"answered"`
	Body       json.RawMessage `json:"body"` // null where it is no JSON object

	text []byte // the body as it came
}

// ServeHTTP receives one request.
func (l *webhookReceiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got := receivedWebhook{ReceivedAt: newStamp(l.now()), ID: nilIfEmpty(r.Header.Get(webhookIDHeader))}
	refused := l.receive(&got, w, r)
	if refused != nil {
		got.Reason = new(refused.Error())
	}
	l.print(&got)
	if refused == nil {
		w.WriteHeader(got.Answered)
		return
	}
	if got.Answered == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	http.Error(w, refused.Error(), got.Answered)
}

// receive reads and checks a request. It returns why it is refused, and sets got.
func (l *webhookReceiver) receive(got *receivedWebhook, w http.ResponseWriter, r *http.Request) error {
	if got.Answered = http.StatusMethodNotAllowed; r.Method != http.MethodPost {
		return errors.New("a webhook is sent with POST")
	}
	var err error
	got.text, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxReceivedBody))
	var tooLarge *http.MaxBytesError
	if got.Answered = http.StatusRequestEntityTooLarge; errors.As(err, &tooLarge) {
		return fmt.Errorf("the body has more than %d bytes", maxReceivedBody)
	}
	if got.Answered = http.StatusBadRequest; err != nil {
		return errors.New("the body ends early")
	}
	parsed, malformed := parseJSON(got.text)
	if malformed == nil {
		got.Body = json.RawMessage(parsed.raw)
		if kind, _ := parsed.member("type"); kind != nil && kind.kind == jsonString {
			got.Type = &kind.text
		}
	}
	if err = verifyWebhook(l.secret, r.Header, got.text, l.now()); errors.Is(err, errWebhookHeaders) {
		return err
	}
	if got.Answered = http.StatusUnauthorized; err != nil {
		return err
	}
	got.Verified = true
	if got.Answered = http.StatusBadRequest; malformed != nil {
		return malformed
	}
	got.Answered = l.status
	return nil
}

// print prints what was received, each request in one piece.
func (l *webhookReceiver) print(got *receivedWebhook) {
	text := encodeJSON(got)
	if !l.json {
		text = got.asText()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out.Write(text)
}

// asText returns what was received for people, with an empty line at its end. Characters that could
// change the state of a terminal are replaced.
func (got *receivedWebhook) asText() []byte {
	verdict := "verified"
	switch {
	case got.Verified && got.Reason != nil:
		verdict += ", but " + *got.Reason
	case got.Reason != nil:
		verdict = "not verified: " + *got.Reason
	}
	var b, body bytes.Buffer
	fmt.Fprintf(&b, "%s  %s  %s\n%s; answered %d\n", got.ReceivedAt, printable(cmp.Or(valueOr(got.Type, ""), "-")),
		printable(cmp.Or(valueOr(got.ID, ""), "-")), verdict, got.Answered)
	if got.Body == nil || json.Indent(&body, got.Body, "", "  ") != nil {
		if excerpt := got.text[:min(len(got.text), maxWebhookExcerpt)]; len(excerpt) > 0 {
			b.WriteString(printable(string(excerpt)) + "\n")
		}
	}
	for line := range strings.Lines(body.String()) {
		b.WriteString(printable(strings.TrimSuffix(line, "\n")) + "\n")
	}
	b.WriteString("\n")
	return b.Bytes()
}
