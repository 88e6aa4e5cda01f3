package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"
)

// A booksAPI serves the endpoints of connections with books.
type booksAPI struct {
	*server
	books *books
}

// The bounds of the body of a mapping: maxMappingRules lines need more than other bodies do.
const (
	maxMappingBody   = 256 << 10 // bytes
	maxMappingValues = 4100      // of JSON
)

// booksModule makes the routes and the background work of books.
func booksModule(s *server, b *books) module {
	a := &booksAPI{s, b}
	w := module{routes: slices.Concat(connectionRoutes(a), exportRoutes(a), booksPageRoutes(a)),
		chores: []chore{{fault: "links that connect books can't expire", timeDriven: true, run: a.expireLinks}}}
	w.refusals = map[string]refusalForm{"books": booksRefused}
	if !s.noBooks {
		w.workers = append(w.workers, newBooksWorker(b).run)
	}
	return w
}

// What routes of a connection have in common: their path, and what those refuse that are about a connection, and those
// that ask its books.
const (
	connectionPath = "/books/connections/{id}"
	ofConnection   = "books_connection_not_found"
	ofItsBooks     = ofConnection + " books_connection_state books_not_available books_unavailable"
)

// connectionRoutes makes the routes of connections and their mappings.
func connectionRoutes(a *booksAPI) []route {
	return []route{
		{pattern: "GET /books/connections", scope: scopeBooks,
			endpoint: owned(a.server, readNoMembers, a.listBookConnections)},
		{pattern: "POST /books/connections", scope: scopeBooks, refuses: "books_not_available books_unavailable",
			endpoint: owned(a.server, readNewBookConnection, a.connectBooks)},
		{pattern: "POST /books/signin", scope: scopesOfEntries, creates: true, noBody: true,
			noApps: true, endpoint: owned(a.server, readNoMembers, a.makeBooksCode)},
		{pattern: "GET " + connectionPath, scope: scopeBooks, refuses: ofConnection,
			endpoint: connected(a, readNoMembers, a.getBookConnection)},
		{pattern: "PATCH " + connectionPath, scope: scopeBooks, refuses: ofConnection + " books_connection_state",
			endpoint: owned(a.server, readBookConnectionChange, a.updateBookConnection)},
		{pattern: "DELETE " + connectionPath, scope: scopeBooks, answers: answerForm{empty: 204}, refuses: ofConnection,
			endpoint: owned(a.server, readDryRun, a.disconnectBooks)},
		{pattern: "GET " + connectionPath + "/accounts", scope: scopeBooks, refuses: ofItsBooks,
			endpoint: connected(a, readChartDate, a.getBookAccounts)},
		{pattern: "GET " + connectionPath + "/mapping", scope: scopeBooks, refuses: ofItsBooks,
			endpoint: connected(a, readSuggest, a.getBookMapping)},
		{pattern: "PUT " + connectionPath + "/mapping", scope: scopeBooks, body: maxMappingBody,
			values: maxMappingValues, readsLater: true, refuses: ofConnection,
			endpoint: owned(a.server, readNewMapping, a.confirmBookMapping)},
	}
}

// scopesOfEntries are those of who sees entries, which have the sums of a day.
const scopesOfEntries = scopeRevenue + " " + scopeBooks

// exportRoutes makes the routes of exports and previews.
func exportRoutes(a *booksAPI) []route {
	const exports, export = connectionPath + "/exports", connectionPath + "/exports/{export_id}"
	return []route{
		{pattern: "GET " + connectionPath + "/preview/{date}", scope: scopesOfEntries, refuses: ofItsBooks,
			endpoint: connected(a, readPreviewDate, a.previewBookEntry)},
		{pattern: "GET " + connectionPath + "/payouts/{payout}/preview", scope: scopesOfEntries,
			refuses: ofItsBooks + " payout_not_found", endpoint: connected(a, readNoMembers, a.previewBookPayout)},
		{pattern: "GET " + exports, scope: scopesOfEntries, question: true, refuses: ofConnection,
			endpoint: owned(a.server, readExportPage, a.listBookExports)},
		{pattern: "POST " + exports, scope: scopesOfEntries, creates: true,
			refuses:  ofConnection + " payout_not_found books_connection_state no_revenue payout_state",
			endpoint: owned(a.server, readNewBookExport, a.exportRevenueDay)},
		{pattern: "POST " + export + "/retry", scope: scopesOfEntries, noBody: true,
			refuses:  ofConnection + " export_not_found export_state",
			endpoint: owned(a.server, readNoMembers, a.retryBookExport)},
		{pattern: "POST " + export + "/reverse", scope: scopesOfEntries, noBody: true, creates: true,
			refuses:  ofConnection + " export_not_found export_state",
			endpoint: owned(a.server, readBookReversal, a.reverseBookExport)},
	}
}

