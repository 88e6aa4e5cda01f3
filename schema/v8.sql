CREATE INDEX leads_type ON leads (type);
CREATE INDEX events_type ON events (type);
DROP INDEX license_keys_license;
CREATE INDEX license_keys_license ON license_keys (license_id, retires_at, hint);

CREATE VIEW v_tokens AS
SELECT t.id, a.name AS account, t.client_id, t.scope, t.all_accounts,
       CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked' WHEN a.closed_at IS NOT NULL THEN 'closed'
            WHEN t.expires_at <= strftime('%Y-%m-%dT%H:%M:%SZ', 'now') THEN 'expired' ELSE 'active' END AS state,
       t.created_at, t.expires_at, t.revoked_at, t.kid, t.account_id
FROM (SELECT id, account_id, client_id, scope, all_accounts, kid, created_at, expires_at, revoked_at FROM tokens
      UNION ALL SELECT id, account_id, app_id, scope, 0, kid, created_at, expires_at, revoked_at FROM app_tokens) t
JOIN accounts a ON a.id = t.account_id ORDER BY t.id DESC;

DROP VIEW v_audit;
CREATE VIEW v_audit AS
SELECT e.at, e.type, a.name AS account, e.actor, e.subject_id,
       CASE WHEN json_valid(e.data) THEN json_extract(e.data, '$.device_id') END AS device_id, e.data, e.id, e.seq
FROM events e JOIN accounts a ON a.id = e.account_id ORDER BY e.seq DESC;
