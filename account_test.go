package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func accountStory(t *testing.T, o *operator) {
	id := o.object("account", "add", "Trattoria Roma")["id"].(string)
	if plain := strings.TrimSpace(o.do("account", "add", "Other")); !validID("acct", id) || !validID("acct", plain) {
		t.Errorf("ids %q, %q", id, plain)
	}
	o.do("account", "set-rate", id, "1200")
	o.fails("stops nothing, until 'widgetd account reopen': add -force", "account", "close", id)
	o.do("account", "close", id, "-force")
	o.do("account", "reopen", id)
	o.do("account", "close", id, "-force")
	o.do("account", "show", "Trattoria Roma")
	o.do("event", "show", o.objects("event", "list", "-limit", "1")[0]["id"].(string))
	rows := o.objects("account", "list")
	if got := column(rows, "name"); !slices.Equal(got, []any{"main", "Trattoria Roma", "Other"}) {
		t.Errorf("names %v", got)
	}
	failIf(t, rows[1]["rate"] != 1200.0 || rows[1]["closed_at"] == nil || rows[0]["rate"] != 600.0 ||
		rows[0]["closed_at"] != nil || rows[0]["main"] != true, "rows %v", rows)
	if table := o.do("account", "list", "-wide"); !regexp.MustCompile(`(?m)^` + id +
		`  Trattoria Roma +- +1200 +\d{4}-`).MatchString(table) {
		t.Errorf("table:\n%s", table)
	}
	o.fails("the main account can't be closed", "account", "close", o.account)
	o.fails("is closed", "token", "issue", "-account", id, "-scope", "stats:read")

	o.do("origin", "add", "-account", o.account, "HTTPS://Shop.Example.com:443")
	o.do("origin", "add", "https://shop.example.com", "-account", o.account) // again is fine
	if got := column(o.objects("origin", "list"), "origin"); !slices.Equal(got,
		[]any{"https://partner.example", "https://shop.example.com", siteOrigin}) {
		t.Errorf("origins %v", got)
	}
	other := strings.TrimSpace(o.do("account", "add", "Other"))
	o.fails("already belongs to "+o.account, "origin", "add", siteOrigin, "-account", other)
	o.do("origin", "remove", "https://shop.example.com")
	o.fails("the matching list command prints what there is", "origin", "remove", "https://shop.example.com")

	o.do("base-url", "set", "https://API.example.com/api/v1")
	if got := column(o.objects("base-url", "show"), "url"); !slices.Equal(got,
		[]any{"https://api.example.com/api/v1", testBase}) {
		t.Errorf("base addresses %v", got)
	}
	o.fails("the current one can only be replaced", "base-url", "remove", "https://api.example.com/api/v1")
	o.do("base-url", "remove", testBase)
	if got := column(o.objects("base-url", "show"), "current"); !slices.Equal(got, []any{true}) {
		t.Errorf("base addresses %v", got)
	}
}

func tokenStory(t *testing.T, o *operator) {
	signinStory(t, o)
	out := o.do("token", "issue", "-account", o.account, "-scope", "stats:read leads:read", "-client-id", "portal")
	token, alone := strings.CutSuffix(out, "\n")
	if !alone || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \n") {
		t.Fatalf("printed %q, want the token alone", out)
	}
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	c, err := ring.verify(token)
	failIf(t, err != nil || c.Subject != o.account || c.Scope != "stats:read leads:read" || c.ClientID != "portal" ||
		c.Expires-c.IssuedAt != 720*3600, "claims %+v, %v", c, err)
	issued := o.object("token", "issue", "-account", o.account, "-scope", "admin", "-ttl", "90d", "-all-accounts")
	failIf(t, !validID("tok", issued["id"].(string)) || issued["token"] == nil || issued["expires_at"] == nil,
		"issued %v", issued)
	o.do("token", "revoke", issued["id"].(string))
	rows := o.objects("token", "list")
	failIf(t, len(rows) != 2 || rows[0]["id"] != issued["id"] || rows[0]["revoked_at"] == nil ||
		rows[0]["all_accounts"] != true || rows[1]["revoked_at"] != nil, "rows %v", rows)
	if all := o.do("token", "list") + o.do("token", "list", "-json"); strings.Contains(all,
		strings.Split(token, ".")[2]) {
		t.Error("a token is shown again")
	}
}

func TestAccount_closedHasItsTokensRefusedAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second := s.addAccount("second")
	auth := s.auth(second, scopeLeads)
	s.get("/leads", auth).is(200)
	s.change(func(t *tx) error { return t.closeAccount(second) })
	s.get("/leads", auth).challenged(401, "invalid_token", invalidChallenge)
	err := s.store.update(t.Context(), func(t *tx) error {
		_, _, err := issueToken(t, s.keys, tokenRow{AccountID: second, ClientID: "x", Scope: scopeLeads}, time.Hour)
		return err
	})
	if err == nil {
		t.Fatal("a closed account got a token")
	}
}

func TestBaseURL_ofEarlierTokensHoldsUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	const next = "https://api.example.com/v1"
	s := newService(t)
	earlier := s.auth(s.account, scopeLeads)
	s.change(func(t *tx) error { return t.setBaseURL(next) })
	s.check(s.server.refresh())
	current := s.auth(s.account, scopeLeads)
	c, err := s.keys.verify(strings.TrimPrefix(current, "Authorization: Bearer "))
	s.check(err)
	if c.Issuer != next || c.Audience != next {
		t.Fatalf("a new token names %q and %q", c.Issuer, c.Audience)
	}
	s.get("/leads", earlier).is(200)
	s.get("/leads", current).is(200)

	mixed := c
	mixed.Audience = testBase // accepted, but not the issuer's
	token, err := s.keys.sign(mixed)
	s.check(err)
	if a := s.get("/leads", bearer(token)); a.status != 401 {
		t.Fatalf("iss and aud differ: %d", a.status)
	}

	if _, err := s.command("base-url", "remove", testBase); err != nil {
		t.Fatal(err)
	}
	challenge := strings.ReplaceAll(invalidChallenge, "http://127.0.0.1:8080", "https://api.example.com")
	if a := s.get("/leads", earlier); a.status != 401 || a.header.Get("WWW-Authenticate") != challenge {
		t.Fatalf("a token of a removed base address: %d %s", a.status, a.body)
	}
	s.get("/leads", current).is(200)
	_, err = s.command("base-url", "remove", next)
	oneLine(t, err, "the current one can only be replaced")
}

// A base address that is taken is its own normal form, and net/url sees its path.
func FuzzBaseURL(f *testing.F) {
	for _, seed := range []string{testBase, "HTTPS://API.Example.com:443/api/v1", "https://[::1]:8080/v1",
		"https://a/v1/", "https://a/../v1", "https://a/%2e/v1", "https://a/api/legacy/v1", "https://u@a/v1",
		"https://a/v1?x", "//a/v1", "https:///v1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		normal, path, err := parseBaseURL(s)
		if err != nil {
			return
		}
		again, same, err := parseBaseURL(normal)
		if err != nil || again != normal || same != path {
			t.Fatalf("%q is %q, and that is %q, %v", s, normal, again, err)
		}
		u, err := url.Parse(normal)
		if err != nil || u.Path != path || u.RawQuery != "" || u.Fragment != "" || u.User != nil ||
			cleanPath(path) != path || !strings.HasSuffix(path, "/v1") {
			t.Fatalf("%q is %q with the path %q, which net/url reads as %+v, %v", s, normal, path, u, err)
		}
	})
}

