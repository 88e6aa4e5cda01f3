package main

import (
	"testing"
)

func TestRevocation_ofATokenByClientCredentialsLeavesWhatElseIsCached(t *testing.T) {
	t.Parallel()
	s := newService(t)
	web, secret := s.registerApp(func(p *app) { p.OwnScope = ptr(scopeOrders) })
	own := func() string {
		return s.askToken("grant_type=client_credentials", basicAuth(web.ID, secret)).is(200).text("access_token")
	}
	mine, other := own(), own()
	revoke := func(token string) {
		t.Helper()
		s.post("/oauth/revoke", tokenForm("token", token), formType, basicAuth(web.ID, secret)).is(200)
	}
	for _, token := range []string{mine, other} {
		s.get("/orders", "Authorization: Bearer "+token).is(200)
	}
	before := s.store.changes.global.Load()
	revoke(mine)
	revoke(mine) // again
	if s.store.changes.global.Load() != before {
		t.Error("every cache is thrown away")
	}
	s.get("/orders", "Authorization: Bearer "+mine).is(401, "invalid_token")
	s.get("/orders", "Authorization: Bearer "+other).is(200)
}
