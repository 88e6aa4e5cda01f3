package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
func symbolsOf(t testing.TB, key string) (symbols []byte) {
	t.Helper()
	for _, r := range strings.ReplaceAll(key, "-", "") {
		symbols = append(symbols, byte(strings.IndexRune(upperCrockford, r)))
	}
	sameText(t, "symbols of "+key, len(symbols), keySymbols, slices.Contains(symbols, 255), false)
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
		must(t, err)
		sameText(t, "key", string(parsed), strings.ReplaceAll(key, "-", ""), parsed.hint(), groups[4])
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
	judge := func(what string, symbols []byte, mistyped bool) {
		t.Helper()
		if key, err := parseLicenseKey(keyText(symbols)); err != nil || key.mistyped() != mistyped {
			t.Fatalf("%s: %s: %q, %v", what, keyText(symbols), key, err)
		}
	}
	for _, symbols := range keys {
		judge("as it is", symbols, false)
		for i := range symbols {
			wrong := slices.Clone(symbols)
			for other := range byte(32) {
				if wrong[i] = other; other != symbols[i] {
					judge("a wrong symbol", wrong, true)
				}
			}
			for j := i + 1; j < len(symbols); j++ { // neighbours, and any other two
				wrong := slices.Clone(symbols)
				if wrong[i], wrong[j] = wrong[j], wrong[i]; wrong[i] != wrong[j] {
					judge("two symbols swapped", wrong, true)
				}
			}
		}
		for _, length := range []int{minImported - 1, 1, 0} {
			if _, err := parseLicenseKey(keyText(symbols[:length])); err == nil {
				t.Fatalf("%d symbols are a key", length)
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
	must(t, err)
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
		must(t, err)
		sameText(t, name, got, want, got.hash(), want.hash())
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
		"not ASCII": "abcdefghijklmnopé", "a NUL": "abcdefgh\x00ijklmnop", "a DEL": "abcdefgh\x7fijklmnop",
		"not UTF-8":   "abcdefgh\xffijklmnop",
		"only dashes": strings.Repeat("-", 3), "25 letters that are not ASCII": strings.Repeat("ı", 25),
		"25 letters, spaces and a dot": "abcde fghjk mnpqr stvwx yz01.",
	} {
		_, err := parseLicenseKey(key)
		sameText(t, name, err, errKeyMalformed)
	}
}

// Keys of five groups of five are common, and 31 of 32 of them don't have our check symbol.
func TestLicenseKey_ofAnotherVendorInOurShapeIsFoundHoweverItIsTyped(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	rand := random(t, 0)
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
	s.must(s.importArgs(s.importFile(append([]string{"key"}, keys...)...))...)
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
		s.verifyKey(typed.String(), "f").is(200, "device_not_activated")
		s.activate(typed.String(), "f").is(200)
		s.deactivate(key, "f").is(200)
	}
}

func TestLicenseKey_thatCoincidesWithAnotherIsRefusedAtImport(t *testing.T) {
	t.Parallel()
	s := newService(t)
	importing := func(keys ...string) error {
		_, err := s.command(s.importArgs(s.importFile(append([]string{"key"}, keys...)...))...)
		return err
	}
	err := importing("A1B2C-D3E4F-G5H6J-K7L8M-N9P1O", "a1b2cd3e4fg5h6jk718mn9p10")
	oneLine(t, err, "line 3: key: ")
	s.check(importing("A1B2C-D3E4F-G5H6J-K7L8M-N9P1O"))
	oneLine(t, importing("AIB2C-D3E4F-G5H6J-K7I8M-N9PL0"), errKeyTaken.Error())
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
		s.verifyKey(sent, "f").is(200).tells("license.id", id)
	}
}

func TestLicenseKey_withAWrongSymbolIsLookedUpAndCountedAndMalformedWhenUnknown(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"verify", "activate", "deactivate"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				const known = "A1B2C-D3E4F-G5H6J-K7L8M-N9P1Q"
				s.must(s.importArgs(s.importFile("key", known))...)
				ask := func(key string) answer {
					return s.license(path, "", "license_key", key, "fingerprint", "f")
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
		return slices.ContainsFunc(slices.Concat(reads(), writes()),
			func(query string) bool { return strings.Contains(query, "k.hash = ?") })
	}
	for _, bad := range []string{key[:15], key[:28] + "é", "", "short", strings.Repeat("k", 256)} {
		for range 4 { // 60 in all, where 30 failed look-ups would be too many
			body := fmt.Sprintf(`{"license_key":%q,"fingerprint":"f"}`, bad)
			a := s.post("/widget/license/verify", body).is(200)
			sameText(t, "verify", a.json()["valid"], false, a.text("code"), "key_malformed", a.json()["license"], nil,
				a.header.Get("RateLimit"), "")
			for _, path := range []string{"activate", "deactivate"} {
				s.post("/widget/license/"+path, body).is(422, "key_malformed").contains(`"pointer":"#/license_key"`)
			}
		}
	}
	sameText(t, "a key that is wrong was looked up", lookedUp(), false)
	s.verifyKey(newLicenseKey(), "f").answers("not_found") // not limited
	sameText(t, "a key that is right was looked up, so that this test sees one", lookedUp(), true)
}

func TestLicenseKey_withAControlCharacterIsAWrongMember(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	for _, control := range []string{"\n", "\t", "\r\n", "\x00", "\u0085"} {
		for _, path := range []string{"activate", "verify", "deactivate"} {
			a := s.license(path, "", "license_key", key+control, "fingerprint", "f").is(422, "validation_failed")
			a.contains(`"pointer":"#/license_key","code":"control_character"`)
		}
	}
}

