package main

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// booksAppTable describes the table books_apps.
var booksAppTable = newTable("books_apps", "a", func(a *booksApp) []field {
	return []field{{"product", &a.Product}, {"client_id", &a.ClientID}, {"secret", &a.Sealed},
		{"changed_at", &a.ChangedAt}}
})

// booksApp returns the application of a product, or errNotFound.
func (q *queries) booksApp(product string) (*booksApp, error) {
	return booksAppTable.one(q, `WHERE a.product = ?`, product)
}

// booksApps returns the applications that are set, in the order of bookProducts.
func (q *queries) booksApps() ([]booksApp, error) {
	return booksAppTable.all(q, `ORDER BY a.product DESC`)
}

// saveBooksApp writes the application of a product.
func (t *tx) saveBooksApp(a *booksApp) {
	t.exec(`INSERT INTO books_apps (product, client_id, secret, changed_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (product) DO UPDATE SET client_id = excluded.client_id, secret = excluded.secret,
		changed_at = excluded.changed_at`, a.Product, a.ClientID, a.Sealed, t.now)
}

// A bookAuthorization records that somebody was sent to a product's pages to agree to a connection.
type bookAuthorization struct {
	StateHash   []byte
	AccountID   string
	Product     string
	Sealed      []byte // the verifier of PKCE, see sealedBooksVerifier
	RedirectURL string
	MadeBy      string
	CreatedAt   stamp
	ExpiresAt   stamp
}

// bookAuthorizationTable describes the table books_authorizations.
var bookAuthorizationTable = newTable("books_authorizations", "a", func(a *bookAuthorization) []field {
	return []field{{"state_hash", &a.StateHash}, {"account_id", &a.AccountID}, {"product", &a.Product},
		{"verifier", &a.Sealed}, {"redirect_url", &a.RedirectURL}, {"made_by", &a.MadeBy},
		{"created_at", &a.CreatedAt}, {"expires_at", &a.ExpiresAt}}
})

// bookAuthorization returns the authorization of a product with that hash. Errors: errNotFound, also for one that
// has expired at now.
func (q *queries) bookAuthorization(product string, hash []byte, now stamp) (*bookAuthorization, error) {
	return bookAuthorizationTable.one(q, `WHERE a.state_hash = ? AND a.product = ? AND a.expires_at > ?`,
		hash, product, now)
}

// takeBookAuthorization returns the authorization of a product with that hash, and removes it, so that it
// can be used once. Errors: errNotFound, also for one that has expired.
func (t *tx) takeBookAuthorization(product string, hash []byte) (*bookAuthorization, error) {
	a, err := t.bookAuthorization(product, hash, t.now)
	if err != nil {
		return nil, err // one that has expired is removed by a chore
	}
	t.exec(`DELETE FROM books_authorizations WHERE state_hash = ?`, hash)
	return a, nil
}

// keepBookAuthorizations removes all but the newest authorizations of an account.
func (t *tx) keepBookAuthorizations(accountID string, newest int) {
	t.exec(`DELETE FROM books_authorizations WHERE state_hash IN (SELECT state_hash
		FROM books_authorizations WHERE account_id = ? ORDER BY created_at DESC, state_hash LIMIT -1 OFFSET ?)`,
		accountID, newest)
}