// What no list of a route or a command shows by itself is narrowed to its owner too; an owner of nothing, which no
// request has, matches no row.
func TestOwner_ofNothingAndAnotherAccountFindNothingAndChangeNothing(t *testing.T) {
	t.Parallel()
	f := newExampleFixture(t)
	f.post("/widget/leads", anyLead).is(200)
	f.sql(`UPDATE licenses SET max_transfers = NULL`)
	stranger, device := f.addAccount("stranger"), f.real[exampleOf(t, "device_id")]
	count := func(t *tx, o owner) map[string]int {
		counted, err := t.countLeads(o, t.now.after(time.Hour))
		devices, err2 := t.allDevices(o, "", 10)
		_, err3 := t.deviceByID(o, device)
		unlimited, err4 := t.withoutTransferLimit(o, "", 10)
		apps, err5 := t.connectedApps(o, "", 10)
		backlogs, err6 := t.webhookBacklogs(o, 10)
		widgets := 0
		err7 := t.eachPeriod(o, []period{{t.now.after(-time.Hour), t.now.after(time.Hour), 0}},
			func(string, period, counts) { widgets++ })
		similar, _, err8 := t.similarAddresses(context.Background(), o, "ada+tag@example.com", 10)
		purged, _, err9 := t.purgeLeads(o, t.now.after(time.Hour), 0)
		f.check(errors.Join(err, err2, err4, err5, err6, err7, err8, err9))
		found := 0
		if err3 == nil {
			found++
		}
		return map[string]int{"countLeads": int(counted), "purgeLeads": int(purged), "allDevices": len(devices.rows),
			"deviceByID": found, "withoutTransferLimit": len(unlimited), "connectedApps": len(apps.rows),
			"webhookBacklogs": len(backlogs), "eachPeriod": widgets, "similarAddresses": len(similar)}
	}
	f.change(func(tx *tx) error {
		for _, o := range []owner{{}, ownedBy(""), ownedBy(stranger), ownedBy(f.account)} {
			for name, n := range count(tx, o) {
				failIf(t, (n > 0) != (o.account == f.account), "%s for %+v: %d rows", name, o, n)
			}
		}
		return nil
	})
}

func TestOwner_pageReadsTheAccountsIndexAndAPageOfAllTheRowsInOrder(t *testing.T) {
	t.Parallel()
	f := newService(t)
	for name, c := range map[string]struct {
		ask      func(owner) error
		one, all string // what the plan has for one account, and for all
	}{
		"leads": {func(o owner) error { _, err := f.store.leads(leadFilter{owner: o}, "", 10); return err },
			"SEARCH leads USING INDEX leads_account (account_id=? AND rowid<?)",
			"SEARCH leads USING INTEGER PRIMARY KEY (rowid<?)"},
		"licences": {func(o owner) error { _, err := f.store.licenses(licenseFilter{owner: o}, "", 10); return err },
			"SEARCH l USING INDEX licenses_account (account_id=? AND id<?)", "SEARCH l USING PRIMARY KEY (id<?)"},
		"events": {func(o owner) error { _, err := f.store.events(eventFilter{owner: o}, "", 10); return err },
			"SEARCH events USING INDEX events_account (account_id=? AND rowid<?)",
			"SEARCH events USING INTEGER PRIMARY KEY (rowid<?)"},
		"webhooks": {func(o owner) error { _, err := f.store.webhooks(o, "", 10); return err },
			"SEARCH w USING INDEX webhooks_account (account_id=? AND id<?)", "SEARCH w USING PRIMARY KEY (id<?)"},
		"widgets": {func(o owner) error { _, err := f.store.widgets(o); return err },
			"SEARCH w USING INDEX widgets_account (account_id=?)", "SCAN w"},
	} {
		for o, want := range map[owner]string{ownedBy(f.account): c.one, anyAccount: c.all} {
			asked := questions(f.store.queries)
			f.check(c.ask(o))
			plan := f.plan(asked()[0])
			failIf(t, !slices.Contains(plan, want) || strings.Contains(strings.Join(plan, "\n"), "TEMP B-TREE"),
				"%s: %q, want %q", name, plan, want)
		}
	}
}

func TestOwner_isNotComparedWithADeviceTokensAccount(t *testing.T) {
	t.Parallel()
	f := newService(t)
	_, key := f.addLicense(license{})
	token := f.activate(key, "b").is(200).text("token")
	f.sql(`UPDATE licenses SET account_id = ?`, f.addAccount("another")) // as in the sqlite3 shell
	f.verifyLease(token).answers("valid")
	auth := bearer(token)
	f.post("/widget/license/activate", `{"fingerprint":"b"}`, auth).is(200)
	if released := f.post("/widget/license/deactivate", `{"fingerprint":"b"}`,
		auth).is(200).json()["released"]; released != true {
		t.Errorf("released: %v", released)
	}
}

