package main

import (
	"cmp"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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

// licenseByKey returns the licence that a key opens, retired keys too (see
// KeyRetiresAt), or errNotFound.
func (q *queries) licenseByKey(hash [32]byte) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseColumns+`, k.retires_at FROM license_keys k JOIN licenses l ON l.id = k.license_id JOIN accounts a ON a.id = l.account_id
		WHERE k.hash = ?`, []any{hash[:]}, append(l.dest(), &l.KeyRetiresAt)...)
	return l, err
}

// license returns a licence of an owner, or errNotFound.
func (q *queries) license(o owner, id string) (*license, error) {
	l := &license{}
	query, args := o.narrow(`SELECT `+licenseColumns+` FROM licenses l JOIN accounts a ON a.id = l.account_id
		WHERE l.id = ?`, `l.account_id`, id)
	err := q.one(query, args, l.dest()...)
	return l, err
}

// licenseOwner returns the account of a licence, or errNotFound.
func (q *queries) licenseOwner(id string) (accountID string, err error) {
	err = q.one(`SELECT account_id FROM licenses WHERE id = ?`, []any{id}, &accountID)
	return accountID, err
}

// A licenseFilter chooses licences of an owner; what else is empty narrows nothing.
type licenseFilter struct {
	owner   owner
	product string
	status  string // computed, at now
	search  string // in product, plan, the key's hint and the id, without case
	now     stamp
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
	query, args := f.owner.narrow(`SELECT `+licenseColumns+` FROM licenses l JOIN accounts a ON a.id = l.account_id
		WHERE l.id < ?`, `l.account_id`, cmp.Or(before, lastID))
	and := func(condition string, arg any) {
		query += ` AND ` + condition
		for range strings.Count(condition, "?") {
			args = append(args, arg)
		}
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
	return id, t.addEvent(event{Type: eventLicenseCreated, AccountID: l.AccountID, LicenseID: id, Actor: actor})
}

// setLicenseState stores an operator's decision and its event.
func (t *tx) setLicenseState(l *license, state, reason string, happened eventType, actor string) error {
	if _, err := t.exec(`UPDATE licenses SET state = ?, reason = nullif(?, ''), updated_at = ? WHERE id = ?`, state, reason, t.now, l.ID); err != nil {
		return err
	}
	return t.addEvent(event{Type: happened, AccountID: l.AccountID, LicenseID: l.ID, Actor: actor, Data: eventData("reason", reason)})
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
	return t.addEvent(event{Type: eventLicenseFirstActivated, AccountID: l.AccountID, LicenseID: l.ID, Actor: actorDevice})
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

// noteTime writes the event of up to limit licences that have come into grace or
// to their end, once for each end, and returns how many there were.
func (t *tx) noteTime(limit int) (int, error) {
	noted := 0
	for _, due := range []struct {
		condition, end, column string
		event                  eventType
	}{
		{graceDue, "expires_at", "grace_noted", eventLicenseGraceStarted},
		{expiryDue, graceEnd, "expired_noted", eventLicenseExpired},
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

// A licenseMemory keeps in memory the licences and devices that calls ask for again and
// again. It is a licenseSource.
type licenseMemory struct {
	from     *authenticator             // whose store is asked
	byKey    *cache[[32]byte, *license] // by the licence key's hash
	licenses *cache[string, *license]   // by id
	devices  *cache[deviceKey, *device] // nil: the licence has no such device
}

func newLicenseMemory(g *authenticator) licenseMemory {
	const most = 4_000 // of each: together they take at most about 8 MiB
	return licenseMemory{g, newCache[[32]byte, *license](most), newCache[string, *license](most), newCache[deviceKey, *device](most)}
}

func (m *licenseMemory) licenseByKey(hash [32]byte) (*license, error) {
	return m.byKey.load(m.from.store, hash, func() (*license, string, error) {
		l, err := m.from.store.licenseByKey(hash)
		return l, l.ID, err
	})
}

func (m *licenseMemory) license(o owner, id string) (*license, error) {
	l, err := m.licenses.load(m.from.store, id, func() (*license, string, error) {
		l, err := m.from.store.license(anyAccount, id)
		return l, id, err
	})
	if err == nil && !o.owns(l.AccountID) {
		return nil, errNotFound
	}
	return l, err
}
