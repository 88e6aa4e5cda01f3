package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
	kinds := map[string]appKind{"w": appWeb, "b": appBrowser, "i": appInstalled}
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
		if code, _ := checkHomePage.of(page); (code == "") != good {
			t.Errorf("home page %s: %q", page, code)
		}
	}
}

func FuzzRedirectURI(f *testing.F) {
	for _, uri := range slices.AppendSeq(wrongRedirects, maps.Keys(redirects)) {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		for _, kind := range registeredKinds {
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

func TestApp_ofAnAccountAreAtMostTwenty(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.appAuth(s.account)
	for range maxApps - 3 {
		s.registerApp()
	}
	answers := crowd(6, func(int) answer { return s.post("/apps", appBody(), auth) })
	equal(t, "answers", answers, map[int]int{200: 3, 409: 3})
	s.post("/apps", appBody(), auth).is(409, "app_limit_reached")
	_, err := s.command("app", "add", "x", "-home-page", "https://a.example", "-redirect-uri", testRedirect, "-scope",
		scopeOrders)
	oneLine(t, err, "account has 20 applications already")
	ids, _ := s.everyPage("/apps?limit=7", auth)
	failIf(t, len(ids) != maxApps, "pages have %d", len(ids))
	s.do("DELETE", "/apps/"+ids[3].(string), "", auth).is(204)
	s.post("/apps", appBody(), auth).is(200)
}

// everyScope is all scopes that there are.
var everyScope = strings.Join(append(slices.Clone(grantableScopes), scopeDevice), " ")

// Against an application with its access token that would act on another account, or as an operator, a portal or a
// device; also after somebody edited its rows: it acts on the token's account only; scopes are those that were
// signed, that its row has, and that applications may have at all.
func TestAppToken_isNeverAnOperatorsWhateverItsRowsSay(t *testing.T) {
	t.Parallel()
	s := quietService(t, withoutAddressLimits)
	s.damaged = true // its rows
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	p, _ := s.registerApp(func(p *app) { p.Scope = everyScope })
	signed, _ := s.appToken(p, s.account, everyScope)
	edited, _ := s.appToken(p, s.account, scopeOrders)
	s.sql(`UPDATE app_tokens SET scope = ?`, everyScope)
	other := s.addAccount("another")
	refused := 0
	for _, r := range allRoutes() {
		if r.token != tokenRequired || r.origin != originAny {
			continue
		}
		path := strings.NewReplacer("{id}", "x", "{device}", "x", "{delivery}", "x",
			"{export_id}", "x").Replace(r.path())
		outOfReach := r.scope != "" && scopesWithin(r.scope, strings.Join(appScopes, " ")) != r.scope ||
			r.noApps
		a := s.do(r.method(), path, "", bearer(signed))
		lacks := a.status == 403 && a.header.Get("WWW-Authenticate") == scopeChallenge(r.scope)
		failIf(t, lacks != outOfReach, "%s is %d %s with all scopes", r.pattern, a.status, a.body)
		if outOfReach {
			refused++
		}
		if r.scope != "" && r.scope != scopeOrders { // a row adds nothing to what was signed
			a := s.do(r.method(), path, "", bearer(edited)).is(403, "insufficient_scope")
			equal(t, fmt.Sprintf("%s asks for", r.pattern), a.header.Get("WWW-Authenticate"), scopeChallenge(r.scope))
		}
	}
	failIf(t, refused < 9, "%d routes are out of reach only", refused)
	for _, path := range []string{"/orders", "/leads", "/events", "/account", "/revenue/days", "/licenses",
		"/webhooks"} {
		s.get(path+"?account_id="+other, bearer(signed)).is(403, "insufficient_scope")
		s.get(path+"?account_id="+s.account, bearer(signed)).is(200)
	}
	for _, token := range []string{signed, edited} { // GET /account needs no scope
		equal(t, "the account", s.get("/account", bearer(token)).is(200).text("id"), s.account)
	}
}

// Against whoever is given a token by an operator who would be taken for an application: operators can't issue
// tokens with such a client id; which kind a token is says its row.
func TestToken_underAnApplicationsNameFromBeforeIsNoApplications(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	p, _ := s.registerApp()
	oneLine(t, s.failure("token", "issue", "-scope", scopeLeads, "-client-id", p.ID), "is an application's")
	earlier := ""
	s.change(func(t *tx) (err error) {
		row := tokenRow{AccountID: s.account, ClientID: p.ID, Scope: scopeAdmin}
		earlier, _, err = issueToken(t, s.keys, row, appTokenLife)
		return err
	})
	s.get("/licenses", bearer(earlier)).is(200)
}

// Stories of applications, tokens and strangers who try to get more than their scopes say.

// ofApp is the header with a token that an application has for the main account, with these scopes.
func (s *service) ofApp(p *app, scopes ...string) string {
	s.t.Helper()
	token, _ := s.appToken(p, s.account, strings.Join(scopes, " "))
	return "Authorization: Bearer " + token
}

// everything lets an application ask for all that applications may have.
func everything(p *app) { p.Scope = strings.Join(appScopes, " ") }

// tellsNoGuest checks that an answer with an order has neither its guest nor how it was paid.
func (a answer) tellsNoGuest() answer {
	a.t.Helper()
	for _, known := range []string{"Ada ", "555 01 23", "Seestrasse", `"8002"`, "de-CH", "Keller"} {
		if strings.Contains(a.body, known) {
			a.t.Errorf("tells of the guest: %s", a.body)
		}
	}
	return a.is(200).holds("customer=null", "fulfilment=null", "language=null", "reject_text=null", "payment=null")
}

// Against an application or a token with orders:write alone that would learn who orders, by guessing references or
// marking orders as paid, or by the Idempotency-Key of another token: without orders:read, customer and payment are
// null in every answer, repeated ones too; an application is not told which order has a reference.
func TestOrder_whoOnlyWritesOrdersSeesNoPaymentOfOneThatIsAcceptedOrRejected(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		writer := "Authorization: Bearer " + s.token(s.account, scopeSelling)
		for _, decision := range []string{"accept", "reject"} {
			o, _ := s.authorized()
			body := `{}`
			if decision == "reject" {
				body = `{"reason":"address","text":"No Ada Keller there"}`
			}
			s.post("/orders/"+o.ID+"/"+decision, body, writer).tellsNoGuest()
			if a := s.get("/orders/"+o.ID, s.seller()).is(200); a.json()["payment"] == nil {
				t.Errorf("the payment is lost: %s", a.body)
			}
		}
	})
}

// Against an application with any access token that would guess licence keys beyond what a stranger may: without
// licenses:read its licence calls are anybody's, held by address.
func TestLookupLimit_holdsAnApplicationThatCannotReadLicences(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.server.monotonic = standsStill()
	p, _ := s.registerApp(everything)
	guess := func(path, bearer string) answer {
		return s.post("/widget/license/"+path, seatBody("license_key", newLicenseKey(), "fingerprint", "f"), bearer)
	}
	_, key := s.addLicense(license{})
	writer := s.ofApp(p, scopeOrders, scopeDevices)
	s.post("/widget/license/verify", seatBody("license_key", key, "fingerprint", "f"), writer).is(200).
		has(`RateLimit-Policy: "licenses";q=600;w=60`)
	for range 15 {
		guess("verify", writer).is(200)
		guess("activate", s.ofApp(p, scopeOrders)).is(404, "license_not_found") // another grant is no way around it
	}
	guess("verify", writer).is(429, "rate_limited")
	guess("activate", s.ofApp(p, scopeOrders)).is(429, "rate_limited")
	guess("verify", s.ofApp(p, scopeLicenses)).is(200) // it may list them anyway, and finds the account's only
	guess("verify", "Authorization: Bearer "+s.token(s.account, scopeOrders)).is(200)
}

// TestBooks_aLinkOfAnApplicationIsFinishedByTheOwnerOnly is about an application that would have a restaurant's
// revenue sent to books of its own.
func TestBooks_aLinkOfAnApplicationIsFinishedByTheOwnerOnly(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.asked("DELETE", "/"+k.connection, "").is(204)
		p, _ := k.registerApp(everything)
		begin := k.post("/books/connections", `{"product":"`+k.product+`"}`, k.ofApp(p, scopeBooks)).is(200)
		link := strings.TrimPrefix(begin.text("authorize_url"), testBase)
		at, query, _ := strings.Cut(link, "?")
		if at != "/books/connect/"+k.product {
			t.Fatalf("the link leads to %s", begin.text("authorize_url"))
		}
		k.get("/books/callback/"+k.product+"?code=its-own&"+query).nowhere(409, "begin again")
		signin := k.get(link).is(303).header.Get("Location")
		thief := k.signedIn(k.addAccount("the thief's"))
		thief.visit(link, nil).nowhere(409, "You are not signed in for the account")

		owner := &visitor{service: k.service}
		code := url.Values{"code": {k.signinCode(k.account)}}
		next := owner.visit(strings.TrimPrefix(signin, "../.."), code).is(303).header.Get("Location")
		product := owner.visit(strings.TrimPrefix(next, ".."), nil).is(303).header.Get("Location")
		approve := map[string]func(string) string{productXero: k.xero.approve, productFortnox: k.fortnox.approve}
		back := strings.TrimPrefix(approve[k.product](product), testBase)
		k.get(back).nowhere(409, "You are not signed in")
		thief.visit(back, nil).nowhere(409, "You are not signed in")
		if n := k.count(`SELECT count(*) FROM books_connections WHERE removed_at IS NULL`); n != 0 {
			t.Errorf("%d connections were made by others", n)
		}
		owner.visit(back, nil).nowhere(200, "Connected")
		owner.visit(back, nil).nowhere(409, "used already")
		if n := k.count(`SELECT count(*) FROM events WHERE actor = 'person (portal)' AND type LIKE 'books.%'`); n != 1 {
			t.Errorf("%d events name the owner", n)
		}
		time.Sleep(authorizationLife)
		owner.visit(link, nil).nowhere(409, "older than ten minutes")
	})
}

