package main

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMoney_sumsAndProductsRefuseWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		amounts []int64
		sum     int64
		ok      bool
	}{
		{nil, 0, true},
		{[]int64{1, 2, 3}, 6, true},
		{[]int64{maxAmount}, maxAmount, true},
		{[]int64{maxAmount, 0}, maxAmount, true},
		{[]int64{maxAmount, 1}, 0, false},
		{[]int64{maxAmount + 1}, 0, false},
		{[]int64{5, -1}, 0, false},
		{[]int64{math.MaxInt64, math.MaxInt64}, 0, false},
	} {
		if sum, ok := addUp(c.amounts...); sum != c.sum || ok != c.ok {
			t.Errorf("addUp(%d) is %d, %v", c.amounts, sum, ok)
		}
	}
	for _, c := range []struct {
		amount, quantity, product int64
		ok                        bool
	}{
		{0, math.MaxInt64, 0, true},
		{1850, 2, 3700, true},
		{maxAmount, 1, maxAmount, true},
		{maxAmount / 2, 2, maxAmount, true},
		{maxAmount/2 + 1, 2, 0, false},
		{1 << 32, 1 << 32, 0, false}, // 2^64 wraps to 0
		{math.MaxInt64, math.MaxInt64, 0, false},
		{-1, 1, 0, false},
		{1, -1, 0, false},
	} {
		if product, ok := multiply(c.amount, c.quantity); product != c.product || ok != c.ok {
			t.Errorf("multiply(%d, %d) is %d, %v", c.amount, c.quantity, product, ok)
		}
	}
}

// halfUp returns part/whole of an amount, rounded half up, by rational numbers.
func halfUp(amount, part, whole int64) int64 {
	exact := new(big.Rat).Mul(big.NewRat(amount, 1), big.NewRat(part, whole))
	exact.Add(exact, big.NewRat(1, 2))
	return new(big.Int).Quo(exact.Num(), exact.Denom()).Int64()
}

func TestMoney_VATIsRoundedHalfUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ gross, rate, vat int64 }{
		{10810, 810, 810}, {3700, 260, 94}, {1600, 810, 120}, {100, 0, 0}, {0, 810, 0}, {1, 10_000, 1}, {3, 10_000, 2},
		{119, 1900, 19}, {maxAmount, 10_000, maxAmount / 2},
	} {
		if vat := vatIn(c.gross, c.rate); vat != c.vat {
			t.Errorf("the VAT in %d at %d is %d, want %d", c.gross, c.rate, vat, c.vat)
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		gross, rate := random.Int64N(maxAmount+1)>>random.IntN(40), random.Int64N(maxVATRate+1)
		if vat, want := vatIn(gross, rate), halfUp(gross, rate, maxVATRate+rate); vat != want {
			t.Fatalf("the VAT in %d at %d is %d, want %d", gross, rate, vat, want)
		}
	}
}

func TestMoney_spreadGivesEqualRemaindersToTheFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		amount  int64
		weights []int64
		parts   []int64
	}{
		{10, []int64{1, 1, 1}, []int64{4, 3, 3}},
		{11, []int64{1, 1, 1}, []int64{4, 4, 3}},
		{1, []int64{1, 2, 2}, []int64{0, 1, 0}},
		{300, []int64{3700, 1600, 700}, []int64{185, 80, 35}},
		{5, []int64{0, 5, 0}, []int64{0, 5, 0}},
		{0, []int64{0, 0}, []int64{0, 0}},
		{0, nil, nil},
		{maxAmount, []int64{maxAmount - 1, 1}, []int64{maxAmount - 1, 1}},
	} {
		if parts := spread(c.amount, c.weights); !slices.Equal(parts, c.parts) {
			t.Errorf("%d spread over %d is %d, want %d", c.amount, c.weights, parts, c.parts)
		}
	}
}

// checkSpread fails unless spread keeps its promises for an amount and weights.
func checkSpread(t *testing.T, amount int64, weights []int64) {
	t.Helper()
	parts := spread(amount, weights)
	sum, whole := int64(0), int64(0)
	for _, w := range weights {
		whole += w
	}
	for i, part := range parts {
		sum += part
		exact := new(big.Rat).Mul(big.NewRat(amount, 1), big.NewRat(weights[i], whole))
		off := new(big.Rat).Sub(exact, big.NewRat(part, 1))
		if part < 0 || off.Abs(off).Cmp(big.NewRat(1, 1)) >= 0 || amount <= whole && part > weights[i] {
			t.Fatalf("%d spread over %d is %d: part %d", amount, weights, parts, i)
		}
		for j := range i { // an equal weight that stands before gets no less
			if weights[j] == weights[i] && parts[j] < part {
				t.Fatalf("%d spread over %d is %d: part %d has more than %d", amount, weights, parts, i, j)
			}
		}
	}
	if sum != amount {
		t.Fatalf("%d spread over %d is %d, which add up to %d", amount, weights, parts, sum)
	}
}

func TestMoney_spreadLosesAndMakesNothing(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(2, 2))
	for range 3000 {
		weights := make([]int64, 1+random.IntN(12))
		for i := range weights {
			weights[i] = random.Int64N(maxAmount/20) >> random.IntN(40)
		}
		weights[random.IntN(len(weights))]++
		checkSpread(t, random.Int64N(maxAmount+1)>>random.IntN(40), weights)
	}
}

func FuzzMoney_spread(f *testing.F) {
	f.Add(int64(10), int64(1), int64(1), int64(1))
	f.Add(int64(maxAmount), int64(maxAmount-2), int64(1), int64(1))
	f.Add(int64(1), int64(0), int64(7), int64(0))
	f.Fuzz(func(t *testing.T, amount, a, b, c int64) {
		whole, ok := addUp(a, b, c)
		if _, fits := addUp(amount); ok && fits && whole > 0 {
			checkSpread(t, amount, []int64{a, b, c})
		}
	})
}

func TestMoney_portionsAddUpToTheAmount(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		amount, whole := random.Int64N(maxAmount+1)>>random.IntN(40), 1+random.Int64N(maxQuantity)
		n := random.Int64N(whole + 1)
		got := portion(amount, n, whole)
		if got != halfUp(amount, n, whole) || portion(amount, whole, whole) != amount ||
			portion(amount, 0, whole) != 0 {
			t.Fatalf("%d of %d units of %d are %d", n, whole, amount, got)
		}
	}
}

func TestMoney_amountsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0.00": 0, "12.50": 1250, "12": 1200, "0.05": 5, "007.10": 710,
		"10000000000.00": maxAmount} {
		if got, ok := parseAmount(text); got != want || !ok {
			t.Errorf("%q is %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", ".", ".50", "1.5", "1.505", "1,50", "-1.00", "+1.00", "1e3", "1.5e", " 1",
		"10000000000.01", "99999999999999999999.00", "1.0.0"} {
		if got, ok := parseAmount(text); ok {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}

// What is parsed and printed again is the same amount.
func FuzzMoney_amounts(f *testing.F) {
	for _, seed := range []string{"12.50", "12", "0.00", "1.5", "10000000000.00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		amount, ok := parseAmount(text)
		if !ok {
			return
		}
		if again, ok := parseAmount(formatAmount(amount)); !ok || again != amount || amount < 0 || amount > maxAmount {
			t.Fatalf("%q is %d, which prints as %s", text, amount, formatAmount(amount))
		}
	})
}
