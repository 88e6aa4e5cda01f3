package main

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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

func TestOrder_whoOnlyWritesOrdersNeverSeesAGuest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp()
	own := "Authorization: Bearer " + s.token(s.account, scopeSelling)
	for name, writer := range map[string]string{"an application": s.ofApp(p, scopeSelling), "the account": own} {
		o := s.post("/orders", orderBody(), s.seller()).is(200).text("id")
		s.post("/orders/"+o+"/paid", `{"method":"cash"}`, writer).tellsNoGuest().holds(`state="paid"`)
		s.do("DELETE", "/orders/"+o+"/paid", "", writer).tellsNoGuest().holds(`state="open"`)
		s.post("/orders/"+o+"/cancel", `{}`, writer).tellsNoGuest().holds(`state="cancelled"`)
		made := s.post("/orders", orderBody(), writer).tellsNoGuest()
		if !strings.HasPrefix(made.text("pay_url"), testBase) {
			t.Errorf("%s can send nobody to pay: %s", name, made.body)
		}
		s.get("/orders/"+made.text("id"), writer).is(403, "insufficient_scope")
		if a := s.get("/orders/"+made.text("id"), s.seller()).is(200); a.json()["customer"] == nil {
			t.Errorf("the guest of %s is lost: %s", name, a.body)
		}
	}
}

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

func TestOrder_anAnswerThatIsReplayedTellsNoMoreThanTheTokenReads(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp()
	key := "Idempotency-Key: order-of-table-4"
	for name, tokens := range map[string][2]string{
		"an application": {s.ofApp(p, scopeOrders, scopeSelling), s.ofApp(p, scopeSelling)},
		"the account":    {s.seller(), "Authorization: Bearer " + s.token(s.account, scopeSelling)},
	} {
		first := s.post("/orders", orderBody(), tokens[0], key).is(200)
		replay := s.post("/orders", orderBody(), tokens[1], key).has("Idempotency-Replayed: true").tellsNoGuest()
		if replay.text("id") != first.text("id") || replay.text("pay_url") != first.text("pay_url") {
			t.Errorf("%s got another order: %s", name, replay.body)
		}
		again := s.post("/orders", orderBody(), tokens[0], key).is(200).has("Idempotency-Replayed: true")
		if again.body != first.body {
			t.Errorf("%s got %s, want %s", name, again.body, first.body)
		}
	}
}

func TestOrder_aGuessedReferenceLeadsAnApplicationToNoOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp()
	body := orderBody("reference", `"R-2041"`)
	id := s.post("/orders", body, s.seller()).is(200).text("id")
	if a := s.post("/orders", body, s.ofApp(p, scopeSelling)).is(409, "reference_used"); strings.Contains(a.body, id) {
		t.Errorf("an application that can't read orders is told of one: %s", a.body)
	}
	own := "Authorization: Bearer " + s.token(s.account, scopeSelling)
	for _, bearer := range []string{own, s.seller(), s.ofApp(p, scopeOrders, scopeSelling)} {
		if got := s.post("/orders", body, bearer).is(409, "reference_used").text("order_id"); got != id {
			t.Errorf("the order is %q, want %s", got, id)
		}
	}
}

