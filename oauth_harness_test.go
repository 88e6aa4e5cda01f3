package main

import (
	"crypto/rand"
	"encoding/base64"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// quietService is newService for a test in which nothing runs at the same time: the race detector, which sees
// nothing in it, would only make it slow.
func quietService(t testing.TB, change ...func(*storeOptions, *serverOptions)) *service {
	t.Helper()
	sequentialUnderRace(t)
	return newService(t, change...)
}

// serviceWithApp is a quietService at which one application is registered, by registerApp.
func serviceWithApp(t testing.TB, change ...func(*app)) (*service, *app) {
	t.Helper()
	s := quietService(t)
	p, _ := s.registerApp(change...)
	return s, p
}

// auth is the header of a token of an account.
func (s *service) auth(account string, scopes ...string) string {
	s.t.Helper()
	return bearer(s.token(account, strings.Join(scopes, " ")))
}

// appAuth is the header of a token that may register applications, and has further scopes.
func (s *service) appAuth(account string, more ...string) string {
	s.t.Helper()
	return s.auth(account, append(more, scopeApps)...)
}

// oneAddress is where the requests of tests come from, unless they say otherwise.
const oneAddress = "192.0.2.1"

// spend takes from a bucket of the limits on addresses what n requests would. The first request must have been
// made, so that the bucket has the size that the service gives it.
func (s *service) spend(bucket string, n int) {
	for range n {
		s.server.addressBuckets.take(bucket, 1<<30, s.server.monotonic())
	}
}

// failIf says what is wrong, if something is, and lets the test go on.
func failIf(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

// keepTokens is the option of a service that keeps what has ended for some days.
func keepTokens(n int) func(*storeOptions, *serverOptions) {
	return func(_ *storeOptions, o *serverOptions) { o.keepTokens = span{rest: days(n)} }
}

// hasRows checks how many rows a part of a query gives that begins with a table, such as "sessions WHERE made_by = ?".
func (s *service) hasRows(want int, from string, args ...any) {
	s.t.Helper()
	if n := s.count(`SELECT count(*) FROM `+from, args...); n != want {
		s.t.Errorf("%d rows of %s %v, want %d", n, from, args, want)
	}
}

// testVerifier is a PKCE verifier, and testChallenge its S256 challenge.
const testVerifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"

var testChallenge = pkceChallenge(testVerifier)

// testRedirect is where the applications of registerApp have people sent back to.
const testRedirect = "https://app.example/back"

// registerApp writes an application that an operator vouches for, of the main account and for the web unless
// change says otherwise, and returns it with its secret; "" if it is public.
func (s *service) registerApp(change ...func(*app)) (*app, string) {
	s.t.Helper()
	p := &app{AccountID: s.account, Name: "Table Planner", HomePage: "https://app.example", Kind: appWeb,
		RedirectURIs: []string{testRedirect}, Scope: scopeOrders + " " + scopeSelling + " " + scopeWebhooks,
		MadeBy: "test", VerifiedAt: newStamp(s.store.now())}
	for _, c := range change {
		c(p)
	}
	secret := ""
	if !p.public() {
		secret = rand.Text() + rand.Text()
		p.SecretHash = hashOf(secret)
	}
	s.change(func(t *tx) error {
		p.ID, p.CreatedAt, p.UpdatedAt = t.newID("app"), t.now, t.now
		t.addApp(p)
		return nil
	})
	return p, secret
}

// agree writes the code that an application gets when somebody agrees for an account, for testChallenge.
func (s *service) agree(p *app, accountID, scope string) (code string) {
	s.t.Helper()
	code = randomText(32)
	s.change(func(t *tx) error {
		t.addGrantCode(&grantCode{Hash: hashOf(code), AppID: p.ID, AccountID: accountID,
			RedirectURI: p.RedirectURIs[0], Challenge: testChallenge, Scope: scope, AgreedBy: "test",
			CreatedAt: t.now, ExpiresAt: t.now.after(grantCodeLife)})
		return nil
	})
	return code
}

// appToken issues an access token of an application for an account, under a grant of its own.
func (s *service) appToken(p *app, accountID, scope string) (token, grantID string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		g := &grant{ID: t.newID("grt"), AppID: p.ID, AccountID: accountID, Scope: scope, AgreedBy: "test",
			CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
		t.addGrant(g)
		grantID = g.ID
		row := appToken{AppID: p.ID, GrantID: &grantID, AccountID: accountID, Scope: scope}
		token, _, err = issueAppToken(t, s.server.keys.Load(), row)
		return err
	})
	return token, grantID
}

// tokenForm are the parameters of a request to the token or revocation endpoint, in turn name and value.
func tokenForm(pairs ...string) string {
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form.Encode()
}

// basicAuth is the header with which an application proves itself.
func basicAuth(id, secret string) string {
	both := url.QueryEscape(id) + ":" + url.QueryEscape(secret)
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(both))
}

