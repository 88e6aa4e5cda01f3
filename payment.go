package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// paymentNoun declares attempts to pay, the connections with providers, and the pages on which guests pay.
func paymentNoun() noun {
	return noun{
		name: "payment",
		modules: func(s *server) []module {
			engine := paymentsOf(s)
			return []module{orderPageModule(s, engine), paymentModule(s, engine)}
		},
		commands: paymentCommands,
		calls:    paymentRouteCommands,
		ids: []idKind{{"PAYMENT", "pay", "payments", false, nil},
			{"CONNECTION", "con", "payment_connections", false, nil}},
		problems: paymentProblems,
		events:   paymentEvents,
		sealed:   []string{"payment_connections", "payment_operations"},
		foreign:  foreignConnections,
		status:   []statusLine{{label: "payments", read: paymentStatus}},
		troubles: paymentTroubles,
		rows: []rowReader{paymentConnectionTable.unreadable, paymentTable.unreadable, operationTable.unreadable,
			paymentRefusalTable.unreadable},
		check:    checkPayments,
		holdings: []holding{heldPayments},
		close:    (*tx).pollLivePayments,
		promoted: (*tx).pollAllLive,
	}
}

// Payments (contract, section 11): attempts to pay an order at a provider, by card (Stripe) or by mobile phone
// (Vipps MobilePay). This file has what all providers have in common; payment_settle.go decides what is done,
// payment_stripe.go and payment_vipps.go talk to the providers.

// The problem code and the event types of payments.
var (
	paymentProblems problemTable

	codeNotice = paymentProblems.add(401, "invalid_signature", "Invalid signature",
		"The signature of this webhook is not right.",
		"For payment providers only: register the webhook again.")

	paymentEvents = eventTable{scope: scopeOrders}

	eventConnectionAdded    = paymentEvents.add("payment.connected")
	eventConnectionRemoved  = paymentEvents.add("payment.disconnected")
	eventConnectionChanged  = paymentEvents.add("payment.keys_changed")
	eventConnectionRefused  = paymentEvents.add("payment.connection_refused") // the provider refuses its keys
	eventConnectionRestored = paymentEvents.add("payment.connection_restored")
	eventAttemptsRefused    = paymentEvents.add("payment.refused") // those of refusedTold orders in a row
)

// The states of an attempt.
const (
	paymentCreated      = "created"    // on disk; the provider has not confirmed it yet
	paymentPending      = "pending"    // the guest can pay at the provider
	paymentAuthorized   = "authorized" // the money is reserved
	paymentCaptured     = "captured"
	paymentPartRefunded = "part_refunded"
	paymentRefunded     = "refunded"
	paymentFailed       = "failed"
	paymentCancelled    = "cancelled"
	paymentExpired      = "expired"
	paymentReview       = "review" // somebody has to look at it
)

// A paymentState is how far an attempt to pay is. `review`: somebody has to look at it, and accept or refund the
// order.
type paymentState string

// paymentStates are all of them, in the order in which an attempt may pass them.
var paymentStates = declareWords[paymentState](paymentCreated, paymentPending, paymentAuthorized, paymentCaptured,
	paymentPartRefunded, paymentRefunded, paymentFailed, paymentCancelled, paymentExpired, paymentReview)

// A paymentMethod is how an order is paid at a provider.
type paymentMethod string

var paymentMethods = declareWords[paymentMethod](methodCard, methodMobile, methodTwint)

// A providerName is who takes the money, and pays it out.
type providerName string

var _ = declareWords[providerName](providerStripe, providerVipps)

// Why an attempt is in review, or has failed.
const (
	reasonAmountDiffers  = "amount_differs"    // the provider asks the guest for another amount
	reasonOtherCurrency  = "currency_differs"  // the provider asks the guest for another currency
	reasonDeadOrder      = "order_is_dead"     // money was captured for an order that was cancelled or had expired
	reasonCaptureDiffers = "capture_differs"   // another amount was captured than the order's total
	reasonRefused        = "operation_refused" // the provider refuses what is to be done
	reasonDeclined       = "declined"          // the provider, or the guest's bank, has declined it
	reasonUnknown        = "unknown_there"     // the provider does not know it
	reasonDenied         = "keys_refused"      // of an operation: the provider refuses the connection's keys
	reasonPaidTwice      = "order_is_paid"     // money was captured for an order that was paid otherwise
	reasonRefundPending  = "refund_pending"    // a refund is under way for longer than refundLate
	reasonRefundsDiffer  = "refunds_differ"    // the provider lists more refunds than it says was given back, or fewer
	reasonTooSmall       = "amount_too_small"  // of an attempt: below what the provider takes; Stripe's name
)

// A payment is an attempt to pay an order at a provider.
type payment struct {
	ID           string        `json:"id" is:"pay"` // The id of the attempt.
	OrderID      string        `json:"-"`
	AccountID    string        `json:"-"`
	ConnectionID string        `json:"-"`
	Provider     providerName  `json:"provider"` // Who takes the money.
	Method       paymentMethod `json:"method"`   // How it is paid.
	State        paymentState  `json:"state"`    // How far it is.
	Amount       int64         `json:"amount"`   // What the guest was asked for.
	Currency     string        `json:"-"`
	Authorized   int64         `json:"-"`        // that can still be captured, as the provider says
	Captured     int64         `json:"captured"` // What the provider says was captured.
	Refunded     int64         `json:"refunded"` // What the provider says was given back.
	SessionID    *string       `json:"-"`
	IntentID     *string       `json:"-"`
	URL          *string       `json:"-"`      // where the guest pays
	Reason       *string       `json:"reason"` // Why it failed, or is in review, or null: neither.

	// When the authorisation lapses, or null: the provider does not say.
	CaptureBefore stamp   `json:"capture_before"`
	Warned        bool    `json:"-"`
	DueAt         stamp   `json:"-"` // when the provider is asked next; zero: never again
	Polls         int     `json:"-"`
	Revision      int64   `json:"-"`
	CreatedAt     stamp   `json:"created_at"` // When it began.
	AuthorizedAt  stamp   `json:"-"`
	CapturedAt    stamp   `json:"-"`
	CheckedAt     stamp   `json:"-"`
	EndedAt       stamp   `json:"-"`
	PayoutID      *string `json:"payout_id" is:"pot"` // The payout that has what was captured, or null: none yet.

	RefundsDifferSince stamp `json:"-"` // since when it says that more was given back than our refunds
}

// live reports whether the attempt can still take the guest's money, or has it reserved.
func (p *payment) live() bool {
	return p.State == paymentCreated || p.State == paymentPending || p.State == paymentAuthorized
}

// A paymentConnection is the account that an account of ours has at a provider.
type paymentConnection struct {
	ID           string  `json:"id"`
	Provider     string  `json:"provider"`
	Live         bool    `json:"live"`  // false: test keys
	State        string  `json:"state"` // in_use, refused, unreadable or removed; no column, see setState
	Name         string  `json:"name"`  // for people: Vipps' merchant serial number
	WebhookID    *string `json:"-"`
	WebhookURL   *string `json:"webhook_url"`
	FailingSince stamp   `json:"failing_since"`
	AccountID    string  `json:"account_id"`
	CreatedAt    stamp   `json:"created_at"`
	RemovedAt    stamp   `json:"removed_at"`
	Sealed       []byte  `json:"-"` // its secrets, see connectionSecrets

	PayoutsDueAt  stamp  `json:"-"` // when its payouts are read next; zero: at once
	PayoutsCursor string `json:"-"` // how far they were read, see provider.payouts

	Methods []string `json:"methods"` // by which guests can pay; none: by the provider's first one only
}

