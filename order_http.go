package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An orderAPI serves the endpoints of orders.
type orderAPI struct{ *server }

// orderWing makes the routes of orders.
func orderWing(s *server) wing {
	a := &orderAPI{s}
	routes := []route{
		{pattern: "GET /orders", scope: scopeOrders, question: true, run: a.listOrders},
		{pattern: "POST /orders", creates: true, body: maxOrderBody, values: maxOrderValues,
			run: a.createOrder},
		{pattern: "GET /refunds", scope: scopeOrders, question: true, run: a.listRefunds},
		{pattern: "GET /orders/{id}", scope: scopeOrders, run: a.showOrder},
		{pattern: "POST /orders/{id}/accept", noBody: true, run: a.acceptOrder},
		{pattern: "POST /orders/{id}/capture", noBody: true, run: a.captureOrder},
		{pattern: "POST /orders/{id}/reject", noBody: true, run: a.rejectOrder},
		{pattern: "POST /orders/{id}/cancel", noBody: true, run: a.cancelOrder},
		{pattern: "POST /orders/{id}/refunds", noBody: true, creates: true, run: a.refundOrder},
		{pattern: "POST /orders/{id}/paid", run: a.markPaid},
		{pattern: "DELETE /orders/{id}/paid", run: a.undoPaid},
	}
	for i := range routes {
		routes[i].token = tokenRequired
		if routes[i].scope == "" {
			routes[i].scope, routes[i].careful = scopeSelling, true
		}
	}
	return wing{routes: routes}
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
			if err := o.hideWanted(q); err != nil {
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

// An orderHistory is an order with all that was done to pay it and to give its money back.
type orderHistory struct {
	order
	Refunds  []refund  `json:"refunds"`
	Payments []payment `json:"payments"`
	Disputes []dispute `json:"disputes"`
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

// A newOrder is the body of POST /orders.
type newOrder struct {
	order order
	guest guest
	lives time.Duration
}

func readNewOrder(in *input) (q newOrder) {
	o := &q.order
	o.Currency = in.text("currency", required, 3, checkCurrency)
	for _, l := range in.objects("lines", maxOrderLines) {
		o.Lines = append(o.Lines, orderLine{
			Name:       l.text("name", required, maxOrderText, anyText),
			Quantity:   l.amount("quantity", required, 1, maxQuantity),
			UnitAmount: l.amount("unit_amount", required, 0, maxAmount),
			VATRate:    l.amount("vat_rate", required, 0, maxVATRate),
			Group:      l.text("group", optional, maxOrderText, anyText),
		})
	}
	o.Discount = in.amount("discount", optional, 0, maxAmount)
	if in.has("delivery") {
		delivery := in.object("delivery", optional)
		o.Delivery = delivery.amount("amount", required, 0, maxAmount)
		o.DeliveryRate = delivery.amount("vat_rate", required, 0, maxVATRate)
	}
	o.Tip = in.amount("tip", optional, 0, maxAmount)
	o.Reference = nilIfEmpty(in.text("reference", optional, maxOrderText, anyText))
	q.guest, o.WantedAt = readGuest(in)
	o.ReturnURL = in.text("return_url", required, maxOrderReturnURL, checkReturnURL)
	o.CancelURL = nilIfEmpty(in.text("cancel_url", optional, maxOrderReturnURL, checkReturnURL))
	o.Pay = in.text("pay", optional, maxNameLength, oneOf(payOnline, payLater))
	if in.has("expires_in") && o.Pay == payLater {
		in.wrong("expires_in", "conflict", "An order that is paid later is open until it is to be accepted.")
	}
	q.lives = minOrderLife
	if n := in.number("expires_in", int(minOrderLife.Seconds()), int(maxOrderLife.Seconds())); n != nil {
		q.lives = time.Duration(*n) * time.Second
	}
	return q
}

// readGuest reads what the body of a new order says of its guest, and when it is wanted.
func readGuest(in *input) (who guest, wantedAt stamp) {
	if in.has("customer") {
		customer := in.object("customer", optional)
		who.Name = nilIfEmpty(customer.text("name", optional, maxOrderText, anyText))
		who.Phone = nilIfEmpty(customer.text("phone", optional, maxOrderText, anyText))
		who.Note = nilIfEmpty(customer.lines("note", maxOrderNote))
	}
	if in.has("fulfilment") {
		f := in.object("fulfilment", optional)
		who.Fulfilment, wantedAt = readFulfilment(f), f.timestamp("wanted_at")
	}
	who.Language = nilIfEmpty(languageTag(in.text("language", optional, maxNameLength, checkLanguage)))
	return who, wantedAt
}

// readFulfilment reads how a guest gets an order. Only a delivery has an address, and only an order for a table has
// that.
func readFulfilment(in *input) *fulfilment {
	f := &fulfilment{Type: in.text("type", required, maxNameLength, oneOf(fulfilDelivery, fulfilPickup, fulfilTable))}
	only := func(member, kind string) {
		switch given := in.has(member); {
		case f.Type == kind && !given:
			in.wrong(member, "required", "This member is required.")
		case f.Type != kind && f.Type != "" && given:
			in.wrong(member, "not_of_this_type", "Only an order of the type "+kind+" has this.")
		}
	}
	only("address", fulfilDelivery)
	only("table", fulfilTable)
	if in.has("address") {
		a := in.object("address", optional)
		f.Address = &guestAddress{
			Line1:      a.text("line1", required, maxOrderText, anyText),
			Line2:      nilIfEmpty(a.text("line2", optional, maxOrderText, anyText)),
			PostalCode: a.text("postal_code", required, maxPostalCode, anyText),
			City:       a.text("city", required, maxCity, anyText),
			Country:    a.text("country", required, maxNameLength, checkCountry),
		}
	}
	if in.has("table") {
		f.Table = nilIfEmpty(in.text("table", required, maxTableName, anyText))
	}
	return f
}

// checkReturnURL is a textCheck for where a guest goes on from the page of an order.
var checkReturnURL = textCheck{format: "uri", of: func(s string) (code, detail string) {
	if _, ok := originOf(s); !ok {
		return "invalid_url", "This must be the address of a page, such as https://www.example.com/thanks."
	}
	return "", ""
}}

// A createdOrder is a new order, with the address where it is paid, which no other endpoint returns; nil: it is paid
// later.
type createdOrder struct {
	order
	PayURL *string `json:"pay_url"`
}

// hideGuest removes the guest and the payment from an order that is answered to a token that can't read orders.
func hideGuest(q *queries, c *call, v *order) error {
	if c.caller.has(scopeOrders) {
		return nil
	}
	v.setGuest(nil)
	v.RejectText, v.Payment = nil, nil
	return v.hideWanted(q)
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
	if err := o.hideWanted(q); err != nil {
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

func (a *orderAPI) createOrder(ctx context.Context, c *call) (any, error) {
	q := readNewOrder(c.in)
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	by := c.oneOwner(of) // an order belongs to one account: the caller's own unless the body names one
	owned, erased := replaysOf(by, anyReplay), false
	c.stillTrue = func(t *tx, answer []byte) (ok bool, err error) {
		if ok, err = owned(t, answer); err == nil {
			erased, err = guestErased(t, answer)
		}
		return ok, err
	}
	made, err := create(ctx, a.server, c, func(t *tx) (*createdOrder, error) {
		t.quiet()
		o := q.order
		o.Lines = slices.Clone(o.Lines)
		o.AccountID = by.account
		k, err := createOrder(t, &o, q.guest, q.lives, actorToken(c))
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
			err = hideGuestOfReplay(a.store.queries, c.replay)
		}
		return nil, err
	}
	return made, hideGuest(a.store.queries, c, &made.order)
}

// A dayRange narrows a list to what was made on business days of an account; a zero end is open.
type dayRange struct{ from, to time.Time }

// dayRange reads ?from= and ?to=.
func (in *input) dayRange() dayRange {
	r := dayRange{in.date("from"), in.date("to")}
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

func (a *orderAPI) listOrders(ctx context.Context, c *call) (any, error) {
	filter := orderFilter{state: c.in.parameter("state", oneOf(orderStates...)),
		reference: c.in.parameter("reference", isText(maxOrderText)),
		method:    c.in.parameter("method", oneOf(orderMethods...)),
		search:    c.in.parameter("q", isText(maxOrderText))}
	days, page := c.in.dayRange(), c.in.page("ord")
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	filter.owner = of
	from := a.store.within(ctx)
	if filter.ids, err = days.ids(from, "ord", c.oneOwner(of).account); err != nil {
		return nil, err
	}
	if filter.search != "" {
		filter.ids.from = max(filter.ids.from, firstID("ord", c.now.Add(-recentIDs)))
	}
	found, err := from.orders(filter, page.before, page.limit)
	if err != nil {
		return nil, err
	}
	views, _, err := listedOrders(from, found.rows)
	return showRows(listPage[*order]{views, found.next}, err)
}

func (a *orderAPI) listRefunds(ctx context.Context, c *call) (any, error) {
	filter := refundFilter{state: c.in.parameter("state", oneOf(refundPending, refundSucceeded, refundFailed))}
	days, page := c.in.dayRange(), c.in.page("ref")
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	filter.owner = of
	from := a.store.within(ctx)
	if filter.ids, err = days.ids(from, "ref", c.oneOwner(of).account); err != nil {
		return nil, err
	}
	return showRows(from.refunds(filter, page.before, page.limit))
}

func (a *orderAPI) showOrder(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	o, err := a.store.order(of, c.id())
	if err != nil {
		return nil, err
	}
	return historyOf(a.store.queries, o)
}

// decide runs f in a transaction, for an order of the owner on whom the call acts, and answers with what became of it.
func (a *orderAPI) decide(ctx context.Context, c *call, f func(t *tx, by owner) (*order, error)) (any, error) {
	by, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return updated(ctx, a.store, func(t *tx) (*order, error) {
		t.quiet()
		o, err := f(t, by)
		if err != nil {
			return nil, err
		}
		view, err := viewOrder(t.queries, o)
		if err == nil {
			err = hideGuest(t.queries, c, view)
		}
		return view, err
	})
}

// lineParts reads the optional member lines: units of lines of an order, or for a refund units or amounts.
func (in *input) lineParts(refund bool) (all []linePart) {
	if !in.has("lines") {
		return nil
	}
	for _, l := range in.objects("lines", maxOrderLines) {
		part := linePart{Line: int(l.amount("line", required, 0, maxOrderLines-1))}
		quantity, least := required, int64(0)
		if refund {
			least = 1
			if l.has("amount") {
				quantity, part.Amount = optional, l.amount("amount", required, 1, maxAmount)
			}
		}
		part.Quantity = l.amount("quantity", quantity, least, maxQuantity)
		if quantity == optional && l.has("quantity") {
			l.wrong("amount", "conflict", "Give back units or an amount of a line, not both.")
		}
		all = append(all, part)
	}
	return all
}

func (a *orderAPI) acceptOrder(ctx context.Context, c *call) (any, error) {
	lines, ready := c.in.lineParts(false), c.in.timestamp("ready_at")
	return a.decide(ctx, c, func(t *tx, by owner) (*order, error) {
		return acceptOrder(t, by, c.id(), lines, ready, actorToken(c))
	})
}

func (a *orderAPI) captureOrder(ctx context.Context, c *call) (any, error) {
	return a.decide(ctx, c, func(t *tx, by owner) (*order, error) { return captureOrder(t, by, c.id()) })
}

func (a *orderAPI) rejectOrder(ctx context.Context, c *call) (any, error) {
	var why rejection
	if c.in.has("reason") {
		why.reason = nilIfEmpty(c.in.text("reason", required, maxNameLength, oneOf(rejectReasons...)))
	}
	why.text = nilIfEmpty(c.in.text("text", optional, maxOrderText, anyText))
	return a.decide(ctx, c, func(t *tx, by owner) (*order, error) {
		return rejectOrder(t, by, c.id(), why, actorToken(c))
	})
}

func (a *orderAPI) cancelOrder(ctx context.Context, c *call) (any, error) {
	return a.decide(ctx, c, func(t *tx, by owner) (*order, error) {
		return cancelOrder(t, by, c.id(), actorToken(c))
	})
}

// readRefund reads the body of POST /orders/{id}/refunds.
func readRefund(in *input) (w refundWish) {
	w.lines = in.lineParts(true)
	if n := in.number("amount", 1, maxAmount); n != nil {
		w.amount = new(int64(*n))
	}
	w.delivery, w.tip = in.amount("delivery", optional, 1, maxAmount), in.amount("tip", optional, 1, maxAmount)
	for _, part := range []string{"lines", "delivery", "tip"} {
		if in.has(part) && in.has("amount") {
			in.wrong(part, "conflict", "Give back parts of the order or an amount, not both.")
		}
	}
	w.paymentID = in.text("payment_id", optional, maxNameLength, isID("pay"))
	w.reason = in.text("reason", optional, maxOrderText, anyText)
	return w
}

// refundOrder answers with the refund.
func (a *orderAPI) refundOrder(ctx context.Context, c *call) (any, error) {
	wish := readRefund(c.in)
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	c.stillTrue = func(t *tx, answer []byte) (bool, error) { // the answer names its order, but not its account
		var made refund
		if err := json.Unmarshal(answer, &made); err != nil {
			return false, fmt.Errorf("decode a stored answer: %w", err)
		}
		_, err := t.order(of, made.OrderID)
		return err == nil, err
	}
	return create(ctx, a.server, c, func(t *tx) (*refund, error) {
		t.quiet()
		w := wish
		w.once = c.idemKey == "" && !c.forced
		_, f, err := refundOrder(t, of, c.id(), w, actorToken(c))
		if err != nil {
			return nil, err
		}
		return new(viewRefund(*f)), nil
	})
}

func (a *orderAPI) markPaid(ctx context.Context, c *call) (any, error) {
	method := c.in.text("method", required, maxNameLength, oneOf(outsideMethods...))
	at := c.in.timestamp("paid_at")
	return a.decide(ctx, c, func(t *tx, by owner) (*order, error) {
		return payOutside(t, by, c.id(), method, at, actorToken(c))
	})
}

func (a *orderAPI) undoPaid(ctx context.Context, c *call) (any, error) {
	return a.decide(ctx, c, func(t *tx, by owner) (*order, error) { return undoPaid(t, by, c.id(), actorToken(c)) })
}
