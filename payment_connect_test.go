package main

import (
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A connecting is an operator beside sandboxes of the providers.
type connecting struct {
	*operator
	vipps  *vippsFake
	stripe *httptest.Server
}

func newConnecting(t *testing.T, o *operator) *connecting {
	c := &connecting{operator: o, vipps: newVippsFake(t, time.Now)}
	sandbox := newTestProvider(newOutbound(demoOutbound), "http://127.0.0.1:9", time.Now)
	c.stripe = httptest.NewServer(sandbox.handler())
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
	return fmt.Sprintf("# from portal.vippsmobilepay.com\n\nclient_id = %s\nclient_secret=%s\r\nsubscription_key=%s\nmerchant_serial=%s",
		s.ClientID, s.ClientSecret, s.SubscriptionKey, s.MerchantSerial)
}

// file writes a file of secrets that only the operator can read.
func (c *connecting) file(text string) (path string) {
	c.t.Helper()
	path = filepath.Join(c.t.TempDir(), "secrets")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// called is a command line that calls the sandboxes.
func (c *connecting) called(args ...string) []string {
	return append(args, "-outbound-allow", loopbackRange, "-stripe-url", c.stripe.URL, "-vipps-url", c.vipps.server.URL)
}

// connectLine is the command line that connects the main account with a provider.
func (c *connecting) connectLine(provider string) []string {
	c.t.Helper()
	return c.called("payment", "connect", provider, "-secrets", c.file(c.secretsOf(provider)))
}

func paymentStory(t *testing.T, o *operator) {
	c := newConnecting(t, o)
	vipps := o.object(c.connectLine("vipps")...)
	id := vipps["id"].(string)
	address := o.objects("base-url")[0]["url"].(string) + "/payments/vipps/" + id
	if !validID("con", id) || vipps["live"] != false || vipps["state"] != "in_use" || vipps["name"] != "123456" ||
		vipps["webhook_url"] != address || vipps["account_id"] != o.account {
		t.Errorf("%v", vipps)
	}
	for _, w := range c.vipps.webhooks {
		if w.url != address {
			t.Errorf("the webhook is at %s", w.url)
		}
	}
	card := o.do(c.connectLine("stripe")...)
	if !strings.Contains(card, "for tests: no money moves") || !strings.Contains(card, "/payments/stripe/con_") {
		t.Errorf("%s", card)
	}
	if rows := o.objects("payment", "list", "-account", o.account); len(rows) != 2 || rows[1]["id"] != id || rows[0]["provider"] != "stripe" {
		t.Errorf("%v", rows)
	}
	if out := o.do(c.called("payment", "check", id)...); out != "ok: the provider accepts the keys, and has our webhook\n" {
		t.Errorf("%s", out)
	}
	o.fails("disconnect that first", c.connectLine("vipps")...)
	o.do(c.called("payment", "reconnect", id, "-secrets", c.file(c.secretsOf(providerVipps)))...)
	if o.do(c.called("payment", "disconnect", id)...) != "" || len(c.vipps.webhooks) != 0 {
		t.Errorf("%d webhooks are left", len(c.vipps.webhooks))
	}
	for _, command := range []string{"check", "disconnect"} {
		o.fails("'widgetd payment list' prints what there is", c.called("payment", command, id)...)
		o.fails("'widgetd payment list' prints what there is", c.called("payment", command, newID("con", time.Now()))...)
	}
	if table := o.do("payment", "list", "-wide"); !strings.Contains(table, "removed") || !strings.Contains(table, "in_use") {
		t.Errorf("%s", table)
	}
	o.do(c.connectLine("vipps")...) // again, with a new id
	told := o.objects("events")
	kinds := []string{}
	for _, e := range told {
		if kind := e["type"].(string); strings.HasPrefix(kind, "payment.") {
			kinds = append(kinds, kind)
		}
	}
	if got := strings.Join(kinds, " "); got != "payment.connected payment.disconnected payment.keys_changed payment.connected payment.connected" {
		t.Errorf("events %s", got)
	}
}

func TestPaymentConnect_refuses(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	c := newConnecting(t, o)
	readable := c.file(c.secretsOf("vipps"))
	if err := os.Chmod(readable, 0o640); err != nil {
		t.Fatal(err)
	}
	wrong := c.file(strings.Replace(c.secretsOf("vipps"), "Y8Kteew6", "XXXXXXXX", 1))
	for _, refused := range []struct {
		want string
		args []string
	}{
		{`there is no provider "paypal"`, c.called("payment", "connect", "paypal", "-secrets", readable)},
		{"-secrets FILE is needed", c.called("payment", "connect", "vipps")},
		{"other users can read " + readable, c.called("payment", "connect", "vipps", "-secrets", readable)},
		{"no such file", c.called("payment", "connect", "vipps", "-secrets", readable+"x")},
		{"a line client_id=… is missing", c.called("payment", "connect", "vipps", "-secrets", c.file(""))},
		{"more than 16384 bytes", c.called("payment", "connect", "vipps", "-secrets", c.file(strings.Repeat("#", 20_000)))},
		{"line 1 is none of key=…", c.called("payment", "connect", "stripe", "-secrets", c.file("secret=rk_test_51OfTheSandbox"))},
		{"stripe: this is a secret key", c.called("payment", "connect", "stripe", "-secrets", c.file("key=sk_live_1"))},
		{"vipps refuses the keys", c.called("payment", "connect", "vipps", "-secrets", wrong)},
		{"there is no such account, or it is closed", append(c.connectLine("vipps"), "-account", newID("acct", time.Now()))},
		{"which must have https", []string{"payment", "connect", "vipps", "-secrets", c.file(c.secretsOf("vipps")), "-vipps-url", c.vipps.server.URL}},
		{`-outbound-allow: "x" is not`, []string{"payment", "check", "con_1", "-outbound-allow", "x"}},
	} {
		err := o.fails(refused.want, refused.args...)
		if err != nil && len(o.told.said([]byte(err.Error()))) > 0 {
			t.Errorf("%v tells a secret", err)
		}
	}
	o.do("base-url", "set", "http://10.0.0.1/v1")
	o.fails("http://10.0.0.1/v1, which must have https", c.connectLine("vipps")...)
	if len(c.vipps.webhooks) != 0 || len(o.objects("payment", "list")) != 0 {
		t.Errorf("%d webhooks are registered", len(c.vipps.webhooks))
	}
	o.do("base-url", "set", "https://api.example.com/v1")
	if made := o.object(c.connectLine("vipps")...); !strings.HasPrefix(made["webhook_url"].(string), "https://api.example.com/v1/payments/vipps/con_") {
		t.Errorf("%v", made)
	}
}

func TestPaymentConnect_refusesTestKeysBesideLiveOnes(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	c := newConnecting(t, o)
	o.change(func(t *tx) error {
		return t.addPaymentConnection(&paymentConnection{ID: newID("con", t.exact), AccountID: o.account, Provider: providerStripe,
			Live: true, Sealed: []byte{0}, CreatedAt: t.now})
	})
	o.fails("the webhook at vipps was removed again", c.connectLine("vipps")...)
	if len(c.vipps.webhooks) != 0 {
		t.Errorf("%d webhooks are left", len(c.vipps.webhooks))
	}
	c.vipps.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if r.method == "DELETE" {
			return &vippsTrouble{status: 500}
		}
		return nil
	})
	o.fails("remove it there", c.connectLine("vipps")...)
	if len(c.vipps.webhooks) != 1 {
		t.Errorf("%d webhooks are left", len(c.vipps.webhooks))
	}
	if rows := o.objects("payment", "list"); len(rows) != 1 || rows[0]["live"] != true {
		t.Errorf("%v", rows)
	}
}

