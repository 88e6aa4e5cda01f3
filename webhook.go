package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scopeWebhooks is the scope of all endpoints of webhooks.
const scopeWebhooks = "webhooks:write"

// webhookNoun declares webhooks.
func webhookNoun() noun {
	return noun{
		name:     "webhook",
		wings:    func(s *server) []wing { return []wing{webhookWing(s)} },
		commands: webhookCommands,
		problems: webhookProblems,
		events:   webhookEvents,
		sealed:   []string{"webhooks"},
		status:   func() []statusPart { return []statusPart{{"webhooks", false, &webhookStatus{}}} },
		holdings: []holding{heldWebhooks},
	}
}

// receiverNoun declares the receiver with which webhooks are tried out.
func receiverNoun() noun { return noun{name: "receiver", commands: webhookListenCommands} }

// Webhooks (contract, section 8): the events of an account are posted to addresses that it names,
// signed as Standard Webhooks 1.0.0 says. Here are their rules; webhook_worker.go sends.

// The event types of webhooks. Their data never has an address, whose path may be a secret.
var (
	webhookEvents eventTable

	eventWebhookCreated       = webhookEvents.add("webhook.created")
	eventWebhookUpdated       = webhookEvents.add("webhook.updated")
	eventWebhookEnabled       = webhookEvents.add("webhook.enabled")
	eventWebhookDisabled      = webhookEvents.add("webhook.disabled")
	eventWebhookRemoved       = webhookEvents.add("webhook.removed")
	eventWebhookSecretRotated = webhookEvents.add("webhook.secret_rotated")
	eventWebhookReplayed      = webhookEvents.add("webhook.replayed")
	eventWebhookRetried       = webhookEvents.add("webhook.retried")
	eventWebhookTest          = webhookEvents.add("webhook.test") // sent to its own webhook only
)

// The problem codes of webhooks.
var (
	webhookProblems problemTable

	codeWebhookNotFound = webhookProblems.add(404, "webhook_not_found", "Webhook not found",
		"There is no webhook with this id.")
	codeDeliveryNotFound = webhookProblems.add(404, "delivery_not_found", "Delivery not found",
		"There is no delivery with this id: those of 30 days are kept, and the last 1,000 of a webhook.")
	codeWebhookLimit = webhookProblems.add(409, "webhook_limit_reached", "Too many webhooks",
		"The account has 50 webhooks already: remove one first.")
	codeWebhookNotEnabled = webhookProblems.add(409, "webhook_not_enabled", "Webhook not enabled",
		"Events are sent to enabled webhooks only: enable it first.")

	errWebhook         = &refusal{code: codeWebhookNotFound}
	errDelivery        = &refusal{code: codeDeliveryNotFound}
	errWebhookLimit    = &refusal{code: codeWebhookLimit}
	errAppWebhookLimit = &refusal{code: codeWebhookLimit,
		detail: "The application has 10 webhooks of the account already: remove one first."}
	errWebhookDisabled = &refusal{code: codeWebhookNotEnabled}
)

// The states of a webhook.
const (
	webhookPending  = "pending" // it has not answered a test with 2xx since it was added, changed or disabled
	webhookEnabled  = "enabled"
	webhookDisabled = "disabled"
)

// Why a webhook is disabled.
const (
	disabledByOwner = "owner"
	disabledGone    = "gone"    // it answered 410
	disabledFailing = "failing" // every attempt of maxFailing failed
)

const (
	maxWebhooks       = 50 // of an account
	maxAppWebhooks    = 10 // among them of one application
	maxWebhookURL     = 2048
	maxWebhookText    = 200                 // characters of a description
	secretOverlap     = 24 * time.Hour      // how long the secret before the last rotation also signs
	maxFailing        = 5 * 24 * time.Hour  // after which a webhook of which every attempt failed is disabled
	maxReplay         = 30 * 24 * time.Hour // how far back events can be replayed
	keptDeliveries    = 1000                // of a webhook
	keptDeliveriesFor = 30 * 24 * time.Hour
	maxWebhookBody    = 20 << 10 // bytes
	maxDeliveryAnswer = 2 << 10  // bytes of the answer to a failure that are kept
)

