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
	optTypes = optType.says("types of the events that it gets, separated by commas, " +
		"as lead.created,license.created")
	optDescription = option{name: "description", value: "TEXT",
		help: "what it is, for people, at most 200 characters"}
	optURL = option{name: "url", value: "URL",
		help: "another address, which has to answer a test before it gets events"}
	optWebhookState = option{name: "state", value: "STATE",
		help:        "show only webhooks in this state: pending, enabled or disabled",
		generalHelp: "show only what is in this state"}
	optFailing = option{name: "failing",
		help: "show only webhooks that did not accept what they were sent last, or were disabled for that"}
	optFailed = option{name: "failed", help: "show only attempts that failed"}
)

// The operator's commands on webhooks.
var webhookCommands = []command{
	{"webhook add", "URL", "send events to an address; the secret that signs them is shown once", []option{
		optAccount.says("the account whose events are sent"), optTypes, optDescription,
		optOutboundAllow.says("what the service may reach besides public addresses, as for serve"),
	}, 1, webhookAdd},
	{"webhook list", "", "list webhooks, newest first, with the events that wait and when one was last accepted",
		[]option{optAllRows, optSince, optUntil, optAccount.says("show only webhooks of this account"),
			optWebhookState, optFailing}, 0, webhookList},
	{"webhook show", "WEBHOOK", "show a webhook", nil, 1, webhookShow},
	{"webhook set", "WEBHOOK", "change the address, types or description of a webhook", []option{
		optURL, optTypes, optDescription.says("another description; an empty one removes it"),
		optOutboundAllow.says("what the service may reach besides public addresses, as for serve"),
	}, 1, webhookPatch},
	{"webhook test", "WEBHOOK", "send a test to a webhook; a pending one is enabled if it answers with 2xx",
		nil, 1, webhookTest},
	{"webhook enable", "WEBHOOK", "send a test to a disabled webhook, which enables it if it answers with 2xx",
		nil, 1, webhookEnable},
	{"webhook disable", "WEBHOOK", "send a webhook no more events; those until it is enabled can be replayed",
		nil, 1, webhookDisable},
	{"webhook rotate-secret", "WEBHOOK",
		"give a webhook another secret, shown once; the one before signs too for a day", nil, 1, webhookRotate},
	{"webhook replay", "WEBHOOK", "send events again, those that the webhook has accepted too", []option{
		optSince.says("since a date or an RFC 3339 time, or of the last days, as 7d; at most 30 days"),
	}, 1, webhookReplay},
	{"webhook delivery list", "WEBHOOK", "show the attempts to send events to a webhook, newest first",
		[]option{optLimit, optFailed, optSince, optUntil}, 1, webhookDeliveries},
	{"webhook delivery retry", "WEBHOOK DELIVERY", "send the event of a delivery again, at once", nil, 2,
		webhookRetryDelivery},
	{"webhook remove", "WEBHOOK", "remove a webhook; what was still to be sent to it is not sent",
		[]option{optUnasked}, 1, webhookRemove},
}

// webhookAuthor returns the operator as the author of a change, who may read every event.
func (e *env) webhookAuthor() webhookAuthor {
	return webhookAuthor{actor: e.actor(), has: func(string) bool { return true }}
}

// webhookStep turns the refusals of the rules of webhooks, which are worded for callers of the API, into
// errors for the operator that name the next step. id is that of the webhook.
func webhookStep(id string, err error) error {
	switch {
	case errors.Is(err, errWebhook):
		return errors.New("not found: 'widgetd webhook list' prints what there is")
	case errors.Is(err, errDelivery):
		return fmt.Errorf("not found, or its event is not kept any more: 'widgetd webhook delivery list %s' "+
			"prints what there is", printable(id))
	case errors.Is(err, errWebhookDisabled):
		return fmt.Errorf("the webhook is not enabled: 'widgetd webhook enable %s' sends it a test", printable(id))
	case errors.Is(err, errWebhookLimit):
		return fmt.Errorf("the account has %d webhooks already: remove one first", maxWebhooks)
	}
	return err
}

// changeNamedWebhook runs f in a transaction, on the webhook that the command's first argument names, and
// returns its result.
func changeNamedWebhook[T any](e *env, f func(t *tx, id string) (T, error)) (T, error) {
	return changed(e, func(t *tx) (T, error) {
		result, err := f(t, e.args[0])
		return result, webhookStep(e.args[0], err)
	})
}

