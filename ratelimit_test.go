package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestBucket_letsSixHundredPassAtOnceAndAnswersTheNextWith429(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		token := s.auth(s.account, scopeLicenses)
		var passed, refused atomic.Int64
		var all sync.WaitGroup
		for range 640 {
			all.Go(func() {
				switch s.get("/licenses", token).status {
				case 200:
					passed.Add(1)
				case 429:
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if passed.Load() != 600 || refused.Load() != 40 {
			t.Fatalf("%d passed, %d refused", passed.Load(), refused.Load())
		}
		s.get("/licenses", token).is(429, "rate_limited").
			has("Retry-After: 1", `RateLimit-Policy: "account";q=600;w=60`, `RateLimit: "account";r=0;t=60`)
		s.get("/widget/health", token).is(200) // never charged
		s.get("//.well-known/jwks.json", token).is(200)
		s.do("OPTIONS", "/licenses", "", "Origin: "+siteOrigin).is(204)

		time.Sleep(100 * time.Millisecond)
		s.get("/licenses", token).is(200).has(`RateLimit: "account";r=0;t=60`)
		s.get("/licenses", token).is(429, "rate_limited")
		time.Sleep(30 * time.Second)
		s.get("/licenses", token).is(200).has(`RateLimit: "account";r=299;t=31`)
		time.Sleep(time.Hour)
		s.get("/licenses", token).is(200).has(`RateLimit: "account";r=599;t=1`) // never more than it holds
	})
}

func TestBucket_ofAnAccountMayHaveAnotherRate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		token := s.auth(s.account, scopeLicenses)
		s.change(func(t *tx) error { return t.setRate(s.account, 6) })
		_, key := s.addLicense(license{})
		widget := s.addWidget(s.account)
		for bucket, a := range map[string]answer{ // the rate is that of all four
			bucketLicenses: s.verifyKey(key, "f"),
			bucketLeads:    s.post("/widget/leads", aLead, "Origin: "+siteOrigin),
			bucketWidgets:  s.get("/widget/stats?widget=" + widget),
		} {
			a.is(200).has(`RateLimit-Policy: "`+bucket+`";q=6;w=60`, `RateLimit: "`+bucket+`";r=5;t=10`)
		}
		for left := 5; left >= 0; left-- {
			s.get("/licenses", token).is(200).has(`RateLimit-Policy: "account";q=6;w=60`,
				fmt.Sprintf(`RateLimit: "account";r=%d;t=%d`, left, 10*(6-left)))
		}
		s.get("/licenses", token).is(429, "rate_limited").has("Retry-After: 10")
		time.Sleep(9500 * time.Millisecond)
		s.get("/licenses", token).is(429, "rate_limited").has("Retry-After: 1") // rounded up
		s.change(func(t *tx) error { return t.setRate(s.account, 600) })
		time.Sleep(500 * time.Millisecond)
		s.get("/licenses", token).is(200)
	})
}

var allBuckets = []string{bucketAccount, bucketLicenses, bucketLeads, bucketWidgets}

// drain empties one of an account's buckets.
func (s *service) drain(bucket, account string) {
	for s.server.accountBuckets.take(bucket+" "+account, 600, time.Now()).ok {
	}
}

// charges returns which buckets of which accounts a call took a token from, all of which were full:
// "portal account". It takes one from each itself.
func (s *service) charges(accounts map[string]string, ask func() answer) (a answer, charged string) {
	s.t.Helper()
	time.Sleep(time.Minute) // every bucket is full
	a = ask()
	for name, id := range accounts {
		for _, bucket := range allBuckets {
			if v := s.server.accountBuckets.take(bucket+" "+id, 600, time.Now()); v.remaining < 599 {
				charged += name + " " + bucket
			}
		}
	}
	want := ""
	if charged != "" {
		want = charged[strings.LastIndex(charged, " ")+1:]
	}
	if named, _, _ := strings.Cut(a.header.Get("RateLimit"), ";"); strings.Trim(named, `"`) != want {
		s.t.Errorf("it charges %q, RateLimit is %q", charged, a.header.Get("RateLimit"))
	}
	return a, charged
}

