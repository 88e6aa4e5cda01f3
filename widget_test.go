package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var statisticsWidgets = flag.Int("widgets", 20, "how many widgets BenchmarkStatistics fills its database with")

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

func TestWidget_countsEventsOnDiskByQuarterHourAndItemsByUTCDay(t *testing.T) {
	t.Parallel()
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
			"[" + widget + " 2000-01-01 Rösti 3 1]", "[" + widget + " 2000-01-01 Pizza 0 1]", "[" + widget + " 2000-01-01 /menu 1 0 0]",
		} {
			if !strings.Contains(dump, row+"\n") {
				t.Errorf("no row %s in\n%s", row, dump)
			}
		}
	})
}

func TestWidget_takesEventsFromAnOriginOfItsAccount(t *testing.T) {
	t.Parallel()
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

func TestWidget_takesEventsAsTextThatNeedsNoPreflight(t *testing.T) {
	t.Parallel()
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

func TestWidget_takesFiftyEventsAndNotFiftyOne(t *testing.T) {
	t.Parallel()
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

func TestWidget_keepsAHundredItemsADayAndCountsTheRestAsOther(t *testing.T) {
	t.Parallel()
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
		s.reopen(storeOptions{})
		click(widget, 200, 201)
		if names(widget) != 101 || other() != 14 {
			t.Fatal("a restart forgot the names of the day")
		}
		s.report(widget, `{"type":"click","item":"other"}`).is(204)
		time.Sleep(time.Second)
		click(widget, 200, 210) // a new day
		if names(widget) != 111 || other() != 15 {
			t.Fatalf("%d names, %d others the next day", names(widget), other())
		}
		s.report(widget, `{"type":"click","item":"other"}`).is(204) // which is no name of its own
		click(widget, 300, 350)
		click(widget, 350, 390)
		if names(widget) != 201 || other() != 16 {
			t.Fatalf("%d names, %d others the next day", names(widget), other())
		}
		if c := s.counted(widget); c.Clicks != 50+49+5+10+10+1+1+10+1+90 {
			t.Fatalf("%+v", c)
		}
	})
}

func TestVisitor_countsOncePerUTCDayWidgetAddressAndBrowser(t *testing.T) {
	t.Parallel()
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
	})
}

func TestVisitor_ofYesterdayIsForgotten(t *testing.T) {
	t.Parallel()
	var book visitorSet
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, now := range []time.Time{noon, noon.Add(time.Hour), noon.Add(24 * time.Hour)} {
		for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
			book.addVisitor("wgt_a", address, "Firefox", now)
		}
	}
	if n := len(book.seen); n != 2 {
		t.Fatalf("%d visitors are remembered, want the 2 of today", n)
	}
}

func TestVisitor_addressAndBrowserNeverReachTheFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.report(s.addWidget(s.account), `{"type":"view"}`, "Peer: 198.51.100.77:1", "User-Agent: A-Rare-Browser").is(204)
	if dump := s.dump(); strings.Contains(dump, "198.51.100.77") || strings.Contains(dump, "Rare") {
		t.Fatal(dump)
	}
}

func TestVisitor_ofAViewThatCouldNotBeCountedIsLeftToTheNextOne(t *testing.T) {
	t.Parallel()
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

func TestWidget_countsOfABatchAreAddedUpAndWrittenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which no quarter-hour ends
		s := newService(t)
		soup, cake := s.addWidget(s.account), s.addWidget(s.account)
		count := func(widget string, c counts, fails error, items ...string) func(*tx) error {
			return func(t *tx) error {
				all := []nameCount{}
				for _, item := range items {
					all = append(all, nameCount{item, counts{Clicks: 1}})
				}
				t.addCounts(widget, c, all, nil)
				return fails
			}
		}
		names := []string{}
		for i := range maxNames + 1 {
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
			`SELECT count(*) FROM item_counts WHERE widget_id <> ?`:                                    maxNames + 1,
		} {
			if got := s.count(query, soup); got != want {
				t.Errorf("%s: %d, want %d", query, got, want)
			}
		}
	})
}

// countAt writes counts of a widget into a quarter-hour.
func (s *service) countAt(widget, quarter string, c counts) {
	s.t.Helper()
	s.change(func(t *tx) error {
		_, err := t.exec(`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders) VALUES (?, ?, ?, ?, ?, ?)`, widget, quarter, c.Views, c.Visitors, c.Clicks, c.Orders)
		return err
	})
}

// views gives the views of a series, each as "2026-03-29 1".
func (a answer) views() (all []string) {
	a.t.Helper()
	for _, p := range a.is(200).json()["series"].([]any) {
		all = append(all, fmt.Sprint(p.(map[string]any)["date"], " ", p.(map[string]any)["views"]))
	}
	return all
}

