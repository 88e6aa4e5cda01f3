package main

import "time"

// payoutTable describes the table payouts.
var payoutTable = newTable("payouts", "p", func(p *payout) []field {
	return []field{{"id", &p.ID}, {"account_id", &p.AccountID}, {"connection_id", &p.ConnectionID},
		{"provider", &p.Provider}, {"provider_id", &p.ProviderID}, {"state", &p.State}, {"reason", &p.Reason},
		{"amount", &p.Amount}, {"currency", &p.Currency}, {"arrival_date", &p.ArrivalDate},
		{"automatic", &p.Automatic}, {"method", &p.Method}, {"status", &p.Status}, {"fee", &p.Fee}, {"tax", &p.Tax},
		{"items", &p.Items}, {"cursor", &p.Cursor}, {"created_at", &p.CreatedAt}, {"read_at", &p.ReadAt},
		{"ended_at", &p.EndedAt}, {"confirmed_at", &p.ConfirmedAt},
		{"(SELECT c.live <> 0 FROM payment_connections c WHERE c.id = p.connection_id)", &p.Live}}
})

// payout returns a payout of an owner, or errPayout.
func (q *queries) payout(o owner, id string) (*payout, error) {
	return payoutTable.byID(q, o, id, errPayout)
}

// payoutsBetween returns up to limit payouts of an owner that arrive from one date to another, the last to arrive
// first, after one of them (nil: from the beginning), by an index that has them in this order.
func (q *queries) payoutsBetween(o owner, from, to businessDate, after *payout, limit int) ([]payout, error) {
	before, id := to, lastID
	if after != nil {
		before, id = min(to, valueOr(after.ArrivalDate, to)), after.ID
	}
	condition, args := o.narrow(`WHERE p.arrival_date >= ? AND (p.arrival_date, p.id) < (?, ?)`, `p.account_id`, from,
		before, id)
	return payoutTable.all(q, condition+` ORDER BY p.arrival_date DESC, p.id DESC LIMIT ?`, append(args, limit)...)
}

// payoutOf returns the payout of an account that a provider knows under an id, nil if there is none.
func (q *queries) payoutOf(accountID, provider, providerID string) (*payout, error) {
	return orNil(payoutTable.one(q, `WHERE p.account_id = ? AND p.provider = ? AND p.provider_id = ?`,
		accountID, provider, providerID))
}

// unscheduledPayout returns the payout of a connection and a currency that its provider has not scheduled yet, nil if
// there is none.
func (q *queries) unscheduledPayout(connectionID, currency string) (*payout, error) {
	return orNil(payoutTable.one(q, `WHERE p.connection_id = ? AND p.currency = ? AND p.provider_id IS NULL`,
		connectionID, currency))
}

// payoutToRead returns a payout of a connection whose rows are to be read, nil if there is none.
func (q *queries) payoutToRead(connectionID string) (*payout, error) {
	return orNil(payoutTable.one(q, `WHERE p.connection_id = ? AND p.state = 'reading' LIMIT 1`, connectionID))
}

