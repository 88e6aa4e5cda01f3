package main

// The commands on payouts, which are names for routes.
var payoutRouteCommands = []routeCommand{
	{name: "payout list", route: "GET /payouts", rows: &listCommand{columns: "ID " +
		"ARRIVES=arrival_date PROVIDER STATE REASON AMOUNT FEE TAX ITEMS ACCOUNT=account_id"}},
	{name: "payout show", route: "GET /payouts/{id}", help: "show a payout with the sums of what is in it"},
	{name: "payout confirm", route: "POST /payouts/{id}/confirm", options: []option{optUnasked},
		help: "say that a payout is on the bank's statement with this amount, so that it and the others of its " +
			"connection are booked: at Vipps nothing reports that they arrive",
		text: "${id} was compared with the bank",
		asks: asking("says that ${id} has arrived with ${amount money} on ${arrival_date}, so that the payouts " +
			"of its connection are booked")},
	{name: "payout export", route: "GET /payouts/{id}/items",
		help: "print what is in a payout, with the orders: one JSON object a line, or CSV",
		rows: &listCommand{export: true, columns: "id category kind amount fee tax net method at " +
			"order_id payment_id refund_id dispute_id source"}},
}
