package main

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// A noun is one kind of thing that the service knows (licences, orders, webhooks), with everything that it adds to
// the program. A noun is declared by a function that returns it, in the noun's own file; nouns lists them all.
// Every field but the name is optional.
type noun struct {
	name     string // "lead"
	wings    func(s *server) []wing
	commands []command
	problems problemTable
	events   eventTable

	status   func() []statusPart // what the status command says about it; nil: nothing
	rows     []rowReader         // read the rows of its tables, for the check command
	check    rowCheck            // further checks by the check command; nil: only those that every table gets
	sealed   []string            // tables whose rows are useless with any other key file
	ids      []idKind            // the kinds of ids that commands take
	holdings []holding           // what stops working when the account that has it is closed
	close    closing             // called when an account is closed; nil: nothing to do
	settings settingsHook        // called when an account's settings change; nil: nothing to do
	promoted func(t *tx) error   // called when the database is promoted; nil: nothing to do
}

// A statusPart is what a noun adds to the output of the status command. Parts are read one by one, so that one
// that can't be read does not hide the others.
type statusPart struct {
	label  string // shown before its lines, and before the error if it can't be read
	isList bool   // shown below what the service reports about itself
	of     statusReader
}

// A statusReader reads and shows the content of a statusPart. Its JSON members become members of the object that
// the command prints with -json; those that could not be read stay zero.
type statusReader interface {
	read(v *statusView) error
	show(v *statusView, to *statusLines)
}

// A moneyReader is a statusReader of what money waits for, which the operator should do first.
type moneyReader interface{ aboutMoney() }

// A statusView is what a statusReader may read from.
type statusView struct {
	*store
	now  time.Time
	keys *keyring // nil: the key file can't be read
	runs bool     // the service is running
}

// statusLines collects the text that a statusReader shows to people.
type statusLines struct {
	rows   []string // its lines on the screen
	needed []string // what the operator should do
}

// say adds a line on the screen.
func (l *statusLines) say(format string, args ...any) {
	l.rows = append(l.rows, fmt.Sprintf(format, args...))
}

// ask adds something that the operator should do: one line for all things of a kind.
func (l *statusLines) ask(format string, args ...any) {
	l.needed = append(l.needed, fmt.Sprintf(format, args...))
}

// askSince adds a line for things of a kind that have lasted since these times; without any it adds nothing.
func (l *statusLines) askSince(since []stamp, one, many, command string) {
	if len(since) > 0 {
		oldest := slices.MinFunc(since, func(a, b stamp) int { return a.Compare(b.Time) })
		l.ask("%s since %s: %s", countedUpTo(len(since), one, many), oldest.day(), command)
	}
}

// askFirst adds the first of lines that are all of a kind, and how many more there are.
func (l *statusLines) askFirst(lines []string) {
	switch n := len(lines) - 1; {
	case n == 0:
		l.ask("%s", lines[0])
	case n > 0:
		l.ask("%s (and %d more such: 'widgetd check' names all)", lines[0], n)
	}
}

// countedUpTo returns a number with its noun or verb. A count that has stopped at maxCounted is "10000 or more".
func countedUpTo(n int, one, many string) string {
	switch n {
	case 1:
		return "1 " + one
	case maxCounted:
		return strconv.Itoa(n) + " or more " + many
	}
	return strconv.Itoa(n) + " " + many
}

// statusRows is how many lines a list on the screen has at most.
const statusRows = 8

// A holding counts the things of one kind that an account has and that stop working when it is closed.
type holding struct {
	member string // of the JSON output of account close: "licenses"
	name   string // singular, for people: "licence"
	query  string // counts those of the account ?1 at the time ?2
	money  string // tells the money of the account ?1 that is released with them, as "57.00 CHF"; "": none is
}

// An idKind is a kind of ids. Arguments and options of commands that are called so name a row by its id, or by the
// end of that.
type idKind struct {
	argument string // in the help: "LICENSE"
	prefix   string // "lic"
	table    string // whose rows have such ids
}

