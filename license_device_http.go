package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A deviceAPI serves the endpoints that devices call. It caches licences, devices, and the
// leases that it signed within the last minute.
type deviceAPI struct {
	*server
	licenseCache
	leases  leaseCache
	lookups *lookupGuard // keys that failed
}

// bucketLicenses is charged for licence calls without an account's own token, including those of devices.
const bucketLicenses = "licenses"

func deviceWing(s *server) wing {
	a := &deviceAPI{server: s, licenseCache: newLicenseCache(s.authenticator),
		lookups: newLookupGuard(s.failedLookupRate, s.steady())}
	return wing{
		routes: append([]route{
			// ownScope: who may not read licences, of its own account or of all, is anonymous, and can't guess keys
			{pattern: "POST /widget/license/activate", token: tokenLate, ownScope: scopeLicenses, creates: true,
				bucket: bucketLicenses, run: a.activate},
			{pattern: "POST /widget/license/verify", token: tokenLate, ownScope: scopeLicenses,
				bucket: bucketLicenses, run: a.verify},
			{pattern: "POST /widget/license/deactivate", token: tokenLate, ownScope: scopeLicenses,
				bucket: bucketLicenses, run: a.deactivate},
			{pattern: "GET /licenses/{id}/devices", token: tokenRequired, scope: scopeLicenses, question: true,
				run: s.listDevices},
			{pattern: "DELETE /licenses/{id}/devices/{device_id}", token: tokenRequired, scope: scopeDevices,
				run: s.releaseDevice},
		}, a.pageRoutes()...),
		refusals: map[string]refusalForm{"activate": activateRefused},
		chores: []chore{{fault: "lapsed seats and ended licences can't be written", timeDriven: true,
			run: s.runTransitions}},
		metrics: []metric{{"widgetd_lookup_addresses", "gauge",
			"Addresses of which licence keys that failed are remembered.",
			func() []string { return []string{fmt.Sprintf(" %d", a.lookups.len())} }}},
	}
}

// readCheck reads the members license_key and fingerprint, and the device token of the call; n says whether the
// fingerprint is required. Without a device token the key is.
func readCheck(in *input, n need) (q checkRequest) {
	if q.presented = in.deviceToken(); q.presented == nil && !in.has("license_key") {
		in.wrong("license_key", "required",
			"A licence key is required, or a device token in the Authorization header.")
	}
	if v := in.member("license_key", jsonString, optional); v != nil {
		if code, detail := checkText(v.text, optional, maxBody); code != "" {
			// parseLicenseKey alone would ignore white space.
			in.wrong("license_key", code, detail)
		} else if key, err := parseLicenseKey(v.text); err != nil {
			q.malformed = true
		} else {
			hash := key.hash()
			q.keyHash, q.mistyped = &hash, key.mistyped()
		}
	}
	q.fingerprint = readFingerprint(in, n)
	return q
}

// deviceToken returns the claims of the device token of a call, which names a licence and a device; nil: it has none.
func (in *input) deviceToken() *claims {
	if in.caller == nil || !in.caller.claims.isDevice() {
		return nil
	}
	return &in.caller.claims
}

// refused returns nil if l, the licence that was found, is one, else the refusal of the key: key_malformed when no
// key has this form, or its check symbol is wrong, else license_not_found.
func (r *checkRequest) refused(l *license) error {
	switch {
	case r.malformed, l == nil && r.mistyped:
		return errMalformedMember
	case l == nil:
		return errLicenseNotFound
	}
	return nil
}

// errMalformedMember is the refusal key_malformed, which names the member license_key.
var errMalformedMember = &refusal{code: codeKeyMalformed, fields: []fieldError{
	{Pointer: "#/license_key", Code: codeKeyMalformed.name, Detail: codeKeyMalformed.detail}}}

// knownDeviceRate is the limit of an address, in requests a minute (contract, section 2), by the keys of active
// devices, while too many other keys have failed.
const knownDeviceRate = 300