func TestBucket_thatIsChargedIsTheCallers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		ids := map[string]string{"main": s.account}
		for _, name := range []string{"token", "licence", "widget", "origin"} {
			ids[name] = s.addAccount(name)
		}
		s.change(func(t *tx) error { return addOrigin(t, ids["origin"], "https://origin.example", anActor) })
		s.change(func(t *tx) error { return addOrigin(t, ids["widget"], "https://widget.example", anActor) })
		_, key := s.addLicense(license{AccountID: ids["licence"]})
		widget := s.addWidget(ids["widget"])
		const origin = "Origin: https://origin.example"
		token, leads := s.auth(ids["token"], scopeStats), s.auth(ids["token"], scopeWriteLeads)
		device := "Authorization: Bearer " + s.post("/widget/license/activate",
			`{"license_key":"`+key+`","fingerprint":"f"}`).is(200).text("token")
		get := func(path string, headers ...string) func() answer {
			return func() answer { return s.get(path, headers...) }
		}
		post := func(path, body string, headers ...string) func() answer {
			return func() answer { return s.post(path, body, headers...) }
		}
		const verify, activate, stats = "/widget/license/verify", "/widget/license/activate", "/widget/stats"
		none := "?widget=wgt_00000000000000000000000000"
		by := func(key string) string { return seatBody("license_key", key) }
		for name, c := range map[string]struct {
			charged string
			ask     func() answer
		}{
			"a token before a widget":    {"token account", get(stats+"?widget="+widget, token, origin)},
			"a token":                    {"token account", get(stats, token)},
			"a token before a licence":   {"token account", post(verify, by(key), token)},
			"a token on leads":           {"token account", post("/widget/leads", aLead, leads, origin)},
			"a licence before an origin": {"licence licenses", post(verify, by(key), origin)},
			"a device's token":           {"licence licenses", post(verify, `{}`, device, origin)},
			"a licence":                  {"licence licenses", post(activate, activateBody(key, "f"))},
			"a licence that gives a seat back": {"licence licenses",
				post("/widget/license/deactivate", activateBody(key, "f"))},
			"a licence's wrong members":         {"", post(activate, by(key))},
			"a licence's wrong members, by own": {"", post(activate, by(key), token)},
			// No limit by address holds these three: charged to whoever's Origin a caller
			// writes, they would spend that account's allowance.
			"an unknown key with an origin":  {"", post(verify, by(newLicenseKey()), origin)},
			"a malformed key with an origin": {"", post(verify, by("XXXXX"), origin)},
			"no key with an origin":          {"", post(verify, `{}`, origin)},
			"an unknown key":                 {"", post(verify, by(newLicenseKey()))},
			"a widget before an origin": {"widget widgets", post("/widget/events",
				`{"widget":"`+widget+`"}`, origin)},
			"a widget's statistics":               {"widget widgets", get(stats + "?widget=" + widget)},
			"an unknown widget with an origin":    {"origin widgets", get(stats+none, origin)},
			"an unknown widget without an origin": {"", get(stats + none)},
			"a lead with an origin":               {"origin leads", post("/widget/leads", aLead, origin)},
			"a lead without an origin":            {"", post("/widget/leads", aLead)},
		} {
			if a, charged := s.charges(ids, c.ask); charged != c.charged {
				t.Errorf("%s charges %q, want %q; %d %s", name, charged, c.charged, a.status, a.body)
			}
		}
	})
}

