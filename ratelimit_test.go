package main

import (
	"context"
	"errors"
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
			"a token before a widget":  {"token account", func() answer { return s.get("/widget/stats?widget="+widget, token, origin) }},
			"a token":                  {"token account", func() answer { return s.get("/widget/stats", token) }},
			"a token before a licence": {"token account", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+key+`"}`, token) }},
			"a token on leads":         {"origin leads", func() answer { return s.post("/widget/leads", aLead, token, origin) }},
			"a licence before an origin": {"licence licenses", func() answer {
				return s.post("/widget/license/verify", `{"license_key":"`+key+`"}`, origin)
			}},
			"a device's token": {"licence licenses", func() answer { return s.post("/widget/license/verify", `{}`, device, origin) }},
			"a licence": {"licence licenses", func() answer {
				return s.post("/widget/license/activate", `{"license_key":"`+key+`","fingerprint":"f"}`)
			}},
			"a licence that gives a seat back": {"licence licenses", func() answer {
				return s.post("/widget/license/deactivate", `{"license_key":"`+key+`","fingerprint":"f"}`)
			}},
			"a licence's wrong members":         {"", func() answer { return s.post("/widget/license/activate", `{"license_key":"`+key+`"}`) }},
			"a licence's wrong members, by own": {"", func() answer { return s.post("/widget/license/activate", `{"license_key":"`+key+`"}`, token) }},
			// No limit by address holds these three: charged to whoever's Origin a caller
			// writes, they would spend that account's allowance.
			"an unknown key with an origin":       {"", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+unknown+`"}`, origin) }},
			"a malformed key with an origin":      {"", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+malformed+`"}`, origin) }},
			"no key with an origin":               {"", func() answer { return s.post("/widget/license/verify", `{}`, origin) }},
			"an unknown key":                      {"", func() answer { return s.post("/widget/license/verify", `{"license_key":"`+unknown+`"}`) }},
			"a widget before an origin":           {"widget widgets", func() answer { return s.post("/widget/events", `{"widget":"`+widget+`"}`, origin) }},
			"a widget's statistics":               {"widget widgets", func() answer { return s.get("/widget/stats?widget=" + widget) }},
			"an unknown widget with an origin":    {"origin widgets", func() answer { return s.get("/widget/stats?widget=wgt_00000000000000000000000000", origin) }},
			"an unknown widget without an origin": {"", func() answer { return s.get("/widget/stats?widget=wgt_00000000000000000000000000") }},
			"a lead with an origin":               {"origin leads", func() answer { return s.post("/widget/leads", aLead, origin) }},
			"a lead without an origin":            {"", func() answer { return s.post("/widget/leads", aLead) }},
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
	device := "Authorization: Bearer " // of a device that holds a seat of the licence
	for name, c := range map[string]struct {
		end     string // what an operator does
		ask     func(s *service, key, token string) answer
		status  int
		code    string
		charged string
	}{
		"a key":                                           {"", byKey, 200, "valid", "main licenses"},
		"a retired key":                                   {`UPDATE license_keys SET retires_at = '2000-01-01T00:00:30Z'`, byKey, 200, "key_retired", ""},
		"a key that will retire":                          {`UPDATE license_keys SET retires_at = '2000-01-02T00:00:00Z'`, byKey, 200, "valid", "main licenses"},
		"a revoked licence's key":                         {`UPDATE licenses SET state = 'revoked'`, byKey, 200, "revoked", ""},
		"a suspended licence's key":                       {`UPDATE licenses SET state = 'suspended'`, byKey, 200, "suspended", "main licenses"},
		"an expired licence's key":                        {`UPDATE licenses SET expires_at = '2000-01-01T00:00:30Z'`, byKey, 200, "expired", ""},
		"the key of a licence in grace":                   {`UPDATE licenses SET expires_at = '2000-01-01T00:00:30Z', grace_days = 1`, byKey, 200, "grace", "main licenses"},
		"a token":                                         {"", byToken, 200, "valid", "main licenses"},
		"a revoked licence's token":                       {`UPDATE licenses SET state = 'revoked'`, byToken, 200, "revoked", ""},
		"an expired licence's token":                      {`UPDATE licenses SET expires_at = '2000-01-01T00:00:30Z'`, byToken, 200, "expired", ""},
		"a blocked device's token, after it left":         {`UPDATE devices SET state = 'blocked', released_at = '2000-01-01T00:00:00Z', released_by = 'device'`, byToken, 200, "device_blocked", ""},
		"the token of a device that is gone":              {`DELETE FROM devices`, byToken, 200, "device_not_activated", ""},
		"a blocked device's token":                        {`UPDATE devices SET state = 'blocked'`, byToken, 200, "device_blocked", ""},
		"the token of a device that a portal released":    {released("portal"), byToken, 200, "device_released", ""},
		"the token of a device that an operator released": {released("operator"), byToken, 200, "device_released", ""},
		"the token of a device that another replaced":     {released("replacement"), byToken, 200, "device_released", ""},
		"the token of a device that gave its seat back":   {released("device"), byToken, 200, "device_released", "main licenses"},
		"the token of a device whose lease lapsed":        {released("lease"), byToken, 200, "device_released", "main licenses"},
		"a key beside a token that has ended":             {released("portal"), byBoth, 200, "device_released", ""},
		"a key beside a token":                            {"", byBoth, 200, "valid", "main licenses"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				_, key := s.addLicense(license{})
				token := device + s.activate(key, "f").is(200).text("token")
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
				ask().is(429, "rate_limited").has("Retry-After: 1", "RateLimit: ")
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

// TestBucket_ofATenantIsNotEmptiedByStrangers: each attack comes from 50 addresses at once, as fast as
// each of them may, and each makes more than 600 calls.
func TestBucket_ofATenantIsNotEmptiedByStrangers(t *testing.T) {
	t.Parallel()
	verify := func(key string) func(*service, string) answer {
		return func(s *service, address string) answer {
			return s.post("/widget/license/verify", activateBody(key, "f"), "Peer: 127.0.0.1:1", address)
		}
	}
	sqlThenVerify := func(query string) func(*service) func(*service, string) answer {
		return func(s *service) func(*service, string) answer {
			_, key := s.addLicense(license{})
			s.sql(query)
			return verify(key)
		}
	}
	for name, attack := range map[string]func(*service) func(*service, string) answer{
		"a retired key":            sqlThenVerify(`UPDATE license_keys SET retires_at = created_at`),
		"a revoked licence's key":  sqlThenVerify(`UPDATE licenses SET state = 'revoked'`),
		"an expired licence's key": sqlThenVerify(`UPDATE licenses SET expires_at = created_at`),
		"a current key":            sqlThenVerify(`UPDATE licenses SET lease_hours = 24`),
		"a public widget's id": func(s *service) func(*service, string) answer {
			widget := s.addWidget(s.account)
			return func(s *service, address string) answer {
				return s.get("/widget/stats?from=no&widget="+widget, "Peer: 127.0.0.1:1", address)
			}
		},
		"a forged Origin": func(s *service) func(*service, string) answer {
			return func(s *service, address string) answer {
				return s.post("/widget/events", `{"widget":"wgt_00000000000000000000000000"}`, "Origin: "+siteOrigin, "Peer: 127.0.0.1:1", address)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				strike := attack(s)
				_, good := s.addLicense(license{})
				portal := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
				asked := 0
				for i := range 13 {
					for j := range 50 {
						a := strike(s, fmt.Sprintf("X-Forwarded-For: 198.51.100.%d", j))
						if a.status == 429 && a.header.Get("RateLimit") == "" {
							t.Fatalf("the address is limited after %d calls: %s", i, a.body)
						}
						if asked++; asked%2 == 0 { // the portal's own 600, beside the attack
							s.get("/licenses?limit=1", portal).is(200)
						}
						if asked%100 == 0 {
							s.post("/widget/leads", aLead, "Origin: "+siteOrigin, fmt.Sprintf("Peer: 192.0.2.%d:1", asked/100)).is(200)
						}
					}
				}
				for range 600 - asked/2 {
					s.get("/licenses?limit=1", portal).is(200)
				}
				s.get("/licenses?limit=1", portal).is(429, "rate_limited") // it had its 600
				if name != "a current key" {
					s.activate(good, "new").is(200).has(`RateLimit: "licenses";r=599;t=1`)
				}
			})
		})
	}
}

func TestBucket_chargedForALicenceIsItsAccounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		second := s.addAccount("second")
		_, key := s.addLicense(license{AccountID: second})
		a := s.activate(key, "f").is(200)
		if got := a.header.Get("RateLimit"); got != `"licenses";r=599;t=1` {
			t.Errorf("by key: %q", got)
		}
		if got := s.verifyLease(a.text("token")).header.Get("RateLimit"); got != `"licenses";r=598;t=1` {
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

// TestAddressLimit_trustsThePeerOfAUnixSocket: systemd can pass one, and such a peer has no address.
func TestAddressLimit_trustsThePeerOfAUnixSocket(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trusted  []netip.Prefix
		status   int    // of a call for a second client, after those of the first are used up
		repeated string // what the second client is forwarded for
	}{
		"another client":                     {[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, 200, "198.51.100.2"},
		"a client behind what it says":       {[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, 429, "198.51.100.2, 198.51.100.1"},
		"an operator who trusts no one here": {[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, 429, "198.51.100.2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, func(_ *storeOptions, o *serverOptions) { o.anonymousRate, o.trusted = 2, c.trusted })
			addr := s.listeningOn("unix", filepath.Join(s.dir, "http.sock"))
			client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", addr)
			}}}
			t.Cleanup(client.CloseIdleConnections)
			post := func(forwarded string) int {
				r, err := http.NewRequestWithContext(t.Context(), "POST", "http://x/v1/widget/leads", strings.NewReader(aLead))
				s.check(err)
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("X-Forwarded-For", forwarded)
				res, err := client.Do(r)
				s.check(err)
				s.check(res.Body.Close())
				return res.StatusCode
			}
			for i, want := range []int{200, 200, 429} { // a token comes back in half a minute
				if got := post("198.51.100.1"); got != want {
					t.Fatalf("call %d: %d, want %d", i, got, want)
				}
			}
			if got := post(c.repeated); got != c.status {
				t.Errorf("%d, want %d", got, c.status)
			}
		})
	}
}

