package main

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
)

// orderTable describes the table orders.
var orderTable = newTable("orders", "o", func(o *order) []field {
	return []field{{"id", &o.ID}, {"account_id", &o.AccountID}, {"reference", &o.Reference}, {"state", &o.State},
		{"dispute", &o.Dispute}, {"currency", &o.Currency}, {"lines", jsonColumn[[]orderLine]{&o.Lines}},
		{"discount", &o.Discount}, {"delivery", &o.Delivery}, {"delivery_rate", &o.DeliveryRate},
		{"delivery_gross", &o.DeliveryGross}, {"tip", &o.Tip}, {"ordered_total", &o.OrderedTotal},
		{"total", &o.Total}, {"vat", jsonColumn[[]vatSum]{&o.VAT}}, {"refunded", &o.Refunded}, {"method", &o.Method},
		{"payment_id", &o.PaymentID}, {"attempts", &o.Attempts}, {"capture", &o.Capture}, {"closing", &o.Closing},
		{"outside_method", &o.OutsideMethod}, {"outside_at", &o.OutsideAt}, {"return_url", &o.ReturnURL},
		{"cancel_url", &o.CancelURL},
		{"page_key", &o.PageKey}, {"expires_at", &o.ExpiresAt}, {"accept_by", &o.AcceptBy},
		{"created_at", &o.CreatedAt}, {"authorized_at", &o.AuthorizedAt}, {"accepted_at", &o.AcceptedAt},
		{"paid_at", &o.PaidAt}, {"ended_at", &o.EndedAt}, {"pay", &o.Pay}, {"wanted_at", &o.WantedAt},
		{"reject_reason", &o.RejectReason}, {"reject_text", &o.RejectText}, {"paid_from", &o.PaidFrom},
		{"seller", jsonColumn[*seller]{&o.Seller}}, {"ready_at", &o.ReadyAt}}
})

// order returns an order of an owner, or errOrder.
func (q *queries) order(o owner, id string) (*order, error) {
	return orderTable.byID(q, o, id, errOrder)
}

// addOrder inserts an order.
func (t *tx) addOrder(o *order) { orderTable.insert(t, o) }

// saveOrder writes what can change in an order.
func (t *tx) saveOrder(o *order) {
	orderTable.update(t, o, `state dispute lines total vat refunded method payment_id
		attempts capture closing outside_method outside_at expires_at accept_by authorized_at accepted_at
		paid_at ended_at wanted_at reject_reason reject_text paid_from seller ready_at`, ` WHERE id = ?`, o.ID)
}

// setErasure writes when the guest of an order is to be erased, which follows from the order's state.
func (t *tx) setErasure(o *order) {
	t.exec(`UPDATE order_customers SET erase_at = ?1 WHERE order_id = ?2 AND erase_at IS NOT ?1`, o.eraseAt(), o.ID)
}

// saveAndPoll writes what can change in an order, and polls an attempt to pay it.
func (t *tx) saveAndPoll(o *order, paymentID string) {
	t.saveOrder(o)
	t.pollPayment(paymentID)
}

// refundTable describes the table refunds.
var refundTable = newTable("refunds", "f", func(f *refund) []field {
	return []field{{"id", &f.ID}, {"order_id", &f.OrderID}, {"payment_id", &f.PaymentID}, {"amount", &f.Amount},
		{"lines", jsonColumn[json.RawMessage]{&f.Lines}}, {"vat", jsonColumn[[]vatSum]{&f.VAT}}, {"tip", &f.Tip},
		{"reason", &f.Reason}, {"source", &f.Source}, {"state", &f.State}, {"failure", &f.Failure},
		{"provider_id", &f.ProviderID}, {"made_by", &f.MadeBy}, {"created_at", &f.CreatedAt},
		{"ended_at", &f.EndedAt}, {"account_id", &f.AccountID}, {"delivery", &f.Delivery},
		{"kind", &f.Kind}, {"asked", jsonColumn[json.RawMessage]{&f.Asked}}}
})

// refundsOf returns the refunds of an order, oldest first.
func (q *queries) refundsOf(orderID string) ([]refund, error) {
	return refundTable.all(q, `WHERE f.order_id = ? ORDER BY f.id`, orderID)
}