func TestStats_areWholeAndHideOrdersFromTheAnonymous(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		s.report(widget, `{"type":"view"},{"type":"click","item":"Rösti"},{"type":"click","item":"Pizza"},{"type":"click","item":"Pizza"},{"type":"order","item":"Rösti"},{"type":"order","item":"Rösti"},{"type":"order","item":"Suppe"}`).is(204)
		path := "/widget/stats?widget=" + widget + "&from=1999-12-31&to=2000-01-02"
		head := `{"widget":"` + widget + `","name":"Lunch","from":"1999-12-31","to":"2000-01-02","interval":"day","timezone":"UTC",`
		public := head + `"totals":{"views":1,"visitors":1,"clicks":3},` +
			`"series":[{"date":"1999-12-31","views":0,"visitors":0,"clicks":0},{"date":"2000-01-01","views":1,"visitors":1,"clicks":3},{"date":"2000-01-02","views":0,"visitors":0,"clicks":0}],` +
			`"top_items":[{"item":"Pizza","clicks":2},{"item":"Rösti","clicks":1}]}` + "\n"
		full := head + `"totals":{"views":1,"visitors":1,"clicks":3,"orders":3},` +
			`"series":[{"date":"1999-12-31","views":0,"visitors":0,"clicks":0,"orders":0},{"date":"2000-01-01","views":1,"visitors":1,"clicks":3,"orders":3},{"date":"2000-01-02","views":0,"visitors":0,"clicks":0,"orders":0}],` +
			`"top_items":[{"item":"Rösti","clicks":1,"orders":2},{"item":"Pizza","clicks":2,"orders":0},{"item":"Suppe","clicks":0,"orders":1}]}` + "\n"
		if a := s.get(path).is(200).has("Cache-Control: public, max-age=60"); a.body != public {
			t.Errorf("anonymous\n%s, want\n%s", a.body, public)
		}
		token := "Authorization: Bearer " + s.token(s.account, scopeStats)
		a := s.get(path, token).is(200).has("Cache-Control: private, max-age=60")
		if want := strings.Replace(full, "]}\n", `],"top_pages":[]}`+"\n", 1); a.body != want {
			t.Errorf("with a token\n%s, want\n%s", a.body, want)
		}
		if !strings.Contains(strings.Join(a.header.Values("Vary"), ", "), "Authorization") {
			t.Errorf("Vary %q", a.header.Values("Vary"))
		}
		s.change(func(t *tx) error {
			_, err := t.exec(`UPDATE widgets SET public_orders = 1 WHERE id = ?`, widget)
			return err
		})
		if a := s.get(path).is(200).has("Cache-Control: public, max-age=60"); a.body != full {
			t.Errorf("public orders\n%s, want\n%s", a.body, full)
		}
	})
}

func TestStats_ofAWidgetWithoutCountsAreZeros(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		a := s.get("/widget/stats?widget=" + s.addWidget(s.account)).is(200)
		if a.text("from") != "1999-12-03" || a.text("to") != "2000-01-01" || len(a.views()) != 30 || !strings.Contains(a.body, `"top_items":[]`) {
			t.Fatal(a.body) // the last 30 days, UTC
		}
		for i, v := range a.views() {
			if want := time.Date(1999, 12, 3+i, 0, 0, 0, 0, time.UTC).Format(time.DateOnly) + " 0"; v != want {
				t.Fatalf("%q, want %q", v, want)
			}
		}
	})
}

func TestStats_endTodayInTheCallersZoneByDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		path := "/widget/stats?widget=" + s.addWidget(s.account)
		for query, want := range map[string]string{
			"":                                      "1999-12-03 2000-01-01",
			"&timezone=America/New_York":            "1999-12-02 1999-12-31", // it is still 19:00 there
			"&timezone=Pacific/Kiritimati":          "1999-12-03 2000-01-01",
			"&to=1999-06-30":                        "1999-06-01 1999-06-30",
			"&from=1999-12-25":                      "1999-12-25 2000-01-01",
			"&from=1999-12-25&to=1999-12-25":        "1999-12-25 1999-12-25",
			"&from=1999-01-01&to=2000-01-01":        "1999-01-01 2000-01-01", // 366 days
			"&from=2000-01-01&to=2000-12-31":        "2000-01-01 2000-12-31",
			"&from=9999-12-31&to=9999-12-31":        "9999-12-31 9999-12-31",
			"&interval=month&timezone=Asia/Tokyo":   "1999-12-03 2000-01-01",
			"&interval=week&timezone=Europe/Zurich": "1999-12-03 2000-01-01",
		} {
			if a := s.get(path + query).is(200); a.text("from")+" "+a.text("to") != want {
				t.Errorf("%q: %s to %s, want %s", query, a.text("from"), a.text("to"), want)
			}
		}
		s.get(path+"&from=1999-01-01&to=2000-01-02").is(422, "validation_failed").names("?to out_of_range")
	})
}

