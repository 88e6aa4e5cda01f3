package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The pages on which the owner of an account signs in, agrees that an application acts for the account, and ends
// that (contract, section 13). No script runs on them. What is asked for stays in the query of their URLs, so that
// nothing has to be stored for people who have not signed in.

// oauthTemplate makes every one of these pages from an oauthPage.
var oauthTemplate = pageTemplateOf("oauth.html", "")

// An oauthPages serves the pages.
type oauthPages struct {
	*server
}

// oauthPageWing makes the routes of the pages.
func oauthPageWing(s *server) wing {
	a := &oauthPages{s}
	routes := []route{
		{pattern: "GET /oauth/authorize", run: a.askConsent},
		{pattern: "POST /oauth/authorize", run: a.takeConsent},
		{pattern: "GET /oauth/signin", run: a.askCode},
		{pattern: "POST /oauth/signin", run: a.takeCode},
		{pattern: "POST /oauth/signout", run: a.signOut},
		{pattern: "GET /oauth/connected", run: a.showConnected},
		{pattern: "POST /oauth/connected", run: a.endConnected},
	}
	for i := range routes {
		routes[i].free, routes[i].address, routes[i].page = true, "oauth page", "signin"
		routes[i].origin = originOwn
		if routes[i].pattern == "POST /oauth/signin" {
			routes[i].address = "" // takeCode limits it
		}
	}
	return wing{routes: routes, refusals: map[string]refusalForm{"signin": oauthRefused}}
}

// An oauthPageRequest is the query of a page's URL, and the fields of its form.
type oauthPageRequest struct {
	query url.Values
	form  map[string]string
}

func readOAuthPage(in *input) *oauthPageRequest {
	r := &oauthPageRequest{in.query, map[string]string{}}
	if in.body != nil {
		for _, field := range in.body.members {
			r.form[field.name] = field.value.text
		}
	}
	return r
}

// link returns the URL of another of the pages with the request's query, relative to every page.
func (r *oauthPageRequest) link(page string) string {
	if len(r.query) == 0 {
		return "./" + page
	}
	return "./" + page + "?" + r.query.Encode()
}

// issuer returns the current base address.
func (s *server) issuer() string { return s.routing.Load().bases[0].URL }

