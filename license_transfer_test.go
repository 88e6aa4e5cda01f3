package main

import (
	"reflect"
	"testing"
	"time"
)

// Against a customer with a licence key who would run more machines than were paid for, one after the other: whoever
// frees the seat, the machine that had it keeps its lease and so counts, also when the transfers were reset while it
// held a seat again. A device can't leave while it has an offline lease; a portal or an operator can free it.
func TestTransfer_countsUntilItsLeaseEndsWhoeverFreedTheSeat(t *testing.T) {
	t.Parallel()
	for how, free := range map[string]func(s *service, id, key, device string){
		"the device": func(s *service, _, key, _ string) { s.deactivate(key, "till").is(200) },
		"shorter terms": func(s *service, id, key, _ string) { // after a long lease, till gets a short one and leaves
			s.sql(`UPDATE licenses SET lease_hours = 1 WHERE id = ?`, id)
			s.notice()
			time.Sleep(2 * time.Minute)
			s.activate(key, "till").is(200)
			s.deactivate(key, "till").is(200)
		},
		"a portal":     func(s *service, id, _, device string) { s.release(id, device) },
		"the operator": func(s *service, _, _, device string) { s.must("device", "release", device) },
		"blocking":     func(s *service, _, _, device string) { s.must("device", "block", device) },
		"the shell":    func(s *service, _, _, _ string) { s.sql(`UPDATE devices SET state = 'released'`) },
		"after a reset": func(s *service, id, key, device string) {
			s.release(id, device)
			s.must("license", "reset-transfers", id)
			s.notice()
			s.activate(key, "till").is(200, "reactivated")
			s.deactivate(key, "till").is(200).tells("released", false)
			s.release(id, device)
		},
	} {
		runInBubble(t, how, func(t *testing.T, s *service) {
			id, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(0), LeaseHours: 1000,
				OfflineDays: 100}})
			end := time.Now().Add(days(100))
			if how == "the device" || how == "shorter terms" {
				end = time.Unix(s.lease(s.activate(key, "till")).Expires, 0)
			} else {
				s.activateOffline(key, "till").is(200)
			}
			free(s, id, key, s.activate(key, "till").is(200).text("device", "id"))
			s.notice()
			s.activate(key, "b").is(409, "transfer_limit_reached").tells("transfers.next_at", newStamp(end)).
				contains("Another can be activated at " + newStamp(end).String())
			time.Sleep(time.Until(end) - time.Second)
			s.advance()
			s.activate(key, "b").is(409, "transfer_limit_reached")
			time.Sleep(time.Second)
			s.advance()
			s.activate(key, "b").is(200)
		})
	}
}

// A lease that has lapsed no longer counts, also before the service has released its seat.
func TestTransfer_lapsedLeaseDoesNotCountInTheActivationThatReleasesItsSeat(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{terms: terms{Kind: kindFloating, MaxDevices: ptr(1), MaxTransfers: ptr(0),
			LeaseHours: 1}})
		s.activate(key, "a").is(200, "activated")
		time.Sleep(2 * time.Hour)
		s.activate(key, "a").is(200, "reactivated")
		time.Sleep(2 * time.Hour)
		s.activate(key, "b").is(200, "activated")
	})
}

