package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
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
	Orders      []*order
}

// handleOrders adds the paths of direct orders, and of what they have brought, to the demo's page.
func (d *demo) handleOrders(mux *http.ServeMux) {
	mux.HandleFunc("POST /order", d.takeOrder)
	mux.HandleFunc("GET /thanks", func(w http.ResponseWriter, _ *http.Request) {
		showText(w, http.StatusOK, "Thank you for your order",
			"This is a demo: nobody cooks it, and no money has moved.")
	})
	mux.HandleFunc("GET /orders", d.listOrders)
	mux.HandleFunc("POST /orders/{id}", d.actOnOrder)
	mux.HandleFunc("GET /revenue", d.showRevenue)
	mux.HandleFunc("POST /books", d.openBooks)
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
	return d.do(r, answer)
}

// do asks the service in this process, see ask.
func (d *demo) do(r *http.Request, answer any) error {
	r.RemoteAddr = demoAddress
	kept := &keptAnswer{header: http.Header{}}
	d.server.ServeHTTP(kept, r)
	if succeeded(kept.status) && (answer == nil || !strings.Contains(kept.header.Get("Content-Type"), "json")) {
		return nil
	}
	if succeeded(kept.status) {
		return json.Unmarshal(kept.body.Bytes(), answer)
	}
	var p problem
	if err := json.Unmarshal(kept.body.Bytes(), &p); err != nil {
		return err
	}
	return errors.New(p.Detail)
}

// demoAddress is where what the demo asks its own service comes from.
const demoAddress = "127.0.0.1:0"

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
		lines = append(lines, dish.wanted(n))
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
	http.Redirect(w, r, *made.PayURL, http.StatusSeeOther)
}

// wanted returns the member of an order's lines for so many units of a dish or a drink.
func (l *orderLine) wanted(n int64) map[string]any {
	return map[string]any{"name": l.Name, "quantity": n, "unit_amount": l.UnitAmount, "vat_rate": l.VATRate,
		"group": l.Group}
}

// demoStates are what the restaurant's side says of an order, by its state.
var demoStates = map[orderState]string{
	orderOpen: "Not paid yet", orderAuthorized: "Waits for your answer", orderAccepted: "Accepted", orderPaid: "Paid",
	orderPartRefunded: "Paid, and a part given back", orderRefunded: "All given back", orderCancelled: "Cancelled",
	orderExpired: "Expired",
}

// actionsOf returns the buttons for an order: those that can do something.
func actionsOf(o *order) []string {
	switch {
	case o.State == orderAuthorized:
		return []string{"Accept", "Reject"}
	case o.wasPaid() && o.Refunded < o.Total:
		return []string{"Refund"}
	}
	return nil
}