// connected returns an endpoint that is owned, and acts on the connection in use that its path names.
func connected[Req, Res any](
	a *booksAPI, read func(*input) Req, answer func(context.Context, *call, *bookConnection, Req) (Res, error),
) *endpoint {
	e := owned(a.server, read, func(ctx context.Context, c *call, of owner, request Req) (res Res, err error) {
		b, err := a.store.usedBookConnection(of, c.id())
		if err != nil {
			return res, err
		}
		return answer(ctx, c, b, request)
	})
	e.doc = reflect.ValueOf(answer).Pointer()
	return e
}

// booksOf makes the engine of a server's books.
func booksOf(s *server) *books {
	clients := s.ledgers
	if clients == nil {
		clients = newLedgers(s.outbound, s.urls, s.now)
	}
	return &books{connector: s.connector(s.noBooks), ledgers: clients}
}

// expireLinks is the chore that removes links to connect books that nobody has used in time.
func (a *booksAPI) expireLinks(ctx context.Context) error {
	_, err := a.store.updateInParts(ctx, rowsAtOnce, func(t *tx) (int64, error) {
		return t.removeBookAuthorizations(rowsAtOnce), nil
	})
	return err
}

// booksRefusal turns errors of the books into refusals for the caller. Other errors are returned as they are.
func booksRefusal(err error) error {
	var failed *outboundError
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.reason {
	case heldReconnect, reasonUnsealable:
		return &refusal{code: codeBooksState, detail: "The connection has to be connected again."}
	case heldNoLicense, heldNoRight:
		return errLack(err)
	case reasonOff:
		return cmp.Or(failed.err, error(errBooksOff))
	case reasonAppNotSet, reasonAppRefused:
		return &refusal{code: codeBooksNotSet}
	}
	return &refusal{code: codeBooksUnavailable, retryAfter: failed.wait}
}

// show sets what only callers see of a connection, and returns it.
func (c *bookConnection) show() *bookConnection {
	c.State, c.ChoiceViews = booksInUse, []bookChoice{}
	for _, o := range c.Choices {
		c.ChoiceViews = append(c.ChoiceViews, bookChoice{o.ID, o.Name})
	}
	if c.OrganisationID != nil {
		c.Company = &bookOrganisation{*c.OrganisationID, c.Organisation}
	}
	if c.product().drafts {
		c.StatusView = &c.Status
	}
	if n := len(c.Former); n > 0 {
		c.SwitchesFrom = &c.Former[n-1].Before
	}
	switch {
	case !c.RemovedAt.IsZero():
		c.State = booksRemoved
	case c.OrganisationID == nil:
		c.State = booksChoosing
	case !c.NeedsReconnectAt.IsZero():
		c.State = booksNeedsReconnect
	case !c.FailingSince.IsZero():
		c.State = booksFailing
	}
	return c
}

// The bookConnections are all connections of an account.
type bookConnections struct {
	Data []*bookConnection `json:"data"` // The rows, newest first: at most one for each product.

	NextCursor *string `json:"next_cursor" is:"=null"` // There are no further pages.
}

// List connections with books.
//
// Lists the connections with bookkeeping software: of an account one for each product at most.
func (a *booksAPI) listBookConnections(_ context.Context, _ *call, of owner, _ noMembers) (*bookConnections, error) {
	rows, err := a.store.bookConnections(of)
	return &bookConnections{Data: showPage(listPage[*bookConnection]{rows: rows}, (*bookConnection).show).Data}, err
}

// A newBookConnection is what an account is to be connected with.
type newBookConnection struct{ product string }

func readNewBookConnection(in *input) *newBookConnection {
	return &newBookConnection{in.text("product", required, 20, oneOf(productNames()...))} // The software.
}

