package main

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"flag"
	"io"
	"io/fs"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// writeEmbedded compresses what the program embeds compressed, after a change of it:
//
//	go test -run TestEmbedded -write-embedded .
var writeEmbedded = flag.Bool("write-embedded", false, "write the compressed copies of what the program embeds")

// embeddedTexts are the texts of which the program has a compressed copy, by their names: schema.sql, all of schema,
// all of web but the script, which every start needs, and what the pages of the documentation are made of; and those
// pages.
func embeddedTexts(t testing.TB) map[string]string {
	t.Helper()
	texts := makeDocs(t)
	for _, pattern := range []string{"schema.sql", "schema/*", "web/*"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		for _, name := range found {
			sample := slices.Contains([]string{".sh", ".py", ".mjs", ".md"}, filepath.Ext(name)) ||
				strings.HasSuffix(name, ".txt") && name != "web/demo.txt"
			if !sample && !strings.HasPrefix(name, "web/widget") && name != "web/docs.html" {
				texts[name] = fileText(t, name)
			}
		}
	}
	return texts
}

func TestEmbedded_isWhatItsSourcesAre(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	texts := embeddedTexts(t)
	if *writeEmbedded {
		must(t, os.RemoveAll("compressed"))
		for name, text := range texts {
			var small bytes.Buffer
			dictionary := dictionaryOf(name, func(other string) string { return texts[other] })
			z, err := flate.NewWriterDict(&small, flate.BestCompression, dictionary)
			must(t, err)
			_, err = z.Write([]byte(text))
			must(t, err)
			must(t, z.Close())
			name = "compressed/" + name + ".deflate"
			must(t, os.MkdirAll(filepath.Dir(name), 0o755))
			must(t, os.WriteFile(name, small.Bytes(), 0o644))
		}
		t.Skip("written; build the test anew to check it")
	}
	err := fs.WalkDir(compressedFiles, ".", func(name string, d fs.DirEntry, err error) error {
		source := strings.TrimSuffix(strings.TrimPrefix(name, "compressed/"), ".deflate")
		if _, known := texts[source]; !d.IsDir() && !known {
			t.Errorf("%s is a copy of nothing that is embedded", name)
		}
		return err
	})
	must(t, err)
	for name, text := range texts {
		_, err := compressedFiles.Open("compressed/" + name + ".deflate")
		if err != nil || embedded(name) != text {
			t.Errorf("%s has changed: go test -run TestEmbedded -write-embedded .", name)
		}
	}
	if len(texts) < 20 {
		t.Errorf("found %d files only", len(texts))
	}
}

