package main

import (
	"time"
)

// addPayout has the provider pay out what an order that was paid has brought, less a fee of 1.08, three days ago.
// change changes what it says of the payout, or its rows.
func (s *service) addPayout(o *order, change ...func(told *payoutReport, rows *[]ledgerRow)) (row *payout) {
	s.t.Helper()
	now := s.server.now()
	rows := []ledgerRow{{id: "txn_" + o.ID, category: rowPayment, kind: "charge", amount: o.OrderedTotal, fee: 108,
		currency: o.Currency, at: now, paymentID: *o.PaymentID, source: "ch_" + o.ID}}
	told := payoutReport{providerID: "po_" + o.ID, currency: o.Currency, automatic: true, method: "standard",
		arrival: now.AddDate(0, 0, -3).Format(time.DateOnly), status: payoutPaid, outcome: payoutPaid, complete: true}
	for _, r := range rows {
		told.amount += r.net()
	}
	for _, f := range change {
		f(&told, &rows)
	}
	s.change(func(t *tx) error {
		p, err := t.payment(*o.PaymentID)
		if err != nil {
			return err
		}
		c, err := t.paymentConnection(anyAccount, p.ConnectionID)
		if err != nil {
			return err
		}
		if err := adoptPayout(t, c, &told); err != nil {
			return err
		}
		row, err = t.payoutOf(o.AccountID, c.Provider, told.providerID)
		if err == nil && row.State == payoutReading {
			err = new(payouts).addPage(t, row, rows, "")
		}
		return err
	})
	return row
}