// A count stands one quarter-hour before, at, and after the moments that matter.
func TestStats_daysBeginAndEndWithTheClocksOfTheirZone(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, c := range []struct {
		name, zone, from, to string
		quarters             []string // each with one view
		want                 []string
	}{
		{"a zone without summer time", "Asia/Tokyo", "2026-03-01", "2026-03-02",
			[]string{"2026-02-28T14:45:00Z", "2026-02-28T15:00:00Z", "2026-03-01T14:45:00Z", "2026-03-01T15:00:00Z", "2026-03-02T14:45:00Z", "2026-03-02T15:00:00Z"}, []string{"2026-03-01 2", "2026-03-02 2"}},
		{"a quarter-hour's zone", "Asia/Kathmandu", "2026-03-01", "2026-03-01",
			[]string{"2026-02-28T18:00:00Z", "2026-02-28T18:15:00Z", "2026-03-01T18:00:00Z", "2026-03-01T18:15:00Z"}, []string{"2026-03-01 2"}},
		{"a day of 23 hours", "Europe/Zurich", "2026-03-28", "2026-03-30",
			[]string{"2026-03-27T22:45:00Z", "2026-03-27T23:00:00Z", "2026-03-28T22:45:00Z", "2026-03-28T23:00:00Z", "2026-03-29T00:45:00Z", "2026-03-29T01:00:00Z", "2026-03-29T21:45:00Z", "2026-03-29T22:00:00Z", "2026-03-30T21:45:00Z", "2026-03-30T22:00:00Z"},
			[]string{"2026-03-28 2", "2026-03-29 4", "2026-03-30 2"}},
		{"a day of 25 hours", "Europe/Zurich", "2026-10-24", "2026-10-26",
			[]string{"2026-10-24T21:45:00Z", "2026-10-24T22:00:00Z", "2026-10-25T00:45:00Z", "2026-10-25T01:00:00Z", "2026-10-25T22:45:00Z", "2026-10-25T23:00:00Z"},
			[]string{"2026-10-24 1", "2026-10-25 4", "2026-10-26 1"}},
		{"half an hour's summer time", "Australia/Lord_Howe", "2026-04-04", "2026-04-06",
			[]string{"2026-04-04T12:45:00Z", "2026-04-04T13:00:00Z", "2026-04-05T13:15:00Z", "2026-04-05T13:30:00Z"}, []string{"2026-04-04 1", "2026-04-05 2", "2026-04-06 1"}},
		{"a midnight that is skipped, east", "Africa/Cairo", "2026-04-23", "2026-04-24",
			[]string{"2026-04-23T21:45:00Z", "2026-04-23T22:00:00Z", "2026-04-24T20:45:00Z", "2026-04-24T21:00:00Z"}, []string{"2026-04-23 1", "2026-04-24 2"}},
		{"a midnight that is skipped, west", "America/Santiago", "2026-09-05", "2026-09-06",
			[]string{"2026-09-06T03:45:00Z", "2026-09-06T04:00:00Z", "2026-09-07T02:45:00Z", "2026-09-07T03:00:00Z"}, []string{"2026-09-05 1", "2026-09-06 2"}},
		{"an hour before midnight that comes twice", "America/Santiago", "2026-04-04", "2026-04-05",
			[]string{"2026-04-05T02:45:00Z", "2026-04-05T03:00:00Z", "2026-04-05T03:45:00Z", "2026-04-05T04:00:00Z"}, []string{"2026-04-04 3", "2026-04-05 1"}},
		{"an hour after midnight that comes twice", "America/Havana", "2026-10-31", "2026-11-01",
			[]string{"2026-11-01T03:45:00Z", "2026-11-01T04:00:00Z", "2026-11-01T05:00:00Z", "2026-11-02T04:45:00Z", "2026-11-02T05:00:00Z"}, []string{"2026-10-31 1", "2026-11-01 3"}},
		{"a day that begins twice", "America/St_Johns", "2006-10-28", "2006-10-29",
			[]string{"2006-10-29T02:15:00Z", "2006-10-29T02:30:00Z", "2006-10-29T02:45:00Z", "2006-10-29T03:15:00Z", "2006-10-29T03:30:00Z"}, []string{"2006-10-28 3", "2006-10-29 2"}},
		{"the first zone to see a day", "Pacific/Kiritimati", "2026-01-01", "2026-01-01",
			[]string{"2025-12-31T09:45:00Z", "2025-12-31T10:00:00Z", "2026-01-01T09:45:00Z", "2026-01-01T10:00:00Z"}, []string{"2026-01-01 2"}},
		{"the last zone to see a day", "Etc/GMT+12", "2026-01-01", "2026-01-01",
			[]string{"2026-01-01T11:45:00Z", "2026-01-01T12:00:00Z", "2026-01-02T11:45:00Z", "2026-01-02T12:00:00Z"}, []string{"2026-01-01 2"}},
		{"a day that is skipped", "Pacific/Apia", "2011-12-29", "2011-12-31",
			[]string{"2011-12-29T09:45:00Z", "2011-12-29T10:00:00Z", "2011-12-30T09:45:00Z", "2011-12-30T10:00:00Z", "2011-12-31T09:45:00Z", "2011-12-31T10:00:00Z"}, []string{"2011-12-29 2", "2011-12-30 0", "2011-12-31 2"}},
		{"a skipped day alone", "Pacific/Apia", "2011-12-30", "2011-12-30",
			[]string{"2011-12-30T09:45:00Z", "2011-12-30T10:00:00Z"}, []string{"2011-12-30 0"}},
		{"a leap day", "UTC", "2028-02-28", "2028-03-01",
			[]string{"2028-02-28T23:45:00Z", "2028-02-29T00:00:00Z", "2028-02-29T23:45:00Z", "2028-03-01T00:00:00Z"}, []string{"2028-02-28 1", "2028-02-29 2", "2028-03-01 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t)
			widget := s.addWidget(s.account)
			for _, quarter := range c.quarters {
				s.countAt(widget, quarter, counts{Views: 1})
			}
			a := s.get("/widget/stats?widget=" + widget + "&from=" + c.from + "&to=" + c.to + "&timezone=" + url.QueryEscape(c.zone))
			if got := a.views(); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if a.text("timezone") != c.zone {
				t.Errorf("timezone %s", a.text("timezone"))
			}
		})
	}
}

