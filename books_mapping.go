package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
)

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
