package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"time"
)

// The problem codes of devices and their seats.
var (
	deviceProblems problemTable

	codeDeviceBlocked = deviceProblems.add(403, "device_blocked", "Device blocked", verdictDetails["device_blocked"])
	codeSeatLimit     = deviceProblems.add(409, "seat_limit_reached", "Seat limit reached",
		"All seats of this licence are taken. Release a device, or name one in replace_device_id.")
	codeTransferLimit = deviceProblems.add(409, "transfer_limit_reached", "Transfer limit reached",
		"The seats of this licence were moved as often as it allows in 30 days.")
	codeCredentialMismatch = deviceProblems.add(422, "credential_mismatch", "Token and body disagree",
		"The token is for another licence than the license_key in the body.")

	errCredentialMismatch = &refusal{code: codeCredentialMismatch}
	errOtherDevice = &refusal{code: codeCredentialMismatch, detail: "The token is for another device than the fingerprint."}
)

// The events of devices.
var (
	deviceEvents eventTable

	eventDeviceActivated      = deviceEvents.add("device.activated")
	eventDeviceReactivated    = deviceEvents.add("device.reactivated")
	eventDeviceReleased       = deviceEvents.add("device.released")
	eventDeviceReplaced       = deviceEvents.add("device.replaced")
	eventDeviceBlocked        = deviceEvents.add("device.blocked")
	eventDeviceDrifted        = deviceEvents.add("device.drifted")
	eventDeviceCloneSuspected = deviceEvents.add("device.clone_suspected")
)

// An activation is what a device asks for when it takes a seat.
type activation struct {
	licenseID   string    // that the token names; "": the key does
	keyHash     *[32]byte // nil: the token names the licence
	fingerprint []byte    // SHA-256; nil: the token names the device
	name        *string
	platform    *string
	appVersion  *string
	product     string
	replace     string // the device whose seat it takes; "": none
	nonce       string
	presented   *claims // the device's earlier token; nil: none
}

// A activationResult is what activating gives.
type activationResult struct {
	code    string // activated, already_active or reactivated
	license *license
	device  *device
	lease   lease
}

