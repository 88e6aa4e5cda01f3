package main

import (
	"errors"
	"fmt"
	"time"
)

// widgetTable describes the table widgets.
var widgetTable = newTable("widgets", "w", func(w *widget) []field {
	return []field{{"id", &w.ID}, {"account_id", &w.AccountID}, {"name", &w.Name},
		{"public_orders", &w.PublicOrders}, {"created_at", &w.CreatedAt}}
})

// widget returns a widget of an open account, or errNotFound.
func (q *queries) widget(id string) (*widget, error) {
	return widgetTable.one(q, `JOIN accounts a ON a.id = w.account_id WHERE w.id = ? AND a.closed_at IS NULL`, id)
}

// widgets returns the widgets of an owner, oldest first.
func (q *queries) widgets(o owner) ([]widget, error) {
	query, args := o.narrow(widgetTable.query+`WHERE 1`, `w.account_id`)
	return collectReadable(q, query+` ORDER BY w.id`, args, widgetTable.dest)
}

// widgetEvent returns an event about a widget.
func widgetEvent(w *widget, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: w.AccountID, SubjectID: w.ID, Actor: actor, Data: eventData(data...)}
}

// anyWidget returns a widget, also of a closed account, or errNotFound.
func (q *queries) anyWidget(id string) (*widget, error) {
	return widgetTable.one(q, `WHERE w.id = ?`, id)
}

// addWidget adds a widget, with its event, and returns its id, or errAccount.
func (t *tx) addWidget(accountID, name string, publicOrders bool, actor string) (string, error) {
	if err := t.openAccount(accountID); err != nil {
		return "", err
	}
	w := &widget{t.newID("wgt"), accountID, name, publicOrders, t.now}
	widgetTable.insert(t, w)
	t.addEvent(widgetEvent(w, eventWidgetCreated, actor, "public_orders", trueOrEmpty(publicOrders)))
	return w.ID, nil
}

// renameWidget gives a widget another name, with its event, or returns errNotFound. Giving
// it the name that it already has changes nothing.
func (t *tx) renameWidget(id, name, actor string) error {
	w, err := t.anyWidget(id)
	if err != nil || w.Name == name {
		return err
	}
	t.exec(`UPDATE widgets SET name = ? WHERE id = ?`, name, id)
	t.addEvent(widgetEvent(w, eventWidgetRenamed, actor))
	return nil
}

// countWidgetRows returns how many rows the counters of a widget have, or errNotFound if there is
// no such widget.
func (q *queries) countWidgetRows(id string) (rows int64, err error) {
	return oneValue[int64](q, `SELECT (SELECT count(*) FROM item_counts c WHERE c.widget_id = w.id) +
		(SELECT count(*) FROM page_counts c WHERE c.widget_id = w.id) +
		(SELECT count(*) FROM widget_counts c WHERE c.widget_id = w.id) FROM widgets w WHERE w.id = ?`, id)
}

// widgetRows are the tables of what widgets count, with the columns of their keys besides widget_id.
var widgetRows = []struct{ table, key string }{
	{"item_counts", "day, item"},
	{"page_counts", "day, page"},
	{"widget_counts", "quarter"},
}

// widgetRowsAtOnce is how many rows of each table one transaction of removeWidget removes.
const widgetRowsAtOnce = 5_000

// removeWidget removes up to widgetRowsAtOnce rows of each kind of a widget's counters, and when
// none is left the widget itself, with its event. It returns how many rows of counters it has removed, together with
// those that earlier calls have, and whether more are left, or errNotFound. See inParts.
func (t *tx) removeWidget(id, actor string, earlier int64) (removed int64, more bool, err error) {
	w, err := t.anyWidget(id)
	if err != nil {
		return 0, false, err
	}
	removed = earlier
	for _, rowsOf := range widgetRows {
		n := t.exec(`DELETE FROM `+rowsOf.table+` WHERE widget_id = ?1 AND (`+rowsOf.key+`) IN
			(SELECT `+rowsOf.key+` FROM `+rowsOf.table+` WHERE widget_id = ?1 LIMIT ?2)`, id, widgetRowsAtOnce)
		removed += n
		more = more || n == widgetRowsAtOnce
	}
	if more {
		return removed, true, nil
	}
	t.exec(`DELETE FROM widgets WHERE id = ?`, id)
	t.addEvent(widgetEvent(w, eventWidgetRemoved, actor, "rows", fmt.Sprint(removed)))
	return removed, false, nil
}

