package main

import (
	"cmp"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestActivate_takesASeatAndAnswersWithALease(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		plan := "pro"
		end := newStamp(time.Now().Add(100 * 24 * time.Hour))
		id, key := s.addLicense(license{Plan: &plan, MaxDevices: ptr(3), ExpiresAt: end, GraceDays: 7,
			Entitlements: codeList{"kds", "reports"}, Trial: true})
		time.Sleep(90 * time.Second)
		a := s.activate(strings.ToLower(key), "machine", "device",
			map[string]string{"name": "Kitchen 1", "platform": "linux/arm64", "app_version": "2.4.1"}, "nonce", "n-1",
			"product", "kds").is(200)
		dev, token := a.text("device", "id"), a.text("token")
		want := fmt.Sprintf(`{"ok":true,"code":"activated","license":{"id":%q,"product":"kds","plan":"pro",`+
			`"kind":"node_locked","status":"active","trial":true,`+
			`"expires_at":%q,"grace_until":%q,"entitlements":["kds","reports"],"seats":{"used":1,"max":3,"free":2}},`+
			`"device":{"id":%q,"name":"Kitchen 1","state":"active"},"token":%q,"token_type":"Bearer",`+
			`"expires_in":1209600,"refresh_after":86400,"nonce":"n-1"}`+
			"\n", id, end, end.after(7*24*time.Hour), dev, token)
		sameText(t, "body", a.body, want)
		now := time.Now()
		hash := fingerprintHash("machine")
		got := s.lease(a)
		wantClaims := claims{Issuer: testBase, Audience: testBase, Subject: s.account, ClientID: dev,
			Scope: "license:verify", IssuedAt: now.Unix(), Expires: now.Add(336 * time.Hour).Unix(), ID: got.ID,
			License: id, Device: dev, Fingerprint: base64.RawURLEncoding.EncodeToString(hash[:]), Product: "kds",
			Entitlements: []string{"kds", "reports"}, Seq: 1, LicenseEnd: end.Unix(),
			GraceEnd: end.Add(7 * 24 * time.Hour).Unix(), RefreshAfter: 86400, Nonce: "n-1"}
		sameText(t, "claims", fmt.Sprint(got), fmt.Sprint(wantClaims))
		d := s.deviceRow(dev)
		sameText(t, "row", d.State, "active", d.Fingerprint, hash[:], *d.Platform, "linux/arm64",
			*d.AppVersion, "2.4.1", d.LeaseSeq, 1, d.Activations, 1, d.ActivatedAt, newStamp(now),
			d.LastSeenAt, newStamp(now), d.LeaseKid, s.keys.signer().kid, d.LeaseExpiresAt.Unix(), got.Expires)
		l, err := s.store.license(anyAccount, id)
		s.check(err)
		sameText(t, "licence", l.FirstActivatedAt, newStamp(now), l.UpdatedAt, newStamp(now))
		s.hasEvents(id, "license.created command", "license.first_activated device", "device.activated device")
	})
}

func TestActivate_againTakesNoSecondSeatAndKeepsTheID(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{MaxDevices: ptr(1)})
		first := s.activate(key, "f", "device", map[string]string{"name": "A", "app_version": "1"}).is(200)
		dev := first.text("device", "id")
		time.Sleep(time.Minute)
		second := s.activate(key, "f", "device", map[string]string{"app_version": "2"}).is(200)
		sameText(t, "again", second.text("code"), "already_active", second.text("device", "id"), dev,
			s.lease(second).Seq, 2, s.count(`SELECT count(*) FROM devices`), 1)
		s.deviceIs(dev, `name = 'A' AND app_version = '2' AND activations = 1 AND last_seen_at = ?`,
			newStamp(time.Now()))
		s.activateByToken(first.text("token")).is(200, "already_active").tells("device.id", dev)
		s.deactivate(key, "f").is(200)
		time.Sleep(time.Hour)
		s.activate(key, "f").is(200, "reactivated").tells("device.id", dev, "device.name", "A")
		s.deviceIs(dev, `activations = 2 AND released_at IS NULL AND released_by IS NULL AND activated_at = ?
			AND lease_seq = 4`, newStamp(time.Now()))
		s.hasEvents(id, "license.created command", "license.first_activated device", "device.activated device",
			"device.released device", "device.reactivated device")
	})
}

