package main

import (
	"context"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"
)

// A deviceAPI answers the calls of devices. It keeps in memory the licences and devices
// that they ask about, and the leases that it signed within the last minute.
type deviceAPI struct {
	*server
	licenseMemory
	leases leaseCache
}

func deviceWing(s *server) wing {
	a := &deviceAPI{server: s, licenseMemory: newLicenseMemory(s.authenticator)}
	return wing{
		routes: []route{
			{pattern: "POST /widget/license/activate", token: tokenLate, creates: true, charge: a.charge, run: endpoint(a.activate)},
			{pattern: "POST /widget/license/verify", token: tokenLate, charge: a.charge, run: endpoint(a.verify)},
			{pattern: "POST /widget/license/deactivate", token: tokenLate, charge: a.charge, run: endpoint(a.deactivate)},
			{pattern: "GET /licenses/{id}/devices", token: tokenRequired, scope: scopeLicenses, run: endpoint(s.listDevices)},
			{pattern: "DELETE /licenses/{id}/devices/{device_id}", token: tokenRequired, scope: scopeDevices, run: endpoint(s.releaseDevice)},
		},
		chores: []chore{{fault: "lapsed seats and ended licences can't be written", timely: true, run: s.advance}},
	}
}

// A credential names a licence: by its key, or by a device token.
type credential struct {
	hash    *[32]byte // of the key; nil: none, or malformed
	keyErr  error
	license *license // that has the key; nil: none, or not looked up
}

func (cr *credential) read(in *input) {
	if !carriesDevice(in) && !in.has("license_key") {
		in.wrong("license_key", "required", "A licence key is required, or a device token in the Authorization header.")
	}
	if v := in.member("license_key", jsonString, optional); v != nil {
		if code, detail := checkText(v.text, optional, maxBody); code != "" { // the key's parser would pass white space
			in.wrong("license_key", code, detail)
			return
		}
		key, err := parseLicenseKey(v.text)
		if cr.keyErr = err; err == nil {
			hash := key.hash()
			cr.hash = &hash
		}
	}
}

// carriesDevice reports whether a request came with a device token, which names licence
// and device.
func carriesDevice(in *input) bool { return in.caller != nil && in.caller.claims.isDevice() }

// deviceToken returns the claims of the device token that came along, or nil.
func (c *call) deviceToken() *claims {
	if c.caller == nil || !c.caller.claims.isDevice() {
		return nil
	}
	return &c.caller.claims
}

// malformed is the refusal of a malformed key.
func (cr *credential) malformed() error {
	if cr.keyErr == nil {
		return nil
	}
	return &refusal{code: codeKeyMalformed,
		fields: []fieldError{{Pointer: "#/license_key", Code: codeKeyMalformed.name, Detail: codeKeyMalformed.detail}}}
}

// presentedKey returns what a request names its licence by.
func (cr *credential) presentedKey() *credential { return cr }

