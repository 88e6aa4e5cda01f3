package main

import (
	"bytes"
	"cmp"
	"database/sql"
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

// webhookTable describes the table webhooks. Of the array types only strings are read, since somebody may have
// written other values with the sqlite3 shell.
var webhookTable = newTable("webhooks", "w", func(w *webhook) []field {
	return []field{{"id", &w.ID}, {"account_id", &w.AccountID}, {"url", &w.URL},
		{`CASE WHEN json_valid(w.types) THEN
		(SELECT json_group_array(value) FROM json_each(w.types) WHERE type = 'text') ELSE w.types END`,
			jsonColumn[[]string]{&w.Types}},
		{"description", &w.Description}, {"state", &w.State}, {"reason", &w.Reason},
		{"failing_since", &w.FailingSince}, {"rotated_at", &w.RotatedAt},
		{`EXISTS (SELECT 1 FROM webhook_queues q WHERE q.webhook_id = w.id AND q.replay_seq IS NOT NULL)`,
			&w.Replaying},
		{"made_by", &w.MadeBy}, {"created_at", &w.CreatedAt}, {"updated_at", &w.UpdatedAt},
		{"secret_number", &w.SecretNumber}, {"coalesce(w.test_seq, 0)", &w.TestSeq},
		{"(SELECT x.app_id FROM app_webhooks x WHERE x.webhook_id = w.id)", &w.AppID}}
})

// webhook returns a webhook of an owner, or errWebhook.
func (q *queries) webhook(o owner, id string) (*webhook, error) {
	condition, args := o.narrow(`WHERE w.id = ?`, `w.account_id`, id)
	made, by := o.ofApp()
	w, err := webhookTable.one(q, condition+made, append(args, by...)...)
	return w, replaced(err, errNotFound, errWebhook)
}

// setWebhookState changes the state of a webhook, and the reason why it is disabled. A trigger adds its
// queue when it becomes enabled, and removes the queue when it no longer is.
func (t *tx) setWebhookState(id, state string, reason *string) {
	t.exec(`UPDATE webhooks SET state = ?, reason = ?, failing_since = NULL, updated_at = ?
		WHERE id = ?`, state, reason, t.now, id)
}

// webhooks returns a page of the webhooks of an owner, newest first, starting after the id before (""
// for the newest).
func (q *queries) webhooks(o owner, before string, limit int) (listPage[*webhook], error) {
	list := webhookTable.whereOwner(o)
	made, by := o.ofApp()
	list.filter(made, by...)
	return webhookTable.page(q, list, before, limit)
}

// countWebhooks returns how many webhooks an account has, and how many of them an application has made, or if it is a
// document all documents of its host.
func (q *queries) countWebhooks(accountID, appID string) (all, made int, err error) {
	err = q.one(`SELECT (SELECT count(*) FROM webhooks WHERE account_id = ?1),
		(SELECT count(*) FROM webhooks w JOIN app_webhooks x ON x.webhook_id = w.id JOIN apps p ON p.id = x.app_id
		WHERE w.account_id = ?1 AND (x.app_id = ?2 OR p.host = (SELECT host FROM apps WHERE id = ?2)))`,
		[]any{accountID, appID}, &all, &made)
	return all, made, err
}

// setAppWebhook records that an application has made a webhook for itself, or changed it, under a grant;
// grantID nil: by client credentials. The webhook ends with that grant.
func (t *tx) setAppWebhook(id, appID string, grantID *string) {
	t.exec(`INSERT INTO app_webhooks (webhook_id, app_id, grant_id) VALUES (?, ?, ?)
		ON CONFLICT (webhook_id) DO UPDATE SET grant_id = excluded.grant_id`, id, appID, grantID)
}

// addWebhook inserts a webhook. It must not be enabled yet: the trigger that adds its queue runs only when
// an update enables it.
func (t *tx) addWebhook(w *webhook) {
	t.exec(`INSERT INTO webhooks
		(id, account_id, url, types, description, state, secret_number, made_by, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		w.ID, w.AccountID, w.URL, jsonColumn[[]string]{&w.Types}, w.Description, w.State, w.SecretNumber,
		w.MadeBy, w.CreatedAt, w.UpdatedAt)
}

// saveWebhook writes the columns of a webhook that can change. A trigger adds its
// queue when it becomes enabled, and removes the queue when it no longer is.
func (t *tx) saveWebhook(w *webhook) {
	webhookTable.update(t, w, `url description state reason failing_since secret_number rotated_at updated_at`,
		`, types = ?, test_seq = nullif(?, 0) WHERE id = ?`, jsonColumn[[]string]{&w.Types}, w.TestSeq, w.ID)
}

// deleteWebhook removes a webhook. A trigger removes its queue; what is left of
// its deliveries is swept later.
func (t *tx) deleteWebhook(id string) {
	t.exec(`DELETE FROM webhooks WHERE id = ?`, id)
}

// startReplay sends the events since a time to an enabled webhook again, including those that it was not
// sent because it was not enabled then. A replay that is already running is extended to the earlier
// beginning and the later end of both. If there are no such events, it changes nothing.
func (t *tx) startReplay(id string, since stamp) error {
	first, err := t.firstSince(`events`, `at`, since)
	if err != nil {
		return err
	}
	t.exec(`UPDATE webhook_queues SET replay_seq = min(coalesce(replay_seq, ?1), ?1),
		replay_end = max(coalesce(replay_end, 0), sent_seq)
		WHERE webhook_id = ?2 AND (replay_seq IS NOT NULL OR sent_seq > ?1)`, max(first-1, 0), id)
	return nil
}

// retryNow makes an event due at once for an enabled webhook. If the event is already waiting to be tried
// again, its count of attempts is kept. Errors: errWebhookDisabled.
func (t *tx) retryNow(id string, eventSeq int64) error {
	err := requireRow(t.exec(`INSERT INTO webhook_retries (queue_id, event_seq, attempts, due_at)
		SELECT q.id, ?, 0, ? FROM webhook_queues q WHERE q.webhook_id = ?
		ON CONFLICT (queue_id, event_seq) DO UPDATE SET due_at = excluded.due_at`, eventSeq, t.now, id))
	return replaced(err, errNotFound, errWebhookDisabled) // there is none if an operator has edited the rows
}

// deliveryTable describes the table deliveries.
var deliveryTable = newTable("deliveries", "d", func(d *delivery) []field {
	return []field{{"id", &d.ID}, {"webhook_id", &d.WebhookID}, {"event_id", &d.EventID}, {"type", &d.Type},
		{"attempt", &d.Attempt}, {"at", &d.At},
		{"iif(d.status BETWEEN 200 AND 299, 'succeeded', 'failed')", &d.Outcome}, {"status", &d.Status},
		{"error", &d.Error}, {"milliseconds", &d.Milliseconds}, {"answer", &d.Answer}, {"next_at", &d.NextAt},
		{"event_seq", &d.eventSeq}}
})

// delivery returns a delivery of a webhook, or errDelivery.
func (q *queries) delivery(webhookID, id string) (*delivery, error) {
	d, err := deliveryTable.one(q, `WHERE d.webhook_id = ? AND d.id = ?`, webhookID, id)
	return d, replaced(err, errNotFound, errDelivery)
}

// A deliveryFilter chooses deliveries of a webhook. An empty eventID or outcome matches all of them.
type deliveryFilter struct {
	webhookID string
	eventID   string
	outcome   string // outcomeSucceeded or outcomeFailed
}

// deliveries returns a page of the deliveries of a webhook, newest first, starting after the id before
// ("" for the newest).
func (q *queries) deliveries(f deliveryFilter, before string, limit int) (listPage[*delivery], error) {
	list := deliveryTable.list()
	list.scope(` AND d.webhook_id = ?`, []any{f.webhookID})
	if f.eventID != "" {
		list.filter(` AND d.event_id = ?`, f.eventID)
	}
	if f.outcome != "" {
		list.filter(` AND coalesce(d.status BETWEEN 200 AND 299, 0) = ?`, f.outcome == outcomeSucceeded)
	}
	return deliveryTable.page(q, list, before, limit)
}

// The SQL of sending events to webhooks: what is still to be sent, and the outcome of each attempt.

// A webhookQueue is what is still to be sent to a webhook.
type webhookQueue struct {
	webhook
	number               int64 // 0: the webhook is not enabled, and has a test to be sent only
	sentSeq              int64 // every event up to it was sent, or waits to be tried again
	replaySeq, replayEnd int64 // the same for a replay, and its last event; -1: there is no replay

	// The account whose places its attempts take: its own, or the one that has registered the application that made
	// it, so that an application's webhooks in all accounts share places.
	holder string
}

// webhookQueues returns every webhook of an open account that is enabled or has a test to be sent, except
// those made by an application that was removed or whose owner's account is closed. It reads all webhooks.
func (q *queries) webhookQueues() ([]*webhookQueue, error) {
	return collect(q, `SELECT `+webhookTable.columns+`,
		coalesce(q.id, 0), coalesce(q.sent_seq, 0), coalesce(q.replay_seq, -1), coalesce(q.replay_end, 0),
		coalesce((SELECT p.account_id FROM app_webhooks x JOIN apps p ON p.id = x.app_id WHERE x.webhook_id = w.id
			AND p.host IS NULL), w.account_id)
		FROM webhooks w JOIN accounts a ON a.id = w.account_id LEFT JOIN webhook_queues q ON q.webhook_id = w.id
		WHERE a.closed_at IS NULL AND (q.id IS NOT NULL OR w.test_seq IS NOT NULL)
		AND NOT EXISTS (`+endedApps+`)`, nil,
		func(row **webhookQueue) []any {
			*row = &webhookQueue{}
			w := *row
			return append(webhookTable.dest(&w.webhook), &w.number, &w.sentSeq, &w.replaySeq, &w.replayEnd, &w.holder)
		})
}

// mayGet reports whether an event of a type may be sent to a webhook now: its account is open, and if an application
// has made it, that could make it for such events still, as usableAppToken says. A test tells nothing, so it needs no
// scope for reading.
func (q *queries) mayGet(webhookID string, kind eventType) (bool, error) {
	var appID *string
	var agreed, registered string
	err := q.one(`SELECT x.app_id, coalesce(g.scope, p.own_scope, ''), coalesce(p.scope, '')
		FROM webhooks w JOIN accounts a ON a.id = w.account_id LEFT JOIN app_webhooks x ON x.webhook_id = w.id
		LEFT JOIN apps p ON p.id = x.app_id LEFT JOIN accounts o ON o.id = p.account_id
		LEFT JOIN grants g ON g.id = x.grant_id WHERE w.id = ? AND `+actsStill,
		[]any{webhookID}, &appID, &agreed, &registered)
	if err != nil || appID == nil {
		return err == nil, except(err, errNotFound)
	}
	needs := []string{scopeWebhooks}
	if kind != eventWebhookTest {
		needs = append(needs, cmp.Or(scopeOfEvent[kind], scopeEvents))
	}
	return !hasForeign(needs, strings.Fields(scopesWithin(agreed, registered))), nil
}

// maxScanned is how many events one call of eventsToSend reads at most.
const maxScanned = 10_000

var errEnough = errors.New("enough rows were read")

// eventsToSend returns the numbers of up to limit events that a webhook subscribes to, in ascending order,
// from those above after and up to end, without those that already wait to be tried again. The webhook's
// types are read in the same query as the events: a caller that read them before could miss events of a type
// that was added since. read is the number up to which it has looked; more reports whether there may be
// others above it, because it stopped at limit or after maxScanned rows. With an error, read is after and
// more is true, as if it had not looked.
func (q *queries) eventsToSend(
	w *webhookQueue, after, end int64, limit int,
) (seqs []int64, read int64, more bool, err error) {
	read = after
	scanned := 0
	err = q.each(`SELECT seq, type IN (SELECT value FROM json_each((SELECT types FROM webhooks WHERE id = ?)))
		AND NOT EXISTS (SELECT 1 FROM webhook_retries r WHERE r.queue_id = ? AND r.event_seq = e.seq)
		FROM events e WHERE account_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?`,
		[]any{w.ID, w.number, w.AccountID, after, end, maxScanned}, func(scan func(...any) error) error {
			var seq int64
			var wanted bool
			if err := scan(&seq, &wanted); err != nil {
				return err
			}
			read = seq
			scanned++
			if wanted {
				seqs = append(seqs, seq)
			}
			if len(seqs) == limit {
				return errEnough
			}
			return nil
		})
	switch {
	case errors.Is(err, errEnough):
		return seqs, read, true, nil
	case err != nil:
		return nil, after, true, err
	case scanned < maxScanned && end < maxSeq:
		read = end
	}
	return seqs, read, scanned == maxScanned, nil
}

// maxSeq is higher than the number of any event.
const maxSeq = 1<<63 - 1

// countFailingWebhooks returns the number of enabled webhooks whose last attempt failed. It reads all webhooks.
func (q *queries) countFailingWebhooks() (n int64, err error) {
	return oneValue[int64](q, `SELECT count(*) FROM webhooks WHERE state = 'enabled' AND failing_since IS NOT NULL`)
}

// A webhookRetry is an event that is to be tried again.
type webhookRetry struct {
	eventSeq int64
	attempts int // so far
}

// retriesDue returns up to limit events of a queue that are due at now, the longest due first. Events with
// a due time later than any retry can have count as due too, since the clock must have been set back.
func (q *queries) retriesDue(queue int64, now stamp, limit int) ([]webhookRetry, error) {
	return collect(q, `SELECT event_seq, attempts FROM
		(SELECT event_seq, attempts, due_at FROM webhook_retries
			WHERE queue_id = ?1 AND due_at <= ?2 ORDER BY due_at LIMIT ?4)
		UNION ALL SELECT event_seq, attempts FROM
		(SELECT event_seq, attempts, due_at FROM webhook_retries
			WHERE queue_id = ?1 AND due_at > ?3 ORDER BY due_at LIMIT ?4)
		LIMIT ?4`, []any{queue, now, now.after(latestRetry), limit},
		func(r *webhookRetry) []any { return []any{&r.eventSeq, &r.attempts} })
}

// latestRetry is longer than the time from any attempt to the next.
const latestRetry = 27 * time.Hour

// nextRetry returns when the next event of a queue is due after now, or errNotFound.
func (q *queries) nextRetry(queue int64, now stamp) (due stamp, err error) {
	return oneValue[stamp](q, `SELECT due_at FROM webhook_retries WHERE queue_id = ? AND due_at > ?
		ORDER BY due_at LIMIT 1`, queue, now)
}

// countRetries counts the events that wait to be sent again to a webhook.
func (q *queries) countRetries(webhookID string) (n int, err error) {
	return oneValue[int](q, `SELECT count(*) FROM webhook_queues q JOIN webhook_retries r ON r.queue_id = q.id
		WHERE q.webhook_id = ?`, webhookID)
}

// addDelivery records an attempt, unless it is recorded or its webhook was removed meanwhile.
func (t *tx) addDelivery(d *delivery) {
	t.exec(`INSERT OR IGNORE INTO deliveries
		(webhook_id, id, event_seq, event_id, type, attempt, at, milliseconds, status, error, answer, next_at)
		SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
		WHERE EXISTS (SELECT 1 FROM webhooks WHERE id = ?1)`,
		d.WebhookID, d.ID, d.eventSeq, d.EventID, d.Type, d.Attempt, d.At, d.Milliseconds, d.Status, d.Error,
		d.Answer, d.NextAt)
}

// setRetry schedules an event to be tried again at due, unless its queue was removed meanwhile. attempts is
// how often it was tried so far.
func (t *tx) setRetry(queue, eventSeq int64, attempts int, due stamp) {
	t.exec(`INSERT INTO webhook_retries (queue_id, event_seq, attempts, due_at)
		SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM webhook_queues WHERE id = ?1)
		ON CONFLICT (queue_id, event_seq) DO UPDATE SET attempts = excluded.attempts, due_at = excluded.due_at`,
		queue, eventSeq, attempts, due)
}

// removeRetry removes an event from those of a queue that are to be tried again.
func (t *tx) removeRetry(queue, eventSeq int64) {
	t.exec(`DELETE FROM webhook_retries WHERE queue_id = ? AND event_seq = ?`, queue, eventSeq)
}

// saveLane records up to which number the events of a lane were sent; once a replay has reached its end, it is over.
// For a replay it compares and sets: if its row has another beginning or end, it was started anew meanwhile, and stays
// as it is.
func (t *tx) saveLane(l *lane, to int64) {
	if !l.replay {
		t.exec(`UPDATE webhook_queues SET sent_seq = ? WHERE id = ?`, to, l.queue)
		return
	}
	next := sql.NullInt64{Int64: to, Valid: to < l.end}
	t.exec(`UPDATE webhook_queues SET replay_seq = ?1, replay_end = iif(?1 IS NULL, NULL, replay_end)
		WHERE id = ?2 AND replay_seq = ?3 AND replay_end = ?4`, next, l.queue, l.saved, l.end)
}

// setFailing records since when every attempt of an enabled webhook has failed; the zero stamp: the last
// attempt succeeded.
func (t *tx) setFailing(queue int64, since stamp) {
	t.exec(`UPDATE webhooks SET failing_since = ?
		WHERE id = (SELECT webhook_id FROM webhook_queues WHERE id = ?)`, since, queue)
}

// webhookOfQueue returns the webhook that a queue belongs to, or errNotFound if the queue was removed.
func (q *queries) webhookOfQueue(queue int64) (*webhook, error) {
	return webhookTable.one(q, `JOIN webhook_queues k ON w.id = k.webhook_id WHERE k.id = ?`, queue)
}

// endTest clears the test that a webhook is to be sent. It reports false, and changes nothing, if that is
// another test than testSeq, or none.
func (t *tx) endTest(id string, testSeq int64) bool {
	return t.exec(`UPDATE webhooks SET test_seq = NULL WHERE id = ? AND test_seq = ?`, id, testSeq) > 0
}

// A deliveryRange is the deliveries of a webhook that are no longer kept: those with an id less than below.
type deliveryRange struct{ webhookID, below string }

// nextDeliveries returns the first webhook with an id higher than after that has deliveries, and which of
// these are no longer kept at now; below is "" if all are kept. It iterates: after is "" for the first
// webhook, and errNotFound tells that there are no more.
func (q *queries) nextDeliveries(after string, now time.Time) (r deliveryRange, err error) {
	err = q.one(`SELECT webhook_id FROM deliveries WHERE webhook_id > ? ORDER BY webhook_id LIMIT 1`, []any{after},
		&r.webhookID)
	if err != nil {
		return r, err
	}
	oldest := formatID("whd", now.Add(-keptDeliveriesFor), [10]byte{})
	err = q.one(`SELECT coalesce((SELECT ?4 WHERE NOT EXISTS (SELECT 1 FROM webhooks WHERE id = ?1)), max(?2,
		coalesce((SELECT id FROM deliveries WHERE webhook_id = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?3), '')))`,
		[]any{r.webhookID, oldest, keptDeliveries - 1, lastID}, &r.below)
	if err != nil {
		return r, err
	}
	err = q.one(`SELECT 1 FROM deliveries WHERE webhook_id = ? AND id < ? LIMIT 1`,
		[]any{r.webhookID, r.below}, new(int))
	if errors.Is(err, errNotFound) {
		return deliveryRange{webhookID: r.webhookID}, nil
	}
	return r, err
}

// removeDeliveries removes up to limits.swept deliveries of a range, and returns how many.
func (t *tx) removeDeliveries(r deliveryRange) int64 {
	return t.exec(`DELETE FROM deliveries WHERE webhook_id = ?1 AND id IN
		(SELECT id FROM deliveries WHERE webhook_id = ?1 AND id < ?2 ORDER BY id LIMIT ?3)`,
		r.webhookID, r.below, t.limits.swept)
}

// abandonedQueue returns the first queue with a number above after that was removed but has retries left, or
// errNotFound.
func (q *queries) abandonedQueue(after int64) (queue int64, err error) {
	for queue = after; err == nil; {
		var gone bool
		err = q.one(`SELECT queue_id, NOT EXISTS (SELECT 1 FROM webhook_queues WHERE id = queue_id)
			FROM webhook_retries WHERE queue_id > ? ORDER BY queue_id LIMIT 1`, []any{queue}, &queue, &gone)
		if err == nil && gone {
			return queue, nil
		}
	}
	return 0, err
}

// removeRetries removes up to limits.swept retries of a queue, and returns how many.
func (t *tx) removeRetries(queue int64) int64 {
	return t.exec(`DELETE FROM webhook_retries WHERE queue_id = ?1 AND event_seq IN
		(SELECT event_seq FROM webhook_retries WHERE queue_id = ?1 LIMIT ?2)`, queue, t.limits.swept)
}

// countWebhooksByState returns how many webhooks there are, by state. It reads all of them.
func (q *queries) countWebhooksByState() (map[string]int64, error) {
	tally := map[string]int64{webhookPending: 0, webhookEnabled: 0, webhookDisabled: 0}
	err := q.each(`SELECT state, count(*) FROM webhooks GROUP BY state`, nil, func(scan func(...any) error) error {
		var state string
		var n int64
		err := scan(&state, &n)
		tally[state] = n
		return err
	})
	return tally, err
}

// The bounds of webhookBacklogs, for each webhook.
const (
	maxWaiting        = 1000 // events that it counts, of those that were not tried yet and of the others
	maxWaitingScanned = 2 * maxWaiting
	maxBehind         = 500 // webhooks that the metrics look at
)

// A webhookBacklog is what is still to be sent to a webhook.
type webhookBacklog struct {
	webhookID        string
	waiting, retried int   // events that were not tried yet, and that are to be tried again
	oldest           stamp // when the oldest of those that were not tried yet was written
	accepted         stamp // when it last accepted an event; zero: none of those that are kept
	ended            bool  // nothing is sent to it, whatever waits: an account or application has ended
}

// webhookBacklogs returns the backlogs of all webhooks of an owner, or of limit of them, those first that are furthest
// behind.
func (q *queries) webhookBacklogs(o owner, limit int) ([]webhookBacklog, error) {
	unsent := `(SELECT type, at FROM events WHERE account_id = w.account_id AND seq > w.sent_seq ORDER BY seq
		LIMIT ?2) WHERE type IN (SELECT value FROM json_each(w.types))`
	from, args := o.narrow(`SELECT w.id, w.account_id, w.types, q.id AS queue, q.sent_seq FROM webhooks w
		LEFT JOIN webhook_queues q ON q.webhook_id = w.id WHERE 1`, `w.account_id`, maxWaiting, maxWaitingScanned)
	return collect(q, `SELECT w.id, (SELECT count(*) FROM (SELECT 1 FROM `+unsent+` LIMIT ?1)),
		(SELECT at FROM `+unsent+` LIMIT 1),
		(SELECT count(*) FROM (SELECT 1 FROM webhook_retries WHERE queue_id = w.queue LIMIT ?1)),
		(SELECT at FROM deliveries WHERE webhook_id = w.id AND status BETWEEN 200 AND 299 ORDER BY id DESC LIMIT 1),
		a.closed_at IS NOT NULL OR EXISTS (`+endedApps+`)
		FROM (`+from+` ORDER BY q.sent_seq IS NULL, q.sent_seq LIMIT ?) w JOIN accounts a ON a.id = w.account_id`,
		append(args, limit), func(b *webhookBacklog) []any {
			return []any{&b.webhookID, &b.waiting, &b.oldest, &b.retried, &b.accepted, &b.ended}
		})
}

// endedApps are the applications that made the webhook w and were removed, or whose owner's account is closed.
const endedApps = `SELECT 1 FROM app_webhooks x JOIN apps p ON p.id = x.app_id JOIN accounts o ON o.id = p.account_id
		WHERE x.webhook_id = w.id AND (p.removed_at IS NOT NULL OR o.closed_at IS NOT NULL)`

// webhookTroubles are those of webhooks of open accounts: that they accept nothing for a day,
// wait for their first test that long, or were disabled for that. They read all webhooks.
var webhookTroubles = []trouble{
	{kind: "webhooks_failing", urgency: whenSeen, one: "$n webhook fails", many: "$n webhooks fail",
		span:   -24 * time.Hour,
		advice: " since $day: 'widgetd webhook list -failing -state enabled'",
		query: `SELECT w.failing_since AS since, w.id` + ofOpenAccounts + ` AND w.state = 'enabled'
			AND w.failing_since <= ?2`},
	{kind: "webhooks_pending", urgency: whenSeen, one: "$n webhook is pending", many: "$n webhooks are pending",
		span:   -24 * time.Hour,
		advice: " since $day, and gets nothing until it answers a test: 'widgetd webhook test $id'",
		query: `SELECT w.updated_at AS since, w.id` + ofOpenAccounts + ` AND w.state = 'pending'
			AND w.updated_at <= ?2`},
	{kind: "webhooks_disabled", urgency: whenSeen, one: "$n webhook disabled for failing",
		many: "$n webhooks disabled for failing", advice: disabledSince, query: disabledFor + `'failing'`},
	{kind: "webhooks_gone", urgency: whenSeen, one: "$n webhook answered 410 Gone",
		many: "$n webhooks answered 410 Gone", advice: disabledSince, query: disabledFor + `'gone'`},
}

const (
	ofOpenAccounts = ` FROM webhooks w JOIN accounts a ON a.id = w.account_id WHERE a.closed_at IS NULL`
	disabledSince  = " since $day: 'widgetd webhook list -failing -state disabled'"
	disabledFor    = `SELECT coalesce(w.failing_since, w.updated_at) AS since, w.id` + ofOpenAccounts +
		` AND w.state = 'disabled' AND w.reason = `
)

// heldWebhooks are webhooks that are not disabled.
var heldWebhooks = holding{"webhooks", "webhook",
	`SELECT count(*) FROM webhooks WHERE account_id = ?1 AND state <> 'disabled'`, ""}
