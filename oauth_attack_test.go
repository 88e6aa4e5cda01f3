package main

import (
	"crypto/sha256"
	"testing"
	"testing/synctest"
	"time"
)

func TestRevocation_ofATokenByClientCredentialsLeavesWhatElseIsCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // where the writer looks for others' commits only while time passes
		s := quietService(t)
		web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
		own := func() string {
			return s.askToken("grant_type=client_credentials", basicAuth(web.ID, secret)).is(200).text("access_token")
		}
		mine, other := own(), own()
		revoke := func(token string) {
			t.Helper()
			s.post("/oauth/revoke", tokenForm("token", token), formType, basicAuth(web.ID, secret)).is(200)
		}
		cached := func() {
			t.Helper()
			for _, token := range []string{mine, other} {
				s.get("/orders", bearer(token)).is(200)
				synctest.Wait()
			}
		}
		cached()
		time.Sleep(3 * foreignInterval)
		cached() // after which the first look for others' commits is over
		cached()
		for _, token := range []string{mine, other} {
			key := tokenKey{sha256.Sum256([]byte(token)), s.server.keys.Load()}
			if _, ok := s.server.callers.get(s.store, key); !ok {
				t.Fatal("nothing is cached")
			}
		}
		before := s.store.changes.global.Load()
		revoke(mine)
		revoke(mine) // again
		failIf(t, s.store.changes.global.Load() != before, "every cache is thrown away")
		s.get("/orders", bearer(mine)).is(401, "invalid_token")
		s.get("/orders", bearer(other)).is(200)
	})
}

func TestOAuthPages_areLimitedApartFromTheTokenEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := serviceWithApp(t, inBrowsers)
		page := func() answer { return s.get(authorizePath(p.askFor())) }
		for range 60 {
			page().is(200)
		}
		page().is(429)
		for range 3 { // what refills one bucket quickly must not refill the other
			s.askToken(refreshForm(p, "x")).refuses(400, "invalid_grant")
			time.Sleep(200 * time.Millisecond)
			page().is(429)
		}
		asked := size(5, 600)
		for i := range asked {
			if s.askToken(refreshForm(p, "x"), "Peer: 192.0.2.9:1").refuses(400, "invalid_grant"); i == 0 {
				s.spend("oauth 192.0.2.9", 600-asked)
			}
		}
		s.get(authorizePath(p.askFor()), "Peer: 192.0.2.9:1").is(200)
	})
}

func TestTokenEndpoint_aUsedCodeLeavesAnApplicationToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := serviceWithApp(t, inBrowsers)
		q, _ := s.registerApp(inBrowsers)
		used := s.agree(p, s.account, scopeOrders)
		s.askToken(codeForm(p, used)).is(200)
		for range 60 {
			s.askToken(codeForm(p, used)).refuses(400, "invalid_grant")
		}
		s.askToken(codeForm(p, used)).refuses(429, "temporarily_unavailable").has("Retry-After: 1")
		s.askToken(codeForm(p, used), "Peer: 192.0.2.7:1").refuses(429, "temporarily_unavailable")
		s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200)
		s.askToken(codeForm(q, s.agree(q, s.account, scopeOrders))).is(200)
		s.askToken(refreshForm(p, "x")).refuses(400, "invalid_grant") // which is counted by address alone
		if left := s.server.addressBuckets.look("app "+p.ID, appRate, s.server.steady()).remaining; left < appRate {
			t.Errorf("the application has %d requests left", left)
		}
	})
}