// addRefund inserts a refund.
func (t *tx) addRefund(f *refund) { refundTable.insert(t, f) }

// saveRefund writes what can change in a refund, if it is not as it was.
func (t *tx) saveRefund(f, before *refund) {
	if !reflect.DeepEqual(f, before) {
		refundTable.update(t, f, `state failure provider_id ended_at`, ` WHERE id = ?`, f.ID)
	}
}

// setRefundWaits notes that a pending refund waits for keys that its provider does not refuse. For an id of none it
// does nothing.
func (t *tx) setRefundWaits(id string) {
	t.exec(`UPDATE refunds SET failure = ? WHERE id = ? AND state = 'pending'`, reasonDenied, id)
}

// orderByReference returns the id of the order of an account with that reference, or errNotFound.
func (q *queries) orderByReference(accountID, reference string) (id string, err error) {
	return oneValue[string](q, `SELECT id FROM orders WHERE account_id = ? AND reference = ?`,
		accountID, reference)
}

// countOpenOrders returns how many orders of an account are open, or accepted and to be paid later, counted up to
// most. It reads at most as many rows of each kind.
func (q *queries) countOpenOrders(accountID string, most int) (n int, err error) {
	return oneValue[int](q, `SELECT (SELECT count(*) FROM (
			SELECT 1 FROM orders WHERE account_id = ?1 AND state = 'open' LIMIT ?2))
		+ (SELECT count(*) FROM (SELECT pay FROM orders WHERE account_id = ?1 AND state = 'accepted' LIMIT ?2)
			WHERE pay = 'later')`, accountID, most)
}

// laterOrders returns up to limit orders of an account that are to be paid later and were not.
func (t *tx) laterOrders(accountID string, limit int64) ([]order, error) {
	return orderTable.all(t.queries, `WHERE o.account_id = ? AND o.state IN ('open', 'accepted') AND o.pay = 'later'
		LIMIT ?`, accountID, limit)
}

// extendWaiting has orders that wait to be accepted do so until a time at least.
func (t *tx) extendWaiting(until stamp) {
	t.exec(`UPDATE orders SET accept_by = ?1 WHERE state = 'authorized' AND accept_by < ?1`,
		until)
	t.exec(`UPDATE orders SET accept_by = ?1, expires_at = ?1
		WHERE state = 'open' AND closing IS NULL AND expires_at < ?1 AND pay = 'later'`, until)
}

// An orderFilter chooses orders of an owner; an empty field does not narrow the choice.
type orderFilter struct {
	owner     owner
	ids       idRange
	state     string
	reference string
	method    string
	search    string // in any case the reference, or an end of the id
}

// orders returns a page of orders, newest first, starting after the id before ("" for the newest).
func (q *queries) orders(f orderFilter, before string, limit int) (listPage[*order], error) {
	list := orderTable.whereOwner(f.owner)
	list.from = f.ids.from
	if f.state != "" && f.reference == "" && !f.owner.every { // of a range of ids, SQLite would read all states
		list.columns += ` INDEXED BY orders_state`
		list.table += ` INDEXED BY orders_state`
	}
	if f.search != "" {
		list.filter(` AND (o.reference = ? COLLATE NOCASE OR ? <> '' AND o.id LIKE '%' || ?)`, f.search,
			idEnd("ord", f.search), idEnd("ord", f.search))
	}
	if f.method != "" {
		list.filter(` AND o.method = ?`, f.method)
	}
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
	return orderTable.page(q, list, f.ids.below(before), limit)
}

// A listedRefund is a refund, with what tells which order it is of.
type listedRefund struct {
	refund
	AccountID string       `json:"account_id" is:"acct"` // The account that owns it.
	Reference *string      `json:"reference"`            // The caller's own number for the order, or null: it has none.
	Method    *orderMethod `json:"method"`               // How the order is paid, or null: that is not known yet.
	Currency  string       `json:"currency"`             // The currency of its amounts.
}

