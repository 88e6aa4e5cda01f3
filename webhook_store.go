package main

import (
	"cmp"
	"database/sql"
	"errors"
	"strings"
	"time"
)

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
