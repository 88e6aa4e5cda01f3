package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// report sends events of a widget from the main site.
func (s *service) report(widget, events string, headers ...string) answer {
	s.t.Helper()
	return s.post("/widget/events", `{"widget":"`+widget+`","events":[`+events+`]}`, append([]string{"Origin: " + siteOrigin}, headers...)...)
}

// counted is what stands in the file about a widget.
func (s *service) counted(widget string) (c counts) {
	s.t.Helper()
	s.check(s.store.one(`SELECT coalesce(sum(views), 0), coalesce(sum(visitors), 0), coalesce(sum(clicks), 0), coalesce(sum(orders), 0) FROM widget_counts WHERE widget_id = ?`,
		[]any{widget}, &c.Views, &c.Visitors, &c.Clicks, &c.Orders))
	return c
}

func TestEventsAreCountedOnDiskByQuarterHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		const events = `{"type":"view","page":"/menu"},{"type":"view"},{"type":"click","item":"Rösti"},{"type":"click"},{"type":"order","item":"Rösti"},{"type":"order","item":"Pizza"},{"type":"order","item":""}`
		if a := s.report(widget, events).is(204); a.body != "" || a.header.Get("Content-Type") != "" {
			t.Fatalf("%q %v", a.body, a.header)
		}
		time.Sleep(15*time.Minute - time.Second)
		s.report(widget, `{"type":"click","item":"Rösti"}`).is(204)
		time.Sleep(time.Second)
		s.report(widget, `{"type":"click","item":"Rösti"}`).is(204)
		dump := s.dump()
		for _, row := range []string{
			"[" + widget + " 2000-01-01T00:00:00Z 2 1 3 3]", "[" + widget + " 2000-01-01T00:15:00Z 0 0 1 0]",
			"[" + widget + " 2000-01-01T00:00:00Z Rösti 2 1]", "[" + widget + " 2000-01-01T00:00:00Z Pizza 0 1]", "[" + widget + " 2000-01-01T00:15:00Z Rösti 1 0]",
		} {
			if !strings.Contains(dump, row+"\n") {
				t.Errorf("no row %s in\n%s", row, dump)
			}
		}
		if strings.Contains(dump, "/menu") {
			t.Error("the page was kept")
		}
	})
}

func TestEventsNeedAnOriginOfTheWidgetsAccount(t *testing.T) {
	s := newService(t)
	partner := s.addAccount("partner")
	s.change(func(t *tx) error { return t.addOrigin(partner, "https://partner.example") })
	widget := s.addWidget(s.account)
	body := `{"widget":"` + widget + `","events":[{"type":"view"}]}`
	before := s.dump()
	s.post("/widget/events", body).is(403, "origin_not_allowed")
	s.post("/widget/events", body, "Origin: https://other.example").is(403, "origin_not_allowed")
	s.post("/widget/events", body, "Origin: null").is(403, "origin_not_allowed")
	s.post("/widget/events", body, "Origin: https://partner.example").is(403, "origin_not_allowed")
	s.report("wgt_00000000000000000000000000", `{"type":"view"}`).is(404, "widget_not_found")
	s.unchanged(before)
	closed := s.addAccount("closed")
	gone := s.addWidget(closed)
	s.change(func(t *tx) error { return t.closeAccount(closed) })
	s.report(gone, `{"type":"view"}`).is(404, "widget_not_found")
	s.post("/widget/events", body, "Origin: "+siteOrigin).is(204)
}

func TestEventsAreTakenAsTextThatNeedsNoPreflight(t *testing.T) {
	s := newService(t)
	widget := s.addWidget(s.account)
	for _, kind := range []string{"text/plain", "text/plain;charset=UTF-8", "application/json"} {
		s.report(widget, `{"type":"click"}`, "Content-Type: "+kind).is(204).has("Access-Control-Allow-Origin: " + siteOrigin)
	}
	s.report(widget, `{"type":"click"}`, "Content-Type: text/plain; charset=utf-16").is(415, "unsupported_media_type")
	s.post("/widget/events", `widget=`+widget, "Origin: "+siteOrigin, "Content-Type: text/plain").is(400, "malformed_json")
	if c := s.counted(widget); c.Clicks != 3 {
		t.Fatalf("%+v", c)
	}
}

