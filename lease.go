package main

import (
	"encoding/base64"
	"slices"
	"sync"
	"time"
)

// What happens to licences and seats, each as one transaction: the rules come from
// license.go, the rows from the store. Handlers and the operator's commands call
// the same functions.

// A lease is a device token as it goes out.
type lease struct {
	token  string
	claims claims
	kid    string // of the key that signed it
}

// signLease signs the lease of d on l that carries d's present number.
func (k *keyring) signLease(l *license, d *device, base, nonce string, now time.Time) (lease, error) {
	c := leaseClaims(l, d, now, nonce)
	c.Issuer, c.Audience, c.ID = base, base, newID("tok", now)
	token, err := k.sign(c)
	return lease{token: token, claims: c, kid: k.signer().kid}, err
}

// leaseStale reports whether the lease that is recorded of d can't serve again: it is
// a minute old, another key than kid signed it, or l was given more time since.
func (d *device) leaseStale(l *license, kid string, now time.Time) bool {
	return !within(leaseReuse, d.LeasedAt.Time, now) || d.LeaseKid != kid || l.leaseEnd(now).After(d.LeaseExpiresAt.after(leaseReuse).Time)
}

// nextLease gives d the next number, records the lease and signs it. The caller
// saves d.
func (k *keyring) nextLease(t *tx, l *license, d *device, nonce string) (lease, error) {
	bases, err := t.baseURLs()
	if err != nil {
		return lease{}, err
	}
	d.LeaseSeq++
	d.LeaseKid, d.LeasedAt, d.LeaseExpiresAt = k.signer().kid, t.now, l.leaseEnd(t.now.Time)
	d.LapsesAt = stamp{}
	if l.Kind == kindFloating {
		d.LapsesAt = d.LeaseExpiresAt
	}
	return k.signLease(l, d, bases[0].URL, nonce, t.now.Time)
}

// A leaseCache remembers the last lease of a device for the minute in which it
// serves again, so that a chatty fleet costs no signatures. Bounded: when full it
// forgets any other.
type leaseCache struct {
	mu     sync.Mutex
	leases map[string]lease
}

const maxCachedLeases = 4_000

func (c *leaseCache) put(deviceID string, l lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases == nil {
		c.leases = map[string]lease{}
	}
	if _, known := c.leases[deviceID]; !known && len(c.leases) >= maxCachedLeases {
		for other := range c.leases {
			delete(c.leases, other)
			break
		}
	}
	c.leases[deviceID] = l
}

// get returns the lease of d that still says the truth about d and l, under a base
// address and a key.
func (c *leaseCache) get(l *license, d *device, base, kid string, now time.Time) (lease, bool) {
	c.mu.Lock()
	kept, ok := c.leases[d.ID]
	c.mu.Unlock()
	fresh := ok && within(leaseReuse, time.Unix(kept.claims.IssuedAt, 0), now)
	return kept, fresh && kept.kid == kid && kept.claims.Issuer == base && kept.claims.stillAccurate(l, d)
}

// stillAccurate reports whether a lease of d on l that began when c did would say the
// same now. It compares what the rows say, since whoever changed them need not have
// changed updated_at.
func (c *claims) stillAccurate(l *license, d *device) bool {
	now := leaseClaims(l, d, time.Unix(c.IssuedAt, 0), c.Nonce)
	return c.Subject == now.Subject && c.License == now.License && c.Seq == now.Seq && c.Fingerprint == now.Fingerprint && c.Product == now.Product &&
		c.Expires == now.Expires && c.LicenseEnd == now.LicenseEnd && c.GraceEnd == now.GraceEnd && c.RefreshAfter == now.RefreshAfter &&
		slices.Equal(c.Entitlements, now.Entitlements)
}

// leaseEnd is until when a lease given now proves the licence: the licence's
// lease, but never past the end of grace.
func (l *license) leaseEnd(now time.Time) stamp {
	end := newStamp(now.Add(time.Duration(l.LeaseHours) * time.Hour))
	if last := l.graceUntil(); !last.IsZero() && last.Before(end.Time) {
		return last
	}
	return end
}

// leaseReuse is how long a lease serves again, and how rarely verify writes.
const leaseReuse = time.Minute

// refreshAfter is how long after a lease began its device should ask again: the
// lesser of a day and half the lease, which the end of the licence may have made
// short; but not sooner than an answer would bring a new one.
func refreshAfter(lease time.Duration) time.Duration {
	return max(min(24*time.Hour, lease/2).Truncate(time.Second), leaseReuse)
}

// leaseClaims are the claims of the device token that is the lease of d on l
// (contract, section 4). The caller adds the address of the service and the jti.
func leaseClaims(l *license, d *device, now time.Time, nonce string) claims {
	c := claims{
		Subject:      l.AccountID,
		ClientID:     d.ID,
		Scope:        scopeDevice,
		IssuedAt:     now.Unix(),
		Expires:      l.leaseEnd(now).Unix(),
		License:      l.ID,
		Device:       d.ID,
		Fingerprint:  base64.RawURLEncoding.EncodeToString(d.Fingerprint),
		Product:      l.Product,
		Entitlements: l.Entitlements,
		Seq:          d.LeaseSeq,
		Nonce:        nonce,
	}
	if !d.LapsesAt.IsZero() { // a floating seat's token must not outlive the seat
		c.Expires = min(c.Expires, d.LapsesAt.Unix())
	}
	c.RefreshAfter = int64(refreshAfter(time.Duration(c.Expires-c.IssuedAt) * time.Second).Seconds())
	if !l.ExpiresAt.IsZero() {
		c.LicenseEnd, c.GraceEnd = l.ExpiresAt.Unix(), l.graceUntil().Unix()
	}
	return c
}

// An offlineClock is what a device without a network judges its lease by
// (contract, section 4): the later of its own clock and a mark that it saves. The
// mark grows from what the service signed and from the monotonic clock, never from
// the wall clock, so that a clock that was once wrong can't poison it. The service
// itself needs none: this is the rule that the README gives devices, for tests to try.
type offlineClock struct {
	mark int64 // Unix seconds, saved with the token
}

// observeIssuedAt notes the iat of a token whose signature holds.
func (c *offlineClock) observeIssuedAt(issuedAt int64) { c.mark = max(c.mark, issuedAt) }

// addElapsed notes time that has passed by the monotonic clock.
func (c *offlineClock) addElapsed(d time.Duration) {
	if d > 0 {
		c.mark += int64(d / time.Second)
	}
}

// now is the moment to compare exp with, given the wall clock.
func (c *offlineClock) now(wall time.Time) time.Time {
	return time.Unix(max(c.mark, wall.Unix()), 0)
}

// leaseFault tells why a lease whose signature holds does not prove its licence to
// a device at a moment of its offlineClock; "" when it does. fingerprint and
// audience are compared unless they are empty.
func leaseFault(c claims, fingerprint, audience string, now time.Time) string {
	hash := fingerprintHash(fingerprint)
	switch {
	case !c.isDevice():
		return "it is no device's lease"
	case audience != "" && c.Audience != audience:
		return "it is for another service: " + c.Audience
	case fingerprint != "" && c.Fingerprint != base64.RawURLEncoding.EncodeToString(hash[:]):
		return "it is bound to another device's fingerprint"
	case !time.Unix(c.Expires, 0).After(now):
		return "it ended at " + newStamp(time.Unix(c.Expires, 0)).String()
	}
	return ""
}
