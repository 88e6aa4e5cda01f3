package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
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

// An account is a tenant or partner, and the subject of the rate limit.
type account struct {
	ID        string `json:"id"`
	Name      string `json:"name"`   // for people: "Trattoria Roma"
	Main      bool   `json:"main"`   // the vendor's own account
	Rate      int    `json:"rate"`   // requests a minute
	Issuer    bool   `json:"issuer"` // tokens of it alone may issue its licences; see scopeIssuing
	CreatedAt stamp  `json:"created_at"`
	ClosedAt  stamp  `json:"closed_at"`
}

// accountTable describes the table accounts.
var accountTable = newTable("accounts", "a", func(a *account) []field {
	return []field{{"id", &a.ID}, {"name", &a.Name}, {"is_main", &a.Main}, {"coalesce(a.rate, 600)", &a.Rate},
		{"coalesce(a.issuer, a.is_main)", &a.Issuer}, {"created_at", &a.CreatedAt}, {"closed_at", &a.ClosedAt}}
})

// account returns an account, open or closed, or errNotFound.
func (q *queries) account(id string) (a account, err error) {
	err = q.one(accountTable.query+`WHERE a.id = ?`, []any{id}, accountTable.dest(&a)...)
	return a, err
}

var (
	accountProblems problemTable

	codeAccountNotFound = accountProblems.add(404, "account_not_found", "Account not found",
		"There is no such account, or it is closed.",
		"Correct the id of the account. A closed one is not found either.")
)

var errAccount = &refusal{code: codeAccountNotFound}

// openAccount returns errAccount unless there is an open account of that id.
func (q *queries) openAccount(id string) error {
	a, err := q.account(id)
	if errors.Is(err, errNotFound) || err == nil && !a.ClosedAt.IsZero() {
		return errAccount
	}
	return err
}

// mainAccount returns the id of the vendor's own account, or errNotFound.
func (q *queries) mainAccount() (id string, err error) {
	return oneValue[string](q, `SELECT id FROM accounts WHERE is_main = 1`)
}

// accounts returns all accounts, oldest first.
func (q *queries) accounts() ([]account, error) {
	return collectReadable(q, accountTable.query+`ORDER BY a.id`, nil, accountTable.dest)
}

// idsNamed returns the ids of the accounts with exactly that name, oldest first.
func (q *queries) idsNamed(name string) ([]string, error) {
	return q.texts(`SELECT id FROM accounts WHERE name = ? ORDER BY id`, name)
}

// accountsLike returns the accounts whose names have that text as a part, compared as nameKey does; those that have it
// as their whole name alone, if there are any.
func (q *queries) accountsLike(text string) (found []account, err error) {
	key, whole := nameKey(text), []account{}
	all, err := q.accounts()
	for _, a := range all {
		if name := nameKey(a.Name); name == key {
			whole = append(whole, a)
		} else if key != "" && strings.Contains(name, key) {
			found = append(found, a)
		}
	}
	if len(whole) > 0 {
		found = whole
	}
	return found, err
}

// accountWord returns how a command in a hint names an account: by its name, in quotes if it has more than letters and
// digits, where the name means no other account and a shell reads it as it is; else by its id.
func (q *queries) accountWord(id string) (string, error) {
	names, err := q.accountNames()
	name := names[id]
	switch end := idEnd("acct", name); {
	case err != nil || name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, "'\"\\$`!"):
		return id, err
	case len(end) >= leastIDEnd:
		ids, err := q.idsEndingIn("accounts", end, "", 1)
		if err != nil || len(ids) > 0 {
			return id, err
		}
	}
	isPlain := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_.", r) }
	if strings.TrimFunc(name, isPlain) == "" {
		return name, nil
	}
	return `"` + name + `"`, nil
}

// accountNames returns what people are shown of each account, by its id: its name, or nothing if another account has
// that name, too, or if it looks like an id.
func (q *queries) accountNames() (map[string]string, error) {
	all, err := q.accounts()
	names, ids := map[string]string{}, map[string]string{}
	for _, a := range all {
		if other, taken := ids[a.Name]; taken {
			delete(names, other)
		} else if ids[a.Name] = a.ID; !strings.HasPrefix(strings.ToLower(a.Name), "acct_") {
			names[a.ID] = a.Name
		}
	}
	return names, err
}

