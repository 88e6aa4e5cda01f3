package main

import (
	"html"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestConsent_saysWhoAsksForWhatAndWhereTheBrowserGoes(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	owner := s.addAccount("Planner & <Sons>")
	v := s.signedIn(s.account)
	all := strings.Join(appScopes, " ")
	for _, c := range []struct {
		kind  appKind
		uri   string
		texts []string
	}{
		{appWeb, "https://app.example:8443/back", []string{"the site <bdi>app.example:8443</bdi>"}},
		{appInstalled, "http://127.0.0.1/back", []string{"<dd>an installed application on this device</dd>",
			"not 127.0.0.1</bdi>"}},
		{appInstalled, "http://[::1]/back", []string{"<dd>an installed application on this device</dd>"}},
		{appInstalled, "com.example.app:/back", []string{"opens links of the kind <bdi>com.example.app</bdi>"}},
		{appWeb, "http://localhost:3000/", []string{"<dd>an installed application on this device</dd>"}},
	} {
		p, _ := s.registerApp(func(p *app) {
			p.AccountID, p.Kind, p.Scope, p.RedirectURIs = owner, c.kind, all, []string{c.uri}
			p.Name, p.HomePage = "<b>Table</b> Planner", "https://app.example/?a=1&b=2"
		})
		page := v.authorize(p.askFor(), nil).nowhere(200, append(c.texts, "&lt;b&gt;Table&lt;/b&gt; Planner",
			"not <b>", "Planner &amp; &lt;Sons&gt;",
			`<bdi>main</bdi>`, `<a href="https://app.example/?a=1&amp;b=2" rel="noopener noreferrer"`,
			"Verified by the operator", "not has not verified", `role="alert"`)[:len(c.texts)+7]...)
		page.has("Referrer-Policy: same-origin", "Cache-Control: no-store", "X-Robots-Tag: noindex")
		_, fields := page.form("decision")
		if want := len(appScopes) + 2; len(fields) != want {
			t.Errorf("the form has %v", fields)
		}
		for _, scope := range appScopes {
			if fields.Get("allow:"+scope) != "yes" ||
				!strings.Contains(page.body, html.EscapeString(textsByLanguage["en"]().Scopes[scope])) ||
				!strings.Contains(page.body, html.EscapeString(textsByLanguage["en"]().ScopeDetails[scope])) {
				t.Errorf("%s is not asked for", scope)
			}
		}
	}
	own, _ := s.registerApp(func(p *app) { p.VerifiedAt = stamp{} })
	v.authorize(own.askFor(), nil).nowhere(200, "has not verified the application", "not Verified by")
	s.sql(`UPDATE apps SET name = 'Table' || char(8238) || 'rennalP',
		home_page = 'https://app.example/' || char(8206) WHERE id = ?`, own.ID)
	s.sql(`UPDATE accounts SET name = 'Roma' || char(8207) WHERE id = ?`, s.account)
	page := v.authorize(own.askFor(), nil).nowhere(200, "Table\ufffdrennalP", "Roma\ufffd")
	failIf(t, strings.ContainsAny(page.body, "\u202e\u200e\u200f"), "the page has characters that turn text around")
	if found := regexp.MustCompile(`(?i)<script|<iframe|@import|style=|src=| on\w+=`).
		FindString(page.body); found != "" {
		t.Errorf("the page has %q", found)
	}
}

// redirectTricks are addresses that resemble registered ones.
var redirectTricks = append(strings.Fields(`
	https://app.example/back/ https://app.example/back? https://app.example/back?x=1 https://app.example/back#
	https://app.example/back#x https://app.example/back%2e https://app.example/back/../evil
	https://app.example/%62ack https://app.example/back/..%2fevil https://app.example//back
	https://app.example/./back https://app.example/BACK HTTPS://app.example/back https://APP.example/back
	http://app.example/back //app.example/back /back back https:app.example/back https://app.example:443/back
	https://app.example:444/back https://app.example:/back https://app.example./back https://app.example%2e/back
	https://app.example@evil.example/back https://evil.example/back https://evil.example?https://app.example/back
	https://app.example.evil.example/back https://app.example\@evil.example/back
	https://app.example%00.evil.example/back https://user:pass@app.example/back https://xapp.example/back
	https://аpp.example/back https://xn--pp-6kc.example/back https://app。example/back
	javascript:alert(1) data:text/html,x
	https://[::ffff:1.2.3.4]/back * https://*.example/back`),
	" "+testRedirect, testRedirect+" ", testRedirect+"\r\nSet-Cookie: x=y", testRedirect+"\x00")

// loopbackTricks are more, of addresses on the machine itself.
var loopbackTricks = strings.Fields(`
	http://127.0.0.1:80@evil.example/back http://127.0.0.1:8080.evil.example/back http://127.0.0.1.evil.example/back
	http://127.0.0.1:x/back http://127.0.0.1:65536/back http://127.0.0.1:-1/back http://127.0.0.1:/back
	http://127.0.0.1:1:2/back http://127.0.0.1:80\@evil.example/back http://127.0.0.1:80#@evil.example/back
	http://127.0.0.1:80?@evil.example/back http://127.0.0.1:8080/other http://127.0.0.1:8080/back/
	http://127.0.0.2:8080/back http://127.1:8080/back http://localhost:8080/back http://0.0.0.0:8080/back
	https://127.0.0.1:8080/back http://[::1]:8080/back/ http://[::1%25eth0]:8080/back
	http://[0:0:0:0:0:0:0:1]:8080/back http://[::1]x:8080/back http://2130706433:8080/back http://127.0.0.1:8080
	http://u@127.0.0.1:8080/back http://127.0.0.1:８０/back`)

func TestAuthorize_sendsNobodyToAnAddressThatIsNotRegistered(t *testing.T) {
	t.Parallel()
	s := quietService(t, withoutAddressLimits)
	web, _ := s.registerApp()
	device, _ := s.registerApp(func(p *app) {
		p.Kind, p.RedirectURIs = appInstalled, []string{"http://127.0.0.1/back", "http://[::1]:5000/back",
			"com.example.app:/back", testRedirect}
	})
	v := s.signedIn(s.account)
	for i, uri := range slices.Concat(redirectTricks, loopbackTricks) {
		for _, p := range []*app{web, device} {
			q := p.askFor("redirect_uri", uri, "response_type", []string{"code", "token"}[i/2%2])
			[]*visitor{v, {service: s}}[i%2].authorize(q, nil).
				nowhere(400, "This link isn’t valid", "redirect_uri is not registered")
		}
	}
	for _, uri := range []string{"http://127.0.0.1/back", "http://127.0.0.1:51004/back", "http://127.0.0.1:1/back",
		"http://[::1]:65535/back", "http://[::1]/back",
		"com.example.app:/back", testRedirect} {
		v.authorize(device.askFor("redirect_uri", uri, "scope", "x"), nil).sentTo(uri)
	}
	loop, _ := s.registerApp(func(p *app) { p.RedirectURIs = []string{"http://127.0.0.1:5000/back"} })
	v.authorize(loop.askFor("redirect_uri", "http://127.0.0.1:5001/back"), nil).nowhere(400)
}

func TestAuthorize_tellsTheApplicationOfErrorsOnceSomebodyHasSignedIn(t *testing.T) {
	t.Parallel()
	s := quietService(t, withoutAddressLimits)
	p, _ := s.registerApp()
	v := s.signedIn(s.account)
	twice := func(name string) url.Values { q := p.askFor(name, "x"); q.Add(name, "x"); return q }
	wrong := map[string][]url.Values{}
	for code, all := range map[string][][2]string{
		"unsupported_response_type": {{"response_type", "token"}, {"response_type", "code token"},
			{"response_type", "CODE"}},
		"invalid_request": {{"response_type", ""}, {"response_mode", "fragment"}, {"response_mode", "form_post"},
			{"code_challenge_method", ""}, {"code_challenge_method", "plain"}, {"code_challenge_method", "s256"},
			{"code_challenge", ""}, {"code_challenge", testChallenge + "A"}, {"code_challenge", testChallenge[1:]},
			{"code_challenge", testChallenge[:42] + "+"}, {"code_challenge", testChallenge[:42] + "\n"},
			{"code_challenge", testChallenge + "="}},
		"invalid_scope": {{"scope", "admin"}, {"scope", scopeOrders + " " + scopeAdmin}, {"scope", scopeLeads},
			{"scope", "x"},
			{"scope", " "}, {"scope", scopeOrders + " " + scopeApps}, {"scope", strings.ToUpper(scopeOrders)}},
		"invalid_target": {{"resource", "https://evil.example"}, {"resource", testBase + "/"},
			{"resource", "http://127.0.0.1:8080"}},
	} {
		for _, pair := range all {
			wrong[code] = append(wrong[code], p.askFor(pair[:]...))
		}
	}
	for _, name := range []string{"response_type", "scope", "code_challenge", "code_challenge_method", "resource",
		"response_mode"} {
		wrong["invalid_request"] = append(wrong["invalid_request"], twice(name))
	}
	before := s.dump()
	for code, all := range wrong {
		for _, q := range all {
			got := v.authorize(q, nil).sentTo(testRedirect)
			failIf(t, got.Get("error") != code || got.Get("state") != "table 4&x" || len(got) != 4 ||
				!matches(`^[ !#-[\]-~]+$`, got.Get("error_description")), "%v: %v", q, got)
			v.authorize(q, p.decided("allow", s.account)).sentTo(testRedirect)
		}
	}
	s.unchanged(before)
	// Scopes that nobody knows here end no login: libraries ask for them, whatever the metadata say.
	_, fields := v.authorize(p.askFor("scope", "openid "+scopeOrders+" offline_access x"), nil).is(200).form("decision")
	failIf(t, fields.Get("allow:"+scopeOrders) != "yes" || len(fields) != 3, "%v", fields)
	if got := v.authorize(twice("state"), nil).sentTo(testRedirect); got.Get("error") != "invalid_request" ||
		got.Has("state") {
		t.Errorf("a state that is given twice: %v", got)
	}
	if got := v.authorize(p.askFor("state", "", "scope", "x"), nil).sentTo(testRedirect); got.Has("state") {
		t.Errorf("without a state: %v", got)
	}
	fine := p.askFor("scope", "", "resource", testBase, "prompt", "none", "nonce", "x", "response_mode", "query")
	fine["unknown"], fine["scope"] = []string{"1", "2"}, []string{""}
	v.authorize(fine, nil).nowhere(200, "allow:"+scopeOrders, "allow:"+scopeSelling, "allow:"+scopeWebhooks,
		"not allow:"+scopeLeads)
}

func TestConsent_isGivenForWhatIsLeftTicked(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t)
	v := s.signedIn(s.account)
	path := authorizePath(p.askFor())
	given := func(form url.Values) (scope string) {
		t.Helper()
		q := v.visit(path, form).sentTo(testRedirect)
		c, err := s.store.grantCode(hashOf(q.Get("code")))
		s.check(err)
		return c.Scope
	}
	form := v.visit(path, nil).agreeing()
	equal(t, "with all", given(form), scopesWithin(p.Scope, p.Scope))
	form.Del("allow:" + scopeWebhooks)
	form.Del("allow:" + scopeSelling)
	equal(t, "with one", given(form), scopeOrders)
	before := s.dump()
	form.Del("allow:" + scopeOrders)
	denied := v.visit(path, nil).agreeing()
	denied.Set("decision", "deny")
	for _, f := range []url.Values{form, denied, {"decision": {"deny"}}} {
		if got := v.visit(path, f).sentTo(testRedirect); got.Get("error") != "access_denied" ||
			got.Get("state") != "table 4&x" || got.Has("code") {
			t.Errorf("%v: %v", f, got)
		}
	}
	s.unchanged(before)
}

