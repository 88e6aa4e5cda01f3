package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
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
		return t.addDelivery(d)
	})
	return id
}

// addEvents writes n events of a type in an account and returns the number of the last.
func (s *service) addEvents(account string, kind eventType, n int) (seq int) {
	s.t.Helper()
	s.change(func(t *tx) error {
		for range n {
			if err := t.addEvent(event{Type: kind, AccountID: account, Actor: actorCommand}); err != nil {
				return err
			}
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

// queue returns the queue of a webhook: "sent 5", with a replay "sent 5, replays 2 to 5", or "none".
func (s *service) queue(id string) (text string) {
	s.t.Helper()
	err := s.store.one(`SELECT 'sent ' || sent_seq || coalesce(', replays ' || replay_seq || ' to ' || replay_end, '')
		FROM webhook_queues WHERE webhook_id = ?`, []any{id}, &text)
	if errors.Is(err, errNotFound) {
		return "none"
	}
	s.check(err)
	return text
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

// queueIs checks the queue of a webhook.
func (s *service) queueIs(id, want string) {
	s.t.Helper()
	if got := s.queue(id); got != want {
		s.t.Errorf("queue %s, want %s", got, want)
	}
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

func TestWebhook_isAddedChangedAndRemovedAndItsSecretShownOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	auth := s.hookAuth(scopeLeads, scopeLicenses)
	after := s.lastSeq()
	added := s.post("/webhooks", `{"url":"HTTP://127.0.0.1:9/hook","types":["lead.created","license.created"],`+
		`"description":"Our CRM"}`, auth).is(200)
	w := s.webhookRow(added.text("id"))
	secret := formatWebhookSecret(webhookSecret(s.keys, w.ID, 1))
	shown := fmt.Sprintf(`{"id":%q,"account_id":%q,"url":"http://127.0.0.1:9/hook",`+
		`"types":["lead.created","license.created"],"description":"Our CRM","state":"pending","reason":null,`+
		`"failing_since":null,"secret_rotated_at":null,"replaying":false,"made_by":%q,"app_id":null,`+
		`"created_at":%q,"updated_at":%q`, w.ID, s.account, w.MadeBy, w.CreatedAt, w.UpdatedAt)
	if want := shown + `,"secret":"` + secret + `"}` + "\n"; added.body != want {
		t.Fatalf("added %s, want %s", added.body, want)
	}
	if !strings.HasPrefix(w.MadeBy, "token tok_") || w.TestSeq != int64(s.lastSeq()) {
		t.Errorf("made by %q, test %d of %d", w.MadeBy, w.TestSeq, s.lastSeq())
	}
	path := "/webhooks/" + w.ID
	if a := s.get(path, auth).is(200); a.body != shown+"}\n" {
		t.Errorf("shown %s, want %s", a.body, shown)
	}
	if a := s.get("/webhooks", auth).is(200); a.body != `{"data":[`+shown+`}],"next_cursor":null}`+"\n" {
		t.Errorf("listed %s", a.body)
	}
	s.answerTest(w.ID)
	s.do("PATCH", path, `{"types":["license.created"],"description":null}`, auth).is(200).
		members("state", "enabled", "description", nil, "types", "[license.created]", "secret", nil)
	before := s.dump()
	s.do("PATCH", path, `{"types":["license.created"],"url":"http://127.0.0.1:9/hook","description":""}`, auth).is(200)
	s.unchanged(before)
	if a := s.do("DELETE", path, "", auth).is(204); a.body != "" {
		t.Errorf("removing answered %q", a.body)
	}
	s.get(path, auth).is(404, "webhook_not_found")
	s.do("DELETE", path, "", auth).is(404, "webhook_not_found")
	line := func(kind, data string) string {
		return kind + " " + w.MadeBy + " " + s.account + " " + w.ID + " " + data
	}
	want := []string{
		line("webhook.created", `{"types":"lead.created license.created"}`),
		line("webhook.test", `{}`),
		line("webhook.updated", `{"changed":"description types","types":"license.created"}`),
		line("webhook.removed", `{}`),
	}
	if got := s.audit(after); !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestWebhook_membersThatAreWrongAreAllNamed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addWebhook(s.account, "lead.created")
	auth := s.hookAuth(scopeLeads)
	before := s.dump()
	for body, wrong := range map[string][]string{
		`{}`: {"#/url required", "#/types required"},
		`{"url":7,"types":"lead.created","description":8}`: {
			"#/url wrong_type", "#/types wrong_type", "#/description wrong_type"},
		`{"url":"https://u:p@hooks.example.com/","types":[]}`: {"#/url userinfo_not_allowed", "#/types wrong_length"},
		`{"url":"http://hooks.example.com/","types":["lead.created","lead.created"]}`: {
			"#/url scheme_not_allowed", "#/types/1 repeated"},
		`{"url":"https://10.0.0.1/","types":["lead.created","x",7,"","webhook.test"]}`: {
			"#/url ip_address_not_allowed", "#/types/2 wrong_type", "#/types/3 empty", "#/types/1 unknown_value",
			"#/types/4 unknown_value"},
		`{"url":"https://hooks.example.com/#a","types":["Lead.Created"],"description":"` + strings.Repeat("x",
			201) + `"}`: {
			"#/url fragment_not_allowed", "#/types/0 unknown_value", "#/description too_long"},
		`{"url":"","types":null,"description":null}`: {"#/url empty", "#/types wrong_type", "#/description wrong_type"},
		`{"url":"https://hooks.example.com/","types":["` +
			strings.Repeat(`lead.created","`, len(eventTypesOf(nouns()))) + `lead.created"]}`: {"#/types wrong_length"},
	} {
		s.post("/webhooks", body, auth).is(422, "validation_failed").names(wrong...)
	}
	for body, wrong := range map[string][]string{
		`{"url":null,"types":null,"state":null}`:  {"#/url wrong_type", "#/types wrong_type", "#/state wrong_type"},
		`{"url":"","types":[],"state":"enabled"}`: {"#/url empty", "#/types wrong_length", "#/state unknown_value"},
		`{"state":"pending"}`:                     {"#/state unknown_value"},
	} {
		a := s.do("PATCH", "/webhooks/"+id, body, auth).is(422, "validation_failed").names(wrong...)
		if strings.HasSuffix(wrong[len(wrong)-1], "unknown_value") &&
			!strings.Contains(a.body, "POST /webhooks/{id}/enable enables") {
			t.Errorf("%s: %s does not name the next step", body, a.body)
		}
	}
	s.post("/webhooks/"+id+"/replay", `{}`, auth).is(422).names("#/since required")
	s.post("/webhooks/"+id+"/replay", `{"since":"yesterday"}`, auth).is(422).names("#/since invalid_time")
	s.get("/webhooks?acount_id=x", auth).is(422).names("?acount_id unknown_parameter")
	s.get("/webhooks/"+id+"/deliveries?outcome=lost&event_id=7&cursor=whe_1", auth).is(422).
		names("?event_id invalid_id", "?outcome unknown_value", "?cursor invalid_cursor")
	s.unchanged(before)
}

func TestWebhook_addressWhoseHostCantBeReachedIs422AtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	asked := 0
	s.server.outbound.resolver = &net.Resolver{PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			asked++
			return nil, errors.New("there is no name server")
		}}
	id := s.addWebhook(s.account, "lead.created")
	auth, without := s.hookAuth(scopeLeads), s.hookAuth()
	before := s.dump()
	const body = `{"url":"https://hooks.example.com/","types":["lead.created"]}`
	s.post("/webhooks", body, auth).is(422).names("#/url no_public_address")
	s.do("PATCH", "/webhooks/"+id, body, auth).is(422).names("#/url no_public_address")
	if asked == 0 {
		t.Error("nobody was asked for the host")
	}
	asked = 0
	s.post("/webhooks", body, without).is(403)
	s.do("PATCH", "/webhooks/"+newID("whe", time.Now()), body, auth).is(404, "webhook_not_found")
	if asked != 0 {
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

func TestWebhook_namesOnlyTypesThatItsMakerMayRead(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	for kind, scope := range map[eventType]string{
		eventLeadCreated: scopeLeads, eventLicenseCreated: scopeLicenses, eventDeviceActivated: scopeLicenses,
		eventTokenIssued: scopeEvents, eventWebhookCreated: scopeEvents, eventWidgetCreated: scopeEvents,
		eventBackupWritten: scopeEvents,
	} {
		others := slices.DeleteFunc([]string{scopeLeads, scopeLicenses, scopeEvents, scopeErase, scopeDevices,
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
	both := s.hookAuth(scopeLeads)
	id := s.addWebhook(s.account, "lead.created", "license.created")
	s.do("PATCH", "/webhooks/"+id, `{"types":["lead.created","license.created"]}`, both).lacks(scopeLicenses)
	s.do("PATCH", "/webhooks/"+id, `{"types":["lead.created"]}`, both).is(200) // judged by what results
	s.do("PATCH", "/webhooks/"+id, `{"types":["lead.created","device.activated"]}`, both).lacks(scopeLicenses)
	s.sql(`UPDATE webhooks SET types = '["nothing.there","license.created"]' WHERE id = ?`, id)
	s.do("PATCH", "/webhooks/"+id, `{"state":"disabled"}`, both).lacks(scopeEvents)
	s.do("PATCH", "/webhooks/"+id, `{"state":"disabled"}`, s.hookAuth(scopeEvents)).lacks(scopeLicenses)
	s.post("/webhooks", hookBody("lead.created", "license.created", "token.issued"),
		"Authorization: Bearer "+s.token(s.account, scopeAdmin)).is(200).members("made_by", "operator")
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
	s.countsAs(0, "leads that waited for the address before are sent to the new one",
		`SELECT count(*) FROM webhook_retries r JOIN webhook_queues q ON q.id = r.queue_id`)
	s.answerTest(id)
	s.post(path+"/deliveries/"+lead+"/retry", "", curious).lacks(scopeLeads)
	s.do("PATCH", path, `{"types":["license.created","lead.created"]}`, curious).is(403)
	s.countsAs(0, "leads are to be sent",
		`SELECT count(*) FROM webhook_retries r JOIN webhook_queues q ON q.id = r.queue_id`)
	s.post(path+"/deliveries/"+lead+"/retry", "", owner).is(200)
}

func TestWebhook_ofAnAccountAre50EvenIfManyAreAddedAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	auth := s.hookAuth(scopeLeads)
	s.sql(manyWebhooks(45), s.account, newStamp(time.Now()), webhookPending, nil)
	var calls sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]int{}
	for i := range 12 {
		calls.Go(func() {
			a := s.post("/webhooks", hookBody("lead.created"), auth, fmt.Sprintf("Idempotency-Key: hook-number-%d", i))
			mu.Lock()
			defer mu.Unlock()
			answers[fmt.Sprint(a.status, " ", a.json()["code"])]++
		})
	}
	calls.Wait()
	if len(answers) != 2 || answers["200 <nil>"] != 5 || answers["409 webhook_limit_reached"] != 7 {
		t.Errorf("answers %v", answers)
	}
	s.countsAs(maxWebhooks, "webhooks", `SELECT count(*) FROM webhooks WHERE account_id = ?`, s.account)
	other := s.addAccount("another")
	s.post("/webhooks?account_id="+other, hookBody("lead.created"),
		s.portalToken(s.account, scopeWebhooks+" "+scopeLeads)).is(200)
	s.do("DELETE", "/webhooks/whe_00000000000000000000000001", "", auth).is(204)
	s.post("/webhooks", hookBody("lead.created"), auth).is(200)
	s.post("/webhooks", hookBody("lead.created"), auth).is(409, "webhook_limit_reached")
	ids, _ := s.everyPage("/webhooks?limit=20", auth)
	newestFirst := func(a, b any) int { return strings.Compare(b.(string), a.(string)) }
	if len(ids) != maxWebhooks || !slices.IsSortedFunc(ids, newestFirst) {
		t.Errorf("pages have %d: %v", len(ids), ids)
	}
}

func TestWebhook_ofAnotherAccountIsNotThere(t *testing.T) {
	t.Parallel()
	f := newExampleFixture(t)
	webhook, delivery := f.real[exampleOf(t, "webhook_id")], f.real[exampleOf(t, "delivery_id")]
	stranger := "Authorization: Bearer " + f.token(f.addAccount("stranger"), allScopes)
	before := f.dump()
	calls := webhookCalls(webhook, delivery)
	delete(calls, "patch address") // loopback is not admitted here
	calls["show"] = [3]string{"GET", "/webhooks/" + webhook}
	calls["remove"] = [3]string{"DELETE", "/webhooks/" + webhook}
	calls["deliveries"] = [3]string{"GET", "/webhooks/" + webhook + "/deliveries"}
	for name, c := range calls {
		theirs := f.do(c[0], c[1], c[2], stranger)
		unknown := f.do(c[0], strings.Replace(c[1], webhook, newID("whe", time.Now()), 1), c[2], stranger)
		if theirs.status != 404 || theirs.text("code") != "webhook_not_found" ||
			theirs.text("detail") != unknown.text("detail") || theirs.status != unknown.status {
			t.Errorf("%s: %s, of an unknown one %s", name, theirs.body, unknown.body)
		}
		f.do(c[0], c[1]+"?account_id="+f.account, c[2], stranger).is(403, "insufficient_scope")
	}
	if ids, _ := pageOf(f.get("/webhooks", stranger)); len(ids) != 0 {
		t.Errorf("a stranger lists %v", ids)
	}
	f.unchanged(before)
}

func TestWebhook_isOfTheAccountThatATokenForAllAccountsNames(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	second := s.addAccount("second")
	portal := s.portalToken(s.account, scopeWebhooks+" "+scopeLeads)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	body := hookBody("lead.created")
	const key = "Idempotency-Key: portal-adds-a-hook"
	first := s.post("/webhooks?account_id="+second, body, portal, key).is(200).members("account_id", second)
	s.post("/webhooks?account_id="+second, body, portal, key).is(200).has("Idempotency-Replayed: true")
	before := s.dump()
	s.post("/webhooks", body, portal, key).is(422, "idempotency_key_reused") // of another account
	s.unchanged(before)
	s.post("/webhooks", body, admin).is(200).members("account_id", s.account)
	path := "/webhooks/" + first.text("id")
	s.get(path, portal).is(404, "webhook_not_found")
	s.post(path+"/test?account_id="+second, "", portal).is(200)
	s.post(path+"/test", "", admin).is(200)
	if ids, _ := pageOf(s.get("/webhooks", admin)); len(ids) != 2 {
		t.Errorf("an operator lists %v", ids)
	}
	s.post("/webhooks?account_id="+newID("acct", time.Now()), body, portal).is(404, "account_not_found")
	s.must("account", "close", second, "-force")
	s.post("/webhooks?account_id="+second, body, portal).is(404, "account_not_found")
	s.get(path+"?account_id="+second, portal).is(404, "account_not_found")
	s.get(path+"?account_id="+second, admin).is(200)
}

func TestWebhook_isEnabledByATestOnly(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	auth := s.hookAuth(scopeLeads)
	path := "/webhooks/" + s.post("/webhooks", hookBody("lead.created"), auth).is(200).text("id")
	id := strings.TrimPrefix(path, "/webhooks/")
	first := s.webhookRow(id).TestSeq

	// While a test is still to be sent, another one is that one.
	before := s.dump()
	test := s.post(path+"/test", "", auth).is(200).text("event_id")
	e, err := s.store.eventBySeq(first)
	if err != nil || e.ID != test || e.Type != eventWebhookTest || e.SubjectID != id {
		t.Errorf("test %s, event %+v, %v", test, e, err)
	}
	s.post(path+"/enable", "", auth).is(200).members("state", "pending")
	s.unchanged(before)
	s.answerTest(id)
	s.queueIs(id, fmt.Sprint("sent ", s.lastSeq()))
	before = s.dump()
	s.post(path+"/enable", "", auth).is(200).members("state", "enabled")
	s.unchanged(before)
	if again := s.post(path+"/test", "", auth).is(200).text("event_id"); again == test ||
		s.webhookRow(id).TestSeq != int64(s.lastSeq()) || s.webhookRow(id).State != webhookEnabled {
		t.Errorf("another test %s, row %+v", again, s.webhookRow(id))
	}

	// Another address has to answer a test of its own, also while one is still to be sent.
	waiting := s.webhookRow(id).TestSeq
	s.do("PATCH", path, `{"url":"http://127.0.0.1:10/"}`, auth).is(200)
	if w := s.webhookRow(id); w.State != webhookPending || w.TestSeq <= waiting || s.queue(id) != "none" {
		t.Errorf("with another address it is %+v, queue %s", w, s.queue(id))
	}

	// Disabled it can be tested, and stays disabled.
	s.do("PATCH", path, `{"state":"disabled"}`, auth).is(200).members("state", "disabled", "reason", "owner")
	if s.webhookRow(id).TestSeq != 0 {
		t.Error("the test is still to be sent")
	}
	before = s.dump()
	s.do("PATCH", path, `{"state":"disabled"}`, auth).is(200)
	s.unchanged(before)
	s.post(path+"/test", "", auth).is(200)
	if w := s.webhookRow(id); w.State != webhookDisabled || w.TestSeq != int64(s.lastSeq()) {
		t.Errorf("tested it is %+v", w)
	}
	s.answerTest(id)
	s.post(path+"/enable", "", auth).is(200).members("state", "pending", "reason", nil)
	s.queueIs(id, "none")
	if w := s.webhookRow(id); w.TestSeq != int64(s.lastSeq()) {
		t.Errorf("row %+v", w)
	}

	// Another address of a disabled one is tested too, unless the same change disables it.
	s.do("PATCH", path, `{"url":"http://127.0.0.1:11/","state":"disabled"}`, auth).is(200)
	if w := s.webhookRow(id); w.State != webhookDisabled || w.TestSeq != 0 {
		t.Errorf("with another address and disabled it is %+v", w)
	}
	s.do("PATCH", path, `{"url":"http://127.0.0.1:12/"}`, auth).is(200)
	if w := s.webhookRow(id); w.State != webhookPending || w.Reason != nil || w.TestSeq != int64(s.lastSeq()) {
		t.Errorf("with another address it is %+v", w)
	}
	kinds := []string{}
	for _, line := range s.audit(0) {
		if kind, _, _ := strings.Cut(line, " "); strings.HasPrefix(kind, "webhook.") {
			_, data, _ := strings.Cut(line, id+" ")
			kinds = append(kinds, kind+" "+data)
		}
	}
	want := []string{
		`webhook.created {"types":"lead.created"}`, `webhook.test {}`, `webhook.test {}`,
		`webhook.updated {"changed":"state url"}`, `webhook.test {}`, `webhook.disabled {"reason":"owner"}`,
		`webhook.test {}`, `webhook.updated {"changed":"state"}`, `webhook.test {}`,
		`webhook.disabled {"reason":"owner"}`, `webhook.updated {"changed":"url"}`,
		`webhook.updated {"changed":"state url"}`, `webhook.test {}`,
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(kinds, "\n"), strings.Join(want, "\n"))
	}
}

func TestWebhook_secretIsRotatedAndTheOneBeforeSignsForADay(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addWebhook(s.account, "lead.created")
	auth := s.hookAuth(scopeLeads)
	secretsAt := func(after time.Duration) (all []string) {
		w := s.webhookRow(id)
		for _, secret := range w.secrets(s.keys, w.RotatedAt.Add(after)) {
			all = append(all, formatWebhookSecret(secret))
		}
		return all
	}
	numbered := func(n int) string { return formatWebhookSecret(webhookSecret(s.keys, id, n)) }
	if all := secretsAt(time.Hour); !slices.Equal(all, []string{numbered(1)}) {
		t.Errorf("a new one has %d secrets", len(all))
	}
	const key = "Idempotency-Key: rotate-it-once"
	a := s.post("/webhooks/"+id+"/rotate-secret", "", auth, key).is(200)
	at := s.webhookRow(id).RotatedAt
	a.members("secret", numbered(2), "previous_secret_until", at.after(days(1)), "secret_rotated_at", at)
	s.post("/webhooks/"+id+"/rotate-secret", "", auth, key).is(200).has("Idempotency-Replayed: true").
		members("secret", numbered(2))
	if all := secretsAt(days(1) - time.Second); !slices.Equal(all, []string{numbered(2), numbered(1)}) {
		t.Errorf("within a day %d secrets sign", len(all))
	}
	if all := secretsAt(days(1)); !slices.Equal(all, []string{numbered(2)}) {
		t.Errorf("after a day %d secrets sign", len(all))
	}
	s.post("/webhooks/"+id+"/rotate-secret", "", auth).is(200)
	if all := secretsAt(0); !slices.Equal(all, []string{numbered(3), numbered(2)}) {
		t.Errorf("after two rotations %d secrets sign, the first among them: %v", len(all),
			slices.Contains(all, numbered(1)))
	}
	if w := s.webhookRow(id); w.State != webhookEnabled || s.queue(id) == "none" {
		t.Errorf("rotating makes it %s", w.State)
	}
	s.countsAs(2, "events",
		`SELECT count(*) FROM events WHERE type = 'webhook.secret_rotated' AND subject_id = ? AND data = '{}'`, id)
}

func TestWebhook_replaysTheEventsSinceATime(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.hookAuth(scopeLeads)
	id := s.addWebhook(s.account, "lead.created")
	path := "/webhooks/" + id + "/replay"
	last := s.addEvents(s.account, eventLeadCreated, 8)
	now := newStamp(time.Now())
	s.sql(`UPDATE events SET at = ? WHERE seq <= ?`, now.after(-days(9)), last-6)
	s.sql(`UPDATE events SET at = ? WHERE seq > ? AND seq <= ?`, now.after(-days(5)), last-6, last-3)
	s.sql(`UPDATE webhook_queues SET sent_seq = ?`, last-1)
	since := func(at stamp) string { return `{"since":"` + at.String() + `"}` }
	s.post(path, since(now.after(-days(1))), auth).is(200).members("replaying", true)
	s.queueIs(id, fmt.Sprintf("sent %d, replays %d to %d", last-1, last-3, last-1))
	// Another one while it runs: both together.
	const key = "Idempotency-Key: replay-these-days"
	s.post(path, since(now.after(-days(6))), auth, key).is(200)
	s.queueIs(id, fmt.Sprintf("sent %d, replays %d to %d", last-1, last-6, last-1))
	s.post(path, since(now.after(-days(6))), auth, key).is(200).has("Idempotency-Replayed: true")
	s.sql(`UPDATE webhook_queues SET sent_seq = ?`, last)
	s.post(path, since(now.after(-days(1))), auth).is(200)
	s.queueIs(id, fmt.Sprintf("sent %d, replays %d to %d", last, last-6, last))
	s.countsAs(1, "events of the replay",
		`SELECT count(*) FROM events WHERE type = 'webhook.replayed' AND json_extract(data, '$.since') = ?`,
		now.after(-days(6)))
	// Where there is nothing to replay, none begins.
	s.sql(`UPDATE webhook_queues SET replay_seq = NULL, replay_end = NULL`)
	s.post(path, since(now.after(30*time.Second)), auth).is(200).members("replaying", false)
	s.queueIs(id, fmt.Sprint("sent ", last))
	s.post(path, since(now.after(-days(30)+time.Minute)), auth).is(200)
	s.queueIs(id, fmt.Sprintf("sent %d, replays 0 to %d", last, last))
	before := s.dump()
	s.post(path, since(now.after(-days(30)-time.Hour)), auth).is(422).names("#/since out_of_range")
	s.post(path, since(now.after(time.Hour)), auth).is(422).names("#/since out_of_range")
	s.unchanged(before)
	for _, state := range []string{webhookDisabled, webhookPending} {
		s.sql(`UPDATE webhooks SET state = ?`, state)
		s.post(path, since(now), auth).is(409, "webhook_not_enabled")
	}
}

func TestWebhook_deliveryIsRetriedAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.hookAuth(scopeLeads)
	id, other := s.addWebhook(s.account, "lead.created"), s.addWebhook(s.account, "lead.created")
	seq := s.addEvents(s.account, eventLeadCreated, 1)
	failed, succeeded := s.addDelivery(id, seq, ptr(500)), s.addDelivery(id, seq, ptr(204))
	waits := func(want string) {
		s.t.Helper()
		var text string
		s.check(s.store.one(`SELECT coalesce(group_concat(r.event_seq || ' after ' || r.attempts ||
			iif(r.due_at <= ?, '', ', later')), '')
			FROM webhook_retries r JOIN webhook_queues q ON q.id = r.queue_id WHERE q.webhook_id = ?`,
			[]any{newStamp(time.Now()), id}, &text))
		if text != want {
			t.Errorf("%q waits, want %q", text, want)
		}
	}
	retry := func(hook, delivery string) answer {
		return s.post("/webhooks/"+hook+"/deliveries/"+delivery+"/retry", "", auth)
	}
	e, err := s.store.eventBySeq(int64(seq))
	s.check(err)
	retry(id, failed).is(200).members("event_id", e.ID)
	waits(fmt.Sprint(seq, " after 0"))
	s.sql(`UPDATE webhook_retries SET attempts = 3, due_at = ?`, newStamp(time.Now()).after(time.Hour))
	retry(id, succeeded).is(200)
	waits(fmt.Sprint(seq, " after 3"))
	if got := s.audit(s.lastSeq() - 1); len(got) != 1 || !strings.HasSuffix(got[0],
		s.account+" "+id+` {"delivery_id":"`+succeeded+`","event_id":"`+e.ID+`"}`) ||
		!strings.HasPrefix(got[0], "webhook.retried token ") {
		t.Errorf("event %q", got)
	}
	retry(other, failed).is(404, "delivery_not_found")
	retry(id, newID("whd", time.Now())).is(404, "delivery_not_found")

	// A test's delivery is tested again, whatever the state.
	s.post("/webhooks/"+id+"/test", "", auth).is(200)
	test := s.addDelivery(id, s.lastSeq(), nil)
	s.answerTest(id)
	s.do("PATCH", "/webhooks/"+id, `{"state":"disabled"}`, auth).is(200)
	if a := retry(id, test).is(200); s.webhookRow(id).TestSeq != int64(s.lastSeq()) || a.text("event_id") == "" {
		t.Errorf("retry answers %s, row %+v", a.body, s.webhookRow(id))
	}
	before := s.dump()
	retry(id, failed).is(409, "webhook_not_enabled")
	s.unchanged(before)
	s.sql(`UPDATE webhooks SET state = 'enabled' WHERE id = ?`, id)
	s.sql(`DELETE FROM events WHERE seq = ?`, seq)
	retry(id, failed).is(404, "delivery_not_found")
	waits("")
}

func TestWebhook_deliveriesAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.hookAuth()
	id, other := s.addWebhook(s.account, "lead.created"), s.addWebhook(s.account, "lead.created")
	first := s.addEvents(s.account, eventLeadCreated, 2) - 1
	path := "/webhooks/" + id + "/deliveries"
	if a := s.get(path, auth).is(200); a.body != `{"data":[],"next_cursor":null}`+"\n" {
		t.Errorf("none: %s", a.body)
	}
	s.addDelivery(other, first, ptr(200))
	a, b := s.addDelivery(id, first, nil), s.addDelivery(id, first, ptr(302))
	c, d := s.addDelivery(id, first, ptr(200)), s.addDelivery(id, first+1, ptr(299))
	all := slices.Sorted(slices.Values([]string{a, b, c, d})) // ids of one millisecond come in any order
	slices.Reverse(all)
	e, err := s.store.eventBySeq(int64(first))
	s.check(err)
	same := func(ids []string) []string { slices.Sort(ids); return ids }
	for query, want := range map[string][]string{
		"?limit=200": all, "?outcome=succeeded": {c, d}, "?outcome=failed": {a, b}, "?event_id=" + e.ID: {a, b, c},
		"?outcome=failed&event_id=" + newID("evt", time.Now()): nil, "?outcome=succeeded&event_id=" + e.ID: {c},
	} {
		ids, next := pageOf(s.get(path+query, auth))
		if want := slices.Clone(want); !slices.Equal(same(ids), same(want)) || next != "" {
			t.Errorf("%s: %v, want %v, next %q", query, ids, want, next)
		}
	}
	if ids, _ := s.everyPage(path+"?limit=1", auth); fmt.Sprint(ids) != fmt.Sprint(all) {
		t.Errorf("pages have %v, want %v", ids, all)
	}
	row, err := s.store.delivery(id, a)
	s.check(err)
	want := fmt.Sprintf(`{"id":%q,"webhook_id":%q,"event_id":%q,"type":"lead.created","attempt":1,"at":%q,`+
		`"outcome":"failed","status":null,"error":"timeout","duration_ms":12,"answer":null,"next_attempt_at":null}`,
		a, id, e.ID, row.At)
	if page := s.get(path, auth).is(200); !strings.Contains(page.body, want) {
		t.Errorf("page %s\nlacks %s", page.body, want)
	}
	s.sql(`UPDATE deliveries SET error = NULL, status = 503, answer = 'busy', next_at = at, attempt = 2 WHERE id = ?`,
		a)
	if page := s.get(path, auth).is(200); !strings.Contains(page.body,
		`"attempt":2,"at":"`+row.At.String()+`","outcome":"failed","status":503,"error":null,`+
			`"duration_ms":12,"answer":"busy","next_attempt_at":"`+row.At.String()+`"}`) {
		t.Errorf("page %s", page.body)
	}
}

func TestWebhook_whoseRowAnOperatorEditsHasItsQueueWithIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addWebhook(s.account, "lead.created")
	queueNumber := func() (n int) {
		return s.count(`SELECT coalesce(max(id), 0) FROM webhook_queues WHERE webhook_id = ?`, id)
	}
	first := queueNumber()
	s.change(func(t *tx) error { return t.retryNow(id, 1) })
	s.sql(`UPDATE webhooks SET state = 'disabled', reason = 'owner' WHERE id = ?`, id)
	s.queueIs(id, "none")
	last := s.addEvents(s.account, eventLeadCreated, 3)
	s.sql(`UPDATE webhooks SET state = 'enabled', reason = NULL WHERE id = ?`, id)
	s.queueIs(id, fmt.Sprint("sent ", last))
	second := queueNumber()
	if second <= first {
		t.Errorf("enabled it has the queue %d, want one after %d", second, first)
	}
	s.sql(`UPDATE webhooks SET state = 'enabled', description = 'x' WHERE id = ?`, id)
	if queueNumber() != second {
		t.Error("enabling it again gives it another queue")
	}
	auth := s.hookAuth(scopeLeads)
	s.get("/webhooks/"+id, auth).is(200).members("description", "x")
	s.sql(`DELETE FROM webhooks WHERE id = ?`, id)
	s.countsAs(0, "queues of no webhook", `SELECT count(*) FROM webhook_queues`)
	s.get("/webhooks/"+id, auth).is(404, "webhook_not_found")

	// What no call would have written is answered all the same.
	odd := s.addWebhook(s.account, "lead.created")
	s.sql(`UPDATE webhooks SET url = 'http://%zz://', types = '["no.such"]', reason = 'because', made_by = ''
		WHERE id = ?`, odd)
	if host := s.webhookRow(odd).host(); host != "" {
		t.Errorf("host %q", host)
	}
	s.must("webhook", "list")
	s.must("webhook", "show", odd)
	s.sql(`DELETE FROM webhook_queues`)
	seq := s.addEvents(s.account, eventLeadCreated, 1)
	s.post("/webhooks/"+odd+"/deliveries/"+s.addDelivery(odd, seq, nil)+"/retry", "",
		s.hookAuth(scopeLeads, scopeEvents)).is(409, "webhook_not_enabled")
}

func TestWebhook_eventOfAnotherAccountIsNotRetried(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := s.addWebhook(s.account, "lead.created")
	delivery := s.addDelivery(id, s.addEvents(s.account, eventLeadCreated, 1), ptr(500))
	second := s.addAccount("second")
	s.sql(`UPDATE webhooks SET account_id = ? WHERE id = ?`, second, id) // as in the sqlite3 shell
	auth := "Authorization: Bearer " + s.token(second, scopeWebhooks+" "+scopeLeads)
	s.post("/webhooks/"+id+"/deliveries/"+delivery+"/retry", "", auth).is(404, "delivery_not_found")
}

func TestQuery_aboutWebhooksReadsNoMoreThanItsAnswerNeeds(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	reads, writes := questions(s.store.queries), questions(s.store.writer.queries)
	admin, auth := "Authorization: Bearer "+s.token(s.account, scopeAdmin), s.hookAuth(scopeLeads)
	for range 2 {
		s.post("/webhooks", hookBody("lead.created"), auth).is(200)
	}
	id := s.addWebhook(s.account, "lead.created")
	seq := s.addEvents(s.account, eventLeadCreated, 1)
	delivery := s.addDelivery(id, seq, ptr(500))
	for _, c := range webhookCalls(id, delivery) {
		s.do(c[0], c[1], c[2], auth)
	}
	path := "/webhooks/" + id
	s.sql(`UPDATE webhooks SET state = 'enabled' WHERE id = ?`, id)
	s.post(path+"/deliveries/"+delivery+"/retry", "", auth).is(200)
	s.post(path+"/replay", `{"since":"`+newStamp(time.Now()).String()+`"}`, auth).is(200)
	for _, query := range []string{
		"?limit=1", "?limit=1&outcome=failed", "?event_id=" + newID("evt", time.Now()), "?cursor=" + delivery,
	} {
		s.get(path+"/deliveries"+query, auth).is(200)
	}
	for _, query := range []string{"?limit=1", "?limit=1&cursor=" + id, "?account_id=" + s.account} {
		s.get("/webhooks"+query, admin).is(200)
	}
	s.do("DELETE", path, "", auth).is(204)
	asked := slices.Concat(reads(), writes())
	for _, query := range asked {
		for _, step := range s.plan(query) {
			if why := readsTooMuch(query, step); why != "" {
				t.Errorf("%s: %s\n%s", why, step, strings.Join(strings.Fields(query), " "))
			}
			if strings.Contains(query, "FROM deliveries d") && strings.Contains(step, " d ") &&
				!strings.Contains(step, "USING PRIMARY KEY (webhook_id=? AND id") {
				t.Errorf("it reads all deliveries of a webhook, or of all: %s\n%s", step, query)
			}
		}
	}
	for _, part := range []string{"count(*) FROM webhooks WHERE account_id", "FROM deliveries d WHERE d.id < ?",
		"INSERT INTO webhook_retries", "SET replay_seq"} {
		if !slices.ContainsFunc(asked, func(query string) bool { return strings.Contains(query, part) }) {
			t.Errorf("no query has %q: the test sees too little", part)
		}
	}
}

// prints runs a command, whose output must hold a text.
func (o *operator) prints(want string, args ...string) {
	o.t.Helper()
	if out := o.do(args...); !strings.Contains(out, want) {
		o.t.Errorf("widgetd %q printed %q, want %q", args, out, want)
	}
}

// webhookStory is an operator's day with a webhook.
func webhookStory(t *testing.T, o *operator) {
	const address = "https://Hooks.example.com/secret-path"
	added := o.object("webhook", "add", address, "-account", o.account, "-type", "lead.created,license.created",
		"-description", "Our CRM")
	id := added["id"].(string)
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	if len(added) != 2 || added["secret"] != formatWebhookSecret(webhookSecret(ring, id, 1)) {
		t.Errorf("added %v", added)
	}
	other := strings.Fields(o.do("webhook", "add", "https://other.example.com", "-account", o.account, "-type",
		"lead.created"))
	if len(other) < 4 || other[0] != "id:" || other[2] != "secret:" ||
		other[3] != formatWebhookSecret(webhookSecret(ring, other[1], 1)) {
		t.Errorf("added %q", other)
	}
	rows := o.objects("webhook", "list", "-account", o.account)
	if len(rows) != 2 || rows[1]["id"] != id || rows[1]["host"] != "hooks.example.com" ||
		rows[1]["state"] != "pending" || rows[1]["url"] != nil {
		t.Errorf("rows %v", rows)
	}
	if table := o.do("webhook", "list", "-wide"); strings.Contains(table, "secret-path") ||
		!strings.Contains(table, "hooks.example.com  lead.created license.created") {
		t.Errorf("table\n%s", table)
	}
	if w := o.object("webhook", "show", id); w["url"] != "https://hooks.example.com/secret-path" ||
		w["made_by"] != thisActor(t) || w["secret"] != nil {
		t.Errorf("shown %v", w)
	}
	o.prints("types              lead.created, license.created", "webhook", "show", id)
	test := o.object("webhook", "test", id)["event_id"].(string)
	if o.prints(test+" is to be sent: ", "webhook", "test", id); !validID("evt", test) {
		t.Errorf("test %s", test)
	}
	o.fails("the webhook is not enabled: 'widgetd webhook enable "+id+"' sends it a test",
		"webhook", "replay", id, "-since", "7d")
	o.change(func(tx *tx) error { // as the service does when the test is accepted
		_, err := tx.exec(`UPDATE webhooks SET state = 'enabled', test_seq = NULL WHERE id = ?`, id)
		return err
	})
	o.do("webhook", "set", id, "-type", "lead.created", "-description", "")
	w := o.object("webhook", "set", id, "-type", "lead.created")
	if fmt.Sprint(w["types"]) != "[lead.created]" || w["description"] != nil || w["state"] != "enabled" {
		t.Errorf("patched %v", w)
	}
	for _, days := range []string{"1d", "30d"} {
		if w := o.object("webhook", "replay", id, "-since", days); w["replaying"] != true {
			t.Errorf("replay %v", w)
		}
	}
	o.fails("-since: This is more than 30 days ago.", "webhook", "replay", id, "-since", "31d")
	o.fails("-since TIME is needed", "webhook", "replay", id)
	rotated := o.object("webhook", "rotate-secret", id)
	if rotated["secret"] != formatWebhookSecret(webhookSecret(ring, id, 2)) || rotated["previous_secret_until"] == nil {
		t.Errorf("rotated %v", rotated)
	}
	o.prints("secret: "+formatWebhookSecret(webhookSecret(ring, id, 3))+"  (shown once)\n", "webhook",
		"rotate-secret", id)
	failed, at := newID("whd", time.Now()), newStamp(time.Now())
	o.change(func(tx *tx) error {
		err := tx.addEvent(event{Type: eventLeadCreated, AccountID: o.account, Actor: actorSite})
		if err != nil {
			return err
		}
		seq, eventID, err := tx.latestEvent()
		first := delivery{ID: failed, WebhookID: id, EventID: eventID, Type: eventLeadCreated, Attempt: 1, At: at,
			Status: ptr(500), Answer: ptr("down\x1b[31m"), eventSeq: seq}
		second := first
		second.ID, second.Attempt, second.Status, second.Answer = newID("whd", time.Now()), 2, ptr(204), nil
		return errors.Join(err, tx.addDelivery(&first), tx.addDelivery(&second))
	})
	rows = o.objects("webhook", "delivery", "list", id, "-failed")
	if len(rows) != 1 || rows[0]["id"] != failed || rows[0]["status"] != 500.0 {
		t.Errorf("deliveries %v", rows)
	}
	if table := o.do("webhook", "delivery", "list", id, "-wide"); strings.Count(table, "\n") != 3 ||
		!strings.Contains(table, "\n"+failed) || !strings.Contains(table, "  500     -      0   -     evt_") ||
		strings.Contains(table, "\x1b") {
		t.Errorf("table\n%s", table)
	}
	if rows := o.objects("webhook", "delivery", "list", id, "-limit", "1"); len(rows) != 1 ||
		!strings.HasPrefix(o.noted, "these are the first 1") {
		t.Errorf("deliveries %v, %q", rows, o.noted)
	}
	if sent := o.object("webhook", "delivery", "retry", id, failed); !validID("evt", sent["event_id"].(string)) {
		t.Errorf("retry %v", sent)
	}
	o.fails("not found, or its event is not kept any more: 'widgetd webhook delivery list "+id+"'",
		"webhook", "delivery", "retry", id, newID("whd", time.Now()))
	for _, c := range []struct {
		want string
		args []string
	}{
		{id + " is pending\n", []string{"set", id, "-url", "https://next.example.com/"}},
		{id + " is disabled\n", []string{"disable", id}},
		{id + " is pending\n", []string{"enable", id}},
		{"webhook " + id + " (next.example.com) removed\n", []string{"remove", id}},
	} {
		if out := o.do(append([]string{"webhook"}, c.args...)...); out != c.want {
			t.Errorf("%q printed %q, want %q", c.args, out, c.want)
		}
	}
	for _, args := range [][]string{{"show"}, {"set", "-description", "x"}, {"test"}, {"enable"},
		{"disable"}, {"rotate-secret"}, {"remove"}, {"replay", "-since", "1d"}} {
		o.fails("not found: 'widgetd webhook list' prints what there is",
			append([]string{"webhook", args[0], id}, args[1:]...)...)
	}
	o.fails("not found: 'widgetd webhook list'", "webhook", "delivery", "list", id)
	o.fails("not found: 'widgetd webhook list'", "webhook", "delivery", "retry", id, failed)
	o.change(func(tx *tx) error {
		_, err := tx.exec(manyWebhooks(50), o.account, at, webhookPending, nil)
		return err
	})
	o.fails("the account has 50 webhooks already: remove one first", "webhook", "add", address, "-account",
		o.account, "-type", "lead.created")
}

func TestWebhook_wrongLineIsAUsageError(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for want, args := range map[string][]string{
		"-type NAME is needed: the types are account.created ": {"add", "https://hooks.example.com"},
		`-type: webhooks get no events of the type "lead.creatd": did you mean lead.created?`: {
			"add", "https://hooks.example.com", "-type", "lead.creatd"},
		`-type: webhooks get no events of the type "webhook.test": they begin with`: {
			"add", "https://hooks.example.com", "-type", "webhook.test"},
		`-type: "lead.created": This type appears twice.`: {"set", "whe_1", "-type", "lead.created lead.created"},
		"-type: name at least one type":                   {"set", "whe_1", "-type", ""},
		"-description: This has more than 200 characters.": {"set", "whe_1", "-description",
			strings.Repeat("x", 201)},
		"URL: This must be a URL that begins with https://.": {"add", "http://hooks.example.com", "-type",
			"lead.created"},
		"URL: The host must be a name, not an IP address.": {"add", "https://127.0.0.1", "-type", "lead.created"},
		"-url: This must not be empty.":                    {"set", "whe_1", "-url", ""},
		`-outbound-allow: "x" is not an address or CIDR`: {
			"add", "https://127.0.0.1", "-type", "lead.created", "-outbound-allow", "x"},
		"-limit must be a number": {"delivery", "list", "whe_1", "-limit", "0"},
		`"7x" is not a duration`:  {"replay", "whe_1", "-since", "7x"},
	} {
		var usage usageError
		err := o.fails(want, append([]string{"webhook"}, args...)...)
		if unknown := strings.Contains(want, "webhooks get no events"); errors.As(err, &usage) == unknown {
			t.Errorf("%q is a usage error or not: %v", args, err)
		}
	}
	o.fails("there is no such account, or it is closed", "webhook", "add", "https://hooks.example.com",
		"-type", "lead.created", "-account", newID("acct", time.Now()))
	inner := []string{"webhook", "add", "http://127.0.0.1:8081/hook", "-type", "lead.created"}
	o.do(append(inner, "-outbound-allow", "127.0.0.0/8")...)
	o.env["WIDGETD_OUTBOUND_ALLOW"] = "127.0.0.1" // as serve has it
	o.do(inner...)
	o.env["WIDGETD_KEY"] = o.dir + "/none.key"
	o.fails("no key file at ", inner...)
	if rows := o.objects("webhook", "list"); len(rows) != 2 {
		t.Errorf("%d webhooks, want 2: without a key file nobody would learn the secret", len(rows))
	}
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
	status := func() (v map[string]any) {
		s.check(json.Unmarshal([]byte(s.must("status", "-json")), &v))
		return v
	}
	aboutOther := func(line string) bool { return !strings.Contains(line, "webhook") }
	v := status()
	if got := fmt.Sprint(v["webhooks"]); got != "map[disabled:4 enabled:3 pending:0]" {
		t.Errorf("webhooks %s", got)
	}
	lines := slices.DeleteFunc(needsDoing(v), aboutOther)
	slices.Sort(lines)
	const disabled = ": 'widgetd webhook list -failing -state disabled'"
	updated := s.webhookRow(ids["gone"]).UpdatedAt.day()
	want := []string{
		"1 webhook fails since " + now.after(-days(2)).day() + ": 'widgetd webhook list -failing -state enabled'",
		"1 webhook answered 410 Gone since " + updated + disabled,
		"1 webhook disabled for failing since " + updated + disabled,
	}
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Errorf("needs doing\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if text := s.must("status", "-wide"); !strings.Contains(text, "enabled 3, disabled 4\n") {
		t.Errorf("status\n%s", text)
	}
	s.sql(manyWebhooks(10), s.account, now, webhookDisabled, disabledGone)
	lines = slices.DeleteFunc(needsDoing(status()), aboutOther)
	if len(lines) != 3 || !strings.HasPrefix(lines[2], "11 webhooks answered 410 Gone since ") {
		t.Errorf("needs doing %q", lines)
	}
}

func TestWebhook_listShowsWhatWaitsAndWhenOneWasLastAccepted(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other := s.addAccount("Trattoria")
	slow, bad, idle := s.addWebhook(s.account, "lead.created"), s.addWebhook(s.account, "lead.created"),
		s.addWebhook(other, "lead.created")
	list := func(args ...string) (rows []webhookRow) {
		for line := range strings.Lines(s.must(append([]string{"webhook", "list", "-json"}, args...)...)) {
			rows = append(rows, webhookRow{})
			s.check(json.Unmarshal([]byte(line), &rows[len(rows)-1]))
		}
		return rows
	}
	ids := func(rows []webhookRow) (ids []string) {
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		return slices.Sorted(slices.Values(ids))
	}
	of := func(ids ...string) []string { return slices.Sorted(slices.Values(ids)) }
	seq := s.addEvents(s.account, eventLeadCreated, 3)
	s.addEvents(s.account, eventWidgetCreated, 5) // which it does not get
	s.addDelivery(slow, seq, ptr(200))
	s.addDelivery(slow, seq, ptr(503))
	s.sql(`UPDATE webhooks SET failing_since = ? WHERE id = ?`, newStamp(time.Now()), slow)
	s.sql(`UPDATE webhooks SET state = 'disabled', reason = 'gone' WHERE id = ?`, bad)
	s.sql(`INSERT INTO webhook_retries SELECT id, ?, 1, ? FROM webhook_queues WHERE webhook_id = ?`, 1,
		newStamp(time.Now()), slow)
	rows := list()
	equal(t, "all", ids(rows), of(idle, bad, slow))
	for _, row := range rows {
		if waiting := map[string]int{slow: 4}[row.ID]; row.Waiting != waiting ||
			row.LastSuccess.IsZero() == (row.ID == slow) {
			t.Errorf("%+v", row)
		}
	}
	equal(t, "-state", ids(list("-state", "disabled")), of(bad))
	equal(t, "-failing", ids(list("-failing")), of(bad, slow))
	equal(t, "-failing -state", ids(list("-failing", "-state", "enabled")), of(slow))
	equal(t, "-account", ids(list("-account", "Trattoria")), of(idle))
	s.addEvents(s.account, eventLeadCreated, maxWaiting)
	contains(t, s.must("webhook", "list", "-failing", "-wide"), " 1000+ ")
	if _, err := s.command("webhook", "list", "-state", "broken"); !errors.As(err, new(usageError)) {
		t.Errorf("another state: %v", err)
	}
}
