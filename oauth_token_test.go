package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTokenEndpoint_issuesTokensForACodeOnceAndThenForItsRefreshToken(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	web, secret := s.registerApp()
	browser, _ := s.registerApp(inBrowsers)
	for _, p := range []*app{web, browser} {
		auth := "Accept: */*"
		if !p.public() {
			auth = basicAuth(p.ID, secret)
		}
		code := s.agree(p, s.account, scopeOrders+" "+scopeWebhooks)
		first := s.askToken(codeForm(p, code), auth).is(200)
		if got := first.json(); got["token_type"] != "Bearer" || got["expires_in"] != 3600. ||
			got["scope"] != "webhooks:write orders:read" || len(got) != 5 {
			t.Errorf("%s: %s", p.Kind, first.body)
		}
		s.get("/orders", bearer(first.text("access_token"))).is(200)
		s.get("/leads", bearer(first.text("access_token"))).is(403, "insufficient_scope")
		second := s.askToken(refreshForm(p, first.text("refresh_token")), auth).is(200)
		if same := second.text("refresh_token") == first.text("refresh_token"); same == p.public() {
			t.Errorf("%s: the same refresh token is %v", p.Kind, same)
		}
		s.get("/orders", bearer(second.text("access_token"))).is(200)
		s.askToken(codeForm(p, code), auth).refuses(400, "invalid_grant")
		for _, gone := range []answer{first, second} {
			s.get("/orders", bearer(gone.text("access_token"))).is(401, "invalid_token")
		}
		s.askToken(refreshForm(p, second.text("refresh_token")), auth).refuses(400, "invalid_grant")
	}
	expect(t, s.count(`SELECT count(*) FROM grants WHERE ended_by = 'code_reused'`), 2, "grants that have ended")
}

func TestTokenEndpoint_stopsAtTheFirstStepThatFails(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	p, _ := s.registerApp(inBrowsers)
	fails := func(table, form string) {
		t.Helper()
		before := s.dump()
		s.change(func(t *tx) error {
			return t.run(`CREATE TRIGGER full BEFORE INSERT ON ` + table + ` BEGIN SELECT RAISE(ABORT, 'no room'); END`)
		})
		s.log.Reset()
		s.askToken(form).refuses(500, "server_error")
		if log := s.log.String(); !strings.Contains(log, "no room") || strings.Contains(log, "FOREIGN KEY") {
			t.Errorf("%s can't be written, and the log has %s", table, log)
		}
		s.change(func(t *tx) error { return t.run(`DROP TRIGGER full`) })
		s.unchanged(before)
	}
	code := s.agree(p, s.account, scopeOrders)
	fails("grants", codeForm(p, code)) // whose event and token would name no grant
	first := s.askToken(codeForm(p, code)).is(200).text("refresh_token")
	fails("refresh_tokens", refreshForm(p, first))
	s.askToken(refreshForm(p, first)).is(200)
}

// twoSecrets gives an application another secret, beside which the one before is taken for a while.
func (s *service) twoSecrets(p *app) (second string) {
	s.t.Helper()
	second = newRefreshToken()
	p.EarlierHash, p.SecretHash = p.SecretHash, hashOf(second)
	s.change(func(t *tx) error {
		p.EarlierUntil = t.now.after(appSecretOverlap)
		return t.saveApp(p)
	})
	return second
}