// A rowReader reads every row of a table as the program does, and returns a line for each that it can't; see
// unreadableRows.
type rowReader func(q *queries) (faults []string, err error)

// A rowCheck returns a line for each fault in the content of rows, including secrets that were sealed with another
// key file.
type rowCheck func(q *queries, keys *keyring, now time.Time) (faults []string, err error)

// A closing ends what an account has of a noun, in the transaction that closes the account.
type closing func(t *tx, accountID string) error

// A settingsHook is called for each change of an account's settings, in its transaction and before it is saved.
type settingsHook func(t *tx, accountID string, before, after accountSettings) error

// nouns returns every noun, in the order of the help.
func nouns() []noun {
	return []noun{
		accountNoun(),
		appNoun(),
		grantNoun(),
		signinNoun(),
		keyNoun(),
		leadNoun(),
		licenseNoun(),
		planNoun(),
		deviceNoun(),
		widgetNoun(),
		eventNoun(),
		webhookNoun(),
		orderNoun(),
		paymentNoun(),
		revenueNoun(),
		booksNoun(),
		legacyNoun(),
		receiverNoun(),
		fileNoun(),
		standbyNoun(),
		healthNoun(),
		docsNoun(),
	}
}

// collectNouns returns what the given nouns have of one kind, in the order of the nouns.
func collectNouns[T any](of []noun, what func(*noun) []T) (all []T) {
	for i := range of {
		all = append(all, what(&of[i])...)
	}
	return all
}

// wingsOf returns the wings of the given nouns.
func wingsOf(of []noun, s *server) []wing {
	return collectNouns(of, func(n *noun) []wing {
		if n.wings == nil {
			return nil
		}
		return n.wings(s)
	})
}

// problemsOf returns the problem codes of the core and of the given nouns.
func problemsOf(of []noun) []*problemCode {
	return slices.Concat(coreProblems, authProblems, corsProblems, idempotencyProblems,
		collectNouns(of, func(n *noun) []*problemCode { return n.problems }))
}

// eventTypesOf returns the event types of the given nouns.
func eventTypesOf(of []noun) []eventType {
	return collectNouns(of, func(n *noun) []eventType { return n.events.types })
}

// The scopes that an operator can give to tokens, in the order in which people read them. Applications of
// third parties (contract, section 13) can have only those of appScopes, whatever their database rows say.
var (
	grantableScopes = append(slices.Clone(appScopes), scopeIssuing, scopeApps, scopeConsent, scopeAdmin)
	appScopes       = []string{scopeStats, scopeLeads, scopeErase, scopeLicenses, scopeDevices, scopeEvents,
		scopeWebhooks, scopeOrders, scopeSelling, scopeRevenue, scopeBooks}
)

// nounOptions are the options of serve that belong to nouns.
type nounOptions struct {
	expiringNotice   span      // how long before a licence's end license.expiring is written; zero: never
	legacySunset     time.Time // when the legacy paths end
	noWebhooks       bool      // send no webhooks
	noPayments       bool      // call no payment provider
	stripeURL        string    // base address of Stripe
	vippsURL         string    // base address of Vipps MobilePay
	xeroURL          string    // base address of all of Xero's endpoints; "": Xero's own
	fortnoxURL       string    // base address of all of Fortnox' endpoints; "": Fortnox' own
	noBooks          bool      // call no accounting service
	keepEvents       span      // how long events are kept
	keepTokens       span      // how long tokens are kept after their end
	securityContacts []string  // URIs for security.txt; none: there is no such file
	contact          string    // URI of who gives tokens to partners; "": the pages name the operator
}

// serveOptions are the options of serve, in the order of its help.
var serveOptions = []option{
	optAddr, optTrustedProxies, optKeepEvents, optKeepTokens, optOutboundAllow, optNoWebhooks, optNoPayments,
	optStripeURL, optVippsURL, optXeroURL, optFortnoxURL, optNoBooks, optDebugAddr, optAnonymousRate, optVisitorRate,
	optFailedLookupRate, optExpiringNotice, optLegacySunset, optContact, optSecurityContact,
	optLitestream.says("never checkpoint the database: Litestream does that"), optPeer, optStandby, optLog,
	optAccessLog,
}