// TestBucket_ofAnAccountIsNotChargedByWhatHasEnded: those calls are held by address instead.
func TestBucket_ofAnAccountIsNotChargedByWhatHasEnded(t *testing.T) {
	t.Parallel()
	const (
		retires = `UPDATE license_keys SET retires_at = `
		revoke  = `UPDATE licenses SET state = 'revoked'`
		expire  = `UPDATE licenses SET expires_at = '2000-01-01T00:00:30Z'`
		block   = `UPDATE devices SET state = 'blocked'`
		left    = `, released_at = '2000-01-01T00:00:00Z', released_by = 'device'`
	)
	for name, c := range map[string]struct {
		end     string // what an operator does
		ask     func(s *service, key, token string) answer
		status  int
		code    string
		charged string
	}{
		"a key":                   {"", byKey, 200, "valid", "main licenses"},
		"a retired key":           {retires + `'2000-01-01T00:00:30Z'`, byKey, 200, "key_retired", ""},
		"a key that will retire":  {retires + `'2000-01-02T00:00:00Z'`, byKey, 200, "valid", "main licenses"},
		"a revoked licence's key": {revoke, byKey, 200, "revoked", ""},
		"a suspended licence's key": {`UPDATE licenses SET state = 'suspended'`, byKey, 200, "suspended",
			"main licenses"},
		"an expired licence's key":       {expire, byKey, 200, "expired", ""},
		"the key of a licence in grace":  {expire + `, grace_days = 1`, byKey, 200, "grace", "main licenses"},
		"a token":                        {"", byToken, 200, "valid", "main licenses"},
		"a revoked licence's token":      {revoke, byToken, 200, "revoked", ""},
		"the token of a blocked device":  {block, byToken, 200, "device_blocked", ""},
		"of a blocked device, that left": {block + left, byToken, 200, "device_blocked", ""},
		"of a device that is gone":       {`DELETE FROM devices`, byToken, 200, "device_not_activated", ""},
		"released by a portal":           {released("portal"), byToken, 200, "device_released", ""},
		"replaced by another device":     {released("replacement"), byToken, 200, "device_released", ""},
		"of one that gave its seat back": {released("device"), byToken, 200, "device_released", "main licenses"},
		"of one whose lease lapsed":      {released("lease"), byToken, 200, "device_released", "main licenses"},
		"a key beside one that ended":    {released("portal"), byBoth, 200, "device_released", ""},
		"a key beside a token":           {"", byBoth, 200, "valid", "main licenses"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				_, key := s.addLicense(license{})
				token := bearer(s.activate(key, "f").is(200).text("token"))
				if c.end != "" {
					s.sql(c.end)
				}
				ask := func() answer { return c.ask(s, key, token) }
				a, charged := s.charges(map[string]string{"main": s.account}, ask)
				if a.is(c.status).text("code") != c.code || charged != c.charged {
					t.Errorf("it charges %q, want %q: %s", charged, c.charged, a.body)
				}
				if charged != "" {
					return
				}
				time.Sleep(time.Minute)
				for i := range 61 {
					if a := ask(); (a.status == 429) != (i == 60) {
						t.Fatalf("request %d: %d %s", i, a.status, a.body)
					}
				}
				ask().is(429, "rate_limited").has("Retry-After: 1", `RateLimit-Policy: "address";q=60;w=60`,
					`RateLimit: "address";r=0;t=60`)
				s.post("/widget/leads", aLead).is(200) // a limit of its own
			})
		})
	}
}

func byKey(s *service, key, _ string) answer { return s.verifyKey(key, "f") }

func byToken(s *service, _, token string) answer {
	return s.post("/widget/license/verify", `{}`, token)
}

func byBoth(s *service, key, token string) answer {
	return s.post("/widget/license/verify", `{"license_key":"`+key+`"}`, token)
}

func released(by string) string {
	return `UPDATE devices SET state = 'released', released_at = '2000-01-01T00:00:00Z', released_by = '` + by + `'`
}

// Against anybody with many addresses who would have the service forget their failures or drained buckets: maps of
// bounded size forget what is closest to full first.
func TestBucket_closestToFullIsForgottenByAFullMap(t *testing.T) {
	t.Parallel()
	now, l := bubbleStart, newLimiter(3)
	for key, n := range map[string]int{"drained": 60, "half": 30, "fresh": 1} {
		for range n {
			l.take(key, 60, now)
		}
	}
	for i := range 100 { // a flood of new keys pushes out only such as are nearly full
		l.take("flood"+strconv.Itoa(i), 60, now)
	}
	equal(t, "keys", l.len(), 3)
	if v := l.take("drained", 60, now); v.ok {
		t.Fatal("the drained bucket was forgotten")
	}
	if v := l.take("half", 60, now); !v.ok || v.remaining != 29 {
		t.Fatalf("the half full bucket was forgotten: %+v", v)
	}
	if v := l.take("fresh", 60, now); v.remaining != 59 {
		t.Fatalf("the fullest bucket was kept: %+v", v)
	}
	if v := l.take("drained", 60, now.Add(-time.Hour)); v.ok {
		t.Fatal("a clock that goes back an hour gave a token")
	}
	if v := l.take("drained", 60, now.Add(-59*time.Minute)); !v.ok {
		t.Fatal("a minute after a clock that goes back there is no token")
	}
}

