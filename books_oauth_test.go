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

func TestOAuthClient_asksAsTheRFCSays(t *testing.T) {
	t.Parallel()
	address, last := answering(t, 200, `{"access_token":"at","token_type":"bearer","expires_in":1800,`+
		`"refresh_token":"rt","scope":"a b"}`)
	app := appSecrets{"id:1", "s+cret/of the app%~é"}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"old&new"}}
	header := http.Header{"X-Tenant": {"7"}}
	tokens, err := requestTokens(t.Context(), outboundTo(t, loopbackRange), address, app, form, header, time.Hour,
		answersNow)
	must(t, err)
	ends := newStamp(answersNow().Add(30 * time.Minute))
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
		_, err := requestTokens(t.Context(), outboundTo(t, loopbackRange), address, app, form, nil, time.Hour,
			answersNow)
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
			t.Errorf("%d: %#v", status, err)
		}
	}
	nowhere := "http://127.0.0.1:1/" + secret
	for _, out := range []*outbound{outboundTo(t, loopbackRange), newOutbound(nil)} { // one may not call it
		_, err := requestTokens(t.Context(), out, nowhere, app, form, nil, time.Hour, answersNow)
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
			t.Errorf("%+v", err)
		}
	}
}
