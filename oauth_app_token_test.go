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
