package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// Entries of books (contract, section 12): the sums of a business day, by the rules of a mapping, as lines whose
// debits are equal to their credits. All functions but books.preview are pure. A sum that no rule covers is never
// booked on some other account: the whole entry is held instead.

const (
	// maxEntryLines bounds an entry. Neither product states how many lines it takes: Xero bounds a request
	// to 3.5 MB, and Fortnox' description allows 2,147,483,647 rows. People have to read an entry, too.
	maxEntryLines  = 1000
	maxNarration   = 200          // characters: Fortnox' Description
	maxLineText    = 100          // characters: Fortnox' TransactionInformation
	noTax          = "NONE"       // tax type of lines whose rule names none, as Xero has it
	heldUnbalanced = "unbalanced" // a mistake of ours: nothing is sent
)

// A bookIssueReason is what an entry lacks, as the reason of an export does.
type bookIssueReason string

var _ = declareWords[bookIssueReason](heldUnmapped, heldUnknownPayment, heldCurrency, heldLocked, heldNoYear,
	heldNoSeries, heldUnusable, heldUnbalanced, heldOpaque, heldDiffers, heldUnknownRow, heldCorrection, heldForeign,
	heldShared, heldUnconfirmed, heldNotPosted, heldNoMethod)

// An entryIssue is why an entry would be held.
type entryIssue struct {
	Reason bookIssueReason `json:"reason"` // The reason, as that of an export.
	Detail string          `json:"detail"` // The same for people.
}

// entryIssues are the issues of one entry.
type entryIssues []entryIssue

// add notes an issue, once.
func (all *entryIssues) add(reason bookIssueReason, detail string) {
	if is := (entryIssue{reason, detail}); !slices.Contains(*all, is) {
		*all = append(*all, is)
	}
}

// rule returns the rule of a mapping for a sum, or nil. Sales of a group have the rule that names it, else
// that of all other groups.
func (m *bookMapping) rule(s *revenueSum) *mappingRule {
	kind, byRate := bookMappingKind(ruleSales), true
	switch s.What {
	case figureDelivery, figureRefundDelivery:
		kind = ruleDelivery
	case figureTip, figureRefundTip:
		kind, byRate = ruleTip, false
	case figureDispute:
		kind, byRate = ruleDispute, false
	}
	var others *mappingRule
	for i := range m.Lines {
		r := &m.Lines[i]
		switch {
		case r.Kind != kind || byRate && (r.VATRate == nil || *r.VATRate != s.Rate):
		case kind != ruleSales || r.Group != nil && *r.Group == s.Group:
			return r
		case r.Group == nil:
			others = r
		}
	}
	return others
}

// clearing returns the rule of a mapping for a way of paying, or nil.
func (m *bookMapping) clearing(method string) *mappingRule {
	return firstWhere(m.Lines, func(r mappingRule) bool {
		return r.Kind == rulePayment && r.Method != nil && string(*r.Method) == method
	})
}

// firstWhere returns the first element of a list for which is returns true, or nil.
func firstWhere[T any](list []T, is func(T) bool) *T {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return &list[i]
	}
	return nil
}

// switchesOn returns the switches of a connection that hold for a business day.
func (c *bookConnection) switchesOn(date businessDate) (outside, tests bool) {
	if former := firstWhere(c.Former, func(w formerSwitches) bool { return date < w.Before }); former != nil {
		return former.Outside, former.Tests
	}
	return c.Outside, c.Tests
}

// wants reports whether a sum of a business day belongs in the entries of a connection. It alone decides that. A
// discount never does, since the sums of sales and delivery are already reduced by it.
func (c *bookConnection) wants(date businessDate, s *revenueSum) bool {
	outside, tests := c.switchesOn(date)
	if s.What == figureDiscount || s.Gross == 0 && s.VAT == 0 || s.Test && !tests {
		return false
	}
	return outside || !slices.Contains(outsideMethods, s.Method)
}

// wantsAny reports whether any of some sums of a business day belongs in the entries of a connection.
func (c *bookConnection) wantsAny(date businessDate, sums []revenueSum) bool {
	return slices.ContainsFunc(sums, func(s revenueSum) bool { return c.wants(date, &s) })
}

// buildEntry makes the entry of a day in one currency by the connection's mapping. If the mapping lacks a rule,
// there is no entry, and the issues say for what. If nothing is to be booked, there is neither an entry nor an
// issue. The caller sets Year. Amounts are in the minor unit.
func buildEntry(c *bookConnection, date businessDate, currency, syncKey string,
	sums []revenueSum) (*bookEntry, []entryIssue) {
	if c.Mapping == nil {
		return nil, []entryIssue{{heldUnmapped, "No mapping was confirmed yet."}}
	}
	b := entryBuilder{product: c.product(), mapping: c.Mapping}
	for _, s := range sums {
		if c.wants(date, &s) {
			b.add(&s)
		}
	}
	return b.entry(c, date, currency, narration("Revenue "+date+" "+currency, syncKey))
}

