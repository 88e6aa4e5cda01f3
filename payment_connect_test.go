package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A connecting is an operator beside sandboxes of the providers.
type connecting struct {
	*operator
	vipps   *vippsFake
	sandbox *testProvider // of cards, at stripe
	stripe  *httptest.Server
}

func newConnecting(t *testing.T, o *operator) *connecting {
	c := &connecting{operator: o, vipps: newVippsFake(t, time.Now)}
	sandbox := newTestProvider(newOutbound(demoOutbound), "http://127.0.0.1:9", time.Now)
	c.sandbox, c.stripe = sandbox, httptest.NewServer(sandbox.handler())
	t.Cleanup(func() {
		c.stripe.Close()
		sandbox.close()
	})
	o.told.keep("a secret of Vipps", c.vipps.secrets.ClientSecret)
	o.told.keep("a key of Stripe", "rk_test_51OfTheSandbox")
	return c
}

// secretsOf returns the lines for a provider.
func (c *connecting) secretsOf(provider string) string {
	if provider == providerStripe {
		return "key=rk_test_51OfTheSandbox\n"
	}
	s := c.vipps.secrets
	return fmt.Sprintf("# from portal.vippsmobilepay.com\n\nclient_id = %s\nclient_secret=%s\r\n"+
		"subscription_key=%s\nmerchant_serial=%s", s.ClientID, s.ClientSecret, s.SubscriptionKey, s.MerchantSerial)
}

