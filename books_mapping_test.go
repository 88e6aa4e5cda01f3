package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// mappingOf reads a mapping from JSON, and returns the pointers and codes of what is wrong.
func mappingOf(t testing.TB, product, text string) (bookMapping, []string) {
	t.Helper()
	body, err := parseJSON([]byte(text))
	must(t, err)
	in := newInput(&body, nil)
	m := readMapping(in, productOf(product))
	var wrong []string
	for _, e := range *in.errs {
		wrong = append(wrong, strings.TrimPrefix(e.Pointer, "#/lines")+" "+e.Code)
	}
	return m, wrong
}

func TestMapping_wrongLinesAreNamed(t *testing.T) {
	t.Parallel()
	const sales = `"kind":"sales","vat_rate":810,"account":"3001","tax":"2611"`
	for _, c := range []struct{ product, lines, wrong string }{
		{productFortnox, `{` + sales + `}`, ""},
		{productFortnox, `{"kind":"sales","vat_rate":0,"account":"3004"}`, ""},
		{productXero, `{"kind":"sales","vat_rate":0,"account":"200"}`, "/0/tax required"},
		{productFortnox, `{"kind":"sales","vat_rate":810,"account":"3001"}`, "/0/tax required"},
		{productFortnox, `{"kind":"sales","vat_rate":810,"account":"3001","tax":null}`, "/0/tax wrong_type"},
		{productFortnox, `{"kind":"sales","account":"3001","tax":"2611"}`, "/0/vat_rate required"},
		{productFortnox, `{"kind":"delivery","vat_rate":10001,"account":"3001","tax":"2611"}`,
			"/0/vat_rate out_of_range"},
		{productFortnox, `{"kind":"delivery","vat_rate":810,"group":"food","account":"3001","tax":"2611"}`,
			"/0/group not_of_this_kind"},
		{productFortnox, `{"kind":"fees","account":"3001"}`, "/0/kind unknown_value"},
		{productFortnox, `{"kind":"tip","account":"2890","tax":"2611"}`, "/0/tax not_of_this_kind"},
		{productFortnox, `{"kind":"tip","account":"2890","vat_rate":0}`, "/0/vat_rate not_of_this_kind"},
		{productXero, `{"kind":"tip","account":"825","tax":"NONE"}`, ""},
		{productXero, `{"kind":"tip","account":"825","tax":"NO NE"}`, "/0/tax invalid_tax"},
		{productXero, `{"kind":"dispute","method":"card","account":"825"}`, "/0/method not_of_this_kind"},
		{productXero, `{"kind":"payment","account":"610"}`, "/0/method required"},
		{productXero, `{"kind":"payment","method":"none","account":"610"}`, "/0/method unknown_value"},
		{productXero, `{"kind":"payment","method":"card"}`, "/0/account required"},
		{productXero, `{"kind":"payment","method":"card","account":"6 10"}`, "/0/account invalid_account"},
		{productXero, `{"kind":"payment","method":"card","account":"12345678901"}`, "/0/account too_long"},
		{productFortnox, `{"kind":"payment","method":"card","account":"0580"}`, "/0/account invalid_account"},
		{productFortnox, `{"kind":"payment","method":"card","account":"158"}`, "/0/account invalid_account"},
		{productFortnox, `{"kind":"payment","method":"card","account":"158x"}`, "/0/account invalid_account"},
		{productXero, `{"kind":"tip","account":"825","cost_center":"North"}`, "/0/cost_center invalid_cost_center"},
		{productFortnox, `{"kind":"tip","account":"2890","cost_center":"N"}`, ""},
		{productFortnox, `{` + sales + `},{` + sales + `}`, "/1/kind repeated"},
		{productFortnox, `{` + sales + `},{` + sales + `,"group":""},{` + sales + `,"group":"food"}`, ""},
		{productFortnox, `{` + sales + `,"group":"food"},{` + sales + `,"group":"food"}`, "/1/kind repeated"},
		{productFortnox, `{"kind":"tip","account":"2890"},{"kind":"tip","account":"2891"}`, "/1/kind repeated"},
		{productFortnox, ``, " wrong_length"},
	} {
		if _, wrong := mappingOf(t, c.product, `{"lines":[`+c.lines+`]}`); strings.Join(wrong, ", ") != c.wrong {
			t.Errorf("%s, %s: %q", c.product, c.lines, wrong)
		}
	}
	var lines []string
	for i := range maxMappingRules + 1 {
		lines = append(lines, fmt.Sprintf(`{"kind":"sales","vat_rate":%d,"account":"3001","tax":"2611"}`, i+1))
	}
	if m, wrong := mappingOf(t, productFortnox, `{"lines":[`+strings.Join(lines[1:], ",")+`]}`); wrong != nil ||
		len(m.Lines) != maxMappingRules {
		t.Errorf("%d lines: %q", maxMappingRules, wrong)
	}
	if _, wrong := mappingOf(t, productFortnox, `{"lines":[`+strings.Join(lines, ",")+`]}`); !slices.Equal(wrong,
		[]string{" wrong_length"}) {
		t.Errorf("%d lines: %q", len(lines), wrong)
	}
}

