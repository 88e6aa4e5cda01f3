package main

import (
	"context"
)

// The endpoints of exports and their previews.

// An exportView is an export as callers see it.
type exportView struct {
	ID           string       `json:"id"`
	ConnectionID string       `json:"connection_id"`
	AccountID    string       `json:"account_id"`
	Date         businessDate `json:"date"`
	Currency     string       `json:"currency"`
	Revision     int64        `json:"revision"`
	Reverses     *string      `json:"reverses"`
	EntryDate    businessDate `json:"entry_date"`
	State        string       `json:"state"`
	Reason       *string      `json:"reason"`
	Detail       *string      `json:"detail"`
	SyncKey      string       `json:"sync_key"`
	Entry        *bookEntry   `json:"entry"`    // as it was sent last
	EntryID      *string      `json:"entry_id"` // in the books
	Attempts     int64        `json:"attempts"`
	DueAt        stamp        `json:"due_at"`
	CreatedAt    stamp        `json:"created_at"`
	SentAt       stamp        `json:"sent_at"`
	PostedAt     stamp        `json:"posted_at"`
	ReversedAt   stamp        `json:"reversed_at"`
}

// viewExport returns an export as callers see it.
func viewExport(x bookExport) exportView {
	v := exportView{ID: x.ID, ConnectionID: x.ConnectionID, AccountID: x.AccountID, Date: x.Date,
		Currency: x.Currency, Revision: x.Revision, Reverses: x.Reverses, EntryDate: x.EntryDate, State: x.State,
		Reason: x.Reason, Detail: x.Detail, SyncKey: x.SyncKey, EntryID: x.EntryID, Attempts: x.Attempts,
		DueAt: x.DueAt, CreatedAt: x.CreatedAt, SentAt: x.SentAt, PostedAt: x.PostedAt, ReversedAt: x.ReversedAt}
	if len(x.Entry) > 0 {
		v.Entry, _ = x.sentEntry() // null if somebody has broken it
	}
	return v
}

// previewRequest is the path of GET /books/connections/{id}/preview/{date}.
type previewRequest struct {
	bookRequest
	date businessDate
}

func (q *previewRequest) read(in *input) {
	q.bookRequest.read(in)
	q.date = in.pathDate("date")
}

// A datePreview is what would be sent of a business day.
type datePreview struct {
	Date    businessDate  `json:"date"`
	Entries []bookPreview `json:"entries"` // one for each currency
}

// preview answers GET /books/connections/{id}/preview/{date}.
func (a *booksAPI) preview(ctx context.Context, c *call, q *previewRequest) (*datePreview, error) {
	b, _, err := a.find(c, &q.bookRequest)
	if err != nil {
		return nil, err
	}
	all, err := a.books.previewNow(ctx, b, q.date)
	return &datePreview{q.date, all}, err
}

// previewNow is preview with what orders have just brought.
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

// The states of an export, as a filter takes them.
var exportStates = []string{exportWaiting, exportHeld, exportReady, exportSending, exportUnknown, exportPosted,
	exportFailed, exportReversed}

// exportsRequest is the query of GET /books/connections/{id}/exports.
type exportsRequest struct {
	bookRequest
	state string
	page  pageQuery
}

func (q *exportsRequest) read(in *input) {
	q.bookRequest.read(in)
	q.state = in.parameter("state", oneOf(exportStates...))
	q.page = in.page("exp")
}

// listExports answers GET /books/connections/{id}/exports.
func (a *booksAPI) listExports(ctx context.Context, c *call, q *exportsRequest) (*list[exportView], error) {
	b, by, err := a.find(c, &q.bookRequest)
	if err != nil {
		return nil, err
	}
	page, err := a.store.within(ctx).bookExports(exportFilter{by, b.ID, q.state}, q.page.before, q.page.limit)
	return showPage(page, viewExport), err
}

// newExportRequest is the body of POST /books/connections/{id}/exports.
type newExportRequest struct {
	bookRequest
	date businessDate
}

func (q *newExportRequest) read(in *input) {
	q.bookRequest.read(in)
	q.date = in.text("date", required, 10, checkBusinessDate)
}

// The exports of a business day, one for each currency.
type dateExports struct {
	AccountID string       `json:"account_id"`
	Data      []exportView `json:"data"`
}

// requestExport answers POST /books/connections/{id}/exports.
func (a *booksAPI) requestExport(ctx context.Context, c *call, q *newExportRequest) (*dateExports, error) {
	by, err := q.resolve(a.server, c)
	if err != nil {
		return nil, err
	}
	if err := recordOrders(ctx, a.store, recordedByRequest); err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(by)
	made, err := create(ctx, a.server, c, func(t *tx) (*dateExports, error) {
		rows, err := requestExport(t, by, q.id, q.date)
		if err != nil {
			return nil, err
		}
		made := &dateExports{AccountID: rows[0].AccountID}
		for _, x := range rows {
			made.Data = append(made.Data, viewExport(x))
		}
		return made, nil
	})
	a.books.wakeUp()
	return made, err
}

// An exportRequest is a request whose path names an export of a connection.
type exportRequest struct {
	bookRequest
	export string
	date   businessDate // of the reversal; "": that of the entry
}

func (q *exportRequest) read(in *input) {
	q.bookRequest.read(in)
	q.export = in.pathValue("export")
}

// reverseRequest is the body of POST /books/connections/{id}/exports/{export}/reverse.
type reverseRequest struct{ exportRequest }

func (q *reverseRequest) read(in *input) {
	q.exportRequest.read(in)
	q.date = in.text("date", optional, 10, checkBusinessDate)
}

// retryExport answers POST /books/connections/{id}/exports/{export}/retry.
func (a *booksAPI) retryExport(ctx context.Context, c *call, q *exportRequest) (*exportView, error) {
	by, err := q.resolve(a.server, c)
	if err != nil {
		return nil, err
	}
	var v exportView
	err = a.store.update(ctx, func(t *tx) error {
		x, err := retryExport(t, by, q.id, q.export)
		if err == nil {
			v = viewExport(*x)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	a.books.wakeUp()
	return &v, nil
}

// reverseExport answers POST /books/connections/{id}/exports/{export}/reverse.
func (a *booksAPI) reverseExport(ctx context.Context, c *call, q *reverseRequest) (*exportView, error) {
	by, err := q.resolve(a.server, c)
	if err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(by)
	made, err := create(ctx, a.server, c, func(t *tx) (*exportView, error) {
		x, err := reverseExport(t, by, q.id, q.export, q.date)
		if err != nil {
			return nil, err
		}
		v := viewExport(*x)
		return &v, nil
	})
	a.books.wakeUp()
	return made, err
}
