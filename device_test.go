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
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestActivate_takesASeatAndAnswersWithALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		plan := "pro"
		end := newStamp(time.Now().Add(100 * 24 * time.Hour))
		id, key := s.addLicense(license{Plan: &plan, MaxDevices: ptr(3), ExpiresAt: end, GraceDays: 7, Entitlements: codeList{"kds", "reports"}, Trial: true})
		time.Sleep(90 * time.Second)
		a := s.activate(strings.ToLower(key), "machine", "device", map[string]string{"name": "Kitchen 1", "platform": "linux/arm64", "app_version": "2.4.1"}, "nonce", "n-1", "product", "kds").is(200)
		dev, token := a.text("device", "id"), a.text("token")
		want := fmt.Sprintf(`{"ok":true,"code":"activated","license":{"id":%q,"product":"kds","plan":"pro","kind":"node_locked","status":"active","trial":true,`+
			`"expires_at":%q,"grace_until":%q,"entitlements":["kds","reports"],"seats":{"used":1,"max":3,"free":2}},`+
			`"device":{"id":%q,"name":"Kitchen 1","state":"active"},"token":%q,"token_type":"Bearer","expires_in":1209600,"refresh_after":86400,"nonce":"n-1"}`+"\n",
			id, end, end.after(7*24*time.Hour), dev, token)
		if a.body != want {
			t.Fatalf("body %s\nwant %s", a.body, want)
		}
		now := time.Now()
		hash := fingerprintHash("machine")
		got := s.lease(a)
		wantClaims := claims{Issuer: testBase, Audience: testBase, Subject: s.account, ClientID: dev, Scope: "license:verify", IssuedAt: now.Unix(),
			Expires: now.Add(336 * time.Hour).Unix(), ID: got.ID, License: id, Device: dev, Fingerprint: base64.RawURLEncoding.EncodeToString(hash[:]), Product: "kds",
			Entitlements: []string{"kds", "reports"}, Seq: 1, LicenseEnd: end.Unix(), GraceEnd: end.Add(7 * 24 * time.Hour).Unix(), RefreshAfter: 86400, Nonce: "n-1"}
		if fmt.Sprint(got) != fmt.Sprint(wantClaims) {
			t.Fatalf("claims %+v\nwant   %+v", got, wantClaims)
		}
		d := s.deviceRow(dev)
		if d.State != "active" || !slices.Equal(d.Fingerprint, hash[:]) || *d.Platform != "linux/arm64" || *d.AppVersion != "2.4.1" || d.LeaseSeq != 1 || d.Activations != 1 ||
			d.ActivatedAt != newStamp(now) || d.LastSeenAt != newStamp(now) || d.LeaseKid != s.keys.signer().kid || d.LeaseExpiresAt.Unix() != got.Expires {
			t.Fatalf("row %+v", d)
		}
		l, err := s.store.license(anyAccount, id)
		s.check(err)
		if l.FirstActivatedAt != newStamp(now) || l.UpdatedAt != newStamp(now) {
			t.Fatalf("licence %+v", l)
		}
		if got, want := strings.Join(s.licenseEvents(id), ", "), "license.created command, license.first_activated device, device.activated device"; got != want {
			t.Fatalf("events %s\nwant   %s", got, want)
		}
	})
}

func TestActivate_againTakesNoSecondSeatAndKeepsTheID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(1)})
		first := s.activate(key, "f", "device", map[string]string{"name": "A", "app_version": "1"}).is(200)
		dev := first.text("device", "id")
		time.Sleep(time.Minute)
		second := s.activate(key, "f", "device", map[string]string{"app_version": "2"}).is(200)
		if second.text("code") != "already_active" || second.text("device", "id") != dev || s.lease(second).Seq != 2 || s.count(`SELECT count(*) FROM devices`) != 1 {
			t.Fatalf("again: %s", second.body)
		}
		if d := s.deviceRow(dev); *d.Name != "A" || *d.AppVersion != "2" || d.Activations != 1 || d.LastSeenAt != newStamp(time.Now()) {
			t.Fatalf("row %+v", d)
		}
		byToken := s.post("/widget/license/activate", `{}`, "Authorization: Bearer "+first.text("token")).is(200)
		if byToken.text("code") != "already_active" || byToken.text("device", "id") != dev {
			t.Fatalf("by token: %s", byToken.body)
		}
		s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", "f")).is(200)
		time.Sleep(time.Hour)
		third := s.activate(key, "f").is(200)
		if third.text("code") != "reactivated" || third.text("device", "id") != dev || third.text("device", "name") != "A" {
			t.Fatalf("after deactivating: %s", third.body)
		}
		if d := s.deviceRow(dev); d.Activations != 2 || !d.ReleasedAt.IsZero() || d.ReleasedBy != nil || d.ActivatedAt != newStamp(time.Now()) || d.LeaseSeq != 4 {
			t.Fatalf("row %+v", d)
		}
		want := "license.created command, license.first_activated device, device.activated device, device.released device, device.reactivated device"
		if got := strings.Join(s.licenseEvents(id), ", "); got != want {
			t.Fatalf("events %s\nwant   %s", got, want)
		}
	})
}

