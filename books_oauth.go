package main

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The client's side of OAuth 2.0 that both products share (RFC 6749; contract, section 12).

const (
	maxOAuthWord    = 100
	maxTokenAnswer  = 32 << 10 // bytes; Xero's access tokens are JWTs of some 2 KB
	maxAccessToken  = 16 << 10
	maxRefreshToken = 4 << 10
	minTokenLife    = time.Minute // less is taken as this
	maxTokenLife    = 24 * time.Hour
)

// grantErrors are the errors of token endpoints about which somebody has to do something: invalid_grant the owner
// of the connection, the others the operator (RFC 6749, section 5.2).
var grantErrors = []string{"invalid_grant", "invalid_client", "unauthorized_client", "invalid_scope"}

// operatorsGrantErrors are those about which only the operator can do something.
var operatorsGrantErrors = []string{"invalid_client", "unauthorized_client", "invalid_scope"}

// requestTokens posts a form to a token endpoint. The application proves itself by HTTP Basic, both halves
// form-encoded (RFC 6749, section 2.3.1). now is the wall clock from which the tokens' life counts.
// Errors: a *ledgerError, a *grantError.
func requestTokens(
	ctx context.Context, out *outbound, endpoint string, app appSecrets, form url.Values, header http.Header,
	now func() time.Time,
) (*bookTokens, error) {
	if header == nil {
		header = http.Header{}
	}
	proof := url.QueryEscape(app.clientID) + ":" + url.QueryEscape(app.clientSecret)
	header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(proof)))
	header.Set("Content-Type", "application/x-www-form-urlencoded")
	header.Set("Accept", "application/json")
	asked := now()
	body := []byte(form.Encode())
	answer, err := out.do(ctx, outboundRequest{http.MethodPost, endpoint, header, body, maxTokenAnswer})
	if err != nil {
		return nil, unanswered(err)
	}
	said, err := parseJSON(answer.body)
	if answer.status != http.StatusOK {
		if code := textMember(&said, "error", maxOAuthWord); err == nil && isGrantError(code) {
			return nil, &grantError{code}
		}
		wait, _ := retryAfter(answer.header, now())
		return nil, &ledgerError{status: answer.status, reason: "token_endpoint", retryAfter: wait}
	}
	tokens := &bookTokens{
		Access:  textMember(&said, "access_token", maxAccessToken),
		Refresh: textMember(&said, "refresh_token", maxRefreshToken),
	}
	if kind := textMember(&said, "token_type", maxOAuthWord); err != nil || tokens.Access == "" ||
		!strings.EqualFold(kind, "Bearer") {
		return nil, malformedLedger(answer.status)
	}
	tokens.ExpiresAt = newStamp(asked.Add(tokenLife(&said)))
	return tokens, nil
}

// tokenLife returns how long the access token of an answer lasts, between minTokenLife and maxTokenLife.
func tokenLife(answer *jsonValue) time.Duration {
	v, ok := answer.member("expires_in")
	if !ok {
		return minTokenLife
	}
	seconds, _ := v.integer()
	most := int64(maxTokenLife / time.Second)
	return max(time.Duration(min(max(seconds, 0), most))*time.Second, minTokenLife)
}

func isGrantError(code string) bool { return slices.Contains(grantErrors, code) }

// unanswered makes a ledgerError of a request that has no answer.
func unanswered(err error) *ledgerError {
	var broken *outboundError
	if errors.As(err, &broken) {
		return &ledgerError{reason: broken.reason}
	}
	return &ledgerError{reason: outboundNoConnect}
}

// malformedLedger returns the error of an answer that can't be used, though its status is 2xx.
func malformedLedger(status int) *ledgerError {
	return &ledgerError{status: status, reason: outboundMalformed}
}
