package main

import (
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What the demo says is held here against the calendar of this file: a business day ends at 04:00 by the clocks of its
// zone, which none of them skips or shows twice, and is final two hours later.

// A movedDemo is a demo whose clock is moved. Nobody reaches it, and its workers work when they are told to.
type movedDemo struct {
	*demo
	t     *testing.T
	zone  *time.Location       // of its main account; that of the restaurant is Europe/Zurich
	files string               // directory
	ends  map[string]time.Time // of licences with a day of grace, by id
}

// moveDemo has a test move the clock of a demo, whose files are made at start unless they are those of demoDawn.
func moveDemo(t *testing.T, start time.Time, zone string, test func(*movedDemo)) {
	t.Helper()
	if start.Equal(demoDawn) {
		_, err := demoFiles() // made outside the bubble, since others have them, too
		must(t, err)
	}
	synctest.Test(t, func(t *testing.T) {
		d := &movedDemo{t: t, files: t.TempDir(), ends: map[string]time.Time{}}
		if start.Equal(demoDawn) {
			must(t, copyDemo(d.files))
		}
		var err error
		d.zone, err = loadZone(zone)
		must(t, err)
		moved := time.Until(start)
		d.open(func() time.Time { return time.Now().Add(moved) })
		t.Cleanup(func() { d.close() })
		must(t, d.server.store.update(t.Context(), func(x *tx) error {
			main, err := x.mainAccount()
			must(t, err)
			return changeSettings(x, nouns(), main, func(s *accountSettings) { s.Zone = zone }, actorCommand)
		}))
		test(d)
	})
}

// open begins a run over the files.
func (d *movedDemo) open(clock func() time.Time) {
	d.t.Helper()
	run, e := placedDemo(d.t.Context(), d.files, clock)
	quiet := slog.New(slog.DiscardHandler)
	must(d.t, run.makeFiles(e, quiet))
	must(d.t, run.open(e, quiet))
	d.demo = run
}

// close ends the run.
func (d *movedDemo) close() {
	d.t.Helper()
	d.server.outbound.close()
	must(d.t, d.server.store.close())
}

// moveTo moves the clock of the bubble forward, and has done what the workers and the sweeps do until nothing is due
// any more.
func (d *movedDemo) moveTo(at time.Time) {
	d.t.Helper()
	time.Sleep(at.Sub(d.clock()))
	ctx := d.t.Context()
	must(d.t, d.payOut(ctx))
	w := newBooksWorker(booksOf(d.server))
	w.enqueue(ctx)
	for rounds := 0; ; rounds++ {
		due, err := d.server.store.dueExports(d.examples["books"], newStamp(d.clock()), 1)
		must(d.t, err)
		if len(due) == 0 {
			break
		}
		failIf(d.t, rounds == 20, "%v: something is always due", at)
		must(d.t, w.export(ctx, d.examples["books"]))
	}
	failIf(d.t, d.server.sweep(ctx, d.clock().Add(time.Hour)), "%v: the sweep ended before it was done", at)
}

// shows returns a page of one of the demo's handlers.
func (d *movedDemo) shows(of http.Handler, path string) string {
	d.t.Helper()
	w := httptest.NewRecorder()
	of.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	body, err := io.ReadAll(w.Result().Body)
	must(d.t, err)
	equal(d.t, path, w.Code, http.StatusOK)
	return html.UnescapeString(string(body))
}

// endOfDay returns when a business day ends in a zone.
func endOfDay(date businessDate, zone *time.Location) time.Time {
	day := midnight(date)
	return time.Date(day.Year(), day.Month(), day.Day()+1, 4, 0, 0, 0, zone)
}

// lastEnded returns the last business day that has ended at a time.
func lastEnded(at time.Time, zone *time.Location) businessDate {
	date := at.In(zone).Format(time.DateOnly)
	for endOfDay(date, zone).After(at) {
		date = midnight(date).AddDate(0, 0, -1).Format(time.DateOnly)
	}
	return date
}

// count returns the number that a query of the demo's file gives.
func (d *movedDemo) count(query string, args ...any) int64 {
	d.t.Helper()
	n, err := oneValue[int64](d.server.store.queries, query, args...)
	must(d.t, err)
	return n
}

// judge holds all that the demo says against the calendar.
func (d *movedDemo) judge() {
	d.t.Helper()
	d.judgeBooks()
	d.judgeRevenue()
	d.judgeDays()
	d.judgeLicences()
	d.judgeRetention()
	d.happen()
}

// happen has something sold at each counter, and a guest leave an address.
func (d *movedDemo) happen() {
	d.t.Helper()
	for _, c := range demoData().Counters {
		_, err := d.sell(d.t.Context(), map[string]any{"currency": c.Currency, "return_url": d.page + "/thanks",
			"lines": []any{c.Food[0].wanted(1)}}, methodCard)
		must(d.t, err)
	}
	must(d.t, d.make(d.t.Context(), &demoCall{Call: "POST /widget/leads",
		Body: []byte(`{"type":"newsletter","email":"«each»@example.com"}`)}, fmt.Sprint(d.clock().Unix())))
}

// judgeBooks looks at the page of the books: they have the days that are final and the payouts that have arrived, no
// other ones, and what they say is on the accounts is.
func (d *movedDemo) judgeBooks() {
	d.t.Helper()
	now, zone := d.clock(), zurich(d.t)
	page := d.shows(d.ledger.handler(), "/")
	clearing := clearsAtDemoBooks(d.t, page)
	final := lastEnded(now.Add(-2*time.Hour), zone)
	want, err := d.server.store.texts(`SELECT date FROM revenue_days WHERE currency = 'SEK' AND date <= ?
		ORDER BY date`, final)
	must(d.t, err)
	got := captures(`(?m)^W \d+, (\S+): Revenue \S+ SEK`, page)
	slices.Sort(got)
	equal(d.t, fmt.Sprint("days in the books at ", now), got, want)
	want, err = d.server.store.texts(`SELECT arrival_date FROM payouts WHERE currency = 'SEK' AND arrival_date <= ?
		ORDER BY arrival_date`, dateAfter(lastEnded(now, zone)))
	must(d.t, err)
	got = captures(`(?m)^W \d+, (\S+): Payout \S+ SEK`, page)
	slices.Sort(got)
	equal(d.t, fmt.Sprint("payouts in the books at ", now), got, want)

	atProvider := d.count(movedByCard+`SELECT coalesce(sum(m.amount), 0)
		FROM moved m JOIN payments y ON y.id = m.payment_id
		WHERE y.currency = 'SEK' AND m.at < ? AND NOT EXISTS (
			SELECT 1 FROM payout_items i JOIN books_exports x ON x.payout_id = i.payout_id
			WHERE i.payment_id = m.payment_id AND i.id = m.id AND x.connection_id = ? AND x.part = 'payout'
			AND x.state = 'posted' AND x.reverses IS NULL)`, newStamp(endOfDay(final, zone)), d.examples["books"])
	equal(d.t, fmt.Sprint("what the provider has at ", now), clearing, formatSigned(atProvider))
}

// judgeRevenue looks at the page of revenue, which shows yesterday.
func (d *movedDemo) judgeRevenue() {
	d.t.Helper()
	now, zone := d.clock(), zurich(d.t)
	yesterday := lastEnded(now, zone)
	state, end := dayClosed, endOfDay(yesterday, zone)
	if now.Before(end.Add(2 * time.Hour)) {
		state = dayOpen
	}
	began := newStamp(endOfDay(dateBefore(yesterday), zone))
	contains(d.t, d.shows(d.pageHandler(), "/revenue"),
		`<h2 id="day">`+midnight(yesterday).Format("Monday, 2 January 2006")+`</h2>`,
		fmt.Sprintf("<summary>In CHF: %s</summary>", groupedAmount(d.revenueOf(yesterday))),
		fmt.Sprintf("From %s to %s, %s. This is not", began, newStamp(end), state))
}

// revenueOf returns what orders in francs have brought on a business day.
func (d *movedDemo) revenueOf(date businessDate) int64 {
	d.t.Helper()
	zone := zurich(d.t)
	return d.count(`SELECT coalesce(sum(n), 0) FROM (SELECT currency, paid_at AS at, total AS n FROM orders
		UNION ALL SELECT o.currency, r.created_at, -r.amount FROM refunds r JOIN orders o ON o.id = r.order_id
			WHERE r.state = 'succeeded'
		UNION ALL SELECT y.currency, x.opened_at, -x.taken FROM disputes x JOIN payments y ON y.id = x.payment_id)
		WHERE currency = 'CHF' AND at >= ? AND at < ?`, newStamp(endOfDay(dateBefore(date), zone)),
		newStamp(endOfDay(date, zone)))
}

// judgeDays looks at what the status command says of the last days, which are those of the main account.
func (d *movedDemo) judgeDays() {
	d.t.Helper()
	now := d.clock()
	const shown = 14
	report, err := readDays(d.server.store.queries, d.account, shown, now)
	must(d.t, err)
	date, leads := lastEnded(now, d.zone), []int64{}
	var dates []businessDate
	for range shown {
		dates = append(dates, date)
		leads = append(leads, d.count(`SELECT count(*) FROM leads WHERE created_at >= ? AND created_at < ?`,
			newStamp(endOfDay(dateBefore(date), d.zone)), newStamp(endOfDay(date, d.zone))))
		date = dateBefore(date)
	}
	slices.Reverse(dates)
	slices.Reverse(leads)
	equal(d.t, fmt.Sprint("dates at ", now), report.Dates, dates)
	for _, s := range report.Series {
		if s.Name != "leads" {
			continue
		}
		var got []int64
		for _, n := range s.Days {
			got = append(got, *n)
		}
		equal(d.t, fmt.Sprint("leads at ", now), got, leads)
		leads = nil
	}
	failIf(d.t, leads != nil, "no series of leads at %v", now)
}

// judgeLicences looks at licences that are made at each moment and end half an hour later, with a day of grace.
func (d *movedDemo) judgeLicences() {
	d.t.Helper()
	now := d.clock()
	for id, end := range d.ends {
		var l struct{ Status string }
		must(d.t, d.ask(d.t.Context(), d.token, "GET", "/licenses/"+id, nil, &l))
		want := statusActive
		if !now.Before(end.Add(24 * time.Hour)) {
			want = statusExpired
		} else if !now.Before(end) {
			want = statusGrace
		}
		equal(d.t, fmt.Sprintf("a licence that ends at %v, at %v", end, now), l.Status, want)
	}
	end := newStamp(now.Add(30 * time.Minute))
	var made struct{ ID string }
	must(d.t, d.ask(d.t.Context(), d.token, "POST", "/licenses", map[string]any{"product": "hours", "grace_days": 1,
		"expires_at": end.String()}, &made))
	d.ends[made.ID] = end.Time
}

// judgeRetention looks at which of two events and of two tokens a sweep removes, an hour before and after the end of
// their retention: 400 days, and 90 days from the end of a token.
func (d *movedDemo) judgeRetention() {
	d.t.Helper()
	now := d.clock()
	const event = `SELECT count(*) FROM events WHERE type = 'account.closed' AND at = ?`
	const token = `SELECT count(*) FROM tokens WHERE expires_at = ?`
	kept := map[string]time.Time{event: now.AddDate(0, 0, -400), token: now.AddDate(0, 0, -90)}
	must(d.t, d.server.store.update(d.t.Context(), func(x *tx) error {
		for _, off := range []time.Duration{-time.Hour, time.Hour} {
			x.exec(`INSERT INTO events (id, at, type, account_id, actor) VALUES (?, ?, 'account.closed', ?, 'command')`,
				x.newID("evt"), newStamp(kept[event].Add(off)), d.account)
			x.exec(`INSERT INTO tokens (id, account_id, client_id, scope, all_accounts, kid, created_at, expires_at)
				SELECT ?, account_id, client_id, scope, all_accounts, kid, ?2, ?2 FROM tokens LIMIT 1`, x.newID("tok"),
				newStamp(kept[token].Add(off)))
		}
		return nil
	}))
	for range 2 { // an event that follows newer ones is looked for by a part of its own
		failIf(d.t, d.server.sweep(d.t.Context(), now.Add(time.Hour)), "%v: the sweep ended before it was done", now)
	}
	for query, at := range kept {
		equal(d.t, fmt.Sprint("removed at ", now, " by ", query), d.count(query, newStamp(at.Add(-time.Hour))), 0)
		equal(d.t, fmt.Sprint("kept at ", now, " by ", query), d.count(query, newStamp(at.Add(time.Hour))), 1)
	}
	must(d.t, d.server.store.update(d.t.Context(), func(x *tx) error {
		x.exec(`DELETE FROM events WHERE type = 'account.closed'`)
		return nil
	}))
}

// zurich is the zone of the demo's restaurant.
func zurich(t testing.TB) *time.Location {
	t.Helper()
	zone, err := loadZone("Europe/Zurich")
	must(t, err)
	return zone
}

// TestDemoHours_whatIsSaidIsTrueAtEachOfThem moves the clock of a demo from the grace of a day to its end, to midnight,
// to the moment at which summer time ends, when the demo is started once more, and to the next grace. With -long it
// goes through each hour of a day and a half, on days that are told apart by calendars.
func TestDemoHours_whatIsSaidIsTrueAtEachOfThem(t *testing.T) {
	t.Parallel()
	moments := []time.Duration{0, 90 * time.Minute, 19*time.Hour + 30*time.Minute, 22*time.Hour + 30*time.Minute,
		25 * time.Hour}
	walk := func(start time.Time, zone string, again int, moments []time.Duration) {
		t.Run(start.Format("2006-01-02 15:04 ")+strings.ReplaceAll(zone, "/", "-"), func(t *testing.T) {
			t.Parallel()
			moveDemo(t, start, zone, func(d *movedDemo) {
				for i, after := range moments {
					d.moveTo(start.Add(after))
					if i%again == again-1 {
						d.close()
						d.open(d.clock)
						d.moveTo(d.clock())
					}
					d.judge()
				}
			})
		})
	}
	walk(demoDawn, "Europe/Zurich", 4, moments)
	if size(0, 1) == 0 {
		return
	}
	moments = nil
	for hour := range 37 {
		moments = append(moments, time.Duration(hour)*time.Hour)
	}
	for _, c := range []struct{ noonBefore, zone string }{
		{"2026-10-24", "Europe/Zurich"}, {"2027-03-27", "Europe/Zurich"}, // an hour more, an hour less
		{"2026-10-31", "America/New_York"}, {"2027-03-13", "America/New_York"},
		{"2027-04-03", "Australia/Lord_Howe"},                  // half an hour more
		{"2026-12-30", "Europe/Zurich"}, {"2026-12-31", "UTC"}, // the end of a year
		{"2027-02-27", "Pacific/Auckland"}, {"2026-06-29", "UTC"}, // of months
		{"2028-02-28", "Europe/Zurich"}, {"2028-02-29", "Asia/Kolkata"},
	} {
		noon := midnight(c.noonBefore).Add(12 * time.Hour)
		walk(noon, c.zone, 7, moments)
	}
}

// clearsAtDemoBooks returns the balance of the clearing account at the end of the page of a demo's books, whose
// balances it holds against the lines.
func clearsAtDemoBooks(t testing.TB, page string) string {
	t.Helper()
	const amount = `(-?[\d.]+)`
	ends := regexp.MustCompile(`Clearing account 1580, .*: ` + amount + `\n.* 1589, .*: ` + amount)
	found := ends.FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the books end without balances\n%s", page)
	}
	for account, want := range map[string]string{"1580": found[1], "1589": found[2]} {
		sum := int64(0)
		line := regexp.MustCompile(`(?m)^ +` + account + ` +([\d.]+) +([\d.]+)`)
		for _, sides := range line.FindAllStringSubmatch(page, -1) {
			for i, sign := range []int64{1, -1} {
				side, valid := parseAmount(sides[1+i])
				failIf(t, !valid, "the page has an amount of %q", sides[1+i])
				sum += sign * side
			}
		}
		equal(t, "the lines of "+account, formatSigned(sum), want)
	}
	return found[1]
}
