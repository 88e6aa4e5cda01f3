package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// The options of these commands.
var (
	optSuggest = option{name: "suggest",
		help: "print a mapping that the books' own chart of accounts suggests; it is not used until it is set"}
	optMapping = option{name: "set", value: "FILE",
		help: "confirm the mapping that standard input has (-set - <mapping.json), or a file: JSON as -json prints it"}
	optSendFrom = option{name: "send-from", value: "DATE",
		help: "first business day that is sent on its own, or never"}
	optHistory = option{name: "history", help: "-send-from may be a day that is past"}
	optCompany = option{name: "organisation", value: "ID",
		help: "the company, where access to several was granted: 'widgetd books list -json' prints them"}
	optEntryStatus = option{name: "status", value: "STATUS", help: "at Xero: what entries become, draft or posted"}
	optSeries      = option{name: "series", value: "CODE",
		help: "at Fortnox: the series of vouchers, which takes manual entries; best one of its own"}
	optSendOutside = option{name: "outside", value: "yes|no",
		help: "whether what was paid outside is sent too, which a till usually books: of days from today on"}
	optSendTests = option{name: "tests", value: "yes|no",
		help: "whether what was paid with test keys is sent too: of days from today on"}
	optReverseDate = option{name: "date", value: "DATE",
		help: "date of the reversal in the books; by default that of the entry"}
	optExportState = option{name: "state", value: "STATE", help: "show only exports in this state, as held"}

	// what commands that ask the books have in common
	ledgerOptions = append([]option{
		optOutboundAllow.says("what may be called besides public addresses, for tests"),
	}, bookOptions()...)
)

// bookURLs returns what the options of products say, by name.
func (e *env) bookURLs() map[string]string {
	urls := map[string]string{}
	for _, p := range bookProducts {
		urls[p.name] = e.str(p.option().name)
	}
	return urls
}

// The operator's commands on books.
var booksCommands = []command{
	{"books app set", "xero|fortnox", "set the application that you have registered with the maker", []option{
		optSecrets.says("- for standard input, as your shell opens it (-secrets - <xero.txt), or a file that only " +
			"the user who runs the command can read, with lines client_id= and client_secret="),
	}, booksAppSet},
	{"books app list", "", "list the applications that are set", nil, listCommand{
		columns: "PRODUCT CLIENT=client_id CHANGED=changed_at",
		pages:   whole(func(q *queries, _ owner) ([]booksApp, error) { return q.booksApps() }),
	}.run},
	{"books connect", "xero|fortnox", "print the address on which an account's owner connects its books",
		append([]option{optAccount.says("the account whose revenue is to be sent")}, ledgerOptions...), booksConnect},
	{"books list", "", "list the connections with books, newest first",
		[]option{optAllRows, optSince, optUntil, optAccount.says("show only connections of this account")},
		listCommand{prefix: "bkc", columns: "ID PRODUCT STATE COMPANY=organisation.name CURRENCY " +
			"MAPPED=mapping_confirmed_at SENDS_FROM=send_from ACCOUNT=account_id", pages: whole(shownConnections)}.run},
	{"books set", "CONNECTION", "change what is sent with a connection, from when on and how", []option{
		optCompany, optSendFrom, optHistory, optEntryStatus, optSeries, optSendOutside, optSendTests,
	}, booksSet},
	{"books map", "CONNECTION", "print or confirm which account of the books gets what",
		append([]option{optSuggest, optMapping}, ledgerOptions...), booksMapping},
	{"books preview", "CONNECTION DATE", "print the entry of a business day as it would be sent",
		ledgerOptions, booksPreview},
	{"books export send", "CONNECTION DATE", "have the running service send a business day", nil, booksExport},
	{"books export list", "", "list what was sent or waits to be, newest first", []option{
		optLimit, optExportState, optAccount.says("show only exports of this account"), optSince, optUntil,
	}, listCommand{prefix: "exp", columns: exportColumns, pages: exportPages}.run},
	{"books export retry", "EXPORT", "have the running service look at a held, failed or unknown export now", nil,
		booksRetry},
	{"books export reverse", "EXPORT", "have the running service reverse the entry of an export",
		[]option{optReverseDate}, booksReverse},
	{"books disconnect", "CONNECTION", "send nothing more with a connection; what was sent stays in the books",
		append([]option{optUnasked}, ledgerOptions...), booksDisconnect},
}

