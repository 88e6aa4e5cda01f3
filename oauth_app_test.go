package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// anAppAuthor is a tenant's token that has every scope of applications.
var anAppAuthor = appAuthor{actor: anActor, has: func(scope string) bool { return scope != scopeAdmin }}

// appBody is a body of POST /apps; change holds further members, or other values of those that it has.
func appBody(change ...any) string {
	members := map[string]any{"name": "Table Planner", "home_page": "https://app.example", "kind": "web",
		"redirect_uris": []string{testRedirect}, "scope": "orders:read orders:write"}
	for i := 0; i < len(change); i += 2 {
		members[change[i].(string)] = change[i+1]
	}
	return string(encodeJSON(members))
}

func TestApp_nameShowsWhatItIs(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"Table Planner": true, "Café Größe №5": true, "テーブル管理": true, "מתכנן": true, "7": true,
		"Planner 😀": true, "a\u0301": true, // a mark on its letter
		"":   true, // left to who reads the member
		" x": false, "x ": false, "\u3000x": false, "x\u00a0": false, " ": false, "...": false, "⠀": false,
		"x\x00": false, "x\ny": false, "x\u0085y": false, "x\x7f": false, "x\u2028y": false, "x\u2029y": false,
		"x\u061cy": false, "x\u200ey": false, "x\u200fy": false, "x\u202ay": false, "x\u202by": false,
		"x\u202cy": false,
		"x\u202dy": false, "x\u202ey": false, "x\u2066y": false, "x\u2067y": false, "x\u2068y": false,
		"x\u2069y": false,
		"x\u200by": false, "x\u200cy": false, "x\u200dy": false, "x\u2060y": false, "x\ufeffy": false,
		"x\u00ady": false,
		"x\u180ey": false, "x\U000e0041y": false, "x\ufe0fy": false, "x\u3164y": false, "\u115f": false,
		"x\u034fy": false, "x\ue000y": false, "x\ufff9y": false,
	} {
		p := &app{Name: name}
		refused := ""
		p.normalise(func(member, code, _ string) { refused = member + " " + code })
		failIf(t, (refused == "") != good || !good && refused != "name invalid_character", "%q: %q", name, refused)
	}
}

// redirects are addresses with the kinds of applications that may have them: w(eb), b(rowser), i(nstalled).
var redirects = map[string]string{
	"https://app.example/back": "wbi", "https://app.example": "wbi", "https://app.example:8443/a/b?x=1&y=%20": "wbi",
	"https://App.Example/Back": "wbi", "https://xn--bcher-kva.example/": "wbi", "https://app.example/a%2Fb": "wbi",
	"https://app.example/?": "wbi", "https://localhost/back": "wbi", "https://[2001:db8::1]/back": "wbi",
	"http://127.0.0.1/back": "i", "http://127.0.0.1:8123/back": "i", "http://[::1]/back": "i", "http://[::1]:9/": "i",
	"http://127.0.0.1": "i", "com.example.app:/back": "i", "com.example.app://back": "i", "com.example-2.app:/": "i",
}

// wrongRedirects are addresses that no kind may have.
var wrongRedirects = append(strings.Fields(`
	http://app.example/back http://localhost/back http://localhost.:1/ http://127.0.0.2/ http://127.1/
	http://0x7f000001/ http://2130706433/ http://0177.0.0.1/ http://[0:0:0:0:0:0:0:1]/ http://[::ffff:127.0.0.1]/
	http://[::1%25lo]/ http://::1/ http://127.0.0.1.evil.example/ http://127.0.0.1@evil.example/
	http://evil.example#127.0.0.1 http://127.0.0.1:0/ http://127.0.0.1:99999/ http://127.0.0.1:x/ http://127.0.0.1:/
	http://127.0.0.1\@evil.example/ HTTP://127.0.0.1/ http:/127.0.0.1/ http:127.0.0.1 https://app.example/back#
	https://app.example/back#x https://u@app.example/ https://u:p@app.example/ https://@app.example/
	https://*.app.example/ https://app.example/* https:///back https:app.example https:/app.example https://
	HTTPS://app.example/ //app.example/back /back app.example/back https://bücher.example/ https://app.example/%zz
	https://app..example/ https://app.example./ https://.example/ https://app.example:443x/
	https://app.example/../admin https://app.example/%2e%2e/admin https://app.example/.
	https://app.example\evil.example/ https://app.example/<script> https://app.example/{x} https://[::1/
	https://app.example%2eevil.example/ https://%61pp.example/ javascript:alert(1)
	javascript://app.example/%0aalert(1) JavaScript:/x data:text/html,x data:/text file:///etc/passwd vbscript:x
	blob:https://app.example/x about:blank urn:ietf:wg:oauth:2.0:oob ftp://app.example/ ws://app.example/
	intent://x#Intent;end myapp:/back com.example.app:back Com.Example.App:/back com..app:/back .app:/back
	com.:/back com.-app:/back com.a+b:/back com.example.app://u@back/ com.example.app:/back#x 1com.example:/back`),
	"", "https://app.example/\u00e9", "https://app.example/a b", "https://app.example/\n", "https://app.example/\x00",
	"com.example.app:/b ack")