func TestActivate_refusesWhatTheContractSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	now := time.Now()
	ago, ahead := newStamp(now.Add(-time.Hour)), newStamp(now.Add(time.Hour))
	closed := s.addAccount("closed")
	ended, grace, single := license{ExpiresAt: ago}, license{ExpiresAt: ago, GraceDays: 1}, license{MaxDevices: ptr(1)}
	for name, c := range map[string]struct {
		l        license
		set      string // of the licence
		device   string // state of the device "known", which is there then
		status   int
		code     string
		print    string
		moreBody []any
	}{
		"suspended":                 {set: "state = 'suspended'", status: 403, code: "license_suspended"},
		"revoked":                   {set: "state = 'revoked'", status: 403, code: "license_revoked"},
		"the account is closed":     {l: license{AccountID: closed}, status: 403, code: "license_suspended"},
		"not started":               {l: license{StartsAt: ahead}, status: 403, code: "license_not_started"},
		"expired":                   {l: ended, status: 403, code: "license_expired"},
		"expired, a known device":   {l: ended, device: "active", print: "known", status: 403, code: "license_expired"},
		"another product":           {status: 403, code: "product_mismatch", moreBody: []any{"product", "other"}},
		"blocked":                   {device: "blocked", print: "known", status: 403, code: "device_blocked"},
		"in grace, new":             {l: grace, device: "active", print: "new", status: 403, code: "license_in_grace"},
		"in grace, known":           {l: grace, device: "active", print: "known", status: 200},
		"in grace, released before": {l: grace, device: "released", print: "known", status: 200},
		"in grace, blocked":         {l: grace, device: "blocked", print: "known", status: 403, code: "device_blocked"},
		"the only seat is taken": {l: single, device: "active", print: "new", status: 409,
			code: "seat_limit_reached"},
		"a released one took none": {l: single, device: "released", print: "new", status: 200},
		"a blocked one holds none": {l: single, device: "blocked", print: "new", status: 200},
		"replacing nobody's device": {status: 422, code: "validation_failed",
			moreBody: []any{"replace_device_id", newID("dev", now)}},
	} {
		t.Run(name, func(t *testing.T) {
			at := s.with(t)
			id, key := at.addLicense(license{AccountID: c.l.AccountID, MaxDevices: c.l.MaxDevices})
			if c.device != "" {
				dev := at.activate(key, "known").is(200).text("device", "id")
				at.sql(`UPDATE devices SET state = ? WHERE id = ?`, c.device, dev)
			}
			at.sql(`UPDATE licenses SET starts_at = ?, expires_at = ?, grace_days = ? WHERE id = ?`, c.l.StartsAt,
				c.l.ExpiresAt, c.l.GraceDays, id)
			if c.set != "" {
				at.sql(`UPDATE licenses SET `+c.set+` WHERE id = ?`, id)
			}
			if c.l.AccountID != "" {
				at.change(func(t *tx) error { return t.closeAccount(closed) })
			}
			before := at.count(`SELECT count(*) + count(*) FILTER (WHERE state = 'active') FROM devices`)
			events := at.count(`SELECT count(*) FROM events WHERE type <> 'license.seat_limit_reached'`)
			a := at.activate(key, cmp.Or(c.print, "new"), c.moreBody...)
			if c.status == 200 {
				a.is(200)
				return
			}
			a.is(c.status, c.code)
			sameText(t, "a refusal changed something",
				at.count(`SELECT count(*) + count(*) FILTER (WHERE state = 'active') FROM devices`), before,
				at.count(`SELECT count(*) FROM events WHERE type <> 'license.seat_limit_reached'`), events)
		})
	}
	s.activate(newLicenseKey(), "f").is(404, "license_not_found")
	s.activate("an-imported-key-of-nobody", "f").is(404, "license_not_found")
	id, key := s.addLicense(license{})
	dev := s.activate(key, "f").is(200)
	s.sql(`UPDATE license_keys SET retires_at = ? WHERE license_id = ?`, ago, id)
	s.activate(key, "f").is(403, "key_retired")
	s.activateByToken(dev.text("token")).is(200)
}

func TestActivate_ofADriftedDeviceKeepsItsSeat(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(1)})
	first := s.activate(key, "before the new disk").is(200)
	auth := bearer(first.text("token"))
	s.license("activate", auth, "license_key", key, "fingerprint", "after it").is(200).tells("device.id",
		first.text("device", "id"), "code", "already_active")
	s.verifyKey(key, "after it").answers("valid")
	s.verifyKey(key, "before the new disk").answers("device_not_activated")
	includes(t, s.eventTypes(id)+".", "device.activated device.drifted.")
	// The old token is bound to the fingerprint that the device no longer has.
	s.post("/widget/license/activate", `{}`, auth).is(403, "fingerprint_mismatch")
	s.verifyKey(key, "after it").answers("valid")
	// A fingerprint that another device has is no drift.
	_, other := s.addLicense(license{MaxDevices: ptr(2)})
	one := s.activate(other, "1").is(200)
	s.activate(other, "2").is(200)
	s.license("activate", bearer(one.text("token")), "license_key", other, "fingerprint", "2").is(403,
		"fingerprint_mismatch")
	s.license("activate", bearer(one.text("token")), "license_key", key, "fingerprint", "x").is(422,
		"credential_mismatch")
}

func TestActivate_withATokenOfADeviceThatARestoredDatabaseLacks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	var tokens [2]string
	for i, device := range []string{"came back", "never did"} {
		a := s.activate(key, device).is(200)
		tokens[i] = bearer(a.text("token"))
		s.sql(`DELETE FROM devices WHERE id = ?`, a.text("device", "id"))
	}
	s.activate(key, "came back").is(200)
	s.post("/widget/license/activate", `{}`, tokens[0]).is(403, "fingerprint_mismatch")
	s.license("activate", tokens[0], "license_key", key, "fingerprint", "came back").is(403, "fingerprint_mismatch")
	s.license("activate", tokens[1], "license_key", key, "fingerprint", "another").is(403, "fingerprint_mismatch")
	s.post("/widget/license/activate", `{}`, tokens[1]).is(200, "activated")
}

func TestSeat_limitNamesTheHoldersMaskedAndIsNotedOnceAnHour(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{MaxDevices: ptr(2)})
		s.activate(key, "first", "device", map[string]string{"name": "One"}).is(200)
		time.Sleep(time.Second)
		s.activate(key, "second").is(200)
		for range 10 {
			time.Sleep(time.Second)
			a := s.activate(key, "third").is(409, "seat_limit_reached")
			body := a.json()
			sameText(t, "seats", fmt.Sprint(body["seats"]), "map[free:0 max:2 used:2]")
			devices := body["devices"].([]any)
			hash := fingerprintHash("first")
			oldest := devices[len(devices)-1].(map[string]any)
			sameText(t, "devices", len(devices), 2, oldest["name"], "One", oldest["fingerprint"],
				hex.EncodeToString(hash[:4]))
			noFingerprint(t, a.body, "first", "second")
		}
		limitEvents := func() int {
			return s.count(`SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached' AND subject_id = ?`,
				id)
		}
		sameText(t, "events", limitEvents(), 1)
		time.Sleep(time.Hour)
		s.activate(key, "third").is(409, "seat_limit_reached")
		s.activate(key, "fourth").is(409, "seat_limit_reached")
		sameText(t, "events after an hour", limitEvents(), 2)
	})
}

// noFingerprint checks that a text holds no more of fingerprints than their mask.
func noFingerprint(t *testing.T, text string, fingerprints ...string) {
	t.Helper()
	for _, f := range fingerprints {
		hash := fingerprintHash(f)
		for _, form := range []string{hex.EncodeToString(hash[:5]),
			base64.RawURLEncoding.EncodeToString(hash[:])[:10], base64.StdEncoding.EncodeToString(hash[:])[:10],
			`"` + f + `"`} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
				t.Fatalf("the fingerprint %s shows as %s in %s", f, form, text)
			}
		}
	}
}

