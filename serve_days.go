package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// How the last days went, on the screen and as a page. Days are business days of the main account.

// A dayCounter writes what the service counts to daily_counts: each minute, and when the service stops.
type dayCounter struct {
	*server
	at      time.Time        // when it wrote last, by the monotonic clock
	written map[string]int64 // of what there was since the start
}

func daysModule(s *server) module {
	c := &dayCounter{s, s.monotonic(), map[string]int64{}}
	return module{chores: []chore{{fault: "what days have brought can't be counted", timeDriven: true, atEnd: true,
		run: c.run}}}
}

func (c *dayCounter) run(ctx context.Context) error {
	stops, now := c.draining.Load(), c.monotonic()
	if c.store.fenced() || c.clockDoubted() || closerThan(time.Minute, c.at, now) && !stops {
		return nil
	}
	c.at = now
	totals, added := c.metrics.dayCounts(), map[string]int64{}
	for name, total := range c.moduleCounts {
		totals[name] = total()
	}
	for name, total := range totals {
		if n := total - c.written[name]; n > 0 {
			added[name] = n
		}
	}
	if len(added) == 0 {
		return nil
	}
	added[countFileBytes] = c.store.databaseSize()
	err := c.store.update(ctx, func(t *tx) error {
		t.dropsNothing()
		_, calendar, err := mainCalendar(t.queries)
		if err == nil {
			t.addDayCounts(calendar.dateOf(t.exact), added)
		}
		return err
	})
	switch {
	case err == nil:
		c.written = totals
	case stops: // which a minute that is lost does not hold up
		return nil
	}
	return err
}

// mainCalendar returns the main account and its calendar.
func mainCalendar(q *queries) (id string, c *businessCalendar, err error) {
	if id, err = q.mainAccount(); err == nil {
		c, err = q.businessCalendar(id)
	}
	return id, c, err
}

// A dayReport is what the last days have brought.
type dayReport struct {
	Account string         `json:"account"` // the name of the account, or of the main one for all
	All     bool           `json:"all"`
	Dates   []businessDate `json:"dates"` // the oldest first; the last one is yesterday
	Series  []shownSeries  `json:"series"`
	Unusual []string       `json:"unusual"` // which numbers have fallen or risen
}

// A shownSeries is a daySeries with its numbers. One that is not known is null.
type shownSeries struct {
	Name      string   `json:"name"`
	Label     string   `json:"label"`
	Days      []*int64 `json:"days"` // of each date
	Yesterday *int64   `json:"yesterday"`
	Week      *int64   `json:"seven_day"` // the average of the last seven
	Usual     *int64   `json:"usual"`     // the middle one of the same weekday in the weeks before
	unit      dayUnit
}

const (
	mostDays    = 90
	defaultDays = 14
	usualWeeks  = 4
)

// readDays returns what the last days have brought to an account ("": all).
func readDays(q *queries, accountID string, days int, now time.Time) (*dayReport, error) {
	main, calendar, err := mainCalendar(q)
	if err != nil {
		return nil, err
	}
	account, err := q.account(cmp.Or(accountID, main))
	if err != nil {
		return nil, err
	}
	r := &dayReport{account.Name, accountID == "", nil, []shownSeries{}, []string{}}
	spans, yesterday := map[businessDate][]any{}, midnight(calendar.dateOf(now)).AddDate(0, 0, -1)
	for back := max(days-1, 7*usualWeeks); back >= 0; back-- {
		date := yesterday.AddDate(0, 0, -back).Format(time.DateOnly)
		if back < days {
			r.Dates = append(r.Dates, date)
		}
		if back < days || back%7 == 0 {
			from, to := newStamp(calendar.startOf(date)), newStamp(calendar.endOf(date))
			if spans[date], err = q.daySpan(accountID, date, from, to); err != nil {
				return nil, err
			}
		}
	}
	currencies, err := q.dayCurrencies(accountID, r.Dates[0], r.Dates[days-1])
	if err != nil {
		return nil, err
	}
	for _, s := range daySeriesOf(currencies) {
		if s.ofAll && accountID != "" {
			continue
		}
		numbers := map[businessDate]*int64{}
		for date, span := range spans {
			numbers[date], err = orNil(oneValue[*int64](q, s.query, append(span, s.currency)...))
			if err != nil {
				return nil, err
			}
		}
		r.add(&s, numbers, yesterday)
	}
	return r, nil
}