func TestTokenEndpoint_takesAnApplicationThatProvesItselfInOneWay(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	own := func(p *app) { p.OwnScope = ptr(scopeOrders) }
	web, secret := s.registerApp(own)
	browser, _ := s.registerApp(inBrowsers)
	gone, goneSecret := s.registerApp(own)
	gone.RemovedAt = newStamp(s.server.now())
	s.change(func(t *tx) error { return t.saveApp(gone) })
	closed, closedSecret := s.registerApp(own, func(p *app) { p.AccountID = s.addAccount("closed") })
	s.change(func(t *tx) error { return t.closeAccount(closed.AccountID) })
	second := s.twoSecrets(web)
	basic := func(text string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(text))
	}
	form := func(pairs ...string) string {
		return tokenForm(append(pairs, "grant_type", "client_credentials")...)
	}
	for _, c := range []struct {
		name, form string
		headers    []string
		status     int
		error      string
	}{
		{"the secret in the header", form(), []string{basicAuth(web.ID, second)}, 200, ""},
		{"the secret before", form(), []string{basicAuth(web.ID, secret)}, 200, ""},
		{"the secret in the body", form("client_id", web.ID, "client_secret", second), nil, 200, ""},
		{"both halves encoded", form(), []string{basic("%61pp_" + web.ID[4:] + ":" + second)}, 200, ""},
		{"the same client_id beside it", form("client_id", web.ID), []string{basicAuth(web.ID, second)}, 200, ""},
		{"the scheme in capitals", form(), []string{strings.Replace(basicAuth(web.ID, second), "Basic",
			"BASIC", 1)}, 200, ""},
		{"an empty secret beside it", form("client_secret", ""), []string{basicAuth(web.ID, second)}, 200, ""},
		{"another client_id beside it", form("client_id", browser.ID), []string{basicAuth(web.ID, second)},
			400, "invalid_request"},
		{"two secrets", form("client_id", web.ID, "client_secret", second), []string{basicAuth(web.ID,
			second)}, 400, "invalid_request"},
		{"two headers", form(), []string{basicAuth(web.ID, second), basicAuth(web.ID, second)}, 400, "invalid_request"},
		{"nothing", form(), nil, 400, "invalid_client"},
		{"a secret without an id", form("client_secret", second), nil, 400, "invalid_client"},
		{"a bearer token", form(), []string{bearer(second)}, 400, "invalid_client"},
		{"a bearer token beside the secret", form("client_id", web.ID, "client_secret", second),
			[]string{"Authorization: Bearer x"}, 400, "invalid_client"},
		{"no secret", form("client_id", web.ID), nil, 400, "invalid_client"},
		{"a wrong secret", form("client_id", web.ID, "client_secret", "x"), nil, 400, "invalid_client"},
		{"a wrong secret in the header", form(), []string{basicAuth(web.ID, "x")}, 401, "invalid_client"},
		{"the hash as the secret", form(), []string{basicAuth(web.ID, string(web.SecretHash))}, 401, "invalid_client"},
		{"no base64", form(), []string{"Authorization: Basic ~~~"}, 401, "invalid_client"},
		{"no colon", form(), []string{basic(web.ID)}, 401, "invalid_client"},
		{"no id", form(), []string{basic(":" + second)}, 401, "invalid_client"},
		{"a broken escape", form(), []string{basic(web.ID + ":" + second + "%z")}, 401, "invalid_client"},
		{"an unknown application", form(), []string{basicAuth(newID("app", time.Now()), second)}, 401,
			"invalid_client"},
		{"an unknown application in the body", form("client_id", "' OR 1=1", "client_secret", second), nil,
			400, "invalid_client"},
		{"a removed application", form(), []string{basicAuth(gone.ID, goneSecret)}, 401, "invalid_client"},
		{"a closed owner", form(), []string{basicAuth(closed.ID, closedSecret)}, 401, "invalid_client"},
		{"a secret of one that has none", form("client_id", browser.ID, "client_secret", "x"), nil, 400,
			"invalid_client"},
		{"the same in the header", form(), []string{basicAuth(browser.ID, "x")}, 401, "invalid_client"},
		{"a public application by the header", form(), []string{basicAuth(browser.ID, "")}, 401, "invalid_client"},
		{"a public application", form("client_id", browser.ID), nil, 400, "unauthorized_client"},
	} {
		a := s.askToken(c.form, c.headers...)
		a.t = t
		challenge := ""
		if c.status == 401 {
			challenge = `Basic realm="widgetd"`
		}
		if a.status != c.status || c.error != "" && a.text("error") != c.error ||
			a.header.Get("WWW-Authenticate") != challenge {
			t.Errorf("%s: %d %s, want %d %s", c.name, a.status, a.body, c.status, c.error)
		}
	}
	web.EarlierUntil = newStamp(s.server.now())
	s.change(func(t *tx) error { return t.saveApp(web) })
	s.askToken(form(), basicAuth(web.ID, secret)).refuses(401, "invalid_client")
	s.askToken(form(), basicAuth(web.ID, second)).is(200)
}

func TestTokenEndpoint_refusesToTheByteWhatStandardsHaveNamesFor(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	web, secret := s.registerApp()
	auth := basicAuth(web.ID, secret)
	right := codeForm(web, s.agree(web, s.account, scopeOrders))
	for _, c := range []struct {
		name         string
		answer       answer
		status       int
		error, gives string
	}{
		{"GET", s.get("/oauth/token"), 405, "invalid_request", "This path allows only the methods POST."},
		{"DELETE", s.do("DELETE", "/oauth/token", ""), 405, "invalid_request",
			"This path allows only the methods POST."},
		{"GET with all in the URL", s.get("/oauth/token?" + right), 405, "invalid_request",
			"This path allows only the methods POST."},
		{"a large body", s.askToken(strings.Repeat("x", maxBody+1), auth), 413, "invalid_request",
			"The body has more than 16 KiB."},
		{"JSON", s.post("/oauth/token", `{"grant_type":"x"}`, auth), 415, "invalid_request",
			"The body must be an uncompressed form in UTF-8: application/x-www-form-urlencoded."},
		{"a parameter twice", s.askToken(right+"&code=x", auth), 400, "invalid_request", "The form has a field twice."},
		{"an unknown one twice", s.askToken(right+"&x=1&x=1", auth), 400, "invalid_request",
			"The form has a field twice."},
		{"a malformed form", s.askToken(right+"&x=%zz", auth), 400, "invalid_request", "The form can't be read."},
		{"a malformed URL", s.post("/oauth/token?%zz", right, formType, auth), 400, "invalid_request",
			"The query string of the URL is malformed."},
		{"the code in the URL", s.post("/oauth/token?code=x", right, formType, auth), 400, "invalid_request",
			"Parameters belong into the body, not into the URL."},
		{"the secret in the URL", s.post("/oauth/token?client_secret="+secret, right, formType), 400, "invalid_request",
			"Parameters belong into the body, not into the URL."},
		{"no grant_type", s.askToken("grant_type=&code=x", auth), 400, "invalid_request",
			"The parameter grant_type must be present."},
		{"the grant_type of passwords", s.askToken("grant_type=password", auth), 400, "unsupported_grant_type",
			"The grant_type must be authorization_code, refresh_token or client_credentials."},
		{"no code", s.askToken(codeForm(web, ""), auth), 400, "invalid_request", "The parameter code must be present."},
		{"no redirect_uri", s.askToken(codeForm(web, "x", "redirect_uri", ""), auth), 400, "invalid_request",
			"The parameter redirect_uri must be present, as it was when the code was asked for."},
		{"no verifier", s.askToken(codeForm(web, "x", "code_verifier", ""), auth), 400, "invalid_request",
			"The parameter code_verifier must be present, and have 43 to 128 letters, digits and -._~."},
		{"no refresh token", s.askToken(refreshForm(web, ""), auth), 400, "invalid_request",
			"The parameter refresh_token must be present."},
		{"no client credentials", s.askToken("grant_type=client_credentials", auth), 400, "unauthorized_client",
			"The application is not registered for client credentials."},
		{"another resource", s.askToken(right+"&resource=https://api.example", auth), 400, "invalid_target",
			"The resource must be the base address of this service."},
		{"an unknown code", s.askToken(codeForm(web, "x"), auth), 400, "invalid_grant",
			"The code or refresh token is unknown, has expired, or is another application's."},
		{"no application", s.askToken(right), 400, "invalid_client",
			"The application is unknown, or has not proved itself."},
		{"no token to revoke", s.post("/oauth/revoke", "token=", formType, auth), 400, "invalid_request",
			"The parameter token must be present."},
		{"a token in the URL", s.post("/oauth/revoke?token=x", "token=x", formType, auth), 400, "invalid_request",
			"Parameters belong into the body, not into the URL."},
		{"GET of revocation", s.get("/oauth/revoke"), 405, "invalid_request",
			"This path allows only the methods POST."},
	} {
		c.answer.refuses(c.status, c.error)
		want := `{"error":"` + c.error + `","error_description":"` + c.gives + "\"}"
		failIf(t, strings.TrimSpace(c.answer.body) != want, "%s: %s, want %s", c.name, c.answer.body, want)
	}
	s.askToken(right+"&resource="+url.QueryEscape(testBase)+"&x=1&state=&client_secret=", auth).is(200)
}

