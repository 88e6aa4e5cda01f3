package main

import "context"

// signinWing makes the route that makes codes to sign in with, and the chore that removes what has expired.
func signinWing(s *server) wing {
	return wing{
		routes: []route{{pattern: "POST /accounts/{id}/signin", token: tokenRequired, scope: scopeConsent,
			creates: true, noBody: true, run: endpoint(s.giveSigninCode)}},
		chores: []chore{{fault: "sessions and codes to sign in can't expire", timeDriven: true,
			run: s.expireSignins}},
	}
}

const signinsAtOnce = 1_000 // codes or sessions that one transaction removes

// expireSignins is the chore that removes codes and sessions whose time has passed.
func (s *server) expireSignins(ctx context.Context) error {
	_, err := s.store.updateInParts(ctx, signinsAtOnce, func(t *tx) (int64, error) {
		t.invalidate()
		return t.removeExpiredSignins(signinsAtOnce)
	})
	return err
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