func TestFiftyEventsAreTakenAndFiftyOneAreNot(t *testing.T) {
	s := newService(t)
	widget := s.addWidget(s.account)
	events := func(n int) string { return strings.TrimSuffix(strings.Repeat(`{"type":"click"},`, n), ",") }
	s.report(widget, events(50)).is(204)
	s.report(widget, events(51)).is(422, "validation_failed").names("#/events wrong_length")
	s.report(widget, events(0)).is(422, "validation_failed").names("#/events wrong_length")
	if c := s.counted(widget); c.Clicks != 50 {
		t.Fatalf("%+v", c)
	}
}

func TestAWidgetKeepsAHundredItemsADayAndCountsTheRestAsOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget, second := s.addWidget(s.account), s.addWidget(s.account)
		click := func(widget string, from, to int) {
			var events []string
			for i := from; i < to; i++ {
				events = append(events, fmt.Sprintf(`{"type":"click","item":"dish %d"}`, i))
			}
			s.report(widget, strings.Join(events, ",")).is(204)
		}
		names := func(widget string) int {
			return s.count(`SELECT count(DISTINCT item) FROM item_counts WHERE widget_id = ?`, widget)
		}
		other := func() int {
			return s.count(`SELECT coalesce(sum(clicks), 0) FROM item_counts WHERE widget_id = ? AND item = 'other'`, widget)
		}
		click(widget, 0, 50)
		click(widget, 50, 99)
		click(widget, 98, 103) // one known, one that fits, three that don't
		if names(widget) != 101 || other() != 3 {
			t.Fatalf("%d names, %d others", names(widget), other())
		}
		click(second, 0, 3) // each widget has its own
		if names(second) != 3 {
			t.Fatalf("%d names of the second", names(second))
		}
		time.Sleep(24*time.Hour - time.Second)
		click(widget, 200, 210)
		click(widget, 0, 10) // known ones go on
		if names(widget) != 101 || other() != 13 {
			t.Fatalf("%d names, %d others at the end of the day", names(widget), other())
		}
		s.change((*tx).sweep)
		click(widget, 200, 201)
		if other() != 14 {
			t.Fatal("sweeping forgot names of today")
		}
		time.Sleep(time.Second)
		click(widget, 200, 210) // a new day
		if names(widget) != 111 || other() != 14 {
			t.Fatalf("%d names, %d others the next day", names(widget), other())
		}
		s.change((*tx).sweep)
		if n := s.count(`SELECT count(*) FROM item_names`); n != 10 {
			t.Fatalf("%d names after sweeping", n)
		}
		if c := s.counted(widget); c.Clicks != 50+49+5+10+10+1+10 {
			t.Fatalf("%+v", c)
		}
	})
}

func TestAVisitorCountsOncePerUTCDayWidgetAddressAndBrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget, second := s.addWidget(s.account), s.addWidget(s.account)
		see := func(widget, peer, browser string) {
			s.report(widget, `{"type":"view"}`, "Peer: "+peer, "User-Agent: "+browser).is(204)
		}
		is := func(views, visitors int64) {
			t.Helper()
			if c := s.counted(widget); c.Views != views || c.Visitors != visitors {
				t.Fatalf("%+v, want %d views of %d visitors", c, views, visitors)
			}
		}
		s.report(widget, `{"type":"click"},{"type":"order"}`).is(204) // no view
		is(0, 0)
		see(widget, "192.0.2.1:1", "Firefox")
		see(widget, "192.0.2.1:2", "Firefox")
		is(2, 1)
		see(widget, "192.0.2.1:1", "Safari")
		see(widget, "192.0.2.2:1", "Firefox")
		is(4, 3)
		see(second, "192.0.2.1:1", "Firefox")
		if c := s.counted(second); c.Visitors != 1 {
			t.Fatalf("%+v", c)
		}
		time.Sleep(24*time.Hour - time.Second)
		see(widget, "192.0.2.1:1", "Firefox")
		is(5, 3)
		time.Sleep(time.Second)
		see(widget, "192.0.2.1:1", "Firefox")
		see(widget, "192.0.2.1:1", "Firefox")
		is(7, 4)
		if n := len(s.server.visitors.seen); n != 1 {
			t.Fatalf("%d of yesterday's visitors are remembered", n-1)
		}
	})
}

