package main

import "slices"

// payoutNoun declares what payment providers pay out, and what is in that.
func payoutNoun() noun {
	return noun{
		name:     "payout",
		wings:    func(s *server) []wing { return []wing{payoutWing(s, &payouts{paymentsOf(s)})} },
		commands: payoutCommands,
		ids:      []idKind{{"PAYOUT", "pot", "payouts", false}},
		problems: payoutProblems,
		events:   payoutEvents,
		status:   payoutNeeds,
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
		"Only a payout that was read can be compared with the bank.",
		"Read the payout: what is in it has to be read first, and only one that is right can be confirmed.")

	errPayout      = &refusal{code: codePayoutNotFound}
	errPayoutState = &refusal{code: codePayoutState}
	errUnread      = &refusal{code: codePayoutState, detail: "What is in the payout was not read yet."}

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

// A payout is what a provider pays out at once, or takes. Amounts are in the minor unit.
type payout struct {
	ID           string        `json:"id"`
	AccountID    string        `json:"account_id"`
	ConnectionID string        `json:"connection_id"` // by which it is read
	Provider     string        `json:"provider"`
	ProviderID   *string       `json:"provider_id"` // nil: it is not scheduled yet
	State        string        `json:"state"`
	Reason       *string       `json:"reason"` // of payoutHolds; nil: it can be booked
	Amount       int64         `json:"amount"`
	Currency     string        `json:"currency"`
	ArrivalDate  *businessDate `json:"arrival_date"` // nil: it is not scheduled yet
	Automatic    bool          `json:"automatic"`
	Method       string        `json:"method"` // standard, instant, or "" where the provider does not say
	Status       string        `json:"status"` // the provider's own word
	Fee          int64         `json:"fee"`    // of all that is in it
	Tax          int64         `json:"tax"`    // on fees
	Items        int64         `json:"items"`  // how many rows it has
	Cursor       string        `json:"-"`      // how far these were read
	CreatedAt    stamp         `json:"created_at"`
	ReadAt       stamp         `json:"read_at"`  // zero: what is in it was not read yet
	EndedAt      stamp         `json:"ended_at"` // when it was seen to be failed or canceled
	ConfirmedAt  stamp         `json:"confirmed_at"`
	Live         bool          `json:"live"` // no column: with live keys
}

// A payoutSum is the sum of the rows of a payout of one category and method.
type payoutSum struct {
	Category string  `json:"category"` // rowPayment, …
	Method   *string `json:"method"`   // nil: of no payment
	Items    int64   `json:"items"`
	Amount   int64   `json:"amount"`
	Fee      int64   `json:"fee"`
	Tax      int64   `json:"tax"`
	Net      int64   `json:"net"`

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
func (p *payout) methods() []string { return providerOf(p.Provider).methods }

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
		p.Reason = new(heldOpaque)
	}
}

// judge returns why a payout that was read is not booked, given the sums of its rows; "": it can be. confirmed says
// whether a payout of its connection was compared with the bank, or need not be.
func (p *payout) judge(sums []payoutSum, confirmed bool) string {
	total, has := totalOf(sums), map[string]bool{}
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
		data := []string{"provider", p.Provider, "connection_id", p.ConnectionID, "currency", p.Currency,
			"arrival_date", valueOr(p.ArrivalDate, ""), "state", p.State, "reason", valueOr(p.Reason, "")}
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
