package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// receive sends a request to a receiver whose clock is that of the vector, and returns the answer and
// what was printed.
func receive(
	t *testing.T, status int, method string, header http.Header, body string,
) (answer *httptest.ResponseRecorder, printed string) {
	t.Helper()
	secret, err := parseWebhookSecret(vectorSecret)
	must(t, err)
	var out bytes.Buffer
	r := httptest.NewRequest(method, "/in", strings.NewReader(body))
	if header == nil {
		header = webhookHeaders([][]byte{secret}, "evt_1", vectorTime, []byte(body))
	}
	r.Header = header
	answer = httptest.NewRecorder()
	receiver := &webhookReceiver{secret: secret, status: status, out: &out,
		now: func() time.Time { return vectorTime }}
	receiver.ServeHTTP(answer, r)
	return answer, out.String()
}

func TestWebhookListener_printsAndAnswersWhatItGot(t *testing.T) {
	t.Parallel()
	const event = `{"id":"evt_1","type":"lead.created","data":{"lead_id":"led_1"}}`
	const shown = "{\n  \"id\": \"evt_1\",\n  \"type\": \"lead.created\",\n" +
		"  \"data\": {\n    \"lead_id\": \"led_1\"\n  }\n}\n\n"
	other := webhookHeaders([][]byte{make([]byte, 32)}, "evt_1", vectorTime, []byte(event))
	old := webhookHeaders([][]byte{make([]byte, 32)}, "evt_1", vectorTime.Add(-time.Hour), []byte(event))
	const lead, none, forged = "lead.created  evt_1\n", "-  evt_1\n",
		"not verified: no signature is of this id, time, body and secret; answered 401\n"
	x, nested := strings.Repeat("x", 1000), strings.Repeat(`{"a":`, 200)
	for _, c := range []struct {
		name    string
		method  string
		status  int
		header  http.Header
		body    string
		code    int
		printed string // behind the time
	}{
		{"an event", "POST", 204, nil, event, 204, lead + "verified; answered 204\n" + shown},
		{"an event to be sent again", "POST", 503, nil, event, 503, lead + "verified; answered 503\n" + shown},
		{"another secret", "POST", 204, other, event, 401, lead + forged + shown},
		{"an hour ago", "POST", 204, old, event, 401,
			lead + "not verified: webhook-timestamp is more than five minutes ago; answered 401\n" + shown},
		{"no headers", "POST", 204, http.Header{}, event, 400, "lead.created  -\nnot verified: " +
			"webhook-id, webhook-timestamp or webhook-signature is missing; answered 400\n" + shown},
		{"not JSON", "POST", 204, nil, "a=b\x1b[31m\nc", 400,
			none + "verified, but the text is not a JSON object; answered 400\na=b\ufffd[31m\ufffdc\n\n"},
		{"not JSON, and not verified", "POST", 204, other, x + "x", 401, none + forged + x + "\n\n"},
		{"no type", "POST", 204, nil, "{}", 204, none + "verified; answered 204\n{}\n\n"},
		{"a terminal's control characters", "POST", 204, nil, "{\"type\":\"\u202ea\\u001b\u009b\"}", 204,
			"\ufffda\ufffd\ufffd  evt_1\nverified; answered 204\n{\n  \"type\": \"\ufffda\\u001b\ufffd\"\n}\n\n"},
		{"nested to fill a disk", "POST", 204, other, strings.Repeat(nested, 50), 401, none + forged + nested + "\n\n"},
		{"as large as it may be", "POST", 204, other, strings.Repeat("x", 64<<10), 401, none + forged + x + "\n\n"},
		{"too large", "POST", 204, nil, strings.Repeat("x", 64<<10+1), 413,
			none + "not verified: the body has more than 65536 bytes; answered 413\n" + x + "\n\n"},
		{"a browser", "GET", 204, http.Header{}, "", 405,
			"-  -\nnot verified: a webhook is sent with POST; answered 405\n\n"},
	} {
		answer, printed := receive(t, c.status, c.method, c.header, c.body)
		if answer.Code != c.code || printed != "2021-02-25T15:02:10Z  "+c.printed {
			t.Errorf("%s: %d, want %d, printed\n%q, want\n%q", c.name, answer.Code, c.code, printed, c.printed)
		}
		_, reason, _ := strings.Cut(c.printed, "\n")
		reason, _, _ = strings.Cut(reason, ";")
		if says := answer.Body.String(); c.code < 300 != (says == "") && c.code != 503 ||
			!strings.Contains(reason, strings.TrimSpace(says)) {
			t.Errorf("%s: the answer says %q", c.name, says)
		}
		if allow := answer.Header().Get("Allow"); (allow == "POST") != (c.code == 405) {
			t.Errorf("%s: Allow %q", c.name, allow)
		}
	}
}