func TestRedirectURI_isOneOfTheKindsOwn(t *testing.T) {
	t.Parallel()
	kinds := map[string]string{"w": appWeb, "b": appBrowser, "i": appInstalled}
	all := maps.Clone(redirects)
	for _, uri := range wrongRedirects {
		all[uri] = ""
	}
	for uri, may := range all {
		for letter, kind := range kinds {
			code, detail := checkRedirectURI(kind, uri)
			failIf(t, (code == "") != strings.Contains(may, letter) || (code == "") != (detail == ""),
				"%s, %q: %q %q", kind, uri, code, detail)
		}
	}
	long := "https://app.example/" + strings.Repeat("x", maxAppURL)
	if code, _ := checkRedirectURI(appWeb, long[:maxAppURL]); code != "" {
		t.Errorf("of %d characters: %s", maxAppURL, code)
	}
	if code, _ := checkRedirectURI(appWeb, long[:maxAppURL+1]); code != "too_long" {
		t.Errorf("of %d characters: %s", maxAppURL+1, code)
	}
	for page, good := range map[string]bool{"https://app.example/about": true, "http://127.0.0.1:3000/": true,
		"http://app.example/": false, "com.example.app:/": false, "javascript:alert(1)": false,
		"https://u@a.example/": false} {
		if code, _ := checkHomePage(page); (code == "") != good {
			t.Errorf("home page %s: %q", page, code)
		}
	}
}

func FuzzRedirectURI(f *testing.F) {
	for _, uri := range slices.AppendSeq(wrongRedirects, maps.Keys(redirects)) {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		for _, kind := range appKinds {
			code, _ := checkRedirectURI(kind, uri)
			if code != "" {
				continue
			}
			u, err := url.Parse(uri)
			if err != nil || u.User != nil || u.Fragment != "" || strings.ContainsAny(uri, "#\\* \"<>") ||
				len(uri) > maxAppURL {
				t.Fatalf("%s takes %q: %v", kind, uri, err)
			}
			for _, b := range []byte(uri) {
				if b <= ' ' || b > '~' {
					t.Fatalf("%s takes %q", kind, uri)
				}
			}
			local := u.Scheme == "http" && (u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
			private := strings.Contains(u.Scheme, ".")
			if u.Scheme != "https" && (kind != appInstalled || !local && !private) || u.Scheme == "https" &&
				u.Host == "" {
				t.Fatalf("%s takes %q", kind, uri)
			}
		}
	})
}

