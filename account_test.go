package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func accountStory(t *testing.T, o *operator) {
	id := o.object("account", "add", "Trattoria Roma")["id"].(string)
	if plain := strings.TrimSpace(o.do("account", "add", "Other")); !validID("acct", id) || !validID("acct", plain) {
		t.Errorf("ids %q, %q", id, plain)
	}
	o.do("account", "set-rate", id, "1200")
	o.fails("stops nothing, until 'widgetd account reopen': add -force", "account", "close", id)
	o.do("account", "close", id, "-force")
	o.do("account", "reopen", id)
	o.do("account", "close", id, "-force")
	o.do("account", "show", "Trattoria Roma")
	o.do("event", "show", o.objects("event", "list", "-limit", "1")[0]["id"].(string))
	rows := o.objects("account", "list")
	if got := column(rows, "name"); !slices.Equal(got, []any{"main", "Trattoria Roma", "Other"}) {
		t.Errorf("names %v", got)
	}
	failIf(t, rows[1]["rate"] != 1200.0 || rows[1]["closed_at"] == nil || rows[0]["rate"] != 600.0 ||
		rows[0]["closed_at"] != nil || rows[0]["main"] != true, "rows %v", rows)
	if table := o.do("account", "list", "-wide"); !regexp.MustCompile(`(?m)^` + id +
		`  Trattoria Roma +- +1200 +\d{4}-`).MatchString(table) {
		t.Errorf("table:\n%s", table)
	}
	o.fails("the main account can't be closed", "account", "close", o.account)
	o.fails("is closed", "token", "issue", "-account", id, "-scope", "stats:read")

	o.do("origin", "add", "-account", o.account, "HTTPS://Shop.Example.com:443")
	o.do("origin", "add", "https://shop.example.com", "-account", o.account) // again is fine
	if got := column(o.objects("origin", "list"), "origin"); !slices.Equal(got,
		[]any{"https://partner.example", "https://shop.example.com", siteOrigin}) {
		t.Errorf("origins %v", got)
	}
	other := strings.TrimSpace(o.do("account", "add", "Other"))
	o.fails("already belongs to "+o.account, "origin", "add", siteOrigin, "-account", other)
	o.do("origin", "remove", "https://shop.example.com")
	o.fails("the matching list command prints what there is", "origin", "remove", "https://shop.example.com")

	o.do("base-url", "set", "https://API.example.com/api/v1")
	if got := column(o.objects("base-url", "show"), "url"); !slices.Equal(got,
		[]any{"https://api.example.com/api/v1", testBase}) {
		t.Errorf("base addresses %v", got)
	}
	o.fails("the current one can only be replaced", "base-url", "remove", "https://api.example.com/api/v1")
	o.do("base-url", "remove", testBase)
	if got := column(o.objects("base-url", "show"), "current"); !slices.Equal(got, []any{true}) {
		t.Errorf("base addresses %v", got)
	}
}

func tokenStory(t *testing.T, o *operator) {
	signinStory(t, o)
	out := o.do("token", "issue", "-account", o.account, "-scope", "stats:read leads:read", "-client-id", "portal")
	token, alone := strings.CutSuffix(out, "\n")
	if !alone || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \n") {
		t.Fatalf("printed %q, want the token alone", out)
	}
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	header, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	must(t, err)
	equal(t, "header", string(header), `{"alg":"EdDSA","typ":"at+jwt","kid":"`+ring.signer().kid+`"}`)
	c, err := ring.verify(token)
	failIf(t, err != nil || c.Subject != o.account || c.Scope != "stats:read leads:read" || c.ClientID != "portal" ||
		c.Expires-c.IssuedAt != 720*3600, "claims %+v, %v", c, err)
	issued := o.object("token", "issue", "-account", o.account, "-scope", "admin", "-ttl", "90d", "-all-accounts")
	failIf(t, !validID("tok", issued["id"].(string)) || issued["token"] == nil || issued["expires_at"] == nil,
		"issued %v", issued)
	o.do("token", "revoke", issued["id"].(string))
	rows := o.objects("token", "list")
	failIf(t, len(rows) != 2 || rows[0]["id"] != issued["id"] || rows[0]["revoked_at"] == nil ||
		rows[0]["all_accounts"] != true || rows[1]["revoked_at"] != nil, "rows %v", rows)
	if all := o.do("token", "list") + o.do("token", "list", "-json"); strings.Contains(all,
		strings.Split(token, ".")[2]) {
		t.Error("a token is shown again")
	}
}

