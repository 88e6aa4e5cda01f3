package main

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The lunch hour: the visitors of an office share an address, and one of them may be hostile.

// fetch answers a request without failing the test, since it may run beside others. The visitor's browser is ua.
func (s *service) fetch(method, path, body, from, ua string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/v1"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Origin", siteOrigin)
	r.Header.Set("User-Agent", ua)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return w
}

const aView = `{"widget":"%s","events":[{"type":"view","page":"/lunch"}]}`

// TestLunch_floodOfSomeAddressesLeavesTheOthersTheirShare: whoever sends all they can from one address, or from
// a few, or from many of one network, and reads besides, keeps no visitor at another address from being counted.
func TestLunch_floodOfSomeAddressesLeavesTheOthersTheirShare(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]func(i int) string{
		"one address":         func(int) string { return "203.0.113.9:1" },
		"three addresses":     func(i int) string { return fmt.Sprintf("203.0.113.%d:1", i%3) },
		"one site's networks": func(i int) string { return fmt.Sprintf("[2001:db8:1:%x::1]:1", i) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				widget := s.addWidget(s.account)
				answers, flood, seconds := map[int]int{}, 0, size(40, 120)
				for second := range seconds {
					for range size(30, 100) {
						flood++
						answers[s.fetch("POST", "/widget/events", fmt.Sprintf(aView, widget), from(flood), "x").Code]++
						s.fetch("GET", "/widget/stats?widget="+widget, "", from(flood), "x")
					}
					visitor := fmt.Sprintf("198.51.100.%d:1", second)
					if w := s.fetch("POST", "/widget/events", fmt.Sprintf(aView, widget), visitor, "v"); w.Code != 204 {
						t.Fatalf("second %d: %d %s", second, w.Code, w.Body)
					}
					if w := s.fetch("GET", "/widget/stats?widget="+widget, "", visitor, "v"); w.Code != 200 {
						t.Fatalf("second %d: %d %s", second, w.Code, w.Body)
					}
					time.Sleep(time.Second)
				}
				t.Logf("%s: %d requests in %d seconds, answered %v; a visitor at another address was counted in each "+
					"and could read", name, flood, seconds, answers)
				if c := s.counted(widget); c.Views != int64(seconds+answers[204]) || answers[429] == 0 {
					t.Errorf("%+v, %v", c, answers)
				}
			})
		})
	}
}

func TestLunch_addressGetsHalfWhileOthersAskAndAllButATenthAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		widget := s.addWidget(s.account)
		post := func(from string) answer { return s.report(widget, `{"type":"view"}`, "Peer: "+from) }
		taken := func(from string) (n int) {
			for post(from).status == 204 {
				n++
			}
			return n
		}
		equal(t, "alone", taken("203.0.113.1:1"), 540)
		post("203.0.113.1:1").is(429, "rate_limited").has(`RateLimit-Policy: "widgets";q=600;w=60`,
			`RateLimit: "widgets";r=0;t=54`, "Retry-After: 1")
		post("203.0.113.2:1").is(204).has(`RateLimit: "widgets";r=59;t=55`) // it took nothing before
		post("203.0.113.2:1").is(429, "rate_limited")
		time.Sleep(2 * time.Minute)
		post("203.0.113.3:1").is(204)
		equal(t, "while another asks", taken("203.0.113.4:1"), 300)
		post("203.0.113.4:1").is(429, "rate_limited").has(`RateLimit-Policy: "widgets";q=600;w=60, "share";q=300;w=60`,
			`RateLimit: "widgets";r=299;t=31, "share";r=0;t=60`, "Retry-After: 1")
		equal(t, "of what is left", taken("203.0.113.3:1"), 239)
		// Another account's widgets have their own.
		other := s.addAccount("other")
		s.must("origin", "add", "https://other.example", "-account", other)
		s.post("/widget/events", fmt.Sprintf(aView, s.addWidget(other)), "Origin: https://other.example",
			"Peer: 203.0.113.4:1").is(204)
	})
}

func TestLunch_eventsOfAnAddressAreSixHundredAMinuteAndWidget(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		widget, second := s.addWidget(s.account), s.addWidget(s.account)
		batch := strings.TrimSuffix(strings.Repeat(`{"type":"click","item":"soup"},`, 50), ",")
		for range 12 {
			s.report(widget, batch).is(204)
		}
		s.report(widget, `{"type":"view"}`).is(429, "rate_limited").has(`RateLimit-Policy: "address";q=600;w=60`,
			`RateLimit: "address";r=0;t=60`, "Retry-After: 1")
		s.report(second, batch).is(204)
		s.report(widget, batch, "Peer: 192.0.2.2:1").is(204)
		time.Sleep(time.Second) // ten more
		if a := s.report(widget, batch); a.status != 429 || a.header.Get("Retry-After") != "4" {
			t.Errorf("%d %v", a.status, a.header)
		}
		s.report(widget, `{"type":"view"}`).is(204)
		// Nothing of a batch that is refused is counted.
		if c := s.counted(widget); c.Clicks != 13*50 || c.Views != 1 {
			t.Errorf("%+v", c)
		}
	})
}

func TestStats_inMemoryServeCallersWithoutATokenForTenSeconds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		widget, token := s.addWidget(s.account), s.auth(s.account, scopeStats)
		read := func(views int, headers ...string) answer {
			t.Helper()
			a := s.get("/widget/stats?widget="+widget, headers...).is(200)
			if got := a.json()["totals"].(map[string]any)["views"]; got != float64(views) {
				t.Fatalf("%v views, want %d", got, views)
			}
			return a
		}
		read(0).has(`RateLimit: "widgets";r=599;t=1`) // had to be computed
		s.report(widget, `{"type":"view"}`).is(204)
		tag := read(0).has("RateLimit: ").header.Get("ETag")
		read(1, token)
		for range 310 { // charged to nobody: twice as many are more than a bucket has
			s.get("/widget/stats?widget="+widget, "If-None-Match: "+tag).is(304)
			read(0)
		}
		s.get("/widget/stats.svg?widget=" + widget).is(200).has(`RateLimit: "widgets";r=537;t=1`) // a tenth is others'
		time.Sleep(statsAge)
		read(1)
		// What is no count takes effect at once.
		s.must("widget", "rename", widget, "Brunch")
		s.notice()
		equal(t, "name", read(1).text("name"), "Brunch")
		s.must("widget", "remove", widget, "-force")
		s.notice()
		s.get("/widget/stats?widget="+widget).is(404, "widget_not_found")
	})
}
