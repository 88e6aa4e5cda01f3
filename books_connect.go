package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Connecting accounts with their books, and what their owners decide about a connection (contract, section 12).

const (
	authorizationLife = 10 * time.Minute
	maxAuthorizations = 20 // pending ones of an account; the oldest are dropped
	disconnectLimit   = 20 * time.Second
)

// books is the engine of all connections with books.
type books struct {
	connector
	ledgers map[string]ledger // by product
}

// newLedgers makes the clients of all products, by name. urls has base addresses by the names of their options:
// "xero-url"; see bookProduct.client.
func newLedgers(out *outbound, urls map[string]string, now func() time.Time) map[string]ledger {
	all := map[string]ledger{}
	for _, p := range bookProducts {
		all[p.name] = p.client(out, urls[p.name+"-url"], now)
	}
	return all
}

// setBooksApp writes the application of a product.
func setBooksApp(t *tx, keys *keyring, product string, app appSecrets) {
	t.saveBooksApp(&booksApp{Product: product, ClientID: app.clientID,
		Sealed: keys.sealFor(sealedBooksApp, product, []byte(app.clientSecret))})
}

// foreignBooks is a foreignSecrets. It tells of applications, and of connections in use.
func foreignBooks(q *queries, keys *keyring) (lines []string, err error) {
	apps, err := q.booksApps()
	if err != nil {
		return nil, err
	}
	for _, a := range apps {
		if _, err := keys.unsealFor(sealedBooksApp, a.Product, a.Sealed); err != nil {
			lines = append(lines, fmt.Sprintf("the secret of the application for %s was sealed with another key file: "+
				"run 'widgetd books app set %s -secrets FILE'", a.Product, a.Product))
		}
	}
	all, err := q.openBooks()
	for _, c := range all {
		if _, err := openTokens(keys, c); reasonOf(err) == reasonUnsealable {
			owner, err := q.accountWord(c.AccountID)
			if err != nil {
				return nil, err
			}
			lines = append(lines, fmt.Sprintf("the tokens of the connection %s with books were sealed with another "+
				"key file: have its owner connect it again, on the address that "+
				"'widgetd books connect %s -account %s' prints", c.ID, c.Product, owner))
		}
	}
	return lines, err
}

// booksEvent returns an event about a connection.
func booksEvent(c *bookConnection, kind eventType, actor string, data ...string) event {
	data = append([]string{"product", c.Product, "organisation", c.Organisation}, data...)
	return event{Type: kind, AccountID: c.AccountID, SubjectID: c.ID, Actor: actor, Data: eventData(data...)}
}

// ofApp reports whether an application began an authorization, and ofPerson whether somebody who had signed in did.
func (a *bookAuthorization) ofApp() bool { return strings.HasPrefix(a.MadeBy, appActor("")) }

func (a *bookAuthorization) ofPerson() bool { return strings.HasPrefix(a.MadeBy, actorPersons) }

