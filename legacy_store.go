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
func (t *tx) countLegacy(calls []legacyCall) error {
	for _, c := range calls {
		if _, err := t.exec(`INSERT INTO legacy_calls (day, path, caller, calls, last_at)
			VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET calls = calls + excluded.calls,
			last_at = max(last_at, excluded.last_at)`,
			c.Day, c.Path, c.Caller, c.Calls, c.LastAt); err != nil {
			return err
		}
	}
	return nil
}

// legacyCalls returns all counts, the latest day first.
func (q *queries) legacyCalls() ([]legacyCall, error) {
	return collectShown(q, `SELECT day, path, caller, calls, last_at FROM legacy_calls
		ORDER BY day DESC, calls DESC`, nil,
		func(c *legacyCall) []any { return []any{&c.Day, &c.Path, &c.Caller, &c.Calls, &c.LastAt} })
}
