package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const testSyncKey = "widgetd:acct_01kagvxqr5f0000000000000000:2026-11-22:r1"

// ledgerText returns the lines of an entry, one a line: account, debit or credit, tax, VAT, cost centre, text.
func ledgerText(e *bookEntry) string {
	var b strings.Builder
	for _, l := range e.Lines {
		side, amount := "D", l.Debit
		if l.Credit != 0 {
			side, amount = "C", l.Credit
		}
		fmt.Fprintf(&b, "%s %s %s %s %d %s| %s\n", l.Account, side, formatAmount(amount), l.Tax, l.VAT,
			l.CostCenter, l.Text)
	}
	return b.String()
}

// sum makes a revenueSum.
func sum(method, what string, rate int64, group string, gross, vat int64) revenueSum {
	return revenueSum{Method: method, figure: figure{What: what, Rate: rate, Group: group, Gross: gross, VAT: vat}}
}

// aDay is a day with mixed rates, a refund, tips, a delivery and a dispute, partly paid in cash.
func aDay() []revenueSum {
	return []revenueSum{
		sum(methodCard, figureSale, 810, "food", 185000, 13900),
		sum(methodMobile, figureSale, 810, "food", 3700, 278),
		sum(methodCard, figureSale, 810, "wine", 5000, 375),
		sum(methodCard, figureSale, 260, "", 1030, 26),
		sum(methodCard, figureDelivery, 810, "", 500, 37),
		sum(methodMobile, figureTip, 0, "", 300, 0),
		sum(methodCard, figureDiscount, 0, "", 990, 0),
		sum(methodCard, figureRefund, 810, "food", 1850, 139),
		sum(methodCard, figureRefundTip, 0, "", 100, 0),
		sum(methodCard, figureDispute, 0, "", 2000, 0),
		sum(methodCash, figureSale, 810, "food", 4000, 300),
		{Method: methodCard, Test: true, figure: figure{What: figureSale, Rate: 810, Group: "food", Gross: 7, VAT: 1}},
	}
}

// xeroMapping is a mapping for aDay at Xero; fortnoxMapping is one at Fortnox.
func xeroMapping() *bookMapping {
	return &bookMapping{Lines: []mappingRule{
		{Kind: ruleSales, VATRate: ptr[int64](810), Account: "200", Tax: ptr("OUTPUT2")},
		{Kind: ruleSales, VATRate: ptr[int64](810), Group: ptr("food"), Account: "210", Tax: ptr("OUTPUT2"),
			CostCenter: ptr("Region:North")},
		{Kind: ruleSales, VATRate: ptr[int64](260), Group: ptr(""), Account: "220", Tax: ptr("OUTPUT3")},
		{Kind: ruleDelivery, VATRate: ptr[int64](810), Account: "230", Tax: ptr("OUTPUT2")},
		{Kind: ruleTip, Account: "825", Tax: ptr("NONE")},
		{Kind: ruleDispute, Account: "830"},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: "610"},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodMobile), Account: "611"},
	}}
}

func fortnoxMapping() *bookMapping {
	return &bookMapping{Lines: []mappingRule{
		{Kind: ruleSales, VATRate: ptr[int64](810), Account: "3001", Tax: ptr("2611"), CostCenter: ptr("N")},
		{Kind: ruleSales, VATRate: ptr[int64](260), Account: "3002", Tax: ptr("2621")},
		{Kind: ruleDelivery, VATRate: ptr[int64](810), Account: "3520", Tax: ptr("2611")},
		{Kind: ruleTip, Account: "2890"},
		{Kind: ruleDispute, Account: "1689"},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: "1580"},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodMobile), Account: "1581"},
	}}
}

func TestEntry_ofADayAtXeroIsGrossWithItsTax(t *testing.T) {
	t.Parallel()
	c := &bookConnection{Product: productXero, Mapping: xeroMapping(), Status: entryPosted}
	e, issues := buildEntry(c, "2026-11-22", "CHF", testSyncKey, aDay())
	if issues != nil {
		t.Fatal(issues)
	}
	want := `610 D 1915.30 NONE 0 | Received by card
611 D 40.00 NONE 0 | Received by mobile
200 C 50.00 OUTPUT2 375 | Sales 8.1 %
210 C 1887.00 OUTPUT2 14178 Region:North| Sales 8.1 %, food
220 C 10.30 OUTPUT3 26 | Sales 2.6 %
230 C 5.00 OUTPUT2 37 | Delivery 8.1 %
825 C 3.00 NONE 0 | Tips
210 D 18.50 OUTPUT2 139 Region:North| Refunds: sales 8.1 %, food
825 D 1.00 NONE 0 | Refunds: tips
610 C 19.50 NONE 0 | Refunds by card
830 D 20.00 NONE 0 | Disputes
610 C 20.00 NONE 0 | Disputed by card
`
	if got := ledgerText(e); !sameLines(got, want) || e.imbalance() != 0 {
		t.Errorf("out of balance by %d:\n%s", e.imbalance(), got)
	}
	if e.Date != "2026-11-22" || e.Currency != "CHF" || e.Status != entryPosted || e.Series != "" ||
		e.Narration != "Revenue 2026-11-22 CHF ("+testSyncKey+")" {
		t.Errorf("%+v", e)
	}
}

