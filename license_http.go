package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
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

// The page to which somebody with a network carries the activation request of a device that has none, and from which
// they carry its lease back (contract, section 4). A request names the licence key, so it is posted and never stands
// in a URL. The only script, web/activate.js, copies the lease, where there is one.

// activateTemplate makes the page from an activatePage, leaseTemplate that with a lease.
var (
	activateTemplate = pageTemplateOf("activate.html", "")
	leaseTemplate    = pageTemplateOf("activate.html", "activate.js")
)

// pageRoutes are the routes of the page.
func (a *deviceAPI) pageRoutes() []route {
	return []route{
		{pattern: "GET /activate", page: "activate", free: true, origin: originNone, address: "activate page",
			run: a.askRequest},
		{pattern: "POST /activate", page: "activate", bucket: bucketLicenses, origin: originNone,
			address: "activate page", run: a.activateByPage},
	}
}

// readCarried reads an activation request that was pasted into the page's form. Errors: malformed_json, or the
// refusal of its members.
func readCarried(text string) (*deviceRequest, error) {
	body, err := parseBody([]byte(text), maxBodyValues)
	if err != nil {
		return nil, &refusal{code: codeMalformedJSON}
	}
	in := newInput(&body, nil)
	return readSeatRequest(in, true), in.err()
}

// askRequest answers with the empty form.
func (a *deviceAPI) askRequest(ctx context.Context, c *call) (any, error) {
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	return activateTemplate.render(http.StatusOK, pageBrand{}, newActivatePage(c.request, "title_activate"))
}

// activateByPage answers with the lease of the device that made the request, or with what is wrong.
func (a *deviceAPI) activateByPage(ctx context.Context, c *call) (any, error) {
	p := newActivatePage(c.request, "title_activate")
	p.Request = c.in.field("request")
	asFile := c.in.field("answer") == "file"
	token, err := a.leaseFor(ctx, c, p.Request)
	var refused *refusal
	switch {
	case err == nil && asFile:
		return download("application/jwt", "lease.jwt", []byte(token+"\n")), nil
	case err == nil:
		return a.showLease(p, token)
	case !errors.As(err, &refused) || refused.code.status >= 500 || refused.code.status == 429:
		return nil, err
	}
	a.metrics.countRefusal(refused.code.name, a.monotonic())
	p.showRefusal(refused)
	return activateTemplate.render(refused.code.status, p.pageBrand, p)
}

// leaseFor activates the device that made a request, and returns its lease. The same text gets the same lease for a
// day, as with an Idempotency-Key, so that it can be shown first and saved then. A text that is no activation
// request is charged to nobody; the page's own limit by address has counted it. Errors: those of readCarried
// and giveSeat.
func (a *deviceAPI) leaseFor(ctx context.Context, c *call, text string) (token string, err error) {
	r, err := readCarried(text)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(text))
	c.repeatAs(hex.EncodeToString(sum[:]), text)
	res, err := a.giveSeat(ctx, c, r)
	if err != nil {
		return "", err
	}
	if c.replay != nil {
		err = json.Unmarshal(c.replay.body, &res)
		c.replay = nil // it is no page
	}
	return res.Token, err
}

// An activatePage is what the template shows; an empty field is left out.
type activatePage struct {
	pageFrame
	Request string   // that was pasted
	Wrong   []string // members of the request that are missing or wrong
	Product string   // of the licence
	Until   string   // when the lease ends
	Lease   string
}

// newActivatePage makes an empty page in the language that a request prefers.
func newActivatePage(r *http.Request, title string) *activatePage {
	lang := languageOf(r, pageLanguages[:ownerLanguages])
	texts := textsByLanguage[lang]().Activate
	return &activatePage{pageFrame: pageFrame{pageLanguage: lang, texts: texts, Title: title}}
}

// showLease makes the page with a lease, whose end it writes in the zone of the licence's account.
func (a *deviceAPI) showLease(p *activatePage, token string) (*reply, error) {
	c, err := a.keys.Load().verify(token)
	if err != nil {
		return nil, err
	}
	of, err := a.store.settings(c.Subject)
	if err != nil {
		return nil, err
	}
	p.Title, p.Lease, p.Product = "title_lease", token, c.Product
	zone := shownZone(of.Zone)
	p.Until = p.moment(newStamp(time.Unix(c.Expires, 0)), zone) + " (" + zone.String() + ")"
	return leaseTemplate.render(http.StatusOK, p.pageBrand, p)
}

// carriedRefusals are the texts for refusals that people can do something about.
var carriedRefusals = map[*problemCode]string{
	codeMalformedJSON: "refused_request", codeValidation: "refused_request",
	codeKeyMalformed: "refused_key", codeLicenseNotFound: "refused_key", codeKeyRetired: "refused_key",
	codeLicenseRevoked: "refused_ended", codeLicenseSuspended: "refused_ended", codeLicenseExpired: "refused_ended",
	codeLicenseInGrace: "refused_ended", codeLicenseNotStarted: "refused_ended",
	codeProductMismatch: "refused_product", codeDeviceBlocked: "refused_blocked",
	codeOfflineNotAllowed: "refused_offline", codeHeldOffline: "refused_held",
	codeSeatLimit: "refused_seats", codeTransferLimit: "refused_transfers",
}

