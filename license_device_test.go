package main

import (
	"database/sql"
	"encoding/base64"
	"fmt"
	"net/http"
	"path/filepath"
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
		id, key := s.addLicense(license{Plan: &plan, ExpiresAt: end, terms: terms{MaxDevices: ptr(3), GraceDays: 7,
			Entitlements: []string{"kds", "reports"}, Trial: true}})
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
		sameText(t, "events", s.licenseEvents(id),
			"[license.created command license.first_activated device device.activated device]")
	})
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

// Against many callers at once that would take one seat twice: the seat is decided in one transaction.
func TestSeat_isTakenOnceByTwoHundredCallersAtOnce(t *testing.T) {
	t.Parallel()
	callers := size(80, 200)
	for i, n := range []int{1, 7, 50, 50} {
		kind := []string{kindNodeLocked, kindFloating}[i%2]
		t.Run(fmt.Sprint(kind, " ", n), func(t *testing.T) {
			s := newService(t)
			id, key := s.addLicense(license{terms: terms{MaxDevices: &n, Kind: licenseKind(kind)}})
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
	contains(t, s.log.String(), "not recorded as seen")
	s.check(lock.Rollback())
	s.change(func(*tx) error { return nil })                   // comes after what verify gave up
	s.deviceIs(dev, `lease_seq = 1 AND last_seen_at = ?`, ago) // else what verify gave up was written
	sameText(t, "afterwards", s.lease(s.verifyKey(key, "f").answers("valid")).Seq, 2)
}

// Whatever a device or a widget sends is answered and never a fault of ours; and what
// is refused changes nothing.
func FuzzDeviceBody(f *testing.F) {
	paths := []string{"/widget/license/activate", "/widget/license/verify", "/widget/license/deactivate",
		"/widget/events"}
	s := newService(f, withoutAddressLimits)
	_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(2)}})
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
		if err == nil || !matches(`^seats: of 1 licences, lic_.*: restore, or edit this row: `+
			`license_seats lic_\w+ used, counting\n`, told) {
			t.Fatalf("after %s: %s, %v", wrong, told, err)
		}
		o.do("backup", filepath.Join(t.TempDir(), "copy.db")) // which is a true copy all the same
		raw(t, path, `DELETE FROM license_seats; INSERT INTO license_seats `+seatCounts)
		if out := o.do("check"); !strings.HasPrefix(out, "ok:") {
			t.Errorf("after %s and mending: %s", wrong, out)
		}
	}
}
