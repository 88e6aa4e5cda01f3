package main

import (
	"cmp"
	"time"
)

// The states of a device.
const (
	deviceActive   = "active"
	deviceReleased = "released"
	deviceBlocked  = "blocked"
)

// A device is one machine that was activated on a licence.
type device struct {
	ID             string
	LicenseID      string
	Fingerprint    []byte // SHA-256
	Name           *string
	Platform       *string
	AppVersion     *string
	State          string
	LeaseSeq       int64
	PresentedSeq   int64
	LeaseKid       string
	LeasedAt       stamp
	LeaseExpiresAt stamp
	LapsesAt       stamp // of a floating seat
	CloneAt        stamp // when an older lease of it last came back
	ActivatedAt    stamp
	LastSeenAt     stamp
	ReleasedAt     stamp
	ReleasedBy     *string
	Activations    int
}

const deviceColumns = `id, license_id, fingerprint, name, platform, app_version, state, lease_seq, presented_seq, coalesce(lease_kid, ''),
	leased_at, lease_expires_at, lapses_at, clone_suspected_at, activated_at, last_seen_at, released_at, released_by, activations`

// newDevice is dest for a list: each row gets a device of its own.
func newDevice(d **device) []any {
	*d = &device{}
	return (*d).dest()
}

func (d *device) dest() []any {
	return []any{&d.ID, &d.LicenseID, &d.Fingerprint, &d.Name, &d.Platform, &d.AppVersion, &d.State, &d.LeaseSeq, &d.PresentedSeq, &d.LeaseKid,
		&d.LeasedAt, &d.LeaseExpiresAt, &d.LapsesAt, &d.CloneAt, &d.ActivatedAt, &d.LastSeenAt, &d.ReleasedAt, &d.ReleasedBy, &d.Activations}
}

// lapsed reports whether a floating seat's lease has run out: it is free, also
// before the row says so.
func (d *device) lapsed(now time.Time) bool { return !d.LapsesAt.IsZero() && !d.LapsesAt.After(now) }

// deviceByFingerprint returns the device of a licence with that fingerprint, or errNotFound.
func (q *queries) deviceByFingerprint(licenseID string, hash []byte) (*device, error) {
	d := &device{}
	err := q.one(`SELECT `+deviceColumns+` FROM devices WHERE license_id = ? AND fingerprint = ?`, []any{licenseID, hash}, d.dest()...)
	return d, err
}

// device returns a device of a licence, or errNotFound.
func (q *queries) device(licenseID, id string) (*device, error) {
	d := &device{}
	err := q.one(`SELECT `+deviceColumns+` FROM devices WHERE id = ? AND license_id = ?`,
		[]any{id, licenseID}, d.dest()...)
	return d, err
}

// deviceByID returns a device on any of an owner's licences, or errNotFound.
func (q *queries) deviceByID(o owner, id string) (*device, error) {
	d := &device{}
	query, args := narrowDevices(o, `SELECT `+deviceColumns+` FROM devices WHERE id = ?`, id)
	err := q.one(query, args, d.dest()...)
	return d, err
}

// narrowDevices is owner.narrow for a query on devices, whose account is their licence's.
func narrowDevices(o owner, query string, args ...any) (string, []any) {
	if o == anyAccount {
		return query, args
	}
	query += ` AND EXISTS (SELECT 1 FROM licenses WHERE licenses.id = license_id`
	query, args = o.narrow(query, `account_id`, args...)
	return query + `)`, args
}

// devices returns a page of a licence's devices, newest first, older than the id
// before ("" for the newest).
func (q *queries) devices(licenseID, before string, limit int) ([]*device, error) {
	return q.devicesIn(licenseID, []string{deviceActive, deviceReleased, deviceBlocked}, before, limit)
}

// seatHolders returns the devices that hold a seat of a licence, newest first, up to
// limit of them.
func (q *queries) seatHolders(licenseID string, limit int) ([]*device, error) {
	return q.devicesIn(licenseID, []string{deviceActive}, "", limit)
}

// devicesIn is devices, of those in one of the states. Each state is in order in its
// index, so that a page of a million costs no more.
func (q *queries) devicesIn(licenseID string, states []string, before string, limit int) ([]*device, error) {
	query, args := "", []any{}
	for i, state := range states {
		if i > 0 {
			query += ` UNION ALL `
		}
		query += `SELECT ` + deviceColumns + `, rowid AS row FROM devices WHERE license_id = ? AND state = ?`
		if args = append(args, licenseID, state); before != "" {
			query += ` AND rowid < (SELECT rowid FROM devices WHERE id = ?)`
			args = append(args, before)
		}
	}
	var row int64 // which only orders
	return collect(q, query+` ORDER BY row DESC LIMIT ?`, append(args, limit), func(d **device) []any { return append(newDevice(d), &row) })
}

