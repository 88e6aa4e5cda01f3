package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	sunsetHeader      = "Sunset: Wed, 01 Jul 2026 00:00:00 GMT"
	deprecationHeader = "Deprecation: @1775001600"
	legacyDocs        = `<http://127.0.0.1:8080/docs#legacy>; rel="deprecation"; type="text/html"`
)

var defaultSunset = time.Date(2026, time.July, 1, 0, 0, 0, 0, time.UTC)

func successor(path string) string {
	return `Link: <http://127.0.0.1:8080/v1` + path + `>; rel="successor-version", ` + legacyDocs
}

func TestLegacy_isServedByItsCounterpartBeforeItsSunset(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		widget := s.addWidget(s.account)
		_, key := s.addLicense(license{})
		token := s.auth(s.account, scopeLeads+" "+scopeErase+" "+scopeStats)
		for _, c := range []struct {
			method, path, body string
			status             int
			code               string
		}{
			{"POST", "/widget/leads", aLead, 200, ""},
			{"POST", "/widget/leads", `{}`, 422, "validation_failed"},
			{"POST", "/widget/license/activate", `{"license_key":"` + key + `","fingerprint":"f"}`, 200, ""},
			{"POST", "/widget/license/verify", `{"license_key":"` + key + `","fingerprint":"f"}`, 200, ""},
			{"GET", "/widget/stats?widget=" + widget, "", 200, ""},
			{"GET", "/widget/health", "", 200, ""},
			{"GET", "/leads?limit=1", "", 200, ""},
			{"GET", "/licenses/lic_0", "", 403, "insufficient_scope"},
			{"DELETE", "/widget/leads", "", 405, "method_not_allowed"},
		} {
			a := s.do(c.method, "//api/legacy"+c.path, c.body, token, "Origin: "+siteOrigin)
			if a.status != c.status {
				t.Fatalf("%s %s: %d %s", c.method, c.path, a.status, a.body)
			}
			plain, _, _ := strings.Cut(c.path, "?")
			a.is(c.status, c.code).has(sunsetHeader, deprecationHeader, successor(plain),
				"Access-Control-Allow-Origin: "+siteOrigin, "Location: ")
		}
		// a link must not be broken out of
		for raw, escaped := range map[string]string{"a%3E%0Ab": "a%3E%0Ab", "a%2Fb": "a/b", "%C3%A9": "%C3%A9"} {
			s.do("GET", "//api/legacy/licenses/"+raw, "", token).is(403,
				"insufficient_scope").has(successor("/licenses/" + escaped))
		}
		for _, unknown := range []string{"/old/thing", "/", ""} {
			s.do("GET", "//api/legacy"+unknown, "").is(404, "not_found").has(sunsetHeader, deprecationHeader,
				"Link: "+legacyDocs)
		}
		s.do("GET", "//api/legacyx", "").is(404, "not_found").has("Sunset: ", "Link: ")
		for _, unclean := range []string{"//api/legacy//widget/leads", "//api/legacy/./widget/leads",
			"//api/legacy/../v1/widget/leads", "//api/legacy/%2e%2e/x"} {
			s.do("POST", unclean, aLead).is(404, "not_found").has(sunsetHeader, "Link: "+legacyDocs, "Location: ")
		}
		s.counts(1, `SELECT count(*) FROM leads`)
	})
}

func TestLegacy_isGoneFromItsSunsetOn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(time.Until(defaultSunset) - time.Second)
		s.do("POST", "//api/legacy/widget/leads", aLead).is(200)
		time.Sleep(time.Second)
		before := s.dump()
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			for path, link := range map[string]string{
				"/widget/leads": successor("/widget/leads"), "/widget/stats": successor("/widget/stats"),
				"/licenses/lic_0/devices": successor("/licenses/lic_0/devices"),
				"":                        "Link: " + legacyDocs,
				"/":                       "Link: " + legacyDocs, "/old/thing": "Link: " + legacyDocs,
				"/widget/leads/": "Link: " + legacyDocs,
				"//widget/leads": "Link: " + legacyDocs, "/./widget/leads": "Link: " + legacyDocs,
			} {
				a := s.do(method, "//api/legacy"+path, "")
				if a.status != 410 {
					t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
				}
				a.is(410, "gone").has(sunsetHeader, deprecationHeader, link, "Cache-Control: no-store", "Location: ")
			}
		}
		s.unchanged(before)
		a := s.do("POST", "//api/legacy/widget/leads", aLead, "Origin: "+siteOrigin).is(410,
			"gone").has("Access-Control-Allow-Origin: "+siteOrigin, "Vary: Origin")
		a.tells("detail", "This path ended on 2026-07-01. Use http://127.0.0.1:8080/v1/widget/leads.", "ok", false)
		s.unchanged(before)
	})
}