func TestTokenEndpoint_namesEveryFaultOfTheServiceToo(t *testing.T) {
	t.Parallel()
	names := map[string]bool{"temporarily_unavailable": true, "server_error": true}
	for _, c := range oauthErrors {
		names[c.name] = true
	}
	enum := texts(child(openapiDocument(), "components", "schemas", "OAuthError", "properties", "error"), "enum")
	failIf(t, len(enum) != len(names) || slices.ContainsFunc(enum, func(name string) bool { return !names[name] }),
		"the document has %q, the service %v", enum, names)
	for _, c := range []struct {
		ref    *refusal
		status int
		error  string
	}{
		{errStorage, 503, "temporarily_unavailable"}, {errBusy, 503,
			"temporarily_unavailable"}, {errCommitUnknown, 503, "temporarily_unavailable"},
		{errRate(limitReached{}, "So.", time.Second).(*refusal), 429,
			"temporarily_unavailable"}, {&refusal{code: codeInternal}, 500, "server_error"},
		{&refusal{code: codeInternal, detail: "é\"\\\n"}, 500, "server_error"}, {errOrigin, 403, "invalid_request"},
		{&refusal{code: codeValidation, detail: "é\"\\\n"}, 400, "invalid_request"},
	} {
		w := httptest.NewRecorder()
		out := refuseOAuth(w.Header(), c.ref)
		answer{t, out.status, http.Header{"X-Request-Id": {"req_"}, "X-Content-Type-Options": {"nosniff"},
			"Cache-Control": {"no-store"}, "Ratelimit": {`"x";r=0;t=1`}, "Ratelimit-Policy": {`"x";q=1;w=60`},
			"Retry-After":  {"1"},
			"Content-Type": w.Header()["Content-Type"]}, string(out.body)}.refuses(c.status, c.error)
	}
	s, p := serviceWithApp(t, inBrowsers)
	form := codeForm(p, s.agree(p, s.account, scopeOrders))
	s.sql(`ALTER TABLE grant_codes RENAME TO lost`)
	s.askToken(form).refuses(503, "temporarily_unavailable")
}

