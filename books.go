package main

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// scopeBooks is the scope of all endpoints of books.
const scopeBooks = "books:write"

// booksNoun declares the connections with accounting products, and the exports of business days to them.
func booksNoun() noun {
	return noun{
		name:     "books",
		modules:  func(s *server) []module { return []module{booksModule(s, booksOf(s))} },
		calls:    booksRouteCommands,
		commands: booksCommands,
		ids: []idKind{{"CONNECTION", "bkc", "books_connections", false, nil},
			{"EXPORT", "exp", "books_exports", false, nil}},
		problems: booksProblems,
		events:   booksEvents,
		sealed:   []string{"books_apps", "books_authorizations", "books_connections"},
		foreign:  foreignBooks,
		status:   []statusLine{{label: "books", read: booksStatus}},
		troubles: booksTroubles,
		rows: []rowReader{booksAppTable.unreadable, bookAuthorizationTable.unreadable, bookConnectionTable.unreadable,
			exportTable.unreadable},
		promoted: (*tx).pollAllSent,
	}
}

// Books (contract, section 12): the revenue of each business day arrives in the account's bookkeeping software as
// one balanced entry. This file has what both products have in common; books_entry.go makes the entry of a day,
// books_export.go exports it exactly once, books_xero.go and books_fortnox.go are the clients of the products.

// bookProducts are the products that accounts can be connected with, each declared with its client.
var bookProducts = []*bookProduct{&xeroProduct, &fortnoxProduct}

// A bookProduct declares a product, and what mappings and entries have to be for it.
type bookProduct struct {
	name  string // in paths, rows and commands: "xero"
	title string // as people write it: "Xero"

	// client makes the client. base replaces the product's own addresses, for tests; "": it does not. now is the wall
	// clock.
	client func(out *outbound, base string, now func() time.Time) ledger

	requests int           // how many may be made for one company within a time
	within   time.Duration // that time

	entryPage string // the page of an entry for people, before its id; "": it has none
	drafts    bool   // entries may be drafts: a connection says which with its status
	series    bool   // entries belong to a series and a financial year: a connection names the series

	// Amounts include VAT, and each line has a tax type. If not, VAT is booked on lines of its own, and the tax of a
	// rule is the account of the VAT.
	taxInside bool

	account    *textCheck // of the code of an account
	tax        *textCheck // of the tax of a rule
	costCenter *textCheck // of a cost centre; any will do if it is zero

	tokenLife time.Duration // after which tokens that were not replaced lapse; 0: new ones can be had at any time

	rival string // what its maker sells that books fees and payouts, too; "": nothing

	standard *standardAccounts // those that the books of nearly all companies have; nil: there is no standard
}

// standardAccounts are the codes of a standard chart of accounts, for suggestions.
type standardAccounts struct {
	byRate                        map[int64]rateAccounts
	tips, cash, voucher, clearing string
	fees                          string
}

// rateAccounts are the accounts of sales at a rate of VAT, and of that VAT; "": it needs none.
type rateAccounts struct{ sales, vat string }

// productNames returns the names of all products.
func productNames() (names []string) {
	for _, p := range bookProducts {
		names = append(names, p.name)
	}
	return names
}

// productOf returns the product of a name, or nil.
func productOf(name string) *bookProduct {
	for _, p := range bookProducts {
		if p.name == name {
			return p
		}
	}
	return nil
}

// product returns the product that a connection is with; a zero one if a damaged row names none that there is.
func (c *bookConnection) product() *bookProduct { return cmp.Or(productOf(c.Product), &bookProduct{}) }

// The event types of books. Their data has no amounts.
var (
	booksEvents = eventTable{scope: scopeBooks}

	eventBooksConnected    = booksEvents.add("books.connected")
	eventBooksReconnected  = booksEvents.add("books.reconnected")
	eventBooksDisconnected = booksEvents.add("books.disconnected")
	eventBooksNeedOwner    = booksEvents.add("books.needs_reconnect") // its owner has to connect it again
	eventBooksChanged      = booksEvents.add("books.changed")
	eventBooksMapped       = booksEvents.add("books.mapping_changed")
	eventBooksPosted       = booksEvents.add("books.posted")
	eventBooksHeld         = booksEvents.add("books.held")
	eventBooksFailed       = booksEvents.add("books.failed")
	eventBooksReversed     = booksEvents.add("books.reversed")
)

// The problem codes of books.
var (
	booksProblems problemTable

	codeBooksNotFound = booksProblems.add(404, "books_connection_not_found", "Connection not found",
		"There is no connection with books with this id.",
		"List the connections of the account.")
	codeExportNotFound = booksProblems.add(404, "export_not_found", "Export not found",
		"The connection has no export with this id.",
		"List the exports of the connection.")
	codeBooksNotSet = booksProblems.add(409, "books_not_available", "Product not available",
		"The operator of this service has not set up this product.",
		"Ask the operator to set up the application of the software.")
	codeBooksState = booksProblems.add(409, "books_connection_state", "Not in this state",
		"The state of the connection does not allow this.",
		"Read the connection: choose a company, or connect it again.")
	codeExportState = booksProblems.add(409, "export_state", "Not in this state",
		"The state of the export does not allow this.",
		"Read the export; it may have moved on meanwhile.")
	codeNoRevenue = booksProblems.add(409, "no_revenue", "No revenue",
		"On this business day there is nothing that the connection would send.",
		"Read the revenue day; `outside` and `tests` say what is sent besides.")
	codeBooksUnavailable = booksProblems.add(503, "books_unavailable", "Books unavailable",
		"The books can't be reached, or give no usable answer.",
		"Try again later; exports are tried again by themselves.")

	errBooksConnection = &refusal{code: codeBooksNotFound}
	errExport          = &refusal{code: codeExportNotFound}
	errNoCompany       = &refusal{code: codeBooksState, detail: "Choose a company first."}
	errBooksOff        = &refusal{code: codeBooksUnavailable,
		detail: "This service works on a copy of a database, and asks no books: it was started with -no-books."}
)

// A booksApp is the application that the operator has registered with the maker of a product. All accounts use the
// same one.
type booksApp struct {
	Product   string `json:"product"`
	ClientID  string `json:"client_id"`
	Sealed    []byte `json:"-"` // the client secret, see sealedBooksApp
	ChangedAt stamp  `json:"changed_at"`
}

// The purposes under which secrets in rows of books are sealed, see keyring.sealFor.
const (
	sealedBooksApp        = "books app"           // the client secret; the id is the product
	sealedBooksVerifier   = "books authorization" // the verifier of PKCE; the id is the hash of the state, in hex
	sealedBooksConnection = "books connection"    // bookTokens, as JSON; the id is the connection's
)

// bookTokens are what a connection keeps sealed.
type bookTokens struct {
	Access    string `json:"access"`
	ExpiresAt stamp  `json:"expires_at"`        // when Access ends
	Refresh   string `json:"refresh,omitempty"` // Xero: replaced at each use
	LinkID    string `json:"link_id,omitempty"` // Xero's id of the connection, for disconnecting

	RenewedAt time.Time `json:"renewed_at,omitzero"` // when renewing gave them; zero: the owner's consent did
}

// A bookLink is where the owner of an account agrees that it is connected.
type bookLink struct {
	AuthorizeURL string `json:"authorize_url" is:"uri"` // The address to open in a browser. Each connects once.
	ExpiresAt    stamp  `json:"expires_at"`             // Until when it works.
}

