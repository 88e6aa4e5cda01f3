package main

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
)

// jsonList is a column that holds a JSON array.
type jsonList[T any] struct{ to *[]T }

// Value implements driver.Valuer.
func (l jsonList[T]) Value() (driver.Value, error) {
	if len(*l.to) == 0 {
		return "[]", nil
	}
	text, err := json.Marshal(*l.to)
	return string(text), err
}

// Scan implements sql.Scanner.
func (l jsonList[T]) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("a JSON array is stored as %T", v)
	}
	*l.to = nil
	return json.Unmarshal([]byte(text), l.to)
}

// orderColumns are what order.dest scans.
const orderColumns = `o.id, o.account_id, o.reference, o.state, o.dispute, o.currency, o.lines, o.discount,
	o.delivery, o.delivery_rate, o.delivery_gross, o.tip, o.ordered_total, o.total, o.vat, o.refunded,
	o.method, o.payment_id, o.attempts, o.capture, o.closing, o.outside_method, o.outside_at, o.return_url,
	o.page_key, o.expires_at, o.accept_by, o.created_at, o.authorized_at, o.accepted_at, o.paid_at, o.ended_at`

func (o *order) dest() []any {
	return []any{&o.ID, &o.AccountID, &o.Reference, &o.State, &o.Dispute, &o.Currency,
		jsonList[orderLine]{&o.Lines}, &o.Discount,
		&o.Delivery, &o.DeliveryRate, &o.DeliveryGross, &o.Tip, &o.OrderedTotal, &o.Total,
		jsonList[vatSum]{&o.VAT}, &o.Refunded,
		&o.Method, &o.PaymentID, &o.Attempts, &o.Capture, &o.Closing, &o.OutsideMethod, &o.OutsideAt, &o.ReturnURL,
		&o.PageKey, &o.ExpiresAt, &o.AcceptBy, &o.CreatedAt, &o.AuthorizedAt, &o.AcceptedAt, &o.PaidAt, &o.EndedAt}
}

// order returns an order of an owner, or errOrder.
func (q *queries) order(o owner, id string) (*order, error) {
	found := &order{}
	query, args := o.narrow(`SELECT `+orderColumns+` FROM orders o WHERE o.id = ?`, `o.account_id`, id)
	err := q.one(query, args, found.dest()...)
	if errors.Is(err, errNotFound) {
		err = errOrder
	}
	return found, err
}

