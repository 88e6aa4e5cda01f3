CREATE TABLE clock (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  seen_at     TEXT NOT NULL CHECK (seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seen_at, '+0 days'))
) STRICT;

DROP TRIGGER refunds_changed;
CREATE TRIGGER refunds_changed AFTER UPDATE OF state, vat, tip ON refunds WHEN (new.state = 'succeeded') <> (old.state = 'succeeded') OR new.state = 'succeeded' AND (new.vat <> old.vat OR new.tip <> old.tip) BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;
