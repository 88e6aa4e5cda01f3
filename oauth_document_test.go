package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A documentSite is a service that takes documents, and the sites at which they are.
type documentSite struct {
	*service
	mu     sync.Mutex
	answer map[string]http.HandlerFunc // by address
	asked  map[string]int
	later  time.Duration // by which the clock of what is kept is ahead
}

// takesDocuments is the option of a service that takes documents.
func takesDocuments(_ *storeOptions, o *serverOptions) { o.clientDocuments = true }

// serviceWithDocuments is a quietService that takes documents. Every host is one test server.
func serviceWithDocuments(t testing.TB, change ...func(*storeOptions, *serverOptions)) *documentSite {
	t.Helper()
	d := &documentSite{service: quietService(t, append(change, takesDocuments, withoutAddressLimits)...),
		answer: map[string]http.HandlerFunc{}, asked: map[string]int{}}
	web := httptest.NewServer(d)
	t.Cleanup(web.Close)
	documents := d.server.documents
	documents.monotonic = func() time.Time { return time.Now().Add(d.later) }
	documents.outbound.secure.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", web.Listener.Addr().String())
	}
	return d
}

// ServeHTTP implements http.Handler.
func (d *documentSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	address := "https://" + r.Host + r.URL.Path
	d.mu.Lock()
	d.asked[address]++
	answer := d.answer[address]
	d.mu.Unlock()
	if answer == nil {
		http.NotFound(w, r)
		return
	}
	answer(w, r)
}

// fetches is how often an address was fetched.
func (d *documentSite) fetches(address string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[address]
}

// answers sets what an address answers.
func (d *documentSite) answers(address string, answer http.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer[address] = answer
}

// text is the text of a document, whose members change sets or, with nil, removes.
func documentText(address string, change map[string]any) string {
	members := map[string]any{"client_id": address, "client_name": "Claude Code",
		"client_uri":    "https://claude.example",
		"redirect_uris": []string{"http://localhost/callback", "http://127.0.0.1/callback"},
		"grant_types":   []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
		"token_endpoint_auth_method": "none"}
	for name, value := range change {
		if members[name] = value; value == nil {
			delete(members, name)
		}
	}
	text, _ := json.Marshal(members)
	return string(text)
}

// saying answers with a text as JSON.
func saying(text string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		io.WriteString(w, text)
	}
}

// publish puts a document at an address.
func (d *documentSite) publish(address string, change map[string]any) {
	d.answers(address, saying(documentText(address, change)))
}

const (
	claudeAddress = "https://claude.example/oauth/claude-code-client-metadata"
	claudeBack    = "http://localhost:51234/callback"
)

// documentQuery is the query with which the application of a document asks to read orders.
func documentQuery(address, redirect string, more ...string) url.Values {
	p := &app{ID: address, RedirectURIs: []string{redirect}}
	return p.askFor(append([]string{"scope", scopeOrders}, more...)...)
}

// connect has the owner of an account agree to a document, and returns the code.
func (d *documentSite) connect(v *visitor, address, redirect string) (code string) {
	d.t.Helper()
	q := documentQuery(address, redirect)
	return v.authorize(q, v.authorize(q, nil).agreeing()).sentTo(redirect).Get("code")
}

// exchange exchanges a code of a document.
func (d *documentSite) exchange(address, redirect, code string) answer {
	d.t.Helper()
	return d.askToken(tokenForm("grant_type", "authorization_code", "client_id", address, "redirect_uri", redirect,
		"code", code, "code_verifier", testVerifier))
}

