package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// The endpoints of exports and their previews.

// previewRequest is the path of GET /books/connections/{id}/preview/{date}.
type previewRequest struct {
	connectionRequest
	date businessDate
}

func (q *previewRequest) read(in *input) {
	q.rowRequest.read(in)
	q.date = in.pathDate("date")
}

// A datePreview is what would be sent of a business day.
type datePreview struct {
	Date    businessDate  `json:"date"`
	Entries []bookPreview `json:"entries"` // one for each currency
}

// preview answers GET /books/connections/{id}/preview/{date}.
func (a *booksAPI) preview(ctx context.Context, c *call, q *previewRequest) (*datePreview, error) {
	all, err := a.books.previewNow(ctx, q.connection, q.date)
	return &datePreview{q.date, all}, err
}

// previewNow is preview, after the revenue of the latest orders has been recorded.
func (b *books) previewNow(ctx context.Context, c *bookConnection, date businessDate) ([]bookPreview, error) {
	if c.OrganisationID == nil {
		return nil, &refusal{code: codeBooksState, detail: "Choose a company first."}
	}
	if err := recordOrders(ctx, b.store, recordedByRequest); err != nil {
		return nil, err
	}
	all, err := b.preview(ctx, c, date)
	return all, booksRefusal(err)
}

// exportStates are the states of an export that a filter accepts.
var exportStates = []string{exportWaiting, exportHeld, exportReady, exportSending, exportUnknown, exportPosted,
	exportFailed, exportReversed}

// exportsRequest is the query of GET /books/connections/{id}/exports.
type exportsRequest struct {
	connectionRequest
	state string
	page  pageQuery
}

func (q *exportsRequest) read(in *input) {
	q.rowRequest.read(in)
	q.state = in.parameter("state", oneOf(exportStates...))
	q.page = in.page("exp")
}

// listExports answers GET /books/connections/{id}/exports.
func (a *booksAPI) listExports(ctx context.Context, c *call, q *exportsRequest) (*list[bookExport], error) {
	filter := exportFilter{q.owner, q.id, q.state}
	return showRows(a.store.within(ctx).bookExports(filter, q.page.before, q.page.limit))
}

// newExportRequest is the body of POST /books/connections/{id}/exports.
type newExportRequest struct {
	rowRequest
	date businessDate
}

func (q *newExportRequest) read(in *input) {
	q.rowRequest.read(in)
	q.date = in.text("date", required, 10, checkBusinessDate)
}

// A dateExports has the exports of a business day, one for each currency.
type dateExports struct {
	AccountID string       `json:"account_id"`
	Data      []bookExport `json:"data"`
}

// requestExport answers POST /books/connections/{id}/exports.
func (a *booksAPI) requestExport(ctx context.Context, c *call, q *newExportRequest) (*dateExports, error) {
	if err := recordOrders(ctx, a.store, recordedByRequest); err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(q.owner, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*dateExports, error) {
		rows, err := requestExport(t, q.owner, q.id, q.date)
		if err != nil {
			return nil, err
		}
		return &dateExports{rows[0].AccountID, rows}, nil
	})
	a.books.wakeUp()
	return made, err
}

// An exportRequest is a request whose path names an export of a connection.
type exportRequest struct {
	rowRequest
	export string
	date   businessDate // of the reversal; "": that of the entry
}

func (q *exportRequest) read(in *input) {
	q.rowRequest.read(in)
	q.export = in.pathValue("export")
}

// reverseRequest is the body of POST /books/connections/{id}/exports/{export}/reverse.
type reverseRequest struct{ exportRequest }

func (q *reverseRequest) read(in *input) {
	q.exportRequest.read(in)
	q.date = in.text("date", optional, 10, checkBusinessDate)
}

// retryExport answers POST /books/connections/{id}/exports/{export}/retry.
func (a *booksAPI) retryExport(ctx context.Context, c *call, q *exportRequest) (*bookExport, error) {
	x, err := updated(ctx, a.store, func(t *tx) (*bookExport, error) {
		return retryExport(t, q.owner, q.id, q.export)
	})
	a.books.wakeUp()
	return x, err
}

// reverseExport answers POST /books/connections/{id}/exports/{export}/reverse.
func (a *booksAPI) reverseExport(ctx context.Context, c *call, q *reverseRequest) (*bookExport, error) {
	c.stillTrue = replaysOf(q.owner, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*bookExport, error) {
		return reverseExport(t, q.owner, q.id, q.export, q.date)
	})
	a.books.wakeUp()
	return made, err
}

// The endpoints of mappings and of the books' own charts of accounts.

// chartRequest is the query of GET /books/connections/{id}/accounts.
type chartRequest struct {
	connectionRequest
	date time.Time // zero: today
}

func (q *chartRequest) read(in *input) {
	q.rowRequest.read(in)
	q.date = in.date("date")
}

// A chartView is what the books report about themselves, for entries of a date.
type chartView struct {
	Date        businessDate  `json:"date"`
	Currency    string        `json:"currency"`
	LockedUntil *businessDate `json:"locked_until"`
	Accounts    []bookAccount `json:"accounts"`
	TaxRates    []bookTaxRate `json:"tax_rates"` // Xero
	Year        *int64        `json:"year"`      // Fortnox: the id of the financial year; nil: there is none
	Series      []string      `json:"series"`    // Fortnox
}

