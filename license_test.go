package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

func TestLicenseKey_newHasFiveGroupsOfFiveAndIsRight(t *testing.T) {
	t.Parallel()
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

func TestLicenseKey_weightsAreAllDifferentPowersOfAGenerator(t *testing.T) {
	t.Parallel()
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

func TestLicenseKey_withAWrongSymbolOrSwappedNeighboursIsNoticed(t *testing.T) {
	t.Parallel()
	keys := [][]byte{make([]byte, keySymbols)}
	for range 20 {
		keys = append(keys, symbolsOf(t, newLicenseKey()))
	}
	for _, symbols := range keys {
		if key, err := parseLicenseKey(keyText(symbols)); err != nil || key.mistyped() {
			t.Fatalf("%s: %v", keyText(symbols), err)
		}
		for i := range symbols {
			for other := range byte(32) {
				if other == symbols[i] {
					continue
				}
				wrong := slices.Clone(symbols)
				wrong[i] = other
				if key, err := parseLicenseKey(keyText(wrong)); err != nil || !key.mistyped() {
					t.Fatalf("symbol %d of %s as %c: %q, %v", i, keyText(symbols), upperCrockford[other], key, err)
				}
			}
			for j := i + 1; j < len(symbols); j++ { // neighbours, and any other two
				if symbols[i] == symbols[j] {
					continue
				}
				wrong := slices.Clone(symbols)
				wrong[i], wrong[j] = wrong[j], wrong[i]
				if key, err := parseLicenseKey(keyText(wrong)); err != nil || !key.mistyped() {
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

func TestLicenseKey_readsTheSameHoweverItIsTyped(t *testing.T) {
	t.Parallel()
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
			got, err := parseLicenseKey(spelled(i, bad))
			if err == nil && (got == want || hasOwnShape(string(got)) && !got.mistyped()) {
				t.Fatalf("%q at %d reads as %q", bad, i, got)
			}
		}
	}
}

func TestLicenseKey_importedIsTakenAsItIs(t *testing.T) {
	t.Parallel()
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
		"only dashes": strings.Repeat("-", 3), "25 letters that are not ASCII": strings.Repeat("ı", 25),
		"25 letters, spaces and a dot": "abcde fghjk mnpqr stvwx yz01.",
	} {
		if got, err := parseLicenseKey(key); err != error(errKeyMalformed) {
			t.Errorf("%s: %q reads as %q, %v", name, key, got, err)
		}
	}
}

// Keys of five groups of five are common, and 31 of 32 of them don't have our check symbol.
func TestLicenseKey_ofAnotherVendorInOurShapeIsFoundHoweverItIsTyped(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	keys := []string{"A1B2C-D3E4F-G5H6J-K7L8M-N9P1Q", "UUUUU-UUUUU-UUUUU-UUUUU-UUUUU", "00000-00000-00000-00000-00001"}
	for range 30 {
		symbols := make([]byte, keySymbols)
		for i := range symbols {
			symbols[i] = letters[rand.IntN(len(letters))]
		}
		key := string(symbols)
		if i := rand.IntN(3); i > 0 {
			key = strings.Join([]string{key[:5], key[5:10], key[10:15], key[15:20], key[20:]}, []string{"-", " "}[i-1])
		}
		keys = append(keys, key)
	}
	s.must("license", "import", s.importFile(append([]string{"key"}, keys...)...), "-account", s.account, "-product", "kds")
	looksLike := map[rune]string{'0': "0Oo", 'O': "0Oo", '1': "1IiLl", 'I': "1IiLl", 'L': "1IiLl"}
	for _, key := range keys {
		var typed strings.Builder
		for _, r := range strings.NewReplacer("-", "", " ", "").Replace(key) {
			alike, ok := looksLike[r]
			if !ok {
				alike = string(r) + strings.ToLower(string(r))
			}
			typed.WriteByte(alike[rand.IntN(len(alike))])
			typed.WriteString([]string{"", "", "-", " ", "–"}[rand.IntN(5)])
		}
		a := s.verifyKey(typed.String(), "f").is(200)
		if a.text("code") != "device_not_activated" {
			t.Errorf("%s typed as %q: %s", key, typed.String(), a.body)
		}
		s.activate(typed.String(), "f").is(200)
		s.post("/widget/license/deactivate", seatBody("license_key", key, "fingerprint", "f")).is(200)
	}
}

func TestLicenseKey_thatCoincidesWithAnotherIsRefusedAtImport(t *testing.T) {
	t.Parallel()
	s := newService(t)
	importing := func(keys ...string) error {
		_, err := s.command("license", "import", s.importFile(append([]string{"key"}, keys...)...), "-account", s.account, "-product", "kds")
		return err
	}
	err := importing("A1B2C-D3E4F-G5H6J-K7L8M-N9P1O", "a1b2cd3e4fg5h6jk718mn9p10")
	if err == nil || !strings.Contains(err.Error(), "line 3: key: ") {
		t.Fatalf("two in one file: %v", err)
	}
	s.check(importing("A1B2C-D3E4F-G5H6J-K7L8M-N9P1O"))
	if err := importing("AIB2C-D3E4F-G5H6J-K7I8M-N9PL0"); err == nil || !strings.Contains(err.Error(), errKeyTaken.Error()) {
		t.Fatalf("one that is there already: %v", err)
	}
	s.check(importing("A1B2C-D3E4F-G5H6J-K7L8M-N9PU0"))
}

// What an import before this rule could have stored: it took keys of our shape only with the
// right check symbol, in upper case, and all others as they are.
func TestLicenseKey_storedByAnEarlierImportIsStillFound(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	own := newLicenseKey()
	for sent, stored := range map[string]string{
		strings.ToLower(own):            strings.ReplaceAll(own, "-", ""),
		"{AAAA-aaaa-BBBB-bbbb-oilO}/25": "{AAAA-aaaa-BBBB-bbbb-oilO}/25",
		"A.B2C-D3E.F-G5H6JK7L8M-N9P1Q":  "A.B2C-D3E.F-G5H6JK7L8M-N9P1Q",
		"oiloiloiloiloiloiloiloil":      "oiloiloiloiloiloiloiloil",
	} {
		id, _ := s.addLicense(license{})
		hash := sha256.Sum256([]byte(stored))
		s.sql(`UPDATE license_keys SET hash = ? WHERE license_id = ?`, hash[:], id)
		if a := s.verifyKey(sent, "f").is(200); a.text("license", "id") != id {
			t.Errorf("%q: %s", sent, a.body)
		}
	}
}

func TestLicenseKey_withAWrongSymbolIsLookedUpAndCountedAndMalformedWhenUnknown(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"verify", "activate", "deactivate"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				const known = "A1B2C-D3E4F-G5H6J-K7L8M-N9P1Q"
				s.must("license", "import", s.importFile("key", known), "-account", s.account, "-product", "kds")
				ask := func(key string) answer {
					return s.post("/widget/license/"+path, seatBody("license_key", key, "fingerprint", "f"))
				}
				for range 40 {
					ask(known).is(200)
				}
				for range 30 {
					if a := ask(mistype(newLicenseKey())); path == "verify" {
						a.answers("key_malformed")
					} else if a.is(422, "key_malformed"); !strings.Contains(a.body, `"pointer":"#/license_key"`) {
						t.Fatal(a.body)
					}
				}
				ask(mistype(newLicenseKey())).is(429, "rate_limited")
			})
		})
	}
}