func TestBaseURL_ofEarlierTokensHoldsUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	const next = "https://api.example.com/v1"
	s := newService(t)
	earlier := s.auth(s.account, scopeLeads)
	s.change(func(t *tx) error { return t.setBaseURL(next) })
	s.check(s.server.refresh())
	current := s.auth(s.account, scopeLeads)
	c, err := s.keys.verify(strings.TrimPrefix(current, "Authorization: Bearer "))
	s.check(err)
	if c.Issuer != next || c.Audience != next {
		t.Fatalf("a new token names %q and %q", c.Issuer, c.Audience)
	}
	s.get("/leads", earlier).is(200)
	s.get("/leads", current).is(200)

	mixed := c
	mixed.Audience = testBase // accepted, but not the issuer's
	token, err := s.keys.sign(mixed)
	s.check(err)
	if a := s.get("/leads", bearer(token)); a.status != 401 {
		t.Fatalf("iss and aud differ: %d", a.status)
	}

	if _, err := s.command("base-url", "remove", testBase); err != nil {
		t.Fatal(err)
	}
	challenge := strings.ReplaceAll(invalidChallenge, "http://127.0.0.1:8080", "https://api.example.com")
	if a := s.get("/leads", earlier); a.status != 401 || a.header.Get("WWW-Authenticate") != challenge {
		t.Fatalf("a token of a removed base address: %d %s", a.status, a.body)
	}
	s.get("/leads", current).is(200)
	_, err = s.command("base-url", "remove", next)
	oneLine(t, err, "the current one can only be replaced")
}

// A base address that is taken is its own normal form, and net/url sees its path.
func FuzzBaseURL(f *testing.F) {
	for _, seed := range []string{testBase, "HTTPS://API.Example.com:443/api/v1", "https://[::1]:8080/v1",
		"https://a/v1/", "https://a/../v1", "https://a/%2e/v1", "https://a/api/legacy/v1", "https://u@a/v1",
		"https://a/v1?x", "//a/v1", "https:///v1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		normal, path, err := parseBaseURL(s)
		if err != nil {
			return
		}
		again, same, err := parseBaseURL(normal)
		if err != nil || again != normal || same != path {
			t.Fatalf("%q is %q, and that is %q, %v", s, normal, again, err)
		}
		u, err := url.Parse(normal)
		if err != nil || u.Path != path || u.RawQuery != "" || u.Fragment != "" || u.User != nil ||
			cleanPath(path) != path || !strings.HasSuffix(path, "/v1") {
			t.Fatalf("%q is %q with the path %q, which net/url reads as %+v, %v", s, normal, path, u, err)
		}
	})
}

