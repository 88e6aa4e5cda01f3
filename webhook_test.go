package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The type of an author who may read every event, for rules that are not about scopes.
var anAuthor = webhookAuthor{actor: actorCommand, has: func(string) bool { return true }}

// hookURL is an address that tests may name where loopback is admitted. Nothing is sent to it, since no
// service runs.
const hookURL = "http://127.0.0.1:9/hook"

// admitLoopback lets webhooks name addresses of this machine.
func admitLoopback(_ *storeOptions, o *serverOptions) {
	o.outboundAllow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
}

// addWebhook adds an enabled webhook to an account, as if it had answered its test.
func (s *service) addWebhook(account string, types ...string) (id string) {
	s.t.Helper()
	w := &webhook{AccountID: account, URL: hookURL, Types: types}
	s.change(func(t *tx) error { return createWebhook(t, w, anAuthor) })
	s.answerTest(w.ID)
	return w.ID
}

// answerTest does what the worker does when a webhook has accepted its test.
func (s *service) answerTest(id string) {
	s.t.Helper()
	s.sql(`UPDATE webhooks SET test_seq = NULL, state = iif(state = 'pending', 'enabled', state) WHERE id = ?`, id)
}

// addDelivery adds an attempt to send an event to a webhook; a nil status is one without an answer.
func (s *service) addDelivery(webhookID string, seq int, status *int) (id string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		e, err := t.eventBySeq(int64(seq))
		if err != nil {
			return err
		}
		d := &delivery{ID: t.newID("whd"), WebhookID: webhookID, EventID: e.ID, Type: e.Type, Attempt: 1,
			At: t.now, Status: status, Milliseconds: 12, eventSeq: e.seq}
		if status == nil {
			d.Error = ptr(outboundTimeout)
		}
		id = d.ID
		t.addDelivery(d)
		return nil
	})
	return id
}

// addEvents writes n events of a type in an account and returns the number of the last.
func (s *service) addEvents(account string, kind eventType, n int) (seq int) {
	s.t.Helper()
	s.change(func(t *tx) error {
		for range n {
			t.addEvent(event{Type: kind, AccountID: account, Actor: actorCommand})
		}
		return nil
	})
	return s.lastSeq()
}

// manyWebhooks is a statement that adds n webhooks to an account, given a time, their state and its reason.
func manyWebhooks(n int) string {
	return manyRows(n) + `
		INSERT INTO webhooks (id, account_id, url, types, made_by, created_at, updated_at, state, reason)
		SELECT printf('whe_0000000000000000000000%04d', i), ?, 'https://a.example/',
		'["lead.created"]', 'command', ?2, ?2, ?3, ?4 FROM n`
}

// lastSeq returns the number of the latest event.
func (s *service) lastSeq() int {
	s.t.Helper()
	return s.count(`SELECT coalesce(max(seq), 0) FROM events`)
}

// webhookRow returns a webhook as it is in the file.
func (s *service) webhookRow(id string) *webhook {
	s.t.Helper()
	w, err := s.store.webhook(anyAccount, id)
	s.check(err)
	return w
}

// members checks members of the body, given as names and values in turn; nil is one that is null or absent.
func (a answer) members(pairs ...any) answer {
	a.t.Helper()
	body := a.json()
	for i := 0; i < len(pairs); i += 2 {
		if got := body[pairs[i].(string)]; fmt.Sprint(got) != fmt.Sprint(pairs[i+1]) {
			a.t.Errorf("%s is %v, want %v: %s", pairs[i], got, pairs[i+1], a.body)
		}
	}
	return a
}

// hookAuth issues a token with webhooks:write and other scopes for the main account.
func (s *service) hookAuth(scopes ...string) string {
	s.t.Helper()
	return "Authorization: Bearer " + s.token(s.account, strings.Join(append(scopes, scopeWebhooks), " "))
}

// hookBody is the body of POST /webhooks.
func hookBody(types ...string) string {
	return string(encodeJSON(map[string]any{"url": hookURL, "types": types}))
}

func TestWebhook_addressWhoseHostCantBeReachedIs422AtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var asked atomic.Int64
	s.server.outbound.resolver = &net.Resolver{PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			asked.Add(1)
			return nil, errors.New("there is no name server")
		}}
	id := s.addWebhook(s.account, "lead.created")
	auth, without := s.hookAuth(scopeLeads), s.hookAuth()
	before := s.dump()
	const body = `{"url":"https://hooks.example.com/","types":["lead.created"]}`
	s.post("/webhooks", body, auth).is(422).names("#/url no_public_address")
	s.do("PATCH", "/webhooks/"+id, body, auth).is(422).names("#/url no_public_address")
	if asked.Load() == 0 {
		t.Error("nobody was asked for the host")
	}
	asked.Store(0)
	s.post("/webhooks", body, without).is(403)
	s.do("PATCH", "/webhooks/"+newID("whe", time.Now()), body, auth).is(404, "webhook_not_found")
	if asked.Load() != 0 {
		t.Error("a caller who is refused anyway has a host looked up")
	}
	s.unchanged(before)
}

