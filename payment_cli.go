package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The options of these commands.
var (
	optStripeURL = option{name: "stripe-url", value: "URL", def: stripeBase,
		help: "base address of Stripe, for tests", hasVariable: true}
	optVippsURL = option{name: "vipps-url", value: "URL", def: vippsLive,
		help: "base address of Vipps MobilePay, for tests and its sandbox", hasVariable: true}

	optMethods = option{name: "methods", value: "METHOD,…",
		help:  "by which guests can pay at Stripe, separated by commas; without it by card",
		words: func() []string { return []string{methodCard, methodTwint} }}

	// what commands that ask a provider have in common
	providerOptions = []option{
		optOutboundAllow.says("what may be called besides public addresses, for tests"), optStripeURL, optVippsURL,
	}
)

// The operator's commands on payments and their providers.
var paymentCommands = []command{
	{"payment connect", "stripe|vipps", "take payments by card (stripe) or by mobile phone (vipps)",
		append([]option{optAccount.says("the account whose money it is"), optSecrets, optMethods},
			providerOptions...), atProviders((*connectionCommand).connect)},
	{"payment set", "CONNECTION", "change by which methods guests can pay with a connection",
		append([]option{optMethods}, providerOptions...), atProviders((*connectionCommand).setMethods)},
	{"payment check", "CONNECTION", "ask a provider whether it accepts a connection's keys and has our webhook",
		providerOptions, atProviders((*connectionCommand).check)},
	{"payment reconnect", "CONNECTION", "give a connection other keys of the same account, after they were changed " +
		"at the provider or the key file was lost; its payments go on, also those of a disconnected one",
		append([]option{optSecrets}, providerOptions...), atProviders((*connectionCommand).reconnect)},
	{"payment disconnect", "CONNECTION", "take no new payments with a connection; those under way go on",
		append([]option{
			optUnasked.says("do not ask, and disconnect it although our webhook can't be removed at the provider"),
		}, providerOptions...), paymentDisconnect},
}

// The lists of connections and of payments, whose ids it calls payment_id.
var paymentRouteCommands = []routeCommand{
	{name: "payment list", help: "list the connections with payment providers, newest first",
		options: []option{optOfAccount},
		rows: &listCommand{short: true, prefix: "con", pages: connectionPages,
			columns: "ID PROVIDER LIVE STATE NAME CREATED=created_at ACCOUNT=account_id"}},
	{name: "payment export", help: "print every payment that was captured, with the provider's ids, to reconcile " +
		"payouts: one JSON object a line, or CSV; -since and -until are about when it was begun",
		options: []option{optOfAccount},
		rows: &listCommand{export: true, prefix: "pay", pages: paged(capturedPayments),
			columns: "payment_id order_id reference account_id provider state currency captured refunded intent_id " +
				"refund_ids captured_at method test amount created_at payout_id"}},
}

// capturedPayments returns a page of the attempts by which money was captured.
func capturedPayments(q *queries, o owner, before string, limit int) (p listPage[exportedPayment], err error) {
	all, err := q.payments(paymentFilter{owner: o, captured: true}, before, limit)
	for _, row := range all.rows {
		p.rows = append(p.rows, exportedPayment{row.ID, row})
	}
	p.next = all.next
	return p, err
}

// An exportedPayment is a payment as the command prints it, which names its id differently.
type exportedPayment struct {
	PaymentID string `json:"payment_id"`
	listedPayment
}

// A connectionCommand is a command that asks a provider about a connection.
type connectionCommand struct {
	*env
	*store
	keys      *keyring
	allow     []netip.Prefix // -outbound-allow
	providers map[string]provider
}

// atProviders makes a command of f.
func atProviders(f func(*connectionCommand) error) func(*env) error {
	return func(e *env) error {
		allow, err := parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
		if err != nil {
			return err
		}
		_, keys, err := e.loadKeys()
		if err != nil {
			return err
		}
		out := newOutbound(allow)
		defer out.close()
		providers := newProviders(out, e.values, e.now)
		return e.withStore(func(st *store) error {
			if err := st.refuseDemo(st.path); err != nil {
				return err
			}
			return f(&connectionCommand{e, st, keys, allow, providers})
		})
	}
}