func TestDocument_letsAnApplicationActThatNobodyHasRegistered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address, back string
		change        map[string]any
	}{
		{claudeAddress, claudeBack, nil},
		{"https://a.example/" + strings.Repeat("x", maxDocumentAddress-len("https://a.example/")), claudeBack, nil},
		{"https://vscode.example/oauth/client-metadata.json", "http://127.0.0.1:41000/", map[string]any{
			"client_name": "Visual Studio Code", "redirect_uris": []string{"http://127.0.0.1:33418/",
				"https://vscode.example/redirect"}, "application_type": "native", "grant_types": []string{
				"authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"}}},
		{"https://vscode.example/oauth/client-metadata.json", "https://vscode.example/redirect", map[string]any{
			"redirect_uris": []string{"http://127.0.0.1:33418/", "https://vscode.example/redirect"}}},
	} {
		s := serviceWithDocuments(t)
		s.publish(c.address, c.change)
		tenant := s.addAccount("Bistro")
		v := s.signedIn(tenant)
		code := s.connect(v, c.address, c.back)
		a := s.exchange(c.address, c.back, code).is(200)
		access, refresh := a.text("access_token"), a.text("refresh_token")
		if claims, err := s.server.keys.Load().verify(access); err != nil || claims.ClientID != c.address {
			t.Fatalf("the token is of %q: %v", claims.ClientID, err)
		}
		s.get("/orders", bearer(access)).is(200)
		s.answers(c.address, nil) // the host is down
		s.server.documents.kept = map[string]*keptDocument{}
		next := s.askToken(tokenForm("grant_type", "refresh_token", "client_id", c.address,
			"refresh_token", refresh)).is(200).text("refresh_token")
		if next == refresh {
			t.Error("the refresh token is not replaced")
		}
		host := hostOf(c.address)
		v.visit("/oauth/connected", nil).shows("<bdi>"+host+"</bdi>", c.address)
		s.post("/oauth/revoke", tokenForm("client_id", c.address, "token", next), formType).is(200)
		s.get("/orders", bearer(access)).is(401)
		s.hasRows(1, `apps WHERE kind = 'document' AND host = ? AND account_id = ?`, host, s.account)
	}
}

// Against a document that imitates another application, and against one on a host that is shared.
func TestDocument_isCalledByItsHostFirst(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	for _, c := range []struct{ address, host string }{
		{claudeAddress, "claude.example"},
		{"https://xn--pple-43d.example/x.json", "xn--pple-43d.example"},
		{"https://pages.shared.example/somebody/x.json", "pages.shared.example"},
	} {
		name := "Stripe Dashboard <b>"
		s.publish(c.address, map[string]any{"client_name": name, "logo_uri": "https://evil.example/logo.png",
			"client_uri": "https://stripe.example"})
		q := documentQuery(c.address, claudeBack)
		(&visitor{service: s.service}).authorize(q, nil).nowhere(200, "<p>"+c.host+" asks to act for your account",
			"not Stripe")
		failIf(t, s.fetches(c.address) != 0, "a document was fetched for nobody")
		page := s.signedIn(s.account).authorize(q, nil).nowhere(200, "<h1>May "+c.host+" act for your account?</h1>",
			"Not verified by the operator", "Stripe Dashboard &lt;b&gt;", "<bdi>"+c.address+"</bdi>",
			"Any program that runs on it can get what you allow here", "not logo.png", "not stripe.example",
			"not Offered by")
		at := 0
		for _, text := range []string{"<strong><bdi>" + c.host, "Not verified by", "Stripe Dashboard", "Any program"} {
			i := strings.Index(page.body[at:], text)
			failIf(t, i < 0, "%q comes too early, or not at all", text)
			at += max(i, 0)
		}
	}
	s.publish(claudeAddress+"2", map[string]any{"redirect_uris": []string{"https://elsewhere.example/back"}})
	s.signedIn(s.account).authorize(documentQuery(claudeAddress+"2", "https://elsewhere.example/back"), nil).
		nowhere(200, "the site <bdi>elsewhere.example</bdi>", "not Any program")
	s.hasRows(0, "apps") // asking alone writes nothing
}

