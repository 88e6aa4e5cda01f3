package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Idempotency-Keys (contract, section 1): the answer to a request that creates something is stored
// under the request's key, mostly for a day, and a repeated request gets it again.

// The problem codes of Idempotency-Keys.
var (
	idempotencyProblems problemTable

	codeMalformedHeader = idempotencyProblems.add(400, "malformed_header", "Malformed header",
		"The Idempotency-Key must be given once and have 1 to 255 visible ASCII characters.",
		"Send `Idempotency-Key` once, with 1 to 255 visible ASCII characters.")
	codeIdempotencyInProgress = idempotencyProblems.add(409, "idempotency_in_progress",
		"The same request is still running",
		"A request with this Idempotency-Key is still running; wait for its answer.",
		"Wait `Retry-After` seconds and send it again.")
	codeIdempotencyKeyReused = idempotencyProblems.add(422, "idempotency_key_reused",
		"Idempotency-Key reused",
		"This Idempotency-Key was already used with another body or path. Choose a new one for a new request.",
		"Take a new key for a new request.")
)

// readIdempotencyKey reads the Idempotency-Key of a request to a route that creates; other routes
// ignore the header. It is 1 to 255 visible ASCII characters, perhaps in double quotes, which are
// dropped. Errors: malformed_header.
func (c *call) readIdempotencyKey() error {
	values := c.request.Header.Values("Idempotency-Key")
	if !c.core.route.creates || len(values) == 0 {
		return nil
	}
	key := values[0]
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	if len(values) > 1 || key == "" || len(key) > 255 || strings.IndexFunc(key, isNotVisible) >= 0 {
		return &refusal{code: codeMalformedHeader}
	}
	c.core.idemKey = key
	return nil
}

// repeatAs has a call whose body is a text treated like one that came with an Idempotency-Key.
func (c *call) repeatAs(key, text string) { c.core.idemKey, c.core.body = key, []byte(text) }

// hasIdempotencyKey reports whether a call came with an Idempotency-Key.
func (c *call) hasIdempotencyKey() bool { return c.core.idemKey != "" }

// create runs f in a transaction. If the call has an Idempotency-Key, f's result is encrypted
// and stored in the same transaction for a day or route.repeatable. A repeated call within that time does not run f,
// unless c.stillTrue denies it: it sets c.replay to the stored answer, and returns a zero result
// that must be ignored.
// Errors of f are not stored. Errors: those of f and of update, idempotency_in_progress,
// idempotency_key_reused.
func create[Res any](
	ctx context.Context, s *server, c *call, f func(*tx) (Res, error),
) (res Res, err error) {
	if c.core.idemKey == "" || c.in.dry {
		return enact(ctx, s, c, f)
	}
	keys := s.keys.Load()
	id := keys.hash("idempotency scope", s.idempotencyCaller(c), c.core.route.pattern, c.core.idemKey)
	path, _ := s.routing.Load().inBase(c.request.URL.Path) // distinguishes what the route's wildcards match
	if account := c.in.query.Get("account_id"); account != "" {
		path += "?account_id=" + account
	}
	request := keys.hash("idempotency request", path, string(c.core.body))
	alone := ceiling[string]{string(id), 1}
	if s.running.add(1, alone) != nil {
		return res, &refusal{code: codeIdempotencyInProgress, retryAfter: time.Second}
	}
	defer s.running.add(-1, alone)
	err = s.store.update(ctx, func(t *tx) (err error) {
		if c.replay, err = c.earlierAnswer(t, keys, id, request); err != nil || c.replay != nil {
			return err
		}
		if res, err = f(t); err != nil {
			return err
		}
		var plain []byte // empty for an answer without a body (204)
		if any(res) != any(noContent) {
			plain = encodeJSON(res)
		}
		t.storeAnswer(id, storedAnswer{request: request, sealed: keys.seal(c.core.idemKey, plain)},
			cmp.Or(c.core.route.repeatable, 24*time.Hour))
		return nil
	})
	if err != nil {
		c.replay = nil
	}
	return res, err
}

// enact runs f in a transaction, and returns what f has returned. With ?dry_run=true the transaction is rolled back,
// so that nothing stays but the answer, and nobody is told of anything; what else a handler does, it leaves out then.
func enact[Res any](ctx context.Context, s *server, c *call, f func(*tx) (Res, error)) (res Res, err error) {
	err = s.store.update(ctx, func(t *tx) (err error) {
		if res, err = f(t); err != nil || !c.in.dry {
			return err
		}
		return cmp.Or(t.end(), errTried)
	})
	return res, except(err, errTried)
}

// errTried is the error of a transaction that only tells what it would do.
var errTried = errors.New("only tried")

// earlierAnswer returns the stored answer to an earlier call with the same Idempotency-Key, or nil
// if there was none or it is no longer true. id is the hash that the answer is stored under, request
// the hash of path and body. Errors: idempotency_key_reused, those of the store.
func (c *call) earlierAnswer(t *tx, keys *keyring, id, request []byte) (*reply, error) {
	stored, err := t.storedAnswer(id)
	switch {
	case errors.Is(err, errNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !bytes.Equal(stored.request, request):
		return nil, &refusal{code: codeIdempotencyKeyReused}
	}
	plain, err := keys.unseal(c.core.idemKey, stored.sealed)
	if err != nil {
		return nil, fmt.Errorf("%w (decrypt a stored answer: %w)", errStorage, err)
	}
	if c.stillTrue != nil {
		if ok, err := c.stillTrue(t, plain); err != nil || !ok {
			return nil, err
		}
	}
	if len(plain) == 0 {
		return noContent, nil
	}
	return &reply{status: http.StatusOK, body: plain}, nil
}

// idempotencyCaller identifies the sender of an Idempotency-Key, so that two callers that choose
// the same key don't get each other's answers: by the token's account, and its application if it has one,
// else by licence and fingerprint (idemScope), else by the charged account and the client's address.
func (s *server) idempotencyCaller(c *call) string {
	switch {
	case c.caller != nil && c.caller.app != "":
		return "app " + c.caller.app + " " + c.caller.claims.Subject
	case c.caller != nil && !c.caller.claims.isDevice():
		return "account " + c.caller.claims.Subject
	case c.idemScope != "":
		return c.idemScope
	}
	return "address " + c.core.account + " " + s.address(c.request)
}

// replaysOf returns a call.stillTrue that gives the answer to an earlier call with the same Idempotency-Key only
// to a caller that acts on the rows of o: ?account_id= is not compared with that of the earlier call. allows gets
// the answer, decoded as T, and returns an error if the caller must not have it all the same: another token of
// the account may have fewer scopes.
func replaysOf[T any](o owner, allows func(made *T) error) func(*tx, []byte) (bool, error) {
	return func(_ *tx, answer []byte) (bool, error) {
		var made struct {
			AccountID string `json:"account_id"`
		}
		more := new(T)
		if err := cmp.Or(json.Unmarshal(answer, &made), json.Unmarshal(answer, more)); err != nil {
			return false, fmt.Errorf("decode a stored answer: %w", err)
		}
		if !o.owns(made.AccountID) {
			return false, &refusal{code: codeIdempotencyKeyReused}
		}
		return true, allows(more)
	}
}

// anyReplay is passed to replaysOf where every caller of the account may have the answer.
func anyReplay(*struct{}) error { return nil }
