package main

import (
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
	o.do("account", "rate", id, "1200")
	o.do("account", "close", id)
	rows := o.objects("account", "list")
	if got := column(rows, "name"); !slices.Equal(got, []any{"main", "Trattoria Roma", "Other"}) {
		t.Errorf("names %v", got)
	}
	if rows[1]["rate"] != 1200.0 || rows[1]["closed_at"] == nil || rows[0]["rate"] != 600.0 || rows[0]["closed_at"] != nil || rows[0]["main"] != true {
		t.Errorf("rows %v", rows)
	}
	if table := o.do("account", "list"); !regexp.MustCompile(`(?m)^` + id + `  Trattoria Roma +- +1200 +\d{4}-`).MatchString(table) {
		t.Errorf("table:\n%s", table)
	}
	o.fails("the main account can't be closed", "account", "close", o.account)
	o.fails("is closed", "token", "issue", "-account", id, "-scope", "stats:read")

	o.do("origin", "add", "-account", o.account, "HTTPS://Shop.Example.com:443")
	o.do("origin", "add", "https://shop.example.com", "-account", o.account) // again is fine
	if got := column(o.objects("origin", "list"), "origin"); !slices.Equal(got, []any{"https://partner.example", "https://shop.example.com", siteOrigin}) {
		t.Errorf("origins %v", got)
	}
	other := strings.TrimSpace(o.do("account", "add", "Other"))
	o.fails("already belongs to "+o.account, "origin", "add", siteOrigin, "-account", other)
	o.do("origin", "remove", "https://shop.example.com")
	o.fails("the matching list command prints what there is", "origin", "remove", "https://shop.example.com")

	o.do("base-url", "set", "https://API.example.com/api/v1")
	if got := column(o.objects("base-url"), "url"); !slices.Equal(got, []any{"https://api.example.com/api/v1", testBase}) {
		t.Errorf("base addresses %v", got)
	}
	o.fails("the current one can only be replaced", "base-url", "remove", "https://api.example.com/api/v1")
	o.do("base-url", "remove", testBase)
	if got := column(o.objects("base-url"), "current"); !slices.Equal(got, []any{true}) {
		t.Errorf("base addresses %v", got)
	}
}

func tokenStory(t *testing.T, o *operator) {
	out := o.do("token", "issue", "-account", o.account, "-scope", "stats:read leads:read", "-client-id", "portal")
	token, alone := strings.CutSuffix(out, "\n")
	if !alone || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \n") {
		t.Fatalf("printed %q, want the token alone", out)
	}
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	c, err := ring.verify(token)
	if err != nil || c.Subject != o.account || c.Scope != "stats:read leads:read" || c.ClientID != "portal" || c.Expires-c.IssuedAt != 720*3600 {
		t.Errorf("claims %+v, %v", c, err)
	}
	issued := o.object("token", "issue", "-account", o.account, "-scope", "admin", "-ttl", "90d", "-all-accounts")
	if !validID("tok", issued["id"].(string)) || issued["token"] == nil || issued["expires_at"] == nil {
		t.Errorf("issued %v", issued)
	}
	o.do("token", "revoke", issued["id"].(string))
	rows := o.objects("token", "list")
	if len(rows) != 2 || rows[0]["id"] != issued["id"] || rows[0]["revoked_at"] == nil || rows[0]["all_accounts"] != true || rows[1]["revoked_at"] != nil {
		t.Errorf("rows %v", rows)
	}
	if all := o.do("token", "list") + o.do("token", "list", "-json"); strings.Contains(all, strings.Split(token, ".")[2]) {
		t.Error("a token is shown again")
	}
}

func TestAccount_closedHasItsTokensRefusedAtOnce(t *testing.T) {
	s := newService(t)
	second := s.addAccount("second")
	auth := "Authorization: Bearer " + s.token(second, scopeLeads)
	s.get("/leads", auth).is(200)
	s.change(func(t *tx) error { return t.closeAccount(second) })
	s.get("/leads", auth).challenged(401, "invalid_token", invalidChallenge)
	err := s.store.update(t.Context(), func(t *tx) error {
		_, _, err := issueToken(t, s.keys, tokenRow{AccountID: second, ClientID: "x", Scope: scopeLeads}, time.Hour)
		return err
	})
	if err == nil {
		t.Fatal("a closed account got a token")
	}
}

func TestBaseURL_ofEarlierTokensHoldsUntilItIsRemoved(t *testing.T) {
	const next = "https://api.example.com/v1"
	s := newService(t)
	earlier := "Authorization: Bearer " + s.token(s.account, scopeLeads)
	s.change(func(t *tx) error { return t.setBaseURL(next) })
	s.check(s.server.refresh())
	current := "Authorization: Bearer " + s.token(s.account, scopeLeads)
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
	if a := s.get("/leads", "Authorization: Bearer "+token); a.status != 401 {
		t.Fatalf("iss and aud differ: %d", a.status)
	}

	if _, err := s.command("base-url", "remove", testBase); err != nil {
		t.Fatal(err)
	}
	if a := s.get("/leads", earlier); a.status != 401 || a.header.Get("WWW-Authenticate") != invalidChallenge {
		t.Fatalf("a token of a removed base address: %d %s", a.status, a.body)
	}
	s.get("/leads", current).is(200)
	_, err = s.command("base-url", "remove", next)
	oneLine(t, err, "the current one can only be replaced")
}

// A base address that is taken is its own normal form, and net/url sees its path.
func FuzzBaseURL(f *testing.F) {
	for _, seed := range []string{testBase, "HTTPS://API.Example.com:443/api/v1", "https://[::1]:8080/v1", "https://a/v1/", "https://a/../v1", "https://a/%2e/v1", "https://a/api/legacy/v1", "https://u@a/v1", "https://a/v1?x", "//a/v1", "https:///v1"} {
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
		if err != nil || u.Path != path || u.RawQuery != "" || u.Fragment != "" || u.User != nil || cleanPath(path) != path || !strings.HasSuffix(path, "/v1") {
			t.Fatalf("%q is %q with the path %q, which net/url reads as %+v, %v", s, normal, path, u, err)
		}
	})
}