// removeBookAuthorizations removes up to limit authorizations that have expired, and returns how many.
func (t *tx) removeBookAuthorizations(limit int64) int64 {
	return t.exec(`DELETE FROM books_authorizations WHERE state_hash IN (SELECT state_hash
		FROM books_authorizations WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, t.now, limit)
}

// bookConnectionTable describes the table books_connections.
var bookConnectionTable = newTable("books_connections", "b", func(c *bookConnection) []field {
	return append(fieldsOf(c.members()), []field{{"id", &c.ID}, {"account_id", &c.AccountID}, {"product", &c.Product},
		{"organisation_id", &c.OrganisationID}, {"organisation", &c.Organisation},
		{"choices", jsonColumn[[]bookCompany]{&c.Choices}}, {"currency", &c.Currency}, {"secrets", &c.Sealed},
		{"tokens", &c.Tokens}, {"refreshing_until", &c.RefreshingUntil}, {"needs_reconnect_at", &c.NeedsReconnectAt},
		{"failing_since", &c.FailingSince}, {"mapping", jsonColumn[*bookMapping]{&c.Mapping}},
		{"mapping_at", &c.MappingAt}, {"created_at", &c.CreatedAt}, {"removed_at", &c.RemovedAt},
		{`(SELECT json_group_array(json_object('before', w.before_date,
			'outside', json(iif(w.outside, 'true', 'false')), 'tests', json(iif(w.tests, 'true', 'false')))
			ORDER BY w.before_date)
			FROM books_switches w WHERE w.connection_id = b.id)`, jsonColumn[[]formerSwitches]{&c.Former}}}...)
})

// bookConnection returns a connection of an owner, in use or removed, or errBooksConnection.
func (q *queries) bookConnection(o owner, id string) (*bookConnection, error) {
	return bookConnectionTable.byID(q, o, id, errBooksConnection)
}

// usedBookConnection is bookConnection for one that is in use.
func (q *queries) usedBookConnection(o owner, id string) (*bookConnection, error) {
	c, err := q.bookConnection(o, id)
	if err == nil && !c.RemovedAt.IsZero() {
		err = errBooksConnection
	}
	return c, err
}

// bookConnections returns the connections of an owner that are in use, newest first. An account has at most
// one for each product.
func (q *queries) bookConnections(o owner) ([]*bookConnection, error) {
	query, args := o.narrow(bookConnectionTable.query+`WHERE b.removed_at IS NULL`, `b.account_id`)
	return collectReadable(q, query+` ORDER BY b.id DESC`, args, bookConnectionTable.destNew)
}

// connectionWithBooks returns the connection of an account with a product that is in use, nil: there is none.
func (q *queries) connectionWithBooks(accountID, product string) (*bookConnection, error) {
	return orNil(bookConnectionTable.one(q, `WHERE b.account_id = ? AND b.product = ? AND b.removed_at IS NULL`,
		accountID, product))
}

// connectionWithOrganisation returns the connection of an account with a company, in use or removed; nil:
// there never was one.
func (q *queries) connectionWithOrganisation(accountID, product, organisationID string) (*bookConnection, error) {
	return orNil(bookConnectionTable.one(q, `WHERE b.account_id = ? AND b.product = ? AND b.organisation_id = ?`,
		accountID, product, organisationID))
}

// sharesOrganisation reports whether another account is connected with the company of a connection, too.
func (q *queries) sharesOrganisation(c *bookConnection) (shared bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM books_connections
		WHERE product = ? AND organisation_id = ? AND id <> ? AND removed_at IS NULL)`,
		c.Product, c.OrganisationID, c.ID)
}

// addBookConnection inserts a connection.
func (t *tx) addBookConnection(c *bookConnection) {
	c.CreatedAt = t.now
	bookConnectionTable.insert(t, c)
}

// saveBookConnection writes what can change of a connection, but for its tokens.
func (t *tx) saveBookConnection(c *bookConnection) {
	bookConnectionTable.update(t, c, `organisation_id organisation choices currency
		needs_reconnect_at failing_since mapping mapping_at send_from payouts_from status series outside tests
		removed_at`,
		` WHERE id = ?`, c.ID)
}

// saveFormerSwitches replaces the rows of a connection about a business day and later ones by those in c.
func (t *tx) saveFormerSwitches(c *bookConnection, from businessDate) {
	t.exec(`DELETE FROM books_switches WHERE connection_id = ? AND before_date >= ?`, c.ID, from)
	for _, w := range c.Former {
		if w.Before >= from {
			t.exec(`INSERT INTO books_switches (connection_id, before_date, outside, tests) VALUES (?, ?, ?, ?)`,
				c.ID, w.Before, w.Outside, w.Tests)
		}
	}
}

