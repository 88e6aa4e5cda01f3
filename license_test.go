package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// symbolsOf gives the 25 symbols of a key as numbers.
func symbolsOf(t testing.TB, key string) []byte {
	t.Helper()
	symbols := []byte{}
	for _, r := range strings.ReplaceAll(key, "-", "") {
		i := strings.IndexRune(upperCrockford, r)
		if i < 0 {
			t.Fatalf("%q is no key of ours", key)
		}
		symbols = append(symbols, byte(i))
	}
	if len(symbols) != keySymbols {
		t.Fatalf("%q has %d symbols", key, len(symbols))
	}
	return symbols
}

func keyText(symbols []byte) string {
	var b strings.Builder
	for _, s := range symbols {
		b.WriteByte(upperCrockford[s])
	}
	return b.String()
}

func TestANewKeyHasFiveGroupsOfFiveAndIsRight(t *testing.T) {
	seen := map[string]bool{}
	var first, last [32]bool
	for range 1000 {
		key := newLicenseKey()
		groups := strings.Split(key, "-")
		if len(groups) != 5 || slices.ContainsFunc(groups, func(g string) bool { return len(g) != 5 }) {
			t.Fatalf("key %q", key)
		}
		symbols := symbolsOf(t, key)
		first[symbols[0]], last[symbols[24]] = true, true
		parsed, err := parseLicenseKey(key)
		if err != nil || string(parsed) != strings.ReplaceAll(key, "-", "") || parsed.hint() != groups[4] {
			t.Fatalf("key %q reads as %q, %v; hint %q", key, parsed, err, parsed.hint())
		}
		if seen[key] {
			t.Fatalf("key %q came twice", key)
		}
		seen[key] = true
	}
	// Every symbol turns up, at the front and as the check: with 1,000 keys one of 32
	// is missing with a probability below 10^-12.
	if slices.Contains(first[:], false) || slices.Contains(last[:], false) {
		t.Fatalf("first %v, last %v", first, last)
	}
}

func TestTheWeightsAreAllDifferentPowersOfAGenerator(t *testing.T) {
	seen := map[byte]bool{}
	for i, x := range gf32 {
		if x == 0 || x > 31 || seen[x] {
			t.Fatalf("power %d is %d", i, x)
		}
		seen[x] = true
		for j, y := range gf32 {
			if got := gfMul(x, y); got != gf32[(i+j)%31] {
				t.Fatalf("%d × %d = %d", x, y, got)
			}
			for z := range byte(32) {
				if gfMul(x, y^z) != gfMul(x, y)^gfMul(x, z) {
					t.Fatalf("%d × (%d + %d) does not distribute", x, y, z)
				}
			}
		}
	}
}

func TestEveryWrongSymbolAndEverySwapOfNeighboursIsNoticed(t *testing.T) {
	keys := [][]byte{make([]byte, keySymbols)}
	for range 20 {
		keys = append(keys, symbolsOf(t, newLicenseKey()))
	}
	for _, symbols := range keys {
		if _, err := parseLicenseKey(keyText(symbols)); err != nil {
			t.Fatalf("%s: %v", keyText(symbols), err)
		}
		for i := range symbols {
			for other := range byte(32) {
				if other == symbols[i] {
					continue
				}
				wrong := slices.Clone(symbols)
				wrong[i] = other
				if key, err := parseLicenseKey(keyText(wrong)); err != error(errKeyMalformed) || key != "" {
					t.Fatalf("symbol %d of %s as %c: %q, %v", i, keyText(symbols), upperCrockford[other], key, err)
				}
			}
			for j := i + 1; j < len(symbols); j++ { // neighbours, and any other two
				if symbols[i] == symbols[j] {
					continue
				}
				wrong := slices.Clone(symbols)
				wrong[i], wrong[j] = wrong[j], wrong[i]
				if key, err := parseLicenseKey(keyText(wrong)); err != error(errKeyMalformed) || key != "" {
					t.Fatalf("symbols %d and %d of %s swapped: %q, %v", i, j, keyText(symbols), key, err)
				}
			}
		}
		for _, length := range []int{keySymbols - 1, 1, 0} {
			if length < minImported {
				if _, err := parseLicenseKey(keyText(symbols[:length])); err == nil {
					t.Fatalf("%d symbols are a key", length)
				}
			}
		}
	}
}

