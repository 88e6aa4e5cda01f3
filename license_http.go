package main

import (
	"context"
	"encoding/json"
	"fmt"
)

func licenseWing(s *server) wing {
	routes := []route{
		{pattern: "GET /licenses", token: tokenRequired, scope: scopeLicenses, question: true,
			run: endpoint(s.listLicenses)},
		{pattern: "GET /licenses/{id}", token: tokenRequired, scope: scopeLicenses, run: endpoint(s.showLicense)},
		{pattern: "POST /licenses", token: tokenRequired, scope: scopeIssuing, creates: true,
			body: maxTermsBody, values: maxTermsValues, run: endpoint(s.createLicense)},
		{pattern: "PATCH /licenses/{id}", token: tokenRequired, scope: scopeIssuing,
			body: maxTermsBody, values: maxTermsValues, run: endpoint(s.patchLicense)},
		{pattern: "POST /licenses/{id}/renew", token: tokenRequired, scope: scopeIssuing, noBody: true,
			creates: true, run: endpoint(s.renewLicense)},
		{pattern: "POST /licenses/{id}/suspend", token: tokenRequired, scope: scopeIssuing, noBody: true,
			run: endpoint(s.setState("suspend"))},
		{pattern: "POST /licenses/{id}/reinstate", token: tokenRequired, scope: scopeIssuing, noBody: true,
			run: endpoint(s.setState("reinstate"))},
		{pattern: "POST /licenses/{id}/revoke", token: tokenRequired, scope: scopeIssuing, noBody: true,
			run: endpoint(s.setState("revoke"))},
		{pattern: "POST /licenses/{id}/rotate-key", token: tokenRequired, scope: scopeIssuing, noBody: true,
			creates: true, run: endpoint(s.rotateKey)},
		{pattern: "POST /licenses/{id}/reset-transfers", token: tokenRequired, scope: scopeAdmin, noBody: true,
			run: endpoint(s.resetTransfers)},
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
	for due && err == nil {
		var written int
		written, err = updated(ctx, s.store, func(t *tx) (int, error) {
			return t.recordExpiring(newStamp(s.expiringNotice.after(t.now.Time)), maxTransitions)
		})
		due = written == maxTransitions
	}
	return err
}

const (
	maxTermsBody   = 48 << 10 // bytes: room for 16 KiB of metadata and the other terms
	maxTermsValues = 8300     // of JSON: 16 KiB of metadata may be 8,000 numbers
)

// licenseNotFound turns errNotFound into the refusal license_not_found, and returns any
// other error as it is.
func licenseNotFound(err error) error {
	return replaced(err, errNotFound, &refusal{code: codeLicenseNotFound, detail: "There is no licence with this id."})
}

// A licenseScope is the account that a request of scopeIssuing acts on. A token of one account acts on its own, and
// only if that is an issuer; a token for all accounts on the named one, and with the scope admin on any.
type licenseScope struct{ accountScope }

// changing is create for requests of scopeIssuing: it runs f, and answers an earlier call with the same
// Idempotency-Key, only if the caller may change licences of q's owner. Errors: not_an_issuer, those of create.
func changing[Res any](
	ctx context.Context, s *server, c *call, q *licenseScope, f func(t *tx, o owner) (Res, error),
) (Res, error) {
	ofOwner := replaysOf(q.owner, anyReplay)
	c.stillTrue = func(t *tx, answer []byte) (bool, error) {
		if err := q.mayChange(t.queries, c); err != nil {
			return false, err
		}
		return ofOwner(t, answer)
	}
	return create(ctx, s, c, func(t *tx) (res Res, err error) {
		if err := q.mayChange(t.queries, c); err != nil {
			return res, err
		}
		return f(t, q.owner)
	})
}

// mayChange returns not_an_issuer unless the caller may change licences of q's owner.
func (q *licenseScope) mayChange(from *queries, c *call) error {
	if c.caller.all {
		return nil
	}
	a, err := from.account(q.owner.account)
	if err == nil && !a.Issuer {
		err = &refusal{code: codeNotIssuer, challenge: bearerChallenge + `, error="insufficient_scope", scope="admin"`}
	}
	return err
}

// account returns the account whose licence a request makes: the one that it acts on, which the body may name; an
// operator's body may name any. Errors: a refusal for a missing scope.
func (q *licenseScope) account(c *call, named string) (string, error) {
	id := q.oneOwner(c).account
	if named == "" || named == id {
		return id, nil
	}
	if q.owner == anyAccount {
		return named, nil
	}
	return "", errScope(scopeAdmin, "The body names another account than the one that the request acts on; "+
		"a token for all accounts names it with ?account_id=.")
}

// createLicenseRequest is the body of POST /licenses.
type createLicenseRequest struct {
	licenseScope
	named string // the account that the body names, or ""
	terms termsChange
}

func (q *createLicenseRequest) read(in *input) {
	q.licenseScope.read(in)
	q.named = in.text("account_id", optional, 64, isID("acct"))
	if (!in.has("product") || in.isNull("product")) && !in.has("plan_id") {
		in.wrong("product", "required", "This member is required, unless a plan has it.")
	}
	q.terms = readNewTerms(in)
}

// A licenseWithKey is the answer that shows a new key, which no later answer does.
type licenseWithKey struct {
	licenseDetail
	Key string `json:"key"`
}

// createLicense answers POST /licenses.
func (s *server) createLicense(ctx context.Context, c *call, q *createLicenseRequest) (*licenseWithKey, error) {
	account, err := q.account(c, q.named)
	if err != nil {
		return nil, err
	}
	return changing(ctx, s, c, &q.licenseScope, func(t *tx, _ owner) (*licenseWithKey, error) {
		l, err := licenseOf(t.queries, account, q.terms)
		if err != nil {
			return nil, err
		}
		id, key, err := createLicense(t, l, actorToken(c))
		if err != nil {
			return nil, err
		}
		l, err = t.license(ownedBy(account), id)
		return &licenseWithKey{newLicenseDetail(l, t.now.Time), key}, err
	})
}

// patchLicenseRequest is the body of PATCH /licenses/{id}.
type patchLicenseRequest struct {
	licenseScope
	id    string
	terms termsChange
}

func (q *patchLicenseRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
	q.terms = readPatch(in)
}

// patchLicense answers PATCH /licenses/{id}.
func (s *server) patchLicense(ctx context.Context, c *call, q *patchLicenseRequest) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, &q.licenseScope, func(t *tx, o owner) (*license, error) {
		return patchLicense(t, o, q.id, q.terms, actorToken(c))
	})
}