// chartOn reads the chart of a connection for a date; "" is the present business day. It returns the date, too.
func (b *books) chartOn(ctx context.Context, c *bookConnection, date businessDate) (*bookChart, businessDate, error) {
	if c.OrganisationID == nil {
		return nil, "", &refusal{code: codeBooksState, detail: "Choose a company first."}
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
	v := &chartView{date, chart.Currency, nilIfEmpty(chart.LockedUntil), chart.Accounts, chart.TaxRates, nil,
		append([]string{}, chart.Series...)}
	v.Accounts, v.TaxRates = append([]bookAccount{}, v.Accounts...), append([]bookTaxRate{}, v.TaxRates...)
	if chart.Year != 0 {
		v.Year = &chart.Year
	}
	return v
}

// showChart answers GET /books/connections/{id}/accounts.
func (a *booksAPI) showChart(ctx context.Context, c *call, q *chartRequest) (*chartView, error) {
	date := ""
	if !q.date.IsZero() {
		date = q.date.Format(time.DateOnly)
	}
	chart, date, err := a.books.chartOn(ctx, q.connection, date)
	if err != nil {
		return nil, err
	}
	return viewChart(date, chart), nil
}

// mappingRequest is the query of GET /books/connections/{id}/mapping.
type mappingRequest struct {
	connectionRequest
	suggest bool
}

func (q *mappingRequest) read(in *input) {
	q.rowRequest.read(in)
	q.suggest = in.parameter("suggest", oneOf("true", "false")) == "true"
}

// A mappingView is the mapping of a connection.
type mappingView struct {
	Mapping     *bookMapping `json:"mapping"` // nil: none was confirmed
	ConfirmedAt stamp        `json:"confirmed_at"`
	Suggested   *bookMapping `json:"suggested"` // where it was asked for; it is not used
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
		seen = append(seen, slices.DeleteFunc(sums, func(s revenueSum) bool { return !c.wants(&s) })...)
	}
	m := suggestMapping(c.Product, chart, seen)
	return &m, nil
}

// showMapping answers GET /books/connections/{id}/mapping.
func (a *booksAPI) showMapping(ctx context.Context, c *call, q *mappingRequest) (v *mappingView, err error) {
	v = &mappingView{Mapping: q.connection.Mapping, ConfirmedAt: q.connection.MappingAt}
	if q.suggest {
		v.Suggested, err = a.books.suggestFor(ctx, q.connection)
	}
	return v, err
}

// saveMappingRequest is the body of PUT /books/connections/{id}/mapping. What depends on the product is checked
// once the connection's product is known.
type saveMappingRequest struct {
	connectionRequest
	in *input
}

func (q *saveMappingRequest) read(in *input) {
	q.rowRequest.read(in)
	q.in = in
	readMapping(in, "")
}

// saveMapping answers PUT /books/connections/{id}/mapping.
func (a *booksAPI) saveMapping(ctx context.Context, c *call, q *saveMappingRequest) (*mappingView, error) {
	m := readMapping(q.in, q.connection.Product)
	if err := q.in.err(); err != nil {
		return nil, err
	}
	b, err := updated(ctx, a.store, func(t *tx) (*bookConnection, error) {
		return saveMapping(t, q.owner, q.id, &m, actorToken(c))
	})
	if err != nil {
		return nil, err
	}
	a.books.wakeUp()
	return &mappingView{Mapping: &m, ConfirmedAt: b.MappingAt}, nil
}

// readMapping reads {"lines":[…]} from the body of a request, for a product; "": it checks only what holds for
// every product. Members that are null count as absent, so that a mapping can be sent back as it was answered.
func readMapping(in *input, product string) bookMapping {
	m := bookMapping{Lines: []mappingRule{}}
	seen := map[string]bool{}
	for _, line := range in.objects("lines", maxMappingRules) {
		before := len(*in.errs)
		r := readRule(line, product)
		key := fmt.Sprintf("%s %d %t %q %s", r.Kind, valueOr(r.VATRate, -1), r.Group == nil,
			valueOr(r.Group, ""), valueOr(r.Method, ""))
		switch {
		case product == "" || len(*in.errs) > before: // what the line is for is not known then
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
func readRule(in *input, product string) (r mappingRule) {
	r.Kind = in.text("kind", required, 20, oneOf(ruleKinds...))
	r.Account = in.text("account", required, 10, accountCheck(product))
	if in.ofKinds(product, "vat_rate", r.Kind, ruleSales, ruleDelivery) {
		r.VATRate = new(in.amount("vat_rate", required, 0, maxVATRate))
	}
	if in.ofKinds(product, "group", r.Kind, ruleSales) && in.given("group") {
		r.Group = new(in.text("group", optional, maxOrderText, nil))
	}
	if in.ofKinds(product, "method", r.Kind, rulePayment) {
		r.Method = nilIfEmpty(in.text("method", required, 20, oneOf(payingMethods...)))
	}
	readTax(in, product, &r)
	if in.given("cost_center") {
		r.CostCenter = nilIfEmpty(in.text("cost_center", required, maxCostCenter, costCenterCheck(product)))
	}
	return r
}

// readTax reads the tax of a line: a TaxType of Xero, or the account of the VAT at Fortnox, where a rate of 0
// needs none.
func readTax(in *input, product string, r *mappingRule) {
	byRate := r.Kind == ruleSales || r.Kind == ruleDelivery
	need := need(byRate && (product == productXero || product == productFortnox && valueOr(r.VATRate, 0) > 0))
	if product == productFortnox && !in.ofKinds(product, "tax", r.Kind, ruleSales, ruleDelivery) {
		return
	}
	if need == required || in.given("tax") {
		r.Tax = nilIfEmpty(in.text("tax", required, maxTaxType, taxCheck(product)))
	}
}

// ofKinds reports whether a member belongs to a line of a mapping of that kind. If it does not, but is given and
// not null, that is noted as an error. Without a product it reports only whether the member is given.
func (in *input) ofKinds(product, name, kind string, kinds ...string) bool {
	if product == "" {
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
