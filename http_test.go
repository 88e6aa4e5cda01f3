package main

import (
	"database/sql"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

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
		"", "null", "*", "example.com", "//example.com", "https://", "https:///", "ftp://example.com",
		"https://example.com/", "https://example.com/a", "https://example.com?a", "https://example.com#a",
		"https://u@example.com", "https://*.example.com", "https://example.com:", "https://example.com:0",
		"https://example.com:00443", "https://example.com:+1", "https://example.com:65536", "https://example.com:x",
		"https://example..com", "https://.example.com", "https://exa " +
			"mple.com", " https://example.com", "https://zürich.example", "https://[::1", "https://::1",
		"https://[fe80::1%25eth0]", "https://[127.0.0.1]", "file://x",
		"https://" + strings.Repeat("a", 250) + ".com",
	} {
		if got, err := parseOrigin(wrong); err == nil {
			t.Errorf("%q is taken as %q", wrong, got)
		}
	}
}

// The sites of the tests of origins.
const (
	appSite     = "https://app.example"
	otherSite   = "https://other-app.example"
	sharedSite  = "https://shared.example" // an account lists it, and the application
	removedSite = "https://removed.example"
	closedSite  = "https://closed.example"
)

// A sites is a service with applications that run in browsers.
type sites struct {
	*service
	app, other *app
}

func newSites(t testing.TB) *sites {
	t.Helper()
	s := newService(t, withoutAddressLimits)
	stranger := s.addAccount("stranger")
	of := func(accountID string, origins ...string) *app {
		p, _ := s.registerApp(func(p *app) {
			p.AccountID, p.Kind, p.Origins = accountID, appBrowser, origins
		})
		return p
	}
	f := &sites{service: s, app: of(s.account, appSite, sharedSite), other: of(s.account, otherSite)}
	removed, _ := of(s.account, removedSite), of(stranger, closedSite)
	s.change(func(t *tx) error {
		t.exec(`UPDATE apps SET removed_at = ? WHERE id = ?`, t.now, removed.ID)
		return errors.Join(addOrigin(t, s.account, sharedSite, anActor), closeAccount(t, nouns(), stranger, anActor))
	})
	return f
}

// readers checks which origin an answer allows to read it; "": none may.
func (a answer) readers(origin string) answer {
	a.t.Helper()
	exposed := "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Sunset, Deprecation, Link, ETag, " +
		"Preference-Applied"
	if origin == "" {
		exposed = ""
	}
	return a.has("Access-Control-Allow-Origin: "+origin, "Access-Control-Expose-Headers: "+exposed,
		"Access-Control-Allow-Credentials: ")
}

func TestPreflight_ofEveryKindOfRouteFromEveryKindOfSite(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	const required, late, public, token, page = "/orders", "/widget/license/verify", "/widget/leads", "/oauth/token",
		"/oauth/signin"
	for origin, allowed := range map[string]map[string]string{
		siteOrigin:                  {required: "GET, HEAD, POST", late: "POST", public: "POST"},
		appSite:                     {required: "GET, HEAD, POST", token: "POST"},
		otherSite:                   {required: "GET, HEAD, POST", token: "POST"},
		sharedSite:                  {required: "GET, HEAD, POST", late: "POST", public: "POST", token: "POST"},
		removedSite:                 {},
		closedSite:                  {},
		"https://elsewhere.example": {},
		"http://app.example":        {},
		"https://x.app.example":     {},
		"null":                      {},
	} {
		for _, path := range []string{required, late, public, token, page} {
			a := s.do("OPTIONS", path, "", "Origin: "+origin, "Access-Control-Request-Method: POST",
				"Access-Control-Request-Headers: authorization")
			if !strings.HasPrefix(strings.Join(a.header.Values("Vary"), ", "), "Origin") {
				t.Errorf("%s from %s varies by %q", path, origin, a.header.Values("Vary"))
			}
			methods := allowed[path]
			status, maxAge, headers, back := 204, "7200", allowedHeaders, origin
			if methods == "" {
				status, maxAge, headers, back = 403, "", "", ""
			}
			a.has("Access-Control-Allow-Origin: "+back, "Access-Control-Allow-Methods: "+methods,
				"Access-Control-Max-Age: "+maxAge,
				"Access-Control-Allow-Headers: "+headers, "Access-Control-Expose-Headers: ",
				"Access-Control-Allow-Credentials: ")
			equal(t, path+" from "+origin, a.status, status)
		}
	}
	s.do("OPTIONS", "/orders", "", "Origin: "+appSite, "Origin: "+appSite).is(403, "origin_not_allowed")
	s.do("OPTIONS", token, "").is(204).has("Allow: POST, OPTIONS", "Access-Control-Allow-Origin: ")
	for _, path := range []string{token, page} { // 405 says nothing to scripts, whatever the site
		s.do("DELETE", path, "", "Origin: "+siteOrigin).readers("")
		s.do("DELETE", path, "", "Origin: "+appSite).readers("")
	}
}