// authorize returns the address at which somebody can agree that an account is connected with a product, and until
// when it works; it works once. It is an address of the product; if an application asks for it, it is one of this
// service, where the owner has to sign in first. base is the base address of this service. Errors: errAccount,
// books_not_available, errBooksOff.
func (b *books) authorize(ctx context.Context, accountID, product, base, actor string) (*bookLink, error) {
	if b.off() {
		return nil, cmp.Or(b.noOutside, error(errBooksOff))
	}
	app, err := b.appSecrets(product)
	if _, refused := errors.AsType[*outboundError](err); refused {
		return nil, &refusal{code: codeBooksNotSet}
	}
	if err != nil {
		return nil, err
	}
	state, verifier := randomText(32), randomText(32) // RFC 7636, section 4.1
	hash := hashOf(state)
	a := &bookAuthorization{StateHash: hash, AccountID: accountID, Product: product, MadeBy: actor,
		RedirectURL: base + "/books/callback/" + product,
		Sealed:      b.keys().sealFor(sealedBooksVerifier, hex.EncodeToString(hash), []byte(verifier))}
	err = b.update(ctx, func(t *tx) error {
		if err := t.openAccount(accountID); err != nil {
			return err
		}
		t.keepBookAuthorizations(accountID, maxAuthorizations-1)
		a.CreatedAt, a.ExpiresAt = t.now, t.now.after(authorizationLife)
		bookAuthorizationTable.insert(t, a)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if a.ofApp() {
		return &bookLink{base + "/books/connect/" + product + "?state=" + state, a.ExpiresAt}, nil
	}
	address := b.ledgers[product].authorizeURL(app, a.RedirectURL, state, pkceChallenge(verifier))
	return &bookLink{address, a.ExpiresAt}, nil
}

// The reasons why somebody who comes back from a product is not connected.
var (
	errBooksState = &refusal{code: codeBooksState,
		detail: "This link was used already, or it is older than ten minutes: begin again."}
	errBooksSignin = &refusal{code: codeBooksState,
		detail: "You are not signed in for the account of this link: sign in for it first."}
	errBooksDeclined  = &refusal{code: codeBooksState, detail: "Access was not granted."}
	errBooksNobody    = &refusal{code: codeBooksState, detail: "No company was chosen there."}
	errBooksConnected = &refusal{code: codeBooksState,
		detail: "The account is connected with another company there: disconnect that first."}
	errBooksExchange = &refusal{code: codeBooksUnavailable,
		detail: "The product did not answer as expected: begin again."}
)

// callback finishes connecting an account, after the product has sent somebody back with a state, and with a code
// or an error. If access to several companies was granted, the connection waits until one is chosen
// (chooseOrganisation). A company that is connected anew gets its former connection back. Errors: those above,
// errAccount, errBooksOff.
func (b *books) callback(
	ctx context.Context, product, state, code, declined string,
) (*bookConnection, error) {
	if b.off() {
		return nil, errBooksOff
	}
	a, err := updated(ctx, b.store, func(t *tx) (*bookAuthorization, error) {
		return t.takeBookAuthorization(product, hashOf(state))
	})
	switch {
	case errors.Is(err, errNotFound):
		return nil, errBooksState
	case err != nil:
		return nil, err
	case declined != "" || code == "":
		lack := &outboundError{reason: grantLacks[declined], detail: declined}
		return nil, cmp.Or(errLack(lack), error(errBooksDeclined))
	}
	tokens, companies, err := b.exchange(ctx, a, code)
	if err != nil {
		b.log.Warn("books can't be connected", "product", product, "error", err)
		return nil, cmp.Or(errLack(err), error(errBooksExchange))
	}
	if len(companies) == 0 {
		return nil, errBooksNobody
	}
	c, err := updated(ctx, b.store, func(t *tx) (*bookConnection, error) {
		return connectBooks(t, b.keys(), a, tokens, companies)
	})
	if err == nil {
		b.wakeUp()
	}
	return c, err
}

// exchange swaps a code for tokens, and returns the companies that they give access to.
func (b *books) exchange(
	ctx context.Context, a *bookAuthorization, code string,
) (tokens *bookTokens, companies []bookCompany, err error) {
	app, err := b.appSecrets(a.Product)
	if err != nil {
		return nil, nil, err
	}
	verifier, err := b.keys().unsealFor(sealedBooksVerifier, hex.EncodeToString(a.StateHash), a.Sealed)
	if err != nil {
		return nil, nil, &outboundError{reason: reasonUnsealable}
	}
	l := b.ledgers[a.Product]
	if tokens, err = l.exchange(ctx, app, a.RedirectURL, code, string(verifier)); err != nil {
		return nil, nil, err
	}
	companies, err = l.organisations(ctx, tokens)
	return tokens, companies, err
}

// connectBooks writes the connection of an account with one of the companies to which access was granted, or one
// that waits for a choice. Errors: errAccount, errBooksConnected.
func connectBooks(
	t *tx, keys *keyring, a *bookAuthorization, tokens *bookTokens, companies []bookCompany,
) (*bookConnection, error) {
	if err := t.openAccount(a.AccountID); err != nil {
		return nil, err
	}
	used, err := t.connectionWithBooks(a.AccountID, a.Product)
	if err != nil {
		return nil, err
	}
	if used != nil && used.OrganisationID != nil {
		company := firstWhere(companies, func(o bookCompany) bool { return o.ID == *used.OrganisationID })
		if company == nil {
			return nil, errBooksConnected
		}
		return used, reconnectBooks(t, keys, used, *company, tokens, eventBooksReconnected, a.MadeBy)
	}
	if used == nil {
		used = &bookConnection{ID: t.newID("bkc"), AccountID: a.AccountID, Product: a.Product, Status: entryDraft}
		t.addBookConnection(used)
	}
	if len(companies) == 1 {
		return bindOrganisation(t, keys, used, companies[0], tokens, a.MadeBy)
	}
	used.Choices = companies
	return used, saveWithTokens(t, keys, used, tokens)
}

// saveWithTokens writes a connection with new tokens.
func saveWithTokens(t *tx, keys *keyring, c *bookConnection, tokens *bookTokens) error {
	sealed, err := sealTokens(keys, c.ID, tokens)
	if err != nil {
		return err
	}
	t.saveBookConnection(c)
	return t.saveBookTokens(c, sealed)
}

// bindOrganisation gives the chosen company to a connection that has none. If the account had a connection with
// that company before, that one is used again instead.
func bindOrganisation(
	t *tx, keys *keyring, c *bookConnection, company bookCompany, tokens *bookTokens, actor string,
) (*bookConnection, error) {
	former, err := t.connectionWithOrganisation(c.AccountID, c.Product, company.ID)
	if err != nil {
		return nil, err
	}
	if former != nil {
		t.removeBookConnection(c.ID)
		former.RemovedAt, former.SendFrom, former.PayoutsFrom = stamp{}, nil, nil
		c = former
	}
	return c, reconnectBooks(t, keys, c, company, tokens, eventBooksConnected, actor)
}

// reconnectBooks gives a connection a company and tokens, with an event, and wakes the exports that wait for it.
func reconnectBooks(
	t *tx, keys *keyring, c *bookConnection, company bookCompany, tokens *bookTokens,
	kind eventType, actor string,
) error {
	tokens.LinkID = company.LinkID
	c.OrganisationID, c.Organisation, c.Choices = &company.ID, company.Name, nil
	c.NeedsReconnectAt, c.FailingSince = stamp{}, stamp{}
	if err := saveWithTokens(t, keys, c, tokens); err != nil {
		return err
	}
	wakeWith(t, booksEvent(c, kind, actor))
	return nil
}

// wakeWith writes an event about a connection, and wakes the exports that wait for it.
func wakeWith(t *tx, told event) {
	t.wakeExports(told.SubjectID)
	t.addEvent(told)
}

// chooseOrganisation gives a connection that waits for a choice its company, and returns the connection, which
// may be a former one of that company. Errors: errBooksConnection, books_connection_state, a refusal that
// names the member.
func chooseOrganisation(
	t *tx, keys *keyring, o owner, id, organisationID, actor string,
) (*bookConnection, error) {
	c, err := t.usedBookConnection(o, id)
	if err != nil {
		return nil, err
	}
	if c.OrganisationID != nil {
		if *c.OrganisationID == organisationID {
			return c, nil
		}
		return nil, &refusal{code: codeBooksState,
			detail: "The connection has a company: disconnect it to choose another."}
	}
	company := firstWhere(c.Choices, func(o bookCompany) bool { return o.ID == organisationID })
	if company == nil {
		return nil, errMember("organisation", "unknown_value", "This is none of the companies to choose from.")
	}
	tokens, err := openTokens(keys, c)
	if err != nil {
		return nil, &refusal{code: codeBooksState,
			detail: "The connection has no tokens that can be read: connect it again."}
	}
	return bindOrganisation(t, keys, c, *company, tokens, actor)
}

// endAccess ends the use of a connection at the product, as far as that allows it. Errors: errBooksConnection.
func (b *books) endAccess(ctx context.Context, o owner, id string) error {
	c, err := b.store.usedBookConnection(o, id)
	if err != nil {
		return err
	}
	shared, err := b.store.sharesOrganisation(c) // what is ended at the product is ended for all accounts
	if err != nil {
		return err
	}
	if c.Sealed != nil && c.NeedsReconnectAt.IsZero() && !shared {
		limited, cancel := context.WithTimeout(ctx, disconnectLimit)
		defer cancel()
		ledger := b.ledgers[c.Product]
		err := b.ask(limited, c.ID, func(s *ledgerSession) error { return ledger.disconnect(limited, s) })
		if err != nil {
			b.log.Warn("a connection with books was ended here only", "connection", c.ID, "error", err)
		}
	}
	return nil
}

// disconnectBooks ends the use of a connection here. Exports that were not sent are dropped; it returns how many. Those
// that were sent stay known, in case the company is connected again: entries of which it is uncertain whether they are
// in the books are looked for then.
func disconnectBooks(t *tx, c *bookConnection, actor string) (dropped int64, err error) {
	if err := t.saveBookTokens(c, nil); err != nil {
		return 0, err
	}
	dropped = t.dropUnsentExports(c.ID, false, nil) + t.dropUnsentExports(c.ID, true, nil)
	t.pauseExports(c.ID)
	t.addEvent(booksEvent(c, eventBooksDisconnected, actor))
	if c.OrganisationID == nil {
		t.removeBookConnection(c.ID)
		return dropped, nil
	}
	c.RemovedAt, c.SendFrom, c.PayoutsFrom = t.now, nil, nil
	t.saveBookConnection(c)
	return dropped, nil
}

// saveMapping confirms the mapping of a connection, and wakes the exports that wait for it. Errors:
// errBooksConnection.
func saveMapping(t *tx, o owner, id string, m *bookMapping, actor string) (*bookConnection, error) {
	c, err := t.usedBookConnection(o, id)
	if err != nil {
		return nil, err
	}
	c.Mapping, c.MappingAt = m, t.now
	t.saveBookConnection(c)
	wakeWith(t, booksEvent(c, eventBooksMapped, actor, "lines", strconv.Itoa(len(m.Lines))))
	return c, nil
}

// A bookConnectionChange is what is to be different of a connection. A member that is absent stays.
type bookConnectionChange struct {
	organisation string // see chooseOrganisation; "": no change
	set          change // its members
	history      bool   // send_from and payouts_from may be days that are past
}

// changeBooks makes a change that the owner of a connection wants, and returns the connection. Errors:
// errBooksConnection, books_connection_state, a refusal that names the member.
func changeBooks(
	t *tx, keys *keyring, o owner, id string, w bookConnectionChange, actor string,
) (*bookConnection, error) {
	c, err := t.usedBookConnection(o, id)
	if err == nil && w.organisation != "" {
		c, err = chooseOrganisation(t, keys, o, id, w.organisation, actor)
	}
	switch {
	case err != nil:
		return nil, err
	case w.set.has("status") && !c.product().drafts:
		return nil, errMember("status", "not_of_this_product", "Entries at "+c.product().title+" have no status.")
	case w.set.has("series") && !c.product().series:
		return nil, errMember("series", "not_of_this_product", "Entries at "+c.product().title+" have no series.")
	case len(w.set) == 0:
		return c, nil
	}
	wanted := *c
	w.set.apply(wanted.members())
	err = cmp.Or(checkSendFrom(t, c, "send_from", c.SendFrom, wanted.SendFrom, w.history),
		checkSendFrom(t, c, "payouts_from", c.PayoutsFrom, wanted.PayoutsFrom, w.history))
	if err != nil {
		return nil, err
	}
	return changeConnection(t, o, c.ID, func(c *bookConnection) { w.set.apply(c.members()) }, actor)
}

// checkSendFrom checks the first day that is to be sent automatically, by a member; nil: none is. Past days are sent
// only if history is asked for. The day that it is already can be named again.
func checkSendFrom(t *tx, c *bookConnection, member string, before, wanted *businessDate, history bool) error {
	if wanted == nil || before != nil && *before == *wanted {
		return nil
	}
	if c.OrganisationID == nil {
		return errNoCompany
	}
	calendar, err := t.businessCalendar(c.AccountID)
	if err != nil {
		return err
	}
	if *wanted < calendar.dateOf(t.now.Time) && !history {
		return errMember(member, "in_the_past",
			"This day is past: say that history is to be sent, or name the present day or a later one.")
	}
	return nil
}

// changeConnection changes what the owner of a connection decides: what is sent, from when on and how. If SendFrom or
// PayoutsFrom changes, the exports of earlier days or payouts that are not in the books are dropped, or all if it is
// nil now. Errors: errBooksConnection.
func changeConnection(t *tx, o owner, id string, change func(*bookConnection), actor string) (*bookConnection, error) {
	c, err := t.usedBookConnection(o, id)
	if err != nil {
		return nil, err
	}
	before := *c
	change(c)
	if err := noteSwitches(t, c, &before); err != nil {
		return nil, err
	}
	t.saveBookConnection(c)
	if valueOr(before.SendFrom, "") != valueOr(c.SendFrom, "") {
		t.dropUnsentExports(c.ID, false, c.SendFrom)
	}
	if valueOr(before.PayoutsFrom, "") != valueOr(c.PayoutsFrom, "") {
		t.dropUnsentExports(c.ID, true, c.PayoutsFrom)
	}
	wakeWith(t, booksEvent(c, eventBooksChanged, actor, "send_from", valueOr(c.SendFrom, ""),
		"status", string(c.Status), "series", valueOr(c.Series, ""),
		"outside", strconv.FormatBool(c.Outside), "tests", strconv.FormatBool(c.Tests),
		"payouts_from", valueOr(c.PayoutsFrom, "")))
	return c, nil
}

// noteSwitches has changed switches of a connection hold from the present business day on: former days keep those that
// they had before.
func noteSwitches(t *tx, c, before *bookConnection) error {
	if c.Outside == before.Outside && c.Tests == before.Tests {
		return nil
	}
	calendar, err := t.businessCalendar(c.AccountID)
	if err != nil {
		return err
	}
	today := calendar.dateOf(t.now.Time)
	outside, tests := before.switchesOn(dateBefore(today))
	c.Former = slices.DeleteFunc(c.Former, func(w formerSwitches) bool { return w.Before >= today })
	if outside != c.Outside || tests != c.Tests { // else they were changed back on the same day
		c.Former = append(c.Former, formerSwitches{today, outside, tests})
	}
	t.saveFormerSwitches(c, today)
	return nil
}

// LogValue keeps the tokens of a connection out of the log.
func (t *bookTokens) LogValue() slog.Value { return slog.StringValue("[tokens]") }

// The client's side of OAuth 2.0 that both products share (RFC 6749; contract, section 12).

const (
	maxTokenAnswer = 32 << 10 // bytes; Xero's access tokens are JWTs of some 2 KB
	maxTokenLife   = 24 * time.Hour
)

// operatorsGrantErrors are the errors of token endpoints that no retry mends and about which only the operator can do
// something. The only other one, invalid_grant, is for the owner of the connection to resolve (RFC 6749, section 5.2).
var operatorsGrantErrors = []string{"invalid_client", "unauthorized_client", "invalid_scope"}

// grantLacks are the errors by which products say that the company lacks something, at the end of consent and at token
// endpoints (Fortnox).
var grantLacks = map[string]string{"error_missing_license": heldNoLicense, "error_missing_app_license": heldNoLicense,
	"error_missing_system_admin_right": heldNoRight}

// errLack returns the refusal of a call for one of lackReasons, in the product's own words; nil: it failed for another.
func errLack(err error) error {
	failed, _ := errors.AsType[*outboundError](err)
	if failed == nil || !slices.Contains(lackReasons, failed.reason) {
		return nil
	}
	missing := map[string]string{heldNoLicense: "A licence", heldNoRight: "A right"}[failed.reason]
	return &refusal{code: codeBooksState, detail: missing + " is missing in the bookkeeping software, which says: " +
		failed.detail + ". Try again once it is there."}
}

// classifyGrant sets the outcome and the reason of a token endpoint's answer whose status is not 2xx.
func classifyGrant(answer *outboundAnswer, failed *outboundError) {
	var said struct {
		Error string `json:"error"`
		Words string `json:"error_description"`
	}
	failed.reason = "token_endpoint"
	switch {
	case json.Unmarshal(answer.body, &said) != nil:
	case said.Error == "invalid_grant":
		failed.outcome, failed.reason = vendorOwnerGone, said.Error
	case slices.Contains(operatorsGrantErrors, said.Error):
		failed.outcome, failed.reason, failed.detail = vendorDenied, reasonAppRefused, said.Error
	case grantLacks[said.Error] != "" && answer.status < http.StatusInternalServerError:
		failed.outcome, failed.reason = vendorRefused, grantLacks[said.Error]
		failed.detail = strings.TrimSpace(cutMessage(said.Error + " " + said.Words))
	}
}

// requestTokens posts a form to a token endpoint. The application authenticates by HTTP Basic, both halves
// form-encoded (RFC 6749, section 2.3.1). now is the wall clock from which the tokens' life counts, which is usual
// if the answer does not say. Errors: an *outboundError, see ledger.
func requestTokens(
	ctx context.Context, out *outbound, endpoint string, app appSecrets, form url.Values, header http.Header,
	usual time.Duration, now func() time.Time,
) (*bookTokens, error) {
	if header == nil {
		header = http.Header{}
	}
	proof := url.QueryEscape(app.clientID) + ":" + url.QueryEscape(app.clientSecret)
	header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(proof)))
	header.Set("Content-Type", "application/x-www-form-urlencoded")
	header.Set("Accept", "application/json")
	asked := now()
	body := []byte(form.Encode())
	q := outboundRequest{http.MethodPost, endpoint, header, body, maxTokenAnswer}
	answer, err := out.ask(ctx, q, asked, classifyGrant)
	if err != nil {
		return nil, err
	}
	var given struct {
		Access  string      `json:"access_token"`
		Refresh string      `json:"refresh_token"`
		Kind    string      `json:"token_type"`
		Seconds json.Number `json:"expires_in"` // some put it in quotes
	}
	if json.Unmarshal(answer.body, &given) != nil || given.Access == "" || !strings.EqualFold(given.Kind, "Bearer") ||
		strings.IndexFunc(given.Access+given.Refresh, isNotVisible) >= 0 { // it becomes a header
		return nil, malformedAnswer(answer.status)
	}
	lasts := usual
	if seconds, err := given.Seconds.Int64(); err == nil {
		lasts = time.Duration(min(max(seconds, 0), int64(maxTokenLife/time.Second))) * time.Second
	}
	return &bookTokens{Access: given.Access, Refresh: given.Refresh, ExpiresAt: newStamp(asked.Add(lasts))}, nil
}

