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
		ids:      []idKind{{"ORDER", "ord", "orders"}},
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
		"There is no order with this id.")
	codeOrderState = orderProblems.add(409, "order_state", "Not in this state",
		"The order's state does not allow this.")
	codeOrderLimit = orderProblems.add(409, "order_limit_reached", "Too many open orders",
		"The account has 10,000 open orders already.")
	codeRefundTooLarge = orderProblems.add(409, "refund_too_large", "Refund too large",
		"More would be given back than was paid.")
	codeRefundRepeated = orderProblems.add(409, "refund_repeated", "Refund repeated",
		"The same refund was asked for less than 10 seconds ago. Send an Idempotency-Key if it is another one.")
	codeRefundLimit = orderProblems.add(409, "refund_limit_reached", "Too many refunds",
		"The order has 100 refunds already.")

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

// orderStates are the states of an order, in the order in which it may pass them.
var orderStates = []string{orderOpen, orderAuthorized, orderAccepted, orderPaid, orderPartRefunded,
	orderRefunded, orderCancelled, orderExpired}

// What an order waits to become once the attempt to pay it is closed at its provider (order.Closing).
const (
	closingExpired = "expired" // to expire
	closingPaid    = "paid"    // to be marked as paid outside
	closingMethod  = "method"  // to be paid by another method
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
	maxOpenOrders     = 10_000 // per account
	maxAttempts       = 20     // to pay one order
	minOrderLife      = 30 * time.Minute
	maxOrderLife      = 24 * time.Hour
	maxRefunds        = 100                 // per order, failed ones included
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
	PageKey       []byte          `json:"-"` // SHA-256 of the k in its pay_url; later: of nothing
	ExpiresAt     stamp           `json:"expires_at"`
	AcceptBy      stamp           `json:"accept_by"`
	CreatedAt     stamp           `json:"created_at"`
	AuthorizedAt  stamp           `json:"authorized_at"`
	AcceptedAt    stamp           `json:"accepted_at"`
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

// dead reports whether the order was cancelled or has expired, so that nothing is to be paid for it any more.
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
	Lines      json.RawMessage `json:"lines"` // JSON of []refundLine; null: the refund is not by lines
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

	// What it gives back of money that was captured and not accepted, which is no part of the order's total; Released
	// reports whether that is all.
	Released       bool  `json:"released"`
	ReleasedAmount int64 `json:"released_amount"`

	Asked json.RawMessage `json:"-"` // what was asked for, see refundWish.asked; nil: all, or by nobody
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
	slices.SortFunc(o.VAT, func(a, b vatSum) int { return int(a.Rate - b.Rate) })
}

// payURL returns the address of the page where an order is paid. base is the current base address.
func payURL(base, orderID, k string) string { return base + "/pay/" + orderID + "?k=" + k }

// createOrder adds an order with the account, reference, currency, lines, discount, delivery, tip and return
// address of o, and sets the rest of o. The order can be paid for the duration lives; one whose total is 0 is
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
	if o.Total == 0 {
		o.State, o.Method, o.PaidAt, o.EndedAt = orderPaid, new(methodNone), t.now, t.now
		if o.Seller, err = t.sellerOf(o.AccountID); err != nil {
			return "", err
		}
	}
	if err := checkWantedAt(t, o.WantedAt); err != nil {
		return "", err
	}
	t.addOrder(o)
	if who != (guest{}) {
		t.addCustomer(o, who)
	}
	t.addEvent(totalEvent(o, eventOrderCreated, actor))
	if o.State != orderOpen {
		t.addEvent(totalEvent(o, eventOrderPaid, actor, "method", *o.Method))
	}
	return k, nil
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
	origin, _ := originOf(o.ReturnURL)
	listedBy, err := t.originAccount(origin)
	if err != nil {
		return err
	}
	if listedBy != o.AccountID {
		return errMember("return_url", "origin_not_listed", "The origin of this is none of the account's.")
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
	n, err := t.countOpenOrders(o.AccountID, maxOpenOrders)
	if err == nil && n >= maxOpenOrders {
		err = &refusal{code: codeOrderLimit}
	}
	return err
}