// Connect books.
//
// Begins to connect the account with Xero or Fortnox: answers with the address on which the owner of the books agrees,
// in a browser, within ten minutes. An application gets an address of this service, where the owner of the account
// signs in first: nobody else can finish it. Nothing is sent before a mapping is confirmed and `send_from` is set. If
// access to several companies is granted, one is then to be chosen.
func (a *booksAPI) connectBooks(ctx context.Context, c *call, of owner, r *newBookConnection) (*bookLink, error) {
	return a.books.authorize(ctx, c.narrowToOne(of).account, r.product, a.issuer(), actorToken(c))
}

// Make a code to sign in for the books.
//
// Makes a code with which one person signs in for the account on the pages below `/books`, to connect its books, say
// which account gets what, and post its days: its accountant. The code is in this answer and in no other. It is typed
// in, works once, and expires in 15 minutes; an account has 10 at most, of which the oldest goes. An application's
// token can't make one, since what somebody does there would outlive what it was given.
func (a *booksAPI) makeBooksCode(ctx context.Context, c *call, of owner, _ noMembers) (*signinCode, error) {
	return create(ctx, a.server, c, func(t *tx) (*signinCode, error) {
		return makeSigninCode(t, a.keys.Load(), sessionBooks, c.narrowToOne(of).account, actorToken(c))
	})
}

// Show a connection with books.
//
// Another account's is not found, and none that has ended.
func (a *booksAPI) getBookConnection(
	_ context.Context, _ *call, b *bookConnection, _ noMembers,
) (*bookConnection, error) {
	return b.show(), nil
}

// Disconnect books.
//
// Sends nothing more, and gives the access back where the software allows that for one company. Exports of which
// nothing is in the books are dropped; what was sent stays in the books. If the same company is connected again, it
// gets this connection back, so that no day is sent twice.
func (a *booksAPI) disconnectBooks(ctx context.Context, c *call, of owner, _ noMembers) (*bookConnection, error) {
	if !c.in.dry {
		if err := a.books.endAccess(ctx, of, c.id()); err != nil {
			return nil, err
		}
	}
	return enact(ctx, a.server, c, func(t *tx) (*bookConnection, error) {
		b, err := t.usedBookConnection(of, c.id())
		if err != nil {
			return nil, err
		}
		ends := *b.show()
		dropped, err := disconnectBooks(t, b, actorToken(c))
		ends.dryEnd = dryEndOf("exports", int(dropped))
		return &ends, err
	})
}

func readBookConnectionChange(in *input) (w *bookConnectionChange) {
	w = new(bookConnectionChange)
	// The id of the company, one of `choices`. If the account was connected with it before, that connection is used
	// again, with its own id.
	w.organisation = in.text("organisation", optional, maxNameLength, nil)
	// `true`: `send_from` and `payouts_from` may be days that are past, so that history is sent.
	w.history, _ = in.boolTerm("history")
	w.set = in.change(new(bookConnection).members(), false)
	return w
}

// Change a connection with books.
//
// Chooses the company, says from which business day on days are sent on their own, and how: what counts for days that
// were not sent yet. A change of `outside` or `tests` holds for business days from the present one on; earlier ones
// keep theirs, whenever they are sent. History is never sent unasked. `payouts_from` says the same of payouts. Where
// `send_from` becomes another day, days before it that are not in the books are dropped; where it becomes `null`, all
// of them, and no further days are queued. So with `payouts_from`. Choosing a company that was connected before
// answers with its former connection, whose id differs.
func (a *booksAPI) updateBookConnection(
	ctx context.Context, c *call, of owner, wish *bookConnectionChange,
) (*bookConnection, error) {
	b, err := updated(ctx, a.store, func(t *tx) (*bookConnection, error) {
		return changeBooks(t, a.keys.Load(), of, c.id(), *wish, actorToken(c))
	})
	if err != nil {
		return nil, err
	}
	a.books.wakeUp()
	return b.show(), nil
}

// The endpoints of exports and their previews.

// A bookPreview is what would be sent of a business day.
type bookPreview struct {
	Date    businessDate       `json:"date" is:"date"` // The business day.
	Entries []bookPreviewEntry `json:"entries"`        // One for each currency.
}

func readPreviewDate(in *input) businessDate { return in.pathDate("date") }