func TestEntry_ofADayAtFortnoxIsNetWithLinesOfVAT(t *testing.T) {
	t.Parallel()
	c := &bookConnection{Product: productFortnox, Mapping: fortnoxMapping(), Status: entryDraft, Series: ptr("W")}
	e, issues := buildEntry(c, "2026-11-22", "SEK", testSyncKey, aDay())
	if issues != nil {
		t.Fatal(issues)
	}
	want := `1580 D 1915.30  0 | Received by card
1581 D 40.00  0 | Received by mobile
3001 C 1791.47  0 N| Sales 8.1 %
3002 C 10.04  0 | Sales 2.6 %
3520 C 4.63  0 | Delivery 8.1 %
2611 C 145.90  0 | VAT 8.1 %
2621 C 0.26  0 | VAT 2.6 %
2890 C 3.00  0 | Tips
3001 D 17.11  0 N| Refunds: sales 8.1 %
2890 D 1.00  0 | Refunds: tips
2611 D 1.39  0 | Refunds: VAT 8.1 %
1580 C 19.50  0 | Refunds by card
1689 D 20.00  0 | Disputes
1580 C 20.00  0 | Disputed by card
`
	if got := ledgerText(e); !sameLines(got, want) || e.imbalance() != 0 {
		t.Errorf("out of balance by %d:\n%s", e.imbalance(), got)
	}
	if e.Series != "W" || e.Status != "" || e.Year != 0 {
		t.Errorf("%+v", e)
	}
}

// sameLines compares texts by line, whatever stands at the ends of lines.
func sameLines(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }

func TestEntry_namesAllThatHasNoAccount(t *testing.T) {
	t.Parallel()
	lost := []revenueSum{
		sum(methodMobile, figureSale, 2500, "food", 100, 20), sum(methodMobile, figureRefund, 2500, "food", 50, 10),
		sum(methodMobile, figureSale, 260, "", 100, 3), sum(methodCard, figureDelivery, 260, "", 100, 3),
		sum(methodCard, figureTip, 0, "", 100, 0), sum(methodCard, figureDispute, 0, "", 100, 0),
	}
	c := &bookConnection{Product: productFortnox, Mapping: &bookMapping{Lines: []mappingRule{
		{Kind: ruleSales, VATRate: ptr[int64](2500), Group: ptr("drinks"), Account: "3001", Tax: ptr("2611")},
		{Kind: ruleSales, VATRate: ptr[int64](260), Account: "3002"},
		{Kind: rulePayment, Method: ptr[bookPayMethod](methodCard), Account: "1580"},
	}}}
	e, issues := buildEntry(c, "2026-11-22", "SEK", testSyncKey, lost)
	want := []entryIssue{
		{heldUnmapped, "No account is named for sales at 25 %, group food."},
		{heldUnknownPayment, "No clearing account is named for payments by mobile."},
		{heldUnmapped, "No account is named for the VAT of sales at 2.6 % without a group."},
		{heldUnmapped, "No account is named for delivery at 2.6 %."},
		{heldUnmapped, "No account is named for tips."},
		{heldUnmapped, "No account is named for disputes."},
	}
	if e != nil || !slices.Equal(issues, want) {
		t.Errorf("%+v, %q", e, issues)
	}
	c.Currency = ptr("EUR")
	want = []entryIssue{{heldCurrency, "The books are kept in EUR, and this is in SEK. Nothing is converted."}}
	if e, issues = buildEntry(c, "2026-11-22", "SEK", testSyncKey, lost); e != nil || !slices.Equal(issues, want) {
		t.Errorf("of books in another currency, where no rule would help: %+v, %q", e, issues)
	}
	c.Mapping = nil
	if e, issues = buildEntry(c, "2026-11-22", "SEK", testSyncKey, lost); e != nil || len(issues) != 1 ||
		issues[0].Reason != heldUnmapped {
		t.Errorf("without a mapping: %+v, %q", e, issues)
	}
}

// entryCase is a mapping and sums that bytes stand for. Each account of the mapping is for one thing only, so
// that its code tells what it is.
type entryCase struct {
	c    *bookConnection
	sums []revenueSum
}

var (
	fuzzRates  = []int64{0, 260, 810, 2500}
	fuzzGroups = []string{"", "food", "wine"}
	fuzzWhats  = []string{figureSale, figureDelivery, figureTip, figureRefund, figureRefundDelivery,
		figureRefundTip, figureDispute, figureDiscount}
)

