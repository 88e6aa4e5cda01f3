package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// orderModule makes the routes of orders.
func orderModule(s *server) module {
	return module{routes: []route{
		{pattern: "GET /orders", scope: scopeOrders, question: true, endpoint: owned(s, readOrderQuery, s.listOrders)},
		{pattern: "POST /orders", scope: scopeSelling, creates: true, body: maxOrderBody, values: maxOrderValues,
			refuses:  "reference_used order_limit_reached",
			endpoint: owned(s, readNewOrder, s.createOrder)},
		{pattern: "GET /refunds", scope: scopeOrders, question: true,
			endpoint: owned(s, readRefundQuery, s.listRefunds)},
		{pattern: "GET /orders/{id}", scope: scopeOrders, refuses: "order_not_found",
			endpoint: owned(s, readNoMembers, s.getOrder)},
		{pattern: "POST /orders/{id}/accept", scope: scopeSelling, noBody: true,
			refuses: "order_not_found order_state", endpoint: owned(s, readAcceptance, s.acceptOrder)},
		{pattern: "POST /orders/{id}/capture", scope: scopeSelling, noBody: true,
			refuses: "order_not_found order_state", endpoint: owned(s, readNoMembers, s.captureOrder)},
		{pattern: "POST /orders/{id}/reject", scope: scopeSelling, noBody: true,
			refuses: "order_not_found order_state", endpoint: owned(s, readRejection, s.rejectOrder)},
		{pattern: "POST /orders/{id}/cancel", scope: scopeSelling, noBody: true,
			refuses: "order_not_found order_state", endpoint: owned(s, readDryRun, s.cancelOrder)},
		{pattern: "POST /orders/{id}/refunds", scope: scopeSelling, noBody: true, creates: true,
			refuses:  "order_not_found order_state refund_too_large refund_repeated refund_limit_reached",
			endpoint: owned(s, readRefund, s.refundOrder)},
		{pattern: "POST /orders/{id}/paid", scope: scopeSelling, refuses: "order_not_found order_state",
			endpoint: owned(s, readPaidOutside, s.markOrderPaid)},
		{pattern: "DELETE /orders/{id}/paid", scope: scopeSelling,
			refuses:  "order_not_found order_state order_limit_reached",
			endpoint: owned(s, readNoMembers, s.undoOrderPaid)},
	}}
}

// The limits of the body of a new order: up to 200 lines need more than other bodies are allowed.
const (
	maxOrderBody   = 64 << 10 // bytes
	maxOrderValues = 1500     // of JSON
)

// viewOrder returns an order as callers see it, with its guest and its last attempt.
func viewOrder(q *queries, o *order) (*order, error) {
	views, left, err := listedOrders(q, []*order{new(*o)})
	switch {
	case err != nil:
		return nil, err
	case left != nil:
		return nil, left
	}
	return views[0], nil
}

// listedOrders makes the orders of a list what callers see of them, with their guests and last attempts. The guests of
// all orders take one query, and so do the attempts. It leaves out orders whose attempt can't be read; left is one
// of those attempts, or nil.
func listedOrders(q *queries, rows []*order) (views []*order, left *unreadableRow, err error) {
	ids, paymentIDs := []string{}, []string{}
	for _, o := range rows {
		if ids = append(ids, o.ID); o.PaymentID != nil {
			paymentIDs = append(paymentIDs, *o.PaymentID)
		}
	}
	guests, err := q.guestsOf(ids)
	if err != nil {
		return nil, nil, err
	}
	byOrder := map[string]*guest{}
	for i := range guests {
		byOrder[guests[i].orderID] = &guests[i].guest
	}
	attempts, unreadable, err := q.paymentsByID(paymentIDs)
	if err != nil {
		return nil, nil, err
	}
	payments := map[string]*payment{}
	for i := range attempts {
		payments[attempts[i].ID] = &attempts[i]
	}
	for _, o := range rows {
		if bad := unreadable[valueOr(o.PaymentID, "")]; bad != nil {
			left = bad
			continue
		}
		o.setGuest(byOrder[o.ID])
		o.Payment = payments[valueOr(o.PaymentID, "")]
		if o.setViews(); o.wantedErased() {
			if err := o.hideWantedTime(q); err != nil {
				return nil, nil, err
			}
		}
		views = append(views, o)
	}
	return views, left, nil
}

