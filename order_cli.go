package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The options of these commands.
var (
	optLines = option{name: "lines", value: "LINE:QUANTITY,…",
		help: "units of lines, whose numbers 'widgetd order show' prints: 0:1,2:3"}
	optAmount = option{name: "amount", value: "AMOUNT",
		help: "how much to give back, as 12.50; without it and parts, all that is left"}
	optDelivery = option{name: "delivery", value: "AMOUNT", help: "give back so much of the delivery"}
	optTip      = option{name: "tip", value: "AMOUNT", help: "give back so much of the tip"}
	optPayment  = option{name: "payment", value: "PAYMENT",
		help: "give back money of this payment, which is in review since it pays nothing"}
	optOrderState = option{name: "state", value: "STATE", member: "state", reads: asOneOf(orderStates),
		help: "show only orders in this state, as authorized"}
	optReference = option{name: "reference", value: "TEXT", member: "reference",
		help: "show only the order with this reference"}
	optOrderMethod = option{name: "method", value: "METHOD", member: "method", reads: asOneOf(orderMethods),
		help: "show only orders paid in this way, as card"}
)

// The operator's commands on orders.
var orderCommands = []command{
	{"order list", "", "list orders, newest first", []option{
		optLimit,
		optOrderState,
		optOrderMethod,
		optReference,
		optAccount.says("show only orders of this account"),
		optSince, optUntil,
	}, 0, listCommand{route: "GET /orders", prefix: "ord", cell: orderCell, columns: "ID CREATED=created_at STATE " +
		"TOTAL REFUNDED METHOD PAYMENT=payment.state REFERENCE ACCOUNT=account_id"}.run},
	{"order show", "ORDER", "show an order, its lines, payments and refunds", nil, 1, orderShow},
	{"order accept", "ORDER", "accept an authorised order, or one whose payment is in review", []option{
		optLines.says("accept only these units of lines: 0:1,2:0; lines that are not named stay"),
	}, 1, orderAccept},
	{"order capture", "ORDER", "capture the money of an accepted order", nil, 1, orderCapture},
	{"order reject", "ORDER", "refuse an authorised order; its money is released", []option{
		optReason.says("why: " + strings.Join(rejectReasons, ", ")),
		{name: "text", value: "TEXT", help: "what the guest reads beside it, at most 200 characters"}, optUnasked,
	}, 1, orderReject},
	{"order refund", "ORDER", "give money of an order back: all that is left, lines or an amount", []option{
		optLines.says("give back these units or amounts of lines: 0:1,2=3.50"),
		optDelivery,
		optTip,
		optAmount,
		optPayment,
		optReason.says("why, for people, at most 200 characters"), optUnasked,
	}, 1, orderRefund},
	{"order refunds", "", "print every refund, with the provider's ids, one JSON object a line or CSV", []option{
		optCSV, optAccount.says("print only refunds of this account"),
		optSince.says("print only refunds made since a date or an RFC 3339 time, or in the last days, as 7d"),
		optUntil.says("print only refunds made until the end of a date (UTC), or until an RFC 3339 time"),
	}, 0, listCommand{route: "GET /refunds", export: true, prefix: "ref", cell: amountCells("amount", "tip"),
		columns: "id order_id reference account_id payment_id provider_id method currency amount tip state failure " +
			"source reason made_by created_at ended_at"}.run},
	{"order erase", "", "remove what is known of guests, by name, telephone number or order, from the database file " +
		"and its write-ahead log, and list names or numbers that resemble the erased one", []option{
		{name: "name", value: "NAME", help: "the guests with this name, compared without case"},
		{name: "phone", value: "NUMBER", help: "the guests with this telephone number, compared by its digits"},
		{name: "order", value: "ORDER", help: "the guest of this order"},
		optAccount.says("erase only guests of this account"),
		optLitestream.says("leave the write-ahead log to Litestream, which truncates it later"), optUnasked,
	}, 0, orderErase},
	{"order settle", "ORDER", "have the running service ask the provider now how the payments of an order stand",
		nil, 1, orderSettle},
}

// explainOrderError turns the refusals of the rules of orders, which are worded for callers of the API, into
// errors for the operator that name the next step.
func explainOrderError(err error) error {
	var ref *refusal
	switch {
	case errors.Is(err, errOrder):
		return errors.New("not found: 'widgetd order list' prints what there is")
	case errors.As(err, &ref) && ref.code == codeValidation && len(ref.fields) > 0:
		name, _, _ := strings.Cut(strings.TrimPrefix(ref.fields[0].Pointer, "#/"), "/")
		return usageError("-" + strings.TrimSuffix(name, "_id") + ": " + ref.fields[0].Detail)
	case errors.As(err, &ref) && ref.code.status < 500:
		return errors.New(ref.text())
	}
	return err
}

