package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// The pages on which the owner of an account signs in, agrees that an application acts for the account, and ends
// that (contract, section 13). No script runs on them. What is asked for stays in the query of their URLs, so that
// nothing has to be stored for people who have not signed in.

// oauthTemplate makes every one of these pages from an oauthPage.
var oauthTemplate = pageTemplateOf("oauth.html", "")

// oauthPageModule makes the routes of the pages.
func oauthPageModule(s *server) module {
	return module{refusals: map[string]refusalForm{"signin": oauthRefused}, routes: []route{
		{pattern: "GET /oauth/authorize", page: "signin", free: true, origin: originOwn, address: "oauth page",
			run: s.askConsent},
		{pattern: "POST /oauth/authorize", page: "signin", free: true, origin: originOwn, address: "oauth page",
			run: s.takeConsent},
		{pattern: "GET /oauth/signin", page: "signin", free: true, origin: originOwn, address: "oauth page",
			run: s.askCode},
		{pattern: "POST /oauth/signin", page: "signin", free: true, origin: originOwn,
			run: s.takeCode}, // which limits it
		{pattern: "POST /oauth/signout", page: "signin", free: true, origin: originOwn, address: "oauth page",
			run: s.signOut},
		{pattern: "GET /oauth/connected", page: "signin", free: true, origin: originOwn, address: "oauth page",
			run: s.showConnected},
		{pattern: "POST /oauth/connected", page: "signin", free: true, origin: originOwn, address: "oauth page",
			run: s.showConnected},
	}}
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

// asks reports whether the query has more than the language of the page.
func (r *oauthPageRequest) asks() bool {
	return len(r.query) > 1 || len(r.query) == 1 && !r.query.Has(langParameter)
}

// own returns what of the request goes on to a page on which nothing is asked for: the language.
func (r *oauthPageRequest) own() *oauthPageRequest {
	own := &oauthPageRequest{query: url.Values{}}
	if lang := r.query.Get(langParameter); lang != "" {
		own.query.Set(langParameter, lang)
	}
	return own
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

// cookieNames are the names of the cookies with sessions, by their kinds.
var cookieNames = map[sessionKind]string{sessionConsent: "widgetd-session", sessionBooks: "widgetd-books"}

// cookie returns the cookie that keeps the secret of a session for a time. Over https its prefix has browsers
// refuse one that another host or an insecure page has set (RFC 6265bis, section 4.1.3.2).
func (s *server) cookie(kind sessionKind, secret string, life time.Duration) *http.Cookie {
	c := &http.Cookie{Name: cookieNames[kind], Value: secret, Path: "/", MaxAge: int(life / time.Second),
		HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if strings.HasPrefix(s.issuer(), "https://") {
		c.Name, c.Secure = "__Host-"+c.Name, true
	}
	return c
}

// secretOf returns the secret of a session of a kind that a request has, or "". If there are two cookies, one of them
// may be somebody else's, so neither is accepted.
func (s *server) secretOf(r *http.Request, kind sessionKind) string {
	if all := r.CookiesNamed(s.cookie(kind, "", 0).Name); len(all) == 1 {
		return all[0].Value
	}
	return ""
}

// signedIn returns the session of the person who sends a request to a page for consent; nil: nobody has signed in.
func (s *server) signedIn(q *queries, c *call) (*session, error) {
	return s.signedInFor(q, c, sessionConsent)
}

// signedInFor is signedIn for pages that a kind of sessions opens.
func (s *server) signedInFor(q *queries, c *call, kind sessionKind) (*session, error) {
	return orNil(q.session(kind, s.secretOf(c.request, kind), newStamp(c.now)))
}

func (s *server) askCode(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	return s.signinPage(c, r, "", http.StatusOK)
}

// signinPage makes the page that asks for a code for consent, and says which application led there. notice, the key of
// a text, says what was wrong with the last code.
func (s *server) signinPage(c *call, r *oauthPageRequest, notice string, status int) (*reply, error) {
	p := newOAuthPage(c.request, signinTitle)
	p.SignIn, p.Notice = r.link("signin"), notice
	p.Typed = printable(cutText(r.form["code"], maxCodeTyped))
	if err := s.showMain(c, p); err != nil {
		return nil, err
	}
	if r.asks() && r.query.Get(booksSignin) == "" {
		asked, fault, err := s.findApp(s.store.queries, r.query, nil)
		if err != nil {
			return nil, err
		}
		if fault == "" {
			p.Asks = asked.calledFirst()
		}
	}
	return oauthTemplate.render(status, p.pageBrand, p)
}

// showMain says on the page whose service it is: that of the main account.
func (s *server) showMain(c *call, p *oauthPage) error {
	id, err := s.store.mainAccount()
	if err != nil {
		return except(err, errNotFound)
	}
	a, err := s.store.account(id)
	if err != nil {
		return err
	}
	of, err := s.store.settings(id)
	p.Title, p.Subject, p.pageBrand = signinMainTitle, printable(a.Name), brandOf(c, of)
	return err
}

const (
	signinTries  = 20  // wrong codes a minute and address
	maxCodeTyped = 100 // characters that the page shows again of a wrong code

	// booksSignin is the parameter that names the product to go on to after signing in to connect books.
	booksSignin = "books"
)

// takeTyped signs in with a code of a kind that was typed, and returns the cookie of the session. Only wrong codes are
// limited by address, so nobody can lock out others behind the same one; nobody can guess 60 random bits. Errors:
// errSigninCode, rate_limited.
func (s *server) takeTyped(ctx context.Context, c *call, kind sessionKind, code string) (*http.Cookie, error) {
	secret := ""
	_, err := findSigninCode(s.store.queries, s.keys.Load(), kind, code, newStamp(c.now))
	if err == nil { // wrong ones do not reach the writer, however often they are sent
		secret, err = updated(ctx, s.store, func(t *tx) (string, error) {
			return signIn(t, s.keys.Load(), kind, code, s.secretOf(c.request, kind))
		})
	}
	if errors.Is(err, errSigninCode) {
		err = cmp.Or(s.limitAddress("signin", s.address(c.request), signinTries), err)
	}
	return s.cookie(kind, secret, sessionLife), err
}

// takeCode signs in and leads on to where the person was going.
func (s *server) takeCode(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	cookie, err := s.takeTyped(ctx, c, sessionConsent, r.form["code"])
	if errors.Is(err, errSigninCode) {
		return s.signinPage(c, r, "wrong_code", http.StatusForbidden)
	}
	if err != nil {
		return nil, err
	}
	next := r.own().link("connected")
	if product := r.query.Get(booksSignin); productOf(product) != nil {
		next = "../books/connect/" + product + "?" + url.Values{"state": {r.query.Get("state")}}.Encode()
	} else if r.asks() {
		next = r.link("authorize")
	}
	return seeOther(next).withCookie(cookie), nil
}

// signOut asks for another code.
func (s *server) signOut(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	return s.endSession(ctx, c, sessionConsent, r.link("signin"))
}

// endSession ends the session of a kind that a request has, and leads to a page.
func (s *server) endSession(ctx context.Context, c *call, kind sessionKind, to string) (*reply, error) {
	return seeOther(to).withCookie(s.cookie(kind, "", -time.Second)), s.store.update(ctx, func(t *tx) error {
		t.removeSession(s.secretOf(c.request, kind))
		return nil
	})
}

// A consent is what an application asks of somebody who has signed in (RFC 6749, section 4.1.1), and how that is
// answered.
type consent struct {
	title       string // of the page that answers, see consentTitle
	fault       string // with faultTitle: key of the text for the application's developer
	App         *app
	RedirectURI string // registered by the application
	Session     *session

	state     string // "": none
	Scope     string // in the order of appScopes
	challenge string // of PKCE

	answer url.Values // what a redirect tells the application: an error or a code; nil: nothing was decided yet
	notice string     // key of the text why nothing was agreed to; "": none is shown
}

// The titles of pages. Those before consentTitle answer a request for consent if nobody can be asked.
const (
	faultTitle      = "title_fault"
	signinTitle     = "title_signin"
	signinMainTitle = "title_signin_to" // with the name of the main account
	unverifiedTitle = "title_unverified"
	consentTitle    = "title_consent"
	connectedTitle  = "title_connected"
	endTitle        = "title_end" // with the application's name
)

// authorizeError returns an error as a redirect reports it to the application (RFC 6749, section 4.1.2.1).
func authorizeError(code, description string) url.Values {
	return url.Values{"error": {code}, "error_description": {description}}
}

// documentOf returns what a request for consent names as its application, if that is a document and somebody has signed
// in, else nil. Before, nothing is fetched. Errors: rate_limited.
func (s *server) documentOf(ctx context.Context, c *call, query url.Values) (*keptDocument, error) {
	address, once := onlyValue(query, "client_id")
	if !once || !s.documents.takes(address) {
		return nil, nil
	}
	who, err := s.signedIn(s.store.queries, c)
	if who == nil {
		return nil, err
	}
	return s.lookUpDocument(ctx, address, who.AccountID)
}

// readConsent returns what a request asks for. Nothing is redirected before the application and its redirect URI are
// known to be right and somebody has signed in, since that could be abused for links that seem to lead here (RFC 9700,
// section 4.11.2); nor for an application that may not act for the account, as nobody vouches for it. document is what
// documentOf returns.
func (s *server) readConsent(q *queries, c *call, query url.Values, document *keptDocument) (*consent, error) {
	asked, fault, err := s.findApp(q, query, document)
	if err != nil || fault != "" {
		return &consent{title: faultTitle, fault: fault}, err
	}
	who, err := s.signedIn(q, c)
	switch {
	case err != nil:
		return nil, err
	case who == nil, asked.RedirectURIs == nil: // its document was not fetched, as nobody had signed in
		return &consent{title: signinTitle}, nil
	case !asked.mayActFor(who.AccountID):
		return &consent{title: unverifiedTitle, Session: who}, nil
	}
	wanted := &consent{title: consentTitle, App: asked, RedirectURI: query.Get("redirect_uri"), Session: who}
	wanted.answer = wanted.read(query, s.issuer())
	return wanted, nil
}

// findApp returns the application that a request names, if the address that it names is the application's, else the key
// of a text for the application's developer. Without its document an application that nobody has registered has nothing
// but its host.
func (s *server) findApp(q *queries, query url.Values, document *keptDocument) (p *app, fault string, err error) {
	id, once := onlyValue(query, "client_id")
	switch {
	case !once:
		return nil, "fault_client_repeated", nil
	case id == "":
		return nil, "fault_client_missing", nil
	}
	switch {
	case document != nil && document.app == nil:
		return nil, document.fault, nil
	case document != nil:
		p = new(*document.app)
	case s.documents.takes(id):
		return &app{Kind: appDocument, Host: new(hostOf(id))}, "", nil
	default:
		p, err = q.workingApp(id)
		if errors.Is(err, errApp) || err == nil && p.Kind == appDocument { // whose address is not taken, or its id
			return nil, "fault_client_unknown", nil
		}
	}
	uri, once := onlyValue(query, "redirect_uri")
	switch {
	case err != nil:
	case !once:
		fault = "fault_redirect_repeated"
	case uri == "":
		fault = "fault_redirect_missing"
	case !p.sendsTo(uri):
		fault = "fault_redirect_unknown"
	}
	return p, fault, err
}

// onlyValue returns a parameter, or "" if it is absent. It reports whether the query has it at most once.
func onlyValue(query url.Values, name string) (value string, once bool) {
	return query.Get(name), len(query[name]) <= 1
}

// read reads the rest of a request; issuer is the resource that tokens are for. It returns what is wrong.
// Parameters that are empty are absent, and those that are not known, such as prompt, are ignored.
func (q *consent) read(query url.Values, issuer string) url.Values {
	given := map[string]string{}
	for _, name := range []string{"state", "response_type", "response_mode", "scope", "code_challenge",
		"code_challenge_method", "resource"} {
		value, once := onlyValue(query, name)
		if !once {
			q.state = given["state"]
			return authorizeError("invalid_request", "The parameter "+name+" is given twice.")
		}
		given[name] = value
	}
	q.state, q.challenge = given["state"], given["code_challenge"]
	switch {
	case given["response_type"] == "":
		return authorizeError("invalid_request", "The response_type must be given: code.")
	case given["response_type"] != "code":
		return authorizeError("unsupported_response_type", "The response_type must be code.")
	case given["response_mode"] != "" && given["response_mode"] != "query":
		return authorizeError("invalid_request", "The only response_mode is query.")
	case given["code_challenge_method"] != "S256" || !isChallenge(q.challenge):
		return authorizeError("invalid_request",
			"PKCE is needed: a code_challenge of 43 characters, with the code_challenge_method S256.")
	case given["resource"] != "" && given["resource"] != issuer:
		return authorizeError("invalid_target", "The only resource is "+issuer+".")
	}
	q.Scope = scopesWithin(q.App.Scope, q.App.Scope)
	registered := strings.Fields(q.Scope)
	if given["scope"] != "" {
		q.Scope = scopesWithin(given["scope"], q.Scope)
	}
	if q.App.unscoped && given["scope"] == "" {
		return authorizeError("invalid_scope", "The document has no scope, so the request must.")
	}
	if q.Scope == "" || hasForeign(knownScopes(given["scope"]), registered) {
		return authorizeError("invalid_scope", "The application is not registered for this scope.")
	}
	return nil
}

// isChallenge reports whether a text is the base64url of a SHA-256 (RFC 7636, section 4.2).
func isChallenge(s string) bool {
	sum, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(sum) == sha256.Size && len(s) == base64.RawURLEncoding.EncodedLen(sha256.Size)
}

// sendBack returns the redirect that gives the application its answer. A query that the redirect URI has stays.
func (q *consent) sendBack(issuer string) *reply {
	q.answer.Set("iss", issuer) // RFC 9207
	if q.state != "" {
		q.answer.Set("state", q.state)
	}
	separator := "?"
	if _, query, has := strings.Cut(q.RedirectURI, "?"); has {
		if separator = "&"; query == "" || strings.HasSuffix(query, "&") {
			separator = ""
		}
	}
	return redirect(q.RedirectURI+separator+q.answer.Encode(), "no-referrer")
}

// answerConsent makes the answer: a page, or the redirect that tells the application.
func (s *server) answerConsent(c *call, r *oauthPageRequest, q *consent) (*reply, error) {
	p := newOAuthPage(c.request, q.title)
	switch {
	case q.title == faultTitle:
		p.Text, p.Fault, p.Tone = "text_fault", q.fault, toneBad
		return oauthTemplate.render(http.StatusBadRequest, p.pageBrand, p)
	case q.title == signinTitle:
		return s.signinPage(c, r, "", http.StatusOK)
	case q.title == unverifiedTitle:
		p.Text, p.Tone = "text_unverified", toneBad
		if err := s.showSession(c, p, q.Session, r); err != nil {
			return nil, err
		}
		return oauthTemplate.render(http.StatusForbidden, p.pageBrand, p)
	case q.answer != nil:
		return q.sendBack(s.issuer()), nil
	}
	if err := s.showSession(c, p, q.Session, r); err != nil {
		return nil, err
	}
	p.Subject, p.Notice, p.Consent, p.Action = q.App.calledFirst(), q.notice, q, r.link("authorize")
	if p.Place, p.Goes = placeOf(q.RedirectURI); q.App.Kind == appDocument && p.Place == "goes_device" {
		p.Place = "goes_any"
	}
	if q.notice == "undecided" { // keep what the person has ticked
		for _, scope := range p.Scopes(q.Scope) {
			p.Unticked[scope] = r.form[scopeBox+scope] == ""
		}
	}
	if q.notice != "" {
		return oauthTemplate.render(http.StatusConflict, p.pageBrand, p)
	}
	return oauthTemplate.render(http.StatusOK, p.pageBrand, p)
}

func (s *server) askConsent(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	document, err := s.documentOf(ctx, c, r.query)
	if err != nil {
		return nil, err
	}
	q, err := s.readConsent(s.store.queries, c, r.query, document)
	if err != nil {
		return nil, err
	}
	return s.answerConsent(c, r, q)
}

// scopeBox and a scope together name a checkbox of the form that asks for consent.
const scopeBox = "allow:"

// decide judges the form of the page that asks for consent: which scope is agreed to, else what the application
// is told, or which notice is shown on the page. If somebody else has signed in since the page was made, or the
// application has changed, nothing is agreed to.
func (q *consent) decide(form map[string]string) (agreed string, denied url.Values, notice string) {
	var ticked []string
	for name := range form {
		if scope, ok := strings.CutPrefix(name, scopeBox); ok {
			ticked = append(ticked, scope)
		}
	}
	agreed = scopesWithin(strings.Join(ticked, " "), q.Scope)
	same := !hasForeign(ticked, strings.Fields(q.Scope)) && // else a scope was not on the page
		form["account"] == q.Session.AccountID && form["app"] == q.App.Revision()
	switch decision := form["decision"]; {
	case decision == "deny", decision == "allow" && same && agreed == "":
		return "", authorizeError("access_denied", "The owner of the account has not agreed."), ""
	case !same:
		return "", nil, "changed"
	case decision != "allow":
		return "", nil, "undecided"
	}
	return agreed, nil, ""
}

// takeConsent sends the person back to the application, with an authorization code or without, or shows the page again.
// One transaction judges all of it and adds the code.
func (s *server) takeConsent(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	document, err := s.documentOf(ctx, c, r.query)
	if err != nil {
		return nil, err
	}
	q, err := updated(ctx, s.store, func(t *tx) (*consent, error) {
		q, err := s.readConsent(t.queries, c, r.query, document)
		if err != nil || q.title != consentTitle || q.answer != nil {
			return q, err
		}
		var scope string
		if scope, q.answer, q.notice = q.decide(r.form); scope == "" {
			return q, nil
		}
		if q.App.Kind == appDocument {
			if err := saveDocument(t, q.App, q.Session.MadeBy); err != nil {
				return nil, err
			}
		}
		code := randomText(32)
		q.answer = url.Values{"code": {code}}
		t.addGrantCode(&grantCode{Hash: hashOf(code), AppID: q.App.ID, AccountID: q.Session.AccountID,
			RedirectURI: q.RedirectURI, Challenge: q.challenge, Scope: scope, AgreedBy: q.Session.MadeBy,
			CreatedAt: t.now, ExpiresAt: t.now.after(grantCodeLife)})
		return q, nil
	})
	if err != nil {
		return nil, err
	}
	return s.answerConsent(c, r, q)
}

const connectedOnPage = 50 // applications

// showConnected shows the applications that may act for the account, or ends one of the account's grants.
func (s *server) showConnected(ctx context.Context, c *call) (any, error) {
	r := readOAuthPage(c.in)
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	who, err := s.signedIn(s.store.queries, c)
	if err != nil {
		return nil, err
	}
	if who == nil {
		return s.signinPage(c, r.own(), "", http.StatusOK)
	}
	if c.request.Method == http.MethodPost {
		return s.endConnected(ctx, c, r, who)
	}
	after, _ := onlyValue(r.query, "after")
	if !validID("grt", after) {
		after = ""
	}
	apps, err := s.store.connectedApps(ownedBy(who.AccountID), after, connectedOnPage)
	if err != nil {
		return nil, err
	}
	p := newOAuthPage(c.request, connectedTitle)
	if err := s.showSession(c, p, who, r.own()); err != nil {
		return nil, err
	}
	ended, err := s.store.grant(ownedBy(who.AccountID), r.query.Get(endedParameter))
	if except(err, errGrant) != nil {
		return nil, err
	}
	if err == nil && !ended.EndedAt.IsZero() {
		p.Ended = ended.App.calledFirst()
	}
	p.Connected = apps.rows
	if more := r.own(); apps.next != "" {
		more.query.Set("after", apps.next)
		p.More = more.link("connected")
	}
	return oauthTemplate.render(http.StatusOK, p.pageBrand, p)
}

// endedParameter names the grant that was ended, on the page that says so.
const endedParameter = "ended"

// endConnected ends one of the account's grants once somebody has said so on a page of its own, and then says which.
func (s *server) endConnected(ctx context.Context, c *call, r *oauthPageRequest, who *session) (*reply, error) {
	of, id := ownedBy(who.AccountID), r.form["grant"]
	if r.form["sure"] != "" {
		done := r.own()
		done.query.Set(endedParameter, id)
		return seeOther(done.link("connected")), s.store.update(ctx, func(t *tx) error {
			return endGrant(t, of, id, endedByOwner, actorPerson(who.MadeBy))
		})
	}
	ending, err := s.store.grant(of, id)
	if err != nil {
		return nil, err
	}
	p := newOAuthPage(c.request, endTitle)
	if err := s.showSession(c, p, who, r.own()); err != nil {
		return nil, err
	}
	p.Subject, p.Ending = ending.App.calledFirst(), ending
	return oauthTemplate.render(http.StatusOK, p.pageBrand, p)
}

// An oauthPage is what the template shows; an empty field is left out.
type oauthPage struct {
	pageFrame
	Subject   string // that Title names
	Fault     string // key of what is wrong, for the application's developer
	Account   string // name of the account for which somebody has signed in
	SignOut   string // URL that the form to sign out posts to
	SignIn    string // URL that the form with a code posts to
	Typed     string // the wrong code that was typed
	Self      string // URL of the connected applications
	Ending    *grant // that the page asks whether to end
	Ended     string // name of the application one of whose grants was ended
	Languages []languageLink
	Asks      string // name of the application that asks to act for an account
	Consent   *consent
	Action    string          // URL that the form which asks for consent posts to
	Unticked  map[string]bool // scopes on that form
	Place     string          // key of the text that says where the browser goes then
	Goes      string          // host or scheme there
	Connected [][]grant       // by application
	More      string          // URL of the next page of these
	zone      *time.Location
}

// calledFirst returns what pages call an application first: a document its host, since nobody has looked at its name.
func (p *app) calledFirst() string { return printable(valueOr(p.Host, p.Name)) }

// calledFirst is that of the application.
func (p *grantedApp) calledFirst() string { return printable(valueOr(p.Host, p.Name)) }

// Safe returns a text that somebody else has chosen, for the template.
func (p *oauthPage) Safe(text string) string { return printable(text) }

// Heads returns the page's title, for the template.
func (p *oauthPage) Heads() (string, error) {
	if p.Subject == "" {
		return p.T(p.Title)
	}
	return p.T(p.Title, p.Subject)
}

// Scopes returns the scopes of a space-separated list, for the template.
func (p *oauthPage) Scopes(scope string) []string { return strings.Fields(scopesWithin(scope, scope)) }

// Moment returns a time as people read it, for the template.
func (p *oauthPage) Moment(at stamp) string { return p.moment(at, p.zone) }

// newOAuthPage makes a page in the language of ownerLanguage.
func newOAuthPage(r *http.Request, title string) *oauthPage {
	lang := ownerLanguage(r)
	frame := pageFrame{pageLanguage: lang, texts: textsByLanguage[lang]().OAuth, Title: title}
	p := &oauthPage{pageFrame: frame, Unticked: map[string]bool{}}
	if title != "" && title != faultTitle { // whose address may be that of a form only, or anybody's
		p.Languages = lang.switches(r.URL.Query())
	}
	return p
}

// showSession says on the page who has signed in, with a way out that leads back to what the request asks for.
func (s *server) showSession(c *call, p *oauthPage, who *session, r *oauthPageRequest) error {
	p.Account, p.SignOut, p.Self = printable(who.Account), r.link("signout"), r.own().link("connected")
	of, err := s.store.settings(who.AccountID)
	p.pageBrand, p.zone = brandOf(c, of), shownZone(of.Zone)
	return err
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
