-- The whole schema of a widgetd database.
--
-- Read it with `sqlite3 -readonly widgetd.db` while the service runs; start with
-- the views, whose names begin with v_. Every time is text, UTC, to the second:
-- 2026-11-21T10:43:26Z. An absent time is NULL. Flags are 0 or 1.
-- A row may be changed with the sqlite3 shell too: the service sees it within a second.

PRAGMA application_id = 2003068788; -- "wdgt"
PRAGMA user_version = 13;

CREATE TABLE accounts (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'acct\_%' ESCAPE '\'), -- acct_…
  name        TEXT NOT NULL CHECK (name <> ''),                      -- for people: "Trattoria Roma"
  is_main     INTEGER NOT NULL DEFAULT 0 CHECK (is_main IN (0, 1)),  -- 1: the vendor's own; owns leads without an Origin
  rate        INTEGER CHECK (rate BETWEEN 1 AND 1000000000),            -- requests a minute; NULL: 600
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was added
  closed_at   TEXT CHECK (closed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', closed_at, '+0 days')),    -- since when nothing of it works; NULL: open
  issuer      INTEGER CHECK (issuer IN (0, 1))                       -- 1: its own tokens may issue licences, 0: they may not; NULL: only those of the main account
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX accounts_main ON accounts (is_main) WHERE is_main = 1;

CREATE TABLE base_urls (
  url         TEXT PRIMARY KEY CHECK (url LIKE 'http%://%/v1'),      -- https://api.example.com/v1
  is_current  INTEGER NOT NULL CHECK (is_current IN (0, 1)),         -- 1: new tokens name it; 0: earlier, still accepted
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')) -- when it was first set
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX base_urls_current ON base_urls (is_current) WHERE is_current = 1;

CREATE TABLE probes (
  id          INTEGER PRIMARY KEY CHECK (id = 1),                    -- one row
  written_at  TEXT NOT NULL CHECK (written_at IS strftime('%Y-%m-%dT%H:%M:%SZ', written_at, '+0 days')) -- when health last proved that writing works
) STRICT;

CREATE TABLE clock (
  id          INTEGER PRIMARY KEY CHECK (id = 1),                    -- one row
  seen_at     TEXT NOT NULL CHECK (seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seen_at, '+0 days')) -- the latest time that the service took for right; set by 'widgetd clock accept'
) STRICT;

CREATE TABLE epoch (
  id          INTEGER PRIMARY KEY CHECK (id = 1),                    -- one row, which is always there
  number      INTEGER NOT NULL CHECK (number >= 0),                  -- of this database; 0: never promoted
  name        TEXT NOT NULL,                                         -- random, to tell epochs with the same number apart
  began_at    TEXT NOT NULL CHECK (began_at IS strftime('%Y-%m-%dT%H:%M:%SZ', began_at, '+0 days')), -- when it was promoted; of number 0: when it was made or upgraded
  identity    TEXT NOT NULL                                          -- random, of this file: a copy has another, so that it is known to which file a write-ahead log belongs
) STRICT;
INSERT INTO epoch SELECT 1, 0, '', strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), lower(hex(randomblob(16)));

CREATE TABLE proofs (
  what        TEXT PRIMARY KEY CHECK (what IN ('replica', 'backup')), -- what was restored and checked
  due_since   TEXT NOT NULL CHECK (due_since IS strftime('%Y-%m-%dT%H:%M:%SZ', due_since, '+0 days')), -- from when on a first proof is due: the first start with -litestream, the first 'backup -verify', or a promotion
  mark        TEXT NOT NULL,                                         -- random, of the last try: what is restored must have it
  tried_at    TEXT CHECK (tried_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tried_at, '+0 days')), -- when the last try began; NULL: there was none
  proved_at   TEXT CHECK (proved_at IS strftime('%Y-%m-%dT%H:%M:%SZ', proved_at, '+0 days')), -- when the last try that succeeded ended; NULL: none has
  behind      INTEGER NOT NULL DEFAULT 0,                            -- seconds until the replica had the mark
  bytes       INTEGER NOT NULL DEFAULT 0,                            -- of what was restored
  txid        TEXT NOT NULL DEFAULT '',                              -- Litestream's number of its last transaction
  litestream  TEXT NOT NULL DEFAULT '',                              -- its version at the last try
  fault       TEXT NOT NULL DEFAULT ''                               -- what failed in the last try; empty: nothing
) STRICT, WITHOUT ROWID;

CREATE TABLE origins (
  origin      TEXT PRIMARY KEY CHECK (origin LIKE 'http%://%' AND origin = lower(origin) AND origin NOT LIKE '%/'), -- https://www.example.com, no default port
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the account that owns it
  created_at  TEXT CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days'))    -- when it was added; NULL: typed by hand
) STRICT, WITHOUT ROWID;
CREATE INDEX origins_account ON origins (account_id);

CREATE TABLE tokens (
  id           TEXT PRIMARY KEY CHECK (id LIKE 'tok\_%' ESCAPE '\'), -- the token's jti
  account_id   TEXT NOT NULL REFERENCES accounts (id),               -- the token's sub
  client_id    TEXT NOT NULL,                                        -- the application that uses it: "portal"
  scope        TEXT NOT NULL,                                        -- as signed into it, so not to be changed here: "stats:read leads:read"
  all_accounts INTEGER NOT NULL CHECK (all_accounts IN (0, 1)),      -- 1: may name another account by ?account_id=
  kid          TEXT NOT NULL,                                        -- the key that signed it
  created_at   TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- iat
  expires_at   TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')), -- exp, as signed into it; revoked_at ends it sooner
  revoked_at   TEXT CHECK (revoked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', revoked_at, '+0 days'))   -- since when it is refused; NULL: never revoked
) STRICT, WITHOUT ROWID;

-- Rows are only added at the end. SQLite then never moves one to another page, which would leave
-- a copy of its address behind that erasing does not overwrite. No index has an address in it.
CREATE TABLE leads (
  seq         INTEGER PRIMARY KEY,                                   -- order of writing
  id          TEXT NOT NULL CHECK (id LIKE 'lead\_%' ESCAPE '\'),    -- lead_…
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the owner of the Origin it came from, else the main account
  type        TEXT NOT NULL,                                         -- newsletter, demo, contact, …
  email       TEXT NOT NULL,                                         -- as sent, its domain in lower case
  source      TEXT,                                                  -- which form: "footer"
  page        TEXT CHECK (page LIKE '/%'),                           -- path of the page, no query
  fields      TEXT CHECK (json_type(fields) = 'object'),             -- what else the form asked for: {"phone":"…"}; NULL: nothing
  digest      BLOB NOT NULL DEFAULT (zeroblob(16)) CHECK (length(digest) = 16), -- 8 bytes of a hash of the address without case, which erasing looks for, and 8 of one of all that was sent, which finds a repetition
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')) -- when it was posted
) STRICT;
CREATE INDEX leads_account ON leads (account_id); -- of one account in the order of seq
CREATE INDEX leads_type ON leads (type); -- of one type in the order of seq
CREATE INDEX leads_digest ON leads (digest);

-- The sqlite3 shell can't compute a digest. An address that is changed with it loses its digest,
-- and erasing looks through the leads that have none.
CREATE TRIGGER leads_changed AFTER UPDATE OF email ON leads WHEN new.email <> old.email AND new.email LIKE '%@%' BEGIN
  UPDATE leads SET digest = zeroblob(16) WHERE seq = new.seq;
END;

-- What licences are made from. A licence copies the terms that its plan has then, so changing a plan changes no licence
-- that was sold; applying it does.
CREATE TABLE plans (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'pln\_%' ESCAPE '\'), -- pln_…
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account whose licences are made from it
  name          TEXT NOT NULL CHECK (name <> ''),                    -- for people, and the label of its licences: "pro"
  product       TEXT NOT NULL CHECK (product <> ''),                 -- this and the columns that follow are as in licenses
  kind          TEXT NOT NULL CHECK (kind IN ('node_locked', 'floating')), -- fixed, as the product is
  trial         INTEGER NOT NULL DEFAULT 0 CHECK (trial IN (0, 1)),  -- 1: a trial
  max_devices   INTEGER CHECK (max_devices BETWEEN 1 AND 1000000),   -- seats; NULL: no limit
  max_transfers INTEGER CHECK (max_transfers BETWEEN 0 AND 1000000), -- NULL: no limit
  grace_days    INTEGER NOT NULL DEFAULT 0 CHECK (grace_days BETWEEN 0 AND 3650), -- days after the end in which known devices go on
  duration_days INTEGER CHECK (duration_days BETWEEN 1 AND 36500),   -- length of a term; NULL: the licence has no end
  expiry_basis  TEXT NOT NULL CHECK (expiry_basis IN ('issue', 'first_activation')), -- from when duration_days counts; fixed
  lease_hours   INTEGER NOT NULL CHECK (lease_hours BETWEEN 1 AND 2160), -- how long a device token proves the licence offline
  offline_days  INTEGER NOT NULL DEFAULT 0 CHECK (offline_days BETWEEN 0 AND 365), -- how long an offline lease lasts; 0: there are none
  entitlements  TEXT NOT NULL DEFAULT '[]' CHECK (json_type(entitlements) = 'array'), -- codes: ["kds","reports"]
  revision      INTEGER NOT NULL DEFAULT 1,                          -- goes up with each change of its terms, which an apply names
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  updated_at    TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at, '+0 days')), -- when a column last changed
  retired_at    TEXT CHECK (retired_at IS strftime('%Y-%m-%dT%H:%M:%SZ', retired_at, '+0 days')) -- since when no licence is made from it; NULL: it is in use
) STRICT, WITHOUT ROWID;
CREATE INDEX plans_account ON plans (account_id, id);
CREATE INDEX plans_in_use ON plans (account_id) WHERE retired_at IS NULL;

CREATE TABLE licenses (
  id                 TEXT PRIMARY KEY CHECK (id LIKE 'lic\_%' ESCAPE '\'), -- lic_…
  account_id         TEXT NOT NULL REFERENCES accounts (id),         -- the account that owns it
  product            TEXT NOT NULL CHECK (product <> ''),            -- what may run: "kitchen-display"
  plan               TEXT,                                           -- how it was sold: "pro"
  customer           TEXT CHECK (length(customer) <= 200),           -- the seller's own name, address or number for the buyer; never sent to devices
  kind               TEXT NOT NULL DEFAULT 'node_locked' CHECK (kind IN ('node_locked', 'floating')), -- floating: a lapsed lease frees the seat
  state              TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'suspended', 'revoked')), -- what an operator decided; v_licenses.status adds time
  reason             TEXT,                                           -- why it was suspended or revoked
  trial              INTEGER NOT NULL DEFAULT 0 CHECK (trial IN (0, 1)), -- 1: a trial
  max_devices        INTEGER CHECK (max_devices BETWEEN 1 AND 1000000), -- seats; NULL: no limit
  max_transfers      INTEGER CHECK (max_transfers BETWEEN 0 AND 1000000), -- fingerprints that may count beside those that hold the seats; NULL: no limit
  starts_at          TEXT CHECK (starts_at IS strftime('%Y-%m-%dT%H:%M:%SZ', starts_at, '+0 days')), -- not before; NULL: at once
  expires_at         TEXT CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')), -- not after; NULL: never, or not yet activated
  grace_days         INTEGER NOT NULL DEFAULT 0 CHECK (grace_days BETWEEN 0 AND 3650), -- days after expires_at in which known devices go on
  grace_ends_at      TEXT AS (strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, grace_days || ' days')), -- the end of these: no device goes on from then; NULL: never
  duration_days      INTEGER CHECK (duration_days BETWEEN 1 AND 36500), -- length of a term, for renewing and for first_activation
  expiry_basis       TEXT NOT NULL DEFAULT 'issue' CHECK (expiry_basis IN ('issue', 'first_activation')), -- from when duration_days counts
  lease_hours        INTEGER NOT NULL DEFAULT 336 CHECK (lease_hours BETWEEN 1 AND 2160), -- how long a device token proves the licence offline
  entitlements       TEXT NOT NULL DEFAULT '[]' CHECK (json_type(entitlements) = 'array'), -- codes: ["kds","reports"]
  metadata           TEXT NOT NULL DEFAULT '{}' CHECK (json_type(metadata) = 'object' AND length(metadata) <= 16384), -- the seller's own notes
  first_activated_at TEXT CHECK (first_activated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', first_activated_at, '+0 days')), -- when the first device came
  expiring_noted     TEXT,                                           -- the end that license.expiring was written for
  grace_noted        TEXT,                                           -- the end that license.grace_started was written for
  expired_noted      TEXT,                                           -- the end of grace that license.expired was written for
  seat_limit_noted_at TEXT CHECK (seat_limit_noted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seat_limit_noted_at, '+0 days')), -- when license.seat_limit_reached was last written
  transfer_limit_noted_at TEXT CHECK (transfer_limit_noted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', transfer_limit_noted_at, '+0 days')), -- when license.transfer_limit_reached was last written
  tokens_end_at      TEXT CHECK (tokens_end_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tokens_end_at, '+0 days')), -- no device token that was issued until then works; NULL: none was ended
  created_at         TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was issued
  updated_at         TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at, '+0 days')), -- when a column last changed
  reference          TEXT CHECK (length(reference) BETWEEN 1 AND 200), -- the seller's own number for the sale; unique in the account
  plan_id            TEXT REFERENCES plans (id),                     -- what it was made from; NULL: from no plan
  offline_days       INTEGER NOT NULL DEFAULT 0 CHECK (offline_days BETWEEN 0 AND 365), -- how long an offline lease lasts; 0: there are none
  issuer_suspended   INTEGER NOT NULL DEFAULT 0 CHECK (issuer_suspended IN (0, 1)) -- 1: a token of licenses:write suspended it and may reinstate it; 0: only the operator may
) STRICT, WITHOUT ROWID;
CREATE INDEX licenses_account ON licenses (account_id, id);
CREATE UNIQUE INDEX licenses_reference ON licenses (account_id, reference) WHERE reference IS NOT NULL;
CREATE INDEX licenses_plan ON licenses (plan_id, id) WHERE plan_id IS NOT NULL;
-- These three hold only licences whose event of an end is still to be written, so that the
-- query for those that are due, once a second, reads next to nothing.
CREATE INDEX licenses_expiring_due ON licenses (expires_at)
  WHERE state <> 'revoked' AND expiring_noted IS NOT expires_at;