// changeOrder runs f in a transaction and prints the order that f returns, for whose payment the running service
// does the rest.
func (e *env) changeOrder(f func(t *tx) (*order, error)) error {
	return printChanged(e, func(t *tx) (*order, error) {
		o, err := f(t)
		if err != nil {
			return nil, explainOrderError(err)
		}
		return viewOrder(t.queries, o)
	}, func(o *order) string {
		if p := o.Payment; p != nil && !p.DueAt.IsZero() && !p.DueAt.After(e.now()) {
			e.noteQueued()
		}
		return fmt.Sprintf("%s is %s: %s", o.ID, o.State, formatMoney(o.Total, o.Currency))
	})
}

// lineQuantities returns what -lines names; nil if it is not given. If amounts is not nil, LINE=AMOUNT names an
// amount of a line, and amounts gets one for each line, 0 beside a quantity. Errors: usageError, also if -lines is
// given but names none, since an empty list would stand for the whole order.
func (e *env) lineQuantities(amounts *[]int64) (all []lineQuantity, err error) {
	form := "LINE:QUANTITY, as 0:1"
	if amounts != nil {
		form += ", or LINE=AMOUNT, as 0=3.50"
	}
	for _, part := range e.commaList("lines") {
		line, text, byAmount := strings.Cut(part, "=")
		amount, ok := parseAmount(text)
		if ok = ok && amount > 0 && amounts != nil; !byAmount {
			line, text, ok = strings.Cut(part, ":")
		}
		index, bad := strconv.Atoi(line)
		units := int64(0)
		if !byAmount && ok {
			units, err = strconv.ParseInt(text, 10, 64)
		}
		if !ok || bad != nil || err != nil || units < 0 || units > maxQuantity {
			return nil, usageError(fmt.Sprintf("-lines: %q is not %s", printable(part), form))
		}
		if all = append(all, lineQuantity{index, units}); amounts != nil {
			*amounts = append(*amounts, amount)
		}
	}
	if e.given("lines") && len(all) == 0 {
		return nil, usageError("-lines: give " + form + ", or leave it out for all")
	}
	return all, nil
}

// orderCell is a cellFunc.
func orderCell(member string, row *jsonValue) any {
	n, is := memberAt(row, member).integer()
	switch {
	case !is:
		return nil
	case member == "refunded" && n == 0:
		return ""
	}
	return formatMoney(n, memberAt(row, "currency").text)
}

func orderShow(e *env) error {
	return e.withStore(func(st *store) error {
		o, err := st.order(anyAccount, e.args[0])
		if err != nil {
			return explainOrderError(err)
		}
		h, err := historyOf(st.queries, o)
		if err != nil {
			return err
		}
		details, err := orderDetails(h)
		if err != nil {
			return err
		}
		return e.printDetails(h, details)
	})
}

// orderDetails returns what order show prints for people: the members, amounts with their currency, and lists
// with one line for each element.
func orderDetails(h *orderHistory) (details []detail, err error) {
	money := func(amount int64) string { return formatMoney(amount, h.Currency) }
	amounts := map[string]string{"discount": money(h.Discount), "tip": money(h.Tip), "total": money(h.Total),
		"ordered total": money(h.OrderedTotal), "refunded": money(h.Refunded)}
	if h.DeliveryView != nil {
		amounts["delivery"] = money(h.DeliveryView.Amount) + ", VAT " + formatRate(h.DeliveryView.VATRate)
	}
	var vat []string
	for _, v := range h.VAT {
		vat = append(vat, fmt.Sprintf("%s in %s at %s", money(v.VAT), money(v.Gross), formatRate(v.Rate)))
	}
	amounts["vat"] = cmp.Or(strings.Join(vat, "; "), "-")
	members, err := memberDetails(h)
	for _, d := range members {
		switch d.label {
		case "lines", "refunds", "payment", "payments", "disputes":
			continue
		}
		details = append(details, detail{d.label, cmp.Or(amounts[d.label], d.value)})
	}
	add := func(label, text string) { details = append(details, detail{label, text}) }
	for i, l := range h.LineViews {
		add("line "+strconv.Itoa(i), fmt.Sprintf("%d of %d × %s: %s, %s refunded", l.Accepted, l.Quantity, l.Name,
			money(l.Amount), countOf(l.Refunded, "unit")))
	}
	for _, p := range h.Payments {
		text := fmt.Sprintf("%s %s %s of %s, captured %s, refunded %s %s", p.ID, p.Provider, p.State, money(p.Amount),
			money(p.Captured), money(p.Refunded), valueOr(p.Reason, ""))
		if !p.CaptureBefore.IsZero() {
			text += " to be captured before " + p.CaptureBefore.String()
		}
		add("payment", text)
	}
	for _, f := range h.Refunds {
		add("refund", fmt.Sprintf("%s %s %s %s", f.ID, money(f.Amount), f.State, valueOr(f.Failure, "")))
	}
	for _, d := range h.Disputes {
		add("dispute", fmt.Sprintf("%s %s %s %s", d.ID, money(d.Amount), d.State, valueOr(d.Reason, "")))
	}
	return details, err
}