func TestAddressLimit_knowsTheClientsAddress(t *testing.T) {
	t.Parallel()
	trusted, err := parsePrefixes("trusted-proxies", []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8"})
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
	trusted, err := parsePrefixes("trusted-proxies", []string{"127.0.0.0/8", "::1/128"})
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

func TestLookupLimit_answersKnownAndUnknownKeysAlikeAfterThirtyFailures(t *testing.T) {
	t.Parallel()
	for _, path := range licenseCalls {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				_, key := s.addLicense(license{})
				_, full := s.addLicense(license{MaxDevices: ptr(1)})
				_, floating := s.addLicense(license{Kind: kindFloating, LeaseHours: 1})
				_, retired := s.addLicense(license{})
				_, revoked := s.addLicense(license{})
				s.activate(key, "left").is(200)
				s.post("/widget/license/deactivate", activateBody(key, "left")).is(200)
				s.activate(full, "other").is(200)
				s.activate(floating, "f").is(200)
				thief := "Authorization: Bearer " + s.activate(full, "other").is(200).text("token")
				s.change(func(t *tx) error {
					_, err := t.exec(`UPDATE license_keys SET retires_at = ? WHERE hint = ?`, t.now, retired[len(retired)-5:])
					return err
				})
				s.change(func(t *tx) error {
					_, err := t.exec(`UPDATE licenses SET state = 'revoked' WHERE id = (SELECT license_id FROM license_keys WHERE hint = ?)`, revoked[len(revoked)-5:])
					return err
				})
				time.Sleep(2 * time.Hour) // the floating seat lapses
				s.guessAll()
				before := s.dump()
				want := s.guess(path).is(429, "rate_limited").has("Retry-After: 60", "RateLimit: ", "RateLimit-Policy: ").sameButForIDs()
				for name, a := range map[string]answer{
					"an unknown key":                    s.guess(path),
					"a mistyped key":                    s.post(path, activateBody(mistype(key), "f")),
					"an imported key":                   s.post(path, activateBody("WP-2019-000123-ABCDEF", "f")),
					"a known key":                       s.post(path, activateBody(key, "f")),
					"a known key in lower case":         s.post(path, activateBody(strings.ToLower(key), "f")),
					"a known key, a device that left":   s.post(path, activateBody(key, "left")),
					"a full licence's key":              s.post(path, activateBody(full, "f")),
					"a known key, a device that lapsed": s.post(path, activateBody(floating, "f")),
					"a retired key":                     s.post(path, activateBody(retired, "f")),
					"a revoked licence's key":           s.post(path, activateBody(revoked, "f")),
					"a known key with a page's Origin":  withoutCORS(s.post(path, activateBody(key, "f"), "Origin: "+siteOrigin)),
					"another key beside a token":        s.post(path, activateBody(key, "other"), thief),
					"an unknown key beside a token":     s.post(path, activateBody(newLicenseKey(), "other"), thief),
					"an Idempotency-Key":                s.post(path, activateBody(key, "f"), "Idempotency-Key: 1"),
					"an old path":                       withoutSunset(s.post("//api/legacy"+path, activateBody(key, "f"))),
				} {
					if got := a.sameButForIDs(); got != want {
						t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
					}
				}
				s.unchanged(before)
			})
		})
	}
}

