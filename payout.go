package main

import "slices"

// payoutNoun declares what payment providers pay out, and what is in that.
func payoutNoun() noun {
	return noun{
		name:     "payout",
		modules:  func(s *server) []module { return []module{payoutModule(s, &payouts{paymentsOf(s)})} },
		calls:    payoutRouteCommands,
		ids:      []idKind{{"PAYOUT", "pot", "payouts", false, nil}},
		problems: payoutProblems,
		events:   payoutEvents,
		troubles: payoutTroubles,
		rows:     []rowReader{payoutTable.unreadable, payoutItemTable.unreadable},
	}
}

// Payouts (contract, section 12): what leaves the clearing accounts is what providers pay out, their fees and the tax
// on these. What is in a payout only proves its amount, tells what was paid by which method, and names orders.
// payout_read.go reads that, books_payout.go makes the entry.

// The problem codes and the event types of payouts. The data of the events has no amounts.
var (
	payoutProblems problemTable

	codePayoutNotFound = payoutProblems.add(404, "payout_not_found", "Payout not found",
		"There is no payout with this id.",
		"List the payouts of the account.")
	codePayoutState = payoutProblems.add(409, "payout_state", "Not in this state",
		"The state of the payout does not allow this.",
		"Read the payout: what is in it has to be read first, and only one that is right can be confirmed.")

	errPayout      = &refusal{code: codePayoutNotFound}
	errPayoutState = &refusal{code: codePayoutState,
		detail: "Only a payout that was read can be compared with the bank."}
	errUnread = &refusal{code: codePayoutState, detail: "What is in the payout was not read yet."}

	payoutEvents = eventTable{scope: scopeRevenue}

	eventPayoutPaid   = payoutEvents.add("payout.paid")
	eventPayoutFailed = payoutEvents.add("payout.failed") // or canceled
	eventPayoutHeld   = payoutEvents.add("payout.held")   // it is not booked, see its reason
)

// The states of a payout, besides payoutPaid, payoutFailed and payoutCanceled.
const (
	payoutExpected = "expected" // what is in it is not complete yet
	payoutReading  = "reading"  // what is in it is being read
	payoutReady    = "ready"    // it was read; at Vipps that is all that is ever known of it
	payoutOpaque   = "opaque"   // the provider does not tell what is in it
)

// A payoutState is how far a payout is. `expected`: what is in it is not complete yet. `reading`: that is being
// read. `ready`: it was read, and at Vipps that is all that is ever known. `paid`, `failed`, `canceled`: as the
// provider says; a payout that was `paid` can be `failed` days later. `opaque`: the provider does not tell what
// is in it.
type payoutState string

var _ = declareWords[payoutState](payoutExpected, payoutReading, payoutReady, payoutPaid, payoutFailed, payoutCanceled,
	payoutOpaque)

// Why a payout is not booked.
const (
	heldOpaque      = "opaque"          // somebody has asked for it, so the provider does not tell what is in it
	heldDiffers     = "does_not_add_up" // what is in it is not its amount
	heldUnknownRow  = "unknown_category"
	heldCorrection  = "correction"     // the provider or the account there has corrected something
	heldForeign     = "foreign_items"  // it has money of others than our payments
	heldShared      = "shared_account" // it has money of accounts here that use the same one there
	heldConverted   = "currency"       // it has payments in another currency
	heldUnconfirmed = "unconfirmed"    // nobody has compared a payout of its connection with the bank
)

// A payoutReason is why a payout is not booked; `null`: it can be. `opaque`: somebody has asked for this payout,
// so the provider does not tell what is in it: nothing is booked. `does_not_add_up`: what the provider lists in
// it is not its amount. `unknown_category`: it has a row of a kind that this service does not know. `correction`:
// it has a correction or a top-up, which belongs to no payment. `foreign_items`: it has money of payments that
// are not the account's here. `shared_account`: all of these are of other accounts of this service that use the
// same account at the provider: have one there for each set of books. `currency`: it has payments in another
// currency, and nothing is converted. `unconfirmed`: no payout of its connection was compared with the bank yet.
type payoutReason string

var _ = declareWords[payoutReason](heldOpaque, heldDiffers, heldUnknownRow, heldCorrection, heldForeign, heldShared,
	heldConverted, heldUnconfirmed)