func orderAccept(e *env) error {
	lines, err := e.lineQuantities(nil)
	if err != nil {
		return err
	}
	return e.changeOrder(func(t *tx) (*order, error) {
		return acceptOrder(t, anyAccount, e.args[0], lines, e.actor())
	})
}

func orderCapture(e *env) error {
	return e.changeOrder(func(t *tx) (*order, error) { return captureOrder(t, anyAccount, e.args[0]) })
}

func orderReject(e *env) error {
	reason, err := e.choice("reason", rejectReasons)
	if err != nil {
		return err
	}
	text, err := e.text("text", maxOrderText)
	if err != nil {
		return err
	}
	why := rejection{nilIfEmpty(reason), nilIfEmpty(text)}
	err = e.confirm(func(q *queries) (string, error) {
		o, err := q.order(anyAccount, e.args[0])
		if err != nil || !o.waits() || o.PaymentID == nil {
			return "", explainOrderError(err)
		}
		return fmt.Sprintf("rejects %s for good, and the %s that the guest has paid by %s go back", o.ID,
			formatMoney(o.Total, o.Currency), valueOr(o.Method, "")), nil
	})
	if err != nil {
		return err
	}
	return e.changeOrder(func(t *tx) (*order, error) { return rejectOrder(t, anyAccount, e.args[0], why, e.actor()) })
}

func orderRefund(e *env) error {
	w, err := e.refundWish()
	if err != nil {
		return err
	}
	w.once = true
	refundIt := func(t *tx) (*order, *refund, error) { return refundOrder(t, anyAccount, e.args[0], w, e.actor()) }
	err = e.confirm(func(*queries) (plan string, err error) {
		err = e.change(func(t *tx) error { // which is undone
			o, f, err := refundIt(t)
			if err == nil {
				plan, err = refundPlan(t.queries, o, f)
			}
			return cmp.Or(explainOrderError(err), errTried)
		})
		return plan, notUnless(err, errTried)
	})
	if err != nil {
		return err
	}
	currency := ""
	return printChanged(e, func(t *tx) (refund, error) {
		o, made, err := refundIt(t)
		if err != nil {
			return refund{}, explainOrderError(err)
		}
		currency = o.Currency
		return viewRefund(*made), nil
	}, func(f refund) string {
		if f.State == refundPending {
			e.noteQueued()
		}
		if valueOr(f.Failure, "") == reasonDenied {
			return fmt.Sprintf("%s of %s waits: the provider refuses the connection's keys, 'widgetd status' names it",
				f.ID, formatMoney(f.Amount, currency))
		}
		return fmt.Sprintf("%s of %s is %s", f.ID, formatMoney(f.Amount, currency), f.State)
	})
}

// refundPlan says what a refund of an order will give back, and how.
func refundPlan(q *queries, o *order, f *refund) (string, error) {
	text := "gives back " + formatMoney(f.Amount, o.Currency)
	if f.Asked == nil {
		text += ", all that is left,"
	}
	if f.PaymentID == nil {
		return text + " outside: no provider does that", nil
	}
	p, err := q.payment(*f.PaymentID)
	if err != nil {
		return "", err
	}
	payers := map[string]string{methodCard: "card", methodMobile: "phone", methodTwint: "TWINT account"}
	return text + " to the " + payers[p.Method] + " that paid", nil
}

