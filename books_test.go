package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asked is a request with a token of the account for books and their entries.
func (k *bookkeeper) asked(method, path, body string) answer {
	k.t.Helper()
	auth := "Authorization: Bearer " + k.token(k.account, scopeBooks+" "+scopeRevenue)
	return k.do(method, "/books/connections"+path, body, auth)
}

// opens follows an address at a product, and returns the page on which its owner comes back.
func (k *bookkeeper) opens(authorize string) answer {
	k.t.Helper()
	u, err := url.Parse(k.agrees(authorize))
	k.check(err)
	return k.get(strings.TrimPrefix(u.Path, "/v1") + "?" + u.RawQuery)
}

func TestBooksHTTP_anOwnerConnectsMapsSeesAndSends(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		asked := k.requests()
		k.asked("DELETE", at+"?dry_run=true", "").is(200).tells("id", k.connection, "state", "in_use",
			"ends.exports", 0, "dry_run", true)
		k.asked("GET", at, "").is(200).tells("state", "in_use")
		equal(t, "requests to the books in a dry run", k.requests()-asked, 0)
		k.asked("DELETE", at, "").is(204)
		k.asked("GET", at, "").is(404, "books_connection_not_found")
		link := k.asked("POST", "", `{"product":"`+k.product+`"}`).is(200)
		page := k.opens(link.text("authorize_url")).is(200).has("Content-Type: text/html; charset=utf-8",
			"Cache-Control: no-store")
		if !strings.Contains(page.body, "<h1>Connected</h1>") || strings.Contains(page.body, "<script") ||
			!strings.Contains(page.body, productOf(k.product).title) {
			t.Error(page.body)
		}
		k.get("/books/callback/"+k.product+"?state=x&code=%3Cscript%3E").is(409).shows("This link was used already",
			"not <script")
		k.get("/books/callback/abacus").is(404).shows("There is nothing")
		c := k.asked("GET", "", "").is(200).json()["data"].([]any)[0].(map[string]any)
		if c["id"] != k.connection || c["state"] != "in_use" || c["send_from"] != nil { // it gets its connection back
			t.Errorf("%v", c)
		}
		k.sell(1850)
		day := "/preview/" + bookkeeperDay
		k.asked("GET", at+day, "").is(200).contains(`"debit":1850`, `"final":false`, `"issues":[]`)
		k.asked("GET", at+"/accounts", "").is(200).contains(`"usable":true`)
		k.asked("GET", at+"/accounts?date=x", "").is(422, "validation_failed")
		suggested := k.asked("GET", at+"/mapping?suggest=true", "").is(200).json()
		lines := suggested["suggested"].(map[string]any)["lines"].([]any)
		if len(lines) < 2 || suggested["mapping"] == nil {
			t.Errorf("%v", suggested)
		}
		k.asked("PUT", at+"/mapping", `{"lines":`+string(encodeJSON(lines))+`}`).is(200)
		k.asked("PUT", at+"/mapping", `{"lines":[{"kind":"tip","method":"card","account":"2890"}]}`).is(422,
			"validation_failed")
		k.asked("POST", at+"/exports", `{"date":"1999-12-01"}`).is(409, "no_revenue")
		x := k.asked("POST", at+"/exports",
			`{"date":"`+bookkeeperDay+`"}`).is(200).json()["data"].([]any)[0].(map[string]any)
		export := at + "/exports/" + x["id"].(string)
		k.asked("POST", export+"/reverse", "").is(409, "export_state")
		k.asked("POST", at+"/exports/exp_1/retry", "").is(404, "export_not_found")
		k.until("2000-01-02 06:00")
		k.asked("GET", at+day, "").is(200).contains(`"final":true`)
		k.asked("POST", export+"/retry", "").is(200)
		k.remap(func(*bookMapping) {})
		k.work(time.Minute)
		k.asked("GET", at+"/exports?state=posted", "").is(200).contains(x["id"].(string))
		k.asked("POST", export+"/reverse", `{"date":"1999-01-01"}`).is(422, "validation_failed")
		wouldBe := k.asked("POST", export+"/reverse?dry_run=true", "").is(200)
		wouldBe.tells("id", nil, "reverses", x["id"], "dry_run", true)
		k.hasRows(1, "books_exports")
		back := k.asked("POST", export+"/reverse", "").is(200).tells("reverses", x["id"], "dry_run", nil).json()
		k.asked("POST", export+"/reverse?dry_run=true", "").is(200).tells("id", back["id"])
		k.work(time.Minute)
		k.asked("POST", export+"/reverse", "").is(200).tells("id", back["id"], "due_at", nil)
	})
}

