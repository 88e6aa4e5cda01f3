package main

import (
	"slices"
	"testing"
	"time"
)

// addPayout has the provider pay out what an order that was paid has brought, less a fee of 1.08, three days ago.
// change changes what it says of the payout, or its rows.
func (s *service) addPayout(o *order, change ...func(told *payoutReport, rows *[]ledgerRow)) (row *payout) {
	s.t.Helper()
	now := s.server.now()
	rows := []ledgerRow{{id: "txn_" + o.ID[4:], category: rowPayment, kind: "charge", amount: o.OrderedTotal, fee: 108,
		currency: o.Currency, at: now, paymentID: *o.PaymentID, source: "ch_" + o.ID}}
	told := payoutReport{providerID: "po_" + o.ID, currency: o.Currency, automatic: true, method: "standard",
		arrival: now.AddDate(0, 0, -3).Format(time.DateOnly), status: payoutPaid, complete: true}
	for _, r := range rows {
		told.amount += r.net()
	}
	for _, f := range change {
		f(&told, &rows)
	}
	s.change(func(t *tx) error {
		p, err := t.payment(*o.PaymentID)
		if err != nil {
			return err
		}
		c, err := t.paymentConnection(anyAccount, p.ConnectionID)
		if err != nil {
			return err
		}
		if err := adoptPayout(t, c, &told); err != nil {
			return err
		}
		row, err = t.payoutOf(o.AccountID, c.Provider, told.providerID)
		if err == nil && row.State == payoutReading {
			err = new(payouts).addPage(t, row, rows, "")
		}
		return err
	})
	return row
}

// Against an application with books:write alone that learns amounts of payouts, and against the id of a payout of
// another account.
func TestPayoutHTTP_isPreviewedAndSentByItsID(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		mapping := k.mapping()
		for _, kind := range []bookMappingKind{ruleFee, ruleFeeTax, ruleDisputeFee, ruleTransit} {
			account := mapping.clearing(methodCard).Account
			mapping.Lines = append(mapping.Lines, mappingRule{Kind: kind, Account: account})
		}
		k.asked("GET", at+"/mapping", "").is(200).contains(`"warnings":[]`)
		want := map[string]string{productXero: "Another connector of the payment provider",
			productFortnox: "Fortnox' own product for Stripe"}[k.product]
		body := string(encodeJSON(mapping))
		k.asked("PUT", at+"/mapping", body).is(200).contains(`"warnings":["` + want + " would book ")
		k.asked("GET", at+"/mapping", "").is(200).contains(want)
		k.set(func(c *bookConnection) { c.Tests = true })
		k.sql(`DELETE FROM books_switches`) // since ever

		o := anOrder(k.account)
		o.Currency = k.currency
		k.addOrder(o)
		k.change(func(t *tx) error { return bringTo(t, o, orderPaid) })
		p := k.addPayout(o)
		preview := at + "/payouts/" + p.ID + "/preview"
		k.asked("GET", preview, "").is(200).contains(`"reason":"day_not_posted"`, `"final":true`, `"entry":null`)
		x := k.asked("POST", at+"/exports", `{"payout":"`+p.ID+`"}`).is(200).contains(`"payout_id":"`+p.ID+`"`,
			`"part":"payout"`, `"date":"`+*p.ArrivalDate+`"`, ":payout:stripe:po_"+o.ID+`:r1"`).body
		equal(t, "the export", k.asked("POST", at+"/exports", `{"payout":"`+p.ID+`"}`).is(200).body, x)
		for wrong, why := range map[string]string{`"payout":"` + p.ID + `","date":"` + bookkeeperDay + `"`: "not_both",
			`"payout":"` + o.ID + `"`: "invalid_id", ``: "required"} {
			k.asked("POST", at+"/exports", "{"+wrong+"}").is(422, "validation_failed").contains(`"code":"` + why + `"`)
		}
		unread := k.addPayout(o, func(told *payoutReport, _ *[]ledgerRow) {
			told.providerID, told.complete = "po_2", false
		})
		k.asked("POST", at+"/exports", `{"payout":"`+unread.ID+`"}`).is(409, "payout_state")
		k.asked("GET", at+"/payouts/"+unread.ID+"/preview", "").is(200).contains(`"final":false`)

		foreign := anOrder(k.addAccount("Another"))
		foreign.ReturnURL = "https://another.example/thanks"
		k.change(func(t *tx) error {
			originTable.insert(t, &originRow{"https://another.example", foreign.AccountID, t.now})
			return nil
		})
		k.addOrder(foreign)
		k.change(func(t *tx) error { return bringTo(t, foreign, orderPaid) })
		other := k.addPayout(foreign)
		k.asked("POST", at+"/exports", `{"payout":"`+other.ID+`"}`).is(404, "payout_not_found")
		k.asked("GET", at+"/payouts/"+other.ID+"/preview", "").is(404, "payout_not_found")
		auth := "Authorization: Bearer " + k.token(k.account, scopeBooks)
		k.get("/books/connections"+preview, auth).is(403, "insufficient_scope")
		k.get("/payouts", auth).is(403, "insufficient_scope")

		k.asked("PATCH", at, `{"payouts_from":"1999-12-01"}`).is(422, "validation_failed").contains("/payouts_from")
		k.asked("PATCH", at, `{"payouts_from":"1999-12-01","history":true}`).is(200).contains(
			`"payouts_from":"1999-12-01"`)
		k.asked("PATCH", at, `{"payouts_from":null}`).is(200).contains(`"payouts_from":null`)
	})
}

func TestPayoutHTTP_commandsPreviewAndSendIt(t *testing.T) {
	t.Parallel()
	xero := newXeroFake(t, time.Now)
	s := newService(t, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.urls = demoOutbound, map[string]string{"xero-url": xero.base}
	})
	books := s.connectToXero(xero)
	p := s.addPayout(s.orderIn(orderPaid))
	out := s.must(booksLine(xero, "books", "payout", books, p.ID)...)
	contains(t, out, "unmapped  No mapping was confirmed yet.")
	contains(t, s.must("books", "export", "payout", books, p.ID), "payout  1         waiting")
	contains(t, s.must("books", "export", "list"), "  payout  ")
	contains(t, s.must("books", "set", books, "-payouts-from", "2026-01-01", "-history", "-json"),
		`"payouts_from":"2026-01-01"`)
}

// TestDocs_sayWhyPayoutsAreHeld holds the chapter against the reasons and events of payouts.
func TestDocs_sayWhyPayoutsAreHeld(t *testing.T) {
	t.Parallel()
	chapter := chapterOf(t, newDocsPage(t), "payouts")
	want := []string{heldNotPosted, heldNoMethod}
	for _, h := range payoutHolds {
		want = append(want, h.reason)
	}
	found := captures(`<tr role="row"><td role="cell"><code>(\w+)</code>`, chapter)
	slices.Sort(want)
	slices.Sort(found)
	if !slices.Equal(found, want) {
		t.Errorf("the chapter has %q, want %q", found, want)
	}
	for _, kind := range payoutEvents.types {
		contains(t, chapter, "<code>"+string(kind)+"</code>")
	}
}
