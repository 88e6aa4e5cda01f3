package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// The token and revocation endpoints (RFC 6749, section 3.2; RFC 7009; contract, section 13).

const (
	// Requests a minute of an application that has authenticated by a secret. One that no operator vouches for
	// acts for a single account, so it needs fewer. Each that gets a token leaves a row for more than an hour.
	appRate           = 6000
	unverifiedAppRate = 600

	grantRate     = 60 // requests a minute under one grant, for applications without a secret
	unprovedShare = 10 // times -anonymous-rate: requests a minute and address whose sender nothing proves
)

// An oauthAPI serves the endpoints at which applications get and give back tokens.
type oauthAPI struct {
	*server
	proofs *lookupGuard // the failed proofs of applications
}

// oauthModule makes the routes of the token and revocation endpoints, and the root paths of the metadata. There is
// metadata of the current base address only: a client must refuse metadata whose issuer is not the one that it asked
// for (RFC 8414, section 3.3), and codes and tokens name the current one, so an answer for an earlier one would be of
// no use to anybody.
func oauthModule(s *server) module {
	a := &oauthAPI{s, newLookupGuard(s.failedLookupRate, s.monotonic())}
	routes := []route{ // authenticate and limitUse limit them
		{pattern: "POST /oauth/token", free: true, origin: originApp, form: "oauth",
			endpoint: admitted(s, readTokenRequest, a.issueTokens)},
		{pattern: "POST /oauth/revoke", free: true, origin: originApp, form: "oauth",
			answers:  answerForm{empty: 200},
			endpoint: admitted(s, readRevokeRequest, a.revokeToken)},
	}
	return module{routes: routes, refusals: map[string]refusalForm{"oauth": refuseOAuth}, roots: []rootPath{
		{path: serverMetadataPath, ofBase: true, open: true, serve: s.getServerMetadata,
			answers:  answerForm{cached: true},
			endpoint: servedBy[serverMetadata](s.getServerMetadata)},
		{path: resourceMetadataPath, ofBase: true, open: true, serve: s.getResourceMetadata,
			answers:  answerForm{cached: true},
			endpoint: servedBy[resourceMetadata](s.getResourceMetadata)},
	}}
}

// refuseOAuth makes the answer to a refusal (RFC 6749, section 5.2). It is a refusalForm. A refusal that is not among
// oauthErrors gets one of the names of section 4.1.2.1.
func refuseOAuth(_ *http.Request, ref *refusal, _ string) *reply {
	status, name, text := ref.code.status, ref.code.name, ref.text()
	if !slices.Contains(oauthErrors, ref.code) {
		switch {
		case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
			name = "temporarily_unavailable"
		case status >= http.StatusInternalServerError:
			name = "server_error"
			text = "An error occurred in the service. Give the X-Request-Id when you report it."
		default:
			name = codeOAuthRequest.name
		}
		switch status {
		case http.StatusUnsupportedMediaType:
			text = "The body must be an uncompressed form in UTF-8: application/x-www-form-urlencoded."
		case http.StatusUnprocessableEntity:
			status = http.StatusBadRequest
		}
	}
	body := encodeJSON(map[string]string{"error": name, "error_description": plainDescription(text)})
	return &reply{status: status, body: body,
		headers: []header{{"Content-Type", "application/json"}, {"Pragma", "no-cache"}}}
}

