package main

import (
	"database/sql"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestPreflight_fromAListedOriginIs204WithTheMethodsOfThePath(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for path, methods := range map[string]string{
		"/widget/leads":            "POST",
		"/widget/license/activate": "POST",
		"/widget/license/verify":   "POST",
		"/widget/events":           "POST",
		"/widget/stats":            "GET, HEAD",
		"/widget/health":           "GET, HEAD",
		"/leads":                   "GET, HEAD",
		"/leads/erase":             "POST",
		"/licenses/x/devices/y":    "DELETE",
	} {
		a := s.do("OPTIONS", path, "", "Origin: "+siteOrigin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type").is(204)
		a.has("Access-Control-Allow-Origin: "+siteOrigin, "Access-Control-Allow-Methods: "+methods, "Access-Control-Allow-Headers: Authorization, Content-Type, Idempotency-Key",
			"Access-Control-Max-Age: 7200", "Vary: Origin", "Access-Control-Allow-Credentials: ", "Access-Control-Expose-Headers: ", "RateLimit: ", "Content-Type: ")
		if a.body != "" {
			t.Errorf("%s: body %q", path, a.body)
		}
	}
}

func TestPreflight_fromAnyOtherOriginIs403WithoutCORSHeaders(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, origin := range []string{
		"https://other.example", "null", "http://www.example.com", "https://example.com", "https://a.www.example.com", "https://www.example.com:8443", "https://www.example.com.evil.example",
		"https://evilwww.example.com", "https://www.example.com/", "https://www.example.com@evil.example", "https://*.example.com", "*", "", "https://www.example.com https://www.example.com",
	} {
		for _, path := range []string{"/widget/leads", "/widget/stats"} {
			a := s.do("OPTIONS", path, "", "Origin: "+origin, "Access-Control-Request-Method: POST").is(403, "origin_not_allowed").has("Vary: Origin")
			for name := range a.header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%q gets %s", origin, name)
				}
			}
		}
	}
	s.do("OPTIONS", "/widget/leads", "", "Origin: "+siteOrigin, "Origin: "+siteOrigin).is(403, "origin_not_allowed")
}

func TestPreflight_withoutAnOriginNamesTheMethods(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.do("OPTIONS", "/widget/leads", "").is(204).has("Allow: POST, OPTIONS", "Access-Control-Allow-Origin: ")
	s.do("OPTIONS", "/widget/stats", "").is(204).has("Allow: GET, HEAD, OPTIONS")
	s.do("OPTIONS", "/widget/none", "", "Origin: "+siteOrigin).is(404, "not_found")
}

func TestOrigin_listedMayReadEveryAnswerEvenARefusal(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for name, a := range map[string]answer{
		"success":   s.post("/widget/leads", aLead, "Origin: "+siteOrigin).is(200),
		"400":       s.post("/widget/leads", "{", "Origin: "+siteOrigin).is(400),
		"401":       s.get("/leads", "Origin: "+siteOrigin).is(401),
		"404":       s.get("/none", "Origin: "+siteOrigin).is(404),
		"unclean":   s.get("/widget//leads", "Origin: "+siteOrigin).is(404),
		"405":       s.get("/widget/leads", "Origin: "+siteOrigin).is(405),
		"415":       s.post("/widget/leads", "{}", "Origin: "+siteOrigin, "Content-Type: a/b").is(415),
		"422":       s.post("/widget/leads", "{}", "Origin: "+siteOrigin).is(422),
		"health":    s.get("/widget/health", "Origin: "+siteOrigin).is(200),
		"statistic": s.get("/widget/stats?widget="+s.addWidget(s.account), "Origin: "+siteOrigin).is(200),
	} {
		if a.header.Get("Access-Control-Allow-Origin") != siteOrigin || a.header.Get("Access-Control-Allow-Credentials") != "" || !strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Origin") ||
			a.header.Get("Access-Control-Expose-Headers") != "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag" {
			t.Errorf("%s: %v", name, a.header)
		}
	}
	s.get("/widget/health").is(200).has("Vary: Origin", "Access-Control-Allow-Origin: ") // varies all the same
	s.get("/widget/health", "Origin: https://other.example").is(200).has("Access-Control-Allow-Origin: ", "Vary: Origin")
}

