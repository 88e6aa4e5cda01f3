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
		{pattern: "GET /orders", scope: scopeOrders, question: true, run: endpoint(a.listOrders)},
		{pattern: "POST /orders", creates: true, body: maxOrderBody, values: maxOrderValues,
			run: endpoint(a.createOrder)},
		{pattern: "GET /orders/{id}", scope: scopeOrders, run: endpoint(a.showOrder)},
		{pattern: "POST /orders/{id}/accept", noBody: true, run: endpoint(a.acceptOrder)},
		{pattern: "POST /orders/{id}/capture", noBody: true, run: endpoint(a.captureOrder)},
		{pattern: "POST /orders/{id}/reject", noBody: true, run: endpoint(a.rejectOrder)},
		{pattern: "POST /orders/{id}/cancel", noBody: true, run: endpoint(a.cancelOrder)},
		{pattern: "POST /orders/{id}/refunds", noBody: true, creates: true, run: endpoint(a.refundOrder)},
		{pattern: "POST /orders/{id}/paid", run: endpoint(a.markPaid)},
		{pattern: "DELETE /orders/{id}/paid", run: endpoint(a.undoPaid)},
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
	views, left, err := listedOrders(q, []order{*o})
	switch {
	case err != nil:
		return nil, err
	case left != nil:
		return nil, left
	}
	return &views[0], nil
}

