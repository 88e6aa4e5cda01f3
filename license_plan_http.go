package main

import (
	"context"
	"slices"
)

func planWing(s *server) wing {
	routes := []route{
		{pattern: "GET /plans", scope: scopeLicenses, question: true, run: endpoint(s.listPlans)},
		{pattern: "GET /plans/{id}", scope: scopeLicenses, run: endpoint(s.showPlan)},
		{pattern: "POST /plans", creates: true, run: endpoint(s.createPlan)},
		{pattern: "PATCH /plans/{id}", run: endpoint(s.patchPlan)},
		{pattern: "POST /plans/{id}/retire", noBody: true, run: endpoint(s.retirePlan)},
		{pattern: "POST /plans/{id}/apply", run: endpoint(s.applyPlan)},
	}
	for i := range routes {
		routes[i].token = tokenRequired
		if routes[i].scope == "" {
			routes[i].scope, routes[i].careful = scopeIssuing, true
		}
	}
	return wing{routes: routes}
}

// plansRequest is the query of GET /plans.
type plansRequest struct {
	accountScope
	page pageQuery
}

func (q *plansRequest) read(in *input) {
	q.accountScope.read(in)
	q.page = in.page("pln")
}

// listPlans answers GET /plans.
func (s *server) listPlans(ctx context.Context, _ *call, q *plansRequest) (*list[*plan], error) {
	return showRows(s.store.within(ctx).plans(q.owner, q.page.before, q.page.limit))
}

// showPlan answers GET /plans/{id}.
func (s *server) showPlan(_ context.Context, _ *call, q *rowRequest) (*plan, error) {
	return s.store.plan(q.owner, q.id)
}

// planRequest is the body of POST /plans and of PATCH /plans/{id}.
type planRequest struct {
	licenseScope
	id, named, name string
	terms           termsChange
}

func (q *planRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
	q.readMembers(in)
}

// readMembers reads the body: of a new plan if q has no id.
func (q *planRequest) readMembers(in *input) {
	if q.id != "" {
		in.fixed("This can't be changed; make another plan.", "account_id", "product", "kind", "expiry_basis")
		if in.has("name") {
			q.name = in.text("name", required, maxNameLength, nil)
		}
		q.terms = readPlanTerms(in)
		return
	}
	q.named = in.text("account_id", optional, 64, isID("acct"))
	q.name = in.text("name", required, maxNameLength, nil)
	if !in.has("product") || in.isNull("product") {
		in.wrong("product", "required", "This member is required.")
	}
	terms := readPlanTerms(in)
	q.terms = slices.Concat(readFixedTerms(in), terms)
}

// createPlan answers POST /plans.
func (s *server) createPlan(ctx context.Context, c *call, q *planRequest) (*plan, error) {
	account, err := q.account(c, q.named)
	if err != nil {
		return nil, err
	}
	return changing(ctx, s, c, &q.licenseScope, func(t *tx, _ owner) (*plan, error) {
		return createPlan(t, &plan{AccountID: account, Name: q.name}, q.terms, actorToken(c))
	})
}

// patchPlan answers PATCH /plans/{id}.
func (s *server) patchPlan(ctx context.Context, c *call, q *planRequest) (*plan, error) {
	return changing(ctx, s, c, &q.licenseScope, func(t *tx, o owner) (*plan, error) {
		return changePlan(t, o, q.id, q.name, q.terms, actorToken(c))
	})
}

// retireRequest is a request that names a plan to retire.
type retireRequest struct {
	licenseScope
	id string
}

func (q *retireRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
}

// retirePlan answers POST /plans/{id}/retire.
func (s *server) retirePlan(ctx context.Context, c *call, q *retireRequest) (*plan, error) {
	return changing(ctx, s, c, &q.licenseScope, func(t *tx, o owner) (*plan, error) {
		return retirePlan(t, o, q.id, actorToken(c))
	})
}

// applyRequest is the body of POST /plans/{id}/apply.
type applyRequest struct {
	licenseScope
	id, after string
	asked     planApplication
}

func (q *applyRequest) read(in *input) {
	q.licenseScope.read(in)
	q.id = in.pathValue("id")
	q.asked.DryRun, _ = in.boolTerm("dry_run")
	if n := in.number("revision", 1, maxCount); n != nil {
		q.asked.Revision = *n
	} else if !q.asked.DryRun && !in.has("revision") {
		in.wrong("revision", "required", "This member is required: a dry run answers with it.")
	}
	q.after = in.text("next", optional, 64, isID("lic"))
}

// applyPlan answers POST /plans/{id}/apply.
func (s *server) applyPlan(ctx context.Context, c *call, q *applyRequest) (planApplication, error) {
	return applyPlan(ctx, s.store, q.owner, q.id, q.asked, q.after, actorToken(c),
		func(from *queries) error { return q.mayChange(from, c) })
}