// listOrders shows the restaurant's side.
func (d *demo) listOrders(w http.ResponseWriter, r *http.Request) {
	var page list[*order]
	if err := d.ask(r.Context(), d.token, http.MethodGet, "/orders?limit=50", nil, &page); err != nil {
		showText(w, http.StatusBadGateway, "Orders", err.Error())
		return
	}
	page.Data = slices.DeleteFunc(page.Data, func(o *order) bool {
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

// connectProvider connects the demo's account to the demo's provider of cards, with a key that is no real one, unless
// it is already. Other connections are of an earlier release.
func (d *demo) connectProvider(t *tx) error {
	used, err := t.usedConnections(d.account)
	if err != nil {
		return err
	}
	for _, c := range used {
		if c.Name == demoMark && c.Provider == providerStripe {
			return nil
		}
		if err := t.removePaymentConnection(c.ID); err != nil {
			return err
		}
	}
	c := &unsealedConnection{&paymentConnection{ID: t.newID("con"), AccountID: d.account, Provider: providerStripe,
		Name: demoMark, CreatedAt: t.now, Methods: stripeDeclared.methods}, connectionSecrets{Key: "rk_test_demo"}}
	if err := c.seal(d.keys); err != nil {
		return err
	}
	t.addPaymentConnection(c.paymentConnection)
	return nil
}

// A demoRevenue is what the page of revenue shows: what the service answers about the month, and about one business
// day.
type demoRevenue struct {
	Ledger string       // address of the demo's books
	Line   string       // prints the day
	Date   businessDate // of the day
	Month  list[revenueDay]
	Day    revenueDate
}

// showRevenue shows that, for yesterday if no valid date is given.
func (d *demo) showRevenue(w http.ResponseWriter, r *http.Request) {
	shown := demoRevenue{Ledger: d.ledger.base, Date: r.FormValue("date")}
	if !isBusinessDate(shown.Date) {
		calendar, err := d.server.store.businessCalendar(d.account)
		if err != nil {
			showText(w, http.StatusInternalServerError, "Revenue", err.Error())
			return
		}
		shown.Date = dateBefore(calendar.dateOf(d.now()))
	}
	shown.Line = d.examples["widgetd"] + " revenue show " + shown.Date + " -account " + shellWord(demoAccount)
	for path, answer := range map[string]any{"/revenue/days": &shown.Month, "/revenue/days/" + shown.Date: &shown.Day} {
		if err := d.ask(r.Context(), d.token, http.MethodGet, path, nil, answer); err != nil {
			showText(w, http.StatusBadGateway, "Revenue", err.Error())
			return
		}
	}
	showDemo(w, http.StatusOK, "demo_books.html", shown)
}

// openBooks signs in for the pages of the restaurant's books, as its accountant would with a code, and leads there: the
// browser keeps cookies by the host, which the service and this page share.
func (d *demo) openBooks(w http.ResponseWriter, r *http.Request) {
	var made signinCode
	err := d.ask(r.Context(), d.token, http.MethodPost, "/books/signin", nil, &made)
	if err == nil {
		err = d.signIn(w, r, made.Code)
	}
	if err != nil {
		showText(w, http.StatusBadGateway, "The books", err.Error())
		return
	}
	http.Redirect(w, r, d.base+booksPath, http.StatusSeeOther)
}

// signIn types a code into the service's page, and passes its cookie on.
func (d *demo) signIn(w http.ResponseWriter, r *http.Request, code string) error {
	typed, err := http.NewRequestWithContext(r.Context(), http.MethodPost, d.base+booksPath,
		strings.NewReader("code="+code))
	if err != nil {
		return err
	}
	typed.RemoteAddr = demoAddress
	typed.Header.Set("Content-Type", formMediaType)
	kept := &keptAnswer{header: http.Header{}}
	d.server.ServeHTTP(kept, typed)
	w.Header()["Set-Cookie"] = kept.header.Values("Set-Cookie")
	return nil
}

// The demo's application: a third party's table planner that asks to act for the restaurant. It does what an
// application on a server does (contract, section 13): code with PKCE, then tokens.

const (
	demoAppName   = "Table Planner"
	demoAppScope  = scopeOrders + " " + scopeSelling + " " + scopeWebhooks
	demoAppBack   = "/connect/back" // path that people are sent back to
	demoAppCookie = "demo-connect"  // holds what belongs to one attempt: state and PKCE verifier
)

// A demoConnect is what the application's page shows.
type demoConnect struct {
	Code   string // to sign in with; "": none was made
	To     string // URL of the authorization endpoint, with the request
	Claims string // of the access token, as JSON
	Answer string // of GET /account with that token
	Ended  string // URL of the page on which the owner ends it
	Fault  string
}

// registerApp registers the application, for the main account, since it is not the restaurant's own. Elsewhere the
// redirect URIs of one on a server must be https, but on this machine there is no TLS.
func (d *demo) registerApp(t *tx) (err error) {
	p := &app{Name: demoAppName, Scope: demoAppScope, HomePage: d.page, Kind: appWeb,
		RedirectURIs: []string{d.page + demoAppBack}}
	if p.AccountID, err = t.mainAccount(); err != nil {
		return err
	}
	d.app.clientSecret, err = createApp(t, p, &caller{claims: claims{Scope: scopeAdmin}, command: "demo"})
	d.app.clientID = p.ID
	return err
}

// handleConnect adds the application's pages to the demo's.
func (d *demo) handleConnect(mux *http.ServeMux) {
	show := func(w http.ResponseWriter, shown *demoConnect, err error) {
		status := http.StatusOK
		if err != nil {
			status, shown = http.StatusBadGateway, &demoConnect{Fault: err.Error()}
		}
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer") // an address may hold a code
		showDemo(w, status, "demo_connect.html", shown)
	}
	mux.HandleFunc("GET /connect", func(w http.ResponseWriter, _ *http.Request) { show(w, &demoConnect{}, nil) })
	mux.HandleFunc("POST /connect", func(w http.ResponseWriter, r *http.Request) {
		shown, err := d.startConnecting(w, r)
		show(w, shown, err)
	})
	mux.HandleFunc("GET "+demoAppBack, func(w http.ResponseWriter, r *http.Request) {
		shown, err := d.connected(r)
		show(w, shown, err)
	})
}

// startConnecting makes a code to sign in with, and the address that asks the owner to agree.
func (d *demo) startConnecting(w http.ResponseWriter, r *http.Request) (*demoConnect, error) {
	var signin struct{ Code string }
	err := d.ask(r.Context(), d.examples[examplePortal], "POST", "/accounts/"+d.account+"/signin", struct{}{}, &signin)
	state, verifier := randomText(32), randomText(32)
	http.SetCookie(w, &http.Cookie{Name: demoAppCookie, Value: state + "." + verifier, Path: demoAppBack,
		MaxAge: int(time.Hour / time.Second), HttpOnly: true, SameSite: http.SameSiteLaxMode})
	query := authorizeQuery(d.app, demoAppScope, d.page+demoAppBack, state, pkceChallenge(verifier))
	return &demoConnect{Code: signin.Code, To: d.base + "/oauth/authorize?" + query.Encode()}, err
}

// connected takes the answer of the authorization endpoint, exchanges its code for tokens, and returns what the
// page shows.
func (d *demo) connected(r *http.Request) (*demoConnect, error) {
	q := r.URL.Query()
	state, verifier := "", ""
	if cookie, err := r.Cookie(demoAppCookie); err == nil {
		state, verifier, _ = strings.Cut(cookie.Value, ".")
	}
	switch {
	case state == "" || q.Get("state") != state:
		return nil, errors.New("this answer belongs to no attempt of this browser: begin again")
	case q.Get("iss") != d.base: // RFC 9207
		return nil, errors.New("the answer is not of the service that was asked")
	case q.Get("code") == "":
		return nil, errors.New("it was not agreed to")
	}
	form := codeGrantForm(d.page+demoAppBack, q.Get("code"), verifier)
	asked, err := http.NewRequestWithContext(r.Context(), http.MethodPost, d.base+"/oauth/token",
		strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	asked.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	asked.SetBasicAuth(d.app.clientID, d.app.clientSecret)
	var tokens struct {
		Access string `json:"access_token"`
	}
	if err := d.do(asked, &tokens); err != nil {
		return nil, err
	}
	var account json.RawMessage
	if err := d.ask(r.Context(), tokens.Access, "GET", "/account", nil, &account); err != nil {
		return nil, err
	}
	parts := strings.Split(tokens.Access, ".")
	claims, err := base64.RawURLEncoding.DecodeString(parts[min(1, len(parts)-1)])
	return &demoConnect{Claims: indented(claims), Answer: indented(account), Ended: d.base + "/oauth/connected"}, err
}

// indented returns JSON with its members in lines of their own.
func indented(text []byte) string {
	var lines bytes.Buffer
	json.Indent(&lines, text, "", "  ") // what is no JSON is not shown
	return lines.String()
}

// A demoCall is a call that makes something which the lines of /docs act on, or which the pages show. In its path and
// its body, names of values that earlier calls have kept stand as «name».
type demoCall struct {
	Call string // "POST /orders"
	As   string // the token: exampleToken unless it says so
	Body json.RawMessage

	// Each is a list of names: the call is made once for each of them, which it finds as «each», and the id in the
	// answer is kept under it. Without any, the call is made once.
	Each []string
	Keep map[string]string // what else is kept, by its name: the path of a member of the answer, "data.0.id"
	Pays string            // the method by which a guest pays the order that was made

	// Of the past of a new file: how many days ago the call is made, and after how many days that of the next name.
	Ago, Every float64
}

// docsReference begins the references of the orders for /docs, which the restaurant's side does not show.
const docsReference = "for /docs: "

// prepareDocs makes what a run needs, and what the lines of /docs act on: of that something separate for each call
// whose change would make another call fail. What an earlier run has made in limited number is removed.
func (d *demo) prepareDocs(ctx context.Context) error {
	if err := d.removeEarlier(ctx); err != nil {
		return err
	}
	err := d.payOut(ctx)
	if err == nil {
		err = d.makeAll(ctx, demoData().Docs)
	}
	if err == nil {
		err = d.server.store.update(ctx, d.finishDocs)
	}
	if err == nil {
		err = d.makeAll(ctx, demoData().Sent)
	}
	if err != nil {
		return err
	}
	return newBooksWorker(booksOf(d.server)).export(ctx, d.examples["books"])
}

// makeAll makes calls, one after the other.
func (d *demo) makeAll(ctx context.Context, calls []demoCall) error {
	for _, c := range calls {
		for _, name := range c.names() {
			if err := d.make(ctx, &c, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// names returns the names of Each; without any, one that is empty.
func (c *demoCall) names() []string {
	if len(c.Each) == 0 {
		return []string{""}
	}
	return c.Each
}

// make makes a call, for one of its names.
func (d *demo) make(ctx context.Context, c *demoCall, name string) error {
	fill := d.filler("«each»", name)
	method, path, _ := strings.Cut(fill.Replace(c.Call), " ")
	var body, answer any
	if c.Body != nil {
		body = json.RawMessage(fill.Replace(string(c.Body)))
	}
	if err := d.ask(ctx, d.examples[cmp.Or(c.As, exampleToken)], method, path, body, &answer); err != nil {
		return fmt.Errorf("%s %s: %w", c.Call, name, err)
	}
	keep := map[string]string{name: "id"}
	if name == "" {
		keep = nil
	}
	for _, each := range []map[string]string{keep, c.Keep} {
		for name, at := range each {
			d.examples[name] = answerAt(answer, at)
		}
	}
	if c.Pays == "" {
		return nil
	}
	return d.payOrder(ctx, d.examples[name], c.Pays)
}

// filler returns what puts the values that are known in the place of their names: "«name»". pairs are more of them.
func (d *demo) filler(pairs ...string) *strings.Replacer {
	for name, value := range d.examples {
		if strings.HasPrefix(value, "{") {
			pairs = append(pairs, `"«`+name+`»"`, value)
		}
		pairs = append(pairs, "«"+name+"»", value)
	}
	return strings.NewReplacer(pairs...)
}

// answerAt returns the member of an answer at a path, as text; at "to?state", what the query of the address at to names
// so. A number is that of an element, -1 the last one.
func answerAt(answer any, path string) string {
	path, parameter, _ := strings.Cut(path, "?")
	for name := range strings.SplitSeq(path, ".") {
		switch v := answer.(type) {
		case map[string]any:
			answer = v[name]
		case []any:
			i, _ := strconv.Atoi(name)
			answer = v[(i+len(v))%len(v)]
		}
	}
	if text, is := answer.(string); is {
		if u, err := url.Parse(text); err == nil && parameter != "" {
			return u.Query().Get(parameter)
		}
		return text
	}
	return string(encodeJSON(answer))
}

// removeEarlier removes what an earlier run has made for /docs of which an account has few, and ends its connections
// with books, which have forgotten that run.
func (d *demo) removeEarlier(ctx context.Context) error {
	for _, list := range []string{"/webhooks", "/apps", "/books/connections"} {
		token := d.token
		if list == "/apps" { // one is of another account, see registerApp
			token = d.examples[exampleAdmin]
		}
		var rows struct {
			Data []struct{ ID, Name, Description string }
		}
		if err := d.ask(ctx, token, http.MethodGet, list, nil, &rows); err != nil {
			return err
		}
		for _, row := range rows.Data {
			name := `"` + cmp.Or(row.Name, row.Description) + `"`
			if list != "/books/connections" && name != `"`+demoAppName+`"` &&
				!strings.Contains(embedded("web/demo.json"), name) {
				continue
			}
			if err := d.ask(ctx, token, http.MethodDelete, list+"/"+row.ID, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// finishDocs writes what no call makes: applications that the account's owner has agreed to, a webhook that is enabled
// without a test and has a delivery that failed, that all days and payouts are sent to the books, and a connection with
// Xero for which nobody has chosen a company, so that nothing is ever asked of it.
func (d *demo) finishDocs(t *tx) error {
	unused := &bookConnection{ID: t.newID("bkc"), AccountID: d.account, Product: productXero, Status: entryDraft,
		Choices: []bookCompany{{ID: "1", Name: "Altstadt GmbH"}, {ID: "2", Name: "Bahnhof GmbH"}}}
	t.addBookConnection(unused)
	of, err := t.account(d.account)
	if err != nil {
		return err
	}
	books, err := t.bookConnection(ownedBy(d.account), d.examples["books"])
	if err != nil {
		return err
	}
	books.Series, books.Outside, books.Tests = new("W"), true, true
	books.SendFrom = new(of.CreatedAt.Format(time.DateOnly))
	books.PayoutsFrom = books.SendFrom
	books.Mapping.Lines = append(books.Mapping.Lines, mappingRule{Kind: ruleTransit, Account: demoTransit},
		mappingRule{Kind: rulePayment, Method: new(bookPayMethod(methodCash)), Account: demoCash})
	t.saveBookConnection(books)
	hook, err := t.webhook(ownedBy(d.account), d.examples["/webhooks/{id}/test"])
	if err != nil {
		return err
	}
	hook.State = webhookEnabled
	t.saveWebhook(hook)
	failed := &delivery{ID: t.newID("whd"), WebhookID: hook.ID, EventID: t.newID("evt"), Type: eventWebhookTest,
		Attempt: 1, At: t.now, Status: new(http.StatusServiceUnavailable)}
	t.addDelivery(failed)
	agreed := func(appID string) *grant {
		g := &grant{ID: t.newID("grt"), AppID: appID, AccountID: d.account, Scope: scopeOrders, AgreedBy: actorCommand,
			CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
		t.addGrant(g)
		return g
	}
	d.examples["/books/connections/{id}"], d.examples["delivery"] = unused.ID, failed.ID
	d.examples["/grants/{id}"] = agreed(d.examples["/apps/{id}/rotate-secret"]).ID
	d.examples["/oauth/revoke token"] = newRefreshToken(t, agreed(d.examples["client_id"]), 1)
	return d.registerApp(t)
}

// payOrder pays an order as a guest would.
func (d *demo) payOrder(ctx context.Context, id, method string) error {
	at, err := paymentsOf(d.server).startAttempt(ctx, id, method, d.page+"/thanks")
	if err != nil {
		return err
	}
	if _, err := d.cards.pay(ctx, path.Base(at), true); err != nil {
		return err
	}
	return d.settle(ctx)
}

// settle settles the attempts to pay that something has just happened to, as the worker does.
func (d *demo) settle(ctx context.Context) error {
	due, err := d.server.store.duePayments(newStamp(d.now()), dueAtOnce)
	for _, p := range due {
		if err == nil && p.polls == 0 {
			err = paymentsOf(d.server).settle(ctx, p.id)
		}
	}
	return err
}