func TestDocument_isRefusedForEachRuleThatItBreaks(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	n := 0
	refuses := func(text, fault string, answer func(address string) http.HandlerFunc) {
		t.Helper()
		n++
		address := fmt.Sprintf("https://app%d.example/client.json", n)
		s.answers(address, answer(address))
		s.signedIn(s.addAccount(fmt.Sprint("tenant ", n))).authorize(documentQuery(address, claudeBack), nil).
			nowhere(400, "This link isn’t valid", fault)
		failIf(t, s.fetches(address) != 1, "%s: %d fetches", text, s.fetches(address))
	}
	const away, wrong = "be fetched", "breaks a rule"
	for _, change := range []map[string]any{
		{"client_id": nil}, {"client_id": claudeAddress}, {"client_id": "https://APP.example/client.json"},
		{"client_secret": "x"}, {"client_secret": nil, "client_secret_expires_at": 0},
		{"token_endpoint_auth_method": nil}, {"token_endpoint_auth_method": "client_secret_basic"},
		{"token_endpoint_auth_method": "client_secret_jwt"}, {"token_endpoint_auth_method": "private_key_jwt"},
		{"token_endpoint_auth_method": "private_key_jwt", "token_endpoint_auth_methods_supported": "none"},
		{"token_endpoint_auth_method": "private_key_jwt",
			"token_endpoint_auth_methods_supported": []any{"None", "private_key_jwt", []string{"none"}}},
		{"padding": strings.Repeat("x", maxDocument)},
	} {
		refuses(fmt.Sprint(change), wrong, func(address string) http.HandlerFunc {
			return saying(documentText(address, change))
		})
	}
	for _, text := range []string{"", "[]", "{", `{"client_id":"x","client_id":"y"}`, "null"} {
		refuses(text, wrong, func(string) http.HandlerFunc { return saying(text) })
	}
	for _, kind := range []string{"", "text/html", "text/plain; charset=utf-8", "application/ld+json"} {
		refuses(kind, wrong, func(address string) http.HandlerFunc {
			return saying(documentText(address, nil), "Content-Type", kind)
		})
	}
	for _, status := range []int{201, 204, 301, 302, 307, 401, 403, 404, 500, 503} {
		refuses(fmt.Sprint(status), away, func(address string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", claudeAddress)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				if status != 204 {
					io.WriteString(w, documentText(address, nil))
				}
			}
		})
	}
	s.publish(claudeAddress, nil)
	failIf(t, s.fetches(claudeAddress) != 0, "a redirect was followed")
	s.hasRows(0, "apps")
}

// Documents of large applications have members that we can't use: those are left out, and the request is judged by what
// is left.
func TestDocument_whatCannotBeUsedInItIsLeftOut(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	strange := []any{1, nil, "http://a.example/", "com.example.app:/back", "cursor://back", "javascript:alert(1)",
		"http://localhost.evil.example/", "http://10.0.0.1/", "https://a.example/#x", "https://u@a.example/",
		"https://*.a.example/", "https://münchen.example/", ""}
	many := strange
	for i := range 2 * maxRedirectURIs {
		many = append(many, fmt.Sprint("https://a.example/", i), testRedirect)
	}
	const host = "app.example"
	for i, c := range []struct {
		change map[string]any
		name   string // as which it is shown
	}{
		{map[string]any{"redirect_uris": many}, "Claude Code"},
		{map[string]any{"scope": nil}, "Claude Code"}, // as is {"scope": null}, which documentText can't say
		{map[string]any{"scope": 1}, "Claude Code"},
		{map[string]any{"scope": json.RawMessage("null"), "client_secret": json.RawMessage("null")}, "Claude Code"},
		{map[string]any{"scope": "openid offline_access"}, "Claude Code"},
		{map[string]any{"scope": scopeOrders + " openid " + scopeAdmin}, "Claude Code"},
		{map[string]any{"token_endpoint_auth_method": "private_key_jwt",
			"token_endpoint_auth_methods_supported": []string{"private_key_jwt", "none"}}, "Claude Code"},
		{map[string]any{"client_name": strings.Repeat("é", 59) + " xyz"}, strings.Repeat("é", 59)},
		{map[string]any{"client_name": " Anna\u202e\u200b \u00a0Claude\n"}, "Anna Claude"},
		{map[string]any{"client_name": " \u200b\u202e ‼"}, host}, {map[string]any{"client_name": nil}, host},
		{map[string]any{"client_name": ""}, host}, {map[string]any{"client_name": 1}, host},
	} {
		address := fmt.Sprintf("https://app.example/client%d.json", i)
		if _, has := c.change["redirect_uris"]; !has {
			c.change["redirect_uris"] = []string{testRedirect}
		}
		s.publish(address, c.change)
		v := s.signedIn(s.addAccount(fmt.Sprint("tenant ", i)))
		q := documentQuery(address, testRedirect, "scope", scopeOrders+" offline_access")
		page := v.authorize(q, nil).nowhere(200, "<dd><bdi>"+c.name+"</bdi></dd>")
		code := v.authorize(q, page.agreeing()).sentTo(testRedirect).Get("code")
		a := s.exchange(address, testRedirect, code).is(200).holds(`scope="` + scopeOrders + `"`)
		s.get("/orders", bearer(a.text("access_token"))).is(200)
		for _, uri := range strange {
			if uri, ok := uri.(string); ok && uri != "" {
				v.authorize(documentQuery(address, uri), nil).nowhere(400, "redirect_uri is not registered")
			}
		}
		v.visit("/oauth/connected", nil).shows("<h2><bdi>"+host+"</bdi></h2>", "<bdi>"+c.name+"</bdi></dd>", address)
	}
	s.get("/apps?limit=100", s.appAuth(s.account)).is(200)
	s.publish(claudeAddress, map[string]any{"redirect_uris": "https://a.example/"})
	s.signedIn(s.account).authorize(documentQuery(claudeAddress, "https://a.example/"), nil).
		nowhere(400, "redirect_uri is not registered")
}