// plainDescription returns a text with only the characters that an error_description may have (RFC 6749,
// section 5.2).
func plainDescription(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '"' || r == '\\' || r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// A clientProof is how a request says which application sends it.
type clientProof struct {
	id, secret string
	basic      bool  // by Authorization: Basic (RFC 6749, section 2.3.1), else in the body
	refused    error // the refusal of the proof
}

// readProof reads the proof of a request. Errors: errClient, if there is none or it is of another kind;
// errClientBasic, if Basic is malformed; errClientBoth; a refusal of parameters in the URL, since logs and proxies
// keep it.
func readProof(c *call, f oauthForm) (*clientProof, error) {
	id, authorization := f["client_id"], c.request.Header.Values("Authorization")
	for name := range f {
		if slices.ContainsFunc(c.in.query[name], func(v string) bool { return v != "" }) {
			return nil, &refusal{code: codeOAuthRequest, detail: "Parameters belong into the body, not into the URL."}
		}
	}
	switch {
	case len(authorization) > 1:
		return nil, errClientBoth
	case len(authorization) == 0 && id == "":
		return nil, errClient
	case len(authorization) == 0:
		return &clientProof{id: id, secret: f["client_secret"], refused: errClient}, nil
	}
	scheme, credentials, _ := strings.Cut(authorization[0], " ")
	if !strings.EqualFold(scheme, "Basic") {
		return nil, errClient
	}
	plain, err := base64.StdEncoding.DecodeString(strings.Trim(credentials, " "))
	name, password, ok := strings.Cut(string(plain), ":")
	if err != nil || !ok || name == "" {
		return nil, errClientBasic
	}
	p := &clientProof{basic: true, refused: errClientBasic}
	var errs [2]error
	p.id, errs[0] = url.QueryUnescape(name)
	p.secret, errs[1] = url.QueryUnescape(password)
	switch {
	case errors.Join(errs[:]...) != nil:
		return nil, errClientBasic
	case f["client_secret"] != "" || id != "" && id != p.id:
		return nil, errClientBoth
	}
	return p, nil
}

// authenticate returns the application that sends a request, which has proved that by its secret unless it is public:
// then it must not send one. Every failure gets the same answer. Failures are limited by address as those of licence
// keys are; the right secret is accepted even then, since nobody can guess one.
func (a *oauthAPI) authenticate(c *call, f oauthForm) (*app, error) {
	proof, err := readProof(c, f)
	if err != nil {
		return nil, cmp.Or(a.limitUnproved(c), err)
	}
	if validID("app", proof.id) || a.documents.takes(proof.id) {
		p, err := a.cachedApp(proof.id)
		if except(err, errApp) != nil {
			return nil, err
		}
		c.app = p // so that a script of its own origins can read why it is refused
		switch {
		case p == nil, p.clientID() != proof.id:
		case !p.public() && proof.secret != "" && p.acceptsSecret(proof.secret, c.now):
			return p, a.limitApp(p)
		case p.public() && proof.secret == "" && !proof.basic:
			return p, nil
		case p.public() && proof.secret == "": // some libraries try this to find out which way is right
			return nil, cmp.Or(a.limitUnproved(c), proof.refused)
		}
	}
	if err := a.countFailure(c, proof); err != nil {
		return nil, err
	}
	return nil, cmp.Or(a.limitUnproved(c), proof.refused)
}

// countFailure counts a proof that failed. Errors: rate_limited, where too many different ones have failed
// from the address, or one too often.
func (a *oauthAPI) countFailure(c *call, proof *clientProof) error {
	address := a.address(c.request)
	hash := sha256.Sum256([]byte(proof.id + "\x00" + proof.secret))
	repeated, wait := a.proofs.fail(address, hash, a.monotonic())
	switch {
	case wait > 0:
		return errRate(limitReached{failedLimit, a.failedLookupRate, 0, wait},
			"Too many proofs of applications from this address have failed.", wait)
	case repeated:
		return a.limitAddress("repeated proof", address, repeatedLookupRate)
	}
	return nil
}

// limitUnproved counts a request that has not proved which application sends it. Errors: rate_limited, if too many
// such requests come from its address.
func (a *oauthAPI) limitUnproved(c *call) error {
	return a.limitAddress("oauth", a.address(c.request), unprovedShare*a.anonymousRate)
}

// limitApp takes a token from the bucket of an application that has authenticated: without that, anybody could
// drain it.
func (a *oauthAPI) limitApp(p *app) error {
	rate := appRate
	if p.VerifiedAt.IsZero() {
		rate = unverifiedAppRate
	}
	v := a.addressBuckets.take("app "+p.ID, rate, a.monotonic())
	return errOver(v, limitNamed("application", rate), "Too many requests of this application.")
}

// limitUse counts a request of an application that has no secret. by is what proves that the request is from the
// application, see tokenVerdict; "": nothing does. Everybody who uses such an application holds a code or token of it,
// so each grant has a bucket of its own: otherwise one of them could drain it for all others.
func (a *oauthAPI) limitUse(c *call, p *app, by string) error {
	switch {
	case !p.public():
		return nil // limitApp has
	case by == "":
		return a.limitUnproved(c)
	}
	v := a.addressBuckets.take("grant "+p.ID+" "+by, grantRate, a.monotonic())
	return errOver(v, limitNamed("grant", grantRate), "Too many requests under this grant.")
}

// readTokenRequest reads a request for tokens, which oauthForm.check judges.
func readTokenRequest(in *input) oauthForm {
	return oauthForm{
		// What the tokens are issued for. By `client_credentials` an application that is registered for it acts for its
		// own owner's account.
		"grant_type": in.fieldOf(reading{name: "grant_type", need: required,
			check: oneOf(grantTypeCode, grantTypeRefresh, grantTypeOwn)}),
		// The id of the application; not needed with `Authorization: Basic`.
		"client_id": in.field("client_id"),
		// The secret of an application on the web, unless it is in `Authorization: Basic`.
		"client_secret": in.field("client_secret"),
		"code":          in.field("code"), // With `authorization_code`: the code.
		// With `authorization_code`: the one with which the code was asked for, to the letter.
		"redirect_uri": in.field("redirect_uri"),
		// With `authorization_code`: what the S256 `code_challenge` was made from (RFC 7636).
		"code_verifier": in.fieldOf(reading{name: "code_verifier",
			check: &textCheck{pattern: "^[A-Za-z0-9._~-]+$", least: 43, most: 128}}),
		"refresh_token": in.field("refresh_token"), // With `refresh_token`: the refresh token.
		// With `refresh_token` and `client_credentials`: what the access token may do, separated by spaces; without it,
		// all that was agreed to and that the application is registered for. Scopes that the service does not know are
		// left out. The refresh token keeps all.
		"scope":    in.field("scope"),
		"resource": in.field("resource"), // If given, the base address of this service (RFC 8707).
	}
}

// Get tokens for an application.
//
// Issues an access token for an hour (RFC 6749), with `authorization_code` and `refresh_token` beside a refresh token.
// **Proof:** an application on the web sends its secret, by `Authorization: Basic` with both halves form-encoded, or as
// `client_secret` in the body, never both; others send only `client_id`, which is the address of its document if nobody
// has registered it (`client_id_metadata_document_supported`). A code works for 60 seconds, once; a second use ends all
// that was issued for it, while a request with a wrong `redirect_uri` or `code_verifier` uses nothing up. Refresh
// tokens last 30 days from their last use, at most a year. One of an application on the web stays the same. Others are
// replaced at each use: for 30 seconds, and until the successor has been used, the old one yields the same successor
// again, so that a lost answer can be asked for; any later use of it ends everything that was issued under its grant.
// An empty parameter counts as absent, unknown ones are ignored, none may be in the URL. **Limits:** 600 requests a
// minute and address that do not prove which application sends them, and as many of one application without a secret;
// 6000 a minute of an application that does prove itself, and 600 of one that no operator vouches for; no account is
// charged.
func (a *oauthAPI) issueTokens(ctx context.Context, c *call, f oauthForm) (*tokenAnswer, error) {
	// While signing is held it refuses before it looks at codes and refresh tokens, so that these stay as they are. The
	// application proves itself. If nobody has registered it, its document is looked at again once its code is known to
	// be right. Then one transaction judges the request, counts it against the limit of what proves it, and issues
	// tokens or ends a grant. Should that transaction be repeated, it counts twice.
	c.response.Header().Set("Pragma", "no-cache") // caches of HTTP/1.0 don't keep it either (RFC 6749, section 5.1)
	if a.signingHeld() {
		return nil, errClock
	}
	p, err := a.authenticate(c, f)
	if err != nil {
		return nil, err
	}
	if wrong := f.check(a.issuer()); wrong != nil {
		return nil, cmp.Or(a.limitUse(c, p, ""), wrong)
	}
	// What proves nothing does not reach the writer, however often it is sent.
	v := judgeTokenRequest(a.store.queries, p.ID, f, newStamp(c.now))
	switch {
	case v.refused != nil && v.by == "":
		return nil, cmp.Or(a.limitUse(c, p, ""), v.refused)
	case v.refused == nil && v.code != nil && p.Kind == appDocument:
		if err := a.checkDocument(ctx, p, v.code); err != nil {
			return nil, cmp.Or(a.limitUse(c, p, v.by), err)
		}
	}
	return updated(ctx, a.store, func(t *tx) (*tokenAnswer, error) {
		v := judgeTokenRequest(t.queries, p.ID, f, t.now)
		if err := a.limitUse(c, p, v.by); err != nil {
			return nil, err
		}
		return issueTokens(t, a.keys.Load(), v, f)
	})
}

// lookUpDocument is lookUp for the owner of an account.
func (s *server) lookUpDocument(ctx context.Context, address, accountID string) (*keptDocument, error) {
	return s.documents.lookUp(ctx, address, func() error {
		rate := documentsOfCaller
		v := s.addressBuckets.take("documents of "+accountID, rate, s.monotonic())
		if v.ok { // else a caller could use up a host's for all others
			rate = documentsOfHost
			v = s.addressBuckets.take("documents at "+hostOf(address), rate, s.monotonic())
		}
		return errOver(v, limitNamed("documents", rate), "Too many documents of applications were fetched.")
	})
}

// checkDocument looks again at the document of an application that exchanges a code which is right. Nothing is used up
// by a refusal. Errors: errDocumentAway, errCodeApp, rate_limited.
func (s *server) checkDocument(ctx context.Context, p *app, code *grantCode) error {
	k, err := s.lookUpDocument(ctx, p.clientID(), code.AccountID)
	switch {
	case err != nil:
		return err
	case k.fault == documentAway:
		return errDocumentAway
	case k.app == nil, !k.app.sendsTo(code.RedirectURI):
		return errCodeApp
	}
	return nil
}

// readRevokeRequest reads a request to end a token.
func readRevokeRequest(in *input) oauthForm {
	return oauthForm{
		// A refresh token or an access token.
		"token": in.fieldOf(reading{name: "token", need: required}),
		// Makes no difference: a token shows of which kind it is.
		"token_type_hint": in.field("token_type_hint"),
		// The id of the application; not needed with `Authorization: Basic`.
		"client_id": in.field("client_id"),
		// The secret of an application on the web, unless it is in `Authorization: Basic`.
		"client_secret": in.field("client_secret"),
	}
}

// Give a token back.
//
// Ends a token of the application (RFC 7009): with a refresh token, also one that was replaced, the grant and all that
// was issued under it; with an access token that one alone. A token that is unknown or another application's gets the
// same answer, and nothing changes. The application proves itself as it does for tokens, and the limits are the same.
func (a *oauthAPI) revokeToken(ctx context.Context, c *call, f oauthForm) (*reply, error) {
	p, err := a.authenticate(c, f)
	if err != nil {
		return nil, err
	}
	if f["token"] == "" {
		return nil, cmp.Or(a.limitUse(c, p, ""), errParameter("token", "present"))
	}
	grantID, jti, err := findRevoked(a.store.queries, a.keys.Load(), p, f["token"])
	err = cmp.Or(a.limitUse(c, p, cmp.Or(grantID, jti)), err)
	ended := &reply{status: http.StatusOK}
	if err != nil || grantID == "" && jti == "" {
		return ended, err
	}
	return ended, a.store.update(ctx, func(t *tx) error {
		if jti != "" {
			t.revokeAppToken(p.ID, jti)
			return nil
		}
		return endGrant(t, anyAccount, grantID, endedByApp, appActor(p.ID))
	})
}

// The metadata for programs about the authorization server and about the interface that its tokens are for
// (contract, section 13).

// serverMetadataPath stands before the path of the base address, which is the issuer (RFC 8414, section 3.1).
const serverMetadataPath = "/.well-known/oauth-authorization-server"

// The serverMetadata are where applications get tokens, and how (RFC 8414, section 2, and RFC 9207, section 3).
type serverMetadata struct {
	Issuer        string   `json:"issuer" is:"uri"`                 // The base address, which is `iss` of tokens.
	Authorization string   `json:"authorization_endpoint" is:"uri"` // Where browsers are sent.
	Token         string   `json:"token_endpoint" is:"uri"`         // Where applications get tokens.
	Revocation    string   `json:"revocation_endpoint" is:"uri"`    // Where they give them back (RFC 7009).
	Keys          string   `json:"jwks_uri" is:"uri"`               // The public keys.
	Scopes        []string `json:"scopes_supported"`                // All scopes that an application can have.
	ResponseTypes []string `json:"response_types_supported"`        // Only `code`.
	ResponseModes []string `json:"response_modes_supported"`        // Only `query`.
	GrantTypes    []string `json:"grant_types_supported"`           // How tokens are got.

	// Of PKCE, which every application needs.
	ChallengeMethods []string `json:"code_challenge_methods_supported"`

	// How applications prove themselves; `none` is for those that can keep no secret.
	TokenMethods []string `json:"token_endpoint_auth_methods_supported"`

	// With which signatures are made.
	TokenAlgorithms []string `json:"token_endpoint_auth_signing_alg_values_supported"`

	// As at the token endpoint.
	RevocationMethods []string `json:"revocation_endpoint_auth_methods_supported"`

	// As at the token endpoint.
	RevokingAlgorithms []string `json:"revocation_endpoint_auth_signing_alg_values_supported"`

	// Answers to browsers carry `iss` (RFC 9207).
	AnswersCarryIssuer bool `json:"authorization_response_iss_parameter_supported"`

	// What the tokens are for: the base address (RFC 9728, section 4).
	ProtectedResources []string `json:"protected_resources"`

	// The chapter for who builds an application.
	ServiceDocumentation string `json:"service_documentation" is:"uri"`

	// The `https` address of a Client ID Metadata Document is taken as `client_id`
	// (draft-ietf-oauth-client-id-metadata-document). Absent: none is.
	ClientDocuments bool `json:"client_id_metadata_document_supported,omitempty"`
}

// Read the metadata of the authorization server.
//
// Where applications get tokens, and how (RFC 8414). The end of the path is that of the current base address; it is not
// found after that of an earlier one.
func (s *server) getServerMetadata(w *response, _ *http.Request) {
	rt := s.routing.Load()
	base := rt.bases[0].URL
	methods := []string{"client_secret_basic", "client_secret_post", "none"}
	algorithms := []string{"EdDSA"}
	s.writeMetadata(w, serverMetadata{
		Issuer: base, Authorization: base + "/oauth/authorize", Token: base + "/oauth/token",
		Revocation: base + "/oauth/revoke", Keys: rt.root + jwksPath, Scopes: appScopes,
		ResponseTypes: []string{"code"}, ResponseModes: []string{"query"},
		GrantTypes:       []string{"authorization_code", "refresh_token", "client_credentials"},
		ChallengeMethods: []string{"S256"}, TokenMethods: methods, TokenAlgorithms: algorithms,
		RevocationMethods: methods, RevokingAlgorithms: algorithms, AnswersCarryIssuer: true,
		ProtectedResources: []string{base}, ServiceDocumentation: rt.root + "/docs#applications",
		ClientDocuments: s.clientDocuments,
	})
}

// The resourceMetadata are what the tokens are for (RFC 9728, section 2). Answers are not signed: there is no
// `jwks_uri`.
type resourceMetadata struct {
	Resource string   `json:"resource" is:"uri"`     // The base address: `aud` of the tokens.
	Servers  []string `json:"authorization_servers"` // Who issues the tokens.
	Scopes   []string `json:"scopes_supported"`      // All scopes that an application can have.

	// Tokens are sent in the header `Authorization` only.
	BearerMethods []string `json:"bearer_methods_supported"`

	Name          string `json:"resource_name"`                   // Its name, for people.
	Documentation string `json:"resource_documentation" is:"uri"` // These documents.
}

// Read the metadata of this interface.
//
// Who issues the tokens that this interface takes (RFC 9728). Every 401 names it. The end of the path is that of the
// current base address.
func (s *server) getResourceMetadata(w *response, _ *http.Request) {
	rt := s.routing.Load()
	base := rt.bases[0].URL
	s.writeMetadata(w, resourceMetadata{Resource: base, Servers: []string{base}, Scopes: appScopes,
		BearerMethods: []string{"header"}, Name: "widgetd", Documentation: rt.root + "/docs"})
}

// writeMetadata sends metadata as JSON that may be kept for five minutes, as the keys may.
func (s *server) writeMetadata(w *response, metadata any) {
	w.Header().Set("Cache-Control", "public, max-age=300")
	s.write(w, reply{status: http.StatusOK, body: encodeJSON(metadata)})
}

// appModule makes the routes of applications.
func appModule(s *server) module {
	const app = "/apps/{id}"
	return module{sweeps: oauthSweeps(s.keepTokens.before), routes: []route{
		{pattern: "GET /apps", scope: scopeApps, question: true, endpoint: owned(s, readOnlyPage("app"), s.listApps)},
		{pattern: "POST /apps", scope: scopeApps, creates: true, refuses: "app_limit_reached",
			endpoint: owned(s, readNewApp, s.createApp)},
		{pattern: "GET " + app, scope: scopeApps, refuses: "app_not_found",
			endpoint: owned(s, readNoMembers, s.getApp)},
		{pattern: "PATCH " + app, scope: scopeApps, refuses: "app_not_found",
			endpoint: owned(s, readAppChange, s.updateApp)},
		{pattern: "POST " + app + "/rotate-secret", scope: scopeApps, noBody: true, creates: true,
			refuses: "app_not_found app_without_secret", endpoint: owned(s, readSecretRotation, s.rotateAppSecret)},
		{pattern: "DELETE " + app, scope: scopeApps, answers: answerForm{empty: 204}, refuses: "app_not_found",
			endpoint: owned(s, readDryRun, s.removeApp)},
	}}
}

// List applications.
//
// Lists the account's applications, newest first. A request has two seconds, waiting included.
func (s *server) listApps(ctx context.Context, _ *call, of owner, page pageQuery) (*list[*app], error) {
	return showRows(s.store.within(ctx).apps(of, page.before, page.limit))
}

// Show an application.
//
// Another account's is not found, and none that was removed.
func (s *server) getApp(_ context.Context, c *call, of owner, _ noMembers) (*app, error) {
	return s.store.app(of, c.id())
}

// An appWithSecret is an application, with its client secret.
type appWithSecret struct {
	*app

	// The client secret, which is shown this once, or null: an application of this kind has none.
	ClientSecret *string `json:"client_secret" is:"^[A-Z2-7]{52}$"`
}

// mayReplay returns a refusal unless a caller may get an earlier answer with an application again.
func mayReplay(by *caller) func(*app) error {
	return func(p *app) error { return checkOwnScope(by, p.OwnScope) }
}

func readNewApp(in *input) (wanted app) {
	in.change(new(app).members(), true).apply(wanted.members())
	if wanted.OwnScope == nil && in.given("own_scope") { // it is empty, so it is wrong as a scope, too
		wanted.OwnScope = new("")
	}
	wanted.normalise(in.wrong)
	return wanted
}

// Register an application.
//
// Registers an application that acts for accounts whose owners agree to it (OAuth 2.0). Its `id` is the `client_id`.
// Until an operator vouches for it (`verified_at`), only the account that owns it can agree. With `own_scope`, an
// application of the kind `web` also gets tokens for the account that owns it, by client credentials: the token that
// registers it must have each of these scopes. An account has at most 20 applications.
func (s *server) createApp(ctx context.Context, c *call, of owner, wanted app) (*appWithSecret, error) {
	o := c.narrowToOne(of) // an application belongs to one account: the caller's, if none is named
	c.stillTrue = replaysOf(o, mayReplay(c.caller))
	return create(ctx, s, c, func(t *tx) (*appWithSecret, error) {
		p := wanted
		p.AccountID = o.account
		secret, err := createApp(t, &p, c.caller)
		return &appWithSecret{&p, nilIfEmpty(secret)}, err
	})
}

func readAppChange(in *input) change { return in.change(new(app).members(), false) }

// Change an application.
//
// What operators have vouched for was the application as it was: after a change of anything but `own_scope` it is not
// verified any more, unless an operator makes the change. What accounts have agreed to stays; but a scope that is
// taken away is lost at once to the tokens that the application holds. Its `kind` can't be changed. A change without
// effect writes nothing.
func (s *server) updateApp(ctx context.Context, c *call, of owner, set change) (*app, error) {
	return updated(ctx, s.store, func(t *tx) (*app, error) {
		return patchApp(t, of, c.id(), set, c.caller)
	})
}

// A secretRotation is how a client secret is replaced.
type secretRotation struct{ immediate bool }

func readSecretRotation(in *input) (r *secretRotation) {
	r = new(secretRotation)
	r.immediate, _ = in.boolTerm("now") // The secret before ends at once.
	return r
}

// Give an application another secret.
//
// Only one of the kind `web` has a secret. The one before is taken too for seven days, or with `now` not any more; one
// from before that ends. The token needs each scope of `own_scope`.
func (s *server) rotateAppSecret(
	ctx context.Context, c *call, of owner, r *secretRotation,
) (*appWithSecret, error) {
	c.stillTrue = replaysOf(of, mayReplay(c.caller))
	return create(ctx, s, c, func(t *tx) (*appWithSecret, error) {
		p, secret, err := rotateAppSecret(t, of, c.id(), r.immediate, c.caller)
		return &appWithSecret{p, &secret}, err
	})
}

// Remove an application.
//
// It is removed for good: from then on none of its tokens, codes and secrets works, its webhooks get nothing, and every
// grant of it ends.
func (s *server) removeApp(ctx context.Context, c *call, of owner, _ noMembers) (*app, error) {
	return enact(ctx, s, c, func(t *tx) (*app, error) {
		p, err := t.app(of, c.id())
		if err != nil {
			return nil, err
		}
		grants, webhooks, err := t.countOfApp(p.ID)
		if err != nil {
			return nil, err
		}
		p.dryEnd = dryEndOf("grants", grants)
		p.Ends["webhooks"] = int64(webhooks)
		return p, removeApp(t, of, p.ID, actorToken(c))
	})
}

// grantModule makes the routes of grants.
func grantModule(s *server) module {
	return module{routes: []route{
		{pattern: "GET /grants", scope: scopeApps, question: true, endpoint: owned(s, readGrantPage, s.listGrants)},
		{pattern: "GET /grants/{id}", scope: scopeApps, refuses: "grant_not_found",
			endpoint: owned(s, readNoMembers, s.getGrant)},
		{pattern: "DELETE /grants/{id}", scope: scopeApps, answers: answerForm{empty: 204}, refuses: "grant_not_found",
			endpoint: owned(s, readDryRun, s.endGrant)},
	}}
}

// A grantPage says which page of the grants a caller asks for.
type grantPage struct {
	ended bool // those that have ended, too
	pageQuery
}

func readGrantPage(in *input) (r *grantPage) {
	r = new(grantPage)
	// `true`: those that have ended, too.
	r.ended = in.parameter("ended", oneOf("true", "false")) == "true"
	r.pageQuery = in.page("grt")
	return r
}

// List grants.
//
// Lists what the account's owner has agreed to: by each grant an application acts for the account. Newest first. A
// request has two seconds, waiting included.
func (s *server) listGrants(ctx context.Context, _ *call, of owner, r *grantPage) (*list[*grant], error) {
	return showRows(s.store.within(ctx).grants(of, r.ended, r.before, r.limit))
}

// Show a grant.
//
// It is shown whether it has ended or not. Another account's is not found.
func (s *server) getGrant(_ context.Context, c *call, of owner, _ noMembers) (*grant, error) {
	return s.store.grant(of, c.id())
}

// End a grant.
//
// Within a second none of its tokens works, and the webhooks that the application has made under it are removed.
// Ending it again changes nothing.
func (s *server) endGrant(ctx context.Context, c *call, of owner, _ noMembers) (*grant, error) {
	why := grantEnd(endedByOwner)
	if c.caller.admin() {
		why = endedByOperator
	}
	return enact(ctx, s, c, func(t *tx) (*grant, error) {
		g, err := t.grant(of, c.id())
		if err != nil {
			return nil, err
		}
		webhooks, err := t.webhooksOfGrant(g.ID)
		if err != nil {
			return nil, err
		}
		g.dryEnd = dryEndOf("webhooks", len(webhooks))
		return g, endGrant(t, of, g.ID, why, actorToken(c))
	})
}

// signinModule makes the route for sign-in codes.
func signinModule(s *server) module {
	return module{routes: []route{{pattern: "POST /accounts/{id}/signin", scope: scopeConsent, creates: true,
		noBody: true, refuses: "account_not_found", endpoint: admitted(s, readSigninRequest, s.makeSigninCode)}}}
}

// A signinRequest is what a code is for.
type signinRequest struct{ kind sessionKind }

func readSigninRequest(in *input) *signinRequest {
	// What it is for. `consent`, the default: the pages below `/oauth/`. `books`: those below `/books`.
	kind := in.text("kind", optional, 20, oneOf(asTexts(sessionKinds)...))
	return &signinRequest{sessionKind(cmp.Or(kind, string(sessionConsent)))}
}

// Make a code to sign in with.
//
// Makes a code with which one person signs in for the account on the pages below `/oauth/`, to agree that applications
// act for it or to end that, or on those below `/books`, to map and post its books. The code is in this answer and in
// no other. It is typed in, in upper or lower case, with or without dashes, works once, and expires in 15 minutes; an
// account has 10 of a kind at most, of which the oldest goes. Show it only to who may act for the whole account. The
// token must have been issued for all accounts, also for its own.
func (s *server) makeSigninCode(ctx context.Context, c *call, r *signinRequest) (*signinCode, error) {
	// Whoever has a code can agree to anything for the account, so a token of one account does not get it, not even
	// for that account.
	if !c.caller.all {
		return nil, errScope(scopeConsent, "This needs a token that may act on all accounts.")
	}
	return create(ctx, s, c, func(t *tx) (*signinCode, error) {
		return makeSigninCode(t, s.keys.Load(), r.kind, c.id(), actorToken(c))
	})
}

// The options of these commands.
var (
	optAppKind = option{name: "kind", value: "KIND", def: appWeb, member: "kind",
		help:  "where it runs: on a server, which can keep a secret, in a browser, or on a device",
		words: func() []string { return asTexts(registeredKinds) }}
	optRedirectURI = option{name: "redirect-uri", value: "URI,…", member: "redirect_uris", reads: asURIs,
		help: "where people are sent back to, separated by commas (one within an address stays, unless a scheme " +
			"follows it); for installed ones also http://127.0.0.1/back or com.example.app:/back"}
	optAppOrigin = option{name: "origin", value: "ORIGIN,…", member: "origins", reads: asList,
		help: "of the sites on which it runs, for the kind browser"}
	optOwnScope = option{name: "own-scope", value: "SCOPE,…", member: "own_scope", reads: asWords,
		help:  "what it may do for the account that owns it, by client credentials; by default nothing",
		words: func() []string { return appScopes }}
	optUndo = option{name: "undo", help: "no longer: only the account that owns it can agree to it then"}
)

// The options of serve about documents.
var (
	optClientDocuments = option{name: "client-documents",
		help: "take the https address of a Client ID Metadata Document as client_id, so that owners of accounts can " +
			"agree to applications that nobody has registered", hasVariable: true}
	optClientDocumentList = option{name: "client-document-list", value: "URL,…",
		help:        "with -client-documents, the only addresses of documents that are taken; by default any",
		hasVariable: true}
)

// The commands on applications that are names for routes.
var appRouteCommands = []routeCommand{
	{name: "app add", route: "POST /apps", args: "NAME",
		help: "register an application that every account can agree to; its secret is shown once",
		options: []option{optAppKind, optRedirectURI, optAppOrigin,
			optScope.says("what it may ask for, separated by commas").takes(optOwnScope.words), optOwnScope},
		says: sayNewApp},
	{name: "app list", route: "GET /apps", rows: &listCommand{short: true, prefix: "app", columns: "ID NAME KIND " +
		"VERIFIED=verified_at SCOPE HOME-PAGE=home_page ACCOUNT=account_id"}},
	{name: "app rotate-secret", route: "POST /apps/{id}/rotate-secret",
		help: "give an application another secret, shown once; the one before is taken too for a week",
		says: sayAppSecret},
	{name: "app remove", route: "DELETE /apps/{id}", options: []option{optUnasked},
		help: "remove an application; nothing of it works from then on, and every grant of it ends",
		text: "application ${id} (${name}) removed",
		asks: asking("removes the application ${id} (${name}) for good, with ${ends.grants grant} and " +
			"${ends.webhooks webhook}")},
}

// The other command on applications.
var appCommands = []command{
	{"app verify", "APP", "vouch for an application of a tenant, so that every account can agree to it",
		[]option{optUndo}, appVerify},
}

// commaBefore matches the commas of a list of addresses that separate two, not those within one.
var commaBefore = regexp.MustCompile(`,+( |$|[A-Za-z][A-Za-z0-9+.-]*:/)`)

// asURIs sends a list of addresses, which are separated by commas or spaces.
func asURIs(_ *env, text string) (any, error) {
	return strings.Fields(commaBefore.ReplaceAllString(text, " $1")), nil
}

// sayNewApp says the id of a new application, and its secret if it has one.
func sayNewApp(made *jsonValue) string {
	if rawMember(made, "client_secret") == "" {
		return "client id:     ${id}\nclient secret: none: with PKCE it needs no secret"
	}
	return "client id:     ${id}\nclient secret: ${client_secret}  (shown once)"
}

// sayAppSecret says the new secret of an application.
func sayAppSecret(p *jsonValue) string {
	text := "client secret: ${client_secret}  (shown once)\n"
	if rawMember(p, "previous_secret_until") == "" {
		return text + "the one before is not taken any more"
	}
	return text + "the one before is taken too until ${previous_secret_until}"
}

func appVerify(e *env) error {
	p, err := changed(e, func(t *tx) (*app, error) {
		p, err := verifyApp(t, anyAccount, e.args[0], e.on("undo"), e.actor())
		return p, e.explain(err)
	})
	if err != nil {
		return err
	}
	who := "every account can agree to it"
	if p.VerifiedAt.IsZero() {
		who = "only the account that owns it can agree to it"
	}
	return e.print(p, fmt.Sprintf("%s (%s): %s", p.ID, printable(p.Name), who))
}

// The commands on grants, which are names for routes.
var grantRouteCommands = []routeCommand{
	{name: "grant list", route: "GET /grants", help: "list which applications may act for which accounts, newest first",
		rows: &listCommand{prefix: "grt", columns: "ID APPLICATION=app.name OWNER=app.owner SCOPE USED=used_at " +
			"EXPIRES=expires_at ENDED=ended_at WHY=ended_by ACCOUNT=account_id"}},
	{name: "grant revoke", route: "DELETE /grants/{id}", text: "grant ${id} revoked",
		help: "end a grant, and with it its tokens and the webhooks that were made under it"},
}

// noteSignin says for whom a code is, until when by that account's clock, and where it is entered.
func noteSignin(e *env, made *jsonValue) {
	text, err := queried(e, func(q *queries) (string, error) {
		a, err := q.account(e.args[0])
		settings, failed := q.settings(a.ID)
		base, missing := q.baseURLs()
		zone, unknown := loadZone(settings.Zone)
		if err = cmp.Or(err, failed, missing, unknown); err != nil || len(base) == 0 {
			return "", err
		}
		until, _ := parseStamp(rawMember(made, "expires_at"))
		page := "/oauth/signin"
		if e.on("books") {
			page = booksPath
		}
		return fmt.Sprintf("for %s, once, until %s (%s), at %s", printable(a.Name), until.In(zone).Format("15:04"),
			settings.Zone, base[0].URL+page), nil
	})
	if err == nil && !e.on("json") {
		e.note("%s\n", text)
	}
}
