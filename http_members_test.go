package main

import (
	"net/http"
	"net/mail"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
)

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

// A time that is taken, on the wire or at the command line, is one that the file
// holds and gives back.
func FuzzMoment(f *testing.F) {
	for _, seed := range []string{"2027-01-31", "2027-01-31T12:00:00Z", "2027-01-31T12:00:00.999999999+23:59",
		"365d", "7d", "52w", "100y", "101y", "31.01.2027", "12m", "24h", "-1d", "9999999h", "106751d", "106752d",
		"9223372036854775807d", "0000-01-01T00:00:00Z", "9000-12-31T23:59:60Z", "1970-01-01T00:00:00+01:00",
		"2027-1-31", ""} {
		f.Add(seed)
	}
	e := &env{now: func() time.Time { return time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC) }}
	f.Fuzz(func(t *testing.T, s string) {
		check := func(got stamp) {
			var back stamp
			if err := back.Scan(got.String()); err != nil || back != got || got.Year() < 1600 ||
				got.Year() > lastYear || len(got.String()) != len(stampLayout) {
				t.Fatalf("%q is %v, and that comes back as %v, %v", s, got, back, err)
			}
		}
		if got, ok := parseStamp(s); ok {
			check(got)
		}
		if got, err := e.parseTime(s); err == nil && s != "" {
			check(got)
			end, err := e.parseEnd(s)
			if err != nil || end.Before(got.Time) || end.Sub(got.Time) >= days(1) {
				t.Fatalf("%q begins at %v and ends at %v, %v", s, got, end, err)
			}
			check(end)
		}
	})
}

// Whatever stands behind the ? is answered and never a fault of ours.
func FuzzQuery(f *testing.F) {
	paths := []string{"/licenses", "/leads", "/events", "/widget/stats"}
	s := newService(f, withoutAddressLimits)
	widget := s.addWidget(s.account)
	header := http.Header{"Authorization": {"Bearer " + s.token(s.account, scopeAdmin)}}
	for i, query := range []string{
		"limit=5&cursor=lic_00000000000000000000000000&status=grace&product=kds&q=%25_%5c",
		"limit=%2B5&account_id=" + s.account,
		"type=lead.created&since=2026-01-01T00:00:00Z&license_id=x&device_id=y",
		"widget=" + widget + "&from=2026-01-01&to=2026-12-31&interval=week&timezone=Europe/Zurich", "limit=%zz;a",
		"timezone=../../etc/passwd&from=0001-01-01&to=9999-12-31",
	} {
		for offset := range paths {
			f.Add(uint8(i+offset), query)
		}
	}
	canonical := regexp.MustCompile(`\A[1-9][0-9]{0,2}\z`)
	f.Fuzz(func(t *testing.T, which uint8, query string) {
		s := s.with(t)
		s.server.accountBuckets = newLimiter(10)
		a := s.ask("GET", paths[int(which)%len(paths)], query, "", header)
		values, err := url.ParseQuery(query)
		if err == nil && which%4 < 3 && a.status == 200 && values.Has("limit") &&
			!canonical.MatchString(values.Get("limit")) {
			t.Fatalf("?%s is taken", query)
		}
		if err != nil && a.status != 422 {
			t.Fatalf("?%s can't be decoded (%v), and is answered with %d", query, err, a.status)
		}
	})
}
