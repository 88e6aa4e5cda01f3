package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// portalToken issues a token of an account that may name any.
func (s *service) portalToken(account, scope string) string {
	s.t.Helper()
	var token string
	s.change(func(t *tx) (err error) {
		token, _, err = issueToken(t, s.keys, tokenRow{AccountID: account, ClientID: "portal", Scope: scope, AllAccounts: true}, time.Hour)
		return err
	})
	return "Authorization: Bearer " + token
}

// pageOf reads a list: the ids of its rows, and the next cursor ("": none).
func pageOf(a answer) (ids []string, next string) {
	a.t.Helper()
	a.is(200)
	var list struct {
		Data []struct{ ID string }
		Next *string `json:"next_cursor"`
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || !strings.HasPrefix(a.body, `{"data":[`) {
		a.t.Fatalf("%s: %v", a.body, err)
	}
	for _, row := range list.Data {
		ids = append(ids, row.ID)
	}
	if list.Next != nil {
		next = *list.Next
	}
	return ids, next
}

// walk reads a list to its end and calls between after every page.
func (s *service) walk(path, auth string, limit int, between func()) (all []string) {
	s.t.Helper()
	cursor := ""
	for range 100 {
		ids, next := pageOf(s.get(fmt.Sprintf("%s?limit=%d%s", path, limit, cursor), auth))
		all = append(all, ids...)
		if len(ids) > limit || next != "" && len(ids) != limit {
			s.t.Fatalf("%d rows on a page of %d, next %q", len(ids), limit, next)
		}
		if next == "" {
			return all
		}
		cursor = "&cursor=" + next
		between()
	}
	s.t.Fatal("the list has no end")
	return nil
}

func TestListsComeNewestFirstAndStayStableWhileRowsAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		if ids, next := pageOf(s.get("/licenses", auth)); len(ids) != 0 || next != "" {
			t.Fatalf("an empty list: %v %q", ids, next)
		}
		var want []string
		var lastKey string
		for range 23 {
			time.Sleep(time.Millisecond)
			var id string
			id, lastKey = s.addLicense(license{})
			want = append([]string{id}, want...)
		}
		grow := func() {
			time.Sleep(time.Millisecond)
			s.addLicense(license{})
		}
		for _, limit := range []int{1, 7, 23, 24, 200} {
			if got := s.walk("/licenses", auth, limit, func() {}); !slices.Equal(got, want) {
				t.Fatalf("pages of %d: %v\nwant %v", limit, got, want)
			}
		}
		if got := s.walk("/licenses", auth, 5, grow); !slices.Equal(got, want) {
			t.Fatalf("while rows are added: %v\nwant %v", got, want)
		}
		var devices []string
		for i := range 12 {
			time.Sleep(time.Millisecond)
			devices = append([]string{s.activate(lastKey, fmt.Sprint("machine ", i)).is(200).text("device", "id")}, devices...)
		}
		added := 0
		got := s.walk("/licenses/"+want[0]+"/devices", auth, 5, func() {
			time.Sleep(time.Millisecond)
			added++
			s.activate(lastKey, fmt.Sprint("another ", added)).is(200)
		})
		if !slices.Equal(got, devices) {
			t.Fatalf("devices %v\nwant    %v", got, devices)
		}
	})
}

func TestASearchFindsWhatIsNotASCIIAsItIsWritten(t *testing.T) {
	s := newService(t)
	id, _ := s.addLicense(license{Product: "Café ÉLAN"})
	auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
	for _, q := range []string{"%C3%89LAN", "caf%C3%A9", "CAF%C3%A9"} {
		if ids, _ := pageOf(s.get("/licenses?q="+q, auth)); !slices.Equal(ids, []string{id}) {
			t.Errorf("%s: %q", q, ids)
		}
	}
}

