package main

import (
	"cmp"
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
	return []any{&f.ID, &f.OrderID, &f.PaymentID, &f.Amount, (*optionalJSON)(&f.Lines), jsonList[vatSum]{&f.VAT},
		&f.Tip, &f.Reason, &f.Source, &f.State, &f.Failure, &f.ProviderID, &f.MadeBy, &f.CreatedAt, &f.EndedAt}
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

// saveRefundParts writes the VAT and the tip in a refund. Errors: errNotFound.
func (t *tx) saveRefundParts(f *refund) error {
	n, err := t.exec(`UPDATE refunds SET vat = ?, tip = ? WHERE id = ?`, jsonList[vatSum]{&f.VAT}, f.Tip, f.ID)
	return requireRow(n, err)
}

// orderByReference returns the id of the order of an account with that reference, or errNotFound.
func (q *queries) orderByReference(accountID, reference string) (id string, err error) {
	err = q.one(`SELECT id FROM orders WHERE account_id = ? AND reference = ?`, []any{accountID, reference}, &id)
	return id, err
}

// countOpenOrders returns how many open orders an account has, counted up to most.
func (q *queries) countOpenOrders(accountID string, most int) (n int, err error) {
	err = q.one(`SELECT count(*) FROM (SELECT 1 FROM orders WHERE account_id = ? AND state = 'open' LIMIT ?)`,
		[]any{accountID, most}, &n)
	return n, err
}

// An orderFilter chooses orders of an owner; what else is empty narrows nothing.
type orderFilter struct {
	owner     owner
	state     string
	reference string
}

// orders returns a page of orders, newest first, starting after the id before ("" for the newest).
func (q *queries) orders(f orderFilter, before string, limit int) (p listPage[order], err error) {
	list := listQuery{columns: `SELECT ` + orderColumns + ` FROM orders o`, table: `orders o`, key: `o.id`}
	list.scope(f.owner.narrow(``, `o.account_id`))
	switch {
	case f.reference == "":
	case f.owner.every: // no index finds it
		list.filter(` AND o.reference = ?`, f.reference)
	default:
		list.scope(` AND o.reference = ?`, []any{f.reference})
	}
	switch {
	case f.state == "":
	case f.owner.every: // no index finds it
		list.filter(` AND o.state = ?`, f.state)
	default:
		list.scope(` AND o.state = ?`, []any{f.state})
	}
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, (*order).dest,
		func(o order) string { return o.ID })
	return p, err
}

// overdueOrders returns up to limit open orders that are to expire, the longest overdue first.
func (t *tx) overdueOrders(limit int64) ([]order, error) {
	return collect(t.queries, `SELECT `+orderColumns+` FROM orders o
		WHERE o.state = 'open' AND o.closing IS NULL AND o.expires_at <= ? ORDER BY o.expires_at LIMIT ?`,
		[]any{t.now, limit}, (*order).dest)
}

// unacceptedOrders returns up to limit authorised orders that were not accepted in time.
func (t *tx) unacceptedOrders(limit int64) ([]order, error) {
	return collect(t.queries, `SELECT `+orderColumns+` FROM orders o
		WHERE o.state = 'authorized' AND o.accept_by <= ? ORDER BY o.accept_by LIMIT ?`,
		[]any{t.now, limit}, (*order).dest)
}

// addCustomer inserts who has ordered.
func (t *tx) addCustomer(o *order, who guest) error {
	_, err := t.exec(`INSERT INTO order_customers (order_id, name, phone, note, erase_at) VALUES (?, ?, ?, ?, ?)`,
		o.ID, nilIfEmpty(who.Name), nilIfEmpty(who.Phone), nilIfEmpty(who.Note), o.EndedAt.after(keptCustomersFor))
	return err
}

// An orderGuest is who has made an order.
type orderGuest struct {
	orderID string
	guest
}

// guestsOf returns who has made these orders, where that is known and was not erased.
func (q *queries) guestsOf(orderIDs []string) ([]orderGuest, error) {
	return collect(q, `SELECT c.order_id, coalesce(c.name, ''), coalesce(c.phone, ''), coalesce(c.note, '')
		FROM json_each(?) j CROSS JOIN order_customers c ON c.order_id = j.value`, []any{string(encodeJSON(orderIDs))},
		func(g *orderGuest) []any { return []any{&g.orderID, &g.Name, &g.Phone, &g.Note} })
}

// paymentsByID returns the attempts with these ids, in any order, and by id what is wrong with those of them that
// can't be read.
func (q *queries) paymentsByID(ids []string) (all []payment, unreadable map[string]*unreadableRow, err error) {
	unreadable = map[string]*unreadableRow{}
	err = eachShown(q, `SELECT `+paymentTable.columns+` FROM json_each(?) j CROSS JOIN payments p ON p.id = j.value`,
		[]any{string(encodeJSON(ids))}, paymentTable.dest, func(p *payment, bad *unreadableRow) error {
			if bad != nil {
				unreadable[bad.id] = bad
				return nil
			}
			all = append(all, *p)
			return nil
		})
	return all, unreadable, err
}

// eraseCustomers erases up to limit guests whose orders ended keptCustomersFor ago, and returns how many.
// Their bytes are overwritten first, as those of leads are. Until the WAL is truncated, it holds them.
func (t *tx) eraseCustomers(limit int64) (int64, error) {
	t.invalidate()
	const due = ` WHERE seq IN (SELECT seq FROM order_customers WHERE erase_at <= ? ORDER BY erase_at, seq LIMIT ?)`
	_, err := t.exec(`UPDATE order_customers SET name = `+blanked("name", "x")+`, phone = `+blanked("phone", "x")+`,
		note = `+blanked("note", "x")+due, t.now, limit)
	if err != nil {
		return 0, err
	}
	return t.exec(`DELETE FROM order_customers`+due, t.now, limit)
}
