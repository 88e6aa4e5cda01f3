package main

import "context"

// appWing makes the routes of applications.
func appWing(s *server) wing {
	routes := []route{
		{pattern: "GET /apps", question: true, run: endpointFrom(listRequest{prefix: "app"}, s.listApps)},
		{pattern: "POST /apps", creates: true, run: endpoint(s.createApp)},
		{pattern: "GET /apps/{id}", run: endpoint(s.showApp)},
		{pattern: "PATCH /apps/{id}", run: endpoint(s.patchApp)},
		{pattern: "POST /apps/{id}/rotate-secret", noBody: true, creates: true, run: endpoint(s.rotateAppSecret)},
		{pattern: "DELETE /apps/{id}", run: endpoint(s.removeApp)},
	}
	for i := range routes {
		routes[i].token, routes[i].scope = tokenRequired, scopeApps
	}
	sweeper := &appSweeper{store: s.store, now: s.now, steady: s.steady, kept: s.keepTokens.before}
	return wing{routes: routes, chores: []chore{{fault: faultAppSweep, timeDriven: true, run: sweeper.sweep}}}
}

// An appWithSecret is the answer that shows a new client secret, which no later answer does.
type appWithSecret struct {
	*app
	ClientSecret *string `json:"client_secret"` // nil: a public application has none
}

// appAuthorOf returns the caller of a call as the author of its changes.
func appAuthorOf(c *call) appAuthor {
	return appAuthor{actor: actorToken(c), operator: c.caller.admin(), has: c.caller.has}
}

// permitsReplay returns a refusal unless the author may get an earlier answer with an application again.
func (by appAuthor) permitsReplay(p *app) error { return by.permits(p.OwnScope) }

// createAppRequest is the body of POST /apps.
type createAppRequest struct {
	accountScope
	app app
}

func (q *createAppRequest) read(in *input) {
	q.accountScope.read(in)
	q.app = app{
		Name:         in.text("name", required, maxAppName, nil),
		HomePage:     in.text("home_page", required, maxAppURL, nil),
		Kind:         in.text("kind", required, maxNameLength, oneOf(appKinds...)),
		RedirectURIs: readRedirectURIs(in),
		Scope:        in.text("scope", required, maxAppScope, nil),
	}
	q.app.Origins = append(codeList{}, in.texts("origins", maxAppOrigins, maxAppURL)...)
	q.app.OwnScope, _ = readOwnScope(in)
	q.app.normalise(in.wrong)
}

// readRedirectURIs reads the required list of redirect URIs.
func readRedirectURIs(in *input) codeList {
	if in.array("redirect_uris", maxRedirectURIs) == nil {
		return nil
	}
	return in.texts("redirect_uris", maxRedirectURIs, maxAppURL)
}

// readOwnScope reads the optional member own_scope, which null removes. An empty text is refused: whoever sends it
// may mean either that or every scope.
func readOwnScope(in *input) (own *string, ok bool) {
	if !in.has("own_scope") || in.isNull("own_scope") {
		return nil, in.has("own_scope")
	}
	return new(in.text("own_scope", required, maxAppScope, notEmpty)), true
}

// createApp answers POST /apps.
func (s *server) createApp(ctx context.Context, c *call, q *createAppRequest) (*appWithSecret, error) {
	o := q.oneOwner(c) // an application belongs to one account: the caller's, if none is named
	by := appAuthorOf(c)
	c.stillTrue = replaysOf(o, by.permitsReplay)
	return create(ctx, s, c, func(t *tx) (*appWithSecret, error) {
		p := q.app
		p.AccountID = o.account
		secret, err := createApp(t, &p, by)
		return &appWithSecret{&p, nilIfEmpty(secret)}, err
	})
}

// patchAppRequest is the body of PATCH /apps/{id}.
type patchAppRequest struct {
	rowRequest
	change appChange
}

func (q *patchAppRequest) read(in *input) {
	q.rowRequest.read(in)
	if in.has("kind") {
		in.wrong("kind", "immutable", "This can't be changed: register another application.")
	}
	set := func(f func(*app)) { q.change = append(q.change, f) }
	if in.has("name") {
		name := in.text("name", required, maxAppName, nil)
		set(func(p *app) { p.Name = name })
	}
	if in.has("home_page") {
		page := in.text("home_page", required, maxAppURL, nil)
		set(func(p *app) { p.HomePage = page })
	}
	if in.has("redirect_uris") {
		uris := readRedirectURIs(in)
		set(func(p *app) { p.RedirectURIs = uris })
	}
	if in.has("origins") {
		origins := codeList(in.texts("origins", maxAppOrigins, maxAppURL))
		set(func(p *app) { p.Origins = origins })
	}
	if in.has("scope") {
		scope := in.text("scope", required, maxAppScope, nil)
		set(func(p *app) { p.Scope = scope })
	}
	if own, ok := readOwnScope(in); ok {
		set(func(p *app) { p.OwnScope = own })
	}
}