// authorizeQuery returns the query of the address to which an owner is sent (RFC 6749, section 4.1.1, and RFC 7636,
// section 4.3).
func authorizeQuery(app appSecrets, scope, redirectURL, state, challenge string) url.Values {
	return url.Values{"response_type": {"code"}, "client_id": {app.clientID}, "redirect_uri": {redirectURL},
		"scope": {scope}, "state": {state}, "code_challenge": {challenge}, "code_challenge_method": {"S256"}}
}

// codeGrantForm returns the form that swaps a code for tokens (RFC 6749, section 4.1.3, and RFC 7636, section 4.5).
func codeGrantForm(redirectURL, code, verifier string) url.Values {
	return url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirectURL},
		"code_verifier": {verifier}}
}

// Sessions with books: when requests may be made, and the tokens that authorize them. Only one call in one process
// replaces the tokens of a connection at a time, and new ones are on disk before they are used, so that after a
// lost answer or a kill there still are tokens that the product accepts (contract, section 12).

const (
	tokenMargin      = time.Minute      // an access token that ends sooner is replaced
	renewEvery       = time.Minute      // between two successful renewals of a connection, at least
	tokenClaim       = 45 * time.Second // how long a claim on replacing tokens lasts: longer than a request
	tokenPoll        = 200 * time.Millisecond
	faultBooksTokens = "tokens of books can't be replaced"
	reasonUnsealable = "sealed_with_another_key"
	reasonAppNotSet  = "app_not_set"
	reasonAppRefused = "app_refused"
	reasonOff        = "off"
	reasonNewRefused = "new_token_refused"

	reasonRateLimited = "rate_limited" // too many requests, by the product's answer or by what it allows
)

