package main

import (
	"cmp"
	"errors"
)

// refreshToken returns the refresh token with a hash, replaced or not, expired or not, or errNotFound.
func (q *queries) refreshToken(hash []byte) (*refreshToken, error) {
	r := &refreshToken{}
	err := q.one(`SELECT hash, grant_id, number, successor, replaced_at, expires_at FROM refresh_tokens
		WHERE hash = ?`, []any{hash}, &r.Hash, &r.GrantID, &r.Number, &r.Successor, &r.ReplacedAt, &r.ExpiresAt)
	return r, err
}

// refreshTokenWorks reports whether the refresh token of a grant with a number is the one that has not been
// replaced.
func (q *queries) refreshTokenWorks(grantID string, number int64) (works bool, err error) {
	err = q.one(`SELECT replaced_at IS NULL FROM refresh_tokens WHERE grant_id = ? AND number = ?`,
		[]any{grantID, number}, &works)
	if errors.Is(err, errNotFound) {
		err = nil
	}
	return works, err
}

// addRefreshToken inserts a refresh token that works, and removes the one that comes keptRefreshTokens before
// it, and any older.
func (t *tx) addRefreshToken(r *refreshToken) error {
	_, err := t.exec(`INSERT INTO refresh_tokens (hash, grant_id, number, expires_at) VALUES (?, ?, ?, ?)`,
		r.Hash, r.GrantID, r.Number, r.ExpiresAt)
	if err != nil || r.Number <= keptRefreshTokens {
		return err
	}
	_, err = t.exec(`DELETE FROM refresh_tokens WHERE grant_id = ? AND number <= ?`,
		r.GrantID, r.Number-keptRefreshTokens)
	return err
}

// replaceRefreshToken notes when a refresh token was replaced, and by what. The sealed successor of the token
// before it is deleted: that successor has been used, and whoever had an early token and a copy of the database
// could follow the chain.
func (t *tx) replaceRefreshToken(r *refreshToken) error {
	n, err := t.exec(`UPDATE refresh_tokens SET replaced_at = ?, successor = ?
		WHERE hash = ? AND replaced_at IS NULL`, r.ReplacedAt, r.Successor, r.Hash)
	if err := requireRow(n, err); err != nil {
		return err
	}
	_, err = t.exec(`UPDATE refresh_tokens SET successor = NULL WHERE grant_id = ? AND number = ?`,
		r.GrantID, r.Number-1)
	return err
}

// extendRefreshToken changes when a refresh token expires.
func (t *tx) extendRefreshToken(hash []byte, expires stamp) error {
	_, err := t.exec(`UPDATE refresh_tokens SET expires_at = ? WHERE hash = ?`, expires, hash)
	return err
}

// saveGrantUse notes when the application of a grant got tokens, and until when it can get more.
func (t *tx) saveGrantUse(g *grant) error {
	_, err := t.exec(`UPDATE grants SET used_at = ?, expires_at = ? WHERE id = ?`, g.UsedAt, g.ExpiresAt, g.ID)
	return err
}

// grantTable describes the table grants.
var grantTable = newTable("grants", "g", func(g *grant) []field {
	return []field{{"id", &g.ID}, {"app_id", &g.AppID}, {"account_id", &g.AccountID}, {"scope", &g.Scope},
		{"agreed_by", &g.AgreedBy}, {"created_at", &g.CreatedAt}, {"used_at", &g.UsedAt},
		{"expires_at", &g.ExpiresAt}, {"ended_at", &g.EndedAt}, {"ended_by", &g.EndedBy}, {"p.name", &g.App},
		{"o.name", &g.AppOwner}, {"p.home_page", &g.HomePage}, {"a.name", &g.Account}}
}, `JOIN apps p ON p.id = g.app_id JOIN accounts o ON o.id = p.account_id
	JOIN accounts a ON a.id = g.account_id`)

// grant returns a grant for an account of an owner, ended or not. Errors: errGrant.
func (q *queries) grant(o owner, id string) (*grant, error) {
	return grantTable.byID(q, o, id, errGrant)
}

// grants returns a page of the grants for the accounts of an owner that have not ended, newest first, starting
// after the id before ("" for the newest). With ended it returns those that have, too.
func (q *queries) grants(o owner, ended bool, before string, limit int) (p listPage[*grant], err error) {
	list := grantTable.list()
	list.scope(o.narrow(``, `g.account_id`))
	switch {
	case ended:
	case o.every:
		list.filter(` AND g.ended_at IS NULL`)
	default: // a partial index covers only those
		list.scope(` AND g.ended_at IS NULL`, nil)
	}
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, grantTable.destNew,
		func(g *grant) string { return g.ID })
	return p, err
}

// addGrant inserts a grant.
func (t *tx) addGrant(g *grant) error { return grantTable.insert(t, g) }