// cookie returns the cookie that keeps the secret of a session for a time. Over https its prefix has browsers
// refuse one that another host or an insecure page has set (RFC 6265bis, section 4.1.3.2).
func (s *server) cookie(secret string, life time.Duration) *http.Cookie {
	c := &http.Cookie{Name: "widgetd-session", Value: secret, Path: "/", MaxAge: int(life / time.Second),
		HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if strings.HasPrefix(s.issuer(), "https://") {
		c.Name, c.Secure = "__Host-"+c.Name, true
	}
	return c
}

// secretOf returns the secret of a session that a request has, or "". If there are two cookies, one of them may be
// somebody else's, so neither is accepted.
func (s *server) secretOf(r *http.Request) string {
	if all := r.CookiesNamed(s.cookie("", 0).Name); len(all) == 1 {
		return all[0].Value
	}
	return ""
}

// signedIn returns the session of the person who sends a request; nil: nobody has signed in.
func (s *server) signedIn(c *call) (*session, error) {
	secret := s.secretOf(c.request)
	if secret == "" {
		return nil, nil
	}
	return orNil(s.store.session(secret, newStamp(c.now)))
}

// askCode answers GET /oauth/signin.
func (a *oauthPages) askCode(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	return a.signinPage(c, r, "", http.StatusOK)
}

// signinPage makes the page that asks for a code, and says which application led there. notice, the key of a text,
// says what was wrong with the last code.
func (a *oauthPages) signinPage(c *call, r *oauthPageRequest, notice string, status int) (*reply, error) {
	p := newOAuthPage(c.request, "title_signin")
	p.SignIn, p.Notice = r.link("signin"), notice
	if q := (&consent{}); len(r.query) > 0 && r.query.Get(booksSignin) == "" {
		fault, err := a.findApp(q, r.query)
		if err != nil {
			return nil, err
		}
		if fault == "" {
			p.Asks = printable(q.app.Name)
		}
	}
	return oauthTemplate.render(status, p)
}

const (
	signinTries = 20 // wrong codes a minute and address

	// booksSignin is the parameter that names the product to go on to after signing in to connect books.
	booksSignin = "books"
)

// takeCode answers POST /oauth/signin: it signs in and leads on to where the person was going. Only wrong codes
// are limited by address, so nobody can lock out others behind the same one; nobody can guess 60 random bits.
func (a *oauthPages) takeCode(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	known, err := knowsSigninCode(a.store.queries, a.keys.Load(), r.form["code"], newStamp(c.now))
	if err == nil && !known {
		err = a.limitAddress("signin", a.address(c.request), signinTries)
	}
	if err != nil {
		return nil, err
	}
	secret, err := updated(ctx, a.store, func(t *tx) (string, error) {
		return signIn(t, a.keys.Load(), r.form["code"], a.secretOf(c.request))
	})
	if errors.Is(err, errSigninCode) {
		return a.signinPage(c, r, "wrong_code", http.StatusForbidden)
	}
	if err != nil {
		return nil, err
	}
	next := "./connected"
	if product := r.query.Get(booksSignin); slices.Contains(bookProducts, product) {
		next = "../books/connect/" + product + "?" + url.Values{"state": {r.query.Get("state")}}.Encode()
	} else if len(r.query) > 0 {
		next = r.link("authorize")
	}
	return seeOther(next).withCookie(a.cookie(secret, sessionLife)), nil
}

// signOut answers POST /oauth/signout, and asks for another code.
func (a *oauthPages) signOut(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	if secret := a.secretOf(c.request); secret != "" {
		err := a.store.update(ctx, func(t *tx) error {
			t.removeSession(secret)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return seeOther(r.link("signin")).withCookie(a.cookie("", -time.Second)), nil
}

// A consent is what an application asks of somebody who has signed in (RFC 6749, section 4.1.1).
type consent struct {
	app         *app
	redirectURI string // registered by the application
	state       string // "": none
	scope       string // in the order of appScopes
	challenge   string // of PKCE
	session     *session
}

// An authorizeError is an error that a redirect reports to the application (RFC 6749, section 4.1.2.1).
type authorizeError struct{ code, description string }

var errDenied = &authorizeError{"access_denied", "The owner of the account has not agreed."}

// readConsent returns what a request asks for. If nobody is to be asked, it returns nil and what to answer
// instead. Nothing is redirected before the application and its redirect URI are known to be right and somebody
// has signed in, since that could be abused for links that seem to lead here (RFC 9700, section 4.11.2); nor for
// an application that may not act for the account, as nobody vouches for it.
func (a *oauthPages) readConsent(c *call, r *oauthPageRequest) (q *consent, instead any, err error) {
	q = &consent{}
	fault, err := a.findApp(q, r.query)
	if err != nil {
		return nil, nil, err
	}
	if fault != "" {
		p := newOAuthPage(c.request, "title_fault")
		p.Text, p.Fault, p.Tone = "text_fault", fault, toneBad
		instead, err = oauthTemplate.render(http.StatusBadRequest, p)
		return nil, instead, err
	}
	if q.session, err = a.signedIn(c); err != nil {
		return nil, nil, err
	}
	if q.session == nil {
		instead, err = a.signinPage(c, r, "", http.StatusOK)
		return nil, instead, err
	}
	if !q.app.mayActFor(q.session.AccountID) {
		p := newOAuthPage(c.request, "title_unverified")
		p.Text, p.Tone = "text_unverified", toneBad
		p.showSession(q.session, r)
		instead, err = oauthTemplate.render(http.StatusForbidden, p)
		return nil, instead, err
	}
	if wrong := q.read(r.query, a.issuer()); wrong != nil {
		return nil, q.refuse(a.issuer(), wrong), nil
	}
	return q, nil, nil
}

// findApp sets the application and the address that a request names. It returns the key of a text for the
// application's developer if one of them is wrong.
func (a *oauthPages) findApp(q *consent, query url.Values) (fault string, err error) {
	id, once := onlyValue(query, "client_id")
	switch {
	case !once:
		return "fault_client_repeated", nil
	case id == "":
		return "fault_client_missing", nil
	}
	if q.app, err = a.cachedApp(id); errors.Is(err, errApp) {
		return "fault_client_unknown", nil
	}
	if err != nil {
		return "", err
	}
	q.redirectURI, once = onlyValue(query, "redirect_uri")
	switch {
	case !once:
		return "fault_redirect_repeated", nil
	case q.redirectURI == "":
		return "fault_redirect_missing", nil
	case !q.app.sendsTo(q.redirectURI):
		return "fault_redirect_unknown", nil
	}
	return "", nil
}

// onlyValue returns a parameter, or "" if it is absent. It reports whether the query has it at most once.
func onlyValue(query url.Values, name string) (value string, once bool) {
	return query.Get(name), len(query[name]) <= 1
}

// read reads the rest of a request; issuer is the resource that tokens are for. It returns what is wrong.
// Parameters that are empty are absent, and those that are not known, such as prompt, are ignored.
func (q *consent) read(query url.Values, issuer string) *authorizeError {
	given := map[string]string{}
	for _, name := range []string{"state", "response_type", "response_mode", "scope", "code_challenge",
		"code_challenge_method", "resource"} {
		value, once := onlyValue(query, name)
		if !once {
			q.state = given["state"]
			return &authorizeError{"invalid_request", "The parameter " + name + " is given twice."}
		}
		given[name] = value
	}
	q.state, q.challenge = given["state"], given["code_challenge"]
	switch {
	case given["response_type"] == "":
		return &authorizeError{"invalid_request", "The response_type must be given: code."}
	case given["response_type"] != "code":
		return &authorizeError{"unsupported_response_type", "The response_type must be code."}
	case given["response_mode"] != "" && given["response_mode"] != "query":
		return &authorizeError{"invalid_request", "The only response_mode is query."}
	case given["code_challenge_method"] != "S256" || !isChallenge(q.challenge):
		return &authorizeError{"invalid_request",
			"PKCE is needed: a code_challenge of 43 characters, with the code_challenge_method S256."}
	case given["resource"] != "" && given["resource"] != issuer:
		return &authorizeError{"invalid_target", "The only resource is " + issuer + "."}
	}
	q.scope = scopesWithin(q.app.Scope, q.app.Scope)
	registered := strings.Fields(q.scope)
	if given["scope"] != "" {
		q.scope = scopesWithin(given["scope"], q.scope)
	}
	if q.scope == "" || hasForeign(strings.Fields(given["scope"]), registered) {
		return &authorizeError{"invalid_scope", "The application is not registered for this scope."}
	}
	return nil
}

// isChallenge reports whether a text is the base64url of a SHA-256 (RFC 7636, section 4.2).
func isChallenge(s string) bool {
	sum, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(sum) == sha256.Size && len(s) == base64.RawURLEncoding.EncodedLen(sha256.Size)
}

// sendBack returns the redirect that gives the application an answer. A query that the redirect URI has stays.
func (q *consent) sendBack(issuer string, answer url.Values) *reply {
	answer.Set("iss", issuer) // RFC 9207
	if q.state != "" {
		answer.Set("state", q.state)
	}
	separator := "?"
	if _, query, has := strings.Cut(q.redirectURI, "?"); has {
		if separator = "&"; query == "" || strings.HasSuffix(query, "&") {
			separator = ""
		}
	}
	return redirect(q.redirectURI+separator+answer.Encode(), "no-referrer")
}

// refuse returns the redirect that tells the application of an error.
func (q *consent) refuse(issuer string, e *authorizeError) *reply {
	return q.sendBack(issuer, url.Values{"error": {e.code}, "error_description": {e.description}})
}

// askConsent answers GET /oauth/authorize.
func (a *oauthPages) askConsent(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	q, instead, err := a.readConsent(c, r)
	if q == nil {
		return instead, err
	}
	return consentPage(c, r, q, "", http.StatusOK)
}

// scopeBox and a scope together name a checkbox of the form that asks for consent.
const scopeBox = "allow:"

// agreedScope returns the scopes that somebody has left ticked. It reports false for a scope that was not on
// the page.
func (q *consent) agreedScope(form map[string]string) (scope string, ok bool) {
	var ticked []string
	for name := range form {
		if scope, ok := strings.CutPrefix(name, scopeBox); ok {
			ticked = append(ticked, scope)
		}
	}
	return scopesWithin(strings.Join(ticked, " "), q.scope), !hasForeign(ticked, strings.Fields(q.scope))
}

// errConsentChanged means that the page that asked for consent is out of date.
var errConsentChanged = errors.New("something has changed since consent was asked for")

// takeConsent answers POST /oauth/authorize: it sends the person back to the application, with a code or
// without. If somebody else has signed in since the page was made, or the application has changed, nothing is
// agreed to and the page is shown again.
func (a *oauthPages) takeConsent(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	q, instead, err := a.readConsent(c, r)
	if q == nil {
		return instead, err
	}
	scope, known := q.agreedScope(r.form)
	same := known && r.form["account"] == q.session.AccountID && r.form["app"] == q.app.UpdatedAt.String()
	decision := r.form["decision"]
	switch {
	case decision == "deny", decision == "allow" && same && scope == "":
		return q.refuse(a.issuer(), errDenied), nil
	case !same:
		return consentPage(c, r, q, "changed", http.StatusConflict)
	case decision != "allow":
		return consentPage(c, r, q, "undecided", http.StatusConflict)
	}
	code, err := a.giveCode(ctx, q, scope)
	if errors.Is(err, errConsentChanged) {
		return consentPage(c, r, q, "changed", http.StatusConflict)
	}
	if err != nil {
		return nil, err
	}
	return q.sendBack(a.issuer(), url.Values{"code": {code}}), nil
}

// giveCode makes an authorization code for what somebody has agreed to. Errors: errConsentChanged.
func (a *oauthPages) giveCode(ctx context.Context, q *consent, scope string) (code string, err error) {
	code = randomText(32)
	return code, a.store.update(ctx, func(t *tx) error {
		p, err := t.usedApp(anyAccount, q.app.ID)
		if err == nil && (!p.UpdatedAt.Equal(q.app.UpdatedAt.Time) || !p.mayActFor(q.session.AccountID)) {
			err = errConsentChanged
		}
		if err == nil {
			err = t.openAccount(q.session.AccountID)
		}
		if errors.Is(err, errApp) || errors.Is(err, errAccount) {
			err = errConsentChanged
		}
		if err != nil {
			return err
		}
		t.addGrantCode(&grantCode{Hash: hashOf(code), AppID: p.ID, AccountID: q.session.AccountID,
			RedirectURI: q.redirectURI, Challenge: q.challenge, Scope: scope, AgreedBy: q.session.MadeBy,
			CreatedAt: t.now, ExpiresAt: t.now.after(grantCodeLife)})
		return nil
	})
}

const connectedOnPage = 50 // applications

// showConnected answers GET /oauth/connected with the applications that may act for the account.
func (a *oauthPages) showConnected(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	s, err := a.signedIn(c)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return a.signinPage(c, &oauthPageRequest{}, "", http.StatusOK)
	}
	after, _ := onlyValue(r.query, "after")
	if !validID("grt", after) {
		after = ""
	}
	apps, err := a.store.connectedApps(ownedBy(s.AccountID), after, connectedOnPage)
	if err != nil {
		return nil, err
	}
	of, err := a.store.settings(s.AccountID)
	if err != nil {
		return nil, err
	}
	p, zone := newOAuthPage(c.request, "title_connected"), shownZone(of.Zone)
	p.showSession(s, &oauthPageRequest{})
	p.Connected = &connectedList{}
	for _, grants := range apps.rows {
		of := grants[0].App
		shown := newConnectedApp(of.Name, of.Owner, of.HomePage)
		for _, g := range grants {
			shown.Grants = append(shown.Grants, connectedGrant{ID: g.ID,
				Scopes: strings.Fields(scopesWithin(g.Scope, g.Scope)),
				Since:  p.moment(g.CreatedAt, zone), Used: p.moment(g.UsedAt, zone)})
		}
		p.Connected.Apps = append(p.Connected.Apps, shown)
	}
	if apps.next != "" {
		p.Connected.More = "./connected?after=" + apps.next
	}
	return oauthTemplate.render(http.StatusOK, p)
}

// endConnected answers POST /oauth/connected: it ends one of the account's grants.
func (a *oauthPages) endConnected(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	s, err := a.signedIn(c)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return a.signinPage(c, &oauthPageRequest{}, "", http.StatusOK)
	}
	return seeOther("./connected"), a.store.update(ctx, func(t *tx) error {
		return endGrant(t, ownedBy(s.AccountID), r.form["grant"], endedByOwner, actorPerson(s.MadeBy))
	})
}

// An oauthPage is what the template shows; an empty field is left out.
type oauthPage struct {
	pageFrame
	Subject   string // that Title names
	Fault     string // key of what is wrong, for the application's developer
	Account   string // name of the account for which somebody has signed in
	SignOut   string // URL that the form to sign out posts to
	SignIn    string // URL that the form with a code posts to
	Asks      string // name of the application that asks to act for an account
	Consent   *consentForm
	Connected *connectedList
}

// A consentForm asks for consent.
type consentForm struct {
	Action    string // URL
	AccountID string
	App       connectedApp
	Scopes    []string
	Version   string // of the application
	Unticked  map[string]bool
	Verified  bool
	Place     string // key of the text that says where the browser goes
	Goes      string // host or scheme
}

// A connectedApp is an application and what it may do.
type connectedApp struct {
	Name, Owner, HomePage string
	Grants                []connectedGrant
}

// newConnectedApp makes the texts of an application safe to show.
func newConnectedApp(name, owner, homePage string) connectedApp {
	return connectedApp{Name: printable(name), Owner: printable(owner), HomePage: printable(homePage)}
}

// A connectedGrant is what somebody has agreed to.
type connectedGrant struct {
	ID          string
	Scopes      []string
	Since, Used string
}

// A connectedList is a page of applications.
type connectedList struct {
	Apps []connectedApp
	More string // URL of the next page
}

// newOAuthPage makes a page in the language that a request prefers.
func newOAuthPage(r *http.Request, title string) *oauthPage {
	lang := languageOf(r, pageLanguages[:ownerLanguages])
	return &oauthPage{pageFrame: pageFrame{pageLanguage: lang, texts: textsByLanguage[lang]().OAuth, Title: title}}
}

// showSession says on the page who has signed in, with a way out that leads back to what the request asks for.
func (p *oauthPage) showSession(s *session, r *oauthPageRequest) {
	p.Account, p.SignOut = printable(s.Account), r.link("signout")
}

// consentPage makes the page that asks for consent; notice is the key of a text, or "".
func consentPage(c *call, r *oauthPageRequest, q *consent, notice string, status int) (*reply, error) {
	p := newOAuthPage(c.request, "title_consent")
	p.Subject, p.Notice = printable(q.app.Name), notice
	p.showSession(q.session, r)
	f := &consentForm{Action: r.link("authorize"), AccountID: q.session.AccountID,
		Version: q.app.UpdatedAt.String(), Verified: !q.app.VerifiedAt.IsZero()}
	f.App, f.Scopes = newConnectedApp(q.app.Name, q.app.Owner, q.app.HomePage), strings.Fields(q.scope)
	if notice == "undecided" { // keep what the person has ticked
		f.Unticked = map[string]bool{}
		for _, scope := range f.Scopes {
			f.Unticked[scope] = r.form[scopeBox+scope] == ""
		}
	}
	f.Place, f.Goes = placeOf(q.redirectURI)
	p.Consent = f
	return oauthTemplate.render(status, p)
}

// placeOf says where an address that people are sent back to leads: the key of a text, and its host or scheme.
func placeOf(uri string) (key, name string) {
	u, err := url.Parse(uri)
	if err != nil {
		return "goes_scheme", uri
	}
	address, err := netip.ParseAddr(u.Hostname())
	switch {
	case u.Hostname() == "localhost", err == nil && address.IsLoopback():
		return "goes_device", ""
	case u.Scheme != "http" && u.Scheme != "https":
		return "goes_scheme", u.Scheme
	}
	return "goes_site", u.Host
}

// oauthRefused shows a refusal. It is a refusalForm.
func oauthRefused(r *http.Request, ref *refusal, requestID string) *reply {
	p := newOAuthPage(r, "")
	p.refuse(ref, requestID)
	return oauthTemplate.renderRefusal(ref.code.status, p)
}