func TestTokenEndpoint_aWrongProofUsesNoCodeUp(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	other, _ := s.registerApp(inBrowsers)
	web, secret := s.registerApp()
	code := s.agree(p, s.account, scopeOrders)
	webCode := s.agree(web, s.account, scopeOrders)
	before := s.dump()
	verifier := strings.Repeat("a", 43)
	for name, form := range map[string]string{
		"another application":    codeForm(p, code, "client_id", other.ID),
		"no application":         codeForm(p, code, "client_id", ""),
		"a secret":               codeForm(p, code, "client_secret", "x"),
		"another redirect_uri":   codeForm(p, code, "redirect_uri", testRedirect+"/"),
		"a longer redirect_uri":  codeForm(p, code, "redirect_uri", testRedirect+"?x=1"),
		"another verifier":       codeForm(p, code, "code_verifier", verifier),
		"the challenge":          codeForm(p, code, "code_verifier", testChallenge),
		"a short verifier":       codeForm(p, code, "code_verifier", verifier[:42]),
		"a long verifier":        codeForm(p, code, "code_verifier", strings.Repeat("a", 129)),
		"a verifier with spaces": codeForm(p, code, "code_verifier", verifier+" "),
		"a code of the web's":    codeForm(p, webCode),
		"no proof by the web":    codeForm(web, webCode, "client_id", web.ID),
		"another resource":       codeForm(p, code, "resource", testBase+"/"),
		"the code as a refresh":  refreshForm(p, code),
		"a part of the code":     codeForm(p, code[:20]),
	} {
		if a := s.askToken(form); a.status != 400 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	s.askToken(codeForm(p, code, "client_id", ""), basicAuth(p.ID, "")).refuses(401, "invalid_client")
	s.askToken(codeForm(web, code), basicAuth(web.ID, secret)).refuses(400, "invalid_grant")
	s.unchanged(before)
	s.askToken(codeForm(p, code)).is(200)
	after := s.dump()
	s.askToken(codeForm(p, code, "code_verifier", verifier)).refuses(400,
		"invalid_grant") // nor does it end what came of the code
	s.askToken(codeForm(p, code, "client_id", other.ID)).refuses(400, "invalid_grant")
	s.unchanged(after)
}

func TestTokenEndpoint_yieldsNothingForWhatHasEnded(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	guest := s.addAccount("guest")
	token := s.askToken(codeForm(p, s.agree(p, guest, scopeOrders))).is(200).text("refresh_token")
	code := s.agree(p, guest, scopeOrders)
	s.change(func(t *tx) error { return t.closeAccount(guest) })
	s.askToken(codeForm(p, code)).refuses(400, "invalid_grant")
	s.askToken(refreshForm(p, token)).refuses(400, "invalid_grant")

	second := s.askToken(codeForm(p, s.agree(p, s.account,
		scopeOrders+" "+scopeWebhooks))).is(200).text("refresh_token")
	code = s.agree(p, s.account, scopeOrders)
	p.Scope = scopeWebhooks
	s.change(func(t *tx) error { return t.saveApp(p) })
	s.askToken(codeForm(p, code)).refuses(400, "invalid_scope")
	narrowed := s.askToken(refreshForm(p, second, "scope", scopeOrders+" "+scopeWebhooks)).is(200)
	failIf(t, narrowed.text("scope") != scopeWebhooks,
		"what the application is not registered for any more is issued: %s", narrowed.body)
	p.VerifiedAt = stamp{} // it goes on: agreeing needed the operator's word, not acting
	p.RemovedAt = newStamp(s.server.now())
	s.change(func(t *tx) error { return t.saveApp(p) })
	s.askToken(refreshForm(p, narrowed.text("refresh_token"))).refuses(400, "invalid_client")
}

func TestTokenEndpoint_narrowsAnAccessTokenButNotItsGrant(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	token := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders+" "+scopeWebhooks))).is(200).text("refresh_token")
	for _, wider := range []string{scopeSelling, scopeOrders + " " + scopeSelling, "admin", "orders", " ",
		"orders:read\x00"} {
		s.askToken(refreshForm(p, token, "scope", wider)).refuses(400, "invalid_scope")
	}
	a := s.askToken(refreshForm(p, token, "scope", scopeOrders)).is(200)
	failIf(t, a.text("scope") != scopeOrders, "narrowed: %s", a.body)
	s.get("/webhooks", bearer(a.text("access_token"))).is(403, "insufficient_scope")
	if again := s.askToken(refreshForm(p,
		a.text("refresh_token"))).is(200); again.text("scope") != "webhooks:write orders:read" {
		t.Errorf("the refresh token has lost a scope: %s", again.body)
	}
}

func TestTokenEndpoint_endsCodesAndRefreshTokensOnTheSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := serviceWithApp(t, inBrowsers)
		web, secret := s.registerApp()
		in, late := s.agree(p, s.account, scopeOrders), s.agree(p, s.account, scopeOrders)
		time.Sleep(grantCodeLife - time.Second)
		token := s.askToken(codeForm(p, in)).is(200).text("refresh_token")
		kept := s.askToken(codeForm(web, s.agree(web, s.account, scopeOrders)), basicAuth(web.ID,
			secret)).is(200).text("refresh_token")
		time.Sleep(time.Second)
		s.askToken(codeForm(p, late)).refuses(400, "invalid_grant")

		time.Sleep(refreshLife - 2*time.Second)
		token = s.askToken(refreshForm(p, token)).is(200).text("refresh_token")
		s.askToken(refreshForm(web, kept), basicAuth(web.ID, secret)).is(200)
		for range 11 { // a year at most, however often it is used
			time.Sleep(refreshLife - time.Second)
			s.askToken(refreshForm(web, kept), basicAuth(web.ID, secret)).is(200)
		}
		var created, expires stamp
		s.check(s.store.one(`SELECT created_at, expires_at FROM grants WHERE app_id = ?`, []any{web.ID},
			&created, &expires))
		failIf(t, expires != created.after(maxGrantLife), "a grant of %s lasts until %s", created, expires)
		time.Sleep(time.Until(expires.Add(-time.Second)))
		if a := s.askToken(refreshForm(web, kept), basicAuth(web.ID, secret)).is(200); a.text("refresh_token") != kept {
			t.Errorf("another refresh token: %s", a.body)
		}
		time.Sleep(time.Second)
		s.askToken(refreshForm(web, kept), basicAuth(web.ID, secret)).refuses(400, "invalid_grant")
		s.askToken(refreshForm(p, token)).refuses(400, "invalid_grant")
		s.hasRows(0, `grants WHERE ended_at IS NOT NULL`)
	})
}

func TestTokenEndpoint_aReplacedRefreshTokenYieldsItsSuccessorForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := serviceWithApp(t, inBrowsers)
		other, _ := s.registerApp(inBrowsers)
		start := func() string {
			return s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200).text("refresh_token")
		}
		ended := func() int { return s.count(`SELECT count(*) FROM grants WHERE ended_by = 'token_reused'`) }

		first := start()
		second := s.askToken(refreshForm(p, first)).is(200).text("refresh_token")
		time.Sleep(refreshOverlap - time.Second)
		again := s.askToken(refreshForm(p, first)).is(200)
		failIf(t, again.text("refresh_token") != second, "within the overlap comes another successor")
		s.askToken(refreshForm(other, first)).refuses(400, "invalid_grant")
		time.Sleep(time.Second)
		s.askToken(refreshForm(other, first)).refuses(400, "invalid_grant")
		if ended() != 0 {
			t.Fatal("the reuse by another application ends the grant")
		}
		s.askToken(refreshForm(p, first)).refuses(400, "invalid_grant")
		if ended() != 1 || s.count(`SELECT count(*) FROM events WHERE type = 'grant.reuse_detected'`) != 1 {
			t.Fatal("the reuse after 30 seconds is not noticed")
		}
		s.askToken(refreshForm(p, second)).refuses(400, "invalid_grant")
		s.get("/orders", bearer(again.text("access_token"))).is(401, "invalid_token")

		first = start()
		second = s.askToken(refreshForm(p, first)).is(200).text("refresh_token")
		third := s.askToken(refreshForm(p, second)).is(200).text("refresh_token")
		s.askToken(refreshForm(p, first)).refuses(400, "invalid_grant") // the successor has been used
		if s.askToken(refreshForm(p, third)).refuses(400, "invalid_grant"); ended() != 2 {
			t.Error("the reuse after the successor's use is not noticed")
		}
		s.hasRows(0, `refresh_tokens`)
	})
}

