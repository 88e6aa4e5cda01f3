package main

import (
	"context"
)

func licenseWing(s *server) wing {
	routes := []route{
		{pattern: "GET /licenses", token: tokenRequired, scope: scopeLicenses, question: true,
			run: s.listLicenses},
		{pattern: "GET /licenses/{id}", token: tokenRequired, scope: scopeLicenses, run: s.showLicense},
		{pattern: "POST /licenses", token: tokenRequired, scope: scopeIssuing, creates: true,
			body: maxTermsBody, values: maxTermsValues, run: s.createLicense},
		{pattern: "PATCH /licenses/{id}", token: tokenRequired, scope: scopeIssuing,
			body: maxTermsBody, values: maxTermsValues, run: s.patchLicense},
		{pattern: "POST /licenses/{id}/renew", token: tokenRequired, scope: scopeIssuing, noBody: true,
			creates: true, run: s.renewLicense},
		{pattern: "POST /licenses/{id}/suspend", token: tokenRequired, scope: scopeIssuing, noBody: true,
			run: s.changeState("suspend")},
		{pattern: "POST /licenses/{id}/reinstate", token: tokenRequired, scope: scopeIssuing, noBody: true,
			run: s.changeState("reinstate")},
		{pattern: "POST /licenses/{id}/revoke", token: tokenRequired, scope: scopeIssuing, noBody: true,
			run: s.changeState("revoke")},
		{pattern: "POST /licenses/{id}/rotate-key", token: tokenRequired, scope: scopeIssuing, noBody: true,
			creates: true, run: s.rotateKey},
		{pattern: "POST /licenses/{id}/reset-transfers", token: tokenRequired, scope: scopeAdmin, noBody: true,
			run: s.resetTransfers},
	}
	for i := range routes {
		routes[i].careful = routes[i].scope != scopeLicenses // those that change one
	}
	return wing{routes: routes, chores: []chore{{timeDriven: true, run: s.announceEnds,
		fault: "the events of licences that are about to end can't be written"}}}
}

// announceEnds writes the event license.expiring for every licence that ends within the notice
// that serve was given, in transactions of a bounded number of rows.
func (s *server) announceEnds(ctx context.Context) error {
	if s.expiringNotice == (span{}) {
		return nil
	}
	now := s.now()
	due, err := s.store.licensesExpiring(newStamp(now), newStamp(s.expiringNotice.after(now)))
	if due && err == nil {
		_, err = s.store.updateInParts(ctx, maxTransitions, func(t *tx) (int64, error) {
			return t.recordExpiring(newStamp(s.expiringNotice.after(t.now.Time)), maxTransitions)
		})
	}
	return err
}

const (
	maxTermsBody   = 48 << 10 // bytes: room for 16 KiB of metadata and the other terms
	maxTermsValues = 8300     // of JSON: 16 KiB of metadata may be 8,000 numbers
)

// createAsIssuer is create for requests of scopeIssuing: it runs f, and answers an earlier call with the same
// Idempotency-Key, only if the caller may change licences of an owner. Errors: not_an_issuer, those of create.
func createAsIssuer[Res any](ctx context.Context, s *server, c *call, of owner, f func(*tx) (Res, error)) (Res, error) {
	ofOwner := replaysOf(of, anyReplay)
	c.stillTrue = func(t *tx, answer []byte) (bool, error) {
		if err := checkIssuer(t.queries, c, of); err != nil {
			return false, err
		}
		return ofOwner(t, answer)
	}
	return create(ctx, s, c, func(t *tx) (res Res, err error) {
		if err := checkIssuer(t.queries, c, of); err != nil {
			return res, err
		}
		return f(t)
	})
}

// checkIssuer returns not_an_issuer unless the caller may change licences of an owner: a token of one account acts on
// its own, and only if that is an issuer; a token for all accounts on the named one, and with the scope admin on any.
func checkIssuer(from *queries, c *call, of owner) error {
	if c.caller.all {
		return nil
	}
	a, err := from.account(of.account)
	if err == nil && !a.Issuer {
		err = &refusal{code: codeNotIssuer, challenge: bearerChallenge + `, error="insufficient_scope", scope="admin"`}
	}
	return err
}