// patchApp answers PATCH /apps/{id}.
func (s *server) patchApp(ctx context.Context, c *call, q *patchAppRequest) (*app, error) {
	return updated(ctx, s.store, func(t *tx) (*app, error) {
		return patchApp(t, q.owner, q.id, q.change, appAuthorOf(c))
	})
}

// showApp answers GET /apps/{id}.
func (s *server) showApp(_ context.Context, c *call, q *rowRequest) (*app, error) {
	return s.store.usedApp(q.owner, q.id)
}

// removeApp answers DELETE /apps/{id}.
func (s *server) removeApp(ctx context.Context, c *call, q *rowRequest) (noContent, error) {
	return noContent{}, s.store.update(ctx, func(t *tx) error { return removeApp(t, q.owner, q.id, actorToken(c)) })
}

// rotateAppRequest is the body of POST /apps/{id}/rotate-secret.
type rotateAppRequest struct {
	rowRequest
	now bool // the previous secret ends at once
}

func (q *rotateAppRequest) read(in *input) {
	q.rowRequest.read(in)
	q.now, _ = in.boolTerm("now")
}

// rotateAppSecret answers POST /apps/{id}/rotate-secret.
func (s *server) rotateAppSecret(ctx context.Context, c *call, q *rotateAppRequest) (*appWithSecret, error) {
	by := appAuthorOf(c)
	c.stillTrue = replaysOf(q.owner, by.permitsReplay)
	return create(ctx, s, c, func(t *tx) (*appWithSecret, error) {
		p, secret, err := rotateAppSecret(t, q.owner, q.id, q.now, by)
		return &appWithSecret{p, &secret}, err
	})
}

// listApps answers GET /apps.
func (s *server) listApps(ctx context.Context, c *call, q *listRequest) (*list[*app], error) {
	return showRows(s.store.within(ctx).apps(q.owner, q.page.before, q.page.limit))
}

// grantWing makes the routes of grants.
func grantWing(s *server) wing {
	return wing{routes: []route{
		{pattern: "GET /grants", token: tokenRequired, scope: scopeApps, question: true, run: endpoint(s.listGrants)},
		{pattern: "GET /grants/{id}", token: tokenRequired, scope: scopeApps, run: endpoint(s.showGrant)},
		{pattern: "DELETE /grants/{id}", token: tokenRequired, scope: scopeApps, run: endpoint(s.revokeGrant)},
	}}
}

// showGrant answers GET /grants/{id}.
func (s *server) showGrant(_ context.Context, c *call, q *rowRequest) (*grant, error) {
	return s.store.grant(q.owner, q.id)
}

// revokeGrant answers DELETE /grants/{id}.
func (s *server) revokeGrant(ctx context.Context, c *call, q *rowRequest) (noContent, error) {
	why := endedByOwner
	if c.caller.admin() {
		why = endedByOperator
	}
	return noContent{}, s.store.update(ctx, func(t *tx) error { return endGrant(t, q.owner, q.id, why, actorToken(c)) })
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
func (s *server) listGrants(ctx context.Context, c *call, q *grantsRequest) (*list[*grant], error) {
	return showRows(s.store.within(ctx).grants(q.owner, q.ended, q.page.before, q.page.limit))
}

// signinWing makes the route for sign-in codes.
func signinWing(s *server) wing {
	return wing{routes: []route{{pattern: "POST /accounts/{id}/signin", token: tokenRequired, scope: scopeConsent,
		creates: true, noBody: true, run: endpoint(s.giveSigninCode)}}}
}

// giveSigninCode answers POST /accounts/{id}/signin. Whoever has the code can agree to anything for the
// account, so a token of one account does not get it, not even for that account.
func (s *server) giveSigninCode(ctx context.Context, c *call, q *idRequest) (*newSignin, error) {
	if !c.caller.all {
		return nil, errScope(scopeConsent, "This needs a token that may act on all accounts.")
	}
	return create(ctx, s, c, func(t *tx) (*newSignin, error) {
		return makeSigninCode(t, s.keys.Load(), q.id, actorToken(c))
	})
}
