package main

import "fmt"

// The commands on payouts, which are names for routes.
var payoutRouteCommands = []routeCommand{
	{name: "payout list", route: "GET /payouts", rows: &listCommand{columns: "ID " +
		"ARRIVES=arrival_date PROVIDER STATE REASON AMOUNT FEE TAX ITEMS ACCOUNT=account_id"}},
	{name: "payout show", route: "GET /payouts/{id}", help: "show a payout with the sums of what is in it"},
	{name: "payout confirm", route: "POST /payouts/{id}/confirm", options: []option{optUnasked},
		help: "say that a payout is on the bank's statement with this amount, so that it and the others of its " +
			"connection are booked: at Vipps nothing reports that they arrive",
		plan: planConfirming, text: "${id} was compared with the bank"},
	{name: "payout export", route: "GET /payouts/{id}/items",
		help: "print what is in a payout, with the orders: one JSON object a line, or CSV",
		rows: &listCommand{export: true, columns: "id category kind amount fee tax net method at " +
			"order_id payment_id refund_id dispute_id source"}},
}

// planConfirming says what confirming a payout does.
func planConfirming(e *env, q *queries) (_, plan string, err error) {
	p, err := q.payout(anyAccount, e.args[0])
	if err != nil {
		return "", "", err
	}
	return "", fmt.Sprintf("says that %s has arrived with %s on %s, so that the payouts of its connection are booked",
		p.ID, formatMoney(p.Amount, p.Currency), valueOr(p.ArrivalDate, "?")), nil
}
