package main

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"
)

// A webhookAPI serves the endpoints of webhooks.
type webhookAPI struct {
	*server
	types []eventType // that webhooks can name
}

// webhookModule makes the routes of webhooks.
func webhookModule(s *server) module {
	a := &webhookAPI{server: s, types: subscribable(s.nouns)}
	w := webhookWorkerOf(s)
	all := module{routes: webhookRoutes(a), metrics: webhookMetrics(w),
		counts: map[string]func() int64{countFailedSends: w.failed.Load},
		chores: []chore{{fault: faultWebhookSweep, timeDriven: true, run: w.sweep}}}
	if !s.noWebhooks {
		all.workers = append(all.workers, w.run)
	}
	return all
}

func webhookRoutes(a *webhookAPI) []route {
	const one = "webhook_not_found"
	return []route{
		{pattern: "GET /webhooks", scope: scopeWebhooks, question: true,
			endpoint: owned(a.server, readOnlyPage("whe"), a.listWebhooks)},
		{pattern: "POST /webhooks", scope: scopeWebhooks, creates: true, refuses: "webhook_limit_reached",
			endpoint: owned(a.server, a.readNewWebhook, a.createWebhook)},
		{pattern: "GET /webhooks/{id}", scope: scopeWebhooks, refuses: one,
			endpoint: owned(a.server, readNoMembers, a.getWebhook)},
		{pattern: "PATCH /webhooks/{id}", scope: scopeWebhooks, refuses: one,
			endpoint: owned(a.server, a.readWebhookChange, a.updateWebhook)},
		{pattern: "DELETE /webhooks/{id}", scope: scopeWebhooks, refuses: one, answers: answerForm{empty: 204},
			endpoint: owned(a.server, readDryRun, a.deleteWebhook)},
		{pattern: "POST /webhooks/{id}/test", scope: scopeWebhooks, noBody: true, refuses: one,
			endpoint: owned(a.server, readNoMembers, a.testWebhook)},
		{pattern: "POST /webhooks/{id}/enable", scope: scopeWebhooks, noBody: true, refuses: one,
			endpoint: owned(a.server, readNoMembers, a.enableWebhook)},
		{pattern: "POST /webhooks/{id}/rotate-secret", scope: scopeWebhooks, noBody: true, creates: true, refuses: one,
			endpoint: owned(a.server, readNoMembers, a.rotateWebhookSecret)},
		{pattern: "POST /webhooks/{id}/replay", scope: scopeWebhooks, creates: true,
			refuses: "webhook_not_found webhook_not_enabled", endpoint: owned(a.server, readReplay, a.replayWebhook)},
		{pattern: "GET /webhooks/{id}/deliveries", scope: scopeWebhooks, question: true, refuses: one,
			endpoint: owned(a.server, readDeliveryQuery, a.listDeliveries)},
		{pattern: "POST /webhooks/{id}/deliveries/{delivery}/retry", scope: scopeWebhooks, noBody: true,
			refuses:  "webhook_not_found delivery_not_found webhook_not_enabled",
			endpoint: owned(a.server, readNoMembers, a.retryDelivery)},
	}
}

// webhookWorkerOf makes the worker that sends a server's webhooks.
func webhookWorkerOf(s *server) *webhookWorker {
	w := newWebhookWorker(s.store)
	w.keys, w.outbound, w.log = s.keys.Load, s.outbound, s.log
	w.now, w.monotonic = s.now, s.monotonic
	w.doubted, w.stopping, w.blocked = s.clockDoubted, s.draining.Load, func() bool { return s.store.waits() }
	return w
}

