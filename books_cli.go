package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The options of these commands.
var (
	optSuggest = option{name: "suggest",
		help: "print a mapping that the books' own chart of accounts suggests; it is not used until it is set"}
	optMapping = option{name: "set", value: "FILE",
		help: "confirm the mapping that standard input has (-set - <mapping.json), or a file: JSON as -json prints it"}
	optSendFrom = option{name: "send-from", value: "DATE", member: "send_from", reads: asFirstDay,
		help: "first business day that is sent on its own, or never"}
	optPayoutsFrom = option{name: "payouts-from", value: "DATE", member: "payouts_from", reads: asFirstDay,
		help: "first day of arrival of payouts that are sent on their own, or never"}
	optHistory = option{name: "history", member: "history", reads: switchValue(true),
		help: "-send-from and -payouts-from may be days that are past"}
	optExportState = option{name: "state", value: "STATE", help: "show only exports in this state",
		words: func() []string { return asTexts(exportStates) }}

	// what commands that ask the books have in common
	ledgerOptions = append([]option{
		optOutboundAllow.says("what may be called besides public addresses, for tests"),
	}, bookOptions()...)
)

// bookOptions are the options with the base addresses of the products, see newLedgers.
func bookOptions() (all []option) {
	for _, p := range bookProducts {
		all = append(all, option{name: p.name + "-url", value: "URL", hasVariable: true,
			help: "base address of everything of " + p.title + ", for tests; by default its own"})
	}
	return all
}

// The commands on books that are names for routes, and lists.
var booksRouteCommands = []routeCommand{
	{name: "books connect", route: "POST /books/connections", args: "PRODUCT", keys: (*env).keyFile, before: needApp,
		help:    "print the address on which an account's owner connects its books: xero or fortnox",
		options: ledgerOptions, text: "open until ${expires_at}:\n${authorize_url}"},
	{name: "books list", route: "GET /books/connections", help: "list the connections with books, newest first",
		rows: &listCommand{short: true, prefix: "bkc", columns: "ID PRODUCT STATE " +
			"COMPANY=organisation.name CURRENCY MAPPED=mapping_confirmed_at SENDS_FROM=send_from ACCOUNT=account_id"}},
	{name: "books set", route: "PATCH /books/connections/{id}", args: "CONNECTION", keys: (*env).keyFile,
		help:    "change what is sent with a connection, from when on and how",
		options: []option{optSendFrom, optPayoutsFrom, optHistory},
		text:    "${id} is ${state}; it sends from: ${send_from|never}"},
	{name: "books accounts", route: "GET /books/connections/{id}/accounts", args: "CONNECTION", keys: (*env).keyFile,
		help: "print the books' own accounts, rates of tax and options of tracking", options: ledgerOptions},
	{name: "books preview", route: "GET /books/connections/{id}/preview/{date}", args: "CONNECTION DATE",
		help: "print the entry of a business day as it would be sent", options: ledgerOptions, keys: (*env).keyFile},
	{name: "books payout", route: "GET /books/connections/{id}/payouts/{payout}/preview", args: "CONNECTION PAYOUT",
		help: "print the entry of a payout as it would be sent", options: ledgerOptions, keys: (*env).keyFile},
	{name: "books export send", route: "POST /books/connections/{id}/exports", args: "CONNECTION DATE",
		help: "have the running service send a business day", columns: exportColumns, after: noteExports},
	{name: "books export payout", route: "POST /books/connections/{id}/exports", args: "CONNECTION PAYOUT",
		help: "have the running service send a payout", columns: exportColumns, after: noteExports},
	{name: "books export retry", route: "POST /books/connections/{id}/exports/{export_id}/retry", args: "EXPORT",
		help: "have the running service look at a held, failed or unknown export now", columns: exportColumns,
		after: noteExports},
	{name: "books export reverse", route: "POST /books/connections/{id}/exports/{export_id}/reverse", args: "EXPORT",
		help: "have the running service reverse the entry of an export", columns: exportColumns, after: noteExports},
	{name: "books disconnect", route: "DELETE /books/connections/{id}", args: "CONNECTION", keys: (*env).keyFile,
		help:    "send nothing more with a connection; what was sent stays in the books",
		options: append([]option{optUnasked}, ledgerOptions...), text: "connection ${id} with books disconnected",
		asks: asking("disconnects the books ${id} (${organisation.name}), and drops what was not sent to them")},
	{name: "books app list", help: "list the applications that are set", rows: &listCommand{short: true,
		columns: "PRODUCT CLIENT=client_id CHANGED=changed_at",
		pages:   wholeTable(func(q *queries, _ owner) ([]booksApp, error) { return q.booksApps() })}},
	{name: "books export list", help: "list what was sent or waits to be, newest first",
		options: []option{optExportState, optOfAccount},
		rows:    &listCommand{prefix: "exp", columns: exportColumns, pages: exportPages}},
}