// connectionSecrets are what a connection keeps sealed. Each provider uses some of them.
type connectionSecrets struct {
	Key             string `json:"key,omitempty"`              // Stripe: a restricted key, rk_live_…
	ClientID        string `json:"client_id,omitempty"`        // Vipps
	ClientSecret    string `json:"client_secret,omitempty"`    // Vipps
	SubscriptionKey string `json:"subscription_key,omitempty"` // Vipps
	MerchantSerial  string `json:"merchant_serial,omitempty"`  // Vipps
	WebhookSecret   string `json:"webhook_secret,omitempty"`   // the provider chose it
}

// An unsealedConnection is a connection with its secrets, as the clients of providers need it.
type unsealedConnection struct {
	*paymentConnection
	secrets connectionSecrets
}

// A paymentRefusal says that a provider has refused for good to begin attempts by a method, and has begun none since.
type paymentRefusal struct {
	ConnectionID string   `json:"-"`
	Method       string   `json:"method"`
	Code         string   `json:"code"`       // of the last one, as the provider names it
	Words        string   `json:"words"`      // what the provider says of that, for the operator only
	Since        stamp    `json:"since"`      // when the first one was refused
	RefusedAt    stamp    `json:"refused_at"` // when the last one was
	Count        int      `json:"count"`      // how many there were, of different orders
	OrderIDs     []string `json:"-"`          // the last refusedTold of those, so that two that take turns are two
}

const (
	refusedTold    = 3               // orders in a row after which somebody is told
	refusedPause   = 5 * time.Minute // how long pay pages leave a method out after its last refusal
	maxVendorWords = 300             // characters
)

// words returns a text of the connection's provider for the operator: one printable line without our secrets.
func (c *unsealedConnection) words(text string) string {
	s := &c.secrets
	for _, secret := range []string{s.Key, s.ClientID, s.ClientSecret, s.SubscriptionKey, s.WebhookSecret} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return cutText(printable(strings.Join(strings.Fields(text), " ")), maxVendorWords)
}

// orderOnly matches the code of a refusal, or the member that it is about, if others might be taken: it is about what
// only the order has, as its amount, which a guest can choose.
var orderOnly = lazyPattern(`(?i)amount|currency|description|reference|metadata|\[name\]|idempotency`)

// The purposes under which rows of payments seal their secrets, see keyring.sealFor.
const (
	sealedConnection = "payment connection"
	sealedOperation  = "payment operation"
)

// open returns a connection with its secrets. It fails if they were sealed with another key file.
func (c *paymentConnection) open(keys *keyring) (*unsealedConnection, error) {
	opened := &unsealedConnection{paymentConnection: c}
	plain, err := keys.unsealFor(sealedConnection, c.ID, c.Sealed)
	if err != nil {
		return nil, err
	}
	return opened, json.Unmarshal(plain, &opened.secrets)
}

// seal puts the secrets of a connection into its row.
func (c *unsealedConnection) seal(keys *keyring) error {
	plain, err := json.Marshal(c.secrets)
	if err == nil {
		c.Sealed = keys.sealFor(sealedConnection, c.ID, plain)
	}
	return err
}

// The kinds of operations at a provider.
const (
	opCreate  = "create"
	opCapture = "capture"
	opCancel  = "cancel" // of what is authorised, or what is left of it
	opExpire  = "expire" // of an attempt that the guest has not paid; refused if the guest has paid it meanwhile
	opRefund  = "refund"
)

// The states of an operation.
const (
	operationPending = "pending" // its answer is not known
	operationDone    = "done"
	operationRefused = "refused"
)

// A paymentOperation is something that a provider is asked to do. Its id is its idempotency key there.
type paymentOperation struct {
	ID        string
	PaymentID string
	Kind      string
	Amount    int64 // for opCreate, opCapture and opRefund
	RefundID  *string
	Source    string
	State     string
	Sealed    []byte // the providerCall, sealed; nil unless it is pending
	Status    *int   // of the last answer
	Error     *string
	CreatedAt stamp
	EndedAt   stamp
}

// titleOf returns what the guest, and the restaurant on its provider's pages, read of an order.
func titleOf(o *order) string { return "Order " + valueOr(o.Reference, o.ID) }

// A providerCall is the exact request of an operation, without the credentials.
type providerCall struct {
	Method      string `json:"method"`
	Path        string `json:"path"` // below the provider's base address: "/v1/checkout/sessions"
	ContentType string `json:"content_type,omitempty"`
	Body        string `json:"body,omitempty"`
}

// A sentOperation is the answer to an operation that a provider has carried out.
type sentOperation struct {
	status         int    // HTTP status
	sessionID, url string // after opCreate
	refundID       string // after opRefund: the provider's id of the refund, if it has one
}

// leftURL returns where a guest comes back to who has left a provider's page instead of paying, if the provider
// distinguishes that: returnURL says so.
func leftURL(returnURL string) string {
	if strings.Contains(returnURL, "?") {
		return returnURL + "&left=1"
	}
	return returnURL + "?left=1"
}

// A paymentPhase is the phase of an attempt, as its provider reports it.
type paymentPhase int

const (
	phaseUnknown   paymentPhase = iota // the provider does not know it
	phaseOpen                          // the guest can still pay
	phaseApproved                      // money is authorised or was captured
	phaseCancelled                     // nothing was or will be paid: it was cancelled
	phaseExpired                       // … or it expired, or its authorisation lapsed
	phaseFailed                        // … or it was declined
)

// A paymentReport is what a provider reports about an attempt.
type paymentReport struct {
	phase         paymentPhase
	amount        int64 // that the guest was asked for
	currency      string
	authorized    int64 // that can still be captured
	captured      int64
	capturedAt    time.Time // when the last of it was; zero: it does not tell
	refunded      int64     // of captured, by refunds that are done or on their way
	sessionID     string
	intentID      string
	url           string // where the guest pays, while phaseOpen
	captureBefore time.Time
	reason        string // of phaseFailed: the provider's code
	refunds       []refundReport
	disputes      []disputeReport

	// Keys of the operations that the provider has carried out (paymentOperation.ID), if it reports them.
	done []string
}

// A refundReport is one refund, as a provider reports it.
type refundReport struct {
	providerID string // unique for the attempt, unless there is a longID
	longID     string // unique for the attempt, where the providerID may be of several; "": it is not
	refundID   string // ours; "": unknown, or somebody made it on the provider's pages
	amount     int64
	state      string // refundPending, refundSucceeded or refundFailed
	reason     string // why it failed
	at         time.Time

	// The id of our operation that made it, if the provider reports that and not our id of the refund; else "".
	operationID string
}

