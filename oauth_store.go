package main

import (
	"time"
)

// refreshToken returns the refresh token with a hash, replaced or not, expired or not, or errNotFound.
func (q *queries) refreshToken(hash []byte) (*refreshToken, error) {
	r := &refreshToken{}
	err := q.one(`SELECT hash, grant_id, number, successor, replaced_at, expires_at FROM refresh_tokens
		WHERE hash = ?`, []any{hash}, &r.Hash, &r.GrantID, &r.Number, &r.Successor, &r.ReplacedAt, &r.ExpiresAt)
	return r, err
}

// refreshTokenWorks reports whether the refresh token of a grant with a number is the one that has not been replaced.
func (q *queries) refreshTokenWorks(grantID string, number int64) (works bool, err error) {
	return orNil(oneValue[bool](q, `SELECT replaced_at IS NULL FROM refresh_tokens
		WHERE grant_id = ? AND number = ?`, grantID, number))
}

// addRefreshToken inserts a refresh token of a grant that works, and removes the one that comes keptRefreshTokens
// before it, and any older.
func (t *tx) addRefreshToken(g *grant, number int64, hash []byte) {
	t.exec(`INSERT INTO refresh_tokens (hash, grant_id, number, expires_at) VALUES (?, ?, ?, ?)`,
		hash, g.ID, number, g.ExpiresAt)
	t.exec(`DELETE FROM refresh_tokens WHERE grant_id = ? AND number <= ?`, g.ID, number-keptRefreshTokens)
}

// replaceRefreshToken notes that a refresh token was replaced, and by what, sealed. The sealed successor of the token
// before it is deleted: that successor has been used, and whoever had an early token and a copy of the database
// could follow the chain.
func (t *tx) replaceRefreshToken(r *refreshToken, successor []byte) {
	t.exec(`UPDATE refresh_tokens SET replaced_at = ?, successor = ? WHERE hash = ?`, t.now, successor, r.Hash)
	t.exec(`UPDATE refresh_tokens SET successor = NULL WHERE grant_id = ? AND number = ?`, r.GrantID, r.Number-1)
}

// extendRefreshToken changes when a refresh token expires.
func (t *tx) extendRefreshToken(hash []byte, expires stamp) {
	t.exec(`UPDATE refresh_tokens SET expires_at = ? WHERE hash = ?`, expires, hash)
}

// saveGrantUse notes that the application of a grant got tokens, and until when it can get more.
func (t *tx) saveGrantUse(id string, expires stamp) {
	t.exec(`UPDATE grants SET used_at = ?, expires_at = ? WHERE id = ?`, t.now, expires, id)
}

// grantTable describes the table grants.
var grantTable = newTable("grants", "g", func(g *grant) []field {
	return []field{{"id", &g.ID}, {"app_id", &g.AppID}, {"account_id", &g.AccountID}, {"scope", &g.Scope},
		{"agreed_by", &g.AgreedBy}, {"created_at", &g.CreatedAt}, {"used_at", &g.UsedAt},
		{"expires_at", &g.ExpiresAt}, {"ended_at", &g.EndedAt}, {"ended_by", &g.EndedBy}, {"p.id", &g.App.ID},
		{"p.name", &g.App.Name}, {"coalesce(p.host, o.name)", &g.App.Owner}, {"p.home_page", &g.App.HomePage},
		{"p.host", &g.App.Host}}
}, `JOIN apps p ON p.id = g.app_id JOIN accounts o ON o.id = p.account_id`)

// grant returns a grant for an account of an owner, ended or not. Errors: errGrant.
func (q *queries) grant(o owner, id string) (*grant, error) {
	return grantTable.byID(q, o, id, errGrant)
}

// grants returns a page of the grants for the accounts of an owner that have not ended, newest first, starting
// after the id before ("" for the newest). With ended it returns those that have, too.
func (q *queries) grants(o owner, ended bool, before string, limit int) (listPage[*grant], error) {
	list := grantTable.whereOwner(o)
	switch {
	case ended:
	case o.every:
		list.filter(` AND g.ended_at IS NULL`)
	default: // a partial index covers only those
		list.scope(` AND g.ended_at IS NULL`, nil)
	}
	return grantTable.page(q, list, before, limit)
}

// connectedApps returns a page of the applications that may act for the account of an owner, in the order of their
// newest grants, starting after the application whose newest grant has the id before ("" for the first page): of each
// all grants that have not ended, newest first, of which there are at most maxGrants.
func (q *queries) connectedApps(o owner, before string, limit int) (p listPage[[]grant], err error) {
	list := grantTable.whereOwner(o)
	list.scope(` AND g.ended_at IS NULL`, nil)
	list.filter(` AND NOT EXISTS (SELECT 1 FROM grants n WHERE n.app_id = g.app_id AND n.account_id = g.account_id
		AND n.ended_at IS NULL AND n.id > g.id)`)
	newest, err := grantTable.page(q, list, before, limit)
	for _, g := range newest.rows {
		all, failed := grantTable.all(q, `WHERE g.id IN (SELECT id FROM grants WHERE app_id = ? AND account_id = ?
			AND ended_at IS NULL ORDER BY id DESC LIMIT ?) ORDER BY g.id DESC`, g.AppID, g.AccountID, maxGrants)
		if failed != nil {
			return p, failed
		}
		if len(all) > 0 { // they have not ended meanwhile
			p.rows = append(p.rows, all)
		}
	}
	p.next = newest.next
	return p, err
}