// removeBookConnection deletes the row of a connection that has no company, and so no exports.
func (t *tx) removeBookConnection(id string) {
	t.exec(`DELETE FROM books_switches WHERE connection_id = ?`, id)
	t.exec(`DELETE FROM books_connections WHERE id = ? AND organisation_id IS NULL`, id)
}

// saveBookTokens writes new tokens of a connection, nil to have none, unless they were replaced meanwhile, and
// releases the claim on replacing them. The worker replaces those that lapse once half of their life has passed, and up
// to a day later. Errors: errChanged.
func (t *tx) saveBookTokens(c *bookConnection, sealed []byte) error {
	due := stamp{}
	if life := c.product().tokenLife; life > 0 && sealed != nil { // not all connections' on the same minute
		due = t.now.after(life/2 + rand.N(24*time.Hour))
	}
	if t.exec(`UPDATE books_connections SET secrets = ?, tokens = tokens + 1, refreshing_until = NULL,
		renewal_lost_at = NULL, renew_at = ? WHERE id = ? AND tokens = ?`, sealed, due, c.ID, c.Tokens) == 0 {
		return errChanged
	}
	c.Sealed, c.Tokens, c.RefreshingUntil = sealed, c.Tokens+1, stamp{}
	return nil
}

// renewalLostAt returns since when attempts to replace the tokens of a connection have had no usable answer, or
// errNotFound.
func (q *queries) renewalLostAt(id string) (lost stamp, err error) {
	return oneValue[stamp](q, `SELECT renewal_lost_at FROM books_connections
		WHERE id = ? AND renewal_lost_at IS NOT NULL`, id)
}

// postponeRenewal writes when the worker retries replacing tokens that are due, or that it could not replace.
func (t *tx) postponeRenewal(id string, due stamp) {
	t.exec(`UPDATE books_connections SET renew_at = ?
		WHERE id = ? AND (renewal_lost_at IS NOT NULL OR renew_at <= ?)`, due, id, t.now)
}

// endRenewal releases the claim on replacing the tokens of a connection, which nobody tries again.
func (t *tx) endRenewal(id string) {
	t.exec(`UPDATE books_connections SET refreshing_until = NULL, renewal_lost_at = NULL, renew_at = NULL
		WHERE id = ?`, id)
}

// dueRenewals returns up to limit connections whose tokens are to be replaced at now, those that wait longest first.
func (q *queries) dueRenewals(now stamp, limit int) (ids []string, err error) {
	return q.texts(`SELECT id FROM books_connections WHERE renew_at <= ? ORDER BY renew_at LIMIT ?`, now, limit)
}

// claimBookTokens notes that somebody is replacing the tokens of a connection until a time, unless somebody else
// is or they were replaced. It reports whether the caller has the claim. If that has ended without an answer, the
// worker tries again. A stored claim that lasts longer than until was made before the clock was set back, and does not
// count.
func (t *tx) claimBookTokens(id string, tokens int64, until stamp) (mine bool) {
	return t.exec(`UPDATE books_connections SET refreshing_until = ?1, renew_at = ?1,
			renewal_lost_at = coalesce(renewal_lost_at, ?4) WHERE id = ?2 AND tokens = ?3
		AND (refreshing_until IS NULL OR refreshing_until <= ?4 OR refreshing_until > ?1)`,
		until, id, tokens, t.now) > 0
}

// dropTokenClaim releases a claim on replacing tokens that has not led to new ones.
func (t *tx) dropTokenClaim(id string, tokens int64) {
	t.exec(`UPDATE books_connections SET refreshing_until = NULL WHERE id = ? AND tokens = ?`, id, tokens)
}

