package main

import (
	"encoding/base64"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A lease is a signed device token, with the claims in it.
type lease struct {
	token  string
	claims claims
	kid    string // of the key that signed it
}

// signLease signs the claims of a lease, and sets f.lease. base is the address of the service, which becomes issuer and
// audience.
func (f *checkResult) signLease(keys *keyring, c claims, base string, now time.Time) error {
	c.Issuer, c.Audience, c.ID = base, base, newID("tok", now)
	token, err := keys.sign(c)
	if err != nil {
		return fmt.Errorf("sign a lease: the product and entitlements of %s are too long, so shorten these: %w",
			f.license.ID, err)
	}
	f.lease = &lease{token: token, claims: c, kid: keys.signer().kid}
	return nil
}

// leaseStale reports whether d needs a new lease because its last one is at least leaseReuse old,
// was signed with another key than kid, or ends too early since l has been extended.
func (d *device) leaseStale(l *license, kid string, now time.Time) bool {
	return !closerThan(leaseReuse, d.LeasedAt.Time, now) || d.LeaseKid != kid ||
		l.leaseEnd(now).After(d.LeaseExpiresAt.after(leaseReuse).Time)
}

// nextLease signs a lease with the device's next lease number, and records it in the fields of f.device, which the
// caller must save. An offline lease keeps a floating seat until its end, whatever other leases follow.
func (f *checkResult) nextLease(t *tx, keys *keyring, nonce string, offline bool) error {
	bases, err := t.baseURLs()
	if err != nil {
		return err
	}
	l, d := f.license, f.device
	d.LeaseSeq++
	d.LeaseKid, d.LeasedAt, d.LeaseExpiresAt = keys.signer().kid, t.now, l.leaseEnd(t.now.Time)
	if offline {
		d.LeaseExpiresAt = l.beforeGraceEnds(t.now.after(days(l.OfflineDays)))
		if !d.LeaseExpiresAt.Before(d.OfflineUntil.Time) {
			d.OfflineUntil, d.OfflineKid = d.LeaseExpiresAt, d.LeaseKid
		}
	}
	d.CountsUntil = stamp{later(d.CountsUntil.Time, d.LeaseExpiresAt.Time)}
	d.LapsesAt = stamp{}
	if l.Kind == kindFloating {
		d.LapsesAt = stamp{later(d.LeaseExpiresAt.Time, d.OfflineUntil.Time)}
	}
	return f.signLease(keys, leaseClaimsUntil(d.LeaseExpiresAt, l, d, t.now.Time, nonce), bases[0].URL, t.now.Time)
}

// maxNonce is how many characters a nonce has at most, all of them visible ASCII.
const maxNonce = 128

// A leaseCache holds the last lease of each device, so that a device that asks again within
// leaseReuse gets it without another signature, for which it would wait 1.4 times as long (BenchmarkVerify_lease). When
// full it evicts an arbitrary other lease.
type leaseCache struct {
	mu     sync.Mutex
	leases map[string]*lease // by the device's id
}

const maxCachedLeases = 4_000

func (c *leaseCache) put(deviceID string, l *lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	makeRoom(c.leases, deviceID, maxCachedLeases)
	c.leases[deviceID] = l
}

// get returns the cached lease of a device if it is younger than leaseReuse, and one signed at the same time with the
// key kid for the address base would say the same; else nil. It compares what the lease says and not updated_at,
// which somebody who changes a row in the sqlite3 shell may leave alone, and not whether a commit has dropped the rows:
// those of other devices do, and within leaseReuse a device gets the same lease again.
func (c *leaseCache) get(f *checkResult, base, kid string, now time.Time) *lease {
	c.mu.Lock()
	kept := c.leases[f.device.ID]
	c.mu.Unlock()
	if kept == nil || kept.kid != kid || !closerThan(leaseReuse, time.Unix(kept.claims.IssuedAt, 0), now) {
		return nil
	}
	was, is := &kept.claims, leaseClaims(f.license, f.device, time.Unix(kept.claims.IssuedAt, 0), "")
	if was.Issuer != base || was.Subject != is.Subject || was.License != is.License || was.Seq != is.Seq ||
		was.Fingerprint != is.Fingerprint || was.Product != is.Product || was.Expires != is.Expires ||
		was.LicenseEnd != is.LicenseEnd || was.GraceEnd != is.GraceEnd || was.RefreshAfter != is.RefreshAfter ||
		!slices.Equal(was.Entitlements, is.Entitlements) {
		return nil
	}
	return kept
}

// leaseEnd returns when a lease signed at now expires: after the licence's lease_hours,
// but never later than the end of grace.
func (l *license) leaseEnd(now time.Time) stamp {
	return l.beforeGraceEnds(newStamp(now.Add(time.Duration(l.LeaseHours) * time.Hour)))
}

// beforeGraceEnds returns end, or the end of grace if that is earlier.
func (l *license) beforeGraceEnds(end stamp) stamp {
	if last := l.graceUntil(); !last.IsZero() && last.Before(end.Time) {
		return last
	}
	return end
}

// leaseReuse is how long a device that asks again gets the same lease, and the shortest
// time between two writes of verify about the same device.
const leaseReuse = time.Minute

// refreshAfter returns how many seconds after the beginning of a lease its device should ask for a new one: a day, or
// half of the seconds that the lease lasts if that is less, but at least leaseReuse, before which it would get the
// same lease again.
func refreshAfter(lasts int64) int64 {
	return max(min(24*60*60, lasts/2), int64(leaseReuse/time.Second))
}

// leaseClaims are the claims of the device token that is the lease of d on l
// (contract, section 4). The caller adds iss, aud and jti.
func leaseClaims(l *license, d *device, now time.Time, nonce string) claims {
	end := l.leaseEnd(now)
	if !d.LeaseExpiresAt.IsZero() && d.LeaseExpiresAt.Before(end.Time) { // a lease signed again keeps its recorded end
		end = d.LeaseExpiresAt
	}
	return leaseClaimsUntil(end, l, d, now, nonce)
}

// leaseClaimsUntil is leaseClaims for a lease with a given end.
func leaseClaimsUntil(end stamp, l *license, d *device, now time.Time, nonce string) claims {
	c := claims{Subject: l.AccountID, ClientID: d.ID, Scope: scopeDevice, License: l.ID, Device: d.ID,
		IssuedAt: max(now.Unix(), l.TokensEndAt.Unix()+1), // see license.TokensEndAt
		Expires:  end.Unix(), Fingerprint: base64.RawURLEncoding.EncodeToString(d.Fingerprint),
		Product: l.Product, Entitlements: l.Entitlements, Seq: d.LeaseSeq, Nonce: nonce}
	c.RefreshAfter = refreshAfter(c.Expires - c.IssuedAt)
	if !l.ExpiresAt.IsZero() {
		c.LicenseEnd, c.GraceEnd = l.ExpiresAt.Unix(), l.graceUntil().Unix()
	}
	return c
}

// leaseFault returns why a lease whose signature was verified is not valid for a device at
// now, or "" when it is. fingerprint and audience are compared unless they are empty.
func leaseFault(c claims, fingerprint, audience string, now time.Time) string {
	hash := fingerprintHash(fingerprint)
	switch {
	case !c.isDevice():
		return "it is not a device token"
	case audience != "" && c.Audience != audience:
		return "it is for another service: " + c.Audience
	case fingerprint != "" && c.Fingerprint != base64.RawURLEncoding.EncodeToString(hash[:]):
		return "it is bound to another device's fingerprint"
	case !time.Unix(c.Expires, 0).After(now):
		return "it ended at " + newStamp(time.Unix(c.Expires, 0)).String()
	}
	return ""
}

// Transfers: which fingerprints count for a licence, so that one seat can't serve many machines in
// turn (contract, section 4).

// transferWindow is the least time for which a fingerprint still counts for a node-locked licence
// after it held a seat.
const transferWindow = 30 * 24 * time.Hour

// checkTransferLimit refuses a fingerprint that does not count for the licence yet if as many as the licence allows
// count already (contract, section 4, Transfers). A fingerprint counts while its device holds a seat, and then until
// its last lease ends; on a node-locked licence at least for transferWindow. Errors: transfer_limit_reached, which
// writes an event, at most once an hour; the transaction commits despite it (see keep).
func checkTransferLimit(t *tx, f *checkResult) error {
	l, counts := f.license, f.counted.After(t.now.Time)
	if !f.newFingerprint {
		counts = f.device.State == deviceActive || f.device.CountsUntil.After(t.now.Time)
	}
	if l.MaxDevices == nil || l.MaxTransfers == nil || counts {
		return nil
	}
	most := *l.MaxDevices + *l.MaxTransfers
	if l.Counting < most {
		return nil
	}
	if l.Counting -= t.expireFingerprints(l.ID, t.now, maxTransitions); l.Counting < most {
		return nil
	}
	next, err := t.nextFingerprintEnd(l.ID, l.Counting-most)
	if err != nil {
		return err
	}
	t.noteLimit(l, eventLicenseTransferLimitReached)
	detail := codeTransferLimit.detail
	if !next.IsZero() {
		detail += " Another can be activated at " + next.String() + "."
	}
	return commitAnyway(&refusal{code: codeTransferLimit, detail: detail, members: []extraMember{{"transfers", struct {
		transfers
		NextAt stamp `json:"next_at"` // null: not before a seat is given up
	}{*transfersOf(l), next}}}})
}

// countsAfterSeat returns until when the device's fingerprint counts once it holds no seat; the zero
// stamp: it no longer counts.
func (d *device) countsAfterSeat(l *license, now stamp) stamp {
	until := d.CountsUntil
	if d.State == deviceActive {
		until = stamp{later(until.Time, d.OfflineUntil.Time)} // resetting the transfers has not ended the lease
		if l.Kind == kindNodeLocked {
			until = stamp{later(until.Time, now.after(transferWindow).Time)}
		}
	}
	if !until.After(now.Time) {
		return stamp{}
	}
	return until
}