func TestDocument_hasAnAddressOfOneForm(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		claudeAddress: true, "https://a.example/x": true, "https://a.example/x/": true,
		"https://a.example/": false, "https://a.example": false, "http://a.example/x": false,
		"HTTPS://a.example/x": false, "https://A.example/x": false, "https://a.example:443/x": false,
		"https://a.example:8443/x": false, "https://a.example/x?y": false, "https://a.example/x?": false,
		"https://a.example/x#y": false, "https://a.example/x#": false, "https://u@a.example/x": false,
		"https://u:p@a.example/x": false, "https://@a.example/x": false, "https://1.2.3.4/x": false,
		"https://[2606:4700::1111]/x": false, "https://127.1/x": false, "https://2130706433/x": false,
		"https://0x7f.1/x": false, "https://localhost/x": false, "https://a.localhost/x": false, "https://a/x": false,
		"https://a.example./x": false, "https://a.example/./x": false, "https://a.example/x/..": false,
		"https://a.example/x/../y": false, "https://a.example/%2e%2E/y": false, "https://a.example/x/%2e": false,
		"https://a.example/..%2fy": false, "https://café.example/x": false, "https://xn--caf-dma.example/x": true,
		"https://a.example/ x": false, "https://a.example\\x": false, "https://a.example/x\n": false, "": false,
		"app_01m8a9c4h7p2r5t8v1x3z6b0de":                                          false,
		"https://a.example/" + strings.Repeat("x", 255-len("https://a.example/")): true,
		"https://a.example/" + strings.Repeat("x", 256-len("https://a.example/")): false,
	} {
		if isDocumentAddress(address) != want {
			t.Errorf("%q: %v, want %v", address, !want, want)
		}
	}
}

func TestDocument_sendsNobodyElsewhere(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	s.publish(claudeAddress, map[string]any{"redirect_uris": []string{"http://localhost/callback",
		"http://127.0.0.1:33418/", "http://[::1]/callback", testRedirect}})
	v := s.signedIn(s.account)
	for _, uri := range append([]string{"http://localhost:1/other", "http://localhost:80@evil.example/callback",
		"http://localhost.evil.example/callback", "http://localhost:65536/callback", "https://localhost:1/callback",
		"http://LOCALHOST:1/callback", "http://localhost:1/callback/", "http://localhost:/callback",
		"http://127.0.0.1:1/callback", "http://127.0.0.1:33418"}, redirectTricks...) {
		v.authorize(documentQuery(claudeAddress, uri), nil).nowhere(400, "redirect_uri is not registered")
	}
	for _, uri := range []string{"http://localhost:51234/callback", "http://localhost/callback",
		"http://127.0.0.1:1/", "http://[::1]:65535/callback", testRedirect} {
		v.authorize(documentQuery(claudeAddress, uri, "scope", "x"), nil).sentTo(uri)
	}
	installed, _ := s.registerApp(func(p *app) {
		p.Kind, p.RedirectURIs = appInstalled, []string{"http://127.0.0.1/callback"}
	})
	v.authorize(installed.askFor("redirect_uri", "http://localhost:1/callback"), nil).nowhere(400)
	failIf(t, s.fetches(claudeAddress) != 1, "%d fetches", s.fetches(claudeAddress))
}