// setBooksFailing notes since when a connection has given no usable answers; the zero stamp: it gives them. It
// writes nothing if that does not change whether the connection is failing.
func (t *tx) setBooksFailing(id string, since stamp) {
	t.exec(`UPDATE books_connections SET failing_since = ?1
		WHERE id = ?2 AND (failing_since IS NULL) IS NOT (?1 IS NULL)`, since, id)
}

// exportTable describes the table books_exports.
var exportTable = newTable("books_exports", "x", func(x *bookExport) []field {
	return []field{{"id", &x.ID}, {"connection_id", &x.ConnectionID}, {"account_id", &x.AccountID}, {"date", &x.Date},
		{"currency", &x.Currency}, {"revision", &x.Revision}, {"reverses", &x.Reverses}, {"entry_date", &x.EntryDate},
		{"state", &x.State}, {"reason", &x.Reason}, {"detail", &x.Detail}, {"sync_key", &x.SyncKey},
		{"entry", jsonColumn[json.RawMessage]{&x.Entry}}, {"request", &x.Request}, {"entry_id", &x.EntryID},
		{entryURL(), &x.EntryURL},
		{"attempts", &x.Attempts}, {"changes", &x.Changes}, {"due_at", &x.DueAt},
		{"held_at", &x.HeldAt}, {"created_at", &x.CreatedAt}, {"sent_at", &x.SentAt}, {"posted_at", &x.PostedAt},
		{"reversed_at", &x.ReversedAt}, {"payout_id", &x.PayoutID}, {"part", &x.Part}}
})

// entryURL returns the SQL of the page of an export's entry for people.
func entryURL() string {
	cases := ""
	for _, p := range bookProducts {
		if p.entryPage != "" {
			cases += ` WHEN '` + p.name + `' THEN '` + p.entryPage + `' || x.entry_id`
		}
	}
	return `(SELECT CASE c.product` + cases + ` END FROM books_connections c WHERE c.id = x.connection_id)`
}

// bookExport returns an export of an owner, or errExport.
func (q *queries) bookExport(o owner, id string) (*bookExport, error) {
	return exportTable.byID(q, o, id, errExport)
}

// lastExport returns the export of a connection and subject with the highest revision; nil: there is none.
func (q *queries) lastExport(connectionID string, of exportSubject) (*bookExport, error) {
	where, args := of.exports(connectionID)
	return orNil(exportTable.one(q, where+` ORDER BY x.revision DESC LIMIT 1`, args...))
}

// lastReversal returns the last reversing export of the same subject before another one; nil: there is none.
func (q *queries) lastReversal(of *bookExport) (*bookExport, error) {
	where, args := of.exports(of.ConnectionID)
	return orNil(exportTable.one(q, where+` AND x.revision < ? AND x.reverses IS NOT NULL
		ORDER BY x.revision DESC LIMIT 1`, append(args, of.Revision)...))
}

// exports returns the condition of all exports of a subject by a connection. Those of a day are of no payout.
func (s *exportSubject) exports(connectionID string) (where string, args []any) {
	if s.PayoutID != nil {
		return `WHERE x.connection_id = ? AND x.payout_id = ? AND x.part = ?`, []any{connectionID, s.PayoutID, s.Part}
	}
	return `WHERE x.connection_id = ? AND x.date = ? AND x.currency = ? AND x.payout_id IS NULL`,
		[]any{connectionID, s.Date, s.Currency}
}

// An exportFilter selects exports of an owner; a connectionID or state that is empty selects all.
type exportFilter struct {
	owner        owner
	connectionID string
	state        string
}

// bookExports returns a page of exports, newest first, starting after the id before ("" for the newest). An
// account has only a few for each business day and product, which bounds how many rows are read.
func (q *queries) bookExports(f exportFilter, before string, limit int) (listPage[*bookExport], error) {
	list := exportTable.whereOwner(f.owner)
	if f.connectionID != "" {
		list.filter(` AND x.connection_id = ?`, f.connectionID)
	}
	if f.state != "" {
		list.filter(` AND x.state = ?`, f.state)
	}
	return exportTable.page(q, list, before, limit)
}