// waitTurn returns once another request may be made for a connection. If that is only after ctx ends, it returns an
// error at once. Errors: an *outboundError with vendorBusy and no status.
func (b *books) waitTurn(ctx context.Context, c *bookConnection) error {
	product := c.product()
	most := roundLimit
	if until, limited := ctx.Deadline(); limited {
		most = time.Until(until)
	}
	wait, ok := b.pace.reserve(c.ID, b.monotonic(), product.requests, product.within, most)
	if !ok {
		return &outboundError{outcome: vendorBusy, reason: reasonRateLimited, wait: wait}
	}
	select {
	case <-ctx.Done():
		return &outboundError{outcome: vendorBusy, reason: reasonRateLimited}
	case <-time.After(wait):
		return nil
	}
}

// appSecrets returns the application of a product. Errors: an *outboundError.
func (b *books) appSecrets(product string) (app appSecrets, err error) {
	row, err := b.store.booksApp(product)
	if errors.Is(err, errNotFound) {
		return app, &outboundError{reason: reasonAppNotSet}
	}
	if err != nil {
		return app, err
	}
	secret, err := b.keys().unsealFor(sealedBooksApp, product, row.Sealed)
	if err != nil {
		return app, &outboundError{reason: reasonUnsealable}
	}
	return appSecrets{row.ClientID, string(secret)}, nil
}

