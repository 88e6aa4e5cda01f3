package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The options of these commands.
var (
	optLines = option{name: "lines", value: "LINE:QUANTITY,…", member: "lines", reads: asLines,
		help: "accept only these units of lines: 0:1,2:0; lines that are not named stay; 'widgetd order show' prints " +
			"their numbers"}
	optAmount = option{name: "amount", value: "AMOUNT", member: "amount", reads: asAmount,
		help: "how much to give back, as 12.50; without it and parts, all that is left"}
	optDelivery = option{name: "delivery", value: "AMOUNT", member: "delivery", reads: asAmount,
		help: "give back so much of the delivery"}
	optTip = option{name: "tip", value: "AMOUNT", member: "tip", reads: asAmount,
		help: "give back so much of the tip"}
	optRefundLines = option{name: "lines", value: "LINE:QUANTITY,…", member: "lines", reads: asRefundLines,
		help: "give back these units or amounts of lines: 0:1,2=3.50"}
)

// orderText is what an order has become.
const orderText = "${id} is ${state}: ${total money}"

// The commands on orders that are names for routes.
var orderRouteCommands = []routeCommand{
	{name: "order list", route: "GET /orders", rows: &listCommand{prefix: "ord", columns: "ID " +
		"CREATED=created_at STATE TOTAL REFUNDED METHOD PAYMENT=payment.state REFERENCE ACCOUNT=account_id"}},
	{name: "order show", route: "GET /orders/{id}", help: "show an order, its lines, payments and refunds"},
	{name: "order accept", route: "POST /orders/{id}/accept", options: []option{optLines},
		help: "accept an authorised order, or one whose payment is in review", text: orderText, after: noteDue},
	{name: "order capture", route: "POST /orders/{id}/capture", help: "capture the money of an accepted order",
		text: orderText, after: noteDue},
	{name: "order reject", route: "POST /orders/{id}/reject", options: []option{optUnasked},
		help: "refuse an authorised order; its money is released", asks: askRejecting, text: orderText,
		after: noteDue},
	{name: "order refund", route: "POST /orders/{id}/refunds", options: []option{
		optRefundLines, optDelivery, optTip, optAmount,
		optUnasked.says("do not ask, and give back again what was given back less than 10 seconds ago"),
	}, help: "give money of an order back: all that is left, lines or an amount", asks: askRefunding,
		says: sayRefund, after: noteRefund},
	{name: "order refunds", route: "GET /refunds",
		help: "print every refund, with the provider's ids, one JSON object a line or CSV",
		rows: &listCommand{export: true, prefix: "ref", columns: "id order_id reference account_id payment_id " +
			"provider_id method currency amount tip state failure source reason made_by created_at ended_at kind"}},
}

// The other commands on orders.
var orderCommands = []command{
	{"order erase", "", "remove what is known of guests, by name, telephone number or order, from the database file " +
		"and its write-ahead log", []option{
		{name: "name", value: "NAME", help: "the guests with this name, compared without case"},
		{name: "phone", value: "NUMBER", help: "the guests with this telephone number, " +
			"compared by its digits; it also names numbers that end in the same eight"},
		{name: "order", value: "ORDER", help: "the guest of this order"},
		optAccount.says("erase only guests of this account"),
		optLitestream.says("leave the write-ahead log to Litestream, which truncates it later"), optUnasked,
	}, orderErase},
	{"order settle", "ORDER", "have the running service ask the provider now how the payments of an order stand",
		nil, orderSettle},
}

// asLines sends units of lines.
func asLines(_ *env, text string) (any, error) { return readLineOptions(text, false) }

// asRefundLines sends units or amounts of lines.
func asRefundLines(_ *env, text string) (any, error) { return readLineOptions(text, true) }

// readLineOptions reads the value of -lines. Errors: usageError, also if it names no line, since an empty list would
// stand for the whole order.
func readLineOptions(text string, amounts bool) (lines []map[string]int64, err error) {
	form := "LINE:QUANTITY, as 0:1"
	if amounts {
		form += ", or LINE=AMOUNT, as 0=3.50"
	}
	for _, part := range splitList(text) {
		index, amount, byAmount := strings.Cut(part, "=")
		index, units, byUnits := strings.Cut(index, ":")
		line, wrong := strconv.ParseInt(index, 10, 64)
		member, n, ok := "", int64(0), false
		switch {
		case byUnits && !byAmount:
			n, err = strconv.ParseInt(units, 10, 64)
			member, ok = "quantity", err == nil && n >= 0 && n <= maxQuantity
		case byAmount && !byUnits && amounts:
			n, ok = parseAmount(amount)
			member, ok = "amount", ok && n > 0
		}
		if !ok || wrong != nil {
			return nil, usageError(fmt.Sprintf("%q is not %s", printable(part), form))
		}
		lines = append(lines, map[string]int64{"line": line, member: n})
	}
	if len(lines) == 0 {
		return nil, usageError("give " + form + ", or leave it out for all")
	}
	return lines, nil
}

// asAmount sends an amount of money.
func asAmount(_ *env, text string) (any, error) {
	if n, ok := parseAmount(text); ok && n > 0 {
		return n, nil
	}
	return nil, usageError("give an amount as 12.50")
}

// noteDue says so where the service is to ask the provider of the order's payment and none runs.
func noteDue(e *env, _ *jsonValue) {
	v, err := queried(e, func(q *queries) (*order, error) {
		o, err := q.order(anyAccount, e.args[0])
		if err != nil {
			return nil, err
		}
		return viewOrder(q, o)
	})
	if err == nil && v.Payment != nil && !v.Payment.DueAt.IsZero() && !v.Payment.DueAt.After(e.now()) {
		e.noteQueued()
	}
}

