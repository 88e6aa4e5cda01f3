package main

import (
	"context"
)

func licenseModule(s *server) module {
	const changes = "not_an_issuer license_not_found illegal_transition"
	routes := []route{
		{pattern: "GET /licenses", scope: scopeLicenses, question: true,
			endpoint: owned(s, readLicenseQuery, s.listLicenses)},
		{pattern: "GET /licenses/{id}", scope: scopeLicenses, refuses: "license_not_found",
			endpoint: owned(s, readNoMembers, s.getLicense)},
		{pattern: "POST /licenses", scope: scopeIssuing, creates: true, body: maxTermsBody, values: maxTermsValues,
			refuses:  "not_an_issuer plan_not_found plan_retired reference_used",
			endpoint: owned(s, readNewLicense, s.createLicense)},
		{pattern: "PATCH /licenses/{id}", scope: scopeIssuing, body: maxTermsBody, values: maxTermsValues,
			refuses: changes, endpoint: owned(s, readLicenseChange, s.updateLicense)},
		{pattern: "POST /licenses/{id}/renew", scope: scopeIssuing, noBody: true, creates: true,
			refuses: changes, endpoint: owned(s, readRenewal, s.renewLicense)},
		{pattern: "POST /licenses/{id}/suspend", scope: scopeIssuing, noBody: true,
			refuses: changes, endpoint: owned(s, readStateChange, s.suspendLicense)},
		{pattern: "POST /licenses/{id}/reinstate", scope: scopeIssuing, noBody: true,
			refuses: changes, endpoint: owned(s, readStateChange, s.reinstateLicense)},
		{pattern: "POST /licenses/{id}/revoke", scope: scopeIssuing, noBody: true,
			refuses: changes, endpoint: owned(s, readRevocation, s.revokeLicense)},
		{pattern: "POST /licenses/{id}/rotate-key", scope: scopeIssuing, noBody: true, creates: true,
			refuses: changes, endpoint: owned(s, readKeyRotation, s.rotateLicenseKey)},
		{pattern: "POST /licenses/{id}/reset-transfers", scope: scopeAdmin, noBody: true,
			refuses: "license_not_found", endpoint: admitted(s, readNoMembers, s.resetLicenseTransfers)},
	}
	return module{routes: routes, chores: []chore{{timeDriven: true, run: s.announceEnds,
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
	id := c.narrowToOne(of).account
	if named == "" || named == id {
		return id, nil
	}
	if of == anyAccount {
		return named, nil
	}
	return "", errScope(scopeAdmin, "The body names another account than the one that the request acts on; "+
		"a token for all accounts names it with ?account_id=.")
}

// A licenseQuery says which page of which licences a caller asks for.
type licenseQuery struct {
	licenseFilter
	page pageQuery
}

func readLicenseQuery(in *input) (q *licenseQuery) {
	q = new(licenseQuery)
	// Only licences that have this status now.
	q.status = licenseStatus(in.parameter("status", oneOf(licenseStatuses...)))
	q.product = in.parameter("product", isText(maxNameLength)) // Only this product.
	q.customer = in.parameter("customer", isText(maxCustomer)) // Only this customer, exactly.
	// A whole key, or a text in product, plan, customer, id and the key's last symbols.
	q.search = in.parameter("q", isText(maxKeyBytes))
	q.expiresBefore = in.moment("expires_before") // Only licences that end before this time.
	q.page = in.page("lic")
	return q
}

// List licences.
//
// They come newest first. One request goes through at most 10,000 rows and has two seconds, waiting included: where a
// filter finds little, a page may be short or empty and yet have a `next_cursor`.
func (s *server) listLicenses(ctx context.Context, c *call, of owner, q *licenseQuery) (*list[licenseDetail], error) {
	q.owner, q.now = of, newStamp(c.now)
	found, err := s.store.within(ctx).licenses(q.licenseFilter, q.page.before, q.page.limit)
	return showPage(found, func(l *license) licenseDetail { return newLicenseDetail(l, c.now) }), err
}

// Show a licence.
//
// Another account's is not found.
func (s *server) getLicense(_ context.Context, c *call, of owner, _ noMembers) (*licenseDetail, error) {
	l, err := s.store.license(of, c.id())
	if err != nil {
		return nil, err
	}
	return new(newLicenseDetail(l, s.now())), nil
}

// A newLicense is the terms of a new licence.
type newLicense struct {
	account string // that owns it; "": the caller's own
	set     change
}

func readNewLicense(in *input) *newLicense {
	// The account that owns it. Left out, it is the one that the request acts on, from which it must not differ unless
	// the token has the scope `admin`.
	account := in.text("account_id", optional, 64, isID("acct"))
	if !in.given("product") && !in.has("plan_id") {
		in.wrong("product", "required", "This member is required, unless a plan has it.")
	}
	return &newLicense{account, in.change(new(license).members(), true)}
}

// Issue a licence.
//
// Its `key` is in this answer and in no other: the service keeps its hash. `product` is required, unless there is a
// `plan_id`: then the licence gets the terms that the plan has now, but for those that the request names, and its
// `plan` is the name of the plan. Whoever lost the answer repeats the request with its Idempotency-Key within a day, or
// gives the licence another key; a repeated `reference` is refused with the `license_id`.
func (s *server) createLicense(ctx context.Context, c *call, of owner, r *newLicense) (*licenseWithKey, error) {
	account, err := issuedTo(c, of, r.account)
	if err != nil {
		return nil, err
	}
	return s.giveKey(ctx, c, of, func(t *tx) (*license, string, error) {
		return sellLicense(t, account, r.set, actorToken(c))
	})
}

// giveKey runs f as createAsIssuer does, and answers with the licence and the new key that f returns.
func (s *server) giveKey(
	ctx context.Context, c *call, of owner, f func(*tx) (*license, string, error),
) (*licenseWithKey, error) {
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*licenseWithKey, error) {
		l, key, err := f(t)
		if err != nil {
			return nil, err
		}
		return &licenseWithKey{newLicenseDetail(l, t.now.Time), key}, nil
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
		detail := newLicenseDetail(l, t.now.Time)
		detail.DryRun = c.in.dry
		return &detail, nil
	})
}

func readLicenseChange(in *input) change {
	return in.change(new(license).members(), false, "account_id")
}

// Change terms.
//
// What is left out stays, and `null` takes a term away. `max_devices` alone, where there was no limit, brings the
// default `max_transfers`, and raising it raises one that has become smaller than the default. `account_id`, `product`,
// `kind`, `expiry_basis`, `plan_id` and `reference` can't be changed and are refused. A change without effect writes
// nothing.
func (s *server) updateLicense(ctx context.Context, c *call, of owner, set change) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, of, func(t *tx) (*license, error) {
		return patchLicense(t, of, c.id(), set, actorToken(c))
	})
}

