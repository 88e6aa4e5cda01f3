package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// issuer opens an account whose own tokens may issue, and returns it with such a token.
func (s *service) issuer(name string) (account, auth string) {
	s.t.Helper()
	account = s.addAccount(name)
	s.must("account", "set", account, "-issuer", "yes")
	return account, s.auth(account, scopeIssuing)
}

// planOf makes a plan with the members of a body, and returns its id.
func (s *service) planOf(auth, members string) string {
	s.t.Helper()
	return s.post("/plans", `{"name":"pro","product":"kds"`+members+`}`, auth).is(200).text("id")
}

// soldBy makes a licence, and returns its id.
func (s *service) soldBy(auth, members string) string {
	s.t.Helper()
	return s.post("/licenses", `{`+members+`}`, auth).is(200).text("id")
}

func TestIssuing_everyScopeOnEveryRouteLeaksNothingOfAnotherAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	victim, owner := s.issuer("victim")
	plan := s.planOf(owner, "")
	sold := s.soldBy(owner, `"plan_id":"`+plan+`","reference":"A-1"`)
	tenant := s.addAccount("tenant")
	_, other := s.issuer("other")
	type try struct{ name, auth, code string }
	tries := []try{
		{"main account", s.auth(s.account, scopeIssuing), "404"}, {"another issuer", other, "404"},
		{"tenant", s.auth(tenant, scopeIssuing), "not_an_issuer"},
		{"all accounts, none named", s.portalToken(tenant, scopeIssuing), "404"},
		{"victim, not issuing", s.auth(victim, strings.Join(append(slices.Clone(appScopes), scopeApps), " ")),
			"insufficient_scope"},
	}
	for _, scope := range grantableScopes {
		if scope != scopeIssuing && scope != scopeAdmin {
			tries = append(tries, try{scope, s.auth(s.account, scope), "insufficient_scope"})
		}
	}
	before, asked := s.dump(), 0
	for _, r := range allRoutes() {
		if r.scope != scopeIssuing {
			continue
		}
		id, body := sold, `{}`
		if strings.HasPrefix(r.path(), "/plans") {
			id = plan
		}
		if strings.HasSuffix(r.path(), "/apply") {
			body = `{"dry_run":true}`
		}
		if r.method() == "PATCH" {
			body = `{"max_devices":9}`
		}
		if r.pattern == "POST /licenses" || r.pattern == "POST /plans" {
			body = `{"account_id":"` + victim + `","name":"x","product":"kds"}`
		}
		for _, try := range tries {
			a := s.do(r.method(), strings.Replace(r.path(), "{id}", id, 1), body, try.auth)
			asked++
			switch code := a.json()["code"]; {
			case a.status == 403 && code == try.code:
			case try.code == "404" && a.status == 404 && !strings.HasSuffix(r.path(), "s"):
			case try.code != "insufficient_scope" && strings.HasSuffix(r.path(), "s") && code == "insufficient_scope":
			default:
				t.Errorf("%s by %s: %d %s", r.pattern, try.name, a.status, a.body)
			}
		}
	}
	s.unchanged(before)
	t.Logf("%d requests: %d routes, %d kinds of token, 0 leaks", asked, asked/len(tries), len(tries))
}

func TestIssuing_tenantDoesNotSellItselfSeatsUntilTheOperatorLetsIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("tenant")
	auth := s.auth(tenant, scopeIssuing)
	given := s.soldBy(s.auth(s.account, scopeAdmin), `"account_id":"`+tenant+`","product":"kds","max_devices":1`)
	before := s.dump()
	s.post("/licenses", `{"product":"kds"}`, auth).is(403, "not_an_issuer")
	s.do("PATCH", "/licenses/"+given, `{"max_devices":99}`, auth).is(403, "not_an_issuer")
	s.post("/licenses/"+given+"/rotate-key", `{}`, auth).is(403, "not_an_issuer")
	s.post("/plans", `{"name":"x","product":"kds"}`, auth).is(403, "not_an_issuer")
	s.post("/licenses?account_id="+s.account, `{"product":"kds"}`, auth).is(403, "insufficient_scope")
	s.unchanged(before)
	s.must("account", "set", tenant, "-issuer", "yes")
	key := "Idempotency-Key: once"
	s.post("/licenses", `{"product":"kds"}`, auth, key).is(200).tells("account_id", tenant)
	s.must("account", "set", tenant, "-issuer", "no")
	s.post("/licenses", `{"product":"kds"}`, auth, key).is(403, "not_an_issuer") // nor what it was answered
	s.must("account", "set", s.account, "-issuer", "no")
	s.post("/licenses", `{"product":"kds"}`, s.auth(s.account, scopeIssuing)).is(403, "not_an_issuer")
}

