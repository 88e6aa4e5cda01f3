package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// A webhookAPI serves the endpoints of webhooks.
type webhookAPI struct {
	*server
	types []eventType // that webhooks can name
}

// webhookWing makes the routes of webhooks.
func webhookWing(s *server) wing {
	a := &webhookAPI{server: s, types: subscribable(s.nouns)}
	routes := []route{
		{pattern: "GET /webhooks", question: true, run: a.listWebhooks},
		{pattern: "POST /webhooks", creates: true, run: a.createWebhook},
		{pattern: "GET /webhooks/{id}", run: a.showWebhook},
		{pattern: "PATCH /webhooks/{id}", run: a.patchWebhook},
		{pattern: "DELETE /webhooks/{id}", run: a.removeWebhook},
		{pattern: "POST /webhooks/{id}/test", noBody: true, run: a.testWebhook},
		{pattern: "POST /webhooks/{id}/enable", noBody: true, run: a.enableWebhook},
		{pattern: "POST /webhooks/{id}/rotate-secret", noBody: true, creates: true, run: a.rotateSecret},
		{pattern: "POST /webhooks/{id}/replay", creates: true, run: a.replayEvents},
		{pattern: "GET /webhooks/{id}/deliveries", question: true, run: a.listDeliveries},
		{pattern: "POST /webhooks/{id}/deliveries/{delivery}/retry", noBody: true, run: a.retryDelivery},
	}
	for i := range routes {
		routes[i].token, routes[i].scope, routes[i].careful = tokenRequired, scopeWebhooks, true
	}
	w := webhookWorkerOf(s)
	all := wing{routes: routes, metrics: webhookMetrics(w),
		counts: map[string]func() int64{countFailedSends: w.failed.Load},
		chores: []chore{{fault: faultWebhookSweep, timeDriven: true, run: w.sweep}}}
	if !s.noWebhooks {
		all.workers = append(all.workers, w.run)
	}
	return all
}