// entry returns the entry of what was added; see buildEntry.
func (b *entryBuilder) entry(
	c *bookConnection, date businessDate, currency, narration string,
) (*bookEntry, []entryIssue) {
	entry := &bookEntry{Date: date, Narration: narration, Currency: currency, Lines: b.finish()}
	if b.product.drafts {
		entry.Status = c.Status
	}
	if b.product.series {
		entry.Series = valueOr(c.Series, "")
	}
	if off := entry.imbalance(); off != 0 && len(b.issues) == 0 {
		b.issues.add(heldUnbalanced, "This is a mistake of the service: debits and credits differ by "+
			formatMoney(off, currency)+".")
	}
	if n := len(entry.Lines); n > maxEntryLines && len(b.issues) == 0 {
		b.issues.add(heldUnmapped, fmt.Sprintf("The entry has %d lines, of at most %d: name fewer groups.",
			n, maxEntryLines))
	}
	if kept := valueOr(c.Currency, currency); kept != currency && len(b.issues) > 0 {
		return nil, []entryIssue{otherCurrency(kept, currency)} // no rule would help
	}
	if len(b.issues) > 0 {
		return nil, b.issues
	}
	if len(entry.Lines) == 0 {
		return nil, nil
	}
	return entry, nil
}

// A draftLine is a line while amounts are added to it.
type draftLine struct {
	order     int   // among the lines: see the constants below
	net       int64 // credits less debits
	entryLine       // VAT is that of net
}

// The order of the lines of an entry.
const (
	placeReceived = iota
	placeSales
	placeDelivery
	placeVAT
	placeTip
	placeRefund
	placeRefundVAT
	placeGivenBack
	placeDispute
	placeDisputed
	placeFee
	placeFeesKept
	placeTransit
	placePaidOut
)

// A figurePlace says where in an entry the figures of one kind go.
type figurePlace struct {
	sign          int64 // 1: what it is for is credited, and its clearing account debited; -1: the reverse
	order         int   // of the line of what it is for
	vatOrder      int
	clearingOrder int
	prefix        string // of the text of what it is for
	paid          string // of the text of the clearing account
}

// figurePlaces are the places of all figures that are booked.
var figurePlaces = map[string]figurePlace{
	figureSale:           {1, placeSales, placeVAT, placeReceived, "", "Received by "},
	figureDelivery:       {1, placeDelivery, placeVAT, placeReceived, "", "Received by "},
	figureTip:            {1, placeTip, placeVAT, placeReceived, "", "Received by "},
	figureRefund:         {-1, placeRefund, placeRefundVAT, placeGivenBack, "refunds: ", "Refunds by "},
	figureRefundDelivery: {-1, placeRefund, placeRefundVAT, placeGivenBack, "refunds: ", "Refunds by "},
	figureRefundTip:      {-1, placeRefund, placeRefundVAT, placeGivenBack, "refunds: ", "Refunds by "},
	figureDispute:        {-1, placeDispute, placeRefundVAT, placeDisputed, "", "Disputed by "},
}

// An entryBuilder adds sums up to lines.
type entryBuilder struct {
	product *bookProduct
	mapping *bookMapping
	lines   []*draftLine
	issues  entryIssues
}

// add adds a sum to the lines of what it is for and of how it was paid.
func (b *entryBuilder) add(s *revenueSum) {
	place, known := figurePlaces[s.What]
	rule, clearing := b.mapping.rule(s), b.mapping.clearing(s.Method)
	if !known || rule == nil {
		b.issues.add(heldUnmapped, "No account is named for "+s.about()+".")
	}
	if clearing == nil {
		b.issues.add(heldUnknownPayment, "No clearing account is named for payments by "+s.Method+".")
	}
	if rule != nil && !b.product.taxInside && s.VAT != 0 && rule.Tax == nil {
		b.issues.add(heldUnmapped, "No account is named for the VAT of "+s.about()+".")
	}
	if len(b.issues) > 0 {
		return
	}
	b.addRevenue(s, place, rule)
	b.line(place.clearingOrder, clearing, place.paid+s.Method, "", 0).net -= place.sign * s.Gross
}

// addRevenue adds a sum to the line of what it is for. Unless amounts include VAT, that goes to a line of its own.
func (b *entryBuilder) addRevenue(s *revenueSum, place figurePlace, rule *mappingRule) {
	l := b.line(place.order, rule, place.prefix+rule.about(), valueOr(rule.Tax, ""), s.Rate)
	l.net += place.sign * s.Gross
	if b.product.taxInside {
		l.VAT += place.sign * s.VAT
		return
	}
	if s.VAT != 0 {
		l.net -= place.sign * s.VAT
		account := &mappingRule{Account: *rule.Tax}
		text := place.prefix + "VAT " + formatRate(s.Rate)
		b.line(place.vatOrder, account, text, "", s.Rate).net += place.sign * s.VAT
	}
}

// about returns what a rule is for: "sales 8.1 %, food".
func (r *mappingRule) about() string {
	switch r.Kind {
	case ruleDelivery:
		return "delivery " + formatRate(*r.VATRate)
	case ruleTip:
		return "tips"
	case ruleDispute:
		return "disputes"
	}
	if group := valueOr(r.Group, ""); group != "" {
		return "sales " + formatRate(*r.VATRate) + ", " + group
	}
	return "sales " + formatRate(*r.VATRate)
}