// addAccount opens an account and returns its id.
func (t *tx) addAccount(name string, main bool) string {
	a := account{ID: t.newID("acct"), Name: name, Main: main, CreatedAt: t.now}
	accountTable.insert(t, &a)
	return a.ID
}

// setRate sets how many requests a minute an account may make, or returns errNotFound.
func (t *tx) setRate(id string, rate int) error {
	return requireRow(t.exec(`UPDATE accounts SET rate = ? WHERE id = ?`, rate, id))
}

// setIssuer sets whether the tokens of an account may issue its licences.
func (t *tx) setIssuer(id string, issuer bool) {
	t.exec(`UPDATE accounts SET issuer = ? WHERE id = ?`, issuer, id)
}

// setClosed sets when an account was closed; the zero stamp opens it again.
func (t *tx) setClosed(id string, at stamp) {
	t.exec(`UPDATE accounts SET closed_at = ? WHERE id = ?`, at, id)
}

// endingTokens are those that the status command tells of. Short-lived ones are left to whoever renews them.
var endingTokens = trouble{kind: "tokens_end", urgency: sameDay, span: endingSoon,
	one: "$n token ends", many: "$n tokens end", advice: " within 14 days, the first on $day: 'widgetd token list'",
	query: `SELECT expires_at AS since, id FROM tokens WHERE revoked_at IS NULL AND expires_at > ?1 AND expires_at < ?2
		AND julianday(expires_at) - julianday(created_at) > 14`}

// What stops working when an account is closed, apart from what it has of other nouns.
var (
	heldTokens = holding{"tokens", "token",
		`SELECT count(*) FROM tokens WHERE account_id = ?1 AND revoked_at IS NULL AND expires_at > ?2`, ""}
	heldOrigins = holding{"origins", "origin", `SELECT count(*) FROM origins WHERE account_id = ?1`, ""}
)

// A baseAddress is a base URL of the service: the current one, or an earlier one that
// tokens may still name.
type baseAddress struct {
	URL     string `json:"url"`
	Current bool   `json:"current"`
}

// baseURLs returns the current base address first, then the earlier ones.
func (q *queries) baseURLs() ([]baseAddress, error) {
	return collect(q, `SELECT url, is_current FROM base_urls
		ORDER BY is_current DESC, created_at DESC, url`, nil,
		func(b *baseAddress) []any { return []any{&b.URL, &b.Current} })
}

// setBaseURL makes url the current base address; the previous one stays accepted.
func (t *tx) setBaseURL(url string) {
	t.exec(`UPDATE base_urls SET is_current = 0 WHERE is_current = 1`)
	t.exec(`INSERT INTO base_urls (url, is_current, created_at) VALUES (?, 1, ?)
		ON CONFLICT (url) DO UPDATE SET is_current = 1`, url, t.now)
}

// removeBaseURL removes an earlier base address, so that tokens that name it are refused.
// It returns errNotFound for any other URL, the current one included.
func (t *tx) removeBaseURL(url string) error {
	return requireRow(t.exec(`DELETE FROM base_urls WHERE url = ? AND is_current = 0`, url))
}

// A rowText is a text in a row: its table, what it is found by there, and the text.
type rowText struct{ table, id, text string }

// everyOrigin returns the origins of accounts and of applications.
func (q *queries) everyOrigin() ([]rowText, error) {
	return collect(q, `SELECT 'origins', origin, origin FROM origins
		UNION SELECT 'app_origins', origin, origin FROM app_origins`, nil, (*rowText).dest)
}

// everyZone returns the time zones that accounts have, and those that they had on earlier days.
func (q *queries) everyZone() ([]rowText, error) {
	return collect(q, `SELECT 'account_settings', account_id, zone FROM account_settings
		UNION SELECT 'account_zones', account_id || ' ' || from_date, zone FROM account_zones`, nil, (*rowText).dest)
}