// A bookCompany is a company that a product lets us write the books of.
type bookCompany struct {
	ID     string `json:"id"` // Xero's tenant id, Fortnox' database number
	Name   string `json:"name"`
	LinkID string `json:"link_id,omitempty"` // as bookTokens.LinkID
}

// A bookConnection is a company in bookkeeping software that an account is connected with.
type bookConnection struct {
	ID             string              `json:"id" is:"bkc"`                // The id of the connection.
	AccountID      string              `json:"account_id" is:"acct"`       // The account whose revenue is sent.
	Product        string              `json:"product" is:"=xero|fortnox"` // The software.
	State          bookConnectionState `json:"state"`                      // Whether it works; show sets it.
	OrganisationID *string             `json:"-"`                          // nil: it is to be chosen among Choices
	Organisation   string              `json:"-"`

	Company     *bookOrganisation `json:"organisation"` // The company, or null: it is to be chosen.
	Choices     []bookCompany     `json:"-"`
	ChoiceViews []bookChoice      `json:"choices"` // The companies to choose from.

	Currency        *string      `json:"currency"` // The currency of the books, or null: not known yet.
	Sealed          []byte       `json:"-"`        // bookTokens; nil: it has none
	Tokens          int64        `json:"-"`        // how often they were replaced
	RefreshingUntil stamp        `json:"-"`        // until when another call has claimed replacing them
	Mapping         *bookMapping `json:"-"`        // nil: none was confirmed

	// When its mapping was confirmed, or null: it has none, so that nothing can be sent.
	MappingAt stamp `json:"mapping_confirmed_at"`

	// The first business day that is sent on its own, or null: none is.
	SendFrom *businessDate `json:"send_from" is:"date"`

	// The first day of arrival from which on payouts are sent on their own, or null: none is.
	PayoutsFrom *businessDate `json:"payouts_from" is:"date"`

	Status     bookEntryStatus  `json:"-"`
	StatusView *bookEntryStatus `json:"status"` // What entries at Xero become, or null: it is at Fortnox.

	Series  *string          `json:"series"`  // The series of vouchers at Fortnox, or null: none is chosen.
	Outside bool             `json:"outside"` // Whether what was paid outside is sent too.
	Tests   bool             `json:"tests"`   // Whether what was paid with test keys is sent too.
	Former  []formerSwitches `json:"-"`       // no column: the two above on earlier days, in order

	// The business day from which `outside` and `tests` hold as they are here, or null: they hold for all days. Earlier
	// days keep those that they had, whenever they are sent.
	SwitchesFrom *businessDate `json:"switches_from" is:"date"`

	// Since when the books give no usable answers, or null: they do.
	FailingSince stamp `json:"failing_since"`

	// Since when its owner has to connect it again, or null: it works.
	NeedsReconnectAt stamp `json:"needs_reconnect_at"`

	CreatedAt stamp `json:"created_at"` // When it was connected first.
	RemovedAt stamp `json:"-"`
	dryEnd
}

// A bookOrganisation is the company whose books an account is connected with, or null: it is to be chosen.
type bookOrganisation struct {
	ID   string `json:"id"`   // Its id there.
	Name string `json:"name"` // Its name.
}

// A bookChoice is a company that can be chosen.
type bookChoice struct {
	ID   string `json:"id"`   // Its id there.
	Name string `json:"name"` // Its name.
}

// A bookConnectionState is whether a connection works. `choosing`: one of `choices` is to be chosen. `failing`:
// the books give no usable answers, and are asked again. `needs_reconnect`: its owner has to connect it again.
type bookConnectionState string

const (
	booksChoosing       = "choosing"
	booksInUse          = "in_use"
	booksFailing        = "failing"
	booksNeedsReconnect = "needs_reconnect"
	booksRemoved        = "removed"
)

var _ = declareWords[bookConnectionState](booksChoosing, booksInUse, booksFailing, booksNeedsReconnect, booksRemoved)

// What members of connections may be. They are made once, since a row that is read lists its members.
var (
	checkFirstDay    = notEmptyAnd(checkBusinessDate)
	checkEntryStatus = oneOf(entryStatuses...)
	checkSeries      = notEmptyAnd(&textCheck{
		of: checkedBy(visible, "invalid_series", "This must be the code of a voucher series, such as W.")})
)

// members lists what callers may set of a connection.
func (c *bookConnection) members() []member {
	return []member{
		// The first business day that is sent on its own, or null: none is. A day that is past is refused without
		// `history`, unless it is that day already.
		{name: "send_from", at: &c.SendFrom, high: 10, check: checkFirstDay},
		// The first day of arrival from which on payouts are sent on their own, as `send_from`, or null: none is. What
		// is in them must be of days that are in the books.
		{name: "payouts_from", at: &c.PayoutsFrom, high: 10, check: checkFirstDay},
		{name: "status", at: (*string)(&c.Status), // Xero: what entries become.
			high: 10, check: checkEntryStatus},
		{name: "series", at: &c.Series, // Fortnox: the series of vouchers, which takes manual entries, or null: none.
			high: 10, check: checkSeries},
		// Whether what was paid outside is sent too, which a till usually books: of business days from the present one
		// on.
		{name: "outside", at: &c.Outside},
		// Whether what was paid with test keys is sent too: of business days from the present one on, and of payouts
		// that arrive on these.
		{name: "tests", at: &c.Tests},
	}
}

// formerSwitches are Outside and Tests of a connection on the business days before one, as far back as they held.
type formerSwitches struct {
	Before  businessDate `json:"before"`
	Outside bool         `json:"outside"`
	Tests   bool         `json:"tests"`
}

// A bookEntryStatus is what Xero is to make of an entry.
type bookEntryStatus string

const (
	entryDraft  = "draft"
	entryPosted = "posted"
)

var entryStatuses = declareWords[bookEntryStatus](entryDraft, entryPosted)

// A bookMappingKind is what a rule of a mapping is for. Of payouts: `fee`: what providers keep; `fee_tax`: tax on
// that, as they list it; `dispute_fee`: what they keep of disputes; `transit`: what is on its way to the bank, in
// Xero no bank account. Without a line for `transit` the accountant books what arrives.
type bookMappingKind string

const (
	ruleSales    = "sales"    // of one rate of VAT, and one group or all others
	ruleDelivery = "delivery" // of one rate of VAT
	ruleTip      = "tip"
	ruleDispute  = "dispute"
	rulePayment  = "payment" // the clearing account of one way of paying

	ruleFee        = "fee"         // that providers keep
	ruleFeeTax     = "fee_tax"     // on fees
	ruleDisputeFee = "dispute_fee" // of disputes
	ruleTransit    = "transit"     // what is on its way to the bank; without one the accountant books payouts
)

// A mappingRule is which account of the books gets something.
type mappingRule struct {
	Kind bookMappingKind `json:"kind"` // What it is for.

	// Of `sales` and `delivery`: the rate of VAT in hundredths of a percent, or null: of another kind.
	VATRate *int64 `json:"vat_rate" most:"10000"`

	// Of `sales`: the group, or null: every group that no other line names. Empty: what has no group.
	Group *string `json:"group" most:"200"`

	Method  *bookPayMethod `json:"method"`  // The way of paying, or null: it is not of the kind `payment`.
	Account string         `json:"account"` // The code of the account in the books: at Fortnox 1000 to 9999.

	// Xero: a TaxType; Fortnox: the account of the VAT. Or null: it has none, which at Xero is `NONE`.
	Tax *string `json:"tax" least:"1" most:"50"`

	// A cost centre, or null: none; Xero: a tracking category and its option, `Region:North`.
	CostCenter *string `json:"cost_center" least:"1" most:"100"`
}

