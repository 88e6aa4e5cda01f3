package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// What the worker does with attempts to send events: it posts them, records their outcomes, and adjusts
// how it sends to their webhooks.

// An attempt is one request to a webhook. Its goroutine owns it until it passes it back over results.
type attempt struct {
	sender  *webhookSender // owned by run
	lane    *lane          // where the event is from; nil: a retry, or a test
	webhook webhook        // as it was when the attempt began
	queue   int64
	seq     int64 // number of the event
	number  int   // which try it is, from 1
	test    bool

	holder  string    // the account whose place it takes
	began   time.Time // by the monotonic clock
	failing bool      // it counts among webhookWorker.failingNow
	slow    bool      // it has lasted for slowAfter, or began while another to the webhook was slow; owned by run

	event    event
	at       time.Time // by the wall clock
	took     time.Duration
	status   int           // 0: no answer
	reason   string        // why there was none
	answer   string        // the beginning of the answer if the attempt failed
	pause    time.Duration // what Retry-After asked for
	missing  bool          // there is nothing to send any more; see send
	canceled bool          // it says nothing about the webhook: the service stops, or can't read the event

	id    string        // of the delivery
	delay time.Duration // after which it is tried again; 0: it is not
}

// succeeded reports whether the webhook has accepted the event.
func (a *attempt) succeeded() bool { return succeeded(a.status) }

// unwanted reports whether an event is not to be tried again because the webhook no longer subscribes to
// its type. Events of a lane were selected by the types of the webhook, and a retry that is a first attempt
// was asked for explicitly, so these are sent.
func (a *attempt) unwanted() bool {
	return a.lane == nil && !a.test && a.number > 1 && !slices.Contains(a.webhook.Types, string(a.event.Type))
}

// dueAt returns when the next attempt is due after one that is recorded in t: after its delay, rounded up
// to a whole second.
func (a *attempt) dueAt(t *tx) stamp { return newStamp(t.exact.Add(a.delay + time.Second - 1)) }