func TestSeat_ofAReplacedDeviceIsFreedAndTaken(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(1)})
	_, otherKey := s.addLicense(license{})
	foreign := s.activate(otherKey, "x").is(200).text("device", "id")
	old := s.activate(key, "old").is(200)
	oldID := old.text("device", "id")
	s.activate(key, "new", "replace_device_id", foreign).is(422, "validation_failed")
	s.activate(key, "new", "replace_device_id", "dev_1").is(422, "validation_failed")
	a := s.activate(key, "new", "replace_device_id", oldID).is(200)
	sameText(t, "replacing", a.text("code"), "activated", fmt.Sprint(a.json()["license"].(map[string]any)["seats"]),
		"map[free:0 max:1 used:1]")
	s.deviceIs(oldID, `state = 'released' AND released_by = 'replacement' AND released_at IS NOT NULL`)
	const replaced = "Another device has replaced this one and taken its seat; activate it again if a seat is free."
	s.verifyLease(old.text("token")).is(200, "device_released").tells("detail", replaced)
	s.activate(key, "old").is(409, "seat_limit_reached").tells("detail",
		"Another device has replaced this one, and no other seat is free.")
	// Once more: the one that was replaced has no seat to give.
	s.activate(key, "third", "replace_device_id", oldID).is(409, "seat_limit_reached")
	// A device does not replace itself, nor another, while it holds a seat.
	newID := a.text("device", "id")
	s.activate(key, "new", "replace_device_id", newID).is(200, "already_active").tells("device.state", "active")
	// The old one comes back in the place of the new one.
	s.activate(key, "old", "replace_device_id", newID).is(200, "reactivated").tells("device.id", oldID)
	s.hasEvents(id, "license.created command", "license.first_activated device", "device.activated device",
		"device.replaced device", "device.activated device", "license.seat_limit_reached device",
		"device.replaced device", "device.reactivated device")
}

func TestSeat_isReleasedByNoReplacementThatIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(3)})
	var ids []string
	for _, f := range []string{"a", "b", "c"} {
		ids = append(ids, s.activate(key, f).is(200).text("device", "id"))
	}
	s.sql(`UPDATE licenses SET max_devices = 2 WHERE id = ?`, id) // by an operator: one more than there may be
	a := s.activate(key, "d", "replace_device_id", ids[0]).is(409, "seat_limit_reached")
	sameText(t, "refused with", fmt.Sprint(a.json()["seats"]), "map[free:0 max:2 used:3]",
		len(a.json()["devices"].([]any)), 3)
	sameText(t, "the device that was to be replaced is", s.deviceRow(ids[0]).State, "active")
	s.counts(0, `SELECT count(*) FROM events WHERE type = 'device.replaced'`)
}

// crowd calls f for every number below n at once and counts the statuses.
func crowd(n int, f func(i int) answer) map[int]int {
	statuses := map[int]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			status := f(i).status
			mu.Lock()
			statuses[status]++
			mu.Unlock()
		})
	}
	close(start)
	all.Wait()
	return statuses
}

func TestSeat_isTakenOnceByTwoHundredCallersAtOnce(t *testing.T) {
	t.Parallel()
	callers := size(80, 200)
	for i, n := range []int{1, 7, 50, 50} {
		kind := []string{kindNodeLocked, kindFloating}[i%2]
		t.Run(fmt.Sprint(kind, " ", n), func(t *testing.T) {
			s := newService(t)
			id, key := s.addLicense(license{MaxDevices: &n, Kind: kind})
			got := crowd(callers, func(i int) answer { return s.activate(key, fmt.Sprint("machine ", i)) })
			sameText(t, "statuses", got[200], n, got[409], callers-n)
			s.counts(n, `SELECT count(*) FROM devices WHERE license_id = ? AND state = 'active'`, id)
			s.counts(n, `SELECT count(*) FROM devices`)
			for kind, want := range map[string]int{
				"device.activated": n, "license.first_activated": 1, "license.seat_limit_reached": 1,
			} {
				s.counts(want, `SELECT count(*) FROM events WHERE type = ?`, kind)
			}
		})
	}
}

func TestSeat_ofADeviceActivatedByManyAtOnceIsOne(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1)})
	got := crowd(100, func(int) answer { return s.activate(key, "machine") })
	sameText(t, "statuses", got[200], 100, s.count(`SELECT count(*) FROM devices`), 1,
		s.count(`SELECT lease_seq FROM devices`), 100, s.count(`SELECT activations FROM devices`), 1)
}

func TestSeat_ofTheSameDevicesReplacedByManyIsTakenOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newService(t)
			_, key := s.addLicense(license{MaxDevices: &n})
			var holders []string
			for i := range n {
				holders = append(holders, s.activate(key, fmt.Sprint("holder ", i)).is(200).text("device", "id"))
			}
			got := crowd(100, func(i int) answer {
				return s.activate(key, fmt.Sprint("machine ", i), "replace_device_id", holders[i%n])
			})
			sameText(t, "statuses", got[200], n, got[409], 100-n,
				s.count(`SELECT count(*) FROM devices WHERE state = 'active'`), n,
				s.count(`SELECT count(*) FROM devices WHERE released_by = 'replacement'`), n)
		})
	}
}

func TestSeat_isNeverSoldTwiceWhileDevicesComeAndGo(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(3)})
	got := crowd(200, func(i int) answer {
		f := fmt.Sprint("machine ", i%20)
		if i%2 == 0 {
			return s.deactivate(key, f)
		}
		a := s.activate(key, f)
		if a.status == 200 {
			if used := a.json()["license"].(map[string]any)["seats"].(map[string]any)["used"].(float64); used < 1 ||
				used > 3 {
				t.Errorf("%v seats are used", used)
			}
		}
		return a
	})
	if got[200]+got[409] != 200 || s.count(`SELECT count(*) FROM devices WHERE state = 'active'`) > 3 {
		t.Fatalf("statuses %v, %d active", got, s.count(`SELECT count(*) FROM devices WHERE state = 'active'`))
	}
}

