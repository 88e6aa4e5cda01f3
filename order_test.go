package main

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
		_, err := createOrder(t, o, guest{Name: "Ada Keller", Phone: "+41 44 555 01 23"}, minOrderLife, anActor)
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
		return endOrder(t, o, state, totalEvent(o, eventOrderCancelled, anActor))
	}
	if err := addAttempt(t, o, paymentAuthorized); err != nil {
		return err
	}
	o.State, o.AuthorizedAt, o.AcceptBy = orderAuthorized, t.now, t.now.after(minOrderLife)
	if state == orderAuthorized {
		return t.saveOrder(o)
	}
	if o.State, o.AcceptedAt = orderAccepted, t.now; state == orderAccepted {
		return t.saveOrder(o)
	}
	if err := capturedAll(t, o); err != nil {
		return err
	}
	if err := markPaid(t, o, methodCard, t.now, anActor); err != nil || state == orderPaid {
		return err
	}
	w := refundWish{}
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
	return refundDone(t, o, f, anActor)
}

// addAttempt adds an attempt to pay an order by card, in a state.
func addAttempt(t *tx, o *order, state string) error {
	connection := t.newID("con")
	if _, err := t.exec(`INSERT INTO payment_connections (id, account_id, provider, live, secrets, created_at)
		VALUES (?, ?, 'stripe', 0, x'00', ?) ON CONFLICT DO NOTHING`, connection, o.AccountID, t.now); err != nil {
		return err
	}
	if err := t.one(`SELECT id FROM payment_connections WHERE account_id = ? AND removed_at IS NULL`,
		[]any{o.AccountID}, &connection); err != nil {
		return err
	}
	p := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: connection, Provider: providerStripe,
		Method: methodCard, State: state, Amount: o.Total, Currency: o.Currency, CreatedAt: t.now}
	if err := t.addPayment(p); err != nil {
		return err
	}
	authorized := int64(0)
	if state == paymentAuthorized {
		authorized = o.Total
	}
	if _, err := t.exec(`UPDATE payments SET authorized = ? WHERE id = ?`, authorized, p.ID); err != nil {
		return err
	}
	o.PaymentID, o.Method, o.Attempts = &p.ID, ptr(methodCard), o.Attempts+1
	return t.saveOrder(o)
}

// capturedAll writes that the total of an order was captured.
func capturedAll(t *tx, o *order) error {
	_, err := t.exec(`UPDATE payments SET state = 'captured', authorized = 0, captured = ? WHERE id = ?`, o.Total, *o.PaymentID)
	return err
}

// row returns an order as it is stored.
func (s *service) row(id string) *order {
	s.t.Helper()
	o, err := s.store.order(anyAccount, id)
	s.check(err)
	return o
}
