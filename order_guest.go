package main

import (
	"time"
)

// Guests: who placed an order and how they get it. All of it is personal. Only callers that can read orders see it,
// and it is erased keptCustomersFor after the order's end, or when an operator says so.

// How a guest gets an order.
const (
	fulfilDelivery = "delivery"
	fulfilPickup   = "pickup"
	fulfilTable    = "table"
)

// A fulfilmentType is how a guest gets an order: `delivery` has an `address`, `table` has a `table`; no other
// type has them.
type fulfilmentType string

var checkFulfilment = oneOf(declareWords[fulfilmentType](fulfilDelivery, fulfilPickup, fulfilTable)...)

// The limits of what is said of a guest.
const (
	maxTableName  = 50 // characters
	maxCity       = 100
	maxPostalCode = 20
	maxAhead      = 60 * 24 * time.Hour // that an order may be wanted after it is made
)

// A guest is who orders; `null`: that was not given, or is erased, or the token has no `orders:read`.
type guest struct {
	Name  *string `json:"name"`  // The name, or null: it was not given.
	Phone *string `json:"phone"` // The telephone number, or null: it was not given.
	Note  *string `json:"note"`  // What the guest asks for, or null: nothing.

	Fulfilment *fulfilment `json:"-"`
	Language   *string     `json:"-"` // of the pages that the guest reads: de, or de-CH
}

// A fulfilment is how a guest gets an order.
type fulfilment struct {
	Type    fulfilmentType `json:"type"`    // How the guest gets it.
	Address *guestAddress  `json:"address"` // Where it is brought, or null: it is no delivery.
	Table   *string        `json:"table"`   // The name of the table that it is brought to, or null: to none.
}

// A guestAddress is where an order is brought; `null`: it is no delivery.
type guestAddress struct {
	Line1      string  `json:"line1"`       // Street and number.
	Line2      *string `json:"line2"`       // What else it takes to find the door, or null: nothing.
	PostalCode string  `json:"postal_code"` // The postal code.
	City       string  `json:"city"`        // The place.
	Country    string  `json:"country"`     // ISO 3166-1: `CH`.
}

// A fulfilmentView is how and when a guest gets an order; `null`: for the reasons that `customer` is.
type fulfilmentView struct {
	fulfilment
	WantedAt stamp `json:"wanted_at"` // When the guest wants it, or null: as soon as possible.
}

// setGuest sets what callers see of an order's guest; nil: nothing.
func (o *order) setGuest(who *guest) {
	o.Customer, o.Fulfilment, o.Language = nil, nil, nil
	if who == nil {
		return
	}
	if who.Name != nil || who.Phone != nil || who.Note != nil {
		o.Customer = who
	}
	if who.Fulfilment != nil {
		o.Fulfilment = &fulfilmentView{*who.Fulfilment, o.WantedAt}
	}
	o.Language = who.Language
}

// wantedErased reports whether it was erased when the guest wants the order. What waits for the order's deadlines
// still needs those until it has ended.
func (o *order) wantedErased() bool { return !o.WantedAt.IsZero() && o.WantedAt.Unix() == 0 }

// eraseDeadlines overwrites what follows from when the guest wanted an order that has ended, if that was erased.
func (o *order) eraseDeadlines() {
	if o.EndedAt.IsZero() || !o.wantedErased() {
		return
	}
	if !o.ReadyAt.IsZero() {
		o.ReadyAt = o.AcceptedAt
	}
	if o.AcceptBy = o.CreatedAt; o.Pay == payLater {
		o.ExpiresAt = o.CreatedAt
	}
}

// hideWantedTime hides when the guest wants the order also in the times that follow from that: callers see none until
// which it is to be accepted, nor at which it is ready, and that it expires, if it does, as if it were wanted at
// once.
func (o *order) hideWantedTime(q *queries) error {
	o.AcceptBy, o.ReadyAt = stamp{}, stamp{}
	if o.Pay == payLater {
		settings, err := q.settings(o.AccountID)
		if err != nil {
			return err
		}
		o.ExpiresAt = o.CreatedAt.after(time.Duration(settings.AcceptWithin) * time.Minute)
	}
	if o.State == orderExpired {
		o.EndedAt = o.ExpiresAt
	}
	return nil
}

// checkAhead returns the refusal of a time for which an order is wanted or announced: one that is over, or more than
// maxAhead from now. The zero stamp is no such time.
func checkAhead(t *tx, member string, at stamp) error {
	switch {
	case at.IsZero():
		return nil
	case at.Before(t.exact.Add(-clockSkew)):
		return errMember(member, "out_of_range", "This is in the past.")
	case at.After(t.exact.Add(maxAhead)):
		return errMember(member, "out_of_range", "This is more than 60 days ahead.")
	}
	return nil
}
