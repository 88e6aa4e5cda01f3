package main

import (
	"fmt"
	"strings"
	"time"
)

// What days have brought: in daily_counts what the service counts, and what other tables hold.

// The names in daily_counts are a closed list, of which no caller chooses any: those of daySeriesOf, with countWithin
// how many answers took at most so many microseconds, and one with trappedOf for each account.
const (
	countVerified    = "verified"
	countFailedSends = "failed_sends"
	countRefused     = "refused_%d"
	countWithin      = "within_%08d"
	countFileBytes   = "file_bytes" // set, not added
	trappedOf        = "trapped_"   // with the id of an account

	keepCounts = 400 // days
)

// refusedStatuses are the statuses by which refusals are counted; 0: all others.
var refusedStatuses = []int{400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503, 0}

// addDayCounts adds to what a day has of some names, and removes what is older than keepCounts.
func (t *tx) addDayCounts(day string, counts map[string]int64) {
	for name, n := range counts {
		t.exec(`INSERT INTO daily_counts (day, name, n) VALUES (?1, ?2, ?3)
			ON CONFLICT DO UPDATE SET n = iif(name = ?4, 0, n) + excluded.n`, day, name, n, countFileBytes)
	}
	t.exec(`INSERT INTO daily_counts
		SELECT ?, 'proof_hours', max(0, (strftime('%s', ?) - strftime('%s', min(proved_at))) / 3600)
		FROM proofs WHERE true HAVING min(proved_at) IS NOT NULL ON CONFLICT DO UPDATE SET n = excluded.n`, day, t.now)
	t.exec(`DELETE FROM daily_counts WHERE day < date(?, ?)`, day, fmt.Sprint(-keepCounts, " days"))
}

// countTrapped counts a lead of an account that the trap for bots has caught, on the UTC day.
func (t *tx) countTrapped(accountID string) {
	t.exec(`INSERT INTO daily_counts (day, name, n) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1`,
		t.now.Format(time.DateOnly), trappedOf+accountID)
}

// trapped returns how many leads of an owner the trap for bots has caught on the UTC days from one date to another. It
// looks for a row of each of them.
func (q *queries) trapped(o owner, from, to time.Time) (n int64, err error) {
	first := trappedOf + o.account
	last := first
	if o.every {
		last += "~"
	}
	var days []string
	for day := from; !day.After(to); day = day.AddDate(0, 0, 1) {
		days = append(days, day.Format(time.DateOnly))
	}
	return oneValue[int64](q, `SELECT coalesce(sum(n), 0) FROM json_each(?) d, daily_counts c
		WHERE c.day = d.value AND c.name BETWEEN ? AND ?`, string(encodeJSON(days)), first, last)
}

// A daySeries is one kind of number that each day has.
type daySeries struct {
	name, label string
	unit        dayUnit
	ofAll       bool // not known of one account

	// query selects the number of a day; none, or NULL: it is not known. ?1 is the account ("": all), ?2 and ?3 are
	// when the day begins and ends, ?4 and ?5 the ids that orders have from and until then, ?6 and ?7 the numbers of
	// events, ?8 is its date, and ?9 a currency.
	query    string
	currency string
}

// A dayUnit is how a number is written, and from which on a fall or rise of it is told of (0: never).
type dayUnit struct {
	divisor int64
	suffix  string
	least   int64
}

var (
	dayCount = dayUnit{1, "", 10}
	dayMoney = dayUnit{100, "", 100_00}
	daySpeed = dayUnit{1000, " ms", 100_000}
	daySize  = dayUnit{1 << 20, " MB", 0}
	dayHours = dayUnit{1, " h", 0}
)

const (
	eventsOfDay = `SELECT count(*) FROM events WHERE seq >= ?6 AND seq < ?7 AND (?1 = '' OR +account_id = ?1)
		AND type = `
	countOfDay = `SELECT sum(iif(name = '%s', n, 0)) FROM daily_counts WHERE day = ?8`
)