func TestAPageHasOneToTwoHundredRowsAndFiftyUnlessAsked(t *testing.T) {
	s := newService(t)
	auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
	s.change(func(t *tx) error {
		for range 202 {
			key, err := parseLicenseKey(newLicenseKey())
			if err != nil {
				return err
			}
			if _, err := t.addLicense(&license{AccountID: s.account, Product: "kds"}, key, actorCommand); err != nil {
				return err
			}
		}
		return nil
	})
	for query, rows := range map[string]int{"": 50, "?limit=1": 1, "?limit=200": 200} {
		if ids, next := pageOf(s.get("/licenses"+query, auth)); len(ids) != rows || next == "" {
			t.Errorf("%q: %d rows, next %q", query, len(ids), next)
		}
	}
	device := newID("dev", time.Now())
	for _, query := range []string{"limit=0", "limit=201", "limit=-1", "limit=1.5", "limit=1e2", "limit=", "limit=ten", "limit=%2B5", "limit=+5", "limit=05", "limit=5%20", "limit=99999999999999999999", "limit=5&limit=5"} {
		a := s.get("/licenses?"+query, auth).is(422, "validation_failed")
		if !strings.Contains(a.body, `"parameter":"limit"`) {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	for _, query := range []string{"cursor=", "cursor=x", "cursor=" + device, "cursor=lic_", "cursor=lic_'%20OR%201=1--", "cursor=" + newID("lic", time.Now()) + "&cursor=" + newID("lic", time.Now())} {
		a := s.get("/licenses?"+query, auth).is(422, "validation_failed")
		if !strings.Contains(a.body, `"parameter":"cursor"`) {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	s.get("/licenses?account_id=acct_1", auth).is(422, "validation_failed")
}

func TestALicenceShowsEverythingButItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		plan := "pro"
		end := newStamp(time.Now().Add(24 * time.Hour))
		id, key := s.addLicense(license{Plan: &plan, MaxDevices: ptr(4), ExpiresAt: end, GraceDays: 3, Entitlements: codeList{"kds"}, Metadata: json.RawMessage(`{"order":17}`)})
		created := newStamp(time.Now())
		s.activate(key, "f").is(200)
		want := fmt.Sprintf(`{"id":%q,"account_id":%q,"product":"kds","plan":"pro","kind":"node_locked","state":"active","reason":null,"trial":false,"max_devices":4,`+
			`"max_transfers":null,"starts_at":null,"expires_at":%q,"grace_days":3,"duration_days":null,"expiry_basis":"issue","lease_hours":336,"entitlements":["kds"],`+
			`"metadata":{"order":17},"first_activated_at":%q,"created_at":%q,"updated_at":%q,"key_hint":%q,"status":"active","grace_until":%q,"seats":{"used":1,"max":4,"free":3}}`,
			id, s.account, end, created, created, created, key[len(key)-5:], end.after(72*time.Hour))
		if a := s.get("/licenses/"+id, auth).is(200); a.body != want+"\n" {
			t.Fatalf("shown %s\nwant  %s", a.body, want)
		}
		if a := s.get("/licenses", auth).is(200); a.body != `{"data":[`+want+`],"next_cursor":null}`+"\n" {
			t.Fatalf("listed %s\nwant   %s", a.body, want)
		}
		time.Sleep(48 * time.Hour)
		auth = "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		if a := s.get("/licenses/"+id, auth).is(200); a.text("status") != "grace" || a.text("state") != "active" {
			t.Fatalf("in grace: %s", a.body)
		}
	})
}

func TestDevicesAreShownMasked(t *testing.T) {
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

func TestAnotherAccountsLicenceIsNotThere(t *testing.T) {
	s := newService(t)
	second := s.addAccount("second")
	mine, _ := s.addLicense(license{AccountID: second})
	theirs, key := s.addLicense(license{MaxDevices: ptr(1)})
	dev := s.activate(key, "f").is(200).text("device", "id")
	auth := "Authorization: Bearer " + s.token(second, scopeLicenses+" "+scopeDevices)
	if ids, _ := pageOf(s.get("/licenses", auth)); !slices.Equal(ids, []string{mine}) {
		t.Fatalf("listed %v", ids)
	}
	nowhere := newID("lic", time.Now())
	for _, id := range []string{theirs, nowhere, "lic_1", "'"} {
		for _, call := range []answer{s.get("/licenses/"+id, auth), s.get("/licenses/"+id+"/devices", auth), s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth)} {
			call.is(404, "license_not_found")
		}
	}
	s.do("DELETE", "/licenses/"+mine+"/devices/"+dev, "", auth).is(404, "not_found") // a device of another licence
	if s.deviceRow(dev).State != "active" {
		t.Fatal("a stranger released the device")
	}
	// What tells the two apart is only the request's id.
	one, two := s.get("/licenses/"+theirs, auth).json(), s.get("/licenses/"+nowhere, auth).json()
	delete(one, "request_id")
	delete(two, "request_id")
	if fmt.Sprint(one) != fmt.Sprint(two) {
		t.Fatalf("%v and %v", one, two)
	}
}

