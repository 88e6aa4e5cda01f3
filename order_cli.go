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
		help: "how much to give back, as 12.50; without it and -lines, all that is left"}
	optPayment = option{name: "payment", value: "PAYMENT",
		help: "give back money of this payment, which is in review since it pays nothing"}
	optOrderState = option{name: "state", value: "STATE", help: "show only orders in this state, as authorized"}
	optReference  = option{name: "reference", value: "TEXT",
		help: "show only the order with this reference"}
)

// The operator's commands on orders.
var orderCommands = []command{
	{"order list", "", "list orders, newest first", []option{
		optLimit,
		optOrderState,
		optReference,
		optAccount.says("show only orders of this account"),
		optSince, optUntil,
	}, 0, orderList},
	{"order show", "ORDER", "show an order, its lines, payments and refunds", nil, 1, orderShow},
	{"order accept", "ORDER", "accept an authorised order, or one whose payment is in review", []option{
		optLines.says("accept only these units of lines: 0:1,2:0; lines that are not named stay"),
	}, 1, orderAccept},
	{"order capture", "ORDER", "capture the money of an accepted order", nil, 1, orderCapture},
	{"order reject", "ORDER", "refuse an authorised order; its money is released", nil, 1, orderReject},
	{"order refund", "ORDER", "give money of an order back: all that is left, lines or an amount", []option{
		optLines.says("give back these units of lines: 0:1,2:3"),
		optAmount,
		optPayment,
		optReason.says("why, for people, at most 200 characters"),
	}, 1, orderRefund},
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

// lineQuantities returns what -lines names; nil if it is not given. Errors: usageError, also if -lines is given
// but names none, since an empty list would stand for the whole order.
func (e *env) lineQuantities() (all []lineQuantity, err error) {
	for _, part := range e.commaList("lines") {
		line, quantity, ok := strings.Cut(part, ":")
		index, bad := strconv.Atoi(line)
		units, wrong := strconv.ParseInt(quantity, 10, 64)
		if !ok || bad != nil || wrong != nil || units < 0 || units > maxQuantity {
			return nil, usageError(fmt.Sprintf("-lines: %q is not LINE:QUANTITY, as 0:1", printable(part)))
		}
		all = append(all, lineQuantity{index, units})
	}
	if e.given("lines") && len(all) == 0 {
		return nil, usageError("-lines: give LINE:QUANTITY, as 0:1, or leave it out for all")
	}
	return all, nil
}

func orderList(e *env) error {
	var err error
	filter := orderFilter{reference: e.str("reference")}
	if filter.state, err = e.choice("state", orderStates); err != nil {
		return err
	}
	if filter.owner, err = e.filterAccount(); err != nil {
		return err
	}
	return printAll(e, func(q *queries) ([]order, error) {
		ids := idOf[order]{"ord", func(row order) string { return row.ID }}
		rows, err := spanRows(e, q, ids, (*queries).orders, filter)
		if err != nil {
			return nil, err
		}
		views, _, err := listedOrders(q, rows)
		return views, err
	}, "ID CREATED STATE TOTAL REFUNDED METHOD PAYMENT REFERENCE ACCOUNT", func(v order) []any {
		payment, refunded := "", ""
		if v.Payment != nil {
			payment = v.Payment.State
		}
		if v.Refunded > 0 {
			refunded = formatMoney(v.Refunded, v.Currency)
		}
		return []any{v.ID, v.CreatedAt, v.State, formatMoney(v.Total, v.Currency), refunded, v.Method, payment,
			printable(valueOr(v.Reference, "")), accountCell(v.AccountID)}
	})
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
	add := func(label, text string) { details = append(details, detail{label, printable(text)}) }
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
	lines, err := e.lineQuantities()
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
	return e.changeOrder(func(t *tx) (*order, error) { return rejectOrder(t, anyAccount, e.args[0], e.actor()) })
}

func orderRefund(e *env) error {
	w, err := e.refundWish()
	if err != nil {
		return err
	}
	currency := ""
	return printChanged(e, func(t *tx) (refund, error) {
		o, made, err := refundOrder(t, anyAccount, e.args[0], w, e.actor())
		if err != nil {
			return refund{}, explainOrderError(err)
		}
		currency = o.Currency
		return viewRefund(*made), nil
	}, func(f refund) string {
		if f.State == refundPending {
			e.noteQueued()
		}
		return fmt.Sprintf("%s of %s is %s", f.ID, formatMoney(f.Amount, currency), f.State)
	})
}

// refundWish returns what the options ask to give back. Errors: usageError.
func (e *env) refundWish() (w refundWish, err error) {
	if w.lines, err = e.lineQuantities(); err != nil {
		return w, err
	}
	if e.given("amount") {
		amount, ok := parseAmount(e.str("amount"))
		if !ok || amount == 0 {
			return w, usageError("-amount: give an amount as 12.50")
		}
		w.amount = &amount
	}
	if len(w.lines) > 0 && w.amount != nil {
		return w, usageError("give -lines or -amount, not both")
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
