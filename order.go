package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
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

// orderTable describes the table orders.
var orderTable = newTable("orders", "o", func(o *order) []field {
	return []field{{"id", &o.ID}, {"account_id", &o.AccountID}, {"reference", &o.Reference}, {"state", &o.State},
		{"dispute", &o.Dispute}, {"currency", &o.Currency}, {"lines", jsonColumn[[]orderLine]{&o.Lines}},
		{"discount", &o.Discount}, {"delivery", &o.Delivery}, {"delivery_rate", &o.DeliveryRate},
		{"delivery_gross", &o.DeliveryGross}, {"tip", &o.Tip}, {"ordered_total", &o.OrderedTotal},
		{"total", &o.Total}, {"vat", jsonColumn[[]vatSum]{&o.VAT}}, {"refunded", &o.Refunded}, {"method", &o.Method},
		{"payment_id", &o.PaymentID}, {"attempts", &o.Attempts}, {"capture", &o.Capture}, {"closing", &o.Closing},
		{"outside_method", &o.OutsideMethod}, {"outside_at", &o.OutsideAt}, {"return_url", &o.ReturnURL},
		{"cancel_url", &o.CancelURL},
		{"page_key", &o.PageKey}, {"expires_at", &o.ExpiresAt}, {"accept_by", &o.AcceptBy},
		{"created_at", &o.CreatedAt}, {"authorized_at", &o.AuthorizedAt}, {"accepted_at", &o.AcceptedAt},
		{"paid_at", &o.PaidAt}, {"ended_at", &o.EndedAt}, {"pay", &o.Pay}, {"wanted_at", &o.WantedAt},
		{"reject_reason", &o.RejectReason}, {"reject_text", &o.RejectText}, {"paid_from", &o.PaidFrom},
		{"seller", jsonColumn[*seller]{&o.Seller}}, {"ready_at", &o.ReadyAt}}
})

// order returns an order of an owner, or errOrder.
func (q *queries) order(o owner, id string) (*order, error) {
	return orderTable.byID(q, o, id, errOrder)
}

// addOrder inserts an order.
func (t *tx) addOrder(o *order) { orderTable.insert(t, o) }

// saveOrder writes what can change in an order.
func (t *tx) saveOrder(o *order) {
	orderTable.update(t, o, `state dispute lines total vat refunded method payment_id
		attempts capture closing outside_method outside_at expires_at accept_by authorized_at accepted_at
		paid_at ended_at wanted_at reject_reason reject_text paid_from seller ready_at`, ` WHERE id = ?`, o.ID)
}

// setErasure writes when the guest of an order is to be erased, which follows from the order's state.
func (t *tx) setErasure(o *order) {
	t.exec(`UPDATE order_customers SET erase_at = ?1 WHERE order_id = ?2 AND erase_at IS NOT ?1`, o.eraseAt(), o.ID)
}

// saveAndPoll writes what can change in an order, and polls an attempt to pay it.
func (t *tx) saveAndPoll(o *order, paymentID string) {
	t.saveOrder(o)
	t.pollPayment(paymentID)
}

// refundTable describes the table refunds.
var refundTable = newTable("refunds", "f", func(f *refund) []field {
	return []field{{"id", &f.ID}, {"order_id", &f.OrderID}, {"payment_id", &f.PaymentID}, {"amount", &f.Amount},
		{"lines", jsonColumn[json.RawMessage]{&f.Lines}}, {"vat", jsonColumn[[]vatSum]{&f.VAT}}, {"tip", &f.Tip},
		{"reason", &f.Reason}, {"source", &f.Source}, {"state", &f.State}, {"failure", &f.Failure},
		{"provider_id", &f.ProviderID}, {"made_by", &f.MadeBy}, {"created_at", &f.CreatedAt},
		{"ended_at", &f.EndedAt}, {"account_id", &f.AccountID}, {"delivery", &f.Delivery},
		{"kind", &f.Kind}, {"asked", jsonColumn[json.RawMessage]{&f.Asked}}}
})

// refundsOf returns the refunds of an order, oldest first.
func (q *queries) refundsOf(orderID string) ([]refund, error) {
	return refundTable.all(q, `WHERE f.order_id = ? ORDER BY f.id`, orderID)
}

// addRefund inserts a refund.
func (t *tx) addRefund(f *refund) { refundTable.insert(t, f) }

