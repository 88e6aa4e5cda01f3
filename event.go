package main

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// eventNoun declares the record of what happened.
func eventNoun() noun {
	return noun{
		name:     "event",
		problems: eventProblems,
		modules:  func(s *server) []module { return []module{eventModule(s)} },
		commands: eventCommands,
		calls:    eventRouteCommands,
		ids:      []idKind{{"EVENT", "evt", "events", false, nil}},
		rows:     []rowReader{unreadableEvents},
	}
}

// An eventType is a type of event. More may come.
type eventType string // each noun declares its own in an eventTable

// An eventTable lists the event types of one noun.
type eventTable struct {
	scope string // that callers must have to learn of them; "": scopeEvents
	types []eventType
}

// scopeEvents is the scope for reading events whose eventTable names no other scope.
const scopeEvents = "events:read"

// scopeOfEvent has the scope that callers must have to learn of events of a type. It is filled as nouns declare
// their types.
var scopeOfEvent = map[eventType]string{}

// add declares a type and returns it.
func (t *eventTable) add(name string) eventType {
	declared := eventType(name)
	t.types = append(t.types, declared)
	scopeOfEvent[declared] = cmp.Or(t.scope, scopeEvents)
	return declared
}

// An event is what happened, and who did it.
type event struct {
	ID        string    `json:"id" is:"evt"`          // The id of the event.
	At        stamp     `json:"at"`                   // When it happened.
	Type      eventType `json:"type"`                 // What kind of change it is.
	AccountID string    `json:"account_id" is:"acct"` // The account that it is about.

	// What it is about: a licence (of a device's events too), a lead, order, widget, token, webhook, account,
	// application, grant, export, payout, or connection to a payment provider or to books; absent for others.
	SubjectID string `json:"subject_id,omitempty"`

	LicenseID string `json:"license_id,omitempty" is:"lic"` // The licence, if it is about one.
	DeviceID  string `json:"device_id,omitempty" is:"dev"`  // The device, if it is about one.
	LeadID    string `json:"lead_id,omitempty" is:"lead"`   // The lead, if it is about one.
	OrderID   string `json:"order_id,omitempty" is:"ord"`   // The order, if it is about one.

	// `device`, `site`, `time`, `service` (by itself, since something was wrong), `receiver` (of a webhook, by its
	// answers), `provider` (of payments, or a guest there), `app` and the id of an application, `token` and its id,
	// `person` with who made the code that they signed in with, or `operator`.
	Actor string `json:"actor"`

	// What the type adds. A change has `from` and `to`; names, reasons, `customer` and `metadata` stay out.
	Data json.RawMessage `json:"data"`

	// Its place in the order in which events were written. The database keeps SubjectID alone of the ids of its subject
	// (nameSubject), and DeviceID as a member of data.
	seq int64
}

// The actors of events: who made the change. Commands name the system's user as well, see
// env.actor, and callers with a token are named by it or by their application, see actorToken.
const (
	actorDevice   = "device"
	actorSite     = "site"
	actorCommand  = "command"
	actorOperator = "operator" // whoever used a command or a token with the scope admin
	actorTime     = "time"
	actorReceiver = "receiver" // of a webhook, by its answers
	actorProvider = "provider" // of payments, or a guest who has paid there
)

// todayStatus is what the status command says of what was written on this UTC day.
func todayStatus(v *statusView, to *statusReport) error {
	leads, events, err := v.countToday(newStamp(v.now.UTC().Truncate(24 * time.Hour)))
	to.set("leads_today", leads)
	to.set("events_today", events)
	if err == nil {
		to.say("%s, %s", countOf(leads, "lead"), countOf(events, "event"))
	}
	return err
}

// publicActor returns the actor of an event as callers over HTTP may see it: which of the
// system's users or tokens an operator used stays in the database.
func publicActor(actor string) string {
	if strings.HasPrefix(actor, actorCommand) || strings.HasPrefix(actor, actorOperator) {
		return actorOperator
	}
	return actor
}

// eventData returns the data of an event as a JSON object, from alternating names and values.
// Empty values are left out.
func eventData(pairs ...string) json.RawMessage {
	data := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			data[pairs[i]] = pairs[i+1]
		}
	}
	text, _ := json.Marshal(data)
	return text
}

// actor returns the actor of events for the bearer of a token: "token tok_…", "operator tok_…" where the token has
// the scope admin, or for an application's "app app_…". For a command it is "command:USER".
func (c *caller) actor() string {
	switch {
	case c.command != "":
		return c.command
	case c.app != "":
		return appActor(c.app)
	case c.admin():
		return actorOperator + " " + c.claims.ID
	}
	return "token " + c.claims.ID
}

// appActor returns the actor of events that an application causes.
func appActor(appID string) string { return "app " + appID }

const actorPersons = "person (" // begins the actors of people who have signed in

// actorPerson returns the actor of events for somebody who has signed in; by made the code for that.
func actorPerson(by string) string { return actorPersons + by + ")" }
