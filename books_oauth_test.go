package main

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
)

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