func TestIssuing_bodyNamesNoOtherAccountThanTheOneThatIsActedOn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second := s.addAccount("second")
	own, all := s.auth(s.account, scopeIssuing), s.portalToken(s.account, scopeIssuing)
	other := `{"account_id":"` + second + `","product":"kds"}`
	before := s.dump()
	for _, auth := range []string{own, all} {
		s.post("/licenses", other, auth).is(403, "insufficient_scope")
	}
	s.post("/licenses?account_id="+s.account, other, all).is(403, "insufficient_scope")
	s.unchanged(before)
	s.post("/licenses?account_id="+second, `{"product":"kds"}`, all).is(200).tells("account_id", second)
	s.post("/licenses?account_id="+second, other, all).is(200).tells("account_id", second)
	s.post("/licenses", `{"account_id":"`+s.account+`","product":"kds"}`, own).is(200)
	s.post("/licenses", other, s.auth(s.account, scopeAdmin)).is(200).tells("account_id", second)
	s.post("/licenses", `{"product":"kds"}`, s.auth(s.account, scopeAdmin)).is(200).tells("account_id", s.account)
}

func TestIssuing_applicationCannotAskForItNorHaveItByARowOfTheDatabase(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := s.auth(s.account, scopeAdmin)
	body := `{"name":"x","home_page":"https://x.example","kind":"web","redirect_uris":["https://x.example/"],` +
		`"scope":"%s"}`
	s.post("/apps", fmt.Sprintf(body, scopeIssuing), admin).is(422, "validation_failed")
	p, _ := s.registerApp(func(p *app) { p.Scope += " " + scopeIssuing })
	auth := s.ofApp(p, scopeLicenses+" "+scopeIssuing)
	s.post("/licenses", `{"product":"kds"}`, auth).is(403, "insufficient_scope")
}

func TestIssuing_whatTheOperatorSuspendedOnlyTheOperatorReinstates(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop, operator := s.auth(s.account, scopeIssuing), s.auth(s.account, scopeAdmin)
	id := s.soldBy(shop, `"product":"kds"`)
	act := func(action, auth string) answer { return s.post("/licenses/"+id+"/"+action, `{}`, auth) }
	act("suspend", shop).is(200)
	act("reinstate", shop).is(200).tells("state", "active")
	act("suspend", shop).is(200) // so that the operator's own has nothing left to suspend
	act("suspend", operator).is(200)
	act("reinstate", shop).challenged(403, "insufficient_scope", scopeChallenge(scopeAdmin))
	act("suspend", shop).is(409, "illegal_transition")
	act("reinstate", shop).is(403, "insufficient_scope")
	act("suspend", operator).is(409, "illegal_transition")
	act("reinstate", operator).is(200).tells("state", "active")
	s.must("license", "suspend", id)
	act("reinstate", shop).is(403, "insufficient_scope")
	s.post("/licenses/"+id+"/reset-transfers", `{}`, shop).is(403, "insufficient_scope")
	act("revoke", shop).is(200).tells("state", "revoked")
}