func TestLicenseKey_rotatedWorksUntilItsEnd(t *testing.T) {
	t.Parallel()
	now := newStamp(time.Now())
	l := &license{State: "active", Product: "kds", KeyRetiresAt: now}
	sameText(t, "a second before", verdict(l, nil, verdictInput{}, now.Add(-time.Second)), "valid true")
	sameText(t, "at its end", verdict(l, nil, verdictInput{}, now.Time), "key_retired false")
}

func TestLicenseKey_earlierNeverOutlivesTheEndOfALaterOne(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
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
			sameText(t, "the keys answer", got, want)
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
	for _, seed := range []string{"00000-00000-00000-00000-00000", newLicenseKey(), strings.ToLower(newLicenseKey()),
		"o0O0o iIlL1 -- 00000", "OLD-KEY-OLD-KEY-oil",
		strings.Repeat("k", 255), strings.Repeat("–", 25), "ſſſſſſſſſſſſſſſſſſſſſſſſſ",
		"ıııııııııııııııııııııııııı",
		"", "\xff\xfe", "ß",
		"00!!000000000000000000000", "0000000000000000000-00000"} { // no shape of ours
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseLicenseKey(s)
		if err != nil {
			sameText(t, s, err, error(errKeyMalformed), key, "")
			return
		}
		again, err := parseLicenseKey(string(key))
		if err != nil || again != key {
			t.Fatalf("%q reads as %q, and that as %q, %v", s, key, again, err)
		}
		if len(key) < minImported || len(key) > maxKeyBytes || len(key.hint()) != 5 ||
			strings.IndexFunc(string(key), func(r rune) bool { return r < '!' || r > '~' }) >= 0 {
			t.Fatalf("%q reads as %q", s, key)
		}
		upper := lookalikes.Replace(strings.ToUpper(string(key)))
		if hasOwnShape(string(key)) && string(key) != upper ||
			!hasOwnShape(string(key)) && (string(key) != s || key.mistyped()) {
			t.Fatalf("%q reads as %q", s, key)
		}
	})
}

func BenchmarkParseKey(b *testing.B) {
	key := newLicenseKey()
	for b.Loop() {
		_, err := parseLicenseKey(key)
		must(b, err)
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
		sameText(t, name, l.status(now), want)
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
		sameText(t, name, c.l.status(end.Add(c.at)), c.want)
	}
}