func TestPaymentConnect_namesWhatAnotherKeyFileHasSealed(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	c := newConnecting(t, o)
	id := o.object(c.connectLine("vipps")...)["id"].(string)
	other := o.replaceKeyFile()
	want := sealedElsewhere(id)
	if out := o.do("payment", "list", "-wide"); !strings.Contains(out, "unreadable") || !strings.HasSuffix(out, want+"\n") {
		t.Errorf("%s", out)
	}
	if rows := o.objects("payment", "list"); rows[0]["state"] != "unreadable" {
		t.Errorf("%v", rows)
	}
	o.fails(want, c.called("payment", "check", id)...)
	if out, err := o.try("check"); err == nil || !strings.HasPrefix(out, "key: "+want+"\n") {
		t.Errorf("check: %v %s", err, out)
	}
	if out, _ := o.try("status", "-wide"); !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("status: %s", out)
	}
	again := c.called("payment", "reconnect", id, "-secrets", c.file(c.secretsOf(providerVipps)))
	if o.do(again...) != "" || len(c.vipps.webhooks) != 1 {
		t.Errorf("%d webhooks", len(c.vipps.webhooks))
	}
	o.do(c.called("payment", "check", id)...)
	if out := o.do("check"); !strings.HasPrefix(out, "ok: ") {
		t.Errorf("%s", out)
	}
	o.store(func(st *store) {
		conn, err := st.paymentConnection(anyAccount, id)
		if err != nil {
			t.Fatal(err)
		}
		open, err := conn.open(other)
		if err != nil || open.secrets.ClientSecret != c.vipps.secrets.ClientSecret || open.secrets.WebhookSecret == "" {
			t.Errorf("the new secrets can't be read: %v", err)
		}
	})
	o.change(func(tx *tx) error { // its secrets are lost again
		conn, err := tx.paymentConnection(anyAccount, id)
		if err == nil {
			conn.Sealed[20] ^= 1
			err = tx.saveConnectionKeys(conn)
		}
		return err
	})
	out := o.do(c.called("payment", "disconnect", id)...)
	if !strings.HasPrefix(out, "disconnected; remove the webhook webhook-") || len(c.vipps.webhooks) != 1 {
		t.Errorf("%s", out)
	}
	o.do(c.connectLine("vipps")...)
}

