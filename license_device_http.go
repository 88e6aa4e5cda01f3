package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A deviceAPI serves the endpoints that devices call.
type deviceAPI struct {
	*server
	rows    *cache[rowsKey, checkResult] // rows that requests name
	leases  leaseCache                   // that were signed within the last minute
	lookups *lookupGuard                 // keys that failed
}

// A rowsKey is what of a request tells which rows it names.
type rowsKey struct {
	keyHash, fingerprint [32]byte // zero: none; without a token the fingerprint names the device
	license, device      string   // that the token names
}

// bucketLicenses is charged for licence calls without an account's own token, including those of devices.
const bucketLicenses = "licenses"

func deviceModule(s *server) module {
	a := &deviceAPI{server: s, rows: newCache[rowsKey, checkResult](4_000), // in at most about 8 MiB
		leases:  leaseCache{leases: map[string]*lease{}},
		lookups: newLookupGuard(s.failedLookupRate, s.monotonic())}
	return module{
		routes: append([]route{
			// ownScope: who may not read licences, of its own account or of all, is anonymous, and can't guess keys
			{pattern: "POST /widget/license/activate", token: tokenLate, ownScope: scopeLicenses, creates: true,
				bucket: bucketLicenses, refuses: "license_revoked license_suspended license_not_started " +
					"license_expired license_in_grace key_retired product_mismatch device_blocked device_released " +
					"token_ended fingerprint_mismatch offline_not_allowed license_not_found held_offline " +
					"seat_limit_reached transfer_limit_reached key_malformed credential_mismatch clock_doubted",
				endpoint: admitting(readActivation, a.activateLicense)},
			{pattern: "POST /widget/license/verify", token: tokenLate, ownScope: scopeLicenses,
				bucket: bucketLicenses, refuses: "credential_mismatch",
				endpoint: admitting(readVerification, a.verifyLicense)},
			{pattern: "POST /widget/license/deactivate", token: tokenLate, ownScope: scopeLicenses,
				bucket: bucketLicenses, refuses: "key_retired fingerprint_mismatch license_not_found key_malformed " +
					"credential_mismatch",
				endpoint: admitting(readDeactivation, a.deactivateLicense)},
			{pattern: "GET /licenses/{id}/devices", scope: scopeLicenses, question: true,
				refuses: "license_not_found", endpoint: owned(s, readOnlyPage("dev"), s.listDevices)},
			{pattern: "DELETE /licenses/{id}/devices/{device_id}", scope: scopeDevices, answers: answerForm{empty: 204},
				refuses: "license_not_found not_found", endpoint: owned(s, readNoMembers, s.releaseDevice)},
		}, a.pageRoutes()...),
		refusals: map[string]refusalForm{"activate": activateRefused},
		chores: []chore{{fault: "lapsed seats and ended licences can't be written", timeDriven: true,
			run: s.runTransitions}},
		metrics: []metric{{"widgetd_lookup_addresses", "gauge",
			"Addresses of which licence keys that failed are remembered.",
			func() []string { return []string{fmt.Sprintf(" %d", a.lookups.len())} }}},
	}
}

// readDevice reads who sends a request: the members license_key and fingerprint, which is 1 to 255 characters that
// identify a device. n says whether the fingerprint is required. A device token stands for both, see sentBy.
func readDevice(in *input, n presence) *deviceRequest {
	r := &deviceRequest{}
	if !in.has("license_key") {
		in.wrong("license_key", "required",
			"A licence key is required, or a device token in the Authorization header.")
	}
	in.trim("license_key")
	// The licence key; a device token may be sent in its place. Case, dashes and spaces make no difference; `O` reads
	// as `0`, `I` and `L` as `1`. Of another vendor's key only white space around it makes none.
	if v := in.member(reading{name: "license_key", kind: jsonString}); v != nil {
		if code, detail := checkText(v.text, optional, maxBody); code != "" {
			// parseLicenseKey alone would ignore white space.
			in.wrong("license_key", code, detail)
		} else if key, err := parseLicenseKey(v.text); err != nil {
			r.malformed = true
		} else {
			r.keyHash, r.mistyped = new(key.hash()), key.mistyped()
		}
	}
	if n == required && !in.has("fingerprint") {
		in.wrong("fingerprint", "required", "The fingerprint of the device is required, or its token.")
	}
	// What tells this machine from others, chosen by the application; a device token may be sent in its place. Only its
	// SHA-256 is kept.
	if text := in.text("fingerprint", optional, 255, notEmpty); text != "" {
		hash := fingerprintHash(text)
		r.fingerprint = hash[:]
	}
	return r
}