// retryDelays are how long after each failed attempt an event is sent again, before jitter. After
// the last one it is given up.
var retryDelays = [...]time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// A webhook is an address that events of an account are posted to.
type webhook struct {
	ID           string   `json:"id"`
	AccountID    string   `json:"account_id"`
	URL          string   `json:"url"`
	Types        codeList `json:"types"` // of the events that it gets
	Description  *string  `json:"description"`
	State        string   `json:"state"`  // webhookPending, webhookEnabled or webhookDisabled
	Reason       *string  `json:"reason"` // why it is disabled: disabledByOwner, …
	FailingSince stamp    `json:"failing_since"`
	RotatedAt    stamp    `json:"secret_rotated_at"`
	Replaying    bool     `json:"replaying"`
	MadeBy       string   `json:"made_by"` // as event.Actor
	AppID        *string  `json:"app_id"`  // the application that made it for itself; nil: none did
	CreatedAt    stamp    `json:"created_at"`
	UpdatedAt    stamp    `json:"updated_at"`

	SecretNumber int   `json:"-"` // of the rotation, from 1
	TestSeq      int64 `json:"-"` // of the test that is still to be sent; 0: none
}

// What came of an attempt to send an event.
const (
	outcomeSucceeded = "succeeded" // the answer was 2xx
	outcomeFailed    = "failed"
)

// A delivery is one attempt to send an event to a webhook.
type delivery struct {
	ID           string    `json:"id"`
	WebhookID    string    `json:"webhook_id"`
	EventID      string    `json:"event_id"` // the webhook-id that was sent
	Type         eventType `json:"type"`
	Attempt      int       `json:"attempt"` // from 1
	At           stamp     `json:"at"`
	Outcome      string    `json:"outcome"` // outcomeSucceeded or outcomeFailed
	Status       *int      `json:"status"`  // of the answer; nil: there was none
	Error        *string   `json:"error"`   // why there was none: outboundError.reason
	Milliseconds int64     `json:"duration_ms"`
	Answer       *string   `json:"answer"`          // the beginning of the answer to a failure
	NextAt       stamp     `json:"next_attempt_at"` // zero: it is not tried again

	eventSeq int64
}

// succeeded reports whether a status means that a webhook has accepted what it was sent.
func succeeded(status int) bool { return status >= 200 && status <= 299 }

// missingScope returns the first scope that reading events of these types needs and has denies; ""
// if there is none.
func missingScope(types []string, has func(scope string) bool) string {
	for _, t := range types {
		if scope := scopeOfEvent[eventType(t)]; !has(scope) {
			return scope
		}
	}
	return ""
}

// subscribable returns those event types of nouns that a webhook can name: all but webhook.test.
func subscribable(of []noun) []eventType {
	return slices.DeleteFunc(eventTypesOf(of), func(t eventType) bool { return t == eventWebhookTest })
}

// webhookEvent returns an event about a webhook.
func webhookEvent(w *webhook, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: w.AccountID, SubjectID: w.ID, Actor: actor, Data: eventData(data...)}
}

// host returns the host of the address, with its port if it has one: for people, since the path may be
// a secret.
func (w *webhook) host() string {
	u, err := url.Parse(w.URL)
	if err != nil { // an operator has edited the row
		return ""
	}
	return u.Host
}

// checkWebhookTypes checks the types that a webhook is to name, and calls wrong for each that is not
// among known or appears twice, with its index, and the code and the detail of a fieldError.
func checkWebhookTypes(types []string, known []eventType, wrong func(at int, code, detail string)) {
	for i, t := range types {
		switch {
		case !slices.Contains(known, eventType(t)):
			wrong(i, "unknown_value", "There is no such type of event that webhooks can get.")
		case slices.Contains(types[:i], t):
			wrong(i, "repeated", "This type appears twice.")
		}
	}
}

// secrets returns the secrets that sign for a webhook at now: the current one, and for
// secretOverlap after a rotation the one before it.
func (w *webhook) secrets(keys *keyring, now time.Time) [][]byte {
	all := [][]byte{webhookSecret(keys, w.ID, w.SecretNumber)}
	if w.SecretNumber > 1 && !w.RotatedAt.IsZero() && closerThan(secretOverlap, w.RotatedAt.Time, now) {
		all = append(all, webhookSecret(keys, w.ID, w.SecretNumber-1))
	}
	return all
}

// webhookBody returns what is posted for an event (Standard Webhooks 1.0.0: id, type, timestamp,
// data), in less than maxWebhookBody bytes: members that would not fit are left out, which the member
// truncated tells.
func webhookBody(e *event) ([]byte, error) {
	own := map[string]json.RawMessage{}
	if err := json.Unmarshal(e.Data, &own); err != nil {
		return nil, fmt.Errorf("the data of event %s: %w", e.ID, err)
	}
	body := encodeWebhookBody(e, own)
	if len(body) >= maxWebhookBody {
		body = encodeWebhookBody(e, map[string]json.RawMessage{"truncated": json.RawMessage("true")})
	}
	return body, nil
}