func TestStats_weeksBeginOnMondayAndMonthsOnTheirFirst(t *testing.T) {
	t.Parallel()
	s := newService(t)
	widget := s.addWidget(s.account)
	for _, day := range []string{"2026-01-30", "2026-01-31", "2026-02-01", "2026-02-02", "2026-02-08", "2026-02-09", "2026-03-01"} {
		s.countAt(widget, day+"T12:00:00Z", counts{Views: 1, Clicks: 2})
	}
	path := "/widget/stats?widget=" + widget + "&from=2026-01-31&to=2026-03-01"
	if got, want := s.get(path+"&interval=week").views(), []string{"2026-01-26 2", "2026-02-02 2", "2026-02-09 1", "2026-02-16 0", "2026-02-23 1"}; !slices.Equal(got, want) {
		t.Errorf("weeks %q, want %q", got, want)
	}
	if got, want := s.get(path+"&interval=month").views(), []string{"2026-01-01 1", "2026-02-01 4", "2026-03-01 1"}; !slices.Equal(got, want) {
		t.Errorf("months %q, want %q", got, want)
	}
	for _, interval := range []string{"day", "week", "month"} {
		if a := s.get(path + "&interval=" + interval).is(200); !strings.Contains(a.body, `"interval":"`+interval+`"`) || !strings.Contains(a.body, `"totals":{"views":6,"visitors":0,"clicks":12}`) {
			t.Errorf("%s: %s", interval, a.body)
		}
	}
}