// changeLicense runs f as changing does, and answers with the licence that f returns.
func (s *server) changeLicense(
	ctx context.Context, c *call, q *licenseScope, f func(*tx, owner) (*license, error),
) (*licenseDetail, error) {
	return changing(ctx, s, c, q, func(t *tx, o owner) (*licenseDetail, error) {
		l, err := f(t, o)
		if err != nil {
			return nil, licenseNotFound(err)
		}
		return new(newLicenseDetail(l, t.now.Time)), nil
	})
}

// renewRequest is the body of POST /licenses/{id}/renew.
type renewRequest struct {
	licenseScope
	id   string
	days *int
}

func (q *renewRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
	q.days = in.number("days", 1, maxDurationDays)
}

// renewLicense answers POST /licenses/{id}/renew.
func (s *server) renewLicense(ctx context.Context, c *call, q *renewRequest) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, &q.licenseScope, func(t *tx, o owner) (*license, error) {
		return renewLicense(t, o, q.id, q.days, actorToken(c))
	})
}

// stateRequest is the body of suspend, reinstate and revoke.
type stateRequest struct {
	licenseScope
	id, reason string
}

func (q *stateRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
	q.reason = in.text("reason", optional, maxReason, nil)
}

// setState returns the endpoint of an action on a licence: suspend, reinstate or revoke.
func (s *server) setState(action string) func(context.Context, *call, *stateRequest) (*licenseDetail, error) {
	return func(ctx context.Context, c *call, q *stateRequest) (*licenseDetail, error) {
		return s.changeLicense(ctx, c, &q.licenseScope, func(t *tx, o owner) (*license, error) {
			return changeState(t, o, q.id, action, q.reason, c.caller.admin(), actorToken(c))
		})
	}
}

// rotateRequest is the body of POST /licenses/{id}/rotate-key.
type rotateRequest struct {
	licenseScope
	id        string
	oldUntil  stamp
	endTokens bool
}

func (q *rotateRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
	q.oldUntil = in.timestamp("old_key_until")
	q.endTokens, _ = in.boolTerm("end_tokens")
}