// encodeWebhookBody encodes what is posted for an event. It adds the ids of what the event is about to
// own, the event's own members.
func encodeWebhookBody(e *event, own map[string]json.RawMessage) []byte {
	for name, id := range map[string]string{
		"account_id": e.AccountID,
		"subject_id": e.SubjectID,
		"license_id": e.LicenseID,
		"device_id":  e.DeviceID,
		"lead_id":    e.LeadID,
		"order_id":   e.OrderID,
	} {
		if id != "" {
			own[name] = json.RawMessage(strconv.Quote(id))
		}
	}
	return bytes.TrimSuffix(encodeJSON(struct {
		ID        string                     `json:"id"`
		Type      eventType                  `json:"type"`
		Timestamp stamp                      `json:"timestamp"`
		Data      map[string]json.RawMessage `json:"data"`
	}{e.ID, e.Type, e.At, own}), []byte("\n"))
}

// A webhookAuthor is who changes a webhook: as events name it, and which scopes it has.
type webhookAuthor struct {
	actor string
	has   func(scope string) bool

	app   string  // an application, which makes webhooks for itself; "": none
	grant *string // under which it acts; nil: by client credentials
	token string  // with which it does
}

// bindToGrant has a webhook that an application adds or changes end with the grant under which it does, whose scopes
// are those that the webhook needs. By then the grant may have ended, with all webhooks that were made under
// it, so that the token is looked at again. Errors: errInvalidToken.
func (by webhookAuthor) bindToGrant(t *tx, w *webhook) error {
	if by.app == "" {
		return nil
	}
	if _, err := t.usableAppToken(by.token); errors.Is(err, errNotFound) {
		return errTokenRevoked
	} else if err != nil {
		return err
	}
	w.AppID = &by.app
	return t.setAppWebhook(w.ID, by.app, by.grant)
}

// hasRoom returns errWebhookLimit, or errAppWebhookLimit, if an account has as many webhooks as it can have.
func (by webhookAuthor) hasRoom(t *tx, accountID string) error {
	n, err := t.countWebhooks(accountID)
	switch {
	case err != nil:
		return err
	case n >= maxWebhooks:
		return errWebhookLimit
	case by.app == "":
		return nil
	}
	if n, err = t.countAppWebhooks(by.app, accountID); err == nil && n >= maxAppWebhooks {
		err = errAppWebhookLimit
	}
	return err
}

// permits returns a refusal (403) unless the author may read events of these types. Without that rule a
// caller who may not read leads could have them sent to itself by a webhook that gets them.
func (by webhookAuthor) permits(types []string) error {
	if scope := missingScope(types, by.has); scope != "" {
		return errScope(scope, "The webhook gets events that only tokens with the scope "+scope+" may read.")
	}
	return nil
}

// permitted returns a webhook of an owner. Errors: errWebhook, and a refusal (403) unless the author may
// read the events that it gets.
func (by webhookAuthor) permitted(t *tx, o owner, id string) (*webhook, error) {
	w, err := t.webhook(o, id)
	if err == nil {
		err = by.permits(w.Types)
	}
	return w, err
}

// createWebhook adds a webhook with the account, address, types and description of w, sets the rest of
// w, and has a test sent to it. Errors: errAccount, errWebhookLimit, errAppWebhookLimit, errInvalidToken, a
// refusal for want of scope (403).
func createWebhook(t *tx, w *webhook, by webhookAuthor) error {
	t.invalidate(webhooksChanged)
	if err := t.openAccount(w.AccountID); err != nil {
		return err
	}
	if err := by.permits(w.Types); err != nil {
		return err
	}
	if err := by.hasRoom(t, w.AccountID); err != nil {
		return err
	}
	w.ID, w.State, w.SecretNumber = t.newID("whe"), webhookPending, 1
	w.MadeBy, w.CreatedAt, w.UpdatedAt = by.actor, t.now, t.now
	if err := t.addWebhook(w); err != nil {
		return err
	}
	if err := by.bindToGrant(t, w); err != nil {
		return err
	}
	created := webhookEvent(w, eventWebhookCreated, by.actor, "types", strings.Join(w.Types, " "))
	if err := t.addEvent(created); err != nil {
		return err
	}
	_, err := sendTest(t, w, by.actor)
	return err
}

