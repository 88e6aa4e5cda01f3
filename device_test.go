package main

import (
	"cmp"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// seatBody makes a body of names and values, in turn.
func seatBody(pairs ...any) string {
	parts := []string{}
	for i := 0; i < len(pairs); i += 2 {
		value, _ := json.Marshal(pairs[i+1])
		parts = append(parts, fmt.Sprintf("%q:%s", pairs[i], value))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// activateBody is a body of activate or deactivate.
func activateBody(key, fingerprint string) string {
	return seatBody("license_key", key, "fingerprint", fingerprint)
}

// activate activates a fingerprint by key; more are members of the body.
func (s *service) activate(key, fingerprint string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/activate", seatBody(append([]any{"license_key", key, "fingerprint", fingerprint}, more...)...))
}

// verifyLease verifies by device token; more are members of the body.
func (s *service) verifyLease(token string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/verify", seatBody(more...), "Authorization: Bearer "+token)
}

// verifyKey verifies by key; more are members of the body.
func (s *service) verifyKey(key, fingerprint string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/verify", seatBody(append([]any{"license_key", key, "fingerprint", fingerprint}, more...)...))
}

// answers checks a verify answer's code and validity.
func (a answer) answers(code string) answer {
	a.t.Helper()
	a.is(200)
	body := a.json()
	if body["code"] != code || body["valid"] != (code == "valid" || code == "grace") || body["detail"] != verdictDetails[code] {
		a.t.Fatalf("want %s: %s", code, a.body)
	}
	return a
}

func (a answer) hasToken() bool { _, ok := a.json()["token"]; return ok }

// lease reads the claims of an answer's token.
func (s *service) lease(a answer) claims {
	s.t.Helper()
	c, err := s.server.keys.Load().verify(a.text("token"))
	s.check(err)
	return c
}

func (s *service) deviceRow(id string) *device {
	s.t.Helper()
	d, err := s.store.device("", id)
	s.check(err)
	return d
}

// licenseEvents are a licence's events in order, as "type actor".
func (s *service) licenseEvents(id string) (all []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT type || ' ' || actor FROM events WHERE license_id = ? ORDER BY seq`, []any{id}, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		all = append(all, line)
		return err
	}))
	return all
}

func (s *service) sql(query string, args ...any) {
	s.t.Helper()
	s.change(func(t *tx) error {
		n, err := t.exec(query, args...)
		if err == nil && n == 0 {
			err = fmt.Errorf("%s changed nothing", query)
		}
		return err
	})
}

func TestActivatingTakesASeatAndAnswersWithALease(t *testing.T) {
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
		l, err := s.store.license("", id)
		s.check(err)
		if l.FirstActivatedAt != newStamp(now) || l.UpdatedAt != newStamp(now) {
			t.Fatalf("licence %+v", l)
		}
		if got, want := strings.Join(s.licenseEvents(id), ", "), "license.created command, license.first_activated device, device.activated device"; got != want {
			t.Fatalf("events %s\nwant   %s", got, want)
		}
	})
}

func TestActivatingAgainTakesNoSecondSeatAndKeepsTheID(t *testing.T) {
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

func TestActivateRefusesWhatTheContractSays(t *testing.T) {
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

func TestALicenseKeyWithAControlCharacterIsAWrongMember(t *testing.T) {
	s := newService(t)
	_, key := s.addLicense(license{})
	for _, control := range []string{"\n", "\t", "\r\n", "\x00", "\u0085"} {
		for _, path := range []string{"activate", "verify", "deactivate"} {
			a := s.post("/widget/license/"+path, seatBody("license_key", key+control, "fingerprint", "f")).is(422, "validation_failed")
			if !strings.Contains(a.body, `"pointer":"#/license_key","code":"control_character"`) {
				t.Fatalf("%s %q: %s", path, control, a.body)
			}
		}
	}
}

func TestUnknownKeysAreLimitedByAddressAndKnownOnesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		lease := s.activate(key, "f").is(200).text("token")
		for i := range 30 {
			switch i % 3 {
			case 0:
				s.verifyKey(newLicenseKey(), "f").answers("not_found")
			case 1:
				s.activate(newLicenseKey(), "f").is(404, "license_not_found")
			default:
				s.post("/widget/license/deactivate", seatBody("license_key", newLicenseKey(), "fingerprint", "f")).is(404, "license_not_found")
			}
		}
		for _, path := range []string{"verify", "activate", "deactivate"} {
			a := s.post("/widget/license/"+path, seatBody("license_key", newLicenseKey(), "fingerprint", "f")).is(429, "rate_limited")
			if a.header.Get("Retry-After") != "2" || strings.Contains(a.body, "valid\"") {
				t.Fatalf("%s: Retry-After %q, %s", path, a.header.Get("Retry-After"), a.body)
			}
		}
		s.verifyKey(key, "f").answers("valid")
		s.activate(key, "f").is(200)
		s.verifyLease(lease).answers("valid")
		time.Sleep(2 * time.Second)
		s.verifyKey(newLicenseKey(), "f").answers("not_found")
		s.verifyKey(newLicenseKey(), "f").is(429, "rate_limited")
	})
}

func TestASeatLimitNamesTheHoldersMaskedAndIsNotedOnceAnHour(t *testing.T) {
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
			return s.count(`SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached' AND license_id = ?`, id)
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

func TestReplacingADeviceFreesItsSeatAndTakesIt(t *testing.T) {
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
	s.verifyLease(old.text("token")).answers("device_released")
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

func TestAReplacementThatIsRefusedReleasesNobody(t *testing.T) {
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

func TestTwoHundredCallersAndNSeatsGiveNDevices(t *testing.T) {
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

func TestOneDeviceActivatedByManyAtOnceIsOneDevice(t *testing.T) {
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1)})
	got := crowd(100, func(int) answer { return s.activate(key, "machine") })
	if got[200] != 100 || s.count(`SELECT count(*) FROM devices`) != 1 || s.count(`SELECT lease_seq FROM devices`) != 100 || s.count(`SELECT activations FROM devices`) != 1 {
		t.Fatalf("statuses %v, %d devices, seq %d", got, s.count(`SELECT count(*) FROM devices`), s.count(`SELECT lease_seq FROM devices`))
	}
}

func TestManyWhoReplaceTheSameDevicesGetTheirSeatsOnly(t *testing.T) {
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

func TestComingAndGoingAtOnceNeverTakesMoreSeatsThanThereAre(t *testing.T) {
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

func TestAnActivationIsReplayedWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{MaxDevices: ptr(1)})
		body := seatBody("license_key", key, "fingerprint", "f", "nonce", "n")
		first := s.post("/widget/license/activate", body, "Idempotency-Key: k1").is(200)
		time.Sleep(time.Hour)
		for _, header := range []string{"k1", `"k1"`} {
			again := s.post("/widget/license/activate", body, "Idempotency-Key: "+header).is(200)
			if again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
				t.Fatalf("replayed %s\nfirst    %s", again.body, first.body)
			}
		}
		if s.count(`SELECT lease_seq FROM devices`) != 1 {
			t.Fatal("a replay took another lease")
		}
		s.post("/widget/license/activate", seatBody("license_key", key, "fingerprint", "f"), "Idempotency-Key: k1").is(422, "idempotency_key_reused")
		// Another device's key is another key.
		other := s.post("/widget/license/activate", seatBody("license_key", key, "fingerprint", "g"), "Idempotency-Key: k1").is(409, "seat_limit_reached")
		if other.header.Get("Idempotency-Replayed") != "" {
			t.Fatal("replayed to another device")
		}
		// A refusal is not kept.
		s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", "f")).is(200)
		s.post("/widget/license/activate", seatBody("license_key", key, "fingerprint", "g"), "Idempotency-Key: k1").is(200)
		if s.count(`SELECT count(*) FROM idempotency WHERE instr(CAST(answer AS TEXT), 'eyJ') > 0 OR instr(CAST(answer AS TEXT), ?) > 0`, key) != 0 {
			t.Fatal("a token lies open in the file")
		}
	})
}

func TestAnEndThatCountsFromTheFirstActivationIsInItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{DurationDays: ptr(30), ExpiryBasis: "first_activation", GraceDays: 2})
		time.Sleep(100 * 24 * time.Hour)
		end := time.Now().Add(30 * 24 * time.Hour)
		a := s.activate(key, "f").is(200)
		if c := s.lease(a); c.LicenseEnd != end.Unix() || c.GraceEnd != end.Add(48*time.Hour).Unix() || a.text("license", "expires_at") != newStamp(end).String() {
			t.Fatalf("lexp %d, want %d: %s", c.LicenseEnd, end.Unix(), a.body)
		}
		time.Sleep(24 * time.Hour)
		s.activate(key, "g").is(200)
		if l, err := s.store.license("", id); err != nil || l.ExpiresAt.Unix() != end.Unix() {
			t.Fatalf("the second activation moved the end: %v %v", l.ExpiresAt, err)
		}
	})
}

