package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// grantEnded returns why a grant has ended; "": it has not.
func (s *service) grantEnded(id string) grantEnd {
	s.t.Helper()
	g, err := s.store.grant(anyAccount, id)
	s.check(err)
	return valueOr(g.EndedBy, "")
}

func TestGrant_webhooksUnderItAreTheApplicationsOwn(t *testing.T) {
	t.Parallel()
	s := quietService(t, admitLoopback)
	p, _ := s.registerApp(func(p *app) { p.Scope = strings.Join(appScopes, " ") })
	q, _ := s.registerApp()
	token, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeLeads)
	otherToken, _ := s.appToken(q, s.account, scopeWebhooks+" "+scopeLeads)
	auth, other, owner := bearer(token), bearer(otherToken), s.hookAuth(scopeLeads)
	theirs := s.post("/webhooks", hookBody("lead.created"), owner).is(200).text("id")
	s.answerTest(theirs)
	made := s.post("/webhooks", hookBody("lead.created"), auth).is(200)
	failIf(t, made.text("app_id") != p.ID || made.text("made_by") != "app "+p.ID, "made %s", made.body)
	id := made.text("id")
	s.answerTest(id)
	delivery := s.addDelivery(theirs, s.addEvents(s.account, eventLeadCreated, 1), ptr(500))
	before := s.dump()
	for name, bearer := range map[string]string{"the application": auth, "another one": other} {
		for what, c := range webhookCalls(theirs, delivery) {
			if a := s.do(c[0], c[1], c[2], bearer); a.status != 404 || a.text("code") != "webhook_not_found" {
				t.Errorf("%s: %s of the owner's webhook: %d %s", name, what, a.status, a.body)
			}
		}
		s.get("/webhooks/"+theirs, bearer).is(404, "webhook_not_found")
		s.get("/webhooks/"+theirs+"/deliveries", bearer).is(404, "webhook_not_found")
		s.do("DELETE", "/webhooks/"+theirs, "", bearer).is(404, "webhook_not_found")
	}
	s.get("/webhooks/"+id, other).is(404, "webhook_not_found")
	s.do("DELETE", "/webhooks/"+id, "", other).is(404, "webhook_not_found")
	s.unchanged(before)
	for bearer, want := range map[string]int{auth: 1, other: 0, owner: 2} {
		if ids, _ := s.everyPage("/webhooks", bearer); len(ids) != want {
			t.Errorf("lists %v", ids)
		}
	}
	s.do("PATCH", "/webhooks/"+id, `{"description":"its own"}`, auth).is(200)
	if w := s.get("/webhooks/"+id, owner).is(200); w.text("app_id") != p.ID || w.text("description") != "its own" {
		t.Errorf("the owner sees %s", w.body)
	}
	s.do("DELETE", "/grants/"+grantID, "", s.appAuth(s.account)).is(204)
	s.get("/webhooks/"+id, owner).is(404, "webhook_not_found")
	s.get("/webhooks/"+theirs, owner).is(200)
	s.hasRows(0, `app_webhooks`)
}

func TestGrant_anApplicationHasTenWebhooksOfAnAccount(t *testing.T) {
	t.Parallel()
	s := quietService(t, admitLoopback)
	p, _ := s.registerApp()
	token, _ := s.appToken(p, s.account, scopeWebhooks+" "+scopeOrders)
	again, _ := s.appToken(p, s.account, scopeWebhooks+" "+scopeOrders)
	for range maxAppWebhooks {
		s.post("/webhooks", hookBody("order.created"), bearer(token)).is(200)
	}
	a := s.post("/webhooks", hookBody("order.created"), bearer(again)).is(409, "webhook_limit_reached")
	failIf(t, !strings.Contains(a.text("detail"), "10 webhooks"), "refused with %s", a.body)
	s.post("/webhooks", hookBody("order.created"), s.hookAuth(scopeOrders)).is(200)
	tenant := s.addAccount("Trattoria")
	there, _ := s.appToken(p, tenant, scopeWebhooks+" "+scopeOrders)
	s.post("/webhooks", hookBody("order.created"), bearer(there)).is(200)
}

// queued reports whether the worker sends to a webhook.
func (s *service) queued(id string) bool {
	s.t.Helper()
	all, err := s.store.webhookQueues()
	s.check(err)
	return slices.ContainsFunc(all, func(q *webhookQueue) bool { return q.ID == id })
}

// sweepApps ends and removes what a service would within a minute.
func (s *service) sweepApps(ctx context.Context) error {
	failIf(s.t, s.server.sweep(ctx, time.Now().Add(time.Hour)), "more is left to sweep")
	return nil
}