// rotateKey answers POST /licenses/{id}/rotate-key.
func (s *server) rotateKey(ctx context.Context, c *call, q *rotateRequest) (*licenseWithKey, error) {
	return changing(ctx, s, c, &q.licenseScope, func(t *tx, o owner) (*licenseWithKey, error) {
		l, key, err := rotateKey(t, o, q.id, q.oldUntil, q.endTokens, actorToken(c))
		if err != nil {
			return nil, licenseNotFound(err)
		}
		return &licenseWithKey{newLicenseDetail(l, t.now.Time), key}, nil
	})
}

// resetTransfers answers POST /licenses/{id}/reset-transfers.
func (s *server) resetTransfers(ctx context.Context, c *call, q *idRequest) (*licenseDetail, error) {
	l, err := resetTransfers(ctx, s.store, q.id, actorToken(c))
	if err != nil {
		return nil, licenseNotFound(err)
	}
	return new(newLicenseDetail(l, s.now())), nil
}

// licensesRequest is the query of GET /licenses.
type licensesRequest struct {
	accountScope
	filter licenseFilter
	page   pageQuery
}

func (q *licensesRequest) read(in *input) {
	q.accountScope.read(in)
	q.filter.status = in.parameter("status", oneOf(statuses...))
	q.filter.product = in.parameter("product", isText(maxNameLength))
	q.filter.customer = in.parameter("customer", isText(maxCustomer))
	q.filter.search = in.parameter("q", isText(maxKeyBytes))
	q.filter.expiresBefore = in.moment("expires_before")
	q.page = in.page("lic")
}

// listLicenses answers GET /licenses.
func (s *server) listLicenses(ctx context.Context, c *call, q *licensesRequest) (*list[licenseDetail], error) {
	now := s.now()
	q.filter.owner, q.filter.now = q.owner, newStamp(now)
	page, err := s.store.within(ctx).licenses(q.filter, q.page.before, q.page.limit)
	return showPage(page, func(l *license) licenseDetail { return newLicenseDetail(l, now) }), err
}

// licenseRequest is a request whose path names a licence, and perhaps one of its devices.
type licenseRequest struct {
	accountScope
	id, device string
	page       pageQuery
}

func (q *licenseRequest) read(in *input) {
	q.accountScope.read(in)
	q.id, q.device = in.pathValue("id"), in.pathValue("device_id")
	q.page = in.page("dev")
}

// find returns the licence, or license_not_found when there is none or the caller may
// not see it.
func (q *licenseRequest) find(s *server) (*license, error) {
	l, err := s.store.license(q.owner, q.id)
	return l, licenseNotFound(err)
}

// showLicense answers GET /licenses/{id}.
func (s *server) showLicense(_ context.Context, _ *call, q *licenseRequest) (*licenseDetail, error) {
	l, err := q.find(s)
	if err != nil {
		return nil, err
	}
	return new(newLicenseDetail(l, s.now())), nil
}

// readPatch reads changed terms from a JSON body; null removes a term.
func readPatch(in *input) termsChange {
	in.fixed("This can't be changed; issue another licence.", "account_id", "product", "kind", "expiry_basis",
		"plan_id", "reference")
	return readTerms(in)
}

// fixed records an error of members that can't be changed.
func (in *input) fixed(detail string, names ...string) {
	for _, name := range names {
		if in.has(name) {
			in.wrong(name, "immutable", detail)
		}
	}
}

func (in *input) codesTerm(name string) (codeList, bool) {
	if !in.has(name) {
		return nil, false
	}
	codes := in.texts(name, maxEntitlements, 64)
	checkCodes(codes, func(at int, code, detail string) {
		if codes[at] != "" { // in.texts has already reported an empty code
			in.wrong(fmt.Sprintf("%s/%d", name, at), code, detail)
		}
	})
	return codes, true
}

func (in *input) objectTerm(name string) (json.RawMessage, bool) {
	v := in.member(name, jsonObject, optional)
	if v == nil {
		return nil, false
	}
	switch {
	case len(v.raw) > maxMetadata:
		in.wrong(name, "too_long", "This has more than 16 KiB.")
	case v.hasControlCharacter():
		in.wrong(name, "control_character", "This must not contain control characters.")
	}
	return json.RawMessage(v.raw), true
}
