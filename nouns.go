package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A noun is one kind of thing that the service knows (licences, orders, webhooks), with everything that it adds to
// the program. A noun is declared by a function that returns it, in the noun's own file; nouns lists them all.
// Every field but the name is optional.
type noun struct {
	name     string // "lead"
	modules  func(s *server) []module
	calls    []routeCommand // the commands that are names for its routes, and lists
	commands []command      // its other ones
	problems problemTable
	events   eventTable

	status   []statusLine      // what the status command says about it
	troubles []trouble         // what may need doing about it
	rows     []rowReader       // read the rows of its tables, for the check command
	check    rowCheck          // further checks by the check command; nil: only those that every table gets
	retry    retrying          // what the check command tries again; nil: nothing
	sealed   []string          // tables whose rows are useless with any other key file
	foreign  foreignSecrets    // finds what another key file sealed; nil: nothing that anybody could do about it
	ids      []idKind          // the kinds of ids that commands take
	holdings []holding         // what stops working when the account that has it is closed
	close    closing           // called when an account is closed; nil: nothing to do
	settings settingsHook      // called when an account's settings change; nil: nothing to do
	promoted func(t *tx) error // called when the database is promoted; nil: nothing to do
}

// A foreignSecrets returns a line for the operator about each secret of a noun that can't be read, since it was sealed
// with another key file.
type foreignSecrets func(q *queries, keys *keyring) (lines []string, err error)

// foreignOf returns what nouns have declared to find what another key file sealed.
func foreignOf(of []noun) (all []foreignSecrets) {
	for _, n := range of {
		if n.foreign != nil {
			all = append(all, n.foreign)
		}
	}
	return all
}

// A statusLine is what the status command says of one thing of a noun. Each is read by itself, so that one that can't
// be read does not hide the others.
type statusLine struct {
	label string // shown before its text, and before the error if it can't be read
	read  func(v *statusView, to *statusReport) error
}

// A trouble is one kind of thing that needs somebody. The status command prints it, 'widgetd watch' tells that it is
// new, worse or over, metrics count it, alerts fire by its urgency and, where it is the service's own, health tells it.
type trouble struct {
	kind    string // its name, which stays: "payments_in_review"
	urgency urgency
	money   bool         // money waits for it
	health  healthStatus // what health is while it lasts, and tells as occurrence.What; "": it is not health's

	// What is said of one and of many, if that differs, and what then follows, such as a command. See text.
	one, many, advice string

	// How it is found: what the file says counts where it can be read, then what a service knows of itself, which is
	// all that health tells. What commands see comes before both.
	inService func(s *server) (occurrence, error)
	inFile    func(v *statusView) (occurrence, error)
	query     string                                  // each row has since when, and an id; at most ?3 count
	span      time.Duration                           // from ?1, now, to ?2
	outside   func(v *statusView) (occurrence, error) // by commands only: files, units, and what takes long
}

// measured reports whether a service can find a trouble, so that there is a metric.
func (t *trouble) measured() bool {
	return t.inService != nil || t.inFile != nil || t.query != "" || t.kind == unreadableKind
}

// unreadableKind is the trouble that others can't be looked for. Whoever looks for the others finds it.
const unreadableKind = "unreadable"

// troublesOf returns the troubles of the given nouns.
func troublesOf(of []noun) []trouble {
	return collectNouns(of, func(n *noun) []trouble { return n.troubles })
}

// An urgency says how soon somebody must know of a trouble.
type urgency string

const (
	rings    urgency = "rings" // also at night: a telephone rings
	sameDay  urgency = "day"
	whenSeen urgency = "told" // when somebody looks
)

// urgencies are all of them, the highest first.
var urgencies = []urgency{rings, sameDay, whenSeen}

