package main

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestDemo_printsLinesThatAllWorkAsPrinted also waits for the event that tests the demo's webhook.
func TestDemo_printsLinesThatAllWorkAsPrinted(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	programsOrSkip(t, "curl", "sqlite3", "sh")
	text, later := startDemoAndListen(t)
	got, err := later.ReadString('\n')
	if err != nil || !matches(`^webhook: \S+Z  webhook.test  evt_\w{26}  verified; answered 204\n$`, got) {
		t.Errorf("the terminal shows %q (%v)", got, err)
	}
	go io.Copy(io.Discard, later)
	want := []string{ // in the order of the lines, a part of each answer
		`"status":"pass"`,
		`{"ok":true,"id":"lead_`,
		`"code":"activated"`,
		`"valid":true`,
		`{"ok":true,"released":true}`,
		"eyJ",
		"204\n",
		`"interval":"week","timezone":"Europe/Zurich","totals":{"views":`,
		`"interval":"month"`,
		`{"data":[{"id":"lead_`,
		`{"data":[{"id":"lic_`,
		`{"data":[{"id":"pln_`,
		`"currency":"CHF","state":"open"`,
		`","days":[{"account_id":"acct_`,
		`"pay_url":"http`,
		`"state":"accepted"`,
		`"amount":1650`,
		`"state":"p`,
		`"id":"whe_`,
		`{"event_id":"evt_`,
		`{"keys":[{"alg":"EdDSA"`,
		`"status":410`,
		"kitchen-display",
	}
	ran, token, order, events := 0, "", "", followDemo(t, text)
	lacks(t, text, "…\n", "widgetd payment")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "TOKEN=") {
			if token != "" || !wholeToken.MatchString(line) {
				t.Errorf("%s after %s", line, token)
			}
			token = line
		}
		if waiting, is := strings.CutPrefix(line, "ORDER="); is {
			order = strings.TrimSpace(waiting)
		}
		if !strings.HasPrefix(line, "curl ") && !strings.HasPrefix(line, "sqlite3 ") {
			continue
		}
		line = strings.ReplaceAll(line, "$ORDER", order)
		out, err := exec.Command("sh", "-c", token+line).CombinedOutput()
		if found := regexp.MustCompile(`"pay_url":"([^"]+)"`).FindSubmatch(out); found != nil {
			payAsAGuest(t, string(found[1]))
		}
		if strings.Contains(line, "/accept ") { // it is captured beside this
			events.await(eventOrderPaid, func(subject string) bool { return subject == order })
		}
		for range 100 { // where the machine is busy, health waits too short for its proof
			if !strings.Contains(string(out), `"status":"warn"`) {
				break
			}
			out, err = exec.Command("sh", "-c", token+line).CombinedOutput()
		}
		if ran >= len(want) {
			t.Fatalf("a line more than this test knows: %s", line)
		}
		problem := strings.Contains(string(out), `"request_id"`) && !strings.Contains(want[ran], "410")
		if err != nil || problem || !strings.Contains(string(out), want[ran]) {
			t.Errorf("%s%s(%v), want %q", line, out, err, want[ran])
		}
		ran++
	}
	if n := len(wholeToken.FindAllString(text, -1)); n != 1 {
		t.Errorf("the token is printed %d times", n)
	}
	if ran != len(want) {
		t.Errorf("%d lines, want %d:\n%s", ran, len(want), text)
	}
}

// TestDemo_addressesSayWhatTheyAreFor: to look at the receiver of webhooks prints no webhook that was refused.
func TestDemo_addressesSayWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	text := sharedDemo(t)
	for name, want := range map[string]string{"A receiver of its webhooks": "This receives webhooks: post to it.",
		"A test provider of payments": "no money moves", "Test books, in place of Fortnox": "vouchers",
		"A lunch menu on a partner's site": "A demo: this page is on"} {
		status, _, body := fetched(t, printed(t, text, name))
		equal(t, name, status, 200)
		contains(t, body, want)
	}
}

