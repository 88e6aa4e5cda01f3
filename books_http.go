package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
			{pattern: "GET /books/connections", run: endpoint(a.listConnections)},
			{pattern: "POST /books/connections", run: endpoint(a.connect)},
			{pattern: "GET " + connection, run: endpoint(a.showConnection)},
			{pattern: "PATCH " + connection, run: endpoint(a.changeConnection)},
			{pattern: "DELETE " + connection, run: endpoint(a.disconnect)},
			{pattern: "GET " + connection + "/accounts", run: endpoint(a.showChart)},
			{pattern: "GET " + connection + "/mapping", run: endpoint(a.showMapping)},
			{pattern: "PUT " + connection + "/mapping", body: maxMappingBody, values: maxMappingValues, late: true,
				run: endpoint(a.saveMapping)},
			{pattern: "GET " + connection + "/preview/{date}", run: endpoint(a.preview)},
			{pattern: "GET " + connection + "/exports", question: true, run: endpoint(a.listExports)},
			{pattern: "POST " + connection + "/exports", creates: true, run: endpoint(a.requestExport)},
			{pattern: "POST " + connection + "/exports/{export}/retry", noBody: true, run: endpoint(a.retryExport)},
			{pattern: "POST " + connection + "/exports/{export}/reverse", noBody: true, creates: true,
				run: endpoint(a.reverseExport)},
		},
		chores: []chore{{fault: "links that connect books can't expire", timeDriven: true, run: a.expireLinks}},
	}
	for i := range w.routes {
		w.routes[i].token, w.routes[i].scope = tokenRequired, scopeBooks
		if p := w.routes[i].path(); strings.Contains(p, "/preview/") || strings.Contains(p, "/exports") {
			w.routes[i].scope = scopeRevenue + " " + scopeBooks // entries have the sums of a day
		}
	}
	w.routes = append(w.routes,
		route{pattern: "GET /books/connect/{product}", free: true, address: "books", page: booksRefused,
			run: endpoint(a.followLink)},
		route{pattern: "GET /books/callback/{product}", free: true, address: "books", page: booksRefused,
			run: endpoint(a.comeBack)})
	w.metrics = booksMetrics(s.store)
	if !s.noBooks {
		w.workers = append(w.workers, newBooksWorker(b).run, b.warnOfSealed)
	}
	return w
}

// booksOf makes the engine of a server's books.
func booksOf(s *server) *books {
	return &books{connector: s.connector(s.noBooks), ledgers: newLedgers(s.outbound, s.xeroURL, s.fortnoxURL, s.now),
		paces: map[string]*bookPace{}}
}

// expireLinks is the chore that removes links to connect books that nobody has used in time.
func (a *booksAPI) expireLinks(ctx context.Context) error {
	_, err := a.store.updateInParts(ctx, rowsAtOnce, func(t *tx) (int64, error) {
		t.invalidate()
		return t.removeBookAuthorizations(rowsAtOnce)
	})
	return err
}

// booksMetrics are the metrics of books, read from the database. They are left out while it can't be read.
func booksMetrics(st *store) []metric {
	return []metric{{"widgetd_books", "gauge",
		"Connections with books, those that fail or need their owner; exports that are held, unknown or failed.",
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
				fmt.Sprintf(`{what="unknown"} %d`, n.Unknown),
			}
		}}}
}

