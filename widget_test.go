package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// report sends events of a widget from the main site.
func (s *service) report(widget, events string, headers ...string) answer {
	s.t.Helper()
	body := `{"widget":"` + widget + `","events":[` + events + `]}`
	return s.post("/widget/events", body, append(headers, "Origin: "+siteOrigin)...)
}

// counted is what stands in the file about a widget.
func (s *service) counted(widget string) (c counts) {
	s.t.Helper()
	s.check(s.store.one(`SELECT coalesce(sum(views), 0), coalesce(sum(visitors), 0), coalesce(sum(clicks), 0),
		coalesce(sum(orders), 0) FROM widget_counts WHERE widget_id = ?`, []any{widget},
		&c.Views, &c.Visitors, &c.Clicks, &c.Orders))
	return c
}

func TestWidget_keepsAHundredItemsADayAndCountsTheRestAsOther(t *testing.T) {
	t.Parallel()
	for table, event := range map[string]string{"item_counts": `{"type":"click","item":"/%d"},`,
		"page_counts": `{"type":"click","page":"/%d"},`} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				widget, second := s.addWidget(s.account), s.addWidget(s.account)
				click := func(widget string, from, to int) {
					var events strings.Builder
					for i := from; i < to; i++ {
						fmt.Fprintf(&events, event, i)
					}
					s.report(widget, strings.TrimSuffix(events.String(), ",")).is(204)
				}
				has := func(when string, rows, others int) {
					t.Helper()
					equal(t, when, []int{
						s.count(`SELECT count(*) FROM `+table+` WHERE widget_id = ?`, widget),
						s.count(`SELECT coalesce(sum(clicks), 0) FROM `+table+` WHERE widget_id = ?
							AND `+table[:4]+` = 'other'`, widget),
					}, []int{rows, others})
				}
				click(widget, 0, 50)
				click(widget, 50, 99)
				click(widget, 98, 103) // one known, one that fits, three that don't
				has("at first", 101, 3)
				click(second, 0, 3) // each widget has its own
				s.counts(3, `SELECT count(*) FROM `+table+` WHERE widget_id = ?`, second)
				time.Sleep(24*time.Hour - time.Second)
				click(widget, 200, 210)
				click(widget, 0, 10) // known ones go on
				has("at the end of the day", 101, 13)
				s.reopen(storeOptions{})
				click(widget, 200, 201)
				has("after a restart, which does not forget the names of the day", 101, 14)
				time.Sleep(time.Second)
				click(widget, 200, 210)
				has("the next day", 111, 14)
				other := strings.Replace(strings.Trim(event, ","), "/%d", "other", 1)
				if table == "page_counts" { // a page of more than 200 characters
					other = strings.Replace(strings.Trim(event, ","), "%d", strings.Repeat("ü", 200), 1)
				}
				s.report(widget, other).is(204) // which is no name of its own
				click(widget, 300, 350)
				click(widget, 350, 390)
				has("later that day", 202, 15)
				equal(t, "clicks", s.counted(widget).Clicks, 50+49+5+10+10+1+10+1+90)
			})
		})
	}
}

// Against whoever ends the counting of all widgets until midnight by filling the memory, from many addresses or by many
// names from one: each widget has its part, and each address of a widget.
func TestVisitor_setIsNoWidgetsAndNoAddressesAlone(t *testing.T) {
	t.Parallel()
	var set visitorSet
	visits := func(widget, address, agent string, n int) (first int) {
		for i := range n {
			who := strings.Split(strings.ReplaceAll(address+"|"+agent, "#", fmt.Sprint(i)), "|")
			if is, _ := set.addVisitor(widget, who[0], who[1], bubbleStart); is {
				first++
			}
		}
		return first
	}
	equal(t, "names of an address", visits("wgt_1", "192.0.2.1", "agent #", 70), 64)
	equal(t, "addresses of a name", visits("wgt_1", "2001:db8::#", "agent", 70), 70)
	equal(t, "those of another widget", visits("wgt_2", "192.0.2.1", "agent #", 70), 64)
	_, undo := set.addVisitor("wgt_3", "a", "b", bubbleStart)
	undo()
	equal(t, "keys", len(set.counts.counts), 1+2+134+1+64+70+1) // all; widgets, visitors, addresses
	equal(t, "visitors of a widget", visits("wgt_1", "address #", "", maxVisitorsOfWidget), maxVisitorsOfWidget-134)
	equal(t, "those of others after that", visits("wgt_2", "address #", "", 70), 70)
}