// webhookCalls are the calls that change a webhook, make it send or show a secret, for which a caller
// must be permitted to read what the webhook gets.
func webhookCalls(id, delivery string) map[string][3]string {
	path := "/webhooks/" + id
	return map[string][3]string{
		"patch":         {"PATCH", path, `{"description":"mine"}`},
		"patch address": {"PATCH", path, `{"url":"http://127.0.0.1:10/"}`},
		"disable":       {"PATCH", path, `{"state":"disabled"}`},
		"test":          {"POST", path + "/test", `{}`},
		"enable":        {"POST", path + "/enable", `{}`},
		"rotate-secret": {"POST", path + "/rotate-secret", `{}`},
		"replay":        {"POST", path + "/replay", seatBody("since", newStamp(time.Now()))},
		"retry":         {"POST", path + "/deliveries/" + delivery + "/retry", `{}`},
	}
}

// Against a token with webhooks:write alone that would read what its other scopes deny, by a webhook of its own or
// by pointing another one at itself: a webhook's types need the reading scopes of whoever adds, changes, tests or
// replays it, or rotates its secret; another address drops what waits.
func TestWebhook_namesOnlyTypesThatItsMakerMayRead(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	for kind, scope := range map[eventType]string{
		eventLeadCreated: scopeLeads, eventLicenseCreated: scopeLicenses, eventDeviceActivated: scopeLicenses,
		eventTokenIssued: scopeEvents, eventWebhookCreated: scopeEvents, eventWidgetCreated: scopeEvents,
		eventBackupWritten: scopeEvents,
	} {
		others := slices.DeleteFunc([]string{scopeLeads, scopeLicenses, scopeEvents, scopeWriteLeads, scopeDevices,
			scopeStats},
			func(other string) bool { return other == scope })
		without, with := s.hookAuth(others...), s.hookAuth(scope)
		id := s.addWebhook(s.account, string(kind))
		delivery := s.addDelivery(id, s.addEvents(s.account, kind, 1), ptr(500))
		before := s.dump()
		s.post("/webhooks", hookBody(string(kind)), without).lacks(scope)
		for name, c := range webhookCalls(id, delivery) {
			if a := s.do(c[0], c[1], c[2], without); a.status != 403 {
				t.Errorf("%s: %s with other scopes: %d %s", kind, name, a.status, a.body)
			}
		}
		s.unchanged(before)
		s.get("/webhooks/"+id, without).is(200)
		s.get("/webhooks/"+id+"/deliveries", without).is(200)
		for _, c := range webhookCalls(id, delivery) {
			if c[2] != `{"state":"disabled"}` && c[2] != `{"url":"http://127.0.0.1:10/"}` {
				s.do(c[0], c[1], c[2], with).is(200)
			}
		}
		s.post("/webhooks", hookBody(string(kind)), with).is(200)
		s.do("DELETE", "/webhooks/"+id, "", without).is(204)
	}
	id, both := s.addWebhook(s.account, "lead.created"), s.hookAuth(scopeLeads)
	s.sql(`UPDATE webhooks SET types = '["nothing.there","license.created"]' WHERE id = ?`, id)
	s.do("PATCH", "/webhooks/"+id, `{"state":"disabled"}`, both).lacks(scopeEvents)
	s.do("PATCH", "/webhooks/"+id, `{"state":"disabled"}`, s.hookAuth(scopeEvents)).lacks(scopeLicenses)
}

// lacks checks that a call was refused for lack of a scope.
func (a answer) lacks(scope string) {
	a.t.Helper()
	a.challenged(403, "insufficient_scope", scopeChallenge(scope))
}

