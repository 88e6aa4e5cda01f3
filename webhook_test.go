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
	equal(t, "the queue of a disabled one", queueNumber(), 0)
	last := s.addEvents(s.account, eventLeadCreated, 3)
	s.sql(`UPDATE webhooks SET state = 'enabled', reason = NULL WHERE id = ?`, id)
	s.counts(last, `SELECT sent_seq FROM webhook_queues WHERE webhook_id = ?`, id)
	second := queueNumber()
	equal(t, "enabled it has a later queue", second > first, true)
	s.sql(`UPDATE webhooks SET state = 'enabled', description = 'x' WHERE id = ?`, id)
	equal(t, "enabled again it has the queue", queueNumber(), second)
	auth := s.hookAuth(scopeLeads)
	s.get("/webhooks/"+id, auth).is(200).members("description", "x")
	s.sql(`DELETE FROM webhooks WHERE id = ?`, id)
	s.counts(0, `SELECT count(*) FROM webhook_queues`)
	s.get("/webhooks/"+id, auth).is(404, "webhook_not_found")
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
	must(t, err)
	secret := func(number int) string { return formatWebhookSecret(webhookSecret(ring, id, number)) }
	equal(t, "added", added, map[string]any{"id": id, "secret": secret(1)})
	o.prints("\nsecret: whsec_", "webhook", "add", "https://b.example", "-account", o.account, "-type", "lead.created")
	row := o.objects("webhook", "list", "-account", o.account)[1]
	equal(t, "listed", []any{row["id"], row["host"], row["state"], row["url"]},
		[]any{id, "hooks.example.com", "pending", nil})
	table := o.do("webhook", "list", "-wide")
	contains(t, table, "hooks.example.com  lead.created license.created")
	lacks(t, table, "secret-path")
	shown := o.object("webhook", "show", id)
	equal(t, "shown", []any{shown["url"], shown["made_by"], shown["secret"]},
		[]any{"https://hooks.example.com/secret-path", thisActor(t), nil})
	o.prints("types              lead.created, license.created", "webhook", "show", id)
	o.prints(o.object("webhook", "test", id)["event_id"].(string)+" is to be sent: ", "webhook", "test", id)
	o.fails("the webhook is not enabled: 'widgetd webhook enable "+id+"' sends it a test",
		"webhook", "replay", id, "-since", "7d")
	o.change(func(tx *tx) error { // as the service does when the test is accepted
		return tx.write(`UPDATE webhooks SET state = 'enabled', test_seq = NULL WHERE id = ?`, id)
	})
	set := o.object("webhook", "set", id, "-type", "lead.created", "-description", "")
	equal(t, "set", []any{set["types"], set["description"], set["state"]},
		[]any{[]any{"lead.created"}, nil, "enabled"})
	equal(t, "replaying", o.object("webhook", "replay", id, "-since", "30d")["replaying"], any(true))
	o.fails("-since: This is more than 30 days ago.", "webhook", "replay", id, "-since", "31d")
	o.fails("-since TIME is needed", "webhook", "replay", id)
	equal(t, "rotated", o.object("webhook", "rotate-secret", id)["secret"], any(secret(2)))
	o.prints("secret: "+secret(3)+"  (shown once)\n", "webhook", "rotate-secret", id)
	webhookDeliveryStory(t, o, id)
	o.prints(id+" is pending\n", "webhook", "set", id, "-url", "https://next.example.com/")
	o.prints(id+" is disabled\n", "webhook", "disable", id)
	o.prints(id+" is pending\n", "webhook", "enable", id)
	o.prints("webhook "+id+" (next.example.com) removed\n", "webhook", "remove", id)
	for _, line := range []string{"show WHE", "set WHE -description x", "test WHE", "enable WHE", "disable WHE",
		"rotate-secret WHE", "remove WHE", "replay WHE -since 1d", "delivery list WHE", "delivery retry WHE whd_1"} {
		o.fails("not found: 'widgetd webhook list' prints what there is",
			strings.Fields("webhook "+strings.ReplaceAll(line, "WHE", id))...)
	}
}