// Preview an entry.
//
// The entry of a business day line by line, as it would be sent now, and every reason why it would be held. For Xero,
// which computes the VAT of each line itself, also what that differs from the orders' by. It asks the books and
// changes nothing there.
func (a *booksAPI) previewBookEntry(
	ctx context.Context, _ *call, b *bookConnection, date businessDate,
) (*bookPreview, error) {
	if b.OrganisationID == nil {
		return nil, errNoCompany
	}
	all, err := a.books.preview(ctx, b, date)
	return &bookPreview{date, all}, booksRefusal(err)
}

// Preview the entry of a payout.
//
// The entry of a payout line by line, as it would be sent now, and every reason why it would be held. It asks the books
// and changes nothing there.
func (a *booksAPI) previewBookPayout(
	ctx context.Context, c *call, b *bookConnection, _ noMembers,
) (*bookPreviewEntry, error) {
	if b.OrganisationID == nil {
		return nil, errNoCompany
	}
	p, err := a.books.previewPayout(ctx, b, c.in.pathValue("payout"))
	return p, booksRefusal(err)
}

// An exportPage says which page of the exports a caller asks for.
type exportPage struct {
	state string
	pageQuery
}

func readExportPage(in *input) *exportPage {
	state := in.parameter("state", oneOf(exportStates...)) // Only exports in this state.
	return &exportPage{state, in.page("exp")}
}

// List exports.
//
// Lists what was sent with a connection or waits to be, newest first. A request has two seconds, waiting included.
func (a *booksAPI) listBookExports(ctx context.Context, c *call, of owner, r *exportPage) (*list[*bookExport], error) {
	if _, err := a.store.usedBookConnection(of, c.id()); err != nil {
		return nil, err
	}
	filter := exportFilter{owner: of, connectionID: c.id(), state: r.state}
	return showRows(a.store.within(ctx).bookExports(filter, r.before, r.limit))
}

// The dateExports are the exports of a business day, or the one of a payout.
type dateExports struct {
	AccountID string       `json:"account_id" is:"acct"` // The account.
	Data      []bookExport `json:"data"`                 // One for each currency.
}

// A newBookExport is what is to be sent.
type newBookExport struct {
	date   businessDate
	payout string // the id of one, in place of date; "": date is meant
}

func readNewBookExport(in *input) (r *newBookExport) {
	r = new(newBookExport)
	r.payout = in.text("payout", optional, 40, isID("pot")) // The payout, in place of `date`.
	// The business day. It is required without `payout`.
	r.date = in.text("date", presence(r.payout == ""), 10, checkBusinessDate)
	if in.has("date") && r.payout != "" && !in.isNull("date") {
		in.wrong("date", "not_both", "Name a day or a payout, not both.")
	}
	return r
}

// Send a business day or a payout.
//
// Has a business day sent once it is closed, two hours after its end, in each currency. It may be any day that has
// begun, also one from before `send_from`. A day that has an export keeps it, unless its entry was reversed: then it
// gets a further revision, with the same revenue by the present mapping. A `payout` in place of `date` is sent on the
// day on which it arrives, also one from before `payouts_from`, or is held and says why.
func (a *booksAPI) exportRevenueDay(ctx context.Context, c *call, of owner, r *newBookExport) (*dateExports, error) {
	c.stillTrue = replaysOf(of, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*dateExports, error) {
		if r.payout != "" {
			x, err := requestPayout(t, of, c.id(), r.payout)
			if err != nil {
				return nil, err
			}
			return &dateExports{x.AccountID, []bookExport{*x}}, nil
		}
		rows, err := requestExport(t, of, c.id(), r.date)
		if err != nil {
			return nil, err
		}
		return &dateExports{rows[0].AccountID, rows}, nil
	})
	a.books.wakeUp()
	return made, err
}

// Try an export again.
//
// Has an export that is held, failed or unknown looked at now. An entry whose answer was lost is looked for in the
// books before it is sent again.
func (a *booksAPI) retryBookExport(ctx context.Context, c *call, of owner, _ noMembers) (*bookExport, error) {
	x, err := updated(ctx, a.store, func(t *tx) (*bookExport, error) {
		return retryExport(t, of, c.id(), c.in.pathValue("export_id"))
	})
	a.books.wakeUp()
	return x, err
}

