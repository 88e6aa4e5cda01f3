package main

import (
	"database/sql"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
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
		dev := a.text("device", "id")
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

func TestLease_ofADeviceThatARestoredDatabaseLacksIsOfItsFingerprint(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	var tokens [2]string
	for i, device := range []string{"came back", "never did"} {
		a := s.activate(key, device).is(200)
		tokens[i] = bearer(a.text("token"))
		s.sql(`DELETE FROM devices WHERE id = ?`, a.text("device", "id"))
	}
	lease := strings.TrimPrefix(tokens[1], "Authorization: Bearer ")
	s.verifyLease(lease).answers("device_not_activated")
	s.verifyLease(lease, "fingerprint", "g").answers("fingerprint_mismatch")
	s.activate(key, "came back").is(200)
	s.post("/widget/license/activate", `{}`, tokens[0]).is(403, "fingerprint_mismatch")
	s.license("activate", tokens[0], "license_key", key, "fingerprint", "came back").is(403, "fingerprint_mismatch")
	s.license("activate", tokens[1], "license_key", key, "fingerprint", "another").is(403, "fingerprint_mismatch")
	s.post("/widget/license/activate", `{}`, tokens[1]).is(200, "activated")
	for _, table := range []string{"devices", "license_keys", "licenses"} {
		s.sql(`DELETE FROM ` + table)
	}
	s.verifyLease(lease).answers("not_found")
	s.activateByToken(lease).is(404, "license_not_found")
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
	for i, n := range []int{1, 50} {
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

func TestLease_neverGoesPastTheEndOfGrace(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 700, time.UTC)
	hour := func(n int) stamp { return newStamp(now.Add(time.Duration(n) * time.Hour)) }
	for name, c := range map[string]struct {
		l       license
		end     stamp
		refresh time.Duration
	}{
		"14 days":  {license{terms: terms{LeaseHours: 336}}, hour(336), 24 * time.Hour},
		"two days": {license{terms: terms{LeaseHours: 48}}, hour(48), 24 * time.Hour},
		"47 hours": {license{terms: terms{LeaseHours: 47}}, hour(47), 23*time.Hour + 30*time.Minute},
		"the licence ends first": {license{ExpiresAt: hour(5), terms: terms{LeaseHours: 336}}, hour(5),
			150 * time.Minute},
		"the licence's grace ends first": {license{ExpiresAt: hour(5),
			terms: terms{LeaseHours: 336, GraceDays: 2}}, hour(53),
			24 * time.Hour},
		"in grace": {license{ExpiresAt: hour(-5), terms: terms{LeaseHours: 336, GraceDays: 1}}, hour(19),
			570 * time.Minute},
		"a minute before the end": {license{ExpiresAt: newStamp(now.Add(time.Minute)), terms: terms{LeaseHours: 336}},
			newStamp(now.Add(time.Minute)), time.Minute},
		"the lease ends first": {license{ExpiresAt: hour(5), terms: terms{LeaseHours: 3}}, hour(3), 90 * time.Minute},
		"both end at once":     {license{ExpiresAt: hour(5), terms: terms{LeaseHours: 5}}, hour(5), 150 * time.Minute},
	} {
		sameText(t, name, c.l.leaseEnd(now), c.end)
		got := leaseClaims(&c.l, &device{}, now, "")
		sameText(t, name, got.Expires, c.end.Unix(), got.IssuedAt, now.Unix(), got.RefreshAfter,
			int64(c.refresh/time.Second))
		if last := c.l.graceUntil(); !last.IsZero() &&
			(got.GraceEnd != last.Unix() || got.LicenseEnd != c.l.ExpiresAt.Unix() || got.Expires > got.GraceEnd) {
			t.Errorf("%s: lexp %d, gexp %d, exp %d", name, got.LicenseEnd, got.GraceEnd, got.Expires)
		}
	}
}

func TestLease_afterItsEndNamesItsDeviceForAYearAndOpensNothingElse(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{terms: terms{LeaseHours: 1}})
		act := s.activate(key, "f").is(200)
		lease := act.text("token")
		auth := bearer(lease)
		widget := s.addWidget(s.account)
		s.get("/licenses/"+id, auth).challenged(403, "insufficient_scope", scopeChallenge(scopeLicenses))
		s.get("/widget/stats?widget="+widget, auth).challenged(403, "insufficient_scope", scopeChallenge(scopeStats))
		time.Sleep(time.Hour + clockSkew)
		s.get("/licenses/"+id, auth).invalidToken()
		s.get("/widget/stats?widget="+widget, auth).invalidToken()
		sameText(t, "after its end", s.lease(s.verifyLease(lease).answers("valid")).Seq, 2)
		time.Sleep(expiredTokenWindow - time.Second)
		c := s.lease(s.verifyLease(lease).answers("valid"))
		sameText(t, "almost a year after its end", c.Seq, 3, c.Expires, time.Now().Add(time.Hour).Unix())
		s.post("/widget/license/activate", `{}`, auth).is(200)
		s.post("/widget/license/deactivate", `{}`, auth).is(200).tells("released", true)
		time.Sleep(time.Second)
		for _, path := range []string{"verify", "activate", "deactivate"} {
			s.post("/widget/license/"+path, `{}`, auth).invalidToken()
		}
		// A portal's token is never late.
		portal := s.auth(s.account, scopeAdmin)
		time.Sleep(time.Hour + clockSkew)
		s.post("/widget/license/verify", seatBody("license_key", key), portal).invalidToken()
	})
}

