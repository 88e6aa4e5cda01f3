package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// scopeDevices is the scope that changes devices.
const scopeDevices = "devices:write"

// deviceNoun declares devices, which hold seats of licences.
func deviceNoun() noun {
	return noun{
		name:     "device",
		modules:  func(s *server) []module { return []module{deviceModule(s)} },
		calls:    deviceRouteCommands,
		commands: deviceCommands,
		ids:      []idKind{{"DEVICE", "dev", "devices", false, nil}},
		problems: deviceProblems,
		events:   deviceEvents,
		sealed:   []string{"devices"},
		rows:     []rowReader{deviceTable.unreadable},
	}
}

// A deviceState is whether a device holds a seat. `active`: it does. `released`: it does not. `blocked`: it may
// not come back until the operator releases it.
type deviceState string

const (
	deviceActive   = "active"
	deviceReleased = "released"
	deviceBlocked  = "blocked"
)

var deviceStates = declareWords[deviceState](deviceActive, deviceReleased, deviceBlocked)

// A device is one machine that was activated on a licence, as the account that owns the licence sees it, and as the
// other devices of a full licence do.
type device struct {
	ID         string      `json:"id" is:"dev"` // The id of the device.
	Name       *string     `json:"name"`        // Its name, or null: none was given.
	State      deviceState `json:"state"`       // Whether it holds a seat.
	Platform   *string     `json:"platform"`    // Its platform, as the application says, or null: it does not.
	AppVersion *string     `json:"app_version"` // The application's version, or null: it does not say.

	// The first 8 hexadecimal digits of the fingerprint's SHA-256.
	Fingerprint shortenedHash `json:"fingerprint" is:"^[0-9a-f]{8}$"`

	ActivatedAt stamp `json:"activated_at"` // When it took its seat last.
	LastSeenAt  stamp `json:"last_seen_at"` // When it was seen last, to the minute.
	ReleasedAt  stamp `json:"released_at"`  // When its seat was given back, or null: it holds one.

	// Who gave its seat back, or null: nobody has.
	ReleasedBy *string `json:"released_by" is:"=device|replacement|portal|operator|lease"`

	// When it last presented an older lease than before, or null: never.
	CloneAt stamp `json:"clone_suspected_at"`

	// The latest end of its offline leases, which nobody can recall and which never moves back: until then only a
	// portal or the operator frees its seat. Or null: it was given none.
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

// A shortenedHash is a SHA-256 of which JSON has the first 8 hexadecimal digits only.
type shortenedHash []byte

// MarshalJSON implements json.Marshaler.
func (h shortenedHash) MarshalJSON() ([]byte, error) {
	return []byte(`"` + hex.EncodeToString(h[:4]) + `"`), nil
}

// holdsSeat reports whether d is active and the lease of a floating seat has not lapsed: then the seat is free, even
// while the row still says active. d may be nil: then it is false.
func (d *device) holdsSeat(now time.Time) bool {
	return d != nil && d.State == deviceActive && (d.LapsesAt.IsZero() || d.LapsesAt.After(now))
}

// leasedOffline reports whether an offline lease of d has not ended. d may be nil: then it is false.
func (d *device) leasedOffline(now time.Time) bool { return d != nil && d.OfflineUntil.After(now) }

// errHeldOffline is the refusal of what would free the seat of a device that holds an offline lease, or give it to
// another machine.
func errHeldOffline(d *device) error {
	return &refusal{code: codeHeldOffline, detail: codeHeldOffline.detail + " That is at " + d.OfflineUntil.String() +
		".", members: []extraMember{{"until", d.OfflineUntil}}}
}

// The problem codes of devices and their seats.
var (
	deviceProblems problemTable

	codeDeviceBlocked = deviceProblems.add(403, "device_blocked", "Device blocked", verdictDetails["device_blocked"],
		"Ask the operator, who can let the device in again.")
	codeDeviceReleased = deviceProblems.add(403, "device_released", "Device released",
		"The seat of this device was taken away, and its tokens ended with it. "+
			"Activate it with the licence key, without a token.",
		"Activate with the licence key and without the token.")
	codeTokenEnded = deviceProblems.add(403, "token_ended", "Token ended",
		"This token has ended. Activate the device with the licence key, without a token.",
		"Activate with the licence key and without the token.")
	codeFingerprintMismatch = deviceProblems.add(403, "fingerprint_mismatch", "Another fingerprint",
		verdictDetails["fingerprint_mismatch"],
		"Activate with the licence key and without the token.")
	codeOfflineNotAllowed = deviceProblems.add(403, "offline_not_allowed", "No offline leases",
		"This licence does not allow offline leases: its offline_days are 0.",
		"Ask who sold the licence for one with `offline_days`, or activate the device with a network.")
	codeHeldOffline = deviceProblems.add(409, "held_offline", "Held by an offline lease",
		"The device holds an offline lease, which can't be recalled, so its seat stays taken until that ends.",
		"Wait for `until`, or have the seller release the device, which costs a transfer.")
	codeSeatLimit = deviceProblems.add(409, "seat_limit_reached", "Seat limit reached",
		"All seats of this licence are taken. Release a device, or name one to replace in replace_device_id.",
		"Release one of `devices`, or name it in `replace_device_id`.")
	codeTransferLimit = deviceProblems.add(409, "transfer_limit_reached", "Transfer limit reached",
		"As many machines as this licence allows have held a seat lately.",
		"Wait until `transfers.next_at`, or activate a machine that was active lately.")
	codeCredentialMismatch = deviceProblems.add(422, "credential_mismatch", "Token and body disagree",
		"The token is for another licence than the license_key in the body.",
		"Send a token or a key, or both for the same licence and device.")

	errOtherToken      = &refusal{code: codeCredentialMismatch}
	errMalformedMember = &refusal{code: codeKeyMalformed, fields: []fieldError{
		{Pointer: "#/license_key", Code: codeKeyMalformed.name, Detail: codeKeyMalformed.detail}}}
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

// A deviceRequest is what a device sends to activate, verify or deactivate. What it names is read by its reader, token
// and licenseOnly are set once its call is known.
type deviceRequest struct {
	keyHash     *[32]byte // SHA-256 of the licence key; nil: the token names the licence, or the key is malformed
	malformed   bool      // no key has the form of the one that was sent
	mistyped    bool      // the key's check symbol is wrong, so it is malformed unless it is known
	token       *claims   // of the device token that was sent; nil: none
	fingerprint []byte    // SHA-256; nil: none was sent
	licenseOnly bool      // the caller may ask about the licence alone, as a portal does

	product      string   // "": any product
	entitlements []string // the licence must include all of them
	nonce        string

	name, platform, appVersion *string

	replace    string // id of the device whose seat it takes over; "": none
	offline    bool   // it asks for an offline lease
	keepLapsed bool   // don't release lapsed seats, since the clock may be wrong
}

// A checkResult is what the database has of a request, and the verdict on it.
type checkResult struct {
	license *license // nil: not found
	device  *device  // nil: not found, or none was named

	fingerprint []byte // SHA-256 of the one that was sent, else the token's; nil: neither was sent
	otherToken  bool   // the token is for another licence than the key
	mismatch    bool   // the fingerprint is not the one of the token's device
	tokenEnded  bool   // see device.tokenEnded
	code        string // as licenseVerdict returns it, or of an activation
	valid       bool

	// No device of the licence has the fingerprint: the device is a new one, or its fingerprint has changed. Only
	// activations set it, and until when a former fingerprint of the licence that is the same counts.
	newFingerprint bool
	counted        stamp

	lease *lease // for the answer; nil: none
}

// read returns the rows that a request names: the licence by the key, or else by the token, and the device by the
// token, or else by the fingerprint. Like a key, a token gives access to its licence whichever account owns it: it
// stays valid when the licence moves to another account, so accounts are not compared. Errors: errNotFound, if there
// is no such licence.
func (r *deviceRequest) read(q *queries) (f checkResult, err error) {
	switch {
	case r.keyHash != nil:
		f.license, err = q.licenseByKey(*r.keyHash)
	case r.token != nil:
		f.license, err = licenseTable.byID(q, anyAccount, r.token.License, errNotFound)
	default:
		err = errNotFound
	}
	switch {
	case err != nil:
	case r.token == nil && r.fingerprint != nil:
		f.device, err = orNil(q.deviceByFingerprint(f.license.ID, r.fingerprint))
	case r.token != nil && r.token.License == f.license.ID:
		f.device, err = orNil(q.device(f.license.ID, r.token.Device))
	}
	return f, err
}

// judge compares a request with the rows that were read for it, and sets the verdict.
func (f *checkResult) judge(r *deviceRequest, now time.Time) {
	f.fingerprint = r.fingerprint
	if r.token != nil && f.fingerprint == nil {
		f.fingerprint, _ = base64.RawURLEncoding.DecodeString(r.token.Fingerprint) // a wrong one is no device's
	}
	if r.token != nil && f.license != nil {
		f.otherToken, f.tokenEnded = r.token.License != f.license.ID, f.device.tokenEnded(f.license, r.token)
		if f.device != nil {
			f.mismatch = !bytes.Equal(f.fingerprint, f.device.Fingerprint)
		} else { // a restored database may lack the device
			f.mismatch = base64.RawURLEncoding.EncodeToString(f.fingerprint) != r.token.Fingerprint
		}
	}
	f.code, f.valid = licenseVerdict(r, f, now)
}

// lookUp reads and judges a request in a transaction. Errors: also those of finding.err.
func (r *deviceRequest) lookUp(t *tx) (checkResult, error) {
	f, err := orNil(r.read(t.queries))
	f.judge(r, t.now.Time)
	return f, cmp.Or(err, f.err())
}

// err returns nil if the request names a licence, else the refusal: key_malformed, license_not_found, or
// credential_mismatch when key and token name different ones.
func (f *checkResult) err() error {
	switch {
	case f.code == codeKeyMalformed.name:
		return errMalformedMember
	case f.license == nil:
		return errLicenseNotFound
	case f.otherToken:
		return errOtherToken
	}
	return nil
}

// activateDevice gives a device a seat of a licence, unless it holds one, and a new lease. It decides
// whether a seat is free in the same transaction, so that concurrent callers never get more seats
// than the licence has. The code is activated, already_active or reactivated. Errors: those of finding.err and
// checkActivation, seat_limit_reached and transfer_limit_reached (their transaction still commits, with the event),
// held_offline, validation_failed for replace_device_id.
func activateDevice(t *tx, keys *keyring, r *deviceRequest) (f checkResult, err error) {
	f, err = r.lookUp(t)
	if err == nil && f.license.Kind == kindFloating && !r.keepLapsed {
		var released int
		if released, err = releaseLapsed(t, f.license.ID); released > 0 {
			f, err = r.lookUp(t)
		}
	}
	if err == nil {
		err = f.compareFingerprint(t, r)
	}
	if err == nil {
		err = checkActivation(r, &f, t.now.Time)
	}
	if err != nil {
		return f, err
	}
	l, before := f.license, valueOr(f.device, device{})
	if before.State == deviceActive {
		f.code = "already_active"
		err = checkTransferLimit(t, &f)
	} else {
		err = takeSeat(t, &f, r.replace)
	}
	if err != nil {
		return f, err
	}
	d := f.device
	if f.newFingerprint {
		t.takeFingerprint(&f, before)
	}
	d.Name = cmp.Or(r.name, d.Name)
	d.Platform = cmp.Or(r.platform, d.Platform)
	d.AppVersion = cmp.Or(r.appVersion, d.AppVersion)
	d.LastSeenAt = t.now
	t.startLicense(l)
	recordPresentedSeq(t, l, d, r.token)
	if err = f.nextLease(t, keys, r.nonce, r.offline); err != nil {
		return f, err
	}
	t.saveDevice(before, d)
	if f.newFingerprint && f.code != "activated" {
		t.addEvent(deviceEvent(l, d, eventDeviceDrifted, actorDevice))
	}
	if typ, ok := activationEvents[f.code]; ok {
		t.addEvent(deviceEvent(l, d, typ, actorDevice))
	}
	if d.OfflineUntil.After(before.OfflineUntil.Time) {
		t.addEvent(deviceEvent(l, d, eventDeviceLeasedOffline, actorDevice, "until", d.OfflineUntil.String()))
	}
	return f, nil
}

// activationEvents are the events by code of an activation; already_active writes none.
var activationEvents = map[string]eventType{
	"activated":   eventDeviceActivated,
	"reactivated": eventDeviceReactivated,
}

// compareFingerprint sets newFingerprint for an activation. A device that sends its newest token with a fingerprint
// that no device has is the same device after a change of its disk or network card, so there is no mismatch.
func (f *checkResult) compareFingerprint(t *tx, r *deviceRequest) error {
	f.newFingerprint = f.device == nil
	if r.token != nil && (f.device == nil || f.mismatch) {
		known, err := orNil(t.deviceByFingerprint(f.license.ID, f.fingerprint))
		switch {
		case err != nil:
			return err
		case f.device == nil: // the database was restored from a copy without the token's device
			f.mismatch = f.mismatch || known != nil
		case known == nil && r.fingerprint != nil && r.token.Seq >= f.device.LeaseSeq && !f.tokenEnded:
			f.newFingerprint, f.mismatch = true, false
		}
	}
	var err error
	if f.newFingerprint {
		f.counted, err = t.pastFingerprint(f.license.ID, f.fingerprint)
	}
	return err
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

// recordPresentedSeq stores the highest lease number that a device has presented. A lower one later means that two
// machines use the same identity, or that the device was restored from a copy: that writes device.clone_suspected, at
// most once a day, and blocks nothing. A number that is higher than any this database issued (it was restored from a
// copy) becomes the current one, so that the next lease has a higher one still.
func recordPresentedSeq(t *tx, l *license, d *device, presented *claims) {
	switch {
	case presented == nil || presented.Seq == d.PresentedSeq:
	case presented.Seq > d.PresentedSeq:
		d.PresentedSeq, d.LeaseSeq = presented.Seq, max(d.LeaseSeq, presented.Seq)
	case presentsOlderLease(d, presented, t.now.Time):
		d.CloneAt = t.now
		t.addEvent(deviceEvent(l, d, eventDeviceCloneSuspected, actorDevice))
	}
}

// presentsOlderLease reports whether a token is an older lease of a device than one that
// it has presented before, and no event about that was written today.
func presentsOlderLease(d *device, presented *claims, now time.Time) bool {
	return presented != nil && presented.Seq < d.PresentedSeq &&
		d.CloneAt.Format(time.DateOnly) != newStamp(now).Format(time.DateOnly)
}

// takeSeat gives a seat to f.device, or to a new device when that is nil, and sets f.code. It releases the device
// with the id replace. Errors: seat_limit_reached, transfer_limit_reached, held_offline, validation_failed.
func takeSeat(t *tx, f *checkResult, replace string) error {
	l := f.license
	old, err := findReplaced(t, l, replace)
	if err != nil {
		return err
	}
	freed := 0
	if old != nil {
		freed = 1
	}
	if l.MaxDevices != nil && l.SeatsUsed-freed >= *l.MaxDevices {
		return refuseForSeatLimit(t, l, f.device) // this commits, so no seat may have been released yet
	}
	if err := checkTransferLimit(t, f); err != nil {
		return err
	}
	if old != nil {
		releaseSeat(t, l, old, "replacement", eventDeviceReplaced, actorDevice)
	}
	f.code = "reactivated"
	if f.device == nil {
		f.code = "activated"
		f.device = &device{ID: t.newID("dev"), LicenseID: l.ID}
	}
	d := f.device
	d.State, d.ActivatedAt, d.ReleasedAt, d.ReleasedBy = deviceActive, t.now, stamp{}, nil
	d.Activations++
	l.SeatsUsed++
	return nil
}

// findReplaced returns the device with an id, whose seat another one takes over, or nil when the id is "" or the
// device holds no seat. Errors: validation_failed when the licence has no such device, held_offline.
func findReplaced(t *tx, l *license, id string) (*device, error) {
	if id == "" {
		return nil, nil
	}
	old, err := t.device(l.ID, id)
	switch {
	case errors.Is(err, errNotFound):
		return nil, &refusal{code: codeValidation, detail: "The device to replace is not one of this licence.",
			fields: []fieldError{{Pointer: "#/replace_device_id", Code: "unknown_device",
				Detail: "The licence has no such device."}}}
	case err != nil || old.State != deviceActive:
		return nil, err
	case old.leasedOffline(t.now.Time):
		return nil, errHeldOffline(old)
	}
	return old, nil
}

// wasReplaced reports whether the device has lost its seat to one that replaced it. d may be nil.
func (d *device) wasReplaced() bool {
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
	if d.wasReplaced() {
		detail = "Another device has replaced this one, and no other seat is free."
	}
	return commitAnyway(&refusal{code: codeSeatLimit, detail: detail,
		members: []extraMember{{"seats", seatsOf(l)}, {"devices", append([]*device{}, holders...)}}})
}

const maxHoldersShown = 50 // devices in a seat_limit_reached

// releaseSeat makes d released and writes the event of type typ. d must hold a seat, or be blocked.
// releasedBy is device, replacement, portal, operator or lease; the device's tokens end unless the
// seat was given up by the device itself or by the end of its lease.
func releaseSeat(t *tx, l *license, d *device, releasedBy string, typ eventType, actor string) {
	before := *d
	if d.State == deviceActive {
		l.SeatsUsed--
	}
	if releasedBy != "device" && releasedBy != "lease" {
		d.endTokens(t.now)
	}
	d.CountsUntil = d.countsAfterSeat(l, t.now)
	d.State, d.ReleasedAt, d.ReleasedBy, d.LapsesAt = deviceReleased, t.now, &releasedBy, stamp{}
	t.saveDevice(before, d)
	t.addEvent(deviceEvent(l, d, typ, actor, "by", releasedBy))
}

// blockDevice shuts a device out until an operator releases it. An offline lease goes on until its end, as after a
// release.
func blockDevice(t *tx, l *license, d *device, actor string) {
	if d.State == deviceBlocked {
		return
	}
	before := *d
	d.endTokens(t.now)
	d.CountsUntil = d.countsAfterSeat(l, t.now)
	d.State, d.LapsesAt = deviceBlocked, stamp{}
	t.saveDevice(before, d)
	t.addEvent(deviceEvent(l, d, eventDeviceBlocked, actor))
}

func deviceEvent(l *license, d *device, typ eventType, actor string, data ...string) event {
	e := licenseEvent(l, typ, actor, data...)
	e.DeviceID = d.ID
	return e
}

// releaseLapsed releases floating seats whose leases have lapsed, those of one licence or, with "", of any, and returns
// how many they were.
func releaseLapsed(t *tx, licenseID string) (int, error) {
	lapsed, err := t.lapsedDevices(licenseID, t.now, maxTransitions)
	for _, d := range lapsed {
		account, err := t.licenseOwner(d.LicenseID)
		if err != nil {
			return 0, err
		}
		l := &license{ID: d.LicenseID, AccountID: account}
		releaseSeat(t, l, d, "lease", eventDeviceReleased, actorTime)
	}
	return len(lapsed), err
}

// maxTransitions is how many rows of each kind one transaction of applyTransitions changes.
const maxTransitions = 500

// applyTransitions applies time-driven transitions: it releases floating seats that have lapsed,
// takes fingerprints that no longer count out of the counts of their licences, and writes the events
// of licences that have entered grace or expired, even if the service was not running then. It
// returns how many rows it changed; fewer than maxTransitions means that nothing is left to do.
func applyTransitions(t *tx) (done int64, err error) {
	lapsed, err := releaseLapsed(t, "")
	if err != nil {
		return 0, err
	}
	expired := t.expireFingerprints("", t.now, maxTransitions)
	written, err := t.recordLicenseTransitions(maxTransitions)
	return int64(lapsed + expired + written), err
}

// holdsSeat reports whether the request comes from a device that holds a seat, so that it may be
// recorded as seen and get a lease.
func (f *checkResult) holdsSeat(now time.Time) bool {
	return f.device.holdsSeat(now) && !f.mismatch && !f.tokenEnded
}

// wantsLease reports whether the answer should include a lease: the device sent no token,
// one whose refresh_after has passed, or a nonce to be signed.
func (f *checkResult) wantsLease(r *deviceRequest, now time.Time) bool {
	p := r.token
	return f.valid && f.device != nil && (p == nil || r.nonce != "" || now.Unix() >= p.IssuedAt+p.RefreshAfter)
}

// recordSeen sets last_seen_at of a device that holds a seat. When the answer should include a
// lease and the last one can't be sent again, it also creates the next. It looks r up again inside the transaction,
// because the rows may have changed since the caller read them.
func recordSeen(t *tx, keys *keyring, r *deviceRequest) (f checkResult, err error) {
	if f, err = r.lookUp(t); err != nil || !f.holdsSeat(t.now.Time) {
		return f, err
	}
	l, d, before := f.license, f.device, *f.device
	t.dropsOnly(l.ID)
	d.LastSeenAt = t.now
	d.AppVersion = cmp.Or(r.appVersion, d.AppVersion)
	recordPresentedSeq(t, l, d, r.token)
	if f.wantsLease(r, t.now.Time) && d.leaseStale(l, keys.signer().kid, t.now.Time) {
		if err = f.nextLease(t, keys, r.nonce, false); err != nil {
			return f, err
		}
	}
	t.saveDevice(before, d)
	return f, nil
}

// A deviceSummary is a device as it sees itself.
type deviceSummary struct {
	ID    string      `json:"id" is:"dev"` // The id of the device.
	Name  *string     `json:"name"`        // Its name, or null: none was given.
	State deviceState `json:"state"`       // Whether it holds a seat.
}

// fingerprintHash returns the SHA-256 of a device's fingerprint, which is all that the database keeps of it.
func fingerprintHash(fingerprint string) [32]byte { return sha256.Sum256([]byte(fingerprint)) }

// deviceTable describes the table devices.
var deviceTable = newTable("devices", "d", func(d *device) []field {
	return []field{{"id", &d.ID}, {"license_id", &d.LicenseID}, {"fingerprint", (*[]byte)(&d.Fingerprint)},
		{"name", &d.Name}, {"platform", &d.Platform}, {"app_version", &d.AppVersion}, {"state", (*string)(&d.State)},
		{"lease_seq", &d.LeaseSeq}, {"presented_seq", &d.PresentedSeq}, {"lease_kid", optionalText{&d.LeaseKid}},
		{"leased_at", &d.LeasedAt}, {"lease_expires_at", &d.LeaseExpiresAt}, {"lapses_at", &d.LapsesAt},
		{"clone_suspected_at", &d.CloneAt}, {"counts_until", &d.CountsUntil},
		{"offline_until", &d.OfflineUntil}, {"offline_kid", optionalText{&d.OfflineKid}}, {"ended_seq", &d.EndedSeq},
		{"tokens_end_at", &d.TokensEndAt}, {"activated_at", &d.ActivatedAt}, {"last_seen_at", &d.LastSeenAt},
		{"released_at", &d.ReleasedAt}, {"released_by", &d.ReleasedBy}, {"activations", &d.Activations}}
})

// deviceByFingerprint returns the device of a licence whose fingerprint has this SHA-256, or errNotFound.
func (q *queries) deviceByFingerprint(licenseID string, hash []byte) (*device, error) {
	return deviceTable.one(q, `WHERE d.license_id = ? AND d.fingerprint = ?`, licenseID, hash)
}

// device returns a device of a licence, or errNotFound.
func (q *queries) device(licenseID, id string) (*device, error) {
	return deviceTable.one(q, `WHERE d.id = ? AND d.license_id = ?`, id, licenseID)
}

// deviceOwner is the SQL for the account that owns a device: that of its licence.
const deviceOwner = `(SELECT account_id FROM licenses WHERE licenses.id = d.license_id)`

// deviceByID returns a device on any of an owner's licences, or errNotFound.
func (q *queries) deviceByID(o owner, id string) (*device, error) {
	condition, args := o.narrow(`WHERE d.id = ?`, deviceOwner, id)
	return deviceTable.one(q, condition, args...)
}

// allDevices returns a page of the devices on any licence of an owner, newest first, starting
// after the id before ("" for the newest).
func (q *queries) allDevices(o owner, before string, limit int) (p listPage[*device], err error) {
	list := deviceTable.list()
	list.scope(o.narrow(``, deviceOwner))
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, deviceTable.destNew, idOfDevice)
	return p, err
}

func idOfDevice(d *device) string { return d.ID }

// devices returns a page of the devices of a licence, newest first, starting after the id before ("" for the newest).
// It merges one query for each state, whose rows the index on licence and state returns in order, so that a page of a
// licence with a million devices costs no more than one of a small licence.
func (q *queries) devices(licenseID, before string, limit int) (p listPage[*device], err error) {
	var queries []string
	var args []any
	for _, state := range deviceStates {
		queries = append(queries, deviceTable.query+`WHERE d.license_id = ? AND d.state = ? AND d.id < ?`)
		args = append(args, licenseID, string(state), cmp.Or(before, lastID))
	}
	p.rows, p.next, err = collectPage(q, strings.Join(queries, ` UNION ALL `)+` ORDER BY id DESC LIMIT ?`, args, "id",
		limit, deviceTable.destNew, idOfDevice)
	return p, err
}

// seatHolders returns the devices that hold a seat of a licence, newest first, up to limit of them.
func (q *queries) seatHolders(licenseID string, limit int) ([]*device, error) {
	return collect(q, deviceTable.query+`WHERE d.license_id = ? AND d.state = ? ORDER BY d.id DESC LIMIT ?`,
		[]any{licenseID, deviceActive, limit}, deviceTable.destNew)
}

// saveDevice writes the columns in which d differs from before, which was read in the same transaction. A device that
// was not stored before is inserted.
func (t *tx) saveDevice(before device, d *device) {
	if before.ID == "" {
		deviceTable.insert(t, d)
	} else if columns := deviceTable.changed(&before, d); columns != "" {
		deviceTable.update(t, d, columns, ` WHERE id = ?`, d.ID)
	}
}

// transitionsDue reports whether applyTransitions has anything to do. It looks at the first
// entries of five indexes, so it takes the same time for any number of licences.
func (q *queries) transitionsDue(now stamp) (due bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM devices WHERE `+lapseDue+`)
		OR EXISTS (SELECT 1 FROM licenses WHERE `+graceDue+`)
		OR EXISTS (SELECT 1 FROM licenses WHERE `+expiryDue+`)
		OR EXISTS (SELECT 1 FROM devices WHERE `+countDue+`)
		OR EXISTS (SELECT 1 FROM past_fingerprints WHERE counts_until <= ?)`,
		now, now, now, now, now)
}

// lapsedDevices returns up to limit devices of a licence whose floating seat has lapsed and is to be released.
// licenseID "" means any licence.
func (q *queries) lapsedDevices(licenseID string, now stamp, limit int) ([]*device, error) {
	condition, args := `WHERE `, []any{now, limit}
	if licenseID != "" {
		condition, args = `WHERE license_id = ? AND `, []any{licenseID, now, limit}
	}
	return collect(q, deviceTable.query+condition+lapseDue+` LIMIT ?`, args, deviceTable.destNew)
}

// countDue is the SQL condition for devices that hold no seat and whose fingerprint stops counting at the time ? or
// earlier. It repeats the condition of two partial indexes in schema.sql, so that SQLite uses those.
const countDue = `state <> 'active' AND counts_until IS NOT NULL AND counts_until <= ?`

// pastFingerprint returns until when a former fingerprint of one of the licence's devices counts; the
// zero stamp: the licence has no such former fingerprint.
func (t *tx) pastFingerprint(licenseID string, hash []byte) (until stamp, err error) {
	return orNil(oneValue[stamp](t.queries, `SELECT counts_until FROM past_fingerprints
		WHERE license_id = ? AND fingerprint = ?`, licenseID, hash))
}

// takeFingerprint gives the device of an activation its new fingerprint. The one that it had before, if any, goes on
// counting as if its machine had been released.
func (t *tx) takeFingerprint(f *checkResult, before device) {
	if !f.counted.IsZero() {
		t.exec(`DELETE FROM past_fingerprints WHERE license_id = ? AND fingerprint = ?`, f.license.ID, f.fingerprint)
	}
	if until := before.countsAfterSeat(f.license, t.now); !until.IsZero() {
		t.exec(`INSERT INTO past_fingerprints (license_id, fingerprint, counts_until) VALUES (?, ?, ?)
			ON CONFLICT DO UPDATE SET counts_until = max(counts_until, excluded.counts_until)`,
			f.license.ID, before.Fingerprint, until)
	}
	f.device.Fingerprint, f.device.CountsUntil = f.fingerprint, f.counted
}

// expireFingerprints stops counting the fingerprints of a licence whose counts_until is not after until, up to
// limit each of devices without a seat and of former fingerprints, and returns how many they were. licenseID ""
// means any licence. It finds the rows by indexes, so it costs the same however many others count.
func (t *tx) expireFingerprints(licenseID string, until stamp, limit int) int {
	of, args := ``, []any{until, limit}
	if licenseID != "" {
		of, args = `license_id = ? AND `, []any{licenseID, until, limit}
	}
	changed := t.exec(`UPDATE devices SET counts_until = NULL WHERE id IN (
		SELECT id FROM devices WHERE `+of+countDue+` LIMIT ?)`, args...)
	removed := t.exec(`DELETE FROM past_fingerprints WHERE (license_id, fingerprint) IN (
		SELECT license_id, fingerprint FROM past_fingerprints WHERE `+of+`counts_until <= ? LIMIT ?)`, args...)
	return int(changed + removed)
}

// nextFingerprintEnd returns when more than leaving of the fingerprints that count for a licence without holding a
// seat will have stopped counting. It returns the zero stamp if there are not that many, or if leaving is
// limits.listRows or more. Its cost grows with leaving: it reads that many entries of two indexes.
func (t *tx) nextFingerprintEnd(licenseID string, leaving int) (at stamp, err error) {
	if leaving >= t.limits.listRows {
		return stamp{}, nil
	}
	return orNil(oneValue[stamp](t.queries, `SELECT counts_until FROM devices
		WHERE license_id = ? AND state <> 'active' AND counts_until IS NOT NULL
		UNION ALL SELECT counts_until FROM past_fingerprints WHERE license_id = ?
		ORDER BY counts_until LIMIT 1 OFFSET ?`, licenseID, licenseID, leaving))
}

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
