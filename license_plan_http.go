package main

import (
	"context"
)

func planWing(s *server) wing {
	routes := []route{
		{pattern: "GET /plans", scope: scopeLicenses, question: true, run: s.listPlans},
		{pattern: "GET /plans/{id}", scope: scopeLicenses, run: s.showPlan},
		{pattern: "POST /plans", creates: true, run: s.createPlan},
		{pattern: "PATCH /plans/{id}", run: s.patchPlan},
		{pattern: "POST /plans/{id}/retire", noBody: true, run: s.retirePlan},
		{pattern: "POST /plans/{id}/apply", run: s.applyPlan},
	}
	for i := range routes {
		routes[i].token = tokenRequired
		if routes[i].scope == "" {
			routes[i].scope, routes[i].careful = scopeIssuing, true
		}
	}
	return wing{routes: routes}
}

func (s *server) listPlans(ctx context.Context, c *call) (any, error) {
	page := c.in.page("pln")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return showRows(s.store.within(ctx).plans(of, page.before, page.limit))
}

func (s *server) showPlan(ctx context.Context, c *call) (any, error) {
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.store.plan(of, c.id())
}

func (s *server) createPlan(ctx context.Context, c *call) (any, error) {
	named := c.in.text("account_id", optional, 64, isID("acct"))
	set := c.in.change(new(plan).members(), true)
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	account, err := issuedTo(c, of, named)
	if err != nil {
		return nil, err
	}
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*plan, error) {
		return createPlan(t, account, set, actorToken(c))
	})
}

func (s *server) patchPlan(ctx context.Context, c *call) (any, error) {
	set := c.in.change(new(plan).members(), false, "account_id")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*plan, error) {
		return changePlan(t, of, c.id(), set, actorToken(c))
	})
}

func (s *server) retirePlan(ctx context.Context, c *call) (any, error) {
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return createAsIssuer(ctx, s, c, of, func(t *tx) (*plan, error) {
		return retirePlan(t, of, c.id(), actorToken(c))
	})
}

func (s *server) applyPlan(ctx context.Context, c *call) (any, error) {
	var asked planApplication
	asked.DryRun, _ = c.in.boolTerm("dry_run")
	if n := c.in.number("revision", 1, maxCount); n != nil {
		asked.Revision = *n
	} else if !asked.DryRun && !c.in.has("revision") {
		c.in.wrong("revision", "required", "This member is required: a dry run answers with it.")
	}
	after := c.in.text("next", optional, 64, isID("lic"))
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return applyPlan(ctx, s.store, of, c.id(), asked, after, actorToken(c),
		func(from *queries) error { return checkIssuer(from, c, of) })
}
