package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// The scopes of orders and of the money that is paid for them.
const (
	scopeOrders  = "orders:read"
	scopeSelling = "orders:write"
)

// orderNoun declares orders.
func orderNoun() noun {
	return noun{
		name:     "order",
		modules:  func(s *server) []module { return []module{orderModule(s)} },
		calls:    orderRouteCommands,
		commands: orderCommands,
		ids:      []idKind{{"ORDER", "ord", "orders", true, nil}},
		problems: orderProblems,
		events:   orderEvents,
		rows:     []rowReader{orderTable.unreadable, refundTable.unreadable, unreadableGuests},
		close:    cancelLater,
	}
}

// Orders (contract, section 11): what guests order on a restaurant's page. They are created by software that
// knows the prices. Amounts are integers in the minor unit of the order's currency; prices include VAT; rates of
// VAT are in hundredths of a percent, so that 810 is 8.1 %.

// The problem codes of orders.
var (
	orderProblems problemTable

	codeOrderNotFound = orderProblems.add(404, "order_not_found", "Order not found",
		"There is no order with this id.",
		"Check the id, and that the token's account owns the order.")
	codeOrderState = orderProblems.add(409, "order_state", "Not in this state",
		"The order's state does not allow this.",
		"Look at the order's state.")
	codeOrderLimit = orderProblems.add(409, "order_limit_reached", "Too many open orders",
		"The account has 10,000 open orders already.",
		"Cancel orders that nobody will pay, or wait until they expire.")
	codeRefundTooLarge = orderProblems.add(409, "refund_too_large", "Refund too large",
		"More would be given back than was paid.",
		"Refund an `amount` of at most `refundable`.")
	codeRefundRepeated = orderProblems.add(409, "refund_repeated", "Refund repeated",
		"The same refund was asked for less than 10 seconds ago. Send an Idempotency-Key if it is another one.",
		"`refund_id` is the refund that was made. If you want another one like it, send it with an "+
			"`Idempotency-Key`, or after 10 seconds.")
	codeRefundLimit = orderProblems.add(409, "refund_limit_reached", "Too many refunds",
		"The order has 100 refunds already.",
		"Give the rest back on the provider's own pages.")

	errOrder = &refusal{code: codeOrderNotFound}
)

// The event types of orders. Their data never contains the customer or the reference.
var (
	orderEvents = eventTable{scope: scopeOrders}

	eventOrderCreated      = orderEvents.add("order.created")
	eventOrderAuthorized   = orderEvents.add("order.authorized")
	eventOrderAccepted     = orderEvents.add("order.accepted")
	eventOrderPaid         = orderEvents.add("order.paid")
	eventOrderUnpaid       = orderEvents.add("order.unpaid") // it is no longer marked as paid outside
	eventOrderRefunded     = orderEvents.add("order.refunded")
	eventOrderRefundFailed = orderEvents.add("order.refund_failed")
	eventOrderCancelled    = orderEvents.add("order.cancelled")
	eventOrderExpired      = orderEvents.add("order.expired")
	eventOrderDisputed     = orderEvents.add("order.disputed")
	eventOrderInquiry      = orderEvents.add("order.inquiry") // the guest's bank asks, and takes nothing yet
	eventOrderReview       = orderEvents.add("order.review")
	eventOrderEnding       = orderEvents.add("order.authorization_ending") // a day before it lapses
)

// How an order is paid.
const (
	methodCard     = "card"
	methodMobile   = "mobile"
	methodTwint    = "twint"
	methodCash     = "cash"
	methodTerminal = "terminal"
	methodVoucher  = "voucher"
	methodOther    = "other"
	methodNone     = "none" // its total is 0
)

// When an order is to be paid.
const (
	payOnline = "online"
	payLater  = "later" // at the restaurant or at the door, once it was accepted
)