func TestApp_isRegisteredShownChangedAndRemoved(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	auth := s.appAuth(s.account, scopeOrders)
	made := s.post("/apps", appBody("scope", "orders:write orders:read orders:read"), auth).is(200)
	id, secret := made.text("id"), made.text("client_secret")
	failIf(t, !regexp.MustCompile(`^[A-Z2-7]{52}$`).MatchString(secret), "secret %q", secret)
	if m := made.json(); m["scope"] != "orders:read orders:write" || m["own_scope"] != nil || m["verified_at"] != nil ||
		m["account_id"] != s.account || !strings.HasPrefix(made.text("made_by"), "token tok_") {
		t.Errorf("made %v", m)
	}
	s.hasRows(1, `apps WHERE secret_hash = ?`, hashOf(secret))
	shown := s.get("/apps/"+id, auth).is(200)
	listed := s.get("/apps", auth).is(200)
	for _, a := range []answer{shown, listed} {
		failIf(t, strings.Contains(a.body, "secret\":\"") || strings.Contains(a.body, secret) ||
			!strings.Contains(a.body, id), "shows %s", a.body)
	}
	if text := s.dump(); strings.Contains(text, secret) || strings.Contains(s.log.String(), secret) {
		t.Error("the secret is in the database or in the log")
	}
	changed := s.do("PATCH", "/apps/"+id,
		`{"name":"Planner","redirect_uris":["https://app.example/new"],"scope":"stats:read"}`, auth).is(200)
	if m := changed.json(); m["name"] != "Planner" || m["scope"] != "stats:read" ||
		m["home_page"] != "https://app.example" {
		t.Errorf("changed %v", m)
	}
	before := s.dump()
	s.do("PATCH", "/apps/"+id, `{"name":"Planner"}`, auth).is(200)
	s.do("PATCH", "/apps/"+id, `{}`, auth).is(200)
	s.do("PATCH", "/apps/"+id, `{"kind":"browser"}`, auth).is(422).names("#/kind immutable")
	s.unchanged(before)
	s.do("DELETE", "/apps/"+id, "", auth).is(204)
	s.do("DELETE", "/apps/"+id, "", auth).is(404, "app_not_found")
	s.get("/apps/"+id, auth).is(404, "app_not_found")
	s.do("PATCH", "/apps/"+id, `{"name":"x"}`, auth).is(404, "app_not_found")
	s.post("/apps/"+id+"/rotate-secret", "", auth).is(404, "app_not_found")
	events := s.get("/events?type=app.updated", s.auth(s.account, scopeEvents)).is(200)
	failIf(t, !strings.Contains(events.body, `"changed":"name redirect_uris scope"`) ||
		strings.Contains(events.body, "app.example"), "events %s", events.body)
	s.hasRows(3, `events WHERE subject_id = ? AND type IN ('app.registered', 'app.updated',
		'app.removed')`, id)
}

func TestApp_refusalNamesEveryWrongMember(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	auth := s.appAuth(s.account, scopeOrders)
	before := s.dump()
	s.post("/apps", `{}`, auth).is(422).names("#/name required", "#/home_page required", "#/kind required",
		"#/redirect_uris required", "#/scope required")
	for _, c := range []struct {
		members []any
		wrong   []string
	}{
		{[]any{"name", "x\u202ey", "home_page", "http://x.example", "redirect_uris",
			[]string{"javascript:x", testRedirect, testRedirect}},
			[]string{"#/name invalid_character", "#/home_page https_required", "#/redirect_uris/0 https_required",
				"#/redirect_uris/2 repeated"}},
		{[]any{"name", strings.Repeat("x", maxAppName+1)}, []string{"#/name too_long"}},
		{[]any{"kind", "native"}, []string{"#/kind unknown_value"}},
		{[]any{"redirect_uris", []string{}}, []string{"#/redirect_uris wrong_length"}},
		{[]any{"redirect_uris", slices.Repeat([]string{testRedirect}, 21)}, []string{"#/redirect_uris wrong_length"}},
		{[]any{"redirect_uris", []any{testRedirect, 7}}, []string{"#/redirect_uris/1 wrong_type"}},
		{[]any{"scope", "admin"}, []string{"#/scope unknown_value"}},
		{[]any{"scope", "orders:read apps:write"}, []string{"#/scope unknown_value"}},
		{[]any{"scope", "orders:read oauth:consent"}, []string{"#/scope unknown_value"}},
		{[]any{"scope", "license:verify"}, []string{"#/scope unknown_value"}},
		{[]any{"scope", " "}, []string{"#/scope unknown_value"}},
		{[]any{"scope", ""}, []string{"#/scope empty"}},
		{[]any{"origins", []string{"https://app.example"}}, []string{"#/origins not_allowed"}},
		{[]any{"kind", "browser"}, []string{"#/origins required"}},
		{[]any{"kind", "browser", "origins", []string{"https://app.example/x", "http://app.example", "null",
			"https://*.app.example",
			"https://a.example", "HTTPS://A.example:443"}},
			[]string{"#/origins/0 invalid_origin", "#/origins/1 invalid_origin",
				"#/origins/2 invalid_origin", "#/origins/3 invalid_origin", "#/origins/5 repeated"}},
		{[]any{"kind", "browser", "origins", []string{"https://b.example", siteOrigin}},
			[]string{"#/origins/1 not_allowed"}},
		{[]any{"kind", "browser", "origins", []string{"https://b.example"}, "own_scope", "orders:read"},
			[]string{"#/own_scope not_allowed"}},
		{[]any{"kind", "installed", "own_scope", "orders:read"}, []string{"#/own_scope not_allowed"}},
		{[]any{"own_scope", "stats:read"}, []string{"#/own_scope unknown_value"}},
	} {
		s.post("/apps", appBody(c.members...), auth).is(422, "validation_failed").names(c.wrong...)
	}
	s.unchanged(before)
	a := s.post("/apps", appBody("kind", "browser", "origins", []string{"HTTPS://App.example:443"}), auth).is(200)
	if m := a.json(); m["client_secret"] != nil || fmt.Sprint(m["origins"]) != "[https://app.example]" {
		t.Errorf("made %v", m)
	}
	s.do("PATCH", "/apps/"+a.text("id"), `{"origins":[]}`, auth).is(422).names("#/origins required")
	s.do("PATCH", "/apps/"+a.text("id"), `{"origins":["`+siteOrigin+`"]}`, auth).is(422).
		names("#/origins/0 not_allowed")
	s.do("PATCH", "/apps/"+a.text("id"), `{"redirect_uris":["http://127.0.0.1/"]}`, auth).is(422).
		names("#/redirect_uris/0 https_required")
}

