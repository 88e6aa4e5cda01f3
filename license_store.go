package main

import (
	"cmp"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A license is the right to run an application on up to MaxDevices devices.
type license struct {
	ID               string          `json:"id"`
	AccountID        string          `json:"account_id"`
	Product          string          `json:"product"` // "kitchen-display"
	Plan             *string         `json:"plan"`
	Kind             string          `json:"kind"`  // kindNodeLocked or kindFloating
	State            string          `json:"state"` // active, suspended or revoked: what an operator decided
	Reason           *string         `json:"reason"`
	Trial            bool            `json:"trial"`
	MaxDevices       *int            `json:"max_devices"`   // nil: no limit
	MaxTransfers     *int            `json:"max_transfers"` // in 30 days; nil: no limit
	StartsAt         stamp           `json:"starts_at"`
	ExpiresAt        stamp           `json:"expires_at"`
	GraceDays        int             `json:"grace_days"`
	DurationDays     *int            `json:"duration_days"`
	ExpiryBasis      string          `json:"expiry_basis"` // basisIssue or basisFirstActivation
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

// The kinds of a licence, and from when its duration counts.
const (
	kindNodeLocked = "node_locked"
	kindFloating   = "floating" // seats are held by leases: one that lapses is free again

	basisIssue           = "issue"
	basisFirstActivation = "first_activation"
)

const defaultLeaseHours = 336

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

func (l *license) dest() []any {
	return []any{&l.ID, &l.AccountID, &l.Product, &l.Plan, &l.Kind, &l.State, &l.Reason, &l.Trial, &l.MaxDevices, &l.MaxTransfers,
		&l.StartsAt, &l.ExpiresAt, &l.GraceDays, &l.DurationDays, &l.ExpiryBasis, &l.LeaseHours, &l.Entitlements, (*jsonText)(&l.Metadata),
		&l.FirstActivatedAt, &l.CreatedAt, &l.UpdatedAt, &l.KeyHint, &l.SeatsUsed, &l.AccountClosed}
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
	if !json.Valid(*j) {
		return errors.New("what is stored is not JSON")
	}
	return nil
}

// licenseByKey returns the licence that a key opens, retired keys too (see
// KeyRetiresAt), or errNotFound.
func (q *queries) licenseByKey(hash [32]byte) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseColumns+`, k.retires_at FROM license_keys k JOIN licenses l ON l.id = k.license_id JOIN accounts a ON a.id = l.account_id
		WHERE k.hash = ?`, []any{hash[:]}, append(l.dest(), &l.KeyRetiresAt)...)
	return l, err
}

// license returns a licence of an account ("" for any), or errNotFound.
func (q *queries) license(accountID, id string) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseColumns+` FROM licenses l JOIN accounts a ON a.id = l.account_id WHERE l.id = ?1 AND ?2 IN ('', l.account_id)`,
		[]any{id, accountID}, l.dest()...)
	return l, err
}

// licenseOwner returns the account of a licence, or errNotFound.
func (q *queries) licenseOwner(id string) (accountID string, err error) {
	err = q.one(`SELECT account_id FROM licenses WHERE id = ?`, []any{id}, &accountID)
	return accountID, err
}

// A licenseFilter chooses licences; what is empty chooses all.
type licenseFilter struct {
	accountID string
	product   string
	status    string // computed, at now
	search    string // in product, plan, the key's hint and the id, without case
	now       stamp
}

// graceEnd is SQL for graceUntil, as schema.sql's index has it.
const graceEnd = `strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, grace_days || ' days')`

// statusFilters are SQL for status, in the same precedence; every ? is now.
var statusFilters = map[string]string{
	"revoked":     `l.state = 'revoked'`,
	"suspended":   `(l.state = 'suspended' OR l.state = 'active' AND a.closed_at IS NOT NULL)`,
	"not_started": openLicense + ` AND l.starts_at > ?`,
	"active":      startedLicense + ` AND (l.expires_at IS NULL OR l.expires_at > ?)`,
	"grace":       startedLicense + ` AND l.expires_at <= ? AND ` + graceEnd + ` > ?`,
	"expired":     startedLicense + ` AND ` + graceEnd + ` <= ?`,
}

const (
	openLicense    = `l.state = 'active' AND a.closed_at IS NULL`
	startedLicense = openLicense + ` AND (l.starts_at IS NULL OR l.starts_at <= ?)`
)