// A bookMapping is which account of the books gets what.
type bookMapping struct {
	Lines []mappingRule `json:"lines"` // The rules.
}

// An entryLine is one line of an entry. One of `debit` and `credit` is 0.
type entryLine struct {
	Account    string `json:"account"`                 // The account.
	Text       string `json:"text"`                    // What it is, for people.
	Debit      int64  `json:"debit"`                   // In the minor unit.
	Credit     int64  `json:"credit"`                  // In the minor unit.
	Tax        string `json:"tax,omitempty"`           // Xero: the TaxType.
	CostCenter string `json:"cost_center,omitempty"`   // The cost centre.
	VAT        int64  `json:"vat,omitempty" least:"-"` // Xero: the VAT in it by the orders' figures.
	Rate       int64  `json:"vat_rate,omitempty"`      // The rate of VAT in hundredths of a percent.

	// Of a payout: the line moves what is paid out to the account of what is on its way; else absent. It is taken back
	// if the payout fails.
	Transfer bool `json:"transfer,omitempty"`
}

// A bookEntry is what is written into the books: its debits are equal to its credits.
type bookEntry struct {
	Date      businessDate    `json:"date" is:"date"`   // Its date in the books.
	Narration string          `json:"narration"`        // Its text, with the sync key in it.
	Currency  string          `json:"currency"`         // The currency.
	Status    bookEntryStatus `json:"status,omitempty"` // Xero: what it becomes.
	Series    string          `json:"series,omitempty"` // Fortnox: the series.
	Year      int64           `json:"year,omitempty"`   // Fortnox: the id of the financial year.
	Lines     []entryLine     `json:"lines"`            // The lines.
}

// A bookExportState is how far an export is. `waiting`: its day is not closed, or it is about to be looked at.
// `held`: something is missing, see `reason`. `ready`: nothing was written, and it is sent again. `sending`: it
// was given away. `unknown`: the answer was lost, and the entry is looked for in the books. `posted`: it is in
// the books, at Xero as a draft if so chosen. `failed`: the books refuse it. `reversed`: it counts in the books
// no more.
type bookExportState string

const (
	exportWaiting  = "waiting"  // its day is not over, or it is about to be worked on
	exportHeld     = "held"     // something is missing, see its reason
	exportReady    = "ready"    // nothing is missing
	exportSending  = "sending"  // its entry is being sent; there is no answer yet
	exportUnknown  = "unknown"  // the answer was lost: it is looked for in the books
	exportPosted   = "posted"   // its entry is in the books
	exportFailed   = "failed"   // the books refuse it
	exportReversed = "reversed" // its entry was reversed, or was voided in the books
)

var exportStates = declareWords[bookExportState](exportWaiting, exportHeld, exportReady, exportSending, exportUnknown,
	exportPosted, exportFailed, exportReversed)

// Why an export is held (contract, section 12).
const (
	heldUnmapped       = "unmapped"        // no account is named for something
	heldUnknownPayment = "unknown_payment" // no clearing account is named for a way of paying
	heldCurrency       = "currency"        // the books have another one
	heldLocked         = "locked_period"
	heldNoYear         = "no_financial_year"
	heldNoSeries       = "no_series" // no voucher series of that year that takes manual entries
	heldUnusable       = "account_unusable"
	heldReconnect      = "needs_reconnect"
	heldEdited         = "edited_in_books"

	// what only somebody there can mend: Detail has the product's own words
	heldNoLicense = "no_license"
	heldNoRight   = "no_right"
	heldRefused   = "refused" // for any other reason that the product finds in the entry

	// besides payoutHolds
	heldNotPosted = "day_not_posted" // a day that what is in the payout was booked on is not in the books yet
	heldNoMethod  = "no_method"      // something is of no method, and the methods have different clearing accounts
)

// reasonDisconnected is the reason of an export that was sending or unknown when its connection was ended. Once the
// company is connected again it is looked for, and sent again only if somebody has asked for it since.
const reasonDisconnected = "disconnected"

// heldReasons are why an export can be held.
var heldReasons = []string{heldUnmapped, heldUnknownPayment, heldCurrency, heldLocked, heldNoYear, heldNoSeries,
	heldUnusable, heldReconnect, heldEdited, heldNoLicense, heldNoRight, heldRefused}

// dailyReasons are those that are looked at only once a day, or when somebody asks. lackReasons are those that are of
// the whole company, and can be the answer to any request.
var (
	lackReasons  = []string{heldNoLicense, heldNoRight}
	dailyReasons = append([]string{heldRefused}, lackReasons...)
)

// A bookPart is a part of a payout that has an entry of its own.
type bookPart string

const (
	partPayout = "payout"
	partUndo   = "undo" // takes back what was booked as on its way of a payout that failed then
)

var _ = declareWords[bookPart](partPayout, partUndo)

// An exportSubject is what an entry is of: a business day in a currency, or a part of a payout.
type exportSubject struct {
	Date     businessDate `json:"date" is:"date"`     // The business day; of a payout the day on which it arrives.
	Currency string       `json:"currency"`           // The currency.
	PayoutID *string      `json:"payout_id" is:"pot"` // The payout, or null: it is of a day.

	// Of a payout: `payout` is its entry, `undo` takes back what that has booked as on its way, since the payout has
	// failed. Or null: it is of a day.
	Part *bookPart `json:"part"`
}

// A bookExport is the entry of a business day or of a payout, or one that reverses it.
type bookExport struct {
	ID           string `json:"id" is:"exp"`            // The id of the export.
	ConnectionID string `json:"connection_id" is:"bkc"` // The connection.
	AccountID    string `json:"account_id" is:"acct"`   // The account.
	exportSubject

	// 1 for the first entry of the day, or of the part of the payout.
	Revision int64 `json:"revision" least:"1"`

	Reverses  *string         `json:"reverses" is:"exp"`    // The export whose entry this one reverses, or null: none.
	EntryDate businessDate    `json:"entry_date" is:"date"` // The date in the books.
	State     bookExportState `json:"state"`                // How far it is.

	// Why it is `held`, or null: it is not. `unmapped`, `unknown_payment`, `currency`, `locked_period`,
	// `no_financial_year`, `no_series`, `account_unusable`, `no_license`, `no_right`, `refused` (of these three
	// `detail` has the books' own words, and it is looked at once a day), `needs_reconnect`, `edited_in_books`,
	// `unbalanced`; of a payout also the `reason` of that, `day_not_posted` (a day on which what is in it counts is not
	// in the books yet) or `no_method` (something in it is of no payment, and the ways of paying have different
	// clearing accounts); or a code of the books, why it has failed. `disconnected`: it was `sending` or `unknown` when
	// its connection was ended; if it is not found in the books once the company is connected again, it is dropped,
	// unless somebody has asked for it since. It is kept while the entry is sent again, until there is an answer.
	Reason *string `json:"reason"`

	Detail  *string `json:"detail"`   // The same for people, or null: nothing is to be said.
	SyncKey string  `json:"sync_key"` // The text by which its entry is found in the books.

	// The entry as it was sent last, or null: it was not sent.
	Entry json.RawMessage `json:"entry" is:"bookEntry"`

	Request *string `json:"-"`        // exactly what was sent last
	EntryID *string `json:"entry_id"` // Its id in the books, or null: it is not known to be there.

	// Its page in Xero, for people who are signed in there, or null: it has no `entry_id`, or is in Fortnox, whose
	// pages have no address that its API tells.
	EntryURL *string `json:"entry_url" is:"uri"`

	Attempts   int64 `json:"attempts"`    // How often it was sent.
	Changes    int64 `json:"-"`           // grows with each change
	DueAt      stamp `json:"due_at"`      // When it is looked at next, or null: not any more.
	HeldAt     stamp `json:"-"`           // since when it is held, has failed, or lacks something while unknown
	CreatedAt  stamp `json:"created_at"`  // When it was asked for, or came to be due.
	SentAt     stamp `json:"sent_at"`     // When it was sent last, or null: it was not.
	PostedAt   stamp `json:"posted_at"`   // When it was seen in the books, or null: it was not.
	ReversedAt stamp `json:"reversed_at"` // When it was reversed, or null: it was not.
}