// A nameTable is a table with the counters of names by widget and UTC day.
type nameTable struct {
	add    string // adds to the row of a name, if there is one
	insert string // inserts the row, or adds to it
	names  string // counts the names of a day
}

var (
	itemTable = newNameTable("item_counts", "item", false)
	pageTable = newNameTable("page_counts", "page", true)
)

// newNameTable makes the statements for a table; views says whether it counts views.
func newNameTable(table, column string, views bool) *nameTable {
	n := &nameTable{}
	add, columns, values := `clicks = clicks + ?5, orders = orders + ?6`, `clicks, orders`, `?5, ?6`
	if views {
		add, columns, values = `views = views + ?4, `+add, `views, `+columns, `?4, `+values
	}
	n.add = `UPDATE ` + table + ` SET ` + add + ` WHERE widget_id = ?1 AND day = ?2 AND ` + column + ` = ?3`
	n.insert = `INSERT INTO ` + table + ` (widget_id, day, ` + column + `, ` + columns + `) VALUES (?1, ?2, ?3, ` +
		values + `) ON CONFLICT DO UPDATE SET ` + add
	n.names = `SELECT count(*) FROM ` + table + ` WHERE widget_id = ? AND day = ? AND ` + column + ` <> ?`
	return n
}

// A tally adds up what the jobs of a batch count for widgets (see total), so that each row is
// written once: under load most events are for a few widgets.
type tally struct {
	rows  map[tallyKey]*counts
	order []tallyKey // in which the rows were added
}

// A tallyKey identifies a row: the counters of a widget in a quarter-hour, or of a name of it on a UTC day.
type tallyKey struct {
	widget string
	begins stamp      // the quarter-hour, or the day
	table  *nameTable // nil: the widget itself
	name   string
}

func (y *tally) add(key tallyKey, c counts) {
	row := y.rows[key]
	if row == nil {
		if y.rows == nil {
			y.rows = map[tallyKey]*counts{}
		}
		row = &counts{}
		y.rows[key] = row
		y.order = append(y.order, key)
	}
	row.add(c)
}

// merge implements total.
func (y *tally) merge(other total) {
	more := other.(*tally)
	for _, key := range more.order {
		y.add(key, *more.rows[key])
	}
}

// addCounts adds to the counters of a widget in the quarter-hour of the transaction, and to those of
// its items and pages on the UTC day. They are written before the commit, see total.
func (t *tx) addCounts(widgetID string, c counts, items, pages []nameCount) {
	quarter, day := stamp{t.now.Truncate(quarterHour)}, stamp{t.now.Truncate(24 * time.Hour)}
	y := &tally{}
	y.add(tallyKey{widget: widgetID, begins: quarter}, c)
	for _, item := range items {
		y.add(tallyKey{widgetID, day, itemTable, item.Name}, item.counts)
	}
	for _, page := range pages {
		y.add(tallyKey{widgetID, day, pageTable, page.Name}, page.counts)
	}
	t.total = addTotals(t.total, y)
}

// write implements total. What was counted for a widget that was removed meanwhile is left out: it
// would break a foreign key, and with it the whole batch.
func (y *tally) write(t *tx) error {
	exists := map[string]bool{}
	for _, key := range y.order {
		if _, known := exists[key.widget]; !known {
			_, err := t.anyWidget(key.widget)
			if err != nil && !errors.Is(err, errNotFound) {
				return err
			}
			exists[key.widget] = err == nil
		}
		if !exists[key.widget] {
			continue
		}
		c := y.rows[key]
		if key.table == nil {
			t.exec(`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders)
				VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET views = views + excluded.views, visitors = visitors + excluded.visitors,
				clicks = clicks + excluded.clicks, orders = orders + excluded.orders`,
				key.widget, key.begins, c.Views, c.Visitors, c.Clicks, c.Orders)
			continue
		}
		if err := t.addNameCounts(key, *c); err != nil {
			return err
		}
	}
	return nil
}