func TestVerify_renewsALeasePastItsRefresh(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{terms: terms{LeaseHours: 10}})
		act := s.activate(key, "f").is(200)
		dev, first := act.text("device", "id"), act.text("token")
		time.Sleep(5*time.Hour - time.Second)
		s.verifyLease(first).answers("valid").omits(`"token"`).tells("refresh_after", 18000)
		time.Sleep(time.Second)
		second := s.verifyLease(first).answers("valid")
		c := s.lease(second)
		sameText(t, "the next lease", c.Seq, 2, c.IssuedAt, time.Now().Unix(), c.Expires,
			time.Now().Add(10*time.Hour).Unix(), second.json()["expires_in"], 36000.0)
		// Whoever goes on with the old one gets the same for a minute, without a write.
		written := s.store.committedJobs.Load()
		for range 59 {
			time.Sleep(time.Second)
			again := s.verifyLease(first).answers("valid")
			sameText(t, "within a minute", again.text("token"), second.text("token"),
				again.json()["expires_in"].(float64), float64(c.Expires-time.Now().Unix()))
		}
		sameText(t, "that wrote", s.store.committedJobs.Load(), written)
		time.Sleep(time.Second)
		third := s.verifyLease(first).answers("valid")
		sameText(t, "after a minute: seq", s.lease(third).Seq, 3)
		s.deviceIs(dev, `lease_seq = 3 AND presented_seq = 1`)
		// The highest number that was shown is kept.
		time.Sleep(time.Minute)
		s.verifyLease(third.text("token")).answers("valid")
		time.Sleep(time.Minute)
		s.verifyLease(second.text("token")).answers("valid")
		s.deviceIs(dev, `presented_seq = 3 AND state = 'active'`)
	})
}