// TestWebhook_ofOthersIsNoWayToWhatACallerMayNotRead is about a token of the account that may write
// webhooks and read licences, and whose bearer wants the leads that another webhook gets.
func TestWebhook_ofOthersIsNoWayToWhatACallerMayNotRead(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	owner, curious := s.hookAuth(scopeLeads, scopeLicenses), s.hookAuth(scopeLicenses)
	const adds, rotates = "Idempotency-Key: owner-adds-a-hook", "Idempotency-Key: owner-rotates"
	id := s.post("/webhooks", hookBody("lead.created"), owner, adds).is(200).text("id")
	path := "/webhooks/" + id
	s.answerTest(id)
	seq := s.addEvents(s.account, eventLeadCreated, 1)
	lead := s.addDelivery(id, seq, ptr(500))
	s.change(func(t *tx) error { return t.retryNow(id, int64(seq)) })
	s.post(path+"/rotate-secret", "", owner, rotates).is(200)

	// It knows the Idempotency-Keys, and repeats the calls for their secrets.
	s.post("/webhooks", hookBody("lead.created"), curious, adds).is(403, "insufficient_scope")
	s.post(path+"/rotate-secret", "", curious, rotates).is(403, "insufficient_scope")
	s.post(path+"/rotate-secret", "", owner, rotates).is(200).has("Idempotency-Replayed: true")

	// It makes the webhook one that it may change, points it at itself, and has old leads sent again.
	s.do("PATCH", path, `{"types":["license.created"]}`, curious).is(200)
	s.do("PATCH", path, `{"url":"http://127.0.0.1:10/"}`, curious).is(200).members("state", "pending")
	s.counts(0, `SELECT count(*) FROM webhook_retries r JOIN webhook_queues q ON q.id = r.queue_id`)
	s.answerTest(id)
	s.post(path+"/deliveries/"+lead+"/retry", "", curious).lacks(scopeLeads)
	s.do("PATCH", path, `{"types":["license.created","lead.created"]}`, curious).is(403)
	s.counts(0, `SELECT count(*) FROM webhook_retries r JOIN webhook_queues q ON q.id = r.queue_id`)
	s.post(path+"/deliveries/"+lead+"/retry", "", owner).is(200)
}

func TestWebhook_ofAnAccountAre50EvenIfManyAreAddedAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	auth := s.hookAuth(scopeLeads)
	s.sql(manyWebhooks(45), s.account, newStamp(time.Now()), webhookPending, nil)
	answers := crowd(12, func(i int) answer {
		return s.post("/webhooks", hookBody("lead.created"), auth, fmt.Sprintf("Idempotency-Key: hook-number-%d", i))
	})
	equal(t, "answers", answers, map[int]int{200: 5, 409: 7})
	contains(t, s.must("status", "-json"), `"webhooks":{"disabled":0,"enabled":0,"pending":50}`)
	s.do("DELETE", "/webhooks/whe_00000000000000000000000001", "", auth).is(204)
	s.post("/webhooks", hookBody("lead.created"), auth).is(200)
	s.post("/webhooks", hookBody("lead.created"), auth).is(409, "webhook_limit_reached")
}

func TestStatus_countsWebhooksAndNamesThoseThatFail(t *testing.T) {
	t.Parallel()
	s := newService(t)
	now := newStamp(time.Now())
	closed := s.addAccount("closed")
	ids := map[string]string{}
	for _, c := range []struct {
		name, account, state string
		reason               *string
		failing              stamp
	}{
		{"fine", s.account, webhookEnabled, nil, stamp{}},
		{"failing an hour", s.account, webhookEnabled, nil, now.after(-time.Hour)},
		{"failing two days", s.account, webhookEnabled, nil, now.after(-days(2))},
		{"gone", s.account, webhookDisabled, ptr(disabledGone), stamp{}},
		{"failed", s.account, webhookDisabled, ptr(disabledFailing), stamp{}},
		{"disabled by its owner", s.account, webhookDisabled, ptr(disabledByOwner), stamp{}},
		{"of a closed account", closed, webhookDisabled, ptr(disabledGone), stamp{}},
	} {
		ids[c.name] = s.addWebhook(c.account, "lead.created")
		s.sql(`UPDATE webhooks SET state = ?, reason = ?, failing_since = ? WHERE id = ?`,
			c.state, c.reason, c.failing, ids[c.name])
	}
	s.must("account", "close", closed, "-force")
	about := func() (v map[string]any, lines []string) {
		s.check(json.Unmarshal([]byte(s.must("status", "-json")), &v))
		lines = slices.DeleteFunc(needsDoing(v), func(line string) bool { return !strings.Contains(line, "webhook") })
		slices.Sort(lines)
		return v, lines
	}
	v, lines := about()
	equal(t, "webhooks", fmt.Sprint(v["webhooks"]), "map[disabled:4 enabled:3 pending:0]")
	const disabled = ": 'widgetd webhook list -failing -state disabled'"
	updated := s.webhookRow(ids["gone"]).UpdatedAt.day()
	equal(t, "needs doing", lines, []string{
		"1 webhook answered 410 Gone since " + updated + disabled,
		"1 webhook disabled for failing since " + updated + disabled,
		"1 webhook fails since " + now.after(-days(2)).day() + ": 'widgetd webhook list -failing -state enabled'",
	})
	contains(t, s.must("status", "-wide"), "enabled 3, disabled 4\n")
	s.sql(`UPDATE webhooks SET state = ?, updated_at = ? WHERE id = ?`, webhookPending, now.after(-days(2)),
		ids["fine"])
	s.sql(`UPDATE webhooks SET state = ? WHERE id = ?`, webhookPending, ids["failing an hour"])
	_, lines = about()
	equal(t, "of those that wait for their test", lines[3], "1 webhook is pending since "+now.after(-days(2)).day()+
		", and gets nothing until it answers a test: 'widgetd webhook test "+ids["fine"]+"'")
	s.sql(`UPDATE webhooks SET state = ? WHERE state = ?`, webhookEnabled, webhookPending)
	s.sql(manyWebhooks(10), s.account, now, webhookDisabled, disabledGone)
	_, lines = about()
	equal(t, "needs doing", len(lines), 3)
	contains(t, lines[2], "11 webhooks answered 410 Gone since ")
}

