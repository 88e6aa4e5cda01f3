package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

// The demo's application: a third party's table planner that asks to act for the restaurant. It does what an
// application on a server does (contract, section 13): code with PKCE, then tokens.

const (
	demoAppName   = "Table Planner"
	demoAppScope  = scopeOrders + " " + scopeSelling + " " + scopeWebhooks
	demoAppBack   = "/connect/back" // path that people are sent back to
	demoAppCookie = "demo-connect"  // holds what belongs to one attempt: state and PKCE verifier
)

// A demoConnect is what the application's page shows.
type demoConnect struct {
	Code    string // to sign in with; "": none was made
	To      string // URL of the authorization endpoint, with the request
	Claims  string // of the access token, as JSON
	Answer  string // of GET /account with that token
	Refresh bool   // there is a refresh token too
	Ended   string // URL of the page on which the owner ends it
	Fault   string
}

// prepareApp writes the application's row with a new secret, and makes a token with which the demo, as a
// portal, gets codes to sign in.
func (d *demo) prepareApp(t *tx, keys *keyring) error {
	owner, err := t.mainAccount()
	if err != nil {
		return err
	}
	row := tokenRow{AccountID: owner, ClientID: "demo-portal", Scope: scopeConsent, AllAccounts: true}
	if d.portal, _, err = issueToken(t, keys, row, days(365)); err != nil {
		return err
	}
	p, err := d.appNamed(t, &app{AccountID: owner, Name: demoAppName, Scope: demoAppScope, VerifiedAt: t.now})
	if err != nil {
		return err
	}
	d.app.clientID = p.ID
	d.app.clientSecret, p.SecretHash = newClientSecret()
	// Elsewhere the redirect URIs of a web application must be https, but on this machine there is no TLS.
	p.RedirectURIs, p.UpdatedAt = codeList{d.page + demoAppBack}, t.now
	return t.saveApp(p)
}

// handleConnect adds the application's pages to the demo's.
func (d *demo) handleConnect(mux *http.ServeMux, s *server) {
	mux.HandleFunc("GET /connect", func(w http.ResponseWriter, _ *http.Request) {
		showConnect(w, http.StatusOK, demoConnect{})
	})
	mux.HandleFunc("POST /connect", d.startConnecting)
	mux.HandleFunc("GET "+demoAppBack, func(w http.ResponseWriter, r *http.Request) {
		shown, err := d.connected(r, s)
		if err != nil {
			showConnect(w, http.StatusBadGateway, demoConnect{Fault: sentence(err)})
			return
		}
		showConnect(w, http.StatusOK, *shown)
	})
}

// showConnect sends the page.
func showConnect(w http.ResponseWriter, status int, shown demoConnect) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer") // an address may hold a code
	showDemo(w, status, "demo_connect.html", shown)
}

// sentence returns the text of an error as a sentence.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// startConnecting makes a code to sign in with, and the address that asks the owner to agree.
func (d *demo) startConnecting(w http.ResponseWriter, r *http.Request) {
	var signin struct{ Code string }
	err := d.ask(r.Context(), d.portal, "POST", "/accounts/"+d.account+"/signin", struct{}{}, &signin)
	if err != nil {
		showConnect(w, http.StatusBadGateway, demoConnect{Fault: err.Error()})
		return
	}
	state, verifier := randomText(32), randomText(32)
	http.SetCookie(w, &http.Cookie{Name: demoAppCookie, Value: state + "." + verifier, Path: demoAppBack,
		MaxAge: int(time.Hour / time.Second), HttpOnly: true, SameSite: http.SameSiteLaxMode})
	query := authorizeQuery(d.app, demoAppScope, d.page+demoAppBack, state, pkceChallenge(verifier))
	showConnect(w, http.StatusOK, demoConnect{Code: signin.Code, To: d.base + "/oauth/authorize?" + query.Encode()})
}

// connected takes the answer of the authorization endpoint, exchanges its code for tokens, and returns what the
// page shows.
func (d *demo) connected(r *http.Request, s *server) (*demoConnect, error) {
	q := r.URL.Query()
	state, verifier := "", ""
	if cookie, err := r.Cookie(demoAppCookie); err == nil {
		state, verifier, _ = strings.Cut(cookie.Value, ".")
	}
	switch {
	case state == "" || q.Get("state") != state:
		return nil, errors.New("this answer belongs to no attempt of this browser: begin again")
	case q.Get("iss") != d.base: // RFC 9207
		return nil, errors.New("the answer is not of the service that was asked")
	case q.Get("code") == "":
		return nil, errors.New("it was not agreed to")
	}
	form := codeGrantForm(d.page+demoAppBack, q.Get("code"), verifier)
	tokens, err := requestTokens(r.Context(), s.outbound, d.base+"/oauth/token", d.app, form, nil, s.now)
	if err != nil {
		return nil, err
	}
	shown := &demoConnect{Refresh: tokens.Refresh != "", Ended: d.base + "/oauth/connected"}
	if shown.Claims, err = claimsText(tokens.Access); err != nil {
		return nil, err
	}
	var account json.RawMessage
	if err := d.ask(r.Context(), tokens.Access, "GET", "/account", nil, &account); err != nil {
		return nil, err
	}
	shown.Answer, err = indented(account)
	return shown, err
}

// claimsText returns the claims of a token as JSON for people.
func claimsText(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("the access token is no JWT")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	return indented(text)
}

// indented returns JSON with its members in lines of their own.
func indented(text []byte) (string, error) {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return "", err
	}
	lines, err := json.MarshalIndent(value, "", "  ")
	return string(lines), err
}