func TestJSON_errorsSayWhereAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"secret":"x","secret":"y"}`: "a member appears twice, at byte 22",
		`{"secret":"x"} secret`:       "there is more text after the object, at byte 15",
		`{"secret":"\x"}`:             "an escape is malformed, at byte 12",
		`{"secret":-}`:                "a number is malformed, at byte 11",
		`["secret"]`:                  "the text is not a JSON object",
		"{\"secret\":\"\xff\"}":       "the text is not valid UTF-8",
	} {
		if _, err := parseJSON([]byte(body)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

func TestJSON_ofThePublicVectorsIsRefusedAsALead(t *testing.T) {
	t.Parallel()
	var suite struct {
		Cases []struct {
			ID       string `json:"id"`
			Endpoint string `json:"endpoint"`
			Expect   []int  `json:"expect"`
			Body     []byte `json:"body_b64"`
		} `json:"cases"`
	}
	must(t, json.Unmarshal(vectors(t, "json_testsuite.json"), &suite))
	if len(suite.Cases) == 0 {
		t.Fatal("the file holds no case")
	}
	s := newService(t, withoutAddressLimits)
	for _, c := range suite.Cases {
		if c.Endpoint != "leads" {
			t.Errorf("%s is for %q, which this test does not know", c.ID, c.Endpoint)
			continue
		}
		a := s.post("/widget/leads", string(c.Body), "Content-Type: application/json")
		if !slices.Contains(c.Expect, a.status) {
			t.Errorf("%s, %.60q: %d, want one of %v", c.ID, c.Body, a.status, c.Expect)
			continue
		}
		a.is(a.status, a.text("code"))
	}
	if n := s.count(`SELECT (SELECT count(*) FROM leads) + (SELECT count(*) FROM events) + (SELECT count(*) FROM ` +
		`idempotency)`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// plain turns a value into what encoding/json gives with UseNumber.
func (v *jsonValue) plain() any {
	v.open()
	switch v.kind {
	case jsonBool:
		return v.boolean
	case jsonNumber:
		return json.Number(v.text)
	case jsonString:
		return v.text
	case jsonArray:
		all := []any{}
		for i := range v.list {
			all = append(all, v.list[i].plain())
		}
		return all
	case jsonObject:
		all := map[string]any{}
		for i := range v.members {
			all[v.members[i].name] = v.members[i].value.plain()
		}
		return all
	}
	return nil
}

// Whatever this parser takes encoding/json takes too, and reads the same; and what
// encoding/json then writes of it is taken again, unless its members' order told it
// apart, which JSON does not know.
func FuzzJSON(f *testing.F) {
	for _, body := range malformedBodies {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseJSON(text)
		if body, failed := parseBody(text, len(text)); (err == nil) != (failed == nil) {
			t.Fatalf("%q is read as %v, and as the body of a request as %v", text, err, failed)
		} else if err == nil && !reflect.DeepEqual(body.plain(), v.plain()) {
			t.Fatalf("%q is %v, and as the body of a request %v", text, v.plain(), body.plain())
		}
		if err != nil {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		var theirs any
		if err := dec.Decode(&theirs); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", text, err)
		}
		if _, err := dec.Token(); err != io.EOF {
			t.Fatalf("encoding/json finds more behind %q: %v", text, err)
		}
		if ours := v.plain(); !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("%q is %v here, %v for encoding/json", text, ours, theirs)
		}
		again, err := json.Marshal(theirs)
		must(t, err)
		if second, err := parseJSON(again); err != nil || !reflect.DeepEqual(second.plain(), theirs) {
			t.Fatalf("%q, written again as %q, is %v, %v", text, again, second.plain(), err)
		}
	})
}

// holdSeeds has a parser read the seeds in testdata/fuzz of a target whose inputs are one text each: it must take
// those that are called good-… and refuse those that are called bad-….
func holdSeeds(t *testing.T, target string, parse func(text string) error) {
	t.Helper()
	taken := map[string]int{}
	for _, name := range dirNames(t, "testdata/fuzz/"+target) {
		quoted := captures(`(?m)^(?:string|\[\]byte)\((".*")\)$`, fileText(t, "testdata/fuzz/"+target+"/"+name))
		text, err := strconv.Unquote(strings.Join(quoted, ""))
		must(t, err)
		kind, _, _ := strings.Cut(name, "-")
		taken[kind]++
		if err := parse(text); kind != "good" && kind != "bad" || (err == nil) != (kind == "good") {
			t.Errorf("%s: %q is read as %v", name, text, err)
		}
	}
	if taken["good"] < 10 || taken["bad"] < 10 {
		t.Errorf("%s has the seeds %v only", target, taken)
	}
}

func TestJSON_seedsAreTakenOrNotAsTheirNamesSay(t *testing.T) {
	t.Parallel()
	holdSeeds(t, "FuzzJSON", func(text string) error { return second(parseJSON([]byte(text))) })
}

func TestJSON_ofABodyHasAtMostAThousandValues(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	for values, status := range map[int]int{1000: 200, 1001: 400} {
		// type, email, x, and what is in x, which nobody knows
		unknown := strings.TrimSuffix(strings.Repeat("[],", values-3), ",")
		body := `{"type":"newsletter","email":"ada@example.com","x":[` + unknown + `]}`
		if a := s.post("/widget/leads", body); a.status != status {
			t.Errorf("%d values: %d %s, want %d", values, a.status, a.body, status)
		}
	}
	s.post("/widget/leads", `{"x":[`+strings.Repeat("1,", 1001)+`1]}`).is(400, "malformed_json")
}

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

// checkSpread fails unless spread rounds the parts of an amount down or up, up where the remainders are the largest,
// and among equal ones the first, so that they add up to it.
func checkSpread(t *testing.T, amount int64, weights []int64) {
	t.Helper()
	parts, sum, whole := spread(amount, weights), int64(0), int64(0)
	for _, w := range weights {
		whole += w
	}
	rests := make([]*big.Rat, len(parts)) // by how much more than a part is exact, before it is rounded up
	for i, part := range parts {
		sum += part
		exact := new(big.Rat).Mul(big.NewRat(amount, 1), big.NewRat(weights[i], whole))
		down := new(big.Int).Quo(exact.Num(), exact.Denom()).Int64()
		rests[i] = exact.Sub(exact, big.NewRat(down, 1))
		if part < down || part > down+1 || part > down && rests[i].Sign() == 0 {
			t.Fatalf("%d spread over %d is %d: part %d", amount, weights, parts, i)
		}
		for j := range i {
			up := part > down
			before := new(big.Rat).Mul(big.NewRat(amount, 1), big.NewRat(weights[j], whole))
			upBefore := before.Cmp(big.NewRat(parts[j], 1)) < 0
			if up && !upBefore && rests[i].Cmp(rests[j]) <= 0 || !up && upBefore && rests[i].Cmp(rests[j]) > 0 {
				t.Fatalf("%d spread over %d is %d: parts %d and %d", amount, weights, parts, j, i)
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
		checkSpread(t, random.Int64N(9), []int64{random.Int64N(3), 1, random.Int64N(3), 2}) // of equal remainders
	}
	equal(t, "nothing", spread(0, []int64{0, 0}), []int64{0, 0})
	equal(t, "of nobody", len(spread(0, nil)), 0)
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