// setViews sets what callers see of the lines, the delivery and the VAT.
func (o *order) setViews() {
	o.VAT, o.LineViews = append([]vatSum{}, o.VAT...), []lineView{}
	if o.Delivery > 0 {
		o.DeliveryView = &deliveryView{o.Delivery, o.DeliveryRate}
	}
	for _, l := range o.Lines {
		o.LineViews = append(o.LineViews, lineView{l.Name, l.Quantity, l.UnitAmount, l.VATRate, nilIfEmpty(l.Group),
			l.part(l.Accepted), l.Accepted, l.Refunded})
	}
}

// An orderHistory is an order with all that was done to pay it and to give its money back, the oldest first.
type orderHistory struct {
	order
	Refunds  []refund  `json:"refunds"`  // Its refunds.
	Payments []payment `json:"payments"` // The attempts to pay it.
	Disputes []dispute `json:"disputes"` // Disputes of its payments.
}

// historyOf returns an order with its refunds, attempts and disputes, the oldest of each first.
func historyOf(q *queries, o *order) (*orderHistory, error) {
	view, err := viewOrder(q, o)
	if err != nil {
		return nil, err
	}
	refunds, err := q.refundsOf(o.ID)
	if err != nil {
		return nil, err
	}
	attempts, err := q.paymentsOf(o.ID)
	if err != nil {
		return nil, err
	}
	disputes, err := q.disputesOf(o.ID)
	h := &orderHistory{*view, []refund{}, append([]payment{}, attempts...), append([]dispute{}, disputes...)}
	for _, f := range refunds {
		h.Refunds = append(h.Refunds, viewRefund(f))
	}
	return h, err
}

// A newOrder is what a guest orders. The prices are the caller's.
type newOrder struct {
	order order
	guest guest
	lives time.Duration
}

func readNewOrder(in *input) (r *newOrder) {
	r = new(newOrder)
	o := &r.order
	o.Currency = in.text("currency", required, 3, checkCurrency) // The currency of all amounts.
	for _, l := range in.objects("lines", maxOrderLines) {       // What is ordered.
		o.Lines = append(o.Lines, readOrderLine(l))
	}
	o.Discount = in.amount("discount", optional, 0, maxAmount) // Off lines and delivery; at most what they cost.
	if in.has("delivery") {
		delivery := in.object("delivery", optional)                    // What bringing it costs.
		o.Delivery = delivery.amount("amount", required, 0, maxAmount) // VAT included.
		// In hundredths of a percent: 810 is 8.1 %.
		o.DeliveryRate = delivery.vatRate("vat_rate")
	}
	o.Tip = in.amount("tip", optional, 0, maxAmount) // A tip, without VAT.
	// The caller's own number for it, unique for the account.
	o.Reference = nilIfEmpty(in.text("reference", optional, maxOrderText, nil))
	r.guest, o.WantedAt = readGuest(in)
	readReturn(in, o)
	// When the guest pays: `online`, which it is if it is left out, before it is accepted; `later` at the restaurant
	// or at the door, once it was accepted.
	o.Pay = orderPay(in.text("pay", optional, maxNameLength, checkPay))
	if in.has("expires_in") && o.Pay == payLater {
		in.wrong("expires_in", "conflict", "An order that is paid later is open until it is to be accepted.")
	}
	r.lives = minOrderLife
	// For how many seconds it can be paid: half an hour, which is the default, to a day. Not with `pay` `later`.
	if n := in.number("expires_in", int(minOrderLife.Seconds()), int(maxOrderLife.Seconds())); n != nil {
		r.lives = time.Duration(*n) * time.Second
	}
	return r
}