func TestLicenseKey_malformedIsNotLookedUp(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	reads, writes := questions(s.store.queries), questions(s.store.writer.queries)
	lookedUp := func() bool {
		return slices.ContainsFunc(slices.Concat(reads(), writes()), func(query string) bool { return strings.Contains(query, "k.hash = ?") })
	}
	for _, bad := range []string{key[:15], key[:28] + "é", "", "short", strings.Repeat("k", 256)} {
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

func TestLicenseKey_withAControlCharacterIsAWrongMember(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	for _, control := range []string{"\n", "\t", "\r\n", "\x00", "\u0085"} {
		for _, path := range []string{"activate", "verify", "deactivate"} {
			a := s.post("/widget/license/"+path, seatBody("license_key", key+control, "fingerprint", "f")).is(422, "validation_failed")
			if !strings.Contains(a.body, `"pointer":"#/license_key","code":"control_character"`) {
				t.Fatalf("%s %q: %s", path, control, a.body)
			}
		}
	}
}

func TestLicenseKey_rotatedWorksUntilItsEnd(t *testing.T) {
	t.Parallel()
	now := newStamp(time.Now())
	l := &license{State: "active", Product: "kds", KeyRetiresAt: now}
	if code, _ := licenseVerdict(l, nil, verdictInput{}, now.Add(-time.Second)); code != "valid" {
		t.Errorf("a second before: %s", code)
	}
	if code, _ := licenseVerdict(l, nil, verdictInput{}, now.Time); code != "key_retired" {
		t.Errorf("at its end: %s", code)
	}
}

func TestLicenseKey_earlierNeverOutlivesTheEndOfALaterOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{})
		keys := []string{key}
		rotate := func(until stamp) {
			t.Helper()
			s.change(func(tx *tx) error {
				_, key, err := rotateKey(tx, anyAccount, id, until, false, actorCommand)
				keys = append(keys, key)
				return err
			})
		}
		answers := func(want string) {
			t.Helper()
			got := ""
			for _, key := range keys {
				a := s.post("/widget/license/verify", fmt.Sprintf(`{"license_key":%q}`, key)).is(200)
				got = strings.TrimSpace(got + " " + a.text("code"))
			}
			if got != want {
				t.Errorf("the keys answer %s, want %s", got, want)
			}
		}
		now := newStamp(time.Now())
		rotate(now.after(time.Minute)) // it ends soon, and stays so
		rotate(now.after(days(30)))
		answers("valid valid valid")
		time.Sleep(time.Minute)
		answers("key_retired valid valid")
		rotate(stamp{}) // the second one has leaked
		answers("key_retired key_retired key_retired valid")
	})
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
		upper := lookalikes.Replace(strings.ToUpper(string(key)))
		if hasOwnShape(string(key)) && string(key) != upper || !hasOwnShape(string(key)) && (string(key) != s || key.mistyped()) {
			t.Fatalf("%q reads as %q", s, key)
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

func TestLicense_statusFollowsThePrecedence(t *testing.T) {
	t.Parallel()
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

func TestLicense_statusIsTheSameInTheViewAndTheService(t *testing.T) {
	t.Parallel()
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
		row, err := s.store.license(anyAccount, id)
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

func TestLicense_filterByStatusChoosesWhatHasThatStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		closed := s.addAccount("closed")
		now := newStamp(time.Now())
		r := rand.New(rand.NewPCG(1, 2))
		moment := func() stamp { // often exactly now, a day away, or none
			return []stamp{{}, now, now.after(time.Second), now.after(-time.Second), now.after(days(1)), now.after(-days(1)), now.after(days(r.IntN(9) - 4))}[r.IntN(7)]
		}
		for range 400 {
			s.addLicense(license{AccountID: []string{s.account, closed}[r.IntN(8)/7], State: []string{"active", "active", "active", "active", "suspended", "revoked"}[r.IntN(6)],
				StartsAt: moment(), ExpiresAt: moment(), GraceDays: r.IntN(3)})
		}
		s.change(func(t *tx) error { return t.closeAccount(closed) })
		all, err := s.store.licenses(licenseFilter{owner: anyAccount, now: now}, "", 1000)
		s.check(err)
		for status := range statusFilters {
			var want []string
			for _, l := range all.rows {
				if l.status(now.Time) == status {
					want = append(want, l.ID)
				}
			}
			found, err := s.store.licenses(licenseFilter{owner: anyAccount, now: now, status: status}, "", 1000)
			s.check(err)
			got := []string{}
			for _, l := range found.rows {
				got = append(got, l.ID)
			}
			if len(want) < 10 || !slices.Equal(got, want) {
				t.Errorf("%s: %d are chosen, %d have it", status, len(got), len(want))
			}
		}
	})
}

// faults are what can be wrong about a question, in the contract's precedence
// (section 4); each makes it so on its own. Those of one row exclude one another.
var faults = [][]struct {
	code string
	make func(l *license, d **device, q *verdictInput, now time.Time)
}{
	{{"key_retired", func(l *license, _ **device, _ *verdictInput, now time.Time) { l.KeyRetiresAt = newStamp(now) }}},
	{{"revoked", func(l *license, _ **device, _ *verdictInput, _ time.Time) { l.State = "revoked" }},
		{"suspended", func(l *license, _ **device, _ *verdictInput, _ time.Time) { l.State = "suspended" }}},
	{{"suspended", func(l *license, _ **device, _ *verdictInput, _ time.Time) { l.AccountClosed = true }}},
	{{"product_mismatch", func(_ *license, _ **device, q *verdictInput, _ time.Time) { q.product = "other" }}},
	{{"not_started", func(l *license, _ **device, _ *verdictInput, now time.Time) {
		l.StartsAt = newStamp(now.Add(time.Minute))
	}}},
	{{"expired", func(l *license, _ **device, _ *verdictInput, now time.Time) {
		l.ExpiresAt = newStamp(now.Add(-48 * time.Hour))
	}},
		{"grace", func(l *license, _ **device, _ *verdictInput, now time.Time) {
			l.ExpiresAt, l.GraceDays = newStamp(now.Add(-time.Hour)), 1
		}}},
	{{"fingerprint_required", func(_ *license, d **device, q *verdictInput, _ time.Time) {
		*d, q.hasDevice, q.mismatch = nil, false, false
	}},
		{"fingerprint_mismatch", func(_ *license, _ **device, q *verdictInput, _ time.Time) { q.mismatch = true }}},
	{{"device_blocked", func(_ *license, d **device, _ *verdictInput, _ time.Time) { *d = &device{State: deviceBlocked} }},
		{"device_released", func(_ *license, d **device, _ *verdictInput, _ time.Time) { *d = &device{State: deviceReleased} }},
		{"device_not_activated", func(_ *license, d **device, _ *verdictInput, _ time.Time) { *d = nil }}},
	{{"token_ended", func(_ *license, _ **device, q *verdictInput, _ time.Time) { q.tokenEnded = true }}},
	{{"entitlement_missing", func(_ *license, _ **device, q *verdictInput, _ time.Time) { q.entitlements = []string{"kds", "gold"} }}},
}