// saveRefund writes what can change in a refund, if it is not as it was.
func (t *tx) saveRefund(f, before *refund) {
	if !reflect.DeepEqual(f, before) {
		refundTable.update(t, f, `state failure provider_id ended_at`, ` WHERE id = ?`, f.ID)
	}
}

// setRefundWaits notes that a pending refund waits for keys that its provider does not refuse. For an id of none it
// does nothing.
func (t *tx) setRefundWaits(id string) {
	t.exec(`UPDATE refunds SET failure = ? WHERE id = ? AND state = 'pending'`, reasonDenied, id)
}

// orderByReference returns the id of the order of an account with that reference, or errNotFound.
func (q *queries) orderByReference(accountID, reference string) (id string, err error) {
	return oneValue[string](q, `SELECT id FROM orders WHERE account_id = ? AND reference = ?`,
		accountID, reference)
}

// countOpenOrders returns how many orders of an account are open, or accepted and to be paid later, counted up to
// most. It reads at most as many rows of each kind.
func (q *queries) countOpenOrders(accountID string, most int) (n int, err error) {
	return oneValue[int](q, `SELECT (SELECT count(*) FROM (
			SELECT 1 FROM orders WHERE account_id = ?1 AND state = 'open' LIMIT ?2))
		+ (SELECT count(*) FROM (SELECT pay FROM orders WHERE account_id = ?1 AND state = 'accepted' LIMIT ?2)
			WHERE pay = 'later')`, accountID, most)
}

// laterOrders returns up to limit orders of an account that are to be paid later and were not.
func (t *tx) laterOrders(accountID string, limit int64) ([]order, error) {
	return orderTable.all(t.queries, `WHERE o.account_id = ? AND o.state IN ('open', 'accepted') AND o.pay = 'later'
		LIMIT ?`, accountID, limit)
}

// extendWaiting has orders that wait to be accepted do so until a time at least.
func (t *tx) extendWaiting(until stamp) {
	t.exec(`UPDATE orders SET accept_by = ?1 WHERE state = 'authorized' AND accept_by < ?1`,
		until)
	t.exec(`UPDATE orders SET accept_by = ?1, expires_at = ?1
		WHERE state = 'open' AND closing IS NULL AND expires_at < ?1 AND pay = 'later'`, until)
}

// An orderFilter chooses orders of an owner; an empty field does not narrow the choice.
type orderFilter struct {
	owner     owner
	ids       idRange
	state     string
	reference string
	method    string
	search    string // in any case the reference, or an end of the id
}

// orders returns a page of orders, newest first, starting after the id before ("" for the newest).
func (q *queries) orders(f orderFilter, before string, limit int) (listPage[*order], error) {
	list := orderTable.whereOwner(f.owner)
	list.from = f.ids.from
	if f.state != "" && f.reference == "" && !f.owner.every { // of a range of ids, SQLite would read all states
		list.columns += ` INDEXED BY orders_state`
		list.table += ` INDEXED BY orders_state`
	}
	if f.search != "" {
		list.filter(` AND (o.reference = ? COLLATE NOCASE OR ? <> '' AND o.id LIKE '%' || ?)`, f.search,
			idEnd("ord", f.search), idEnd("ord", f.search))
	}
	if f.method != "" {
		list.filter(` AND o.method = ?`, f.method)
	}
	for _, of := range []struct{ condition, value string }{
		{` AND o.reference = ?`, f.reference}, {` AND o.state = ?`, f.state},
	} {
		switch {
		case of.value == "":
		case f.owner.every: // no index covers the references or the states of all accounts
			list.filter(of.condition, of.value)
		default:
			list.scope(of.condition, []any{of.value})
		}
	}
	return orderTable.page(q, list, f.ids.below(before), limit)
}

// A listedRefund is a refund, with what tells which order it is of.
type listedRefund struct {
	refund
	AccountID string       `json:"account_id" is:"acct"` // The account that owns it.
	Reference *string      `json:"reference"`            // The caller's own number for the order, or null: it has none.
	Method    *orderMethod `json:"method"`               // How the order is paid, or null: that is not known yet.
	Currency  string       `json:"currency"`             // The currency of its amounts.
}

// listedRefundTable describes refunds with their orders.
var listedRefundTable = newTable("refunds", "f", func(f *listedRefund) []field {
	return append(refundTable.fields(&f.refund), field{"o.reference", &f.Reference}, field{"o.method", &f.Method},
		field{"o.currency", &f.Currency})
}, "JOIN orders o ON o.id = f.order_id")