func TestVerify_signsATokenThatFollowsItsRowsHoweverTheyWereChanged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{terms: terms{Kind: kindFloating, MaxDevices: ptr(2), LeaseHours: 2}})
		s.activate(key, "f").is(200)
		now := time.Now()
		for _, change := range []struct {
			sql     string
			seq     int64
			expires time.Time
		}{
			// earlier: synctest's clock begins in 2000
			{`UPDATE licenses SET expires_at = strftime('%Y-%m-%dT%H:%M:%SZ', 946684800 + 3600, 'unixepoch')`, 1,
				now.Add(time.Hour)},
			{`UPDATE licenses SET product = 'pos'`, 1, now.Add(time.Hour)},
			// the seat is held longer, too
			{`UPDATE licenses SET expires_at = NULL, lease_hours = 10`, 2, now.Add(10 * time.Hour)},
			{`UPDATE licenses SET kind = 'node_locked', lease_hours = 20`, 3, now.Add(20 * time.Hour)},
			{`UPDATE base_urls SET is_current = 0`, 3, now.Add(20 * time.Hour)},
		} {
			s.sql(change.sql)
			if strings.Contains(change.sql, "base_urls") {
				s.sql(`INSERT INTO base_urls VALUES ('https://new.example/v1', 1, '2000-01-01T00:00:00Z')`)
			}
			s.check(s.server.refresh())
			l, err := s.store.license(anyAccount, id)
			s.check(err)
			base, err := s.store.baseURLs()
			s.check(err)
			a := s.verifyKey(key, "f").answers("valid")
			c := s.lease(a)
			sameText(t, change.sql, c.Expires, change.expires.Unix(), c.Product, l.Product, c.Seq, change.seq, c.Issuer,
				base[0].URL, a.json()["expires_in"], float64(c.Expires-now.Unix()))
		}
		time.Sleep(19 * time.Hour)
		s.advance()
		s.verifyKey(key, "f").answers("valid") // what was floating is held by no lease any more
	})
}

func TestVerify_signsANonceWithTheSameNumberWithinAMinute(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{})
		act := s.activate(key, "f", "nonce", "n0").is(200)
		first := s.lease(act)
		written := s.store.committedJobs.Load()
		jtis := map[string]bool{first.ID: true}
		for i := range 5 {
			time.Sleep(10 * time.Second)
			nonce := fmt.Sprint("n", i+1)
			a := s.verifyLease(act.text("token"), "nonce", nonce).answers("valid")
			c := s.lease(a)
			a.tells("nonce", nonce)
			sameText(t, "claims", c.Seq, 1, c.Nonce, nonce, jtis[c.ID], false, c.IssuedAt, time.Now().Unix())
			jtis[c.ID] = true
		}
		sameText(t, "that wrote", s.store.committedJobs.Load(), written)
		time.Sleep(10 * time.Second)
		c := s.lease(s.verifyLease(act.text("token"), "nonce", "m").answers("valid"))
		sameText(t, "after a minute", c.Seq, 2, c.Nonce, "m")
		// A lease with a nonce is for its client only.
		c = s.lease(s.verifyKey(key, "f").answers("valid"))
		sameText(t, "without a nonce", c.Nonce, "", c.Seq, 2)
	})
}

func TestLease_isNotSuspectedByARestoredDatabase(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{terms: terms{LeaseHours: 2}})
		token := s.activate(key, "a").is(200).text("token")
		renew := func(path, body string) {
			t.Helper()
			time.Sleep(time.Hour)
			token = s.post("/widget/license/"+path, body, bearer(token)).is(200).text("token")
		}
		for range 5 {
			renew("verify", `{}`)
		}
		for _, path := range []string{"verify", "activate"} {
			s.sql(`UPDATE devices SET lease_seq = 2, presented_seq = 1`)
			for range 3 {
				renew(path, `{}`)
			}
		}
		c, err := s.keys.verify(token)
		s.check(err)
		sameText(t, "seq", c.Seq, 12)
		sameText(t, "suspicions", strings.Count(s.eventTypes(id), "clone_suspected"), 0)
	})
}

// longestCodes are entitlements that take as many bytes as a licence may have.
func longestCodes(length int) (codes []string) {
	for i, left := 0, maxCodesBytes; left > 0; i++ {
		n := min(length, left-len(`"",`))
		if rest := left - len(`"",`) - n; rest > 0 && rest < len(`"",`)+2 {
			n = left - 2*len(`"",`) - 2
		}
		codes = append(codes, fmt.Sprintf("%0*d", n, i))
		left -= len(`"",`) + n
	}
	return codes
}

