package main

import (
	"cmp"
	"context"
	"encoding/json"
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
