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
	s.counts(maxWebhooks, `SELECT count(*) FROM webhooks WHERE account_id = ?`, s.account)
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
