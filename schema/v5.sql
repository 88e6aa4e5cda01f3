-- What version 5 adds to version 4: the tables and views of revenue days and books. What orders of
-- version 4 have moved is written into revenue_facts once the service runs.

CREATE TABLE account_zones (
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  from_date   TEXT NOT NULL CHECK (from_date IS date(from_date)),
  zone        TEXT NOT NULL,
  cut_off     TEXT NOT NULL,
  PRIMARY KEY (account_id, from_date)
) STRICT, WITHOUT ROWID;

CREATE TABLE revenue_backlog (
  order_id    TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE revenue_facts (
  seq         INTEGER PRIMARY KEY,
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  order_id    TEXT NOT NULL REFERENCES orders (id),
  source      TEXT NOT NULL,
  currency    TEXT NOT NULL CHECK (length(currency) = 3),
  date        TEXT NOT NULL CHECK (date IS date(date)),
  own_date    TEXT NOT NULL CHECK (own_date IS date(own_date)),
  at          TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at)),
  method      TEXT NOT NULL CHECK (method IN ('card', 'mobile', 'cash', 'terminal', 'voucher', 'other')),
  test        INTEGER NOT NULL CHECK (test IN (0, 1)),
  figures     TEXT NOT NULL CHECK (json_type(figures) = 'array'),
  recorded_at TEXT NOT NULL CHECK (recorded_at IS strftime('%Y-%m-%dT%H:%M:%SZ', recorded_at))
) STRICT;
CREATE INDEX revenue_facts_order ON revenue_facts (order_id);
CREATE INDEX revenue_facts_day ON revenue_facts (account_id, date, own_date);

