package main

import (
	"fmt"
	"net/url"
	"slices"
	"time"
)

// A noun is one kind of thing that the service knows, with all that it brings: licences, orders, webhooks. The
// declaration of a noun is a function that returns one, in the noun's own file; nouns lists them. Everything but
// the name may be left out.
type noun struct {
	name     string // "lead"
	wings    func(s *server) []wing
	commands []command
	problems problemTable
	events   eventTable

	status   func() []statusPart // what the status command says of it; nil: nothing
	check    rowCheck            // what the check command looks at; nil: nothing but what it looks at in every table
	sealed   []string            // tables with rows that are worth nothing with another key file
	holdings []holding           // what an account has of it that stops working when the account is closed
	close    closing             // what happens to it then; nil: nothing
	settings settingsHook        // what else changes with the settings of an account; nil: nothing
}

// A statusPart is what a noun adds to what the status command prints. Each is read for itself, so that one that
// can't be read hides no other.
type statusPart struct {
	label  string // of its line on the screen, and of what could not be read
	isList bool   // its lines stand below what the service tells of itself
	of     statusReader
}

// A statusReader reads what a statusPart tells. Its own members are members of what the command prints with -json;
// those that could not be read stay zero.
type statusReader interface {
	read(v *statusView) error
	show(v *statusView, to *statusLines)
}

// A statusView is what a statusReader may look at.
type statusView struct {
	*store
	now  time.Time
	keys *keyring // nil: the key file can't be read
	runs bool     // the service
}

// statusLines are what a statusReader tells people.
type statusLines struct {
	rows []string // its lines on the screen
	todo []string // what the operator should do
}

// say adds a line on the screen.
func (l *statusLines) say(format string, args ...any) {
	l.rows = append(l.rows, fmt.Sprintf(format, args...))
}

// ask adds something that the operator should do.
func (l *statusLines) ask(format string, args ...any) {
	l.todo = append(l.todo, fmt.Sprintf(format, args...))
}

// statusRows is how many lines a list on the screen has at most.
const statusRows = 8

// A holding counts what an account has of a noun that stops working when it is closed.
type holding struct {
	member string // of what the command prints with -json: "licenses"
	name   string // of one, for people: "licence"
	query  string // counts those of the account ?1 at the time ?2
}

// A rowCheck returns a line for each thing that is wrong with what rows say, among them secrets that were sealed
// with another key file.
type rowCheck func(q *queries, keys *keyring, now time.Time) (faults []string, err error)

// A closing has what an account holds end with the account. It runs in the transaction that closes it.
type closing func(t *tx, accountID string) error

// A settingsHook is told of each change of an account's settings, in its transaction and before it.
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
		healthNoun(),
		docsNoun(),
	}
}

// collectNouns returns what each of some nouns brings of one kind, in their order.
func collectNouns[T any](of []noun, what func(*noun) []T) (all []T) {
	for i := range of {
		all = append(all, what(&of[i])...)
	}
	return all
}

// wingsOf returns the parts of the service that nouns bring.
func wingsOf(of []noun, s *server) []wing {
	return collectNouns(of, func(n *noun) []wing {
		if n.wings == nil {
			return nil
		}
		return n.wings(s)
	})
}

// problemsOf returns the problem codes of the core and of nouns.
func problemsOf(of []noun) []*problemCode {
	return slices.Concat(coreProblems, authProblems, corsProblems, idempotencyProblems,
		collectNouns(of, func(n *noun) []*problemCode { return n.problems }))
}

// eventTypesOf returns the event types of nouns.
func eventTypesOf(of []noun) []eventType {
	return collectNouns(of, func(n *noun) []eventType { return n.events.types })
}

// The scopes that an operator can give to tokens, in the order in which people read them. Applications of
// somebody else's (contract, section 13) can have some of them; the others are out of their reach, whatever
// their rows say.
var (
	grantableScopes = append(slices.Clone(appScopes), scopeApps, scopeConsent, scopeAdmin)
	appScopes       = []string{scopeStats, scopeLeads, scopeErase, scopeLicenses, scopeDevices, scopeEvents,
		scopeWebhooks, scopeOrders, scopeSelling, scopeRevenue, scopeBooks}
)

// nounOptions are the options of serve that nouns bring.
type nounOptions struct {
	expiringNotice   span      // how long before an end license.expiring is written; zero: never
	legacySunset     time.Time // when the legacy paths end
	noWebhooks       bool      // send none
	noPayments       bool      // ask no payment provider
	stripeURL        string    // base address of Stripe
	vippsURL         string    // base address of Vipps MobilePay
	xeroURL          string    // base address of everything of Xero; "": Xero's own
	fortnoxURL       string    // base address of everything of Fortnox; "": Fortnox' own
	noBooks          bool      // ask no books
	keepEvents       span      // how long events are kept
	keepTokens       span      // how long tokens are kept after their end
	securityContacts []string  // URIs for security.txt; none: there is no such file
}

// serveOptions are the options of serve, in the order of its help.
var serveOptions = []option{
	optAddr,
	optTrustedProxies,
	optKeepEvents,
	optKeepTokens,
	optOutboundAllow,
	optNoWebhooks,
	optNoPayments,
	optStripeURL,
	optVippsURL,
	optXeroURL,
	optFortnoxURL,
	optNoBooks,
	optDebugAddr,
	optAnonymousRate,
	optFailedLookupRate,
	optExpiringNotice,
	optLegacySunset,
	optSecurityContact,
	optLitestream.says("never checkpoint the database: Litestream does that"),
	optLog,
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
	optSecurityContact = option{name: "security-contact", value: "URI,…",
		help: "who to tell of a vulnerability, as mailto:security@example.com, for /.well-known/security.txt; " +
			"by default there is no such file",
		hasVariable: true}
)

// minKeepEvents is the shortest time for which events are kept: longer than maxReplay.
const minKeepEvents = 31 * 24 * time.Hour

// readNounOptions returns the options that nouns bring, or a usageError.
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
	for _, contact := range e.commaList("security-contact") {
		u, err := url.Parse(contact)
		if err != nil || !slices.Contains([]string{"mailto", "https", "tel"}, u.Scheme) || u.Host+u.Opaque == "" {
			return o, usageError(fmt.Sprintf("-security-contact must be mailto:, https: or tel: URIs, not %q", contact))
		}
		o.securityContacts = append(o.securityContacts, contact)
	}
	return o, nil
}