func TestApp_getsNoMoreForItselfThanTheTokenThatRegistersItHas(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	both, lesser := s.appAuth(s.account, scopeOrders, scopeSelling), s.appAuth(s.account, scopeOrders)
	s.post("/apps", appBody("own_scope", "orders:write"), lesser).
		challenged(403, "insufficient_scope", scopeChallenge(scopeSelling))
	s.post("/apps", appBody("own_scope", "orders:read"), lesser).is(200)
	made := s.post("/apps", appBody("own_scope", "orders:read orders:write"), both,
		"Idempotency-Key: owner-registers").is(200)
	id := made.text("id")
	rotate := "/apps/" + id + "/rotate-secret"
	rotated := s.post(rotate, "", both, "Idempotency-Key: owner-rotates").is(200)
	// A token that lacks what the application gets can't have its secret, in none of the ways.
	before := s.dump()
	s.post(rotate, "", lesser).challenged(403, "insufficient_scope", scopeChallenge(scopeSelling))
	s.post(rotate, `{"now":true}`, lesser).is(403)
	s.post(rotate, "", lesser, "Idempotency-Key: owner-rotates").is(403)
	s.post("/apps", appBody("own_scope", "orders:read orders:write"), lesser, "Idempotency-Key: owner-registers").
		is(403)
	s.unchanged(before)
	again := s.post(rotate, "", both, "Idempotency-Key: owner-rotates").is(200).has("Idempotency-Replayed: true")
	failIf(t, again.text("client_secret") != rotated.text("client_secret"), "the answer is another one")
	none := s.post("/apps", appBody(), lesser).is(200).text("id")
	s.do("PATCH", "/apps/"+none, `{"own_scope":"orders:write"}`, lesser).
		challenged(403, "insufficient_scope", scopeChallenge(scopeSelling))
	s.do("PATCH", "/apps/"+none, `{"own_scope":"orders:read"}`, lesser).is(200)
	s.do("PATCH", "/apps/"+none, `{"scope":"stats:read"}`, lesser).is(422).names("#/own_scope unknown_value")
	s.do("PATCH", "/apps/"+none, `{"scope":"stats:read","own_scope":null}`, lesser).is(200)
}

