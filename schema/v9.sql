CREATE TABLE orders (
  id             TEXT PRIMARY KEY CHECK (id LIKE 'ord\_%' ESCAPE '\'),
  account_id     TEXT NOT NULL REFERENCES accounts (id),
  reference      TEXT CHECK (length(reference) <= 200),
  state          TEXT NOT NULL CHECK (state IN ('open', 'authorized', 'accepted', 'paid', 'part_refunded', 'refunded', 'cancelled', 'expired')),
  dispute        TEXT CHECK (dispute IN ('open', 'won', 'lost')),
  currency       TEXT NOT NULL CHECK (length(currency) = 3),
  lines          TEXT NOT NULL CHECK (json_type(lines) = 'array'),
  discount       INTEGER NOT NULL DEFAULT 0 CHECK (discount >= 0),
  delivery       INTEGER NOT NULL DEFAULT 0 CHECK (delivery >= 0),
  delivery_rate  INTEGER NOT NULL DEFAULT 0 CHECK (delivery_rate BETWEEN 0 AND 10000),
  delivery_gross INTEGER NOT NULL DEFAULT 0 CHECK (delivery_gross >= 0),
  tip            INTEGER NOT NULL DEFAULT 0 CHECK (tip >= 0),
  ordered_total  INTEGER NOT NULL CHECK (ordered_total >= 0),
  total          INTEGER NOT NULL CHECK (total >= 0),
  vat            TEXT NOT NULL CHECK (json_type(vat) = 'array'),
  refunded       INTEGER NOT NULL DEFAULT 0 CHECK (refunded >= 0),
  method         TEXT CHECK (method IN ('card', 'mobile', 'twint', 'cash', 'terminal', 'voucher', 'other', 'none')),
  payment_id     TEXT,
  attempts       INTEGER NOT NULL DEFAULT 0,
  capture        INTEGER NOT NULL DEFAULT 0 CHECK (capture IN (0, 1)),
  closing        TEXT CHECK (closing IN ('expired', 'paid', 'method')),
  outside_method TEXT,
  outside_at     TEXT CHECK (outside_at IS strftime('%Y-%m-%dT%H:%M:%SZ', outside_at, '+0 days')),
  return_url     TEXT NOT NULL,
  page_key       BLOB NOT NULL CHECK (length(page_key) = 32),
  expires_at     TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')),
  accept_by      TEXT CHECK (accept_by IS strftime('%Y-%m-%dT%H:%M:%SZ', accept_by, '+0 days')),
  created_at     TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  authorized_at  TEXT CHECK (authorized_at IS strftime('%Y-%m-%dT%H:%M:%SZ', authorized_at, '+0 days')),
  accepted_at    TEXT CHECK (accepted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', accepted_at, '+0 days')),
  paid_at        TEXT CHECK (paid_at IS strftime('%Y-%m-%dT%H:%M:%SZ', paid_at, '+0 days')),
  ended_at       TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')),
  pay            TEXT NOT NULL DEFAULT 'online' CHECK (pay IN ('online', 'later')),
  wanted_at      TEXT CHECK (wanted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', wanted_at, '+0 days')),
  reject_reason  TEXT CHECK (reject_reason IN ('sold_out', 'closed', 'too_busy', 'too_far', 'address', 'other')),
  reject_text    TEXT CHECK (length(reject_text) <= 200),
  paid_from      TEXT CHECK (paid_from IN ('open', 'accepted', 'expired')),
  seller         TEXT CHECK (json_type(seller) = 'object')
) STRICT, WITHOUT ROWID;
CREATE TABLE order_customers (
  seq      INTEGER PRIMARY KEY,
  order_id TEXT NOT NULL UNIQUE REFERENCES orders (id),
  name     TEXT,
  phone    TEXT,
  note     TEXT,
  erase_at TEXT CHECK (erase_at IS strftime('%Y-%m-%dT%H:%M:%SZ', erase_at, '+0 days')),
  fulfilment TEXT CHECK (json_type(fulfilment) = 'object'),
  language TEXT CHECK (length(language) <= 16)
) STRICT;
CREATE TABLE payments (
  id             TEXT PRIMARY KEY CHECK (id LIKE 'pay\_%' ESCAPE '\'),
  order_id       TEXT NOT NULL REFERENCES orders (id),
  account_id     TEXT NOT NULL REFERENCES accounts (id),
  connection_id  TEXT NOT NULL REFERENCES payment_connections (id),
  provider       TEXT NOT NULL CHECK (provider IN ('stripe', 'vipps')),
  method         TEXT NOT NULL CHECK (method IN ('card', 'mobile', 'twint')),
  state          TEXT NOT NULL CHECK (state IN ('created', 'pending', 'authorized', 'captured', 'part_refunded', 'refunded', 'failed', 'cancelled', 'expired', 'review')),
  amount         INTEGER NOT NULL CHECK (amount > 0),
  currency       TEXT NOT NULL,
  authorized     INTEGER NOT NULL DEFAULT 0,
  captured       INTEGER NOT NULL DEFAULT 0,
  refunded       INTEGER NOT NULL DEFAULT 0,
  session_id     TEXT,
  intent_id      TEXT,
  url            TEXT,
  reason         TEXT,
  capture_before TEXT CHECK (capture_before IS strftime('%Y-%m-%dT%H:%M:%SZ', capture_before, '+0 days')),
  warned         INTEGER NOT NULL DEFAULT 0 CHECK (warned IN (0, 1)),
  due_at         TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at, '+0 days')),
  polls          INTEGER NOT NULL DEFAULT 0,
  revision       INTEGER NOT NULL DEFAULT 1,
  created_at     TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  authorized_at  TEXT CHECK (authorized_at IS strftime('%Y-%m-%dT%H:%M:%SZ', authorized_at, '+0 days')),
  captured_at    TEXT CHECK (captured_at IS strftime('%Y-%m-%dT%H:%M:%SZ', captured_at, '+0 days')),
  checked_at     TEXT CHECK (checked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', checked_at, '+0 days')),
  ended_at       TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days'))
) STRICT, WITHOUT ROWID;
CREATE TABLE payment_connections (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'con\_%' ESCAPE '\'),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  provider    TEXT NOT NULL CHECK (provider IN ('stripe', 'vipps')),
  live        INTEGER NOT NULL CHECK (live IN (0, 1)),
  name        TEXT NOT NULL DEFAULT '',
  secrets     BLOB NOT NULL,
  webhook_id  TEXT,
  webhook_url TEXT,
  failing_since TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since, '+0 days')),
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  removed_at  TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at, '+0 days')),
  methods     TEXT NOT NULL DEFAULT '[]' CHECK (json_type(methods) = 'array')
) STRICT, WITHOUT ROWID;
CREATE TABLE refunds (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'ref\_%' ESCAPE '\'),
  order_id    TEXT NOT NULL REFERENCES orders (id),
  payment_id  TEXT REFERENCES payments (id),
  amount      INTEGER NOT NULL CHECK (amount > 0),
  lines       TEXT CHECK (json_type(lines) = 'array'),
  vat         TEXT NOT NULL CHECK (json_type(vat) = 'array'),
  tip         INTEGER NOT NULL DEFAULT 0 CHECK (tip >= 0),
  reason      TEXT CHECK (length(reason) <= 200),
  source      TEXT NOT NULL DEFAULT 'widgetd' CHECK (source IN ('widgetd', 'provider')),
  state       TEXT NOT NULL CHECK (state IN ('pending', 'succeeded', 'failed')),
  failure     TEXT,
  provider_id TEXT,
  made_by     TEXT NOT NULL,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  delivery    INTEGER CHECK (delivery >= 0),
  released    INTEGER NOT NULL DEFAULT 0 CHECK (released IN (0, 1))
) STRICT, WITHOUT ROWID;
CREATE TABLE disputes (
  payment_id  TEXT NOT NULL REFERENCES payments (id),
  id          TEXT NOT NULL,
  order_id    TEXT NOT NULL REFERENCES orders (id),
  amount      INTEGER NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('inquiry', 'open', 'won', 'lost')),
  reason      TEXT,
  opened_at   TEXT NOT NULL CHECK (opened_at IS strftime('%Y-%m-%dT%H:%M:%SZ', opened_at, '+0 days')),
  closed_at   TEXT CHECK (closed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', closed_at, '+0 days')),
  taken       INTEGER NOT NULL DEFAULT 0,
  evidence_by TEXT CHECK (evidence_by IS strftime('%Y-%m-%dT%H:%M:%SZ', evidence_by, '+0 days')),
  PRIMARY KEY (payment_id, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE revenue_facts (
  seq         INTEGER PRIMARY KEY,
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  order_id    TEXT NOT NULL REFERENCES orders (id),
  source      TEXT NOT NULL,
  currency    TEXT NOT NULL CHECK (length(currency) = 3),
  date        TEXT NOT NULL CHECK (date IS date(date, '+0 days')),
  own_date    TEXT NOT NULL CHECK (own_date IS date(own_date, '+0 days')),
  at          TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at, '+0 days')),
  method      TEXT NOT NULL CHECK (method IN ('card', 'mobile', 'twint', 'cash', 'terminal', 'voucher', 'other')),
  test        INTEGER NOT NULL CHECK (test IN (0, 1)),
  figures     TEXT NOT NULL CHECK (json_type(figures) = 'array'),
  recorded_at TEXT NOT NULL CHECK (recorded_at IS strftime('%Y-%m-%dT%H:%M:%SZ', recorded_at, '+0 days'))
) STRICT;
CREATE INDEX refunds_account ON refunds (account_id, id);
CREATE TRIGGER orders_payment_changed AFTER UPDATE OF state, paid_at ON orders WHEN new.paid_at IS NOT old.paid_at OR (new.state IN ('paid', 'part_refunded', 'refunded')) <> (old.state IN ('paid', 'part_refunded', 'refunded')) BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.id);
END;
CREATE TRIGGER disputes_changed AFTER UPDATE OF state, amount, taken ON disputes BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;
CREATE VIEW v_orders AS
SELECT o.created_at, a.name AS account, o.reference, o.state, o.dispute,
       printf('%d.%02d', o.total / 100, o.total % 100) AS total, o.currency,
       printf('%d.%02d', o.refunded / 100, o.refunded % 100) AS refunded, o.method,
       p.provider, p.state AS payment, p.reason, o.attempts,
       o.pay, o.wanted_at, o.reject_reason,
       o.authorized_at, o.accepted_at, o.paid_at, o.expires_at, o.accept_by, o.closing,
       o.id, o.payment_id, o.account_id
FROM orders o JOIN accounts a ON a.id = o.account_id LEFT JOIN payments p ON p.id = o.payment_id
ORDER BY o.id DESC;
