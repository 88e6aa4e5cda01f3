-- The declarations of schema version 2, which the step from version 1 to 2 rebuilds tables to. What
-- they declare is never edited; schema.sql goes on, and an upgrade ends with its text and comments.

CREATE TABLE accounts (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'acct\_%' ESCAPE '\'),
  name        TEXT NOT NULL CHECK (name <> ''),
  is_main     INTEGER NOT NULL DEFAULT 0 CHECK (is_main IN (0, 1)),
  rate        INTEGER CHECK (rate BETWEEN 1 AND 1000000000),
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  closed_at   TEXT CHECK (closed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', closed_at))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX accounts_main ON accounts (is_main) WHERE is_main = 1;

CREATE TABLE base_urls (
  url         TEXT PRIMARY KEY CHECK (url LIKE 'http%://%/v1'),
  is_current  INTEGER NOT NULL CHECK (is_current IN (0, 1)),
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX base_urls_current ON base_urls (is_current) WHERE is_current = 1;

CREATE TABLE probes (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  written_at  TEXT NOT NULL CHECK (written_at IS strftime('%Y-%m-%dT%H:%M:%SZ', written_at))
) STRICT;

CREATE TABLE origins (
  origin      TEXT PRIMARY KEY CHECK (origin LIKE 'http%://%' AND origin = lower(origin) AND origin NOT LIKE '%/'),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  created_at  TEXT CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX origins_account ON origins (account_id);

CREATE TABLE tokens (
  id           TEXT PRIMARY KEY CHECK (id LIKE 'tok\_%' ESCAPE '\'),
  account_id   TEXT NOT NULL REFERENCES accounts (id),
  client_id    TEXT NOT NULL,
  scope        TEXT NOT NULL,
  all_accounts INTEGER NOT NULL CHECK (all_accounts IN (0, 1)),
  kid          TEXT NOT NULL,
  created_at   TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  expires_at   TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at)),
  revoked_at   TEXT CHECK (revoked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', revoked_at))
) STRICT, WITHOUT ROWID;

CREATE TABLE leads (
  seq         INTEGER PRIMARY KEY,
  id          TEXT NOT NULL CHECK (id LIKE 'lead\_%' ESCAPE '\'),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  type        TEXT NOT NULL,
  email       TEXT NOT NULL,
  source      TEXT,
  page        TEXT CHECK (page LIKE '/%'),
  fields      TEXT CHECK (json_type(fields) = 'object'),
  digest      BLOB NOT NULL DEFAULT (zeroblob(16)) CHECK (length(digest) = 16),
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at))
) STRICT;
CREATE INDEX leads_account ON leads (account_id);
CREATE INDEX leads_digest ON leads (digest);

CREATE TRIGGER leads_changed AFTER UPDATE OF email ON leads WHEN new.email <> old.email AND new.email LIKE '%@%' BEGIN
  UPDATE leads SET digest = zeroblob(16) WHERE seq = new.seq;
END;

CREATE TABLE licenses (
  id                 TEXT PRIMARY KEY CHECK (id LIKE 'lic\_%' ESCAPE '\'),
  account_id         TEXT NOT NULL REFERENCES accounts (id),
  product            TEXT NOT NULL CHECK (product <> ''),
  plan               TEXT,
  customer           TEXT CHECK (length(customer) <= 200),
  kind               TEXT NOT NULL DEFAULT 'node_locked' CHECK (kind IN ('node_locked', 'floating')),
  state              TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'suspended', 'revoked')),
  reason             TEXT,
  trial              INTEGER NOT NULL DEFAULT 0 CHECK (trial IN (0, 1)),
  max_devices        INTEGER CHECK (max_devices BETWEEN 1 AND 1000000),
  max_transfers      INTEGER CHECK (max_transfers BETWEEN 0 AND 1000000),
  starts_at          TEXT CHECK (starts_at IS strftime('%Y-%m-%dT%H:%M:%SZ', starts_at)),
  expires_at         TEXT CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at)),
  grace_days         INTEGER NOT NULL DEFAULT 0 CHECK (grace_days BETWEEN 0 AND 3650),
  duration_days      INTEGER CHECK (duration_days BETWEEN 1 AND 36500),
  expiry_basis       TEXT NOT NULL DEFAULT 'issue' CHECK (expiry_basis IN ('issue', 'first_activation')),
  lease_hours        INTEGER NOT NULL DEFAULT 336 CHECK (lease_hours BETWEEN 1 AND 2160),
  entitlements       TEXT NOT NULL DEFAULT '[]' CHECK (json_type(entitlements) = 'array'),
  metadata           TEXT NOT NULL DEFAULT '{}' CHECK (json_type(metadata) = 'object' AND length(metadata) <= 16384),
  first_activated_at TEXT CHECK (first_activated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', first_activated_at)),
  expiring_noted     TEXT,
  grace_noted        TEXT,
  expired_noted      TEXT,
  seat_limit_noted_at TEXT CHECK (seat_limit_noted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seat_limit_noted_at)),
  transfer_limit_noted_at TEXT CHECK (transfer_limit_noted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', transfer_limit_noted_at)),
  tokens_end_at      TEXT CHECK (tokens_end_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tokens_end_at)),
  created_at         TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  updated_at         TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX licenses_account ON licenses (account_id, id);
CREATE INDEX licenses_expiring_due ON licenses (expires_at)
  WHERE state <> 'revoked' AND expiring_noted IS NOT expires_at;
CREATE INDEX licenses_grace_due ON licenses (expires_at)
  WHERE state <> 'revoked' AND grace_days > 0 AND grace_noted IS NOT expires_at;
CREATE INDEX licenses_expiry_due ON licenses (strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, grace_days || ' days'))
  WHERE state <> 'revoked' AND expired_noted IS NOT strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, grace_days || ' days');