func TestTokenEndpoint_fiftyRefreshesAtOnceYieldOneSuccessor(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp(inBrowsers)
	token := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200).text("refresh_token")
	next := make([]string, 50)
	var all sync.WaitGroup
	for i := range next {
		all.Go(func() {
			var body tokenAnswer
			if a := s.askToken(refreshForm(p, token)); a.status == 200 {
				body.RefreshToken, _ = a.json()["refresh_token"].(string)
			}
			next[i] = body.RefreshToken
		})
	}
	all.Wait()
	if got := slices.Compact(next); len(got) != 1 || got[0] == "" || got[0] == token {
		t.Errorf("%d successors: %q", len(got), got)
	}
	s.hasRows(2, `refresh_tokens`)
	s.hasRows(51, `app_tokens`)
}

func TestTokenEndpoint_aCodeThatComesTwiceAtOnceLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp(inBrowsers)
	code := s.agree(p, s.account, scopeOrders)
	var won atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if s.askToken(codeForm(p, code)).status == 200 {
				won.Add(1)
			}
		})
	}
	all.Wait()
	failIf(t, won.Load() != 1 || s.count(`SELECT count(*) FROM grants`) != 1 ||
		s.count(`SELECT count(*) FROM grants WHERE ended_by = 'code_reused'`) != 1,
		"%d have won: %s", won.Load(), s.dump())
}

func TestTokenEndpoint_keepsAThousandRefreshTokensOfAGrant(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	token := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200).text("refresh_token")
	first := token
	s.sql(`UPDATE refresh_tokens SET number = ?`, keptRefreshTokens-1)
	for range 3 {
		token = s.askToken(refreshForm(p, token)).is(200).text("refresh_token")
	}
	s.sql(manyRows(keptRefreshTokens-2) + `
		INSERT INTO refresh_tokens (hash, grant_id, number, replaced_at, expires_at)
		SELECT CAST(printf('%032d', i) AS BLOB), grant_id, i, expires_at, expires_at
		FROM n, refresh_tokens WHERE replaced_at IS NULL`)
	for range 2 {
		token = s.askToken(refreshForm(p, token)).is(200).text("refresh_token")
	}
	n, least := s.count(`SELECT count(*) FROM refresh_tokens`), s.count(`SELECT min(number) FROM refresh_tokens`)
	failIf(t, n != keptRefreshTokens || least != 5, "%d refresh tokens from %d on", n, least)
	s.hasRows(1, `refresh_tokens WHERE successor IS NOT NULL`)
	s.askToken(refreshForm(p, first)).refuses(400, "invalid_grant")
	s.askToken(refreshForm(p, token)).refuses(400, "invalid_grant") // as the first has come again
}

func TestTokenEndpoint_theHundredAndFirstGrantEndsTheFirst(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	s.appToken(p, s.account, scopeOrders)
	s.sql(manyRows(maxGrants-1) + `
		INSERT INTO grants (id, app_id, account_id, scope, agreed_by, created_at, used_at, expires_at)
		SELECT substr(g.id, 1, 14) || printf('%016d', i), app_id, account_id, scope, agreed_by, created_at,
			used_at, expires_at
		FROM n, grants g WHERE true`)
	other, _ := s.appToken(p, s.addAccount("another"), scopeOrders)
	s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200)
	s.hasRows(maxGrants+1, `grants WHERE ended_at IS NULL`)
	s.hasRows(1, `grants WHERE ended_by = 'replaced'
		AND id = (SELECT min(id) FROM grants)`)
	s.get("/orders", bearer(other)).is(200)
}

func TestTokenEndpoint_clientCredentialsActForTheOwner(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	owner := s.addAccount("owner")
	p, secret := s.registerApp(func(p *app) {
		p.AccountID, p.OwnScope = owner, ptr(scopeOrders+" "+scopeLeads)
	})
	auth := basicAuth(p.ID, secret)
	a := s.askToken("grant_type=client_credentials", auth).is(200)
	if got := a.json(); got["scope"] != scopeOrders || got["refresh_token"] != nil {
		t.Errorf("%s: the application is registered for %s only", a.body, p.Scope)
	}
	c, err := s.keys.verify(a.text("access_token"))
	s.check(err)
	failIf(t, c.Subject != owner || c.ClientID != p.ID || c.Grant != "" || c.Expires-c.IssuedAt != 3600, "%+v", c)
	bearer := bearer(a.text("access_token"))
	s.get("/orders", bearer).is(200)
	s.get("/orders?account_id="+s.account, bearer).is(403, "insufficient_scope")
	s.askToken("grant_type=client_credentials&scope=orders:write", auth).refuses(400, "invalid_scope")
	s.post("/oauth/revoke", tokenForm("token", a.text("access_token")), formType, auth).is(200)
	s.get("/orders", bearer).is(401, "invalid_token")
}

