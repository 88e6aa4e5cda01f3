package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The demo's direct orders: what a partner's server does to get an order paid. It knows the prices, makes the
// order at the service with its token, and sends the guest's browser to pay_url. The restaurant's side is a page
// that lists the orders, with buttons to accept, reject and refund them.

// demoDishes returns the dishes that can be ordered on the demo's page. The fields of the form have their names.
func demoDishes() []orderLine { return demoData().Counters[0].Food[:4] }

const (
	demoMost     = 20              // of a dish in one order
	demoPatience = 5 * time.Second // longer than the service takes
)

// A demoShown is what the page of the restaurant's side shows, on which guests see what came of an order, too.
type demoShown struct {
	Title, Text string
	List        bool // also Orders
	Orders      []order
}

// handleOrders adds the paths of direct orders to the demo's page.
func (d *demo) handleOrders(mux *http.ServeMux) {
	mux.HandleFunc("POST /order", d.takeOrder)
	mux.HandleFunc("GET /thanks", func(w http.ResponseWriter, _ *http.Request) {
		showText(w, http.StatusOK, "Thank you for your order",
			"This is a demo: nobody cooks it, and no money has moved.")
	})
	mux.HandleFunc("GET /orders", d.listOrders)
	mux.HandleFunc("POST /orders/{id}", d.actOnOrder)
}

// showText sends a page with a title and a text.
func showText(w http.ResponseWriter, status int, title, text string) {
	showDemo(w, status, "demo_orders.html", demoShown{Title: title, Text: text})
}

// ask calls the service with a token. It decodes a 2xx answer into answer. Errors: the detail of a problem,
// or that there was no answer.
func (d *demo) ask(ctx context.Context, token, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(encodeJSON(body))
	}
	r, err := http.NewRequestWithContext(ctx, method, d.base+path, reader)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	decode := json.NewDecoder(res.Body).Decode
	if !succeeded(res.StatusCode) {
		var p problem
		if err := decode(&p); err != nil {
			return err
		}
		return errors.New(p.Detail)
	}
	return decode(answer)
}

// takeOrder takes the form of the menu: it makes the order and sends the guest to pay it.
func (d *demo) takeOrder(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	lines, sum := []map[string]any{}, int64(0)
	for _, dish := range demoDishes() {
		n, err := strconv.ParseInt(r.PostFormValue(dish.Name), 10, 64)
		if err != nil || n < 1 || n > demoMost {
			continue
		}
		sum += n * dish.UnitAmount
		lines = append(lines, map[string]any{"name": dish.Name, "quantity": n, "unit_amount": dish.UnitAmount,
			"vat_rate": dish.VATRate, "group": dish.Group})
	}
	if len(lines) == 0 {
		showText(w, http.StatusUnprocessableEntity, "Nothing was ordered",
			fmt.Sprintf("Please choose 1 to %d of at least one dish.", demoMost))
		return
	}
	percent, _ := strconv.ParseInt(r.PostFormValue("tip"), 10, 64) // without a choice: no tip
	tip := sum * min(max(percent, 0), 20) / 100
	order := map[string]any{"currency": "CHF", "lines": lines, "tip": tip, "return_url": d.page + "/thanks"}
	if name := r.PostFormValue("name"); name != "" {
		order["customer"] = map[string]string{"name": name}
	}
	var made createdOrder
	if err := d.ask(r.Context(), d.token, http.MethodPost, "/orders", order, &made); err != nil {
		showText(w, http.StatusBadGateway, "The order was not taken", err.Error())
		return
	}
	http.Redirect(w, r, made.PayURL, http.StatusSeeOther)
}

// demoActions are the buttons for an order, by its state.
var demoActions = map[string][]string{
	orderAuthorized:   {"Accept", "Reject"},
	orderPaid:         {"Refund"},
	orderPartRefunded: {"Refund"},
}

// listOrders shows the restaurant's side.
func (d *demo) listOrders(w http.ResponseWriter, r *http.Request) {
	var page list[order]
	if err := d.ask(r.Context(), d.token, http.MethodGet, "/orders?limit=50", nil, &page); err != nil {
		showText(w, http.StatusBadGateway, "Orders", err.Error())
		return
	}
	page.Data = slices.DeleteFunc(page.Data, func(o order) bool {
		reference := valueOr(o.Reference, "")
		return strings.HasPrefix(reference, docsReference) || strings.HasPrefix(reference, sampleReference)
	})
	showDemo(w, http.StatusOK, "demo_orders.html", demoShown{Title: "Orders", List: true, Orders: page.Data})
}

// actOnOrder takes a button of the restaurant's side.
func (d *demo) actOnOrder(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	paths := map[string]string{"Accept": "/accept", "Reject": "/reject", "Refund": "/refunds"}
	path, known := paths[r.PostFormValue("do")]
	id := r.PathValue("id")
	if !known || !validID("ord", id) {
		showText(w, http.StatusUnprocessableEntity, "There is no such order or button", "")
		return
	}
	var answer json.RawMessage
	if err := d.ask(r.Context(), d.token, http.MethodPost, "/orders/"+id+path, struct{}{}, &answer); err != nil {
		showText(w, http.StatusConflict, "That could not be done", err.Error())
		return
	}
	http.Redirect(w, r, "/orders", http.StatusSeeOther)
}

