package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
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
	now := d.server.now()
	values := map[string]string{"widget": d.widget, "receiver": d.receiver, "Origin": d.page, "account_id": d.account,
		"return_url": d.page + "/thanks", "reference": newID("R", now), "url": d.receiver + docsPath,
		"since": newStamp(now.Add(-days(1))).String(),
		"date":  midnight(d.yesterday).AddDate(0, 0, -1).Format(time.DateOnly)}
	for name, value := range values {
		d.examples[name] = value
	}
	if err := d.removeEarlier(ctx); err != nil {
		return err
	}
	for _, c := range demoData().Docs {
		for _, name := range c.names() {
			if err := d.make(ctx, &c, name); err != nil {
				return err
			}
		}
	}
	return d.finishDocs(ctx)
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
	pairs := []string{"«each»", name}
	for known, value := range d.examples {
		if strings.HasPrefix(value, "{") {
			pairs = append(pairs, `"«`+known+`»"`, value)
		}
		pairs = append(pairs, "«"+known+"»", value)
	}
	fill := strings.NewReplacer(pairs...)
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
	for list, made := range map[string]func(row map[string]any) bool{
		"/webhooks": func(row map[string]any) bool {
			text := fmt.Sprint(row["description"])
			return strings.HasPrefix(text, "For the lines of /docs") || strings.HasPrefix(text, "Prints what it gets")
		},
		"/apps": func(row map[string]any) bool {
			return slices.Contains([]string{"Kitchen printer", "Menu board", "Shift planner"}, fmt.Sprint(row["name"]))
		},
		"/books/connections": func(map[string]any) bool { return true },
	} {
		var rows struct{ Data []map[string]any }
		token := d.examples[exampleToken]
		if err := d.ask(ctx, token, http.MethodGet, list, nil, &rows); err != nil {
			return err
		}
		for _, row := range rows.Data {
			if made(row) {
				at := list + "/" + url.PathEscape(fmt.Sprint(row["id"]))
				if err := d.ask(ctx, token, http.MethodDelete, at, nil, nil); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// finishDocs writes what no call makes: what an owner has agreed to, a webhook that is enabled without a test and has a
// delivery that failed, a connection with Xero for which nobody has chosen a company, so that nothing is ever asked of
// it, and that days of the past are sent to the books. Then it sends one of them.
func (d *demo) finishDocs(ctx context.Context) error {
	hook := d.examples["/webhooks/{id}/test"]
	for _, more := range []string{"/enable", "/rotate-secret", "/replay", "/deliveries",
		"/deliveries/{delivery}/retry"} {
		d.examples["/webhooks/{id}"+more] = hook
	}
	for _, more := range []string{"/accounts", "/mapping", "/preview/{date}", "/exports", "/exports/{export}/retry",
		"/exports/{export}/reverse"} {
		d.examples["/books/connections/{id}"+more] = d.examples["books"]
	}
	unused := &bookConnection{AccountID: d.account, Product: productXero, Status: entryDraft,
		Choices: []bookOrganisation{{ID: "1", Name: "Altstadt GmbH"}, {ID: "2", Name: "Bahnhof GmbH"}}}
	err := d.server.store.update(ctx, func(t *tx) error {
		unused.ID = t.newID("bkc")
		t.addBookConnection(unused)
		c, err := t.bookConnection(ownedBy(d.account), d.examples["books"])
		if err != nil {
			return err
		}
		c.Series, c.Outside, c.Tests = new("W"), true, true
		t.saveBookConnection(c)
		w, err := t.webhook(ownedBy(d.account), hook)
		if err != nil {
			return err
		}
		w.State = webhookEnabled
		t.saveWebhook(w)
		if d.examples["delivery"], err = addFailure(t, w.ID); err != nil {
			return err
		}
		d.examples["/grants/{id}"] = d.addDocsGrant(t, d.examples["/apps/{id}/rotate-secret"]).ID
		g := d.addDocsGrant(t, d.examples["client_id"])
		d.examples["/oauth/revoke token"] = newRefreshToken(t, g, 1)
		return nil
	})
	d.examples["/books/connections/{id}"] = unused.ID
	const exports = "/books/connections/{id}/exports/{export}/"
	if err == nil {
		err = d.make(ctx, &demoCall{Call: "POST /books/connections/«books»/exports",
			Body: json.RawMessage(`{"date":"«date»"}`),
			Keep: map[string]string{exports + "retry export": "data.0.id",
				exports + "reverse export": "data.-1.id"}}, "")
	}
	if err != nil {
		return err
	}
	return newBooksWorker(booksOf(d.server)).export(ctx, d.examples["books"])
}

// addDocsGrant adds what the account has agreed to for an application.
func (d *demo) addDocsGrant(t *tx, appID string) *grant {
	g := &grant{ID: t.newID("grt"), AppID: appID, AccountID: d.account, Scope: scopeOrders, AgreedBy: actorCommand,
		CreatedAt: t.now, UsedAt: t.now, ExpiresAt: t.now.after(refreshLife)}
	t.addGrant(g)
	return g
}

// addFailure adds a delivery of the last event to a webhook, one that failed, and returns its id.
func addFailure(t *tx, webhookID string) (id string, err error) {
	seq, _, err := t.latestEvent()
	if err != nil {
		return "", err
	}
	e, err := t.eventBySeq(seq)
	if err != nil {
		return "", err
	}
	d := &delivery{ID: t.newID("whd"), WebhookID: webhookID, EventID: e.ID, Type: e.Type, Attempt: 1, At: t.now,
		Status: new(http.StatusServiceUnavailable), eventSeq: seq}
	t.addDelivery(d)
	return d.ID, nil
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