// refundWish returns what the options ask to give back. Errors: usageError.
func (e *env) refundWish() (w refundWish, err error) {
	if w.lines, err = e.lineQuantities(&w.amounts); err != nil {
		return w, err
	}
	amount := int64(0)
	for _, o := range []struct {
		name, text string
		given      bool
		into       *int64
	}{
		{"amount", e.str("amount"), e.given("amount"), &amount},
		{"delivery", e.str("delivery"), e.given("delivery"), &w.delivery},
		{"tip", e.str("tip"), e.given("tip"), &w.tip},
	} {
		var ok bool
		if *o.into, ok = parseAmount(o.text); o.given && (!ok || *o.into == 0) {
			return w, usageError("-" + o.name + ": give an amount as 12.50")
		}
	}
	if amount > 0 {
		w.amount = &amount
	}
	if w.aimed() && w.amount != nil {
		return w, usageError("give -amount or parts (-lines, -delivery, -tip), not both")
	}
	if w.paymentID, err = e.filterID("payment", "pay"); err != nil {
		return w, err
	}
	if e.given("payment") && w.paymentID == "" {
		return w, usageError("-payment: give the id of a payment, which 'widgetd order show' prints")
	}
	w.reason, err = e.text("reason", maxOrderText)
	return w, err
}

// guestFinder returns a function that finds the guests that the options name. Errors: usageError.
func (e *env) guestFinder() (func(*queries) (*foundGuests, error), error) {
	id, err := e.filterID("order", "ord")
	if err != nil {
		return nil, err
	}
	search := &guestSearch{name: nameKey(e.str("name")), phone: e.str("phone")}
	given := 0
	for _, text := range []string{search.name, search.phone, id} {
		given += min(1, len(text))
	}
	if given != 1 {
		return nil, usageError("give one of -name, -phone and -order")
	}
	if search.phone != "" && len(phoneKey(search.phone)) < leastPhoneDigits {
		return nil, usageError(fmt.Sprintf("-phone: a telephone number has at least %d digits", leastPhoneDigits))
	}
	if search.owner, err = e.filterAccount(); err != nil {
		return nil, err
	}
	return func(q *queries) (*foundGuests, error) {
		if id == "" {
			return search.search(e.ctx, q, maxSimilar)
		}
		o, err := q.order(search.owner, id)
		if err != nil {
			return nil, explainOrderError(err)
		}
		f := &foundGuests{similar: []similarGuest{}}
		f.add(&foundGuest{orderID: o.ID, state: o.State})
		return f, nil
	}, nil
}

func orderErase(e *env) error {
	find, err := e.guestFinder()
	if err != nil {
		return err
	}
	err = e.confirm(func(q *queries) (string, error) {
		f, err := find(q)
		if err != nil || len(f.orderIDs) == 0 {
			return "", err
		}
		text := "erases the guests of " + countOf(len(f.orderIDs), "order")
		if f.underWay > 0 {
			text += fmt.Sprintf(", %d of them under way: nobody will know who gets these, and where", f.underWay)
		}
		return text, nil
	})
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		f, err := find(st.queries)
		if err != nil {
			return err
		}
		erased, err := st.eraseGuests(e.ctx, f.orderIDs)
		if err != nil {
			return err
		}
		note, copies := e.eraseFromWAL(st, "what was known of them")
		text := countOf(erased, "guest") + " erased; " + note
		if len(f.similar) > 0 {
			text += "\nnot erased, but alike; if one is the same person, erase it in its own spelling:"
		}
		for _, s := range f.similar {
			text += fmt.Sprintf("\n  %s: %d, the last %s", printable(valueOr(s.Name, valueOr(s.Phone, ""))),
				s.Orders, s.ID)
		}
		if f.more {
			text += fmt.Sprintf("\n  and others: these are %d", len(f.similar))
		}
		return e.print(map[string]any{"erased": erased, "under_way": f.underWay, "note": note, "copies": copies,
			"similar": f.similar, "more_similar": f.more}, text)
	})
}

func orderSettle(e *env) error {
	asked, err := changed(e, func(t *tx) (int, error) {
		asked, err := settleOrder(t, anyAccount, e.args[0])
		return asked, explainOrderError(err)
	})
	if err != nil {
		return err
	}
	if asked > 0 {
		defer e.noteQueued()
	}
	return e.print(map[string]any{"ok": true, "payments": asked},
		fmt.Sprintf("the service is to ask about %s: 'widgetd order show %s' shows what it found",
			countOf(asked, "payment"), printable(e.args[0])))
}