// line returns the line of a rule and a text, and adds it if there is none yet. tax is its tax type; where lines have
// one, a line without tax has noTax.
func (b *entryBuilder) line(order int, rule *mappingRule, text, tax string, rate int64) *draftLine {
	if tax = cmp.Or(tax, valueOr(rule.Tax, ""), noTax); !b.product.taxInside {
		tax = "" // its lines name accounts only
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	want := entryLine{Account: rule.Account, Text: cutText(text, maxLineText), Tax: tax,
		CostCenter: valueOr(rule.CostCenter, ""), Rate: rate}
	for _, l := range b.lines {
		had := l.entryLine
		if had.VAT, had.Transfer = 0, false; had == want && l.order == order {
			return l
		}
	}
	l := &draftLine{order: order, entryLine: want}
	b.lines = append(b.lines, l)
	return l
}

// finish returns the lines whose amount is not 0, in an order that does not depend on that of the sums: what was
// received comes first.
func (b *entryBuilder) finish() []entryLine {
	slices.SortFunc(b.lines, func(x, y *draftLine) int {
		return cmp.Or(cmp.Compare(x.order, y.order), cmp.Compare(y.Rate, x.Rate),
			cmp.Compare(x.Account, y.Account), cmp.Compare(x.Text, y.Text), cmp.Compare(x.Tax, y.Tax),
			cmp.Compare(x.CostCenter, y.CostCenter))
	})
	lines := []entryLine{}
	for _, l := range b.lines {
		if l.net > 0 {
			l.Credit = l.net
		} else {
			l.Debit, l.VAT = -l.net, -l.VAT
		}
		if l.net != 0 {
			lines = append(lines, l.entryLine)
		}
	}
	return lines
}

// about returns what a sum is for: "sales at 8.1 %, group food".
func (s *revenueSum) about() string {
	switch s.What {
	case figureDelivery, figureRefundDelivery:
		return "delivery at " + formatRate(s.Rate)
	case figureTip, figureRefundTip:
		return "tips"
	case figureDispute:
		return "disputes"
	}
	if s.Group == "" {
		return "sales at " + formatRate(s.Rate) + " without a group"
	}
	return "sales at " + formatRate(s.Rate) + ", group " + s.Group
}

// imbalance returns the credits of an entry less its debits.
func (e *bookEntry) imbalance() (off int64) {
	for i := range e.Lines {
		off += e.Lines[i].Credit - e.Lines[i].Debit
	}
	return off
}

// narration returns the text of an entry, with the whole sync key, by which it is found, at its end.
func narration(text, syncKey string) string {
	end := " (" + syncKey + ")"
	return cutText(text, maxNarration-len([]rune(end))) + end
}

// A lineTax is the VAT of a line by the orders' figures, beside the tax that Xero will compute. Both are positive
// for what is owed to the tax office, and negative for what is given back.
type lineTax struct {
	Line       int   `json:"line"`                 // The index of the line.
	Ours       int64 `json:"ours" least:"-"`       // By the orders' figures.
	Theirs     int64 `json:"theirs" least:"-"`     // As Xero will compute it, which it does by line.
	Difference int64 `json:"difference" least:"-"` // `theirs` less `ours`.
}

// taxDifference compares, for each line of an entry at Xero that has tax, our VAT with what Xero will compute,
// which it does line by line, rounding half up. It also returns the sum of the differences. Fortnox is sent the
// VAT itself, so nothing differs there. A line whose TaxType the books do not know is left out: checkEntry holds
// it.
func taxDifference(entry *bookEntry, chart *bookChart) (lines []lineTax, sum int64) {
	for i, l := range entry.Lines {
		rate := chart.taxRate(l.Tax)
		if rate == nil || rate.Rate < 0 {
			continue
		}
		t := lineTax{Line: i, Ours: l.VAT, Theirs: vatIn(l.Credit+l.Debit, rate.Rate)}
		if l.Debit > 0 {
			t.Ours, t.Theirs = -t.Ours, -t.Theirs
		}
		if t.Difference = t.Theirs - t.Ours; t.Ours != 0 || t.Theirs != 0 {
			lines = append(lines, t)
		}
		sum += t.Difference
	}
	return lines, sum
}

// taxRate returns the rate of a TaxType, or nil.
func (chart *bookChart) taxRate(code string) *bookTaxRate {
	return firstWhere(chart.TaxRates, func(r bookTaxRate) bool { return r.Code == code })
}

// account returns an account of the chart, or nil.
func (chart *bookChart) account(code string) *bookAccount {
	return firstWhere(chart.Accounts, func(a bookAccount) bool { return a.Code == code })
}

// checkEntry compares an entry with what the books report about themselves for its date, and returns why they
// would not accept it. It changes nothing.
func checkEntry(c *bookConnection, entry *bookEntry, chart *bookChart) []entryIssue {
	issues := entryIssues{}
	if chart.Currency != entry.Currency {
		issues = append(issues, otherCurrency(chart.Currency, entry.Currency))
	}
	if chart.LockedUntil != "" && entry.Date <= chart.LockedUntil {
		issues.add(heldLocked, "The books are locked to "+chart.LockedUntil+".")
	}
	if c.product().series {
		switch {
		case chart.Year == 0: // then its series are not known either
			issues.add(heldNoYear, "The books have no financial year for "+entry.Date+".")
		case entry.Series == "":
			issues.add(heldNoSeries, "No voucher series is chosen.")
		case !slices.Contains(chart.Series, entry.Series):
			issues.add(heldNoSeries, "The voucher series "+entry.Series+
				" is not there in the financial year, or takes no manual entries.")
		}
	}
	for i := range entry.Lines {
		issues.addLine(c.product(), &entry.Lines[i], chart)
	}
	return issues
}

// otherCurrency returns why books that are kept in one currency get nothing in another.
func otherCurrency(kept, currency string) entryIssue {
	return entryIssue{heldCurrency, "The books are kept in " + kept + ", and this is in " + currency +
		". Nothing is converted."}
}

// addLine notes why the books would not accept a line: its cost centre, its account or its tax.
func (all *entryIssues) addLine(product *bookProduct, l *entryLine, chart *bookChart) {
	// Whether upper and lower case differ there is not documented.
	isCenter := func(known string) bool { return strings.EqualFold(known, l.CostCenter) }
	if l.CostCenter != "" && chart.CostCenters != nil && !slices.ContainsFunc(chart.CostCenters, isCenter) {
		all.add(heldUnusable, "The books have no tracking category with the option "+l.CostCenter+".")
	}
	switch account := chart.account(l.Account); {
	case account == nil:
		all.add(heldUnusable, "The books have no account "+l.Account+".")
	case !account.Usable:
		all.add(heldUnusable, "The account "+l.Account+" can't be used: "+account.Why+".")
	}
	if !product.taxInside {
		return
	}
	switch rate := chart.taxRate(l.Tax); {
	case rate == nil:
		all.add(heldUnusable, "The books have no tax rate "+l.Tax+".")
	case l.Rate != rate.Rate:
		all.add(heldUnusable, "The tax rate "+l.Tax+" is "+formatRate(rate.Rate)+
			", not "+formatRate(l.Rate)+".")
	case l.Tax != noTax && !rate.Usable:
		all.add(heldUnusable, "The tax rate "+l.Tax+" can't be used for revenue.")
	}
}

// reverseEntry returns the entry that reverses another one, on a date, under a sync key of its own. reversed is
// what the books call the other one, such as its voucher number. The caller sets Year.
func reverseEntry(entry *bookEntry, date businessDate, syncKey, reversed string) *bookEntry {
	back := *entry
	text, _, _ := strings.Cut(entry.Narration, " (") // without the sync key, which must find one entry only
	back.Date, back.Year, back.Narration = date, 0, narration("Reversal of "+reversed+": "+text, syncKey)
	back.Lines = slices.Clone(entry.Lines)
	for i := range back.Lines {
		l := &back.Lines[i]
		l.Debit, l.Credit = l.Credit, l.Debit
		l.Text = cutText("Reversal: "+l.Text, maxLineText)
	}
	return &back
}

// sameEntry reports whether two entries have the same date, and lines with the same accounts, amounts, tax
// types and cost centres. Order, texts, and lines of 0 do not matter, since people may change those.
func sameEntry(a, b *bookEntry) bool {
	return a.Date == b.Date && slices.Equal(a.compared(), b.compared())
}

// compared returns what sameEntry compares of each line of an entry, in a fixed order.
func (e *bookEntry) compared() (lines []string) {
	for _, l := range e.Lines {
		if l.Debit != 0 || l.Credit != 0 {
			tax := l.Tax
			if tax == noTax { // the same as none
				tax = ""
			}
			lines = append(lines, fmt.Sprintf("%q %d %d %q %q", l.Account, l.Debit, l.Credit, tax, l.CostCenter))
		}
	}
	slices.Sort(lines)
	return lines
}

// hasSyncKey reports whether a text has a sync key as a word of its own, so that the key of revision 1 is not
// found within that of revision 12.
func hasSyncKey(text, syncKey string) bool {
	if syncKey == "" || !strings.Contains(text, syncKey) {
		return false
	}
	whole := regexp.MustCompile(`(^|[^\pL\p{Nd}_:-])` + regexp.QuoteMeta(syncKey) + `([^\pL\p{Nd}_]|$)`)
	return whole.MatchString(text)
}

// A bookPreviewEntry is the entry of a business day in one currency, or of a payout, as it would be sent.
type bookPreviewEntry struct {
	Currency string `json:"currency"` // The currency.

	// The entry line by line, or null: nothing would be sent, or something has no account.
	Entry *bookEntry `json:"entry"`

	Issues     []entryIssue `json:"issues"`                   // Why it would be held; none: it would be sent.
	Taxes      []lineTax    `json:"taxes"`                    // Xero: the lines that have tax. Nothing is plugged.
	Difference int64        `json:"tax_difference" least:"-"` // The sum of the differences, in the minor unit.
	Final      bool         `json:"final"`                    // Whether the day is over, or the payout was read.
}

// previewPayout returns the entry of a payout of a connection's account as it would be sent now. It asks the books, and
// changes nothing there. Errors: errPayout, errUnread, an *outboundError.
func (b *books) previewPayout(ctx context.Context, c *bookConnection, payoutID string) (*bookPreviewEntry, error) {
	p, err := b.store.payout(ownedBy(c.AccountID), payoutID)
	if err != nil {
		return nil, err
	}
	if p.ArrivalDate == nil {
		return nil, errUnread
	}
	of := payoutSubject(p, partPayout, *p.ArrivalDate)
	chart, err := b.chart(ctx, c, of.Date)
	if err != nil {
		return nil, err
	}
	x := &bookExport{exportSubject: of.exportSubject, SyncKey: syncKey(of.key, 1)}
	entry, issues, err := b.store.draftPayout(c, x)
	preview := previewOf(c, of.Currency, entry, issues, chart)
	preview.Final = !p.ReadAt.IsZero()
	return &preview, err
}

// preview returns the entries of a day as they would be sent now, one for each currency. It asks the books,
// and changes nothing there. Errors: an *outboundError.
func (b *books) preview(ctx context.Context, c *bookConnection, date businessDate) ([]bookPreviewEntry, error) {
	days, err := b.store.revenueDayKeys(c.AccountID, date, date)
	if err != nil {
		return nil, err
	}
	calendar, err := b.store.businessCalendar(c.AccountID)
	if err != nil {
		return nil, err
	}
	all := []bookPreviewEntry{}
	var chart *bookChart
	for _, day := range days {
		if chart == nil {
			if chart, err = b.chart(ctx, c, date); err != nil {
				return nil, err
			}
		}
		sums, err := b.store.revenueSums(c.AccountID, date, day.Currency)
		if err != nil {
			return nil, err
		}
		p := previewEntry(c, date, day.Currency, sums, chart)
		p.Final = !calendar.finalAt(date).After(b.now())
		all = append(all, p)
	}
	return all, nil
}

// previewEntry returns the entry of a day by the mapping of a connection, and what is missing according to the
// chart of the books.
func previewEntry(
	c *bookConnection, date businessDate, currency string, sums []revenueSum, chart *bookChart,
) bookPreviewEntry {
	entry, issues := buildEntry(c, date, currency, syncKey(dayKey(c.AccountID, date), 1), sums)
	return previewOf(c, currency, entry, issues, chart)
}

// previewOf returns an entry, or why there is none, with what is missing according to the chart of the books.
func previewOf(
	c *bookConnection, currency string, entry *bookEntry, issues []entryIssue, chart *bookChart,
) bookPreviewEntry {
	p := bookPreviewEntry{Currency: currency, Issues: []entryIssue{}, Taxes: []lineTax{}}
	p.Issues = append(p.Issues, issues...)
	if entry == nil {
		return p
	}
	entry.Year = chart.Year
	p.Entry = entry
	p.Issues = append(p.Issues, checkEntry(c, entry, chart)...)
	taxes, difference := taxDifference(entry, chart)
	p.Taxes, p.Difference = append(p.Taxes, taxes...), difference
	return p
}

// Mappings (contract, section 12): which account of the books gets what. A mapping is used only once its owner has
// confirmed it. The suggestions made here are for the owner to read, and leave out what is ambiguous.

const (
	maxMappingRules = 500
	maxCostCenter   = 100 // characters
	maxTaxType      = 50  // characters
)

var ruleKinds = declareWords[bookMappingKind](ruleSales, ruleDelivery, ruleTip, ruleDispute, rulePayment, ruleFee,
	ruleFeeTax, ruleDisputeFee, ruleTransit)

// A bookPayMethod is a way of paying that a mapping names a clearing account for, or null: the line is for another kind
// than `payment`, which needs one.
type bookPayMethod string

var payingMethods = declareWords[bookPayMethod](methodCard, methodMobile, methodTwint, methodCash, methodTerminal,
	methodVoucher, methodOther)

// A suggestion makes a mapping from a chart of accounts.
type suggestion struct {
	product  *bookProduct
	standard standardAccounts // zero: there are none
	chart    *bookChart
	lines    []mappingRule
}

// suggestMapping suggests a mapping from the books' own chart, for the rates, groups and ways of paying of sums
// that were seen; without any, for all rates that the chart has, and for payments by card and mobile phone. A rule
// whose account would be ambiguous is left out, and so are accounts that entries can't use.
func suggestMapping(product *bookProduct, chart *bookChart, seen []revenueSum) bookMapping {
	g := suggestion{product, *cmp.Or(product.standard, &standardAccounts{}), chart, []mappingRule{}}
	sales, deliveries := map[int64][]string{}, map[int64]bool{} // groups by rate
	methods := []string{methodCard, methodMobile}
	for _, s := range seen {
		switch s.What {
		case figureSale, figureRefund:
			if !slices.Contains(sales[s.Rate], s.Group) {
				sales[s.Rate] = append(sales[s.Rate], s.Group)
			}
		case figureDelivery, figureRefundDelivery:
			deliveries[s.Rate] = true
		}
		if !slices.Contains(methods, s.Method) {
			methods = append(methods, s.Method)
		}
	}
	if len(sales) == 0 {
		for _, rate := range g.rates() {
			sales[rate] = nil
			deliveries[rate] = true
		}
	}
	for _, rate := range slices.Backward(slices.Sorted(maps.Keys(sales))) {
		g.sales(rate, sales[rate])
	}
	for _, rate := range slices.Backward(slices.Sorted(maps.Keys(deliveries))) {
		g.add(ruleDelivery, cmp.Or(g.accountNamed(accountWords()["delivery"], isRevenue), g.salesAccount(rate)), rate)
	}
	g.add(ruleTip, cmp.Or(g.accountNamed(accountWords()["tip"], isForTips), g.usable(g.standard.tips)), 0)
	g.add(ruleDispute, g.accountNamed(accountWords()["dispute"], isDisputed), 0)
	for _, method := range methods {
		g.payment(method)
	}
	fees := cmp.Or(g.accountNamed(accountWords()["fee"], isCost), g.usable(g.standard.fees))
	g.add(ruleFee, fees, 0)
	g.add(ruleDisputeFee, fees, 0)
	return bookMapping{Lines: g.lines}
}

// rates returns the rates of VAT that the books know.
func (g *suggestion) rates() (rates []int64) {
	if g.product.standard != nil {
		return slices.Collect(maps.Keys(g.standard.byRate))
	}
	for _, r := range g.chart.TaxRates {
		if r.Usable && r.Rate >= 0 && r.Rate <= maxVATRate {
			rates = append(rates, r.Rate)
		}
	}
	return rates
}

// sales suggests the accounts of a rate: one for each group whose name is part of the name of a revenue account,
// and one for all other groups.
func (g *suggestion) sales(rate int64, groups []string) {
	others := g.salesAccount(rate)
	for _, group := range slices.Sorted(slices.Values(groups)) {
		account := ""
		if len([]rune(group)) > 2 {
			account = g.accountNamed([]string{strings.ToLower(group)}, isRevenue)
		}
		if account != "" && account != others && len(g.lines) < maxMappingRules/2 && g.add(ruleSales, account, rate) {
			g.lines[len(g.lines)-1].Group = &group
		}
	}
	g.add(ruleSales, others, rate)
}

// add adds a rule with its tax, unless there is no account or its tax is ambiguous. It reports whether it added
// one.
func (g *suggestion) add(kind bookMappingKind, account string, rate int64) bool {
	r := mappingRule{Kind: kind, Account: account}
	byRate := kind == ruleSales || kind == ruleDelivery
	if byRate {
		r.VATRate = &rate
	}
	if byRate || g.product.taxInside {
		tax, sure := g.tax(account, rate, byRate)
		if !sure {
			return false
		}
		r.Tax = nilIfEmpty(tax)
	}
	if account != "" {
		g.lines = append(g.lines, r)
	}
	return account != ""
}

// tax returns the tax of a rate, and whether it is unambiguous. It is the standard account of the VAT; without a
// standard the tax type of the account itself if it has the rate, else the only one for sales (OUTPUT, OUTPUT2, …),
// else the only one of that rate.
func (g *suggestion) tax(account string, rate int64, sales bool) (tax string, sure bool) {
	if g.product.standard != nil {
		of, known := g.standard.byRate[rate]
		return of.vat, known && (rate == 0 || g.usable(of.vat) != "")
	}
	if !sales {
		for _, code := range []string{noTax, "BASEXCLUDED"} { // Australia has no NONE
			if r := g.chart.taxRate(code); r != nil && r.Rate == 0 {
				return code, true
			}
		}
		return "", false
	}
	var codes, output []string
	for _, r := range g.chart.TaxRates {
		if !r.Usable || r.Rate != rate {
			continue
		}
		if a := g.chart.account(account); a != nil && a.Tax == r.Code {
			return r.Code, true
		}
		if codes = append(codes, r.Code); strings.HasPrefix(r.Code, "OUTPUT") {
			output = append(output, r.Code)
		}
	}
	for _, only := range [][]string{output, codes} {
		if len(only) == 1 {
			return only[0], true
		}
	}
	return "", false
}

// salesAccount returns the account of sales at a rate: the standard one; without a standard one with a word for sales
// in its name, else the only revenue account.
func (g *suggestion) salesAccount(rate int64) string {
	if g.product.standard != nil {
		return g.usable(g.standard.byRate[rate].sales)
	}
	if named := g.accountNamed(accountWords()["sales"], isRevenue); named != "" {
		return named
	}
	only := ""
	for i := range g.chart.Accounts {
		if a := &g.chart.Accounts[i]; a.Usable && isRevenue(a) {
			if only != "" {
				return ""
			}
			only = a.Code
		}
	}
	return only
}

// payment suggests the clearing account of a way of paying: one that is named after it, else, for providers and
// terminals, one that is named as a clearing account.
func (g *suggestion) payment(method string) {
	account := ""
	switch method {
	case methodCash:
		account = cmp.Or(g.accountNamed(accountWords()["cash"], isCash), g.usable(g.standard.cash))
	case methodVoucher:
		account = cmp.Or(g.accountNamed(accountWords()["voucher"], isVouchers), g.usable(g.standard.voucher))
	case methodCard, methodMobile, methodTwint, methodTerminal:
		account = cmp.Or(g.accountNamed(accountWords()[method], isClearing),
			g.accountNamed(accountWords()["clearing"], isClearing), g.usable(g.standard.clearing))
	}
	if g.add(rulePayment, account, 0) {
		g.lines[len(g.lines)-1].Method = new(bookPayMethod(method))
	}
}

// usable returns a standard account if the books have it and entries can use it, else "".
func (g *suggestion) usable(code string) string {
	if a := g.chart.account(code); a == nil || !a.Usable {
		return ""
	}
	return code
}

// accountNamed returns the account of a kind that entries can use and whose name has one of the words, or "". Earlier
// words take precedence, then lower codes.
func (g *suggestion) accountNamed(words []string, kind func(*bookAccount) bool) string {
	for _, word := range words {
		found := ""
		for i := range g.chart.Accounts {
			a := &g.chart.Accounts[i]
			if a.Usable && kind(a) && hasWord(a.Name, word) && (found == "" || a.Code < found) {
				found = a.Code
			}
		}
		if found != "" {
			return found
		}
	}
	return ""
}

// hasWord reports whether a name has a word, ignoring case. A word of more than five letters may be a part of
// another one, since languages join words: Speisenumsatz.
func hasWord(name, word string) bool {
	name = strings.ToLower(name)
	if len([]rune(word)) > 5 || strings.Contains(word, " ") {
		return strings.Contains(name, word)
	}
	return slices.Contains(strings.FieldsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), word)
}

