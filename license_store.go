package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// licenseTable describes the table licenses.
var licenseTable = newTable("licenses", "l", func(l *license) []field {
	return append(fieldsOf(l.members()), []field{{"id", &l.ID}, {"account_id", &l.AccountID},
		{"state", (*string)(&l.State)}, {"reason", &l.Reason}, {"issuer_suspended", &l.IssuerSuspended},
		{"first_activated_at", &l.FirstActivatedAt}, {"created_at", &l.CreatedAt}, {"updated_at", &l.UpdatedAt},
		{`coalesce((SELECT k.hint FROM license_keys k WHERE k.license_id = l.id AND k.retires_at IS NULL), '')`,
			&l.KeyHint},
		{"coalesce(s.used, 0)", &l.SeatsUsed}, {"coalesce(s.counting, 0)", &l.Counting},
		{"a.closed_at IS NOT NULL", &l.AccountClosed}, {"seat_limit_noted_at", &l.SeatLimitNotedAt},
		{"transfer_limit_noted_at", &l.TransferLimitNotedAt}, {"tokens_end_at", &l.TokensEndAt}}...)
}, "JOIN accounts a ON a.id = l.account_id LEFT JOIN license_seats s ON s.license_id = l.id")

// licenseByKey returns the licence that a key belongs to, with KeyRetiresAt set when the
// key is retired or will be, or errNotFound. hash is the SHA-256 of the parsed key.
func (q *queries) licenseByKey(hash [32]byte) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseTable.columns+`, k.retires_at
		FROM license_keys k JOIN `+licenseTable.from+`
		WHERE k.hash = ? AND l.id = k.license_id`, []any{hash[:]}, append(licenseTable.dest(l), &l.KeyRetiresAt)...)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// license returns a licence of an owner, or errLicense.
func (q *queries) license(o owner, id string) (*license, error) {
	return licenseTable.byID(q, o, id, errLicense)
}

// licenseOwner returns the account that owns a licence, or errNotFound.
func (q *queries) licenseOwner(id string) (accountID string, err error) {
	return oneValue[string](q, `SELECT account_id FROM licenses WHERE id = ?`, id)
}

// licenseByReference returns the id of the licence of an account with that reference, or errNotFound.
func (q *queries) licenseByReference(accountID, reference string) (id string, err error) {
	return oneValue[string](q, `SELECT id FROM licenses WHERE account_id = ? AND reference = ?`, accountID, reference)
}

// A licenseFilter chooses licences of an owner. An empty field other than owner and now
// matches every licence.
type licenseFilter struct {
	owner         owner
	product       string
	status        licenseStatus // as license.status computes it at the time now
	customer      string
	expiresBefore stamp
	search        string // a key, or part of product, plan, customer, id or key hint in upper or lower case
	now           stamp
}

// statusOfLicense is SQL for license.status; each ? is the time now. The view v_licenses has it, too.
const statusOfLicense = `CASE
         WHEN l.state = 'revoked' THEN 'revoked'
         WHEN l.state = 'suspended' OR a.closed_at IS NOT NULL THEN 'suspended'
         WHEN l.starts_at > ? THEN 'not_started'
         WHEN l.expires_at IS NULL OR l.expires_at > ? THEN 'active'
         WHEN l.grace_ends_at > ? THEN 'grace'
         ELSE 'expired'
       END`

// licenses returns a page of licences, newest first, starting after the id before ("" for the newest).
func (q *queries) licenses(f licenseFilter, before string, limit int) (p listPage[*license], err error) {
	list := licenseTable.whereOwner(f.owner)
	filter := func(given bool, condition string, arg any) {
		if given {
			list.filter(` AND `+condition, slices.Repeat([]any{arg}, strings.Count(condition, "?"))...)
		}
	}
	if f.status != "" {
		list.filter(` AND `+statusOfLicense+` = ?`, f.now, f.now, f.now, f.status)
	}
	filter(f.product != "", `l.product = ?`, f.product)
	filter(f.customer != "", `l.customer = ?`, f.customer)
	filter(!f.expiresBefore.IsZero(), `l.expires_at < ?`, f.expiresBefore)
	if f.search != "" {
		keyed, err := q.licenseOfText(f.search)
		switch {
		case err != nil:
			return p, err
		case keyed != nil && f.owner.owns(keyed.AccountID):
			filter(true, `l.id = ?`, keyed.ID)
		default:
			condition := `instr(lower(l.product || ' ' || coalesce(l.plan, '') || ' ' || coalesce(l.customer, '')
				|| ' ' || l.id), lower(?)) > 0`
			if len(f.search) <= keyGroup { // as long as a hint
				condition = `(` + condition + ` OR EXISTS (SELECT 1 FROM license_keys k
					WHERE k.license_id = l.id AND instr(lower(k.hint), lower(?)) > 0))`
			}
			filter(true, condition, f.search)
		}
	}
	return licenseTable.page(q, list, before, limit)
}

