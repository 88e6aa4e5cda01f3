package main

import "errors"

const webhookColumns = `w.id, w.account_id, w.url, w.types, w.description, w.state, w.reason, w.failing_since,
	w.rotated_at, EXISTS (SELECT 1 FROM webhook_queues q WHERE q.webhook_id = w.id AND q.replay_seq IS NOT NULL),
	w.made_by, w.created_at, w.updated_at, w.secret_number, coalesce(w.test_seq, 0)`

func (w *webhook) dest() []any {
	return []any{&w.ID, &w.AccountID, &w.URL, &w.Types, &w.Description, &w.State, &w.Reason, &w.FailingSince,
		&w.RotatedAt, &w.Replaying, &w.MadeBy, &w.CreatedAt, &w.UpdatedAt, &w.SecretNumber, &w.TestSeq}
}

// webhook returns a webhook of an owner, or errWebhook.
func (q *queries) webhook(o owner, id string) (*webhook, error) {
	w := &webhook{}
	query, args := o.narrow(`SELECT `+webhookColumns+` FROM webhooks w WHERE w.id = ?`, `w.account_id`, id)
	err := q.one(query, args, w.dest()...)
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
