package main

import "net/http"

// What programs are told of the authorization server and of the interface that its tokens are for
// (contract, section 13).

// serverMetadataPath stands before the path of the base address, which is the issuer (RFC 8414, section 3.1).
const serverMetadataPath = "/.well-known/oauth-authorization-server"

// oauthMetaWing makes the root paths of the metadata. There is metadata of the current base address only: a
// client must refuse metadata whose issuer is not the one that it asked for (RFC 8414, section 3.3), and codes
// and tokens name the current one, so an answer for an earlier one would be of no use to anybody.
func oauthMetaWing(s *server) wing {
	return wing{roots: []rootPath{
		{path: serverMetadataPath, ofBase: true, open: true, serve: s.showServerMetadata},
		{path: resourceMetadataPath, ofBase: true, open: true, serve: s.showResourceMetadata},
	}}
}

// The serverMetadata are the members of RFC 8414, section 2, and RFC 9207, section 3, that apply here.
type serverMetadata struct {
	Issuer               string   `json:"issuer"`
	Authorization        string   `json:"authorization_endpoint"`
	Token                string   `json:"token_endpoint"`
	Revocation           string   `json:"revocation_endpoint"`
	Keys                 string   `json:"jwks_uri"`
	Scopes               []string `json:"scopes_supported"`
	ResponseTypes        []string `json:"response_types_supported"`
	ResponseModes        []string `json:"response_modes_supported"`
	GrantTypes           []string `json:"grant_types_supported"`
	ChallengeMethods     []string `json:"code_challenge_methods_supported"`
	TokenMethods         []string `json:"token_endpoint_auth_methods_supported"`
	TokenAlgorithms      []string `json:"token_endpoint_auth_signing_alg_values_supported"`
	RevocationMethods    []string `json:"revocation_endpoint_auth_methods_supported"`
	RevokingAlgorithms   []string `json:"revocation_endpoint_auth_signing_alg_values_supported"`
	AnswersCarryIssuer   bool     `json:"authorization_response_iss_parameter_supported"`
	ProtectedResources   []string `json:"protected_resources"` // RFC 9728, section 4
	ServiceDocumentation string   `json:"service_documentation"`
}

// showServerMetadata answers GET /.well-known/oauth-authorization-server, followed by the path of the current
// base address (RFC 8414).
func (s *server) showServerMetadata(w *response, _ *http.Request) {
	rt := s.routing.Load()
	base := rt.bases[0].URL
	methods := []string{"client_secret_basic", "client_secret_post", "none"}
	algorithms := []string{"EdDSA"}
	s.writeMetadata(w, serverMetadata{
		Issuer:               base,
		Authorization:        base + "/oauth/authorize",
		Token:                base + "/oauth/token",
		Revocation:           base + "/oauth/revoke",
		Keys:                 rt.root + jwksPath,
		Scopes:               appScopes,
		ResponseTypes:        []string{"code"},
		ResponseModes:        []string{"query"},
		GrantTypes:           []string{"authorization_code", "refresh_token", "client_credentials"},
		ChallengeMethods:     []string{"S256"},
		TokenMethods:         methods,
		TokenAlgorithms:      algorithms,
		RevocationMethods:    methods,
		RevokingAlgorithms:   algorithms,
		AnswersCarryIssuer:   true,
		ProtectedResources:   []string{base},
		ServiceDocumentation: rt.root + "/docs#applications",
	})
}

// The resourceMetadata are the members of RFC 9728, section 2, that apply here. jwks_uri would name keys with
// which answers are signed, and none are.
type resourceMetadata struct {
	Resource      string   `json:"resource"`
	Servers       []string `json:"authorization_servers"`
	Scopes        []string `json:"scopes_supported"`
	BearerMethods []string `json:"bearer_methods_supported"`
	Name          string   `json:"resource_name"`
	Documentation string   `json:"resource_documentation"`
}

// showResourceMetadata answers GET /.well-known/oauth-protected-resource, followed by the path of the current
// base address (RFC 9728).
func (s *server) showResourceMetadata(w *response, _ *http.Request) {
	rt := s.routing.Load()
	base := rt.bases[0].URL
	s.writeMetadata(w, resourceMetadata{
		Resource:      base,
		Servers:       []string{base},
		Scopes:        appScopes,
		BearerMethods: []string{"header"},
		Name:          "widgetd",
		Documentation: rt.root + "/docs",
	})
}

// writeMetadata sends metadata as JSON that may be kept for five minutes, as the keys may.
func (s *server) writeMetadata(w *response, metadata any) {
	w.Header().Set("Cache-Control", "public, max-age=300")
	s.write(w, reply{http.StatusOK, encodeJSON(metadata)})
}
