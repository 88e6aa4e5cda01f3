package main

import "testing"

func TestOAuth_aTokenOfAnApplicationEndsWithItsGrant(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, _ := s.registerApp()
	token, grantID := s.appToken(p, s.account, scopeOrders)
	s.get("/orders", bearer(token)).is(200)
	s.get("/leads", bearer(token)).is(403, "insufficient_scope")
	s.check(s.store.update(t.Context(), func(t *tx) error {
		return endGrant(t, anyAccount, grantID, endedByOperator, actorOperator)
	}))
	s.get("/orders", bearer(token)).is(401, "invalid_token")
}
