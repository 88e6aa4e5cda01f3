package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
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
		sum(methodCard, figureSale, 2500, "", 0, 0), // for which no account is named
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

func TestEntry_hasWhatWasPaidOutsideAndTestsOnlyIfTheyAreWanted(t *testing.T) {
	t.Parallel()
	outside := map[bookPayMethod]bool{methodCash: true, methodTerminal: true, methodVoucher: true, methodOther: true}
	for _, method := range payingMethods {
		for _, on := range []bool{false, true} {
			s := sum(string(method), figureSale, 810, "", 1000, 75)
			c := &bookConnection{Outside: on}
			equal(t, string(method), c.wants("2026-11-22", &s), on || !outside[method])
			s.Test = true
			c = &bookConnection{Outside: true, Tests: on}
			equal(t, string(method)+" of a test", c.wants("2026-11-22", &s), on)
		}
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
	if again := reverseEntry(back, e.Date, testSyncKey, "W 13"); !sameEntry(e, again) || sameEntry(e, back) {
		t.Errorf("reversed twice: %+v", again)
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