// An orderPay is when an order is paid. `online`, which it is if it is not given: the guest pays before it is
// accepted. `later`: at the restaurant or at the door, once it was accepted; the order takes no `expires_in`.
type orderPay string

var checkPay = oneOf(declareWords[orderPay](payOnline, payLater)...)

// An orderMethod is how the order is paid; `null`: that is not known yet. `none`: its total is 0.
type orderMethod string

// orderMethods are all of them.
var orderMethods = declareWords[orderMethod](methodCard, methodMobile, methodTwint, methodNone, methodCash,
	methodTerminal, methodVoucher, methodOther)

// outsideMethods are those by which an order is paid without a provider.
var outsideMethods = []string{methodCash, methodTerminal, methodVoucher, methodOther}

const (
	maxOrderLines     = 200
	minOrderLife      = 30 * time.Minute
	maxOrderLife      = 24 * time.Hour
	maxQuantity       = 100_000             // per line
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
	Accepted   int64  `json:"accepted"`        // units that the restaurant has accepted; all of them until it does
	Refunded   int64  `json:"refunded"`        // units that refunds by line have given back
}

// A vatSum is the part of an amount that has one rate of VAT.
type vatSum struct {
	Rate  int64 `json:"rate"`  // In hundredths of a percent.
	Gross int64 `json:"gross"` // The part, VAT included.
	VAT   int64 `json:"vat"`   // The VAT in it.
}

// An order is what a guest has ordered, and how far that is. Amounts are whole numbers in the minor unit of its
// currency.
type order struct {
	// It is a row of the table orders. What is no column of that is set by viewOrder.

	ID        string     `json:"id" is:"ord"`          // The id of the order.
	AccountID string     `json:"account_id" is:"acct"` // The account that owns it.
	Reference *string    `json:"reference"`            // The caller's own number for it, or null: it has none.
	State     orderState `json:"state"`                // How far it is.

	// How a dispute of its payment stands, or null: there is none.
	Dispute   *orderDispute `json:"dispute"`
	Currency  string        `json:"currency"` // The currency of all amounts.
	Lines     []orderLine   `json:"-"`
	LineViews []lineView    `json:"lines"`    // What was ordered. A line's index is its number in other calls.
	Discount  int64         `json:"discount"` // Off lines and delivery.

	Delivery      int64         `json:"-"`
	DeliveryRate  int64         `json:"-"`
	DeliveryGross int64         `json:"-"`             // less its part of the discount
	DeliveryView  *deliveryView `json:"delivery"`      // What bringing it costs, or null: nothing.
	Tip           int64         `json:"tip"`           // The tip.
	OrderedTotal  int64         `json:"ordered_total"` // What was to be paid for all that was ordered.
	Total         int64         `json:"total"`         // What is to be paid for what was accepted.
	VAT           []vatSum      `json:"vat"`           // The VAT in `total`, by rate.

	// Of `total`, by refunds that are pending or succeeded: all that went back, less what was captured beyond `total`
	// since it was not accepted.
	Refunded int64 `json:"refunded"`

	Method        *orderMethod  `json:"method"` // How it is paid, or null: that is not known yet.
	PaymentID     *string       `json:"-"`      // the last attempt
	Attempts      int           `json:"-"`
	Capture       bool          `json:"-"`       // its money is to be captured
	Closing       *orderClosing `json:"closing"` // What waits until its payment is closed, or null: nothing does.
	OutsideMethod *orderMethod  `json:"-"`       // with closingPaid
	OutsideAt     stamp         `json:"-"`       // with closingPaid

	// Who orders, or null: that was not given, or is erased, or the token has no `orders:read`.
	Customer   *guest          `json:"customer"`
	Fulfilment *fulfilmentView `json:"fulfilment"` // How the guest gets it, or null: as with `customer`.
	Language   *string         `json:"language"`   // The language of the guest: `de-CH`, or null: none, or erased.

	// The last attempt to pay it, or null: there was none, or the token has no `orders:read`.
	Payment   *payment `json:"payment"`
	ReturnURL string   `json:"return_url" is:"uri"` // Where the guest goes afterwards.

	// Where the guest goes while nothing is paid or reserved, or null: to `return_url`, which is as given then.
	CancelURL *string `json:"cancel_url" is:"uri"`
	PageKey   []byte  `json:"-"` // SHA-256 of the k in its pay_url; later: of nothing

	// Until when it can be paid online; if it is paid later, until when it is to be accepted. Without the scope
	// `orders:read`, and once the guest was erased, that does not depend on when it is wanted: it is `created_at` plus
	// the account's `accept_within`.
	ExpiresAt stamp `json:"expires_at"`

	// Until when it is to be accepted, once authorised, or if it is paid later. It is null: without the scope
	// `orders:read`, and of an order with `wanted_at` once its guest was erased.
	AcceptBy     stamp `json:"accept_by"`
	CreatedAt    stamp `json:"created_at"`    // When it was made.
	AuthorizedAt stamp `json:"authorized_at"` // When its money was authorised, or null: it was not.
	AcceptedAt   stamp `json:"accepted_at"`   // When it was accepted, or null: it was not.

	// When the restaurant said, as it accepted, that it is ready. It is null: if that was not said, without the scope
	// `orders:read`, and of an order with `wanted_at` once its guest was erased.
	ReadyAt stamp `json:"ready_at"`

	// When its money was captured, as the provider says, which by some methods is before it is accepted, or when it
	// was paid outside, or null: it was not paid.
	PaidAt       stamp              `json:"paid_at"`
	EndedAt      stamp              `json:"ended_at"`      // When it was paid, cancelled or expired, or null: not yet.
	Pay          orderPay           `json:"pay"`           // When the guest pays.
	WantedAt     stamp              `json:"-"`             // when the guest wants it; zero: at once; see wantedErased
	RejectReason *orderRejectReason `json:"reject_reason"` // Why it was refused, or null: no reason was given.
	RejectText   *string            `json:"reject_text"`   // What was added for the guest, or null: nothing, or erased.
	PaidFrom     *orderState        `json:"-"`             // its state before it was marked as paid outside
	Seller       *seller            `json:"-"`             // whose receipt it is; nil: not paid, or before version 9
	dryAnswer
}

