CREATE TABLE clock (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  seen_at     TEXT NOT NULL CHECK (seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seen_at))
) STRICT;

CREATE TABLE books_renewals (
  connection_id TEXT PRIMARY KEY REFERENCES books_connections (id),
  lost_at       TEXT NOT NULL CHECK (lost_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lost_at)),
  due_at        TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX books_renewals_due ON books_renewals (due_at) WHERE due_at IS NOT NULL;

DROP TRIGGER refunds_changed;
CREATE TRIGGER refunds_changed AFTER UPDATE OF state, vat, tip ON refunds WHEN (new.state = 'succeeded') <> (old.state = 'succeeded') OR new.state = 'succeeded' AND (new.vat <> old.vat OR new.tip <> old.tip) BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;
