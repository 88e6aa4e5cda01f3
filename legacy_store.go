package main

// A legacyCall counts how often one caller used one path on one UTC day.
type legacyCall struct {
	Day    string `json:"day"`
	Path   string `json:"path"`   // below /api/legacy/, or "other" for a path that v1 does not have
	Caller string `json:"caller"` // an account's id, or "unknown"
	Calls  int64  `json:"calls"`
	LastAt stamp  `json:"last_at"`
}

// countLegacy adds counts to the rows of the same day, path and caller.
func (t *tx) countLegacy(calls []legacyCall) {
	for _, c := range calls {
		t.exec(`INSERT INTO legacy_calls (day, path, caller, calls, last_at)
			VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET calls = calls + excluded.calls,
			last_at = max(last_at, excluded.last_at)`,
			c.Day, c.Path, c.Caller, c.Calls, c.LastAt)
	}
}

// legacyCalls returns the counts of an owner's calls, the latest day first.
func (q *queries) legacyCalls(o owner) ([]legacyCall, error) {
	query, args := o.narrow(`SELECT day, path, caller, calls, last_at FROM legacy_calls WHERE 1`, `caller`)
	return collectReadable(q, query+` ORDER BY day DESC, calls DESC`, args,
		func(c *legacyCall) []any { return []any{&c.Day, &c.Path, &c.Caller, &c.Calls, &c.LastAt} })
}

// A legacyCaller is who called paths under /api/legacy/, and how often.
type legacyCaller struct {
	Caller string `json:"caller"` // an account's name, or "unknown"
	Calls  int64  `json:"calls"`
	LastAt stamp  `json:"last_at"`
}

// legacyCallers returns up to limit callers of legacy paths since a UTC day, those with the most
// calls first.
func (q *queries) legacyCallers(day string, limit int) ([]legacyCaller, error) {
	return collectReadable(q, `SELECT coalesce(a.name, c.caller), sum(c.calls), max(c.last_at)
		FROM legacy_calls c LEFT JOIN accounts a ON a.id = c.caller
		WHERE c.day >= ? GROUP BY c.caller ORDER BY 2 DESC, 1 LIMIT ?`, []any{day, limit},
		func(c *legacyCaller) []any { return []any{&c.Caller, &c.Calls, &c.LastAt} })
}
