package main

import "strings"

// What the status command reads of the database. It is the operator's, so it is about all accounts.

// A licenseTally is how many licences there are by status, and how many of those that are active
// end soon.
type licenseTally struct {
	byStatus  map[string]int64
	ending    int64
	unlimited int64 // that limit devices and not transfers, without revoked ones
}

// tallyLicenses counts the licences by the status that they have at now, and the active ones that
// end before soon. It reads every licence once: some two seconds for a million.
func (q *queries) tallyLicenses(now, soon stamp) (licenseTally, error) {
	filters, args := []string{}, []any{}
	for _, status := range statuses {
		filters = append(filters, `count(*) FILTER (WHERE `+statusFilters[status]+`)`)
		for range strings.Count(statusFilters[status], "?") {
			args = append(args, now)
		}
	}
	filters = append(filters, `count(*) FILTER (WHERE `+statusFilters["active"]+` AND l.expires_at < ?)`)
	for range strings.Count(statusFilters["active"], "?") {
		args = append(args, now)
	}
	filters = append(filters, `count(*) FILTER (WHERE l.max_devices IS NOT NULL AND l.max_transfers IS NULL
		AND l.state <> 'revoked')`)
	counts := make([]int64, len(statuses)+2)
	dest := []any{}
	for i := range counts {
		dest = append(dest, &counts[i])
	}
	err := q.one(`SELECT `+strings.Join(filters, ", ")+` FROM licenses l JOIN accounts a ON a.id = l.account_id`,
		append(args, soon), dest...)
	t := licenseTally{byStatus: map[string]int64{}, ending: counts[len(statuses)], unlimited: counts[len(statuses)+1]}
	for i, status := range statuses {
		t.byStatus[status] = counts[i]
	}
	return t, err
}

// countToday returns how many leads and events were written since a time. It reads no others, since
// their numbers grow with the time.
func (q *queries) countToday(midnight stamp) (leads, events int64, err error) {
	firstLead, err := q.firstSince(`leads`, `created_at`, midnight)
	if err != nil {
		return 0, 0, err
	}
	firstEvent, err := q.firstSince(`events`, `at`, midnight)
	if err != nil {
		return 0, 0, err
	}
	err = q.one(`SELECT (SELECT count(*) FROM leads WHERE seq >= ?), (SELECT count(*) FROM events WHERE seq >= ?)`,
		[]any{firstLead, firstEvent}, &leads, &events)
	return leads, events, err
}

// lastEventAt returns when the latest event of an account and type was written, or errNotFound. It
// reads the account's events backwards until it finds one: where there is none, some two seconds for
// a million.
func (q *queries) lastEventAt(account string, kind eventType) (at stamp, err error) {
	err = q.one(`SELECT at FROM events WHERE account_id = ? AND type = ? ORDER BY seq DESC LIMIT 1`,
		[]any{account, kind}, &at)
	return at, err
}

// issuedAnything reports whether the database has rows that are worth nothing with another key file: tokens,
// leases of devices, secrets of webhooks, and what is sealed.
func (q *queries) issuedAnything() (issued bool, err error) {
	tables := []string{"tokens", "app_tokens", "devices", "webhooks", "idempotency", "payment_connections",
		"payment_operations", "books_apps", "books_authorizations", "books_connections"}
	err = q.one(`SELECT EXISTS (SELECT 1 FROM `+strings.Join(tables, `) OR EXISTS (SELECT 1 FROM `)+`)`, nil, &issued)
	return issued, err
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
	return collectShown(q, `SELECT coalesce(a.name, c.caller), sum(c.calls), max(c.last_at)
		FROM legacy_calls c LEFT JOIN accounts a ON a.id = c.caller
		WHERE c.day >= ? GROUP BY c.caller ORDER BY 2 DESC, 1 LIMIT ?`, []any{day, limit},
		func(c *legacyCaller) []any { return []any{&c.Caller, &c.Calls, &c.LastAt} })
}

// countWebhooksByState returns how many webhooks there are, by state. It reads all of them.
func (q *queries) countWebhooksByState() (map[string]int64, error) {
	tally := map[string]int64{webhookPending: 0, webhookEnabled: 0, webhookDisabled: 0}
	err := q.each(`SELECT state, count(*) FROM webhooks GROUP BY state`, nil, func(scan func(...any) error) error {
		var state string
		var n int64
		err := scan(&state, &n)
		tally[state] = n
		return err
	})
	return tally, err
}

// webhooksInTrouble returns the webhooks of open accounts that were disabled because they did not accept
// what they were sent, or have accepted nothing since a time, oldest first. It reads all webhooks.
func (q *queries) webhooksInTrouble(since stamp) ([]*webhook, error) {
	return collectShown(q, `SELECT `+webhookColumns+` FROM webhooks w JOIN accounts a ON a.id = w.account_id
		WHERE a.closed_at IS NULL AND (w.state = 'disabled' AND w.reason IN (?, ?)
			OR w.state <> 'disabled' AND w.failing_since <= ?)
		ORDER BY w.id`, []any{disabledGone, disabledFailing, since}, newWebhook)
}