func TestLookupLimit_holdsAnApplicationThatCannotReadLicences(t *testing.T) {
	t.Parallel()
	s := newService(t)
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

func TestBooks_entriesAreSeenByWhoMayReadRevenueOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productXero)
		p, _ := k.registerApp(everything)
		k.sell(1850)
		at := "/books/connections/" + k.connection
		both := k.ofApp(p, scopeBooks, scopeRevenue)
		preview := at + "/preview/" + bookkeeperDay
		if a := k.get(preview, both).is(200); !strings.Contains(a.body, "1850") {
			t.Errorf("the preview is %s", a.body)
		}
		export := `{"date":"` + bookkeeperDay + `"}`
		exports := k.post(at+"/exports", export, both).is(200).json()["data"].([]any)
		one := at + "/exports/" + exports[0].(node)["id"].(string)
		own := "Authorization: Bearer " + k.token(k.account, scopeBooks)
		for _, alone := range []string{k.ofApp(p, scopeBooks), own} {
			for _, c := range [][3]string{{"GET", preview}, {"GET", at + "/exports"}, {"POST", at + "/exports", export},
				{"POST", one + "/retry", "{}"}, {"POST", one + "/reverse", "{}"}} {
				k.do(c[0], c[1], c[2], alone).challenged(403, "insufficient_scope",
					scopeChallenge("revenue:read books:write"))
			}
			k.get(at, alone).is(200)
			k.get(at+"/mapping", alone).is(200)
		}
		k.get(at+"/exports", k.ofApp(p, scopeRevenue)).is(403, "insufficient_scope")
		hook := hookBody("books.posted")
		k.post("/webhooks", hook, k.ofApp(p, scopeRevenue, scopeWebhooks)).is(403, "insufficient_scope")
		if a := k.post("/webhooks", hook, k.ofApp(p, scopeBooks, scopeWebhooks)); a.status == 403 {
			t.Errorf("webhooks of books need more than books:write: %s", a.body)
		}
	})
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

func TestApp_withAnEmptyOwnScopeIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.appAuth(s.account, scopeOrders)
	if a := s.post("/apps", appBody("own_scope", ""), auth).is(422); !strings.Contains(a.body, "#/own_scope") {
		t.Errorf("refused with %s", a.body)
	}
	id := s.post("/apps", appBody("own_scope", "orders:read", "scope", "orders:read"), auth).is(200).text("id")
	before := s.dump()
	s.do("PATCH", "/apps/"+id, `{"own_scope":""}`, auth).is(422)
	s.do("PATCH", "/apps/"+id, `{"own_scope":" "}`, auth).is(422)
	s.unchanged(before)
	s.do("PATCH", "/apps/"+id, `{"own_scope":null}`, auth).is(200).holds("own_scope=null")
}

func TestScope_aClosedAccountIsNotThereButForOperators(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	closed := s.addAccount("closed")
	s.sql(`UPDATE accounts SET closed_at = ? WHERE id = ?`, newStamp(time.Now()), closed)
	portal := s.portalToken(s.account, strings.Join(append(slices.Clone(appScopes), scopeIssuing, scopeApps), " "))
	asked := 0
	for _, r := range allRoutes() {
		if r.token != tokenRequired || r.scope == scopeAdmin || r.scope == scopeConsent {
			continue
		}
		body := ""
		if takesBody(r.method()) {
			body = cmp.Or(closedBodies[r.path()], "{}")
		}
		path := strings.NewReplacer("{date}", "2026-11-21", "{export}", newID("exp", time.Now())).Replace(pathOf(&r))
		a := s.do(r.method(), path+"?account_id="+closed, body, portal)
		if a.status == 422 && takesBody(r.method()) { // its members are looked at first
			continue
		}
		if a.status != 404 || a.text("code") != "account_not_found" {
			t.Errorf("%s: %d %s", r.pattern, a.status, a.body)
		}
		asked++
	}
	if asked < 30 {
		t.Errorf("%d routes were asked only", asked)
	}
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	for _, path := range []string{"/orders", "/leads", "/events", "/licenses", "/webhooks"} {
		s.get(path+"?account_id="+closed, admin).is(200)
	}
}

// closedBodies are bodies that routes take, by path.
var closedBodies = map[string]string{
	"/orders":                         orderBody(),
	"/orders/{id}/paid":               `{"method":"cash"}`,
	"/apps":                           appBody(),
	"/webhooks":                       hookBody("lead.created"),
	"/books/connections":              `{"product":"xero"}`,
	"/books/connections/{id}/exports": `{"date":"2026-11-21"}`,
}

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
