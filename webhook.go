package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
	CreatedAt    stamp    `json:"created_at"`
	UpdatedAt    stamp    `json:"updated_at"`

	SecretNumber int   `json:"-"` // of the rotation, from 1
	TestSeq      int64 `json:"-"` // of the test that is still to be sent; 0: none
}

// A delivery is one attempt to send an event to a webhook.
type delivery struct {
	ID           string    `json:"id"`
	WebhookID    string    `json:"webhook_id"`
	EventID      string    `json:"event_id"` // the webhook-id that was sent
	Type         eventType `json:"type"`
	Attempt      int       `json:"attempt"` // from 1
	At           stamp     `json:"at"`
	Outcome      string    `json:"outcome"` // succeeded or failed
	Status       *int      `json:"status"`  // of the answer; nil: there was none
	Error        *string   `json:"error"`   // why there was none: outboundError.reason
	Milliseconds int64     `json:"duration_ms"`
	Answer       *string   `json:"answer"`          // the beginning of the answer to a failure
	NextAt       stamp     `json:"next_attempt_at"` // zero: it is not tried again

	eventSeq int64
}

// succeeded reports whether a status means that a webhook has accepted what it was sent.
func succeeded(status int) bool { return status >= 200 && status <= 299 }

// readingScope returns the scope that a caller must hold to learn of events of a type.
func readingScope(t eventType) string {
	noun, _, _ := strings.Cut(string(t), ".")
	switch noun {
	case "license", "device":
		return scopeLicenses
	case "lead":
		return scopeLeads
	}
	return scopeEvents
}

// missingScope returns the first scope that reading events of these types needs and has denies; ""
// if there is none.
func missingScope(types []string, has func(scope string) bool) string {
	for _, t := range types {
		if scope := readingScope(eventType(t)); !has(scope) {
			return scope
		}
	}
	return ""
}

// subscribable returns those of all event types that a webhook can name: all but webhook.test.
func subscribable(all []eventType) []eventType {
	return slices.DeleteFunc(slices.Clone(all), func(t eventType) bool { return t == eventWebhookTest })
}

// webhookEvent returns an event about a webhook.
func webhookEvent(w *webhook, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: w.AccountID, SubjectID: w.ID, Actor: actor, Data: eventData(data...)}
}

// secrets returns the secrets that sign for a webhook at now: the current one, and for
// secretOverlap after a rotation the one before it.
func (w *webhook) secrets(keys *keyring, now time.Time) [][]byte {
	all := [][]byte{webhookSecret(keys, w.ID, w.SecretNumber)}
	if w.SecretNumber > 1 && !w.RotatedAt.IsZero() && within(secretOverlap, w.RotatedAt.Time, now) {
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
