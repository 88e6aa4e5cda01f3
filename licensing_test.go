package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// advance lets time do its work, as the service does every second.
func (s *service) advance() {
	s.t.Helper()
	s.check(s.server.advance(s.t.Context()))
}

// eventTypes are the types of a licence's events, oldest first.
func (s *service) eventTypes(licenseID string) string {
	s.t.Helper()
	rows, err := s.store.events(eventFilter{licenseID: licenseID}, "", 100)
	s.check(err)
	types := ""
	for _, e := range rows {
		types = strings.TrimSpace(e.Type + " " + types)
	}
	return types
}

func TestALapsedLeaseFreesAFloatingSeatWithoutARequest(t *testing.T) {
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

func TestAFloatingTokenNeverOutlivesItsSeat(t *testing.T) {
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

func TestANodeLockedSeatOutlivesItsLease(t *testing.T) {
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

func TestTransfersAreCountedByTheOwnersReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(1), MaxTransfers: ptr(1)})
		deactivate := func(fingerprint string) {
			t.Helper()
			s.post("/widget/license/deactivate", activateBody(key, fingerprint)).is(200)
		}
		s.activate(key, "a").is(200)
		deactivate("a")
		time.Sleep(time.Hour)
		second := newStamp(time.Now())
		s.activate(key, "a").is(200) // back before another came: nothing was moved
		deactivate("a")
		time.Sleep(time.Hour)
		s.activate(key, "b").is(409, "transfer_limit_reached") // two releases, one transfer is allowed
		time.Sleep(days(30) - 2*time.Hour - time.Second)
		s.activate(key, "b").is(409, "transfer_limit_reached")
		time.Sleep(time.Second)
		s.activate(key, "b").is(200) // the first release is 30 days old
		deactivate("b")
		a := s.activate(key, "c").is(409, "transfer_limit_reached")
		if got, want := a.text("next_transfer_at"), second.after(days(30)).String(); got != want {
			t.Fatalf("next at %s, want %s: %s", got, want, s.eventTypes(id))
		}
		time.Sleep(time.Hour)
		s.activate(key, "c").is(200)

		var device string
		s.check(s.store.one(`SELECT id FROM devices WHERE state = 'active'`, nil, &device))
		s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"d","replace_device_id":%q}`, key, device)).is(409, "transfer_limit_reached")
		if s.count(`SELECT count(*) FROM devices WHERE state = 'active' AND id = ?`, device) != 1 {
			t.Fatal("a refused replacement released the device")
		}
		s.change(func(tx *tx) error { // an operator's release is no transfer
			d, err := tx.device("", device)
			if err != nil {
				return err
			}
			l, err := tx.license("", id)
			if err != nil {
				return err
			}
			return release(tx, l, d, "operator", "device.released", actorCommand)
		})
		time.Sleep(30 * 24 * time.Hour)
		s.activate(key, "d").is(200)
	})
}

func TestALicenceWithoutTransfersLetsOnlyTheSameDeviceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{MaxDevices: ptr(1), MaxTransfers: ptr(0)})
		device := s.activate(key, "a").is(200).text("device", "id")
		s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"b","replace_device_id":%q}`, key, device)).is(409, "transfer_limit_reached")
		s.post("/widget/license/deactivate", activateBody(key, "a")).is(200)
		s.activate(key, "b").is(409, "transfer_limit_reached")
		s.activate(key, "a").is(200)
	})
}

func TestRowsThatAShellLeftBehindHoldUpNothingThatTimeBringsAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		end := newStamp(time.Now().Add(time.Hour))
		var ids []string
		for range 4 {
			id, key := s.addLicense(license{Kind: kindFloating, LeaseHours: 1, ExpiresAt: end, GraceDays: 1})
			s.activate(key, "a").is(200)
			ids = append(ids, id)
		}
		raw(t, s.store.path, `PRAGMA foreign_keys = 0;
			DELETE FROM licenses WHERE id = '`+ids[0]+`';
			UPDATE licenses SET account_id = '`+newID("acct", time.Now())+`' WHERE id = '`+ids[1]+`';
			UPDATE licenses SET entitlements = '[1, 2]' WHERE id = '`+ids[2]+`'`)
		time.Sleep(50 * time.Hour)
		s.advance()
		if n := s.count(`SELECT count(*) FROM devices WHERE state = 'released' AND license_id IN (?, ?)`, ids[2], ids[3]); n != 2 {
			t.Errorf("%d lapsed seats were given back", n)
		}
		for _, id := range ids[2:] {
			if got := s.eventTypes(id); !strings.HasSuffix(got, "device.released license.grace_started license.expired") {
				t.Errorf("%s: %s", id, got)
			}
		}
		if due, err := s.store.timeHasWork(newStamp(time.Now())); due || err != nil {
			t.Errorf("there is still work: %v %v", due, err)
		}
	})
}