CREATE INDEX licenses_grace_due ON licenses (expires_at)
  WHERE state <> 'revoked' AND grace_days > 0 AND grace_noted IS NOT expires_at;
CREATE INDEX licenses_expiry_due ON licenses (grace_ends_at)
  WHERE state <> 'revoked' AND expired_noted IS NOT grace_ends_at;

CREATE TABLE license_keys (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),            -- SHA-256 of the normalised key; the key itself is kept nowhere
  license_id  TEXT NOT NULL REFERENCES licenses (id),                -- the licence that it is a key of
  hint        TEXT NOT NULL,                                         -- the key's last five symbols, for people
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  retires_at  TEXT CHECK (retires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', retires_at, '+0 days'))    -- when a rotated key stops working; NULL: the current one
) STRICT, WITHOUT ROWID;
CREATE INDEX license_keys_license ON license_keys (license_id, retires_at, hint); -- with the hint, since the keys of licences lie far apart

CREATE TABLE devices (
  id               TEXT PRIMARY KEY CHECK (id LIKE 'dev\_%' ESCAPE '\'), -- dev_…
  license_id       TEXT NOT NULL REFERENCES licenses (id),           -- the licence whose seat it takes
  fingerprint      BLOB NOT NULL CHECK (length(fingerprint) = 32),   -- SHA-256 of what the device sent
  name             TEXT,                                             -- as the device calls itself: "Kitchen 1"
  platform         TEXT,                                             -- "linux/arm64"
  app_version      TEXT,                                             -- "2.4.1", as last reported
  state            TEXT NOT NULL CHECK (state IN ('active', 'released', 'blocked')), -- active: holds a seat
  lease_seq        INTEGER NOT NULL DEFAULT 0,                       -- number of the last lease it was given
  presented_seq    INTEGER NOT NULL DEFAULT 0,                       -- highest lease number it ever sent; a lower one later hints at a clone
  lease_kid        TEXT,                                             -- the key that signed its last lease
  leased_at        TEXT CHECK (leased_at IS strftime('%Y-%m-%dT%H:%M:%SZ', leased_at, '+0 days')), -- when that lease began
  lease_expires_at TEXT CHECK (lease_expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lease_expires_at, '+0 days')), -- until when it proves the licence offline
  lapses_at        TEXT CHECK (lapses_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lapses_at, '+0 days')), -- when its floating seat is released because its lease has lapsed; NULL: never
  clone_suspected_at TEXT CHECK (clone_suspected_at IS strftime('%Y-%m-%dT%H:%M:%SZ', clone_suspected_at, '+0 days')), -- when it last sent an older lease than before
  activated_at     TEXT NOT NULL CHECK (activated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', activated_at, '+0 days')), -- when it last took its seat
  last_seen_at     TEXT NOT NULL CHECK (last_seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', last_seen_at, '+0 days')), -- to the minute
  released_at      TEXT CHECK (released_at IS strftime('%Y-%m-%dT%H:%M:%SZ', released_at, '+0 days')), -- when it last gave its seat back
  counts_until     TEXT CHECK (counts_until IS strftime('%Y-%m-%dT%H:%M:%SZ', counts_until, '+0 days')), -- the latest end of its leases; once it holds no seat, until when its fingerprint counts for the licence; NULL: it counts no longer
  counting         INTEGER AS (state = 'active' OR counts_until IS NOT NULL), -- 1: its fingerprint counts for the licence
  ended_seq        INTEGER NOT NULL DEFAULT 0,                       -- number of the last lease that ended because its seat was taken away
  tokens_end_at    TEXT CHECK (tokens_end_at IS strftime('%Y-%m-%dT%H:%M:%SZ', tokens_end_at, '+0 days')), -- when that was: no token from before works; NULL: never
  released_by      TEXT CHECK (released_by IN ('device', 'replacement', 'portal', 'operator', 'lease')), -- who gave it back
  activations      INTEGER NOT NULL DEFAULT 1,                       -- how often it took a seat
  offline_until    TEXT CHECK (offline_until IS strftime('%Y-%m-%dT%H:%M:%SZ', offline_until, '+0 days')), -- the end of its longest offline lease, which can't be recalled; never moves back; NULL: it was given none
  offline_kid      TEXT                                              -- the key that signed that lease
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX devices_fingerprint ON devices (license_id, fingerprint);
CREATE INDEX devices_seats ON devices (license_id, state, id);
CREATE INDEX devices_lapsing ON devices (lapses_at) WHERE lapses_at IS NOT NULL;
CREATE INDEX devices_lapsing_license ON devices (license_id, lapses_at) WHERE lapses_at IS NOT NULL;
-- Those that hold no seat and still count.
CREATE INDEX devices_counting ON devices (counts_until) WHERE state <> 'active' AND counts_until IS NOT NULL;
CREATE INDEX devices_counting_license ON devices (license_id, counts_until) WHERE state <> 'active' AND counts_until IS NOT NULL;

-- Fingerprints that a device had before it reported another, as after a change of its disk, while
-- they count.
CREATE TABLE past_fingerprints (
  license_id   TEXT NOT NULL REFERENCES licenses (id),               -- the licence of the device
  fingerprint  BLOB NOT NULL CHECK (length(fingerprint) = 32),       -- SHA-256 of what the device sent
  counts_until TEXT NOT NULL CHECK (counts_until IS strftime('%Y-%m-%dT%H:%M:%SZ', counts_until, '+0 days')), -- until when it counts; the row is removed then
  PRIMARY KEY (license_id, fingerprint)
) STRICT, WITHOUT ROWID;
CREATE INDEX past_fingerprints_counting ON past_fingerprints (counts_until);
CREATE INDEX past_fingerprints_counting_license ON past_fingerprints (license_id, counts_until);

-- How many seats of a licence are taken, and how many fingerprints count. Triggers keep the counts,
-- also when a device is changed with the sqlite3 shell; a licence without a row has none.
CREATE TABLE license_seats (
  license_id TEXT PRIMARY KEY REFERENCES licenses (id),              -- which licence
  used       INTEGER NOT NULL CHECK (used >= 0),                     -- its active devices
  counting   INTEGER NOT NULL CHECK (counting >= 0)                  -- its devices that are counting, and its past fingerprints
) STRICT, WITHOUT ROWID;

CREATE TRIGGER devices_added AFTER INSERT ON devices WHEN new.counting BEGIN
  INSERT INTO license_seats (license_id, used, counting) VALUES (new.license_id, new.state = 'active', 1)
    ON CONFLICT DO UPDATE SET used = used + excluded.used, counting = counting + 1;
END;
CREATE TRIGGER devices_removed AFTER DELETE ON devices WHEN old.counting BEGIN
  UPDATE license_seats SET used = max(0, used - (old.state = 'active')), counting = max(0, counting - 1)
    WHERE license_id = old.license_id;
END;
CREATE TRIGGER devices_changed AFTER UPDATE OF state, license_id, counts_until ON devices
WHEN old.state <> new.state OR old.license_id <> new.license_id OR old.counting <> new.counting BEGIN
  UPDATE license_seats SET used = max(0, used - (old.state = 'active')), counting = max(0, counting - 1)
    WHERE license_id = old.license_id AND old.counting;
  INSERT INTO license_seats (license_id, used, counting) SELECT new.license_id, new.state = 'active', 1
    WHERE new.counting
    ON CONFLICT DO UPDATE SET used = used + excluded.used, counting = counting + 1;
END;
-- The tokens of a device end when its seat is taken away with the sqlite3 shell, too.
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
  id            TEXT PRIMARY KEY CHECK (id LIKE 'wgt\_%' ESCAPE '\'), -- wgt_…, public: pages contain it
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account that owns it
  name          TEXT NOT NULL CHECK (name <> ''),                    -- for people: "Lunch menu, Altstadt"
  public_orders INTEGER NOT NULL DEFAULT 0 CHECK (public_orders IN (0, 1)), -- 1: callers without a token see the orders too
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')) -- when it was added
) STRICT, WITHOUT ROWID;
CREATE INDEX widgets_account ON widgets (account_id, id);

CREATE TABLE widget_counts (
  widget_id  TEXT NOT NULL REFERENCES widgets (id),                  -- which widget
  quarter    TEXT NOT NULL CHECK (quarter LIKE '____-__-__T__:__:00Z'), -- start of a UTC quarter-hour: 2026-11-21T10:45:00Z
  views      INTEGER NOT NULL DEFAULT 0,                             -- how often it was shown
  visitors   INTEGER NOT NULL DEFAULT 0,                             -- how many of the views were a visitor's first on the UTC day
  clicks     INTEGER NOT NULL DEFAULT 0,                             -- clicks on an item
  orders     INTEGER NOT NULL DEFAULT 0,                             -- orders placed
  PRIMARY KEY (widget_id, quarter)
) STRICT, WITHOUT ROWID;

CREATE TABLE item_counts (
  widget_id  TEXT NOT NULL REFERENCES widgets (id),                  -- which widget
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),            -- UTC day
  item       TEXT NOT NULL,                                          -- the dish, or "other" past 100 names a day
  clicks     INTEGER NOT NULL DEFAULT 0,                             -- clicks on it
  orders     INTEGER NOT NULL DEFAULT 0,                             -- orders of it
  PRIMARY KEY (widget_id, day, item)
) STRICT, WITHOUT ROWID;

CREATE TABLE page_counts (
  widget_id  TEXT NOT NULL REFERENCES widgets (id),                  -- which widget
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),            -- UTC day
  page       TEXT NOT NULL CHECK (length(page) <= 200),              -- path of the page that it was on, or "other" past 100 pages a day
  views      INTEGER NOT NULL DEFAULT 0,                             -- how often it was shown there
  clicks     INTEGER NOT NULL DEFAULT 0,                             -- clicks on an item there
  orders     INTEGER NOT NULL DEFAULT 0,                             -- orders placed there
  PRIMARY KEY (widget_id, day, page)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,                      -- order of writing
  id         TEXT NOT NULL CHECK (id LIKE 'evt\_%' ESCAPE '\'),      -- evt_…
  at         TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at, '+0 days')),   -- when it happened
  type       TEXT NOT NULL,                                          -- license.created, device.activated, lead.created, …
  account_id TEXT NOT NULL REFERENCES accounts (id),                 -- the account that owns it
  subject_id TEXT NOT NULL DEFAULT '',                               -- the licence (also of a device), lead, widget, token or account that it is about
  actor      TEXT NOT NULL,                                          -- who did it: device, site, command:anna, a token's id, time
  data       TEXT NOT NULL DEFAULT '{}' CHECK (json_type(data) = 'object') -- what else there is to say: {"device_id":"dev_…"}
) STRICT;
CREATE INDEX events_account ON events (account_id);
-- Of one type in the order of seq, however rare. It and leads_type cost a lead a fifteenth of its time (docs/performance.md).
CREATE INDEX events_type ON events (type);
CREATE INDEX events_license ON events (subject_id) WHERE subject_id GLOB 'lic_*';