func TestActivate_refusesWhatTheContractSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	now := time.Now()
	ago, ahead := newStamp(now.Add(-time.Hour)), newStamp(now.Add(time.Hour))
	closed := s.addAccount("closed")
	type row struct {
		l        license
		set      string // of the licence
		device   string // state of the device "known", which is there then
		status   int
		code     string
		print    string
		moreBody []any
	}
	for name, c := range map[string]row{
		"suspended":                 {set: "state = 'suspended'", status: 403, code: "license_suspended"},
		"revoked":                   {set: "state = 'revoked'", status: 403, code: "license_revoked"},
		"the account is closed":     {l: license{AccountID: closed}, status: 403, code: "license_suspended"},
		"not started":               {l: license{StartsAt: ahead}, status: 403, code: "license_not_started"},
		"expired":                   {l: license{ExpiresAt: ago}, status: 403, code: "license_expired"},
		"expired, a known device":   {l: license{ExpiresAt: ago}, device: "active", print: "known", status: 403, code: "license_expired"},
		"another product":           {status: 403, code: "product_mismatch", moreBody: []any{"product", "other"}},
		"blocked":                   {device: "blocked", print: "known", status: 403, code: "device_blocked"},
		"in grace, new":             {l: license{ExpiresAt: ago, GraceDays: 1}, device: "active", print: "new", status: 403, code: "license_in_grace"},
		"in grace, known":           {l: license{ExpiresAt: ago, GraceDays: 1}, device: "active", print: "known", status: 200},
		"in grace, released before": {l: license{ExpiresAt: ago, GraceDays: 1}, device: "released", print: "known", status: 200},
		"in grace, blocked":         {l: license{ExpiresAt: ago, GraceDays: 1}, device: "blocked", print: "known", status: 403, code: "device_blocked"},
		"the only seat is taken":    {l: license{MaxDevices: ptr(1)}, device: "active", print: "new", status: 409, code: "seat_limit_reached"},
		"a released one took none":  {l: license{MaxDevices: ptr(1)}, device: "released", print: "new", status: 200},
		"a blocked one holds none":  {l: license{MaxDevices: ptr(1)}, device: "blocked", print: "new", status: 200},
		"replacing nobody's device": {status: 422, code: "validation_failed", moreBody: []any{"replace_device_id", newID("dev", now)}},
	} {
		t.Run(name, func(t *testing.T) {
			at := *s
			at.t = t
			id, key := at.addLicense(license{AccountID: c.l.AccountID, MaxDevices: c.l.MaxDevices})
			if c.device != "" {
				dev := at.activate(key, "known").is(200).text("device", "id")
				at.sql(`UPDATE devices SET state = ? WHERE id = ?`, c.device, dev)
			}
			at.sql(`UPDATE licenses SET starts_at = ?, expires_at = ?, grace_days = ? WHERE id = ?`, c.l.StartsAt, c.l.ExpiresAt, c.l.GraceDays, id)
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
			if at.count(`SELECT count(*) + count(*) FILTER (WHERE state = 'active') FROM devices`) != before || at.count(`SELECT count(*) FROM events WHERE type <> 'license.seat_limit_reached'`) != events {
				t.Fatal("a refusal changed something")
			}
		})
	}
	s.activate(newLicenseKey(), "f").is(404, "license_not_found")
	s.activate("an-imported-key-of-nobody", "f").is(404, "license_not_found")
	id, key := s.addLicense(license{})
	dev := s.activate(key, "f").is(200)
	s.sql(`UPDATE license_keys SET retires_at = ? WHERE license_id = ?`, ago, id)
	s.activate(key, "f").is(403, "key_retired")
	s.post("/widget/license/activate", `{}`, "Authorization: Bearer "+dev.text("token")).is(200)
}

func TestActivate_ofADriftedDeviceKeepsItsSeat(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(1)})
	first := s.activate(key, "before the new disk").is(200)
	auth := "Authorization: Bearer " + first.text("token")
	a := s.post("/widget/license/activate", activateBody(key, "after it"), auth).is(200)
	if a.text("device", "id") != first.text("device", "id") || a.text("code") != "already_active" {
		t.Fatal(a.body)
	}
	s.verifyKey(key, "after it").answers("valid")
	s.verifyKey(key, "before the new disk").answers("device_not_activated")
	if got := s.eventTypes(id); !strings.HasSuffix(got, "device.activated device.drifted") {
		t.Fatal(got)
	}
	// The old token is bound to the fingerprint that the device no longer has.
	s.post("/widget/license/activate", `{}`, auth).is(403, "fingerprint_mismatch")
	s.verifyKey(key, "after it").answers("valid")
	// A fingerprint that another device has is no drift.
	_, other := s.addLicense(license{MaxDevices: ptr(2)})
	one := s.activate(other, "1").is(200)
	s.activate(other, "2").is(200)
	s.post("/widget/license/activate", activateBody(other, "2"), "Authorization: Bearer "+one.text("token")).is(403, "fingerprint_mismatch")
	s.post("/widget/license/activate", activateBody(key, "x"), "Authorization: Bearer "+one.text("token")).is(422, "credential_mismatch")
}

