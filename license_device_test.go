package main

import (
	"database/sql"
	"encoding/base64"
	"fmt"
	"html"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
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

// activateOffline asks for an offline lease by key; more are members of the body.
func (s *service) activateOffline(key, fingerprint string, more ...any) answer {
	s.t.Helper()
	return s.activate(key, fingerprint, append(more, "offline", true, "nonce", "n-"+fingerprint)...)
}

// addOfflineLicense adds a licence with one seat, some transfers and offline leases of 100 days.
func (s *service) addOfflineLicense(transfers int) (id, key string) {
	s.t.Helper()
	return s.addLicense(license{terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(transfers), OfflineDays: 100}})
}

// Nobody who has the key or the token may have a lease that can't be recalled and free its seat for another machine.
func TestOffline_seatIsNotFreedBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addOfflineLicense(5)
		first := s.activateOffline(key, "till").is(200)
		token, device := first.text("token"), first.text("device", "id")
		until := newStamp(time.Now().Add(days(100)))
		held := func() {
			t.Helper()
			s.deactivate(key, "till").is(200).tells("released", false, "until", until)
			s.deactivateByToken(token).is(200).tells("released", false, "until", until)
			s.activate(key, "thief").is(409, "seat_limit_reached").tells("devices.0", nil)
			s.activate(key, "thief", "replace_device_id", device).is(409, "held_offline").tells("until", until)
			s.activateOffline(key, "thief", "replace_device_id", device).is(409, "held_offline")
			s.activateByToken(token, "fingerprint", "thief").is(409, "held_offline").tells("until", until)
			s.verifyLease(token, "fingerprint", "thief").answers("fingerprint_mismatch")
			s.deviceIs(device, `state = 'active' AND offline_until = ?`, until)
			s.counts(1, `SELECT counting FROM license_seats`)
		}
		held()
		time.Sleep(days(2))
		token = s.verifyKey(key, "till").answers("valid").text("token") // an ordinary lease changes nothing
		s.activate(key, "till").is(200, "already_active").tells("offline_until", until)
		token = s.verifyLease(token, "nonce", "x").text("token")
		held()
		s.must("license", "suspend", id)
		s.notice()
		s.deactivate(key, "till").is(200).tells("released", false, "until", until)
		s.must("license", "reinstate", id)
		s.notice()
		time.Sleep(time.Until(until.Time) - time.Second)
		held()
		time.Sleep(time.Second)
		s.activateByToken(token, "fingerprint", "new disk").is(200, "already_active").omits("offline_until")
		s.deactivate(key, "new disk").is(200).tells("released", true).omits("until")
		s.activate(key, "another").is(200, "activated")
	})
}

func TestKey_retireCountsOfflineLeasesThatAnotherKeyHasFollowed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addOfflineLicense(0)
		a := s.activateOffline(key, "till").is(200)
		first := s.keys.signer().kid
		s.must("key", "add")
		s.must("key", "rotate", "-force")
		s.server.followKeys(s.keyFile())
		time.Sleep(days(1))
		s.verifyLease(a.text("token")).answers("valid") // somebody with a network has the next lease, of the new key
		time.Sleep(days(99) - time.Second)
		oneLine(t, s.failure("key", "retire", first), "1 unexpired device lease")
		time.Sleep(time.Second)
		s.must("key", "retire", first)
	})
}

// carries posts an activation request to the page, with a button.
func (s *service) carries(request, button string, headers ...string) answer {
	s.t.Helper()
	form := url.Values{"request": {request}, "answer": {button}}
	return s.post("/activate", form.Encode(), append(headers, formType)...)
}

// shownLease is the lease on a page, or "".
func (a answer) shownLease() string {
	found := captures(`(?s)<textarea[^>]* id="lease"[^>]*>(.*?)</textarea>`, a.body)
	return html.UnescapeString(strings.Join(found, ""))
}

