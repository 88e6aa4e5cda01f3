package main

import (
	"cmp"
	"strings"
)

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