func TestTimeWritesStatusEventsOnceAlsoAfterTheServiceWasOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		end := newStamp(time.Now().Add(24 * time.Hour))
		grace, key := s.addLicense(license{ExpiresAt: end, GraceDays: 2})
		plain, _ := s.addLicense(license{ExpiresAt: end})
		revoked, _ := s.addLicense(license{ExpiresAt: end})
		s.change(func(tx *tx) error { _, err := changeState(tx, revoked, "revoke", "", actorCommand); return err })
		s.activate(key, "a").is(200)
		s.advance()
		if got := s.eventTypes(plain); got != "license.created" {
			t.Fatalf("before the end: %s", got)
		}
		time.Sleep(24*time.Hour + time.Second)
		for range 3 {
			s.advance()
		}
		if got := s.eventTypes(plain); got != "license.created license.expired" {
			t.Fatalf("after the end: %s", got)
		}
		if got := s.eventTypes(grace); !strings.HasSuffix(got, "device.activated license.grace_started") {
			t.Fatalf("in grace: %s", got)
		}
		a := s.verifyKey(key, "a").answers("grace")
		if got := a.text("license", "grace_until"); got != end.after(48*time.Hour).String() {
			t.Fatalf("grace_until %s", got)
		}
		c, err := s.keys.verify(a.text("token"))
		s.check(err)
		if c.Expires != end.after(48*time.Hour).Unix() {
			t.Fatal("a lease outlives the end of grace")
		}
		s.activate(key, "b").is(403, "license_in_grace")
		s.activate(key, "a").is(200)

		time.Sleep(30 * 24 * time.Hour) // the service was off
		s.advance()
		s.advance()
		if got := s.eventTypes(grace); !strings.HasSuffix(got, "license.grace_started license.expired") {
			t.Fatalf("after grace: %s", got)
		}
		s.verifyKey(key, "a").answers("expired")
		s.change(func(tx *tx) error { _, err := renewLicense(tx, grace, ptr(1), actorCommand); return err })
		s.verifyKey(key, "a").answers("valid")
		time.Sleep(5 * 24 * time.Hour)
		s.advance()
		if got := s.eventTypes(grace); !strings.HasSuffix(got, "license.renewed license.grace_started license.expired") {
			t.Fatalf("after the renewed end: %s", got)
		}
		if got := s.eventTypes(revoked); got != "license.created license.revoked" {
			t.Fatalf("a revoked licence: %s", got)
		}
	})
}

func TestADurationCountsFromIssueStartOrFirstActivation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		now := newStamp(time.Now())
		for name, test := range map[string]struct {
			l    license
			want stamp
		}{
			"issue":       {license{DurationDays: ptr(10)}, now.after(days(10))},
			"start":       {license{DurationDays: ptr(10), StartsAt: now.after(days(5))}, now.after(days(15))},
			"fixed end":   {license{DurationDays: ptr(10), ExpiresAt: now.after(days(3))}, now.after(days(3))},
			"first use":   {license{DurationDays: ptr(10), ExpiryBasis: "first_activation"}, stamp{}},
			"no duration": {license{}, stamp{}},
		} {
			l := test.l
			l.AccountID, l.Product = s.account, "kds"
			var id, key string
			s.change(func(tx *tx) (err error) { id, key, err = createLicense(tx, &l, actorCommand); return err })
			got, err := s.store.license("", id)
			s.check(err)
			if !got.ExpiresAt.Equal(test.want.Time) {
				t.Errorf("%s: ends at %s, want %s", name, got.ExpiresAt, test.want)
			}
			if l.ExpiryBasis != "first_activation" {
				continue
			}
			for _, device := range []string{"a", "b"} {
				a := s.activate(key, device).is(200)
				if got := a.text("license", "expires_at"); got != now.after(days(10)).String() {
					t.Errorf("%s: after an activation it ends at %s", name, got)
				}
			}
		}
	})
}

