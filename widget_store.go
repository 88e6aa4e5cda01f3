package main

import (
	"errors"
	"fmt"
	"time"
)

// The event types of widgets. Their data never has the name of a widget.
var (
	widgetEvents eventTable

	eventWidgetCreated = widgetEvents.add("widget.created")
	eventWidgetRenamed = widgetEvents.add("widget.renamed")
	eventWidgetRemoved = widgetEvents.add("widget.removed")
)

// A widget is one embedded lunch menu. Its id is public.
type widget struct {
	ID           string `json:"id"`
	AccountID    string `json:"account_id"`
	Name         string `json:"name"`
	PublicOrders bool   `json:"public_orders"` // callers without a token see the orders too
	CreatedAt    stamp  `json:"created_at"`
}

const widgetColumns = `w.id, w.account_id, w.name, w.public_orders, w.created_at`

func (w *widget) dest() []any {
	return []any{&w.ID, &w.AccountID, &w.Name, &w.PublicOrders, &w.CreatedAt}
}

// widget returns a widget of an open account, or errNotFound.
func (q *queries) widget(id string) (w widget, err error) {
	err = q.one(`SELECT `+widgetColumns+` FROM widgets w JOIN accounts a ON a.id = w.account_id
		WHERE w.id = ? AND a.closed_at IS NULL`, []any{id}, w.dest()...)
	return w, err
}

// widgets returns the widgets of an owner, oldest first.
func (q *queries) widgets(o owner) ([]widget, error) {
	query, args := o.narrow(`SELECT `+widgetColumns+` FROM widgets w WHERE 1`, `w.account_id`)
	return collect(q, query+` ORDER BY w.id`, args, (*widget).dest)
}

// widgetEvent returns an event about a widget.
func widgetEvent(w widget, kind eventType, actor string, data ...string) event {
	return event{
		Type:      kind,
		AccountID: w.AccountID,
		SubjectID: w.ID,
		Actor:     actor,
		Data:      eventData(data...),
	}
}

// anyWidget returns a widget, also of a closed account, or errNotFound.
func (q *queries) anyWidget(id string) (w widget, err error) {
	err = q.one(`SELECT `+widgetColumns+` FROM widgets w WHERE w.id = ?`, []any{id}, w.dest()...)
	return w, err
}

// addWidget adds a widget, with its event, and returns its id, or errAccount.
func (t *tx) addWidget(accountID, name string, publicOrders bool, actor string) (string, error) {
	if err := t.openAccount(accountID); err != nil {
		return "", err
	}
	w := widget{ID: t.newID("wgt"), AccountID: accountID}
	_, err := t.exec(`INSERT INTO widgets (id, account_id, name, public_orders, created_at)
		VALUES (?, ?, ?, ?, ?)`, w.ID, accountID, name, publicOrders, t.now)
	if err != nil {
		return "", err
	}
	shown := ""
	if publicOrders {
		shown = "true"
	}
	return w.ID, t.addEvent(widgetEvent(w, eventWidgetCreated, actor, "public_orders", shown))
}

// renameWidget gives a widget another name, with its event, or returns errNotFound. The name
// that it has already is no change.
func (t *tx) renameWidget(id, name, actor string) error {
	w, err := t.anyWidget(id)
	if err != nil || w.Name == name {
		return err
	}
	if _, err := t.exec(`UPDATE widgets SET name = ? WHERE id = ?`, name, id); err != nil {
		return err
	}
	return t.addEvent(widgetEvent(w, eventWidgetRenamed, actor))
}

// widgetRows are the tables with what widgets count, and what else but widget_id is in their keys.
var widgetRows = []struct{ table, key string }{
	{"item_counts", "day, item"},
	{"widget_counts", "quarter"},
}

// countWidgetRows returns how many rows the counters of a widget have, or errNotFound if there is
// no such widget.
func (q *queries) countWidgetRows(id string) (rows int64, err error) {
	if _, err := q.anyWidget(id); err != nil {
		return 0, err
	}
	for _, rowsOf := range widgetRows {
		var n int64
		if err := q.one(`SELECT count(*) FROM `+rowsOf.table+` WHERE widget_id = ?`, []any{id}, &n); err != nil {
			return 0, err
		}
		rows += n
	}
	return rows, nil
}

// widgetRowsAtOnce is how many rows of each table one transaction of removeWidget removes.
const widgetRowsAtOnce = 5_000

// removeWidget removes up to widgetRowsAtOnce rows of each kind of a widget's counters, and when
// none is left the widget itself, with its event. removed is how many rows of counters this and
// earlier calls have removed. It returns whether the widget is gone, or errNotFound.
func (t *tx) removeWidget(id, actor string, removed *int64) (gone bool, err error) {
	w, err := t.anyWidget(id)
	if err != nil {
		return false, err
	}
	gone = true
	for _, rowsOf := range widgetRows {
		n, err := t.exec(`DELETE FROM `+rowsOf.table+` WHERE widget_id = ?1 AND (`+rowsOf.key+`) IN
			(SELECT `+rowsOf.key+` FROM `+rowsOf.table+` WHERE widget_id = ?1 LIMIT ?2)`, id, widgetRowsAtOnce)
		if err != nil {
			return false, err
		}
		*removed += n
		gone = gone && n < widgetRowsAtOnce
	}
	if !gone {
		return false, nil
	}
	if _, err := t.exec(`DELETE FROM widgets WHERE id = ?`, id); err != nil {
		return false, err
	}
	return true, t.addEvent(widgetEvent(w, eventWidgetRemoved, actor, "rows", fmt.Sprint(*removed)))
}