func TestIssuing_referenceIsUsedOnceInAnAccountAndLeadsToItsLicence(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	body := `{"product":"kds","reference":"10-4711"}`
	first := s.post("/licenses", body, shop, "Idempotency-Key: a").is(200)
	id := first.text("id")
	if again := s.post("/licenses", body, shop, "Idempotency-Key: a").is(200); again.body != first.body {
		t.Errorf("repeated: %s", again.body)
	}
	s.post("/licenses", body, shop).is(409, "reference_used").tells("license_id", id)
	s.post("/licenses", body, shop, "Idempotency-Key: b").is(409, "reference_used").tells("license_id", id)
	s.post("/licenses/"+id+"/rotate-key", `{}`, shop).is(200) // who lost the answer
	_, other := s.issuer("other")
	if a := s.post("/licenses", body, other).is(200); a.text("id") == id {
		t.Error("another account got the licence")
	}
	s.do("PATCH", "/licenses/"+id, `{"reference":"x"}`, shop).is(422, "validation_failed")
	s.fails("with this reference already", "license", "add", "-product", "kds", "-reference", "10-4711")
	s.counts(2, `SELECT count(*) FROM licenses WHERE reference = '10-4711'`)

	var made sync.WaitGroup
	codes := make([]int, 8)
	for i := range codes {
		made.Go(func() { codes[i] = s.post("/licenses", `{"product":"kds","reference":"race"}`, shop).status })
	}
	made.Wait()
	slices.Sort(codes)
	sameText(t, "answers", codes, []int{200, 409, 409, 409, 409, 409, 409, 409})
}

func TestIssuing_replaysNoKeyOfALicenceOfAnotherAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second := s.addAccount("second")
	key := "Idempotency-Key: guessed"
	admin, shop := s.auth(s.account, scopeAdmin), s.auth(s.account, scopeIssuing)
	id := s.soldBy(admin, `"account_id":"`+second+`","product":"kds"`)
	s.post("/licenses/"+id+"/rotate-key", `{}`, admin, key).is(200)
	s.post("/licenses/"+id+"/rotate-key", `{}`, shop, key).is(422, "idempotency_key_reused").omits(`"key":`)
}