// admitLicense ends the reading of a licence call, looks its licence up, applies the rule against guessing keys,
// and charges the call. It returns the licence; nil: the key, or else the device token, names none that the caller
// may use. A request with invalid members is refused before any look-up, so that the RateLimit headers of its
// answer reveal nothing about a key (contract, section 1).
func (a *deviceAPI) admitLicense(c *call, q *checkRequest) (*license, error) {
	if err := c.finish(); err != nil {
		return nil, err
	}
	l, err := a.licenseFor(c, q)
	if err != nil {
		return nil, err
	}
	account, err := a.payerOf(c, q, l)
	if err != nil {
		return nil, err
	}
	return l, a.charge(c, account)
}

// licenseFor returns the licence that a call names; nil: none. With an account's own token it is found only by its
// key, if it belongs to an account on which the token may act.
func (a *deviceAPI) licenseFor(c *call, q *checkRequest) (*license, error) {
	if q.keyHash == nil && q.presented == nil {
		return nil, nil
	}
	l, err := q.findLicense(a)
	if l != nil && c.bearsOwnToken() && !c.caller.all && l.AccountID != c.caller.claims.Subject {
		l = nil
	}
	return l, err
}

// payerOf returns the account that a call for licence l is charged to: that of the caller's own token; without one,
// the account that owns the licence, while licence, key and token are current; otherwise "", none. Errors:
// rate_limited.
func (a *deviceAPI) payerOf(c *call, q *checkRequest, l *license) (account string, err error) {
	switch {
	case c.bearsOwnToken():
		return c.caller.claims.Subject, nil
	case q.keyHash != nil:
		if err := a.checkLookup(c, q, l); err != nil {
			return "", err
		}
	case q.presented == nil: // the key is malformed
		return "", a.limitAddress("malformed key", a.address(c.request), a.anonymousRate)
	}
	current := l.current(c.now)
	if current && q.presented != nil {
		if current, err = a.tokenCurrent(l, q.presented); err != nil {
			return "", err
		}
	}
	switch {
	case current:
		return l.AccountID, nil
	case l == nil && q.presented == nil: // checkLookup has counted the key
		return "", nil
	}
	return "", a.limitAddress("ended", a.address(c.request), a.anonymousRate)
}

// tokenCurrent reports whether calls with a device token are charged to the account of l, a current
// licence. They are not if the device is gone or blocked, or the token has ended. They still are if the
// device gave its seat back itself or its floating lease has lapsed: it comes back with its token, and
// a fleet that was off at night does so all at once from one address, whose own limit would be too low.
func (a *deviceAPI) tokenCurrent(l *license, token *claims) (bool, error) {
	d, err := orNil(a.device(l.ID, token.Device))
	if err != nil || d == nil {
		return false, err
	}
	return d.State != deviceBlocked && !d.tokenEnded(l, token), nil
}

// errGuessing is the refusal of a key, known or not, from an address from which too many keys have
// failed; wait is how long until another one may fail.
func (a *deviceAPI) errGuessing(wait time.Duration) error {
	return errRate(limitReached{failedLimit, a.failedLookupRate, 0, wait},
		"Too many licence keys from this address have failed.", wait)
}

// checkLookup applies the rule against guessing keys (contract, section 2) to the client's address, after a key was
// looked up; l is its licence, or nil. A key that is unknown or not current counts as failed. Past the limit, only
// keys pass that come with the fingerprint or the token of an active device.
func (a *deviceAPI) checkLookup(c *call, q *checkRequest, l *license) error {
	address, now := a.address(c.request), a.steady()
	if !l.current(c.now) {
		repeated, wait := a.lookups.fail(address, *q.keyHash, now)
		switch {
		case wait > 0:
			return a.errGuessing(wait)
		case repeated:
			return a.limitAddress("repeated lookup", address, repeatedLookupRate)
		}
		return nil
	}
	wait := a.lookups.limited(address, now)
	if wait == 0 {
		return nil
	}
	found, err := q.evaluate(a, l, c.now)
	switch {
	case errors.Is(err, errCredentialMismatch) || err == nil && !found.device.holdsSeat(c.now):
		return a.errGuessing(wait)
	case err != nil:
		return err
	case a.limitAddress("known device", address, knownDeviceRate) != nil:
		return a.errGuessing(wait)
	}
	return nil
}