// The states of a dispute.
const (
	disputeInquiry = "inquiry" // the bank only asks, and takes nothing
	disputeOpen    = "open"
	disputeWon     = "won"
	disputeLost    = "lost"
)

// A disputeState is how far a dispute is. `inquiry`: the bank only asks; with `closed_at` that came to nothing.
// `won`: the money stays.
type disputeState string

// An orderDispute is how a dispute of an order's payment stands; `null`: there is none.
type orderDispute string

var (
	_ = declareWords[disputeState](disputeInquiry, disputeOpen, disputeWon, disputeLost)
	_ = declareWords[orderDispute](disputeOpen, disputeWon, disputeLost)
)

// exceeds reports whether a provider lists more refunds of an attempt than it says was given back.
func (r *paymentReport) exceeds() bool {
	sum := int64(0)
	for i := range r.refunds {
		if r.refunds[i].state != refundFailed {
			sum += r.refunds[i].amount
		}
	}
	return sum > r.refunded
}

// A disputeReport is one dispute, as a provider reports it.
type disputeReport struct {
	id         string
	amount     int64
	withdrawn  int64        // from the account's balance, less what was put back, without fees
	state      disputeState // disputeInquiry, disputeOpen, disputeWon or disputeLost
	closed     bool         // it is decided; of an inquiry: it came to nothing
	reason     string
	at         time.Time // when it was opened; of one that took money: when it did
	movedAt    time.Time // when money moved for it last, taken or put back; zero: none has, or it is not told
	evidenceBy time.Time // until when it can be answered; zero: it can't
}

// A paymentNotice is what a provider's webhook says: only which attempt to look at.
type paymentNotice struct {
	paymentID string // ours; "": unknown
	intentID  string // the provider's, with paymentID ""
	payout    bool   // it is about a payout: any may be looked at
}

// A provider is the client of a payment provider. Its methods keep no state but access tokens. None of them
// retries. Requests have the timeouts of outbound. Errors: an *outboundError, unless one says so.
type provider interface {
	// takes reports whether an amount in a currency can be paid with it by a method.
	takes(method, currency string, amount int64) bool

	// reserves returns how long it reserves money in a currency at least, before that is captured.
	reserves(currency string) time.Duration

	// readsFirst reports whether an operation whose answer was lost must be looked for at the provider before it
	// is sent again. Otherwise the same bytes are sent again under the same key, for keysLast.
	readsFirst() bool

	// call makes the request of an operation. returnURL is where the guest comes back to, with opCreate.
	// It is a pure function of its arguments.
	call(op *paymentOperation, p *payment, o *order, returnURL string) providerCall

	// send sends the request of an operation under its id as the idempotency key.
	send(ctx context.Context, c *unsealedConnection, op *paymentOperation, call providerCall) (sentOperation, error)

	// look reads the state of an attempt.
	fetchStatus(ctx context.Context, c *unsealedConnection, p *payment) (*paymentReport, error)

	// notice checks the signature of a webhook and returns what it is about. now is the wall clock.
	// Errors: errNotice if the signature is not right.
	notice(c *unsealedConnection, r *http.Request, body []byte, now time.Time) (paymentNotice, error)

	// tries checks that the provider takes payments by the methods of a connection, as far as it tells.
	checkMethods(ctx context.Context, c *unsealedConnection, returnURL string) error

	// connect checks the secrets at the provider, registers our webhook at an address, and returns what
	// the connection is to keep: Live, Name, WebhookID, and in the secrets WebhookSecret.
	connect(ctx context.Context, c *unsealedConnection, webhookURL string) error

	// disconnect removes our webhook at the provider.
	disconnect(ctx context.Context, c *unsealedConnection) error

	// check returns an error if the provider can't be asked with the connection's secrets, or our webhook
	// there is gone or disabled; and what the secrets may not do that only payouts need, for people.
	check(ctx context.Context, c *unsealedConnection) (lacks []string, err error)

	// payouts reads on from a cursor what the provider pays out to a connection; "": from a date on. now is the wall
	// clock.
	payouts(ctx context.Context, c *unsealedConnection, cursor, from string, now time.Time) (*payoutNews, error)

	// payoutRows reads a page of what is in a payout that payouts has told of as complete, after the cursor of the
	// page before ("": the first). next is "" at the end.
	payoutRows(
		ctx context.Context, c *unsealedConnection, payoutID, after string,
	) (rows []ledgerRow, next string, err error)
}

const (
	endingNotice = 24 * time.Hour // how long before an authorisation lapses its event is written
	refundLate   = 24 * time.Hour // how long a refund may be under way before somebody has to look
	refundsLag   = time.Hour      // how long refunds may be missing in a provider's list
	maxRefused   = 3              // operations of a kind that a provider may refuse before somebody has to look
)

// longestWait is how long a provider that asks to wait is obeyed, since a capture or a refund may wait for it: a
// quarter of an hour, with what jittered adds.
const longestWait = 15 * time.Minute * 10 / 11

// keysLast is how long an operation whose answer was lost is sent again under its key. Stripe forgets keys
// after 24 hours.
const keysLast = 23 * time.Hour

// errNotice refuses a webhook of a provider whose signature is not right. It does not say why.
var errNotice = &refusal{code: codeNotice}

// Connecting an account of ours with its account at a payment provider.

// paymentProviders are the payment providers, each declared with its client.
var paymentProviders = []*paymentProvider{&stripeDeclared, &vippsDeclared}

// A paymentProvider declares a payment provider.
type paymentProvider struct {
	name    string   // in paths, rows and commands: "stripe"
	methods []string // that it has, as connections name them; the first one where they name none

	// client makes the client. base is the provider's address; "": its own. now is the wall clock.
	client func(out *outbound, base string, now func() time.Time) provider

	secrets func(s *connectionSecrets) map[string]*string // the fields of those that an operator types, by name
	checks  func(s *connectionSecrets) error              // of their form; the error is for people
	same    func(c *unsealedConnection) error             // whether new secrets are of the connection's account there

	// Nothing reports that its payouts arrive, so that somebody compares one with the bank before any is booked.
	confirms bool

	// A look tells how disputes of a payment stand. Else only the rows of payouts do, and of one that is lost nothing.
	disputes bool
}

// providerNames returns the names of all providers.
func providerNames() (names []string) {
	for _, p := range paymentProviders {
		names = append(names, p.name)
	}
	return names
}

// providerOf returns the provider of a name; a zero one if a damaged row names none that there is.
func providerOf(name string) *paymentProvider {
	for _, p := range paymentProviders {
		if p.name == name {
			return p
		}
	}
	return &paymentProvider{}
}

// newProviders makes the clients of all payment providers, by name. urls has base addresses by the names of their
// options: "stripe-url". now is the wall clock.
func newProviders(out *outbound, urls map[string]string, now func() time.Time) map[string]provider {
	all := map[string]provider{}
	for _, p := range paymentProviders {
		all[p.name] = p.client(out, urls[p.name+"-url"], now)
	}
	return all
}

// parseSecrets reads the secrets for a provider; see parseAllSecrets.
func parseSecrets(provider, text string) (s connectionSecrets, err error) {
	of := providerOf(provider)
	if err := parseAllSecrets(of.secrets(&s), text); err != nil {
		return s, err
	}
	return s, of.checks(&s)
}

