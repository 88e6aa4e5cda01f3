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
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t, withoutAddressLimits)
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
		a := s.do(r.method(), path, "", "Authorization: Bearer "+signed)
		lacks := a.status == 403 && a.header.Get("WWW-Authenticate") == scopeChallenge(r.scope)
		if lacks != outOfReach {
			t.Errorf("%s is %d %s with all scopes", r.pattern, a.status, a.body)
		}
		if outOfReach {
			refused++
		}
		if r.scope != "" && r.scope != scopeOrders { // a row adds nothing to what was signed
			a := s.do(r.method(), path, "", "Authorization: Bearer "+edited).is(403, "insufficient_scope")
			if got := a.header.Get("WWW-Authenticate"); got != scopeChallenge(r.scope) {
				t.Errorf("%s asks for %s", r.pattern, got)
			}
		}
	}
	if refused < 9 {
		t.Errorf("%d routes are out of reach only", refused)
	}
	for _, path := range []string{"/orders", "/leads", "/events", "/account", "/revenue/days", "/licenses", "/webhooks"} {
		s.get(path+"?account_id="+other, "Authorization: Bearer "+signed).is(403, "insufficient_scope")
		s.get(path+"?account_id="+s.account, "Authorization: Bearer "+signed).is(200)
	}
	for _, token := range []string{signed, edited} { // GET /account needs no scope
		if got := s.get("/account", "Authorization: Bearer "+token).is(200).text("id"); got != s.account {
			t.Errorf("the account is %s, want %s", got, s.account)
		}
	}
}

func TestAppToken_ofAnotherAccountSeesOnlyThatOne(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp()
	restaurant := s.addAccount("restaurant")
	token, _ := s.appToken(p, restaurant, scopeOrders)
	made := s.post("/orders", orderBody(), s.seller()).is(200).text("id") // of the application's owner
	auth := "Authorization: Bearer " + token
	if rows := s.get("/orders", auth).is(200).json()["data"].([]any); len(rows) != 0 {
		t.Errorf("the owner's orders are there: %v", rows)
	}
	s.get("/orders/"+made, auth).is(404, "order_not_found")
	s.get("/account", auth).is(200).holds(`id="` + restaurant + `"`)
}

func TestAppToken_isNamedByItsEventsAndSharesNoIdempotencyKey(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	first, _ := s.registerApp()
	second, _ := s.registerApp()
	callers, made := map[string]string{"": s.seller()}, map[string]bool{}
	for _, p := range []*app{first, second} {
		token, _ := s.appToken(p, s.account, scopeOrders+" "+scopeSelling)
		callers["app "+p.ID] = "Authorization: Bearer " + token
	}
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	for actor, auth := range callers {
		a := s.post("/orders", orderBody(), auth, "Idempotency-Key: the-same-of-all").is(200).has("Idempotency-Replayed: ")
		id := a.text("id")
		if made[id] {
			t.Errorf("%q got the order of another caller", actor)
		}
		made[id] = true
		again := s.post("/orders", orderBody(), auth, "Idempotency-Key: the-same-of-all").is(200).has("Idempotency-Replayed: true")
		if again.body != a.body {
			t.Errorf("%q got another order when it asked again", actor)
		}
		events := s.get("/events?type=order.created&limit=1", admin).is(200).json()["data"].([]any) // the newest
		if e := events[0].(node); e["subject_id"] != id || actor != "" && e["actor"] != actor {
			t.Errorf("the actor of %s is %v, want %s: %v", id, e["actor"], actor, e)
		}
	}
	if n := s.count(`SELECT count(DISTINCT actor) FROM events WHERE type = 'order.created'`); n != 3 {
		t.Errorf("%d actors made three orders", n)
	}
}

// TestAppToken_endsWithWhatItDependsOn ends tokens by everything that ends them, as the sqlite3 shell would.
func TestAppToken_endsWithWhatItDependsOn(t *testing.T) {
	sequentialUnderRace(t)
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
			s := newService(t)
			p, _ := s.registerApp()
			token, _ := s.appToken(p, s.addAccount("restaurant"), scopeOrders)
			auth := "Authorization: Bearer " + token
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
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	for _, scope := range []string{scopeApps, scopeConsent} {
		token := strings.TrimSpace(s.must("token", "issue", "-account", s.account, "-scope", scope))
		c, err := s.keys.verify(token)
		s.check(err)
		if c.Scope != scope || !strings.Contains(s.must("help", "token", "issue"), scope) {
			t.Errorf("the scope is %s, want %s, and help does not name it", c.Scope, scope)
		}
		s.get("/account", "Authorization: Bearer "+token).is(200)
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
	s.get("/licenses", "Authorization: Bearer "+earlier).is(200)
}

// BenchmarkAuthenticate is what it takes to learn whose a token is: from the cache, and read from the database
// as the first call after a commit does.
func BenchmarkAuthenticate(b *testing.B) {
	s := newService(b)
	p, _ := s.registerApp()
	ofApp, _ := s.appToken(p, s.account, scopeOrders)
	for _, c := range []struct{ whose, token string }{{"operator", s.token(s.account, scopeOrders)}, {"application", ofApp}} {
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