func TestLicense_firstFaultOfThePrecedenceIsTheAnswer(t *testing.T) {
	t.Parallel()
	precedence := []string{"not_found", "key_retired", "revoked", "suspended", "product_mismatch", "not_started", "expired", "fingerprint_required",
		"fingerprint_mismatch", "device_blocked", "device_released", "token_ended", "device_not_activated", "entitlement_missing", "grace", "valid"}
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
		d, q := &device{State: deviceActive}, verdictInput{product: "kds", hasDevice: true, entitlements: []string{"kds"}}
		var codes []string
		for row, choice := range chosen {
			if choice >= 0 {
				codes = append(codes, faults[row][choice].code)
				faults[row][choice].make(l, &d, &q, now)
			}
		}
		if slices.Contains(codes, "fingerprint_required") { // no device at all: nothing is wrong with it
			codes = slices.DeleteFunc(codes, func(c string) bool { return strings.HasPrefix(c, "device_") || c == "token_ended" })
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
		code, valid := licenseVerdict(l, d, q, now)
		if code != want || valid != (want == "valid" || want == "grace") {
			t.Fatalf("%v hold: %s, %v; want %s", codes, code, valid, want)
		}
		if code, valid := licenseVerdict(nil, d, q, now); code != "not_found" || valid {
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

func TestLicense_withoutALimitOfDevicesNeedsNone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &license{State: "active", Product: "kds"}
	if code, valid := licenseVerdict(l, nil, verdictInput{}, now); code != "valid" || !valid {
		t.Errorf("without a device: %s", code)
	}
	if code, valid := licenseVerdict(l, nil, verdictInput{hasDevice: true}, now); code != "device_not_activated" || valid {
		t.Errorf("with one that was never activated: %s", code)
	}
	if code, _ := licenseVerdict(l, &device{State: deviceReleased}, verdictInput{hasDevice: true}, now); code != "device_released" {
		t.Errorf("with a released one: %s", code)
	}
}

func TestLicense_saysWhoMayTakeASeat(t *testing.T) {
	t.Parallel()
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
		err := checkActivation(&c.l, c.d, verdictInput{product: c.product}, c.d == nil, now)
		var ref *refusal
		if got := ""; errors.As(err, &ref) {
			got = ref.code.name
			if got != c.want || ref.text() == "" {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
		} else if err != nil || c.want != "" {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestLicense_movesAsTheContractSays(t *testing.T) {
	t.Parallel()
	allowed := map[string]string{"active suspend": "suspended", "suspended reinstate": "active", "active revoke": "revoked", "suspended revoke": "revoked"}
	for _, state := range []string{"active", "suspended", "revoked"} {
		for _, action := range []string{"suspend", "reinstate", "revoke", "renew", ""} {
			got, err := nextState(&license{State: state}, action)
			want := allowed[state+" "+action]
			var ref *refusal
			if got != want || (want == "") != (errors.As(err, &ref) && ref.code == codeIllegalTransition) {
				t.Errorf("%s, %s: %q, %v", state, action, got, err)
			}
		}
	}
}

func TestLicense_durationCountsFromIssueStartOrFirstActivation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		now := newStamp(time.Now())
		for name, test := range map[string]struct {
			l    license
			want stamp
		}{
			"issue":       {license{DurationDays: ptr(10)}, now.after(days(10))},
			"start":       {license{DurationDays: ptr(10), StartsAt: now.after(days(5))}, now.after(days(15))},
			"fixed end":   {license{DurationDays: ptr(10), ExpiresAt: now.after(days(3))}, now.after(days(3))},
			"first use":   {license{DurationDays: ptr(10), ExpiryBasis: "first_activation"}, stamp{}},
			"no duration": {license{}, stamp{}},
		} {
			l := test.l
			l.AccountID, l.Product = s.account, "kds"
			var id, key string
			s.change(func(tx *tx) (err error) { id, key, err = createLicense(tx, &l, actorCommand); return err })
			got, err := s.store.license(anyAccount, id)
			s.check(err)
			if !got.ExpiresAt.Equal(test.want.Time) {
				t.Errorf("%s: ends at %s, want %s", name, got.ExpiresAt, test.want)
			}
			if l.ExpiryBasis != "first_activation" {
				continue
			}
			for _, device := range []string{"a", "b"} {
				a := s.activate(key, device).is(200)
				if got := a.text("license", "expires_at"); got != now.after(days(10)).String() {
					t.Errorf("%s: after an activation it ends at %s", name, got)
				}
			}
		}
	})
}

func TestLicense_endThatCountsFromTheFirstActivationIsInItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{DurationDays: ptr(30), ExpiryBasis: "first_activation", GraceDays: 2})
		time.Sleep(100 * 24 * time.Hour)
		end := time.Now().Add(30 * 24 * time.Hour)
		a := s.activate(key, "f").is(200)
		if c := s.lease(a); c.LicenseEnd != end.Unix() || c.GraceEnd != end.Add(48*time.Hour).Unix() || a.text("license", "expires_at") != newStamp(end).String() {
			t.Fatalf("lexp %d, want %d: %s", c.LicenseEnd, end.Unix(), a.body)
		}
		time.Sleep(24 * time.Hour)
		s.activate(key, "g").is(200)
		if l, err := s.store.license(anyAccount, id); err != nil || l.ExpiresAt.Unix() != end.Unix() {
			t.Fatalf("the second activation moved the end: %v %v", l.ExpiresAt, err)
		}
	})
}

