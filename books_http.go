package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
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

// booksWing makes the routes and the background work of books.
func booksWing(s *server, b *books) wing {
	a := &booksAPI{s, b}
	const connection = "/books/connections/{id}"
	w := wing{
		routes: []route{
			{pattern: "GET /books/connections", run: a.listConnections},
			{pattern: "POST /books/connections", run: a.connect},
			{pattern: "GET " + connection, run: a.showConnection},
			{pattern: "PATCH " + connection, run: a.changeConnection},
			{pattern: "DELETE " + connection, run: a.disconnect},
			{pattern: "GET " + connection + "/accounts", run: a.showChart},
			{pattern: "GET " + connection + "/mapping", run: a.showMapping},
			{pattern: "PUT " + connection + "/mapping", body: maxMappingBody, values: maxMappingValues,
				readsLater: true, run: a.saveMapping},
			{pattern: "GET " + connection + "/preview/{date}", run: a.preview},
			{pattern: "GET " + connection + "/payouts/{payout}/preview", run: a.previewPayout},
			{pattern: "GET " + connection + "/exports", question: true, run: a.listExports},
			{pattern: "POST " + connection + "/exports", creates: true, run: a.requestExport},
			{pattern: "POST " + connection + "/exports/{export_id}/retry", noBody: true, run: a.retryExport},
			{pattern: "POST " + connection + "/exports/{export_id}/reverse", noBody: true, creates: true,
				run: a.reverseExport},
		},
		chores: []chore{{fault: "links that connect books can't expire", timeDriven: true, run: a.expireLinks}},
	}
	for i := range w.routes {
		w.routes[i].token, w.routes[i].scope, w.routes[i].careful = tokenRequired, scopeBooks, true
		if p := w.routes[i].path(); strings.Contains(p, "/preview") || strings.Contains(p, "/exports") {
			w.routes[i].scope = scopeRevenue + " " + scopeBooks // entries have the sums of a day
		}
	}
	w.routes = append(w.routes,
		route{pattern: "GET /books/connect/{product}", free: true, address: "books", page: "books",
			run: a.followLink},
		route{pattern: "GET /books/callback/{product}", free: true, address: "books", page: "books",
			run: a.comeBack})
	w.refusals = map[string]refusalForm{"books": booksRefused}
	w.metrics = booksMetrics(s.store)
	if !s.noBooks {
		w.workers = append(w.workers, newBooksWorker(b).run)
	}
	return w
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

// booksMetrics are the metrics of books, read from the database. They are left out while it can't be read.
func booksMetrics(st *store) []metric {
	return []metric{{"widgetd_books", "gauge",
		"Connections with books, those that fail or need their owner; exports held, refused, unknown or failed.",
		func() []string {
			n, err := st.booksTotals(newStamp(st.now().Add(-heldTooLong)))
			if err != nil {
				return nil
			}
			return []string{
				fmt.Sprintf(`{what="connections"} %d`, n.Connections),
				fmt.Sprintf(`{what="failed"} %d`, n.Failed),
				fmt.Sprintf(`{what="failing_connections"} %d`, n.Failing),
				fmt.Sprintf(`{what="held"} %d`, n.Held),
				fmt.Sprintf(`{what="held_long"} %d`, n.HeldLong),
				fmt.Sprintf(`{what="need_reconnect"} %d`, n.NeedOwner),
				fmt.Sprintf(`{what="refused"} %d`, n.Refused),
				fmt.Sprintf(`{what="unknown"} %d`, n.Unknown),
				fmt.Sprintf(`{what="waiting"} %d`, n.Waiting),
			}
		}}}
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
		return errBooksOff
	case reasonAppNotSet, reasonAppRefused:
		return &refusal{code: codeBooksNotSet}
	}
	return &refusal{code: codeBooksUnavailable, retryAfter: failed.wait}
}

