package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
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
		if seen[key] || !matches(`^(\w{5}-){4}\w{5}$`, key) {
			t.Fatalf("key %q, or it came before", key)
		}
		seen[key] = true
		symbols := symbolsOf(t, key)
		first[symbols[0]], last[symbols[24]] = true, true
		parsed, err := parseLicenseKey(key)
		must(t, err)
		sameText(t, "key", string(parsed), strings.ReplaceAll(key, "-", ""), parsed.hint(), key[24:])
	}
	// Every symbol turns up, at the front and as the check: with 1,000 keys one of 32
	// is missing with a probability below 10^-12.
	if slices.Contains(first[:], false) || slices.Contains(last[:], false) {
		t.Fatalf("first %v, last %v", first, last)
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
		"spaces and dashes":   grouped(" - "),
		"no-break spaces":     grouped("\u00a0"),
		"en dashes":           grouped("–"),
		"non-breaking dashes": grouped("\u2011"),
		"spaces around":       "  " + plain + " ",
		"unseen ones around":  "\u00a0\ufeff" + grouped("-") + "\u200b\r\n",
		"dashes anywhere":     "-" + plain[:1] + "--" + plain[1:] + "-",
		"every other lower":   strings.ToLower(plain[:12]) + plain[12:],
		"o for 0":             spelled(3, "o"),
		"i for 1":             spelled(4, "i"),
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

func TestLicenseKey_ofAnotherVendorIsReadWithoutWhatNobodySeesAroundIt(t *testing.T) {
	t.Parallel()
	key, err := parseLicenseKey("\u00a0\t\u200bAbCd-1234_*efgh9\u200d\u2060\ufeff \n")
	equal(t, "a key", key, licenseKey("AbCd-1234_*efgh9"))
	must(t, err)
	for _, bad := range []string{"AbCd-1234\u200b_*efgh9", "AbCd 1234_*efgh9", " AbCd-1234_*efgh \u200b"} {
		if key, err := parseLicenseKey(bad); err == nil {
			t.Errorf("%q reads as %q", bad, key)
		}
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

func TestLicenseKey_seedsAreTakenOrNotAsTheirNamesSay(t *testing.T) {
	t.Parallel()
	holdSeeds(t, "FuzzLicenseKey", func(text string) error { return second(parseLicenseKey(text)) })
}

func FuzzLicenseKey(f *testing.F) {
	f.Add(newLicenseKey())
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
			!hasOwnShape(string(key)) && (string(key) != trimUnseen(s) || key.mistyped()) {
			t.Fatalf("%q reads as %q", s, key)
		}
	})
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
		s.change(func(t *tx) error {
			for i := range 400 {
				l := license{AccountID: []string{s.account, closed}[r.IntN(8)/7],
					State:    []licenseState{"active", "active", "active", "active", "suspended", "revoked"}[r.IntN(6)],
					StartsAt: moment(), ExpiresAt: moment(), terms: terms{Product: "kds", GraceDays: r.IntN(3)}}
				if _, err := t.addLicense(&l, licenseKey(fmt.Sprintf("SOME-KEY-%012d", i)), anActor); err != nil {
					return err
				}
			}
			return closeAccount(t, nouns(), closed, anActor)
		})
		all, err := s.store.licenses(licenseFilter{owner: anyAccount, now: now}, "", 1000)
		s.check(err)
		for _, status := range licenseStatuses {
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

// The view for people has the status that callers filter by, at the present time.
func TestLicense_statusOfTheViewIsTheOneOfFilters(t *testing.T) {
	t.Parallel()
	now := `strftime('%Y-%m-%dT%H:%M:%SZ', 'now')`
	contains(t, schemaSQL(), strings.ReplaceAll(statusOfLicense, "?", now)+" AS status,")
}

// A verdictQuestion is what licenseVerdict is asked.
type verdictQuestion struct {
	l   license
	d   *device
	now time.Time

	product              string
	entitlements         []string
	hasDevice            bool // the request names a device
	mismatch, tokenEnded bool
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
	{{"product_mismatch", func(c *verdictQuestion) { c.product = "other" }}},
	{{"not_started", func(c *verdictQuestion) { c.l.StartsAt = c.at(time.Minute) }}},
	{
		{"expired", func(c *verdictQuestion) { c.l.ExpiresAt = c.at(-48 * time.Hour) }},
		{"grace", func(c *verdictQuestion) { c.l.ExpiresAt, c.l.GraceDays = c.at(-time.Hour), 1 }},
	},
	{
		{"fingerprint_required", func(c *verdictQuestion) { c.d, c.hasDevice, c.mismatch = nil, false, false }},
		{"fingerprint_mismatch", func(c *verdictQuestion) { c.mismatch = true }},
	},
	{
		{"device_blocked", func(c *verdictQuestion) { c.d = &device{State: deviceBlocked} }},
		{"device_released", func(c *verdictQuestion) { c.d = &device{State: deviceReleased} }},
		{"device_not_activated", func(c *verdictQuestion) { c.d = nil }},
	},
	{{"token_ended", func(c *verdictQuestion) { c.tokenEnded = true }}},
	{{"entitlement_missing", func(c *verdictQuestion) { c.entitlements = []string{"kds", "gold"} }}},
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
			l: license{State: "active",
				terms: terms{Product: "kds", MaxDevices: ptr(3), Entitlements: []string{"kds"}}},
			d:       &device{State: deviceActive},
			product: "kds", hasDevice: true, entitlements: []string{"kds"},
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
		sameText(t, codes, c.verdict(&c.l), fmt.Sprint(want, " ", want == "valid" || want == "grace"))
		sameText(t, "without a licence", c.verdict(nil), "not_found false")
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

// verdict is the code of licenseVerdict for a licence, and whether it means that the licence is valid.
func (c *verdictQuestion) verdict(l *license) string {
	r := &deviceRequest{product: c.product, entitlements: c.entitlements}
	if c.hasDevice {
		r.fingerprint = []byte("a")
	}
	code, valid := licenseVerdict(r, &checkResult{license: l, device: c.d, mismatch: c.mismatch,
		tokenEnded: c.tokenEnded}, c.now)
	return fmt.Sprint(code, " ", valid)
}

// withFewListRows has one request for a list go through 50 rows of a table.
var withFewListRows = withLimits(func(most *limits) { most.listRows = size(50, most.listRows) })

// manyLicenses inserts licences of an account, the first of them, which are the oldest, with
// rare terms, and each of so many with others.
func manyLicenses(account string, n, each int) string {
	return manyRows(n) + `INSERT INTO licenses (id, account_id, product, state, plan, created_at, updated_at)
		SELECT printf('lic_%020d%s', i, '` + account[len(account)-6:] + `'), '` + account + `',
		iif(i = 1, 'rare', 'common'), iif(i = 1, 'suspended', 'active'), iif(i % ` +
		fmt.Sprint(each) + ` = 0, 'tenth', NULL), '2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z' FROM n`
}

func TestLicense_listThatFiltersReadsABoundedNumberOfRowsAndComesToEveryOne(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t, withFewListRows)
	s.server.listSlots.timeout = time.Hour // on a machine that is busy, too
	n := s.store.limits.listRows * 5 / 2
	s.sql(manyLicenses(s.account, n, n/25))
	for _, scope := range []string{scopeAdmin, scopeLicenses} {
		auth := s.auth(s.account, scope)
		for filter, c := range map[string]struct{ rows, empty int }{
			"product=rare": {1, 2}, "status=suspended": {1, 2}, "q=RAR": {1, 2}, "q=nothing": {0, 3},
			"product=rare&status=active": {0, 3}, "q=tenth&limit=7": {25, 0},
		} {
			ids, empty := s.everyPage("/licenses?"+filter, auth)
			sameText(t, scope+": "+filter, len(ids), c.rows, empty, c.empty)
		}
	}
	// A command goes on until it has the rows that it was asked for.
	for limit, search := range map[int]string{1: "rare", 15: "tenth", s.store.limits.listRows * 11 / 10: "common"} {
		got := jsonLines(t, s.must("license", "list", "-search", search, "-limit", fmt.Sprint(limit), "-json"))
		sameText(t, search, len(got), limit)
	}
	// Where most rows match, the pages are full long before they are bounded.
	tenant := s.addAccount("tenant")
	s.sql(manyLicenses(tenant, n, n/25))
	auth := s.auth(tenant, scopeLicenses)
	for filter, want := range map[string]int{"product=common": n - 1, "status=active": n - 1, "": n} {
		ids, empty := s.everyPage(fmt.Sprintf("/licenses?limit=%d&%s", min(200, n/25), filter), auth)
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

// planOf makes a plan with the members of a body, and returns its id.
func (s *service) planOf(auth, members string) string {
	s.t.Helper()
	return s.post("/plans", `{"name":"pro","product":"kds"`+members+`}`, auth).is(200).text("id")
}

// soldBy makes a licence, and returns its id.
func (s *service) soldBy(auth, members string) string {
	s.t.Helper()
	return s.post("/licenses", `{`+members+`}`, auth).is(200).text("id")
}

func TestIssuing_bodyNamesNoOtherAccountThanTheOneThatIsActedOn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second := s.addAccount("second")
	own, all := s.auth(s.account, scopeIssuing), s.portalToken(s.account, scopeIssuing)
	other := `{"account_id":"` + second + `","product":"kds"}`
	before := s.dump()
	for _, auth := range []string{own, all} {
		s.post("/licenses", other, auth).is(403, "insufficient_scope")
	}
	s.post("/licenses?account_id="+s.account, other, all).is(403, "insufficient_scope")
	s.unchanged(before)
	s.post("/licenses?account_id="+second, `{"product":"kds"}`, all).is(200).tells("account_id", second)
	s.post("/licenses?account_id="+second, other, all).is(200).tells("account_id", second)
	s.post("/licenses", `{"account_id":"`+s.account+`","product":"kds"}`, own).is(200)
	s.post("/licenses", other, s.auth(s.account, scopeAdmin)).is(200).tells("account_id", second)
	s.post("/licenses", `{"product":"kds"}`, s.auth(s.account, scopeAdmin)).is(200).tells("account_id", s.account)
}

func TestIssuing_applicationCannotAskForItNorHaveItByARowOfTheDatabase(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := s.auth(s.account, scopeAdmin)
	body := `{"name":"x","home_page":"https://x.example","kind":"web","redirect_uris":["https://x.example/"],` +
		`"scope":"%s"}`
	s.post("/apps", fmt.Sprintf(body, scopeIssuing), admin).is(422, "validation_failed")
	p, _ := s.registerApp(func(p *app) { p.Scope += " " + scopeIssuing })
	auth := s.ofApp(p, scopeLicenses+" "+scopeIssuing)
	s.post("/licenses", `{"product":"kds"}`, auth).is(403, "insufficient_scope")
}

func TestPlan_thatChangesBetweenPagesStopsAndLeavesWhatWasDone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) { // so that it takes no time
		shop := s.auth(s.account, scopeIssuing)
		plan := s.planOf(shop, `,"grace_days":5`)
		most := s.store.limits.planLicenses
		s.sql(manyRows(most+10)+`
			INSERT INTO licenses (id, account_id, product, plan_id, created_at, updated_at)
			SELECT printf('lic_%026d', i), ?1, 'kds', ?2, ?3, ?3 FROM n`, s.account, plan, newStamp(time.Now()))
		a := s.post("/plans/"+plan+"/apply", `{"revision":1}`, shop).is(200).tells("changed", most)
		rest := fmt.Sprintf(`{"revision":1,"next":"%s"}`, a.text("next"))
		s.do("PATCH", "/plans/"+plan, `{"grace_days":6}`, shop).is(200)
		s.post("/plans/"+plan+"/apply", rest, shop).is(409, "plan_changed")
		s.counts(most, `SELECT count(*) FROM licenses WHERE grace_days = 5`)
		s.counts(most, `SELECT count(*) FROM events WHERE type = 'license.updated'`)
		out := s.must("plan", "apply", plan)
		contains(t, out, fmt.Sprintf("changed: %d licences: grace_days of %d", most+10, most+10))
		s.counts(most+10, `SELECT count(*) FROM v_licenses
			WHERE grace_days = 6 AND differs NOT LIKE '%grace_days%'`)
	}, withLimits(func(most *limits) { most.planLicenses = size(2*appliedAtOnce, most.planLicenses) }))
}

func TestPlan_importKnowsPlans(t *testing.T) {
	t.Parallel()
	s := newService(t)
	plan := strings.TrimSpace(s.must("plan", "add", `{"name":"pro","product":"kds","max_devices":2,"trial":true}`))
	s.must("license", "add", "-plan-id", plan, "-reference", "R-1")
	take := func(rows string) []string {
		return []string{"license", "import", "-account", s.account, s.importFile("key,plan_id,reference,product", rows)}
	}
	s.must(take("AAAA-BBBB-CCCC-1," + plan + ",R-2,\nAAAA-BBBB-CCCC-2,,R-3,kds")...)
	s.counts(2, `SELECT count(*) FROM licenses WHERE plan_id = ? AND max_devices = 2 AND trial = 1 AND plan = 'pro'`,
		plan)
	for want, rows := range map[string]string{
		"with this reference already":       "AAAA-BBBB-CCCC-3,,R-2,kds",
		"a reference must appear only once": "AAAA-BBBB-CCCC-4,,R-9,kds\nAAAA-BBBB-CCCC-5,,R-9,kds",
		"There is no plan with this id":     "AAAA-BBBB-CCCC-6,pln_00000000000000000000000000,,",
		"The plan has another one":          "AAAA-BBBB-CCCC-7," + plan + ",,other",
	} {
		s.fails(want, take(rows)...)
	}
}

func TestPlan_applicationLeavesOutALicenceThatCantBeReadAndCheckNamesIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	shop := s.auth(s.account, scopeIssuing)
	plan := s.planOf(shop, `,"max_devices":2`)
	bad, good := s.soldBy(shop, `"plan_id":"`+plan+`"`), s.soldBy(shop, `"plan_id":"`+plan+`"`)
	s.sql(`UPDATE licenses SET entitlements = '[1]' WHERE id = ?`, bad) // as in the sqlite3 shell: it is an array
	s.do("PATCH", "/plans/"+plan, `{"max_devices":9}`, shop).is(200)
	s.post("/plans/"+plan+"/apply?dry_run=true", `{}`, shop).is(200).tells("changed", 1, "unreadable", []string{bad})
	contains(t, s.must("plan", "apply", plan, "-dry-run"), "left out: "+bad+" can't be read")
	s.post("/plans/"+plan+"/apply", `{"revision":2}`, shop).is(200).tells("changed", 1, "unreadable", []string{bad},
		"refused", []any{}, "next", nil)
	s.counts(1, `SELECT count(*) FROM licenses WHERE id = ? AND max_devices = 9`, good)
	out, err := s.command("check")
	oneLine(t, err, "faults in "+s.store.path+": 1")
	contains(t, out, "row: licenses "+bad+" can't be read: ", `"entitlements": json: cannot unmarshal number`)
	s.sql(`UPDATE licenses SET entitlements = '[]' WHERE id = ?`, bad)
	contains(t, s.must("check"), "ok: ")
}

func TestPlan_ofAnAccountInUseAreAtMostFiveHundred(t *testing.T) {
	t.Parallel()
	s := newService(t, withLimits(func(most *limits) { most.plans = size(10, most.plans) }))
	shop := s.auth(s.account, scopeIssuing)
	body := `{"name":"pro","product":"kds"}`
	first := s.planOf(shop, "")
	for range s.store.limits.plans - 1 {
		s.post("/plans", body, shop).is(200)
	}
	s.post("/plans", body, shop).is(409, "plan_limit_reached")
	_, err := s.command("plan", "add", body)
	oneLine(t, err, "account has 500 plans in use already: retire one first")
	s.post("/plans?account_id="+s.addAccount("other"), body, s.auth(s.account, scopeAdmin)).is(200)
	s.post("/plans/"+first+"/retire", `{}`, shop).is(200)
	s.post("/plans", body, shop).is(200)
	s.post("/plans", body, shop).is(409, "plan_limit_reached")
}