// Against a thief with a device's token who would keep the seat after it was released, or come back: tokens end
// with a seat that is taken away.
func TestToken_endsWithTheSeatThatWasTakenAway(t *testing.T) {
	t.Parallel()
	for how, take := range map[string]func(s *service, id, key, device string){
		"a portal":     func(s *service, id, _, device string) { s.release(id, device) },
		"the operator": func(s *service, _, _, device string) { s.must("device", "release", device) },
		"the shell":    func(s *service, _, _, _ string) { s.sql(`UPDATE devices SET state = 'released'`) },
		"a replacement": func(s *service, _, key, device string) {
			s.activate(key, "other", "replace_device_id", device).is(200)
			s.deactivate(key, "other").is(200)
		},
	} {
		runInBubble(t, how, func(t *testing.T, s *service) {
			id, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(5)}})
			first := s.activate(key, "till").is(200)
			stolen, device := first.text("token"), first.text("device", "id")
			take(s, id, key, device)
			s.notice()
			if a := s.verifyLease(stolen, "nonce", "n").is(200); a.text("code") != "device_released" ||
				a.hasToken() {
				t.Errorf("%s", a.body)
			}
			s.activateByToken(stolen).is(403, "device_released")
			s.activateByToken(stolen, "fingerprint", "thief").is(403, "fingerprint_mismatch")
			s.activateByToken(stolen, "license_key", key, "fingerprint", "till").is(403, "device_released")
			back := s.activate(key, "till").is(200, "reactivated").text("token") // in the same second
			row := s.deviceRow(device)
			s.verifyLease(stolen, "nonce", "n").answers("token_ended")
			s.activateByToken(stolen).is(403, "token_ended")
			s.activateByToken(stolen, "fingerprint", "thief").is(403, "fingerprint_mismatch")
			a := s.deactivateByToken(stolen).is(200)
			if after := s.deviceRow(device); a.json()["released"] != false || !reflect.DeepEqual(after, row) {
				t.Errorf("an ended token changed %+v to %+v: %s", row, after, a.body)
			}
			s.verifyLease(back).answers("valid")
			s.activateByToken(back).is(200, "already_active")
			time.Sleep(2 * time.Minute)
			s.verifyLease(s.verifyLease(back, "nonce", "n").text("token")).answers("valid")
		})
	}
}

// A stored answer of activate is a token: given again when the seat is gone, it would be a lease
// that the rules above have ended.
func TestActivate_isReplayedOnlyWhileItsAnswerIsTrue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *service, id, key, device string)
		status int
		code   string // of the second answer; "": the first one is replayed
	}{
		"nothing":     {func(*service, string, string, string) {}, 200, ""},
		"its release": {func(s *service, _, key, _ string) { s.deactivate(key, "till").is(200) }, 200, "reactivated"},
		"a portal":    {func(s *service, id, _, device string) { s.release(id, device) }, 200, "reactivated"},
		"a block": {func(s *service, _, _, device string) { s.must("device", "block", device) }, 403,
			"device_blocked"},
		"a suspension": {func(s *service, id, _, _ string) { s.must("license", "suspend", id) }, 403,
			"license_suspended"},
		"an end": {func(*service, string, string, string) { time.Sleep(23 * time.Hour) }, 403, "license_expired"},
		"another lease": {func(s *service, _, key, _ string) {
			time.Sleep(2 * time.Minute)
			s.verifyKey(key, "till").answers("valid")
		}, 200, "already_active"},
		"ended tokens": {func(s *service, id, _, _ string) {
			s.sql(`UPDATE licenses SET tokens_end_at = strftime('%Y-%m-%dT%H:%M:%SZ', 946684800, 'unixepoch')
				WHERE id = ?`, id)
		}, 200, "already_active"},
	} {
		runInBubble(t, name, func(t *testing.T, s *service) {
			id, key := s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(22 * time.Hour)),
				terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(5)}})
			send := func() answer {
				return s.post("/widget/license/activate", activateBody(key, "till"), "Idempotency-Key: once")
			}
			first := send().is(200)
			c.change(s, id, key, first.text("device", "id"))
			s.notice()
			switch again := send().is(c.status); {
			case c.code == "" && (again.body != first.body || again.header.Get("Idempotency-Replayed") != "true"):
				t.Errorf("it is not replayed: %s", again.body)
			case c.code != "" && (again.text("code") != c.code || again.header.Get("Idempotency-Replayed") != ""):
				t.Errorf("%s, want %s", again.body, c.code)
			case c.status == 200 && c.code != "":
				if third := send().is(200); third.body != again.body ||
					third.header.Get("Idempotency-Replayed") != "true" {
					t.Errorf("the new answer is not kept: %s", third.body)
				}
			}
		})
	}
}