func TestApp_isVerifiedByOperatorsOnlyAndUntilATenantChangesIt(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	tenant := s.addAccount("Trattoria")
	auth, admin := s.appAuth(tenant, scopeOrders), s.auth(s.account, scopeAdmin)
	id := s.post("/apps", appBody("kind", "browser", "origins", []string{"https://a.example"}), auth).is(200).text("id")
	verified := func() bool { return s.get("/apps/"+id, auth).is(200).json()["verified_at"] != nil }
	failIf(t, verified(), "a tenant's application is verified from the start")
	for _, change := range []string{`{"name":"Another"}`, `{"home_page":"https://b.example"}`,
		`{"redirect_uris":["https://b.example/"]}`,
		`{"origins":["https://b.example"]}`, `{"scope":"leads:read"}`} {
		s.must("app", "verify", id)
		s.do("PATCH", "/apps/"+id, `{"name":"`+s.get("/apps/"+id, auth).text("name")+`"}`, auth).is(200)
		failIf(t, !verified(), "a change without effect undoes it")
		s.do("PATCH", "/apps/"+id, change, auth).is(200)
		failIf(t, verified(), "it is verified after %s", change)
	}
	s.must("app", "verify", id)
	s.do("PATCH", "/apps/"+id, `{"name":"By an operator"}`, admin).is(200)
	failIf(t, !verified(), "it is not verified after an operator's change")
	s.must("app", "verify", id, "-undo")
	failIf(t, verified(), "it is verified after -undo")
	web := s.post("/apps?account_id="+tenant, appBody(), admin).is(200)
	failIf(t, web.json()["verified_at"] == nil || web.text("account_id") != tenant, "an operator's: %s", web.body)
	s.do("PATCH", "/apps/"+web.text("id"), `{"own_scope":"orders:read"}`, auth).is(200)
	s.post("/apps/"+web.text("id")+"/rotate-secret", "", auth).is(200)
	failIf(t, s.get("/apps/"+web.text("id"), auth).json()["verified_at"] == nil,
		"what the application gets for its owner undoes it")
}

func TestApp_ofAnAccountAreAtMostTwenty(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.appAuth(s.account)
	for range maxApps - 3 {
		s.registerApp()
	}
	var calls sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for range 6 {
		calls.Go(func() {
			a := s.post("/apps", appBody(), auth)
			mu.Lock()
			defer mu.Unlock()
			answers[a.status]++
		})
	}
	calls.Wait()
	failIf(t, answers[200] != 3 || answers[409] != 3, "answers %v", answers)
	s.post("/apps", appBody(), auth).is(409, "app_limit_reached")
	_, err := s.command("app", "add", "x", "-home-page", "https://a.example", "-redirect-uri", testRedirect, "-scope",
		scopeOrders)
	oneLine(t, err, "the account has 20 applications already")
	ids, _ := s.everyPage("/apps?limit=7", auth)
	failIf(t, len(ids) != maxApps, "pages have %d", len(ids))
	s.do("DELETE", "/apps/"+ids[3].(string), "", auth).is(204)
	s.post("/apps", appBody(), auth).is(200)
}

func TestApp_isNobodyElsesAndNoApplicationsOwnAffair(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	tenant := s.addAccount("Trattoria")
	p, _ := s.registerApp(func(p *app) { p.AccountID, p.Scope = tenant, strings.Join(appScopes, " ") })
	token, grantID := s.appToken(p, s.account, p.Scope)
	stranger, portal := s.appAuth(s.account), s.portalToken(s.account, scopeApps)
	own := bearer(token)
	calls := [][3]string{{"GET", "/apps/" + p.ID, ""}, {"PATCH", "/apps/" + p.ID, `{"name":"Mine"}`},
		{"POST", "/apps/" + p.ID + "/rotate-secret", ""}, {"DELETE", "/apps/" + p.ID, ""}}
	without := s.auth(tenant, scopeOrders)
	before := s.dump()
	for _, c := range calls {
		s.do(c[0], c[1], c[2], stranger).is(404, "app_not_found")
		s.do(c[0], c[1]+"?account_id="+tenant, c[2], stranger).is(403)
		s.do(c[0], c[1], c[2], without).is(403, "insufficient_scope")
		s.do(c[0], c[1], c[2], own).is(403, "insufficient_scope")
		s.do(c[0], c[1], c[2]).is(401, "token_required")
	}
	for _, path := range []string{"/grants", "/grants/" + grantID, "/apps"} {
		s.get(path, own).is(403, "insufficient_scope")
	}
	s.do("DELETE", "/grants/"+grantID, "", own).is(403, "insufficient_scope")
	s.post("/apps", appBody(), own).is(403, "insufficient_scope")
	s.get("/orders?account_id="+tenant, own).is(403, "insufficient_scope")
	s.unchanged(before)
	s.get("/apps/"+p.ID+"?account_id="+tenant, portal).is(200)
	if a := s.post("/apps?account_id="+tenant, appBody(), portal).is(200); a.json()["verified_at"] != nil {
		t.Error("a portal vouches for an application")
	}
}