CREATE TABLE idempotency (
  id          BLOB PRIMARY KEY CHECK (length(id) = 32),              -- keyed hash of caller, route and Idempotency-Key
  request     BLOB NOT NULL CHECK (length(request) = 32),            -- keyed hash of the body, to notice another one
  answer      BLOB NOT NULL,                                         -- the 2xx answer, sealed under a key that needs the Idempotency-Key
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')) -- replayed until then
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE legacy_calls (
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),            -- UTC day
  path       TEXT NOT NULL,                                          -- a known path under /api/legacy, or "other"
  caller     TEXT NOT NULL,                                          -- the account that called, or "unknown"
  calls      INTEGER NOT NULL,                                       -- how often
  last_at    TEXT NOT NULL CHECK (last_at IS strftime('%Y-%m-%dT%H:%M:%SZ', last_at, '+0 days')), -- when it last called
  PRIMARY KEY (day, path, caller)
) STRICT, WITHOUT ROWID;

-- What the service counts and no other table holds: how often it was on a business day of the main account. The names
-- are the program's own, at most 60 a day; and on a UTC day one of each account for what the trap for bots caught.
CREATE TABLE daily_counts (
  day        TEXT NOT NULL CHECK (day LIKE '____-__-__'),            -- the business day: 2026-11-21
  name       TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 40),    -- what: "verified", "refused_429", "trapped_acct_…"
  n          INTEGER NOT NULL CHECK (n >= 0),                        -- how often; of file_bytes, the size of the file
  PRIMARY KEY (day, name)
) STRICT, WITHOUT ROWID;

-- Where the events of an account are sent to. The secrets that sign them are not here: each is
-- derived from the key file, the id of the row and secret_number.
CREATE TABLE webhooks (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'whe\_%' ESCAPE '\'), -- whe_…
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account whose events it gets
  url           TEXT NOT NULL CHECK (url LIKE 'http%://%' AND length(url) <= 2048), -- where they are posted to
  types         TEXT NOT NULL CHECK (json_type(types) = 'array'),    -- which types of events: ["license.created"]
  description   TEXT CHECK (length(description) <= 200),             -- for people: "Our CRM"
  state         TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'enabled', 'disabled')), -- pending: until it has answered a test with 2xx
  reason        TEXT,                                                -- why it was disabled: owner, gone (it answered 410), failing
  secret_number INTEGER NOT NULL DEFAULT 1 CHECK (secret_number >= 1), -- how often it got a secret; the one before also signs for 24 h
  rotated_at    TEXT CHECK (rotated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', rotated_at, '+0 days')), -- when it last got another secret; NULL: never
  failing_since TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since, '+0 days')), -- the first failure since it last answered 2xx; NULL: none
  test_seq      INTEGER,                                             -- the event webhook.test that is still to be sent; NULL: none
  made_by       TEXT NOT NULL,                                       -- who added it, as in events
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was added
  updated_at    TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at, '+0 days')) -- when url, types, description, state or secret last changed
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_account ON webhooks (account_id, id);

-- What is still to be sent to each webhook that is enabled. Whenever one is enabled it gets a new
-- queue, which begins with the next event; when it is not enabled any more, the queue is removed.
CREATE TABLE webhook_queues (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,                      -- a number that is given once
  webhook_id TEXT NOT NULL UNIQUE REFERENCES webhooks (id),          -- the webhook that it belongs to
  sent_seq   INTEGER NOT NULL,                                       -- every event up to this one was sent, or is in webhook_retries
  replay_seq INTEGER,                                                -- the same for the events that are replayed; NULL: none are
  replay_end INTEGER                                                 -- the last event to be replayed
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
-- An account that is opened again begins then: what happened while it was closed is not sent, also not to the
-- webhooks that its applications have made in other accounts.
CREATE TRIGGER accounts_reopened AFTER UPDATE OF closed_at ON accounts WHEN new.closed_at IS NULL AND old.closed_at IS NOT NULL BEGIN
  DELETE FROM webhook_queues WHERE webhook_id IN (SELECT id FROM webhooks WHERE account_id = new.id
    UNION ALL SELECT x.webhook_id FROM apps p JOIN app_webhooks x ON x.app_id = p.id WHERE p.account_id = new.id);
  INSERT INTO webhook_queues (webhook_id, sent_seq) SELECT id, (SELECT coalesce(max(seq), 0) FROM events)
    FROM webhooks WHERE state = 'enabled' AND id IN (SELECT id FROM webhooks WHERE account_id = new.id
    UNION ALL SELECT x.webhook_id FROM apps p JOIN app_webhooks x ON x.app_id = p.id WHERE p.account_id = new.id);
END;

-- Events that a webhook did not accept, until they are tried again. Rows of a queue that is gone
-- are removed within minutes.
CREATE TABLE webhook_retries (
  queue_id   INTEGER NOT NULL,                                       -- the queue that it belongs to
  event_seq  INTEGER NOT NULL,                                       -- the event to send
  attempts   INTEGER NOT NULL CHECK (attempts >= 0),                 -- how often it was tried
  due_at     TEXT NOT NULL CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at, '+0 days')), -- when it is tried again
  PRIMARY KEY (queue_id, event_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_retries_due ON webhook_retries (queue_id, due_at);

-- Each attempt to send an event to a webhook: those of 30 days, and the last 1,000 of a webhook.
CREATE TABLE deliveries (
  webhook_id   TEXT NOT NULL,                                        -- where it was sent to
  id           TEXT NOT NULL CHECK (id LIKE 'whd\_%' ESCAPE '\'),   -- whd_…
  event_seq    INTEGER NOT NULL,                                     -- the event
  event_id     TEXT NOT NULL,                                        -- its id, the webhook-id that was sent
  type         TEXT NOT NULL,                                        -- its type
  attempt      INTEGER NOT NULL CHECK (attempt >= 1),                -- which try it was, from 1
  at           TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at, '+0 days')), -- when it was sent
  milliseconds INTEGER NOT NULL,                                     -- how long it took
  status       INTEGER,                                              -- the HTTP status of the answer; NULL: there was none
  error        TEXT,                                                 -- why there was none: timeout, connection, tls, …
  answer       TEXT,                                                 -- the first 2 KiB of the answer to a failure
  next_at      TEXT CHECK (next_at IS strftime('%Y-%m-%dT%H:%M:%SZ', next_at, '+0 days')), -- when it is tried again; NULL: not
  PRIMARY KEY (webhook_id, id)
) STRICT, WITHOUT ROWID;

-- The logos of accounts. Two that have the same have one row.
CREATE TABLE logos (
  hash    TEXT PRIMARY KEY CHECK (length(hash) = 64),                -- SHA-256 of the content, hexadecimal
  type    TEXT NOT NULL CHECK (type IN ('image/png', 'image/jpeg', 'image/webp')), -- its media type
  content BLOB NOT NULL CHECK (length(content) <= 32768)             -- as it was given
) STRICT;

