package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scopeWebhooks is the scope of all endpoints of webhooks.
const scopeWebhooks = "webhooks:write"

// A webhookType is a type of event that a webhook can name. More may come.
type webhookType string

// webhookNoun declares webhooks.
func webhookNoun() noun {
	return noun{
		name:     "webhook",
		modules:  func(s *server) []module { return []module{webhookModule(s)} },
		calls:    webhookRouteCommands,
		ids:      []idKind{{"WEBHOOK", "whe", "webhooks", false, nil}, {"DELIVERY", "whd", "deliveries", false, nil}},
		problems: webhookProblems,
		events:   webhookEvents,
		sealed:   []string{"webhooks"},
		rows:     []rowReader{webhookTable.unreadable, deliveryTable.unreadable},
		status:   []statusLine{{label: "webhooks", read: webhookStatus}},
		troubles: append(webhookTroubles, lateWebhooks),
		holdings: []holding{heldWebhooks},
	}
}

// receiverNoun declares the receiver with which webhooks are tried out.
func receiverNoun() noun {
	return noun{name: "receiver", commands: webhookListenCommands}
}

// Webhooks (contract, section 8): the events of an account are posted to addresses that it names,
// signed as Standard Webhooks 1.0.0 says. This file has their rules; webhook_worker.go sends them.

// The event types of webhooks. Their data never contains an address, since its path may be a secret.
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
		"There is no webhook with this id.",
		"Correct the id. What belongs to another account is not found either.")
	codeDeliveryNotFound = webhookProblems.add(404, "delivery_not_found", "Delivery not found",
		"There is no delivery with this id: those of 30 days are kept, and the last 1,000 of a webhook.",
		"Take an id from the list of deliveries; `replay` sends events whose deliveries are not kept any more.")
	codeWebhookLimit = webhookProblems.add(409, "webhook_limit_reached", "Too many webhooks",
		"The account has 50 webhooks already: remove one first.",
		"Remove a webhook, or name more types in one.")
	codeWebhookNotEnabled = webhookProblems.add(409, "webhook_not_enabled", "Webhook not enabled",
		"Events are sent to enabled webhooks only: enable it first.",
		"Enable it, and send it again when `state` is `enabled`.")

	errWebhook         = &refusal{code: codeWebhookNotFound}
	errDelivery        = &refusal{code: codeDeliveryNotFound}
	errWebhookLimit    = &refusal{code: codeWebhookLimit}
	errAppWebhookLimit = &refusal{code: codeWebhookLimit,
		detail: "The application has 10 webhooks of the account already: remove one first."}
	errWebhookDisabled = &refusal{code: codeWebhookNotEnabled}
)

// A webhookState is whether a webhook gets events. `pending`: it gets them as soon as it has answered a test with
// 2xx. `enabled`: it gets them. `disabled`: it gets none.
type webhookState string

var webhookStates = declareWords[webhookState](webhookPending, webhookEnabled, webhookDisabled)

// The states of a webhook.
const (
	webhookPending  = "pending" // it has not answered a test with 2xx since it was added, changed or disabled
	webhookEnabled  = "enabled"
	webhookDisabled = "disabled"
)

// A webhookReason is why a webhook is disabled.
type webhookReason string

var _ = declareWords[webhookReason](disabledByOwner, disabledGone, disabledFailing)

// Why a webhook is disabled.
const (
	disabledByOwner = "owner"   // somebody did it
	disabledGone    = "gone"    // it answered 410
	disabledFailing = "failing" // every attempt within maxFailing failed
)

const (
	maxWebhooks       = 50                  // of an account
	maxAppWebhooks    = 10                  // of these, made by one application
	maxWebhookText    = 200                 // characters of a description
	secretOverlap     = 24 * time.Hour      // for how long after a rotation the previous secret also signs
	maxFailing        = 5 * 24 * time.Hour  // after which a webhook is disabled if every attempt failed
	maxReplay         = 30 * 24 * time.Hour // how far back events can be replayed
	keptDeliveries    = 1000                // of a webhook
	keptDeliveriesFor = 30 * 24 * time.Hour
	maxWebhookBody    = 20 << 10 // bytes
	maxDeliveryAnswer = 2 << 10  // bytes that are kept of the answer to a failed attempt
)

