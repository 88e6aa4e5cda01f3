package main

import "time"

// Transfers: which fingerprints count for a licence, so that one seat can't serve many machines in
// turn (contract, section 4).

// transferWindow is the least time for which a fingerprint still counts for a node-locked licence
// after it held a seat.
const transferWindow = 30 * 24 * time.Hour

// checkTransferLimit refuses a fingerprint that does not count for the licence yet if as many as the
// licence allows count already (contract, section 4, Transfers). Errors: transfer_limit_reached.
func (f foundDevice) checkTransferLimit(t *tx, l *license, fingerprint []byte) error {
	if l.MaxDevices == nil || l.MaxTransfers == nil || !f.arrives() && f.device.counts(t.now.Time) {
		return nil
	}
	if f.arrives() {
		until, err := t.pastFingerprint(l.ID, fingerprint)
		if err != nil || until.After(t.now.Time) {
			return err
		}
	}
	most := *l.MaxDevices + *l.MaxTransfers
	if l.Counting < most {
		return nil
	}
	expired, err := t.expireFingerprints(l.ID, t.now, maxTransitions)
	if err != nil {
		return err
	}
	if l.Counting -= expired; l.Counting < most {
		return nil
	}
	return refuseForTransferLimit(t, l, l.Counting-most)
}

// refuseForTransferLimit returns transfer_limit_reached, and writes the event about it, at most once
// an hour. The transaction commits despite the refusal (see keep). over is by how many the
// fingerprints that count exceed the limit.
func refuseForTransferLimit(t *tx, l *license, over int) error {
	next, err := t.nextFingerprintEnd(l.ID, over)
	if err != nil {
		return err
	}
	if err := t.noteLimit(l, eventLicenseTransferLimitReached); err != nil {
		return err
	}
	detail := codeTransferLimit.detail
	if !next.IsZero() {
		detail += " Another can be activated at " + next.String() + "."
	}
	return keep(&refusal{code: codeTransferLimit, detail: detail, members: []extraMember{{"transfers", struct {
		transfers
		NextAt stamp `json:"next_at"` // null: not before a seat is given up
	}{*transfersOf(l), next}}}})
}

// counts reports whether the device's fingerprint counts for its licence (contract, section 4,
// Transfers): while it holds a seat, and then until its last lease ends; on a node-locked licence
// at least for transferWindow.
func (d *device) counts(now time.Time) bool {
	return d.State == deviceActive || d.CountsUntil.After(now)
}

// changeFingerprint gives d the fingerprint that was sent, unless a device of the licence has it
// already. The previous fingerprint goes on counting as if its machine had been released.
func (f foundDevice) changeFingerprint(t *tx, l *license, d *device, fingerprint []byte) error {
	if !f.arrives() {
		return nil
	}
	counted, err := t.pastFingerprint(l.ID, fingerprint)
	if err != nil {
		return err
	}
	if !counted.IsZero() {
		if err := t.removePastFingerprint(l.ID, fingerprint); err != nil {
			return err
		}
	}
	if f.drifted {
		if until := d.countsAfterSeat(l, f.active, t.now); !until.IsZero() {
			if err := t.addPastFingerprint(l.ID, d.Fingerprint, until); err != nil {
				return err
			}
		}
	}
	d.Fingerprint, d.CountsUntil = fingerprint, counted
	return nil
}

// countsAfterSeat returns until when the device's fingerprint counts once it holds no seat; the zero
// stamp: it no longer counts. held tells whether the device has held a seat until now.
func (d *device) countsAfterSeat(l *license, held bool, now stamp) stamp {
	until := d.CountsUntil
	if kept := now.after(transferWindow); held && l.Kind == kindNodeLocked && kept.After(until.Time) {
		until = kept
	}
	if !until.After(now.Time) {
		return stamp{}
	}
	return until
}