// A lineQuantity names units of a line of an order.
type lineQuantity struct {
	Line     int   `json:"line"` // index, from 0
	Quantity int64 `json:"quantity"`
}

// checkLineQuantities returns the refusal of lines of a request, or nil: a line that the order does not have, a
// line that is named twice, or a quantity below least or above what most returns for the line.
func checkLineQuantities(o *order, lines []lineQuantity, least int64, most func(*orderLine) int64) error {
	var wrong []fieldError
	for i, l := range lines {
		refuse := func(member, code, detail string) {
			at := fmt.Sprintf("#/lines/%d/%s", i, member)
			wrong = append(wrong, fieldError{Pointer: at, Code: code, Detail: detail})
		}
		same := func(other lineQuantity) bool { return other.Line == l.Line }
		switch {
		case l.Line < 0 || l.Line >= len(o.Lines):
			refuse("line", "unknown_value", fmt.Sprintf("The order has the lines 0 to %d.", len(o.Lines)-1))
		case slices.ContainsFunc(lines[:i], same):
			refuse("line", "repeated", "This line appears twice.")
		case l.Quantity < least || l.Quantity > most(&o.Lines[l.Line]):
			refuse("quantity", "out_of_range",
				fmt.Sprintf("This must be from %d to %d.", least, most(&o.Lines[l.Line])))
		}
	}
	if len(wrong) > 0 {
		return errFields(wrong...)
	}
	return nil
}