func TestPaymentReconnect_takesOtherKeysOfTheSameAccountOnly(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	c := newConnecting(t, o)
	id := o.object(c.connectLine("stripe")...)["id"].(string)
	before := o.object("payment", "list")
	again := func(key string) []string {
		o.told.keep("a key of Stripe", key)
		return c.called("payment", "reconnect", id, "-secrets", c.file("key="+key+"\n"))
	}
	o.fails("these keys are of another account there", again("rk_live_51OfSomebody")...)
	o.fails("this is a secret key", again("sk_live_51OfSomebody")...)
	o.fails("'widgetd payment list' prints what there is", c.called("payment", "reconnect", newID("con", time.Now()),
		"-secrets", c.file(c.secretsOf(providerStripe)))...)
	o.do(again("rk_test_51OfTheSandboxAnew")...)
	o.do(c.called("payment", "check", id)...)
	if after := o.object("payment", "list"); after["id"] != before["id"] || after["state"] != "in_use" {
		t.Errorf("%v, then %v", before, after)
	}
	if told := o.objects("events", "-type", "payment.keys_changed"); len(told) != 1 || told[0]["subject_id"] != id {
		t.Errorf("events %v", told)
	}
}

func TestPaymentDisconnect_needsForceWhereTheProviderDoesNotAnswer(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	c := newConnecting(t, o)
	id := o.object(c.connectLine("vipps")...)["id"].(string)
	c.vipps.strikes(func(vippsFakeRequest, bool) *vippsTrouble { return &vippsTrouble{status: 503} })
	o.fails("add -force", c.called("payment", "disconnect", id)...)
	o.fails("vipps: the provider answers http_503", c.called("payment", "check", id)...)
	if left := o.object(c.called("payment", "disconnect", id, "-force")...)["left"].(string); !strings.Contains(left, "at vipps yourself") {
		t.Errorf("%q", left)
	}
	c.vipps.strikes(nil)
	id = o.object(c.connectLine("vipps")...)["id"].(string)
	clear(c.vipps.webhooks)
	o.fails("vipps has our webhook no more", c.called("payment", "check", id)...)
}