func TestVisitor_ofAViewThatCouldNotBeCountedIsLeftToTheNextOne(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		widget := s.addWidget(s.account)
		s.report(widget, `{"type":"view"}`, someKey).is(204)
		time.Sleep(5 * time.Minute)
		s.report(widget, `{"type":"view"},{"type":"view"}`, "Peer: 192.0.2.1:9", "User-Agent: other", someKey).
			is(422, "idempotency_key_reused")
		s.report(widget, `{"type":"view"}`, "User-Agent: other").is(204)
		equal(t, "visitors after a refused view", s.counted(widget).Visitors, 2)
		time.Sleep(23*time.Hour + 54*time.Minute)
		late := func(headers ...string) answer {
			return s.report(widget, `{"type":"view"}`, append(headers, "User-Agent: late")...).is(204)
		}
		late("Idempotency-Key: late")
		time.Sleep(2 * time.Minute) // the next UTC day
		late("Idempotency-Key: late").has("Idempotency-Replayed: true")
		late()
		equal(t, "counts after a replayed view", s.counted(widget), counts{Views: 4, Visitors: 4})
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

// A count stands one quarter-hour before, at, and after the moments that matter.
func TestStats_daysBeginAndEndWithTheClocksOfTheirZone(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	for _, c := range []struct {
		name, zone, from, to string
		quarters             string // each with one view, as day and hour of the month of from
		want                 string // the views of each day
	}{
		{"a zone without summer time", "Asia/Tokyo", "2026-03-01", "2026-03-02",
			"00T14:45 00T15:00 01T14:45 01T15:00 02T14:45 02T15:00", "2 2"},
		{"a quarter-hour's zone", "Asia/Kathmandu", "2026-03-01", "2026-03-01",
			"00T18:00 00T18:15 01T18:00 01T18:15", "2"},
		{"a day of 23 hours", "Europe/Zurich", "2026-03-28", "2026-03-30", "27T22:45 27T23:00 28T22:45 28T23:00 " +
			"29T00:45 29T01:00 29T21:45 29T22:00 30T21:45 30T22:00", "2 4 2"},
		{"a day of 25 hours", "Europe/Zurich", "2026-10-24", "2026-10-26",
			"24T21:45 24T22:00 25T00:45 25T01:00 25T22:45 25T23:00", "1 4 1"},
		{"half an hour's summer time", "Australia/Lord_Howe", "2026-04-04", "2026-04-06",
			"04T12:45 04T13:00 05T13:15 05T13:30", "1 2 1"},
		{"a midnight that is skipped, east", "Africa/Cairo", "2026-04-23", "2026-04-24",
			"23T21:45 23T22:00 24T20:45 24T21:00", "1 2"},
		{"a midnight that is skipped, west", "America/Santiago", "2026-09-05", "2026-09-06",
			"06T03:45 06T04:00 07T02:45 07T03:00", "1 2"},
		{"an hour before midnight that comes twice", "America/Santiago", "2026-04-04", "2026-04-05",
			"05T02:45 05T03:00 05T03:45 05T04:00", "3 1"},
		{"an hour after midnight that comes twice", "America/Havana", "2026-10-31", "2026-11-01",
			"32T03:45 32T04:00 32T05:00 33T04:45 33T05:00", "1 3"},
		{"a day that begins twice", "America/St_Johns", "2006-10-28", "2006-10-29",
			"29T02:15 29T02:30 29T02:45 29T03:15 29T03:30", "3 2"},
		{"the first zone to see a day", "Pacific/Kiritimati", "2026-01-01", "2026-01-01",
			"00T09:45 00T10:00 01T09:45 01T10:00", "2"},
		{"the last zone to see a day", "Etc/GMT+12", "2026-01-01", "2026-01-01",
			"01T11:45 01T12:00 02T11:45 02T12:00", "2"},
		{"a day that is skipped", "Pacific/Apia", "2011-12-29", "2011-12-31",
			"29T09:45 29T10:00 30T09:45 30T10:00 31T09:45 31T10:00", "2 0 2"},
		{"a skipped day alone", "Pacific/Apia", "2011-12-30", "2011-12-30", "30T09:45 30T10:00", "0"},
		{"a leap day", "UTC", "2028-02-28", "2028-03-01", "28T23:45 29T00:00 29T23:45 30T00:00", "1 2 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.with(t)
			widget := s.addWidget(s.account)
			first, err := time.Parse(time.DateOnly, c.from)
			s.check(err)
			for quarter := range strings.FieldsSeq(c.quarters) {
				var day, hour, minute int
				fmt.Sscanf(quarter, "%dT%d:%d", &day, &hour, &minute)
				at := time.Date(first.Year(), first.Month(), day, hour, minute, 0, 0, time.UTC)
				s.sql(`INSERT INTO widget_counts (widget_id, quarter, views) VALUES (?, ?, 1)`, widget,
					at.Format(time.RFC3339))
			}
			a := s.get("/widget/stats?widget=" + widget + "&from=" + c.from + "&to=" + c.to + "&timezone=" +
				url.QueryEscape(c.zone))
			var want []string
			for i, views := range strings.Fields(c.want) {
				want = append(want, first.AddDate(0, 0, i).Format(time.DateOnly)+" "+views)
			}
			equal(t, "views", a.views(), want)
			equal(t, "timezone", a.text("timezone"), c.zone)
		})
	}
}

