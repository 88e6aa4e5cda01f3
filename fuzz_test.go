package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A key file that is taken is written and read again as the same keys and secret.
func FuzzKeyFile(f *testing.F) {
	text, err := fuzzRing().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")))
	f.Add(append(text, text...))
	f.Add(text[:len(text)-20])
	f.Add(bytes.Replace(text, []byte("-----BEGIN "), []byte("Created: no\n-----BEGIN "), 1))
	f.Add([]byte("-----BEGIN WIDGETD SECRET-----\n-----END WIDGETD SECRET-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		ring, err := parseKeyring(text)
		if err != nil {
			if ring != nil {
				t.Fatalf("an error and keys: %v", err)
			}
			return
		}
		written, err := ring.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseKeyring(written)
		if err != nil || len(ring.secret) != 32 || !bytes.Equal(again.secret, ring.secret) || len(again.keys) != len(ring.keys) {
			t.Fatalf("%q, written as %q, is read as %+v, %v", text, written, again, err)
		}
		for i := range ring.keys {
			if again.keys[i].kid != ring.keys[i].kid || again.keys[i].createdAt != ring.keys[i].createdAt {
				t.Fatalf("key %d of %q comes back as another", i, text)
			}
		}
	})
}

// A base address that is taken is its own normal form, and net/url sees its path.
func FuzzBaseURL(f *testing.F) {
	for _, seed := range []string{testBase, "HTTPS://API.Example.com:443/api/v1", "https://[::1]:8080/v1", "https://a/v1/", "https://a/../v1", "https://a/%2e/v1", "https://a/api/legacy/v1", "https://u@a/v1", "https://a/v1?x", "//a/v1", "https:///v1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		normal, path, err := parseBaseURL(s)
		if err != nil {
			return
		}
		again, same, err := parseBaseURL(normal)
		if err != nil || again != normal || same != path {
			t.Fatalf("%q is %q, and that is %q, %v", s, normal, again, err)
		}
		u, err := url.Parse(normal)
		if err != nil || u.Path != path || u.RawQuery != "" || u.Fragment != "" || u.User != nil || cleanPath(path) != path || !strings.HasSuffix(path, "/v1") {
			t.Fatalf("%q is %q with the path %q, which net/url reads as %+v, %v", s, normal, path, u, err)
		}
	})
}

// A time that is taken, on the wire or at the command line, is one that the file
// holds and gives back.
func FuzzMoment(f *testing.F) {
	for _, seed := range []string{"2027-01-31", "2027-01-31T12:00:00Z", "2027-01-31T12:00:00.999999999+23:59", "365d", "7d", "-1d", "9999999h", "106751d", "106752d", "9223372036854775807d", "0000-01-01T00:00:00Z", "9000-12-31T23:59:60Z", "1970-01-01T00:00:00+01:00", "2027-1-31", ""} {
		f.Add(seed)
	}
	e := &env{now: func() time.Time { return time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC) }}
	f.Fuzz(func(t *testing.T, s string) {
		check := func(got stamp) {
			var back stamp
			if err := back.Scan(got.String()); err != nil || back != got || got.Year() < 1600 || got.Year() > lastYear || len(got.String()) != len(stampLayout) {
				t.Fatalf("%q is %v, and that comes back as %v, %v", s, got, back, err)
			}
		}
		if got, ok := parseMoment(s); ok {
			check(got)
		}
		if got, err := e.parseMoment(s); err == nil && s != "" {
			check(got)
		}
	})
}

// Whatever stands in a file of licences: a row in which nothing is wrong is one that
// the database takes.
func FuzzImport(f *testing.F) {
	const header = "key,plan,kind,state,trial,max_devices,max_transfers,starts_at,expires_at,grace_days,duration_days,expiry_basis,lease_hours,entitlements,metadata\n"
	f.Add([]byte(header + `LEGACY/KEY:with=any#ASCII,"Gold, old",floating,suspended,yes,3,1,2020-01-01,2030-01-31T12:00:00Z,5,30,issue,24,kds reports,"{""n"":1}"` + "\n"))
	f.Add([]byte(header + newLicenseKey() + ",,,,,,,,,,,,,,\n"))
	f.Add([]byte("\ufeffkey\r\n\"SOME-KEY-0000000001\"\r\n"))
	f.Add([]byte("key,plan\nSOME-KEY-0000000001,\"\n"))
	f.Add([]byte("key,expires_at,grace_days\nSOME-KEY-0000000001,9000-12-31,3650\n"))
	f.Add([]byte("key,key\n"))
	s := newService(f)
	e := &env{stderr: io.Discard, now: time.Now}
	enough := errors.New("rolled back")
	f.Fuzz(func(t *testing.T, file []byte) {
		var faults importFaults
		rows, err := e.readImport(bytes.NewReader(file), license{AccountID: s.account, Product: "kds"}, &faults)
		if err == nil {
			err = judgeImport(s.store, rows, &faults)
		}
		if err != nil || faults.err() != nil {
			return
		}
		err = s.store.update(context.Background(), func(t *tx) error { return errors.Join(importRows(e, t, rows), enough) })
		if !errors.Is(err, enough) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q: %v", file, err)
		}
	})
}