// sentBy notes the device token of a request's call, if it has one. Then it is no error that members are missing for
// which the token stands.
func (r *deviceRequest) sentBy(c *call) {
	if c.caller == nil || !c.caller.claims.isDevice() {
		return
	}
	r.token = &c.caller.claims
	c.in.allowMissing("license_key", "fingerprint")
}

// knownDeviceRate is the limit of an address, in requests a minute (contract, section 2), by the keys of active
// devices, while too many other keys have failed.
const knownDeviceRate = 300

// finishReadingDevice notes the token of a device's request and ends its reading, looks it up, applies the rule against
// guessing keys, and charges the call. With an account's own token a licence is found only if it belongs to an account
// on which the token may act. A request with invalid members is refused before any look-up, so that the RateLimit
// headers of its answer reveal nothing about a key (contract, section 1). n says whether a device that only its
// fingerprint names is looked up, too: where a transaction does that later it would cost an activation a twentieth, so
// it is left out then unless it may pass the rule.
func (a *deviceAPI) finishReadingDevice(c *call, r *deviceRequest, n presence) (f checkResult, err error) {
	r.sentBy(c)
	if err := c.finish(); err != nil {
		return f, err
	}
	known := r
	if n == optional && a.lookups.limited(a.address(c.request), a.monotonic()) == 0 {
		known = &deviceRequest{keyHash: r.keyHash, token: r.token}
	}
	if f, err = a.cachedRows(known); err != nil {
		return f, err
	}
	if f.license != nil && c.bearsOwnToken() && !c.caller.all && f.license.AccountID != c.caller.claims.Subject {
		f = checkResult{}
	}
	f.judge(r, c.now)
	account, err := a.payerOf(c, r, &f)
	if err != nil {
		return f, err
	}
	return f, a.charge(c, account)
}

// cachedRows is deviceRequest.read with a cache in front of it; the zero finding: there is no such licence. That a
// licence lacks a device is cached, too: a portal asks about devices that were never activated.
func (a *deviceAPI) cachedRows(r *deviceRequest) (checkResult, error) {
	key := rowsKey{keyHash: valueOr(r.keyHash, [32]byte{})}
	if r.token != nil {
		key.license, key.device = r.token.License, r.token.Device
	} else {
		copy(key.fingerprint[:], r.fingerprint)
	}
	return orNil(a.rows.load(a.store, key, func() (checkResult, string, error) {
		f, err := r.read(a.store.queries)
		if err != nil {
			return f, "", err
		}
		return f, f.license.ID, nil
	}))
}

// payerOf returns the account that a call is charged to: that of the caller's own token; without one, the account
// that owns the licence, while licence, key and token are current; otherwise "", none. Errors: rate_limited.
//
// A token is not current if its device is gone or blocked, or the token has ended. It still is if the
// device gave its seat back itself or its floating lease has lapsed: it comes back with its token, and
// a fleet that was off at night does so all at once from one address, whose own limit would be too low.
func (a *deviceAPI) payerOf(c *call, r *deviceRequest, f *checkResult) (account string, err error) {
	switch {
	case c.bearsOwnToken():
		return c.caller.claims.Subject, nil
	case r.keyHash != nil:
		if err := a.checkLookup(c, r, f); err != nil {
			return "", err
		}
	case r.token == nil: // the key is malformed
		return "", a.limitAddress("malformed key", a.address(c.request), a.anonymousRate)
	}
	tokenCurrent := r.token == nil || f.device != nil && f.device.State != deviceBlocked && !f.tokenEnded
	switch {
	case f.license.current(c.now) && tokenCurrent:
		return f.license.AccountID, nil
	case f.license == nil && r.token == nil: // checkLookup has counted the key
		return "", nil
	}
	return "", a.limitAddress("ended", a.address(c.request), a.anonymousRate)
}