// addNameCounts adds to the counters of a name on a UTC day: under the name itself if it has been
// counted on that day or the widget has counted fewer than maxNames others, else under otherName.
func (t *tx) addNameCounts(key tallyKey, c counts) error {
	day := key.begins.Format(time.DateOnly)
	row := []any{key.widget, day, key.name, c.Views, c.Clicks, c.Orders}
	if t.exec(key.table.add, row...) > 0 {
		return nil
	}
	var names int
	if err := t.one(key.table.names, []any{key.widget, day, otherName}, &names); err != nil {
		return err
	}
	if names >= maxNames {
		row[2] = otherName
	}
	t.exec(key.table.insert, row...)
	return nil
}

// A period is a part of a range whose counts belong to one point of a series.
type period struct {
	from, until stamp // from is included, until is not
	point       int   // its index in the series
}

// periodSums are the sums of what a widget w counted in a period p; NULL: nothing.
const periodSums = `SELECT sum(views) || ' ' || sum(visitors) || ' ' || sum(clicks) || ' ' || sum(orders)
	FROM widget_counts c WHERE c.widget_id = w.id AND c.quarter >= substr(p.value, 1, 20)
	AND c.quarter < substr(p.value, 21)`

// eachPeriod calls f for every period in which a widget of an owner counted something: the one with an id, or with ""
// each. Adding up in SQL takes a quarter of the time that reading every row does.
func (q *queries) eachPeriod(
	o owner, widgetID string, all []period, f func(widgetID string, p period, c counts),
) error {
	list := make([]string, 0, len(all))
	for _, p := range all {
		list = append(list, p.from.String()+p.until.String())
	}
	query, args := o.narrow(`SELECT w.id, p.key, (`+periodSums+`) FROM widgets w, json_each(?) p WHERE 1`,
		`w.account_id`, string(encodeJSON(list)))
	if widgetID != "" {
		query, args = query+` AND w.id = ?`, append(args, widgetID)
	}
	return q.each(query, args, func(scan func(...any) error) error {
		var id string
		var index int
		var sums *string
		if err := scan(&id, &index, &sums); err != nil || sums == nil {
			return err
		}
		var c counts
		if _, err := fmt.Sscan(*sums, &c.Views, &c.Visitors, &c.Clicks, &c.Orders); err != nil {
			return fmt.Errorf("add up what %s counted: %w", id, err)
		}
		f(id, all[index], c)
		return nil
	})
}

// topItems returns the items of a widget with the most clicks, or withOrders the most clicks and orders
// together, on the UTC days that a range touches; from is included, until is not.
func (q *queries) topItems(widgetID string, from, until stamp, withOrders bool, limit int) ([]topItem, error) {
	return topNames(q, `item, sum(clicks), iif(?1, sum(orders), NULL) FROM item_counts`,
		`sum(clicks) + ?1 * sum(orders)`, []any{withOrders, widgetID, limit}, from, until,
		func(i *topItem) []any { return []any{&i.Item, &i.Clicks, &i.Orders} })
}

// topPages returns the pages of a widget with the most views, clicks and orders together, like topItems.
func (q *queries) topPages(widgetID string, from, until stamp, limit int) ([]topPage, error) {
	return topNames(q, `page, sum(views), sum(clicks), sum(orders) FROM page_counts`,
		`sum(views) + sum(clicks) + ?1 * sum(orders)`, []any{true, widgetID, limit}, from, until,
		func(p *topPage) []any { return []any{&p.Page, &p.Views, &p.Clicks, &p.Orders} })
}

// topNames returns the names of a table with the largest weight. In what is selected and in the weight, both SQL,
// ?1 is whether orders count. args are that, the widget and the limit.
func topNames[T any](
	q *queries, selected, weight string, args []any, from, until stamp, dest func(*T) []any,
) ([]T, error) {
	if !from.Before(until.Time) {
		return nil, nil
	}
	firstDay, lastDay := from.Format(time.DateOnly), until.after(-time.Second).Format(time.DateOnly)
	return collect(q, `SELECT `+selected+` WHERE widget_id = ?2 AND day >= ?4 AND day <= ?5
		GROUP BY 1 HAVING `+weight+` > 0 ORDER BY `+weight+` DESC, 1 LIMIT ?3`, append(args, firstDay, lastDay), dest)
}

var heldWidgets = holding{"widgets", "widget", `SELECT count(*) FROM widgets WHERE account_id = ?1`, ""}