// add adds a series, unless all its numbers that are shown are zero or not known.
func (r *dayReport) add(s *daySeries, numbers map[businessDate]*int64, yesterday time.Time) {
	shown := shownSeries{Name: s.name, Label: s.label, unit: s.unit}
	sum, known, some := int64(0), int64(0), false
	for i, date := range r.Dates {
		n := numbers[date]
		shown.Days, shown.Yesterday = append(shown.Days, n), n
		if some = some || n != nil && *n != 0; n != nil && i >= len(r.Dates)-7 {
			sum, known = sum+*n, known+1
		}
	}
	if !some {
		return
	}
	if average := sum / max(1, known); known > 0 {
		shown.Week = &average
	}
	var before []int64
	for week := range usualWeeks {
		if n := numbers[yesterday.AddDate(0, 0, -7*(week+1)).Format(time.DateOnly)]; n != nil {
			before = append(before, *n)
		}
	}
	if slices.Sort(before); len(before) > 1 {
		shown.Usual = &before[len(before)/2]
	}
	if n, usual := shown.Yesterday, shown.Usual; n != nil && usual != nil && (*usual > 0 || s.ofAll) &&
		s.unit.least > 0 && max(*n, *usual) >= s.unit.least && (*n > 2**usual || 2**n < *usual) {
		r.Unusual = append(r.Unusual, fmt.Sprintf("%s: %s yesterday, usually %s on a %s", s.label, shown.Text(n),
			shown.Text(usual), yesterday.Weekday()))
	}
	r.Series = append(r.Series, shown)
}

// Text writes a number of the series in at most 7 characters, also for the page.
func (s *shownSeries) Text(n *int64) string {
	if n == nil {
		return noValue
	}
	shown, thousands, limit := (*n+s.unit.divisor/2)/s.unit.divisor, "", int64(1_000_000)
	if s.unit.suffix != "" {
		limit = 10_000
	}
	for _, more := range []string{"k", "M", "G"} {
		if max(shown, -shown) >= limit {
			shown, thousands = shown/1000, more
		}
	}
	return strconv.FormatInt(shown, 10) + thousands + s.unit.suffix
}

// The heights of bars of a character each.
const (
	utfBars   = "_▁▂▃▄▅▆▇█"
	asciiBars = "_.:-=+*#@"
)

// bars returns the last numbers as bars: the first height is that of zero, the last one that of the highest number.
func (s *shownSeries) bars(days int, heights []rune) (text string) {
	most := s.most(days)
	for _, n := range s.Days[len(s.Days)-days:] {
		if n == nil {
			text += " "
			continue
		}
		text += string(heights[(max(0, *n)*int64(len(heights)-1)+most-1)/most])
	}
	return text
}

// most returns the highest of the last numbers, at least 1.
func (s *shownSeries) most(days int) int64 {
	most := int64(1)
	for _, n := range s.Days[len(s.Days)-days:] {
		most = max(most, *cmp.Or(n, &most))
	}
	return most
}

// write writes the report for a screen, whose width (0: no limit) leaves out the oldest days.
func (r *dayReport) write(width int, heights string) string {
	const number, least = 8, 7 // columns of a number, and of the bars with their title
	label, days := 0, len(r.Dates)
	for _, s := range r.Series {
		label = max(label, utf8.RuneCountInString(s.Label)+1)
	}
	if width > 0 {
		days = min(days, max(least, width-label-2*number))
	}
	row := fmt.Sprintf("%%-%ds%%-%ds%%%ds%%%ds\n", label, max(days, least), number, number)
	text := fmt.Sprintf(row, "", countOf(days, "day"), "yest.", "7-day")
	for _, s := range r.Series {
		text += fmt.Sprintf(row, s.Label, s.bars(days, []rune(heights)), s.Text(s.Yesterday), s.Text(s.Week))
	}
	return text + fitted(strings.Join(append(r.Unusual, ""), "\n"), width)
}