// show sets what only callers see of a connection, and returns it.
func (c *bookConnection) show() *bookConnection {
	c.State, c.ChoiceViews = "in_use", []bookOrganisation{}
	for _, o := range c.Choices {
		c.ChoiceViews = append(c.ChoiceViews, bookOrganisation{ID: o.ID, Name: o.Name})
	}
	if c.OrganisationID != nil {
		c.Company = &bookOrganisation{ID: *c.OrganisationID, Name: c.Organisation}
	}
	if c.product().drafts {
		c.StatusView = &c.Status
	}
	if n := len(c.Former); n > 0 {
		c.SwitchesFrom = &c.Former[n-1].Before
	}
	switch {
	case !c.RemovedAt.IsZero():
		c.State = "removed"
	case c.OrganisationID == nil:
		c.State = "choosing"
	case !c.NeedsReconnectAt.IsZero():
		c.State = "needs_reconnect"
	case !c.FailingSince.IsZero():
		c.State = "failing"
	}
	return c
}

// listConnections lists the connections with books, of an account one for each product at most.
func (a *booksAPI) listConnections(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	rows, err := a.store.bookConnections(of)
	return showPage(listPage[*bookConnection]{rows: rows}, (*bookConnection).show), err
}

// admitConnection is admitOwner for calls whose path names a connection in use, which it returns, too. Errors: also
// errBooksConnection.
func (a *booksAPI) admitConnection(ctx context.Context, c *call) (owner, *bookConnection, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return of, nil, err
	}
	b, err := a.store.usedBookConnection(of, c.id())
	return of, b, err
}

func (a *booksAPI) connect(ctx context.Context, c *call) (any, error) {
	product := c.in.text("product", required, 20, oneOf(productNames()...))
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return a.books.authorize(ctx, c.oneOwner(of).account, product, a.issuer(), actorToken(c))
}

func (a *booksAPI) showConnection(ctx context.Context, c *call) (any, error) {
	_, b, err := a.admitConnection(ctx, c)
	if err != nil {
		return nil, err
	}
	return b.show(), nil
}

func (a *booksAPI) disconnect(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return noContent, a.books.disconnect(ctx, of, c.id(), actorToken(c))
}

// readConnectionChange reads what is to be changed of a connection.
func readConnectionChange(in *input) (w connectionChange) {
	w.organisation = in.text("organisation", optional, maxNameLength, anyText)
	w.history, _ = in.boolTerm("history")
	w.set = in.change(new(bookConnection).members(), false)
	return w
}

// changeConnection answers PATCH /books/connections/{id}. Choosing a company that was connected before
// answers with its former connection, whose id differs.
func (a *booksAPI) changeConnection(ctx context.Context, c *call) (any, error) {
	wish := readConnectionChange(c.in)
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	b, err := updated(ctx, a.store, func(t *tx) (*bookConnection, error) {
		return changeBooks(t, a.keys.Load(), of, c.id(), wish, actorToken(c))
	})
	if err != nil {
		return nil, err
	}
	a.books.wakeUp()
	return b.show(), nil
}

// The page for people who come back from a product.

// booksTemplate renders that page from a booksPage.
var booksTemplate = pageTemplateOf("books.html", "")

// A booksPage is what the template shows.
type booksPage struct {
	Title, Text string
	Tone        string // toneGood or toneBad
	Facts       [][2]string
	Choices     []bookOrganisation
	RequestID   string
}

// booksRefused shows a refusal to people who come back from a product. It is a refusalForm.
func booksRefused(_ *http.Request, ref *refusal, requestID string) *reply {
	p := &booksPage{Title: "Not connected", Text: ref.text(), Tone: toneBad}
	if ref.code.status == http.StatusInternalServerError {
		p.RequestID = requestID
	}
	return booksTemplate.renderRefusal(ref.code.status, p)
}

// A comeBackQuery holds the parameters with which a product's pages send somebody back (RFC 6749, section 4.1.2).
type comeBackQuery struct{ product, state, code, refusal string }

func readComeBack(in *input) (q comeBackQuery) {
	q.product = in.pathValue("product")
	for name, to := range map[string]*string{"state": &q.state, "code": &q.code, "error": &q.refusal} {
		if values := in.query[name]; len(values) == 1 {
			*to = values[0]
		}
	}
	return q
}