// sendTest has the worker send a test to a webhook, and returns the id of its event. Where one is still
// to be sent it is that one.
func sendTest(t *tx, w *webhook, actor string) (eventID string, err error) {
	if w.TestSeq != 0 {
		e, err := t.eventBySeq(w.TestSeq)
		if !errors.Is(err, errNotFound) {
			return e.ID, err
		}
	}
	if err := t.addEvent(webhookEvent(w, eventWebhookTest, actor)); err != nil {
		return "", err
	}
	if w.TestSeq, eventID, err = t.latestEvent(); err != nil {
		return "", err
	}
	return eventID, t.saveWebhook(w)
}

// A webhookChange is what a PATCH changes; its zero value changes nothing.
type webhookChange struct {
	url            string   // in normal form; "": it stays
	types          []string // nil: they stay
	description    *string  // nil removes it
	newDescription bool     // without it, the description stays
	disable        bool
}

// apply makes the change to a webhook. Another address has to answer a test before it gets events, and
// a test that is to be sent to the one before is not sent any more.
func (c webhookChange) apply(w *webhook) {
	if c.url != "" && c.url != w.URL {
		w.URL, w.FailingSince, w.TestSeq = c.url, stamp{}, 0
		if !c.disable {
			w.State, w.Reason = webhookPending, nil
		}
	}
	if c.types != nil {
		w.Types = c.types
	}
	if c.newDescription {
		w.Description = c.description
	}
	if c.disable {
		w.disable(disabledByOwner)
	}
}

// disable disables a webhook. One that is disabled keeps its reason.
func (w *webhook) disable(reason string) {
	if w.State != webhookDisabled {
		w.State, w.Reason, w.FailingSince, w.TestSeq = webhookDisabled, &reason, stamp{}, 0
	}
}

// changedMembers returns the names of the members that a PATCH has made different, sorted.
func changedMembers(before, after *webhook) (names []string) {
	for _, m := range []struct {
		name    string
		changed bool
	}{
		{"description", valueOr(before.Description, "") != valueOr(after.Description, "")},
		{"state", before.State != after.State},
		{"types", !slices.Equal(before.Types, after.Types)},
		{"url", before.URL != after.URL},
	} {
		if m.changed {
			names = append(names, m.name)
		}
	}
	return names
}

// patchWebhook changes a webhook of an owner and returns it. Another address is tested at once, unless
// the same change disables the webhook. A change without effect writes nothing. Errors: errWebhook,
// errInvalidToken, and a refusal (403) unless the author may read the events that it gets after the change.
func patchWebhook(t *tx, o owner, id string, change webhookChange, by webhookAuthor) (*webhook, error) {
	t.invalidate(webhooksChanged)
	before, err := t.webhook(o, id)
	if err != nil {
		return nil, err
	}
	after := *before
	change.apply(&after)
	if err := by.permits(after.Types); err != nil {
		return nil, err
	}
	changed := changedMembers(before, &after)
	if len(changed) == 0 {
		return before, nil
	}
	after.UpdatedAt = t.now
	if err := t.saveWebhook(&after); err != nil {
		return nil, err
	}
	if err := by.bindToGrant(t, &after); err != nil {
		return nil, err
	}
	if err := addChangeEvents(t, &after, changed, by.actor); err != nil {
		return nil, err
	}
	if after.URL != before.URL && after.State == webhookPending {
		_, err = sendTest(t, &after, by.actor)
	}
	return &after, err
}