// send carries out an attempt.
func (w *webhookWorker) send(calls context.Context, a *attempt) {
	var err error
	may := false
	if a.event, err = w.store.eventBySeq(a.seq); err == nil {
		may, err = w.store.mayGet(a.webhook.ID, a.event.Type)
	}
	if err != nil {
		a.missing = errors.Is(err, errNotFound)
		if a.canceled = !a.missing; a.canceled {
			w.log.Warn(faultWebhooksRead, "error", err)
		}
		return
	}
	body, err := webhookBody(&a.event)
	if err != nil || !may || a.unwanted() {
		a.missing = true // its data are damaged, or the webhook may not get it or does not want it any more
		return
	}
	began := w.monotonic()
	a.at = w.now()
	header := webhookHeaders(a.webhook.secrets(w.keys(), a.at), a.event.ID, a.at, body)
	header.Set("Content-Type", "application/json")
	answer, err := w.outbound.do(calls, outboundRequest{http.MethodPost, a.webhook.URL, header, body, 0})
	a.took = w.monotonic().Sub(began)
	if answer == nil {
		a.reason = reasonOf(err)
		a.canceled = a.reason == outboundCanceled
		return
	}
	a.status = answer.status // whatever became of the body
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

// excerpt returns the beginning of an answer's body as text: valid UTF-8 without control characters other
// than line breaks and tabs. C1 controls such as U+009B are dropped too, since they begin escape sequences.
func excerpt(body []byte, most int) string {
	text := strings.ToValidUTF8(string(body[:min(len(body), most)]), "")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

// A laneMove is how far a lane has got, to be recorded.
type laneMove struct {
	lane *lane
	to   int64
}

// record writes the outcomes of the attempts that are back, and the progress of their webhooks, in one
// transaction. It gathers them for recordDelay first, so that requests that write seldom have to wait for
// such a transaction. After a failure, nothing is sent until a later call has succeeded.
func (w *webhookWorker) record() {
	early := w.monotonic().Before(w.recordFrom) && (w.recordFailed || len(w.unrecorded) < maxUnrecorded)
	if len(w.unrecorded) == 0 && !w.saveAll || early {
		return
	}
	moves := w.moves()
	if len(w.unrecorded) > 0 || len(moves) > 0 {
		err := w.store.update(context.Background(), func(t *tx) error {
			t.dropsNothing()
			failing := map[int64]bool{}
			for _, a := range w.unrecorded {
				if err := w.recordAttempt(t, a, failing); err != nil {
					return err
				}
			}
			for _, m := range moves {
				t.saveLane(m.lane, m.to)
			}
			return nil
		})
		if w.recordFailed = err != nil; w.recordFailed {
			w.log.Warn(faultWebhookResult, "error", err)
			w.recordIn(recordRetry)
			return
		}
	}
	w.saveAll = false
	for _, m := range moves {
		m.lane.saved = m.to
	}
	now := w.monotonic()
	for _, a := range w.unrecorded {
		s := a.sender
		if a.queue != s.number {
			continue
		}
		if a.lane == nil {
			delete(s.retrying, a.seq)
		}
		if !a.missing {
			s.failingSaved = !a.succeeded()
		}
		if due := now.Add(a.delay); a.delay > 0 && (s.retryAt.IsZero() || due.Before(s.retryAt)) {
			s.retryAt = due
		}
		w.markBusy(s)
	}
	w.unrecorded = w.unrecorded[:0]
}

// recordIn makes run call record after delay. Until then record waits, unless many attempts are back.
func (w *webhookWorker) recordIn(delay time.Duration) {
	w.recordFrom = w.monotonic().Add(delay)
	w.recordTimer.Reset(delay)
}

// moves returns how far lanes have got beyond what is on disk: those of the webhooks whose attempts are back, or with
// saveAll of all.
func (w *webhookWorker) moves() (all []laneMove) {
	seen := map[*webhookSender]bool{}
	add := func(s *webhookSender) {
		if seen[s] || s.number <= 0 {
			return
		}
		seen[s] = true
		for _, l := range s.lanes() {
			if to := l.done(); to != l.saved {
				all = append(all, laneMove{l, to})
			}
		}
	}
	for _, a := range w.unrecorded {
		add(a.sender)
	}
	if w.saveAll {
		for _, s := range w.senders {
			add(s)
		}
	}
	return all
}

// recordAttempt writes the outcome of an attempt. failing holds the queues for which a failure was recorded
// earlier in the transaction.
func (w *webhookWorker) recordAttempt(t *tx, a *attempt, failing map[int64]bool) (err error) {
	a.delay = 0
	passed := a.succeeded() || a.missing
	switch {
	case a.test:
		err = recordTest(t, a)
	case passed && a.lane == nil:
		t.removeRetry(a.queue, a.seq)
	}
	if err != nil || a.missing {
		return err
	}
	if a.succeeded() {
		if failing[a.queue] || a.sender.failingSaved {
			t.setFailing(a.queue, stamp{})
		}
	} else {
		failing[a.queue] = true
		err = w.recordFailure(t, a)
	}
	if err != nil {
		return err
	}
	d := &delivery{ID: a.id, WebhookID: a.webhook.ID, EventID: a.event.ID, Type: a.event.Type, Attempt: a.number,
		At: newStamp(a.at), Error: nilIfEmpty(a.reason), Milliseconds: a.took.Milliseconds(),
		Answer: nilIfEmpty(a.answer), eventSeq: a.seq}
	if a.status != 0 {
		d.Status = &a.status
	}
	if a.delay > 0 {
		d.NextAt = a.dueAt(t)
	}
	t.addDelivery(d)
	return nil
}

// recordTest ends a test, so that it is not sent again, and enables a pending webhook that has accepted it.
func recordTest(t *tx, a *attempt) error {
	if latest := t.endTest(a.webhook.ID, a.seq); !latest || !a.succeeded() {
		return nil
	}
	hook, err := t.webhook(anyAccount, a.webhook.ID)
	if err != nil || hook.State != webhookPending {
		return err
	}
	t.addEvent(webhookEvent(hook, eventWebhookEnabled, actorReceiver))
	t.setWebhookState(hook.ID, webhookEnabled, nil)
	return nil // after addEvent: its queue begins after the last event
}

// recordFailure schedules the next attempt to send an event, gives the event up, or disables its webhook.
func (w *webhookWorker) recordFailure(t *tx, a *attempt) error {
	hook, err := t.webhookOfQueue(a.queue)
	if err != nil {
		return except(err, errNotFound) // it is not enabled any more
	}
	since := hook.FailingSince
	if since.IsZero() || since.After(t.now.Time) { // the clock was set back
		since = t.now
		t.setFailing(a.queue, since)
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
		t.addEvent(webhookEvent(hook, eventWebhookDisabled, actorReceiver, "reason", reason))
		t.setWebhookState(hook.ID, webhookDisabled, &reason)
		return nil
	case a.test:
		return nil
	case a.number > len(retryDelays):
		t.removeRetry(a.queue, a.seq)
		return nil
	}
	a.delay = jittered(max(retryDelays[a.number-1], a.pause))
	t.setRetry(a.queue, a.seq, a.number, a.dueAt(t))
	return nil
}

// release frees the place of an attempt, and adjusts how its webhook is sent to by the outcome.
func (w *webhookWorker) release(a *attempt) {
	s := a.sender
	s.inFlight--
	if a.slow {
		s.slow--
		if !a.failing {
			w.slow--
		}
	}
	i := slices.Index(w.flying, a)
	w.flying = slices.Delete(w.flying, i, i+1)
	w.count(a, -1)
	w.dropIfGone(s)
	w.markBusy(s)
	current := a.queue == s.number // else its queue was removed since, or is to be read again
	switch {
	case a.canceled || a.missing:
	case a.succeeded():
		w.succeeded.Add(1)
		if current {
			s.cautious, s.failing = false, false
		}
	default:
		w.failed.Add(1)
		if current {
			w.learnFromFailure(s, a)
		}
	}
}

// learnFromFailure adjusts how a webhook is sent to after a failure.
func (w *webhookWorker) learnFromFailure(s *webhookSender, a *attempt) {
	s.failing = true
	switch a.status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
		s.cautious = true
	}
	if a.pause > 0 && (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable) {
		s.pausedUntil = w.monotonic().Add(a.pause)
	}
}

// Webhooks are signed as Standard Webhooks 1.0.0 says, so that its public libraries verify them: an
// HMAC-SHA-256 of the message's id, its time and its body.

// webhookSecretPrefix begins the text form of a secret.
const webhookSecretPrefix = "whsec_"

// The headers of a webhook.
const (
	webhookIDHeader        = "Webhook-Id"
	webhookTimestampHeader = "Webhook-Timestamp" // Unix seconds
	webhookSignatureHeader = "Webhook-Signature"
)

const (
	webhookVersion   = "v1," // of a signature: with a shared secret
	webhookTolerance = 5 * time.Minute
	minWebhookSecret = 24 // bytes
	maxWebhookSecret = 64
)

// webhookSecret derives the secret of a webhook: 32 bytes, from the secret of the key file, the
// webhook's id and the number of the rotation. Nothing of it is stored.
func webhookSecret(keys *keyring, webhookID string, number int) []byte {
	return keys.derive("webhook", fmt.Appendf(nil, "%s %d", webhookID, number))
}

// formatWebhookSecret returns the text form of a secret: whsec_ and standard base64.
func formatWebhookSecret(secret []byte) string {
	return webhookSecretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// parseWebhookSecret parses the text form of a secret, with or without its prefix. A secret has 24 to
// 64 bytes. The error does not contain the text.
func parseWebhookSecret(text string) ([]byte, error) {
	encoded := strings.TrimPrefix(text, webhookSecretPrefix)
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") || // which the decoder skips
		len(secret) < minWebhookSecret || len(secret) > maxWebhookSecret {
		return nil, fmt.Errorf("a webhook's secret is %s and %d to %d bytes in base64",
			webhookSecretPrefix, minWebhookSecret, maxWebhookSecret)
	}
	return secret, nil
}

// signWebhook returns the signature of a message that is sent at a time, with its version: "v1,…".
func signWebhook(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return webhookVersion + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// webhookHeaders returns the three headers of a message that is sent at a time. It is signed with
// each of the secrets, of which the current one comes first, so that a receiver may know either.
func webhookHeaders(secrets [][]byte, id string, at time.Time, body []byte) http.Header {
	signatures := make([]string, 0, len(secrets))
	for _, secret := range secrets {
		signatures = append(signatures, signWebhook(secret, id, at, body))
	}
	return http.Header{
		webhookIDHeader:        {id},
		webhookTimestampHeader: {strconv.FormatInt(at.Unix(), 10)},
		webhookSignatureHeader: {strings.Join(signatures, " ")},
	}
}

// The errors of verifyWebhook.
var (
	errWebhookHeaders   = errors.New("webhook-id, webhook-timestamp or webhook-signature is missing")
	errWebhookTimestamp = errors.New("webhook-timestamp is not a time in Unix seconds")
	errWebhookTooOld    = errors.New("webhook-timestamp is more than five minutes ago")
	errWebhookTooNew    = errors.New("webhook-timestamp is more than five minutes in the future")
	errWebhookSignature = errors.New("no signature is of this id, time, body and secret")
)

// verifyWebhook checks what a receiver got, as the public libraries do: the time must be within five
// minutes of now, and one of the v1 signatures must match.
func verifyWebhook(secret []byte, h http.Header, body []byte, now time.Time) error {
	id, sent, signatures := h.Get(webhookIDHeader), h.Get(webhookTimestampHeader), h.Get(webhookSignatureHeader)
	if id == "" || sent == "" || signatures == "" {
		return errWebhookHeaders
	}
	seconds, err := strconv.ParseInt(sent, 10, 64)
	if err != nil || sent != strconv.FormatInt(seconds, 10) { // the digits themselves are signed
		return errWebhookTimestamp
	}
	const tolerance = int64(webhookTolerance / time.Second)
	switch at := now.Unix(); {
	case seconds < at-tolerance:
		return errWebhookTooOld
	case seconds > at+tolerance:
		return errWebhookTooNew
	}
	want := []byte(signWebhook(secret, id, time.Unix(seconds, 0), body))
	for signature := range strings.SplitSeq(signatures, " ") {
		if hmac.Equal([]byte(signature), want) {
			return nil
		}
	}
	return errWebhookSignature
}