func TestADriftedDeviceKeepsItsSeat(t *testing.T) {
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
	// The old token still names the device, and without a fingerprint drifts nothing back.
	if again := s.post("/widget/license/activate", `{}`, auth).is(200); again.text("device", "id") != first.text("device", "id") {
		t.Fatal(again.body)
	}
	s.verifyKey(key, "after it").answers("valid")
	// A fingerprint that another device has is no drift.
	_, other := s.addLicense(license{MaxDevices: ptr(2)})
	one := s.activate(other, "1").is(200)
	s.activate(other, "2").is(200)
	s.post("/widget/license/activate", activateBody(other, "2"), "Authorization: Bearer "+one.text("token")).is(422, "credential_mismatch")
	s.post("/widget/license/activate", activateBody(key, "x"), "Authorization: Bearer "+one.text("token")).is(422, "credential_mismatch")
}

func TestATokenOfADeviceThatARestoredDatabaseDoesNotHave(t *testing.T) {
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
	s.post("/widget/license/activate", `{}`, tokens[0]).is(422, "credential_mismatch")
	s.post("/widget/license/activate", activateBody(key, "came back"), tokens[0]).is(422, "credential_mismatch")
	if a := s.post("/widget/license/activate", `{}`, tokens[1]).is(200); a.text("code") != "activated" {
		t.Fatal(a.body)
	}
}

func TestAnOlderLeaseIsSuspectedOncePerDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(1)})
		old := s.activate(key, "a").is(200).text("token")
		time.Sleep(25 * time.Hour)
		verify := func(token string) answer {
			t.Helper()
			a := s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+token).is(200)
			if a.json()["valid"] != true {
				t.Fatal(a.body)
			}
			return a
		}
		fresh := verify(old).text("token")
		time.Sleep(2 * time.Minute)
		verify(fresh)
		for range 5 {
			verify(old) // blocks nothing
			time.Sleep(time.Minute)
		}
		if n := strings.Count(s.eventTypes(id), "device.clone_suspected"); n != 1 {
			t.Fatalf("%d events on the first day", n)
		}
		time.Sleep(24 * time.Hour)
		verify(old)
		if n := strings.Count(s.eventTypes(id), "device.clone_suspected"); n != 2 {
			t.Fatalf("%d events on two days", n)
		}
		a := s.get("/licenses/"+id+"/devices", "Authorization: Bearer "+s.token(s.account, scopeLicenses)).is(200)
		if !strings.Contains(a.body, `"clone_suspected_at":"20`) {
			t.Fatal(a.body)
		}
		if s.count(`SELECT count(*) FROM v_devices WHERE clone_suspected_at IS NOT NULL`) != 1 {
			t.Fatal("v_devices does not show it")
		}
	})
}

func TestARestoredDatabaseSuspectsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{LeaseHours: 2})
		token := s.activate(key, "a").is(200).text("token")
		renew := func(path, body string) {
			t.Helper()
			time.Sleep(time.Hour)
			token = s.post("/widget/license/"+path, body, "Authorization: Bearer "+token).is(200).text("token")
		}
		for range 5 {
			renew("verify", `{}`)
		}
		for _, path := range []string{"verify", "activate"} {
			s.change(func(tx *tx) error { // as it was then
				_, err := tx.exec(`UPDATE devices SET lease_seq = 2, presented_seq = 1`)
				return err
			})
			for range 3 {
				renew(path, `{}`)
			}
		}
		if c, err := s.keys.verify(token); err != nil || c.Seq != 12 {
			t.Fatalf("claims %+v, %v", c, err)
		}
		if got := s.eventTypes(id); strings.Contains(got, "clone_suspected") {
			t.Fatal(got)
		}
	})
}

func TestTheOperatorManagesLicencesOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
		tenant := s.addAccount("tenant")
		a := s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","plan":"pro","kind":"floating","max_devices":3,"max_transfers":2,"starts_at":"1999-01-01T00:00:00Z",
			"duration_days":30,"grace_days":7,"lease_hours":24,"entitlements":["kds","reports"],"trial":true,"metadata":{"order":{"id":7}}}`, tenant), admin).is(200)
		id, key := a.text("id"), a.text("key")
		if _, err := parseLicenseKey(key); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]any{"account_id": tenant, "product": "kds", "plan": "pro", "kind": "floating", "max_devices": 3.0, "max_transfers": 2.0,
			"starts_at": "1999-01-01T00:00:00Z", "grace_days": 7.0, "lease_hours": 24.0, "trial": true, "status": "active", "key_hint": key[24:], "expires_at": newStamp(time.Now().Add(days(30))).String()} {
			if got := a.json()[name]; got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		path := "/licenses/" + id
		shown := s.get(path, admin).is(200)
		if strings.Contains(shown.body, key) || !strings.Contains(shown.body, `"metadata":{"order":{"id":7}}`) {
			t.Fatal(shown.body)
		}

		patched := s.do("PATCH", path, `{"plan":null,"max_devices":null,"entitlements":[],"metadata":{}}`, admin).is(200)
		if p := patched.json(); p["plan"] != nil || p["max_devices"] != nil || p["grace_days"] != 7.0 || len(p["entitlements"].([]any)) != 0 {
			t.Fatal(patched.body)
		}
		written := s.count(`SELECT count(*) FROM events`)
		if same := s.do("PATCH", path, `{"plan":null,"entitlements":[],"metadata":{}}`, admin).is(200); same.body != patched.body || s.count(`SELECT count(*) FROM events`) != written {
			t.Fatalf("a change to what is there already: %s", same.body)
		}
		if n := s.count(`SELECT count(*) FROM events WHERE type = 'license.updated' AND data = '{"changed":"entitlements max_devices metadata plan"}'`); n != 1 {
			t.Fatalf("%d events name the changed terms", n)
		}
		s.do("PATCH", path, `{"product":"other"}`, admin).is(422, "validation_failed")
		s.do("PATCH", path, `{"expires_at":"1998-01-01T00:00:00Z"}`, admin).is(422, "validation_failed")

		end := newStamp(time.Now()).after(days(60)).String()
		if r := s.post(path+"/renew", `{}`, admin).is(200); r.text("expires_at") != end {
			t.Fatalf("renewed until %s, want %s", r.text("expires_at"), end)
		}
		s.post(path+"/reinstate", `{}`, admin).is(409, "illegal_transition")
		if r := s.post(path+"/suspend", `{"reason":"unpaid"}`, admin).is(200); r.text("status") != "suspended" || r.text("reason") != "unpaid" {
			t.Fatal(r.body)
		}
		s.post(path+"/suspend", `{}`, admin).is(409, "illegal_transition")
		s.verifyKey(key, "a").answers("suspended")
		s.post(path+"/reinstate", `{}`, admin).is(200)

		until := newStamp(time.Now()).after(days(7))
		rotated := s.post(path+"/rotate-key", fmt.Sprintf(`{"old_key_until":%q}`, until), admin, "Idempotency-Key: r1").is(200)
		if again := s.post(path+"/rotate-key", fmt.Sprintf(`{"old_key_until":%q}`, until), admin, "Idempotency-Key: r1").is(200); again.body != rotated.body {
			t.Fatal("the same Idempotency-Key rotated twice")
		}
		s.activate(key, "a").is(200)
		s.activate(rotated.text("key"), "a").is(200)
		time.Sleep(days(7))
		admin = "Authorization: Bearer " + s.token(s.account, scopeAdmin) // the first one has ended
		s.activate(key, "a").is(403, "key_retired")
		s.verifyKey(key, "a").answers("key_retired")
		s.verifyKey(rotated.text("key"), "a").answers("device_released") // its floating lease has lapsed
		s.activate(rotated.text("key"), "a").is(200)

		s.post(path+"/revoke", `{}`, admin).is(200)
		for _, action := range []string{"suspend", "reinstate", "revoke", "renew", "rotate-key"} {
			a := s.post(path+"/"+action, `{"days":1}`, admin).is(409, "illegal_transition")
			if !strings.Contains(a.text("detail"), "revoked") {
				t.Errorf("%s: the detail does not name the state: %s", action, a.body)
			}
		}
		s.do("PATCH", path, `{"trial":false}`, admin).is(409, "illegal_transition")
		s.verifyKey(rotated.text("key"), "a").answers("revoked")
		for _, action := range []string{"suspend", "renew"} {
			s.post("/licenses/lic_00000000000000000000000000/"+action, `{}`, admin).is(404, "license_not_found")
		}
		s.post("/licenses", `{"account_id":"acct_00000000000000000000000000","product":"kds"}`, admin).is(404, "account_not_found")
		want := "license.created license.updated license.renewed license.suspended license.reinstated license.key_rotated license.first_activated device.activated device.released device.reactivated license.revoked"
		s.advance()
		if got := s.eventTypes(id); got != want {
			t.Fatalf("events %s\nwant   %s", got, want)
		}
	})
}

func TestEveryIllegalTransitionNamesTheStateAndChangesNothing(t *testing.T) {
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	legal := map[string]string{
		"active":    "patch renew suspend revoke rotate-key",
		"suspended": "patch renew reinstate revoke rotate-key",
		"revoked":   "",
	}
	for state, actions := range legal {
		for _, action := range []string{"patch", "renew", "suspend", "reinstate", "revoke", "rotate-key"} {
			for _, by := range []string{"HTTP", "command"} {
				id, _ := s.addLicense(license{State: state, ExpiresAt: newStamp(time.Now()).after(days(9))})
				before := s.dump()
				args, body := []string{"license", action, id}, `{"days":1}`
				method, path := "POST", "/licenses/"+id+"/"+action
				switch action {
				case "patch":
					method, path, body, args = "PATCH", "/licenses/"+id, `{"trial":true}`, append(args, `{"trial":true}`)
				case "renew":
					args = append(args, "-days", "1")
				}
				var done bool
				var answered string
				if by == "HTTP" {
					a := s.do(method, path, body, admin)
					done, answered = a.status == 200, fmt.Sprint(a.status, " ", a.body)
				} else {
					_, err := s.command(args...)
					done, answered = err == nil, fmt.Sprint("409 ", err)
				}
				if done != slices.Contains(strings.Fields(actions), action) {
					t.Errorf("%s, %s by %s: done is %v: %s", state, action, by, done, answered)
				}
				if done {
					continue
				}
				if !strings.HasPrefix(answered, "409 ") || !strings.Contains(answered, "illegal_transition") || !strings.Contains(answered, "The licence is "+state+";") {
					t.Errorf("%s, %s by %s: %s", state, action, by, answered)
				}
				s.unchanged(before)
			}
		}
	}
}

func TestNoEarlierKeyOutlivesTheEndOfALaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{})
		keys := []string{key}
		rotate := func(until stamp) {
			t.Helper()
			s.change(func(tx *tx) error {
				_, key, err := rotateKey(tx, id, until, actorCommand)
				keys = append(keys, key)
				return err
			})
		}
		answers := func(want string) {
			t.Helper()
			got := ""
			for _, key := range keys {
				a := s.post("/widget/license/verify", fmt.Sprintf(`{"license_key":%q}`, key)).is(200)
				got = strings.TrimSpace(got + " " + a.text("code"))
			}
			if got != want {
				t.Errorf("the keys answer %s, want %s", got, want)
			}
		}
		now := newStamp(time.Now())
		rotate(now.after(time.Minute)) // it ends soon, and stays so
		rotate(now.after(days(30)))
		answers("valid valid valid")
		time.Sleep(time.Minute)
		answers("key_retired valid valid")
		rotate(stamp{}) // the second one has leaked
		answers("key_retired key_retired key_retired valid")
	})
}

func TestOnlyAdminManagesLicences(t *testing.T) {
	s := newService(t)
	id, _ := s.addLicense(license{})
	token := "Authorization: Bearer " + s.token(s.account, strings.Join([]string{scopeLicenses, scopeDevices, scopeEvents}, " "))
	for _, rt := range routes {
		if rt.scope != scopeAdmin {
			continue
		}
		a := s.do(rt.method(), strings.ReplaceAll(rt.path(), "{id}", id), `{}`, token).is(403, "insufficient_scope")
		if !strings.Contains(a.header.Get("WWW-Authenticate"), `scope="admin"`) {
			t.Fatal(a.header)
		}
	}
}

func TestBadTermsAreNamedAndChangeNothing(t *testing.T) {
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{StartsAt: newStamp(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))})
	before := s.count(`SELECT count(*) FROM licenses`) + s.count(`SELECT count(*) FROM events`)
	long := strings.Repeat("x", 101)
	for member, values := range map[string][]string{
		"product":       {`null`, `1`, `""`, `"` + long + `"`, `"a\u0007"`},
		"plan":          {`1`, `"` + long + `"`, `"a\u0000"`},
		"kind":          {`"site"`, `1`, `""`},
		"trial":         {`null`, `1`, `"true"`},
		"max_devices":   {`0`, `-0.0`, `-1`, `1.5`, `5e-1`, `"1"`, `1000001`, `1e7`, `1e400`, `1e-400`},
		"max_transfers": {`-1`, `"1"`, `1000001`},
		"starts_at":     {`"2030-01-01"`, `1`, `"2030-13-01T00:00:00Z"`, `"9999-01-01T00:00:00Z"`},
		"expires_at":    {`"tomorrow"`, `1`, `"2029-12-31T00:00:00Z"`},
		"grace_days":    {`-1`, `3651`, `"1"`},
		"duration_days": {`0`, `36501`, `true`},
		"expiry_basis":  {`"purchase"`, `1`},
		"lease_hours":   {`0`, `2161`, `"1"`},
		"entitlements":  {`null`, `"kds"`, `[1]`, `[""]`, `["a b"]`, `["-a"]`, `["é"]`, `["a","a"]`, `["` + strings.Repeat("a", 65) + `"]`},
		"metadata":      {`null`, `[]`, `"x"`, `{"a":"\u0001"}`, `{"a":"` + strings.Repeat("x", 16384) + `"}`},
	} {
		for _, value := range values {
			t.Run(member+" "+value[:min(len(value), 30)], func(t *testing.T) {
				body := fmt.Sprintf(`"starts_at":"2030-01-01T00:00:00Z",%q:%s}`, member, value)
				if member == "starts_at" {
					body = fmt.Sprintf(`%q:%s}`, member, value)
				}
				head := fmt.Sprintf(`{"account_id":%q,`, s.account)
				if member != "product" {
					head += `"product":"kds",`
				}
				answers := []answer{s.post("/licenses", head+body, admin), s.do("PATCH", "/licenses/"+id, `{`+body, admin)}
				for _, a := range answers {
					a.t = t
					a.is(422, "validation_failed")
					if !strings.Contains(a.body, `"pointer":"#/`+member) {
						t.Errorf("the problem does not name %s: %s", member, a.body)
					}
				}
			})
		}
	}
	s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","expiry_basis":"first_activation"}`, s.account), admin).is(422, "validation_failed")
	var pointers []string
	for _, e := range s.do("PATCH", "/licenses/"+id, `{"entitlements":["","ok",1,"a b","ok"]}`, admin).is(422).json()["errors"].([]any) {
		pointers = append(pointers, e.(map[string]any)["pointer"].(string))
	}
	if slices.Sort(pointers); fmt.Sprint(pointers) != "[#/entitlements/0 #/entitlements/2 #/entitlements/3 #/entitlements/4]" {
		t.Errorf("wrong are %v", pointers)
	}
	if after := s.count(`SELECT count(*) FROM licenses`) + s.count(`SELECT count(*) FROM events`); after != before {
		t.Fatalf("%d rows became %d", before, after)
	}
}