// addGrant inserts a grant.
func (t *tx) addGrant(g *grant) { grantTable.insert(t, g) }

// markGrantEnded ends a grant that has not ended, and removes its refresh tokens, of which there are at most
// keptRefreshTokens. It reports whether it ended the grant.
func (t *tx) markGrantEnded(id string, why grantEnd) bool {
	n := t.exec(`UPDATE grants SET ended_at = ?, ended_by = ? WHERE id = ? AND ended_at IS NULL`, t.now, why, id)
	t.exec(`DELETE FROM refresh_tokens WHERE grant_id = ?`, id)
	return n > 0
}

// webhooksOfGrant returns the ids of the webhooks that were made under a grant.
func (q *queries) webhooksOfGrant(id string) ([]string, error) {
	return q.texts(`SELECT webhook_id FROM app_webhooks WHERE grant_id = ?`, id)
}

// oldestGrants returns the ids of up to 100 grants of an account for an application that have not ended and are
// not among the newest ones, which are kept.
func (q *queries) oldestGrants(appID, accountID string, kept int) ([]string, error) {
	return q.texts(`SELECT id FROM grants WHERE app_id = ? AND account_id = ? AND ended_at IS NULL
		ORDER BY id DESC LIMIT 100 OFFSET ?`, appID, accountID, kept)
}

// grantCodeTable describes the table grant_codes.
var grantCodeTable = newTable("grant_codes", "c", func(c *grantCode) []field {
	return []field{{"hash", &c.Hash}, {"app_id", &c.AppID}, {"account_id", &c.AccountID},
		{"redirect_uri", &c.RedirectURI}, {"challenge", &c.Challenge}, {"scope", &c.Scope}, {"agreed_by", &c.AgreedBy},
		{"grant_id", &c.GrantID}, {"created_at", &c.CreatedAt}, {"expires_at", &c.ExpiresAt}}
})

// grantCode returns the authorization code with a hash, used or not, expired or not, or errNotFound.
func (q *queries) grantCode(hash []byte) (*grantCode, error) {
	return grantCodeTable.one(q, `WHERE c.hash = ?`, hash)
}

// addGrantCode inserts an authorization code.
func (t *tx) addGrantCode(c *grantCode) { grantCodeTable.insert(t, c) }

// useGrantCode notes the grant that was made of an authorization code.
func (t *tx) useGrantCode(hash []byte, grantID string) {
	t.exec(`UPDATE grant_codes SET grant_id = ? WHERE hash = ?`, grantID, hash)
}

// dueGrants returns up to limit grants that have not ended although their time is over or their application was
// removed, each with its id and why it ends.
func (q *queries) dueGrants(now stamp, limit int) ([]grant, error) {
	return collect(q, `SELECT id, ? FROM grants WHERE ended_at IS NULL AND expires_at <= ?
		UNION ALL SELECT g.id, ? FROM apps p CROSS JOIN grants g ON g.app_id = p.id AND g.ended_at IS NULL
		WHERE p.removed_at IS NOT NULL LIMIT ?`, []any{endedByTime, now, endedByRemoval, limit},
		func(g *grant) []any { return []any{&g.ID, &g.EndedBy} })
}

// webhooksOfRemovedApps returns the ids of up to limit webhooks that removed applications have made without a grant.
func (q *queries) webhooksOfRemovedApps(limit int) ([]string, error) {
	return q.texts(`SELECT x.webhook_id FROM apps p CROSS JOIN app_webhooks x ON x.app_id = p.id AND x.grant_id IS NULL
		WHERE p.removed_at IS NOT NULL LIMIT ?`, limit)
}