// webhookWorkerOf makes the worker that sends a server's webhooks.
func webhookWorkerOf(s *server) *webhookWorker {
	w := newWebhookWorker(s.store)
	w.keys, w.outbound, w.log = s.keys.Load, s.outbound, s.log
	w.now, w.steady = s.now, s.steady
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

// A webhookWithSecret is the answer that shows a new secret, which no later answer does.
type webhookWithSecret struct {
	*webhook
	Secret        string `json:"secret"`
	PreviousUntil stamp  `json:"previous_secret_until,omitzero"` // until when the previous secret signs too
}

// withSecret returns a webhook with its current secret.
func (a *webhookAPI) withSecret(w *webhook) *webhookWithSecret {
	secret := webhookSecret(a.keys.Load(), w.ID, w.SecretNumber)
	return &webhookWithSecret{webhook: shownWebhook(w), Secret: formatWebhookSecret(secret)}
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
	v := in.member(reading{name: "url", kind: jsonString, need: required})
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
func (a *webhookAPI) readTypes(in *input) codeList {
	if in.array(reading{name: "types"}, len(a.types)) == nil {
		return nil
	}
	types := in.texts("types", len(a.types), maxNameLength, anyText)
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

func (a *webhookAPI) createWebhook(ctx context.Context, c *call) (any, error) {
	wanted := webhook{URL: a.readURL(c.in), Types: a.readTypes(c.in),
		Description: nilIfEmpty(c.in.text("description", optional, maxWebhookText, anyText))}
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	o := c.oneOwner(of) // a webhook belongs to one account: the caller's, if it names none
	by := webhookAuthorOf(c)
	if err := by.checkScopes(wanted.Types); err != nil {
		return nil, err
	}
	if err := a.checkHost(ctx, c, wanted.URL); err != nil {
		return nil, err
	}
	c.stillTrue = replaysOf(o, by.checkReplay)
	return create(ctx, a.server, c, func(t *tx) (*webhookWithSecret, error) {
		w := wanted
		w.AccountID = o.account
		if err := createWebhook(t, &w, by); err != nil {
			return nil, err
		}
		return a.withSecret(&w), nil
	})
}

// readChange reads the body of PATCH /webhooks/{id}.
func (a *webhookAPI) readChange(in *input) change {
	set := in.change(new(webhook).members(), false)
	if in.has("url") {
		set = append(set, member{name: "url", at: new(a.readURL(in))})
	}
	if in.has("types") {
		set = append(set, member{name: "types", at: new(a.readTypes(in))})
	}
	return set
}

func (a *webhookAPI) patchWebhook(ctx context.Context, c *call) (any, error) {
	set := a.readChange(c.in)
	var asked webhook
	set.apply(asked.members())
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	if asked.URL != "" {
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

func (a *webhookAPI) showWebhook(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	w, err := a.store.webhook(of, c.id())
	if err != nil {
		return nil, err
	}
	return shownWebhook(w), nil
}

func (a *webhookAPI) removeWebhook(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return noContent, a.store.update(ctx, func(t *tx) error {
		return removeWebhook(t, of, c.id(), actorToken(c))
	})
}

func (a *webhookAPI) enableWebhook(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return a.changeWebhook(ctx, c, func(t *tx) (*webhook, error) {
		return enableWebhook(t, of, c.id(), webhookAuthorOf(c))
	})
}

func (a *webhookAPI) rotateSecret(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	by := webhookAuthorOf(c)
	c.stillTrue = replaysOf(of, by.checkReplay)
	return create(ctx, a.server, c, func(t *tx) (*webhookWithSecret, error) {
		w, err := rotateWebhookSecret(t, of, c.id(), by)
		if err != nil {
			return nil, err
		}
		shown := a.withSecret(w)
		shown.PreviousUntil = w.RotatedAt.after(secretOverlap)
		return shown, nil
	})
}

// A sentEvent is the answer of test and retry: the id of the event that is sent.
type sentEvent struct {
	EventID string `json:"event_id"`
}

func (a *webhookAPI) testWebhook(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return a.sendEvent(ctx, func(t *tx) (string, error) {
		return requestTest(t, of, c.id(), webhookAuthorOf(c))
	})
}

func (a *webhookAPI) retryDelivery(ctx context.Context, c *call) (any, error) {
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	return a.sendEvent(ctx, func(t *tx) (string, error) {
		return retryDelivery(t, of, c.id(), c.in.pathValue("delivery"), webhookAuthorOf(c))
	})
}

// sendEvent runs f in a transaction and answers with the id of the event that f returns.
func (a *webhookAPI) sendEvent(ctx context.Context, f func(*tx) (string, error)) (*sentEvent, error) {
	id, err := updated(ctx, a.store, f)
	return &sentEvent{id}, err
}

func (a *webhookAPI) replayEvents(ctx context.Context, c *call) (any, error) {
	since := c.in.timestamp("since")
	if !c.in.has("since") {
		c.in.wrong("since", "required", "This member is required.")
	}
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	by := webhookAuthorOf(c)
	c.stillTrue = replaysOf(of, by.checkReplay)
	return a.changeWebhook(ctx, c, func(t *tx) (*webhook, error) {
		return replayEvents(t, of, c.id(), since, by)
	})
}

func (a *webhookAPI) listWebhooks(ctx context.Context, c *call) (any, error) {
	page := c.in.page("whe")
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	found, err := a.store.within(ctx).webhooks(of, page.before, page.limit)
	return showPage(found, shownWebhook), err
}

func (a *webhookAPI) listDeliveries(ctx context.Context, c *call) (any, error) {
	filter := deliveryFilter{webhookID: c.id(), eventID: c.in.parameter("event_id", isID("evt")),
		outcome: c.in.parameter("outcome", oneOf(outcomeSucceeded, outcomeFailed))}
	page := c.in.page("whd")
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := a.store.within(ctx).webhook(of, c.id()); err != nil {
		return nil, err
	}
	return showRows(a.store.within(ctx).deliveries(filter, page.before, page.limit))
}
