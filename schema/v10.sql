CREATE TABLE accounts (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'acct\_%' ESCAPE '\'),
  name        TEXT NOT NULL CHECK (name <> ''),
  is_main     INTEGER NOT NULL DEFAULT 0 CHECK (is_main IN (0, 1)),
  rate        INTEGER CHECK (rate BETWEEN 1 AND 1000000000),
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  closed_at   TEXT CHECK (closed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', closed_at, '+0 days')),
  issuer      INTEGER CHECK (issuer IN (0, 1))
) STRICT, WITHOUT ROWID;
CREATE TABLE plans (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'pln\_%' ESCAPE '\'),
  account_id    TEXT NOT NULL REFERENCES accounts (id),
  name          TEXT NOT NULL CHECK (name <> ''),
  product       TEXT NOT NULL CHECK (product <> ''),
  kind          TEXT NOT NULL CHECK (kind IN ('node_locked', 'floating')),
  trial         INTEGER NOT NULL DEFAULT 0 CHECK (trial IN (0, 1)),
  max_devices   INTEGER CHECK (max_devices BETWEEN 1 AND 1000000),
  max_transfers INTEGER CHECK (max_transfers BETWEEN 0 AND 1000000),
  grace_days    INTEGER NOT NULL DEFAULT 0 CHECK (grace_days BETWEEN 0 AND 3650),
  duration_days INTEGER CHECK (duration_days BETWEEN 1 AND 36500),
  expiry_basis  TEXT NOT NULL CHECK (expiry_basis IN ('issue', 'first_activation')),
  lease_hours   INTEGER NOT NULL CHECK (lease_hours BETWEEN 1 AND 2160),
  offline_days  INTEGER NOT NULL DEFAULT 0 CHECK (offline_days BETWEEN 0 AND 365),
  entitlements  TEXT NOT NULL DEFAULT '[]' CHECK (json_type(entitlements) = 'array'),
  revision      INTEGER NOT NULL DEFAULT 1,
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  updated_at    TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at, '+0 days')),
  retired_at    TEXT CHECK (retired_at IS strftime('%Y-%m-%dT%H:%M:%SZ', retired_at, '+0 days'))
) STRICT, WITHOUT ROWID;
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
  starts_at          TEXT CHECK (starts_at IS strftime('%Y-%m-%dT%H:%M:%SZ', starts_at, '+0 days')),
  expires_at         TEXT CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')),
  grace_days         INTEGER NOT NULL DEFAULT 0 CHECK (grace_days BETWEEN 0 AND 3650),
  duration_days      INTEGER CHECK (duration_days BETWEEN 1 AND 36500),
  expiry_basis       TEXT NOT NULL DEFAULT 'issue' CHECK (expiry_basis IN ('issue', 'first_activation')),
  lease_hours        INTEGER NOT NULL DEFAULT 336 CHECK (lease_hours BETWEEN 1 AND 2160),
  entitlements       TEXT NOT NULL DEFAULT '[]' CHECK (json_type(entitlements) = 'array'),
  metadata           TEXT NOT NULL DEFAULT '{}' CHECK (json_type(metadata) = 'object' AND length(metadata) <= 16384),
  first_activated_at TEXT CHECK (first_activated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', first_activated_at, '+0 days')),
  expiring_noted     TEXT,
  grace_noted        TEXT,
  expired_noted      TEXT,
  seat_limit_noted_at TEXT CHECK (seat_limit_noted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seat_limit_noted_at, '+0 days')),
  transfer_limit_noted_at TEXT CHECK (transfer_limit_noted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', transfer_limit_noted_at, '+0 days')),
  tokens_end_at      TEXT CHECK (tokens_end_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tokens_end_at, '+0 days')),
  created_at         TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')),
  updated_at         TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at, '+0 days')),
  reference          TEXT CHECK (length(reference) BETWEEN 1 AND 200),
  plan_id            TEXT REFERENCES plans (id),
  offline_days       INTEGER NOT NULL DEFAULT 0 CHECK (offline_days BETWEEN 0 AND 365),
  issuer_suspended   INTEGER NOT NULL DEFAULT 0 CHECK (issuer_suspended IN (0, 1))
) STRICT, WITHOUT ROWID;
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
  leased_at        TEXT CHECK (leased_at IS strftime('%Y-%m-%dT%H:%M:%SZ', leased_at, '+0 days')),
  lease_expires_at TEXT CHECK (lease_expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lease_expires_at, '+0 days')),
  lapses_at        TEXT CHECK (lapses_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lapses_at, '+0 days')),
  clone_suspected_at TEXT CHECK (clone_suspected_at IS strftime('%Y-%m-%dT%H:%M:%SZ', clone_suspected_at, '+0 days')),
  activated_at     TEXT NOT NULL CHECK (activated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', activated_at, '+0 days')),
  last_seen_at     TEXT NOT NULL CHECK (last_seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', last_seen_at, '+0 days')),
  released_at      TEXT CHECK (released_at IS strftime('%Y-%m-%dT%H:%M:%SZ', released_at, '+0 days')),
  counts_until     TEXT CHECK (counts_until IS strftime('%Y-%m-%dT%H:%M:%SZ', counts_until, '+0 days')),
  ended_seq        INTEGER NOT NULL DEFAULT 0,
  tokens_end_at    TEXT CHECK (tokens_end_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tokens_end_at, '+0 days')),
  released_by      TEXT CHECK (released_by IN ('device', 'replacement', 'portal', 'operator', 'lease')),
  activations      INTEGER NOT NULL DEFAULT 1,
  offline_until    TEXT CHECK (offline_until IS strftime('%Y-%m-%dT%H:%M:%SZ', offline_until, '+0 days')),
  offline_kid      TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX plans_account ON plans (account_id, id);
CREATE INDEX plans_in_use ON plans (account_id) WHERE retired_at IS NULL;
CREATE UNIQUE INDEX licenses_reference ON licenses (account_id, reference) WHERE reference IS NOT NULL;
CREATE INDEX licenses_plan ON licenses (plan_id, id) WHERE plan_id IS NOT NULL;
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
       l.first_activated_at, l.created_at, l.account_id, l.reference, l.offline_days, l.plan_id,
       CASE WHEN p.id IS NOT NULL THEN ltrim(
            iif(l.max_devices IS p.max_devices, '', ' max_devices') || iif(l.max_transfers IS p.max_transfers, '', ' max_transfers') || iif(l.grace_days IS p.grace_days, '', ' grace_days') ||
            iif(l.duration_days IS p.duration_days, '', ' duration_days') || iif(l.trial IS p.trial, '', ' trial') || iif(l.lease_hours IS p.lease_hours, '', ' lease_hours') ||
            iif(l.offline_days IS p.offline_days, '', ' offline_days') || iif(l.entitlements IS p.entitlements, '', ' entitlements')) END AS differs
FROM licenses l JOIN accounts a ON a.id = l.account_id LEFT JOIN license_seats s ON s.license_id = l.id
LEFT JOIN plans p ON p.id = l.plan_id;
CREATE VIEW v_devices AS
SELECT d.id, d.name, d.platform, d.app_version, d.state, a.name AS account, l.product,
       lower(substr(hex(d.fingerprint), 1, 8)) AS fingerprint,
       d.activated_at, d.last_seen_at, d.lease_expires_at, d.released_at, d.released_by, d.activations,
       d.lease_seq, d.presented_seq, d.clone_suspected_at, d.license_id, l.account_id, d.offline_until
FROM devices d JOIN licenses l ON l.id = d.license_id JOIN accounts a ON a.id = l.account_id;
