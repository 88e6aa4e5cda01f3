package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimiter_highestRateOfAnOptionIsNoLimit is what load.sh relies on.
func TestLimiter_highestRateOfAnOptionIsNoLimit(t *testing.T) {
	t.Parallel()
	serve, _ := findCommand(commands(), []string{"serve"})
	e := &env{command: serve, getenv: func(string) string { return "" }}
	if err := e.parse([]string{"-anonymous-rate", "1000000000"}); err != nil {
		t.Fatal(err)
	}
	o, err := e.readServerOptions()
	if err != nil || o.anonymousRate != 1_000_000_000 {
		t.Fatalf("%d %v", o.anonymousRate, err)
	}
	l, now := newLimiter(10), time.Now()
	for i := range 2_000_000 { // all at one moment
		if v := l.take("a", o.anonymousRate, now); !v.ok || v.remaining != 1_000_000_000-1-i {
			t.Fatalf("request %d: %+v", i, v)
		}
	}
}

func TestBucket_letsSixHundredPassAtOnceAndAnswersTheNextWith429(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		token := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		var passed, refused atomic.Int64
		var all sync.WaitGroup
		for range 640 {
			all.Go(func() {
				switch a := s.get("/licenses", token); a.status {
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

func TestBucket_neverRefusesWhoeverKeepsWithinTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10)
		for i := range 6000 {
			if v := l.take("a", 600, time.Now()); !v.ok {
				t.Fatalf("refused at %d", i)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

func TestBucket_ofAnAccountMayHaveAnotherRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		token := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		s.change(func(t *tx) error { return t.setRate(s.account, 6) })
		for left := 5; left >= 0; left-- {
			s.get("/licenses", token).is(200).has(`RateLimit-Policy: "account";q=6;w=60`, fmt.Sprintf(`RateLimit: "account";r=%d;t=%d`, left, 10*(6-left)))
		}
		s.get("/licenses", token).is(429, "rate_limited").has("Retry-After: 10")
		time.Sleep(9500 * time.Millisecond)
		s.get("/licenses", token).is(429, "rate_limited").has("Retry-After: 1") // rounded up
		s.change(func(t *tx) error { return t.setRate(s.account, 600) })
		time.Sleep(500 * time.Millisecond)
		s.get("/licenses", token).is(200)
	})
}

func TestBucket_thatIsChargedIsTheCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		ids := map[string]string{"main": s.account}
		for _, name := range []string{"token", "licence", "widget", "origin"} {
			ids[name] = s.addAccount(name)
		}
		s.change(func(t *tx) error { return t.addOrigin(ids["origin"], "https://origin.example") })
		s.change(func(t *tx) error { return t.addOrigin(ids["widget"], "https://widget.example") })
		_, key := s.addLicense(license{AccountID: ids["licence"]})
		widget := s.addWidget(ids["widget"])
		const origin = "Origin: https://origin.example"
		token := "Authorization: Bearer " + s.token(ids["token"], scopeStats)
		device := "Authorization: Bearer " + s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"f"}`).is(200).text("token")
		unknown, malformed := newLicenseKey(), "XXXXX"
		for name, c := range map[string]struct {
			charged string
			ask     func() answer
		}{
			"a token before a widget":    {"token", func() answer { return s.get("/widget/stats?widget="+widget, token, origin) }},
			"a token":                    {"token", func() answer { return s.get("/widget/stats", token) }},
			"a licence before an origin": {"licence", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+key+`"}`, origin) }},
			"a device's token":           {"licence", func() answer { return s.post("/widget/license/verify", `{}`, device, origin) }},
			"a licence": {"licence", func() answer {
				return s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"f"}`)
			}},
			"a licence that gives a seat back": {"licence", func() answer {
				return s.post("/widget/license/deactivate", `{"license_key":"`+key+`","fingerprint":"f"}`)
			}},
			"a licence's wrong members": {"", func() answer { return s.post("/widget/license/activate", `{"license_key":"`+key+`"}`) }},
			// No limit by address holds these three: charged to whoever's Origin a caller
			// writes, they would spend that account's allowance.
			"an unknown key with an origin":       {"", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+unknown+`"}`, origin) }},
			"a malformed key with an origin":      {"", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+malformed+`"}`, origin) }},
			"no key with an origin":               {"", func() answer { return s.post("/widget/license/verify", `{}`, origin) }},
			"an unknown key":                      {"", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+unknown+`"}`) }},
			"a widget before an origin":           {"widget", func() answer { return s.post("/widget/events", `{"widget":"`+widget+`"}`, origin) }},
			"a widget's statistics":               {"widget", func() answer { return s.get("/widget/stats?widget=" + widget) }},
			"an unknown widget with an origin":    {"origin", func() answer { return s.get("/widget/stats?widget=wgt_00000000000000000000000000", origin) }},
			"an unknown widget without an origin": {"", func() answer { return s.get("/widget/stats?widget=wgt_00000000000000000000000000") }},
			"a lead with an origin":               {"origin", func() answer { return s.post("/widget/leads", aLead, origin) }},
			"a lead without an origin":            {"", func() answer { return s.post("/widget/leads", aLead) }},
		} {
			time.Sleep(time.Minute) // every bucket is full
			a := c.ask()
			charged := ""
			for who, id := range ids {
				if v := s.server.accountBuckets.take(id, 600, time.Now()); v.remaining < 599 {
					charged += who
				}
			}
			if charged != c.charged || (a.header.Get("RateLimit") != "") != (charged != "") {
				t.Errorf("%s charges %q, want %q; RateLimit %q; %d %s", name, charged, c.charged, a.header.Get("RateLimit"), a.status, a.body)
			}
		}
	})
}