// A bookAccount is an account of the books' own chart.
type bookAccount struct {
	Code   string `json:"code"`   // Its code.
	Name   string `json:"name"`   // Its name.
	Type   string `json:"type"`   // Its type as Xero names it; empty at Fortnox.
	Tax    string `json:"tax"`    // The TaxType or VAT code that it has there; empty: none.
	Usable bool   `json:"usable"` // Whether entries can name it.

	// Why entries can't name it: `archived`, `bank`, `receivable`, `payable` or `system`; empty: they can.
	Why string `json:"why"`
}

// A bookTaxRate is a rate of tax that the books know.
type bookTaxRate struct {
	Code   string `json:"code"`           // The TaxType, as `OUTPUT2`.
	Name   string `json:"name"`           // Its name.
	Rate   int64  `json:"rate" least:"-"` // In hundredths of a percent.
	Usable bool   `json:"usable"`         // Whether it is active, and for revenue.
}

// A bookChart is what the books report about themselves (accounts, rates, locked days), for entries of one date.
type bookChart struct {
	Currency    string
	LockedUntil businessDate // the last day that is locked; "": none
	Accounts    []bookAccount
	TaxRates    []bookTaxRate // Xero
	CostCenters []string      // Xero: options of tracking that are active, "Region:North"; nil: they were not read
	Year        int64         // Fortnox: the id of the financial year of the date; 0: there is none
	YearFrom    businessDate  // Fortnox: its first day
	YearTo      businessDate  // Fortnox: its last day
	Series      []string      // Fortnox: those that are there in that year and take manual entries
}

// A bookedEntry is an entry as the books have it now.
type bookedEntry struct {
	ID      string
	Deleted bool // voided or deleted by somebody
	Draft   bool
	Entry   bookEntry // Text, VAT and Rate of its lines are not compared
}

// A ledgerSession is what a call to the books needs: the connection, and a valid access token.
type ledgerSession struct {
	connection *bookConnection
	access     string
	linkID     string

	// wait blocks until another request may be made for the company, see books.waitTurn, or ctx ends.
	wait func(ctx context.Context) error // nil: nothing has to be waited for
}

// pause is called before each request of a session.
func (s *ledgerSession) pause(ctx context.Context) error {
	if s.wait == nil {
		return nil
	}
	return s.wait(ctx)
}

// appSecrets are the client id and the client secret of an application.
type appSecrets struct{ clientID, clientSecret string }

// A ledger is the client of a product. Its methods keep no state and do not retry. Requests time out as outbound's
// do. Errors: an *outboundError; of exchange and renew, vendorOwnerGone says that the owner has to agree again, and
// vendorDenied that the application is refused (RFC 6749, section 5.2).
type ledger interface {
	// authorizeURL returns the address to which the owner is sent (RFC 6749, section 4.1.1, and RFC 7636).
	authorizeURL(app appSecrets, redirectURL, state, challenge string) string

	// exchange swaps the code that came back for tokens.
	exchange(ctx context.Context, app appSecrets, redirectURL, code, verifier string) (*bookTokens, error)

	// organisations returns the companies that were just agreed to.
	organisations(ctx context.Context, tokens *bookTokens) ([]bookCompany, error)

	// renew makes new tokens out of those of a connection: Xero by its refresh token, Fortnox by client
	// credentials and the tenant's id.
	renew(ctx context.Context, app appSecrets, c *bookConnection, old *bookTokens) (*bookTokens, error)

	// disconnect ends the access that was granted, if the product can do that for a single company.
	disconnect(ctx context.Context, s *ledgerSession) error

	// chart reads what the books report about themselves, for entries of a date.
	chart(ctx context.Context, s *ledgerSession, date businessDate) (*bookChart, error)

	// encode returns the body of the request that writes an entry. It is a pure function.
	encode(entry *bookEntry) string

	// post writes an entry. key is its idempotency key, where the product has those. It returns the id of the
	// entry in the books. Unless the error is final, it is unknown whether the entry was written.
	post(ctx context.Context, s *ledgerSession, entry *bookEntry, body, key string) (id string, err error)

	// find looks for an entry whose narration has a sync key, among those of its date and of the days
	// around it; nil: there is none.
	find(ctx context.Context, s *ledgerSession, entry *bookEntry, syncKey string) (*bookedEntry, error)

	// read reads an entry; nil: there is none.
	read(ctx context.Context, s *ledgerSession, id string) (*bookedEntry, error)

	// withdraw deletes a draft. Only called where read says that it is one.
	withdraw(ctx context.Context, s *ledgerSession, id string) error
}

// booksAppTable describes the table books_apps.
var booksAppTable = newTable("books_apps", "a", func(a *booksApp) []field {
	return []field{{"product", &a.Product}, {"client_id", &a.ClientID}, {"secret", &a.Sealed},
		{"changed_at", &a.ChangedAt}}
})

// booksApp returns the application of a product, or errNotFound.
func (q *queries) booksApp(product string) (*booksApp, error) {
	return booksAppTable.one(q, `WHERE a.product = ?`, product)
}

// booksApps returns the applications that are set, in the order of bookProducts.
func (q *queries) booksApps() ([]booksApp, error) {
	return booksAppTable.all(q, `ORDER BY a.product DESC`)
}

// saveBooksApp writes the application of a product.
func (t *tx) saveBooksApp(a *booksApp) {
	t.exec(`INSERT INTO books_apps (product, client_id, secret, changed_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (product) DO UPDATE SET client_id = excluded.client_id, secret = excluded.secret,
		changed_at = excluded.changed_at`, a.Product, a.ClientID, a.Sealed, t.now)
}

// A bookAuthorization records that somebody was sent to a product's pages to agree to a connection.
type bookAuthorization struct {
	StateHash   []byte
	AccountID   string
	Product     string
	Sealed      []byte // the verifier of PKCE, see sealedBooksVerifier
	RedirectURL string
	MadeBy      string
	CreatedAt   stamp
	ExpiresAt   stamp
}