func TestVerifySaysEverythingItKnows(t *testing.T) {
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

func TestVerifyAnswersAboutEveryStateOfALicence(t *testing.T) {
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

func TestATokenAndABodyMustAgree(t *testing.T) {
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
	s.post("/widget/license/deactivate", seatBody("fingerprint", "g"), auth).is(422, "credential_mismatch")
	s.sql(`UPDATE licenses SET state = 'suspended' WHERE id = ?`, oneID)
	s.post("/widget/license/deactivate", seatBody("fingerprint", "g"), auth).is(422, "credential_mismatch")
	if d := s.deviceRow(lease.text("device", "id")); d.State != "active" {
		t.Fatalf("the device is %s", d.State)
	}
	if n := s.count(`SELECT count(*) FROM devices WHERE license_id = ?`, twoID); n != 1 {
		t.Fatalf("%d devices of the other licence", n)
	}
}

func TestAFingerprintIsHeldAgainstTheTokenEvenWhenItsRowIsGone(t *testing.T) {
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

func TestACallThatNamesNoLicenceIsNoAnswer(t *testing.T) {
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

func TestVerifyWithAFreshTokenWritesOnceAMinuteAndGivesNoNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		act := s.activate(key, "f", "device", map[string]string{"app_version": "1"}).is(200)
		dev, lease := act.text("device", "id"), act.text("token")
		written := s.store.written.Load()
		for range 59 {
			time.Sleep(time.Second)
			if a := s.verifyLease(lease, "app_version", "2").answers("valid"); a.hasToken() {
				t.Fatalf("a new token: %s", a.body)
			}
		}
		if got := s.store.written.Load(); got != written {
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
			if got := s.store.written.Load(); got != written+minute {
				t.Fatalf("%d writes in %d minutes", got-written, minute)
			}
		}
		d := s.deviceRow(dev)
		if d.LeaseSeq != 1 || d.PresentedSeq != 1 || *d.AppVersion != "2" || time.Since(d.LastSeenAt.Time) != time.Minute {
			t.Fatalf("row %+v", d)
		}
	})
}

func TestALeasePastItsRefreshIsFollowedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{LeaseHours: 10})
		act := s.activate(key, "f").is(200)
		dev, first := act.text("device", "id"), act.text("token")
		time.Sleep(5*time.Hour - time.Second)
		if a := s.verifyLease(first).answers("valid"); a.hasToken() || a.json()["refresh_after"] != 18000.0 {
			t.Fatalf("a second before its refresh: %s", a.body)
		}
		time.Sleep(time.Second)
		second := s.verifyLease(first).answers("valid")
		c := s.lease(second)
		if c.Seq != 2 || c.IssuedAt != time.Now().Unix() || c.Expires != time.Now().Add(10*time.Hour).Unix() || second.json()["expires_in"] != 36000.0 {
			t.Fatalf("the next lease: %+v, %s", c, second.body)
		}
		// Whoever goes on with the old one gets the same for a minute, without a write.
		written := s.store.written.Load()
		for range 59 {
			time.Sleep(time.Second)
			again := s.verifyLease(first).answers("valid")
			if again.text("token") != second.text("token") || again.json()["expires_in"].(float64) != float64(c.Expires-time.Now().Unix()) {
				t.Fatalf("within a minute: %s", again.body)
			}
		}
		if s.store.written.Load() != written {
			t.Fatal("that wrote")
		}
		time.Sleep(time.Second)
		third := s.verifyLease(first).answers("valid")
		if c := s.lease(third); c.Seq != 3 {
			t.Fatalf("after a minute: seq %d", c.Seq)
		}
		if d := s.deviceRow(dev); d.LeaseSeq != 3 || d.PresentedSeq != 1 {
			t.Fatalf("row %+v", d)
		}
		// The highest number that was shown is kept.
		time.Sleep(time.Minute)
		s.verifyLease(third.text("token")).answers("valid")
		time.Sleep(time.Minute)
		s.verifyLease(second.text("token")).answers("valid")
		if d := s.deviceRow(dev); d.PresentedSeq != 3 || d.State != "active" {
			t.Fatalf("row %+v", d)
		}
	})
}