func TestStats_topItemsAreTheTenMostClickedOfTheUTCDaysThatTheRangeTouches(t *testing.T) {
	t.Parallel()
	s := newService(t)
	widget := s.addWidget(s.account)
	s.sql(`INSERT INTO item_counts (widget_id, day, item, clicks) VALUES
		(?1, '2026-03-01', 'first', 1), (?1, '2026-03-02', 'second', 2), (?1, '2026-03-03', 'third', 3)`, widget)
	s.sql(manyRows(12)+`INSERT INTO item_counts (widget_id, day, item, clicks) SELECT ?, '2026-04-01', i, i FROM n`,
		widget)
	for _, c := range []struct{ zone, from, to, want string }{
		{"UTC", "2026-03-02", "2026-03-02", "second"},
		{"UTC", "2026-04-01", "2026-04-01", "12 11 10 9 8 7 6 5 4 3"},
		{"UTC", "2026-03-01", "2026-03-02", "second first"},
		{"Europe/Zurich", "2026-03-02", "2026-03-02", "second first"}, // from 23:00 UTC of the day before
		{"Asia/Tokyo", "2026-03-03", "2026-03-03", "third second"},
		{"America/New_York", "2026-03-02", "2026-03-02", "third second"}, // until 05:00 UTC of the day after
		{"America/New_York", "2026-02-27", "2026-02-27", ""},
		{"Pacific/Kiritimati", "2026-03-04", "2026-03-04", "third"},
	} {
		a := s.get("/widget/stats?widget=" + widget + "&from=" + c.from + "&to=" + c.to + "&timezone=" + c.zone).is(200)
		names := fmt.Sprint(column(objects(a.json()["top_items"]), "item"))
		equal(t, fmt.Sprint(c.zone, " from ", c.from, " to ", c.to), names, "["+c.want+"]")
	}
}

// Against a widget's name or item, or a page's address, that would run as a script in a picture, or reach the file
// with a guest's data: names are escaped, the picture allows its own style only; of pages only the path is kept.
func TestStats_thatDidNotChangeAre304(t *testing.T) {
	t.Parallel()
	for kind, policy := range map[string]string{"stats": "", "stats.svg": picturePolicy} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				widget := s.addWidget(s.account)
				path := "/widget/" + kind + "?widget=" + widget
				tag := s.get(path).is(200).has("Content-Security-Policy: " + policy).header.Get("ETag")
				if len(tag) < 10 || tag[0] != '"' || tag[len(tag)-1] != '"' {
					t.Fatalf("ETag %q", tag)
				}
				for _, match := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
					s.get(path, "If-None-Match: "+match).is(304).says("").
						has("ETag: "+tag, "Cache-Control: public, max-age=60", "Content-Type: ", "Content-Length: ")
				}
				s.get(path, `If-None-Match: "other"`, "If-None-Match: "+tag).is(304)
				for _, other := range []string{`"other"`, strings.Trim(tag, `"`), ""} {
					s.get(path, "If-None-Match: "+other).is(200).has("ETag: " + tag)
				}
				s.get(path, "If-None-Match: "+tag, s.auth(s.account, scopeStats)).is(200) // with orders
				s.report(widget, `{"type":"view"}`).is(204)
				time.Sleep(statsAge)
				s.get(path, "If-None-Match: "+tag).is(200)
			})
		})
	}
}