func TestActivate_withATokenOfADeviceThatARestoredDatabaseLacks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	var tokens [2]string
	for i, device := range []string{"came back", "never did"} {
		a := s.activate(key, device).is(200)
		tokens[i] = "Authorization: Bearer " + a.text("token")
		s.change(func(t *tx) error {
			_, err := t.exec(`DELETE FROM devices WHERE id = ?`, a.text("device", "id"))
			return err
		})
	}
	s.activate(key, "came back").is(200)
	s.post("/widget/license/activate", `{}`, tokens[0]).is(403, "fingerprint_mismatch")
	s.post("/widget/license/activate", activateBody(key, "came back"), tokens[0]).is(403, "fingerprint_mismatch")
	s.post("/widget/license/activate", activateBody(key, "another"), tokens[1]).is(403, "fingerprint_mismatch")
	if a := s.post("/widget/license/activate", `{}`, tokens[1]).is(200); a.text("code") != "activated" {
		t.Fatal(a.body)
	}
}

func TestSeat_limitNamesTheHoldersMaskedAndIsNotedOnceAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(2)})
		s.activate(key, "first", "device", map[string]string{"name": "One"}).is(200)
		time.Sleep(time.Second)
		s.activate(key, "second").is(200)
		for range 10 {
			time.Sleep(time.Second)
			a := s.activate(key, "third").is(409, "seat_limit_reached")
			body := a.json()
			if got := fmt.Sprint(body["seats"]); got != "map[free:0 max:2 used:2]" {
				t.Fatalf("seats %s", got)
			}
			devices := body["devices"].([]any)
			hash := fingerprintHash("first")
			oldest := devices[len(devices)-1].(map[string]any)
			if len(devices) != 2 || oldest["name"] != "One" || oldest["fingerprint"] != hex.EncodeToString(hash[:4]) {
				t.Fatalf("devices %v", devices)
			}
			noFingerprint(t, a.body, "first", "second")
		}
		limitEvents := func() int {
			return s.count(`SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached' AND subject_id = ?`, id)
		}
		if n := limitEvents(); n != 1 {
			t.Fatalf("%d events", n)
		}
		time.Sleep(time.Hour)
		s.activate(key, "third").is(409, "seat_limit_reached")
		s.activate(key, "fourth").is(409, "seat_limit_reached")
		if n := limitEvents(); n != 2 {
			t.Fatalf("%d events after an hour", n)
		}
	})
}

