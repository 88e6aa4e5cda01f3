CREATE TABLE clock (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  seen_at     TEXT NOT NULL CHECK (seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seen_at, '+0 days'))
) STRICT;

DROP TRIGGER accounts_reopened;
CREATE TRIGGER accounts_reopened AFTER UPDATE OF closed_at ON accounts WHEN new.closed_at IS NULL AND old.closed_at IS NOT NULL BEGIN
  DELETE FROM webhook_queues WHERE webhook_id IN (SELECT id FROM webhooks WHERE account_id = new.id
    UNION ALL SELECT x.webhook_id FROM apps p JOIN app_webhooks x ON x.app_id = p.id WHERE p.account_id = new.id);
  INSERT INTO webhook_queues (webhook_id, sent_seq) SELECT id, (SELECT coalesce(max(seq), 0) FROM events)
    FROM webhooks WHERE state = 'enabled' AND id IN (SELECT id FROM webhooks WHERE account_id = new.id
    UNION ALL SELECT x.webhook_id FROM apps p JOIN app_webhooks x ON x.app_id = p.id WHERE p.account_id = new.id);
END;