func readOrderLine(in *input) orderLine {
	return orderLine{
		Name:       in.text("name", required, maxOrderText, nil),     // What it is.
		Quantity:   in.amount("quantity", required, 1, maxQuantity),  // How many units.
		UnitAmount: in.amount("unit_amount", required, 0, maxAmount), // What a unit costs, VAT included.
		VATRate:    in.vatRate("vat_rate"),                           // In hundredths of a percent: 810 is 8.1 %.
		Group:      in.text("group", optional, maxOrderText, nil),    // What it belongs to in the books, as `food`.
	}
}

// readReturn reads where a guest goes on from the page of an order.
func readReturn(in *input, o *order) {
	// Where the guest goes afterwards: a page on one of the account's origins.
	o.ReturnURL = in.text("return_url", required, maxOrderReturnURL, checkReturnURL)
	// Where the guest goes while nothing is paid or reserved, instead of to `return_url`: a page on one of the
	// account's origins. An order that has it gets `order`, its id, and `state`, as it is at that moment, in the
	// query of both, in place of parameters of these names and before a fragment. `open` may also mean that the
	// provider has not said yet. Anybody can write such an address: read the order before relying on it.
	o.CancelURL = nilIfEmpty(in.text("cancel_url", optional, maxOrderReturnURL, checkReturnURL))
}

// readGuest reads what the body of a new order says of its guest, and when it is wanted.
func readGuest(in *input) (who guest, wantedAt stamp) {
	if in.has("customer") {
		// Who orders: erased 30 days after the order's end, and in no event.
		customer := in.object("customer", optional)
		who.Name = nilIfEmpty(customer.text("name", optional, maxOrderText, nil))   // The name.
		who.Phone = nilIfEmpty(customer.text("phone", optional, maxOrderText, nil)) // The telephone number.
		// What the guest asks for; line breaks are allowed.
		who.Note = nilIfEmpty(customer.lines("note", maxOrderNote))
	}
	if in.has("fulfilment") {
		f := in.object("fulfilment", optional) // How the guest gets it. It is erased as `customer` is.
		who.Fulfilment = readFulfilment(f)
		// When the guest wants it: not in the past, and at most 60 days ahead. Without it, as soon as possible.
		wantedAt = f.timestamp("wanted_at", optional)
	}
	// The language of the guest, for what they read: `de`, or with a country `de-CH` (BCP 47). It is one of those of
	// the page where orders are paid, and is erased as `customer` is.
	who.Language = nilIfEmpty(languageTag(in.text("language", optional, maxNameLength, checkLanguage)))
	return who, wantedAt
}

// readFulfilment reads how a guest gets an order. Only a delivery has an address, and only an order for a table has
// that.
func readFulfilment(in *input) *fulfilment {
	// How the guest gets it: a `delivery` has an `address`, what is for a `table` has a `table`; a `pickup` has
	// neither.
	f := &fulfilment{Type: fulfilmentType(in.text("type", required, maxNameLength, checkFulfilment))}
	only := func(member string, kind fulfilmentType) {
		switch given := in.has(member); {
		case f.Type == kind && !given:
			in.wrong(member, "required", "This member is required.")
		case f.Type != kind && f.Type != "" && given:
			in.wrong(member, "not_of_this_type", "Only an order of the type "+string(kind)+" has this.")
		}
	}
	only("address", fulfilDelivery)
	only("table", fulfilTable)
	if in.has("address") {
		a := in.object("address", optional) // Where it is brought.
		f.Address = &guestAddress{
			Line1:      a.text("line1", required, maxOrderText, nil),             // Street and number.
			Line2:      nilIfEmpty(a.text("line2", optional, maxOrderText, nil)), // How to find the door.
			PostalCode: a.text("postal_code", required, maxPostalCode, nil),      // The postal code.
			City:       a.text("city", required, maxCity, nil),                   // The place.
			Country:    a.text("country", required, maxNameLength, checkCountry), // ISO 3166-1: `CH`.
		}
	}
	if in.has("table") {
		// The name of the table that it is brought to.
		f.Table = nilIfEmpty(in.text("table", required, maxTableName, nil))
	}
	return f
}

