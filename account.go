package main

import (
	"fmt"
	"strconv"
	"time"
)

// The event types of accounts, origins and tokens. Their data never has the name of an account.
var (
	accountEvents, originEvents, tokenEvents eventTable

	eventAccountCreated     = accountEvents.add("account.created")
	eventAccountRateChanged = accountEvents.add("account.rate_changed")
	eventAccountClosed      = accountEvents.add("account.closed")
	eventAccountReopened    = accountEvents.add("account.reopened")

	eventOriginAdded   = originEvents.add("origin.added")
	eventOriginRemoved = originEvents.add("origin.removed")

	eventTokenIssued  = tokenEvents.add("token.issued")
	eventTokenRevoked = tokenEvents.add("token.revoked")
)

// accountEvent returns an event about an account itself.
func accountEvent(id string, kind eventType, actor string, data ...string) event {
	return event{
		Type:      kind,
		AccountID: id,
		SubjectID: id,
		Actor:     actor,
		Data:      eventData(data...),
	}
}

// createAccount opens an account, with its event, and returns its id.
func createAccount(t *tx, name string, main bool, actor string) (string, error) {
	id, err := t.addAccount(name, main)
	if err != nil {
		return "", err
	}
	return id, t.addEvent(accountEvent(id, eventAccountCreated, actor))
}

// changeRate sets how many requests a minute an account may make, with its event. The rate that
// it has already is no change. Errors: errNotFound.
func changeRate(t *tx, id string, rate int, actor string) error {
	a, err := t.account(id)
	if err != nil || a.Rate == rate {
		return err
	}
	if err := t.setRate(id, rate); err != nil {
		return err
	}
	return t.addEvent(accountEvent(id, eventAccountRateChanged, actor,
		"from", strconv.Itoa(a.Rate), "to", strconv.Itoa(rate)))
}

// shutAccount closes an account, with its event. Errors: those of tx.closeAccount. Closing it
// again changes nothing.
func shutAccount(t *tx, id, actor string) error {
	a, err := t.account(id)
	if err != nil {
		return err
	}
	if err := t.closeAccount(id); err != nil || !a.ClosedAt.IsZero() {
		return err
	}
	return t.addEvent(accountEvent(id, eventAccountClosed, actor))
}

// reviveAccount opens a closed account again, with its event. For an open one it changes
// nothing. Errors: errNotFound.
func reviveAccount(t *tx, id, actor string) error {
	a, err := t.account(id)
	if err != nil || a.ClosedAt.IsZero() {
		return err
	}
	if err := t.reopenAccount(id); err != nil {
		return err
	}
	return t.addEvent(accountEvent(id, eventAccountReopened, actor, "closed_at", a.ClosedAt.String()))
}

// text returns the holdings for people: "2 tokens, 1 licence, 0 widgets, 3 origins and 1 webhook".
func (h holdings) text() string {
	return fmt.Sprintf("%s, %s, %s, %s and %s", countOf(h.Tokens, "token"), countOf(h.Licenses, "licence"),
		countOf(h.Widgets, "widget"), countOf(h.Origins, "origin"), countOf(h.Webhooks, "webhook"))
}

// countOf returns a number with its noun, in the plural unless it is 1.
func countOf[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// enlistOrigin adds a normalised origin to an account, with its event. Errors: those of
// tx.addOrigin. Adding it to the same account again changes nothing.
func enlistOrigin(t *tx, accountID, origin, actor string) error {
	owner, err := t.originAccount(origin)
	if err != nil {
		return err
	}
	if err := t.addOrigin(accountID, origin); err != nil || owner == accountID {
		return err
	}
	return t.addEvent(accountEvent(accountID, eventOriginAdded, actor, "origin", origin))
}

// delistOrigin removes an origin, with its event, or returns errNotFound.
func delistOrigin(t *tx, origin, actor string) error {
	owner, err := t.originAccount(origin)
	if err != nil {
		return err
	}
	if err := t.removeOrigin(origin); err != nil {
		return err
	}
	return t.addEvent(accountEvent(owner, eventOriginRemoved, actor, "origin", origin))
}

// grantToken is issueToken with the event of an operator's token.
func grantToken(
	t *tx, keys *keyring, row tokenRow, ttl time.Duration, actor string,
) (token string, issued tokenRow, err error) {
	token, issued, err = issueToken(t, keys, row, ttl)
	if err != nil {
		return "", issued, err
	}
	allAccounts := ""
	if issued.AllAccounts {
		allAccounts = "true"
	}
	return token, issued, t.addEvent(event{
		Type:      eventTokenIssued,
		AccountID: issued.AccountID,
		SubjectID: issued.ID,
		Actor:     actor,
		Data: eventData("client_id", issued.ClientID, "scope", issued.Scope,
			"expires_at", issued.ExpiresAt.String(), "all_accounts", allAccounts),
	})
}

// withdrawToken revokes a token, with its event, or returns errNotFound. Revoking it again
// changes nothing.
func withdrawToken(t *tx, jti, actor string) error {
	row, err := t.token(jti)
	if err != nil || !row.RevokedAt.IsZero() {
		return err
	}
	if err := t.revokeToken(jti); err != nil {
		return err
	}
	return t.addEvent(event{
		Type:      eventTokenRevoked,
		AccountID: row.AccountID,
		SubjectID: jti,
		Actor:     actor,
		Data:      eventData("client_id", row.ClientID, "scope", row.Scope),
	})
}