// followLink answers GET /books/connect/{product}, where the links lead that applications have asked for. It redirects
// people who have signed in for the account to the product, and others to the page to sign in first. So whoever asked
// for the link can neither finish the connection, nor have the owner finish it with somebody else's company.
func (a *booksAPI) followLink(ctx context.Context, c *call) (any, error) {
	q := readComeBack(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	if productOf(q.product) == nil {
		return nil, &refusal{code: codeNotFound}
	}
	link, err := a.store.bookAuthorization(q.product, hashOf(q.state), newStamp(c.now))
	if errors.Is(err, errNotFound) || err == nil && !link.ofApp() {
		return nil, errBooksState
	}
	if err != nil {
		return nil, err
	}
	s, err := a.signedIn(a.store.queries, c)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		query := url.Values{booksSignin: {q.product}, "state": {q.state}}
		return redirect("../../oauth/signin?"+query.Encode(), pageReferrers), nil
	case s.AccountID != link.AccountID:
		return nil, errBooksSignin
	}
	made, err := a.books.authorize(ctx, s.AccountID, q.product, a.issuer(), actorPerson(s.MadeBy))
	if err != nil {
		return nil, err
	}
	return redirect(made.AuthorizeURL, pageReferrers), nil
}

// comeBack answers with a page that shows the result.
func (a *booksAPI) comeBack(ctx context.Context, c *call) (any, error) {
	q := readComeBack(c.in)
	if err := a.admit(ctx, c); err != nil {
		return nil, err
	}
	if productOf(q.product) == nil {
		return nil, &refusal{code: codeNotFound}
	}
	var b *bookConnection
	err := a.mayFinish(c, &q)
	if err == nil {
		b, err = a.books.callback(ctx, q.product, q.state, q.code, q.refusal)
	}
	if err != nil {
		return nil, err
	}
	of, err := a.store.account(b.AccountID)
	if err != nil {
		return nil, err
	}
	p := &booksPage{Title: "Connected", Tone: toneGood, Facts: [][2]string{
		{"Account", of.Name}, {"Software", b.product().title}, {"Company", b.Organisation}},
		Text: "Nothing is sent yet: first confirm which account of the books gets what, and then say from which " +
			"day on revenue is sent."}
	if b.SendFrom != nil {
		p.Text = "Revenue is sent again from " + *b.SendFrom + " on."
	}
	if b.OrganisationID == nil {
		p.Title, p.Facts, p.Tone = "Choose a company", p.Facts[:2], ""
		p.Text = "Access to more than one company was granted. Choose one of them for this connection, " + b.ID + "."
		p.Choices = b.Choices
	}
	return booksTemplate.render(http.StatusOK, pageBrand{}, p)
}

// mayFinish returns nil if the caller may finish an authorization. One that a person began, see followLink, can be
// finished only by somebody who has signed in for its account; one that an application began can't be finished at
// all. Errors: errBooksState, errBooksSignin.
func (a *booksAPI) mayFinish(c *call, q *comeBackQuery) error {
	begun, err := a.store.bookAuthorization(q.product, hashOf(q.state), newStamp(c.now))
	if err != nil {
		return except(err, errNotFound) // callback reports that the state is unknown
	}
	if begun.ofApp() { // its state leads to followLink, which makes another one for the owner
		return errBooksState
	}
	s, err := a.signedIn(a.store.queries, c)
	if err == nil && begun.ofPerson() && (s == nil || s.AccountID != begun.AccountID) {
		err = errBooksSignin
	}
	return err
}

// The endpoints of exports and their previews.

// A datePreview is what would be sent of a business day.
type datePreview struct {
	Date    businessDate  `json:"date"`
	Entries []bookPreview `json:"entries"` // one for each currency
}

// admitCompany is admitConnection for what asks the books. Errors: also errNoCompany.
func (a *booksAPI) admitCompany(ctx context.Context, c *call) (*bookConnection, error) {
	_, b, err := a.admitConnection(ctx, c)
	if err == nil && b.OrganisationID == nil {
		err = errNoCompany
	}
	return b, err
}

func (a *booksAPI) preview(ctx context.Context, c *call) (any, error) {
	date := c.in.pathDate("date")
	b, err := a.admitCompany(ctx, c)
	if err != nil {
		return nil, err
	}
	all, err := a.books.preview(ctx, b, date)
	return &datePreview{date, all}, booksRefusal(err)
}

