package main

// movedByCard has what was captured, given back and disputed of all payments.
const movedByCard = `WITH moved (id, category, amount, source, payment_id, at) AS (
		SELECT id, 'payment', captured, '', id, captured_at FROM payments
		UNION ALL SELECT id, 'refund', -amount, provider_id, payment_id, created_at FROM refunds
			WHERE state = 'succeeded' AND payment_id IS NOT NULL
		UNION ALL SELECT payment_id || '/' || id, 'dispute', -taken, id, payment_id, opened_at FROM disputes) `

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