// A listening is a running 'widgetd webhook listen'.
type listening struct {
	base string
	out  runningLog
	stop func() error // ends it
}

// listenFor starts the command, which must then listen.
func listenFor(t testing.TB, o *operator, stdin string, args ...string) *listening {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &listening{}
	noted, stderr := io.Pipe()
	e := &env{ctx: ctx, getenv: func(name string) string { return o.env[name] }, stdin: strings.NewReader(stdin),
		stdout: &l.out, stderr: stderr,
		nouns: nouns(), commands: allCommands(), now: time.Now}
	ended := make(chan error, 1)
	go func() {
		ended <- e.dispatch(append([]string{"webhook", "listen", "-addr", "127.0.0.1:0"}, args...))
		stderr.Close()
	}()
	l.stop = func() error { cancel(); return <-ended }
	line, err := bufio.NewReader(noted).ReadString('\n')
	after, listens := strings.CutPrefix(line, "listening on ")
	if l.base, _, _ = strings.Cut(after, ";"); err != nil || !listens {
		t.Fatalf("it says %q, %v, and ended with %v", line, err, l.stop())
	}
	return l
}

// webhookListenStory is about a partner who tries webhooks out.
func webhookListenStory(t *testing.T, o *operator) {
	file := filepath.Join(o.dir, "secret")
	if err := os.WriteFile(file, []byte("whsec_"+vectorSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret, err := parseWebhookSecret(vectorSecret)
	must(t, err)
	const body = `{"id":"evt_1", "type":"lead.created"}`
	for name, c := range map[string]struct {
		variable, stdin string
		args            []string
		want            int
	}{
		"variable":       {"whsec_" + vectorSecret, "", nil, 204},
		"option":         {"", "", []string{"-secret", "whsec_" + vectorSecret}, 204},
		"file":           {"whsec_of another one", "", []string{"-secret-file", file, "-answer", "500"}, 500},
		"standard input": {"", vectorSecret, []string{"-secret-file", "-", "-json"}, 204},
	} {
		o.env["WIDGETD_SECRET"] = c.variable
		l := listenFor(t, o, c.stdin, c.args...)
		r, err := http.NewRequestWithContext(t.Context(), "POST", l.base, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = webhookHeaders([][]byte{secret}, "evt_1", time.Now(), []byte(body))
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s: %d", name, answer.StatusCode)
		}
		if err := l.stop(); err != nil {
			t.Errorf("%s: it ended with %v", name, err)
		}
		printed := l.out.String()
		if !strings.Contains(name, "standard") {
			if !strings.Contains(printed, "  lead.created  evt_1\nverified; answered ") ||
				strings.Contains(printed, vectorSecret) {
				t.Errorf("%s: it printed %s", name, printed)
			}
			continue
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(printed), &got); err != nil || strings.Count(printed, "\n") != 1 ||
			got["verified"] != true || got["type"] != "lead.created" ||
			got["id"] != "evt_1" || got["answered"] != 204.0 || got["reason"] != nil ||
			got["body"].(map[string]any)["id"] != "evt_1" || got["received_at"] == nil {
			t.Errorf("%s: it printed %s, %v", name, printed, err)
		}
	}
	delete(o.env, "WIDGETD_SECRET")
	o.fails("no such file", "webhook", "listen", "-secret-file", filepath.Join(o.dir, "none"))
	o.fails("choose another address with -addr", "webhook", "listen", "-secret-file", file, "-addr", "127.0.0.1:99999")
	noteCommand([]string{"webhook", "listen"}, nil)
}