// newEntryCase makes a mapping that has the rules whose bits are set in rules, and sums from data.
func newEntryCase(xero, outside, tests bool, rules uint32, data []byte) entryCase {
	m := &bookMapping{}
	add := func(r mappingRule) {
		if rules&1 == 0 {
			m.Lines = append(m.Lines, r)
		}
		rules = rules>>1 | rules<<31
	}
	for i, rate := range fuzzRates {
		tax := ptr(fmt.Sprint(2600 + i))
		for j, group := range fuzzGroups[:2] { // wine has the account of the others
			add(mappingRule{Kind: ruleSales, VATRate: &rate, Group: &group, Account: fmt.Sprint(3000 + 10*i + j),
				Tax: tax})
		}
		add(mappingRule{Kind: ruleSales, VATRate: &rate, Account: fmt.Sprint(3000 + 10*i + 9), Tax: tax})
		add(mappingRule{Kind: ruleDelivery, VATRate: &rate, Account: fmt.Sprint(3500 + i), Tax: tax})
	}
	add(mappingRule{Kind: ruleTip, Account: "2890"})
	add(mappingRule{Kind: ruleDispute, Account: "1689"})
	for i, method := range payingMethods {
		add(mappingRule{Kind: rulePayment, Method: &method, Account: fmt.Sprint(1500 + i)})
	}
	e := entryCase{c: &bookConnection{Product: productFortnox, Mapping: m, Outside: outside, Tests: tests}}
	if xero {
		e.c.Product = productXero
	}
	for ; len(data) >= 6; data = data[6:] {
		gross := int64(int16(uint16(data[4])<<8 | uint16(data[5])))
		s := sum(string(payingMethods[int(data[0])%len(payingMethods)]), fuzzWhats[int(data[1])%8], 0, "", gross, 0)
		s.Test = data[0] >= 128
		if strings.HasPrefix(s.What, "sale") || strings.Contains(s.What, "refund") || s.What == figureDelivery {
			if s.What != figureRefundTip {
				s.Rate = fuzzRates[int(data[2])%4]
				s.VAT = gross * s.Rate / (10_000 + s.Rate)
			}
		}
		if s.What == figureSale || s.What == figureRefund {
			s.Group = fuzzGroups[int(data[3])%3]
		}
		e.sums = append(e.sums, s)
	}
	return e
}

// accountOf returns the account that a sum belongs to, which the mapping has or not.
func (e *entryCase) accountOf(s *revenueSum) string {
	has := func(code string) bool {
		return slices.ContainsFunc(e.c.Mapping.Lines, func(r mappingRule) bool { return r.Account == code })
	}
	rate := slices.Index(fuzzRates, s.Rate)
	switch s.What {
	case figureSale, figureRefund:
		own := fmt.Sprint(3000 + 10*rate + slices.Index(fuzzGroups, s.Group))
		if s.Group == "wine" || !has(own) {
			own = fmt.Sprint(3000 + 10*rate + 9)
		}
		if has(own) {
			return own
		}
	case figureDelivery, figureRefundDelivery:
		if own := fmt.Sprint(3500 + rate); has(own) {
			return own
		}
	case figureDispute:
		if has("1689") {
			return "1689"
		}
	case figureTip, figureRefundTip:
		if has("2890") {
			return "2890"
		}
	}
	return ""
}

// check makes the entry and compares what stands on each account with the sums themselves.
func (e *entryCase) check(t *testing.T) {
	t.Helper()
	want, lost := map[string]int64{}, 0 // credits less debits
	for i := range e.sums {
		s := &e.sums[i]
		outside := slices.Contains(outsideMethods, s.Method)
		if s.What == figureDiscount || s.Gross == 0 || s.Test && !e.c.Tests || outside && !e.c.Outside {
			continue
		}
		account, clearing := e.accountOf(s), fmt.Sprint(1500+slices.Index(payingMethods, bookPayMethod(s.Method)))
		if account == "" || !slices.ContainsFunc(e.c.Mapping.Lines,
			func(r mappingRule) bool { return r.Account == clearing }) {
			lost++
			continue
		}
		net := s.received()
		want[clearing] -= net
		if e.c.Product == productFortnox && net != 0 {
			vat := s.VAT * (net / s.Gross)
			net -= vat
			want[fmt.Sprint(2600+slices.Index(fuzzRates, s.Rate))] += vat
		}
		want[account] += net
	}
	got, issues := buildEntry(e.c, "2026-11-22", "CHF", testSyncKey, e.sums)
	if (lost > 0) != (len(issues) > 0) || got != nil && lost > 0 {
		t.Fatalf("%d sums have no account, and the issues are %q; the entry %+v", lost, issues, got)
	}
	if lost > 0 {
		return
	}
	if got == nil {
		got = &bookEntry{Lines: []entryLine{}}
	}
	for _, l := range got.Lines {
		if l.Debit < 0 || l.Credit < 0 || (l.Debit == 0) == (l.Credit == 0) ||
			(l.Tax == "") != (e.c.Product == productFortnox) {
			t.Fatalf("the line %+v", l)
		}
		want[l.Account] -= l.Credit - l.Debit
	}
	for account, off := range want {
		if off != 0 {
			t.Fatalf("account %s is off by %d:\n%s", account, off, ledgerText(got))
		}
	}
	if got.imbalance() != 0 || len(got.Lines) == 1 {
		t.Fatalf("out of balance:\n%s", ledgerText(got))
	}
	back := reverseEntry(got, "2026-12-01", testSyncKey+"2", "A 1")
	again := reverseEntry(back, got.Date, testSyncKey, "A 2")
	if back.imbalance() != 0 || !sameEntry(got, again) || len(got.Lines) > 0 && sameEntry(got, back) {
		t.Fatalf("reversed twice:\n%s", ledgerText(again))
	}
}