// A refundFilter chooses refunds of an owner; an empty field does not narrow the choice.
type refundFilter struct {
	owner owner
	ids   idRange
	state string
}

// refunds returns a page of refunds as callers see them, newest first, starting after the id before ("" for the
// newest).
func (q *queries) refunds(f refundFilter, before string, limit int) (listPage[*listedRefund], error) {
	list := listedRefundTable.whereOwner(f.owner)
	list.from = f.ids.from
	if f.state != "" {
		list.filter(` AND f.state = ?`, f.state)
	}
	p, err := listedRefundTable.page(q, list, f.ids.below(before), limit)
	for _, row := range p.rows {
		row.refund, row.AccountID = viewRefund(row.refund), row.refund.AccountID
	}
	return p, err
}

// overdueOrders returns the ids of up to limit open orders that are to expire, the longest overdue first, and that
// were not set aside.
func (t *tx) overdueOrders(limit int64) ([]string, error) {
	return t.texts(`SELECT id FROM orders WHERE state = 'open' AND closing IS NULL AND expires_at <= ?
		AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY expires_at LIMIT ?`,
		t.now, t.faults.leftOutIDs(), limit)
}

// unacceptedOrders returns the ids of up to limit authorised orders that were not accepted in time, nor set aside.
func (t *tx) unacceptedOrders(limit int64) ([]string, error) {
	return t.texts(`SELECT id FROM orders WHERE state = 'authorized' AND accept_by <= ?
		AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY accept_by LIMIT ?`, t.now, t.faults.leftOutIDs(), limit)
}

