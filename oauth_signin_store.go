package main

// A signinCode is a code with which somebody can sign in for an account, until it is used.
type signinCode struct {
	Hash      []byte // keyring.signinHash of the code
	AccountID string
	MadeBy    string // as in events
	CreatedAt stamp
	ExpiresAt stamp
}

// A session is somebody who has signed in for an account.
type session struct {
	Hash      []byte // hashOf of what the browser keeps
	AccountID string
	MadeBy    string // who made the code that was used
	CreatedAt stamp
	ExpiresAt stamp
	Account   string // name of the account
}

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

// keepSigninCodes removes all codes of an account but the newest.
func (t *tx) keepSigninCodes(accountID string, kept int) error {
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

// keepSessions ends all sessions of an account but the newest.
func (t *tx) keepSessions(accountID string, kept int) error {
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

// removeExpiredSignins removes up to limit codes, and as many sessions, whose time has passed. It returns how
// many of that kind of which there were more.
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
