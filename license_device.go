package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"time"
)

// scopeDevices is the scope that changes devices.
const scopeDevices = "devices:write"

// deviceNoun declares devices, which hold seats of licences.
func deviceNoun() noun {
	return noun{
		name:     "device",
		wings:    func(s *server) []wing { return []wing{deviceWing(s)} },
		commands: deviceCommands,
		ids:      []idKind{{"DEVICE", "dev", "devices"}},
		problems: deviceProblems,
		events:   deviceEvents,
		sealed:   []string{"devices"},
		rows:     []rowReader{deviceTable.unreadable},
	}
}

// The states of a device.
const (
	deviceActive   = "active"
	deviceReleased = "released"
	deviceBlocked  = "blocked"
)

// A device is one machine that was activated on a licence. Its JSON is for the account that owns the licence, for
// operators, and for the other devices of a full licence.
type device struct {
	ID          string     `json:"id"`
	Name        *string    `json:"name"`
	State       string     `json:"state"`
	Platform    *string    `json:"platform"`
	AppVersion  *string    `json:"app_version"`
	Fingerprint maskedHash `json:"fingerprint"`
	ActivatedAt stamp      `json:"activated_at"`
	LastSeenAt  stamp      `json:"last_seen_at"`
	ReleasedAt  stamp      `json:"released_at"`
	ReleasedBy  *string    `json:"released_by"`
	CloneAt     stamp      `json:"clone_suspected_at"` // when it last presented an older lease than before

	// The latest end of its offline leases, which nobody can recall: until then only a portal or an operator
	// frees its seat. It never moves back.
	OfflineUntil stamp `json:"offline_until"`

	OfflineKid     string `json:"-"` // of the key that signed that lease
	LicenseID      string `json:"-"`
	LeaseSeq       int64  `json:"-"`
	PresentedSeq   int64  `json:"-"`
	LeaseKid       string `json:"-"`
	LeasedAt       stamp  `json:"-"`
	LeaseExpiresAt stamp  `json:"-"`
	LapsesAt       stamp  `json:"-"` // when a floating seat is free again; zero for node_locked
	CountsUntil    stamp  `json:"-"` // the latest end of its leases; see counts
	EndedSeq       int64  `json:"-"` // number of the last lease that ended because its seat was taken away
	TokensEndAt    stamp  `json:"-"` // when that was; zero: never
	Activations    int    `json:"-"`
}

// A maskedHash is a SHA-256 of which JSON has the first 8 hexadecimal digits only.
type maskedHash []byte

// masked returns the digits that JSON has.
func (h maskedHash) masked() string { return hex.EncodeToString(h[:4]) }

// MarshalJSON implements json.Marshaler.
func (h maskedHash) MarshalJSON() ([]byte, error) { return []byte(`"` + h.masked() + `"`), nil }

// holdsSeat reports whether d is active and has not lapsed. d may be nil: then it is false.
func (d *device) holdsSeat(now time.Time) bool {
	return d != nil && d.State == deviceActive && !d.lapsed(now)
}

// heldOffline reports whether an offline lease of d has not ended. d may be nil: then it is false.
func (d *device) heldOffline(now time.Time) bool { return d != nil && d.OfflineUntil.After(now) }

// errHeldOffline is the refusal of what would free the seat of a device that holds an offline lease, or give it to
// another machine.
func errHeldOffline(d *device) error {
	return &refusal{code: codeHeldOffline, detail: codeHeldOffline.detail + " That is at " + d.OfflineUntil.String() +
		".", members: []extraMember{{"until", d.OfflineUntil}}}
}

// lapsed reports whether the lease of a floating seat has lapsed. The seat is free then,
// even while the row still says active.
func (d *device) lapsed(now time.Time) bool { return !d.LapsesAt.IsZero() && !d.LapsesAt.After(now) }

