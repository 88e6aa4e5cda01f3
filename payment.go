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