func TestDocument_withoutScopesLeavesThemToTheRequest(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	v := s.signedIn(s.account)
	s.publish(claudeAddress, nil)
	q := v.authorize(documentQuery(claudeAddress, claudeBack, "scope", ""), nil).sentTo(claudeBack)
	failIf(t, q.Get("error") != "invalid_scope", "%v", q)
	q = v.authorize(documentQuery(claudeAddress, claudeBack, "scope", scopeAdmin), nil).sentTo(claudeBack)
	failIf(t, q.Get("error") != "invalid_scope", "%v", q)
	other := "https://b.example/x"
	s.publish(other, map[string]any{"scope": scopeOrders + " " + scopeAdmin + " " + scopeApps})
	_, fields := v.authorize(documentQuery(other, claudeBack, "scope", ""), nil).is(200).form("decision")
	failIf(t, fields.Get("allow:"+scopeOrders) != "yes" || len(fields) != 3, "%v", fields)
	q = v.authorize(documentQuery(other, claudeBack, "scope", scopeSelling), nil).sentTo(claudeBack)
	failIf(t, q.Get("error") != "invalid_scope", "%v", q)
}

// Against a document that changes between consent and exchange, and against hosts that fail then.
func TestDocument_isLookedAtAgainWhenTheCodeIsExchanged(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	v := s.signedIn(s.account)
	s.publish(claudeAddress, nil)
	code := s.connect(v, claudeAddress, claudeBack)
	s.answers(claudeAddress, nil)
	s.exchange(claudeAddress, "http://localhost:1/callback", code).refuses(400, "invalid_grant")
	s.later = documentKeptLeast
	before := s.fetches(claudeAddress)
	s.askToken(tokenForm("grant_type", "authorization_code", "client_id", claudeAddress, "redirect_uri", claudeBack,
		"code", code, "code_verifier", strings.Repeat("x", 43))).refuses(400, "invalid_grant")
	failIf(t, s.fetches(claudeAddress) != before, "a wrong verifier has the document fetched")
	for range 3 { // what failed is not kept
		s.exchange(claudeAddress, claudeBack, code).refuses(503, "temporarily_unavailable").has("Retry-After: 30")
	}
	failIf(t, s.fetches(claudeAddress) != before+3, "%d fetches", s.fetches(claudeAddress)-before)
	failIf(t, len(s.server.documents.kept) != 0, "%v", s.server.documents.kept)
	s.publish(claudeAddress, map[string]any{"redirect_uris": []string{testRedirect}})
	s.exchange(claudeAddress, claudeBack, code).refuses(400, "invalid_grant")
	s.later += documentKeptLeast
	s.publish(claudeAddress, map[string]any{"client_secret": "x"})
	s.exchange(claudeAddress, claudeBack, code).refuses(400, "invalid_grant")
	s.publish(claudeAddress, nil)
	s.exchange(claudeAddress, claudeBack, code).is(200) // nothing was used up
	s.exchange(claudeAddress, claudeBack, code).refuses(400, "invalid_grant")
	s.hasRows(1, "grants WHERE ended_by = 'code_reused'")
}