// A seller is what a receipt says of an account, as when the order was paid.
type seller struct {
	Name      string  `json:"name"`
	Address   *string `json:"address"`
	VATNumber *string `json:"vat_number"`
	Zone      string  `json:"zone"`
}

// A lineView is an item of an order.
type lineView struct {
	Name       string  `json:"name"`               // What it is.
	Quantity   int64   `json:"quantity" least:"1"` // How many units were ordered.
	UnitAmount int64   `json:"unit_amount"`        // What a unit costs before the discount.
	VATRate    int64   `json:"vat_rate"`           // In hundredths of a percent.
	Group      *string `json:"group"`              // What it belongs to in the books, or null: to nothing.
	Amount     int64   `json:"amount"`             // What the accepted units cost, less their part of the discount.
	Accepted   int64   `json:"accepted"`           // How many units are accepted; until then all.
	Refunded   int64   `json:"refunded"`           // How many units' money was given back by lines.
}

// A deliveryView is what bringing an order costs; `null`: nothing.
type deliveryView struct {
	Amount  int64 `json:"amount"`   // Before the discount.
	VATRate int64 `json:"vat_rate"` // In hundredths of a percent.
}

// A refund is money of an order that is given back.
type refund struct {
	ID        string  `json:"id" is:"ref"`         // The id of the refund.
	OrderID   string  `json:"order_id" is:"ord"`   // The order.
	PaymentID *string `json:"payment_id" is:"pay"` // The attempt whose money goes back, or null: it was paid outside.
	Amount    int64   `json:"amount" least:"1"`    // How much.

	Lines  json.RawMessage `json:"lines"`  // Which lines, or null: it is not by lines.
	VAT    []vatSum        `json:"vat"`    // The VAT in it, by rate.
	Tip    int64           `json:"tip"`    // The part of the tip in it.
	Reason *string         `json:"reason"` // Why, as the receipt says it, or null: that was not said.
	Source refundSource    `json:"source"` // Who made it.
	State  refundState     `json:"state"`  // What came of it.

	// Why it failed; of a pending one `keys_refused`: it waits, since the provider refuses the connection's keys; else
	// null: nothing is wrong.
	Failure    *string    `json:"failure"`
	ProviderID *string    `json:"provider_id"` // The provider's id of it, or null: it has none yet.
	MadeBy     string     `json:"made_by"`     // Who made it: `token` and its id, `operator`, or `provider`.
	CreatedAt  stamp      `json:"created_at"`  // When it was asked for.
	EndedAt    stamp      `json:"ended_at"`    // When its result was known, or null: it is pending.
	AccountID  string     `json:"-"`
	Delivery   *int64     `json:"delivery"` // The amount that was asked for of the delivery, or null: none was.
	Kind       refundKind `json:"kind"`     // What it is, for good.

	Asked json.RawMessage `json:"-"` // what was asked for, see newRefund.asked; nil: all, or by nobody
}

