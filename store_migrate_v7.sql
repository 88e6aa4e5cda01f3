CREATE TABLE clock (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  seen_at     TEXT NOT NULL CHECK (seen_at IS strftime('%Y-%m-%dT%H:%M:%SZ', seen_at))
) STRICT;

CREATE TABLE books_renewals (
  connection_id TEXT PRIMARY KEY REFERENCES books_connections (id),
  lost_at       TEXT NOT NULL CHECK (lost_at IS strftime('%Y-%m-%dT%H:%M:%SZ', lost_at)),
  due_at        TEXT CHECK (due_at IS strftime('%Y-%m-%dT%H:%M:%SZ', due_at))
) STRICT, WITHOUT ROWID;
CREATE INDEX books_renewals_due ON books_renewals (due_at) WHERE due_at IS NOT NULL;