// webhookURL checks an address that an operator typed, as far as that can be done without looking up its
// host, and returns it in its normal form. Errors: usageError.
func (e *env) webhookURL(name, typed string) (string, error) {
	allow, err := parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	if err != nil {
		return "", err
	}
	normal, code, detail := newOutbound(allow).checkURL(typed)
	if code != "" {
		return "", usageError(name + ": " + detail)
	}
	return normal, nil
}

// webhookTypes returns the types that -type names. Errors: usageError.
func (e *env) webhookTypes() (codeList, error) {
	types, known := e.commaList("type"), subscribable(e.nouns)
	var err error
	checkWebhookTypes(types, known, func(at int, code, detail string) {
		if err == nil {
			err = usageError(fmt.Sprintf("-type: %q: %s", printable(types[at]), detail))
			if code == "unknown_value" {
				err = unknownWord("-type: webhooks get no events of the type", types[at], typeNames(known))
			}
		}
	})
	return types, err
}

func webhookAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	w := &webhook{AccountID: account}
	if w.URL, err = e.webhookURL("URL", e.args[0]); err != nil {
		return err
	}
	if w.Types, err = e.webhookTypes(); err != nil {
		return err
	}
	if len(w.Types) == 0 {
		return usageError("-type NAME is needed: the types are " + strings.Join(typeNames(subscribable(e.nouns)), " "))
	}
	text, err := e.text("description", maxWebhookText)
	if err != nil {
		return err
	}
	w.Description = nilIfEmpty(text)
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	err = e.change(func(t *tx) error { return webhookStep("", createWebhook(t, w, e.webhookAuthor())) })
	if err != nil {
		return err
	}
	secret := formatWebhookSecret(webhookSecret(keys, w.ID, w.SecretNumber))
	defer e.noteQueued()
	return e.print(map[string]string{"id": w.ID, "secret": secret},
		fmt.Sprintf("id:     %s\nsecret: %s  (shown once)\nnext:   the service sends a test, and events once it is "+
			"answered with 2xx: 'widgetd webhook show %s'", w.ID, secret, w.ID))
}

// A webhookRow is a webhook as webhook list prints it, without the path of its address, which may be a
// secret.
type webhookRow struct {
	ID           string   `json:"id"`
	State        string   `json:"state"`
	Reason       *string  `json:"reason"`
	FailingSince stamp    `json:"failing_since"`
	Host         string   `json:"host"`
	Types        codeList `json:"types"`
	Description  *string  `json:"description"`
	AccountID    string   `json:"account_id"`
	Waiting      int      `json:"waiting"` // events that are still to be sent, up to maxWaiting
	LastSuccess  stamp    `json:"last_success_at"`
}

// backlogsByWebhook returns the backlogs of an owner's webhooks by their ids.
func backlogsByWebhook(q *queries, o owner) (map[string]webhookBacklog, error) {
	of := map[string]webhookBacklog{}
	backlogs, err := q.webhookBacklogs(o, math.MaxInt)
	for _, b := range backlogs {
		of[b.webhookID] = b
	}
	return of, err
}

func webhookList(e *env) error {
	state := e.str("state")
	if state != "" && !slices.Contains([]string{webhookPending, webhookEnabled, webhookDisabled}, state) {
		return usageError(fmt.Sprintf("-state must be pending, enabled or disabled, not %q", printable(state)))
	}
	var of map[string]webhookBacklog // by webhook
	read := func(q *queries, o owner, before string, limit int) (p listPage[webhookRow], err error) {
		page, err := q.webhooks(o, before, limit)
		if err == nil && of == nil {
			of, err = backlogsByWebhook(q, o)
		}
		for _, w := range page.rows {
			fails := !w.FailingSince.IsZero() || w.Reason != nil && *w.Reason != disabledByOwner
			if state != "" && w.State != state || e.on("failing") && !fails {
				continue
			}
			backlog := of[w.ID]
			p.rows = append(p.rows, webhookRow{w.ID, w.State, w.Reason, w.FailingSince, w.host(), w.Types,
				w.Description, w.AccountID, backlog.waiting + backlog.retried, backlog.accepted})
		}
		p.next = page.next
		return p, err
	}
	ids := idOf[webhookRow]{"whe", func(row webhookRow) string { return row.ID }}
	const header = "ID STATE REASON FAILING-SINCE WAITING LAST-SUCCESS HOST TYPES ACCOUNT"
	return printOwned(e, ids, read, header, func(w webhookRow) []any {
		waiting := strconv.Itoa(w.Waiting)
		if w.Waiting >= maxWaiting {
			waiting = strconv.Itoa(maxWaiting) + "+"
		}
		return []any{w.ID, w.State, w.Reason, w.FailingSince, waiting, w.LastSuccess, w.Host,
			strings.Join(w.Types, " "), accountCell(w.AccountID)}
	})
}