// checkReturnURL is a textCheck for where a guest goes on from the page of an order.
var checkReturnURL = &textCheck{format: "uri", of: func(s string) (code, detail string) {
	if _, ok := originOf(s); !ok {
		return "invalid_url", "This must be the address of a page, such as https://www.example.com/thanks."
	}
	return "", ""
}}

// A createdOrder is an order, with the address where it is paid.
type createdOrder struct {
	order

	// Where the guest pays. It is shown this once, or null: the order is paid later.
	PayURL *string `json:"pay_url" is:"uri"`
}

// hideGuest removes the guest and the payment from an order that is answered to a token that can't read orders.
func hideGuest(q *queries, c *call, v *order) error {
	if c.caller.has(scopeOrders) {
		return nil
	}
	v.setGuest(nil)
	v.RejectText, v.Payment = nil, nil
	return v.hideWantedTime(q)
}

// guestErased reports whether nothing is known of the guest of an order, given the answer to the call that made it.
func guestErased(t *tx, answer []byte) (bool, error) {
	var made struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(answer, &made); err != nil {
		return false, fmt.Errorf("decode a stored answer: %w", err)
	}
	guests, err := t.guestsOf([]string{made.ID})
	return len(guests) == 0 || guests[0].guest == (guest{}), err // an empty one stands for the text of a refusal
}

// hideGuestOfReplay removes the guest and the payment of an order from a stored answer that is replayed. The call that
// it answered may have had a token that can read orders, and the guest may have been erased since.
func hideGuestOfReplay(q *queries, answer *reply) error {
	var members map[string]json.RawMessage
	var o order
	if err := errors.Join(json.Unmarshal(answer.body, &members), json.Unmarshal(answer.body, &o)); err != nil {
		return fmt.Errorf("decode a stored answer: %w", err)
	}
	if err := o.hideWantedTime(q); err != nil {
		return err
	}
	for _, name := range []string{"customer", "fulfilment", "language", "payment", "accept_by", "ready_at"} {
		members[name] = json.RawMessage("null")
	}
	members["expires_at"] = encodeJSON(o.ExpiresAt)
	answer.body = encodeJSON(members)
	return nil
}

// referenceTaken removes from the refusal of a used reference which order has it, if the caller is an application that
// can't read orders: it may have guessed the reference.
func referenceTaken(c *call, err error) error {
	var ref *refusal
	if errors.As(err, &ref) && ref.code == codeReferenceUsed && c.caller.app != "" && !c.caller.has(scopeOrders) {
		return &refusal{code: codeReferenceUsed, detail: ref.detail}
	}
	return err
}