// readFingerprint reads the member fingerprint, 1 to 255 characters that identify a device,
// and returns its SHA-256; nil when there is none. Where it is required, a device token may
// take its place.
func readFingerprint(in *input, n need) []byte {
	if n == required && in.deviceToken() == nil && !in.has("fingerprint") {
		in.wrong("fingerprint", "required", "The fingerprint of the device is required, or its token.")
	}
	text := in.text("fingerprint", optional, 255, notEmpty)
	if text == "" {
		return nil
	}
	hash := fingerprintHash(text)
	return hash[:]
}

// checkNonce checks the nonce that a device wants included in the signed token.
func checkNonce(s string) (code, detail string) {
	if strings.IndexFunc(s, isNotVisible) >= 0 {
		return "invalid_nonce", "A nonce has 1 to 128 visible ASCII characters."
	}
	return notEmpty(s)
}

// readActivation reads the body of POST /widget/license/activate (contract, section 4).
func readActivation(in *input, offline bool) activation {
	q := activation{checkRequest: readCheck(in, required), offline: offline}
	q.product = in.text("product", optional, 100, notEmpty)
	q.replace = in.text("replace_device_id", optional, 64, isID("dev"))
	q.nonce = in.text("nonce", optional, maxNonce, checkNonce)
	if offline, given := in.boolTerm("offline"); given {
		q.offline = offline
	}
	if q.offline && !in.has("nonce") {
		in.wrong("nonce", "required", "Whoever asks for an offline lease must send a nonce, which tells the device "+
			"that the lease answers its request.")
	}
	device := in.object("device", optional)
	q.name = nilIfEmpty(device.text("name", optional, 100, nil))
	q.platform = nilIfEmpty(device.text("platform", optional, 100, nil))
	q.appVersion = nilIfEmpty(device.text("app_version", optional, 100, nil))
	return q
}

type activateResponse struct {
	OK           bool        `json:"ok"`
	Code         string      `json:"code"`
	License      licenseView `json:"license"`
	Device       deviceState `json:"device"`
	Token        string      `json:"token"`
	TokenType    string      `json:"token_type"`
	ExpiresIn    int64       `json:"expires_in"`    // seconds
	RefreshAfter int64       `json:"refresh_after"` // seconds
	Nonce        string      `json:"nonce,omitempty"`
	OfflineUntil stamp       `json:"offline_until,omitzero"` // of the device, while it holds an offline lease
}

// activate answers POST /widget/license/activate: it gives the device a seat and a lease.
func (a *deviceAPI) activate(ctx context.Context, c *call) (any, error) {
	q := readActivation(c.in, false)
	l, err := a.admitLicense(c, &q.checkRequest)
	if err != nil {
		return nil, err
	}
	return a.giveSeat(ctx, c, &q, l)
}

// giveSeat carries an activation out; l is the licence that was found for it, or nil.
func (a *deviceAPI) giveSeat(ctx context.Context, c *call, q *activation, l *license) (*activateResponse, error) {
	if a.signingHeld() {
		return nil, errClock
	}
	if err := q.refused(l); err != nil {
		return nil, err
	}
	q.keepLapsed, c.idemScope = a.clockDoubted(), q.idempotencyScope()
	keys := a.keys.Load()
	c.stillTrue = func(t *tx, answer []byte) (bool, error) {
		if l, err := q.findLicense(t); err != nil || l == nil || l.keyRetired(t.now.Time) {
			return false, err
		}
		return keys.stillActivated(t, answer)
	}
	var g *activationResult
	res, err := create(ctx, a.server, c, func(t *tx) (*activateResponse, error) {
		t.only(l.ID)
		var err error
		if g, err = keys.activate(t, *q); err != nil {
			return nil, err
		}
		answered := &activateResponse{OK: true, Code: g.code, License: newLicenseView(g.license, t.now.Time),
			Device: newDeviceState(g.device), Token: g.lease.token, TokenType: "Bearer",
			ExpiresIn: g.lease.claims.Expires - t.now.Unix(), RefreshAfter: g.lease.claims.RefreshAfter,
			Nonce: q.nonce}
		if g.device.heldOffline(t.now.Time) {
			answered.OfflineUntil = g.device.OfflineUntil
		}
		return answered, nil
	})
	if err == nil && g != nil && q.nonce == "" {
		a.leases.put(g.device.ID, g.lease)
	}
	return res, err
}