// askToken sends a form to the token endpoint.
func (s *service) askToken(form string, headers ...string) answer {
	s.t.Helper()
	a := s.post("/oauth/token", form, append([]string{formType}, headers...)...)
	if a.status == 200 {
		a.has("Cache-Control: no-store", "Pragma: no-cache", "Content-Type: application/json")
		if refresh, ok := a.json()["refresh_token"].(string); ok && s.told != nil {
			s.told.mu.Lock()
			s.told.keep("a refresh token", refresh)
			s.told.mu.Unlock()
		}
	}
	return a
}

// codeForm are the parameters of an application that exchanges a code, changed as pairs say; an empty value takes
// a parameter out.
func codeForm(p *app, code string, pairs ...string) string {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {p.RedirectURIs[0]},
		"code_verifier": {testVerifier}}
	if p.public() {
		form.Set("client_id", p.ID)
	}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
		if pairs[i+1] == "" {
			form.Del(pairs[i])
		}
	}
	return form.Encode()
}

// refreshForm are the parameters with which a public application uses a refresh token.
func refreshForm(p *app, token string, more ...string) string {
	pairs := []string{"grant_type", "refresh_token", "refresh_token", token}
	if p.public() {
		pairs = append(pairs, "client_id", p.ID)
	}
	return tokenForm(append(pairs, more...)...)
}

// inBrowsers makes an application one that can keep no secret.
func inBrowsers(p *app) { p.Kind = appBrowser }

// refuses checks an error of the token or revocation endpoint, which is never more than its name and a text.
func (a answer) refuses(status int, name string) answer {
	a.t.Helper()
	a.is(status).has("Content-Type: application/json", "Cache-Control: no-store")
	body := a.json()
	text, _ := body["error_description"].(string)
	if body["error"] != name || len(body) != 2 || !matches(`^[\x20-\x21\x23-\x5B\x5D-\x7E]+$`, text) {
		a.t.Fatalf("%d %s, want %s", a.status, a.body, name)
	}
	return a
}

// A visitor is a browser of somebody who uses the pages, without what shows them.
type visitor struct {
	*service
	cookie string // as the browser sends it; "": none
}

const fromHere = "Sec-Fetch-Site: same-origin"

// visit gets a page, or with a form posts to it as the page itself would.
func (v *visitor) visit(path string, form url.Values, headers ...string) answer {
	v.t.Helper()
	method, body := "GET", ""
	if v.cookie != "" {
		headers = append(headers, "Cookie: "+v.cookie)
	}
	if form != nil {
		method, body = "POST", form.Encode()
		headers = append([]string{formType, fromHere}, headers...)
	}
	a := v.do(method, path, body, headers...)
	for _, set := range a.header.Values("Set-Cookie") {
		v.cookie, _, _ = strings.Cut(set, ";")
		v.told.confide(v.cookie[strings.Index(v.cookie, "=")+1:])
	}
	if strings.Contains(a.header.Get("Location"), "code=") {
		to, err := url.Parse(a.header.Get("Location"))
		v.check(err)
		v.told.confide(to.Query().Get("code"))
	}
	return a
}