func TestBooksHTTP_historyIsSentOnlyWhereItIsSaid(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		k.until("2000-01-10 12:00")
		k.asked("PATCH", at, `{"send_from":"2000-01-09"}`).is(422, "validation_failed")
		for body, want := range map[string]any{`{"send_from":"2000-01-10"}`: "2000-01-10", `{"send_from":null}`: nil,
			`{"send_from":"2000-01-01","history":true}`: "2000-01-01"} {
			if got := k.asked("PATCH", at, body).is(200).json()["send_from"]; got != want {
				t.Errorf("%s: %v", body, got)
			}
		}
		for body, want := range map[string]int{`{"send_from":"2000-01-01","outside":false}`: 200,
			`{"send_from":"2000-01-02"}`: 422} { // as it is, and another one that is past
			k.asked("PATCH", at, `{"send_from":"2000-01-01","history":true}`).is(200)
			k.asked("PATCH", at, body).is(want)
		}
		other := map[string]string{productXero: `{"series":"A"}`, productFortnox: `{"status":"posted"}`}
		own := map[string]string{productXero: `{"status":"posted"}`, productFortnox: `{"series":"A"}`}
		k.asked("PATCH", at, other[k.product]).is(422, "validation_failed")
		k.asked("PATCH", at, own[k.product]).is(200)
		k.asked("PATCH", at, `{"organisation":"another"}`).is(409, "books_connection_state")
		if c := k.asked("PATCH", at, `{"outside":true,"tests":true}`).is(200).json(); c["outside"] != true ||
			c["tests"] != true {
			t.Errorf("%v", c)
		}
	})
}

// requests returns how many requests the products got.
func (k *bookkeeper) requests() int {
	k.xero.mu.Lock()
	defer k.xero.mu.Unlock()
	k.fortnox.mu.Lock()
	defer k.fortnox.mu.Unlock()
	return len(k.xero.requests) + len(k.fortnox.requests)
}

func TestBooksHTTP_aServiceOnACopyAsksNothingAndSaysWhy(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		k.set(func(c *bookConnection) { c.Tests = true })
		k.sendFrom(bookkeeperDay)
		k.sell(1850)
		back, err := url.Parse(k.approve())
		k.check(err)
		k.until("2000-01-02 12:00") // the access token has ended, and the day is due
		how, err := usualServerOptions(allCommands())
		k.check(err)
		how.outboundAllow, how.urls, how.noBooks = demoOutbound, bookkeeperURLs, true
		original := k.server
		k.server, err = newServer(k.store, k.keys, how, slog.New(slog.NewTextHandler(k.log, nil)), nouns())
		k.check(err)
		k.server.outbound.plain.DialContext = original.outbound.plain.DialContext
		t.Cleanup(k.server.outbound.close)
		before, tokens := k.requests(), k.given()
		ctx, stop := context.WithCancel(t.Context())
		for _, run := range k.server.workers {
			k.server.working.Go(func() { run(ctx) })
		}
		for _, c := range []struct{ method, path, body string }{
			{"GET", at + "/accounts", ""}, {"GET", at + "/mapping?suggest=true", ""},
			{"GET", at + "/preview/" + bookkeeperDay, ""},
			{"POST", "", `{"product":"` + k.product + `"}`},
		} {
			k.asked(c.method, c.path, c.body).is(503, "books_unavailable").contains("-no-books")
		}
		k.get(strings.TrimPrefix(back.Path, "/v1") + "?" + back.RawQuery).is(503).shows("works on a copy")
		x := k.asked("POST", at+"/exports",
			`{"date":"`+bookkeeperDay+`"}`).is(200).json()["data"].([]any)[0].(map[string]any)
		k.asked("POST", at+"/exports/"+x["id"].(string)+"/retry", "").is(200)
		k.time(2 * time.Minute)
		k.asked("DELETE", at, "").is(204) // of the copy only
		stop()
		k.server.working.Wait()
		if k.requests() != before || k.given() != tokens {
			t.Errorf("%d requests more, %d times tokens more", k.requests()-before, k.given()-tokens)
		}
	})
}

// booksLine adds to a command line where the fake of Xero is.
func booksLine(f *xeroFake, args ...string) []string {
	return append(args, "-xero-url", f.base, "-outbound-allow", loopbackRange)
}

// comeBack is the owner who agrees at Xero and comes back to the service.
func comeBack(o *operator, f *xeroFake, authorize string) {
	o.t.Helper()
	u, err := url.Parse(f.approve(authorize))
	must(o.t, err)
	keys, err := loadKeyring(filepath.Join(o.dir, "widgetd.key"))
	must(o.t, err)
	o.store(func(st *store) {
		out := newOutbound(demoOutbound)
		defer out.close()
		b := &books{ledgers: newLedgers(out, map[string]string{"xero-url": f.base}, time.Now),
			connector: connector{store: st, keys: func() *keyring { return keys }, log: slog.New(slog.DiscardHandler),
				now: time.Now, monotonic: time.Now, wake: make(chan struct{}, 1)}}
		q := u.Query()
		if _, err := b.callback(o.t.Context(), productXero, q.Get("state"), q.Get("code"), q.Get("error")); err != nil {
			o.t.Fatal(err)
		}
	})
}