// The refusals of a connection.
var (
	errConnected = errors.New("the account is connected with this provider already: disconnect that first, " +
		"'widgetd payment list' prints it")
	errOtherAccount = errors.New("these keys are of another account there, or for tests where the others are live: " +
		"disconnect the connection and connect anew")
	errMixedKeys = errors.New("the account is connected with another provider, one of the two with test keys: " +
		"take both live or both for tests")
)

// checkConnection refuses a second connection of an account with a provider, and test keys beside live ones.
// used are the connections of the account that are in use. Errors: errConnected, errMixedKeys.
func checkConnection(c *paymentConnection, used []*paymentConnection) error {
	for _, other := range used {
		switch {
		case other.Provider == c.Provider:
			return errConnected
		case other.Live != c.Live:
			return errMixedKeys
		}
	}
	return nil
}

// addConnection inserts a connection that the provider has accepted. Errors: errAccount, errConnected, errMixedKeys.
func addConnection(t *tx, c *paymentConnection, actor string) error {
	if err := t.openAccount(c.AccountID); err != nil {
		return err
	}
	used, err := t.usedConnections(c.AccountID)
	if err != nil {
		return err
	}
	if err := checkConnection(c, used); err != nil {
		return err
	}
	t.addPaymentConnection(c)
	t.addEvent(connectionEvent(c, eventConnectionAdded, actor))
	return nil
}

// changeConnectionKeys writes the new keys and the new webhook of a connection, with which its payments continue.
// What waits for them is looked at. Errors: errChanged if it was removed meanwhile.
func changeConnectionKeys(t *tx, c *paymentConnection, actor string) error {
	if err := t.saveConnectionKeys(c); err != nil {
		return err
	}
	t.pollConnection(c.ID)
	t.addEvent(connectionEvent(c, eventConnectionChanged, actor))
	return nil
}

// removeConnection ends the use of a connection. Payments that were begun with it continue. Errors: errNotFound
// if it is not in use.
func removeConnection(t *tx, c *paymentConnection, actor string) error {
	if err := t.removePaymentConnection(c.ID); err != nil {
		return err
	}
	t.addEvent(connectionEvent(c, eventConnectionRemoved, actor))
	return nil
}

// connectionEvent returns an event about a connection.
func connectionEvent(c *paymentConnection, kind eventType, actor string) event {
	return event{Type: kind, AccountID: c.AccountID, SubjectID: c.ID, Actor: actor,
		Data: eventData("provider", c.Provider)}
}

// foreignConnections is a foreignSecrets. It tells of connections in use.
func foreignConnections(q *queries, keys *keyring) (lines []string, err error) {
	all, err := q.paymentConnections(anyAccount)
	for _, c := range all {
		if _, failed := c.open(keys); failed != nil && c.RemovedAt.IsZero() {
			lines = append(lines, sealedElsewhere(c.ID))
		}
	}
	return lines, err
}

// sealedElsewhere returns what to tell the operator about a connection whose secrets another key file sealed.
func sealedElsewhere(id string) string {
	return fmt.Sprintf("the secrets of the payment connection %s were sealed with another key file: "+
		"run 'widgetd payment reconnect %s -secrets FILE'", id, id)
}

// paymentTable describes the table payments.
var paymentTable = newTable("payments", "p", func(p *payment) []field {
	return []field{{"id", &p.ID}, {"order_id", &p.OrderID}, {"account_id", &p.AccountID},
		{"connection_id", &p.ConnectionID}, {"provider", &p.Provider}, {"method", &p.Method}, {"state", &p.State},
		{"amount", &p.Amount}, {"currency", &p.Currency}, {"authorized", &p.Authorized}, {"captured", &p.Captured},
		{"refunded", &p.Refunded}, {"session_id", &p.SessionID}, {"intent_id", &p.IntentID}, {"url", &p.URL},
		{"reason", &p.Reason}, {"capture_before", &p.CaptureBefore}, {"warned", &p.Warned}, {"due_at", &p.DueAt},
		{"polls", &p.Polls}, {"revision", &p.Revision}, {"created_at", &p.CreatedAt},
		{"authorized_at", &p.AuthorizedAt}, {"captured_at", &p.CapturedAt}, {"checked_at", &p.CheckedAt},
		{"ended_at", &p.EndedAt}, {"refunds_differ_since", &p.RefundsDifferSince}, {paidOut, &p.PayoutID}}
})

// paidOut is the SQL of the payout that has what was captured by an attempt p; NULL: none has yet.
const paidOut = `(SELECT i.payout_id FROM payout_items i WHERE i.payment_id = p.id AND i.category = 'payment'
	ORDER BY i.payout_id LIMIT 1)`

// payment returns an attempt, or errNotFound.
func (q *queries) payment(id string) (*payment, error) {
	return paymentTable.one(q, `WHERE p.id = ?`, id)
}

// paymentsOf returns the attempts to pay an order, oldest first.
func (q *queries) paymentsOf(orderID string) ([]payment, error) {
	return paymentTable.all(q, `WHERE p.order_id = ? ORDER BY p.id`, orderID)
}

// livePayment returns the attempt to pay an order that is live, see payment.live, nil if there is none. There is
// at most one.
func (q *queries) livePayment(orderID string) (*payment, error) {
	return orNil(paymentTable.one(q,
		`WHERE p.order_id = ? AND p.state IN ('created', 'pending', 'authorized')`, orderID))
}

// addPayment inserts an attempt, with its first revision.
func (t *tx) addPayment(p *payment) {
	p.Revision = 1
	paymentTable.insert(t, p)
}

// savePayment writes an attempt if it still has the revision with which it was read, and increments that. Errors:
// errChanged.
func (t *tx) savePayment(p *payment) error {
	if paymentTable.update(t, p, `state authorized captured refunded session_id intent_id url reason
		capture_before warned due_at polls authorized_at captured_at checked_at ended_at refunds_differ_since`,
		`, revision = revision + 1 WHERE id = ? AND revision = ?`, p.ID, p.Revision) == 0 {
		return errChanged
	}
	p.Revision++
	return nil
}

// setPaymentState changes the state of an attempt and schedules a look at it.
func (t *tx) setPaymentState(id, state string) {
	t.exec(`UPDATE payments SET state = ?, reason = NULL, due_at = ?, polls = 0,
		revision = revision + 1 WHERE id = ?`, state, t.now, id)
}

// poll makes the attempts that a condition selects due, so that the worker asks their providers as soon as
// possible. The new revision also makes whoever is deciding about one right now start over (errChanged).
func (t *tx) poll(condition string, args ...any) {
	t.exec(`UPDATE payments SET due_at = ?, polls = 0, revision = revision + 1 WHERE `+condition,
		append([]any{t.now}, args...)...)
}

// pollPayment is poll for an attempt. For an unknown id it does nothing.
func (t *tx) pollPayment(paymentID string) { t.poll(`id = ?`, paymentID) }

// pollPaymentOf is poll for an attempt of a connection.
func (t *tx) pollPaymentOf(connectionID, paymentID string) {
	t.poll(`id = ? AND connection_id = ?`, paymentID, connectionID)
}