// webhookMetrics returns the counters of the worker, and counts of webhooks from the database, which are
// left out while it can't be read.
func webhookMetrics(w *webhookWorker) []metric {
	return []metric{
		{"widgetd_webhook_deliveries_total", "counter", "Attempts to send an event, by outcome.", func() []string {
			return []string{
				fmt.Sprintf(`{outcome=%q} %d`, outcomeSucceeded, w.succeeded.Load()),
				fmt.Sprintf(`{outcome=%q} %d`, outcomeFailed, w.failed.Load()),
			}
		}},
		{"widgetd_webhook_deliveries_running", "gauge", "Attempts that are under way.",
			func() []string { return []string{fmt.Sprintf(" %d", w.sendingNow.Load())} }},
		{"widgetd_webhooks", "gauge", "Webhooks, by state.", func() (samples []string) {
			states, err := w.store.countWebhooksByState()
			if err != nil {
				return nil
			}
			for _, state := range slices.Sorted(maps.Keys(states)) {
				samples = append(samples, fmt.Sprintf(`{state=%q} %d`, state, states[state]))
			}
			return samples
		}},
		{"widgetd_webhooks_failing", "gauge", "Enabled webhooks whose last attempt failed.", func() []string {
			n, err := w.store.countFailingWebhooks()
			if err != nil {
				return nil
			}
			return []string{fmt.Sprintf(" %d", n)}
		}},
		{"widgetd_webhook_waiting", "gauge", "Events that webhooks are still to get: new ones, and those to be tried " +
			"again; and the age in seconds of the oldest new one.", func() []string {
			behind, err := w.store.webhookBacklogs(anyAccount, maxBehind)
			if err != nil {
				return nil
			}
			waiting, retried, age := 0, 0, int64(0)
			for _, b := range behind {
				if b.ended {
					continue
				}
				waiting += b.waiting
				retried += b.retried
				if !b.oldest.IsZero() {
					age = max(age, int64(w.now().Sub(b.oldest.Time).Seconds()))
				}
			}
			return []string{fmt.Sprintf(`{what="new"} %d`, waiting), fmt.Sprintf(`{what="oldest_seconds"} %d`, age),
				fmt.Sprintf(`{what="retried"} %d`, retried)}
		}},
	}
}

// lateWebhooks is that events wait to be sent, for which a service that sends none is not to blame.
var lateWebhooks = trouble{kind: "webhooks_late", urgency: sameDay,
	one: "an event has waited since $since to be sent to a webhook", advice: ": 'widgetd webhook list'",
	inService: func(s *server) (f occurrence, err error) {
		if s.noWebhooks {
			return f, nil
		}
		behind, err := s.store.webhookBacklogs(anyAccount, maxBehind)
		for _, b := range behind {
			if !b.ended && !b.oldest.IsZero() && (f.Since.IsZero() || b.oldest.Before(f.Since.Time)) {
				f.Since = b.oldest
			}
		}
		return occursIf(!f.Since.IsZero() && s.now().Sub(f.Since.Time) > webhooksLate, f.Since, "", ""), err
	}}

// webhooksLate is how long an event may wait for the first try to send it.
const webhooksLate = 20 * time.Minute

// webhookAuthorOf returns the caller of a call as the author of its changes.
func webhookAuthorOf(c *call) webhookAuthor {
	who := c.caller
	return webhookAuthor{actor: actorToken(c), has: who.has, app: who.app, grant: nilIfEmpty(who.claims.Grant),
		token: who.claims.ID}
}

// shownWebhook returns a webhook as callers over HTTP may see it.
func shownWebhook(w *webhook) *webhook {
	shown := *w
	shown.MadeBy = publicActor(w.MadeBy)
	return &shown
}

// A webhookWithSecret is a webhook, with the secret that signs what is sent to it.
type webhookWithSecret struct {
	*webhook

	// The secret: `whsec_` and 32 bytes in base64. It is shown this once.
	Secret string `json:"secret" is:"^whsec_[A-Za-z0-9+/]{43}=$"`
}

// A webhookRotation is a webhook, with its new secret.
type webhookRotation struct {
	*webhook

	// The new secret: `whsec_` and 32 bytes in base64. It is shown this once.
	Secret string `json:"secret" is:"^whsec_[A-Za-z0-9+/]{43}=$"`

	PreviousUntil stamp `json:"previous_secret_until"` // Until when the secret before signs too.
}