func (r *rowText) dest() []any { return []any{&r.table, &r.id, &r.text} }

// An originRow is an origin whose pages may call the service from a browser.
type originRow struct {
	Origin    string `json:"origin"`
	AccountID string `json:"account_id"`
	CreatedAt stamp  `json:"created_at"`
}

// originOwner returns the open account that owns a normalised origin, or errNotFound.
func (q *queries) originOwner(origin string) (id string, err error) {
	return oneValue[string](q, `SELECT a.id FROM origins o JOIN accounts a ON a.id = o.account_id
		WHERE o.origin = ? AND a.closed_at IS NULL`, origin)
}

// originTable describes the table origins.
var originTable = newTable("origins", "o", func(o *originRow) []field {
	return []field{{"origin", &o.Origin}, {"account_id", &o.AccountID}, {"created_at", &o.CreatedAt}}
})

// origins returns all origins, sorted.
func (q *queries) origins(o owner) ([]originRow, error) {
	query, args := o.narrow(originTable.query+`WHERE 1`, `o.account_id`)
	return collectReadable(q, query+` ORDER BY o.origin`, args, originTable.dest)
}

// originAccount returns the account that has an origin, open or closed, or "" if none has it.
func (q *queries) originAccount(origin string) (id string, err error) {
	return orNil(oneValue[string](q, `SELECT account_id FROM origins WHERE origin = ?`, origin))
}

// deleteOrigin deletes an origin, or returns errNotFound.
func (t *tx) deleteOrigin(origin string) error {
	return requireRow(t.exec(`DELETE FROM origins WHERE origin = ?`, origin))
}

// A tokenRow is the record of an issued bearer token; the token itself is not stored.
type tokenRow struct {
	ID          string `json:"id"` // the token's jti
	AccountID   string `json:"account_id"`
	ClientID    string `json:"client_id"`
	Scope       string `json:"scope"`
	AllAccounts bool   `json:"all_accounts"`
	Kid         string `json:"kid"`
	CreatedAt   stamp  `json:"created_at"`
	ExpiresAt   stamp  `json:"expires_at"`
	RevokedAt   stamp  `json:"revoked_at"`
}

// tokenTable describes the table tokens.
var tokenTable = newTable("tokens", "t", func(r *tokenRow) []field {
	return []field{{"id", &r.ID}, {"account_id", &r.AccountID}, {"client_id", &r.ClientID}, {"scope", &r.Scope},
		{"all_accounts", &r.AllAccounts}, {"kid", &r.Kid}, {"created_at", &r.CreatedAt},
		{"expires_at", &r.ExpiresAt}, {"revoked_at", &r.RevokedAt}}
})

// usableToken returns the row of the token with that jti if it is not revoked and its account
// is open, else errNotFound. A token without a row is refused too, so that the revocations
// which a restored database has lost don't make tokens valid that it never recorded.
func (q *queries) usableToken(jti string) (*tokenRow, error) {
	return tokenTable.one(q, `JOIN accounts a ON a.id = t.account_id
		WHERE t.id = ? AND t.revoked_at IS NULL AND a.closed_at IS NULL`, jti)
}

// token returns the row of a token, revoked or not, or errNotFound.
func (q *queries) token(jti string) (*tokenRow, error) {
	return tokenTable.one(q, `WHERE t.id = ?`, jti)
}

