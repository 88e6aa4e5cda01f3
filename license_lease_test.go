package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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
		"an hour":  {license{terms: terms{LeaseHours: 1}}, hour(1), 30 * time.Minute},
		"90 days":  {license{terms: terms{LeaseHours: 2160}}, hour(2160), 24 * time.Hour},
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
	s.check(os.WriteFile(filepath.Join(s.dir, "public.pem"), []byte(s.must("key", "public")), 0o600))
	ring, err := loadKeyring(s.keyFile())
	s.check(err)
	c, err := s.keys.verify(token)
	s.check(err)
	byNew, err := ring.sign(c)
	s.check(err)
	script := documentBlock(t, "# lease-check\n")
	check := func(token, fingerprint, audience string) (string, error) {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = s.dir
		cmd.Env = append(os.Environ(), "TOKEN="+token, "FINGERPRINT="+fingerprint, "AUDIENCE="+audience)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, good := range []string{token, byNew} {
		if out, err := check(good, "kitchen-1", testBase); err != nil || !strings.Contains(out, "the lease holds") {
			t.Fatalf("%v: %s", err, out)
		}
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