// secretOf returns the current secret of a webhook, as its owner is shown it.
func (a *webhookAPI) secretOf(w *webhook) string {
	return formatWebhookSecret(webhookSecret(a.keys.Load(), w.ID, w.SecretNumber))
}

// checkReplay returns why the author must not be given the stored answer to an earlier call, which shows
// webhook w; nil: it may be. It is for replaysOf.
func (by webhookAuthor) checkReplay(w *struct {
	Types []string `json:"types"`
}) error {
	return by.checkScopes(w.Types)
}

// readURL reads the address of a webhook and returns its normal form, "" if it is wrong.
func (a *webhookAPI) readURL(in *input) string {
	// Where events are posted to: `https`, port 443, a host name in ASCII with public addresses, no user name, no
	// fragment. An operator may admit other addresses.
	v := in.member(reading{name: "url", kind: jsonString, need: required, high: maxOutboundURL,
		check: checkURIForm})
	if v == nil {
		return ""
	}
	normal, code, detail := a.outbound.checkURL(v.text)
	if code != "" {
		in.wrong("url", code, detail)
	}
	return normal
}

// readTypes reads the types of a webhook.
func (a *webhookAPI) readTypes(in *input) []string {
	// The types of the events that it gets, none twice.
	types := in.texts(reading{name: "types", need: required, low: 1, high: len(a.types), each: maxNameLength,
		check: &textCheck{words: asTexts(a.types), wordType: reflect.TypeFor[webhookType]()}})
	checkWebhookTypes(types, a.types, func(at int, code, detail string) {
		if types[at] != "" { // in.texts has already reported an empty one
			in.wrong(fmt.Sprintf("types/%d", at), code, detail)
		}
	})
	return types
}

// checkHost returns the refusal of an address whose host can't be called at the moment.
func (a *webhookAPI) checkHost(ctx context.Context, c *call, url string) error {
	if c.isCommand() { // which may run where the host is not known; each call of it checks
		return nil
	}
	if code, detail := a.outbound.checkHost(ctx, url); code != "" {
		return errFields(fieldError{Pointer: "#/url", Code: code, Detail: detail})
	}
	return nil
}

// List webhooks.
//
// Lists webhooks, newest first. A request has two seconds, waiting included.
func (a *webhookAPI) listWebhooks(ctx context.Context, _ *call, of owner, page pageQuery) (*list[*webhook], error) {
	found, err := a.store.within(ctx).webhooks(of, page.before, page.limit)
	return showPage(found, shownWebhook), err
}

// A newWebhook is the request for a webhook. A member that is not listed here is refused.
type newWebhook struct {
	url         string
	types       []string
	description *string
}

func (a *webhookAPI) readNewWebhook(in *input) (r *newWebhook) {
	r = new(newWebhook)
	r.url, r.types = a.readURL(in), a.readTypes(in)
	r.description = nilIfEmpty(in.text("description", optional, maxWebhookText, nil)) // What it is, for people.
	return r
}

// Add a webhook.
//
// Adds a webhook and sends it a signed `webhook.test` at once, which enables it if the answer is 2xx. Its `secret` is
// in this answer and in no other. The token needs the scope for reading each of the `types`: `licenses:read` for
// `license.` and `device.`, `leads:read` for `lead.`, `orders:read` for `order.` and `payment.`, `books:write` for
// `books.`, `events:read` for all others. An account has at most 50 webhooks, of which one application has made at
// most 10. With the token of an application only the webhooks that it has made itself are found; they end with the
// grant under which it did, and get what the application may read when it is sent.
func (a *webhookAPI) createWebhook(
	ctx context.Context, c *call, of owner, r *newWebhook,
) (*webhookWithSecret, error) {
	o := c.narrowToOne(of) // a webhook belongs to one account: the caller's, if it names none
	by := webhookAuthorOf(c)
	if err := by.checkScopes(r.types); err != nil {
		return nil, err
	}
	if err := a.checkHost(ctx, c, r.url); err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(o, by.checkReplay)
	return create(ctx, a.server, c, func(t *tx) (*webhookWithSecret, error) {
		w := &webhook{AccountID: o.account, URL: r.url, Types: r.types, Description: r.description}
		if err := createWebhook(t, w, by); err != nil {
			return nil, err
		}
		return &webhookWithSecret{shownWebhook(w), a.secretOf(w)}, nil
	})
}