// A bookReversal is how an entry is reversed.
type bookReversal struct {
	date businessDate // in the books; "": that of the entry
}

func readBookReversal(in *input) *bookReversal {
	in.dryRun()
	// The date of the reversal in the books, for a period that is locked meanwhile; by default that of the entry.
	return &bookReversal{in.text("date", optional, 10, checkBusinessDate)}
}

// An exportAnswer is an export that reverses another; in a dry run one that would.
type exportAnswer struct {
	ID       *string `json:"id" is:"exp"`       // Its id, or null: it would be made, and this is a dry run.
	Reverses *string `json:"reverses" is:"exp"` // The export whose entry it reverses.
	bookExport
	dryAnswer
}

// Reverse an entry.
//
// Has the entry of a day taken back: a draft is deleted, for another one a reversing entry is sent. The entry is read
// before: if somebody has voided it, nothing is sent; if somebody has changed it, the reversal is held. Then the day
// can be sent again.
func (a *booksAPI) reverseBookExport(
	ctx context.Context, c *call, of owner, r *bookReversal,
) (*exportAnswer, error) {
	c.stillTrue = replaysOf(of, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*exportAnswer, error) {
		x, err := reverseExport(t, of, c.id(), c.in.pathValue("export_id"), r.date)
		if err != nil {
			return nil, err
		}
		return &exportAnswer{&x.ID, x.Reverses, *x, dryAnswer{c.in.dry}}, nil
	})
	if err != nil || !c.in.dry {
		a.books.wakeUp()
		return made, err
	}
	if _, err = a.store.bookExport(of, made.bookExport.ID); errors.Is(err, errExport) { // it is gone again
		made.ID = nil
	}
	return made, except(err, errExport)
}

// The endpoints of mappings and of the books' own charts of accounts.

// A chartView is what the books say of themselves, for entries of a date.
type chartView struct {
	Date        businessDate  `json:"date" is:"date"`         // The date.
	Currency    string        `json:"currency"`               // The currency of the books.
	LockedUntil *businessDate `json:"locked_until" is:"date"` // The last day that is locked, or null: none is.
	Accounts    []bookAccount `json:"accounts"`               // The accounts.
	TaxRates    []bookTaxRate `json:"tax_rates"`              // Xero: the rates of tax.

	// Xero: the options of tracking categories, as a mapping names them: `Region:North`. Empty at Fortnox, whose cost
	// centres are not read.
	CostCenters []string `json:"cost_centers"`

	// Fortnox: the id of the financial year of the date, or null: there is none.
	Year *int64 `json:"year"`

	// Fortnox: the series of vouchers of that year that take manual entries.
	Series []string `json:"series"`
}

// chartOn reads the chart of a connection for a date; "" is the present business day. It returns the date, too.
func (b *books) chartOn(ctx context.Context, c *bookConnection, date businessDate) (*bookChart, businessDate, error) {
	if c.OrganisationID == nil {
		return nil, "", errNoCompany
	}
	if date == "" {
		calendar, err := b.store.businessCalendar(c.AccountID)
		if err != nil {
			return nil, "", err
		}
		date = calendar.dateOf(b.now())
	}
	chart, err := b.chart(ctx, c, date)
	return chart, date, booksRefusal(err)
}

// viewChart returns a chart as callers see it.
func viewChart(date businessDate, chart *bookChart) *chartView {
	v := &chartView{date, chart.Currency, nilIfEmpty(chart.LockedUntil), append([]bookAccount{}, chart.Accounts...),
		append([]bookTaxRate{}, chart.TaxRates...), append([]string{}, chart.CostCenters...), nil,
		append([]string{}, chart.Series...)}
	if chart.Year != 0 {
		v.Year = &chart.Year
	}
	return v
}

func readChartDate(in *input) (date businessDate) {
	if on := in.date("date"); !on.IsZero() { // The date of entries; by default the present business day.
		date = on.Format(time.DateOnly)
	}
	return date
}

// Read the chart of accounts.
//
// Asks the books for what they say of themselves: accounts, rates of tax, what is locked, and at Fortnox the financial
// year and its series.
func (a *booksAPI) getBookAccounts(
	ctx context.Context, _ *call, b *bookConnection, date businessDate,
) (*chartView, error) {
	chart, date, err := a.books.chartOn(ctx, b, date)
	if err != nil {
		return nil, err
	}
	return viewChart(date, chart), nil
}