func TestConsent_isNotTakenForAnythingButWhatThePageShowed(t *testing.T) {
	t.Parallel()
	s := quietService(t, withoutAddressLimits)
	tenant := s.addAccount("Trattoria")
	p, _ := s.registerApp()
	first := s.signedIn(s.account)
	path := authorizePath(p.askFor("scope", scopeOrders))
	form := first.visit(path, nil).agreeing()
	refused := func(v *visitor, form url.Values) {
		t.Helper()
		v.visit(path, form).nowhere(409, "nothing was allowed", `role="alert"`, `name="decision"`)
	}
	change := func(more ...string) url.Values {
		f := maps.Clone(form)
		for i := 0; i < len(more); i += 2 {
			f[more[i]] = []string{more[i+1]}
		}
		return f
	}
	strangers := s.signedIn(tenant)
	before := s.dump()
	refused(strangers, form) // who has signed in, in another tab, since the page was made
	refused(first, change("account", tenant))
	for _, wider := range []string{scopeSelling, scopeWebhooks, scopeLeads, scopeAdmin, "", "x", "orders:read admin"} {
		refused(first, change("allow:"+wider, "yes"))
	}
	for _, decision := range []string{"", "yes", "ALLOW"} {
		refused(first, change("decision", decision))
	}
	undecided := change("decision", "")
	undecided.Del("allow:" + scopeOrders)
	first.visit(path, undecided).nowhere(409, "You have not decided yet", `name="allow:orders:read" value="yes">`)
	refused(first, change("app", ""))
	refused(first, url.Values{"decision": {"allow"}})
	s.unchanged(before)
	s.sql(`UPDATE apps SET name = 'Another', updated_at = '2031-01-01T00:00:00Z' WHERE id = ?`, p.ID)
	before = s.dump()
	refused(first, form)
	s.unchanged(before)
	form = first.visit(path, nil).agreeing()
	s.sql(`UPDATE apps SET updated_at = '2031-01-01T00:00:01Z' WHERE id = ?`, p.ID)
	refused(first, form)
	(&visitor{service: s}).visit(path, form).nowhere(200, "<h1>Sign in to main</h1>")
	s.hasRows(0, `grant_codes`)
	v := s.signedIn(tenant)
	form = v.visit(path, nil).agreeing()
	s.change(func(t *tx) error { return closeAccount(t, nouns(), tenant, actorCommand) })
	v.visit(path, form).nowhere(200, "<h1>Sign in to main</h1>")
}

