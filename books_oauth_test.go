package main

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

// askTokens asks for tokens without anything that is sent.
func askTokens(t testing.TB, out *outbound, address string) (*bookTokens, error) {
	return requestTokens(t.Context(), out, address, appSecrets{}, url.Values{}, nil, time.Hour, oauthNow)
}

// oauthNow is the wall clock of these tests.
func oauthNow() time.Time { return time.Date(2026, 11, 23, 6, 0, 0, 500, time.UTC) }

func TestOAuthClient_asksAsTheRFCSays(t *testing.T) {
	t.Parallel()
	address, last := answering(t, 200, `{"access_token":"at","token_type":"bearer","expires_in":1800,`+
		`"refresh_token":"rt","scope":"a b"}`)
	app := appSecrets{"id:1", "s+cret/of the app%~é"}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"old&new"}}
	header := http.Header{"X-Tenant": {"7"}}
	tokens, err := requestTokens(t.Context(), outboundTo(t, loopbackRange), address, app, form, header, time.Hour,
		oauthNow)
	must(t, err)
	ends := newStamp(oauthNow().Add(30 * time.Minute))
	if want := (&bookTokens{Access: "at", Refresh: "rt", ExpiresAt: ends}); !reflect.DeepEqual(tokens, want) {
		t.Errorf("%+v", tokens)
	}
	r := last()
	id, secret, ok := r.BasicAuth()
	if !ok || id != "id%3A1" || secret != "s%2Bcret%2Fof+the+app%25~%C3%A9" { // RFC 6749, section 2.3.1
		t.Errorf("%s %s", id, secret)
	}
	if r.Method != "POST" || !reflect.DeepEqual(r.PostForm, form) || r.URL.RawQuery != "" ||
		r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.Header.Get("X-Tenant") != "7" ||
		r.Header.Get("Accept") != "application/json" {
		t.Errorf("%s %v %v", r.Method, r.PostForm, r.Header)
	}
}

func TestOAuthClient_answersAndWhatTheyMean(t *testing.T) {
	t.Parallel()
	good := func(more string) string { return `{"access_token":"at","token_type":"Bearer"` + more + `}` }
	lasting := func(life time.Duration) *bookTokens {
		return &bookTokens{Access: "at", ExpiresAt: newStamp(oauthNow().Add(life))}
	}
	malformed := &ledgerError{status: 200, reason: outboundMalformed}
	endpoint := func(status int) error { return &ledgerError{status: status, reason: "token_endpoint"} }
	for _, c := range []struct {
		status int
		body   string
		want   *bookTokens
		err    error
	}{
		{200, good(`,"expires_in":3600`), lasting(time.Hour), nil},
		{200, good(``), lasting(time.Hour), nil},
		{200, good(`,"expires_in":59`), lasting(59 * time.Second), nil},
		{200, good(`,"expires_in":-9223372037`), lasting(0), nil},
		{200, good(`,"expires_in":9223372036854775807`), lasting(maxTokenLife), nil},
		{200, good(`,"expires_in":"7200"`), lasting(time.Hour), nil},
		{200, good(`,"expires_in":3600,"refresh_token":7`), lasting(time.Hour), nil},
		{200, good(`,"expires_in":3600,"refresh_token":"` + strings.Repeat("r", maxRefreshToken+1) + `"`),
			lasting(time.Hour), nil},
		{200, `{"access_token":"at"}`, nil, malformed},
		{200, `{"access_token":"at","token_type":"mac"}`, nil, malformed},
		{200, `{"access_token":"","token_type":"Bearer"}`, nil, malformed},
		{200, `{"access_token":"a\u000at","token_type":"Bearer"}`, nil, malformed},
		{200, `{"access_token":"` + strings.Repeat("a", maxAccessToken+1) + `","token_type":"Bearer"}`, nil, malformed},
		{200, `{"access_token":"at","access_token":"b","token_type":"Bearer"}`, nil, malformed},
		{200, ``, nil, malformed},
		{200, `"at"`, nil, malformed},
		{200, good(`,"x":"` + strings.Repeat("x", maxTokenAnswer) + `"`), nil, &ledgerError{reason: outboundTooLarge}},
		{201, good(``), nil, endpoint(201)},
		{302, ``, nil, endpoint(302)},
		{400, `{"error":"invalid_grant","error_description":"rt is used"}`, nil, &grantError{"invalid_grant"}},
		{401, `{"error":"invalid_client"}`, nil, &grantError{"invalid_client"}},
		{400, `{"error":"unauthorized_client"}`, nil, &grantError{"unauthorized_client"}},
		{400, `{"error":"invalid_scope"}`, nil, &grantError{"invalid_scope"}},
		{403, `{"error":"access_denied"}`, nil, endpoint(403)},
		{400, `{"error":"invalid_request"}`, nil, endpoint(400)},
		{400, `{"error":["invalid_grant"]}`, nil, endpoint(400)},
		{400, `error=invalid_grant`, nil, endpoint(400)},
		{401, ``, nil, endpoint(401)},
		{500, `<html>`, nil, endpoint(500)},
	} {
		address, _ := answering(t, c.status, c.body)
		got, err := askTokens(t, outboundTo(t, loopbackRange), address)
		if !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(err, c.err) {
			t.Errorf("%d %.60s: %+v, %v", c.status, c.body, got, err)
		}
	}
}

func TestOAuthClient_waitsAsItIsAskedTo(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 503} {
		address, _ := answering(t, status, "", "Retry-After: 17")
		_, err := askTokens(t, outboundTo(t, loopbackRange), address)
		isLedgerError(t, err, ledgerError{status: status, reason: "token_endpoint", retryAfter: 17 * time.Second})
	}
	address, _ := answering(t, 200, "")
	isLedgerError(t, second(askTokens(t, newOutbound(nil), address)), ledgerError{reason: outboundRefused})
}

// TestOAuthClient_errorsNameNoSecrets has what goes out, and what comes back, in no text of an error.
func TestOAuthClient_errorsNameNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	app := appSecrets{"id", secret}
	form := url.Values{"refresh_token": {secret}, "code": {secret}, "code_verifier": {secret}}
	for status, body := range map[int]string{
		200: `{"access_token":"` + secret + `"}`,
		400: `{"error":"invalid_grant","error_description":"` + secret + `"}`,
		401: `{"error":"` + secret + `"}`,
		500: secret,
	} {
		address, _ := answering(t, status, body, "Location: /"+secret)
		_, err := requestTokens(t.Context(), outboundTo(t, loopbackRange), address, app, form, nil, time.Hour, oauthNow)
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
			t.Errorf("%d: %#v", status, err)
		}
	}
	nowhere := "http://127.0.0.1:1/" + secret
	_, err := requestTokens(t.Context(), outboundTo(t, loopbackRange), nowhere, app, form, nil, time.Hour, oauthNow)
	if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
		t.Errorf("%+v", err)
	}
}