// sealTokens returns the sealed tokens of a connection, as they are stored.
func sealTokens(keys *keyring, connectionID string, tokens *bookTokens) ([]byte, error) {
	plain, err := json.Marshal(tokens)
	return keys.sealFor(sealedBooksConnection, connectionID, plain), err
}

// openTokens returns the tokens of a connection. Errors: an *outboundError.
func openTokens(keys *keyring, c *bookConnection) (*bookTokens, error) {
	if c.Sealed == nil {
		return nil, &outboundError{outcome: vendorOwnerGone, reason: heldReconnect}
	}
	plain, err := keys.unsealFor(sealedBooksConnection, c.ID, c.Sealed)
	tokens := &bookTokens{}
	if err != nil || json.Unmarshal(plain, tokens) != nil {
		return nil, &outboundError{reason: reasonUnsealable}
	}
	return tokens, nil
}

// ask calls f with a session of a connection in use. f must be safe to call twice: if the product refuses the
// access token, ask replaces it and calls f once more. Errors: as askOnce.
func (b *books) ask(ctx context.Context, id string, f func(*ledgerSession) error) error {
	used, err := b.askOnce(ctx, id, -1, f)
	if used >= 0 && vendorSaid(err) == vendorDenied {
		_, err = b.askOnce(ctx, id, used, f)
	}
	return err
}