// licenseOfText returns the licence that a text is a whole key of, or nil.
func (q *queries) licenseOfText(text string) (*license, error) {
	key, err := parseLicenseKey(text)
	if err != nil {
		return nil, nil
	}
	return orNil(q.licenseByKey(key.hash()))
}

// licensesHinted returns the ids of the licences of which a text is the hint of the key, in any case, and if there are
// any, those that end so.
func (q *queries) licensesHinted(text string) ([]string, error) {
	hint := strings.TrimLeft(text, "….")
	if len(hint) != keyGroup {
		return nil, nil
	}
	ids, err := q.texts(`SELECT license_id FROM license_keys WHERE retires_at IS NULL AND hint IN (?1, ?2) LIMIT ?3`,
		hint, lookalikes.Replace(strings.ToUpper(hint)), mostEndings+1)
	if end := idEnd("lic", text); err == nil && len(ids) > 0 && end != "" {
		var ending []string
		ending, err = q.idsEndingIn("licenses", end, "", mostEndings+1)
		ids = append(ids, ending...)
	}
	return ids, err
}

// addLicense stores a new licence and the hash of its key, and returns its id. Empty
// fields of l get their defaults. The account must exist. Errors: errKeyTaken.
func (t *tx) addLicense(l *license, key licenseKey, actor string) (string, error) {
	added := *l
	added.ID, added.CreatedAt, added.UpdatedAt = t.newID("lic"), t.now, t.now
	added.State = cmp.Or(l.State, statusActive)
	added.Kind, added.ExpiryBasis = cmp.Or(l.Kind, kindNodeLocked), cmp.Or(l.ExpiryBasis, basisIssue)
	added.LeaseHours = cmp.Or(l.LeaseHours, l.defaultLease())
	if len(l.Metadata) == 0 {
		added.Metadata = json.RawMessage("{}")
	}
	licenseTable.insert(t, &added)
	if err := t.addKey(added.ID, key); err != nil {
		return "", err
	}
	t.addEvent(licenseEvent(&added, eventLicenseCreated, actor))
	return added.ID, nil
}

// setLicenseState stores the state that an operator's action leads to, and writes the
// event of type typ.
func (t *tx) setLicenseState(l *license, state licenseState, reason string, typ eventType, actor string) {
	t.exec(`UPDATE licenses SET state = ?, reason = nullif(?, ''), issuer_suspended = ?, updated_at = ?
		WHERE id = ?`, string(state), reason, l.IssuerSuspended, t.now, l.ID)
	t.addEvent(licenseEvent(l, typ, actor, "reason", reason))
}

// startLicense records the first activation of a licence, and computes the end of one
// whose duration counts from it. Later activations change nothing.
func (t *tx) startLicense(l *license) {
	if !l.FirstActivatedAt.IsZero() {
		return
	}
	l.FirstActivatedAt, l.UpdatedAt = t.now, t.now
	if l.ExpiryBasis == basisFirstActivation && l.DurationDays != nil && l.ExpiresAt.IsZero() {
		l.ExpiresAt = t.now.after(days(*l.DurationDays))
	}
	t.exec(`UPDATE licenses SET first_activated_at = ?, expires_at = ?, updated_at = ? WHERE id = ?`,
		l.FirstActivatedAt, l.ExpiresAt, t.now, l.ID)
	t.addEvent(licenseEvent(l, eventLicenseFirstActivated, actorDevice))
}

