package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Connecting an account of ours with its account at a payment provider.

// newProviders makes the clients of all payment providers, by name. The addresses are theirs, but in tests
// and for sandboxes. now is the wall clock.
func newProviders(out *outbound, stripeURL, vippsURL string, now func() time.Time) map[string]provider {
	return map[string]provider{
		providerStripe: newStripeProvider(out, stripeURL),
		providerVipps:  newVippsProvider(out, vippsURL, now),
	}
}

const (
	maxSecretsFile = 16 << 10 // bytes
	maxSecret      = 200      // characters
)

// secretFields returns the fields of the secrets that an operator types for a provider, by name.
func (s *connectionSecrets) secretFields(provider string) map[string]*string {
	if provider == providerStripe {
		return map[string]*string{"key": &s.Key}
	}
	return map[string]*string{"client_id": &s.ClientID, "client_secret": &s.ClientSecret,
		"subscription_key": &s.SubscriptionKey, "merchant_serial": &s.MerchantSerial}
}

// parseSecrets reads the secrets for a provider: lines of the form name=value, empty ones, and comments
// behind a #. Its errors name lines and names, and never a value.
func parseSecrets(provider, text string) (s connectionSecrets, err error) {
	if err := parseSecretLines(s.secretFields(provider), text); err != nil {
		return s, err
	}
	if provider == providerVipps && !isMerchantSerial(s.MerchantSerial) {
		return s, errors.New("merchant_serial must be 4 to 6 digits")
	}
	return s, nil
}

// parseSecretLines is parseSecrets for fields by name, all of which are needed.
func parseSecretLines(fields map[string]*string, text string) error {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		field := fields[name]
		switch {
		case !ok || field == nil:
			return fmt.Errorf("line %d is none of %s", number, strings.Join(secretNames(fields), ", "))
		case *field != "":
			return fmt.Errorf("%s appears twice", name)
		case value == "" || len(value) > maxSecret || strings.IndexFunc(value, isNotVisible) >= 0:
			return fmt.Errorf("%s must be 1 to %d visible ASCII characters", name, maxSecret)
		}
		*field = value
	}
	for _, line := range secretNames(fields) {
		if *fields[strings.TrimSuffix(line, "=…")] == "" {
			return fmt.Errorf("a line %s is missing", line)
		}
	}
	return nil
}

// isMerchantSerial reports whether a text has the form of Vipps' merchant serial numbers.
func isMerchantSerial(s string) bool {
	return len(s) >= 4 && len(s) <= 6 && strings.Trim(s, "0123456789") == ""
}

func isNotVisible(r rune) bool { return r <= ' ' || r > '~' }

// secretNames returns the lines that secrets consist of: "client_id=…".
func secretNames(fields map[string]*string) (lines []string) {
	for name := range fields {
		lines = append(lines, name+"=…")
	}
	slices.Sort(lines)
	return lines
}

// The refusals of a connection.
var (
	errConnected = errors.New("the account is connected with this provider already: disconnect that first, " +
		"'widgetd payment list' prints it")
	errOtherAccount = errors.New("these keys are of another account there, or for tests where the others are live: " +
		"disconnect the connection and connect anew")
	errMixedKeys = errors.New("the account is connected with another provider, one of the two with test keys: " +
		"take both live or both for tests")
)

// checkConnection refuses a second connection of an account with a provider, and test keys beside live ones.
// used are the connections of the account that are in use. Errors: errConnected, errMixedKeys.
func checkConnection(c *paymentConnection, used []*paymentConnection) error {
	for _, other := range used {
		switch {
		case other.Provider == c.Provider:
			return errConnected
		case other.Live != c.Live:
			return errMixedKeys
		}
	}
	return nil
}

// addConnection writes a connection that the provider has answered for. Errors: errAccount, errConnected,
// errMixedKeys.
func addConnection(t *tx, c *paymentConnection, actor string) error {
	if err := t.openAccount(c.AccountID); err != nil {
		return err
	}
	used, err := t.usedConnections(c.AccountID)
	if err != nil {
		return err
	}
	if err := checkConnection(c, used); err != nil {
		return err
	}
	if err := t.addPaymentConnection(c); err != nil {
		return err
	}
	return t.addEvent(connectionEvent(c, eventConnectionAdded, actor))
}

// sameConnection refuses keys that lead to another account at the provider, as far as that tells.
// Errors: errOtherAccount.
func sameConnection(before, after *paymentConnection) error {
	if before.Live != after.Live || before.Name != after.Name {
		return errOtherAccount
	}
	return nil
}

// changeConnectionKeys writes the new keys and the new webhook of a connection. Its payments go on with them.
// Errors: errNotFound if it is not in use.
func changeConnectionKeys(t *tx, c *paymentConnection, actor string) error {
	if err := t.saveConnectionKeys(c); err != nil {
		return err
	}
	return t.addEvent(connectionEvent(c, eventConnectionChanged, actor))
}

// removeConnection ends the use of a connection. What was paid with it goes on. Errors: errNotFound if it is
// not in use.
func removeConnection(t *tx, c *paymentConnection, actor string) error {
	if err := t.removePaymentConnection(c.ID); err != nil {
		return err
	}
	return t.addEvent(connectionEvent(c, eventConnectionRemoved, actor))
}

// connectionEvent returns an event about a connection.
func connectionEvent(c *paymentConnection, kind eventType, actor string) event {
	return event{Type: kind, AccountID: c.AccountID, SubjectID: c.ID, Actor: actor,
		Data: eventData("provider", c.Provider)}
}

// unsealableConnections returns the ids of the connections in use whose secrets can't be read with a key
// file, since another one sealed them.
func unsealableConnections(q *queries, keys *keyring) (ids []string, err error) {
	all, err := q.paymentConnections(anyAccount)
	for _, c := range all {
		if _, failed := c.open(keys); failed != nil && c.RemovedAt.IsZero() {
			ids = append(ids, c.ID)
		}
	}
	return ids, err
}

// sealedElsewhere is what an operator is told of such a connection.
func sealedElsewhere(id string) string {
	return fmt.Sprintf("the secrets of the payment connection %s were sealed with another key file: "+
		"run 'widgetd payment reconnect %s -secrets FILE'", id, id)
}