func booksStory(t *testing.T, o *operator) {
	f := newXeroFake(t, time.Now)
	f.app.clientSecret = "s+cret/of:the-app~" // as those that are given out: without a space
	secrets := o.file("secrets", "client_id="+f.app.clientID+"\nclient_secret = "+f.app.clientSecret+"\n")
	o.told.keep("a client secret", f.app.clientSecret)
	o.fails("run 'widgetd books app set'", booksLine(f, "books", "connect", "xero")...)
	o.fails(`there is no product "abacus"`, "books", "app", "set", "abacus", "-secrets", secrets)
	o.fails("-secrets FILE is needed", "books", "app", "set", "xero")
	o.do("books", "app", "set", "xero", "-secrets", secrets)
	if apps := o.objects("books", "app", "list"); len(apps) != 1 || apps[0]["client_id"] != f.app.clientID {
		t.Errorf("%v", apps)
	}
	comeBack(o, f, o.object(booksLine(f, "books", "connect", "xero")...)["authorize_url"].(string))
	c := o.objects("books", "list")[0]
	id := c["id"].(string)
	if c["state"] != "in_use" || c["send_from"] != nil || c["account_id"] != o.account {
		t.Errorf("%v", c)
	}
	o.fails("no mapping was confirmed", "books", "map", id)
	out := o.do(booksLine(f, "books", "accounts", id, "-date", "2020-01-01", "-wide")...)
	for _, want := range []string{"200", "Old sales", "archived", "OUTPUT2",
		"\ncost centers  Region:North, Region:South\n"} {
		contains(t, out, want)
	}
	suggested := o.do(booksLine(f, "books", "map", id, "-suggest", "-json")...)
	payouts := strings.Replace(suggested, `"lines":[`, `"lines":[{"kind":"transit","account":"404"},`, 1)
	o.do("books", "map", id, "-set", o.file("payouts.json", payouts))
	contains(t, o.noted, "warning: Another connector of the payment provider would book")
	mapping := o.file("mapping.json", suggested)
	if table := o.do("books", "map", id, "-set", mapping, "-wide"); !strings.Contains(table, "all others") {
		t.Error(table)
	}
	if now := o.do("books", "map", id, "-json"); now != suggested {
		t.Errorf("%s\n%s", now, suggested)
	}
	o.fails("-set and -suggest exclude each other", "books", "map", id, "-suggest", "-set", mapping)
	today := time.Now().UTC().Format(time.DateOnly)
	o.fails("-send-from: This must be a date", "books", "set", id, "-send-from", "tomorrow")
	o.fails("send-from: This day is past", "books", "set", id, "-send-from", "2020-01-01")
	o.fails("-outside: give yes or no", "books", "set", id, "-outside", "maybe")
	set := o.object("books", "set", id, "-send-from", "2020-01-01", "-history", "-status", "posted", "-tests", "yes")
	if set["send_from"] != "2020-01-01" || set["status"] != "posted" || set["tests"] != true ||
		set["outside"] != false {
		t.Errorf("%v", set)
	}
	if set := o.do("books", "set", id, "-send-from", "never"); !strings.HasSuffix(set, "it sends from: never\n") {
		t.Error(set)
	}
	if out := o.do(booksLine(f, "books", "preview", id, "2020-01-01")...); !strings.Contains(out, "entries  -\n") {
		t.Error(out)
	}
	sell(o)
	from := time.Now().UTC().AddDate(0, 0, -2).Format(time.DateOnly)
	day := o.objects("revenue", "list", "-from", from)[0]["date"].(string)
	if out := o.do(booksLine(f, "books", "preview", id, day)...); !strings.Contains(out, "\nfinal            no\n") {
		t.Error(out)
	}
	o.fails("DATE: This must be a date", "books", "export", "send", id, today[:7])
	o.fails("nothing that the connection would send", "books", "export", "send", id, "2020-01-01")
	x := o.objects("books", "export", "send", id, day)[0]
	if all := o.objects("books", "export", "list", "-state", "waiting"); len(all) != 1 || all[0]["id"] != x["id"] {
		t.Errorf("%v", all)
	}
	o.do("books", "export", "retry", x["id"].(string))
	contains(t, o.noted, "queued: the service does it when it runs")
	o.fails("Only the entry of a day that is in the books", "books", "export", "reverse", x["id"].(string))
	o.change(func(t *tx) error {
		posted, err := t.bookExport(anyAccount, x["id"].(string))
		if err != nil {
			return err
		}
		posted.State, posted.EntryID, posted.SentAt, posted.PostedAt, posted.DueAt = exportPosted, ptr("entry"),
			t.now, t.now, stamp{}
		return t.saveExport(posted)
	})
	later := time.Now().UTC().AddDate(0, 0, 10).Format(time.DateOnly)
	if back := o.objects("books", "export", "reverse", x["id"].(string), "-date", later); len(back) != 1 ||
		back[0]["reverses"] != x["id"] || back[0]["entry_date"] != later || back[0]["revision"] != 2.0 {
		t.Errorf("%v", back)
	}
	o.fails("'widgetd books export list' prints what there is", "books", "export", "retry", "exp_1")
	o.do(booksLine(f, "books", "disconnect", id)...)
	o.fails("'widgetd books list' prints what there is", "books", "map", id)
}