// A mappingView is the mapping of a connection.
type mappingView struct {
	Mapping     *bookMapping `json:"mapping"`      // The mapping as confirmed, or null: none was.
	ConfirmedAt stamp        `json:"confirmed_at"` // When it was confirmed, or null: it was not.

	// What the books' own chart suggests, or null: it was not asked for. It is not used until it is confirmed.
	Suggested *bookMapping `json:"suggested"`

	// For people: what else may book the same as the lines for payouts, of `mapping` or of `suggested`.
	Warnings []string `json:"warnings"`
}

// viewMapping returns the mapping of a connection as callers see it, with what was suggested, if anything was.
func viewMapping(c *bookConnection, suggested *bookMapping) *mappingView {
	v := &mappingView{c.Mapping, c.MappingAt, suggested, []string{}}
	if c.Mapping.booksPayouts() || suggested.booksPayouts() {
		rival := cmp.Or(c.product().rival, "Another connector of the payment provider")
		v.Warnings = append(v.Warnings, rival+" would book fees and payouts, too: use one of the two.")
	}
	return v
}

// suggestedFrom is how many days of revenue a suggested mapping covers.
const suggestedFrom = 90

// suggestFor suggests a mapping of a connection, from its books and the revenue of the last days.
func (b *books) suggestFor(ctx context.Context, c *bookConnection) (*bookMapping, error) {
	chart, _, err := b.chartOn(ctx, c, "")
	if err != nil {
		return nil, err
	}
	seen, err := b.store.sumsToMap(c, b.now())
	m := suggestMapping(c.product(), chart, seen)
	return &m, err
}

// sumsToMap returns the sums of the last suggestedFrom days that belong in the entries of a connection, without those
// in another currency than that of its books, if it is known.
func (q *queries) sumsToMap(c *bookConnection, now time.Time) (seen []revenueSum, err error) {
	calendar, err := q.businessCalendar(c.AccountID)
	if err != nil {
		return nil, err
	}
	date := calendar.dateOf(now)
	from := midnight(date).AddDate(0, 0, -suggestedFrom).Format(time.DateOnly)
	days, err := q.revenueDayKeys(c.AccountID, from, date)
	if err != nil {
		return nil, err
	}
	for _, day := range days {
		if day.Currency != valueOr(c.Currency, day.Currency) {
			continue
		}
		sums, err := q.revenueSums(c.AccountID, day.Date, day.Currency)
		if err != nil {
			return nil, err
		}
		seen = append(seen, slices.DeleteFunc(sums, func(s revenueSum) bool { return !c.wants(day.Date, &s) })...)
	}
	return seen, nil
}

func readSuggest(in *input) bool {
	return in.parameter("suggest", oneOf("true", "false")) == "true" // `true`: suggest one, too.
}

// Read a mapping.
//
// Which account of the books gets what. A suggestion (`suggest=true`) is made from the books' own chart of accounts,
// for the revenue of the last 90 days in their currency. What is not clear is left out, and nothing of it is used until
// it is confirmed.
func (a *booksAPI) getBookMapping(
	ctx context.Context, _ *call, b *bookConnection, suggest bool,
) (*mappingView, error) {
	var suggested *bookMapping
	var err error
	if suggest {
		suggested, err = a.books.suggestFor(ctx, b)
	}
	return viewMapping(b, suggested), err
}

// readNewMapping reads what holds for every product.
func readNewMapping(in *input) bookMapping { return readMapping(in, nil) }

// Confirm a mapping.
//
// Confirms the whole mapping, in place of the one before. What no line names an account for is held, never guessed.
// What waits for it is looked at again. Days that were sent stay as they are: reverse one and send it again.
func (a *booksAPI) confirmBookMapping(
	ctx context.Context, c *call, of owner, _ bookMapping,
) (*mappingView, error) {
	b, err := a.store.usedBookConnection(of, c.id())
	if err != nil {
		return nil, err
	}
	m := readMapping(c.in, b.product()) // again: what a line may have depends on the product
	if err := c.in.err(); err != nil {
		return nil, err
	}
	if b, err = updated(ctx, a.store, func(t *tx) (*bookConnection, error) {
		return saveMapping(t, of, c.id(), &m, actorToken(c))
	}); err != nil {
		return nil, err
	}
	a.books.wakeUp()
	return viewMapping(b, nil), nil
}

