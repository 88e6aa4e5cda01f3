package main

import "fmt"

// The operator's commands on payouts.
var payoutCommands = []command{
	{"payout list", "", "list what providers pay out, the last to arrive first", []option{
		optLimit, optFromDay.says("first day of arrival, as 2026-11-01; by default 30 days ago"),
		optToDay.says("last day of arrival, included; by default all"),
		optAccount.says("show only payouts to this account"),
	}, listCommand{route: "GET /payouts", cell: payoutCell,
		columns: "ID ARRIVES=arrival_date PROVIDER STATE REASON AMOUNT CURRENCY FEE TAX ITEMS ACCOUNT=account_id"}.run},
	{"payout show", "PAYOUT", "show a payout with the sums of what is in it", nil,
		routeCommand{route: "GET /payouts/{id}", show: showPayout}.run},
	{"payout confirm", "PAYOUT", "say that a payout is on the bank's statement with this amount, so that it and the " +
		"others of its connection are booked: at Vipps nothing reports that they arrive", []option{optUnasked},
		routeCommand{route: "POST /payouts/{id}/confirm", text: "${id} was compared with the bank",
			asks: asking("says that ${id} has arrived with ${amount money} on ${arrival_date}, so that the payouts " +
				"of its connection are booked")}.run},
	{"payout export", "PAYOUT", "print what is in a payout, with the orders: one JSON object a line, or CSV",
		[]option{optCSV}, listCommand{export: true, route: "GET /payouts/{id}/items", cell: payoutCell,
			columns: "id category kind amount fee tax net method at order_id payment_id refund_id dispute_id " +
				"source"}.run},
}

// payoutCell is a cellFunc for payouts and their rows: every number but those of rows is an amount.
func payoutCell(member string, row *jsonValue) any {
	n, is := memberAt(row, member).integer()
	if !is || member == "items" {
		return nil
	}
	return amountCell(formatSigned(n))
}

// showPayout prints a payout, and the sums of what is in it.
func showPayout(e *env, answer *jsonValue) error {
	var rows []detail
	for _, m := range membersOf(answer) {
		switch m.label {
		case "sums":
			continue
		case "amount", "fee", "tax":
			m.value = fmt.Sprint(payoutCell(m.label, answer))
		}
		rows = append(rows, m)
	}
	if err := e.printDetails(nil, rows); err != nil {
		return err
	}
	fmt.Fprintln(e.stdout)
	return e.printRows("CATEGORY METHOD ITEMS AMOUNT FEE TAX NET", payoutCell, elementsOf(memberAt(answer, "sums")))
}
