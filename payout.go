package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

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
// payout.go reads that, books_entry.go makes the entry.

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

// Reading what providers pay out: once a day for each connection, or when its provider says that there is news, page
// by page. Each page is on the disk with the cursor of the next one, so that a kill in between costs one page.

const (
	payoutTick     = 5 * time.Second     // between two looks for connections that are due
	maxReadingAt   = 2                   // connections at once
	payoutLimit    = time.Minute         // of one connection, which then goes on when it is due again: at once
	payoutPages    = 5                   // requests of a connection within a second
	payoutRetry    = time.Hour           // after an answer that was none
	payoutDaily    = 23 * time.Hour      // between two readings, with what jittered adds
	readAgain      = 20 * time.Hour      // before a payout is read again that can't be booked as it was read
	paidAfter      = 30 * 24 * time.Hour // its removal what a connection took may still be paid out
	faultPayouts   = "payouts can't be read"
	quietMinutes   = 10 // of each hour, in which Vipps asks not to be asked
	reasonUnopened = "secrets_unreadable"
)

// payouts reads and keeps what providers pay out. Any number of goroutines may use it.
type payouts struct{ *payments }

// A payoutWorker reads what is due.
type payoutWorker struct {
	*payouts
	dueWorker
}

// run reads until ctx ends.
func (w *payoutWorker) run(ctx context.Context) { w.dueWorker.run(ctx, w.wake, w.startDue) }

// startDue begins to read the payouts of connections that are due.
func (w *payoutWorker) startDue(ctx context.Context) {
	if w.full() || w.off() {
		return
	}
	now := newStamp(w.now())
	due, err := w.store.duePayouts(now, now.after(-paidAfter), maxReadingAt)
	if err != nil {
		w.log.Warn(faultPayouts, "error", err)
	}
	for _, id := range due {
		if w.full() || w.runs(id) {
			continue
		}
		w.start(id, id, func() {
			limited, cancel := context.WithTimeout(ctx, payoutLimit)
			defer cancel()
			err := w.read(limited, id)
			if err != nil && limited.Err() == nil && !w.store.faults.leaveOut(id, err) {
				w.log.Warn(faultPayouts, "connection", id, "error", err)
			}
		})
	}
}