// activate binds a device to a licence, inside the transaction that also decides
// whether a seat is free: N seats and any number of callers give N devices.
// Errors: the refusals of checkActivation, license_not_found, seat_limit_reached (kept,
// with its event), transfer_limit_reached, credential_mismatch, validation_failed
// for replace_device_id.
func (k *keyring) activate(t *tx, a activation) (*activationResult, error) {
	l, err := a.findLicense(t)
	if err != nil {
		return nil, err
	}
	t.invalidate(l.ID)
	if err := releaseLapsed(t, l); err != nil {
		return nil, err
	}
	d, drifted, err := a.findDevice(t, l)
	if err != nil {
		return nil, err
	}
	if err := checkActivation(l, d, a.product, t.now.Time); err != nil {
		return nil, err
	}
	g := &activationResult{license: l, device: d, code: "already_active"}
	if d == nil || d.State != deviceActive {
		if err := takeSeat(t, g, a); err != nil {
			return nil, err
		}
	}
	d = g.device
	d.Fingerprint = a.fingerprint
	d.Name, d.Platform, d.AppVersion = cmp.Or(a.name, d.Name), cmp.Or(a.platform, d.Platform), cmp.Or(a.appVersion, d.AppVersion)
	d.LastSeenAt = t.now
	if err := t.startLicense(l); err != nil {
		return nil, err
	}
	if err := recordPresentedSeq(t, l, d, a.presented); err != nil {
		return nil, err
	}
	if g.lease, err = k.nextLease(t, l, d, a.nonce); err != nil {
		return nil, err
	}
	if err := t.saveDevice(d); err != nil {
		return nil, err
	}
	if drifted {
		if err := t.addEvent(deviceEvent(l, d, eventDeviceDrifted, actorDevice)); err != nil {
			return nil, err
		}
	}
	if happened, ok := activationEvents[g.code]; ok {
		if err := t.addEvent(deviceEvent(l, d, happened, actorDevice)); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// activationEvents are the events of activating, by its code; already_active has none.
var activationEvents = map[string]eventType{"activated": eventDeviceActivated, "reactivated": eventDeviceReactivated}

// findDevice returns the device that an activation is for, nil for a new one. A
// device that brings its earlier token under a changed fingerprint has drifted: it
// stays the same device.
func (a *activation) findDevice(t *tx, l *license) (d *device, drifted bool, err error) {
	p := a.presented
	var known, bearer *device // by the fingerprint, by the token
	if a.fingerprint != nil {
		if known, err = orNil(t.deviceByFingerprint(l.ID, a.fingerprint)); err != nil {
			return nil, false, err
		}
	}
	if p != nil {
		if bearer, err = orNil(t.device(l.ID, p.Device)); err != nil {
			return nil, false, err
		}
	}
	switch {
	case known != nil && p != nil && known.ID != p.Device:
		return nil, false, errOtherDevice
	case known != nil:
		return known, false, nil
	case bearer != nil && a.fingerprint == nil:
		a.fingerprint = bearer.Fingerprint
		return bearer, false, nil
	case a.fingerprint == nil: // of a device that a restored database does not have
		if a.fingerprint, err = base64.RawURLEncoding.DecodeString(p.Fingerprint); err != nil {
			return nil, false, err
		}
		if known, err = orNil(t.deviceByFingerprint(l.ID, a.fingerprint)); err == nil && known != nil {
			err = errOtherDevice // it was activated again since
		}
		return nil, false, err
	}
	return bearer, bearer != nil, nil
}

// releaseLapsed gives back the floating seats of a licence whose lease has run out.
func releaseLapsed(t *tx, l *license) error {
	if l.Kind != kindFloating {
		return nil
	}
	lapsed, err := t.lapsedDevicesOf(l.ID, t.now, maxTransitions)
	if err != nil {
		return err
	}
	for _, d := range lapsed {
		if err := releaseSeat(t, l, d, "lease", eventDeviceReleased, actorTime); err != nil {
			return err
		}
	}
	return nil
}

// recordPresentedSeq keeps the highest lease number that a device has shown. A lower one
// later means that two machines use one identity, or that one was restored from a
// copy: noted once a day, and nothing is blocked. One that a restored database never
// gave counts on from there, so that the next lease is not the lower one.
func recordPresentedSeq(t *tx, l *license, d *device, presented *claims) error {
	switch {
	case presented == nil || presented.Seq == d.PresentedSeq:
	case presented.Seq > d.PresentedSeq:
		d.PresentedSeq, d.LeaseSeq = presented.Seq, max(d.LeaseSeq, presented.Seq)
	case presentsOlderLease(d, presented, t.now.Time):
		d.CloneAt = t.now
		return t.addEvent(deviceEvent(l, d, eventDeviceCloneSuspected, actorDevice))
	}
	return nil
}

// presentsOlderLease reports whether a token shows an older lease of a device than one it has
// shown before, and today's event is still to be written.
func presentsOlderLease(d *device, presented *claims, now time.Time) bool {
	return presented != nil && presented.Seq < d.PresentedSeq && d.CloneAt.Format(time.DateOnly) != newStamp(now).Format(time.DateOnly)
}

func (a *activation) findLicense(t *tx) (l *license, err error) {
	if a.keyHash != nil {
		l, err = t.licenseByKey(*a.keyHash)
	} else {
		l, err = t.license(anyAccount, a.licenseID) // see checkRequest.findLicense
	}
	if errors.Is(err, errNotFound) {
		return nil, errLicenseNotFound
	}
	if err == nil && a.licenseID != "" && l.ID != a.licenseID {
		return nil, errCredentialMismatch
	}
	return l, err
}

// takeSeat makes g's device one that holds a seat, new or known. It frees the seat
// of the device that it replaces, unless no seat is free even then.
func takeSeat(t *tx, g *activationResult, a activation) error {
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
		return refuseForSeatLimit(t, l) // kept with its event, so nothing may be released before
	}
	if err := checkTransferLimit(t, l, g.device, old); err != nil {
		return err
	}
	if old != nil {
		if err := releaseSeat(t, l, old, "replacement", eventDeviceReplaced, actorDevice); err != nil {
			return err
		}
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

// findReplaced returns the device whose seat a takes, or nil when a names none or
// one that holds no seat.
func findReplaced(t *tx, l *license, a activation) (*device, error) {
	if a.replace == "" {
		return nil, nil
	}
	old, err := t.device(l.ID, a.replace)
	if errors.Is(err, errNotFound) {
		return nil, &refusal{code: codeValidation, detail: "The device to replace is not one of this licence.",
			fields: []fieldError{{Pointer: "#/replace_device_id", Code: "unknown_device", Detail: "The licence has no such device."}}}
	}
	if err != nil || old.State != deviceActive {
		return nil, err
	}
	return old, nil
}

// checkTransferLimit refuses a seat when the owner has moved seats as often as max_transfers
// allows in 30 days. The release of a device that comes back before another took a
// seat does not count against itself.
func checkTransferLimit(t *tx, l *license, d, replaced *device) error {
	if l.MaxTransfers == nil {
		return nil
	}
	releases, err := t.transfers(l.ID)
	if err != nil {
		return err
	}
	more := 0
	if replaced != nil {
		more = 1
	}
	if d != nil && d.State == deviceReleased && slices.Contains([]string{"device", "portal"}, valueOr(d.ReleasedBy, "")) &&
		d.ReleasedAt.After(t.now.after(-transferWindow).Time) {
		others, err := t.countActivatedSince(l.ID, d.ID, d.ReleasedAt)
		if err != nil {
			return err
		}
		if others == 0 {
			more--
		}
	}
	ok, next := transferAllowed(l, releases, more)
	switch {
	case ok:
		return nil
	case next.IsZero():
		return &refusal{code: codeTransferLimit, detail: "This licence does not allow moving a seat to another device."}
	}
	return &refusal{code: codeTransferLimit, members: []extraMember{{"next_transfer_at", next}},
		detail: "The seats of this licence were moved as often as it allows in 30 days. The next time is possible at " + next.String() + "."}
}

// refuseForSeatLimit refuses a seat, names the devices that hold them, and notes that once
// an hour.
func refuseForSeatLimit(t *tx, l *license) error {
	holders, err := t.seatHolders(l.ID, maxHoldersShown)
	if err != nil {
		return err
	}
	noted, err := t.happenedSince(l.ID, eventLicenseSeatLimitReached, t.now.after(-time.Hour))
	if err != nil {
		return err
	}
	if !noted {
		if err := t.addEvent(event{Type: eventLicenseSeatLimitReached, AccountID: l.AccountID, LicenseID: l.ID, Actor: actorDevice}); err != nil {
			return err
		}
	}
	return keep(&refusal{code: codeSeatLimit, members: []extraMember{{"seats", seatsOf(l)}, {"devices", newDeviceViews(holders)}}})
}

const maxHoldersShown = 50 // devices in a seat_limit_reached

// releaseSeat takes a device's seat back and writes an event; the caller has seen that
// it holds one (or, for an operator, that it is blocked).
func releaseSeat(t *tx, l *license, d *device, by string, happened eventType, actor string) error {
	if d.State == deviceActive {
		l.SeatsUsed--
	}
	d.State, d.ReleasedAt, d.ReleasedBy, d.LapsesAt = deviceReleased, t.now, &by, stamp{}
	if err := t.saveDevice(d); err != nil {
		return err
	}
	e := deviceEvent(l, d, happened, actor)
	e.Data = eventData("by", by)
	return t.addEvent(e)
}

// blockDevice shuts a device out for good; only an operator's release lets it in again.
func blockDevice(t *tx, l *license, d *device, actor string) error {
	if d.State == deviceBlocked {
		return nil
	}
	d.State, d.LapsesAt = deviceBlocked, stamp{}
	if err := t.saveDevice(d); err != nil {
		return err
	}
	return t.addEvent(deviceEvent(l, d, eventDeviceBlocked, actor))
}

func deviceEvent(l *license, d *device, happened eventType, actor string) event {
	return event{Type: happened, AccountID: l.AccountID, LicenseID: l.ID, DeviceID: d.ID, Actor: actor}
}

// maxTransitions is how many rows one transaction changes because of time.
const maxTransitions = 500

// applyTransitions does what time has brought about: it gives back floating seats whose
// lease has run out, and writes the events of licences that came into grace or to
// their end, also when the service was off at that moment. It returns how much it
// did; less than maxTransitions means that nothing is left.
func applyTransitions(t *tx) (done int, err error) {
	t.invalidate()
	lapsed, err := t.lapsedDevices(t.now, maxTransitions)
	if err != nil {
		return 0, err
	}
	for _, d := range lapsed {
		t.invalidate(d.LicenseID)
		account, err := t.licenseOwner(d.LicenseID)
		if err != nil {
			return 0, err
		}
		l := &license{ID: d.LicenseID, AccountID: account}
		if err := releaseSeat(t, l, d, "lease", eventDeviceReleased, actorTime); err != nil {
			return 0, err
		}
	}
	noted, err := t.recordLicenseTransitions(maxTransitions)
	return len(lapsed) + noted, err
}

// A licenseCheck is a verified question with the rows that answer it.
type licenseCheck struct {
	license *license // nil: not found
	device  *device  // nil: none
	code    string
	valid   bool

	mismatch bool // token and fingerprint name different devices, whatever the code
}

// A checkRequest is what verify asks.
type checkRequest struct {
	verdictInput
	keyHash     *[32]byte // nil: the token names the licence
	presented   *claims   // the device token that came along; nil: none
	fingerprint []byte    // SHA-256; nil: none was sent
	appVersion  *string
	nonce       string
}

// A licenseSource is where licences and devices are looked up: the writer's
// transaction, or the memory in front of the readers.
type licenseSource interface {
	licenseByKey(hash [32]byte) (*license, error)
	license(o owner, id string) (*license, error)
	device(licenseID, id string) (*device, error)
	deviceByFingerprint(licenseID string, hash []byte) (*device, error)
}

// findLicense returns the licence that the key names, or else the token; nil when there
// is none. The token vouches for its licence by itself, like a key: it stays good when
// the licence has come to another account since, so its account is not compared.
func (r *checkRequest) findLicense(q licenseSource) (*license, error) {
	if r.keyHash != nil {
		return orNil(q.licenseByKey(*r.keyHash))
	}
	return orNil(q.license(anyAccount, r.presented.License))
}

// evaluate finds the device on the licence that findLicense returned, and judges. Errors:
// errCredentialMismatch, the source's.
func (r *checkRequest) evaluate(q licenseSource, l *license, now time.Time) (c licenseCheck, err error) {
	c.license = l
	if c.license != nil && r.presented != nil && r.presented.License != c.license.ID {
		return c, errCredentialMismatch
	}
	switch {
	case c.license == nil:
	case r.presented != nil:
		c.device, err = orNil(q.device(c.license.ID, r.presented.Device))
	case r.fingerprint != nil:
		c.device, err = orNil(q.deviceByFingerprint(c.license.ID, r.fingerprint))
	}
	ask := r.verdictInput
	ask.hasDevice = r.presented != nil || r.fingerprint != nil
	c.mismatch = r.presented != nil && r.fingerprint != nil && r.presented.Fingerprint != base64.RawURLEncoding.EncodeToString(r.fingerprint)
	ask.mismatch = c.mismatch
	c.code, c.valid = licenseVerdict(c.license, c.device, ask, now)
	return c, err
}

// wantsLease reports whether an answer should carry a token: the device sent none,
// one that is due for another, or a nonce to have signed.
func (r *checkRequest) wantsLease(c licenseCheck, now time.Time) bool {
	if !c.valid || c.device == nil {
		return false
	}
	p := r.presented
	return p == nil || r.nonce != "" || now.Unix() >= p.IssuedAt+p.RefreshAfter
}

// recordSeen records that an active device was there and, when it wants one and its
// last lease is no longer fresh, gives it the next. It judges again, because the
// rows may have changed since the caller looked.
func (k *keyring) recordSeen(t *tx, r *checkRequest) (c licenseCheck, given lease, err error) {
	t.invalidate() // nothing so far
	l, err := r.findLicense(t)
	if err != nil {
		return c, given, err
	}
	if c, err = r.evaluate(t, l, t.now.Time); err != nil || c.device == nil || c.device.State != deviceActive || c.device.lapsed(t.now.Time) {
		return c, given, err
	}
	t.invalidate(c.license.ID)
	d := c.device
	d.LastSeenAt = t.now
	d.AppVersion = cmp.Or(r.appVersion, d.AppVersion)
	if err := recordPresentedSeq(t, c.license, d, r.presented); err != nil {
		return c, given, err
	}
	if r.wantsLease(c, t.now.Time) && d.leaseStale(c.license, k.signer().kid, t.now.Time) {
		if given, err = k.nextLease(t, c.license, d, r.nonce); err != nil {
			return c, given, err
		}
	}
	return c, given, t.saveDevice(d)
}

// A deviceState is what a device sees of itself.
type deviceState struct {
	ID    string  `json:"id"`
	Name  *string `json:"name"`
	State string  `json:"state"`
}

func newDeviceState(d *device) deviceState { return deviceState{d.ID, d.Name, d.State} }

// A deviceView is what others may see of a device: its fingerprint is masked.
type deviceView struct {
	deviceState
	Platform    *string `json:"platform"`
	AppVersion  *string `json:"app_version"`
	Fingerprint string  `json:"fingerprint"` // the first 8 hexadecimal digits of its SHA-256
	ActivatedAt stamp   `json:"activated_at"`
	LastSeenAt  stamp   `json:"last_seen_at"`
	ReleasedAt  stamp   `json:"released_at"`
	ReleasedBy  *string `json:"released_by"`
	CloneAt     stamp   `json:"clone_suspected_at"`
}

func newDeviceView(d *device) deviceView {
	return deviceView{newDeviceState(d), d.Platform, d.AppVersion, hex.EncodeToString(d.Fingerprint[:4]), d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy, d.CloneAt}
}

func newDeviceViews(rows []*device) []deviceView {
	views := make([]deviceView, 0, len(rows))
	for _, d := range rows {
		views = append(views, newDeviceView(d))
	}
	return views
}

// transferWindow is how long a release by the owner counts against max_transfers.
const transferWindow = 30 * 24 * time.Hour

// fingerprintHash is what the database knows of a device's fingerprint.
func fingerprintHash(fingerprint string) [32]byte { return sha256.Sum256([]byte(fingerprint)) }
