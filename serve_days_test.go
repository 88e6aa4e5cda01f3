package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// seedDays gives accounts n things a day each, from so many days ago on until yesterday, at noon: leads, orders, of
// which one was not paid, activations, views of a widget and revenue.
func (s *service) seedDays(days int, n func(back int) int, accounts ...string) {
	s.t.Helper()
	widgets := map[string]string{}
	for _, account := range accounts {
		widgets[account] = s.addWidget(account)
	}
	for back := days; back > 0; back-- {
		noon := time.Now().UTC().AddDate(0, 0, -back).Truncate(24 * time.Hour).Add(12 * time.Hour)
		at, some, date := newStamp(noon), n(back), noon.Format(time.DateOnly)
		for _, account := range accounts {
			s.sql(manyRows(some)+`INSERT INTO events (id, at, type, account_id, actor)
				SELECT printf('evt_%026d', i), ?1, 'lead.created', ?2, 'site' FROM n
				UNION ALL SELECT printf('evt_%026d', i), ?1, 'device.activated', ?2, 'device' FROM n`, at, account)
			s.sql(manyRows(some)+`INSERT INTO orders (id, account_id, state, currency, lines, ordered_total, total, vat,
				return_url, page_key, expires_at, created_at, authorized_at)
				SELECT substr(?1, 1, 16) || substr(?2, -6) || printf('%08d', i), ?2, 'paid', 'CHF', '[]', 1, 1, '[]',
				'https://a.example', zeroblob(32), ?3, ?3, iif(i = 1, NULL, ?3) FROM n`,
				firstID("ord", noon), account, at)
			s.sql(`INSERT INTO widget_counts (widget_id, quarter, views) VALUES (?, ?, ?)`, widgets[account], at,
				10*some)
			s.sql(`INSERT INTO revenue_days (account_id, date, currency) VALUES (?, ?, 'CHF')`, account, date)
			s.sql(`WITH sums (test, what, gross) AS (VALUES (0, 'sale', ?3), (0, 'discount', 500), (0, 'refund', 300),
				(1, 'sale', 99900))
				INSERT INTO revenue_sums (account_id, date, currency, method, test, what, rate, group_name, gross, vat)
				SELECT ?1, ?2, 'CHF', 'card', test, what, 0, '', gross, 0 FROM sums`, account, date, 1000*some+300)
		}
	}
}

// drawnDays returns what the status command prints of days on a screen with these variables.
func (s *service) drawnDays(variables map[string]string, args ...string) string {
	s.t.Helper()
	e, out, _ := s.envAt(false, strings.NewReader(""))
	files := filesIn(s.dir)
	e.getenv = func(name string) string { return variables[name] + files[name] }
	s.check(e.dispatch(append([]string{"status"}, args...)))
	_, text, _ := strings.Cut(out.String(), "\n\n")
	text, _, _ = strings.Cut(text, "needs doing\n")
	return text
}

func TestDays_areDrawnAt45Columns(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		s.seedDays(30, func(back int) int { return 1 + (29-back)%7 }, s.account, s.addAccount("Bistro"))
		s.sql(`INSERT INTO daily_counts (day, name, n) VALUES ('1999-12-31', 'refused_429', 5)`)
		utf := map[string]string{"COLUMNS": "45", "LANG": "de_CH.UTF-8"}
		// Those of one account have nothing of others, and nothing of the service.
		ofOne := s.drawnDays(utf, "-days", "14", "-account", "Bistro")
		equal(t, "at 45 columns", ofOne, `            14 days          yest.   7-day
leads       ▃▄▅▆▇█▂▃▄▅▆▇█▂       1       4
orders      ▂▃▄▆▇█_▂▃▄▆▇█_       0       3
revenue CHF ▃▄▅▆▇█▂▃▄▅▆▇█▂      10      40
menu views  ▃▄▅▆▇█▂▃▄▅▆▇█▂      10      40
activations ▃▄▅▆▇█▂▃▄▅▆▇█▂       1       4

`)
		ascii := s.drawnDays(map[string]string{"LC_ALL": "C", "LANG": "de_CH.UTF-8"}, "-days", "14")
		contains(t, ascii, "leads       -=+*#@:-=+*#@:       2       8\n",
			"refused 429              @       5       5\n")
		// What does not fit is left out from the oldest day on.
		narrow := s.drawnDays(map[string]string{"COLUMNS": "40", "LANG": "C.UTF-8"}, "-days", "30")
		contains(t, narrow, "            12 days ")
		if widest(narrow) > 40 {
			t.Errorf("%d columns:\n%s", widest(narrow), narrow)
		}
		for _, args := range [][]string{{"-account", "Bistro"}, {"-days", "1"}, {"-days", "91"}, {"-days", "x"}} {
			_, err := s.command(append([]string{"status"}, args...)...)
			oneLine(t, err, "-days")
		}
	})
}

