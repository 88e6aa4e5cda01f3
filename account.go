package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// accountNoun declares accounts, with their origins and tokens, and the base addresses.
func accountNoun() noun {
	return noun{
		name:     "account",
		modules:  func(s *server) []module { return []module{accountModule(s)} },
		calls:    accountRouteCommands,
		commands: accountCommands,
		ids: []idKind{{accountPlaceholder, "acct", "accounts", false, (*queries).idsNamed},
			{"TOKEN", "tok", "tokens", false, nil}},
		problems: accountProblems,
		events:   accountEvents,
		sealed:   []string{"tokens"},
		status:   []statusLine{{label: "accounts", read: accountStatus}},
		troubles: []trouble{endingTokens},
		rows:     []rowReader{accountTable.unreadable, tokenTable.unreadable},
		check:    checkAccounts,
		holdings: []holding{heldTokens, heldOrigins},
	}
}

// The event types of accounts, origins and tokens. Their data never has the name of an account.
var (
	accountEvents eventTable

	eventAccountCreated     = accountEvents.add("account.created")
	eventAccountUpdated     = accountEvents.add("account.updated")
	eventAccountRateChanged = accountEvents.add("account.rate_changed")
	eventAccountClosed      = accountEvents.add("account.closed")
	eventAccountReopened    = accountEvents.add("account.reopened")

	eventOriginAdded   = accountEvents.add("origin.added")
	eventOriginRemoved = accountEvents.add("origin.removed")

	eventTokenIssued  = accountEvents.add("token.issued")
	eventTokenRevoked = accountEvents.add("token.revoked")
)

// accountEvent returns an event about an account itself.
func accountEvent(id string, kind eventType, actor string, data ...string) event {
	return event{Type: kind, AccountID: id, SubjectID: id, Actor: actor, Data: eventData(data...)}
}

// createAccount opens an account, with its event, and returns its id.
func createAccount(t *tx, name string, main bool, actor string) string {
	id := t.addAccount(name, main)
	t.addEvent(accountEvent(id, eventAccountCreated, actor))
	return id
}

// changeRate sets how many requests a minute an account may make, with its event. Setting
// the rate that it already has changes nothing. Errors: errNotFound.
func changeRate(t *tx, id string, rate int, actor string) error {
	a, err := t.account(id)
	if err != nil || a.Rate == rate {
		return err
	}
	t.addEvent(accountEvent(id, eventAccountRateChanged, actor,
		"from", strconv.Itoa(a.Rate), "to", strconv.Itoa(rate)))
	return t.setRate(id, rate)
}

// changeIssuer sets whether the tokens of an account may issue its licences, with its event. A change without effect
// writes nothing. Errors: errNotFound.
func changeIssuer(t *tx, id string, issuer bool, actor string) error {
	a, err := t.account(id)
	if err != nil || a.Issuer == issuer {
		return err
	}
	t.setIssuer(id, issuer)
	t.addEvent(accountEvent(id, eventAccountUpdated, actor, "changed", "issuer", "to", yesNo[issuer]))
	return nil
}

// yesNo are the words of an option that is switched on or off.
var yesNo = map[bool]string{true: "yes", false: "no"}

// closeAccount closes an account, with its event, and ends what it has of nouns (noun.close), such as sign-ins for
// it, and live payments, whose money is released. Its rows stay. Closing it again changes nothing. Errors: errNotFound,
// and one for the main account, which can't be closed.
func closeAccount(t *tx, of []noun, id, actor string) error {
	a, err := t.account(id)
	switch {
	case err != nil:
		return err
	case a.Main:
		return errors.New("the main account can't be closed")
	case !a.ClosedAt.IsZero():
		return nil
	}
	t.setClosed(id, t.now)
	for _, n := range of {
		if n.close == nil {
			continue
		}
		if err := n.close(t, id); err != nil {
			return err
		}
	}
	t.addEvent(accountEvent(id, eventAccountClosed, actor))
	return nil
}