func TestOAuthPages_takeNoFormFromElsewhere(t *testing.T) {
	t.Parallel()
	s := quietService(t, withoutAddressLimits)
	p, _ := s.registerApp()
	_, grantID := s.appToken(p, s.account, scopeOrders)
	v := s.signedIn(s.account)
	form := v.authorize(p.askFor(), nil).agreeing()
	code := s.signinCode(s.account)
	before := s.dump()
	for _, from := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
		"Origin: https://evil.example", "Origin: null", "Origin: " + siteOrigin,
		"Origin: https://app.example", "Origin: http://example.com:81", "Sec-Fetch-Site: x"} {
		for path, body := range map[string]url.Values{authorizePath(p.askFor()): form,
			"/oauth/signin": {"code": {code}}, "/oauth/signout": {},
			"/oauth/connected": {"grant": {grantID}, "sure": {"yes"}}} {
			headers := []string{formType, "Cookie: " + v.cookie, from}
			s.post(path, body.Encode()+"&x=", headers...).nowhere(403, "This form came from elsewhere").
				has("Set-Cookie: ")
		}
	}
	s.unchanged(before)
	// the Host of httptest's requests
	for _, from := range []string{"Origin: http://example.com", "Sec-Fetch-Site: none", fromHere} {
		s.post(authorizePath(p.askFor()), form.Encode(), formType, "Cookie: "+v.cookie, from).is(303)
	}
	s.get(authorizePath(p.askFor()), "Cookie: "+v.cookie, "Sec-Fetch-Site: cross-site").is(200) // a link leads here
}