func TestRevocation_endsWhatATokenOfTheApplicationStandsFor(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	other, _ := s.registerApp(inBrowsers)
	web, secret := s.registerApp()
	tokens := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200)
	more := s.askToken(refreshForm(p, tokens.text("refresh_token"))).is(200)
	revoke := func(form string, headers ...string) answer {
		t.Helper()
		a := s.post("/oauth/revoke", form, append(headers, formType)...)
		failIf(t, a.status == 200 && (a.body != "" || a.header.Get("Content-Type") != ""),
			"the answer has a body: %q", a.body)
		return a
	}
	works := func(a answer, status int) {
		t.Helper()
		s.get("/orders", bearer(a.text("access_token"))).is(status)
	}
	operators := s.token(s.account, scopeOrders)
	before := s.dump()
	for _, token := range []string{"x", tokens.text("access_token") + "x", newRefreshToken(), operators, p.ID} {
		revoke(tokenForm("client_id", p.ID, "token", token)).is(200)
	}
	for _, theirs := range []string{more.text("refresh_token"), more.text("access_token")} {
		revoke(tokenForm("client_id", other.ID, "token", theirs)).is(200)
		revoke(tokenForm("token", theirs), basicAuth(web.ID, secret)).is(200)
		revoke(tokenForm("token", theirs)).refuses(400, "invalid_client")
		revoke(tokenForm("token", theirs), basicAuth(p.ID, "")).refuses(401, "invalid_client")
		revoke(tokenForm("token", theirs, "client_id", web.ID)).refuses(400, "invalid_client")
	}
	s.unchanged(before)
	revoke(tokenForm("client_id", p.ID, "token", more.text("access_token"), "token_type_hint", "refresh_token")).is(200)
	works(more, 401)
	works(tokens, 200)
	revoke(tokenForm("client_id", p.ID, "token", tokens.text("refresh_token"), "token_type_hint",
		"nonsense")).is(200) // replaced
	works(tokens, 401)
	s.askToken(refreshForm(p, more.text("refresh_token"))).refuses(400, "invalid_grant")
	failIf(t, s.count(`SELECT count(*) FROM grants WHERE ended_by = 'app'`) != 1, "the grant has not ended")
	before = s.dump()
	revoke(tokenForm("client_id", p.ID, "token", tokens.text("refresh_token"))).is(200)
	revoke(tokenForm("client_id", p.ID, "token", more.text("access_token"))).is(200)
	s.unchanged(before)
}

func TestTokenEndpoint_limitsWhatProvesNothingByAddressAndApplicationsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := serviceWithApp(t, inBrowsers)
		web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
		token := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200).text("refresh_token")
		asked := size(5, 600)
		for i := range asked {
			if s.askToken(refreshForm(p, "x")).refuses(400, "invalid_grant"); i == 0 {
				s.spend("oauth "+oneAddress, 600-asked)
			}
		}
		for _, form := range []string{refreshForm(p, "x"), "grant_type=x", codeForm(p, "x")} {
			a := s.askToken(form).refuses(429, "temporarily_unavailable")
			failIf(t, a.header.Get("Retry-After") == "", "429 without Retry-After")
		}
		s.askToken(refreshForm(p, "x"), "Peer: 192.0.2.7:1").refuses(400, "invalid_grant")
		s.askToken(refreshForm(p, token)).is(200)
		s.askToken("grant_type=client_credentials", basicAuth(web.ID, secret)).is(200)
		s.spend("app "+web.ID, appRate-1)
		s.askToken("grant_type=client_credentials", basicAuth(web.ID, secret),
			"Peer: 192.0.2.8:1").refuses(429, "temporarily_unavailable")
		s.askToken(refreshForm(p, token)).is(200)
		own, itsSecret := s.registerApp(func(p *app) { p.OwnScope, p.VerifiedAt = ptr(scopeOrders), stamp{} })
		for i := range asked {
			if s.askToken("grant_type=client_credentials", basicAuth(own.ID, itsSecret)).is(200); i == 0 {
				s.spend("app "+own.ID, 600-asked)
			}
		}
		s.askToken("grant_type=client_credentials", basicAuth(own.ID, itsSecret)).refuses(429,
			"temporarily_unavailable")
	})
}

func TestTokenEndpoint_limitsProofsThatFailAsLicenseKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t)
		browser, _ := s.registerApp(inBrowsers)
		web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
		ask := func(id, secret string) answer {
			return s.askToken("grant_type=client_credentials", basicAuth(id, secret))
		}
		for range 100 { // how libraries find out what an application is
			ask(browser.ID, "").refuses(401, "invalid_client")
		}
		for i := range 30 {
			ask(web.ID, fmt.Sprint("guess", i)).refuses(401, "invalid_client")
		}
		unknown, known := ask(newID("app", time.Now()), "x").refuses(429,
			"temporarily_unavailable"), ask(web.ID, "another").refuses(429, "temporarily_unavailable")
		failIf(t, unknown.body != known.body, "%s and %s differ", unknown.body, known.body)
		ask(web.ID, secret).is(200)
		time.Sleep(lookupWindow)
		for range 61 {
			ask(web.ID, "stale").refuses(401, "invalid_client")
		}
		ask(web.ID, "stale").refuses(429, "temporarily_unavailable")
		ask(web.ID, "another").refuses(401, "invalid_client")
	})
}

