package main

import (
	"strings"
	"testing"
)

// Against a server in the middle that would have a client believe it is another issuer: the metadata names its
// issuer and is at the path of that issuer only.
func TestMetadata_followsTheBaseAddress(t *testing.T) {
	t.Parallel()
	s := quietService(t)
	s.get("/" + serverMetadataPath + "/v1").is(200)
	const next = "https://menus.example/api/v1"
	s.must("base-url", "set", next)
	s.check(s.server.refresh()) // which the service does once a second
	for path, member := range map[string]string{serverMetadataPath: "issuer", resourceMetadataPath: "resource"} {
		equal(t, member, s.get("/"+path+"/api/v1").is(200).text(member), next)
		s.damaged = true                                     // the document does not have that path any more
		if a := s.get("/" + path + "/v1"); a.status != 404 { // although routes below the earlier one answer
			t.Errorf("%s of the earlier address is %d", path, a.status)
		}
		s.damaged = false
	}
	const challenge = `Bearer realm="widgetd", ` +
		`resource_metadata="https://menus.example/.well-known/oauth-protected-resource/api/v1"`
	equal(t, "the challenge", s.get("/leads").header.Get("WWW-Authenticate"), challenge)
}

// TestMetadata_isNamedByEveryChallengeForAToken goes the way of a client that knows nothing but an address of the
// interface (RFC 9728, section 5).
func TestMetadata_isNamedByEveryChallengeForAToken(t *testing.T) {
	t.Parallel()
	s := quietService(t)
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