// sell adds an order of 18.50 that was paid by card with test keys.
func sell(o *operator) {
	o.t.Helper()
	o.change(func(t *tx) error {
		sale := &order{AccountID: o.account, Currency: "CHF", ReturnURL: siteOrigin + "/thanks",
			Lines: []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: 1850, VATRate: 810}}}
		if _, err := createOrder(t, sale, guest{}, minOrderLife, actorCommand); err != nil {
			return err
		}
		return markPaid(t, sale, methodCard, t.now, actorCommand)
	})
}

// wrongMapping reads a mapping from JSON, and returns the pointers and codes of what is wrong.
func wrongMapping(t testing.TB, product, text string) (wrong []string) {
	t.Helper()
	body, err := parseJSON([]byte(text))
	must(t, err)
	in := newInput(&body, nil)
	readMapping(in, productOf(product))
	for _, e := range *in.errs {
		wrong = append(wrong, strings.TrimPrefix(e.Pointer, "#/lines")+" "+e.Code)
	}
	return wrong
}

func TestMapping_wrongLinesAreNamed(t *testing.T) {
	t.Parallel()
	const sales = `"kind":"sales","vat_rate":810,"account":"3001","tax":"2611"`
	for _, c := range []struct{ product, lines, wrong string }{
		{productFortnox, `{` + sales + `}`, ""},
		{productFortnox, `{"kind":"sales","vat_rate":0,"account":"3004"}`, ""},
		{productXero, `{"kind":"sales","vat_rate":0,"account":"200"}`, "/0/tax required"},
		{productFortnox, `{"kind":"sales","vat_rate":810,"account":"3001"}`, "/0/tax required"},
		{productFortnox, `{"kind":"sales","vat_rate":810,"account":"3001","tax":null}`, "/0/tax wrong_type"},
		{productFortnox, `{"kind":"sales","account":"3001","tax":"2611"}`, "/0/vat_rate required"},
		{productFortnox, `{"kind":"delivery","vat_rate":10001,"account":"3001","tax":"2611"}`,
			"/0/vat_rate out_of_range"},
		{productFortnox, `{"kind":"delivery","vat_rate":810,"group":"food","account":"3001","tax":"2611"}`,
			"/0/group not_of_this_kind"},
		{productFortnox, `{"kind":"fees","account":"3001"}`, "/0/kind unknown_value"},
		{productFortnox, `{"kind":"tip","account":"2890","tax":"2611"}`, "/0/tax not_of_this_kind"},
		{productFortnox, `{"kind":"tip","account":"2890","vat_rate":0}`, "/0/vat_rate not_of_this_kind"},
		{productXero, `{"kind":"tip","account":"825","tax":"NONE"}`, ""},
		{productXero, `{"kind":"tip","account":"825","tax":"NO NE"}`, "/0/tax invalid_tax"},
		{productXero, `{"kind":"dispute","method":"card","account":"825"}`, "/0/method not_of_this_kind"},
		{productXero, `{"kind":"payment","account":"610"}`, "/0/method required"},
		{productXero, `{"kind":"payment","method":"none","account":"610"}`, "/0/method unknown_value"},
		{productXero, `{"kind":"payment","method":"card"}`, "/0/account required"},
		{productXero, `{"kind":"payment","method":"card","account":"6 10"}`, "/0/account invalid_account"},
		{productXero, `{"kind":"payment","method":"card","account":"12345678901"}`, "/0/account too_long"},
		{productFortnox, `{"kind":"payment","method":"card","account":"0580"}`, "/0/account invalid_account"},
		{productFortnox, `{"kind":"payment","method":"card","account":"158"}`, "/0/account invalid_account"},
		{productFortnox, `{"kind":"payment","method":"card","account":"158x"}`, "/0/account invalid_account"},
		{productXero, `{"kind":"tip","account":"825","cost_center":"North"}`, "/0/cost_center invalid_cost_center"},
		{productFortnox, `{"kind":"tip","account":"2890","cost_center":"N"}`, ""},
		{productFortnox, `{` + sales + `},{` + sales + `}`, "/1/kind repeated"},
		{productFortnox, `{` + sales + `},{` + sales + `,"group":""},{` + sales + `,"group":"food"}`, ""},
		{productFortnox, `{` + sales + `,"group":"food"},{` + sales + `,"group":"food"}`, "/1/kind repeated"},
		{productFortnox, `{"kind":"tip","account":"2890"},{"kind":"tip","account":"2891"}`, "/1/kind repeated"},
		{productFortnox, ``, " wrong_length"},
	} {
		if wrong := wrongMapping(t, c.product, `{"lines":[`+c.lines+`]}`); strings.Join(wrong, ", ") != c.wrong {
			t.Errorf("%s, %s: %q", c.product, c.lines, wrong)
		}
	}
	lines := ""
	for i := range maxMappingRules + 1 {
		lines += fmt.Sprintf(`,{"kind":"sales","vat_rate":%d,"account":"3001","tax":"2611"}`, i+1)
		wrong := wrongMapping(t, productFortnox, `{"lines":[`+lines[1:]+`]}`)
		equal(t, fmt.Sprint(i+1, " lines are wrong"), len(wrong) > 0, i == maxMappingRules)
	}
}