func TestEntry_hasEverySumOrAnIssue(t *testing.T) {
	t.Parallel()
	random := random(t, 0)
	for range size(1000, 3000) {
		data := make([]byte, 6*random.IntN(30))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		rules := uint32(0)
		if random.IntN(3) == 0 {
			rules = random.Uint32() & random.Uint32() & random.Uint32()
		}
		bits := random.IntN(8)
		e := newEntryCase(bits&1 > 0, bits&2 > 0, bits&4 > 0, rules, data)
		e.check(t)
	}
}

// xeroChart is a chart of accounts that takes xeroMapping.
func xeroChart() *bookChart {
	chart := &bookChart{Currency: "CHF", TaxRates: []bookTaxRate{
		{Code: "OUTPUT2", Rate: 810, Usable: true}, {Code: "OUTPUT3", Rate: 260, Usable: true}, {Code: "NONE"}}}
	for _, r := range xeroMapping().Lines {
		chart.Accounts = append(chart.Accounts, bookAccount{Code: r.Account, Usable: true})
	}
	return chart
}

func TestEntry_taxDiffersAsXeroRoundsByLine(t *testing.T) {
	t.Parallel()
	c := &bookConnection{Product: productXero, Mapping: xeroMapping()}
	// A hundred orders of 18.50 at 8.1 % have 1.39 of VAT each; 1850.00 has 138.62.
	vat := 100 * vatIn(1850, 810)
	e, _ := buildEntry(c, "2026-11-22", "CHF", testSyncKey,
		[]revenueSum{sum(methodCard, figureSale, 810, "food", 185000, vat)})
	lines, off := taxDifference(e, xeroChart())
	if off != -38 || len(lines) != 1 || lines[0] != (lineTax{Line: 1, Ours: 13900, Theirs: 13862, Difference: -38}) {
		t.Errorf("%d, %+v", off, lines)
	}
	// What is given back differs the other way round.
	e, _ = buildEntry(c, "2026-11-22", "CHF", testSyncKey, []revenueSum{
		sum(methodCard, figureSale, 810, "food", 185000, vat), sum(methodCard, figureRefund, 810, "food", 18500, 1390)})
	lines, off = taxDifference(e, xeroChart())
	if off != -34 || len(lines) != 2 || lines[1] != (lineTax{Line: 2, Ours: -1390, Theirs: -1386, Difference: 4}) {
		t.Errorf("%d, %+v", off, lines)
	}
	c = &bookConnection{Product: productFortnox, Mapping: fortnoxMapping()}
	e, _ = buildEntry(c, "2026-11-22", "SEK", testSyncKey, aDay())
	if lines, off = taxDifference(e, fortnoxChart()); lines != nil || off != 0 {
		t.Errorf("at Fortnox: %d, %+v", off, lines)
	}
}

// fortnoxChart is a chart of accounts that takes fortnoxMapping.
func fortnoxChart() *bookChart {
	chart := &bookChart{Currency: "SEK", Year: 3, Series: []string{"A", "W"}}
	for _, code := range []string{"1580", "1581", "1689", "2611", "2621", "2890", "3001", "3002", "3520"} {
		chart.Accounts = append(chart.Accounts, bookAccount{Code: code, Usable: true})
	}
	return chart
}