// webhookDeliveryStory is about two attempts to send an event to a webhook, of which the first failed.
func webhookDeliveryStory(t *testing.T, o *operator, id string) {
	t.Helper()
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
	rows := o.objects("webhook", "delivery", "list", id, "-failed")
	equal(t, "that failed", []any{len(rows), rows[0]["id"], rows[0]["status"]}, []any{1, failed, 500.0})
	table := o.do("webhook", "delivery", "list", id, "-wide")
	contains(t, table, "\n"+failed, "  500     -      0   -     evt_")
	lacks(t, table, "\x1b")
	equal(t, "lines", strings.Count(table, "\n"), 3)
	equal(t, "first ones", len(o.objects("webhook", "delivery", "list", id, "-limit", "1")), 1)
	contains(t, o.noted, "these are the first 1")
	o.prints(" is to be sent: ", "webhook", "delivery", "retry", id, failed)
	o.fails("not found, or its event is not kept any more: 'widgetd webhook delivery list "+id+"'",
		"webhook", "delivery", "retry", id, newID("whd", time.Now()))
}

func TestWebhook_wrongLineIsAUsageError(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	const hook = "add https://hooks.example.com"
	for _, c := range [][2]string{
		{hook, "-type NAME is needed: the types are account.created "},
		{hook + " -type lead.creatd",
			`-type: webhooks get no events of the type "lead.creatd": did you mean lead.created?`},
		{hook + " -type webhook.test", `-type: webhooks get no events of the type "webhook.test": they begin with`},
		{"set whe_1 -type lead.created,lead.created", `-type: "lead.created": This type appears twice.`},
		{"set whe_1 -type ,", "-type: name at least one type"},
		{"set whe_1 -description " + strings.Repeat("x", 201), "-description: This has more than 200 characters."},
		{"add http://hooks.example.com -type lead.created", "URL: This must be a URL that begins with https://."},
		{"add https://127.0.0.1 -type lead.created", "URL: The host must be a name, not an IP address."},
		{"set whe_1", "nothing to change: give -url, -type or -description"},
		{hook + " -type lead.created -outbound-allow x", `-outbound-allow: "x" is not an address or CIDR`},
		{"delivery list whe_1 -limit 0", "-limit must be a number"},
		{"replay whe_1 -since 7x", `"7x" is not a duration`},
	} {
		err := o.fails(c[1], append([]string{"webhook"}, strings.Fields(c[0])...)...)
		if unknown := strings.Contains(c[1], "webhooks get no events"); errors.As(err, new(usageError)) == unknown {
			t.Errorf("%q is a usage error or not: %v", c[0], err)
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
	s.sql(manyWebhooks(10), s.account, now, webhookDisabled, disabledGone)
	_, lines = about()
	equal(t, "needs doing", len(lines), 3)
	contains(t, lines[2], "11 webhooks answered 410 Gone since ")
}

func TestWebhook_listShowsWhatWaitsAndWhenOneWasLastAccepted(t *testing.T) {
	t.Parallel()
	s := newService(t)
	slow, bad, idle := s.addWebhook(s.account, "lead.created"), s.addWebhook(s.account, "lead.created"),
		s.addWebhook(s.addAccount("Trattoria"), "lead.created")
	seq := s.addEvents(s.account, eventLeadCreated, 3)
	s.addEvents(s.account, eventWidgetCreated, 5) // which it does not get
	s.addDelivery(slow, seq, ptr(200))
	s.addDelivery(slow, seq, ptr(503))
	s.sql(`UPDATE webhooks SET failing_since = ? WHERE id = ?`, newStamp(time.Now()), slow)
	s.sql(`UPDATE webhooks SET state = 'disabled', reason = 'gone' WHERE id = ?`, bad)
	s.sql(`INSERT INTO webhook_retries SELECT id, 1, 1, ? FROM webhook_queues WHERE webhook_id = ?`,
		newStamp(time.Now()), slow)
	for args, want := range map[string][]string{
		"": {slow + " 4 true", bad + " 0 false", idle + " 0 false"}, "-state disabled": {bad + " 0 false"},
		"-failing": {slow + " 4 true", bad + " 0 false"}, "-failing -state enabled": {slow + " 4 true"},
		"-account Trattoria": {idle + " 0 false"},
	} {
		var got []string
		words := append([]string{"webhook", "list", "-json"}, strings.Fields(args)...)
		for line := range strings.Lines(s.must(words...)) {
			var row webhookRow
			s.check(json.Unmarshal([]byte(line), &row))
			got = append(got, fmt.Sprint(row.ID, " ", row.Waiting, " ", !row.LastSuccess.IsZero()))
		}
		slices.Sort(got)
		slices.Sort(want)
		equal(t, args, got, want)
	}
	s.addEvents(s.account, eventLeadCreated, maxWaiting)
	contains(t, s.must("webhook", "list", "-failing", "-wide"), " 1000+ ")
	if _, err := s.command("webhook", "list", "-state", "broken"); !errors.As(err, new(usageError)) {
		t.Errorf("another state: %v", err)
	}
}