func TestStats_topItemsAreTheTenMostClickedOfTheRange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		s.report(widget, `{"type":"click","item":"yesterday"}`).is(204)
		time.Sleep(24 * time.Hour)
		for i := range 12 {
			s.report(widget, strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"type":"click","item":"dish %02d"},`, i), i+1), ",")).is(204)
		}
		top := s.get("/widget/stats?widget=" + widget + "&from=2000-01-02&to=2000-01-02").is(200).json()["top_items"].([]any)
		if len(top) != 10 || fmt.Sprint(top[0]) != "map[clicks:12 item:dish 11]" || fmt.Sprint(top[9]) != "map[clicks:3 item:dish 02]" {
			t.Fatalf("%v", top)
		}
	})
}

func TestStats_topItemsAreOfTheUTCDaysThatTheRangeTouches(t *testing.T) {
	t.Parallel()
	s := newService(t)
	widget := s.addWidget(s.account)
	s.sql(`INSERT INTO item_counts (widget_id, day, item, clicks) VALUES (?1, '2026-03-01', 'first', 1), (?1, '2026-03-02', 'second', 2), (?1, '2026-03-03', 'third', 3)`, widget)
	for _, c := range []struct{ zone, from, to, want string }{
		{"UTC", "2026-03-02", "2026-03-02", "second"},
		{"UTC", "2026-03-01", "2026-03-02", "second first"},
		{"Europe/Zurich", "2026-03-02", "2026-03-02", "second first"}, // from 23:00 UTC of the day before
		{"Asia/Tokyo", "2026-03-03", "2026-03-03", "third second"},
		{"America/New_York", "2026-03-02", "2026-03-02", "third second"}, // until 05:00 UTC of the day after
		{"America/New_York", "2026-02-27", "2026-02-27", ""},
		{"Pacific/Kiritimati", "2026-03-04", "2026-03-04", "third"},
	} {
		var names []string
		for _, item := range s.get("/widget/stats?widget=" + widget + "&from=" + c.from + "&to=" + c.to + "&timezone=" + c.zone).is(200).json()["top_items"].([]any) {
			names = append(names, item.(map[string]any)["item"].(string))
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s from %s to %s: %q, want %q", c.zone, c.from, c.to, got, c.want)
		}
	}
}

func TestStats_withoutAWidgetAreTheAccountsTotalsAndARowForEach(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	one, two, foreign := s.addWidget(s.account), s.addWidget(s.account), s.addWidget(partner)
	s.countAt(one, "2026-01-01T10:00:00Z", counts{1, 2, 3, 4})
	s.countAt(two, "2026-01-01T10:00:00Z", counts{10, 20, 30, 40})
	s.countAt(two, "2026-01-02T00:00:00Z", counts{100, 200, 300, 400}) // past the range
	s.countAt(foreign, "2026-01-01T10:00:00Z", counts{7, 7, 7, 7})
	const path = "/widget/stats?from=2026-01-01&to=2026-01-01"
	report := func(account string, sum counts, rows string) string {
		line := fmt.Sprintf(`"views":%d,"visitors":%d,"clicks":%d,"orders":%d}`, sum.Views, sum.Visitors, sum.Clicks, sum.Orders)
		return `{"account_id":"` + account + `","from":"2026-01-01","to":"2026-01-01","interval":"day","timezone":"UTC","totals":{` + line + `,"series":[{"date":"2026-01-01",` + line + `],"widgets":[` + rows + "]}\n"
	}
	row := func(widget string, n int) string {
		return fmt.Sprintf(`{"widget":"%s","name":"Lunch","views":%d,"visitors":%d,"clicks":%d,"orders":%d}`, widget, n, 2*n, 3*n, 4*n)
	}
	own := []string{row(one, 1), row(two, 10)}
	if one > two {
		slices.Reverse(own)
	}
	s.get(path).is(401, "token_required").has("WWW-Authenticate: " + bareChallenge)
	s.get(path, "Authorization: Bearer "+s.token(s.account, scopeLeads)).is(403, "insufficient_scope")
	token := "Authorization: Bearer " + s.token(s.account, scopeStats)
	if a, want := s.get(path, token).is(200), report(s.account, counts{11, 22, 33, 44}, strings.Join(own, ",")); a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	s.get(path+"&account_id="+partner, token).is(403, "insufficient_scope")
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	if a, want := s.get(path+"&account_id="+partner, admin).is(200), report(partner, counts{7, 7, 7, 7}, `{"widget":"`+foreign+`","name":"Lunch","views":7,"visitors":7,"clicks":7,"orders":7}`); a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	empty := s.addAccount("empty")
	if a, want := s.get(path, "Authorization: Bearer "+s.token(empty, scopeStats)).is(200), report(empty, counts{}, ""); a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
}

func TestStats_ofAnotherAccountsWidgetAreNotFound(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	path := "/widget/stats?widget=" + s.addWidget(partner)
	s.get(path, "Authorization: Bearer "+s.token(s.account, scopeStats)).is(404, "widget_not_found")
	s.get(path, "Authorization: Bearer "+s.token(partner, scopeStats)).is(200)
	s.get(path, "Authorization: Bearer "+s.token(s.account, scopeAdmin)).is(200)
	s.get(path, "Authorization: Bearer nonsense").is(401, "invalid_token")
	s.get("/widget/stats?widget=wgt_00000000000000000000000000").is(404, "widget_not_found")
	s.change(func(t *tx) error { return t.closeAccount(partner) })
	s.get(path).is(404, "widget_not_found")
}

func TestStats_thatDidNotChangeAre304(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		path := "/widget/stats?widget=" + widget
		first := s.get(path).is(200)
		tag := first.header.Get("ETag")
		if len(tag) < 10 || tag[0] != '"' || tag[len(tag)-1] != '"' {
			t.Fatalf("ETag %q", tag)
		}
		for _, match := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			a := s.get(path, "If-None-Match: "+match).is(304).has("ETag: "+tag, "Cache-Control: public, max-age=60", "Content-Type: ", "Content-Length: ")
			if a.body != "" {
				t.Errorf("%s: body %q", match, a.body)
			}
		}
		s.get(path, `If-None-Match: "other"`, "If-None-Match: "+tag).is(304)
		for _, other := range []string{`"other"`, strings.Trim(tag, `"`), ""} {
			s.get(path, "If-None-Match: "+other).is(200).has("ETag: " + tag)
		}
		s.get(path, "If-None-Match: "+tag, "Authorization: Bearer "+s.token(s.account, scopeStats)).is(200) // another answer, with orders
		s.report(widget, `{"type":"view"}`).is(204)
		if changed := s.get(path, "If-None-Match: "+tag).is(200).header.Get("ETag"); changed == tag {
			t.Error("the ETag stays the same although a view came")
		}
	})
}