// The states of a refund. One that succeeded may fail later.
const (
	refundPending   = "pending"
	refundSucceeded = "succeeded"
	refundFailed    = "failed"
)

// A refundState is what came of a refund. One that succeeded may fail later.
type refundState string

var refundStates = declareWords[refundState](refundPending, refundSucceeded, refundFailed)

// Who made a refund or an operation at a provider.
const (
	sourceOurs     = "widgetd"
	sourceProvider = "provider" // somebody, on the provider's own pages
)

// A refundSource is where a refund comes from. `provider`: somebody made it on the provider's own pages.
type refundSource string

var _ = declareWords[refundSource](sourceOurs, sourceProvider)

// orderEvent returns an event about an order.
func orderEvent(o *order, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: o.AccountID, SubjectID: o.ID, Actor: actor, Data: eventData(data...)}
}

// totalEvent returns an event about an order whose data includes the order's total and currency.
func totalEvent(o *order, kind eventType, actor string, data ...string) event {
	data = append(data, "total", strconv.FormatInt(o.Total, 10), "currency", o.Currency)
	return orderEvent(o, kind, actor, data...)
}

// errOrderState returns the refusal of a request that the order's state does not allow. why is a full sentence.
func errOrderState(o *order, why string) error {
	return &refusal{code: codeOrderState, detail: "The order is " + string(o.State) + ". " + why}
}

// part returns what n of the units of a line cost, less their share of the discount.
func (l *orderLine) part(n int64) int64 { return portion(l.Gross, n, l.Quantity) }

// price sets the amounts of an order from its lines, discount, delivery and tip: the discount is spread
// over lines and delivery in proportion. Errors: a refusal that names the member that is wrong.
func (o *order) price() error {
	gross := make([]int64, 0, len(o.Lines)+1)
	for i := range o.Lines {
		l := &o.Lines[i]
		amount, ok := multiply(l.UnitAmount, l.Quantity)
		if !ok {
			return errMember(fmt.Sprintf("lines/%d", i), "amount_too_large", "This line costs too much.")
		}
		l.Accepted, l.Refunded = l.Quantity, 0
		gross = append(gross, amount)
	}
	gross = append(gross, o.Delivery)
	sum, ok := addUp(gross...)
	if _, withTip := addUp(sum, o.Tip); !ok || !withTip {
		return errMember("lines", "amount_too_large", "All of it together costs too much.")
	}
	if o.Discount > sum {
		return errMember("discount", "out_of_range", "This is more than lines and delivery cost.")
	}
	for i, off := range spread(o.Discount, gross) {
		gross[i] -= off
	}
	for i := range o.Lines {
		o.Lines[i].Gross = gross[i]
	}
	o.DeliveryGross = gross[len(o.Lines)]
	o.addLines()
	o.OrderedTotal = o.Total
	return nil
}