func TestLicense_isManagedByTheOperatorOverHTTP(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
		tenant := s.addAccount("tenant")
		a := s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","plan":"pro","kind":"floating","max_devices":3,"max_transfers":2,"starts_at":"1999-01-01T00:00:00Z",
			"duration_days":30,"grace_days":7,"lease_hours":24,"entitlements":["kds","reports"],"trial":true,"metadata":{"order":{"id":7}}}`, tenant), admin).is(200)
		id, key := a.text("id"), a.text("key")
		if _, err := parseLicenseKey(key); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]any{"account_id": tenant, "product": "kds", "plan": "pro", "kind": "floating", "max_devices": 3.0, "max_transfers": 2.0,
			"starts_at": "1999-01-01T00:00:00Z", "grace_days": 7.0, "lease_hours": 24.0, "trial": true, "status": "active", "key_hint": key[24:], "expires_at": newStamp(time.Now().Add(days(30))).String()} {
			if got := a.json()[name]; got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		path := "/licenses/" + id
		shown := s.get(path, admin).is(200)
		if strings.Contains(shown.body, key) || !strings.Contains(shown.body, `"metadata":{"order":{"id":7}}`) {
			t.Fatal(shown.body)
		}

		patched := s.do("PATCH", path, `{"plan":null,"max_devices":null,"max_transfers":null,"entitlements":[],"metadata":{}}`, admin).is(200)
		if p := patched.json(); p["plan"] != nil || p["max_devices"] != nil || p["grace_days"] != 7.0 || len(p["entitlements"].([]any)) != 0 {
			t.Fatal(patched.body)
		}
		written := s.count(`SELECT count(*) FROM events`)
		if same := s.do("PATCH", path, `{"plan":null,"entitlements":[],"metadata":{}}`, admin).is(200); same.body != patched.body || s.count(`SELECT count(*) FROM events`) != written {
			t.Fatalf("a change to what is there already: %s", same.body)
		}
		if n := s.count(`SELECT count(*) FROM events WHERE type = 'license.updated' AND data =
			'{"changed":"entitlements max_devices max_transfers metadata plan","from":{"entitlements":["kds","reports"],"max_devices":3,"max_transfers":2,"plan":"pro"},"to":{"entitlements":[],"max_devices":null,"max_transfers":null,"plan":null}}'`); n != 1 {
			t.Fatalf("%d events name the changed terms", n)
		}
		s.do("PATCH", path, `{"product":"other"}`, admin).is(422, "validation_failed")
		s.do("PATCH", path, `{"expires_at":"1998-01-01T00:00:00Z"}`, admin).is(422, "validation_failed")

		end := newStamp(time.Now()).after(days(60)).String()
		if r := s.post(path+"/renew", `{}`, admin).is(200); r.text("expires_at") != end {
			t.Fatalf("renewed until %s, want %s", r.text("expires_at"), end)
		}
		s.post(path+"/reinstate", `{}`, admin).is(409, "illegal_transition")
		if r := s.post(path+"/suspend", `{"reason":"unpaid"}`, admin).is(200); r.text("status") != "suspended" || r.text("reason") != "unpaid" {
			t.Fatal(r.body)
		}
		s.post(path+"/suspend", `{}`, admin).is(409, "illegal_transition")
		s.verifyKey(key, "a").answers("suspended")
		s.post(path+"/reinstate", `{}`, admin).is(200)

		until := newStamp(time.Now()).after(days(7))
		rotated := s.post(path+"/rotate-key", fmt.Sprintf(`{"old_key_until":%q}`, until), admin, "Idempotency-Key: r1").is(200)
		if again := s.post(path+"/rotate-key", fmt.Sprintf(`{"old_key_until":%q}`, until), admin, "Idempotency-Key: r1").is(200); again.body != rotated.body {
			t.Fatal("the same Idempotency-Key rotated twice")
		}
		s.activate(key, "a").is(200)
		s.activate(rotated.text("key"), "a").is(200)
		time.Sleep(days(7))
		admin = "Authorization: Bearer " + s.token(s.account, scopeAdmin) // the first one has ended
		s.activate(key, "a").is(403, "key_retired")
		s.verifyKey(key, "a").answers("key_retired")
		s.verifyKey(rotated.text("key"), "a").answers("device_released") // its floating lease has lapsed
		s.activate(rotated.text("key"), "a").is(200)

		s.post(path+"/revoke", `{}`, admin).is(200)
		for _, action := range []string{"suspend", "reinstate", "revoke", "renew", "rotate-key"} {
			a := s.post(path+"/"+action, `{"days":1}`, admin).is(409, "illegal_transition")
			if !strings.Contains(a.text("detail"), "revoked") {
				t.Errorf("%s: the detail does not name the state: %s", action, a.body)
			}
		}
		s.do("PATCH", path, `{"trial":false}`, admin).is(409, "illegal_transition")
		s.verifyKey(rotated.text("key"), "a").answers("revoked")
		for _, action := range []string{"suspend", "renew"} {
			s.post("/licenses/lic_00000000000000000000000000/"+action, `{}`, admin).is(404, "license_not_found")
		}
		s.post("/licenses", `{"account_id":"acct_00000000000000000000000000","product":"kds"}`, admin).is(404, "account_not_found")
		want := "license.created license.updated license.renewed license.suspended license.reinstated license.key_rotated license.first_activated device.activated device.released device.reactivated license.revoked"
		s.advance()
		if got := s.eventTypes(id); got != want {
			t.Fatalf("events %s\nwant   %s", got, want)
		}
	})
}

func TestLicense_illegalTransitionNamesTheStateAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	legal := map[string]string{
		"active":    "patch renew suspend revoke rotate-key",
		"suspended": "patch renew reinstate revoke rotate-key",
		"revoked":   "",
	}
	for state, actions := range legal {
		for _, action := range []string{"patch", "renew", "suspend", "reinstate", "revoke", "rotate-key"} {
			for _, by := range []string{"HTTP", "command"} {
				id, _ := s.addLicense(license{State: state, ExpiresAt: newStamp(time.Now()).after(days(9))})
				before := s.dump()
				args, body := []string{"license", action, id}, `{"days":1}`
				method, path := "POST", "/licenses/"+id+"/"+action
				switch action {
				case "patch":
					method, path, body, args = "PATCH", "/licenses/"+id, `{"trial":true}`, append(args, `{"trial":true}`)
				case "renew":
					args = append(args, "-days", "1")
				}
				var done bool
				var answered string
				if by == "HTTP" {
					a := s.do(method, path, body, admin)
					done, answered = a.status == 200, fmt.Sprint(a.status, " ", a.body)
				} else {
					_, err := s.command(args...)
					done, answered = err == nil, fmt.Sprint("409 ", err)
				}
				if done != slices.Contains(strings.Fields(actions), action) {
					t.Errorf("%s, %s by %s: done is %v: %s", state, action, by, done, answered)
				}
				if done {
					continue
				}
				if !strings.HasPrefix(answered, "409 ") || !strings.Contains(answered, "illegal_transition") || !strings.Contains(answered, "The licence is "+state+";") {
					t.Errorf("%s, %s by %s: %s", state, action, by, answered)
				}
				s.unchanged(before)
			}
		}
	}
}

func TestLicense_isManagedByTheOperatorAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, _ := s.addLicense(license{})
	token := "Authorization: Bearer " + s.token(s.account, strings.Join([]string{scopeLicenses, scopeDevices, scopeEvents}, " "))
	for _, rt := range allRoutes() {
		if rt.scope != scopeAdmin {
			continue
		}
		a := s.do(rt.method(), strings.ReplaceAll(rt.path(), "{id}", id), `{}`, token).is(403, "insufficient_scope")
		if !strings.Contains(a.header.Get("WWW-Authenticate"), `scope="admin"`) {
			t.Fatal(a.header)
		}
	}
}

func TestLicense_badTermsAreNamedAndChangeNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{StartsAt: newStamp(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))})
	before := s.count(`SELECT count(*) FROM licenses`) + s.count(`SELECT count(*) FROM events`)
	long := strings.Repeat("x", 101)
	for member, values := range map[string][]string{
		"product":       {`null`, `1`, `""`, `"` + long + `"`, `"a\u0007"`},
		"plan":          {`1`, `"` + long + `"`, `"a\u0000"`},
		"kind":          {`"site"`, `1`, `""`},
		"trial":         {`null`, `1`, `"true"`},
		"max_devices":   {`0`, `-0.0`, `-1`, `1.5`, `5e-1`, `"1"`, `1000001`, `1e7`, `1e400`, `1e-400`},
		"max_transfers": {`-1`, `"1"`, `1000001`},
		"starts_at":     {`"2030-01-01"`, `1`, `"2030-13-01T00:00:00Z"`, `"9999-01-01T00:00:00Z"`},
		"expires_at":    {`"tomorrow"`, `1`, `"2029-12-31T00:00:00Z"`},
		"grace_days":    {`-1`, `3651`, `"1"`},
		"duration_days": {`0`, `36501`, `true`},
		"expiry_basis":  {`"purchase"`, `1`},
		"lease_hours":   {`0`, `2161`, `"1"`},
		"entitlements":  {`null`, `"kds"`, `[1]`, `[""]`, `["a b"]`, `["-a"]`, `["é"]`, `["a","a"]`, `["` + strings.Repeat("a", 65) + `"]`},
		"metadata":      {`null`, `[]`, `"x"`, `{"a":"\u0001"}`, `{"a":"` + strings.Repeat("x", 16384) + `"}`},
	} {
		for _, value := range values {
			t.Run(member+" "+value[:min(len(value), 30)], func(t *testing.T) {
				body := fmt.Sprintf(`"starts_at":"2030-01-01T00:00:00Z",%q:%s}`, member, value)
				if member == "starts_at" {
					body = fmt.Sprintf(`%q:%s}`, member, value)
				}
				head := fmt.Sprintf(`{"account_id":%q,`, s.account)
				if member != "product" {
					head += `"product":"kds",`
				}
				answers := []answer{s.post("/licenses", head+body, admin), s.do("PATCH", "/licenses/"+id, `{`+body, admin)}
				for _, a := range answers {
					a.t = t
					a.is(422, "validation_failed")
					if !strings.Contains(a.body, `"pointer":"#/`+member) {
						t.Errorf("the problem does not name %s: %s", member, a.body)
					}
				}
			})
		}
	}
	s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","expiry_basis":"first_activation"}`, s.account), admin).is(422, "validation_failed")
	var pointers []string
	for _, e := range s.do("PATCH", "/licenses/"+id, `{"entitlements":["","ok",1,"a b","ok"]}`, admin).is(422).json()["errors"].([]any) {
		pointers = append(pointers, e.(map[string]any)["pointer"].(string))
	}
	if slices.Sort(pointers); fmt.Sprint(pointers) != "[#/entitlements/0 #/entitlements/2 #/entitlements/3 #/entitlements/4]" {
		t.Errorf("wrong are %v", pointers)
	}
	if after := s.count(`SELECT count(*) FROM licenses`) + s.count(`SELECT count(*) FROM events`); after != before {
		t.Fatalf("%d rows became %d", before, after)
	}
}