func TestLicense_statusIsTheSameInTheViewAndTheService(t *testing.T) {
	t.Parallel()
	s := newService(t)
	closed := s.addAccount("closed")
	auth := s.auth(s.account, scopeAdmin)
	ids := map[string]string{}
	table := licenceTable(time.Now())
	for name, l := range table {
		if l.AccountClosed {
			l.AccountID = closed
		}
		ids[name], _ = s.addLicense(l)
		if l.State != "active" {
			s.sql(`UPDATE licenses SET state = ? WHERE id = ?`, l.State, ids[name])
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
		sameText(t, name, row.status(time.Now()), want, view, want)
		sameText(t, name, s.get("/licenses/"+id, auth).is(200).text("status"), want)
	}
	sameText(t, "statuses in the table", len(seen), 6)
}

func TestLicense_filterByStatusChoosesWhatHasThatStatus(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		closed := s.addAccount("closed")
		now := newStamp(time.Now())
		r := random(t, 1)
		moment := func() stamp { // often exactly now, a day away, or none
			return []stamp{{}, now, now.after(time.Second), now.after(-time.Second), now.after(days(1)),
				now.after(-days(1)), now.after(days(r.IntN(9) - 4))}[r.IntN(7)]
		}
		for range 400 {
			s.addLicense(license{AccountID: []string{s.account, closed}[r.IntN(8)/7],
				State:    []string{"active", "active", "active", "active", "suspended", "revoked"}[r.IntN(6)],
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

// A verdictQuestion is what licenseVerdict is asked.
type verdictQuestion struct {
	l   license
	d   *device
	q   verdictInput
	now time.Time
}

func (c *verdictQuestion) at(d time.Duration) stamp { return newStamp(c.now.Add(d)) }

// A verdictFault makes a question wrong, so that its code is the answer.
type verdictFault struct {
	code string
	make func(*verdictQuestion)
}

// faults are what can be wrong about a question, in the contract's precedence
// (section 4); each makes it so on its own. Those of one row exclude one another.
var faults = [][]verdictFault{
	{{"key_retired", func(c *verdictQuestion) { c.l.KeyRetiresAt = c.at(0) }}},
	{
		{"revoked", func(c *verdictQuestion) { c.l.State = "revoked" }},
		{"suspended", func(c *verdictQuestion) { c.l.State = "suspended" }},
	},
	{{"suspended", func(c *verdictQuestion) { c.l.AccountClosed = true }}},
	{{"product_mismatch", func(c *verdictQuestion) { c.q.product = "other" }}},
	{{"not_started", func(c *verdictQuestion) { c.l.StartsAt = c.at(time.Minute) }}},
	{
		{"expired", func(c *verdictQuestion) { c.l.ExpiresAt = c.at(-48 * time.Hour) }},
		{"grace", func(c *verdictQuestion) { c.l.ExpiresAt, c.l.GraceDays = c.at(-time.Hour), 1 }},
	},
	{
		{"fingerprint_required", func(c *verdictQuestion) { c.d, c.q.hasDevice, c.q.mismatch = nil, false, false }},
		{"fingerprint_mismatch", func(c *verdictQuestion) { c.q.mismatch = true }},
	},
	{
		{"device_blocked", func(c *verdictQuestion) { c.d = &device{State: deviceBlocked} }},
		{"device_released", func(c *verdictQuestion) { c.d = &device{State: deviceReleased} }},
		{"device_not_activated", func(c *verdictQuestion) { c.d = nil }},
	},
	{{"token_ended", func(c *verdictQuestion) { c.q.tokenEnded = true }}},
	{{"entitlement_missing", func(c *verdictQuestion) { c.q.entitlements = []string{"kds", "gold"} }}},
}

func TestLicense_firstFaultOfThePrecedenceIsTheAnswer(t *testing.T) {
	t.Parallel()
	precedence := []string{"not_found", "key_retired", "revoked", "suspended", "product_mismatch", "not_started",
		"expired", "fingerprint_required", "fingerprint_mismatch", "device_blocked", "device_released", "token_ended",
		"device_not_activated", "entitlement_missing", "grace", "valid"}
	tried, seen := 0, map[string]bool{}
	var try func(row int, chosen []int)
	try = func(row int, chosen []int) {
		if row < len(faults) {
			for choice := -1; choice < len(faults[row]); choice++ {
				try(row+1, append(chosen[:row:row], choice))
			}
			return
		}
		c := &verdictQuestion{
			l:   license{State: "active", Product: "kds", MaxDevices: ptr(3), Entitlements: codeList{"kds"}},
			d:   &device{State: deviceActive},
			q:   verdictInput{product: "kds", hasDevice: true, entitlements: []string{"kds"}},
			now: time.Now(),
		}
		var codes []string
		for row, choice := range chosen {
			if choice >= 0 {
				codes = append(codes, faults[row][choice].code)
				faults[row][choice].make(c)
			}
		}
		if slices.Contains(codes, "fingerprint_required") { // no device at all: nothing is wrong with it
			codes = slices.DeleteFunc(codes, func(c string) bool {
				return strings.HasPrefix(c, "device_") ||
					c == "token_ended"
			})
			c.d = nil
		}
		want := "valid"
		for _, code := range codes {
			if slices.Index(precedence, code) < slices.Index(precedence, want) {
				want = code
			}
		}
		tried++
		seen[want] = true
		code, valid := licenseVerdict(&c.l, c.d, c.q, c.now)
		sameText(t, codes, code, want, valid, want == "valid" || want == "grace")
		sameText(t, "without a licence", verdict(nil, c.d, c.q, c.now), "not_found false")
	}
	try(0, nil)
	sameText(t, fmt.Sprint("answers to ", tried, " questions"), slices.Sorted(maps.Keys(seen)),
		slices.Sorted(slices.Values(precedence[1:])))
	for _, code := range append(precedence, "key_malformed") {
		if verdictDetails[code] == "" {
			t.Errorf("%s says nothing to people", code)
		}
	}
}

// verdict is the code of licenseVerdict, and whether it means that the licence is valid.
func verdict(l *license, d *device, q verdictInput, now time.Time) string {
	code, valid := licenseVerdict(l, d, q, now)
	return fmt.Sprint(code, " ", valid)
}

func TestLicense_withoutALimitOfDevicesNeedsNone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := &license{State: "active", Product: "kds"}
	asked := verdictInput{hasDevice: true}
	sameText(t, "without a device", verdict(l, nil, verdictInput{}, now), "valid true")
	sameText(t, "with one that was never activated", verdict(l, nil, asked, now), "device_not_activated false")
	sameText(t, "with a released one", verdict(l, &device{State: deviceReleased}, asked, now), "device_released false")
}

func TestLicense_saysWhoMayTakeASeat(t *testing.T) {
	t.Parallel()
	now := time.Now()
	active, released, blocked := &device{State: deviceActive}, &device{State: deviceReleased},
		&device{State: deviceBlocked}
	past, future := newStamp(now.Add(-time.Hour)), newStamp(now.Add(time.Hour))
	running, ended := license{State: "active"}, license{State: "active", ExpiresAt: past}
	grace := license{State: "active", ExpiresAt: past, GraceDays: 1}
	for name, c := range map[string]struct {
		l       license
		d       *device
		product string
		want    string
	}{
		"a new device":                 {running, nil, "", ""},
		"a new device for its product": {running, nil, "kds", ""},
		"a known device":               {running, active, "", ""},
		"a released device":            {running, released, "", ""},
		"a blocked device":             {running, blocked, "", "device_blocked"},
		"a new device in grace":        {grace, nil, "", "license_in_grace"},
		"a known device in grace":      {grace, active, "", ""},
		"a released device in grace":   {grace, released, "", ""},
		"a blocked device in grace":    {grace, blocked, "", "device_blocked"},
		"another product":              {running, nil, "other", "product_mismatch"},
		"another product in grace":     {grace, nil, "other", "product_mismatch"},
		"another product, blocked":     {running, blocked, "other", "product_mismatch"},
		"another product, over":        {ended, nil, "other", "product_mismatch"},
		"a licence not begun": {license{State: "active", StartsAt: future}, active, "",
			"license_not_started"},
		"a licence that is over":          {ended, active, "", "license_expired"},
		"a licence that is over, blocked": {ended, blocked, "", "license_expired"},
		"a suspended licence":             {license{State: "suspended"}, active, "other", "license_suspended"},
		"a closed account": {license{State: "active", AccountClosed: true}, active, "",
			"license_suspended"},
		"a revoked licence": {license{State: "revoked", AccountClosed: true}, active, "",
			"license_revoked"},
		"a retired key": {license{State: "revoked", KeyRetiresAt: past}, active, "", "key_retired"},
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
	allowed := map[string]string{"active suspend": "suspended", "suspended reinstate": "active",
		"active revoke": "revoked", "suspended revoke": "revoked"}
	for _, state := range []string{"active", "suspended", "revoked"} {
		for _, action := range []string{"suspend", "reinstate", "revoke", "renew", ""} {
			got, err := nextState(&license{State: state}, action, true)
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
	inBubble(t, func(t *testing.T, s *service) {
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
			sameText(t, name, got.ExpiresAt, test.want)
			if l.ExpiryBasis != "first_activation" {
				continue
			}
			for _, device := range []string{"a", "b"} {
				s.activate(key, device).is(200).tells("license.expires_at", now.after(days(10)))
			}
		}
	})
}

func TestLicense_endThatCountsFromTheFirstActivationIsInItsLease(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		id, key := s.addLicense(license{DurationDays: ptr(30), ExpiryBasis: "first_activation", GraceDays: 2})
		time.Sleep(100 * 24 * time.Hour)
		end := time.Now().Add(30 * 24 * time.Hour)
		a := s.activate(key, "f").is(200)
		c := s.lease(a)
		sameText(t, "ends", c.LicenseEnd, end.Unix(), c.GraceEnd, end.Add(48*time.Hour).Unix())
		a.tells("license.expires_at", newStamp(end))
		time.Sleep(24 * time.Hour)
		s.activate(key, "g").is(200)
		s.counts(1, `SELECT count(*) FROM licenses WHERE id = ? AND expires_at = ?`, id, newStamp(end))
	})
}

func TestLicense_isManagedByTheOperatorOverHTTP(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		admin := s.auth(s.account, scopeAdmin)
		tenant := s.addAccount("tenant")
		a := s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","plan":"pro","kind":"floating",
			"max_devices":3,"max_transfers":2,"starts_at":"1999-01-01T00:00:00Z","duration_days":30,"grace_days":7,
			"lease_hours":24,"entitlements":["kds","reports"],"trial":true,
			"metadata":{"order":{"id":7}}}`, tenant), admin).is(200)
		id, key := a.text("id"), a.text("key")
		_, err := parseLicenseKey(key)
		s.check(err)
		a.tells("account_id", tenant, "product", "kds", "plan", "pro", "kind", "floating", "max_devices", 3,
			"max_transfers", 2, "starts_at", "1999-01-01T00:00:00Z", "grace_days", 7, "lease_hours", 24, "trial", true,
			"status", "active", "key_hint", key[24:], "expires_at", newStamp(time.Now().Add(days(30))))
		path := "/licenses/" + id
		s.get(path, admin).is(200).omits(key).contains(`"metadata":{"order":{"id":7}}`)

		patched := s.do("PATCH", path, `{"plan":null,"max_devices":null,"max_transfers":null,"entitlements":[],`+
			`"metadata":{}}`, admin).is(200)
		patched.tells("plan", nil, "max_devices", nil, "grace_days", 7, "entitlements", []string{})
		written := s.count(`SELECT count(*) FROM events`)
		sameText(t, "a change to what is there already",
			s.do("PATCH", path, `{"plan":null,"entitlements":[],"metadata":{}}`, admin).is(200).body, patched.body,
			s.count(`SELECT count(*) FROM events`), written)
		s.counts(1, `SELECT count(*) FROM events WHERE type = 'license.updated' AND data = ?`,
			`{"changed":"entitlements max_devices max_transfers metadata plan",`+
				`"from":{"entitlements":["kds","reports"],"max_devices":3,"max_transfers":2,"plan":"pro"},`+
				`"to":{"entitlements":[],"max_devices":null,"max_transfers":null,"plan":null}}`)
		s.do("PATCH", path, `{"product":"other"}`, admin).is(422, "validation_failed")
		s.do("PATCH", path, `{"expires_at":"1998-01-01T00:00:00Z"}`, admin).is(422, "validation_failed")

		end := newStamp(time.Now()).after(days(60)).String()
		s.post(path+"/renew", `{}`, admin).is(200).tells("expires_at", end)
		s.post(path+"/reinstate", `{}`, admin).is(409, "illegal_transition")
		s.post(path+"/suspend", `{"reason":"unpaid"}`, admin).is(200).tells("status", "suspended", "reason", "unpaid")
		s.post(path+"/suspend", `{}`, admin).is(409, "illegal_transition")
		s.verifyKey(key, "a").answers("suspended")
		s.post(path+"/reinstate", `{}`, admin).is(200)

		until := newStamp(time.Now()).after(days(7))
		rotate := func() answer {
			return s.post(path+"/rotate-key", fmt.Sprintf(`{"old_key_until":%q}`, until), admin,
				"Idempotency-Key: r1").is(200)
		}
		rotated := rotate()
		sameText(t, "the answer to the same Idempotency-Key", rotate().body, rotated.body)
		s.activate(key, "a").is(200)
		s.activate(rotated.text("key"), "a").is(200)
		time.Sleep(days(7))
		admin = s.auth(s.account, scopeAdmin) // the first one has ended
		s.activate(key, "a").is(403, "key_retired")
		s.verifyKey(key, "a").answers("key_retired")
		s.verifyKey(rotated.text("key"), "a").answers("device_released") // its floating lease has lapsed
		s.activate(rotated.text("key"), "a").is(200)

		s.post(path+"/revoke", `{}`, admin).is(200)
		for _, action := range []string{"suspend", "reinstate", "revoke", "renew", "rotate-key"} {
			a := s.post(path+"/"+action, `{"days":1}`, admin).is(409, "illegal_transition")
			includes(t, a.text("detail"), "revoked")
		}
		s.do("PATCH", path, `{"trial":false}`, admin).is(409, "illegal_transition")
		s.verifyKey(rotated.text("key"), "a").answers("revoked")
		for _, action := range []string{"suspend", "renew"} {
			s.post("/licenses/lic_00000000000000000000000000/"+action, `{}`, admin).is(404, "license_not_found")
		}
		s.post("/licenses", `{"account_id":"acct_00000000000000000000000000","product":"kds"}`, admin).is(404,
			"account_not_found")
		want := "license.created license.updated license.renewed license.suspended license.reinstated " +
			"license.key_rotated license.first_activated device.activated device.released device.reactivated " +
			"license.revoked"
		s.advance()
		sameText(t, "events", s.eventTypes(id), want)
	})
}

func TestLicense_illegalTransitionNamesTheStateAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	admin := s.auth(s.account, scopeAdmin)
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
					method, path, body, args = "PATCH", "/licenses/"+id, `{"trial":true}`,
						append(args, `{"trial":true}`)
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
				sameText(t, answered, done, slices.Contains(strings.Fields(actions), action))
				if !done {
					includes(t, answered, "409 ", "illegal_transition", "The licence is "+state+";")
					s.unchanged(before)
				}
			}
		}
	}
}

func TestLicense_isManagedByTheOperatorAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, _ := s.addLicense(license{})
	token := s.auth(s.account, scopeLicenses, scopeDevices, scopeEvents)
	for _, rt := range allRoutes() {
		if rt.scope != scopeAdmin {
			continue
		}
		a := s.do(rt.method(), strings.ReplaceAll(rt.path(), "{id}", id), `{}`, token).is(403, "insufficient_scope")
		includes(t, a.header.Get("WWW-Authenticate"), `scope="admin"`)
	}
}

func TestLicense_badTermsAreNamedAndChangeNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := s.auth(s.account, scopeAdmin)
	id, _ := s.addLicense(license{StartsAt: newStamp(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))})
	before := s.licenceRows()
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
		"entitlements": {`null`, `"kds"`, `[1]`, `[""]`, `["a b"]`, `["-a"]`, `["é"]`, `["a","a"]`,
			`["` + strings.Repeat("a", 65) + `"]`},
		"metadata": {`null`, `[]`, `"x"`, `{"a":"\u0001"}`, `{"a":"` + strings.Repeat("x", 16384) + `"}`},
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
				s := s.with(t)
				named := `"pointer":"#/` + member
				s.post("/licenses", head+body, admin).is(422, "validation_failed").contains(named)
				s.do("PATCH", "/licenses/"+id, `{`+body, admin).is(422, "validation_failed").contains(named)
			})
		}
	}
	s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","expiry_basis":"first_activation"}`, s.account),
		admin).is(422, "validation_failed")
	var pointers []string
	for _, e := range s.do("PATCH", "/licenses/"+id, `{"entitlements":["","ok",1,"a b","ok"]}`,
		admin).is(422).json()["errors"].([]any) {
		pointers = append(pointers, e.(map[string]any)["pointer"].(string))
	}
	slices.Sort(pointers)
	sameText(t, "wrong are", pointers, "[#/entitlements/0 #/entitlements/2 #/entitlements/3 #/entitlements/4]")
	sameText(t, "rows", s.licenceRows(), before)
}