// saveExport writes what can change of an export, unless it has changed since it was read. Errors: errChanged.
func (t *tx) saveExport(x *bookExport) error {
	if exportTable.update(t, x, `entry_date state reason detail entry request entry_id attempts
		due_at held_at sent_at posted_at reversed_at`, `, changes = changes + 1 WHERE id = ? AND changes = ?`,
		x.ID, x.Changes) == 0 {
		return errChanged
	}
	x.Changes++
	return nil
}

// removeExport deletes an export of which nothing is in the books, unless it has changed since it was read.
func (t *tx) removeExport(x *bookExport) {
	t.exec(`DELETE FROM books_exports WHERE id = ? AND changes = ? AND entry_id IS NULL
		AND state IN ('waiting', 'held', 'ready')`, x.ID, x.Changes)
}

// dropUnsentExports deletes the exports of a connection of which nothing is in the books, of payouts or of days, before
// a date, or all if that is nil, and returns how many. What may be there, and what is to be reversed, stays.
func (t *tx) dropUnsentExports(connectionID string, payouts bool, before *businessDate) int64 {
	return t.exec(`DELETE FROM books_exports WHERE connection_id = ?1 AND (?2 IS NULL OR date < ?2)
		AND state IN ('waiting', 'held', 'ready', 'failed') AND entry_id IS NULL AND reverses IS NULL
		AND (payout_id IS NOT NULL) = ?3 AND part IS NOT 'undo'`, connectionID, before, payouts)
}

// postponeExports makes sure that no export of a connection is due before a time.
func (t *tx) postponeExports(connectionID string, until stamp) {
	t.exec(`UPDATE books_exports SET due_at = ?1, changes = changes + 1
		WHERE connection_id = ?2 AND due_at < ?1`, until, connectionID)
}

// pollAllSent makes every entry whose answer is not known due, to be looked for in the books.
func (t *tx) pollAllSent() error {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE state IN ('sending', 'unknown') AND due_at IS NOT NULL`, t.now)
	return nil
}

// postponeExport sets when an export that waits is due.
func (t *tx) postponeExport(id string, at stamp) {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE id = ? AND due_at IS NOT NULL`, at, id)
}

// wakeExports makes all exports of a connection that are not in the books due now.
func (t *tx) wakeExports(connectionID string) {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE connection_id = ? AND state IN ('waiting', 'held', 'ready', 'sending', 'unknown')`, t.now, connectionID)
}

// wakeHeldFor makes the exports of a connection due now that are held for a reason.
func (t *tx) wakeHeldFor(connectionID, reason string) {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE connection_id = ? AND state = 'held' AND reason = ?`, t.now, connectionID, reason)
}

// pauseExports makes sure that no export of a connection becomes due any more, and notes reasonDisconnected.
func (t *tx) pauseExports(connectionID string) {
	t.exec(`UPDATE books_exports SET due_at = NULL, changes = changes + 1,
		reason = CASE WHEN state IN ('sending', 'unknown') THEN ?2 ELSE reason END
		WHERE connection_id = ?1 AND due_at IS NOT NULL`, connectionID, reasonDisconnected)
}

// dueConnections returns the connections that have an export that is due at now, those that wait longest
// first, without what was set aside. Connections of closed accounts wait until these are opened again.
func (q *queries) dueConnections(now stamp, limit int) (ids []string, err error) {
	return q.texts(`SELECT id FROM (SELECT b.id, (SELECT min(x.due_at) FROM books_exports x
			WHERE x.connection_id = b.id AND x.due_at IS NOT NULL
			AND x.id NOT IN (SELECT value FROM json_each(?3))) AS due`+fromUsedBooks+`)
		WHERE due <= ?1 AND id NOT IN (SELECT value FROM json_each(?3)) ORDER BY due LIMIT ?2`,
		now, limit, q.faults.leftOutIDs())
}