func TestID_emptyNamesNoRow(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{Kind: kindFloating, ExpiresAt: newStamp(time.Now()).after(days(30))})
	device := s.activate(key, "a").is(200).text("device", "id")
	s.post("/widget/events", `{"widget":"`+s.addWidget(s.account)+
		`","events":[{"type":"view","page":"/lunch"},{"type":"click","item":"soup"}]}`, "Origin: "+siteOrigin).is(204)
	s.change(func(tx *tx) error {
		from, until := tx.now.after(-days(1)), tx.now.after(days(1000))
		for name, err := range map[string]error{
			"license":      second(tx.license(anyAccount, "")),
			"device":       second(tx.device("", "")),
			"device's id":  second(tx.deviceByID(anyAccount, "")),
			"no licence's": second(tx.device("", device)),
		} {
			failIf(t, !errors.Is(err, errNotFound), "%s: %v", name, err)
		}
		devices, err := tx.devices("", "", 10)
		holders, err2 := tx.seatHolders("", 10)
		lapsed, err3 := tx.lapsedDevicesOf("", until, 10)
		items, err4 := tx.topItems("", from, until, true, 10)
		pages, err5 := tx.topPages("", from, until, 10)
		n := len(devices.rows) + len(holders) + len(lapsed) + len(items) + len(pages)
		err6 := tx.eachPeriodOfWidget("", []period{{from, until, 0}}, func(string, period, counts) { n++ })
		failIf(t, n != 0, "%d rows", n)
		return errors.Join(err, err2, err3, err4, err5, err6)
	})
}

func TestAccount_closingSaysWhatStopsAndReopeningStartsItAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("Trattoria")
	auth := s.auth(tenant, scopeLeads)
	s.addWidget(tenant)
	s.addLicense(license{AccountID: tenant})
	s.must("license", "revoke", func() string { id, _ := s.addLicense(license{AccountID: tenant}); return id }())
	s.must("token", "revoke", s.revocableToken(tenant))
	s.must("origin", "add", "https://a.example", "-account", tenant)
	s.must("origin", "add", "https://b.example", "-account", tenant)
	s.addWebhook(tenant, "lead.created")
	s.must("webhook", "disable", s.addWebhook(tenant, "lead.created"))
	own, _ := s.registerApp(func(p *app) { p.AccountID = tenant })
	s.appToken(own, tenant, scopeOrders)
	s.appToken(own, s.account, scopeOrders) // is another account's
	_, ended := s.appToken(own, tenant, scopeOrders)
	s.must("grant", "revoke", ended)
	s.change(func(t *tx) error {
		o := anOrder(tenant)
		o.ReturnURL = "https://a.example/thanks"
		_, err := createOrder(t, o, guest{}, minOrderLife, anActor)
		return errors.Join(err, bringTo(t, o, orderAuthorized))
	})
	before := s.dump()
	_, err := s.command("account", "close", tenant)
	oneLine(t, err, "closing "+tenant+" (Trattoria) stops 1 token, 2 origins, 1 application, "+
		"1 grant, 1 licence, 1 widget, 1 webhook, 1 live payment (59.00 CHF released)",
		"add -force")
	s.unchanged(before)
	s.get("/leads", auth).is(200)
	want := `{"ok":true,"stopped":{"apps":1,"grants":1,"licenses":1,"origins":2,"payments":1,"tokens":1,` +
		`"webhooks":1,"widgets":1}}`
	expect(t, s.must("account", "close", tenant, "-force", "-json"), want+"\n", "what closing printed")
	s.hasRows(1, `payments WHERE due_at IS NOT NULL AND polls = 0`)
	s.get("/leads", auth).is(401)
	s.must("account", "reopen", tenant)
	s.get("/leads", auth).is(200)
	s.hasRows(2, `origins o JOIN accounts a ON a.id = o.account_id
		WHERE a.closed_at IS NULL AND origin LIKE 'https://_.example'`)
	_, err = s.command("account", "reopen", "acct_00000000000000000000000000")
	oneLine(t, err, "not found")
}

func TestQuery_aboutTheLivePaymentsOfAnAccountReadsNoOthers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	asked := questions(s.store.writer.queries)
	tenant := s.addAccount("Trattoria")
	s.change(func(t *tx) error {
		_, _, err := held(t.queries, nouns(), tenant, t.now)
		return errors.Join(err, closeAccount(t, nouns(), tenant, actorCommand))
	})
	seen := 0
	for _, query := range asked() {
		for _, step := range s.plan(query) {
			if strings.Contains(step, " payments ") {
				waiting := strings.Contains(query, "id IN (SELECT payment_id FROM orders") &&
					step == "SEARCH payments USING PRIMARY KEY (id=?)"
				if seen++; step != "SCAN payments USING INDEX payments_live" && !waiting {
					t.Errorf("%s\n%s", step, query)
				}
			}
		}
	}
	failIf(t, seen != 3, "%d steps read payments", seen)
}

