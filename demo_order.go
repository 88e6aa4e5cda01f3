package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The demo's direct orders: what a partner's server does to get an order paid. It knows the prices, makes the
// order at the service with its token, and sends the guest's browser to pay_url. The restaurant's side is a page
// that lists the orders, with buttons to accept, reject and refund them.

//go:embed web/demo_orders.html
var demoOrdersHTML string

// demoOrdersPage is the page of the restaurant's side, and of what guests see after an order.
var demoOrdersPage = template.Must(template.New("").Parse(demoOrdersHTML))

// demoDishes are the dishes that can be ordered on the demo's page, with their prices in centimes. The
// fields of the form have their names.
var demoDishes = []struct {
	name  string
	price int64
}{
	{"Pizza Margherita", 1650},
	{"Risotto ai funghi", 2100},
	{"Insalata mista", 1100},
	{"Tiramisù", 850},
}

const (
	demoFoodRate = 260             // VAT on food that is taken away, in hundredths of a percent
	demoMost     = 20              // of a dish in one order
	demoPatience = 5 * time.Second // longer than the service takes
)

// A demoShown is what demoOrdersPage shows.
type demoShown struct {
	Title, Text string
	List        bool // also Orders
	Orders      []demoOrder
}

// A demoOrder is an order as the restaurant's side shows it.
type demoOrder struct {
	ID, State, Total, Refunded, CreatedAt string // Refunded: "" if nothing was
	Lines                                 []lineView
	Actions                               []string // values of its buttons
}

// handleOrders adds the paths of direct orders to the demo's page.
func (d *demo) handleOrders(mux *http.ServeMux) {
	mux.HandleFunc("POST /order", d.takeOrder)
	mux.HandleFunc("GET /thanks", func(w http.ResponseWriter, _ *http.Request) {
		showDemo(w, http.StatusOK, demoShown{Title: "Thank you for your order",
			Text: "This is a demo: nobody cooks it, and no money has moved."})
	})
	mux.HandleFunc("GET /orders", d.listOrders)
	mux.HandleFunc("POST /orders/{id}", d.actOnOrder)
}

// showDemo sends a page.
func showDemo(w http.ResponseWriter, status int, shown demoShown) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	demoOrdersPage.Execute(w, shown) // fails only when the client has gone
}

// ask is askAs with the demo's token.
func (d *demo) ask(ctx context.Context, method, path string, body, answer any) error {
	return d.askAs(ctx, d.token, method, path, body, answer)
}