func TestNeitherAddressNorBrowserReachesTheFile(t *testing.T) {
	s := newService(t)
	s.report(s.addWidget(s.account), `{"type":"view"}`, "Peer: 198.51.100.77:1", "User-Agent: A-Rare-Browser").is(204)
	if dump := s.dump(); strings.Contains(dump, "198.51.100.77") || strings.Contains(dump, "Rare") {
		t.Fatal(dump)
	}
}

func TestAViewThatCouldNotBeCountedLeavesItsVisitorToTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		s.report(widget, `{"type":"view"}`, someKey).is(204)
		time.Sleep(time.Hour)
		s.report(widget, `{"type":"view"},{"type":"view"}`, "Peer: 192.0.2.1:9", "User-Agent: other", someKey).is(422, "idempotency_key_reused")
		s.report(widget, `{"type":"view"}`, "User-Agent: other").is(204)
		if c := s.counted(widget); c.Visitors != 2 {
			t.Fatalf("%+v after a refused view", c)
		}
		time.Sleep(22*time.Hour + 59*time.Minute)
		s.report(widget, `{"type":"view"}`, "User-Agent: late", "Idempotency-Key: late").is(204)
		time.Sleep(2 * time.Minute) // the next UTC day
		s.report(widget, `{"type":"view"}`, "User-Agent: late", "Idempotency-Key: late").is(204).has("Idempotency-Replayed: true")
		s.report(widget, `{"type":"view"}`, "User-Agent: late").is(204)
		if c := s.counted(widget); c.Views != 4 || c.Visitors != 4 {
			t.Fatalf("%+v after a replayed view", c)
		}
	})
}

func TestWhatABatchCountsIsAddedUpAndWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which no quarter-hour ends
		s := newService(t)
		soup, cake := s.addWidget(s.account), s.addWidget(s.account)
		count := func(widget string, c counts, fails error, items ...string) func(*tx) error {
			return func(t *tx) error {
				all := []itemCount{}
				for _, item := range items {
					all = append(all, itemCount{Item: item, Clicks: 1})
				}
				t.addCounts(widget, c, all)
				return fails
			}
		}
		names := []string{}
		for i := range maxItems + 1 {
			names = append(names, fmt.Sprint("dish ", i))
		}
		failed := errors.New("changed its mind")
		release := holdWriter(t, s.store)
		results := queue(s.store, t.Context(), count(soup, counts{Views: 1}, nil, "a"), count(soup, counts{Views: 10}, failed, "b"), count(soup, counts{Views: 100, Orders: 1}, nil, "a", "c"),
			count(cake, counts{Clicks: 1}, nil, names[:60]...), count(cake, counts{Clicks: 1}, keep(failed), names[60:]...))
		release()
		for i, want := range []error{nil, failed, nil, nil, failed} {
			if err := <-results[i]; err != want {
				t.Errorf("job %d: %v", i, err)
			}
		}
		if got, want := s.counted(soup), (counts{Views: 101, Orders: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if c := s.counted(cake); c.Clicks != 2 {
			t.Errorf("%+v", c)
		}
		for query, want := range map[string]int{
			`SELECT clicks FROM item_counts WHERE widget_id = ? AND item = 'a'`:                        2,
			`SELECT count(*) FROM item_counts WHERE widget_id = ?`:                                     2,
			`SELECT 1000 * count(*) + clicks FROM item_counts WHERE widget_id <> ? AND item = 'other'`: 1001,
			`SELECT count(*) FROM item_counts WHERE widget_id <> ?`:                                    maxItems + 1,
		} {
			if got := s.count(query, soup); got != want {
				t.Errorf("%s: %d, want %d", query, got, want)
			}
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	widget := s.addWidget(s.account)
	b.SetParallelism(32) // times the processors
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if a := s.report(widget, `{"type":"view"},{"type":"click","item":"Rösti"}`); a.status != 204 {
				b.Errorf("%d %s", a.status, a.body)
			}
		}
	})
}