func TestDocument_thatChangesUnderThePageIsReadAgain(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	v := s.signedIn(s.account)
	s.publish(claudeAddress, nil)
	q := documentQuery(claudeAddress, claudeBack)
	form := v.authorize(q, nil).agreeing()
	s.later = documentKeptLeast
	s.publish(claudeAddress, map[string]any{"client_name": "Bank"})
	v.authorize(q, form).nowhere(409, "Something has changed", "Bank")
	s.hasRows(0, "apps")
	v.authorize(q, v.authorize(q, nil).agreeing()).sentTo(claudeBack)
	s.hasRows(1, "apps WHERE name = 'Bank'")
	s.later *= 2
	s.publish(claudeAddress, nil)
	s.connect(v, claudeAddress, claudeBack)
	s.hasRows(1, "apps WHERE name = 'Claude Code'")
	s.hasRows(1, "apps")
}

func TestDocument_switchedOffOrNotListedIsUnknown(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	s.publish(claudeAddress, nil)
	v := s.signedIn(s.account)
	a := s.exchange(claudeAddress, claudeBack, s.connect(v, claudeAddress, claudeBack)).is(200)
	form := tokenForm("grant_type", "refresh_token", "client_id", claudeAddress,
		"refresh_token", a.text("refresh_token"))
	id := s.grantedApp()
	for _, set := range []func(*clientDocuments){
		func(d *clientDocuments) { d.allowed = []string{claudeAddress + "2"} },
		func(d *clientDocuments) { d.enabled = false },
	} {
		set(s.server.documents)
		s.server.clientDocuments = s.server.documents.enabled
		s.askToken(form).refuses(400, "invalid_client")
		v.authorize(documentQuery(claudeAddress, claudeBack), nil).nowhere(400, "There is no application")
	}
	failIf(t, strings.Contains(s.get(metadataPath).is(200).body, "client_id_metadata"), "the metadata announces it")
	v.authorize(documentQuery(id, claudeBack), nil).nowhere(400, "There is no application")
	s.server.documents.enabled, s.server.clientDocuments = true, true
	s.server.documents.allowed = []string{claudeAddress}
	v.authorize(documentQuery(id, claudeBack), nil).nowhere(400, "There is no application")
	s.askToken(strings.Replace(form, url.QueryEscape(claudeAddress), id, 1)).refuses(400, "invalid_client")
	s.get(metadataPath).contains(`"client_id_metadata_document_supported":true`)
	s.askToken(form).is(200)
}

const metadataPath = "/" + serverMetadataPath + "/v1"

// grantedApp is the id of the application of the newest grant.
func (s *documentSite) grantedApp() string {
	s.t.Helper()
	id, err := oneValue[string](s.store.queries, `SELECT app_id FROM grants ORDER BY id DESC LIMIT 1`)
	s.check(err)
	return id
}

// Against somebody who would learn of inner hosts: public addresses only are called, and each failure looks alike.
func TestDocument_isFetchedFromPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		saying(documentText("https://"+r.Host+"/x", nil))(w, r)
	}))
	t.Cleanup(inner.Close)
	s := quietService(t, takesDocuments, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow = []netip.Prefix{netip.MustParsePrefix(loopbackRange), netip.MustParsePrefix("10.0.0.0/8")}
	})
	names := map[string][]netip.Addr{"local.example.": addresses("127.0.0.1"),
		"private.example.": addresses("10.0.0.1"),
		"mapped.example.":  addresses("::ffff:127.0.0.1"), "empty.example.": {}}
	d := s.server.documents
	d.outbound.resolver, _ = resolverOf(t, func(name string, before int) []netip.Addr {
		if name == "rebinding.example." && before > 0 {
			return addresses("127.0.0.1")
		}
		return names[name]
	})
	v, bodies := s.signedIn(s.account), map[string]bool{}
	for _, host := range []string{"local.example", "private.example", "mapped.example", "empty.example", "none.example",
		"rebinding.example", "rebinding.example"} {
		page := v.authorize(documentQuery("https://"+host+"/x", claudeBack), nil).nowhere(400, "be fetched")
		bodies[strings.ReplaceAll(page.body, host, "HOST")] = true
		d.kept = map[string]*keptDocument{}
		_, err := d.outbound.do(t.Context(), outboundRequest{method: "GET", url: "https://" + host + "/x"})
		failIf(t, reasonOf(err) != outboundNoAddress, "%s: %v", host, err)
	}
	failIf(t, len(bodies) != 1, "%d different pages", len(bodies))
	failIf(t, reached.Load() != 0, "an inner address was called")
}