// The kinds of accounts. Banks, receivables and payables are of none.
var (
	isRevenue  = accountKind("3", "REVENUE SALES")
	isCash     = accountKind("191", "CURRENT")
	isForTips  = accountKind("3 28", "REVENUE SALES OTHERINCOME CURRLIAB LIABILITY")
	isDisputed = accountKind("16", "CURRENT CURRLIAB LIABILITY EXPENSE OVERHEADS DIRECTCOSTS")
	isClearing = accountKind("158 168", "CURRENT CURRLIAB LIABILITY")
	isVouchers = accountKind("242", "CURRLIAB LIABILITY")
	isCost     = accountKind("60 65", "EXPENSE OVERHEADS DIRECTCOSTS")
)

// accountKind returns whether an account has one of some types of Xero, or, at Fortnox, which has no types, whether
// its code begins with the first digits of some accounts of BAS.
func accountKind(bas, types string) func(*bookAccount) bool {
	digits, names := strings.Fields(bas), strings.Fields(types)
	return func(a *bookAccount) bool {
		begins := func(first string) bool { return strings.HasPrefix(a.Code, first) }
		return a.Type == "" && slices.ContainsFunc(digits, begins) || slices.Contains(names, a.Type)
	}
}

// accountWords are words of the names of accounts, in English, German, French, Swedish, Danish and Norwegian, by what
// the accounts are for or by the way of paying: web/account_words.json.
var accountWords = sync.OnceValue(func() (words map[string][]string) {
	if err := json.Unmarshal([]byte(embedded("web/account_words.json")), &words); err != nil {
		panic("web/account_words.json: " + err.Error()) // which a test rules out
	}
	return words
})