func TestAWholeNumberIsOneHoweverItIsWritten(t *testing.T) {
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{})
	for text, want := range map[string]float64{"3": 3, "3.0": 3, "0.4e1": 4, "50E-1": 5, "1e6": 1_000_000} {
		if got := s.do("PATCH", "/licenses/"+id, `{"max_devices":`+text+`}`, admin).is(200).json()["max_devices"]; got != want {
			t.Errorf("%s is %v", text, got)
		}
	}
}

func TestPortalsFilterLicences(t *testing.T) {
	s := newService(t)
	now := time.Now()
	at := func(d int) stamp { return newStamp(now.Add(days(d))) }
	tenant := s.addAccount("tenant")
	ids := map[string]string{}
	for name, l := range map[string]license{
		"active":      {Plan: ptr("Gold 100%")},
		"grace":       {ExpiresAt: at(-1), GraceDays: 3},
		"expired":     {ExpiresAt: at(-5), GraceDays: 3},
		"not_started": {StartsAt: at(2)},
		"suspended":   {State: "suspended", StartsAt: at(2)},
		"revoked":     {State: "revoked", ExpiresAt: at(-5)},
	} {
		l.AccountID, l.Product = tenant, "app-"+name
		ids[name], _ = s.addLicense(l)
	}
	s.addLicense(license{Plan: ptr("Gold 100%")}) // of another account
	token := "Authorization: Bearer " + s.token(tenant, scopeLicenses)
	list := func(query string) (got string) {
		t.Helper()
		for _, row := range s.get("/licenses"+query, token).is(200).json()["data"].([]any) {
			got = strings.TrimSpace(row.(map[string]any)["status"].(string) + " " + got)
			if s.count(`SELECT count(*) FROM v_licenses WHERE id = ? AND status = ?`, row.(map[string]any)["id"], row.(map[string]any)["status"]) != 1 {
				t.Errorf("v_licenses says something else of %v", row)
			}
		}
		return got
	}
	for name := range ids {
		if got := list("?status=" + name); got != name {
			t.Errorf("status=%s gives %q", name, got)
		}
		if got := list("?product=app-" + name); got != name {
			t.Errorf("product=app-%s gives %q", name, got)
		}
	}
	if got := list("?q=gOLD%20100%25"); got != "active" {
		t.Errorf("q gives %q", got)
	}
	if got := list("?q=%25"); got != "active" {
		t.Errorf("q=%% gives %q", got)
	}
	if got := list("?q=" + ids["grace"]); got != "grace" {
		t.Errorf("q=id gives %q", got)
	}
	s.get("/licenses?status=unknown", token).is(422, "validation_failed")
	s.get("/licenses?q=", token).is(422, "validation_failed")
}

