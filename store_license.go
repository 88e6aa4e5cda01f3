package main

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"
)

// A license is the right to run an application on up to MaxDevices devices.
type license struct {
	ID               string          `json:"id"`
	AccountID        string          `json:"account_id"`
	Product          string          `json:"product"` // "kitchen-display"
	Plan             *string         `json:"plan"`
	Kind             string          `json:"kind"`  // node_locked or floating
	State            string          `json:"state"` // active, suspended or revoked: what an operator decided
	Reason           *string         `json:"reason"`
	Trial            bool            `json:"trial"`
	MaxDevices       *int            `json:"max_devices"`   // nil: no limit
	MaxTransfers     *int            `json:"max_transfers"` // in 30 days; nil: no limit
	StartsAt         stamp           `json:"starts_at"`
	ExpiresAt        stamp           `json:"expires_at"`
	GraceDays        int             `json:"grace_days"`
	DurationDays     *int            `json:"duration_days"`
	ExpiryBasis      string          `json:"expiry_basis"` // issue or first_activation
	LeaseHours       int             `json:"lease_hours"`
	Entitlements     codeList        `json:"entitlements"`
	Metadata         json.RawMessage `json:"metadata"`
	FirstActivatedAt stamp           `json:"first_activated_at"`
	CreatedAt        stamp           `json:"created_at"`
	UpdatedAt        stamp           `json:"updated_at"`

	KeyHint       string `json:"key_hint"` // last five symbols of the current key
	SeatsUsed     int    `json:"-"`        // active devices
	AccountClosed bool   `json:"-"`
	KeyRetiresAt  stamp  `json:"-"` // of the key it was found by
}

// A codeList is a list of codes, kept as a JSON array.
type codeList []string

// Value implements driver.Valuer.
func (c codeList) Value() (driver.Value, error) {
	if c == nil {
		return "[]", nil
	}
	text, err := json.Marshal([]string(c))
	return string(text), err
}

// Scan implements sql.Scanner.
func (c *codeList) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("a list is stored as %T", v)
	}
	*c = codeList{}
	return json.Unmarshal([]byte(text), (*[]string)(c))
}

const licenseColumns = `l.id, l.account_id, l.product, l.plan, l.kind, l.state, l.reason, l.trial, l.max_devices, l.max_transfers,
	l.starts_at, l.expires_at, l.grace_days, l.duration_days, l.expiry_basis, l.lease_hours, l.entitlements, l.metadata,
	l.first_activated_at, l.created_at, l.updated_at,
	coalesce((SELECT k.hint FROM license_keys k WHERE k.license_id = l.id AND k.retires_at IS NULL), ''),
	(SELECT count(*) FROM devices d WHERE d.license_id = l.id AND d.state = 'active'),
	a.closed_at IS NOT NULL`

func (l *license) dest(more ...any) []any {
	return append([]any{&l.ID, &l.AccountID, &l.Product, &l.Plan, &l.Kind, &l.State, &l.Reason, &l.Trial, &l.MaxDevices, &l.MaxTransfers,
		&l.StartsAt, &l.ExpiresAt, &l.GraceDays, &l.DurationDays, &l.ExpiryBasis, &l.LeaseHours, &l.Entitlements, (*jsonText)(&l.Metadata),
		&l.FirstActivatedAt, &l.CreatedAt, &l.UpdatedAt, &l.KeyHint, &l.SeatsUsed, &l.AccountClosed}, more...)
}

// jsonText scans a JSON text column.
type jsonText json.RawMessage

// Scan implements sql.Scanner.
func (j *jsonText) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("JSON is stored as %T", v)
	}
	*j = jsonText(text)
	return nil
}

// licenseByKey returns the licence that a key opens, retired keys too (see
// KeyRetiresAt), or errNotFound.
func (q *queries) licenseByKey(hash [32]byte) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseColumns+`, k.retires_at FROM license_keys k JOIN licenses l ON l.id = k.license_id JOIN accounts a ON a.id = l.account_id
		WHERE k.hash = ?`, []any{hash[:]}, l.dest(&l.KeyRetiresAt)...)
	return l, err
}