func TestOAuthPages_keepSessionsInCookiesThatOnlyTheyCanSet(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	visit := func(base, name, want string) *visitor {
		t.Helper()
		s.change(func(t *tx) error {
			t.setBaseURL(base)
			return nil
		})
		s.check(s.server.refresh())
		v := &visitor{service: s, cookie: name + "=planted"}
		a := v.visit("/oauth/signin", url.Values{"code": {s.signinCode(s.account)}}).is(303).
			has("Location: ./connected", "Referrer-Policy: same-origin")
		if got := a.header.Get("Set-Cookie"); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s sets %s", base, got)
		}
		v.visit("/oauth/connected", nil).nowhere(200, "Signed in as")
		return v
	}
	plain := visit(testBase, "widgetd-session",
		`^widgetd-session=[\w-]{43}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax$`)
	secure := visit("https://api.example.com/v1", "__Host-widgetd-session",
		`^__Host-widgetd-session=[\w-]{43}; Path=/; Max-Age=43200; HttpOnly; Secure; SameSite=Lax$`)
	plain.visit("/oauth/connected", nil).nowhere(200, "<h1>Sign in to main</h1>") // a session under the other name
	for _, cookie := range []string{strings.TrimPrefix(secure.cookie, "__Host-"),
		strings.Replace(secure.cookie, "__Host-", "__host-", 1),
		secure.cookie + "; __Host-widgetd-session=planted", secure.cookie + "x", "__Host-widgetd-session="} {
		(&visitor{s, cookie}).visit("/oauth/connected", nil).nowhere(200, "<h1>Sign in to main</h1>")
	}
	s.get("/account", "Cookie: "+secure.cookie).is(401)
	s.get("/orders", "Cookie: "+secure.cookie).is(401)
	old := secure.cookie
	secure.visit("/oauth/signin", url.Values{"code": {s.signinCode(s.account)}}).is(303)
	failIf(t, secure.cookie == old, "signing in again keeps the session")
	(&visitor{s, old}).visit("/oauth/connected", nil).nowhere(200, "<h1>Sign in to main</h1>")
	now := secure.cookie
	a := secure.visit("/oauth/signout?x=1", url.Values{}).is(303).has("Location: ./signin?x=1")
	equal(t, "what signing out sets", a.header.Get("Set-Cookie"),
		"__Host-widgetd-session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax")
	(&visitor{s, now}).visit("/oauth/connected", nil).nowhere(200, "<h1>Sign in to main</h1>")
}

