package main

import "context"

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
