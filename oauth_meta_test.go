package main

import (
	"strings"
	"testing"
)

func TestMetadata_saysWhatTheServiceDoes(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	const scopes = `"stats:read","leads:read","leads:write","licenses:read","devices:write","events:read",` +
		`"webhooks:write","orders:read","orders:write","revenue:read","books:write"`
	const base, root = "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"
	for path, want := range map[string]string{
		serverMetadataPath: `{"issuer":"` + base + `","authorization_endpoint":"` + base + `/oauth/authorize",` +
			`"token_endpoint":"` + base + `/oauth/token","revocation_endpoint":"` + base + `/oauth/revoke",` +
			`"jwks_uri":"` + root + `/.well-known/jwks.json","scopes_supported":[` + scopes + `],` +
			`"response_types_supported":["code"],"response_modes_supported":["query"],` +
			`"grant_types_supported":["authorization_code","refresh_token","client_credentials"],` +
			`"code_challenge_methods_supported":["S256"],` +
			`"token_endpoint_auth_methods_supported":["client_secret_basic","client_secret_post","none"],` +
			`"token_endpoint_auth_signing_alg_values_supported":["EdDSA"],` +
			`"revocation_endpoint_auth_methods_supported":["client_secret_basic","client_secret_post","none"],` +
			`"revocation_endpoint_auth_signing_alg_values_supported":["EdDSA"],` +
			`"authorization_response_iss_parameter_supported":true,"protected_resources":["` + base + `"],` +
			`"service_documentation":"` + root + `/docs#applications"}` + "\n",
		resourceMetadataPath: `{"resource":"` + base + `","authorization_servers":["` + base + `"],` +
			`"scopes_supported":[` + scopes + `],"bearer_methods_supported":["header"],"resource_name":"widgetd",` +
			`"resource_documentation":"` + root + `/docs"}` + "\n",
	} {
		a := s.get("/" + path + "/v1").is(200)
		failIf(t, a.body != want, "%s answers\n%s\nwant\n%s", path, a.body, want)
		a.has("Content-Type: application/json", "Cache-Control: public, max-age=300", "RateLimit: ")
		s.do("HEAD", "/"+path+"/v1", "").is(200)
		s.post("/"+path+"/v1", `{}`).is(405, "method_not_allowed").has("Allow: GET, HEAD, OPTIONS")
		s.get("/"+path).is(404, "not_found") // the issuer has a path
		s.get("/"+path+"/v1/").is(404, "not_found")
		for _, origin := range []string{siteOrigin, "https://elsewhere.example", "null"} {
			s.get("/"+path+"/v1", "Origin: "+origin).is(200).has("Access-Control-Allow-Origin: *", "Vary: ")
			s.do("OPTIONS", "/"+path+"/v1", "", "Origin: "+origin).is(204).has("Access-Control-Allow-Origin: *",
				"Access-Control-Allow-Methods: GET, HEAD", "Access-Control-Allow-Credentials: ")
		}
	}
	s.get("//.well-known/jwks.json", "Origin: https://elsewhere.example").is(200).has("Access-Control-Allow-Origin: *")
	for endpoint := range map[string]bool{"authorization": true, "token": true, "revocation": true} {
		named := s.get("/" + serverMetadataPath + "/v1").text(endpoint + "_endpoint")
		if path, ok := strings.CutPrefix(named, base); !ok || !hasPath(s.server, path) {
			t.Errorf("there is no %s", named)
		}
	}
}

// hasPath reports whether a route has a path.
func hasPath(s *server, path string) bool {
	for i := range s.routes {
		if s.routes[i].path() == path {
			return true
		}
	}
	return false
}

func TestMetadata_followsTheBaseAddress(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	s.get("/" + serverMetadataPath + "/v1").is(200)
	const next = "https://menus.example/api/v1"
	s.must("base-url", "set", next)
	s.check(s.server.refresh()) // which the service does once a second
	for path, member := range map[string]string{serverMetadataPath: "issuer", resourceMetadataPath: "resource"} {
		expect(t, s.get("/"+path+"/api/v1").is(200).text(member), next, "%s", member)
		s.damaged = true                                     // the document does not have that path any more
		if a := s.get("/" + path + "/v1"); a.status != 404 { // although routes below the earlier one answer
			t.Errorf("%s of the earlier address is %d", path, a.status)
		}
		s.damaged = false
	}
	const challenge = `Bearer realm="widgetd", ` +
		`resource_metadata="https://menus.example/.well-known/oauth-protected-resource/api/v1"`
	expect(t, s.get("/leads").header.Get("WWW-Authenticate"), challenge, "the challenge")
}

// TestMetadata_isNamedByEveryChallengeForAToken goes the way of a client that knows nothing but an address of the
// interface (RFC 9728, section 5).
func TestMetadata_isNamedByEveryChallengeForAToken(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	asked := 0
	for _, r := range allRoutes() {
		path := strings.NewReplacer("{id}", "x", "{device}", "x", "{delivery}", "x", "{export}", "x").Replace(r.path())
		if r.token == tokenRequired && r.origin == originAny {
			s.do(r.method(), path, "").challenged(401, "token_required", bareChallenge)
			asked++
		}
		if r.token != tokenIgnored && r.origin == originAny {
			s.do(r.method(), path, "", "Authorization: Bearer x").challenged(401, "invalid_token", invalidChallenge)
		}
	}
	failIf(t, asked < 40, "asked %d routes only", asked)
	s.get("/orders", s.auth(s.account, scopeLeads)).
		challenged(403, "insufficient_scope", scopeChallenge(scopeOrders)) // another token would not help by itself
	_, named, _ := strings.Cut(bareChallenge, `resource_metadata="http://127.0.0.1:8080`)
	resource := s.get("/" + strings.TrimSuffix(named, `"`)).is(200)
	failIf(t, resource.text("resource") != testBase, "the resource is %s", resource.text("resource"))
	issuer := resource.json()["authorization_servers"].([]any)[0]
	if got := s.get("/" + serverMetadataPath + "/v1").text("issuer"); got != issuer || got != testBase {
		t.Errorf("the issuer is %s, and the resource names %s", got, issuer)
	}
}