// checkLookup applies the rule against guessing keys (contract, section 2) to the client's address, after a key was
// looked up. A key that is unknown or not current counts as failed. Past the limit, only keys pass that come with the
// fingerprint or the token of an active device; others are refused, known or not, until another one may fail.
func (a *deviceAPI) checkLookup(c *call, r *deviceRequest, f *checkResult) error {
	address, now := a.address(c.request), a.monotonic()
	var wait time.Duration
	if f.license.current(c.now) {
		wait = a.lookups.limited(address, now)
		if wait > 0 && f.device.holdsSeat(c.now) && a.limitAddress("known device", address, knownDeviceRate) == nil {
			return nil
		}
	} else {
		var repeated bool
		if repeated, wait = a.lookups.fail(address, *r.keyHash, now); repeated {
			return a.limitAddress("repeated lookup", address, repeatedLookupRate)
		}
	}
	if wait > 0 {
		return errRate(limitReached{failedLimit, a.failedLookupRate, 0, wait},
			"Too many licence keys from this address have failed.", wait)
	}
	return nil
}

// checkNonce checks the nonce that a device wants included in the signed token.
var checkNonce = &textCheck{pattern: "^[!-~]{1,128}$", of: func(s string) (code, detail string) {
	if strings.IndexFunc(s, isNotVisible) >= 0 {
		return "invalid_nonce", "A nonce has 1 to 128 visible ASCII characters."
	}
	return notEmpty.of(s)
}}

func readActivation(in *input) *deviceRequest { return readSeatRequest(in, false) }

// readSeatRequest reads an activation (contract, section 4); offline is whether it is for an offline lease where the
// body does not say.
func readSeatRequest(in *input, offline bool) *deviceRequest {
	r := readDevice(in, required)
	// The product that asks; a licence for another one is refused.
	r.product = in.text("product", optional, 100, notEmpty)
	// A device whose seat this one takes over.
	r.replace = in.text("replace_device_id", optional, 64, isID("dev"))
	// Visible ASCII that comes back in the answer and in the signed token. Required with `offline`.
	r.nonce = in.text("nonce", optional, maxNonce, checkNonce)
	// `true`: the lease is to last the licence's `offline_days`, but not past the end of grace. Nobody can recall it,
	// so the seat stays taken until it ends, unless a portal or the operator takes it away. Asking again renews it.
	if asked, given := in.boolTerm("offline"); given {
		offline = asked
	}
	if r.offline = offline; offline && !in.has("nonce") {
		in.wrong("nonce", "required", "Whoever asks for an offline lease must send a nonce, which tells the device "+
			"that the lease answers its request.")
	}
	of := in.object("device", optional)                                   // What people see of the device.
	r.name = nilIfEmpty(of.text("name", optional, 100, nil))              // As `Kitchen 1`.
	r.platform = nilIfEmpty(of.text("platform", optional, 100, nil))      // As `linux/arm64`.
	r.appVersion = nilIfEmpty(of.text("app_version", optional, 100, nil)) // The application's version.
	return r
}

// An activationCode is what an activation did; `already_active`: the device held its seat already.
type activationCode string

var _ = declareWords[activationCode]("activated", "already_active", "reactivated")

// An activation is the answer to a device that holds a seat.
type activation struct {
	OK      bool           `json:"ok" is:"=true"` // Always `true`.
	Code    activationCode `json:"code"`          // What was done.
	License licenseSummary `json:"license"`       // The licence.
	Device  deviceSummary  `json:"device"`        // The device.

	// The device token, which is the lease: a JWS signed with Ed25519.
	Token        string `json:"token"`
	TokenType    string `json:"token_type" is:"=Bearer"` // Always `Bearer`.
	ExpiresIn    int64  `json:"expires_in"`              // Seconds until the token ends.
	RefreshAfter int64  `json:"refresh_after"`           // Seconds after which to verify again.
	Nonce        string `json:"nonce,omitempty"`         // The nonce that was sent; absent if none was.

	// Until when an offline lease of the device keeps its seat; absent: it has none.
	OfflineUntil stamp `json:"offline_until,omitzero"`
}