// connection returns the connection that the first argument names, and reports whether its secrets can be read:
// another key file may have sealed them. It is in use, or with removed it may be one that was disconnected and has
// payments.
func (a *connectionCommand) connection(removed bool) (c *unsealedConnection, readable bool, err error) {
	row, err := a.paymentConnection(anyAccount, a.args[0])
	gone := err == nil && !row.RemovedAt.IsZero()
	if gone && removed {
		var known *payment
		known, err = a.knownPayment(row.ID)
		gone = known == nil
	}
	if errors.Is(err, errNotFound) || gone && err == nil {
		err = errors.New("not found, or disconnected already: 'widgetd payment list' prints what there is")
	}
	if err != nil {
		return nil, false, err
	}
	c, failed := row.open(a.keys)
	if failed != nil {
		c = &unsealedConnection{paymentConnection: row}
	}
	return c, failed == nil, nil
}

// readableConnection is connection for what needs the secrets of one that is in use.
func (a *connectionCommand) readableConnection() (*unsealedConnection, error) {
	c, readable, err := a.connection(false)
	if err == nil && !readable {
		err = errors.New(sealedElsewhere(c.ID))
	}
	return c, err
}

// readSecrets reads the secrets that -secrets names, for a provider.
func (e *env) readSecrets(provider string) (s connectionSecrets, err error) {
	name, text, err := e.secretText()
	if err != nil {
		return s, err
	}
	if s, err = parseSecrets(provider, text); err != nil {
		return s, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// explainProviderError turns an error of a provider's client into one that names the next step.
func explainProviderError(provider string, err error) error {
	var failed *outboundError
	switch {
	case vendorSaid(err) == vendorDenied:
		return fmt.Errorf("%s refuses the keys: %w", provider, err)
	case errors.As(err, &failed) && failed.reason == "webhook_gone":
		return fmt.Errorf("%s has our webhook no more: run 'widgetd payment reconnect ID -secrets FILE'", provider)
	case err != nil:
		return fmt.Errorf("%s: %w", provider, err)
	}
	return nil
}

// setState sets State, for what the commands print. readable says whether the secrets can be read.
func (c *paymentConnection) setState(readable bool) {
	c.State = "in_use"
	switch {
	case !c.RemovedAt.IsZero():
		c.State = "removed"
	case !readable:
		c.State = "unreadable"
	case !c.FailingSince.IsZero():
		c.State = "refused"
	}
}

func (a *connectionCommand) connect() error {
	name := a.args[0]
	if !slices.Contains(providerNames(), name) {
		return unknownWord("there is no provider", name, providerNames())
	}
	account, err := a.needAccount()
	if err != nil {
		return err
	}
	secrets, err := a.readSecrets(name)
	if err != nil {
		return err
	}
	c := &unsealedConnection{&paymentConnection{ID: newID("con", a.env.now()), AccountID: account, Provider: name,
		CreatedAt: newStamp(a.env.now())}, secrets}
	if err := c.setMethods(a.commaList("methods")); err != nil {
		return usageError(err.Error())
	}
	if err := a.openAccount(account); err != nil {
		return err
	}
	used, err := a.usedConnections(account)
	if err != nil {
		return err
	}
	for _, other := range used { // an early check, before the provider is asked; addConnection decides
		if other.Provider == name {
			return errConnected
		}
	}
	err = a.register(c, func() error {
		if err := a.providers[name].checkMethods(a.ctx, c, *c.WebhookURL); err != nil {
			return explainProviderError(name, err)
		}
		return a.seal(c, addConnection)
	})
	if err != nil {
		return err
	}
	kind := "live"
	if !c.Live {
		kind = "for tests: no money moves"
	}
	c.setState(true)
	return a.print(c.paymentConnection, fmt.Sprintf("id:      %s (%s)\nwebhook: %s", c.ID, kind, *c.WebhookURL))
}

// register has the provider of a connection post to our webhook, and calls save. If that fails, the webhook is removed
// there again.
func (a *connectionCommand) register(c *unsealedConnection, save func() error) error {
	base, err := currentBase(a.store)
	if err != nil {
		return err
	}
	address, err := providerWebhook(base, c.Provider, c.ID, a.allow)
	if err != nil {
		return err
	}
	p := a.providers[c.Provider]
	if err := p.connect(a.ctx, c, address); err != nil {
		return explainProviderError(c.Provider, err)
	}
	c.WebhookURL = &address
	if err = save(); err == nil {
		return nil
	}
	if failed := p.disconnect(context.WithoutCancel(a.ctx), c); failed != nil {
		return fmt.Errorf("%w; the webhook %s stays at %s (%w): remove it there", err, *c.WebhookID, c.Provider, failed)
	}
	return fmt.Errorf("%w; the webhook at %s was removed again", err, c.Provider)
}

// seal seals the secrets of a connection, and saves it. Errors: those of save.
func (a *connectionCommand) seal(c *unsealedConnection, save func(*tx, *paymentConnection, string) error) error {
	if err := c.seal(a.keys); err != nil {
		return err
	}
	return a.update(a.ctx, func(t *tx) error { return save(t, c.paymentConnection, a.actor()) })
}

// setMethods changes by which methods guests can pay with a connection, once the provider takes them.
func (a *connectionCommand) setMethods() error {
	c, err := a.readableConnection()
	if err != nil {
		return err
	}
	if err := c.setMethods(a.commaList("methods")); err != nil {
		return usageError(err.Error())
	}
	if len(c.Methods) == 0 {
		return usageError("-methods: name the methods, as card,twint")
	}
	if err := a.providers[c.Provider].checkMethods(a.ctx, c, valueOr(c.WebhookURL, "")); err != nil {
		return explainProviderError(c.Provider, err)
	}
	if err := a.update(a.ctx, func(t *tx) error { return t.saveConnectionMethods(c.paymentConnection) }); err != nil {
		return err
	}
	return a.done("guests can pay with " + c.ID + " by " + strings.Join(c.Methods, " and "))
}

// providerWebhook returns the address that a provider is to post to for a connection, below a base address. The
// base address must use https; for tests it may use http on a loopback address that allow contains.
func providerWebhook(base, provider, connectionID string, allow []netip.Prefix) (string, error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	ip, err := netip.ParseAddr(u.Hostname())
	here := err == nil && ip.IsLoopback() &&
		slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
	if u.Scheme != "https" && !here {
		return "", usageError(fmt.Sprintf("the provider posts to the base address, %s, which must have https: "+
			"run 'widgetd base-url set https://…/v1' first", base))
	}
	return base + "/payments/" + provider + "/" + connectionID, nil
}

// connectionPages reads the connections of payment list, and tells people which can't be read.
func connectionPages(e *env, q *queries) (rowPages, error) {
	_, keys, err := e.loadKeys()
	if err != nil {
		return nil, err
	}
	return wholeTable(func(q *queries, o owner) ([]*paymentConnection, error) {
		all, err := q.paymentConnections(o)
		for _, c := range all {
			_, failed := c.open(keys)
			if c.setState(failed == nil); c.State == "unreadable" && !e.on("json") {
				e.note("%s\n", sealedElsewhere(c.ID))
			}
		}
		return all, err
	})(e, q)
}

func (a *connectionCommand) check() error {
	c, err := a.readableConnection()
	if err != nil {
		return err
	}
	lacks, err := a.providers[c.Provider].check(a.ctx, c)
	if err != nil {
		return explainProviderError(c.Provider, err)
	}
	refused, err := a.paymentRefusals(c.ID)
	if err != nil {
		return err
	}
	line, failing := "the provider accepts the keys, and has our webhook", error(nil)
	if len(lacks) > 0 {
		line += "; payouts can't be read: the keys lack " + strings.Join(lacks, ", ")
	}
	for _, r := range refused {
		line += fmt.Sprintf("\nit has refused each new payment by %s since %s, of %s in a row, the last one at %s: %s",
			r.Method, r.Since, countOf(r.Count, "order"), r.RefusedAt, strings.TrimSuffix(r.Code+": "+r.Words, ": "))
		if r.Count >= refusedTold {
			failing = exitStatus(exitNeedsDoing)
		}
	}
	if failing == nil {
		line = "ok: " + line
	}
	return cmp.Or(a.print(map[string]any{"ok": failing == nil, "lacks": append([]string{}, lacks...),
		"refused": append([]paymentRefusal{}, refused...)}, line), failing)
}

// reconnect gives a connection other keys. Before anything else they must read a payment that it has made. If it is in
// use, its webhook is registered anew.
func (a *connectionCommand) reconnect() error {
	before, _, err := a.connection(true)
	if err != nil {
		return err
	}
	row := *before.paymentConnection
	c := &unsealedConnection{paymentConnection: &row}
	if c.secrets, err = a.readSecrets(c.Provider); err != nil {
		return err
	}
	if err := a.sameCompany(c); err != nil {
		return err
	}
	if c.RemovedAt.IsZero() {
		err = a.register(c, func() error {
			if before.Live != c.Live || before.Name != c.Name { // as far as these tell
				return errOtherAccount
			}
			return a.seal(c, changeConnectionKeys)
		})
	} else {
		err = a.seal(c, changeConnectionKeys)
	}
	if err != nil {
		return err
	}
	if c.RemovedAt.IsZero() { // the previous webhook is removed: from now on its signature is refused
		before.secrets = c.secrets
		if err := a.providers[c.Provider].disconnect(a.ctx, before); err != nil {
			return fmt.Errorf("it has the new keys, but the webhook %s stays at %s (%w): remove it there",
				valueOr(before.WebhookID, ""), c.Provider, err)
		}
	}
	return a.done("connection " + withName(c.ID, c.Provider) + " has the new keys")
}

// sameCompany returns an error unless the provider knows the newest payment of a connection with its new keys.
// Without one it does not know.
func (a *connectionCommand) sameCompany(c *unsealedConnection) error {
	if err := providerOf(c.Provider).same(c); err != nil {
		return err
	}
	known, err := a.knownPayment(c.ID)
	if err != nil || known == nil {
		return err
	}
	report, err := a.providers[c.Provider].fetchStatus(a.ctx, c, known)
	if err == nil && report.phase == phaseUnknown {
		return errOtherAccount
	}
	return explainProviderError(c.Provider, err)
}

// paymentDisconnect disconnects a connection once that is confirmed.
func paymentDisconnect(e *env) error {
	err := e.confirm(func(q *queries) (string, error) {
		c, err := q.paymentConnection(anyAccount, e.args[0])
		if err != nil || !c.RemovedAt.IsZero() {
			return "", except(err, errNotFound) // which connection says
		}
		return "disconnects " + withName(c.ID, c.Provider) + ": guests can't pay with it any more", nil
	})
	if err != nil {
		return err
	}
	return atProviders((*connectionCommand).disconnect)(e)
}

func (a *connectionCommand) disconnect() error {
	c, readable, err := a.connection(false)
	if err != nil {
		return err
	}
	left := "" // what is left at the provider
	var failed error
	if readable {
		failed = explainProviderError(c.Provider, a.providers[c.Provider].disconnect(a.ctx, c))
	}
	if failed != nil && !a.on("force") {
		return fmt.Errorf("our webhook can't be removed: %w: add -force to disconnect it all the same", failed)
	}
	if failed != nil || !readable && c.WebhookID != nil {
		left = fmt.Sprintf("remove the webhook %s at %s yourself", valueOr(c.WebhookID, ""), c.Provider)
	}
	err = a.update(a.ctx, func(t *tx) error { return removeConnection(t, c.paymentConnection, a.actor()) })
	if err != nil {
		return err
	}
	line := "connection " + c.ID + " disconnected"
	if left == "" {
		return a.done(line)
	}
	return a.print(map[string]any{"ok": true, "left": left}, line+"; "+left)
}

// paymentStatus is what the status command says of payments.
func paymentStatus(v *statusView, to *statusReport) error {
	n, err := v.paymentTotals(v.now)
	to.set("payments", n)
	if err == nil {
		to.say("%d under way, %d in review", n.Live, n.Review)
	}
	return err
}

// checkPayments is a rowCheck. It finds the 20 oldest payments with money that no order accounts for.
func checkPayments(q *queries, _ *keyring, now time.Time) (faults []string, err error) {
	unaccounted, err := q.unaccountedPayments(now, 20)
	for _, u := range unaccounted {
		faults = append(faults, fmt.Sprintf("payments: %s is not in review, and differs by %s from what its order "+
			"accounts for: run 'widgetd order settle %s'", u.id, formatMoney(u.amount, u.currency), u.orderID))
	}
	return faults, err
}
