package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
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
		issues.add(heldCurrency, "The books are kept in "+chart.Currency+", and the revenue is in "+
			entry.Currency+". Nothing is converted.")
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