CREATE TABLE license_keys (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),
  license_id  TEXT NOT NULL REFERENCES licenses (id),
  hint        TEXT NOT NULL,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  retires_at  TEXT CHECK (retires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', retires_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX license_keys_license ON license_keys (license_id);

CREATE TABLE devices (
  id               TEXT PRIMARY KEY CHECK (id LIKE 'dev\_%' ESCAPE '\'),
  license_id       TEXT NOT NULL REFERENCES licenses (id),
  fingerprint      BLOB NOT NULL CHECK (length(fingerprint) = 32),
  name             TEXT,
  platform         TEXT,
  app_version      TEXT,
  state            TEXT NOT NULL CHECK (state IN ('active', 'released', 'blocked')),
  lease_seq        INTEGER NOT NULL DEFAULT 0,
  presented_seq    INTEGER NOT NULL DEFAULT 0,
  lease_kid        TEXT,
  leased_at        TEXT CHECK (leased_at IS strftime('%Y-%m-%dT%H:%M:%SZ', leased_at)),
  lease_expires_at TEXT CHECK (lease_expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lease_expires_at)),
  lapses_at        TEXT CHECK (lapses_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lapses_at)),
  clone_suspected_at TEXT CHECK (clone_suspected_at IS strftime('%Y-%m-%dT%H:%M:%SZ', clone_suspected_at)),
  activated_at     TEXT NOT NULL CHECK (activated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', activated_at)),
  last_seen_at     TEXT NOT NULL CHECK (last_seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', last_seen_at)),
  released_at      TEXT CHECK (released_at IS strftime('%Y-%m-%dT%H:%M:%SZ', released_at)),
  counts_until     TEXT CHECK (counts_until IS strftime('%Y-%m-%dT%H:%M:%SZ', counts_until)),
  ended_seq        INTEGER NOT NULL DEFAULT 0,
  tokens_end_at    TEXT CHECK (tokens_end_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tokens_end_at)),
  released_by      TEXT CHECK (released_by IN ('device', 'replacement', 'portal', 'operator', 'lease')),
  activations      INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX devices_fingerprint ON devices (license_id, fingerprint);
CREATE INDEX devices_seats ON devices (license_id, state, id);
CREATE INDEX devices_lapsing ON devices (lapses_at) WHERE lapses_at IS NOT NULL;
CREATE INDEX devices_lapsing_license ON devices (license_id, lapses_at) WHERE lapses_at IS NOT NULL;
CREATE INDEX devices_counting ON devices (counts_until) WHERE state <> 'active' AND counts_until IS NOT NULL;
CREATE INDEX devices_counting_license ON devices (license_id, counts_until) WHERE state <> 'active' AND counts_until IS NOT NULL;

CREATE TABLE past_fingerprints (
  license_id   TEXT NOT NULL REFERENCES licenses (id),
  fingerprint  BLOB NOT NULL CHECK (length(fingerprint) = 32),
  counts_until TEXT NOT NULL CHECK (counts_until IS strftime('%Y-%m-%dT%H:%M:%SZ', counts_until)),
  PRIMARY KEY (license_id, fingerprint)
) STRICT, WITHOUT ROWID;
CREATE INDEX past_fingerprints_counting ON past_fingerprints (counts_until);
CREATE INDEX past_fingerprints_counting_license ON past_fingerprints (license_id, counts_until);

CREATE TABLE license_seats (
  license_id TEXT PRIMARY KEY REFERENCES licenses (id),
  used       INTEGER NOT NULL CHECK (used >= 0),
  counting   INTEGER NOT NULL CHECK (counting >= 0)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER devices_added AFTER INSERT ON devices
WHEN new.state = 'active' OR new.counts_until IS NOT NULL BEGIN
  INSERT INTO license_seats (license_id, used, counting) VALUES (new.license_id, new.state = 'active', 1)
    ON CONFLICT DO UPDATE SET used = used + excluded.used, counting = counting + 1;
END;
CREATE TRIGGER devices_removed AFTER DELETE ON devices
WHEN old.state = 'active' OR old.counts_until IS NOT NULL BEGIN
  UPDATE license_seats SET used = max(0, used - (old.state = 'active')), counting = max(0, counting - 1)
    WHERE license_id = old.license_id;
END;
CREATE TRIGGER devices_changed AFTER UPDATE OF state, license_id, counts_until ON devices
WHEN old.state <> new.state OR old.license_id <> new.license_id
  OR (old.counts_until IS NULL) <> (new.counts_until IS NULL) BEGIN
  UPDATE license_seats SET used = max(0, used - (old.state = 'active')), counting = max(0, counting - 1)
    WHERE license_id = old.license_id AND (old.state = 'active' OR old.counts_until IS NOT NULL);
  INSERT INTO license_seats (license_id, used, counting) SELECT new.license_id, new.state = 'active', 1
    WHERE new.state = 'active' OR new.counts_until IS NOT NULL
    ON CONFLICT DO UPDATE SET used = used + excluded.used, counting = counting + 1;
END;
CREATE TRIGGER devices_taken AFTER UPDATE OF state ON devices
WHEN old.state <> new.state AND new.ended_seq < max(new.lease_seq, new.presented_seq) AND (new.state = 'blocked'
  OR new.state = 'released' AND coalesce(new.released_by, 'operator') NOT IN ('device', 'lease')) BEGIN
  UPDATE devices SET ended_seq = max(lease_seq, presented_seq) WHERE id = new.id;
END;
CREATE TRIGGER past_fingerprints_added AFTER INSERT ON past_fingerprints BEGIN
  INSERT INTO license_seats (license_id, used, counting) VALUES (new.license_id, 0, 1)
    ON CONFLICT DO UPDATE SET counting = counting + 1;
END;
CREATE TRIGGER past_fingerprints_removed AFTER DELETE ON past_fingerprints BEGIN
  UPDATE license_seats SET counting = max(0, counting - 1) WHERE license_id = old.license_id;
END;
CREATE TRIGGER licenses_removed AFTER DELETE ON licenses BEGIN
  DELETE FROM license_seats WHERE license_id = old.id;
END;

CREATE TABLE widgets (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'wgt\_%' ESCAPE '\'),
  account_id    TEXT NOT NULL REFERENCES accounts (id),
  name          TEXT NOT NULL CHECK (name <> ''),
  public_orders INTEGER NOT NULL DEFAULT 0 CHECK (public_orders IN (0, 1)),
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX widgets_account ON widgets (account_id, id);

CREATE TABLE widget_counts (
  widget_id  TEXT NOT NULL REFERENCES widgets (id),
  quarter    TEXT NOT NULL CHECK (quarter LIKE '____-__-__T__:__:00Z'),
  views      INTEGER NOT NULL DEFAULT 0,
  visitors   INTEGER NOT NULL DEFAULT 0,
  clicks     INTEGER NOT NULL DEFAULT 0,
  orders     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (widget_id, quarter)
) STRICT, WITHOUT ROWID;

CREATE TABLE item_counts (
  widget_id  TEXT NOT NULL REFERENCES widgets (id),
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),
  item       TEXT NOT NULL,
  clicks     INTEGER NOT NULL DEFAULT 0,
  orders     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (widget_id, day, item)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,
  id         TEXT NOT NULL CHECK (id LIKE 'evt\_%' ESCAPE '\'),
  at         TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at)),
  type       TEXT NOT NULL,
  account_id TEXT NOT NULL REFERENCES accounts (id),
  subject_id TEXT NOT NULL DEFAULT '',
  actor      TEXT NOT NULL,
  data       TEXT NOT NULL DEFAULT '{}' CHECK (json_type(data) = 'object')
) STRICT;
CREATE INDEX events_account ON events (account_id);
CREATE INDEX events_license ON events (subject_id) WHERE subject_id GLOB 'lic_*';

CREATE TABLE idempotency (
  id          BLOB PRIMARY KEY CHECK (length(id) = 32),
  request     BLOB NOT NULL CHECK (length(request) = 32),
  answer      BLOB NOT NULL,
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE legacy_calls (
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),
  path       TEXT NOT NULL,
  caller     TEXT NOT NULL,
  calls      INTEGER NOT NULL,
  last_at    TEXT NOT NULL CHECK (last_at IS strftime('%Y-%m-%dT%H:%M:%SZ', last_at)),
  PRIMARY KEY (day, path, caller)
) STRICT, WITHOUT ROWID;

CREATE VIEW v_licenses AS
SELECT l.id, a.name AS account, l.product, l.plan, l.customer,
       CASE
         WHEN l.state = 'revoked' THEN 'revoked'
         WHEN l.state = 'suspended' OR a.closed_at IS NOT NULL THEN 'suspended'
         WHEN l.starts_at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'not_started'
         WHEN l.expires_at IS NULL OR l.expires_at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'active'
         WHEN strftime('%Y-%m-%dT%H:%M:%SZ', l.expires_at, l.grace_days || ' days') > strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'grace'
         ELSE 'expired'
       END AS status,
       l.reason,
       coalesce(s.used, 0) AS seats_used,
       l.max_devices AS seats_max,
       max(0, coalesce(s.counting, 0) - l.max_devices) AS transfers_used,
       l.max_transfers AS transfers_max,
       (SELECT k.hint FROM license_keys k WHERE k.license_id = l.id AND k.retires_at IS NULL) AS key_hint,
       l.starts_at, l.expires_at, l.grace_days, l.trial, l.kind, l.entitlements,
       l.first_activated_at, l.created_at, l.account_id
FROM licenses l JOIN accounts a ON a.id = l.account_id LEFT JOIN license_seats s ON s.license_id = l.id;

CREATE VIEW v_devices AS
SELECT d.id, d.name, d.platform, d.app_version, d.state, a.name AS account, l.product,
       lower(substr(hex(d.fingerprint), 1, 8)) AS fingerprint,
       d.activated_at, d.last_seen_at, d.lease_expires_at, d.released_at, d.released_by, d.activations,
       d.lease_seq, d.presented_seq, d.clone_suspected_at, d.license_id, l.account_id
FROM devices d JOIN licenses l ON l.id = d.license_id JOIN accounts a ON a.id = l.account_id;

CREATE VIEW v_leads_by_day AS
SELECT substr(e.created_at, 1, 10) AS day, a.name AS account, e.type, count(*) AS leads
FROM leads e JOIN accounts a ON a.id = e.account_id
GROUP BY day, e.account_id, e.type ORDER BY day DESC;

CREATE VIEW v_widget_days AS
SELECT substr(c.quarter, 1, 10) AS day, w.name AS widget, sum(c.views) AS views, sum(c.visitors) AS visitors,
       sum(c.clicks) AS clicks, sum(c.orders) AS orders, c.widget_id
FROM widget_counts c JOIN widgets w ON w.id = c.widget_id
GROUP BY day, c.widget_id ORDER BY day DESC;

CREATE VIEW v_legacy_callers AS
SELECT c.path, coalesce(a.name, c.caller) AS caller, sum(c.calls) AS calls, min(c.day) AS first_day, max(c.last_at) AS last_at
FROM legacy_calls c LEFT JOIN accounts a ON a.id = c.caller
GROUP BY c.path, c.caller ORDER BY last_at DESC;

CREATE VIEW v_audit AS
SELECT e.at, e.type, a.name AS account, e.actor, e.subject_id, e.data, e.id
FROM events e JOIN accounts a ON a.id = e.account_id ORDER BY e.seq DESC;