// oauthSweeps are the sweeps of applications, grants and sign-ins: they end what is over, then remove the rows of each
// table whose time has passed. ended returns since when grants that have ended, and applications that were removed or
// are documents, are kept, at least as long as other rows refer to them.
func oauthSweeps(ended func(now time.Time) time.Time) []func(*tx) (int64, error) {
	after := func(kept time.Duration) func(time.Time) time.Time {
		return func(now time.Time) time.Time { return now.Add(-kept) }
	}
	const unused = ` AND NOT EXISTS (SELECT 1 FROM grant_codes WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM grants WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM app_tokens WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM app_webhooks WHERE app_id = apps.id)
		AND NOT EXISTS (SELECT 1 FROM app_origins WHERE app_id = apps.id)`
	sweeps := []func(*tx) (int64, error){endDueGrants}
	for _, rows := range []struct {
		table, key, over string
		at               func(now time.Time) time.Time
	}{
		{`signin_codes`, `hash`, `expires_at <= ?`, after(0)},
		{`sessions`, `hash`, `expires_at <= ?`, after(0)},
		{`refresh_tokens`, `hash`, `expires_at <= ?`, after(0)},
		{`grant_codes`, `hash`, `expires_at < ?`, after(keptGrantCode)},
		{`app_tokens`, `id`, `expires_at < ?`, after(keptAppTokens)},
		{`grants`, `id`, `ended_at < ? AND NOT EXISTS (SELECT 1 FROM grant_codes WHERE grant_id = grants.id)
			AND NOT EXISTS (SELECT 1 FROM app_tokens WHERE grant_id = grants.id)
			AND NOT EXISTS (SELECT 1 FROM app_webhooks WHERE grant_id = grants.id)`, ended},
		{`apps`, `id`, `removed_at < ?` + unused, ended},
		{`apps`, `id`, `kind = 'document' AND updated_at < ?` + unused, ended},
	} {
		sweeps = append(sweeps, func(t *tx) (int64, error) {
			t.dropsNothing()
			return t.exec(`DELETE FROM `+rows.table+` WHERE `+rows.key+` IN (SELECT `+rows.key+` FROM `+rows.table+
				` WHERE `+rows.over+` LIMIT ?)`, newStamp(rows.at(t.now.Time)), t.limits.swept), nil
		})
	}
	return sweeps
}

// countOfApp counts the living grants of an application, and the webhooks that were made by it.
func (q *queries) countOfApp(appID string) (grants, webhooks int, err error) {
	err = q.one(`SELECT (SELECT count(*) FROM grants WHERE app_id = ?1 AND ended_at IS NULL),
		(SELECT count(*) FROM app_webhooks WHERE app_id = ?1)`, []any{appID}, &grants, &webhooks)
	return grants, webhooks, err
}

// heldGrants are those by which applications act for an account.
var heldGrants = holding{"grants", "grant",
	`SELECT count(*) FROM grants WHERE account_id = ?1 AND ended_at IS NULL AND expires_at > ?2`, ""}

// signinTable describes one of the two tables of signing in.
func signinTable(name string) *table[session] {
	return newTable(name, "s", func(s *session) []field {
		return []field{{"hash", &s.Hash}, {"account_id", &s.AccountID}, {"kind", &s.Kind}, {"made_by", &s.MadeBy},
			{"created_at", &s.CreatedAt}, {"expires_at", &s.ExpiresAt}, {"a.name", &s.Account}}
	}, "JOIN accounts a ON a.id = s.account_id")
}

var signinCodeTable, sessionTable = signinTable("signin_codes"), signinTable("sessions")

// lastingSignin selects the code or session of a kind with a hash, if it lasts at a time and its account is open.
const lastingSignin = `WHERE s.kind = ? AND s.hash = ? AND s.expires_at > ? AND a.closed_at IS NULL`

// session returns the session of a kind with a secret, if it lasts at now and its account is open, else errNotFound.
func (q *queries) session(kind sessionKind, secret string, now stamp) (*session, error) {
	return sessionTable.one(q, lastingSignin, kind, hashOf(secret), now)
}

// signinCode returns the code of a kind with a hash, if it lasts at now and its account is open, else errNotFound.
func (q *queries) signinCode(kind sessionKind, hash []byte, now stamp) (*session, error) {
	return signinCodeTable.one(q, lastingSignin, kind, hash, now)
}

// removeSigninCode removes the code with a hash.
func (t *tx) removeSigninCode(hash []byte) { t.exec(`DELETE FROM signin_codes WHERE hash = ?`, hash) }

// addSigninCode inserts a code, of whose kind the account keeps the newest maxSigninCodes.
func (t *tx) addSigninCode(c *session) {
	t.exec(`DELETE FROM signin_codes WHERE hash IN (SELECT hash FROM signin_codes
		WHERE account_id = ? AND kind = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)`,
		c.AccountID, c.Kind, maxSigninCodes-1)
	signinCodeTable.insert(t, c)
}

// addSession inserts a session, of whose kind the account keeps the newest maxSessions.
func (t *tx) addSession(s *session) {
	t.exec(`DELETE FROM sessions WHERE hash IN (SELECT hash FROM sessions
		WHERE account_id = ? AND kind = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)`,
		s.AccountID, s.Kind, maxSessions-1)
	sessionTable.insert(t, s)
}

// removeSession ends the session with a secret, if there is one.
func (t *tx) removeSession(secret string) {
	t.exec(`DELETE FROM sessions WHERE hash = ?`, hashOf(secret))
}

// removeSignins ends all sessions of an account, of which there are at most maxSessions of a kind, and removes its
// codes, at most maxSigninCodes of a kind.
func (t *tx) removeSignins(accountID string) error {
	t.exec(`DELETE FROM sessions WHERE account_id = ?`, accountID)
	t.exec(`DELETE FROM signin_codes WHERE account_id = ?`, accountID)
	return nil
}