// An occurrence is what was found of a trouble: how many, and what fills its sentence.
type occurrence struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`          // 0: it is not there
	Since stamp  `json:"since"`          // $since, and $day; zero: not known
	What  string `json:"what,omitempty"` // $what: one of the program's own texts, which anybody may see
	ID    string `json:"id,omitempty"`   // $id: what somebody else may have written: a name, an id, an error
}

// occursIf is an occurrence that either is there or is not.
func occursIf(is bool, since stamp, what, id string) occurrence {
	return occurrence{Count: oneIf[is], Since: since, What: what, ID: id}
}

// foundList is an occurrence of things that somebody else may have written, all of which it names.
func foundList(all []string) occurrence {
	return occurrence{Count: len(all), ID: strings.Join(all, "; ")}
}

// foundLines is an occurrence of lines that somebody else may have written, of which it has the first.
func foundLines(lines []string) occurrence {
	f := occurrence{Count: len(lines)}
	if len(lines) > 0 {
		f.ID = lines[0]
	}
	return f
}

// A foundTrouble is a trouble that is there.
type foundTrouble struct {
	*trouble
	occurrence
}

// text returns the sentence: with $n how many, $more how many more than one, and what else an occurrence has. What
// somebody else has written is "…" unless it is open.
func (f *foundTrouble) text(open bool) string {
	sentence := f.one
	if f.Count > 1 {
		sentence = cmp.Or(f.many, f.one)
	}
	id := "…"
	if open {
		id = f.ID
	}
	said := map[string]string{"n": strings.TrimSpace(countedUpTo(f.Count, "", "")), "more": strconv.Itoa(f.Count - 1),
		"since": f.Since.String(), "day": f.Since.day(), "what": f.What, "id": id}
	return os.Expand(sentence+f.advice, func(name string) string { return said[name] })
}

// compareTroubles orders troubles: the most urgent first, then those that money waits for, then the oldest.
func compareTroubles(a, b *foundTrouble) int {
	sooner := func(f *foundTrouble) int { return slices.Index(urgencies, f.urgency) }
	return cmp.Or(sooner(a)-sooner(b), oneIf[b.money]-oneIf[a.money],
		oneIf[a.Since.IsZero()]-oneIf[b.Since.IsZero()], a.Since.Compare(b.Since.Time))
}

// A statusView is what troubles are looked for in, and what the status command reads from.
type statusView struct {
	*store
	now     time.Time
	of      []noun
	keys    *keyring       // nil: the key file can't be read
	service *serviceStatus // nil: it does not run, or can't be asked
	env     *env           // of the command; nil: the service looks
	failed  error          // why the service can't be asked
	db      string         // the path of the file
	days    int            // that are shown; 0: none
	account string         // whose days they are; "": of all
}

// litestream reports whether Litestream makes the backups, as far as is known.
func (v *statusView) litestream() bool { return v.service != nil && v.service.Litestream }

// view returns what a service looks for troubles in.
func (s *server) view() *statusView {
	return &statusView{store: s.store, now: s.now(), of: s.nouns, keys: s.keys.Load(),
		service: &serviceStatus{Litestream: s.store.noCheckpoints}}
}

// find looks for a trouble in the file.
func (v *statusView) find(t *trouble) (f occurrence, err error) {
	switch {
	case t.inFile != nil:
		f, err = t.inFile(v)
	case t.query != "":
		f.Count, f.Since, f.ID, err = v.countSince(t.query, newStamp(v.now), newStamp(v.now.Add(t.span)))
	}
	return f, err
}

// A statusReport collects what the status command prints.
type statusReport struct {
	members map[string]any // with -json
	details []detail       // on the screen
	found   []foundTrouble
	faults  []statusFault // what could not be read
	width   int           // of the screen; 0: no limit
	days    *dayReport    // nil: none is shown
	label   string        // that the next row on the screen has
}

// A statusFault is an error for which a part can't be read, and how many more.
type statusFault struct {
	text, part string
	more       int
}

// set sets a member of what is printed with -json.
func (r *statusReport) set(member string, value any) { r.members[member] = value }

// say adds a row on the screen.
func (r *statusReport) say(format string, args ...any) {
	r.details = append(r.details, detail{r.label, fmt.Sprintf(format, args...)})
	r.label = ""
}

// needs returns what the operator should do.
func (r *statusReport) needs() []string {
	lines := []string{}
	for i := range r.found {
		lines = append(lines, r.found[i].text(true))
	}
	return lines
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

const (
	statusRows = 8                   // lines of a list on the screen
	endingSoon = 14 * 24 * time.Hour // how long before the end of a token or a licence the status command tells of it
)

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
	short    bool   // people say few symbols of an id to each other: leastShortEnd of one made within recentIDs will do

	// named returns the ids of the rows that people know by that text, too. It may be nil.
	search func(q *queries, text string) ([]string, error)
}

// A rowReader reads every row of a table as the program does, and returns a line for each that it can't; see
// unreadableRows.
type rowReader func(q *queries) (faults []string, err error)

// A rowCheck returns a line for each fault in the content of rows, or in what they need of the key file.
type rowCheck func(q *queries, keys *keyring, now time.Time) (faults []string, err error)

// A retrying tries again what could not be done, and returns a line for each thing that still can't.
type retrying func(ctx context.Context, st *store) (faults []string, err error)

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
		payoutNoun(),
		revenueNoun(),
		booksNoun(),
		legacyNoun(),
		receiverNoun(),
		fileNoun(),
		replicaNoun(),
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

// modulesOf returns the modules of the given nouns, with complete routes.
func modulesOf(of []noun, s *server) []module {
	all := collectNouns(of, func(n *noun) []module {
		if n.modules == nil {
			return nil
		}
		return n.modules(s)
	})
	for _, w := range all {
		for i := range w.routes {
			w.routes[i].complete(carefulScopes)
		}
	}
	return all
}

// eventTypesOf returns the event types of the given nouns.
func eventTypesOf(of []noun) []eventType {
	return collectNouns(of, func(n *noun) []eventType { return n.events.types })
}

// The scopes that an operator can give to tokens, in the order in which people read them. Applications of
// third parties (contract, section 13) can have only those of appScopes, whatever their database rows say.
var (
	grantableScopes = append(slices.Clone(appScopes), scopeIssuing, scopeApps, scopeConsent, scopeAdmin)
	appScopes       = []string{scopeStats, scopeLeads, scopeWriteLeads, scopeLicenses, scopeDevices, scopeEvents,
		scopeWebhooks, scopeOrders, scopeSelling, scopeRevenue, scopeBooks}

	// Those of routes that move money or make something: see route.careful.
	carefulScopes = []string{scopeIssuing, scopeSelling, scopeWebhooks, scopeApps, scopeBooks, scopeAdmin}
)

// nounOptions are the options of serve that belong to nouns.
type nounOptions struct {
	expiringNotice   span      // how long before a licence's end license.expiring is written; zero: never
	legacySunset     time.Time // when the legacy paths end
	noWebhooks       bool      // send no webhooks
	noPayments       bool      // call no payment provider
	noBooks          bool      // call no accounting service
	keepEvents       span      // how long events are kept
	keepTokens       span      // how long tokens are kept after their end
	securityContacts []string  // URIs for security.txt; none: there is no such file
	clientDocuments  bool      // take addresses of documents as client_id
	contact          string    // URI of who gives tokens to partners; "": the pages name the operator

	clientDocumentList []string // the only ones that are taken; none: any

	providers map[string]provider // by name, in the place of the payment providers; nil: those themselves
	ledgers   map[string]ledger   // by name, in the place of the accounting services; nil: those themselves
}

// serveOptions are the options of serve, in the order of its help.
var serveOptions = slices.Concat([]option{
	optAddr, optTrustedProxies, optKeepEvents, optKeepTokens, optOutboundAllow, optNoWebhooks, optNoPayments,
	optStripeURL, optVippsURL}, bookOptions(), []option{optNoBooks, optDebugAddr, optAnonymousRate, optVisitorRate,
	optFailedLookupRate, optClientDocuments, optClientDocumentList, optExpiringNotice, optLegacySunset, optContact,
	optSecurityContact,
	optLitestream.says("never checkpoint the database: Litestream does that"), optPeer, optStandby, optLog,
	optAccessLog,
})

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
	sunset := e.str("legacy-sunset")
	if o.legacySunset, err = time.Parse(time.DateOnly, sunset); err != nil {
		return o, usageError(fmt.Sprintf("-legacy-sunset must be a date such as 2026-07-01, not %q", sunset))
	}
	o.clientDocuments, o.clientDocumentList = e.on("client-documents"), e.commaList("client-document-list")
	wrong := func(address string) bool { return !o.clientDocuments || !isDocumentAddress(address) }
	if i := slices.IndexFunc(o.clientDocumentList, wrong); i >= 0 {
		return o, usageError(fmt.Sprintf("-client-document-list must be https addresses of documents, and needs "+
			"-client-documents; not %q", o.clientDocumentList[i]))
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