func webhookShow(e *env) error {
	return e.withStore(func(st *store) error {
		w, err := st.webhook(anyAccount, e.args[0])
		if err != nil {
			return webhookStep(e.args[0], err)
		}
		return e.printMembers(w)
	})
}

func webhookPatch(e *env) (err error) {
	change := webhookChange{newDescription: e.given("description")}
	if e.given("url") {
		if change.url, err = e.webhookURL("-url", e.str("url")); err != nil {
			return err
		}
	}
	if change.types, err = e.webhookTypes(); err != nil {
		return err
	}
	if e.given("type") && len(change.types) == 0 {
		return usageError("-type: name at least one type")
	}
	text, err := e.text("description", maxWebhookText)
	if err != nil {
		return err
	}
	change.description = nilIfEmpty(text)
	if change.url == "" && len(change.types) == 0 && !change.newDescription {
		return usageError("nothing to change: give -url, -type or -description")
	}
	return e.patchWebhook(change)
}

func webhookDisable(e *env) error { return e.patchWebhook(webhookChange{disable: true}) }

// patchWebhook makes a change to the webhook that the command names, and prints it.
func (e *env) patchWebhook(change webhookChange) error {
	return e.changeWebhook(func(t *tx, id string) (*webhook, error) {
		return patchWebhook(t, anyAccount, id, change, e.webhookAuthor())
	})
}

// changeWebhook runs f in a transaction and prints the webhook that f returns.
func (e *env) changeWebhook(f func(t *tx, id string) (*webhook, error)) error {
	w, err := changeNamedWebhook(e, f)
	if err != nil {
		return err
	}
	if w.State == webhookPending || w.Replaying { // the service sends a test, or the events
		defer e.noteQueued()
	}
	return e.print(w, w.ID+" is "+w.State)
}

func webhookEnable(e *env) error {
	return e.changeWebhook(func(t *tx, id string) (*webhook, error) {
		return enableWebhook(t, anyAccount, id, e.webhookAuthor())
	})
}

// printSent runs f in a transaction and prints the id of the event that f returns, which the running service sends.
func (e *env) printSent(f func(t *tx, id string) (string, error)) error {
	eventID, err := changeNamedWebhook(e, f)
	if err != nil {
		return err
	}
	defer e.noteQueued()
	return e.print(sentEvent{eventID},
		fmt.Sprintf("%s is to be sent: 'widgetd webhook delivery list %s' shows what came of it", eventID, e.args[0]))
}

func webhookTest(e *env) error {
	return e.printSent(func(t *tx, id string) (string, error) {
		return requestTest(t, anyAccount, id, e.webhookAuthor())
	})
}

func webhookRetryDelivery(e *env) error {
	return e.printSent(func(t *tx, id string) (string, error) {
		return retryDelivery(t, anyAccount, id, e.args[1], e.webhookAuthor())
	})
}

func webhookRotate(e *env) error {
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	w, err := changeNamedWebhook(e, func(t *tx, id string) (*webhook, error) {
		return rotateWebhookSecret(t, anyAccount, id, e.webhookAuthor())
	})
	if err != nil {
		return err
	}
	secret := formatWebhookSecret(webhookSecret(keys, w.ID, w.SecretNumber))
	until := w.RotatedAt.after(secretOverlap)
	return e.print(map[string]string{"id": w.ID, "secret": secret, "previous_secret_until": until.String()},
		fmt.Sprintf("secret: %s  (shown once)\nthe one before signs too until %s", secret, until))
}

