package main

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOAuthPages_areLimitedApartFromTheTokenEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := serviceWithApp(t, inBrowsers)
		page := func() answer { return s.get(authorizePath(p.askFor())) }
		for range 60 {
			page().is(200)
		}
		page().is(429)
		for range 3 { // what refills one bucket quickly must not refill the other
			s.askToken(refreshForm(p, "x")).refuses(400, "invalid_grant")
			time.Sleep(200 * time.Millisecond)
			page().is(429)
		}
		asked := size(5, 600)
		for i := range asked {
			if s.askToken(refreshForm(p, "x"), "Peer: 192.0.2.9:1").refuses(400, "invalid_grant"); i == 0 {
				s.spend("oauth 192.0.2.9", 600-asked)
			}
		}
		s.get(authorizePath(p.askFor()), "Peer: 192.0.2.9:1").is(200)
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
