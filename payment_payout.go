package main

import "time"

// What providers report of what they pay out (contract, section 12). The clients only read and name; payout_read.go
// keeps what they say, and payout.go judges it.

// What comes of a payout, as its provider calls it, and as its states are called.
const (
	payoutPaid     = "paid"
	payoutFailed   = "failed"
	payoutCanceled = "canceled"
)

// A payoutReport is one payout, as its provider reports it.
type payoutReport struct {
	providerID string // unique at the provider
	amount     int64  // in the minor unit; negative: the provider takes it
	currency   string
	arrival    string // the date on which it arrives, as far as the provider knows
	automatic  bool   // no: somebody has asked for it, so the provider does not tell what is in it
	method     string // standard or instant; "": the provider does not say
	status     string // the provider's own word; payoutPaid, payoutFailed and payoutCanceled mean that
	complete   bool   // what is in it can be read, and does not change any more
}

// The categories of the rows of a provider's ledger.
const (
	rowPayment    = "payment"    // captured, or taken back of that
	rowRefund     = "refund"     // given back, or put back since that has failed
	rowDispute    = "dispute"    // taken for a dispute, or put back
	rowFee        = "fee"        // kept by the provider, beside what it keeps of other rows
	rowReserve    = "reserve"    // withheld, or returned of that
	rowReturned   = "returned"   // an earlier payout that did not arrive
	rowCorrection = "correction" // by the provider or the account there, which says nothing of orders
	rowUnknown    = "unknown"    // of a kind that we do not know
)

// A payoutCategory is what a row of a payout is. `payment`: captured, or taken back of that. `refund`: given
// back, or put back since that has failed. `dispute`: taken for a dispute, or put back. `fee`: kept by the
// provider beside what it keeps of other rows. `reserve`: withheld, or returned of that. `returned`: an earlier
// payout that did not arrive. `correction`: by the provider or the account there. `unknown`: of a kind that this
// service does not know.
type payoutCategory string

// A payoutMethod is how what is in a payout was paid; `null`: it is of no payment of the account's.
type payoutMethod string

var (
	_ = declareWords[payoutCategory](rowPayment, rowRefund, rowDispute, rowFee, rowReserve, rowReturned, rowCorrection,
		rowUnknown)
	_ = declareWords[payoutMethod](methodCard, methodMobile, methodTwint)
)

// A ledgerRow is one movement of money in a provider's ledger. Amounts are in the minor unit, and negative for what
// was taken; what remains of it is amount - fee - tax. Of rowFee all is fee or tax, and the amount is 0.
type ledgerRow struct {
	id       string // unique in its payout
	category string // rowPayment, …
	kind     string // the provider's own name
	amount   int64
	fee, tax int64
	currency string
	at       time.Time

	// What it is about: the attempt by our id or by the provider's (payment.IntentID), and the provider's id of a
	// refund or a dispute, or of the payout that has come back. "": unknown.
	paymentID, intentID, source string

	// The payout that this row schedules, with what came since the one before in the same currency. The row itself is
	// not in it. nil: another row.
	schedules *payoutReport
}

// net returns what a row adds to a balance.
func (r *ledgerRow) net() int64 { return r.amount - r.fee - r.tax }

// A payoutNews is what a provider tells of what it pays out.
type payoutNews struct {
	payouts []payoutReport // payouts, as they are now, whose rows are read by provider.payoutRows
	rows    []ledgerRow    // rows of a ledger that schedules payouts itself, the earliest first, each once
	cursor  string         // from where it goes on the next time
	more    bool           // there is more at once
}
