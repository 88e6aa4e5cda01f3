package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var signinShape = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}$`)

// signinCode makes a code to sign in with for an account, which is a secret.
func (s *service) signinCode(accountID string) string { return s.codeFor(sessionConsent, accountID) }

// codeFor makes a code to sign in with for sessions of a kind.
func (s *service) codeFor(kind sessionKind, accountID string) (code string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		made, err := makeSigninCode(t, s.keys, kind, accountID, "portal")
		if err == nil {
			code = made.Code
		}
		return err
	})
	s.told.confide(code)
	return code
}

// confide remembers secrets that have no shape of their own.
func (d *discretion) confide(secrets ...string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, secret := range secrets {
		d.keep("a secret of somebody who signs in", secret)
		d.keep("a secret of somebody who signs in", strings.ReplaceAll(secret, "-", ""))
	}
}

func TestAccount_signinSaysForWhomUntilWhenAndWhereTheCodeIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.must("account", "set", s.account, "-zone", "Europe/Zurich")
		code, noted := s.noting("account", "signin", s.account)
		failIf(t, len(code) != len("XXXX-XXXX-XXXX\n"), "%q is not the code alone, for scripts", code)
		s.told.confide(strings.TrimSpace(code))
		equal(t, "note", noted, "for main, once, until 01:15 (Europe/Zurich), at "+testBase+"/oauth/signin\n")
		s.codeWorks(strings.TrimSpace(code), true, "the code does not work")
		_, noted = s.noting("account", "signin", s.account, "-json")
		equal(t, "note with -json", noted, "")
	})
}

// signInWith uses a code in the store, and returns the secret of the session.
func (s *service) signInWith(typed string) (secret string, err error) {
	s.t.Helper()
	err = s.store.update(s.t.Context(), func(t *tx) error {
		secret, err = signIn(t, s.keys, sessionConsent, typed, "")
		return err
	})
	s.told.confide(secret)
	return secret, err
}

// codeWorks checks whether a code signs somebody in; wrong says what it means if not.
func (s *service) codeWorks(code string, works bool, wrong string, args ...any) {
	s.t.Helper()
	_, err := s.signInWith(code)
	failIf(s.t, works && err != nil || !works && !errors.Is(err, errSigninCode), wrong+": %v", append(args, err)...)
}

// sessionLasts checks whether the session of a secret lasts; wrong says what it means if not.
func (s *service) sessionLasts(secret string, lasts bool, wrong string) {
	s.t.Helper()
	_, err := s.store.session(sessionConsent, secret, newStamp(s.store.now()))
	failIf(s.t, lasts && err != nil || !lasts && !errors.Is(err, errNotFound), "%s: %v", wrong, err)
}

func TestSignin_readsCodesAsPeopleTypeThem(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"7K3M-Q9XD-2VTA": "7K3MQ9XD2VTA", "7k3mq9xd2vta": "7K3MQ9XD2VTA", " 7K3M\tQ9XD – 2VTA\n": "7K3MQ9XD2VTA",
		"olio-0000-0000": "011000000000",
		"7K3M-Q9XD-2VT":  "", "7K3M-Q9XD-2VTAA": "", "": "", "7K3M-Q9XD-2VTU": "", "7K3M_Q9XD_2VTA": "",
		"７K3M-Q9XD-2VTA": "", "7K3M-Q9XD-2VT\x00": "",
		"7K3M-Q9XD-2VTA" + strings.Repeat("-", 100): "",
	} {
		if got, ok := parseSigninCode(typed); ok != (want != "") || ok && got != want {
			t.Errorf("%q is read as %q %v, want %q", typed, got, ok, want)
		}
	}
	seen := map[string]bool{}
	for range 100 {
		code := newSigninCode()
		if plain, ok := parseSigninCode(strings.ToLower(code)); !ok || seen[plain] || !signinShape.MatchString(code) {
			t.Errorf("%q is no code, or came before", code)
		}
		seen[code] = true
	}
}

func TestSignin_anAccountHasTenCodesAndAHundredSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t)
		var codes []string
		for range maxSigninCodes + 2 {
			codes = append(codes, s.signinCode(s.account))
			time.Sleep(time.Second)
		}
		for i, code := range codes[:2] {
			s.codeWorks(code, false, "code %d works", i)
		}
		first, err := s.signInWith(codes[2])
		s.check(err)
		time.Sleep(time.Second)
		second, err := s.signInWith(codes[3])
		s.check(err)
		elsewhere := s.addAccount("Another")
		others, err := s.signInWith(s.signinCode(elsewhere))
		s.check(err)
		time.Sleep(time.Second)
		s.change(func(t *tx) error {
			for i := range maxSessions - 2 {
				t.addSession(&session{Hash: hashOf(fmt.Sprint(i)), AccountID: s.account, Kind: sessionConsent,
					MadeBy: "x", CreatedAt: t.now, ExpiresAt: t.now.after(time.Hour)})
			}
			return nil
		})
		newest, err := s.signInWith(codes[4])
		s.check(err)
		s.sessionLasts(first, false, "the oldest session lasts")
		for _, secret := range []string{second, newest, others} {
			s.sessionLasts(secret, true, "a session has ended")
		}
		s.hasRows(maxSessions, `sessions WHERE account_id = ?`, s.account)
	})
}

// grantEnded returns why a grant has ended; "": it has not.
func (s *service) grantEnded(id string) grantEnd {
	s.t.Helper()
	g, err := s.store.grant(anyAccount, id)
	s.check(err)
	return valueOr(g.EndedBy, "")
}

func TestGrant_webhooksUnderItAreTheApplicationsOwn(t *testing.T) {
	t.Parallel()
	s := quietService(t, admitLoopback)
	p, _ := s.registerApp(func(p *app) { p.Scope = strings.Join(appScopes, " ") })
	q, _ := s.registerApp()
	token, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeLeads)
	otherToken, _ := s.appToken(q, s.account, scopeWebhooks+" "+scopeLeads)
	auth, other, owner := bearer(token), bearer(otherToken), s.hookAuth(scopeLeads)
	theirs := s.post("/webhooks", hookBody("lead.created"), owner).is(200).text("id")
	s.answerTest(theirs)
	made := s.post("/webhooks", hookBody("lead.created"), auth).is(200)
	failIf(t, made.text("app_id") != p.ID || made.text("made_by") != "app "+p.ID, "made %s", made.body)
	id := made.text("id")
	s.answerTest(id)
	delivery := s.addDelivery(theirs, s.addEvents(s.account, eventLeadCreated, 1), ptr(500))
	before := s.dump()
	for name, bearer := range map[string]string{"the application": auth, "another one": other} {
		for what, c := range webhookCalls(theirs, delivery) {
			if a := s.do(c[0], c[1], c[2], bearer); a.status != 404 || a.text("code") != "webhook_not_found" {
				t.Errorf("%s: %s of the owner's webhook: %d %s", name, what, a.status, a.body)
			}
		}
		s.get("/webhooks/"+theirs, bearer).is(404, "webhook_not_found")
		s.get("/webhooks/"+theirs+"/deliveries", bearer).is(404, "webhook_not_found")
		s.do("DELETE", "/webhooks/"+theirs, "", bearer).is(404, "webhook_not_found")
	}
	s.get("/webhooks/"+id, other).is(404, "webhook_not_found")
	s.do("DELETE", "/webhooks/"+id, "", other).is(404, "webhook_not_found")
	s.unchanged(before)
	for bearer, want := range map[string]int{auth: 1, other: 0, owner: 2} {
		if ids, _ := s.everyPage("/webhooks", bearer); len(ids) != want {
			t.Errorf("lists %v", ids)
		}
	}
	s.do("PATCH", "/webhooks/"+id, `{"description":"its own"}`, auth).is(200)
	if w := s.get("/webhooks/"+id, owner).is(200); w.text("app_id") != p.ID || w.text("description") != "its own" {
		t.Errorf("the owner sees %s", w.body)
	}
	s.do("DELETE", "/grants/"+grantID, "", s.appAuth(s.account)).is(204)
	s.get("/webhooks/"+id, owner).is(404, "webhook_not_found")
	s.get("/webhooks/"+theirs, owner).is(200)
	s.hasRows(0, `app_webhooks`)
}

// queued reports whether the worker sends to a webhook.
func (s *service) queued(id string) bool {
	s.t.Helper()
	all, err := s.store.webhookQueues()
	s.check(err)
	return slices.ContainsFunc(all, func(q *webhookQueue) bool { return q.ID == id })
}

// sweepApps ends and removes what a service would within a minute.
func (s *service) sweepApps(ctx context.Context) error {
	failIf(s.t, s.server.sweep(ctx, time.Now().Add(time.Hour)), "more is left to sweep")
	return nil
}

func TestGrant_endsAtOnceWithItsApplicationAndIsSweptInBoundedSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t, admitLoopback, keepTokens(90))
		tenant := s.addAccount("Trattoria")
		p, _ := s.registerApp(func(p *app) { p.AccountID, p.OwnScope = tenant, ptr(scopeWebhooks+" "+scopeOrders) })
		token, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeOrders)
		auth := bearer(token)
		hook := s.post("/webhooks", hookBody("order.created"), auth).is(200).text("id")
		var own string
		s.change(func(t *tx) (err error) {
			own, _, err = issueAppToken(t, s.server.keys.Load(),
				appToken{AppID: p.ID, AccountID: tenant, Scope: *p.OwnScope})
			return err
		})
		ownHook := s.post("/webhooks", hookBody("order.created"), bearer(own)).is(200).text("id")
		s.sql(manyRows(3*endedAtOnce)+`
			INSERT INTO grants (id, app_id, account_id, scope, agreed_by, created_at, used_at, expires_at)
			SELECT printf('grt_000000000000000000000%05d', i), ?, ?, 'orders:read', 'test', ?3, ?3,
				'2001-01-01T00:00:00Z' FROM n`,
			p.ID, tenant, newStamp(time.Now()))
		kept, keptGrant := s.appToken(func() *app { q, _ := s.registerApp(); return q }(), s.account, scopeOrders)
		failIf(t, !s.queued(hook) || !s.queued(ownHook), "the webhooks are not sent to")
		// A closed owner stops all of it, until the account is opened again.
		s.change(func(t *tx) error { return closeAccount(t, nouns(), tenant, actorCommand) })
		s.get("/orders", auth).is(401, "invalid_token")
		failIf(t, s.queued(hook), "the webhook of an application whose owner is closed is sent to")
		s.change(func(t *tx) error { return reopenAccount(t, tenant, actorCommand) })
		s.get("/orders", auth).is(200)

		s.do("DELETE", "/apps/"+p.ID, "", s.appAuth(tenant)).is(204)
		s.get("/orders", auth).is(401, "invalid_token")
		s.get("/orders", bearer(own)).is(401, "invalid_token")
		failIf(t, s.queued(hook) || s.queued(ownHook), "the webhooks of a removed application are sent to")
		sweep := s.sweepApps
		s.check(sweep(t.Context()))
		s.hasRows(3*endedAtOnce+1, `grants WHERE app_id = ? AND ended_by = 'app_removed'`, p.ID)
		s.hasRows(0, `webhooks`)
		failIf(t, s.grantEnded(grantID) != endedByRemoval || s.grantEnded(keptGrant) != "", "other grants have ended")
		s.get("/orders", bearer(kept)).is(200)
		for _, c := range []struct {
			after        time.Duration
			grants, apps int
		}{{days(90) - time.Minute, 3*endedAtOnce + 1, 1}, {2 * time.Minute, 0, 0}} {
			time.Sleep(c.after)
			s.check(sweep(t.Context()))
			grants, apps := s.count(`SELECT count(*) FROM grants WHERE app_id = ?`, p.ID),
				s.count(`SELECT count(*) FROM apps WHERE id = ?`, p.ID)
			if grants != c.grants || apps != c.apps {
				t.Errorf("%v later there are %d grants and %d applications, want %d and %d", c.after, grants, apps,
					c.grants, c.apps)
			}
		}
		s.hasRows(0, `app_tokens`)
		s.hasRows(0, `pragma_foreign_key_check`)
	})
}

func TestGrant_ofWhichTheTimeIsOverEndsAndWhatIsLeftIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t, admitLoopback, keepTokens(1))
		p, _ := s.registerApp()
		s.agree(p, s.account, scopeOrders)
		token, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeOrders)
		s.post("/webhooks", hookBody("order.created"), bearer(token)).is(200)
		hash := sha256.Sum256([]byte("x"))
		s.sql(`INSERT INTO refresh_tokens (hash, grant_id, number, expires_at) VALUES (?, ?, 1, ?)`, hash[:], grantID,
			newStamp(time.Now()).after(days(2)))
		s.sql(`UPDATE grant_codes SET grant_id = ?`, grantID)
		s.sql(`UPDATE grants SET expires_at = ?`, newStamp(time.Now()).after(days(3)))
		sweep := s.sweepApps
		for _, c := range []struct {
			until                                            time.Duration
			codes, tokens, refreshing, webhooks, ended, rows int
		}{
			{appTokenLife + keptAppTokens - time.Second, 1, 1, 1, 1, 0, 1},
			{appTokenLife + keptAppTokens + time.Minute, 1, 0, 1, 1, 0, 1},
			{grantCodeLife + keptGrantCode, 1, 0, 1, 1, 0, 1},
			{grantCodeLife + keptGrantCode + time.Minute, 0, 0, 1, 1, 0, 1},
			{days(2), 0, 0, 0, 1, 0, 1},
			{days(3) - time.Minute, 0, 0, 0, 1, 0, 1},
			{days(3), 0, 0, 0, 0, 1, 1},
			{days(4), 0, 0, 0, 0, 1, 1},
			{days(4) + time.Minute, 0, 0, 0, 0, 0, 0},
		} {
			time.Sleep(time.Until(bubbleStart.Add(c.until)))
			s.check(sweep(t.Context()))
			got := fmt.Sprint(s.count(`SELECT count(*) FROM grant_codes`), s.count(`SELECT count(*) FROM app_tokens`),
				s.count(`SELECT count(*) FROM refresh_tokens`), s.count(`SELECT count(*) FROM webhooks`),
				s.count(`SELECT count(*) FROM grants WHERE ended_by = 'expired'`),
				s.count(`SELECT count(*) FROM grants`))
			if want := fmt.Sprint(c.codes, c.tokens, c.refreshing, c.webhooks, c.ended, c.rows); got != want {
				t.Errorf("after %v there are %s, want %s", c.until, got, want)
			}
		}
		s.get("/apps/"+p.ID, s.appAuth(s.account)).is(200)
	})
}

// What has no header, and no secret before the last, is in testdata/http/oauth.txt and app.txt.
func TestTokenEndpoint_takesAnApplicationThatProvesItselfInOneHeader(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	own := func(p *app) { p.OwnScope = ptr(scopeOrders) }
	web, secret := s.registerApp(own)
	browser, _ := s.registerApp(inBrowsers)
	closed, closedSecret := s.registerApp(own, func(p *app) { p.AccountID = s.addAccount("closed") })
	s.change(func(t *tx) error { return closeAccount(t, nouns(), closed.AccountID, anActor) })
	basic := func(text string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(text))
	}
	right := basicAuth(web.ID, secret)
	const form = "grant_type=client_credentials"
	for _, c := range []struct {
		form, header, error string
	}{
		{form, right, ""},
		{form, basic("%61pp_" + web.ID[4:] + ":" + secret), ""},
		{form, strings.Replace(right, "Basic", "BASIC", 1), ""},
		{form + "&client_id=" + web.ID + "&client_secret=", right, ""},
		{form + "&client_id=" + browser.ID, right, "invalid_request"},
		{form + "&client_id=" + web.ID + "&client_secret=" + secret, right, "invalid_request"},
		{form, bearer(secret), "invalid_client"},
		{form + "&client_id=" + web.ID + "&client_secret=" + secret, bearer("x"), "invalid_client"},
		{form, basicAuth(web.ID, "x"), "401"},
		{form, basicAuth(web.ID, string(web.SecretHash)), "401"},
		{form, "Authorization: Basic ~~~", "401"},
		{form, basic(web.ID), "401"},
		{form, basic(":" + secret), "401"},
		{form, basic(web.ID + ":" + secret + "%z"), "401"},
		{form, basicAuth(newID("app", time.Now()), secret), "401"},
		{form, basicAuth(closed.ID, closedSecret), "401"},
		{form, basicAuth(browser.ID, "x"), "401"},
		{form, basicAuth(browser.ID, ""), "401"},
	} {
		a := s.askToken(c.form, c.header)
		switch c.error {
		case "":
			a.is(200)
		case "401":
			a.refuses(401, "invalid_client").has(`WWW-Authenticate: Basic realm="widgetd"`)
		default:
			a.refuses(400, c.error).has("WWW-Authenticate: ")
		}
	}
	s.askToken(form, right, right).refuses(400, "invalid_request")
	s.askToken(form+strings.Repeat("x", maxBody), right).refuses(413, "invalid_request")
	exchange := codeForm(browser, s.agree(browser, s.account, scopeOrders))
	s.sql(`ALTER TABLE grant_codes RENAME TO lost`)
	s.askToken(exchange).refuses(503, "temporarily_unavailable")
}

func TestTokenEndpoint_leavesScopesOutThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	s := quietService(t, withoutAddressLimits)
	web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
	basic := basicAuth(web.ID, secret)
	token := s.askToken(codeForm(web, s.agree(web, s.account, scopeOrders+" "+scopeSelling)), basic).is(200).
		text("refresh_token")
	for _, form := range []string{refreshForm(web, token), "grant_type=client_credentials"} {
		for scope, want := range map[string]string{"openid " + scopeOrders: scopeOrders,
			scopeOrders + " offline_access": scopeOrders, "openid": "", " ": "", scopeOrders + " " + scopeAdmin: "",
			scopeOrders + " " + scopeLeads: "", scopeOrders + " " + scopeDevice: ""} {
			a := s.askToken(form+"&scope="+url.QueryEscape(scope), basic)
			if want == "" {
				a.refuses(400, "invalid_scope")
				continue
			}
			a.is(200).holds(`scope="` + want + `"`)
		}
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

func TestTokenEndpoint_whatComesManyTimesAtOnceIsUsedOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp(inBrowsers)
	token := s.askToken(codeForm(p, s.agree(p, s.account, scopeOrders))).is(200).text("refresh_token")
	next := make([]string, 50)
	crowd(len(next), func(i int) answer {
		a := s.askToken(refreshForm(p, token))
		next[i], _ = a.json()["refresh_token"].(string)
		return a
	})
	if got := slices.Compact(next); len(got) != 1 || got[0] == "" || got[0] == token {
		t.Errorf("%d successors: %q", len(got), got)
	}
	s.hasRows(2, `refresh_tokens`)
	s.hasRows(51, `app_tokens`)
	code := s.agree(p, s.account, scopeOrders)
	answers := crowd(20, func(int) answer { return s.askToken(codeForm(p, code)) })
	failIf(t, answers[200] != 1, "a code is answered %v", answers)
	s.hasRows(1, `grants WHERE ended_by = 'code_reused'`)
	s.hasRows(2, `grants`)
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