// Make an order.
//
// The guest pays it at `pay_url`. With `pay` `later` the guest pays at the restaurant or at the door instead: the
// order has no `pay_url`, is `open` until it is accepted, and expires if that does not happen until `accept_by`,
// which is as long as the account's `accept_within` says, and for an order that is wanted later 2 hours before that.
// Such an order, once accepted, counts as open until it is marked as paid. The caller knows the prices: they include
// VAT, and are whole numbers in the minor unit of the currency, so that 1250 is 12.50. A discount is spread over
// lines and delivery in proportion, never over the tip. VAT is rounded half up, once for each rate. An order whose
// total is 0 is `paid` at once. An account has at most 10,000 open orders. By a method that charges at once
// (`twint`), the order is `authorized` and its attempt `captured`; what is not accepted of it is given back right
// after. What is decided about the order afterwards is answered at once; money moves right after, and the event
// `order.paid` tells when it has.
func (s *server) createOrder(ctx context.Context, c *call, of owner, r *newOrder) (*createdOrder, error) {
	by := c.narrowToOne(of) // an order belongs to one account: the caller's own unless the body names one
	replayed, erased := replaysOf(by, anyReplay), false
	c.stillTrue = func(t *tx, answer []byte) (ok bool, err error) {
		if ok, err = replayed(t, answer); err == nil {
			erased, err = guestErased(t, answer)
		}
		return ok, err
	}
	made, err := create(ctx, s, c, func(t *tx) (*createdOrder, error) {
		t.dropsNothing()
		o := r.order
		o.Lines = slices.Clone(o.Lines)
		o.AccountID = by.account
		k, err := createOrder(t, &o, r.guest, r.lives, actorToken(c))
		if err != nil {
			return nil, err
		}
		view, err := viewOrder(t.queries, &o)
		if err != nil {
			return nil, err
		}
		if o.Pay == payLater {
			return &createdOrder{*view, nil}, nil
		}
		bases, err := t.baseURLs()
		if err != nil {
			return nil, err
		}
		return &createdOrder{*view, new(payURL(bases[0].URL, o.ID, k))}, nil
	})
	if err != nil {
		return nil, referenceTaken(c, err)
	}
	if c.replay != nil {
		if erased || !c.caller.has(scopeOrders) {
			err = hideGuestOfReplay(s.store.queries, c.replay)
		}
		return nil, err
	}
	return made, hideGuest(s.store.queries, c, &made.order)
}

// A dayRange narrows a list to what was made on business days of an account; a zero end is open.
type dayRange struct{ from, to time.Time }

// dayRange reads ?from= and ?to=.
func (in *input) dayRange() dayRange {
	var r dayRange
	r.from = in.date("from") // Only what was made on this business day of the account or later.
	r.to = in.date("to")     // Only what was made on this business day of the account or earlier.
	if !r.to.IsZero() && r.to.Before(r.from) {
		in.wrongParameter("to", "out_of_range", "The range ends before it begins.")
	}
	return r
}

// ids returns the ids with a prefix that were made on the days of an account.
func (r dayRange) ids(q *queries, prefix, accountID string) (ids idRange, err error) {
	if r == (dayRange{}) {
		return ids, nil
	}
	c, err := q.businessCalendar(accountID)
	if err != nil {
		return ids, err
	}
	if !r.from.IsZero() {
		ids.from = firstID(prefix, later(c.startOf(r.from.Format(time.DateOnly)), time.Unix(0, 0)))
	}
	if !r.to.IsZero() {
		ids.before = firstID(prefix, later(c.endOf(r.to.Format(time.DateOnly)), time.Unix(0, 0)))
	}
	return ids, nil
}

// An orderQuery asks for a page of orders.
type orderQuery struct {
	filter orderFilter // without owner and ids
	days   dayRange
	page   pageQuery
}

func readOrderQuery(in *input) *orderQuery {
	return &orderQuery{orderFilter{
		state:     in.parameter("state", oneOf(orderStates...)),    // Only orders in this state.
		reference: in.parameter("reference", isText(maxOrderText)), // Only the order with this reference.
		method:    in.parameter("method", oneOf(orderMethods...)),  // Only orders that are paid in this way.
		// Only orders of the last 7 days with this reference, in any case, or whose id ends so, in 4 or more
		// symbols: what a guest says at the counter.
		search: in.parameter("q", isText(maxOrderText)),
	}, in.dayRange(), in.page("ord")}
}