func TestRateLimit_anApplicationTakesHalfOfAnAccountsBucketAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t)
		s.change(func(t *tx) error { return t.setRate(s.account, 60) })
		p, _ := s.registerApp()
		q, _ := s.registerApp()
		mine, grantID := s.appToken(p, s.account, scopeOrders)
		same, _ := s.appToken(p, s.account, scopeOrders)
		theirs, _ := s.appToken(q, s.account, scopeOrders)
		own := s.token(s.account, scopeOrders)
		ask := func(token string) answer { return s.get("/orders", bearer(token)) }
		ask(mine).is(200).has(`RateLimit-Policy: "account";q=60;w=60, "application";q=30;w=60`,
			`RateLimit: "account";r=59;t=1, "application";r=29;t=2`)
		for range 29 {
			ask(mine).is(200)
		}
		for _, token := range []string{mine, same} {
			ask(token).is(429, "rate_limited").has("Retry-After: 2",
				`RateLimit: "account";r=30;t=30, "application";r=0;t=60`)
		}
		ask(own).is(200).has(`RateLimit: "account";r=29;t=31`)
		for range 29 {
			ask(theirs).is(200)
		}
		ask(theirs).is(429, "rate_limited").has(`RateLimit: "account";r=0;t=60, "application";r=0;t=60`,
			"Retry-After: 1")
		ask(own).is(429, "rate_limited")
		s.change(func(t *tx) error { return endGrant(t, anyAccount, grantID, endedByOwner, "test") })
		ask(mine).is(401, "invalid_token")
		s.change(func(t *tx) error { return t.setRate(s.account, 1) })
		time.Sleep(2 * time.Minute)
		ask(same).is(200).has(`RateLimit-Policy: "account";q=1;w=60, "application";q=1;w=60`)
	})
}

func TestTokenEndpoint_isReadByScriptsOfTheApplicationsOwnOriginOnly(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers, func(p *app) { p.Origins = codeList{"https://app.example"} })
	other, _ := s.registerApp(inBrowsers)
	for _, c := range []struct {
		form, origin, reads string
		status              int
	}{
		{codeForm(p, s.agree(p, s.account, scopeOrders)), "https://app.example", "https://app.example", 200},
		{codeForm(p, s.agree(p, s.account, scopeOrders)), siteOrigin, "", 200},
		{codeForm(p, "x"), "https://app.example", "https://app.example", 400},
		{codeForm(other, "x"), "https://app.example", "", 400},
	} {
		a := s.askToken(c.form, "Origin: "+c.origin).is(c.status)
		a.has("Access-Control-Allow-Origin: " + c.reads)
	}
	s.do("OPTIONS", "/oauth/token", "", "Origin: https://app.example").is(204).has("Access-Control-Allow-Methods: POST")
	s.do("OPTIONS", "/oauth/token", "", "Origin: "+siteOrigin).refuses(403, "invalid_request")
}

func TestTokenEndpoint_writesEventsOfTheAccount(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, inBrowsers)
	guest := s.addAccount("guest")
	s.askToken(codeForm(p, s.agree(p, guest, scopeOrders))).is(200)
	var account, actor, subject, data, agreed string
	s.check(s.store.one(`SELECT e.account_id, e.actor, e.subject_id, e.data, g.agreed_by
		FROM events e JOIN grants g ON g.id = e.subject_id WHERE e.type = 'grant.created'`,
		nil, &account, &actor, &subject, &data, &agreed))
	failIf(t, account != guest || actor != "app "+p.ID || agreed != "test" ||
		data != `{"app_id":"`+p.ID+`","scope":"orders:read"}`, "%s %s %s %s", account, actor, subject, data)
}

// A request for tokens that somebody else wrote is never a fault of the service, and never accepted with two
// proofs.
func FuzzTokenRequest(f *testing.F) {
	s := newService(f, withoutAddressLimits)
	p, _ := s.registerApp(inBrowsers)
	web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
	good := basicAuth(web.ID, secret)[len("Authorization: "):]
	token := s.askToken(codeForm(web, s.agree(web, s.account, scopeOrders)),
		"Authorization: "+good).is(200).text("refresh_token")
	for _, form := range []string{"grant_type=client_credentials", "grant_type=client_credentials&client_id=" + web.ID,
		tokenForm("grant_type", "client_credentials", "client_id", web.ID, "client_secret",
			secret), codeForm(p, "x"), refreshForm(p, "x"),
		refreshForm(web, token), refreshForm(web, token, "scope",
			"orders:read"), "grant_type=client_credentials&client_secret=%00", "%zz", "", "a=1&a=2"} {
		for _, header := range []string{"", good, "Basic " + p.ID, "Bearer x", "Basic", "basic Og==",
			good + " " + good} {
			f.Add(form, header)
		}
	}
	f.Fuzz(func(t *testing.T, form, header string) {
		s := s.with(t)
		s.server.addressBuckets = newLimiter(10)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/oauth/token", strings.NewReader(form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if header != "" {
			r.Header["Authorization"] = []string{header}
		}
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		a := s.documented(r, w)
		if a.status >= 500 {
			t.Fatalf("%q %q: %d %s", form, header, a.status, a.body)
		}
		if a.status != 200 {
			a.refuses(a.status, a.text("error"))
			return
		}
		fields, err := url.ParseQuery(form)
		if err != nil || (header != "") == (fields.Get("client_secret") != "") {
			t.Fatalf("%q %q: %s", form, header, a.body)
		}
	})
}