// Against an application that has ended, or may do less, whose webhooks would go on until somebody sweeps: a delivery
// is judged when it is made, also one that is tried again.
func TestWebhook_deliveryIsJudgedByWhatItsApplicationMayDoThen(t *testing.T) {
	t.Parallel()
	may := func(scope string) func(*service, *app) {
		return func(s *service, p *app) {
			s.do("PATCH", "/apps/"+p.ID, `{"scope":"`+scope+`"}`, s.appAuth(p.AccountID)).is(200)
		}
	}
	for name, end := range map[string]func(s *service, p *app){
		"removed": func(s *service, p *app) {
			s.do("DELETE", "/apps/"+p.ID, "", s.appAuth(p.AccountID)).is(204)
		},
		"without leads":    may(scopeOrders + " " + scopeWebhooks),
		"without webhooks": may(scopeLeads),
		"without a grant": func(s *service, _ *app) {
			s.sql(`UPDATE grants SET ended_at = created_at, ended_by = 'owner'`)
		},
		"of a closed owner": func(s *service, p *app) {
			s.sql(`UPDATE accounts SET closed_at = created_at WHERE id = ?`, p.AccountID)
		},
		"for a closed account": func(s *service, _ *app) {
			s.sql(`UPDATE accounts SET closed_at = created_at WHERE id = ?`, s.account)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubbleOfWebhooks(t, func(s *service, r *receiver) {
				p, _ := s.registerApp(everything, func(p *app) { p.AccountID = s.addAccount("vendor") })
				_, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeLeads)
				s.sql(`INSERT INTO app_webhooks VALUES (?, ?, ?)`,
					s.subscribe(s.account, r.url("/"), eventLeadCreated), p.ID, grantID)
				defer s.startSending(time.Minute)()
				r.status(500)
				r.gets(s.announce(s.account, eventLeadCreated))
				end(s, p)
				s.announce(s.account, eventLeadCreated)
				letPass(time.Hour)
				r.gets()
			})
		})
	}
}