-- What else is known of an account that takes orders. An account without a row has the defaults.
CREATE TABLE account_settings (
  account_id    TEXT PRIMARY KEY REFERENCES accounts (id),           -- the account
  zone          TEXT NOT NULL DEFAULT 'UTC',                         -- its time zone: Europe/Zurich
  cut_off       TEXT NOT NULL DEFAULT '04:00' CHECK (cut_off GLOB '[01][0-9]:[0-5][0-9]' OR cut_off GLOB '2[0-3]:[0-5][0-9]'), -- when its business day ends, in its zone
  legal_name    TEXT,                                                -- on receipts: "Trattoria Roma GmbH"
  address       TEXT,                                                -- on receipts, in lines
  vat_number    TEXT,                                                -- on receipts: CHE-123.456.789 MWST
  capture_on    TEXT NOT NULL DEFAULT 'accept' CHECK (capture_on IN ('accept', 'handover')), -- when cards are charged
  accept_within INTEGER NOT NULL DEFAULT 30 CHECK (accept_within BETWEEN 1 AND 10080), -- minutes until an authorised order that nobody accepts is released
  phone         TEXT CHECK (length(phone) <= 30),                    -- where guests call it: +41 32 622 00 00
  contact       TEXT CHECK (length(contact) <= 300),                 -- where guests write to it: mailto:info@roma.example
  color         TEXT CHECK (length(color) = 7),                      -- of links and buttons on its pages: #1a6b3c
  logo          TEXT REFERENCES logos (hash)                         -- on its pages
) STRICT, WITHOUT ROWID;
CREATE INDEX account_settings_logo ON account_settings (logo) WHERE logo IS NOT NULL;