func TestApp_secretBeforeTheLastIsTakenForAWeek(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	auth := s.appAuth(s.account)
	first := s.post("/apps", appBody(), auth).is(200)
	rotate := "/apps/" + first.text("id") + "/rotate-secret"
	stored := func(secret, earlier string) {
		t.Helper()
		p, err := s.store.app(anyAccount, first.text("id"))
		s.check(err)
		now, before := sha256.Sum256([]byte(secret)), sha256.Sum256([]byte(earlier))
		if string(p.SecretHash) != string(now[:]) || (earlier == "") != (p.EarlierHash == nil) ||
			earlier != "" && string(p.EarlierHash) != string(before[:]) || (earlier == "") != p.EarlierUntil.IsZero() {
			t.Errorf("stored %+v", p)
		}
	}
	stored(first.text("client_secret"), "")
	second := s.post(rotate, "", auth).is(200)
	stored(second.text("client_secret"), first.text("client_secret"))
	if until, ok := parseStamp(second.text("previous_secret_until")); !ok ||
		!closerThan(time.Minute, until.Time, time.Now().Add(appSecretOverlap)) {
		t.Errorf("until %v", until)
	}
	third := s.post(rotate, `{"now":false}`, auth).is(200)
	stored(third.text("client_secret"), second.text("client_secret"))
	fourth := s.post(rotate, `{"now":true}`, auth).is(200)
	stored(fourth.text("client_secret"), "")
	failIf(t, fourth.json()["previous_secret_until"] != nil, "at once: %s", fourth.body)
	s.post(rotate, `{"now":"yes"}`, auth).is(422).names("#/now wrong_type")
	public := s.post("/apps", appBody("kind", "installed"), auth).is(200).text("id")
	s.post("/apps/"+public+"/rotate-secret", "", auth).is(409, "app_without_secret")
}

func TestApp_idempotencyKeysAreTheApplicationsOwn(t *testing.T) {
	t.Parallel()
	s := quietService(t, admitLoopback)
	p, _ := s.registerApp(func(p *app) { p.Scope += " " + scopeLeads })
	q, _ := s.registerApp(func(p *app) { p.Scope += " " + scopeLeads })
	scope := scopeWebhooks + " " + scopeLeads
	one, _ := s.appToken(p, s.account, scope)
	two, _ := s.appToken(p, s.account, scope)
	other, _ := s.appToken(q, s.account, scope)
	ids := map[string]string{}
	for name, token := range map[string]string{"the account": s.token(s.account, scope), "one": one, "other": other} {
		a := s.post("/webhooks", hookBody("lead.created"), bearer(token), "Idempotency-Key: the-same-for-all").
			is(200)
		failIf(t, a.header.Get("Idempotency-Replayed") != "", "%s gets somebody else's answer: %s", name, a.body)
		ids[a.text("id")] = name
	}
	failIf(t, len(ids) != 3, "made %v", ids)
	again := s.post("/webhooks", hookBody("lead.created"), bearer(two), "Idempotency-Key: the-same-for-all").is(200)
	failIf(t, ids[again.text("id")] != "one",
		"the application repeats its own call under another grant and gets %s", again.body)
}