// revocableToken issues a token with a command and returns its id.
func (s *service) revocableToken(account string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		_, row, err := issueToken(t, s.keys, tokenRow{AccountID: account, ClientID: "test", Scope: scopeLeads},
			time.Hour)
		id = row.ID
		return err
	})
	return id
}

func TestAccount_isTheMainOneWhereNoneIsNamedAndMayBeNamedByItsName(t *testing.T) {
	t.Parallel()
	s := newService(t)
	roma := s.addAccount("Trattoria Roma")
	twice := []string{s.addAccount("Imbiss"), s.addAccount("Imbiss")}
	s.must("widget", "add", "of the main account")
	s.must("widget", "add", "of Roma", "-account", "Trattoria Roma")
	s.must("license", "add", "-product", "kds", "-account", "Trattoria Roma")
	s.must("token", "issue", "-scope", scopeLeads, "-account", "Trattoria Roma")
	s.must("origin", "add", "https://roma.example", "-account", "Trattoria Roma")
	for table, account := range map[string]string{"licenses": roma, "tokens": roma,
		"origins WHERE origin <> '" + siteOrigin + "'": roma, "widgets WHERE name LIKE '%main%'": s.account,
		"widgets WHERE name LIKE '%Roma'": roma} {
		query, where, _ := strings.Cut(table, " WHERE ")
		if n := s.count(`SELECT count(*) FROM `+query+` WHERE account_id = ? AND `+cmp.Or(where, "1"),
			account); n != 1 {
			t.Errorf("%s: %d rows of %s", table, n, account)
		}
	}
	if out := s.must("widget", "list", "-account", "Trattoria Roma"); !strings.Contains(out, "of Roma") ||
		strings.Contains(out, "of the main account") {
		t.Errorf("listed\n%s", out)
	}
	_, err := s.command("widget", "add", "x", "-account", "Imbiss")
	several := func(name string, ids ...string) string {
		slices.Sort(ids) // ids of one millisecond come in any order
		return `several accounts have the name "` + name + `" or an id that ends so; give the id of the one that you ` +
			"mean: " + strings.Join(ids, " ")
	}
	oneLine(t, err, several("Imbiss", twice...))
	end := roma[len(roma)-6:]
	named := s.addAccount(end) // by somebody who would get what is meant for Roma
	_, err = s.command("widget", "add", "x", "-account", end)
	oneLine(t, err, several(end, roma, named))
	before := s.dump()
	_, err = s.command("widget", "add", "x", "-account", "Trattoria")
	oneLine(t, err, `no account has the id or the name "Trattoria"`)
	s.unchanged(before)
}

func TestOrigin_wrongSaysWhatToType(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for typed, want := range map[string]string{
		"www.example.com":       `"www.example.com" lacks its scheme, https or http: https://www.example.com`,
		"WWW.example.com:8443":  `"WWW.example.com:8443" lacks its scheme, https or http: https://www.example.com:8443`,
		"https://*.example.com": `"https://*.example.com": there are no wildcards; add each origin by itself`,
		"*":                     `"*": there are no wildcards`,
		"https://www.example.com/a/b": `"https://www.example.com/a/b" has a path, which browsers ` +
			`leave out of an origin: https://www.example.com`,
		"https://Käse.example": `"https://Käse.example": browsers send a name with such letters ` +
			`in another form: https://xn--kse-qla.example`,
		"http://straße.münchen:81/x": `another form: http://xn--strae-oqa.xn--mnchen-3ya:81`,
		"bücher.example":             `another form: https://xn--bcher-kva.example`,
		"https://ka\u0308se.example": `an origin is a scheme and a host`,
		"ftp://www.example.com":      `an origin is a scheme and a host`,
		"https://":                   `an origin is a scheme and a host`,
		"":                           `an origin is a scheme and a host`,
	} {
		_, err := s.command("origin", "add", typed)
		oneLine(t, err, want)
		var usage usageError
		failIf(t, !errors.As(err, &usage), "%q: %v is no usage error", typed, err)
	}
	s.must("origin", "add", "https://Shop.example/")
	s.hasRows(1, `origins WHERE origin = 'https://shop.example'`)
	s.must("origin", "remove", "https://shop.example/")
	_, err := s.command("init", "-db", s.dir+"/new.db", "-key", s.dir+"/new.key", "-origin", "www.example.com")
	oneLine(t, err, "lacks its scheme")
}