// noFingerprint checks that a text holds no more of fingerprints than their mask.
func noFingerprint(t *testing.T, text string, fingerprints ...string) {
	t.Helper()
	for _, f := range fingerprints {
		hash := fingerprintHash(f)
		for _, form := range []string{hex.EncodeToString(hash[:5]), base64.RawURLEncoding.EncodeToString(hash[:])[:10], base64.StdEncoding.EncodeToString(hash[:])[:10], `"` + f + `"`} {
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
	if a.text("code") != "activated" || fmt.Sprint(a.json()["license"].(map[string]any)["seats"]) != "map[free:0 max:1 used:1]" {
		t.Fatalf("replacing: %s", a.body)
	}
	if d := s.deviceRow(oldID); d.State != "released" || *d.ReleasedBy != "replacement" || d.ReleasedAt.IsZero() {
		t.Fatalf("the old device: %+v", d)
	}
	const replaced = "Another device has replaced this one and taken its seat; activate it again if a seat is free."
	if a := s.verifyLease(old.text("token")).is(200); a.text("code") != "device_released" || a.text("detail") != replaced {
		t.Errorf("the replaced device was told %s", a.body)
	}
	if a := s.activate(key, "old").is(409, "seat_limit_reached"); a.text("detail") != "Another device has replaced this one, and no other seat is free." {
		t.Errorf("the replaced device was told %s", a.body)
	}
	// Once more: the one that was replaced has no seat to give.
	s.activate(key, "third", "replace_device_id", oldID).is(409, "seat_limit_reached")
	// A device does not replace itself, nor another, while it holds a seat.
	newID := a.text("device", "id")
	if b := s.activate(key, "new", "replace_device_id", newID).is(200); b.text("code") != "already_active" || b.text("device", "state") != "active" {
		t.Fatalf("replacing itself: %s", b.body)
	}
	// The old one comes back in the place of the new one.
	if b := s.activate(key, "old", "replace_device_id", newID).is(200); b.text("code") != "reactivated" || b.text("device", "id") != oldID {
		t.Fatalf("coming back: %s", b.body)
	}
	want := "license.created command, license.first_activated device, device.activated device, device.replaced device, device.activated device, license.seat_limit_reached device, device.replaced device, device.reactivated device"
	if got := strings.Join(s.licenseEvents(id), ", "); got != want {
		t.Fatalf("events %s\nwant   %s", got, want)
	}
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
	if got := fmt.Sprint(a.json()["seats"]); got != "map[free:0 max:2 used:3]" || len(a.json()["devices"].([]any)) != 3 {
		t.Fatalf("refused with %s", a.body)
	}
	if d := s.deviceRow(ids[0]); d.State != "active" {
		t.Fatalf("the device that was to be replaced is %s", d.State)
	}
	if slices.Contains(s.licenseEvents(id), "device.replaced device") {
		t.Fatal("device.replaced was written")
	}
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
	for i, n := range []int{1, 7, 50, 50} {
		kind := []string{"node_locked", kindFloating}[i%2]
		t.Run(fmt.Sprint(kind, " ", n), func(t *testing.T) {
			s := newService(t)
			id, key := s.addLicense(license{MaxDevices: &n, Kind: kind})
			got := crowd(200, func(i int) answer { return s.activate(key, fmt.Sprint("machine ", i)) })
			if got[200] != n || got[409] != 200-n {
				t.Fatalf("statuses %v", got)
			}
			if active := s.count(`SELECT count(*) FROM devices WHERE license_id = ? AND state = 'active'`, id); active != n {
				t.Fatalf("%d active devices for %d seats", active, n)
			}
			if s.count(`SELECT count(*) FROM devices`) != n || s.count(`SELECT count(*) FROM events WHERE type = 'device.activated'`) != n ||
				s.count(`SELECT count(*) FROM events WHERE type = 'license.first_activated'`) != 1 || s.count(`SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached'`) != 1 {
				t.Fatalf("events %v", s.licenseEvents(id))
			}
		})
	}
}

func TestSeat_ofADeviceActivatedByManyAtOnceIsOne(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1)})
	got := crowd(100, func(int) answer { return s.activate(key, "machine") })
	if got[200] != 100 || s.count(`SELECT count(*) FROM devices`) != 1 || s.count(`SELECT lease_seq FROM devices`) != 100 || s.count(`SELECT activations FROM devices`) != 1 {
		t.Fatalf("statuses %v, %d devices, seq %d", got, s.count(`SELECT count(*) FROM devices`), s.count(`SELECT lease_seq FROM devices`))
	}
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
			if got[200] != n || got[409] != 100-n || s.count(`SELECT count(*) FROM devices WHERE state = 'active'`) != n ||
				s.count(`SELECT count(*) FROM devices WHERE released_by = 'replacement'`) != n {
				t.Fatalf("statuses %v, %d active", got, s.count(`SELECT count(*) FROM devices WHERE state = 'active'`))
			}
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
			return s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", f))
		}
		a := s.activate(key, f)
		if a.status == 200 {
			if used := a.json()["license"].(map[string]any)["seats"].(map[string]any)["used"].(float64); used < 1 || used > 3 {
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
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
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
		if n := s.count(`SELECT count(*) FROM devices WHERE state = 'released' AND released_by = 'lease' AND lapses_at IS NULL`); n != 1 {
			t.Fatalf("%d devices were released by their lease", n)
		}
		s.activate(key, "b").is(200)
		s.activate(key, "a").is(409, "seat_limit_reached")
		time.Sleep(time.Hour)
		if a := s.activate(key, "a").is(200); a.text("code") != "reactivated" { // frees the lapsed seat in the same transaction
			t.Fatal(a.body)
		}
		want := "license.created license.first_activated device.activated license.seat_limit_reached license.seat_limit_reached device.released device.activated device.released device.reactivated"
		if got := s.eventTypes(id); got != want {
			t.Fatalf("events %s\nwant   %s", got, want)
		}
	})
}

func TestSeat_floatingIsNeverOutlivedByItsToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 1})
		s.activate(key, "a").is(200)
		time.Sleep(30 * time.Second)
		for _, body := range []string{activateBody(key, "a"), `{"license_key":"` + key + `","fingerprint":"a","nonce":"n"}`} {
			c, err := s.keys.verify(s.post("/widget/license/verify", body).is(200).text("token"))
			s.check(err)
			var at stamp
			s.check(s.store.one(`SELECT lapses_at FROM devices`, nil, &at))
			if c.Expires != at.Unix() || c.Seq != 1 {
				t.Fatalf("the token holds until %d, the seat until %d", c.Expires, at.Unix())
			}
		}
	})
}

func TestSeat_nodeLockedOutlivesItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
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
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(2), Entitlements: codeList{"a", "b"}})
		act := s.activate(key, "f", "device", map[string]string{"name": "Till"}).is(200)
		lic := fmt.Sprintf(`{"id":%q,"product":"kds","plan":null,"kind":"node_locked","status":"active","trial":false,"expires_at":null,"grace_until":null,"entitlements":["a","b"],"seats":{"used":1,"max":2,"free":1}}`, id)
		dev := fmt.Sprintf(`{"id":%q,"name":"Till","state":"active"}`, act.text("device", "id"))
		want := func(code, license, device, tail string) string {
			return fmt.Sprintf(`{"valid":%v,"code":%q,"detail":%q,"checked_at":%q,"nonce":"n","license":%s,"device":%s%s}`+"\n",
				code == "valid", code, verdictDetails[code], newStamp(time.Now()), license, device, tail)
		}
		for name, c := range map[string]struct{ got, want string }{
			"by token": {s.verifyLease(act.text("token"), "entitlements", []string{"b"}, "product", "kds").answers("valid").body,
				strings.Replace(want("valid", lic, dev, `,"refresh_after":86400`), `"nonce":"n",`, "", 1)},
			"no device":    {s.post("/widget/license/verify", seatBody("license_key", key, "nonce", "n")).body, want("fingerprint_required", lic, "null", "")},
			"a new device": {s.verifyKey(key, "new", "nonce", "n").body, want("device_not_activated", lic, "null", "")},
			"missing":      {s.verifyKey(key, "f", "nonce", "n", "entitlements", []string{"a", "c"}).body, want("entitlement_missing", lic, dev, "")},
			"unknown key":  {s.verifyKey(newLicenseKey(), "f", "nonce", "n").body, want("not_found", "null", "null", "")},
			"malformed":    {s.verifyKey("WRONG", "f", "nonce", "n").body, want("key_malformed", "null", "null", "")},
		} {
			if c.got != c.want {
				t.Errorf("%s: %s\nwant %s", name, c.got, c.want)
			}
		}
		if s.count(`SELECT count(*) FROM devices`) != 1 {
			t.Error("verify took a seat")
		}
	})
}