// barsFor returns with which characters bars are drawn for whoever runs a command.
func (e *env) barsFor() string {
	locale := strings.ToUpper(cmp.Or(e.getenv("LC_ALL"), e.getenv("LC_CTYPE"), e.getenv("LANG")))
	if strings.Contains(strings.ReplaceAll(locale, "-", ""), "UTF8") {
		return utfBars
	}
	return asciiBars
}

// shownDays returns how many days the status command shows. Errors: usageError.
func (e *env) shownDays() (int, error) {
	switch {
	case e.str("days") != "":
		return e.number("days", 2, mostDays)
	case e.str("html") != "":
		return defaultDays, nil
	case e.str("account") != "":
		return 0, usageError("-account needs -days or -html")
	}
	return 0, nil
}

// daysStatus is what the status command says of the last days.
func daysStatus(v *statusView, to *statusReport) (err error) {
	to.days, err = readDays(v.queries, v.account, v.days, v.now)
	to.set("days", to.days)
	return err
}

// pageMark is how a page begins. A file that does not is never replaced by one.
const pageMark = "<!doctype html><!-- written by 'widgetd status -html' -->\n"

// checkReplaceable returns an error unless a path leads to nothing, to such a page, or to an empty file.
func checkReplaceable(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return except(err, fs.ErrNotExist)
	}
	defer f.Close()
	start, err := io.ReadAll(io.LimitReader(f, int64(len(pageMark))))
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr); err != nil {
		return err
	}
	if !info.Mode().IsRegular() || len(start) > 0 && string(start) != pageMark {
		return fmt.Errorf("%s is no page of 'widgetd status': name another file", path)
	}
	return nil
}

// writePage writes a report as a page that loads nothing, to a file that its group may read.
func (e *env) writePage(r *statusReport) error {
	if r.days == nil {
		faults, _ := r.unreadable()
		return errors.New(cmp.Or(strings.Join(faults, "; "), "a standby has no days to show"))
	}
	path, err := e.target(e.str(optHTML.name))
	if err != nil {
		return err
	}
	page, err := r.page(e.now())
	if err == nil {
		err = checkReplaceable(path)
	}
	if err == nil {
		err = writeAtomically(path, true, func(draft *os.File) error {
			_, err := draft.Write(page)
			return err
		})
	}
	if err == nil {
		err = os.Chmod(path, 0o640)
	}
	if err != nil {
		return e.explainPermission(err, nameAnother)
	}
	return e.print(map[string]string{"file": path}, path+": written")
}

// page returns a report as a page.
func (r *statusReport) page(now time.Time) ([]byte, error) {
	style, days := pictureStyle+embedded("web/days.css"), r.days
	var pictures []template.HTML
	for i := range days.Series {
		s := &days.Series[i]
		var values []int64
		var words []string
		for _, n := range s.Days {
			values, words = append(values, *cmp.Or(n, new(int64))), append(words, s.Text(n))
		}
		most := s.most(len(s.Days))
		picture := &barPicture{lang: "en", title: s.Label, words: strings.Join(words, ", "), values: values,
			most: "most " + s.Text(&most), none: "none", from: days.Dates[0], to: days.Dates[len(values)-1]}
		pictures = append(pictures, template.HTML(picture.svg(strconv.Itoa(i), "")))
	}
	parsed, err := template.New("days").Parse(embedded("web/days.html"))
	if err != nil {
		return nil, err
	}
	page := bytes.NewBufferString(pageMark)
	err = parsed.Execute(page, map[string]any{"Days": days, "Needs": r.needs(), "Pictures": pictures,
		"Until": days.Dates[len(days.Dates)-1], "Written": newStamp(now), "Version": buildName(),
		"Style": template.CSS(style), "Hash": hashSource(style)})
	return page.Bytes(), err
}
