package main

import "errors"

// A refreshToken is one of the refresh tokens of a grant: the one that works, or one that was replaced.
type refreshToken struct {
	Hash       []byte // SHA-256 of the token
	GrantID    string
	Number     int64  // counted within the grant, from 1
	Successor  []byte // what replaced it, sealed under a key that is derived from the token
	ReplacedAt stamp  // zero: it works
	ExpiresAt  stamp
}

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

// replaceRefreshToken notes when a refresh token was replaced, and by what. What replaced the one before is
// forgotten: it has been used, and whoever had an early token and a copy of the database could follow the
// chain from there.
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

// extendRefreshToken moves the end of a refresh token.
func (t *tx) extendRefreshToken(hash []byte, expires stamp) error {
	_, err := t.exec(`UPDATE refresh_tokens SET expires_at = ? WHERE hash = ?`, expires, hash)
	return err
}

// saveGrantUse notes when the application of a grant came for tokens, and until when it can come again.
func (t *tx) saveGrantUse(g *grant) error {
	_, err := t.exec(`UPDATE grants SET used_at = ?, expires_at = ? WHERE id = ?`, g.UsedAt, g.ExpiresAt, g.ID)
	return err
}