func TestTokenEndpoint_takesNoCodeForWhatTheApplicationIsNoMore(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	tenant := s.addAccount("Trattoria")
	public := func(p *app) { p.Kind, p.AccountID = appBrowser, tenant }
	const other = "https://app.example/other"
	for name, c := range map[string]struct {
		account, change string
		status          int
	}{
		"as it was":             {s.account, ``, 200},
		"nobody vouches for it": {s.account, `UPDATE apps SET verified_at = NULL WHERE id = ?`, 400},
		"nobody but its owner":  {tenant, `UPDATE apps SET verified_at = NULL WHERE id = ?`, 200},
		"the address is not its any more": {s.account,
			`UPDATE apps SET redirect_uris = '["` + other + `"]' WHERE id = ?`, 400},
		"it has another address": {s.account,
			`UPDATE apps SET redirect_uris = '["` + other + `","` + testRedirect + `"]' WHERE id = ?`, 200},
		"it may ask for something else": {s.account, `UPDATE apps SET scope = 'leads:read' WHERE id = ?`, 400},
		"it may ask for less":           {s.account, `UPDATE apps SET scope = 'orders:read' WHERE id = ?`, 200},
		"it is removed":                 {s.account, `UPDATE apps SET removed_at = updated_at WHERE id = ?`, 400},
		"the account that owns it is shut": {s.account,
			`UPDATE accounts SET closed_at = created_at WHERE id = (SELECT account_id FROM apps WHERE id = ?)`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.t = t
			p, _ := s.registerApp(public)
			code := s.agree(p, c.account, scopeOrders+" "+scopeWebhooks)
			if c.change != "" {
				s.sql(c.change, p.ID)
			}
			a := s.askToken(codeForm(p, code)).is(c.status)
			if c.status == 200 {
				s.get("/orders", bearer(a.text("access_token"))).is(200)
			}
			failIf(t, s.count(`SELECT count(*) FROM grants WHERE app_id = ?`, p.ID) != 0 != (c.status == 200),
				"the application has a grant, or lacks one")
			s.sql(`UPDATE accounts SET closed_at = NULL`)
		})
	}
}

func TestAppToken_losesAtOnceWhatTheApplicationMayNotAskForAnyMore(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders + " " + scopeWebhooks) })
	own := s.askToken("grant_type=client_credentials", basicAuth(web.ID, secret)).is(200).text("access_token")
	agreed, _ := s.appToken(web, s.account, scopeOrders+" "+scopeWebhooks)
	apps := s.token(s.account, scopeApps+" "+scopeOrders+" "+scopeWebhooks)
	ask := func(token, path string, status int) {
		t.Helper()
		s.get(path, bearer(token)).is(status)
	}
	change := func(body string) {
		t.Helper()
		s.do("PATCH", "/apps/"+web.ID, body, bearer(apps), "Content-Type: application/json").is(200)
	}
	for _, token := range []string{own, agreed} {
		ask(token, "/orders", 200)
		ask(token, "/webhooks", 200)
	}
	change(`{"own_scope":"webhooks:write"}`)
	ask(own, "/orders", 403)
	ask(own, "/webhooks", 200)
	ask(agreed, "/orders", 200)
	change(`{"own_scope":null,"scope":"webhooks:write"}`)
	ask(own, "/webhooks", 403)
	ask(own, "/account", 200)
	ask(agreed, "/orders", 403)
	ask(agreed, "/webhooks", 200)
	change(`{"scope":"webhooks:write orders:read"}`)
	ask(agreed, "/orders", 200) // as was agreed
}

func TestTokenEndpoint_forgetsASuccessorThatHasBeenUsed(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	token := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200).text("refresh_token")
	for number := 1; number <= 4; number++ {
		token = s.askToken(refreshForm(p, token)).is(200).text("refresh_token")
		// Only the one that was replaced last leads to the one that works.
		expect(t, s.count(`SELECT sum(number) FROM refresh_tokens WHERE successor IS NOT NULL`), number,
			"the sum of the numbers of those that lead to another")
	}
}

func TestConsent_givesNoCodeWhenNobodyVouchesForTheApplicationAnyMore(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	tenant := s.addAccount("Trattoria")
	p, _ := s.registerApp(func(p *app) { p.AccountID = tenant })
	pages := &oauthPages{server: s.server}
	asked := func(account string) error {
		_, err := pages.giveCode(t.Context(), &consent{app: p, redirectURI: testRedirect, challenge: testChallenge,
			scope: scopeOrders, session: &session{AccountID: account, MadeBy: "test"}}, scopeOrders)
		return err
	}
	s.check(asked(s.account))
	s.sql(`UPDATE apps SET verified_at = NULL WHERE id = ?`, p.ID) // within the second of its last change
	expect(t, asked(s.account), errConsentChanged, "a stranger's account")
	s.check(asked(tenant))
	s.hasRows(2, `grant_codes`)
}