// pageOf reads a list: the ids of its rows, and the next cursor ("": none).
func pageOf(a answer) (ids []string, next string) {
	a.t.Helper()
	a.is(200)
	var list struct {
		Data []struct{ ID string }
		Next *string `json:"next_cursor"`
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || !strings.HasPrefix(a.body, `{"data":[`) {
		a.t.Fatalf("%s: %v", a.body, err)
	}
	for _, row := range list.Data {
		ids = append(ids, row.ID)
	}
	if list.Next != nil {
		next = *list.Next
	}
	return ids, next
}

// walk reads a list to its end and calls between after every page.
func (s *service) walk(path, auth string, limit int, between func()) (all []string) {
	s.t.Helper()
	cursor := ""
	for range 100 {
		ids, next := pageOf(s.get(fmt.Sprintf("%s?limit=%d%s", path, limit, cursor), auth))
		all = append(all, ids...)
		if len(ids) > limit || next != "" && len(ids) != limit {
			s.t.Fatalf("%d rows on a page of %d, next %q", len(ids), limit, next)
		}
		if next == "" {
			return all
		}
		cursor = "&cursor=" + next
		between()
	}
	s.t.Fatal("the list has no end")
	return nil
}

func TestLicense_listComesNewestFirstAndStaysStableWhileRowsAreAdded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		if ids, next := pageOf(s.get("/licenses", auth)); len(ids) != 0 || next != "" {
			t.Fatalf("an empty list: %v %q", ids, next)
		}
		var want []string
		var lastKey string
		for range 23 {
			time.Sleep(time.Millisecond)
			var id string
			id, lastKey = s.addLicense(license{})
			want = append([]string{id}, want...)
		}
		grow := func() {
			time.Sleep(time.Millisecond)
			s.addLicense(license{})
		}
		for _, limit := range []int{1, 7, 23, 24, 200} {
			if got := s.walk("/licenses", auth, limit, func() {}); !slices.Equal(got, want) {
				t.Fatalf("pages of %d: %v\nwant %v", limit, got, want)
			}
		}
		if got := s.walk("/licenses", auth, 5, grow); !slices.Equal(got, want) {
			t.Fatalf("while rows are added: %v\nwant %v", got, want)
		}
		var devices []string
		for i := range 12 {
			time.Sleep(time.Millisecond)
			devices = append([]string{s.activate(lastKey, fmt.Sprint("machine ", i)).is(200).text("device", "id")}, devices...)
		}
		added := 0
		got := s.walk("/licenses/"+want[0]+"/devices", auth, 5, func() {
			time.Sleep(time.Millisecond)
			added++
			s.activate(lastKey, fmt.Sprint("another ", added)).is(200)
		})
		if !slices.Equal(got, devices) {
			t.Fatalf("devices %v\nwant    %v", got, devices)
		}
	})
}

func TestLicense_searchFindsWhatIsNotASCIIAsItIsWritten(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, _ := s.addLicense(license{Product: "Café ÉLAN"})
	auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
	for _, q := range []string{"%C3%89LAN", "caf%C3%A9", "CAF%C3%A9"} {
		if ids, _ := pageOf(s.get("/licenses?q="+q, auth)); !slices.Equal(ids, []string{id}) {
			t.Errorf("%s: %q", q, ids)
		}
	}
}

