package main

import "time"

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

// addWidget adds a widget and returns its id, or errAccount.
func (t *tx) addWidget(accountID, name string, publicOrders bool) (string, error) {
	if err := t.openAccount(accountID); err != nil {
		return "", err
	}
	id := t.newID("wgt")
	_, err := t.exec(`INSERT INTO widgets (id, account_id, name, public_orders, created_at)
		VALUES (?, ?, ?, ?, ?)`, id, accountID, name, publicOrders, t.now)
	return id, err
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

// A tallyKey identifies a row: the counters of a widget in a quarter-hour, or of an item of it.
type tallyKey struct {
	widget  string
	quarter stamp
	item    string // "": the widget itself
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

// addCounts adds to the counters of a widget and of its items, in the quarter-hour of the
// transaction. They are written before the commit, see total.
func (t *tx) addCounts(widgetID string, c counts, items []itemCount) {
	quarter := stamp{t.now.Truncate(quarterHour)}
	y := &tally{}
	y.add(tallyKey{widgetID, quarter, ""}, c)
	for _, item := range items {
		y.add(tallyKey{widgetID, quarter, item.Item}, counts{Clicks: item.Clicks, Orders: item.Orders})
	}
	t.total = addTotals(t.total, y)
}

// write implements total.
func (y *tally) write(t *tx) error {
	for _, key := range y.order {
		c := y.rows[key]
		if key.item == "" {
			_, err := t.exec(`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders)
				VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET views = views + excluded.views, visitors = visitors + excluded.visitors,
				clicks = clicks + excluded.clicks, orders = orders + excluded.orders`,
				key.widget, key.quarter, c.Views, c.Visitors, c.Clicks, c.Orders)
			if err != nil {
				return err
			}
			continue
		}
		name, err := t.countedItemName(key.widget, key.quarter.Format(time.DateOnly), key.item)
		if err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO item_counts (widget_id, quarter, item, clicks, orders)
			VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET clicks = clicks + excluded.clicks, orders = orders + excluded.orders`,
			key.widget, key.quarter, name, c.Clicks, c.Orders); err != nil {
			return err
		}
	}
	return nil
}

// countedItemName returns the name under which an item is counted on a UTC day: its own, which
// it records, or "other" if the widget already has maxItems other names on that day.
func (t *tx) countedItemName(widgetID, day, item string) (string, error) {
	var known, names int
	err := t.one(`SELECT count(*) FILTER (WHERE item = ?3), count(*) FROM item_names
		WHERE widget_id = ?1 AND day = ?2`, []any{widgetID, day, item}, &known, &names)
	if err != nil || known > 0 {
		return item, err
	}
	if names >= maxItems {
		return otherItem, nil
	}
	_, err = t.exec(`INSERT INTO item_names (widget_id, day, item) VALUES (?, ?, ?)`, widgetID, day, item)
	return item, err
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
// and orders together; from is included, until is not.
func (q *queries) topItems(widgetID string, from, until stamp, withOrders bool,
	limit int) ([]itemCount, error) {
	const weight = `sum(clicks) + ?1 * sum(orders)`
	return collect(q, `SELECT item, sum(clicks), sum(orders) FROM item_counts
		WHERE widget_id = ?2 AND quarter >= ?3 AND quarter < ?4
		GROUP BY item HAVING `+weight+` > 0 ORDER BY `+weight+` DESC, item LIMIT ?5`,
		[]any{withOrders, widgetID, from, until, limit},
		func(i *itemCount) []any { return []any{&i.Item, &i.Clicks, &i.Orders} })
}