func TestPlan_isCopiedIntoLicencesAndChangesNoneThatWasSold(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2,"grace_days":7,"duration_days":30,"offline_days":9,"entitlements":["kds"]`)
	a := s.post("/licenses", `{"plan_id":"`+plan+`"}`, shop).is(200).tells("plan", "pro", "plan_id", plan,
		"max_devices", 2, "max_transfers", 2, "grace_days", 7, "offline_days", 9, "entitlements", []string{"kds"})
	if a.text("expires_at") == "" {
		t.Error("it has no end")
	}
	s.post("/licenses", `{"plan_id":"`+plan+`","max_devices":5,"plan":"big"}`, shop).is(200).tells(
		"plan", "big", "max_devices", 5, "max_transfers", 5)
	for _, other := range []string{`"product":"other"`, `"kind":"floating"`, `"expiry_basis":"first_activation"`} {
		s.post("/licenses", `{"plan_id":"`+plan+`",`+other+`}`, shop).is(422, "validation_failed")
	}
	s.do("PATCH", "/plans/"+plan, `{"max_devices":3,"name":"Pro 3"}`, shop).is(200).tells(
		"revision", 2, "max_devices", 3, "max_transfers", 3, "name", "Pro 3")
	s.do("PATCH", "/plans/"+plan, `{"max_devices":3}`, shop).is(200).tells("revision", 2)
	s.do("PATCH", "/plans/"+plan, `{"name":"Pro III"}`, shop).is(200).tells("revision", 2)
	s.do("PATCH", "/plans/"+plan, `{"kind":"floating"}`, shop).is(422, "validation_failed")
	s.get("/licenses/"+a.text("id"), s.auth(s.account, scopeLicenses)).tells("max_devices", 2, "plan", "pro")
	s.counts(1, `SELECT count(*) FROM v_licenses WHERE id = ? AND differs = 'max_devices max_transfers'`, a.text("id"))
	s.get("/plans", s.auth(s.account, scopeLicenses)).listsIDs(plan)
	s.post("/plans/"+plan+"/retire", `{}`, shop).is(200)
	s.post("/licenses", `{"plan_id":"`+plan+`"}`, shop).is(409, "plan_retired")
	s.do("PATCH", "/plans/"+plan, `{"grace_days":1}`, shop).is(409, "plan_retired")
	s.counts(4, `SELECT count(*) FROM events WHERE type LIKE 'plan.%' AND subject_id = ?`, plan)
	_, other := s.issuer("other")
	s.post("/licenses", `{"plan_id":"`+plan+`"}`, other).is(404, "plan_not_found")
	s.post("/plans/"+plan+"/apply", `{"dry_run":true}`, other).is(404, "plan_not_found")
}

func TestPlan_appliedKeepsDatesAndRefusesFewerSeatsThanAreHeld(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2,"duration_days":30`)
	full := s.post("/licenses", `{"plan_id":"`+plan+`"}`, shop).is(200)
	for _, device := range []string{"a", "b"} {
		s.license("activate", "", "license_key", full.text("key"), "fingerprint", device).is(200)
	}
	free, gone := s.soldBy(shop, `"plan_id":"`+plan+`"`), s.soldBy(shop, `"plan_id":"`+plan+`"`)
	s.post("/licenses/"+gone+"/revoke", `{}`, shop).is(200)
	ends, query := "", `SELECT group_concat(expires_at || duration_days || trial) FROM licenses`
	s.check(s.store.one(query, nil, &ends))
	s.do("PATCH", "/plans/"+plan, `{"max_devices":1,"duration_days":99,"trial":true,"grace_days":3}`, shop).is(200)
	apply := func(body string) answer { return s.post("/plans/"+plan+"/apply", body, shop) }
	before := s.dump()
	refused := []map[string]any{{"license_id": full.text("id"), "seats_used": 2}}
	terms := map[string]int{"grace_days": 1, "max_devices": 1}
	apply(`{"dry_run":true}`).is(200).tells("dry_run", true, "changed", 1, "revision", 2, "terms", terms,
		"refused", refused, "next", nil)
	apply(`{}`).is(422, "validation_failed")
	apply(`{"revision":1}`).is(409, "plan_changed")
	s.unchanged(before)
	apply(`{"revision":2}`).is(200).tells("changed", 1, "terms", terms, "refused", refused, "next", nil)
	apply(`{"revision":2}`).is(200).tells("changed", 0)
	read := s.auth(s.account, scopeLicenses)
	s.get("/licenses/"+free, read).tells("max_devices", 1, "grace_days", 3, "trial", false, "duration_days", 30)
	s.get("/licenses/"+full.text("id"), read).tells("max_devices", 2, "grace_days", 0)
	s.get("/licenses/"+gone, read).tells("max_devices", 2)
	s.counts(1, `SELECT ? = (`+query+`)`, ends)
	s.counts(1, `SELECT count(*) FROM events WHERE type = 'license.updated' AND subject_id = ?`, free)
}