// Entries of payouts (contract, section 12). What leaves a clearing account is what is paid out, the fees and the
// tax on fees; sales, refunds and disputes were booked by their days. An entry books the fees. Only where the
// mapping names an account of transit it also books what is paid out: else the accountant does, by the bank's
// statement.

// payoutSubject returns a part of a payout as the subject of an entry on a date.
func payoutSubject(p *payout, part bookPart, date businessDate) newSubject {
	key := "widgetd:" + p.AccountID + ":payout:" + string(p.Provider) + ":" + valueOr(p.ProviderID, "")
	if part != partPayout {
		key += ":" + string(part)
	}
	return newSubject{exportSubject{Date: date, Currency: p.Currency, PayoutID: &p.ID, Part: &part}, key}
}

// wantsPayout reports whether a payout belongs in the books of a connection, as wants does for a sum of a day: by the
// switches of the day on which it arrives. It alone decides that.
func (c *bookConnection) wantsPayout(p *payout) bool {
	_, tests := c.switchesOn(*p.ArrivalDate)
	return p.Live || tests
}

// payoutSubjects returns what toSend has of payouts. What undoes one is dated today.
func (q *queries) payoutSubjects(c *bookConnection, today businessDate) (all []newSubject, err error) {
	arrived, err := q.payoutsToSend(c, today, daysAtOnce)
	if err != nil {
		return nil, err
	}
	for i := range arrived {
		all = append(all, payoutSubject(&arrived[i], partPayout, *arrived[i].ArrivalDate))
	}
	failed, err := q.payoutsToUndo(c, daysAtOnce)
	for i := range failed {
		all = append(all, payoutSubject(&failed[i], partUndo, max(today, *failed[i].ArrivalDate)))
	}
	return all, err
}

