package main

import "context"

// accountWing makes the routes of accounts, and sweeps tokens that ended before keepTokens.
func accountWing(s *server) wing {
	return wing{
		routes: []route{
			{pattern: "GET /account", token: tokenRequired, run: s.showAccount},
			{pattern: "PATCH /account", token: tokenRequired, scope: scopeAdmin, run: s.patchAccount},
		},
		sweeps: []func(*tx) (int64, error){func(t *tx) (int64, error) {
			t.quiet()
			return t.removeTokens(newStamp(s.keepTokens.before(s.now())), sweptAtOnce), nil
		}},
	}
}

// An accountView is an account as callers see it.
type accountView struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	accountSettings
	Issuer bool `json:"issuer"` // its own tokens may issue its licences
}

// viewAccount returns an account as callers see it. Errors: errAccount.
func viewAccount(q *queries, id string) (*accountView, error) {
	if err := q.openAccount(id); err != nil {
		return nil, err
	}
	a, err := q.account(id)
	if err != nil {
		return nil, err
	}
	settings, err := q.settings(id)
	return &accountView{a.ID, a.Name, settings, a.Issuer}, err
}

func (s *server) showAccount(ctx context.Context, c *call) (any, error) {
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.caller.claims.isDevice() {
		return nil, errScope(scopeAdmin, "A device's token can't read accounts.")
	}
	return viewAccount(s.store.queries, c.oneOwner(of).account)
}

// patchAccount also takes issuer, of a command alone.
func (s *server) patchAccount(ctx context.Context, c *call) (any, error) {
	set := c.in.change(new(accountSettings).members(), false, "id", "name")
	issuer, givesIssuer := false, false
	if c.isCommand() {
		issuer, givesIssuer = c.in.boolTerm("issuer")
	}
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	id := c.oneOwner(of).account
	return updated(ctx, s.store, func(t *tx) (*accountView, error) {
		err := changeSettings(t, s.nouns, id, func(s *accountSettings) { set.apply(s.members()) }, actorToken(c))
		if err == nil && givesIssuer {
			err = changeIssuer(t, id, issuer, actorToken(c))
		}
		if err != nil {
			return nil, err
		}
		return viewAccount(t.queries, id)
	})
}