func TestDays_tellOfAFallOrRiseBeyondTwiceWhatIsUsualForThatWeekday(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour)                                // the business day of 31 December has ended
		usual := map[int]int{1: 50, 8: 21, 15: 20, 22: 30, 29: 2} // else 100, on other weekdays
		n := func(back int) int {
			if some, is := usual[back]; is {
				return some
			}
			return 100
		}
		s.seedDays(35, n, s.account)
		text := s.drawnDays(nil, "-days", "14")
		contains(t, text, "leads: 50 yesterday, usually 21 on a Friday\n",
			"menu views: 500 yesterday, usually 210 on a Friday\n")
		text = s.drawnDays(map[string]string{"COLUMNS": "45"}, "-days", "14")
		contains(t, text, "leads: 50 yesterday, usually 21 on a Friday\n",
			"menu views: 500 yesterday, usually 210 on a\nFriday\n")
		s.sql(`DELETE FROM events WHERE seq IN
			(SELECT seq FROM events WHERE type = 'lead.created' ORDER BY seq DESC LIMIT 9)`)
		lacks(t, s.drawnDays(nil, "-days", "14"), "leads:") // 41 is no more than twice 21
	})
}

// Days are business days of the main account, also where its clock is another one than ours.
func TestDays_endWhereTheMainAccountsBusinessDaysEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		// 13 hours before UTC
		s.must("account", "set", s.account, "-zone", "Pacific/Auckland", "-cut-off", "04:00")
		lead := func() {
			s.sql(`INSERT INTO events (id, at, type, account_id, actor) VALUES ('evt_1', ?, 'lead.created', ?, 'site')`,
				newStamp(time.Now()), s.account)
		}
		time.Sleep(2*time.Hour + 59*time.Minute) // 03:59 of 2 January there
		lead()
		time.Sleep(2 * time.Minute)
		lead()
		lead()
		time.Sleep(24 * time.Hour)
		var v struct {
			Days struct {
				Dates  []string
				Series []struct{ Days []int64 }
			}
		}
		s.check(json.Unmarshal([]byte(s.must("status", "-days", "2", "-json")), &v))
		equal(t, "days", fmt.Sprint(v.Days.Dates, v.Days.Series[0].Days), "[2000-01-01 2000-01-02] [1 2]")
	})
}

// Against callers who would have names of their own counted, or so many that the file grows.
func TestDays_countUnderNamesOfOurOwnOnly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		stop := s.beside(s.server.runChores)
		for i := range 100 {
			name := fmt.Sprint("refused_", i)
			s.do("GET", "/"+name, ``).is(404)
			s.do(strings.ToUpper(fmt.Sprint("M", i)), "/widget/leads", ``)
			s.post("/widget/leads", `{"type":"`+name+`"}`)
			s.do("GET", "/leads", ``, bearer(name)).is(401)
		}
		time.Sleep(3 * time.Minute)
		known := map[string]bool{fmt.Sprintf(countWithin, 20_000_000): true}
		for _, bound := range durationBounds {
			known[fmt.Sprintf(countWithin, bound.Microseconds())] = true
		}
		for _, series := range daySeriesOf(nil) {
			known[series.name] = true
		}
		failIf(t, len(known) > 60, "%d names", len(known))
		counts := s.dayCounts("2000-01-01")
		for name := range counts {
			failIf(t, !known[name], "%s is counted", name)
		}
		equal(t, "not found", counts["refused_404"], 100)
		equal(t, "without a token", counts["refused_401"], 100)

		s.post("/widget/leads", anyLead)
		stop()
		s.server.draining.Store(true)
		s.check(s.server.runFinalChores())
		again := s.dayCounts("2000-01-01")
		failIf(t, fmt.Sprint(again) == fmt.Sprint(counts), "what came last is not counted at the stop")
		s.check(s.server.runFinalChores())
		equal(t, "counted twice", s.dayCounts("2000-01-01"), again)
	})
}