// Against a page on an application's site, or on any other, that would read what others are answered, send leads as
// a listed site, or read a page of consent: an application's origins are no listed ones; answers may be read where
// the token, or the request for one, is of an application that lists the origin; pages by no script.
func TestOrigin_ofAnApplicationMayReadWhatItsTokensAreAnswered(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	token, _ := s.appToken(s.app, s.account, scopeOrders)
	ended, endedGrant := s.appToken(s.app, s.account, scopeOrders)
	removed, _ := s.appToken(s.other, s.account, scopeOrders)
	s.change(func(t *tx) error { return endGrant(t, anyAccount, endedGrant, endedByOwner, "test") })
	operator := s.token(s.account, scopeOrders)
	claimsOf, err := s.keys.verify(token)
	s.check(err)
	expired := claimsOf
	expired.IssuedAt, expired.Expires = expired.IssuedAt-9_000, expired.IssuedAt-7_200
	old, err := s.keys.sign(expired)
	s.check(err)
	another, err := newKeyring(time.Now())
	s.check(err)
	forged, err := another.sign(claimsOf)
	s.check(err)
	for name, c := range map[string]struct {
		status              int
		method, path, token string
		readers             []string // among the sites below; siteOrigin and sharedSite always are
	}{
		"an answer":                 {200, "GET", "/orders", token, []string{appSite}},
		"HEAD":                      {200, "HEAD", "/orders", token, []string{appSite}},
		"a 403":                     {403, "GET", "/leads", token, []string{appSite}},
		"a 404":                     {404, "GET", "/orders/ord_00000000000000000000000000", token, []string{appSite}},
		"a 422":                     {422, "GET", "/orders?limit=0", token, []string{appSite}},
		"an ended grant's":          {401, "GET", "/orders", ended, []string{appSite}},
		"an expired token's":        {401, "GET", "/orders", old, []string{appSite}},
		"a forged token's":          {401, "GET", "/orders", forged, nil},
		"no token at all":           {401, "GET", "/orders", "", nil},
		"another application's":     {200, "GET", "/orders", removed, []string{otherSite}},
		"an operator's token":       {200, "GET", "/orders", operator, nil},
		"where a token is optional": {422, "GET", "/widget/stats", token, nil},
	} {
		for _, origin := range []string{siteOrigin, sharedSite, appSite, otherSite, removedSite,
			"https://elsewhere.example", "null"} {
			headers := []string{"Origin: " + origin, bearer(c.token)}
			if c.token == "" {
				headers = headers[:1]
			}
			a := s.do(c.method, c.path, "", headers...)
			if a.status != c.status && !(c.path == "/widget/stats" && a.status == 403) {
				t.Fatalf("%s from %s: %d %s", name, origin, a.status, a.body)
			}
			want := ""
			if slices.Contains(append(c.readers, siteOrigin, sharedSite), origin) {
				want = origin
			}
			equal(t, name+" from "+origin+" may be read by", a.header.Get("Access-Control-Allow-Origin"), want)
			a.readers(want)
		}
	}
	s.change(func(t *tx) error { return t.setRate(s.account, 1) })
	for range 2 {
		s.get("/orders", bearer(token), "Origin: "+appSite)
	}
	s.get("/orders", bearer(token), "Origin: "+appSite).is(429, "rate_limited").readers(appSite)
}