// dueExports returns up to limit exports of a connection that are due at now and were not set aside, the earliest days
// first, and payouts, which wait for days, after all of these.
func (q *queries) dueExports(connectionID string, now stamp, limit int) (ids []string, err error) {
	return q.texts(`SELECT x.id FROM books_exports x WHERE x.connection_id = ? AND x.due_at <= ?
		AND x.id NOT IN (SELECT value FROM json_each(?))
		ORDER BY x.payout_id IS NOT NULL, x.date, x.currency, x.revision LIMIT ?`,
		connectionID, now, q.faults.leftOutIDs(), limit)
}

// unsentDays returns up to limit business days, from one date up to but not including another, the earliest first,
// for which a connection has something to send (bookConnection.wants) but no export. It reads all days of the account
// in between.
func (q *queries) unsentDays(
	c *bookConnection, from, before businessDate, limit int,
) (days []revenueDayKey, err error) {
	err = q.each(`SELECT d.date, d.currency, s.method, s.test, s.what, s.rate, s.group_name, s.gross, s.vat
		FROM revenue_days d JOIN revenue_sums s
			ON s.account_id = d.account_id AND s.date = d.date AND s.currency = d.currency
		WHERE d.account_id = ? AND d.date >= ? AND d.date < ?
		AND NOT EXISTS (SELECT 1 FROM books_exports x
			WHERE x.connection_id = ? AND x.date = d.date AND x.currency = d.currency AND x.payout_id IS NULL)
		ORDER BY d.date, d.currency`, []any{c.AccountID, from, before, c.ID},
		func(scan func(...any) error) error {
			var day revenueDayKey
			var sum revenueSum
			err := scan(append([]any{&day.Date, &day.Currency}, sum.dest()...)...)
			if len(days) < limit && c.wants(day.Date, &sum) && !slices.Contains(days, day) {
				days = append(days, day)
			}
			return err
		})
	return days, err
}

// sendingConnections returns the connections that send days or payouts automatically and can be read, of accounts that
// are open.
func (q *queries) sendingConnections() ([]*bookConnection, error) {
	return collectReadable(q, `SELECT `+bookConnectionTable.columns+fromUsedBooks+`
		AND (b.send_from IS NOT NULL OR b.payouts_from IS NOT NULL) AND b.organisation_id IS NOT NULL`, nil,
		bookConnectionTable.destNew)
}

// A booksTotals counts what is under way, for the status command and the metrics: only connections in use of
// accounts that are open, and their exports.
type booksTotals struct {
	Connections int `json:"connections"`
	NeedOwner   int `json:"need_reconnect"` // connections that their owner has to connect again
	Failing     int `json:"failing"`        // connections that give no usable answers
	Held        int `json:"held"`           // exports
	HeldLong    int `json:"held_long"`      // exports that have been held for heldTooLong
	Unknown     int `json:"unknown"`        // exports whose answer was lost
	Failed      int `json:"failed"`         // exports that the books refuse
	Refused     int `json:"refused"`        // exports that only somebody there can have taken, see dailyReasons
	Waiting     int `json:"waiting"`        // exports that are to be sent
}

// The rows that status counts: connections in use, of accounts that are open, and exports of these.
const (
	fromUsedBooks = ` FROM books_connections b JOIN accounts a ON a.id = b.account_id
		WHERE b.removed_at IS NULL AND a.closed_at IS NULL`
	fromWaitingExports = ` FROM books_exports x CROSS JOIN books_connections b ON b.id = x.connection_id
		CROSS JOIN accounts a ON a.id = b.account_id WHERE b.removed_at IS NULL AND a.closed_at IS NULL`

	// of dailyReasons; one whose answer was lost is held as nothing
	isRefused = ` AND x.held_at IS NOT NULL AND (x.state = 'unknown' AND x.due_at IS NOT NULL
		OR x.state = 'held' AND x.reason IN ('no_license', 'no_right', 'refused'))`
)