// rulesText returns a mapping, one rule a line: kind, rate, group, method, account, tax.
func rulesText(m bookMapping) string {
	var lines []string
	for _, r := range m.Lines {
		line := string(r.Kind)
		if r.VATRate != nil {
			line += fmt.Sprint(" ", *r.VATRate)
		}
		if r.Group != nil {
			line += " " + *r.Group
		}
		if r.Method != nil {
			line += " " + string(*r.Method)
		}
		lines = append(lines, line+" "+r.Account+" "+valueOr(r.Tax, "-"))
	}
	return strings.Join(lines, "\n")
}

// chartOf makes a chart from lines "code type name"; an account whose name ends with ! can't be used.
func chartOf(lines ...string) *bookChart {
	chart := &bookChart{}
	for _, line := range lines {
		code, rest, _ := strings.Cut(line, " ")
		kind, name, _ := strings.Cut(rest, " ")
		a := bookAccount{Code: code, Type: strings.Trim(kind, "-"), Name: strings.TrimSuffix(name, "!"),
			Usable: !strings.HasSuffix(name, "!")}
		chart.Accounts = append(chart.Accounts, a)
	}
	return chart
}

func TestMapping_suggestionsFollowTheSwedishChart(t *testing.T) {
	t.Parallel()
	chart := chartOf("1510 - Kundfordringar", "1580 - Fordringar för kontokort och kuponger", "1910 - Kassa",
		"1930 - Företagskonto", "2421 - Ej inlösta presentkort", "2611 - Utgående moms 25 %",
		"2621 - Utgående moms 12 %", "2631 - Utgående moms 6 %", "2890 - Övriga kortfristiga skulder",
		"3001 - Försäljning 25 %", "3002 - Försäljning 12 %", "3003 - Försäljning 6 %!", "3004 - Försäljning momsfri")
	want := `sales 2500 3001 2611
sales 1200 3002 2621
sales 0 3004 -
delivery 2500 3001 2611
delivery 1200 3002 2621
delivery 0 3004 -
tip 2890 -
payment card 1580 -
payment mobile 1580 -`
	if got := rulesText(suggestMapping(&fortnoxProduct, chart, nil)); got != want {
		t.Errorf("without revenue:\n%s", got)
	}
	seen := []revenueSum{
		sum(methodCard, figureSale, 1200, "mat", 100, 11), sum(methodCash, figureSale, 2500, "", 100, 20),
		sum(methodVoucher, figureTip, 0, "", 1, 0),
		sum(methodOther, figureSale, 900, "", 100, 8), sum(methodCard, figureDelivery, 2500, "", 100, 20),
	}
	want = `sales 2500 3001 2611
sales 1200 3002 2621
delivery 2500 3001 2611
tip 2890 -
payment card 1580 -
payment mobile 1580 -
payment cash 1910 -
payment voucher 2421 -`
	if got := rulesText(suggestMapping(&fortnoxProduct, chart, seen)); got != want {
		t.Errorf("with revenue:\n%s", got)
	}
	if got := suggestMapping(&fortnoxProduct, chartOf(), seen); len(got.Lines) != 0 || got.Lines == nil {
		t.Errorf("of an empty chart: %v", got)
	}
}

