-- What version 4 adds to version 3: the tables and views of orders and payments.

CREATE TABLE account_settings (
  account_id    TEXT PRIMARY KEY REFERENCES accounts (id),
  zone          TEXT NOT NULL DEFAULT 'UTC',
  cut_off       TEXT NOT NULL DEFAULT '04:00' CHECK (cut_off GLOB '[01][0-9]:[0-5][0-9]' OR cut_off GLOB '2[0-3]:[0-5][0-9]'),
  legal_name    TEXT,
  address       TEXT,
  vat_number    TEXT,
  capture_on    TEXT NOT NULL DEFAULT 'accept' CHECK (capture_on IN ('accept', 'handover')),
  accept_within INTEGER NOT NULL DEFAULT 30 CHECK (accept_within BETWEEN 1 AND 10080)
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
  failing_since TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since)),
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  removed_at  TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX payment_connections_used ON payment_connections (account_id, provider) WHERE removed_at IS NULL;

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
  method         TEXT CHECK (method IN ('card', 'mobile', 'cash', 'terminal', 'voucher', 'other', 'none')),
  payment_id     TEXT,
  attempts       INTEGER NOT NULL DEFAULT 0,
  capture        INTEGER NOT NULL DEFAULT 0 CHECK (capture IN (0, 1)),
  closing        TEXT CHECK (closing IN ('expired', 'paid', 'method')),
  outside_method TEXT,
  outside_at     TEXT CHECK (outside_at IS strftime('%Y-%m-%dT%H:%M:%SZ', outside_at)),
  return_url     TEXT NOT NULL,
  page_key       BLOB NOT NULL CHECK (length(page_key) = 32),
  expires_at     TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at)),
  accept_by      TEXT CHECK (accept_by IS strftime('%Y-%m-%dT%H:%M:%SZ', accept_by)),
  created_at     TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  authorized_at  TEXT CHECK (authorized_at IS strftime('%Y-%m-%dT%H:%M:%SZ', authorized_at)),
  accepted_at    TEXT CHECK (accepted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', accepted_at)),
  paid_at        TEXT CHECK (paid_at IS strftime('%Y-%m-%dT%H:%M:%SZ', paid_at)),
  ended_at       TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX orders_account ON orders (account_id, id);
CREATE UNIQUE INDEX orders_reference ON orders (account_id, reference) WHERE reference IS NOT NULL;
CREATE INDEX orders_state ON orders (account_id, state, id);
CREATE INDEX orders_expiring ON orders (expires_at) WHERE state = 'open' AND closing IS NULL;
CREATE INDEX orders_waiting ON orders (accept_by) WHERE state = 'authorized';

CREATE TABLE order_customers (
  seq      INTEGER PRIMARY KEY,
  order_id TEXT NOT NULL UNIQUE REFERENCES orders (id),
  name     TEXT,
  phone    TEXT,
  note     TEXT,
  erase_at TEXT CHECK (erase_at IS strftime('%Y-%m-%dT%H:%M:%SZ', erase_at))
) STRICT;
CREATE INDEX order_customers_due ON order_customers (erase_at) WHERE erase_at IS NOT NULL;

CREATE TABLE payments (
  id             TEXT PRIMARY KEY CHECK (id LIKE 'pay\_%' ESCAPE '\'),
  order_id       TEXT NOT NULL REFERENCES orders (id),
  account_id     TEXT NOT NULL REFERENCES accounts (id),
  connection_id  TEXT NOT NULL REFERENCES payment_connections (id),
  provider       TEXT NOT NULL CHECK (provider IN ('stripe', 'vipps')),
  method         TEXT NOT NULL CHECK (method IN ('card', 'mobile')),
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
  capture_before TEXT CHECK (capture_before IS strftime('%Y-%m-%dT%H:%M:%SZ', capture_before)),
  warned         INTEGER NOT NULL DEFAULT 0 CHECK (warned IN (0, 1)),
  due_at         TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at)),
  polls          INTEGER NOT NULL DEFAULT 0,
  revision       INTEGER NOT NULL DEFAULT 1,
  created_at     TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  authorized_at  TEXT CHECK (authorized_at IS strftime('%Y-%m-%dT%H:%M:%SZ', authorized_at)),
  captured_at    TEXT CHECK (captured_at IS strftime('%Y-%m-%dT%H:%M:%SZ', captured_at)),
  checked_at     TEXT CHECK (checked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', checked_at)),
  ended_at       TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX payments_order ON payments (order_id);
CREATE INDEX payments_account ON payments (account_id, id);
CREATE INDEX payments_intent ON payments (intent_id) WHERE intent_id IS NOT NULL;
CREATE INDEX payments_review ON payments (id) WHERE state = 'review';
CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX payments_live ON payments (order_id) WHERE state IN ('created', 'pending', 'authorized');

CREATE TABLE payment_operations (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'opr\_%' ESCAPE '\'),
  payment_id  TEXT NOT NULL REFERENCES payments (id),
  kind        TEXT NOT NULL CHECK (kind IN ('create', 'capture', 'cancel', 'expire', 'refund')),
  amount      INTEGER NOT NULL DEFAULT 0,
  refund_id   TEXT,
  source      TEXT NOT NULL DEFAULT 'widgetd' CHECK (source IN ('widgetd', 'provider')),
  state       TEXT NOT NULL CHECK (state IN ('pending', 'done', 'refused')),
  request     BLOB,
  status      INTEGER,
  error       TEXT,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX payment_operations_payment ON payment_operations (payment_id, id);
CREATE UNIQUE INDEX payment_operations_pending ON payment_operations (payment_id) WHERE state = 'pending';

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
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX refunds_order ON refunds (order_id, id);
CREATE UNIQUE INDEX refunds_provider ON refunds (payment_id, provider_id) WHERE provider_id IS NOT NULL;

CREATE TABLE disputes (
  payment_id  TEXT NOT NULL REFERENCES payments (id),
  id          TEXT NOT NULL,
  order_id    TEXT NOT NULL REFERENCES orders (id),
  amount      INTEGER NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'won', 'lost')),
  reason      TEXT,
  opened_at   TEXT NOT NULL CHECK (opened_at IS strftime('%Y-%m-%dT%H:%M:%SZ', opened_at)),
  closed_at   TEXT CHECK (closed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', closed_at)),
  PRIMARY KEY (payment_id, id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER accounts_closed AFTER UPDATE OF closed_at ON accounts WHEN new.closed_at IS NOT NULL AND old.closed_at IS NULL BEGIN
  UPDATE payments SET due_at = new.closed_at, revision = revision + 1
    WHERE account_id = new.id AND state IN ('created', 'pending', 'authorized');
END;

CREATE VIEW v_orders AS
SELECT o.created_at, a.name AS account, o.reference, o.state, o.dispute,
       printf('%d.%02d', o.total / 100, o.total % 100) AS total, o.currency,
       printf('%d.%02d', o.refunded / 100, o.refunded % 100) AS refunded, o.method,
       p.provider, p.state AS payment, p.reason, o.attempts,
       o.authorized_at, o.accepted_at, o.paid_at, o.expires_at, o.accept_by, o.closing,
       o.id, o.payment_id, o.account_id
FROM orders o JOIN accounts a ON a.id = o.account_id LEFT JOIN payments p ON p.id = o.payment_id
ORDER BY o.id DESC;

CREATE VIEW v_payments AS
SELECT p.created_at, a.name AS account, p.provider, p.state, p.reason,
       printf('%d.%02d', p.amount / 100, p.amount % 100) AS amount, p.currency,
       printf('%d.%02d', p.captured / 100, p.captured % 100) AS captured,
       printf('%d.%02d', p.refunded / 100, p.refunded % 100) AS refunded,
       o.reference, o.state AS order_state,
       (SELECT q.kind FROM payment_operations q WHERE q.payment_id = p.id AND q.state = 'pending') AS waits_for,
       p.due_at, p.checked_at, p.capture_before, p.session_id, p.intent_id, p.id, p.order_id, p.account_id
FROM payments p JOIN accounts a ON a.id = p.account_id JOIN orders o ON o.id = p.order_id
ORDER BY p.id DESC;