func TestBucket_chargedForALicenceIsItsAccounts(t *testing.T) {
	t.Parallel()
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

func TestBucket_chargedForAPortalIsItsOwnAccounts(t *testing.T) {
	t.Parallel()
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

func TestBucket_closestToFullIsForgottenByAFullMap(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	l := newLimiter(3)
	for key, n := range map[string]int{"drained": 60, "half": 30, "fresh": 1} {
		for range n {
			l.take(key, 60, now)
		}
	}
	for i := range 100 { // a flood of new keys pushes out only such as are nearly full
		l.take("flood"+strconv.Itoa(i), 60, now)
	}
	if l.len() != 3 {
		t.Fatalf("%d keys", l.len())
	}
	if v := l.take("drained", 60, now); v.ok {
		t.Fatal("the drained bucket was forgotten")
	}
	if v := l.take("half", 60, now); !v.ok || v.remaining != 29 {
		t.Fatalf("the half full bucket was forgotten: %+v", v)
	}
	if v := l.take("fresh", 60, now); v.remaining != 59 {
		t.Fatalf("the fullest bucket was kept: %+v", v)
	}
}

func TestBucket_fullIsForgottenAsOthersAreUsed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	l := newLimiter(1000)
	for i := range 500 {
		l.take(strconv.Itoa(i), 60, now)
	}
	for i := range 250 {
		l.take("one", 60, now.Add(time.Minute+time.Duration(i)*time.Second))
	}
	if l.len() != 1 {
		t.Fatalf("%d keys", l.len())
	}
}

func TestBucket_countsByALowerRateAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	l := newLimiter(10)
	l.take("a", 600, now)
	if v := l.take("a", 6, now); v.remaining != 5 {
		t.Fatalf("%+v", v)
	}
}

func TestBucket_getsNothingFromAClockThatGoesBack(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	l := newLimiter(10)
	for range 60 {
		l.take("a", 60, now)
	}
	if v := l.take("a", 60, now.Add(-time.Hour)); v.ok {
		t.Fatal("an hour back gave a token")
	}
}

func TestBucket_getsNothingFromARequestThatWasOvertaken(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	l := newLimiter(10)
	for range 600 {
		l.take("a", 600, now)
	}
	given := 0
	for i := range 2000 { // every second one read the clock before the one that came before it
		at := now.Add(time.Duration(i) * time.Millisecond)
		if i%2 == 1 {
			at = at.Add(-500 * time.Millisecond)
		}
		if l.take("a", 600, at).ok {
			given++
		}
	}
	if given > 20 {
		t.Errorf("%d in two seconds of ten", given)
	}
}