// markGrantEnded ends a grant that has not ended, and removes its refresh tokens, of which there are at most
// keptRefreshTokens. It reports whether it ended the grant.
func (t *tx) markGrantEnded(id, why string) (bool, error) {
	n, err := t.exec(`UPDATE grants SET ended_at = ?, ended_by = ? WHERE id = ? AND ended_at IS NULL`, t.now, why, id)
	if err != nil || n == 0 {
		return false, err
	}
	_, err = t.exec(`DELETE FROM refresh_tokens WHERE grant_id = ?`, id)
	return true, err
}

// webhooksOfGrant returns the ids of the webhooks that were made under a grant.
func (q *queries) webhooksOfGrant(id string) ([]string, error) {
	return collect(q, `SELECT webhook_id FROM app_webhooks WHERE grant_id = ?`, []any{id},
		func(id *string) []any { return []any{id} })
}

// oldestGrants returns the ids of up to 100 grants of an account for an application that have not ended and are
// not among the newest ones, which are kept.
func (q *queries) oldestGrants(appID, accountID string, kept int) ([]string, error) {
	return collect(q, `SELECT id FROM grants WHERE app_id = ? AND account_id = ? AND ended_at IS NULL
		ORDER BY id DESC LIMIT 100 OFFSET ?`, []any{appID, accountID, kept},
		func(id *string) []any { return []any{id} })
}

// grantCode returns the authorization code with a hash, used or not, expired or not, or errNotFound.
func (q *queries) grantCode(hash []byte) (*grantCode, error) {
	c := &grantCode{}
	err := q.one(`SELECT hash, app_id, account_id, redirect_uri, challenge, scope, agreed_by, grant_id, created_at,
		expires_at FROM grant_codes WHERE hash = ?`, []any{hash}, &c.Hash, &c.AppID, &c.AccountID, &c.RedirectURI,
		&c.Challenge, &c.Scope, &c.AgreedBy, &c.GrantID, &c.CreatedAt, &c.ExpiresAt)
	return c, err
}

