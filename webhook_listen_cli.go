package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

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
		help: "file that contains the webhook's secret; - is standard input"}
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
	case file != "" && e.values["secret"].given: // only the option: the variable may be set for other receivers
		return nil, usageError("-secret and -secret-file exclude each other")
	case file != "":
		from := io.NopCloser(e.stdin)
		if file != "-" {
			var err error
			if from, err = os.Open(file); err != nil {
				return nil, err
			}
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