// listedRefundTable describes refunds with their orders.
var listedRefundTable = newTable("refunds", "f", func(f *listedRefund) []field {
	return append(refundTable.fields(&f.refund), field{"o.reference", &f.Reference}, field{"o.method", &f.Method},
		field{"o.currency", &f.Currency})
}, "JOIN orders o ON o.id = f.order_id")

// A refundFilter chooses refunds of an owner; an empty field does not narrow the choice.
type refundFilter struct {
	owner owner
	ids   idRange
	state string
}

// refunds returns a page of refunds as callers see them, newest first, starting after the id before ("" for the
// newest).
func (q *queries) refunds(f refundFilter, before string, limit int) (listPage[*listedRefund], error) {
	list := listedRefundTable.whereOwner(f.owner)
	list.from = f.ids.from
	if f.state != "" {
		list.filter(` AND f.state = ?`, f.state)
	}
	p, err := listedRefundTable.page(q, list, f.ids.below(before), limit)
	for _, row := range p.rows {
		row.refund, row.AccountID = viewRefund(row.refund), row.refund.AccountID
	}
	return p, err
}

// overdueOrders returns the ids of up to limit open orders that are to expire, the longest overdue first, and that
// were not set aside.
func (t *tx) overdueOrders(limit int64) ([]string, error) {
	return t.texts(`SELECT id FROM orders WHERE state = 'open' AND closing IS NULL AND expires_at <= ?
		AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY expires_at LIMIT ?`,
		t.now, t.faults.leftOutIDs(), limit)
}

// unacceptedOrders returns the ids of up to limit authorised orders that were not accepted in time, nor set aside.
func (t *tx) unacceptedOrders(limit int64) ([]string, error) {
	return t.texts(`SELECT id FROM orders WHERE state = 'authorized' AND accept_by <= ?
		AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY accept_by LIMIT ?`, t.now, t.faults.leftOutIDs(), limit)
}