// retryDelays are the times from each failed attempt to send an event to the next one, before jitter.
// If the attempt after the last of them fails too, the event is given up.
var retryDelays = [...]time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// A webhook is an address that events of an account are posted to.
type webhook struct {
	ID          string       `json:"id" is:"whe"`            // The id of the webhook.
	AccountID   string       `json:"account_id" is:"acct"`   // The account whose events it gets.
	URL         string       `json:"url" is:"uri"`           // Where events are posted to.
	Types       []string     `json:"types" is:"webhookType"` // The types of the events that it gets.
	Description *string      `json:"description"`            // What it is, for people, or null: nothing was said.
	State       webhookState `json:"state"`                  // Whether it gets events.

	// Why it is `disabled`: `owner`, somebody did it; `gone`, it answered 410; `failing`, every attempt of five days
	// failed. Or null: it is not.
	Reason *webhookReason `json:"reason"`

	// The first failure since it last answered with 2xx, or null: there is none.
	FailingSince stamp `json:"failing_since"`

	RotatedAt stamp  `json:"secret_rotated_at"` // When it last got another secret, or null: it has its first.
	Replaying bool   `json:"replaying"`         // Whether past events are being sent again.
	MadeBy    string `json:"made_by"`           // Who added it: `token` or `app` and its id, or `operator`.

	// The application that made it for itself, and with whose grant it ends, or null: none did.
	AppID *string `json:"app_id" is:"app"`

	CreatedAt stamp `json:"created_at"` // When it was added.
	UpdatedAt stamp `json:"updated_at"` // When it was last changed.
	dryEnd

	SecretNumber int   `json:"-"` // of the rotation, from 1
	TestSeq      int64 `json:"-"` // number of the event of the test that is still to be sent; 0: none
}

// members are what callers set of a webhook. Which addresses and types it can have, the server says.
func (w *webhook) members() []member {
	return []member{
		{name: "url", at: &w.URL, apart: true},
		{name: "types", at: &w.Types, apart: true},
		{name: "description", at: &w.Description, high: maxWebhookText},
		// No further events are sent until `POST /webhooks/{id}/enable`.
		{name: "state", at: (*string)(&w.State), high: maxNameLength, check: checkNewState},
	}
}

// checkNewState is a textCheck for the state that a PATCH sets.
var checkNewState = &textCheck{words: []string{webhookDisabled}, of: func(s string) (code, detail string) {
	if s != webhookDisabled {
		return "unknown_value", `Only "disabled" can be set: POST /webhooks/{id}/enable enables a webhook.`
	}
	return "", ""
}}

// A deliveryOutcome is what became of an attempt to send an event: it succeeded where the answer was 2xx.
type deliveryOutcome string

var deliveryOutcomes = declareWords[deliveryOutcome](outcomeSucceeded, outcomeFailed)

// The outcomes of an attempt to send an event.
const (
	outcomeSucceeded = "succeeded" // the answer was 2xx
	outcomeFailed    = "failed"
)

// A delivery is one attempt to send an event to a webhook.
type delivery struct {
	ID        string          `json:"id" is:"whd"`         // The id of the delivery.
	WebhookID string          `json:"webhook_id" is:"whe"` // The webhook.
	EventID   string          `json:"event_id" is:"evt"`   // The event: the `webhook-id` that was sent.
	Type      eventType       `json:"type"`                // The type of the event.
	Attempt   int             `json:"attempt" least:"1"`   // Which attempt to send this event it was.
	At        stamp           `json:"at"`                  // When it was sent.
	Outcome   deliveryOutcome `json:"outcome"`             // What became of it.
	Status    *int            `json:"status" least:"-"`    // The HTTP status of the answer, or null: there was none.

	// Why there was no answer: `timeout`, `no_public_address`, `connection`, `tls`, `answer_too_large`,
	// `malformed_answer` or `address_refused`; others may come. Or null: there was one.
	Error *string `json:"error"`

	Milliseconds int64 `json:"duration_ms"` // How long it took, in milliseconds.

	// The first 2 KiB of the answer to a failed attempt, or null: it succeeded, or the address is one that only the
	// operator admits.
	Answer *string `json:"answer"`

	NextAt stamp `json:"next_attempt_at"` // When the event is sent again, or null: it is not.

	eventSeq int64
}

