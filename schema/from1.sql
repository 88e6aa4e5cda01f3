-- What differs in more than names between the tables of version 1 and those of schema.sql (new.NAME), which are empty.
-- All tables that this does not fill were copied by the names of their columns before.

INSERT INTO new.leads (seq, id, account_id, type, email, source, page, digest, created_at)
  SELECT rowid, id, account_id, type, email, source, page,
    widgetd_lead_digest(account_id, type, email, coalesce(source, ''), coalesce(page, '')), created_at
  FROM leads ORDER BY rowid;

-- An end that was announced as one of a grace or of a licence is not announced again as one that comes.
INSERT INTO new.licenses (id, account_id, product, plan, kind, state, reason, trial, max_devices, max_transfers, starts_at,
    expires_at, grace_days, duration_days, expiry_basis, lease_hours, entitlements, metadata, first_activated_at,
    expiring_noted, grace_noted, expired_noted, created_at, updated_at)
  SELECT id, account_id, product, plan, kind, state, reason, trial, max_devices, max_transfers, starts_at,
    expires_at, grace_days, duration_days, expiry_basis, lease_hours, entitlements, metadata, first_activated_at,
    CASE WHEN grace_noted IS expires_at
      OR expired_noted IS strftime('%Y-%m-%dT%H:%M:%SZ', expires_at, grace_days || ' days') THEN expires_at END,
    grace_noted, expired_noted, created_at, updated_at
  FROM licenses ORDER BY rowid;

-- By their key: in any other order each row would go to a page far from the last one.
INSERT INTO new.license_keys (hash, license_id, hint, created_at, retires_at)
  SELECT hash, license_id, hint, created_at, retires_at FROM license_keys ORDER BY hash;

-- The fingerprint of a device counts until the end of its last lease, and at least 30 days after it left a node-locked
-- licence. Where somebody else took its seat away, its tokens have ended.
INSERT INTO new.devices (id, license_id, fingerprint, name, platform, app_version, state, lease_seq, presented_seq,
    lease_kid, leased_at, lease_expires_at, lapses_at, clone_suspected_at, activated_at, last_seen_at, released_at,
    counts_until, ended_seq, tokens_end_at, released_by, activations)
  SELECT id, license_id, fingerprint, name, platform, app_version, state, lease_seq, presented_seq,
    lease_kid, leased_at, lease_expires_at, lapses_at, clone_suspected_at, activated_at, last_seen_at, released_at,
    nullif(max(coalesce(lease_expires_at, ''), CASE WHEN state <> 'active' AND released_at IS NOT NULL
      AND (SELECT kind FROM licenses l WHERE l.id = license_id) = 'node_locked'
      THEN strftime('%Y-%m-%dT%H:%M:%SZ', released_at, '30 days') ELSE '' END), ''),
    iif(taken, max(lease_seq, presented_seq), 0), iif(taken, released_at, NULL), released_by, activations
  FROM (SELECT rowid, *, state = 'blocked'
    OR state = 'released' AND released_by IN ('replacement', 'portal', 'operator') AS taken FROM devices)
  ORDER BY rowid;

INSERT INTO new.license_seats (license_id, used, counting)
  SELECT license_id, count(*) FILTER (WHERE state = 'active'), count(*) FROM new.devices
  WHERE counting GROUP BY license_id;

INSERT INTO new.events (seq, id, at, type, account_id, subject_id, actor, data)
  SELECT seq, id, at, type, account_id, coalesce(license_id, lead_id, ''), actor,
    CASE WHEN device_id IS NULL THEN data ELSE json_set(data, '$.device_id', device_id) END
  FROM events ORDER BY seq;

INSERT INTO new.item_counts (widget_id, day, item, clicks, orders)
  SELECT widget_id, substr(quarter, 1, 10), item, sum(clicks), sum(orders) FROM item_counts GROUP BY 1, 2, 3;

-- Every name in item_names that was counted is in item_counts too, under its day.