func TestVerify_answersAboutEveryStateOfALicence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		now := time.Now()
		ago, ahead := newStamp(now.Add(-time.Hour)), newStamp(now.Add(time.Hour))
		for code, change := range map[string]string{
			"revoked":             `UPDATE licenses SET state = 'revoked' WHERE id = ?1`,
			"suspended":           `UPDATE licenses SET state = 'suspended' WHERE id = ?1`,
			"not_started":         `UPDATE licenses SET starts_at = '` + ahead.String() + `' WHERE id = ?1`,
			"expired":             `UPDATE licenses SET expires_at = '` + ago.String() + `' WHERE id = ?1`,
			"grace":               `UPDATE licenses SET expires_at = '` + ago.String() + `', grace_days = 1 WHERE id = ?1`,
			"device_blocked":      `UPDATE devices SET state = 'blocked' WHERE license_id = ?1`,
			"device_released":     `UPDATE devices SET state = 'released' WHERE license_id = ?1`,
			"product_mismatch":    `UPDATE licenses SET product = 'other' WHERE id = ?1`,
			"entitlement_missing": `UPDATE licenses SET entitlements = '["x"]' WHERE id = ?1`,
			"valid":               `UPDATE licenses SET plan = 'x' WHERE id = ?1`,
		} {
			id, key := s.addLicense(license{Entitlements: codeList{"a"}, LeaseHours: 336})
			lease := s.activate(key, "f").is(200).text("token")
			s.sql(change, id)
			for _, a := range []answer{s.verifyKey(key, "f", "product", "kds", "entitlements", []string{"a"}), s.verifyLease(lease, "nonce", "n", "product", "kds", "entitlements", []string{"a"})} {
				a.answers(code)
				if valid := code == "valid" || code == "grace"; a.hasToken() != valid {
					t.Errorf("%s: %s", code, a.body)
				} else if c := a.json(); valid && (int64(c["expires_in"].(float64)) != s.lease(a).Expires-s.lease(a).IssuedAt) {
					t.Errorf("%s: expires_in %v", code, c["expires_in"])
				}
				if a.json()["license"] == nil || a.text("device", "id") == "" {
					t.Errorf("%s: %s", code, a.body)
				}
			}
		}
		id, key := s.addLicense(license{})
		lease := s.activate(key, "f").is(200).text("token")
		s.sql(`UPDATE license_keys SET retires_at = ? WHERE license_id = ?`, ago, id)
		s.verifyKey(key, "f").answers("key_retired")
		s.verifyLease(lease).answers("valid")
		s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", "f")).is(403, "key_retired")

		second := s.addAccount("second")
		_, key = s.addLicense(license{AccountID: second})
		lease = s.activate(key, "f").is(200).text("token")
		s.change(func(t *tx) error { return t.closeAccount(second) })
		s.verifyKey(key, "f").answers("suspended")
		s.verifyLease(lease).answers("suspended")
		s.post("/widget/license/activate", `{}`, "Authorization: Bearer "+lease).is(403, "license_suspended")
	})
}

func TestVerify_needsATokenAndABodyThatAgree(t *testing.T) {
	t.Parallel()
	s := newService(t)
	oneID, one := s.addLicense(license{MaxDevices: ptr(5)})
	twoID, two := s.addLicense(license{MaxDevices: ptr(5)})
	lease := s.activate(one, "f").is(200)
	auth := "Authorization: Bearer " + lease.text("token")
	// The licence.
	s.activate(two, "f").is(200)
	for _, path := range []string{"verify", "activate", "deactivate"} {
		s.post("/widget/license/"+path, seatBody("license_key", two, "fingerprint", "f"), auth).is(422, "credential_mismatch")
		s.post("/widget/license/"+path, seatBody("license_key", two), auth).is(422, "credential_mismatch")
		s.post("/widget/license/"+path, seatBody("license_key", one, "fingerprint", "f"), auth).is(200)
		s.activate(one, "f").is(200)
	}
	// The device.
	s.verifyLease(lease.text("token"), "fingerprint", "g").answers("fingerprint_mismatch")
	s.verifyLease(lease.text("token"), "fingerprint", "f").answers("valid")
	s.post("/widget/license/deactivate", seatBody("fingerprint", "g"), auth).is(403, "fingerprint_mismatch")
	s.sql(`UPDATE licenses SET state = 'suspended' WHERE id = ?`, oneID)
	s.post("/widget/license/deactivate", seatBody("fingerprint", "g"), auth).is(403, "fingerprint_mismatch")
	if d := s.deviceRow(lease.text("device", "id")); d.State != "active" {
		t.Fatalf("the device is %s", d.State)
	}
	if n := s.count(`SELECT count(*) FROM devices WHERE license_id = ?`, twoID); n != 1 {
		t.Fatalf("%d devices of the other licence", n)
	}
}