func TestSeat_floatingIsFreedByALapsedLeaseWithoutARequest(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 1})
		s.activate(key, "a").is(200)
		s.activate(key, "b").is(409, "seat_limit_reached")
		time.Sleep(time.Hour - time.Second)
		s.verifyKey(key, "a").answers("valid") // a minute has passed: this extends the lease
		time.Sleep(30 * time.Minute)
		s.activate(key, "b").is(409, "seat_limit_reached")
		time.Sleep(30 * time.Minute)
		s.verifyKey(key, "a").answers("device_released") // before any worker came by
		s.advance()
		s.counts(1, `SELECT count(*) FROM devices WHERE state = 'released' AND released_by = 'lease'
			AND lapses_at IS NULL`)
		s.activate(key, "b").is(200)
		s.activate(key, "a").is(409, "seat_limit_reached")
		time.Sleep(time.Hour)
		// frees the lapsed seat in the same transaction
		s.activate(key, "a").is(200, "reactivated")
		want := "license.created license.first_activated device.activated license.seat_limit_reached " +
			"license.seat_limit_reached device.released device.activated device.released device.reactivated"
		sameText(t, "events", s.eventTypes(id), want)
	})
}

func TestSeat_floatingIsNeverOutlivedByItsToken(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 1})
		s.activate(key, "a").is(200)
		time.Sleep(30 * time.Second)
		for _, body := range []string{activateBody(key, "a"),
			`{"license_key":"` + key + `","fingerprint":"a","nonce":"n"}`} {
			c, err := s.keys.verify(s.post("/widget/license/verify", body).is(200).text("token"))
			s.check(err)
			var at stamp
			s.check(s.store.one(`SELECT lapses_at FROM devices`, nil, &at))
			sameText(t, "the token holds until", c.Expires, at.Unix(), c.Seq, 1)
		}
	})
}

func TestSeat_nodeLockedOutlivesItsLease(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{MaxDevices: ptr(1), LeaseHours: 1})
		s.activate(key, "a").is(200)
		time.Sleep(48 * time.Hour)
		s.advance()
		s.activate(key, "b").is(409, "seat_limit_reached")
		s.verifyKey(key, "a").answers("valid")
	})
}

func TestVerify_saysEverythingItKnows(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{MaxDevices: ptr(2), Entitlements: codeList{"a", "b"}})
		act := s.activate(key, "f", "device", map[string]string{"name": "Till"}).is(200)
		lic := fmt.Sprintf(`{"id":%q,"product":"kds","plan":null,"kind":"node_locked","status":"active",`+
			`"trial":false,"expires_at":null,"grace_until":null,"entitlements":["a","b"],"seats":{"used":1,"max":2,`+
			`"free":1}}`, id)
		dev := fmt.Sprintf(`{"id":%q,"name":"Till","state":"active"}`, act.text("device", "id"))
		want := func(code, license, device, tail string) string {
			return fmt.Sprintf(`{"valid":%v,"code":%q,"detail":%q,"checked_at":%q,"nonce":"n","license":%s,`+
				`"device":%s%s}`+
				"\n", code == "valid", code, verdictDetails[code], newStamp(time.Now()), license, device, tail)
		}
		for name, c := range map[string]struct{ got, want string }{
			"by token": {s.verifyLease(act.text("token"), "entitlements", []string{"b"}, "product",
				"kds").answers("valid").body,
				strings.Replace(want("valid", lic, dev, `,"refresh_after":86400`), `"nonce":"n",`, "", 1)},
			"no device": {s.license("verify", "", "license_key", key, "nonce", "n").body,
				want("fingerprint_required", lic, "null", "")},
			"a new device": {s.verifyKey(key, "new", "nonce", "n").body, want("device_not_activated", lic, "null", "")},
			"missing": {s.verifyKey(key, "f", "nonce", "n", "entitlements", []string{"a", "c"}).body,
				want("entitlement_missing", lic, dev, "")},
			"unknown key": {s.verifyKey(newLicenseKey(), "f", "nonce", "n").body,
				want("not_found", "null", "null", "")},
			"malformed": {s.verifyKey("WRONG", "f", "nonce", "n").body, want("key_malformed", "null", "null", "")},
		} {
			sameText(t, name, c.got, c.want)
		}
		s.counts(1, `SELECT count(*) FROM devices`)
	})
}

func TestVerify_answersAboutEveryStateOfALicence(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		now := time.Now()
		ago, ahead := newStamp(now.Add(-time.Hour)), newStamp(now.Add(time.Hour))
		for code, change := range map[string]string{
			"revoked":     `UPDATE licenses SET state = 'revoked' WHERE id = ?1`,
			"suspended":   `UPDATE licenses SET state = 'suspended' WHERE id = ?1`,
			"not_started": `UPDATE licenses SET starts_at = '` + ahead.String() + `' WHERE id = ?1`,
			"expired":     `UPDATE licenses SET expires_at = '` + ago.String() + `' WHERE id = ?1`,
			"grace": `UPDATE licenses SET expires_at = '` + ago.String() +
				`', grace_days = 1 WHERE id = ?1`,
			"device_blocked":      `UPDATE devices SET state = 'blocked' WHERE license_id = ?1`,
			"device_released":     `UPDATE devices SET state = 'released' WHERE license_id = ?1`,
			"product_mismatch":    `UPDATE licenses SET product = 'other' WHERE id = ?1`,
			"entitlement_missing": `UPDATE licenses SET entitlements = '["x"]' WHERE id = ?1`,
			"valid":               `UPDATE licenses SET plan = 'x' WHERE id = ?1`,
		} {
			id, key := s.addLicense(license{Entitlements: codeList{"a"}, LeaseHours: 336})
			lease := s.activate(key, "f").is(200).text("token")
			s.sql(change, id)
			for _, a := range []answer{s.verifyKey(key, "f", "product", "kds", "entitlements", []string{"a"}),
				s.verifyLease(lease, "nonce", "n", "product", "kds", "entitlements", []string{"a"})} {
				a.answers(code)
				if valid := code == "valid" || code == "grace"; a.hasToken() != valid {
					t.Errorf("%s: %s", code, a.body)
				} else if c := a.json(); valid &&
					(int64(c["expires_in"].(float64)) != s.lease(a).Expires-s.lease(a).IssuedAt) {
					t.Errorf("%s: expires_in %v", code, c["expires_in"])
				}
				a.contains(`"license":{"id":"lic_`, `"device":{"id":"dev_`)
			}
		}
		id, key := s.addLicense(license{})
		lease := s.activate(key, "f").is(200).text("token")
		s.sql(`UPDATE license_keys SET retires_at = ? WHERE license_id = ?`, ago, id)
		s.verifyKey(key, "f").answers("key_retired")
		s.verifyLease(lease).answers("valid")
		s.deactivate(key, "f").is(403, "key_retired")

		second := s.addAccount("second")
		_, key = s.addLicense(license{AccountID: second})
		lease = s.activate(key, "f").is(200).text("token")
		s.change(func(t *tx) error { return t.closeAccount(second) })
		s.verifyKey(key, "f").answers("suspended")
		s.verifyLease(lease).answers("suspended")
		s.activateByToken(lease).is(403, "license_suspended")
	})
}