// askOnce is ask for an f that writes, and calls it only once: a 401 does not prove that nothing was written, so the
// caller first looks for the entry with ask, which replaces the token. stale is as in session; used is how often the
// tokens that f used had been replaced, or -1 if f was not called. If the product says that the application was removed
// there, that is noted. Errors: those of f, an *outboundError, errBooksConnection.
func (b *books) askOnce(
	ctx context.Context, id string, stale int64, f func(*ledgerSession) error,
) (used int64, err error) {
	s, err := b.session(ctx, id, stale)
	if err != nil {
		return -1, err
	}
	if err = f(s); vendorSaid(err) == vendorOwnerGone {
		err = errors.Join(err, b.needOwner(context.WithoutCancel(ctx), s.connection, err))
	}
	return s.connection.Tokens, err
}

// session returns a session of a connection in use. It replaces the tokens first if they end soon, or if they are
// still those that the product refused: stale is how often they had been replaced by then, or -1 if none were
// refused. Those that were just renewed are used as they are; that the product refuses them is an error then. Where
// no product is asked (books.off) there is no session: replacing tokens on a copy of a database would invalidate those
// of the original.
func (b *books) session(ctx context.Context, id string, stale int64) (*ledgerSession, error) {
	if b.off() {
		return nil, &outboundError{reason: reasonOff, err: b.noOutside}
	}
	for {
		c, err := b.store.usedBookConnection(anyAccount, id)
		if err != nil {
			return nil, err
		}
		if !c.NeedsReconnectAt.IsZero() {
			return nil, &outboundError{outcome: vendorOwnerGone, reason: heldReconnect}
		}
		tokens, err := openTokens(b.keys(), c)
		if err != nil {
			return nil, err
		}
		age := b.now().Sub(tokens.RenewedAt) // after the clock was set back, they are not new
		isNew := age >= 0 && age < renewEvery
		if c.Tokens != stale && (isNew || tokens.ExpiresAt.Sub(b.now()) > tokenMargin) {
			wait := func(ctx context.Context) error { return b.waitTurn(ctx, c) }
			return &ledgerSession{c, tokens.Access, tokens.LinkID, wait}, nil
		}
		if isNew {
			return nil, &outboundError{reason: reasonNewRefused}
		}
		mine := false
		err = b.update(ctx, func(t *tx) error {
			mine = t.claimBookTokens(c.ID, c.Tokens, t.now.after(tokenClaim))
			return nil
		})
		if err == nil && mine {
			if err = b.renew(ctx, c, tokens); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		select { // somebody else replaces them
		case <-ctx.Done():
			return nil, &outboundError{reason: outboundTimeout}
		case <-time.After(tokenPoll):
		}
	}
}

// renew replaces the tokens of a connection, which the caller has claimed. The new ones are on disk when it
// returns. A failure that only the owner can resolve, by connecting again, is noted and never retried; after any
// other the worker retries as renewalPause says. Cancelling ctx does not stop it: tokens that were replaced but
// not written would be lost. Errors: an *outboundError, those of the store.
func (b *books) renew(ctx context.Context, c *bookConnection, old *bookTokens) error {
	ctx = context.WithoutCancel(ctx)
	app, err := b.appSecrets(c.Product)
	var tokens *bookTokens
	if err == nil {
		tokens, err = b.ledgers[c.Product].renew(ctx, app, c, old)
	}
	switch {
	case err == nil:
		tokens.LinkID, tokens.RenewedAt = old.LinkID, b.now()
		sealed, err := sealTokens(b.keys(), c.ID, tokens)
		if err != nil {
			return err
		}
		return b.update(ctx, func(t *tx) error {
			// errChanged: it was connected anew meanwhile, or disconnected
			return except(t.saveBookTokens(c, sealed), errChanged)
		})
	case vendorSaid(err) == vendorOwnerGone:
		return errors.Join(b.needOwner(ctx, c, err), &outboundError{outcome: vendorOwnerGone, reason: heldReconnect})
	case vendorSaid(err) == vendorDenied: // the operator's secrets are wrong: the owner can't help that
		b.log.Warn(faultBooksTokens, "error", fmt.Errorf("%s: %w", c.Product, err))
	}
	return errors.Join(err, b.update(ctx, func(t *tx) error {
		t.dropTokenClaim(c.ID, c.Tokens)
		return scheduleRenewal(t, c.ID)
	}))
}

// renewalPauses are how long the worker waits between attempts to replace tokens after one that got no usable
// answer; the last one is repeated until renewalWindow has passed. The answer that was lost may have had new
// tokens, and Xero accepts the old refresh token for only 30 minutes more.
var renewalPauses = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute}