func (a *booksAPI) previewPayout(ctx context.Context, c *call) (any, error) {
	id := c.in.pathValue("payout")
	b, err := a.admitCompany(ctx, c)
	if err != nil {
		return nil, err
	}
	p, err := a.books.previewPayout(ctx, b, id)
	return p, booksRefusal(err)
}

// exportStates are the states of an export that a filter accepts.
var exportStates = []string{exportWaiting, exportHeld, exportReady, exportSending, exportUnknown, exportPosted,
	exportFailed, exportReversed}

func (a *booksAPI) listExports(ctx context.Context, c *call) (any, error) {
	filter := exportFilter{connectionID: c.id(), state: c.in.parameter("state", oneOf(exportStates...))}
	page := c.in.page("exp")
	of, _, err := a.admitConnection(ctx, c)
	if err != nil {
		return nil, err
	}
	filter.owner = of
	return showRows(a.store.within(ctx).bookExports(filter, page.before, page.limit))
}

// A dateExports has the exports of a business day, one for each currency, or the export of a payout.
type dateExports struct {
	AccountID string       `json:"account_id"`
	Data      []bookExport `json:"data"`
}

func (a *booksAPI) requestExport(ctx context.Context, c *call) (any, error) {
	payout := c.in.text("payout", optional, 40, isID("pot"))
	date := c.in.text("date", need(payout == ""), 10, checkBusinessDate)
	if payout != "" && c.in.given("date") {
		c.in.wrong("date", "not_both", "Name a day or a payout, not both.")
	}
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(of, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*dateExports, error) {
		if payout != "" {
			x, err := requestPayout(t, of, c.id(), payout)
			if err != nil {
				return nil, err
			}
			return &dateExports{x.AccountID, []bookExport{*x}}, nil
		}
		rows, err := requestExport(t, of, c.id(), date)
		if err != nil {
			return nil, err
		}
		return &dateExports{rows[0].AccountID, rows}, nil
	})
	a.books.wakeUp()
	return made, err
}

func (a *booksAPI) retryExport(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	x, err := updated(ctx, a.store, func(t *tx) (*bookExport, error) {
		return retryExport(t, of, c.id(), c.in.pathValue("export_id"))
	})
	a.books.wakeUp()
	return x, err
}

func (a *booksAPI) reverseExport(ctx context.Context, c *call) (any, error) {
	date := c.in.text("date", optional, 10, checkBusinessDate) // "": that of the entry
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(of, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*bookExport, error) {
		return reverseExport(t, of, c.id(), c.in.pathValue("export_id"), date)
	})
	a.books.wakeUp()
	return made, err
}

// The endpoints of mappings and of the books' own charts of accounts.