// pollIntent is poll for the attempt of a connection that the provider knows under an id of its own.
func (t *tx) pollIntent(connectionID, intentID string) {
	t.poll(`intent_id = ? AND connection_id = ?`, intentID, connectionID)
}

// pollPayouts makes a connection due, so that the worker asks as soon as possible what the provider pays out to it.
func (t *tx) pollPayouts(connectionID string) {
	t.exec(`UPDATE payment_connections SET payouts_due_at = ? WHERE id = ?`, t.now, connectionID)
}

// A duePayment is an attempt whose provider is to be asked.
type duePayment struct {
	id, connectionID string
	live             bool // the connection has live keys, not test keys
	polls            int  // looks without news; 0: somebody asked for a look, or it is new
}

// duePayments returns attempts that are due at now, the longest due first: up to limit of those that have been
// due for longest, and up to limit of those that became due last, so that a connection with many slow attempts
// does not hide what others ask for. Those that were set aside are left out.
func (q *queries) duePayments(now stamp, limit int) ([]duePayment, error) {
	const due = `SELECT * FROM (SELECT id FROM payments WHERE due_at <= ?1
		AND id NOT IN (SELECT value FROM json_each(?3)) ORDER BY due_at`
	return collect(q, `SELECT p.id, p.connection_id, c.live <> 0, p.polls
		FROM (`+due+` LIMIT ?2) UNION `+due+` DESC LIMIT ?2)) d
		CROSS JOIN payments p ON p.id = d.id CROSS JOIN payment_connections c ON c.id = p.connection_id
		ORDER BY p.due_at`,
		[]any{now, limit, q.faults.leftOutIDs()}, func(d *duePayment) []any {
			return []any{&d.id, &d.connectionID, &d.live, &d.polls}
		})
}

// postpone sets a later time at which the provider is asked about an attempt, unless its revision has changed since
// it was read.
func (t *tx) postpone(p *payment, at stamp) {
	t.exec(`UPDATE payments SET due_at = ?, polls = ? WHERE id = ? AND revision = ?`,
		at, p.Polls, p.ID, p.Revision)
}

// operationTable describes the table payment_operations.
var operationTable = newTable("payment_operations", "q", func(op *paymentOperation) []field {
	return []field{{"id", &op.ID}, {"payment_id", &op.PaymentID}, {"kind", &op.Kind}, {"amount", &op.Amount},
		{"refund_id", &op.RefundID}, {"source", &op.Source}, {"state", &op.State}, {"request", &op.Sealed},
		{"status", &op.Status}, {"error", &op.Error}, {"created_at", &op.CreatedAt}, {"ended_at", &op.EndedAt}}
})

// pendingOperation returns the operation of an attempt whose answer is not known, nil if there is none.
// There is at most one.
func (q *queries) pendingOperation(paymentID string) (*paymentOperation, error) {
	return orNil(operationTable.one(q, `WHERE q.payment_id = ? AND q.state = 'pending'`, paymentID))
}

// operationsOf returns the operations of an attempt, oldest first.
func (q *queries) operationsOf(paymentID string) ([]paymentOperation, error) {
	return operationTable.all(q, `WHERE q.payment_id = ? ORDER BY q.id`, paymentID)
}

// addOperation inserts an operation.
func (t *tx) addOperation(op *paymentOperation) { operationTable.insert(t, op) }

// saveOperation writes the result of an operation that was pending, and removes the request unless the operation
// stays pending. Errors: errChanged if it is not pending any more.
func (t *tx) saveOperation(op *paymentOperation) error {
	return replaced(requireRow(t.exec(`UPDATE payment_operations SET state = ?1,
		request = iif(?1 = 'pending', request, NULL), status = ?2, error = ?3, ended_at = ?4
		WHERE id = ?5 AND state = 'pending'`,
		op.State, op.Status, op.Error, op.EndedAt, op.ID)), errNotFound, errChanged)
}