// ask sends a request as it is to the service and checks that the answer is one of
// the contract's.
func (s *service) ask(method, path, query, body string, header http.Header) answer {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/v1"+path, strings.NewReader(body))
	r.URL.RawQuery = query
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	a := answer{s.t, w.Code, w.Result().Header, w.Body.String()}
	if a.status >= 500 {
		s.t.Fatalf("%s %s?%s %v %q: %d %s\n%s", method, path, query, header, body, a.status, a.body, s.log)
	}
	if a.status >= 400 {
		return a.is(a.status, a.text("code"))
	}
	return a.is(a.status)
}

// Whatever a device or a widget sends is answered and never a fault of ours; and what
// is refused changes nothing.
func FuzzDeviceBody(f *testing.F) {
	paths := []string{"/widget/license/activate", "/widget/license/verify", "/widget/license/deactivate", "/widget/events"}
	s := newService(f, withoutAddressLimits)
	_, key := s.addLicense(license{MaxDevices: ptr(2)})
	widget := s.addWidget(s.account)
	lease := s.activate(key, "first").is(200).text("token")
	for i, body := range []string{
		`{"license_key":"` + key + `","fingerprint":"a","device":{"name":"Till 1","platform":"linux","app_version":"1"},"nonce":"n","replace_device_id":"dev_00000000000000000000000000"}`,
		`{"license_key":"` + key + `","fingerprint":"a","product":"kds","entitlements":["a","b"],"nonce":"n"}`,
		`{"license_key":"` + strings.ToLower(key) + `","fingerprint":"\ud83d\ude00\u0000"}`,
		`{"widget":"` + widget + `","events":[{"type":"view"},{"type":"click","item":"Rösti","page":"/menu"},{"type":"order","item":"x"}]}`,
	} {
		f.Add(uint8(i), false, body)
		f.Add(uint8(i), true, body)
	}
	f.Add(uint8(1), true, `{}`)
	f.Fuzz(func(t *testing.T, which uint8, withLease bool, body string) {
		s := s.with(t)
		header := http.Header{"Content-Type": {"application/json"}, "Origin": {siteOrigin}}
		if withLease {
			header.Set("Authorization", "Bearer "+lease)
		}
		s.server.accounts = newLimiter(10)
		rows := func() int {
			return s.count(`SELECT (SELECT count(*) FROM devices) + (SELECT count(*) FROM events) + (SELECT coalesce(sum(views + clicks + orders), 0) FROM widget_counts) + (SELECT count(*) FROM item_counts)`)
		}
		before := rows()
		a := s.ask("POST", paths[int(which)%len(paths)], "", body, header)
		if a.status >= 400 && a.status != 409 && rows() != before { // a full licence is noted in an event
			t.Fatalf("%d %s, and something was written", a.status, a.body)
		}
		if n := s.count(`SELECT count(*) FROM devices WHERE state = 'active'`); n > 2 {
			t.Fatalf("%d devices on two seats", n)
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
		"limit=5&cursor=lic_00000000000000000000000000&status=grace&product=kds&q=%25_%5c", "limit=%2B5&account_id=" + s.account, "type=lead.created&since=2026-01-01T00:00:00Z&license_id=x&device_id=y",
		"widget=" + widget + "&from=2026-01-01&to=2026-12-31&interval=week&timezone=Europe/Zurich", "limit=%zz;a", "timezone=../../etc/passwd&from=0001-01-01&to=9999-12-31",
	} {
		for offset := range paths {
			f.Add(uint8(i+offset), query)
		}
	}
	canonical := regexp.MustCompile(`\A[1-9][0-9]{0,2}\z`)
	f.Fuzz(func(t *testing.T, which uint8, query string) {
		s := s.with(t)
		s.server.accounts = newLimiter(10)
		a := s.ask("GET", paths[int(which)%len(paths)], query, "", header)
		values, err := url.ParseQuery(query)
		if err == nil && which%4 < 3 && a.status == 200 && values.Has("limit") && !canonical.MatchString(values.Get("limit")) {
			t.Fatalf("?%s is taken", query)
		}
		if err != nil && a.status != 422 {
			t.Fatalf("?%s can't be decoded (%v), and is answered with %d", query, err, a.status)
		}
	})
}

// Whatever stands in a header is answered and never a fault of ours.
func FuzzHeader(f *testing.F) {
	names := []string{"Idempotency-Key", "Authorization", "Origin", "Content-Type", "Content-Encoding", "X-Forwarded-For", "If-None-Match"}
	s := newService(f, withoutAddressLimits)
	for i, value := range []string{`"key-1"`, "Bearer eyJ.eyJ.AA", siteOrigin, "application/json; charset=\"utf-8\"", "gzip, identity", "192.0.2.1, [2001:db8::1]:80", `W/"x", *`, `"`, `""`, "\x00", strings.Repeat("k", 256), "a b"} {
		f.Add(uint8(i), value)
		f.Add(uint8(0), value)
	}
	shape := regexp.MustCompile(`\A([!-~]{1,255}|"[!-~]{1,255}")\z`)
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		s := s.with(t)
		s.server.accounts = newLimiter(10)
		name := names[int(which)%len(names)]
		header := http.Header{"Content-Type": {"application/json"}}
		header[name] = []string{value}
		a := s.ask("POST", "/widget/leads", "", anyLead, header)
		if refused := a.status == 400; name == "Idempotency-Key" && refused == shape.MatchString(value) && value != `""` {
			t.Fatalf("Idempotency-Key: %q is answered with %d", value, a.status)
		}
		s.ask("GET", "/widget/stats", "", "", header)
	})
}