// pictureOf returns the picture of a series of views from 2026-01-01 on, and its texts in the order of
// the document.
func pictureOf(t testing.TB, lang pageLanguage, name, interval string, days int, views ...int64) (
	picture string, texts []string) {
	t.Helper()
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := statsRange{first, first.AddDate(0, 0, days-1), statsInterval(interval), time.UTC}
	s := newSeries(r)
	for i := range s.points {
		s.points[i].Views = views[i%len(views)]
		s.totals.Views += s.points[i].Views
	}
	report := r.report(s)
	report.widget = &widget{ID: "wgt_x", Name: name}
	picture = string(report.picture(lang))
	decoder, tags := xml.NewDecoder(strings.NewReader(picture)), []string{}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return picture, texts
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v\n%s", err, picture)
		}
		switch token := token.(type) {
		case xml.StartElement:
			tags = append(tags, token.Name.Local)
			contains(t, " svg title desc style rect text path ", " "+token.Name.Local+" ")
			for _, a := range token.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("the picture has an attribute %s", a.Name.Local)
				}
			}
		case xml.EndElement:
			tags = tags[:len(tags)-1]
		case xml.CharData:
			if tag := tags; len(tag) > 0 && tag[len(tag)-1] != "style" {
				texts = append(texts, string(token))
			}
		}
	}
}

// wordsOf returns the texts of a picture in one line, with plain spaces.
func wordsOf(texts []string) string {
	return strings.TrimSuffix(plainSpaces(strings.Join(texts, "|")), "|\n")
}

// TestPicture_isInEveryLanguage draws a day, weeks, months and nothing.
func TestPicture_isInEveryLanguage(t *testing.T) {
	t.Parallel()
	for lang, want := range map[pageLanguage][]string{
		"en": {"On 1 January 2026 (UTC): 1 view",
			"The busiest week was that of 29 December 2025, with 1,200 views.",
			"The busiest month was February 2026, with 1 view.", "1 Jan", "No views yet"},
		"de": {"Am 1. Januar 2026 (UTC): 1 Aufruf",
			"Die meisten Aufrufe gab es in der Woche ab dem 29. Dezember 2025: 1.200 Aufrufe.",
			"Die meisten Aufrufe gab es im Februar 2026: 1 Aufruf.", "1. Jan.", "Noch keine Aufrufe"},
		"fr": {"Le 1er janvier 2026 (UTC) : 1 vue",
			"La semaine la plus consultée est celle du 29 décembre 2025, avec 1_200 vues.",
			"Le mois le plus consulté est février 2026, avec 1 vue.", "1er janv.", "Pas encore de vues"},
		"it": {"Il giorno 1º gennaio 2026 (UTC): 1 visualizzazione",
			"La settimana con più visualizzazioni: quella dal giorno 29 dicembre 2025, con 1.200 visualizzazioni.",
			"Il mese con più visualizzazioni: febbraio 2026, con 1 visualizzazione.", "1º gen",
			"Ancora nessuna visualizzazione"},
		"nb": {"Den 1. januar 2026 (UTC): 1 visning",
			"Flest visninger var det i uken fra 29. desember 2025: 1 200 visninger.",
			"Flest visninger var det i februar 2026: 1 visning.", "1. jan.", "Ingen visninger ennå"},
		"sv": {"Den 1 januari 2026 (UTC): 1 visning",
			"Flest visningar var det under veckan från den 29 december 2025: 1 200 visningar.",
			"Flest visningar var det i februari 2026: 1 visning.", "1 jan.", "Inga visningar än"},
		"da": {"Den 1. januar 2026 (UTC): 1 visning",
			"Flest visninger var der i ugen fra den 29. december 2025: 1.200 visninger.",
			"Flest visninger var der i februar 2026: 1 visning.", "1. jan.", "Ingen visninger endnu"},
		"fi": {"1. tammikuuta 2026 (UTC): 1 katselu",
			"Vilkkain viikko alkoi 29. joulukuuta 2025: 1 200 katselua.",
			"Vilkkain kuukausi alkoi 1. helmikuuta 2026: 1 katselu.", "1. tammi", "Ei vielä katseluja"},
	} {
		picture, day := pictureOf(t, lang, "Lunch", "day", 1, 1)
		_, weeks := pictureOf(t, lang, "Lunch", "week", 14, 1200, 7, 2)
		_, months := pictureOf(t, lang, "Lunch", "month", 60, 0, 1)
		_, none := pictureOf(t, lang, "Lunch", "day", 30, 0)
		contains(t, picture, ` lang="`+string(lang)+`"`)
		if !strings.HasPrefix(wordsOf(day[1:2]), want[0]) || !strings.HasSuffix(wordsOf(weeks[1:2]), " "+want[1]) ||
			!strings.HasSuffix(wordsOf(months[1:2]), " "+want[2]) {
			t.Errorf("%s: %q %q %q", lang, day[1], weeks[1], months[1])
		}
		equal(t, string(lang), []string{wordsOf(weeks[4:5]), wordsOf(none[2:3])}, want[3:])
	}
	_, none := pictureOf(t, "en", "Lunch", "day", 30, 0)
	equal(t, "of nothing", wordsOf(none[:2]), "Lunch: no views yet|From 1 January 2026 to 30 January 2026 (UTC): "+
		"0 views, 0 visitors, 0 clicks, 0 orders.")
	equal(t, "no order in French", amount("fr", 0, "order")+amount("de", 0, "order"), "0 commande0 Bestellungen")
}