// Against one caller who would fill what is kept, or have hosts called for nothing.
func TestDocument_fetchesAreLimitedByCallerAndHost(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	s.server.monotonic = standsStill()
	v := s.signedIn(s.account)
	for i := range documentsOfCaller {
		s.publish(fmt.Sprintf("https://h%d.example/x", i), nil)
		v.authorize(documentQuery(fmt.Sprintf("https://h%d.example/x", i), claudeBack), nil).nowhere(200)
	}
	for range documentsOfHost { // uses up nothing of the host
		v.authorize(documentQuery("https://claude.example/more", claudeBack), nil).nowhere(429)
	}
	v.authorize(documentQuery("https://h1.example/x", claudeBack), nil).nowhere(200) // is kept
	failIf(t, s.fetches("https://h1.example/x") != 1 || s.fetches("https://claude.example/more") != 0, "%v", s.asked)
	s.publish(claudeAddress, nil)
	s.signedIn(s.addAccount("another")).authorize(documentQuery(claudeAddress, claudeBack), nil).nowhere(200)
	s.server.addressBuckets.empty("documents at claude.example", documentsOfHost, s.server.monotonic())
	third := s.signedIn(s.addAccount("third"))
	third.authorize(documentQuery(claudeAddress+"2", claudeBack), nil).nowhere(429)
	third.authorize(documentQuery(claudeAddress, claudeBack), nil).nowhere(200)
}

