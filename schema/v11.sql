CREATE TABLE epoch (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  number      INTEGER NOT NULL CHECK (number >= 0),
  name        TEXT NOT NULL,
  known       INTEGER NOT NULL CHECK (known >= number),
  began_at    TEXT NOT NULL CHECK (began_at IS strftime('%Y-%m-%dT%H:%M:%SZ', began_at, '+0 days'))
) STRICT;