func TestVerify_comparesAFingerprintWithTheTokenEvenWhenItsRowIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	lease := s.activate(key, "f").is(200).text("token")
	s.sql(`DELETE FROM devices`) // as in a database that was restored
	s.verifyLease(lease).answers("device_not_activated")
	s.verifyLease(lease, "fingerprint", "g").answers("fingerprint_mismatch")
	s.post("/widget/license/activate", `{}`, "Authorization: Bearer "+lease).is(200)
	s.sql(`DELETE FROM devices`)
	s.sql(`DELETE FROM license_keys`)
	s.sql(`DELETE FROM licenses`)
	s.verifyLease(lease).answers("not_found")
	s.post("/widget/license/activate", `{}`, "Authorization: Bearer "+lease).is(404, "license_not_found")
}

func TestVerify_namingNoLicenceIsNoAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	bearer := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	for path, missing := range map[string]string{"verify": "license_key", "activate": "license_key", "deactivate": "license_key"} {
		for _, headers := range [][]string{nil, {bearer}} {
			a := s.post("/widget/license/"+path, seatBody("fingerprint", "f"), headers...).is(422, "validation_failed")
			if !strings.Contains(a.body, `"pointer":"#/`+missing+`"`) || strings.Contains(a.body, `"valid"`) {
				t.Fatalf("%s: %s", path, a.body)
			}
		}
	}
	for _, path := range []string{"activate", "deactivate"} {
		if a := s.post("/widget/license/"+path, seatBody("license_key", key)).is(422, "validation_failed"); !strings.Contains(a.body, `"pointer":"#/fingerprint"`) {
			t.Fatalf("%s: %s", path, a.body)
		}
	}
}

func TestVerify_withAFreshTokenWritesOnceAMinuteAndGivesNoNewOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		act := s.activate(key, "f", "device", map[string]string{"app_version": "1"}).is(200)
		dev, lease := act.text("device", "id"), act.text("token")
		written := s.store.committedJobs.Load()
		for range 59 {
			time.Sleep(time.Second)
			if a := s.verifyLease(lease, "app_version", "2").answers("valid"); a.hasToken() {
				t.Fatalf("a new token: %s", a.body)
			}
		}
		if got := s.store.committedJobs.Load(); got != written {
			t.Fatalf("%d writes within a minute", got-written)
		}
		time.Sleep(time.Second)
		for minute := int64(1); minute <= 5; minute++ {
			for range 12 {
				if a := s.verifyLease(lease, "app_version", "2").answers("valid"); a.hasToken() {
					t.Fatalf("a new token: %s", a.body)
				}
				time.Sleep(5 * time.Second)
			}
			if got := s.store.committedJobs.Load(); got != written+minute {
				t.Fatalf("%d writes in %d minutes", got-written, minute)
			}
		}
		d := s.deviceRow(dev)
		if d.LeaseSeq != 1 || d.PresentedSeq != 1 || *d.AppVersion != "2" || time.Since(d.LastSeenAt.Time) != time.Minute {
			t.Fatalf("row %+v", d)
		}
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
	if c := s.lease(a); c.Seq != 1 || c.Nonce != "n" || a.text("device", "id") != dev {
		t.Fatalf("claims %+v", c)
	}
	if !strings.Contains(s.log.String(), "not recorded as seen") {
		t.Errorf("log %q", s.log)
	}
	s.check(lock.Rollback())
	s.change(func(*tx) error { return nil }) // comes after what verify gave up
	if d := s.deviceRow(dev); d.LeaseSeq != 1 || d.LastSeenAt != ago {
		t.Fatalf("what verify gave up was written: %+v", d)
	}
	if c := s.lease(s.verifyKey(key, "f").answers("valid")); c.Seq != 2 {
		t.Fatalf("afterwards: %+v", c)
	}
}