// pageOf reads a list: the ids of its rows, and the next cursor ("": none).
func pageOf(a answer) (ids []string, next string) {
	a.t.Helper()
	page := a.is(200).json()
	for _, row := range page["data"].([]any) {
		ids = append(ids, row.(map[string]any)["id"].(string))
	}
	next, _ = page["next_cursor"].(string)
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
	inBubble(t, func(t *testing.T, s *service) {
		auth := s.auth(s.account, scopeLicenses)
		s.get("/licenses", auth).listsIDs()
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
			sameText(t, fmt.Sprint("pages of ", limit), s.walk("/licenses", auth, limit, func() {}), want)
		}
		sameText(t, "while rows are added", s.walk("/licenses", auth, 5, grow), want)
		var devices []string
		for i := range 12 {
			time.Sleep(time.Millisecond)
			devices = append([]string{s.activate(lastKey, fmt.Sprint("machine ", i)).is(200).text("device", "id")},
				devices...)
		}
		added := 0
		got := s.walk("/licenses/"+want[0]+"/devices", auth, 5, func() {
			time.Sleep(time.Millisecond)
			added++
			s.activate(lastKey, fmt.Sprint("another ", added)).is(200)
		})
		sameText(t, "devices", got, devices)
	})
}

func TestLicense_searchFindsWhatIsNotASCIIAsItIsWritten(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, _ := s.addLicense(license{Product: "Café ÉLAN"})
	auth := s.auth(s.account, scopeLicenses)
	for _, q := range []string{"%C3%89LAN", "caf%C3%A9", "CAF%C3%A9"} {
		s.get("/licenses?q="+q, auth).listsIDs(id)
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
	token := s.auth(tenant, scopeLicenses)
	list := func(query string) (got string) {
		t.Helper()
		for _, row := range s.get("/licenses"+query, token).is(200).json()["data"].([]any) {
			got = strings.TrimSpace(row.(map[string]any)["status"].(string) + " " + got)
			s.counts(1, `SELECT count(*) FROM v_licenses WHERE id = ? AND status = ?`, row.(map[string]any)["id"],
				row.(map[string]any)["status"])
		}
		return got
	}
	for name := range ids {
		sameText(t, "by status", list("?status="+name), name)
		sameText(t, "by product", list("?product=app-"+name), name)
	}
	sameText(t, "q gives", list("?q=gOLD%20100%25"), "active")
	sameText(t, "by a percent sign", list("?q=%25"), "active")
	sameText(t, "q=id gives", list("?q="+ids["grace"]), "grace")
	s.get("/licenses?status=unknown", token).is(422, "validation_failed")
	s.get("/licenses?q=", token).is(422, "validation_failed")
}

func TestLicense_customerIsShownToTheSellerAndSearchedAndNeverSentToDevices(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := s.auth(s.account, scopeAdmin)
	made := s.post("/licenses", fmt.Sprintf(`{"account_id":%q,"product":"kds","customer":"Trattoria Roma, 4711"}`,
		s.account), admin).is(200)
	id, key := made.text("id"), made.text("key")
	other, _ := s.addLicense(license{Customer: ptr("Bistro")})
	made.tells("customer", "Trattoria Roma, 4711")
	s.get("/licenses/"+id, admin).is(200).tells("customer", "Trattoria Roma, 4711")
	for _, a := range []answer{s.activate(key, "f").is(200), s.verifyKey(key, "f").answers("valid"),
		s.verifyKey(key, "f", "nonce", "n").answers("valid")} {
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(a.text("token")+"..", ".")[1])
		s.check(err)
		if text := a.body + string(payload); strings.Contains(text, "customer") || strings.Contains(text, "Trattoria") {
			t.Errorf("a device sees %s", text)
		}
	}
	for query, want := range map[string]string{"q=RATTORIA": id, "customer=Bistro": other, "customer=bistro": "",
		"customer=Bistr": "", "q=4711": id} {
		s.get("/licenses?"+query, admin).listsIDs(strings.Fields(want)...)
	}
	s.get("/licenses?customer=", admin).is(422, "validation_failed")
	s.do("PATCH", "/licenses/"+id, `{"customer":"Osteria"}`, admin).is(200)
	// another term loses nothing
	s.do("PATCH", "/licenses/"+id, `{"grace_days":9}`, admin).is(200).tells("customer", "Osteria")
	s.counts(0, `SELECT count(*) FROM events WHERE data LIKE '%Osteria%' OR data LIKE '%Trattoria%'`)
	s.counts(1, `SELECT count(*) FROM events WHERE type = 'license.updated'
		AND data = '{"changed":"customer","from":{},"to":{}}'`)
	if out := s.must("license", "list", "-wide", "-customer", "Osteria"); !strings.Contains(out, "Osteria") ||
		strings.Contains(out, other) {
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
	if _, err := s.command("license", "add", "-account", s.account, "-product", "kds", "-customer",
		strings.Repeat("ü", 201)); err == nil {
		t.Error("201 characters are taken")
	}
	s.must(s.importArgs(s.importFile("key,customer", "THE-KEY-OF-ANOTHER-TIME,Café Zwei"))...)
	s.counts(1, `SELECT count(*) FROM licenses WHERE customer = 'Café Zwei'`)
}

func TestLicense_isFoundByItsWholeKeyByTheAccountThatOwnsIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("tenant")
	id, key := s.addLicense(license{AccountID: tenant})
	theirKey := "ANOTHER-VENDORS-KEY-1"
	s.must(s.importArgs(s.importFile("key", theirKey))...)
	same, _ := s.addLicense(license{AccountID: tenant, Customer: &theirKey}) // a text that is another account's key
	for range 3 {
		s.addLicense(license{AccountID: tenant})
	}
	s.must("license", "import", s.importFile("key", "A1B2C-D3E4F-G5H6J-K7L8M-N9P1Q"), "-account", tenant, "-product",
		"kds")
	token := s.auth(tenant, scopeLicenses)
	for typed, want := range map[string]string{key: id, strings.ToLower(strings.ReplaceAll(key, "-", " ")): id,
		theirKey: same} {
		s.get("/licenses?q="+url.QueryEscape(typed), token).listsIDs(want)
	}
	imported, _ := pageOf(s.get("/licenses?q=a1b2cd3e4fg5h6jk718mn9p1q", token))
	sameText(t, "licences with an imported key", len(imported), 1)
	if out := s.must("license", "list", "-wide", "-search", theirKey); !strings.Contains(out, "  main\n") ||
		strings.Contains(out, same) {
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
	token := s.auth(s.account, scopeLicenses)
	for end, want := range map[string][]string{"2030-01-01T00:00:00Z": nil, "2030-01-01T00:00:01Z": {soon},
		"2030-01-01T01:00:01%2B01:00": {soon}, "2031-01-01T00:00:00Z": {soon}} {
		s.get("/licenses?expires_before="+end, token).listsIDs(want...)
	}
	s.get("/licenses?expires_before=2030-01-01", token).is(422, "validation_failed")
}

func TestLicense_showsEverythingButItsKey(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		auth := s.auth(s.account, scopeLicenses)
		plan := "pro"
		end := newStamp(time.Now().Add(24 * time.Hour))
		id, key := s.addLicense(license{Plan: &plan, MaxDevices: ptr(4), ExpiresAt: end, GraceDays: 3,
			Entitlements: codeList{"kds"}, Metadata: json.RawMessage(`{"order":17}`)})
		created := newStamp(time.Now())
		s.activate(key, "f").is(200)
		want := fmt.Sprintf(`{"id":%q,"account_id":%q,"product":"kds","plan":"pro","plan_id":null,`+
			`"reference":null,"kind":"node_locked",`+
			`"customer":null,"state":"active","reason":null,"trial":false,"max_devices":4,`+
			`"max_transfers":null,"starts_at":null,"expires_at":%q,"grace_days":3,"duration_days":null,`+
			`"expiry_basis":"issue","lease_hours":336,"offline_days":0,"entitlements":["kds"],`+
			`"metadata":{"order":17},"first_activated_at":%q,"created_at":%q,"updated_at":%q,"key_hint":%q,`+
			`"status":"active","grace_until":%q,"seats":{"used":1,"max":4,"free":3},"transfers":null}`, id, s.account,
			end, created, created, created, key[len(key)-5:], end.after(72*time.Hour))
		sameText(t, "shown", s.get("/licenses/"+id, auth).is(200).body, want+"\n")
		sameText(t, "listed", s.get("/licenses", auth).is(200).body, `{"data":[`+want+`],"next_cursor":null}`+"\n")
		time.Sleep(48 * time.Hour)
		auth = s.auth(s.account, scopeLicenses)
		s.get("/licenses/"+id, auth).is(200).tells("status", "grace", "state", "active")
	})
}