// addLines sets the total of an order, and the VAT in it, from what is accepted of its lines. VAT is
// rounded once for each rate.
func (o *order) addLines() {
	sums := map[int64]int64{o.DeliveryRate: o.DeliveryGross}
	o.Total = o.DeliveryGross + o.Tip
	for _, l := range o.Lines {
		sums[l.VATRate] += l.part(l.Accepted)
		o.Total += l.part(l.Accepted)
	}
	o.VAT = nil
	for rate, gross := range sums {
		if gross > 0 {
			o.VAT = append(o.VAT, vatSum{Rate: rate, Gross: gross, VAT: vatIn(gross, rate)})
		}
	}
	sort.Slice(o.VAT, func(i, j int) bool { return o.VAT[i].Rate < o.VAT[j].Rate })
}

// payURL returns the address of the page where an order is paid. base is the current base address.
func payURL(base, orderID, k string) string { return base + "/pay/" + orderID + "?k=" + k }

// createOrder adds an order with the account, reference, currency, lines, discount, delivery, tip and return
// addresses of o, and sets the rest of o. The order can be paid for the duration lives; one whose total is 0 is
// paid at once. The result is the k of its pay_url, of which only the hash is stored. Errors: errAccount,
// reference_used, order_limit_reached, a refusal that names the member that is wrong.
func createOrder(t *tx, o *order, who guest, lives time.Duration, actor string) (k string, err error) {
	if err := t.openAccount(o.AccountID); err != nil {
		return "", err
	}
	if err := o.price(); err != nil {
		return "", err
	}
	if err := mayCreate(t, o); err != nil {
		return "", err
	}
	k = randomText(16)
	o.ID, o.State, o.PageKey = t.newID("ord"), orderOpen, hashOf(k)
	o.CreatedAt, o.ExpiresAt = t.now, t.now.after(lives)
	if o.Pay = cmp.Or(o.Pay, payOnline); o.Pay == payLater {
		if err := waitForAcceptance(t, o); err != nil {
			return "", err
		}
	}
	if err := checkAhead(t, "fulfilment/wanted_at", o.WantedAt); err != nil {
		return "", err
	}
	t.addOrder(o)
	t.addEvent(totalEvent(o, eventOrderCreated, actor))
	if o.Total == 0 {
		err = o.enterState(t, orderPaid, stateEntry{actor: actor, method: methodNone, paidAt: t.now})
		t.saveOrder(o)
	}
	if who != (guest{}) {
		t.addCustomer(o, who)
	}
	return k, err
}

// originOf returns the origin of a web address, in its normal form. It reports false for anything else.
func originOf(address string) (origin string, ok bool) {
	u, err := url.Parse(address)
	if err != nil || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", false
	}
	origin, err = parseOrigin(u.Scheme + "://" + u.Host)
	return origin, err == nil
}

// mayCreate returns the refusal if the account may not add the order, else nil.
func mayCreate(t *tx, o *order) error {
	for _, page := range []struct{ member, url string }{
		{"return_url", o.ReturnURL}, {"cancel_url", valueOr(o.CancelURL, o.ReturnURL)},
	} {
		origin, _ := originOf(page.url)
		listedBy, err := t.originAccount(origin)
		if err != nil {
			return err
		}
		if listedBy != o.AccountID {
			return errOriginNotListed(t, page.member, origin, o.AccountID)
		}
	}
	if o.Reference != nil {
		id, err := t.orderByReference(o.AccountID, *o.Reference)
		if err == nil {
			return &refusal{code: codeReferenceUsed, detail: "The account has an order with this reference already.",
				members: []extraMember{{"order_id", id}}}
		}
		if !errors.Is(err, errNotFound) {
			return err
		}
	}
	return mayOpen(t, o)
}

