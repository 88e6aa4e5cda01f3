package main

import (
	"fmt"
	"html"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

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