// dayCounts returns the rows of a day.
func (s *service) dayCounts(day string) map[string]int64 {
	s.t.Helper()
	counts := map[string]int64{}
	read := func(scan func(...any) error) error {
		name, n := "", int64(0)
		err := scan(&name, &n)
		counts[name] = n
		return err
	}
	s.check(s.store.each(`SELECT name, n FROM daily_counts WHERE day = ?`, []any{day}, read))
	return counts
}

func TestDays_areWrittenOnceAMinuteAndKept400Days(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		defer s.beside(s.server.runChores)()
		time.Sleep(3 * time.Second)
		s.get("/nowhere").is(404)
		time.Sleep(50 * time.Second)
		equal(t, "rows within a minute", len(s.dayCounts("2000-01-01")), 0)
		time.Sleep(20 * time.Second)
		equal(t, "not found", s.dayCounts("2000-01-01")["refused_404"], 1)
		counts := s.dayCounts("2000-01-01")
		for range 100 {
			s.get("/widget/health").is(200)
			time.Sleep(6 * time.Second)
		}
		equal(t, "counts of who only watches", s.dayCounts("2000-01-01"), counts)
		s.sql(`INSERT INTO daily_counts (day, name, n) VALUES ('1998-11-27', 'verified', 1),
			('1998-11-26', 'verified', 1)`)
		s.get("/nowhere").is(404)
		time.Sleep(2 * time.Minute)
		equal(t, "not found", s.dayCounts("2000-01-01")["refused_404"], 2)
		equal(t, "400 days old", len(s.dayCounts("1998-11-27")), 1)
		equal(t, "older", len(s.dayCounts("1998-11-26")), 0)
	})
}

func TestDays_knowHowFastMostAnswersWereAndHowOldTheBackupIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		s.sql(`INSERT INTO daily_counts (day, name, n) VALUES ('1999-12-30', 'within_00001000', 990),
			('1999-12-30', 'within_00025000', 10), ('1999-12-31', 'within_00001000', 980),
			('1999-12-31', 'within_00500000', 9), ('1999-12-31', 'within_02000000', 11),
			('1999-12-31', 'file_bytes', 73400320)`)
		s.sql(`INSERT INTO proofs (what, due_since, mark, proved_at) VALUES ('backup', ?1, '', '1999-12-31T10:00:00Z'),
			('replica', ?1, '', '1999-12-31T11:00:00Z')`, newStamp(time.Now()))
		s.change(func(t *tx) error {
			t.addDayCounts("1999-12-31", nil)
			return nil
		})
		s.sql(`INSERT INTO events (id, at, type, account_id, actor) VALUES ('evt_1', '1999-12-28T22:00:00Z',
			'backup.written', ?, 'command')`, s.account)
		text := s.drawnDays(nil, "-days", "7")
		contains(t, text, "99% within      .@ 2000 ms 1001 ms\n", "file size        @   70 MB   70 MB\n",
			"backup age    .=*@    78 h    42 h\n",
			"proof age        @    26 h    26 h\n")
		lacks(t, text, "verifications")
	})
}

// page writes the page and returns it.
func (s *service) page(args ...string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, "status.html")
	equal(s.t, "output", s.must(append([]string{"status", "-html", path}, args...)...), path+": written\n")
	return string(fileBytes(s.t, path))
}

// Against a tenant whose texts would become a part of the page.
func TestDaysPage_holdsTextsOfTenantsAsTextsAndLoadsNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		const evil = `"><script>alert(1)</script><img src=//evil.example/x onerror=alert(1)>&{{.}}`
		bad := s.addAccount(evil)
		s.sql(`UPDATE accounts SET name = ? WHERE id = ?`, evil, s.account)
		s.sql(`INSERT INTO revenue_days (account_id, date, currency) VALUES (?, '1999-12-31', '<b>')`, bad)
		s.sql(`INSERT INTO revenue_sums (account_id, date, currency, method, test, what, rate, group_name, gross, vat)
			VALUES (?, '1999-12-31', '<b>', 'card', 0, 'sale', 0, '', 100, 0)`, bad)
		s.damaged = true
		s.seedDays(14, func(int) int { return 3 }, bad)
		for _, page := range []string{s.page(), s.page("-account", bad), s.page("-days", "90")} {
			contains(t, page, "&lt;script&gt;alert(1)&lt;/script&gt;", "&lt;b&gt;", "<h3>leads</h3>")
			for _, pattern := range []string{`(?i)<script`, `<img`, `<b>[^0-9-]`,
				`(?i)<\w[^>]*\s(src|srcset|on\w+|style)=`,
				`url\(`, `@import`, `<\w[^>]*href="[^d]`, `(?i)<(link|iframe|object|form|a)\b[^>]*http`} {
				if found := regexp.MustCompile(pattern).FindString(page); found != "" {
					t.Errorf("the page has %s", found)
				}
			}
			style := captures(`(?s)<style>(.*?)</style>`, page)
			contains(t, page, `style-src '`+hashSource(style[0])+`'`)
			equal(t, "styles", len(style), 1)
		}
	})
}

