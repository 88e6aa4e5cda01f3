package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The options of these commands.
var (
	optPublicOrders = option{name: "public-orders",
		help: "show the widget's orders to everybody, not only to callers with a token"}
	optWidget = option{name: "widget", value: "WIDGET", member: "widget",
		help: "show one widget, with its items and pages; by default all"}
	optInterval = option{name: "interval", value: "UNIT", def: "day", member: "interval", reads: asInterval,
		help: "what a bar covers; weeks begin on Monday", words: func() []string { return asTexts(statsIntervals) }}
	optTimezone = option{name: "timezone", value: "ZONE", def: "UTC", member: "timezone",
		help: "time zone in which days begin, like Europe/Zurich"}
)

// The operator's commands on widgets.
var widgetCommands = []command{
	{"widget add", "NAME", "add a widget",
		[]option{optAccount.says("the account that the widget belongs to"), optPublicOrders}, widgetAdd},
	{"widget snippet", "WIDGET", "print the line to paste into a page, and what its Content-Security-Policy must allow",
		nil, widgetSnippet},
	{"widget rename", "WIDGET NAME", "give a widget another name", nil, widgetRename},
	{"widget remove", "WIDGET", "remove a widget with everything that it counted",
		[]option{optUnasked.says("do not ask; where nobody can be asked, remove it although it has counted something")},
		widgetRemove},
	{"widget stats", "", "show what widgets counted, with a bar for each day",
		[]option{optWidget, optFromDay, optToDay, optInterval, optTimezone}, statsShow},
}

// The list of widgets.
var widgetRouteCommands = []routeCommand{
	{name: "widget list", help: "list widgets, oldest first",
		options: []option{optOfAccount},
		rows: &listCommand{short: true, prefix: "wgt", pages: wholeTable((*queries).widgets),
			columns: "ID NAME PUBLIC-ORDERS=public_orders CREATED=created_at ACCOUNT=account_id"}},
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
	return e.changeAndName(func(t *tx) (string, error) {
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
		removed, err = inParts(e.ctx, st.writer, 0, func(t *tx, earlier int64) (int64, bool, error) {
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

// asInterval sends what a bar covers.
func asInterval(e *env, word string) (any, error) { return asOneOf(statsIntervals)(e, word) }

// A countedStats is what people see of statistics: of one widget, also of a closed account, or of all.
type countedStats struct {
	Widget, Name string // of one
	statsSpan
	Totals struct {
		shownCounts
		Trapped int64
	}
	Series   []accountPoint
	Widgets  []widgetRow
	TopItems []topItem `json:"top_items"`
	TopPages []topPage `json:"top_pages"`
}

// statsShow prints what widgets counted: totals, a row for each widget or the top items and pages of one,
// and a bar for each interval.
func statsShow(e *env) error {
	if id := e.str("widget"); id != "" && !validID("wgt", id) {
		return e.explain(errWidget) // as for one that there is not
	}
	r, err := e.request("GET /widget/stats")
	if err != nil {
		return err
	}
	answer, err := e.callRoute(nil, r)
	if err != nil {
		return err
	}
	if e.on("json") {
		_, err := e.stdout.Write(answer)
		return err
	}
	var counted countedStats
	if err := json.Unmarshal(answer, &counted); err != nil {
		return err
	}
	return counted.print(e)
}

// print prints statistics for people.
func (r *countedStats) print(e *env) error {
	totals := strings.Join(r.Totals.inWords("en"), ", ")
	head := []detail{{"range", r.From + " to " + r.To + ", " + r.Timezone}, {"total", totals}}
	if r.Widget != "" {
		head = append([]detail{{"widget", r.Widget}, {"name", r.Name}}, head...)
	} else {
		head = append(head, detail{"trapped", countOf(r.Totals.Trapped, "lead") + " of bots"})
	}
	err := e.printDetails(nil, head)
	fmt.Fprintln(e.stdout)
	err = errors.Join(err, r.printBars(e))
	fmt.Fprintln(e.stdout)
	if r.Widget == "" {
		return errors.Join(err, printObjects(e, "WIDGET NAME VIEWS VISITORS CLICKS ORDERS", nil, r.Widgets))
	}
	err = errors.Join(err, printObjects(e, "TOP-ITEM=item CLICKS ORDERS", nil, r.TopItems))
	fmt.Fprintln(e.stdout)
	return errors.Join(err, printObjects(e, "TOP-PAGE=page VIEWS CLICKS ORDERS", nil, r.TopPages))
}

// printBars prints the counts of each interval with a bar in proportion to its views, in the width that the
// numbers leave of the terminal.
func (r *countedStats) printBars(e *env) error {
	const longest, least = 40, 8 // columns of the bars
	most := int64(1)
	for _, point := range r.Series {
		most = max(most, point.Views)
	}
	title := strings.ToUpper(string(r.Interval))
	used := len(r.From) + 5*columnGap
	for _, c := range []struct {
		title string
		most  int64
	}{{"VIEWS", most}, {"VISITORS", r.Totals.Visitors}, {"CLICKS", r.Totals.Clicks}, {"ORDERS", *r.Totals.Orders}} {
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
	}, r.Series)
}