func TestVerify_needsATokenAndABodyThatAgree(t *testing.T) {
	t.Parallel()
	s := newService(t)
	oneID, one := s.addLicense(license{MaxDevices: ptr(5)})
	twoID, two := s.addLicense(license{MaxDevices: ptr(5)})
	lease := s.activate(one, "f").is(200)
	auth := bearer(lease.text("token"))
	// The licence.
	s.activate(two, "f").is(200)
	for _, path := range []string{"verify", "activate", "deactivate"} {
		s.license(path, auth, "license_key", two, "fingerprint", "f").is(422, "credential_mismatch")
		s.license(path, auth, "license_key", two).is(422, "credential_mismatch")
		s.license(path, auth, "license_key", one, "fingerprint", "f").is(200)
		s.activate(one, "f").is(200)
	}
	// The device.
	s.verifyLease(lease.text("token"), "fingerprint", "g").answers("fingerprint_mismatch")
	s.verifyLease(lease.text("token"), "fingerprint", "f").answers("valid")
	s.license("deactivate", auth, "fingerprint", "g").is(403, "fingerprint_mismatch")
	s.sql(`UPDATE licenses SET state = 'suspended' WHERE id = ?`, oneID)
	s.license("deactivate", auth, "fingerprint", "g").is(403, "fingerprint_mismatch")
	sameText(t, "the device is", s.deviceRow(lease.text("device", "id")).State, "active")
	s.counts(1, `SELECT count(*) FROM devices WHERE license_id = ?`, twoID)
}

func TestVerify_comparesAFingerprintWithTheTokenEvenWhenItsRowIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	lease := s.activate(key, "f").is(200).text("token")
	s.sql(`DELETE FROM devices`) // as in a database that was restored
	s.verifyLease(lease).answers("device_not_activated")
	s.verifyLease(lease, "fingerprint", "g").answers("fingerprint_mismatch")
	s.activateByToken(lease).is(200)
	s.sql(`DELETE FROM devices`)
	s.sql(`DELETE FROM license_keys`)
	s.sql(`DELETE FROM licenses`)
	s.verifyLease(lease).answers("not_found")
	s.activateByToken(lease).is(404, "license_not_found")
}

func TestVerify_namingNoLicenceIsNoAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	for _, path := range []string{"verify", "activate", "deactivate"} {
		for _, auth := range []string{"", s.auth(s.account, scopeAdmin)} {
			s.license(path, auth, "fingerprint", "f").is(422, "validation_failed").contains(
				`"pointer":"#/license_key"`).omits(`"valid"`)
		}
	}
	for _, path := range []string{"activate", "deactivate"} {
		s.license(path, "", "license_key", key).is(422, "validation_failed").contains(`"pointer":"#/fingerprint"`)
	}
}

func TestVerify_withAFreshTokenWritesOnceAMinuteAndGivesNoNewOne(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{})
		act := s.activate(key, "f", "device", map[string]string{"app_version": "1"}).is(200)
		dev, lease := act.text("device", "id"), act.text("token")
		written := s.store.committedJobs.Load()
		for range 59 {
			time.Sleep(time.Second)
			s.verifyLease(lease, "app_version", "2").answers("valid").omits(`"token"`)
		}
		sameText(t, "writes within a minute", s.store.committedJobs.Load()-written, 0)
		time.Sleep(time.Second)
		for minute := int64(1); minute <= 5; minute++ {
			for range 12 {
				s.verifyLease(lease, "app_version", "2").answers("valid").omits(`"token"`)
				time.Sleep(5 * time.Second)
			}
			sameText(t, "writes", s.store.committedJobs.Load()-written, minute)
		}
		d := s.deviceRow(dev)
		sameText(t, "row", d.LeaseSeq, 1, d.PresentedSeq, 1, *d.AppVersion, "2", time.Since(d.LastSeenAt.Time),
			time.Minute)
	})
}

func TestVerify_answersWhileSomebodyElseHoldsTheFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	act := s.activate(key, "f").is(200)
	dev := act.text("device", "id")
	ago := newStamp(time.Now().Add(-time.Hour))
	s.sql(`UPDATE devices SET last_seen_at = ?, leased_at = ?`, ago, ago)
	db, err := sql.Open("sqlite", dsn(filepath.Join(s.dir, "widgetd.db"), "rw", storeOptions{}))
	s.check(err)
	defer db.Close()
	lock, err := db.Begin() // _txlock=immediate
	s.check(err)
	a := s.verifyKey(key, "f", "nonce", "n").answers("valid") // waits writeWait, in real time
	if s.store.lockedSince().IsZero() {
		t.Error("verify waited as long as the writer did")
	}
	a.tells("device.id", dev)
	sameText(t, "claims", s.lease(a).Seq, 1, s.lease(a).Nonce, "n")
	includes(t, s.log.String(), "not recorded as seen")
	s.check(lock.Rollback())
	s.change(func(*tx) error { return nil })                   // comes after what verify gave up
	s.deviceIs(dev, `lease_seq = 1 AND last_seen_at = ?`, ago) // else what verify gave up was written
	sameText(t, "afterwards", s.lease(s.verifyKey(key, "f").answers("valid")).Seq, 2)
}