// Against an application whose owner was closed for a time, that would learn by webhooks in other accounts what
// happened meanwhile: they too begin with the next event when the owner is opened again.
func TestWebhook_ofAnApplicationWhoseOwnerWasClosedTellsNothingOfThatTime(t *testing.T) {
	t.Parallel()
	s := newService(t, admitLoopback)
	vendor := s.addAccount("vendor")
	p, _ := s.registerApp(everything, func(p *app) { p.AccountID = vendor })
	hook := s.post("/webhooks", hookBody("lead.created"), s.ofApp(p, scopeWebhooks, scopeLeads)).is(200).text("id")
	disabled := s.post("/webhooks", hookBody("lead.created"), s.ofApp(p, scopeWebhooks, scopeLeads)).is(200).text("id")
	for _, id := range []string{hook, disabled} {
		s.answerTest(id)
	}
	own := s.addWebhook(s.account, "lead.created")
	s.sql(`UPDATE webhooks SET state = 'disabled', reason = 'owner' WHERE id = ?`, disabled)
	before := s.lastSeq()
	s.sql(`UPDATE webhook_queues SET sent_seq = ?`, before)
	s.sql(`UPDATE accounts SET closed_at = ? WHERE id = ?`, newStamp(time.Now()), vendor)
	missed := s.addEvents(s.account, eventLeadCreated, 3)
	if s.queued(hook) {
		t.Error("an application whose owner is closed is sent events")
	}
	s.sql(`UPDATE accounts SET closed_at = NULL WHERE id = ?`, vendor)
	all, err := s.store.webhookQueues()
	s.check(err)
	from := map[string]int64{}
	for _, q := range all {
		from[q.ID] = q.sentSeq
	}
	if from[hook] < int64(missed) || from[own] != int64(before) || len(from) != 2 {
		t.Errorf("the queues are sent up to %v; the missed event is %d", from, missed)
	}
}