// daySeriesOf returns all series in the order in which they are shown, with revenue in these currencies.
func daySeriesOf(currencies []string) []daySeries {
	counted := func(name, label string) daySeries {
		return daySeries{name, label, dayCount, true, fmt.Sprintf(countOfDay, name), ""}
	}
	all := []daySeries{
		{name: "leads", label: "leads", unit: dayCount, query: eventsOfDay + `'lead.created'`},
		{name: "orders", label: "orders", unit: dayCount, query: `SELECT count(*) FROM orders WHERE id >= ?4 AND id < ?5
			AND (?1 = '' OR +account_id = ?1) AND coalesce(authorized_at, accepted_at, paid_at) IS NOT NULL`},
	}
	for _, currency := range currencies {
		all = append(all, daySeries{name: "revenue_" + currency, label: "revenue " + currency, unit: dayMoney,
			currency: currency, query: `SELECT coalesce(sum(CASE WHEN what IN ('sale', 'delivery', 'tip') THEN gross
			WHEN what <> 'discount' THEN -gross END), 0) FROM revenue_sums WHERE date = ?8 AND currency = ?9
			AND test = 0 AND account_id IN (SELECT id FROM accounts WHERE ?1 IN ('', id))`})
	}
	all = append(all, daySeries{name: "menu_views", label: "menu views", unit: dayCount, query: `SELECT
			coalesce(sum(views), 0) FROM widget_counts WHERE quarter >= ?2 AND quarter < ?3
			AND widget_id IN (SELECT id FROM widgets WHERE ?1 IN ('', account_id))`},
		daySeries{name: "activations", label: "activations", unit: dayCount, query: eventsOfDay + `'device.activated'`},
		counted(countVerified, "verifications"))
	for _, status := range refusedStatuses {
		label := strings.Replace(fmt.Sprintf("refused %d", status), " 0", " else", 1)
		all = append(all, counted(fmt.Sprintf(countRefused, status), label))
	}
	return append(all, counted(countFailedSends, "failed sends"),
		daySeries{name: "slowest_microseconds", label: "99% within", unit: daySpeed, ofAll: true, query: `
			SELECT min(bound) FROM (SELECT CAST(substr(name, 8) AS INTEGER) AS bound,
			sum(n) OVER (ORDER BY name) AS within, sum(n) OVER () AS every FROM daily_counts
			WHERE day = ?8 AND name GLOB 'within_*')
			WHERE within * 100 >= every * 99`},
		daySeries{name: countFileBytes, label: "file size", unit: daySize, ofAll: true,
			query: `SELECT n FROM daily_counts WHERE day = ?8 AND name = 'file_bytes'`},
		daySeries{name: "backup_age_hours", label: "backup age", unit: dayHours, ofAll: true, query: `SELECT
			(strftime('%s', ?3) - strftime('%s', at)) / 3600 FROM events WHERE type = 'backup.written' AND seq < ?7
			ORDER BY seq DESC LIMIT 1`},
		daySeries{name: "proof_hours", label: "proof age", unit: dayHours, ofAll: true,
			query: `SELECT n FROM daily_counts WHERE day = ?8 AND name = 'proof_hours'`})
}

// dayCurrencies returns the first currencies in which an account ("": any) has revenue from one date to another.
func (q *queries) dayCurrencies(accountID, from, to string) ([]string, error) {
	return q.texts(`SELECT DISTINCT currency FROM revenue_days WHERE date >= ?2 AND date <= ?3
		AND account_id IN (SELECT id FROM accounts WHERE ?1 IN ('', id)) ORDER BY currency LIMIT 6`,
		accountID, from, to)
}

// daySpan returns the arguments of a series' query for a day, but the currency.
func (q *queries) daySpan(accountID, date string, from, to stamp) ([]any, error) {
	first, err := q.firstSince(`events`, `at`, from)
	if err != nil {
		return nil, err
	}
	past, err := q.firstSince(`events`, `at`, to)
	return []any{accountID, from, to, firstID("ord", from.Time), firstID("ord", to.Time), first, past, date}, err
}
