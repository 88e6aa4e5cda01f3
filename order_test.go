package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// anOrder is an order of two lines, delivery and a tip: 59.00 in all.
func anOrder(account string) *order {
	return &order{AccountID: account, Currency: "CHF", Discount: 300, Delivery: 700, DeliveryRate: 260, Tip: 200,
		ReturnURL: siteOrigin + "/thanks", Lines: []orderLine{
			{Name: "Pizza Margherita", Quantity: 2, UnitAmount: 1850, VATRate: 260, Group: "food"},
			{Name: "House wine, 0.5 l", Quantity: 1, UnitAmount: 1600, VATRate: 810},
		}}
}

const anActor = "token tok_00000000000000000000000000"

// addOrder adds an order of the main account, made as o says; nil: as anOrder.
func (s *service) addOrder(o *order) *order {
	s.t.Helper()
	if o == nil {
		o = anOrder(s.account)
	}
	s.change(func(t *tx) error {
		who := guest{Name: ptr("Ada Keller"), Phone: ptr("+41 44 555 01 23")}
		_, err := createOrder(t, o, who, minOrderLife, anActor)
		return err
	})
	return o
}

// orderIn adds an order of the main account and brings it to a state, as the service and a provider would:
// one that is paid was paid by card.
func (s *service) orderIn(state string) *order {
	s.t.Helper()
	o := s.addOrder(nil)
	s.change(func(t *tx) error { return bringTo(t, o, state) })
	return o
}

// bringTo brings an open order to a state.
func bringTo(t *tx, o *order, state string) error {
	if state == orderOpen {
		return nil
	}
	if state == orderCancelled || state == orderExpired {
		return endOrder(t, o, orderState(state), "cancelled", anActor)
	}
	if err := addAttempt(t, o, paymentAuthorized); err != nil {
		return err
	}
	o.State, o.AuthorizedAt, o.AcceptBy = orderAuthorized, t.now, t.now.after(minOrderLife)
	if state == orderAuthorized {
		t.saveOrder(o)
		return nil
	}
	if o.State, o.AcceptedAt = orderAccepted, t.now; state == orderAccepted {
		t.saveOrder(o)
		return nil
	}
	if err := capturedAll(t, o); err != nil {
		return err
	}
	if err := markPaid(t, o, methodCard, t.now, anActor); err != nil || state == orderPaid {
		return err
	}
	w := newRefund{}
	if state == orderPartRefunded {
		w.amount = ptr(int64(100))
	}
	_, f, err := refundOrder(t, anyAccount, o.ID, w, anActor)
	if err != nil {
		return err
	}
	now, err := t.order(anyAccount, o.ID)
	if err != nil {
		return err
	}
	*o = *now
	return endRefund(t, o, f, "", anActor)
}

// addAttempt adds an attempt to pay an order by card, in a state.
func addAttempt(t *tx, o *order, state string) error {
	connection := t.newID("con")
	t.exec(`INSERT INTO payment_connections (id, account_id, provider, live, secrets, created_at)
		VALUES (?, ?, 'stripe', 0, x'00', ?) ON CONFLICT DO NOTHING`, connection, o.AccountID, t.now)
	if err := t.one(`SELECT id FROM payment_connections WHERE account_id = ? AND removed_at IS NULL`,
		[]any{o.AccountID}, &connection); err != nil {
		return err
	}
	p := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: connection,
		Provider: providerStripe, Method: methodCard, State: paymentState(state), Amount: o.Total, Currency: o.Currency,
		CreatedAt: t.now}
	t.addPayment(p)
	authorized := int64(0)
	if state == paymentAuthorized {
		authorized = o.Total
	}
	t.exec(`UPDATE payments SET authorized = ? WHERE id = ?`, authorized, p.ID)
	o.PaymentID, o.Method, o.Attempts = &p.ID, ptr[orderMethod](methodCard), o.Attempts+1
	t.saveOrder(o)
	return nil
}

// capturedAll writes that the total of an order was captured.
func capturedAll(t *tx, o *order) error {
	_, err := t.try(`UPDATE payments SET state = 'captured', authorized = 0, captured = ? WHERE id = ?`, o.Total,
		*o.PaymentID)
	return err
}

// changeOrder changes an order as it is stored.
func (s *service) changeOrder(id string, f func(*tx, *order) error) {
	s.t.Helper()
	s.change(func(t *tx) error {
		o, err := t.order(anyAccount, id)
		if err != nil {
			return err
		}
		return f(t, o)
	})
}

// plainReject is rejectOrder without a reason.
func plainReject(t *tx, by owner, id, actor string) (*order, error) {
	return rejectOrder(t, by, id, orderRejection{}, actor)
}

// row returns an order as it is stored.
func (s *service) row(id string) *order {
	s.t.Helper()
	o, err := s.store.order(anyAccount, id)
	s.check(err)
	return o
}

// orderBody is the body of POST /orders that makes anOrder, with members set to others as JSON, or left out
// for "".
func orderBody(changes ...string) string {
	members := map[string]string{
		"currency": `"CHF"`, "discount": "300", "delivery": `{"amount":700,"vat_rate":260}`, "tip": "200",
		"return_url": `"` + siteOrigin + `/thanks"`,
		"customer":   `{"name":"Ada Keller","phone":"+41 44 555 01 23","note":"Ring\ntwice"}`,
		"fulfilment": aDelivery(""), "language": `"de-CH"`,
		"lines": `[{"name":"Pizza Margherita","quantity":2,"unit_amount":1850,"vat_rate":260,"group":"food"},
			{"name":"House wine, 0.5 l","quantity":1,"unit_amount":1600,"vat_rate":810}]`,
	}
	for i := 0; i < len(changes); i += 2 {
		if members[changes[i]] = changes[i+1]; changes[i+1] == "" {
			delete(members, changes[i])
		}
	}
	parts := []string{}
	for name, value := range members {
		parts = append(parts, fmt.Sprintf("%q:%s", name, value))
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ",") + "}"
}

// seller issues a token of the main account that reads and writes orders.
func (s *service) seller() string {
	s.t.Helper()
	return "Authorization: Bearer " + s.token(s.account, scopeOrders+" "+scopeSelling)
}

// holds checks members of an answer, each "name=JSON".
func (a answer) holds(members ...string) answer {
	a.t.Helper()
	for _, m := range members {
		name, want, _ := strings.Cut(m, "=")
		if got, _ := json.Marshal(a.json()[name]); string(got) != want {
			a.t.Fatalf("%s is %s, want %s: %s", name, got, want, a.body)
		}
	}
	return a
}