func TestLicense_ofAnotherAccountIsNotThere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second := s.addAccount("second")
	mine, _ := s.addLicense(license{AccountID: second})
	theirs, key := s.addLicense(license{MaxDevices: ptr(1)})
	dev := s.activate(key, "f").is(200).text("device", "id")
	auth := s.auth(second, scopeLicenses+" "+scopeDevices)
	s.get("/licenses", auth).listsIDs(mine)
	nowhere := newID("lic", time.Now())
	for _, id := range []string{theirs, nowhere, "lic_1", "'"} {
		for _, call := range []answer{s.get("/licenses/"+id, auth), s.get("/licenses/"+id+"/devices", auth),
			s.do("DELETE", "/licenses/"+id+"/devices/"+dev, "", auth)} {
			call.is(404, "license_not_found")
		}
	}
	s.do("DELETE", "/licenses/"+mine+"/devices/"+dev, "", auth).is(404, "not_found") // a device of another licence
	sameText(t, "a stranger released the device", s.deviceRow(dev).State, "active")
	// What tells the two apart is only the request's id.
	one, two := s.get("/licenses/"+theirs, auth).json(), s.get("/licenses/"+nowhere, auth).json()
	delete(one, "request_id")
	delete(two, "request_id")
	sameText(t, "the answer about nothing", two, one)
}