// booksTotals counts what is under way, up to maxCounted of each kind. Exports that have been held since
// heldBefore or longer count as held for too long, unless nothing is waited for (heldCurrency).
func (q *queries) booksTotals(heldBefore stamp) (n booksTotals, err error) {
	count := func(from string) string { return `(SELECT count(*) FROM (SELECT 1` + from + ` LIMIT ?2))` }
	err = q.one(`SELECT `+strings.Join([]string{
		count(fromUsedBooks),
		count(fromUsedBooks + ` AND b.needs_reconnect_at IS NOT NULL`),
		count(fromUsedBooks + ` AND b.failing_since IS NOT NULL`),
		count(fromWaitingExports + ` AND x.held_at IS NOT NULL AND x.state = 'held'`),
		count(fromWaitingExports + ` AND x.held_at <= ?1 AND x.state = 'held' AND x.due_at IS NOT NULL`),
		count(fromWaitingExports + ` AND x.due_at IS NOT NULL AND x.state = 'unknown'`),
		count(fromWaitingExports + ` AND x.held_at IS NOT NULL AND x.state = 'failed'`),
		count(fromWaitingExports + isRefused),
		count(fromWaitingExports + ` AND x.due_at IS NOT NULL AND x.state IN ('waiting', 'ready', 'sending')`)}, ", "),
		[]any{heldBefore, maxCounted},
		&n.Connections, &n.NeedOwner, &n.Failing, &n.Held, &n.HeldLong, &n.Unknown, &n.Failed, &n.Refused, &n.Waiting)
	return n, err
}

// booksTroubles are the troubles of what booksTotals counts.
var booksTroubles = []trouble{
	{kind: "books_failed", urgency: sameDay, money: true, one: "$n entry", many: "$n entries",
		advice: " failed since $day: 'widgetd books export list -state failed'",
		query: `SELECT x.held_at AS since, x.id` + fromWaitingExports + ` AND x.held_at IS NOT NULL
			AND x.state = 'failed'`},
	{kind: "books_refused", urgency: sameDay, money: true, one: "$n entry is", many: "$n entries are",
		advice: " refused by the books since $day ($id): 'widgetd books export list -state held'",
		query: `SELECT x.held_at AS since, substr(coalesce(x.reason || ': ', '') || x.detail, 1, 300) AS id` +
			fromWaitingExports + isRefused},
	{kind: "books_held", urgency: sameDay, money: true, one: "$n entry", many: "$n entries",
		advice: " held since $day ($id): 'widgetd books export list -state held'",
		query: `SELECT x.held_at AS since, x.reason AS id` + fromWaitingExports + ` AND x.held_at <= ?1
			AND x.state = 'held'
			AND x.due_at IS NOT NULL AND x.reason NOT IN ('no_license', 'no_right', 'refused')`},
	{kind: "books_needs_reconnect", urgency: sameDay, money: true, one: "$n connection with books waits for its owner",
		many: "$n connections with books wait for their owners", advice: " since $day: 'widgetd books list'",
		query: `SELECT b.needs_reconnect_at AS since, b.id` + fromUsedBooks + ` AND b.needs_reconnect_at IS NOT NULL`},
	{kind: "books_silent", urgency: sameDay, money: true, one: "$n connection with books gets no usable answer",
		many: "$n connections with books get no usable answers", advice: " since $day: 'widgetd books list'",
		span: -time.Hour,
		query: `SELECT b.failing_since AS since, b.id` + fromUsedBooks + ` AND b.needs_reconnect_at IS NULL
			AND b.failing_since <= ?2`},
}

// openBooks returns the connections in use of all accounts that are open, oldest first.
func (q *queries) openBooks() ([]*bookConnection, error) {
	return collectReadable(q, `SELECT `+bookConnectionTable.columns+fromUsedBooks+` ORDER BY b.id`, nil,
		bookConnectionTable.destNew)
}