// fillPlan adds n licences that were made from a plan, without keys.
func (s *service) fillPlan(plan string, n int) {
	s.t.Helper()
	s.change(func(t *tx) error {
		return t.write(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
			INSERT INTO licenses (id, account_id, product, plan_id, created_at, updated_at)
			SELECT printf('lic_0000000000000000%010d', i), ?2, 'kds', ?3, ?4, ?4 FROM n`, n, s.account, plan, t.now)
	})
}

func TestPlan_thatChangesBetweenPagesStopsAndLeavesWhatWasDone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) { // so that it takes no time
		shop := s.auth(s.account, scopeIssuing)
		plan := s.planOf(shop, `,"grace_days":5`)
		s.fillPlan(plan, maxApplied+10)
		a := s.post("/plans/"+plan+"/apply", `{"revision":1}`, shop).is(200).tells("changed", maxApplied)
		rest := fmt.Sprintf(`{"revision":1,"next":"%s"}`, a.text("next"))
		s.do("PATCH", "/plans/"+plan, `{"grace_days":6}`, shop).is(200)
		s.post("/plans/"+plan+"/apply", rest, shop).is(409, "plan_changed")
		s.counts(maxApplied, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
		s.counts(maxApplied, `SELECT count(*) FROM events WHERE type = 'license.updated'`)
		out := s.must("plan", "apply", plan)
		includes(t, out, fmt.Sprintf("changed: %d licences: grace_days of %d", maxApplied+10, maxApplied+10))
		s.counts(maxApplied+10, `SELECT count(*) FROM v_licenses
			WHERE grace_days = 6 AND differs NOT LIKE '%grace_days%'`)
	})
}

func TestPlan_isAppliedWhileLicencesAreMadeFromIt(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"grace_days":5`)
	s.fillPlan(plan, 1000)
	var selling sync.WaitGroup
	selling.Go(func() {
		for range 50 {
			s.post("/licenses", `{"plan_id":"`+plan+`"}`, shop).is(200)
		}
	})
	for ask := map[string]any{"revision": 1}; ; { // a call that has taken ten seconds says where the next one goes on
		body, err := json.Marshal(ask)
		s.check(err)
		ask["next"] = s.post("/plans/"+plan+"/apply", string(body), shop).is(200).json()["next"]
		if ask["next"] == nil {
			break
		}
	}
	selling.Wait()
	s.counts(1050, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
}

func TestPlan_commandsAndTheImportKnowPlans(t *testing.T) {
	t.Parallel()
	s := newService(t)
	plan := strings.TrimSpace(s.must("plan", "add", `{"name":"pro","product":"kds","max_devices":2,"trial":true}`))
	s.must("plan", "set", plan, `{"grace_days":4}`)
	s.fails("grace_day", "plan", "set", plan, `{"grace_day":4}`)
	includes(t, s.must("plan", "list"), plan, "pro", "kds")
	includes(t, s.must("plan", "show", plan), "revision", "2")
	s.must("license", "add", "-plan-id", plan, "-reference", "R-1")
	s.fails("product", "license", "add", "-plan-id", plan, "-product", "other")
	file := filepath.Join(s.dir, "in.csv")
	writeFile(t, file, "key,plan_id,reference,product\nAAAA-BBBB-CCCC-1,"+plan+",R-2,\nAAAA-BBBB-CCCC-2,,R-3,kds\n")
	s.must("license", "import", "-account", s.account, file)
	s.counts(2, `SELECT count(*) FROM licenses WHERE plan_id = ? AND max_devices = 2 AND grace_days = 4 AND trial = 1
		AND plan = 'pro' AND kind = 'node_locked'`, plan)
	for want, rows := range map[string]string{
		"with this reference already":       "AAAA-BBBB-CCCC-3,,R-2,kds\n",
		"a reference must appear only once": "AAAA-BBBB-CCCC-4,,R-9,kds\nAAAA-BBBB-CCCC-5,,R-9,kds\n",
		"no such plan in use":               "AAAA-BBBB-CCCC-6,pln_00000000000000000000000000,,\n",
		"has another product":               "AAAA-BBBB-CCCC-7," + plan + ",,other\n",
	} {
		writeFile(t, file, "key,plan_id,reference,product\n"+rows)
		s.fails(want, "license", "import", "-account", s.account, file)
	}
	s.must("plan", "retire", plan)
	s.fails("retired", "license", "add", "-plan-id", plan)
}

// noneAsked allows every part of an application.
func noneAsked(*queries) error { return nil }

func TestPlan_applicationThatTheWriterRunsAgainCountsEachLicenceOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	plan := s.planOf(s.auth(s.account, scopeIssuing), `,"grace_days":5`)
	s.fillPlan(plan, 10)
	release := holdWriter(t, s.store)
	var applying sync.WaitGroup
	applying.Go(func() {
		a, err := applyPlan(t.Context(), s.store, anyAccount, plan, planApplication{Revision: 1}, "", actorCommand,
			noneAsked)
		sameText(t, "applied", a.Changed, 10, a.Terms["grace_days"], 10, err, nil)
	})
	until(func() bool { return len(s.store.jobs) > 0 })
	broken := queue(s.store, t.Context(), inSQL(`ROLLBACK`)) // so that no job of the batch is committed
	release()
	<-broken[0]
	applying.Wait()
	s.counts(10, `SELECT count(*) FROM events WHERE type = 'license.updated'`)
}

func TestPlan_dryRunIsOfOneRevision(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"grace_days":5`)
	s.fillPlan(plan, 2*appliedAtOnce)
	parts := 0
	_, err := applyPlan(t.Context(), s.store, anyAccount, plan, planApplication{DryRun: true}, "", actorCommand,
		func(*queries) error {
			if parts++; parts == 2 {
				s.do("PATCH", "/plans/"+plan, `{"lease_hours":1}`, shop).is(200)
			}
			return nil
		})
	oneLine(t, err, "plan_changed")
	s.post("/plans/"+plan+"/apply", `{"dry_run":true,"revision":1}`, shop).is(409, "plan_changed")
	s.post("/plans/"+plan+"/apply", `{"dry_run":true}`, shop).is(200).tells("revision", 2)
}

func TestPlan_applicationAnswersAfterTenSecondsWithWhatIsLeft(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		plan := s.planOf(s.auth(s.account, scopeIssuing), `,"grace_days":5`)
		s.fillPlan(plan, 20*appliedAtOnce)
		slow := func(*queries) error { time.Sleep(time.Second); return nil } // as on a machine that is busy
		asked, a := planApplication{Revision: 1}, planApplication{Next: new("")}
		for changed := 0; a.Next != nil; {
			began, err := time.Now(), error(nil)
			a, err = applyPlan(t.Context(), s.store, anyAccount, plan, asked, *a.Next, actorCommand, slow)
			s.check(err)
			took := time.Since(began)
			expect(t, took <= 11*time.Second && (took >= 9*time.Second || a.Next == nil), true, "%s", took)
			changed += a.Changed
			s.counts(changed, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
		}
		s.counts(20*appliedAtOnce, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
	})
}

func TestPlan_applicationLeavesOutALicenceThatCantBeReadAndCheckNamesIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2`)
	bad, good := s.soldBy(shop, `"plan_id":"`+plan+`"`), s.soldBy(shop, `"plan_id":"`+plan+`"`)
	s.sql(`UPDATE licenses SET entitlements = '[1]' WHERE id = ?`, bad) // as in the sqlite3 shell: it is an array
	s.do("PATCH", "/plans/"+plan, `{"max_devices":9}`, shop).is(200)
	s.post("/plans/"+plan+"/apply", `{"dry_run":true}`, shop).is(200).tells("changed", 1, "unreadable", []string{bad})
	includes(t, s.must("plan", "apply", plan, "-dry-run"), "left out: "+bad+" can't be read")
	s.post("/plans/"+plan+"/apply", `{"revision":2}`, shop).is(200).tells("changed", 1, "unreadable", []string{bad},
		"refused", []any{}, "next", nil)
	s.counts(1, `SELECT count(*) FROM licenses WHERE id = ? AND max_devices = 9`, good)
	out, err := s.command("check")
	oneLine(t, err, "faults in "+s.store.path+": 1")
	includes(t, out, "row: licenses "+bad+" can't be read: ", `"entitlements": json: cannot unmarshal number`)
	s.sql(`UPDATE licenses SET entitlements = '[]' WHERE id = ?`, bad)
	includes(t, s.must("check"), "ok: ")
}

func TestPlan_isNotAppliedToALicenceThatHasMovedToAnotherAccount(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2`)
	id := s.soldBy(shop, `"plan_id":"`+plan+`"`)
	s.sql(`UPDATE licenses SET account_id = ? WHERE id = ?`, s.addAccount("other"), id) // as in the sqlite3 shell
	s.do("PATCH", "/plans/"+plan, `{"max_devices":9}`, shop).is(200)
	s.post("/plans/"+plan+"/apply", `{"revision":2}`, shop).is(200).tells("changed", 0)
	s.counts(2, `SELECT max_devices FROM licenses WHERE id = ?`, id)
}

func TestPlan_termsThatItLeavesOpenGetTheirDefaults(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	open := s.planOf(shop, "")
	sell := func(members string) answer { return s.post("/licenses", `{`+members+`}`, shop).is(200) }
	sell(`"plan_id":"`+open+`"`).tells("max_devices", nil, "max_transfers", nil)
	sell(`"plan_id":"`+open+`","max_devices":1`).tells("max_transfers", 2) // and not without a limit
	sell(`"plan_id":"`+open+`","max_devices":1,"max_transfers":null`).tells("max_transfers", nil)
	free := s.planOf(shop, `,"max_devices":2,"max_transfers":null`)
	sell(`"plan_id":"`+free+`","max_devices":1`).tells("max_transfers", nil)
	// A limit of devices that is set later brings the default with it, wherever it is set.
	sold := s.soldBy(shop, `"plan_id":"`+open+`"`)
	s.do("PATCH", "/licenses/"+sold, `{"max_devices":3,"max_transfers":null}`, shop).tells("max_transfers", nil)
	s.do("PATCH", "/licenses/"+sold, `{"max_devices":null}`, shop).tells("max_transfers", nil)
	s.do("PATCH", "/licenses/"+sold, `{"max_devices":1}`, shop).tells("max_transfers", 2)
	second := s.soldBy(shop, `"plan_id":"`+open+`"`)
	s.must("license", "set", second, `{"max_devices":4}`)
	s.do("PATCH", "/plans/"+open, `{"max_devices":5}`, shop).tells("max_transfers", 5)
	third := s.soldBy(shop, `"product":"kds"`)
	s.sql(`UPDATE licenses SET plan_id = ? WHERE id = ?`, open, third)
	s.counts(4, `SELECT max_transfers FROM licenses WHERE id = ?`, second)
	s.post("/plans/"+open+"/apply", `{"revision":2}`, shop).is(200)
	s.counts(10, `SELECT sum(max_transfers) FROM licenses WHERE id IN (?, ?)`, second, third)
	floating := `"product":"kds","kind":"floating","lease_hours":null`
	sell(floating).tells("lease_hours", 8)
	s.post("/plans", `{"name":"x",`+floating+`}`, shop).is(200).tells("lease_hours", 8)
}

func TestPlan_ofAnAccountInUseAreAtMostFiveHundred(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	body := `{"name":"pro","product":"kds"}`
	first := s.planOf(shop, "")
	s.change(func(t *tx) error {
		for range maxPlans - 2 {
			terms := termsChange{func(l *license) { l.Product = "kds" }}
			if _, err := createPlan(t, &plan{AccountID: s.account, Name: "x"}, terms, actorCommand); err != nil {
				return err
			}
		}
		return nil
	})
	s.post("/plans", body, shop).is(200)
	s.post("/plans", body, shop).is(409, "plan_limit_reached")
	s.fails("the account has 500 plans in use already: retire one first", "plan", "add", body)
	_, other := s.issuer("other")
	s.post("/plans", body, other).is(200)
	s.post("/plans/"+first+"/retire", `{}`, shop).is(200)
	s.post("/plans", body, shop).is(200)
	s.post("/plans", body, shop).is(409, "plan_limit_reached")
}

// A command has a writer of its own, so between two transactions it must leave the lock to the service for a while.
func TestPlan_appliedByACommandLeavesTheLockToTheService(t *testing.T) {
	t.Parallel()
	s := newService(t)
	plan := s.planOf(s.auth(s.account, scopeIssuing), `,"grace_days":5`)
	s.fillPlan(plan, 50*appliedAtOnce)
	db, err := sql.Open("sqlite", dsn(s.store.path, "rw", storeOptions{busyTimeout: time.Nanosecond})) // it asks once
	s.check(err)
	defer db.Close()
	var applying sync.WaitGroup
	applied := make(chan struct{})
	applying.Go(func() {
		s.must("plan", "apply", plan, "-force")
		close(applied)
	})
	asked, got := 0, 0
	for changed := 0; changed < 50*appliedAtOnce; {
		s.check(db.QueryRow(`SELECT count(*) FROM licenses WHERE grace_days = 5`).Scan(&changed))
		if changed == 0 {
			continue
		}
		asked++
		if _, err := db.Exec(`UPDATE probes SET written_at = written_at`); err == nil {
			got++
		}
	}
	applying.Wait()
	if got*5 < asked {
		t.Errorf("the lock was free %d times of %d", got, asked)
	}
}

// planStory is what an operator does with plans on the command line.
func planStory(t *testing.T, o *operator) {
	plan := o.object("plan", "add", `{"name":"pro","product":"kds"}`)["id"].(string)
	o.do("license", "add", "-plan-id", plan)
	o.do("plan", "set", plan, `{"max_devices":2,"max_transfers":3}`)
	if v := o.object("plan", "apply", plan, "-dry-run"); v["changed"] != 1.0 || v["dry_run"] != true {
		t.Errorf("a dry run: %v", v)
	}
	o.do("plan", "apply", plan, "-force")
	includes(t, o.do("plan", "apply", plan), "to change: 0 licences")
	o.do("plan", "retire", plan)
	includes(t, o.do("plan", "list"), plan)
	if v := o.object("plan", "show", plan); v["retired_at"] == nil {
		t.Errorf("retired: %v", v)
	}
}

func TestPlan_queriesReadNoMoreThanTheirRowsHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for query, index := range map[string]string{
		`SELECT id FROM licenses WHERE account_id = 'a' AND reference = 'b'`:            "licenses_reference ",
		licenseTable.query + `WHERE l.plan_id = 'a' AND l.id > 'b' ORDER BY l.id`:       "licenses_plan (plan_id=? ",
		`SELECT * FROM v_licenses WHERE plan_id = 'a'`:                                  "licenses_plan (plan_id=?)",
		`SELECT * FROM v_licenses WHERE id = 'a'`:                                       "SEARCH p USING PRIMARY KEY",
		`SELECT count(*) FROM plans WHERE account_id = 'a' AND retired_at IS NULL`:      "plans_in_use (account_id=?)",
		planTable.query + ` WHERE p.id < 'z' AND p.account_id = 'a' ORDER BY p.id DESC`: "plans_account ",
	} {
		plan := strings.Join(s.plan(query), "\n")
		includes(t, plan, index)
		lacks(t, plan, "TEMP B-TREE", "SCAN")
	}
}

// BenchmarkPlan_apply applies a plan to 100,000 licences while leads are written, and tells the longest wait of one.
func BenchmarkPlan_apply(b *testing.B) {
	s := newService(b)
	plan := s.planOf(s.auth(s.account, scopeIssuing), `,"grace_days":5`)
	s.fillPlan(plan, 100_000)
	for b.Loop() {
		ctx, stop := context.WithCancel(b.Context())
		var longest time.Duration
		var writing sync.WaitGroup
		writing.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				s.change(func(t *tx) error { return t.write(`UPDATE probes SET written_at = ?`, t.now) })
				longest = max(longest, time.Since(began))
			}
		})
		for after := new(string); after != nil; {
			a, err := applyPlan(ctx, s.store, anyAccount, plan, planApplication{Revision: 1}, *after, actorCommand,
				func(*queries) error { return nil })
			s.check(err)
			after = a.Next
		}
		stop()
		writing.Wait()
		b.ReportMetric(longest.Seconds()*1000, "ms/longest-wait")
	}
}

// BenchmarkIssuing_overHTTP issues 1,000 licences by one token, which its account's allowance lets it do.
func BenchmarkIssuing_overHTTP(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2,"duration_days":365`)
	for b.Loop() {
		for range 1000 {
			if a := s.post("/licenses", `{"plan_id":"`+plan+`"}`, shop); a.status != http.StatusOK {
				b.Fatal(a.body)
			}
		}
	}
}