func TestOAuthPages_signInLeadsOnToWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t, func(p *app) { p.RedirectURIs = []string{testRedirect + "?kept=yes"} })
	q := p.askFor("state", `"><script>javascript:&%`, "scope", scopeOrders)
	v := &visitor{service: s}
	page := v.authorize(q, nil).nowhere(200, "<h1>Sign in to main</h1>", "not <script>", "not ZgotmplZ")
	action, _ := page.form("code")
	failIf(t, action != "./signin?"+q.Encode(), "it posts to %s", action)
	path := "/oauth/" + strings.TrimPrefix(action, "./")
	wrong := v.visit(path, url.Values{"code": {"7K3M-Q9XD-2VTA"}}).
		nowhere(403, "This code is not valid", `role="alert"`).has("Set-Cookie: ")
	if again, _ := wrong.form("code"); again != action {
		t.Errorf("then it posts to %s", again)
	}
	v.visit(path, url.Values{"code": {s.signinCode(s.account)}}).is(303).has("Location: ./authorize?" + q.Encode())
	page = v.authorize(q, nil)
	to, _ := page.form("decision")
	equal(t, "the form posts to", to, "./authorize?"+q.Encode())
	page.shows(`action="./signout?`)
	page.shows("<h1>May Table Planner act for your account?</h1>", "Read your orders", "not orders:write")
	got := v.authorize(q, page.agreeing()).sentTo(p.RedirectURIs[0])
	failIf(t, got.Get("state") != q.Get("state") || len(got) != 3, "sent back with %v", got)
	c, err := s.store.grantCode(hashOf(got.Get("code")))
	s.check(err)
	equal(t, "who agreed until when", []any{c.AccountID, c.AgreedBy, c.ExpiresAt},
		[]any{s.account, "portal", c.CreatedAt.after(time.Minute)})
	_, secret := s.registerApp()
	s.sql(`UPDATE apps SET secret_hash = ? WHERE id = ?`, hashOf(secret), p.ID)
	s.askToken(codeForm(p, got.Get("code")), basicAuth(p.ID, secret)).is(200)
	for _, evil := range []string{"next=https://evil.example", "redirect_uri=https://evil.example", "//evil.example"} {
		a := v.visit("/oauth/signin?"+evil, url.Values{"code": {s.signinCode(s.account)}}).is(303)
		if to := a.header.Get("Location"); !strings.HasPrefix(to, "./authorize?") {
			t.Errorf("signing in leads to %s", to)
		}
	}
}