// issuedTo returns the account whose licence a request makes: the one that it acts on, which the body may name; an
// operator's body may name any. Errors: a refusal for a missing scope.
func issuedTo(c *call, of owner, named string) (string, error) {
	id := c.oneOwner(of).account
	if named == "" || named == id {
		return id, nil
	}
	if of == anyAccount {
		return named, nil
	}
	return "", errScope(scopeAdmin, "The body names another account than the one that the request acts on; "+
		"a token for all accounts names it with ?account_id=.")
}

// A licenseWithKey is the answer that shows a new key, which no later answer does.
type licenseWithKey struct {
	licenseDetail
	Key string `json:"key"`
}

func (s *server) createLicense(ctx context.Context, c *call) (any, error) {
	named := c.in.text("account_id", optional, 64, isID("acct"))
	if !c.in.given("product") && !c.in.has("plan_id") {
		c.in.wrong("product", "required", "This member is required, unless a plan has it.")
	}
	set := c.in.change(new(license).members(), true)
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	account, err := issuedTo(c, of, named)
	if err != nil {
		return nil, err
	}
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*licenseWithKey, error) {
		l, key, err := sellLicense(t, account, set, actorToken(c))
		if err != nil {
			return nil, err
		}
		return &licenseWithKey{newLicenseDetail(l, t.now.Time), key}, nil
	})
}

func (s *server) patchLicense(ctx context.Context, c *call) (any, error) {
	set := c.in.change(new(license).members(), false, "account_id")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.changeLicense(ctx, c, of, func(t *tx) (*license, error) {
		return patchLicense(t, of, c.id(), set, actorToken(c))
	})
}

// changeLicense runs f as createAsIssuer does, and answers with the licence that f returns.
func (s *server) changeLicense(
	ctx context.Context, c *call, of owner, f func(*tx) (*license, error),
) (*licenseDetail, error) {
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*licenseDetail, error) {
		l, err := f(t)
		if err != nil {
			return nil, err
		}
		return new(newLicenseDetail(l, t.now.Time)), nil
	})
}

func (s *server) renewLicense(ctx context.Context, c *call) (any, error) {
	days := c.in.number("days", 1, maxDurationDays)
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.changeLicense(ctx, c, of, func(t *tx) (*license, error) {
		return renewLicense(t, of, c.id(), days, actorToken(c))
	})
}

// changeState returns the handler of an action on a licence: suspend, reinstate or revoke.
func (s *server) changeState(action string) handler {
	return func(ctx context.Context, c *call) (any, error) {
		reason := c.in.text("reason", optional, maxReason, anyText)
		of, err := s.admitOwner(ctx, c)
		if err != nil {
			return nil, err
		}
		return s.changeLicense(ctx, c, of, func(t *tx) (*license, error) {
			return changeState(t, of, c.id(), action, reason, c.caller.admin(), actorToken(c))
		})
	}
}

func (s *server) rotateKey(ctx context.Context, c *call) (any, error) {
	oldUntil := c.in.timestamp("old_key_until")
	endTokens, _ := c.in.boolTerm("end_tokens")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*licenseWithKey, error) {
		l, key, err := rotateKey(t, of, c.id(), oldUntil, endTokens, actorToken(c))
		if err != nil {
			return nil, err
		}
		return &licenseWithKey{newLicenseDetail(l, t.now.Time), key}, nil
	})
}

func (s *server) resetTransfers(ctx context.Context, c *call) (any, error) {
	if err := s.admit(ctx, c); err != nil {
		return nil, err
	}
	l, err := resetTransfers(ctx, s.store, c.id(), actorToken(c))
	if err != nil {
		return nil, err
	}
	return new(newLicenseDetail(l, s.now())), nil
}

func (s *server) listLicenses(ctx context.Context, c *call) (any, error) {
	now := s.now()
	filter := licenseFilter{now: newStamp(now), status: c.in.parameter("status", oneOf(statuses...)),
		product:  c.in.parameter("product", isText(maxNameLength)),
		customer: c.in.parameter("customer", isText(maxCustomer)), search: c.in.parameter("q", isText(maxKeyBytes)),
		expiresBefore: c.in.moment("expires_before")}
	page := c.in.page("lic")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	filter.owner = of
	found, err := s.store.within(ctx).licenses(filter, page.before, page.limit)
	return showPage(found, func(l *license) licenseDetail { return newLicenseDetail(l, now) }), err
}

func (s *server) showLicense(ctx context.Context, c *call) (any, error) {
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	l, err := s.store.license(of, c.id())
	if err != nil {
		return nil, err
	}
	return new(newLicenseDetail(l, s.now())), nil
}