func TestDeactivate_givesTheSeatBackOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{MaxDevices: ptr(1)})
		lease := s.activate(key, "f").is(200)
		const released, nothing = `{"ok":true,"released":true}` + "\n", `{"ok":true,"released":false}` + "\n"
		sameText(t, "an unknown device", s.deactivate(key, "unknown").is(200).body, nothing)
		sameText(t, "by key", s.deactivate(key, "f").is(200).body, released)
		s.deviceIs(lease.text("device", "id"), `state = 'released' AND released_by = 'device' AND released_at = ?`,
			newStamp(time.Now()))
		written := s.count(`SELECT count(*) FROM events`)
		for range 3 {
			sameText(t, "again", s.deactivate(key, "f").is(200).body, nothing)
			sameText(t, "again, by token", s.deactivateByToken(lease.text("token")).is(200).body, nothing)
		}
		s.counts(written, `SELECT count(*) FROM events`)
		s.deactivate(newLicenseKey(), "f").is(404, "license_not_found")
		for _, change := range []string{"state = 'suspended'", "state = 'revoked'",
			"state = 'active', expires_at = '1999-01-01T00:00:00Z'",
			"expires_at = NULL, starts_at = '2999-01-01T00:00:00Z'"} {
			s.sql(`UPDATE licenses SET state = 'active', expires_at = NULL, starts_at = NULL`)
			lease := s.activate(key, "f").is(200)
			s.sql(`UPDATE licenses SET ` + change)
			sameText(t, change, s.deactivateByToken(lease.text("token")).is(200).body, released)
		}
		s.sql(`UPDATE licenses SET starts_at = NULL`)
		s.activate(key, "f").is(200)
		s.sql(`UPDATE devices SET state = 'blocked'`)
		sameText(t, "a blocked device", s.deactivate(key, "f").is(200).body, nothing)
		sameText(t, "events", s.licenseEvents(id)[3], "device.released device")
	})
}

func TestDevice_isReleasedAndBlockedByTheOperator(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(1)})
	lease := s.activate(key, "f").is(200)
	dev := lease.text("device", "id")
	for _, step := range []struct{ command, state, answer string }{
		{"block", "blocked", "device_blocked"}, {"block", "blocked", "device_blocked"},
		{"release", "released", "device_released"}, {"release", "released", "device_released"},
	} {
		s.must("device", step.command, dev)
		sameText(t, step.command, s.deviceRow(dev).State, step.state)
		s.verifyLease(lease.text("token")).answers(step.answer)
	}
	sameText(t, "released by", *s.deviceRow(dev).ReleasedBy, "operator")
	s.activate(key, "f").is(200, "reactivated")
	for _, step := range []struct{ command, answer string }{{"suspend", "suspended"}, {"reinstate", "valid"},
		{"suspend", "suspended"}, {"revoke", "revoked"}} {
		s.must("license", step.command, id, "-reason", "because")
		s.verifyKey(key, "f").answers(step.answer)
	}
	for _, command := range []string{"suspend", "reinstate", "revoke"} {
		oneLine(t, s.failure("license", command, id), "revoked", command)
	}
	want := "license.created command, license.first_activated device, device.activated device, device.blocked " +
		"command:U, device.released command:U, device.reactivated device, " +
		"license.suspended command:U, license.reinstated command:U, license.suspended command:U, license.revoked " +
		"command:U"
	want = strings.ReplaceAll(want, "command:U", thisActor(t))
	sameText(t, "events", strings.Join(s.licenseEvents(id), ", "), want)
	s.counts(4, `SELECT count(*) FROM events WHERE json_extract(data, '$.reason') = 'because'`)
}

func TestDevice_isReleasedByAPortalAndThatIsWrittenDown(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(1)})
	lease := s.activate(key, "f").is(200)
	dev := lease.text("device", "id")
	token := s.token(s.account, scopeDevices)
	c, err := s.keys.verify(token)
	s.check(err)
	auth := bearer(token)
	a := s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth).is(204)
	if a.body != "" || a.header.Get("RateLimit") == "" {
		t.Fatalf("%q %v", a.body, a.header)
	}
	s.deviceIs(dev, `state = 'released' AND released_by = 'portal' AND released_at IS NOT NULL`)
	s.verifyLease(lease.text("token")).answers("device_released")
	want := "device.released token " + c.ID
	if events := s.licenseEvents(id); events[len(events)-1] != want {
		t.Fatalf("events %v", events)
	}
	s.counts(1, `SELECT count(*) FROM events WHERE type = 'device.released'
		AND json_extract(data, '$.device_id') = ? AND subject_id = ? AND account_id = ?`, dev, id, s.account)
	// Once more changes nothing, and the seat is free.
	s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth).is(204)
	s.counts(1, `SELECT count(*) FROM events WHERE type = 'device.released'`)
	s.activate(key, "g").is(200)
	for _, unknown := range []string{newID("dev", time.Now()), "dev_1", "x"} {
		s.do("DELETE", "/licenses/"+id+"/devices/"+unknown, "", auth).is(404, "not_found")
	}
	// Blocked stays blocked: that is the operator's word.
	s.sql(`UPDATE devices SET state = 'blocked' WHERE id = ?`, dev)
	s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth).is(204)
	sameText(t, "a portal let a blocked device in", s.deviceRow(dev).State, "blocked")
	s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", s.auth(s.account, scopeLicenses)).challenged(403,
		"insufficient_scope", scopeChallenge(scopeDevices))
	s.do("DELETE", "/licenses/"+id, "", auth).is(405, "method_not_allowed")
}

func TestDevice_isShownMasked(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{})
	auth := s.auth(s.account, scopeLicenses+" "+scopeDevices)
	dev := s.activate(key, "machine-1", "device",
		map[string]string{"name": "Till", "platform": "linux", "app_version": "3"}).is(200).text("device", "id")
	s.activate(key, "machine-2").is(200)
	s.deactivate(key, "machine-2").is(200)
	a := s.get("/licenses/"+id+"/devices", auth).is(200)
	noFingerprint(t, a.body, "machine-1", "machine-2")
	row := s.deviceRow(dev)
	want := fmt.Sprintf(`{"id":%q,"name":"Till","state":"active","platform":"linux","app_version":"3",`+
		`"fingerprint":"%x","activated_at":%q,"last_seen_at":%q,"released_at":null,"released_by":null,`+
		`"clone_suspected_at":null,"offline_until":null}`, dev, row.Fingerprint[:4], row.ActivatedAt, row.LastSeenAt)
	a.contains(want, `"state":"released"`, `"released_by":"device"`)
	for _, path := range []string{"/licenses", "/licenses/" + id} {
		noFingerprint(t, s.get(path, auth).is(200).body, "machine-1", "machine-2")
	}
	noFingerprint(t, s.log.String(), "machine-1", "machine-2")
}