// TestConnected_hasEachOfFiftyApplicationsOnAPageWithAllOfItsGrants has the oldest application agreed to again and
// again, the last time of all too, and another one whose newest grant has ended.
func TestConnected_hasEachOfFiftyApplicationsOnAPageWithAllOfItsGrants(t *testing.T) {
	t.Parallel()
	s, often := serviceWithApp(t)
	ended, _ := s.registerApp(func(p *app) { p.Name = "Ended" })
	agreed := []string{ended.ID}
	for range connectedOnPage - 1 {
		p, _ := s.registerApp(func(p *app) { p.Name = "Once" })
		agreed = append(agreed, often.ID, p.ID, often.ID)
	}
	s.change(func(t *tx) (err error) {
		for i, appID := range append(agreed, ended.ID, often.ID) {
			g := &grant{ID: t.at(time.Duration(i) * time.Millisecond).newID("grt"), AppID: appID, AccountID: s.account,
				Scope: scopeOrders, AgreedBy: "x", CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(time.Hour)}
			t.addGrant(g)
			if i == len(agreed) {
				t.markGrantEnded(g.ID, endedByOwner)
			}
		}
		return err
	})
	v := s.signedIn(s.account)
	first := v.visit("/oauth/connected", nil).nowhere(200, "Earlier ones", "not Ended")
	more := regexp.MustCompile(`href="\./(connected\?after=[\w=]+)"`).FindStringSubmatch(first.body)
	equal(t, "applications on the first page", strings.Count(first.body, "<h2><bdi>"), connectedOnPage)
	equal(t, "grants on the first page", strings.Count(first.body, `name="grant"`), 3*connectedOnPage-2)
	failIf(t, more == nil, "no second page")
	second := v.visit("/oauth/"+more[1], nil).nowhere(200, "not Earlier ones", "Ended", "not Once", "not Table Planner")
	equal(t, "grants on the second page", strings.Count(second.body, `name="grant"`), 1)
	plain := func(a answer) string { return strings.ReplaceAll(a.body, "?after=x&amp;lang=", "?lang=") }
	equal(t, "with another cursor", plain(v.visit("/oauth/connected?after=x", nil).is(200)), first.body)
}