// licenses returns a page of licences, newest first, older than the id before (""
// for the newest).
func (q *queries) licenses(f licenseFilter, before string, limit int) ([]*license, error) {
	query := `SELECT ` + licenseColumns + ` FROM licenses l JOIN accounts a ON a.id = l.account_id WHERE l.id < ?`
	args := []any{cmp.Or(before, lastID)}
	and := func(condition string, arg any) {
		query += ` AND ` + condition
		for range strings.Count(condition, "?") {
			args = append(args, arg)
		}
	}
	if f.accountID != "" {
		and(`l.account_id = ?`, f.accountID)
	}
	if f.status != "" {
		and(statusFilters[f.status], f.now)
	}
	if f.product != "" {
		and(`l.product = ?`, f.product)
	}
	if f.search != "" {
		and(`(instr(lower(l.product || ' ' || coalesce(l.plan, '') || ' ' || l.id), lower(?)) > 0
			OR EXISTS (SELECT 1 FROM license_keys k WHERE k.license_id = l.id AND instr(lower(k.hint), lower(?)) > 0))`, f.search)
	}
	return collect(q, query+` ORDER BY l.id DESC LIMIT ?`, append(args, limit), func(l **license) []any {
		*l = &license{}
		return (*l).dest()
	})
}

// addLicense records a new licence and the hash of its key, and returns its id.
// Whatever l leaves empty takes the schema's default. The account must exist; a
// key that is taken is errKeyTaken.
func (t *tx) addLicense(l *license, key licenseKey, actor string) (string, error) {
	id := t.newID("lic")
	_, err := t.exec(`INSERT INTO licenses (id, account_id, product, plan, kind, state, reason, trial, max_devices, max_transfers, starts_at, expires_at,
		grace_days, duration_days, expiry_basis, lease_hours, entitlements, metadata, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Product, l.Plan, cmp.Or(l.Kind, kindNodeLocked), cmp.Or(l.State, "active"), l.Reason, l.Trial, l.MaxDevices, l.MaxTransfers, l.StartsAt, l.ExpiresAt,
		l.GraceDays, l.DurationDays, cmp.Or(l.ExpiryBasis, basisIssue), cmp.Or(l.LeaseHours, defaultLeaseHours), l.Entitlements, cmp.Or(string(l.Metadata), "{}"), t.now, t.now)
	if err != nil {
		return "", err
	}
	if err := t.addKey(id, key); err != nil {
		return "", err
	}
	return id, t.addEvent(event{Type: "license.created", AccountID: l.AccountID, LicenseID: id, Actor: actor})
}

// setLicenseState stores an operator's decision and its event.
func (t *tx) setLicenseState(l *license, state, reason, eventType, actor string) error {
	if _, err := t.exec(`UPDATE licenses SET state = ?, reason = nullif(?, ''), updated_at = ? WHERE id = ?`, state, reason, t.now, l.ID); err != nil {
		return err
	}
	return t.addEvent(event{Type: eventType, AccountID: l.AccountID, LicenseID: l.ID, Actor: actor, Data: eventData("reason", reason)})
}

// startLicense notes the first activation of a licence. A duration that counts
// from then decides its end.
func (t *tx) startLicense(l *license) error {
	if !l.FirstActivatedAt.IsZero() {
		return nil
	}
	l.FirstActivatedAt, l.UpdatedAt = t.now, t.now
	if l.ExpiryBasis == basisFirstActivation && l.DurationDays != nil && l.ExpiresAt.IsZero() {
		l.ExpiresAt = t.now.after(days(*l.DurationDays))
	}
	if _, err := t.exec(`UPDATE licenses SET first_activated_at = ?, expires_at = ?, updated_at = ? WHERE id = ?`, l.FirstActivatedAt, l.ExpiresAt, t.now, l.ID); err != nil {
		return err
	}
	return t.addEvent(event{Type: "license.first_activated", AccountID: l.AccountID, LicenseID: l.ID, Actor: actorDevice})
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

// device returns a device of a licence ("" for any), or errNotFound.
func (q *queries) device(licenseID, id string) (*device, error) {
	d := &device{}
	err := q.one(`SELECT `+deviceColumns+` FROM devices WHERE id = ?1 AND ?2 IN ('', license_id)`, []any{id, licenseID}, d.dest()...)
	return d, err
}

// devices returns a page of a licence's devices, newest first, older than the id
// before ("" for the newest). With a state ("" for any) only those in it. Each
// state is in order in its index, so that a page of a million costs no more.
func (q *queries) devices(licenseID, state, before string, limit int) ([]*device, error) {
	states := []string{state}
	if state == "" {
		states = []string{deviceActive, deviceReleased, deviceBlocked}
	}
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

// allDevices returns a page of the devices of all licences, newest first.
func (q *queries) allDevices(before string, limit int) ([]*device, error) {
	return collect(q, `SELECT `+deviceColumns+` FROM devices WHERE id < ? ORDER BY id DESC LIMIT ?`, []any{cmp.Or(before, lastID), limit}, newDevice)
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

// graceDue and expiryDue find the licences whose status time has changed and whose
// event is still to be written, lapseDue the devices whose floating seat is to be given
// back; the conditions are those of schema.sql's indexes. Rows that the sqlite3 shell,
// which does not look at foreign keys, has left without a licence or an account are
// passed over, so that they hold nothing else up.
const (
	hasAccount = ` AND EXISTS (SELECT 1 FROM accounts WHERE accounts.id = account_id)`
	graceDue   = `state <> 'revoked' AND grace_days > 0 AND grace_noted IS NOT expires_at AND expires_at <= ?` + hasAccount
	expiryDue  = `state <> 'revoked' AND expired_noted IS NOT ` + graceEnd + ` AND ` + graceEnd + ` <= ?` + hasAccount
	lapseDue   = `lapses_at <= ? AND EXISTS (SELECT 1 FROM licenses WHERE licenses.id = license_id` + hasAccount + `)`
)

// timeHasWork reports whether advanceTime has anything to do. It takes the same
// time for any number of licences.
func (q *queries) timeHasWork(now stamp) (due bool, err error) {
	err = q.one(`SELECT EXISTS (SELECT 1 FROM devices WHERE `+lapseDue+`)
		OR EXISTS (SELECT 1 FROM licenses WHERE `+graceDue+`) OR EXISTS (SELECT 1 FROM licenses WHERE `+expiryDue+`)`, []any{now, now, now}, &due)
	return due, err
}

// lapsedDevices returns devices whose floating seat is to be given back, of one
// licence ("" for any).
func (q *queries) lapsedDevices(licenseID string, now stamp, limit int) ([]*device, error) {
	return collect(q, `SELECT `+deviceColumns+` FROM devices WHERE `+lapseDue+` AND ? IN ('', license_id) LIMIT ?`, []any{now, licenseID, limit}, newDevice)
}

// noteTime writes the event of up to limit licences that have come into grace or
// to their end, once for each end, and returns how many there were.
func (t *tx) noteTime(limit int) (int, error) {
	noted := 0
	for _, due := range []struct{ condition, end, column, event string }{
		{graceDue, "expires_at", "grace_noted", "license.grace_started"},
		{expiryDue, graceEnd, "expired_noted", "license.expired"},
	} {
		rows, err := collect(t.queries, `SELECT id, account_id FROM licenses WHERE `+due.condition+` LIMIT ?`, []any{t.now, limit},
			func(l *license) []any { return []any{&l.ID, &l.AccountID} })
		if err != nil {
			return noted, err
		}
		for _, l := range rows {
			if _, err := t.exec(`UPDATE licenses SET `+due.column+` = `+due.end+` WHERE id = ?`, l.ID); err != nil {
				return noted, err
			}
			if err := t.addEvent(event{Type: due.event, AccountID: l.AccountID, LicenseID: l.ID, Actor: actorTime}); err != nil {
				return noted, err
			}
			noted++
		}
	}
	return noted, nil
}

// transferWindow is how long a release by the owner counts against max_transfers.
const transferWindow = 30 * 24 * time.Hour

// transfers returns when the owner released devices of a licence in the last 30
// days, oldest first: by the device, by replacing it, or in the portal. An
// operator's release and a lapsed lease don't count.
func (t *tx) transfers(licenseID string) ([]stamp, error) {
	return collect(t.queries, `SELECT at FROM events WHERE license_id = ? AND type IN ('device.released', 'device.replaced') AND at > ?
		AND json_extract(data, '$.by') IN ('device', 'replacement', 'portal') ORDER BY seq`, []any{licenseID, t.now.after(-transferWindow)},
		func(at *stamp) []any { return []any{at} })
}

// activatedSince counts the other devices of a licence that took a seat at a
// moment or later.
func (t *tx) activatedSince(licenseID, deviceID string, since stamp) (n int, err error) {
	err = t.one(`SELECT count(*) FROM devices WHERE license_id = ? AND id <> ? AND activated_at >= ?`, []any{licenseID, deviceID, since}, &n)
	return n, err
}

// saveTerms writes the terms of a licence, which a change or a renewal has set.
func (t *tx) saveTerms(l *license) error {
	l.UpdatedAt = t.now
	_, err := t.exec(`UPDATE licenses SET plan = ?, trial = ?, max_devices = ?, max_transfers = ?, starts_at = ?, expires_at = ?, grace_days = ?,
		duration_days = ?, lease_hours = ?, entitlements = ?, metadata = ?, updated_at = ? WHERE id = ?`,
		l.Plan, l.Trial, l.MaxDevices, l.MaxTransfers, l.StartsAt, l.ExpiresAt, l.GraceDays,
		l.DurationDays, l.LeaseHours, l.Entitlements, string(l.Metadata), l.UpdatedAt, l.ID)
	return err
}

// addKey gives a licence another key. One that is taken is errKeyTaken.
func (t *tx) addKey(licenseID string, key licenseKey) error {
	hash := key.hash()
	_, err := t.exec(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, ?, ?)`, hash[:], licenseID, key.hint(), t.now)
	if isDuplicate(err) {
		return errKeyTaken
	}
	return err
}

var errKeyTaken = errors.New("a licence with this key is there already")

// retireKeys sets the end of a licence's current key, and of earlier ones that would
// outlive it.
func (t *tx) retireKeys(licenseID string, end stamp) error {
	_, err := t.exec(`UPDATE license_keys SET retires_at = ?1 WHERE license_id = ?2 AND (retires_at IS NULL OR retires_at > ?1)`, end, licenseID)
	return err
}
