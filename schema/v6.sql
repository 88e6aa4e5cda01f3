-- What version 6 adds to version 5: the tables and the view of applications that act for accounts.

CREATE TABLE apps (
  id            TEXT PRIMARY KEY CHECK (id LIKE 'app\_%' ESCAPE '\'),
  account_id    TEXT NOT NULL REFERENCES accounts (id),
  name          TEXT NOT NULL CHECK (name <> '' AND length(name) <= 60),
  home_page     TEXT NOT NULL CHECK (home_page LIKE 'http%://%'),
  kind          TEXT NOT NULL CHECK (kind IN ('web', 'browser', 'installed')),
  redirect_uris TEXT NOT NULL CHECK (json_type(redirect_uris) = 'array'),
  scope         TEXT NOT NULL,
  own_scope     TEXT,
  secret_hash   BLOB CHECK (length(secret_hash) = 32),
  earlier_secret_hash  BLOB CHECK (length(earlier_secret_hash) = 32),
  earlier_secret_until TEXT CHECK (earlier_secret_until IS strftime('%Y-%m-%dT%H:%M:%SZ', earlier_secret_until)),
  verified_at   TEXT CHECK (verified_at IS strftime('%Y-%m-%dT%H:%M:%SZ', verified_at)),
  made_by       TEXT NOT NULL,
  created_at    TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  updated_at    TEXT NOT NULL CHECK (updated_at IS strftime('%Y-%m-%dT%H:%M:%SZ', updated_at)),
  removed_at    TEXT CHECK (removed_at IS strftime('%Y-%m-%dT%H:%M:%SZ', removed_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX apps_account ON apps (account_id, id) WHERE removed_at IS NULL;
CREATE INDEX apps_removed ON apps (removed_at) WHERE removed_at IS NOT NULL;

CREATE TABLE app_origins (
  origin      TEXT NOT NULL CHECK (origin LIKE 'http%://%' AND origin = lower(origin) AND origin NOT LIKE '%/'),
  app_id      TEXT NOT NULL REFERENCES apps (id),
  PRIMARY KEY (origin, app_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX app_origins_app ON app_origins (app_id);

CREATE TABLE signin_codes (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  made_by     TEXT NOT NULL,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX signin_codes_account ON signin_codes (account_id, created_at);
CREATE INDEX signin_codes_expiring ON signin_codes (expires_at);

CREATE TABLE sessions (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  made_by     TEXT NOT NULL,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_account ON sessions (account_id, created_at);
CREATE INDEX sessions_expiring ON sessions (expires_at);

CREATE TABLE grants (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'grt\_%' ESCAPE '\'),
  app_id      TEXT NOT NULL REFERENCES apps (id),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  scope       TEXT NOT NULL,
  agreed_by   TEXT NOT NULL,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  used_at     TEXT NOT NULL CHECK (used_at IS strftime('%Y-%m-%dT%H:%M:%SZ', used_at)),
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at)),
  ended_at    TEXT CHECK (ended_at IS strftime('%Y-%m-%dT%H:%M:%SZ', ended_at)),
  ended_by    TEXT CHECK (ended_by IN ('owner', 'operator', 'app', 'code_reused', 'token_reused', 'replaced', 'expired', 'app_removed'))
) STRICT, WITHOUT ROWID;
CREATE INDEX grants_account ON grants (account_id, id);
CREATE INDEX grants_account_living ON grants (account_id, id) WHERE ended_at IS NULL;
CREATE INDEX grants_app ON grants (app_id, account_id, id);
CREATE INDEX grants_living ON grants (app_id, account_id, id, ended_at) WHERE ended_at IS NULL;
CREATE INDEX grants_expiring ON grants (expires_at) WHERE ended_at IS NULL;
CREATE INDEX grants_ended ON grants (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE grant_codes (
  hash         BLOB PRIMARY KEY CHECK (length(hash) = 32),
  app_id       TEXT NOT NULL REFERENCES apps (id),
  account_id   TEXT NOT NULL REFERENCES accounts (id),
  redirect_uri TEXT NOT NULL,
  challenge    TEXT NOT NULL CHECK (length(challenge) = 43),
  scope        TEXT NOT NULL,
  agreed_by    TEXT NOT NULL,
  grant_id     TEXT REFERENCES grants (id),
  created_at   TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  expires_at   TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX grant_codes_expiring ON grant_codes (expires_at);
CREATE INDEX grant_codes_app ON grant_codes (app_id);
CREATE INDEX grant_codes_grant ON grant_codes (grant_id) WHERE grant_id IS NOT NULL;

CREATE TABLE refresh_tokens (
  hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),
  grant_id    TEXT NOT NULL REFERENCES grants (id),
  number      INTEGER NOT NULL CHECK (number > 0),
  successor   BLOB,
  replaced_at TEXT CHECK (replaced_at IS strftime('%Y-%m-%dT%H:%M:%SZ', replaced_at)),
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at)),
  UNIQUE (grant_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX refresh_tokens_expiring ON refresh_tokens (expires_at);

CREATE TABLE app_tokens (
  id          TEXT PRIMARY KEY CHECK (id LIKE 'tok\_%' ESCAPE '\'),
  app_id      TEXT NOT NULL REFERENCES apps (id),
  grant_id    TEXT REFERENCES grants (id),
  account_id  TEXT NOT NULL REFERENCES accounts (id),
  scope       TEXT NOT NULL,
  kid         TEXT NOT NULL,
  created_at  TEXT NOT NULL CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%SZ', created_at)),
  expires_at  TEXT NOT NULL CHECK (expires_at IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at)),
  revoked_at  TEXT CHECK (revoked_at IS strftime('%Y-%m-%dT%H:%M:%SZ', revoked_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX app_tokens_expiring ON app_tokens (expires_at);
CREATE INDEX app_tokens_grant ON app_tokens (grant_id) WHERE grant_id IS NOT NULL;
CREATE INDEX app_tokens_app ON app_tokens (app_id);

CREATE TABLE app_webhooks (
  webhook_id  TEXT PRIMARY KEY REFERENCES webhooks (id),
  app_id      TEXT NOT NULL REFERENCES apps (id),
  grant_id    TEXT REFERENCES grants (id)
) STRICT, WITHOUT ROWID;
CREATE INDEX app_webhooks_app ON app_webhooks (app_id);
CREATE INDEX app_webhooks_grant ON app_webhooks (grant_id) WHERE grant_id IS NOT NULL;
CREATE TRIGGER app_webhooks_removed BEFORE DELETE ON webhooks BEGIN
  DELETE FROM app_webhooks WHERE webhook_id = OLD.id;
END;


CREATE VIEW v_grants AS
SELECT g.id, a.name AS account, p.name AS app, o.name AS app_owner, g.scope,
       CASE WHEN g.ended_at IS NOT NULL THEN 'ended'
            WHEN a.closed_at IS NOT NULL OR o.closed_at IS NOT NULL THEN 'closed'
            WHEN g.expires_at <= strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'expired' ELSE 'active' END AS state,
       g.ended_by, g.created_at, g.used_at, g.expires_at, g.ended_at, g.agreed_by, g.app_id, g.account_id
FROM grants g JOIN accounts a ON a.id = g.account_id JOIN apps p ON p.id = g.app_id JOIN accounts o ON o.id = p.account_id
ORDER BY g.id DESC;