// explainBooksError turns the refusals of the rules of books, which are worded for callers of the API, into errors for
// the operator that name the next step.
func explainBooksError(err error) error {
	var ref *refusal
	switch err = booksRefusal(err); {
	case errors.Is(err, errBooksConnection):
		return errors.New("not found, or disconnected already: 'widgetd books list' prints what there is")
	case errors.Is(err, errExport):
		return errors.New("not found: 'widgetd books export list' prints what there is")
	case !errors.As(err, &ref):
		return err
	case ref.code == codeBooksNotSet:
		return errors.New("the application is not set, or is refused: run 'widgetd books app set'")
	case ref.code == codeValidation && len(ref.fields) > 0:
		name := strings.ReplaceAll(strings.TrimPrefix(ref.fields[0].Pointer, "#/"), "_", "-")
		return usageError(name + ": " + ref.fields[0].Detail)
	}
	return errors.New(ref.text())
}

// withBooks calls f with the engine of books. What it would log is discarded, since its errors say the same.
func (e *env) withBooks(f func(b *books) error) error {
	allow, err := parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	if err != nil {
		return err
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	out := newOutbound(allow)
	defer out.close()
	return e.withStore(func(st *store) error {
		b := &books{ledgers: newLedgers(out, e.bookURLs(), e.now),
			connector: connector{store: st, keys: func() *keyring { return keys }, log: slog.New(slog.DiscardHandler),
				now: e.now, steady: e.now, wake: make(chan struct{}, 1)}}
		return explainBooksError(f(b))
	})
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
	if err := parseSecretLines(fields, text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	return e.changeNamed(func(t *tx) (string, error) {
		setBooksApp(t, keys, product, app)
		return "the application for " + withName(product, app.clientID) + " is set", nil
	})
}

func booksConnect(e *env) error {
	product, err := e.product()
	if err != nil {
		return err
	}
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	var link *bookLink
	err = e.withBooks(func(b *books) error {
		base, err := currentBase(b.store)
		if err != nil {
			return err
		}
		link, err = b.authorize(e.ctx, account, product, base, e.actor())
		return err
	})
	if err != nil {
		return err
	}
	return e.print(link, "open until "+link.ExpiresAt.String()+":\n"+link.AuthorizeURL)
}

// shownConnections returns the connections of an owner as books list prints them.
func shownConnections(q *queries, o owner) ([]*bookConnection, error) {
	all, err := q.bookConnections(o)
	for _, c := range all {
		c.show()
	}
	return all, err
}

// yesOrNo returns what an option says; nil: it is not given. Errors: usageError.
func (e *env) yesOrNo(name string) (*bool, error) {
	switch text := e.str(name); {
	case !e.given(name):
		return nil, nil
	case text == "yes" || text == "no":
		return new(text == "yes"), nil
	}
	return nil, usageError("-" + name + ": give yes or no")
}

// connectionChange returns what the options say. Errors: usageError.
func (e *env) connectionChange() (w connectionChange, err error) {
	check := func(name, text string, check textCheck) {
		if _, detail := check(text); detail != "" && err == nil {
			err = usageError("-" + name + ": " + detail)
		}
	}
	w.organisation, w.status, w.history = e.str("organisation"), e.str("status"), e.on("history")
	if e.given("status") {
		check("status", w.status, oneOf(entryDraft, entryPosted))
	}
	if e.given("send-from") {
		if w.sendFrom = new(e.str("send-from")); *w.sendFrom == "never" {
			*w.sendFrom = ""
		} else {
			check("send-from", *w.sendFrom, checkBusinessDate)
		}
	}
	if e.given("series") {
		w.series = new(e.str("series"))
		check("series", *w.series, checkSeries)
	}
	if err != nil {
		return w, err
	}
	if w.outside, err = e.yesOrNo("outside"); err == nil {
		w.tests, err = e.yesOrNo("tests")
	}
	return w, err
}

func booksSet(e *env) error {
	wish, err := e.connectionChange()
	if err != nil {
		return err
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	c, err := changed(e, func(t *tx) (*bookConnection, error) {
		c, err := changeBooks(t, keys, anyAccount, e.args[0], wish, e.actor())
		return c, explainBooksError(err)
	})
	if err != nil {
		return err
	}
	c.show()
	return e.print(c, c.ID+" is "+c.State+"; it sends from: "+cmp.Or(valueOr(c.SendFrom, ""), "never"))
}

// readMappingFile returns the mapping that -set names.
func (e *env) readMappingFile(product string) (m bookMapping, err error) {
	file, err := e.open(e.str("set"))
	if err != nil {
		return m, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMappingBody))
	if err != nil {
		return m, fmt.Errorf("read the mapping: %w", err)
	}
	body, err := parseJSON(text)
	if err != nil {
		return m, usageError("the mapping must be a JSON object: " + err.Error())
	}
	in := newInput(&body, nil, nil)
	m = readMapping(in, productOf(product))
	return m, in.err()
}

func booksMapping(e *env) error {
	if e.given("set") && e.on("suggest") {
		return usageError("-set and -suggest exclude each other")
	}
	var m *bookMapping
	err := e.withBooks(func(b *books) error {
		c, err := b.store.usedBookConnection(anyAccount, e.args[0])
		if err != nil {
			return err
		}
		switch {
		case e.on("suggest"):
			m, err = b.suggestFor(e.ctx, c)
		case e.given("set"):
			var read bookMapping
			if read, err = e.readMappingFile(c.Product); err != nil {
				return err
			}
			m = &read
			err = b.store.update(e.ctx, func(t *tx) error {
				_, err := saveMapping(t, anyAccount, c.ID, m, e.actor())
				return err
			})
		case c.Mapping == nil:
			return errors.New("no mapping was confirmed: -suggest prints one, and -set FILE confirms it")
		default:
			m = c.Mapping
		}
		return err
	})
	if err != nil {
		return err
	}
	if e.on("json") {
		return e.print(m, "")
	}
	return printObjects(e, "KIND RATE=vat_rate GROUP METHOD ACCOUNT TAX COST_CENTER", ruleCell, m.Lines)
}

// ruleCell is a cellFunc for the rules of a mapping.
func ruleCell(member string, row *jsonValue) any {
	v := memberAt(row, member)
	rate, isNumber := v.integer()
	switch {
	case member == "vat_rate" && isNumber:
		return formatRate(rate)
	case member == "group" && v.kind == jsonNull && memberAt(row, "kind").text == ruleSales:
		return "all others"
	}
	return nil
}

// businessDate returns the business day that the command's second argument names. Errors: usageError.
func (e *env) businessDate() (businessDate, error) {
	if _, detail := checkBusinessDate(e.args[1]); detail != "" {
		return "", usageError("DATE: " + detail)
	}
	return e.args[1], nil
}

func booksPreview(e *env) error {
	date, err := e.businessDate()
	if err != nil {
		return err
	}
	var all []bookPreview
	err = e.withBooks(func(b *books) error {
		c, err := b.store.usedBookConnection(anyAccount, e.args[0])
		if err == nil {
			all, err = b.previewNow(e.ctx, c, date)
		}
		return err
	})
	if err != nil {
		return err
	}
	if e.on("json") {
		return e.print(datePreview{date, all}, "")
	}
	if len(all) == 0 {
		_, err = fmt.Fprintln(e.stdout, "nothing would be sent")
	}
	for i := range all {
		if err == nil {
			err = e.printPreview(&all[i])
		}
	}
	return err
}

// printPreview prints the entry of a day and currency, and what is missing.
func (e *env) printPreview(p *bookPreview) error {
	if p.Entry != nil {
		fmt.Fprintln(e.stdout, printable(p.Entry.Narration))
		err := printObjects(e, "ACCOUNT DEBIT CREDIT TAX TEXT", amountCells("debit", "credit"), p.Entry.Lines)
		if err != nil {
			return err
		}
		if p.Difference != 0 {
			fmt.Fprintf(e.stdout, "the books will compute %s more VAT than the orders have\n",
				formatMoney(p.Difference, p.Currency))
		}
	}
	for _, issue := range p.Issues {
		fmt.Fprintf(e.stdout, "held (%s): %s\n", issue.Reason, printable(issue.Detail))
	}
	if !p.Final {
		fmt.Fprintln(e.stdout, "the day is not over")
	}
	return nil
}

// exportColumns are the columns of exports.
const exportColumns = "ID DATE CURRENCY REVISION STATE REASON DETAIL BOOKS_ID=entry_id BOOKS_URL=entry_url " +
	"CONNECTION=connection_id"

// changeExports runs f in a transaction and prints the exports that f returns, on which the running service works.
func (e *env) changeExports(f func(t *tx) ([]bookExport, error)) error {
	all, err := changed(e, func(t *tx) ([]bookExport, error) {
		all, err := f(t)
		return all, explainBooksError(err)
	})
	if err != nil {
		return err
	}
	if len(all) > 0 {
		defer e.noteQueued()
	}
	return printObjects(e, exportColumns, nil, all)
}

func booksExport(e *env) error {
	date, err := e.businessDate()
	if err != nil {
		return err
	}
	return e.changeExports(func(t *tx) ([]bookExport, error) { return requestExport(t, anyAccount, e.args[0], date) })
}

// exportPages reads the exports that the options of books export list leave.
func exportPages(e *env, q *queries) (rowPages, error) {
	state, err := e.choice("state", exportStates)
	if err != nil {
		return nil, err
	}
	return paged(func(q *queries, o owner, before string, limit int) (listPage[bookExport], error) {
		return q.bookExports(exportFilter{owner: o, state: state}, before, limit)
	})(e, q)
}

func booksRetry(e *env) error {
	return e.changeExport(func(t *tx) (*bookExport, error) { return retryExport(t, anyAccount, "", e.args[0]) })
}

func booksReverse(e *env) error {
	date, err := e.date("date")
	if err != nil {
		return err
	}
	on := ""
	if !date.IsZero() {
		on = date.Format(time.DateOnly)
	}
	return e.changeExport(func(t *tx) (*bookExport, error) {
		return reverseExport(t, anyAccount, "", e.args[0], on)
	})
}

// changeExport runs f in a transaction and prints the export that f returns.
func (e *env) changeExport(f func(t *tx) (*bookExport, error)) error {
	return e.changeExports(func(t *tx) ([]bookExport, error) {
		x, err := f(t)
		if err != nil {
			return nil, err
		}
		return []bookExport{*x}, nil
	})
}

func booksDisconnect(e *env) error {
	err := e.confirm(func(q *queries) (string, error) {
		c, err := q.usedBookConnection(anyAccount, e.args[0])
		if err != nil {
			return "", explainBooksError(err)
		}
		return "disconnects the books " + withName(c.ID, c.Organisation) + ", and drops what was not sent to them", nil
	})
	if err != nil {
		return err
	}
	err = e.withBooks(func(b *books) error { return b.disconnect(e.ctx, anyAccount, e.args[0], e.actor()) })
	if err != nil {
		return err
	}
	return e.done("connection " + e.args[0] + " with books disconnected")
}

// booksStatus is what the status command says of books.
func booksStatus(v *statusView, to *statusReport) error {
	n, err := v.booksTotals(newStamp(v.now.Add(-heldTooLong)))
	to.set("books", n)
	if err == nil {
		to.say("%d connections, %d entries held, %d refused", n.Connections, n.Held, n.Failed)
	}
	return err
}

// sealedBooks is what the status command says of what was sealed with another key file.
func sealedBooks(v *statusView, to *statusReport) error {
	if v.keys == nil {
		return nil
	}
	lines, err := booksSealedElsewhere(v.queries, v.keys)
	to.askFirst(lines)
	return err
}

// checkBooks is a rowCheck. It reports what was sealed with another key file.
func checkBooks(q *queries, keys *keyring, _ time.Time) (faults []string, err error) {
	lines, err := booksSealedElsewhere(q, keys)
	for _, line := range lines {
		faults = append(faults, "key: "+line)
	}
	return faults, err
}
