package main

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// everyScope is all scopes that there are.
var everyScope = strings.Join(append(slices.Clone(grantableScopes), scopeDevice), " ")

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
		path := strings.NewReplacer("{id}", "x", "{device}", "x", "{delivery}", "x", "{export}", "x").Replace(r.path())
		outOfReach := r.scope != "" && scopesWithin(r.scope, strings.Join(appScopes, " ")) != r.scope
		a := s.do(r.method(), path, "", bearer(signed))
		lacks := a.status == 403 && a.header.Get("WWW-Authenticate") == scopeChallenge(r.scope)
		failIf(t, lacks != outOfReach, "%s is %d %s with all scopes", r.pattern, a.status, a.body)
		if outOfReach {
			refused++
		}
		if r.scope != "" && r.scope != scopeOrders { // a row adds nothing to what was signed
			a := s.do(r.method(), path, "", bearer(edited)).is(403, "insufficient_scope")
			expect(t, a.header.Get("WWW-Authenticate"), scopeChallenge(r.scope), "%s asks for", r.pattern)
		}
	}
	failIf(t, refused < 9, "%d routes are out of reach only", refused)
	for _, path := range []string{"/orders", "/leads", "/events", "/account", "/revenue/days", "/licenses",
		"/webhooks"} {
		s.get(path+"?account_id="+other, bearer(signed)).is(403, "insufficient_scope")
		s.get(path+"?account_id="+s.account, bearer(signed)).is(200)
	}
	for _, token := range []string{signed, edited} { // GET /account needs no scope
		expect(t, s.get("/account", bearer(token)).is(200).text("id"), s.account, "the account")
	}
}

func TestAppToken_ofAnotherAccountSeesOnlyThatOne(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t)
	restaurant := s.addAccount("restaurant")
	token, _ := s.appToken(p, restaurant, scopeOrders)
	made := s.post("/orders", orderBody(), s.seller()).is(200).text("id") // of the application's owner
	auth := bearer(token)
	s.get("/orders", auth).is(200).lists(0) // none of the orders of the owner
	s.get("/orders/"+made, auth).is(404, "order_not_found")
	s.get("/account", auth).is(200).holds(`id="` + restaurant + `"`)
}

func TestAppToken_isNamedByItsEventsAndSharesNoIdempotencyKey(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	first, _ := s.registerApp()
	second, _ := s.registerApp()
	callers, made := map[string]string{"": s.seller()}, map[string]bool{}
	for _, p := range []*app{first, second} {
		token, _ := s.appToken(p, s.account, scopeOrders+" "+scopeSelling)
		callers["app "+p.ID] = bearer(token)
	}
	admin := s.auth(s.account, scopeAdmin)
	for actor, auth := range callers {
		a := s.post("/orders", orderBody(), auth, "Idempotency-Key: the-same-of-all").is(200).
			has("Idempotency-Replayed: ")
		id := a.text("id")
		failIf(t, made[id], "%q got the order of another caller", actor)
		made[id] = true
		again := s.post("/orders", orderBody(), auth, "Idempotency-Key: the-same-of-all").is(200).
			has("Idempotency-Replayed: true")
		failIf(t, again.body != a.body, "%q got another order when it asked again", actor)
		events := s.get("/events?type=order.created&limit=1", admin).is(200).json()["data"].([]any) // the newest
		if e := events[0].(node); e["subject_id"] != id || actor != "" && e["actor"] != actor {
			t.Errorf("the actor of %s is %v, want %s: %v", id, e["actor"], actor, e)
		}
	}
	expect(t, s.count(`SELECT count(DISTINCT actor) FROM events WHERE type = 'order.created'`), 3,
		"actors of three orders")
}

// TestAppToken_endsWithWhatItDependsOn ends tokens by everything that ends them, as the sqlite3 shell would.
func TestAppToken_endsWithWhatItDependsOn(t *testing.T) {
	t.Parallel()
	for what, query := range map[string]string{
		"its own revocation":      `UPDATE app_tokens SET revoked_at = ?`,
		"its record":              `DELETE FROM app_tokens WHERE created_at <= ?`,
		"its grant":               `UPDATE grants SET ended_at = ?, ended_by = 'operator'`,
		"its application":         `UPDATE apps SET removed_at = ?`,
		"its account":             `UPDATE accounts SET closed_at = ? WHERE name = 'restaurant'`,
		"its application's owner": `UPDATE accounts SET closed_at = ? WHERE name = 'main'`,
	} {
		t.Run(what, func(t *testing.T) {
			s, p := serviceWithApp(t)
			token, _ := s.appToken(p, s.addAccount("restaurant"), scopeOrders)
			auth := bearer(token)
			for range 2 { // the second is from the cache
				s.get("/orders", auth).is(200)
			}
			db, err := sql.Open("sqlite", dsn(s.store.path, "rw", storeOptions{}))
			s.check(err)
			defer db.Close()
			_, err = db.Exec(query, newStamp(s.store.now()))
			s.check(err)
			s.notice()
			s.get("/orders", auth).challenged(401, "invalid_token", invalidChallenge)
		})
	}
}

func TestTokenIssue_givesTheScopesOfPortalsAndNoApplicationsName(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	for _, scope := range []string{scopeApps, scopeConsent} {
		token := strings.TrimSpace(s.must("token", "issue", "-account", s.account, "-scope", scope))
		c, err := s.keys.verify(token)
		s.check(err)
		failIf(t, c.Scope != scope || !strings.Contains(s.must("help", "token", "issue"), scope),
			"the scope is %s, want %s, and help does not name it", c.Scope, scope)
		s.get("/account", bearer(token)).is(200)
	}
	p, _ := s.registerApp()
	for _, id := range []string{p.ID, "app_x"} {
		_, err := s.command("token", "issue", "-account", s.account, "-scope", scopeLeads, "-client-id", id)
		oneLine(t, err, "is an application's")
	}
	// A token that was issued under such a name before stays valid, and is no application's.
	earlier := ""
	s.change(func(t *tx) (err error) {
		row := tokenRow{AccountID: s.account, ClientID: p.ID, Scope: scopeAdmin}
		earlier, _, err = issueToken(t, s.keys, row, appTokenLife)
		return err
	})
	s.get("/licenses", bearer(earlier)).is(200)
}

// BenchmarkAuthenticate is what it takes to learn whose a token is: from the cache, and read from the database
// as the first call after a commit does.
func BenchmarkAuthenticate(b *testing.B) {
	s := newService(b)
	p, _ := s.registerApp()
	ofApp, _ := s.appToken(p, s.account, scopeOrders)
	for _, c := range []struct{ whose, token string }{{"operator", s.token(s.account, scopeOrders)},
		{"application", ofApp}} {
		for _, cached := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/cached=%v", c.whose, cached), func(b *testing.B) {
				for b.Loop() {
					if !cached {
						s.server.callers = newCache[tokenKey, *caller](10)
					}
					if _, err := s.server.authenticate(c.token, false); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