// TestDemo_pageSellsAndRefusesFormsThatAreNotItsOwn has an order accepted and given back, too.
func TestDemo_pageSellsAndRefusesFormsThatAreNotItsOwn(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	text := sharedDemo(t)
	page := printed(t, text, "A lunch menu on a partner's site")
	post := func(path string, form url.Values, site string) (status int, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", page+path, strings.NewReader(form.Encode()))
		must(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", site)
		res, err := http.DefaultTransport.RoundTrip(r) // follows no redirect
		must(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		must(t, err)
		return res.StatusCode, res.Header.Get("Location") + string(text)
	}
	pizza, unknown := url.Values{"Pizza Margherita": {"1"}}, newID("ord", demoDawn)
	for _, c := range []struct {
		path   string
		form   url.Values
		site   string
		status int
		holds  string
	}{
		{"order", pizza, "same-origin", 303, "/v1/pay/ord_"},
		{"order", pizza, "cross-site", 403, ""},
		{"order", url.Values{"Pizza Margherita": {"0"}, "Pizza": {"1"}}, "same-origin", 422, "Nothing was ordered"},
		{"order", url.Values{"Pizza Margherita": {"21"}}, "same-origin", 422, "Nothing was ordered"},
		{"orders/" + unknown, url.Values{"do": {"Accept"}}, "same-origin", 409, "There is no order with this id."},
		{"orders/" + unknown, url.Values{"do": {"Cook"}}, "same-origin", 422, "no such order or button"},
		{"orders/1", url.Values{"do": {"Accept"}}, "same-origin", 422, "no such order or button"},
	} {
		if status, body := post(c.path, c.form, c.site); status != c.status || !strings.Contains(body, c.holds) {
			t.Errorf("%s with %v: %d %s, want %d", c.path, c.form, status, body, c.status)
		}
	}
	events := followDemo(t, text)
	_, payPage := post("order", url.Values{"Insalata mista": {"2"}}, "same-origin")
	payAsAGuest(t, payPage)
	ordered := regexp.MustCompile(`ord_\w{26}`).FindString(payPage)
	for _, button := range []string{"Accept", "Refund"} {
		_, _, orders := fetched(t, page+"orders")
		_, form, _ := strings.Cut(orders, `action="/orders/`+ordered)
		form, _, _ = strings.Cut(form, "</form>")
		contains(t, form, `<button name="do" value="`+button+`"`)
		status, body := post("orders/"+ordered, url.Values{"do": {button}}, "same-origin")
		equal(t, button, status, 303)
		contains(t, body, "/orders")
		if button == "Accept" { // it is captured beside this
			events.await(eventOrderPaid, func(subject string) bool { return subject == ordered })
		}
	}
	for path, want := range map[string]string{"orders": "CHF 22.00 given back", "thanks": "Thank you for your order"} {
		_, _, shown := fetched(t, page+path)
		contains(t, shown, want)
		lacks(t, shown, `action="/orders/`+ordered) // nothing is left to do
	}
}

// payAsAGuest pays an order at the demo's test provider.
func payAsAGuest(t testing.TB, payURL string) {
	t.Helper()
	submit := func(address, field, value string) (page *http.Response) {
		t.Helper()
		res, err := http.PostForm(address, url.Values{field: {value}}) // follows redirects
		must(t, err)
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s leads to %s: %s", address, res.Request.URL, res.Status)
		}
		return res
	}
	at := submit(payURL, "method", methodCard).Request.URL.String()
	if back := submit(at, "do", "pay").Request.URL.Path; !strings.HasSuffix(back, "/return") {
		t.Fatalf("the provider leads to %s", back)
	}
}

func TestDemo_leavesNothingBehindUnlessToldWhere(t *testing.T) {
	sequentialUnderRace(t)
	dir := filepath.Join(t.TempDir(), "what's kept")
	must(t, errors.Join(os.Mkdir(dir, 0o700), copyDemo(dir))) // of files that are made elsewhere, and stay
	t.Setenv("TMPDIR", t.TempDir())
	var db string
	t.Run("run", func(t *testing.T) { db = printed(t, startDemo(t, "-dir", ""), "Its database") })
	if _, err := os.Stat(filepath.Dir(db)); err == nil {
		t.Errorf("%s is still there", filepath.Dir(db))
	}
	keys := map[string]bool{}
	for range 2 {
		t.Run("kept", func(t *testing.T) {
			text := startDemo(t, "-dir", dir)
			if got := printed(t, text, "Its database"); got != shellWord(filepath.Join(dir, "widgetd.db")) {
				t.Errorf("its database: %s", got)
			}
			var stdout, stderr strings.Builder
			res, err := newClient(t).Get(printed(t, text, "The service behind it") + "/widget/health") // once it serves
			must(t, err)
			res.Body.Close()
			err = run(t.Context(), []string{"status", "-json"}, func(name string) string {
				return map[string]string{"WIDGETD_DB": filepath.Join(dir, "widgetd.db"),
					"WIDGETD_KEY": filepath.Join(dir, "widgetd.key")}[name]
			}, &stdout, &stderr)
			failIf(t, err != nil || strings.Contains(stdout.String(), `"service":null`), "status: %v %s", err, &stdout)
			keys[regexp.MustCompile(`[0-9A-Z]{5}(-[0-9A-Z]{5}){4}`).FindString(text)] = true
		})
	}
	if len(keys) != 2 || keys[""] {
		t.Errorf("two runs showed the keys %v", keys)
	}
	if faults, err := checkFile(filepath.Join(dir, "widgetd.db")); err != nil || len(faults) > 0 {
		t.Errorf("the kept database: %v %v", faults, err)
	}
	var paying, waiting int // those of both runs, since nothing is given up between them
	var err error
	t.Run("rows", func(t *testing.T) {
		st := openTestStore(t, filepath.Join(dir, "widgetd.db"), storeOptions{noCheckpoints: true})
		err = st.one(`SELECT (SELECT count(*) FROM payments WHERE state IN ('created', 'pending', 'authorized')),
			(SELECT count(*) FROM orders WHERE state IN ('authorized', 'accepted'))`, nil, &paying, &waiting)
	})
	if err != nil || paying != 8 || waiting != 8 {
		t.Errorf("%d attempts are under way for %d orders (%v)", paying, waiting, err)
	}
	o := &operator{t: t, env: filesIn(dir), shares: true}
	defer o.close()
	if report := o.object("check"); report["ok"] != true {
		t.Errorf("check: %v", report)
	}
	listsHaveTextInEveryCell(o)
	asksNobodyOutside(o, dir)
	other := newOperator(t)
	for _, addr := range []string{"0.0.0.0:0", ":0"} {
		other.fails("-addr must name one address", "demo", "-addr", addr)
	}
	if _, err := other.try("demo", "-addr", "127.0.0.1:0", "-dir", other.dir); err == nil ||
		!strings.Contains(err.Error(), "holds a database that the demo did not create") {
		t.Errorf("a demo over another's database: %v", err)
	}
}

// asksNobodyOutside fails unless commands on a demo's file are refused where they would ask a vendor, and nowhere else.
func asksNobodyOutside(o *operator, dir string) {
	o.t.Helper()
	payments, books, date := o.objects("payment", "list")[0]["id"].(string), "", ""
	for _, x := range o.objects("books", "export", "list") {
		if x["payout_id"] == nil {
			books, date = x["connection_id"].(string), x["date"].(string)
		}
	}
	for _, line := range []string{"serve -addr 127.0.0.1:0", "promote", "payment check " + payments,
		"payment disconnect -force " + payments, "books connect fortnox", "books accounts " + books,
		"books preview " + books + " " + date, "books map -suggest " + books,
		"api GET /books/connections/" + books + "/accounts"} {
		_, err := o.try(strings.Fields(line)...)
		if err == nil || !strings.HasSuffix(err.Error(), ": widgetd demo -dir "+shellWord(dir)) {
			o.t.Errorf("%s: %v", line, err)
		}
	}
	for _, line := range []string{"books app list -wide", "books map " + books, "books set -series W " + books,
		"payment export", "books disconnect " + books} {
		o.do(strings.Fields(line)...)
	}
}

// listsHaveTextInEveryCell runs each command that lists or exports rows, and fails if it prints what Go shows of a
// pointer or of a wrong format.
func listsHaveTextInEveryCell(o *operator) {
	o.t.Helper()
	first := func(noun string) string { return o.objects(noun, "list")[0]["id"].(string) }
	account := o.objects("webhook", "list")[0]["account_id"].(string)
	ids := map[string]string{"LICENSE": first("license"), "WEBHOOK": first("webhook"),
		"PAYOUT": o.objects("payout", "list", "-account", account, "-from", "2026-09-24")[0]["id"].(string)}
	ran, wrong := 0, regexp.MustCompile(`\b0x[0-9a-f]{6}|<nil>|%!`)
	for _, c := range allCommands() {
		option := "-wide"
		for _, o := range c.options {
			if o.name == "csv" {
				option = "-csv"
			}
		}
		if option != "-csv" && !strings.HasSuffix(c.name, " list") {
			continue
		}
		args := append(strings.Fields(c.name), option)
		if c.args != "" {
			args = append(args, ids[c.args])
		}
		ran++
		if out := o.do(args...); wrong.MatchString(out) {
			o.t.Errorf("%q prints %q:\n%s", args, wrong.FindString(out), out)
		}
	}
	failIf(o.t, ran < 24, "ran %d commands only", ran)
}

// TestDemo_ownerConnectsAnApplicationInABrowser walks from the menu to the application, to the service's pages
// and back, and ends what was agreed to.
func TestDemo_ownerConnectsAnApplicationInABrowser(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	text := startDemo(t)
	base := printed(t, text, "The service behind it")
	b := startBrowser(t)
	b.open(printed(t, text, "A lunch menu on a partner's site"))
	b.click(`//a[text()="connect your account"]`)
	b.screenshot("connect.png")
	b.click(`//button[text()="Connect your account"]`)
	code := b.text(`//*[@class="code"]`)
	b.screenshot("connect-code.png")
	b.click(`//a[text()="Go on to the service"]`)
	b.typeInto(`//input[@name="code"]`, code)
	b.click(`//button[text()="Sign in"]`)
	b.find(`//h1[text()="May Table Planner act for your account?"]`)
	b.screenshot("connect-consent.png")
	b.find(`//dt[. = "Offered by"]/following-sibling::dd[1][. = "Vendor"]`) // and not the restaurant itself
	b.click(`//input[@name="allow:orders:write"]`)
	b.click(`//button[@value="allow"]`)

	var claims struct{ Sub, Iss, Scope, Client_id, Grant string }
	var answer struct{ ID, Name string }
	for section, into := range map[string]any{"claims": &claims, "answer": &answer} {
		shown := b.text(`//section[@aria-labelledby="` + section + `"]/pre`)
		if err := json.Unmarshal([]byte(shown), into); err != nil {
			t.Errorf("%s: %v\n%s", section, err, shown)
		}
	}
	b.screenshot("connect-claims.png")
	if claims.Sub != answer.ID || claims.Iss != base || claims.Scope != scopeWebhooks+" "+scopeOrders ||
		!strings.HasPrefix(claims.Client_id, "app_") || !strings.HasPrefix(claims.Grant, "grt_") {
		t.Errorf("the token's claims are %+v", claims)
	}
	if !validID("acct", answer.ID) || answer.Name != demoAccount {
		t.Errorf("the account is shown as %+v", answer)
	}
	b.click(`//a[starts-with(text(), "Connected applications")]`)
	b.find(`//section/h2[. = "` + demoAppName + `"]`)
	b.screenshot("connect-connected.png")
	b.click(`//button[@name="grant"]`)
	b.find(`//h1[. = "Revoke the access of ` + demoAppName + `?"]`)
	b.screenshot("connect-end.png")
	b.click(`//button[@name="sure"]`)
	b.find(`//*[@role="status"][contains(., "` + demoAppName + `")]`)
	// Those of /docs stay.
	b.find(`//main[count(section) = 2][section/h2 = "Shift planner"]/section/h2[. = "Kitchen printer"]`)
}

func TestDemo_pageFitsATelephone(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	page := printed(t, sharedDemo(t), "A lunch menu on a partner's site")
	b := startBrowser(t)
	b.open(page)
	b.find(`//dd[@data-widget-stat="views.week" and text()!="…"]`)
	b.fitsInFrame(page, "[hidden]", `const buttons = [...page.querySelectorAll("li input")].map(box);
		const apart = r => r.right != buttons[0].right || r.left != buttons[0].left;
		if (buttons.length != 4 || buttons.some(apart)) fault("the buttons are not in line");
		if (page.querySelector("[name=website]").checkVisibility({ checkOpacity: true })) fault("the trap shows");`)
	b.fitsInFrame(page+"revenue", ".wide > *", `if (!page.querySelector("table")) fault("it is not there");`)
}

func TestDemoBooks_pageShowsWhatItsBooksWouldGet(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	text := sharedDemo(t)
	page := printed(t, text, "Its revenue, for the books")
	get := func(address string) string {
		t.Helper()
		status, _, body := fetched(t, address)
		equal(t, address, status, 200)
		return html.UnescapeString(body)
	}
	body, told := get(page), 0
	for _, want := range []string{"Only the demo’s own books are connected here, at a Fortnox that is part of it: " +
		"nothing leaves this machine.",
		"This is not the report of a certified till.", `<form method="post" action="/books">`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	opensBooks(t, strings.TrimSuffix(page, "revenue")+"books")
	lines := captures(`<code>([^<]+ -db .*?)</code>`, body)
	equal(t, "how many commands it names", len(lines), 1)
	contains(t, asPrinted(t, lines[0]), "sales", "total")
	for _, line := range captures(`(?m)^(?:Commands [^:]*: )?(\S.* -db .*)$`, text) {
		asPrinted(t, line)
		told++
	}
	equal(t, "how many commands the demo prints", told, 2)
	menu, restaurant := get(strings.TrimSuffix(page, "revenue")), get(strings.TrimSuffix(page, "revenue")+"orders")
	if !strings.Contains(menu, `href="/revenue"`) || !strings.Contains(restaurant, `href="/revenue"`) {
		t.Error("the demo's other pages do not lead to it")
	}
	// one that waits, one that is paid, and one that was declined: in words, after the number that the guest says
	for _, state := range []string{"Waits for your answer", "Paid", "Cancelled"} {
		equal(t, "orders that are "+state, strings.Count(restaurant, ": "+state+", CHF 57.00</h2>"), 1)
	}
	empty := get(page + "?date=2020-02-29")
	if !strings.Contains(empty, "Nothing was paid on this day.") {
		t.Errorf("a day without revenue:\n%s", empty)
	}
	yesterday := regexp.MustCompile(`<h2 id="day">\w+day, .*</h2>`).FindString(body)
	if got := get(page + "?date=2020-02-30"); yesterday == "" || !strings.Contains(got, yesterday) {
		t.Errorf("what is no date opens another day than %q", yesterday) // whose figures may have changed meanwhile
	}
}

// asPrinted returns what a command prints that is run in a directory of its own as a shell reads its line.
func asPrinted(t *testing.T, line string) string {
	t.Helper()
	words, is := strings.CutPrefix(line, ownCommand()+" ")
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+words).Output()
	failIf(t, !is || err != nil, "%s: %v", line, err)
	return (&operator{t: t}).do(strings.Split(strings.TrimSpace(string(out)), "\n")...)
}

// opensBooks presses the button that leads to the service's own pages, signed in.
func opensBooks(t *testing.T, address string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	must(t, err)
	res, err := (&http.Client{Jar: jar}).Post(address, formMediaType, nil)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	contains(t, string(body), "<h1>Your books</h1>", "Fortnox: <bdi>Trattoria Altstadt i Malmö AB</bdi>",
		"books/day/fortnox")
}

// asks sends a request with the demo's token to the service or to the books, by their addresses, and follows the
// redirects from one to the other.
func (d *movedDemo) asks(method, address, body string) (status int, answer string) {
	d.t.Helper()
	for range 3 {
		r := httptest.NewRequest(method, address, strings.NewReader(body))
		r.RemoteAddr = demoAddress
		r.Header.Set("Content-Type", "application/json")
		w, of := httptest.NewRecorder(), d.ledger.handler()
		if strings.HasPrefix(address, d.base) {
			r.Header.Set("Authorization", "Bearer "+d.token)
			of = d.server
		}
		of.ServeHTTP(w, r)
		if status, answer = w.Code, w.Body.String(); status != http.StatusFound {
			break
		}
		address = w.Header().Get("Location")
	}
	return status, answer
}

// useBooks connects a demo's account with the demo's books once more, as its owner would, and looks at what they have
// been sent.
func (d *movedDemo) useBooks() {
	t, base, books := d.t, d.base, d.ledger.base
	t.Helper()
	status, link := d.asks("POST", base+"/books/connections", `{"product":"fortnox"}`)
	at := captures(`"authorize_url":"([^"]*)"`, link)
	if status != 200 || len(at) != 1 || !strings.HasPrefix(at[0], books+"/agree?") {
		t.Fatalf("the link is %d %s", status, link)
	}
	status, page := d.asks("GET", at[0], "")
	contains(t, page, "<title>Connected", "Trattoria Altstadt i Malmö AB", "Revenue is sent again.")
	if status != 200 {
		t.Errorf("it is %d", status)
	}
	_, has := d.asks("GET", base+"/books/connections", "")
	if strings.Count(has, `"state":"in_use"`) != 1 || strings.Count(has, `"state":"choosing"`) != 1 {
		t.Errorf("the connections are %s", has)
	}
	for address, want := range map[string]int{
		base + "/books/connections": 409, books + "/agree?redirect_uri=https%3A%2F%2Felsewhere.example%2F": 400,
	} {
		method, body := "GET", ""
		if want == 409 { // the demo has no application at Xero, and asks nothing there
			method, body = "POST", `{"product":"xero"}`
		}
		if status, answer := d.asks(method, address, body); status != want {
			t.Errorf("%s: %d %s", address, status, answer)
		}
	}
}

// A demoTill is the demo's provider of cards, asked as the engine asks it.
type demoTill struct {
	*demoProvider
	t testing.TB
}

func newDemoTill(t testing.TB) *demoTill {
	p := newDemoProvider(newStripeProvider(nil, stripeBase), "http://127.0.0.1:8083", "http://127.0.0.1:8081",
		func() time.Time { return demoDawn })
	p.paid = func(context.Context, string) error { return nil }
	return &demoTill{p, t}
}

// starts begins an attempt of 20.00.
func (d *demoTill) starts(reference string) *payment {
	d.t.Helper()
	p := &payment{ID: newID("pay", demoDawn), Method: methodCard, Amount: 2000, Currency: "CHF",
		State: paymentCreated}
	d.does(opCreate, p, 2000, reference)
	return p
}

// does carries out an operation, and returns why it was refused.
func (d *demoTill) does(kind string, p *payment, amount int64, reference ...string) error {
	op := testOperation(kind, p, amount)
	o := &order{ID: "ord_1"}
	if len(reference) > 0 {
		o.Reference = &reference[0]
	}
	_, err := d.send(d.t.Context(), nil, op, d.call(op, p, o, testReturnURL))
	return err
}

// asks sends a request to the page of an attempt.
func (d *demoTill) asks(method, id, choice string) *http.Response {
	form := url.Values{"do": {choice}}
	r := httptest.NewRequest(method, "/pay/"+id, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	d.handler().ServeHTTP(w, r)
	return w.Result()
}

func TestDemoProvider_saysOnEveryPageThatItIsOne(t *testing.T) {
	t.Parallel()
	d := newDemoTill(t)
	open, declined, paid, expired := d.starts("<b>Table 4</b>"), d.starts("1"), d.starts("2"), d.starts("3")
	must(t, d.does(opExpire, expired, 0))
	equal(t, "declining", d.asks("POST", declined.ID, "decline").StatusCode, 200)
	for choice, want := range map[string]string{"back": leftURL(testReturnURL), "pay": testReturnURL} {
		if resp := d.asks("POST", paid.ID, choice); resp.StatusCode != 303 || resp.Header.Get("Location") != want {
			t.Errorf("%s answers %d to %s", choice, resp.StatusCode, resp.Header.Get("Location"))
		}
	}
	for name, c := range map[string]struct {
		id, has, hasNot string
		status          int
	}{
		"open": {open.ID, "<h1>Order &lt;b&gt;Table 4&lt;/b&gt;</h1>\n" +
			"<p class=\"amount\">CHF 20.00</p>\n<form", "declined", 200},
		"declined": {declined.ID, "The card was declined", "is done", 200},
		"paid":     {paid.ID, "<h1>This payment is done</h1>\n<a class=\"back\" href=\"" + testReturnURL, "<form", 200},
		"expired":  {expired.ID, "This payment has expired", "<form", 200},
		"none":     {"pay_none", "There is no such payment", "<form", 404},
	} {
		resp := d.asks("GET", c.id, "")
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		page := string(body)
		top, _, _ := strings.Cut(page, "<main>")
		if resp.StatusCode != c.status || !strings.Contains(page, c.has) || strings.Contains(page, c.hasNot) ||
			!strings.Contains(top, "This is a test provider of the demo. No money moves.") ||
			strings.Contains(page, "<script") {
			t.Errorf("%s: %d\n%s", name, resp.StatusCode, page)
		}
		policy := resp.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "form-action") ||
			strings.Contains(policy, "unsafe") || !strings.Contains(page, "<style>"+pageStyle()+"</style>") {
			t.Errorf("%s: %q does not let its style in, or lets other things in", name, policy)
		}
	}
}

// TestDemoProvider_goesOnFromTheRows looks at attempts of which another run has known more.
func TestDemoProvider_goesOnFromTheRows(t *testing.T) {
	t.Parallel()
	d := newDemoTill(t)
	row := func(state string, authorized, captured, refunded int64) *payment {
		return &payment{ID: newID("pay", demoDawn), Method: methodCard, Amount: 2000, Currency: "CHF",
			State:      paymentState(state),
			Authorized: authorized, Captured: captured, Refunded: refunded,
			CaptureBefore: newStamp(demoDawn).after(time.Hour)}
	}
	open, authorized, captured := row(paymentPending, 0, 0, 0), row(paymentAuthorized, 2000, 0, 0),
		row(paymentPartRefunded, 0, 2000, 500)
	for p, want := range map[*payment]paymentPhase{open: phaseOpen, authorized: phaseApproved, captured: phaseApproved,
		row(paymentCancelled, 0, 0, 0): phaseCancelled, row(paymentCreated, 0, 0, 0): phaseUnknown} {
		r, err := d.fetchStatus(t.Context(), nil, p)
		if err != nil || r.phase != want || r.amount != 2000 || r.captured != p.Captured || r.refunded != p.Refunded {
			t.Errorf("%s: %+v, %v", p.State, r, err)
		}
	}
	equal(t, "paying", d.asks("POST", open.ID, "pay").StatusCode, 303)
	for _, step := range []struct {
		kind   string
		p      *payment
		amount int64
		done   bool
	}{
		{opCapture, open, 2001, false}, {opCapture, open, 1500, true}, {opCapture, open, 500, false},
		{opRefund, authorized, 1, false}, {opCancel, authorized, 0, true}, {opCancel, authorized, 0, false},
		{opRefund, captured, 1501, false}, {opRefund, captured, 1500, true}, {opExpire, captured, 0, false},
	} {
		if err := d.does(step.kind, step.p, step.amount); (err == nil) != step.done {
			t.Errorf("%s of %d: %v", step.kind, step.amount, err)
		}
	}
	r, err := d.fetchStatus(t.Context(), nil, captured)
	if err != nil || r.refunded != 2000 || len(r.refunds) != 1 || r.exceeds() {
		t.Errorf("%+v, %v", r, err)
	}
}