func TestQuery_aboutTokensOfApplicationsReadsNoMoreThanItsAnswerNeeds(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	byHand := []string{`UPDATE refresh_tokens SET number = number + 2 * ?`,
		`UPDATE grants SET ended_at = NULL, ended_by = NULL`}
	reads, writes := questions(s.store.queries), questions(s.store.writer.queries)
	web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
	public, _ := s.registerApp(inBrowsers, func(p *app) { p.Origins = codeList{"https://planner.example"} })
	proof := bearer(s.askToken("grant_type=client_credentials", basicAuth(web.ID,
		secret)).is(200).text("access_token"))
	s.get("/orders", proof).is(200)
	v := s.signedIn(s.account)
	page := v.visit(authorizePath(public.askFor()), nil)
	to := v.visit(authorizePath(public.askFor()), page.agreeing()).sentTo(testRedirect)
	made := s.askToken(codeForm(public, to.Get("code"))).is(200)
	first, access := made.text("refresh_token"), made.text("access_token")
	s.get("/orders", bearer(access), "Origin: https://planner.example").is(200)
	s.get("/orders", "Authorization: Bearer x", "Origin: https://planner.example").is(401, "invalid_token")
	next := s.askToken(refreshForm(public, first)).is(200).text("refresh_token")
	s.askToken(refreshForm(public, first)).is(200) // once more, as when the answer was lost
	s.sql(byHand[0], keptRefreshTokens)
	last := s.askToken(refreshForm(public, next)).is(200).text("refresh_token")
	s.post("/oauth/revoke", tokenForm("token", access, "client_id", public.ID), formType).is(200)
	v.visit("/oauth/connected", nil).is(200)
	v.visit("/oauth/connected?after="+lastID, nil).is(200)
	s.askToken(refreshForm(public, first)).refuses(400, "invalid_grant") // which ends the grant
	s.askToken(refreshForm(public, last)).refuses(400, "invalid_grant")
	s.sql(byHand[1])
	s.askToken(codeForm(public, to.Get("code"))).refuses(400, "invalid_grant") // which ends it again
	web2 := s.askToken(codeForm(web, s.agree(web, s.account, scopeOrders)), basicAuth(web.ID,
		secret)).is(200).text("refresh_token")
	s.askToken(refreshForm(web, web2), basicAuth(web.ID, secret)).is(200)
	s.post("/oauth/revoke", tokenForm("token", web2), formType, basicAuth(web.ID, secret)).is(200)
	tables := []string{"grant", "refresh_tokens", "app_tokens", "app_origins", "apps ", "sessions", "signin_codes"}
	about := func(query string) bool {
		return !slices.Contains(byHand, query) &&
			slices.ContainsFunc(tables, func(table string) bool { return strings.Contains(query, table) })
	}
	s.readLittle(slices.Concat(reads(), writes()), about, "FROM grant_codes c WHERE c.hash", "INSERT INTO grant_codes",
		"UPDATE grant_codes SET grant_id",
		"FROM refresh_tokens\n\t\tWHERE hash", "SELECT replaced_at IS NULL FROM refresh_tokens", "number <= ?",
		"SET successor = NULL", "UPDATE refresh_tokens SET expires_at", "UPDATE refresh_tokens SET replaced_at",
		"DELETE FROM refresh_tokens WHERE grant_id = ?", "UPDATE grants SET ended_at", "UPDATE grants SET used_at",
		"ORDER BY id DESC LIMIT 100 OFFSET ?", "FROM app_tokens t JOIN", "UPDATE app_tokens SET revoked_at",
		"FROM app_origins o JOIN apps", "FROM sessions s JOIN", "FROM grants g JOIN apps p", "INSERT INTO app_tokens")
}

// benchmarkTokens runs a request for tokens by many callers, of so many applications that none is over its
// limit.
func benchmarkTokens(b *testing.B, request func(s *service, apps []*app) func(n int64) string) {
	s := newService(b, withoutAddressLimits)
	apps := make([]*app, 16)
	for i := range apps {
		apps[i], _ = s.registerApp(inBrowsers, func(p *app) { p.AccountID = s.addAccount(fmt.Sprint("account ", i)) })
	}
	form := request(s, apps)
	s.server.addressBuckets = newLimiter(0x1000)
	var n atomic.Int64
	b.SetParallelism(32) // times the processors
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			body := form(n.Add(1) - 1)
			r := httptest.NewRequestWithContext(b.Context(), "POST", "/v1/oauth/token", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			if s.server.ServeHTTP(w, r); w.Code != 200 {
				b.Errorf("%d %s", w.Code, w.Body)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "exchanges/s")
}

// BenchmarkTokenExchange exchanges codes. Each account agrees again and again, so old grants end.
//
//	go test -run '^$' -bench Token(Exchange|Refresh) -benchtime 3s
func BenchmarkTokenExchange(b *testing.B) {
	benchmarkTokens(b, func(s *service, apps []*app) func(int64) string {
		codes := make([]string, b.N)
		s.change(func(t *tx) error {
			for i := range codes {
				p := apps[i%len(apps)]
				codes[i] = newRefreshToken()
				err := t.addGrantCode(&grantCode{Hash: hashOf(codes[i]), AppID: p.ID,
					AccountID: p.AccountID, RedirectURI: testRedirect,
					Challenge: testChallenge, Scope: scopeOrders, AgreedBy: "test", CreatedAt: t.now,
					ExpiresAt: t.now.after(time.Hour)})
				if err != nil {
					return err
				}
			}
			return nil
		})
		return func(n int64) string { return codeForm(apps[int(n)%len(apps)], codes[n]) }
	})
}

// BenchmarkTokenRefresh uses refresh tokens that are replaced each time.
func BenchmarkTokenRefresh(b *testing.B) {
	benchmarkTokens(b, func(s *service, apps []*app) func(int64) string {
		tokens := make([]string, b.N)
		s.change(func(t *tx) error {
			for i := range tokens {
				p := apps[i%len(apps)]
				tokens[i] = newRefreshToken()
				g := &grant{ID: t.newID("grt"), AppID: p.ID, AccountID: p.AccountID, Scope: scopeOrders,
					AgreedBy:  "test",
					CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
				row := &refreshToken{Hash: hashOf(tokens[i]), GrantID: g.ID, Number: 1, ExpiresAt: g.ExpiresAt}
				if err := errors.Join(t.addGrant(g), t.addRefreshToken(row)); err != nil {
					return err
				}
			}
			return nil
		})
		return func(n int64) string { return refreshForm(apps[int(n)%len(apps)], tokens[n]) }
	})
}