// The problem codes of devices and their seats.
var (
	deviceProblems problemTable

	codeDeviceBlocked = deviceProblems.add(403, "device_blocked", "Device blocked",
		verdictDetails["device_blocked"])
	codeDeviceReleased = deviceProblems.add(403, "device_released", "Device released",
		"The seat of this device was taken away, and its tokens ended with it. "+
			"Activate it with the licence key, without a token.")
	codeTokenEnded = deviceProblems.add(403, "token_ended", "Token ended",
		"This token has ended. Activate the device with the licence key, without a token.")
	codeFingerprintMismatch = deviceProblems.add(403, "fingerprint_mismatch", "Another fingerprint",
		verdictDetails["fingerprint_mismatch"])
	codeOfflineNotAllowed = deviceProblems.add(403, "offline_not_allowed", "No offline leases",
		"This licence does not allow offline leases: its offline_days are 0.")
	codeHeldOffline = deviceProblems.add(409, "held_offline", "Held by an offline lease",
		"The device holds an offline lease, which can't be recalled, so its seat stays taken until that ends.")
	codeSeatLimit = deviceProblems.add(409, "seat_limit_reached", "Seat limit reached",
		"All seats of this licence are taken. Release a device, or name one to replace in replace_device_id.")
	codeTransferLimit = deviceProblems.add(409, "transfer_limit_reached", "Transfer limit reached",
		"As many machines as this licence allows have held a seat lately.")
	codeCredentialMismatch = deviceProblems.add(422, "credential_mismatch", "Token and body disagree",
		"The token is for another licence than the license_key in the body.")

	errCredentialMismatch  = &refusal{code: codeCredentialMismatch}
	errFingerprintMismatch = &refusal{code: codeFingerprintMismatch}
)

// The events of devices.
var (
	deviceEvents = eventTable{scope: scopeLicenses}

	eventDeviceActivated      = deviceEvents.add("device.activated")
	eventDeviceReactivated    = deviceEvents.add("device.reactivated")
	eventDeviceReleased       = deviceEvents.add("device.released")
	eventDeviceReplaced       = deviceEvents.add("device.replaced")
	eventDeviceBlocked        = deviceEvents.add("device.blocked")
	eventDeviceDrifted        = deviceEvents.add("device.drifted")
	eventDeviceCloneSuspected = deviceEvents.add("device.clone_suspected")
	eventDeviceLeasedOffline  = deviceEvents.add("device.leased_offline")
)

// An activation is the request of a device for a seat and a lease. The device is named by presented, or
// else by fingerprint.
type activation struct {
	checkRequest
	name, platform *string
	replace        string // id of the device whose seat it takes over; "": none
	offline        bool   // it asks for an offline lease
	keepLapsed     bool   // don't release lapsed seats, since the clock may be wrong
}

// An activationResult is what an activation returns to the device.
type activationResult struct {
	code    string // activated, already_active or reactivated
	license *license
	device  *device
	lease   lease
}

// activate gives a device a seat of a licence, unless it holds one, and a new lease. It decides
// whether a seat is free in the same transaction, so that concurrent callers never get more seats
// than the licence has. Errors: the refusals of checkActivation, license_not_found,
// seat_limit_reached and transfer_limit_reached (their transaction still commits, with the event),
// offline_not_allowed, held_offline, credential_mismatch, validation_failed for replace_device_id.
func (k *keyring) activate(t *tx, a activation) (*activationResult, error) {
	l, err := a.needLicense(t)
	if err != nil {
		return nil, err
	}
	if !a.keepLapsed {
		if err := releaseLapsed(t, l); err != nil {
			return nil, err
		}
	}
	found, err := a.findDevice(t, l)
	if err != nil {
		return nil, err
	}
	if err := a.check(l, found, t.now.Time); err != nil {
		return nil, err
	}
	g := &activationResult{license: l, device: found.device, code: "already_active"}
	if found.active {
		err = found.checkTransferLimit(t, l, a.fingerprint)
	} else {
		err = takeSeat(t, g, a, found)
	}
	if err == nil {
		err = found.changeFingerprint(t, l, g.device, a.fingerprint)
	}
	if err != nil {
		return nil, err
	}
	d := g.device
	d.Name = cmp.Or(a.name, d.Name)
	d.Platform = cmp.Or(a.platform, d.Platform)
	d.AppVersion = cmp.Or(a.appVersion, d.AppVersion)
	d.LastSeenAt = t.now
	t.startLicense(l)
	recordPresentedSeq(t, l, d, a.presented)
	offlineBefore := d.OfflineUntil
	if g.lease, err = k.nextLease(t, l, d, a.nonce, a.offline); err != nil {
		return nil, err
	}
	g.save(t, found.drifted, d.OfflineUntil.After(offlineBefore.Time))
	return g, nil
}