// List orders.
//
// They come newest first. Business days are those of revenue; without `account_id`, an operator's token names days of
// its own account. A request has two seconds, waiting included, and a page reads at most 10,000 rows.
func (s *server) listOrders(ctx context.Context, c *call, of owner, r *orderQuery) (_ *list[*order], err error) {
	filter, from := r.filter, s.store.within(ctx)
	filter.owner = of
	if filter.ids, err = r.days.ids(from, "ord", c.narrowToOne(of).account); err != nil {
		return nil, err
	}
	if filter.search != "" {
		filter.ids.from = max(filter.ids.from, firstID("ord", c.now.Add(-recentIDs)))
	}
	found, err := from.orders(filter, r.page.before, r.page.limit)
	if err != nil {
		return nil, err
	}
	views, _, err := listedOrders(from, found.rows)
	return showRows(listPage[*order]{views, found.next}, err)
}

// A refundQuery asks for a page of refunds.
type refundQuery struct {
	state string
	days  dayRange
	page  pageQuery
}

func readRefundQuery(in *input) (r *refundQuery) {
	r = new(refundQuery)
	r.state = in.parameter("state", oneOf(refundStates...)) // Only refunds in this state.
	r.days, r.page = in.dayRange(), in.page("ref")
	return r
}

// List refunds.
//
// Those of an account's orders, newest first. Business days as of `GET /orders`, of when the refund was made. A
// request has two seconds, waiting included, and a page reads at most 10,000 rows.
func (s *server) listRefunds(ctx context.Context, c *call, of owner, r *refundQuery) (*list[*listedRefund], error) {
	from := s.store.within(ctx)
	ids, err := r.days.ids(from, "ref", c.narrowToOne(of).account)
	if err != nil {
		return nil, err
	}
	filter := refundFilter{owner: of, ids: ids, state: r.state}
	return showRows(from.refunds(filter, r.page.before, r.page.limit))
}

// Show an order.
//
// With the attempts to pay it, its refunds and disputes. Another account's is not found.
func (s *server) getOrder(_ context.Context, c *call, of owner, _ noMembers) (*orderHistory, error) {
	o, err := s.store.order(of, c.id())
	if err != nil {
		return nil, err
	}
	return historyOf(s.store.queries, o)
}

// decide runs f in a transaction, and answers with what became of the order that it returns.
func (s *server) decide(ctx context.Context, c *call, f func(t *tx) (*order, error)) (*order, error) {
	return enact(ctx, s, c, func(t *tx) (*order, error) {
		t.dropsNothing()
		o, err := f(t)
		if err != nil {
			return nil, err
		}
		view, err := viewOrder(t.queries, o)
		if err == nil {
			err = hideGuest(t.queries, c, view)
			view.DryRun = c.in.dry
		}
		return view, err
	})
}

// An acceptance is what is accepted of an order.
type acceptance struct {
	lines   []linePart
	readyAt stamp
}

func readAcceptance(in *input) (r *acceptance) {
	r = new(acceptance)
	if in.has("lines") {
		// The lines of which fewer units are accepted, none twice.
		for _, l := range in.objects("lines", maxOrderLines) {
			r.lines = append(r.lines, linePart{
				Line:     int(l.amount("line", required, 0, maxOrderLines-1)), // The index of the line, from 0.
				Quantity: l.amount("quantity", required, 0, maxQuantity),      // How many units are accepted; 0: none.
			})
		}
	}
	// When it is ready, up to 60 days ahead: the guest reads it, and `order.accepted` has it.
	r.readyAt = in.timestamp("ready_at", optional)
	return r
}

// Accept an order.
//
// It is `authorized`, or `open` and paid later. With `lines`, lower quantities accept a part: the total shrinks, and
// the rest of the authorisation is released, or given back if it was charged already; lines that are not named stay.
// What a line costs for n of its q units is its amount times n/q, rounded half up; delivery and tip stay. Where the
// account's `capture_on` is `accept`, a card is charged right after, and so it is if its reservation would end
// before the order is wanted; an order that was charged already is `paid`. An order whose payment is in `review`
// leaves it: if its total was captured, it is `paid` after all; if at least its total is authorised, it is accepted
// and captured.
func (s *server) acceptOrder(ctx context.Context, c *call, of owner, r *acceptance) (*order, error) {
	return s.decide(ctx, c, func(t *tx) (*order, error) {
		return acceptOrder(t, of, c.id(), r.lines, r.readyAt, actorToken(c))
	})
}

