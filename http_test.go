package main

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
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

// An application's origin reads what the application is answered, and may nothing that a listed one may.
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
	token, _ := s.appToken(s.app, s.account, scopeOrders)
	s.post("/widget/leads", anyLead, "Origin: "+appSite).is(403, "origin_not_allowed").readers("").has("RateLimit: ")
	s.post("/widget/leads", anyLead, "Origin: "+appSite, bearer(token)).is(403, "origin_not_allowed").readers("")
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

func FuzzEmail(f *testing.F) {
	for _, seed := range []string{"ada@example.com", "Ada <ada@example.com>", `"a b"@example.com`, "a@[127.0.0.1]",
		"jürg@ZÜRICH.example", "a@b", "a@b..c", "İ@İ.example", "a@K.example", "a..b@c.de", "", "@"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if code, _ := checkText(s, required, 254); code != "" {
			return
		}
		if code, _ := checkEmail.of(s); code != "" {
			return
		}
		local, domain, _ := strings.Cut(s, "@")
		if strings.Count(s, "@") != 1 || len(s) > 254 || len(local) > 64 || !strings.Contains(domain, ".") ||
			strings.ContainsAny(s, " \"(),:;<>[]\\\x00") ||
			strings.IndexFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) >= 0 {
			t.Fatalf("%q is taken", s)
		}
		if a, err := mail.ParseAddress(s); err != nil || a.Name != "" || a.Address != s {
			t.Fatalf("net/mail reads %q as %+v, %v", s, a, err)
		}
		if emailKey(normalEmail(s)) != emailKey(s) {
			t.Fatalf("erasing %q would not find it", s)
		}
	})
}

// Whatever stands behind the ? or in a header is answered and never a fault of ours.
func FuzzRequest(f *testing.F) {
	paths := []string{"/licenses", "/leads", "/events", "/widget/stats"}
	names := []string{"Idempotency-Key", "Authorization", "Origin", "Content-Type", "Content-Encoding",
		"X-Forwarded-For", "If-None-Match"}
	s := newService(f, withoutAddressLimits)
	admin := "Bearer " + s.token(s.account, scopeAdmin)
	queries := []string{"limit=5&cursor=lic_00000000000000000000000000&status=grace&product=kds&q=%25_%5c",
		"limit=%2B5&account_id=" + s.account, "limit=%zz;a",
		"type=lead.created&since=2026-01-01T00:00:00Z&license_id=x&device_id=y",
		"from=2026-01-01&to=2026-12-31&interval=week&timezone=Europe/Zurich&widget=" + s.addWidget(s.account),
		"timezone=../../etc/passwd&from=0001-01-01&to=9999-12-31"}
	for i, value := range []string{`"key-1"`, "Bearer eyJ.eyJ.AA", siteOrigin, "application/json; charset=\"utf-8\"",
		"gzip, identity", "192.0.2.1, [2001:db8::1]:80", `W/"x", *`, `"`, `""`, "\x00",
		strings.Repeat("k", 256), "a b"} {
		for offset := range paths {
			f.Add(uint8(i+offset), queries[i%len(queries)], value)
		}
		f.Add(uint8(0), "", value)
	}
	number, key := regexp.MustCompile(`\A[1-9][0-9]{0,2}\z`), regexp.MustCompile(`\A([!-~]{1,255}|"[!-~]{1,255}")\z`)
	f.Fuzz(func(t *testing.T, which uint8, query, value string) {
		s := s.with(t)
		s.server.accountBuckets = newLimiter(10)
		a := s.ask("GET", paths[int(which)%len(paths)], query, "", http.Header{"Authorization": {admin}})
		values, err := url.ParseQuery(query)
		limit := values.Get("limit")
		if err == nil && which%4 < 3 && a.status == 200 && values.Has("limit") && !number.MatchString(limit) {
			t.Fatalf("?%s is taken", query)
		}
		if err != nil && a.status != 422 {
			t.Fatalf("?%s can't be decoded (%v), and is answered with %d", query, err, a.status)
		}
		name := names[int(which)%len(names)]
		header := http.Header{"Content-Type": {"application/json"}}
		header[name] = []string{value}
		a = s.ask("POST", "/widget/leads", "", anyLead, header)
		if refused := a.status == 400; name == "Idempotency-Key" && refused == key.MatchString(value) && value != `""` {
			t.Fatalf("Idempotency-Key: %q is answered with %d", value, a.status)
		}
		s.ask("GET", "/widget/stats", "", "", header)
	})
}

// strict asks for every unknown member to be refused (RFC 7240, section 4.4).
const strict = "Prefer: handling=strict"

func TestUnknownMember_costsAndShowsNoMoreThanItsBounds(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	members := func(n int, format string) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, `,"`+format+`":0`, i)
		}
		return all.String()[1:]
	}
	with := func(more string) string { return strings.TrimSuffix(orderBody(), "}") + "," + more + "}" }
	for _, headers := range [][]string{{auth}, {auth, strict}} {
		if wrong := s.post("/orders", with(members(900, "tip%02d")), headers...).is(422).wrong(); len(wrong) != 20 {
			t.Errorf("%d are named: %q", len(wrong), wrong)
		}
	}
	lines := strings.Repeat(`{"name":"Soup","quantity":1,"unit_amount":900,"vat_rate":260},`, 180)
	s.post("/orders", orderBody("lines", "["+lines+`{"name":"Tea","quantity":1,"unit_amount":900,"vat_rate":260,
		"qantity":2}]`), auth).invalid("#/lines/180/qantity unknown_member")

	huge := strings.Repeat("é", 7000)
	a := s.post("/widget/leads", `{"type":"demo","email":"ada@example.com","`+huge+`":1}`, strict).is(422)
	if wrong := a.wrong(); len(wrong) != 1 || len(wrong[0]) > 300 ||
		!strings.HasSuffix(wrong[0], "%E2%80%A6 unknown_member") {
		t.Errorf("a huge name is shown as %q", wrong)
	}
	s.post("/orders", with(`"a/b~c":1,"discount\u202e":1,"\u0000tip":1,"":1,"\u001b[31m":1,"<tip>":1`), auth).
		invalid("#/a~1b~0c unknown_member", "#/discount%E2%80%AE unknown_member", "#/%00tip unknown_member",
			"#/ unknown_member", "#/%1B%5B31m unknown_member", "#/%3Ctip%3E unknown_member")
}