// Against anybody who would forge leads and counts, and fill the disk: 60 leads and 600 events a minute and
// address, each kind with its own allowance; 100 items a day and widget. Within that they can be forged.
func TestAddressLimit_holdsAnonymousCallersForEachPathAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		widget := s.addWidget(s.account)
		token := s.auth(s.account, scopeStats)
		var asked []string
		asks := map[string]func(headers ...string) answer{
			"leads": func(h ...string) answer { return s.post("/widget/leads", aLead, h...) },
			"stats": func(h ...string) answer {
				day := time.Now().AddDate(0, 0, -1-len(asked)).Format(time.DateOnly) // one that is not in memory
				asked = append(asked, day)
				return s.get("/widget/stats?widget="+widget+"&from="+day+"&to="+day, h...)
			},
		}
		taken := func(what string, a answer) {
			t.Helper()
			if a.status > 204 {
				t.Fatalf("%s: %d %s", what, a.status, a.body)
			}
		}
		for name, ask := range asks {
			for range 60 {
				taken(name, ask())
			}
			ask().is(429, "rate_limited").has("Retry-After: 1", `RateLimit-Policy: "address";q=60;w=60`,
				`RateLimit: "address";r=0;t=60`)
			taken(name+" from another address", ask("Peer: 192.0.2.2:1"))
		}
		s.get("/widget/stats?widget="+widget, token).is(200) // not anonymous
		time.Sleep(time.Second)
		for name, ask := range asks {
			taken(name+" a second later", ask())
			ask().is(429, "rate_limited")
		}
	})
}

func TestAddressLimit_holdsIPv6CallersByTheirNetwork(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		for i := range 60 {
			s.post("/widget/leads", aLead, fmt.Sprintf("Peer: [2001:db8:1:2::%x]:1", i)).is(200)
		}
		s.post("/widget/leads", aLead, "Peer: [2001:db8:1:2:ffff::1]:1").is(429, "rate_limited")
		s.post("/widget/leads", aLead, "Peer: [2001:db8:1:3::1]:1").is(200)
		s.post("/widget/leads", aLead, "Peer: [::ffff:192.0.2.77]:1").is(200).has("RateLimit: ")
		for range 59 {
			s.post("/widget/leads", aLead, "Peer: 192.0.2.77:1").is(200)
		}
		s.post("/widget/leads", aLead, "Peer: [::ffff:192.0.2.77]:1").is(429, "rate_limited") // the same caller
	})
}

// Against anybody who would choose the address that limits see: X-Forwarded-For counts only from trusted proxies,
// read from the right.
func TestAddressLimit_readsXForwardedForOnlyFromATrustedPeer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		from := func(peer, forwarded string) answer {
			return s.post("/widget/leads", aLead, "Peer: "+peer, "X-Forwarded-For: "+forwarded)
		}
		const stranger, proxy = "203.0.113.9:1", "127.0.0.1:1"
		for i := range 60 { // whatever an untrusted peer says, it is that peer
			from(stranger, fmt.Sprint("198.51.100.", i)).is(200)
		}
		from(stranger, "198.51.100.200").is(429, "rate_limited")
		for i := range 60 { // the proxy appends who called; what stands before was chosen by the caller
			from(proxy, fmt.Sprintf("198.51.100.%d, 192.0.2.50", i)).is(200)
		}
		from(proxy, "192.0.2.50").is(429, "rate_limited")
		from(proxy, "192.0.2.51").is(200)
		s.post("/widget/leads", aLead, "Peer: "+proxy).is(200)
	})
}

// TestAddressLimit_trustsThePeerOfAUnixSocket: systemd can pass one, and such a peer has no address.
func TestAddressLimit_trustsThePeerOfAUnixSocket(t *testing.T) {
	t.Parallel()
	for trusted, second := range map[string]int{"127.0.0.0/8": 200, "10.0.0.0/8": 429} { // who trusts no one here
		s := newService(t, func(_ *storeOptions, o *serverOptions) {
			o.anonymousRate, o.trusted = 2, []netip.Prefix{netip.MustParsePrefix(trusted)}
		})
		addr := s.listeningOn("unix", filepath.Join(s.dir, "http.sock"))
		client := newClient(t)
		client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", addr)
		}
		for i, c := range []struct {
			forwarded string
			want      int
		}{{"198.51.100.1", 200}, {"198.51.100.1", 200}, {"198.51.100.1", 429}, {"198.51.100.2", second},
			{"198.51.100.2, 198.51.100.1", 429}} { // a token comes back in half a minute
			a, err := send(client, "POST", "http://x/v1/widget/leads", aLead, "X-Forwarded-For: "+c.forwarded)
			s.check(err)
			equal(t, fmt.Sprint("call ", i, " while trusting ", trusted), a.status, c.want)
		}
	}
}