// savePayout writes what can change of a payout.
func (t *tx) savePayout(p *payout) {
	payoutTable.update(t, p, `connection_id provider_id state reason amount currency arrival_date automatic method
		status fee tax items cursor read_at ended_at`, ` WHERE id = ?`, p.ID)
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1 WHERE payout_id = ? AND state = 'held'`,
		t.now, p.ID)
}

// A payoutItem is a row of a provider's ledger that is in a payout.
type payoutItem struct {
	payoutID string

	ID       string         `json:"id"`               // The provider's id of the row, unique in its payout.
	Category payoutCategory `json:"category"`         // What it is.
	Kind     string         `json:"kind"`             // The provider's own name for that.
	Amount   int64          `json:"amount" least:"-"` // In the minor unit; negative: it was taken.
	Fee      int64          `json:"fee" least:"-"`    // What the provider keeps of it, without tax.
	Tax      int64          `json:"tax" least:"-"`    // The tax on the fee.
	Net      int64          `json:"net" least:"-"`    // What remains: `amount` less `fee` and `tax`.
	Method   *payoutMethod  `json:"method"`           // How it was paid, or null: it is of no payment.

	// What it is about, as the provider names it, a refund or a dispute, or null: neither, or as `payment_id`.
	Source *string `json:"source"`
	At     stamp   `json:"at"` // When it happened.

	// The attempt, or null: none of the account's, or the caller may not read orders. So with the ids below.
	PaymentID *string `json:"payment_id" is:"pay"`
	OrderID   *string `json:"order_id" is:"ord"`  // The order, or null: as `payment_id`.
	RefundID  *string `json:"refund_id" is:"ref"` // The refund, or null: as `payment_id`.
	DisputeID *string `json:"dispute_id"`         // The dispute, by the provider's id, or null: as `payment_id`.
}

// The refund and the dispute of ours that a row i is about. Vipps may have one id for several refunds, which have more
// after a slash then.
const (
	fromItemRefunds = `FROM refunds r WHERE r.payment_id = i.payment_id AND i.category = 'refund'
		AND r.provider_id IS NOT NULL AND substr(r.provider_id, 1, length(i.source) + 1) IN (i.source, i.source || '/')`
	itemRefund  = `(SELECT r.id ` + fromItemRefunds + ` ORDER BY r.amount <> abs(i.amount), r.id LIMIT 1)`
	itemDispute = `(SELECT d.id FROM disputes d WHERE d.payment_id = i.payment_id AND d.id = i.source
		AND i.category = 'dispute')`
)

// payoutItemTable describes the table payout_items.
var payoutItemTable = newTable("payout_items", "i", func(i *payoutItem) []field {
	return []field{{"payout_id", &i.payoutID}, {"id", &i.ID}, {"category", &i.Category}, {"kind", &i.Kind},
		{"amount", &i.Amount}, {"fee", &i.Fee}, {"tax", &i.Tax}, {"method", &i.Method}, {"source", &i.Source},
		{"at", &i.At}, {"payment_id", &i.PaymentID}, {"i.amount - i.fee - i.tax", &i.Net},
		{"(SELECT y.order_id FROM payments y WHERE y.id = i.payment_id)", &i.OrderID},
		{itemRefund, &i.RefundID}, {itemDispute, &i.DisputeID}}
})

// payoutItems returns up to limit rows of a payout, in the order of their ids, after one of these.
func (q *queries) payoutItems(payoutID, after string, limit int) ([]payoutItem, error) {
	return payoutItemTable.all(q, `WHERE i.payout_id = ? AND i.id > ? ORDER BY i.id LIMIT ?`, payoutID, after, limit)
}

// payoutSums returns the sums of the rows of a payout.
func (q *queries) payoutSums(payoutID string) ([]payoutSum, error) {
	return collect(q, `SELECT i.category, i.method, count(*), sum(i.amount), sum(i.fee), sum(i.tax),
			sum(i.amount - i.fee - i.tax),
			sum(i.category IN ('payment', 'refund', 'dispute') AND i.payment_id IS NULL AND NOT i.shared),
			sum(i.category IN ('payment', 'refund', 'dispute') AND i.shared),
			sum(y.currency IS NOT p.currency AND y.id IS NOT NULL)
		FROM payouts p JOIN payout_items i ON i.payout_id = p.id LEFT JOIN payments y ON y.id = i.payment_id
		WHERE p.id = ? GROUP BY i.category, i.method ORDER BY i.category, i.method`, []any{payoutID},
		func(s *payoutSum) []any {
			return []any{&s.Category, &s.Method, &s.Items, &s.Amount, &s.Fee, &s.Tax, &s.Net, &s.foreign, &s.shared,
				&s.converted}
		})
}

// sharedPayment is the condition that a row is of a payment of another connection with the same account of a provider:
// it has the provider's own id of that, or our id, which anybody may write there, and the connections one name.
const sharedPayment = `EXISTS (SELECT 1 FROM payments z JOIN payment_connections u ON u.id = z.connection_id
	JOIN payment_connections c ON c.id = ?13 AND c.provider = u.provider AND c.live = u.live
	WHERE z.id = ?10 AND c.name = u.name AND c.name <> '' OR z.intent_id = nullif(?11, ''))`

// addItem adds a row of a provider's ledger to a payout. One that is read again replaces itself. The payment is found
// among those of all connections of the account.
func (t *tx) addItem(p *payout, r *ledgerRow) {
	t.exec(`INSERT OR REPLACE INTO payout_items (payout_id, id, category, kind, amount, fee, tax, source, at,
			payment_id, method, shared)
		SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, nullif(?8, ''), ?9, y.id, y.method,
			y.id IS NULL AND `+sharedPayment+` FROM (SELECT 1)
		LEFT JOIN payments y ON y.id = coalesce((SELECT id FROM payments WHERE id = ?10 AND account_id = ?12),
			(SELECT id FROM payments WHERE intent_id = nullif(?11, '') AND account_id = ?12))`,
		p.ID, r.id, r.category, r.kind, r.amount, r.fee, r.tax, r.source, newStamp(r.at), r.paymentID, r.intentID,
		p.AccountID, p.ConnectionID)
}

// addReturned is addItem for a row by which an earlier payout came back, by the methods of what was in that.
func (t *tx) addReturned(p *payout, r *ledgerRow, earlier *payout) {
	t.exec(`INSERT OR REPLACE INTO payout_items (payout_id, id, category, kind, amount, fee, tax, source, at, method)
		SELECT ?1, ?2 || coalesce('/' || method, ''), ?3, ?4, sum(amount - fee - tax), 0, 0, ?5, ?6, method
		FROM payout_items WHERE payout_id = ?7 GROUP BY method`,
		p.ID, r.id, r.category, r.kind, r.source, newStamp(r.at), earlier.ID)
}

// pollUnmatched is poll for the attempts that rows of a payout name and whose money is not what these say: another
// amount was captured, the refund is not there or has come to the contrary, or another amount was taken for the
// dispute. Of a payout in another currency than the attempt, it only asks whether there was any. It reads the rows of
// the payout, and all that their attempts have.
func (t *tx) pollUnmatched(payoutID string) {
	const rows = `(SELECT sum(j.amount) FROM payout_items j WHERE j.payment_id = i.payment_id
		AND j.category = i.category AND (i.category = 'payment' OR j.source IS i.source))`
	const taken = `(SELECT d.taken FROM disputes d WHERE d.payment_id = i.payment_id AND d.id = i.source)`
	differ := func(a, b string) string {
		return `iif(y.currency = o.currency, ` + a + ` IS NOT ` + b + `, (` + a + ` > 0) IS NOT (` + b + ` > 0))`
	}
	t.poll(`id IN (SELECT y.id FROM payouts o JOIN payout_items i ON i.payout_id = o.id
		JOIN payments y ON y.id = i.payment_id WHERE o.id = ? AND CASE i.category
			WHEN 'payment' THEN `+differ(rows, `y.captured`)+` WHEN 'dispute' THEN `+differ(`-`+rows, taken)+`
			WHEN 'refund' THEN NOT EXISTS (SELECT 1 `+fromItemRefunds+` AND (r.state = 'failed') = (`+rows+` >= 0)
				AND (r.amount = abs(i.amount) OR y.currency <> o.currency)) END)`, payoutID)
}

// removeItems removes the rows of a payout, which are read again.
func (t *tx) removeItems(payoutID string) {
	t.exec(`DELETE FROM payout_items WHERE payout_id = ?`, payoutID)
}

// hasConfirmed reports whether a payout of a connection was compared with the bank.
func (q *queries) hasConfirmed(connectionID string) (bool, error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM payouts
		WHERE connection_id = ? AND confirmed_at IS NOT NULL)`, connectionID)
}