// booksRefusal turns errors of the books into refusals for the caller. Other errors are returned as they are.
func booksRefusal(err error) error {
	var failed *ledgerError
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.reason {
	case heldReconnect, reasonUnsealable:
		return &refusal{code: codeBooksState, detail: "The connection has to be connected again."}
	case reasonOff:
		return errBooksOff
	case reasonAppNotSet, reasonAppRefused:
		return &refusal{code: codeBooksNotSet}
	}
	return &refusal{code: codeBooksUnavailable, retryAfter: failed.retryAfter}
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
	if c.Product == productXero {
		c.StatusView = &c.Status
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

// listConnections answers GET /books/connections. An account has one for each product at most.
func (a *booksAPI) listConnections(
	_ context.Context, c *call, q *accountScope,
) (*list[*bookConnection], error) {
	rows, err := a.store.bookConnections(ownedBy(q.oneOwner(c).account))
	return showPage(listPage[*bookConnection]{rows: rows}, (*bookConnection).show), err
}

// A connectionRequest is a request whose path names a connection in use.
type connectionRequest struct {
	rowRequest
	connection *bookConnection
}

// resolve also reads the connection. Errors: also errBooksConnection.
func (q *connectionRequest) resolve(s *server, c *call) error {
	err := q.rowRequest.resolve(s, c)
	if err == nil {
		q.connection, err = s.store.usedBookConnection(q.owner, q.id)
	}
	return err
}

// connectRequest is the body of POST /books/connections.
type connectRequest struct {
	accountScope
	product string
}

func (q *connectRequest) read(in *input) {
	q.accountScope.read(in)
	q.product = in.text("product", required, 20, oneOf(bookProducts...))
}

// connect answers POST /books/connections.
func (a *booksAPI) connect(ctx context.Context, c *call, q *connectRequest) (*bookLink, error) {
	return a.books.authorize(ctx, q.oneOwner(c).account, q.product, a.issuer(), actorToken(c))
}

// showConnection answers GET /books/connections/{id}.
func (a *booksAPI) showConnection(_ context.Context, c *call, q *connectionRequest) (*bookConnection, error) {
	return q.connection.show(), nil
}

// disconnect answers DELETE /books/connections/{id}.
func (a *booksAPI) disconnect(ctx context.Context, c *call, q *rowRequest) (noContent, error) {
	return noContent{}, a.books.disconnect(ctx, q.owner, q.id, actorToken(c))
}

// readConnectionChange reads what is to be changed of a connection.
func readConnectionChange(in *input) (w connectionChange) {
	w.organisation = in.text("organisation", optional, maxNameLength, nil)
	if in.isNull("send_from") {
		w.sendFrom = new("")
	} else if in.has("send_from") {
		w.sendFrom = new(in.text("send_from", required, 10, checkBusinessDate))
	}
	w.history, _ = in.boolTerm("history")
	w.status = in.text("status", optional, 10, oneOf(entryDraft, entryPosted))
	if in.isNull("series") {
		w.series = new("")
	} else if in.has("series") {
		w.series = new(in.text("series", required, 10, checkSeries))
	}
	for name, to := range map[string]**bool{"outside": &w.outside, "tests": &w.tests} {
		if value, present := in.boolTerm(name); present {
			*to = &value
		}
	}
	return w
}

// checkSeries is a textCheck for the code of a voucher series.
func checkSeries(s string) (code, detail string) {
	if !visible(s) {
		return "invalid_series", "This must be the code of a voucher series, such as W."
	}
	return "", ""
}

// changeBooksRequest is the body of PATCH /books/connections/{id}.
type changeBooksRequest struct {
	rowRequest
	wish connectionChange
}

func (q *changeBooksRequest) read(in *input) {
	q.rowRequest.read(in)
	q.wish = readConnectionChange(in)
}

// changeConnection answers PATCH /books/connections/{id}. Choosing a company that was connected before
// answers with its former connection, whose id differs.
func (a *booksAPI) changeConnection(
	ctx context.Context, c *call, q *changeBooksRequest,
) (*bookConnection, error) {
	b, err := updated(ctx, a.store, func(t *tx) (*bookConnection, error) {
		return changeBooks(t, a.keys.Load(), q.owner, q.id, q.wish, actorToken(c))
	})
	if err != nil {
		return nil, err
	}
	a.books.wakeUp()
	return b.show(), nil
}

// The page for people who come back from a product.

// booksTemplate renders that page from a booksPage.
var booksTemplate = pageTemplateOf("books.html")

// A booksPage is what the template shows.
type booksPage struct {
	Title, Text string
	Tone        string // toneGood or toneBad
	Facts       [][2]string
	Choices     []bookOrganisation
	RequestID   string
}

// booksRefused shows a refusal to people who come back from a product. It is a refusalPage.
func booksRefused(_ *http.Request, ref *refusal, requestID string) *htmlPage {
	p := &booksPage{Title: "Not connected", Text: ref.text(), Tone: toneBad}
	if ref.code.status == http.StatusInternalServerError {
		p.RequestID = requestID
	}
	return booksTemplate.renderRefusal(ref.code.status, p)
}

// A comeBackRequest holds the parameters with which a product's pages send somebody back (RFC 6749, section
// 4.1.2).
type comeBackRequest struct{ product, state, code, refusal string }

func (q *comeBackRequest) read(in *input) {
	q.product = in.pathValue("product")
	for name, to := range map[string]*string{"state": &q.state, "code": &q.code, "error": &q.refusal} {
		if values := in.query[name]; len(values) == 1 {
			*to = values[0]
		}
	}
}

// productNames are the products as people write them.
var productNames = map[string]string{productXero: "Xero", productFortnox: "Fortnox"}

// followLink answers GET /books/connect/{product}, where the links lead that applications have asked for. It
// redirects people who have signed in for the account to the product, and others to the page to sign in first. So
// whoever asked for the link can neither finish the connection, nor have the owner finish it with somebody else's
// company.
func (a *booksAPI) followLink(ctx context.Context, c *call, q *comeBackRequest) (any, error) {
	if !slices.Contains(bookProducts, q.product) {
		return nil, &refusal{code: codeNotFound}
	}
	link, err := a.store.bookAuthorization(q.product, hashOf(q.state), newStamp(c.now))
	if errors.Is(err, errNotFound) || err == nil && !link.ofApp() {
		return nil, errBooksState
	}
	if err != nil {
		return nil, err
	}
	s, err := a.signedIn(c)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		query := url.Values{booksSignin: {q.product}, "state": {q.state}}
		return &redirect{to: "../../oauth/signin?" + query.Encode(), referrers: pageReferrers}, nil
	case s.AccountID != link.AccountID:
		return nil, errBooksSignin
	}
	made, err := a.books.authorize(ctx, s.AccountID, q.product, a.issuer(), actorPerson(s.MadeBy))
	if err != nil {
		return nil, err
	}
	return &redirect{to: made.AuthorizeURL, referrers: pageReferrers}, nil
}

// comeBack answers GET /books/callback/{product} with a page that shows the result.
func (a *booksAPI) comeBack(ctx context.Context, c *call, q *comeBackRequest) (*htmlPage, error) {
	if !slices.Contains(bookProducts, q.product) {
		return nil, &refusal{code: codeNotFound}
	}
	var b *bookConnection
	err := a.mayFinish(c, q)
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
		{"Account", of.Name}, {"Software", productNames[b.Product]}, {"Company", b.Organisation}},
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
	return booksTemplate.render(http.StatusOK, p)
}

// mayFinish returns nil if the caller may finish an authorization. One that a person began, see followLink, can be
// finished only by somebody who has signed in for its account; one that an application began can't be finished at
// all. Errors: errBooksState, errBooksSignin.
func (a *booksAPI) mayFinish(c *call, q *comeBackRequest) error {
	begun, err := a.store.bookAuthorization(q.product, hashOf(q.state), newStamp(c.now))
	if err != nil {
		return notUnless(err, errNotFound) // callback reports that the state is unknown
	}
	if begun.ofApp() { // its state leads to followLink, which makes another one for the owner
		return errBooksState
	}
	s, err := a.signedIn(c)
	if err == nil && begun.ofPerson() && (s == nil || s.AccountID != begun.AccountID) {
		err = errBooksSignin
	}
	return err
}