// license returns a licence of an account ("" for any), or errNotFound.
func (q *queries) license(accountID, id string) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseColumns+` FROM licenses l JOIN accounts a ON a.id = l.account_id WHERE l.id = ?1 AND ?2 IN ('', l.account_id)`,
		[]any{id, accountID}, l.dest()...)
	return l, err
}

// licenses returns a page of an account's licences ("" for every account), newest
// first, older than the id before ("" for the newest).
func (q *queries) licenses(accountID, before string, limit int) (page []*license, err error) {
	ids, args := listQuery(`SELECT id FROM licenses`, accountID, before, limit)
	err = q.each(`SELECT `+licenseColumns+` FROM licenses l JOIN accounts a ON a.id = l.account_id WHERE l.id IN (`+ids+`) ORDER BY l.id DESC`, args,
		func(scan func(...any) error) error {
			l := &license{}
			page = append(page, l)
			return scan(l.dest()...)
		})
	return page, err
}

// addLicense records a new licence and the hash of its key, and returns its id.
// Whatever l leaves empty takes the schema's default.
func (t *tx) addLicense(l *license, key licenseKey, actor string) (string, error) {
	if _, err := t.account(l.AccountID); err != nil {
		return "", err
	}
	id := t.newID("lic")
	_, err := t.exec(`INSERT INTO licenses (id, account_id, product, plan, kind, trial, max_devices, max_transfers, starts_at, expires_at,
		grace_days, duration_days, expiry_basis, lease_hours, entitlements, metadata, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Product, l.Plan, orDefault(l.Kind, "node_locked"), l.Trial, l.MaxDevices, l.MaxTransfers, l.StartsAt, l.ExpiresAt,
		l.GraceDays, l.DurationDays, orDefault(l.ExpiryBasis, "issue"), orDefault(l.LeaseHours, 336), l.Entitlements, orDefault(string(l.Metadata), "{}"), t.now, t.now)
	if err != nil {
		return "", err
	}
	hash := key.hash()
	if _, err := t.exec(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, ?, ?)`, hash[:], id, key.hint(), t.now); err != nil {
		return "", err
	}
	return id, t.addEvent(event{Type: "license.created", AccountID: l.AccountID, LicenseID: id, Actor: actor})
}

func orDefault[T comparable](v, otherwise T) T {
	var none T
	if v == none {
		return otherwise
	}
	return v
}

// setLicenseState stores an operator's decision and its event.
func (t *tx) setLicenseState(l *license, state, reason, eventType, actor string) error {
	if _, err := t.exec(`UPDATE licenses SET state = ?, reason = nullif(?, ''), updated_at = ? WHERE id = ?`, state, reason, t.now, l.ID); err != nil {
		return err
	}
	return t.addEvent(event{Type: eventType, AccountID: l.AccountID, LicenseID: l.ID, Actor: actor, Data: eventData("reason", reason)})
}

// eventData makes an event's data from names and values; empty values are left out.
func eventData(pairs ...string) json.RawMessage {
	data := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			data[pairs[i]] = pairs[i+1]
		}
	}
	text, _ := json.Marshal(data)
	return text
}

// startLicense notes the first activation of a licence. A duration that counts
// from then decides its end.
func (t *tx) startLicense(l *license) error {
	if !l.FirstActivatedAt.IsZero() {
		return nil
	}
	l.FirstActivatedAt, l.UpdatedAt = t.now, t.now
	if l.ExpiryBasis == "first_activation" && l.DurationDays != nil && l.ExpiresAt.IsZero() {
		l.ExpiresAt = t.now.after(time.Duration(*l.DurationDays) * 24 * time.Hour)
	}
	if _, err := t.exec(`UPDATE licenses SET first_activated_at = ?, expires_at = ?, updated_at = ? WHERE id = ?`, l.FirstActivatedAt, l.ExpiresAt, t.now, l.ID); err != nil {
		return err
	}
	return t.addEvent(event{Type: "license.first_activated", AccountID: l.AccountID, LicenseID: l.ID, Actor: "device"})
}

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
	ActivatedAt    stamp
	LastSeenAt     stamp
	ReleasedAt     stamp
	ReleasedBy     *string
	Activations    int
}