// Whatever a caller writes into X-Forwarded-For, the address is what the proxy saw;
// and to a peer that is no proxy nobody listens.
func FuzzForwarded(f *testing.F) {
	for _, seed := range []string{
		"", "192.0.2.1", "192.0.2.1, 127.0.0.1", "127.0.0.1", ", ,", "[::1]:80", "unknown", "\x00", "fe80::1%eth0",
		"192.0.2.1:99999", "::ffff:127.0.0.1",
	} {
		f.Add(seed, uint32(0xcb007109))
	}
	trusted, err := parsePrefixes("trusted-proxies", []string{"127.0.0.0/8", "::1/128"})
	must(f, err)
	f.Fuzz(func(t *testing.T, chosen string, number uint32) {
		caller := netip.AddrFrom4([4]byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)})
		if isTrusted(caller, trusted) {
			return
		}
		for name, got := range map[string]netip.Addr{
			"untrusted":   clientAddress(netip.AddrPortFrom(caller, 1).String(), []string{chosen}, trusted),
			"appended":    clientAddress("127.0.0.1:1", []string{chosen + ", " + caller.String()}, trusted),
			"second line": clientAddress("127.0.0.1:1", []string{chosen, caller.String()}, trusted),
			"two proxies": clientAddress("[::1]:1", []string{chosen + "," + caller.String() + ",127.0.0.2"}, trusted),
			"with a port": clientAddress("127.0.0.1:1", []string{chosen, netip.AddrPortFrom(caller, 4711).String()},
				trusted),
			"as IPv4 in 6": clientAddress("127.0.0.1:1", []string{chosen, "::ffff:" + caller.String()}, trusted),
		} {
			if got != caller {
				t.Fatalf("%s: %q makes %s into %s", name, chosen, caller, got)
			}
		}
		if key := addressKey(clientAddress("127.0.0.1:1", []string{chosen}, trusted), networkOfClient); len(key) > 43 {
			t.Fatalf("the key %q grows with what the caller writes", key)
		}
	})
}

// licenseCalls are the three calls that take a licence key.
var licenseCalls = []string{"/widget/license/verify", "/widget/license/activate", "/widget/license/deactivate"}

// guess asks for a key that no licence has; the answer is a failure or 429.
func (s *service) guess(path string, headers ...string) answer {
	s.t.Helper()
	a := s.post(path, activateBody(newLicenseKey(), "f"), headers...)
	if a.status != 429 && !strings.Contains(a.body, "not_found") {
		s.t.Fatalf("an unknown key: %d %s", a.status, a.body)
	}
	return a
}

// guessAll has 30 keys fail from an address, on all three calls in turn.
func (s *service) guessAll(headers ...string) {
	s.t.Helper()
	for i := range 30 {
		if a := s.guess(licenseCalls[i%3], headers...); a.status == 429 {
			s.t.Fatalf("guess %d: %s", i, a.body)
		}
	}
}

// sameButForIDs returns all of an answer but its request's id.
func (a answer) sameButForIDs() string {
	a.t.Helper()
	id := a.header.Get("X-Request-Id")
	return strings.ReplaceAll(fmt.Sprintln(a.status, a.header, a.body), id, "req_")
}