// The other commands on books.
var booksCommands = []command{
	{"books app set", "xero|fortnox", "set the application that you have registered with the maker", []option{
		optSecrets.says("- for standard input, as your shell opens it (-secrets - <xero.txt), or a file that only " +
			"the user who runs the command can read, with lines client_id= and client_secret="),
	}, booksAppSet},
	{"books map", "CONNECTION", "print or confirm which account of the books gets what",
		append([]option{optSuggest, optMapping}, ledgerOptions...), booksMapping},
}

// product returns the product that the command's first argument names. Errors: usageError.
func (e *env) product() (string, error) {
	if productOf(e.args[0]) == nil {
		return "", unknownWord("there is no product", e.args[0], productNames())
	}
	return e.args[0], nil
}

func booksAppSet(e *env) error {
	product, err := e.product()
	if err != nil {
		return err
	}
	name, text, err := e.secretText()
	if err != nil {
		return err
	}
	var app appSecrets
	fields := map[string]*string{"client_id": &app.clientID, "client_secret": &app.clientSecret}
	if err := parseAllSecrets(fields, text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	return e.changeAndName(func(t *tx) (string, error) {
		setBooksApp(t, keys, product, app)
		return "the application for " + withName(product, app.clientID) + " is set", nil
	})
}

// needApp refuses to connect books with a product whose application is not set.
func needApp(e *env, _ *routeRequest) error {
	product, err := e.product()
	if err != nil {
		return err
	}
	_, err = queried(e, func(q *queries) (*booksApp, error) {
		app, err := q.booksApp(product)
		return app, replaced(err, errNotFound, errors.New("the application is not set: run 'widgetd books app set'"))
	})
	return err
}

// asFirstDay sends the first business day that is sent on its own; never: null, for none.
func asFirstDay(_ *env, text string) (any, error) {
	if text == "never" {
		return json.RawMessage("null"), nil
	}
	return text, nil
}

// booksMapping prints or confirms the mapping of a connection.
func booksMapping(e *env) error {
	const route = "/books/connections/{id}/mapping"
	r, err := e.request("GET " + route)
	member := "mapping"
	switch {
	case err != nil:
		return err
	case e.given("set") && e.on("suggest"):
		return usageError("-set and -suggest exclude each other")
	case e.on("suggest"):
		r.query.Set("suggest", "true")
		member = "suggested"
	case e.given("set"):
		r.route = "PUT " + route
		if r.body, err = e.readMapping(); err != nil {
			return err
		}
	}
	answer, err := e.callRoute((*env).keyFile, r)
	if err != nil {
		return err
	}
	body, err := parseJSON(answer)
	if err != nil {
		return err
	}
	m := memberAt(&body, member)
	if m.kind == jsonNull {
		return errors.New("no mapping was confirmed: -suggest prints one, and -set FILE confirms it")
	}
	for _, warning := range elementsOf(memberAt(&body, "warnings")) {
		e.note("warning: %s\n", warning.text)
	}
	if e.on("json") {
		_, err := fmt.Fprintln(e.stdout, m.raw)
		return err
	}
	const columns = "KIND RATE=vat_rate GROUP METHOD ACCOUNT TAX COST_CENTER"
	return e.printRows(columns, ruleCell, elementsOf(memberAt(m, "lines")))
}

// readMapping returns the text of the mapping that -set names.
func (e *env) readMapping() (string, error) {
	file, err := e.open(e.str("set"))
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMappingBody))
	if err != nil {
		return "", fmt.Errorf("read the mapping: %w", err)
	}
	return string(text), nil
}

// ruleCell is a cellFunc for the rules of a mapping.
func ruleCell(member string, row *jsonValue) any {
	if member == "group" && memberAt(row, member).kind == jsonNull && memberAt(row, "kind").text == ruleSales {
		return "all others"
	}
	return nil
}

// exportColumns are the columns of exports.
const exportColumns = "ID DATE CURRENCY PART REVISION STATE REASON DETAIL BOOKS_ID=entry_id BOOKS_URL=entry_url " +
	"CONNECTION=connection_id"

// exportPages reads the exports that the options of books export list leave.
func exportPages(e *env, q *queries) (rowPages, error) {
	state, err := e.choice("state", asTexts(exportStates))
	if err != nil {
		return nil, err
	}
	return paged(func(q *queries, o owner, before string, limit int) (listPage[*bookExport], error) {
		return q.bookExports(exportFilter{owner: o, state: state}, before, limit)
	})(e, q)
}

// noteExports says so if no service runs.
func noteExports(e *env, _ *jsonValue) { e.noteQueued() }

// booksStatus is what the status command says of books.
func booksStatus(v *statusView, to *statusReport) error {
	n, err := v.booksTotals(newStamp(v.now.Add(-heldTooLong)))
	to.set("books", n)
	if err == nil {
		to.say("%s, %s held, %d refused", countOf(n.Connections, "connection"),
			countedUpTo(int(n.Held), "entry", "entries"), n.Failed+n.Refused)
	}
	return err
}
