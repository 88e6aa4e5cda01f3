package main

import (
	"encoding/base64"
	"fmt"
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