// A payoutHold says why a payout is not booked.
type payoutHold struct{ reason, text string }

// payoutHolds are all of them, the first to apply first.
var payoutHolds = []payoutHold{
	{heldOpaque, "The provider does not tell what is in a payout that somebody has asked for: book it by hand."},
	{heldDiffers, "What the provider lists in the payout does not add up to its amount."},
	{heldUnknownRow, "The payout has a row of a kind that this service does not know: book it by hand."},
	{heldCorrection, "The payout has a correction or a top-up, which belongs to no payment: book it by hand."},
	{heldForeign, "The payout has money of other payments than this account's: book it by hand."},
	{heldShared, "The payout has money of other accounts of this service, which use the same account at the " +
		"provider: book it by hand, and have one account there for each set of books."},
	{heldConverted, "The payout has payments in another currency. Nothing is converted: book it by hand."},
	{heldUnconfirmed, "No payout of this connection was compared with the bank yet: " +
		"have the operator confirm one that is right."},
}

// A payout is what a payment provider pays out at once, or takes.
type payout struct {
	ID           string       `json:"id" is:"pot"`            // The id of the payout.
	AccountID    string       `json:"account_id" is:"acct"`   // The account that gets it.
	ConnectionID string       `json:"connection_id" is:"con"` // The connection with the provider by which it is read.
	Provider     providerName `json:"provider"`               // Who pays it out.

	// The provider's id of it: Stripe's payout, Vipps' `pspReference`, or null: it is not scheduled yet.
	ProviderID *string       `json:"provider_id"`
	State      payoutState   `json:"state"`            // How far it is.
	Reason     *payoutReason `json:"reason"`           // Why it is not booked, or null: it can be.
	Amount     int64         `json:"amount" least:"-"` // What arrives, in the minor unit; negative: it is taken.
	Currency   string        `json:"currency"`         // The currency of its amounts.

	// When it arrives, as the provider says, at Vipps the date of the ledger, or null: it is not scheduled yet.
	ArrivalDate *businessDate `json:"arrival_date" is:"date"`
	Automatic   bool          `json:"automatic"`     // `false`: somebody has asked for it, so it is `opaque`.
	Method      string        `json:"method"`        // `standard` or `instant`; empty: the provider does not say.
	Status      string        `json:"status"`        // The provider's own word for its state.
	Fee         int64         `json:"fee" least:"-"` // What the provider keeps of all that is in it, without tax.
	Tax         int64         `json:"tax" least:"-"` // The tax on fees, as far as the provider lists it.
	Items       int64         `json:"items"`         // How many rows it has.
	Cursor      string        `json:"-"`             // how far these were read
	CreatedAt   stamp         `json:"created_at"`    // When it was seen first.
	ReadAt      stamp         `json:"read_at"`       // When what is in it was read, or null: not yet.
	EndedAt     stamp         `json:"ended_at"`      // When it was seen to be failed or canceled, or null: it was not.
	ConfirmedAt stamp         `json:"confirmed_at"`  // When it was compared with the bank, or null: it was not.

	Live bool `json:"live"` // With live keys; else no money moves.
}

// isUnread reports whether what is in the payout is still to be read. Of one that somebody has asked for nobody tells
// what that is.
func (p *payout) isUnread() bool { return p.Automatic && p.ReadAt.IsZero() }

// A payoutSum is what is in a payout of one category and way of paying.
type payoutSum struct {
	Category payoutCategory `json:"category"`         // What the rows are.
	Method   *payoutMethod  `json:"method"`           // How it was paid, or null: it is of no payment.
	Items    int64          `json:"items" least:"1"`  // How many rows.
	Amount   int64          `json:"amount" least:"-"` // In the minor unit; negative: it was taken.
	Fee      int64          `json:"fee" least:"-"`    // What the provider keeps of it, without tax.
	Tax      int64          `json:"tax" least:"-"`    // The tax on the fee.
	Net      int64          `json:"net" least:"-"`    // What remains: `amount` less `fee` and `tax`.

	foreign   int64 // of Items, those that should be of a payment of the account's, and are not; without shared
	shared    int64 // of Items, those of payments of other accounts here that use the same one at the provider
	converted int64 // of Items, those of payments in another currency
}