// noteLimit writes license.seat_limit_reached or license.transfer_limit_reached, unless that was done
// within the last hour.
func (t *tx) noteLimit(l *license, kind eventType) {
	column, last := `seat_limit_noted_at`, l.SeatLimitNotedAt
	if kind == eventLicenseTransferLimitReached {
		column, last = `transfer_limit_noted_at`, l.TransferLimitNotedAt
	}
	if closerThan(time.Hour, last.Time, t.now.Time) {
		return
	}
	t.exec(`UPDATE licenses SET `+column+` = ? WHERE id = ?`, t.now, l.ID)
	t.addEvent(licenseEvent(l, kind, actorDevice))
}

// endTokens ends every device token of a licence that was issued until now. Tokens issued in the
// second of an earlier call are dated a second later (see leaseClaims), so a call in the same second
// ends those too by setting TokensEndAt one second later; not by more, since devices refuse tokens that are dated
// ahead of their clocks. Errors: illegal_transition, to be tried again.
func (t *tx) endTokens(l *license) error {
	l.TokensEndAt = stamp{later(l.TokensEndAt.after(time.Second).Time, t.now.Time)}
	if ahead := l.TokensEndAt.Sub(t.now.Time); ahead > time.Second {
		return &refusal{code: codeIllegalTransition, retryAfter: ahead - time.Second,
			detail: "The licence's tokens were ended just now, and can't be ended again within the second."}
	}
	t.exec(`UPDATE licenses SET tokens_end_at = ? WHERE id = ?`, l.TokensEndAt, l.ID)
	return nil
}

// withoutTransferLimit returns the ids of an owner's licences that limit devices but not transfers and are not revoked.
// It reads all licences, some two seconds for a million, which will do for a command that is run once.
func (q *queries) withoutTransferLimit(o owner) ([]string, error) {
	query, args := o.narrow(`SELECT id FROM licenses WHERE `+unlimitedTransfers, `account_id`)
	return q.texts(query, args...)
}

// The conditions for time-driven transitions; every ? is the present time. graceDue and
// expiryDue match licences that have entered grace or expired and whose event is not
// written yet, lapseDue devices whose floating seat has lapsed. They repeat the conditions
// of the partial indexes in schema.sql, so that SQLite uses those. Rows without a licence
// or an account, which the sqlite3 shell can leave behind because it does not enforce
// foreign keys, don't match: an event about them would fail, and block all others.
const (
	hasAccount = ` AND EXISTS (SELECT 1 FROM accounts WHERE accounts.id = account_id)`
	graceDue   = `state <> 'revoked' AND grace_days > 0 AND grace_noted IS NOT expires_at AND expires_at <= ?` +
		hasAccount
	expiryDue = `state <> 'revoked' AND expired_noted IS NOT grace_ends_at AND grace_ends_at <= ?` + hasAccount
	lapseDue  = `lapses_at <= ? AND EXISTS (
		SELECT 1 FROM licenses WHERE licenses.id = license_id` + hasAccount + `)`
)

// recordLicenseTransitions writes the events license.grace_started and license.expired,
// each for up to limit licences, and returns how many it wrote. A licence gets each event
// once for the same expires_at, and again after a renewal.
func (t *tx) recordLicenseTransitions(limit int) (int, error) {
	written := 0
	for _, due := range []struct {
		condition, end, column string
		event                  eventType
	}{
		{graceDue, "expires_at", "grace_noted", eventLicenseGraceStarted},
		{expiryDue, "grace_ends_at", "expired_noted", eventLicenseExpired},
	} {
		rows, err := collect(t.queries, `SELECT id, account_id FROM licenses WHERE `+due.condition+` LIMIT ?`,
			[]any{t.now, limit}, func(l *license) []any { return []any{&l.ID, &l.AccountID} })
		if err != nil {
			return written, err
		}
		for _, l := range rows {
			t.exec(`UPDATE licenses SET `+due.column+` = `+due.end+` WHERE id = ?`, l.ID)
			t.addEvent(licenseEvent(&l, due.event, actorTime))
			written++
		}
	}
	return written, nil
}

// expiringDue is the SQL condition for licences that end after the first ? and not after the second,
// and for whose present end license.expiring is not written yet.
const expiringDue = `state <> 'revoked' AND expiring_noted IS NOT expires_at` +
	` AND expires_at > ? AND expires_at <= ?` + hasAccount