// allDevices returns a page of the devices of all licences of an owner, newest first,
// older than the id before ("" for the newest).
func (q *queries) allDevices(o owner, before string, limit int) ([]*device, error) {
	query, args := narrowDevices(o, `SELECT `+deviceColumns+` FROM devices WHERE id < ?`, cmp.Or(before, lastID))
	return collect(q, query+` ORDER BY id DESC LIMIT ?`, append(args, limit), newDevice)
}

// saveDevice writes a device as it is, new or known.
func (t *tx) saveDevice(d *device) error {
	_, err := t.exec(`INSERT INTO devices (id, license_id, fingerprint, name, platform, app_version, state, lease_seq, presented_seq, lease_kid,
		leased_at, lease_expires_at, lapses_at, clone_suspected_at, activated_at, last_seen_at, released_at, released_by, activations)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, name = excluded.name, platform = excluded.platform, app_version = excluded.app_version,
		state = excluded.state, lease_seq = excluded.lease_seq, presented_seq = excluded.presented_seq, lease_kid = excluded.lease_kid,
		leased_at = excluded.leased_at, lease_expires_at = excluded.lease_expires_at, lapses_at = excluded.lapses_at,
		clone_suspected_at = excluded.clone_suspected_at, activated_at = excluded.activated_at,
		last_seen_at = excluded.last_seen_at, released_at = excluded.released_at, released_by = excluded.released_by, activations = excluded.activations`,
		d.ID, d.LicenseID, d.Fingerprint, d.Name, d.Platform, d.AppVersion, d.State, d.LeaseSeq, d.PresentedSeq, d.LeaseKid,
		d.LeasedAt, d.LeaseExpiresAt, d.LapsesAt, d.CloneAt, d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy, d.Activations)
	return err
}

// transitionsDue reports whether applyTransitions has anything to do. It takes the same
// time for any number of licences.
func (q *queries) transitionsDue(now stamp) (due bool, err error) {
	err = q.one(`SELECT EXISTS (SELECT 1 FROM devices WHERE `+lapseDue+`)
		OR EXISTS (SELECT 1 FROM licenses WHERE `+graceDue+`) OR EXISTS (SELECT 1 FROM licenses WHERE `+expiryDue+`)`, []any{now, now, now}, &due)
	return due, err
}

// lapsedDevices returns up to limit devices, of whichever licence, whose floating seat is
// to be given back.
func (q *queries) lapsedDevices(now stamp, limit int) ([]*device, error) {
	return collect(q, `SELECT `+deviceColumns+` FROM devices WHERE `+lapseDue+` LIMIT ?`,
		[]any{now, limit}, newDevice)
}

// lapsedDevicesOf returns those of one licence. There are few lapsed devices in all, since
// they are looked for every second: the plus has their index used, not the licence's.
func (q *queries) lapsedDevicesOf(licenseID string, now stamp, limit int) ([]*device, error) {
	return collect(q, `SELECT `+deviceColumns+` FROM devices WHERE `+lapseDue+` AND +license_id = ? LIMIT ?`,
		[]any{now, licenseID, limit}, newDevice)
}

// transfers returns when the owner released devices of a licence in the last 30
// days, oldest first: by the device, by replacing it, or in the portal. An
// operator's release and a lapsed lease don't count.
func (t *tx) transfers(licenseID string) ([]stamp, error) {
	return collect(t.queries, `SELECT at FROM events WHERE license_id = ? AND type IN ('device.released', 'device.replaced') AND at > ?
		AND json_extract(data, '$.by') IN ('device', 'replacement', 'portal') ORDER BY seq`, []any{licenseID, t.now.after(-transferWindow)},
		func(at *stamp) []any { return []any{at} })
}

// countActivatedSince counts the other devices of a licence that took a seat at a
// moment or later.
func (t *tx) countActivatedSince(licenseID, deviceID string, since stamp) (n int, err error) {
	err = t.one(`SELECT count(*) FROM devices WHERE license_id = ? AND id <> ? AND activated_at >= ?`, []any{licenseID, deviceID, since}, &n)
	return n, err
}

// deviceKey names a device of a licence by its id or its fingerprint's hash.
type deviceKey struct{ license, id string }

func (m *licenseCache) device(licenseID, id string) (*device, error) {
	return m.cachedDevice(deviceKey{licenseID, id}, func() (*device, error) { return m.auth.store.device(licenseID, id) })
}

func (m *licenseCache) deviceByFingerprint(licenseID string, hash []byte) (*device, error) {
	return m.cachedDevice(deviceKey{licenseID, string(hash)}, func() (*device, error) { return m.auth.store.deviceByFingerprint(licenseID, hash) })
}

// cachedDevice keeps that there is no device too, which a portal asks about.
func (m *licenseCache) cachedDevice(key deviceKey, read func() (*device, error)) (*device, error) {
	d, err := m.devices.load(m.auth.store, key, func() (*device, string, error) {
		d, err := orNil(read())
		return d, key.license, err
	})
	if err == nil && d == nil {
		err = errNotFound
	}
	return d, err
}