// Against a slip of the operator's hand: neither a page nor a backup takes the place of another file.
func TestDaysPage_isForItsGroupAndReplacesNothingButAPage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.page()
	hasMode(t, filepath.Join(s.dir, "status.html"), 0o640)
	contains(t, s.page(), "Nothing was counted yet.", "<h2>Needs doing</h2>\n<ul>\n<li>the service is not running")
	must(t, os.WriteFile(filepath.Join(s.dir, "empty"), nil, 0o600))
	s.must("status", "-html", filepath.Join(s.dir, "empty"))
	files := dirNames(t, s.dir)
	for name, want := range map[string]string{"widgetd.db": "own files", "widgetd.key": "own files",
		"widgetd.told": "own files", "widgetd.db-wal": "own files", "letter": "is no page", "dir": "is a directory",
		"link": "too many levels"} {
		path := filepath.Join(s.dir, name)
		switch name {
		case "letter":
			must(t, os.WriteFile(path, []byte("Dear Anna"), 0o600))
		case "dir":
			must(t, os.Mkdir(path, 0o700))
		case "link":
			must(t, os.Symlink("status.html", path))
		}
		_, err := s.command("status", "-html", path)
		oneLine(t, err, want)
		if _, err = s.command("backup", path); want == "own files" {
			oneLine(t, err, want)
		}
	}
	equal(t, "files", len(dirNames(t, s.dir)), len(files)+3)
	must(t, os.Chmod(s.dir, 0o777))
	_, err := s.command("status", "-html", filepath.Join(s.dir, "status.html"))
	oneLine(t, err, "others may write in")
	must(t, os.Chmod(s.dir, 0o700))
}

func TestDaysPage_fitsATelephoneInLightAndDark(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	page := ""
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(12 * time.Hour) // the business day of 31 December has ended
		s.sql(`UPDATE accounts SET name = 'Trattoria Altstadt GmbH, Solothurn'`)
		s.seedDays(35, func(back int) int { return 40 + 13*back%29 }, s.account)
		for day := range 20 {
			s.sql(`INSERT INTO daily_counts (day, name, n) SELECT date('2000-01-01', ?1), column1, column2 FROM (VALUES
				('verified', 98765), ('within_00025000', 12345), ('refused_429', 3), ('file_bytes', 73400320))`,
				fmt.Sprint(-day, " days"))
		}
		page = s.page()
	})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(page))
	}))
	t.Cleanup(web.Close)
	b := startBrowser(t)
	b.fits("days", web.URL, "en")
	faults := b.await(`const done = arguments[0]; 
		done(performance.getEntriesByType("resource").map(r => r.name).join() +
			[...document.querySelectorAll("svg")].filter(s => !s.getAttribute("aria-labelledby").split(" ").every(
			id => document.querySelectorAll("#" + id).length == 1)).length)`)
	equal(t, "what was loaded, and pictures without a title", fmt.Sprint(faults), "0")
}

// The unit that writes the page gets over what a killed one has left.
func TestUnit_writesThePage(t *testing.T) {
	t.Parallel()
	const unit = "deploy/widgetd-page.service"
	o := newOperator(t)
	equal(t, "mode", fmt.Sprint(unitLines(t, unit, "StateDirectory"), unitLines(t, unit, "StateDirectoryMode")),
		"[widgetd-page] [0750]")
	must(t, os.Mkdir(o.dir+"-page", 0o750))
	writeFile(t, o.dir+"-page/status.html.new", "broken off")
	for range 2 {
		lines := append(unitLines(t, unit, "ExecStartPre"), unitLines(t, unit, "ExecStart")...)
		asOnAServer(t, o, strings.Join(lines, "\n"), nil)
		contains(t, string(fileBytes(t, o.dir+"-page/status.html")), "<li>the service is not running")
		equal(t, "files", dirNames(t, o.dir+"-page"), []string{"status.html"})
	}
}