// signedIn is a visitor who has signed in for an account.
func (s *service) signedIn(accountID string) *visitor {
	s.t.Helper()
	secret, err := s.signInWith(s.signinCode(accountID))
	s.check(err)
	return &visitor{s, "widgetd-session=" + secret}
}

// askFor is the query with which an application asks for consent. more are names and values, in turn, of which
// an empty value removes the parameter.
func (p *app) askFor(more ...string) url.Values {
	q := url.Values{"response_type": {"code"}, "client_id": {p.ID}, "redirect_uri": {p.RedirectURIs[0]},
		"state":          {"table 4&x"},
		"code_challenge": {testChallenge}, "code_challenge_method": {"S256"}}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
		if more[i+1] == "" {
			q.Del(more[i])
		}
	}
	return q
}

// authorize asks for consent by a query, or with a form decides about it.
func (v *visitor) authorize(q, form url.Values, headers ...string) answer {
	v.t.Helper()
	return v.visit(authorizePath(q), form, headers...)
}

// decided is a form with a decision about the application, for the scope of reading orders.
func (p *app) decided(decision, accountID string) url.Values {
	return url.Values{"decision": {decision}, "account": {accountID}, "app": {p.UpdatedAt.String()},
		"allow:" + scopeOrders: {"yes"}}
}

func authorizePath(q url.Values) string { return "/oauth/authorize?" + q.Encode() }

var (
	formShape  = regexp.MustCompile(`(?s)<form method="post" action="([^"]*)".*?</form>`)
	inputShape = regexp.MustCompile(`<(?:input|button)[^>]*>`)
	attrShape  = regexp.MustCompile(`([a-z]+)="([^"]*)"`)
)

// form is where the form of a page with a field or button posts to, and what it sends if nobody changes it.
func (a answer) form(field string) (action string, fields url.Values) {
	a.t.Helper()
	for _, found := range formShape.FindAllStringSubmatch(a.body, -1) {
		if !strings.Contains(found[0], `name="`+field+`"`) {
			continue
		}
		fields = url.Values{}
		for _, input := range inputShape.FindAllString(found[0], -1) {
			attr := map[string]string{}
			for _, each := range attrShape.FindAllStringSubmatch(input, -1) {
				attr[each[1]] = html.UnescapeString(each[2])
			}
			if attr["type"] == "hidden" || attr["type"] == "checkbox" && strings.Contains(input, " checked") {
				fields.Set(attr["name"], attr["value"])
			}
		}
		return html.UnescapeString(found[1]), fields
	}
	a.t.Fatalf("no form has %s:\n%s", field, a.body)
	return "", nil
}

// agreeing is the form of a page that asks for consent, with the button pressed that allows it.
func (a answer) agreeing() url.Values {
	a.t.Helper()
	_, fields := a.is(200).form("decision")
	fields.Set("decision", "allow")
	return fields
}

// sentTo checks that an answer sends the browser to an address, and returns the parameters that were added.
func (a answer) sentTo(uri string) url.Values {
	a.t.Helper()
	a.is(303).has("Referrer-Policy: no-referrer", "Cache-Control: no-store")
	to, ok := strings.CutPrefix(a.header.Get("Location"), uri)
	if !ok || to == "" || to[0] != '?' && to[0] != '&' {
		a.t.Fatalf("sent to %s, want %s", a.header.Get("Location"), uri)
	}
	q, err := url.ParseQuery(to[1:])
	if err != nil || q.Get("iss") != testBase {
		a.t.Fatalf("sent to %s: %v", a.header.Get("Location"), err)
	}
	return q
}

// nowhere checks that an answer is a page, which leads nobody away.
func (a answer) nowhere(status int, texts ...string) answer {
	a.t.Helper()
	return a.is(status).has("Location: ", "Content-Type: text/html; charset=utf-8",
		"Content-Security-Policy: "+guestPolicy()).shows(texts...)
}