// reopenAccount opens a closed account again, with its event. For an open one it changes
// nothing. Errors: errNotFound.
func reopenAccount(t *tx, id, actor string) error {
	a, err := t.account(id)
	if err != nil || a.ClosedAt.IsZero() {
		return err
	}
	t.setClosed(id, stamp{})
	t.addEvent(accountEvent(id, eventAccountReopened, actor, "closed_at", a.ClosedAt.String()))
	return nil
}

// countHoldings counts what an account has at now that stops working when it is closed (noun.holdings): by member, and
// as a text for people, "2 tokens, 3 origins, 1 live payment (57.00 CHF released)".
func countHoldings(
	q *queries, of []noun, account string, now stamp,
) (counts map[string]int, text string, err error) {
	counts = map[string]int{}
	var texts []string
	for _, h := range collectNouns(of, func(n *noun) []holding { return n.holdings }) {
		if counts[h.member], err = oneValue[int](q, h.query, account, now); err != nil {
			return nil, "", err
		}
		if counts[h.member] == 0 {
			continue
		}
		texts = append(texts, countOf(counts[h.member], h.name))
		if h.money == "" {
			continue
		}
		sum, err := oneValue[string](q, h.money, account)
		if err != nil {
			return nil, "", err
		}
		if sum != "" {
			texts[len(texts)-1] += " (" + sum + " released)"
		}
	}
	return counts, cmp.Or(strings.Join(texts, ", "), "nothing"), nil
}

// addOrigin adds a normalised origin to an account, with its event. Adding it to the same account again changes
// nothing; one that belongs to another account is refused.
func addOrigin(t *tx, accountID, origin, actor string) error {
	if err := t.openAccount(accountID); err != nil {
		return err
	}
	listedBy, err := t.originAccount(origin)
	switch {
	case err != nil || listedBy == accountID:
		return err
	case listedBy != "":
		return fmt.Errorf("%s already belongs to %s: remove it there first", origin, listedBy)
	}
	originTable.insert(t, &originRow{origin, accountID, t.now})
	t.addEvent(accountEvent(accountID, eventOriginAdded, actor, "origin", origin))
	return nil
}

// removeOrigin removes an origin, with its event, or returns errNotFound.
func removeOrigin(t *tx, origin, actor string) error {
	accountID, err := t.originAccount(origin)
	if err != nil {
		return err
	}
	if err := t.deleteOrigin(origin); err != nil {
		return err
	}
	t.addEvent(accountEvent(accountID, eventOriginRemoved, actor, "origin", origin))
	return nil
}

// tokenEvent returns an event about an operator's token.
func tokenEvent(row *tokenRow, kind eventType, actor string, data ...string) event {
	data = append([]string{"client_id", row.ClientID, "scope", row.Scope}, data...)
	return event{Type: kind, AccountID: row.AccountID, SubjectID: row.ID, Actor: actor, Data: eventData(data...)}
}

// revokeToken revokes a token, with its event, or returns errNotFound. Revoking it again
// changes nothing.
func revokeToken(t *tx, jti, actor string) error {
	row, err := t.token(jti)
	if err != nil || !row.RevokedAt.IsZero() {
		return err
	}
	t.addEvent(tokenEvent(row, eventTokenRevoked, actor))
	return t.setRevoked(jti)
}

// changeSettings changes settings of an account as set does, with an event that names those that differ. A change
// without effect writes nothing. of are the nouns whose settingsHook is called. Errors: errAccount.
func changeSettings(t *tx, of []noun, id string, set func(*accountSettings), actor string) error {
	if err := t.openAccount(id); err != nil {
		return err
	}
	before, err := t.settings(id)
	if err != nil {
		return err
	}
	after := before
	set(&after)
	changed := differenceOf(before.members(), after.members())
	if len(changed.names) == 0 {
		return nil
	}
	for i := range of {
		if of[i].settings == nil {
			continue
		}
		if err := of[i].settings(t, id, before, after); err != nil {
			return err
		}
	}
	t.saveSettings(id, &after)
	if before.Logo != nil && valueOr(after.Logo, "") != *before.Logo {
		t.removeLogo(*before.Logo)
	}
	t.addEvent(accountEvent(id, eventAccountUpdated, actor, "changed", changed.text()))
	return nil
}