// connectProvider connects the demo's account to the test provider, which must be served already. The provider
// remembers nothing of an earlier run, so connections of that run are replaced.
func (d *demo) connectProvider(ctx context.Context, s *server) error {
	client := newStripeProvider(s.outbound, d.provider)
	c := newTestConnection(d.account, providerStripe, s.now())
	if err := client.connect(ctx, c, d.base+"/payments/stripe/"+c.ID); err != nil {
		return fmt.Errorf("connect the test provider: %w", err)
	}
	if err := c.seal(s.keys.Load()); err != nil {
		return err
	}
	return s.store.update(ctx, func(t *tx) error {
		t.invalidate()
		if err := endEarlierRun(t, d.account); err != nil {
			return err
		}
		old, err := t.usedConnections(d.account)
		if err != nil {
			return err
		}
		for _, each := range old {
			if err := t.removePaymentConnection(each.ID); err != nil {
				return err
			}
		}
		return t.addPaymentConnection(c.paymentConnection)
	})
}

// newTestConnection returns a connection of an account that is added at a time, with a key that is no real one.
func newTestConnection(accountID, provider string, now time.Time) *openConnection {
	return &openConnection{&paymentConnection{ID: newID("con", now), AccountID: accountID, Provider: provider,
		CreatedAt: newStamp(now)}, connectionSecrets{Key: "rk_test_demo"}}
}

// endEarlierRun expires the orders that were being paid in an earlier run, whose test provider is gone.
func endEarlierRun(t *tx, account string) error {
	for _, state := range []string{orderOpen, orderAuthorized, orderAccepted} {
		page, err := t.orders(orderFilter{owner: ownedBy(account), state: state}, "", maxOpenOrders)
		if err != nil {
			return err
		}
		for i := range page.rows {
			o := &page.rows[i]
			p, err := t.livePayment(o.ID)
			if err != nil {
				return err
			}
			if p == nil {
				continue
			}
			o.State, o.EndedAt, o.Capture, o.Closing = orderExpired, t.now, false, nil
			p.State, p.EndedAt, p.DueAt = paymentExpired, t.now, stamp{}
			if err := t.saveOrder(o); err != nil {
				return err
			}
			if err := t.savePayment(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepareOrders gives the demo's account what its receipts show.
func prepareOrders(t *tx, account string) error {
	return changeSettings(t, nouns(), account, settingsChange{func(s *accountSettings) {
		s.Zone, s.LegalName = "Europe/Zurich", new("Trattoria Altstadt GmbH")
		s.Address, s.VATNumber = new("Hauptgasse 12\n4500 Solothurn"), new("CHE-123.456.789 MWST")
	}}, actorCommand)
}

// docsReference begins the references of the orders for /docs, which the restaurant's side does not show.
const docsReference = "for /docs: "

// prepareDocsOrders adds the orders that the lines of /docs act on: a separate one for each call whose change
// would make another call fail. Those that a restaurant accepts, captures or rejects are paid at the test
// provider, which must be served already.
func (d *demo) prepareDocsOrders(ctx context.Context, s *server, provider *testProvider) error {
	for path, paid := range demoData().DocsOrders {
		if err := d.addDocsOrder(ctx, s, provider, "/orders/{id}"+path, paid); err != nil {
			return fmt.Errorf("prepare an order for /docs: %w", err)
		}
	}
	err := s.store.update(ctx, func(t *tx) error {
		t.invalidate()
		by := ownedBy(d.account)
		_, err := payOutside(t, by, d.examples["/orders/{id}/refunds"], methodCash, t.now, actorCommand)
		if err != nil {
			return err
		}
		o, err := acceptOrder(t, by, d.examples["/orders/{id}/capture"], nil, actorCommand)
		if err != nil {
			return err
		}
		o.Capture = false // as for accounts that charge cards at handover
		return t.saveOrder(o)
	})
	d.examples["return_url"], d.examples["reference"] = d.page+"/thanks", newID("R", s.now())
	return err
}

// addDocsOrder adds an order for the lines of /docs, and pays it as a guest would if paid is true.
func (d *demo) addDocsOrder(
	ctx context.Context, s *server, provider *testProvider, path string, paid bool,
) error {
	o := &order{AccountID: d.account, Currency: "CHF", ReturnURL: d.page + "/thanks",
		Reference: new(docsReference + path + " " + newID("run", s.now())), Lines: slices.Clone(demoData().DocsLines)}
	err := s.store.update(ctx, func(t *tx) error {
		_, err := createOrder(t, o, guest{}, maxOrderLife, actorCommand)
		return err
	})
	d.examples[path] = o.ID
	if err != nil || !paid {
		return err
	}
	engine := paymentsOf(s)
	at, err := engine.startAttempt(ctx, o.ID, methodCard, d.page+"/thanks")
	if err != nil {
		return err
	}
	if !provider.tryCard(strings.TrimPrefix(at, d.provider+"/pay/"), true) {
		return fmt.Errorf("nothing can be paid at %s", at)
	}
	return engine.settleOrder(ctx, o.ID)
}
