package main

import (
	"fmt"
	"slices"
)

// readMapping reads {"lines":[…]} from the body of a request, for a product. Members that are null count as
// absent, so that a mapping can be sent as it was answered.
func readMapping(in *input, product string) bookMapping {
	m := bookMapping{Lines: []mappingRule{}}
	seen := map[string]bool{}
	for _, line := range in.objects("lines", maxMappingRules) {
		before := len(*in.errs)
		r := readRule(line, product)
		key := fmt.Sprintf("%s %d %t %q %s", r.Kind, valueOr(r.VATRate, -1), r.Group == nil,
			valueOr(r.Group, ""), valueOr(r.Method, ""))
		switch {
		case len(*in.errs) > before: // then what it is for is not known
		case seen[key]:
			line.wrong("kind", "repeated", "Another line is for the same.")
		default:
			seen[key] = true
		}
		m.Lines = append(m.Lines, r)
	}
	return m
}

// readRule reads one line of a mapping.
func readRule(in *input, product string) (r mappingRule) {
	r.Kind = in.text("kind", required, 20, oneOf(ruleKinds...))
	r.Account = in.text("account", required, 10, accountCheck(product))
	if in.ofKinds("vat_rate", r.Kind, ruleSales, ruleDelivery) {
		r.VATRate = new(in.amount("vat_rate", required, 0, maxVATRate))
	}
	if in.ofKinds("group", r.Kind, ruleSales) && in.given("group") {
		r.Group = new(in.text("group", optional, maxOrderText, nil))
	}
	if in.ofKinds("method", r.Kind, rulePayment) {
		r.Method = nilIfEmpty(in.text("method", required, 20, oneOf(payingMethods...)))
	}
	readTax(in, product, &r)
	if in.given("cost_center") {
		r.CostCenter = nilIfEmpty(in.text("cost_center", required, maxCostCenter, costCenterCheck(product)))
	}
	return r
}

// readTax reads the tax of a line: a TaxType of Xero, or the account of the VAT at Fortnox, where a rate of 0
// needs none.
func readTax(in *input, product string, r *mappingRule) {
	byRate := r.Kind == ruleSales || r.Kind == ruleDelivery
	need := need(byRate && (product == productXero || valueOr(r.VATRate, 0) > 0))
	if product == productFortnox && !in.ofKinds("tax", r.Kind, ruleSales, ruleDelivery) {
		return
	}
	if need == required || in.given("tax") {
		r.Tax = nilIfEmpty(in.text("tax", required, maxTaxType, taxCheck(product)))
	}
}

// given reports whether a member is present and not null.
func (in *input) given(name string) bool { return in.has(name) && !in.isNull(name) }

// ofKinds reports whether a member belongs to a line of a mapping of that kind. One that does not, and is not
// null, is wrong.
func (in *input) ofKinds(name, kind string, kinds ...string) bool {
	if slices.Contains(kinds, kind) {
		return true
	}
	if kind != "" && in.given(name) {
		in.wrong(name, "not_of_this_kind", "A line of the kind "+kind+" has no such member.")
	}
	return false
}

// booksOf makes the engine of a server's books.
func booksOf(s *server) *books {
	return &books{store: s.store, keys: s.keys.Load, ledgers: newLedgers(s.outbound, s.xeroURL, s.fortnoxURL, s.now),
		log: s.log, now: s.now, steady: s.steady, strike: s.strike, off: s.noBooks, wake: make(chan struct{}, 1),
		paces: map[string]*bookPace{}}
}