// Activate a licence on a device.
//
// Takes a seat of the licence for a device; `token` in the answer is its lease, with which it proves the licence
// without a network. The licence key is the credential; a device token may be sent in place of it and of the
// fingerprint. Activating the same device again takes no second seat and keeps its id. With `offline`, a device that
// has no network gets a long lease, which somebody else posts its request for and carries to it. A device whose
// fingerprint has changed sends its newest token and the new fingerprint, and keeps its seat. With an account's own
// token, as portals send it, only that account's licences are found, and the limits by address do not count.
//
// Callers without such a token are held by address: once 30 different keys have failed within a minute, only keys of
// active devices are answered.
func (a *deviceAPI) activateLicense(ctx context.Context, c *call, r *deviceRequest) (*activation, error) {
	return a.giveSeat(ctx, c, r)
}

// giveSeat carries an activation out.
func (a *deviceAPI) giveSeat(ctx context.Context, c *call, r *deviceRequest) (*activation, error) {
	f, err := a.finishReadingDevice(c, r, optional)
	if err != nil {
		return nil, err
	}
	if a.signingHeld() {
		return nil, errClock
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	keys := a.keys.Load()
	r.keepLapsed, c.idemScope = a.clockDoubted(), r.idempotencyScope()
	c.stillTrue = func(t *tx, answer []byte) (bool, error) { return r.stillActivated(t, keys, answer) }
	var seat checkResult
	res, err := create(ctx, a.server, c, func(t *tx) (_ *activation, err error) {
		t.dropsOnly(f.license.ID)
		if seat, err = activateDevice(t, keys, r); err != nil {
			return nil, err
		}
		l, d, signed := seat.license, seat.device, seat.lease
		res := &activation{OK: true, Code: activationCode(seat.code), License: newLicenseSummary(l, t.now.Time),
			Device: deviceSummary{d.ID, d.Name, d.State}, Token: signed.token, TokenType: "Bearer",
			ExpiresIn: signed.claims.Expires - t.now.Unix(), RefreshAfter: signed.claims.RefreshAfter, Nonce: r.nonce}
		if d.leasedOffline(t.now.Time) {
			res.OfflineUntil = d.OfflineUntil
		}
		return res, nil
	})
	if err == nil && seat.lease != nil && r.nonce == "" {
		a.leases.put(seat.device.ID, seat.lease)
	}
	return res, err
}

// stillActivated reports whether an earlier answer to an activation is still true: its key is not retired, the licence
// can be used, the device holds its seat, and its token is its newest, and has neither ended nor expired (contract,
// section 1).
func (r *deviceRequest) stillActivated(t *tx, keys *keyring, answer []byte) (bool, error) {
	var earlier struct{ Token string }
	if err := json.Unmarshal(answer, &earlier); err != nil {
		return false, err
	}
	c, err := keys.verify(earlier.Token)
	if err != nil {
		return false, nil // the key that signed it has been retired
	}
	now := deviceRequest{keyHash: r.keyHash, token: &c}
	f, err := now.lookUp(t)
	return f.valid && f.device != nil && c.Seq == f.device.LeaseSeq && c.Expires > t.now.Unix(), err
}

// idempotencyScope returns the scope within which an Idempotency-Key of an activation is unique: licence key,
// device and fingerprint.
func (r *deviceRequest) idempotencyScope() (scope string) {
	if r.keyHash != nil {
		scope = "license " + hex.EncodeToString(r.keyHash[:])
	}
	if r.token != nil {
		scope += " device " + r.token.Device
	}
	return scope + " fingerprint " + hex.EncodeToString(r.fingerprint)
}

// A verification is what the service knows about the licence. Every answer with `valid` is conclusive; every
// other answer means: keep the lease and try later.
type verification struct {
	Valid     bool             `json:"valid"`           // Whether the licence may be used.
	Code      verificationCode `json:"code"`            // Why.
	Detail    string           `json:"detail"`          // The same for people.
	CheckedAt stamp            `json:"checked_at"`      // When it was checked.
	Nonce     string           `json:"nonce,omitempty"` // The nonce that was sent; absent if none was.
	License   *licenseSummary  `json:"license"`         // The licence, or null: none was found.
	Device    *deviceSummary   `json:"device"`          // The device, or null: the licence knows none that is named.

	// A new device token; absent where the device keeps the one that it has.
	Token     string `json:"token,omitempty"`
	ExpiresIn int64  `json:"expires_in,omitempty"` // Seconds until that token ends.

	// Seconds after which to verify again; absent: say in an hour.
	RefreshAfter int64 `json:"refresh_after,omitempty"`
}

// appendJSON appends what encoding/json would produce. It exists because encoding/json
// takes longer than all the rest of verify (BenchmarkAlone).
func (v *verification) appendJSON(b []byte) []byte {
	b = strconv.AppendBool(append(b, `{"valid":`...), v.Valid)
	b = appendUnescaped(b, "code", string(v.Code))
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
		b = appendUnescaped(b, "state", string(d.State))
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

func readVerification(in *input) *deviceRequest {
	r := readDevice(in, optional)
	// The product that asks; a licence for another one is refused.
	r.product = in.text("product", optional, 100, notEmpty)
	// Codes that the licence must include, all of them.
	r.entitlements = in.texts(reading{name: "entitlements", high: 100, each: 64})
	// Visible ASCII that comes back in the answer and in the signed token.
	r.nonce = in.text("nonce", optional, maxNonce, checkNonce)
	r.appVersion = nilIfEmpty(in.text("app_version", optional, 100, nil)) // The application's version.
	return r
}

// Ask whether a licence holds.
//
// Answers 200 whenever it can tell something about the licence, good or bad. `valid` present is conclusive; every other
// answer means: keep the lease and try later. With a device token, `{}` is enough. Verifying never takes a seat. While
// the service can't tell whether its clock is right, there is no `token` in the answer. With an account's token that
// has `licenses:read`, and without a device, the licence alone is judged: so a portal shows it. Without such a token a
// licence that limits devices is then `fingerprint_required`, with the whole `license`.
//
// Callers without an account's own token, and applications without `licenses:read`, are held by address: once 30
// different keys have failed within a minute, only keys of active devices are answered.
func (a *deviceAPI) verifyLicense(ctx context.Context, c *call, r *deviceRequest) (*verification, error) {
	// While signing is held, nothing is recorded about the device.
	r.licenseOnly = c.bearsOwnToken() && c.caller.has(scopeLicenses)
	f, err := a.finishReadingDevice(c, r, required)
	if err == nil && !r.malformed && f.holdsSeat(c.now) && !a.signingHeld() {
		err = a.touchDevice(ctx, r, &f, c.now)
	}
	if err == nil && f.otherToken {
		err = errOtherToken
	}
	if err != nil {
		return nil, err
	}
	res := &verification{Valid: f.valid, Code: verificationCode(f.code), Detail: verdictDetail(f.code, f.device),
		CheckedAt: newStamp(c.now), Nonce: r.nonce}
	if l := f.license; l != nil && !r.malformed {
		res.License = new(newLicenseSummary(l, c.now))
	}
	if d := f.device; d != nil && !r.malformed {
		res.Device = &deviceSummary{d.ID, d.Name, d.State}
	}
	switch {
	case f.lease != nil:
		res.Token, res.ExpiresIn = f.lease.token, f.lease.claims.Expires-c.now.Unix()
		res.RefreshAfter = f.lease.claims.RefreshAfter
	case f.valid:
		res.RefreshAfter = refreshAfter(f.license.leaseEnd(c.now).Unix() - c.now.Unix())
	}
	return res, nil
}

// touchDevice records that a device was seen, with at most one write a minute, and sets f.lease if the answer needs
// one. A lease that is not stale is sent again, or, for a request with a nonce, signed again with the same number; a
// stale one is replaced by the next. When the write fails or takes longer than writeWait, it logs that and goes on
// with f as it is.
func (a *deviceAPI) touchDevice(ctx context.Context, r *deviceRequest, f *checkResult, now time.Time) (err error) {
	keys := a.keys.Load()
	kid := keys.signer().kid
	if f.wantsLease(r, now) && f.device.leaseStale(f.license, kid, now) ||
		!closerThan(leaseReuse, f.device.LastSeenAt.Time, now) || presentsOlderLease(f.device, r.token, now) {
		bounded, cancel := context.WithTimeout(ctx, writeWait)
		defer cancel()
		seen, err := updated(bounded, a.store, func(t *tx) (checkResult, error) { return recordSeen(t, keys, r) })
		if err == nil {
			*f = seen
		} else {
			a.log.Warn("devices are not recorded as seen", "error", err)
		}
	}
	if !f.wantsLease(r, now) {
		return nil
	}
	base := a.routing.Load().bases[0].URL
	if f.lease == nil && r.nonce == "" {
		if f.lease = a.leases.get(f, base, kid, now); f.lease != nil {
			return nil
		}
	}
	if f.lease == nil {
		err = f.signLease(keys, leaseClaims(f.license, f.device, now, r.nonce), base, now)
	}
	if err == nil && r.nonce == "" {
		a.leases.put(f.device.ID, f.lease)
	}
	return err
}

// A deactivation is the answer to a device that holds no seat, or keeps it until its offline lease ends.
type deactivation struct {
	OK bool `json:"ok" is:"=true"` // Always `true`.

	// Whether this call gave a seat back; `false`: the device held none, or keeps it.
	Released bool `json:"released"`

	// Until when an offline lease, which nobody can recall, keeps the seat; absent: there is none.
	Until stamp `json:"until,omitzero"`
}

func readDeactivation(in *input) *deviceRequest { return readDevice(in, required) }

// Give a seat back.
//
// Releases the device's seat, also on a suspended or expired licence. A device token may be sent in place of key and
// fingerprint. A device that holds no seat gets `released: false`, and so does one with an offline lease, with `until`
// when that ends.
//
// Callers without an account's own token, and applications without `licenses:read`, are held by address: once 30
// different keys have failed within a minute, only keys of active devices are answered.
func (a *deviceAPI) deactivateLicense(ctx context.Context, c *call, r *deviceRequest) (deactivation, error) {
	f, err := a.finishReadingDevice(c, r, optional)
	if err == nil {
		err = f.err()
	}
	if err != nil {
		return deactivation{}, err
	}
	return updated(ctx, a.store, func(t *tx) (res deactivation, err error) {
		f, err := r.lookUp(t)
		if err != nil {
			return res, err
		}
		t.dropsOnly(f.license.ID)
		res.OK = true
		switch {
		case f.license.keyRetired(t.now.Time):
			return res, &refusal{code: codeKeyRetired}
		case f.mismatch:
			return res, &refusal{code: codeFingerprintMismatch}
		case f.device == nil || f.device.State != deviceActive || f.tokenEnded:
		case f.device.leasedOffline(t.now.Time):
			res.Until = f.device.OfflineUntil
		default:
			res.Released = true
			releaseSeat(t, f.license, f.device, "device", eventDeviceReleased, actorDevice)
		}
		return res, nil
	})
}

// List the devices of a licence.
//
// They come newest first. A request has two seconds, waiting included.
func (s *server) listDevices(ctx context.Context, c *call, of owner, page pageQuery) (*list[*device], error) {
	l, err := s.store.license(of, c.id())
	if err != nil {
		return nil, err
	}
	return showRows(s.store.within(ctx).devices(l.ID, page.before, page.limit))
}

// Take a device's seat back.
//
// Releases a device's seat and ends the tokens that it got until now. A device that holds no seat is left as it is.
func (s *server) releaseDevice(ctx context.Context, c *call, of owner, _ noMembers) (*reply, error) {
	l, err := s.store.license(of, c.id())
	if err != nil {
		return nil, err
	}
	return noContent, s.store.update(ctx, func(t *tx) error {
		t.dropsOnly(l.ID)
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

// runTransitions applies all time-driven transitions that are due, in transactions of a bounded number of rows.
func (s *server) runTransitions(ctx context.Context) error {
	due, err := s.store.transitionsDue(newStamp(s.now()))
	if due && err == nil {
		_, err = s.store.updateInParts(ctx, maxTransitions, applyTransitions)
	}
	return err
}