// lower lowers the accepted quantities of an order, and with them its total. Lines that are not named keep
// theirs. Errors: a refusal that names the lines that are wrong.
func (o *order) lower(lines []lineQuantity) error {
	if err := checkLineQuantities(o, lines, 0, func(l *orderLine) int64 { return l.Accepted }); err != nil {
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

// acceptOrder accepts an order of an owner that waits for that; lines names the lines of which fewer units are
// accepted. If the account captures cards on acceptance, or their reservation would end before the order is wanted,
// its money is captured; one that was charged already is paid, even if a refund of it takes long. An order whose
// payment is in review for anything else is accepted in spite of that, see acceptFromReview. Errors: errOrder,
// order_state, a refusal that names the lines that are wrong.
func acceptOrder(t *tx, by owner, id string, lines []lineQuantity, actor string) (*order, error) {
	o, p, err := orderAndPayment(t, by, id)
	if err != nil {
		return nil, err
	}
	late := o.charged() && o.waits() && p != nil && valueOr(p.Reason, "") == reasonRefundPending
	if p != nil && p.State == paymentReview && !late {
		return o, acceptFromReview(t, o, p, lines, actor)
	}
	if !o.waits() {
		return nil, errOrderState(o, "Only an authorized one, or an open one that is paid later, can be accepted.")
	}
	if err := o.lower(lines); err != nil {
		return nil, err
	}
	if p == nil {
		keepAccepted(t, o, actor)
		return o, nil
	}
	settings, err := t.settings(o.AccountID)
	if err != nil {
		return nil, err
	}
	o.Capture = findMethod(p.Method).early &&
		(settings.CaptureOn == captureOnAccept || o.endsEarly(p.lapses(t.now).Time))
	if keepAccepted(t, o, actor); !o.charged() {
		return o, nil
	}
	return o, payCharged(t, o, p, actor)
}

// waits reports whether the order waits for the restaurant to accept it.
func (o *order) waits() bool {
	return o.State == orderAuthorized || o.State == orderOpen && o.Pay == payLater
}

// keepAccepted writes that an order was accepted.
func keepAccepted(t *tx, o *order, actor string) {
	o.State, o.AcceptedAt = orderAccepted, t.now
	t.saveOrder(o)
	if o.PaymentID != nil {
		t.lookAt(*o.PaymentID)
	}
	ordered := strconv.FormatInt(o.OrderedTotal, 10)
	t.addEvent(totalEvent(o, eventOrderAccepted, actor, "ordered_total", ordered))
}

// acceptFromReview accepts an order in spite of what is wrong with its payment. If exactly its total was
// captured, the order becomes paid, even if it is dead; if at least its total is authorised, the total is
// captured. Errors: as acceptOrder.
func acceptFromReview(t *tx, o *order, p *payment, lines []lineQuantity, actor string) error {
	refunds, err := t.refundsOf(o.ID)
	if err != nil {
		return err
	}
	if more := exceeding(o, p, refunds); more > 0 {
		return errOrderState(o, formatMoney(more, o.Currency)+" more than its total was captured: give that back with "+
			"a refund, here or on the provider's pages, and it is paid. Or cancel the order, and refund all.")
	}
	if err := o.lower(lines); err != nil {
		return err
	}
	sameCurrency := p.Currency == o.Currency && valueOr(p.Reason, "") != reasonOtherCurrency
	switch {
	case !o.settled() && sameCurrency && p.Captured == o.Total && p.Refunded == 0:
		if slices.ContainsFunc(refunds, func(f refund) bool { return f.State != refundFailed }) {
			return errOrderState(o, "Some of what was captured is being given back: refund the rest.")
		}
		t.setPaymentState(p.ID, paymentCaptured)
		return markPaid(t, o, p.Method, p.CapturedAt, actor)
	case !o.dead() && !o.settled() && sameCurrency && p.Captured == 0 && p.Authorized >= o.Total:
		t.setPaymentState(p.ID, paymentAuthorized)
		o.Capture = true
		o.dropClosing()
		o.Method = &p.Method
		if o.AuthorizedAt.IsZero() {
			o.AuthorizedAt = t.now
		}
		keepAccepted(t, o, actor)
		return nil
	}
	return errOrderState(o, fmt.Sprintf("Its payment is in review (%s), and what is authorised or captured "+
		"does not pay its total. Accept fewer units, or cancel the order and refund what was captured.",
		valueOr(p.Reason, "no reason")))
}

// dropClosing drops what was to happen once the order's attempt is closed.
func (o *order) dropClosing() { o.Closing, o.OutsideMethod, o.OutsideAt = nil, nil, stamp{} }

// sellerOf returns what a receipt says of an account at present.
func (q *queries) sellerOf(accountID string) (*seller, error) {
	a, err := q.account(accountID)
	if err != nil {
		return nil, err
	}
	of, err := q.settings(accountID)
	return &seller{valueOr(of.LegalName, a.Name), of.Address, of.VATNumber, of.Zone}, err
}

// orderAndPayment returns an order of an owner and the last attempt to pay it, nil if there is none.
// Errors: errOrder.
func orderAndPayment(t *tx, by owner, id string) (*order, *payment, error) {
	o, err := t.order(by, id)
	if err != nil || o.PaymentID == nil {
		return o, nil, err
	}
	p, err := t.payment(*o.PaymentID)
	return o, p, err
}

// captureOrder requests that the money of an accepted order of an owner be captured. A repeated request changes
// nothing. Errors: errOrder; order_state, also while its payment is in review.
func captureOrder(t *tx, by owner, id string) (*order, error) {
	o, p, err := orderAndPayment(t, by, id)
	switch {
	case err != nil:
		return nil, err
	case o.State != orderAccepted || p == nil:
		return nil, errOrderState(o, "Only an accepted one that is paid online can be captured.")
	case p.State == paymentReview:
		return nil, errOrderState(o, fmt.Sprintf("Its payment is in review (%s), so nothing is captured. Once that is "+
			"settled at the provider, accept it again, with fewer units if less is reserved; else cancel it.",
			valueOr(p.Reason, "no reason")))
	case o.Capture:
		return o, nil
	}
	o.Capture = true
	t.saveAndLook(o, *o.PaymentID)
	return o, nil
}

// endOrder writes that an order was cancelled or has expired, and schedules a look at its attempt, so that the
// money is released. What was charged already is given back.
func endOrder(t *tx, o *order, state string, told event) error {
	o.State, o.EndedAt, o.Capture, o.Refunded = state, t.now, false, 0 // what is given back pays for nothing
	o.dropClosing()
	t.saveOrder(o)
	if o.PaymentID != nil {
		p, err := t.payment(*o.PaymentID)
		if err == nil && o.charged() {
			err = releaseCharged(t, o, p, told.Actor)
		}
		if err != nil {
			return err
		}
		t.lookAt(p.ID)
	}
	t.addEvent(told)
	return nil
}

// rejectReasons are why a restaurant may refuse an order.
var rejectReasons = []string{"sold_out", "closed", "too_busy", "too_far", "address", "other"}

// A rejection is what a restaurant says when it refuses an order: one of rejectReasons, and a text for the guest, each
// nil for nothing.
type rejection struct{ reason, text *string }

// rejectOrder cancels an order of an owner that waits to be accepted, whose money is then released. Errors:
// errOrder, order_state.
func rejectOrder(t *tx, by owner, id string, why rejection, actor string) (*order, error) {
	o, err := t.order(by, id)
	if err != nil {
		return nil, err
	}
	if !o.waits() {
		return nil, errOrderState(o, "Only an authorized one, or an open one that is paid later, can be rejected.")
	}
	data := []string{"reason", "rejected"}
	if o.RejectReason, o.RejectText = why.reason, why.text; why.reason != nil {
		data = append(data, "reject_reason", *why.reason)
	}
	if why.text != nil { // which is personal, so it is to be erased, even if nothing else is known of the guest
		t.ensureCustomer(o)
	}
	return o, endOrder(t, o, orderCancelled, totalEvent(o, eventOrderCancelled, actor, data...))
}

// cancelOrder cancels an order of an owner that is not paid. The attempt to pay it is then closed, and money that
// is authorised is released. Errors: errOrder; order_state, also while its money is being captured.
func cancelOrder(t *tx, by owner, id, actor string) (*order, error) {
	o, p, err := orderAndPayment(t, by, id)
	if err != nil {
		return nil, err
	}
	switch {
	case o.settled() && valueOr(o.Method, "") != methodNone: // one whose total is 0 is paid, but has no money
		return nil, errOrderState(o, "Give its money back with a refund instead.")
	case o.dead():
		return nil, errOrderState(o, "It can't be cancelled any more.")
	case o.Capture && p != nil && p.live():
		return nil, errOrderState(o, "Its money is being captured: wait until it is paid, then refund it.")
	}
	return o, endOrder(t, o, orderCancelled, totalEvent(o, eventOrderCancelled, actor, "reason", "cancelled"))
}

// expireOrder expires an open order: at once, or if an attempt is live, once that is closed (closingExpired).
func expireOrder(t *tx, o *order) error {
	live, err := t.livePayment(o.ID)
	if err != nil {
		return err
	}
	if live == nil {
		reason := "not_paid"
		if o.Pay == payLater {
			reason = "not_accepted"
		}
		return endOrder(t, o, orderExpired, totalEvent(o, eventOrderExpired, actorTime, "reason", reason))
	}
	o.Closing = new(closingExpired)
	t.saveAndLook(o, live.ID)
	return nil
}

// expireOrders expires up to limit open orders whose time is over, and returns how many there were.
func expireOrders(t *tx, limit int64) (int64, error) {
	return eachOrder(t, t.overdueOrders, limit, expireOrder)
}

// releaseUnaccepted expires up to limit authorised orders that nobody has accepted in time, and returns how many
// there were. Their money is then released.
func releaseUnaccepted(t *tx, limit int64) (int64, error) {
	return eachOrder(t, t.unacceptedOrders, limit, func(t *tx, o *order) error {
		return endOrder(t, o, orderExpired, totalEvent(o, eventOrderExpired, actorTime, "reason", "not_accepted"))
	})
}

// eachOrder calls f with up to limit orders whose ids find returns, and returns how many there were. Errors: as
// eachDue.
func eachOrder(
	t *tx, find func(limit int64) ([]string, error), limit int64, f func(*tx, *order) error,
) (int64, error) {
	found, err := find(limit)
	if err != nil {
		return 0, err
	}
	return int64(len(found)), t.eachDue(found, func(id string) error {
		o, err := t.order(anyAccount, id)
		if err != nil {
			return err
		}
		return f(t, o)
	})
}

// settleOrder has the provider asked now about each attempt to pay an order of an owner, and returns how many
// attempts there are. Errors: errOrder.
func settleOrder(t *tx, by owner, id string) (attempts int, err error) {
	o, err := t.order(by, id)
	if err != nil {
		return 0, err
	}
	all, err := t.paymentsOf(o.ID)
	if err != nil {
		return 0, err
	}
	for i := range all {
		t.lookAt(all[i].ID)
	}
	return len(all), nil
}