// Whatever a device or a widget sends is answered and never a fault of ours; and what
// is refused changes nothing.
func FuzzDeviceBody(f *testing.F) {
	paths := []string{"/widget/license/activate", "/widget/license/verify", "/widget/license/deactivate",
		"/widget/events"}
	s := newService(f, withoutAddressLimits)
	_, key := s.addLicense(license{MaxDevices: ptr(2)})
	widget := s.addWidget(s.account)
	lease := s.activate(key, "first").is(200).text("token")
	for i, body := range []string{
		`{"license_key":"` + key + `","fingerprint":"a","device":{"name":"Till 1","platform":"linux",` +
			`"app_version":"1"},"nonce":"n","replace_device_id":"dev_00000000000000000000000000"}`,
		`{"license_key":"` + key + `","fingerprint":"a","product":"kds","entitlements":["a","b"],"nonce":"n"}`,
		`{"license_key":"` + strings.ToLower(key) + `","fingerprint":"\ud83d\ude00\u0000"}`,
		`{"widget":"` + widget + `","events":[{"type":"view"},{"type":"click","item":"Rösti","page":"/menu"},` +
			`{"type":"order","item":"x"}]}`,
	} {
		f.Add(uint8(i), false, body)
		f.Add(uint8(i), true, body)
	}
	f.Add(uint8(1), true, `{}`)
	f.Fuzz(func(t *testing.T, which uint8, withLease bool, body string) {
		s := s.with(t)
		header := http.Header{"Content-Type": {"application/json"}, "Origin": {siteOrigin}}
		if withLease {
			header.Set("Authorization", "Bearer "+lease)
		}
		s.server.accountBuckets = newLimiter(10)
		rows := func() int {
			return s.count(`SELECT (SELECT count(*) FROM devices) + (SELECT count(*) FROM events)
				+ (SELECT coalesce(sum(views + clicks + orders), 0) FROM widget_counts)
				+ (SELECT count(*) FROM item_counts)`)
		}
		before := rows()
		a := s.ask("POST", paths[int(which)%len(paths)], "", body, header)
		if a.status >= 400 && a.status != 409 && rows() != before { // a full licence is noted in an event
			t.Fatalf("%d %s, and something was written", a.status, a.body)
		}
		if n := s.count(`SELECT count(*) FROM devices WHERE state = 'active'`); n > 2 {
			t.Fatalf("%d devices on two seats", n)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	s := newService(b)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	_, key := s.addLicense(license{})
	lease := s.activate(key, "f").is(200).text("token")
	for b.Loop() {
		if a := s.verifyLease(lease); a.status != 200 {
			b.Fatal(a.body)
		}
	}
}

// manyDevices inserts n devices with a state on a licence.
func manyDevices(license, state string, n int) string {
	return manyRows(n) + `INSERT INTO devices (id, license_id, fingerprint, state, activated_at, last_seen_at)
		SELECT printf('dev_%026d', i), '` + license + `', randomblob(32), '` + state + `',
		'2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z' FROM n`
}

func TestSeats_areCountedAlsoWhenTheShellChangesDevices(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	one, key := s.addLicense(license{})
	other, _ := s.addLicense(license{})
	auth := s.auth(s.account, scopeAdmin)
	for _, step := range []struct {
		statement  string
		one, other int
	}{
		{manyDevices(one, "active", 5), 5, 0},
		{`UPDATE devices SET state = 'released' WHERE id LIKE '%1'`, 4, 0},
		{`UPDATE devices SET state = 'blocked' WHERE id LIKE '%1'`, 4, 0},
		{`UPDATE devices SET state = 'active' WHERE id LIKE '%1'`, 5, 0},
		{`UPDATE devices SET license_id = '` + other + `' WHERE id LIKE '%2'`, 4, 1},
		{`UPDATE devices SET license_id = '` + other + `', state = 'released' WHERE id LIKE '%3'`, 3, 1},
		{`UPDATE devices SET state = 'active', name = 'x' WHERE id LIKE '%3'`, 3, 2},
		{`DELETE FROM devices WHERE id LIKE '%3'`, 3, 1},
		{`INSERT INTO devices (id, license_id, fingerprint, state, activated_at, last_seen_at)
			SELECT 'dev_7', license_id, randomblob(32), 'released', activated_at, last_seen_at
			FROM devices WHERE id LIKE '%4'`, 3, 1},
		{`DELETE FROM devices WHERE id = 'dev_7'`, 3, 1},
		{`DELETE FROM devices WHERE license_id = '` + one + `'`, 0, 1},
	} {
		raw(t, s.store.path, step.statement)
		for id, want := range map[string]int{one: step.one, other: step.other} {
			shown := s.get("/licenses/"+id, auth).is(200).json()["seats"].(map[string]any)["used"]
			sameText(t, step.statement, shown, want,
				s.count(`SELECT seats_used FROM v_licenses WHERE id = ?`, id), want)
		}
	}
	if faults, err := checkFile(s.store.path); err != nil || len(faults) > 0 {
		t.Fatalf("%q, %v", faults, err)
	}
	s.activate(key, "a").is(200)
	raw(t, s.store.path, `PRAGMA foreign_keys = 1; DELETE FROM devices; DELETE FROM license_keys; DELETE FROM licenses`)
	s.counts(0, `SELECT count(*) FROM license_seats`)
}

func TestSeats_thatAreCountedWrongAreToldByCheckAndMendedAsItSays(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	id := o.object("license", "add", "-account", o.account, "-product", "kds")["id"].(string)
	another := o.object("license", "add", "-account", o.account, "-product", "kds")["id"].(string)
	path := o.env["WIDGETD_DB"]
	for _, wrong := range []string{
		`UPDATE license_seats SET used = 2`,
		`DELETE FROM license_seats`,
		`INSERT INTO license_seats (license_id, used, counting) VALUES ('` + another + `', 1, 1)`,
		`UPDATE license_seats SET counting = 2`,
	} {
		raw(t, path, `DELETE FROM devices; `+manyDevices(id, "active", 3)+`; `+wrong)
		told, err := o.try("check")
		mend := regexp.MustCompile(`BEGIN IMMEDIATE;.*COMMIT;`).FindString(told)
		if err == nil || mend == "" || !strings.HasPrefix(told, "seats: of 1 licences, lic_") {
			t.Fatalf("after %s: %s, %v", wrong, told, err)
		}
		o.do("backup", filepath.Join(t.TempDir(), "copy.db")) // which is a true copy all the same
		raw(t, path, mend)
		if out := o.do("check"); !strings.HasPrefix(out, "ok:") {
			t.Errorf("after %s and mending: %s", wrong, out)
		}
	}
}

func TestSeats_limitIsNotedOnceAnHourWithoutReadingEvents(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1)})
	s.activate(key, "a").is(200)
	asked := questions(s.store.writer.queries)
	for range 3 {
		s.activate(key, "b").is(409, "seat_limit_reached")
	}
	for _, query := range asked() {
		if strings.Contains(query, "FROM events") {
			t.Errorf("it asks %s", query)
		}
	}
	s.counts(1, `SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached'`)
}

