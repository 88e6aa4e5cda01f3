package main

// movedByCard has what was captured, given back and disputed of all payments.
const movedByCard = `WITH moved (id, category, amount, source, payment_id, at) AS (
		SELECT id, 'payment', captured, '', id, captured_at FROM payments
		UNION ALL SELECT id, 'refund', -amount, provider_id, payment_id, created_at FROM refunds
			WHERE state = 'succeeded' AND payment_id IS NOT NULL
		UNION ALL SELECT payment_id || '/' || id, 'dispute', -taken, id, payment_id, opened_at FROM disputes) `

// A cardMove is an amount that was captured of a payment or, if it is negative, given back or disputed.
type cardMove struct {
	amount int64
	at     stamp
	banked bool // books have the voucher of the payout that has it
}

// cardMoves returns those of an account in a currency. banked is by the connection with books.
func (q *queries) cardMoves(accountID, connectionID, currency string) ([]cardMove, error) {
	return collect(q, movedByCard+`SELECT m.amount, m.at, EXISTS (
			SELECT 1 FROM payout_items i JOIN books_exports x ON x.payout_id = i.payout_id
			WHERE i.payment_id = m.payment_id AND i.id = m.id AND x.connection_id = ?2 AND x.part = 'payout'
			AND `+isBooked+`)
		FROM moved m JOIN payments y ON y.id = m.payment_id
		WHERE y.account_id = ?1 AND y.currency = ?3 AND m.amount <> 0`, []any{accountID, connectionID, currency},
		func(m *cardMove) []any { return []any{&m.amount, &m.at, &m.banked} })
}

// bookedDays returns the business days whose vouchers in a currency a connection's books have.
func (q *queries) bookedDays(connectionID, currency string) ([]businessDate, error) {
	return collect(q, `SELECT x.date FROM books_exports x
		WHERE x.connection_id = ? AND x.currency = ? AND x.payout_id IS NULL AND `+isBooked,
		[]any{connectionID, currency}, func(d *businessDate) []any { return []any{d} })
}

// notPaidOut returns what was captured, given back and disputed of an account's payments before a time and is in no
// payout that arrives by a date, as rows of the provider's ledger, without fees.
func (q *queries) notPaidOut(accountID string, before stamp, arrived businessDate) (rows []ledgerRow, err error) {
	err = q.each(movedByCard+`SELECT m.id, m.category, m.category, m.amount, coalesce(m.source, ''), m.payment_id, m.at,
			y.currency
		FROM moved m JOIN payments y ON y.id = m.payment_id
		WHERE y.account_id = ? AND m.amount <> 0 AND m.at < ? AND NOT EXISTS (
			SELECT 1 FROM payout_items i JOIN payouts p ON p.id = i.payout_id
			WHERE i.payment_id = m.payment_id AND i.id = m.id AND p.arrival_date <= ?)
		ORDER BY m.id`, []any{accountID, before, arrived}, func(scan func(...any) error) error {
		var r ledgerRow
		var at stamp
		err := scan(&r.id, &r.category, &r.kind, &r.amount, &r.source, &r.paymentID, &at, &r.currency)
		r.at = at.Time
		rows = append(rows, r)
		return err
	})
	return rows, err
}