var aBar = regexp.MustCompile(`M([\d.]+) 158v-([\d.]+)h([\d.]+)v([\d.]+)z`)

// FuzzPicture draws any counts under any name: the picture is XML with the bars inside it, and the name
// is a text.
func FuzzPicture(f *testing.F) {
	f.Add("Lunch", 30, int64(1), int64(2), int64(0))
	f.Add(`</title><script>alert(1)</script>`, 366, int64(0), int64(0), int64(0))
	f.Add("a\x00\x1b\ufffe\xff]]>&amp;\"'", 1, int64(math.MaxInt64), int64(1), int64(-5))
	f.Add("", 7, int64(math.MinInt64), int64(-1), int64(math.MaxInt64))
	f.Add("0", 30, int64(1), int64(23), int64(0))
	f.Fuzz(func(t *testing.T, name string, days int, a, b, c int64) {
		days = 1 + int(uint(days)%maxStatsDays)
		picture, texts := pictureOf(t, pageLanguages[days%len(pageLanguages)], name, "day", days, a, b, c)
		if title := plainSpaces(texts[0]); !strings.Contains(title, ": ") || strings.Contains(picture, "<script") {
			t.Errorf("title %q", title)
		}
		bars, drawn := aBar.FindAllStringSubmatch(picture, -1), 0
		for i := range days {
			if []int64{a, b, c}[i%3] > 0 {
				drawn++
			}
		}
		if len(bars) != drawn || strings.Count(picture, "z") < drawn {
			t.Errorf("%d bars, want %d:\n%s", len(bars), drawn, picture)
		}
		end := 0.0
		for _, bar := range bars {
			var x, up, width, down float64
			fmt.Sscan(strings.Join(bar[1:], " "), &x, &up, &width, &down)
			outside := x < pictureMargin || x < end-0.02 || x+width > pictureWidth-pictureMargin+0.02
			if outside || up != down || up < 1 || up > barsBottom-barsTop {
				t.Errorf("a bar %s after one that ends at %v", bar[0], end)
			}
			end = x + width
		}
	})
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
		view := `{"widget":"` + s.addWidget(other) + `","events":[{"type":"view"}]}`
		s.post("/widget/events", view, "Origin: https://other.example", "Peer: 203.0.113.4:1").is(204)
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