// Against anybody who would guess licence keys: 120 random bits; 30 different keys that fail a minute and address;
// beyond that known and unknown keys get the same answer.
func TestLookupLimit_answersKnownAndUnknownKeysAlikeAfterThirtyFailures(t *testing.T) {
	t.Parallel()
	for _, path := range licenseCalls {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				_, key := s.addLicense(license{})
				_, full := s.addLicense(license{terms: terms{MaxDevices: ptr(1)}})
				_, floating := s.addLicense(license{terms: terms{Kind: kindFloating, LeaseHours: 1}})
				_, retired := s.addLicense(license{})
				_, revoked := s.addLicense(license{})
				s.activate(key, "left").is(200)
				s.post("/widget/license/deactivate", activateBody(key, "left")).is(200)
				s.activate(full, "other").is(200)
				s.activate(floating, "f").is(200)
				thief := "Authorization: Bearer " + s.activate(full, "other").is(200).text("token")
				s.retire(retired)
				s.sql(`UPDATE licenses SET state = 'revoked'
					WHERE id = (SELECT license_id FROM license_keys WHERE hint = ?)`, revoked[len(revoked)-5:])
				time.Sleep(2 * time.Hour) // the floating seat lapses
				s.guessAll()
				before := s.dump()
				want := s.guess(path).is(429, "rate_limited").
					has("Retry-After: 60", `RateLimit: "failures";r=0;t=60`,
						`RateLimit-Policy: "failures";q=30;w=60`).sameButForIDs()
				post := func(key, fingerprint string, headers ...string) answer {
					return s.post(path, activateBody(key, fingerprint), headers...)
				}
				for name, a := range map[string]answer{
					"an unknown key":                    s.guess(path),
					"a mistyped key":                    post(mistype(key), "f"),
					"an imported key":                   post("WP-2019-000123-ABCDEF", "f"),
					"a known key":                       post(key, "f"),
					"a known key in lower case":         post(strings.ToLower(key), "f"),
					"a known key, a device that left":   post(key, "left"),
					"a full licence's key":              post(full, "f"),
					"a known key, a device that lapsed": post(floating, "f"),
					"a retired key":                     post(retired, "f"),
					"a revoked licence's key":           post(revoked, "f"),
					"another key beside a token":        post(key, "other", thief),
					"an unknown key beside a token":     post(newLicenseKey(), "other", thief),
					"an Idempotency-Key":                post(key, "f", "Idempotency-Key: 1"),
				} {
					equal(t, name, a.sameButForIDs(), want)
				}
				s.unchanged(before)
			})
		})
	}
}

// retire has a key retire now.
func (s *service) retire(key string) {
	s.t.Helper()
	s.sql(`UPDATE license_keys SET retires_at = ? WHERE hint = ?`, newStamp(time.Now()), key[len(key)-5:])
}

// mistype returns a key with another check symbol.
func mistype(key string) string {
	last := "0"
	if strings.HasSuffix(key, last) {
		last = "1"
	}
	return key[:len(key)-1] + last
}

func TestLookupLimit_letsActiveDevicesAndTokensPass(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{})
		_, other := s.addLicense(license{AccountID: s.addAccount("other")})
		lease := s.activate(key, "f").is(200).text("token")
		device := bearer(lease)
		s.guessAll()
		s.verifyKey(key, "f").answers("valid").has(`RateLimit: "licenses";r=598;t=1`)
		s.activate(key, "f").is(200)
		s.verifyLease(lease).answers("valid")
		s.post("/widget/license/verify", `{"license_key":"`+key+`"}`, device).answers("valid")
		s.post("/widget/license/activate", `{}`, device).is(200)
		s.post("/widget/license/deactivate", activateBody(key, "f")).is(200)
		s.post("/widget/license/activate", `{}`, device).is(200)
		s.post("/widget/license/verify", seatBody("license_key", "XXXXX")).is(200) // refused by its shape alone
		s.activate(key, "new", "nonce", "\u00e9").is(422, "validation_failed")     // members first
		s.guess(licenseCalls[0]).is(429)

		portal := s.auth(s.account, scopeLicenses)
		all := s.portalToken(s.account, scopeLicenses)
		verdict := func(key string, token string) string {
			return s.post("/widget/license/verify", activateBody(key, "unknown"), token).is(200).text("code")
		}
		for range 40 { // an account's own token is held by the account's bucket only
			equal(t, "an unknown key", verdict(newLicenseKey(), portal), "not_found")
		}
		equal(t, "a key of the account", verdict(key, portal), "device_not_activated")
		for range 2 { // another account's licence is as unknown as any other key
			equal(t, "another account's key", verdict(other, portal), "not_found")
		}
		equal(t, "another account's key, for all accounts", verdict(other, all), "device_not_activated")
		before := s.dump()
		s.post("/widget/license/activate", activateBody(other, "f"), portal).is(404, "license_not_found")
		s.post("/widget/license/deactivate", activateBody(other, "f"), portal).is(404, "license_not_found")
		s.unchanged(before)
		s.post("/widget/license/activate", activateBody(key, "new"), portal).is(200)

		s.verifyKey(key, "f").answers("valid")
		s.post("/widget/license/verify", activateBody(key, "f"), "Peer: 192.0.2.2:1").is(200) // from elsewhere
		s.guess(licenseCalls[0], "Peer: 192.0.2.2:1").is(200)
		time.Sleep(time.Minute)
		s.guessAll()
		s.guess(licenseCalls[0]).is(429)
	})
}