// stillActivated reports whether an earlier answer of activate is still true: the licence can be used,
// the device holds its seat, and its token is its newest, and has neither ended nor expired (contract,
// section 1).
func (k *keyring) stillActivated(t *tx, answer []byte) (bool, error) {
	var earlier struct{ Token string }
	if err := json.Unmarshal(answer, &earlier); err != nil {
		return false, err
	}
	c, err := k.verify(earlier.Token)
	if err != nil {
		return false, nil // the key that signed it has been retired
	}
	l, err := orNil(t.license(anyAccount, c.License))
	if err != nil || l == nil {
		return false, err
	}
	d, err := orNil(t.device(c.License, c.Device))
	if err != nil || !d.holdsSeat(t.now.Time) {
		return false, err
	}
	status := l.status(t.now.Time)
	return (status == statusActive || status == statusGrace) && c.Seq == d.LeaseSeq &&
		c.Expires > t.now.Unix() && !d.tokenEnded(l, &c), nil
}

// idempotencyScope returns the scope within which an Idempotency-Key of an activation is unique: licence key,
// device and fingerprint.
func (q *activation) idempotencyScope() (scope string) {
	if q.keyHash != nil {
		scope = "license " + hex.EncodeToString(q.keyHash[:])
	}
	if q.presented != nil {
		scope += " device " + q.presented.Device
	}
	return scope + " fingerprint " + hex.EncodeToString(q.fingerprint)
}

// readVerify reads the body of POST /widget/license/verify.
func readVerify(in *input) checkRequest {
	q := readCheck(in, optional)
	q.product = in.text("product", optional, 100, notEmpty)
	q.entitlements = in.texts("entitlements", 100, 64)
	q.nonce = in.text("nonce", optional, maxNonce, checkNonce)
	q.appVersion = nilIfEmpty(in.text("app_version", optional, 100, nil))
	return q
}

// verifyResponse is the answer of verify. Every such answer has the member valid, which
// distinguishes it from a problem document.
type verifyResponse struct {
	Valid        bool         `json:"valid"`
	Code         string       `json:"code"`
	Detail       string       `json:"detail"`
	CheckedAt    stamp        `json:"checked_at"`
	Nonce        string       `json:"nonce,omitempty"`
	License      *licenseView `json:"license"`
	Device       *deviceState `json:"device"`
	Token        string       `json:"token,omitempty"`
	ExpiresIn    int64        `json:"expires_in,omitempty"`    // seconds
	RefreshAfter int64        `json:"refresh_after,omitempty"` // seconds
}

// appendJSON appends what encoding/json would produce. It exists because encoding/json
// takes longer than all the rest of verify (BenchmarkVerifyAnswer).
func (v *verifyResponse) appendJSON(b []byte) []byte {
	b = strconv.AppendBool(append(b, `{"valid":`...), v.Valid)
	b = appendUnescaped(b, "code", v.Code)
	b = appendUnescaped(b, "detail", v.Detail)
	b = v.CheckedAt.appendJSON(append(b, `,"checked_at":`...))
	if v.Nonce != "" {
		b = appendMember(b, "nonce", v.Nonce)
	}
	b = append(b, `,"license":`...)
	if v.License == nil {
		b = append(b, "null"...)
	} else {
		b = v.License.appendJSON(b)
	}
	b = append(b, `,"device":`...)
	if d := v.Device; d == nil {
		b = append(b, "null"...)
	} else {
		b = append(append(append(b, `{"id":"`...), d.ID...), '"')
		b = appendOptional(b, "name", d.Name)
		b = appendUnescaped(b, "state", d.State)
		b = append(b, '}')
	}
	if v.Token != "" {
		b = appendUnescaped(b, "token", v.Token)
	}
	if v.ExpiresIn != 0 {
		b = strconv.AppendInt(append(b, `,"expires_in":`...), v.ExpiresIn, 10)
	}
	if v.RefreshAfter != 0 {
		b = strconv.AppendInt(append(b, `,"refresh_after":`...), v.RefreshAfter, 10)
	}
	return append(b, '}')
}