// A chartView is what the books report about themselves, for entries of a date.
type chartView struct {
	Date        businessDate  `json:"date"`
	Currency    string        `json:"currency"`
	LockedUntil *businessDate `json:"locked_until"`
	Accounts    []bookAccount `json:"accounts"`
	TaxRates    []bookTaxRate `json:"tax_rates"`    // Xero
	CostCenters []string      `json:"cost_centers"` // Xero: options of tracking
	Year        *int64        `json:"year"`         // Fortnox: the id of the financial year; nil: there is none
	Series      []string      `json:"series"`       // Fortnox
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

func (a *booksAPI) showChart(ctx context.Context, c *call) (any, error) {
	on := c.in.date("date")
	_, b, err := a.admitConnection(ctx, c)
	if err != nil {
		return nil, err
	}
	date := ""
	if !on.IsZero() {
		date = on.Format(time.DateOnly)
	}
	chart, date, err := a.books.chartOn(ctx, b, date)
	if err != nil {
		return nil, err
	}
	return viewChart(date, chart), nil
}

// A mappingView is the mapping of a connection.
type mappingView struct {
	Mapping     *bookMapping `json:"mapping"` // nil: none was confirmed
	ConfirmedAt stamp        `json:"confirmed_at"`
	Suggested   *bookMapping `json:"suggested"` // where it was asked for; it is not used
	Warnings    []string     `json:"warnings"`  // for people
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
	chart, date, err := b.chartOn(ctx, c, "")
	if err != nil {
		return nil, err
	}
	from := midnight(date).AddDate(0, 0, -suggestedFrom).Format(time.DateOnly)
	days, err := b.store.revenueDayKeys(c.AccountID, from, date)
	if err != nil {
		return nil, err
	}
	var seen []revenueSum
	for _, day := range days {
		sums, err := b.store.revenueSums(c.AccountID, day.Date, day.Currency)
		if err != nil {
			return nil, err
		}
		seen = append(seen, slices.DeleteFunc(sums, func(s revenueSum) bool { return !c.wants(day.Date, &s) })...)
	}
	m := suggestMapping(c.product(), chart, seen)
	return &m, nil
}

func (a *booksAPI) showMapping(ctx context.Context, c *call) (any, error) {
	suggest := c.in.parameter("suggest", oneOf("true", "false")) == "true"
	_, b, err := a.admitConnection(ctx, c)
	if err != nil {
		return nil, err
	}
	var suggested *bookMapping
	if suggest {
		suggested, err = a.books.suggestFor(ctx, b)
	}
	return viewMapping(b, suggested), err
}

// saveMapping answers PUT /books/connections/{id}/mapping. What depends on the product is checked once the
// connection's product is known.
func (a *booksAPI) saveMapping(ctx context.Context, c *call) (any, error) {
	readMapping(c.in, nil)
	of, b, err := a.admitConnection(ctx, c)
	if err != nil {
		return nil, err
	}
	m := readMapping(c.in, b.product())
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
	for _, line := range in.objects("lines", maxMappingRules) {
		before := len(*in.errs)
		r := readRule(line, product)
		key := fmt.Sprintf("%s %d %t %q %s", r.Kind, valueOr(r.VATRate, -1), r.Group == nil,
			valueOr(r.Group, ""), valueOr(r.Method, ""))
		switch {
		case product == nil || len(*in.errs) > before: // what the line is for is not known then
		case seen[key]:
			line.wrong("kind", "repeated", "Another line is for the same.")
		default:
			seen[key] = true
		}
		m.Lines = append(m.Lines, r)
	}
	return m
}

// readRule reads one line of a mapping.
func readRule(in *input, product *bookProduct) (r mappingRule) {
	r.Kind = in.text("kind", required, 20, oneOf(ruleKinds...))
	of := cmp.Or(product, &bookProduct{})
	r.Account = in.text("account", required, 10, of.account)
	if in.ofKinds(product, "vat_rate", r.Kind, ruleSales, ruleDelivery) {
		r.VATRate = new(in.amount("vat_rate", required, 0, maxVATRate))
	}
	if in.ofKinds(product, "group", r.Kind, ruleSales) && in.given("group") {
		r.Group = new(in.text("group", optional, maxOrderText, anyText))
	}
	if in.ofKinds(product, "method", r.Kind, rulePayment) {
		r.Method = nilIfEmpty(in.text("method", required, 20, oneOf(payingMethods...)))
	}
	readTax(in, product, &r)
	if in.given("cost_center") {
		r.CostCenter = nilIfEmpty(in.text("cost_center", required, maxCostCenter, of.costCenter))
	}
	return r
}

// readTax reads the tax of a line: a tax type, or the account of the VAT, of which a rate of 0 needs none.
func readTax(in *input, product *bookProduct, r *mappingRule) {
	byRate := r.Kind == ruleSales || r.Kind == ruleDelivery
	of := cmp.Or(product, &bookProduct{taxInside: true})
	need := need(product != nil && byRate && (of.taxInside || valueOr(r.VATRate, 0) > 0))
	if !of.taxInside && !in.ofKinds(product, "tax", r.Kind, ruleSales, ruleDelivery) {
		return
	}
	if need == required || in.given("tax") {
		r.Tax = nilIfEmpty(in.text("tax", required, maxTaxType, of.tax))
	}
}

// ofKinds reports whether a member belongs to a line of a mapping of that kind. If it does not, but is given and
// not null, that is noted as an error. Without a product it reports only whether the member is given.
func (in *input) ofKinds(product *bookProduct, name, kind string, kinds ...string) bool {
	if product == nil {
		return in.given(name)
	}
	if slices.Contains(kinds, kind) {
		return true
	}
	if kind != "" && in.given(name) {
		in.wrong(name, "not_of_this_kind", "A line of the kind "+kind+" has no such member.")
	}
	return false
}