// devicesOfOne is how many devices the licence of BenchmarkOneLicense has in its large database.
var devicesOfOne = flag.Int("devices", 100_000, "devices of the licence in the large database of BenchmarkOneLicense")

// BenchmarkOneLicense compares what calls cost on a licence with 1,000 devices and on one with
// many, in turn:
//
//	go test -run '^$' -bench OneLicense -devices 1000000
func BenchmarkOneLicense(b *testing.B) {
	type crowded struct {
		*service
		key, auth, id string
	}
	var both [2]crowded
	for i, devices := range []int{1_000, *devicesOfOne} {
		s := newService(b)
		s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
		id, key := s.addLicense(license{Kind: kindFloating, LeaseHours: 2160})
		s.sql(manyDevices(id, deviceActive, devices))
		both[i] = crowded{s, key, s.auth(s.account, scopeAdmin), id}
	}
	n := 0
	for _, c := range []struct {
		name string
		call func(crowded)
	}{
		{"activate", func(s crowded) { s.activate(s.key, fmt.Sprint("machine ", n)).is(200) }},
		{"activateAndDeactivate", func(s crowded) {
			s.activate(s.key, fmt.Sprint("passing ", n)).is(200)
			s.post("/widget/license/deactivate", activateBody(s.key, fmt.Sprint("passing ", n))).is(200)
		}},
		{"verifyFromTheFile", func(s crowded) {
			s.store.changes.record(invalidation{})
			s.verifyKey(s.key, "machine 1")
		}},
		{"showInTheView", func(s crowded) { s.count(`SELECT sum(seats_used) FROM v_licenses`) }},
		{"listLicenses", func(s crowded) { s.get("/licenses", s.auth).is(200) }},
		{"listDevices", func(s crowded) { s.get("/licenses/"+s.id+"/devices", s.auth).is(200) }},
		{"eventsOfTheLicense", func(s crowded) { s.get("/events?license_id="+s.id, s.auth).is(200) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				n++
				for i, s := range both {
					start := time.Now()
					c.call(s)
					took[i] = append(took[i], time.Since(start))
				}
			}
			few, many := median(took[0]), median(took[1])
			b.ReportMetric(float64(few)/1e3, "few-µs")
			b.ReportMetric(float64(many)/1e3, "many-µs")
			b.ReportMetric(float64(many)/float64(few), "many/few")
		})
	}
}

func BenchmarkActivate(b *testing.B) {
	s := newService(b)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	_, key := s.addLicense(license{})
	for i := 0; b.Loop(); i++ {
		if a := s.activate(key, fmt.Sprint("machine ", i)); a.status != 200 {
			b.Fatal(a.body)
		}
	}
}

func TestVerify_byAPortalJudgesTheLicenceAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{MaxDevices: ptr(2), Entitlements: codeList{"a"}, GraceDays: 1})
		device := s.activate(key, "f").is(200)
		portal, other := s.auth(s.account, scopeLicenses), s.auth(s.account, scopeLeads)
		seen := s.deviceRow(device.text("device", "id"))
		time.Sleep(time.Hour)
		ask := func(code string, valid bool, token string, more ...any) answer {
			t.Helper()
			body := seatBody(append([]any{"license_key", key}, more...)...)
			a := s.post("/widget/license/verify", body, token).is(200)
			if a.text("code") != code || a.json()["valid"] != valid || a.hasToken() || a.json()["device"] != nil {
				t.Fatalf("%s, want %s", a.body, code)
			}
			return a
		}
		whole := ask("valid", true, portal, "nonce", "n", "entitlements", []string{"a"})
		sameText(t, "seats", fmt.Sprint(whole.json()["license"].(map[string]any)["seats"]), "map[free:1 max:2 used:1]")
		ask("entitlement_missing", false, portal, "entitlements", []string{"b"})
		ask("product_mismatch", false, portal, "product", "other")
		ask("device_not_activated", false, portal, "fingerprint", "unknown")
		ask("fingerprint_required", false, other) // it may not read licences
		a := s.license("verify", "", "license_key", key).is(200)
		sameText(t, "without a token", a.text("code"), "fingerprint_required")
		s.verifyLease(device.text("token")).answers("valid")
		if row := s.deviceRow(seen.ID); row.LeaseSeq != seen.LeaseSeq {
			t.Errorf("seq %d, was %d", row.LeaseSeq, seen.LeaseSeq)
		}
		s.sql(`UPDATE licenses SET expires_at = ? WHERE id = ?`, newStamp(time.Now().Add(-time.Minute)).String(), id)
		s.notice()
		grace := ask("grace", true, portal)
		sameText(t, "detail", grace.text("detail"), "The licence has expired; its devices may go on until grace_until.")
		s.must("license", "suspend", id)
		s.notice()
		ask("suspended", false, portal)
		stranger := s.auth(s.addAccount("other"), scopeLicenses)
		ask("not_found", false, stranger)
	})
}