// addCustomer inserts the guest of an order.
func (t *tx) addCustomer(o *order, who guest) {
	t.exec(`INSERT INTO order_customers (order_id, name, phone, note, erase_at, fulfilment, language)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, o.ID, who.Name, who.Phone, who.Note, o.eraseAt(),
		jsonColumn[*fulfilment]{&who.Fulfilment}, who.Language)
}

// ensureCustomer inserts a guest of whom nothing is known, unless the order has one. With it, what else is personal
// in the order is erased in time.
func (t *tx) ensureCustomer(o *order) {
	t.exec(`INSERT INTO order_customers (order_id) VALUES (?) ON CONFLICT DO NOTHING`, o.ID)
}

// An orderGuest is the guest of an order.
type orderGuest struct {
	orderID string
	guest
}

// guestsOf returns the guests of these orders, as far as they are known and were not erased.
func (q *queries) guestsOf(orderIDs []string) ([]orderGuest, error) {
	return collect(q, selectGuests+`json_each(?) j CROSS JOIN order_customers c ON c.order_id = j.value`,
		[]any{string(encodeJSON(orderIDs))}, (*orderGuest).dest)
}

const selectGuests = `SELECT c.order_id, c.name, c.phone, c.note, c.fulfilment, c.language FROM `

func (g *orderGuest) dest() []any {
	return []any{&g.orderID, &g.Name, &g.Phone, &g.Note, jsonColumn[*fulfilment]{&g.Fulfilment}, &g.Language}
}

// unreadableGuests is a rowReader.
func unreadableGuests(q *queries) ([]string, error) {
	return unreadableRows(q, selectGuests+`order_customers c`, (*orderGuest).dest)
}

// paymentsByID returns the attempts with these ids, in any order, and the faults of those that can't be read, by id.
func (q *queries) paymentsByID(ids []string) (all []payment, unreadable map[string]*unreadableRow, err error) {
	unreadable = map[string]*unreadableRow{}
	err = eachReadable(q, `SELECT `+paymentTable.columns+` FROM json_each(?) j CROSS JOIN payments p ON p.id = j.value`,
		[]any{string(encodeJSON(ids))}, paymentTable.dest, func(p *payment, bad *unreadableRow) error {
			if bad != nil {
				unreadable[bad.id] = bad
				return nil
			}
			all = append(all, *p)
			return nil
		})
	return all, unreadable, err
}

// eraseCustomers erases up to limit guests whose orders ended keptCustomersFor ago, and returns how many. The
// write-ahead log holds them until it is truncated.
func (t *tx) eraseCustomers(limit int64) (int64, error) {
	due, err := t.texts(`SELECT order_id FROM order_customers WHERE erase_at <= ? ORDER BY erase_at, seq LIMIT ?`,
		t.now, limit)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	return t.eraseGuests(due), nil
}

// personalOrders are those of some orders that hold something about their guests themselves.
const personalOrders = ` WHERE id IN (SELECT value FROM json_each(?))
	AND (wanted_at IS NOT NULL OR reject_text IS NOT NULL)`

// blankGuests overwrites all that is known of the guests of orders, in place: the values that it writes have the same
// length, and an object stays one.
func (t *tx) blankGuests(orderIDs []string) {
	ids := string(encodeJSON(orderIDs))
	t.exec(`UPDATE orders SET wanted_at = iif(wanted_at IS NULL, NULL, '1970-01-01T00:00:00Z'),
		accept_by = iif(wanted_at IS NULL OR ended_at IS NULL, accept_by, created_at),
		ready_at = iif(wanted_at IS NULL OR ended_at IS NULL OR ready_at IS NULL, ready_at, accepted_at),
		expires_at = iif(wanted_at IS NULL OR pay = 'online' OR ended_at IS NULL, expires_at, created_at),
		reject_text = `+fillerOf("reject_text", "x")+personalOrders, ids)
	t.exec(`UPDATE order_customers SET name = `+fillerOf("name", "x")+`, phone = `+fillerOf("phone", "x")+`,
		note = `+fillerOf("note", "x")+`, language = `+fillerOf("language", "x")+`,
		fulfilment = '{"":"' || substr(`+fillerOf("fulfilment", "x")+`, 8) || '"}'
		WHERE order_id IN (SELECT value FROM json_each(?))`, ids)
}

// eraseGuests overwrites and removes what is known of the guests of orders, and returns how many there were.
func (t *tx) eraseGuests(orderIDs []string) int64 {
	t.blankGuests(orderIDs)
	ids := string(encodeJSON(orderIDs))
	t.exec(`UPDATE orders SET reject_text = NULL`+personalOrders, ids)
	return t.exec(`DELETE FROM order_customers WHERE order_id IN (SELECT value FROM json_each(?))`, ids)
}

// guestsAtOnce is how many guests one query reads that searches all, and how many one transaction erases.
const guestsAtOnce = 1_000

// A foundGuest is what a search for guests reads of one.
type foundGuest struct {
	seq                       int64
	orderID, accountID, state string
	name, phone               *string
}

// guestsThat returns the guests that match, of all that there are: those of orders that have not ended, or within
// keptCustomersFor. It reads them with many short queries, a million in some five seconds.
func (q *queries) guestsThat(ctx context.Context, match func(*foundGuest) bool) (found []foundGuest, err error) {
	for after := int64(0); ; {
		all, err := collect(q, `SELECT c.seq, c.order_id, o.account_id, o.state, c.name, c.phone
			FROM order_customers c CROSS JOIN orders o ON o.id = c.order_id
			WHERE c.seq > ? ORDER BY c.seq LIMIT ?`,
			[]any{after, guestsAtOnce}, func(g *foundGuest) []any {
				return []any{&g.seq, &g.orderID, &g.accountID, &g.state, &g.name, &g.phone}
			})
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		for i := range all {
			if after = all[i].seq; match(&all[i]) {
				found = append(found, all[i])
			}
		}
		if len(all) < guestsAtOnce {
			return found, nil
		}
	}
}

// eraseGuests removes what is known of the guests of orders, and returns of how many. It does so in short
// transactions, so that other writes go on in between. Until the write-ahead log is truncated, it holds them.
func (s *store) eraseGuests(ctx context.Context, orderIDs []string) (erased int64, err error) {
	blank := func(t *tx, ids []string) int64 {
		t.blankGuests(ids)
		return 0
	}
	// All rows are overwritten before the first is deleted: see eraseLeads.
	for _, step := range []func(*tx, []string) int64{blank, (*tx).eraseGuests} {
		for ids := range slices.Chunk(orderIDs, guestsAtOnce) {
			err := s.update(ctx, func(t *tx) error {
				erased += step(t, ids)
				return nil
			})
			if err != nil {
				return erased, err
			}
		}
	}
	return erased, nil
}

// Guests: who placed an order and how they get it. All of it is personal. Only callers that can read orders see it,
// and it is erased keptCustomersFor after the order's end, or when an operator says so.

// How a guest gets an order.
const (
	fulfilDelivery = "delivery"
	fulfilPickup   = "pickup"
	fulfilTable    = "table"
)

// A fulfilmentType is how a guest gets an order: `delivery` has an `address`, `table` has a `table`; no other
// type has them.
type fulfilmentType string

var checkFulfilment = oneOf(declareWords[fulfilmentType](fulfilDelivery, fulfilPickup, fulfilTable)...)

// The limits of what is said of a guest.
const (
	maxTableName  = 50 // characters
	maxCity       = 100
	maxPostalCode = 20
	maxAhead      = 60 * 24 * time.Hour // that an order may be wanted after it is made
)

// A guest is who orders; `null`: that was not given, or is erased, or the token has no `orders:read`.
type guest struct {
	Name  *string `json:"name"`  // The name, or null: it was not given.
	Phone *string `json:"phone"` // The telephone number, or null: it was not given.
	Note  *string `json:"note"`  // What the guest asks for, or null: nothing.

	Fulfilment *fulfilment `json:"-"`
	Language   *string     `json:"-"` // of the pages that the guest reads: de, or de-CH
}

// A fulfilment is how a guest gets an order.
type fulfilment struct {
	Type    fulfilmentType `json:"type"`    // How the guest gets it.
	Address *guestAddress  `json:"address"` // Where it is brought, or null: it is no delivery.
	Table   *string        `json:"table"`   // The name of the table that it is brought to, or null: to none.
}

// A guestAddress is where an order is brought; `null`: it is no delivery.
type guestAddress struct {
	Line1      string  `json:"line1"`       // Street and number.
	Line2      *string `json:"line2"`       // What else it takes to find the door, or null: nothing.
	PostalCode string  `json:"postal_code"` // The postal code.
	City       string  `json:"city"`        // The place.
	Country    string  `json:"country"`     // ISO 3166-1: `CH`.
}

// A fulfilmentView is how and when a guest gets an order; `null`: for the reasons that `customer` is.
type fulfilmentView struct {
	fulfilment
	WantedAt stamp `json:"wanted_at"` // When the guest wants it, or null: as soon as possible.
}

// setGuest sets what callers see of an order's guest; nil: nothing.
func (o *order) setGuest(who *guest) {
	o.Customer, o.Fulfilment, o.Language = nil, nil, nil
	if who == nil {
		return
	}
	if who.Name != nil || who.Phone != nil || who.Note != nil {
		o.Customer = who
	}
	if who.Fulfilment != nil {
		o.Fulfilment = &fulfilmentView{*who.Fulfilment, o.WantedAt}
	}
	o.Language = who.Language
}

// wantedErased reports whether it was erased when the guest wants the order. What waits for the order's deadlines
// still needs those until it has ended.
func (o *order) wantedErased() bool { return !o.WantedAt.IsZero() && o.WantedAt.Unix() == 0 }

// eraseDeadlines overwrites what follows from when the guest wanted an order that has ended, if that was erased.
func (o *order) eraseDeadlines() {
	if o.EndedAt.IsZero() || !o.wantedErased() {
		return
	}
	if !o.ReadyAt.IsZero() {
		o.ReadyAt = o.AcceptedAt
	}
	if o.AcceptBy = o.CreatedAt; o.Pay == payLater {
		o.ExpiresAt = o.CreatedAt
	}
}

// hideWantedTime hides when the guest wants the order also in the times that follow from that: callers see none until
// which it is to be accepted, nor at which it is ready, and that it expires, if it does, as if it were wanted at
// once.
func (o *order) hideWantedTime(q *queries) error {
	o.AcceptBy, o.ReadyAt = stamp{}, stamp{}
	if o.Pay == payLater {
		settings, err := q.settings(o.AccountID)
		if err != nil {
			return err
		}
		o.ExpiresAt = o.CreatedAt.after(time.Duration(settings.AcceptWithin) * time.Minute)
	}
	if o.State == orderExpired {
		o.EndedAt = o.ExpiresAt
	}
	return nil
}

// checkAhead returns the refusal of a time for which an order is wanted or announced: one that is over, or more than
// maxAhead from now. The zero stamp is no such time.
func checkAhead(t *tx, member string, at stamp) error {
	switch {
	case at.IsZero():
		return nil
	case at.Before(t.exact.Add(-clockSkew)):
		return errMember(member, "out_of_range", "This is in the past.")
	case at.After(t.exact.Add(maxAhead)):
		return errMember(member, "out_of_range", "This is more than 60 days ahead.")
	}
	return nil
}