// payoutsToSend returns up to limit payouts that a connection sends automatically (bookConnection.wantsPayout), that
// have arrived by a date, and were read or never can be, and that have no export yet. It reads all payouts of the
// account since the first day.
func (q *queries) payoutsToSend(c *bookConnection, today businessDate, limit int) (arrived []payout, err error) {
	err = q.each(payoutTable.query+`WHERE p.account_id = ? AND p.arrival_date BETWEEN ? AND ?
		AND NOT EXISTS (SELECT 1 FROM books_exports x
			WHERE x.payout_id = p.id AND x.connection_id = ? AND x.part = 'payout')
		ORDER BY p.arrival_date`, []any{c.AccountID, c.PayoutsFrom, today, c.ID},
		func(scan func(...any) error) error {
			var p payout
			err := scan(payoutTable.dest(&p)...)
			if len(arrived) < limit && !p.isUnread() && c.wantsPayout(&p) {
				arrived = append(arrived, p)
			}
			return err
		})
	return arrived, err
}

// isBooked is the SQL condition for an export (x) whose entry is in the books and takes back no other.
const isBooked = `x.state = 'posted' AND x.reverses IS NULL`

// payoutsToUndo returns up to limit payouts that have failed after a connection had booked them as on their way, which
// nothing takes back yet.
func (q *queries) payoutsToUndo(c *bookConnection, limit int) ([]payout, error) {
	return payoutTable.all(q, `WHERE p.account_id = ?1 AND p.ended_at IS NOT NULL
		AND EXISTS (SELECT 1 FROM books_exports x, json_each(x.entry, '$.lines') l
			WHERE x.payout_id = p.id AND x.connection_id = ?2 AND x.part = 'payout' AND `+isBooked+`
			AND l.value ->> 'transfer')
		AND NOT EXISTS (SELECT 1 FROM books_exports x
			WHERE x.payout_id = p.id AND x.connection_id = ?2 AND x.part = 'undo')
		LIMIT ?3`, c.AccountID, c.ID, limit)
}

// unbookedDays returns the days on which what is in a payout counts and of which a connection has no entry in the
// books; a day without a date: something counts on none, unless the payout has given that back, too. first is the
// earliest day that is there or is to be sent, perhaps after later ones; "": none is.
func (q *queries) unbookedDays(
	c *bookConnection, payoutID string,
) (days []revenueDayKey, first businessDate, err error) {
	days, err = collect(q, `SELECT DISTINCT coalesce(f.date, ''), coalesce(f.currency, '')
		FROM payout_items i JOIN payments y ON y.id = i.payment_id
		LEFT JOIN revenue_facts f ON f.order_id = y.order_id
			AND f.source = CASE i.category WHEN 'payment' THEN 'sale' WHEN 'refund' THEN `+itemRefund+`
				ELSE i.source END
		WHERE i.payout_id = ?1 AND i.category IN ('payment', 'refund', 'dispute')
		AND (f.seq IS NOT NULL OR (SELECT sum(j.amount) FROM payout_items j
			WHERE j.payment_id = i.payment_id AND j.payout_id = ?1) <> 0)
		AND NOT EXISTS (SELECT 1 FROM books_exports x WHERE x.connection_id = ?2 AND x.payout_id IS NULL
			AND `+isBooked+` AND x.date = f.date AND x.currency = f.currency)`,
		[]any{payoutID, c.ID}, func(d *revenueDayKey) []any { return []any{&d.Date, &d.Currency} })
	if err == nil && len(days) > 0 {
		first, err = oneValue[businessDate](q, `SELECT coalesce(min(x.date), '') FROM books_exports x
			WHERE x.connection_id = ? AND x.payout_id IS NULL`, c.ID)
	}
	return days, first, err
}
