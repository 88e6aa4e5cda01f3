package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
)

// What a handler asks of the core before it decides: that its caller is charged, that what is wrong is refused, and
// whose rows the call acts on.

// acquireSlot waits for the turn of a question; it is over when the handler returns. Errors: that of ctx.
func (s *server) acquireSlot(ctx context.Context, c *call) (err error) {
	c.core.release, err = s.listSlots.acquire(ctx, c.core.client)
	return err
}

// clientOf returns whom what a call takes is counted for. The bearer of a device's token counts by address.
func (s *server) clientOf(c *call) client {
	switch {
	case !c.bearsOwnToken():
		return client{clientIsAddress, s.address(c.request)}
	case c.caller.app != "":
		return client{clientIsApp, c.caller.limitedAs()}
	}
	return client{clientIsAccount, c.caller.claims.Subject}
}

// endQuestion gives back the place of a question, if the call has one.
func (c *call) endQuestion() {
	if c.core.release != nil {
		c.core.release()
		c.core.release = nil
	}
}

// finish ends the reading of a request, and gives back the memory that its body took. It returns a refusal that
// names every wrong member and parameter; nil: all are right.
func (c *call) finish() error {
	if c.core.route.token == tokenRequired {
		c.in.refuseUnknownParameters()
	}
	wrong := c.in.err()
	if !c.core.route.readsLater {
		c.core.parsed = jsonValue{}
		if c.core.idemKey == "" { // else the body is compared
			c.core.body = nil
		}
		c.core.held.set(int64(len(c.core.body))) // less than before, which never fails
	}
	return wrong
}

// finishReading ends the reading of a request: it charges the account of its token, or else the one that owns its
// Origin, then refuses what was wrong (422), and waits for the turn of a question.
func (s *server) finishReading(ctx context.Context, c *call) error {
	account := c.origin.account
	if c.caller != nil {
		account = c.caller.claims.Subject
	}
	wrong := c.finish()
	if c.isCommand() {
		return wrong
	}
	if !c.core.route.free {
		if err := s.charge(c, account); err != nil {
			return err
		}
	}
	if wrong != nil {
		return wrong
	}
	if c.core.route.question {
		return s.acquireSlot(ctx, c)
	}
	return nil
}

// finishReadingFor is finishReading for calls with a token that may name an account with ?account_id=. It returns
// whose rows the call acts on, see ownerOf.
func (s *server) finishReadingFor(ctx context.Context, c *call) (owner, error) {
	named := c.in.accountID()
	if err := s.finishReading(ctx, c); err != nil {
		return owner{}, err
	}
	return s.ownerOf(c, named)
}

// ownerOf returns whose rows a call acts on: those of the account that owns its token or, if the token may name any
// account, of the named one. An operator's call that names none acts on the rows of every account, one without a
// token on none. Errors: a refusal for a missing scope (403), errAccount.
func (s *server) ownerOf(c *call, named string) (owner, error) {
	who := c.caller
	switch {
	case who == nil:
		return owner{}, nil
	case named == "" && who.admin():
		return anyAccount, nil
	case named == "" || named == who.claims.Subject:
		return owner{account: who.claims.Subject, app: who.app}, nil
	case !who.all:
		return owner{}, errScope(scopeAdmin, "The token acts on its own account only.")
	}
	row, err := s.store.account(named)
	if errors.Is(err, errNotFound) || err == nil && !row.ClosedAt.IsZero() && !who.admin() {
		return owner{}, errAccount
	}
	return ownedBy(named), err
}

// narrowToOne narrows an owner to one account: the caller's own if the call acts on the rows of every account.
func (c *call) narrowToOne(o owner) owner {
	if o == anyAccount {
		return ownedBy(c.caller.claims.Subject)
	}
	return o
}

// bucketAccount is the token bucket that each account has for calls with its own tokens (contract, section 2), by
// the name that answers give it. Nouns declare buckets for calls without such a token, so that no kind of call can
// use up the requests of another.
const bucketAccount = "account"

// bucketApplication is the name that answers give to an application's half of bucketAccount.
const bucketApplication = "application"

// address returns the key under which the rate limits count the client's address.
func (s *server) address(r *http.Request) string { return addressKey(s.client(r), networkOfClient) }

// client returns the client's address.
func (s *server) client(r *http.Request) netip.Addr { return clientOf(r, s.trusted) }

// clientOf returns the address of who makes a request, see clientAddress. The peer of a Unix socket has none; it is on
// this machine, so it counts as loopback.
func clientOf(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer := r.RemoteAddr
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		peer = "127.0.0.1"
	}
	return clientAddress(peer, r.Header.Values("X-Forwarded-For"), trusted)
}

// limitAddress takes a token from the bucket that an address has for the named limit on
// anonymous callers, or returns a refusal (429).
func (s *server) limitAddress(limit, address string, rate int) error {
	v := s.addressBuckets.take(limit+" "+address, rate, s.monotonic())
	return errOver(v, limitNamed(addressLimit, rate), "Too many requests from this address.")
}

// limitOwnAddress is limitAddress for a call whose handler takes the limit of its route from the address itself.
func (s *server) limitOwnAddress(c *call) error {
	return s.limitAddress(c.core.route.ownAddress, s.address(c.request), s.anonymousRate)
}