// Whatever terms are accepted, the service accepts the leases that it gives for them, however
// long the base address, the nonce and the numbers.
func TestLease_ofTheLongestTermsIsAcceptedByTheService(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	admin := s.auth(s.account, scopeAdmin)
	tooMany := append(longestCodes(17), "x")
	wrong := fmt.Sprintf("#/entitlements/%d too_long", len(tooMany)-1)
	s.post("/licenses", string(encodeJSON(map[string]any{"account_id": s.account, "product": "kds",
		"entitlements": tooMany})), admin).is(422, "validation_failed").names(wrong)
	id, _ := s.addLicense(license{})
	s.do("PATCH", "/licenses/"+id, string(encodeJSON(map[string]any{"entitlements": tooMany})), admin).is(422,
		"validation_failed").names(wrong)

	large := fmt.Sprintf(`{"account_id":%q,"product":"kds","metadata":{"a":%q}}`, s.account,
		strings.Repeat("x", 16<<10))
	s.post("/licenses", large, admin).is(422, "validation_failed").names("#/metadata too_long")
	base := "https://api.example.com/"
	base += strings.Repeat("a", maxBaseURL-len(base+"/v1")) + "/v1"
	s.change(func(t *tx) error {
		t.setBaseURL(base)
		return nil
	})
	s.check(s.server.refresh())
	longest := 0
	for i, letter := range []string{"x", "<", ">", "&", `"`, `\`, "\u2028", "\u2029", "é", "日", "😀"} {
		codes := longestCodes([]int{64, 9, 17}[i%3])
		terms := map[string]any{"account_id": s.account, "product": strings.Repeat(letter, maxNameLength),
			"entitlements": codes, "expires_at": "8999-12-31T23:59:59Z", "grace_days": maxGraceDays,
			"lease_hours": maxLeaseHours, "max_devices": 1}
		a := s.post("/licenses", string(encodeJSON(terms)), admin).is(200)
		fingerprint := fingerprintHash("f")
		s.sql(`INSERT INTO devices (id, license_id, fingerprint, state, lease_seq, activated_at, last_seen_at)
			VALUES (?1, ?2, ?3, 'active', 9223372036854775000, '2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z')`,
			newID("dev", time.Now()), a.text("id"), fingerprint[:])
		for _, nonce := range []string{strings.Repeat(`"`, maxNonce), strings.Repeat("<", maxNonce),
			strings.Repeat("n", maxNonce)} {
			asked := map[string]string{"license_key": a.text("key"), "fingerprint": "f", "nonce": nonce}
			token := s.post("/widget/license/activate", string(encodeJSON(asked))).is(200).text("token")
			longest = max(longest, len(token))
			if v := s.post("/widget/license/verify",
				string(encodeJSON(map[string]string{"fingerprint": "f", "nonce": nonce})),
				bearer(token)).is(200).json(); v["valid"] != true {
				t.Errorf("a lease of %d bytes for products of %q: %v", len(token), letter, v)
			} else if again := v["token"].(string); len(again) > maxTokenBytes {
				t.Errorf("a lease of %d bytes for products of %q", len(again), letter)
			}
		}
	}
	if longest > maxTokenBytes || longest < maxTokenBytes-100 {
		t.Errorf("the longest lease has %d bytes", longest)
	}
}

// Only the sqlite3 shell can give a licence such terms.
func TestLease_longerThanATokenMayBeIsNotGivenAndTheLogSaysWhy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1)}})
	s.sql(`UPDATE licenses SET product = printf('%.3000c', 'x')`)
	asked := `{"license_key":"` + key + `","fingerprint":"f"}`
	s.post("/widget/license/activate", asked).is(500, "internal")
	contains(t, s.log.String(), "the product and entitlements of "+id+
		" are too long, so shorten these: a token with these claims has 4")
	s.counts(0, `SELECT count(*) FROM devices`)
	s.sql(`UPDATE licenses SET product = 'kds'`)
	s.post("/widget/license/activate", asked).is(200)
}