// readWebhookChange reads the body of PATCH /webhooks/{id}.
func (a *webhookAPI) readWebhookChange(in *input) change {
	set := in.change(new(webhook).members(), false)
	if in.has("url") {
		set = append(set, member{name: "url", at: new(a.readURL(in))})
	}
	if in.has("types") {
		set = append(set, member{name: "types", at: new(a.readTypes(in))})
	}
	return set
}

// Change a webhook.
//
// Another `url` makes it `pending`: it is sent a `webhook.test`, and events again once it has answered that with 2xx.
// `state` takes `disabled` only; `enable` is a call of its own. The token needs the scopes for reading the types that
// the webhook has after the change. A change without effect writes nothing.
func (a *webhookAPI) updateWebhook(ctx context.Context, c *call, of owner, set change) (*webhook, error) {
	var asked webhook
	if set.apply(asked.members()); asked.URL != "" {
		if _, err := a.store.webhook(of, c.id()); err != nil {
			return nil, err
		}
		if err := a.checkHost(ctx, c, asked.URL); err != nil {
			return nil, err
		}
	}
	return a.changeWebhook(ctx, c, func(t *tx) (*webhook, error) {
		return patchWebhook(t, of, c.id(), set, webhookAuthorOf(c))
	})
}

// changeWebhook runs f in a transaction and answers with the webhook that f returns.
func (a *webhookAPI) changeWebhook(ctx context.Context, c *call, f func(*tx) (*webhook, error)) (*webhook, error) {
	return create(ctx, a.server, c, func(t *tx) (*webhook, error) {
		w, err := f(t)
		if err != nil {
			return nil, err
		}
		return shownWebhook(w), nil
	})
}

// Show a webhook.
//
// Shows one webhook. Another account's is not found.
func (a *webhookAPI) getWebhook(_ context.Context, c *call, of owner, _ noMembers) (*webhook, error) {
	w, err := a.store.webhook(of, c.id())
	if err != nil {
		return nil, err
	}
	return shownWebhook(w), nil
}

// Remove a webhook.
//
// What was not yet sent to it is not sent any more.
func (a *webhookAPI) deleteWebhook(ctx context.Context, c *call, of owner, _ noMembers) (*webhook, error) {
	return enact(ctx, a.server, c, func(t *tx) (*webhook, error) {
		w, err := t.webhook(of, c.id())
		if err != nil {
			return nil, err
		}
		waiting, err := t.countRetries(w.ID)
		if err != nil {
			return nil, err
		}
		ends := shownWebhook(w)
		ends.dryEnd = dryEndOf("events", waiting)
		return ends, removeWebhook(t, of, w.ID, actorToken(c))
	})
}

// Enable a webhook.
//
// Makes a `disabled` webhook `pending`, and sends it a `webhook.test` at once: a 2xx enables it. A `pending` one is
// sent another test, an `enabled` one stays as it is. Events from before are not sent; `replay` sends them.
func (a *webhookAPI) enableWebhook(ctx context.Context, c *call, of owner, _ noMembers) (*webhook, error) {
	return a.changeWebhook(ctx, c, func(t *tx) (*webhook, error) {
		return enableWebhook(t, of, c.id(), webhookAuthorOf(c))
	})
}