func TestDocument_isFetchedOnceHoweverManyAsk(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	release := make(chan struct{})
	s.answers(claudeAddress, func(w http.ResponseWriter, r *http.Request) {
		<-release
		saying(documentText(claudeAddress, nil))(w, r)
	})
	none := func() error { return nil }
	gone, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range 20 {
		ctx := t.Context()
		if i == 0 {
			ctx = gone
		}
		asking.Go(func() {
			k, err := s.server.documents.lookUp(ctx, claudeAddress, none)
			if i > 0 && (err != nil || k.app == nil) {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
	for s.fetches(claudeAddress) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel() // who began may go
	close(release)
	asking.Wait()
	failIf(t, s.fetches(claudeAddress) != 1, "%d fetches", s.fetches(claudeAddress))
}

func TestDocument_isKeptAsLongAsItSaysWithinBounds(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"": documentKeptLeast, "max-age=1": documentKeptLeast, "no-store, max-age=3000": documentKeptLeast,
		"max-age=1800": 30 * time.Minute, "Public, Max-Age=\"1800\"": 30 * time.Minute, "max-age=86400": time.Hour,
		"max-age=3000, no-cache":      documentKeptLeast,
		"max-age=9223372036854775807": documentKeptLeast, "max-age=99999999999999999999999": documentKeptLeast,
		"max-age=-5": documentKeptLeast, "max-age=x": documentKeptLeast,
	} {
		if got := keptFor(http.Header{"Cache-Control": {header}}); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}

func TestDocument_takesNoMoreMemoryThanThatOfAThousand(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	d, v := s.server.documents, s.signedIn(s.account)
	for i := range maxDocuments {
		d.kept[fmt.Sprint(i)] = &keptDocument{until: time.Now().Add(time.Hour)}
	}
	s.publish(claudeAddress, nil)
	for range 2 {
		v.authorize(documentQuery(claudeAddress, claudeBack), nil).nowhere(200)
	}
	failIf(t, len(d.kept) != maxDocuments || s.fetches(claudeAddress) != 1, "%d are kept", len(d.kept))
}

// Against a host that publishes many documents to get more than one application's share.
func TestDocument_isLimitedByItsHost(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	s.server.monotonic = standsStill()
	tenant := s.addAccount("Bistro")
	v := s.signedIn(tenant)
	s.server.outbound.resolver, _ = resolverOf(t, func(string, int) []netip.Addr { return addresses("93.184.215.14") })
	tokens := map[string]string{}
	for _, address := range []string{"https://a.example/1", "https://a.example/2", "https://b.example/1"} {
		s.publish(address, nil)
		q := documentQuery(address, claudeBack, "scope", scopeOrders+" "+scopeWebhooks)
		code := v.authorize(q, v.authorize(q, nil).agreeing()).sentTo(claudeBack).Get("code")
		tokens[address] = s.exchange(address, claudeBack, code).is(200).text("access_token")
		s.get("/orders", bearer(tokens[address])).is(200)
	}
	var made int
	for _, address := range []string{"https://a.example/1", "https://a.example/2"} {
		for range maxAppWebhooks {
			a := s.post("/webhooks", `{"url":"https://hooks.example.com/x","types":["order.created"]}`,
				bearer(tokens[address]))
			if a.status == 200 {
				made++
			}
		}
	}
	failIf(t, made != maxAppWebhooks, "%d webhooks of one host", made)
	queues, err := s.store.webhookQueues()
	failIf(t, err != nil || len(queues) != made, "%d queues, %v", len(queues), err)
	for _, q := range queues {
		equal(t, "the account whose places a webhook takes", q.holder, tenant)
	}
	s.server.accountBuckets.empty("app a.example "+tenant, 300, s.server.monotonic())
	s.get("/orders", bearer(tokens["https://a.example/1"])).is(429)
	s.get("/orders", bearer(tokens["https://a.example/2"])).is(429)
	s.get("/orders", bearer(tokens["https://b.example/1"])).is(200)
}

func TestDocument_canBeRemovedButNotChanged(t *testing.T) {
	t.Parallel()
	s := serviceWithDocuments(t)
	s.publish(claudeAddress, nil)
	v := s.signedIn(s.addAccount("Bistro"))
	a := s.exchange(claudeAddress, claudeBack, s.connect(v, claudeAddress, claudeBack)).is(200)
	id, auth := s.grantedApp(), s.appAuth(s.account)
	s.get("/apps", auth).contains(`"kind":"document"`, claudeAddress)
	s.do("PATCH", "/apps/"+id, `{"name":"Bank"}`, auth).is(404, "app_not_found").contains("Nobody has registered")
	s.post("/apps/"+id+"/rotate-secret", "", auth).is(409, "app_without_secret")
	_, err := s.command("app", "verify", id)
	failIf(t, err == nil, "the operator vouches for a document")
	s.do("DELETE", "/apps/"+id, "", auth).is(204)
	s.get("/orders", bearer(a.text("access_token"))).is(401)
	s.connect(v, claudeAddress, claudeBack)
	s.hasRows(2, "apps WHERE kind = 'document'")
}

func TestDocument_listIsOfAddressesThatCanBeDocuments(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for _, args := range [][]string{{"-client-document-list", claudeAddress},
		{"-client-documents", "-client-document-list", "https://claude.example"},
		{"-client-documents", "-client-document-list", claudeAddress + ",http://claude.example/x"}} {
		err := o.fails("needs -client-documents", append([]string{"serve", "-addr", "127.0.0.1:0"}, args...)...)
		failIf(t, !errors.As(err, new(usageError)), "%v is no usage error", err)
	}
}

func TestDocument_isSweptOnceNothingOfItIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := quietService(t, keepTokens(1))
		p, _ := s.registerApp(func(p *app) {
			p.Kind, p.HomePage, p.Host, p.VerifiedAt = appDocument, claudeAddress, ptr("claude.example"), stamp{}
		})
		_, id := s.appToken(p, s.account, scopeOrders)
		time.Sleep(days(20))
		s.check(s.sweepApps(t.Context()))
		s.hasRows(1, "apps")
		s.change(func(t *tx) error { return endGrant(t, anyAccount, id, endedByOwner, "test") })
		time.Sleep(days(1) - time.Minute)
		s.check(s.sweepApps(t.Context()))
		s.hasRows(1, "apps")
		time.Sleep(2 * time.Minute)
		s.check(s.sweepApps(t.Context()))
		s.hasRows(0, "apps")
	})
}