// bookAuthorizationTable describes the table books_authorizations.
var bookAuthorizationTable = newTable("books_authorizations", "a", func(a *bookAuthorization) []field {
	return []field{{"state_hash", &a.StateHash}, {"account_id", &a.AccountID}, {"product", &a.Product},
		{"verifier", &a.Sealed}, {"redirect_url", &a.RedirectURL}, {"made_by", &a.MadeBy},
		{"created_at", &a.CreatedAt}, {"expires_at", &a.ExpiresAt}}
})

// bookAuthorization returns the authorization of a product with that hash. Errors: errNotFound, also for one that
// has expired at now.
func (q *queries) bookAuthorization(product string, hash []byte, now stamp) (*bookAuthorization, error) {
	return bookAuthorizationTable.one(q, `WHERE a.state_hash = ? AND a.product = ? AND a.expires_at > ?`,
		hash, product, now)
}

// takeBookAuthorization returns the authorization of a product with that hash, and removes it, so that it
// can be used once. Errors: errNotFound, also for one that has expired.
func (t *tx) takeBookAuthorization(product string, hash []byte) (*bookAuthorization, error) {
	a, err := t.bookAuthorization(product, hash, t.now)
	if err != nil {
		return nil, err // one that has expired is removed by a chore
	}
	t.exec(`DELETE FROM books_authorizations WHERE state_hash = ?`, hash)
	return a, nil
}

// keepBookAuthorizations removes all but the newest authorizations of an account.
func (t *tx) keepBookAuthorizations(accountID string, newest int) {
	t.exec(`DELETE FROM books_authorizations WHERE state_hash IN (SELECT state_hash
		FROM books_authorizations WHERE account_id = ? ORDER BY created_at DESC, state_hash LIMIT -1 OFFSET ?)`,
		accountID, newest)
}

// removeBookAuthorizations removes up to limit authorizations that have expired, and returns how many.
func (t *tx) removeBookAuthorizations(limit int64) int64 {
	return t.exec(`DELETE FROM books_authorizations WHERE state_hash IN (SELECT state_hash
		FROM books_authorizations WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`, t.now, limit)
}

// bookConnectionTable describes the table books_connections.
var bookConnectionTable = newTable("books_connections", "b", func(c *bookConnection) []field {
	return append(fieldsOf(c.members()), []field{{"id", &c.ID}, {"account_id", &c.AccountID}, {"product", &c.Product},
		{"organisation_id", &c.OrganisationID}, {"organisation", &c.Organisation},
		{"choices", jsonColumn[[]bookCompany]{&c.Choices}}, {"currency", &c.Currency}, {"secrets", &c.Sealed},
		{"tokens", &c.Tokens}, {"refreshing_until", &c.RefreshingUntil}, {"needs_reconnect_at", &c.NeedsReconnectAt},
		{"failing_since", &c.FailingSince}, {"mapping", jsonColumn[*bookMapping]{&c.Mapping}},
		{"mapping_at", &c.MappingAt}, {"created_at", &c.CreatedAt}, {"removed_at", &c.RemovedAt},
		{`(SELECT json_group_array(json_object('before', w.before_date,
			'outside', json(iif(w.outside, 'true', 'false')), 'tests', json(iif(w.tests, 'true', 'false')))
			ORDER BY w.before_date)
			FROM books_switches w WHERE w.connection_id = b.id)`, jsonColumn[[]formerSwitches]{&c.Former}}}...)
})

// bookConnection returns a connection of an owner, in use or removed, or errBooksConnection.
func (q *queries) bookConnection(o owner, id string) (*bookConnection, error) {
	return bookConnectionTable.byID(q, o, id, errBooksConnection)
}

// usedBookConnection is bookConnection for one that is in use.
func (q *queries) usedBookConnection(o owner, id string) (*bookConnection, error) {
	c, err := q.bookConnection(o, id)
	if err == nil && !c.RemovedAt.IsZero() {
		err = errBooksConnection
	}
	return c, err
}

// bookConnections returns the connections of an owner that are in use, newest first. An account has at most
// one for each product.
func (q *queries) bookConnections(o owner) ([]*bookConnection, error) {
	query, args := o.narrow(bookConnectionTable.query+`WHERE b.removed_at IS NULL`, `b.account_id`)
	return collectReadable(q, query+` ORDER BY b.id DESC`, args, bookConnectionTable.destNew)
}

// connectionWithBooks returns the connection of an account with a product that is in use, nil: there is none.
func (q *queries) connectionWithBooks(accountID, product string) (*bookConnection, error) {
	return orNil(bookConnectionTable.one(q, `WHERE b.account_id = ? AND b.product = ? AND b.removed_at IS NULL`,
		accountID, product))
}

// connectionWithOrganisation returns the connection of an account with a company, in use or removed; nil:
// there never was one.
func (q *queries) connectionWithOrganisation(accountID, product, organisationID string) (*bookConnection, error) {
	return orNil(bookConnectionTable.one(q, `WHERE b.account_id = ? AND b.product = ? AND b.organisation_id = ?`,
		accountID, product, organisationID))
}