var (
	optExpiringNotice = option{name: "expiring-notice", value: "DURATION", def: "14d",
		help: "how long before a licence's end the event license.expiring is written; 0: never", hasVariable: true}
	optLegacySunset = option{name: "legacy-sunset", value: "DATE", def: "2026-07-01",
		help: "first day (UTC) on which /api/legacy/ answers 410 Gone", hasVariable: true}
	optKeepEvents = option{name: "keep-events", value: "DURATION", def: "400d",
		help:        "how long events are kept; at least 31d, since those of 30 days can be sent to webhooks again",
		hasVariable: true}
	optKeepTokens = option{name: "keep-tokens", value: "DURATION", def: "90d",
		help: "how long the record of an issued token is kept after the token's end", hasVariable: true}
	optNoWebhooks = option{name: "no-webhooks",
		help: "send no webhooks: for a copy of a database that another service sends them of", hasVariable: true}
	optNoPayments = option{name: "no-payments",
		help: "ask no payment provider: for a copy of a database that another service works on", hasVariable: true}
	optNoBooks = option{name: "no-books",
		help:        "ask no books and send them nothing: for a copy of a database that another service works on",
		hasVariable: true}
	optContact = option{name: "contact", value: "URI",
		help: "whom partners ask for tokens, licence keys and widgets, as mailto:partners@example.com or the https: " +
			"address of a page; shown on / and /docs, and in openapi.json",
		hasVariable: true}
	optSecurityContact = option{name: "security-contact", value: "URI,…",
		help: "who to tell of a vulnerability, as mailto:security@example.com, for /.well-known/security.txt; " +
			"by default there is no such file",
		hasVariable: true}
)

// minKeepEvents is the least that -keep-events accepts: longer than maxReplay.
const minKeepEvents = 31 * 24 * time.Hour

// readNounOptions returns the options that belong to nouns, or a usageError.
func (e *env) readNounOptions() (o nounOptions, err error) {
	if notice := e.str("expiring-notice"); notice != "0" {
		if o.expiringNotice, err = parseSpan(notice, false); err != nil {
			return o, usageError("-expiring-notice: " + err.Error() + ", or 0 for no such event")
		}
	}
	if o.keepEvents, err = parseSpan(e.str("keep-events"), false); err != nil {
		return o, usageError("-keep-events: " + err.Error())
	}
	if o.keepEvents.years == 0 && o.keepEvents.rest < minKeepEvents {
		return o, usageError("-keep-events must be 31d or more")
	}
	if o.keepTokens, err = parseSpan(e.str("keep-tokens"), false); err != nil {
		return o, usageError("-keep-tokens: " + err.Error())
	}
	o.noWebhooks, o.noPayments, o.noBooks = e.on("no-webhooks"), e.on("no-payments"), e.on("no-books")
	o.stripeURL, o.vippsURL = e.str("stripe-url"), e.str("vipps-url")
	o.xeroURL, o.fortnoxURL = e.str("xero-url"), e.str("fortnox-url")
	sunset := e.str("legacy-sunset")
	if o.legacySunset, err = time.Parse(time.DateOnly, sunset); err != nil {
		return o, usageError(fmt.Sprintf("-legacy-sunset must be a date such as 2026-07-01, not %q", sunset))
	}
	o.contact = e.str("contact")
	if o.contact != "" && !isContact(o.contact, "mailto", "https") {
		return o, usageError(fmt.Sprintf("-contact must be a mailto: or https: URI, not %q", o.contact))
	}
	for _, contact := range e.commaList("security-contact") {
		if !isContact(contact, "mailto", "https", "tel") {
			return o, usageError(fmt.Sprintf("-security-contact must be mailto:, https: or tel: URIs, not %q", contact))
		}
		o.securityContacts = append(o.securityContacts, contact)
	}
	return o, nil
}

// isContact reports whether a text is a URI of one of some schemes at which somebody can be reached.
func isContact(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Host+u.Opaque != ""
}