func TestMapping_suggestionsKnowAccountsByTheirNames(t *testing.T) {
	t.Parallel()
	seen := []revenueSum{
		sum(methodCard, figureSale, 810, "Getränke", 100, 7), sum(methodCard, figureSale, 810, "", 100, 7),
		sum(methodMobile, figureDelivery, 810, "", 100, 7), sum(methodTerminal, figureRefund, 260, "", 100, 3),
	}
	rates := []bookTaxRate{
		{Code: "INPUT2", Rate: 810}, {Code: "TAX7", Rate: 810, Usable: true},
		{Code: "OUTPUT2", Rate: 810, Usable: true}, {Code: "TAX8", Rate: 260, Usable: true},
		{Code: "NONE", Usable: true},
	}
	chart := chartOf("090 BANK Card clearing", "110 CURRENT Debitoren Kreditkarte!", "115 CURRENT Krankenkasse",
		"200 SALES Umsatz alt!", "201 REVENUE Speiseumsatz", "202 REVENUE Getränkeverkauf",
		"203 EXPENSE Umsatzprovision", "210 REVENUE Liefergebühren", "300 CURRLIAB Trinkgelder Personal",
		"310 EXPENSE Chargebacks", "320 CURRENT Durchlaufkonto Karten", "330 CURRENT TWINT")
	chart.TaxRates = rates
	want := `sales 810 Getränke 202 OUTPUT2
sales 810 201 OUTPUT2
sales 260 201 TAX8
delivery 810 210 OUTPUT2
tip 300 NONE
dispute 310 NONE
payment card 320 NONE
payment mobile 330 NONE
payment terminal 320 NONE`
	if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); got != want {
		t.Errorf("in German:\n%s", got)
	}
	chart.Accounts[4].Tax = "TAX7"
	if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); !strings.Contains(got, "sales 810 201 TAX7") {
		t.Errorf("with a tax of its own:\n%s", got)
	}
	for language, accounts := range map[string][]string{
		"English": {"200 REVENUE Food Sales", "210 REVENUE Delivery income", "825 CURRLIAB Tips payable to staff",
			"860 CURRENT Undeposited funds"},
		"French": {"200 REVENUE Ventes de repas", "210 REVENUE Frais de livraison", "825 LIABILITY Pourboires",
			"860 CURRENT Cartes de crédit"},
		"Swedish": {"200 SALES Försäljning mat", "210 SALES Frakt", "825 CURRLIAB Dricks",
			"860 CURRENT Avräkningskonto"},
		"Danish": {"200 SALES Salg af mad", "210 SALES Levering", "825 CURRLIAB Drikkepenge",
			"860 CURRENT Mellemregning kort"},
		"Norwegian": {"200 SALES Salgsinntekter", "210 SALES Frakt", "825 CURRLIAB Tips", "860 CURRENT Oppgjørskonto"},
	} {
		chart := chartOf(append(accounts, "100 BANK Tips sales delivery clearing", "600 DIRECTCOSTS Cost of sales")...)
		chart.TaxRates = rates
		want := "sales 810 200 OUTPUT2\nsales 260 200 TAX8\ndelivery 810 210 OUTPUT2\ntip 825 NONE\n" +
			"payment card 860 NONE\npayment mobile 860 NONE\npayment terminal 860 NONE"
		if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); got != want {
			t.Errorf("in %s:\n%s", language, got)
		}
	}
}

func TestMapping_suggestsNothingThatIsNotClear(t *testing.T) {
	t.Parallel()
	seen := []revenueSum{sum(methodCard, figureSale, 2000, "", 120, 20)}
	for name, c := range map[string]struct {
		accounts []string
		rates    []bookTaxRate
		want     string
	}{
		"two accounts without a name": {[]string{"200 REVENUE A", "201 REVENUE B"},
			[]bookTaxRate{{Code: "OUTPUT2", Rate: 2000, Usable: true}}, ""},
		"one account without a name": {[]string{"200 REVENUE A"},
			[]bookTaxRate{{Code: "OUTPUT2", Rate: 2000, Usable: true}}, "sales 2000 200 OUTPUT2"},
		"two rates": {[]string{"200 REVENUE Sales"},
			[]bookTaxRate{{Code: "A", Rate: 2000, Usable: true}, {Code: "B", Rate: 2000, Usable: true}}, ""},
		"a rate for purchases": {[]string{"200 REVENUE Sales"}, []bookTaxRate{{Code: "OUTPUT2", Rate: 2000}}, ""},
		"no rate of 0":         {[]string{"1 CURRENT Stripe"}, nil, ""},
		"that of Australia": {[]string{"1 CURRENT Stripe"},
			[]bookTaxRate{{Code: "BASEXCLUDED", Usable: true}}, "payment card 1 BASEXCLUDED"},
	} {
		chart := chartOf(c.accounts...)
		chart.TaxRates = c.rates
		if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