// addCustomer inserts the guest of an order.
func (t *tx) addCustomer(o *order, who guest) {
	t.exec(`INSERT INTO order_customers (order_id, name, phone, note, erase_at, fulfilment, language)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, o.ID, who.Name, who.Phone, who.Note, o.eraseAt(),
		jsonColumn[*fulfilment]{&who.Fulfilment}, who.Language)
}

// ensureCustomer inserts a guest of whom nothing is known, unless the order has one. With it, what else is personal
// in the order is erased in time.
func (t *tx) ensureCustomer(o *order) {
	t.exec(`INSERT INTO order_customers (order_id) VALUES (?) ON CONFLICT DO NOTHING`, o.ID)
}

// An orderGuest is the guest of an order.
type orderGuest struct {
	orderID string
	guest
}

// guestsOf returns the guests of these orders, as far as they are known and were not erased.
func (q *queries) guestsOf(orderIDs []string) ([]orderGuest, error) {
	return collect(q, selectGuests+`json_each(?) j CROSS JOIN order_customers c ON c.order_id = j.value`,
		[]any{string(encodeJSON(orderIDs))}, (*orderGuest).dest)
}

const selectGuests = `SELECT c.order_id, c.name, c.phone, c.note, c.fulfilment, c.language FROM `

func (g *orderGuest) dest() []any {
	return []any{&g.orderID, &g.Name, &g.Phone, &g.Note, jsonColumn[*fulfilment]{&g.Fulfilment}, &g.Language}
}

// unreadableGuests is a rowReader.
func unreadableGuests(q *queries) ([]string, error) {
	return unreadableRows(q, selectGuests+`order_customers c`, (*orderGuest).dest)
}

// paymentsByID returns the attempts with these ids, in any order, and the faults of those that can't be read, by id.
func (q *queries) paymentsByID(ids []string) (all []payment, unreadable map[string]*unreadableRow, err error) {
	unreadable = map[string]*unreadableRow{}
	err = eachReadable(q, `SELECT `+paymentTable.columns+` FROM json_each(?) j CROSS JOIN payments p ON p.id = j.value`,
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

// eraseCustomers erases up to limit guests whose orders ended keptCustomersFor ago, and returns how many. The
// write-ahead log holds them until it is truncated.
func (t *tx) eraseCustomers(limit int64) (int64, error) {
	due, err := t.texts(`SELECT order_id FROM order_customers WHERE erase_at <= ? ORDER BY erase_at, seq LIMIT ?`,
		t.now, limit)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	return t.eraseGuests(due), nil
}

// personalOrders are those of some orders that hold something about their guests themselves.
const personalOrders = ` WHERE id IN (SELECT value FROM json_each(?))
	AND (wanted_at IS NOT NULL OR reject_text IS NOT NULL)`

// blankGuests overwrites all that is known of the guests of orders, in place: the values that it writes have the same
// length, and an object stays one.
func (t *tx) blankGuests(orderIDs []string) {
	ids := string(encodeJSON(orderIDs))
	t.exec(`UPDATE orders SET wanted_at = iif(wanted_at IS NULL, NULL, '1970-01-01T00:00:00Z'),
		accept_by = iif(wanted_at IS NULL OR ended_at IS NULL, accept_by, created_at),
		ready_at = iif(wanted_at IS NULL OR ended_at IS NULL OR ready_at IS NULL, ready_at, accepted_at),
		expires_at = iif(wanted_at IS NULL OR pay = 'online' OR ended_at IS NULL, expires_at, created_at),
		reject_text = `+fillerOf("reject_text", "x")+personalOrders, ids)
	t.exec(`UPDATE order_customers SET name = `+fillerOf("name", "x")+`, phone = `+fillerOf("phone", "x")+`,
		note = `+fillerOf("note", "x")+`, language = `+fillerOf("language", "x")+`,
		fulfilment = '{"":"' || substr(`+fillerOf("fulfilment", "x")+`, 8) || '"}'
		WHERE order_id IN (SELECT value FROM json_each(?))`, ids)
}

// eraseGuests overwrites and removes what is known of the guests of orders, and returns how many there were.
func (t *tx) eraseGuests(orderIDs []string) int64 {
	t.blankGuests(orderIDs)
	ids := string(encodeJSON(orderIDs))
	t.exec(`UPDATE orders SET reject_text = NULL`+personalOrders, ids)
	return t.exec(`DELETE FROM order_customers WHERE order_id IN (SELECT value FROM json_each(?))`, ids)
}

// guestsAtOnce is how many guests one query reads that searches all, and how many one transaction erases.
const guestsAtOnce = 1_000

// A foundGuest is what a search for guests reads of one.
type foundGuest struct {
	seq                       int64
	orderID, accountID, state string
	name, phone               *string
}

// guestsThat returns the guests that match, of all that there are: those of orders that have not ended, or within
// keptCustomersFor. It reads them with many short queries, a million in some five seconds.
func (q *queries) guestsThat(ctx context.Context, match func(*foundGuest) bool) (found []foundGuest, err error) {
	for after := int64(0); ; {
		all, err := collect(q, `SELECT c.seq, c.order_id, o.account_id, o.state, c.name, c.phone
			FROM order_customers c CROSS JOIN orders o ON o.id = c.order_id
			WHERE c.seq > ? ORDER BY c.seq LIMIT ?`,
			[]any{after, guestsAtOnce}, func(g *foundGuest) []any {
				return []any{&g.seq, &g.orderID, &g.accountID, &g.state, &g.name, &g.phone}
			})
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		for i := range all {
			if after = all[i].seq; match(&all[i]) {
				found = append(found, all[i])
			}
		}
		if len(all) < guestsAtOnce {
			return found, nil
		}
	}
}

// eraseGuests removes what is known of the guests of orders, and returns of how many. It does so in short
// transactions, so that other writes go on in between. Until the write-ahead log is truncated, it holds them.
func (s *store) eraseGuests(ctx context.Context, orderIDs []string) (erased int64, err error) {
	blank := func(t *tx, ids []string) int64 {
		t.blankGuests(ids)
		return 0
	}
	// All rows are overwritten before the first is deleted: see eraseLeads.
	for _, step := range []func(*tx, []string) int64{blank, (*tx).eraseGuests} {
		for ids := range slices.Chunk(orderIDs, guestsAtOnce) {
			err := s.update(ctx, func(t *tx) error {
				erased += step(t, ids)
				return nil
			})
			if err != nil {
				return erased, err
			}
		}
	}
	return erased, nil
}