// rulesText returns a mapping, one rule a line: kind, rate, group, method, account, tax.
func rulesText(m bookMapping) string {
	var lines []string
	for _, r := range m.Lines {
		line := string(r.Kind)
		if r.VATRate != nil {
			line += fmt.Sprint(" ", *r.VATRate)
		}
		if r.Group != nil {
			line += " " + *r.Group
		}
		if r.Method != nil {
			line += " " + string(*r.Method)
		}
		lines = append(lines, line+" "+r.Account+" "+valueOr(r.Tax, "-"))
	}
	return strings.Join(lines, "\n")
}

// chartOf makes a chart from lines "code type name"; an account whose name ends with ! can't be used.
func chartOf(lines ...string) *bookChart {
	chart := &bookChart{}
	for _, line := range lines {
		code, rest, _ := strings.Cut(line, " ")
		kind, name, _ := strings.Cut(rest, " ")
		a := bookAccount{Code: code, Type: strings.Trim(kind, "-"), Name: strings.TrimSuffix(name, "!"),
			Usable: !strings.HasSuffix(name, "!")}
		chart.Accounts = append(chart.Accounts, a)
	}
	return chart
}

func TestMapping_suggestionsFollowTheSwedishChart(t *testing.T) {
	t.Parallel()
	chart := chartOf("1510 - Kundfordringar", "1580 - Fordringar för kontokort och kuponger", "1910 - Kassa",
		"1930 - Företagskonto", "2421 - Ej inlösta presentkort", "2611 - Utgående moms 25 %",
		"2621 - Utgående moms 12 %", "2631 - Utgående moms 6 %", "2890 - Övriga kortfristiga skulder",
		"3001 - Försäljning 25 %", "3002 - Försäljning 12 %", "3003 - Försäljning 6 %!", "3004 - Försäljning momsfri")
	want := `sales 2500 3001 2611
sales 1200 3002 2621
sales 0 3004 -
delivery 2500 3001 2611
delivery 1200 3002 2621
delivery 0 3004 -
tip 2890 -
payment card 1580 -
payment mobile 1580 -`
	if got := rulesText(suggestMapping(&fortnoxProduct, chart, nil)); got != want {
		t.Errorf("without revenue:\n%s", got)
	}
	seen := []revenueSum{
		sum(methodCard, figureSale, 1200, "mat", 100, 11), sum(methodCash, figureSale, 2500, "", 100, 20),
		sum(methodVoucher, figureTip, 0, "", 1, 0),
		sum(methodOther, figureSale, 900, "", 100, 8), sum(methodCard, figureDelivery, 2500, "", 100, 20),
	}
	want = `sales 2500 3001 2611
sales 1200 3002 2621
delivery 2500 3001 2611
tip 2890 -
payment card 1580 -
payment mobile 1580 -
payment cash 1910 -
payment voucher 2421 -`
	if got := rulesText(suggestMapping(&fortnoxProduct, chart, seen)); got != want {
		t.Errorf("with revenue:\n%s", got)
	}
	if got := suggestMapping(&fortnoxProduct, chartOf(), seen); len(got.Lines) != 0 || got.Lines == nil {
		t.Errorf("of an empty chart: %v", got)
	}
}