// readMapping reads {"lines":[…]} from the body of a request, for a product; nil: it checks only what holds for
// every product. Members that are null count as absent, so that a mapping can be sent back as it was answered.
func readMapping(in *input, product *bookProduct) bookMapping {
	m := bookMapping{Lines: []mappingRule{}}
	seen := map[string]bool{}
	for _, line := range in.objects("lines", maxMappingRules) { // The rules, none twice for the same.
		before := len(*in.errs)
		r := readRule(line, product)
		switch {
		case product == nil || len(*in.errs) > before: // what the line is for is not known then
		case seen[r.subject()]:
			line.wrong("kind", "repeated", "Another line is for the same.")
		default:
			seen[r.subject()] = true
		}
		m.Lines = append(m.Lines, r)
	}
	return m
}

// subject returns what a line is for, of which a mapping has one line at most.
func (r *mappingRule) subject() string {
	return fmt.Sprintf("%s %d %t %q %s", r.Kind, valueOr(r.VATRate, -1), r.Group == nil, valueOr(r.Group, ""),
		valueOr(r.Method, ""))
}

// readRule reads one line of a mapping.
func readRule(in *input, product *bookProduct) (r mappingRule) {
	r.Kind = bookMappingKind(in.text("kind", required, 20, oneOf(ruleKinds...))) // What it is for.
	of := cmp.Or(product, &bookProduct{})
	// The code of the account in the books: at Fortnox 1000 to 9999.
	r.Account = in.text("account", required, 10, of.account)
	if in.ofKinds(product, "vat_rate", r.Kind, ruleSales, ruleDelivery) {
		// Of `sales` and `delivery`, which need it: the rate of VAT in hundredths of a percent.
		r.VATRate = new(in.vatRate("vat_rate"))
	}
	if in.ofKinds(product, "group", r.Kind, ruleSales) && in.given("group") {
		// Of `sales`: the group; empty: what has none; `null`: every group that no other line names.
		r.Group = new(in.text("group", optional, maxOrderText, nil))
	}
	if in.ofKinds(product, "method", r.Kind, rulePayment) {
		// Of `payment`, which needs it: the way of paying whose clearing account it is.
		if method := in.text("method", required, 20, oneOf(payingMethods...)); method != "" {
			r.Method = new(bookPayMethod(method))
		}
	}
	readTax(in, product, &r)
	if in.given("cost_center") {
		// A cost centre; Xero: a tracking category and its option, `Region:North`.
		r.CostCenter = nilIfEmpty(in.text("cost_center", required, maxCostCenter, of.costCenter))
	}
	return r
}

// readTax reads the tax of a line: a tax type, or the account of the VAT, of which a rate of 0 needs none.
func readTax(in *input, product *bookProduct, r *mappingRule) {
	byRate := r.Kind == ruleSales || r.Kind == ruleDelivery
	of := cmp.Or(product, &bookProduct{taxInside: true})
	need := presence(product != nil && byRate && (of.taxInside || valueOr(r.VATRate, 0) > 0))
	if !of.taxInside && !in.ofKinds(product, "tax", r.Kind, ruleSales, ruleDelivery) {
		return
	}
	if need == required || in.given("tax") {
		// `sales` and `delivery` need it, at Fortnox unless the rate is 0. Xero: a TaxType; the default of other kinds
		// is `NONE`. Fortnox: the account of the VAT.
		r.Tax = nilIfEmpty(in.text("tax", required, maxTaxType, of.tax))
	}
}

// ofKinds reports whether a member belongs to a line of a mapping of that kind. If it does not, but is given and
// not null, that is noted as an error. Without a product it reports only whether the member is given.
func (in *input) ofKinds(product *bookProduct, name string, kind bookMappingKind, kinds ...bookMappingKind) bool {
	if product == nil {
		return in.given(name)
	}
	if slices.Contains(kinds, kind) {
		return true
	}
	if kind != "" && in.given(name) {
		in.wrong(name, "not_of_this_kind", "A line of the kind "+string(kind)+" has no such member.")
	}
	return false
}

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
