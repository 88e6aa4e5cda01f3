package main

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheOfflineClockTrustsOnlyWhatWasSignedAndWhatHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{MaxDevices: ptr(1)}) // a lease of 14 days
		c, err := s.keys.verify(s.activate(key, "a").is(200).text("token"))
		s.check(err)
		signed := time.Unix(c.IssuedAt, 0)
		const day = 24 * time.Hour
		for name, test := range map[string]struct {
			wall    time.Time     // what the device's clock says
			running time.Duration // since the token came, by the monotonic clock
			mark    int64         // what the device had saved before the token came
			holds   bool
		}{
			"right":                                      {signed.Add(day), day, 0, true},
			"right, at the end":                          {signed.Add(14*day - time.Second), 0, 0, true},
			"right, past the end":                        {signed.Add(14 * day), 0, 0, false},
			"back by a year":                             {signed.Add(-365 * day), day, 0, true},
			"back by a year, used up":                    {signed.Add(-365 * day), 14 * day, 0, false},
			"forward by ten years":                       {signed.Add(3653 * day), day, 0, false},
			"boot in 1970":                               {time.Unix(60, 0), time.Hour, 0, true},
			"boot in 1970, used up":                      {time.Unix(60, 0), 14 * day, 0, false},
			"30 days off":                                {signed.Add(30 * day), 0, 0, false},
			"a mark restored from before the token":      {signed, 0, signed.Add(-90 * day).Unix(), true},
			"a mark from an earlier token, clock behind": {signed.Add(-90 * day), 13 * day, signed.Add(-day).Unix(), true},
		} {
			clock := offlineClock{mark: test.mark}
			clock.signed(c.IssuedAt)
			clock.elapsed(test.running)
			if fault := leaseFault(c, "a", testBase, clock.now(test.wall)); (fault == "") != test.holds {
				t.Errorf("%s: holds %v (%s), want %v", name, fault == "", fault, test.holds)
			}
		}
		// A clock that was wrong for a while leaves nothing behind.
		clock := offlineClock{}
		clock.signed(c.IssuedAt)
		if leaseFault(c, "a", testBase, clock.now(signed.Add(3653*day))) == "" {
			t.Error("in ten years the lease still holds")
		}
		clock.elapsed(-time.Hour)
		if fault := leaseFault(c, "a", testBase, clock.now(signed.Add(time.Hour))); fault != "" {
			t.Errorf("the future poisoned the mark: %s", fault)
		}
		for fault, got := range map[string]string{
			"bound to another device": leaseFault(c, "b", testBase, signed),
			"for another service":     leaseFault(c, "a", "https://other.example/v1", signed),
			"no device's lease":       leaseFault(claims{Expires: c.Expires}, "", "", signed),
		} {
			if !strings.Contains(got, fault) {
				t.Errorf("%q does not say %q", got, fault)
			}
		}
	})
}

func TestInspectExplainsALeaseWithThePublicKeysAlone(t *testing.T) {
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1), Entitlements: codeList{"kds", "reports"}})
	token := s.activate(key, "a").is(200).text("token")
	public := filepath.Join(s.dir, "public.pem")
	s.check(os.WriteFile(public, []byte(s.must("key", "public")), 0o600))
	out := s.must("lease", "inspect", token, "-public", public, "-fingerprint", "a")
	for _, want := range []string{"alg        EdDSA", "kds reports", "SHA-256 of the device's fingerprint", "The lease holds: the signature is right, and it ends in 14 days.", "Not compared, for want of -audience"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if out := s.must("lease", "inspect", token, "-public", public, "-fingerprint", "a", "-audience", testBase); strings.Contains(out, "Not compared") {
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
		"signature does not hold":                {token[:strings.LastIndexByte(token, '.')+1] + strings.Repeat("A", 86), "-public", public},
		"it is no device's lease":                {bearer, "-public", public},
		"there is no public key in it":           {token, "-public", filepath.Join(s.dir, "widgetd.db")},
		"-public FILE is needed":                 {token},
		"no token of this service":               {"rubbish", "-public", public},
		"a block is no Ed25519 public key":       {token, "-public", filepath.Join(s.dir, "widgetd.key")},
		"the lease does not hold: it is no dev":  {bearer, "-public", public, "-json"},
	} {
		if _, err := s.command(append([]string{"lease", "inspect"}, args...)...); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%v: %v, want %q", args[1:], err, fault)
		}
	}
	loud := base64.RawURLEncoding.EncodeToString([]byte(`{"\u001b[31mx":1,"alg":"\u001b[31m"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"\u001b[31m"}`)) + ".x"
	if out, err := s.command("lease", "inspect", loud, "-public", public); err == nil || strings.Contains(out, "\x1b") || !strings.Contains(out, "[31m") {
		t.Errorf("a token that plays with the terminal: %v, %q", err, out)
	}
	if out, _ := s.command("lease", "inspect", loud, "-public", public, "-json"); !strings.HasPrefix(out, `{"claims":null,`) {
		t.Errorf("claims that nobody signed: %s", out)
	}
}

// TestOpenSSLAndJQJudgeALease runs the check that the README shows.
func TestOpenSSLAndJQJudgeALease(t *testing.T) {
	programsOrSkip(t, "sh", "openssl", "jq", "base64")
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1)})
	token := s.activate(key, "kitchen-1").is(200).text("token")
	s.must("key", "add")
	s.must("key", "rotate", "-force") // two keys are public, and another signed the lease than signs now
	s.check(os.WriteFile(filepath.Join(s.dir, "public.pem"), []byte(s.must("key", "public")), 0o600))
	ring, err := loadKeyring(filepath.Join(s.dir, "widgetd.key"))
	s.check(err)
	c, err := s.keys.verify(token)
	s.check(err)
	byNew, err := ring.sign(c)
	s.check(err)
	readme, err := os.ReadFile("README.md")
	s.check(err)
	_, script, found := strings.Cut(string(readme), "```sh\n# lease-check\n")
	script, _, closed := strings.Cut(script, "```")
	if !found || !closed {
		t.Fatal("the README shows no lease-check")
	}
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
		"another device":    {token, "kitchen-2", testBase},
		"another service":   {token, "kitchen-1", "https://other.example/v1"},
		"another signature": {token[:strings.LastIndexByte(token, '.')+1] + strings.Repeat("A", 86), "kitchen-1", testBase},
		"other claims":      {strings.Replace(token, ".ey", ".eyJ", 1), "kitchen-1", testBase},
	} {
		if out, err := check(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%s: it holds: %s", name, out)
		}
	}
}