// Against a tenant with a mapping who would have revenue on a bank, a customers' ledger or an account that is not
// there: what the books keep themselves, and what they don't have, holds the entry; what is unmapped is never
// guessed.
func TestEntry_isHeldByWhatTheBooksSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		product string
		change  func(*bookConnection, *bookChart)
		reason  string
		detail  string
	}{
		"nothing at Xero":    {productXero, nil, "", ""},
		"nothing at Fortnox": {productFortnox, nil, "", ""},
		"locked the day before": {productXero,
			func(_ *bookConnection, b *bookChart) { b.LockedUntil = "2026-11-21" }, "", ""},
		"another currency": {productXero, func(_ *bookConnection, b *bookChart) { b.Currency = "EUR" }, heldCurrency,
			"The books are kept in EUR, and this is in CHF. Nothing is converted."},
		"locked": {productFortnox, func(_ *bookConnection, b *bookChart) { b.LockedUntil = "2026-11-22" }, heldLocked,
			"The books are locked to 2026-11-22."},
		"no year": {productFortnox, func(_ *bookConnection, b *bookChart) { b.Year, b.Series = 0, nil }, heldNoYear,
			"The books have no financial year for 2026-11-22."},
		"no series": {productFortnox, func(c *bookConnection, _ *bookChart) { c.Series = nil }, heldNoSeries,
			"No voucher series is chosen."},
		"another series": {productFortnox, func(_ *bookConnection, b *bookChart) { b.Series = []string{"A"} },
			heldNoSeries,
			"The voucher series W is not there in the financial year, or takes no manual entries."},
		"an account that is gone": {productFortnox,
			func(_ *bookConnection, b *bookChart) { b.Accounts = b.Accounts[1:] },
			heldUnusable, "The books have no account 1580."},
		"a bank": {productXero, func(_ *bookConnection, b *bookChart) {
			b.Accounts[6].Usable, b.Accounts[6].Why = false, "bank"
		}, heldUnusable, "The account 610 can't be used: bank."},
		"a tracking option that is there": {productXero, func(c *bookConnection, b *bookChart) {
			c.Mapping.Lines[0].CostCenter, b.CostCenters = ptr("region:North"), []string{"Area:North", "Region:North"}
		}, "", ""},
		"a tracking option that is gone": {productXero, func(c *bookConnection, b *bookChart) {
			c.Mapping.Lines[0].CostCenter, b.CostCenters = ptr("Region:North"), []string{"Area:North", "Region:South"}
		}, heldUnusable, "The books have no tracking category with the option Region:North."},
		"cost centers that are not read": {productFortnox, func(c *bookConnection, _ *bookChart) {
			c.Mapping.Lines[0].CostCenter = ptr("BAR")
		}, "", ""},
		"a tax rate that is gone": {productXero, func(_ *bookConnection, b *bookChart) { b.TaxRates = b.TaxRates[1:] },
			heldUnusable, "The books have no tax rate OUTPUT2."},
		"a tax rate that was changed": {productXero, func(_ *bookConnection, b *bookChart) { b.TaxRates[1].Rate = 250 },
			heldUnusable, "The tax rate OUTPUT3 is 2.5 %, not 2.6 %."},
		"a tax rate that is archived": {productXero,
			func(_ *bookConnection, b *bookChart) { b.TaxRates[0].Usable = false },
			heldUnusable, "The tax rate OUTPUT2 can't be used for revenue."},
	} {
		conn, chart := &bookConnection{Product: productXero, Mapping: xeroMapping()}, xeroChart()
		if c.product == productFortnox {
			conn, chart = &bookConnection{Product: productFortnox, Mapping: fortnoxMapping(), Series: ptr("W")},
				fortnoxChart()
		}
		if c.change != nil {
			c.change(conn, chart)
		}
		e, _ := buildEntry(conn, "2026-11-22",
			map[string]string{productXero: "CHF", productFortnox: "SEK"}[c.product], testSyncKey, aDay())
		var want []entryIssue
		if c.reason != "" {
			want = []entryIssue{{bookIssueReason(c.reason), c.detail}}
		}
		if got := checkEntry(conn, e, chart); !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestEntry_reversalNamesItAndHasAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	c := &bookConnection{Product: productFortnox, Mapping: fortnoxMapping(), Series: ptr("W")}
	e, _ := buildEntry(c, "2026-11-22", "SEK", testSyncKey,
		[]revenueSum{sum(methodCard, figureSale, 260, "", 1030, 26)})
	e.Year = 3
	key := strings.TrimSuffix(testSyncKey, "1") + "2"
	back := reverseEntry(e, "2027-01-02", key, "W 12")
	want := "1580 C 10.30  0 | Reversal: Received by card\n3002 D 10.04  0 | Reversal: Sales 2.6 %\n" +
		"2621 D 0.26  0 | Reversal: VAT 2.6 %"
	if got := ledgerText(back); !sameLines(got, want) || back.Series != "W" || back.Date != "2027-01-02" ||
		back.Year != 0 {
		t.Errorf("%+v:\n%s", back, got)
	}
	if back.Narration != "Reversal of W 12: Revenue 2026-11-22 SEK ("+key+")" {
		t.Error(back.Narration) // with the other key in it, it would be found as the entry that it reverses
	}
	if e.Lines[0].Debit != 1030 || e.Year != 3 {
		t.Errorf("the entry itself was changed: %+v", e)
	}
}