// sharesOrganisation reports whether another account is connected with the company of a connection, too.
func (q *queries) sharesOrganisation(c *bookConnection) (shared bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM books_connections
		WHERE product = ? AND organisation_id = ? AND id <> ? AND removed_at IS NULL)`,
		c.Product, c.OrganisationID, c.ID)
}

// addBookConnection inserts a connection.
func (t *tx) addBookConnection(c *bookConnection) {
	c.CreatedAt = t.now
	bookConnectionTable.insert(t, c)
}

// saveBookConnection writes what can change of a connection, but for its tokens.
func (t *tx) saveBookConnection(c *bookConnection) {
	bookConnectionTable.update(t, c, `organisation_id organisation choices currency
		needs_reconnect_at failing_since mapping mapping_at send_from payouts_from status series outside tests
		removed_at`,
		` WHERE id = ?`, c.ID)
}

// saveFormerSwitches replaces the rows of a connection about a business day and later ones by those in c.
func (t *tx) saveFormerSwitches(c *bookConnection, from businessDate) {
	t.exec(`DELETE FROM books_switches WHERE connection_id = ? AND before_date >= ?`, c.ID, from)
	for _, w := range c.Former {
		if w.Before >= from {
			t.exec(`INSERT INTO books_switches (connection_id, before_date, outside, tests) VALUES (?, ?, ?, ?)`,
				c.ID, w.Before, w.Outside, w.Tests)
		}
	}
}

// removeBookConnection deletes the row of a connection that has no company, and so no exports.
func (t *tx) removeBookConnection(id string) {
	t.exec(`DELETE FROM books_switches WHERE connection_id = ?`, id)
	t.exec(`DELETE FROM books_connections WHERE id = ? AND organisation_id IS NULL`, id)
}

// saveBookTokens writes new tokens of a connection, nil to have none, unless they were replaced meanwhile, and
// releases the claim on replacing them. The worker replaces those that lapse once half of their life has passed, and up
// to a day later. Errors: errChanged.
func (t *tx) saveBookTokens(c *bookConnection, sealed []byte) error {
	due := stamp{}
	if life := c.product().tokenLife; life > 0 && sealed != nil { // not all connections' on the same minute
		due = t.now.after(life/2 + rand.N(24*time.Hour))
	}
	if t.exec(`UPDATE books_connections SET secrets = ?, tokens = tokens + 1, refreshing_until = NULL,
		renewal_lost_at = NULL, renew_at = ? WHERE id = ? AND tokens = ?`, sealed, due, c.ID, c.Tokens) == 0 {
		return errChanged
	}
	c.Sealed, c.Tokens, c.RefreshingUntil = sealed, c.Tokens+1, stamp{}
	return nil
}

// renewalLostAt returns since when attempts to replace the tokens of a connection have had no usable answer, or
// errNotFound.
func (q *queries) renewalLostAt(id string) (lost stamp, err error) {
	return oneValue[stamp](q, `SELECT renewal_lost_at FROM books_connections
		WHERE id = ? AND renewal_lost_at IS NOT NULL`, id)
}

// postponeRenewal writes when the worker retries replacing tokens that are due, or that it could not replace.
func (t *tx) postponeRenewal(id string, due stamp) {
	t.exec(`UPDATE books_connections SET renew_at = ?
		WHERE id = ? AND (renewal_lost_at IS NOT NULL OR renew_at <= ?)`, due, id, t.now)
}

// endRenewal releases the claim on replacing the tokens of a connection, which nobody tries again.
func (t *tx) endRenewal(id string) {
	t.exec(`UPDATE books_connections SET refreshing_until = NULL, renewal_lost_at = NULL, renew_at = NULL
		WHERE id = ?`, id)
}

// dueRenewals returns up to limit connections whose tokens are to be replaced at now, those that wait longest first.
func (q *queries) dueRenewals(now stamp, limit int) (ids []string, err error) {
	return q.texts(`SELECT id FROM books_connections WHERE renew_at <= ? ORDER BY renew_at LIMIT ?`, now, limit)
}

// claimBookTokens notes that somebody is replacing the tokens of a connection until a time, unless somebody else
// is or they were replaced. It reports whether the caller has the claim. If that has ended without an answer, the
// worker tries again. A stored claim that lasts longer than until was made before the clock was set back, and does not
// count.
func (t *tx) claimBookTokens(id string, tokens int64, until stamp) (mine bool) {
	return t.exec(`UPDATE books_connections SET refreshing_until = ?1, renew_at = ?1,
			renewal_lost_at = coalesce(renewal_lost_at, ?4) WHERE id = ?2 AND tokens = ?3
		AND (refreshing_until IS NULL OR refreshing_until <= ?4 OR refreshing_until > ?1)`,
		until, id, tokens, t.now) > 0
}

// dropTokenClaim releases a claim on replacing tokens that has not led to new ones.
func (t *tx) dropTokenClaim(id string, tokens int64) {
	t.exec(`UPDATE books_connections SET refreshing_until = NULL WHERE id = ? AND tokens = ?`, id, tokens)
}

// setBooksFailing notes since when a connection has given no usable answers; the zero stamp: it gives them. It
// writes nothing if that does not change whether the connection is failing.
func (t *tx) setBooksFailing(id string, since stamp) {
	t.exec(`UPDATE books_connections SET failing_since = ?1
		WHERE id = ?2 AND (failing_since IS NULL) IS NOT (?1 IS NULL)`, since, id)
}

// exportTable describes the table books_exports.
var exportTable = newTable("books_exports", "x", func(x *bookExport) []field {
	return []field{{"id", &x.ID}, {"connection_id", &x.ConnectionID}, {"account_id", &x.AccountID}, {"date", &x.Date},
		{"currency", &x.Currency}, {"revision", &x.Revision}, {"reverses", &x.Reverses}, {"entry_date", &x.EntryDate},
		{"state", &x.State}, {"reason", &x.Reason}, {"detail", &x.Detail}, {"sync_key", &x.SyncKey},
		{"entry", jsonColumn[json.RawMessage]{&x.Entry}}, {"request", &x.Request}, {"entry_id", &x.EntryID},
		{entryURL(), &x.EntryURL},
		{"attempts", &x.Attempts}, {"changes", &x.Changes}, {"due_at", &x.DueAt},
		{"held_at", &x.HeldAt}, {"created_at", &x.CreatedAt}, {"sent_at", &x.SentAt}, {"posted_at", &x.PostedAt},
		{"reversed_at", &x.ReversedAt}, {"payout_id", &x.PayoutID}, {"part", &x.Part}}
})

// entryURL returns the SQL of the page of an export's entry for people.
func entryURL() string {
	cases := ""
	for _, p := range bookProducts {
		if p.entryPage != "" {
			cases += ` WHEN '` + p.name + `' THEN '` + p.entryPage + `' || x.entry_id`
		}
	}
	return `(SELECT CASE c.product` + cases + ` END FROM books_connections c WHERE c.id = x.connection_id)`
}

// bookExport returns an export of an owner, or errExport.
func (q *queries) bookExport(o owner, id string) (*bookExport, error) {
	return exportTable.byID(q, o, id, errExport)
}

// lastExport returns the export of a connection and subject with the highest revision; nil: there is none.
func (q *queries) lastExport(connectionID string, of exportSubject) (*bookExport, error) {
	where, args := of.exports(connectionID)
	return orNil(exportTable.one(q, where+` ORDER BY x.revision DESC LIMIT 1`, args...))
}

// lastReversal returns the last reversing export of the same subject before another one; nil: there is none.
func (q *queries) lastReversal(of *bookExport) (*bookExport, error) {
	where, args := of.exports(of.ConnectionID)
	return orNil(exportTable.one(q, where+` AND x.revision < ? AND x.reverses IS NOT NULL
		ORDER BY x.revision DESC LIMIT 1`, append(args, of.Revision)...))
}

// exports returns the condition of all exports of a subject by a connection. Those of a day are of no payout.
func (s *exportSubject) exports(connectionID string) (where string, args []any) {
	if s.PayoutID != nil {
		return `WHERE x.connection_id = ? AND x.payout_id = ? AND x.part = ?`, []any{connectionID, s.PayoutID, s.Part}
	}
	return `WHERE x.connection_id = ? AND x.date = ? AND x.currency = ? AND x.payout_id IS NULL`,
		[]any{connectionID, s.Date, s.Currency}
}

// An exportFilter selects exports of an owner; a connectionID or state that is empty selects all.
type exportFilter struct {
	owner        owner
	connectionID string
	state        string
}

// bookExports returns a page of exports, newest first, starting after the id before ("" for the newest). An
// account has only a few for each business day and product, which bounds how many rows are read.
func (q *queries) bookExports(f exportFilter, before string, limit int) (listPage[*bookExport], error) {
	list := exportTable.whereOwner(f.owner)
	if f.connectionID != "" {
		list.filter(` AND x.connection_id = ?`, f.connectionID)
	}
	if f.state != "" {
		list.filter(` AND x.state = ?`, f.state)
	}
	return exportTable.page(q, list, before, limit)
}

// saveExport writes what can change of an export, unless it has changed since it was read. Errors: errChanged.
func (t *tx) saveExport(x *bookExport) error {
	if exportTable.update(t, x, `entry_date state reason detail entry request entry_id attempts
		due_at held_at sent_at posted_at reversed_at`, `, changes = changes + 1 WHERE id = ? AND changes = ?`,
		x.ID, x.Changes) == 0 {
		return errChanged
	}
	x.Changes++
	return nil
}

// removeExport deletes an export of which nothing is in the books, unless it has changed since it was read.
func (t *tx) removeExport(x *bookExport) {
	t.exec(`DELETE FROM books_exports WHERE id = ? AND changes = ? AND entry_id IS NULL
		AND state IN ('waiting', 'held', 'ready')`, x.ID, x.Changes)
}

// dropUnsentExports deletes the exports of a connection of which nothing is in the books, of payouts or of days, before
// a date, or all if that is nil, and returns how many. What may be there, and what is to be reversed, stays.
func (t *tx) dropUnsentExports(connectionID string, payouts bool, before *businessDate) int64 {
	return t.exec(`DELETE FROM books_exports WHERE connection_id = ?1 AND (?2 IS NULL OR date < ?2)
		AND state IN ('waiting', 'held', 'ready', 'failed') AND entry_id IS NULL AND reverses IS NULL
		AND (payout_id IS NOT NULL) = ?3 AND part IS NOT 'undo'`, connectionID, before, payouts)
}

// postponeExports makes sure that no export of a connection is due before a time.
func (t *tx) postponeExports(connectionID string, until stamp) {
	t.exec(`UPDATE books_exports SET due_at = ?1, changes = changes + 1
		WHERE connection_id = ?2 AND due_at < ?1`, until, connectionID)
}

// pollAllSent makes every entry whose answer is not known due, to be looked for in the books.
func (t *tx) pollAllSent() error {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE state IN ('sending', 'unknown') AND due_at IS NOT NULL`, t.now)
	return nil
}

