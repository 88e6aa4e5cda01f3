-- What version 3 adds to version 2: the tables and views of webhooks, and the pages of widgets.

CREATE TABLE webhooks (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'whe\_%' ESCAPE '\'),
  account_id    TEXT NOT NULL REFERENCES accounts (id),
  url           TEXT NOT NULL CHECK (url LIKE 'http%://%' AND length(url) <= 2048),
  types         TEXT NOT NULL CHECK (json_type(types) = 'array'),
  description   TEXT CHECK (length(description) <= 200),
  state         TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'enabled', 'disabled')),
  reason        TEXT,
  secret_number INTEGER NOT NULL DEFAULT 1 CHECK (secret_number >= 1),
  rotated_at    TEXT CHECK (rotated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', rotated_at)),
  failing_since TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since)),
  test_seq      INTEGER,
  made_by       TEXT NOT NULL,
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  updated_at    TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_account ON webhooks (account_id, id);

CREATE TABLE webhook_queues (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  webhook_id TEXT NOT NULL UNIQUE REFERENCES webhooks (id),
  sent_seq   INTEGER NOT NULL,
  replay_seq INTEGER,
  replay_end INTEGER
) STRICT;

CREATE TRIGGER webhooks_enabled AFTER UPDATE OF state ON webhooks WHEN new.state = 'enabled' AND old.state <> 'enabled' BEGIN
  INSERT INTO webhook_queues (webhook_id, sent_seq) SELECT new.id, coalesce(max(seq), 0) FROM events;
END;
CREATE TRIGGER webhooks_halted AFTER UPDATE OF state ON webhooks WHEN new.state <> 'enabled' BEGIN
  DELETE FROM webhook_queues WHERE webhook_id = new.id;
END;
CREATE TRIGGER webhooks_removed BEFORE DELETE ON webhooks BEGIN
  DELETE FROM webhook_queues WHERE webhook_id = old.id;
END;
CREATE TRIGGER accounts_reopened AFTER UPDATE OF closed_at ON accounts WHEN new.closed_at IS NULL AND old.closed_at IS NOT NULL BEGIN
  DELETE FROM webhook_queues WHERE webhook_id IN (SELECT id FROM webhooks WHERE account_id = new.id);
  INSERT INTO webhook_queues (webhook_id, sent_seq) SELECT id, (SELECT coalesce(max(seq), 0) FROM events)
    FROM webhooks WHERE account_id = new.id AND state = 'enabled';
END;

CREATE TABLE webhook_retries (
  queue_id   INTEGER NOT NULL,
  event_seq  INTEGER NOT NULL,
  attempts   INTEGER NOT NULL CHECK (attempts >= 0),
  due_at     TEXT NOT NULL CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at)),
  PRIMARY KEY (queue_id, event_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_retries_due ON webhook_retries (queue_id, due_at);

CREATE TABLE deliveries (
  webhook_id   TEXT NOT NULL,
  id           TEXT NOT NULL CHECK (id LIKE 'whd\_%' ESCAPE '\'),
  event_seq    INTEGER NOT NULL,
  event_id     TEXT NOT NULL,
  type         TEXT NOT NULL,
  attempt      INTEGER NOT NULL CHECK (attempt >= 1),
  at           TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at)),
  milliseconds INTEGER NOT NULL,
  status       INTEGER,
  error        TEXT,
  answer       TEXT,
  next_at      TEXT CHECK (next_at IS strftime('%Y-%m-%dT%H:%M:%SZ', next_at)),
  PRIMARY KEY (webhook_id, id)
) STRICT, WITHOUT ROWID;

CREATE VIEW v_webhooks AS
SELECT w.id, a.name AS account, w.url, w.state, w.reason, w.failing_since, w.types, w.description,
       (SELECT max(seq) FROM events) - q.sent_seq AS events_behind,
       (SELECT count(*) FROM webhook_retries r WHERE r.queue_id = q.id) AS waiting,
       w.made_by, w.rotated_at, w.created_at, w.account_id
FROM webhooks w JOIN accounts a ON a.id = w.account_id LEFT JOIN webhook_queues q ON q.webhook_id = w.id;

CREATE VIEW v_deliveries AS
SELECT d.at, a.name AS account, w.url, d.type, d.attempt,
       CASE WHEN d.status BETWEEN 200 AND 299 THEN 'succeeded' ELSE 'failed' END AS outcome,
       d.status, d.error, d.milliseconds, d.next_at, d.answer, d.event_id, d.id, d.webhook_id
FROM deliveries d LEFT JOIN webhooks w ON w.id = d.webhook_id LEFT JOIN accounts a ON a.id = w.account_id
ORDER BY d.id DESC;

CREATE TABLE page_counts (
  widget_id  TEXT NOT NULL REFERENCES widgets (id),
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),
  page       TEXT NOT NULL CHECK (length(page) <= 200),
  views      INTEGER NOT NULL DEFAULT 0,
  clicks     INTEGER NOT NULL DEFAULT 0,
  orders     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (widget_id, day, page)
) STRICT, WITHOUT ROWID;
