package main

import "errors"

// paymentColumns are what payment.dest scans.
const paymentColumns = `p.id, p.order_id, p.account_id, p.connection_id, p.provider, p.method, p.state, p.amount,
	p.currency, p.authorized, p.captured, p.refunded, p.session_id, p.intent_id, p.url, p.reason, p.capture_before,
	p.warned, p.due_at, p.polls, p.revision, p.created_at, p.authorized_at, p.captured_at, p.checked_at, p.ended_at`

func (p *payment) dest() []any {
	return []any{&p.ID, &p.OrderID, &p.AccountID, &p.ConnectionID, &p.Provider, &p.Method, &p.State, &p.Amount,
		&p.Currency, &p.Authorized, &p.Captured, &p.Refunded, &p.SessionID, &p.IntentID, &p.URL, &p.Reason,
		&p.CaptureBefore, &p.Warned, &p.DueAt, &p.Polls, &p.Revision, &p.CreatedAt, &p.AuthorizedAt,
		&p.CapturedAt, &p.CheckedAt, &p.EndedAt}
}

// payment returns an attempt, or errNotFound.
func (q *queries) payment(id string) (*payment, error) {
	p := &payment{}
	return p, q.one(`SELECT `+paymentColumns+` FROM payments p WHERE p.id = ?`, []any{id}, p.dest()...)
}

// paymentsOf returns the attempts to pay an order, oldest first.
func (q *queries) paymentsOf(orderID string) ([]payment, error) {
	return collect(q, `SELECT `+paymentColumns+` FROM payments p WHERE p.order_id = ? ORDER BY p.id`,
		[]any{orderID}, (*payment).dest)
}

// livePayment returns the attempt to pay an order by which money may still be reserved, nil if there is
// none. There is at most one.
func (q *queries) livePayment(orderID string) (*payment, error) {
	p := &payment{}
	return orNil(p, q.one(`SELECT `+paymentColumns+` FROM payments p
		WHERE p.order_id = ? AND p.state IN ('created', 'pending', 'authorized')`, []any{orderID}, p.dest()...))
}

// addPayment inserts an attempt.
func (t *tx) addPayment(p *payment) error {
	_, err := t.exec(`INSERT INTO payments (id, order_id, account_id, connection_id, provider, method, state, amount,
		currency, due_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, p.ID, p.OrderID, p.AccountID,
		p.ConnectionID, p.Provider, p.Method, p.State, p.Amount, p.Currency, p.DueAt, p.CreatedAt)
	return err
}

// errChanged says that a row has another revision than it was read with, so that what was decided about
// it is to be decided anew.
var errChanged = errors.New("it has changed meanwhile")

// savePayment writes an attempt, if it still has the revision with which it was read, and raises that.
// Errors: errChanged.
func (t *tx) savePayment(p *payment) error {
	n, err := t.exec(`UPDATE payments SET state = ?, authorized = ?, captured = ?, refunded = ?, session_id = ?,
		intent_id = ?, url = ?, reason = ?, capture_before = ?, warned = ?, due_at = ?, polls = ?,
		revision = revision + 1, authorized_at = ?, captured_at = ?, checked_at = ?, ended_at = ?
		WHERE id = ? AND revision = ?`,
		p.State, p.Authorized, p.Captured, p.Refunded, p.SessionID, p.IntentID, p.URL, p.Reason,
		p.CaptureBefore, p.Warned, p.DueAt, p.Polls, p.AuthorizedAt, p.CapturedAt, p.CheckedAt, p.EndedAt,
		p.ID, p.Revision)
	if err == nil && n == 0 {
		return errChanged
	}
	p.Revision++
	return err
}

// setPaymentState changes the state of an attempt and has it looked at. Errors: errNotFound.
func (t *tx) setPaymentState(id, state string) error {
	n, err := t.exec(`UPDATE payments SET state = ?, reason = NULL, due_at = ?, polls = 0, revision = revision + 1
		WHERE id = ?`, state, t.now, id)
	return requireRow(n, err)
}

// lookAt has the provider asked about an attempt as soon as possible. It also has whoever decides about
// it at the same time decide anew. For an id that there is not it does nothing.
func (t *tx) lookAt(paymentID string) error {
	_, err := t.exec(`UPDATE payments SET due_at = ?, polls = 0, revision = revision + 1 WHERE id = ?`, t.now, paymentID)
	return err
}

// lookAtIntent is lookAt for the attempt of a connection that the provider knows under an id of its own.
func (t *tx) lookAtIntent(connectionID, intentID string) error {
	_, err := t.exec(`UPDATE payments SET due_at = ?, polls = 0, revision = revision + 1
		WHERE intent_id = ? AND connection_id = ?`, t.now, intentID, connectionID)
	return err
}

// A duePayment is an attempt whose provider is to be asked.
type duePayment struct {
	id, connectionID string
}

// duePayments returns up to limit attempts that are due at now, the longest due first.
func (q *queries) duePayments(now stamp, limit int) ([]duePayment, error) {
	return collect(q, `SELECT id, connection_id FROM payments WHERE due_at <= ? ORDER BY due_at LIMIT ?`,
		[]any{now, limit}, func(d *duePayment) []any { return []any{&d.id, &d.connectionID} })
}

// A dispute is a payment that the guest has disputed with the bank.
type dispute struct {
	PaymentID string  `json:"payment_id"`
	ID        string  `json:"id"` // the provider's
	OrderID   string  `json:"order_id"`
	Amount    int64   `json:"amount"`
	State     string  `json:"state"`  // open, won or lost
	Reason    *string `json:"reason"` // as the provider names it
	OpenedAt  stamp   `json:"opened_at"`
	ClosedAt  stamp   `json:"closed_at"`
}

// The states of a dispute.
const (
	disputeOpen = "open"
	disputeWon  = "won" // the money stays
	disputeLost = "lost"
)

// disputesOf returns the disputes of an order, oldest first.
func (q *queries) disputesOf(orderID string) ([]dispute, error) {
	return collect(q, `SELECT d.payment_id, d.id, d.order_id, d.amount, d.state, d.reason, d.opened_at, d.closed_at
		FROM payments p JOIN disputes d ON d.payment_id = p.id WHERE p.order_id = ? ORDER BY d.opened_at, d.id`,
		[]any{orderID}, func(d *dispute) []any {
			return []any{&d.PaymentID, &d.ID, &d.OrderID, &d.Amount, &d.State, &d.Reason, &d.OpenedAt, &d.ClosedAt}
		})
}

// saveDispute writes a dispute.
func (t *tx) saveDispute(d *dispute) error {
	_, err := t.exec(`INSERT INTO disputes (payment_id, id, order_id, amount, state, reason, opened_at, closed_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (payment_id, id) DO UPDATE SET
		amount = excluded.amount, state = excluded.state, reason = excluded.reason, closed_at = excluded.closed_at`,
		d.PaymentID, d.ID, d.OrderID, d.Amount, d.State, d.Reason, d.OpenedAt, d.ClosedAt)
	return err
}