// file writes a file of secrets that only the operator can read.
func (c *connecting) file(text string) (path string) {
	c.t.Helper()
	path = filepath.Join(c.t.TempDir(), "secrets")
	must(c.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// called is a command line that calls the sandboxes.
func (c *connecting) called(args ...string) []string {
	return append(args, "-outbound-allow", loopbackRange, "-stripe-url", c.stripe.URL, "-vipps-url", c.vipps.base)
}

// connectLine is the command line that connects the main account with a provider.
func (c *connecting) connectLine(provider string) []string {
	c.t.Helper()
	return c.called("payment", "connect", provider, "-secrets", c.file(c.secretsOf(provider)))
}

// choosesMethods has guests pay by TWINT with a connection at Stripe, which is tried there before it is offered.
func (c *connecting) choosesMethods(id string) {
	c.t.Helper()
	set := func(methods string) []string { return c.called("payment", "set", id, "-methods", methods) }
	for _, wrong := range []string{"mobile", "card,card", "twint,cash"} {
		c.fails("stripe has card and twint, each named once", set(wrong)...)
	}
	c.sandbox.watch = func(*http.Request, *testAnswer) *testAnswer { return testRefused("payment_method_unactivated") }
	c.fails("is it switched on at Stripe, under Settings, Payment methods?", set("twint,card")...)
	c.sandbox.watch = nil
	equal(c.t, "methods before", fmt.Sprint(c.objects("payment", "list")[0]["methods"]), "[]")
	equal(c.t, "set", c.do(set("twint,card")...), "guests can pay with "+id+" by twint and card\n")
	equal(c.t, "methods", fmt.Sprint(c.objects("payment", "list")[0]["methods"]), "[twint card]")
	equal(c.t, "the session that was tried", c.sandbox.sessions[0].status, "expired")
}

// lacksPayouts has the key of a connection at Stripe lack what only payouts need: payments go on.
func (c *connecting) lacksPayouts(id string) {
	c.t.Helper()
	c.sandbox.watch = func(r *http.Request, _ *testAnswer) *testAnswer {
		if r.URL.Path == stripePayouts || r.URL.Path == stripeMoves {
			return testFailure(403, "invalid_request_error", "more_permissions_required")
		}
		return nil
	}
	check := c.called("payment", "check", id)
	equal(c.t, "check", c.do(check...), "ok: the provider accepts the keys, and has our webhook; payouts can't be "+
		"read: the keys lack Payouts: read, Balance Transaction Sources: read\n")
	equal(c.t, "what is lacking", fmt.Sprint(c.object(check...)["lacks"]),
		"[Payouts: read Balance Transaction Sources: read]")
	c.sandbox.watch = nil
	equal(c.t, "what is lacking then", fmt.Sprint(c.object(check...)["lacks"]), "[]")
}

func paymentStory(t *testing.T, o *operator) {
	c := newConnecting(t, o)
	vipps := o.object(c.connectLine("vipps")...)
	id := vipps["id"].(string)
	address := o.objects("base-url", "show")[0]["url"].(string) + "/payments/vipps/" + id
	if !validID("con", id) || vipps["live"] != false || vipps["state"] != "in_use" || vipps["name"] != "123456" ||
		vipps["webhook_url"] != address || vipps["account_id"] != o.account {
		t.Errorf("%v", vipps)
	}
	for _, w := range c.vipps.webhooks {
		equal(t, "the address of the webhook", w.url, address)
	}
	card := o.do(c.connectLine("stripe")...)
	if !strings.Contains(card, "for tests: no money moves") || !strings.Contains(card, "/payments/stripe/con_") {
		t.Errorf("%s", card)
	}
	if rows := o.objects("payment", "list", "-account", o.account); len(rows) != 2 || rows[1]["id"] != id ||
		rows[0]["provider"] != "stripe" {
		t.Errorf("%v", rows)
	}
	equal(t, "check", o.do(c.called("payment", "check", id)...),
		"ok: the provider accepts the keys, and has our webhook\n")
	c.choosesMethods(o.objects("payment", "list")[0]["id"].(string))
	c.showsRefusals(o.objects("payment", "list")[0]["id"].(string))
	c.lacksPayouts(o.objects("payment", "list")[0]["id"].(string))
	o.fails("disconnect that first", c.connectLine("vipps")...)
	o.do(c.called("payment", "reconnect", id, "-secrets", c.file(c.secretsOf(providerVipps)))...)
	equal(t, "disconnect", o.do(c.called("payment", "disconnect", id)...), "connection "+id+" disconnected\n")
	if len(c.vipps.webhooks) != 0 {
		t.Errorf("%d webhooks are left", len(c.vipps.webhooks))
	}
	for _, command := range []string{"check", "disconnect"} {
		o.fails("'widgetd payment list' prints what there is", c.called("payment", command, id)...)
		unknown := c.called("payment", command, newID("con", time.Now()))
		o.fails("'widgetd payment list' prints what there is", unknown...)
	}
	contains(t, o.do("payment", "list", "-wide"), "removed", "in_use")
	o.do(c.connectLine("vipps")...) // again, with a new id
	told := o.objects("event", "list")
	kinds := []string{}
	for _, e := range told {
		if kind := e["type"].(string); strings.HasPrefix(kind, "payment.") {
			kinds = append(kinds, kind)
		}
	}
	equal(t, "events", strings.Join(kinds, " "), "payment.connected payment.disconnected payment.keys_changed "+
		"payment.connected payment.connected")
}

func TestPaymentConnect_refuses(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	c := newConnecting(t, newOperator(t))
	readable := c.file(c.secretsOf("vipps"))
	must(t, os.Chmod(readable, 0o640))
	wrong := c.file(strings.Replace(c.secretsOf("vipps"), "Y8Kteew6", "XXXXXXXX", 1))
	with := func(provider, file string) []string {
		return c.called("payment", "connect", provider, "-secrets", file)
	}
	for _, refused := range []struct {
		want string
		args []string
	}{
		{`there is no provider "paypal"`, with("paypal", readable)},
		{"-secrets FILE is needed", c.called("payment", "connect", "vipps")},
		{"other users can read " + readable, with("vipps", readable)},
		{"no such file", with("vipps", readable+"x")},
		{"a line client_id=… is missing", with("vipps", c.file(""))},
		{"more than 16384 bytes", with("vipps", c.file(strings.Repeat("#", 20_000)))},
		{"line 1 is none of key=…", with("stripe", c.file("secret=rk_test_51OfTheSandbox"))},
		{"stripe: this is a secret key", with("stripe", c.file("key=sk_live_1"))},
		{"vipps refuses the keys", with("vipps", wrong)},
		{"there is no such account, or it is closed", append(c.connectLine("vipps"), "-account",
			newID("acct", time.Now()))},
		{"which must have https", []string{"payment", "connect", "vipps", "-secrets", c.file(c.secretsOf("vipps")),
			"-vipps-url", c.vipps.base}},
		{`-outbound-allow: "x" is not`, []string{"payment", "check", "con_1", "-outbound-allow", "x"}},
	} {
		err := c.fails(refused.want, refused.args...)
		if err != nil && len(c.told.said([]byte(err.Error()))) > 0 {
			t.Errorf("%v tells a secret", err)
		}
	}
	c.do("base-url", "set", "http://10.0.0.1/v1")
	c.fails("http://10.0.0.1/v1, which must have https", c.connectLine("vipps")...)
	if len(c.vipps.webhooks) != 0 || len(c.objects("payment", "list")) != 0 {
		t.Errorf("%d webhooks are registered", len(c.vipps.webhooks))
	}
	c.do("base-url", "set", "https://api.example.com/v1")
	made := c.object(c.connectLine("vipps")...)["webhook_url"].(string)
	if !strings.HasPrefix(made, "https://api.example.com/v1/payments/vipps/con_") {
		t.Errorf("the webhook is at %s", made)
	}
}

func TestPaymentConnect_refusesTestKeysBesideLiveOnes(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	c := newConnecting(t, newOperator(t))
	c.change(func(t *tx) error {
		t.addPaymentConnection(&paymentConnection{ID: newID("con", t.exact), AccountID: c.account,
			Provider: providerStripe, Live: true, Sealed: []byte{0}, CreatedAt: t.now})
		return nil
	})
	c.fails("the webhook at vipps was removed again", c.connectLine("vipps")...)
	equal(t, "webhooks", len(c.vipps.webhooks), 0)
	c.vipps.strikes(func(r vendorRequest, acted bool) *vendorFault {
		if r.method == "DELETE" {
			return answersWith(500, nil, "")
		}
		return nil
	})
	c.fails("remove it there", c.connectLine("vipps")...)
	equal(t, "webhooks", len(c.vipps.webhooks), 1)
	if rows := c.objects("payment", "list"); len(rows) != 1 || rows[0]["live"] != true {
		t.Errorf("%v", rows)
	}
}

// Against whoever copies the database who would take the restaurants' keys at their providers: they are sealed
// under the key file; without it nothing can be asked.
func TestPaymentConnect_namesWhatAnotherKeyFileHasSealed(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	c := newConnecting(t, newOperator(t))
	id := c.object(c.connectLine("vipps")...)["id"].(string)
	other := c.replaceKeyFile()
	want := sealedElsewhere(id)
	contains(t, c.do("payment", "list", "-wide"), "unreadable")
	contains(t, c.noted, want+"\n")
	if rows := c.objects("payment", "list"); rows[0]["state"] != "unreadable" {
		t.Errorf("%v", rows)
	}
	c.fails(want, c.called("payment", "check", id)...)
	if out, err := c.try("check"); err == nil || !strings.HasPrefix(out, "key: "+want+"\n") {
		t.Errorf("check: %v %s", err, out)
	}
	if out, _ := c.try("status", "-wide"); !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("status: %s", out)
	}
	again := c.called("payment", "reconnect", id, "-secrets", c.file(c.secretsOf(providerVipps)))
	if c.do(again...) != "connection "+id+" (vipps) has the new keys\n" || len(c.vipps.webhooks) != 1 {
		t.Errorf("%d webhooks", len(c.vipps.webhooks))
	}
	c.do(c.called("payment", "check", id)...)
	if out := c.do("check"); !strings.HasPrefix(out, "ok: ") {
		t.Errorf("%s", out)
	}
	c.store(func(st *store) {
		conn, err := st.paymentConnection(anyAccount, id)
		must(t, err)
		open, err := conn.open(other)
		if err != nil || open.secrets.ClientSecret != c.vipps.secrets.ClientSecret || open.secrets.WebhookSecret == "" {
			t.Errorf("the new secrets can't be read: %v", err)
		}
	})
	c.change(func(tx *tx) error { // its secrets are lost again
		conn, err := tx.paymentConnection(anyAccount, id)
		if err == nil {
			conn.Sealed[20] ^= 1
			err = tx.saveConnectionKeys(conn)
		}
		return err
	})
	out := c.do(c.called("payment", "disconnect", id)...)
	if !strings.HasPrefix(out, "connection "+id+" disconnected; remove the webhook webhook-") ||
		len(c.vipps.webhooks) != 1 {
		t.Errorf("%s", out)
	}
	c.do(c.connectLine("vipps")...)
}

// knows has a connection have an attempt, as its provider knows it; state is that of the attempt.
func (c *connecting) knows(connection, account, session, state string) {
	c.t.Helper()
	c.change(func(t *tx) error {
		o := anOrder(account)
		o.ReturnURL = siteOrigin + "/thanks"
		if _, err := createOrder(t, o, guest{}, minOrderLife, anActor); err != nil {
			return err
		}
		t.addPayment(&payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: account, ConnectionID: connection,
			Provider: providerStripe, Method: methodCard, State: paymentState(state), Amount: o.Total,
			Currency:  o.Currency,
			SessionID: &session, CreatedAt: t.now, DueAt: t.now})
		return nil
	})
}