// The vector of the Standard Webhooks specification's libraries.
const (
	vectorSecret    = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorTime = time.Unix(1614265330, 0)

// Against whoever copies the database who would sign webhooks: secrets are derived from the key file, and stored
// nowhere.
func TestWebhookSecret_isDerivedFromKeyFileWebhookAndRotation(t *testing.T) {
	t.Parallel()
	ring, other := &keyring{secret: make([]byte, 32)}, &keyring{secret: []byte(strings.Repeat("x", 32))}
	secret := webhookSecret(ring, "whk_1", 1)
	if got := formatWebhookSecret(secret); len(secret) != 32 ||
		got != "whsec_CfPIDTsy/guKHR7jjSTNLHDC3aHwbJ2hYe7SRTUT9zs=" {
		t.Errorf("the secret is %s: every partner would have to be told", got)
	}
	for name, different := range map[string][]byte{
		"key file": webhookSecret(other, "whk_1", 1),
		"webhook":  webhookSecret(ring, "whk_2", 1),
		"rotation": webhookSecret(ring, "whk_1", 2),
		"both":     webhookSecret(ring, "whk_", 11),
	} {
		if string(different) == string(secret) {
			t.Errorf("another %s has the same secret", name)
		}
	}
	if back, err := parseWebhookSecret(formatWebhookSecret(secret)); err != nil || string(back) != string(secret) {
		t.Errorf("parsed: %x, %v", back, err)
	}
}

// Against anybody with the address of a receiver who would forge or repeat a webhook: signatures over id, time and
// body; five minutes.
func TestWebhookVerification_takesWhatPublicLibrariesTake(t *testing.T) {
	t.Parallel()
	secret, _ := parseWebhookSecret(vectorSecret)
	other := webhookSecret(&keyring{secret: make([]byte, 32)}, "whk_1", 1)
	signedWith := func(secrets ...[]byte) string {
		return webhookHeaders(secrets, vectorID, vectorTime, []byte(vectorBody)).Get("webhook-signature")
	}
	const at, sent = "1614265330", vectorSignature
	const v1a = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
	for _, c := range []struct {
		name                    string
		id, at, signature, body string
		after                   time.Duration // when it is verified
		want                    error
	}{
		{"as it was sent", vectorID, at, sent, vectorBody, 0, nil},
		{"five minutes later", vectorID, at, sent, vectorBody, 5 * time.Minute, nil},
		{"five minutes before", vectorID, at, sent, vectorBody, -5 * time.Minute, nil},
		{"more than five minutes later", vectorID, at, sent, vectorBody, 301 * time.Second, errWebhookTooOld},
		{"more than five minutes before", vectorID, at, sent, vectorBody, -301 * time.Second, errWebhookTooNew},
		{"signed with two secrets, the second known", vectorID, at, signedWith(other, secret), vectorBody, 0, nil},
		{"signed with another secret", vectorID, at, signedWith(other), vectorBody, 0, errWebhookSignature},
		{"beside a signature of another version", vectorID, at, v1a + " " + sent, vectorBody, 0, nil},
		{"of another version only", vectorID, at, "v2," + sent[3:], vectorBody, 0, errWebhookSignature},
		{"without a version", vectorID, at, sent[3:], vectorBody, 0, errWebhookSignature},
		{"cut", vectorID, at, sent[:20], vectorBody, 0, errWebhookSignature},
		{"another body", vectorID, at, sent, vectorBody + " ", 0, errWebhookSignature},
		{"another id", "msg_2", at, sent, vectorBody, 0, errWebhookSignature},
		{"another time", vectorID, "1614265331", sent, vectorBody, 0, errWebhookSignature},
		{"a time with a sign", vectorID, "+" + at, sent, vectorBody, 0, errWebhookTimestamp},
		{"a time that is text", vectorID, "now", sent, vectorBody, 0, errWebhookTimestamp},
		{"a time beyond numbers", vectorID, "99999999999999999999", sent, vectorBody, 0, errWebhookTimestamp},
		{"the last time", vectorID, "9223372036854775807", sent, vectorBody, 0, errWebhookTooNew},
		{"the first time", vectorID, "-9223372036854775808", sent, vectorBody, 0, errWebhookTooOld},
		{"without an id", "", at, sent, vectorBody, 0, errWebhookHeaders},
		{"without a time", vectorID, "", sent, vectorBody, 0, errWebhookHeaders},
		{"without a signature", vectorID, at, "", vectorBody, 0, errWebhookHeaders},
	} {
		h := http.Header{webhookIDHeader: {c.id}, webhookTimestampHeader: {c.at}, webhookSignatureHeader: {c.signature}}
		if err := verifyWebhook(secret, h, []byte(c.body), vectorTime.Add(c.after)); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := verifyWebhook(secret, http.Header{}, []byte(vectorBody), vectorTime); err != errWebhookHeaders {
		t.Errorf("without headers: %v", err)
	}
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
	secret, err := parseWebhookSecret(vectorSecret)
	must(t, err)
	for _, c := range []struct {
		name    string
		method  string
		header  http.Header
		body    string
		code    int
		printed string // behind the time
	}{
		{"an event", "POST", nil, event, 204, lead + "verified; answered 204\n" + shown},
		{"another secret", "POST", other, event, 401, lead + forged + shown},
		{"an hour ago", "POST", old, event, 401,
			lead + "not verified: webhook-timestamp is more than five minutes ago; answered 401\n" + shown},
		{"no headers", "POST", http.Header{}, event, 400, "lead.created  -\nnot verified: " +
			"webhook-id, webhook-timestamp or webhook-signature is missing; answered 400\n" + shown},
		{"not JSON", "POST", nil, "a=b\x1b[31m\nc", 400,
			none + "verified, but the text is not a JSON object; answered 400\na=b\ufffd[31m\ufffdc\n\n"},
		{"no type", "POST", nil, "{}", 204, none + "verified; answered 204\n{}\n\n"},
		{"a terminal's control characters", "POST", nil, "{\"type\":\"\u202ea\\u001b\u009b\"}", 204,
			"\ufffda\ufffd\ufffd  evt_1\nverified; answered 204\n{\n  \"type\": \"\ufffda\\u001b\ufffd\"\n}\n\n"},
		{"nested to fill a disk", "POST", other, strings.Repeat(nested, 50), 401, none + forged + nested + "\n\n"},
		{"as large as it may be", "POST", other, strings.Repeat("x", 64<<10), 401, none + forged + x + "\n\n"},
		{"too large", "POST", nil, strings.Repeat("x", 64<<10+1), 413,
			none + "not verified: the body has more than 65536 bytes; answered 413\n" + x + "\n\n"},
		{"a browser", "GET", http.Header{}, "", 405,
			"-  -\nnot verified: a webhook is sent with POST; answered 405\n\n"},
	} {
		if c.header == nil {
			c.header = webhookHeaders([][]byte{secret}, "evt_1", vectorTime, []byte(c.body))
		}
		r, answer, out := httptest.NewRequest(c.method, "/in", strings.NewReader(c.body)), httptest.NewRecorder(),
			bytes.Buffer{}
		r.Header = c.header
		receiver := &webhookReceiver{secret: secret, status: 204, out: &out,
			now: func() time.Time { return vectorTime }}
		receiver.ServeHTTP(answer, r)
		printed := out.String()
		if answer.Code != c.code || printed != "2021-02-25T15:02:10Z  "+c.printed {
			t.Errorf("%s: %d, want %d, printed\n%q, want\n%q", c.name, answer.Code, c.code, printed, c.printed)
		}
		_, reason, _ := strings.Cut(c.printed, "\n")
		reason, _, _ = strings.Cut(reason, ";")
		if says := answer.Body.String(); c.code < 300 != (says == "") ||
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
