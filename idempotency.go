package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Idempotency-Keys (contract, section 1): the answer to a request that creates is kept
// for a day under its key, and serves again.

// The problem codes of Idempotency-Keys.
var (
	idempotencyProblems problemTable

	codeMalformedHeader = idempotencyProblems.add(400, "malformed_header", "Malformed header",
		"An Idempotency-Key has 1 to 255 visible ASCII characters.")
	codeIdempotencyInProgress = idempotencyProblems.add(409, "idempotency_in_progress", "The same request is still running",
		"A request with this Idempotency-Key is still running.")
	codeIdempotencyKeyReused = idempotencyProblems.add(422, "idempotency_key_reused", "Idempotency-Key reused",
		"This Idempotency-Key was used with another body or path.")
)

// inProgress holds the idempotent requests that are running.
type inProgress struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (p *inProgress) begin(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ids[id] {
		return false
	}
	if p.ids == nil {
		p.ids = map[string]bool{}
	}
	p.ids[id] = true
	return true
}

func (p *inProgress) end(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ids, id)
}

// readIdempotencyKey reads 1 to 255 visible ASCII characters, bare or quoted, on
// a route that creates; others ignore the header.
func (c *call) readIdempotencyKey() error {
	values := c.request.Header.Values("Idempotency-Key")
	if !c.route.creates || len(values) == 0 {
		return nil
	}
	key := values[0]
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	if len(values) > 1 || key == "" || len(key) > 255 || strings.IndexFunc(key, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return &refusal{code: codeMalformedHeader}
	}
	c.idemKey = key
	return nil
}

// create runs f in a transaction and honours the call's Idempotency-Key: what f
// returned is sealed and stored in the same transaction, and serves again for 24
// hours. Only success is stored.
func create[Res any](ctx context.Context, s *server, c *call, f func(*tx) (Res, error)) (res Res, err error) {
	if c.idemKey == "" {
		err = s.store.update(ctx, func(t *tx) (err error) {
			res, err = f(t)
			return err
		})
		return res, err
	}
	keys := s.keys.Load()
	id := keys.hash("idempotency scope", s.idempotencyCaller(c), c.route.pattern, c.idemKey)
	path, _ := s.routing.Load().inBase(c.request.URL.Path) // a route with an id in it has many
	request := keys.hash("idempotency request", path, string(c.body))
	if !s.running.begin(string(id)) {
		return res, &refusal{code: codeIdempotencyInProgress, retryAfter: time.Second}
	}
	defer s.running.end(string(id))
	err = s.store.update(ctx, func(t *tx) (err error) {
		if c.replay, err = c.earlierAnswer(t, keys, id, request); err != nil || c.replay != nil {
			t.invalidate() // a replay changes no row
			return err
		}
		if res, err = f(t); err != nil {
			return err
		}
		var plain []byte // nothing: 204
		if _, empty := any(res).(noContent); !empty {
			plain = encodeJSON(res)
		}
		return t.storeAnswer(id, storedAnswer{request: request, sealed: keys.seal(c.idemKey, plain)})
	})
	if err != nil {
		c.replay = nil
	}
	return res, err
}

// earlierAnswer returns what the call's Idempotency-Key was answered with, or nil when
// the key is free. id is the hash that the answer is kept under, request that of the
// body. Errors: idempotency_key_reused, the store's.
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
	plain, err := keys.unseal(c.idemKey, stored.sealed)
	if err != nil {
		return nil, fmt.Errorf("%w (open a stored answer: %w)", errStorage, err)
	}
	if len(plain) == 0 {
		return &reply{status: http.StatusNoContent}, nil
	}
	return &reply{http.StatusOK, plain}, nil
}

// idempotencyCaller names whose Idempotency-Key it is: the token's account, else
// licence and fingerprint, else the charged account with the address.
func (s *server) idempotencyCaller(c *call) string {
	switch {
	case c.caller != nil && !c.caller.claims.isDevice():
		return "account " + c.caller.claims.Subject
	case c.idemScope != "":
		return c.idemScope
	}
	return "address " + c.account + " " + s.address(c.request)
}