func TestPaymentReconnect_readsAPaymentBeforeItTakesKeys(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	c := newConnecting(t, newOperator(t))
	id := c.object(c.connectLine("stripe")...)["id"].(string)
	again := func(key string) []string {
		c.told.keep("a key of Stripe", key)
		return c.called("payment", "reconnect", id, "-secrets", c.file("key="+key+"\n"))
	}
	c.do(c.called("payment", "disconnect", id)...)
	c.fails("'widgetd payment list' prints what there is", again("rk_test_51OfTheSandboxAnew")...) // it has no payments
	c.knows(id, c.account, "cs_of_another_company", paymentCaptured)
	c.change(func(t *tx) error {
		t.setConnectionFailing(id, t.now)
		return nil
	})
	out, _ := c.try("status", "-wide")
	contains(t, strings.Join(strings.Fields(out), " "), "'widgetd payment reconnect "+id+" -secrets FILE'")
	c.fails("these keys are of another account there", again("rk_test_51OfSomebodyElse")...)
	c.fails("this is a secret key", again("sk_test_51OfSomebodyElse")...)
	known := c.sandbox.createSession("", url.Values{"mode": {"payment"}, "success_url": {siteOrigin},
		"cancel_url":                          {siteOrigin},
		"payment_intent_data[capture_method]": {"manual"}, "line_items[0][quantity]": {"1"},
		"line_items[0][price_data][unit_amount]": {"5900"}, "line_items[0][price_data][currency]": {"chf"},
		"expires_at":          {strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)},
		"client_reference_id": {c.objects("order", "list")[0]["id"].(string)}})
	session, _ := parseJSON(known.body)
	c.change(func(t *tx) error {
		t.exec(`UPDATE payments SET session_id = ?`, rawMember(&session, "id"))
		return nil
	})
	c.sandbox.sessions[0].reference = c.paymentID()
	equal(t, "reconnect", c.do(again("rk_test_51OfTheSandboxAnew")...),
		"connection "+id+" (stripe) has the new keys\n")
	equal(t, "webhooks of a connection that is removed", len(c.sandbox.hooks), 0)
	out, _ = c.try("status", "-wide")
	if strings.Contains(out, id) {
		t.Errorf("status still names it: %s", out)
	}
	if rows := c.objects("payment", "list"); rows[0]["state"] != "removed" {
		t.Errorf("%v", rows)
	}
	other := c.object(c.connectLine("stripe")...)["id"].(string) // one in use: nothing is registered at others
	c.change(func(t *tx) error {
		t.exec(`UPDATE payments SET connection_id = ?, session_id = 'cs_x'`, other)
		return nil
	})
	hooks := len(c.sandbox.hooks)
	id = other
	c.fails("these keys are of another account there", again("rk_test_51OfSomebodyElse")...)
	equal(t, "webhooks", len(c.sandbox.hooks), hooks)
	c.change(func(t *tx) error { return second(t.try(`DELETE FROM payments`)) })
	c.fails("these keys are of another account there", again("rk_live_51OfSomebody")...)
	c.do(again("rk_test_51OfTheSandboxAnew")...)
	c.do(c.called("payment", "check", id)...)
	equal(t, "events", len(c.objects("event", "list", "-type", "payment.keys_changed")), 2)
}