func TestEntry_isTheSameOnlyWithAllThatCounts(t *testing.T) {
	t.Parallel()
	c := &bookConnection{Product: productXero, Mapping: xeroMapping()}
	sent, _ := buildEntry(c, "2026-11-22", "CHF", testSyncKey, aDay())
	for name, change := range map[string]func(*bookEntry){
		"same: another order": func(e *bookEntry) { slices.Reverse(e.Lines) },
		"same: other texts":   func(e *bookEntry) { e.Narration, e.Lines[0].Text, e.Lines[2].VAT = "", "x", 1 },
		"same: white space":   func(e *bookEntry) { e.Narration = strings.Replace(e.Narration, " ", "\n ", 1) + " " },
		"same: a draft":       func(e *bookEntry) { e.Status = entryDraft },
		"same: VAT":           func(e *bookEntry) { e.Lines[2].VAT, e.Lines[2].Rate = 8100, 810 },
		"same: no tax":        func(e *bookEntry) { e.Lines[0].Tax = "" },
		"same: a line of 0":   func(e *bookEntry) { e.Lines = append(e.Lines, entryLine{Account: "999"}) },
		"same: a blank line":  func(e *bookEntry) { e.Lines = append(e.Lines, entryLine{}) },
		"a tax of none":       func(e *bookEntry) { e.Lines[0].Tax = "OUTPUT2" },
		"another date":        func(e *bookEntry) { e.Date = "2026-11-23" },
		"another account":     func(e *bookEntry) { e.Lines[0].Account = "612" },
		"another tax":         func(e *bookEntry) { e.Lines[2].Tax = "NONE" },
		"another cost centre": func(e *bookEntry) { e.Lines[3].CostCenter = "" },
		"another amount":      func(e *bookEntry) { e.Lines[0].Debit++ },
		"the other side":      func(e *bookEntry) { e.Lines[0].Debit, e.Lines[0].Credit = 0, e.Lines[0].Debit },
		"a line is gone":      func(e *bookEntry) { e.Lines = e.Lines[1:] },
		"a line twice":        func(e *bookEntry) { e.Lines = append(e.Lines, e.Lines[0]) },
		"a line is split": func(e *bookEntry) {
			e.Lines[0].Debit -= 5
			e.Lines = append(e.Lines, entryLine{Account: "610", Tax: "NONE", Debit: 5})
		},
	} {
		read := *sent
		read.Lines = slices.Clone(sent.Lines)
		change(&read)
		if got, want := sameEntry(sent, &read), strings.HasPrefix(name, "same"); got != want ||
			sameEntry(&read, sent) != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A month of a restaurant: orders by all methods, refunds of all kinds, disputes, and the books of each day,
// reconciled to the cent by an oracle that knows only what was ordered and what was given back.

// A monthDay is what the oracle has counted on a business day.
type monthDay struct{ sales, delivery, tips, refunds, disputes, vat, cards, cash int64 }

// A monthOrder is what the oracle knows of an order.
type monthOrder struct {
	id                   string
	online               bool
	taxed, delivery, tip int64 // delivery is part of taxed
	line, given, tipBack int64 // line: of the first one; given of taxed
	disputed             int64
}

// A month is what happens in one.
type month struct {
	*bookkeeper
	random      *rand.Rand
	connections map[string]*paymentConnection // by ways of paying; the others are paid outside
	days        map[businessDate]*monthDay
	orders      []*monthOrder
}

// vatOf is the VAT in a gross amount, rounded half up.
func (m *month) vatOf(gross int64) int64 {
	return (2*gross*m.rate + 10_000 + m.rate) / (2 * (10_000 + m.rate))
}

// today is the present business day. All of it happens between its cut-offs.
func (m *month) today() *monthDay {
	date := time.Now().UTC().Format(time.DateOnly)
	if m.days[date] == nil {
		m.days[date] = &monthDay{}
	}
	return m.days[date]
}

// moves counts money that came from a guest, or went back.
func (m *month) moves(o *monthOrder, amount int64) {
	if o.online {
		m.today().cards += amount
	} else {
		m.today().cash += amount
	}
}

// sell has a guest order something and pay it.
func (m *month) sell(method string) {
	m.t.Helper()
	price, units := 450+m.random.Int64N(3000), 1+m.random.Int64N(3)
	drink, delivery := m.random.Int64N(2)*(299+m.random.Int64N(900)), m.random.Int64N(2)*690
	tip := m.random.Int64N(3) * 155
	row := &order{AccountID: m.account, Currency: m.currency, ReturnURL: siteOrigin, Delivery: delivery,
		DeliveryRate: m.rate, Tip: tip, Lines: []orderLine{
			{Name: "Menu", Quantity: units, UnitAmount: price, VATRate: m.rate, Group: "food"},
			{Name: "Drink", Quantity: 1, UnitAmount: drink, VATRate: m.rate}}}
	m.change(func(t *tx) error { return m.pays(t, row, method) })
	o := &monthOrder{id: row.ID, online: m.connections[method] != nil, taxed: price*units + drink + delivery,
		delivery: delivery, tip: tip, line: price * units}
	m.orders = append(m.orders, o)
	day := m.today()
	day.sales, day.delivery, day.tips = day.sales+price*units+drink, day.delivery+delivery, day.tips+tip
	day.vat += m.vatOf(o.taxed)
	m.moves(o, o.taxed+tip)
}

// pays writes an order that is paid at once.
func (m *month) pays(t *tx, o *order, method string) error {
	if _, err := createOrder(t, o, guest{}, maxOrderLife, actorCommand); err != nil {
		return err
	}
	connection := m.connections[method]
	if connection == nil {
		return markPaid(t, o, orderMethod(method), t.now, actorCommand)
	}
	paid := &payment{ID: t.newID("pay"), OrderID: o.ID, AccountID: o.AccountID, ConnectionID: connection.ID,
		Provider: providerName(connection.Provider), Method: paymentMethod(method),
		State: paymentCaptured, Amount: o.Total, Captured: o.Total,
		Currency: o.Currency, CreatedAt: t.now, AuthorizedAt: t.now, CapturedAt: t.now, CheckedAt: t.now,
		Revision: 2} // as if it had been written when it began, and when it was paid
	paymentTable.insert(t, paid)
	o.PaymentID, o.Attempts, o.AuthorizedAt, o.AcceptedAt = &paid.ID, 1, t.now, t.now
	return markPaid(t, o, orderMethod(method), t.now, actorCommand)
}

// givesBack refunds an order, and updates its payment as its provider would have reported it.
func givesBack(t *tx, orderID string, w newRefund) error {
	o, f, err := refundOrder(t, anyAccount, orderID, w, actorCommand)
	if err != nil {
		return err
	}
	if err := endRefund(t, o, f, "", actorCommand); err != nil || f.PaymentID == nil {
		return err
	}
	paid, err := t.payment(*f.PaymentID)
	if err != nil {
		return err
	}
	paid.State, paid.Refunded, paid.DueAt = paymentPartRefunded, paid.Refunded+f.Amount, stamp{}
	if paid.Refunded == paid.Captured {
		paid.State = paymentRefunded
	}
	return t.savePayment(paid)
}

// giveBack gives a part of an order back, which is taxed, and a part of its tip.
func (m *month) giveBack(o *monthOrder, w newRefund, taxed, tip int64) {
	m.t.Helper()
	m.change(func(t *tx) error { return givesBack(t, o.id, w) })
	day, vat := m.today(), m.vatOf(o.given+taxed)-m.vatOf(o.given)
	o.given, o.tipBack = o.given+taxed, o.tipBack+tip
	day.refunds, day.vat = day.refunds+taxed+tip, day.vat-vat
	m.moves(o, -taxed-tip)
}

// refund gives something of an order back, in one of all ways: parts of it once, or all that is left.
func (m *month) refund(o *monthOrder) {
	m.t.Helper()
	amount := 1 + m.random.Int64N(o.line)
	switch kind := m.random.IntN(4); {
	case o.disputed > 0 || o.given == o.taxed && o.tipBack == o.tip:
	case kind == 0 || o.given > 0 || o.tipBack > 0:
		m.giveBack(o, newRefund{}, o.taxed-o.given, o.tip-o.tipBack)
	case kind == 1 && o.delivery > 0:
		m.giveBack(o, newRefund{delivery: o.delivery, tip: o.tip}, o.delivery, o.tip)
	case kind == 2 && o.tip > 0:
		m.giveBack(o, newRefund{tip: o.tip - 1}, 0, o.tip-1)
	default:
		m.giveBack(o, newRefund{lines: []linePart{{Amount: amount}}}, amount, 0)
	}
}

// dispute has the bank say something of an order: what it has taken now counts.
func (m *month) dispute(o *monthOrder, state string, taken int64) {
	m.t.Helper()
	m.change(func(t *tx) error {
		row, err := t.order(anyAccount, o.id)
		if err != nil {
			return err
		}
		d := &dispute{PaymentID: *row.PaymentID, ID: "du_" + o.id, OrderID: o.id, Amount: row.Total,
			State:    disputeState(state),
			OpenedAt: t.now, Taken: taken, MovedAt: t.now}
		if state == disputeWon || state == disputeLost {
			d.ClosedAt = t.now
		}
		t.saveDispute(d)
		return nil
	})
	m.today().disputes += taken - o.disputed
	m.moves(o, o.disputed-taken)
	o.disputed = taken
}

// opens has a day go by: its orders, refunds of it and of earlier days, and what banks say of earlier ones.
func (m *month) opens(day, orders int) {
	m.t.Helper()
	methods := []string{methodCard, methodMobile, methodTwint, methodCash, methodTerminal, methodVoucher, methodOther}
	for n := range orders {
		m.sell(methods[(day+n)%len(methods)])
	}
	for range 1 + orders/8 {
		m.refund(m.orders[m.random.IntN(len(m.orders))])
	}
	asked := m.orders[day*orders] // of a day that begins with a card, mobile or TWINT
	if asked.online && asked.given+asked.tipBack == 0 {
		m.dispute(asked, disputeInquiry, 0)
	}
	if before := day - 2; before >= 0 {
		if o := m.orders[before*orders]; o.online && o.given+o.tipBack == 0 {
			m.dispute(o, disputeOpen, o.taxed+o.tip)
		}
	}
	if before := day - 4; before >= 0 && m.orders[before*orders].disputed > 0 {
		o := m.orders[before*orders]
		if day%2 == 0 {
			m.dispute(o, disputeWon, 0)
		} else {
			m.dispute(o, disputeLost, o.disputed)
		}
	}
	m.recordRevenue()
}

// daysAgree compares the revenue of each day with what the oracle has counted.
func (m *month) daysAgree() (sum monthDay) {
	m.t.Helper()
	for date, want := range m.days {
		day := m.get("/revenue/days/"+date, m.accountant()).is(200).json()
		totals := day["days"].([]any)[0].(map[string]any)["totals"].(map[string]any)
		got := fmt.Sprint(totals["sales"], totals["delivery"], totals["tips"], totals["refunds"], totals["disputes"],
			totals["total"], totals["vat"])
		money := want.cards + want.cash
		expected := fmt.Sprint(float64(want.sales), float64(want.delivery), float64(want.tips), float64(want.refunds),
			float64(want.disputes), float64(money), float64(want.vat))
		equal(m.t, "the revenue of "+date, got, expected)
		if want.sales+want.delivery+want.tips-want.refunds-want.disputes != money {
			m.t.Errorf("the oracle contradicts itself: %+v", want)
		}
		sum.cards, sum.cash, sum.vat = sum.cards+want.cards, sum.cash+want.cash, sum.vat+want.vat
		sum.disputes += want.disputes
	}
	return sum
}

// accounts adds up what the books have on each account, debits above 0.
func (m *month) accounts() map[string]int64 {
	on := map[string]int64{}
	for _, v := range m.fortnox.vouchers() {
		for _, row := range v.rows {
			if !row.removed {
				on[strconv.FormatInt(row.account, 10)] += row.debit - row.credit
			}
		}
	}
	for _, j := range m.xero.journals() {
		for _, l := range j.lines {
			on[l.account] += l.amount // VAT included
		}
	}
	return on
}

// Against a guest's late refund, or a provider's late report, who would change a day that is in the books: a frozen
// day takes nothing more; late facts count on the open day.
func TestBooks_ofAMonthOfARestaurantAgreeToTheCent(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, product := range []string{productXero, productFortnox} {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &month{bookkeeper: newBookkeeper(t, product), random: random(t, 9),
					days: map[businessDate]*monthDay{}}
				m.pass()
			})
		})
	}
}