// requestPayout asks for the export of a payout to a connection, and returns it. A payout that has one keeps it,
// unless its entry was reversed: then it gets a further revision. Errors: errBooksConnection, books_connection_state,
// errPayout, errUnread.
func requestPayout(t *tx, o owner, connectionID, payoutID string) (*bookExport, error) {
	c, err := t.usedBookConnection(o, connectionID)
	if err != nil {
		return nil, err
	}
	if c.OrganisationID == nil {
		return nil, errNoCompany
	}
	p, err := t.payout(ownedBy(c.AccountID), payoutID)
	if err != nil {
		return nil, err
	}
	if p.isUnread() {
		return nil, errUnread
	}
	of := payoutSubject(p, partPayout, *p.ArrivalDate)
	there, revision, err := includedExport(t, c, of.exportSubject)
	if there != nil || err != nil {
		return there, err
	}
	calendar, err := t.businessCalendar(c.AccountID)
	if err != nil {
		return nil, err
	}
	due := newStamp(later(t.now.Time, calendar.startOf(of.Date)))
	return newExport(t, c, of.exportSubject, of.key, revision, nil, due), nil
}

// mayReverse refuses to reverse the entry of a payout while another one counts that takes back a part of it. Errors:
// export_state.
func mayReverse(t *tx, x *bookExport) error {
	if x.PayoutID == nil || *x.Part != partPayout {
		return nil
	}
	undo := x.exportSubject
	undo.Part = new(bookPart(partUndo))
	there, _, err := includedExport(t, &bookConnection{ID: x.ConnectionID}, undo)
	if err == nil && there != nil {
		err = errExportState(x, "Another entry takes back a part of it, as the payout has failed: reverse that first.")
	}
	return err
}

