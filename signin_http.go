package main

import "context"

// signinWing makes the route that makes codes to sign in with.
func signinWing(s *server) wing {
	return wing{routes: []route{{pattern: "POST /accounts/{id}/signin", token: tokenRequired, scope: scopeConsent,
		creates: true, noBody: true, run: endpoint(s.giveSigninCode)}}}
}

// signinRequest is the path of POST /accounts/{id}/signin.
type signinRequest struct{ account string }

func (q *signinRequest) read(in *input) { q.account = in.pathValue("id") }

// A signinCodeView is a new code to sign in with, which is in this answer and in no other.
type signinCodeView struct {
	Code      string `json:"code"` // "XXXX-XXXX-XXXX"
	ExpiresAt stamp  `json:"expires_at"`
}

// giveSigninCode answers POST /accounts/{id}/signin. Whoever has the code can agree to anything for the
// account, so a token of one account does not get it, not even for that account.
func (s *server) giveSigninCode(ctx context.Context, c *call, q *signinRequest) (*signinCodeView, error) {
	if !c.caller.all {
		return nil, errScope(scopeConsent, "This needs a token that may act on all accounts.")
	}
	return create(ctx, s, c, func(t *tx) (*signinCodeView, error) {
		code, until, err := makeSigninCode(t, s.keys.Load(), q.account, actorToken(c))
		return &signinCodeView{code, until}, err
	})
}