// licensesExpiring reports whether recordExpiring has anything to do at now.
func (q *queries) licensesExpiring(now, until stamp) (due bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM licenses WHERE `+expiringDue+`)`, now, until)
}

// recordExpiring writes the event license.expiring for up to limit licences that end by until,
// once for each end, and returns how many it wrote.
func (t *tx) recordExpiring(until stamp, limit int) (int64, error) {
	rows, err := collect(t.queries, `SELECT id, account_id, expires_at FROM licenses
		WHERE `+expiringDue+` LIMIT ?`, []any{t.now, until, limit},
		func(l *license) []any { return []any{&l.ID, &l.AccountID, &l.ExpiresAt} })
	if err != nil {
		return 0, err
	}
	for _, l := range rows {
		t.exec(`UPDATE licenses SET expiring_noted = expires_at WHERE id = ?`, l.ID)
		e := licenseEvent(&l, eventLicenseExpiring, actorTime, "expires_at", l.ExpiresAt.String())
		t.addEvent(e)
	}
	return int64(len(rows)), nil
}

// saveLicense writes members of l to its row, and sets UpdatedAt.
func (t *tx) saveLicense(l *license, members string) {
	l.UpdatedAt = t.now
	licenseTable.update(t, l, members+" updated_at", ` WHERE id = ?`, l.ID)
}

// saveTerms writes the terms of l that have been changed, with the event; nothing if none was.
func (t *tx) saveTerms(l *license, changed difference, actor string) {
	if len(changed.names) == 0 {
		return
	}
	t.saveLicense(l, changed.text())
	e := licenseEvent(l, eventLicenseUpdated, actor)
	e.Data = changed.data()
	t.addEvent(e)
}

// addKey stores the hash of another key of a licence. Errors: errKeyTaken.
func (t *tx) addKey(licenseID string, key licenseKey) error {
	hash := key.hash()
	_, err := t.try(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, ?, ?)`,
		hash[:], licenseID, key.hint(), t.now)
	if isDuplicate(err) {
		return errKeyTaken
	}
	return err
}

// retireKeys ends a licence's current key at end, and earlier keys that would work longer.
func (t *tx) retireKeys(licenseID string, end stamp) {
	t.exec(`UPDATE license_keys SET retires_at = ?1
		WHERE license_id = ?2 AND (retires_at IS NULL OR retires_at > ?1)`, end, licenseID)
}

// A licenseTally is how many licences there are and, up to limits.talliedLicenses, how many by status, and how many of
// those that are active end soon.
type licenseTally struct {
	Total     int64
	ByStatus  map[string]int64
	Ending    int64
	Unlimited int64 // without a limit of transfers, but with one of devices, and not revoked
}

// tallyLicenses counts the licences by the status that they have at now, and the active ones that
// end before soon, unless there are more than limits.talliedLicenses: reading every licence once takes as long for
// that many as half of everything else that the status command does.
func (q *queries) tallyLicenses(now, soon stamp) (t licenseTally, err error) {
	t.ByStatus = map[string]int64{}
	err = q.one(`SELECT count(*) FROM licenses`, nil, &t.Total)
	if err != nil || t.Total > int64(q.limits.talliedLicenses) {
		return t, err
	}
	query := `SELECT ` + strings.ReplaceAll(statusOfLicense, "?", "?1") + ` AS status, count(*),
		count(*) FILTER (WHERE l.expires_at < ?2),
		count(*) FILTER (WHERE ` + unlimitedTransfers + `)
		FROM licenses l JOIN accounts a ON a.id = l.account_id GROUP BY status`
	for _, status := range licenseStatuses {
		t.ByStatus[string(status)] = 0
	}
	err = q.each(query, []any{now, soon}, func(scan func(...any) error) error {
		var status string
		var n, ending, unlimited int64
		err := scan(&status, &n, &ending, &unlimited)
		if t.ByStatus[status] = n; status == statusActive {
			t.Ending = ending
		}
		t.Unlimited += unlimited
		return err
	})
	return t, err
}

// heldLicenses are licences that are not revoked.
var heldLicenses = holding{"licenses", "licence",
	`SELECT count(*) FROM licenses WHERE account_id = ?1 AND state <> 'revoked'`, ""}