// confirmPayout notes that a payout was compared with the bank, which releases those of its connection that wait for
// that.
func (t *tx) confirmPayout(p *payout) {
	t.exec(`UPDATE payouts SET confirmed_at = ? WHERE id = ?`, t.now, p.ID)
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1 WHERE state = 'held' AND payout_id IN
		(SELECT id FROM payouts WHERE account_id = ? AND connection_id = ? AND reason = 'unconfirmed')`,
		t.now, p.AccountID, p.ConnectionID)
	t.exec(`UPDATE payouts SET reason = NULL WHERE account_id = ? AND connection_id = ? AND reason = 'unconfirmed'`,
		p.AccountID, p.ConnectionID)
}

// duePayouts returns up to limit connections whose payouts are to be read at now, of accounts that are open: those in
// use, and those that were removed after a time, whose payments are still paid out, unless another one goes on with
// that; see addPaymentConnection.
func (q *queries) duePayouts(now, removedAfter stamp, limit int) ([]string, error) {
	return q.texts(`SELECT c.id FROM payment_connections c JOIN accounts a ON a.id = c.account_id
		WHERE (c.payouts_due_at IS NULL OR c.payouts_due_at <= ?1) AND a.closed_at IS NULL
		AND (c.removed_at IS NULL OR c.removed_at > ?2 AND NOT EXISTS (SELECT 1 FROM payment_connections u
			WHERE u.account_id = c.account_id AND u.provider = c.provider AND u.removed_at IS NULL
			AND u.name = c.name AND u.name <> '')) AND c.id NOT IN (SELECT value FROM json_each(?3))
		ORDER BY c.payouts_due_at LIMIT ?4`, now, removedAfter, q.faults.leftOutIDs(), limit)
}

// saveCursor writes how far the payouts of a connection were read.
func (t *tx) saveCursor(connectionID, cursor string) {
	t.exec(`UPDATE payment_connections SET payouts_cursor = ? WHERE id = ?`, cursor, connectionID)
}

// postponePayouts writes when the payouts of a connection are read next, unless its provider has said since the
// connection was read that there is news; and why they could not be read now; "": they were.
func (t *tx) postponePayouts(c *paymentConnection, due stamp, failing string) {
	t.exec(`UPDATE payment_connections SET payouts_due_at = iif(payouts_due_at IS ?, ?, payouts_due_at),
		payouts_failing = nullif(?, '') WHERE id = ?`, c.PayoutsDueAt, due, failing, c.ID)
}

// payoutTroubles are the troubles of payouts. Keys that may not read payouts matter where some are to be booked.
var payoutTroubles = []trouble{
	{kind: "payouts_differ", urgency: sameDay, money: true, one: "$n payout does not add up",
		many:   "$n payouts do not add up",
		advice: ", the first since $day: 'widgetd payout show $id'", span: -payoutTold,
		query: heldPayouts(heldDiffers)},
	{kind: "payouts_to_compare", urgency: whenSeen, money: true, one: "$n payout waits", many: "$n payouts wait",
		advice: " to be compared with the bank since $day: 'widgetd payout confirm $id'", span: -payoutTold,
		query: heldPayouts(heldUnconfirmed)},
	{kind: "payouts_unread", urgency: sameDay, one: "$n payment connection does not tell what it pays out",
		many: "$n payment connections do not tell what they pay out", advice: ": 'widgetd payment check $id'",
		query: `SELECT coalesce(c.payouts_due_at, c.created_at) AS since, c.id FROM payment_connections c
			WHERE c.payouts_failing IS NOT NULL AND c.removed_at IS NULL AND EXISTS (SELECT 1 FROM books_connections b
				WHERE b.account_id = c.account_id AND b.payouts_from IS NOT NULL)`},
}

// payoutTold is how long the status command tells of a payout that is not booked: somebody has booked it by hand then.
const payoutTold = 30 * 24 * time.Hour

// heldPayouts returns the SQL of the payouts since ?2 that are not booked for a reason.
func heldPayouts(reason string) string {
	return `SELECT read_at AS since, id FROM payouts
		WHERE reason IN ('does_not_add_up', 'unconfirmed') AND reason = '` + reason + `' AND read_at > ?2`
}