// charge charges the owner of the licence whose key is in the body, and keeps what was
// found for the call itself. Members come before, so that the limit's fields tell
// nothing about a key (contract, section 1).
func (a *deviceAPI) charge(c *call, in *input, request any) (account string, err error) {
	if err := in.err(); err != nil {
		return "", err
	}
	cr := request.(interface{ presentedKey() *credential }).presentedKey()
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

// failedLookup counts a licence key that is unknown against the caller's address;
// past the limit the answer is rate_limited, whatever else it would be.
func (a *deviceAPI) failedLookup(c *call, otherwise error) error {
	if err := a.limitAddress("lookup", a.address(c.request), a.failedLookupRate); err != nil {
		return err
	}
	return otherwise
}

// readFingerprint reads what a device calls itself by, 1 to 255 characters, and
// returns its hash; nil when there is none. A device token may stand in for one that
// is needed.
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

// checkNonce judges what a device wants signed: it goes into the token.
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
	q.nonce = in.text("nonce", optional, 128, checkNonce)
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

// activate binds a device to a licence and answers with its lease.
func (a *deviceAPI) activate(ctx context.Context, c *call, q *activateRequest) (*activateResponse, error) {
	if err := q.malformed(); err != nil {
		return nil, err
	}
	q.settle(c)
	keys := a.keys.Load()
	var g *grant
	res, err := create(ctx, a.server, c, func(t *tx) (*activateResponse, error) {
		var err error
		if g, err = keys.activate(t, q.activation); err != nil {
			return nil, err
		}
		return &activateResponse{OK: true, Code: g.code, License: viewLicense(g.license, t.now.Time), Device: stateOf(g.device),
			Token: g.lease.token, TokenType: "Bearer", ExpiresIn: g.lease.claims.Expires - t.now.Unix(),
			RefreshAfter: g.lease.claims.RefreshAfter, Nonce: q.nonce}, nil
	})
	if errors.Is(err, errLicense) && q.keyHash != nil {
		return nil, a.failedLookup(c, err)
	}
	if err == nil && g != nil && q.nonce == "" {
		a.leases.put(g.device.ID, g.lease)
	}
	return res, err
}

// settle decides which licence and which device an activation is for, and whose an
// Idempotency-Key is.
func (q *activateRequest) settle(c *call) {
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
	q.nonce = in.text("nonce", optional, 128, checkNonce)
	q.appVersion = nilIfEmpty(in.text("app_version", optional, 100, nil))
}

// verifyResponse is an answer about a licence; whatever carries no valid is none.
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

// appendJSON writes the answer as encoding/json would, which takes longer than all
// the rest of verify (BenchmarkVerifyAnswer).
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

// writeWait is how long verify waits to record that a device was seen. Its answer
// does not depend on that: reading goes on while the file is locked or full.
const writeWait = 2 * time.Second

// verify answers about a licence, always with 200.
func (a *deviceAPI) verify(ctx context.Context, c *call, q *verifyRequest) (*verifyResponse, error) {
	now := c.now
	if q.keyErr != nil {
		return &verifyResponse{Code: codeKeyMalformed.name, Detail: codeKeyMalformed.detail, CheckedAt: newStamp(now), Nonce: q.nonce}, nil
	}
	q.keyHash, q.presented = q.hash, c.deviceToken()
	l := q.license // which charging has looked up
	if q.keyHash == nil {
		var err error
		if l, err = q.findLicense(a); err != nil {
			return nil, err
		}
	}
	found, err := q.look(a, l, now)
	if err != nil {
		return nil, err
	}
	var given lease
	if d := found.device; d != nil && d.State == deviceActive && !d.lapsed(now) {
		if found, given, err = a.seen(ctx, &q.checkRequest, found, now); err != nil {
			return nil, err
		}
	}
	answer := &struct { // one allocation for all three
		verifyResponse
		license licenseView
		device  deviceState
	}{verifyResponse: verifyResponse{Valid: found.valid, Code: found.code, Detail: verdictDetails[found.code], CheckedAt: newStamp(now), Nonce: q.nonce}}
	res := &answer.verifyResponse
	if found.license == nil {
		return res, a.failedKey(c, q)
	}
	answer.license = viewLicense(found.license, now)
	res.License = &answer.license
	if found.device != nil {
		answer.device = stateOf(found.device)
		res.Device = &answer.device
	}
	if found.valid {
		res.RefreshAfter = int64(refreshAfter(found.license.leaseEnd(now).Sub(newStamp(now).Time)).Seconds())
	}
	if given.token != "" {
		res.Token, res.ExpiresIn, res.RefreshAfter = given.token, given.claims.Expires-now.Unix(), given.claims.RefreshAfter
	}
	return res, nil
}

// failedKey counts an unknown key; a token of a licence that is gone is no guess.
func (a *deviceAPI) failedKey(c *call, q *verifyRequest) error {
	if q.keyHash == nil {
		return nil
	}
	return a.failedLookup(c, nil)
}

// seen does what a verified device brings about: at most once a minute a write of
// when it was there, and a lease when it wants one: the next one, or, while the
// last is fresh, that same one, or one of the same number with its nonce.
func (a *deviceAPI) seen(ctx context.Context, r *checkRequest, found check, now time.Time) (check, lease, error) {
	keys := a.keys.Load()
	var given lease
	d := found.device
	wants := r.wantsLease(found, now)
	if !within(leaseReuse, d.LastSeenAt.Time, now) || behind(d, r.presented, now) || wants && d.leaseStale(found.license, keys.signer().kid, now) {
		var err error
		if found, given, err = a.noteSeen(ctx, r, now); err != nil {
			return found, lease{}, err
		}
	}
	if !r.wantsLease(found, now) || given.token != "" {
		if given.token != "" && r.nonce == "" {
			a.leases.put(found.device.ID, given)
		}
		return found, given, nil
	}
	base := a.routing.Load().bases[0].URL
	if r.nonce == "" {
		if kept, ok := a.leases.get(found.license, found.device, base, keys.signer().kid, now); ok {
			return found, kept, nil
		}
	}
	given, err := keys.signLease(found.license, found.device, base, r.nonce, now)
	if err == nil && r.nonce == "" {
		a.leases.put(found.device.ID, given)
	}
	return found, given, err
}

// noteSeen has the writer record that a device was there; when that takes too long
// the answer goes without. Errors: errCredentials, the store's when it can't be read.
func (a *deviceAPI) noteSeen(ctx context.Context, r *checkRequest, now time.Time) (found check, given lease, err error) {
	bounded, cancel := context.WithTimeout(ctx, writeWait)
	defer cancel()
	keys := a.keys.Load()
	err = a.store.update(bounded, func(t *tx) (err error) {
		found, given, err = keys.noteSeen(t, r)
		return err
	})
	if err == nil || errors.Is(err, errCredentials) {
		return found, given, err
	}
	a.log.Warn("a device was not recorded as seen", "error", err.Error())
	l, err := r.findLicense(a)
	if err == nil {
		found, err = r.look(a, l, now)
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

// deactivate gives a device's seat back; once more changes nothing.
func (a *deviceAPI) deactivate(ctx context.Context, c *call, q *deactivateRequest) (*deactivateResponse, error) {
	if err := q.malformed(); err != nil {
		return nil, err
	}
	token := c.deviceToken()
	ask := checkRequest{keyHash: q.hash, presented: token, fingerprint: q.fingerprint}
	res := &deactivateResponse{OK: true}
	err := a.store.update(ctx, func(t *tx) error {
		res.Released = false
		l, err := ask.findLicense(t)
		if err != nil {
			return err
		}
		if l == nil {
			return errLicense
		}
		found, err := ask.look(t, l, t.now.Time)
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
		return release(t, found.license, found.device, "device", eventDeviceReleased, actorDevice)
	})
	if errors.Is(err, errLicense) && ask.keyHash != nil {
		return nil, a.failedLookup(c, err)
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
	return newList(rows, q.page, func(d *device) string { return d.ID }, viewDevice), nil
}

// releaseDevice answers DELETE /licenses/{id}/devices/{device_id}: it takes the
// device's seat back. One that holds none is left as it is.
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
		by := "portal"
		if c.caller.admin() {
			by = "operator"
		}
		return release(t, l, d, by, eventDeviceReleased, actorToken(c))
	})
}

// advance does what time has brought about since the last second, or since the
// service last ran, a bounded number of rows at a time.
func (s *server) advance(ctx context.Context) error {
	due, err := s.store.timeHasWork(newStamp(s.now()))
	for due && err == nil {
		done := 0
		err = s.store.update(ctx, func(t *tx) (err error) {
			done, err = advanceTime(t)
			return err
		})
		due = done >= maxAdvance
	}
	return err
}