func TestDeactivate_givesTheSeatBackOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(1)})
		lease := s.activate(key, "f").is(200)
		byKey := func(key, f string) answer {
			return s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", f))
		}
		const released, nothing = `{"ok":true,"released":true}` + "\n", `{"ok":true,"released":false}` + "\n"
		if a := byKey(key, "unknown").is(200); a.body != nothing {
			t.Fatalf("an unknown device: %s", a.body)
		}
		if a := byKey(key, "f").is(200); a.body != released {
			t.Fatalf("by key: %s", a.body)
		}
		if d := s.deviceRow(lease.text("device", "id")); d.State != "released" || *d.ReleasedBy != "device" || d.ReleasedAt != newStamp(time.Now()) {
			t.Fatalf("row %+v", d)
		}
		written := s.count(`SELECT count(*) FROM events`)
		for range 3 {
			if a := byKey(key, "f").is(200); a.body != nothing {
				t.Fatalf("again: %s", a.body)
			}
			if a := s.post("/widget/license/deactivate", `{}`, "Authorization: Bearer "+lease.text("token")).is(200); a.body != nothing {
				t.Fatalf("again, by token: %s", a.body)
			}
		}
		if s.count(`SELECT count(*) FROM events`) != written {
			t.Fatal("nothing happened, and an event was written")
		}
		byKey(newLicenseKey(), "f").is(404, "license_not_found")
		for _, change := range []string{"state = 'suspended'", "state = 'revoked'", "state = 'active', expires_at = '1999-01-01T00:00:00Z'", "expires_at = NULL, starts_at = '2999-01-01T00:00:00Z'"} {
			s.sql(`UPDATE licenses SET state = 'active', expires_at = NULL, starts_at = NULL`)
			lease := s.activate(key, "f").is(200)
			s.sql(`UPDATE licenses SET ` + change)
			if a := s.post("/widget/license/deactivate", `{}`, "Authorization: Bearer "+lease.text("token")).is(200); a.body != released {
				t.Fatalf("%s: %s", change, a.body)
			}
		}
		s.sql(`UPDATE licenses SET starts_at = NULL`)
		s.activate(key, "f").is(200)
		s.sql(`UPDATE devices SET state = 'blocked'`)
		if a := byKey(key, "f").is(200); a.body != nothing {
			t.Fatalf("a blocked device: %s", a.body)
		}
		if events := s.licenseEvents(id); events[3] != "device.released device" {
			t.Fatalf("events %v", events)
		}
	})
}

func TestDevice_isReleasedAndBlockedByTheOperator(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{MaxDevices: ptr(1)})
	lease := s.activate(key, "f").is(200)
	dev := lease.text("device", "id")
	for _, step := range []struct{ command, state, answer string }{
		{"block", "blocked", "device_blocked"}, {"block", "blocked", "device_blocked"}, {"release", "released", "device_released"}, {"release", "released", "device_released"},
	} {
		if _, err := s.command("device", step.command, dev); err != nil {
			t.Fatal(err)
		}
		if d := s.deviceRow(dev); d.State != step.state {
			t.Fatalf("after %s: %s", step.command, d.State)
		}
		s.verifyLease(lease.text("token")).answers(step.answer)
	}
	if d := s.deviceRow(dev); *d.ReleasedBy != "operator" {
		t.Fatalf("released by %s", *d.ReleasedBy)
	}
	if a := s.activate(key, "f").is(200); a.text("code") != "reactivated" {
		t.Fatalf("let in again: %s", a.body)
	}
	for _, step := range []struct{ command, answer string }{{"suspend", "suspended"}, {"reinstate", "valid"}, {"suspend", "suspended"}, {"revoke", "revoked"}} {
		if _, err := s.command("license", step.command, id, "-reason", "because"); err != nil {
			t.Fatal(err)
		}
		s.verifyKey(key, "f").answers(step.answer)
	}
	for _, command := range []string{"suspend", "reinstate", "revoke"} {
		_, err := s.command("license", command, id)
		oneLine(t, err, "revoked", command)
	}
	want := "license.created command, license.first_activated device, device.activated device, device.blocked command:U, device.released command:U, device.reactivated device, " +
		"license.suspended command:U, license.reinstated command:U, license.suspended command:U, license.revoked command:U"
	want = strings.ReplaceAll(want, "command:U", thisActor(t))
	if got := strings.Join(s.licenseEvents(id), ", "); got != want {
		t.Fatalf("events %s\nwant   %s", got, want)
	}
	if n := s.count(`SELECT count(*) FROM events WHERE json_extract(data, '$.reason') = 'because'`); n != 4 {
		t.Fatalf("%d events with a reason", n)
	}
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
	auth := "Authorization: Bearer " + token
	a := s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth).is(204)
	if a.body != "" || a.header.Get("RateLimit") == "" {
		t.Fatalf("%q %v", a.body, a.header)
	}
	d := s.deviceRow(dev)
	if d.State != "released" || *d.ReleasedBy != "portal" || d.ReleasedAt.IsZero() {
		t.Fatalf("row %+v", d)
	}
	s.verifyLease(lease.text("token")).answers("device_released")
	want := "device.released token " + c.ID
	if events := s.licenseEvents(id); events[len(events)-1] != want {
		t.Fatalf("events %v", events)
	}
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'device.released' AND json_extract(data, '$.device_id') = ? AND subject_id = ? AND account_id = ?`, dev, id, s.account); n != 1 {
		t.Fatalf("%d events", n)
	}
	// Once more changes nothing, and the seat is free.
	s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth).is(204)
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'device.released'`); n != 1 {
		t.Fatalf("%d events after the second time", n)
	}
	s.activate(key, "g").is(200)
	for _, unknown := range []string{newID("dev", time.Now()), "dev_1", "x"} {
		s.do("DELETE", "/licenses/"+id+"/devices/"+unknown, "", auth).is(404, "not_found")
	}
	// Blocked stays blocked: that is the operator's word.
	s.sql(`UPDATE devices SET state = 'blocked' WHERE id = ?`, dev)
	s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth).is(204)
	if s.deviceRow(dev).State != "blocked" {
		t.Fatal("a portal let a blocked device in")
	}
	s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", "Authorization: Bearer "+s.token(s.account, scopeLicenses)).challenged(403, "insufficient_scope", scopeChallenge(scopeDevices))
	s.do("DELETE", "/licenses/"+id, "", auth).is(405, "method_not_allowed")
}