// paymentID returns the id of the only attempt.
func (c *connecting) paymentID() (id string) {
	c.t.Helper()
	c.change(func(t *tx) (err error) {
		id, err = oneValue[string](t.queries, `SELECT id FROM payments`)
		return err
	})
	return id
}

func TestPaymentDisconnect_needsForceWhereTheProviderDoesNotAnswer(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	c := newConnecting(t, newOperator(t))
	id := c.object(c.connectLine("vipps")...)["id"].(string)
	c.vipps.strikes(func(vendorRequest, bool) *vendorFault { return answersWith(503, nil, "") })
	c.fails("add -force", c.called("payment", "disconnect", id)...)
	c.fails("vipps: the answer is http_503", c.called("payment", "check", id)...)
	left := c.object(c.called("payment", "disconnect", id, "-force")...)["left"].(string)
	if !strings.Contains(left, "at vipps yourself") {
		t.Errorf("%q", left)
	}
	c.vipps.strikes(nil)
	id = c.object(c.connectLine("vipps")...)["id"].(string)
	clear(c.vipps.webhooks)
	c.fails("vipps has our webhook no more", c.called("payment", "check", id)...)
}

func TestConnectionSecrets_areJudgedWithoutBeingTold(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"key=a\nkey=b": "key appears twice",
		"key=":         "key must be 1 to 1000 visible ASCII characters",
		"key=a b":      "key must be 1 to 1000 visible ASCII characters",
		"key=ä":        "key must be 1 to 1000 visible ASCII characters",
		"key=" + strings.Repeat("a", maxSecret+1): "key must be 1 to 1000 visible ASCII characters",
		"#key=a":                              "a line key=… is missing",
		"key=a\nwebhook_secret=b":             "line 2 is none of key=…",
		"key=" + strings.Repeat("a", 200):     "",
		"\n # a comment\n key = a=b \r\n\r\n": "",
	} {
		got, err := parseSecrets(providerStripe, text)
		if want == "" && (err != nil || got.Key == "") || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, serial := range []string{"123", "12345678", "12345x"} {
		text := "client_id=a\nclient_secret=b\nsubscription_key=c\nmerchant_serial=" + serial
		_, err := parseSecrets(providerVipps, text)
		if err == nil || err.Error() != "merchant_serial must be 4 to 7 digits" {
			t.Errorf("%s: %v", serial, err)
		}
	}
}