// writeWait is how long verify waits for the write of last_seen_at. It answers even if the write
// fails, since reads still work while the database is locked or the disk is full.
const writeWait = 2 * time.Second

// verify answers POST /widget/license/verify. The status is 200 whether or not the licence
// is valid. While signing is held, nothing is recorded about the device, and the answer has no token.
func (a *deviceAPI) verify(ctx context.Context, c *call) (any, error) {
	q, now := readVerify(c.in), c.now
	l, err := a.admitLicense(c, &q)
	if err != nil {
		return nil, err
	}
	if q.malformed {
		return &verifyResponse{Code: codeKeyMalformed.name, Detail: codeKeyMalformed.detail,
			CheckedAt: newStamp(now), Nonce: q.nonce}, nil
	}
	q.alone = c.bearsOwnToken() && c.caller.has(scopeLicenses)
	found, err := q.evaluate(a, l, now)
	if err != nil {
		return nil, err
	}
	var issued lease
	if found.mayTouch(now) && !a.signingHeld() {
		if found, issued, err = a.touchDevice(ctx, &q, found, now); err != nil {
			return nil, err
		}
	}
	if found.license == nil && q.mistyped {
		found.code = codeKeyMalformed.name
	}
	return newVerifyResponse(found, issued, q.nonce, now), nil
}

// newVerifyResponse returns the answer to a check; issued is the zero lease when the answer
// includes none.
func newVerifyResponse(found licenseCheck, issued lease, nonce string, now time.Time) *verifyResponse {
	res := &verifyResponse{Valid: found.valid, Code: found.code, Detail: verdictDetail(found.code, found.device),
		CheckedAt: newStamp(now), Nonce: nonce}
	if found.license == nil {
		return res
	}
	res.License = new(newLicenseView(found.license, now))
	if found.device != nil {
		res.Device = new(newDeviceState(found.device))
	}
	if found.valid {
		left := found.license.leaseEnd(now).Sub(newStamp(now).Time)
		res.RefreshAfter = int64(refreshAfter(left).Seconds())
	}
	if issued.token != "" {
		res.Token = issued.token
		res.ExpiresIn = issued.claims.Expires - now.Unix()
		res.RefreshAfter = issued.claims.RefreshAfter
	}
	return res
}

// touchDevice records that a device was seen, with at most one write a minute, and returns
// the lease for the answer, or the zero lease when it needs none. A lease that is not stale
// is sent again, or, for a request with a nonce, signed again with the same number; a stale
// one is replaced by the next.
func (a *deviceAPI) touchDevice(
	ctx context.Context, r *checkRequest, found licenseCheck, now time.Time,
) (licenseCheck, lease, error) {
	keys := a.keys.Load()
	var issued lease
	d := found.device
	needsLease := r.wantsLease(found, now) && d.leaseStale(found.license, keys.signer().kid, now)
	if needsLease || !closerThan(leaseReuse, d.LastSeenAt.Time, now) || presentsOlderLease(d, r.presented, now) {
		var err error
		if found, issued, err = a.tryRecordSeen(ctx, r, now); err != nil {
			return found, lease{}, err
		}
	}
	if !r.wantsLease(found, now) || issued.token != "" {
		if issued.token != "" && r.nonce == "" {
			a.leases.put(found.device.ID, issued)
		}
		return found, issued, nil
	}
	base := a.routing.Load().bases[0].URL
	if r.nonce == "" {
		if kept, ok := a.leases.get(found.license, found.device, base, keys.signer().kid, now); ok {
			return found, kept, nil
		}
	}
	issued, err := keys.signLease(found.license, found.device, base, r.nonce, now)
	if err == nil && r.nonce == "" {
		a.leases.put(found.device.ID, issued)
	}
	return found, issued, err
}

