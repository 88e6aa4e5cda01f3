package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Sessions with books: when requests may be made, and the tokens that authorize them. Only one call in one process
// replaces the tokens of a connection at a time, and new ones are on disk before they are used, so that after a
// lost answer or a kill there still are tokens that the product accepts (contract, section 12).

const (
	tokenMargin      = time.Minute      // an access token that ends sooner is replaced
	renewEvery       = time.Minute      // between two successful renewals of a connection, at least
	tokenClaim       = 45 * time.Second // how long a claim on replacing tokens lasts: longer than a request
	tokenPoll        = 200 * time.Millisecond
	faultBooksTokens = "tokens of books can't be replaced"
	reasonUnsealable = "sealed_with_another_key"
	reasonAppNotSet  = "app_not_set"
	reasonAppRefused = "app_refused"
	reasonOff        = "off"
	reasonNewRefused = "new_token_refused"

	reasonRateLimited = "rate_limited" // too many requests, by the product's answer or by what it allows
)

// waitTurn returns once another request may be made for a connection. If that is only after ctx ends, it returns an
// error at once. Errors: an *outboundError with vendorBusy and no status.
func (b *books) waitTurn(ctx context.Context, c *bookConnection) error {
	product := c.product()
	most := roundLimit
	if until, limited := ctx.Deadline(); limited {
		most = time.Until(until)
	}
	wait, ok := b.pace.reserve(c.ID, b.monotonic(), product.requests, product.within, most)
	if !ok {
		return &outboundError{outcome: vendorBusy, reason: reasonRateLimited, wait: wait}
	}
	select {
	case <-ctx.Done():
		return &outboundError{outcome: vendorBusy, reason: reasonRateLimited}
	case <-time.After(wait):
		return nil
	}
}

// appSecrets returns the application of a product. Errors: an *outboundError.
func (b *books) appSecrets(product string) (app appSecrets, err error) {
	row, err := b.store.booksApp(product)
	if errors.Is(err, errNotFound) {
		return app, &outboundError{reason: reasonAppNotSet}
	}
	if err != nil {
		return app, err
	}
	secret, err := b.keys().unsealFor(sealedBooksApp, product, row.Sealed)
	if err != nil {
		return app, &outboundError{reason: reasonUnsealable}
	}
	return appSecrets{row.ClientID, string(secret)}, nil
}

// sealTokens returns the sealed tokens of a connection, as they are stored.
func sealTokens(keys *keyring, connectionID string, tokens *bookTokens) ([]byte, error) {
	plain, err := json.Marshal(tokens)
	return keys.sealFor(sealedBooksConnection, connectionID, plain), err
}

// openTokens returns the tokens of a connection. Errors: an *outboundError.
func openTokens(keys *keyring, c *bookConnection) (*bookTokens, error) {
	if c.Sealed == nil {
		return nil, &outboundError{outcome: vendorOwnerGone, reason: heldReconnect}
	}
	plain, err := keys.unsealFor(sealedBooksConnection, c.ID, c.Sealed)
	tokens := &bookTokens{}
	if err != nil || json.Unmarshal(plain, tokens) != nil {
		return nil, &outboundError{reason: reasonUnsealable}
	}
	return tokens, nil
}

// ask calls f with a session of a connection in use. f must be safe to call twice: if the product refuses the
// access token, ask replaces it and calls f once more. Errors: as askOnce.
func (b *books) ask(ctx context.Context, id string, f func(*ledgerSession) error) error {
	used, err := b.askOnce(ctx, id, -1, f)
	if used >= 0 && vendorSaid(err) == vendorDenied {
		_, err = b.askOnce(ctx, id, used, f)
	}
	return err
}

// askOnce is ask for an f that writes, and calls it only once: a 401 does not prove that nothing was written, so the
// caller first looks for the entry with ask, which replaces the token. stale is as in session; used is how often the
// tokens that f used had been replaced, or -1 if f was not called. If the product says that the application was removed
// there, that is noted. Errors: those of f, an *outboundError, errBooksConnection.
func (b *books) askOnce(
	ctx context.Context, id string, stale int64, f func(*ledgerSession) error,
) (used int64, err error) {
	s, err := b.session(ctx, id, stale)
	if err != nil {
		return -1, err
	}
	if err = f(s); vendorSaid(err) == vendorOwnerGone {
		err = errors.Join(err, b.needOwner(context.WithoutCancel(ctx), s.connection, err))
	}
	return s.connection.Tokens, err
}