// addChangeEvents writes the events of a PATCH that has made these members of w different.
func addChangeEvents(t *tx, w *webhook, changed []string, actor string) error {
	if w.State == webhookDisabled {
		if at := slices.Index(changed, "state"); at >= 0 {
			changed = slices.Delete(changed, at, at+1)
			disabled := webhookEvent(w, eventWebhookDisabled, actor, "reason", *w.Reason)
			if err := t.addEvent(disabled); err != nil {
				return err
			}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	types := ""
	if slices.Contains(changed, "types") {
		types = strings.Join(w.Types, " ")
	}
	names := strings.Join(changed, " ")
	return t.addEvent(webhookEvent(w, eventWebhookUpdated, actor, "changed", names, "types", types))
}

// requestTest has a test sent to a webhook of an owner, whatever its state, and returns the id of the
// test's event. While one is still to be sent it is that one, and nothing is written. Errors: errWebhook,
// a refusal for want of scope (403).
func requestTest(t *tx, o owner, id string, by webhookAuthor) (eventID string, err error) {
	t.invalidate(webhooksChanged)
	w, err := by.permitted(t, o, id)
	if err != nil {
		return "", err
	}
	return sendTest(t, w, by.actor)
}

// enableWebhook has a test sent to a webhook of an owner, which enables it if it answers with 2xx, and
// returns it: a disabled one is pending then. An enabled one stays as it is. Errors: errWebhook, a
// refusal for want of scope (403).
func enableWebhook(t *tx, o owner, id string, by webhookAuthor) (*webhook, error) {
	t.invalidate(webhooksChanged)
	w, err := by.permitted(t, o, id)
	if err != nil || w.State == webhookEnabled {
		return w, err
	}
	if w.State == webhookDisabled {
		w.State, w.Reason, w.UpdatedAt = webhookPending, nil, t.now
		if err := t.saveWebhook(w); err != nil {
			return nil, err
		}
		if err := addChangeEvents(t, w, []string{"state"}, by.actor); err != nil {
			return nil, err
		}
	}
	_, err = sendTest(t, w, by.actor)
	return w, err
}

// rotateWebhookSecret gives a webhook of an owner another secret and returns it. The secret before also
// signs for secretOverlap; one from before that does not, even if it was to. Errors: errWebhook, a refusal
// for want of scope (403).
func rotateWebhookSecret(t *tx, o owner, id string, by webhookAuthor) (*webhook, error) {
	t.invalidate(webhooksChanged)
	w, err := by.permitted(t, o, id)
	if err != nil {
		return nil, err
	}
	w.SecretNumber++
	w.RotatedAt, w.UpdatedAt = t.now, t.now
	if err := t.saveWebhook(w); err != nil {
		return nil, err
	}
	return w, t.addEvent(webhookEvent(w, eventWebhookSecretRotated, by.actor))
}

// replayEvents has every event since a time that a webhook of an owner names sent to it again, and
// returns it. If a replay runs already, both run as one. Errors: errWebhook, errWebhookDisabled,
// validation_failed for a time in the future or before maxReplay, a refusal for want of scope (403).
func replayEvents(t *tx, o owner, id string, since stamp, by webhookAuthor) (*webhook, error) {
	t.invalidate(webhooksChanged)
	w, err := by.permitted(t, o, id)
	if err != nil {
		return nil, err
	}
	outside := fieldError{Pointer: "#/since", Code: "out_of_range"}
	switch {
	case w.State != webhookEnabled:
		return nil, errWebhookDisabled
	case since.After(t.exact.Add(clockSkew)):
		outside.Detail = "This is in the future."
		return nil, errFields(outside)
	case since.Before(t.exact.Add(-maxReplay - clockSkew)):
		outside.Detail = "This is more than 30 days ago."
		return nil, errFields(outside)
	}
	if err := t.startReplay(id, since); err != nil {
		return nil, err
	}
	if err := t.addEvent(webhookEvent(w, eventWebhookReplayed, by.actor, "since", since.String())); err != nil {
		return nil, err
	}
	return t.webhook(o, id)
}

// retryDelivery has the event of a delivery sent again to a webhook of an owner, at once, and returns the
// event's id. For the delivery of a test it is requestTest. The event may be of a type that the webhook
// does not name any more, so the author must be permitted to read it too. Errors: errWebhook, errDelivery,
// also where the event is gone from the file, errWebhookDisabled, a refusal for want of scope (403).
func retryDelivery(t *tx, o owner, id, deliveryID string, by webhookAuthor) (eventID string, err error) {
	t.invalidate(webhooksChanged)
	w, err := by.permitted(t, o, id)
	if err != nil {
		return "", err
	}
	d, err := t.delivery(id, deliveryID)
	if err != nil {
		return "", err
	}
	if d.Type == eventWebhookTest {
		return sendTest(t, w, by.actor)
	}
	if err := by.permits([]string{string(d.Type)}); err != nil {
		return "", err
	}
	if w.State != webhookEnabled {
		return "", errWebhookDisabled
	}
	e, err := t.eventBySeq(d.eventSeq)
	switch {
	case errors.Is(err, errNotFound), err == nil && (e.ID != d.EventID || e.AccountID != w.AccountID):
		return "", errDelivery
	case err != nil:
		return "", err
	}
	if err := t.retryNow(id, d.eventSeq); err != nil {
		return "", err
	}
	retried := webhookEvent(w, eventWebhookRetried, by.actor, "delivery_id", d.ID, "event_id", d.EventID)
	return d.EventID, t.addEvent(retried)
}

// removeWebhook removes a webhook of an owner. What was still to be sent to it is not sent. Errors:
// errWebhook.
func removeWebhook(t *tx, o owner, id, actor string) error {
	t.invalidate(webhooksChanged)
	w, err := t.webhook(o, id)
	if err != nil {
		return err
	}
	if err := t.deleteWebhook(id); err != nil {
		return err
	}
	return t.addEvent(webhookEvent(w, eventWebhookRemoved, actor))
}