// save stores the device of an activation, with its events.
func (g *activationResult) save(t *tx, drifted, longerOffline bool) {
	l, d := g.license, g.device
	t.saveDevice(d)
	if drifted {
		t.setFingerprint(d)
		t.addEvent(deviceEvent(l, d, eventDeviceDrifted, actorDevice))
	}
	if typ, ok := activationEvents[g.code]; ok {
		t.addEvent(deviceEvent(l, d, typ, actorDevice))
	}
	if longerOffline {
		t.addEvent(deviceEvent(l, d, eventDeviceLeasedOffline, actorDevice, "until", d.OfflineUntil.String()))
		return
	}
}

// activationEvents are the events by code of an activation; already_active writes none.
var activationEvents = map[string]eventType{
	"activated":   eventDeviceActivated,
	"reactivated": eventDeviceReactivated,
}

// A foundDevice is the device that an activation is for.
type foundDevice struct {
	device   *device // nil: a new one
	active   bool    // it holds a seat
	drifted  bool    // it sends a fingerprint that no device of the licence has, in place of its own
	mismatch bool    // the fingerprint that was sent is not its own, and it may not adopt it
}

// arrives reports whether no device of the licence has the fingerprint that was sent.
func (f foundDevice) arrives() bool { return f.device == nil || f.drifted }

// findDevice finds the device that an activation is for, by its token or else its fingerprint, and
// sets a.fingerprint when only a token was sent. A device that sends its newest token with a
// fingerprint that is new is the same device after a change of its disk or network card.
func (a *activation) findDevice(t *tx, l *license) (f foundDevice, err error) {
	p := a.presented
	sent := a.fingerprint != nil
	if !sent {
		if a.fingerprint, err = base64.RawURLEncoding.DecodeString(p.Fingerprint); err != nil {
			return f, err
		}
	}
	known, err := orNil(t.deviceByFingerprint(l.ID, a.fingerprint))
	if f.device = known; err == nil && p != nil {
		f.device, err = orNil(t.device(l.ID, p.Device))
	}
	if err != nil {
		return f, err
	}
	f.active = f.device != nil && f.device.State == deviceActive
	if p == nil {
		return f, nil
	}
	switch {
	case f.device == nil: // the database was restored from a copy without the token's device
		f.mismatch = known != nil || base64.RawURLEncoding.EncodeToString(a.fingerprint) != p.Fingerprint
	case bytes.Equal(f.device.Fingerprint, a.fingerprint):
	case sent && known == nil && p.Seq >= f.device.LeaseSeq:
		f.drifted = true
	default:
		f.mismatch = true
	}
	return f, nil
}

// check runs checkActivation for an activation and the device that it is for. Errors: also
// offline_not_allowed, held_offline.
func (a *activation) check(l *license, f foundDevice, now time.Time) error {
	ended := a.presented != nil && f.device.tokenEnded(l, a.presented)
	q := verdictInput{product: a.product, mismatch: f.mismatch || f.drifted && ended, tokenEnded: ended}
	if err := checkActivation(l, f.device, q, f.arrives(), now); err != nil {
		return err
	}
	switch {
	case a.offline && l.OfflineDays == 0:
		return &refusal{code: codeOfflineNotAllowed}
	case f.drifted && f.device.heldOffline(now):
		return errHeldOffline(f.device)
	}
	return nil
}

// tokenEnded reports whether a token of the device has ended: since it was issued, the device's seat
// was taken away, or all of the licence's tokens were ended (contract, section 4). d may be nil: a
// restored database may lack the device.
//
// Taking a seat away ends tokens by their number and also by their time: after the database was
// restored from a copy, a token issued before may have a higher number than any that it knows.
func (d *device) tokenEnded(l *license, c *claims) bool {
	return c.IssuedAt <= l.TokensEndAt.Unix() ||
		d != nil && (c.Seq <= d.EndedSeq || c.IssuedAt < d.TokensEndAt.Unix())
}

// endTokens ends all tokens that the device has been issued so far.
func (d *device) endTokens(now stamp) {
	d.EndedSeq, d.TokensEndAt = max(d.EndedSeq, d.LeaseSeq, d.PresentedSeq), now
}

// releaseLapsed releases the floating seats of a licence whose leases have lapsed.
func releaseLapsed(t *tx, l *license) error {
	if l.Kind != kindFloating {
		return nil
	}
	lapsed, err := t.lapsedDevicesOf(l.ID, t.now, maxTransitions)
	if err != nil {
		return err
	}
	for _, d := range lapsed {
		releaseSeat(t, l, d, "lease", eventDeviceReleased, actorTime)
	}
	return nil
}