// postponeExport sets when an export that waits is due.
func (t *tx) postponeExport(id string, at stamp) {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE id = ? AND due_at IS NOT NULL`, at, id)
}

// wakeExports makes all exports of a connection that are not in the books due now.
func (t *tx) wakeExports(connectionID string) {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE connection_id = ? AND state IN ('waiting', 'held', 'ready', 'sending', 'unknown')`, t.now, connectionID)
}

// wakeHeldFor makes the exports of a connection due now that are held for a reason.
func (t *tx) wakeHeldFor(connectionID, reason string) {
	t.exec(`UPDATE books_exports SET due_at = ?, changes = changes + 1
		WHERE connection_id = ? AND state = 'held' AND reason = ?`, t.now, connectionID, reason)
}

// pauseExports makes sure that no export of a connection becomes due any more, and notes reasonDisconnected.
func (t *tx) pauseExports(connectionID string) {
	t.exec(`UPDATE books_exports SET due_at = NULL, changes = changes + 1,
		reason = CASE WHEN state IN ('sending', 'unknown') THEN ?2 ELSE reason END
		WHERE connection_id = ?1 AND due_at IS NOT NULL`, connectionID, reasonDisconnected)
}

// dueConnections returns the connections that have an export that is due at now, those that wait longest
// first, without what was set aside. Connections of closed accounts wait until these are opened again.
func (q *queries) dueConnections(now stamp, limit int) (ids []string, err error) {
	return q.texts(`SELECT id FROM (SELECT b.id, (SELECT min(x.due_at) FROM books_exports x
			WHERE x.connection_id = b.id AND x.due_at IS NOT NULL
			AND x.id NOT IN (SELECT value FROM json_each(?3))) AS due`+fromUsedBooks+`)
		WHERE due <= ?1 AND id NOT IN (SELECT value FROM json_each(?3)) ORDER BY due LIMIT ?2`,
		now, limit, q.faults.leftOutIDs())
}

// dueExports returns up to limit exports of a connection that are due at now and were not set aside, the earliest days
// first, and payouts, which wait for days, after all of these.
func (q *queries) dueExports(connectionID string, now stamp, limit int) (ids []string, err error) {
	return q.texts(`SELECT x.id FROM books_exports x WHERE x.connection_id = ? AND x.due_at <= ?
		AND x.id NOT IN (SELECT value FROM json_each(?))
		ORDER BY x.payout_id IS NOT NULL, x.date, x.currency, x.revision LIMIT ?`,
		connectionID, now, q.faults.leftOutIDs(), limit)
}

// unsentDays returns up to limit business days, from one date up to but not including another, the earliest first,
// for which a connection has something to send (bookConnection.wants) but no export. It reads all days of the account
// in between.
func (q *queries) unsentDays(
	c *bookConnection, from, before businessDate, limit int,
) (days []revenueDayKey, err error) {
	err = q.each(`SELECT d.date, d.currency, s.method, s.test, s.what, s.rate, s.group_name, s.gross, s.vat
		FROM revenue_days d JOIN revenue_sums s
			ON s.account_id = d.account_id AND s.date = d.date AND s.currency = d.currency
		WHERE d.account_id = ? AND d.date >= ? AND d.date < ?
		AND NOT EXISTS (SELECT 1 FROM books_exports x
			WHERE x.connection_id = ? AND x.date = d.date AND x.currency = d.currency AND x.payout_id IS NULL)
		ORDER BY d.date, d.currency`, []any{c.AccountID, from, before, c.ID},
		func(scan func(...any) error) error {
			var day revenueDayKey
			var sum revenueSum
			err := scan(append([]any{&day.Date, &day.Currency}, sum.dest()...)...)
			if len(days) < limit && c.wants(day.Date, &sum) && !slices.Contains(days, day) {
				days = append(days, day)
			}
			return err
		})
	return days, err
}

// sendingConnections returns the connections that send days or payouts automatically and can be read, of accounts that
// are open.
func (q *queries) sendingConnections() ([]*bookConnection, error) {
	return collectReadable(q, `SELECT `+bookConnectionTable.columns+fromUsedBooks+`
		AND (b.send_from IS NOT NULL OR b.payouts_from IS NOT NULL) AND b.organisation_id IS NOT NULL`, nil,
		bookConnectionTable.destNew)
}

// A booksTotals counts what is under way, for the status command and the metrics: only connections in use of
// accounts that are open, and their exports.
type booksTotals struct {
	Connections int `json:"connections"`
	NeedOwner   int `json:"need_reconnect"` // connections that their owner has to connect again
	Failing     int `json:"failing"`        // connections that give no usable answers
	Held        int `json:"held"`           // exports
	HeldLong    int `json:"held_long"`      // exports that have been held for heldTooLong
	Unknown     int `json:"unknown"`        // exports whose answer was lost
	Failed      int `json:"failed"`         // exports that the books refuse
	Refused     int `json:"refused"`        // exports that only somebody there can have taken, see dailyReasons
	Waiting     int `json:"waiting"`        // exports that are to be sent
}

// The rows that status counts: connections in use, of accounts that are open, and exports of these.
const (
	fromUsedBooks = ` FROM books_connections b JOIN accounts a ON a.id = b.account_id
		WHERE b.removed_at IS NULL AND a.closed_at IS NULL`
	fromWaitingExports = ` FROM books_exports x CROSS JOIN books_connections b ON b.id = x.connection_id
		CROSS JOIN accounts a ON a.id = b.account_id WHERE b.removed_at IS NULL AND a.closed_at IS NULL`

	// of dailyReasons; one whose answer was lost is held as nothing
	isRefused = ` AND x.held_at IS NOT NULL AND (x.state = 'unknown' AND x.due_at IS NOT NULL
		OR x.state = 'held' AND x.reason IN ('no_license', 'no_right', 'refused'))`
)