// limitNamed returns a limit of rate requests a minute, for errOver.
func limitNamed(name string, rate int) limitReached { return limitReached{name: name, rate: rate} }

// bearsOwnToken reports whether the call has a token that acts for an account, not a device's.
func (c *call) bearsOwnToken() bool { return c.caller != nil && !c.caller.claims.isDevice() }

// bucket returns the name of the bucket that the call is charged to.
func (c *call) bucket() string {
	if c.bearsOwnToken() {
		return bucketAccount
	}
	return cmp.Or(c.core.route.bucket, bucketAccount)
}

// charge takes a token from one of an account's buckets and sets the RateLimit headers
// (draft-ietf-httpapi-ratelimit-headers-11); "" is nobody's. It refuses when the bucket is empty (429). An
// application's token takes from a bucket of the application's first, which is half as large, so that one
// application leaves the other half to the account's own tokens and to others.
func (s *server) charge(c *call, account string) error {
	a, err := s.payer(c, account)
	if err != nil || a.ID == "" {
		return err
	}
	w, bucket, now := c.response, c.bucket(), s.monotonic()
	key := bucket + " " + a.ID
	if c.caller == nil || c.caller.app == "" {
		v := s.accountBuckets.take(key, a.Rate, now)
		showLimit(w.Header(), bucket, a.Rate, v)
		return errOver(v, limitReached{}, overAccount)
	}
	half := max(1, a.Rate/2)
	v := s.accountBuckets.take("app "+c.caller.limitedAs()+" "+a.ID, half, now)
	if !v.ok {
		showLimit(w.Header(), bucket, a.Rate, s.accountBuckets.peek(key, a.Rate, now))
		showLimit(w.Header(), bucketApplication, half, v)
		return errOver(v, limitReached{},
			"The application's share of the account's requests of this minute is used up.")
	}
	whole := s.accountBuckets.take(key, a.Rate, now)
	showLimit(w.Header(), bucket, a.Rate, whole)
	showLimit(w.Header(), bucketApplication, half, v)
	return errOver(whole, limitReached{}, overAccount)
}

// payer notes which account a call is charged to, and returns it; without an id: none.
func (s *server) payer(c *call, id string) (account, error) {
	if c.core.account = id; id == "" {
		return account{}, nil
	}
	a, err := s.cachedAccount(id)
	c.response.account = a.ID
	return a, except(err, errNotFound) // a device token's account may be missing in a database that was restored
}

// chargeShare is charge for calls without a token whose addresses share a bucket (contract, section 2). While
// others ask, one address gets at most half of it, refilled at half the rate; and the last tenth is kept for
// addresses that took nothing within the last minute. So whoever floods a bucket leaves it to others.
func (s *server) chargeShare(c *call, account string) error {
	a, err := s.payer(c, account)
	if err != nil || a.ID == "" {
		return err
	}
	w, bucket, now := c.response, c.bucket(), s.monotonic()
	network := addressKey(s.client(c.request), networkOfSite)
	half, who := max(1, a.Rate/2), bucket+" "+a.ID+" "+network
	share := s.addressBuckets.take("share "+who, half, now)
	if s.lastAddresses.note(a.ID, network, now) && !share.ok {
		showLimit(w.Header(), bucket, a.Rate, s.accountBuckets.peek(bucket+" "+a.ID, a.Rate, now))
		return errOver(share, limitNamed(shareLimit, half), "While others ask, one address gets at most half of the "+
			"account's requests.")
	}
	keep := 0
	if s.addressBuckets.peek("recent "+who, 1, now).remaining == 0 {
		keep = a.Rate / 10
	}
	v := s.accountBuckets.takeSome(bucket+" "+a.ID, a.Rate, 1, keep, now)
	showLimit(w.Header(), bucket, a.Rate, v)
	if v.ok {
		s.addressBuckets.empty("recent "+who, 1, now)
	}
	return errOver(v, limitReached{}, overAccount)
}

// Names that answers give to limits.
const (
	addressLimit = "address"  // on anonymous callers of one address
	failedLimit  = "failures" // on different keys, and proofs of applications, that fail from one address
	shareLimit   = "share"    // on one address' part of a bucket
)

// errOver returns the refusal of a request that was over a limit; nil: it was not. A limit without a name is one
// that the headers of the answer show already.
func errOver(v takeResult, of limitReached, detail string) error {
	if v.ok {
		return nil
	}
	of.remaining, of.full = v.remaining, v.full
	return errRate(of, detail, v.retry)
}

const overAccount = "The account's requests of this minute are used up."

// showLimit adds what a bucket holds to the RateLimit headers, as another element of their lists.
func showLimit(h http.Header, bucket string, rate int, v takeResult) {
	add := func(name, item string) {
		if before := h.Get(name); before != "" {
			item = before + ", " + item
		}
		h.Set(name, item)
	}
	add("RateLimit-Policy", `"`+bucket+`";q=`+strconv.Itoa(rate)+`;w=60`)
	add("RateLimit", `"`+bucket+`";r=`+strconv.Itoa(v.remaining)+`;t=`+strconv.Itoa(wholeSeconds(v.full)))
}

// isCommand reports whether the operator makes the call at the command line, see routeCommand.
func (c *call) isCommand() bool { return c.caller != nil && c.caller.command != "" }

// actorToken returns the actor of events for a call with a token.
func actorToken(c *call) string { return c.caller.actor() }
