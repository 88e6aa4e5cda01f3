package main

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestBaseURL_ofEarlierTokensHoldsUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	const next = "https://api.example.com/v1"
	s := newService(t)
	earlier := s.auth(s.account, scopeLeads)
	s.change(func(t *tx) error {
		t.setBaseURL(next)
		return nil
	})
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