-- The accounts that an account has at payment providers.
CREATE TABLE payment_connections (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'con\_%' ESCAPE '\'),  -- con_…
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the account whose money it is
  provider    TEXT NOT NULL CHECK (provider IN ('stripe', 'vipps')), -- stripe: by card; vipps: by mobile phone
  live        INTEGER NOT NULL CHECK (live IN (0, 1)),               -- 0: test keys, no money moves
  name        TEXT NOT NULL DEFAULT '',                              -- what the provider calls it: the merchant serial number
  secrets     BLOB NOT NULL,                                         -- keys and the webhook's secret, sealed under a key that is derived from the key file
  webhook_id  TEXT,                                                  -- of our webhook at the provider; NULL: none is registered
  webhook_url TEXT,                                                  -- where the provider posts to
  failing_since TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since, '+0 days')), -- since when the provider refuses its keys; NULL: it does not
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  removed_at  TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at, '+0 days')), -- since when it takes no new payments; NULL: it is in use
  methods     TEXT NOT NULL DEFAULT '[]' CHECK (json_type(methods) = 'array'), -- by which guests can pay: ["card","twint"]; []: by the provider's first one only
  payouts_due_at TEXT CHECK (payouts_due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', payouts_due_at, '+0 days')), -- when the provider is asked next what it pays out; NULL: at once
  payouts_cursor TEXT NOT NULL DEFAULT '',                           -- how far that was read: a date, at Vipps perhaps with a page of it; '': not at all
  payouts_failing TEXT                                               -- why it could not be read last: http_403; NULL: it could
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX payment_connections_used ON payment_connections (account_id, provider) WHERE removed_at IS NULL;
CREATE INDEX payment_connections_payouts ON payment_connections (payouts_due_at);

-- The methods by which a provider has refused for good to begin an attempt, since it last began one.
CREATE TABLE payment_refusals (
  connection_id TEXT NOT NULL REFERENCES payment_connections (id),   -- whose attempts
  method      TEXT NOT NULL CHECK (method IN ('card', 'mobile', 'twint')), -- how guests were to pay
  code        TEXT NOT NULL CHECK (length(code) <= 100),             -- of the last one, as the provider names it
  words       TEXT NOT NULL CHECK (length(words) <= 300),            -- what the provider says of that; may hold account numbers; '': nothing
  since       TEXT NOT NULL CHECK (since IS strftime('%Y-%m-%dT%H:%M:%SZ', since, '+0 days')), -- when the first one was refused
  refused_at  TEXT NOT NULL CHECK (refused_at IS strftime('%Y-%m-%dT%H:%M:%SZ', refused_at, '+0 days')), -- when the last one was
  count       INTEGER NOT NULL CHECK (count > 0),                    -- how many there were, of different orders
  order_ids   TEXT NOT NULL CHECK (json_type(order_ids) = 'array'),  -- the last three of those orders
  PRIMARY KEY (connection_id, method)
) STRICT, WITHOUT ROWID;

-- Amounts are integers in the minor unit of the order's currency: 1250 is 12.50. Prices have VAT in them;
-- rates are in hundredths of a percent: 810 is 8.1 %.
CREATE TABLE orders (
  id             TEXT PRIMARY KEY CHECK (id LIKE 'ord\_%' ESCAPE '\'), -- ord_…
  account_id     TEXT NOT NULL REFERENCES accounts (id),             -- the account that owns it
  reference      TEXT CHECK (length(reference) <= 200),              -- the account's own number for it; unique there
  state          TEXT NOT NULL CHECK (state IN ('open', 'authorized', 'accepted', 'paid', 'part_refunded', 'refunded', 'cancelled', 'expired')), -- how far it is
  dispute        TEXT CHECK (dispute IN ('open', 'won', 'lost')),    -- of its payment; NULL: none
  currency       TEXT NOT NULL CHECK (length(currency) = 3),         -- ISO 4217: CHF
  lines          TEXT NOT NULL CHECK (json_type(lines) = 'array'),   -- [{"name":"Pizza","quantity":2,"unit_amount":1850,"vat_rate":260,"group":"food","gross":3700,"accepted":2,"refunded":0}]; gross: of all units, less their discount
  discount       INTEGER NOT NULL DEFAULT 0 CHECK (discount >= 0),   -- off lines and delivery
  delivery       INTEGER NOT NULL DEFAULT 0 CHECK (delivery >= 0),   -- for bringing it
  delivery_rate  INTEGER NOT NULL DEFAULT 0 CHECK (delivery_rate BETWEEN 0 AND 10000), -- VAT rate of delivery
  delivery_gross INTEGER NOT NULL DEFAULT 0 CHECK (delivery_gross >= 0), -- delivery less its discount
  tip            INTEGER NOT NULL DEFAULT 0 CHECK (tip >= 0),        -- without VAT, never discounted
  ordered_total  INTEGER NOT NULL CHECK (ordered_total >= 0),        -- what was to be paid for all of it
  total          INTEGER NOT NULL CHECK (total >= 0),                -- what is to be paid for what was accepted
  vat            TEXT NOT NULL CHECK (json_type(vat) = 'array'),     -- of total, by rate: [{"rate":260,"gross":3700,"vat":94}]
  refunded       INTEGER NOT NULL DEFAULT 0 CHECK (refunded >= 0),   -- of total, by refunds that are pending or done
  method         TEXT CHECK (method IN ('card', 'mobile', 'twint', 'cash', 'terminal', 'voucher', 'other', 'none')), -- how it is paid; NULL: not yet known; none: its total is 0
  payment_id     TEXT,                                               -- the last attempt to pay it; NULL: none
  attempts       INTEGER NOT NULL DEFAULT 0,                         -- how many there were
  capture        INTEGER NOT NULL DEFAULT 0 CHECK (capture IN (0, 1)), -- 1: its money is to be captured
  closing        TEXT CHECK (closing IN ('expired', 'paid', 'method')), -- what waits until its attempt is closed: to expire, to be paid outside, to be paid by another method; NULL: nothing
  outside_method TEXT,                                               -- how it was paid outside, while closing is paid
  outside_at     TEXT CHECK (outside_at IS strftime('%Y-%m-%dT%H:%M:%SZ', outside_at, '+0 days')), -- and when
  return_url     TEXT NOT NULL,                                      -- where the guest goes afterwards
  cancel_url     TEXT,                                               -- where the guest goes on while nothing is paid; NULL: to return_url
  page_key       BLOB NOT NULL CHECK (length(page_key) = 32),        -- SHA-256 of the k in its pay_url
  expires_at     TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')), -- until when it can be paid
  accept_by      TEXT CHECK (accept_by IS strftime('%Y-%m-%dT%H:%M:%SZ', accept_by, '+0 days')), -- until when it is to be accepted, once authorised
  created_at     TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  authorized_at  TEXT CHECK (authorized_at IS strftime('%Y-%m-%dT%H:%M:%SZ', authorized_at, '+0 days')), -- when its money was authorised
  accepted_at    TEXT CHECK (accepted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', accepted_at, '+0 days')), -- when the restaurant accepted it
  paid_at        TEXT CHECK (paid_at IS strftime('%Y-%m-%dT%H:%M:%SZ', paid_at, '+0 days')), -- when its money was captured, or paid outside
  ended_at       TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')), -- when it was paid, cancelled or expired
  pay            TEXT NOT NULL DEFAULT 'online' CHECK (pay IN ('online', 'later')), -- later: at the restaurant or at the door, once it was accepted
  wanted_at      TEXT CHECK (wanted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', wanted_at, '+0 days')), -- when the guest wants it; NULL: as soon as possible; 1970-01-01T00:00:00Z: erased, and with it, once the order has ended, the times above that follow from it, which are created_at then
  reject_reason  TEXT CHECK (reject_reason IN ('sold_out', 'closed', 'too_busy', 'too_far', 'address', 'other')), -- why the restaurant has refused it; NULL: it has not, or gave no reason
  reject_text    TEXT CHECK (length(reject_text) <= 200),            -- what the restaurant adds for the guest
  paid_from      TEXT CHECK (paid_from IN ('open', 'accepted', 'expired')), -- its state before it was marked as paid outside; NULL: it was not
  seller         TEXT CHECK (json_type(seller) = 'object'),          -- whose receipt it is, as when it was paid: {"name":"Trattoria Roma GmbH","address":"…","vat_number":"…","zone":"Europe/Zurich"}; NULL: not paid, or before version 9
  ready_at       TEXT CHECK (ready_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ready_at, '+0 days')) -- when the restaurant says that it is ready; NULL: it does not say
) STRICT, WITHOUT ROWID;
CREATE INDEX orders_account ON orders (account_id, id);
CREATE UNIQUE INDEX orders_reference ON orders (account_id, reference) WHERE reference IS NOT NULL;
CREATE INDEX orders_state ON orders (account_id, state, id);
CREATE INDEX orders_expiring ON orders (expires_at) WHERE state = 'open' AND closing IS NULL;
CREATE INDEX orders_waiting ON orders (accept_by) WHERE state = 'authorized';

-- Who ordered: kept until 30 days after the order's end. Rows are only added at the end, see leads.
CREATE TABLE order_customers (
  seq      INTEGER PRIMARY KEY,                                      -- order of writing
  order_id TEXT NOT NULL UNIQUE REFERENCES orders (id),              -- the order
  name     TEXT,                                                     -- of the guest
  phone    TEXT,                                                     -- of the guest
  note     TEXT,                                                     -- what the guest asks for
  erase_at TEXT CHECK (erase_at IS strftime('%Y-%m-%dT%H:%M:%SZ', erase_at, '+0 days')), -- when this row is erased; NULL: the order has not ended
  fulfilment TEXT CHECK (json_type(fulfilment) = 'object'),          -- how the guest gets it: {"type":"delivery","address":{"line1":"…","line2":null,"postal_code":"8001","city":"Zürich","country":"CH"},"table":null}
  language TEXT CHECK (length(language) <= 16)                       -- of the pages that the guest reads: de
) STRICT;
CREATE INDEX order_customers_due ON order_customers (erase_at) WHERE erase_at IS NOT NULL;

-- Attempts to pay an order at a provider.
CREATE TABLE payments (
  id             TEXT PRIMARY KEY CHECK (id LIKE 'pay\_%' ESCAPE '\'), -- pay_…; at Vipps its reference, with - for _
  order_id       TEXT NOT NULL REFERENCES orders (id),               -- the order
  account_id     TEXT NOT NULL REFERENCES accounts (id),             -- the account that owns it
  connection_id  TEXT NOT NULL REFERENCES payment_connections (id),  -- whose money it is, and where
  provider       TEXT NOT NULL CHECK (provider IN ('stripe', 'vipps')), -- where
  method         TEXT NOT NULL CHECK (method IN ('card', 'mobile', 'twint')), -- how
  state          TEXT NOT NULL CHECK (state IN ('created', 'pending', 'authorized', 'captured', 'part_refunded', 'refunded', 'failed', 'cancelled', 'expired', 'review')), -- how far it is
  amount         INTEGER NOT NULL CHECK (amount > 0),                -- that the guest was asked for
  currency       TEXT NOT NULL,                                      -- ISO 4217
  authorized     INTEGER NOT NULL DEFAULT 0,                         -- that the provider says can still be captured
  captured       INTEGER NOT NULL DEFAULT 0,                         -- that the provider says was captured
  refunded       INTEGER NOT NULL DEFAULT 0,                         -- that the provider says was given back
  session_id     TEXT,                                               -- Stripe's Checkout Session
  intent_id      TEXT,                                               -- Stripe's PaymentIntent, Vipps' pspReference
  url            TEXT,                                               -- where the guest pays, while it is pending
  reason         TEXT,                                               -- why it failed, or is in review
  capture_before TEXT CHECK (capture_before IS strftime('%Y-%m-%dT%H:%M:%SZ', capture_before, '+0 days')), -- when the authorisation lapses
  warned         INTEGER NOT NULL DEFAULT 0 CHECK (warned IN (0, 1)), -- 1: the end of the authorisation was told of
  due_at         TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at, '+0 days')), -- when the provider is asked next; NULL: not any more
  polls          INTEGER NOT NULL DEFAULT 0,                         -- how often it was asked without news
  revision       INTEGER NOT NULL DEFAULT 1,                         -- grows with each change and each look that is asked for
  created_at     TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was begun
  authorized_at  TEXT CHECK (authorized_at IS strftime('%Y-%m-%dT%H:%M:%SZ', authorized_at, '+0 days')), -- when the money was seen to be authorised
  captured_at    TEXT CHECK (captured_at IS strftime('%Y-%m-%dT%H:%M:%SZ', captured_at, '+0 days')), -- when it was captured, as the provider says, or was seen to be
  checked_at     TEXT CHECK (checked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', checked_at, '+0 days')), -- when the provider last answered about it
  ended_at       TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')), -- when it failed, expired or was cancelled
  refunds_differ_since TEXT CHECK (refunds_differ_since IS strftime('%Y-%m-%dT%H:%M:%SZ', refunds_differ_since, '+0 days')) -- since when the provider says that more was given back than the refunds that are done or under way
) STRICT, WITHOUT ROWID;
CREATE INDEX payments_order ON payments (order_id);
CREATE INDEX payments_account ON payments (account_id, id);
CREATE INDEX payments_intent ON payments (intent_id) WHERE intent_id IS NOT NULL;
CREATE INDEX payments_review ON payments (id) WHERE state = 'review';
CREATE INDEX payments_due ON payments (due_at) WHERE due_at IS NOT NULL;
-- One live attempt for an order.
CREATE UNIQUE INDEX payments_live ON payments (order_id) WHERE state IN ('created', 'pending', 'authorized');

-- What was asked of providers, written before it is sent. The id is its idempotency key there.
CREATE TABLE payment_operations (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'opr\_%' ESCAPE '\'),  -- opr_…
  payment_id  TEXT NOT NULL REFERENCES payments (id),                -- the attempt
  kind        TEXT NOT NULL CHECK (kind IN ('create', 'capture', 'cancel', 'expire', 'refund')), -- what
  amount      INTEGER NOT NULL DEFAULT 0,                            -- of money, for create, capture and refund
  refund_id   TEXT,                                                  -- the refund that it carries out
  source      TEXT NOT NULL DEFAULT 'widgetd' CHECK (source IN ('widgetd', 'provider')), -- provider: somebody did it on the provider's own pages
  state       TEXT NOT NULL CHECK (state IN ('pending', 'done', 'refused')), -- pending: its answer is not known
  request     BLOB,                                                  -- exactly what is sent, sealed; NULL: it is not pending
  status      INTEGER,                                               -- HTTP status of the last answer; NULL: none
  error       TEXT,                                                  -- why it was refused, or has no answer
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was written, and first sent
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')) -- when its result was known
) STRICT, WITHOUT ROWID;
CREATE INDEX payment_operations_payment ON payment_operations (payment_id, id);
CREATE UNIQUE INDEX payment_operations_pending ON payment_operations (payment_id) WHERE state = 'pending';

CREATE TABLE refunds (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'ref\_%' ESCAPE '\'),  -- ref_…
  order_id    TEXT NOT NULL REFERENCES orders (id),                  -- the order
  payment_id  TEXT REFERENCES payments (id),                         -- the attempt whose money goes back; NULL: it was paid outside
  amount      INTEGER NOT NULL CHECK (amount > 0),                   -- that goes back
  lines       TEXT CHECK (json_type(lines) = 'array'),               -- [{"line":0,"quantity":1},{"line":1,"amount":500}]; NULL: not by lines
  vat         TEXT NOT NULL CHECK (json_type(vat) = 'array'),        -- of amount, by rate, as in orders
  tip         INTEGER NOT NULL DEFAULT 0 CHECK (tip >= 0),           -- of amount
  reason      TEXT CHECK (length(reason) <= 200),                    -- why, for people
  source      TEXT NOT NULL DEFAULT 'widgetd' CHECK (source IN ('widgetd', 'provider')), -- provider: somebody did it on the provider's own pages
  state       TEXT NOT NULL CHECK (state IN ('pending', 'succeeded', 'failed')), -- what came of it; one that succeeded may fail later
  failure     TEXT,                                                  -- why it failed
  provider_id TEXT,                                                  -- Stripe's re_…
  made_by     TEXT NOT NULL,                                         -- who, as in events
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was asked for, or made at the provider
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')), -- when its result was known
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the account that owns the order
  delivery    INTEGER CHECK (delivery >= 0),                         -- of amount, for the delivery, as was asked for; NULL: not aimed at it
  kind        TEXT NOT NULL DEFAULT 'asked' CHECK (kind IN ('asked', 'not_accepted', 'found')), -- asked: by the restaurant; not_accepted: made since it was not accepted; found: made on the provider's own pages
  asked       TEXT CHECK (json_type(asked) = 'object')               -- what was asked for; NULL: all that was left, or nobody has asked, or before version 12
) STRICT, WITHOUT ROWID;
CREATE INDEX refunds_order ON refunds (order_id, id);
CREATE INDEX refunds_account ON refunds (account_id, id);
CREATE UNIQUE INDEX refunds_provider ON refunds (payment_id, provider_id) WHERE provider_id IS NOT NULL;

-- Payments that guests have disputed with their banks.
CREATE TABLE disputes (
  payment_id  TEXT NOT NULL REFERENCES payments (id),                -- the attempt
  id          TEXT NOT NULL,                                         -- Stripe's dp_…
  order_id    TEXT NOT NULL REFERENCES orders (id),                  -- the order
  amount      INTEGER NOT NULL,                                      -- in dispute
  state       TEXT NOT NULL CHECK (state IN ('inquiry', 'open', 'won', 'lost')), -- inquiry: the bank only asks, and takes nothing; won: the money stays
  reason      TEXT,                                                  -- as the provider names it: fraudulent
  opened_at   TEXT NOT NULL CHECK (opened_at IS strftime('%Y-%m-%dT%H:%M:%SZ', opened_at, '+0 days')), -- when it was opened
  closed_at   TEXT CHECK (closed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', closed_at, '+0 days')), -- when it was seen to be decided
  taken       INTEGER NOT NULL DEFAULT 0,                            -- that the provider has taken for it from the account's balance, less what it has put back
  evidence_by TEXT CHECK (evidence_by IS strftime('%Y-%m-%dT%H:%M:%SZ', evidence_by, '+0 days')), -- until when it can be answered; NULL: it can't, or the provider does not say
  moved_at    TEXT NOT NULL CHECK (moved_at IS strftime('%Y-%m-%dT%H:%M:%SZ', moved_at, '+0 days')), -- when taken changed last, as the provider says; as long as it has not: when it was seen first
  PRIMARY KEY (payment_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX disputes_open ON disputes (opened_at) WHERE closed_at IS NULL;

-- What providers pay out, and take back: amounts are in the minor unit, and negative if the provider takes them.
CREATE TABLE payouts (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'pot\_%' ESCAPE '\'), -- pot_…
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account that gets it
  connection_id TEXT NOT NULL REFERENCES payment_connections (id),   -- by which it is read
  provider      TEXT NOT NULL CHECK (provider IN ('stripe', 'vipps')), -- who pays
  provider_id   TEXT,                                                -- Stripe's po_…, Vipps' pspReference; NULL: it is not scheduled yet
  state         TEXT NOT NULL CHECK (state IN ('expected', 'reading', 'ready', 'paid', 'failed', 'canceled', 'opaque')), -- ready: what is in it was read; opaque: the provider does not tell what is in it
  reason        TEXT,                                                -- why it is not booked: does_not_add_up; NULL: it can be
  amount        INTEGER NOT NULL,                                    -- that arrives
  currency      TEXT NOT NULL CHECK (length(currency) = 3),          -- ISO 4217
  arrival_date  TEXT CHECK (arrival_date IS date(arrival_date, '+0 days')), -- when it arrives, as the provider says; NULL: it is not scheduled yet
  automatic     INTEGER NOT NULL CHECK (automatic IN (0, 1)),        -- 0: somebody has asked for it
  method        TEXT NOT NULL DEFAULT '',                            -- standard or instant; '': the provider does not say
  status        TEXT NOT NULL DEFAULT '',                            -- the provider's own word for its state: in_transit
  fee           INTEGER NOT NULL DEFAULT 0,                          -- of all that is in it
  tax           INTEGER NOT NULL DEFAULT 0,                          -- on fees
  items         INTEGER NOT NULL DEFAULT 0,                          -- how many rows of payout_items it has
  cursor        TEXT NOT NULL DEFAULT '',                            -- how far those were read; '': from the beginning
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was seen first
  read_at       TEXT CHECK (read_at IS strftime('%Y-%m-%dT%H:%M:%SZ', read_at, '+0 days')), -- when what is in it was read; NULL: not yet
  ended_at      TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')), -- when it was seen to be failed or canceled
  confirmed_at  TEXT CHECK (confirmed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', confirmed_at, '+0 days')) -- when the operator has compared it with the bank; NULL: not
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX payouts_provider ON payouts (account_id, provider, provider_id) WHERE provider_id IS NOT NULL;
CREATE UNIQUE INDEX payouts_expected ON payouts (connection_id, currency) WHERE provider_id IS NULL;
CREATE INDEX payouts_arrival ON payouts (account_id, arrival_date, id);
CREATE INDEX payouts_date ON payouts (arrival_date, id);
CREATE INDEX payouts_account ON payouts (account_id, id);
CREATE INDEX payouts_reading ON payouts (connection_id) WHERE state = 'reading';
CREATE INDEX payouts_held ON payouts (reason, read_at) WHERE reason IN ('does_not_add_up', 'unconfirmed');
CREATE INDEX payouts_confirmed ON payouts (connection_id) WHERE confirmed_at IS NOT NULL;
CREATE INDEX payouts_ended ON payouts (account_id) WHERE ended_at IS NOT NULL;

-- What is in payouts, as the provider's ledger has it: net is amount - fee - tax.
CREATE TABLE payout_items (
  payout_id   TEXT NOT NULL REFERENCES payouts (id),                 -- in which payout
  id          TEXT NOT NULL,                                         -- the provider's id of the row
  category    TEXT NOT NULL CHECK (category IN ('payment', 'refund', 'dispute', 'fee', 'reserve', 'returned', 'correction', 'unknown')), -- returned: a payout that did not arrive
  kind        TEXT NOT NULL,                                         -- the provider's own name for that: partial_capture_reversal
  amount      INTEGER NOT NULL,                                      -- in the minor unit of the payout's currency; negative: it was taken
  fee         INTEGER NOT NULL,                                      -- that the provider keeps of it, without tax
  tax         INTEGER NOT NULL,                                      -- on the fee
  method      TEXT,                                                  -- how the payment was paid: card; NULL: it is of no payment
  source      TEXT,                                                  -- what it is about, as the provider names it: re_…
  payment_id  TEXT REFERENCES payments (id),                         -- the attempt; NULL: none of the account's
  shared      INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1)),   -- 1: it is of a payment of another account here, which uses the same account of the provider
  at          TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at, '+0 days')), -- when it happened
  PRIMARY KEY (payout_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX payout_items_payment ON payout_items (payment_id, payout_id) WHERE payment_id IS NOT NULL;

-- From which business day on an account has which time zone and cut-off. An account without rows has those
-- of its settings for all days.
CREATE TABLE account_zones (
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the account
  from_date   TEXT NOT NULL CHECK (from_date IS date(from_date, '+0 days')),      -- the first business day: 2026-03-29
  zone        TEXT NOT NULL,                                         -- as in account_settings
  cut_off     TEXT NOT NULL,                                         -- as in account_settings
  PRIMARY KEY (account_id, from_date)
) STRICT, WITHOUT ROWID;

-- Orders whose revenue could not be recorded, since a row of them can't be read. They are tried again each hour and
-- when the service starts.
CREATE TABLE revenue_backlog (
  order_id    TEXT PRIMARY KEY                                       -- the order
) STRICT, WITHOUT ROWID;

-- What moved, once written never changed: a row for each sale, refund and dispute, and one more for each
-- time that what it says has changed. Its figures count on its date, which is never a frozen day's.
CREATE TABLE revenue_facts (
  seq         INTEGER PRIMARY KEY,                                   -- order of writing
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the account whose revenue it is
  order_id    TEXT NOT NULL REFERENCES orders (id),                  -- the order
  source      TEXT NOT NULL,                                         -- of the order: sale, or the id of a refund or dispute
  currency    TEXT NOT NULL CHECK (length(currency) = 3),            -- ISO 4217
  date        TEXT NOT NULL CHECK (date IS date(date, '+0 days')),                -- the business day on which it counts
  own_date    TEXT NOT NULL CHECK (own_date IS date(own_date, '+0 days')),        -- the business day on which it happened
  at          TEXT NOT NULL CHECK (at IS strftime('%Y-%m-%dT%H:%M:%SZ', at, '+0 days')), -- when it happened
  method      TEXT NOT NULL CHECK (method IN ('card', 'mobile', 'twint', 'cash', 'terminal', 'voucher', 'other')), -- how it was paid
  test        INTEGER NOT NULL CHECK (test IN (0, 1)),               -- 1: with test keys, so no money moved
  figures     TEXT NOT NULL CHECK (json_type(figures) = 'array')     -- [{"what":"sale","rate":260,"group":"food","gross":3700,"vat":94}]; see revenue_sums
) STRICT;
CREATE INDEX revenue_facts_order ON revenue_facts (order_id);
CREATE INDEX revenue_facts_day ON revenue_facts (account_id, date, own_date);

-- The business days on which something counts.
CREATE TABLE revenue_days (
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- the account
  date        TEXT NOT NULL CHECK (date IS date(date, '+0 days')),                -- the business day
  currency    TEXT NOT NULL CHECK (length(currency) = 3),            -- ISO 4217
  frozen_at   TEXT CHECK (frozen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', frozen_at, '+0 days')), -- since when nothing is added to it; NULL: it is not frozen
  PRIMARY KEY (account_id, date, currency)
) STRICT, WITHOUT ROWID;

-- Sums of the figures of revenue_facts. A sale, a delivery and a tip are received; a refund of each and a
-- dispute are given back; a discount is told only, since prices are less their discount.
CREATE TABLE revenue_sums (
  account_id  TEXT NOT NULL,                                         -- as in revenue_days
  date        TEXT NOT NULL,                                         -- as in revenue_days
  currency    TEXT NOT NULL,                                         -- as in revenue_days
  method      TEXT NOT NULL,                                         -- as in revenue_facts
  test        INTEGER NOT NULL,                                      -- as in revenue_facts
  what        TEXT NOT NULL CHECK (what IN ('sale', 'delivery', 'tip', 'discount', 'refund', 'refund_delivery', 'refund_tip', 'dispute')), -- what it is
  rate        INTEGER NOT NULL,                                      -- VAT rate of sales, deliveries and their refunds; else 0
  group_name  TEXT NOT NULL,                                         -- of sales and their refunds: food; '': none
  gross       INTEGER NOT NULL,                                      -- VAT included
  vat         INTEGER NOT NULL,                                      -- of gross
  PRIMARY KEY (account_id, date, currency, method, test, what, rate, group_name)
) STRICT, WITHOUT ROWID;

-- What the makers of bookkeeping software have given the operator, for all accounts.
CREATE TABLE books_apps (
  product     TEXT PRIMARY KEY CHECK (product IN ('xero', 'fortnox')), -- the software
  client_id   TEXT NOT NULL,                                         -- of the application that is registered there
  secret      BLOB NOT NULL,                                         -- its client secret, sealed under a key that is derived from the key file
  changed_at  TEXT NOT NULL CHECK (changed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', changed_at, '+0 days')) -- when it was set
) STRICT, WITHOUT ROWID;

-- Owners who were sent to a product's pages to connect it, and have not come back yet.
CREATE TABLE books_authorizations (
  state_hash    BLOB PRIMARY KEY CHECK (length(state_hash) = 32),    -- SHA-256 of the state in the address
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account to connect
  product       TEXT NOT NULL CHECK (product IN ('xero', 'fortnox')), -- with which software
  verifier      BLOB NOT NULL,                                       -- of PKCE, sealed
  redirect_url  TEXT NOT NULL,                                       -- where the product sends them back to
  made_by       TEXT NOT NULL,                                       -- who, as in events
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  expires_at    TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')) -- until when it can be used, once
) STRICT, WITHOUT ROWID;
CREATE INDEX books_authorizations_account ON books_authorizations (account_id);
CREATE INDEX books_authorizations_expiring ON books_authorizations (expires_at);

-- The companies in bookkeeping software that accounts are connected with. A company that is connected
-- again gets its row back, so that none of its days is exported twice.
CREATE TABLE books_connections (
  id              TEXT PRIMARY KEY CHECK (id LIKE 'bkc\_%' ESCAPE '\'), -- bkc_…
  account_id      TEXT NOT NULL REFERENCES accounts (id),            -- the account whose revenue it gets
  product         TEXT NOT NULL CHECK (product IN ('xero', 'fortnox')), -- the software
  organisation_id TEXT,                                              -- Xero's tenant id, Fortnox' database number; NULL: it is to be chosen
  organisation    TEXT NOT NULL DEFAULT '',                          -- its name
  choices         TEXT CHECK (json_type(choices) = 'array'),         -- the companies to choose from, while it is to be chosen
  currency        TEXT,                                              -- of its books; NULL: not known yet
  secrets         BLOB,                                              -- its tokens, sealed; NULL: it has none
  tokens          INTEGER NOT NULL DEFAULT 0,                        -- how often they were replaced
  refreshing_until TEXT CHECK (refreshing_until IS strftime('%Y-%m-%dT%H:%M:%SZ', refreshing_until, '+0 days')), -- until when somebody else is replacing them; NULL: nobody is
  needs_reconnect_at TEXT CHECK (needs_reconnect_at IS strftime('%Y-%m-%dT%H:%M:%SZ', needs_reconnect_at, '+0 days')), -- since when its owner has to connect it again; NULL: not
  failing_since   TEXT CHECK (failing_since IS strftime('%Y-%m-%dT%H:%M:%SZ', failing_since, '+0 days')), -- since when it gives no answers; NULL: it does
  mapping         TEXT CHECK (json_type(mapping) = 'object'),        -- which account gets what, as confirmed; NULL: not yet
  mapping_at      TEXT CHECK (mapping_at IS strftime('%Y-%m-%dT%H:%M:%SZ', mapping_at, '+0 days')), -- when that was confirmed
  send_from       TEXT CHECK (send_from IS date(send_from, '+0 days')), -- the first business day that is sent on its own; NULL: none
  status          TEXT NOT NULL DEFAULT 'draft' CHECK (status IN ('draft', 'posted')), -- what Xero is to make of entries
  series          TEXT,                                              -- the voucher series at Fortnox
  outside         INTEGER NOT NULL DEFAULT 0 CHECK (outside IN (0, 1)), -- 1: what was paid outside is sent too, see books_switches
  tests           INTEGER NOT NULL DEFAULT 0 CHECK (tests IN (0, 1)), -- 1: what was paid with test keys is sent too, see books_switches
  created_at      TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was first made
  removed_at      TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at, '+0 days')), -- since when it is not in use; NULL: it is
  renewal_lost_at TEXT CHECK (renewal_lost_at IS strftime('%Y-%m-%dT%H:%M:%SZ', renewal_lost_at, '+0 days')), -- since when replacing its tokens had no usable answer; NULL: the last one had
  renew_at        TEXT CHECK (renew_at IS strftime('%Y-%m-%dT%H:%M:%SZ', renew_at, '+0 days')), -- when the worker replaces its tokens, which lapse unused, or tries that again; NULL: whoever needs them does
  payouts_from    TEXT CHECK (payouts_from IS date(payouts_from, '+0 days')) -- the first day of arrival from which on payouts are sent; NULL: none is
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX books_connections_used ON books_connections (account_id, product) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX books_connections_organisation ON books_connections (account_id, product, organisation_id) WHERE organisation_id IS NOT NULL;
CREATE INDEX books_connections_renewing ON books_connections (renew_at) WHERE renew_at IS NOT NULL;

-- What the switches of connections with books were before they were changed: at most one row for each connection and
-- business day. A connection without rows has had its own on all days.
CREATE TABLE books_switches (
  connection_id TEXT NOT NULL REFERENCES books_connections (id),     -- of which connection
  before_date   TEXT NOT NULL CHECK (before_date IS date(before_date, '+0 days')), -- they held on the business days before this one, back to the row before: 2026-02-10
  outside       INTEGER NOT NULL CHECK (outside IN (0, 1)),          -- as in books_connections
  tests         INTEGER NOT NULL CHECK (tests IN (0, 1)),            -- as in books_connections
  PRIMARY KEY (connection_id, before_date)
) STRICT, WITHOUT ROWID;

-- What is written into books: the entries of days and of payouts, and the entries that reverse them.
CREATE TABLE books_exports (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'exp\_%' ESCAPE '\'), -- exp_…
  connection_id TEXT NOT NULL REFERENCES books_connections (id),     -- into which books
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account that owns it
  date          TEXT NOT NULL CHECK (date IS date(date, '+0 days')),              -- the business day; of a payout: its day of arrival
  currency      TEXT NOT NULL CHECK (length(currency) = 3),          -- ISO 4217
  revision      INTEGER NOT NULL CHECK (revision > 0),               -- 1 for the first entry of the day or part
  reverses      TEXT,                                                -- the export whose entry this one reverses; NULL: it reverses none
  entry_date    TEXT NOT NULL CHECK (entry_date IS date(entry_date, '+0 days')),  -- the date in the books; another than the day's only for a reversal
  state         TEXT NOT NULL CHECK (state IN ('waiting', 'held', 'ready', 'sending', 'unknown', 'posted', 'failed', 'reversed')), -- how far it is
  reason        TEXT,                                                -- why it is held or failed; kept while it is sent again
  detail        TEXT,                                                -- of that, for people
  sync_key      TEXT NOT NULL,                                       -- in the entry's text: widgetd:acct_…:2026-03-29:r1
  entry         TEXT CHECK (json_type(entry) = 'object'),            -- the entry line by line, as it was sent last
  request       TEXT,                                                -- exactly what was sent last
  entry_id      TEXT,                                                -- in the books: a ManualJournalID, or series, number and year of a voucher
  attempts      INTEGER NOT NULL DEFAULT 0,                          -- how often it was sent
  changes       INTEGER NOT NULL DEFAULT 0,                          -- grows with each change
  due_at        TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at, '+0 days')), -- when it is looked at next; NULL: not any more
  held_at       TEXT CHECK (held_at IS strftime('%Y-%m-%dT%H:%M:%SZ', held_at, '+0 days')), -- since when it is held, has failed, or is unknown and can't be looked for; NULL: nothing of this
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was asked for, or came to be due
  sent_at       TEXT CHECK (sent_at IS strftime('%Y-%m-%dT%H:%M:%SZ', sent_at, '+0 days')), -- when it was sent last
  posted_at     TEXT CHECK (posted_at IS strftime('%Y-%m-%dT%H:%M:%SZ', posted_at, '+0 days')), -- when it was seen in the books
  reversed_at   TEXT CHECK (reversed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', reversed_at, '+0 days')), -- when it was reversed
  payout_id     TEXT REFERENCES payouts (id),                        -- of which payout; NULL: it is of a day
  part          TEXT CHECK ((part IS NULL) = (payout_id IS NULL) AND part IN ('payout', 'undo')) -- of a payout: undo takes back what was booked of one that then failed
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX books_exports_day ON books_exports (connection_id, date, currency, revision, ifnull(payout_id || part, ''));
CREATE UNIQUE INDEX books_exports_payout ON books_exports (payout_id, connection_id, part, revision) WHERE payout_id IS NOT NULL;
CREATE INDEX books_exports_account ON books_exports (account_id, id);
CREATE INDEX books_exports_due ON books_exports (connection_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX books_exports_held ON books_exports (held_at) WHERE held_at IS NOT NULL;

-- The money of a closed account's orders is released.
CREATE TRIGGER accounts_closed AFTER UPDATE OF closed_at ON accounts WHEN new.closed_at IS NOT NULL AND old.closed_at IS NULL BEGIN
  UPDATE payments SET due_at = new.closed_at, revision = revision + 1
    WHERE account_id = new.id AND state IN ('created', 'pending', 'authorized');
END;

-- Applications of others that may act for accounts (OAuth 2.0). An application that is removed stays until
-- its grants are gone.
CREATE TABLE apps (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'app\_%' ESCAPE '\'), -- app_…, its client_id
  account_id    TEXT NOT NULL REFERENCES accounts (id),              -- the account that owns it
  name          TEXT NOT NULL CHECK (name <> '' AND length(name) <= 60), -- as people who are asked read it
  home_page     TEXT NOT NULL CHECK (home_page LIKE 'http%://%'),   -- for people
  kind          TEXT NOT NULL CHECK (kind IN ('web', 'browser', 'installed', 'document')), -- web: it can keep a secret; document: nobody has registered it, and home_page is the address of its Client ID Metadata Document and its client_id
  host          TEXT CHECK ((host IS NOT NULL) = (kind = 'document')), -- of a document, by which it is limited: "app.example"; NULL: it is registered
  redirect_uris TEXT NOT NULL CHECK (json_type(redirect_uris) = 'array'), -- where people are sent back to: ["https://app.example/back"]
  scope         TEXT NOT NULL,                                       -- what it may ask for: "orders:read orders:write"
  own_scope     TEXT,                                                -- what it gets for its owner's account by client credentials; NULL: it may not use them
  secret_hash   BLOB CHECK (length(secret_hash) = 32),               -- SHA-256 of its client secret; NULL: it has none
  earlier_secret_hash  BLOB CHECK (length(earlier_secret_hash) = 32), -- of the secret before
  earlier_secret_until TEXT CHECK (earlier_secret_until IS strftime('%Y-%m-%dT%H:%M:%SZ', earlier_secret_until, '+0 days')), -- until when that one is taken too
  verified_at   TEXT CHECK (verified_at IS strftime('%Y-%m-%dT%H:%M:%SZ', verified_at, '+0 days')), -- since when an operator vouches for it; NULL: only its owner's account can agree to it
  made_by       TEXT NOT NULL,                                       -- who registered it, as in events
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was registered
  updated_at    TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at, '+0 days')), -- when anything of it last changed
  removed_at    TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at, '+0 days')) -- since when nothing of it works; NULL: it works
) STRICT, WITHOUT ROWID;
CREATE INDEX apps_account ON apps (account_id, id) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX apps_document ON apps (home_page) WHERE kind = 'document' AND removed_at IS NULL;
CREATE INDEX apps_documents ON apps (updated_at) WHERE kind = 'document';
CREATE INDEX apps_removed ON apps (removed_at) WHERE removed_at IS NOT NULL;

-- The sites on which applications run in browsers. They are not origins of accounts.
CREATE TABLE app_origins (
  origin      TEXT NOT NULL CHECK (origin LIKE 'http%://%' AND origin = lower(origin) AND origin NOT LIKE '%/'), -- https://app.example
  app_id      TEXT NOT NULL REFERENCES apps (id),                    -- the application
  PRIMARY KEY (origin, app_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX app_origins_app ON app_origins (app_id);

-- Codes with which people sign in for an account, until they are used.
CREATE TABLE signin_codes (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),            -- keyed hash of the code
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- for which account
  kind        TEXT NOT NULL DEFAULT 'consent' CHECK (kind IN ('consent', 'books')), -- which pages it opens
  made_by     TEXT NOT NULL,                                         -- who, as in events
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')) -- until when it can be used, once
) STRICT, WITHOUT ROWID;
CREATE INDEX signin_codes_account ON signin_codes (account_id, kind, created_at);
CREATE INDEX signin_codes_expiring ON signin_codes (expires_at);

-- People who have signed in.
CREATE TABLE sessions (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),            -- SHA-256 of what the cookie holds
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- for which account
  kind        TEXT NOT NULL DEFAULT 'consent' CHECK (kind IN ('consent', 'books')), -- which pages it opens
  made_by     TEXT NOT NULL,                                         -- who made the code that was used
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when the code was used
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')) -- until when it lasts
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_account ON sessions (account_id, kind, created_at);
CREATE INDEX sessions_expiring ON sessions (expires_at);

-- What owners of accounts have agreed to: that an application acts for the account.
CREATE TABLE grants (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'grt\_%' ESCAPE '\'), -- grt_…
  app_id      TEXT NOT NULL REFERENCES apps (id),                    -- which application
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- for which account
  scope       TEXT NOT NULL,                                         -- what it may do: "orders:read"
  agreed_by   TEXT NOT NULL,                                         -- who made the code with which the person had signed in
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when the application came for its first tokens
  used_at     TEXT NOT NULL CHECK (used_at IS strftime('%Y-%m-%dT%H:%M:%SZ', used_at, '+0 days')), -- when it last came for tokens
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')), -- until when it can, unless it comes before
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at, '+0 days')), -- since when none of its tokens works; NULL: they do
  ended_by    TEXT CHECK (ended_by IN ('owner', 'operator', 'app', 'code_reused', 'token_reused', 'replaced', 'expired', 'app_removed')) -- why
) STRICT, WITHOUT ROWID;
CREATE INDEX grants_account ON grants (account_id, id);
CREATE INDEX grants_account_living ON grants (account_id, id) WHERE ended_at IS NULL;
CREATE INDEX grants_app ON grants (app_id, account_id, id);
CREATE INDEX grants_living ON grants (app_id, account_id, id, ended_at) WHERE ended_at IS NULL;
CREATE INDEX grants_expiring ON grants (expires_at) WHERE ended_at IS NULL;
CREATE INDEX grants_ended ON grants (ended_at) WHERE ended_at IS NOT NULL;

-- Authorization codes: what a person has agreed to until the application comes for it, and for a day after
-- that, so that a code that is used twice is noticed.
CREATE TABLE grant_codes (
  hash         BLOB PRIMARY KEY CHECK (length(hash) = 32),           -- SHA-256 of the code
  app_id       TEXT NOT NULL REFERENCES apps (id),                   -- for which application
  account_id   TEXT NOT NULL REFERENCES accounts (id),               -- who agreed
  redirect_uri TEXT NOT NULL,                                        -- where the code was sent
  challenge    TEXT NOT NULL CHECK (length(challenge) = 43),         -- of PKCE, by S256
  scope        TEXT NOT NULL,                                        -- what was agreed to
  agreed_by    TEXT NOT NULL,                                        -- as in grants
  grant_id     TEXT REFERENCES grants (id),                          -- what came of it; NULL: it was not used
  created_at   TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- when it was made
  expires_at   TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')) -- until when it can be used, once
) STRICT, WITHOUT ROWID;
CREATE INDEX grant_codes_expiring ON grant_codes (expires_at);
CREATE INDEX grant_codes_app ON grant_codes (app_id);
CREATE INDEX grant_codes_grant ON grant_codes (grant_id) WHERE grant_id IS NOT NULL;

-- The refresh tokens of grants that have not ended: one that works, and those that it replaced.
CREATE TABLE refresh_tokens (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),            -- SHA-256 of the token
  grant_id    TEXT NOT NULL REFERENCES grants (id),                  -- of which grant
  number      INTEGER NOT NULL CHECK (number > 0),                   -- counted within the grant
  successor   BLOB,                                                  -- the token that replaced it, sealed under a key that is derived from this one; NULL: none has
  replaced_at TEXT CHECK (replaced_at IS strftime('%Y-%m-%dT%H:%M:%SZ', replaced_at, '+0 days')), -- when that was; NULL: it works
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')), -- until when it works, or its reuse is noticed
  UNIQUE (grant_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX refresh_tokens_expiring ON refresh_tokens (expires_at);

-- The access tokens of applications, until shortly after they have expired.
CREATE TABLE app_tokens (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'tok\_%' ESCAPE '\'), -- the token's jti
  app_id      TEXT NOT NULL REFERENCES apps (id),                    -- its client_id
  grant_id    TEXT REFERENCES grants (id),                           -- NULL: by client credentials
  account_id  TEXT NOT NULL REFERENCES accounts (id),                -- its sub
  scope       TEXT NOT NULL,                                         -- as signed into it
  kid         TEXT NOT NULL,                                         -- the key that signed it
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at, '+0 days')), -- iat
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, '+0 days')), -- exp
  revoked_at  TEXT CHECK (revoked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', revoked_at, '+0 days')) -- since when it is refused; NULL: never revoked
) STRICT, WITHOUT ROWID;
CREATE INDEX app_tokens_expiring ON app_tokens (expires_at);
CREATE INDEX app_tokens_grant ON app_tokens (grant_id) WHERE grant_id IS NOT NULL;
CREATE INDEX app_tokens_app ON app_tokens (app_id);

-- The webhooks that applications have made for themselves. They end with the grant.
CREATE TABLE app_webhooks (
  webhook_id  TEXT PRIMARY KEY REFERENCES webhooks (id),             -- the webhook
  app_id      TEXT NOT NULL REFERENCES apps (id),                    -- which application
  grant_id    TEXT REFERENCES grants (id)                            -- under which grant; NULL: by client credentials
) STRICT, WITHOUT ROWID;
CREATE INDEX app_webhooks_app ON app_webhooks (app_id);
CREATE INDEX app_webhooks_grant ON app_webhooks (grant_id) WHERE grant_id IS NOT NULL;
CREATE TRIGGER app_webhooks_removed BEFORE DELETE ON webhooks BEGIN
  DELETE FROM app_webhooks WHERE webhook_id = OLD.id;
END;

-- Licences with the status that they have now and their seats. differs names the terms that are not its plan's:
-- "max_devices grace_days"; NULL: it has no plan.
CREATE VIEW v_licenses AS
SELECT l.id, a.name AS account, l.product, l.plan, l.customer,
       CASE
         WHEN l.state = 'revoked' THEN 'revoked'
         WHEN l.state = 'suspended' OR a.closed_at IS NOT NULL THEN 'suspended'
         WHEN l.starts_at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'not_started'
         WHEN l.expires_at IS NULL OR l.expires_at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'active'
         WHEN l.grace_ends_at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'grace'
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

-- Devices with their licence, a mask of their fingerprint and the end of their lease.
CREATE VIEW v_devices AS
SELECT d.id, d.name, d.platform, d.app_version, d.state, a.name AS account, l.product,
       lower(substr(hex(d.fingerprint), 1, 8)) AS fingerprint,
       d.activated_at, d.last_seen_at, d.lease_expires_at, d.released_at, d.released_by, d.activations,
       d.lease_seq, d.presented_seq, d.clone_suspected_at, d.license_id, l.account_id, d.offline_until
FROM devices d JOIN licenses l ON l.id = d.license_id JOIN accounts a ON a.id = l.account_id;

-- How many leads of each type came on each UTC day.
CREATE VIEW v_leads_by_day AS
SELECT substr(e.created_at, 1, 10) AS day, a.name AS account, e.type, count(*) AS leads
FROM leads e JOIN accounts a ON a.id = e.account_id
GROUP BY day, e.account_id, e.type ORDER BY day DESC;

-- What each widget counted on each UTC day.
CREATE VIEW v_widget_days AS
SELECT substr(c.quarter, 1, 10) AS day, w.name AS widget, sum(c.views) AS views, sum(c.visitors) AS visitors,
       sum(c.clicks) AS clicks, sum(c.orders) AS orders, c.widget_id
FROM widget_counts c JOIN widgets w ON w.id = c.widget_id
GROUP BY day, c.widget_id ORDER BY day DESC;

-- Which accounts still call which path under /api/legacy.
CREATE VIEW v_legacy_callers AS
SELECT c.path, coalesce(a.name, c.caller) AS caller, sum(c.calls) AS calls, min(c.day) AS first_day, max(c.last_at) AS last_at
FROM legacy_calls c LEFT JOIN accounts a ON a.id = c.caller
GROUP BY c.path, c.caller ORDER BY last_at DESC;

-- Bearer tokens, also those of applications, newest first, and whether they work.
CREATE VIEW v_tokens AS
SELECT t.id, a.name AS account, t.client_id, t.scope, t.all_accounts,
       CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked' WHEN a.closed_at IS NOT NULL THEN 'closed'
            WHEN t.expires_at <= strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'expired' ELSE 'active' END AS state,
       t.created_at, t.expires_at, t.revoked_at, t.kid, t.account_id
FROM (SELECT id, account_id, client_id, scope, all_accounts, kid, created_at, expires_at, revoked_at FROM tokens
      UNION ALL SELECT id, account_id, app_id, scope, 0, kid, created_at, expires_at, revoked_at FROM app_tokens) t
JOIN accounts a ON a.id = t.account_id ORDER BY t.id DESC;

-- What happened, newest first. A query that joins it with something loses that order: it ends with ORDER BY seq DESC.
CREATE VIEW v_audit AS
SELECT e.at, e.type, a.name AS account, e.actor, e.subject_id,
       CASE WHEN json_valid(e.data) THEN json_extract(e.data, '$.device_id') END AS device_id, e.data, e.id, e.seq
FROM events e JOIN accounts a ON a.id = e.account_id ORDER BY e.seq DESC;

-- Where events are sent to, and how that goes. waiting counts what is to be tried again.
CREATE VIEW v_webhooks AS
SELECT w.id, a.name AS account, w.url, w.state, w.reason, w.failing_since, w.types, w.description,
       (SELECT max(seq) FROM events) - q.sent_seq AS events_behind,
       (SELECT count(*) FROM webhook_retries r WHERE r.queue_id = q.id) AS waiting,
       w.made_by, w.rotated_at, w.created_at, w.account_id
FROM webhooks w JOIN accounts a ON a.id = w.account_id LEFT JOIN webhook_queues q ON q.webhook_id = w.id;

-- Each attempt to send an event to a webhook, newest first.
CREATE VIEW v_deliveries AS
SELECT d.at, a.name AS account, w.url, d.type, d.attempt,
       CASE WHEN d.status BETWEEN 200 AND 299 THEN 'succeeded' ELSE 'failed' END AS outcome,
       d.status, d.error, d.milliseconds, d.next_at, d.answer, d.event_id, d.id, d.webhook_id
FROM deliveries d LEFT JOIN webhooks w ON w.id = d.webhook_id LEFT JOIN accounts a ON a.id = w.account_id
ORDER BY d.id DESC;

-- Orders, newest first, with what came of their last payment.
CREATE VIEW v_orders AS
SELECT o.created_at, a.name AS account, o.reference, o.state, o.dispute,
       printf('%d.%02d', o.total / 100, o.total % 100) AS total, o.currency,
       printf('%d.%02d', o.refunded / 100, o.refunded % 100) AS refunded, o.method,
       p.provider, p.state AS payment, p.reason, o.attempts,
       o.pay, o.wanted_at, o.reject_reason,
       o.authorized_at, o.accepted_at, o.ready_at, o.paid_at, o.expires_at, o.accept_by, o.closing,
       o.id, o.payment_id, o.account_id
FROM orders o JOIN accounts a ON a.id = o.account_id LEFT JOIN payments p ON p.id = o.payment_id
ORDER BY o.id DESC;

-- Attempts to pay, newest first, with what waits to be done at the provider.
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

-- What providers pay out, the last to arrive first.
CREATE VIEW v_payouts AS
SELECT p.arrival_date, a.name AS account, p.provider, p.state, p.reason, p.status,
       printf('%s%d.%02d', iif(p.amount < 0, '-', ''), abs(p.amount) / 100, abs(p.amount) % 100) AS amount, p.currency,
       printf('%s%d.%02d', iif(p.fee < 0, '-', ''), abs(p.fee) / 100, abs(p.fee) % 100) AS fee,
       printf('%s%d.%02d', iif(p.tax < 0, '-', ''), abs(p.tax) / 100, abs(p.tax) % 100) AS tax, p.items,
       p.read_at, p.ended_at, p.confirmed_at, p.provider_id, p.id, p.connection_id, p.account_id
FROM payouts p JOIN accounts a ON a.id = p.account_id
ORDER BY p.arrival_date DESC, p.id DESC;

-- Business days, newest first: what was received (sales, deliveries and tips), what was given back, and what
-- is left. It reads one account's day from one place of revenue_sums.
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

-- What was written into books or waits to be, newest first.
CREATE VIEW v_exports AS
SELECT x.date, a.name AS account, c.product, c.organisation, x.currency, x.part, x.revision, x.state, x.reason,
       x.detail, x.entry_id, x.reverses, x.entry_date, x.attempts, x.due_at, x.held_at, x.sent_at, x.posted_at, x.reversed_at,
       x.sync_key, x.id, x.payout_id, x.connection_id, x.account_id
FROM books_exports x JOIN books_connections c ON c.id = x.connection_id JOIN accounts a ON a.id = x.account_id
ORDER BY x.id DESC;

CREATE VIEW v_grants AS
SELECT g.id, a.name AS account, p.name AS app, coalesce(p.host, o.name) AS app_owner, g.scope,
       CASE WHEN g.ended_at IS NOT NULL THEN 'ended'
            WHEN a.closed_at IS NOT NULL OR o.closed_at IS NOT NULL THEN 'closed'
            WHEN g.expires_at <= strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'expired' ELSE 'active' END AS state,
       g.ended_by, g.created_at, g.used_at, g.expires_at, g.ended_at, g.agreed_by, g.app_id, g.account_id
FROM grants g JOIN accounts a ON a.id = g.account_id JOIN apps p ON p.id = g.app_id JOIN accounts o ON o.id = p.account_id
ORDER BY g.id DESC;