// recordPresentedSeq stores the highest lease number that a device has presented. A lower
// one later means that two machines use the same identity, or that the device was
// restored from a copy: that writes device.clone_suspected, at most once a day, and
// blocks nothing. A number that is higher than any this database issued (it was restored
// from a copy) becomes the current one, so that the next lease has a higher one still.
func recordPresentedSeq(t *tx, l *license, d *device, presented *claims) {
	switch {
	case presented == nil || presented.Seq == d.PresentedSeq:
	case presented.Seq > d.PresentedSeq:
		d.PresentedSeq, d.LeaseSeq = presented.Seq, max(d.LeaseSeq, presented.Seq)
	case presentsOlderLease(d, presented, t.now.Time):
		d.CloneAt = t.now
		t.addEvent(deviceEvent(l, d, eventDeviceCloneSuspected, actorDevice))
		return
	}
}

// presentsOlderLease reports whether a token is an older lease of a device than one that
// it has presented before, and no event about that was written today.
func presentsOlderLease(d *device, presented *claims, now time.Time) bool {
	return presented != nil && presented.Seq < d.PresentedSeq &&
		d.CloneAt.Format(time.DateOnly) != newStamp(now).Format(time.DateOnly)
}

// takeSeat gives a seat to g.device, or to a new device when that is nil, and sets g.code.
// It releases the device that a replaces. Errors: seat_limit_reached,
// transfer_limit_reached, held_offline, validation_failed.
func takeSeat(t *tx, g *activationResult, a activation, found foundDevice) error {
	l := g.license
	old, err := findReplaced(t, l, a)
	if err != nil {
		return err
	}
	freed := 0
	if old != nil {
		freed = 1
	}
	if l.MaxDevices != nil && l.SeatsUsed-freed >= *l.MaxDevices {
		return refuseForSeatLimit(t, l, g.device) // this commits, so no seat may have been released yet
	}
	if err := found.checkTransferLimit(t, l, a.fingerprint); err != nil {
		return err
	}
	if old != nil {
		releaseSeat(t, l, old, "replacement", eventDeviceReplaced, actorDevice)
	}
	if g.device == nil {
		g.code = "activated"
		g.device = &device{ID: t.newID("dev"), LicenseID: l.ID, Fingerprint: a.fingerprint}
	} else {
		g.code = "reactivated"
	}
	d := g.device
	d.State, d.ActivatedAt, d.ReleasedAt, d.ReleasedBy = deviceActive, t.now, stamp{}, nil
	d.Activations++
	l.SeatsUsed++
	return nil
}

// findReplaced returns the device whose seat a takes over, or nil when a names none or one
// that holds no seat. Errors: validation_failed when the licence has no such device, held_offline.
func findReplaced(t *tx, l *license, a activation) (*device, error) {
	if a.replace == "" {
		return nil, nil
	}
	old, err := t.device(l.ID, a.replace)
	if errors.Is(err, errNotFound) {
		return nil, &refusal{code: codeValidation, detail: "The device to replace is not one of this licence.",
			fields: []fieldError{{Pointer: "#/replace_device_id", Code: "unknown_device",
				Detail: "The licence has no such device."}}}
	}
	switch {
	case err != nil || old.State != deviceActive:
		return nil, err
	case old.heldOffline(t.now.Time):
		return nil, errHeldOffline(old)
	}
	return old, nil
}

// replaced reports whether the device has lost its seat to one that replaced it. d may be nil.
func (d *device) replaced() bool {
	return d != nil && d.State == deviceReleased && valueOr(d.ReleasedBy, "") == "replacement"
}

// refuseForSeatLimit returns seat_limit_reached with the devices that hold the seats, and
// writes the event about it, at most once an hour. The transaction commits despite the refusal (see
// keep). d is the device that asked; nil: a new one.
func refuseForSeatLimit(t *tx, l *license, d *device) error {
	holders, err := t.seatHolders(l.ID, maxHoldersShown)
	if err != nil {
		return err
	}
	t.noteLimit(l, eventLicenseSeatLimitReached)
	detail := ""
	if d.replaced() {
		detail = "Another device has replaced this one, and no other seat is free."
	}
	return keep(&refusal{code: codeSeatLimit, detail: detail,
		members: []extraMember{{"seats", seatsOf(l)}, {"devices", append([]*device{}, holders...)}}})
}