// askAs calls the service with a token. It decodes a 2xx answer into answer. Errors: the detail of a problem,
// or that there was no answer.
func (d *demo) askAs(ctx context.Context, token, method, path string, body, answer any) error {
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
	for _, dish := range demoDishes {
		n, err := strconv.ParseInt(r.PostFormValue(dish.name), 10, 64)
		if err != nil || n < 1 || n > demoMost {
			continue
		}
		sum += n * dish.price
		lines = append(lines, map[string]any{
			"name": dish.name, "quantity": n, "unit_amount": dish.price, "vat_rate": demoFoodRate, "group": "food",
		})
	}
	if len(lines) == 0 {
		showDemo(w, http.StatusUnprocessableEntity, demoShown{Title: "Nothing was ordered",
			Text: fmt.Sprintf("Please choose 1 to %d of at least one dish.", demoMost)})
		return
	}
	percent, _ := strconv.ParseInt(r.PostFormValue("tip"), 10, 64) // without a choice: no tip
	tip := sum * min(max(percent, 0), 20) / 100
	order := map[string]any{"currency": "CHF", "lines": lines, "tip": tip, "return_url": d.page + "/thanks"}
	if name := r.PostFormValue("name"); name != "" {
		order["customer"] = map[string]string{"name": name}
	}
	var made createdOrder
	if err := d.ask(r.Context(), http.MethodPost, "/orders", order, &made); err != nil {
		showDemo(w, http.StatusBadGateway, demoShown{Title: "The order was not taken", Text: err.Error()})
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
	if err := d.ask(r.Context(), http.MethodGet, "/orders?limit=50", nil, &page); err != nil {
		showDemo(w, http.StatusBadGateway, demoShown{Title: "Orders", Text: err.Error()})
		return
	}
	shown := demoShown{Title: "Orders", List: true}
	for _, o := range page.Data {
		reference := valueOr(o.Reference, "")
		if strings.HasPrefix(reference, docsReference) || strings.HasPrefix(reference, sampleReference) {
			continue
		}
		row := demoOrder{ID: o.ID, State: o.State, Total: o.Currency + " " + formatAmount(o.Total),
			CreatedAt: o.CreatedAt.Format("2 January, 15:04 MST"), Lines: o.LineViews, Actions: demoActions[o.State]}
		if o.Refunded > 0 {
			row.Refunded = o.Currency + " " + formatAmount(o.Refunded)
		}
		shown.Orders = append(shown.Orders, row)
	}
	showDemo(w, http.StatusOK, shown)
}

// actOnOrder takes a button of the restaurant's side.
func (d *demo) actOnOrder(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	paths := map[string]string{"Accept": "/accept", "Reject": "/reject", "Refund": "/refunds"}
	path, known := paths[r.PostFormValue("do")]
	id := r.PathValue("id")
	if !known || !validID("ord", id) {
		showDemo(w, http.StatusUnprocessableEntity, demoShown{Title: "There is no such order or button"})
		return
	}
	var answer json.RawMessage
	if err := d.ask(r.Context(), http.MethodPost, "/orders/"+id+path, struct{}{}, &answer); err != nil {
		showDemo(w, http.StatusConflict, demoShown{Title: "That could not be done", Text: err.Error()})
		return
	}
	http.Redirect(w, r, "/orders", http.StatusSeeOther)
}

// connectProvider connects the demo's account to the test provider, which must be served already. The provider
// remembers nothing of an earlier run, so connections of that run are replaced.
func (d *demo) connectProvider(ctx context.Context, s *server) error {
	client := newStripeProvider(s.outbound, d.provider)
	c := &openConnection{
		paymentConnection: &paymentConnection{
			ID: newID("con", s.now()), AccountID: d.account, Provider: providerStripe, CreatedAt: newStamp(s.now()),
		},
		secrets: connectionSecrets{Key: "rk_test_demo"},
	}
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
	legal, address, number := "Trattoria Altstadt GmbH", "Hauptgasse 12\n4500 Solothurn", "CHE-123.456.789 MWST"
	return changeSettings(t, nouns(), account, settingsChange{func(s *accountSettings) {
		s.Zone, s.LegalName, s.Address, s.VATNumber = "Europe/Zurich", &legal, &address, &number
	}}, actorCommand)
}

// docsReference begins the references of the orders for /docs, which the restaurant's side does not show.
const docsReference = "for /docs: "

// prepareDocsOrders adds the orders that the lines of /docs act on: a separate one for each call whose change
// would make another call fail. Those that a restaurant accepts, captures or rejects are paid at the test
// provider, which must be served already.
func (d *demo) prepareDocsOrders(ctx context.Context, s *server, provider *testProvider) error {
	engine := paymentsOf(s)
	for path, paid := range map[string]bool{
		"/orders/{id}":         false,
		"/orders/{id}/cancel":  false,
		"/orders/{id}/paid":    false,
		"/orders/{id}/refunds": false,
		"/orders/{id}/accept":  true,
		"/orders/{id}/capture": true,
		"/orders/{id}/reject":  true,
	} {
		o, err := d.addDocsOrder(ctx, s, path)
		if err == nil && paid {
			err = d.payDocsOrder(ctx, engine, provider, o)
		}
		if err != nil {
			return fmt.Errorf("prepare an order for /docs: %w", err)
		}
		d.examples[path] = o.ID
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

// addDocsOrder adds an order for the lines of /docs.
func (d *demo) addDocsOrder(ctx context.Context, s *server, path string) (*order, error) {
	reference := docsReference + path + " " + newID("run", s.now())
	o := &order{
		AccountID: d.account, Currency: "CHF", Reference: &reference, ReturnURL: d.page + "/thanks",
		Lines: []orderLine{
			{Name: "Pizza Margherita", Quantity: 2, UnitAmount: 1650, VATRate: demoFoodRate},
			{Name: "Merlot", Quantity: 1, UnitAmount: 2400, VATRate: 810},
		},
	}
	return o, s.store.update(ctx, func(t *tx) error {
		_, err := createOrder(t, o, guest{}, maxOrderLife, actorCommand)
		return err
	})
}

// payDocsOrder pays an order as a guest would.
func (d *demo) payDocsOrder(ctx context.Context, engine *payments, provider *testProvider, o *order) error {
	at, err := engine.startAttempt(ctx, o.ID, methodCard, d.page+"/thanks")
	if err != nil {
		return err
	}
	if !provider.tryCard(strings.TrimPrefix(at, d.provider+"/pay/"), true) {
		return fmt.Errorf("nothing can be paid at %s", at)
	}
	return engine.settleOrder(ctx, o.ID)
}