func TestGrant_endsAtOnceWithItsApplicationAndIsSweptInBoundedSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t, admitLoopback, keepTokens(90))
		tenant := s.addAccount("Trattoria")
		p, _ := s.registerApp(func(p *app) { p.AccountID, p.OwnScope = tenant, ptr(scopeWebhooks+" "+scopeOrders) })
		token, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeOrders)
		auth := bearer(token)
		hook := s.post("/webhooks", hookBody("order.created"), auth).is(200).text("id")
		var own string
		s.change(func(t *tx) (err error) {
			own, _, err = issueAppToken(t, s.server.keys.Load(),
				appToken{AppID: p.ID, AccountID: tenant, Scope: *p.OwnScope})
			return err
		})
		ownHook := s.post("/webhooks", hookBody("order.created"), bearer(own)).is(200).text("id")
		s.sql(manyRows(3*endedAtOnce)+`
			INSERT INTO grants (id, app_id, account_id, scope, agreed_by, created_at, used_at, expires_at)
			SELECT printf('grt_000000000000000000000%05d', i), ?, ?, 'orders:read', 'test', ?3, ?3,
				'2001-01-01T00:00:00Z' FROM n`,
			p.ID, tenant, newStamp(time.Now()))
		kept, keptGrant := s.appToken(func() *app { q, _ := s.registerApp(); return q }(), s.account, scopeOrders)
		failIf(t, !s.queued(hook) || !s.queued(ownHook), "the webhooks are not sent to")
		// A closed owner stops all of it, until the account is opened again.
		s.change(func(t *tx) error { return closeAccount(t, nouns(), tenant, actorCommand) })
		s.get("/orders", auth).is(401, "invalid_token")
		failIf(t, s.queued(hook), "the webhook of an application whose owner is closed is sent to")
		s.change(func(t *tx) error { return reopenAccount(t, tenant, actorCommand) })
		s.get("/orders", auth).is(200)

		s.do("DELETE", "/apps/"+p.ID, "", s.appAuth(tenant)).is(204)
		s.get("/orders", auth).is(401, "invalid_token")
		s.get("/orders", bearer(own)).is(401, "invalid_token")
		failIf(t, s.queued(hook) || s.queued(ownHook), "the webhooks of a removed application are sent to")
		sweep := s.sweepApps
		s.check(sweep(t.Context()))
		s.hasRows(3*endedAtOnce+1, `grants WHERE app_id = ? AND ended_by = 'app_removed'`, p.ID)
		s.hasRows(0, `webhooks`)
		failIf(t, s.grantEnded(grantID) != endedByRemoval || s.grantEnded(keptGrant) != "", "other grants have ended")
		s.get("/orders", bearer(kept)).is(200)
		for _, c := range []struct {
			after        time.Duration
			grants, apps int
		}{{days(90) - time.Minute, 3*endedAtOnce + 1, 1}, {2 * time.Minute, 0, 0}} {
			time.Sleep(c.after)
			s.check(sweep(t.Context()))
			grants, apps := s.count(`SELECT count(*) FROM grants WHERE app_id = ?`, p.ID),
				s.count(`SELECT count(*) FROM apps WHERE id = ?`, p.ID)
			if grants != c.grants || apps != c.apps {
				t.Errorf("%v later there are %d grants and %d applications, want %d and %d", c.after, grants, apps,
					c.grants, c.apps)
			}
		}
		s.hasRows(0, `app_tokens`)
		s.hasRows(0, `pragma_foreign_key_check`)
	})
}

func TestGrant_ofWhichTheTimeIsOverEndsAndWhatIsLeftIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t, admitLoopback, keepTokens(1))
		p, _ := s.registerApp()
		s.agree(p, s.account, scopeOrders)
		token, grantID := s.appToken(p, s.account, scopeWebhooks+" "+scopeOrders)
		s.post("/webhooks", hookBody("order.created"), bearer(token)).is(200)
		hash := sha256.Sum256([]byte("x"))
		s.sql(`INSERT INTO refresh_tokens (hash, grant_id, number, expires_at) VALUES (?, ?, 1, ?)`, hash[:], grantID,
			newStamp(time.Now()).after(days(2)))
		s.sql(`UPDATE grant_codes SET grant_id = ?`, grantID)
		s.sql(`UPDATE grants SET expires_at = ?`, newStamp(time.Now()).after(days(3)))
		sweep := s.sweepApps
		for _, c := range []struct {
			until                                            time.Duration
			codes, tokens, refreshing, webhooks, ended, rows int
		}{
			{appTokenLife + keptAppTokens - time.Second, 1, 1, 1, 1, 0, 1},
			{appTokenLife + keptAppTokens + time.Minute, 1, 0, 1, 1, 0, 1},
			{grantCodeLife + keptGrantCode, 1, 0, 1, 1, 0, 1},
			{grantCodeLife + keptGrantCode + time.Minute, 0, 0, 1, 1, 0, 1},
			{days(2), 0, 0, 0, 1, 0, 1},
			{days(3) - time.Minute, 0, 0, 0, 1, 0, 1},
			{days(3), 0, 0, 0, 0, 1, 1},
			{days(4), 0, 0, 0, 0, 1, 1},
			{days(4) + time.Minute, 0, 0, 0, 0, 0, 0},
		} {
			time.Sleep(time.Until(bubbleStart.Add(c.until)))
			s.check(sweep(t.Context()))
			got := fmt.Sprint(s.count(`SELECT count(*) FROM grant_codes`), s.count(`SELECT count(*) FROM app_tokens`),
				s.count(`SELECT count(*) FROM refresh_tokens`), s.count(`SELECT count(*) FROM webhooks`),
				s.count(`SELECT count(*) FROM grants WHERE ended_by = 'expired'`),
				s.count(`SELECT count(*) FROM grants`))
			if want := fmt.Sprint(c.codes, c.tokens, c.refreshing, c.webhooks, c.ended, c.rows); got != want {
				t.Errorf("after %v there are %s, want %s", c.until, got, want)
			}
		}
		s.get("/apps/"+p.ID, s.appAuth(s.account)).is(200)
	})
}

func TestKey_retireCountsTheTokensOfApplications(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t)
	s.appToken(p, s.account, scopeOrders)
	token, _ := s.appToken(p, s.account, scopeOrders)
	c, err := s.keys.verify(token)
	s.check(err)
	s.change(func(t *tx) error {
		t.revokeAppToken(p.ID, c.ID)
		return nil
	})
	for after, want := range map[time.Duration]int{0: 1, appTokenLife + time.Second: 0} {
		needed, err := s.store.neededKeys(nil, time.Now().Add(after))
		s.check(err)
		tokens := 0
		for _, k := range needed {
			tokens += k.tokens
		}
		equal(t, fmt.Sprint("tokens ", after, " later"), tokens, want)
	}
}