// untilChanged reports whether a reason for which an export is held passes only by a change that makes the export due.
func untilChanged(reason string) bool {
	of := func(h payoutHold) bool { return h.reason == reason }
	return reason == heldNoMethod || reason != heldForeign && slices.ContainsFunc(payoutHolds, of)
}

// draftPayout makes the entry of a part of a payout, or says why there is none. Without either there is nothing to
// book; see wantsPayout.
func (q *queries) draftPayout(c *bookConnection, x *bookExport) (*bookEntry, []entryIssue, error) {
	p, err := q.payout(anyAccount, *x.PayoutID)
	if err != nil {
		return nil, nil, err
	}
	if *x.Part == partUndo {
		entry, err := q.draftUndo(c, x)
		return entry, nil, err
	}
	held := firstWhere(payoutHolds, func(h payoutHold) bool { return h.reason == string(valueOr(p.Reason, "")) })
	if held != nil {
		return nil, []entryIssue{{bookIssueReason(held.reason), held.text}}, nil
	}
	if kept := valueOr(c.Currency, p.Currency); kept != p.Currency {
		return nil, []entryIssue{otherCurrency(kept, p.Currency)}, nil
	}
	sums, err := q.payoutSums(p.ID)
	if err != nil {
		return nil, nil, err
	}
	entry, issues := buildPayout(c, p, x.Date, x.SyncKey, sums)
	if entry == nil || len(issues) > 0 || !c.wantsPayout(p) {
		return nil, issues, nil
	}
	issue, err := q.unbooked(c, p.ID)
	if issue != nil {
		return nil, []entryIssue{*issue}, err
	}
	return entry, nil, err
}