// TestActivatePage_showsTheLeaseAndThenSavesTheSame: below the lease are a button that copies it, one that saves the
// same, and a link to begin anew; the key is shown no more, and neither is in the log or in the file.
func TestActivatePage_showsTheLeaseAndThenSavesTheSame(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addOfflineLicense(0)
		s.sql(`INSERT INTO account_settings (account_id, zone) VALUES (?, 'Asia/Tokyo')`, s.account)
		s.get("/activate").is(200).has("Cache-Control: no-store", "Content-Type: text/html; charset=utf-8").shows(
			"<h1>Activate a device without a network</h1>", `<form method="post" action="./activate"`, "not <script")
		request := "{\n  \"license_key\": \"" + key + "\",\r\n\"fingerprint\":\"<b>till\", \"nonce\": \"n-1\"}\n"
		page := s.carries(request, "").is(200).has("Cache-Control: no-store", "Referrer-Policy: same-origin")
		page.shows("The device is activated", "kds", "10\u00a0April 2000, 09:00 (Asia/Tokyo)</dd>", "&lt;b&gt;till",
			"not <b>till", ">Copy</button>", ">Save the lease as a file</button>", "not rows=\"8\"",
			`<a href="./activate">Activate another device</a>`)
		page.has("Content-Security-Policy: " + guestPolicy() + "; script-src '" +
			hashSource(embedded("web/activate.js")) + "'; connect-src 'self'")
		lease := page.shownLease()
		c, err := s.keys.verify(lease)
		s.check(err)
		sameText(t, "the lease", c.Nonce, "n-1", c.Expires, time.Now().Add(days(100)).Unix(),
			leaseFault(c, "<b>till", testBase, time.Now()), "")
		file := s.carries(request, "file").is(200).has("Cache-Control: no-store", "Content-Type: application/jwt",
			`Content-Disposition: attachment; filename="lease.jwt"`)
		sameText(t, "the file", file.body, lease+"\n")
		_, fields := page.form("request")
		sameText(t, "the file by the page's own form", s.carries(fields.Get("request"), "file").is(200).body, file.body)
		for _, secret := range []string{key, lease} {
			equal(t, "files with the key or the lease", traces(t, s.dir, strings.ToLower(secret)), nil)
			lacks(t, s.log.String(), secret)
		}
		s.counts(1, `SELECT lease_seq FROM devices`)
		time.Sleep(days(2))
		if later := s.carries(request, "file").is(200).body; later == file.body {
			t.Error("two days later a request gets no other lease")
		}
		s.carries(request, "", "Accept-Language: de-CH").is(200).shows(`<html lang="de">`, "Das Gerät ist aktiviert")
		s.must("license", "rotate-key", id)
		s.notice()
		s.carries(request, "").is(403) // although the request has been answered
	}, func(_ *storeOptions, o *serverOptions) { o.accessLog = true })
}

// Against anybody with the page /activate who would guess keys, or find one in a log or a URL: the same guards by
// address as the calls of devices; the request is posted and never a query.
func TestActivatePage_saysWhatIsWrongAndKeepsWhatWasPasted(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addOfflineLicense(0)
	request := func(members ...any) string { return activateBody(key, "till", append(members, "nonce", "n")...) }
	wrongKey := activateBody(mistype(key), "till", "nonce", "n")
	for _, c := range []struct {
		request string
		status  int
		text    string
	}{
		{"", 400, "isn’t an activation request"},
		{"eyJhbGciOi<script>", 400, "isn’t an activation request"},
		{request() + request(), 400, "isn’t an activation request"},
		{`{"license_key":"` + key + `"}`, 422, "<code>fingerprint</code> <code>nonce</code>"},
		{activateBody(key, "till"), 422, "Missing or wrong: <code>nonce</code>"},
		{strings.Replace(request(), "nonce", "n0nce", 1), 422, "Missing or wrong: <code>nonce</code>"},
		{wrongKey, 422, "The licence key in the request isn’t valid"},
		{request("product", "another", "of_a_later_version", "x"), 403, "The licence is for another product."},
	} {
		page := s.carries(c.request, "file").is(c.status).has("Cache-Control: no-store")
		page.shows("The device was not activated", c.text, "not <script", "not "+key[:11]+"<",
			html.EscapeString(strings.TrimSpace(c.request)))
		if page.header.Get("Content-Disposition") != "" || page.shownLease() != "" {
			t.Errorf("a refusal is a file, or has a lease: %s", page.body)
		}
	}
	s.counts(0, `SELECT count(*) FROM devices`)
	s.activate(key, "first").is(200)
	s.carries(request(), "").is(409).shows("All devices that the licence allows are activated.")
	s.must("license", "suspend", id)
	s.notice()
	s.carries(request(), "").is(403).shows("The licence can’t be used")
	s.get("/activate?request=" + url.QueryEscape(request())).is(200).omits(key)
	s.post("/activate", request()).is(415)
	s.post("/activate", "request=%zz", formType).is(422).shows("This request isn’t valid")
}

// The page is no way around what protects keys from being guessed, and takes no account's requests.
func TestActivatePage_isLimitedByAddress(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addOfflineLicense(0)
		for i := range 60 {
			s.carries(fmt.Sprint("no request ", i), "").is(400)
		}
		s.carries(activateBody(key, "till", "nonce", "n"), "").is(429).shows("Too many requests", "not "+key)
		s.get("/activate").is(429)
		time.Sleep(time.Minute)
		for range 30 {
			s.carries(activateBody(newLicenseKey(), "till", "nonce", "n"), "").is(404)
		}
		s.carries(activateBody(key, "till", "nonce", "n"), "").is(429) // known or not
		s.activate(key, "till").is(429)                                // the same guard counts both
		time.Sleep(time.Minute)
		s.carries(activateBody(key, "till", "nonce", "n"), "").is(200).has(
			`RateLimit-Policy: "licenses";q=600;w=60`)
	})
}

