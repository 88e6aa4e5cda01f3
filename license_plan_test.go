package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
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

// fillPlan adds n licences that were made from a plan, without keys.
func (s *service) fillPlan(plan string, n int) {
	s.t.Helper()
	s.change(func(t *tx) error {
		t.exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
			INSERT INTO licenses (id, account_id, product, plan_id, created_at, updated_at)
			SELECT printf('lic_0000000000000000%010d', i), ?2, 'kds', ?3, ?4, ?4 FROM n`, n, s.account, plan, t.now)
		return nil
	})
}

func TestPlan_thatChangesBetweenPagesStopsAndLeavesWhatWasDone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) { // so that it takes no time
		shop := s.auth(s.account, scopeIssuing)
		plan := s.planOf(shop, `,"grace_days":5`)
		most := s.store.limits.planLicenses
		s.fillPlan(plan, most+10)
		a := s.post("/plans/"+plan+"/apply", `{"revision":1}`, shop).is(200).tells("changed", most)
		rest := fmt.Sprintf(`{"revision":1,"next":"%s"}`, a.text("next"))
		s.do("PATCH", "/plans/"+plan, `{"grace_days":6}`, shop).is(200)
		s.post("/plans/"+plan+"/apply", rest, shop).is(409, "plan_changed")
		s.counts(most, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
		s.counts(most, `SELECT count(*) FROM events WHERE type = 'license.updated'`)
		out := s.must("plan", "apply", plan)
		contains(t, out, fmt.Sprintf("changed: %d licences: grace_days of %d", most+10, most+10))
		s.counts(most+10, `SELECT count(*) FROM v_licenses
			WHERE grace_days = 6 AND differs NOT LIKE '%grace_days%'`)
	}, withLimits(func(most *limits) { most.planLicenses = size(2*appliedAtOnce, most.planLicenses) }))
}

func TestPlan_isAppliedWhileLicencesAreMadeFromIt(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"grace_days":5`)
	n := size(200, 1000)
	s.fillPlan(plan, n)
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
	s.counts(n+50, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
}

func TestPlan_importKnowsPlans(t *testing.T) {
	t.Parallel()
	s := newService(t)
	plan := strings.TrimSpace(s.must("plan", "add", `{"name":"pro","product":"kds","max_devices":2,"trial":true}`))
	s.must("license", "add", "-plan-id", plan, "-reference", "R-1")
	take := func(rows string) []string {
		return []string{"license", "import", "-account", s.account, s.importFile("key,plan_id,reference,product", rows)}
	}
	s.must(take("AAAA-BBBB-CCCC-1," + plan + ",R-2,\nAAAA-BBBB-CCCC-2,,R-3,kds")...)
	s.counts(2, `SELECT count(*) FROM licenses WHERE plan_id = ? AND max_devices = 2 AND trial = 1 AND plan = 'pro'`,
		plan)
	for want, rows := range map[string]string{
		"with this reference already":       "AAAA-BBBB-CCCC-3,,R-2,kds",
		"a reference must appear only once": "AAAA-BBBB-CCCC-4,,R-9,kds\nAAAA-BBBB-CCCC-5,,R-9,kds",
		"There is no plan with this id":     "AAAA-BBBB-CCCC-6,pln_00000000000000000000000000,,",
		"The plan has another one":          "AAAA-BBBB-CCCC-7," + plan + ",,other",
	} {
		s.fails(want, take(rows)...)
	}
}

func TestPlan_applicationLeavesOutALicenceThatCantBeReadAndCheckNamesIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2`)
	bad, good := s.soldBy(shop, `"plan_id":"`+plan+`"`), s.soldBy(shop, `"plan_id":"`+plan+`"`)
	s.sql(`UPDATE licenses SET entitlements = '[1]' WHERE id = ?`, bad) // as in the sqlite3 shell: it is an array
	s.do("PATCH", "/plans/"+plan, `{"max_devices":9}`, shop).is(200)
	s.post("/plans/"+plan+"/apply?dry_run=true", `{}`, shop).is(200).tells("changed", 1, "unreadable", []string{bad})
	contains(t, s.must("plan", "apply", plan, "-dry-run"), "left out: "+bad+" can't be read")
	s.post("/plans/"+plan+"/apply", `{"revision":2}`, shop).is(200).tells("changed", 1, "unreadable", []string{bad},
		"refused", []any{}, "next", nil)
	s.counts(1, `SELECT count(*) FROM licenses WHERE id = ? AND max_devices = 9`, good)
	out, err := s.command("check")
	oneLine(t, err, "faults in "+s.store.path+": 1")
	contains(t, out, "row: licenses "+bad+" can't be read: ", `"entitlements": json: cannot unmarshal number`)
	s.sql(`UPDATE licenses SET entitlements = '[]' WHERE id = ?`, bad)
	contains(t, s.must("check"), "ok: ")
}

func TestPlan_ofAnAccountInUseAreAtMostFiveHundred(t *testing.T) {
	t.Parallel()
	s := newService(t, withLimits(func(most *limits) { most.plans = size(10, most.plans) }))
	shop := s.auth(s.account, scopeIssuing)
	body := `{"name":"pro","product":"kds"}`
	first := s.planOf(shop, "")
	s.change(func(t *tx) error {
		for range s.store.limits.plans - 2 {
			made := plan{Name: "x", terms: terms{Product: "kds"}}
			if _, err := createPlan(t, s.account, made.members(), actorCommand); err != nil {
				return err
			}
		}
		return nil
	})
	s.post("/plans", body, shop).is(200)
	s.post("/plans", body, shop).is(409, "plan_limit_reached")
	_, err := s.command("plan", "add", body)
	oneLine(t, err, "account has 500 plans in use already: retire one first")
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
	n := size(15, 50) * appliedAtOnce
	s.fillPlan(plan, n)
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
	for changed := 0; changed < n; {
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