func TestStats_timeZoneIsTheNameOfOne(t *testing.T) {
	t.Parallel()
	for range 2 { // the second time from memory
		for name, right := range map[string]bool{"Europe/Zurich": true, "UTC": true, "Etc/GMT+5": true, "": false, "Local": false, "Europe": false, "Europe//Zurich": false,
			"./Europe/Zurich": false, "Europe/../Europe/Zurich": false, "/etc/passwd": false, "Mars/Olympus": false, "europe/\x00": false} {
			if zone, err := loadZone(name); (err == nil) != right || right && zone.String() != name {
				t.Errorf("%q: %v, %v", name, zone, err)
			}
		}
	}
}

func TestWidget_eventsWithoutAnOriginAreToldThatOneIsNeeded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	body := `{"widget":"` + s.addWidget(s.account) + `","events":[{"type":"view"}]}`
	if a := s.post("/widget/events", body).is(403, "origin_not_allowed"); !strings.Contains(a.text("detail"), "needs an Origin header") {
		t.Errorf("without an Origin: %s", a.body)
	}
	if a := s.post("/widget/events", body, "Origin: https://other.example").is(403, "origin_not_allowed"); a.text("detail") != codeOrigin.detail {
		t.Errorf("with an unlisted Origin: %s", a.body)
	}
}