func TestPrefer_isReadAsRFC7240Says(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []string
		want   bool
	}{
		{nil, false},
		{[]string{""}, false},
		{[]string{"handling=strict"}, true},
		{[]string{"handling=lenient"}, false},
		{[]string{"Handling = Strict"}, true},
		{[]string{`handling="strict"`}, true},
		{[]string{`handling="strict`}, false},
		{[]string{"respond-async, wait=10, handling=strict; why=tests"}, true},
		{[]string{"respond-async; x=1", "return=minimal,\thandling=strict"}, true},
		{[]string{"handling=lenient, handling=strict"}, false}, // the first counts
		{[]string{"handling=strict", "handling=lenient"}, true},
		{[]string{"handling"}, false},
		{[]string{"handling; strict"}, false},
		{[]string{"strict"}, false},
		{[]string{"foo; handling=strict"}, false},         // a parameter of another preference
		{[]string{`foo="a, handling=strict"`}, false},     // a part of another's value
		{[]string{`foo="a\", b", handling=strict`}, true}, // behind such a value
		{[]string{`foo="\`, "handling=strict"}, false},    // which may be malformed
		{[]string{",,;;==,,", "handling==strict"}, false},
		{[]string{strings.Repeat(`"\,;`, 10_000)}, false},
	} {
		if got := prefersStrict(tt.values); got != tt.want {
			t.Errorf("%.100q: %v", tt.values, got)
		}
	}
}

const (
	someKey     = "Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324"
	replayed    = "Idempotency-Replayed: true"
	notReplayed = "Idempotency-Replayed: " // the answer is a new one
)

func TestIdempotencyKey_whoseRequestStillRunsIs409(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		release := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { s.store.update(t.Context(), func(*tx) error { <-release; return nil }) }) // the writer is busy
		synctest.Wait()
		all.Go(func() { s.post("/widget/leads", aLead, someKey).has(notReplayed) })
		synctest.Wait()
		s.post("/widget/leads", aLead, someKey).is(409, "idempotency_in_progress").has("Retry-After: 1")
		close(release)
		all.Wait()
		s.post("/widget/leads", aLead, someKey).is(200).has(replayed)
		s.counts(1, `SELECT count(*) FROM leads`)
	})
}

func TestIdempotencyKey_isItsCallersOwn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	s.change(func(t *tx) error { return addOrigin(t, partner, "https://partner.example", anActor) })
	_, one := s.addLicense(license{})
	_, two := s.addLicense(license{})
	activate := func(key, fingerprint string) func(...string) answer {
		return func(headers ...string) answer {
			return s.post("/widget/license/activate", activateBody(key, fingerprint), append(headers, someKey)...)
		}
	}
	lead := func(headers ...string) func(...string) answer {
		return func(more ...string) answer {
			return s.post("/widget/leads", aLead, append(headers, append(more, someKey)...)...)
		}
	}
	asks := []func(...string) answer{
		lead(), lead("Origin: " + siteOrigin), lead("Origin: https://partner.example"), lead("Peer: 192.0.2.2:1"),
		activate(one, "f"), activate(one, "g"), activate(two, "f"),
	}
	for _, ask := range asks {
		ask().is(200).has(notReplayed) // and not another caller's answer
	}
	for _, ask := range asks {
		ask().is(200).has(replayed)
	}
	activate(one, "f")("Peer: 192.0.2.9:1").is(200).has(replayed) // a device moves about
	plan := func(account string) answer {
		return s.post("/plans?account_id="+account, `{"name":"pro","product":"kds"}`,
			s.auth(s.account, scopeAdmin), someKey)
	}
	plan(s.account).is(200)
	plan(partner).is(422, "idempotency_key_reused") // for another account it is another request
}

// Against whoever copies the database who would mint tokens or read keys: keys are hashes, answers are sealed,
// signing keys lie in another file.
func TestIdempotencyKey_andItsAnswerCannotBeReadInTheFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	const chosen = "a-key-that-only-the-caller-knows"
	body := seatBody("license_key", key, "fingerprint", "the-device-itself", "nonce", "a-nonce-to-look-for")
	a := s.post("/widget/license/activate", body, "Idempotency-Key: "+chosen).is(200)
	s.counts(1, `SELECT count(*) FROM idempotency WHERE length(answer) > 500`)
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(s.store.path + suffix)
		s.check(err)
		for _, secret := range []string{chosen, key, strings.ReplaceAll(key, "-", ""), a.text("token"),
			a.text("token")[:60], "the-device-itself", "a-nonce-to-look-for", `"code":"activated"`} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%q stands in the file", secret)
			}
		}
	}
	if strings.Contains(s.log.String(), chosen) || strings.Contains(s.log.String(), key) {
		t.Error("a secret was logged")
	}
}
