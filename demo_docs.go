package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

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