func TestWidget_removedTakesItsCountersAlongAndLateCountsHurtNobody(t *testing.T) {
	t.Parallel()
	s := newService(t)
	widget, other := s.addWidget(s.account), s.addWidget(s.account)
	s.report(widget, `{"type":"view"},{"type":"click","item":"Soup"}`).is(204)
	s.change(func(t *tx) error {
		for i := range widgetRowsAtOnce + 10 { // more than one transaction removes
			t.at(-time.Duration(i+1)*quarterHour).addCounts(widget, counts{Views: 1}, nil, nil)
		}
		return nil
	})
	_, err := s.command("widget", "remove", widget)
	oneLine(t, err, widget+" has 5012 rows of what it counted", "add -force")
	if out := s.must("widget", "remove", widget, "-force", "-json"); out != `{"ok":true,"rows":5012}`+"\n" {
		t.Errorf("removing printed %s", out)
	}
	for _, table := range []string{"widget_counts", "item_counts"} {
		if n := s.count(`SELECT count(*) FROM ` + table); n != 0 {
			t.Errorf("%s has %d rows", table, n)
		}
	}
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'widget.removed' AND subject_id = ? AND data = '{"rows":"5012"}'`, widget); n != 1 {
		t.Errorf("%d events", n)
	}
	// The service may not know for a moment that the widget is gone.
	s.change(func(t *tx) error {
		t.addCounts(widget, counts{Views: 1}, []nameCount{{"Soup", counts{Clicks: 1}}}, []nameCount{{"/menu", counts{Views: 1}}})
		t.addCounts(other, counts{Views: 7}, nil, nil)
		return nil
	})
	if n := s.count(`SELECT views FROM widget_counts WHERE widget_id = ?`, other); n != 7 {
		t.Errorf("the other widget has %d views", n)
	}
	s.report(widget, `{"type":"view"}`).is(404, "widget_not_found")
}

func statsStory(t *testing.T, o *operator) {
	id := o.object("widget", "add", "-account", o.account, "Lunch", "-public-orders")["id"].(string)
	other := strings.TrimSpace(o.do("widget", "add", "Dinner", "-account", o.account))
	if rows := o.objects("widget", "list"); len(rows) != 2 || rows[0]["id"] != id || rows[0]["public_orders"] != true || rows[1]["id"] != other || rows[1]["public_orders"] != false {
		t.Errorf("widgets %v", rows)
	}
	o.change(func(t *tx) error {
		t.addCounts(id, counts{Views: 4, Visitors: 2, Clicks: 1, Orders: 1}, []nameCount{{"Soup", counts{Clicks: 1, Orders: 1}}}, []nameCount{{"/menu", counts{Views: 3, Clicks: 1, Orders: 1}}})
		t.at(-24*time.Hour).addCounts(other, counts{Views: 2}, nil, nil)
		return t.countLegacy([]legacyCall{{Day: "2026-06-30", Path: "/api/legacy/widget/stats", Caller: o.account, Calls: 7, LastAt: t.now}})
	})
	all := o.object("stats")
	if rows, _ := all["widgets"].([]any); len(rows) != 2 || fmt.Sprint(all["totals"]) != "map[clicks:1 orders:1 views:6 visitors:2]" || fmt.Sprint(rows[1].(map[string]any)["views"]) != "2" {
		t.Errorf("statistics %v", all)
	}
	if table := o.do("stats", "-wide"); !strings.Contains(table, "6 views, 2 visitors, 1 click, 1 order\n") || !strings.Contains(table, id+"  Lunch   4 ") || !strings.Contains(table, other+"  Dinner  2 ") {
		t.Errorf("statistics:\n%s", table)
	}
	out := o.do("stats", "-widget", id, "-wide")
	if strings.Contains(out, other) || strings.Count(out, "\n") != 42 || !strings.Contains(out, " "+strings.Repeat("█", 40)+"\n") ||
		!strings.Contains(out, "\nTOP-ITEM  CLICKS  ORDERS\nSoup      1       1\n") || !strings.Contains(out, "\nTOP-PAGE  VIEWS  CLICKS  ORDERS\n/menu     3      1       1\n") {
		t.Errorf("%d lines:\n%s", strings.Count(out, "\n"), out)
	}
	one := o.object("stats", "-widget", id, "-interval", "month", "-timezone", "Asia/Tokyo", "-from", "2026-01-01", "-to", "2026-12-31")
	if fmt.Sprintln(one["top_pages"], one["top_items"], len(one["series"].([]any)), one["timezone"]) != "[map[clicks:1 orders:1 page:/menu views:3]] [map[clicks:1 item:Soup orders:1]] 12 Asia/Tokyo\n" {
		t.Errorf("one widget %v", one)
	}
	o.fails("-from must be a date, YYYY-MM-DD, not \"yesterday\"", "stats", "-from", "yesterday")
	o.fails("-from and -to: the range ends before it begins", "stats", "-from", "2026-02-01", "-to", "2026-01-31")
	o.fails("-from and -to: the range has more than 366 days", "stats", "-from", "2025-01-01", "-to", "2026-01-02")
	o.fails("-interval must be one of day, week, month, not \"year\"", "stats", "-interval", "year")
	o.fails("-timezone must be a time zone of the IANA database, like Europe/Zurich, not \"Mars\"", "stats", "-timezone", "Mars")
	o.fails("not found", "stats", "-widget", "wgt_00000000000000000000000000")
	o.fails("has 1 row of what it counted, which would be lost: add -force", "widget", "remove", other)
	if got := o.object("widget", "remove", other, "-force"); got["rows"] != 1.0 {
		t.Errorf("removed %v", got)
	}
	o.fails("not found", "widget", "remove", other)
	o.do("widget", "rename", id, "Mittagstisch")
	if rows := o.objects("widget", "list"); len(rows) != 1 || rows[0]["name"] != "Mittagstisch" {
		t.Errorf("widgets %v", rows)
	}
	o.fails("a name has 1 to 200 bytes", "widget", "rename", id, "")
	if rows := o.objects("legacy"); len(rows) != 1 || rows[0]["calls"] != 7.0 || rows[0]["caller"] != o.account {
		t.Errorf("legacy %v", rows)
	}
	if table := o.do("legacy", "-wide"); !strings.HasPrefix(table, "DAY ") || !strings.Contains(table, "/api/legacy/widget/stats") {
		t.Errorf("legacy:\n%s", table)
	}
	if table := o.do("events"); !strings.HasPrefix(table, "AT ") {
		t.Errorf("events:\n%s", table)
	}
}

// BenchmarkEvents reports events until each is on disk, in small and in full batches of 32 callers a
// processor:
//
//	go test -run '^$' -bench Events -benchtime 3s
func BenchmarkEvents(b *testing.B) {
	few := `{"type":"view"},{"type":"click","item":"Rösti"}`
	for _, c := range []struct{ name, events string }{
		{"2", few},
		{"10", few + strings.Repeat(","+few, 4)},
		{"10 with pages", strings.ReplaceAll(few+strings.Repeat(","+few, 4), `"}`, `","page":"/menu"}`)},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newService(b, withoutAddressLimits)
			s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
			widget := s.addWidget(s.account)
			b.SetParallelism(32) // times the processors
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if a := s.report(widget, c.events); a.status != 204 {
						b.Errorf("%d %s", a.status, a.body)
					}
				}
			})
			b.ReportMetric(float64(b.N*strings.Count(c.events, "type"))/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// fillStatistics adds widgets to an account that counted over the 366 days from 2025 on: at lunch, with 10
// items and 2 pages a day, or when busy in every quarter-hour, with 100 items and 100 pages a day.
func (s *service) fillStatistics(account, prefix string, widgets int, busy bool) {
	s.t.Helper()
	first, quarters, names, pages := 40, 16, 10, 2
	if busy {
		first, quarters, names, pages = 0, 96, 100, 100
	}
	for i := range widgets {
		s.sql(`INSERT INTO widgets (id, account_id, name, created_at) VALUES (?, ?, 'Lunch', '2025-01-01T00:00:00Z')`, fmt.Sprintf("%s%04d", prefix, i), account)
	}
	s.sql(manyRows(366)+`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders)
		SELECT w.id, strftime('%Y-%m-%dT%H:%M:%SZ', '2025-01-01', '+' || (1440 * (d.i - 1) + 15 * (?1 + q.i - 1)) || ' minutes'), 1 + (d.i + q.i) % 2, 1, q.i % 3 = 0, q.i % 9 = 0
		FROM widgets w, n d, n q WHERE w.id GLOB ?3 || '*' AND q.i <= ?2`, first, quarters, prefix)
	s.sql(manyRows(366)+`INSERT INTO item_counts (widget_id, day, item, clicks, orders)
		SELECT w.id, date('2025-01-01', '+' || (d.i - 1) || ' days'), 'dish ' || k.i, k.i % 7, 1 FROM widgets w, n d, n k WHERE w.id GLOB ?2 || '*' AND k.i <= ?1`, names, prefix)
	s.sql(manyRows(366)+`INSERT INTO page_counts (widget_id, day, page, views, clicks, orders)
		SELECT w.id, date('2025-01-01', '+' || (d.i - 1) || ' days'), '/menu/' || k.i, k.i % 7, 1, 1 FROM widgets w, n d, n k WHERE w.id GLOB ?2 || '*' AND k.i <= ?1`, pages, prefix)
}

// BenchmarkStatistics reads a year of statistics from a file with a year of 10,000,000 events of so many
// widgets, among them ten of one account with traffic in every quarter-hour and 100 items and pages a day:
//
//	go test -run '^$' -bench Statistics -widgets 1000 -timeout 20m
func BenchmarkStatistics(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	busy := s.addAccount("Busy")
	s.fillStatistics(s.account, "wgt_0000000000000000000000", *statisticsWidgets, false)
	s.fillStatistics(busy, "wgt_0000000000000000000001", 10, true)
	for _, account := range []string{s.account, busy} {
		s.change(func(t *tx) error { return t.setRate(account, 1_000_000) })
	}
	b.Logf("%d events", s.count(`SELECT sum(views + clicks + orders) FROM widget_counts`))
	token := "Authorization: Bearer " + s.token(busy, scopeStats)
	const year = "?from=2025-01-01&to=2026-01-01&timezone=Europe/Zurich"
	for _, c := range []struct {
		name, path string
		headers    []string
	}{
		{"one widget", "/widget/stats" + year + "&widget=wgt_00000000000000000000000007", nil},
		{"one busy widget", "/widget/stats" + year + "&widget=wgt_00000000000000000000010007", nil},
		{"one busy widget, by months", "/widget/stats" + year + "&interval=month&widget=wgt_00000000000000000000010007", nil},
		{"one busy widget with pages", "/widget/stats" + year + "&widget=wgt_00000000000000000000010007", []string{token}},
		{"ten busy widgets", "/widget/stats" + year, []string{token}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				s.store.changes.record(invalidation{}) // nothing comes from memory
				s.get(c.path, c.headers...).is(200)
			}
		})
	}
}

func BenchmarkStats(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	widget := s.addWidget(s.account)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.change(func(t *tx) error {
		for i := range 366 * 96 {
			if _, err := t.exec(`INSERT INTO widget_counts (widget_id, quarter, views) VALUES (?, ?, 1)`, widget, newStamp(start.Add(time.Duration(i)*quarterHour))); err != nil {
				return err
			}
		}
		return nil
	})
	for name, query := range map[string]string{"30 days": "&from=2026-03-01&to=2026-03-30&timezone=Europe/Zurich", "366 days": "&from=2026-01-01&to=2027-01-01&interval=month"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.get("/widget/stats?widget=" + widget + query).is(200)
			}
		})
	}
}