func TestLegacy_preflightsAreAnsweredBeforeAndAfter(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		for range 2 {
			s.do("OPTIONS", "//api/legacy/widget/leads", "",
				"Origin: "+siteOrigin).is(204).has("Access-Control-Allow-Origin: "+siteOrigin,
				"Access-Control-Allow-Methods: POST", sunsetHeader)
			s.do("OPTIONS", "//api/legacy/widget/leads", "", "Origin: https://other.example").is(403,
				"origin_not_allowed").has("Access-Control-Allow-Origin: ")
			time.Sleep(time.Until(defaultSunset))
		}
		s.do("OPTIONS", "//api/legacy/old", "",
			"Origin: "+siteOrigin).is(204).has("Access-Control-Allow-Origin: " + siteOrigin)
		s.check(s.chore(countLegacyCalls)(t.Context()))
		s.counts(0, `SELECT count(*) FROM legacy_calls`)
	})
}

func TestLegacy_dateOfSunsetIsAnOption(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(_ *storeOptions, o *serverOptions) {
			o.legacySunset = time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)
		})
		s.get("//api/legacy/widget/health").is(410, "gone").has("Sunset: Fri, 31 Dec 1999 00:00:00 GMT",
			deprecationHeader)
	})
}

func TestLegacy_callsAreCountedByKnownPathDayAndCaller(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		partner := s.addAccount("partner")
		token := s.auth(partner, scopeLicenses)
		for range 3 {
			s.do("POST", "//api/legacy/widget/leads", aLead, "Origin: "+siteOrigin).is(200)
		}
		s.do("PUT", "//api/legacy/widget/leads", aLead).is(405)
		_, key := s.addLicense(license{AccountID: partner})
		s.do("POST", "//api/legacy/widget/license/verify", `{"license_key":"`+key+`"}`).is(200)
		s.do("POST", "//api/legacy/widget/license/verify", `{"license_key":"`+newLicenseKey()+`"}`).is(200)
		for i := range 5 {
			s.get(fmt.Sprintf("//api/legacy/licenses/lic_%d", i), token).is(404)
			s.get(fmt.Sprintf("//api/legacy/old/%d", i), "Authorization: Bearer nonsense").is(404)
		}
		s.get("//api/legacy").is(404)
		s.check(s.chore(countLegacyCalls)(t.Context()))
		s.do("POST", "//api/legacy/widget/leads", aLead, "Origin: "+siteOrigin).is(200)
		time.Sleep(24 * time.Hour)
		s.get("//api/legacy/widget/health").is(200)
		s.check(s.chore(countLegacyCalls)(t.Context()))
		s.check(s.chore(countLegacyCalls)(t.Context())) // adds nothing
		rows, err := s.store.legacyCalls(anyAccount)
		s.check(err)
		got := map[string]int64{}
		for _, r := range rows {
			got[r.Day+" "+r.Path+" "+r.Caller] = r.Calls
		}
		want := map[string]int64{
			"2000-01-01 /api/legacy/widget/leads " + s.account: 4,
			"2000-01-01 /api/legacy/widget/leads unknown":      1,

			"2000-01-01 /api/legacy/widget/license/verify " + partner: 1,
			"2000-01-01 /api/legacy/widget/license/verify unknown":    1,
			"2000-01-01 /api/legacy/licenses/{id} " + partner:         5,
			"2000-01-01 other unknown":                                6,
			"2000-01-02 /api/legacy/widget/health unknown":            1,
		}
		sameText(t, "counted", fmt.Sprint(got), fmt.Sprint(want))
	})
}

func TestLegacy_countsAreWrittenAtTheEndOfADrainThatTookAllItsTime(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.get("//api/legacy/old").is(410)
	s.check(s.server.runFinalChores())
	s.counts(1, `SELECT sum(calls) FROM legacy_calls`)
}

func TestLegacy_countsThatCanNotBeWrittenWait(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		gone, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		go s.store.update(t.Context(), func(*tx) error { <-release; return nil })
		synctest.Wait()
		s.get("//api/legacy/old").is(404)
		failed := make(chan error, 1)
		go func() { failed <- s.chore(countLegacyCalls)(gone) }()
		synctest.Wait()
		s.get("//api/legacy/old").is(404) // while that waits
		cancel()
		if err := <-failed; err == nil {
			t.Fatal("written although the writer was busy")
		}
		close(release)
		s.check(s.chore(countLegacyCalls)(t.Context()))
		s.counts(2, `SELECT sum(calls) FROM legacy_calls`)
	})
}