// A renewal is by how much to renew a licence.
type renewal struct{ days *int }

func readRenewal(in *input) *renewal {
	return &renewal{in.number("days", 1, maxDurationDays)} // Days to add; by default the licence's own duration.
}

// Move the end.
//
// It moves by `days`, else by the licence's own duration, from the later of now and the old end.
func (s *server) renewLicense(ctx context.Context, c *call, of owner, r *renewal) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, of, func(t *tx) (*license, error) {
		return renewLicense(t, of, c.id(), r.days, actorToken(c))
	})
}

// A stateChange is why the state of a licence is changed.
type stateChange struct{ reason string }

func readStateChange(in *input) *stateChange {
	return &stateChange{in.text("reason", optional, maxReason, nil)} // Kept with the licence; not in events.
}

func readRevocation(in *input) *stateChange {
	in.dryRun()
	return readStateChange(in)
}

// Suspend a licence.
//
// Devices may not use it until it is reinstated.
func (s *server) suspendLicense(ctx context.Context, c *call, of owner, r *stateChange) (*licenseDetail, error) {
	return s.changeState(ctx, c, of, "suspend", *r)
}

// Make a suspended licence active again.
//
// What the operator has suspended, only the operator reinstates.
func (s *server) reinstateLicense(ctx context.Context, c *call, of owner, r *stateChange) (*licenseDetail, error) {
	return s.changeState(ctx, c, of, "reinstate", *r)
}

// End a licence for good.
//
// Nothing undoes it.
func (s *server) revokeLicense(ctx context.Context, c *call, of owner, r *stateChange) (*licenseDetail, error) {
	return s.changeState(ctx, c, of, "revoke", *r)
}

// changeState applies an action to a licence, and answers with it.
func (s *server) changeState(
	ctx context.Context, c *call, of owner, action string, r stateChange,
) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, of, func(t *tx) (*license, error) {
		return changeState(t, of, c.id(), action, r.reason, c.caller.admin(), actorToken(c))
	})
}

// A keyRotation is how the old key of a licence ends.
type keyRotation struct {
	oldUntil  stamp
	endTokens bool
}

func readKeyRotation(in *input) (r *keyRotation) {
	r = new(keyRotation)
	// Until when the old key works; by default it stops now. None before it works longer.
	r.oldUntil = in.timestamp("old_key_until", optional)
	// Whether the tokens that devices have got until now end too; they keep their seats. More than twice within a
	// second is 409, with `Retry-After`.
	r.endTokens, _ = in.boolTerm("end_tokens")
	return r
}

// Give a licence a new key.
//
// The `key` is in this answer and in no other. The old one works until `old_key_until`. Tokens of devices go on, unless
// `end_tokens` is true.
func (s *server) rotateLicenseKey(ctx context.Context, c *call, of owner, r *keyRotation) (*licenseWithKey, error) {
	return s.giveKey(ctx, c, of, func(t *tx) (*license, string, error) {
		return rotateKey(t, of, c.id(), r.oldUntil, r.endTokens, actorToken(c))
	})
}

// Free the transfers of a licence.
//
// Only the machines that hold seats count from now on: for an owner whose transfers somebody else used up. The leases
// of the others last until their end.
func (s *server) resetLicenseTransfers(ctx context.Context, c *call, _ noMembers) (*licenseDetail, error) {
	l, err := resetTransfers(ctx, s.store, c.id(), actorToken(c))
	if err != nil {
		return nil, err
	}
	return new(newLicenseDetail(l, s.now())), nil
}
