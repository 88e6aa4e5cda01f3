package main

import (
	"context"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"
)

// A deviceAPI serves the endpoints that devices call. It caches licences, devices, and the
// leases that it signed within the last minute.
type deviceAPI struct {
	*server
	licenseCache
	leases leaseCache
}

func deviceWing(s *server) wing {
	a := &deviceAPI{server: s, licenseCache: newLicenseCache(s.authenticator)}
	return wing{
		routes: []route{
			{pattern: "POST /widget/license/activate", token: tokenLate, creates: true, charge: a.charge,
				run: endpoint(a.activate)},
			{pattern: "POST /widget/license/verify", token: tokenLate, charge: a.charge, run: endpoint(a.verify)},
			{pattern: "POST /widget/license/deactivate", token: tokenLate, charge: a.charge,
				run: endpoint(a.deactivate)},
			{pattern: "GET /licenses/{id}/devices", token: tokenRequired, scope: scopeLicenses,
				run: endpoint(s.listDevices)},
			{pattern: "DELETE /licenses/{id}/devices/{device_id}", token: tokenRequired, scope: scopeDevices,
				run: endpoint(s.releaseDevice)},
		},
		chores: []chore{{
			fault:      "lapsed seats and ended licences can't be written",
			timeDriven: true,
			run:        s.runTransitions,
		}},
	}
}

// A credential is the licence key of a request's body, which is optional when the request
// has a device token.
type credential struct {
	hash     *[32]byte // SHA-256 of the key; nil: there is none, or it is malformed
	keyErr   error     // why the key is malformed
	mistyped bool      // the key's check symbol is wrong, so it is malformed unless it is known
	license  *license  // the licence of the key; nil: not found, or not looked up
}

func (cr *credential) read(in *input) {
	if !carriesDevice(in) && !in.has("license_key") {
		in.wrong("license_key", "required",
			"A licence key is required, or a device token in the Authorization header.")
	}
	if v := in.member("license_key", jsonString, optional); v != nil {
		if code, detail := checkText(v.text, optional, maxBody); code != "" {
			// parseLicenseKey alone would ignore white space.
			in.wrong("license_key", code, detail)
			return
		}
		key, err := parseLicenseKey(v.text)
		if cr.keyErr = err; err == nil {
			hash := key.hash()
			cr.hash, cr.mistyped = &hash, key.mistyped()
		}
	}
}

// carriesDevice reports whether a request has a device token, which names a licence and a
// device.
func carriesDevice(in *input) bool { return in.caller != nil && in.caller.claims.isDevice() }

// deviceToken returns the claims of the request's device token, or nil.
func (c *call) deviceToken() *claims {
	if c.caller == nil || !c.caller.claims.isDevice() {
		return nil
	}
	return &c.caller.claims
}

// malformedKeyErr returns the refusal key_malformed when no key can have this form, else nil.
func (cr *credential) malformedKeyErr() error {
	if cr.keyErr == nil {
		return nil
	}
	return errMalformedMember
}

// unknownKeyErr returns the refusal of a key that no licence has: key_malformed when its check
// symbol is wrong, else license_not_found.
func (cr *credential) unknownKeyErr() error {
	if cr.mistyped {
		return errMalformedMember
	}
	return errLicenseNotFound
}

// errMalformedMember is the refusal key_malformed, which names the member license_key.
var errMalformedMember = &refusal{
	code: codeKeyMalformed,
	fields: []fieldError{{
		Pointer: "#/license_key",
		Code:    codeKeyMalformed.name,
		Detail:  codeKeyMalformed.detail,
	}},
}

// licenseCredential returns cr itself, for requests that embed it.
func (cr *credential) licenseCredential() *credential { return cr }

// charge returns the account to whose rate limit a request counts: the token's, else the one
// that owns the licence of the key, else none. It stores the licence in the request's
// credential, so that the handler need not look it up again. A request with invalid
// members is refused first, so that the fields of the rate limit tell nothing about a key
// (contract, section 1).
func (a *deviceAPI) charge(c *call, in *input, request any) (account string, err error) {
	if err := in.err(); err != nil {
		return "", err
	}
	cr := request.(interface{ licenseCredential() *credential }).licenseCredential()
	if cr.hash != nil {
		if cr.license, err = orNil(a.licenseByKey(*cr.hash)); err != nil {
			return "", err
		}
	}
	switch {
	case c.caller != nil:
		return c.caller.claims.Subject, nil
	case cr.license != nil:
		return cr.license.AccountID, nil
	}
	return "", nil
}

// countFailedLookup counts an unknown licence key against the rate limit of the client's
// address. It returns rate_limited when the limit is exceeded, else otherwise.
func (a *deviceAPI) countFailedLookup(c *call, otherwise error) error {
	if err := a.limitAddress("lookup", a.address(c.request), a.failedLookupRate); err != nil {
		return err
	}
	return otherwise
}

// readFingerprint reads the member fingerprint, 1 to 255 characters that identify a device,
// and returns its SHA-256; nil when there is none. When it is required, a device token
// does as well.
func readFingerprint(in *input, n need) []byte {
	if n == required && !carriesDevice(in) && !in.has("fingerprint") {
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
	if strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
		return "invalid_nonce", "A nonce has 1 to 128 visible ASCII characters."
	}
	return notEmpty(s)
}

