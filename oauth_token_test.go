package main

import (
	"encoding/base64"
	"net/url"
	"testing"
)

// tokenForm are the parameters of a request to the token endpoint or the revocation endpoint, in turn name and
// value.
func tokenForm(pairs ...string) string {
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form.Encode()
}

// basicAuth is the header with which an application proves itself.
func basicAuth(id, secret string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(id)+":"+url.QueryEscape(secret)))
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

// codeForm are the parameters of a public application that exchanges a code, changed as pairs say; an empty value
// takes a parameter out.
func codeForm(p *app, code string, pairs ...string) string {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code},
		"redirect_uri": {p.RedirectURIs[0]},
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

func TestToken_issuesTokensForACodeOnceAndThenForItsRefreshToken(t *testing.T) {
	t.Parallel()
	s := newService(t)
	web, secret := s.registerApp()
	browser, _ := s.registerApp(inBrowsers)
	for _, p := range []*app{web, browser} {
		auth := "Accept: */*"
		if !p.public() {
			auth = basicAuth(p.ID, secret)
		}
		code := s.agree(p, s.account, scopeOrders+" "+scopeWebhooks)
		first := s.askToken(codeForm(p, code), auth).is(200)
		if got := first.json(); got["token_type"] != "Bearer" || got["expires_in"] != 3600. ||
			got["scope"] != "webhooks:write orders:read" || len(got) != 5 {
			t.Errorf("%s: %s", p.Kind, first.body)
		}
		s.get("/orders", "Authorization: Bearer "+first.text("access_token")).is(200)
		s.get("/leads", "Authorization: Bearer "+first.text("access_token")).is(403, "insufficient_scope")
		second := s.askToken(refreshForm(p, first.text("refresh_token")), auth).is(200)
		if same := second.text("refresh_token") == first.text("refresh_token"); same == p.public() {
			t.Errorf("%s: the same refresh token is %v", p.Kind, same)
		}
		s.get("/orders", "Authorization: Bearer "+second.text("access_token")).is(200)
		s.askToken(codeForm(p, code), auth).refuses(400, "invalid_grant")
		for _, gone := range []answer{first, second} {
			s.get("/orders", "Authorization: Bearer "+gone.text("access_token")).is(401, "invalid_token")
		}
		s.askToken(refreshForm(p, second.text("refresh_token")), auth).refuses(400, "invalid_grant")
	}
	if got := s.count(`SELECT count(*) FROM grants WHERE ended_by = 'code_reused'`); got != 2 {
		t.Errorf("%d grants have ended", got)
	}
}