func TestPaymentConnect_readsStandardInput(t *testing.T) {
	t.Parallel()
	read := func(text string) (connectionSecrets, error) {
		command, _ := findCommand(commands(), []string{"payment", "connect"})
		e := &env{ctx: t.Context(), getenv: func(string) string { return "" }, stdin: strings.NewReader(text),
			stdout: io.Discard, stderr: io.Discard, command: command, now: time.Now}
		if err := e.parse([]string{"stripe", "-secrets", "-"}); err != nil {
			t.Fatal(err)
		}
		return e.readSecrets("stripe")
	}
	if got, err := read("key=rk_test_1"); err != nil || got != (connectionSecrets{Key: "rk_test_1"}) {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := read("key"); err == nil || err.Error() != "standard input: line 1 is none of key=…" {
		t.Error(err)
	}
}

func TestConnectionSecrets_areJudgedWithoutBeingTold(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"key=a\nkey=b":                        "key appears twice",
		"key=":                                "key must be 1 to 200 visible ASCII characters",
		"key=a b":                             "key must be 1 to 200 visible ASCII characters",
		"key=ä":                               "key must be 1 to 200 visible ASCII characters",
		"key=" + strings.Repeat("a", 201):     "key must be 1 to 200 visible ASCII characters",
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
	for _, serial := range []string{"123", "1234567", "12345x"} {
		_, err := parseSecrets(providerVipps, "client_id=a\nclient_secret=b\nsubscription_key=c\nmerchant_serial="+serial)
		if err == nil || err.Error() != "merchant_serial must be 4 to 6 digits" {
			t.Errorf("%s: %v", serial, err)
		}
	}
}

func FuzzConnectionSecrets(f *testing.F) {
	f.Add("key=rk_live_1\n# comment\n")
	f.Add("client_id=a\nclient_secret=b==\nsubscription_key=c\nmerchant_serial=123456")
	f.Add("client_id\x00=a\n=\n\n==")
	f.Fuzz(func(t *testing.T, text string) {
		for _, provider := range []string{providerStripe, providerVipps} {
			s, err := parseSecrets(provider, text)
			if err != nil {
				if strings.Contains(err.Error(), "\n") {
					t.Fatalf("%q", err)
				}
				continue
			}
			lines := ""
			for name, value := range s.secretFields(provider) {
				if *value == "" || strings.IndexFunc(*value, isNotVisible) >= 0 {
					t.Fatalf("%s is %q", name, *value)
				}
				lines += name + "=" + *value + "\n"
			}
			if again, err := parseSecrets(provider, lines); err != nil || again != s {
				t.Fatalf("%+v, then %+v %v", s, again, err)
			}
		}
	})
}

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
		allow, err := parsePrefixes("outbound-allow", strings.FieldsFunc(c.allow, func(r rune) bool { return r == ',' }))
		if err != nil {
			t.Fatal(err)
		}
		got, err := providerWebhook(c.base, providerVipps, "con_1", allow)
		var usage usageError
		if c.right && got != c.base+"/payments/vipps/con_1" || !c.right && !errors.As(err, &usage) {
			t.Errorf("%s, %s: %q, %v", c.base, c.allow, got, err)
		}
	}
}

func TestConnection_oneOfAProviderAndOneKind(t *testing.T) {
	t.Parallel()
	live, test := &paymentConnection{Provider: providerStripe, Live: true}, &paymentConnection{Provider: providerVipps}
	for _, c := range []struct {
		c    *paymentConnection
		used []*paymentConnection
		want error
	}{
		{live, nil, nil}, {test, nil, nil},
		{live, []*paymentConnection{live}, errConnected},
		{live, []*paymentConnection{test}, errMixedKeys},
		{test, []*paymentConnection{live}, errMixedKeys},
		{&paymentConnection{Provider: providerVipps, Live: true}, []*paymentConnection{live}, nil},
	} {
		if err := checkConnection(c.c, c.used); !errors.Is(err, c.want) {
			t.Errorf("%+v beside %+v: %v", c.c, c.used, err)
		}
	}
}
