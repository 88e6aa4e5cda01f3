-- What differs in more than names between the tables of version 8 and those of schema.sql (new.NAME), which are empty.
-- All tables that this does not fill were copied by the names of their columns before.

-- Erasing compares without case as Unicode says. The digests of these were of another form: without one a lead is
-- found, too.
UPDATE new.leads SET digest = zeroblob(16) WHERE email GLOB '*[^ -~]*';

INSERT INTO new.refunds
  SELECT f.*, (SELECT account_id FROM orders o WHERE o.id = f.order_id), NULL,
    iif(f.source = 'provider', 'found', 'asked'), NULL FROM refunds f;

INSERT INTO new.books_connections
  SELECT c.*, r.lost_at, -- Xero's tokens lapse unless they are used: nobody knows when these were
    coalesce(r.due_at, iif(c.product = 'xero' AND c.secrets IS NOT NULL AND c.needs_reconnect_at IS NULL, c.created_at, NULL)),
    NULL FROM books_connections c LEFT JOIN books_renewals r ON r.connection_id = c.id;

-- Version 8 counted a dispute as taken until it was won, and looked at no payment after 180 days.
INSERT INTO new.disputes
  SELECT *, iif(state IN ('open', 'lost'), amount, 0), NULL, coalesce(iif(state = 'won', closed_at, NULL), opened_at)
  FROM disputes;
UPDATE new.payments SET due_at = coalesce(due_at, captured_at)
  WHERE id IN (SELECT payment_id FROM new.disputes WHERE closed_at IS NULL);