// Against a user of an application without a secret who would use up what the application may ask for, so that its
// other users get no tokens: each grant has its own 60 a minute; neither the application's bucket nor the address
// is charged.
func TestTokenEndpoint_oneUserOfAPublicApplicationShutsOutNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		p, _ := s.registerApp(inBrowsers)
		agreed := func(account string) answer {
			return s.askToken(codeForm(p, s.agree(p, account, scopeOrders))).is(200)
		}
		greedy, other := agreed(s.account), agreed(s.addAccount("another"))
		again, next := refreshForm(p, greedy.text("refresh_token")), ""
		taken := 0
		for i := range 700 { // the same successor again and again, also from other addresses and by other endpoints
			a := s.askToken(again, []string{"Peer: 192.0.2.1:1", "Peer: 198.51.100.7:1"}[i%2])
			if a.status == 200 {
				next = a.text("refresh_token")
				taken++
			} else {
				a.refuses(429, "temporarily_unavailable")
			}
		}
		revoke := tokenForm("client_id", p.ID, "token", greedy.text("access_token"))
		s.post("/oauth/revoke", revoke, formType).refuses(429, "temporarily_unavailable")
		if taken != 60 {
			t.Errorf("%d requests under one grant were answered", taken)
		}
		s.askToken(refreshForm(p, other.text("refresh_token"))).is(200)
		agreed(s.account) // the greedy one's account has other users, too
		time.Sleep(time.Minute)
		s.askToken(refreshForm(p, next)).is(200)
	})
}

// Against a stranger behind the same address who would keep somebody from signing in, by wrong codes: only wrong
// codes are limited; a code has 60 random bits and lasts 15 minutes.
func TestSignin_wrongCodesOfAStrangerKeepNobodyOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		stranger := &visitor{service: s}
		wrong := url.Values{"code": {"7K3M-Q9XD-2VTA"}}
		for range signinTries {
			stranger.visit("/oauth/signin", wrong).nowhere(403)
		}
		for range 100 {
			stranger.visit("/oauth/signin", wrong).nowhere(429, "Too many requests")
		}
		person := &visitor{service: s}
		person.visit("/oauth/signin", nil).is(200)
		code := url.Values{"code": {s.signinCode(s.account)}}
		person.visit("/oauth/signin", code).is(303)
		person.visit("/oauth/signin", code).nowhere(429) // it is wrong now
		person.visit("/oauth/connected", nil).is(200)
	})
}

// Against anybody with the address of a provider's webhook who would have forged webhooks checked without end, or
// keep the provider's out by them: 60 with a wrong signature a minute and address; signed ones are never limited.
func TestPaymentWebhook_forgedOnesAreLimitedAndSignedOnesAreNot(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		path := "/payments/stripe/" + p.ConnectionID
		forge := func(path string) int {
			return s.post(path, `{}`, "Stripe-Signature: t=1,v1=00", "Peer: pipe").status
		}
		for range 60 {
			if got := forge(path); got != 401 {
				t.Fatalf("a forged webhook is answered with %d", got)
			}
		}
		for _, path := range []string{path, "/payments/stripe/" + newID("con", time.Now()),
			"/payments/vipps/" + p.ConnectionID} {
			if got := forge(path); got != http.StatusTooManyRequests {
				t.Errorf("%s: one more is answered with %d", path, got)
			}
		}
		s.accept(o.ID)
		s.settle(p)
		signed := s.takeNotices() // from the same address
		for _, post := range signed {
			if got := post(); got != http.StatusNoContent {
				t.Errorf("a signed webhook is answered with %d", got)
			}
		}
		if len(signed) == 0 {
			t.Error("the provider had nothing to tell")
		}
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
		if left := s.server.addressBuckets.peek("app "+p.ID, appRate, s.server.monotonic()).remaining; left < appRate {
			t.Errorf("the application has %d requests left", left)
		}
	})
}

func TestConsent_givesNoCodeWhenNobodyVouchesForTheApplicationAnyMore(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	tenant := s.addAccount("Trattoria")
	p, _ := s.registerApp(func(p *app) { p.AccountID = tenant })
	stranger, owner := s.signedIn(s.account), s.signedIn(tenant)
	path := authorizePath(p.askFor())
	form, own := stranger.visit(path, nil).agreeing(), owner.visit(path, nil).agreeing()
	stranger.visit(path, form).is(303)
	s.sql(`UPDATE apps SET verified_at = NULL WHERE id = ?`, p.ID) // within the second of its last change
	stranger.visit(path, form).nowhere(403)
	owner.visit(path, own).is(303)
	s.hasRows(2, `grant_codes`)
}