func TestADeviceWithoutATokenGetsTheVerySameForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		time.Sleep(10 * time.Second) // the licence is older than its first activation
		lease := s.activate(key, "f").is(200).text("token")
		written := s.store.written.Load()
		for range 5 {
			if a := s.verifyKey(key, "f").answers("valid"); a.text("token") != lease {
				t.Fatalf("another token: %+v", s.lease(a))
			}
			time.Sleep(10 * time.Second)
		}
		if s.store.written.Load() != written {
			t.Fatal("that wrote")
		}
		time.Sleep(10 * time.Second)
		a := s.verifyKey(key, "f").answers("valid")
		if c := s.lease(a); c.Seq != 2 {
			t.Fatalf("after a minute: %+v", c)
		}
		// A licence that was changed shows in the next answer.
		s.sql(`UPDATE licenses SET entitlements = '["new"]'`)
		b := s.verifyKey(key, "f").answers("valid")
		if c := s.lease(b); c.Seq != 2 || !slices.Equal(c.Entitlements, []string{"new"}) {
			t.Fatalf("after a change: %+v", c)
		}
	})
}

func TestATokenFollowsItsRowsHoweverTheyWereChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(2), LeaseHours: 2})
		s.activate(key, "f").is(200)
		now := time.Now()
		for _, change := range []struct {
			sql     string
			seq     int64
			expires time.Time
		}{
			{`UPDATE licenses SET expires_at = strftime('%Y-%m-%dT%H:%M:%SZ', 946684800 + 3600, 'unixepoch')`, 1, now.Add(time.Hour)}, // earlier: synctest's clock begins in 2000
			{`UPDATE licenses SET product = 'pos'`, 1, now.Add(time.Hour)},
			{`UPDATE licenses SET expires_at = NULL, lease_hours = 10`, 2, now.Add(10 * time.Hour)}, // the seat is held longer, too
			{`UPDATE licenses SET kind = 'node_locked', lease_hours = 20`, 3, now.Add(20 * time.Hour)},
			{`UPDATE base_urls SET is_current = 0`, 3, now.Add(20 * time.Hour)},
		} {
			s.sql(change.sql)
			if strings.Contains(change.sql, "base_urls") {
				s.sql(`INSERT INTO base_urls VALUES ('https://new.example/v1', 1, '2000-01-01T00:00:00Z')`)
			}
			s.check(s.server.refresh())
			l, err := s.store.license("", id)
			s.check(err)
			base, err := s.store.baseURLs()
			s.check(err)
			a := s.verifyKey(key, "f").answers("valid")
			c := s.lease(a)
			if c.Expires != change.expires.Unix() || c.Product != l.Product || c.Seq != change.seq || c.Issuer != base[0].URL || a.json()["expires_in"] != float64(c.Expires-now.Unix()) {
				t.Errorf("after %s: %+v", change.sql, c)
			}
		}
		time.Sleep(19 * time.Hour)
		s.advance()
		s.verifyKey(key, "f").answers("valid") // what was floating is held by no lease any more
	})
}

func TestANonceIsSignedWithTheSameNumberWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		act := s.activate(key, "f", "nonce", "n0").is(200)
		first := s.lease(act)
		written := s.store.written.Load()
		jtis := map[string]bool{first.ID: true}
		for i := range 5 {
			time.Sleep(10 * time.Second)
			nonce := fmt.Sprint("n", i+1)
			a := s.verifyLease(act.text("token"), "nonce", nonce).answers("valid")
			c := s.lease(a)
			if c.Seq != 1 || c.Nonce != nonce || a.text("nonce") != nonce || jtis[c.ID] || c.IssuedAt != time.Now().Unix() {
				t.Fatalf("claims %+v", c)
			}
			jtis[c.ID] = true
		}
		if s.store.written.Load() != written {
			t.Fatal("that wrote")
		}
		time.Sleep(10 * time.Second)
		if c := s.lease(s.verifyLease(act.text("token"), "nonce", "m").answers("valid")); c.Seq != 2 || c.Nonce != "m" {
			t.Fatalf("after a minute: %+v", c)
		}
		// A lease with a nonce is for its asker only.
		if c := s.lease(s.verifyKey(key, "f").answers("valid")); c.Nonce != "" || c.Seq != 2 {
			t.Fatalf("without a nonce: %+v", c)
		}
	})
}

