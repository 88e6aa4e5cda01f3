package main

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"sync"
	"time"
)

// What happens to licences and seats, each as one transaction: the rules come from
// license.go, the rows from the store. Handlers and the operator's commands call
// the same functions.

// The actors of events: who did it. A token's own id stands for a portal.
const (
	actorDevice  = "device"
	actorCommand = "command"
)

// A lease is a device token as it goes out.
type lease struct {
	token   string
	claims  claims
	kid     string
	updated stamp // the licence's updated_at, which the claims follow
}

// signLease signs the lease of d on l that carries d's present number.
func (k *keyring) signLease(l *license, d *device, base, nonce string, now time.Time) (lease, error) {
	c := leaseClaims(l, d, now, nonce)
	c.Issuer, c.Audience = base, base
	token, err := k.sign(c)
	return lease{token: token, claims: c, kid: k.signer().kid, updated: l.UpdatedAt}, err
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
	return k.signLease(l, d, bases[0].URL, nonce, t.now.Time)
}

// A leaseCache remembers the last lease of a device for the minute in which it
// serves again, so that a chatty fleet costs no signatures. Bounded: when full it
// forgets any other.
type leaseCache struct {
	mu     sync.Mutex
	leases map[string]lease
}

const (
	maxCachedLeases = 10_000
	leaseReuse      = time.Minute // how long a lease serves again, and how rarely verify writes
)

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

// get returns the lease of d that still says the truth about d and l.
func (c *leaseCache) get(l *license, d *device, kid string, now time.Time) (lease, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, ok := c.leases[d.ID]
	fresh := ok && kept.claims.Seq == d.LeaseSeq && kept.kid == kid && kept.updated == l.UpdatedAt && within(leaseReuse, time.Unix(kept.claims.IssuedAt, 0), now)
	return kept, fresh
}

// within reports whether two moments are less than d apart, whichever is first: a
// clock that was set must not hold anything up for years.
func within(d time.Duration, a, b time.Time) bool { return b.Sub(a).Abs() < d }

// An activation is what a device asks for when it takes a seat.
type activation struct {
	licenseID   string // of the token or the key
	keyHash     *[32]byte
	fingerprint [32]byte
	name        *string
	platform    *string
	appVersion  *string
	product     string
	replace     string // the device whose seat it takes; "": none
	nonce       string
}

// A grant is what activating gives.
type grant struct {
	code    string // activated, already_active or reactivated
	license *license
	device  *device
	lease   lease
}