// read reads the payouts of a connection until there is no more. Errors: that of ctx, and of the store.
func (p *payouts) read(ctx context.Context, connectionID string) error {
	for more := true; more; {
		var err error
		more, err = p.step(ctx, connectionID)
		if errors.Is(err, errChanged) { // somebody else is reading them
			return nil
		}
		if failed, ok := errors.AsType[*outboundError](err); ok && ctx.Err() == nil {
			return p.unread(connectionID, failed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step makes one request, and keeps its answer: a page of what is in a payout, or what there is besides. It reports
// whether there is more. Errors: an *outboundError, errChanged.
func (p *payouts) step(ctx context.Context, connectionID string) (more bool, err error) {
	source, err := p.store.paymentConnection(anyAccount, connectionID)
	if err != nil {
		return false, err
	}
	conn, err := source.open(p.keys())
	if err != nil {
		return false, &outboundError{reason: reasonUnopened, err: err}
	}
	if err := p.waitTurn(ctx, connectionID); err != nil {
		return false, err
	}
	client := p.providers[source.Provider]
	reading, err := p.store.payoutToRead(connectionID)
	if err != nil {
		return false, err
	}
	if reading != nil {
		rows, next, err := client.payoutRows(ctx, conn, valueOr(reading.ProviderID, ""), reading.Cursor)
		refused, ok := errors.AsType[*outboundError](err)
		if ok && refused.final() { // of this one, so that the others go on
			return true, p.update(ctx, func(t *tx) error { return closePayout(t, reading) })
		}
		if err != nil {
			return false, err
		}
		return true, p.update(ctx, func(t *tx) error { return p.addPage(t, reading, rows, next) })
	}
	news, err := client.payouts(ctx, conn, source.PayoutsCursor, source.CreatedAt.Format(time.DateOnly), p.now())
	if err != nil {
		return false, err
	}
	err = p.update(ctx, func(t *tx) error {
		now, err := t.paymentConnection(anyAccount, connectionID)
		if err != nil || now.PayoutsCursor != source.PayoutsCursor || !now.RemovedAt.Equal(source.RemovedAt.Time) {
			return cmp.Or(err, errChanged)
		}
		more, err = p.saveNews(t, source, news)
		return err
	})
	return more, err
}

// waitTurn waits until another request may be made for a connection.
func (p *payouts) waitTurn(ctx context.Context, connectionID string) error {
	wait, _ := p.pace.reserve(connectionID, p.monotonic(), payoutPages, time.Second, time.Minute)
	turn := time.NewTimer(wait)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unread notes that a provider does not tell what it pays out, and when it is asked again. Payments go on: keys that
// may not read payouts are not refused.
func (p *payouts) unread(connectionID string, failed *outboundError) error {
	wait := max(payoutRetry, failed.wait)
	if failed.final() || failed.outcome == vendorDenied {
		wait = payoutDaily
	}
	p.log.Warn("a provider does not tell what it pays out", "connection", connectionID, "status", failed.status,
		"error", failed.reason)
	return p.update(context.Background(), func(t *tx) error {
		c, err := t.paymentConnection(anyAccount, connectionID)
		if err == nil {
			t.postponePayouts(c, outsideQuiet(fromNow(t.exact, jittered(wait))), failed.reason)
		}
		return err
	})
}

// outsideQuiet returns a time that is not within quietMinutes.
func outsideQuiet(at stamp) stamp {
	if at.Minute() < quietMinutes {
		return at.after(quietMinutes * time.Minute)
	}
	return at
}

// saveNews keeps what a provider tells of what it pays out to a connection. It reports whether there is more to be
// read at once; if not, the connection is due tomorrow.
func (p *payouts) saveNews(t *tx, c *paymentConnection, news *payoutNews) (more bool, err error) {
	for i := range news.payouts {
		if err := adoptPayout(t, c, &news.payouts[i]); err != nil {
			return false, err
		}
	}
	for i := range news.rows {
		if err := p.adoptRow(t, c, &news.rows[i]); err != nil {
			return false, err
		}
	}
	t.saveCursor(c.ID, news.cursor)
	reading, err := t.payoutToRead(c.ID)
	if err != nil || reading != nil || news.more {
		return true, err
	}
	t.postponePayouts(c, outsideQuiet(fromNow(t.exact, jittered(payoutDaily))), "")
	return false, nil
}

// adoptPayout keeps a payout that its provider tells of. It is one payout, by whichever connection of the account it
// is seen. One that can't be booked as it was read is read again, since its provider may have listed it wrongly.
func adoptPayout(t *tx, c *paymentConnection, told *payoutReport) error {
	row, err := t.payoutOf(c.AccountID, c.Provider, told.providerID)
	if err != nil {
		return err
	}
	if row == nil {
		row = addPayout(t, c, told.currency)
		row.ProviderID = &told.providerID
	}
	before := *row
	again := []payoutReason{heldDiffers, heldForeign, heldUnknownRow, heldOpaque}
	if slices.Contains(again, valueOr(row.Reason, "")) && t.now.Sub(row.ReadAt.Time) > readAgain {
		row.ReadAt, row.Cursor = stamp{}, ""
	}
	if row.ReadAt.IsZero() { // the connection by which it was seen first may be gone
		row.ConnectionID = c.ID
	}
	row.adopt(told, t.now)
	if payoutTable.changed(&before, row) != "" {
		row.save(t, &before)
	}
	return nil
}

// addPayout adds a payout of a connection that is not scheduled yet.
func addPayout(t *tx, c *paymentConnection, currency string) *payout {
	row := &payout{ID: t.newID("pot"), AccountID: c.AccountID, ConnectionID: c.ID, Provider: providerName(c.Provider),
		State: payoutExpected, Currency: currency, Automatic: true, CreatedAt: t.now}
	payoutTable.insert(t, row)
	return row
}

// addPage adds a page of what is in a payout. next is the cursor of the page after it; "": it is the last. Errors:
// errChanged if the payout has changed since it was read.
func (p *payouts) addPage(t *tx, read *payout, rows []ledgerRow, next string) error {
	row, err := t.payout(anyAccount, read.ID)
	if err != nil || row.State != payoutReading || row.Cursor != read.Cursor {
		return cmp.Or(err, errChanged)
	}
	before := *row
	if row.Cursor == "" { // it may have been read before
		t.removeItems(row.ID)
	}
	for i := range rows {
		if err := addRow(t, row, &rows[i]); err != nil {
			return err
		}
	}
	if row.Cursor = next; next != "" {
		t.savePayout(row)
		return nil
	}
	return finishPayout(t, row, &before)
}

// closePayout notes that a provider refuses to tell what is in a payout. It is asked again once a day, while it lists
// that.
func closePayout(t *tx, read *payout) error {
	row, err := t.payout(anyAccount, read.ID)
	if err != nil {
		return err
	}
	before := *row
	row.Reason, row.ReadAt, row.Cursor = new(payoutReason(heldOpaque)), t.now, ""
	row.settle(true)
	row.save(t, &before)
	return nil
}

// adoptRow adds a row of a ledger to the payout of its currency that is not scheduled yet, or schedules that. Disputes
// are in such a ledger only.
func (p *payouts) adoptRow(t *tx, c *paymentConnection, r *ledgerRow) error {
	row, err := t.unscheduledPayout(c.ID, r.currency)
	if err != nil {
		return err
	}
	if row == nil {
		row = addPayout(t, c, r.currency)
	}
	if r.schedules != nil {
		before := *row
		row.ProviderID = &r.schedules.providerID
		row.adopt(r.schedules, t.now)
		return finishPayout(t, row, &before)
	}
	if r.category == rowDispute {
		if err := p.adoptDispute(t, c.AccountID, r.paymentID, r.disputed()); err != nil {
			return err
		}
	}
	row.Amount += r.net() // so far
	t.savePayout(row)
	return addRow(t, row, r)
}

// addRow adds a row of a provider's ledger to a payout. One by which an earlier payout came back proves that it
// failed, and is divided among the methods of what was in that.
func addRow(t *tx, to *payout, r *ledgerRow) error {
	if r.category != rowReturned {
		t.addItem(to, r)
		return nil
	}
	earlier, err := t.payoutOf(to.AccountID, string(to.Provider), r.source)
	if err != nil {
		return err
	}
	if earlier == nil {
		r.category = rowUnknown
		t.addItem(to, r)
		return nil
	}
	sums, err := t.payoutSums(earlier.ID)
	if err != nil {
		return err
	}
	if totalOf(sums).Net == r.net() && len(sums) > 0 {
		t.addReturned(to, r, earlier)
	} else {
		t.addItem(to, r)
	}
	if before := *earlier; !earlier.ended() {
		earlier.EndedAt = t.now
		earlier.settle(earlier.State == payoutReading)
		earlier.save(t, &before)
	}
	return nil
}

// finishPayout notes that all that is in a payout was read.
func finishPayout(t *tx, row, before *payout) error {
	sums, err := t.payoutSums(row.ID)
	if err != nil {
		return err
	}
	confirmed := !providerOf(string(row.Provider)).confirms
	if !confirmed {
		if confirmed, err = t.hasConfirmed(row.ConnectionID); err != nil {
			return err
		}
	}
	total := totalOf(sums)
	row.Items, row.Fee, row.Tax = total.Items, total.Fee, total.Tax
	row.ReadAt, row.Cursor = t.now, ""
	row.settle(true)
	row.Reason = (*payoutReason)(nilIfEmpty(row.judge(sums, confirmed)))
	row.save(t, before)
	t.pollUnmatched(row.ID)
	return nil
}

// disputed returns what a row of a ledger says of a dispute; taken is what it takes, or is negative for what it puts
// back.
func (r *ledgerRow) disputed() disputeReport {
	return disputeReport{id: r.source, amount: max(-r.amount, r.amount), withdrawn: -r.amount, at: r.at, movedAt: r.at}
}