func TestAddressLimit_holdsAnonymousCallersForEachPathAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		origin, token := "Origin: "+siteOrigin, "Authorization: Bearer "+s.token(s.account, scopeStats)
		asks := map[string]func(headers ...string) answer{
			"leads": func(h ...string) answer { return s.post("/widget/leads", aLead, h...) },
			"events": func(h ...string) answer {
				return s.post("/widget/events", `{"widget":"`+widget+`","events":[{"type":"click"}]}`, append(h, origin)...)
			},
			"stats": func(h ...string) answer { return s.get("/widget/stats?widget="+widget, h...) },
		}
		for name, ask := range asks {
			for i := range 60 {
				if a := ask(); a.status > 204 {
					t.Fatalf("%s %d: %d %s", name, i, a.status, a.body)
				}
			}
			ask().is(429, "rate_limited").has("Retry-After: 1", "RateLimit: ")
			if a := ask("Peer: 192.0.2.2:1"); a.status > 204 {
				t.Fatalf("%s from another address: %d", name, a.status)
			}
		}
		s.get("/widget/stats?widget="+widget, token).is(200) // not anonymous
		time.Sleep(time.Second)
		for name, ask := range asks {
			if a := ask(); a.status > 204 {
				t.Fatalf("%s a second later: %d", name, a.status)
			}
			ask().is(429, "rate_limited")
		}
	})
}

func TestAddressLimit_holdsIPv6CallersByTheirNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
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

func TestAddressLimit_readsXForwardedForOnlyFromATrustedPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		for i := range 60 { // whatever an untrusted peer says, it is that peer
			s.post("/widget/leads", aLead, "Peer: 203.0.113.9:1", fmt.Sprintf("X-Forwarded-For: 198.51.100.%d", i)).is(200)
		}
		s.post("/widget/leads", aLead, "Peer: 203.0.113.9:1", "X-Forwarded-For: 198.51.100.200").is(429, "rate_limited")
		for i := range 60 { // the proxy appends who called; what stands before was chosen by the caller
			s.post("/widget/leads", aLead, "Peer: 127.0.0.1:1", fmt.Sprintf("X-Forwarded-For: 198.51.100.%d, 192.0.2.50", i)).is(200)
		}
		s.post("/widget/leads", aLead, "Peer: 127.0.0.1:1", "X-Forwarded-For: 192.0.2.50").is(429, "rate_limited")
		s.post("/widget/leads", aLead, "Peer: 127.0.0.1:1", "X-Forwarded-For: 192.0.2.51").is(200)
		s.post("/widget/leads", aLead, "Peer: 127.0.0.1:1").is(200)
	})
}