// booksTotals counts what is under way, up to maxCounted of each kind. Exports that have been held since
// heldBefore or longer count as held for too long, unless nothing is waited for (heldCurrency).
func (q *queries) booksTotals(heldBefore stamp) (n booksTotals, err error) {
	count := func(from string) string { return `(SELECT count(*) FROM (SELECT 1` + from + ` LIMIT ?2))` }
	err = q.one(`SELECT `+strings.Join([]string{
		count(fromUsedBooks),
		count(fromUsedBooks + ` AND b.needs_reconnect_at IS NOT NULL`),
		count(fromUsedBooks + ` AND b.failing_since IS NOT NULL`),
		count(fromWaitingExports + ` AND x.held_at IS NOT NULL AND x.state = 'held'`),
		count(fromWaitingExports + ` AND x.held_at <= ?1 AND x.state = 'held' AND x.due_at IS NOT NULL`),
		count(fromWaitingExports + ` AND x.due_at IS NOT NULL AND x.state = 'unknown'`),
		count(fromWaitingExports + ` AND x.held_at IS NOT NULL AND x.state = 'failed'`),
		count(fromWaitingExports + isRefused),
		count(fromWaitingExports + ` AND x.due_at IS NOT NULL AND x.state IN ('waiting', 'ready', 'sending')`)}, ", "),
		[]any{heldBefore, maxCounted},
		&n.Connections, &n.NeedOwner, &n.Failing, &n.Held, &n.HeldLong, &n.Unknown, &n.Failed, &n.Refused, &n.Waiting)
	return n, err
}

// booksTroubles are the troubles of what booksTotals counts.
var booksTroubles = []trouble{
	{kind: "books_failed", urgency: sameDay, money: true, one: "$n entry", many: "$n entries",
		advice: " failed since $day: 'widgetd books export list -state failed'",
		query: `SELECT x.held_at AS since, x.id` + fromWaitingExports + ` AND x.held_at IS NOT NULL
			AND x.state = 'failed'`},
	{kind: "books_refused", urgency: sameDay, money: true, one: "$n entry is", many: "$n entries are",
		advice: " refused by the books since $day ($id): 'widgetd books export list -state held'",
		query: `SELECT x.held_at AS since, substr(coalesce(x.reason || ': ', '') || x.detail, 1, 300) AS id` +
			fromWaitingExports + isRefused},
	{kind: "books_held", urgency: sameDay, money: true, one: "$n entry", many: "$n entries",
		advice: " held since $day ($id): 'widgetd books export list -state held'",
		query: `SELECT x.held_at AS since, x.reason AS id` + fromWaitingExports + ` AND x.held_at <= ?1
			AND x.state = 'held'
			AND x.due_at IS NOT NULL AND x.reason NOT IN ('no_license', 'no_right', 'refused')`},
	{kind: "books_needs_reconnect", urgency: sameDay, money: true, one: "$n connection with books waits for its owner",
		many: "$n connections with books wait for their owners", advice: " since $day: 'widgetd books list'",
		query: `SELECT b.needs_reconnect_at AS since, b.id` + fromUsedBooks + ` AND b.needs_reconnect_at IS NOT NULL`},
	{kind: "books_silent", urgency: sameDay, money: true, one: "$n connection with books gets no usable answer",
		many: "$n connections with books get no usable answers", advice: " since $day: 'widgetd books list'",
		span: -time.Hour,
		query: `SELECT b.failing_since AS since, b.id` + fromUsedBooks + ` AND b.needs_reconnect_at IS NULL
			AND b.failing_since <= ?2`},
}

// openBooks returns the connections in use of all accounts that are open, oldest first.
func (q *queries) openBooks() ([]*bookConnection, error) {
	return collectReadable(q, `SELECT `+bookConnectionTable.columns+fromUsedBooks+` ORDER BY b.id`, nil,
		bookConnectionTable.destNew)
}

// payoutsToSend returns up to limit payouts that a connection sends automatically (bookConnection.wantsPayout), that
// have arrived by a date, and were read or never can be, and that have no export yet. It reads all payouts of the
// account since the first day.
func (q *queries) payoutsToSend(c *bookConnection, today businessDate, limit int) (arrived []payout, err error) {
	err = q.each(payoutTable.query+`WHERE p.account_id = ? AND p.arrival_date BETWEEN ? AND ?
		AND NOT EXISTS (SELECT 1 FROM books_exports x
			WHERE x.payout_id = p.id AND x.connection_id = ? AND x.part = 'payout')
		ORDER BY p.arrival_date`, []any{c.AccountID, c.PayoutsFrom, today, c.ID},
		func(scan func(...any) error) error {
			var p payout
			err := scan(payoutTable.dest(&p)...)
			if len(arrived) < limit && !p.isUnread() && c.wantsPayout(&p) {
				arrived = append(arrived, p)
			}
			return err
		})
	return arrived, err
}

// isBooked is the SQL condition for an export (x) whose entry is in the books and takes back no other.
const isBooked = `x.state = 'posted' AND x.reverses IS NULL`

// payoutsToUndo returns up to limit payouts that have failed after a connection had booked them as on their way, which
// nothing takes back yet.
func (q *queries) payoutsToUndo(c *bookConnection, limit int) ([]payout, error) {
	return payoutTable.all(q, `WHERE p.account_id = ?1 AND p.ended_at IS NOT NULL
		AND EXISTS (SELECT 1 FROM books_exports x, json_each(x.entry, '$.lines') l
			WHERE x.payout_id = p.id AND x.connection_id = ?2 AND x.part = 'payout' AND `+isBooked+`
			AND l.value ->> 'transfer')
		AND NOT EXISTS (SELECT 1 FROM books_exports x
			WHERE x.payout_id = p.id AND x.connection_id = ?2 AND x.part = 'undo')
		LIMIT ?3`, c.AccountID, c.ID, limit)
}

// unbookedDays returns the days on which what is in a payout counts and of which a connection has no entry in the
// books; a day without a date: something counts on none, unless the payout has given that back, too. first is the
// earliest day that is there or is to be sent, perhaps after later ones; "": none is.
func (q *queries) unbookedDays(
	c *bookConnection, payoutID string,
) (days []revenueDayKey, first businessDate, err error) {
	days, err = collect(q, `SELECT DISTINCT coalesce(f.date, ''), coalesce(f.currency, '')
		FROM payout_items i JOIN payments y ON y.id = i.payment_id
		LEFT JOIN revenue_facts f ON f.order_id = y.order_id
			AND f.source = CASE i.category WHEN 'payment' THEN 'sale' WHEN 'refund' THEN `+itemRefund+`
				ELSE i.source END
		WHERE i.payout_id = ?1 AND i.category IN ('payment', 'refund', 'dispute')
		AND (f.seq IS NOT NULL OR (SELECT sum(j.amount) FROM payout_items j
			WHERE j.payment_id = i.payment_id AND j.payout_id = ?1) <> 0)
		AND NOT EXISTS (SELECT 1 FROM books_exports x WHERE x.connection_id = ?2 AND x.payout_id IS NULL
			AND `+isBooked+` AND x.date = f.date AND x.currency = f.currency)`,
		[]any{payoutID, c.ID}, func(d *revenueDayKey) []any { return []any{&d.Date, &d.Currency} })
	if err == nil && len(days) > 0 {
		first, err = oneValue[businessDate](q, `SELECT coalesce(min(x.date), '') FROM books_exports x
			WHERE x.connection_id = ? AND x.payout_id IS NULL`, c.ID)
	}
	return days, first, err
}
