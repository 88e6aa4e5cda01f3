package main

import (
	"cmp"
)

// orderTable describes the table orders.
var orderTable = newTable("orders", "o", func(o *order) []field {
	return []field{{"id", &o.ID}, {"account_id", &o.AccountID}, {"reference", &o.Reference}, {"state", &o.State},
		{"dispute", &o.Dispute}, {"currency", &o.Currency}, {"lines", jsonList[orderLine]{&o.Lines}},
		{"discount", &o.Discount}, {"delivery", &o.Delivery}, {"delivery_rate", &o.DeliveryRate},
		{"delivery_gross", &o.DeliveryGross}, {"tip", &o.Tip}, {"ordered_total", &o.OrderedTotal},
		{"total", &o.Total}, {"vat", jsonList[vatSum]{&o.VAT}}, {"refunded", &o.Refunded}, {"method", &o.Method},
		{"payment_id", &o.PaymentID}, {"attempts", &o.Attempts}, {"capture", &o.Capture}, {"closing", &o.Closing},
		{"outside_method", &o.OutsideMethod}, {"outside_at", &o.OutsideAt}, {"return_url", &o.ReturnURL},
		{"page_key", &o.PageKey}, {"expires_at", &o.ExpiresAt}, {"accept_by", &o.AcceptBy},
		{"created_at", &o.CreatedAt}, {"authorized_at", &o.AuthorizedAt}, {"accepted_at", &o.AcceptedAt},
		{"paid_at", &o.PaidAt}, {"ended_at", &o.EndedAt}}
})

// order returns an order of an owner, or errOrder.
func (q *queries) order(o owner, id string) (*order, error) {
	return orderTable.byID(q, o, id, errOrder)
}

// addOrder inserts an order.
func (t *tx) addOrder(o *order) error { return orderTable.insert(t, o) }

// saveOrder writes what can change in an order, and when its customer is to be erased. Errors: errNotFound.
func (t *tx) saveOrder(o *order) error {
	if err := requireRow(orderTable.update(t, o, `state dispute lines total vat refunded method payment_id
		attempts capture closing outside_method outside_at expires_at accept_by authorized_at accepted_at
		paid_at ended_at`, ` WHERE id = ?`, o.ID)); err != nil {
		return err
	}
	return t.write(`UPDATE order_customers SET erase_at = ?1 WHERE order_id = ?2 AND erase_at IS NOT ?1`,
		o.EndedAt.after(keptCustomersFor), o.ID)
}

// saveAndLook writes what can change in an order, and has the provider of an attempt to pay it asked.
func (t *tx) saveAndLook(o *order, paymentID string) error {
	if err := t.saveOrder(o); err != nil {
		return err
	}
	return t.lookAt(paymentID)
}

// refundTable describes the table refunds.
var refundTable = newTable("refunds", "f", func(f *refund) []field {
	return []field{{"id", &f.ID}, {"order_id", &f.OrderID}, {"payment_id", &f.PaymentID}, {"amount", &f.Amount},
		{"lines", (*optionalJSON)(&f.Lines)}, {"vat", jsonList[vatSum]{&f.VAT}}, {"tip", &f.Tip},
		{"reason", &f.Reason}, {"source", &f.Source}, {"state", &f.State}, {"failure", &f.Failure},
		{"provider_id", &f.ProviderID}, {"made_by", &f.MadeBy}, {"created_at", &f.CreatedAt},
		{"ended_at", &f.EndedAt}}
})

// refundsOf returns the refunds of an order, oldest first.
func (q *queries) refundsOf(orderID string) ([]refund, error) {
	return refundTable.all(q, `WHERE f.order_id = ? ORDER BY f.id`, orderID)
}

// addRefund inserts a refund.
func (t *tx) addRefund(f *refund) error { return refundTable.insert(t, f) }

// saveRefund writes what can change in a refund, other than its parts. Errors: errNotFound.
func (t *tx) saveRefund(f *refund) error {
	return requireRow(refundTable.update(t, f, `state failure provider_id ended_at`, ` WHERE id = ?`, f.ID))
}