// showRefusal says on the page why a request was refused.
func (p *activatePage) showRefusal(ref *refusal) {
	p.Title, p.Text, p.Tone = "title_refused", cmp.Or(carriedRefusals[ref.code], "refused"), toneBad
	for _, f := range ref.fields {
		p.Wrong = append(p.Wrong, strings.TrimPrefix(f.Pointer, "#/"))
	}
	p.Wrong = slices.Compact(p.Wrong)
}

// activateRefused shows a refusal of the page as a whole. It is a refusalForm.
func activateRefused(r *http.Request, ref *refusal, requestID string) *reply {
	p := newActivatePage(r, "")
	p.refuse(ref, requestID)
	return activateTemplate.renderRefusal(ref.code.status, p)
}

func planModule(s *server) module {
	return module{routes: []route{
		{pattern: "GET /plans", scope: scopeLicenses, question: true,
			endpoint: owned(s, readOnlyPage("pln"), s.listPlans)},
		{pattern: "GET /plans/{id}", scope: scopeLicenses, refuses: "plan_not_found",
			endpoint: owned(s, readNoMembers, s.getPlan)},
		{pattern: "POST /plans", scope: scopeIssuing, creates: true, refuses: "not_an_issuer plan_limit_reached",
			endpoint: owned(s, readNewPlan, s.createPlan)},
		{pattern: "PATCH /plans/{id}", scope: scopeIssuing, refuses: "not_an_issuer plan_not_found plan_retired",
			endpoint: owned(s, readPlanChange, s.updatePlan)},
		{pattern: "POST /plans/{id}/retire", scope: scopeIssuing, noBody: true,
			refuses: "not_an_issuer plan_not_found", endpoint: owned(s, readNoMembers, s.retirePlan)},
		{pattern: "POST /plans/{id}/apply", scope: scopeIssuing, refuses: "not_an_issuer plan_not_found plan_changed",
			endpoint: owned(s, readPlanApplication, s.applyPlan)},
	}}
}

// List plans.
//
// They come newest first, retired ones included. A request has two seconds, waiting included.
func (s *server) listPlans(ctx context.Context, _ *call, of owner, page pageQuery) (*list[*plan], error) {
	return showRows(s.store.within(ctx).plans(of, page.before, page.limit))
}

// Show a plan.
//
// Another account's is not found.
func (s *server) getPlan(_ context.Context, c *call, of owner, _ noMembers) (*plan, error) {
	return s.store.plan(of, c.id())
}

// A newPlan is the request for a plan.
type newPlan struct {
	account string // whose licences are made from it; "": the caller's own
	set     change
}

func readNewPlan(in *input) *newPlan {
	// The account whose licences are made from it; the caller's own if it is left out.
	account := in.text("account_id", optional, 64, isID("acct"))
	return &newPlan{account, in.change(new(plan).members(), true)}
}

// Make a plan.
//
// A plan is a template of licences. A licence that is made with its id gets the terms that it has then.
func (s *server) createPlan(ctx context.Context, c *call, of owner, r *newPlan) (*plan, error) {
	account, err := issuedTo(c, of, r.account)
	if err != nil {
		return nil, err
	}
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*plan, error) {
		return createPlan(t, account, r.set, actorToken(c))
	})
}

func readPlanChange(in *input) change { return in.change(new(plan).members(), false, "account_id") }

// Change a plan.
//
// Its name and terms can be changed. Licences that were made from it keep theirs until it is applied.
func (s *server) updatePlan(ctx context.Context, c *call, of owner, set change) (*plan, error) {
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*plan, error) {
		return changePlan(t, of, c.id(), set, actorToken(c))
	})
}

// Retire a plan.
//
// No more licences are made from it. Those that there are go on. Retiring it again changes nothing.
func (s *server) retirePlan(ctx context.Context, c *call, of owner, _ noMembers) (*plan, error) {
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*plan, error) {
		return retirePlan(t, of, c.id(), actorToken(c))
	})
}

// A planApplication is what to apply of a plan, and to which of its licences.
type planApplication struct {
	asked planApplied
	next  string // the id of the licence before; "": from the first on
}

func readPlanApplication(in *input) (r *planApplication) {
	r = new(planApplication)
	r.asked.DryRun = in.dryRun()
	// The `revision` of the plan that is meant; required unless it is a dry run, which answers with it. If the plan has
	// another one by now, nothing more is changed.
	if n := in.number("revision", 1, maxCount); n != nil {
		r.asked.Revision = *n
	} else if !r.asked.DryRun && !in.has("revision") {
		in.wrong("revision", "required", "This member is required: a dry run answers with it.")
	}
	r.next = in.text("next", optional, 64, isID("lic")) // `next` of the answer before; left out, it begins.
	return r
}

// Apply a plan.
//
// Gives its terms to licences that were made from it, up to 5,000 a call and for about 10 seconds, each with an event
// `license.updated`: `max_devices`, `max_transfers`, `grace_days`, `lease_hours`, `offline_days` and `entitlements`,
// never dates, duration or trial. Licences that hold more seats than the plan allows are refused and keep all their
// terms, and so do those whose rows can't be read; revoked ones are left alone. Begin with a dry run, and name its
// `revision`. Call again with `next` until it is `null`.
func (s *server) applyPlan(ctx context.Context, c *call, of owner, r *planApplication) (planApplied, error) {
	return applyPlan(ctx, s.store, of, c.id(), r.asked, r.next, actorToken(c),
		func(from *queries) error { return checkIssuer(from, c, of) })
}