// mistype returns a key with another check symbol.
func mistype(key string) string {
	last := "0"
	if strings.HasSuffix(key, last) {
		last = "1"
	}
	return key[:len(key)-1] + last
}

// withoutCORS and withoutSunset return an answer without the headers that say from where it was asked,
// or by which path.
func withoutCORS(a answer) answer {
	return a.without("Access-Control-Allow-Origin", "Access-Control-Expose-Headers")
}

func withoutSunset(a answer) answer { return a.without("Sunset", "Deprecation", "Link") }

func (a answer) without(names ...string) answer {
	a.header = a.header.Clone()
	for _, name := range names {
		a.header.Del(name)
	}
	a.header.Set("Vary", "Origin")
	return a
}

func TestLookupLimit_letsActiveDevicesAndTokensPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		_, other := s.addLicense(license{AccountID: s.addAccount("other")})
		lease := s.activate(key, "f").is(200).text("token")
		device := "Authorization: Bearer " + lease
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

		portal := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		all := s.portalToken(s.account, scopeLicenses)
		ask := func(key string, token string) answer {
			return s.post("/widget/license/verify", seatBody("license_key", key, "fingerprint", "unknown"), token).is(200)
		}
		for range 40 { // an account's own token is held by the account's bucket only
			if got := ask(newLicenseKey(), portal).text("code"); got != "not_found" {
				t.Fatal(got)
			}
		}
		if got := ask(key, portal).text("code"); got != "device_not_activated" {
			t.Error(got)
		}
		for range 2 { // another account's licence is as unknown as any other key
			if got := ask(other, portal).text("code"); got != "not_found" {
				t.Error(got)
			}
		}
		if got := ask(other, all).text("code"); got != "device_not_activated" {
			t.Error(got)
		}
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

func TestLookupLimit_lets300CallsAMinuteOfActiveDevicesPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		lease := s.activate(key, "f").is(200).text("token")
		s.guessAll()
		for range 300 {
			s.verifyKey(key, "f").answers("valid")
		}
		known := s.verifyKey(key, "f").is(429, "rate_limited")
		if unknown := s.guess(licenseCalls[0]); known.sameButForIDs() != unknown.sameButForIDs() {
			t.Errorf("%s\n%s", known.body, unknown.body)
		}
		s.verifyLease(lease).answers("valid")
	})
}

func TestLookupLimit_countsDifferentKeysWithinAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		wrong, answered := []string{}, 0
		for range 10 * 60 { // a guess a second, for ten minutes
			key := newLicenseKey()
			if s.verifyKey(key, "f").status == 200 {
				answered++
				wrong = append(wrong, key)
			}
			time.Sleep(time.Second)
		}
		if answered != 300 {
			t.Errorf("%d of 600 guesses were answered, want 30 a minute", answered)
		}
		time.Sleep(time.Minute)
		for range 29 {
			s.guess(licenseCalls[0]).is(200)
		}
		s.verifyKey(wrong[0], "f").answers("not_found") // the thirtieth
		s.verifyKey(wrong[0], "f").is(429, "rate_limited")
	})
}

func TestLookupLimit_countsAKeyOnceHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		_, retired := s.addLicense(license{})
		s.change(func(t *tx) error {
			_, err := t.exec(`UPDATE license_keys SET retires_at = ? WHERE hint = ?`, t.now, retired[len(retired)-5:])
			return err
		})
		for range 40 { // a slip of the finger that no key can read like is no guess
			s.verifyKey("XXXXX", "f").answers("key_malformed")
		}
		wrong := mistype(key)
		for i := range 61 { // the first is counted as a key, then come 60 repeats
			spelled := []string{wrong, strings.ToLower(wrong), strings.ReplaceAll(wrong, "-", ""), " " + wrong}[i%4]
			if got := s.verifyKey(spelled, "f").is(200).text("code"); got != "key_malformed" {
				t.Fatalf("%d: %s", i, got)
			}
		}
		a := s.verifyKey(wrong, "f").is(429, "rate_limited").has("Retry-After: 1")
		for range 28 {
			s.guess(licenseCalls[1]).is(404)
		}
		s.activate(retired, "f").is(403, "key_retired") // the thirtieth
		s.guess(licenseCalls[1]).is(429)
		if a.header.Get("RateLimit") != "" {
			t.Error("a repeat is charged")
		}
	})
}