// listedOrders returns the orders of a list as callers see them, with their guests and last attempts. The guests of
// all orders take one query, and so do the attempts. It leaves out orders whose attempt can't be read; left is one of
// those attempts, or nil.
func listedOrders(q *queries, rows []order) (views []order, left *unreadableRow, err error) {
	ids, paymentIDs := []string{}, []string{}
	for i := range rows {
		if ids = append(ids, rows[i].ID); rows[i].PaymentID != nil {
			paymentIDs = append(paymentIDs, *rows[i].PaymentID)
		}
	}
	guests, err := q.guestsOf(ids)
	if err != nil {
		return nil, nil, err
	}
	customers := map[string]*guest{}
	for i := range guests {
		customers[guests[i].orderID] = &guests[i].guest
	}
	attempts, unreadable, err := q.paymentsByID(paymentIDs)
	if err != nil {
		return nil, nil, err
	}
	payments := map[string]*payment{}
	for i := range attempts {
		payments[attempts[i].ID] = &attempts[i]
	}
	views = make([]order, 0, len(rows))
	for _, o := range rows {
		if bad := unreadable[valueOr(o.PaymentID, "")]; bad != nil {
			left = bad
			continue
		}
		o.Customer, o.Payment = customers[o.ID], payments[valueOr(o.PaymentID, "")]
		o.setViews()
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

// viewRefund returns a refund as callers see it.
func viewRefund(f refund) refund {
	f.MadeBy, f.VAT = publicActor(f.MadeBy), append([]vatSum{}, f.VAT...)
	return f
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

// createOrderRequest is the body of POST /orders.
type createOrderRequest struct {
	accountScope
	order order
	guest guest
	lives time.Duration
}

func (q *createOrderRequest) read(in *input) {
	q.accountScope.read(in)
	o := &q.order
	o.Currency = in.text("currency", required, 3, checkCurrency)
	for _, l := range in.objects("lines", maxOrderLines) {
		l.answered("amount")
		o.Lines = append(o.Lines, orderLine{
			Name:       l.text("name", required, maxOrderText, nil),
			Quantity:   l.amount("quantity", required, 1, maxQuantity),
			UnitAmount: l.amount("unit_amount", required, 0, maxAmount),
			VATRate:    l.amount("vat_rate", required, 0, maxVATRate),
			Group:      l.text("group", optional, maxOrderText, nil),
		})
	}
	o.Discount = in.amount("discount", optional, 0, maxAmount)
	if in.has("delivery") {
		delivery := in.object("delivery", optional)
		o.Delivery = delivery.amount("amount", required, 0, maxAmount)
		o.DeliveryRate = delivery.amount("vat_rate", required, 0, maxVATRate)
	}
	o.Tip = in.amount("tip", optional, 0, maxAmount)
	o.Reference = nilIfEmpty(in.text("reference", optional, maxOrderText, nil))
	if in.has("customer") {
		customer := in.object("customer", optional)
		q.guest = guest{
			Name:  nilIfEmpty(customer.text("name", optional, maxOrderText, nil)),
			Phone: nilIfEmpty(customer.text("phone", optional, maxOrderText, nil)),
			Note:  nilIfEmpty(customer.lines("note", maxOrderNote)),
		}
	}
	o.ReturnURL = in.text("return_url", required, maxOrderReturnURL, checkReturnURL)
	q.lives = minOrderLife
	if n := in.number("expires_in", int(minOrderLife.Seconds()), int(maxOrderLife.Seconds())); n != nil {
		q.lives = time.Duration(*n) * time.Second
	}
}

// checkReturnURL is a textCheck for where a guest goes after an order was paid.
func checkReturnURL(s string) (code, detail string) {
	if _, ok := originOf(s); !ok {
		return "invalid_url", "This must be the address of a page, such as https://www.example.com/thanks."
	}
	return "", ""
}

// A createdOrder is a new order, with the address where it is paid, which no other endpoint returns.
type createdOrder struct {
	order
	PayURL string `json:"pay_url"`
}

// hideGuest leaves out the guest and the payment of an order if the token of a call can't read orders.
func hideGuest(c *call, v *order) {
	if !c.caller.has(scopeOrders) {
		v.Customer, v.Payment = nil, nil
	}
}

// hideGuestOfReplay is hideGuest for the answer to an earlier call, which another token may have made.
func hideGuestOfReplay(c *call) error {
	if c.replay == nil || c.caller.has(scopeOrders) {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(c.replay.body, &members); err != nil {
		return fmt.Errorf("decode a stored answer: %w", err)
	}
	members["customer"], members["payment"] = json.RawMessage("null"), json.RawMessage("null")
	c.replay.body = encodeJSON(members)
	return nil
}

// referenceTaken adapts the refusal of a reference that is in use to the caller: the account's own tokens learn
// which order has it, an application only if it can read orders, since it may have guessed the reference.
func referenceTaken(c *call, err error) error {
	var ref *refusal
	if errors.As(err, &ref) && ref.code == codeReferenceUsed && c.caller.app != "" && !c.caller.has(scopeOrders) {
		return &refusal{code: codeReferenceUsed}
	}
	return err
}

// createOrder answers POST /orders.
func (a *orderAPI) createOrder(ctx context.Context, c *call, q *createOrderRequest) (*createdOrder, error) {
	by := q.oneOwner(c) // an order belongs to one account: the caller's own unless the body names one
	c.stillTrue = replaysOf(by, anyReplay)
	made, err := create(ctx, a.server, c, func(t *tx) (*createdOrder, error) {
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
		bases, err := t.baseURLs()
		if err != nil {
			return nil, err
		}
		return &createdOrder{*view, payURL(bases[0].URL, o.ID, k)}, nil
	})
	if err != nil {
		return nil, referenceTaken(c, err)
	}
	if c.replay != nil {
		return nil, hideGuestOfReplay(c)
	}
	hideGuest(c, &made.order)
	return made, nil
}

// ordersRequest is the query of GET /orders.
type ordersRequest struct {
	accountScope
	filter orderFilter
	page   pageQuery
}

func (q *ordersRequest) read(in *input) {
	q.accountScope.read(in)
	q.filter.state = in.parameter("state", oneOf(orderStates...))
	q.filter.reference = in.parameter("reference", isText(maxOrderText))
	q.page = in.page("ord")
}

// listOrders answers GET /orders.
func (a *orderAPI) listOrders(ctx context.Context, c *call, q *ordersRequest) (*list[order], error) {
	q.filter.owner = q.owner
	from := a.store.within(ctx)
	page, err := from.orders(q.filter, q.page.before, q.page.limit)
	if err != nil {
		return nil, err
	}
	views, _, err := listedOrders(from, page.rows)
	return showRows(listPage[order]{views, page.next}, err)
}

// showOrder answers GET /orders/{id}.
func (a *orderAPI) showOrder(_ context.Context, c *call, q *rowRequest) (*orderHistory, error) {
	o, err := a.store.order(q.owner, q.id)
	if err != nil {
		return nil, err
	}
	return historyOf(a.store.queries, o)
}

// decide runs f in a transaction and answers with the order that f returns.
func (a *orderAPI) decide(ctx context.Context, c *call, f func(*tx) (*order, error)) (*order, error) {
	return updated(ctx, a.store, func(t *tx) (*order, error) {
		o, err := f(t)
		if err != nil {
			return nil, err
		}
		view, err := viewOrder(t.queries, o)
		if err == nil {
			hideGuest(c, view)
		}
		return view, err
	})
}

// acceptRequest is the body of POST /orders/{id}/accept.
type acceptRequest struct {
	rowRequest
	lines []lineQuantity
}

func (q *acceptRequest) read(in *input) {
	q.rowRequest.read(in)
	q.lines = in.lineQuantities(0)
}

// lineQuantities reads the optional member lines, which names units of lines of an order. The quantities
// are least or more.
func (in *input) lineQuantities(least int64) (all []lineQuantity) {
	if !in.has("lines") {
		return nil
	}
	for _, l := range in.objects("lines", maxOrderLines) {
		all = append(all, lineQuantity{
			Line:     int(l.amount("line", required, 0, maxOrderLines-1)),
			Quantity: l.amount("quantity", required, least, maxQuantity),
		})
	}
	return all
}

// acceptOrder answers POST /orders/{id}/accept.
func (a *orderAPI) acceptOrder(ctx context.Context, c *call, q *acceptRequest) (*order, error) {
	return a.decide(ctx, c, func(t *tx) (*order, error) {
		return acceptOrder(t, q.owner, q.id, q.lines, actorToken(c))
	})
}

// captureOrder answers POST /orders/{id}/capture.
func (a *orderAPI) captureOrder(ctx context.Context, c *call, q *rowRequest) (*order, error) {
	return a.decide(ctx, c, func(t *tx) (*order, error) { return captureOrder(t, q.owner, q.id) })
}

// rejectOrder answers POST /orders/{id}/reject.
func (a *orderAPI) rejectOrder(ctx context.Context, c *call, q *rowRequest) (*order, error) {
	return a.decide(ctx, c, func(t *tx) (*order, error) { return rejectOrder(t, q.owner, q.id, actorToken(c)) })
}

// cancelOrder answers POST /orders/{id}/cancel.
func (a *orderAPI) cancelOrder(ctx context.Context, c *call, q *rowRequest) (*order, error) {
	return a.decide(ctx, c, func(t *tx) (*order, error) { return cancelOrder(t, q.owner, q.id, actorToken(c)) })
}

// refundRequest is the body of POST /orders/{id}/refunds.
type refundRequest struct {
	rowRequest
	wish refundWish
}

func (q *refundRequest) read(in *input) {
	q.rowRequest.read(in)
	q.wish.lines = in.lineQuantities(1)
	if n := in.number("amount", 1, maxAmount); n != nil {
		q.wish.amount = new(int64(*n))
	}
	if in.has("lines") && in.has("amount") {
		in.wrong("lines", "conflict", "Give back lines or an amount, not both.")
	}
	q.wish.paymentID = in.text("payment_id", optional, maxNameLength, isID("pay"))
	q.wish.reason = in.text("reason", optional, maxOrderText, nil)
}

// refundOrder answers POST /orders/{id}/refunds with the refund.
func (a *orderAPI) refundOrder(ctx context.Context, c *call, q *refundRequest) (*refund, error) {
	c.stillTrue = func(t *tx, answer []byte) (bool, error) { // the answer names its order, but not its account
		var made refund
		if err := json.Unmarshal(answer, &made); err != nil {
			return false, fmt.Errorf("decode a stored answer: %w", err)
		}
		_, err := t.order(q.owner, made.OrderID)
		return err == nil, err
	}
	return create(ctx, a.server, c, func(t *tx) (*refund, error) {
		_, f, err := refundOrder(t, q.owner, q.id, q.wish, actorToken(c))
		if err != nil {
			return nil, err
		}
		return new(viewRefund(*f)), nil
	})
}

// paidRequest is the body of POST /orders/{id}/paid.
type paidRequest struct {
	rowRequest
	method string
	at     stamp
}

func (q *paidRequest) read(in *input) {
	q.rowRequest.read(in)
	q.method = in.text("method", required, maxNameLength, oneOf(outsideMethods...))
	q.at = in.timestamp("paid_at")
}

// markPaid answers POST /orders/{id}/paid.
func (a *orderAPI) markPaid(ctx context.Context, c *call, q *paidRequest) (*order, error) {
	return a.decide(ctx, c, func(t *tx) (*order, error) {
		return payOutside(t, q.owner, q.id, q.method, q.at, actorToken(c))
	})
}

// undoPaid answers DELETE /orders/{id}/paid.
func (a *orderAPI) undoPaid(ctx context.Context, c *call, q *rowRequest) (*order, error) {
	return a.decide(ctx, c, func(t *tx) (*order, error) { return undoPaid(t, q.owner, q.id, actorToken(c)) })
}