// TestDocs_devicesLiveWithoutANetwork runs the programs of the page through the life of a device.
func TestDocs_devicesLiveWithoutANetwork(t *testing.T) {
	takesLong(t, "runs the programs of the documentation")
	notUnderRace(t, "programs in other languages do the work")
	t.Parallel()
	for id, c := range map[string]struct {
		check   [2]string // sample and file of the check of a lease
		file    string
		needs   []string
		command []string
	}{
		"device-shell": {[2]string{"openssl", "lease.sh"}, "device.sh",
			[]string{"sh", "openssl", "jq", "base64", "curl"}, []string{"sh", "device.sh"}},
		"device-node": {[2]string{"node", "lease.mjs"}, "device.mjs", []string{"node"}, []string{"node", "device.mjs"}},
		"device-python": {[2]string{"python", "lease.py"}, "device.py", []string{"python3", "openssl"},
			[]string{"python3", "device.py"}},
		"device-go": {[2]string{"go", "lease.go"}, "device.go", []string{"go"}, []string{"./device"}},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			programsOrSkip(t, c.needs...)
			triedInFull(t, c.command)
			s := newService(t)
			saveSample(s, c.check[0], c.check[1])
			saveSample(s, id, c.file)
			s.check(os.WriteFile(filepath.Join(s.dir, "public.pem"), []byte(s.must("key", "public")), 0o600))
			liveOffline(s, c.command, s.atItsBase())
		})
	}
}

// liveOffline has a program be a device: it asks, is activated, starts, meets a network, can't leave, and stops once
// the operator has taken its seat away.
func liveOffline(s *service, command []string, base string) {
	s.t.Helper()
	id, key := s.addOfflineLicense(2)
	env := append(os.Environ(), "FINGERPRINT=till-1", "PRODUCT=kds", "AUDIENCE="+base, "LICENSE_KEY="+key)
	says := func(what, input string, env []string) (said string, ok bool) {
		s.t.Helper()
		cmd := exec.Command(command[0], append(command[1:], what)...)
		cmd.Dir, cmd.Env, cmd.Stdin = s.dir, env, strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err == nil
	}
	wants := func(what, input, want string, works bool) {
		s.t.Helper()
		if said, ok := says(what, input, env); said != want || ok != works {
			s.t.Errorf("%s says %q, %v; want %q", what, said, ok, want)
		}
	}
	request, _ := says("request", "", env)
	lease := s.carries(request, "file").is(200).body
	other := strings.Replace(request, "till-1", "till-2", 1)
	s.sql(`UPDATE licenses SET max_devices = 2 WHERE id = ?`, id)
	s.notice()
	wants("take", s.carries(other, "file").is(200).body, "the lease does not hold: it is of another device", false)
	wants("take", strings.TrimSpace(lease)+"\r\n", "activated", true)
	wants("start", "", "the lease holds", true)
	wants("online", "", "valid", true)
	kept, err := os.ReadFile(filepath.Join(s.dir, "lease.jwt"))
	s.check(err)
	sameText(s.t, "the lease that ends last", strings.TrimSpace(string(kept)), strings.TrimSpace(lease))
	again := s.activate(key, "till-1").is(200)
	device := again.text("device", "id")
	wants("leave", "", "kept until "+again.text("offline_until"), true)
	says("request", "", env)
	wants("take", lease, "it answers another request", false)
	offline := append(slices.Clone(env), "AUDIENCE=http://127.0.0.1:1/v1")
	for command, want := range map[string]string{"online": "not known now", "leave": "not released"} {
		if said, ok := says(command, "", offline); said != want || !ok {
			s.t.Errorf("without a network %s says %q, %v", command, said, ok)
		}
	}
	s.release(id, device)
	wants("start", "", "the lease holds", true)
	wants("online", "", "device_released", true)
	if _, ok := says("start", "", env); ok {
		s.t.Error("it starts without a lease")
	}
}

// TestDocs_sellingLeadsFromAnOrderToAnActivatedTill runs the lines of the page.
func TestDocs_sellingLeadsFromAnOrderToAnActivatedTill(t *testing.T) {
	t.Parallel()
	takesLong(t, "runs the programs of the documentation")
	programsOrSkip(t, "sh", "openssl", "jq", "base64", "curl")
	s := newService(t)
	saveSample(s, "openssl", "lease.sh")
	saveSample(s, "device-shell", "device.sh")
	saveSample(s, "selling", "selling.sh")
	s.check(os.WriteFile(filepath.Join(s.dir, "public.pem"), []byte(s.must("key", "public")), 0o600))
	base := s.atItsBase()
	token := strings.TrimSpace(s.must("token", "issue", "-account", s.account, "-scope", scopeIssuing))
	cmd := exec.Command("sh", "selling.sh")
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "BASE="+base, "AUDIENCE="+base, "TOKEN="+token, "ORDER=shop-1042",
		"FINGERPRINT=till-1", "PRODUCT=kitchen-display")
	out, err := cmd.CombinedOutput()
	sameText(t, "the lines", strings.TrimSpace(string(out)), "activated", err, nil)
	s.counts(1, `SELECT count(*) FROM licenses l JOIN plans p ON p.id = l.plan_id JOIN devices d ON d.license_id = l.id
		WHERE l.reference = 'shop-1042' AND d.offline_until > d.activated_at AND l.offline_days = 180`)
}