func TestOrigin_isComparedAsBrowsersMayWriteIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, origin := range []string{"HTTPS://WWW.Example.COM", "https://www.example.com:443"} {
		s.do("OPTIONS", "/widget/leads", "", "Origin: "+origin).is(204).has("Access-Control-Allow-Origin: " + origin)
	}
}

func TestOrigin_countsAtOnceWhoeverChangedIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const partner = "Origin: https://partner.example"
	s.do("OPTIONS", "/widget/leads", "", partner).is(403)
	db, err := sql.Open("sqlite", dsn(s.store.path, "rw", storeOptions{})) // as the sqlite3 shell would
	s.check(err)
	defer db.Close()
	_, err = db.Exec(`INSERT INTO origins (origin, account_id) VALUES ('https://partner.example', ?)`, s.account)
	s.check(err)
	s.do("OPTIONS", "/widget/leads", "", partner).is(204)
	_, err = db.Exec(`DELETE FROM origins WHERE origin = 'https://partner.example'`)
	s.check(err)
	s.do("OPTIONS", "/widget/leads", "", partner).is(403)
}

func TestOrigin_hasOneForm(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"https://www.example.com":       "https://www.example.com",
		"HTTPS://WWW.EXAMPLE.COM:443":   "https://www.example.com",
		"http://example.com:80":         "http://example.com",
		"http://example.com:443":        "http://example.com:443",
		"http://localhost:3000":         "http://localhost:3000",
		"http://192.0.2.1:8080":         "http://192.0.2.1:8080",
		"http://[2001:DB8::0:1]:8080":   "http://[2001:db8::1]:8080",
		"https://[::1]":                 "https://[::1]",
		"https://xn--zrich-kva.example": "https://xn--zrich-kva.example",
	} {
		if got, err := parseOrigin(given); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %s", given, got, err, want)
		}
	}
	for _, wrong := range []string{
		"", "null", "*", "example.com", "//example.com", "https://", "https:///", "ftp://example.com", "https://example.com/", "https://example.com/a", "https://example.com?a", "https://example.com#a",
		"https://u@example.com", "https://*.example.com", "https://example.com:", "https://example.com:0", "https://example.com:00443", "https://example.com:+1", "https://example.com:65536", "https://example.com:x",
		"https://example..com", "https://.example.com", "https://exa mple.com", " https://example.com", "https://zürich.example", "https://[::1", "https://::1", "https://[fe80::1%25eth0]", "https://[127.0.0.1]", "file://x",
		"https://" + strings.Repeat("a", 250) + ".com",
	} {
		if got, err := parseOrigin(wrong); err == nil {
			t.Errorf("%q is taken as %q", wrong, got)
		}
	}
}

func FuzzOrigin(f *testing.F) {
	for _, seed := range []string{"https://www.example.com", "HTTP://Example.com:80", "http://[2001:DB8::1]:8080", "https://[::ffff:192.0.2.1]", "null", "https://a:443:443", "https://a_b", "https://\u212aelvin.example"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		normal, err := parseOrigin(s)
		if err != nil {
			return
		}
		if again, err := parseOrigin(normal); err != nil || again != normal {
			t.Fatalf("%q is %q, and that is %q, %v", s, normal, again, err)
		}
		u, err := url.Parse(normal)
		if err != nil || u.Scheme+"://"+u.Host != normal || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || normal != strings.ToLower(normal) {
			t.Fatalf("%q is %q, which net/url reads as %+v, %v", s, normal, u, err)
		}
		if u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443" || u.User != nil {
			t.Fatalf("%q keeps what it should not: %q", s, normal)
		}
		if strings.HasPrefix(u.Host, "[") {
			if _, err := netip.ParseAddr(u.Hostname()); err != nil {
				t.Fatalf("%q has no address: %v", normal, err)
			}
		}
	})
}