const maxHoldersShown = 50 // devices in a seat_limit_reached

// releaseSeat makes d released and writes the event of type typ. d must hold a seat, or be blocked.
// releasedBy is device, replacement, portal, operator or lease; the device's tokens end unless the
// seat was given up by the device itself or by the end of its lease.
func releaseSeat(t *tx, l *license, d *device, releasedBy string, typ eventType, actor string) {
	held := d.State == deviceActive
	if held {
		l.SeatsUsed--
	}
	if releasedBy != "device" && releasedBy != "lease" {
		d.endTokens(t.now)
	}
	d.CountsUntil = d.countsAfterSeat(l, held, t.now)
	d.State, d.ReleasedAt, d.ReleasedBy, d.LapsesAt = deviceReleased, t.now, &releasedBy, stamp{}
	t.saveDevice(d)
	t.addEvent(deviceEvent(l, d, typ, actor, "by", releasedBy))
}

// blockDevice shuts a device out until an operator releases it. An offline lease goes on until its end, as after a
// release.
func blockDevice(t *tx, l *license, d *device, actor string) {
	if d.State == deviceBlocked {
		return
	}
	d.endTokens(t.now)
	d.CountsUntil = d.countsAfterSeat(l, d.State == deviceActive, t.now)
	d.State, d.LapsesAt = deviceBlocked, stamp{}
	t.saveDevice(d)
	t.addEvent(deviceEvent(l, d, eventDeviceBlocked, actor))
}

func deviceEvent(l *license, d *device, typ eventType, actor string, data ...string) event {
	e := licenseEvent(l, typ, actor, data...)
	e.DeviceID = d.ID
	return e
}

// maxTransitions is how many rows of each kind one transaction of applyTransitions changes.
const maxTransitions = 500

// applyTransitions applies time-driven transitions: it releases floating seats that have lapsed,
// takes fingerprints that no longer count out of the counts of their licences, and writes the events
// of licences that have entered grace or expired, even if the service was not running then. It
// returns how many rows it changed; fewer than maxTransitions means that nothing is left to do.
func applyTransitions(t *tx) (done int, err error) {
	lapsed, err := t.lapsedDevices(t.now, maxTransitions)
	if err != nil {
		return 0, err
	}
	for _, d := range lapsed {
		account, err := t.licenseOwner(d.LicenseID)
		if err != nil {
			return 0, err
		}
		l := &license{ID: d.LicenseID, AccountID: account}
		releaseSeat(t, l, d, "lease", eventDeviceReleased, actorTime)
	}
	expired := t.expireFingerprints("", t.now, maxTransitions)
	written, err := t.recordLicenseTransitions(maxTransitions)
	return len(lapsed) + expired + written, err
}

// A licenseCheck is the verdict on a licence and a device, with their rows.
type licenseCheck struct {
	license *license // nil: not found
	device  *device  // nil: not found, or none was named
	code    string   // as licenseVerdict returns it
	valid   bool

	// As in verdictInput. code does not always show them: a reason that comes first hides them.
	mismatch, tokenEnded bool
}

// mayTouch reports whether the request comes from a device that holds a seat, so that it may be
// recorded as seen and get a lease.
func (c *licenseCheck) mayTouch(now time.Time) bool {
	return c.device.holdsSeat(now) && !c.mismatch && !c.tokenEnded
}

// A checkRequest is a request to check a licence, and the device that it names.
type checkRequest struct {
	verdictInput
	keyHash     *[32]byte // SHA-256 of the licence key; nil: the token names the licence, or the key is malformed
	malformed   bool      // no key has the form of the one that was sent
	mistyped    bool      // the key's check symbol is wrong, so it is malformed unless it is known
	presented   *claims   // of the device token that was sent; nil: none
	fingerprint []byte    // SHA-256; nil: none was sent
	appVersion  *string
	nonce       string
}

// A licenseSource looks up licences and devices: a transaction of the writer, or the licenseCache.
type licenseSource interface {
	licenseByKey(hash [32]byte) (*license, error)
	license(o owner, id string) (*license, error)
	device(licenseID, id string) (*device, error)
	deviceByFingerprint(licenseID string, hash []byte) (*device, error)
}