// succeeded reports whether a status means that a webhook has accepted what it was sent.
func succeeded(status int) bool { return status >= 200 && status <= 299 }

// subscribable returns the event types of nouns that a webhook can subscribe to: all but webhook.test.
func subscribable(of []noun) []eventType {
	return slices.DeleteFunc(eventTypesOf(of), func(t eventType) bool { return t == eventWebhookTest })
}

// webhookEvent returns an event about a webhook.
func webhookEvent(w *webhook, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: w.AccountID, SubjectID: w.ID, Actor: actor, Data: eventData(data...)}
}

// host returns the host of the address, with its port if it has one. People are shown it in place of the
// address, whose path may be a secret.
func (w *webhook) host() string { return hostWithPort(w.URL) }

// checkWebhookTypes checks the types that a webhook is to name, and calls wrong for each that is not
// among known or appears twice, with its index, and the code and the detail of a fieldError, which names the
// nearest one.
func checkWebhookTypes(types []string, known []eventType, wrong func(at int, code, detail string)) {
	names := make([]string, len(known))
	for i, typ := range known {
		names[i] = string(typ)
	}
	for i, t := range types {
		switch {
		case !slices.Contains(names, t):
			wrong(i, "unknown_value", nearestMeant("There is no such type of event that webhooks can get", t, names))
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
// data), in less than maxWebhookBody bytes: if the event's own members would not fit, the member
// truncated takes their place.
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

// encodeWebhookBody encodes what is posted for an event. To the map own, which holds the event's own
// members, it adds the ids of the rows that the event concerns.
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
	grant *string // under which it acts; nil: it acts by client credentials
	token string  // id of the token with which it acts
}

// bindToGrant ties a webhook that an application adds or changes to the grant under which the application
// acts, so that the webhook ends with the grant whose scopes it needs. The grant, and all webhooks tied to
// it, may have ended since the request was authenticated, so the token is checked again in the transaction.
// Errors: errTokenRevoked, which wraps errInvalidToken.
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
	t.setAppWebhook(w.ID, by.app, by.grant)
	return nil
}

// checkRoom returns errWebhookLimit if an account has maxWebhooks already, or errAppWebhookLimit if the
// author is an application that has maxAppWebhooks in it.
func (by webhookAuthor) checkRoom(t *tx, accountID string) error {
	all, made, err := t.countWebhooks(accountID, by.app)
	switch {
	case err != nil:
		return err
	case all >= maxWebhooks:
		return errWebhookLimit
	case made >= maxAppWebhooks:
		return errAppWebhookLimit
	}
	return nil
}

// checkScopes returns insufficient_scope (403) unless the author may read events of these types. Without this
// rule, a caller who may not read leads could subscribe a webhook to them and receive them that way. A type that
// does not exist, which only an operator can have written to the row, needs scopeEvents.
func (by webhookAuthor) checkScopes(types []string) error {
	for _, t := range types {
		if scope := cmp.Or(scopeOfEvent[eventType(t)], scopeEvents); !by.has(scope) {
			return errScope(scope, "The webhook gets events that only tokens with the scope "+scope+" may read.")
		}
	}
	return nil
}

// webhookOf returns a webhook of an owner, which the transaction is to change. Errors: errWebhook,
// insufficient_scope (403) unless the author may read the events that the webhook gets.
func (by webhookAuthor) webhookOf(t *tx, o owner, id string) (*webhook, error) {
	w, err := t.webhook(o, id)
	if err == nil {
		err = by.checkScopes(w.Types)
	}
	return w, err
}

// createWebhook adds a webhook with the account, address, types and description of w, sets the rest of
// w, and has a test sent to it. Errors: errAccount, errWebhookLimit, errAppWebhookLimit, errInvalidToken,
// insufficient_scope (403).
func createWebhook(t *tx, w *webhook, by webhookAuthor) error {
	if err := t.openAccount(w.AccountID); err != nil {
		return err
	}
	if err := by.checkScopes(w.Types); err != nil {
		return err
	}
	if err := by.checkRoom(t, w.AccountID); err != nil {
		return err
	}
	w.ID, w.State, w.SecretNumber = t.newID("whe"), webhookPending, 1
	w.MadeBy, w.CreatedAt, w.UpdatedAt = by.actor, t.now, t.now
	t.addWebhook(w)
	if err := by.bindToGrant(t, w); err != nil {
		return err
	}
	created := webhookEvent(w, eventWebhookCreated, by.actor, "types", strings.Join(w.Types, " "))
	t.addEvent(created)
	_, err := sendTest(t, w, by.actor)
	return err
}

// sendTest asks the worker to send a test to a webhook, and returns the id of the test's event. While an
// earlier test is still to be sent, it only returns the id of that one's.
func sendTest(t *tx, w *webhook, actor string) (eventID string, err error) {
	if w.TestSeq != 0 {
		e, err := t.eventBySeq(w.TestSeq)
		if !errors.Is(err, errNotFound) {
			return e.ID, err
		}
	}
	t.addEvent(webhookEvent(w, eventWebhookTest, actor))
	if w.TestSeq, eventID, err = t.latestEvent(); err != nil {
		return "", err
	}
	t.saveWebhook(w)
	return eventID, nil
}

// disable disables a webhook. One that is disabled already keeps its reason.
func (w *webhook) disable(reason webhookReason) {
	if w.State != webhookDisabled {
		w.State, w.Reason, w.FailingSince, w.TestSeq = webhookDisabled, &reason, stamp{}, 0
	}
}

// patchWebhook changes a webhook of an owner and returns it. A new address is tested at once, unless the
// webhook is disabled after the change. A change without effect writes nothing. Errors: errWebhook,
// errInvalidToken, insufficient_scope (403) unless the author may read the events that it gets from then on.
func patchWebhook(t *tx, o owner, id string, set change, by webhookAuthor) (*webhook, error) {
	before, err := t.webhook(o, id)
	if err != nil {
		return nil, err
	}
	after := *before
	set.apply(after.members())
	moved := after.URL != before.URL
	if moved { // a test that is still to be sent to the old address is dropped
		after.FailingSince, after.TestSeq = stamp{}, 0
	}
	switch {
	case set.has("state"):
		after.State = before.State
		after.disable(disabledByOwner)
	case moved: // it has to answer a test before it gets events
		after.State, after.Reason = webhookPending, nil
	}
	if err := by.checkScopes(after.Types); err != nil {
		return nil, err
	}
	changed := differenceOf(before.members(), after.members()).names
	if len(changed) == 0 {
		return before, nil
	}
	after.UpdatedAt = t.now
	t.saveWebhook(&after)
	if err := by.bindToGrant(t, &after); err != nil {
		return nil, err
	}
	addChangeEvents(t, &after, changed, by.actor)
	if moved && after.State == webhookPending {
		_, err = sendTest(t, &after, by.actor)
	}
	return &after, err
}

// addChangeEvents writes the events of a PATCH that has changed these members of w.
func addChangeEvents(t *tx, w *webhook, changed []string, actor string) {
	if w.State == webhookDisabled {
		if at := slices.Index(changed, "state"); at >= 0 {
			changed = slices.Delete(changed, at, at+1)
			disabled := webhookEvent(w, eventWebhookDisabled, actor, "reason", string(*w.Reason))
			t.addEvent(disabled)
		}
	}
	if len(changed) == 0 {
		return
	}
	types := ""
	if slices.Contains(changed, "types") {
		types = strings.Join(w.Types, " ")
	}
	names := strings.Join(changed, " ")
	t.addEvent(webhookEvent(w, eventWebhookUpdated, actor, "changed", names, "types", types))
}

// requestTest sends a test to a webhook of an owner, whatever its state, and returns the id of the
// test's event. While an earlier test is still to be sent, it returns the id of that one's and writes
// nothing. Errors: errWebhook, insufficient_scope (403).
func requestTest(t *tx, o owner, id string, by webhookAuthor) (eventID string, err error) {
	w, err := by.webhookOf(t, o, id)
	if err != nil {
		return "", err
	}
	return sendTest(t, w, by.actor)
}

// enableWebhook sends a test to a webhook of an owner, and returns the webhook. It becomes enabled
// when it answers the test with 2xx; until then a disabled one is pending. An enabled one is left as it
// is. Errors: errWebhook, insufficient_scope (403).
func enableWebhook(t *tx, o owner, id string, by webhookAuthor) (*webhook, error) {
	w, err := by.webhookOf(t, o, id)
	if err != nil || w.State == webhookEnabled {
		return w, err
	}
	if w.State == webhookDisabled {
		w.State, w.Reason, w.UpdatedAt = webhookPending, nil, t.now
		t.saveWebhook(w)
		addChangeEvents(t, w, []string{"state"}, by.actor)
	}
	_, err = sendTest(t, w, by.actor)
	return w, err
}

// rotateWebhookSecret gives a webhook of an owner a new secret and returns the webhook. The previous secret
// also signs for secretOverlap. The one before that stops signing at once, even if its own overlap has not
// ended. Errors: errWebhook, insufficient_scope (403).
func rotateWebhookSecret(t *tx, o owner, id string, by webhookAuthor) (*webhook, error) {
	w, err := by.webhookOf(t, o, id)
	if err != nil {
		return nil, err
	}
	w.SecretNumber++
	w.RotatedAt, w.UpdatedAt = t.now, t.now
	t.saveWebhook(w)
	t.addEvent(webhookEvent(w, eventWebhookSecretRotated, by.actor))
	return w, nil
}

// replayEvents sends again all events since a time that a webhook of an owner subscribes to, and
// returns the webhook. A replay that is already running is merged with this one. Errors: errWebhook,
// errWebhookDisabled, insufficient_scope (403), validation_failed for a time in the future or more than
// maxReplay ago.
func replayEvents(t *tx, o owner, id string, since stamp, by webhookAuthor) (*webhook, error) {
	w, err := by.webhookOf(t, o, id)
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
	t.addEvent(webhookEvent(w, eventWebhookReplayed, by.actor, "since", since.String()))
	return t.webhook(o, id)
}

// retryDelivery has the event of a delivery sent again to a webhook of an owner, at once, and returns the
// event's id. For the delivery of a test it does what requestTest does. The event may be of a type that the
// webhook no longer subscribes to, so the author must be permitted to read that type too. Errors: errWebhook,
// errDelivery (also if the event has gone from the database), errWebhookDisabled, insufficient_scope (403).
func retryDelivery(t *tx, o owner, id, deliveryID string, by webhookAuthor) (eventID string, err error) {
	w, err := by.webhookOf(t, o, id)
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
	if err := by.checkScopes([]string{string(d.Type)}); err != nil {
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
	t.addEvent(retried)
	return d.EventID, nil
}

// removeWebhook removes a webhook of an owner. Events that were still to be sent to it are dropped.
// Errors: errWebhook.
func removeWebhook(t *tx, o owner, id, actor string) error {
	w, err := t.webhook(o, id)
	if err != nil {
		return err
	}
	t.deleteWebhook(id)
	t.addEvent(webhookEvent(w, eventWebhookRemoved, actor))
	return nil
}