// Capture an order's money.
//
// It is that of an `accepted` order, when the goods are handed over. Asked for again it changes nothing. While its
// payment is in `review` it is 409 `order_state`: nothing would be captured.
func (s *server) captureOrder(ctx context.Context, c *call, of owner, _ noMembers) (*order, error) {
	return s.decide(ctx, c, func(t *tx) (*order, error) { return captureOrder(t, of, c.id()) })
}

func readRejection(in *input) (r *orderRejection) {
	r = new(orderRejection)
	in.dryRun()
	if in.has("reason") {
		// Why, for the guest in their language. `too_far` and `address` are about where it is to be brought.
		word := in.text("reason", required, maxNameLength, oneOf(rejectReasons...))
		r.reason = (*orderRejectReason)(nilIfEmpty(word))
	}
	// More for the guest, on one line. It is erased as `customer` is, and in no event.
	r.text = nilIfEmpty(in.text("text", optional, maxOrderText, nil))
	return r
}

// Reject an order.
//
// It is `authorized`, or `open` and paid later, and becomes `cancelled`; its money is released right after, or given
// back if it was charged already. The guest reads `reason` in their language, and `text` as it is.
func (s *server) rejectOrder(ctx context.Context, c *call, of owner, r *orderRejection) (*order, error) {
	return s.decide(ctx, c, func(t *tx) (*order, error) { return rejectOrder(t, of, c.id(), *r, actorToken(c)) })
}

// Cancel an order.
//
// It is `open` or `authorized`, or `accepted` and not being captured. The attempt to pay it is closed, and authorised
// money released, right after. What is paid is given back with a refund instead; an order whose total is 0 can be
// cancelled all the same.
func (s *server) cancelOrder(ctx context.Context, c *call, of owner, _ noMembers) (*order, error) {
	return s.decide(ctx, c, func(t *tx) (*order, error) { return cancelOrder(t, of, c.id(), actorToken(c)) })
}

func readRefund(in *input) (r *newRefund) {
	r = new(newRefund)
	in.dryRun()
	if in.has("lines") {
		for _, l := range in.objects("lines", maxOrderLines) { // The lines, none twice.
			r.lines = append(r.lines, readRefundLine(l))
		}
	}
	// How much of all, in proportion to what is left; not beside parts.
	if n := in.number("amount", 1, maxAmount); n != nil {
		r.amount = new(int64(*n))
	}
	r.delivery = in.amount("delivery", optional, 1, maxAmount) // How much of the delivery.
	r.tip = in.amount("tip", optional, 1, maxAmount)           // How much of the tip.
	for _, part := range []string{"lines", "delivery", "tip"} {
		if in.has(part) && in.has("amount") {
			in.wrong(part, "conflict", "Give back parts of the order or an amount, not both.")
		}
	}
	// The attempt whose money goes back, where it is in `review` because it pays nothing; by default the last one.
	r.paymentID = in.text("payment_id", optional, maxNameLength, isID("pay"))
	r.reason = in.text("reason", optional, maxOrderText, nil) // Why, for the guest, whose receipt shows it.
	return r
}

// readRefundLine reads units or an amount of a line.
func readRefundLine(in *input) linePart {
	part := linePart{Line: int(in.amount("line", required, 0, maxOrderLines-1))} // The index of the line, from 0.
	units := required
	if in.has("amount") {
		units = optional
		part.Amount = in.amount("amount", required, 1, maxAmount) // How much of the line, instead of `quantity`.
	}
	// How many units; required without `amount`. They cost what they do together with those given back before, as
	// far as amounts have left that.
	part.Quantity = in.amount("quantity", units, 1, maxQuantity)
	if units == optional && in.has("quantity") {
		in.wrong("amount", "conflict", "Give back units or an amount of a line, not both.")
	}
	return part
}

