package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
)

// What the worker does with one attempt to send an event: it posts it, records what came of it, and
// takes over what that tells about the webhook.

// An attempt is one request to a webhook. Its goroutine owns it until it is back.
type attempt struct {
	sender  *webhookSender // owned by run
	lane    *lane          // where the event is from; nil: a retry, or a test
	webhook webhook        // as it was when the attempt began
	queue   int64
	seq     int64 // number of the event
	number  int   // which try it is, from 1
	test    bool
	suspect bool

	event    event
	at       time.Time // by the wall clock
	took     time.Duration
	status   int           // 0: no answer
	reason   string        // why there was none
	answer   string        // the beginning of the answer to a failure
	pause    time.Duration // what Retry-After asked for
	missing  bool          // there is no such event for it any more
	canceled bool          // it says nothing about the webhook: the service stops, or can't read the event

	id    string        // of the delivery
	delay time.Duration // after which it is tried again; 0: it is not
}

// succeeded reports whether the webhook has accepted the event.
func (a *attempt) succeeded() bool { return succeeded(a.status) }

// dueAt returns when an attempt that is recorded in a transaction is to be followed by the next: the
// first whole second after its delay.
func (a *attempt) dueAt(t *tx) stamp { return newStamp(t.exact.Add(a.delay + time.Second - 1)) }

// send carries out an attempt.
func (w *webhookWorker) send(calls context.Context, a *attempt) {
	var err error
	if a.event, err = w.store.eventBySeq(a.seq); err != nil {
		a.missing = errors.Is(err, errNotFound)
		a.canceled = !a.missing
		return
	}
	body, err := webhookBody(&a.event)
	if err != nil || !a.test && !slices.Contains(a.webhook.Types, string(a.event.Type)) {
		a.missing = true // its data are damaged, or the webhook does not want it any more
		return
	}
	began := w.steady()
	a.at = w.now()
	header := webhookHeaders(a.webhook.secrets(w.keys(), a.at), a.event.ID, a.at, body)
	header.Set("Content-Type", "application/json")
	answer, err := w.outbound.do(calls, outboundRequest{http.MethodPost, a.webhook.URL, header, body})
	a.took = w.steady().Sub(began)
	var failure *outboundError
	if errors.As(err, &failure) {
		a.reason = failure.reason
		a.canceled = failure.reason == outboundCanceled
	}
	if answer == nil || answer.status == 0 {
		return
	}
	a.status, a.reason = answer.status, ""
	if a.succeeded() {
		return
	}
	if pause, ok := retryAfter(answer.header, a.at); ok {
		a.pause = pause
	}
	if !answer.inner {
		a.answer = excerpt(answer.body, maxDeliveryAnswer)
	}
}

// excerpt returns the beginning of what somebody has answered as text: valid UTF-8 without control
// characters other than line breaks and tabs.
func excerpt(body []byte, most int) string {
	text := strings.ToValidUTF8(string(body[:min(len(body), most)]), "")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, text)
}

// recordAttempt writes what came of an attempt. failing holds the queues of webhooks that have failed
// earlier in the transaction.
func (w *webhookWorker) recordAttempt(t *tx, a *attempt, failing map[int64]bool) (err error) {
	a.delay = 0
	passed := a.succeeded() || a.missing
	switch {
	case a.test:
		err = recordTest(t, a)
	case passed && a.lane == nil:
		err = t.removeRetry(a.queue, a.seq)
	}
	if err != nil || a.missing {
		return err
	}
	if a.succeeded() {
		if failing[a.queue] || !a.sender.FailingSince.IsZero() {
			err = t.setFailing(a.queue, stamp{})
		}
	} else {
		failing[a.queue] = true
		err = w.recordFailure(t, a)
	}
	if err != nil {
		return err
	}
	d := &delivery{
		ID:           a.id,
		WebhookID:    a.webhook.ID,
		EventID:      a.event.ID,
		Type:         a.event.Type,
		Attempt:      a.number,
		At:           newStamp(a.at),
		Error:        nilIfEmpty(a.reason),
		Milliseconds: a.took.Milliseconds(),
		Answer:       nilIfEmpty(a.answer),
		eventSeq:     a.seq,
	}
	if a.status != 0 {
		d.Status = &a.status
	}
	if a.delay > 0 {
		d.NextAt = a.dueAt(t)
	}
	return t.addDelivery(d)
}

// recordTest has a test not sent again, and enables a webhook that was waiting for it to succeed.
func recordTest(t *tx, a *attempt) error {
	latest, err := t.endTest(a.webhook.ID, a.seq)
	if err != nil || !latest || !a.succeeded() {
		return err
	}
	hook, err := t.webhook(anyAccount, a.webhook.ID)
	if err != nil || hook.State != webhookPending {
		return err
	}
	if err := t.addEvent(webhookEvent(hook, eventWebhookEnabled, actorReceiver)); err != nil {
		return err
	}
	return t.setWebhookState(hook.ID, webhookEnabled, nil) // after the event, with the next of which its queue begins
}

// recordFailure has an event tried again, or disables its webhook.
func (w *webhookWorker) recordFailure(t *tx, a *attempt) error {
	hook, err := t.webhookOfQueue(a.queue)
	if err != nil {
		return notUnless(err, errNotFound) // it is not enabled any more
	}
	since := hook.FailingSince
	if since.IsZero() || since.After(t.now.Time) { // the clock was set back
		since = t.now
		if err := t.setFailing(a.queue, since); err != nil {
			return err
		}
	}
	reason := ""
	switch {
	case a.status == http.StatusGone:
		reason = disabledGone
	case t.now.Sub(since.Time) >= maxFailing && !w.doubted():
		reason = disabledFailing
	}
	switch {
	case reason != "":
		if err := t.addEvent(webhookEvent(hook, eventWebhookDisabled, actorReceiver, "reason", reason)); err != nil {
			return err
		}
		return t.setWebhookState(hook.ID, webhookDisabled, &reason)
	case a.test:
		return nil
	case a.number > len(retryDelays):
		return t.removeRetry(a.queue, a.seq)
	}
	a.delay = jittered(max(retryDelays[a.number-1], a.pause))
	return t.setRetry(a.queue, a.seq, a.number, a.dueAt(t))
}

// settle frees the place of an attempt, and takes over what it tells about its webhook.
func (w *webhookWorker) settle(a *attempt) {
	s, now := a.sender, w.steady()
	s.sending--
	w.count(a, -1)
	if a.lane == nil && !a.test {
		delete(s.retrying, a.seq)
	}
	if due := now.Add(a.delay); a.delay > 0 && (s.retryAt.IsZero() || due.Before(s.retryAt)) {
		s.retryAt = due
	}
	w.markBusy(s)
	switch {
	case a.canceled || a.missing:
		return
	case a.succeeded():
		w.succeeded.Add(1)
		s.cautious, s.slow, s.FailingSince = false, a.took > slowAnswer, stamp{}
		return
	}
	w.failed.Add(1)
	if s.FailingSince.IsZero() {
		s.FailingSince = newStamp(w.now())
	}
	switch a.status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
		s.cautious = true
	}
	if a.pause > 0 && (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable) {
		s.pausedUntil = now.Add(a.pause)
	}
}