// addOrder inserts an order.
func (t *tx) addOrder(o *order) error {
	_, err := t.exec(`INSERT INTO orders (id, account_id, reference, state, currency, lines, discount,
		delivery, delivery_rate, delivery_gross, tip, ordered_total, total, vat, method,
		return_url, page_key, expires_at, created_at, paid_at, ended_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		o.ID, o.AccountID, o.Reference, o.State, o.Currency, jsonList[orderLine]{&o.Lines}, o.Discount,
		o.Delivery, o.DeliveryRate, o.DeliveryGross, o.Tip, o.OrderedTotal, o.Total, jsonList[vatSum]{&o.VAT}, o.Method,
		o.ReturnURL, o.PageKey, o.ExpiresAt, o.CreatedAt, o.PaidAt, o.EndedAt)
	return err
}

// saveOrder writes what can change of an order, and when its customer is erased. Errors: errNotFound.
func (t *tx) saveOrder(o *order) error {
	n, err := t.exec(`UPDATE orders SET state = ?, dispute = ?, lines = ?, total = ?, vat = ?, refunded = ?,
		method = ?, payment_id = ?, attempts = ?, capture = ?, closing = ?, outside_method = ?, outside_at = ?,
		expires_at = ?, accept_by = ?, authorized_at = ?, accepted_at = ?, paid_at = ?, ended_at = ? WHERE id = ?`,
		o.State, o.Dispute, jsonList[orderLine]{&o.Lines}, o.Total, jsonList[vatSum]{&o.VAT}, o.Refunded,
		o.Method, o.PaymentID, o.Attempts, o.Capture, o.Closing, o.OutsideMethod, o.OutsideAt,
		o.ExpiresAt, o.AcceptBy, o.AuthorizedAt, o.AcceptedAt, o.PaidAt, o.EndedAt, o.ID)
	if err := requireRow(n, err); err != nil {
		return err
	}
	_, err = t.exec(`UPDATE order_customers SET erase_at = ?1 WHERE order_id = ?2 AND erase_at IS NOT ?1`,
		o.EndedAt.after(keptCustomersFor), o.ID)
	return err
}

// refundColumns are what refund.dest scans.
const refundColumns = `f.id, f.order_id, f.payment_id, f.amount, f.lines, f.vat, f.tip, f.reason, f.source, f.state,
	f.failure, f.provider_id, f.made_by, f.created_at, f.ended_at`

func (f *refund) dest() []any {
	return []any{&f.ID, &f.OrderID, &f.PaymentID, &f.Amount, (*optionalJSON)(&f.Lines), jsonList[vatSum]{&f.VAT}, &f.Tip,
		&f.Reason, &f.Source, &f.State, &f.Failure, &f.ProviderID, &f.MadeBy, &f.CreatedAt, &f.EndedAt}
}

// refundsOf returns the refunds of an order, oldest first.
func (q *queries) refundsOf(orderID string) ([]refund, error) {
	return collect(q, `SELECT `+refundColumns+` FROM refunds f WHERE f.order_id = ? ORDER BY f.id`,
		[]any{orderID}, (*refund).dest)
}

// addRefund inserts a refund.
func (t *tx) addRefund(f *refund) error {
	_, err := t.exec(`INSERT INTO refunds (id, order_id, payment_id, amount, lines, vat, tip, reason, source, state,
		failure, provider_id, made_by, created_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.ID, f.OrderID, f.PaymentID, f.Amount, optionalJSON(f.Lines), jsonList[vatSum]{&f.VAT}, f.Tip, f.Reason,
		f.Source, f.State, f.Failure, f.ProviderID, f.MadeBy, f.CreatedAt, f.EndedAt)
	return err
}

// saveRefund writes what can change of a refund. Errors: errNotFound.
func (t *tx) saveRefund(f *refund) error {
	n, err := t.exec(`UPDATE refunds SET state = ?, failure = ?, provider_id = ?, ended_at = ? WHERE id = ?`,
		f.State, f.Failure, f.ProviderID, f.EndedAt, f.ID)
	return requireRow(n, err)
}

// An accountSettings is what else is known of an account that takes orders (contract, section 11).
type accountSettings struct {
	Zone         string  `json:"zone"`          // "Europe/Zurich"
	CutOff       string  `json:"cut_off"`       // when its business day ends: "04:00"
	LegalName    *string `json:"legal_name"`    // on receipts
	Address      *string `json:"address"`       // on receipts, in lines
	VATNumber    *string `json:"vat_number"`    // on receipts
	CaptureOn    string  `json:"capture_on"`    // captureOnAccept or captureOnHandover
	AcceptWithin int     `json:"accept_within"` // minutes
}

// When cards are charged.
const (
	captureOnAccept   = "accept"
	captureOnHandover = "handover"
)

// settings returns the settings of an account, the defaults if it has none.
func (q *queries) settings(accountID string) (s accountSettings, err error) {
	err = q.one(`SELECT zone, cut_off, legal_name, address, vat_number, capture_on, accept_within
		FROM account_settings WHERE account_id = ?`, []any{accountID},
		&s.Zone, &s.CutOff, &s.LegalName, &s.Address, &s.VATNumber, &s.CaptureOn, &s.AcceptWithin)
	if errors.Is(err, errNotFound) {
		return accountSettings{Zone: "UTC", CutOff: "04:00", CaptureOn: captureOnAccept, AcceptWithin: 30}, nil
	}
	return s, err
}