// Against a token for all accounts without licenses:read that would guess keys, or learn another account's licence:
// its calls are anybody's, held by address.
func TestLookupLimit_holdsATokenForAllAccountsThatMayNotReadLicences(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{AccountID: s.addAccount("other")})
		blind, elsewhere := s.portalToken(s.account, scopeStats), "Peer: 192.0.2.2:1"
		a := s.post("/widget/license/verify", activateBody(key, "f"), blind, elsewhere)
		a.answers("device_not_activated").has(`RateLimit: "licenses";r=599;t=1`) // as without a token
		s.guessAll(blind)
		s.guess(licenseCalls[0], blind).is(429)
		s.post("/widget/license/verify", activateBody(key, "f"), blind).is(429)
		s.post("/widget/license/verify", activateBody(key, "f"), s.portalToken(s.account, scopeLicenses)).is(200)
	})
}

func TestLookupLimit_countsAKeyOnceHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{})
		_, retired := s.addLicense(license{})
		s.retire(retired)
		for range 40 { // a slip of the finger that no key can read like is no guess
			s.verifyKey("XXXXX", "f").answers("key_malformed")
		}
		wrong := mistype(key)
		for i := range 61 { // the first is counted as a key, then come 60 repeats
			spelled := []string{wrong, strings.ToLower(wrong), strings.ReplaceAll(wrong, "-", ""), " " + wrong}[i%4]
			equal(t, i, s.verifyKey(spelled, "f").is(200).text("code"), "key_malformed")
		}
		// a repeat is not charged
		s.verifyKey(wrong, "f").is(429, "rate_limited").has("Retry-After: 1", `RateLimit: "address";r=0;t=60`)
		for range 28 {
			s.guess(licenseCalls[1]).is(404)
		}
		s.activate(retired, "f").is(403, "key_retired") // the thirtieth
		s.guess(licenseCalls[1]).is(429)
	})
}

// TestLookupLimit_isNotForgottenWhenOthersFail is a guesser with many addresses, who wants the one
// that is held to be forgotten: by others that fail once, or nearly as often, now or later.
func TestLookupLimit_isNotForgottenWhenOthersFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		between time.Duration // between two failures of the guesser
		after   time.Duration // until the others begin
		each    int           // failures of each of the others
	}{
		"at once":                   {0, 0, 1},
		"a little later":            {0, 50 * time.Second, 1},
		"after slow guesses":        {1900 * time.Millisecond, 0, 1},
		"by others that fail often": {0, 0, 29},
	} {
		now := bubbleStart
		g, keys := newLookupGuard(30, now), 0
		fail := func(address string) time.Duration {
			keys++
			_, wait := g.fail(address, [32]byte{byte(keys), byte(keys >> 8), byte(keys >> 16)}, now)
			return wait
		}
		g.max = 100
		for range 30 {
			fail("guesser")
			now = now.Add(c.between)
		}
		now = now.Add(c.after)
		for i := range 3000 {
			for range c.each {
				fail(strconv.Itoa(i))
			}
		}
		equal(t, name+": addresses, and those in the heap", []int{g.len(), len(g.byFull)}, []int{g.max, g.max})
		if fail("guesser") == 0 {
			t.Errorf("%s: the guesser was forgotten", name)
		}
		now = now.Add(2 * time.Minute)
		for range 51 {
			fail("guesser")
		}
		equal(t, name+": addresses after their time", g.len(), 1)
	}
}

// Against anybody who would keep the service busy with malformed licence keys: 60 a minute and address.
func TestLookupLimit_holdsMalformedKeysOfAnAddressToSixtyAMinute(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.server.monotonic = standsStill()
	_, key := s.addLicense(license{})
	s.activate(key, "till-1").is(200)
	for range 60 {
		s.verifyKey("x", "till-1").is(200)
	}
	s.verifyKey("x", "till-1").is(429, "rate_limited")
	s.verifyKey("y", "till-1", "nonce", "n").is(429, "rate_limited")
	s.verifyKey(key, "till-1").answers("valid") // a sound till behind the same address goes on
}