func TestALeaseAfterItsEndNamesItsDeviceForAYearAndOpensNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{LeaseHours: 1})
		act := s.activate(key, "f").is(200)
		lease := act.text("token")
		auth := "Authorization: Bearer " + lease
		widget := s.addWidget(s.account)
		s.get("/licenses/"+id, auth).challenged(403, "insufficient_scope", scopeChallenge(scopeLicenses))
		s.get("/widget/stats?widget="+widget, auth).challenged(403, "insufficient_scope", scopeChallenge(scopeStats))
		time.Sleep(time.Hour + clockSkew)
		s.get("/licenses/"+id, auth).challenged(401, "invalid_token", invalidChallenge)
		s.get("/widget/stats?widget="+widget, auth).challenged(401, "invalid_token", invalidChallenge)
		if a := s.verifyLease(lease).answers("valid"); s.lease(a).Seq != 2 {
			t.Fatalf("after its end: %s", a.body)
		}
		time.Sleep(lateDevice - time.Second)
		if a := s.verifyLease(lease).answers("valid"); s.lease(a).Seq != 3 || s.lease(a).Expires != time.Now().Add(time.Hour).Unix() {
			t.Fatalf("almost a year after its end: %s", a.body)
		}
		s.post("/widget/license/activate", `{}`, auth).is(200)
		if a := s.post("/widget/license/deactivate", `{}`, auth).is(200); a.json()["released"] != true {
			t.Fatalf("deactivate: %s", a.body)
		}
		time.Sleep(time.Second)
		for _, path := range []string{"verify", "activate", "deactivate"} {
			s.post("/widget/license/"+path, `{}`, auth).challenged(401, "invalid_token", invalidChallenge)
		}
		// A portal's token is never late.
		portal := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
		time.Sleep(time.Hour + clockSkew)
		s.post("/widget/license/verify", seatBody("license_key", key), portal).challenged(401, "invalid_token", invalidChallenge)
	})
}

func TestAnHourBeforeTheEndOfGraceALeaseIsAnHourLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		end := time.Now().Add(48 * time.Hour)
		_, key := s.addLicense(license{ExpiresAt: newStamp(end), GraceDays: 1})
		lease := s.activate(key, "f").is(200)
		graceEnd := end.Add(24 * time.Hour)
		if c := s.lease(lease); c.Expires != graceEnd.Unix() || c.GraceEnd != graceEnd.Unix() || c.LicenseEnd != end.Unix() {
			t.Fatalf("claims %+v", c)
		}
		time.Sleep(time.Until(graceEnd) - time.Hour)
		a := s.verifyLease(lease.text("token")).answers("grace")
		if c := s.lease(a); a.json()["expires_in"] != 3600.0 || a.json()["refresh_after"] != 1800.0 || c.RefreshAfter != 1800 || c.Expires != graceEnd.Unix() || a.text("license", "status") != "grace" {
			t.Fatalf("in grace: %s", a.body)
		}
		time.Sleep(time.Hour)
		if a := s.verifyLease(lease.text("token")).answers("expired"); a.hasToken() {
			t.Fatalf("at its end: %s", a.body)
		}
	})
}

func TestVerifyAnswersWhileSomebodyElseHoldsTheFile(t *testing.T) {
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

func TestDeactivatingGivesTheSeatBackOnce(t *testing.T) {
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

func TestTheOperatorReleasesAndBlocksDevices(t *testing.T) {
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
	want := "license.created command, license.first_activated device, device.activated device, device.blocked command, device.released command, device.reactivated device, " +
		"license.suspended command, license.reinstated command, license.suspended command, license.revoked command"
	if got := strings.Join(s.licenseEvents(id), ", "); got != want {
		t.Fatalf("events %s\nwant   %s", got, want)
	}
	if n := s.count(`SELECT count(*) FROM events WHERE json_extract(data, '$.reason') = 'because'`); n != 4 {
		t.Fatalf("%d events with a reason", n)
	}
}

func TestLicenceCallsAreChargedToTheLicencesAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		second := s.addAccount("second")
		_, key := s.addLicense(license{AccountID: second})
		a := s.activate(key, "f").is(200)
		if got := a.header.Get("RateLimit"); got != `"account";r=599;t=1` {
			t.Errorf("by key: %q", got)
		}
		if got := s.verifyLease(a.text("token")).header.Get("RateLimit"); got != `"account";r=598;t=1` {
			t.Errorf("by token: %q", got)
		}
		if got := s.verifyKey(newLicenseKey(), "f").header.Get("RateLimit"); got != "" {
			t.Errorf("an unknown key: %q", got)
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