// A refundAnswer is a refund that was made; in a dry run one that would be made.
type refundAnswer struct {
	ID *string `json:"id" is:"ref"` // The id of the refund, or null: it is a dry run.
	refund
	Currency string         `json:"currency"` // The currency of its amounts.
	Method   *paymentMethod `json:"method"`   // How the money was paid, or null: outside.
	dryAnswer
}

// Refund an order.
//
// Money of a paid order is given back: parts of it (units or an amount of `lines`, of the `delivery`, of the `tip`),
// an `amount` of all, or with neither all that is left. What was asked for less than 10 seconds ago is refused
// without an `Idempotency-Key`. The VAT and the tip in it are kept with the refund, so that all refunds together
// give back exactly the order's. At a provider the refund is `pending` until the event `order.refunded` or
// `order.refund_failed`; of an order that was paid outside it is `succeeded` at once. Of money that was captured but
// pays nothing, as the order is dead or was paid otherwise, an amount can be given back while its payment is in
// `review`; `payment_id` names the payment if it is not the last one. What was charged by TWINT can be given back
// for 180 days. An order has at most 100 refunds.
func (s *server) refundOrder(ctx context.Context, c *call, of owner, r *newRefund) (*refundAnswer, error) {
	c.stillTrue = func(t *tx, answer []byte) (bool, error) { // the answer names its order, but not its account
		var made refund
		if err := json.Unmarshal(answer, &made); err != nil {
			return false, fmt.Errorf("decode a stored answer: %w", err)
		}
		_, err := t.order(of, made.OrderID)
		return err == nil, err
	}
	return create(ctx, s, c, func(t *tx) (*refundAnswer, error) {
		t.dropsNothing()
		w := *r
		w.once = !c.hasIdempotencyKey() && !c.forced
		o, f, err := refundOrder(t, of, c.id(), w, actorToken(c))
		if err != nil {
			return nil, err
		}
		made := &refundAnswer{ID: &f.ID, refund: viewRefund(*f), Currency: o.Currency, dryAnswer: dryAnswer{c.in.dry}}
		if c.in.dry {
			made.ID = nil
		}
		if f.PaymentID != nil {
			p, err := t.payment(*f.PaymentID)
			if err != nil {
				return nil, err
			}
			made.Method = &p.Method
		}
		return made, nil
	})
}

// An outsidePayment is how an order was paid without a provider.
type outsidePayment struct {
	method orderMethod
	at     stamp
}

func readPaidOutside(in *input) (r *outsidePayment) {
	r = new(outsidePayment)
	r.method = orderMethod(in.text("method", required, maxNameLength, oneOf(outsideMethods...))) // How.
	// When; by default now. Not in the future, nor before the order was made.
	r.at = in.timestamp("paid_at", optional)
	return r
}

// Mark an order as paid outside.
//
// Without a provider, that is: an order that is `open`, or `accepted` and paid later, or that expired unpaid within 24
// hours. While a guest can still pay it online, that is closed first: until then `closing` is `paid`; if the money was
// authorised meanwhile, the order is `authorized` instead.
func (s *server) markOrderPaid(ctx context.Context, c *call, of owner, r *outsidePayment) (*order, error) {
	return s.decide(ctx, c, func(t *tx) (*order, error) {
		return payOutside(t, of, c.id(), r.method, r.at, actorToken(c))
	})
}

// Undo that an order was paid outside.
//
// It is possible within 24 hours of marking it and before anything of it was refunded: the order has the state again
// that it had, if that is `open` for 30 minutes or more. One that waits to be marked as paid does not any more.
func (s *server) undoOrderPaid(ctx context.Context, c *call, of owner, _ noMembers) (*order, error) {
	return s.decide(ctx, c, func(t *tx) (*order, error) { return undoPaid(t, of, c.id(), actorToken(c)) })
}
