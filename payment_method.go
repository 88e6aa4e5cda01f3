package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The methods by which guests pay online: what each of them can do, and which of them may be offered for an order.

// A payingMethod is what there is to know of a method by which guests pay at a provider.
type payingMethod struct {
	name          string
	provider      string
	capturedFirst bool          // it is captured by being paid: there is no reservation
	early         bool          // it may be captured before the goods are handed over
	refunds       time.Duration // how long after its capture it can be given back; 0: no limit of ours
}

// payingMethodList are all of them, local ones first: TWINT is paid in Swiss francs only, Vipps MobilePay in the
// currencies of its countries only.
var payingMethodList = []payingMethod{
	{methodTwint, providerStripe, true, true, days(180)},
	{methodMobile, providerVipps, false, false, 0},
	{methodCard, providerStripe, false, true, 0},
}

// cardReservation is how long the money of a card is reserved where its provider does not say when that ends.
const cardReservation = 7 * 24 * time.Hour

// findMethod returns the method with a name; the zero payingMethod for any other way of paying.
func findMethod[T ~string](name T) payingMethod {
	for _, m := range payingMethodList {
		if m.name == string(name) {
			return m
		}
	}
	return payingMethod{}
}

// capturedFirst reports whether the attempt is captured by being paid.
func (p *payment) capturedFirst() bool { return findMethod(p.Method).capturedFirst }

// lapses returns when the attempt's reservation ends if the provider has not said so; zero: it has none.
func (p *payment) lapses(now stamp) stamp {
	switch {
	case !p.CaptureBefore.IsZero(), p.capturedFirst():
		return p.CaptureBefore
	case p.AuthorizedAt.IsZero():
		return now.after(cardReservation)
	}
	return p.AuthorizedAt.after(cardReservation)
}

// endsEarly reports whether a reservation that ends at a moment ends before the order is wanted.
func (o *order) endsEarly(reserved time.Time) bool {
	return !o.WantedAt.IsZero() && reserved.Before(o.WantedAt.Time)
}

// offers reports whether guests can pay by a method with the connection.
func (c *paymentConnection) offers(m payingMethod) bool {
	switch {
	case m.provider != c.Provider:
		return false
	case len(c.Methods) == 0:
		return m.name == providerOf(c.Provider).methods[0]
	}
	return slices.Contains(c.Methods, m.name)
}

// setMethods sets the methods of a connection. Errors: one for people, if its provider does not have one of them.
func (c *paymentConnection) setMethods(names []string) error {
	known := providerOf(c.Provider).methods
	for i, name := range names {
		if !slices.Contains(known, name) || slices.Contains(names[:i], name) {
			return fmt.Errorf("-methods: %s has %s, each named once", c.Provider, strings.Join(known, " and "))
		}
	}
	c.Methods = names
	return nil
}

// What a guest is to know of a method beside its name (offeredMethod.Note): keys of texts.
const (
	noteChargedNow      = "charged_now"           // and given back if the restaurant declines
	noteChargedAccepted = "charged_on_acceptance" // by the restaurant
	noteChargedHandover = "charged_on_handover"   // and reserved until then
)

// An offeredMethod is a method by which a guest may pay an order.
type offeredMethod struct {
	Method string
	Note   string // when the guest is charged: noteChargedNow, …
}

// methodsFor returns the methods by which an order can be paid, those that are local to its currency first.
func (p *payments) methodsFor(o *order) ([]offeredMethod, error) {
	offered := []offeredMethod{}
	if p.off() {
		return offered, nil
	}
	conns, err := p.store.usedConnections(o.AccountID)
	if err != nil {
		return nil, fmt.Errorf("find the connections of an account: %w", err)
	}
	settings, err := p.store.settings(o.AccountID)
	if err != nil {
		return nil, err
	}
	now := p.now()
	for _, m := range payingMethodList {
		c := p.connectionOf(conns, o, m, now)
		switch {
		case c == nil:
			continue
		case m.capturedFirst:
			offered = append(offered, offeredMethod{m.name, noteChargedNow})
			continue
		}
		note, reserved := noteChargedHandover, now.Add(p.providers[c.Provider].reserves(o.Currency))
		if m.early && (settings.CaptureOn == captureOnAccept || o.endsEarly(reserved)) {
			note = noteChargedAccepted
		}
		offered = append(offered, offeredMethod{m.name, note})
	}
	return offered, nil
}

// connectionOf returns the connection by which an order can be paid by a method at now, nil if there is none. A
// method that must fail is never offered: the provider does not take the amount or the currency, or its reservation
// would end before the order is wanted, and it forbids capture before that.
func (p *payments) connectionOf(
	conns []*paymentConnection, o *order, m payingMethod, now time.Time,
) *paymentConnection {
	for _, c := range conns {
		client := p.providers[c.Provider]
		if client == nil || !c.offers(m) || !client.takes(m.name, o.Currency, o.Total) {
			continue
		}
		if m.early || !o.endsEarly(now.Add(client.reserves(o.Currency))) {
			return c
		}
	}
	return nil
}