func TestLicense_listIsFilteredByPortals(t *testing.T) {
	t.Parallel()
	s := newService(t)
	now := time.Now()
	at := func(d int) stamp { return newStamp(now.Add(days(d))) }
	tenant := s.addAccount("tenant")
	ids := map[string]string{}
	for name, l := range map[string]license{
		"active":      {Plan: ptr("Gold 100%")},
		"grace":       {ExpiresAt: at(-1), GraceDays: 3},
		"expired":     {ExpiresAt: at(-5), GraceDays: 3},
		"not_started": {StartsAt: at(2)},
		"suspended":   {State: "suspended", StartsAt: at(2)},
		"revoked":     {State: "revoked", ExpiresAt: at(-5)},
	} {
		l.AccountID, l.Product = tenant, "app-"+name
		ids[name], _ = s.addLicense(l)
	}
	s.addLicense(license{Plan: ptr("Gold 100%")}) // of another account
	token := "Authorization: Bearer " + s.token(tenant, scopeLicenses)
	list := func(query string) (got string) {
		t.Helper()
		for _, row := range s.get("/licenses"+query, token).is(200).json()["data"].([]any) {
			got = strings.TrimSpace(row.(map[string]any)["status"].(string) + " " + got)
			if s.count(`SELECT count(*) FROM v_licenses WHERE id = ? AND status = ?`, row.(map[string]any)["id"], row.(map[string]any)["status"]) != 1 {
				t.Errorf("v_licenses says something else of %v", row)
			}
		}
		return got
	}
	for name := range ids {
		if got := list("?status=" + name); got != name {
			t.Errorf("status=%s gives %q", name, got)
		}
		if got := list("?product=app-" + name); got != name {
			t.Errorf("product=app-%s gives %q", name, got)
		}
	}
	if got := list("?q=gOLD%20100%25"); got != "active" {
		t.Errorf("q gives %q", got)
	}
	if got := list("?q=%25"); got != "active" {
		t.Errorf("q=%% gives %q", got)
	}
	if got := list("?q=" + ids["grace"]); got != "grace" {
		t.Errorf("q=id gives %q", got)
	}
	s.get("/licenses?status=unknown", token).is(422, "validation_failed")
	s.get("/licenses?q=", token).is(422, "validation_failed")
}