func TestAccount_closingSaysWhatStopsAndReopeningStartsItAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("Trattoria")
	auth := s.auth(tenant, scopeLeads)
	s.addWidget(tenant)
	s.addLicense(license{AccountID: tenant})
	s.must("license", "revoke", func() string { id, _ := s.addLicense(license{AccountID: tenant}); return id }())
	s.must("token", "revoke", s.revocableToken(tenant))
	s.must("origin", "add", "https://a.example", "-account", tenant)
	s.must("origin", "add", "https://b.example", "-account", tenant)
	s.addWebhook(tenant, "lead.created")
	s.must("webhook", "disable", s.addWebhook(tenant, "lead.created"))
	own, _ := s.registerApp(func(p *app) { p.AccountID = tenant })
	s.appToken(own, tenant, scopeOrders)
	s.appToken(own, s.account, scopeOrders) // is another account's
	_, ended := s.appToken(own, tenant, scopeOrders)
	s.must("grant", "revoke", ended)
	s.change(func(t *tx) error {
		o := anOrder(tenant)
		o.ReturnURL = "https://a.example/thanks"
		_, err := createOrder(t, o, guest{}, minOrderLife, anActor)
		return errors.Join(err, bringTo(t, o, orderAuthorized))
	})
	before := s.dump()
	_, err := s.command("account", "close", tenant)
	oneLine(t, err, "closing "+tenant+" (Trattoria) stops 1 token, 2 origins, 1 application, "+
		"1 grant, 1 licence, 1 widget, 1 webhook, 1 live payment (59.00 CHF released)",
		"add -force")
	s.unchanged(before)
	s.get("/leads", auth).is(200)
	want := `{"ok":true,"stopped":{"apps":1,"grants":1,"licenses":1,"origins":2,"payments":1,"tokens":1,` +
		`"webhooks":1,"widgets":1}}`
	equal(t, "what closing printed", s.must("account", "close", tenant, "-force", "-json"), want+"\n")
	s.hasRows(1, `payments WHERE due_at IS NOT NULL AND polls = 0`)
	s.get("/leads", auth).is(401)
	s.must("account", "reopen", tenant)
	s.get("/leads", auth).is(200)
	s.hasRows(2, `origins o JOIN accounts a ON a.id = o.account_id
		WHERE a.closed_at IS NULL AND origin LIKE 'https://_.example'`)
	_, err = s.command("account", "reopen", "acct_00000000000000000000000000")
	oneLine(t, err, "not found")
}

// revocableToken issues a token with a command and returns its id.
func (s *service) revocableToken(account string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		_, row, err := issueToken(t, s.keys, tokenRow{AccountID: account, ClientID: "test", Scope: scopeLeads},
			time.Hour)
		id = row.ID
		return err
	})
	return id
}

// The vectors are those of RFC 3492, section 7.1, but for the one whose letters change their case.
func TestPunycode_isThatOfTheRFC(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ليهمابتكلموشعربي؟":                        "egbpdaj6bu4bxfgehfvwxn",
		"他们为什么不说中文":                                "ihqwcrb4cv8a8dqg056pqjye",
		"他們爲什麽不說中文":                                "ihqwctvzc91f659drss3x8bo0yb",
		"Pročprostěnemluvíčesky":                   "Proprostnemluvesky-uyb24dma41a",
		"למההםפשוטלאמדבריםעברית":                   "4dbcagdahymbxekheh6e0a7fei0b",
		"почемужеонинеговорятпорусски":             "b1abfaaepdrnnbgefbadotcwatmq2g4l",
		"PorquénopuedensimplementehablarenEspañol": "PorqunopuedensimplementehablarenEspaol-fmd56a",
		"3年B組金八先生":                                 "3B-ww4c5e180e575a65lsy2b",
		"安室奈美恵-with-SUPER-MONKEYS":                 "-with-SUPER-MONKEYS-pc58ag80a8qai00g7n9n",
		"Hello-Another-Way-それぞれの場所":                "Hello-Another-Way--fc4qua05auwb3674vfr0b",
		"ひとつ屋根の下2":                                 "2-u9tlzr9756bt3uc0v",
		"MajiでKoiする5秒前":                            "MajiKoi5-783gue6qz075azm5e",
		"パフィーdeルンバ":                                "de-jg4avhby1noc0d",
		"そのスピードで":                                  "d9juau41awczczp",
		"-> $1.00 <-":                              "-> $1.00 <--",
	} {
		equal(t, fmt.Sprintf("%s is encoded as", text), punycode(text), want)
	}
}

// audit returns what events say that were written after the given one, oldest first: type, actor,
// account, subject and data.
func (s *service) audit(after int) (all []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT type || ' ' || actor || ' ' || account_id || ' ' || subject_id || ' ' || data
		FROM events WHERE seq > ? ORDER BY seq`, []any{after}, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		all = append(all, line)
		return err
	}))
	return all
}