func TestLicense_endGivenAsADateIsTheEndOfThatDay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // its clock begins at 2000-01-01T00:00:00Z
		o := newOperator(t)
		for given, want := range map[string]string{
			"2027-01-31": "2027-01-31T23:59:59Z", "31.01.2027": "2027-01-31T23:59:59Z",
			"29.2.2028":                 "2028-02-29T23:59:59Z",
			"2027-01-31T12:00:00+02:00": "2027-01-31T10:00:00Z", "9000-12-31": "9000-12-31T23:59:59Z",
			"2000-01-01": "2000-01-01T23:59:59Z",
			"10d":        "2000-01-11T00:00:00Z", "52w": "2000-12-30T00:00:00Z", "1y": "2001-01-01T00:00:00Z",
			"100y": "2100-01-01T00:00:00Z",
		} {
			text := o.do("license", "add", "-account", o.account, "-product", "kds", "-expires", given)
			includes(t, text, "\nends: "+want+"\n")
			sameText(t, given, o.object("license", "show", text[6:36])["expires_at"], want)
		}
		text := o.do("license", "add", "-account", o.account, "-product", "kds", "-duration-days", "30",
			"-from-activation")
		includes(t, text, "\nends: 30 days after its first activation\n")
		text = o.do("license", "add", "-account", o.account, "-product", "kds", "-starts", "2000-02-03", "-expires",
			"2000-02-03", "-duration-days", "1")
		sameText(t, "a day's licence begins at", o.object("license", "show", text[6:36])["starts_at"],
			"2000-02-03T00:00:00Z")
		includes(t, o.do("license", "renew", text[6:36]), " ends at 2000-02-04T23:59:59Z\n")
		time.Sleep(time.Second)
		o.do("license", "add", "-account", o.account, "-product", "kds", "-expires", "1999-12-31", "-force")
	})
}