// saveRefundParts writes the VAT and the tip in a refund. Errors: errNotFound.
func (t *tx) saveRefundParts(f *refund) error {
	return requireRow(refundTable.update(t, f, `vat tip`, ` WHERE id = ?`, f.ID))
}

// orderByReference returns the id of the order of an account with that reference, or errNotFound.
func (q *queries) orderByReference(accountID, reference string) (id string, err error) {
	return oneValue[string](q, `SELECT id FROM orders WHERE account_id = ? AND reference = ?`,
		accountID, reference)
}

// countOpenOrders returns how many open orders an account has, counted up to most.
func (q *queries) countOpenOrders(accountID string, most int) (n int, err error) {
	return oneValue[int](q, `SELECT count(*) FROM (
		SELECT 1 FROM orders WHERE account_id = ? AND state = 'open' LIMIT ?)`, accountID, most)
}

// An orderFilter chooses orders of an owner; an empty state or reference does not narrow the choice.
type orderFilter struct {
	owner     owner
	state     string
	reference string
}

// orders returns a page of orders, newest first, starting after the id before ("" for the newest).
func (q *queries) orders(f orderFilter, before string, limit int) (p listPage[order], err error) {
	list := orderTable.list()
	list.scope(f.owner.narrow(``, `o.account_id`))
	for _, of := range []struct{ condition, value string }{
		{` AND o.reference = ?`, f.reference}, {` AND o.state = ?`, f.state},
	} {
		switch {
		case of.value == "":
		case f.owner.every: // no index covers the references or the states of all accounts
			list.filter(of.condition, of.value)
		default:
			list.scope(of.condition, []any{of.value})
		}
	}
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, orderTable.dest,
		func(o order) string { return o.ID })
	return p, err
}

// overdueOrders returns up to limit open orders that are to expire, the longest overdue first.
func (t *tx) overdueOrders(limit int64) ([]order, error) {
	return orderTable.all(t.queries, `WHERE o.state = 'open' AND o.closing IS NULL AND o.expires_at <= ?
		ORDER BY o.expires_at LIMIT ?`, t.now, limit)
}

// unacceptedOrders returns up to limit authorised orders that were not accepted in time.
func (t *tx) unacceptedOrders(limit int64) ([]order, error) {
	return orderTable.all(t.queries, `WHERE o.state = 'authorized' AND o.accept_by <= ?
		ORDER BY o.accept_by LIMIT ?`, t.now, limit)
}

// addCustomer inserts the guest of an order.
func (t *tx) addCustomer(o *order, who guest) error {
	return t.write(`INSERT INTO order_customers (order_id, name, phone, note, erase_at) VALUES (?, ?, ?, ?, ?)`,
		o.ID, who.Name, who.Phone, who.Note, o.EndedAt.after(keptCustomersFor))
}

// An orderGuest is the guest of an order.
type orderGuest struct {
	orderID string
	guest
}

// guestsOf returns the guests of these orders, as far as they are known and were not erased.
func (q *queries) guestsOf(orderIDs []string) ([]orderGuest, error) {
	return collect(q, `SELECT c.order_id, c.name, c.phone, c.note
		FROM json_each(?) j CROSS JOIN order_customers c ON c.order_id = j.value`, []any{string(encodeJSON(orderIDs))},
		func(g *orderGuest) []any { return []any{&g.orderID, &g.Name, &g.Phone, &g.Note} })
}

// paymentsByID returns the attempts with these ids, in any order, and the faults of those that can't be read, by
// id.
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

// eraseCustomers erases up to limit guests whose orders ended keptCustomersFor ago, and returns how many. Their
// bytes are overwritten first, as those of leads are; the write-ahead log holds them until it is truncated.
func (t *tx) eraseCustomers(limit int64) (int64, error) {
	t.invalidate()
	const due = ` WHERE seq IN (SELECT seq FROM order_customers WHERE erase_at <= ? ORDER BY erase_at, seq LIMIT ?)`
	if err := t.write(`UPDATE order_customers SET name = `+blanked("name", "x")+`,
		phone = `+blanked("phone", "x")+`, note = `+blanked("note", "x")+due, t.now, limit); err != nil {
		return 0, err
	}
	return t.exec(`DELETE FROM order_customers`+due, t.now, limit)
}
