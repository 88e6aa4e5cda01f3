-- What differs in more than names between the tables of version 8 and those of schema.sql, which are there, empty,
-- beside the old ones (old_NAME). What this drops is done; all other tables are copied by the names of their columns.

-- Erasing compares without case as Unicode says. The digests of these were of another form: without one a lead is
-- found, too.
UPDATE old_leads SET digest = zeroblob(16) WHERE email GLOB '*[^ -~]*';

INSERT INTO refunds
  SELECT f.*, (SELECT account_id FROM old_orders o WHERE o.id = f.order_id), NULL,
    iif(f.source = 'provider', 'found', 'asked'), NULL FROM old_refunds f;
DROP TABLE old_refunds;

INSERT INTO books_connections
  SELECT c.*, r.lost_at, -- Xero's tokens lapse unless they are used: nobody knows when these were
    coalesce(r.due_at, iif(c.product = 'xero' AND c.secrets IS NOT NULL AND c.needs_reconnect_at IS NULL, c.created_at, NULL)),
    NULL FROM old_books_connections c LEFT JOIN old_books_renewals r ON r.connection_id = c.id;
DROP TABLE old_books_connections;
DROP TABLE old_books_renewals;

-- Version 8 counted a dispute as taken until it was won, and looked at no payment after 180 days.
INSERT INTO disputes
  SELECT *, iif(state IN ('open', 'lost'), amount, 0), NULL, coalesce(iif(state = 'won', closed_at, NULL), opened_at)
  FROM old_disputes;
UPDATE old_payments SET due_at = coalesce(due_at, captured_at)
  WHERE id IN (SELECT payment_id FROM disputes WHERE closed_at IS NULL);
DROP TABLE old_disputes;