func TestOnlyTokensForAllAccountsMayNameAnother(t *testing.T) {
	s := newService(t)
	second, third := s.addAccount("second"), s.addAccount("third")
	own, _ := s.addLicense(license{})
	ofSecond, key := s.addLicense(license{AccountID: second})
	ofThird, _ := s.addLicense(license{AccountID: third})
	dev := s.activate(key, "f").is(200).text("device", "id")
	scope := scopeLicenses + " " + scopeDevices
	plain, portal, admin := "Authorization: Bearer "+s.token(s.account, scope), s.portalToken(s.account, scope), "Authorization: Bearer "+s.token(s.account, scopeAdmin)
	sorted := func(ids []string) []string { slices.Sort(ids); return ids }
	for name, c := range map[string]struct {
		auth, query string
		want        []string
	}{
		"plain":                    {plain, "", []string{own}},
		"plain, naming itself":     {plain, "?account_id=" + s.account, []string{own}},
		"portal":                   {portal, "", []string{own}},
		"portal, naming second":    {portal, "?account_id=" + second, []string{ofSecond}},
		"portal, naming third":     {portal, "?account_id=" + third, []string{ofThird}},
		"operator":                 {admin, "", sorted([]string{own, ofSecond, ofThird})},
		"operator, naming second":  {admin, "?account_id=" + second, []string{ofSecond}},
		"operator, naming its own": {admin, "?account_id=" + s.account, []string{own}},
	} {
		if ids, _ := pageOf(s.get("/licenses"+c.query, c.auth)); !slices.Equal(sorted(ids), c.want) {
			t.Errorf("%s: %v, want %v", name, ids, c.want)
		}
	}
	for _, path := range []string{"/licenses", "/licenses/" + ofSecond, "/licenses/" + ofSecond + "/devices"} {
		s.get(path+"?account_id="+second, plain).is(403, "insufficient_scope")
		s.get(path+"?account_id="+newID("acct", time.Now()), portal).is(404, "account_not_found")
		s.get(path+"?account_id="+second, portal).is(200)
		s.get(path, admin).is(200)
	}
	s.get("/licenses/"+ofSecond, portal).is(404, "license_not_found") // it names nobody: its own account
	s.get("/licenses/"+ofSecond+"?account_id="+third, portal).is(404, "license_not_found")
	s.do("DELETE", "/licenses/"+ofSecond+"/devices/"+dev+"?account_id="+second, "", plain).is(403, "insufficient_scope")
	s.do("DELETE", "/licenses/"+ofSecond+"/devices/"+dev+"?account_id="+third, "", portal).is(404, "license_not_found")
	if s.deviceRow(dev).State != "active" {
		t.Fatal("the device was released")
	}
	s.do("DELETE", "/licenses/"+ofSecond+"/devices/"+dev+"?account_id="+second, "", portal).is(204)
	if s.deviceRow(dev).State != "released" {
		t.Fatal("the device was not released")
	}
}

func TestAPortalReleasesADeviceAndItIsWrittenDown(t *testing.T) {
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
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'device.released' AND device_id = ? AND license_id = ? AND account_id = ?`, dev, id, s.account); n != 1 {
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

func TestAPortalsCallsAreChargedToItsOwnAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		second := s.addAccount("second")
		s.change(func(t *tx) error { return t.setRate(s.account, 3) })
		portal := s.portalToken(s.account, scopeLicenses)
		for range 3 {
			s.get("/licenses?account_id="+second, portal).is(200)
		}
		a := s.get("/licenses?account_id="+second, portal).is(429, "rate_limited")
		if a.header.Get("RateLimit-Policy") != `"account";q=3;w=60` || a.header.Get("Retry-After") != "20" {
			t.Fatalf("headers %v", a.header)
		}
		s.get("/licenses", "Authorization: Bearer "+s.token(second, scopeLicenses)).is(200)
	})
}