// hasDenied reports whether an operation of a connection waits for keys that the provider does not refuse
// (reasonDenied). It reads all operations that are pending, which are few.
func (q *queries) hasDenied(connectionID string) (waits bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (
		SELECT 1 FROM payment_operations q CROSS JOIN payments p ON p.id = q.payment_id
		WHERE q.state = 'pending' AND q.error = ? AND p.connection_id = ?)`, reasonDenied, connectionID)
}

// A dispute is a payment that the guest disputes with the bank.
type dispute struct {
	PaymentID string       `json:"payment_id" is:"pay"` // The attempt.
	ID        string       `json:"id"`                  // The provider's id of it.
	OrderID   string       `json:"order_id" is:"ord"`   // The order.
	Amount    int64        `json:"amount"`              // How much is in dispute.
	State     disputeState `json:"state"`               // How it stands.
	Reason    *string      `json:"reason"`              // As the provider names it, or null: it does not say.
	OpenedAt  stamp        `json:"opened_at"`           // When it was opened; of one that took money, when it did.
	ClosedAt  stamp        `json:"closed_at"`           // When it was decided, or null: it is not.

	// How much the provider has taken for it from the account's balance and not put back, without its fee. That is
	// what revenue counts.
	Taken      int64 `json:"taken"`
	MovedAt    stamp `json:"-"`           // when that changed last, as the provider says; else when it was seen first
	EvidenceBy stamp `json:"evidence_by"` // Until when it can be answered at the provider, or null: it can't.
}

// disputesOf returns the disputes of an order, oldest first.
func (q *queries) disputesOf(orderID string) ([]dispute, error) {
	return collect(q, `SELECT d.payment_id, d.id, d.order_id, d.amount, d.state, d.reason, d.opened_at, d.closed_at,
			d.taken, d.evidence_by, d.moved_at
		FROM payments p JOIN disputes d ON d.payment_id = p.id WHERE p.order_id = ? ORDER BY d.opened_at, d.id`,
		[]any{orderID}, func(d *dispute) []any {
			return []any{&d.PaymentID, &d.ID, &d.OrderID, &d.Amount, &d.State, &d.Reason, &d.OpenedAt, &d.ClosedAt,
				&d.Taken, &d.EvidenceBy, &d.MovedAt}
		})
}

// withdrawnOf returns how much of an attempt's money has been taken for disputes, and was not put back.
func withdrawnOf(disputes []dispute, paymentID string) (sum int64) {
	for i := range disputes {
		if d := &disputes[i]; d.PaymentID == paymentID {
			sum += d.Taken
		}
	}
	return sum
}

// saveDispute writes a dispute.
func (t *tx) saveDispute(d *dispute) {
	t.exec(`INSERT INTO disputes (payment_id, id, order_id, amount, state, reason, opened_at, closed_at,
			taken, evidence_by, moved_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (payment_id, id) DO UPDATE SET
		amount = excluded.amount, state = excluded.state, reason = excluded.reason,
		opened_at = excluded.opened_at, closed_at = excluded.closed_at, taken = excluded.taken,
		evidence_by = excluded.evidence_by, moved_at = excluded.moved_at`, d.PaymentID, d.ID, d.OrderID, d.Amount,
		d.State, d.Reason, d.OpenedAt, d.ClosedAt, d.Taken, d.EvidenceBy, d.MovedAt)
}

// paymentConnectionTable describes the table payment_connections.
var paymentConnectionTable = newTable("payment_connections", "c", func(c *paymentConnection) []field {
	return []field{{"id", &c.ID}, {"account_id", &c.AccountID}, {"provider", &c.Provider}, {"live", &c.Live},
		{"name", &c.Name}, {"secrets", &c.Sealed}, {"webhook_id", &c.WebhookID}, {"webhook_url", &c.WebhookURL},
		{"failing_since", &c.FailingSince}, {"created_at", &c.CreatedAt}, {"removed_at", &c.RemovedAt},
		{"methods", jsonColumn[[]string]{&c.Methods}}, {"payouts_due_at", &c.PayoutsDueAt},
		{"payouts_cursor", &c.PayoutsCursor}}
})

// paymentConnection returns a connection of an owner, in use or removed, or errNotFound.
func (q *queries) paymentConnection(o owner, id string) (*paymentConnection, error) {
	return paymentConnectionTable.byID(q, o, id, errNotFound)
}

// usedConnections returns the connections of an account that are in use, one for each provider at most.
func (q *queries) usedConnections(accountID string) ([]*paymentConnection, error) {
	return collect(q, paymentConnectionTable.query+`WHERE c.account_id = ? AND c.removed_at IS NULL
		ORDER BY c.provider`, []any{accountID}, paymentConnectionTable.destNew)
}

// paymentConnections returns the connections of an owner that can be read, in use and removed, newest first.
func (q *queries) paymentConnections(o owner) ([]*paymentConnection, error) {
	query, args := o.narrow(paymentConnectionTable.query+`WHERE 1`, `c.account_id`)
	return collectReadable(q, query+` ORDER BY c.id DESC`, args, paymentConnectionTable.destNew)
}

// addPaymentConnection inserts a connection. If the account has one of that provider in use, isDuplicate is true
// for the error. If the account had one of the same name there, the ledger of that is read on by this one.
func (t *tx) addPaymentConnection(c *paymentConnection) {
	paymentConnectionTable.insert(t, c)
	const former = `SELECT c.id FROM payment_connections c WHERE c.account_id = ?2 AND c.provider = ?3 AND c.name = ?4
		AND c.name <> '' AND c.id <> ?1 ORDER BY c.id DESC LIMIT 1`
	args := []any{c.ID, c.AccountID, c.Provider, c.Name}
	t.exec(`UPDATE payment_connections SET payouts_cursor = coalesce((SELECT g.payouts_cursor
		FROM payment_connections g WHERE g.id = (`+former+`)), '') WHERE id = ?1`, args...)
	t.exec(`UPDATE payouts SET connection_id = ?1 WHERE provider_id IS NULL AND connection_id = (`+former+`)`, args...)
}

// saveConnectionKeys writes the secrets and the webhook of a connection, which the provider has just accepted.
// Errors: errChanged if it was removed, or put to use, since it was read.
func (t *tx) saveConnectionKeys(c *paymentConnection) error {
	return replaced(requireRow(t.exec(`UPDATE payment_connections SET secrets = ?, webhook_id = ?, webhook_url = ?,
		failing_since = NULL WHERE id = ? AND (removed_at IS NULL) = ?`, c.Sealed, c.WebhookID, c.WebhookURL, c.ID,
		c.RemovedAt.IsZero())), errNotFound, errChanged)
}

// keyWait is the time within which whatever waits for the keys of a connection is due: it is postponed by less.
const keyWait = 2 * deniedDelay

// pollConnection is poll for what waits for the keys of a connection.
func (t *tx) pollConnection(id string) {
	t.poll(`+connection_id = ? AND due_at <= ?`, id, t.now.after(keyWait))
}

// waitingConnections returns the ids of the removed connections whose keys attempts still need: those that are live,
// or due within keyWait, as are those with a refund that hangs. It reads maxCounted of each.
func (q *queries) waitingConnections(now time.Time) ([]string, error) {
	return collect(q, stillNeeded, []any{newStamp(now), newStamp(now.Add(keyWait)), maxCounted},
		func(id *string) []any { return []any{id} })
}

// stillNeeded is the query of waitingConnections at ?1; ?2 is keyWait later, and ?3 is maxCounted.
const stillNeeded = `SELECT DISTINCT c.id
	FROM (SELECT * FROM (SELECT id FROM payments WHERE state IN ('created', 'pending', 'authorized')
			ORDER BY order_id LIMIT ?3)
		UNION ALL SELECT * FROM (SELECT id FROM payments WHERE due_at <= ?2 ORDER BY due_at LIMIT ?3)) w
	CROSS JOIN payments p ON p.id = w.id CROSS JOIN payment_connections c ON c.id = p.connection_id
	WHERE c.removed_at IS NOT NULL`

// knownPayment returns the newest attempt of a connection that its provider knows, nil if there is none. It is only
// for commands, since it may read every attempt.
func (q *queries) knownPayment(connectionID string) (*payment, error) {
	return orNil(paymentTable.one(q, `WHERE p.connection_id = ? AND coalesce(p.intent_id, p.session_id) IS NOT NULL
		ORDER BY p.id DESC LIMIT 1`, connectionID))
}

// saveConnectionMethods writes by which methods guests can pay with a connection, and ends what was noted of others,
// and of TWINT, which was just tried (provider.tries). Errors: errNotFound if it is not in use.
func (t *tx) saveConnectionMethods(c *paymentConnection) error {
	t.exec(`DELETE FROM payment_refusals WHERE connection_id = ?1 AND (method = 'twint'
		OR method NOT IN (SELECT value FROM json_each(?2)))`, c.ID, jsonColumn[[]string]{&c.Methods})
	return requireRow(t.exec(`UPDATE payment_connections SET methods = ? WHERE id = ? AND removed_at IS NULL`,
		jsonColumn[[]string]{&c.Methods}, c.ID))
}

// removePaymentConnection ends the use of a connection. Its row stays, since its payments continue. Errors:
// errNotFound if it is not in use.
func (t *tx) removePaymentConnection(id string) error {
	return requireRow(t.exec(`UPDATE payment_connections SET removed_at = ?
		WHERE id = ? AND removed_at IS NULL`, t.now, id))
}

// setConnectionFailing notes since when a provider refuses a connection's keys; the zero stamp: it does not
// refuse them. If that was noted already, it changes nothing and reports false.
func (t *tx) setConnectionFailing(id string, since stamp) (changed bool) {
	return t.exec(`UPDATE payment_connections SET failing_since = ?1
		WHERE id = ?2 AND (failing_since IS NULL) IS NOT (?1 IS NULL)`, since, id) > 0
}

// paymentRefusalTable describes the table payment_refusals.
var paymentRefusalTable = newTable("payment_refusals", "r", func(r *paymentRefusal) []field {
	return []field{{"connection_id", &r.ConnectionID}, {"method", &r.Method}, {"code", &r.Code}, {"words", &r.Words},
		{"since", &r.Since}, {"refused_at", &r.RefusedAt}, {"count", &r.Count},
		{"order_ids", jsonColumn[[]string]{&r.OrderIDs}}}
})

// paymentRefusals returns what was noted of a connection's attempts: a row for each method at most.
func (q *queries) paymentRefusals(connectionID string) ([]paymentRefusal, error) {
	return paymentRefusalTable.all(q, `WHERE r.connection_id = ? ORDER BY r.method`, connectionID)
}

// refusedMethods returns the methods of an account that pay pages leave out at now. None is for long after a change
// of the clock.
func (q *queries) refusedMethods(accountID string, now time.Time) (methods []string, err error) {
	return collect(q, `SELECT r.method FROM payment_connections c
		CROSS JOIN payment_refusals r ON r.connection_id = c.id
		WHERE c.account_id = ? AND c.removed_at IS NULL AND r.count >= ? AND r.refused_at > ? AND r.refused_at < ?`,
		[]any{accountID, refusedTold, newStamp(now.Add(-refusedPause)), newStamp(now.Add(refusedPause))},
		func(m *string) []any { return []any{m} })
}

// endRefusal removes what was noted of a connection's attempts by a method, if anything was.
func (t *tx) endRefusal(connectionID, method string) {
	t.exec(`DELETE FROM payment_refusals WHERE connection_id = ? AND method = ?`, connectionID, method)
}

// refusedTooLong are the methods of connections in use of which somebody is told (refusedTold), but not where the keys
// are refused, of which that is told. There are few, since a row ends when the provider begins an attempt.
const refusedTooLong = ` FROM payment_refusals r CROSS JOIN payment_connections c ON c.id = r.connection_id
	CROSS JOIN accounts a ON a.id = c.account_id
	WHERE r.count >= 3 AND c.removed_at IS NULL AND c.failing_since IS NULL AND a.closed_at IS NULL`

// A paymentTotals counts what is under way, for status and the metrics.
type paymentTotals struct {
	Live     int `json:"live"`            // attempts that the guest can pay, or that are authorised
	Review   int `json:"in_review"`       // attempts that somebody has to look at
	Overdue  int `json:"overdue"`         // attempts that have been due for more than a minute
	Ending   int `json:"ending"`          // authorisations that lapse within a day
	Refusing int `json:"refusing"`        // connections in use, or waited for, whose keys the provider refuses
	Refused  int `json:"refused_methods"` // methods by which a provider refuses each new attempt
}

// oldestLive reads the live attempts, those of the oldest orders first, whose authorisations also lapse first.
const oldestLive = `SELECT order_id, state, capture_before FROM payments
	WHERE state IN ('created', 'pending', 'authorized') ORDER BY order_id`

// paymentTotals counts what is under way at now. The numbers of attempts stop at maxCounted, and authorisations
// that lapse are only looked for among the maxCounted oldest live attempts.
func (q *queries) paymentTotals(now time.Time) (n paymentTotals, err error) {
	waiting, err := q.waitingConnections(now)
	if err != nil {
		return n, err
	}
	err = q.one(`SELECT
		(SELECT count(*) FROM (SELECT 1 FROM payments WHERE state IN ('created', 'pending', 'authorized') LIMIT ?3)),
		(SELECT count(*) FROM (SELECT 1 FROM payments WHERE state = 'review' LIMIT ?3)),
		(SELECT count(*) FROM (SELECT 1 FROM payments WHERE due_at < ?1 LIMIT ?3)),
		(SELECT count(*) FROM (`+oldestLive+` LIMIT ?3) WHERE capture_before < ?2),
		(SELECT count(*) FROM payment_connections WHERE failing_since IS NOT NULL
			AND (removed_at IS NULL OR id IN (SELECT value FROM json_each(?4)))),
		(SELECT count(*)`+refusedTooLong+`)`,
		[]any{newStamp(now.Add(-time.Minute)), newStamp(now.Add(endingNotice)), maxCounted,
			string(encodeJSON(append([]string{}, waiting...)))},
		&n.Live, &n.Review, &n.Overdue, &n.Ending, &n.Refusing, &n.Refused)
	return n, err
}

// paymentTroubles read the maxCounted oldest of live attempts.
var paymentTroubles = []trouble{
	{kind: "payments_in_review", urgency: sameDay, money: true, one: "$n payment", many: "$n payments",
		advice: " in review since $day: 'widgetd order show $id'",
		query:  `SELECT created_at AS since, order_id AS id FROM payments WHERE state = 'review'`},
	{kind: "authorisations_lapse", urgency: sameDay, money: true, one: "$n authorisation lapses",
		many:   "$n authorisations lapse",
		advice: ", the first at $since: 'widgetd order capture $id', or cancel it", span: endingNotice,
		query: `SELECT capture_before AS since, order_id AS id FROM (` + oldestLive + ` LIMIT ?3)
			WHERE capture_before < ?2`},
	{kind: "payments_late", urgency: rings, money: true, one: "$n payment waits", many: "$n payments wait",
		advice: " too long for the provider, since $since: see the log", span: -time.Minute,
		query: `SELECT due_at AS since, id FROM payments WHERE due_at < ?2`},
	{kind: "payment_keys_refused", urgency: rings, money: true,
		one:    "$n payment connection has keys that its provider refuses",
		many:   "$n payment connections have keys that their providers refuse",
		advice: " since $day: 'widgetd payment $id'", span: keyWait,
		query: `SELECT failing_since AS since, CASE WHEN removed_at IS NULL THEN 'check ' || id
				ELSE 'reconnect ' || id || ' -secrets FILE' END AS id FROM payment_connections
			WHERE failing_since IS NOT NULL AND (removed_at IS NULL OR id IN (` + stillNeeded + `))`},
	{kind: "disputes_open", urgency: sameDay, money: true, one: "$n dispute stays open", many: "$n disputes stay open",
		advice: " for longer than banks take, since $day: ask the provider, 'widgetd order show $id'",
		span:   -disputesEnd,
		query: `SELECT d.opened_at AS since, d.order_id AS id
			FROM disputes d CROSS JOIN payments p ON p.id = d.payment_id
			WHERE d.closed_at IS NULL AND d.opened_at <= ?2 AND p.provider <> 'vipps'`}, // see paymentProvider.disputes
	{kind: "payment_methods_refused", urgency: rings, money: true, one: "$n payment method is refused by its provider",
		many:   "$n payment methods are refused by their providers",
		advice: ", each new payment since $since: 'widgetd payment check' with $id",
		query: `SELECT r.since AS since, c.id || ' (' || r.method || ', ' || r.count || ' in a row, ' || r.code ||
			iif(r.words = '', '', ': ' || r.words) || ')' AS id` + refusedTooLong},
}

// disputesEnd is for how long a dispute may last: it comes up to 120 days after the sale, and takes up to 100 more.
const disputesEnd = 400 * 24 * time.Hour

// An unaccountedPayment is an attempt that is not in review, though its money differs from what its order
// accounts for.
type unaccountedPayment struct {
	id, orderID, currency string
	amount                int64 // that the order does not account for; negative: that the attempt lacks
}

// unaccountedPayments returns up to limit such attempts, oldest first: those by which captured - refunds done, or
// under way for less than refundLate - what disputes have taken is not what the order counts as paid, or as charged
// while it waits to be accepted (balance). A late refund counts only once its attempt is not due any more: until
// then the worker may be about to notice it. It reads all attempts, some ten seconds for a million.
func (q *queries) unaccountedPayments(now time.Time, limit int) (all []unaccountedPayment, err error) {
	given := func(condition string) string {
		return `(SELECT coalesce(sum(f.amount), 0) FROM refunds f WHERE f.order_id = p.order_id
			AND f.payment_id = p.id AND f.state <> 'failed'` + condition + `)`
	}
	err = q.each(`SELECT p.id, p.order_id, p.currency, o.paid_at IS NOT NULL AND o.state NOT IN ('cancelled', 'expired')
			AND o.payment_id = p.id AND o.method NOT IN ('cash', 'terminal', 'voucher', 'other'), o.total, p.captured,
			(SELECT coalesce(sum(d.taken), 0) FROM disputes d WHERE d.payment_id = p.id), `+given("")+`,
			`+given(` AND f.state = 'pending' AND f.created_at <= ?1
				AND coalesce(p.due_at > ?2, 1)`)+`
		FROM payments p CROSS JOIN orders o ON o.id = p.order_id WHERE p.state <> 'review' ORDER BY p.id`,
		[]any{newStamp(now.Add(-refundLate)), newStamp(now)}, func(scan func(...any) error) error {
			var u unaccountedPayment
			var b balance
			err := scan(&u.id, &u.orderID, &u.currency,
				&b.pays, &b.total, &b.captured, &b.disputed, &b.refunded, &b.late)
			if u.amount = b.unaccounted(); u.amount != 0 && len(all) < limit {
				all = append(all, u)
			}
			return err
		})
	return all, err
}

// A listedPayment is an attempt to pay an order of an account, for reconciling what a provider pays out.
type listedPayment struct {
	ID           string        `json:"id" is:"pay"`            // The id of the attempt.
	OrderID      string        `json:"order_id" is:"ord"`      // The order.
	Reference    *string       `json:"reference"`              // The caller's number for the order, or null: none.
	AccountID    string        `json:"account_id" is:"acct"`   // The account that owns it.
	Provider     providerName  `json:"provider"`               // Who takes the money.
	ConnectionID string        `json:"connection_id" is:"con"` // The connection with the provider.
	Test         bool          `json:"test"`                   // With test keys, so no money moved.
	Method       paymentMethod `json:"method"`                 // How it is paid.
	State        paymentState  `json:"state"`                  // How far it is.
	Reason       *string       `json:"reason"`                 // Why it failed, or is in review, or null: neither.
	Currency     string        `json:"currency"`               // The currency of its amounts.
	Amount       int64         `json:"amount"`                 // What the guest was asked for.
	Captured     int64         `json:"captured"`               // What the provider says was captured.
	Refunded     int64         `json:"refunded"`               // What the provider says was given back.

	// The provider's id of it: Stripe's PaymentIntent, Vipps' pspReference, or null: it is not known yet.
	IntentID  *string  `json:"intent_id"`
	RefundIDs []string `json:"refund_ids"` // The provider's ids of its refunds that did not fail.
	CreatedAt stamp    `json:"created_at"` // When it began.

	// When its money was captured, as the provider says; or was seen to be, if it does not say; or null: it was not.
	CapturedAt stamp   `json:"captured_at"`
	PayoutID   *string `json:"payout_id" is:"pot"` // The payout that has what was captured, or null: none is known yet.
}

// listedPaymentTable describes payments with their orders, refunds and connections.
var listedPaymentTable = newTable("payments", "p", func(p *listedPayment) []field {
	return []field{{"id", &p.ID}, {"order_id", &p.OrderID}, {"o.reference", &p.Reference}, {"account_id", &p.AccountID},
		{"provider", &p.Provider}, {"connection_id", &p.ConnectionID},
		{"(SELECT c.live = 0 FROM payment_connections c WHERE c.id = p.connection_id)", &p.Test},
		{"method", &p.Method}, {"state", &p.State}, {"reason", &p.Reason}, {"currency", &p.Currency},
		{"amount", &p.Amount}, {"captured", &p.Captured}, {"refunded", &p.Refunded}, {"intent_id", &p.IntentID},
		{`(SELECT json_group_array(f.provider_id) FROM refunds f
			WHERE f.payment_id = p.id AND f.provider_id IS NOT NULL AND f.state <> 'failed')`,
			jsonColumn[[]string]{&p.RefundIDs}},
		{"created_at", &p.CreatedAt}, {"captured_at", &p.CapturedAt}, {paidOut, &p.PayoutID}}
}, "JOIN orders o ON o.id = p.order_id")

// A paymentFilter chooses attempts of an owner; an empty field does not narrow the choice.
type paymentFilter struct {
	owner    owner
	ids      idRange
	state    string
	method   string
	captured bool // only those by which money was captured
}

// payments returns a page of attempts, newest first, starting after the id before ("" for the newest).
func (q *queries) payments(f paymentFilter, before string, limit int) (p listPage[listedPayment], err error) {
	list := listedPaymentTable.list()
	list.table, list.from = paymentTable.name, f.ids.from
	list.scope(f.owner.narrow(``, `p.account_id`))
	if f.state != "" {
		list.filter(` AND p.state = ?`, f.state)
	}
	if f.method != "" {
		list.filter(` AND p.method = ?`, f.method)
	}
	if f.captured {
		list.filter(` AND p.captured > 0`)
	}
	p.rows, p.next, err = readPage(q, list, f.ids.below(before), limit, listedPaymentTable.dest,
		func(p listedPayment) string { return p.ID })
	return p, err
}

// pollLivePayments is poll for the live attempts of an account. The unary + keeps SQLite from using the index on
// account_id, and so from reading every attempt that the account ever had.
func (t *tx) pollLivePayments(id string) error {
	t.poll(`+account_id = ? AND state IN ('created', 'pending', 'authorized')`, id)
	t.poll(`id IN (SELECT payment_id FROM orders WHERE account_id = ? AND state = 'authorized'
		AND paid_at IS NOT NULL)`, id)
	return nil
}

// pollAllLive is poll for the live attempts of all accounts. It reads those alone, by the index payments_live.
func (t *tx) pollAllLive() error {
	t.poll(`state IN ('created', 'pending', 'authorized')`)
	return nil
}

// heldPayments counts the attempts that guests can still pay, whose money is authorised, or that were charged for an
// order that waits to be accepted.
var heldPayments = holding{"payments", "live payment",
	`SELECT (SELECT count(*) FROM payments WHERE +account_id = ?1 AND state IN ('created', 'pending', 'authorized'))
		+ (SELECT count(*) FROM orders WHERE account_id = ?1 AND state = 'authorized' AND paid_at IS NOT NULL)`,
	`SELECT coalesce(group_concat(format('%d.%02d %s', amount / 100, amount % 100, currency), ', '), '') FROM
		(SELECT sum(amount) amount, currency FROM (SELECT authorized amount, currency FROM payments
			WHERE +account_id = ?1 AND state = 'authorized'
		UNION ALL SELECT total - refunded, currency FROM orders
			WHERE account_id = ?1 AND state = 'authorized' AND paid_at IS NOT NULL) GROUP BY currency)`}