const (
	renewalWindow = 25 * time.Minute
	renewalLater  = 24 * time.Hour // after that, and between attempts that did not get as far as asking
)

// renewalPause returns how long to wait before the next attempt to replace tokens, when attempts have failed for a
// time.
func renewalPause(lasted time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, pause := range renewalPauses {
		if sum += pause; lasted < sum {
			return pause
		}
	}
	if lasted < renewalWindow {
		return renewalPauses[len(renewalPauses)-1]
	}
	return renewalLater
}

// scheduleRenewal writes when the worker retries replacing the tokens of a connection, unless it was connected anew
// meanwhile, or disconnected.
func scheduleRenewal(t *tx, id string) error {
	pause := renewalLater
	lost, err := t.renewalLostAt(id)
	if err == nil {
		pause = renewalPause(t.now.Sub(lost.Time))
	}
	t.postponeRenewal(id, t.now.after(pause))
	return except(err, errNotFound) // no attempt has got as far as asking
}

// renewIdle replaces the tokens of a connection whose last replacement had no usable answer, or that nobody has used
// for long.
func (b *books) renewIdle(ctx context.Context, id string) error {
	c, err := b.store.usedBookConnection(anyAccount, id)
	if err == nil {
		_, err = b.session(ctx, id, c.Tokens)
	}
	if err == nil {
		return nil
	}
	later := b.update(context.WithoutCancel(ctx), func(t *tx) error { // even if the product was not asked
		return scheduleRenewal(t, id)
	})
	if _, known := errors.AsType[*outboundError](err); known || errors.Is(err, errBooksConnection) {
		err = nil
	}
	return errors.Join(err, later)
}

// needOwner notes that the owner of a connection has to connect it again, once, with an event.
func (b *books) needOwner(ctx context.Context, c *bookConnection, why error) error {
	b.log.Warn("a connection with books has to be connected again", "connection", c.ID, "product", c.Product,
		"error", why.Error())
	return b.update(ctx, func(t *tx) error {
		now, err := t.usedBookConnection(anyAccount, c.ID)
		if err != nil || now.Tokens != c.Tokens || !now.NeedsReconnectAt.IsZero() {
			return err // it was connected anew meanwhile
		}
		now.NeedsReconnectAt = t.now
		t.saveBookConnection(now)
		t.endRenewal(now.ID)
		t.addEvent(booksEvent(now, eventBooksNeedOwner, actorProvider))
		return nil
	})
}