// askRejecting says what rejecting an order does that was paid.
func askRejecting(_ *routeRequest, would *jsonValue) string {
	if memberAt(would, "payment").kind == jsonNull {
		return ""
	}
	return fillText("rejects ${id} for good, and the ${total money} that the guest has paid by ${method} go back",
		would)
}

// askRefunding says what a refund gives back, and how, and has the request name that amount.
func askRefunding(r *routeRequest, would *jsonValue) string {
	text := "gives back ${amount money}"
	given := func(member string) bool { return r.members[member] != nil }
	if !slices.ContainsFunc([]string{"amount", "lines", "delivery", "tip"}, given) {
		text += ", all that is left,"
		r.members["amount"], _ = integerMember(would, "amount")
	}
	if memberAt(would, "payment_id").kind == jsonNull {
		return fillText(text+" outside: no provider does that", would)
	}
	payers := map[string]string{methodCard: "card", methodMobile: "phone", methodTwint: "TWINT account"}
	return fillText(text+" to the "+payers[rawMember(would, "method")]+" that paid", would)
}

// sayRefund says what has become of a refund.
func sayRefund(f *jsonValue) string {
	if rawMember(f, "failure") == reasonDenied {
		return "${id} of ${amount money} waits: the provider refuses the connection's keys, 'widgetd status' names it"
	}
	return "${id} of ${amount money} is ${state}"
}

// noteRefund says so where the service is to have the provider give money back and none runs.
func noteRefund(e *env, f *jsonValue) {
	if rawMember(f, "state") == refundPending {
		e.noteQueued()
	}
}

// leastPhoneDigits is how many digits a telephone number has at least by which guests are searched: without any, it
// would be that of everybody who has written none.
const leastPhoneDigits = 5

// guestFinder returns a function that finds the guests that the options name, and the telephone numbers of others that
// are alike. Whoever is asked on a terminal sees these, so that there they are named, too. Errors: usageError.
func (e *env) guestFinder() (find func(*queries) (named []foundGuest, alike []string, err error), err error) {
	id, err := e.filterID("order", "ord")
	if err != nil {
		return nil, err
	}
	name, phone := nameKey(e.str("name")), e.str("phone")
	given := 0
	for _, text := range []string{name, phone, id} {
		given += min(1, len(text))
	}
	switch {
	case given != 1:
		return nil, usageError("give one of -name, -phone and -order")
	case phone != "" && len(phoneKey(phone)) < leastPhoneDigits:
		return nil, usageError(fmt.Sprintf("-phone: a telephone number has at least %d digits", leastPhoneDigits))
	}
	of, err := e.filterAccount()
	match := func(g *foundGuest) bool {
		if phone != "" {
			return of.owns(g.accountID) && similarPhones(valueOr(g.phone, ""), phone)
		}
		return of.owns(g.accountID) && nameKey(valueOr(g.name, "")) == name
	}
	asked := e.canAsk && !e.on("force")
	return func(q *queries) (named []foundGuest, alike []string, err error) {
		if id != "" {
			o, err := q.order(of, id)
			if err != nil {
				return nil, nil, e.explain(err)
			}
			return []foundGuest{{orderID: o.ID, state: string(o.State)}}, nil, nil
		}
		found, err := q.guestsThat(e.ctx, match)
		var others []foundGuest
		for _, g := range found {
			if phone == "" || asked || phoneKey(valueOr(g.phone, "")) == phoneKey(phone) {
				named = append(named, g)
			} else {
				others = append(others, g)
			}
		}
		return named, phonesOf(others), err
	}, err
}

// phonesOf returns the telephone numbers of guests as they were written, each once.
func phonesOf(guests []foundGuest) []string {
	phones := []string{}
	for _, g := range guests {
		phones = append(phones, valueOr(g.phone, ""))
	}
	slices.Sort(phones)
	return slices.Compact(phones)
}

// ordersOf returns the orders of guests, and how many of them are under way.
func ordersOf(guests []foundGuest) (ids []string, underWay int) {
	for _, g := range guests {
		ids = append(ids, g.orderID)
		if slices.Contains([]string{orderOpen, orderAuthorized, orderAccepted}, g.state) {
			underWay++
		}
	}
	return ids, underWay
}

// orderErase erases guests.
func orderErase(e *env) error {
	find, err := e.guestFinder()
	if err != nil {
		return err
	}
	err = e.confirm(func(q *queries) (string, error) {
		guests, _, err := find(q)
		if err != nil || len(guests) == 0 {
			return "", err
		}
		_, underWay := ordersOf(guests)
		text := "erases the guests of " + countOf(len(guests), "order")
		if underWay > 0 {
			text += fmt.Sprintf(", %d of them under way: nobody will know who gets these, and where", underWay)
		}
		if e.str("phone") != "" {
			text += ", with the numbers " + strings.Join(phonesOf(guests), "; ")
		}
		return text, nil
	})
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		guests, alike, err := find(st.queries)
		if err != nil {
			return err
		}
		orderIDs, underWay := ordersOf(guests)
		erased, err := st.eraseGuests(e.ctx, orderIDs)
		if err != nil {
			return err
		}
		note, copies := e.eraseFromWAL(st, "what was known of them", erased)
		line := countOf(erased, "guest") + " erased; " + note
		if len(alike) > 0 {
			line += "\nnot erased, but alike; if one is the same person's, erase it as it is written: " +
				printable(strings.Join(alike, "; "))
		}
		return e.print(map[string]any{"erased": erased, "under_way": underWay, "note": note, "copies": copies,
			"similar": alike}, line)
	})
}

func orderSettle(e *env) error {
	asked, err := changed(e, func(t *tx) (int, error) {
		asked, err := pollOrder(t, anyAccount, e.args[0])
		return asked, e.explain(err)
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