// findLicense returns the licence that the key names, or else the token; nil when there
// is none. Like a key, a token gives access to its licence whichever account owns it: it
// stays valid when the licence moves to another account, so accounts are not compared.
func (r *checkRequest) findLicense(q licenseSource) (*license, error) {
	if r.keyHash != nil {
		return orNil(q.licenseByKey(*r.keyHash))
	}
	return orNil(q.license(anyAccount, r.presented.License))
}

// needLicense is findLicense for a request that must name a licence. Errors: errLicenseNotFound,
// errCredentialMismatch when key and token name different ones.
func (r *checkRequest) needLicense(t *tx) (*license, error) {
	l, err := r.findLicense(t)
	switch {
	case err != nil:
		return nil, err
	case l == nil:
		return nil, errLicenseNotFound
	case r.presented != nil && r.presented.License != l.ID:
		return nil, errCredentialMismatch
	}
	return l, nil
}

// evaluate looks up the device on l, which findLicense returned, and returns the verdict.
// Errors: errCredentialMismatch when key and token name different licences, those of q.
func (r *checkRequest) evaluate(q licenseSource, l *license, now time.Time) (c licenseCheck, err error) {
	c.license = l
	p := r.presented
	switch {
	case l == nil:
	case p != nil && p.License != l.ID:
		return c, errCredentialMismatch
	case p != nil:
		c.device, err = orNil(q.device(l.ID, p.Device))
		want := p.Fingerprint // compared if a restored database lacks the device
		if c.device != nil {
			want = base64.RawURLEncoding.EncodeToString(c.device.Fingerprint)
		}
		c.mismatch, c.tokenEnded = r.fingerprintText() != want, c.device.tokenEnded(l, p)
	case r.fingerprint != nil:
		c.device, err = orNil(q.deviceByFingerprint(l.ID, r.fingerprint))
	}
	in := r.verdictInput
	in.hasDevice, in.mismatch, in.tokenEnded = p != nil || r.fingerprint != nil, c.mismatch, c.tokenEnded
	c.code, c.valid = licenseVerdict(l, c.device, in, now)
	return c, err
}

// fingerprintText returns the hash of the fingerprint that was sent, or else of the token's, as in claims.
func (r *checkRequest) fingerprintText() string {
	if r.fingerprint != nil {
		return base64.RawURLEncoding.EncodeToString(r.fingerprint)
	}
	return r.presented.Fingerprint
}

// wantsLease reports whether the answer should include a lease: the device sent no token,
// one whose refresh_after has passed, or a nonce to be signed.
func (r *checkRequest) wantsLease(c licenseCheck, now time.Time) bool {
	if !c.valid || c.device == nil {
		return false
	}
	p := r.presented
	return p == nil || r.nonce != "" || now.Unix() >= p.IssuedAt+p.RefreshAfter
}

// recordSeen sets last_seen_at of an active device. When the answer should include a
// lease and the last one can't be sent again, it also creates the next, which it returns;
// otherwise issued is zero. It evaluates r again inside the transaction, because the rows
// may have changed since the caller read them.
func (k *keyring) recordSeen(t *tx, r *checkRequest) (c licenseCheck, issued lease, err error) {
	l, err := r.findLicense(t)
	if err != nil {
		return c, issued, err
	}
	if c, err = r.evaluate(t, l, t.now.Time); err != nil || !c.mayTouch(t.now.Time) {
		return c, issued, err
	}
	d := c.device
	d.LastSeenAt = t.now
	d.AppVersion = cmp.Or(r.appVersion, d.AppVersion)
	recordPresentedSeq(t, c.license, d, r.presented)
	if r.wantsLease(c, t.now.Time) && d.leaseStale(c.license, k.signer().kid, t.now.Time) {
		if issued, err = k.nextLease(t, c.license, d, r.nonce, false); err != nil {
			return c, issued, err
		}
	}
	t.saveSeen(d)
	return c, issued, nil
}

// A deviceState is a device as shown to itself.
type deviceState struct {
	ID    string  `json:"id"`
	Name  *string `json:"name"`
	State string  `json:"state"`
}

func newDeviceState(d *device) deviceState { return deviceState{d.ID, d.Name, d.State} }

// fingerprintHash returns the SHA-256 of a device's fingerprint, which is all that the
// database keeps of it.
func fingerprintHash(fingerprint string) [32]byte { return sha256.Sum256([]byte(fingerprint)) }