func TestLicense_customerIsShownToTheSellerAndSearchedAndNeverSentToDevices(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	made := s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","customer":"Trattoria Roma, 4711"}`, s.account), admin).is(200)
	id, key := made.text("id"), made.text("key")
	other, _ := s.addLicense(license{Customer: ptr("Bistro")})
	if made.text("customer") != "Trattoria Roma, 4711" || s.get("/licenses/"+id, admin).is(200).text("customer") != "Trattoria Roma, 4711" {
		t.Fatal(made.body)
	}
	for _, a := range []answer{s.activate(key, "f").is(200), s.verifyKey(key, "f").answers("valid"), s.verifyKey(key, "f", "nonce", "n").answers("valid")} {
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(a.text("token")+"..", ".")[1])
		s.check(err)
		if text := a.body + string(payload); strings.Contains(text, "customer") || strings.Contains(text, "Trattoria") {
			t.Errorf("a device sees %s", text)
		}
	}
	for query, want := range map[string]string{"q=RATTORIA": id, "customer=Bistro": other, "customer=bistro": "", "customer=Bistr": "", "q=4711": id} {
		if ids, _ := pageOf(s.get("/licenses?"+query, admin)); strings.Join(ids, " ") != want {
			t.Errorf("%s: %q, want %q", query, ids, want)
		}
	}
	s.get("/licenses?customer=", admin).is(422, "validation_failed")
	s.do("PATCH", "/licenses/"+id, `{"customer":"Osteria"}`, admin).is(200)
	if n := s.count(`SELECT count(*) FROM events WHERE data LIKE '%Osteria%' OR data LIKE '%Trattoria%'`); n != 0 {
		t.Error("an event names the customer")
	}
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'license.updated' AND data = '{"changed":"customer","from":{},"to":{}}'`); n != 1 {
		t.Error("no event says that the customer changed")
	}
	if out := s.must("license", "list", "-wide", "-customer", "Osteria"); !strings.Contains(out, "Osteria") || strings.Contains(out, other) {
		t.Error(out)
	}
	s.do("PATCH", "/licenses/"+id, `{"customer":null}`, admin).is(200)
	rows, err := csv.NewReader(strings.NewReader(s.must("license", "export", "-csv"))).ReadAll()
	s.check(err)
	at := slices.Index(rows[0], "customer")
	if at < 0 || rows[1][at] != "Bistro" || rows[2][at] != "" {
		t.Errorf("exported %q", rows)
	}
	s.must("license", "add", "-account", s.account, "-product", "kds", "-customer", strings.Repeat("ü", 200))
	if _, err := s.command("license", "add", "-account", s.account, "-product", "kds", "-customer", strings.Repeat("ü", 201)); err == nil {
		t.Error("201 characters are taken")
	}
	s.must("license", "import", s.importFile("key,customer", "THE-KEY-OF-ANOTHER-TIME,Café Zwei"), "-account", s.account, "-product", "kds")
	if n := s.count(`SELECT count(*) FROM licenses WHERE customer = 'Café Zwei'`); n != 1 {
		t.Error("the customer was not imported")
	}
}

func TestLicense_isFoundByItsWholeKeyByTheAccountThatOwnsIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("tenant")
	id, key := s.addLicense(license{AccountID: tenant})
	theirKey := "ANOTHER-VENDORS-KEY-1"
	s.must("license", "import", s.importFile("key", theirKey), "-account", s.account, "-product", "kds")
	same, _ := s.addLicense(license{AccountID: tenant, Customer: &theirKey}) // a text that is another account's key
	for range 3 {
		s.addLicense(license{AccountID: tenant})
	}
	s.must("license", "import", s.importFile("key", "A1B2C-D3E4F-G5H6J-K7L8M-N9P1Q"), "-account", tenant, "-product", "kds")
	token := "Authorization: Bearer " + s.token(tenant, scopeLicenses)
	for typed, want := range map[string]string{key: id, strings.ToLower(strings.ReplaceAll(key, "-", " ")): id, theirKey: same} {
		if ids, _ := pageOf(s.get("/licenses?q="+url.QueryEscape(typed), token)); !slices.Equal(ids, []string{want}) {
			t.Errorf("q=%s: %q", typed, ids)
		}
	}
	if ids, _ := pageOf(s.get("/licenses?q=a1b2cd3e4fg5h6jk718mn9p1q", token)); len(ids) != 1 {
		t.Errorf("an imported key: %q", ids)
	}
	if out := s.must("license", "list", "-wide", "-search", theirKey); !strings.Contains(out, s.account) || strings.Contains(out, same) {
		t.Error(out)
	}
	s.get("/licenses?q="+strings.Repeat("k", 255), token).is(200)
}

func TestLicense_listShowsWhatEndsBeforeATime(t *testing.T) {
	t.Parallel()
	s := newService(t)
	soon, _ := s.addLicense(license{ExpiresAt: newStamp(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))})
	s.addLicense(license{ExpiresAt: newStamp(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC))})
	s.addLicense(license{})
	token := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
	for end, want := range map[string][]string{"2030-01-01T00:00:00Z": nil, "2030-01-01T00:00:01Z": {soon}, "2030-01-01T01:00:01%2B01:00": {soon}, "2031-01-01T00:00:00Z": {soon}} {
		if ids, _ := pageOf(s.get("/licenses?expires_before="+end, token)); !slices.Equal(ids, want) {
			t.Errorf("%s: %q, want %q", end, ids, want)
		}
	}
	s.get("/licenses?expires_before=2030-01-01", token).is(422, "validation_failed")
}

func TestLicense_showsEverythingButItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		plan := "pro"
		end := newStamp(time.Now().Add(24 * time.Hour))
		id, key := s.addLicense(license{Plan: &plan, MaxDevices: ptr(4), ExpiresAt: end, GraceDays: 3, Entitlements: codeList{"kds"}, Metadata: json.RawMessage(`{"order":17}`)})
		created := newStamp(time.Now())
		s.activate(key, "f").is(200)
		want := fmt.Sprintf(`{"id":%q,"account_id":%q,"product":"kds","plan":"pro","kind":"node_locked","customer":null,"state":"active","reason":null,"trial":false,"max_devices":4,`+
			`"max_transfers":null,"starts_at":null,"expires_at":%q,"grace_days":3,"duration_days":null,"expiry_basis":"issue","lease_hours":336,"entitlements":["kds"],`+
			`"metadata":{"order":17},"first_activated_at":%q,"created_at":%q,"updated_at":%q,"key_hint":%q,"status":"active","grace_until":%q,"seats":{"used":1,"max":4,"free":3},"transfers":null}`,
			id, s.account, end, created, created, created, key[len(key)-5:], end.after(72*time.Hour))
		if a := s.get("/licenses/"+id, auth).is(200); a.body != want+"\n" {
			t.Fatalf("shown %s\nwant  %s", a.body, want)
		}
		if a := s.get("/licenses", auth).is(200); a.body != `{"data":[`+want+`],"next_cursor":null}`+"\n" {
			t.Fatalf("listed %s\nwant   %s", a.body, want)
		}
		time.Sleep(48 * time.Hour)
		auth = "Authorization: Bearer " + s.token(s.account, scopeLicenses)
		if a := s.get("/licenses/"+id, auth).is(200); a.text("status") != "grace" || a.text("state") != "active" {
			t.Fatalf("in grace: %s", a.body)
		}
	})
}

func TestLicense_ofAnotherAccountIsNotThere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second := s.addAccount("second")
	mine, _ := s.addLicense(license{AccountID: second})
	theirs, key := s.addLicense(license{MaxDevices: ptr(1)})
	dev := s.activate(key, "f").is(200).text("device", "id")
	auth := "Authorization: Bearer " + s.token(second, scopeLicenses+" "+scopeDevices)
	if ids, _ := pageOf(s.get("/licenses", auth)); !slices.Equal(ids, []string{mine}) {
		t.Fatalf("listed %v", ids)
	}
	nowhere := newID("lic", time.Now())
	for _, id := range []string{theirs, nowhere, "lic_1", "'"} {
		for _, call := range []answer{s.get("/licenses/"+id, auth), s.get("/licenses/"+id+"/devices", auth), s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth)} {
			call.is(404, "license_not_found")
		}
	}
	s.do("DELETE", "/licenses/"+mine+"/devices/"+dev, "", auth).is(404, "not_found") // a device of another licence
	if s.deviceRow(dev).State != "active" {
		t.Fatal("a stranger released the device")
	}
	// What tells the two apart is only the request's id.
	one, two := s.get("/licenses/"+theirs, auth).json(), s.get("/licenses/"+nowhere, auth).json()
	delete(one, "request_id")
	delete(two, "request_id")
	if fmt.Sprint(one) != fmt.Sprint(two) {
		t.Fatalf("%v and %v", one, two)
	}
}

func TestLicense_endGivenAsADateIsTheEndOfThatDay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // its clock begins at 2000-01-01T00:00:00Z
		o := newOperator(t)
		for given, want := range map[string]string{
			"2027-01-31": "2027-01-31T23:59:59Z", "31.01.2027": "2027-01-31T23:59:59Z", "29.2.2028": "2028-02-29T23:59:59Z",
			"2027-01-31T12:00:00+02:00": "2027-01-31T10:00:00Z", "9000-12-31": "9000-12-31T23:59:59Z", "2000-01-01": "2000-01-01T23:59:59Z",
			"10d": "2000-01-11T00:00:00Z", "52w": "2000-12-30T00:00:00Z", "1y": "2001-01-01T00:00:00Z", "100y": "2100-01-01T00:00:00Z",
		} {
			text := o.do("license", "add", "-account", o.account, "-product", "kds", "-expires", given)
			if !strings.HasSuffix(text, "\nends: "+want+"\n") {
				t.Errorf("-expires %s: %s", given, text)
			}
			if got := o.object("license", "show", text[6:36])["expires_at"]; got != want {
				t.Errorf("-expires %s is shown as %s", given, got)
			}
		}
		text := o.do("license", "add", "-account", o.account, "-product", "kds", "-duration-days", "30", "-from-activation")
		if !strings.HasSuffix(text, "\nends: 30 days after its first activation\n") {
			t.Error(text)
		}
		text = o.do("license", "add", "-account", o.account, "-product", "kds", "-starts", "2000-02-03", "-expires", "2000-02-03", "-duration-days", "1")
		if got := o.object("license", "show", text[6:36])["starts_at"]; got != "2000-02-03T00:00:00Z" {
			t.Errorf("a day's licence begins at %s", got)
		}
		if text := o.do("license", "renew", text[6:36]); !strings.HasSuffix(text, " ends at 2000-02-04T23:59:59Z\n") {
			t.Error(text)
		}
		time.Sleep(time.Second)
		o.do("license", "add", "-account", o.account, "-product", "kds", "-expires", "1999-12-31", "-force")
	})
}

func licenseStory(t *testing.T, o *operator) {
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-plan", "pro", "-max-devices", "3", "-expires", "365d",
		"-grace-days", "14", "-lease-hours", "48", "-entitlements", "a,b", "-trial", "-metadata", `{"order":17}`)
	id, key := added["id"].(string), added["key"].(string)
	if _, err := parseLicenseKey(key); err != nil || !validID("lic", id) || len(added) != 2 {
		t.Errorf("added %v: %v", added, err)
	}
	text := o.do("license", "add", "-account", o.account, "-product", "board", "-starts", "2099-01-01")
	if !regexp.MustCompile(`^id:   lic_\w{26}\nkey:  ([0-9A-Z]{5}-){4}[0-9A-Z]{5}  \(shown once\)\nends: never\n$`).MatchString(text) {
		t.Errorf("for people: %q", text)
	}
	board := regexp.MustCompile(`lic_\w{26}`).FindString(text)
	device := o.addDevice(id, "a-key")
	shown := o.object("license", "show", id)
	if devices := shown["devices"].([]any); len(devices) != 1 || devices[0].(map[string]any)["id"] != device {
		t.Errorf("its devices: %v", devices)
	}
	if shown["status"] != "active" || shown["max_devices"] != 3.0 || shown["trial"] != true || shown["lease_hours"] != 48.0 || shown["grace_days"] != 14.0 ||
		fmt.Sprint(shown["entitlements"], shown["seats"], shown["metadata"]) != "[a b] map[free:2 max:3 used:1] map[order:17]" {
		t.Errorf("shown %v", shown)
	}
	all := o.do("license", "list") + o.do("license", "list", "-json") + o.do("license", "show", id) + o.do("events", "-json")
	if strings.Contains(all, key) || !strings.Contains(all, "…"+key[len(key)-5:]) {
		t.Errorf("the key is shown again, or its hint isn't:\n%s", all)
	}
	if got := column(o.objects("license", "list", "-limit", "1"), "status"); !slices.Equal(got, []any{"not_started"}) || o.noted != "these are the first 1; print more with -limit N\n" {
		t.Errorf("the newest: %v, %q", got, o.noted)
	}
	for _, filter := range [][]string{{"-status", "active"}, {"-product", "kds"}, {"-search", "PRO"}, {"-search", key[len(key)-5:]}, {"-status", "active", "-account", o.account}} {
		if got := column(o.objects(append([]string{"license", "list"}, filter...)...), "id"); !slices.Contains(got, any(id)) || slices.Contains(got, any(board)) || o.noted != "" {
			t.Errorf("%q: %v, %q", filter, got, o.noted)
		}
	}
	if got := o.objects("license", "list", "-status", "grace"); len(got) > 0 {
		t.Errorf("in grace: %v", got)
	}
	if got := o.object("license", "patch", id, `{"plan":null,"duration_days":10}`); got["plan"] != nil || got["duration_days"] != 10.0 {
		t.Errorf("patched: %v", got)
	}
	before := shown["expires_at"].(string)
	if got := o.object("license", "renew", id); got["expires_at"] == before || got["expires_at"] != o.object("license", "show", id)["expires_at"] {
		t.Errorf("renewed: %v", got)
	}
	if got := o.object("license", "rotate-key", id, "-old-key-until", "7d"); got["id"] != id || got["key"] == key {
		t.Errorf("rotated: %v", got)
	}
	file := filepath.Join(o.dir, "import.csv")
	if err := os.WriteFile(file, []byte("key\nTHE-KEY-OF-ANOTHER-TIME\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := o.object("license", "import", file, "-account", o.account, "-product", "kds"); got["imported"] != 1.0 {
		t.Errorf("imported: %v", got)
	}
	if got := column(o.objects("license", "export"), "id"); !slices.Contains(got, any(id)) {
		t.Errorf("licences exported: %v", got)
	}
	if got := column(o.objects("device", "export"), "license_id"); !slices.Contains(got, any(id)) {
		t.Errorf("devices exported: %v", got)
	}
	o.fails("-public FILE is needed", "lease", "inspect", "x")
	for _, step := range [][2]string{{"suspend", "suspended"}, {"reinstate", "active"}, {"revoke", "revoked"}} {
		if got := o.object("license", step[0], id, "-reason", "a test"); got["status"] != step[1] {
			t.Errorf("%s: %v", step[0], got)
		}
	}
	o.fails("illegal_transition: The licence is revoked; suspend does not apply to it.", "license", "suspend", id)

	o.do("device", "block", device)
	if got := column(o.objects("device", "list", id), "state"); !slices.Equal(got, []any{deviceBlocked}) {
		t.Errorf("devices %v", got)
	}
	o.do("device", "release", device)
	o.do("device", "release", device)
	if table := o.do("device", "list", id, "-wide"); !strings.Contains(table, device) || !strings.Contains(table, " released ") || !strings.HasSuffix(table, " operator\n") {
		t.Errorf("devices:\n%s", table)
	}
	types := fmt.Sprint(column(o.objects("events", "-limit", "5"), "type"))
	if types != "[device.released device.blocked license.revoked license.reinstated license.suspended]" {
		t.Errorf("events %s", types)
	}
	if out := o.do("license", "limit-transfers", "-dry-run"); !strings.HasPrefix(out, "0 licences would get") {
		t.Error(out)
	}
	moved := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", "1", "-max-transfers", "none")["id"].(string)
	if out := o.do("license", "limit-transfers"); !strings.HasPrefix(out, "1 licence got") {
		t.Error(out)
	}
	if out := o.do("license", "reset-transfers", moved); out != moved+" has only the holders of its seats count\n" {
		t.Error(out)
	}
}

// manyLicenses inserts licences of an account, the first of them, which are the oldest, with
// rare terms.
func manyLicenses(account string, n int) string {
	return manyRows(n) + `INSERT INTO licenses (id, account_id, product, state, created_at, updated_at)
		SELECT printf('lic_%026d', i), '` + account + `', iif(i = 1, 'rare', 'common'), iif(i = 1, 'suspended', 'active'),
		'2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z' FROM n`
}

func TestLicense_listThatFiltersReadsABoundedNumberOfRowsAndComesToEveryOne(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t)
	s.sql(manyLicenses(s.account, 25_000))
	for _, scope := range []string{scopeAdmin, scopeLicenses} {
		auth := "Authorization: Bearer " + s.token(s.account, scope)
		for filter, c := range map[string]struct{ rows, empty int }{
			"product=rare": {1, 2}, "status=suspended": {1, 2}, "q=RAR": {1, 2}, "q=nothing": {0, 3}, "product=rare&status=active": {0, 3},
		} {
			ids, empty := s.everyPage("/licenses?"+filter, auth)
			if len(ids) != c.rows || empty != c.empty {
				t.Errorf("%s: %s gives %d licences and %d empty pages, want %v", scope, filter, len(ids), empty, c)
			}
		}
	}
	auth := "Authorization: Bearer " + s.token(s.account, scopeLicenses)
	for filter, want := range map[string]int{"product=common": 24_999, "status=active": 24_999, "": 25_000} {
		ids, empty := s.everyPage("/licenses?limit=200&"+filter, auth)
		seen := map[any]bool{}
		for _, id := range ids {
			seen[id] = true
		}
		if len(ids) != want || len(seen) != want || empty > 1 {
			t.Errorf("%q: %d licences, %d different ones and %d empty pages, want %d", filter, len(ids), len(seen), empty, want)
		}
	}
}

func TestLicense_listByTheCommandGoesOnUntilItHasTheRowsThatItWasAskedFor(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	raw(t, o.env["WIDGETD_DB"], manyLicenses(o.account, 25_000))
	if got := o.objects("license", "list", "-status", "suspended"); len(got) != 1 || got[0]["product"] != "rare" {
		t.Errorf("%v", got)
	}
	if got := o.objects("license", "list", "-search", "common", "-limit", "11000"); len(got) != 11_000 {
		t.Errorf("%d licences", len(got))
	}
}

func TestLicense_customerIsShownToItsSellerAndToNoDevice(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{Customer: ptr("Trattoria Roma, no. 17")})
	if got := s.get("/licenses/"+id, "Authorization: Bearer "+s.token(s.account, scopeLicenses)).is(200).text("customer"); got != "Trattoria Roma, no. 17" {
		t.Errorf("shown %q", got)
	}
	activated := s.activate(key, "a").is(200)
	for _, a := range []answer{activated, s.verifyKey(key, "a"), s.verifyLease(activated.text("token"))} {
		if strings.Contains(a.body, "Roma") || strings.Contains(a.body, "customer") {
			t.Errorf("a device is told: %s", a.body)
		}
	}
	s.change(func(t *tx) error {
		_, err := patchLicense(t, anyAccount, id, termsChange{func(l *license) { l.GraceDays = 9 }}, actorCommand)
		return err
	})
	if n := s.count(`SELECT count(*) FROM licenses WHERE customer = 'Trattoria Roma, no. 17' AND grace_days = 9`); n != 1 {
		t.Error("a change of another term loses it")
	}
}
