package main

import (
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
		help: "by which guests can pay at Stripe: card (which it is without this), twint, or both"}

	// what commands that ask a provider have in common
	providerOptions = []option{
		optOutboundAllow.says("what may be called besides public addresses, for tests"), optStripeURL, optVippsURL,
	}
)

// The operator's commands on payments and their providers.
var paymentCommands = []command{
	{"payment connect", "stripe|vipps", "take payments by card (stripe) or by mobile phone (vipps)",
		append([]option{optAccount.says("the account whose money it is"), optSecrets, optMethods},
			providerOptions...), paymentConnect},
	{"payment set", "CONNECTION", "change by which methods guests can pay with a connection",
		append([]option{optMethods}, providerOptions...), paymentSet},
	{"payment list", "", "list the connections with payment providers, newest first",
		[]option{optAllRows, optSince, optUntil, optAccount.says("show only connections of this account")},
		paymentList},
	{"payment check", "CONNECTION", "ask a provider whether it accepts a connection's keys and has our webhook",
		providerOptions, paymentCheck},
	{"payment reconnect", "CONNECTION", "give a connection other keys of the same account, after they were changed " +
		"at the provider or the key file was lost; its payments go on, also those of a disconnected one",
		append([]option{optSecrets}, providerOptions...), paymentReconnect},
	{"payment disconnect", "CONNECTION", "take no new payments with a connection; those under way go on",
		append([]option{
			optUnasked.says("do not ask, and disconnect it although our webhook can't be removed at the provider"),
		}, providerOptions...), paymentDisconnect},
	{"payment export", "", "print every payment that was captured, with the provider's ids, to reconcile payouts: " +
		"one JSON object a line, or CSV",
		[]option{optCSV, optAccount.says("print only payments of this account"),
			optSince.says("print only payments begun since a date or an RFC 3339 time, or in the last days, as 7d"),
			optUntil.says("print only payments begun until the end of a date (UTC), or until an RFC 3339 time"),
		}, listCommand{export: true, prefix: "pay", cell: amountCells("captured", "refunded", "amount"),
			columns: "payment_id order_id reference account_id provider state currency captured refunded intent_id " +
				"refund_ids captured_at method test amount created_at", pages: paged(capturedPayments)}.run},
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

// withProviders calls f with the clients of all providers.
func (e *env) withProviders(f func(of map[string]provider) error) error {
	allow, err := parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	if err != nil {
		return err
	}
	out := newOutbound(allow)
	defer out.close()
	return f(newProviders(out, e.str("stripe-url"), e.str("vipps-url"), e.now))
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

func paymentConnect(e *env) error {
	name := e.args[0]
	if known := []string{providerStripe, providerVipps}; !slices.Contains(known, name) {
		return unknownWord("there is no provider", name, known)
	}
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	secrets, err := e.readSecrets(name)
	if err != nil {
		return err
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	c := &openConnection{&paymentConnection{ID: newID("con", e.now()), AccountID: account, Provider: name,
		CreatedAt: newStamp(e.now())}, secrets}
	if err := c.setMethods(e.commaList("methods")); err != nil {
		return usageError(err.Error())
	}
	err = e.withProviders(func(of map[string]provider) error {
		return e.withStore(func(st *store) error { return e.connectProvider(st, of[name], c, keys) })
	})
	if err != nil {
		return err
	}
	kind := "live"
	if !c.Live {
		kind = "for tests: no money moves"
	}
	c.setState(true)
	return e.print(c.paymentConnection,
		fmt.Sprintf("id:      %s (%s)\nwebhook: %s", c.ID, kind, *c.WebhookURL))
}

// connectProvider connects an account with a provider, and saves the connection once the provider has answered.
// If it can't be saved, the webhook that was registered at the provider is removed again.
func (e *env) connectProvider(st *store, p provider, c *openConnection, keys *keyring) error {
	if err := st.openAccount(c.AccountID); err != nil {
		return err
	}
	address, err := e.webhookAddress(st, c.paymentConnection)
	if err != nil {
		return err
	}
	used, err := st.usedConnections(c.AccountID)
	if err != nil {
		return err
	}
	for _, other := range used { // an early check, before the provider is asked; addConnection decides
		if other.Provider == c.Provider {
			return errConnected
		}
	}
	if err := p.connect(e.ctx, c, address); err != nil {
		return explainProviderError(c.Provider, err)
	}
	c.WebhookURL = &address
	if err = explainProviderError(c.Provider, p.tries(e.ctx, c, address)); err == nil {
		err = c.seal(keys)
	}
	if err == nil {
		err = st.update(e.ctx, func(t *tx) error { return addConnection(t, c.paymentConnection, e.actor()) })
	}
	if err == nil {
		return nil
	}
	if failed := p.disconnect(context.WithoutCancel(e.ctx), c); failed != nil {
		return fmt.Errorf("%w; the webhook %s stays at %s (%w): remove it there", err, *c.WebhookID, c.Provider, failed)
	}
	return fmt.Errorf("%w; the webhook at %s was removed again", err, c.Provider)
}

// paymentSet changes by which methods guests can pay with a connection, once the provider takes them.
func paymentSet(e *env) error {
	return e.withConnection(false, func(st *store, c *paymentConnection, opened *openConnection, p provider) error {
		if opened == nil {
			return errors.New(sealedElsewhere(c.ID))
		}
		if err := c.setMethods(e.commaList("methods")); err != nil {
			return usageError(err.Error())
		}
		if len(c.Methods) == 0 {
			return usageError("-methods: name the methods, as card,twint")
		}
		if err := p.tries(e.ctx, opened, valueOr(c.WebhookURL, "")); err != nil {
			return explainProviderError(c.Provider, err)
		}
		if err := st.update(e.ctx, func(t *tx) error { return t.saveConnectionMethods(c) }); err != nil {
			return err
		}
		return e.done("guests can pay with " + c.ID + " by " + strings.Join(c.Methods, " and "))
	})
}

// webhookAddress returns the address that the provider of a connection is to post to.
func (e *env) webhookAddress(st *store, c *paymentConnection) (string, error) {
	base, err := currentBase(st)
	if err != nil {
		return "", err
	}
	allow, err := parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	if err != nil {
		return "", err
	}
	return providerWebhook(base, c.Provider, c.ID, allow)
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

func paymentList(e *env) error {
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	var unreadable []string
	read := func(q *queries, o owner) ([]*paymentConnection, error) {
		all, err := q.paymentConnections(o)
		for _, c := range all {
			_, failed := c.open(keys)
			if c.setState(failed == nil); c.State == "unreadable" {
				unreadable = append(unreadable, c.ID)
			}
		}
		return all, err
	}
	err = listCommand{prefix: "con", columns: "ID PROVIDER LIVE STATE NAME CREATED=created_at ACCOUNT=account_id",
		pages: whole(read)}.run(e)
	for _, id := range unreadable {
		if err == nil && !e.on("json") {
			_, err = fmt.Fprintln(e.stdout, sealedElsewhere(id))
		}
	}
	return err
}

// withConnection calls f with a connection that the command's first argument names, its secrets, and the client of
// its provider. It must be in use, or may be a removed one that has payments. opened is nil if the secrets were sealed
// with another key file.
func (e *env) withConnection(
	removed bool, f func(st *store, c *paymentConnection, opened *openConnection, p provider) error,
) error {
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	return e.withProviders(func(of map[string]provider) error {
		return e.withStore(func(st *store) error {
			c, err := st.paymentConnection(anyAccount, e.args[0])
			gone := err == nil && !c.RemovedAt.IsZero()
			if gone && removed {
				var known *payment
				known, err = st.knownPayment(c.ID)
				gone = known == nil
			}
			if errors.Is(err, errNotFound) || gone && err == nil {
				return errors.New("not found, or disconnected already: 'widgetd payment list' prints what there is")
			}
			if err != nil {
				return err
			}
			opened, failed := c.open(keys)
			if failed != nil {
				opened = nil
			}
			return f(st, c, opened, of[c.Provider])
		})
	})
}

func paymentCheck(e *env) error {
	err := e.withConnection(false, func(_ *store, c *paymentConnection, opened *openConnection, p provider) error {
		if opened == nil {
			return errors.New(sealedElsewhere(c.ID))
		}
		return explainProviderError(c.Provider, p.check(e.ctx, opened))
	})
	if err != nil {
		return err
	}
	return e.print(map[string]bool{"ok": true}, "ok: the provider accepts the keys, and has our webhook")
}

// paymentReconnect gives a connection other keys. Before anything else they must read a payment that it has made. If it
// is in use, its webhook is registered anew.
func paymentReconnect(e *env) error {
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	return e.withConnection(true, func(st *store, before *paymentConnection, _ *openConnection, p provider) error {
		secrets, err := e.readSecrets(before.Provider)
		if err != nil {
			return err
		}
		row := *before
		c := &openConnection{&row, secrets}
		if err := e.sameCompany(st, p, c); err != nil {
			return err
		}
		done := "connection " + withName(c.ID, c.Provider) + " has the new keys"
		if !before.RemovedAt.IsZero() {
			if err := e.keepKeys(st, c, keys); err != nil {
				return err
			}
			return e.done(done)
		}
		address, err := e.webhookAddress(st, before)
		if err != nil {
			return err
		}
		if err := p.connect(e.ctx, c, address); err != nil {
			return explainProviderError(c.Provider, err)
		}
		c.WebhookURL = &address
		if err = errOtherAccount; before.Live == c.Live && before.Name == c.Name { // as far as these tell
			err = e.keepKeys(st, c, keys)
		}
		if err != nil {
			return errors.Join(err, p.disconnect(context.WithoutCancel(e.ctx), c))
		}
		// The previous webhook is removed: from now on its signature is refused.
		if err := p.disconnect(e.ctx, &openConnection{before, secrets}); err != nil {
			return fmt.Errorf("it has the new keys, but the webhook %s stays at %s (%w): remove it there",
				valueOr(before.WebhookID, ""), c.Provider, err)
		}
		return e.done(done)
	})
}

// sameCompany returns an error unless the provider knows the newest payment of a connection with its new keys.
// Without one it does not know.
func (e *env) sameCompany(st *store, p provider, c *openConnection) error {
	if c.Provider == providerStripe {
		if _, err := stripeMode(c.secrets.Key); err != nil {
			return err
		}
	} else if c.Name != c.secrets.MerchantSerial {
		return errOtherAccount
	}
	known, err := st.knownPayment(c.ID)
	if err != nil || known == nil {
		return err
	}
	report, err := p.look(e.ctx, c, known)
	if err == nil && report.phase == phaseUnknown {
		err = errOtherAccount
	}
	if err != nil && !errors.Is(err, errOtherAccount) {
		err = explainProviderError(c.Provider, err)
	}
	return err
}

// keepKeys saves the new keys of a connection. Errors: those of changeConnectionKeys.
func (e *env) keepKeys(st *store, c *openConnection, keys *keyring) error {
	if err := c.seal(keys); err != nil {
		return err
	}
	return st.update(e.ctx, func(t *tx) error { return changeConnectionKeys(t, c.paymentConnection, e.actor()) })
}

func paymentDisconnect(e *env) error {
	err := e.confirm(func(q *queries) (string, error) {
		c, err := q.paymentConnection(anyAccount, e.args[0])
		if err != nil || !c.RemovedAt.IsZero() {
			return "", except(err, errNotFound) // which withConnection says
		}
		return "disconnects " + withName(c.ID, c.Provider) + ": guests can't pay with it any more", nil
	})
	if err != nil {
		return err
	}
	left := "" // what is left at the provider
	err = e.withConnection(false, func(st *store, c *paymentConnection, opened *openConnection, p provider) error {
		var failed error
		if opened != nil {
			failed = explainProviderError(c.Provider, p.disconnect(e.ctx, opened))
		}
		if failed != nil && !e.on("force") {
			return fmt.Errorf("our webhook can't be removed: %w: add -force to disconnect it all the same", failed)
		}
		if failed != nil || opened == nil && c.WebhookID != nil {
			left = fmt.Sprintf("remove the webhook %s at %s yourself", valueOr(c.WebhookID, ""), c.Provider)
		}
		return st.update(e.ctx, func(t *tx) error { return removeConnection(t, c, e.actor()) })
	})
	if err != nil {
		return err
	}
	line := "connection " + e.args[0] + " disconnected"
	if left == "" {
		return e.done(line)
	}
	return e.print(map[string]any{"ok": true, "left": left}, line+"; "+left)
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

// sealedPayments is what the status command says of connections whose secrets another key file sealed.
func sealedPayments(v *statusView, to *statusReport) error {
	if v.keys == nil {
		return nil
	}
	ids, err := unsealableConnections(v.queries, v.keys)
	var lines []string
	for _, id := range ids {
		lines = append(lines, sealedElsewhere(id))
	}
	to.askFirst(lines)
	return err
}

// checkPayments is a rowCheck. It finds connections whose secrets were sealed with another key file, and the 20
// oldest payments with money that no order accounts for.
func checkPayments(q *queries, keys *keyring, now time.Time) (faults []string, err error) {
	ids, err := unsealableConnections(q, keys)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		faults = append(faults, "key: "+sealedElsewhere(id))
	}
	unaccounted, err := q.unaccountedPayments(now, 20)
	for _, u := range unaccounted {
		faults = append(faults, fmt.Sprintf("payments: %s is not in review, and differs by %s from what its order "+
			"accounts for: run 'widgetd order settle %s'", u.id, formatMoney(u.amount, u.currency), u.orderID))
	}
	return faults, err
}