// Give a webhook a new secret.
//
// The new `secret` is in this answer and in no other. Until `previous_secret_until`, in 24 hours, the one before signs
// as well: `webhook-signature` has two signatures, and a receiver may know either secret. The one before that stops at
// once.
func (a *webhookAPI) rotateWebhookSecret(
	ctx context.Context, c *call, of owner, _ noMembers,
) (*webhookRotation, error) {
	by := webhookAuthorOf(c)
	c.stillTrue = replaysOf(of, by.checkReplay)
	return create(ctx, a.server, c, func(t *tx) (*webhookRotation, error) {
		w, err := rotateWebhookSecret(t, of, c.id(), by)
		if err != nil {
			return nil, err
		}
		return &webhookRotation{shownWebhook(w), a.secretOf(w), w.RotatedAt.after(secretOverlap)}, nil
	})
}

// A sentEvent is what is being sent.
type sentEvent struct {
	EventID string `json:"event_id" is:"evt"` // The id of the event, which is the `webhook-id`.
}

// Send a test.
//
// Sends a signed `webhook.test` at once, to a webhook in any state. If it is `pending`, a 2xx enables it. The attempt
// is in the list of deliveries; a test is not tried again.
func (a *webhookAPI) testWebhook(ctx context.Context, c *call, of owner, _ noMembers) (*sentEvent, error) {
	return a.sendEvent(ctx, func(t *tx) (string, error) {
		return requestTest(t, of, c.id(), webhookAuthorOf(c))
	})
}

// Send an event again.
//
// Sends the event of a delivery once more, at once, whatever became of the delivery. It has the `webhook-id` that it
// had. For the delivery of a test, another test is sent. The token needs the scope for reading the event too.
func (a *webhookAPI) retryDelivery(ctx context.Context, c *call, of owner, _ noMembers) (*sentEvent, error) {
	return a.sendEvent(ctx, func(t *tx) (string, error) {
		return retryDelivery(t, of, c.id(), c.in.pathValue("delivery"), webhookAuthorOf(c))
	})
}

// sendEvent runs f in a transaction and answers with the id of the event that f returns.
func (a *webhookAPI) sendEvent(ctx context.Context, f func(*tx) (string, error)) (*sentEvent, error) {
	id, err := updated(ctx, a.store, f)
	return &sentEvent{id}, err
}

// A webhookReplay is from when events are sent again. A member that is not listed here is refused.
type webhookReplay struct{ since stamp }

func readReplay(in *input) *webhookReplay {
	// Events since this time, in whole seconds, included; at most 30 days ago.
	return &webhookReplay{in.timestamp("since", required)}
}

// Send past events again.
//
// Sends every event since a time, at most 30 days ago, that the webhook's `types` name: also those that it has
// accepted, and those from when it was not enabled. Each has the `webhook-id` that it had. `replaying` is true until
// the last of them was sent for the first time.
func (a *webhookAPI) replayWebhook(ctx context.Context, c *call, of owner, r *webhookReplay) (*webhook, error) {
	by := webhookAuthorOf(c)
	c.stillTrue = replaysOf(of, by.checkReplay)
	return a.changeWebhook(ctx, c, func(t *tx) (*webhook, error) {
		return replayEvents(t, of, c.id(), r.since, by)
	})
}

// A deliveryQuery says which deliveries are asked for.
type deliveryQuery struct {
	deliveryFilter
	pageQuery
}

func readDeliveryQuery(in *input) (q *deliveryQuery) {
	q = new(deliveryQuery)
	q.eventID = in.parameter("event_id", isID("evt"))               // Only attempts to send this event.
	q.outcome = in.parameter("outcome", oneOf(deliveryOutcomes...)) // Only attempts that had this outcome.
	q.pageQuery = in.page("whd")
	return q
}

// List the deliveries of a webhook.
//
// Lists the attempts to send events to a webhook, newest first: those of the last 30 days, and at most 1,000. One
// request goes through at most 10,000 rows and has two seconds, waiting included.
func (a *webhookAPI) listDeliveries(
	ctx context.Context, c *call, of owner, q *deliveryQuery,
) (*list[*delivery], error) {
	q.webhookID = c.id()
	if _, err := a.store.within(ctx).webhook(of, q.webhookID); err != nil {
		return nil, err
	}
	return showRows(a.store.within(ctx).deliveries(q.deliveryFilter, q.before, q.limit))
}