// The vectors are those of RFC 3492, section 7.1, but for the one whose letters change their case.
func TestPunycode_isThatOfTheRFC(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ليهمابتكلموشعربي؟":                        "egbpdaj6bu4bxfgehfvwxn",
		"他们为什么不说中文":                                "ihqwcrb4cv8a8dqg056pqjye",
		"他們爲什麽不說中文":                                "ihqwctvzc91f659drss3x8bo0yb",
		"Pročprostěnemluvíčesky":                   "Proprostnemluvesky-uyb24dma41a",
		"למההםפשוטלאמדבריםעברית":                   "4dbcagdahymbxekheh6e0a7fei0b",
		"почемужеонинеговорятпорусски":             "b1abfaaepdrnnbgefbadotcwatmq2g4l",
		"PorquénopuedensimplementehablarenEspañol": "PorqunopuedensimplementehablarenEspaol-fmd56a",
		"3年B組金八先生":                                 "3B-ww4c5e180e575a65lsy2b",
		"安室奈美恵-with-SUPER-MONKEYS":                 "-with-SUPER-MONKEYS-pc58ag80a8qai00g7n9n",
		"Hello-Another-Way-それぞれの場所":                "Hello-Another-Way--fc4qua05auwb3674vfr0b",
		"ひとつ屋根の下2":                                 "2-u9tlzr9756bt3uc0v",
		"MajiでKoiする5秒前":                            "MajiKoi5-783gue6qz075azm5e",
		"パフィーdeルンバ":                                "de-jg4avhby1noc0d",
		"そのスピードで":                                  "d9juau41awczczp",
		"-> $1.00 <-":                              "-> $1.00 <--",
	} {
		expect(t, punycode(text), want, "%s is encoded as", text)
		if got, ok := unpunycode(want); got != text || !ok {
			t.Errorf("%s is decoded as %q, want %s", want, got, text)
		}
	}
}

func FuzzPunycode(f *testing.F) {
	for _, label := range []string{"mller-kva", "e1afmkfd", "fiqs8s", "-> $1.00 <--", "zzzzzzzzzzzz", "a-", "-",
		"\xff-kva", "99999999999999999999", strings.Repeat("a", 64)} {
		f.Add(label)
	}
	f.Fuzz(func(t *testing.T, label string) {
		text, ok := unpunycode(label)
		if !ok {
			return
		}
		failIf(t, !utf8.ValidString(text) || len(label) > 63, "%q is decoded as %q", label, text)
		// Only the writing of what is ASCII alone differs: with a hyphen at its end, or none.
		if again, ok := unpunycode(punycode(text)); !ok || again != text {
			t.Errorf("%q is decoded as %q, which is encoded as %q, and that as %q", label, text, punycode(text), again)
		}
	})
}