func TestMapping_suggestionsKnowAccountsByTheirNames(t *testing.T) {
	t.Parallel()
	seen := []revenueSum{
		sum(methodCard, figureSale, 810, "Getränke", 100, 7), sum(methodCard, figureSale, 810, "", 100, 7),
		sum(methodMobile, figureDelivery, 810, "", 100, 7), sum(methodTerminal, figureRefund, 260, "", 100, 3),
	}
	rates := []bookTaxRate{
		{Code: "INPUT2", Rate: 810}, {Code: "TAX7", Rate: 810, Usable: true},
		{Code: "OUTPUT2", Rate: 810, Usable: true}, {Code: "TAX8", Rate: 260, Usable: true},
		{Code: "NONE", Usable: true},
	}
	chart := chartOf("090 BANK Card clearing", "110 CURRENT Debitoren Kreditkarte!", "115 CURRENT Krankenkasse",
		"200 SALES Umsatz alt!", "201 REVENUE Speiseumsatz", "202 REVENUE Getränkeverkauf",
		"203 EXPENSE Umsatzprovision", "210 REVENUE Liefergebühren", "300 CURRLIAB Trinkgelder Personal",
		"310 EXPENSE Chargebacks", "320 CURRENT Durchlaufkonto Karten", "330 CURRENT TWINT")
	chart.TaxRates = rates
	want := `sales 810 Getränke 202 OUTPUT2
sales 810 201 OUTPUT2
sales 260 201 TAX8
delivery 810 210 OUTPUT2
tip 300 NONE
dispute 310 NONE
payment card 320 NONE
payment mobile 330 NONE
payment terminal 320 NONE`
	if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); got != want {
		t.Errorf("in German:\n%s", got)
	}
	chart.Accounts[4].Tax = "TAX7"
	if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); !strings.Contains(got, "sales 810 201 TAX7") {
		t.Errorf("with a tax of its own:\n%s", got)
	}
	for language, accounts := range map[string][]string{
		"English": {"200 REVENUE Food Sales", "210 REVENUE Delivery income", "825 CURRLIAB Tips payable to staff",
			"860 CURRENT Undeposited funds"},
		"French": {"200 REVENUE Ventes de repas", "210 REVENUE Frais de livraison", "825 LIABILITY Pourboires",
			"860 CURRENT Cartes de crédit"},
		"Swedish": {"200 SALES Försäljning mat", "210 SALES Frakt", "825 CURRLIAB Dricks",
			"860 CURRENT Avräkningskonto"},
		"Danish": {"200 SALES Salg af mad", "210 SALES Levering", "825 CURRLIAB Drikkepenge",
			"860 CURRENT Mellemregning kort"},
		"Norwegian": {"200 SALES Salgsinntekter", "210 SALES Frakt", "825 CURRLIAB Tips", "860 CURRENT Oppgjørskonto"},
	} {
		chart := chartOf(append(accounts, "100 BANK Tips sales delivery clearing", "600 DIRECTCOSTS Cost of sales")...)
		chart.TaxRates = rates
		want := "sales 810 200 OUTPUT2\nsales 260 200 TAX8\ndelivery 810 210 OUTPUT2\ntip 825 NONE\n" +
			"payment card 860 NONE\npayment mobile 860 NONE\npayment terminal 860 NONE"
		if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); got != want {
			t.Errorf("in %s:\n%s", language, got)
		}
	}
}

