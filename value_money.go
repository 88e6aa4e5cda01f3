package main

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Amounts of money are integers in the minor unit of a currency, so that 1250 is 12.50. None is negative.
// Rates of VAT are in hundredths of a percent, so that 810 is 8.1 %.

// currencies are those that orders can have (ISO 4217): those to which every provider gives two decimals.
// Providers disagree about the decimals of others, such as HUF and ISK.
var currencies = []string{
	"AUD", "CAD", "CHF", "CZK", "DKK", "EUR", "GBP", "NOK", "NZD", "PLN", "RON", "SEK", "USD",
}

const (
	maxAmount  = 1_000_000_000_000 // 10,000,000,000.00; far below what an int64 holds
	maxVATRate = 10_000            // 100 %
)

// checkCurrency is a textCheck for a currency.
var checkCurrency = &textCheck{words: currencies, of: func(s string) (code, detail string) {
	if !slices.Contains(currencies, s) {
		return "unknown_currency", "This must be one of " + strings.Join(currencies, ", ") + ", in capitals."
	}
	return "", ""
}}

// addUp returns the sum of amounts. It reports false if one is negative or above maxAmount, or the sum is.
func addUp(amounts ...int64) (sum int64, ok bool) {
	for _, a := range amounts {
		if a < 0 || a > maxAmount-sum {
			return 0, false
		}
		sum += a
	}
	return sum, true
}

// inBounds reports whether an amount that may be negative is at most maxAmount.
func inBounds(amount int64) bool { return amount >= -maxAmount && amount <= maxAmount }

// multiply returns an amount times a quantity. It reports false if either is negative, or the product is
// above maxAmount.
func multiply(amount, quantity int64) (product int64, ok bool) {
	if amount < 0 || quantity < 0 {
		return 0, false
	}
	high, low := bits.Mul64(uint64(amount), uint64(quantity))
	if high > 0 || low > maxAmount {
		return 0, false
	}
	return int64(low), true
}

// vatIn returns the VAT that is included in a gross amount of at most maxAmount, at a rate of at most
// maxVATRate, rounded half up.
func vatIn(gross, rate int64) int64 {
	return portion(gross, rate, maxVATRate+rate)
}

// portion returns part/whole of an amount, rounded half up. The amount is at most maxAmount, and
// 0 <= part <= whole, 0 < whole.
func portion(amount, part, whole int64) int64 {
	high, low := bits.Mul64(uint64(amount), uint64(part))
	quotient, rest := bits.Div64(high, low, uint64(whole))
	if rest >= uint64(whole)-rest {
		quotient++
	}
	return int64(quotient)
}

// spread divides an amount in proportion to weights by the method of the largest remainder: each part is
// less than one unit from its exact proportion, and they add up to the amount. Of equal remainders the
// first ones get the units that are left. No part is above its weight if the amount is at most the sum of
// the weights. Amount and weights are not negative, and their sum is at most maxAmount; if all weights are
// 0, so must be the amount.
func spread(amount int64, weights []int64) []int64 {
	whole := int64(0)
	for _, w := range weights {
		whole += w
	}
	parts := make([]int64, len(weights))
	if amount == 0 || whole == 0 {
		return parts
	}
	left, order, rests := amount, make([]int, len(weights)), make([]uint64, len(weights))
	for i, w := range weights {
		high, low := bits.Mul64(uint64(amount), uint64(w))
		quotient, rest := bits.Div64(high, low, uint64(whole))
		parts[i], rests[i], order[i] = int64(quotient), rest, i
		left -= parts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rests[b], rests[a]) })
	for _, i := range order[:left] {
		parts[i]++
	}
	return parts
}

// formatAmount returns an amount in the major unit: "12.50".
func formatAmount(amount int64) string { return fmt.Sprintf("%d.%02d", amount/100, amount%100) }

// formatSigned returns an amount in the major unit, which may be negative: "-12.50".
func formatSigned(amount int64) string {
	if amount < 0 {
		return "-" + formatAmount(-amount)
	}
	return formatAmount(amount)
}

// formatMoney returns an amount, which may be negative, with its currency, as people read it: "57.00 CHF".
func formatMoney(amount int64, currency string) string { return formatSigned(amount) + " " + currency }

// formatRate returns a rate of VAT: "8.1 %".
func formatRate(rate int64) string {
	return strconv.FormatFloat(float64(rate)/100, 'f', -1, 64) + " %"
}

// parseAmount parses an amount in the major unit, with a point and two decimals or without decimals:
// "12.50", "12". It reports false for anything else, and above maxAmount.
func parseAmount(s string) (int64, bool) {
	major, minor, hasMinor := strings.Cut(s, ".")
	if !hasMinor {
		minor = "00"
	}
	digits := major + minor
	if major == "" || len(minor) != 2 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil && n <= maxAmount
}

// hundredths returns a number times 100, exactly. It reports false for a text that is no number, has a digit other
// than 0 after its second decimal, has an exponent, or is above maxAmount.
func hundredths(text string) (int64, bool) {
	text, negative := strings.CutPrefix(text, "-")
	major, minor, _ := strings.Cut(text, ".")
	minor = strings.TrimRight(minor, "0")
	if len(minor) > 2 {
		return 0, false
	}
	n, ok := parseAmount(major + "." + minor + "00"[len(minor):])
	if negative {
		n = -n
	}
	return n, ok
}