func TestAKeyReadsTheSameHoweverItIsTyped(t *testing.T) {
	// A right key with a 0 and a 1 in it, at any place.
	symbols := symbolsOf(t, newLicenseKey())
	symbols[3], symbols[4], symbols[9] = 0, 1, 1
	symbols[24] = 0
	symbols[24] = gfMul(keySum(symbols), gf32[31-24])
	plain := keyText(symbols)
	want, err := parseLicenseKey(plain)
	if err != nil {
		t.Fatal(err)
	}
	grouped := func(gap string) string {
		parts := []string{}
		for i := 0; i < keySymbols; i += keyGroup {
			parts = append(parts, plain[i:i+keyGroup])
		}
		return strings.Join(parts, gap)
	}
	spelled := func(position int, as string) string { return plain[:position] + as + plain[position+1:] }
	for name, typed := range map[string]string{
		"grouped":             grouped("-"),
		"lower case":          strings.ToLower(grouped("-")),
		"spaces":              grouped(" "),
		"spaces and dashes":   grouped(" - "),
		"no-break spaces":     grouped("\u00a0"),
		"en dashes":           grouped("–"),
		"non-breaking dashes": grouped("\u2011"),
		"spaces around":       "  " + plain + " ",
		"dashes anywhere":     "-" + plain[:1] + "--" + plain[1:] + "-",
		"every other lower":   strings.ToLower(plain[:12]) + plain[12:],
		"O for 0":             spelled(3, "O"),
		"o for 0":             spelled(3, "o"),
		"I for 1":             spelled(4, "I"),
		"i for 1":             spelled(4, "i"),
		"L for 1":             spelled(9, "L"),
		"l for 1":             spelled(9, "l"),
	} {
		got, err := parseLicenseKey(typed)
		if err != nil || got != want || got.hash() != want.hash() {
			t.Errorf("%s: %q reads as %q, %v", name, typed, got, err)
		}
	}
	for i := range plain {
		for _, bad := range []string{"U", "u", "!", "*", "\x00", "é", "Ａ", "_"} {
			if got, err := parseLicenseKey(spelled(i, bad)); err == nil {
				t.Fatalf("%q at %d reads as %q", bad, i, got)
			}
		}
	}
}

func TestAnImportedKeyIsTakenAsItIs(t *testing.T) {
	for _, key := range []string{
		"ABCDEFGHIJKLMNOP", "abcdefghijklmnop", "OLD-KEY-OLD-KEY-oil", "{1B4E28BA-2FA1-11D2-883F-0016D3CCA427}",
		strings.Repeat("~", 16), strings.Repeat("k", 255), strings.Repeat("k", 24), strings.Repeat("k", 26),
	} {
		got, err := parseLicenseKey(key)
		if err != nil || string(got) != key {
			t.Errorf("%q reads as %q, %v", key, got, err)
		}
	}
	for name, key := range map[string]string{
		"empty": "", "15 characters": strings.Repeat("k", 15), "256 characters": strings.Repeat("k", 256),
		"a space in it": "abcdefgh ijklmnop", "a space at the end": "abcdefghijklmnop ", "a tab": "abcdefgh\tijklmnop",
		"not ASCII": "abcdefghijklmnopé", "a NUL": "abcdefgh\x00ijklmnop", "a DEL": "abcdefgh\x7fijklmnop", "not UTF-8": "abcdefgh\xffijklmnop",
		"25 symbols of which one is wrong": strings.Repeat("k", 25), "only dashes": strings.Repeat("-", 3),
	} {
		if got, err := parseLicenseKey(key); err != error(errKeyMalformed) {
			t.Errorf("%s: %q reads as %q, %v", name, key, got, err)
		}
	}
}