func TestOrder_isAddedUpWithItsVATByRate(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	cart := `"` + siteOrigin + "/" + strings.Repeat("x", maxOrderReturnURL-len(siteOrigin)-1) + `"`
	body := orderBody("reference", `"R-1"`, "language", `"DE-ch"`, "cancel_url", cart)
	made := s.post("/orders", body, auth).is(200).holds(
		"cancel_url="+cart, `return_url="`+siteOrigin+`/thanks"`,
		`state="open"`, `ordered_total=5900`, `total=5900`, `discount=300`, `tip=200`, `refunded=0`,
		`reference="R-1"`, `method=null`,
		`vat=[{"gross":4180,"rate":260,"vat":106},{"gross":1520,"rate":810,"vat":114}]`,
		`lines=[{"accepted":2,"amount":3515,"group":"food","name":"Pizza Margherita","quantity":2,`+
			`"refunded":0,"unit_amount":1850,"vat_rate":260},`+
			`{"accepted":1,"amount":1520,"group":null,"name":"House wine, 0.5 l","quantity":1,`+
			`"refunded":0,"unit_amount":1600,"vat_rate":810}]`,
		`delivery={"amount":700,"vat_rate":260}`,
		`customer={"name":"Ada Keller","note":"Ring\ntwice","phone":"+41 44 555 01 23"}`, `payment=null`,
		`fulfilment={"address":{"city":"Zürich","country":"CH","line1":"Seestrasse 12","line2":null,`+
			`"postal_code":"8002"},"table":null,"type":"delivery","wanted_at":null}`, `language="de-CH"`)
	id := made.text("id")
	base, k, _ := strings.Cut(made.text("pay_url"), "?k=")
	if base != testBase+"/pay/"+id || len(k) != 22 || string(hashOf(k)) != string(s.row(id).PageKey) {
		t.Errorf("pay_url %s", made.text("pay_url"))
	}
	equal(t, "how long it lives", s.row(id).ExpiresAt.Sub(s.row(id).CreatedAt.Time), minOrderLife)
	for path, data := range map[string]bool{"/orders/" + id: false, "/orders?reference=R-1": true,
		"/orders?state=open": true} {
		var shown map[string]any
		if a := s.get(path, auth).is(200); data {
			shown = a.json()["data"].([]any)[0].(map[string]any)
		} else {
			shown = a.holds(`refunds=[]`, `payments=[]`, `disputes=[]`).json()
		}
		if _, has := shown["pay_url"]; has || shown["id"] != id || shown["customer"] == nil {
			t.Errorf("%s: %v", path, shown)
		}
	}
	if rows := s.get("/orders?state=paid", auth).is(200).json()["data"].([]any); len(rows) != 0 {
		t.Errorf("paid: %v", rows)
	}
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'order.created' AND subject_id = ? AND
		data = '{"currency":"CHF","total":"5900"}'`, id); n != 1 {
		t.Errorf("events\n%s", s.dump())
	}
}

func TestOrder_ofNothingIsPaidAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	a := s.post("/orders", orderBody("discount", "6000", "tip", "0"), s.seller()).is(200).holds(`state="paid"`,
		`method="none"`, `total=0`, `vat=[]`)
	given := s.post("/orders", orderBody("discount", "6000", "tip", "0"), s.seller()).is(200).text("id")
	s.post("/orders/"+given+"/cancel", "{}", s.seller()).is(200).holds(`state="cancelled"`)
	s.post("/orders/"+given+"/cancel", "{}", s.seller()).is(409, "order_state")
	if s.count(`SELECT count(*) FROM events WHERE subject_id = ? AND type IN ('order.created', 'order.paid')`,
		a.text("id")) != 2 {
		t.Error("an event is missing")
	}
	s.post("/orders/"+a.text("id")+"/refunds", "", s.seller()).is(409, "refund_too_large").holds(`refundable=0`)
}

// Against a tenant with a return_url or cancel_url who would send guests from a pay page to another site: its origin
// must be one of the account's.
func TestOrder_refusesWhatIsNoOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other := s.addAccount("other")
	s.change(func(t *tx) error { return addOrigin(t, other, "https://other.example", anActor) })
	line := func(quantity, unit, rate string) string {
		return `[{"name":"x","quantity":` + quantity + `,"unit_amount":` + unit + `,"vat_rate":` + rate + `}]`
	}
	lines := "[" + strings.TrimSuffix(strings.Repeat(`{"name":"x","quantity":1,"unit_amount":1,"vat_rate":0},`,
		201), ",") + "]"
	auth, before := s.seller(), s.dump()
	for _, c := range []struct{ name, value, wrong string }{
		{"currency", `"chf"`, "#/currency unknown_currency"},
		{"currency", `"HUF"`, "#/currency unknown_currency"},
		{"lines", lines, "#/lines wrong_length"},
		{"lines", line("1.5", "1", "0"), "#/lines/0/quantity out_of_range"},
		{"lines", line("1e400", "1", "0"), "#/lines/0/quantity out_of_range"},
		{"lines", line("2", "1000000000000", "0"), "#/lines/0 amount_too_large"},
		{"lines", line("1", "1000000000000", "0"), "#/lines amount_too_large"}, // with delivery
		{"discount", "6001", "#/discount out_of_range"},                        // the tip is not discounted
		{"tip", "1000000000000", "#/lines amount_too_large"},
		{"delivery", `null`, "#/delivery wrong_type #/delivery/amount required #/delivery/vat_rate required"},
		{"cancel_url", `7`, "#/cancel_url wrong_type"},
		{"cancel_url", `"` + siteOrigin + "/" + strings.Repeat("x", maxOrderReturnURL-len(siteOrigin)) + `"`,
			"#/cancel_url too_long"},
	} {
		a := s.post("/orders", orderBody(c.name, c.value), auth).is(422, "validation_failed")
		equal(t, c.name+" "+c.value, strings.Join(a.wrong(), " "), c.wrong)
	}
	for _, name := range []string{"return_url", "cancel_url"} {
		for value, wrong := range map[string]string{
			"https://other.example/thanks": "origin_not_listed", "http://www.example.com/": "origin_not_listed",
			"https://www.example.com.evil.example/": "origin_not_listed", "/thanks": "invalid_url",
			"https://evil.example#@www.example.com/": "origin_not_listed", "//www.example.com/": "invalid_url",
			"https://www.example.com@evil.example/":        "invalid_url",
			"javascript:alert(1)//https://www.example.com": "invalid_url",
		} {
			a := s.post("/orders", orderBody(name, `"`+value+`"`), auth).is(422, "validation_failed")
			equal(t, name+" "+value, strings.Join(a.wrong(), " "), "#/"+name+" "+wrong)
		}
	}
	s.post("/orders", orderBody("lines", "["+strings.Repeat(" ", 64<<10)+"]"), auth).is(413, "body_too_large")
	s.unchanged(before)
	two := strings.Replace(lines, `{"name":"x","quantity":1,"unit_amount":1,"vat_rate":0},`, "", 1)
	s.post("/orders", orderBody("lines", two, "discount", "0", "expires_in", "86400"), auth).is(200).holds(`total=1100`)
}

// TestOrder_isFoundByWhatAGuestSays: by four symbols within 7 days, later by six.
func TestOrder_isFoundByWhatAGuestSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.auth(s.account, scopeOrders)
	var made []*order
	for _, age := range []time.Duration{0, 8 * 24 * time.Hour} {
		s.change(func(tx *tx) error {
			o := anOrder(s.account)
			o.Reference = ptr(fmt.Sprintf("Tisch %d", len(made)))
			if _, err := createOrder(tx, o, guest{}, minOrderLife, anActor); err != nil {
				return err
			}
			made = append(made, o)
			if age > 0 {
				id := newID("ord", time.Now().Add(-age))
				tx.exec(`UPDATE orders SET id = ? WHERE id = ?`, id, o.ID)
				o.ID = id
			}
			return nil
		})
	}
	said, old := strings.ToUpper(made[0].ID[26:]), made[1].ID
	equal(t, "what the page says", shortNumber(made[0]), *made[0].Reference)
	for _, q := range []string{said, "ord_" + said, "tisch+0"} {
		rows := s.get("/orders?q="+q, auth).is(200).json()["data"].([]any)
		if len(rows) != 1 || rows[0].(map[string]any)["id"] != made[0].ID {
			t.Errorf("%s: %v", q, rows)
		}
	}
	for _, q := range []string{said[1:], old[24:], "tisch+1", "%25"} {
		if rows := s.get("/orders?q="+q, auth).is(200).json()["data"].([]any); len(rows) != 0 {
			t.Errorf("%s: %v", q, rows)
		}
	}
	for _, line := range [][]string{{"order", "show", said}, {"order", "show", made[1].ID[24:]},
		{"order", "list", "-search", said}} {
		out, err := s.command(line...)
		s.check(err)
		contains(t, out, "Tisch")
	}
	_, err := s.command("order", "show", old[26:])
	oneLine(t, err, "ends of ids have at least 6 symbols, of orders of the last 7 days 4")
}

// withFewOpenOrders lets an account have ten of them.
var withFewOpenOrders = withLimits(func(most *limits) { most.openOrders = size(10, most.openOrders) })

// Against a tenant who would fill the disk or the provider with orders: 10,000 open orders an account, 200 lines,
// 20 attempts, 100 refunds.
func TestOrder_accountHasTenThousandOpenOnesAtMost(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t, withFewOpenOrders)
	o := s.addOrder(nil)
	s.orderIn(orderAccepted) // one that was paid online is open no more, others are until they are paid
	s.sql(manyRows(s.store.limits.openOrders-2)+`
		INSERT INTO orders (id, account_id, state, currency, lines, ordered_total, total, vat,
			return_url, page_key, expires_at, created_at, pay)
		SELECT printf('ord_%026d', n.i), account_id, iif(n.i > 2, 'accepted', state), currency, lines, ordered_total,
			total, vat, return_url, page_key, expires_at, created_at, iif(n.i > 2, 'later', pay)
		FROM n, orders WHERE id = ?`, o.ID)
	s.post("/orders", orderBody(), s.seller()).is(200)
	s.post("/orders", orderBody(), s.seller()).is(409, "order_limit_reached")
	s.post("/orders/"+o.ID+"/paid", `{"method":"cash"}`, s.seller()).is(200)
	s.post("/orders", orderBody(), s.seller()).is(200)
	s.do("DELETE", "/orders/"+o.ID+"/paid", "", s.seller()).is(409, "order_limit_reached")
	s.sql(`UPDATE orders SET state = 'cancelled' WHERE id = 'ord_00000000000000000000000001'`)
	s.do("DELETE", "/orders/"+o.ID+"/paid", "", s.seller()).is(200)
}

// TestOrder_goesFromStateToStateAsItMay tries every call in every state. A call that is not named for a
// state must be refused and change nothing.
func TestOrder_goesFromStateToStateAsItMay(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	may := map[string]map[string]string{ // by call: from state to state
		"accept":      {orderAuthorized: orderAccepted},
		"capture":     {orderAccepted: orderAccepted},
		"reject":      {orderAuthorized: orderCancelled},
		"cancel":      {orderOpen: orderCancelled, orderAuthorized: orderCancelled, orderAccepted: orderCancelled},
		"refunds":     {orderPaid: orderPaid, orderPartRefunded: orderPartRefunded},
		"paid":        {orderOpen: orderPaid, orderExpired: orderPaid},
		"DELETE paid": {"outside": orderOpen},
	}
	states := append(asTexts(orderStates), "outside")
	for call, from := range may {
		for _, state := range states {
			if state == "outside" && call == "refunds" {
				continue // TestRefund_ofMoneyThatPaysNothingIsNoneOfTheOrders
			}
			o := s.orderIn(strings.Replace(state, "outside", orderOpen, 1))
			if state == "outside" {
				s.post("/orders/"+o.ID+"/paid", `{"method":"voucher"}`, auth).is(200)
			}
			before := s.row(o.ID)
			revision := s.count(`SELECT coalesce(sum(revision), 0) FROM payments WHERE order_id = ?`, o.ID)
			method, path, body := "POST", call, map[string]string{"paid": `{"method":"cash"}`}[call]
			if call == "DELETE paid" {
				method, path = "DELETE", "paid"
			}
			a := s.do(method, "/orders/"+o.ID+"/"+path, body, auth)
			if a.status == 409 && call != "refunds" {
				a.is(409, "order_state")
			}
			after := s.row(o.ID)
			want, allowed := from[state]
			looked := s.count(`SELECT coalesce(sum(revision), 0) FROM payments WHERE order_id = ?`, o.ID) > revision
			switch {
			case allowed && (a.status != 200 || string(after.State) != want):
				t.Errorf("%s of one that is %s: %d, %s", call, state, a.status, after.State)
			case allowed && before.PaymentID != nil && !looked:
				t.Errorf("%s of one that is %s has nobody look at its payment", call, state)
			case !allowed && (a.status != 409 || encode(after) != encode(before) || looked):
				t.Errorf("%s of one that is %s: %d, %s", call, state, a.status, after.State)
			}
		}
	}
}

func TestOrder_isAcceptedInPart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	o := s.orderIn(orderAuthorized)
	path := "/orders/" + o.ID + "/accept"
	for _, c := range []struct{ lines, wrong string }{
		{`[{"line":0,"quantity":3}]`, "#/lines/0/quantity out_of_range"},
		{`[{"line":0,"quantity":-1}]`, "#/lines/0/quantity out_of_range"},
		{`[{"line":2,"quantity":0}]`, "#/lines/0/line unknown_value"},
		{`[{"line":0,"quantity":1},{"line":0,"quantity":1}]`, "#/lines/1/line repeated"},
		{`[{"line":0,"quantity":0},{"line":1,"quantity":0}]`, "#/lines nothing_left"},
	} {
		s.post(path, `{"lines":`+c.lines+`}`, auth).is(422, "validation_failed").names(c.wrong)
	}
	s.post(path, `{"lines":[{"line":0,"quantity":1}]}`, auth).is(200).holds(`state="accepted"`, `total=4143`,
		`ordered_total=5900`, `vat=[{"gross":2423,"rate":260,"vat":61},{"gross":1520,"rate":810,"vat":114}]`)
	equal(t, "events", s.count(`SELECT count(*) FROM events WHERE type = 'order.accepted'
		AND data = '{"currency":"CHF","ordered_total":"5900","total":"4143"}'`), 1)
}

// randomOrder adds a random order that is paid, of which perhaps a part was accepted.
func randomOrder(t *tx, account string, random *rand.Rand) (*order, error) {
	o := &order{AccountID: account, Currency: "EUR", ReturnURL: siteOrigin, Tip: random.Int64N(3) * 77,
		Delivery: random.Int64N(2) * 499, DeliveryRate: 1900}
	sum := o.Delivery
	for range 1 + random.IntN(5) {
		l := orderLine{Name: "x", Quantity: 1 + random.Int64N(7), UnitAmount: random.Int64N(2000),
			VATRate: []int64{0, 700, 1900, 810}[random.IntN(4)]}
		o.Lines, sum = append(o.Lines, l), sum+l.Quantity*l.UnitAmount
	}
	o.Discount = random.Int64N(sum/2 + 1)
	if _, err := createOrder(t, o, guest{}, minOrderLife, anActor); err != nil || o.Total == 0 {
		return o, err
	}
	if err := bringTo(t, o, orderAuthorized); err != nil {
		return o, err
	}
	var lines []linePart
	for i, l := range o.Lines {
		if random.IntN(3) == 0 {
			lines = append(lines, linePart{Line: i, Quantity: random.Int64N(l.Quantity + 1)})
		}
	}
	accepted, err := acceptOrder(t, anyAccount, o.ID, lines, stamp{}, anActor)
	if err != nil { // nothing would be left
		accepted, err = acceptOrder(t, anyAccount, o.ID, nil, stamp{}, anActor)
	}
	if err != nil {
		return o, err
	}
	*o = *accepted
	if err := capturedAll(t, o); err != nil {
		return o, err
	}
	return o, markPaid(t, o, methodCard, t.now, anActor)
}

// randomWish is a wish to give something of an order back.
func randomWish(o *order, random *rand.Rand) (w newRefund) {
	switch random.IntN(4) {
	case 3:
		for i := range o.Lines {
			if random.IntN(2) == 0 {
				w.lines = append(w.lines, linePart{Line: i, Amount: 1 + random.Int64N(900)})
			}
		}
		w.delivery, w.tip = random.Int64N(2)*(1+random.Int64N(300)), random.Int64N(2)*(1+random.Int64N(80))
	case 0:
		w.amount = ptr(1 + random.Int64N(max(1, (o.Total-o.Refunded)/2)))
	case 1:
		for i, l := range o.Lines {
			if left := l.Accepted - l.Refunded; left > 0 && random.IntN(2) == 0 {
				w.lines = append(w.lines, linePart{Line: i, Quantity: 1 + random.Int64N(left)})
			}
		}
	}
	if !w.namesParts() && w.amount == nil && random.IntN(3) > 0 {
		w.amount = ptr(int64(1))
	}
	return w
}

// endRefund writes that a refund of an order has ended: it succeeded, or failed if failure says why. The amount of one
// that has failed can be given back again.
func endRefund(t *tx, o *order, f *refund, failure, actor string) error {
	m, err := moneyOf(t, o, nil)
	if err != nil {
		return err
	}
	made := findRefund(m.refunds, f.ID)
	made.end(failure, t.now)
	if err := m.save(t, actor); err != nil {
		return err
	}
	*f = *findRefund(m.refunds, f.ID)
	return nil
}

func TestRefund_isAimedAtPartsOfTheOrder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o, auth := s.orderIn(orderPaid), s.seller()
	path := "/orders/" + o.ID + "/refunds"
	// Pizza 35.15 at 2.6 %, wine 15.20 at 8.1 %, delivery 6.65 at 2.6 %, tip 2.00.
	for _, c := range []struct{ body, amount, vat, rest string }{
		{`{"lines":[{"line":0,"amount":500}]}`, "500", `[{"gross":500,"rate":260,"vat":13}]`,
			`lines=[{"amount":500,"line":0,"quantity":0}]`},
		{`{"lines":[{"line":1,"amount":1},{"line":0,"quantity":1}],"tip":50}`, "1809",
			`[{"gross":1758,"rate":260,"vat":44},{"gross":1,"rate":810,"vat":0}]`, "tip=50"},
		{`{"delivery":300}`, "300", `[{"gross":300,"rate":260,"vat":8}]`, "delivery=300"},
		{`{"delivery":365,"tip":150}`, "515", `[{"gross":365,"rate":260,"vat":9}]`, "lines=null"},
		{`{"lines":[{"line":0,"quantity":1}]}`, "1257", `[{"gross":1257,"rate":260,"vat":32}]`, "tip=0"}, // its rest
	} {
		var f refund
		made := s.post(path, c.body, auth).is(200).holds("amount="+c.amount, "vat="+c.vat, c.rest)
		must(t, json.Unmarshal([]byte(made.body), &f))
		s.changeOrder(o.ID, func(t *tx, o *order) error { return endRefund(t, o, &f, "", anActor) })
	}
	for body, left := range map[string]string{`{"delivery":1}`: "0", `{"tip":1}`: "0",
		`{"lines":[{"line":0,"amount":1}]}`: "0", `{"lines":[{"line":1,"amount":1520}]}`: "1519",
		`{"lines":[{"line":0,"quantity":2}]}`: "1519"} {
		s.post(path, body, auth).is(409, "refund_too_large").holds("refundable=" + left)
	}
	for body, wrong := range map[string]string{
		`{"lines":[{"line":1,"amount":1,"quantity":1}]}`:            "#/lines/0/amount conflict",
		`{"lines":[{"line":1}]}`:                                    "#/lines/0/quantity required",
		`{"lines":[{"line":2,"amount":1}]}`:                         "#/lines/0/line unknown_value",
		`{"lines":[{"line":1,"amount":1},{"line":1,"quantity":1}]}`: "#/lines/1/line repeated",
		`{"lines":[{"line":0,"quantity":0}]}`:                       "#/lines/0/quantity out_of_range",
		`{"lines":[{"line":0,"quantity":1}],"amount":1}`:            "#/lines conflict",
		`{"tip":1,"amount":1}`:                                      "#/tip conflict",
		`{"delivery":1,"amount":1}`:                                 "#/delivery conflict",
	} {
		s.post(path, body, auth).is(422, "validation_failed").names(wrong)
	}
	s.post(path, `{}`, auth).is(200).holds("amount=1519", `vat=[{"gross":1519,"rate":810,"vat":114}]`)
	s.recordRevenue()
	sums := s.facts(o.ID)
	contains(t, strings.Join(sums, "\n"), `[{"what":"refund_delivery","rate":260,"gross":300,"vat":8}]`,
		`{"what":"refund_delivery","rate":260,"gross":365,"vat":9},{"what":"refund_tip","gross":150}]`)
	for _, unpaid := range []*order{s.orderIn(orderOpen), s.orderIn(orderCancelled)} {
		s.post("/orders/"+unpaid.ID+"/refunds", `{"tip":1}`, auth).is(409, "order_state")
	}
}

func TestRefund_askedForTwiceWithinTenSecondsIsMadeOnce(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, _ := s.paid()
		path, auth := "/orders/"+o.ID+"/refunds", s.seller()
		for _, body := range []string{`{"amount":300}`, `{"lines":[{"line":0,"quantity":1}]}`, `{"delivery":200}`,
			`{"lines":[{"line":0,"amount":300}]}`} {
			made := s.post(path, body, auth).is(200).text("id")
			s.post(path, body, auth).is(409, "refund_repeated").holds(fmt.Sprintf("refund_id=%q", made))
			contains(t, s.post(path, body, auth).body, "Idempotency-Key")
		}
		s.post(path, `{"amount":301}`, auth).is(200) // is another one
		equal(t, "refunds", len(s.refundsOf(o.ID)), 5)
		s.post(path, `{"amount":300}`, auth, "Idempotency-Key: again").is(200)
		s.post(path, `{"amount":300}`, auth, "Idempotency-Key: again").is(200) // its answer
		equal(t, "refunds", len(s.refundsOf(o.ID)), 6)
		time.Sleep(refundPause)
		s.post(path, `{"amount":300}`, auth).is(200)
		s.change(func(t *tx) error {
			all, err := t.refundsOf(o.ID)
			if err != nil {
				return err
			}
			return endRefund(t, s.row(o.ID), &all[6], reasonDeclined, anActor)
		})
		s.post(path, `{"amount":300}`, auth).is(200) // since that one has failed

		for _, bodies := range [][2]string{{`{"amount":520}`, `{"tip":100}`}, {`{"tip":100}`, `{"amount":100}`},
			{`{"lines":[{"line":0,"quantity":1}]}`, `{"lines":[{"line":0,"amount":1850}]}`}} {
			o, p := s.authorized(func(o *order) { o.Tip = 1000 })
			s.accept(o.ID)
			s.settle(p) // what is asked for differs, even where what is given back is alike
			for _, body := range bodies {
				s.post("/orders/"+o.ID+"/refunds", body, auth).is(200)
				s.post("/orders/"+o.ID+"/refunds", body, auth).is(409, "refund_repeated")
			}
		}

		s.twint()
		o, _ = s.charged(func(o *order) { o.Tip = 1000 })
		s.accept(o.ID, linePart{Line: 0, Quantity: 1})
		path = "/orders/" + o.ID + "/refunds"
		s.post(path, `{"amount":1850}`, auth).is(200) // which nobody has asked for before
		s.post(path, `{"amount":1850}`, auth).is(409, "refund_repeated")
	})
}

func TestRefund_canBeAskedForAsAnAnswerSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o, auth := s.orderIn(orderPaid), s.seller()
	path := "/orders/" + o.ID + "/refunds"
	s.post(path, `{"amount":4000}`, auth).is(200) // which leaves less of each rate than its lines cost
	left := fmt.Sprint(s.post(path, `{"lines":[{"line":0,"amount":3500}]}`, auth).is(409, "refund_too_large").
		json()["refundable"])
	s.post(path, `{"lines":[{"line":0,"amount":`+left+`}]}`, auth).is(200).holds("amount=" + left)
}

// Against a tenant whose token has orders:write who would give back more than was paid, by many requests at once:
// what is left is reckoned and taken in one transaction.
func TestRefund_neverGivesBackMoreThanIsLeft(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth, path := s.seller(), "/orders/"+s.orderIn(orderPaid).ID+"/refunds"
	s.post(path, `{"amount":5901}`, auth).is(409, "refund_too_large").holds(`refundable=5900`)
	s.post(path, `{"lines":[{"line":0,"quantity":3}]}`, auth).is(409, "refund_too_large")
	s.post(path, `{"payment_id":"`+newID("pay", time.Now())+`"}`, auth).is(422,
		"validation_failed").names("#/payment_id unknown_value")
	s.post(path, `{"amount":4000}`, auth).is(200).holds(`state="pending"`, `tip=136`, `lines=null`)
	s.post(path, `{"lines":[{"line":0,"quantity":2}]}`, auth).is(409, "refund_too_large").holds(`refundable=1900`,
		`detail="Refund an amount instead: at most 19.00 CHF."`)
	s.post(path, `{"lines":[{"line":1,"quantity":1}]}`, auth).is(409, "refund_too_large").holds(`refundable=1520`)
	s.post(path, "", auth).is(200).holds(`amount=1900`, `tip=64`)
	s.post(path, "", auth).is(409, "refund_too_large").holds(`refundable=0`)
	s.get(strings.TrimSuffix(path, "/refunds"), auth).is(200).holds(`refunded=5900`,
		`state="paid"`) // until one succeeds
}

func TestRefund_orderHasAHundredAtMost(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderPaid)
	s.sql(manyRows(s.store.limits.refunds)+`
		INSERT INTO refunds (id, order_id, payment_id, amount, vat, state, made_by, created_at, account_id)
		SELECT printf('ref_%026d', n.i), id, payment_id, 1, '[]', 'failed', 'operator', created_at, account_id
		FROM n, orders WHERE id = ?`, o.ID)
	s.post("/orders/"+o.ID+"/refunds", `{"amount":1}`, s.seller()).is(409, "refund_limit_reached")
	s.sql(`UPDATE refunds SET kind = 'not_accepted' WHERE id LIKE '%0007'`) // which nobody has asked for
	s.post("/orders/"+o.ID+"/refunds", `{"amount":1}`, s.seller()).is(200)
}

// Against a thief whose token has orders:write who would have money sent to itself: a refund names an attempt of
// the order, no card and no account: money goes back only the way it came.
func TestRefund_ofMoneyThatPaysNothingIsNoneOfTheOrders(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	dead := s.orderIn(orderAuthorized)
	s.post("/orders/"+dead.ID+"/reject", "", auth).is(200)
	s.post("/orders/"+dead.ID+"/refunds", "", auth).is(409, "order_state") // nothing was captured
	s.sql(`UPDATE payments SET state = 'review', reason = 'order_is_dead', authorized = 0, captured = 5900
		WHERE order_id = ?`, dead.ID)
	s.post("/orders/"+dead.ID+"/refunds", `{"lines":[{"line":0,"quantity":1}]}`, auth).is(409, "order_state")
	s.post("/orders/"+dead.ID+"/refunds", `{"amount":900}`, auth).is(200).holds(`state="pending"`, `vat=[]`, `tip=0`)
	s.post("/orders/"+dead.ID+"/accept", "", auth).is(409, "order_state") // some is given back
	s.post("/orders/"+dead.ID+"/refunds", `{"amount":5001}`, auth).is(409, "refund_too_large").holds(`refundable=5000`)
	s.post("/orders/"+dead.ID+"/refunds", "", auth).is(200).holds(`amount=5000`)
	s.post("/orders/"+dead.ID+"/refunds", "", auth).is(409, "refund_too_large")
	if row := s.row(dead.ID); row.State != orderCancelled || row.Refunded != 0 {
		t.Errorf("the dead order is %s, %d refunded", row.State, row.Refunded)
	}
	twice := s.addOrder(nil) // paid in cash, and online all the same
	s.post("/orders/"+twice.ID+"/paid", `{"method":"cash"}`, auth).is(200)
	s.changeOrder(twice.ID, func(t *tx, o *order) error {
		if err := addAttempt(t, o, paymentReview); err != nil {
			return err
		}
		twice.PaymentID, o.Method = o.PaymentID, ptr[orderMethod](methodCash)
		t.saveOrder(o)
		_, err := t.try(`UPDATE payments SET captured = amount WHERE id = ?`, *o.PaymentID)
		return err
	})
	s.must("order", "refund", twice.ID, "-payment", *twice.PaymentID)
	if row := s.row(twice.ID); row.State != orderPaid || row.Refunded != 0 {
		t.Errorf("the order that was paid twice is %s, %d refunded", row.State, row.Refunded)
	}
	s.post("/orders/"+twice.ID+"/refunds", `{"payment_id":"`+*twice.PaymentID+`"}`, auth).is(409, "refund_too_large")
	s.post("/orders/"+twice.ID+"/refunds", "", auth).is(200).holds(`amount=5900`, `payment_id=null`,
		`state="succeeded"`)
	s.do("DELETE", "/orders/"+twice.ID+"/paid", "", auth).is(409, "order_state")
}

func TestOrder_leavesReviewWhereItsMoneyIsThere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	for _, c := range []struct {
		from, payment string // the order's state, and what is set of the payment
		status        int
		state         string
	}{
		{orderCancelled, "captured = 5900, authorized = 0", 200, orderPaid},
		{orderCancelled, "captured = 5899, authorized = 0", 409, orderCancelled},
		{orderCancelled, "captured = 5900, authorized = 0, currency = 'EUR'", 409, orderCancelled},
		{orderCancelled, "captured = 5900, authorized = 0, refunded = 1", 409, orderCancelled},
		{orderCancelled, "authorized = 5900", 409, orderCancelled},
		{orderAccepted, "authorized = 6000", 200, orderAccepted},
		{orderAuthorized, "authorized = 5899", 409, orderAuthorized},
		{orderAuthorized, "authorized = 5900, currency = 'EUR'", 409, orderAuthorized},
		{orderAccepted, "captured = 100, authorized = 6000", 409, orderAccepted},
	} {
		o := s.orderIn(orderAuthorized)
		s.sql(`UPDATE payments SET state = 'review', `+c.payment+` WHERE order_id = ?`, o.ID)
		s.sql(`UPDATE orders SET state = ? WHERE id = ?`, c.from, o.ID)
		a := s.post("/orders/"+o.ID+"/accept", "", auth)
		row, state := s.row(o.ID), ""
		s.check(s.store.one(`SELECT state FROM payments WHERE order_id = ?`, []any{o.ID}, &state))
		out := map[string]string{orderPaid: paymentCaptured, orderAccepted: paymentAuthorized}[string(row.State)]
		if a.status != c.status || string(row.State) != c.state ||
			c.status == 200 && (state != out || row.Capture != (c.state == orderAccepted)) ||
			c.status == 409 && state != paymentReview {
			t.Errorf("%+v: %d %s, the order is %s, its payment %s", c, a.status, a.body, row.State, state)
		}
	}
}

func TestOrder_isPaidOutsideOnceNobodyCanPayItOnline(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth, o := s.seller(), s.addOrder(nil)
	path := "/orders/" + o.ID + "/paid"
	for body, wrong := range map[string]string{
		`{}`:                "#/method required",
		`{"method":"card"}`: "#/method unknown_value",
		`{"method":"none"}`: "#/method unknown_value",
		`{"method":"cash","paid_at":"` + newStamp(time.Now().Add(time.Hour)).String() + `"}`: "#/paid_at out_of_range",
		`{"method":"cash","paid_at":"2020-01-01T00:00:00Z"}`:                                 "#/paid_at out_of_range",
	} {
		s.post(path, body, auth).is(422, "validation_failed").names(wrong)
	}
	s.post(path, `{"method":"cash"}`, auth).is(200)
	s.sql(`UPDATE orders SET expires_at = created_at WHERE id = ?`, o.ID)
	s.do("DELETE", path, "", auth).is(200).holds(`state="open"`, `method=null`, `paid_at=null`, `ended_at=null`)
	if row := s.row(o.ID); time.Until(row.ExpiresAt.Time) < minOrderLife-time.Minute {
		t.Errorf("it expires %v", row.ExpiresAt)
	}
	s.do("DELETE", path, "", auth).is(409, "order_state")
	s.counts(2, `SELECT count(*) FROM events WHERE subject_id = ? AND type IN ('order.paid', 'order.unpaid')`, o.ID)
}

// Against whoever reads events, webhooks or an old database who would learn who has ordered: events have no
// customer; guests, their addresses and texts for them are overwritten and erased 30 days after the order's end, or
// on request.
func TestOrder_expiresInTimeAndItsGuestIsErased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		open, busy, waiting := s.addOrder(nil), s.addOrder(nil), s.orderIn(orderAuthorized)
		s.change(func(t *tx) error { return addAttempt(t, busy, paymentPending) })
		sweeps := []func(*tx, int64) (int64, error){expireOrders, releaseUnaccepted, (*tx).eraseCustomers}
		sweep := func(want ...int64) {
			t.Helper()
			s.change(func(tx *tx) error {
				for i, f := range sweeps {
					if n, err := f(tx, 10); err != nil || n != want[i] {
						t.Errorf("%d of what is due by %d, want %d: %v", n, i, want[i], err)
					}
				}
				return nil
			})
		}
		sweep(0, 0, 0)
		time.Sleep(minOrderLife - time.Second)
		sweep(0, 0, 0)
		time.Sleep(time.Second)
		sweep(2, 1, 0)
		sweep(0, 0, 0)
		for id, want := range map[string]string{open.ID: "expired ", busy.ID: "open expired", waiting.ID: "expired "} {
			if row := s.row(id); string(row.State)+" "+string(valueOr(row.Closing, "")) != want {
				t.Errorf("%s %s, want %s", row.State, valueOr(row.Closing, ""), want)
			}
		}
		if len(traces(t, s.dir, "ada keller")) == 0 {
			t.Fatal("the guests are not on the disk: the test sees nothing")
		}
		time.Sleep(keptCustomersFor - time.Second)
		sweep(0, 0, 0)
		time.Sleep(time.Second)
		sweep(0, 0, 2)
		s.sql(`UPDATE orders SET state = 'paid', ended_at = created_at WHERE id = ?`, busy.ID)
		s.changeOrder(busy.ID, func(t *tx, o *order) error { t.setErasure(o); return nil })
		sweep(0, 0, 1)
		if s.check(s.store.truncateWAL(time.Second)); len(traces(t, s.dir, "ada keller")) > 0 ||
			len(traces(t, s.dir, "555 01 23")) > 0 {
			t.Errorf("left in %v", traces(t, s.dir, "ada keller"))
		}
		if v, err := viewOrder(s.store.queries, s.row(open.ID)); err != nil || v.Customer != nil ||
			v.Total != 5900 {
			t.Errorf("shown %+v, %v", v, err)
		}
	})
}

func TestOrder_guestIsErasedWhereNoProviderIsAsked(t *testing.T) {
	t.Parallel()
	s := newService(t, func(_ *storeOptions, o *serverOptions) { o.noPayments = true })
	kept, ended := s.addOrder(nil), s.orderIn(orderPaid)
	if n := s.count(`SELECT count(*) FROM order_customers`); n != 2 {
		t.Fatalf("%d guests", n)
	}
	s.sql(`UPDATE order_customers SET erase_at = '2026-01-01T00:00:00Z' WHERE order_id = ?`, ended.ID)
	for _, c := range s.server.chores {
		s.check(c.run(t.Context()))
	}
	if n := s.count(`SELECT count(*) FROM order_customers WHERE order_id = ?`, kept.ID); n != 1 ||
		s.count(`SELECT count(*) FROM order_customers`) != 1 {
		t.Error("not just the guest whose time is over is erased")
	}
}

func TestAccount_settingsAreChangedOverHTTP(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin, any := "Authorization: Bearer "+s.token(s.account, scopeAdmin),
		"Authorization: Bearer "+s.token(s.account, scopeStats)
	s.get("/account", any).is(200).holds(`id="`+s.account+`"`, `name="main"`, `zone="UTC"`, `cut_off="04:00"`,
		`legal_name=null`, `capture_on="accept"`, `accept_within=30`)
	s.do("PATCH", "/account", `{"zone":"Europe/Zurich"}`, any).is(403, "insufficient_scope")
	for member, wrong := range map[string]string{
		`"zone":"Local"`: "#/zone unknown_zone", `"zone":"Mars/Olympus"`: "#/zone unknown_zone",
		`"zone":"../etc/passwd"`: "#/zone unknown_zone",
		`"cut_off":"24:00"`:      "#/cut_off invalid_time", `"cut_off":"4:00"`: "#/cut_off invalid_time",
		`"id":"x"`: "#/id immutable", `"phone":"044 000 00 00"`: "#/phone invalid_phone",
		`"phone":"+1 2"`: "#/phone invalid_phone", `"contact":"javascript:alert(1)"`: "#/contact invalid_contact",
	} {
		s.do("PATCH", "/account", "{"+member+"}", admin).is(422, "validation_failed").names(wrong)
	}
	s.do("PATCH", "/account", `{"zone":"Europe/Zurich","legal_name":"Roma","address":"a\nb","accept_within":45}`,
		admin).is(200).holds(
		`zone="Europe/Zurich"`, `legal_name="Roma"`, `address="a\nb"`, `accept_within=45`, `cut_off="04:00"`)
	s.do("PATCH", "/account", `{"zone":"Europe/Zurich"}`, admin).is(200) // no change
	s.do("PATCH", "/account", `{"address":null}`, admin).is(200).holds(`address=null`, `legal_name="Roma"`)
	const updates = `SELECT count(*) FROM events WHERE type = 'account.updated'`
	named := s.count(updates + ` AND data IN
		('{"changed":"accept_within address legal_name zone"}', '{"changed":"address"}')`)
	if named != 2 || s.count(updates) != 2 {
		t.Errorf("%d events", named)
	}
	other := s.addAccount("other")
	s.get("/account?account_id="+other, any).is(403, "insufficient_scope")
	s.do("PATCH", "/account?account_id="+other, `{"capture_on":"handover"}`, admin).is(200).holds(`id="`+other+`"`,
		`capture_on="handover"`)
	_, key := s.addLicense(license{ExpiresAt: newStamp(time.Now()).after(days(9)),
		terms: terms{DurationDays: ptr(30)}})
	s.get("/account", "Authorization: Bearer "+s.activate(key, "a").is(200).text("token")).is(403, "insufficient_scope")
}

// orderStory is an operator's evening with orders.
func orderStory(t *testing.T, o *operator) {
	var orders []*order
	account := o.account
	o.change(func(tx *tx) (err error) {
		for _, state := range []string{orderOpen, orderAuthorized, orderAuthorized, orderPaid} {
			made := anOrder(account)
			made.ReturnURL = siteOrigin + "/thanks"
			made.Reference = ptr("R-" + fmt.Sprint(len(orders)))
			if _, err := createOrder(tx, made, guest{}, minOrderLife, anActor); err != nil {
				return err
			}
			if err := bringTo(tx, made, state); err != nil {
				return err
			}
			orders = append(orders, made)
		}
		return nil
	})
	if rows := o.objects("order", "list", "-account", account, "-state", "authorized"); len(rows) != 2 ||
		!slices.Contains(column(rows, "id"), any(orders[1].ID)) {
		t.Errorf("rows %v", rows)
	}
	if table := o.do("order", "list", "-reference", "R-3", "-wide"); strings.Count(table, "\n") != 2 ||
		!strings.Contains(table, "59.00") {
		t.Errorf("table\n%s", table)
	}
	o.fails(`-state: there is no "eaten": take one of open, authorized`, "order", "list", "-state", "eaten")
	contains(t, o.do("order", "show", orders[3].ID, "-wide"), "payment captured        59.00\n",
		"0      Pizza Margherita   2         18.50        2.6 %     food   35.15   2         0\n")
	o.fails("not found: 'widgetd order list' prints what there is", "order", "show", newID("ord", time.Now()))
	o.must(t, orders[1].ID+" is accepted: 41.43 CHF\n", "order", "accept", orders[1].ID, "-lines", "0:1")
	o.fails("The order is accepted. Only an authorized one, or an open one that is paid later, can be accepted.",
		"order", "accept", orders[1].ID)
	o.fails(`-lines: "0" is not LINE:QUANTITY, as 0:1`, "order", "accept", orders[2].ID, "-lines", "0")
	o.fails("-lines: The order has the lines 0 to 1.", "order", "accept", orders[2].ID, "-lines", "7:1")
	o.must(t, orders[1].ID+" is accepted: 41.43 CHF\n", "order", "capture", orders[1].ID)
	o.fails(`-reason: there is no "rude": take one of sold_out`, "order", "reject", orders[2].ID, "-reason", "rude")
	o.must(t, orders[2].ID+" is cancelled: 59.00 CHF\n", "order", "reject", orders[2].ID, "-reason", "closed")
	for _, none := range []string{"", ",", " "} { // as a script's variable that is not set
		o.fails("-lines: give LINE:QUANTITY, as 0:1", "order", "refund", orders[3].ID, "-lines", none)
		o.fails("-lines: give LINE:QUANTITY, as 0:1", "order", "accept", orders[2].ID, "-lines", none)
	}
	o.fails("-payment: This is not an id of the kind pay_…", "order", "refund", orders[3].ID, "-payment", "")
	o.fails("-lines: Give back parts of the order or an amount, not both.", "order", "refund", orders[3].ID,
		"-lines", "0:1", "-amount", "1.00")
	o.fails("-amount: give an amount as 12.50", "order", "refund", orders[3].ID, "-amount", "1,00")
	if f := o.object("order", "refund", orders[3].ID, "-amount", "12.50", "-reason",
		"cold"); f["amount"] != 1250.0 || f["state"] != "pending" || f["reason"] != "cold" {
		t.Errorf("refund %v", f)
	}
	contains(t, o.do("order", "refund", orders[3].ID, "-lines", "0:1"), " of 17.58 CHF is pending")
	contains(t, o.do("order", "refund", orders[3].ID, "-lines", "1=3.00", "-delivery", "1.50", "-tip", "0.42"),
		" of 4.92 CHF is pending")
	o.fails("asked for less than 10 seconds ago", "order", "refund", orders[3].ID, "-lines", "0:1")
	o.fails(`-lines: "0=x" is not LINE:QUANTITY, as 0:1, or LINE=AMOUNT`, "order", "refund", orders[3].ID,
		"-lines", "0=x")
	o.fails(`-lines: "0=1.00" is not LINE:QUANTITY`, "order", "accept", orders[2].ID, "-lines", "0=1.00")
	o.fails("Refund an amount instead: at most 24.00 CHF.", "order", "refund", orders[3].ID, "-amount", "99")
	o.must(t, "the service is to ask about 1 payment: 'widgetd order show "+orders[3].ID+"' shows what it found\n",
		"order", "settle", orders[3].ID)
	if rows := o.objects("payment", "export", "-account", account); len(rows) != 1 ||
		rows[0]["order_id"] != orders[3].ID || rows[0]["captured"] != 5900.0 {
		t.Errorf("exported %v", rows)
	}
	if sheet := o.do("payment", "export", "-csv", "-account", account); strings.Count(sheet, "\n") != 2 ||
		!strings.Contains(sheet, ",R-3,"+account+",stripe,captured,CHF,59.00,0.00,") {
		t.Errorf("sheet\n%s", sheet)
	}
	rows, sum := o.objects("order", "refunds", "-account", account), 0.0
	for _, f := range rows {
		if f["reference"] == "R-3" && f["account_id"] == account {
			sum += f["amount"].(float64)
		}
	}
	if sum != 1250+1758+492 {
		t.Errorf("exported %v", rows)
	}
	contains(t, o.do("order", "refunds", "-csv", "-account", account), ",ended_at,kind\n", ",asked\n")
	contains(t, o.do("order", "erase", "-name", "Nobody"), "0 guests erased")
	if a := o.object("account", "set", account, "-zone", "Europe/Zurich", "-cut-off", "05:00", "-legal-name",
		"Trattoria Roma GmbH", "-address", "a\nb",
		"-vat-number", "CHE-1", "-capture-on", "handover", "-accept-within", "45"); a["zone"] != "Europe/Zurich" ||
		a["accept_within"] != 45.0 || a["address"] != "a\nb" {
		t.Errorf("account %v", a)
	}
	contains(t, o.do("account", "set", account, "-phone", "+41 32 622 00 00", "-contact", "mailto:info@roma.example"),
		"+41 32 622 00 00", "mailto:info@roma.example")
	contains(t, o.do("account", "set", account, "-legal-name", ""), "legal name     -", "Europe/Zurich")
	o.fails("-zone: This must be a time zone such as Europe/Zurich.", "account", "set", account, "-zone", "Local")
	o.fails("there is no such account, or it is closed: 'widgetd account list' prints all accounts", "account",
		"set", newID("acct", time.Now()), "-zone", "UTC")
	o.change(func(tx *tx) error { // whose secrets no key opens
		for _, query := range []string{`DELETE FROM refunds`, `DELETE FROM payments`,
			`DELETE FROM payment_connections`} {
			where := ` WHERE account_id = ?`
			if query == `DELETE FROM refunds` {
				where = ` WHERE order_id IN (SELECT id FROM orders WHERE account_id = ?)`
			}
			tx.exec(query+where, account)
		}
		return nil
	})
}

// must checks what a command prints.
func (o *operator) must(t *testing.T, want string, args ...string) {
	t.Helper()
	equal(t, strings.Join(args, " "), o.do(args...), want)
}

func TestOrder_isCapturedWhenTheAccountSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.must("account", "set", s.account, "-capture-on", "handover")
	auth, o := s.seller(), s.orderIn(orderAuthorized)
	s.post("/orders/"+o.ID+"/accept", "", auth).is(200)
	if s.row(o.ID).Capture {
		t.Fatal("it is captured on acceptance")
	}
	s.post("/orders/"+o.ID+"/cancel", `{}`, "Authorization: Bearer "+s.token(s.account, scopeOrders)).is(403)
	s.post("/orders/"+o.ID+"/capture", "", auth).is(200)
	looks := s.count(`SELECT revision FROM payments WHERE order_id = ?`, o.ID)
	s.post("/orders/"+o.ID+"/capture", "", auth).is(200)
	if !s.row(o.ID).Capture || s.count(`SELECT revision FROM payments WHERE order_id = ?`, o.ID) != looks {
		t.Error("asking again changes something")
	}
	s.post("/orders/"+o.ID+"/cancel", "", auth).is(409, "order_state")
	mobile := s.orderIn(orderAuthorized)
	s.must("account", "set", s.account, "-capture-on", "accept")
	s.sql(`UPDATE payments SET method = 'mobile', provider = 'vipps' WHERE order_id = ?`, mobile.ID)
	s.post("/orders/"+mobile.ID+"/accept", "", auth).is(200)
	if s.row(mobile.ID).Capture {
		t.Error("a mobile payment is captured before the goods are handed over")
	}
}