// totalOf returns the sum of all rows of a payout.
func totalOf(sums []payoutSum) (total payoutSum) {
	for _, s := range sums {
		total.Items, total.Net = total.Items+s.Items, total.Net+s.Net
		total.Fee, total.Tax = total.Fee+s.Fee, total.Tax+s.Tax
		total.foreign, total.converted = total.foreign+s.foreign, total.converted+s.converted
		total.shared += s.shared
	}
	return total
}

// isDispute reports whether it is of disputes, whose fees have an account of their own.
func (s *payoutSum) isDispute() bool { return s.Category == rowDispute }

// methods are the ways of paying that its provider has.
func (p *payout) methods() []string { return providerOf(string(p.Provider)).methods }

// ended reports whether the payout did not arrive. It stays so, whatever its provider says later.
func (p *payout) ended() bool { return !p.EndedAt.IsZero() }

// settle sets the state of a payout. What is in it is read once that is complete, whatever comes of it: even of one
// that fails the fees were kept.
func (p *payout) settle(complete bool) {
	switch read := !p.ReadAt.IsZero(); {
	case p.Automatic && complete && !read:
		p.State = payoutReading
	case p.ended() && p.Status == payoutCanceled:
		p.State = payoutCanceled
	case p.ended():
		p.State = payoutFailed
	case !p.Automatic:
		p.State = payoutOpaque
	case read && p.Status == payoutPaid:
		p.State = payoutPaid
	case read:
		p.State = payoutReady
	default:
		p.State = payoutExpected
	}
}

// adopt adopts what a provider reports of a payout.
func (p *payout) adopt(told *payoutReport, now stamp) {
	p.Amount, p.Currency, p.ArrivalDate = told.amount, told.currency, &told.arrival
	p.Automatic, p.Method, p.Status = told.automatic, told.method, told.status
	if !p.ended() && (p.Status == payoutFailed || p.Status == payoutCanceled) {
		p.EndedAt = now
	}
	if p.settle(told.complete); !p.Automatic {
		p.Reason = new(payoutReason(heldOpaque))
	}
}

// judge returns why a payout that was read is not booked, given the sums of its rows; "": it can be. confirmed says
// whether a payout of its connection was compared with the bank, or need not be.
func (p *payout) judge(sums []payoutSum, confirmed bool) string {
	total, has := totalOf(sums), map[payoutCategory]bool{}
	for _, s := range sums {
		has[s.Category] = true
	}
	applies := map[string]bool{heldDiffers: total.Net != p.Amount, heldUnknownRow: has[rowUnknown],
		heldCorrection: has[rowCorrection], heldForeign: total.foreign > 0, heldShared: total.shared > 0,
		heldConverted: total.converted > 0, heldUnconfirmed: !confirmed}
	if i := slices.IndexFunc(payoutHolds, func(h payoutHold) bool { return applies[h.reason] }); i >= 0 {
		return payoutHolds[i].reason
	}
	return ""
}

// save writes a payout as it has become since it was read, with the events of that.
func (p *payout) save(t *tx, before *payout) {
	t.savePayout(p)
	tell := func(kind eventType) {
		data := []string{"provider", string(p.Provider), "connection_id", p.ConnectionID, "currency", p.Currency,
			"arrival_date", valueOr(p.ArrivalDate, ""), "state", string(p.State),
			"reason", string(valueOr(p.Reason, ""))}
		t.addEvent(event{Type: kind, AccountID: p.AccountID, SubjectID: p.ID, Actor: actorProvider,
			Data: eventData(data...)})
	}
	if p.Status == payoutPaid && before.Status != payoutPaid && !p.ended() {
		tell(eventPayoutPaid)
	}
	if p.ended() && !before.ended() {
		tell(eventPayoutFailed)
	}
	if p.Reason != nil && valueOr(before.Reason, "") != *p.Reason {
		tell(eventPayoutHeld)
	}
}

// confirmPayout notes that somebody has compared a payout with the bank, so that it and the others of its connection
// are booked. Errors: errPayout, errPayoutState.
func confirmPayout(t *tx, o owner, id string) error {
	p, err := t.payout(o, id)
	if err != nil {
		return err
	}
	if p.ReadAt.IsZero() || p.ended() || valueOr(p.Reason, heldUnconfirmed) != heldUnconfirmed {
		return errPayoutState
	}
	if p.ConfirmedAt.IsZero() {
		t.confirmPayout(p)
	}
	return nil
}