func TestNothingIsLookedUpForAMalformedKey(t *testing.T) {
	s := newService(t)
	_, key := s.addLicense(license{})
	symbols := symbolsOf(t, key)
	symbols[7] ^= 1
	reads, writes := questions(s.store.queries), questions(s.store.writes)
	lookedUp := func() bool {
		return slices.ContainsFunc(slices.Concat(*reads, *writes), func(query string) bool { return strings.Contains(query, "k.hash = ?") })
	}
	for _, bad := range []string{keyText(symbols), key[:15], "U" + key[1:], "", "short", strings.Repeat("k", 256)} {
		for range 12 { // 72 in all, where 30 failed look-ups would be too many
			body := fmt.Sprintf(`{"license_key":%q,"fingerprint":"f"}`, bad)
			a := s.post("/widget/license/verify", body).is(200)
			if a.json()["valid"] != false || a.text("code") != "key_malformed" || a.json()["license"] != nil || a.header.Get("RateLimit") != "" {
				t.Fatalf("verify %q: %s", bad, a.body)
			}
			for _, path := range []string{"activate", "deactivate"} {
				a := s.post("/widget/license/"+path, body).is(422, "key_malformed")
				if !strings.Contains(a.body, `"pointer":"#/license_key"`) {
					t.Fatalf("%s %q: %s", path, bad, a.body)
				}
			}
		}
	}
	if lookedUp() {
		t.Fatal("a key was looked up")
	}
	s.verifyKey(newLicenseKey(), "f").answers("not_found") // not limited
	if !lookedUp() {
		t.Fatal("a key that is right was not looked up: this test could not see one")
	}
}

// momentary licences, relative to a now: far enough from every border that SQL's
// own clock, a little later, says the same.
func licenceTable(now time.Time) map[string]license {
	at := func(d time.Duration) stamp { return newStamp(now.Add(d)) }
	const day = 24 * time.Hour
	return map[string]license{
		"active: no end":                       {State: "active"},
		"active: begun, not over":              {State: "active", StartsAt: at(-day), ExpiresAt: at(day)},
		"active: with grace to come":           {State: "active", ExpiresAt: at(day), GraceDays: 7},
		"not_started":                          {State: "active", StartsAt: at(day)},
		"not_started: though it is over":       {State: "active", StartsAt: at(day), ExpiresAt: at(-day)},
		"not_started: though in grace":         {State: "active", StartsAt: at(day), ExpiresAt: at(-day), GraceDays: 7},
		"expired":                              {State: "active", ExpiresAt: at(-day)},
		"expired: so is its grace":             {State: "active", ExpiresAt: at(-8 * day), GraceDays: 7},
		"grace":                                {State: "active", ExpiresAt: at(-day), GraceDays: 7},
		"grace: its last day":                  {State: "active", ExpiresAt: at(-day - time.Hour), GraceDays: 2},
		"grace: ten years":                     {State: "active", ExpiresAt: at(-3649 * day), GraceDays: 3650},
		"suspended":                            {State: "suspended"},
		"suspended: though not begun":          {State: "suspended", StartsAt: at(day)},
		"suspended: though over":               {State: "suspended", ExpiresAt: at(-day)},
		"suspended: though in grace":           {State: "suspended", ExpiresAt: at(-day), GraceDays: 7},
		"suspended: the account is closed":     {State: "active", AccountClosed: true},
		"suspended: closed, and it is over":    {State: "active", AccountClosed: true, ExpiresAt: at(-day)},
		"suspended: closed, and not yet begun": {State: "active", AccountClosed: true, StartsAt: at(day)},
		"revoked":                              {State: "revoked"},
		"revoked: though not begun":            {State: "revoked", StartsAt: at(day)},
		"revoked: though over":                 {State: "revoked", ExpiresAt: at(-day)},
		"revoked: though in grace":             {State: "revoked", ExpiresAt: at(-day), GraceDays: 7},
		"revoked: the account is closed":       {State: "revoked", AccountClosed: true},
	}
}