const maxOriginsNamed = 5 // in one refusal

// errOriginNotListed refuses a member whose origin the account does not have, and says which it has.
func errOriginNotListed(t *tx, member, origin, accountID string) error {
	rows, err := t.origins(ownedBy(accountID))
	if err != nil {
		return err
	}
	listed := []string{}
	for _, row := range rows[:min(len(rows), maxOriginsNamed)] {
		listed = append(listed, row.Origin)
	}
	has := "none yet"
	if more := len(rows) - len(listed); more > 0 {
		has = fmt.Sprintf("%s and %d more", strings.Join(listed, ", "), more)
	} else if len(listed) > 0 {
		has = strings.Join(listed, ", ")
	}
	return errMember(member, "origin_not_listed", "The origin of this, its scheme, host and port, is "+origin+
		". The account has "+has+". The operator of the service adds one: widgetd origin add "+origin+
		" -account "+accountID)
}

// mayOpen returns the refusal if the account may not have one more open order, else nil.
func mayOpen(t *tx, o *order) error {
	n, err := t.countOpenOrders(o.AccountID, t.limits.openOrders)
	if err == nil && n >= t.limits.openOrders {
		err = &refusal{code: codeOrderLimit}
	}
	return err
}

// A linePart is so many units of a line or, in a refund, an amount of it.
type linePart struct {
	Line     int   `json:"line"`     // The index of the line, from 0.
	Quantity int64 `json:"quantity"` // How many units; 0: by amount.
	Amount   int64 `json:"amount"`   // How much of the line.
}

// checkLineParts returns the refusal of lines of a request, or nil: a line that the order does not have, a
// line that is named twice, or a quantity above what most returns for the line.
func checkLineParts(o *order, lines []linePart, most func(*orderLine) int64) error {
	var wrong []fieldError
	for i, l := range lines {
		refuse := func(member, code, detail string) {
			at := fmt.Sprintf("#/lines/%d/%s", i, member)
			wrong = append(wrong, fieldError{Pointer: at, Code: code, Detail: detail})
		}
		same := func(other linePart) bool { return other.Line == l.Line }
		switch {
		case l.Line < 0 || l.Line >= len(o.Lines):
			refuse("line", "unknown_value", fmt.Sprintf("The order has the lines 0 to %d.", len(o.Lines)-1))
		case slices.ContainsFunc(lines[:i], same):
			refuse("line", "repeated", "This line appears twice.")
		case l.Quantity > most(&o.Lines[l.Line]):
			refuse("quantity", "out_of_range", fmt.Sprintf("This must be from 0 to %d.", most(&o.Lines[l.Line])))
		}
	}
	if len(wrong) > 0 {
		return errFields(wrong...)
	}
	return nil
}

// lower lowers the accepted quantities of an order, and with them its total. Lines that are not named keep
// theirs. Errors: a refusal that names the lines that are wrong.
func (o *order) lower(lines []linePart) error {
	if err := checkLineParts(o, lines, func(l *orderLine) int64 { return l.Accepted }); err != nil {
		return err
	}
	for _, l := range lines {
		o.Lines[l.Line].Accepted = l.Quantity
	}
	o.addLines()
	if !slices.ContainsFunc(o.Lines, func(l orderLine) bool { return l.Accepted > 0 }) || o.Total == 0 {
		return errMember("lines", "nothing_left", "Nothing would be left to be paid: reject the order instead.")
	}
	return nil
}

// sellerOf returns what a receipt says of an account at present.
func (q *queries) sellerOf(accountID string) (*seller, error) {
	a, err := q.account(accountID)
	if err != nil {
		return nil, err
	}
	of, err := q.settings(accountID)
	return &seller{valueOr(of.LegalName, a.Name), of.Address, of.VATNumber, of.Zone}, err
}