// counts are the counters of a widget.
type counts struct {
	Views    int64 `json:"views"`
	Visitors int64 `json:"visitors"`
	Clicks   int64 `json:"clicks"`
	Orders   int64 `json:"orders"`
}

func (c *counts) add(more counts) {
	c.Views += more.Views
	c.Visitors += more.Visitors
	c.Clicks += more.Clicks
	c.Orders += more.Orders
}

// An itemCount holds the counters of one item: a dish of the menu.
type itemCount struct {
	Item   string `json:"item"`
	Clicks int64  `json:"clicks"`
	Orders int64  `json:"orders"`
}

const (
	quarterHour = 15 * time.Minute // each has its counters: in every time zone days begin at one
	maxItems    = 100              // names of items that a widget may have on a UTC day
	otherItem   = "other"          // the name under which all further items are counted
)

// A tally adds up what the jobs of a batch count for widgets (see total), so that each row is
// written once: under load most events are for a few widgets.
type tally struct {
	rows  map[tallyKey]*counts
	order []tallyKey // in which the rows were added
}

// A tallyKey identifies a row: the counters of a widget in a quarter-hour, or of an item of it on
// a UTC day.
type tallyKey struct {
	widget string
	begins stamp  // the quarter-hour, or the day
	item   string // "": the widget itself
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

// addCounts adds to the counters of a widget in the quarter-hour of the transaction, and to those
// of its items on the UTC day. They are written before the commit, see total.
func (t *tx) addCounts(widgetID string, c counts, items []itemCount) {
	quarter, day := stamp{t.now.Truncate(quarterHour)}, stamp{t.now.Truncate(24 * time.Hour)}
	y := &tally{}
	y.add(tallyKey{widgetID, quarter, ""}, c)
	for _, item := range items {
		y.add(tallyKey{widgetID, day, item.Item}, counts{Clicks: item.Clicks, Orders: item.Orders})
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
		if key.item == "" {
			_, err := t.exec(`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders)
				VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET views = views + excluded.views, visitors = visitors + excluded.visitors,
				clicks = clicks + excluded.clicks, orders = orders + excluded.orders`,
				key.widget, key.begins, c.Views, c.Visitors, c.Clicks, c.Orders)
			if err != nil {
				return err
			}
			continue
		}
		if err := t.addItemCounts(key.widget, key.begins.Format(time.DateOnly), key.item, *c); err != nil {
			return err
		}
	}
	return nil
}

// addItemCounts adds to the counters of an item on a UTC day: under its own name if it has been
// counted on that day or the widget has counted fewer than maxItems others, else as otherItem.
func (t *tx) addItemCounts(widgetID, day, item string, c counts) error {
	var known, names int
	err := t.one(`SELECT count(*) FILTER (WHERE item = ?3), count(*) FILTER (WHERE item <> ?4) FROM item_counts
		WHERE widget_id = ?1 AND day = ?2`, []any{widgetID, day, item, otherItem}, &known, &names)
	if err != nil {
		return err
	}
	if known == 0 && names >= maxItems {
		item = otherItem
	}
	_, err = t.exec(`INSERT INTO item_counts (widget_id, day, item, clicks, orders) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET clicks = clicks + excluded.clicks, orders = orders + excluded.orders`,
		widgetID, day, item, c.Clicks, c.Orders)
	return err
}

// A quarterFunc is called with the counters of a widget in a quarter-hour; quarter is its start.
type quarterFunc func(widgetID, quarter string, c counts)

// eachQuarter calls f for every quarter-hour in which a widget of an owner counted something,
// in order of time; from is included, until is not.
func (q *queries) eachQuarter(o owner, from, until stamp, f quarterFunc) error {
	query, args := o.narrow(`SELECT c.widget_id, c.quarter, c.views, c.visitors, c.clicks, c.orders
		FROM widgets w JOIN widget_counts c ON c.widget_id = w.id
		WHERE c.quarter >= ? AND c.quarter < ?`, `w.account_id`, from, until)
	return q.quarters(query+` ORDER BY c.quarter`, args, f)
}

// eachQuarterOfWidget is eachQuarter for one widget.
func (q *queries) eachQuarterOfWidget(widgetID string, from, until stamp, f quarterFunc) error {
	return q.quarters(`SELECT widget_id, quarter, views, visitors, clicks, orders FROM widget_counts
		WHERE widget_id = ? AND quarter >= ? AND quarter < ? ORDER BY quarter`, []any{widgetID, from, until}, f)
}

// quarters calls f for every row that a query on widget_counts returns.
func (q *queries) quarters(query string, args []any, f quarterFunc) error {
	return q.each(query, args, func(scan func(...any) error) error {
		var id, quarter string
		var c counts
		if err := scan(&id, &quarter, &c.Views, &c.Visitors, &c.Clicks, &c.Orders); err != nil {
			return err
		}
		f(id, quarter, c)
		return nil
	})
}

// topItems returns the items of a widget with the most clicks, or withOrders the most clicks
// and orders together, on the UTC days that a range touches; from is included, until is not.
func (q *queries) topItems(widgetID string, from, until stamp, withOrders bool,
	limit int) ([]itemCount, error) {
	const weight = `sum(clicks) + ?1 * sum(orders)`
	firstDay, lastDay := from.Format(time.DateOnly), until.after(-time.Second).Format(time.DateOnly)
	return collect(q, `SELECT item, sum(clicks), sum(orders) FROM item_counts
		WHERE widget_id = ?2 AND day >= ?3 AND day <= ?4
		GROUP BY item HAVING `+weight+` > 0 ORDER BY `+weight+` DESC, item LIMIT ?5`,
		[]any{withOrders, widgetID, firstDay, lastDay, limit},
		func(i *itemCount) []any { return []any{&i.Item, &i.Clicks, &i.Orders} })
}