// unbooked returns why what is in a payout is not on the clearing accounts of a connection's books, nil if all is
// there: a day on which nothing is to be booked needs no entry.
func (q *queries) unbooked(c *bookConnection, payoutID string) (*entryIssue, error) {
	days, first, err := q.unbookedDays(c, payoutID)
	for _, d := range days {
		if d.Date == "" {
			return &entryIssue{heldNotPosted, "Something in the payout is not in the revenue of any day yet."}, nil
		}
		if d.Date < first {
			return &entryIssue{heldForeign, "The payout has money of " + d.Date +
				", which is before the first day in the books: book it by hand."}, nil
		}
		sums, err := q.revenueSums(c.AccountID, d.Date, d.Currency)
		if err != nil {
			return nil, err
		}
		entry, issues := buildEntry(c, d.Date, d.Currency, "", sums)
		if entry != nil || len(issues) > 0 {
			return &entryIssue{heldNotPosted,
				"The payout has money of " + d.Date + ", which is not in the books yet."}, nil
		}
	}
	return nil, err
}

// draftUndo makes the entry that takes back what the entry of a payout has booked as on its way; nil: it has not, or
// it does not count.
func (q *queries) draftUndo(c *bookConnection, x *bookExport) (*bookEntry, error) {
	of := x.exportSubject
	of.Part = new(bookPart(partPayout))
	last, err := q.lastExport(c.ID, of)
	if err != nil || last == nil || last.State != exportPosted || last.Reverses != nil {
		return nil, err
	}
	sent, err := last.sentEntry()
	if err != nil {
		return nil, err
	}
	sent.Lines = slices.DeleteFunc(sent.Lines, func(l entryLine) bool { return !l.Transfer })
	if len(sent.Lines) == 0 {
		return nil, nil
	}
	return reverseEntry(sent, x.EntryDate, x.SyncKey, valueOr(last.EntryID, last.ID)), nil
}

// buildPayout makes the entry of a payout from the sums of what is in it, as buildEntry does that of a day. Fees are
// booked whatever becomes of the payout, what is paid out only if that did not fail.
func buildPayout(
	c *bookConnection, p *payout, date businessDate, syncKey string, sums []payoutSum,
) (*bookEntry, []entryIssue) {
	if c.Mapping == nil {
		return nil, []entryIssue{{heldUnmapped, "No mapping was confirmed yet."}}
	}
	b := entryBuilder{product: c.product(), mapping: c.Mapping}
	for _, s := range sums {
		fee := bookMappingKind(ruleFee)
		if s.isDispute() {
			fee = ruleDisputeFee
		}
		clearing, method := b.clearingOf(p, (*string)(s.Method)), string(valueOr(s.Method, "no payment"))
		b.moveOut(clearing, fee, method, s.Fee, placeFee, placeFeesKept)
		b.moveOut(clearing, ruleFeeTax, method, s.Tax, placeFee, placeFeesKept)
		if b.mapping.ofKind(ruleTransit) != nil && !p.ended() {
			b.moveOut(clearing, ruleTransit, method, s.Net, placeTransit, placePaidOut)
		}
	}
	return b.entry(c, date, p.Currency, narration("Payout "+date+" "+p.Currency+" "+string(p.Provider), syncKey))
}

// ofKind returns the rule of a kind of which there is one at most, or nil.
func (m *bookMapping) ofKind(kind bookMappingKind) *mappingRule {
	return firstWhere(m.Lines, func(r mappingRule) bool { return r.Kind == kind })
}

// booksPayouts reports whether a mapping, if there is one, has rules for payouts.
func (m *bookMapping) booksPayouts() bool {
	return m != nil && slices.ContainsFunc(m.Lines, func(r mappingRule) bool { return payoutTexts[r.Kind] != "" })
}

// clearingOf returns the rule of the clearing account of what is in a payout by a method. What is of no method has one
// only where all methods of the provider that are mapped have the same. It notes why there is none.
func (b *entryBuilder) clearingOf(p *payout, method *string) (rule *mappingRule) {
	methods := p.methods()
	if method != nil {
		methods = []string{*method}
	}
	for _, m := range methods {
		switch other := b.mapping.clearing(m); {
		case other == nil:
		case rule != nil && rule.Account != other.Account:
			b.issues.add(heldNoMethod, "The payout has something of no payment, and the ways of paying have "+
				"different clearing accounts: book it by hand.")
		default:
			rule = other
		}
	}
	if rule == nil {
		b.issues.add(heldUnknownPayment, "No clearing account is named for payments by "+methods[0]+".")
	}
	return rule
}

// moveOut moves an amount of a method from a clearing account to the account of a kind of rule.
func (b *entryBuilder) moveOut(
	clearing *mappingRule, kind bookMappingKind, method string, amount int64, place, clearingPlace int,
) {
	if amount == 0 {
		return
	}
	rule := b.mapping.ofKind(kind)
	if rule == nil {
		b.issues.add(heldUnmapped, "No account is named for "+payoutTexts[kind]+".")
	}
	if len(b.issues) > 0 {
		return
	}
	to := b.line(place, rule, payoutTexts[kind], "", 0)
	from := b.line(clearingPlace, clearing, payoutTexts[kind]+", "+method, "", 0)
	to.net, from.net = to.net-amount, from.net+amount
	to.Transfer, from.Transfer = kind == ruleTransit, kind == ruleTransit
}

// payoutTexts are the texts of lines by the kinds of their rules.
var payoutTexts = map[bookMappingKind]string{ruleFee: "fees of the provider", ruleFeeTax: "tax on fees",
	ruleDisputeFee: "fees for disputes", ruleTransit: "on its way to the bank"}