func TestOAuthPages_areInTheLanguageThatWasChosenOnThem(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t)
	v := &visitor{service: s}
	asked := authorizePath(p.askFor())
	wrong := v.visit("/oauth/signin?lang=fr", url.Values{"code": {`0000-"><b>`}}, "Accept-Language: de").nowhere(403,
		`<html lang="fr">`, `value="0000-&#34;&gt;&lt;b&gt;"`, `action="./signin?lang=fr"`,
		`<a href="?lang=it" lang="it" hreflang="it">Italiano</a>`)
	equal(t, "languages", strings.Count(wrong.body, "hreflang="), ownerLanguages)
	in := v.visit("/oauth/signin?lang=fr", url.Values{"code": {s.signinCode(s.account)}}).is(303)
	equal(t, "where that leads", in.header.Get("Location"), "./connected?lang=fr")
	v = s.signedIn(s.account)
	v.visit(asked+"&lang=it", nil, "Accept-Language: de").nowhere(200, `<html lang="it">`, `&amp;lang=fr&amp;`)
	v.visit(asked+"&lang=nb", nil, "Accept-Language: de").nowhere(200, `<html lang="de">`) // not for owners
	v.visit("/oauth/signout?lang=fr", url.Values{}).is(303).has("Location: ./signin?lang=fr")
}

func TestOAuthPages_answerErrorsAsPagesInTheVisitorsLanguage(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t)
	path := authorizePath(p.askFor())
	s.post(path, "decision="+strings.Repeat("x", maxBody), fromHere, formType).nowhere(413, "This request isn’t valid")
	v := s.signedIn(s.account)
	v.visit(path, nil, "Accept-Language: de").nowhere(200, "Darf Table Planner für Ihr Konto handeln?",
		"Ihre Bestellungen und Zahlungen lesen")
	s.sql(`DROP TABLE sessions`)
	a := v.visit(path, nil).nowhere(500, "Something went wrong", "not no such table")
	a.shows("quote " + a.header.Get("X-Request-Id"))
}

// TestOAuthPages_fitATelephone looks for what is cut off, and for targets that are too small, in every
// language.
func TestOAuthPages_fitATelephone(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	s := quietService(t, withoutAddressLimits)
	base, framed := s.atItsBase(), s.framed()
	blank := strings.TrimSuffix(framed, "/v1") + "/robots.txt"
	s.sql(`UPDATE accounts SET name = 'Trattoria Altstadt GmbH, Solothurn' WHERE id = ?`, s.account)
	p, _ := s.registerApp(func(p *app) {
		p.Name, p.HomePage = "Tischreservationsverwaltungsanwendung Donaudampf",
			"https://tischreservationsverwaltungsanwendung.example/de/start"
		p.Scope = strings.Join(appScopes, " ")
	})
	s.appToken(p, s.account, scopeOrders+" "+scopeWebhooks)
	b := startBrowser(t)
	b.open(blank)
	for _, lang := range pageLanguages[:ownerLanguages] {
		b.fitsFramed("oauth-signin", framed, "/oauth/signin", lang)
		b.fitsFramed("oauth-error", framed, "/oauth/authorize", lang)
	}
	b.open(base + "/oauth/signin")
	b.focused("code")
	b.press("0000-0000-0000" + keyEnter)
	b.find(`//*[@role="alert"]`)
	b.screenshot("oauth-signin-wrong.png")
	b.focused("code")
	code := b.find(`//input[@id="code" and @value="0000-0000-0000"]`) // to mend it
	b.call("POST", code+"/clear", map[string]any{})
	b.call("POST", code+"/value", map[string]any{"text": s.signinCode(s.account) + keyEnter})
	b.find(`//button[@name="grant"]`)
	b.open(blank)
	for _, lang := range pageLanguages[:ownerLanguages] {
		b.fitsFramed("oauth-consent", framed, authorizePath(p.askFor()), lang)
		b.fitsFramed("oauth-connected", framed, "/oauth/connected", lang)
	}
}