// Against a tenant with a connection who would have the service call an address of its choice: the providers'
// addresses are options of the operator; no row names one.
func TestPaymentConnect_webhookIsAtAnAddressThatTheProviderCanPostTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		base, allow string
		right       bool
	}{
		{"https://api.example.com/v1", "", true},
		{"https://127.0.0.1/v1", "", true},
		{"http://api.example.com/v1", "", false},
		{"http://api.example.com/v1", "127.0.0.0/8", false},
		{"http://127.0.0.1:8080/v1", "", false},
		{"http://127.0.0.1:8080/v1", "10.0.0.0/8", false},
		{"http://127.0.0.1:8080/v1", "127.0.0.0/8", true},
		{"http://[::1]:8080/v1", "::1", true},
		{"http://10.0.0.1/v1", "10.0.0.0/8", false},
		{"http://localhost/v1", "127.0.0.0/8", false},
	} {
		allow, err := parsePrefixes("outbound-allow", strings.Fields(c.allow))
		must(t, err)
		got, err := providerWebhook(c.base, providerVipps, "con_1", allow)
		var usage usageError
		if c.right && got != c.base+"/payments/vipps/con_1" || !c.right && !errors.As(err, &usage) {
			t.Errorf("%s, %s: %q, %v", c.base, c.allow, got, err)
		}
	}
}
