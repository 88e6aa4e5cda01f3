package main

import (
	"cmp"
	"errors"
)

// webhookColumns are what webhook.dest scans. Of the types only texts are read, since somebody may have
// written others with the sqlite3 shell.
const webhookColumns = `w.id, w.account_id, w.url,
	CASE WHEN json_valid(w.types) THEN
	(SELECT json_group_array(value) FROM json_each(w.types) WHERE type = 'text') ELSE w.types END,
	w.description, w.state, w.reason, w.failing_since, w.rotated_at,
	EXISTS (SELECT 1 FROM webhook_queues q WHERE q.webhook_id = w.id AND q.replay_seq IS NOT NULL),
	w.made_by, w.created_at, w.updated_at, w.secret_number, coalesce(w.test_seq, 0),
	(SELECT x.app_id FROM app_webhooks x WHERE x.webhook_id = w.id)`

func (w *webhook) dest() []any {
	return []any{&w.ID, &w.AccountID, &w.URL, &w.Types, &w.Description, &w.State, &w.Reason, &w.FailingSince,
		&w.RotatedAt, &w.Replaying, &w.MadeBy, &w.CreatedAt, &w.UpdatedAt, &w.SecretNumber, &w.TestSeq, &w.AppID}
}

// ofApp returns a condition that keeps only the webhooks that an owner may see and change: for an application
// those that it has made, else all.
func (o owner) ofApp() (condition string, args []any) {
	if o.app == "" {
		return "", nil
	}
	return ` AND EXISTS (SELECT 1 FROM app_webhooks x WHERE x.webhook_id = w.id AND x.app_id = ?)`, []any{o.app}
}

// newWebhook allocates a webhook for one row of a list, and returns its scan destinations.
func newWebhook(w **webhook) []any {
	*w = &webhook{}
	return (*w).dest()
}

// webhook returns a webhook of an owner, or errWebhook.
func (q *queries) webhook(o owner, id string) (*webhook, error) {
	w := &webhook{}
	query, args := o.narrow(`SELECT `+webhookColumns+` FROM webhooks w WHERE w.id = ?`, `w.account_id`, id)
	made, by := o.ofApp()
	err := q.one(query+made, append(args, by...), w.dest()...)
	if errors.Is(err, errNotFound) {
		err = errWebhook
	}
	return w, err
}

// webhooksChanged is what transactions that change webhooks invalidate, so that the worker reads
// them again.
const webhooksChanged = "webhooks"

// setWebhookState changes the state of a webhook, and why it is disabled. A trigger gives it a queue,
// or removes the one that it has.
func (t *tx) setWebhookState(id, state string, reason *string) error {
	t.invalidate(webhooksChanged)
	n, err := t.exec(`UPDATE webhooks SET state = ?, reason = ?, failing_since = NULL, updated_at = ? WHERE id = ?`,
		state, reason, t.now, id)
	return requireRow(n, err)
}

// webhooks returns a page of the webhooks of an owner, newest first, starting after the id before (""
// for the newest).
func (q *queries) webhooks(o owner, before string, limit int) (p listPage[*webhook], err error) {
	list := listQuery{columns: `SELECT ` + webhookColumns + ` FROM webhooks w`, table: `webhooks w`, key: `w.id`}
	list.scope(o.narrow(``, `w.account_id`))
	if made, by := o.ofApp(); made != "" {
		list.filter(made, by...)
	}
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, newWebhook,
		func(w *webhook) string { return w.ID })
	return p, err
}

// countWebhooks returns how many webhooks an account has.
func (q *queries) countWebhooks(accountID string) (n int, err error) {
	err = q.one(`SELECT count(*) FROM webhooks WHERE account_id = ?`, []any{accountID}, &n)
	return n, err
}

// countAppWebhooks returns how many webhooks of an account an application has made.
func (q *queries) countAppWebhooks(appID, accountID string) (n int, err error) {
	err = q.one(`SELECT count(*) FROM webhooks w JOIN app_webhooks x ON x.webhook_id = w.id
		WHERE w.account_id = ? AND x.app_id = ?`, []any{accountID, appID}, &n)
	return n, err
}

// setAppWebhook notes that an application has made a webhook for itself, or changed it, under a grant; nil: by
// client credentials. The webhook ends with that grant.
func (t *tx) setAppWebhook(id, appID string, grantID *string) error {
	_, err := t.exec(`INSERT INTO app_webhooks (webhook_id, app_id, grant_id) VALUES (?, ?, ?)
		ON CONFLICT (webhook_id) DO UPDATE SET grant_id = excluded.grant_id`, id, appID, grantID)
	return err
}