// addGrantCode inserts an authorization code.
func (t *tx) addGrantCode(c *grantCode) error {
	_, err := t.exec(`INSERT INTO grant_codes (hash, app_id, account_id, redirect_uri, challenge, scope, agreed_by,
		created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, c.Hash, c.AppID, c.AccountID, c.RedirectURI,
		c.Challenge, c.Scope, c.AgreedBy, c.CreatedAt, c.ExpiresAt)
	return err
}

// useGrantCode notes the grant that was made of an authorization code. It reports whether the code was unused.
func (t *tx) useGrantCode(hash []byte, grantID string) (bool, error) {
	n, err := t.exec(`UPDATE grant_codes SET grant_id = ? WHERE hash = ? AND grant_id IS NULL`, grantID, hash)
	return n > 0, err
}

// An appGrant is a grant in an iteration over those of one application, in the order of account and id.
type appGrant struct {
	AccountID, ID string
	ended         bool
}

// grantsOfApp returns up to limit grants of an application after one of them, ended or not.
func (q *queries) grantsOfApp(appID string, after appGrant, limit int64) ([]appGrant, error) {
	return collect(q, `SELECT account_id, id, ended_at IS NOT NULL FROM grants
		WHERE app_id = ? AND (account_id, id) > (?, ?) ORDER BY account_id, id LIMIT ?`,
		[]any{appID, after.AccountID, after.ID, limit},
		func(g *appGrant) []any { return []any{&g.AccountID, &g.ID, &g.ended} })
}

// overdueGrants returns the ids of up to limit grants that have not ended although their time is over.
func (q *queries) overdueGrants(now stamp, limit int64) ([]string, error) {
	return collect(q, `SELECT id FROM grants WHERE ended_at IS NULL AND expires_at <= ?
		ORDER BY expires_at LIMIT ?`, []any{now, limit}, func(id *string) []any { return []any{id} })
}

// webhooksOfApp returns the ids of up to limit webhooks that an application made.
func (q *queries) webhooksOfApp(appID string, limit int64) ([]string, error) {
	return collect(q, `SELECT webhook_id FROM app_webhooks WHERE app_id = ? LIMIT ?`, []any{appID, limit},
		func(id *string) []any { return []any{id} })
}

// removeGrants deletes up to limit grants that ended before a time, but for those to which a code or a token
// still refers, and returns how many.
func (t *tx) removeGrants(before stamp, limit int64) (int64, error) {
	t.invalidate()
	return t.exec(`DELETE FROM grants WHERE id IN (SELECT g.id FROM grants g WHERE g.ended_at < ?
		AND NOT EXISTS (SELECT 1 FROM grant_codes c WHERE c.grant_id = g.id)
		AND NOT EXISTS (SELECT 1 FROM app_tokens k WHERE k.grant_id = g.id)
		AND NOT EXISTS (SELECT 1 FROM app_webhooks w WHERE w.grant_id = g.id)
		ORDER BY g.ended_at LIMIT ?)`, before, limit)
}

// removeGrantCodes deletes up to limit authorization codes that expired before a time, and returns how many.
func (t *tx) removeGrantCodes(before stamp, limit int64) (int64, error) {
	t.invalidate()
	return t.exec(`DELETE FROM grant_codes WHERE hash IN
		(SELECT hash FROM grant_codes WHERE expires_at < ? ORDER BY expires_at LIMIT ?)`, before, limit)
}

// removeRefreshTokens deletes up to limit refresh tokens that have expired, and returns how many.
func (t *tx) removeRefreshTokens(limit int64) (int64, error) {
	t.invalidate()
	return t.exec(`DELETE FROM refresh_tokens WHERE hash IN
		(SELECT hash FROM refresh_tokens WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, t.now, limit)
}

// heldGrants are those by which applications act for an account.
var heldGrants = holding{"grants", "grant",
	`SELECT count(*) FROM grants WHERE account_id = ?1 AND ended_at IS NULL AND expires_at > ?2`}

// addSigninCode inserts a code.
func (t *tx) addSigninCode(c signinCode) error {
	_, err := t.exec(`INSERT INTO signin_codes (hash, account_id, made_by, created_at, expires_at)
		VALUES (?, ?, ?, ?, ?)`, c.Hash, c.AccountID, c.MadeBy, c.CreatedAt, c.ExpiresAt)
	return err
}

// signinCode returns the code with a hash, if it has not expired at now and its account is open, else errNotFound.
func (q *queries) signinCode(hash []byte, now stamp) (c signinCode, err error) {
	err = q.one(`SELECT c.hash, c.account_id, c.made_by, c.created_at, c.expires_at
		FROM signin_codes c JOIN accounts a ON a.id = c.account_id
		WHERE c.hash = ? AND c.expires_at > ? AND a.closed_at IS NULL`, []any{hash, now},
		&c.Hash, &c.AccountID, &c.MadeBy, &c.CreatedAt, &c.ExpiresAt)
	return c, err
}

// takeSigninCode removes the code that signinCode returns.
func (t *tx) takeSigninCode(hash []byte) (c signinCode, err error) {
	if c, err = t.signinCode(hash, t.now); err != nil {
		return c, err
	}
	n, err := t.exec(`DELETE FROM signin_codes WHERE hash = ?`, hash)
	return c, requireRow(n, err)
}

// removeOldSigninCodes removes all codes of an account but the newest.
func (t *tx) removeOldSigninCodes(accountID string, kept int) error {
	_, err := t.exec(`DELETE FROM signin_codes WHERE hash IN (SELECT hash FROM signin_codes
		WHERE account_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)`, accountID, kept)
	return err
}

// session returns the session with a secret, if it lasts at now and its account is open, else errNotFound.
func (q *queries) session(secret string, now stamp) (*session, error) {
	s := &session{}
	err := q.one(`SELECT s.hash, s.account_id, s.made_by, s.created_at, s.expires_at, a.name
		FROM sessions s JOIN accounts a ON a.id = s.account_id
		WHERE s.hash = ? AND s.expires_at > ? AND a.closed_at IS NULL`, []any{hashOf(secret), now},
		&s.Hash, &s.AccountID, &s.MadeBy, &s.CreatedAt, &s.ExpiresAt, &s.Account)
	return s, err
}

// addSession inserts a session.
func (t *tx) addSession(s *session) error {
	_, err := t.exec(`INSERT INTO sessions (hash, account_id, made_by, created_at, expires_at)
		VALUES (?, ?, ?, ?, ?)`, s.Hash, s.AccountID, s.MadeBy, s.CreatedAt, s.ExpiresAt)
	return err
}

// removeSession ends the session with a secret, if there is one.
func (t *tx) removeSession(secret string) error {
	_, err := t.exec(`DELETE FROM sessions WHERE hash = ?`, hashOf(secret))
	return err
}

// removeOldSessions ends all sessions of an account but the newest.
func (t *tx) removeOldSessions(accountID string, kept int) error {
	_, err := t.exec(`DELETE FROM sessions WHERE hash IN (SELECT hash FROM sessions
		WHERE account_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)`, accountID, kept)
	return err
}

// removeSignins ends all sessions of an account, of which there are at most maxSessions, and removes its
// codes, at most maxSigninCodes.
func (t *tx) removeSignins(accountID string) error {
	if _, err := t.exec(`DELETE FROM sessions WHERE account_id = ?`, accountID); err != nil {
		return err
	}
	_, err := t.exec(`DELETE FROM signin_codes WHERE account_id = ?`, accountID)
	return err
}

// removeExpiredSignins removes up to limit codes, and as many sessions, whose time has passed. It returns the
// larger of the two counts.
func (t *tx) removeExpiredSignins(limit int64) (int64, error) {
	t.invalidate()
	codes, err := t.exec(`DELETE FROM signin_codes WHERE hash IN (SELECT hash
		FROM signin_codes WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, t.now, limit)
	if err != nil {
		return 0, err
	}
	sessions, err := t.exec(`DELETE FROM sessions WHERE hash IN (SELECT hash
		FROM sessions WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, t.now, limit)
	return max(codes, sessions), err
}