// activate binds a device to a licence, inside the transaction that also decides
// whether a seat is free: N seats and any number of callers give N devices.
// Errors: the refusals of mayActivate, license_not_found, seat_limit_reached (kept,
// with its event), validation_failed for replace_device_id.
func (k *keyring) activate(t *tx, a activation) (*grant, error) {
	l, err := a.findLicense(t)
	if err != nil {
		return nil, err
	}
	d, err := t.deviceByFingerprint(l.ID, a.fingerprint)
	if errors.Is(err, errNotFound) {
		d, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := mayActivate(l, d, a.product, t.now.Time); err != nil {
		return nil, err
	}
	g := &grant{license: l, device: d, code: "already_active"}
	if d == nil || d.State != deviceActive {
		if err := k.takeSeat(t, g, a); err != nil {
			return nil, err
		}
	}
	d = g.device
	d.Name, d.Platform, d.AppVersion = either(a.name, d.Name), either(a.platform, d.Platform), either(a.appVersion, d.AppVersion)
	d.LastSeenAt = t.now
	if err := t.startLicense(l); err != nil {
		return nil, err
	}
	if g.lease, err = k.nextLease(t, l, d, a.nonce); err != nil {
		return nil, err
	}
	if err := t.saveDevice(d); err != nil {
		return nil, err
	}
	if g.code != "already_active" {
		if err := t.addEvent(deviceEvent(l, d, "device."+g.code, actorDevice)); err != nil {
			return nil, err
		}
	}
	l.SeatsUsed, err = t.seatsUsed(l.ID)
	return g, err
}

func either(a, b *string) *string {
	if a != nil {
		return a
	}
	return b
}

func (a *activation) findLicense(t *tx) (l *license, err error) {
	if a.keyHash != nil {
		l, err = t.licenseByKey(*a.keyHash)
	} else {
		l, err = t.license("", a.licenseID)
	}
	if errors.Is(err, errNotFound) {
		return nil, errLicense
	}
	if err == nil && a.licenseID != "" && l.ID != a.licenseID {
		return nil, errCredentials
	}
	return l, err
}

var errLicense = &refusal{code: "license_not_found", detail: verdictDetails["not_found"]}

// takeSeat makes g's device one that holds a seat, new or known. It frees the seat
// of the device that it replaces, unless no seat is free even then.
func (k *keyring) takeSeat(t *tx, g *grant, a activation) error {
	l := g.license
	used, err := t.seatsUsed(l.ID)
	if err != nil {
		return err
	}
	old, err := replacedDevice(t, l, a)
	if err != nil {
		return err
	}
	freed := 0
	if old != nil {
		freed = 1
	}
	if l.MaxDevices != nil && used-freed >= *l.MaxDevices {
		return seatLimit(t, l, used) // kept with its event, so nothing may be released before
	}
	if old != nil {
		if err := release(t, l, old, "replacement", "device.replaced", actorDevice); err != nil {
			return err
		}
	}
	if g.device == nil {
		g.code = "activated"
		g.device = &device{ID: t.newID("dev"), LicenseID: l.ID, Fingerprint: a.fingerprint[:]}
	} else {
		g.code = "reactivated"
	}
	d := g.device
	d.State, d.ActivatedAt, d.ReleasedAt, d.ReleasedBy = deviceActive, t.now, stamp{}, nil
	d.Activations++
	return nil
}

// replacedDevice returns the device whose seat a takes, or nil when a names none
// or one that holds no seat.
func replacedDevice(t *tx, l *license, a activation) (*device, error) {
	if a.replace == "" {
		return nil, nil
	}
	old, err := t.device(l.ID, a.replace)
	if errors.Is(err, errNotFound) {
		return nil, &refusal{code: "validation_failed", detail: "The device to replace is not one of this licence.",
			fields: []fieldError{{Pointer: "#/replace_device_id", Code: "unknown_device", Detail: "The licence has no such device."}}}
	}
	if err != nil || old.State != deviceActive {
		return nil, err
	}
	return old, nil
}

// seatLimit refuses a seat, names the devices that hold them, and notes that once
// an hour.
func seatLimit(t *tx, l *license, used int) error {
	holders, err := t.devices(l.ID, deviceActive, "", maxHoldersShown)
	if err != nil {
		return err
	}
	noted, err := t.happenedSince(l.ID, "license.seat_limit_reached", t.now.after(-time.Hour))
	if err != nil {
		return err
	}
	if !noted {
		if err := t.addEvent(event{Type: "license.seat_limit_reached", AccountID: l.AccountID, LicenseID: l.ID, Actor: actorDevice}); err != nil {
			return err
		}
	}
	masked := make([]deviceView, 0, len(holders))
	for _, d := range holders {
		masked = append(masked, viewDevice(d))
	}
	return keep(&refusal{code: "seat_limit_reached", detail: "All seats of this licence are taken. Release a device, or name one in replace_device_id.",
		seats: seatsOf(l, used), devices: masked})
}

const maxHoldersShown = 50 // devices in a seat_limit_reached

// release takes a device's seat back and writes an event; the caller has seen that
// it holds one (or, for an operator, that it is blocked).
func release(t *tx, l *license, d *device, by, eventType, actor string) error {
	d.State, d.ReleasedAt, d.ReleasedBy = deviceReleased, t.now, &by
	if err := t.saveDevice(d); err != nil {
		return err
	}
	return t.addEvent(deviceEvent(l, d, eventType, actor))
}

// block shuts a device out for good; only an operator's release lets it in again.
func block(t *tx, l *license, d *device, actor string) error {
	if d.State == deviceBlocked {
		return nil
	}
	d.State = deviceBlocked
	if err := t.saveDevice(d); err != nil {
		return err
	}
	return t.addEvent(deviceEvent(l, d, "device.blocked", actor))
}

func deviceEvent(l *license, d *device, eventType, actor string) event {
	return event{Type: eventType, AccountID: l.AccountID, LicenseID: l.ID, DeviceID: d.ID, Actor: actor}
}

// changeState carries out an operator's action on a licence: suspend, reinstate or
// revoke. Errors: errNotFound, illegal_transition.
func changeState(t *tx, licenseID, action, reason, actor string) (*license, error) {
	l, err := t.license("", licenseID)
	if err != nil {
		return nil, err
	}
	state, err := nextState(l.State, action)
	if err != nil {
		return nil, err
	}
	past := map[string]string{"suspend": "suspended", "reinstate": "reinstated", "revoke": "revoked"}[action]
	if err := t.setLicenseState(l, state, reason, "license."+past, actor); err != nil {
		return nil, err
	}
	return t.license("", licenseID)
}

// A check is a verified question with the rows that answer it.
type check struct {
	license *license // nil: not found
	device  *device  // nil: none
	code    string
	valid   bool

	mismatch bool // token and fingerprint name different devices, whatever the code
}

// A checkRequest is what verify asks.
type checkRequest struct {
	question
	keyHash     *[32]byte // nil: the token names the licence
	presented   *claims   // the device token that came along; nil: none
	fingerprint *[32]byte // nil: none was sent
	appVersion  *string
	nonce       string
}

// look finds licence and device and judges, over any connection.
func (r *checkRequest) look(q *queries, now time.Time) (c check, err error) {
	if r.keyHash != nil {
		c.license, err = q.licenseByKey(*r.keyHash)
	} else {
		c.license, err = q.license("", r.presented.License)
	}
	switch {
	case errors.Is(err, errNotFound):
		c.license = nil
	case err != nil:
		return c, err
	case r.presented != nil && r.presented.License != c.license.ID:
		return c, errCredentials
	case r.presented != nil:
		c.device, err = q.device(c.license.ID, r.presented.Device)
	case r.fingerprint != nil:
		c.device, err = q.deviceByFingerprint(c.license.ID, *r.fingerprint)
	}
	if errors.Is(err, errNotFound) {
		c.device, err = nil, nil
	}
	ask := r.question
	ask.hasDevice = r.presented != nil || r.fingerprint != nil
	c.mismatch = r.presented != nil && r.fingerprint != nil && r.presented.Fingerprint != base64.RawURLEncoding.EncodeToString(r.fingerprint[:])
	ask.mismatch = c.mismatch
	c.code, c.valid = judge(c.license, c.device, ask, now)
	return c, err
}

var errCredentials = &refusal{code: "credential_mismatch", detail: "The token is for another licence than the licence_key in the body."}

// wantsLease reports whether an answer should carry a token: the device sent none,
// one that is due for another, or a nonce to have signed.
func (r *checkRequest) wantsLease(c check, now time.Time) bool {
	if !c.valid || c.device == nil {
		return false
	}
	p := r.presented
	return p == nil || r.nonce != "" || now.Unix() >= p.IssuedAt+p.RefreshAfter
}

// noteSeen records that an active device was there and, when it wants one and its
// last lease is no longer fresh, gives it the next. It judges again, because the
// rows may have changed since the caller looked.
func (k *keyring) noteSeen(t *tx, r *checkRequest) (c check, given lease, err error) {
	if c, err = r.look(t.queries, t.now.Time); err != nil || c.device == nil || c.device.State != deviceActive {
		return c, given, err
	}
	d := c.device
	d.LastSeenAt = t.now
	d.AppVersion = either(r.appVersion, d.AppVersion)
	if r.presented != nil {
		d.PresentedSeq = max(d.PresentedSeq, r.presented.Seq)
	}
	if r.wantsLease(c, t.now.Time) && !within(leaseReuse, d.LeasedAt.Time, t.now.Time) {
		if given, err = k.nextLease(t, c.license, d, r.nonce); err != nil {
			return c, given, err
		}
	}
	return c, given, t.saveDevice(d)
}

// seats are how many devices a licence may have, has, and has left.
type seats struct {
	Used int  `json:"used"`
	Max  *int `json:"max"`  // null: no limit
	Free *int `json:"free"` // null: no limit
}

func seatsOf(l *license, used int) seats {
	s := seats{Used: used, Max: l.MaxDevices}
	if l.MaxDevices != nil {
		free := max(0, *l.MaxDevices-used)
		s.Free = &free
	}
	return s
}

// A licenseView is what a device or a portal sees of a licence that it has the key of.
type licenseView struct {
	ID           string   `json:"id"`
	Product      string   `json:"product"`
	Plan         *string  `json:"plan"`
	Kind         string   `json:"kind"`
	Status       string   `json:"status"`
	Trial        bool     `json:"trial"`
	ExpiresAt    stamp    `json:"expires_at"`
	GraceUntil   stamp    `json:"grace_until"`
	Entitlements codeList `json:"entitlements"`
	Seats        seats    `json:"seats"`
}

func viewLicense(l *license, now time.Time) licenseView {
	return licenseView{l.ID, l.Product, l.Plan, l.Kind, l.status(now), l.Trial, l.ExpiresAt, l.graceUntil(), l.Entitlements, seatsOf(l, l.SeatsUsed)}
}

// A deviceState is what a device sees of itself.
type deviceState struct {
	ID    string  `json:"id"`
	Name  *string `json:"name"`
	State string  `json:"state"`
}

func stateOf(d *device) deviceState { return deviceState{d.ID, d.Name, d.State} }

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
}

func viewDevice(d *device) deviceView {
	return deviceView{stateOf(d), d.Platform, d.AppVersion, hex.EncodeToString(d.Fingerprint[:4]), d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy}
}

// A licenseDetail is what the licence's account sees of it.
type licenseDetail struct {
	*license
	Status     string `json:"status"`
	GraceUntil stamp  `json:"grace_until"`
	Seats      seats  `json:"seats"`
}

func detailLicense(l *license, now time.Time) licenseDetail {
	return licenseDetail{l, l.status(now), l.graceUntil(), seatsOf(l, l.SeatsUsed)}
}