func TestLease_isExplainedByInspectWithThePublicKeysAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1), Entitlements: []string{"kds", "reports"}}})
	token := s.activate(key, "a").is(200).text("token")
	public := filepath.Join(s.dir, "public.pem")
	s.check(os.WriteFile(public, []byte(s.must("key", "public")), 0o600))
	out := s.must("lease", "inspect", token, "-public", public, "-fingerprint", "a")
	contains(t, out, "alg        EdDSA", "kds reports", "SHA-256 of the device's fingerprint",
		"The lease is valid: its signature is right, and it expires in 14 days.",
		"Not compared, because -audience is not given")
	if out := s.must("lease", "inspect", token, "-public", public, "-fingerprint", "a", "-audience",
		testBase); strings.Contains(out, "Not compared") {
		t.Error(out)
	}
	c, err := s.keys.verify(token)
	s.check(err)
	c.Expires = time.Now().Unix()
	ended, err := s.keys.sign(c)
	s.check(err)
	bearer := s.token(s.account, scopeStats)
	for fault, args := range map[string][]string{
		"another device's fingerprint":           {token, "-public", public, "-fingerprint", "b"},
		"it is for another service: " + testBase: {token, "-public", public, "-audience", "https://other.example/v1"},
		"it ended at 20":                         {ended, "-public", public, "-fingerprint", "a"},
		"signature can't be verified": {token[:strings.LastIndexByte(token, '.')+1] +
			strings.Repeat("A", 86), "-public", public},
		"it is not a device token":                  {bearer, "-public", public},
		"there is no public key in it":              {token, "-public", filepath.Join(s.dir, "widgetd.db")},
		"-public FILE is needed":                    {token},
		"not a token of this service":               {"rubbish", "-public", public},
		"a block that is not an Ed25519 public key": {token, "-public", s.keyFile()},
		"the lease is not valid: it is not a dev":   {bearer, "-public", public, "-json"},
	} {
		s.fails(fault, append([]string{"lease", "inspect"}, args...)...)
	}
	loud := base64.RawURLEncoding.EncodeToString([]byte(`{"\u001b[31mx":1,"alg":"\u001b[31m"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"\u001b[31m"}`)) + ".x"
	if out, err := s.command("lease", "inspect", loud, "-public", public); err == nil ||
		strings.Contains(out, "\x1b") || !strings.Contains(out, "[31m") {
		t.Errorf("a token that plays with the terminal: %v, %q", err, out)
	}
	if out, _ := s.command("lease", "inspect", loud, "-public", public, "-json"); !strings.HasPrefix(out,
		`{"claims":null,`) {
		t.Errorf("claims that nobody signed: %s", out)
	}
}

// TestLease_isJudgedByOpenSSLAndJQ runs the check that docs/operating.md shows.
func TestLease_isJudgedByOpenSSLAndJQ(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sh", "openssl", "jq", "base64")
	s := newService(t)
	_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1)}})
	token := s.activate(key, "kitchen-1").is(200).text("token")
	s.must("key", "add")
	s.must("key", "rotate", "-force") // two keys are public, and another signed the lease than signs now
	public, pinned := s.must("key", "public"), filepath.Join(s.dir, "public.pem")
	s.check(os.WriteFile(pinned, []byte(public), 0o600))
	signs, err := exec.Command("openssl", "pkey", "-in", s.keyFile(), "-pubout").Output()
	s.check(err)
	_, first, _ := strings.Cut(public, "\n") // below the line that names it
	failIf(t, !strings.HasPrefix(first, string(signs)), "openssl reads the key file as %s", signs)
	s.must("lease", "inspect", token, "-public", pinned, "-fingerprint", "kitchen-1")
	script := documentBlock(t, "# lease-check\n")
	check := func(token, fingerprint, audience string) (string, error) {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = s.dir
		cmd.Env = append(os.Environ(), "TOKEN="+token, "FINGERPRINT="+fingerprint, "AUDIENCE="+audience)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := check(token, "kitchen-1", testBase); err != nil || !strings.Contains(out, "the lease holds") {
		t.Fatalf("%v: %s", err, out)
	}
	for name, bad := range map[string][3]string{
		"another device":  {token, "kitchen-2", testBase},
		"another service": {token, "kitchen-1", "https://other.example/v1"},
		"another signature": {token[:strings.LastIndexByte(token, '.')+1] + strings.Repeat("A", 86), "kitchen-1",
			testBase},
		"other claims": {strings.Replace(token, ".ey", ".eyJ", 1), "kitchen-1", testBase},
	} {
		if out, err := check(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%s: it holds: %s", name, out)
		}
	}
}