func TestMapping_suggestsNothingThatIsNotClear(t *testing.T) {
	t.Parallel()
	seen := []revenueSum{sum(methodCard, figureSale, 2000, "", 120, 20)}
	for name, c := range map[string]struct {
		accounts []string
		rates    []bookTaxRate
		want     string
	}{
		"two accounts without a name": {[]string{"200 REVENUE A", "201 REVENUE B"},
			[]bookTaxRate{{Code: "OUTPUT2", Rate: 2000, Usable: true}}, ""},
		"one account without a name": {[]string{"200 REVENUE A"},
			[]bookTaxRate{{Code: "OUTPUT2", Rate: 2000, Usable: true}}, "sales 2000 200 OUTPUT2"},
		"two rates": {[]string{"200 REVENUE Sales"},
			[]bookTaxRate{{Code: "A", Rate: 2000, Usable: true}, {Code: "B", Rate: 2000, Usable: true}}, ""},
		"a rate for purchases": {[]string{"200 REVENUE Sales"}, []bookTaxRate{{Code: "OUTPUT2", Rate: 2000}}, ""},
		"no rate of 0":         {[]string{"1 CURRENT Stripe"}, nil, ""},
		"that of Australia": {[]string{"1 CURRENT Stripe"},
			[]bookTaxRate{{Code: "BASEXCLUDED", Usable: true}}, "payment card 1 BASEXCLUDED"},
	} {
		chart := chartOf(c.accounts...)
		chart.TaxRates = c.rates
		if got := rulesText(suggestMapping(&xeroProduct, chart, seen)); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// addBooks adds a connection of an account with books, with tokens that a key file has sealed.
func addBooks(t *tx, keys *keyring, account, product string, change func(c *bookConnection)) (*bookConnection, error) {
	company := bookCompany{ID: "company-" + account, Name: "Trattoria"}
	c := &bookConnection{ID: t.newID("bkc"), AccountID: account, Product: product, Status: entryDraft,
		OrganisationID: &company.ID, Organisation: company.Name}
	if change != nil {
		change(c)
	}
	t.addBookConnection(c)
	sealed, err := sealTokens(keys, c.ID, &bookTokens{Access: "access", ExpiresAt: t.now.after(time.Hour)})
	if err != nil {
		return nil, err
	}
	return c, t.saveBookTokens(c, sealed)
}

// addBooksExport adds an export of a connection that waits in a state since a time.
func addBooksExport(
	t *tx, c *bookConnection, date businessDate, state bookExportState, reason string, since stamp,
) (id string, err error) {
	x := newExport(t, c, exportSubject{Date: date, Currency: "CHF"}, dayKey(c.AccountID, date), 1, nil, t.now)
	x.State, x.Reason, x.HeldAt, x.Detail = state, &reason, since, ptr("2000663 Nej.")
	return x.ID, t.saveExport(x)
}

func TestBooks_statusAndCheckTellWhatNeedsDoing(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	secrets := o.file("app", "client_id=app\nclient_secret=keepthissecret\n")
	o.told.hear("keepthissecret")
	o.do("books", "app", "set", "xero", "-secrets", secrets)
	keys, err := loadKeyring(o.env["WIDGETD_KEY"])
	must(t, err)
	var lost, failing *bookConnection
	var now stamp
	o.change(func(t *tx) (err error) {
		now = t.now
		ago := func(d time.Duration) stamp { return t.now.after(-d) }
		lost, err = addBooks(t, keys, o.account, productXero,
			func(c *bookConnection) { c.NeedsReconnectAt = ago(time.Hour) })
		if err == nil {
			failing, err = addBooks(t, keys, o.account, productFortnox,
				func(c *bookConnection) { c.FailingSince = ago(2 * time.Hour) })
		}
		add := func(
			c *bookConnection, date businessDate, state bookExportState, reason string, since stamp,
		) (id string) {
			if err == nil {
				id, err = addBooksExport(t, c, date, state, reason, since)
			}
			return id
		}
		add(lost, "2026-01-01", exportHeld, heldReconnect, ago(heldTooLong))
		add(lost, "2026-01-02", exportHeld, heldReconnect, ago(heldTooLong-time.Hour))
		add(failing, "2026-01-03", exportFailed, "2000108", ago(2*heldTooLong))
		add(failing, "2026-01-04", exportUnknown, "", stamp{})
		add(failing, "2026-01-05", exportHeld, heldNoRight, ago(heldTooLong))
		if err != nil {
			return err
		}
		// What nobody can do anything about is not told of.
		for _, why := range []string{"removed", "closed"} {
			account := t.addAccount(why, false)
			c, err := addBooks(t, keys, account, productXero, func(c *bookConnection) {
				c.NeedsReconnectAt, c.FailingSince = t.now, t.now
				if why == "removed" {
					c.RemovedAt = t.now
				}
			})
			if err != nil {
				return err
			}
			add(c, "2026-01-01", exportHeld, heldReconnect, ago(days(9)))
			add(c, "2026-01-02", exportFailed, "2000108", ago(days(9)))
			add(c, "2026-01-03", exportUnknown, "", stamp{})
			if why == "closed" {
				err = closeAccount(t, nouns(), account, actorCommand)
			}
			if err != nil {
				return err
			}
		}
		return err
	})
	v := o.object("status")
	const totals = "map[connections:2 failed:1 failing:1 held:3 held_long:2 need_reconnect:1 refused:1 " +
		"unknown:1 waiting:0]"
	if got := fmt.Sprint(v["books"]); got != totals {
		t.Errorf("%s, want %s", got, totals)
	}
	again := "have its owner connect it again, on the address that 'widgetd books connect xero -account main' prints"
	lines := needsDoing(v)
	for _, want := range []string{
		"1 connection with books waits for its owner since " + lost.NeedsReconnectAt.day() + ": 'widgetd books list'",
		"1 connection with books gets no usable answer since " + failing.FailingSince.day() +
			": 'widgetd books list'",
		"1 entry failed since " + now.after(-2*heldTooLong).day() +
			": 'widgetd books export list -state failed'",
		"1 entry is refused by the books since " + now.after(-heldTooLong).day() +
			" (no_right: 2000663 Nej.): 'widgetd books export list -state held'",
		"2 entries held since " + now.after(-heldTooLong).day() +
			" (needs_reconnect): 'widgetd books export list -state held'",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in %q", want, lines)
		}
	}
	if text := o.do("status", "-wide"); !strings.Contains(text, "2 connections, 3 entries held, 2 refused\n") {
		t.Errorf("%s", text)
	}
	if out := o.do("check"); !strings.HasPrefix(out, "ok: ") {
		t.Errorf("%s", out)
	}
	o.replaceKeyFile()
	sealed := []string{
		"the secret of the application for xero was sealed with another key file: " +
			"run 'widgetd books app set xero -secrets FILE'",
		"the tokens of the connection " + lost.ID + " with books were sealed with another key file: " + again,
		"the tokens of the connection " + failing.ID + " with books were sealed with another key file: " +
			strings.Replace(again, productXero, productFortnox, 1),
	}
	out, err := o.try("check")
	if n := strings.Count(out, "key: "); err == nil || n != len(sealed) {
		t.Errorf("check: %v, %d lines about the key file", err, n)
	}
	for _, want := range sealed {
		if !strings.Contains(out, "key: "+want+"\n") {
			t.Errorf("check: no line %q in\n%s", want, out)
		}
	}
	lines = needsDoing(o.object("status"))
	const needed = "another key file has sealed what money needs: "
	if !slices.Contains(lines, needed+sealed[0]+" (and 2 more such: 'widgetd check' names all)") {
		t.Errorf("no line of what was sealed elsewhere in %q", lines)
	}
}

func TestBooks_restWhileTheirAccountIsClosed(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		there := func(o *order) { o.ReturnURL = "https://trattoria.example/thanks" }
		k.account = k.addAccount("Trattoria")
		k.change(func(t *tx) error { return addOrigin(t, k.account, "https://trattoria.example", anActor) })
		k.connect()
		k.remap(func(*bookMapping) {})
		if k.product == productFortnox {
			k.set(func(c *bookConnection) { series := "W"; c.Series = &series })
		}
		k.sell(1000, there)
		k.sendFrom(bookkeeperDay)
		k.until("2000-01-02 05:59")
		k.change(func(t *tx) error { return closeAccount(t, nouns(), k.account, actorCommand) })
		k.work(5 * time.Minute)
		if n := len(k.exports()); n != 0 || len(k.books()) != 0 {
			t.Fatalf("%d exports of a closed account, %d entries in the books", n, len(k.books()))
		}
		k.change(func(t *tx) error { return reopenAccount(t, k.account, actorCommand) })
		k.sell(500, there)
		k.work(2 * time.Minute)
		all := k.exports()
		if len(all) != 1 {
			t.Fatalf("%d exports", len(all))
		}
		k.is(all[0].ID, exportPosted)
		k.set(func(c *bookConnection) { c.SendFrom = nil })
		k.until("2000-01-03 06:00") // another export waits while the account is closed
		x := k.export("2000-01-02")
		k.change(func(t *tx) error { return closeAccount(t, nouns(), k.account, actorCommand) })
		k.after(time.Minute, x.ID, exportWaiting)
		k.change(func(t *tx) error { return reopenAccount(t, k.account, actorCommand) })
		k.after(time.Minute, x.ID, exportPosted)
		if len(k.books()) != 2 {
			t.Errorf("%d entries in the books", len(k.books()))
		}
	})
}

// manyCompanies gives both fakes n companies, each with a chart of 1,000 accounts.
func manyCompanies(xero *xeroFake, fortnox *fortnoxFake, n int) {
	first := xero.companies[0]
	xero.companies = nil
	for i := range n {
		company := &xeroFakeCompany{tenant: xero.newID(), name: fmt.Sprintf("Pizzeria %d AG", i), kind: first.kind,
			currency: first.currency, accounts: slices.Clone(first.accounts), rates: first.rates}
		theirs := fortnox.addCompany(int64(2_000_000+i), fmt.Sprintf("Krogen %d AB", i))
		for number := int64(4000); len(company.accounts) < 1000; number++ {
			name := fmt.Sprintf("Inköp av varor och material från leverantör %d", number)
			code := strconv.FormatInt(number, 10)
			company.accounts = append(company.accounts, &xeroFakeAccount{code, name, "EXPENSE", "NONE", "ACTIVE", ""})
			theirs.accounts = append(theirs.accounts, fortnoxFakeAccount{number, name, "", true})
		}
		xero.companies = append(xero.companies, company)
	}
	fortnox.companies = fortnox.companies[len(fortnox.companies)-n:]
}
