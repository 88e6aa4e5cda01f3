CREATE TABLE clock (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  seen_at     TEXT NOT NULL CHECK (seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seen_at, '+0 days'))
) STRICT;

CREATE TABLE books_renewals (
  connection_id TEXT PRIMARY KEY REFERENCES books_connections (id),
  lost_at       TEXT NOT NULL CHECK (lost_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lost_at, '+0 days')),
  due_at        TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at, '+0 days'))
) STRICT, WITHOUT ROWID;
CREATE INDEX books_renewals_due ON books_renewals (due_at) WHERE due_at IS NOT NULL;

DROP TRIGGER refunds_changed;
CREATE TRIGGER refunds_changed AFTER UPDATE OF state, vat, tip ON refunds WHEN (new.state = 'succeeded') <> (old.state = 'succeeded') OR new.state = 'succeeded' AND (new.vat <> old.vat OR new.tip <> old.tip) BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;

DROP TRIGGER accounts_reopened;
CREATE TRIGGER accounts_reopened AFTER UPDATE OF closed_at ON accounts WHEN new.closed_at IS NULL AND old.closed_at IS NOT NULL BEGIN
  DELETE FROM webhook_queues WHERE webhook_id IN (SELECT id FROM webhooks WHERE account_id = new.id
    UNION ALL SELECT x.webhook_id FROM apps p JOIN app_webhooks x ON x.app_id = p.id WHERE p.account_id = new.id);
  INSERT INTO webhook_queues (webhook_id, sent_seq) SELECT id, (SELECT coalesce(max(seq), 0) FROM events)
    FROM webhooks WHERE state = 'enabled' AND id IN (SELECT id FROM webhooks WHERE account_id = new.id
    UNION ALL SELECT x.webhook_id FROM apps p JOIN app_webhooks x ON x.app_id = p.id WHERE p.account_id = new.id);
END;