// tryRecordSeen runs recordSeen in a transaction. When that fails or takes longer than
// writeWait it logs that and returns the check without a lease. Errors:
// errCredentialMismatch, the store's when reading fails.
func (a *deviceAPI) tryRecordSeen(
	ctx context.Context, r *checkRequest, now time.Time,
) (found licenseCheck, issued lease, err error) {
	bounded, cancel := context.WithTimeout(ctx, writeWait)
	defer cancel()
	keys := a.keys.Load()
	err = a.store.update(bounded, func(t *tx) (err error) {
		if found, issued, err = keys.recordSeen(t, r); found.license != nil {
			t.only(found.license.ID)
		}
		return err
	})
	if err == nil || errors.Is(err, errCredentialMismatch) {
		return found, issued, err
	}
	a.log.Warn("devices are not recorded as seen", "error", err)
	l, err := r.findLicense(a)
	if err == nil {
		found, err = r.evaluate(a, l, now)
	}
	return found, lease{}, err
}

type deactivateResponse struct {
	OK       bool  `json:"ok"`
	Released bool  `json:"released"`
	Until    stamp `json:"until,omitzero"` // until when an offline lease holds the seat
}

// deactivate answers POST /widget/license/deactivate: it releases the device's seat. When
// the device holds none, or an offline lease, released is false and nothing changes.
func (a *deviceAPI) deactivate(ctx context.Context, c *call) (any, error) {
	check := readCheck(c.in, required)
	l, err := a.admitLicense(c, &check)
	if err == nil {
		err = check.refused(l)
	}
	if err != nil {
		return nil, err
	}
	res := &deactivateResponse{}
	err = a.store.update(ctx, func(t *tx) error {
		*res = deactivateResponse{OK: true}
		l, err := check.needLicense(t)
		if err != nil {
			return err
		}
		found, err := check.evaluate(t, l, t.now.Time)
		if err != nil {
			return err
		}
		t.only(l.ID)
		switch {
		case found.code == "key_retired":
			return &refusal{code: codeKeyRetired}
		case found.mismatch:
			return errFingerprintMismatch
		case found.device == nil || found.device.State != deviceActive || found.tokenEnded:
			return nil
		case found.device.heldOffline(t.now.Time):
			res.Until = found.device.OfflineUntil
			return nil
		}
		res.Released = true
		releaseSeat(t, l, found.device, "device", eventDeviceReleased, actorDevice)
		return nil
	})
	return res, err
}

// listDevices answers GET /licenses/{id}/devices.
func (s *server) listDevices(ctx context.Context, c *call) (any, error) {
	l, page, err := s.admitLicensePath(ctx, c)
	if err != nil {
		return nil, err
	}
	return showRows(s.store.within(ctx).devices(l.ID, page.before, page.limit))
}

// releaseDevice answers DELETE /licenses/{id}/devices/{device_id}: it releases the device's
// seat. A device that holds none is left as it is.
func (s *server) releaseDevice(ctx context.Context, c *call) (any, error) {
	l, _, err := s.admitLicensePath(ctx, c)
	if err != nil {
		return nil, err
	}
	return noContent, s.store.update(ctx, func(t *tx) error {
		t.only(l.ID)
		d, err := t.device(l.ID, c.in.pathValue("device_id"))
		if err != nil || d.State != deviceActive {
			none := &refusal{code: codeNotFound, detail: "The licence has no such device."}
			return replaced(err, errNotFound, none)
		}
		releasedBy := "portal"
		if c.caller.admin() {
			releasedBy = "operator"
		}
		releaseSeat(t, l, d, releasedBy, eventDeviceReleased, actorToken(c))
		return nil
	})
}

// runTransitions applies all time-driven transitions that are due, in transactions of a
// bounded number of rows.
func (s *server) runTransitions(ctx context.Context) error {
	due, err := s.store.transitionsDue(newStamp(s.now()))
	for due && err == nil {
		var done int
		done, err = updated(ctx, s.store, applyTransitions)
		due = done >= maxTransitions
	}
	return err
}
