package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
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
		wings:    func(s *server) []wing { return []wing{orderWing(s)} },
		commands: orderCommands,
		ids:      []idKind{{"ORDER", "ord", "orders", true}},
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

// outsideMethods are those by which an order is paid without a provider.
var outsideMethods = []string{methodCash, methodTerminal, methodVoucher, methodOther}

// orderMethods are all of them.
var orderMethods = append([]string{methodCard, methodMobile, methodTwint, methodNone}, outsideMethods...)

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

// A vatSum is the part of an amount that is taxed at one rate of VAT.
type vatSum struct {
	Rate  int64 `json:"rate"`
	Gross int64 `json:"gross"` // VAT included
	VAT   int64 `json:"vat"`
}

// An order is a row of orders. What callers see of one also has the members that are no columns, see viewOrder.
type order struct {
	ID            string          `json:"id"`
	AccountID     string          `json:"account_id"`
	Reference     *string         `json:"reference"`
	State         string          `json:"state"`
	Dispute       *string         `json:"dispute"` // open, won or lost
	Currency      string          `json:"currency"`
	Lines         []orderLine     `json:"-"`
	LineViews     []lineView      `json:"lines"` // no column: Lines
	Discount      int64           `json:"discount"`
	Delivery      int64           `json:"-"`
	DeliveryRate  int64           `json:"-"`
	DeliveryGross int64           `json:"-"`        // less its part of the discount
	DeliveryView  *deliveryView   `json:"delivery"` // no column: Delivery and its rate; nil: it costs nothing
	Tip           int64           `json:"tip"`
	OrderedTotal  int64           `json:"ordered_total"`
	Total         int64           `json:"total"`    // of the accepted units; OrderedTotal until it is accepted
	VAT           []vatSum        `json:"vat"`      // of Total
	Refunded      int64           `json:"refunded"` // of Total, by refunds that are pending or done
	Method        *string         `json:"method"`
	PaymentID     *string         `json:"-"` // the last attempt
	Attempts      int             `json:"-"`
	Capture       bool            `json:"-"`          // its money is to be captured
	Closing       *string         `json:"closing"`    // closingExpired, closingPaid or closingMethod
	OutsideMethod *string         `json:"-"`          // with closingPaid
	OutsideAt     stamp           `json:"-"`          // with closingPaid
	Customer      *guest          `json:"customer"`   // no column; nil: not given, erased, or hidden from the caller
	Fulfilment    *fulfilmentView `json:"fulfilment"` // no column; nil as Customer
	Language      *string         `json:"language"`   // no column; nil as Customer
	Payment       *payment        `json:"payment"`    // no column; the last attempt; nil: none, or hidden
	ReturnURL     string          `json:"return_url"`
	CancelURL     *string         `json:"cancel_url"` // where the guest goes who has not paid; nil: to ReturnURL
	PageKey       []byte          `json:"-"`          // SHA-256 of the k in its pay_url; later: of nothing
	ExpiresAt     stamp           `json:"expires_at"`
	AcceptBy      stamp           `json:"accept_by"`
	CreatedAt     stamp           `json:"created_at"`
	AuthorizedAt  stamp           `json:"authorized_at"`
	AcceptedAt    stamp           `json:"accepted_at"`
	ReadyAt       stamp           `json:"ready_at"` // when the restaurant says that it is ready; zero: it does not say
	PaidAt        stamp           `json:"paid_at"`
	EndedAt       stamp           `json:"ended_at"`
	Pay           string          `json:"pay"`
	WantedAt      stamp           `json:"-"`             // when the guest wants it; zero: at once; see wantedErased
	RejectReason  *string         `json:"reject_reason"` // why the restaurant has refused it: one of rejectReasons
	RejectText    *string         `json:"reject_text"`   // what the restaurant adds for the guest; nil as Customer
	PaidFrom      *string         `json:"-"`             // its state before it was marked as paid outside
	Seller        *seller         `json:"-"`             // whose receipt it is; nil: not paid, or before version 9
}

// A seller is what a receipt says of an account, as when the order was paid.
type seller struct {
	Name      string  `json:"name"`
	Address   *string `json:"address"`
	VATNumber *string `json:"vat_number"`
	Zone      string  `json:"zone"`
}

// A lineView is a line of an order as callers see it.
type lineView struct {
	Name       string  `json:"name"`
	Quantity   int64   `json:"quantity"`
	UnitAmount int64   `json:"unit_amount"`
	VATRate    int64   `json:"vat_rate"`
	Group      *string `json:"group"`
	Amount     int64   `json:"amount"` // of the units that are accepted, less their part of the discount
	Accepted   int64   `json:"accepted"`
	Refunded   int64   `json:"refunded"`
}

// A deliveryView is what the delivery of an order costs.
type deliveryView struct {
	Amount  int64 `json:"amount"` // before its part of the discount
	VATRate int64 `json:"vat_rate"`
}

// A refund is money of an order that is given back.
type refund struct {
	ID         string          `json:"id"`
	OrderID    string          `json:"order_id"`
	PaymentID  *string         `json:"payment_id"` // nil: it was paid outside
	Amount     int64           `json:"amount"`
	Lines      json.RawMessage `json:"lines"` // JSON of []linePart; null: the refund is not by lines
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
	AccountID  string          `json:"-"`
	Delivery   *int64          `json:"delivery"` // of Amount, for the delivery; nil: it is not aimed at it
	Kind       string          `json:"kind"`     // refundAsked, …
	Asked      json.RawMessage `json:"-"`        // what was asked for, see refundWish.asked; nil: all, or by nobody
}

// The states of a refund. One that succeeded may fail later.
const (
	refundPending   = "pending"
	refundSucceeded = "succeeded"
	refundFailed    = "failed"
)

// Who made a refund or an operation at a provider.
const (
	sourceOurs     = "widgetd"
	sourceProvider = "provider" // somebody, on the provider's own pages
)

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
	return &refusal{code: codeOrderState, detail: "The order is " + o.State + ". " + why}
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
	arrange(o.VAT, func(a, b *vatSum) int { return int(a.Rate - b.Rate) })
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
		err = o.enter(t, orderPaid, stateEntry{actor: actor, method: methodNone, paidAt: t.now})
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
			return errMember(page.member, "origin_not_listed", "The origin of this is none of the account's.")
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

// mayOpen returns the refusal if the account may not have one more open order, else nil.
func mayOpen(t *tx, o *order) error {
	n, err := t.countOpenOrders(o.AccountID, t.limits.openOrders)
	if err == nil && n >= t.limits.openOrders {
		err = &refusal{code: codeOrderLimit}
	}
	return err
}

// A linePart is a part of a line of an order: units of it or, in a refund, an amount.
type linePart struct {
	Line     int   `json:"line"`     // index, from 0
	Quantity int64 `json:"quantity"` // 0: by amount
	Amount   int64 `json:"amount"`
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