// addWebhook inserts a webhook. It must not be enabled yet, so that a trigger gives it a queue when it is.
func (t *tx) addWebhook(w *webhook) error {
	_, err := t.exec(`INSERT INTO webhooks
		(id, account_id, url, types, description, state, secret_number, made_by, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		w.ID, w.AccountID, w.URL, w.Types, w.Description, w.State, w.SecretNumber,
		w.MadeBy, w.CreatedAt, w.UpdatedAt)
	return err
}

// saveWebhook writes what can change of a webhook, or returns errNotFound. A trigger gives it a queue
// when it is enabled, and removes the one that it has when it is not any more.
func (t *tx) saveWebhook(w *webhook) error {
	n, err := t.exec(`UPDATE webhooks SET url = ?, types = ?, description = ?, state = ?, reason = ?,
		failing_since = ?, secret_number = ?, rotated_at = ?, test_seq = nullif(?, 0), updated_at = ? WHERE id = ?`,
		w.URL, w.Types, w.Description, w.State, w.Reason,
		w.FailingSince, w.SecretNumber, w.RotatedAt, w.TestSeq, w.UpdatedAt, w.ID)
	return requireRow(n, err)
}

// deleteWebhook removes a webhook, or returns errNotFound. A trigger removes its queue; what is left of
// its deliveries is swept later.
func (t *tx) deleteWebhook(id string) error {
	n, err := t.exec(`DELETE FROM webhooks WHERE id = ?`, id)
	return requireRow(n, err)
}

// startReplay has the events since a time sent again that an enabled webhook was sent, or would have been
// sent if it had been enabled. A replay that runs already gets the earlier beginning and the later end of
// both. Where there are no such events it changes nothing.
func (t *tx) startReplay(id string, since stamp) error {
	first, err := t.firstSince(`events`, `at`, since)
	if err != nil {
		return err
	}
	_, err = t.exec(`UPDATE webhook_queues SET replay_seq = min(coalesce(replay_seq, ?1), ?1),
		replay_end = max(coalesce(replay_end, 0), sent_seq)
		WHERE webhook_id = ?2 AND (replay_seq IS NOT NULL OR sent_seq > ?1)`, max(first-1, 0), id)
	return err
}

// retryNow has an event sent at once to an enabled webhook. How often it was tried stays, if it waits to
// be tried again. Errors: errWebhookDisabled.
func (t *tx) retryNow(id string, eventSeq int64) error {
	n, err := t.exec(`INSERT INTO webhook_retries (queue_id, event_seq, attempts, due_at)
		SELECT q.id, ?, 0, ? FROM webhook_queues q WHERE q.webhook_id = ?
		ON CONFLICT (queue_id, event_seq) DO UPDATE SET due_at = excluded.due_at`, eventSeq, t.now, id)
	if err == nil && n == 0 { // an operator has edited the rows
		err = errWebhookDisabled
	}
	return err
}

// deliveryColumns are what delivery.dest scans.
const deliveryColumns = `d.id, d.webhook_id, d.event_id, d.type, d.attempt, d.at,
	iif(d.status BETWEEN 200 AND 299, 'succeeded', 'failed'),
	d.status, d.error, d.milliseconds, d.answer, d.next_at, d.event_seq`

func (d *delivery) dest() []any {
	return []any{&d.ID, &d.WebhookID, &d.EventID, &d.Type, &d.Attempt, &d.At, &d.Outcome,
		&d.Status, &d.Error, &d.Milliseconds, &d.Answer, &d.NextAt, &d.eventSeq}
}

// delivery returns a delivery of a webhook, or errDelivery.
func (q *queries) delivery(webhookID, id string) (d delivery, err error) {
	err = q.one(`SELECT `+deliveryColumns+` FROM deliveries d WHERE d.webhook_id = ? AND d.id = ?`,
		[]any{webhookID, id}, d.dest()...)
	if errors.Is(err, errNotFound) {
		err = errDelivery
	}
	return d, err
}

// A deliveryFilter chooses deliveries of a webhook; what else is empty narrows nothing.
type deliveryFilter struct {
	webhookID string
	eventID   string
	outcome   string // outcomeSucceeded or outcomeFailed
}

// deliveries returns a page of the deliveries of a webhook, newest first, starting after the id before
// ("" for the newest).
func (q *queries) deliveries(f deliveryFilter, before string, limit int) (p listPage[delivery], err error) {
	const table = `deliveries d`
	list := listQuery{columns: `SELECT ` + deliveryColumns + ` FROM ` + table, table: table, key: `d.id`}
	list.scope(` AND d.webhook_id = ?`, []any{f.webhookID})
	if f.eventID != "" {
		list.filter(` AND d.event_id = ?`, f.eventID)
	}
	if f.outcome != "" {
		list.filter(` AND coalesce(d.status BETWEEN 200 AND 299, 0) = ?`, f.outcome == outcomeSucceeded)
	}
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, (*delivery).dest,
		func(d delivery) string { return d.ID })
	return p, err
}
