package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// The options of these commands.
var (
	optPublicOrders = option{name: "public-orders",
		help: "show the widget's orders to everybody, not only to callers with a token"}
	optWidget = option{name: "widget", value: "WIDGET",
		help: "show one widget, with its items and pages; by default all"}
	optInterval = option{name: "interval", value: "UNIT", def: "day",
		help: "what a bar covers; weeks begin on Monday", words: func() []string { return asTexts(statsIntervals) }}
	optTimezone = option{name: "timezone", value: "ZONE", def: "UTC",
		help: "time zone in which days begin, like Europe/Zurich"}
)

// The operator's commands on widgets.
var widgetCommands = []command{
	{"widget add", "NAME", "add a widget",
		[]option{optAccount.says("the account that the widget belongs to"), optPublicOrders}, widgetAdd},
	{"widget list", "", "list widgets, oldest first",
		[]option{optAllRows, optSince, optUntil, optAccount.says("show only widgets of this account")},
		listCommand{prefix: "wgt", columns: "ID NAME PUBLIC-ORDERS=public_orders CREATED=created_at ACCOUNT=account_id",
			pages: whole((*queries).widgets)}.run},
	{"widget snippet", "WIDGET", "print the line to paste into a page, and what its Content-Security-Policy must allow",
		nil, widgetSnippet},
	{"widget rename", "WIDGET NAME", "give a widget another name", nil, widgetRename},
	{"widget remove", "WIDGET", "remove a widget with everything that it counted",
		[]option{optUnasked.says("do not ask; where nobody can be asked, remove it although it has counted something")},
		widgetRemove},
	{"widget stats", "", "show what widgets counted, with a bar for each day",
		[]option{optWidget, optFromDay, optToDay, optInterval, optTimezone}, statsShow},
}

func widgetAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	id, err := changed(e, func(t *tx) (string, error) {
		return t.addWidget(account, e.args[0], e.on("public-orders"), e.actor())
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id}, id)
}

func widgetRename(e *env) error {
	if err := checkRowName(e.args[1]); err != nil {
		return err
	}
	return e.changeNamed(func(t *tx) (string, error) {
		return "widget " + withName(e.args[0], e.args[1]) + " renamed", t.renameWidget(e.args[0], e.args[1], e.actor())
	})
}

// widgetRemove removes a widget once that is confirmed; without -force and without a terminal only one that has
// counted nothing. A widget with very many counters takes several transactions; a command that was interrupted can
// be run again.
func widgetRemove(e *env) error {
	id, actor := e.args[0], e.actor()
	name := ""
	err := e.confirm(func(q *queries) (string, error) {
		rows, err := q.countWidgetRows(id)
		if err != nil {
			return "", err
		}
		if rows > 0 && !e.canAsk && !e.on("force") {
			return "", fmt.Errorf("%s has %s of what it counted, which would be lost: add -force to remove it",
				id, countOf(rows, "row"))
		}
		w, err := q.anyWidget(id)
		if err != nil {
			return "", err
		}
		name = withName(id, w.Name)
		return fmt.Sprintf("removes the widget %s for good, with %s of what it counted", name,
			countOf(rows, "row")), nil
	})
	if err != nil {
		return err
	}
	var removed int64
	err = e.withStore(func(st *store) (err error) {
		removed, err = inParts(e.ctx, st.writer, func(t *tx, earlier int64) (int64, bool, error) {
			return t.removeWidget(id, actor, earlier)
		})
		return err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]any{"ok": true, "rows": removed},
		"widget "+name+" removed, with "+countOf(removed, "row")+" of what it counted")
}

// statsShow prints what widgets counted: totals, a row for each widget or the top items and pages of one,
// and a bar for each interval.
func statsShow(e *env) error {
	r, err := statsRangeOf(e)
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		report, err := reportFor(st.queries, e.str("widget"), r)
		switch {
		case err != nil:
			return err
		case e.on("json"):
			return e.print(report.shown(), "")
		}
		return report.print(e)
	})
}

// reportFor returns the report for the widget with an id, whose account may be closed, or for all widgets
// if the id is "".
func reportFor(q *queries, widgetID string, r statsRange) (*statsReport, error) {
	if widgetID == "" {
		return reportWidgets(q, anyAccount, r)
	}
	w, err := q.anyWidget(widgetID)
	if err != nil {
		return nil, err
	}
	return reportWidget(q, w, r, true, true)
}

// statsRangeOf returns the range that the options name, or a usageError.
func statsRangeOf(e *env) (r statsRange, err error) {
	from, to, err := e.fromTo()
	if err != nil {
		return r, err
	}
	interval, err := e.choice("interval", asTexts(statsIntervals))
	if err != nil {
		return r, err
	}
	r.Interval = statsInterval(interval)
	if r.Zone, err = loadZone(e.str("timezone")); err != nil {
		const text = "-timezone must be a time zone of the IANA database, like Europe/Zurich, not %q"
		return r, usageError(fmt.Sprintf(text, e.str("timezone")))
	}
	if wrong := r.setDays(from, to, e.now()); wrong != "" {
		return r, usageError("-from and -to: " + strings.ToLower(wrong[:1]) + strings.TrimSuffix(wrong[1:], "."))
	}
	return r, nil
}

// print prints a report for people.
func (r *statsReport) print(e *env) error {
	totals := strings.Join(r.totals.shown(r.withOrders).inWords("en"), ", ")
	head := []detail{{"range", r.From + " to " + r.To + ", " + r.Timezone}, {"total", totals}}
	if r.widget != nil {
		head = append([]detail{{"widget", r.widget.ID}, {"name", r.widget.Name}}, head...)
	} else {
		head = append(head, detail{"trapped", countOf(r.trapped, "lead") + " of bots"})
	}
	err := e.printDetails(r.shown(), head)
	fmt.Fprintln(e.stdout)
	err = errors.Join(err, r.printBars(e))
	fmt.Fprintln(e.stdout)
	if r.widget == nil {
		return errors.Join(err, printObjects(e, "WIDGET NAME VIEWS VISITORS CLICKS ORDERS", nil, r.widgets))
	}
	err = errors.Join(err, printObjects(e, "TOP-ITEM=item CLICKS ORDERS", nil, r.items))
	fmt.Fprintln(e.stdout)
	return errors.Join(err, printObjects(e, "TOP-PAGE=page VIEWS CLICKS ORDERS", nil, r.pages))
}

// printBars prints the counts of each interval with a bar in proportion to its views, in the width that the
// numbers leave of the terminal.
func (r *statsReport) printBars(e *env) error {
	const longest, least = 40, 8 // columns of the bars
	most := max(1, r.busiest().Views)
	title := strings.ToUpper(string(r.Interval))
	used := len(r.From) + 5*columnGap
	for _, c := range []struct {
		title string
		most  int64
	}{{"VIEWS", most}, {"VISITORS", r.totals.Visitors}, {"CLICKS", r.totals.Clicks}, {"ORDERS", r.totals.Orders}} {
		used += max(len(c.title), len(fmt.Sprint(c.most)))
	}
	width := min(longest, cmp.Or(e.width(), longest+used)-used)
	columns := title + "=date VIEWS VISITORS CLICKS ORDERS"
	if width >= least {
		columns += " .=bar"
	}
	return printObjects(e, columns, func(member string, row *jsonValue) any {
		if member != "bar" {
			return nil
		}
		views, _ := memberAt(row, "views").integer()
		bar := strings.Repeat("█", int(float64(max(0, views))/float64(most)*float64(width)))
		return cmp.Or(bar, " ") // no views are no empty cell
	}, r.series)
}