func TestAddressLimit_knowsTheClientsAddress(t *testing.T) {
	t.Parallel()
	trusted, err := parsePrefixes([]string{"127.0.0.0/8", "::1/128", "10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peer, forwarded, want string
	}{
		{"203.0.113.9:1", "192.0.2.1", "203.0.113.9"},
		{"127.0.0.1:1", "", "127.0.0.1"},
		{"127.0.0.1:1", "192.0.2.1", "192.0.2.1"},
		{"127.0.0.1:1", "198.51.100.1, 192.0.2.1", "192.0.2.1"},
		{"127.0.0.1:1", "198.51.100.1, 192.0.2.1, 10.1.2.3", "192.0.2.1"},
		{"127.0.0.1:1", "10.1.2.3", "10.1.2.3"},
		{"127.0.0.1:1", "198.51.100.1|192.0.2.1", "192.0.2.1"}, // two headers
		{"127.0.0.1:1", "192.0.2.1:4711", "192.0.2.1"},
		{"127.0.0.1:1", "[2001:db8::1]:4711", "2001:db8::1"},
		{"127.0.0.1:1", "[2001:db8::1]", "2001:db8::1"},
		{"127.0.0.1:1", "::ffff:192.0.2.1", "192.0.2.1"},
		{"[::ffff:127.0.0.1]:1", "192.0.2.1", "192.0.2.1"},
		{"[::1]:1", "fe80::1%eth0", "fe80::1"},
		{"127.0.0.1:1", "192.0.2.1, unknown", "127.0.0.1"},
		{"127.0.0.1:1", "192.0.2.1, unknown, 10.1.2.3", "10.1.2.3"},
		{"127.0.0.1:1", "192.0.2.1,", "127.0.0.1"},
	} {
		if got := clientAddress(c.peer, strings.Split(c.forwarded, "|"), trusted).String(); got != c.want {
			t.Errorf("from %s, forwarded for %q: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}

// Whatever a caller writes into X-Forwarded-For, the address is what the proxy saw;
// and to a peer that is no proxy nobody listens.
func FuzzForwarded(f *testing.F) {
	for _, seed := range []string{"", "192.0.2.1", "192.0.2.1, 127.0.0.1", "127.0.0.1", ", ,", "[::1]:80", "unknown", "\x00", "fe80::1%eth0", "192.0.2.1:99999", "::ffff:127.0.0.1"} {
		f.Add(seed, uint32(0xcb007109))
	}
	trusted, err := parsePrefixes([]string{"127.0.0.0/8", "::1/128"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, chosen string, number uint32) {
		caller := netip.AddrFrom4([4]byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)})
		if isTrusted(caller, trusted) {
			return
		}
		for name, got := range map[string]netip.Addr{
			"untrusted":    clientAddress(netip.AddrPortFrom(caller, 1).String(), []string{chosen}, trusted),
			"appended":     clientAddress("127.0.0.1:1", []string{chosen + ", " + caller.String()}, trusted),
			"second line":  clientAddress("127.0.0.1:1", []string{chosen, caller.String()}, trusted),
			"two proxies":  clientAddress("[::1]:1", []string{chosen + "," + caller.String() + ",127.0.0.2"}, trusted),
			"with a port":  clientAddress("127.0.0.1:1", []string{chosen, netip.AddrPortFrom(caller, 4711).String()}, trusted),
			"as IPv4 in 6": clientAddress("127.0.0.1:1", []string{chosen, "::ffff:" + caller.String()}, trusted),
		} {
			if got != caller {
				t.Fatalf("%s: %q makes %s into %s", name, chosen, caller, got)
			}
		}
		if key := addressKey(clientAddress("127.0.0.1:1", []string{chosen}, trusted)); len(key) > 43 {
			t.Fatalf("the key %q grows with what the caller writes", key)
		}
	})
}

func TestLookupLimit_refusesUnknownKeysAfterThirtyFailuresAndLetsKnownOnesPass(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/widget/license/verify", "/widget/license/activate", "/widget/license/deactivate"} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				_, key := s.addLicense(license{})
				known, malformed := `{"license_key":"`+key+`","fingerprint":"f"}`, `{"license_key":"XXXXX","fingerprint":"f"}`
				unknown := func() answer { return s.post(path, `{"license_key":"`+newLicenseKey()+`","fingerprint":"f"}`) }
				device := "Authorization: Bearer " + s.post("/widget/license/activate", known).is(200).text("token")
				for range 40 { // a slip of the finger is no guess
					if a := s.post(path, malformed); a.status == 429 || !strings.Contains(a.body, "key_malformed") {
						t.Fatalf("%d %s", a.status, a.body)
					}
				}
				for i := range 30 {
					if a := unknown(); a.status == 429 || !strings.Contains(a.body, "not_found") {
						t.Fatalf("%d: %d %s", i, a.status, a.body)
					}
				}
				before := s.dump()
				a := unknown().is(429, "rate_limited").has("Retry-After: 2")
				if strings.Contains(a.body, "valid\":") {
					t.Fatal(a.body)
				}
				s.unchanged(before)
				if a := s.post(path, malformed); !strings.Contains(a.body, "key_malformed") {
					t.Fatalf("%d %s", a.status, a.body)
				}
				s.post(path, known).is(200)
				s.post("/widget/license/verify", `{}`, device).is(200)
				if a := s.post(path, `{"license_key":"`+newLicenseKey()+`","fingerprint":"f"}`, "Peer: 192.0.2.2:1"); a.status == 429 {
					t.Fatalf("from another address: %s", a.body)
				}
				time.Sleep(2 * time.Second)
				if a := unknown(); a.status == 429 {
					t.Fatalf("two seconds later: %s", a.body)
				}
				unknown().is(429, "rate_limited")
			})
		})
	}
}

func TestLookupLimit_holdsUnknownKeysByAddressAndLetsKnownOnesPass(t *testing.T) {
	t.Parallel()
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

func TestLookupLimit_countsFailuresOverAllPathsTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		for i := range 31 {
			path := []string{"verify", "activate", "deactivate"}[i%3]
			a := s.post("/widget/license/"+path, `{"license_key":"`+newLicenseKey()+`","fingerprint":"f"}`)
			if (a.status == 429) != (i == 30) {
				t.Fatalf("%d: %d %s", i, a.status, a.body)
			}
		}
	})
}

func BenchmarkBucket(b *testing.B) {
	for _, keys := range []int{1, 50_000, 1_000_000} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) {
			l, names := newLimiter(maxAddressBuckets), make([]string, keys)
			for i := range names {
				names[i] = "leads 192.0.2." + strconv.Itoa(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.take(names[i%keys], 60, time.Now())
			}
		})
	}
}