func TestDevice_isShownMasked(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{})
	auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses+" "+scopeDevices)
	dev := s.activate(key, "machine-1", "device", map[string]string{"name": "Till", "platform": "linux", "app_version": "3"}).is(200).text("device", "id")
	s.activate(key, "machine-2").is(200)
	s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", "machine-2")).is(200)
	a := s.get("/licenses/"+id+"/devices", auth).is(200)
	noFingerprint(t, a.body, "machine-1", "machine-2")
	row := s.deviceRow(dev)
	want := fmt.Sprintf(`{"id":%q,"name":"Till","state":"active","platform":"linux","app_version":"3","fingerprint":"%x","activated_at":%q,"last_seen_at":%q,"released_at":null,"released_by":null,"clone_suspected_at":null}`,
		dev, row.Fingerprint[:4], row.ActivatedAt, row.LastSeenAt)
	if !strings.Contains(a.body, want) || !strings.Contains(a.body, `"state":"released"`) || !strings.Contains(a.body, `"released_by":"device"`) {
		t.Fatalf("devices %s\nwant %s", a.body, want)
	}
	for _, path := range []string{"/licenses", "/licenses/" + id} {
		noFingerprint(t, s.get(path, auth).is(200).body, "machine-1", "machine-2")
	}
	noFingerprint(t, s.log.String(), "machine-1", "machine-2")
}

// Whatever a device or a widget sends is answered and never a fault of ours; and what
// is refused changes nothing.
func FuzzDeviceBody(f *testing.F) {
	paths := []string{"/widget/license/activate", "/widget/license/verify", "/widget/license/deactivate", "/widget/events"}
	s := newService(f, withoutAddressLimits)
	_, key := s.addLicense(license{MaxDevices: ptr(2)})
	widget := s.addWidget(s.account)
	lease := s.activate(key, "first").is(200).text("token")
	for i, body := range []string{
		`{"license_key":"` + key + `","fingerprint":"a","device":{"name":"Till 1","platform":"linux","app_version":"1"},"nonce":"n","replace_device_id":"dev_00000000000000000000000000"}`,
		`{"license_key":"` + key + `","fingerprint":"a","product":"kds","entitlements":["a","b"],"nonce":"n"}`,
		`{"license_key":"` + strings.ToLower(key) + `","fingerprint":"\ud83d\ude00\u0000"}`,
		`{"widget":"` + widget + `","events":[{"type":"view"},{"type":"click","item":"Rösti","page":"/menu"},{"type":"order","item":"x"}]}`,
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
			return s.count(`SELECT (SELECT count(*) FROM devices) + (SELECT count(*) FROM events) + (SELECT coalesce(sum(views + clicks + orders), 0) FROM widget_counts) + (SELECT count(*) FROM item_counts)`)
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
	return manyRows(n) + `INSERT INTO devices (id, license_id, fingerprint, state, activated_at, last_seen_at, lapses_at)
		SELECT printf('dev_%026d', i), '` + license + `', randomblob(32), '` + state + `', '2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z', NULL FROM n`
}

func TestSeats_areCountedAlsoWhenTheShellChangesDevices(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	one, key := s.addLicense(license{})
	other, _ := s.addLicense(license{})
	auth := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
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
			SELECT 'dev_7', license_id, randomblob(32), 'released', activated_at, last_seen_at FROM devices WHERE id LIKE '%4'`, 3, 1},
		{`DELETE FROM devices WHERE id = 'dev_7'`, 3, 1},
		{`DELETE FROM devices WHERE license_id = '` + one + `'`, 0, 1},
	} {
		raw(t, s.store.path, step.statement)
		for id, want := range map[string]int{one: step.one, other: step.other} {
			shown := s.get("/licenses/"+id, auth).is(200).json()["seats"].(map[string]any)["used"]
			if view := s.count(`SELECT seats_used FROM v_licenses WHERE id = ?`, id); fmt.Sprint(shown) != fmt.Sprint(want) || view != want {
				t.Fatalf("after %s: %v seats shown, %d in the view, want %d", step.statement, shown, view, want)
			}
		}
		if faults, err := checkFile(s.store.path); err != nil || len(faults) > 0 {
			t.Fatalf("after %s: %q, %v", step.statement, faults, err)
		}
	}
	s.activate(key, "a").is(200)
	raw(t, s.store.path, `PRAGMA foreign_keys = 1; DELETE FROM devices; DELETE FROM license_keys; DELETE FROM licenses`)
	if n := s.count(`SELECT count(*) FROM license_seats`); n > 0 {
		t.Errorf("%d licences that are gone still have seats", n)
	}
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
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached'`); n != 1 {
		t.Errorf("%d events", n)
	}
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
		both[i] = crowded{s, key, "Authorization: Bearer " + s.token(s.account, scopeAdmin), id}
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