const deviceColumns = `id, license_id, fingerprint, name, platform, app_version, state, lease_seq, presented_seq, coalesce(lease_kid, ''),
	leased_at, lease_expires_at, activated_at, last_seen_at, released_at, released_by, activations`

func (d *device) dest() []any {
	return []any{&d.ID, &d.LicenseID, &d.Fingerprint, &d.Name, &d.Platform, &d.AppVersion, &d.State, &d.LeaseSeq, &d.PresentedSeq, &d.LeaseKid,
		&d.LeasedAt, &d.LeaseExpiresAt, &d.ActivatedAt, &d.LastSeenAt, &d.ReleasedAt, &d.ReleasedBy, &d.Activations}
}

// deviceByFingerprint returns the device of a licence with that fingerprint, or errNotFound.
func (q *queries) deviceByFingerprint(licenseID string, hash [32]byte) (*device, error) {
	d := &device{}
	err := q.one(`SELECT `+deviceColumns+` FROM devices WHERE license_id = ? AND fingerprint = ?`, []any{licenseID, hash[:]}, d.dest()...)
	return d, err
}

// device returns a device of a licence ("" for any), or errNotFound.
func (q *queries) device(licenseID, id string) (*device, error) {
	d := &device{}
	err := q.one(`SELECT `+deviceColumns+` FROM devices WHERE id = ?1 AND ?2 IN ('', license_id)`, []any{id, licenseID}, d.dest()...)
	return d, err
}

// devices returns a page of a licence's devices, newest first, older than the id
// before ("" for the newest). With a state ("" for any) only those in it.
func (q *queries) devices(licenseID, state, before string, limit int) (page []*device, err error) {
	if before == "" {
		before = "~"
	}
	err = q.each(`SELECT `+deviceColumns+` FROM devices WHERE license_id = ?1 AND ?2 IN ('', state) AND id < ?3 ORDER BY id DESC LIMIT ?4`,
		[]any{licenseID, state, before, limit}, func(scan func(...any) error) error {
			d := &device{}
			page = append(page, d)
			return scan(d.dest()...)
		})
	return page, err
}

// saveDevice writes a device as it is, new or known.
func (t *tx) saveDevice(d *device) error {
	_, err := t.exec(`INSERT INTO devices (id, license_id, fingerprint, name, platform, app_version, state, lease_seq, presented_seq, lease_kid,
		leased_at, lease_expires_at, activated_at, last_seen_at, released_at, released_by, activations)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint, name = excluded.name, platform = excluded.platform, app_version = excluded.app_version,
		state = excluded.state, lease_seq = excluded.lease_seq, presented_seq = excluded.presented_seq, lease_kid = excluded.lease_kid,
		leased_at = excluded.leased_at, lease_expires_at = excluded.lease_expires_at, activated_at = excluded.activated_at,
		last_seen_at = excluded.last_seen_at, released_at = excluded.released_at, released_by = excluded.released_by, activations = excluded.activations`,
		d.ID, d.LicenseID, d.Fingerprint, d.Name, d.Platform, d.AppVersion, d.State, d.LeaseSeq, d.PresentedSeq, d.LeaseKid,
		d.LeasedAt, d.LeaseExpiresAt, d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy, d.Activations)
	return err
}

// seatsUsed counts the devices that hold a seat.
func (q *queries) seatsUsed(licenseID string) (n int, err error) {
	err = q.one(`SELECT count(*) FROM devices WHERE license_id = ? AND state = 'active'`, []any{licenseID}, &n)
	return n, err
}

// happenedSince reports whether an event of that type was written for a licence
// since a moment.
func (q *queries) happenedSince(licenseID, eventType string, since stamp) (bool, error) {
	var n int
	err := q.one(`SELECT count(*) FROM (SELECT 1 FROM events WHERE license_id = ? AND type = ? AND at > ? LIMIT 1)`, []any{licenseID, eventType, since}, &n)
	return n > 0, err
}