// activateRequest is the body of POST /widget/license/activate (contract, section 4).
type activateRequest struct {
	credential
	activation
}

func (q *activateRequest) read(in *input) {
	q.credential.read(in)
	q.fingerprint = readFingerprint(in, required)
	q.product = in.text("product", optional, 100, notEmpty)
	q.replace = in.text("replace_device_id", optional, 64, isID("dev"))
	q.nonce = in.text("nonce", optional, maxNonce, checkNonce)
	device := in.object("device", optional)
	q.name = nilIfEmpty(device.text("name", optional, 100, nil))
	q.platform = nilIfEmpty(device.text("platform", optional, 100, nil))
	q.appVersion = nilIfEmpty(device.text("app_version", optional, 100, nil))
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
}

// activate answers POST /widget/license/activate: it gives the device a seat and a lease.
func (a *deviceAPI) activate(ctx context.Context, c *call, q *activateRequest) (*activateResponse, error) {
	if err := q.malformedKeyErr(); err != nil {
		return nil, err
	}
	q.setTargets(c)
	keys := a.keys.Load()
	var g *activationResult
	res, err := create(ctx, a.server, c, func(t *tx) (*activateResponse, error) {
		var err error
		if g, err = keys.activate(t, q.activation); err != nil {
			return nil, err
		}
		return &activateResponse{
			OK:           true,
			Code:         g.code,
			License:      newLicenseView(g.license, t.now.Time),
			Device:       newDeviceState(g.device),
			Token:        g.lease.token,
			TokenType:    "Bearer",
			ExpiresIn:    g.lease.claims.Expires - t.now.Unix(),
			RefreshAfter: g.lease.claims.RefreshAfter,
			Nonce:        q.nonce,
		}, nil
	})
	if errors.Is(err, errLicenseNotFound) && q.keyHash != nil {
		return nil, a.countFailedLookup(c, q.unknownKeyErr())
	}
	if err == nil && g != nil && q.nonce == "" {
		a.leases.put(g.device.ID, g.lease)
	}
	return res, err
}

// setTargets completes the activation with the key and the token of the request, and sets
// the scope within which an Idempotency-Key is unique: licence key, device and fingerprint.
func (q *activateRequest) setTargets(c *call) {
	if q.keyHash = q.hash; q.keyHash != nil {
		c.idemScope = "license " + hex.EncodeToString(q.keyHash[:])
	}
	if token := c.deviceToken(); token != nil {
		q.licenseID, q.presented = token.License, token
		c.idemScope += " device " + token.Device
	}
	c.idemScope += " fingerprint " + hex.EncodeToString(q.fingerprint)
}

// verifyRequest is the body of POST /widget/license/verify.
type verifyRequest struct {
	credential
	checkRequest
}

func (q *verifyRequest) read(in *input) {
	q.credential.read(in)
	q.fingerprint = readFingerprint(in, optional)
	q.product = in.text("product", optional, 100, notEmpty)
	q.entitlements = in.texts("entitlements", 100, 64)
	q.nonce = in.text("nonce", optional, maxNonce, checkNonce)
	q.appVersion = nilIfEmpty(in.text("app_version", optional, 100, nil))
}

// verifyResponse is the answer of verify. Every such answer has the member valid, which
// tells it from a problem.
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
	b = append(b, `{"valid":`...)
	b = strconv.AppendBool(b, v.Valid)
	b = appendUnescaped(b, "code", v.Code)
	b = appendUnescaped(b, "detail", v.Detail)
	b = append(b, `,"checked_at":`...)
	b = v.CheckedAt.appendJSON(b)
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
	for _, n := range []struct {
		name  string
		value int64
	}{{`,"expires_in":`, v.ExpiresIn}, {`,"refresh_after":`, v.RefreshAfter}} {
		if n.value != 0 {
			b = strconv.AppendInt(append(b, n.name...), n.value, 10)
		}
	}
	return append(b, '}')
}

// writeWait is how long verify waits for the write of last_seen_at. It answers also when
// that fails: reading works while the database is locked or the disk is full.
const writeWait = 2 * time.Second

// verify answers POST /widget/license/verify. The status is 200 whether or not the licence
// is valid.
func (a *deviceAPI) verify(ctx context.Context, c *call, q *verifyRequest) (*verifyResponse, error) {
	now := c.now
	if q.keyErr != nil {
		return &verifyResponse{
			Code:      codeKeyMalformed.name,
			Detail:    codeKeyMalformed.detail,
			CheckedAt: newStamp(now),
			Nonce:     q.nonce,
		}, nil
	}
	q.keyHash, q.presented = q.hash, c.deviceToken()
	l := q.license // looked up by charge
	if q.keyHash == nil {
		var err error
		if l, err = q.findLicense(a); err != nil {
			return nil, err
		}
	}
	found, err := q.evaluate(a, l, now)
	if err != nil {
		return nil, err
	}
	var issued lease
	if found.device.holdsSeat(now) {
		if found, issued, err = a.touchDevice(ctx, &q.checkRequest, found, now); err != nil {
			return nil, err
		}
	}
	if found.license == nil && q.keyHash != nil { // a token whose licence is gone is no guess at a key
		if err := a.countFailedLookup(c, nil); err != nil {
			return nil, err
		}
		if q.mistyped {
			found.code = codeKeyMalformed.name
		}
	}
	return newVerifyResponse(found, issued, q.nonce, now), nil
}

