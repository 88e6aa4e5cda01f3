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

// showAccount answers GET /account.
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

// patchAccount answers PATCH /account.
func (s *server) patchAccount(ctx context.Context, c *call) (any, error) {
	for _, name := range []string{"id", "name"} {
		if c.in.has(name) {
			c.in.wrong(name, "immutable", "This can't be changed here.")
		}
	}
	change := readSettings(c.in)
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	id := c.oneOwner(of).account
	return updated(ctx, s.store, func(t *tx) (*accountView, error) {
		if err := changeSettings(t, s.nouns, id, change, actorToken(c)); err != nil {
			return nil, err
		}
		return viewAccount(t.queries, id)
	})
}

// readSettings reads the settings that a PATCH changes; null removes a text.
func readSettings(in *input) (c settingsChange) {
	if in.has("zone") {
		zone := in.text("zone", required, maxZone, checkZone)
		c = append(c, func(s *accountSettings) { s.Zone = zone })
	}
	if in.has("cut_off") {
		cutOff := in.text("cut_off", required, len("04:00"), checkCutOff)
		c = append(c, func(s *accountSettings) { s.CutOff = cutOff })
	}
	if v, ok := in.textTerm("legal_name", maxLegalName, nil); ok {
		c = append(c, func(s *accountSettings) { s.LegalName = v })
	}
	if in.isNull("address") {
		c = append(c, func(s *accountSettings) { s.Address = nil })
	} else if in.has("address") {
		address := in.lines("address", maxAddress)
		c = append(c, func(s *accountSettings) { s.Address = nilIfEmpty(address) })
	}
	if v, ok := in.textTerm("vat_number", maxVATNumber, nil); ok {
		c = append(c, func(s *accountSettings) { s.VATNumber = v })
	}
	if in.has("capture_on") {
		captureOn := in.text("capture_on", required, maxNameLength, oneOf(captureOnAccept, captureOnHandover))
		c = append(c, func(s *accountSettings) { s.CaptureOn = captureOn })
	}
	if n := in.number("accept_within", 1, maxAcceptWithin); n != nil {
		c = append(c, func(s *accountSettings) { s.AcceptWithin = *n })
	}
	return c
}