// audit returns what events say that were written after the given one, oldest first: type, actor,
// account, subject and data.
func (s *service) audit(after int) (all []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT type || ' ' || actor || ' ' || account_id || ' ' || subject_id || ' ' || data
		FROM events WHERE seq > ? ORDER BY seq`, []any{after}, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		all = append(all, line)
		return err
	}))
	return all
}

func TestEvent_ofWhatOperatorsChangeIsWritten(t *testing.T) {
	t.Parallel()
	s := newService(t)
	me := thisActor(t)
	id := func(args ...string) string {
		var v struct{ ID, Kid string }
		s.check(json.Unmarshal([]byte(s.must(append(args, "-json")...)), &v))
		return cmp.Or(v.ID, v.Kid)
	}
	after := s.count(`SELECT coalesce(max(seq), 0) FROM events`)
	tenant := id("account", "add", "Secret Name Ltd")
	s.must("account", "set-rate", tenant, "1200")
	s.must("account", "set-rate", tenant, "1200")
	s.must("origin", "add", "https://tenant.example", "-account", tenant)
	s.must("origin", "add", "https://tenant.example", "-account", tenant)
	s.must("origin", "remove", "https://tenant.example")
	token := id("token", "issue", "-account", tenant, "-scope", "leads:read", "-client-id", "portal", "-all-accounts")
	end := ""
	s.check(s.store.one(`SELECT expires_at FROM tokens WHERE id = ?`, []any{token}, &end))
	s.must("token", "revoke", token)
	s.must("token", "revoke", token)
	widget := id("widget", "add", "Secret Menu", "-account", tenant)
	s.must("widget", "rename", widget, "Other Secret Menu")
	s.must("widget", "rename", widget, "Other Secret Menu")
	s.must("widget", "remove", widget)
	s.must("account", "close", tenant, "-force")
	s.must("account", "close", tenant, "-force")
	closed := ""
	s.check(s.store.one(`SELECT closed_at FROM accounts WHERE id = ?`, []any{tenant}, &closed))
	s.must("account", "reopen", tenant)
	s.must("account", "reopen", tenant)
	first := s.keys.signer().kid
	second := id("key", "add")
	s.must("key", "rotate", "-force")
	s.must("key", "retire", first, "-force")
	line := func(kind, account, subject, data string) string {
		return kind + " " + me + " " + account + " " + subject + " " + data
	}
	want := []string{
		line("account.created", tenant, tenant, `{}`),
		line("account.rate_changed", tenant, tenant, `{"from":"600","to":"1200"}`),
		line("origin.added", tenant, tenant, `{"origin":"https://tenant.example"}`),
		line("origin.removed", tenant, tenant, `{"origin":"https://tenant.example"}`),
		line("token.issued", tenant, token,
			`{"all_accounts":"true","client_id":"portal","expires_at":"`+end+`","scope":"leads:read"}`),
		line("token.revoked", tenant, token, `{"client_id":"portal","scope":"leads:read"}`),
		line("widget.created", tenant, widget, `{}`),
		line("widget.renamed", tenant, widget, `{}`),
		line("widget.removed", tenant, widget, `{"rows":"0"}`),
		line("account.closed", tenant, tenant, `{}`),
		line("account.reopened", tenant, tenant, `{"closed_at":"`+closed+`"}`),
		line("key.added", s.account, "", `{"kid":"`+second+`"}`),
		line("key.rotated", s.account, "", `{"from":"`+first+`","to":"`+second+`"}`),
		line("key.retired", s.account, "", `{"kid":"`+first+`"}`),
	}
	if got := s.audit(after); !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	failIf(t, !strings.HasPrefix(me, "command:") || len(me) == len("command:"), "this user is %q", me)
}

func TestEvent_overHTTPNamesAnOperatorAndNoUserOfTheSystem(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id, key := s.addLicense(license{})
	device := s.activate(key, "a").is(200).text("device", "id")
	s.must("license", "suspend", id)
	s.post("/licenses/"+id+"/reinstate", `{}`, s.auth(s.account, scopeAdmin)).is(200)
	s.do("DELETE", "/licenses/"+id+"/devices/"+device, "", s.auth(s.account, scopeDevices)).is(204)
	portal, admin := "", ""
	s.check(s.store.one(`SELECT id FROM tokens WHERE scope = 'devices:write'`, nil, &portal))
	s.check(s.store.one(`SELECT id FROM tokens WHERE scope = 'admin'`, nil, &admin))
	actors := func(scope string) (all []any) {
		for _, row := range s.get("/events", bearer(s.token(s.account, scope))).is(200).json()["data"].([]any) {
			all = append(all, row.(map[string]any)["actor"])
		}
		return all
	}
	for _, scope := range []string{scopeEvents, scopeAdmin} {
		if got := actors(scope); !slices.Equal(got,
			[]any{"token " + portal, "operator", "operator", "device", "device", "operator"}) {
			t.Errorf("%s sees the actors %v", scope, got)
		}
	}
	stored := strings.Join(s.licenseEvents(id), ", ")
	for _, want := range []string{"license.suspended " + thisActor(t) + ",",
		"license.reinstated operator " + admin + ","} {
		failIf(t, !strings.Contains(stored, want), "the file has %s, want %s", stored, want)
	}
}