// newVerifyResponse returns the answer to a check; issued is the zero lease when the answer
// includes none.
func newVerifyResponse(found licenseCheck, issued lease, nonce string, now time.Time) *verifyResponse {
	res := &verifyResponse{
		Valid:     found.valid,
		Code:      found.code,
		Detail:    verdictDetail(found.code, found.device),
		CheckedAt: newStamp(now),
		Nonce:     nonce,
	}
	if found.license == nil {
		return res
	}
	view := newLicenseView(found.license, now)
	res.License = &view
	if found.device != nil {
		state := newDeviceState(found.device)
		res.Device = &state
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
	if needsLease || !within(leaseReuse, d.LastSeenAt.Time, now) || presentsOlderLease(d, r.presented, now) {
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
		found, issued, err = keys.recordSeen(t, r)
		return err
	})
	if err == nil || errors.Is(err, errCredentialMismatch) {
		return found, issued, err
	}
	a.strike("devices are not recorded as seen", err)
	l, err := r.findLicense(a)
	if err == nil {
		found, err = r.evaluate(a, l, now)
	}
	return found, lease{}, err
}

// deactivateRequest is the body of POST /widget/license/deactivate.
type deactivateRequest struct {
	credential
	fingerprint []byte
}

func (q *deactivateRequest) read(in *input) {
	q.credential.read(in)
	q.fingerprint = readFingerprint(in, required)
}

type deactivateResponse struct {
	OK       bool `json:"ok"`
	Released bool `json:"released"`
}

// deactivate answers POST /widget/license/deactivate: it releases the device's seat. When
// the device holds none, released is false and nothing changes.
func (a *deviceAPI) deactivate(
	ctx context.Context, c *call, q *deactivateRequest,
) (*deactivateResponse, error) {
	if err := q.malformedKeyErr(); err != nil {
		return nil, err
	}
	token := c.deviceToken()
	check := checkRequest{keyHash: q.hash, presented: token, fingerprint: q.fingerprint}
	res := &deactivateResponse{OK: true}
	err := a.store.update(ctx, func(t *tx) error {
		res.Released = false
		l, err := check.findLicense(t)
		if err != nil {
			return err
		}
		if l == nil {
			return errLicenseNotFound
		}
		found, err := check.evaluate(t, l, t.now.Time)
		if err != nil {
			return err
		}
		t.invalidate(found.license.ID)
		switch {
		case found.code == "key_retired":
			return &refusal{code: codeKeyRetired}
		case found.mismatch:
			return errOtherDevice
		case found.device == nil || found.device.State != deviceActive:
			return nil
		}
		res.Released = true
		return releaseSeat(t, found.license, found.device, "device", eventDeviceReleased, actorDevice)
	})
	if errors.Is(err, errLicenseNotFound) && check.keyHash != nil {
		return nil, a.countFailedLookup(c, q.unknownKeyErr())
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// listDevices answers GET /licenses/{id}/devices.
func (s *server) listDevices(_ context.Context, c *call, q *licenseRequest) (*list[deviceView], error) {
	l, err := q.find(s, c)
	if err != nil {
		return nil, err
	}
	rows, err := s.store.devices(l.ID, q.page.before, q.page.limit+1)
	if err != nil {
		return nil, err
	}
	return newList(rows, q.page, func(d *device) string { return d.ID }, newDeviceView), nil
}

// releaseDevice answers DELETE /licenses/{id}/devices/{device_id}: it releases the device's
// seat. A device that holds none is left as it is.
func (s *server) releaseDevice(ctx context.Context, c *call, q *licenseRequest) (noContent, error) {
	l, err := q.find(s, c)
	if err != nil {
		return noContent{}, err
	}
	return noContent{}, s.store.update(ctx, func(t *tx) error {
		t.invalidate(l.ID)
		d, err := t.device(l.ID, q.device)
		if errors.Is(err, errNotFound) {
			return &refusal{code: codeNotFound, detail: "The licence has no such device."}
		}
		if err != nil || d.State != deviceActive {
			return err
		}
		releasedBy := "portal"
		if c.caller.admin() {
			releasedBy = "operator"
		}
		return releaseSeat(t, l, d, releasedBy, eventDeviceReleased, actorToken(c))
	})
}

// runTransitions applies all time-driven transitions that are due, in transactions of a
// bounded number of rows.
func (s *server) runTransitions(ctx context.Context) error {
	due, err := s.store.transitionsDue(newStamp(s.now()))
	for due && err == nil {
		done := 0
		err = s.store.update(ctx, func(t *tx) (err error) {
			done, err = applyTransitions(t)
			return err
		})
		due = done >= maxTransitions
	}
	return err
}
