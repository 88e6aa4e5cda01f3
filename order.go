package main

import (
	"encoding/json"
	"time"
)

// Orders (contract, section 11): what a guest orders on a restaurant's page, made by software that knows
// the prices. Amounts are integers in the minor unit of the order's currency; prices have VAT in them;
// rates of VAT are in hundredths of a percent, so that 810 is 8.1 %.

// The event types of orders. Their data has no customer and no reference.
var (
	orderEvents eventTable

	eventOrderCreated       = orderEvents.add("order.created")
	eventOrderAuthorized    = orderEvents.add("order.authorized")
	eventOrderAccepted      = orderEvents.add("order.accepted")
	eventOrderPaid          = orderEvents.add("order.paid")
	eventOrderUnpaid        = orderEvents.add("order.unpaid") // a payment outside was undone
	eventOrderRefunded      = orderEvents.add("order.refunded")
	eventOrderRefundFailed  = orderEvents.add("order.refund_failed")
	eventOrderCancelled     = orderEvents.add("order.cancelled")
	eventOrderExpired       = orderEvents.add("order.expired")
	eventOrderDisputed      = orderEvents.add("order.disputed")
	eventOrderReview        = orderEvents.add("order.review")
	eventOrderEnding        = orderEvents.add("order.authorization_ending") // a day before it lapses
	eventConnectionAdded    = orderEvents.add("payment.connected")
	eventConnectionRemoved  = orderEvents.add("payment.disconnected")
	eventConnectionRefused  = orderEvents.add("payment.connection_refused") // the provider refuses its keys
	eventConnectionRestored = orderEvents.add("payment.connection_restored")
)

// The states of an order.
const (
	orderOpen         = "open"       // it can be paid
	orderAuthorized   = "authorized" // its money is reserved; the restaurant is to accept it
	orderAccepted     = "accepted"   // by the restaurant; its money is not captured yet
	orderPaid         = "paid"
	orderPartRefunded = "part_refunded"
	orderRefunded     = "refunded"
	orderCancelled    = "cancelled"
	orderExpired      = "expired" // not paid, not accepted or not captured in time
)

// What waits until the attempt to pay an order is closed at its provider.
const (
	closingExpired = "expired" // to expire
	closingPaid    = "paid"    // to be marked as paid outside
	closingMethod  = "method"  // to be paid by another method
)

// How an order is paid.
const (
	methodCard     = "card"
	methodMobile   = "mobile"
	methodCash     = "cash"
	methodTerminal = "terminal"
	methodVoucher  = "voucher"
	methodOther    = "other"
	methodNone     = "none" // its total is 0
)

const (
	maxOrderLines     = 200
	maxOpenOrders     = 10_000 // of an account
	maxAttempts       = 20     // to pay an order
	minOrderLife      = 30 * time.Minute
	maxOrderLife      = 24 * time.Hour
	keptCustomersFor  = 30 * 24 * time.Hour // after the order's end
	maxOrderText      = 200                 // characters of a name, a group, a reference or a reason
	maxOrderNote      = 1000
	maxOrderReturnURL = 2048
)

// An orderLine is one item of an order.
type orderLine struct {
	Name       string `json:"name"`
	Quantity   int64  `json:"quantity"`
	UnitAmount int64  `json:"unit_amount"`
	VATRate    int64  `json:"vat_rate"`
	Group      string `json:"group,omitempty"` // for the accounts: "food"; "": none
	Gross      int64  `json:"gross"`           // of all units ordered, less their part of the discount
	Accepted   int64  `json:"accepted"`        // units that the restaurant has accepted; until then all
	Refunded   int64  `json:"refunded"`        // units whose money was given back by lines
}

// A vatSum is the part of an amount that has one rate of VAT.
type vatSum struct {
	Rate  int64 `json:"rate"`
	Gross int64 `json:"gross"` // VAT included
	VAT   int64 `json:"vat"`
}

// A guest is who has ordered.
type guest struct {
	Name  string `json:"name,omitempty"`
	Phone string `json:"phone,omitempty"`
	Note  string `json:"note,omitempty"`
}

// An order is a row of orders.
type order struct {
	ID            string
	AccountID     string
	Reference     *string
	State         string
	Dispute       *string // open, won or lost
	Currency      string
	Lines         []orderLine
	Discount      int64
	Delivery      int64
	DeliveryRate  int64
	DeliveryGross int64 // less its part of the discount
	Tip           int64
	OrderedTotal  int64
	Total         int64    // of what was accepted; until then OrderedTotal
	VAT           []vatSum // of Total
	Refunded      int64    // of Total, by refunds that are pending or done
	Method        *string
	PaymentID     *string // the last attempt
	Attempts      int
	Capture       bool    // its money is to be captured
	Closing       *string // closingExpired, closingPaid or closingMethod
	OutsideMethod *string // with closingPaid
	OutsideAt     stamp   // with closingPaid
	ReturnURL     string
	PageKey       []byte // SHA-256 of the k in its pay_url
	ExpiresAt     stamp
	AcceptBy      stamp
	CreatedAt     stamp
	AuthorizedAt  stamp
	AcceptedAt    stamp
	PaidAt        stamp
	EndedAt       stamp
}

// dead reports whether nothing is to be paid for the order any more, and nothing was.
func (o *order) dead() bool { return o.State == orderCancelled || o.State == orderExpired }

// settled reports whether the order was paid.
func (o *order) settled() bool {
	return o.State == orderPaid || o.State == orderPartRefunded || o.State == orderRefunded
}

// A refund is money of an order that is given back.
type refund struct {
	ID         string          `json:"id"`
	OrderID    string          `json:"order_id"`
	PaymentID  *string         `json:"payment_id"` // nil: it was paid outside
	Amount     int64           `json:"amount"`
	Lines      json.RawMessage `json:"lines"` // [{"line":0,"quantity":1}]; null: not by lines
	VAT        []vatSum        `json:"vat"`   // of Amount
	Tip        int64           `json:"tip"`   // of Amount
	Reason     *string         `json:"reason"`
	Source     string          `json:"source"` // sourceOurs, or sourceProvider
	State      string          `json:"state"`
	Failure    *string         `json:"failure"`
	ProviderID *string         `json:"provider_id"`
	MadeBy     string          `json:"made_by"` // as event.Actor
	CreatedAt  stamp           `json:"created_at"`
	EndedAt    stamp           `json:"ended_at"`
}

// The states of a refund. One that succeeded may fail later.
const (
	refundPending   = "pending"
	refundSucceeded = "succeeded"
	refundFailed    = "failed"
)

// Who did something at a provider.
const (
	sourceOurs     = "widgetd"
	sourceProvider = "provider" // somebody, on the provider's own pages
)

// orderEvent returns an event about an order.
func orderEvent(o *order, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: o.AccountID, SubjectID: o.ID, Actor: actor, Data: eventData(data...)}
}