func webhookReplay(e *env) error {
	since, err := e.pastTime("since")
	if err != nil {
		return err
	}
	if since.IsZero() {
		return usageError("-since TIME is needed, as 7d")
	}
	var fields *refusal
	err = e.changeWebhook(func(t *tx, id string) (*webhook, error) {
		return replayEvents(t, anyAccount, id, since, e.webhookAuthor())
	})
	if errors.As(err, &fields) && fields.code == codeValidation {
		return usageError("-since: " + fields.fields[0].Detail)
	}
	return err
}

func webhookDeliveries(e *env) error {
	filter := deliveryFilter{webhookID: e.args[0]}
	if e.on("failed") {
		filter.outcome = outcomeFailed
	}
	return printAll(e, func(q *queries) ([]delivery, error) {
		ids := idOf[delivery]{"whd", func(row delivery) string { return row.ID }}
		rows, err := spanRows(e, q, ids, (*queries).deliveries, filter)
		if err != nil {
			return nil, err
		}
		_, err = q.webhook(anyAccount, e.args[0])
		return rows, webhookStep(e.args[0], err)
	}, "DELIVERY AT TYPE ATTEMPT STATUS ERROR MS NEXT EVENT ANSWER", func(d delivery) []any {
		return []any{d.ID, d.At, d.Type, d.Attempt, d.Status, d.Error, d.Milliseconds, d.NextAt, d.EventID, d.Answer}
	})
}

func webhookRemove(e *env) error {
	id, name := e.args[0], ""
	return e.changeConfirmed(func(q *queries) (string, error) {
		w, err := q.webhook(anyAccount, id)
		if err != nil {
			return "", webhookStep(id, err)
		}
		name = withName(id, w.host())
		waiting, err := q.countRetries(id)
		return fmt.Sprintf("removes the webhook %s for good; still to be sent again to it: %s", name,
			countOf(waiting, "event")), err
	}, func(t *tx) (string, error) {
		return "webhook " + name + " removed", webhookStep(id, removeWebhook(t, anyAccount, id, e.actor()))
	})
}

// webhookStatus is what the status command says of webhooks.
type webhookStatus struct {
	States   map[string]int64 `json:"webhooks"` // how many there are, by state
	troubled []*webhook       // that do not accept what they are sent
}

// failingShown is how long a webhook must have been failing before status shows it.
const failingShown = 24 * time.Hour

func (r *webhookStatus) read(v *statusView) (err error) {
	if r.States, err = v.countWebhooksByState(); err == nil {
		r.troubled, err = v.webhooksInTrouble(newStamp(v.now.Add(-failingShown)))
	}
	return err
}

func (r *webhookStatus) show(_ *statusView, to *statusLines) {
	to.say("%s", countsText([]string{webhookEnabled, webhookPending, webhookDisabled}, r.States))
	since := map[string][]stamp{} // by reason
	for _, w := range r.troubled {
		reason, at := valueOr(w.Reason, ""), w.FailingSince
		if at.IsZero() {
			at = w.UpdatedAt
		}
		since[reason] = append(since[reason], at)
	}
	const disabled = "'widgetd webhook list -failing -state disabled'"
	to.askSince(since[""], "webhook fails", "webhooks fail", "'widgetd webhook list -failing -state enabled'")
	to.askSince(since[disabledFailing], "webhook disabled for failing", "webhooks disabled for failing", disabled)
	to.askSince(since[disabledGone], "webhook answered 410 Gone", "webhooks answered 410 Gone", disabled)
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
		[]option{optListenAddr, optWebhookSecret, optSecretFile, optAnswer}, 0, webhookListen},
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
	fmt.Fprintf(e.stderr, "listening on http://%s; end with Ctrl-C\n", listener.Addr())
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

// webhookListener returns a receiver of webhooks, for people to see what arrives. It verifies each
// request with the secret, prints it to out as text, and answers with the status, or with 401 for
// one that does not verify, and 400, 405 or 413 for one that is no webhook. now is the clock that the
// times of webhooks are compared with.
func webhookListener(secret []byte, status int, out io.Writer, now func() time.Time) http.Handler {
	return &webhookReceiver{secret: secret, status: status, out: out, now: now}
}

// A webhookReceiver is the handler of webhookListener.
type webhookReceiver struct {
	secret []byte
	status int
	now    func() time.Time
	json   bool // print one JSON object a line

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
		text = got.block()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out.Write(text)
}

// block returns what was received for people, with an empty line at its end. Characters that could
// change the state of a terminal are replaced.
func (got *receivedWebhook) block() []byte {
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