func licenseStory(t *testing.T, o *operator) {
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-plan", "pro", "-max-devices", "3",
		"-expires", "365d",
		"-grace-days", "14", "-lease-hours", "48", "-entitlements", "a,b", "-trial", "-metadata", `{"order":17}`)
	id, key := added["id"].(string), added["key"].(string)
	if _, err := parseLicenseKey(key); err != nil || !validID("lic", id) || len(added) != 2 {
		t.Errorf("added %v: %v", added, err)
	}
	text := o.do("license", "add", "-account", o.account, "-product", "board", "-starts", "2099-01-01")
	shape := `^id:   lic_\w{26}\nkey:  ([0-9A-Z]{5}-){4}[0-9A-Z]{5}  \(shown once\)\nends: never\n$`
	if !regexp.MustCompile(shape).MatchString(text) {
		t.Errorf("for people: %q", text)
	}
	board := regexp.MustCompile(`lic_\w{26}`).FindString(text)
	device := o.addDevice(id, o.objects("key", "list")[0]["kid"].(string))
	shown := o.object("license", "show", id)
	if devices := shown["devices"].([]any); len(devices) != 1 || devices[0].(map[string]any)["id"] != device {
		t.Errorf("its devices: %v", devices)
	}
	sameText(t, "shown", shown["status"], "active", shown["max_devices"], 3.0, shown["trial"], true,
		shown["lease_hours"], 48.0, shown["grace_days"], 14.0,
		fmt.Sprint(shown["entitlements"], shown["seats"], shown["metadata"]),
		"[a b] map[free:2 max:3 used:1] map[order:17]")
	all := o.do("license", "list") + o.do("license", "list", "-json") + o.do("license", "show", id) +
		o.do("event", "list", "-json")
	if strings.Contains(all, key) || !strings.Contains(all, "…"+key[len(key)-5:]) {
		t.Errorf("the key is shown again, or its hint isn't:\n%s", all)
	}
	sameText(t, "the newest", column(o.objects("license", "list", "-limit", "1"), "status"), []any{"not_started"},
		o.noted, "these are the first 1; print more with -limit N\n")
	for _, filter := range [][]string{{"-status", "active"}, {"-product", "kds"}, {"-search", "PRO"},
		{"-search", key[len(key)-5:]}, {"-status", "active", "-account", o.account}} {
		if got := column(o.objects(append([]string{"license", "list"}, filter...)...), "id"); !slices.Contains(got,
			any(id)) || slices.Contains(got, any(board)) || o.noted != "" {
			t.Errorf("%q: %v, %q", filter, got, o.noted)
		}
	}
	sameText(t, "in grace", o.objects("license", "list", "-status", "grace"), []any{})
	patched := o.object("license", "set", id, `{"plan":null,"duration_days":10}`)
	sameText(t, "patched", patched["plan"], nil, patched["duration_days"], 10)
	o.fails("did you mean max_devices?", "license", "patch", id, `{"max_device":5}`)
	before := shown["expires_at"].(string)
	if got := o.object("license", "renew", id); got["expires_at"] == before ||
		got["expires_at"] != o.object("license", "show", id)["expires_at"] {
		t.Errorf("renewed: %v", got)
	}
	if got := o.object("license", "rotate-key", id, "-old-key-until", "7d"); got["id"] != id || got["key"] == key {
		t.Errorf("rotated: %v", got)
	}
	file := filepath.Join(o.dir, "import.csv")
	must(t, os.WriteFile(file, []byte("key\nTHE-KEY-OF-ANOTHER-TIME\n"), 0o600))
	sameText(t, "imported",
		o.object("license", "import", file, "-account", o.account, "-product", "kds")["imported"], 1.0)
	includes(t, o.do("license", "export"), id)
	includes(t, o.do("device", "export"), `"license_id":"`+id)
	o.fails("-public FILE is needed", "lease", "inspect", "x")
	for _, step := range [][2]string{{"suspend", "suspended"}, {"reinstate", "active"}, {"revoke", "revoked"}} {
		sameText(t, step[0], o.object("license", step[0], id, "-reason", "a test")["status"], step[1])
	}
	o.fails("illegal_transition: The licence is revoked; suspend does not apply to it.", "license", "suspend", id)

	o.do("device", "block", device)
	sameText(t, "devices", column(o.objects("device", "list", id), "state"), []any{deviceBlocked})
	o.do("device", "release", device)
	o.do("device", "release", device)
	if table := o.do("device", "list", id, "-wide"); !strings.Contains(table, device) ||
		!strings.Contains(table, " released ") || !strings.HasSuffix(table, " operator\n") {
		t.Errorf("devices:\n%s", table)
	}
	types := fmt.Sprint(column(o.objects("event", "list", "-limit", "5"), "type"))
	sameText(t, "events", types,
		"[device.released device.blocked license.revoked license.reinstated license.suspended]")
	includes(t, o.do("license", "limit-transfers", "-dry-run"), "0 licences would get")
	moved := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", "1",
		"-max-transfers", "none")["id"].(string)
	includes(t, o.do("license", "limit-transfers"), "1 licence got")
	sameText(t, "reset", o.do("license", "reset-transfers", moved), moved+" has only the holders of its seats count\n")
}