// pass has the month pass, and compares both books with the oracle.
func (m *month) pass() {
	m.t.Helper()
	m.connections = map[string]*paymentConnection{}
	for method, provider := range map[string]string{methodCard: providerStripe, methodMobile: providerVipps} {
		c := &unsealedConnection{&paymentConnection{ID: newID("con", time.Now()), AccountID: m.account,
			Provider: provider, Live: true, CreatedAt: newStamp(time.Now()), Methods: providerOf(provider).methods},
			connectionSecrets{Key: "rk_live_month"}}
		m.check(c.seal(m.keys))
		m.change(func(t *tx) error {
			t.addPaymentConnection(c.paymentConnection)
			return nil
		})
		m.connections[method] = c.paymentConnection
	}
	m.connections[methodTwint] = m.connections[methodCard]
	cards, cash, sales, tips, disputes, vat := "600", "602", "200", "220", "480", ""
	if m.product == productFortnox {
		cards, cash, sales, tips, disputes, vat = "1580", "1910", "3002", "2890", "6352", "2621"
	}
	m.remap(func(b *bookMapping) {
		for _, method := range []bookPayMethod{methodMobile, methodTwint} {
			b.Lines = append(b.Lines, mappingRule{Kind: rulePayment, Method: &method, Account: cards})
		}
		for _, method := range []bookPayMethod{methodTerminal, methodVoucher, methodOther} {
			b.Lines = append(b.Lines, mappingRule{Kind: rulePayment, Method: &method, Account: cash})
		}
	})
	m.set(func(c *bookConnection) { c.Outside = true })
	m.sendFrom(bookkeeperDay)
	days := size(6, 30)
	for day := range days {
		m.opens(day, size(12, 24))
		m.time(6 * time.Hour)
		m.time(12 * time.Hour) // after the cut-off and its grace
		m.work(time.Hour)
		m.time(5 * time.Hour)
	}
	m.time(24 * time.Hour)
	m.work(time.Hour)
	posted := 0
	for _, x := range m.exports() {
		if x.State != exportPosted {
			m.t.Errorf("the export of %s is %s: %s", x.Date, x.State, valueOr(x.Detail, ""))
		}
		posted++
	}
	equal(m.t, "days in the books", posted, len(m.days))
	sum := m.daysAgree()
	tip := int64(0)
	for _, o := range m.orders {
		tip += o.tip - o.tipBack
	}
	sold := sum.cards + sum.cash + sum.disputes - tip // VAT included
	want := map[string]int64{cards: sum.cards, cash: sum.cash, tips: -tip, disputes: sum.disputes, sales: -sold}
	if vat != "" {
		want[vat], want[sales] = -sum.vat, sum.vat-sold
	}
	got := m.accounts()
	for account, amount := range want {
		equal(m.t, "account "+account, got[account], amount)
	}
	equal(m.t, "accounts in the books", len(got), len(want))
}