func TestStatusFollowsThePrecedence(t *testing.T) {
	now := time.Now()
	for name, l := range licenceTable(now) {
		want, _, _ := strings.Cut(name, ":")
		if got := l.status(now); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	// The borders belong to what comes after them.
	end := newStamp(now)
	for name, c := range map[string]struct {
		l    license
		at   time.Duration
		want string
	}{
		"a second before it starts":    {license{StartsAt: end}, -time.Second, "not_started"},
		"when it starts":               {license{StartsAt: end}, 0, "active"},
		"a second before its end":      {license{ExpiresAt: end, GraceDays: 1}, -time.Second, "active"},
		"at its end":                   {license{ExpiresAt: end, GraceDays: 1}, 0, "grace"},
		"at its end without grace":     {license{ExpiresAt: end}, 0, "expired"},
		"a second before grace's end":  {license{ExpiresAt: end, GraceDays: 1}, 24*time.Hour - time.Second, "grace"},
		"at the end of grace":          {license{ExpiresAt: end, GraceDays: 1}, 24 * time.Hour, "expired"},
		"when it starts as it is over": {license{StartsAt: end, ExpiresAt: end}, 0, "expired"},
	} {
		c.l.State = "active"
		if got := c.l.status(end.Add(c.at)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestTheViewAndTheServiceSayTheSameStatus(t *testing.T) {
	s := newService(t)
	closed := s.addAccount("closed")
	auth := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	ids := map[string]string{}
	table := licenceTable(time.Now())
	for name, l := range table {
		if l.AccountClosed {
			l.AccountID = closed
		}
		ids[name], _ = s.addLicense(l)
		if l.State != "active" {
			s.change(func(t *tx) error {
				_, err := t.exec(`UPDATE licenses SET state = ? WHERE id = ?`, l.State, ids[name])
				return err
			})
		}
	}
	s.change(func(t *tx) error { return t.closeAccount(closed) })
	seen := map[string]bool{}
	for name, id := range ids {
		want, _, _ := strings.Cut(name, ":")
		seen[want] = true
		row, err := s.store.license("", id)
		s.check(err)
		var view string
		s.check(s.store.one(`SELECT status FROM v_licenses WHERE id = ?`, []any{id}, &view))
		if got := row.status(time.Now()); got != want || view != want {
			t.Errorf("%s: the service says %s, the view %s", name, got, view)
		}
		if got := s.get("/licenses/"+id, auth).is(200).text("status"); got != want {
			t.Errorf("%s: the portal says %s", name, got)
		}
	}
	if len(seen) != 6 {
		t.Fatalf("the table has %v only", seen)
	}
}

// faults are what can be wrong about a question, in the contract's precedence
// (section 4); each makes it so on its own. Those of one row exclude one another.
var faults = [][]struct {
	code string
	make func(l *license, d **device, q *question, now time.Time)
}{
	{{"key_retired", func(l *license, _ **device, _ *question, now time.Time) { l.KeyRetiresAt = newStamp(now) }}},
	{{"revoked", func(l *license, _ **device, _ *question, _ time.Time) { l.State = "revoked" }},
		{"suspended", func(l *license, _ **device, _ *question, _ time.Time) { l.State = "suspended" }}},
	{{"suspended", func(l *license, _ **device, _ *question, _ time.Time) { l.AccountClosed = true }}},
	{{"product_mismatch", func(_ *license, _ **device, q *question, _ time.Time) { q.product = "other" }}},
	{{"not_started", func(l *license, _ **device, _ *question, now time.Time) { l.StartsAt = newStamp(now.Add(time.Minute)) }}},
	{{"expired", func(l *license, _ **device, _ *question, now time.Time) {
		l.ExpiresAt = newStamp(now.Add(-48 * time.Hour))
	}},
		{"grace", func(l *license, _ **device, _ *question, now time.Time) {
			l.ExpiresAt, l.GraceDays = newStamp(now.Add(-time.Hour)), 1
		}}},
	{{"fingerprint_required", func(_ *license, d **device, q *question, _ time.Time) {
		*d, q.hasDevice, q.mismatch = nil, false, false
	}},
		{"fingerprint_mismatch", func(_ *license, _ **device, q *question, _ time.Time) { q.mismatch = true }}},
	{{"device_blocked", func(_ *license, d **device, _ *question, _ time.Time) { *d = &device{State: deviceBlocked} }},
		{"device_released", func(_ *license, d **device, _ *question, _ time.Time) { *d = &device{State: deviceReleased} }},
		{"device_not_activated", func(_ *license, d **device, _ *question, _ time.Time) { *d = nil }}},
	{{"entitlement_missing", func(_ *license, _ **device, q *question, _ time.Time) { q.entitlements = []string{"kds", "gold"} }}},
}

func TestTheFirstFaultOfThePrecedenceIsTheAnswer(t *testing.T) {
	precedence := []string{"not_found", "key_retired", "revoked", "suspended", "product_mismatch", "not_started", "expired", "fingerprint_required",
		"fingerprint_mismatch", "device_blocked", "device_released", "device_not_activated", "entitlement_missing", "grace", "valid"}
	now := time.Now()
	seats := 3
	tried, seen := 0, map[string]bool{}
	var try func(row int, chosen []int)
	try = func(row int, chosen []int) {
		if row < len(faults) {
			for choice := -1; choice < len(faults[row]); choice++ {
				try(row+1, append(chosen[:row:row], choice))
			}
			return
		}
		l := &license{State: "active", Product: "kds", MaxDevices: &seats, Entitlements: codeList{"kds"}}
		d, q := &device{State: deviceActive}, question{product: "kds", hasDevice: true, entitlements: []string{"kds"}}
		var codes []string
		for row, choice := range chosen {
			if choice >= 0 {
				codes = append(codes, faults[row][choice].code)
				faults[row][choice].make(l, &d, &q, now)
			}
		}
		if slices.Contains(codes, "fingerprint_required") { // no device at all: nothing is wrong with it
			codes = slices.DeleteFunc(codes, func(c string) bool { return strings.HasPrefix(c, "device_") })
			d = nil
		}
		want := "valid"
		for _, code := range codes {
			if slices.Index(precedence, code) < slices.Index(precedence, want) {
				want = code
			}
		}
		tried++
		seen[want] = true
		code, valid := judge(l, d, q, now)
		if code != want || valid != (want == "valid" || want == "grace") {
			t.Fatalf("%v hold: %s, %v; want %s", codes, code, valid, want)
		}
		if code, valid := judge(nil, d, q, now); code != "not_found" || valid {
			t.Fatalf("no licence: %s", code)
		}
	}
	try(0, nil)
	if len(seen) != len(precedence)-1 {
		t.Fatalf("of %d questions only these answers came: %v", tried, slices.Sorted(maps.Keys(seen)))
	}
	for _, code := range append(precedence, "key_malformed") {
		if verdictDetails[code] == "" {
			t.Errorf("%s says nothing to people", code)
		}
	}
}

func TestALicenceWithoutALimitOfDevicesNeedsNone(t *testing.T) {
	now := time.Now()
	l := &license{State: "active", Product: "kds"}
	if code, valid := judge(l, nil, question{}, now); code != "valid" || !valid {
		t.Errorf("without a device: %s", code)
	}
	if code, valid := judge(l, nil, question{hasDevice: true}, now); code != "device_not_activated" || valid {
		t.Errorf("with one that was never activated: %s", code)
	}
	if code, _ := judge(l, &device{State: deviceReleased}, question{hasDevice: true}, now); code != "device_released" {
		t.Errorf("with a released one: %s", code)
	}
}

func TestARotatedKeyWorksUntilItsEnd(t *testing.T) {
	now := newStamp(time.Now())
	l := &license{State: "active", Product: "kds", KeyRetiresAt: now}
	if code, _ := judge(l, nil, question{}, now.Add(-time.Second)); code != "valid" {
		t.Errorf("a second before: %s", code)
	}
	if code, _ := judge(l, nil, question{}, now.Time); code != "key_retired" {
		t.Errorf("at its end: %s", code)
	}
}

func TestWhoMayTakeASeat(t *testing.T) {
	now := time.Now()
	active, released, blocked := &device{State: deviceActive}, &device{State: deviceReleased}, &device{State: deviceBlocked}
	past, future := newStamp(now.Add(-time.Hour)), newStamp(now.Add(time.Hour))
	grace := license{State: "active", ExpiresAt: past, GraceDays: 1}
	for name, c := range map[string]struct {
		l       license
		d       *device
		product string
		want    string
	}{
		"a new device":                    {license{State: "active"}, nil, "", ""},
		"a new device for its product":    {license{State: "active"}, nil, "kds", ""},
		"a known device":                  {license{State: "active"}, active, "", ""},
		"a released device":               {license{State: "active"}, released, "", ""},
		"a blocked device":                {license{State: "active"}, blocked, "", "device_blocked"},
		"a new device in grace":           {grace, nil, "", "license_in_grace"},
		"a known device in grace":         {grace, active, "", ""},
		"a released device in grace":      {grace, released, "", ""},
		"a blocked device in grace":       {grace, blocked, "", "device_blocked"},
		"another product":                 {license{State: "active"}, nil, "other", "product_mismatch"},
		"another product in grace":        {grace, nil, "other", "product_mismatch"},
		"another product, blocked":        {license{State: "active"}, blocked, "other", "product_mismatch"},
		"another product, over":           {license{State: "active", ExpiresAt: past}, nil, "other", "product_mismatch"},
		"a licence not begun":             {license{State: "active", StartsAt: future}, active, "", "license_not_started"},
		"a licence that is over":          {license{State: "active", ExpiresAt: past}, active, "", "license_expired"},
		"a licence that is over, blocked": {license{State: "active", ExpiresAt: past}, blocked, "", "license_expired"},
		"a suspended licence":             {license{State: "suspended"}, active, "other", "license_suspended"},
		"a closed account":                {license{State: "active", AccountClosed: true}, active, "", "license_suspended"},
		"a revoked licence":               {license{State: "revoked", AccountClosed: true}, active, "", "license_revoked"},
		"a retired key":                   {license{State: "revoked", KeyRetiresAt: past}, active, "", "key_retired"},
	} {
		c.l.Product = "kds"
		err := mayActivate(&c.l, c.d, c.product, now)
		var ref *refusal
		if got := ""; errors.As(err, &ref) {
			got = ref.code
			if got != c.want || ref.detail == "" {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
		} else if err != nil || c.want != "" {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestALeaseNeverGoesPastTheEndOfGrace(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 700, time.UTC)
	hour := func(n int) stamp { return newStamp(now.Add(time.Duration(n) * time.Hour)) }
	for name, c := range map[string]struct {
		l       license
		end     stamp
		refresh time.Duration
	}{
		"14 days":                        {license{LeaseHours: 336}, hour(336), 24 * time.Hour},
		"an hour":                        {license{LeaseHours: 1}, hour(1), 30 * time.Minute},
		"90 days":                        {license{LeaseHours: 2160}, hour(2160), 24 * time.Hour},
		"two days":                       {license{LeaseHours: 48}, hour(48), 24 * time.Hour},
		"47 hours":                       {license{LeaseHours: 47}, hour(47), 23*time.Hour + 30*time.Minute},
		"the licence ends first":         {license{LeaseHours: 336, ExpiresAt: hour(5)}, hour(5), 150 * time.Minute},
		"the licence's grace ends first": {license{LeaseHours: 336, ExpiresAt: hour(5), GraceDays: 2}, hour(53), 24 * time.Hour},
		"in grace":                       {license{LeaseHours: 336, ExpiresAt: hour(-5), GraceDays: 1}, hour(19), 570 * time.Minute},
		"a minute before the end":        {license{LeaseHours: 336, ExpiresAt: newStamp(now.Add(time.Minute))}, newStamp(now.Add(time.Minute)), time.Minute},
		"the lease ends first":           {license{LeaseHours: 3, ExpiresAt: hour(5)}, hour(3), 90 * time.Minute},
		"both end at once":               {license{LeaseHours: 5, ExpiresAt: hour(5)}, hour(5), 150 * time.Minute},
	} {
		if got := c.l.leaseEnd(now); got != c.end {
			t.Errorf("%s: ends %v, want %v", name, got, c.end)
		}
		got := leaseClaims(&c.l, &device{}, now, "")
		if got.Expires != c.end.Unix() || got.IssuedAt != now.Unix() || got.RefreshAfter != int64(c.refresh/time.Second) {
			t.Errorf("%s: claims %+v", name, got)
		}
		if last := c.l.graceUntil(); !last.IsZero() && (got.GraceEnd != last.Unix() || got.LicenseEnd != c.l.ExpiresAt.Unix() || got.Expires > got.GraceEnd) {
			t.Errorf("%s: lexp %d, gexp %d, exp %d", name, got.LicenseEnd, got.GraceEnd, got.Expires)
		}
	}
}

func TestTheClaimsOfALeaseNameLicenceAndDevice(t *testing.T) {
	now := time.Now()
	print := fingerprintHash("machine")
	l := &license{ID: "lic_1", AccountID: "acct_1", Product: "kds", LeaseHours: 336, Entitlements: codeList{"a", "b"}}
	got := leaseClaims(l, &device{ID: "dev_1", Fingerprint: print[:], LeaseSeq: 7}, now, "n")
	want := claims{Subject: "acct_1", ClientID: "dev_1", Scope: "license:verify", IssuedAt: now.Unix(), Expires: now.Add(336 * time.Hour).Unix(),
		License: "lic_1", Device: "dev_1", Fingerprint: base64.RawURLEncoding.EncodeToString(print[:]), Product: "kds", Entitlements: []string{"a", "b"},
		Seq: 7, RefreshAfter: 86400, Nonce: "n"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("claims %+v\nwant   %+v", got, want)
	}
}

func TestALicenceMovesAsTheContractSays(t *testing.T) {
	allowed := map[string]string{"active suspend": "suspended", "suspended reinstate": "active", "active revoke": "revoked", "suspended revoke": "revoked"}
	for _, state := range []string{"active", "suspended", "revoked"} {
		for _, action := range []string{"suspend", "reinstate", "revoke", "renew", ""} {
			got, err := nextState(&license{State: state}, action)
			want := allowed[state+" "+action]
			var ref *refusal
			if got != want || (want == "") != (errors.As(err, &ref) && ref.code == "illegal_transition") {
				t.Errorf("%s, %s: %q, %v", state, action, got, err)
			}
		}
	}
}

func FuzzLicenseKey(f *testing.F) {
	for _, seed := range []string{"00000-00000-00000-00000-00000", newLicenseKey(), strings.ToLower(newLicenseKey()), "o0O0o iIlL1 -- 00000", "OLD-KEY-OLD-KEY-oil",
		strings.Repeat("k", 255), strings.Repeat("–", 25), "ſſſſſſſſſſſſſſſſſſſſſſſſſ", "ıııııııııııııııııııııııııı", "", "\xff\xfe", "ß",
		"00!!000000000000000000000", "0000000000000000000-00000"} { // no shape of ours
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseLicenseKey(s)
		if err != nil {
			if err != error(errKeyMalformed) || key != "" {
				t.Fatalf("%q: %q, %v", s, key, err)
			}
			return
		}
		again, err := parseLicenseKey(string(key))
		if err != nil || again != key {
			t.Fatalf("%q reads as %q, and that as %q, %v", s, key, again, err)
		}
		if len(key) < minImported || len(key) > maxKeyBytes || len(key.hint()) != 5 || strings.IndexFunc(string(key), func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
			t.Fatalf("%q reads as %q", s, key)
		}
		strange := strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
				return -1
			}
			return r
		}, string(key))
		if ours := len(key) == keySymbols && !strings.Contains(string(key), "-") && len(strange) <= 1; ours && keySum(symbolsOf(t, string(key))) != 0 {
			t.Fatalf("%q reads as %q, whose check symbol is wrong", s, key)
		}
	})
}

func BenchmarkParseKey(b *testing.B) {
	key := newLicenseKey()
	for b.Loop() {
		if _, err := parseLicenseKey(key); err != nil {
			b.Fatal(err)
		}
	}
}