// acceptedBase reports whether url is the current base address or an earlier one, so that
// tokens may name it.
func (q *queries) acceptedBase(url string) (bool, error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM base_urls WHERE url = ?)`, url)
}

// tokens returns a page of the tokens of an owner, newest first. No index has them by account, so that of one
// account goes through at most limits.listRows.
func (q *queries) tokens(o owner, before string, limit int) (p listPage[tokenRow], err error) {
	list := tokenTable.list()
	condition, args := o.narrow(``, `t.account_id`)
	list.filter(condition, args...)
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, tokenTable.dest,
		func(r tokenRow) string { return r.ID })
	return p, err
}

// addToken records a token that is about to be issued.
func (t *tx) addToken(r tokenRow) error {
	if err := t.openAccount(r.AccountID); err != nil {
		return err
	}
	tokenTable.insert(t, &r)
	return nil
}

// setRevoked marks a token as revoked, so that it is refused from now on, or returns
// errNotFound. A token that is already revoked keeps the time at which it was.
func (t *tx) setRevoked(jti string) error {
	return requireRow(t.exec(`UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?`, t.now, jti))
}

// removeTokens removes up to limit tokens that expired or were revoked before a time, and returns how
// many. It reads all tokens. A token without a row is refused, see usableToken.
func (t *tx) removeTokens(before stamp, limit int64) int64 {
	return t.exec(`DELETE FROM tokens WHERE id IN
		(SELECT id FROM tokens WHERE expires_at < ?1 OR revoked_at < ?1 LIMIT ?2)`, before, limit)
}

// A keyInUse is a key that unexpired device leases, or tokens that are not revoked, are signed with.
type keyInUse struct {
	kid            string
	leases, tokens int
	retired        bool // by 'widgetd key retire', so that nobody expects them to work
}

// neededKeys returns all such keys but those with these kids. It reads all devices and tokens.
func (q *queries) neededKeys(but []string, now time.Time) ([]keyInUse, error) {
	return collect(q, `SELECT s.kid, sum(s.lease), sum(NOT s.lease), EXISTS (
			SELECT 1 FROM events e WHERE e.type = 'key.retired' AND e.data ->> 'kid' = s.kid)
		FROM (SELECT lease_kid AS kid, 1 AS lease FROM devices WHERE lease_expires_at > ?1
			UNION ALL SELECT offline_kid, 1 FROM devices
				WHERE offline_until > ?1 AND (offline_kid = lease_kid AND lease_expires_at > ?1) IS NOT TRUE
			UNION ALL SELECT kid, 0 FROM tokens WHERE expires_at > ?1 AND revoked_at IS NULL
			UNION ALL SELECT kid, 0 FROM app_tokens WHERE expires_at > ?1 AND revoked_at IS NULL) s
		WHERE s.kid IS NOT NULL AND s.kid NOT IN (SELECT value FROM json_each(?2)) GROUP BY s.kid`,
		[]any{newStamp(now), string(encodeJSON(append([]string{}, but...)))}, func(k *keyInUse) []any {
			return []any{&k.kid, &k.leases, &k.tokens, &k.retired}
		})
}

// maxRateOption is the highest rate that can be set, in requests a minute: more than any machine
// answers, so that it means no limit.
const maxRateOption = 1_000_000_000

// A captureTime is when cards are charged: `accept`, as soon as an order is accepted, or `handover`, by a call
// when it is handed over.
type captureTime string

var captureTimes = declareWords[captureTime](captureOnAccept, captureOnHandover)

const (
	captureOnAccept   = "accept"
	captureOnHandover = "handover"
)

// An accountSettings holds the settings of an account that takes orders (contract, section 11). Its Logo is the hash of
// one, and in answers the address.
type accountSettings struct {
	Zone      string      `json:"zone"`       // Its time zone, of the IANA database: `Europe/Zurich`.
	CutOff    string      `json:"cut_off"`    // When its business day ends, in its zone: `04:00`.
	LegalName *string     `json:"legal_name"` // Who sells, on receipts, or null: it does not say.
	Address   *string     `json:"address"`    // On receipts, in lines, or null: none.
	VATNumber *string     `json:"vat_number"` // On receipts, or null: none.
	CaptureOn captureTime `json:"capture_on"` // When cards are charged.

	// After how many minutes an authorised order that nobody accepts is released.
	AcceptWithin int `json:"accept_within" least:"1"`

	Phone *string `json:"phone"` // A telephone number with its country, where guests call it, or null: none.

	// Where guests write to it, a `mailto:` or `https:` URI, or null: nowhere.
	Contact *string `json:"contact"`

	// The color of links and buttons on its pages, or null: the pages' own. It is refused if it can't be read on a
	// light page, with the nearest shade that can. In the dark pages lighten it.
	Color *string `json:"color"`

	Logo *string `json:"logo" is:"uri"` // The address of the logo on its pages, or null: none.
}

// members are what callers set of the settings.
func (s *accountSettings) members() []member {
	return []member{
		{name: "zone", at: &s.Zone, high: 64, check: checkZone},
		{name: "cut_off", at: &s.CutOff, high: len("04:00"), check: checkCutOff},
		{name: "legal_name", at: &s.LegalName, high: 200},
		{name: "address", at: &s.Address, high: 500, lines: true},
		{name: "vat_number", at: &s.VATNumber, high: 50},
		{name: "capture_on", at: (*string)(&s.CaptureOn), high: maxNameLength, check: checkCaptureOn},
		{name: "accept_within", at: &s.AcceptWithin, low: 1, high: 7 * 24 * 60},
		{name: "phone", at: &s.Phone, high: 30, check: checkPhone},
		{name: "contact", at: &s.Contact, high: 300, check: checkContact},
		{name: "color", at: &s.Color, high: len("#1a6b3c"), check: checkColor},
		{name: "logo", at: &s.Logo, apart: true, high: maxLogoURI},
	}
}

// checkCaptureOn is made once, since settings that are read list their members.
var checkCaptureOn = oneOf(captureTimes...)

// checkPhone is a textCheck for a telephone number that can be called from anywhere.
var checkPhone = &textCheck{pattern: `^\+[0-9 ()/.-]+$`, of: func(s string) (code, detail string) {
	digits := len(phoneKey(s))
	if !strings.HasPrefix(s, "+") || strings.Trim(s, "+0123456789 ()/.-") != "" || strings.Contains(s[1:], "+") ||
		digits < 5 || digits > 15 {
		return "invalid_phone", "This must be a telephone number with its country, as +41 32 622 00 00."
	}
	return "", ""
}}

// checkContact is a textCheck for a URI at which guests write to an account.
var checkContact = &textCheck{pattern: "^(mailto|https):", of: func(s string) (code, detail string) {
	if !isContact(s, "mailto", "https") {
		return "invalid_contact", "This must be a mailto: or https: URI, as mailto:info@example.com."
	}
	return "", ""
}}

// settingsTable describes the table account_settings.
var settingsTable = newTable("account_settings", "s", func(s *accountSettings) []field { return fieldsOf(s.members()) })

// settings returns the settings of an account, the defaults if it has none.
func (q *queries) settings(accountID string) (s accountSettings, err error) {
	err = q.one(settingsTable.query+`WHERE s.account_id = ?`, []any{accountID}, settingsTable.dest(&s)...)
	if errors.Is(err, errNotFound) {
		return accountSettings{Zone: "UTC", CutOff: "04:00", CaptureOn: captureOnAccept, AcceptWithin: 30}, nil
	}
	return s, err
}

// saveSettings writes the settings of an account.
func (t *tx) saveSettings(accountID string, s *accountSettings) {
	t.exec(`INSERT INTO account_settings (account_id) VALUES (?) ON CONFLICT DO NOTHING`, accountID)
	settingsTable.update(t, s, `zone cut_off legal_name address vat_number capture_on accept_within phone contact
		color logo`, ` WHERE account_id = ?`, accountID)
}

// addLogo keeps a logo, which accounts then name by its hash.
func (t *tx) addLogo(l *logo) {
	t.exec(`INSERT INTO logos (hash, type, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, l.Hash, l.Type, l.Content)
}

// removeLogo removes a logo unless an account has it, which an index tells also among a million.
func (t *tx) removeLogo(hash string) {
	t.exec(`DELETE FROM logos WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM account_settings WHERE logo = ?1)`, hash)
}

// logo returns the logo with a hash, which is the key of its row, or errNotFound.
func (q *queries) logo(hash string) (*logo, error) {
	l := &logo{Hash: hash}
	return l, q.one(`SELECT type, content FROM logos WHERE hash = ?`, []any{hash}, &l.Type, &l.Content)
}