func TestAFilterByStatusChoosesWhatHasThatStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		closed := s.addAccount("closed")
		now := newStamp(time.Now())
		r := rand.New(rand.NewPCG(1, 2))
		moment := func() stamp { // often exactly now, a day away, or none
			return []stamp{{}, now, now.after(time.Second), now.after(-time.Second), now.after(days(1)), now.after(-days(1)), now.after(days(r.IntN(9) - 4))}[r.IntN(7)]
		}
		for range 400 {
			s.addLicense(license{AccountID: []string{s.account, closed}[r.IntN(8)/7], State: []string{"active", "active", "active", "active", "suspended", "revoked"}[r.IntN(6)],
				StartsAt: moment(), ExpiresAt: moment(), GraceDays: r.IntN(3)})
		}
		s.change(func(t *tx) error { return t.closeAccount(closed) })
		all, err := s.store.licenses(licenseFilter{now: now}, "", 1000)
		s.check(err)
		for status := range statusFilters {
			var want []string
			for _, l := range all {
				if l.status(now.Time) == status {
					want = append(want, l.ID)
				}
			}
			found, err := s.store.licenses(licenseFilter{now: now, status: status}, "", 1000)
			s.check(err)
			got := []string{}
			for _, l := range found {
				got = append(got, l.ID)
			}
			if len(want) < 10 || !slices.Equal(got, want) {
				t.Errorf("%s: %d are chosen, %d have it", status, len(got), len(want))
			}
		}
	})
}