CREATE TABLE revenue_days (
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  date        TEXT NOT NULL CHECK (date IS date(date)),
  currency    TEXT NOT NULL CHECK (length(currency) = 3),
  frozen_at   TEXT CHECK (frozen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', frozen_at)),
  PRIMARY KEY (account_id, date, currency)
) STRICT, WITHOUT ROWID;

CREATE TABLE revenue_sums (
  account_id  TEXT NOT NULL,
  date        TEXT NOT NULL,
  currency    TEXT NOT NULL,
  method      TEXT NOT NULL,
  test        INTEGER NOT NULL,
  what        TEXT NOT NULL CHECK (what IN ('sale', 'delivery', 'tip', 'discount', 'refund', 'refund_delivery', 'refund_tip', 'dispute')),
  rate        INTEGER NOT NULL,
  group_name  TEXT NOT NULL,
  gross       INTEGER NOT NULL,
  vat         INTEGER NOT NULL,
  facts       INTEGER NOT NULL,
  PRIMARY KEY (account_id, date, currency, method, test, what, rate, group_name)
) STRICT, WITHOUT ROWID;

CREATE TABLE books_apps (
  product     TEXT PRIMARY KEY CHECK (product IN ('xero', 'fortnox')),
  client_id   TEXT NOT NULL,
  secret      BLOB NOT NULL,
  changed_at  TEXT NOT NULL CHECK (changed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', changed_at))
) STRICT, WITHOUT ROWID;

CREATE TABLE books_authorizations (
  state_hash    BLOB PRIMARY KEY CHECK (length(state_hash) = 32),
  account_id    TEXT NOT NULL REFERENCES accounts (id),
  product       TEXT NOT NULL CHECK (product IN ('xero', 'fortnox')),
  verifier      BLOB NOT NULL,
  redirect_url  TEXT NOT NULL,
  made_by       TEXT NOT NULL,
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  expires_at    TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX books_authorizations_account ON books_authorizations (account_id);
CREATE INDEX books_authorizations_expiring ON books_authorizations (expires_at);

CREATE TABLE books_connections (
  id              TEXT PRIMARY KEY CHECK (id LIKE 'bkc\_%' ESCAPE '\'),
  account_id      TEXT NOT NULL REFERENCES accounts (id),
  product         TEXT NOT NULL CHECK (product IN ('xero', 'fortnox')),
  organisation_id TEXT,
  organisation    TEXT NOT NULL DEFAULT '',
  choices         TEXT CHECK (json_type(choices) = 'array'),
  currency        TEXT,
  secrets         BLOB,
  tokens          INTEGER NOT NULL DEFAULT 0,
  refreshing_until TEXT CHECK (refreshing_until IS strftime('%Y-%m-%dT%H:%M:%SZ', refreshing_until)),
  needs_reconnect_at TEXT CHECK (needs_reconnect_at IS strftime('%Y-%m-%dT%H:%M:%SZ', needs_reconnect_at)),
  failing_since   TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since)),
  mapping         TEXT CHECK (json_type(mapping) = 'object'),
  mapping_at      TEXT CHECK (mapping_at IS strftime('%Y-%m-%dT%H:%M:%SZ', mapping_at)),
  send_from       TEXT CHECK (send_from IS date(send_from)),
  status          TEXT NOT NULL DEFAULT 'draft' CHECK (status IN ('draft', 'posted')),
  series          TEXT,
  outside         INTEGER NOT NULL DEFAULT 0 CHECK (outside IN (0, 1)),
  tests           INTEGER NOT NULL DEFAULT 0 CHECK (tests IN (0, 1)),
  created_at      TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  removed_at      TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX books_connections_used ON books_connections (account_id, product) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX books_connections_organisation ON books_connections (account_id, product, organisation_id) WHERE organisation_id IS NOT NULL;

CREATE TABLE books_exports (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'exp\_%' ESCAPE '\'),
  connection_id TEXT NOT NULL REFERENCES books_connections (id),
  account_id    TEXT NOT NULL REFERENCES accounts (id),
  date          TEXT NOT NULL CHECK (date IS date(date)),
  currency      TEXT NOT NULL CHECK (length(currency) = 3),
  revision      INTEGER NOT NULL CHECK (revision > 0),
  reverses      TEXT,
  entry_date    TEXT NOT NULL CHECK (entry_date IS date(entry_date)),
  state         TEXT NOT NULL CHECK (state IN ('waiting', 'held', 'ready', 'sending', 'unknown', 'posted', 'failed', 'reversed')),
  reason        TEXT,
  detail        TEXT,
  sync_key      TEXT NOT NULL,
  entry         TEXT CHECK (json_type(entry) = 'object'),
  request       TEXT,
  entry_id      TEXT,
  mapping_at    TEXT CHECK (mapping_at IS strftime('%Y-%m-%dT%H:%M:%SZ', mapping_at)),
  attempts      INTEGER NOT NULL DEFAULT 0,
  changes       INTEGER NOT NULL DEFAULT 0,
  due_at        TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at)),
  held_at       TEXT CHECK (held_at IS strftime('%Y-%m-%dT%H:%M:%SZ', held_at)),
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  sent_at       TEXT CHECK (sent_at IS strftime('%Y-%m-%dT%H:%M:%SZ', sent_at)),
  posted_at     TEXT CHECK (posted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', posted_at)),
  reversed_at   TEXT CHECK (reversed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', reversed_at))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX books_exports_day ON books_exports (connection_id, date, currency, revision);
CREATE INDEX books_exports_account ON books_exports (account_id, id);
CREATE INDEX books_exports_due ON books_exports (connection_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX books_exports_held ON books_exports (held_at) WHERE held_at IS NOT NULL;

CREATE TRIGGER orders_payment_changed AFTER UPDATE OF state ON orders WHEN (new.state IN ('paid', 'part_refunded', 'refunded')) <> (old.state IN ('paid', 'part_refunded', 'refunded')) BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.id);
END;
CREATE TRIGGER refunds_added AFTER INSERT ON refunds WHEN new.state = 'succeeded' BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;
CREATE TRIGGER refunds_changed AFTER UPDATE OF state ON refunds WHEN (new.state = 'succeeded') <> (old.state = 'succeeded') BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;
CREATE TRIGGER disputes_added AFTER INSERT ON disputes BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;
CREATE TRIGGER disputes_changed AFTER UPDATE OF state, amount ON disputes BEGIN
  INSERT INTO revenue_backlog (order_id) SELECT new.order_id WHERE NOT EXISTS (SELECT 1 FROM revenue_backlog WHERE order_id = new.order_id);
END;

CREATE VIEW v_revenue_days AS
SELECT date, account, currency,
       printf('%s%d.%02d', iif(sales < 0, '-', ''), abs(sales) / 100, abs(sales) % 100) AS sales, printf('%s%d.%02d', iif(delivery < 0, '-', ''), abs(delivery) / 100, abs(delivery) % 100) AS delivery, printf('%s%d.%02d', iif(tips < 0, '-', ''), abs(tips) / 100, abs(tips) % 100) AS tips,
       printf('%s%d.%02d', iif(refunds < 0, '-', ''), abs(refunds) / 100, abs(refunds) % 100) AS refunds, printf('%s%d.%02d', iif(disputes < 0, '-', ''), abs(disputes) / 100, abs(disputes) % 100) AS disputes,
       printf('%s%d.%02d', iif((sales + delivery + tips - refunds - disputes) < 0, '-', ''), abs((sales + delivery + tips - refunds - disputes)) / 100, abs((sales + delivery + tips - refunds - disputes)) % 100) AS total,
       printf('%s%d.%02d', iif(vat < 0, '-', ''), abs(vat) / 100, abs(vat) % 100) AS vat, printf('%s%d.%02d', iif(discounts < 0, '-', ''), abs(discounts) / 100, abs(discounts) % 100) AS discounts, frozen_at, account_id
FROM (
  SELECT d.date, a.name AS account, d.currency, d.frozen_at, d.account_id,
         coalesce(sum(iif(s.what = 'sale', s.gross, 0)), 0) AS sales,
         coalesce(sum(iif(s.what = 'delivery', s.gross, 0)), 0) AS delivery,
         coalesce(sum(iif(s.what = 'tip', s.gross, 0)), 0) AS tips,
         coalesce(sum(iif(s.what = 'discount', s.gross, 0)), 0) AS discounts,
         coalesce(sum(iif(s.what LIKE 'refund%', s.gross, 0)), 0) AS refunds,
         coalesce(sum(iif(s.what = 'dispute', s.gross, 0)), 0) AS disputes,
         coalesce(sum(iif(s.what LIKE 'refund%', -s.vat, s.vat)), 0) AS vat
  FROM revenue_days d JOIN accounts a ON a.id = d.account_id
  LEFT JOIN revenue_sums s ON s.account_id = d.account_id AND s.date = d.date AND s.currency = d.currency
  GROUP BY d.account_id, d.date, d.currency
) ORDER BY date DESC, account, currency;

CREATE VIEW v_exports AS
SELECT x.date, a.name AS account, c.product, c.organisation, x.currency, x.revision, x.state, x.reason, x.detail,
       x.entry_id, x.reverses, x.entry_date, x.attempts, x.due_at, x.held_at, x.sent_at, x.posted_at, x.reversed_at,
       x.sync_key, x.id, x.connection_id, x.account_id
FROM books_exports x JOIN books_connections c ON c.id = x.connection_id JOIN accounts a ON a.id = x.account_id
ORDER BY x.id DESC;

INSERT INTO revenue_backlog (order_id) SELECT id FROM orders WHERE state IN ('paid', 'part_refunded', 'refunded');
