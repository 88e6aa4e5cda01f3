package main

import "context"

// grantWing makes the routes of grants.
func grantWing(s *server) wing {
	routes := []route{
		{pattern: "GET /grants", question: true, run: endpoint(s.listGrants)},
		{pattern: "GET /grants/{id}", run: endpoint(s.showGrant)},
		{pattern: "DELETE /grants/{id}", run: endpoint(s.revokeGrant)},
	}
	for i := range routes {
		routes[i].token, routes[i].scope = tokenRequired, scopeApps
	}
	return wing{routes: routes}
}

// A grantedApp is the application of a grant, as who has agreed to it sees it.
type grantedApp struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Owner    string `json:"owner"` // name of the account that owns it
	HomePage string `json:"home_page"`
}

// A grantView is a grant as callers see it.
type grantView struct {
	ID        string     `json:"id"`
	AccountID string     `json:"account_id"`
	App       grantedApp `json:"app"`
	Scope     string     `json:"scope"`
	CreatedAt stamp      `json:"created_at"`
	UsedAt    stamp      `json:"used_at"`
	ExpiresAt stamp      `json:"expires_at"`
	EndedAt   stamp      `json:"ended_at"`
	EndedBy   *string    `json:"ended_by"` // one of endedBy…
}

// viewGrant returns a grant as callers see it.
func viewGrant(g *grant) *grantView {
	return &grantView{g.ID, g.AccountID, grantedApp{g.AppID, g.App, g.AppOwner, g.HomePage}, g.Scope,
		g.CreatedAt, g.UsedAt, g.ExpiresAt, g.EndedAt, g.EndedBy}
}

// grantRequest is a request whose path names a grant.
type grantRequest struct {
	accountScope
	id string
}

func (q *grantRequest) read(in *input) {
	q.accountScope.read(in)
	q.id = in.pathValue("id")
}

// showGrant answers GET /grants/{id}.
func (s *server) showGrant(_ context.Context, c *call, q *grantRequest) (*grantView, error) {
	o, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	g, err := s.store.grant(o, q.id)
	if err != nil {
		return nil, err
	}
	return viewGrant(g), nil
}

// revokeGrant answers DELETE /grants/{id}.
func (s *server) revokeGrant(ctx context.Context, c *call, q *grantRequest) (noContent, error) {
	o, err := q.resolve(s, c)
	if err != nil {
		return noContent{}, err
	}
	why := endedByOwner
	if c.caller.admin() {
		why = endedByOperator
	}
	return noContent{}, s.store.update(ctx, func(t *tx) error { return endGrant(t, o, q.id, why, actorToken(c)) })
}

// grantsRequest is the query of GET /grants.
type grantsRequest struct {
	accountScope
	ended bool // those that have ended, too
	page  pageQuery
}

func (q *grantsRequest) read(in *input) {
	q.accountScope.read(in)
	q.ended = in.parameter("ended", oneOf("true", "false")) == "true"
	q.page = in.page("grt")
}

// listGrants answers GET /grants.
func (s *server) listGrants(ctx context.Context, c *call, q *grantsRequest) (*list[*grantView], error) {
	o, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	page, err := s.store.within(ctx).grants(o, q.ended, q.page.before, q.page.limit)
	if err != nil {
		return nil, err
	}
	return showPage(page, viewGrant), nil
}