func appStory(t *testing.T, o *operator) {
	made := o.object("app", "add", "Table Planner", "-account", o.account, "-home-page", "https://app.example",
		"-redirect-uri",
		"https://app.example/a https://app.example/b,c", "-scope", "orders:read webhooks:write", "-own-scope",
		"orders:read")
	id, secret := made["id"].(string), made["client_secret"].(string)
	failIf(t, made["verified_at"] == nil || made["own_scope"] != "orders:read" ||
		fmt.Sprint(made["redirect_uris"]) != "[https://app.example/a https://app.example/b,c]", "made %v", made)
	board := strings.Fields("-home-page https://b.example -redirect-uri https://b.example/ -scope stats:read")
	board = slices.Clip(board) // so that every append makes another list
	plain := o.do(append([]string{"app", "add", "Board", "-kind", "browser", "-origin", "https://b.example"},
		board...)...)
	failIf(t, !matches(`^client id:     app_\w{26}\nclient secret: none: with PKCE it needs no secret\n$`, plain),
		"made %q", plain)
	for want, args := range map[string][]string{
		"-home-page URL is needed": {"-redirect-uri", "https://b.example/", "-scope",
			"stats:read"},
		"-redirect-uri is needed": {"-home-page", "https://b.example", "-scope",
			"stats:read"},
		"-scope is needed": {"-home-page", "https://b.example", "-redirect-uri",
			"https://b.example/"},
		"-redirect-uri: This must": {"-home-page", "https://b.example", "-redirect-uri", "http://b.example/",
			"-scope", "stats:read"},
		`-scope: there is no scope of applications "admin"`: {"-home-page",
			"https://b.example", "-redirect-uri", "https://b.example/", "-scope", "admin"},
		`-kind: there is no "x": take one of web, browser, installed`: append(board, "-kind", "x"),
		"-origin: This is an": append(board, "-kind", "browser", "-origin", siteOrigin),
	} {
		o.fails(want, append([]string{"app", "add", "X"}, args...)...)
	}
	o.fails("NAME: This must", append([]string{"app", "add", "x\u202ey"}, board...)...)
	rows := o.objects("app", "list", "-account", o.account)
	failIf(t, len(rows) != 2 || rows[1]["id"] != id || rows[1]["client_secret"] != nil ||
		rows[1]["made_by"] != "operator", "rows %v", rows)
	if out := o.do("app", "verify", id,
		"-undo"); out != id+" (Table Planner): only the account that owns it can agree to it\n" {
		t.Errorf("printed %q", out)
	}
	if v := o.object("app", "verify", id); v["verified_at"] == nil {
		t.Errorf("verified %v", v)
	}
	rotated := o.object("app", "rotate-secret", id)
	failIf(t, rotated["client_secret"] == secret || rotated["previous_secret_until"] == nil, "rotated %v", rotated)
	if out := o.do("app", "rotate-secret", id, "-now"); !strings.HasSuffix(out,
		"(shown once)\nthe one before is not taken any more\n") {
		t.Errorf("printed %q", out)
	}
	grantID := ""
	o.change(func(t *tx) error {
		grantID = t.newID("grt")
		return t.addGrant(&grant{ID: grantID, AppID: id, AccountID: o.account, Scope: scopeOrders, AgreedBy: "test",
			CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)})
	})
	if rows := o.objects("grant", "list", "-account", o.account); len(rows) != 1 || rows[0]["id"] != grantID {
		t.Errorf("grants %v", rows)
	}
	o.do("grant", "revoke", grantID)
	if rows := o.objects("grant", "list"); len(rows) != 0 {
		t.Errorf("grants %v", rows)
	}
	if rows := o.objects("grant", "list", "-ended"); len(rows) != 1 || rows[0]["ended_by"] != endedByOperator {
		t.Errorf("ended grants %v", rows)
	}
	o.fails("not found: 'widgetd grant list -ended' prints what there is", "grant", "revoke", newID("grt", time.Now()))
	o.do("app", "remove", id)
	o.fails("not found: 'widgetd app list' prints what there is", "app", "remove", id)
	if rows := o.objects("app", "list"); len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
}

func TestApp_registeredByWhoLostTheAccountIsNot(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	tenant := s.addAccount("Trattoria")
	s.change(func(t *tx) error { return closeAccount(t, nouns(), tenant, actorCommand) })
	s.change(func(tx *tx) error {
		_, err := createApp(tx, &app{AccountID: tenant, Name: "x", HomePage: "https://a.example", Kind: appWeb,
			RedirectURIs: codeList{testRedirect}, Scope: scopeOrders}, anAppAuthor)
		failIf(t, !errors.Is(err, errAccount), "registered: %v", err)
		return nil
	})
}