// TestLookupLimit_leavesTheNeighboursOfAWrongKeyAlone is an office behind one address, with tills that
// retry a wrong key, a retired one and an ended licence's every second, while others come and go.
func TestLookupLimit_leavesTheNeighboursOfAWrongKeyAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{})
		wrong := newLicenseKey()
		for i := range 3 * 60 {
			s.verifyKey(wrong, "till").answers("not_found")
			if i%10 == 0 {
				lease := s.activate(key, fmt.Sprint("till ", i)).is(200).text("token")
				s.verifyLease(lease).answers("valid")
				s.verifyKey(key, fmt.Sprint("till ", i)).answers("valid")
			}
			time.Sleep(time.Second)
		}
		if n := s.server.lookups.len(); n != 1 {
			t.Errorf("%d addresses are remembered", n)
		}
	})
}

func TestLookupLimit_answersThirtyOfManyGuessesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		var answered atomic.Int64
		var all sync.WaitGroup
		for i := range 120 {
			all.Go(func() {
				if s.post(licenseCalls[i%3], activateBody(newLicenseKey(), "f")).status != 429 {
					answered.Add(1)
				}
			})
		}
		all.Wait()
		if answered.Load() != 30 {
			t.Errorf("%d were answered", answered.Load())
		}
	})
}

func TestLookupLimit_ofAnotherRateAndOfNone(t *testing.T) {
	t.Parallel()
	for rate, most := range map[int]int{1: 1, 5: 5, 1000: 1000, 1001: 5000, 1 << 30: 5000} {
		now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
		g, answered := newLookupGuard(rate, now), 0
		for i := range 5000 {
			if _, wait := g.fail("a", [32]byte{byte(i), byte(i >> 8)}, now); wait == 0 {
				answered++
			}
		}
		if answered != most || g.limited("a", now) > 0 != (most < 5000) {
			t.Errorf("a rate of %d: %d answered", rate, answered)
		}
		if h := g.addresses["a"]; h != nil && len(h.failures) > min(rate, maxLookupsAddress) {
			t.Errorf("a rate of %d: %d failures are remembered", rate, len(h.failures))
		}
	}
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
		now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
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
		if g.len() != g.max || len(g.byFull) != g.max {
			t.Errorf("%s: %d addresses, %d in the heap", name, g.len(), len(g.byFull))
		}
		if fail("guesser") == 0 {
			t.Errorf("%s: the guesser was forgotten", name)
		}
		now = now.Add(2 * time.Minute)
		for range 51 {
			fail("guesser")
		}
		if g.len() != 1 {
			t.Errorf("%s: %d addresses are remembered after their time", name, g.len())
		}
	}
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

func TestMemory_ofABudgetIsNobodysAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		take := func(account string, bytes int64) func() {
			t.Helper()
			release, err := b.take(t.Context(), account, bytes)
			if err != nil {
				t.Fatalf("%q: %v", account, err)
			}
			return release
		}
		refused := func(account string, bytes int64) {
			t.Helper()
			began := time.Now()
			if _, err := b.take(t.Context(), account, bytes); !errors.Is(err, errBusy) {
				t.Errorf("%q gets %d bytes: %v", account, bytes, err)
			}
			if waited := time.Since(began); waited != memoryWaitTimeout {
				t.Errorf("%q waits %s", account, waited)
			}
		}
		anonymous := take("", 50)
		refused("", 1) // half is the most that all callers without a token have
		greedy := take("acct_1", 40)
		refused("acct_1", 11)
		take("acct_2", 10)()
		last := take("acct_2", 10)
		refused("acct_3", 1) // all is given away

		// Who waits gets its part as soon as there is room, in the order of asking, though others ask for less.
		order := make(chan string, 2)
		for _, account := range []string{"acct_3", "acct_4"} {
			go func() {
				release := take(account, 45)
				order <- account
				release()
				release() // a second time gives nothing back
			}()
			synctest.Wait()
		}
		anonymous()
		if first, second := <-order, <-order; first != "acct_3" || second != "acct_4" {
			t.Errorf("the room went to %s, then to %s", first, second)
		}
		greedy()
		last()
		if b.free != 100 || len(b.held) > 0 || len(b.waiting) > 0 {
			t.Errorf("%d of 100 bytes are free at the end, held %v, waiting %d", b.free, b.held, len(b.waiting))
		}
	})
}

func TestLookupLimit_holdsMalformedKeysOfAnAddressToSixtyAMinute(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	s.activate(key, "till-1").is(200)
	for range 60 {
		s.verifyKey("x", "till-1").is(200)
	}
	s.verifyKey("x", "till-1").is(429, "rate_limited")
	s.verifyKey("y", "till-1", "nonce", "n").is(429, "rate_limited")
	s.verifyKey(key, "till-1").answers("valid") // a sound till behind the same address goes on
}