func TestOrigin_ofAnApplicationReadsWhatTheApplicationIsAnswered(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	for origin, reads := range map[string]*app{
		appSite: s.app, sharedSite: s.app, otherSite: s.other, siteOrigin: nil, removedSite: nil, "null": nil,
		"https://elsewhere.example": nil,
	} {
		ask := func(clientID string) answer {
			return s.post("/oauth/token", "grant_type=authorization_code&code=x&client_id="+clientID, formType,
				"Origin: "+origin)
		}
		for _, p := range []*app{s.app, s.other} {
			want := ""
			if p == reads {
				want = origin
			}
			ask(p.ID).readers(want)
		}
		ask("app_00000000000000000000000000").readers("")
		s.get("/oauth/signin", "Origin: "+origin).is(200).readers("")
	}
}

// TestOrigin_ofAnApplicationHasNoRightsOfAListedOne calls what a listed origin may, from an application's.
func TestOrigin_ofAnApplicationHasNoRightsOfAListedOne(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	token, _ := s.appToken(s.app, s.account, scopeOrders)
	before := s.count(`SELECT count(*) FROM leads`)
	s.post("/widget/leads", anyLead, "Origin: "+appSite).is(403, "origin_not_allowed").readers("").has("RateLimit: ")
	s.post("/widget/leads", anyLead, "Origin: "+appSite, bearer(token)).is(403, "origin_not_allowed").readers("")
	s.counts(before, `SELECT count(*) FROM leads`)                            // none came from an application's site
	s.get("/widget/stats", "Origin: "+appSite).has("RateLimit: ").readers("") // nobody is charged
}

func TestOrigin_countsAtOnceWhoeverChangedIt(t *testing.T) {
	t.Parallel()
	s := newSites(t)
	token, _ := s.appToken(s.app, s.account, scopeOrders)
	db, err := sql.Open("sqlite", dsn(s.store.path, "rw", storeOptions{})) // as the sqlite3 shell would
	s.check(err)
	defer db.Close()
	const origin = "https://added.example"
	for path, insert := range map[string]string{
		"/widget/leads": `INSERT INTO origins (account_id, origin) VALUES (?, ?)`,
		"/oauth/token":  `INSERT INTO app_origins (app_id, origin) VALUES (?, ?)`,
	} {
		reads := func(status int) {
			t.Helper()
			s.notice()
			for range 2 { // the second is from the cache
				s.do("OPTIONS", path, "", "Origin: "+origin).is(status)
				s.get("/orders", "Origin: "+origin, bearer(token)).is(200).readers(
					map[bool]string{true: origin}[status == 204])
			}
		}
		reads(403)
		_, err = db.Exec(insert, map[string]string{"/widget/leads": s.account, "/oauth/token": s.app.ID}[path], origin)
		s.check(err)
		reads(204)
		_, err = db.Exec(`DELETE FROM origins WHERE origin = ?1`, origin)
		_, other := db.Exec(`DELETE FROM app_origins WHERE origin = ?1`, origin)
		s.check(errors.Join(err, other))
		reads(403)
	}
}

func FuzzOrigin(f *testing.F) {
	for _, seed := range []string{"https://www.example.com", "HTTP://Example.com:80",
		"http://[2001:DB8::1]:8080", "https://[::ffff:192.0.2.1]", "null", "https://a:443:443", "https://a_b",
		"https://\u212aelvin.example"} {
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
		if err != nil || u.Scheme+"://"+u.Host != normal || u.Scheme != "http" && u.Scheme != "https" ||
			u.Hostname() == "" || normal != strings.ToLower(normal) {
			t.Fatalf("%q is %q, which net/url reads as %+v, %v", s, normal, u, err)
		}
		if u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443" ||
			u.User != nil {
			t.Fatalf("%q keeps what it should not: %q", s, normal)
		}
		if strings.HasPrefix(u.Host, "[") {
			if _, err := netip.ParseAddr(u.Hostname()); err != nil {
				t.Fatalf("%q has no address: %v", normal, err)
			}
		}
	})
}