// session returns a session of a connection in use. It replaces the tokens first if they end soon, or if they are
// still those that the product refused: stale is how often they had been replaced by then, or -1 if none were
// refused. Those that were just renewed are used as they are; that the product refuses them is an error then. Where
// no product is asked (books.off) there is no session: replacing tokens on a copy of a database would invalidate those
// of the original.
func (b *books) session(ctx context.Context, id string, stale int64) (*ledgerSession, error) {
	if b.off() {
		return nil, &outboundError{reason: reasonOff, err: b.noOutside}
	}
	for {
		c, err := b.store.usedBookConnection(anyAccount, id)
		if err != nil {
			return nil, err
		}
		if !c.NeedsReconnectAt.IsZero() {
			return nil, &outboundError{outcome: vendorOwnerGone, reason: heldReconnect}
		}
		tokens, err := openTokens(b.keys(), c)
		if err != nil {
			return nil, err
		}
		age := b.now().Sub(tokens.RenewedAt) // after the clock was set back, they are not new
		isNew := age >= 0 && age < renewEvery
		if c.Tokens != stale && (isNew || tokens.ExpiresAt.Sub(b.now()) > tokenMargin) {
			wait := func(ctx context.Context) error { return b.waitTurn(ctx, c) }
			return &ledgerSession{c, tokens.Access, tokens.LinkID, wait}, nil
		}
		if isNew {
			return nil, &outboundError{reason: reasonNewRefused}
		}
		mine := false
		err = b.update(ctx, func(t *tx) error {
			mine = t.claimBookTokens(c.ID, c.Tokens, t.now.after(tokenClaim))
			return nil
		})
		if err == nil && mine {
			if err = b.renew(ctx, c, tokens); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		select { // somebody else replaces them
		case <-ctx.Done():
			return nil, &outboundError{reason: outboundTimeout}
		case <-time.After(tokenPoll):
		}
	}
}

// renew replaces the tokens of a connection, which the caller has claimed. The new ones are on disk when it
// returns. A failure that only the owner can resolve, by connecting again, is noted and never retried; after any
// other the worker retries as renewalPause says. Cancelling ctx does not stop it: tokens that were replaced but
// not written would be lost. Errors: an *outboundError, those of the store.
func (b *books) renew(ctx context.Context, c *bookConnection, old *bookTokens) error {
	ctx = context.WithoutCancel(ctx)
	app, err := b.appSecrets(c.Product)
	var tokens *bookTokens
	if err == nil {
		tokens, err = b.ledgers[c.Product].renew(ctx, app, c, old)
	}
	switch {
	case err == nil:
		tokens.LinkID, tokens.RenewedAt = old.LinkID, b.now()
		sealed, err := sealTokens(b.keys(), c.ID, tokens)
		if err != nil {
			return err
		}
		return b.update(ctx, func(t *tx) error {
			// errChanged: it was connected anew meanwhile, or disconnected
			return except(t.saveBookTokens(c, sealed), errChanged)
		})
	case vendorSaid(err) == vendorOwnerGone:
		return errors.Join(b.needOwner(ctx, c, err), &outboundError{outcome: vendorOwnerGone, reason: heldReconnect})
	case vendorSaid(err) == vendorDenied: // the operator's secrets are wrong: the owner can't help that
		b.log.Warn(faultBooksTokens, "error", fmt.Errorf("%s: %w", c.Product, err))
	}
	return errors.Join(err, b.update(ctx, func(t *tx) error {
		t.dropTokenClaim(c.ID, c.Tokens)
		return scheduleRenewal(t, c.ID)
	}))
}

// renewalPauses are how long the worker waits between attempts to replace tokens after one that got no usable
// answer; the last one is repeated until renewalWindow has passed. The answer that was lost may have had new
// tokens, and Xero accepts the old refresh token for only 30 minutes more.
var renewalPauses = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute}

const (
	renewalWindow = 25 * time.Minute
	renewalLater  = 24 * time.Hour // after that, and between attempts that did not get as far as asking
)

// renewalPause returns how long to wait before the next attempt to replace tokens, when attempts have failed for a
// time.
func renewalPause(lasted time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, pause := range renewalPauses {
		if sum += pause; lasted < sum {
			return pause
		}
	}
	if lasted < renewalWindow {
		return renewalPauses[len(renewalPauses)-1]
	}
	return renewalLater
}

// scheduleRenewal writes when the worker retries replacing the tokens of a connection, unless it was connected anew
// meanwhile, or disconnected.
func scheduleRenewal(t *tx, id string) error {
	pause := renewalLater
	lost, err := t.renewalLostAt(id)
	if err == nil {
		pause = renewalPause(t.now.Sub(lost.Time))
	}
	t.postponeRenewal(id, t.now.after(pause))
	return except(err, errNotFound) // no attempt has got as far as asking
}

// renewIdle replaces the tokens of a connection whose last replacement had no usable answer, or that nobody has used
// for long.
func (b *books) renewIdle(ctx context.Context, id string) error {
	c, err := b.store.usedBookConnection(anyAccount, id)
	if err == nil {
		_, err = b.session(ctx, id, c.Tokens)
	}
	if err == nil {
		return nil
	}
	later := b.update(context.WithoutCancel(ctx), func(t *tx) error { // even if the product was not asked
		return scheduleRenewal(t, id)
	})
	if _, known := errors.AsType[*outboundError](err); known || errors.Is(err, errBooksConnection) {
		err = nil
	}
	return errors.Join(err, later)
}

// needOwner notes that the owner of a connection has to connect it again, once, with an event.
func (b *books) needOwner(ctx context.Context, c *bookConnection, why error) error {
	b.log.Warn("a connection with books has to be connected again", "connection", c.ID, "product", c.Product,
		"error", why.Error())
	return b.update(ctx, func(t *tx) error {
		now, err := t.usedBookConnection(anyAccount, c.ID)
		if err != nil || now.Tokens != c.Tokens || !now.NeedsReconnectAt.IsZero() {
			return err // it was connected anew meanwhile
		}
		now.NeedsReconnectAt = t.now
		t.saveBookConnection(now)
		t.endRenewal(now.ID)
		t.addEvent(booksEvent(now, eventBooksNeedOwner, actorProvider))
		return nil
	})
}