func TestEventsAreFilteredAndBelongToTheirAccount(t *testing.T) {
	s := newService(t)
	tenant := s.addAccount("tenant")
	id, key := s.addLicense(license{AccountID: tenant})
	s.addLicense(license{})
	device := s.activate(key, "a").is(200).text("device", "id")
	token := "Authorization: Bearer " + s.token(tenant, scopeEvents)
	events, err := s.store.events(eventFilter{licenseID: id}, "", 10)
	s.check(err)
	created := events[2].At.String()
	types := func(query string) (got string) {
		t.Helper()
		for _, row := range s.get("/events"+query, token).is(200).json()["data"].([]any) {
			got = strings.TrimSpace(got + " " + row.(map[string]any)["type"].(string))
		}
		return got
	}
	for query, want := range map[string]string{
		"":                            "device.activated license.first_activated license.created",
		"?license_id=" + id:           "device.activated license.first_activated license.created",
		"?device_id=" + device:        "device.activated",
		"?type=license.created":       "license.created",
		"?since=2999-01-01T00:00:00Z": "",
		"?since=" + created:           "device.activated license.first_activated license.created",
		"?type=license.created&since=" + created + "&license_id=" + id: "license.created",
		"?limit=1": "device.activated",
	} {
		if got := types(query); got != want {
			t.Errorf("%s gives %q, want %q", query, got, want)
		}
	}
	first := s.get("/events?limit=2", token).is(200)
	if got := types("?limit=2&cursor=" + first.text("next_cursor")); got != "license.created" {
		t.Errorf("the second page is %q", got)
	}
	s.get("/events?since=yesterday", token).is(422, "validation_failed")
	s.get("/events?license_id=x", token).is(422, "validation_failed")
}