// manyLicenses inserts licences of an account, the first of them, which are the oldest, with
// rare terms, and each hundredth with others.
func manyLicenses(account string, n int) string {
	return manyRows(n) + `INSERT INTO licenses (id, account_id, product, state, plan, created_at, updated_at)
		SELECT printf('lic_%020d%s', i, '` + account[len(account)-6:] + `'), '` + account + `',
		iif(i = 1, 'rare', 'common'), iif(i = 1, 'suspended', 'active'), iif(i % 100 = 0, 'hundredth', NULL),
		'2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z' FROM n`
}

func TestLicense_listThatFiltersReadsABoundedNumberOfRowsAndComesToEveryOne(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t)
	s.store.questions.timeout = time.Hour // on a machine that is busy, too
	s.sql(manyLicenses(s.account, 25_000))
	for _, scope := range []string{scopeAdmin, scopeLicenses} {
		auth := s.auth(s.account, scope)
		for filter, c := range map[string]struct{ rows, empty int }{
			"product=rare": {1, 2}, "status=suspended": {1, 2}, "q=RAR": {1, 2}, "q=nothing": {0, 3},
			"product=rare&status=active": {0, 3}, "q=hundredth&limit=200": {250, 0},
		} {
			ids, empty := s.everyPage("/licenses?"+filter, auth)
			sameText(t, scope+": "+filter, len(ids), c.rows, empty, c.empty)
		}
	}
	// Where most rows match, the pages are full long before they are bounded.
	tenant, n := s.addAccount("tenant"), size(601, 25_000)
	s.sql(manyLicenses(tenant, n))
	auth := s.auth(tenant, scopeLicenses)
	for filter, want := range map[string]int{"product=common": n - 1, "status=active": n - 1, "": n} {
		ids, empty := s.everyPage("/licenses?limit=200&"+filter, auth)
		seen := map[any]bool{}
		for _, id := range ids {
			seen[id] = true
		}
		if len(ids) != want || len(seen) != want || empty > 1 {
			t.Errorf("%q: %d licences, %d different ones and %d empty pages, want %d", filter, len(ids), len(seen),
				empty, want)
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
	sameText(t, "licences", len(o.objects("license", "list", "-search", "hundredth", "-limit", "150")), 150)
	many := size(300, 11_000)
	sameText(t, "licences", len(o.objects("license", "list", "-search", "common", "-limit", fmt.Sprint(many))), many)
}
